/* How long requests to a tier take, as histograms: plain counts that one thread owns and others get copies of, in
 * messages. Kept by the actor of the tiers below the device (tier_store.c), shown by the gateway (metrics_tiers.c). */
#ifndef WEFT_ACTORS_TIER_TIMES_H
#define WEFT_ACTORS_TIER_TIMES_H

#include <stdint.h>

enum act_tier_verb {
    ACT_TIER_LOOKUP, /* from the question to the answer */
    ACT_TIER_FIRST,  /* of a read, until the rows of the first source layer are there */
    ACT_TIER_WHOLE,  /* of a read, until all that comes has come */
    ACT_TIER_KEEP,   /* of a store; until it is durable where the tier is */
    ACT_TIER_VERBS,
};

enum { ACT_TIMES_BOUNDS = 20 };

/* Upper bounds in nanoseconds, ascending. */
extern const int64_t act_times_bound[ACT_TIMES_BOUNDS];

struct act_times {
    uint64_t bucket[ACT_TIMES_BOUNDS]; /* not more than the bound and more than the one before */
    uint64_t count, sum_ns;
};

/* One more request that took so long. */
void act_times_add(struct act_times *t, int64_t ns);

#endif
