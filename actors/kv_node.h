/* The role kv: the actor that serves this process's host and ssd tiers (a tier_store of its own) to the tier_nodes of
 * others. It lives on the tier worker beside that store and keeps nothing itself but what is under way:
 *
 *   REMOTE_FIND   goes on to the store.
 *   REMOTE_READ   gets room in a buffer pool, is read into it, and goes out as REMOTE_ROWS in the order of sources
 * while later ones are still being read; few of them are under way per reader at a time. REMOTE_WANT   a pass of the
 * reader's waits: reads go in the order of kvtiers/tier.h. REMOTE_STORE  is verified, then copied into the host tier,
 * from where it goes on to the ssd tier.
 *
 * Where the reader lends slots of a window of its own, rows are put there from the pool, and REMOTE_ROWS has their sums
 * only; else the message has the rows.
 *
 * Nothing here waits for a reader: what a reader does not take within `patience` is given up, what finds no room in the
 * queue is refused, and who asked hears of it by a status. A node that drains refuses everything new. */
#ifndef WEFT_ACTORS_KV_NODE_H
#define WEFT_ACTORS_KV_NODE_H

#include "actors/runtime/runtime.h"
#include "kvtiers/extent.h"

enum {
    ACT_REMOTE_SLOTS = 2,        /* pieces of a read that may be under way */
    ACT_REMOTE_READ_MAX = 32,    /* blocks of a REMOTE_READ */
    ACT_REMOTE_FIND_MAX = 4096,  /* blocks of a REMOTE_FIND */
    ACT_REMOTE_STORE_MAX = 16,   /* blocks of a REMOTE_STORE */
    ACT_REMOTE_PIECE = 512 << 10 /* bytes of extents in one REMOTE_ROWS, about */
};

/* A block in the tail of REMOTE_STORE. */
struct act_remote_block {
    struct act_key key;
    uint32_t taint; /* enum kv_taint */
    int32_t hit;
};

/* What is under way, after each turn of the actor. */
struct act_kv_node_stats {
    int findings, readings, waiting, keepings;
    int free; /* places of the pool */
    size_t keeping_bytes;
    uint64_t given_up; /* reads that their reader did not want, or did not take, any more */
};

/* What the actor starts with; outlives it. */
struct act_kv_node_arg {
    struct kv_layout layout;
    const struct act_addr *store; /* the tier_store of the tiers that are served */
    uint8_t *buffer;              /* [buffers] blocks, at least ACT_REMOTE_READ_MAX */
    int buffers;
    uint32_t window;             /* the buffer's, as a source of puts; 0: it has none */
    const struct act_addr *link; /* makes puts; nobody: there are none */
    size_t store_bytes;          /* of blocks that wait to be kept, at most */
    int64_t patience;            /* ns */
    struct act_log *log;
    const struct act_addr *observer; /* gets its FIGURES; NULL: nobody */
    struct act_kv_node_stats *stats; /* on the actor's worker; NULL: nobody wants to know */
};

extern const struct act_behaviour act_kv_node_behaviour;

#endif
