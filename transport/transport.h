/* The transport's seam: how bytes cross between two endpoints, as a table of functions that every provider fills
 * (inproc, tcp, rdma, sim) and that the fault decorator wraps. Nodes, names, handshakes, reconnects and epochs are one
 * level up, in net.h, and are the same code for every provider; a provider moves frames and puts, and knows no node.
 *
 * Objects. An endpoint (struct tp_endpoint) is one process's end of one provider: its listener, its registered memory,
 * its channels. A channel (struct tp_channel) is one connection of one traffic class; with RDMA a queue pair, with TCP
 * a socket. Frames are opaque bytes, up to frame_max each. Puts write into a window of the other side. Larger messages
 * are cut into frames by net.h.
 *
 * Threads. Everything of an endpoint (its functions, its channels' functions, all callbacks) happens on one thread, the
 * one that owns the event loop in tp_host; only tp_host.wake may be called from others. Window memory is written by the
 * provider (or the adapter) at any time between registration and removal; it may be read on any thread after the
 * IMMEDIATE or FRAME that told of the bytes was handed over with the usual ordering (a message to another actor is).
 *
 * Callbacks come from poll, or from the event loop that tp_host.base is; never from inside another function of the
 * table, so a caller holds no half-changed state while it calls. Inside a callback every function may be called except
 * poll and close of the endpoint.
 *
 * Order. On one channel, frames arrive in the order of send. A frame that was sent after a put, and the immediate of a
 * put, arrive after the bytes of that put and of all puts before it are in the window. PUT_DONE comes in the order of
 * put. Between channels there is no order.
 *
 * Ends. A channel ends with CLOSED, its last callback, exactly once; before it, every put that was accepted has had its
 * PUT_DONE (with the error when it is unknown whether the bytes arrived). After CLOSED nothing that this channel's
 * other side wrote can still land in this side's windows: abort and CLOSED together are the fence of a ticket. The
 * channel is freed when that callback returns. */
#ifndef WEFT_TRANSPORT_TRANSPORT_H
#define WEFT_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "config/error.h"

struct event_base;
struct tp_channel;
struct tp_endpoint;
struct tp_ops;

/* What a channel is used for. Classes never share a connection, so a bulk write delays no cancel, and one class can be
 * fenced alone. */
enum tp_class {
    TP_CLASS_CONTROL, /* messages; the handshake */
    TP_CLASS_KV,      /* history: puts of pages, and the messages about them */
    TP_CLASS_EXPERT,  /* the expert exchange */
    TP_CLASSES,
};

enum {
    TP_KEY_MAX = 64, /* bytes of a remote key; what is in them is the provider's */
    TP_ADDRESS_TEXT = 256,
    TP_FRAME_MIN = 4096, /* frame_max of every provider is at least this */
    TP_CREDITS_MIN = 4,  /* so many frames of TP_FRAME_MIN can be under way before anything is agreed */
    TP_IOV_MAX = 8,      /* parts of one frame */
};

#define TP_NEVER INT64_MAX

/* What names a registered memory to the other side: given to it by net.h, handed back by it in struct tp_put. */
struct tp_key {
    uint8_t size; /* bytes in use */
    uint8_t byte[TP_KEY_MAX];
};

struct tp_region; /* a registered memory, as its own side sees it; the provider's */

/* A one-sided write. The bytes at `from` belong to the provider from the call until PUT_DONE and must not change. */
struct tp_put {
    struct tp_region *region; /* of this endpoint, holds [from, from + size) */
    const void *from;
    size_t size; /* at least 1; any size, the provider cuts it */
    struct tp_key key;
    uint64_t offset; /* in the remote window */
    bool with_immediate;
    uint32_t immediate; /* appears at the other side when the bytes are there; costs a credit, as a frame does */
    uint64_t cookie;    /* comes back in PUT_DONE */
};

