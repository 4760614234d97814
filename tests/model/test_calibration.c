/* Calibration: what a fit brings on made-up blocks, and the file. */
#include "tests/harness.h"

#include <errno.h>
#include <unistd.h>

#include "model/calibration.h"
#include "model/sampler.h"

enum { PLACES = 5, BLOCKS = 4000 };

/* Blocks whose true chance is sigmoid(logit * slope + shift): a head that is over-confident and shifted. */
struct made {
    float logit[BLOCKS][PLACES];
    int kept[BLOCKS];
    struct mdl_probes probes;
};

static struct made *make(double slope, double shift, uint64_t seed)
{
    struct made *m = calloc(1, sizeof *m);
    uint64_t at = 0;
    for (int i = 0; i < BLOCKS; i++)
        for (int k = 0, all = 1; k < PLACES; k++) {
            double x = 6 * mdl_random_unit(seed, at++, 0) - 2.5, c = 1 / (1 + exp(-(slope * x + shift)));
            m->logit[i][k] = (float)x;
            all &= mdl_random_unit(seed, at++, 0) < c;
            m->kept[i] += all;
        }
    m->probes = (struct mdl_probes){BLOCKS, PLACES, m->logit[0], m->kept};
    return m;
}

static double mean_error(const struct made *m, const struct mdl_calibration_place *at)
{
    double sum = 0;
    for (int k = 0; k < PLACES; k++)
        sum += mdl_calibration_error(&m->probes, at, k);
    return sum / PLACES;
}

static void identity(struct mdl_calibration_place *at)
{
    for (int k = 0; k < PLACES; k++)
        at[k] = (struct mdl_calibration_place){1, 0};
}

Test(calibration, a_temperature_is_found)
{
    struct made *fit = make(0.5, 0, 1), *held = make(0.5, 0, 2);
    struct mdl_calibration_place raw[PLACES], at[PLACES];
    identity(raw);
    cr_assert_eq(mdl_calibration_fit(&fit->probes, MDL_FIT_TEMPERATURE, at), 0);
    for (int k = 0; k < 2; k++)
        cr_expect_float_eq(at[k].temperature, 2, 0.5, "position %d: %g", k, at[k].temperature);
    cr_expect_lt(mean_error(held, at), 0.5 * mean_error(held, raw));
    free(fit);
    free(held);
}

Test(calibration, a_shift_is_found_where_a_temperature_does_not_help)
{
    struct made *fit = make(1.2, -1.5, 3), *held = make(1.2, -1.5, 4);
    struct mdl_calibration_place raw[PLACES], temperature[PLACES], at[PLACES];
    identity(raw);
    cr_assert_eq(mdl_calibration_fit(&fit->probes, MDL_FIT_SHIFT, at), 0);
    cr_assert_eq(mdl_calibration_fit(&fit->probes, MDL_FIT_TEMPERATURE, temperature), 0);
    for (int k = 0; k < 2; k++) {
        cr_expect_float_eq(1 / at[k].temperature, 1.2, 0.25, "position %d: %g", k, 1 / at[k].temperature);
        cr_expect_float_eq(at[k].shift, -1.5, 0.25, "position %d: %g", k, at[k].shift);
    }
    cr_expect_lt(mean_error(held, at), 0.25 * mean_error(held, raw), "%g against %g", mean_error(held, at),
                 mean_error(held, raw));
    cr_expect_lt(mean_error(held, at), 0.5 * mean_error(held, temperature));
    free(fit);
    free(held);
}

/* A right head stays as it is, nearly, and blocks that were all kept or all rejected break nothing. */
Test(calibration, edges_of_the_fit)
{
    struct made *m = make(1, 0, 5);
    struct mdl_calibration_place at[PLACES];
    for (int how = MDL_FIT_TEMPERATURE; how <= MDL_FIT_SHIFT; how++) {
        cr_assert_eq(mdl_calibration_fit(&m->probes, (enum mdl_fit)how, at), 0);
        cr_expect_float_eq(at[0].temperature, 1, 0.2);
        cr_expect_float_eq(at[0].shift, 0, 0.2);
        for (int kept = 0; kept <= PLACES; kept += PLACES) {
            int same[BLOCKS];
            for (int i = 0; i < BLOCKS; i++)
                same[i] = kept;
            struct mdl_probes p = {BLOCKS, PLACES, m->logit[0], same};
            cr_assert_eq(mdl_calibration_fit(&p, (enum mdl_fit)how, at), 0);
            for (int k = 0; k < PLACES; k++)
                cr_expect(isfinite(at[k].temperature) && at[k].temperature >= 0.01 && fabs(at[k].shift) <= 100);
        }
    }
    struct mdl_probes few = {49, PLACES, m->logit[0], m->kept};
    cr_expect_eq(mdl_calibration_fit(&few, MDL_FIT_SHIFT, at), -ENODATA);
    free(m);
}

