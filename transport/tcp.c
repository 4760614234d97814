/* The provider tcp (tcp.h). All state belongs to the endpoint's thread.
 *
 * A channel's socket events only read, write and note; ends are called back from end(), reached from socket events and
 * from poll. Functions of the table never call back: what they find wrong is kept in `failed` and reported by the next
 * poll, which they ask for. */
#include "transport/tcp.h"

#include <errno.h>
#include <event2/dns.h>
#include <event2/event.h>
#include <event2/util.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/bytes.h"

enum {
    FRAME_DEFAULT = 64 << 10,
    DEPTH_DEFAULT = 64,
    READ_BUFFER = 256 << 10,
    READS_PER_EVENT = 16, /* so that one channel does not keep the loop for itself */
    IOVS = 32,
    BACKLOG = 128,
};
#define PUT_PART (UINT32_C(1) << 30)
#define CONNECT_DEFAULT INT64_C(5000000000)
#define SILENCE_DEFAULT INT64_C(10000000000)
#define LINGER_NS INT64_C(2000000000)

struct tp_region {
    struct tp_region *next;
    uint64_t id;
    uint8_t *base;
    size_t size;
};

/* Bytes on their way out: a head, then bytes of its own or of a region. */
struct out {
    struct out *next;
    size_t head, size, sent; /* sent counts both */
    const uint8_t *from;
    uint8_t kind;
    uint8_t bytes[]; /* head, and a frame's bytes */
};

struct waiting_put {
    struct waiting_put *next;
    uint64_t cookie;
};

enum state { RESOLVING, CONNECTING, PREAMBLE, OPEN, ENDED };

struct channel {
    struct tp_channel base;
    struct channel *next;
    int fd;
    enum state state;
    struct event *event;
    short watched; /* what the event waits for */
    struct evdns_getaddrinfo_request *lookup;
    int64_t deadline; /* of connecting, or of a refusal's end */
    char address[TP_ADDRESS_TEXT];
    /* out */
    struct out *head, **tail;
    uint32_t queued; /* frames and puts */
    bool starved, finishing, fin_queued, fin_seen;
    struct waiting_put *puts, **puts_tail;
    uint32_t done_owed; /* puts of the other side that have landed and were not told of */
    /* in */
    uint8_t *in; /* READ_BUFFER bytes: what was read and not yet taken */
    size_t have;
    struct tp_tcp_item item; /* kind 0: none at hand */
    uint8_t *into;           /* of a put that is arriving */
    uint32_t left;
    bool refusing; /* nothing more is read but the end */
    /* the end, when it is known and not yet reported */
    int failed;
    char why[256];
};

struct endpoint {
    struct tp_endpoint base;
    uint32_t frame_max, depth;
    int64_t connect_ns, silence_ns;
    struct channel *channels;
    struct tp_region *regions;
    uint64_t next_region;
    int listener;
    struct event *accept_event;
    struct evdns_base *dns;
};

static void want(struct channel *c);

static struct endpoint *endpoint_of(const struct channel *c)
{
    return (struct endpoint *)c->base.endpoint;
}

static int64_t now(const struct endpoint *ep)
{
    return ep->base.host.now(ep->base.host.ctx);
}

/* The channel will end with this; the first reason counts. */
static void fail(struct channel *c, int reason, const char *why)
{
    if (c->failed)
        return;
    c->failed = reason;
    if (why != c->why) {
        size_t n = strnlen(why, sizeof c->why - 1);
        memcpy(c->why, why, n);
        c->why[n] = 0;
    }
    c->base.endpoint->host.wake(c->base.endpoint->host.ctx);
}

/* ---- endpoints --------------------------------------------------------------------------------- */

