/* `weft bench eplb`: how evenly a skewed trace falls on expert shards, before and after balancing. Pure arithmetic over
 * a made-up trace; the placement code is the one that the engine runs. Main thread. */
#include "cli/bench_eplb.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actors/eplb.h"
#include "cli/cli.h"
#include "cli/options.h"

enum { TOPK_MAX = 16, ROWS_MAX = 4096 };

static struct {
    int layers, experts, topk, shards, slots, rows, steps, phases, sources;
    double skew, drift;
    uint64_t seed;
    bool json;
} options = {.layers = 8,
             .experts = 384,
             .topk = 6,
             .shards = 64,
             .slots = 7,
             .rows = 64,
             .steps = 20,
             .phases = 6,
             .sources = 16,
             .skew = 0.8,
             .drift = 0.01,
             .seed = 1};

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static double uniform(uint64_t *state)
{
    return (double)(next_random(state) >> 11) * 0x1p-53;
}

/* How popular each expert of a layer is: 1 / rank^skew, ranks in an order of their own per layer that drifts. */
struct trace {
    uint64_t random;
    int *rank;     /* [layers][experts] */
    double *until; /* [layers][experts] cumulated popularity */
};

static void popularity(struct trace *t)
{
    for (int l = 0; l < options.layers; l++) {
        double sum = 0;
        for (int e = 0; e < options.experts; e++) {
            int at = l * options.experts + e;
            sum += pow(1.0 + t->rank[at], -options.skew);
            t->until[at] = sum;
        }
    }
}

static void swap_ranks(struct trace *t, int layer, int n)
{
    int *rank = t->rank + (size_t)layer * (size_t)options.experts;
    for (int i = 0; i < n; i++) {
        uint64_t a = next_random(&t->random) % (uint64_t)options.experts;
        uint64_t b = next_random(&t->random) % (uint64_t)options.experts;
        int keep = rank[a];
        rank[a] = rank[b];
        rank[b] = keep;
    }
}

