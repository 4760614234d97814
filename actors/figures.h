/* Totals that actors report to the observer, the gateway of their process: plain counters since the actor's start, in
 * the order that is given here for both sides. Figures are told, never asked for, and decide nothing. */
#ifndef WEFT_ACTORS_FIGURES_H
#define WEFT_ACTORS_FIGURES_H

#include "actors/runtime/runtime.h"

/* FIGURES.kind, and what its counters are. */
enum act_figures_kind {
    ACT_FIGURES_PREFILL_EXCHANGE, /* struct act_exchange_counters of a Prefill actor */
    ACT_FIGURES_DECODE_EXCHANGE,  /* of a Decode actor */
    ACT_FIGURES_LANDING,          /* enum act_landing_figure */
    ACT_FIGURES_BLOCKS,           /* struct kv_life_times[KV_LIVES] of the device tier */
    ACT_FIGURES_KINDS,
};

enum act_landing_figure {
    ACT_LANDING_GRANTED,
    ACT_LANDING_REFUSED,
    ACT_LANDING_TAKEN,
    ACT_LANDING_FAILED,
    ACT_LANDING_REVOKED,
    ACT_LANDING_FENCED,
    ACT_LANDING_STALE,
    ACT_LANDING_HELD,
    ACT_LANDING_OPEN, /* tickets now; the others only grow */
    ACT_LANDING_FIGURES,
};

enum { ACT_FIGURES_MOST = 64 };

/* n counters; nothing happens without an observer. */
void act_figures_send(struct act_self *self, struct act_addr observer, enum act_figures_kind kind,
                      const uint64_t *counters, int n);

#endif
