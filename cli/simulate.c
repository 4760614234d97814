/* `weft simulate`: the command. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/conditions.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/simulate.h"
#include "cli/simulate_measure.h"
#include "cli/simulate_report.h"
#include "model/json_file.h"

enum { LOADS = 32, MODES = 16, SIZES = 8 };

struct arguments {
    const char *load, *rate, *modes, *decode, *prefill, *trace, *json, *csv, *plot, *against, *measure;
    int threads, drafts, prompt_tokens, output_tokens, requests, seed, groups, shared, routing;
    double seconds, warm, speed;
    bool fixed_lengths, group_sync, modes_given;
};

struct simulation {
    struct arguments a;
    struct sim_profile profile;
    struct sim_trace trace;
    struct sim_report report;
};

/* "1,2,4": numbers from least to most. Returns how many, or -EINVAL. */
static int read_list(const char *text, const char *what, double least, double most, bool whole, double *out, int room,
                     struct cfg_error *err)
{
    int n = 0;
    for (const char *at = text; at; n++) {
        char *end;
        double v = strtod(at, &end);
        if (end == at || !(v >= least && v <= most) || (whole && v != floor(v)) || (*end && *end != ',') || n == room)
            return cfg_error_set(err, EINVAL, "%s %s: give %s from %g to %g with commas, at most %d", what, text,
                                 whole ? "integers" : "numbers", least, most, room);
        out[n] = v;
        at = *end ? end + 1 : NULL;
    }
    return n;
}

struct size {
    int ranks, group; /* group 0: all */
};

/* "64,128/64": ranks, and how many share their experts. */
static int read_sizes(const char *text, const char *what, int most, struct size *out, struct cfg_error *err)
{
    int n = 0;
    for (const char *at = text; at; n++) {
        char *end;
        long ranks = strtol(at, &end, 10), group = *end == '/' && end > at ? strtol(at = end + 1, &end, 10) : 0;
        if (end == at || n == SIZES || ranks < 1 || ranks > most || group < 0 || group > ranks || (*end && *end != ','))
            return cfg_error_set(
                err, EINVAL,
                "%s %s: give numbers of ranks from 1 to %d with commas, each with /GROUP where not all "
                "ranks share their experts, at most %d",
                what, text, most, SIZES);
        out[n] = (struct size){(int)ranks, (int)group};
        at = *end ? end + 1 : NULL;
    }
    return n;
}

/* ---- modes ---- */

static const char *const mode_names[] = {"fixed", "dynamic", "without-hysteresis", "early-stop", "off", NULL};

static struct act_plan_options mode_options(const struct sim_profile *p, const char *name, int length)
{
    struct act_plan_options o = {.mode = ACT_PLAN_DYNAMIC, .length = length, .probe_share = 0.005};
    if (!strcmp(name, "off"))
        return (struct act_plan_options){.mode = ACT_PLAN_OFF};
    if (!strcmp(name, "fixed"))
        return (struct act_plan_options){.mode = ACT_PLAN_FIXED, .length = length < p->block ? length : p->block};
    if (!strcmp(name, "dynamic"))
        o.min_gain = 0.005;
    if (!strcmp(name, "early-stop"))
        o.budget = ACT_PLAN_EARLY_STOP;
    return o;
}

/* The next name of a list with commas; "fixed3" means a length. *at: NULL behind the last one. */
static int next_mode(const struct simulation *s, const char **at, char *name, size_t size, struct act_plan_options *out,
                     struct cfg_error *err)
{
    size_t n = strcspn(*at, ",");
    int length = s->profile.block, i = 0;
    char word[32];
    snprintf(name, size, "%.*s", (int)n, *at);
    snprintf(word, sizeof word, "%s", name);
    if (!strncmp(word, "fixed", 5) && word[5]) {
        char *end;
        long l = strtol(word + 5, &end, 10);
        length = word[5] >= '1' && word[5] <= '9' && !*end && l <= s->profile.block ? (int)l : 0;
        word[5] = 0;
    }
    while (mode_names[i] && strcmp(mode_names[i], word))
        i++;
    if (!mode_names[i] || n >= size || length < 1 || length > s->profile.block)
        return cfg_error_set(err, EINVAL,
                             "--modes: \"%s\" is none of fixed, fixed1 to fixed%d, dynamic, "
                             "without-hysteresis, early-stop, off",
                             name, s->profile.block);
    *out = mode_options(&s->profile, word, length);
    *at = (*at)[n] ? *at + n + 1 : NULL;
    return 0;
}

