/* How a channel ends: what failed, in words with a cure; the fence (queue pairs to ERR, drained, destroyed) and the
 * last callbacks. Also the deadlines that end one. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/rdma/rdma.h"

#define DRAIN_NS INT64_C(1000000000)     /* a device that has not flushed its queue after this is not waited for */
#define LAST_RECEIVE_NS INT64_C(5000000) /* some devices never say that they took their last receive */

/* What to do about lost packets; with the index of this side's GID. */
#define LOOK_AT                                                                                                        \
    "check that both sides use GIDs of one RoCE version (here index %d), and the network's lossless settings"

void rdma_fail(struct rdma_channel *c, int reason, const char *fmt, ...)
{
    va_list ap;
    rdma_mark(c);
    if (c->failed)
        return;
    c->failed = reason;
    va_start(ap, fmt);
    vsnprintf(c->why, sizeof c->why, fmt, ap);
    va_end(ap);
}

void rdma_abort(struct tp_channel *base)
{
    struct rdma_channel *c = (struct rdma_channel *)base;
    if (c->state == RDMA_ENDING)
        return;
    c->failed = 0; /* this reason counts */
    rdma_fail(c, -ECANCELED, "%s", "");
}

static int reason_of(enum ibv_wc_status s)
{
    switch (s) {
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
        return -EACCES;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
        return -ETIMEDOUT;
    case IBV_WC_REM_ABORT_ERR:
    case IBV_WC_REM_OP_ERR:
        return -ECONNRESET;
    default:
        return -EIO;
    }
}

static void fail_put(struct rdma_channel *c, int reason, const char *what, const struct rdma_out *o)
{
    rdma_fail(c, reason, "%s: the put of %zu bytes at %p (region of %zu bytes at %p) to offset %llu of window %016llx",
              what, o->put.size, o->put.from, o->put.region->size, (void *)o->put.region->base,
              (unsigned long long)o->put.offset, (unsigned long long)o->window.base);
}

void rdma_fail_completion(struct rdma_lane *l, const struct ibv_wc *wc, const struct rdma_wr *wr)
{
    struct rdma_channel *c = l->channel;
    int reason = reason_of(wc->status);
    const struct rdma_out *put = wr && wr->put ? wr->put : c->puts;
    /* Flushed: something else has failed, or it is the end. Who is told first is told with the cause. */
    if (wc->status == IBV_WC_WR_FLUSH_ERR) {
        if (!c->failed && c->state != RDMA_ENDING)
            rdma_fail(c, -ECONNRESET, "%s: the connection broke", l->rail->name);
        return;
    }
    if (!c->put_error)
        c->put_error = reason;
    if (wc->status == IBV_WC_REM_ACCESS_ERR && put)
        fail_put(c, reason, "the other side refused a write: no such window or range", put);
    else if (wc->status == IBV_WC_REM_INV_REQ_ERR && put)
        fail_put(c, reason, "the other side takes no writes of this one, which has not proved who it is", put);
    else if (wc->status == IBV_WC_LOC_PROT_ERR && put)
        fail_put(c, reason, "the adapter refused to read memory that is not registered, or no more", put);
    else if (wc->status == IBV_WC_RETRY_EXC_ERR)
        rdma_fail(c, reason, "%s port %d%s: no acknowledgement from %s; it is gone, or packets are lost: " LOOK_AT,
                  l->rail->name, l->rail->port, l->rail->port_down ? ", which is down" : "", c->base.peer,
                  l->rail->gid_index);
    else
        rdma_fail(c, reason, "%s: %s (%d, vendor's code %u)", l->rail->name, ibv_wc_status_str(wc->status), wc->status,
                  wc->vendor_err);
}

/* ---- the fence ----------------------------------------------------------------------------------------------- */

static void begin_end(struct rdma_channel *c)
{
    struct rdma *ep = rdma_of(c);
    int64_t now = rdma_now(ep);
    c->state = RDMA_ENDING;
    c->deadline = now + DRAIN_NS;
    for (int i = 0; i < RDMA_LANES; i++) {
        struct rdma_lane *l = &c->lane[i];
        if (l->id && l->state == RDMA_UP)
            rdma_disconnect(l->id);
        if (!l->qp || l->state != RDMA_UP) {
            l->drained = l->last_receive = true;
            continue;
        }
        struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
        struct rdma_wr *w = &l->ring[l->head % l->depth];
        *w = (struct rdma_wr){.lane = l, .seq = l->head, .kind = RDMA_WR_DRAIN, .slot = -1, .signalled = true};
        struct ibv_send_wr wr = {.wr_id = (uintptr_t)w | 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED},
                           *bad;
        if (ibv_modify_qp(l->qp, &a, IBV_QP_STATE) || ibv_post_send(l->qp, &wr, &bad))
            l->drained = true; /* destroying it fences as well */
        else
            l->head++;
    }
    rdma_due(ep, now + LAST_RECEIVE_NS);
}

