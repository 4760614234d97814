/* What goes out and comes in on a channel: frames, puts cut into writes and striped over lanes, credits, barriers. */
#include <arpa/inet.h>
#include <errno.h>
#include <event2/dns.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "transport/bytes.h"
#include "transport/rdma/rdma.h"

enum { STRIPE_ALIGN = 4096 };

/* ---- making one ---------------------------------------------------------------------------------------------- */

struct rdma_channel *rdma_channel_new(struct rdma *ep, enum tp_class class)
{
    struct rdma_channel *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->base.ops = &tp_rdma_ops;
    c->base.endpoint = &ep->base;
    c->base.class = class;
    c->queue_tail = &c->queue;
    c->puts_tail = &c->puts;
    c->deadline = TP_NEVER;
    for (int i = 0; i < RDMA_LANES; i++)
        c->lane[i] = (struct rdma_lane){.owner = RDMA_LANE, .channel = c, .index = i};
    c->held = calloc(ep->depth + RDMA_RESERVE, sizeof *c->held);
    if (!c->held) {
        free(c);
        return NULL;
    }
    c->next = ep->channels;
    ep->channels = c;
    ep->base.channels++;
    return c;
}

static void unlink_channel(struct rdma_channel *c)
{
    struct rdma *ep = rdma_of(c);
    for (struct rdma_channel **at = &ep->channels; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    for (struct rdma_channel **at = &ep->dirty; *at; at = &(*at)->next_dirty)
        if (*at == c) {
            *at = c->next_dirty;
            break;
        }
    ep->base.channels--;
}

void rdma_channel_free(struct rdma_channel *c)
{
    struct rdma_out *o;
    if (c->lookup)
        evdns_getaddrinfo_cancel(c->lookup);
    for (int i = 0; i < RDMA_LANES; i++) {
        rdma_lane_free(&c->lane[i]);
        free(c->lane[i].ring);
    }
    while ((o = c->queue)) {
        c->queue = o->next;
        if (o->kind == RDMA_OUT_FRAME)
            free(o);
    }
    while ((o = c->puts)) {
        c->puts = o->next_put;
        free(o);
    }
    for (uint32_t i = 0; i < c->held_count; i++)
        rdma_buffer_back(c->held[(c->held_first + i) % (rdma_of(c)->depth + RDMA_RESERVE)].buffer);
    if (c->slab_mr)
        ibv_dereg_mr(c->slab_mr);
    if (c->slab)
        munmap(c->slab, (size_t)c->base.credits_max * c->base.frame_max);
    unlink_channel(c);
    free(c->slots);
    free(c->held);
    free(c);
}

/* ---- posting ------------------------------------------------------------------------------------------------- */

static bool has_place(const struct rdma_lane *l)
{
    return rdma_lane_used(l) + RDMA_SLOTS_KEPT < l->depth;
}

/* Posts one request. It reports when it must, or when a quarter of the queue would have gone without. */
static bool post(struct rdma_lane *l, struct ibv_send_wr *wr, enum rdma_wr_kind kind, int slot, struct rdma_out *put,
                 bool report)
{
    struct rdma_wr *w = &l->ring[l->head % l->depth];
    struct ibv_send_wr *bad;
    report |= l->unsignalled + 1 >= l->depth / 4;
    *w = (struct rdma_wr){.lane = l, .seq = l->head, .kind = kind, .slot = slot, .put = put, .signalled = report};
    wr->wr_id = (uintptr_t)w | 1;
    wr->send_flags |= report ? IBV_SEND_SIGNALED : 0;
    int rc = ibv_post_send(l->qp, wr, &bad);
    if (rc) {
        rdma_fail(l->channel, -EIO, "%s takes no request (%s)", l->rail->name, strerror(rc));
        return false;
    }
    l->head++;
    l->unsignalled = report ? 0 : l->unsignalled + 1;
    if (report && l->reporting++ == 0) {
        struct rdma *ep = l->rail->ep;
        l->channel->heard = rdma_now(ep);
        rdma_due(ep, l->channel->heard + ep->silence_ns);
    }
    return true;
}

/* Type, and all credits that are owed. */
static uint32_t head_of(struct rdma_channel *c, enum rdma_type type)
{
    uint32_t credits = c->owed;
    c->owed = 0;
    return htonl((uint32_t)type << RDMA_TYPE_SHIFT | (credits & RDMA_CREDITS_MASK));
}

bool rdma_steer(struct rdma_channel *c, enum rdma_type type, const void *bytes, size_t size)
{
    struct rdma_lane *l = &c->lane[0];
    uint8_t small[8];
    /* The last place is the mark's that the queue has drained. */
    if (rdma_lane_used(l) + 1 >= l->depth || size > sizeof small)
        return false;
    if (size)
        memcpy(small, bytes, size);
    struct ibv_sge sge = {.addr = (uintptr_t)small, .length = (uint32_t)size};
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND_WITH_IMM,
                             .imm_data = head_of(c, type),
                             .sg_list = &sge,
                             .num_sge = size ? 1 : 0,
                             .send_flags = size ? IBV_SEND_INLINE : 0};
    return post(l, &wr, RDMA_WR_STEER, -1, NULL, type == RDMA_FIN || type == RDMA_START);
}

