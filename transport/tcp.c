/* The provider tcp (tcp.h): endpoints, registered memory, addresses, and its table. */
#include <errno.h>
#include <event2/dns.h>
#include <event2/event.h>
#include <event2/util.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/config.h"
#include "transport/bytes.h"
#include "transport/names.h"
#include "transport/tcp_impl.h"

enum { FRAME_DEFAULT = 64 << 10, DEPTH_DEFAULT = 64, BACKLOG = 128, BEGINNING_MAX = 128 };
#define CONNECT_DEFAULT INT64_C(5000000000)
#define SILENCE_DEFAULT INT64_C(10000000000)

/* ---- endpoints --------------------------------------------------------------------------------- */

static int tcp_open(const struct tp_endpoint_config *config, struct tp_endpoint **out, struct cfg_error *err)
{
    struct tcp_endpoint *ep = config->host.base ? calloc(1, sizeof *ep) : NULL;
    if (!ep)
        return cfg_error_set(err, config->host.base ? ENOMEM : EINVAL, "a TCP endpoint needs memory and an event loop");
    ep->base.ops = &tp_tcp;
    ep->base.host = config->host;
    ep->frame_max = config->frame_max > TP_FRAME_MIN ? config->frame_max
                    : config->frame_max              ? TP_FRAME_MIN
                                                     : FRAME_DEFAULT;
    if (ep->frame_max > TCP_READ_BUFFER / 2)
        ep->frame_max = TCP_READ_BUFFER / 2;
    ep->depth = config->depth > TP_CREDITS_MIN ? config->depth : config->depth ? TP_CREDITS_MIN : DEPTH_DEFAULT;
    ep->connect_ns = config->connect_ns ? config->connect_ns : CONNECT_DEFAULT;
    ep->silence_ns = config->silence_ns ? config->silence_ns : SILENCE_DEFAULT;
    ep->listener = -1;
    *out = &ep->base;
    return 0;
}

static int tcp_add_region(struct tp_endpoint *base, void *mem, size_t size, struct tp_region **out, struct tp_key *key,
                          struct cfg_error *err)
{
    struct tcp_endpoint *ep = (struct tcp_endpoint *)base;
    struct tp_region *r = size ? calloc(1, sizeof *r) : NULL;
    if (!r)
        return cfg_error_set(err, size ? ENOMEM : EINVAL, size ? "no memory for a region" : "an empty region");
    /* Random, so that a key of an earlier process fits no region of this one. */
    base->host.random(base->host.ctx, &r->id, sizeof r->id);
    r->id += ++ep->next_region;
    r->base = mem;
    r->size = size;
    r->next = ep->regions;
    ep->regions = r;
    base->regions++;
    base->region_bytes += size;
    *key = (struct tp_key){.size = sizeof r->id};
    tp_put_uint(key->byte, r->id, sizeof r->id);
    *out = r;
    return 0;
}

/* A put that is arriving there must not go on into memory that is somebody else's soon. */
static void tcp_remove_region(struct tp_endpoint *base, struct tp_region *r)
{
    struct tcp_endpoint *ep = (struct tcp_endpoint *)base;
    for (struct tcp_channel *c = ep->channels; c; c = c->next)
        if (c->into && c->into >= r->base && c->into < r->base + r->size) {
            c->into = NULL;
            tcp_fail(c, -EACCES, "its put was arriving in a window that was removed");
        }
    for (struct tp_region **at = &ep->regions; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            base->regions--;
            base->region_bytes -= r->size;
            free(r);
            return;
        }
}

/* ---- addresses --------------------------------------------------------------------------------- */

static void set_options(struct tcp_endpoint *ep, int fd)
{
    unsigned silence_ms = (unsigned)(ep->silence_ns / 1000000);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof silence_ms);
}

static void address_text(const struct sockaddr *a, socklen_t len, char out[TP_ADDRESS_TEXT])
{
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (getnameinfo(a, len, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV))
        snprintf(out, TP_ADDRESS_TEXT, "?");
    else
        snprintf(out, TP_ADDRESS_TEXT, strchr(host, ':') ? "[%.200s]:%.10s" : "%.200s:%.10s", host, port);
}

static void dial(struct tcp_channel *c, const struct sockaddr *a, socklen_t len)
{
    c->fd = socket(a->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) {
        tcp_fail(c, -errno, strerror(errno));
        return;
    }
    set_options(tcp_endpoint_of(c), c->fd);
    c->state = TCP_CONNECTING;
    if (connect(c->fd, a, len) && errno != EINPROGRESS)
        tcp_fail(c, -errno, strerror(errno));
    else
        tcp_watch(c);
}

static void on_lookup(int error, struct evutil_addrinfo *found, void *ctx)
{
    struct tcp_channel *c = ctx;
    if (error == EVUTIL_EAI_CANCEL)
        return;
    c->lookup = NULL;
    if (error || !found)
        tcp_fail(c, -EHOSTUNREACH, evutil_gai_strerror(error));
    else
        dial(c, tp_name_address(found)->ai_addr, (socklen_t)tp_name_address(found)->ai_addrlen);
    if (found)
        evutil_freeaddrinfo(found);
}

