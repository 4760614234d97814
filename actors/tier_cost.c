#include "actors/tier_cost.h"

#include <math.h>

#define NEWEST 0.25 /* weight of the newest measurement */

static void count_busy(struct act_tier_cost *c, int64_t now)
{
    if (!c->reading)
        return;
    c->busy_ns += now - c->since;
    c->since = now;
}

void act_tier_cost_began(struct act_tier_cost *c, int64_t now)
{
    if (!c->reading++)
        c->since = now;
}

void act_tier_cost_ended(struct act_tier_cost *c, int64_t now)
{
    count_busy(c, now);
    c->reading--;
}

void act_tier_cost_measure(struct act_tier_cost *c, uint64_t bytes, int64_t now)
{
    count_busy(c, now);
    if (bytes > c->counted) {
        double one = (double)c->busy_ns / (double)(bytes - c->counted);
        c->byte_ns += (one - c->byte_ns) * (c->byte_ns > 0 ? NEWEST : 1);
        c->counted = bytes;
        c->busy_ns = 0;
        c->since = now;
    } else if (!c->reading) {
        c->busy_ns = 0; /* reads that brought nothing say nothing of bytes */
        c->byte_ns *= exp2(-(double)(now - c->since) / (double)ACT_TIER_COST_HALF_LIFE);
        c->since = now;
    }
}

void act_tier_cost_skip(struct act_tier_cost *c, uint64_t bytes, int64_t now)
{
    c->busy_ns = 0;
    c->counted = bytes;
    c->since = now;
}
