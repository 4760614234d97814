/* Recorded counters of `weft bench decode`, written and read again. A file is believed as far as it agrees with itself
 * and with what a run of this program can count: no sequence ends in one, so that every round is a step of each of
 * them, a fixed length drafts and offers exactly that in every step, and a step emits its kept drafts and one token. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench_decode.h"
#include "cli/conditions.h"
#include "cli/output.h"
#include "cli/result_file.h"

enum { FORMAT = 1, SEQUENCES_MAX = 1 << 20 };
static const double COUNT_MAX = 1e15, ROUNDS_MAX = 1e9, SECONDS_MAX = 1e6;

/* ---- writing ---- */

static json_t *list_json(const int64_t *v, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer(v[i]));
    return list;
}

static json_t *point_json(const struct bd_point *p, int places)
{
    const struct mdl_counters *c = &p->counters;
    char name[16];
    bd_mode_name(p->mode, name);
    json_t *j = json_pack("{s:s,s:i,s:i,s:f,s:I,s:I,s:I}", "drafts", name, "sequences", p->load, "repeat", p->repeat,
                          "seconds", p->seconds, "rounds", (json_int_t)p->rounds, "rounds_without_drafter",
                          (json_int_t)p->skipped, "probes", (json_int_t)p->probes);
    json_object_update_new(j, json_pack("{s:I,s:I,s:I,s:I,s:I,s:o,s:o}", "steps", (json_int_t)c->steps, "drafted",
                                        (json_int_t)c->drafted, "offered", (json_int_t)c->offered, "accepted",
                                        (json_int_t)c->accepted, "emitted", (json_int_t)c->emitted,
                                        "offered_by_position", list_json(c->offered_at, places), "accepted_by_position",
                                        list_json(c->accepted_at, places)));
    if (!isnan(p->planning))
        json_object_set_new(j, "planning", json_real(p->planning));
    if (p->expected >= 0)
        json_object_set_new(j, "expected", json_real(p->expected));
    return j;
}

int bd_write_json(const struct bd_results *r, const char *path, struct cfg_error *err)
{
    json_t *points = json_array();
    int places = 0;
    for (int i = 0; i < r->n; i++)
        for (int k = 0; k < MDL_MAX_BLOCK; k++)
            places = r->point[i].counters.offered_at[k] && k >= places ? k + 1 : places;
    for (int i = 0; i < r->n; i++)
        json_array_append_new(points, point_json(&r->point[i], places));
    json_t *all = json_pack("{s:i,s:s,s:O,s:o}", "format", FORMAT, "kind", "decode", "conditions", r->conditions,
                            "points", points);
    const struct bd_setup *u = &r->setup;
    if (all && u->devices)
        json_object_set_new(all, "setup",
                            json_pack("{s:i,s:i,s:i,s:i,s:i}", "devices", u->devices, "experts", u->experts,
                                      "redundant", u->redundant, "context", u->context, "drafts", u->drafts));
    if (all && !isnan(r->convert))
        json_object_set_new(all, "convert_rate", json_real(r->convert));
    return cli_output_json(path, all, JSON_INDENT(1) | JSON_REAL_PRECISION(9) | JSON_PRESERVE_ORDER, err);
}

/* ---- reading ---- */

/* "off", "dynamic", or "fixed " and a number without anything around it. */
static bool read_mode(const char *name, int *mode)
{
    char again[16];
    char *end;
    if (!strcmp(name, "dynamic") || !strcmp(name, "off")) {
        *mode = *name == 'd' ? BD_DYNAMIC : 0;
        return true;
    }
    if (strncmp(name, "fixed ", 6))
        return false;
    long n = strtol(name + 6, &end, 10);
    if (n < 1 || n > MDL_MAX_BLOCK)
        return false;
    *mode = (int)n;
    bd_mode_name(*mode, again);
    return !strcmp(name, again);
}