/* All of them, before the first one runs. */
static int check_modes(const struct simulation *s, struct cfg_error *err)
{
    const char *text = s->a.modes;
    bool plans = false;
    for (const char *at = text; at;) {
        struct act_plan_options plan;
        char name[32];
        int r = next_mode(s, &at, name, sizeof name, &plan, err);
        if (r)
            return r;
        plans |= plan.mode == ACT_PLAN_DYNAMIC;
    }
    if (s->a.group_sync && !plans)
        return cfg_error_set(err, EINVAL,
                             "--group-sync is ignored with --modes %s: dynamic, without-hysteresis and early-stop plan "
                             "a budget",
                             text);
    return 0;
}

/* ---- runs ---- */

static int run_one(struct simulation *s, const struct size *decode, const struct size *prefill, bool open, double v,
                   const char *mode, const struct act_plan_options *plan, struct cfg_error *err)
{
    const struct arguments *a = &s->a;
    struct sim_point *p = sim_report_add(&s->report);
    if (!p)
        return cfg_error_set(err, ENOMEM, "out of memory");
    *p = (struct sim_point){.decode = decode->ranks,
                            .decode_group = decode->group,
                            .prefill = prefill->ranks,
                            .prefill_group = prefill->group,
                            .open = open,
                            .value = v};
    snprintf(p->mode, sizeof p->mode, "%s", mode);
    const struct sim_world_options o = {.plan = *plan,
                                        .decode = decode->ranks,
                                        .decode_group = decode->group,
                                        .prefill = prefill->ranks,
                                        .prefill_group = prefill->group,
                                        .group_sync = a->group_sync,
                                        .prefix = a->routing == SIM_ROUTING_PREFIX,
                                        .common = a->routing == SIM_ROUTING_COMMON,
                                        .seed = (uint64_t)a->seed};
    bool traced = a->trace && open; /* has no more requests than it has */
    const struct sim_load load = {.concurrency = open ? 0 : (int)(v * decode->ranks),
                                  .rate = open ? v : 0,
                                  .trace = a->trace ? &s->trace : NULL,
                                  .speed = a->speed,
                                  .requests = traced && a->requests > s->trace.n ? s->trace.n : a->requests,
                                  .warm = a->warm,
                                  .seconds = a->seconds,
                                  .groups = a->groups,
                                  .shared_tokens = a->shared,
                                  .fixed_lengths = a->fixed_lengths,
                                  .block_tokens = s->profile.block_tokens,
                                  .seed = (uint64_t)a->seed};
    return sim_world_run(&s->profile, &o, &load, &p->outcome, err);
}

static int run_modes(struct simulation *s, const struct size *decode, const struct size *prefill, bool open, double v,
                     struct cfg_error *err)
{
    char name[32];
    struct act_plan_options plan;
    int r = 0;
    for (const char *at = s->a.modes; !r && at;) {
        r = next_mode(s, &at, name, sizeof name, &plan, err);
        if (!r)
            r = run_one(s, decode, prefill, open, v, name, &plan, err);
    }
    return r;
}

/* What no request of this load could be: longer than the context. */
static int check_lengths(const struct simulation *s, struct cfg_error *err)
{
    const struct sim_profile *p = &s->profile;
    const struct arguments *a = &s->a;
    for (int i = 0; i < s->trace.n; i++) {
        const struct sim_arrival *t = &s->trace.arrival[i];
        if (t->prompt + t->output > p->context)
            return cfg_error_set(
                err, ERANGE,
                "%s:%d: a prompt of %d and an answer of %d tokens are more than the profile's context of "
                "%d (decode.context); such a request was served by another machine than the one described",
                a->trace, t->line, t->prompt, t->output, p->context);
    }
    if (a->shared >= p->context)
        return cfg_error_set(err, EINVAL, "--shared-tokens %d: the profile's context is %d tokens (decode.context)",
                             a->shared, p->context);
    return 0;
}

