#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/decode_impl.h"
#include "model/reject.h"

static bool is_stop(const struct dec_stream *s, int32_t id)
{
    if (!(s->recipe.body->flags & ACT_RECIPE_IGNORE_EOS) && id == s->owner->e->m->cfg->eos_id)
        return true;
    for (int i = 0; i < s->recipe.n_stop; i++)
        if (s->recipe.stop[i] == id)
            return true;
    return false;
}

/* Rejection sampling keeps what each draft was drawn from until its row has been picked. */
static float *draft_weights(struct dec_stream *s, int place)
{
    size_t vocab = (size_t)s->owner->e->vocab;
    if (!s->draft_weights)
        s->draft_weights = malloc((size_t)s->owner->e->limits.draft * vocab * sizeof *s->draft_weights);
    return s->draft_weights ? s->draft_weights + (size_t)place * vocab : NULL;
}

static int pick_by_rejection(struct dec_stream *s, int pos, const float *logits, bool draft, int32_t *id,
                             struct mdl_logprobs *lp)
{
    struct decode *d = s->owner;
    const struct mdl_sampling *recipe = &s->recipe.sampling;
    int place = pos - s->seq->len - 1, vocab = d->e->vocab;
    float *p = draft ? draft_weights(s, place) : d->weights;
    if (!p)
        return -ENOMEM;
    int r =
        mdl_sampler_distribution(d->sampler, recipe, logits, vocab, s->ids, s->n_ids, s->recipe.n_prompt, p, &d->err);
    if (r)
        return r;
    bool offered = !draft && place >= 0 && place < s->run.offer;
    *id = draft ? mdl_reject_draft(p, vocab, s->key, pos, place)
                : mdl_reject_choose(p, offered ? draft_weights(s, place) : NULL, offered ? s->run.guess.ids[place] : 0,
                                    vocab, s->key, pos);
    return lp ? mdl_sampler_logprobs(d->sampler, logits, vocab, *id, recipe->top_logprobs, lp, &d->err) : 0;
}

/* A final pick joins the ids at once, because the next pick's penalties count it. */
int32_t dec_pick(void *ctx, int pos, float *logits, bool draft)
{
    struct dec_stream *s = ctx;
    struct decode *d = s->owner;
    struct mdl_logprobs *lp = !draft && s->logprobs ? &s->logprobs[s->n_logprobs] : NULL;
    int32_t id;
    int r = s->spec.choice == MDL_CHOICE_REJECT
                ? pick_by_rejection(s, pos, logits, draft, &id, lp)
                : mdl_sampler_sample(d->sampler, &s->recipe.sampling, logits, d->e->vocab, s->ids, s->n_ids,
                                     s->recipe.n_prompt, pos, &id, lp, &d->err);
    if (r)
        return r;
    if (draft)
        return id;
    if (lp)
        s->n_logprobs++;
    s->ids[s->n_ids++] = id;
    s->n_new++;
    if (is_stop(s, id))
        s->finish = ACT_FINISH_STOP;
    else if (s->n_new == s->max_new)
        s->finish = ACT_FINISH_LENGTH;
    s->run.finished = s->finish != ACT_FINISH_NONE;
    return id;
}

/* Per token {f32 logprob, u32 n, {u32 id, f32 logprob}[n]}. */
static size_t logprob_bytes(const struct dec_stream *s)
{
    size_t n = 0;
    for (int i = 0; i < s->n_logprobs; i++)
        n += 8 + 8 * (size_t)s->logprobs[i].n_top;
    return n;
}

static void put_logprobs(const struct dec_stream *s, uint8_t *at)
{
    for (int i = 0; i < s->n_logprobs; i++) {
        const struct mdl_logprobs *lp = &s->logprobs[i];
        float own = (float)lp->logprob;
        uint32_t n = (uint32_t)lp->n_top;
        memcpy(at, &own, 4);
        memcpy(at + 4, &n, 4);
        at += 8;
        for (int k = 0; k < lp->n_top; k++, at += 8) {
            float v = (float)lp->top[k].logprob;
            memcpy(at, &lp->top[k].id, 4);
            memcpy(at + 4, &v, 4);
        }
    }
}

/* Places of the block that were ever offered. */
static uint32_t places_of(const struct mdl_counters *c)
{
    uint32_t n = MDL_MAX_BLOCK;
    while (n && !c->offered_at[n - 1])
        n--;
    return n;
}

static void put_places(const struct mdl_counters *c, uint32_t places, uint8_t *at)
{
    for (uint32_t k = 0; k < places; k++) {
        uint32_t offered = (uint32_t)c->offered_at[k], accepted = (uint32_t)c->accepted_at[k];
        memcpy(at + 4 * k, &offered, 4);
        memcpy(at + 4 * (places + k), &accepted, 4);
    }
}

void dec_tokens_send(struct decode *d, struct dec_stream *s)
{
    uint32_t count = (uint32_t)s->n_new - s->sent;
    if (!count && s->finish == ACT_FINISH_NONE)
        return;
    struct act_msg m;
    const struct mdl_counters *c = &s->run.counters;
    uint32_t places = count ? places_of(c) : 0;
    size_t ids = (size_t)count * sizeof(int32_t), logprobs = logprob_bytes(s);
    if (act_msg_new(ACT_TOKENS, s->requester, ids + logprobs + 8 * (size_t)places, &m)) {
        dec_stream_fail(d, s, -ENOMEM, "no memory for its tokens");
        m = act_msg_make(ACT_TOKENS, s->requester);
        count = 0;
    }
    m.request = s->request;
    m.attempt = s->attempt;
    *act_p_tokens(&m) = (struct act_p_tokens){.first = s->sent,
                                              .count = (uint16_t)count,
                                              .finish = (uint8_t)s->finish,
                                              .flags = s->n_logprobs ? ACT_TOKENS_LOGPROBS : 0,
                                              .drafted = (uint32_t)c->drafted,
                                              .accepted = (uint32_t)c->accepted};
    if (count) {
        size_t bytes;
        uint8_t *at = act_msg_tail(&m, &bytes);
        *act_b_tokens(&m) = (struct act_b_tokens){.made_at = act_now(d->self),
                                                  .steps = (uint32_t)c->steps,
                                                  .offered = (uint32_t)c->offered,
                                                  .emitted = (uint32_t)c->emitted,
                                                  .places = places};
        memcpy(at, s->ids + s->n_ids - (int)count, ids);
        put_logprobs(s, at + ids);
        put_places(c, places, at + ids + logprobs);
    }
    s->sent += count;
    s->n_logprobs = 0;
    /* The outbox keeps it while the way is full; when even that is, the requester is not taking anything. */
    if (act_send(d->self, &m)) {
        act_msg_drop(&m);
        s->cancelled = true;
    }
}
