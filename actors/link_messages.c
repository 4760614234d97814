/* Messages between links: encoding, delivery, and the table of requests that are at other nodes. Nobody's request is
 * ever without an end: its entry leaves the table with its reply, its return, the loss of its node, or its deadline. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/link_impl.h"
#include "actors/runtime/log.h"
#include "transport/bytes.h"

/* Longer than anything that is asked without a deadline may take; and how often late ones are told of, for each node.
 */
static const int64_t call_ns = INT64_C(120000000000), say_ns = INT64_C(10000000000);

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
    int64_t most = l->arg->call_ns ? l->arg->call_ns : call_ns;
    l->numbers += l->numbers == UINT16_MAX ? 2 : 1;
    *c = (struct link_call){.from = m->src,
                            .to = m->dst,
                            .request = m->request,
                            .deadline = m->deadline,
                            .until = m->deadline == ACT_NEVER ? act_now(l->self) + most : m->deadline,
                            .attempt = m->attempt,
                            .promise = m->promise,
                            .number = l->numbers,
                            .type = m->type};
    if (!act_timer_pending(&l->calls) || l->calls.at > c->until)
        act_timer_at(l->self, &l->calls, c->until, LINK_TAG_CALLS);
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

/* Takes out the request of `from` to `to`: the one with this number. Or, number 0, of one that came back: the oldest
 * of this type of equal ones, which their sender cannot tell apart either. */
static struct link_call *recall(struct link *l, struct act_addr from, struct act_addr to, uint64_t request,
                                uint16_t attempt, uint16_t number, unsigned type)
{
    for (struct link_call **at = bucket(l, request), *c; (c = *at); at = &c->next)
        if (c->request == request && c->attempt == attempt && act_addr_equal(c->from, from) &&
            act_addr_equal(c->to, to) && (number ? c->number == number : c->type == type)) {
            struct link_peer *p = peer_of(l, to.peer);
            *at = c->next;
            if (p)
                p->calls--;
            return c;
        }
    return NULL;
}

/* The request ends as if its receiver had died with it; flags: ACT_MSG_LATE, or 0. */
static void abandon(struct link *l, struct link_call *c, unsigned flags)
{
    struct act_msg m = act_msg_make((enum act_type)c->type, c->to);
    m.length = 0;
    m.src = c->from;
    m.request = c->request;
    m.attempt = c->attempt;
    m.deadline = c->deadline;
    m.promise = c->promise;
    m.flags = (uint16_t)(ACT_MSG_WANTS_REPLY | ACT_MSG_ABANDONED | flags);
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
            abandon(l, c, 0);
        }
}

/* One line per node now and then: a silent node is asked much. */
static void say_late(struct link *l, const struct link_call *c)
{
    int index = link_index_of(l, (uint16_t)c->to.peer);
    struct link_peer *p = index >= 0 ? &l->peer[index] : NULL;
    const struct tp_peer_info *info = p ? tp_net_peer(l->net, index) : NULL;
    if (!info)
        return;
    p->late++;
    if (p->said_late && act_now(l->self) - p->said_late < say_ns)
        return;
    act_log_event(l->arg->log, ACT_LOG_WARNING, "link", c->request, "no_answer",
                  "node=%s epoch=%llu to=%s attempt=%u calls=%d", info->name, (unsigned long long)info->epoch,
                  act_type_name(c->type), c->attempt, p->late);
    p->said_late = act_now(l->self);
    p->late = 0;
}

