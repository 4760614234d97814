/* The link: the actor of an io worker through which this process reaches the others. It owns the net (transport/net.h)
 * and is the route of every incarnation that is up (runtime/peers.h).
 *
 * Messages. What an actor sends to an address of another node comes to the link, is encoded (runtime/wire.h) and sent;
 * there it is delivered with its source. A request has exactly one end also when the node is lost: its reply, its
 * return (nobody was there), or a return marked ACT_MSG_ABANDONED (the node was lost after it had left). A node that is
 * there and does not answer is no reason to wait for ever: at its deadline, or after call_ns, a request comes back
 * marked ACT_MSG_LATE too, and an answer that comes later goes back to who sent it. Messages of one class between two
 * actors keep their order; classes are apart: EXPERT_* go over `expert`; KV_*, SNAPSHOT, REMOTE_ROWS and REMOTE_STORE
 * (the hand-off's KV_READY too) over `kv`; everything else over `control`.
 *
 * Directory. Each node tells the others which of its actors can be addressed (struct act_node_actor). Who wants to know
 * sends NODES_WATCH and gets NODE_UP when a node is up on all classes (again when its list changes: it replaces the one
 * before) and NODE_DOWN when it is lost.
 *
 * Puts. Memory that others may write, or that is written from, is a window, registered before start under an id.
 * act_link_put writes ranges of a window of this node into ranges of one of another node; with rdma neither side's
 * threads touch the bytes. The answer, LINK_PUT_DONE, comes when they are there; or with -EINVAL or -ENOMEM when the
 * put cannot be made (nothing of it is under way any more, and the connection goes on); or with any other status when
 * the connection has ended. An immediate tells somebody there: its top four bits choose whom (port, who gets
 * LINK_IMMEDIATE; a port with several actors takes eight more), the others are the writer's.
 *
 * Who lends memory to a writer takes it back in one of three cases only: the writer said that its puts are done; the
 * connection under which it was lent has ended (NODE_CLASS with up 0, or NODE_DOWN); LINK_FENCE was answered. That is
 * enough when the writer names the connection's generation in every put, because a put that was late for one connection
 * is never made over the next. Both sides count generations alike.
 *
 * Tools (weft status, drain, check) ask over authenticated connections; server.c answers. */
#ifndef WEFT_ACTORS_LINK_H
#define WEFT_ACTORS_LINK_H

#include "actors/runtime/runtime.h"
#include "transport/net.h"

enum {
    ACT_LINK_PEERS_MAX = TP_PEERS_MAX,
    ACT_LINK_ACTORS_MAX = 512,
    ACT_LINK_WINDOWS_MAX = 8,
    ACT_LINK_PORTS = 16,
    ACT_LINK_WITH_IMMEDIATE = 1, /* LINK_PUT carries one */
    ACT_LINK_RANGES_MAX = 1 << 16,
    ACT_WATCH_CLASSES = 1, /* NODES_WATCH: NODE_CLASS too */
};

/* Windows that every node has which has the memory. */
enum act_link_window_id {
    ACT_WINDOW_PAGES = 1, /* the device tier's pages, one after the other */
    ACT_WINDOW_POOL,      /* of a kv node: where its puts come from */
    ACT_WINDOW_SLOTS,     /* where kv nodes put what they were asked for */
    /* Of the expert exchange (slots.h): of a node that runs steps, of a node with shards. */
    ACT_WINDOW_RESULTS,
    ACT_WINDOW_DISPATCHES,
};

/* What the ports of TP_CLASS_KV are, and of TP_CLASS_EXPERT. */
enum act_link_port {
    ACT_PORT_LANDING = 1, /* writes of tickets (landing.h) */
    ACT_PORT_SHARDS = 1,  /* dispatches, by local number of the shard (slots.h) */
    ACT_PORT_SOURCES = 2, /* results, by place of the source */
};

/* A port with several actors: bits 20 to 27 of an immediate choose one. */
struct act_link_fan {
    const struct act_addr *who; /* outlives the link; NULL: it is none */
    int n;
};