Test(calibration, confidences_stay_between_0_and_1)
{
    struct mdl_calibration c;
    mdl_calibration_identity(&c, PLACES);
    cr_expect_float_eq(mdl_calibrated(&c, MDL_CHOICE_GREEDY, 0, 0), 0.5, 1e-6);
    const float odd[] = {INFINITY, -INFINITY, 1e30f, -1e30f, NAN};
    for (int i = 0; i < 5; i++) {
        float v = mdl_calibrated(&c, MDL_CHOICE_REJECT, 4, odd[i]);
        cr_expect(v >= 0 && v <= 1);
    }
    cr_expect_eq(mdl_calibrated(&c, MDL_CHOICE_GREEDY, 0, NAN), 0);
    /* What has no vector of its own uses the head as it is, never that of another choice. */
    for (int fitted = 0; fitted < MDL_CHOICES; fitted++) {
        mdl_calibration_identity(&c, PLACES);
        c.fitted[fitted] = true;
        c.at[fitted][1].shift = 2;
        for (int m = 0; m < MDL_CHOICES; m++)
            cr_expect_float_eq(mdl_calibrated(&c, (enum mdl_choice)m, 1, 0), m == fitted ? 0.8808 : 0.5, 1e-4,
                               "%s, fitted for %s", mdl_choice_names[m], mdl_choice_names[fitted]);
    }
}

/* ---- the file ---- */

static char path[64];

static void name_file(void)
{
    snprintf(path, sizeof path, "/tmp/weft-calibration-%d.json", (int)getpid());
    unlink(path);
}

static void remove_file(void)
{
    unlink(path);
}

TestSuite(calibration, .init = name_file, .fini = remove_file);

Test(calibration, file)
{
    struct mdl_calibration c, got;
    struct cfg_error err = {0};
    mdl_calibration_identity(&c, PLACES);
    c.fitted[MDL_CHOICE_GREEDY] = c.fitted[MDL_CHOICE_REJECT] = true;
    for (int k = 0; k < PLACES; k++) {
        c.at[MDL_CHOICE_GREEDY][k] = (struct mdl_calibration_place){1 + 0.25 * k, -0.5 * k};
        c.at[MDL_CHOICE_REJECT][k] = (struct mdl_calibration_place){0.5, 3};
    }
    cr_assert_eq(mdl_calibration_read(path, 7, PLACES, &got, &err), -ENOENT);
    cr_assert_eq(mdl_calibration_write(path, 7, &c, &err), 0, "%s", err.msg);
    cr_assert_eq(mdl_calibration_read(path, 7, PLACES, &got, &err), 0, "%s", err.msg);
    cr_expect(got.fitted[MDL_CHOICE_GREEDY] && !got.fitted[MDL_CHOICE_MATCH] && got.fitted[MDL_CHOICE_REJECT]);
    for (int k = 0; k < PLACES; k++)
        for (int m = 0; m < MDL_CHOICES; m++)
            cr_expect_float_eq(mdl_calibrated(&got, (enum mdl_choice)m, k, 0.7f),
                               mdl_calibrated(&c, (enum mdl_choice)m, k, 0.7f), 1e-5);
    cr_expect_eq(mdl_calibration_read(path, 8, PLACES, &got, &err), -EINVAL, "another model");
    cr_expect_not_null(strstr(err.msg, "revision"), "%s", err.msg);
    cr_expect_not(got.fitted[MDL_CHOICE_GREEDY], "nothing of a refused file is used");
    cr_expect_eq(mdl_calibration_read(path, 7, PLACES - 1, &got, &err), -EINVAL, "another block");
}

Test(calibration, damaged_files_are_refused)
{
    static const char *const bad[] = {
        "",
        "{",
        "[1]",
        "{\"format\":2}",
        "{\"format\":1,\"model_revision\":7}",
        "{\"format\":1,\"model_revision\":\"0000000000000007\",\"block\":5}",
        "{\"format\":1,\"model_revision\":\"0000000000000007\",\"block\":5,\"choices\":{\"greedy\":{}}}",
        "{\"format\":1,\"model_revision\":\"0000000000000007\",\"block\":5,\"choices\":{\"greedy\":{\"temperature\":[1,"
        "1,1,1,1],"
        "\"shift\":[0,0,0,0]}}}",
        "{\"format\":1,\"model_revision\":\"0000000000000007\",\"block\":5,\"choices\":{\"greedy\":{\"temperature\":[1,"
        "1,0,1,1],"
        "\"shift\":[0,0,0,0,0]}}}",
        "{\"format\":1,\"model_revision\":\"0000000000000007\",\"block\":5,\"choices\":{\"match\":{\"temperature\":[1,"
        "1,1,1,1],"
        "\"shift\":[0,0,\"x\",0,0]}}}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mdl_calibration got;
        struct cfg_error err = {0};
        FILE *f = fopen(path, "w");
        fputs(bad[i], f);
        fclose(f);
        cr_expect_eq(mdl_calibration_read(path, 7, PLACES, &got, &err), -EINVAL, "file %zu", i);
        cr_expect_neq(err.msg[0], 0);
        cr_expect(!got.fitted[0] && !got.fitted[1] && !got.fitted[2]);
    }
}