static void finish_end(struct rdma_channel *c)
{
    struct rdma *ep = rdma_of(c);
    const struct tp_host *h = &ep->base.host;
    int reason = c->failed, put_status = c->put_error ? c->put_error : reason ? reason : -ECONNRESET;
    for (int i = 0; i < RDMA_LANES; i++)
        if (c->lane[i].rail)
            rdma_lane_free(&c->lane[i]);
    /* What the destroyed queue pairs left in the completion queues: nothing may refer to this channel afterwards. */
    for (int i = 0; i < ep->rails; i++)
        while (rdma_rail_take(&ep->rail[i]))
            ;
    rdma_puts_done(c);
    for (struct rdma_out *o; (o = c->puts);) {
        c->puts = o->next_put;
        /* It may be in the queue of what was not posted, too. */
        for (struct rdma_out **at = &c->queue; *at; at = &(*at)->next)
            if (*at == o) {
                *at = o->next;
                break;
            }
        uint64_t cookie = o->put.cookie;
        free(o);
        h->sink->put_done(h->ctx, &c->base, cookie, put_status);
    }
    if (c->told)
        h->sink->closed(h->ctx, &c->base, reason, c->why);
    rdma_channel_free(c);
}

static void step_end(struct rdma_channel *c)
{
    int64_t now = rdma_now(rdma_of(c));
    bool drained = true, last = true;
    for (int i = 0; i < RDMA_LANES; i++)
        if (c->lane[i].qp) {
            drained &= c->lane[i].drained;
            last &= c->lane[i].last_receive;
        }
    if (drained && !c->drained_at) {
        c->drained_at = now;
        rdma_due(rdma_of(c), now + LAST_RECEIVE_NS);
    }
    if ((drained && (last || now >= c->drained_at + LAST_RECEIVE_NS)) || now >= c->deadline)
        finish_end(c);
}

void rdma_settle(struct rdma_channel *c)
{
    const struct tp_host *h = &c->base.endpoint->host;
    if (!c->failed && c->state == RDMA_OPENING)
        rdma_lanes_ready(c);
    if (!c->failed && c->state == RDMA_OPEN) {
        rdma_puts_done(c);
        rdma_channel_work(c);
    }
    if (!c->failed && c->state == RDMA_OPEN && c->starved && !c->finishing && !c->fin_seen && c->credits >= 2 &&
        c->queued < c->base.credits_max && c->puts_under_way < c->base.credits_max &&
        (!c->slab_mr || c->free_slots > 0)) {
        c->starved = false;
        h->sink->room(h->ctx, &c->base);
    }
    bool finished = c->state == RDMA_OPEN && c->fin_seen && c->fin_done && !c->puts;
    /* The other side, which has seen our FIN, may be gone before the acknowledgement of it. */
    if (c->failed == -ECONNRESET && c->fin_seen && c->fin_sent && !c->puts) {
        c->failed = 0;
        c->why[0] = '\0';
        finished = true;
    }
    if (c->state != RDMA_ENDING && (c->failed || finished))
        begin_end(c);
    if (c->state == RDMA_ENDING)
        step_end(c);
}

/* ---- deadlines ----------------------------------------------------------------------------------------------- */

static uint32_t reporting(const struct rdma_channel *c)
{
    uint32_t n = 0;
    for (int i = 0; i < c->lanes; i++)
        n += c->lane[i].reporting;
    return n;
}

int64_t rdma_deadlines(struct rdma_channel *c, int64_t now)
{
    const struct rdma *ep = rdma_of(c);
    if (c->state == RDMA_ENDING) {
        int64_t at = c->drained_at ? c->drained_at + LAST_RECEIVE_NS : c->deadline;
        if (now < at)
            return at;
        rdma_mark(c);
        return TP_NEVER;
    }
    if (c->state == RDMA_OPENING) {
        if (c->lanes_by && now >= c->lanes_by) {
            c->lanes_failed |= ((UINT32_C(1) << c->lanes) - 1) & ~c->lanes_up;
            c->lanes_by = 0;
            rdma_mark(c);
        }
        if (now < c->deadline)
            return c->lanes_by ? c->lanes_by : c->deadline;
        rdma_fail(c, -ETIMEDOUT, "no connection after %lld ms", (long long)(ep->connect_ns / 1000000));
        return TP_NEVER;
    }
    if (reporting(c) == 0)
        return TP_NEVER;
    if (now < c->heard + ep->silence_ns)
        return c->heard + ep->silence_ns;
    rdma_fail(c, -ETIMEDOUT,
              "nothing was heard from %s for %lld ms, although something was under way: it is gone, or packets are "
              "lost; " LOOK_AT,
              c->base.peer, (long long)(ep->silence_ns / 1000000), c->lane[0].rail->gid_index);
    return TP_NEVER;
}