static int wrong(struct cfg_error *err, const char *where, const char *what, int64_t is, const char *why,
                 int64_t should)
{
    return cfg_error_set(err, EINVAL, "%s: \"%s\" is %lld, %s %lld", where, what, (long long)is, why,
                         (long long)should);
}

static int read_positions(const json_t *list, const char *where, const char *what, int64_t sum, const int64_t most[],
                          int64_t *out, struct cfg_error *err)
{
    int64_t all = 0;
    size_t i;
    const json_t *v;
    if (json_array_size(list) > MDL_MAX_BLOCK)
        return cfg_error_set(err, EINVAL, "%s: \"%s\" has more than %d places", where, what, MDL_MAX_BLOCK);
    json_array_foreach ((json_t *)list, i, v) {
        out[i] = json_integer_value(v);
        if (!json_is_integer(v) || out[i] < 0 || (double)out[i] > COUNT_MAX)
            return cfg_error_set(err, EINVAL, "%s: \"%s\", place %zu: must be a count", where, what, i + 1);
        if (out[i] > most[i])
            return cfg_error_set(err, EINVAL, "%s: \"%s\", place %zu: %lld are more than the %lld that it can have",
                                 where, what, i + 1, (long long)out[i], (long long)most[i]);
        if (i && out[i] > out[i - 1])
            return cfg_error_set(err, EINVAL, "%s: \"%s\", place %zu: %lld are more than the %lld of the place before",
                                 where, what, i + 1, (long long)out[i], (long long)out[i - 1]);
        all += out[i];
    }
    return all == sum ? 0 : wrong(err, where, what, all, "in all, which is not the total of", sum);
}

/* Counters of a point of its mode. block: drafts that are made at once, at most. */
static int check_counters(const struct bd_point *p, int block, const char *where, struct cfg_error *err)
{
    const struct mdl_counters *c = &p->counters;
    int64_t steps = p->rounds * p->load;
    if (c->steps != steps)
        return wrong(err, where, "steps", c->steps, "but rounds times sequences are", steps);
    if (p->skipped > p->rounds)
        return wrong(err, where, "rounds_without_drafter", p->skipped, "but all rounds are", p->rounds);
    if (p->probes > p->rounds)
        return wrong(err, where, "probes", p->probes, "but all rounds are", p->rounds);
    if (p->mode != BD_DYNAMIC) {
        if (c->drafted != p->mode * steps)
            return wrong(err, where, "drafted", c->drafted,
                         "but with that number of drafts every step makes them, in all", p->mode * steps);
        if (c->offered != c->drafted)
            return wrong(err, where, "offered", c->offered,
                         "but a fixed number of drafts is offered whole:", c->drafted);
        if (p->probes > 0)
            return wrong(err, where, "probes", p->probes, "but what is not planned has", 0);
        if (p->skipped != (p->mode ? 0 : p->rounds))
            return wrong(err, where, "rounds_without_drafter", p->skipped, "but with that number of drafts they are",
                         p->mode ? 0 : p->rounds);
    }
    if (c->drafted > block * (steps - p->skipped * p->load))
        return wrong(err, where, "drafted", c->drafted, "but the steps that drafted can make at most",
                     block * (steps - p->skipped * p->load));
    if (c->offered > c->drafted)
        return wrong(err, where, "offered", c->offered, "more than the drafted", c->drafted);
    if (c->accepted > c->offered)
        return wrong(err, where, "accepted", c->accepted, "more than the offered", c->offered);
    if (c->emitted != steps + c->accepted)
        return wrong(err, where, "emitted", c->emitted,
                     "but each step emits its accepted drafts and one token:", steps + c->accepted);
    return 0;
}