/* ---- frames -------------------------------------------------------------------------------------------------- */

static bool usable(const struct rdma_channel *c)
{
    return c->state == RDMA_OPEN && !c->finishing && !c->failed && !c->fin_seen;
}

static int slab_make(struct rdma_channel *c)
{
    size_t n = c->base.credits_max, bytes = n * c->base.frame_max;
    void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    c->slots = m == MAP_FAILED ? NULL : malloc(n * sizeof *c->slots);
    if (m != MAP_FAILED)
        c->slab = m;
    if (c->slots)
        c->slab_mr = ibv_reg_mr(c->lane[0].rail->pd, c->slab, bytes, IBV_ACCESS_LOCAL_WRITE);
    if (!c->slab_mr) {
        struct cfg_error err;
        rdma_memory_error(&err, errno ? errno : ENOMEM, "registering send buffers", c->lane[0].rail->name, bytes);
        rdma_fail(c, -ENOMEM, "%s", err.msg);
        return -ENOTCONN;
    }
    for (size_t i = 0; i < n; i++)
        c->slots[c->free_slots++] = (int)i;
    return 0;
}

static void gather(const struct iovec *part, int n, uint8_t *out)
{
    for (int i = 0; i < n; i++) {
        memcpy(out, part[i].iov_base, part[i].iov_len);
        out += part[i].iov_len;
    }
}

static bool post_frame(struct rdma_channel *c, uint8_t *bytes, uint32_t size, int slot)
{
    struct rdma_lane *l = &c->lane[0];
    struct ibv_sge sge = {.addr = (uintptr_t)bytes, .length = size, .lkey = slot >= 0 ? c->slab_mr->lkey : 0};
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND_WITH_IMM,
                             .imm_data = head_of(c, RDMA_FRAME),
                             .sg_list = &sge,
                             .num_sge = 1,
                             .send_flags = slot >= 0 ? 0 : IBV_SEND_INLINE};
    /* Buffers come back with reports. */
    bool report = slot >= 0 && c->free_slots <= (int)c->base.credits_max / 2;
    return post(l, &wr, RDMA_WR_FRAME, slot, NULL, report);
}

static void enqueue(struct rdma_channel *c, struct rdma_out *o)
{
    o->next = NULL;
    *c->queue_tail = o;
    c->queue_tail = &o->next;
    c->queued++;
}

static int refuse(struct rdma_channel *c)
{
    c->starved = true;
    return -EAGAIN;
}

