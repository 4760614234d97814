/* Decode's side of speculation: each round is planned, and what it took is reported back. */
#include <errno.h>
#include <stdlib.h>

#include "actors/decode_impl.h"

static void on_plan(void *ctx, struct mdl_stream *const *streams, int n)
{
    struct decode *d = ctx;
    act_speculation_split(&d->spec, streams, n);
    d->verify_began = act_now(d->self);
}

int dec_spec_start(struct decode *d)
{
    const struct act_engine *e = d->e;
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
    act_speculation_begin(&d->spec, d->round, d->round_spec, d->n_round, d->exchange.shard_rows);
    d->disturbed = d->n_busy > 0;
}

void dec_spec_round_ended(struct decode *d, int status)
{
    int64_t end = act_now(d->self);
    act_speculation_end(&d->spec, d->round, d->n_round, (double)(d->verify_began - d->round_began),
                        (double)(end - d->verify_began), !status && !d->disturbed && !d->n_busy);
}
