/* What the files of weft-rdma.so share. All state belongs to the endpoint's thread.
 *
 *   plugin.c      what is exported
 *   inspect.c     the devices of this machine
 *   endpoint.c    endpoints, registered memory, the event loop, deadlines
 *   rail.c        one device: its queues, receive buffers, completions
 *   connect.c     making connections with the connection manager
 *   channel.c     what goes out and comes in on a channel
 *   end.c         how a channel ends, and the reasons in words
 *
 * A rail is a device that the endpoint uses. A channel has one lane per rail it uses: a queue pair there. Frames,
 * immediates and what steers a channel go over lane 0, in order; large puts are striped over all lanes. A lane's
 * completions, events of the connection manager and timers only note what happened and mark the channel dirty; its end
 * is called back from rdma_settle, reached from the event loop and from poll. Functions of the table never call back.
 *
 * Receives. Each rail has pools of receive buffers behind a shared receive queue. A channel gets a fixed part of a pool
 * when it is made: depth for frames and immediates, plus RDMA_RESERVE for what steers it. It tells the other side, who
 * never has more under way; so a pool cannot run empty, whatever the others do.
 *
 * Trust. Every queue pair of an endpoint reaches every window of it by key. So queue pairs are made without the right
 * to remote writes, and get it when net.h knows who is there.
 *
 * Order over lanes. The last write of a stripe on each lane carries the stripe's number as its immediate. On lane 0 a
 * BARRIER with that number goes ahead of what follows; the receiver holds back everything behind it until all lanes
 * have shown the number. So the receiver's own adapter vouches for the order of bytes and what tells of them. */
#ifndef WEFT_TRANSPORT_RDMA_RDMA_H
#define WEFT_TRANSPORT_RDMA_RDMA_H

#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>

#include "transport/rdma.h"
#include "transport/rdma_hello.h"
#include "transport/transport.h"

struct event;
struct evdns_base;
struct evdns_getaddrinfo_request;
struct rdma;
struct rdma_channel;
struct rdma_lane;
struct rdma_pool;

enum {
    RDMA_LANES = TP_RDMA_RAILS_MAX,
    /* Beyond depth: START, FIN, and two CREDITs, each of which gives back half of depth. */
    RDMA_RESERVE = TP_RDMA_RESERVE,
    RDMA_SLOTS_KEPT = 4, /* places in a send queue for what steers a channel, and for the mark that it has drained */
    RDMA_POOL = TP_RDMA_POOL, /* receive buffers that a pool begins with */
    RDMA_INLINE = 256,        /* bytes that go into the request itself, if the device can */
    RDMA_BUCKETS = 256,
};

#define RDMA_STRIPE_MIN ((size_t)128 << 10) /* smaller puts take one lane, unless the configuration says otherwise */
#define RDMA_SEGMENT ((size_t)1 << 20)      /* longest single write: bounds how long a lane is kept */

/* Why a channel ends over which a write came before trust. */
#define RDMA_WROTE_EARLY "the other side wrote before it had proved who it is"

/* In the top bits of the immediate with every send; credits that are given back in the others. */
enum rdma_type {
    RDMA_FRAME = 1,
    RDMA_CREDIT = 2,
    RDMA_FIN = 3,
    RDMA_START = 4,   /* one byte: bits of the lanes in use */
    RDMA_BARRIER = 5, /* 4 bytes, little-endian: a stripe's number */
};
#define RDMA_TYPE_SHIFT 28
#define RDMA_CREDITS_MASK ((UINT32_C(1) << RDMA_TYPE_SHIFT) - 1)

/* First in what a connection id's context points to. */
enum rdma_owner { RDMA_LISTENER, RDMA_LANE };

struct rdma_buffer {
    struct rdma_pool *pool;
    uint8_t *bytes;
};

struct rdma_pool {
    struct rdma_pool *next;
    struct rdma_rail *rail;
    struct ibv_srq *srq;
    struct ibv_mr *mr;
    uint8_t *memory;
    int size, promised; /* buffers; how many channels have of them */
    struct rdma_buffer buffer[];
};

struct rdma_rail {
    enum rdma_owner owner; /* RDMA_LISTENER */
    struct rdma *ep;
    int index;
    char name[TP_RDMA_NAME_TEXT];
    uint8_t address[16];
    uint8_t port;
    int gid_index;
    int mtu;
    size_t segment; /* longest write, bytes */
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_comp_channel *events;
    struct ibv_cq *cq;
    int cq_used; /* completions that could be there at a time */
    unsigned unacked;
    bool dead; /* the device reported a fatal error */
    bool port_down;
    bool armed; /* the next completion raises an event */
    struct event *on_cq, *on_async;
    struct rdma_pool *pools;
    struct rdma_cm_id *listener;
    struct rdma_lane *by_qpn[RDMA_BUCKETS];
};

