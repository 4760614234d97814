/* What tcp.c (endpoints, addresses, the table) and tcp_channel.c (channels, what goes out and comes in) share. All
 * state belongs to the endpoint's thread.
 *
 * A channel's socket events only read, write and note; its end is called back from tcp_settle, reached from socket
 * events and from poll. Functions of the table never call back: what they find wrong is kept in `failed` and reported
 * by the next poll, which they ask for. */
#ifndef WEFT_TRANSPORT_TCP_IMPL_H
#define WEFT_TRANSPORT_TCP_IMPL_H

#include "transport/tcp.h"

struct evdns_base;
struct evdns_getaddrinfo_request;
struct event;

enum { TCP_READ_BUFFER = 256 << 10 };

struct tp_region {
    struct tp_region *next;
    uint64_t id;
    uint8_t *base;
    size_t size;
};

/* Bytes on their way out: a head, then bytes of its own or of a region. */
struct tcp_out {
    struct tcp_out *next;
    size_t head, size, sent; /* sent counts both */
    const uint8_t *from;
    uint8_t kind;
    uint8_t bytes[]; /* head, and a frame's bytes */
};

struct tcp_waiting {
    struct tcp_waiting *next;
    uint64_t cookie;
};

enum tcp_state { TCP_RESOLVING, TCP_CONNECTING, TCP_PREAMBLE, TCP_OPEN, TCP_ENDED };

struct tcp_channel {
    struct tp_channel base;
    struct tcp_channel *next;
    int fd;
    enum tcp_state state;
    struct event *event;
    short watched; /* what the event waits for */
    struct evdns_getaddrinfo_request *lookup;
    int64_t deadline; /* of connecting, or of a refusal's end */
    char address[TP_ADDRESS_TEXT];
    /* out */
    struct tcp_out *head, **tail;
    uint32_t queued; /* frames and puts */
    bool starved, finishing, fin_queued, fin_seen;
    struct tcp_waiting *puts, **puts_tail;
    uint32_t done_owed; /* puts of the other side that have landed and were not told of */
    /* in */
    uint8_t *in; /* TCP_READ_BUFFER bytes: what was read and not yet taken */
    size_t have;
    struct tp_tcp_item item; /* kind 0: none at hand */
    uint8_t *into;           /* of a put that is arriving */
    uint32_t left;
    bool refusing; /* nothing more is read but the end */
    /* the end, when it is known and not yet reported */
    int failed;
    char why[256];
};

struct tcp_endpoint {
    struct tp_endpoint base;
    uint32_t frame_max, depth;
    int64_t connect_ns, silence_ns;
    struct tcp_channel *channels;
    struct tp_region *regions;
    uint64_t next_region;
    int listener;
    struct event *accept_event;
    struct evdns_base *dns;
};

static inline struct tcp_endpoint *tcp_endpoint_of(const struct tcp_channel *c)
{
    return (struct tcp_endpoint *)c->base.endpoint;
}

static inline int64_t tcp_now(const struct tcp_endpoint *ep)
{
    return ep->base.host.now(ep->base.host.ctx);
}

/* A channel of ep, without socket. NULL: no memory. */
struct tcp_channel *tcp_channel_new(struct tcp_endpoint *ep);
/* Without callbacks. */
void tcp_channel_free(struct tcp_channel *c);
/* The channel will end with this; the first reason counts. */
void tcp_fail(struct tcp_channel *c, int reason, const char *why);
/* Begins to look at c->fd, which is connecting or connected. */
void tcp_watch(struct tcp_channel *c);
/* Does what is left to do after something happened to c: finish, room, events, the end. c may be gone afterwards. */
void tcp_settle(struct tcp_channel *c);
/* The functions of the table that are about channels. */
int tcp_send(struct tp_channel *base, const struct iovec *part, int n);
int tcp_put(struct tp_channel *base, const struct tp_put *p);
int tcp_trust(struct tp_channel *base);
void tcp_finish(struct tp_channel *base);
void tcp_abort(struct tp_channel *base);

#endif
