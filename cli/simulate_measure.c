/* A profile of this machine and a model: what `weft simulate --measure` writes. Step times as the server measures them
 * for its planner; steps of prompts; what picking a token and reading a prompt costs, and waking a thread; and how
 * often drafts are kept and how much a round's time varies, from requests that run alone with whole blocks. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actors/steptime_file.h"
#include "cli/bench_serve.h"
#include "cli/engine.h"
#include "cli/output.h"
#include "cli/simulate_measure.h"
#include "config/config.h"
#include "model/decode.h"

enum { REPEATS = 5, JOBS = 24, SAMPLES = 400, TAILS = 4, POINTS = 400, ROUNDS = 4096, WAKES = 400 };

struct measure {
    const struct sim_measure_options *o;
    struct cfg_config config; /* the defaults, which the server is taken to have */
    struct cli_engine e;
    struct mdl_ids ids; /* of the text that prompts are made from */
    int replay;
    uint64_t random;
    struct act_steptime table;
    struct act_steptime_curve encoder, tail; /* ns */
    double prompts_s, experts_s;             /* of all steps of prompts, and what experts took of that */
    double sample_ns, request_ns, wake_ns, noise, base, slope, spread;
};

static int64_t now_ns(void *ctx)
{
    (void)ctx;
    return (int64_t)(1e9 * cli_seconds());
}

