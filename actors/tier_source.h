/* What a tier worker sleeps on: the completions of its storages, and the wake-ups of the runtime. Completions call done
 * of their requests on the worker's thread. */
#ifndef WEFT_ACTORS_TIER_SOURCE_H
#define WEFT_ACTORS_TIER_SOURCE_H

#include "actors/runtime/world.h"
#include "kvtiers/storage.h"

enum {
    ACT_STORAGES_MAX = 4,
    ACT_SOURCE_KV = 2,
    ACT_SOURCE_ENGRAM = 3
}; /* the store of a node that computes has the first ones */

/* arg: struct act_tier_source_arg *, which outlives the worker. */
struct act_tier_source_arg {
    struct kv_storage *storage[ACT_STORAGES_MAX]; /* NULL: none */
};
extern const struct act_source_ops act_source_tier;

#endif
