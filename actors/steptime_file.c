#include "actors/steptime_file.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "model/json_file.h"

enum { FORMAT = 3 };

static void processor_name(char *out, size_t size)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    snprintf(out, size, "unknown processor");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon)
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(out, size, "%s", colon[1] == ' ' ? colon + 2 : colon + 1);
        break;
    }
    if (f)
        fclose(f);
}

void act_steptime_identity(const struct mdl_model *m, int streams, int context, struct act_steptime_identity *out)
{
    char name[120];
    processor_name(name, sizeof name);
    *out = (struct act_steptime_identity){.revision = m->ck->revision, .streams = streams, .context = context};
    snprintf(out->machine, sizeof out->machine, "%s, %d threads", name, mdl_team_size(m->team));
    snprintf(out->build, sizeof out->build, WEFT_VERSION ", %s, compiler %.40s", m->exec.be->name, __VERSION__);
    cfg_build_id(out->build_id);
}

/* ---- reading ---- */

static int read_curve(const json_t *root, const char *path, const char *name, struct act_steptime_curve *c,
                      struct cfg_error *err)
{
    const json_t *list = json_object_get(root, name), *pair;
    size_t i;
    if (!json_is_array(list))
        return cfg_error_set(err, EINVAL, "%s: \"%s\" is missing", path, name);
    json_array_foreach (list, i, pair) {
        const json_t *rows = json_array_get(pair, 0), *ns = json_array_get(pair, 1);
        json_int_t at = json_integer_value(rows);
        bool pairs = json_array_size(pair) == 2 && json_is_integer(rows) && json_is_number(ns);
        int r = !pairs || at < 1 || at > 1 << 24 ? -EINVAL
                : i && at <= c->at[c->n - 1]     ? -EDOM
                                                 : act_steptime_add(c, (int)at, json_number_value(ns));
        if (r)
            return cfg_error_set(err, EINVAL, "%s: \"%s\", point %zu: %s", path, name, i + 1,
                                 r == -ENOSPC ? "too many points"
                                 : r == -EDOM ? "the numbers of rows must ascend"
                                              : "needs a number of rows and a time above 0, and no more");
    }
    return 0;
}

static int read_between(const json_t *root, const char *path, struct act_steptime *t, struct cfg_error *err)
{
    const json_t *list = json_object_get(root, "between"), *level;
    size_t i;
    if (!json_is_array(list) || json_array_size(list) > ACT_STEPTIME_BETWEEN)
        return cfg_error_set(err, EINVAL, "%s: \"between\" is missing or too long", path);
    json_array_foreach (list, i, level) {
        struct act_steptime_level *l = &t->between[i];
        json_int_t drafts = json_integer_value(json_object_get(level, "drafts"));
        if (drafts < 1 || drafts >= t->block || (i && drafts <= t->between[i - 1].drafts))
            return cfg_error_set(err, EINVAL, "%s: \"between\", %zu: \"drafts\" must ascend in 1..%d", path, i + 1,
                                 t->block - 1);
        l->drafts = (int)drafts;
        t->n_between++;
        int r = read_curve(level, path, "points", &l->curve, err);
        if (r)
            return r;
    }
    return 0;
}

static int differs(const json_t *root, const char *path, const char *key, const char *own, struct cfg_error *err)
{
    const char *there = json_string_value(json_object_get(root, key));
    if (there && !strcmp(there, own))
        return 0;
    return cfg_error_set(err, EINVAL, "%s was measured for another %s (%.120s; here: %s)", path, key,
                         there ? there : "none", own);
}

/* Of this program and for what it will do: the same code on the same machine, and as many sequences at a time. */
static int check_identity(const json_t *root, const char *path, const struct act_steptime_identity *id,
                          struct cfg_error *err)
{
    char revision[17];
    json_int_t streams = json_integer_value(json_object_get(root, "streams")),
               context = json_integer_value(json_object_get(root, "context"));
    snprintf(revision, sizeof revision, "%016" PRIx64, id->revision);
    int r = differs(root, path, "model", revision, err);
    if (!r)
        r = differs(root, path, "machine", id->machine, err);
    if (!r)
        r = differs(root, path, "build", id->build, err);
    if (!r && !id->build_id[0])
        r = cfg_error_set(err, EINVAL,
                          "%s: this program was linked without a build id (-Wl,--build-id), so no table is "
                          "known to be of its code",
                          path);
    if (!r)
        r = differs(root, path, "build_id", id->build_id, err);
    if (!r && streams < id->streams)
        r = cfg_error_set(err, EINVAL, "%s was measured for up to %lld sequences at a time, here are %d", path,
                          (long long)streams, id->streams);
    if (!r && context != id->context)
        r = cfg_error_set(err, EINVAL, "%s was measured for another context (%lld tokens, here %d)", path,
                          (long long)context, id->context);
    return r;
}

