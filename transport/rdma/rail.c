/* One device of an endpoint: protection domain, completion queue, pools of receive buffers behind shared receive
 * queues, asynchronous events; and the queue pairs of lanes on it. */
#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "transport/rdma/rdma.h"

enum {
    CQ_FIRST = 1024, /* completions; it grows with what is promised */
    CQ_BATCH = 32,
    ACK_BATCH = 64,
    TAKE_MAX = 1024, /* completions per call, so that other events have their turn */
};

int rdma_memory_error(struct cfg_error *err, int code, const char *what, const char *device, uint64_t bytes)
{
    struct rlimit limit;
    if ((code == ENOMEM || code == EAGAIN || code == EPERM) && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
        limit.rlim_cur != RLIM_INFINITY)
        return cfg_error_set(err, ENOMEM,
                             "rdma: %s on %s failed for %llu KiB (%s); %llu KiB may be locked: raise RLIMIT_MEMLOCK "
                             "(LimitMEMLOCK=infinity in a systemd unit, ulimit -l unlimited, --ulimit memlock=-1 for a "
                             "container). `weft check --rdma` has the limits of the device",
                             what, device, (unsigned long long)(bytes >> 10), strerror(code),
                             (unsigned long long)limit.rlim_cur >> 10);
    return cfg_error_set(err, code,
                         "rdma: %s on %s failed for %llu KiB (%s); locked memory is not limited, so it is a limit of "
                         "the device or the machine's memory: `weft check --rdma` has them",
                         what, device, (unsigned long long)(bytes >> 10), strerror(code));
}

/* ---- receive buffers ----------------------------------------------------------------------------------------- */

static int post_receive(struct rdma_buffer *b)
{
    struct rdma_pool *p = b->pool;
    struct ibv_sge sge = {.addr = (uintptr_t)b->bytes, .length = p->rail->ep->frame_max, .lkey = p->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = (uintptr_t)b, .sg_list = &sge, .num_sge = 1}, *bad;
    return ibv_post_srq_recv(p->srq, &wr, &bad);
}

void rdma_buffer_back(struct rdma_buffer *b)
{
    /* It cannot fail while the device lives: the queue has a place for every buffer. */
    if (post_receive(b))
        b->pool->rail->dead = true;
}

static void pool_free(struct rdma_pool *p)
{
    if (p->srq)
        ibv_destroy_srq(p->srq);
    if (p->mr)
        ibv_dereg_mr(p->mr);
    if (p->memory)
        munmap(p->memory, (size_t)p->size * p->rail->ep->frame_max);
    free(p);
}

/* Makes room for so many more completions. */
static int reserve_completions(struct rdma_rail *r, int n, struct cfg_error *err)
{
    int want = r->cq_used + n, size = r->cq->cqe;
    if (want > size) {
        while (size < want)
            size *= 2;
        int rc = ibv_resize_cq(r->cq, size);
        if (rc)
            rc = ibv_resize_cq(r->cq, want);
        if (rc)
            return cfg_error_set(err, ENOMEM,
                                 "rdma: %s has no completion queue of %d entries (%s), which its connections need; use "
                                 "fewer nodes, or a smaller depth",
                                 r->name, want, strerror(rc > 0 ? rc : errno));
    }
    r->cq_used = want;
    return 0;
}

static struct rdma_pool *pool_new(struct rdma_rail *r, int size, struct cfg_error *err)
{
    size_t bytes = (size_t)size * r->ep->frame_max;
    struct rdma_pool *p = calloc(1, sizeof *p + (size_t)size * sizeof p->buffer[0]);
    if (!p || reserve_completions(r, size, err)) {
        if (!p)
            cfg_error_set(err, ENOMEM, "rdma: no memory for receive buffers");
        free(p);
        return NULL;
    }
    p->rail = r;
    p->size = size;
    p->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p->memory == MAP_FAILED)
        p->memory = NULL;
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = (uint32_t)size, .max_sge = 1}};
    if (p->memory)
        p->mr = ibv_reg_mr(r->pd, p->memory, bytes, IBV_ACCESS_LOCAL_WRITE);
    if (p->mr)
        p->srq = ibv_create_srq(r->pd, &attr);
    bool ok = p->srq != NULL;
    if (!ok)
        rdma_memory_error(err, errno ? errno : ENOMEM, p->mr ? "a shared receive queue" : "receive buffers", r->name,
                          bytes);
    for (int i = 0; ok && i < size; i++) {
        p->buffer[i] = (struct rdma_buffer){.pool = p, .bytes = p->memory + (size_t)i * r->ep->frame_max};
        ok = post_receive(&p->buffer[i]) == 0;
        if (!ok)
            cfg_error_set(err, ENOMEM, "rdma: %s takes only %d of %d receive buffers", r->name, i, size);
    }
    if (!ok) {
        r->cq_used -= size;
        pool_free(p);
        return NULL;
    }
    p->next = r->pools;
    r->pools = p;
    return p;
}