void link_expire(struct link *l)
{
    int64_t now = act_now(l->self), first = ACT_NEVER;
    for (int b = 0; b < LINK_BUCKETS; b++)
        for (struct link_call **at = &l->call[b], *c; (c = *at);) {
            if (c->until > now) {
                first = c->until < first ? c->until : first;
                at = &c->next;
                continue;
            }
            struct link_peer *p = peer_of(l, c->to.peer);
            *at = c->next;
            if (p)
                p->calls--;
            say_late(l, c);
            abandon(l, c, ACT_MSG_LATE);
        }
    if (first != ACT_NEVER)
        act_timer_at(l->self, &l->calls, first, LINK_TAG_CALLS);
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

/* Encodes m behind a head and sends it. number: of the call that it begins or answers. */
static int send_one(struct link *l, int index, enum link_kind kind, unsigned type, uint16_t number,
                    const struct act_msg *m)
{
    uint8_t head[LINK_HEAD] = {kind, (uint8_t)type};
    tp_put_uint(head + 2, number, 2);
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
    if (!(m->flags & ACT_MSG_ABANDONED) && send_one(l, index, LINK_RETURNED, back.type, 0, &back) == 0)
        return;
    struct act_msg bare = act_msg_make(ACT_PING, back.dst);
    bare.src = back.src;
    bare.flags = back.flags;
    bare.request = m->request;
    bare.attempt = m->attempt;
    int r = send_one(l, index, LINK_ABANDONED, back.type, 0, &bare);
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
    uint16_t number = c ? c->number : m->flags & ACT_MSG_REPLY ? m->promise : 0;
    int r = !p ? -ENOTCONN : request && !c ? -ENOMEM : send_one(l, index, LINK_MESSAGE, m->type, number, m);
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

/* It goes no further: back as if nobody were there, so that its sender takes back what it may have given with it. */
static void bounce(struct link *l, int index, struct act_msg *m)
{
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

static void take_reply(struct link *l, int index, struct act_msg *m)
{
    struct link_call *c = m->promise ? recall(l, m->dst, m->src, m->request, m->attempt, m->promise, 0) : NULL;
    if (!c) {
        l->late_replies++;
        bounce(l, index, m);
        return;
    }
    struct act_promise p = {.to = c->from, .request = c->request, .attempt = c->attempt, .number = c->promise};
    if (act_forward_reply(l->self, &p, m)) {
        act_msg_drop(m);
        abandon(l, c, 0);
        return;
    }
    free(c);
}

static void take_returned(struct link *l, struct act_msg *m)
{
    struct link_call *c =
        m->flags & ACT_MSG_WANTS_REPLY ? recall(l, m->src, m->dst, m->request, m->attempt, 0, m->type) : NULL;
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
        take_reply(l, index, m);
        return;
    }
    if (m->type == ACT_DOWN)
        link_watch_done(l, m->dst, act_p_down(m)->who);
    if (act_forward(l->self, m) == 0)
        return;
    bounce(l, index, m); /* there is no room for it here */
}

/* It names somebody who is no more. Who sent it learns of that by itself; but a question has to have its end, and here
 * nobody was asked. */
static void end_stale(struct link *l, int index, const struct act_msg *m)
{
    struct act_msg r = act_msg_make(ACT_UNDELIVERABLE, m->src);
    if (!(m->flags & ACT_MSG_WANTS_REPLY) || m->src.peer != l->peer[index].number)
        return;
    r.returned = m->type;
    r.src = m->dst;
    r.flags = m->flags | ACT_MSG_ABANDONED;
    r.request = m->request;
    r.attempt = m->attempt;
    send_returned(l, index, &r);
}

int link_take(struct link *l, int index, const uint8_t *bytes, size_t size, struct cfg_error *err)
{
    struct link_peer *p = &l->peer[index];
    struct act_msg m;
    size_t used;
    if (size < LINK_HEAD)
        return cfg_error_set(err, EPROTO, "a malformed message between links");
    enum link_kind kind = (enum link_kind)bytes[0];
    uint16_t number = (uint16_t)tp_get_uint(bytes + 2, 2);
    int r = act_wire_decode(act_self_runtime(l->self), bytes + LINK_HEAD, size - LINK_HEAD, act_now(l->self), &m, &used,
                            err);
    if (r == -ESTALE || r == -ENOSPC) { /* or one of more nodes than there are numbers for */
        if (kind == LINK_MESSAGE)
            end_stale(l, index, &m);
        return 0;
    }
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
    bool call = kind == LINK_MESSAGE && m.flags & (ACT_MSG_WANTS_REPLY | ACT_MSG_REPLY);
    if (call != (number != 0)) {
        act_msg_drop(&m);
        return cfg_error_set(err, EPROTO, "a message between links with a wrong number");
    }
    m.promise = number;
    switch (kind) {
    case LINK_MESSAGE:
        deliver(l, index, &m);
        return 0;
    case LINK_RETURNED:
        take_returned(l, &m);
        return 0;
    case LINK_ABANDONED:
        if (act_type_info(bytes[1])->scope != ACT_SCOPE_CROSSES) {
            act_msg_drop(&m);
            return cfg_error_set(err, EPROTO, "a message between links gives type %u back, which does not cross nodes",
                                 bytes[1]);
        }
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
