#include "model/calibration.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/json_file.h"

const char *const mdl_choice_names[MDL_CHOICES + 1] = {"greedy", "match", "reject", NULL};

enum { FORMAT = 1, BLOCKS_MIN = 50 };

void mdl_calibration_identity(struct mdl_calibration *c, int places)
{
    *c = (struct mdl_calibration){.places = places};
    for (int m = 0; m < MDL_CHOICES; m++)
        for (int k = 0; k < MDL_MAX_BLOCK; k++)
            c->at[m][k].temperature = 1;
}

static double confidence(const struct mdl_calibration_place *at, float logit)
{
    double c = 1 / (1 + exp(-((double)logit / at->temperature + at->shift)));
    return isnan(c) ? 0 : c;
}

float mdl_calibrated(const struct mdl_calibration *c, enum mdl_choice choice, int position, float logit)
{
    if (!c->fitted[choice])
        return (float)confidence(&(struct mdl_calibration_place){1, 0}, logit);
    return (float)confidence(&c->at[choice][position < MDL_MAX_BLOCK ? position : MDL_MAX_BLOCK - 1], logit);
}

/* ---- the file ---- */

static int read_vector(const json_t *o, const char *path, const char *choice, int places,
                       struct mdl_calibration_place *at, struct cfg_error *err)
{
    const json_t *temperature = json_object_get(o, "temperature"), *shift = json_object_get(o, "shift");
    if (json_array_size(temperature) != (size_t)places || json_array_size(shift) != (size_t)places)
        return cfg_error_set(err, EINVAL, "%s: \"%s\" needs \"temperature\" and \"shift\" of %d numbers each", path,
                             choice, places);
    for (int k = 0; k < places; k++) {
        const json_t *t = json_array_get(temperature, (size_t)k), *s = json_array_get(shift, (size_t)k);
        double tv = json_number_value(t), sv = json_number_value(s);
        if (!json_is_number(t) || !json_is_number(s) || !(tv >= 0.01 && tv <= 100) || !(fabs(sv) <= 100))
            return cfg_error_set(err, EINVAL,
                                 "%s: \"%s\", position %d: a temperature is 0.01 to 100, a shift -100 to 100", path,
                                 choice, k + 1);
        at[k] = (struct mdl_calibration_place){tv, sv};
    }
    return 0;
}

static int read_object(const json_t *root, const char *path, uint64_t revision, int places, struct mdl_calibration *c,
                       struct cfg_error *err)
{
    const char *name = json_string_value(json_object_get(root, "model_revision"));
    char own[17];
    snprintf(own, sizeof own, "%016" PRIx64, revision);
    if (json_integer_value(json_object_get(root, "format")) != FORMAT || !name)
        return cfg_error_set(err, EINVAL, "%s is no calibration of format %d; make one with `weft calibrate`", path,
                             FORMAT);
    if (strcmp(name, own))
        return cfg_error_set(err, EINVAL,
                             "%s was fitted for model revision %.32s, this model is %s; make one with `weft calibrate`",
                             path, name, own);
    if (json_integer_value(json_object_get(root, "block")) != places)
        return cfg_error_set(err, EINVAL, "%s is for blocks of %lld drafts, this model drafts %d", path,
                             (long long)json_integer_value(json_object_get(root, "block")), places);
    const json_t *choices = json_object_get(root, "choices");
    int r = json_is_object(choices) ? 0 : cfg_error_set(err, EINVAL, "%s has no \"choices\"", path);
    for (int m = 0; m < MDL_CHOICES && !r; m++) {
        const json_t *o = json_object_get(choices, mdl_choice_names[m]);
        c->fitted[m] = o != NULL;
        if (o)
            r = read_vector(o, path, mdl_choice_names[m], places, c->at[m], err);
    }
    return r;
}

int mdl_calibration_read(const char *path, uint64_t revision, int places, struct mdl_calibration *c,
                         struct cfg_error *err)
{
    json_t *root;
    mdl_calibration_identity(c, places);
    int r = mdl_json_file(path, &root, err);
    if (r)
        return r;
    r = read_object(root, path, revision, places, c, err);
    json_decref(root);
    if (r)
        mdl_calibration_identity(c, places);
    return r;
}

int mdl_calibration_write(const char *path, uint64_t revision, const struct mdl_calibration *c, struct cfg_error *err)
{
    char own[17];
    snprintf(own, sizeof own, "%016" PRIx64, revision);
    json_t *choices = json_object(),
           *root = json_pack("{s:i,s:s,s:i}", "format", FORMAT, "model_revision", own, "block", c->places);
    for (int m = 0; m < MDL_CHOICES; m++) {
        if (!c->fitted[m])
            continue;
        json_t *temperature = json_array(), *shift = json_array();
        for (int k = 0; k < c->places; k++) {
            json_array_append_new(temperature, json_real(c->at[m][k].temperature));
            json_array_append_new(shift, json_real(c->at[m][k].shift));
        }
        json_object_set_new(choices, mdl_choice_names[m],
                            json_pack("{s:o,s:o}", "temperature", temperature, "shift", shift));
    }
    json_object_set_new(root, "choices", choices);
    int r = mdl_json_file_write(path, root, JSON_INDENT(1) | JSON_REAL_PRECISION(6) | JSON_PRESERVE_ORDER, err);
    json_decref(root);
    return r;
}