static int run_all(struct simulation *s, struct cfg_error *err)
{
    struct arguments *a = &s->a;
    double loads[LOADS], rates[LOADS];
    struct size decode[SIZES] = {{s->profile.decode, 0}}, prefill[SIZES] = {{s->profile.prefill, 0}};
    bool traced = a->trace && !a->load;
    int n_loads = a->load ? read_list(a->load, "--load", 1, 65536, true, loads, LOADS, err) : 0;
    int n_rates = a->rate ? read_list(a->rate, "--rate", 1e-6, 1e9, false, rates, LOADS, err) : 0;
    int n_decode = a->decode ? read_sizes(a->decode, "--decode", 16384, decode, err) : 1;
    int n_prefill = a->prefill ? read_sizes(a->prefill, "--prefill", 4096, prefill, err) : 1;
    int r = n_loads < 0 || n_rates < 0 || n_decode < 0 || n_prefill < 0 ? -EINVAL : 0;
    if (!r && s->profile.one_process && (n_decode > 1 || n_prefill > 1 || decode->ranks > 1 || prefill->ranks > 1))
        r = cfg_error_set(err, EINVAL, "a profile with one_process has one rank that does everything");
    for (int i = 0; i < n_decode && !r && a->group_sync; i++)
        if ((decode[i].group ? decode[i].group : decode[i].ranks) > ACT_INSTANCES_MAX)
            r = cfg_error_set(err, EINVAL, "--group-sync: at most %d decode ranks of a group plan together",
                              ACT_INSTANCES_MAX);
    if (!r)
        r = check_modes(s, err);
    if (!r)
        r = check_lengths(s, err);
    if (!r && !n_loads && !n_rates && !traced) {
        static const double usual[] = {16, 60, 96};
        memcpy(loads, usual, sizeof usual);
        n_loads = 3;
    }
    for (int k = 0; !r && k < n_decode * n_prefill; k++) {
        const struct size *d = &decode[k / n_prefill], *f = &prefill[k % n_prefill];
        for (int i = 0; !r && i < n_loads; i++)
            r = run_modes(s, d, f, false, loads[i], err);
        for (int i = 0; !r && i < n_rates; i++)
            r = run_modes(s, d, f, true, rates[i], err);
        if (!r && traced)
            r = run_modes(s, d, f, true, 0, err);
    }
    return r;
}

static int read_profile(const char *path, struct sim_profile *out, struct cfg_error *err)
{
    json_t *j;
    struct cfg_error why;
    int r = mdl_json_file(path, &j, err);
    if (r)
        return r;
    r = sim_profile_read(j, out, &why);
    if (r)
        cfg_error_set(err, -r, "%s: %s", path, why.msg);
    json_decref(j);
    return r;
}

static const char *const routings[] = {"load", "prefix", "common", NULL};

static void load_condition(const struct simulation *s, json_t *to)
{
    static const char *const ways[] = {"by load", "by known prefixes",
                                       "by load, with a tier that all prefill ranks share"};
    const struct arguments *a = &s->a;
    const struct sim_profile *p = &s->profile;
    char requests[200], how[200], alike[80] = "", from[80] = "";
    if (a->trace)
        snprintf(requests, sizeof requests, "%d of %.120s%s", s->trace.n, a->trace,
                 a->load ? ", lengths alone, one after the other" : "");
    else
        snprintf(requests, sizeof requests, "made up, %s %d and answers of %d tokens",
                 a->fixed_lengths ? "prompts of" : "mean prompt of", p->prompt_tokens, p->output_tokens);
    if (a->groups)
        snprintf(alike, sizeof alike, ", in %d groups that share their first %d tokens", a->groups, a->shared);
    if (a->trace && !a->load && (a->speed < 1 || a->speed > 1))
        snprintf(how, sizeof how, "when the trace says, its time %g times as fast", a->speed);
    else if (a->trace && !a->load)
        snprintf(how, sizeof how, "when the trace says");
    else
        snprintf(how, sizeof how, "%s",
                 a->rate && a->load ? "closed loop (a number at a time per decode rank) and open loop "
                                      "(N/s: at random, per second of all ranks)"
                 : a->rate          ? "open loop, at random, per second of all ranks"
                                    : "closed loop, so many at a time per decode rank");
    cli_condition_set(to, "requests", "%s%s; %s; prompts go %s", requests, alike, how, ways[a->routing]);
    bool traced = a->trace && !a->load;
    if (a->requests || traced)
        snprintf(from, sizeof from, "all of %d requests of a run are counted",
                 traced && (!a->requests || a->requests > s->trace.n) ? s->trace.n : a->requests);
    else
        snprintf(from, sizeof from, "%g s are counted, behind %g s that are not", a->seconds, a->warm);
    cli_condition_set(to, "time", "virtual: %s; seed %d; simulated, nothing was measured for this", from, a->seed);
}

