/* What the Decode actors say about themselves, added up. Of the io worker's thread, as all of struct gw_context. */
#include <stdlib.h>
#include <string.h>

#include "actors/gateway/gateway.h"

static struct gw_decode_part *find_part(struct gw_context *g, struct act_addr from)
{
    for (int i = 0; i < g->n_decode_parts; i++)
        if (g->decode_part[i].from.index == from.index && g->decode_part[i].from.peer == from.peer)
            return &g->decode_part[i];
    struct gw_decode_part *more = realloc(g->decode_part, ((size_t)g->n_decode_parts + 1) * sizeof *more);
    if (!more)
        return NULL;
    g->decode_part = more;
    more += g->n_decode_parts++;
    *more = (struct gw_decode_part){.from = from};
    return more;
}

static void add_totals(struct gw_decode_figures *sum, const struct gw_decode_figures *f)
{
    sum->steps += f->steps;
    sum->step_ns += f->step_ns;
    sum->step_sequences += f->step_sequences;
    sum->cancelled += f->cancelled;
    sum->parked += f->parked;
    sum->resumed += f->resumed;
    sum->drafted += f->drafted;
    sum->offered += f->offered;
    sum->accepted += f->accepted;
    sum->emitted += f->emitted;
    sum->request_steps += f->request_steps;
    sum->undrafted += f->undrafted;
    sum->probes += f->probes;
    sum->planned_ns += f->planned_ns;
    sum->planned_took_ns += f->planned_took_ns;
    for (int k = 0; k < GW_DRAFT_PLACES; k++) {
        sum->offered_at[k] += f->offered_at[k];
        sum->accepted_at[k] += f->accepted_at[k];
    }
}

static void add_present(struct gw_decode_figures *sum, const struct gw_decode_figures *f)
{
    sum->running += f->running;
    sum->reserved += f->reserved;
    sum->parked_now += f->parked_now;
    sum->batch += f->batch;
    sum->lease += f->lease;
    if (f->last_step_us > sum->last_step_us)
        sum->last_step_us = f->last_step_us;
    if (f->places > sum->places)
        sum->places = f->places;
}

void gw_take_figures(struct gw_context *g, struct act_msg *m)
{
    const struct act_b_decode_stats *b = act_b_decode_stats(m);
    struct gw_decode_part *part = find_part(g, m->src);
    size_t bytes, places = act_p_decode_stats(m)->positions;
    const uint64_t *at = act_msg_tail(m, &bytes);
    if (!part || places > GW_DRAFT_PLACES || bytes < 2 * places * sizeof *at)
        return;
    if (!act_addr_equal(part->from, m->src)) {
        add_totals(&part->past, &part->now);
        part->from = m->src;
    }
    struct gw_decode_figures *f = &part->now, *sum = &g->metrics.decoder;
    *f = (struct gw_decode_figures){.steps = b->steps,
                                    .step_ns = b->step_ns,
                                    .step_sequences = b->step_sequences,
                                    .cancelled = b->cancelled,
                                    .parked = b->parked,
                                    .resumed = b->resumed,
                                    .drafted = b->drafted,
                                    .offered = b->offered,
                                    .accepted = b->accepted,
                                    .emitted = b->emitted,
                                    .request_steps = b->request_steps,
                                    .undrafted = b->undrafted,
                                    .probes = b->probes,
                                    .planned_ns = b->planned_ns,
                                    .planned_took_ns = b->planned_took_ns,
                                    .running = b->running,
                                    .reserved = b->reserved,
                                    .parked_now = b->parked_now,
                                    .batch = b->batch,
                                    .last_step_us = b->last_step_us,
                                    .lease = b->lease,
                                    .places = (int)places};
    memcpy(f->offered_at, at, places * sizeof *at);
    memcpy(f->accepted_at, at + places, places * sizeof *at);
    *sum = (struct gw_decode_figures){.places = sum->places};
    for (int i = 0; i < g->n_decode_parts; i++) {
        add_totals(sum, &g->decode_part[i].past);
        add_totals(sum, &g->decode_part[i].now);
        add_present(sum, &g->decode_part[i].now);
    }
}
