#include "model/decode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum decode_phase {
    DECODE_IDLE,
    DECODE_DRAFT,  /* the drafter's step runs */
    DECODE_PICK,   /* its tokens are picked, stream by stream */
    DECODE_VERIFY, /* the backbone's step runs */
};

struct mdl_decoder {
    struct mdl_model *m;
    int max_streams, max_draft, max_tokens;
    struct mdl_step *verify, *draft; /* draft NULL without guesses */
    int32_t *ids;                    /* [max_streams][max_draft + 1] rows of the verification */
    struct mdl_stream **streams;     /* [max_streams] of the round */
    struct mdl_stream **drafting;    /* [max_streams] the stream of each draft segment */
    float *logits;                   /* [vocab] a copy that pick may change */
    mdl_plan_fn *plan;
    void *plan_ctx;
    /* The round. */
    const struct mdl_providers *providers;
    enum decode_phase phase;
    int n, n_drafting, picked;
};

void mdl_counters_add(struct mdl_counters *sum, const struct mdl_counters *c)
{
    sum->steps += c->steps;
    sum->drafted += c->drafted;
    sum->offered += c->offered;
    sum->accepted += c->accepted;
    sum->emitted += c->emitted;
    for (int i = 0; i < MDL_MAX_BLOCK; i++) {
        sum->offered_at[i] += c->offered_at[i];
        sum->accepted_at[i] += c->accepted_at[i];
    }
}

void mdl_decoder_free(struct mdl_decoder *d)
{
    if (!d)
        return;
    mdl_step_free(d->verify);
    mdl_step_free(d->draft);
    free(d->ids);
    free(d->streams);
    free(d->drafting);
    free(d->logits);
    free(d);
}

int mdl_decoder_new(struct mdl_model *m, int max_streams, int max_draft, int max_tokens, struct mdl_decoder **out,
                    struct cfg_error *err)
{
    *out = NULL;
    if (max_draft < 0 || max_draft > m->cfg->draft_block)
        return cfg_error_set(err, EINVAL, "draft length %d: this model drafts 0 to %d tokens", max_draft,
                             m->cfg->draft_block);
    struct mdl_decoder *d = calloc(1, sizeof *d);
    if (!d)
        return cfg_error_set(err, ENOMEM, "decoder: out of memory");
    *d = (struct mdl_decoder){.m = m, .max_streams = max_streams, .max_draft = max_draft, .max_tokens = max_tokens};
    d->ids = malloc((size_t)max_streams * (size_t)(max_draft + 1) * sizeof *d->ids);
    d->streams = malloc((size_t)max_streams * sizeof(struct mdl_stream *));
    d->drafting = malloc((size_t)max_streams * sizeof(struct mdl_stream *));
    d->logits = malloc((size_t)m->cfg->vocab_size * sizeof *d->logits);
    int r = d->ids && d->streams && d->drafting && d->logits ? 0 : cfg_error_set(err, ENOMEM, "decoder: out of memory");
    if (!r)
        r = mdl_step_new(m, max_streams * (max_draft + 1), max_tokens, &d->verify, err);
    /* A draft block reaches past the sequence's end; its last rows are dropped. */
    if (!r && max_draft)
        r = mdl_step_new(m, max_streams * m->cfg->draft_block, max_tokens + m->cfg->draft_block, &d->draft, err);
    if (r) {
        mdl_decoder_free(d);
        return r;
    }
    *out = d;
    return 0;
}

void mdl_decoder_set_plan(struct mdl_decoder *d, mdl_plan_fn *plan, void *ctx)
{
    d->plan = plan;
    d->plan_ctx = ctx;
}

int mdl_stream_draft_cap(const struct mdl_stream *s)
{
    int room = s->seq->params.max_tokens - s->seq->len - 1;
    room = room < s->limit - 1 ? room : s->limit - 1;
    return room > 0 ? room : 0;
}

static int draft_length(const struct mdl_decoder *d, const struct mdl_stream *s)
{
    int n = s->draft < d->max_draft ? s->draft : d->max_draft, cap = mdl_stream_draft_cap(s);
    n = n < cap ? n : cap;
    return n > 0 ? n : 0;
}

static int32_t choose_draft(void *ctx, int segment, int pos, float *logits)
{
    const struct mdl_decoder *d = ctx;
    const struct mdl_stream *s = d->drafting[segment];
    return s->pick ? s->pick(s->pick_ctx, pos, logits, true) : mdl_argmax(logits, d->m->cfg->vocab_size);
}

/* Sets up the drafter's step; whether any stream drafts at all. */
static int begin_draft(struct mdl_decoder *d, struct cfg_error *err)
{
    int r = 0;
    d->n_drafting = d->picked = 0;
    for (int i = 0; i < d->n; i++)
        d->streams[i]->guess.n = 0;
    if (!d->draft)
        return 0;
    mdl_step_begin(d->draft, d->providers);
    for (int i = 0; i < d->n && !r; i++)
        if (draft_length(d, d->streams[i]) > 0) {
            d->drafting[d->n_drafting++] = d->streams[i];
            r = mdl_draft_add(d->draft, d->streams[i]->seq, d->streams[i]->next, err);
        }
    return r;
}