static int tcp_open(const struct tp_endpoint_config *config, struct tp_endpoint **out, struct cfg_error *err)
{
    struct endpoint *ep = config->host.base ? calloc(1, sizeof *ep) : NULL;
    if (!ep)
        return cfg_error_set(err, config->host.base ? ENOMEM : EINVAL, "a TCP endpoint needs memory and an event loop");
    ep->base.ops = &tp_tcp;
    ep->base.host = config->host;
    ep->frame_max = config->frame_max > TP_FRAME_MIN ? config->frame_max
                    : config->frame_max              ? TP_FRAME_MIN
                                                     : FRAME_DEFAULT;
    if (ep->frame_max > READ_BUFFER / 2)
        ep->frame_max = READ_BUFFER / 2;
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
    struct endpoint *ep = (struct endpoint *)base;
    struct tp_region *r = size ? calloc(1, sizeof *r) : NULL;
    uint64_t mark;
    if (!r)
        return cfg_error_set(err, size ? ENOMEM : EINVAL, size ? "no memory for a region" : "an empty region");
    /* Half of it is random, so that a key of an earlier process fits no region of this one. */
    base->host.random(base->host.ctx, &mark, sizeof mark);
    r->id = mark << 32 | (uint32_t)++ep->next_region;
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
    struct endpoint *ep = (struct endpoint *)base;
    for (struct channel *c = ep->channels; c; c = c->next)
        if (c->into && c->into >= r->base && c->into < r->base + r->size) {
            c->into = NULL;
            fail(c, -EACCES, "its put was arriving in a window that was removed");
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

static struct tp_region *find_region(struct endpoint *ep, uint64_t id)
{
    struct tp_region *r = ep->regions;
    while (r && r->id != id)
        r = r->next;
    return r;
}

/* ---- channels ---------------------------------------------------------------------------------- */

static void channel_free(struct channel *c)
{
    if (c->lookup)
        evdns_getaddrinfo_cancel(c->lookup);
    if (c->event)
        event_free(c->event);
    if (c->fd >= 0)
        close(c->fd);
    for (struct out *o; (o = c->head);) {
        c->head = o->next;
        free(o);
    }
    for (struct waiting_put *w; (w = c->puts);) {
        c->puts = w->next;
        free(w);
    }
    free(c->in);
    free(c);
}

static struct channel *channel_new(struct endpoint *ep)
{
    struct channel *c = calloc(1, sizeof *c);
    if (!c || !(c->in = malloc(READ_BUFFER))) {
        free(c);
        return NULL;
    }
    c->base.ops = &tp_tcp;
    c->base.endpoint = &ep->base;
    c->fd = -1;
    c->tail = &c->head;
    c->puts_tail = &c->puts;
    c->deadline = now(ep) + ep->connect_ns;
    c->next = ep->channels;
    ep->channels = c;
    ep->base.channels++;
    return c;
}

static void done_put(struct channel *c, int status)
{
    const struct tp_host *h = &c->base.endpoint->host;
    struct waiting_put *w = c->puts;
    uint64_t cookie = w->cookie;
    c->puts = w->next;
    if (!c->puts)
        c->puts_tail = &c->puts;
    free(w);
    h->sink->put_done(h->ctx, &c->base, cookie, status);
}

/* Reports the end and frees the channel. Never from a function of the table. */
static void end(struct channel *c, int reason, const char *why)
{
    struct endpoint *ep = endpoint_of(c);
    const struct tp_host *h = &ep->base.host;
    char text[sizeof c->why];
    snprintf(text, sizeof text, "%s", why);
    /* The socket goes first: after the callbacks nothing may land any more. A reset tells the other side that this was
     * no finish. */
    if (c->fd >= 0 && reason)
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    if (c->event)
        event_free(c->event);
    c->event = NULL;
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    bool known = c->state == OPEN || c->base.dialled;
    c->state = ENDED;
    while (c->puts)
        done_put(c, reason ? reason : -ECONNRESET);
    /* An accepted one that never opened is nobody's business above. */
    if (known)
        h->sink->closed(h->ctx, &c->base, reason, text);
    for (struct channel **at = &ep->channels; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    ep->base.channels--;
    channel_free(c);
}

/* ---- going out --------------------------------------------------------------------------------- */

static struct out *out_new(uint8_t kind, uint8_t flags, uint32_t size, size_t head, size_t copied)
{
    struct out *o = calloc(1, sizeof *o + head + copied);
    if (!o)
        return NULL;
    o->kind = kind;
    o->head = head;
    o->size = copied;
    o->bytes[0] = kind;
    o->bytes[1] = flags;
    tp_put_uint(o->bytes + 4, size, 4);
    return o;
}

static void queue(struct channel *c, struct out *o)
{
    *c->tail = o;
    c->tail = &o->next;
    c->queued += o->kind == TP_TCP_FRAME || o->kind == TP_TCP_PUT;
}

static int fill_iov(const struct channel *c, struct iovec v[IOVS])
{
    int n = 0;
    for (const struct out *o = c->head; o && n + 2 <= IOVS; o = o->next) {
        size_t own = o->from ? o->head : o->head + o->size;
        if (o->sent < own)
            v[n++] = (struct iovec){(void *)(uintptr_t)(o->bytes + o->sent), own - o->sent};
        if (o->from) {
            size_t past = o->sent > own ? o->sent - own : 0;
            v[n++] = (struct iovec){(void *)(uintptr_t)(o->from + past), o->size - past};
        }
    }
    return n;
}

static void take_sent(struct channel *c, size_t sent)
{
    for (struct out *o; (o = c->head) && sent;) {
        size_t left = o->head + o->size - o->sent, part = left < sent ? left : sent;
        o->sent += part;
        sent -= part;
        if (o->sent < o->head + o->size)
            return;
        c->head = o->next;
        if (!c->head)
            c->tail = &c->head;
        c->queued -= o->kind == TP_TCP_FRAME || o->kind == TP_TCP_PUT;
        free(o);
    }
}

static void drop_queue(struct channel *c)
{
    for (struct out *o; (o = c->head);) {
        c->head = o->next;
        free(o);
    }
    c->tail = &c->head;
    c->queued = 0;
}

/* Writes what the socket takes. */
static void flush(struct channel *c)
{
    while (c->head && c->fd >= 0 && !c->failed) {
        struct iovec v[IOVS];
        struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)fill_iov(c, v)};
        ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0 && errno != EPIPE && errno != ECONNRESET)
            fail(c, -errno, strerror(errno));
        if (n < 0) {
            /* The other side is gone. What it said before is still to be read, and reading meets the end. */
            drop_queue(c);
            return;
        }
        take_sent(c, (size_t)n);
    }
}