/* What an actor is, for the directory. a and b mean what the kind says. */
enum act_node_kind {
    ACT_NODE_LINK = 1,
    ACT_NODE_GATEWAY = 2,
    ACT_NODE_PREFILL = 3,
    ACT_NODE_DECODE = 4,
    ACT_NODE_TIER = 5,   /* the device tier */
    ACT_NODE_EXPERT = 6, /* a: index of the shard in its group; b: shards of the group */
    ACT_NODE_KV = 7,     /* tiers that others may use */
    ACT_NODE_ROUTER = 8,
    ACT_NODE_BALANCER = 9,
    ACT_NODE_SLOTS =
        10, /* a, b: low and high half of the fingerprint of its slots (slots.h); the address is the link's */
};

struct act_node_actor {
    uint32_t kind, a, b;
    struct act_addr addr;
};

struct act_link_peer {
    char name[TP_NAME_TEXT];
    uint16_t number;
    char address[TP_ADDRESS_TEXT];
};

struct act_link_window {
    uint32_t id;
    void *base;
    size_t size;
};

/* arg of the actor: everything is set before the runtime starts and outlives it, except peers. */
struct act_link_arg {
    struct tp_net_config net;     /* ops, provider, self, secret, times; the rest is the link's */
    char listen[TP_ADDRESS_TEXT]; /* "": accepts nobody */
    struct act_link_peer *peer;   /* on start, and again on RELOAD (under lock of whoever set reload) */
    int n_peers;
    struct act_link_window window[ACT_LINK_WINDOWS_MAX];
    int n_windows;
    struct act_node_actor own[ACT_LINK_ACTORS_MAX]; /* the directory of this node; before the runtime starts */
    int n_own;
    struct act_addr port[TP_CLASSES][ACT_LINK_PORTS]; /* who gets LINK_IMMEDIATE; nobody: it is dropped and counted */
    struct act_link_fan fan[TP_CLASSES][ACT_LINK_PORTS]; /* or who of these */
    struct act_log *log;
    void *ctx; /* of the functions below; thread of the io worker */
    /* The node list as it is now, for RELOAD; NULL: it does not change. The caller copies at most max. */
    int (*reload)(void *ctx, struct act_link_peer *out, int max);
    /* The answer to a tool's question, a text that the link frees; NULL: there is none. */
    char *(*asked)(void *ctx, const char *question);
    /* The link has ended by itself: the node is cut off. May be NULL. */
    void (*failed)(void *ctx, int reason);
    int64_t call_ns;  /* a request without a deadline has its end after so long; 0: 120 s */
    int64_t leave_ns; /* a node that was taken off the list has this long to drain and end */
    int64_t spin_ns;  /* longest time that the worker looks for what comes before it sleeps; 0: none */
    struct cfg_error *start_error;
    char bound[TP_ADDRESS_TEXT]; /* where it listens; set on start */
    struct act_self *self;       /* the actor, set on start; for act_link_peer_info */
};

extern const struct act_behaviour act_link_behaviour;

struct act_put_range {
    uint64_t from, to, size; /* offsets in the two windows */
};

struct act_put {
    uint16_t peer; /* in addresses */
    uint16_t class;
    uint32_t generation; /* the connection that it must go over; 0: any */
    uint32_t from_window, to_window;
    bool with_immediate; /* arrives when the bytes of all ranges are there */
    uint32_t immediate;
    uint64_t request; /* of the answer */
    uint16_t attempt;
};

/* Asks the link to write n ranges, in this order; one answer, LINK_PUT_DONE, follows. Until then the bytes must not
 * change. Puts of one node and class keep their order. -EAGAIN, -ENOMEM: could not ask. Any actor. */
int act_link_put(struct act_self *self, struct act_addr link, const struct act_put *put,
                 const struct act_put_range *range, int n);

/* The node's name, of NODE_UP; "": its sender gave none. */
void act_node_name(struct act_msg *m, char out[TP_NAME_TEXT]);

/* What the link knows about a node, for metrics and status; on the io worker's thread. false: no such index. */
bool act_link_peer_info(struct act_self *self, int index, struct tp_peer_info *out, int *calls);
/* What has crossed so far, of a class; there as well. */
void act_link_traffic(struct act_self *self, enum tp_class class, struct tp_traffic *out);
/* What the transport holds now; there as well. */
void act_link_held(struct act_self *self, struct tp_held *out);

#endif
