/* The device tier as an actor: the one caller of struct kv_device. Counts of pages change here only; elsewhere a page
 * is held because a message said so.
 *
 * What is not here may be below (tier_store.h): a lookup then goes on there, pages are taken for what it has, and the
 * answer names them while their extents are still on their way. Finished blocks are offered below, as many at a time as
 * the configuration allows; a page that is lent there is held until it comes back.
 *
 * A hit is clean blocks, as many as there are anywhere, and then, for who accepts them, those that were written behind
 * exactly these. */
#ifndef WEFT_ACTORS_TIER_DEVICE_H
#define WEFT_ACTORS_TIER_DEVICE_H

#include "actors/engine.h"

/* One block in the tails of KV_FOUND and KV_STORE. chain is the hash chain at the block's end (KV_STORE). */
struct act_tier_block {
    struct act_key chain;
    uint32_t page;
    uint32_t replayed; /* 0: clean, the rows of a cold run; else they were written behind a replay of so many tokens */
    int32_t hit;       /* before the end of a clean hit of this length */
    uint32_t zero;
};

/* `hit` of rows that were written behind more than one replay: they have no name, nobody keeps them. */
enum { ACT_HIT_MIXED = -1 };

/* KV_LOOKUP.flags */
enum { ACT_LOOKUP_CLEAN_ONLY = 1, ACT_LOOKUP_HERE_ONLY = 2 /* not in the tiers below */ };

/* arg: struct act_engine *. */
extern const struct act_behaviour act_tier_device_behaviour;

#endif