enum rdma_wr_kind {
    RDMA_WR_STEER,
    RDMA_WR_FRAME,
    RDMA_WR_PART, /* of a put */
    RDMA_WR_LAST, /* of a put on this lane */
    RDMA_WR_DRAIN,
};

/* A request in a send queue. */
struct rdma_wr {
    struct rdma_lane *lane;
    uint32_t seq;
    enum rdma_wr_kind kind;
    int slot; /* of the send buffer, -1 none */
    struct rdma_out *put;
    bool signalled;
};

enum rdma_lane_state { RDMA_NONE, RDMA_RESOLVING, RDMA_ROUTING, RDMA_CONNECTING, RDMA_UP };

struct rdma_lane {
    enum rdma_owner owner; /* RDMA_LANE */
    struct rdma_channel *channel;
    struct rdma_rail *rail;
    int index;
    enum rdma_lane_state state;
    struct sockaddr_in6 to; /* where it is dialled; an IPv4 address may be in it */
    struct rdma_lane *next_by_qpn;
    struct rdma_cm_id *id;
    struct ibv_qp *qp;
    struct rdma_pool *pool;
    int promised; /* buffers of the pool */
    int cq_share;
    struct rdma_wr *ring;
    uint32_t depth, head, tail; /* of the ring; head - tail requests are under way */
    uint32_t unsignalled;       /* since the last one that reports */
    uint32_t reporting;         /* under way that report */
    uint32_t inline_max;
    uint32_t stripe_seen;
    bool drained, last_receive;
};

enum rdma_out_kind { RDMA_OUT_FRAME, RDMA_OUT_PUT };

/* What waits to be posted; a put also until it is done. */
struct rdma_out {
    struct rdma_out *next, *next_put;
    enum rdma_out_kind kind;
    int slot; /* FRAME */
    uint32_t size;
    struct tp_put put;
    struct tp_rdma_window window;
    int lanes;                              /* over which it goes */
    size_t at[RDMA_LANES], end[RDMA_LANES]; /* of each lane's part; at: posted up to there */
    int next_lane;
    bool barrier_sent, posted;
    uint32_t stripe;
    int left; /* lanes whose last write has not completed */
    int status;
};

/* A receive that waits behind a barrier. */
struct rdma_held {
    struct rdma_buffer *buffer;
    uint32_t immediate, size;
    bool written; /* a put's immediate */
};

enum rdma_channel_state { RDMA_OPENING, RDMA_OPEN, RDMA_ENDING };

struct rdma_channel {
    struct tp_channel base;
    struct rdma_channel *next, *next_dirty;
    bool dirty;
    bool told; /* somebody above knows it: CLOSED is owed */
    enum rdma_channel_state state;
    uint64_t id;
    struct sockaddr_in6 to; /* or an IPv4 one in it */
    struct evdns_getaddrinfo_request *lookup;
    int lanes; /* lanes that were begun; a bit of lanes_up for each that is up */
    uint32_t lanes_up, lanes_failed;
    struct tp_rdma_reply reply;
    struct rdma_lane lane[RDMA_LANES];
    /* out */
    uint32_t credits, owed; /* may be sent; to be given back */
    struct rdma_out *queue, **queue_tail, *puts, **puts_tail;
    uint32_t queued, puts_under_way;
    uint8_t *slab; /* send buffers, made when the first one is needed */
    struct ibv_mr *slab_mr;
    int *slots, free_slots;
    uint32_t stripes;
    bool starved, finishing, fin_sent, fin_done, fin_seen;
    /* in */
    struct rdma_held *held;
    uint32_t held_first, held_count;
    uint32_t stripe_awaited; /* 0: none */
    /* time */
    int64_t heard, deadline;
    int64_t lanes_by; /* dialling: lanes that are not up by then are done without */
    int64_t drained_at;
    /* the end, when it is known and not yet reported */
    int failed;
    int put_error;
    char why[TP_RDMA_WHY_TEXT];
};

struct tp_region {
    struct tp_region *next;
    uint8_t *base;
    size_t size, piece;
    int pieces;
    struct ibv_mr *mr[TP_RDMA_RKEYS_MAX]; /* [piece * rails + rail] */
};

struct rdma {
    struct tp_endpoint base;
    struct tp_rdma_config config;
    char devices[256], address[64];
    uint32_t frame_max, depth;
    int64_t connect_ns, silence_ns;
    int rails; /* 0: not chosen yet */
    struct rdma_rail rail[RDMA_LANES];
    struct rdma_event_channel *cm;
    struct event *on_cm, *kick;
    struct evdns_base *dns;
    bool listening;
    struct rdma_channel *channels, *dirty;
    struct tp_region *regions;
    int64_t due;      /* nothing is due before */
    int64_t taken_at; /* when completions were last taken */
    bool in_turn;     /* a turn of the dirty channels follows anyway */
};