static bool usable(const struct channel *c)
{
    return c->state == OPEN && !c->finishing && !c->failed && !c->fin_seen && !c->refusing;
}

static bool has_room(struct channel *c)
{
    if (c->queued < c->base.credits_max)
        return true;
    c->starved = true;
    return false;
}

static int tcp_send(struct tp_channel *base, const struct iovec *part, int n)
{
    struct channel *c = (struct channel *)base;
    size_t size = tp_iov_size(part, n);
    if (!usable(c))
        return -ENOTCONN;
    if (size == 0 || size > base->frame_max)
        return -EMSGSIZE;
    if (!has_room(c))
        return -EAGAIN;
    struct out *o = out_new(TP_TCP_FRAME, 0, (uint32_t)size, TP_TCP_HEAD, size);
    if (!o)
        return -ENOMEM;
    uint8_t *at = o->bytes + TP_TCP_HEAD;
    for (int i = 0; i < n; i++) {
        memcpy(at, part[i].iov_base, part[i].iov_len);
        at += part[i].iov_len;
    }
    bool idle = !c->head;
    queue(c, o);
    base->frames_out++;
    base->bytes_out += size;
    if (idle)
        flush(c);
    want(c);
    return 0;
}

static int tcp_put(struct tp_channel *base, const struct tp_put *p)
{
    struct channel *c = (struct channel *)base;
    const struct tp_region *r = p->region;
    const uint8_t *from = p->from;
    if (!usable(c))
        return -ENOTCONN;
    if (p->size == 0 || from < r->base || p->size > r->size || from > r->base + (r->size - p->size) ||
        p->key.size != sizeof(uint64_t))
        return -EINVAL;
    if (!has_room(c))
        return -EAGAIN;
    struct waiting_put *w = calloc(1, sizeof *w);
    struct out *first = NULL, **last = &first;
    for (size_t done = 0; w && done < p->size; last = &(*last)->next) {
        size_t left = p->size - done, size = left < PUT_PART ? left : PUT_PART;
        bool end_of_put = size == left;
        uint8_t flags = end_of_put ? p->with_immediate ? TP_TCP_IMMEDIATE : 0 : TP_TCP_MORE;
        struct out *o = *last = out_new(TP_TCP_PUT, flags, (uint32_t)size, TP_TCP_HEAD + TP_TCP_PUT_HEAD, 0);
        if (!o)
            break;
        tp_put_uint(o->bytes + 8, tp_get64(p->key.byte), 8);
        tp_put_uint(o->bytes + 16, p->offset + done, 8);
        tp_put_uint(o->bytes + 24, end_of_put ? p->immediate : 0, 4);
        o->from = from + done;
        o->size = size;
        done += size;
        if (end_of_put) {
            w->cookie = p->cookie;
            *c->puts_tail = w;
            c->puts_tail = &w->next;
            bool idle = !c->head;
            for (struct out *x = first, *next; x; x = next) {
                next = x->next;
                x->next = NULL;
                queue(c, x);
            }
            base->puts_out++;
            base->put_bytes_out += p->size;
            if (idle)
                flush(c);
            want(c);
            return 0;
        }
    }
    for (struct out *o; (o = first);) {
        first = o->next;
        free(o);
    }
    free(w);
    return -ENOMEM;
}

