/* Decode's side of speculation: each round is planned, and what it took is reported back. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "actors/decode_impl.h"
#include "actors/runtime/log.h"
#include "model/reject.h"

static void on_plan(void *ctx, struct mdl_stream *const *streams, int n)
{
    struct decode *d = ctx;
    act_speculation_split(&d->spec, streams, n);
    d->verify_began = act_now(d->self);
}

int dec_spec_start(struct decode *d)
{
    const struct act_engine *e = d->e;
    act_group_init(&d->group, d->self, e);
    d->round_spec = calloc((size_t)e->limits.streams, sizeof(struct act_spec_stream *));
    if (e->rejection)
        d->weights = malloc((size_t)e->vocab * sizeof *d->weights);
    if (!d->round_spec || (e->rejection && !d->weights))
        return -ENOMEM;
    int r = act_speculation_init(&d->spec, &e->plan, e->limits.draft, e->limits.streams,
                                 e->plan.mode == ACT_PLAN_DYNAMIC ? &e->steptime : NULL, &e->calibration);
    mdl_decoder_set_plan(d->decoder, on_plan, d);
    return r;
}

enum mdl_choice dec_spec_choice(const struct decode *d, const struct dec_stream *s)
{
    if (!(s->recipe.sampling.temperature > 0))
        return MDL_CHOICE_GREEDY;
    return d->e->rejection ? MDL_CHOICE_REJECT : MDL_CHOICE_MATCH;
}

/* A dynamic plan weighs requests against each other by what they drew; a fixed one does not, and keeps seeds. */
uint64_t dec_spec_key(const struct decode *d, const struct dec_stream *s)
{
    uint64_t seed = s->recipe.sampling.seed;
    return d->e->plan.mode == ACT_PLAN_DYNAMIC ? mdl_reject_key(seed, s->request) : seed;
}

void dec_spec_stop(struct decode *d)
{
    act_speculation_free(&d->spec);
    free(d->round_spec);
    free(d->weights);
}

void dec_spec_round_begins(struct decode *d)
{
    for (int i = 0; i < d->n_round; i++)
        d->round_spec[i] = &((struct dec_stream *)d->round[i]->pick_ctx)->spec;
    d->spec.plan.given = act_group_before(&d->group, d->n_round, &d->spec.plan.scale);
    act_speculation_begin(&d->spec, d->round, d->round_spec, d->n_round, d->exchange.other_rows);
    act_group_after(&d->group, d->n_round, &d->spec.plan.choice);
    d->disturbed = d->n_busy > 0;
}

/* A block of a round that was to be verified whole whatever came of it, for `weft calibrate`; with less than the model
 * drafts at once there is none. One in which the text ends counts like any other, and what lies behind the end was not
 * kept: leaving such blocks out would be a choice by their outcome. Near max_tokens blocks are short, and left out for
 * that before they are drafted. The number says which request, not who. */
static void log_block(const struct decode *d, const struct dec_stream *s)
{
    const struct mdl_draft *g = &s->run.guess;
    int block = d->e->m->cfg->draft_block;
    char logits[MDL_MAX_BLOCK * 12 + 1];
    size_t n = 0;
    if (!d->spec.plan.untrimmed || g->n != block || s->cancelled || s->run.status || s->finish == ACT_FINISH_ERROR)
        return;
    for (int k = 0; k < block; k++)
        n += (size_t)snprintf(logits + n, sizeof logits - n, "%s%.5g", k ? "," : "", (double)g->confidence[k]);
    act_log_event(d->e->log, ACT_LOG_DEBUG, "decode", s->request, "probe", "number=%u choice=%s kept=%d logits=%s",
                  (unsigned)(s->order & 0x7fffffff), mdl_choice_names[s->spec.choice], s->run.n_accepted, logits);
}

void dec_spec_round_ended(struct decode *d, int status)
{
    int64_t end = act_now(d->self);
    for (int i = 0; !status && act_log_on(d->e->log, ACT_LOG_DEBUG) && i < d->n_round; i++)
        log_block(d, d->round[i]->pick_ctx);
    act_speculation_end(&d->spec, (double)(d->verify_began - d->round_began), (double)(end - d->verify_began),
                        !status && !d->disturbed && !d->n_busy);
}