/* A pool that can promise n more buffers. */
static struct rdma_pool *pool_with(struct rdma_rail *r, int n, struct cfg_error *err)
{
    for (struct rdma_pool *p = r->pools; p; p = p->next)
        if (p->size - p->promised >= n)
            return p;
    return pool_new(r, n > RDMA_POOL ? n : RDMA_POOL, err);
}

/* ---- completions --------------------------------------------------------------------------------------------- */

static struct rdma_lane *lane_of(const struct rdma_rail *r, uint32_t qpn)
{
    struct rdma_lane *l = r->by_qpn[qpn % RDMA_BUCKETS];
    while (l && l->qp->qp_num != qpn)
        l = l->next_by_qpn;
    return l;
}

static void take_one(struct rdma_rail *r, const struct ibv_wc *wc)
{
    /* Sends are odd. */
    if (wc->wr_id & 1) {
        rdma_sent((struct rdma_wr *)(uintptr_t)(wc->wr_id & ~UINT64_C(1)), wc);
        return;
    }
    struct rdma_buffer *b = (struct rdma_buffer *)(uintptr_t)wc->wr_id;
    struct rdma_lane *l = lane_of(r, wc->qp_num);
    if (!l || wc->status != IBV_WC_SUCCESS) {
        if (l && wc->status != IBV_WC_WR_FLUSH_ERR)
            rdma_fail_completion(l, wc, NULL);
        rdma_buffer_back(b);
        return;
    }
    rdma_received(l, wc, b);
}

bool rdma_rail_take(struct rdma_rail *r)
{
    struct ibv_wc wc[CQ_BATCH];
    int n, all = 0;
    while (all < TAKE_MAX && (n = ibv_poll_cq(r->cq, CQ_BATCH, wc)) > 0) {
        r->ep->taken_at = rdma_now(r->ep);
        for (int i = 0; i < n; i++)
            take_one(r, &wc[i]);
        all += n;
    }
    return all > 0;
}

bool rdma_rail_arm(struct rdma_rail *r)
{
    if (!r->armed && ibv_req_notify_cq(r->cq, 0))
        r->dead = true;
    r->armed = true;
    /* What came before it was armed has raised no event. */
    return rdma_rail_take(r);
}

static void on_completions(evutil_socket_t fd, short what, void *ctx)
{
    struct rdma_rail *r = ctx;
    struct ibv_cq *cq;
    void *mine;
    (void)fd;
    (void)what;
    /* One event for each time it was armed. */
    if (ibv_get_cq_event(r->events, &cq, &mine) == 0) {
        r->armed = false;
        if (++r->unacked == ACK_BATCH) {
            ibv_ack_cq_events(r->cq, r->unacked);
            r->unacked = 0;
        }
    }
    if (r->ep->base.host.looks)
        return; /* the thread takes it with its next look */
    rdma_before_turn(r->ep);
    rdma_rail_take(r);
    rdma_turn(r->ep);
    rdma_before_turn(r->ep);
    /* After a limited number of completions others have their turn; what is left has raised no event. */
    if (rdma_rail_arm(r))
        event_active(r->on_cq, EV_READ, 0);
    rdma_turn(r->ep);
}

/* ---- asynchronous events ------------------------------------------------------------------------------------- */

static void fail_rail(struct rdma_rail *r, const char *why)
{
    for (struct rdma_channel *c = r->ep->channels; c; c = c->next)
        for (int i = 0; i < RDMA_LANES; i++)
            if (c->lane[i].rail == r && c->lane[i].qp)
                rdma_fail(c, -EIO, "%s: %s", r->name, why);
}

