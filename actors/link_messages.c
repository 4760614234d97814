/* Messages between links: encoding, delivery, and the table of requests that are at other nodes. Nobody's request is
 * ever without an end: its entry leaves the table with its reply, its return, or the loss of its node. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/link_impl.h"
#include "actors/runtime/log.h"

enum tp_class link_class(unsigned type)
{
    if (type >= ACT_EXPERT_DISPATCH && type < ACT_KV_LOOKUP)
        return TP_CLASS_EXPERT;
    /* The state of a hand-off is history, too: megabytes, which must not be in a cancel's way. */
    if (type == ACT_KV_READY)
        return TP_CLASS_KV;
    return type >= ACT_KV_LOOKUP && type <= ACT_REMOTE_STORE ? TP_CLASS_KV : TP_CLASS_CONTROL;
}

/* ---- requests at other nodes ---------------------------------------------------------------------- */

static struct link_call **bucket(struct link *l, uint64_t request)
{
    return &l->call[(request * UINT64_C(0x9e3779b97f4a7c15)) >> 54 & (LINK_BUCKETS - 1)];
}

static struct link_peer *peer_of(struct link *l, unsigned number)
{
    int index = l->index_of[number] - 1;
    return index >= 0 && l->peer[index].number == number ? &l->peer[index] : NULL;
}

static struct link_call *remember(struct link *l, const struct act_msg *m)
{
    struct link_call *c = malloc(sizeof *c), **at = bucket(l, m->request);
    if (!c)
        return NULL;
    *c = (struct link_call){.from = m->src,
                            .to = m->dst,
                            .request = m->request,
                            .deadline = m->deadline,
                            .attempt = m->attempt,
                            .promise = m->promise,
                            .type = m->type};
    /* The oldest of equal ones is answered first. */
    while (*at)
        at = &(*at)->next;
    *at = c;
    peer_of(l, m->dst.peer)->calls++;
    return c;
}

/* This one alone, and none of its equals that are under way. */
static void forget(struct link *l, struct link_call *c)
{
    struct link_call **at = bucket(l, c->request);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    peer_of(l, c->to.peer)->calls--;
    free(c);
}

/* Takes out the request of `from` to `to`; equal ones cannot be told apart by their sender either. */
static struct link_call *recall(struct link *l, struct act_addr from, struct act_addr to, uint64_t request,
                                uint16_t attempt)
{
    for (struct link_call **at = bucket(l, request), *c; (c = *at); at = &c->next)
        if (c->request == request && c->attempt == attempt && act_addr_equal(c->from, from) &&
            act_addr_equal(c->to, to)) {
            struct link_peer *p = peer_of(l, to.peer);
            *at = c->next;
            if (p)
                p->calls--;
            return c;
        }
    return NULL;
}

/* The request ends as if its receiver had died with it. */
static void abandon(struct link *l, struct link_call *c)
{
    struct act_msg m = act_msg_make((enum act_type)c->type, c->to);
    m.length = 0;
    m.src = c->from;
    m.request = c->request;
    m.attempt = c->attempt;
    m.deadline = c->deadline;
    m.promise = c->promise;
    m.flags = ACT_MSG_WANTS_REPLY | ACT_MSG_ABANDONED;
    act_return(l->self, &m);
    free(c);
}

void link_give_back(struct link *l, uint16_t number, int class)
{
    struct link_peer *p = peer_of(l, number);
    for (int b = 0; b < LINK_BUCKETS; b++)
        for (struct link_call **at = &l->call[b], *c; (c = *at);) {
            if (c->to.peer != number || (class >= 0 && (int)link_class(c->type) != class)) {
                at = &c->next;
                continue;
            }
            *at = c->next;
            if (p)
                p->calls--;
            abandon(l, c);
        }
}

/* ---- going out ------------------------------------------------------------------------------------ */

static uint8_t *scratch(struct link *l, size_t size)
{
    if (size <= l->scratch_size)
        return l->scratch;
    free(l->scratch);
    l->scratch = malloc(size);
    l->scratch_size = l->scratch ? size : 0;
    return l->scratch;
}

/* Encodes m behind a head and sends it. */
static int send_one(struct link *l, int index, enum link_kind kind, unsigned type, const struct act_msg *m)
{
    uint8_t head[LINK_HEAD] = {kind, (uint8_t)type};
    size_t size = act_wire_size(m), written;
    uint8_t *bytes = size ? scratch(l, size) : NULL;
    if (!bytes)
        return size ? -ENOMEM : -EINVAL;
    int r = act_wire_encode(act_self_runtime(l->self), m, act_now(l->self), bytes, &written);
    if (r)
        return r;
    struct iovec v[2] = {{head, LINK_HEAD}, {bytes, written}};
    return tp_net_send(l->net, index, link_class(type), v, 2);
}

/* What a request waits for cannot leave. Where its connection is gone, the other side gives it up when it hears of
 * that; else it would never end, so the connection has to go: without this node's word it is worth nothing. */
static void break_off(struct link *l, int index, unsigned type, int status)
{
    enum tp_class class = link_class(type);
    if (status != -ENOTCONN || class == TP_CLASS_CONTROL)
        tp_net_fence(l->net, index, class);
}