int rdma_send(struct tp_channel *base, const struct iovec *part, int n)
{
    struct rdma_channel *c = (struct rdma_channel *)base;
    size_t size = tp_iov_size(part, n);
    if (!usable(c))
        return -ENOTCONN;
    if (size == 0 || size > base->frame_max)
        return -EMSGSIZE;
    if (c->credits == 0 || c->queued >= base->credits_max)
        return refuse(c);
    uint8_t small[RDMA_INLINE];
    bool now = !c->queue && has_place(&c->lane[0]);
    if (now && size <= c->lane[0].inline_max) {
        gather(part, n, small);
        if (!post_frame(c, small, (uint32_t)size, -1))
            return -ENOTCONN;
    } else {
        if (!c->slab_mr && slab_make(c))
            return -ENOTCONN;
        if (c->free_slots == 0)
            return refuse(c);
        struct rdma_out *o = now ? NULL : calloc(1, sizeof *o);
        if (!now && !o)
            return -ENOMEM;
        int slot = c->slots[--c->free_slots];
        uint8_t *bytes = c->slab + (size_t)slot * base->frame_max;
        gather(part, n, bytes);
        if (now && !post_frame(c, bytes, (uint32_t)size, slot))
            return -ENOTCONN;
        if (o) {
            o->kind = RDMA_OUT_FRAME;
            o->slot = slot;
            o->size = (uint32_t)size;
            enqueue(c, o);
        }
    }
    c->credits--;
    base->frames_out++;
    base->bytes_out += size;
    return 0;
}

/* ---- puts ---------------------------------------------------------------------------------------------------- */

/* Where each lane's part begins and ends: all lanes have one, or lane 0 alone. Its part is the last: it carries the
 * immediate. */
static void cut(struct rdma_channel *c, struct rdma_out *o)
{
    size_t size = o->put.size, lanes = (size_t)c->lanes,
           share = (size / lanes + STRIPE_ALIGN - 1) / STRIPE_ALIGN * STRIPE_ALIGN;
    bool large = size >= c->lane[0].rail->ep->config.stripe_min && size > (lanes - 1) * share;
    o->lanes = large && o->window.rails >= c->lanes ? c->lanes : 1;
    for (int i = 1; i < o->lanes; i++) {
        o->at[i] = (size_t)(i - 1) * share;
        o->end[i] = o->at[i] + share;
    }
    o->at[0] = (size_t)(o->lanes - 1) * share * (o->lanes > 1);
    o->end[0] = size;
    o->left = o->lanes;
    if (o->lanes > 1)
        o->stripe = ++c->stripes ? c->stripes : ++c->stripes; /* 0 stands for none */
}

int rdma_put(struct tp_channel *base, const struct tp_put *p)
{
    struct rdma_channel *c = (struct rdma_channel *)base;
    const struct tp_region *r = p->region;
    const uint8_t *from = p->from;
    struct tp_rdma_window w;
    if (!usable(c))
        return -ENOTCONN;
    if (p->size == 0 || from < r->base || p->size > r->size || from > r->base + (r->size - p->size) ||
        tp_rdma_window_read(&p->key, &w) || p->offset > w.size || p->size > w.size - p->offset)
        return -EINVAL;
    /* An immediate and a barrier cost one each. */
    if (c->credits < 2 || c->puts_under_way >= base->credits_max)
        return refuse(c);
    struct rdma_out *o = calloc(1, sizeof *o);
    if (!o)
        return -ENOMEM;
    o->kind = RDMA_OUT_PUT;
    o->put = *p;
    o->window = w;
    cut(c, o);
    c->credits -= (uint32_t)p->with_immediate + (o->lanes > 1);
    *c->puts_tail = o;
    c->puts_tail = &o->next_put;
    c->puts_under_way++;
    enqueue(c, o);
    base->puts_out++;
    base->put_bytes_out += p->size;
    rdma_channel_work(c);
    return 0;
}

/* The longest write at `at` of a put: within a registration on both sides, and no longer than the lane likes. */
static size_t longest(const struct rdma_out *o, const struct rdma_lane *l, size_t at)
{
    const struct tp_region *r = o->put.region;
    size_t from = (size_t)((const uint8_t *)o->put.from - r->base) + at, to = (size_t)o->put.offset + at;
    size_t n = o->end[l->index] - at, here = r->piece - from % r->piece,
           there = (size_t)o->window.piece - to % (size_t)o->window.piece;
    n = n < here ? n : here;
    n = n < there ? n : there;
    return n < l->rail->segment ? n : l->rail->segment;
}