static void tell_done(struct channel *c)
{
    if (!c->done_owed || c->state != OPEN)
        return;
    struct out *o = out_new(TP_TCP_DONE, 0, c->done_owed, TP_TCP_HEAD, 0);
    if (!o)
        return; /* with the next one */
    c->done_owed = 0;
    queue(c, o);
}

static void tcp_finish(struct tp_channel *base)
{
    struct channel *c = (struct channel *)base;
    if (c->state < OPEN) {
        fail(c, -ECANCELED, "");
        return;
    }
    c->finishing = true;
    base->endpoint->host.wake(base->endpoint->host.ctx);
}

static void tcp_abort(struct tp_channel *base)
{
    struct channel *c = (struct channel *)base;
    c->failed = 0; /* this reason counts */
    fail(c, -ECANCELED, "");
}

/* ---- coming in --------------------------------------------------------------------------------- */

static void take_done(struct channel *c, uint32_t n)
{
    for (; n && c->puts; n--)
        done_put(c, 0);
    if (n)
        fail(c, -EPROTO, "the other side tells of more puts than there were");
}

/* The put that begins is refused: the other side learns it, and this one reads nothing more. */
static void refuse_put(struct channel *c)
{
    struct out *o;
    tell_done(c);
    o = out_new(TP_TCP_REFUSE, 0, 0, TP_TCP_HEAD, 0);
    if (o)
        queue(c, o);
    c->refusing = true;
    c->have = 0;
    c->deadline = now(endpoint_of(c)) + LINGER_NS;
    snprintf(c->why, sizeof c->why, "a put named a window or a range that is not there");
}

static void begin_put(struct channel *c)
{
    struct tp_region *r = find_region(endpoint_of(c), c->item.region);
    if (!r || c->item.size > r->size || c->item.offset > r->size - c->item.size) {
        refuse_put(c);
        return;
    }
    c->into = r->base + c->item.offset;
    c->left = c->item.size;
}

static void put_landed(struct channel *c)
{
    const struct tp_host *h = &c->base.endpoint->host;
    struct tp_tcp_item i = c->item;
    c->item.kind = 0;
    c->into = NULL;
    c->base.put_bytes_in += i.size;
    if (i.flags & TP_TCP_MORE)
        return;
    c->done_owed++;
    if (i.flags & TP_TCP_IMMEDIATE)
        h->sink->immediate(h->ctx, &c->base, i.immediate);
}