/* ---- fitting ---- */

static double survival_of(const struct mdl_probes *p, const struct mdl_calibration_place *at, int i, int k)
{
    double s = 1;
    for (int j = 0; j <= k; j++)
        s *= confidence(&at[j], p->logit[(size_t)i * (size_t)p->places + (size_t)j]);
    return s;
}

static void bin_add(struct mdl_reliability *r, double survival, bool kept)
{
    int b = (int)(survival * MDL_CALIBRATION_BINS);
    b = b < MDL_CALIBRATION_BINS ? b : MDL_CALIBRATION_BINS - 1;
    r->n[b]++;
    r->survival[b] += survival;
    r->kept[b] += kept;
}

static double error_of(const struct mdl_reliability *r, int n)
{
    double e = 0;
    for (int b = 0; b < MDL_CALIBRATION_BINS; b++)
        e += fabs(r->survival[b] - r->kept[b]);
    return n ? e / n : 0;
}

void mdl_calibration_reliability(const struct mdl_probes *p, const struct mdl_calibration_place *at, int k,
                                 struct mdl_reliability *out)
{
    *out = (struct mdl_reliability){{0}};
    for (int i = 0; i < p->n; i++)
        bin_add(out, survival_of(p, at, i, k), p->kept[i] > k);
    for (int b = 0; b < MDL_CALIBRATION_BINS; b++)
        if (out->n[b]) {
            out->survival[b] /= out->n[b];
            out->kept[b] /= out->n[b];
        }
}

double mdl_calibration_error(const struct mdl_probes *p, const struct mdl_calibration_place *at, int k)
{
    struct mdl_reliability r = {{0}};
    for (int i = 0; i < p->n; i++)
        bin_add(&r, survival_of(p, at, i, k), p->kept[i] > k);
    return error_of(&r, p->n);
}

/* The temperature whose product up to k has the smallest calibration error; before: survival up to k - 1. */
static double fit_temperature(const struct mdl_probes *p, int k, const double *before)
{
    enum { GRID = 65 };
    double best = INFINITY, found = 1;
    for (int g = 0; g < GRID; g++) {
        struct mdl_calibration_place at = {0.25 * pow(16, (double)g / (GRID - 1)), 0};
        struct mdl_reliability r = {{0}};
        for (int i = 0; i < p->n; i++)
            bin_add(&r, before[i] * confidence(&at, p->logit[(size_t)i * (size_t)p->places + (size_t)k]),
                    p->kept[i] > k);
        double e = error_of(&r, p->n);
        if (e < best) {
            best = e;
            found = at.temperature;
        }
    }
    return found;
}

/* Log loss of the survival up to k against what was kept, for one temperature and shift. */
static double loss_of(const struct mdl_probes *p, int k, const double *before, struct mdl_calibration_place at)
{
    double loss = 0;
    for (int i = 0; i < p->n; i++) {
        double s = before[i] * confidence(&at, p->logit[(size_t)i * (size_t)p->places + (size_t)k]);
        s = s < 1e-6 ? 1e-6 : s > 1 - 1e-6 ? 1 - 1e-6 : s;
        loss -= log(p->kept[i] > k ? s : 1 - s);
    }
    return loss;
}

/* The temperature and shift whose product up to k has the smallest log loss: a grid, then finer ones around the best.
 */
static struct mdl_calibration_place fit_shift(const struct mdl_probes *p, int k, const double *before)
{
    enum { SIDE = 6, ROUNDS = 6 };
    struct mdl_calibration_place best = {1, 0};
    double least = loss_of(p, k, before, best), step_t = 0.5, step_s = 1;
    for (int round = 0; round < ROUNDS; round++, step_t /= 3, step_s /= 3) {
        struct mdl_calibration_place centre = best;
        for (int a = -SIDE; a <= SIDE; a++)
            for (int b = -SIDE; b <= SIDE; b++) {
                struct mdl_calibration_place at = {centre.temperature * exp(a * step_t), centre.shift + b * step_s};
                if (at.temperature < 0.05 || at.temperature > 50 || fabs(at.shift) > 50)
                    continue;
                double loss = loss_of(p, k, before, at);
                if (loss < least) {
                    least = loss;
                    best = at;
                }
            }
    }
    return best;
}

int mdl_calibration_fit(const struct mdl_probes *p, enum mdl_fit how, struct mdl_calibration_place *at)
{
    if (p->n < BLOCKS_MIN)
        return -ENODATA;
    double *before = malloc((size_t)p->n * sizeof *before);
    if (!before)
        return -ENOMEM;
    for (int i = 0; i < p->n; i++)
        before[i] = 1;
    for (int k = 0; k < p->places; k++) {
        at[k] = how == MDL_FIT_SHIFT ? fit_shift(p, k, before)
                                     : (struct mdl_calibration_place){fit_temperature(p, k, before), 0};
        for (int i = 0; i < p->n; i++)
            before[i] *= confidence(&at[k], p->logit[(size_t)i * (size_t)p->places + (size_t)k]);
    }
    free(before);
    return 0;
}