/* One write of a put on a lane. */
static bool post_write(struct rdma_channel *c, struct rdma_out *o, struct rdma_lane *l)
{
    const struct tp_region *r = o->put.region;
    const struct rdma *ep = rdma_of(c);
    size_t at = o->at[l->index], n = longest(o, l, at);
    size_t from = (size_t)((const uint8_t *)o->put.from - r->base) + at, to = (size_t)o->put.offset + at;
    bool last = at + n == o->end[l->index];
    struct ibv_sge sge = {.addr = (uintptr_t)(r->base + from),
                          .length = (uint32_t)n,
                          .lkey = r->mr[from / r->piece * (size_t)ep->rails + (size_t)l->rail->index]->lkey};
    struct ibv_send_wr wr = {
        .opcode = IBV_WR_RDMA_WRITE,
        .sg_list = &sge,
        .num_sge = 1,
        .send_flags = n <= l->inline_max ? IBV_SEND_INLINE : 0,
        .wr.rdma = {.remote_addr = o->window.base + to,
                    .rkey = o->window.rkey[to / o->window.piece * (uint64_t)o->window.rails + (uint64_t)l->index]}};
    if (last && l->index > 0) {
        wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wr.imm_data = htonl(o->stripe);
    } else if (last && o->put.with_immediate) {
        wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wr.imm_data = htonl(o->put.immediate);
    }
    if (!post(l, &wr, last ? RDMA_WR_LAST : RDMA_WR_PART, -1, last ? o : NULL, last))
        return false;
    o->at[l->index] += n;
    return true;
}

/* Whether the next write of lane 0 is the put's last one there. */
static bool comes_last(const struct rdma_out *o, const struct rdma_lane *l)
{
    return o->at[0] + longest(o, l, o->at[0]) == o->end[0];
}

/* Posts what has a place, the lanes in turn. Returns whether the put is posted whole. */
static bool post_put(struct rdma_channel *c, struct rdma_out *o)
{
    for (bool more = true; more && !c->failed;) {
        more = false;
        for (int k = 0; k < o->lanes && !c->failed; k++) {
            struct rdma_lane *l = &c->lane[(o->next_lane + k) % o->lanes];
            if (o->at[l->index] == o->end[l->index] || !has_place(l))
                continue;
            if (l->index == 0 && o->lanes > 1 && !o->barrier_sent && comes_last(o, l)) {
                uint8_t bytes[4];
                tp_put_uint(bytes, o->stripe, 4);
                if (!rdma_steer(c, RDMA_BARRIER, bytes, sizeof bytes))
                    continue;
                o->barrier_sent = true;
            }
            more |= post_write(c, o, l);
        }
    }
    for (int i = 0; i < o->lanes; i++)
        if (o->at[i] < o->end[i])
            return false;
    return true;
}

/* ---- work ---------------------------------------------------------------------------------------------------- */

static void pump(struct rdma_channel *c)
{
    for (struct rdma_out *o; (o = c->queue) && !c->failed;) {
        if (o->kind == RDMA_OUT_PUT) {
            if (!post_put(c, o))
                return;
            o->posted = true;
        } else if (!has_place(&c->lane[0]) ||
                   !post_frame(c, c->slab + (size_t)o->slot * c->base.frame_max, o->size, o->slot)) {
            return;
        }
        c->queue = o->next;
        if (!c->queue)
            c->queue_tail = &c->queue;
        c->queued--;
        if (o->kind == RDMA_OUT_FRAME)
            free(o);
    }
}

