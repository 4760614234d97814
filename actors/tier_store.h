/* The tiers below the device, as an actor on a tier worker: host, ssd, kv nodes, shared, in the order in which they are
 * asked. It alone calls them and their storages.
 *
 * Finished blocks come as TIER_STORE: they are copied into the host tier, which gives the pages back at once, and go on
 * from there to the durable tiers. A lookup takes what memory has from there, also behind gaps, and other blocks in
 * runs, from the first tier that has the next one; a read reports source by source. Pages that a read was given are
 * touched until its TIER_DONE, whatever became of who asked.
 *
 * A tier that hangs costs what was asked of it, and no more: while a read of it is late nothing is found in it, while a
 * store to it is late it is given nothing, and what waits for it pins at most its share of the host tier. */
#ifndef WEFT_ACTORS_TIER_STORE_H
#define WEFT_ACTORS_TIER_STORE_H

#include "actors/runtime/runtime.h"
#include "actors/tier_source.h"
#include "kvtiers/tier.h"

enum { ACT_TIERS_MAX = 4 };

/* KV_STATS.tier */
enum act_tier_kind {
    ACT_TIER_DEVICE,
    ACT_TIER_HOST,
    ACT_TIER_SSD,
    ACT_TIER_SHARED,
    ACT_TIER_NODES,
    ACT_TIER_SNAPSHOTS, /* of the device tier, in figures only */
    ACT_TIER_KINDS
};
/* Bits of KV_STATS.state. */
enum { ACT_TIER_READ_ONLY = 1, ACT_TIER_REBUILDING = 2, ACT_TIER_LATE = 4 };

/* One block in the tails of TIER_READ and TIER_STORE. */
struct act_tier_place {
    struct kv_key key;
    uint64_t address; /* of layout.block_bytes bytes */
    uint32_t taint;   /* enum kv_taint; TIER_STORE */
    int32_t hit;
};

/* What the actor starts with; outlives it. The tiers are the actor's while it lives. */
struct act_store {
    struct kv_layout layout;
    struct kv_tier *tier[ACT_TIERS_MAX]; /* [0]: host, always there */
    enum act_tier_kind kind[ACT_TIERS_MAX];
    int n_tiers;
    struct kv_tier *nodes;                        /* which of them is that of the kv nodes (tier_nodes.h); NULL: none */
    struct kv_storage *storage[ACT_STORAGES_MAX]; /* of the tiers; NULL: none */
    struct kv_clock clock;
    int64_t late_ns;                 /* a read or store under way for longer makes its tier late: see above; 0: never */
    int64_t hedge_ns;                /* a read that is later goes on at another tier too; 0: never */
    size_t hedge_bytes;              /* most memory for that */
    const struct act_addr *observer; /* gets KV_STATS twice a second; nobody: none */
};

/* arg: struct act_store *. */
extern const struct act_behaviour act_tier_store_behaviour;

#endif