static void take_async(struct rdma_rail *r, const struct ibv_async_event *e)
{
    struct rdma_lane *l = NULL;
    switch (e->event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
    case IBV_EVENT_COMM_EST:
        l = lane_of(r, e->element.qp->qp_num);
        break;
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
        r->dead = true;
        fail_rail(r, ibv_event_type_str(e->event_type));
        return;
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
        r->port_down = e->event_type == IBV_EVENT_PORT_ERR;
        return;
    default:
        return;
    }
    if (!l)
        return;
    if (e->event_type == IBV_EVENT_QP_LAST_WQE_REACHED) {
        l->last_receive = true;
        rdma_mark(l->channel);
    } else if (e->event_type == IBV_EVENT_COMM_EST) {
        if (l->id)
            rdma_notify(l->id, e->event_type);
    } else if (e->event_type == IBV_EVENT_QP_FATAL) {
        rdma_fail(l->channel, -EIO, "%s: %s", r->name, ibv_event_type_str(e->event_type));
    } else if (!l->channel->base.trusted) {
        rdma_fail(l->channel, -EACCES, "%s: " RDMA_WROTE_EARLY, r->name);
    } else {
        rdma_fail(l->channel, e->event_type == IBV_EVENT_QP_ACCESS_ERR ? -EACCES : -EIO, "%s: %s", r->name,
                  e->event_type == IBV_EVENT_QP_ACCESS_ERR
                      ? "the other side wrote to a window or a range that is not there"
                      : ibv_event_type_str(e->event_type));
    }
}

static void on_async(evutil_socket_t fd, short what, void *ctx)
{
    struct rdma_rail *r = ctx;
    struct ibv_async_event e;
    (void)fd;
    (void)what;
    rdma_before_turn(r->ep);
    while (ibv_get_async_event(r->ctx, &e) == 0) {
        take_async(r, &e);
        ibv_ack_async_event(&e);
    }
    rdma_turn(r->ep);
}

/* ---- the device ---------------------------------------------------------------------------------------------- */

static int open_device(struct rdma_rail *r, struct cfg_error *err)
{
    int n = 0;
    struct ibv_device **list = ibv_get_device_list(&n);
    for (int i = 0; i < n && !r->ctx; i++)
        if (strcmp(ibv_get_device_name(list[i]), r->name) == 0)
            r->ctx = ibv_open_device(list[i]);
    int code = errno ? errno : ENODEV;
    if (list)
        ibv_free_device_list(list);
    if (!r->ctx)
        return cfg_error_set(err, code, "rdma: %s cannot be opened (%s); the user needs /dev/infiniband/uverbs*",
                             r->name, strerror(code));
    return 0;
}

int rdma_rail_open(struct rdma_rail *r, const struct tp_rdma_device *d, const struct tp_rdma_rail *chosen,
                   struct cfg_error *err)
{
    const struct tp_rdma_port *port = &d->port[chosen->port];
    snprintf(r->name, sizeof r->name, "%s", d->name);
    memcpy(r->address, chosen->address, sizeof r->address);
    r->port = (uint8_t)port->number;
    r->gid_index = port->gid[chosen->gid].index;
    r->mtu = port->mtu;
    r->segment = port->message_max && port->message_max < RDMA_SEGMENT ? port->message_max : RDMA_SEGMENT;
    int rc = open_device(r, err);
    if (rc)
        return rc;
    r->pd = ibv_alloc_pd(r->ctx);
    r->events = ibv_create_comp_channel(r->ctx);
    if (r->events)
        r->cq = ibv_create_cq(r->ctx, CQ_FIRST, r, r->events, 0);
    if (!r->pd || !r->cq)
        return rdma_memory_error(err, errno ? errno : ENOMEM, "a completion queue", r->name, CQ_FIRST * 64);
    if (fcntl(r->events->fd, F_SETFL, O_NONBLOCK) || fcntl(r->ctx->async_fd, F_SETFL, O_NONBLOCK) ||
        ibv_req_notify_cq(r->cq, 0))
        return cfg_error_set(err, EIO, "rdma: %s has no events (%s)", r->name, strerror(errno));
    r->armed = true;
    struct event_base *base = r->ep->base.host.base;
    r->on_cq = event_new(base, r->events->fd, EV_READ | EV_PERSIST, on_completions, r);
    r->on_async = event_new(base, r->ctx->async_fd, EV_READ | EV_PERSIST, on_async, r);
    if (!r->on_cq || !r->on_async || event_add(r->on_cq, NULL) || event_add(r->on_async, NULL))
        return cfg_error_set(err, ENOMEM, "rdma: the event loop takes no more");
    return 0;
}