/* What an endpoint calls. All but wake: on the endpoint's thread. */
struct tp_sink {
    /* A channel from outside is open. The callee sets c->user, or aborts it. */
    void (*accepted)(void *ctx, struct tp_channel *c);
    /* A channel of connect is open; frame_max and the rest are set. */
    void (*opened)(void *ctx, struct tp_channel *c);
    /* The bytes are the provider's and valid during the call. */
    void (*frame)(void *ctx, struct tp_channel *c, const uint8_t *bytes, size_t size);
    /* The other side put with an immediate; all its bytes are in the window. */
    void (*immediate)(void *ctx, struct tp_channel *c, uint32_t immediate);
    /* status 0: the bytes are in the other side's window. -ECONNRESET and others: unknown. -EACCES: the other side
     * refused key or range; the channel ends too. */
    void (*put_done)(void *ctx, struct tp_channel *c, uint64_t cookie, int status);
    /* send or put returned -EAGAIN and is worth another try. */
    void (*room)(void *ctx, struct tp_channel *c);
    /* The end. reason 0: both sides had finished (close); else a negative errno: -ECONNREFUSED nobody listens,
     * -ETIMEDOUT, -ECONNRESET the other side is gone, -ECANCELED aborted here, -EPROTO nonsense came, -EACCES see
     * above. why: a sentence for people, "" when there is nothing to add. */
    void (*closed)(void *ctx, struct tp_channel *c, int reason, const char *why);
};

/* The world around an endpoint; plain memory that the endpoint copies. */
struct tp_host {
    const struct tp_sink *sink;
    void *ctx; /* of sink and of the functions below */
    /* ns, monotonic. The simulation's clock in the simulation. */
    int64_t (*now)(void *ctx);
    /* Unpredictable bytes, or the simulation's. */
    void (*random)(void *ctx, void *out, size_t size);
    /* poll is wanted, soon: poll's answer has changed. Any thread; must not call back. */
    void (*wake)(void *ctx);
    /* The loop of the endpoint's thread; NULL for providers that need none (inproc, sim). */
    struct event_base *base;
    /* The thread calls look whenever it comes by and arm before it waits in that loop, as tp_ops says. Without it a
     * provider that has them keeps the loop informed by itself. */
    bool looks;
};

struct tp_endpoint_config {
    struct tp_host host;
    uint32_t frame_max; /* bytes; 0: the provider's own choice; it may be lowered, see tp_channel */
    uint32_t depth;     /* frames and immediates under way per channel and direction; 0: the provider's choice */
    int64_t connect_ns; /* a connect that takes longer ends with -ETIMEDOUT; 0: 5 s */
    /* A channel over which nothing was heard for this long, although something was under way, ends with -ETIMEDOUT;
     * 0: 10 s. Silence without anything under way is net.h's to notice. */
    int64_t silence_ns;
    /* Of this provider: NULL, or what its header says (struct tp_inproc_hub, struct tp_sim_end, struct
     * tp_fault, device names of rdma). */
    const void *provider;
};

/* The start of every provider's channel. Fields are read by everybody and written by the provider only, except user and
 * hears. */
struct tp_channel {
    const struct tp_ops *ops;
    struct tp_endpoint *endpoint;
    enum tp_class class;
    bool dialled;               /* made by connect here */
    bool trusted;               /* puts of the other side are taken: trust was called */
    uint32_t frame_max;         /* largest frame, the smaller of both sides; valid when open */
    uint32_t hears;             /* largest frame that is taken now; 0: frame_max. Ends a channel early, spares memory:
                                 * a provider may take no notice, and what comes is looked at all the same */
    uint32_t credits_max;       /* most frames and immediates under way, the smaller of both sides */
    char peer[TP_ADDRESS_TEXT]; /* the other side's address, for logs */
    uint64_t frames_out, frames_in, bytes_out, bytes_in; /* of frames */
    uint64_t puts_out, put_bytes_out, put_bytes_in;      /* put_bytes_in: 0 where the adapter does not tell */
    void *user;
};

/* The start of every provider's endpoint. */
struct tp_endpoint {
    const struct tp_ops *ops;
    struct tp_host host;
    int channels;    /* that have not ended */
    int queue_pairs; /* of an adapter; a provider without them leaves it 0 */
    int regions;     /* registered */
    size_t region_bytes;
};

