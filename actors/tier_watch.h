/* What the tiers of this process last said about themselves, for `weft status` and /metrics: a small actor that gets
 * KV_STATS and TIER_TIMES, and what the gateway gets of them. They and whoever reads the figures are on the io worker.
 */
#ifndef WEFT_ACTORS_TIER_WATCH_H
#define WEFT_ACTORS_TIER_WATCH_H

#include <jansson.h>

#include "actors/runtime/runtime.h"
#include "actors/tier_times.h"

enum { ACT_TIER_WATCH_MAX = 16 };

struct act_tier_watch {
    struct {
        struct act_addr who;
        uint32_t tier; /* enum act_tier_kind */
        struct act_b_kv_stats last;
        struct act_times times[ACT_TIER_VERBS];
    } row[ACT_TIER_WATCH_MAX];
    int n;
};

/* arg: struct act_tier_watch *, zeroed. */
extern const struct act_behaviour act_tier_watch_behaviour;

/* KV_STATS or TIER_TIMES that somebody else on the io worker got. */
void act_tier_watch_take(struct act_tier_watch *w, struct act_msg *m);

/* A new array of objects, the caller's; NULL: no memory. store: the actor whose tiers are served to other nodes. */
json_t *act_tier_watch_json(const struct act_tier_watch *w, struct act_addr store);

#endif
