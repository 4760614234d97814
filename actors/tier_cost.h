/* What reading from a tier costs, as lately measured: time during which at least one read was under way, per byte that
 * came. So reads side by side share their time, and what fails counts only if bytes came with it.
 *
 * A tier whose reads are not worth it is not read, so nothing new is measured of it: while nothing is read the figure
 * halves every half minute, and sooner or later a read finds out how the tier is now.
 *
 * Times are ns of one clock that never goes back. One thread. */
#ifndef WEFT_ACTORS_TIER_COST_H
#define WEFT_ACTORS_TIER_COST_H

#include <stdint.h>

#define ACT_TIER_COST_HALF_LIFE INT64_C(30000000000)

struct act_tier_cost {
    double byte_ns;   /* 0: not known yet */
    int reading;      /* reads under way */
    int64_t since;    /* busy_ns counts to here while something is read, else from here on nothing was read */
    int64_t busy_ns;  /* not measured yet */
    uint64_t counted; /* bytes that were measured */
};

void act_tier_cost_began(struct act_tier_cost *c, int64_t now);
void act_tier_cost_ended(struct act_tier_cost *c, int64_t now);
/* bytes: that the tier has delivered in all. Called now and then. */
void act_tier_cost_measure(struct act_tier_cost *c, uint64_t bytes, int64_t now);
/* Instead of it while the tier hangs: what that takes says nothing of how the tier is once it is back. */
void act_tier_cost_skip(struct act_tier_cost *c, uint64_t bytes, int64_t now);

#endif