struct tp_ops {
    const char *name; /* "tcp" */
    /* Makes an endpoint; nothing is listened to yet. -ENOTSUP: this machine lacks what it needs, err names it and the
     * cure. */
    int (*open)(const struct tp_endpoint_config *config, struct tp_endpoint **out, struct cfg_error *err);
    /* Aborts what is open (no callbacks any more), removes regions and the listener, frees all. After it returns
     * nothing from outside lands in this side's memory. */
    void (*close)(struct tp_endpoint *ep);
    /* Accepts channels at address ("HOST:PORT"; port 0: a free one), once per endpoint. bound: where it is now. */
    int (*listen)(struct tp_endpoint *ep, const char *address, char bound[TP_ADDRESS_TEXT], struct cfg_error *err);
    /* Registers memory as a target and a source of puts. It stays the caller's and outlives the registration. key: for
     * the other side. -ENOMEM with size, limits and cure in err. */
    int (*add_region)(struct tp_endpoint *ep, void *base, size_t size, struct tp_region **out, struct tp_key *key,
                      struct cfg_error *err);
    /* Nothing of it may be under way as a source. Writes of others to it end their channel from now on. */
    void (*remove_region)(struct tp_endpoint *ep, struct tp_region *r);
    /* Begins a channel to address; OPENED or CLOSED follows. user is set in it. -EINVAL: not an address; -ENOMEM. */
    int (*connect)(struct tp_endpoint *ep, const char *address, enum tp_class class, void *user,
                   struct tp_channel **out, struct cfg_error *err);
    /* One frame of the n parts together, 1 to frame_max bytes; they are copied or sent before it returns, and stay the
     * caller's. 0; -EAGAIN: no credit, ROOM follows; -EMSGSIZE; -ENOTCONN: not open, or closing. */
    int (*send)(struct tp_channel *c, const struct iovec *part, int n);
    /* 0: accepted, PUT_DONE follows; -EAGAIN: as above; -EINVAL: not within the region; -ENOTCONN. */
    int (*put)(struct tp_channel *c, const struct tp_put *p);
    /* From now on puts of the other side land here and their immediates are taken. Until then they are refused like
     * those that name no window, and end the channel; so whoever has not proved who it is writes nothing, whatever keys
     * it knows. For open channels; again does no harm. 0; -ENOTCONN: not open, or ending; else what the adapter says.
     */
    int (*trust)(struct tp_channel *c);
    /* No more sends from here; what was accepted still goes out, then CLOSED comes on both sides with reason 0. The
     * other side may send until it closes too or has seen this side's end; what it sends then is dropped. */
    void (*finish)(struct tp_channel *c);
    /* Ends it now (moves it to error). CLOSED follows with -ECANCELED; the other side sees -ECONNRESET. */
    void (*abort)(struct tp_channel *c);
    /* Does what is due and calls back. Returns the time at which it wants to be called again, if nothing wakes it
     * before; TP_NEVER: none. Providers with an event loop work without it, except for their deadlines. */
    int64_t (*poll)(struct tp_endpoint *ep);
    /* Both NULL where what comes shows in the event loop at no extra cost. For a thread that set tp_host.looks: */
    /* Takes what has come and calls back. Returns whether there was anything. Without a system call, for polling. */
    bool (*look)(struct tp_endpoint *ep);
    /* From now on what comes wakes the event loop, once. Also takes what has come, as look does: the thread may sleep
     * when there was nothing. */
    bool (*arm)(struct tp_endpoint *ep);
};

/* "control", "kv", "expert" */
const char *tp_class_name(enum tp_class class);
/* Sum of the parts' lengths. */
size_t tp_iov_size(const struct iovec *part, int n);

/* ---- providers of this program; tcp.h, sim.h and the decorator fault.h have their own headers, rdma is loaded at run
 * time (rdma.h) ---------------------------- */

extern const struct tp_ops tp_inproc; /* inproc.h */

#endif