static int draw(struct trace *t, int layer)
{
    const double *until = t->until + (size_t)layer * (size_t)options.experts;
    double x = uniform(&t->random) * until[options.experts - 1];
    int lo = 0, hi = options.experts - 1;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (until[mid] > x)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* One step's experts at a layer: topk different ones per row. */
static void draw_rows(struct trace *t, int layer, int32_t *expert)
{
    for (int r = 0; r < options.rows; r++) {
        int32_t *row = expert + r * options.topk;
        for (int k = 0; k < options.topk; k++) {
            bool again;
            do {
                row[k] = draw(t, layer);
                again = false;
                for (int j = 0; j < k; j++)
                    again |= row[j] == row[k];
            } while (again);
        }
    }
}

/* The busiest shard over the mean, added up over steps and layers; each step is all sources together. */
struct spread {
    double even, first, random, chosen;
    int n;
};

static double most_over_mean(const uint32_t *at)
{
    double sum = 0, most = 0;
    for (int s = 0; s < options.shards; s++) {
        sum += at[s];
        most = at[s] > most ? at[s] : most;
    }
    return most * options.shards / sum;
}

struct tally {
    uint32_t even[ACT_SHARDS_MAX], first[ACT_SHARDS_MAX], random[ACT_SHARDS_MAX], chosen[ACT_SHARDS_MAX];
};

static void add_source(struct trace *t, const struct act_map *even, const struct act_map *plan, int layer, int source,
                       float *load, struct tally *y)
{
    static int32_t expert[ROWS_MAX * TOPK_MAX];
    static int16_t shard[ROWS_MAX * TOPK_MAX];
    static const struct act_shard_set nobody;
    draw_rows(t, layer, expert);
    act_map_choose(plan, layer, expert, options.rows, options.topk, &nobody, false, (uint32_t)source * 7, shard);
    for (int i = 0; i < options.rows * options.topk; i++) {
        int n;
        y->even[act_map_owners(even, layer, expert[i], &n)[0]]++;
        const uint16_t *o = act_map_owners(plan, layer, expert[i], &n);
        y->first[o[0]]++;
        y->random[o[next_random(&t->random) % (uint64_t)n]]++;
        y->chosen[shard[i]]++;
        load[layer * options.experts + expert[i]] += 1.0f;
    }
}

static struct spread run_phase(struct trace *t, const struct act_map *even, const struct act_map *plan, float *load)
{
    struct spread s = {0};
    for (int step = 0; step < options.steps; step++)
        for (int l = 0; l < options.layers; l++) {
            struct tally y = {{0}, {0}, {0}, {0}};
            for (int source = 0; source < options.sources; source++)
                add_source(t, even, plan, l, source, load, &y);
            s.even += most_over_mean(y.even);
            s.first += most_over_mean(y.first);
            s.random += most_over_mean(y.random);
            s.chosen += most_over_mean(y.chosen);
            s.n++;
        }
    return s;
}

static void print_phase(int phase, const struct spread *s, int moves)
{
    double n = s->n;
    if (options.json)
        printf("%s{\"phase\":%d,\"before\":%.3f,\"first_replica\":%.3f,\"random_replica\":%.3f,\"balanced\":%.3f,"
               "\"experts_loaded\":%d}",
               phase ? "," : "", phase, s->even / n, s->first / n, s->random / n, s->chosen / n, moves);
    else
        printf("%5d  %14.3f  %14.3f  %14.3f  %14.3f  %14d\n", phase, s->even / n, s->first / n, s->random / n,
               s->chosen / n, moves);
}

static int measure(struct trace *t, float *seen, float *load)
{
    static const struct act_shard_set nobody;
    struct act_map *even = NULL, *plan = NULL;
    size_t n = (size_t)options.layers * (size_t)options.experts;
    int r = act_map_even(1, options.layers, options.experts, options.shards, &even), moves = 0;
    if (!r)
        plan = act_map_share(even);
    for (int phase = 0; phase < options.phases && !r; phase++) {
        memset(seen, 0, n * sizeof *seen);
        struct spread s = run_phase(t, even, plan, seen);
        print_phase(phase, &s, moves);
        for (size_t i = 0; i < n; i++)
            load[i] = phase ? 0.5f * load[i] + 0.5f * seen[i] : seen[i];
        struct act_map *next;
        r = act_eplb_place((uint32_t)phase + 2, options.layers, options.experts, options.shards, options.slots, &nobody,
                           load, phase ? plan : even, &next);
        if (r)
            break;
        moves = act_eplb_moves(plan, next);
        act_map_free(plan);
        plan = next;
        for (int l = 0; l < options.layers; l++)
            swap_ranks(t, l, (int)(options.drift * options.experts));
        popularity(t);
    }
    act_map_free(plan);
    act_map_free(even);
    return r;
}

static int run(void)
{
    size_t n = (size_t)options.layers * (size_t)options.experts;
    struct trace t = {options.seed, malloc(n * sizeof *t.rank), malloc(n * sizeof *t.until)};
    float *seen = calloc(n, sizeof *seen), *load = calloc(n, sizeof *load);
    int r = t.rank && t.until && seen && load ? 0 : -1;
    for (int l = 0; l < options.layers && !r; l++) {
        for (int e = 0; e < options.experts; e++)
            t.rank[l * options.experts + e] = e;
        swap_ranks(&t, l, 4 * options.experts);
    }
    if (!r) {
        popularity(&t);
        r = measure(&t, seen, load);
    }
    free(t.rank);
    free(t.until);
    free(seen);
    free(load);
    return r ? cli_error(CLI_FAILED, "out of memory, or %d shards of %d slots cannot hold %d experts", options.shards,
                         options.slots, options.experts)
             : CLI_OK;
}

static void print_conditions(void)
{
    printf(
        "made-up trace: popularity 1/rank^%g, ranks differ by layer, %g of them swapped between phases\n"
        "%d layers of %d experts, top %d; %d shards of %d slots (%d spare); %d sources of %d rows per step, %d steps "
        "per phase\n"
        "(row, expert) pairs of the busiest shard over the mean, averaged over steps and layers:\n\n",
        options.skew, options.drift, options.layers, options.experts, options.topk, options.shards, options.slots,
        options.shards * options.slots - options.experts, options.sources, options.rows, options.steps);
    printf("       %14s  %46s\n", "before:", "after, plan from the phases before it, and:");
    printf("phase  %14s  %14s  %14s  %14s  %14s\n", "even ranges", "first replica", "random one", "least loaded",
           "experts loaded");
}

int cli_bench_eplb_run(int argc, char **argv)
{
    const struct cli_option table[] = {
        {CLI_INT, "layers", 0, &options.layers, "N", "layers", 1, 256, NULL, NULL},
        {CLI_INT, "experts", 'e', &options.experts, "N", "experts of a layer", 2, 1024, NULL, NULL},
        {CLI_INT, "topk", 'k', &options.topk, "N", "experts of a row", 1, TOPK_MAX, NULL, NULL},
        {CLI_INT, "shards", 's', &options.shards, "N", "expert shards", 1, ACT_SHARDS_MAX, NULL, NULL},
        {CLI_INT, "slots", 0, &options.slots, "N", "experts that a shard holds per layer", 1, 1024, NULL, NULL},
        {CLI_INT, "sources", 0, &options.sources, "N", "actors that send", 1, 1024, NULL, NULL},
        {CLI_INT, "rows", 'r', &options.rows, "N", "rows of a source's step", 1, ROWS_MAX, NULL, NULL},
        {CLI_INT, "steps", 0, &options.steps, "N", "steps of a phase", 1, 10000, NULL, NULL},
        {CLI_INT, "phases", 'p', &options.phases, "N", "phases; between two of them the plan is made anew", 1, 1000,
         NULL, NULL},
        {CLI_DOUBLE, "skew", 0, &options.skew, "X", "exponent of the popularity", 0, 3, NULL, NULL},
        {CLI_DOUBLE, "drift", 0, &options.drift, "X", "share of the ranks that change between phases", 0, 1, NULL,
         NULL},
        {CLI_UINT64, "seed", 0, &options.seed, "N", "of the trace", 0, 0, NULL, NULL},
        {CLI_FLAG, "json", 0, &options.json, NULL, "a JSON array instead of text", 0, 0, NULL, NULL},
        {CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "bench eplb [OPTIONS]",
        .intro = "Shows how evenly a skewed trace falls on expert shards, before and after balancing.",
        .options = table};
    int status = cli_options_parse(&usage, argc, argv, NULL);
    if (status != CLI_GO_ON)
        return status;
    if (options.topk > options.experts)
        return cli_error(CLI_USAGE, "--topk %d is more than --experts %d", options.topk, options.experts);
    if (!options.json)
        print_conditions();
    else
        putchar('[');
    status = run();
    if (options.json)
        puts("]");
    return status;
}