static int check_times(const struct bd_point *p, const char *where, struct cfg_error *err)
{
    double steps = (double)p->counters.steps, most = steps + (double)p->counters.offered;
    if (p->planning > p->seconds)
        return cfg_error_set(err, EINVAL, "%s: \"planning\" is %g s, more than its %g \"seconds\"", where, p->planning,
                             p->seconds);
    if (p->expected >= 0 && (p->expected < steps * (1 - 1e-6) || p->expected > most * (1 + 1e-6)))
        return cfg_error_set(err, EINVAL, "%s: \"expected\" is %g, but %g steps and their offered drafts give %g to %g",
                             where, p->expected, steps, steps, most);
    return 0;
}

static int read_point(const json_t *j, const struct bd_setup *setup, const char *where, struct bd_point *p,
                      struct cfg_error *err)
{
    struct mdl_counters *c = &p->counters;
    int64_t load, repeat, most[MDL_MAX_BLOCK];
    int block = setup->devices ? setup->drafts : MDL_MAX_BLOCK;
    const char *name;
    const json_t *offered, *accepted;
    *p = (struct bd_point){.planning = NAN, .expected = -1};
    const struct cli_member members[] = {
        {"drafts", CLI_MEMBER_TEXT, &name},
        {"sequences", CLI_MEMBER_INTEGER, &load, 1, SEQUENCES_MAX},
        {"repeat", CLI_MEMBER_INTEGER, &repeat, 0, BD_REPEATS - 1},
        {"seconds", CLI_MEMBER_NUMBER, &p->seconds, 1e-9, SECONDS_MAX},
        {"planning", CLI_MEMBER_NUMBER, &p->planning, 0, SECONDS_MAX, true},
        {"expected", CLI_MEMBER_NUMBER, &p->expected, 0, COUNT_MAX, true},
        {"rounds", CLI_MEMBER_INTEGER, &p->rounds, 1, ROUNDS_MAX},
        {"rounds_without_drafter", CLI_MEMBER_INTEGER, &p->skipped, 0, ROUNDS_MAX},
        {"probes", CLI_MEMBER_INTEGER, &p->probes, 0, ROUNDS_MAX},
        {"steps", CLI_MEMBER_INTEGER, &c->steps, 0, COUNT_MAX},
        {"drafted", CLI_MEMBER_INTEGER, &c->drafted, 0, COUNT_MAX},
        {"offered", CLI_MEMBER_INTEGER, &c->offered, 0, COUNT_MAX},
        {"accepted", CLI_MEMBER_INTEGER, &c->accepted, 0, COUNT_MAX},
        {"emitted", CLI_MEMBER_INTEGER, &c->emitted, 0, COUNT_MAX},
        {"offered_by_position", CLI_MEMBER_LIST, &offered},
        {"accepted_by_position", CLI_MEMBER_LIST, &accepted},
        {.kind = CLI_MEMBER_END},
    };
    int r = cli_members_read(j, where, members, err);
    if (r)
        return r;
    p->load = (int)load;
    p->repeat = (int)repeat;
    if (!read_mode(name, &p->mode))
        return cfg_error_set(err, EINVAL, "%s: \"drafts\" is \"%.20s\", none of off, fixed N (1 to %d) and dynamic",
                             where, name, MDL_MAX_BLOCK);
    if (p->mode > block)
        return cfg_error_set(err, EINVAL, "%s: \"drafts\" is \"%s\", but \"setup\" says that %d are made at once",
                             where, name, block);
    r = check_counters(p, block, where, err);
    for (int k = 0; k < MDL_MAX_BLOCK; k++)
        most[k] = k < (p->mode == BD_DYNAMIC ? block : p->mode) ? c->steps : 0;
    if (!r)
        r = read_positions(offered, where, "offered_by_position", c->offered, most, c->offered_at, err);
    if (!r)
        r = read_positions(accepted, where, "accepted_by_position", c->accepted, c->offered_at, c->accepted_at, err);
    return r ? r : check_times(p, where, err);
}