/* What is in the buffer, up to the first item that is not whole. */
static void take_buffer(struct channel *c)
{
    const struct tp_host *h = &c->base.endpoint->host;
    size_t at = 0;
    while (!c->failed && !c->refusing) {
        size_t have = c->have - at;
        if (c->item.kind == TP_TCP_PUT) {
            size_t part = have < c->left ? have : c->left;
            memcpy(c->into, c->in + at, part);
            c->into += part;
            c->left -= (uint32_t)part;
            at += part;
            if (c->left)
                break;
            put_landed(c);
            continue;
        }
        struct cfg_error err;
        struct tp_tcp_item item;
        int head = tp_tcp_parse_head(c->in + at, have, c->base.frame_max, &item, &err);
        if (head == -EAGAIN)
            break;
        if (head < 0 || c->fin_seen) {
            fail(c, -EPROTO, head < 0 ? err.msg : "something comes after the end");
            break;
        }
        if (item.kind == TP_TCP_FRAME && have < (size_t)head + item.size)
            break;
        at += (size_t)head;
        switch (item.kind) {
        case TP_TCP_FRAME:
            c->base.frames_in++;
            c->base.bytes_in += item.size;
            if (!c->finishing)
                h->sink->frame(h->ctx, &c->base, c->in + at, item.size);
            at += item.size;
            break;
        case TP_TCP_PUT:
            c->item = item;
            begin_put(c);
            break;
        case TP_TCP_DONE:
            take_done(c, item.size);
            break;
        case TP_TCP_REFUSE:
            fail(c, -EACCES, "the other side refused a put: no such window or range");
            break;
        case TP_TCP_FIN:
            c->fin_seen = true;
            break;
        }
    }
    if (c->refusing || c->failed)
        c->have = 0;
    else if (at) {
        memmove(c->in, c->in + at, c->have - at);
        c->have -= at;
    }
}

/* The rest of a put straight into its window. Returns whether something was read there. */
static ssize_t read_put(struct channel *c)
{
    ssize_t n = recv(c->fd, c->into, c->left, MSG_DONTWAIT);
    if (n <= 0)
        return n;
    c->into += n;
    c->left -= (uint32_t)n;
    if (!c->left)
        put_landed(c);
    return n;
}

static ssize_t read_some(struct channel *c)
{
    if (c->item.kind == TP_TCP_PUT && c->have == 0 && !c->refusing)
        return read_put(c);
    ssize_t n = recv(c->fd, c->in + c->have, READ_BUFFER - c->have, MSG_DONTWAIT);
    if (n > 0 && !c->refusing) {
        c->have += (size_t)n;
        take_buffer(c);
    }
    return n;
}

static void read_open(struct channel *c)
{
    for (int i = 0; i < READS_PER_EVENT && !c->failed; i++) {
        ssize_t n = read_some(c);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0 && c->refusing)
            fail(c, -EACCES, c->why);
        else if (n == 0 && !(c->fin_seen && c->fin_queued && !c->head))
            fail(c, -ECONNRESET, "the other side closed the connection");
        else if (n < 0)
            fail(c, errno == ETIMEDOUT ? -ETIMEDOUT : -ECONNRESET, strerror(errno));
        if (n <= 0)
            return;
    }
}

/* ---- beginning --------------------------------------------------------------------------------- */

static void set_options(struct endpoint *ep, int fd)
{
    unsigned silence_ms = (unsigned)(ep->silence_ns / 1000000);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof silence_ms);
}

static void send_preamble(struct channel *c)
{
    struct endpoint *ep = endpoint_of(c);
    struct out *o = out_new(0, 0, 0, TP_TCP_PREAMBLE, 0);
    if (!o) {
        fail(c, -ENOMEM, "no memory for a channel");
        return;
    }
    memcpy(o->bytes, "WEFTtp", 6);
    o->bytes[6] = TP_TCP_VERSION;
    o->bytes[7] = (uint8_t)c->base.class;
    tp_put_uint(o->bytes + 8, ep->frame_max, 4);
    tp_put_uint(o->bytes + 12, ep->depth, 4);
    queue(c, o);
    flush(c);
}

/* The other side's preamble, byte by byte at first, so that nothing behind it is taken. */
static void read_preamble(struct channel *c)
{
    struct endpoint *ep = endpoint_of(c);
    const struct tp_host *h = &ep->base.host;
    enum tp_class class;
    uint32_t frame_max, depth;
    struct cfg_error err;
    ssize_t n = recv(c->fd, c->in + c->have, TP_TCP_PREAMBLE - c->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        fail(c, -ECONNRESET, "the other side closed the connection before it began");
        return;
    }
    c->have += (size_t)n;
    if (c->have < TP_TCP_PREAMBLE)
        return;
    if (tp_tcp_parse_preamble(c->in, &class, &frame_max, &depth, &err)) {
        fail(c, -EPROTO, err.msg);
        return;
    }
    if (c->base.dialled && class != c->base.class) {
        fail(c, -EPROTO, "the other side took the connection for another class");
        return;
    }
    c->have = 0;
    c->base.frame_max = frame_max < ep->frame_max ? frame_max : ep->frame_max;
    c->base.credits_max = depth < ep->depth ? depth : ep->depth;
    c->base.class = class;
    c->deadline = TP_NEVER;
    if (!c->base.dialled)
        send_preamble(c);
    c->state = OPEN;
    if (c->base.dialled)
        h->sink->opened(h->ctx, &c->base);
    else
        h->sink->accepted(h->ctx, &c->base);
}

