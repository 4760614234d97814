/* The Decode actor: every sequence that generates on this engine worker.
 *
 * Per call it takes its whole batch of messages (reservations, hand-offs, cancels, expert results), then runs one phase
 * of the round at hand and yields. Between rounds it admits, drops, parks and takes back sequences, so a round has no
 * effect before its commit and a cancelled sequence runs on as a ghost at most to the end of a round.
 *
 * Pages: it keeps a small lease of free ones. When a sequence needs one and there is none, the youngest sequence is
 * parked: its rows are copied aside, its pages go back, and it returns bit for bit when pages are free. */
#ifndef WEFT_ACTORS_DECODE_H
#define WEFT_ACTORS_DECODE_H

#include "actors/engine.h"

/* Totals since start; the observer of struct act_engine gets them as DECODE_STATS. */
struct act_decode_stats {
    uint64_t rounds, requests, cancelled, parked, resumed, moved;
    uint64_t round_ns, round_streams; /* time in rounds; sequences of all rounds together */
    uint32_t last_round_us, batch;    /* of the last round */
    struct mdl_counters tokens;       /* of sequences that have ended */
};

/* arg: struct act_engine *. */
extern const struct act_behaviour act_decode_behaviour;

#endif