static int read_setup(const json_t *j, const char *path, struct bd_setup *out, struct cfg_error *err)
{
    int64_t v[5];
    static const char *const name[] = {"devices", "experts", "redundant", "context", "drafts"};
    int *const to[] = {&out->devices, &out->experts, &out->redundant, &out->context, &out->drafts};
    static const double least[] = {1, 0, 0, 1, 0}, most[] = {1 << 16, 1 << 20, 1 << 20, 1 << 26, MDL_MAX_BLOCK};
    struct cli_member members[6] = {0};
    struct cfg_error why;
    for (int i = 0; i < 5; i++)
        members[i] = (struct cli_member){name[i], CLI_MEMBER_INTEGER, &v[i], least[i], most[i]};
    if (cli_members_read(j, "setup", members, &why))
        return cfg_error_set(err, EINVAL, "%s: \"setup\" needs devices, experts, redundant, context and drafts; %s",
                             path, why.msg);
    for (int i = 0; i < 5; i++)
        *to[i] = (int)v[i];
    return 0;
}

/* Repeats of a way and load are numbered in their order, and so paired with those of the others. */
struct order {
    int n, load[BD_LOADS], seen[BD_LOADS][BD_MODES];
};

static int check_order(struct order *o, const struct bd_point *p, const char *where, struct cfg_error *err)
{
    int l = 0;
    while (l < o->n && o->load[l] != p->load)
        l++;
    if (l == BD_LOADS)
        return cfg_error_set(err, EINVAL, "%s: more than %d numbers of \"sequences\"", where, BD_LOADS);
    if (l == o->n)
        o->load[o->n++] = p->load;
    int *seen = &o->seen[l][p->mode - BD_DYNAMIC];
    if (p->repeat != *seen)
        return wrong(err, where, "repeat", p->repeat, "but the next one of its drafts and sequences is", *seen);
    ++*seen;
    return 0;
}

static int read_root(const json_t *root, const char *path, struct bd_results *r, struct cfg_error *err)
{
    struct order order = {0};
    const json_t *points, *setup = NULL, *point;
    size_t i;
    r->convert = NAN;
    const struct cli_member members[] = {
        {"format", CLI_MEMBER_INTEGER, NULL, FORMAT, FORMAT},
        {"kind", CLI_MEMBER_TEXT, NULL, .optional = true},
        {"conditions", CLI_MEMBER_OBJECT, NULL},
        {"setup", CLI_MEMBER_OBJECT, &setup, .optional = true},
        {"convert_rate", CLI_MEMBER_NUMBER, &r->convert, 0, 1, true},
        {"points", CLI_MEMBER_LIST, &points},
        {.kind = CLI_MEMBER_END},
    };
    int bad = cli_members_read(root, path, members, err);
    if (bad)
        return bad;
    r->conditions = json_incref(json_object_get(root, "conditions"));
    bad = cli_conditions_check(r->conditions, path, err);
    if (!bad && setup)
        bad = read_setup(setup, path, &r->setup, err);
    for (i = 0; !bad && i < json_array_size(points); i++) {
        struct bd_point p;
        char where[300];
        point = json_array_get(points, i);
        snprintf(where, sizeof where, "%.250s, point %zu", path, i + 1);
        bad = read_point(point, &r->setup, where, &p, err);
        if (!bad)
            bad = check_order(&order, &p, where, err);
        /* Else tokens that came out would stand beside those that were to be expected. */
        if (!bad && r->n && (p.expected >= 0) != (r->point[0].expected >= 0))
            bad = cfg_error_set(err, EINVAL, "%s: \"expected\" must be in all points or in none", where);
        if (!bad)
            bad = bd_add(r, &p, err);
    }
    return bad;
}

int bd_read_json(const char *path, struct bd_results *r, struct cfg_error *err)
{
    json_t *root;
    int bad = cli_result_read(path, CLI_RESULT_DECODE, &root, err);
    if (!bad)
        bad = read_root(root, path, r, err);
    json_decref(root);
    return bad;
}
