/* EPLB: where replicas of experts go, from how often each expert was used.
 *
 * The published algorithm: per layer, hot experts get more copies (each next copy to the expert with the most load per
 * copy), copies are packed onto shards, each taking the same number, heaviest first to the lightest. When the experts
 * come in groups and the groups divide over the nodes, groups are packed onto nodes first and copies stay within a node
 * (hierarchical); otherwise all shards are one node and all experts one group (global).
 *
 * What the algorithm leaves open is here too: moving as little as possible from one plan to the next, and when a new
 * plan is worth its loading. Pure functions; loads are float32, equal loads keep their order. */
#ifndef WEFT_ACTORS_EPLB_H
#define WEFT_ACTORS_EPLB_H

#include "actors/expert_map.h"

struct act_eplb_shape {
    int layers, experts;
    int copies; /* slots of all shards together: a multiple of shards, at least experts */
    int groups; /* of experts; 1: none */
    int nodes, shards;
};

/* load [layers][experts]; out: expert of slot i of the layer [layers][copies], slots of a shard beside each other;
 * count (may be NULL): copies of an expert [layers][experts]. -EINVAL: the shape; -ENOMEM. */
int act_eplb_plan(const struct act_eplb_shape *shape, const float *load, int32_t *expert, int32_t *count);

/* The plan as a placement over `shards` shards, of which those in `gone` get nothing. When `before` is given (same
 * sizes), as little as possible is moved: what is there is repaired, with copies added and dropped and single experts
 * swapped, until the busiest shard is within 3 % of the plan's; where that does not do, or the plan moves no more, its
 * shards are renamed to those that hold most of it already. An expert stays in the slot it has. slots: per shard and
 * layer; more when the remaining shards need more to hold all experts. -EINVAL, -ENOMEM, -EHOSTDOWN: no shard is left.
 */
int act_eplb_place(uint32_t version, int layers, int experts, int shards, int slots, const struct act_shard_set *gone,
                   const float *load, const struct act_map *before, struct act_map **out);

/* Experts that a shard of `after` holds and did not hold in `before`, over all layers: what has to be loaded. */
int act_eplb_moves(const struct act_map *before, const struct act_map *after);

/* Load of the busiest shard over the mean of the shards in service, averaged over layers with load, when each expert's
 * load is spread evenly over its replicas. 1 is perfect; 1 when there is no load. */
double act_eplb_imbalance(const struct act_map *p, const struct act_shard_set *gone, const float *load);

/* Hysteresis: whether `after` should replace `before`. The busiest shard must get less busy by more than `gain` (0.1: a
 * tenth of the mean). */
bool act_eplb_worth(const struct act_map *before, const struct act_map *after, const struct act_shard_set *gone,
                    const float *load, double gain);

#endif