static void connected(struct channel *c)
{
    int e = 0;
    socklen_t len = sizeof e;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &len);
    if (e) {
        fail(c, -e, strerror(e));
        return;
    }
    c->state = PREAMBLE;
    send_preamble(c);
}

/* What is left to do after something happened to c: finish, room, events, the end. c may be gone afterwards. */
static void settle(struct channel *c)
{
    const struct tp_host *h = &c->base.endpoint->host;
    if (c->state == OPEN && !c->failed) {
        tell_done(c);
        if ((c->finishing || (c->fin_seen && !c->puts)) && !c->fin_queued) {
            struct out *o = out_new(TP_TCP_FIN, 0, 0, TP_TCP_HEAD, 0);
            if (o) {
                queue(c, o);
                c->fin_queued = true;
            }
        }
        flush(c);
        if (c->starved && c->queued <= c->base.credits_max / 2 && usable(c)) {
            c->starved = false;
            h->sink->room(h->ctx, &c->base);
        }
    }
    if (c->failed)
        end(c, c->failed, c->why);
    else if (c->state == OPEN && c->fin_seen && c->fin_queued && !c->head && !c->puts)
        end(c, 0, "");
    else
        want(c);
}

static void on_socket(evutil_socket_t fd, short what, void *ctx)
{
    struct channel *c = ctx;
    (void)fd;
    if (c->state == CONNECTING)
        connected(c);
    else if (c->state == PREAMBLE && (what & EV_READ))
        read_preamble(c);
    else if (c->state == OPEN && (what & EV_READ))
        read_open(c);
    if (what & EV_WRITE)
        flush(c);
    settle(c);
}

/* Waits for what the channel needs now. */
static void want(struct channel *c)
{
    if (!c->event)
        return;
    short what = EV_PERSIST | EV_READ;
    if (c->state == CONNECTING)
        what = EV_PERSIST | EV_WRITE;
    else if (c->head)
        what |= EV_WRITE;
    if (what == c->watched)
        return;
    event_del(c->event);
    event_assign(c->event, c->base.endpoint->host.base, c->fd, what, on_socket, c);
    if (event_add(c->event, NULL))
        fail(c, -ENOMEM, "the event loop takes no more");
    c->watched = what;
}

static void watch(struct channel *c)
{
    c->event = event_new(c->base.endpoint->host.base, c->fd, EV_PERSIST | EV_READ, on_socket, c);
    if (!c->event)
        fail(c, -ENOMEM, "no memory for a channel");
    else
        want(c);
}

static void address_text(const struct sockaddr *a, socklen_t len, char out[TP_ADDRESS_TEXT])
{
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (getnameinfo(a, len, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV))
        snprintf(out, TP_ADDRESS_TEXT, "?");
    else
        snprintf(out, TP_ADDRESS_TEXT, strchr(host, ':') ? "[%.200s]:%.10s" : "%.200s:%.10s", host, port);
}

static void dial(struct channel *c, const struct sockaddr *a, socklen_t len)
{
    c->fd = socket(a->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) {
        fail(c, -errno, strerror(errno));
        return;
    }
    set_options(endpoint_of(c), c->fd);
    c->state = CONNECTING;
    if (connect(c->fd, a, len) && errno != EINPROGRESS)
        fail(c, -errno, strerror(errno));
    else
        watch(c);
}

static void on_lookup(int error, struct evutil_addrinfo *found, void *ctx)
{
    struct channel *c = ctx;
    if (error == EVUTIL_EAI_CANCEL)
        return;
    c->lookup = NULL;
    if (error || !found)
        fail(c, -EHOSTUNREACH, evutil_gai_strerror(error));
    else
        dial(c, found->ai_addr, (socklen_t)found->ai_addrlen);
    if (found)
        evutil_freeaddrinfo(found);
}

