/* The tier of the kv nodes, as a process that uses them sees it: one of the tiers (kvtiers/tier.h) of its tier_store
 * actor, in whose name it talks to the kv_node actors of other processes (kv_node.h).
 *
 * A block belongs to one node (kvtiers/placement.h) of those that are there now. A node that is lost, draining, or late
 * is not there: its blocks are misses, and new ones go to the nodes next in line, until it is back. Nothing waits
 * without a deadline: a lookup that is not answered in find_ns, a read that brings nothing for quiet_ns, a store that
 * is not answered in quiet_ns end as misses, and that node is left out for a while that doubles with each further
 * failure.
 *
 * Rows come in messages, or, where the provider writes into remote memory by itself, in slots of a window that are lent
 * to the node with the read. In either case they are copied from there into the pages of the read, and verified in
 * these by checksums that are seeded with key and source; so what comes late finds no read any more and touches
 * nothing. A slot is lent until the request that lent it has ended: the node has no write under way then, or is lost
 * with its connection. Only when a node says that a write failed, the connection is fenced first. */
#ifndef WEFT_ACTORS_TIER_NODES_H
#define WEFT_ACTORS_TIER_NODES_H

#include "actors/runtime/runtime.h"
#include "config/config.h"
#include "kvtiers/tier.h"

enum { ACT_KV_NODES_MAX = CFG_KV_NODES_MAX };

struct act_nodes_arg {
    struct kv_layout layout;
    struct {
        uint16_t number; /* of the node, as in NODE_UP */
        char name[CFG_NAME_TEXT];
    } node[ACT_KV_NODES_MAX];
    int n;
    const struct act_addr *link; /* tells of nodes that come and go; nobody: no other nodes */
    const struct act_addr *here; /* the kv_node actor of this process, which is node[0] then; nobody: none */
    int64_t find_ns, quiet_ns;
    size_t store_bytes; /* of blocks on their way to nodes, at most */
    uint8_t *window;    /* memory that nodes may write, under that id; NULL: bytes come in messages */
    size_t window_bytes;
    uint32_t window_id;
    struct act_log *log;
};

/* arg is copied. The tier does nothing until act_nodes_start. */
int act_nodes_new(const struct act_nodes_arg *arg, struct kv_tier **out, struct cfg_error *err);

/* For the actor that has the tier. The tier speaks as self until act_nodes_stop, which ends everything under way. */
int act_nodes_start(struct kv_tier *t, struct act_self *self);
/* A message to the actor that may be the tier's. */
void act_nodes_message(struct kv_tier *t, struct act_msg *m);
void act_nodes_stop(struct kv_tier *t);

#endif
