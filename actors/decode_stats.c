#include <string.h>

#include "actors/decode_impl.h"

void dec_stats_add(struct decode *d, const struct dec_stream *s)
{
    mdl_counters_add(&d->stats.tokens, &s->run.counters);
}

void dec_stats_round_began(struct decode *d)
{
    d->round_began = act_now(d->self);
}

void dec_stats_round_ended(struct decode *d)
{
    int64_t ns = act_now(d->self) - d->round_began;
    d->stats.rounds++;
    d->stats.round_ns += (uint64_t)ns;
    d->stats.round_streams += (uint64_t)d->n_round;
    d->stats.batch = (uint32_t)d->n_round;
    d->stats.last_round_us = (uint32_t)(ns / 1000);
}

void dec_stats_send(struct decode *d)
{
    struct act_msg m;
    size_t bytes, places = (size_t)d->e->limits.draft;
    const struct act_decode_stats *t = &d->stats;
    const struct act_plan_counters *plan = &d->spec.plan.counters;
    if (act_msg_new(ACT_DECODE_STATS, d->e->observer, 2 * places * sizeof(uint64_t), &m))
        return;
    struct mdl_counters c = t->tokens;
    uint32_t state[DEC_STATES] = {0};
    for (int i = 0; i < d->e->limits.streams; i++) {
        const struct dec_stream *s = &d->stream[i];
        state[s->state]++;
        if (s->state != DEC_FREE)
            mdl_counters_add(&c, &s->run.counters);
    }
    act_p_decode_stats(&m)->positions = (uint32_t)places;
    *act_b_decode_stats(&m) = (struct act_b_decode_stats){.steps = t->rounds,
                                                          .step_ns = t->round_ns,
                                                          .step_sequences = t->round_streams,
                                                          .cancelled = t->cancelled,
                                                          .parked = t->parked,
                                                          .resumed = t->resumed,
                                                          .drafted = (uint64_t)c.drafted,
                                                          .offered = (uint64_t)c.offered,
                                                          .accepted = (uint64_t)c.accepted,
                                                          .emitted = (uint64_t)c.emitted,
                                                          .request_steps = (uint64_t)c.steps,
                                                          .undrafted = plan->skipped,
                                                          .probes = plan->probes,
                                                          .planned_ns = (uint64_t)plan->expected_ns,
                                                          .planned_took_ns = (uint64_t)plan->seen_ns,
                                                          .running = state[DEC_RUNNING],
                                                          .reserved = state[DEC_RESERVED],
                                                          .parked_now = state[DEC_PARKED],
                                                          .batch = state[DEC_RUNNING] ? t->batch : 0,
                                                          .last_step_us = t->last_round_us,
                                                          .lease = (uint32_t)d->n_lease};
    uint64_t *at = act_msg_tail(&m, &bytes);
    for (size_t i = 0; i < places; i++) {
        at[i] = (uint64_t)c.offered_at[i];
        at[places + i] = (uint64_t)c.accepted_at[i];
    }
    if (act_send(d->self, &m))
        act_msg_drop(&m);
}