/* "HOST:PORT" in two; IPv6 in brackets. */
static int split(const char *address, char host[TP_ADDRESS_TEXT], const char **port)
{
    const char *colon = strrchr(address, ':');
    if (!colon || colon == address || !colon[1] || strlen(address) >= TP_ADDRESS_TEXT)
        return -EINVAL;
    size_t n = (size_t)(colon - address);
    if (address[0] == '[' && n > 2 && address[n - 1] == ']') {
        address++;
        n -= 2;
    }
    memcpy(host, address, n);
    host[n] = 0;
    *port = colon + 1;
    return 0;
}

static int tcp_connect(struct tp_endpoint *base, const char *address, enum tp_class class, void *user,
                       struct tp_channel **out, struct cfg_error *err)
{
    struct endpoint *ep = (struct endpoint *)base;
    const struct addrinfo numeric = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *ai;
    char host[TP_ADDRESS_TEXT];
    const char *port;
    if (split(address, host, &port))
        return cfg_error_set(err, EINVAL, "%s: not HOST:PORT", address);
    struct channel *c = channel_new(ep);
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
            fail(c, -EHOSTUNREACH, "no resolver: /etc/resolv.conf cannot be used");
        else
            c->lookup = evdns_getaddrinfo(ep->dns, host, port, &hints, on_lookup, c);
    }
    base->host.wake(base->host.ctx);
    *out = &c->base;
    return 0;
}

static void on_accept(evutil_socket_t fd, short what, void *ctx)
{
    struct endpoint *ep = ctx;
    struct sockaddr_storage from;
    (void)what;
    for (;;) {
        socklen_t len = sizeof from;
        int s = accept4(fd, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (s < 0)
            return;
        struct channel *c = channel_new(ep);
        if (!c) {
            close(s);
            return;
        }
        c->fd = s;
        c->state = PREAMBLE;
        address_text((struct sockaddr *)&from, len, c->base.peer);
        set_options(ep, s);
        watch(c);
    }
}

static int bind_to(const struct addrinfo *ai)
{
    int e = EADDRNOTAVAIL;
    for (; ai; ai = ai->ai_next) {
        int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
        if (bind(fd, ai->ai_addr, ai->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
            return fd;
        e = errno;
        close(fd);
    }
    return -e;
}

static int tcp_listen(struct tp_endpoint *base, const char *address, char bound[TP_ADDRESS_TEXT], struct cfg_error *err)
{
    struct endpoint *ep = (struct endpoint *)base;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *ai;
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    char host[TP_ADDRESS_TEXT];
    const char *port;
    if (ep->listener >= 0 || split(address, host, &port))
        return cfg_error_set(err, EINVAL, "%s: not HOST:PORT, or the endpoint listens already", address);
    int r = getaddrinfo(host, port, &hints, &ai);
    if (r)
        return cfg_error_set(err, EADDRNOTAVAIL, "%s: %s; give an address of this machine", address, gai_strerror(r));
    ep->listener = bind_to(ai);
    freeaddrinfo(ai);
    if (ep->listener < 0)
        return cfg_error_set(err, -ep->listener, "%s: %s%s", address, strerror(-ep->listener),
                             ep->listener == -EADDRINUSE ? "; another process has this port" : "");
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
    struct endpoint *ep = (struct endpoint *)base;
    int64_t t = now(ep), next_at = TP_NEVER;
    /* settle may free the channel at hand and no other; callbacks may add others in front. */
    for (struct channel *c = ep->channels, *next; c; c = next) {
        next = c->next;
        if (c->deadline <= t && (c->state < OPEN || c->refusing))
            fail(c, c->refusing ? -EACCES : -ETIMEDOUT, c->refusing ? c->why : "no answer in time");
        else if ((c->state < OPEN || c->refusing) && c->deadline < next_at)
            next_at = c->deadline;
        settle(c);
    }
    return next_at;
}

static void tcp_close(struct tp_endpoint *base)
{
    struct endpoint *ep = (struct endpoint *)base;
    for (struct channel *c; (c = ep->channels);) {
        ep->channels = c->next;
        if (c->fd >= 0)
            setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
        channel_free(c);
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
    .finish = tcp_finish,
    .abort = tcp_abort,
    .poll = tcp_poll,
};