static int read_number(const json_t *root, const char *path, const char *name, double most, double *out,
                       struct cfg_error *err)
{
    const json_t *v = json_object_get(root, name);
    *out = json_number_value(v);
    return json_is_number(v) && *out >= 0 && *out <= most
               ? 0
               : cfg_error_set(err, EINVAL, "%s: \"%s\" must be a number from 0 to %g", path, name, most);
}

static int check_times(const struct act_steptime *t, const char *path, struct cfg_error *err)
{
    int point;
    const char *why, *curve = act_steptime_doubt(t, &point, &why);
    return curve ? cfg_error_set(err, EINVAL, "%s: \"%s\", point %d: the time %s", path, curve, point, why) : 0;
}

/* The largest batch of one row per request must be all that was asked for. */
static int check_cover(const struct act_steptime *t, const char *path, const struct act_steptime_identity *id,
                       struct cfg_error *err)
{
    int most = t->plain.n ? t->plain.at[t->plain.n - 1] : 0;
    if (most >= id->streams)
        return 0;
    return cfg_error_set(err, EINVAL, "%s was cut short at %d of %d sequences at a time; raise speculation.measure",
                         path, most, id->streams);
}

static int read_object(const json_t *root, const char *path, const struct act_steptime_identity *id, int block,
                       struct act_steptime *t, struct cfg_error *err)
{
    if (json_integer_value(json_object_get(root, "format")) != FORMAT)
        return cfg_error_set(err, EINVAL, "%s is no step-time table of format %d", path, FORMAT);
    int r = check_identity(root, path, id, err);
    if (!r && json_integer_value(json_object_get(root, "block")) != block)
        r = cfg_error_set(err, EINVAL, "%s is for blocks of %lld drafts, wanted are %d", path,
                          (long long)json_integer_value(json_object_get(root, "block")), block);
    if (!r)
        r = read_curve(root, path, "plain", &t->plain, err);
    if (!r)
        r = read_between(root, path, t, err);
    if (!r)
        r = read_curve(root, path, "full", &t->full, err);
    if (!r)
        r = read_curve(root, path, "draft", &t->draft, err);
    t->padded = json_is_true(json_object_get(root, "padded"));
    if (!r && !json_is_boolean(json_object_get(root, "padded")))
        r = cfg_error_set(err, EINVAL, "%s: \"padded\" must be true or false", path);
    if (!r)
        r = read_number(root, path, "pick_ns", ACT_STEPTIME_PICK_MOST, &t->pick_ns, err);
    if (!r)
        r = read_number(root, path, "expert_share", 1, &t->expert_share, err);
    if (!r && !act_steptime_usable(t))
        r = cfg_error_set(err, EINVAL, "%s: the table is not complete", path);
    if (!r)
        r = check_times(t, path, err);
    return r ? r : check_cover(t, path, id, err);
}

int act_steptime_read(const char *path, const struct act_steptime_identity *id, int block, struct act_steptime *out,
                      struct cfg_error *err)
{
    json_t *root;
    act_steptime_init(out, block);
    int r = mdl_json_file(path, &root, err);
    if (r)
        return r;
    r = read_object(root, path, id, block, out, err);
    json_decref(root);
    if (r)
        act_steptime_init(out, block);
    return r;
}

/* ---- writing ---- */

static json_t *curve_json(const struct act_steptime_curve *c)
{
    json_t *list = json_array();
    for (int i = 0; i < c->n; i++)
        json_array_append_new(list, json_pack("[i,f]", c->at[i], c->raw[i]));
    return list;
}

static json_t *between_json(const struct act_steptime *t)
{
    json_t *list = json_array();
    for (int i = 0; i < t->n_between; i++)
        json_array_append_new(
            list, json_pack("{s:i,s:o}", "drafts", t->between[i].drafts, "points", curve_json(&t->between[i].curve)));
    return list;
}

int act_steptime_write(const char *path, const struct act_steptime_identity *id, const struct act_steptime *t,
                       struct cfg_error *err)
{
    char revision[17];
    snprintf(revision, sizeof revision, "%016" PRIx64, id->revision);
    json_t *root = json_pack("{s:i,s:s,s:s,s:s,s:s,s:i,s:i,s:i,s:b,s:f,s:f,s:o,s:o,s:o,s:o}", "format", FORMAT, "model",
                             revision, "machine", id->machine, "build", id->build, "build_id", id->build_id, "streams",
                             id->streams, "context", id->context, "block", t->block, "padded", (int)t->padded,
                             "pick_ns", t->pick_ns, "expert_share", t->expert_share, "plain", curve_json(&t->plain),
                             "between", between_json(t), "full", curve_json(&t->full), "draft", curve_json(&t->draft));
    int r = mdl_json_file_write(path, root, JSON_INDENT(1) | JSON_REAL_PRECISION(7) | JSON_PRESERVE_ORDER, err);
    json_decref(root);
    return r;
}