static int begin_verify(struct mdl_decoder *d, struct cfg_error *err)
{
    int r = 0;
    for (int i = 0; i < d->n; i++)
        d->streams[i]->offer = d->streams[i]->guess.n;
    if (d->plan)
        d->plan(d->plan_ctx, d->streams, d->n);
    mdl_step_begin(d->verify, d->providers);
    for (int i = 0; i < d->n && !r; i++) {
        struct mdl_stream *s = d->streams[i];
        s->offer = s->offer < 0 ? 0 : s->offer < s->guess.n ? s->offer : s->guess.n;
        int32_t *ids = d->ids + (size_t)i * (size_t)(d->max_draft + 1);
        ids[0] = s->next;
        memcpy(ids + 1, s->guess.ids, (size_t)s->offer * sizeof *ids);
        struct mdl_segment seg = {
            .seq = s->seq, .start = s->seq->len, .n = s->offer + 1, .ids = ids, .layer_end = d->m->cfg->n_layers};
        r = mdl_step_add(d->verify, &seg, err);
    }
    d->phase = DECODE_VERIFY;
    return r;
}

/* Picks row after row while the guess of the next row turns out to be the pick. */
static void accept(struct mdl_decoder *d, struct mdl_stream *s, int segment)
{
    int start = s->seq->len, vocab = d->m->cfg->vocab_size, accepted = 0;
    s->n_emitted = s->n_accepted = s->status = 0;
    for (int i = 0; i <= s->offer; i++) {
        memcpy(d->logits, mdl_step_logits(d->verify, segment, i), (size_t)vocab * sizeof(float));
        int32_t id = s->pick ? s->pick(s->pick_ctx, start + i + 1, d->logits, false) : mdl_argmax(d->logits, vocab);
        if (id < 0) {
            s->status = id;
            s->n_emitted = 0;
            return;
        }
        s->emitted[s->n_emitted++] = id;
        bool kept = i < s->offer && id == s->guess.ids[i];
        accepted += kept;
        if (s->finished || !kept)
            break;
    }
    mdl_step_commit(d->verify, segment, s->n_emitted);
    s->n_accepted = accepted;
    s->next = s->emitted[s->n_emitted - 1];
    s->counters.steps++;
    s->counters.drafted += s->guess.n;
    s->counters.offered += s->offer;
    s->counters.accepted += accepted;
    s->counters.emitted += s->n_emitted;
    for (int i = 0; i < s->offer; i++)
        s->counters.offered_at[i]++;
    for (int i = 0; i < accepted; i++)
        s->counters.accepted_at[i]++;
}

int mdl_decoder_begin(struct mdl_decoder *d, struct mdl_stream *const *streams, int n,
                      const struct mdl_providers *providers, struct cfg_error *err)
{
    if (n < 1 || n > d->max_streams)
        return cfg_error_set(err, EINVAL, "round of %d streams: this decoder takes 1 to %d", n, d->max_streams);
    d->n = n;
    d->providers = providers;
    memcpy(d->streams, streams, (size_t)n * sizeof *d->streams);
    for (int i = 0; i < n; i++)
        streams[i]->n_emitted = streams[i]->n_accepted = streams[i]->status = 0;
    int r = begin_draft(d, err);
    d->phase = DECODE_DRAFT;
    if (!r && !d->n_drafting)
        r = begin_verify(d, err);
    if (r)
        d->phase = DECODE_IDLE;
    return r;
}

struct mdl_step *mdl_decoder_step(struct mdl_decoder *d)
{
    return d->phase == DECODE_VERIFY ? d->verify : d->phase == DECODE_DRAFT ? d->draft : NULL;
}

static int pick_one(struct mdl_decoder *d, struct cfg_error *err)
{
    struct mdl_stream *s = d->drafting[d->picked];
    if (!s->ghost && mdl_draft_pick(d->draft, d->picked, draft_length(d, s), choose_draft, d, &s->guess, NULL))
        return cfg_error_set(err, ENOMEM, "draft step: out of memory");
    if (++d->picked < d->n_drafting)
        return MDL_STEP_MORE;
    int r = begin_verify(d, err);
    return r ? r : MDL_STEP_MORE;
}

static int advance_step(struct mdl_decoder *d, struct cfg_error *err)
{
    int r = mdl_step_advance(mdl_decoder_step(d));
    if (r < 0)
        return cfg_error_set(err, -r, "%s step failed: %s", d->phase == DECODE_DRAFT ? "draft" : "decode",
                             strerror(-r));
    if (r != MDL_STEP_DONE)
        return r;
    if (d->phase == DECODE_DRAFT) {
        d->phase = DECODE_PICK;
        return MDL_STEP_MORE;
    }
    for (int i = 0; i < d->n; i++)
        if (!d->streams[i]->ghost)
            accept(d, d->streams[i], i);
    d->phase = DECODE_IDLE;
    return MDL_STEP_DONE;
}

int mdl_decoder_advance(struct mdl_decoder *d, struct cfg_error *err)
{
    if (d->phase == DECODE_IDLE)
        return cfg_error_set(err, EINVAL, "no round was begun");
    int r = d->phase == DECODE_PICK ? pick_one(d, err) : advance_step(d, err);
    if (r < 0)
        d->phase = DECODE_IDLE;
    return r;
}

int mdl_decoder_round(struct mdl_decoder *d, struct mdl_stream *const *streams, int n, struct cfg_error *err)
{
    int r = mdl_decoder_begin(d, streams, n, NULL, err);
    if (r)
        return r;
    do
        r = mdl_decoder_advance(d, err);
    while (r == MDL_STEP_MORE);
    return r;
}
