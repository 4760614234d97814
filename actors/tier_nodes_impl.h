/* What tier_nodes.c (nodes, lookups), tier_nodes_read.c and tier_nodes_store.c share. Nobody else includes this. */
#ifndef WEFT_ACTORS_TIER_NODES_IMPL_H
#define WEFT_ACTORS_TIER_NODES_IMPL_H

#include "actors/kv_node.h"
#include "actors/tier_nodes.h"

struct remote_item;

struct remote_node {
    struct act_addr addr; /* nobody: it is not there */
    uint16_t peer;        /* its incarnation, in addresses */
    bool draining;
    int failures;                           /* in a row */
    int64_t not_before;                     /* left out until then */
    struct remote_item *queue, **queue_end; /* blocks that wait to be sent there */
    int batches;                            /* under way */
};

/* A lookup: one question to each node that has some of the keys. */
struct remote_find {
    struct remote_find *next;
    uint64_t id;
    struct remote_lookup *lookup;
    int node, n;
    int at[]; /* [n] places in the lookup */
};

struct remote_lookup {
    struct kv_tier_op *op;
    int count, left; /* leading blocks that nobody has missed yet; questions without an answer */
    int64_t deadline;
};

/* Slots of the window at a node, from a REMOTE_READ to its end, whatever has become of the read. */
struct remote_lease {
    struct remote_lease *next;
    uint64_t id; /* of the fetch */
    uint16_t peer;
    uint32_t generation;
    uint64_t fence; /* the request to the link that ends it; 0: none */
    int64_t until;  /* ns: then the connection is ended for it */
    int slot[ACT_REMOTE_SLOTS];
};

/* Blocks of a read that come from one node. */
struct remote_fetch {
    struct remote_fetch *next;
    uint64_t id;
    struct kv_tier_op *op;
    int node, n;
    int64_t deadline;
    struct remote_lease *lease; /* NULL: bytes come in messages */
    int got[KV_SOURCES_MAX];    /* blocks whose extent of this source is settled, in order */
    int at[ACT_REMOTE_READ_MAX];
};

/* Blocks of a store. */
struct remote_put {
    struct kv_tier_op *op;
    int left, status;
    int cut; /* the first block that was refused: those behind it are not sent any more */
};

struct remote_item {
    struct remote_item *next;
    struct remote_put *put;
    const struct kv_tier_block *block;
    int at; /* of the put */
};

/* A REMOTE_STORE that is under way. */
struct remote_batch {
    struct remote_batch *next;
    uint64_t id;
    int node, n;
    int64_t deadline;
    struct remote_item *items;
};

struct remote_tier {
    struct kv_tier base;
    struct act_nodes_arg arg;
    struct act_self *self; /* NULL: not started, or stopped */
    uint64_t layout, ids;
    uint64_t place_id[ACT_KV_NODES_MAX];
    struct remote_node node[ACT_KV_NODES_MAX];
    struct remote_find *finds;
    struct remote_fetch *fetches;
    struct remote_lease *leases;
    size_t slot_bytes;
    int *free_slot, n_free, n_slots;
    uint32_t generation[ACT_PEERS_MAX]; /* of the class kv, by peer; 0: not connected */
    struct remote_batch *batches;
    size_t store_bytes; /* queued and under way */
    struct kv_tier_stats stats;
};

/* tier_nodes.c */
/* Which node has, or shall have, the block; -1: none is there. there: of remote_there. */
int remote_owner(const struct remote_tier *t, const bool *there, const struct kv_key *key);
void remote_there(const struct remote_tier *t, bool there[ACT_KV_NODES_MAX]);
bool remote_is_there(const struct remote_tier *t, int node);
/* The node has failed: it is left out for a while. why: for the log. */
void remote_leave_out(struct remote_tier *t, int node, const char *why);
/* The node has done what it was asked. */
void remote_praise(struct remote_tier *t, int node);
/* A status that the node gave; takes note of what it says about the node. */
void remote_heard(struct remote_tier *t, int node, int status);

/* tier_nodes_read.c */
void remote_read(struct kv_tier *tier, struct kv_tier_op *op);
void remote_cancel(struct kv_tier *tier, struct kv_tier_op *op);
void remote_want(struct kv_tier *tier, struct kv_tier_op *op, int sources);
void remote_take_rows(struct remote_tier *t, struct act_msg *m);
/* why: the node failed, and how; NULL: it answered. */
void remote_take_done(struct remote_tier *t, uint64_t id, int status, const char *why);
/* The request that lent slots has ended. */
void remote_lease_end(struct remote_tier *t, uint64_t id, int status);
void remote_take_fence(struct remote_tier *t, uint64_t id);
int remote_slots_init(struct remote_tier *t);
void remote_read_tick(struct remote_tier *t, int64_t now);

/* tier_nodes_store.c */
void remote_store(struct kv_tier *tier, struct kv_tier_op *op);
void remote_take_stored(struct remote_tier *t, uint64_t id, int blocks, int status, const char *why);
void remote_store_tick(struct remote_tier *t, int64_t now);
/* What waits for this node is not kept. */
void remote_store_drop(struct remote_tier *t, int node, int status);

#endif
