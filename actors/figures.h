/* Totals that actors report to the observer, the gateway of their process or what answers /metrics there: plain
 * counters since the actor's start, in the order that is given here for both sides. Figures are told, never asked for,
 * and decide nothing. */
#ifndef WEFT_ACTORS_FIGURES_H
#define WEFT_ACTORS_FIGURES_H

#include "actors/runtime/runtime.h"

/* FIGURES.kind, and what its counters are. */
enum act_figures_kind {
    ACT_FIGURES_PREFILL_EXCHANGE, /* struct act_exchange_counters of a Prefill actor */
    ACT_FIGURES_DECODE_EXCHANGE,  /* of a Decode actor */
    ACT_FIGURES_LANDING,          /* enum act_landing_figure */
    ACT_FIGURES_BLOCKS,           /* struct kv_life_times[KV_LIVES] of the device tier */
    ACT_FIGURES_SHARD,            /* enum act_shard_figure, of an expert shard */
    ACT_FIGURES_KV_NODE,          /* enum act_kv_node_figure */
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

enum act_shard_figure {
    ACT_SHARD_DISPATCHES,
    ACT_SHARD_ROWS,
    ACT_SHARD_PAIRS, /* rows times their experts here */
    ACT_SHARD_REFUSED,
    ACT_SHARD_LOADED,  /* experts, for a new map */
    ACT_SHARD_WAITING, /* dispatches now; the others only grow */
    ACT_SHARD_FIGURES,
};

enum act_kv_node_figure {
    ACT_KV_NODE_FINDS,
    ACT_KV_NODE_READS,
    ACT_KV_NODE_STORES,
    ACT_KV_NODE_FAILED, /* of all three, whatever for */
    ACT_KV_NODE_GIVEN_UP,
    ACT_KV_NODE_WAITING, /* reads without room, now */
    ACT_KV_NODE_KEEPING, /* bytes on their way into the tiers, now */
    ACT_KV_NODE_FIGURES,
};

/* How often whoever has no rhythm of its own reports. */
#define ACT_FIGURES_EVERY_NS INT64_C(500000000)

enum { ACT_FIGURES_MOST = 64 };

/* n counters; nothing happens without an observer. */
void act_figures_send(struct act_self *self, struct act_addr observer, enum act_figures_kind kind,
                      const uint64_t *counters, int n);

#endif
