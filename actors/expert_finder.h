/* Where the expert shards of other nodes are: turns the link's NODE_UP, NODE_DOWN and NODE_CLASS into EXPERT_SHARD for
 * the sources of this process and its balancer, who ask once with EXPERT_FIND and are told of every change from then
 * on. Without it a source would find out about a dead node by its deadline only.
 *
 * Each expert node of a group has a balancer; the one of the first node of the list that is there is the one that
 * counts, for sources and for the balancers themselves. Nodes that do not see the same may take different ones for it,
 * for a time: balancer.h says why that harms nobody. */
#ifndef WEFT_ACTORS_EXPERT_FINDER_H
#define WEFT_ACTORS_EXPERT_FINDER_H

#include "actors/exchange.h"

enum { ACT_FINDER_NODES = 512 };

/* Everything is set before the runtime starts and outlives it. */
struct act_finder_arg {
    struct act_addr link;
    const struct act_experts *experts;
    bool member[ACT_FINDER_NODES];   /* by node number: an expert node of this group */
    int self;                        /* number of this node */
    const struct act_addr *balancer; /* of this node, as it is when the runtime runs; nobody: it has none */
};

extern const struct act_behaviour act_finder_behaviour;

#endif
