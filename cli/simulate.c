/* `weft simulate`: decoding rounds of one rank in virtual time, planned by the planner that the engine runs, over a
 * profile of step times and a model of acceptance (docs/FORMATS.md). No router, no prompts, no messages: what it
 * predicts is the decoder's own throughput at a given number of sequences. Main thread. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actors/plan.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "model/json_file.h"

enum { LOADS = 16, SEQUENCES_MAX = 512 };

struct profile {
    char name[160];
    int block, output_tokens;
    struct act_steptime table;
    double plan_us, noise, table_error, base, slope, spread, persist, price;
};

struct outcome {
    double seconds, tokens, offered, sequence_rounds;
};

struct sequence {
    struct act_plan_memory memory;
    double ease; /* of its text, standard normal */
    int left;
};

static double uniform(uint64_t *x)
{
    *x = *x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint64_t z = (*x ^ *x >> 33) * UINT64_C(0xff51afd7ed558ccd);
    return ((double)((z ^ z >> 33) >> 11) + 0.5) * 0x1p-53;
}

static double normal(uint64_t *x)
{
    double r = sqrt(-2 * log(uniform(x)));
    return r * cos(2 * M_PI * uniform(x));
}

/* ---- the profile ---- */

static int read_curve(const json_t *list, double error, uint64_t *random, struct act_steptime_curve *out)
{
    size_t i;
    json_t *p;
    json_array_foreach ((json_t *)list, i, p) {
        double us = json_number_value(json_array_get(p, 1)) * exp(error * normal(random));
        int r = act_steptime_add(out, (int)json_integer_value(json_array_get(p, 0)), 1e3 * us);
        if (r)
            return r;
    }
    return out->n < 2 ? -EINVAL : 0;
}

static int table_of(const json_t *j, double error, uint64_t seed, struct act_steptime *out)
{
    act_steptime_init(out, (int)json_integer_value(json_object_get(j, "block")));
    int r = read_curve(json_object_get(j, "plain_us"), error, &seed, &out->plain);
    if (!r)
        r = read_curve(json_object_get(j, "full_us"), error, &seed, &out->full);
    const json_t *draft = json_object_get(j, "draft_us");
    if (!r && draft)
        return read_curve(draft, error, &seed, &out->draft);
    for (int n = 1; !r && n <= SEQUENCES_MAX; n *= SEQUENCES_MAX) /* part of the step times */
        r = act_steptime_add(&out->draft, n, 1);
    return r;
}

static int read_profile(const json_t *j, struct profile *p, struct cfg_error *err)
{
    const json_t *accept = json_object_get(j, "accept");
    const struct {
        const char *name;
        const json_t *in;
        double *out, least, most;
    } numbers[] = {
        {"plan_us", j, &p->plan_us, 0, 1e6},       {"noise", j, &p->noise, 0, 1},
        {"table_error", j, &p->table_error, 0, 1}, {"price_per_device_hour", j, &p->price, 0, 1e6},
        {"base", accept, &p->base, -20, 20},       {"slope", accept, &p->slope, -20, 20},
        {"spread", accept, &p->spread, 0, 20},     {"persist", accept, &p->persist, 0, 1},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const json_t *v = json_object_get(numbers[i].in, numbers[i].name);
        *numbers[i].out = json_number_value(v);
        if (!json_is_number(v) || !(*numbers[i].out >= numbers[i].least && *numbers[i].out <= numbers[i].most))
            return cfg_error_set(err, EINVAL, "%s must be a number from %g to %g", numbers[i].name, numbers[i].least,
                                 numbers[i].most);
    }
    p->block = (int)json_integer_value(json_object_get(j, "block"));
    p->output_tokens = (int)json_integer_value(json_object_get(j, "output_tokens"));
    if (p->block < 1 || p->block > ACT_PLAN_BLOCK_MAX || p->output_tokens < 1)
        return cfg_error_set(err, EINVAL, "block must be 1 to %d, output_tokens at least 1", ACT_PLAN_BLOCK_MAX);
    const char *name = json_string_value(json_object_get(j, "name"));
    snprintf(p->name, sizeof p->name, "%s", name ? name : "");
    if (table_of(j, 0, 1, &p->table) || !act_steptime_usable(&p->table))
        return cfg_error_set(err, EINVAL, "plain_us and full_us need at least two points [rows, microseconds] each");
    return 0;
}

/* ---- rounds ---- */

static void begin(const struct profile *p, struct sequence *s, uint64_t *random)
{
    *s = (struct sequence){.ease = normal(random), .left = 1 + (int)(-log(uniform(random)) * (double)p->output_tokens)};
}

/* Confidences are exact: a draft is kept with the probability that is stated. */
static void draft(const struct profile *p, const struct sequence *s, struct act_plan_request *r, uint64_t *random)
{
    double x = sqrt(p->persist) * s->ease + sqrt(1 - p->persist) * normal(random);
    r->drafted = r->draft;
    for (int k = 0; k < r->drafted; k++)
        r->confidence[k] = (float)(1 / (1 + exp(-(p->base + p->slope * k + p->spread * x))));
}

static int keep(struct sequence *s, const struct act_plan_request *r, uint64_t *random)
{
    int n = 0;
    while (n < r->offer && uniform(random) < (double)r->confidence[n])
        n++;
    s->left -= n + 1;
    return n + 1;
}

