#include "cli/bench_decode.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "actors/speculate.h"
#include "actors/steptime_file.h"
#include "cli/cli.h"
#include "cli/conditions.h"
#include "cli/engine.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "model/prefill.h"
#include "model/sampler.h"

enum { BD_ENOUGH = 7 }; /* repeats before a way is left out */
enum accept { ACCEPT_MODEL, ACCEPT_STATED, ACCEPT_ALL };
static const char *const accept_names[] = {"model", "stated", "all", NULL};
static const char *const budget_names[] = {"lagged", "early_stop", NULL};
enum clock { CLOCK_WALL, CLOCK_CPU };
static const char *const clock_names[] = {"wall", "cpu", NULL};

struct bench;

/* A sequence that generates from the same place over and over. */
struct bench_stream {
    struct bench *b;
    struct mdl_stream run;
    struct act_spec_stream spec;
    int32_t start; /* the token that follows its context */
    uint64_t lap;  /* times that it was set back, which say what coins it has */
};

struct bench {
    const char *model_dir, *text_file, *table_file, *json_file, *csv_file, *plot_file, *from_file;
    const char *loads, *modes;
    int threads, context, grow, repeats, accept, preset, budget, seed, clock;
    double seconds, warm, prune, temperature, min_gain, probe_share;
    struct {
        bool budget, min_gain, probe_share, prune, accept, warm;
    } given;
    int load[BD_LOADS], n_loads, mode[BD_MODES], n_modes, most;
    struct mdl_model *m;
    struct mdl_decoder *decoder;
    struct mdl_sampler *sampler;
    struct mdl_ids text;
    struct bench_stream *stream; /* [n_modes][most]: every way goes on where it was */
    struct mdl_stream **round;   /* the same */
    struct act_spec_stream **spec;
    struct mdl_calibration calibration;
    struct act_steptime table;
    struct act_speculation *plan; /* [n_loads][n_modes], each with what it has learned */
    struct act_speculation *now;
    int64_t verify_began, planning; /* of the round at hand, ns */
    double expected;                /* drafts that its coins keep, in the mean */
    struct bd_results results;
    struct cli_progress progress;
    struct cfg_error err;
};

