/* The balancer: the actor of a group that decides which shard holds which experts. Each expert node has one; the finder
 * (expert_finder.h) says which of them is in charge, the others only know where the shards are.
 *
 * Sources tell it from time to time how often they used each expert; it keeps a moving average per layer, makes a plan
 * with EPLB, and when that is worth its loading (or a shard has gone or come back) rolls it out:
 *
 *   PLAN to every shard      each loads what it lacks beside its work, and says READY
 *   SWITCH to every source   each takes the map at the boundary of its next step, and says SWITCHED
 *   RETIRE to every shard    what no map needs any more is dropped
 *
 * Sources make themselves known by their first report; one that is behind is sent the present map. A shard or source
 * that ends during a roll-out counts as having answered; one that does not answer is waited for up to a deadline. No
 * step waits for any of this, and correctness rests on none of it: a shard computes any expert that it is asked for.
 *
 * A balancer that was restarted, or that is in charge because the one before is gone, knows no map that was made since:
 * sources report to it at once, the first report that names a higher version makes it ask that source for its map, and
 * it goes on from there: whoever is behind gets that map, and when all have it the shards drop what it does not need. A
 * plan that was not rolled out is forgotten. No two balancers make the same version (`rank`), so two that take
 * themselves for the one in charge agree as soon as they see each other: the higher version stays. */
#ifndef WEFT_ACTORS_BALANCER_H
#define WEFT_ACTORS_BALANCER_H

#include "actors/exchange.h"
#include "actors/runtime/log.h"

/* What a roll-out did, for logs and tests. On the balancer's worker. */
struct act_balance {
    const struct act_map *map; /* in use from now on; valid during the call */
    int moved;                 /* experts that were loaded */
    double before, after;      /* busiest shard over the mean, by the load that the plan was made for */
    int shards, sources;       /* that answered */
};

struct act_balancer_arg {
    const struct act_experts *experts; /* shards and first map; outlives the actor */
    int slots;                         /* per layer and shard; 0: as the first map */
    int64_t interval_ns;               /* between two looks at the load; 0: 30 s */
    int64_t deadline_ns;               /* of one stage of a roll-out; 0: 60 s */
    double gain;                       /* see act_eplb_worth; 0: 0.1 */
    uint64_t least_pairs;              /* fewer since the last plan are no reason for another; 0: 64 per expert */
    int rank, ranks;                   /* versions that it makes leave this rest by `ranks`; 0, 0: any */
    struct act_log *log;               /* NULL: none */
    void (*changed)(void *ctx, const struct act_balance *b); /* NULL: none */
    void *ctx;
};

extern const struct act_behaviour act_balancer_behaviour;

#endif