static int32_t next_id(struct measure *m)
{
    return m->ids.v[(size_t)(sim_uniform(&m->random) * (double)m->ids.n)];
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- steps of prompts ---- */

/* mdl_providers.experts; ctx: struct measure. */
static int timed_experts(void *ctx, struct mdl_step *step, struct mdl_exchange *x)
{
    struct measure *m = ctx;
    double began = cli_seconds();
    int r = mdl_providers_local.experts(mdl_providers_local.ctx, step, x);
    m->experts_s += cli_seconds() - began;
    return r;
}

/* n sequences of `tokens` tokens each, in one step: the layers below the cut, and (tail) those behind it. */
static int time_prompts(struct measure *m, struct mdl_step *step, int n, int tokens, double *encoder, double *tail,
                        struct cfg_error *err)
{
    struct mdl_seq *seq[TAILS] = {NULL};
    struct mdl_prefill plan[TAILS];
    struct mdl_seq_params params = {
        .max_tokens = tokens + 1, .rollback = m->config.replay.rollback, .replay = m->replay};
    struct mdl_prefill_params how = {.replay = m->replay};
    int32_t *ids = malloc((size_t)tokens * sizeof *ids);
    double *out[] = {encoder, tail};
    struct mdl_providers providers = mdl_providers_local;
    providers.experts = timed_experts;
    providers.ctx = m;
    int r = ids ? 0 : cfg_error_set(err, ENOMEM, "out of memory");
    for (int i = 0; i < tokens && !r; i++)
        ids[i] = next_id(m);
    for (int i = 0; i < n && !r; i++) {
        r = mdl_seq_new(m->e.m->cfg, &params, &seq[i], err);
        if (!r)
            r = mdl_prefill_begin(&plan[i], seq[i], ids, tokens, &how, err);
    }
    for (int pass = 0; pass < 2 && !r; pass++) {
        struct mdl_segment seg[TAILS];
        double began = cli_seconds();
        mdl_step_begin(step, &providers);
        for (int i = 0; i < n && !r; i++)
            r = mdl_prefill_next(&plan[i], tokens, &seg[i]) ? mdl_step_add(step, &seg[i], err)
                                                            : cfg_error_set(err, EPROTO, "a prompt ended early");
        if (!r && mdl_step_run(step) != MDL_STEP_DONE)
            r = cfg_error_set(err, EIO, "a prefill step failed");
        *out[pass] = cli_seconds() - began;
        m->prompts_s += *out[pass];
        for (int i = 0; i < n && !r; i++) {
            mdl_step_commit(step, i, seg[i].n);
            mdl_prefill_advance(&plan[i], &seg[i]);
        }
    }
    for (int i = 0; i < n; i++)
        mdl_seq_free(seq[i]);
    free(ids);
    return r;
}

static int median_prompts(struct measure *m, struct mdl_step *step, int n, int tokens, struct cfg_error *err)
{
    double encoder[REPEATS + 1], tail[REPEATS + 1];
    int r = 0, rows = m->replay < tokens ? m->replay : tokens;
    for (int k = 0; k <= REPEATS && !r; k++) /* the first one warms up */
        r = time_prompts(m, step, n, tokens, &encoder[k], &tail[k], err);
    if (r)
        return r;
    qsort(encoder + 1, REPEATS, sizeof *encoder, by_value);
    qsort(tail + 1, REPEATS, sizeof *tail, by_value);
    act_steptime_add(&m->encoder, n * tokens, 1e9 * encoder[1 + REPEATS / 2]);
    act_steptime_add(&m->tail, n * rows, 1e9 * tail[1 + REPEATS / 2]);
    return 0;
}

static int measure_prompts(struct measure *m, struct cfg_error *err)
{
    struct mdl_step *step;
    int chunk = m->config.compute.prefill_chunk, context = m->e.m->cfg->max_position,
        r = mdl_step_new(m->e.m, TAILS * chunk, chunk + 1, &step, err);
    if (r)
        return r;
    for (int n = 8; n <= chunk && n < context && !r; n *= 2)
        r = median_prompts(m, step, 1, n, err);
    /* A whole chunk of tails, and no curve goes on by the difference of two points that are nearly the same. */
    for (int n = 2; n <= TAILS && !r; n *= 2)
        if (chunk / n < context)
            r = median_prompts(m, step, n, chunk / n, err);
    mdl_step_free(step);
    return r;
}

/* ---- tokens ---- */

static int measure_request(struct measure *m, struct cfg_error *err)
{
    int n = m->o->prompt_tokens;
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    for (int i = 0; ids && i < n; i++)
        ids[i] = next_id(m);
    int r = ids ? sim_measure_request(ids, n, &m->request_ns, err) : cfg_error_set(err, ENOMEM, "out of memory");
    free(ids);
    return r;
}

static void *echo(void *arg)
{
    const int *fd = arg; /* read, write */
    char c;
    while (read(fd[0], &c, 1) == 1 && write(fd[1], &c, 1) == 1)
        ;
    return NULL;
}

/* One way from a worker to another one that sleeps: half of a byte's way there and back. */
static int measure_wake(struct measure *m, struct cfg_error *err)
{
    int there[2] = {-1, -1}, back[2] = {-1, -1}, n = 0, r = 0;
    double took[WAKES];
    pthread_t thread;
    if (pipe(there) || pipe(back))
        r = cfg_error_set(err, errno, "pipe: %s", strerror(errno));
    int fd[2] = {there[0], back[1]};
    if (!r && (r = pthread_create(&thread, NULL, echo, fd)))
        r = cfg_error_set(err, r, "a thread: %s", strerror(r));
    for (char c = 0; !r && n < WAKES; n++) {
        double began = cli_seconds();
        if (write(there[1], &c, 1) != 1 || read(back[0], &c, 1) != 1)
            break;
        took[n] = cli_seconds() - began;
    }
    if (there[1] >= 0)
        close(there[1]);
    if (!r)
        pthread_join(thread, NULL);
    for (int i = 0; i < 2; i++)
        if (back[i] >= 0)
            close(back[i]);
    if (there[0] >= 0)
        close(there[0]);
    qsort(took, (size_t)n, sizeof *took, by_value);
    m->wake_ns = n ? 0.5e9 * took[n / 2] : 0;
    return r;
}

static int measure_sampling(struct measure *m, struct cfg_error *err)
{
    int vocab = m->e.vocab, r = 0;
    float *logits = malloc((size_t)vocab * sizeof *logits);
    struct mdl_sampling recipe;
    mdl_sampling_init(&recipe);
    if (!logits)
        return cfg_error_set(err, ENOMEM, "out of memory");
    for (int i = 0; i < vocab; i++)
        logits[i] = (float)(3 * sim_normal(&m->random));
    double began = cli_seconds();
    for (int i = 0; i < SAMPLES && !r; i++) {
        int32_t id;
        r = mdl_sampler_sample(m->e.sampler, &recipe, logits, vocab, m->ids.v, (int)(m->ids.n < 128 ? m->ids.n : 128),
                               64, i, &id, NULL, err);
    }
    m->sample_ns = 1e9 * (cli_seconds() - began) / SAMPLES;
    free(logits);
    return r;
}

struct luck {
    int64_t offered[MDL_MAX_BLOCK], accepted[MDL_MAX_BLOCK];
    double sum, squares; /* of the first draft's confidence, as a logit */
    int64_t n;
    double round[ROUNDS]; /* seconds, of requests that are alone */
    int rounds;
};

static int run_jobs(struct measure *m, struct luck *luck, struct cfg_error *err)
{
    int tokens = m->o->prompt_tokens, r = 0;
    int32_t *prompt = malloc((size_t)tokens * sizeof *prompt);
    for (int k = 0; k < JOBS && prompt && !r; k++) {
        struct cli_job job = {.prompt = prompt, .n_prompt = tokens, .max_new = m->o->output_tokens, .ignore_eos = true},
                       *list = &job;
        mdl_sampling_init(&job.sampling);
        job.sampling.seed = (uint64_t)k + 1;
        for (int i = 0; i < tokens; i++)
            prompt[i] = next_id(m);
        cli_job_start(&m->e, &job);
        while (!r && job.finish == CLI_FINISH_NONE) {
            double began = cli_seconds();
            r = cli_jobs_round(&m->e, &list, 1, err);
            if (job.stream.guess.n < m->o->drafts)
                continue;
            if (luck->rounds < ROUNDS)
                luck->round[luck->rounds++] = cli_seconds() - began;
            double c = (double)job.stream.guess.confidence[0];
            luck->sum += c;
            luck->squares += c * c;
            luck->n++;
        }
        for (int i = 0; i < MDL_MAX_BLOCK; i++) {
            luck->offered[i] += job.counters.offered_at[i];
            luck->accepted[i] += job.counters.accepted_at[i];
        }
        if (job.finish == CLI_FINISH_ERROR)
            r = cfg_error_set(err, EIO, "a request failed: %s", job.err.msg);
        cli_job_free(&job);
    }
    free(prompt);
    return prompt ? r : cfg_error_set(err, ENOMEM, "out of memory");
}

/* More than this is other work on the machine, which comes in bursts and is no such noise. */
static const double NOISE_MAX = 0.3;

/* Of the logarithm of a round's time: what puts a normal one's 99th percentile where it was seen. */
static void fit_noise(struct measure *m, struct luck *luck)
{
    int n = luck->rounds;
    qsort(luck->round, (size_t)n, sizeof *luck->round, by_value);
    m->noise = n >= 100 ? log(luck->round[n - 1 - n / 100] / luck->round[n / 2]) / 2.326 : 0;
    m->noise = m->noise < NOISE_MAX ? m->noise : NOISE_MAX;
}

/* Chance that the first k + 1 drafts are kept, over a spread of blocks. */
static double survival(double base, double slope, double spread, int k)
{
    double sum = 0, weight = 0;
    for (int i = 0; i < POINTS; i++) {
        double x = -5 + 10.0 * (i + 0.5) / POINTS, w = exp(-x * x / 2), s = 1;
        for (int j = 0; j <= k; j++)
            s /= 1 + exp(-(base + slope * j + spread * x));
        sum += w * s;
        weight += w;
    }
    return sum / weight;
}

/* base and slope by which the model of acceptance comes closest to what was kept at each place. */
static void fit(struct measure *m, const struct luck *luck)
{
    double best = INFINITY, mean = luck->n ? luck->sum / (double)luck->n : 0;
    double variance = luck->n ? luck->squares / (double)luck->n - mean * mean : 0;
    m->spread = variance > 0 ? sqrt(variance) : 0;
    for (double base = -12; base < 6; base += 0.02)
        for (double slope = -1; slope <= 1; slope += 0.05) {
            double off = 0;
            for (int k = 0; k < m->o->drafts; k++)
                if (luck->offered[0]) {
                    double d =
                        survival(base, slope, m->spread, k) - (double)luck->accepted[k] / (double)luck->offered[0];
                    off += d * d;
                }
            if (off < best) {
                best = off;
                m->base = base;
                m->slope = slope;
            }
        }
}

/* ---- the profile ---- */

static json_t *curve(const struct act_steptime_curve *c, double more_per_row);

/* Numbers of drafts between none and all that were measured for more than one number of requests. */
static json_t *between(const struct act_steptime *t)
{
    json_t *list = json_array();
    for (int i = 0; i < t->n_between; i++)
        if (t->between[i].curve.n > 1)
            json_array_append_new(
                list, json_pack("{s:i,s:o}", "drafts", t->between[i].drafts, "us", curve(&t->between[i].curve, 0)));
    return list;
}

static json_t *curve(const struct act_steptime_curve *c, double more_per_row)
{
    json_t *list = json_array();
    for (int i = 0; i < c->n; i++)
        json_array_append_new(list, json_pack("[i,f]", c->at[i], 1e-3 * (c->ns[i] + more_per_row * c->at[i])));
    return list;
}

static const char *last_part(const char *dir)
{
    const char *at = dir;
    for (const char *c = dir; *c; c++)
        at = *c == '/' && c[1] && c[1] != '/' ? c + 1 : at;
    return at;
}

static int write_profile(struct measure *m, const char *file, struct cfg_error *err)
{
    const struct mdl_config *cfg = m->e.m->cfg;
    int shards = m->config.engine.expert_shards; /* each computes one expert in its turn */
    struct act_steptime_identity id;
    char name[400], revision[17];
    act_steptime_identity(m->e.m, 0, 0, &id);
    snprintf(name, sizeof name, "%.100s on %.160s, %.100s", last_part(m->o->model), id.machine, id.build);
    snprintf(revision, sizeof revision, "%016llx", (unsigned long long)id.revision);
    json_t *p = json_pack(
        "{s:s,s:s,s:i,s:o,s:o,s:o,s:o,s:f,s:f,s:f,s:f,s:f,s:f,s:{s:f,s:f,s:f,s:f},s:i,s:i,s:f,s:b,s:f,s:f,s:f}", "name",
        name, "model_revision", revision, "block", m->o->drafts, "plain_us", curve(&m->table.plain, 0), "between_us",
        between(&m->table), "full_us", curve(&m->table.full, 0), "draft_us", curve(&m->table.draft, 0), "pick_us",
        1e-3 * (m->table.pick_ns + m->sample_ns), "emit_us", 1e-3 * m->sample_ns, "plan_us", 0.0, "noise", m->noise,
        "table_error", 0.0, "price_per_device_hour", 0.0, "accept", "base", m->base, "slope", m->slope, "spread",
        m->spread, "persist", 0.0, "prompt_tokens", m->o->prompt_tokens, "output_tokens", m->o->output_tokens,
        "share_us", (double)m->config.engine.prefill_share_us, "one_process", 1, "token_us", 0.0, "request_us",
        1e-3 * m->request_ns, "network_us", 1e-3 * m->wake_ns);
    struct mdl_kv_layout layout;
    int per = m->config.kv.block_tokens, bad = mdl_kv_layout_init(cfg, per, &layout, err);
    if (bad) {
        json_decref(p);
        return bad;
    }
    /* As the server has them by its defaults. */
    int64_t kv_tokens = m->config.kv.memory / (int64_t)layout.block_bytes * per;
    json_t *more =
        json_pack("{s:{s:i,s:i,s:i,s:I},s:{s:o,s:o,s:i,s:i,s:i,s:i,s:i,s:f,s:i}}", "decode", "streams",
                  m->config.engine.decode_streams, "context", cfg->max_position, "block_tokens", per, "kv_tokens",
                  (json_int_t)kv_tokens, "prefill", "encoder_us", curve(&m->encoder, 0), "tail_us", curve(&m->tail, 0),
                  "replay", m->replay, "chunk", m->config.compute.prefill_chunk, "prompts",
                  m->config.engine.prefill_streams, "layers_below", cfg->cut, "layers_behind", cfg->n_layers - cfg->cut,
                  "expert_share", m->experts_s / m->prompts_s, "expert_parts", (cfg->n_experts + shards - 1) / shards);
    if (p && more)
        json_object_update(p, more);
    if (!more) {
        json_decref(p);
        p = NULL;
    }
    json_decref(more);
    return cli_output_json(file, p, JSON_INDENT(1) | JSON_REAL_PRECISION(6), err);
}

static int prepare(struct measure *m, struct cfg_error *err)
{
    const struct cli_engine_options o = {.model_dir = m->o->model,
                                         .threads = m->o->threads,
                                         .draft = m->o->drafts,
                                         .parallel = 1,
                                         .max_tokens = m->o->prompt_tokens + m->o->output_tokens,
                                         .chunk = m->config.compute.prefill_chunk};
    int r = cli_engine_open(&o, &m->e, err);
    if (r)
        return r;
    if (m->e.m->cfg->cut < 0 || !m->e.m->cfg->n_draft || m->o->drafts > m->e.m->cfg->draft_block)
        return cfg_error_set(err, EINVAL, "%s: a profile needs a model with a bridge and a drafter of %d drafts",
                             m->o->model, m->o->drafts);
    int context = m->e.m->cfg->max_position,
        most = o.max_tokens + m->o->drafts + 1; /* a block may reach behind the end */
    if (most > context)
        return cfg_error_set(
            err, EINVAL,
            "prompts of %d and answers of %d tokens (--prompt-tokens, --output-tokens), with a block of "
            "%d drafts, need a context of %d tokens; %s has one of %d",
            m->o->prompt_tokens, m->o->output_tokens, m->o->drafts, most, m->o->model, context);
    m->replay = m->e.m->cfg->window + m->config.replay.rollback;
    r = cli_engine_prepare(&m->e, o.max_tokens, m->o->prompt_tokens, err);
    if (!r)
        r = mdl_tok_encode(m->e.enc, bench_serve_filler, strlen(bench_serve_filler), 0, &m->ids, err);
    return r;
}

int sim_measure(const struct sim_measure_options *o, const char *file, struct cfg_error *err)
{
    static struct measure m;
    m = (struct measure){.o = o, .random = 1};
    cfg_config_default(&m.config);
    static struct luck luck;
    luck = (struct luck){.n = 0};
    const struct act_steptime_measure how = {.streams = m.config.engine.decode_streams,
                                             .block = o->drafts,
                                             .context = o->prompt_tokens + o->output_tokens / 2,
                                             .limit_ns = INT64_C(10000000000),
                                             .now = now_ns};
    int r = prepare(&m, err);
    if (!r)
        r = act_steptime_measure(m.e.m, &how, &m.table, err);
    if (!r)
        r = measure_prompts(&m, err);
    if (!r)
        r = measure_sampling(&m, err);
    if (!r)
        r = measure_request(&m, err);
    if (!r)
        r = measure_wake(&m, err);
    if (!r)
        r = run_jobs(&m, &luck, err);
    if (!r) {
        fit(&m, &luck);
        fit_noise(&m, &luck);
        r = write_profile(&m, file, err);
    }
    free(m.ids.v);
    cli_engine_close(&m.e);
    return r;
}
