/* Channels of the provider tcp: what goes out, what comes in, how they begin and end. */
#include <errno.h>
#include <event2/dns.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/bytes.h"
#include "transport/tcp_impl.h"

enum {
    READS_PER_EVENT = 16, /* so that one channel does not keep the loop for itself */
    IOVS = 32,
};
#define PUT_PART (UINT32_C(1) << 30)
#define LINGER_NS INT64_C(2000000000)

static void want(struct tcp_channel *c);

void tcp_fail(struct tcp_channel *c, int reason, const char *why)
{
    if (c->failed)
        return;
    c->failed = reason;
    tp_copy_text(c->why, sizeof c->why, why);
    c->base.endpoint->host.wake(c->base.endpoint->host.ctx);
}

/* ---- channels ---------------------------------------------------------------------------------- */

void tcp_channel_free(struct tcp_channel *c)
{
    if (c->lookup)
        evdns_getaddrinfo_cancel(c->lookup);
    if (c->event)
        event_free(c->event);
    if (c->fd >= 0)
        close(c->fd);
    for (struct tcp_out *o; (o = c->head);) {
        c->head = o->next;
        free(o);
    }
    for (struct tcp_waiting *w; (w = c->puts);) {
        c->puts = w->next;
        free(w);
    }
    free(c->in);
    free(c);
}

struct tcp_channel *tcp_channel_new(struct tcp_endpoint *ep)
{
    struct tcp_channel *c = calloc(1, sizeof *c);
    if (!c || !(c->in = malloc(TCP_READ_BUFFER))) {
        free(c);
        return NULL;
    }
    c->base.ops = &tp_tcp;
    c->base.endpoint = &ep->base;
    c->fd = -1;
    c->tail = &c->head;
    c->puts_tail = &c->puts;
    c->deadline = tcp_now(ep) + ep->connect_ns;
    c->next = ep->channels;
    ep->channels = c;
    ep->base.channels++;
    return c;
}

static void done_put(struct tcp_channel *c, int status)
{
    const struct tp_host *h = &c->base.endpoint->host;
    struct tcp_waiting *w = c->puts;
    uint64_t cookie = w->cookie;
    c->puts = w->next;
    if (!c->puts)
        c->puts_tail = &c->puts;
    free(w);
    h->sink->put_done(h->ctx, &c->base, cookie, status);
}

