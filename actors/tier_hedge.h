/* Reads that go on at another tier when the first one is late or fails. Part of the actor of the tiers below the device
 * (tier_store.h); its thread only.
 *
 * A hedged read looks like a read of one tier (kvtiers/tier.h): rows in ascending order of sources, then done, once.
 * Each tier that is asked reads into memory of its own, and what arrives first and proves itself is copied into the
 * caller's; so bytes of a tier that lost never reach it, however late they come. What has not begun of the others'
 * reads is cancelled; what has is waited for with that memory, not with the caller's. */
#ifndef WEFT_ACTORS_TIER_HEDGE_H
#define WEFT_ACTORS_TIER_HEDGE_H

#include "actors/tier_cost.h"
#include "kvtiers/tier.h"

enum { ACT_HEDGE_TIERS = 4 };

struct act_hedger_stats {
    uint64_t asked[ACT_HEDGE_TIERS]; /* blocks asked of this tier because another one was late, or failed */
    uint64_t won[ACT_HEDGE_TIERS];   /* blocks of these whose last source came from it */
    uint64_t blind;                  /* reads that were not hedged: too much memory in use */
};

struct act_hedge;

struct act_hedger {
    struct kv_layout layout;
    struct kv_clock clock;
    struct kv_tier *const *tier; /* [n_tiers]; index 0 is memory and is never asked */
    int n_tiers;
    int64_t after_ns;                 /* later than this is late, */
    const struct act_tier_cost *cost; /* [n_tiers] and later than twice what it should take by this; NULL: not known */
    size_t limit, used;
    struct act_hedge *first;
    int live; /* reads of tiers under way */
    /* For figures, may be NULL: a tier begins a read of n blocks; it has finished it, ok of them are whole. */
    void (*began)(void *ctx, int tier, int n);
    void (*ended)(void *ctx, int tier, int n, int ok, int status, int64_t ns);
    void *ctx;
    struct act_hedger_stats stats;
};

/* Begins op at tier `at`. Without memory for it, op is that tier's own. */
void act_hedge_read(struct act_hedger *h, int at, struct kv_tier_op *op);
/* As kv_tier_want, of a read that began with tier `at`. */
void act_hedge_want(struct act_hedger *h, int at, struct kv_tier_op *op, int sources);
/* Asks other tiers for what is late. The next time (ns of the clock) at which something may be late; INT64_MAX: none.
 */
int64_t act_hedge_turn(struct act_hedger *h);
/* Leaves alone what is under way: its ops are not ended, and a tier that ends its part later meets nothing of the
 * hedger's or the caller's. */
void act_hedge_stop(struct act_hedger *h);

#endif
