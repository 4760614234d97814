/* One channel of a net: the steps of its handshake, messages cut into frames and put together again, pings. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/bytes.h"
#include "transport/net_impl.h"

enum { DATA_HEAD = 8, DATA_FIRST = 1, DATA_LAST = 2, PING_SIZE = 12, ACCEPTING_MAX = 128, MEMORY_WAIT_NS = 10000000 };

/* ---- making and ending --------------------------------------------------------------------------- */

static struct net_conn *conn_new(struct tp_net *net, int peer, enum tp_class class)
{
    struct net_conn *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->net = net;
    c->peer = peer;
    c->class = class;
    c->queue_tail = &c->queue;
    c->heard = c->spoken = net_now(net);
    c->deadline = c->heard + net->config.handshake_ns;
    c->next = net->conns;
    net->conns = c;
    return c;
}

void net_conn_free(struct net_conn *c)
{
    for (struct net_conn **at = &c->net->conns; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    for (struct net_blob *b; (b = c->queue);) {
        c->queue = b->next;
        free(b);
    }
    free(c->in);
    free(c);
}

int net_conn_dial(struct tp_net *net, int peer, const char *address, enum tp_class class, uint32_t generation,
                  const char *wanted, uint16_t wanted_number, struct net_conn **out, struct cfg_error *err)
{
    struct net_conn *c = conn_new(net, peer, class);
    if (!c)
        return cfg_error_set(err, ENOMEM, "no memory for a connection");
    c->generation = generation;
    tp_copy_text(c->other.name, sizeof c->other.name, wanted);
    c->other.number = wanted_number;
    c->step = NET_DIALLING;
    int r = net->config.ops->connect(net->ep, address, class, c, &c->channel, err);
    if (r) {
        net_conn_free(c);
        return r;
    }
    *out = c;
    return 0;
}

static void set_why(struct net_conn *c, const char *why)
{
    if (!c->why[0])
        tp_copy_text(c->why, sizeof c->why, why);
}

void net_conn_abort(struct net_conn *c, const char *why)
{
    set_why(c, why);
    c->step = NET_ENDING;
    c->channel->ops->abort(c->channel);
}

static int send_frame(struct net_conn *c, const void *bytes, size_t size)
{
    struct iovec v = {(void *)(uintptr_t)bytes, size};
    c->spoken = net_now(c->net);
    return c->channel->ops->send(c->channel, &v, 1);
}

/* The other side has so long to say its own end; then it is cut off. */
static void leave(struct net_conn *c)
{
    c->leaving = true;
    c->deadline = net_now(c->net) + c->net->config.handshake_ns;
    c->channel->ops->finish(c->channel);
    net_wake(c->net);
}

void net_conn_refuse(struct net_conn *c, enum tp_refusal code, const char *fmt, ...)
{
    uint8_t frame[TP_HANDSHAKE_MAX];
    char text[TP_REASON_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    set_why(c, text);
    c->hopeless = code != TP_REFUSED_BUSY;
    size_t n = tp_refuse_encode(code, text, frame);
    c->step = NET_ENDING;
    if (send_frame(c, frame, n))
        c->channel->ops->abort(c->channel);
    else
        leave(c);
}

/* ---- the handshake ------------------------------------------------------------------------------- */

static bool say(struct net_conn *c, const uint8_t *frame, size_t size)
{
    if (c->said_size + size <= sizeof c->said) {
        memcpy(c->said + c->said_size, frame, size);
        c->said_size += size;
    }
    if (send_frame(c, frame, size) == 0)
        return true;
    net_conn_abort(c, "the handshake could not be sent");
    return false;
}

static void hear(struct net_conn *c, const uint8_t *frame, size_t size)
{
    if (c->said_size + size > sizeof c->said)
        return;
    memcpy(c->said + c->said_size, frame, size);
    c->said_size += size;
}

/* What this side says about itself on this channel. */
static struct tp_hello self_of(struct net_conn *c)
{
    struct tp_hello h = c->net->config.self;
    const struct tp_host *host = &c->net->config.endpoint.host;
    h.class = (uint8_t)c->class;
    h.generation = c->generation;
    h.wanted[0] = 0;
    h.wanted_number = 0;
    host->random(host->ctx, h.nonce, sizeof h.nonce);
    return h;
}

static int own_windows(const struct tp_net *net, struct tp_window out[TP_WINDOWS_MAX])
{
    for (int i = 0; i < net->n_windows; i++)
        out[i] = (struct tp_window){.id = net->window[i].id, .size = net->window[i].size, .key = net->window[i].key};
    return net->n_windows;
}

static void begin(struct net_conn *c)
{
    uint8_t frame[TP_HANDSHAKE_MAX];
    struct tp_hello h = self_of(c);
    tp_copy_text(h.wanted, sizeof h.wanted, c->other.name);
    h.wanted_number = c->other.number;
    c->step = NET_HELLO;
    say(c, frame, tp_hello_encode(&h, frame));
}

static void malformed(struct net_conn *c, int rc, const struct cfg_error *err)
{
    if (rc == -EPROTONOSUPPORT)
        net_conn_refuse(c, TP_REFUSED_VERSION, "%s", err->msg);
    else
        net_conn_abort(c, err->msg);
}

static void take_hello(struct net_conn *c, const uint8_t *frame, size_t size)
{
    struct cfg_error err;
    uint8_t reply[TP_HANDSHAKE_MAX];
    int rc = size && frame[0] == TP_FRAME_HELLO ? tp_hello_decode(frame, size, &c->other, &err)
                                                : cfg_error_set(&err, EPROTO, "it does not begin with a HELLO");
    if (rc) {
        malformed(c, rc, &err);
        return;
    }
    c->generation = c->other.generation;
    hear(c, frame, size);
    if (!net_acceptable(c))
        return;
    struct tp_hello h = self_of(c);
    size_t n = tp_challenge_encode(&h, c->net->config.secret, c->said, c->said_size, reply);
    c->step = NET_CHALLENGE;
    say(c, reply, n);
}

/* The other side, which has proved who it is, may write to the windows. */
static bool trust(struct net_conn *c)
{
    char why[TP_REASON_TEXT];
    int rc = c->channel->ops->trust(c->channel);
    if (rc == 0)
        return true;
    snprintf(why, sizeof why, "it could not be allowed to write to the windows (%s)", strerror(-rc));
    net_conn_abort(c, why);
    return false;
}

static void take_challenge(struct net_conn *c, const uint8_t *frame, size_t size)
{
    struct cfg_error err;
    struct tp_hello other;
    struct tp_window windows[TP_WINDOWS_MAX];
    uint8_t reply[TP_HANDSHAKE_MAX];
    int rc = frame[0] == TP_FRAME_CHALLENGE ? tp_hello_decode(frame, size, &other, &err)
                                            : cfg_error_set(&err, EPROTO, "it does not answer a HELLO");
    if (rc) {
        malformed(c, rc, &err);
        return;
    }
    if (!tp_proof_check(c->net->config.secret, c->said, c->said_size, frame, size)) {
        net_conn_refuse(c, TP_REFUSED_SECRET,
                        "the secrets differ: the file of cluster.secret_file must be the same on all nodes");
        return;
    }
    if (strcmp(other.name, c->other.name) != 0 || other.number != c->other.number) {
        net_conn_refuse(c, TP_REFUSED_ROLE, "node %s (number %u) was wanted here, and %s (number %u) answers",
                        c->other.name, c->other.number, other.name, other.number);
        return;
    }
    c->other = other;
    c->epoch = other.epoch;
    hear(c, frame, size);
    /* Now, as it may write as soon as it has said WELCOME. */
    if (!net_acceptable(c) || !trust(c))
        return;
    size_t n = tp_proof_encode(TP_FRAME_PROOF, c->net->config.secret, c->said, c->said_size, windows,
                               own_windows(c->net, windows), reply);
    c->step = NET_PROOF;
    say(c, reply, n);
}

static bool take_proof(struct net_conn *c, const uint8_t *frame, size_t size, enum tp_frame type)
{
    struct cfg_error err;
    int rc = frame[0] == type ? tp_proof_decode(frame, size, c->windows, &c->n_windows, &err)
                              : cfg_error_set(&err, EPROTO, "a step of the handshake is missing");
    if (rc) {
        malformed(c, rc, &err);
        return false;
    }
    if (!tp_proof_check(c->net->config.secret, c->said, c->said_size, frame, size)) {
        net_conn_refuse(c, TP_REFUSED_SECRET,
                        "the secrets differ: the file of cluster.secret_file must be the same on all nodes");
        return false;
    }
    hear(c, frame, size);
    return true;
}

static void is_up(struct net_conn *c)
{
    c->channel->hears = 0;
    c->step = NET_UP;
    c->up_at = c->heard = net_now(c->net);
    net_conn_is_up(c);
}

void net_conn_welcome(struct net_conn *c)
{
    struct tp_window windows[TP_WINDOWS_MAX];
    uint8_t reply[TP_HANDSHAKE_MAX];
    int n_own = c->tool ? 0 : own_windows(c->net, windows);
    if (!c->tool && !trust(c))
        return;
    size_t n = tp_proof_encode(TP_FRAME_WELCOME, c->net->config.secret, c->said, c->said_size, windows, n_own, reply);
    if (say(c, reply, n))
        is_up(c);
}

static void take_refuse(struct net_conn *c, const uint8_t *frame, size_t size)
{
    enum tp_refusal code;
    char reason[TP_REASON_TEXT];
    if (tp_refuse_decode(frame, size, &code, reason)) {
        net_conn_abort(c, "a malformed refusal");
        return;
    }
    c->hopeless = code != TP_REFUSED_BUSY;
    tp_copy_text(c->why, sizeof c->why, reason);
    c->step = NET_ENDING;
    leave(c);
}

static void handshake(struct net_conn *c, const uint8_t *frame, size_t size)
{
    if (size && frame[0] == TP_FRAME_REFUSE) {
        take_refuse(c, frame, size);
        return;
    }
    switch (c->step) {
    case NET_ACCEPTED:
        take_hello(c, frame, size);
        break;
    case NET_HELLO:
        take_challenge(c, frame, size);
        break;
    case NET_CHALLENGE:
        if (take_proof(c, frame, size, TP_FRAME_PROOF)) {
            c->epoch = c->other.epoch;
            net_decide(c);
        }
        break;
    case NET_PROOF:
        if (take_proof(c, frame, size, TP_FRAME_WELCOME))
            is_up(c);
        break;
    default:
        net_conn_abort(c, "it speaks out of turn");
    }
}

/* ---- messages ------------------------------------------------------------------------------------ */

static void data_head(uint8_t head[DATA_HEAD], int flags, size_t total)
{
    memset(head, 0, DATA_HEAD);
    head[0] = TP_FRAME_DATA;
    head[1] = (uint8_t)flags;
    tp_put_uint(head + 4, total, 4);
}

void net_conn_pump(struct net_conn *c)
{
    uint8_t head[DATA_HEAD];
    struct net_blob *b;
    c->pump_at = 0;
    while (c->step == NET_UP && (b = c->queue)) {
        size_t room = c->channel->frame_max - DATA_HEAD, left = b->size - b->sent, part = left < room ? left : room;
        data_head(head, (b->sent ? 0 : DATA_FIRST) | (part == left ? DATA_LAST : 0), b->size);
        struct iovec v[] = {{head, DATA_HEAD}, {b->bytes + b->sent, part}};
        int r = c->channel->ops->send(c->channel, v, 2);
        if (r == -ENOMEM) {
            c->pump_at = net_now(c->net) + MEMORY_WAIT_NS;
            net_wake(c->net);
        }
        if (r)
            return; /* room follows, or the end */
        c->spoken = net_now(c->net);
        b->sent += part;
        if (b->sent < b->size)
            continue;
        c->queue = b->next;
        if (!c->queue)
            c->queue_tail = &c->queue;
        c->queued -= b->size;
        free(b);
    }
}

int net_conn_send(struct net_conn *c, const struct iovec *part, int n)
{
    size_t size = tp_iov_size(part, n);
    uint8_t head[DATA_HEAD];
    struct iovec v[TP_IOV_MAX];
    if (size == 0 || size > TP_MESSAGE_MAX || n >= TP_IOV_MAX)
        return -EMSGSIZE;
    if (!c->queue && size + DATA_HEAD <= c->channel->frame_max) {
        data_head(head, DATA_FIRST | DATA_LAST, size);
        v[0] = (struct iovec){head, DATA_HEAD};
        memcpy(v + 1, part, (size_t)n * sizeof *part);
        int r = c->channel->ops->send(c->channel, v, n + 1);
        if (r != -EAGAIN) {
            c->spoken = net_now(c->net);
            return r;
        }
    }
    if (c->queued + size > TP_QUEUE_MAX)
        return -EAGAIN;
    struct net_blob *b = malloc(sizeof *b + size);
    if (!b)
        return -ENOMEM;
    *b = (struct net_blob){0};
    for (int i = 0; i < n; i++) {
        memcpy(b->bytes + b->size, part[i].iov_base, part[i].iov_len);
        b->size += part[i].iov_len;
    }
    *c->queue_tail = b;
    c->queue_tail = &b->next;
    c->queued += size;
    net_conn_pump(c);
    return 0;
}

static void deliver(struct net_conn *c, const uint8_t *bytes, size_t size)
{
    const struct tp_net_sink *s = c->net->config.sink;
    if (c->tool)
        s->asked(c->net->config.endpoint.host.ctx, c->tool, bytes, size);
    else
        s->message(c->net->config.endpoint.host.ctx, c->peer, c->class, bytes, size);
}

static void take_data(struct net_conn *c, const uint8_t *frame, size_t size)
{
    size_t part = size - DATA_HEAD, total = tp_get32(frame + 4);
    bool first = frame[1] & DATA_FIRST, last = frame[1] & DATA_LAST;
    bool fits = size > DATA_HEAD && !(frame[1] & ~(DATA_FIRST | DATA_LAST)) && !frame[2] && !frame[3] &&
                total <= TP_MESSAGE_MAX && first == !c->in && (first || total == c->in_size) &&
                part <= total - (first ? 0 : c->in_have) && last == ((first ? 0 : c->in_have) + part == total);
    if (!fits) {
        net_conn_abort(c, "a malformed message");
        return;
    }
    if (first && last) {
        deliver(c, frame + DATA_HEAD, part);
        return;
    }
    if (first) {
        c->in = malloc(total);
        c->in_size = total;
        c->in_have = 0;
    }
    if (!c->in) {
        net_conn_abort(c, "no memory for a message");
        return;
    }
    memcpy(c->in + c->in_have, frame + DATA_HEAD, part);
    c->in_have += part;
    if (!last)
        return;
    uint8_t *whole = c->in;
    c->in = NULL;
    deliver(c, whole, total);
    free(whole);
}

/* ---- pings --------------------------------------------------------------------------------------- */

void net_conn_ping(struct net_conn *c)
{
    uint8_t frame[PING_SIZE] = {TP_FRAME_PING};
    int64_t now = net_now(c->net);
    tp_put_uint(frame + 4, (uint64_t)now, 8);
    if (!c->pinged)
        c->pinged = now; /* also when it could not be sent: a channel without room for long is as good as silent */
    send_frame(c, frame, sizeof frame);
}

static void take_ping(struct net_conn *c, const uint8_t *frame, size_t size)
{
    uint8_t reply[PING_SIZE];
    if (size != PING_SIZE) {
        net_conn_abort(c, "a malformed ping");
        return;
    }
    memcpy(reply, frame, sizeof reply);
    if (frame[0] == TP_FRAME_PING) {
        reply[0] = TP_FRAME_PONG;
        send_frame(c, reply, sizeof reply); /* without room: what is under way shows that this side lives */
    } else if (c->peer >= 0) {
        int64_t rtt = net_now(c->net) - (int64_t)tp_get64(frame + 4);
        c->net->peer[c->peer].info.rtt_ns = rtt > 0 ? rtt : 0;
    }
}

/* ---- the provider's sink ------------------------------------------------------------------------- */

static void on_opened(void *ctx, struct tp_channel *ch)
{
    struct net_conn *c = ch->user;
    (void)ctx;
    c->deadline = net_now(c->net) + c->net->config.handshake_ns;
    ch->hears = TP_HANDSHAKE_MAX;
    begin(c);
    net_wake(c->net);
}

static void on_frame(void *ctx, struct tp_channel *ch, const uint8_t *bytes, size_t size)
{
    struct net_conn *c = ch->user;
    (void)ctx;
    if (!c || c->step == NET_ENDING)
        return;
    c->heard = net_now(c->net);
    c->pinged = 0;
    if (c->step != NET_UP)
        handshake(c, bytes, size);
    else if (bytes[0] == TP_FRAME_DATA && size >= DATA_HEAD)
        take_data(c, bytes, size);
    else if (bytes[0] == TP_FRAME_PING || bytes[0] == TP_FRAME_PONG)
        take_ping(c, bytes, size);
    else
        net_conn_abort(c, "a frame of an unknown kind");
}

static void on_immediate(void *ctx, struct tp_channel *ch, uint32_t immediate)
{
    struct net_conn *c = ch->user;
    (void)ctx;
    if (!c || c->step == NET_ENDING)
        return;
    c->heard = net_now(c->net);
    c->pinged = 0;
    if (c->step != NET_UP || c->tool)
        net_conn_abort(c, "it speaks out of turn");
    else
        c->net->config.sink->immediate(c->net->config.endpoint.host.ctx, c->peer, c->class, immediate);
}

static void on_put_done(void *ctx, struct tp_channel *ch, uint64_t cookie, int status)
{
    struct net_conn *c = ch->user;
    (void)ctx;
    c->heard = status ? c->heard : net_now(c->net);
    if (c->peer >= 0)
        c->net->config.sink->put_done(c->net->config.endpoint.host.ctx, c->peer, c->class, cookie, status);
}

static void on_room(void *ctx, struct tp_channel *ch)
{
    struct net_conn *c = ch->user;
    (void)ctx;
    if (!c)
        return;
    net_conn_pump(c);
    if (c->put_starved && !c->queue && c->step == NET_UP) {
        c->put_starved = false;
        c->net->config.sink->room(c->net->config.endpoint.host.ctx, c->peer, c->class);
    }
}

static void on_closed(void *ctx, struct tp_channel *ch, int reason, const char *why)
{
    struct net_conn *c = ch->user;
    struct tp_net *net = ctx;
    if (!c)
        return; /* refused before it had a state */
    net_conn_ended(c, reason, c->why[0] ? c->why : why);
    net_conn_free(c);
    net_wake(net);
}

/* Whose connections have the places of those that have not proved who they are. */
static bool is_unknown(const struct net_conn *c)
{
    return c->peer < 0 && !c->tool && (c->step != NET_ENDING || c->leaving);
}

static bool same_host(const char *a, const char *b)
{
    const char *port = strrchr(a, ':');
    size_t n = port ? (size_t)(port - a) + 1 : strlen(a) + 1;
    return !strncmp(a, b, n);
}

/* The places are few and anybody can take one: a new connection gets that of the oldest one of the machine that has
 * most of them, so that whoever holds many keeps nobody else out. */
static void make_place(struct tp_net *net)
{
    struct net_conn *worst = NULL;
    int waiting = 0, most = 0;
    for (struct net_conn *c = net->conns; c; c = c->next)
        waiting += is_unknown(c);
    if (waiting < ACCEPTING_MAX)
        return;
    for (struct net_conn *c = net->conns; c; c = c->next) {
        int of_host = 0;
        for (const struct net_conn *o = is_unknown(c) ? net->conns : NULL; o; o = o->next)
            of_host += is_unknown(o) && same_host(o->channel->peer, c->channel->peer);
        if (of_host && of_host >= most) { /* the list begins with the newest */
            most = of_host;
            worst = c;
        }
    }
    worst->leaving = false;
    net_conn_abort(worst, "it did not prove in time who it is, and others wait for its place");
}

static void on_accepted(void *ctx, struct tp_channel *ch)
{
    struct tp_net *net = ctx;
    make_place(net);
    struct net_conn *c = conn_new(net, -1, ch->class);
    ch->user = c;
    if (!c) {
        ch->ops->abort(ch);
        return;
    }
    c->channel = ch;
    c->step = NET_ACCEPTED;
    ch->hears = TP_HANDSHAKE_MAX;
    net_wake(net);
}

const struct tp_sink net_conn_sink = {
    .accepted = on_accepted,
    .opened = on_opened,
    .frame = on_frame,
    .immediate = on_immediate,
    .put_done = on_put_done,
    .room = on_room,
    .closed = on_closed,
};