/* Reports the end and frees the channel. Never from a function of the table. */
static void end(struct tcp_channel *c, int reason, const char *why)
{
    struct tcp_endpoint *ep = tcp_endpoint_of(c);
    const struct tp_host *h = &ep->base.host;
    char text[sizeof c->why];
    tp_copy_text(text, sizeof text, why);
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
    bool known = c->state == TCP_OPEN || c->base.dialled;
    c->state = TCP_ENDED;
    while (c->puts)
        done_put(c, reason ? reason : -ECONNRESET);
    /* An accepted one that never opened is nobody's business above. */
    if (known)
        h->sink->closed(h->ctx, &c->base, reason, text);
    for (struct tcp_channel **at = &ep->channels; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    ep->base.channels--;
    tcp_channel_free(c);
}

/* ---- going out --------------------------------------------------------------------------------- */

static struct tcp_out *out_new(uint8_t kind, uint8_t flags, uint32_t size, size_t head, size_t copied)
{
    struct tcp_out *o = calloc(1, sizeof *o + head + copied);
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

static void queue(struct tcp_channel *c, struct tcp_out *o)
{
    *c->tail = o;
    c->tail = &o->next;
    c->queued += o->kind == TP_TCP_FRAME || o->kind == TP_TCP_PUT;
}

static int fill_iov(const struct tcp_channel *c, struct iovec v[IOVS])
{
    int n = 0;
    for (const struct tcp_out *o = c->head; o && n + 2 <= IOVS; o = o->next) {
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

static void take_sent(struct tcp_channel *c, size_t sent)
{
    for (struct tcp_out *o; (o = c->head) && sent;) {
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

static void drop_queue(struct tcp_channel *c)
{
    for (struct tcp_out *o; (o = c->head);) {
        c->head = o->next;
        free(o);
    }
    c->tail = &c->head;
    c->queued = 0;
}

/* Writes what the socket takes. */
static void flush(struct tcp_channel *c)
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
            tcp_fail(c, -errno, strerror(errno));
        if (n < 0) {
            /* The other side is gone. What it said before is still to be read, and reading meets the end. */
            drop_queue(c);
            return;
        }
        take_sent(c, (size_t)n);
    }
}

static bool usable(const struct tcp_channel *c)
{
    return c->state == TCP_OPEN && !c->finishing && !c->failed && !c->fin_seen && !c->refusing;
}

static bool has_room(struct tcp_channel *c)
{
    if (c->queued < c->base.credits_max)
        return true;
    c->starved = true;
    return false;
}

int tcp_send(struct tp_channel *base, const struct iovec *part, int n)
{
    struct tcp_channel *c = (struct tcp_channel *)base;
    size_t size = tp_iov_size(part, n);
    if (!usable(c))
        return -ENOTCONN;
    if (size == 0 || size > base->frame_max)
        return -EMSGSIZE;
    if (!has_room(c))
        return -EAGAIN;
    struct tcp_out *o = out_new(TP_TCP_FRAME, 0, (uint32_t)size, TP_TCP_HEAD, size);
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

int tcp_put(struct tp_channel *base, const struct tp_put *p)
{
    struct tcp_channel *c = (struct tcp_channel *)base;
    const struct tp_region *r = p->region;
    const uint8_t *from = p->from;
    if (!usable(c))
        return -ENOTCONN;
    if (p->size == 0 || from < r->base || p->size > r->size || from > r->base + (r->size - p->size) ||
        p->key.size != sizeof(uint64_t))
        return -EINVAL;
    if (!has_room(c))
        return -EAGAIN;
    struct tcp_waiting *w = calloc(1, sizeof *w);
    struct tcp_out *first = NULL, **last = &first;
    for (size_t done = 0; w && done < p->size; last = &(*last)->next) {
        size_t left = p->size - done, size = left < PUT_PART ? left : PUT_PART;
        bool end_of_put = size == left;
        uint8_t flags = end_of_put ? p->with_immediate ? TP_TCP_IMMEDIATE : 0 : TP_TCP_MORE;
        struct tcp_out *o = *last = out_new(TP_TCP_PUT, flags, (uint32_t)size, TP_TCP_HEAD + TP_TCP_PUT_HEAD, 0);
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
            for (struct tcp_out *x = first, *next; x; x = next) {
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
    for (struct tcp_out *o; (o = first);) {
        first = o->next;
        free(o);
    }
    free(w);
    return -ENOMEM;
}

static void tell_done(struct tcp_channel *c)
{
    if (!c->done_owed || c->state != TCP_OPEN)
        return;
    struct tcp_out *o = out_new(TP_TCP_DONE, 0, c->done_owed, TP_TCP_HEAD, 0);
    if (!o)
        return; /* with the next one */
    c->done_owed = 0;
    queue(c, o);
}

int tcp_trust(struct tp_channel *base)
{
    if (!usable((struct tcp_channel *)base))
        return -ENOTCONN;
    base->trusted = true;
    return 0;
}

void tcp_finish(struct tp_channel *base)
{
    struct tcp_channel *c = (struct tcp_channel *)base;
    if (c->state < TCP_OPEN) {
        tcp_fail(c, -ECANCELED, "");
        return;
    }
    c->finishing = true;
    base->endpoint->host.wake(base->endpoint->host.ctx);
}

void tcp_abort(struct tp_channel *base)
{
    struct tcp_channel *c = (struct tcp_channel *)base;
    c->failed = 0; /* this reason counts */
    tcp_fail(c, -ECANCELED, "");
}

static struct tp_region *find_region(struct tcp_endpoint *ep, uint64_t id)
{
    struct tp_region *r = ep->regions;
    while (r && r->id != id)
        r = r->next;
    return r;
}

/* ---- coming in --------------------------------------------------------------------------------- */

static void take_done(struct tcp_channel *c, uint32_t n)
{
    for (; n && c->puts; n--)
        done_put(c, 0);
    if (n)
        tcp_fail(c, -EPROTO, "the other side tells of more puts than there were");
}

/* The put that begins is refused: the other side learns it, and this one reads nothing more. */
static void refuse_put(struct tcp_channel *c)
{
    struct tcp_out *o;
    tell_done(c);
    o = out_new(TP_TCP_REFUSE, 0, 0, TP_TCP_HEAD, 0);
    if (o)
        queue(c, o);
    c->refusing = true;
    c->have = 0;
    c->deadline = tcp_now(tcp_endpoint_of(c)) + LINGER_NS;
    snprintf(c->why, sizeof c->why, "a put named a window or a range that is not there");
}

static void begin_put(struct tcp_channel *c)
{
    struct tp_region *r = c->base.trusted ? find_region(tcp_endpoint_of(c), c->item.region) : NULL;
    if (!r || c->item.size > r->size || c->item.offset > r->size - c->item.size) {
        refuse_put(c);
        return;
    }
    c->into = r->base + c->item.offset;
    c->left = c->item.size;
}

static void put_landed(struct tcp_channel *c)
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

/* The largest frame that may come now. */
static uint32_t hears(const struct tcp_channel *c)
{
    return c->base.hears && c->base.hears < c->base.frame_max ? c->base.hears : c->base.frame_max;
}

/* What is in the buffer, up to the first item that is not whole. */
static void take_buffer(struct tcp_channel *c)
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
        int head = tp_tcp_parse_head(c->in + at, have, hears(c), &item, &err);
        if (head == -EAGAIN)
            break;
        if (head < 0 || c->fin_seen) {
            tcp_fail(c, -EPROTO, head < 0 ? err.msg : "something comes after the end");
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
            tcp_fail(c, -EACCES, "the other side refused a put: no such window or range");
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
static ssize_t read_put(struct tcp_channel *c)
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

static ssize_t read_some(struct tcp_channel *c)
{
    if (c->item.kind == TP_TCP_PUT && c->have == 0 && !c->refusing)
        return read_put(c);
    ssize_t n = recv(c->fd, c->in + c->have, TCP_READ_BUFFER - c->have, MSG_DONTWAIT);
    if (n > 0 && !c->refusing) {
        c->have += (size_t)n;
        take_buffer(c);
    }
    return n;
}

static void read_open(struct tcp_channel *c)
{
    for (int i = 0; i < READS_PER_EVENT && !c->failed; i++) {
        ssize_t n = read_some(c);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0 && c->refusing)
            tcp_fail(c, -EACCES, c->why);
        else if (n == 0 && !(c->fin_seen && c->fin_queued && !c->head))
            tcp_fail(c, -ECONNRESET, "the other side closed the connection");
        else if (n < 0)
            tcp_fail(c, errno == ETIMEDOUT ? -ETIMEDOUT : -ECONNRESET, strerror(errno));
        if (n <= 0)
            return;
    }
}

/* ---- beginning and waiting --------------------------------------------------------------------- */

static void send_preamble(struct tcp_channel *c)
{
    struct tcp_endpoint *ep = tcp_endpoint_of(c);
    struct tcp_out *o = out_new(0, 0, 0, TP_TCP_PREAMBLE, 0);
    if (!o) {
        tcp_fail(c, -ENOMEM, "no memory for a channel");
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
static void read_preamble(struct tcp_channel *c)
{
    struct tcp_endpoint *ep = tcp_endpoint_of(c);
    const struct tp_host *h = &ep->base.host;
    enum tp_class class;
    uint32_t frame_max, depth;
    struct cfg_error err;
    ssize_t n = recv(c->fd, c->in + c->have, TP_TCP_PREAMBLE - c->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        tcp_fail(c, -ECONNRESET, "the other side closed the connection before it began");
        return;
    }
    c->have += (size_t)n;
    if (c->have < TP_TCP_PREAMBLE)
        return;
    if (tp_tcp_parse_preamble(c->in, &class, &frame_max, &depth, &err)) {
        tcp_fail(c, -EPROTO, err.msg);
        return;
    }
    if (c->base.dialled && class != c->base.class) {
        tcp_fail(c, -EPROTO, "the other side took the connection for another class");
        return;
    }
    c->have = 0;
    c->base.frame_max = frame_max < ep->frame_max ? frame_max : ep->frame_max;
    c->base.credits_max = depth < ep->depth ? depth : ep->depth;
    c->base.class = class;
    c->deadline = TP_NEVER;
    if (!c->base.dialled)
        send_preamble(c);
    c->state = TCP_OPEN;
    if (c->base.dialled)
        h->sink->opened(h->ctx, &c->base);
    else
        h->sink->accepted(h->ctx, &c->base);
}

static void connected(struct tcp_channel *c)
{
    int e = 0;
    socklen_t len = sizeof e;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &len);
    if (e) {
        tcp_fail(c, -e, strerror(e));
        return;
    }
    c->state = TCP_PREAMBLE;
    send_preamble(c);
}

void tcp_settle(struct tcp_channel *c)
{
    const struct tp_host *h = &c->base.endpoint->host;
    if (c->state == TCP_OPEN && !c->failed) {
        tell_done(c);
        if ((c->finishing || (c->fin_seen && !c->puts)) && !c->fin_queued) {
            struct tcp_out *o = out_new(TP_TCP_FIN, 0, 0, TP_TCP_HEAD, 0);
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
    else if (c->state == TCP_OPEN && c->fin_seen && c->fin_queued && !c->head && !c->puts)
        end(c, 0, "");
    else
        want(c);
}

static void on_socket(evutil_socket_t fd, short what, void *ctx)
{
    struct tcp_channel *c = ctx;
    (void)fd;
    if (c->state == TCP_CONNECTING)
        connected(c);
    else if (c->state == TCP_PREAMBLE && (what & EV_READ))
        read_preamble(c);
    else if (c->state == TCP_OPEN && (what & EV_READ))
        read_open(c);
    if (what & EV_WRITE)
        flush(c);
    tcp_settle(c);
}

/* Waits for what the channel needs now. */
static void want(struct tcp_channel *c)
{
    if (!c->event)
        return;
    short what = EV_PERSIST | EV_READ;
    if (c->state == TCP_CONNECTING)
        what = EV_PERSIST | EV_WRITE;
    else if (c->head)
        what |= EV_WRITE;
    if (what == c->watched)
        return;
    event_del(c->event);
    event_assign(c->event, c->base.endpoint->host.base, c->fd, what, on_socket, c);
    if (event_add(c->event, NULL))
        tcp_fail(c, -ENOMEM, "the event loop takes no more");
    c->watched = what;
}

void tcp_watch(struct tcp_channel *c)
{
    c->event = event_new(c->base.endpoint->host.base, c->fd, EV_PERSIST | EV_READ, on_socket, c);
    if (!c->event)
        tcp_fail(c, -ENOMEM, "no memory for a channel");
    else
        want(c);
}
