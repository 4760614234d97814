/* Measuring a step-time table: rounds of the real decoder on made-up sequences. Every final pick fails on purpose, so
 * that a round costs what it costs and leaves its sequences as they were. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/steptime_file.h"
#include "model/decode.h"
#include "model/prefill.h"
#include "model/sampler.h"

enum {
    REPEATS = 5,
    KINDS = ACT_STEPTIME_BETWEEN + 2,
    FINE = 2, /* up to so many requests every number of drafts is measured: a row more is much there */
};

struct bench {
    struct mdl_model *m;
    const struct act_steptime_measure *how;
    struct mdl_decoder *decoder;
    struct mdl_stream *stream; /* [how->streams] */
    struct mdl_stream **round; /* [how->streams] */
    int64_t expert_ns;         /* in the expert shards' work, of the round at hand */
    int64_t verify_began;
    struct mdl_providers providers;
    uint64_t random;
    int32_t *ids; /* [context] */
};

static int64_t now(const struct bench *b)
{
    return b->how->now(b->how->ctx);
}

static int32_t made_up(struct bench *b)
{
    uint32_t u[4];
    mdl_random(1, b->random++, 0, u);
    return (int32_t)(u[0] % (uint32_t)b->m->cfg->vocab_size);
}

static int32_t pick(void *ctx, int pos, float *logits, bool draft)
{
    const struct bench *b = ctx;
    (void)pos;
    int32_t id = mdl_argmax(logits, b->m->cfg->vocab_size);
    return draft ? id : -ECANCELED;
}

static void on_plan(void *ctx, struct mdl_stream *const *streams, int n)
{
    struct bench *b = ctx;
    (void)streams;
    (void)n;
    b->verify_began = now(b);
    b->expert_ns = 0;
}

static int experts(void *ctx, struct mdl_step *step, struct mdl_exchange *x)
{
    struct bench *b = ctx;
    int64_t from = now(b);
    int r = mdl_providers_local.experts(NULL, step, x);
    b->expert_ns += now(b) - from;
    return r;
}

struct sample {
    double draft, verify, expert;
};

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One round of n streams with so many drafts each. */
static int measure_round(struct bench *b, int n, int drafts, struct sample *out, struct cfg_error *err)
{
    for (int i = 0; i < n; i++) {
        b->stream[i].draft = drafts;
        b->stream[i].limit = drafts + 1;
        b->round[i] = &b->stream[i];
    }
    int64_t from = now(b);
    int r = mdl_decoder_begin(b->decoder, b->round, n, &b->providers, err);
    while (!r && (r = mdl_decoder_advance(b->decoder, err)) == MDL_STEP_MORE)
        r = 0;
    /* A clock that did not move between two readings still gives a time above 0. */
    *out = (struct sample){(double)(b->verify_began - from) + 1, (double)(now(b) - b->verify_began) + 1,
                           (double)b->expert_ns};
    return r < 0 ? r : 0;
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, compare_doubles);
    return v[n / 2];
}

/* Medians over a few rounds of n streams for each of the numbers of drafts, in turn: a slow spell of the machine falls
 * on all of them alike, and their ratios are what matters. */
static int measure_rounds(struct bench *b, int n, const int *drafts, int kinds, struct sample *out,
                          struct cfg_error *err)
{
    double draft[KINDS][REPEATS], verify[KINDS][REPEATS], expert[KINDS][REPEATS];
    int r = 0;
    for (int k = 0; k < REPEATS && !r; k++)
        for (int i = 0; i < kinds && !r; i++) {
            struct sample one;
            r = measure_round(b, n, drafts[i], &one, err);
            draft[i][k] = one.draft;
            verify[i][k] = one.verify;
            expert[i][k] = one.expert;
        }
    for (int i = 0; i < kinds && !r; i++)
        out[i] = (struct sample){median(draft[i], REPEATS), median(verify[i], REPEATS), median(expert[i], REPEATS)};
    return r;
}

static int add_stream(struct bench *b, int i, struct mdl_step *step, struct cfg_error *err)
{
    const struct act_steptime_measure *how = b->how;
    struct mdl_seq_params params = {.max_tokens = how->context + how->block + 1};
    struct mdl_prefill plan;
    struct mdl_stream *s = &b->stream[i];
    for (int k = 0; k < how->context; k++)
        b->ids[k] = made_up(b);
    int r = mdl_seq_new(b->m->cfg, &params, &s->seq, err);
    if (!r)
        r = mdl_prefill_begin(&plan, s->seq, b->ids, how->context, &(struct mdl_prefill_params){.exact = true}, err);
    if (!r)
        r = mdl_prefill_run(&plan, step, 0, NULL, NULL, err);
    s->next = made_up(b);
    s->pick = pick;
    s->pick_ctx = b;
    return r;
}