static inline struct rdma *rdma_of(const struct rdma_channel *c)
{
    return (struct rdma *)c->base.endpoint;
}

static inline int64_t rdma_now(const struct rdma *ep)
{
    return ep->base.host.now(ep->base.host.ctx);
}

static inline uint32_t rdma_lane_used(const struct rdma_lane *l)
{
    return l->head - l->tail;
}

/* inspect.c */
int tp_rdma_inspect(struct tp_rdma_facts *out, struct cfg_error *err);

/* endpoint.c */
extern const struct tp_ops tp_rdma_ops;
/* Chooses and opens the rails, once. address: what is listened at, or NULL. */
int rdma_rails(struct rdma *ep, const char *address, struct cfg_error *err);
/* poll must look at the time at `at`. */
void rdma_due(struct rdma *ep, int64_t at);
/* The channel has something to do; its turn comes from the event loop, soon. */
void rdma_mark(struct rdma_channel *c);
/* A call of rdma_turn follows: what is marked until then needs no turn of its own. */
void rdma_before_turn(struct rdma *ep);
/* Gives every channel that is marked its turn. Calls back. */
void rdma_turn(struct rdma *ep);

/* rail.c */
int rdma_rail_open(struct rdma_rail *r, const struct tp_rdma_device *d, const struct tp_rdma_rail *chosen,
                   struct cfg_error *err);
void rdma_rail_close(struct rdma_rail *r);
/* Takes what has completed. Returns whether there was anything. */
bool rdma_rail_take(struct rdma_rail *r);
/* The next completion raises an event. What came before it did is taken; returns whether there was anything. */
bool rdma_rail_arm(struct rdma_rail *r);
/* A part of a pool and of the completion queue, and a queue pair in state INIT, for a lane. */
int rdma_lane_make(struct rdma_lane *l, struct rdma_rail *r, struct cfg_error *err);
/* Destroys queue pair and connection, and gives the parts back. Nothing of the other side lands after it. */
void rdma_lane_free(struct rdma_lane *l);
/* From now on the other side writes to this side's windows. 0 or a negative errno. */
int rdma_lane_trust(struct rdma_lane *l);
/* Gives a part of what was promised back, when both sides agreed on less. */
void rdma_lane_shrink(struct rdma_lane *l, int receives);
void rdma_buffer_back(struct rdma_buffer *b);
/* "cannot allocate ...": with the limit on locked memory where that may be it. */
int rdma_memory_error(struct cfg_error *err, int code, const char *what, const char *device, uint64_t bytes);

/* connect.c */
int rdma_listen_at(struct tp_endpoint *base, const char *address, char bound[TP_ADDRESS_TEXT], struct cfg_error *err);
int rdma_dial(struct tp_endpoint *base, const char *address, enum tp_class class, void *user, struct tp_channel **out,
              struct cfg_error *err);
/* Takes what the connection manager has to say. */
void rdma_cm_take(struct rdma *ep);
/* Ends the lanes from n on; they were begun, but are not used. */
void rdma_lanes_trim(struct rdma_channel *c, int n);
/* When all lanes of a dialled channel are up or have failed, goes on with those that are. */
void rdma_lanes_ready(struct rdma_channel *c);

/* channel.c */
struct rdma_channel *rdma_channel_new(struct rdma *ep, enum tp_class class);
/* Without callbacks; everything that it has is given back. */
void rdma_channel_free(struct rdma_channel *c);
int rdma_send(struct tp_channel *base, const struct iovec *part, int n);
int rdma_put(struct tp_channel *base, const struct tp_put *p);
int rdma_trust(struct tp_channel *base);
void rdma_finish(struct tp_channel *base);
/* Posts a send that steers the channel. False: no place, try again. */
bool rdma_steer(struct rdma_channel *c, enum rdma_type type, const void *bytes, size_t size);
void rdma_received(struct rdma_lane *l, const struct ibv_wc *wc, struct rdma_buffer *b);
void rdma_sent(struct rdma_wr *wr, const struct ibv_wc *wc);
/* Posts what waits, gives credits back, says FIN when it is time. */
void rdma_channel_work(struct rdma_channel *c);
/* Calls back for puts that are done, in order. */
void rdma_puts_done(struct rdma_channel *c);

/* end.c */
/* The channel will end with this; the first reason counts. */
void rdma_fail(struct rdma_channel *c, int reason, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* A completion with an error: notes the reason in words. */
void rdma_fail_completion(struct rdma_lane *l, const struct ibv_wc *wc, const struct rdma_wr *wr);
void rdma_abort(struct tp_channel *base);
/* One turn of a channel; it may be gone afterwards. */
void rdma_settle(struct rdma_channel *c);
/* Looks at a channel's deadlines. Returns when it wants to be looked at again. */
int64_t rdma_deadlines(struct rdma_channel *c, int64_t now);

#endif