static int64_t now_ns(void *ctx)
{
    const struct bench *b = ctx;
    struct timespec t;
    clock_gettime(b->clock == CLOCK_CPU ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- picks ---- */

/* Which sequence it is, whatever the way. */
static uint64_t number_of(const struct bench_stream *s)
{
    return (uint64_t)(s - s->b->stream) % (uint64_t)s->b->most;
}

static int32_t choose(struct bench_stream *s, int pos, const float *logits)
{
    struct bench *b = s->b;
    struct mdl_sampling recipe;
    int32_t id;
    if (b->temperature <= 0)
        return mdl_argmax(logits, b->m->cfg->vocab_size);
    mdl_sampling_init(&recipe);
    recipe.temperature = b->temperature;
    recipe.seed = (uint64_t)b->seed + number_of(s);
    int r = mdl_sampler_sample(b->sampler, &recipe, logits, b->m->cfg->vocab_size, NULL, 0, 0, pos, &id, NULL, &b->err);
    return r ? r : id;
}

static double stated(const struct bench_stream *s, int place)
{
    const struct bench *b = s->b;
    return (double)mdl_calibrated(&b->calibration, s->spec.choice, place, s->run.guess.confidence[place]);
}

/* With stated or full acceptance the target's logits are looked at as usual, but a coin decides on the draft. */
static int32_t pick(void *ctx, int pos, float *logits, bool draft)
{
    struct bench_stream *s = ctx;
    const struct bench *b = s->b;
    int32_t id = choose(s, pos, logits);
    int place = pos - s->run.seq->len - 1;
    if (draft || id < 0 || b->accept == ACCEPT_MODEL || place >= s->run.offer)
        return id;
    /* By place and not by use: every way of drafting meets the same luck at the same token. */
    uint64_t coin = s->lap << 40 | number_of(s) << 28 | (uint64_t)pos;
    bool kept = b->accept == ACCEPT_ALL || mdl_random_unit((uint64_t)b->seed, coin, 9) < stated(s, place);
    if (kept)
        return s->run.guess.ids[place];
    return id != s->run.guess.ids[place] ? id : (id + 1) % b->m->cfg->vocab_size;
}

static void on_plan(void *ctx, struct mdl_stream *const *streams, int n)
{
    struct bench *b = ctx;
    int64_t from = now_ns(b);
    act_speculation_split(b->now, streams, n);
    b->verify_began = now_ns(b);
    b->planning += b->verify_began - from;
    for (int i = 0; b->accept == ACCEPT_STATED && i < n; i++) {
        const struct bench_stream *s = streams[i]->pick_ctx;
        double survival = 1;
        for (int k = 0; k < streams[i]->offer; k++)
            b->expected += survival *= stated(s, k);
    }
}

/* ---- one run ---- */

static int restart(struct bench_stream *s, struct cfg_error *err)
{
    int r = mdl_seq_truncate(s->run.seq, s->b->context, err);
    s->run.next = s->start;
    s->lap++;
    return r;
}

/* One round of the first sequences of a way. */
static int run_round(struct bench *b, int first, struct bd_point *out)
{
    struct act_speculation *plan = b->now;
    int r = 0;
    for (int i = 0; i < out->load && !r; i++)
        if (b->stream[first + i].run.seq->len >= b->context + b->grow)
            r = restart(&b->stream[first + i], &b->err);
    int64_t began = now_ns(b);
    act_speculation_begin(plan, b->round + first, b->spec + first, out->load, 0);
    b->planning = now_ns(b) - began;
    b->expected = 0;
    if (!r)
        r = mdl_decoder_round(b->decoder, b->round + first, out->load, &b->err);
    for (int i = 0; i < out->load && !r; i++)
        r = b->round[first + i]->status;
    int64_t end = now_ns(b);
    if (!r)
        act_speculation_end(plan, (double)(b->verify_began - began), (double)(end - b->verify_began), true);
    int64_t over = now_ns(b);
    out->seconds += 1e-9 * (double)(over - began);
    out->planning += 1e-9 * (double)(b->planning + over - end);
    if (b->accept == ACCEPT_STATED)
        out->expected += out->load + b->expected;
    out->rounds++;
    return r;
}

/* Rounds of the first sequences of way m until `seconds` of them are over. They go on where they were. */
static int run_point(struct bench *b, int m, double seconds, struct bd_point *out)
{
    const struct act_plan_counters before = b->now->plan.counters;
    int r = 0, first = m * b->most;
    out->expected = b->accept == ACCEPT_STATED ? 0 : -1;
    for (int i = 0; i < out->load; i++)
        b->stream[first + i].run.counters = (struct mdl_counters){0};
    while (!r && (out->seconds < seconds || out->rounds < 2))
        r = run_round(b, first, out);
    out->skipped = (int64_t)(b->now->plan.counters.skipped - before.skipped);
    out->probes = (int64_t)(b->now->plan.counters.probes - before.probes);
    for (int i = 0; i < out->load; i++)
        mdl_counters_add(&out->counters, &b->stream[first + i].run.counters);
    return r;
}

/* Whether a way is so surely slower than dynamic that more repeats would tell nothing of interest. */
static bool out_of_the_race(const struct bench *b, int load, int mode)
{
    double percent, half;
    return b->prune > 0 && mode != BD_DYNAMIC &&
           bd_change(&b->results, load, BD_DYNAMIC, mode, &percent, &half) >= BD_ENOUGH && percent - half > b->prune;
}

/* 0..n-1, drawn anew for every repeat: what a way finds in the caches depends on the one before it. */
static void draw_order(const struct bench *b, int repeat, int load, int n, int *out)
{
    for (int i = 0; i < n; i++) {
        uint32_t u[4];
        mdl_random((uint64_t)b->seed, (uint64_t)(repeat + 1) << 32 | (uint64_t)(load << 8) | (uint64_t)i, 10, u);
        int at = (int)(u[0] % (uint32_t)(i + 1));
        out[i] = out[at];
        out[at] = i;
    }
}

/* Every way of drafting at every load, repeat after repeat; within a load they follow one another, in another order
 * each time, so that what else the machine does falls on all alike. */
static int run_all(struct bench *b)
{
    int r = 0, total = (b->repeats + 1) * b->n_loads * b->n_modes, done = 0;
    bool out[BD_LOADS][BD_MODES] = {0};
    cli_progress_start(&b->progress, "decoding", "runs", total);
    for (int repeat = -1; repeat < b->repeats && !r; repeat++)
        for (int l = 0; l < b->n_loads && !r; l++) {
            int order[BD_MODES];
            draw_order(b, repeat, l, b->n_modes, order);
            for (int k = 0; k < b->n_modes && !r; k++) {
                int m = order[k];
                struct bd_point p = {.mode = b->mode[m], .load = b->load[l], .repeat = repeat};
                cli_progress_update(&b->progress, ++done);
                if (out[l][m])
                    continue;
                memset(&b->err, 0, sizeof b->err);
                b->now = &b->plan[l * b->n_modes + m];
                r = run_point(b, m, repeat < 0 && b->warm > b->seconds ? b->warm : b->seconds, &p);
                if (!r && repeat >= 0) /* the first pass warms up and teaches the planner */
                    r = bd_add(&b->results, &p, &b->err);
            }
            for (int m = 0; m < b->n_modes && !r; m++)
                out[l][m] = out_of_the_race(b, b->load[l], b->mode[m]);
        }
    cli_progress_end(&b->progress);
    return r;
}

/* ---- set-up ---- */

static int parse_loads(struct bench *b)
{
    int r = cli_parse_ints(b->loads, "--concurrency", 1, 1024, BD_LOADS, b->load, &b->n_loads, &b->err);
    for (int i = 0; i < b->n_loads && !r; i++)
        b->most = b->load[i] > b->most ? b->load[i] : b->most;
    return r;
}

static int parse_modes(struct bench *b)
{
    int block = b->m->cfg->n_draft ? b->m->cfg->draft_block : 0;
    char text[512] = "off";
    size_t n = 3;
    for (int k = 1; k <= block && !b->modes; k++)
        n += (size_t)snprintf(text + n, sizeof text - n, ",%d", k);
    if (b->modes && strlen(b->modes) >= sizeof text)
        return cfg_error_set(&b->err, EINVAL, "--modes is too long");
    if (b->modes)
        snprintf(text, sizeof text, "%s", b->modes);
    else if (block)
        snprintf(text + n, sizeof text - n, ",dynamic");
    for (char *rest = text, *at; (at = strsep(&rest, ","));) {
        int mode = 0, r = 0;
        if (!strcmp(at, "dynamic"))
            mode = BD_DYNAMIC;
        else if (strcmp(at, "off"))
            r = cli_parse_int(at, "--modes", 0, block, &mode, &b->err);
        if (r)
            return r;
        if (mode == BD_DYNAMIC && !block)
            return cfg_error_set(&b->err, EINVAL, "this model has no drafter, so there is nothing to plan");
        for (int i = 0; i < b->n_modes; i++)
            if (b->mode[i] == mode)
                return cfg_error_set(&b->err, EINVAL, "--modes names \"%s\" twice", at);
        if (b->n_modes == BD_MODES)
            return cfg_error_set(&b->err, EINVAL, "--modes takes at most %d ways", BD_MODES);
        b->mode[b->n_modes++] = mode;
    }
    for (int i = 0; i < b->n_modes; i++) {
        double tokens;
        if (!isnan(b->results.convert) && cli_spec_convert(b->mode[i] == BD_DYNAMIC, b->mode[i] > 0 ? b->mode[i] : 0,
                                                           b->results.convert, &tokens, &b->err))
            return -EINVAL;
    }
    return 0;
}

static bool any_dynamic(const struct bench *b)
{
    for (int i = 0; i < b->n_modes; i++)
        if (b->mode[i] == BD_DYNAMIC)
            return true;
    return false;
}

/* Options that mean something to some ways of drafting only. */
static int check_used(struct bench *b)
{
    bool dynamic = any_dynamic(b), drafts = b->n_modes > 1 || b->mode[0];
    const struct {
        const char *name;
        bool given, used;
    } item[] = {{"budget", b->given.budget, dynamic},
                {"min-gain", b->given.min_gain, dynamic},
                {"probe-share", b->given.probe_share, dynamic},
                {"prune", b->given.prune, dynamic},
                {"table", b->table_file, dynamic},
                {"accept", b->given.accept, drafts}};
    for (size_t i = 0; i < sizeof item / sizeof *item; i++)
        if (item[i].given && !item[i].used)
            return cfg_error_set(&b->err, EINVAL, "--%s has no effect with --modes %s: %s", item[i].name,
                                 b->modes ? b->modes : "left out, as this model has no drafter",
                                 i + 1 < sizeof item / sizeof *item ? "none of them is dynamic"
                                                                    : "none of them drafts");
    if (b->prune > 0 && b->repeats <= BD_ENOUGH)
        return cfg_error_set(&b->err, EINVAL, "--prune has no effect with --repeats %d: ways are left out after %d",
                             b->repeats, BD_ENOUGH);
    if (b->given.warm && b->warm < b->seconds)
        return cfg_error_set(&b->err, EINVAL,
                             "--warm %g is less than --seconds %g, which the first pass lasts at least", b->warm,
                             b->seconds);
    return 0;
}

static int make_plans(struct bench *b)
{
    int block = b->m->cfg->n_draft ? b->m->cfg->draft_block : 0, r = 0;
    b->plan = calloc((size_t)(b->n_loads * b->n_modes), sizeof *b->plan);
    if (!b->plan)
        return cfg_error_set(&b->err, ENOMEM, "out of memory");
    for (int i = 0; i < b->n_loads * b->n_modes && !r; i++) {
        int mode = b->mode[i % b->n_modes];
        const struct act_plan_options o = {.mode = mode == BD_DYNAMIC ? ACT_PLAN_DYNAMIC
                                                   : mode             ? ACT_PLAN_FIXED
                                                                      : ACT_PLAN_OFF,
                                           .budget = (enum act_plan_budget)b->budget,
                                           .length = mode == BD_DYNAMIC ? block : mode,
                                           .min_gain = b->min_gain,
                                           .probe_share = b->probe_share};
        r = act_speculation_init(&b->plan[i], &o, block, b->most, mode == BD_DYNAMIC ? &b->table : NULL,
                                 &b->calibration);
    }
    return r ? cfg_error_set(&b->err, -r, "the planner: %s", strerror(-r)) : 0;
}

static int32_t context_id(struct bench *b, int stream, int pos)
{
    if (b->text.n)
        return b->text.v[((size_t)stream * b->text.n / (size_t)b->most + (size_t)pos) % b->text.n];
    uint32_t u[4];
    mdl_random((uint64_t)b->seed, (uint64_t)stream << 32 | (uint64_t)pos, 8, u);
    return (int32_t)(u[0] % (uint32_t)b->m->cfg->vocab_size);
}

static int fill_stream(struct bench *b, int i, struct mdl_step *step, int32_t *ids)
{
    struct bench_stream *s = &b->stream[i];
    int block = b->m->cfg->draft_block, replay = b->m->cfg->window + 12;
    bool exact = b->m->cfg->cut < 0 || b->context <= replay;
    struct mdl_prefill plan;
    struct mdl_seq_params params = {.max_tokens = b->context + b->grow + 2 * block + 2,
                                    .rollback = b->grow + 2 * block + 2,
                                    .replay = exact ? 0 : replay};
    for (int k = 0; k < b->context; k++)
        ids[k] = context_id(b, i % b->most, k);
    int r = mdl_seq_new(b->m->cfg, &params, &s->run.seq, &b->err);
    if (!r)
        r = mdl_prefill_begin(&plan, s->run.seq, ids, b->context,
                              &(struct mdl_prefill_params){.exact = exact, .replay = exact ? 0 : replay}, &b->err);
    if (!r)
        r = mdl_prefill_run(&plan, step, 0, NULL, NULL, &b->err);
    if (r)
        return r;
    s->b = b;
    s->run.pick = pick;
    s->run.pick_ctx = s;
    s->run.limit = MDL_ROUND_MAX;
    s->spec.room = MDL_MAX_BLOCK;
    s->spec.choice = b->temperature > 0 ? MDL_CHOICE_MATCH : MDL_CHOICE_GREEDY;
    const struct mdl_segment *last = &step->segment[0];
    s->start = choose(s, b->context, mdl_step_logits(step, 0, last->n - 1));
    b->round[i] = &s->run;
    b->spec[i] = &s->spec;
    return s->start < 0 ? s->start : 0;
}

static int fill_streams(struct bench *b)
{
    int block = b->m->cfg->n_draft ? b->m->cfg->draft_block : 0, tokens = b->context + b->grow + 2 * block + 2;
    struct mdl_step *step = NULL;
    int32_t *ids = malloc((size_t)b->context * sizeof *ids);
    int all = b->n_modes * b->most;
    b->stream = calloc((size_t)all, sizeof *b->stream);
    b->round = calloc((size_t)all, sizeof(struct mdl_stream *));
    b->spec = calloc((size_t)all, sizeof(struct act_spec_stream *));
    b->sampler = mdl_sampler_new(b->m->cfg->vocab_size);
    int r = ids && b->stream && b->round && b->spec && b->sampler ? 0 : cfg_error_set(&b->err, ENOMEM, "out of memory");
    if (!r)
        r = mdl_step_new(b->m, b->context < 512 ? b->context : 512, tokens, &step, &b->err);
    if (!r)
        r = mdl_decoder_new(b->m, b->most, block, tokens, &b->decoder, &b->err);
    cli_progress_start(&b->progress, "filling contexts", "sequences", all);
    for (int i = 0; i < all && !r; i++) {
        r = fill_stream(b, i, step, ids);
        cli_progress_update(&b->progress, i + 1);
    }
    cli_progress_end(&b->progress);
    if (!r)
        mdl_decoder_set_plan(b->decoder, on_plan, b);
    mdl_step_free(step);
    free(ids);
    return r;
}

static int read_text(struct bench *b)
{
    char *text = NULL;
    size_t len = 0;
    struct mdl_tokenizer *tok = NULL;
    struct mdl_tok_encoder *enc = NULL;
    if (!b->text_file)
        return 0;
    int r = cli_file_read(b->text_file, &text, &len, &b->err);
    if (!r)
        r = mdl_tokenizer_load(b->model_dir, &tok, &b->err);
    if (!r)
        r = mdl_tok_encoder_new(tok, &enc, &b->err);
    if (!r)
        r = mdl_tok_encode(enc, text, len, 0, &b->text, &b->err);
    if (!r && b->text.n < (size_t)b->context)
        r = cfg_error_set(&b->err, EINVAL, "%s has %zu tokens, fewer than --context %d", b->text_file, b->text.n,
                          b->context);
    mdl_tok_encoder_free(enc);
    mdl_tokenizer_free(tok);
    free(text);
    return r;
}

/* The table that a server would plan with: from its file, or measured now. */
static int make_table(struct bench *b)
{
    struct act_steptime_identity id;
    int block = b->m->cfg->n_draft ? b->m->cfg->draft_block : 0;
    const int context = b->context < ACT_STEPTIME_CONTEXT ? b->context : ACT_STEPTIME_CONTEXT;
    act_steptime_identity(b->m, b->most, context, &id);
    if (b->table_file) {
        int r = act_steptime_read(b->table_file, &id, block, &b->table, &b->err);
        if (!r)
            return 0;
        if (r != -ENOENT)
            fprintf(stderr, "bench decode: step times are measured anew: %s\n", b->err.msg);
    }
    const struct act_steptime_measure how = {
        .streams = b->most, .block = block, .context = context, .limit_ns = 10000000000, .now = now_ns, .ctx = b};
    int r = act_steptime_measure(b->m, &how, &b->table, &b->err);
    return r || !b->table_file ? r : act_steptime_write(b->table_file, &id, &b->table, &b->err);
}

static int read_calibration(struct bench *b)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/" MDL_CALIBRATION_FILE, b->model_dir);
    int r = mdl_calibration_read(path, b->m->ck->revision, b->m->cfg->draft_block, &b->calibration, &b->err);
    return r == -ENOENT ? 0 : r;
}

static void gather_conditions(struct bench *b)
{
    static const char *const sources[] = {"the model's own drafts",
                                          "synthetic: each draft kept with its stated confidence",
                                          "synthetic: every draft kept"};
    json_t *c = b->results.conditions = json_object();
    cli_condition_model(c, b->m, b->model_dir);
    cli_condition_set(c, "parallel", "1 device = this process, EP1/DP1, no redundant experts");
    cli_condition_set(c, "context", "%d tokens, growing by up to %d and set back", b->context, b->grow);
    cli_condition_set(c, "contents", "%s", b->text_file ? "text" : "made-up tokens");
    cli_condition_set(c, "acceptance", "%s, temperature %g, %s confidences", sources[b->accept], b->temperature,
                      b->calibration.fitted[b->temperature > 0] ? "calibrated" : "raw");
    cli_condition_set(c, "runs", "%d interleaved repeats of %g s%s", b->repeats, b->seconds,
                      b->clock == CLOCK_CPU ? " of processor time, one thread" : "");
    if (b->accept == ACCEPT_STATED)
        cli_condition_set(c, "counted", "every verified draft with the chance that its coin has, not with its luck");
    cli_condition_set(c, "planner", "%s budget, min_gain %g, probe_share %g", budget_names[b->budget], b->min_gain,
                      b->probe_share);
}

/* This command decodes in one process: one device without redundant experts, on every machine. */
static int check_preset(struct bench *b)
{
    char why[sizeof b->err.msg];
    int r = bd_preset_check((enum bd_preset)b->preset, &b->results.setup, "here", &b->err);
    if (!r)
        return 0;
    snprintf(why, sizeof why, "%s", b->err.msg);
    return cfg_error_set(
        &b->err, ENOTSUP,
        "%s. This command decodes in one process, which is one device on any machine; counters of such "
        "a group are reported and drawn with --from FILE.json",
        why);
}

/* What a preset says of the run itself. */
static void set_preset(struct bench *b)
{
    static char modes[16];
    const struct bd_preset_needs *p = bd_preset_needs((enum bd_preset)b->preset);
    snprintf(modes, sizeof modes, "%d", p->drafts);
    b->modes = modes;
    b->context = p->setup.context;
    b->accept = ACCEPT_ALL;
    b->results.convert = p->rate;
}

static int prepare(struct bench *b)
{
    if (b->clock == CLOCK_CPU)
        b->threads = 1;
    int r = mdl_model_open(b->model_dir, b->threads, NULL, &b->m, &b->err);
    if (!r)
        b->results.setup = (struct bd_setup){.devices = 1,
                                             .experts = b->m->cfg->n_experts,
                                             .context = b->preset ? b->m->cfg->max_position : b->context,
                                             .drafts = b->m->cfg->n_draft ? b->m->cfg->draft_block : 0};
    if (!r && b->preset)
        r = check_preset(b);
    if (!r)
        r = parse_loads(b);
    if (!r)
        r = parse_modes(b);
    if (!r)
        r = check_used(b);
    if (!r && b->context + b->grow + 2 * b->m->cfg->draft_block + 2 > b->m->cfg->max_position)
        r = cfg_error_set(&b->err, EINVAL, "--context %d and --grow %d are more than the %d tokens of the model",
                          b->context, b->grow, b->m->cfg->max_position);
    if (!r)
        r = read_text(b);
    if (!r)
        r = read_calibration(b);
    if (!r && any_dynamic(b))
        r = make_table(b);
    if (!r)
        r = make_plans(b);
    if (!r)
        r = fill_streams(b);
    if (!r)
        gather_conditions(b);
    return r;
}

static int report(struct bench *b)
{
    bd_print(&b->results);
    int r = 0;
    if (b->json_file)
        r = bd_write_json(&b->results, b->json_file, &b->err);
    if (!r && b->csv_file)
        r = bd_write_csv(&b->results, b->csv_file, &b->err);
    if (!r && b->plot_file)
        r = bd_plot(&b->results, b->plot_file, &b->err);
    return r;
}

static void clear(struct bench *b)
{
    for (int i = 0; b->plan && i < b->n_loads * b->n_modes; i++)
        act_speculation_free(&b->plan[i]);
    for (int i = 0; b->stream && i < b->n_modes * b->most; i++)
        mdl_seq_free(b->stream[i].run.seq);
    free(b->plan);
    free(b->stream);
    free(b->round);
    free(b->spec);
    mdl_decoder_free(b->decoder);
    mdl_sampler_free(b->sampler);
    mdl_ids_free(&b->text);
    mdl_model_close(b->m);
    bd_free(&b->results);
}

int cli_bench_decode_run(int argc, char **argv)
{
    struct bench b = {.loads = "1,2,4,8,16,32",
                      .context = 128,
                      .grow = 64,
                      .repeats = 7,
                      .seconds = 0.5,
                      .warm = 0.5,
                      .seed = 1,
                      .min_gain = 0.005,
                      .probe_share = 0.005,
                      .results.convert = NAN};
    const struct cli_option options[] = {
        {CLI_TEXT, "model", 'm', &b.model_dir, "DIR", "folder of the checkpoint (required, but with --from)"},
        {CLI_CHOICE, "preset", 0, &b.preset, "NAME",
         "decode-131k: the published decode curve (131,072 tokens of context, EP64/DP64, 384 + 64\n"
         "experts, 3 drafts at 75 %), from counters of such a group with --from; what a machine or a\n"
         "file lacks for it is listed",
         .choices = bd_preset_names},
        {CLI_TEXT, "concurrency", 'c', &b.loads, "N,N,...", "sequences at a time (default 1,2,4,8,16,32)"},
        {CLI_TEXT, "modes", 0, &b.modes, "M,M,...",
         "off, a number of drafts per step, dynamic (default: off, every length, dynamic)"},
        {CLI_INT, "context", 0, &b.context, "N", "tokens that every sequence has (default 128)", 4, 1 << 24},
        {CLI_INT, "grow", 0, &b.grow, "N", "tokens it may gain before it is set back (default 64)", 1, 1 << 16},
        {CLI_INPUT, "text", 0, &b.text_file, "FILE", "text for the contexts; else made-up tokens"},
        {CLI_CHOICE, "accept", 0, &b.accept, "HOW",
         "model: what the model says (default); stated: a coin of the draft's stated confidence;\n"
         "all: every draft that is verified",
         .choices = accept_names, .given = &b.given.accept},
        {CLI_DOUBLE, "temperature", 't', &b.temperature, "T", "0: greedy (default)", 0, 100},
        {CLI_INT, "repeats", 0, &b.repeats, "N", "interleaved repeats (default 7)", 1, BD_REPEATS},
        {CLI_DOUBLE, "seconds", 0, &b.seconds, "S", "of each run (default 0.5)", 0.001, 3600},
        {CLI_DOUBLE, "warm", 0, &b.warm, "S", "before the first repeat, not counted (default 0.5, at least --seconds)",
         0, 3600, .given = &b.given.warm},
        {CLI_DOUBLE, "prune", 0, &b.prune, "PCT",
         "leave out ways that after 7 repeats are surely so much slower than dynamic (0: never)", 0, 1000,
         .given = &b.given.prune},
        {CLI_CHOICE, "budget", 0, &b.budget, "HOW", "as speculation.budget", .choices = budget_names,
         .given = &b.given.budget},
        {CLI_DOUBLE, "min-gain", 0, &b.min_gain, "X", "as speculation.min_gain", 0, 1, .given = &b.given.min_gain},
        {CLI_DOUBLE, "probe-share", 0, &b.probe_share, "X", "as speculation.probe_share", 0, 0.2,
         .given = &b.given.probe_share},
        {CLI_KEPT, "table", 0, &b.table_file, "FILE", "as speculation.table_file"},
        {CLI_DOUBLE, "convert", 0, &b.results.convert, "RATE",
         "also give the conversion 1 + drafts x RATE; fixed lengths only", 0, 1},
        {CLI_INT, "threads", 0, &b.threads, "N", "compute threads (default: one per usable CPU)", 1, 1024},
        {CLI_CHOICE, "clock", 0, &b.clock, "HOW",
         "wall (default); cpu: processor time of one thread, for a machine that does other work too",
         .choices = clock_names},
        {CLI_INT, "seed", 0, &b.seed, "N", "of made-up tokens, coins and draws (default 1)", 0, 1 << 30},
        {CLI_OUTPUT, "json", 0, &b.json_file, "FILE", "write conditions and raw counters"},
        {CLI_OUTPUT, "csv", 0, &b.csv_file, "FILE", "write raw counters and figures, one row per run"},
        {CLI_PLOT, "plot", 0, &b.plot_file, "FILE", "draw FILE.svg or FILE.png (needs gnuplot)"},
        {CLI_INPUT, "from", 0, &b.from_file, "FILE", "measure nothing: report on a --json file of an earlier run"},
        {.kind = CLI_END},
    };
    static const struct cli_rule rules[] = {
        {CLI_EXCLUDES, "from", "model", "it measures nothing"},
        {CLI_ALLOWS, "from", "preset convert json csv plot", "it measures nothing"},
        {CLI_EXCLUDES, "preset=decode-131k", "convert context modes accept temperature", "the preset says what it is"},
        {CLI_EXCLUDES, "clock=cpu", "threads", "processor time is of one thread"},
        {CLI_RULES_END},
    };
    const struct cli_usage usage = {
        .rules = rules,
        .synopsis = "bench decode -m DIR [options]\nbench decode --from FILE.json [options]",
        .intro =
            "Decoding alone: tokens per second over numbers of sequences, without drafts, with every fixed number\n"
            "of them and with planned numbers, interleaved in one run. No queueing, no protocol, no network.",
        .options = options,
    };
    int r = cli_options_parse(&usage, argc, argv, NULL);
    if (r != CLI_GO_ON)
        return r;
    if (!b.model_dir == !b.from_file)
        return cli_error(CLI_USAGE, "bench decode needs either -m DIR or --from FILE; see `weft bench decode --help`");
    if (b.from_file) {
        double convert = b.results.convert;
        r = bd_read_json(b.from_file, &b.results, &b.err);
        b.results.convert = isnan(convert) ? b.results.convert : convert;
        if (!r && b.preset)
            r = bd_preset_apply((enum bd_preset)b.preset, &b.results, &b.err);
        for (int i = 0; i < b.results.n && !r; i++) {
            double tokens;
            int mode = b.results.point[i].mode;
            if (!isnan(b.results.convert))
                r = cli_spec_convert(mode == BD_DYNAMIC, mode > 0 ? mode : 0, b.results.convert, &tokens, &b.err);
        }
    } else {
        if (b.preset)
            set_preset(&b);
        r = prepare(&b);
        if (!r)
            r = run_all(&b);
    }
    if (!r)
        r = report(&b);
    if (r)
        cli_error(CLI_FAILED, "bench decode: %s", b.err.msg);
    clear(&b);
    return r == -EINVAL ? CLI_USAGE : r ? CLI_FAILED : CLI_OK;
}