/* Numbers of drafts to measure n requests with: none, the whole block, some in between. */
static int kinds_of(int n, int block, int *drafts)
{
    int k = 0, half = (block + 1) / 2, most = block - 1 < ACT_STEPTIME_BETWEEN ? block - 1 : ACT_STEPTIME_BETWEEN;
    drafts[k++] = 0;
    for (int d = 1; n <= FINE && d <= most; d++)
        drafts[k++] = d;
    if (n > FINE && block > 1)
        drafts[k++] = 1;
    if (n > FINE && half > 1 && half <= most)
        drafts[k++] = half;
    if (block)
        drafts[k++] = block;
    return k;
}

/* The drafter's times by size, and what tells its pass from its picks: over all sizes, since one of them may be off. */
struct draft_times {
    struct act_steptime_curve one; /* by requests, one token for each */
    double picks_ns, picks;        /* so many more picks took so much longer */
};

/* Adds what n streams take. */
static int measure_size(struct bench *b, int n, struct act_steptime *t, struct draft_times *d, struct cfg_error *err)
{
    int block = b->how->block, drafts[KINDS], kinds = kinds_of(n, block, drafts);
    struct sample took[KINDS];
    int r = measure_rounds(b, n, drafts, kinds, took, err);
    if (r)
        return r;
    for (int i = 0; i < kinds; i++)
        act_steptime_add_batch(t, n, drafts[i], took[i].verify);
    t->expert_share = took[0].expert / took[0].verify < 1 ? took[0].expert / took[0].verify : 1;
    if (!block)
        return 0;
    double one = took[1].draft, picks = (double)n * (block - 1);
    d->picks_ns += took[kinds - 1].draft - one;
    d->picks += picks;
    return act_steptime_add(&d->one, n, one);
}

/* A token costs the same in all sizes; what is left of each is its pass. */
static void split_draft_times(const struct draft_times *d, struct act_steptime *t)
{
    t->pick_ns = d->picks_ns > 0 ? d->picks_ns / d->picks : 0;
    for (int i = 0; i < d->one.n; i++) {
        double one = d->one.raw[i], pass = one - d->one.at[i] * t->pick_ns;
        act_steptime_add(&t->draft, d->one.at[i], pass > 0.1 * one ? pass : 0.1 * one);
    }
}

static int next_size(int n, int most)
{
    int next = n < 4 ? n + 1 : n < 8 ? n + 2 : n + n / 2;
    return n < most && next > most ? most : next;
}

static int measure_all(struct bench *b, struct mdl_step *step, struct act_steptime *t, struct cfg_error *err)
{
    int r = 0, made = 0;
    struct draft_times draft = {0};
    struct sample warm;
    int64_t began = now(b);
    for (int n = 1; n <= b->how->streams && !r; n = next_size(n, b->how->streams)) {
        if (n > 1 && now(b) - began > b->how->limit_ns)
            break;
        for (; made < n && !r; made++)
            r = add_stream(b, made, step, err);
        if (!r && n == 1) /* brings weights into memory */
            r = measure_round(b, 1, b->how->block, &warm, err);
        if (!r)
            r = measure_size(b, n, t, &draft, err);
    }
    split_draft_times(&draft, t);
    act_steptime_settle(t);
    return r;
}

int act_steptime_measure(struct mdl_model *m, const struct act_steptime_measure *how, struct act_steptime *out,
                         struct cfg_error *err)
{
    struct bench b = {.m = m, .how = how};
    struct mdl_step *step = NULL;
    act_steptime_init(out, how->block);
    b.providers = mdl_providers_local;
    b.providers.ctx = &b;
    b.providers.experts = experts;
    b.stream = calloc((size_t)how->streams, sizeof *b.stream);
    b.round = calloc((size_t)how->streams, sizeof(struct mdl_stream *));
    b.ids = calloc((size_t)how->context, sizeof *b.ids);
    int r = b.stream && b.round && b.ids ? 0 : cfg_error_set(err, ENOMEM, "step times: out of memory");
    if (!r)
        r = mdl_decoder_new(m, how->streams, how->block, how->context + how->block + 1, &b.decoder, err);
    if (!r)
        r = mdl_step_new(m, how->context, how->context + 1, &step, err);
    if (!r) {
        mdl_decoder_set_plan(b.decoder, on_plan, &b);
        r = measure_all(&b, step, out, err);
    }
    for (int i = 0; b.stream && i < how->streams; i++)
        mdl_seq_free(b.stream[i].seq);
    mdl_step_free(step);
    mdl_decoder_free(b.decoder);
    free(b.stream);
    free(b.round);
    free(b.ids);
    return r;
}