void rdma_rail_close(struct rdma_rail *r)
{
    if (r->on_cq)
        event_free(r->on_cq);
    if (r->on_async)
        event_free(r->on_async);
    for (struct rdma_pool *p; (p = r->pools);) {
        r->pools = p->next;
        pool_free(p);
    }
    if (r->unacked)
        ibv_ack_cq_events(r->cq, r->unacked);
    if (r->cq)
        ibv_destroy_cq(r->cq);
    if (r->events)
        ibv_destroy_comp_channel(r->events);
    if (r->pd)
        ibv_dealloc_pd(r->pd);
    if (r->ctx)
        ibv_close_device(r->ctx);
    *r = (struct rdma_rail){0};
}

/* ---- lanes --------------------------------------------------------------------------------------------------- */

static uint32_t ring_depth(const struct rdma *ep)
{
    uint32_t n = 16;
    while (n < 2 * ep->depth)
        n *= 2;
    return n;
}

static int make_qp(struct rdma_lane *l, struct cfg_error *err)
{
    struct rdma_rail *r = l->rail;
    struct ibv_qp_init_attr a = {.send_cq = r->cq,
                                 .recv_cq = r->cq,
                                 .srq = l->pool->srq,
                                 .qp_type = IBV_QPT_RC,
                                 .cap = {.max_send_wr = l->depth, .max_send_sge = 1}};
    /* As much inline as the device gives. */
    for (uint32_t size = RDMA_INLINE;; size /= 2) {
        a.cap.max_send_wr = l->depth;
        a.cap.max_inline_data = size;
        l->qp = ibv_create_qp(r->pd, &a);
        if (l->qp || size == 0)
            break;
    }
    if (!l->qp)
        return rdma_memory_error(err, errno ? errno : ENOMEM, "a queue pair", r->name, (uint64_t)l->depth * 64);
    r->ep->base.queue_pairs++;
    l->inline_max = a.cap.max_inline_data < RDMA_INLINE ? a.cap.max_inline_data : RDMA_INLINE;
    /* The other side writes nowhere until it is trusted. */
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = r->port, .qp_access_flags = 0};
    int rc = ibv_modify_qp(l->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (rc)
        return cfg_error_set(err, rc, "rdma: %s: a queue pair cannot go to INIT on port %d (%s)", r->name, r->port,
                             strerror(rc));
    return 0;
}

int rdma_lane_make(struct rdma_lane *l, struct rdma_rail *r, struct cfg_error *err)
{
    int receives = (int)r->ep->depth + RDMA_RESERVE;
    if (r->dead)
        return cfg_error_set(err, EIO, "rdma: %s has failed; restart the node", r->name);
    l->rail = r;
    l->depth = ring_depth(r->ep);
    free(l->ring); /* of a try before that failed, with nothing under way */
    l->ring = calloc(l->depth, sizeof *l->ring);
    struct rdma_pool *p = l->ring ? pool_with(r, receives, err) : NULL;
    if (!l->ring)
        cfg_error_set(err, ENOMEM, "rdma: no memory for a lane");
    if (!p || reserve_completions(r, (int)l->depth, err))
        return -ENOMEM;
    l->cq_share = (int)l->depth;
    l->pool = p;
    l->promised = receives;
    p->promised += receives;
    int rc = make_qp(l, err);
    if (rc)
        return rc;
    l->next_by_qpn = r->by_qpn[l->qp->qp_num % RDMA_BUCKETS];
    r->by_qpn[l->qp->qp_num % RDMA_BUCKETS] = l;
    return 0;
}

int rdma_lane_trust(struct rdma_lane *l)
{
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    return -ibv_modify_qp(l->qp, &a, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS);
}

void rdma_lane_shrink(struct rdma_lane *l, int receives)
{
    if (!l->pool || receives >= l->promised)
        return;
    l->pool->promised -= l->promised - receives;
    l->promised = receives;
}

void rdma_lane_free(struct rdma_lane *l)
{
    struct rdma_rail *r = l->rail;
    if (l->qp) {
        struct rdma_lane **at = &r->by_qpn[l->qp->qp_num % RDMA_BUCKETS];
        while (*at && *at != l)
            at = &(*at)->next_by_qpn;
        if (*at)
            *at = l->next_by_qpn;
        ibv_destroy_qp(l->qp);
        r->ep->base.queue_pairs--;
        l->qp = NULL;
    }
    if (l->id)
        rdma_destroy_id(l->id);
    l->id = NULL;
    if (l->pool)
        l->pool->promised -= l->promised;
    if (r)
        r->cq_used -= l->cq_share;
    l->pool = NULL;
    l->promised = l->cq_share = 0;
    l->state = RDMA_NONE;
}