static int run(const struct profile *p, const json_t *source, const struct act_plan_options *how, int n, int rounds,
               struct outcome *out)
{
    struct act_plan plan;
    struct act_steptime believed;
    static struct sequence s[SEQUENCES_MAX];
    static struct act_plan_request r[SEQUENCES_MAX];
    uint64_t random = 77;
    *out = (struct outcome){0};
    int status = table_of(source, p->table_error, 5, &believed);
    if (!status)
        status = act_plan_init(&plan, how, p->block, n, &believed);
    if (status)
        return status;
    for (int i = 0; i < n; i++)
        begin(p, &s[i], &random);
    for (int round = -rounds / 4; round < rounds; round++) {
        int rows = n, drafts = 0, tokens = 0;
        for (int i = 0; i < n; i++)
            r[i] = (struct act_plan_request){.memory = &s[i].memory, .cap = p->block};
        act_plan_draft(&plan, r, n, 0);
        for (int i = 0; i < n; i++)
            draft(p, &s[i], &r[i], &random);
        act_plan_split(&plan, r, n);
        for (int i = 0; i < n; i++) {
            drafts += r[i].drafted;
            rows += r[i].offer;
            tokens += keep(&s[i], &r[i], &random);
        }
        double verify = act_steptime_verify_ns(&p->table, n, rows, 0) * exp(p->noise * normal(&random));
        double drafting = act_steptime_draft_ns(&p->table, n, drafts);
        act_plan_done(&plan, tokens, drafting, verify, true);
        for (int i = 0; i < n; i++)
            if (s[i].left <= 0)
                begin(p, &s[i], &random);
        if (round < 0)
            continue;
        out->seconds += 1e-9 * (verify + drafting) + (how->mode == ACT_PLAN_DYNAMIC ? 1e-6 * p->plan_us : 0);
        out->tokens += tokens;
        out->offered += rows - n;
        out->sequence_rounds += n;
    }
    act_plan_free(&plan);
    return 0;
}

static void print_line(const struct profile *p, int n, const char *mode, const struct outcome *o, double fixed)
{
    double rate = o->tokens / o->seconds;
    printf("%5d  %-22s %12.0f %+8.1f %% %9.2f %9.2f %10.1f", n, mode, rate, 100 * (rate / fixed - 1),
           o->offered / o->sequence_rounds, o->tokens / o->sequence_rounds, rate / n);
    if (p->price > 0)
        printf(" %12.3f", p->price / 3600 / rate * 1e6);
    printf("\n");
}

static int simulate(const struct profile *p, const json_t *j, const int *loads, int n_loads, int rounds)
{
    const struct {
        const char *name;
        struct act_plan_options how;
    } modes[] = {
        {"fixed", {.mode = ACT_PLAN_FIXED, .length = p->block}},
        {"dynamic", {.mode = ACT_PLAN_DYNAMIC, .length = p->block, .min_gain = 0.005, .probe_share = 0.005}},
        {"without hysteresis", {.mode = ACT_PLAN_DYNAMIC, .length = p->block, .probe_share = 0.005}},
        {"off", {.mode = ACT_PLAN_OFF}},
    };
    printf("%s\n%d drafts per block; rounds of one rank: %d per line, virtual time\n\n", p->name, p->block, rounds);
    printf("%5s  %-22s %12s %10s %9s %9s %10s%s\n", "seqs", "mode", "tok/s/rank", "vs fixed", "offered", "emitted",
           "tok/s/seq", p->price > 0 ? "  per M tokens" : "");
    for (int i = 0; i < n_loads; i++) {
        struct outcome o;
        double fixed = 0;
        for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
            int r = run(p, j, &modes[m].how, loads[i], rounds, &o);
            if (r)
                return cli_error(CLI_FAILED, "%s: %s", modes[m].name, strerror(-r));
            fixed = m == 0 ? o.tokens / o.seconds : fixed;
            print_line(p, loads[i], modes[m].name, &o, fixed);
        }
    }
    return CLI_OK;
}

int cli_simulate_run(int argc, char **argv)
{
    const char *list = "16,60,96";
    int rounds = 6000, loads[LOADS], n = 0, first;
    const struct cli_option options[] = {
        {CLI_TEXT, "load", 'c', &list, "N,N", "sequences of the rank at a time (16,60,96)"},
        {.kind = CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "simulate [options] PROFILE.json",
        .intro = "Predicts what one decode rank emits with fixed and planned verification, from step times and an\n"
                 "acceptance model. The planner is the engine's own; routing, prompts and the network are not in it.",
        .options = options,
        .min_args = 1,
        .max_args = 1,
    };
    struct profile p;
    struct cfg_error err;
    int r = cli_options_parse(&usage, argc, argv, &first);
    if (r != CLI_GO_ON)
        return r;
    for (const char *at = list; n < LOADS; at++) {
        char *end;
        long v = strtol(at, &end, 10);
        if (end == at || v < 1 || v > SEQUENCES_MAX || (*end && *end != ','))
            return cli_error(CLI_USAGE, "--load %s: give numbers from 1 to %d with commas", list, SEQUENCES_MAX);
        loads[n++] = (int)v;
        at = end;
        if (!*end)
            break;
    }
    json_t *j;
    if (mdl_json_file(argv[first], &j, &err))
        return cli_error(CLI_FAILED, "%s", err.msg);
    if (read_profile(j, &p, &err))
        r = cli_error(CLI_FAILED, "%s: %s", argv[first], err.msg);
    else
        r = simulate(&p, j, loads, n, rounds);
    json_decref(j);
    return r;
}