void rdma_channel_work(struct rdma_channel *c)
{
    if (c->state != RDMA_OPEN || c->failed)
        return;
    pump(c);
    uint32_t half = c->base.credits_max / 2;
    if (c->owed >= half && !c->failed && !c->fin_sent)
        rdma_steer(c, RDMA_CREDIT, NULL, 0);
    /* Once the other side has finished, this one does, as soon as its puts are done. */
    if (!c->fin_sent && !c->failed && !c->queue && (c->finishing || (c->fin_seen && !c->puts)))
        c->fin_sent = rdma_steer(c, RDMA_FIN, NULL, 0);
}

int rdma_trust(struct tp_channel *base)
{
    struct rdma_channel *c = (struct rdma_channel *)base;
    if (!usable(c))
        return -ENOTCONN;
    for (int i = 0; i < c->lanes && !base->trusted; i++) {
        int rc = rdma_lane_trust(&c->lane[i]);
        if (rc)
            return rc;
    }
    base->trusted = true;
    return 0;
}

void rdma_finish(struct tp_channel *base)
{
    struct rdma_channel *c = (struct rdma_channel *)base;
    if (c->state == RDMA_OPENING)
        rdma_fail(c, -ECANCELED, "%s", "");
    c->finishing = true;
    rdma_mark(c);
}

/* ---- completions of sends ------------------------------------------------------------------------------------ */

static void retire(struct rdma_channel *c, struct rdma_wr *w)
{
    if (w->slot >= 0)
        c->slots[c->free_slots++] = w->slot;
    w->slot = -1;
}

void rdma_sent(struct rdma_wr *wr, const struct ibv_wc *wc)
{
    struct rdma_lane *l = wr->lane;
    struct rdma_channel *c = l->channel;
    /* One that reports stands for those before it. Those that failed report all by themselves. */
    while (l->tail != wr->seq + 1)
        retire(c, &l->ring[l->tail++ % l->depth]);
    if (wr->signalled && l->reporting)
        l->reporting--;
    if (wr->kind == RDMA_WR_DRAIN)
        l->drained = true;
    if (wc->status == IBV_WC_SUCCESS) {
        c->heard = l->rail->ep->taken_at;
        if (wr->kind == RDMA_WR_LAST)
            wr->put->left--;
        /* FIN is the last of lane 0. */
        if (l->index == 0 && c->fin_sent && l->tail == l->head)
            c->fin_done = true;
    } else {
        rdma_fail_completion(l, wc, wr);
    }
    rdma_mark(c);
}

void rdma_puts_done(struct rdma_channel *c)
{
    const struct tp_host *h = &c->base.endpoint->host;
    for (struct rdma_out *o; (o = c->puts) && o->posted && o->left == 0;) {
        uint64_t cookie = o->put.cookie;
        c->puts = o->next_put;
        if (!c->puts)
            c->puts_tail = &c->puts;
        c->puts_under_way--;
        free(o);
        h->sink->put_done(h->ctx, &c->base, cookie, 0);
    }
}

/* ---- receives ------------------------------------------------------------------------------------------------ */

static void start(struct rdma_channel *c, const struct rdma_held *r)
{
    const struct tp_host *h = &c->base.endpoint->host;
    int lanes = r->size == 1 ? r->buffer->bytes[0] : 0;
    if (c->state != RDMA_OPENING || c->base.dialled || lanes < 1 || lanes > RDMA_LANES) {
        rdma_fail(c, -EPROTO, "the other side starts a channel that cannot be started");
        return;
    }
    for (int i = 0; i < lanes; i++)
        if (!(c->lanes_up >> i & 1)) {
            rdma_fail(c, -EPROTO, "the other side starts with %d lanes, lane %d is not up", lanes, i);
            return;
        }
    rdma_lanes_trim(c, lanes);
    c->state = RDMA_OPEN;
    c->deadline = TP_NEVER;
    c->told = true;
    h->sink->accepted(h->ctx, &c->base);
}