static int tcp_connect(struct tp_endpoint *base, const char *address, enum tp_class class, void *user,
                       struct tp_channel **out, struct cfg_error *err)
{
    struct tcp_endpoint *ep = (struct tcp_endpoint *)base;
    const struct addrinfo numeric = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *ai;
    char host[TP_ADDRESS_TEXT];
    const char *port;
    if (cfg_address_split(address, host, sizeof host, &port))
        return cfg_error_set(err, EINVAL, "%s: not HOST:PORT", address);
    struct tcp_channel *c = tcp_channel_new(ep);
    if (!c)
        return cfg_error_set(err, ENOMEM, "no memory for a channel");
    c->base.class = class;
    c->base.dialled = true;
    c->base.user = user;
    snprintf(c->base.peer, sizeof c->base.peer, "%s", address);
    if (getaddrinfo(host, port, &numeric, &ai) == 0) {
        dial(c, ai->ai_addr, ai->ai_addrlen);
        freeaddrinfo(ai);
    } else {
        const struct evutil_addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
        if (!ep->dns)
            ep->dns =
                evdns_base_new(base->host.base, EVDNS_BASE_INITIALIZE_NAMESERVERS | EVDNS_BASE_DISABLE_WHEN_INACTIVE);
        if (!ep->dns)
            tcp_fail(c, -EHOSTUNREACH, "no resolver: /etc/resolv.conf cannot be used");
        else
            c->lookup = evdns_getaddrinfo(ep->dns, host, port, &hints, on_lookup, c);
    }
    base->host.wake(base->host.ctx);
    *out = &c->base;
    return 0;
}

/* Whoever connects and says nothing keeps nobody out: the oldest of those that have not begun goes. */
static void make_place(struct tcp_endpoint *ep)
{
    struct tcp_channel *oldest = NULL;
    int beginning = 0;
    for (struct tcp_channel *c = ep->channels; c; c = c->next)
        if (c->state == TCP_PREAMBLE && !c->base.dialled && !c->failed) {
            oldest = c;
            beginning++;
        }
    if (beginning >= BEGINNING_MAX)
        tcp_fail(oldest, -ECANCELED, "");
}

static void on_accept(evutil_socket_t fd, short what, void *ctx)
{
    struct tcp_endpoint *ep = ctx;
    struct sockaddr_storage from;
    (void)what;
    for (;;) {
        socklen_t len = sizeof from;
        int s = accept4(fd, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (s < 0)
            return;
        make_place(ep);
        struct tcp_channel *c = tcp_channel_new(ep);
        if (!c) {
            close(s);
            return;
        }
        c->fd = s;
        c->state = TCP_PREAMBLE;
        address_text((struct sockaddr *)&from, len, c->base.peer);
        set_options(ep, s);
        tcp_watch(c);
    }
}

static int bind_to(const struct addrinfo *ai)
{
    int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int e = errno;
    close(fd);
    return -e;
}

static int tcp_listen(struct tp_endpoint *base, const char *address, char bound[TP_ADDRESS_TEXT], struct cfg_error *err)
{
    struct tcp_endpoint *ep = (struct tcp_endpoint *)base;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *ai;
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    char host[TP_ADDRESS_TEXT];
    const char *port;
    if (ep->listener >= 0 || cfg_address_split(address, host, sizeof host, &port))
        return cfg_error_set(err, EINVAL, "%s: not HOST:PORT, or the endpoint listens already", address);
    int r = getaddrinfo(host, port, &hints, &ai);
    if (r)
        return cfg_error_set(err, EADDRNOTAVAIL, "%s: %s; give an address of this machine", address, gai_strerror(r));
    ep->listener = bind_to(tp_name_address(ai));
    freeaddrinfo(ai);
    if (ep->listener < 0)
        return cfg_error_set(err, -ep->listener, "%s: %s%s", address, strerror(-ep->listener),
                             ep->listener == -EADDRINUSE ? "; another process has this port"
                             : ep->listener == -EADDRNOTAVAIL
                                 ? "; give an address of this machine, or start another node here"
                                 : "");
    ep->accept_event = event_new(base->host.base, ep->listener, EV_READ | EV_PERSIST, on_accept, ep);
    if (!ep->accept_event || event_add(ep->accept_event, NULL))
        return cfg_error_set(err, ENOMEM, "no memory for a listener");
    getsockname(ep->listener, (struct sockaddr *)&at, &len);
    address_text((struct sockaddr *)&at, len, bound);
    return 0;
}

/* ---- the rest ---------------------------------------------------------------------------------- */

static int64_t tcp_poll(struct tp_endpoint *base)
{
    struct tcp_endpoint *ep = (struct tcp_endpoint *)base;
    int64_t t = tcp_now(ep), next_at = TP_NEVER;
    /* settle may free the channel at hand and no other; callbacks may add others in front. */
    for (struct tcp_channel *c = ep->channels, *next; c; c = next) {
        next = c->next;
        if (c->deadline <= t && (c->state < TCP_OPEN || c->refusing))
            tcp_fail(c, c->refusing ? -EACCES : -ETIMEDOUT, c->refusing ? c->why : "no answer in time");
        else if ((c->state < TCP_OPEN || c->refusing) && c->deadline < next_at)
            next_at = c->deadline;
        tcp_settle(c);
    }
    return next_at;
}

static void tcp_close(struct tp_endpoint *base)
{
    struct tcp_endpoint *ep = (struct tcp_endpoint *)base;
    for (struct tcp_channel *c; (c = ep->channels);) {
        ep->channels = c->next;
        if (c->fd >= 0)
            setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
        tcp_channel_free(c);
    }
    if (ep->accept_event)
        event_free(ep->accept_event);
    if (ep->listener >= 0)
        close(ep->listener);
    if (ep->dns)
        evdns_base_free(ep->dns, 0);
    while (ep->regions)
        tcp_remove_region(base, ep->regions);
    free(ep);
}

const struct tp_ops tp_tcp = {
    .name = "tcp",
    .open = tcp_open,
    .close = tcp_close,
    .listen = tcp_listen,
    .add_region = tcp_add_region,
    .remove_region = tcp_remove_region,
    .connect = tcp_connect,
    .send = tcp_send,
    .put = tcp_put,
    .trust = tcp_trust,
    .finish = tcp_finish,
    .abort = tcp_abort,
    .poll = tcp_poll,
};
