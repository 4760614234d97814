/* The Landing actor: where sequences of Prefill actors of other processes arrive. One in a process with Decode actors,
 * on their worker; to the outside it is the Decode of this process: Routers name it, RESERVE and CANCEL come to it, and
 * it reports the load of all Decode actors behind it.
 *
 * A RESERVE becomes a place at the Decode with the fewest sequences and pages of the device tier, then a ticket
 * (ticket.h) under which rows are written. Blocks of the prompt that the tier has from this node's own history are part
 * of it and are not written: clean ones, and no more than the writer said it has use for, so that the rows are those
 * that it would write. When running sequences lack pages, tickets that nothing was written under are taken back before
 * one of them is parked; their writers ask again. A ready ticket becomes a sequence: in form full it goes to Decode at
 * once; in the other forms a Prefill actor of this process (`replay`) computes first what is missing. Pages of a ticket
 * that was given up are in quarantine until its writer says that nothing more comes, or until the connection that the
 * ticket names is gone: one-sided writes do not ask whether the ticket still holds. A fence costs the other tickets of
 * that connection, too; they are retried over the next. */
#ifndef WEFT_ACTORS_LANDING_H
#define WEFT_ACTORS_LANDING_H

#include "actors/engine.h"

/* Totals since they were zeroed; for tests and metrics. */
struct act_landing_stats {
    uint64_t granted, refused, taken, failed, revoked, fenced, stale;
    uint64_t held; /* blocks of granted tickets that were here already */
    int open;      /* tickets */
};

struct act_landing_arg {
    const struct act_engine *engine; /* tier and decode list, as they are at start */
    struct act_addr replay;          /* a Prefill actor that Routers do not know; nobody: form full only */
    const struct act_addr *router;   /* of this process, gets LOAD; may change until the runtime starts; NULL: none */
    struct act_landing_stats *stats; /* of the Landing's worker; NULL: nobody wants them */
};

/* arg: struct act_landing_arg *. */
extern const struct act_behaviour act_landing_behaviour;

#endif