/* What the figures hold for, as texts. */
static json_t *conditions_of(const struct simulation *s, const char *file)
{
    const struct arguments *a = &s->a;
    const struct sim_profile *p = &s->profile;
    const char *slash = strrchr(file, '/');
    json_t *to = json_object();
    cli_condition_set(to, "profile", "%s: %s", slash ? slash + 1 : file, p->name[0] ? p->name : "without a name");
    char ranks[48], sizes[64] = "";
    sim_ranks_text(s->report.point[0], p, ranks, sizeof ranks);
    for (int i = 1; i < s->report.n; i++)
        if (!sim_same_ranks(s->report.point[0], s->report.point[i]))
            snprintf(ranks, sizeof ranks, "several sizes of");
    if (p->decode_group.ranks || p->prefill_group.ranks)
        snprintf(sizes, sizeof sizes, "; step times are of groups of %d and %d", p->decode_group.ranks,
                 p->prefill_group.ranks);
    if (p->one_process)
        cli_condition_set(to, "ranks", "one process that does everything, on one machine");
    else
        cli_condition_set(
            to, "ranks",
            "%s decode + prefill ranks; N/G: G of them share their experts, else all of a kind (EP = DP)%s%s%s", ranks,
            sizes, p->lockstep ? "; ranks of a group end steps together" : "",
            a->group_sync ? " and plan one budget" : "");
    cli_condition_set(
        to, "acceptance",
        "modelled, blocks of %d drafts: draft k is kept with 1 / (1 + exp(-(%g %+g k + %g x))), x normal, %g "
        "of its variance a sequence's own",
        p->block, p->base, p->slope, p->spread, p->persist);
    cli_condition_set(
        to, "machine",
        "context of %d tokens, %lld tokens of KV and %d sequences per decode rank; step times vary by %g %%, "
        "the planner's table is off by %g %%, planning takes %g us",
        p->context, (long long)p->kv_tokens, p->streams, 100 * p->noise, 100 * p->table_error, p->plan_us);
    load_condition(s, to);
    if (p->price > 0)
        cli_condition_set(to, "price", "%g for a device and hour; %s", p->price,
                          p->one_process || p->encoder.n ? "prefill ranks are devices too"
                                                         : "prompts take no time and no devices");
    return to;
}

static int write_results(struct simulation *s, const char *file, struct cfg_error *err)
{
    const struct arguments *a = &s->a;
    s->report.conditions = conditions_of(s, file);
    sim_report_print(&s->report, &s->profile);
    int r = a->json ? sim_report_json(&s->report, &s->profile, a->json, err) : 0;
    if (!r && a->csv)
        r = sim_report_csv(&s->report, &s->profile, a->csv, err);
    if (!r)
        r = sim_report_ended(&s->report, err);
    if (!r && a->plot)
        r = sim_report_plot(&s->report, &s->profile, a->plot, err);
    return r;
}

/* With the first mode. */
static int compare(struct simulation *s, struct cfg_error *err)
{
    char name[32];
    struct act_plan_options plan;
    const char *at = s->a.modes;
    int r = next_mode(s, &at, name, sizeof name, &plan, err);
    if (!r && at && s->a.modes_given)
        r = cfg_error_set(err, EINVAL, "--modes %s: with --against one of them, that of the measured server",
                          s->a.modes);
    return r ? r : sim_against(&s->profile, name, &plan, s->a.against, (uint64_t)s->a.seed, err);
}

