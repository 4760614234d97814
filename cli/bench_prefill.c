#include "cli/bench_prefill.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/conditions.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "model/prefill.h"
#include "model/sampler.h"

enum form { FORM_BOTH, FORM_EXACT, FORM_REPLAY };
static const char *const form_names[] = {"both", "exact", "replay", NULL};
enum clock { CLOCK_WALL, CLOCK_CPU };
static const char *const clock_names[] = {"wall", "cpu", NULL};

/* One way through the model: what is repeated. */
struct way {
    bool exact;
    int tokens, chunk;
};

struct bench {
    const char *model_dir, *json_file, *csv_file, *plot_file, *from_file;
    const char *lengths, *chunks;
    int threads, replay, repeats, form, seed, clock;
    bool form_given;
    struct mdl_model *m;
    struct mdl_seq *seq;
    struct mdl_step *step;
    int length[BP_LENGTHS], n_lengths, chunk[BP_CHUNKS], n_chunks, longest, largest;
    struct way way[2 * BP_LENGTHS * BP_CHUNKS];
    int n_ways;
    int32_t *ids;
    double step_began; /* of the prompt at hand */
    struct bp_point *now;
    struct bp_results results;
    struct cli_progress progress;
    struct cfg_error err;
};

static double seconds(const struct bench *b)
{
    struct timespec t;
    clock_gettime(b->clock == CLOCK_CPU ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- runs ---- */

/* Behind each step and before its commit, which is counted with the next one; the last one's with the prompt. */
static void on_chunk(void *ctx, struct mdl_step *step, const struct mdl_segment *seg)
{
    struct bench *b = ctx;
    double end = seconds(b), took = end - b->step_began;
    (void)step;
    b->now->steps++;
    b->now->layer_rows += (int64_t)seg->n * (seg->layer_end - seg->layer_begin);
    b->now->longest = took > b->now->longest ? took : b->now->longest;
    b->now->shortest = b->now->steps == 1 || took < b->now->shortest ? took : b->now->shortest;
    b->step_began = end;
}

static int run_prompt(struct bench *b, struct bp_point *out)
{
    struct mdl_prefill plan;
    const struct mdl_prefill_params params = {.exact = out->exact, .replay = out->exact ? 0 : b->replay};
    mdl_seq_reset(b->seq);
    b->now = out;
    double began = b->step_began = seconds(b);
    int r = mdl_prefill_begin(&plan, b->seq, b->ids, out->tokens, &params, &b->err);
    if (!r)
        r = mdl_prefill_run(&plan, b->step, out->chunk, on_chunk, b, &b->err);
    out->seconds = seconds(b) - began;
    return r;
}

/* 0..n-1, drawn anew for every repeat: what a way finds in the caches depends on the one before it. */
static void draw_order(const struct bench *b, int repeat, int *out)
{
    for (int i = 0; i < b->n_ways; i++) {
        uint32_t u[4];
        mdl_random((uint64_t)b->seed, (uint64_t)(repeat + 1) << 32 | (uint64_t)i, 11, u);
        int at = (int)(u[0] % (uint32_t)(i + 1));
        out[i] = out[at];
        out[at] = i;
    }
}

/* Repeat after repeat, every way once in each, so that what else the machine does falls on all alike. The first pass
 * is not counted. */
static int run_all(struct bench *b)
{
    int order[sizeof b->way / sizeof *b->way], r = 0, done = 0;
    cli_progress_start(&b->progress, "prefill", "prompts", (b->repeats + 1) * b->n_ways);
    for (int repeat = -1; repeat < b->repeats && !r; repeat++) {
        draw_order(b, repeat, order);
        for (int k = 0; k < b->n_ways && !r; k++) {
            const struct way *w = &b->way[order[k]];
            struct bp_point p = {.exact = w->exact, .tokens = w->tokens, .chunk = w->chunk, .repeat = repeat};
            r = run_prompt(b, &p);
            if (!r && repeat >= 0)
                r = bp_add(&b->results, &p, &b->err);
            cli_progress_update(&b->progress, ++done);
        }
    }
    cli_progress_end(&b->progress);
    return r;
}

/* ---- set-up ---- */

static int choose_lengths(struct bench *b)
{
    int most = b->m->cfg->max_position - 1;
    if (b->lengths)
        return cli_parse_ints(b->lengths, "--prompt-tokens", 1, most, BP_LENGTHS, b->length, &b->n_lengths, &b->err);
    for (int n = 64; n <= 2048 && n <= most; n *= 2)
        b->length[b->n_lengths++] = n;
    if (!b->n_lengths)
        b->length[b->n_lengths++] = most;
    return 0;
}

/* A chunk that is longer than the prompt is the whole prompt, once. */
static int list_ways(struct bench *b)
{
    bool replays = b->m->cfg->cut >= 0;
    int r = choose_lengths(b);
    if (!r)
        r = cli_parse_ints(b->chunks, "--chunk", 1, 65536, BP_CHUNKS, b->chunk, &b->n_chunks, &b->err);
    if (r)
        return r;
    if ((b->replay || (b->form_given && b->form != FORM_EXACT)) && !replays)
        return cfg_error_set(&b->err, EINVAL,
                             "this model has no cut between encoder and decoder layers, so there is "
                             "no bounded replay; use --form exact, without --replay");
    b->replay = b->replay ? b->replay : b->m->cfg->window + 12;
    if (replays && b->replay < b->m->cfg->window)
        return cfg_error_set(&b->err, EINVAL, "--replay %d is less than the model's window of %d", b->replay,
                             b->m->cfg->window);
    for (int l = 0; l < b->n_lengths; l++) {
        b->longest = b->length[l] > b->longest ? b->length[l] : b->longest;
        for (int c = 0; c < b->n_chunks; c++)
            for (int exact = 1; exact >= 0; exact--)
                if (exact ? b->form != FORM_REPLAY : b->form != FORM_EXACT && replays)
                    b->way[b->n_ways++] = (struct way){exact, b->length[l], b->chunk[c]};
    }
    for (int c = 0; c < b->n_chunks; c++)
        b->largest = b->chunk[c] > b->largest ? b->chunk[c] : b->largest;
    b->largest = b->largest < b->longest ? b->largest : b->longest;
    return 0;
}

static int make_prompt(struct bench *b)
{
    b->ids = malloc((size_t)b->longest * sizeof *b->ids);
    if (!b->ids)
        return cfg_error_set(&b->err, ENOMEM, "out of memory");
    for (int i = 0; i < b->longest; i++) {
        uint32_t u[4];
        mdl_random((uint64_t)b->seed, (uint64_t)i, 12, u);
        b->ids[i] = (int32_t)(u[0] % (uint32_t)b->m->cfg->vocab_size);
    }
    return 0;
}

static void gather_conditions(struct bench *b)
{
    const struct mdl_config *cfg = b->m->cfg;
    json_t *c = b->results.conditions = json_object();
    cli_condition_model(c, b->m, b->model_dir);
    cli_condition_set(c, "parallel", "1 device = this process, EP1, no redundant experts; one prompt alone");
    if (cfg->cut >= 0)
        cli_condition_set(c, "layers",
                          "%d, of them %d encoder; window %d; replay runs the others on the last %d tokens",
                          cfg->n_layers, cfg->cut, cfg->window, b->replay);
    else
        cli_condition_set(c, "layers", "%d, no encoder; window %d", cfg->n_layers, cfg->window);
    cli_condition_set(c, "contents", "made-up tokens, nothing cached, no drafter");
    cli_condition_set(c, "runs", "%d interleaved repeats%s", b->repeats,
                      b->clock == CLOCK_CPU ? ", processor time of one thread" : "");
    cli_condition_set(c, "times",
                      "of the model's steps alone: no queue, no tokenizer, no sampling, no network; not "
                      "times to first token");
}

static int prepare(struct bench *b)
{
    if (b->clock == CLOCK_CPU)
        b->threads = 1;
    int r = mdl_model_open(b->model_dir, b->threads, NULL, &b->m, &b->err);
    if (!r)
        r = list_ways(b);
    if (!r)
        r = make_prompt(b);
    if (!r) {
        const struct mdl_seq_params params = {.max_tokens = b->longest + 1,
                                              .replay = b->m->cfg->cut < 0 ? 0 : b->replay};
        r = mdl_seq_new(b->m->cfg, &params, &b->seq, &b->err);
    }
    if (!r)
        r = mdl_step_new(b->m, b->largest, b->longest + 1, &b->step, &b->err);
    if (!r)
        gather_conditions(b);
    return r;
}

/* ---- the command ---- */

static int report(struct bench *b)
{
    bp_print(&b->results);
    int r = 0;
    if (b->json_file)
        r = bp_write_json(&b->results, b->json_file, &b->err);
    if (!r && b->csv_file)
        r = bp_write_csv(&b->results, b->csv_file, &b->err);
    if (!r && b->plot_file)
        r = bp_plot(&b->results, b->plot_file, &b->err);
    return r;
}

static void clear(struct bench *b)
{
    free(b->ids);
    mdl_step_free(b->step);
    mdl_seq_free(b->seq);
    mdl_model_close(b->m);
    bp_free(&b->results);
}

int cli_bench_prefill_run(int argc, char **argv)
{
    struct bench b = {.chunks = "64,256,1024", .repeats = 7, .seed = 1};
    const struct cli_option options[] = {
        {CLI_TEXT, "model", 'm', &b.model_dir, "DIR", "folder of the checkpoint (required, but with --from)"},
        {CLI_TEXT, "prompt-tokens", 'p', &b.lengths, "N,N,...",
         "lengths of prompts (default: 64,128,...,2048 as far as the model goes)"},
        {CLI_TEXT, "chunk", 'c', &b.chunks, "N,N,...", "rows of a step, at most (default 64,256,1024)"},
        {CLI_CHOICE, "form", 0, &b.form, "HOW",
         "exact: every token through every layer; replay: the layers behind the cut on the last\n"
         "ones only; both (default)",
         .choices = form_names, .given = &b.form_given},
        {CLI_INT, "replay", 0, &b.replay, "N", "tokens that are replayed (default: the model's window and 12)", 1,
         1 << 20},
        {CLI_INT, "repeats", 0, &b.repeats, "N", "interleaved repeats (default 7)", 1, BP_REPEATS},
        {CLI_INT, "threads", 0, &b.threads, "N", "compute threads (default: one per usable CPU)", 1, 1024},
        {CLI_CHOICE, "clock", 0, &b.clock, "HOW",
         "wall (default); cpu: processor time of one thread, for a machine that does other work too",
         .choices = clock_names},
        {CLI_INT, "seed", 0, &b.seed, "N", "of the made-up tokens and the order (default 1)", 0, 1 << 30},
        {CLI_OUTPUT, "json", 0, &b.json_file, "FILE", "write conditions and raw counters"},
        {CLI_OUTPUT, "csv", 0, &b.csv_file, "FILE", "write raw counters and figures, one row per prompt"},
        {CLI_PLOT, "plot", 0, &b.plot_file, "FILE", "draw FILE.svg or FILE.png (needs gnuplot)"},
        {CLI_INPUT, "from", 0, &b.from_file, "FILE", "measure nothing: report on a --json file of an earlier run"},
        {.kind = CLI_END},
    };
    static const struct cli_rule rules[] = {
        {CLI_EXCLUDES, "from", "model", "it measures nothing"},
        {CLI_ALLOWS, "from", "json csv plot", "it measures nothing"},
        {CLI_EXCLUDES, "form=exact", "replay"},
        {CLI_EXCLUDES, "clock=cpu", "threads", "processor time is of one thread"},
        {CLI_RULES_END},
    };
    const struct cli_usage usage = {
        .rules = rules,
        .synopsis = "bench prefill -m DIR [options]\nbench prefill --from FILE.json [options]",
        .intro = "Prefill alone: step time of one prompt over lengths and chunk sizes, exact and with bounded replay,\n"
                 "interleaved in one run. No queueing, no protocol, no network: not the time to first token, which\n"
                 "`weft bench serve` measures.",
        .options = options,
    };
    int r = cli_options_parse(&usage, argc, argv, NULL);
    if (r != CLI_GO_ON)
        return r;
    if (!b.model_dir == !b.from_file)
        return cli_error(CLI_USAGE,
                         "bench prefill needs either -m DIR or --from FILE; see `weft bench prefill --help`");
    if (b.from_file)
        r = bp_read_json(b.from_file, &b.results, &b.err);
    else if (!(r = prepare(&b)))
        r = run_all(&b);
    if (!r)
        r = report(&b);
    if (r)
        cli_error(CLI_FAILED, "bench prefill: %s", b.err.msg);
    clear(&b);
    return r == -EINVAL ? CLI_USAGE : r ? CLI_FAILED : CLI_OK;
}