/* Back to the node whose message m was: m is the UNDELIVERABLE that the runtime made of it. */
static void send_returned(struct link *l, int index, const struct act_msg *m)
{
    struct act_msg back = *m;
    back.type = (uint8_t)m->returned;
    back.returned = 0;
    back.src = m->dst;
    back.dst = m->src;
    back.length = act_type_info(back.type)->inline_size;
    if (!(m->flags & ACT_MSG_ABANDONED) && send_one(l, index, LINK_RETURNED, back.type, &back) == 0)
        return;
    struct act_msg bare = act_msg_make(ACT_PING, back.dst);
    bare.src = back.src;
    bare.flags = back.flags;
    bare.request = m->request;
    bare.attempt = m->attempt;
    int r = send_one(l, index, LINK_ABANDONED, back.type, &bare);
    if (r)
        break_off(l, index, back.type, r);
}

void link_send(struct link *l, struct act_msg *m)
{
    struct link_peer *p = peer_of(l, m->dst.peer);
    int index = p ? (int)(p - l->peer) : -1;
    if (m->type == ACT_UNDELIVERABLE) {
        if (p)
            send_returned(l, index, m);
        return;
    }
    bool request = (m->flags & ACT_MSG_WANTS_REPLY) != 0;
    struct link_call *c = p && request ? remember(l, m) : NULL;
    int r = !p ? -ENOTCONN : request && !c ? -ENOMEM : send_one(l, index, LINK_MESSAGE, m->type, m);
    if (r && c)
        forget(l, c);
    if (!r)
        return;
    l->bounced++;
    if ((m->flags & ACT_MSG_REPLY) && p)
        break_off(l, index, m->type, r);
    if (r != -ENOTCONN)
        act_log_write(l->arg->log, ACT_LOG_WARNING, "link", m->request, "a %s message was not sent: %s",
                      act_type_name(m->type), strerror(-r));
    act_return(l->self, m);
}

/* ---- coming in ------------------------------------------------------------------------------------ */

static void take_reply(struct link *l, struct act_msg *m)
{
    struct link_call *c = recall(l, m->dst, m->src, m->request, m->attempt);
    if (!c) {
        l->late_replies++;
        act_msg_drop(m);
        return;
    }
    struct act_promise p = {.to = c->from, .request = c->request, .attempt = c->attempt, .number = c->promise};
    if (act_forward_reply(l->self, &p, m)) {
        act_msg_drop(m);
        abandon(l, c);
        return;
    }
    free(c);
}

static void take_returned(struct link *l, struct act_msg *m)
{
    struct link_call *c = m->flags & ACT_MSG_WANTS_REPLY ? recall(l, m->src, m->dst, m->request, m->attempt) : NULL;
    if ((m->flags & ACT_MSG_WANTS_REPLY) && !c) {
        act_msg_drop(m);
        return;
    }
    m->promise = c ? c->promise : 0;
    free(c);
    act_return(l->self, m);
}

static void deliver(struct link *l, int index, struct act_msg *m)
{
    if (m->flags & ACT_MSG_REPLY) {
        take_reply(l, m);
        return;
    }
    if (m->type == ACT_DOWN)
        link_watch_done(l, m->dst, act_p_down(m)->who);
    if (act_forward(l->self, m) == 0)
        return;
    /* No room for it here: back as if nobody were there. */
    struct act_msg r = *m;
    r.returned = m->type;
    r.type = ACT_UNDELIVERABLE;
    r.src = m->dst;
    r.dst = m->src;
    l->bounced++;
    if (!act_addr_is_nobody(m->src))
        send_returned(l, index, &r);
    act_msg_drop(m);
}

int link_take(struct link *l, int index, const uint8_t *bytes, size_t size, struct cfg_error *err)
{
    struct link_peer *p = &l->peer[index];
    struct act_msg m;
    size_t used;
    if (size < LINK_HEAD || bytes[2] || bytes[3])
        return cfg_error_set(err, EPROTO, "a malformed message between links");
    enum link_kind kind = (enum link_kind)bytes[0];
    int r = act_wire_decode(act_self_runtime(l->self), bytes + LINK_HEAD, size - LINK_HEAD, act_now(l->self), &m, &used,
                            err);
    if (r == -ESTALE)
        return 0; /* it names somebody who is no more; whoever sent it learns of that by itself */
    if (r || used != size - LINK_HEAD) {
        if (!r)
            act_msg_drop(&m);
        return r == -ENOMEM
                   ? r
                   : cfg_error_set(err, EPROTO, "a message that cannot be read%s%s", r ? ": " : "", r ? err->msg : "");
    }
    /* A node speaks for itself only, and to this one only. */
    struct act_addr theirs = kind == LINK_MESSAGE ? m.src : m.dst, ours = kind == LINK_MESSAGE ? m.dst : m.src;
    if (ours.peer || (!act_addr_is_nobody(theirs) && theirs.peer != p->number)) {
        act_msg_drop(&m);
        return ours.peer ? 0 : cfg_error_set(err, EPROTO, "a message in the name of another node");
    }
    switch (kind) {
    case LINK_MESSAGE:
        deliver(l, index, &m);
        return 0;
    case LINK_RETURNED:
        take_returned(l, &m);
        return 0;
    case LINK_ABANDONED:
        m.type = bytes[1];
        m.length = 0;
        m.flags |= ACT_MSG_ABANDONED;
        take_returned(l, &m);
        return 0;
    default:
        act_msg_drop(&m);
        return cfg_error_set(err, EPROTO, "a message between links of kind %u", bytes[0]);
    }
}