static int measure(const struct arguments *a, const char *file, struct cfg_error *err)
{
    int r = cli_output_check(file, err);
    const struct sim_measure_options o = {.model = a->measure,
                                          .threads = a->threads,
                                          .drafts = a->drafts,
                                          .prompt_tokens = a->prompt_tokens,
                                          .output_tokens = a->output_tokens};
    return r ? r : sim_measure(&o, file, err);
}

/* The profile is an argument and no option, so the options' own checks do not see it. */
static int check_profile_name(const struct arguments *a, const char *profile, struct cfg_error *err)
{
    const struct {
        const char *option, *file;
    } other[] = {{"json", a->json}, {"csv", a->csv}, {"plot", a->plot}, {"against", a->measure ? a->against : NULL}};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (other[i].file && cli_output_same(other[i].file, profile))
            return cfg_error_set(err, EINVAL, "--%s and the profile name the same file, %s", other[i].option, profile);
    return 0;
}

int cli_simulate_run(int argc, char **argv)
{
    struct simulation s = {.a = {.modes = "fixed,dynamic,without-hysteresis,off",
                                 .seed = 1,
                                 .seconds = 60,
                                 .warm = 15,
                                 .speed = 1,
                                 .drafts = 3,
                                 .prompt_tokens = 128,
                                 .output_tokens = 64}};
    struct arguments *a = &s.a;
    int first;
    const struct cli_option options[] = {
        {CLI_TEXT, "measure", 0, &a->measure, "DIR",
         "write a profile of this machine and the model in DIR to\n"
         "PROFILE.json: step times, acceptance"},
        {CLI_INT, "threads", 0, &a->threads, "N", "measure with so many threads (0: one per CPU)", 0, 256},
        {CLI_INT, "drafts", 0, &a->drafts, "N", "measure with so many drafts per block (3)", 1, MDL_MAX_BLOCK},
        {CLI_INT, "prompt-tokens", 0, &a->prompt_tokens, "N", "measure with prompts of this length (128)", 16, 1 << 20},
        {CLI_INT, "output-tokens", 0, &a->output_tokens, "N", "measure with answers of this length (64)", 1, 1 << 20},
        {CLI_INPUT, "against", 0, &a->against, "FILE",
         "predict what `weft bench serve --json FILE` has measured and\n"
         "print both, with the first of --modes"},
        {CLI_TEXT, "load", 'c', &a->load, "N,N", "closed loop: requests at a time per decode rank (16,60,96)"},
        {CLI_TEXT, "rate", 'r', &a->rate, "R,R", "open loop: requests per second of all ranks, arriving at random"},
        {CLI_INPUT, "trace", 0, &a->trace, "FILE", "requests as the gateway recorded them (log.trace)"},
        {CLI_DOUBLE, "speed", 0, &a->speed, "X", "the trace's time goes by X times as fast (1)", 1e-3, 1e6},
        {CLI_TEXT, "modes", 'm', &a->modes, "M,M",
         "what is verified: fixed, fixed1.., dynamic, without-hysteresis,\n"
         "early-stop, off (fixed,dynamic,without-hysteresis,off)",
         .given = &a->modes_given},
        {CLI_TEXT, "decode", 0, &a->decode, "N[/G],..",
         "decode ranks (the profile's), G of them in an expert group (all)"},
        {CLI_TEXT, "prefill", 0, &a->prefill, "N[/G],..", "prefill ranks, in the same way"},
        {CLI_FLAG, "group-sync", 0, &a->group_sync, NULL,
         "as speculation.group_sync: the decode ranks of a group plan one budget"},
        {CLI_CHOICE, "routing", 0, &a->routing, "HOW",
         "prompts go by load, by known prefixes, or by load with a tier\n"
         "of blocks that all prefill ranks share: load, prefix, common (load)",
         .choices = routings},
        {CLI_INT, "groups", 0, &a->groups, "N", "made-up prompts come in so many groups that begin alike (0)", 0,
         1 << 20},
        {CLI_INT, "shared-tokens", 0, &a->shared, "N", "tokens that those of a group have in common (0)", 0, 1 << 22},
        {CLI_INT, "requests", 'n', &a->requests, "N", "end after so many requests instead of a time", 1, 1 << 30},
        {CLI_DOUBLE, "seconds", 's', &a->seconds, "S", "virtual time that is counted (60)", 1e-3, 1e7},
        {CLI_DOUBLE, "warm", 0, &a->warm, "S", "virtual time before it (15)", 0, 1e7},
        {CLI_FLAG, "fixed-lengths", 0, &a->fixed_lengths, NULL, "made-up requests all have the mean lengths"},
        {CLI_INT, "seed", 0, &a->seed, "N", "of arrivals, lengths and luck (1)", 0, 1 << 30},
        {CLI_OUTPUT, "json", 0, &a->json, "FILE", "write conditions and figures"},
        {CLI_OUTPUT, "csv", 0, &a->csv, "FILE", "write the figures, one row per line of the table"},
        {CLI_PLOT, "plot", 0, &a->plot, "FILE", "draw per-device throughput over per-user speed (.svg, .png)"},
        {.kind = CLI_END},
    };
    static const struct cli_rule rules[] = {
        {CLI_NEEDS, "threads", "measure"},
        {CLI_NEEDS, "drafts", "measure"},
        {CLI_NEEDS, "prompt-tokens", "measure"},
        {CLI_NEEDS, "output-tokens", "measure"},
        {CLI_ALLOWS, "measure", "threads drafts prompt-tokens output-tokens against modes seed",
         "it writes a profile and simulates nothing else"},
        {CLI_NEEDS, "measure+modes", "against"},
        {CLI_NEEDS, "measure+seed", "against"},
        {CLI_ALLOWS, "against", "measure threads drafts prompt-tokens output-tokens modes seed",
         "the load is that of the file"},
        {CLI_NEEDS, "speed", "trace"},
        {CLI_EXCLUDES, "speed", "load", "a closed loop takes requests, not times, from the trace"},
        {CLI_EXCLUDES, "trace", "rate groups shared-tokens fixed-lengths", "the trace says that of its requests"},
        {CLI_NEEDS, "trace+seconds", "load", "it ends with the trace"},
        {CLI_NEEDS, "trace+warm", "load", "it ends with the trace"},
        {CLI_NEEDS, "groups", "shared-tokens"},
        {CLI_NEEDS, "shared-tokens", "groups"},
        {CLI_EXCLUDES, "requests", "seconds warm", "it ends after so many requests, all of which count"},
        {CLI_RULES_END},
    };
    const struct cli_usage usage = {
        .rules = rules,
        .synopsis = "simulate [options] PROFILE.json\nsimulate --measure DIR [options] PROFILE.json",
        .intro =
            "Predicts what a described deployment serves: the engine's own Router, Prefill, Decode and planner in\n"
            "virtual time, over step times and an acceptance model.",
        .options = options,
        .min_args = 1,
        .max_args = 1,
    };
    struct cfg_error err = {{0}};
    int r = cli_options_parse(&usage, argc, argv, &first);
    if (r != CLI_GO_ON)
        return r;
    r = check_profile_name(a, argv[first], &err);
    if (!r && a->measure)
        r = measure(a, argv[first], &err);
    if (r == -EINVAL)
        return cli_error(CLI_USAGE, "simulate: %s", err.msg);
    if (!r)
        r = read_profile(argv[first], &s.profile, &err);
    if (r || (a->measure && !a->against))
        return r ? cli_error(CLI_FAILED, "simulate: %s", err.msg) : CLI_OK;
    if (a->against)
        return (r = compare(&s, &err)) ? cli_error(r == -EINVAL ? CLI_USAGE : CLI_FAILED, "simulate: %s", err.msg)
                                       : CLI_OK;
    if (a->trace && (r = sim_trace_read(a->trace, &s.trace, &err)))
        return cli_error(CLI_FAILED, "simulate: %s", err.msg);
    r = run_all(&s, &err);
    if (!r)
        r = write_results(&s, argv[first], &err);
    sim_trace_free(&s.trace);
    sim_report_free(&s.report);
    return r ? cli_error(r == -EINVAL ? CLI_USAGE : CLI_FAILED, "simulate: %s", err.msg) : CLI_OK;
}