static void take_send(struct rdma_channel *c, const struct rdma_held *r)
{
    const struct tp_host *h = &c->base.endpoint->host;
    enum rdma_type type = (enum rdma_type)(r->immediate >> RDMA_TYPE_SHIFT);
    c->credits += r->immediate & RDMA_CREDITS_MASK;
    if (c->credits > c->base.credits_max) {
        rdma_fail(c, -EPROTO, "the other side gives back more credits than there are");
        return;
    }
    if (type != RDMA_START && c->state == RDMA_OPENING) {
        rdma_fail(c, -EPROTO, "the other side begins without a start");
        return;
    }
    switch (type) {
    case RDMA_FRAME:
        c->owed++;
        c->base.frames_in++;
        c->base.bytes_in += r->size;
        if (r->size == 0 || r->size > c->base.frame_max)
            rdma_fail(c, -EPROTO, "the other side sends a frame of %u bytes", r->size);
        else if (!c->finishing)
            h->sink->frame(h->ctx, &c->base, r->buffer->bytes, r->size);
        break;
    case RDMA_CREDIT:
        break;
    case RDMA_FIN:
        c->fin_seen = true;
        break;
    case RDMA_START:
        start(c, r);
        break;
    case RDMA_BARRIER:
        c->owed++;
        if (r->size != 4 || c->lanes < 2)
            rdma_fail(c, -EPROTO, "the other side sends a barrier that cannot be");
        else
            c->stripe_awaited = tp_get32(r->buffer->bytes);
        break;
    default:
        rdma_fail(c, -EPROTO, "the other side sends something of type %d", (int)type);
    }
}

static void take(struct rdma_channel *c, const struct rdma_held *r)
{
    const struct tp_host *h = &c->base.endpoint->host;
    /* What comes for a channel that has failed, or ends, is dropped. */
    if (!c->failed && c->state != RDMA_ENDING && r->written) {
        c->owed++;
        h->sink->immediate(h->ctx, &c->base, r->immediate);
    } else if (!c->failed && c->state != RDMA_ENDING) {
        take_send(c, r);
    }
    rdma_buffer_back(r->buffer);
}

/* Whether the lanes have shown the stripe that is waited for. Numbers wrap. */
static bool barrier_open(struct rdma_channel *c)
{
    if (!c->stripe_awaited)
        return true;
    for (int i = 1; i < c->lanes; i++)
        if ((int32_t)(c->lane[i].stripe_seen - c->stripe_awaited) < 0)
            return false;
    c->stripe_awaited = 0;
    return true;
}

static void take_held(struct rdma_channel *c)
{
    uint32_t places = rdma_of(c)->depth + RDMA_RESERVE;
    while (c->held_count && barrier_open(c)) {
        struct rdma_held r = c->held[c->held_first];
        c->held_first = (c->held_first + 1) % places;
        c->held_count--;
        take(c, &r);
    }
}

void rdma_received(struct rdma_lane *l, const struct ibv_wc *wc, struct rdma_buffer *b)
{
    struct rdma_channel *c = l->channel;
    bool written = wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM;
    uint32_t places = rdma_of(c)->depth + RDMA_RESERVE;
    c->heard = l->rail->ep->taken_at;
    rdma_mark(c);
    if (!(wc->wc_flags & IBV_WC_WITH_IMM) || (l->index > 0 && !written) || c->held_count == places) {
        rdma_buffer_back(b);
        rdma_fail(c, -EPROTO, "the other side sends what this program does not");
        return;
    }
    if (written && !c->base.trusted) { /* of no bytes: there are adapters that ask for no right to write none */
        rdma_buffer_back(b);
        rdma_fail(c, -EACCES, RDMA_WROTE_EARLY);
        return;
    }
    struct rdma_held r = {
        .buffer = b, .immediate = ntohl(wc->imm_data), .size = written ? 0 : wc->byte_len, .written = written};
    if (l->index > 0) {
        l->stripe_seen = r.immediate;
        rdma_buffer_back(b);
        take_held(c);
        return;
    }
    if (c->held_count == 0 && barrier_open(c)) {
        take(c, &r);
        return;
    }
    c->held[(c->held_first + c->held_count++) % places] = r;
}
