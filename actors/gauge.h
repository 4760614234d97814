/* What the Prefill and Decode actors of this node have to do, for those who ask from outside (weft status). An actor of
 * the io worker that asks them for their LOAD reports as Routers of other nodes do. */
#ifndef WEFT_ACTORS_GAUGE_H
#define WEFT_ACTORS_GAUGE_H

#include "actors/engine.h"

/* Everything but the reports is set before the runtime starts; the whole outlives it. The reports are read and written
 * on the io worker's thread only. A restarted actor's report is zero until its first one comes. */
struct act_gauge_arg {
    struct act_addr
        who[ACT_INSTANCES_MAX + 1];       /* Prefill actors, then the Landing, which reports for all Decode actors */
    unsigned role[ACT_INSTANCES_MAX + 1]; /* CFG_ROLE_PREFILL or CFG_ROLE_DECODE */
    struct act_b_load load[ACT_INSTANCES_MAX + 1];
    int n;
};

extern const struct act_behaviour act_gauge_behaviour;

/* The sum of the reports of one role. */
struct act_b_load act_gauge_sum(const struct act_gauge_arg *g, unsigned role);

#endif
