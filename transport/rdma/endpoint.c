/* Endpoints of the provider rdma: which rails they open, registered memory, the event loop and its deadlines, and the
 * table. */
#include <errno.h>
#include <event2/dns.h>
#include <event2/event.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport/rdma/rdma.h"

enum { PAGE = 4096, DEPTH_MAX = 4096 };
#define CONNECT_DEFAULT INT64_C(5000000000)
#define SILENCE_DEFAULT INT64_C(10000000000)

/* ---- turns --------------------------------------------------------------------------------------------------- */

void rdma_due(struct rdma *ep, int64_t at)
{
    if (at >= ep->due)
        return;
    ep->due = at;
    ep->base.host.wake(ep->base.host.ctx);
}

void rdma_mark(struct rdma_channel *c)
{
    struct rdma *ep = rdma_of(c);
    if (c->dirty)
        return;
    c->dirty = true;
    c->next_dirty = ep->dirty;
    ep->dirty = c;
    if (ep->kick && !ep->in_turn)
        event_active(ep->kick, EV_TIMEOUT, 0);
}

void rdma_before_turn(struct rdma *ep)
{
    ep->in_turn = true;
}

void rdma_turn(struct rdma *ep)
{
    /* Callbacks may mark more; each is looked at once, the rest at the next turn. */
    struct rdma_channel *list = ep->dirty;
    ep->dirty = NULL;
    ep->in_turn = true;
    for (struct rdma_channel *c; (c = list);) {
        list = c->next_dirty;
        c->dirty = false;
        rdma_settle(c);
    }
    ep->in_turn = false;
    if (ep->dirty && ep->kick)
        event_active(ep->kick, EV_TIMEOUT, 0);
}

static void on_kick(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    rdma_turn(ctx);
}

static void on_cm(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    rdma_before_turn(ctx);
    rdma_cm_take(ctx);
    rdma_turn(ctx);
}

static int64_t rdma_poll(struct tp_endpoint *base)
{
    struct rdma *ep = (struct rdma *)base;
    int64_t now = rdma_now(ep);
    rdma_before_turn(ep);
    for (int i = 0; i < ep->rails; i++)
        rdma_rail_take(&ep->rail[i]);
    if (now >= ep->due) {
        ep->due = TP_NEVER;
        for (struct rdma_channel *c = ep->channels; c; c = c->next) {
            int64_t at = rdma_deadlines(c, now);
            ep->due = at < ep->due ? at : ep->due;
        }
    }
    rdma_turn(ep);
    return ep->dirty ? now : ep->due;
}

/* As look or, with arm, as arm of the table. */
static bool look(struct rdma *ep, bool (*take)(struct rdma_rail *r))
{
    bool any = ep->dirty;
    rdma_before_turn(ep);
    for (int i = 0; i < ep->rails; i++)
        any |= take(&ep->rail[i]);
    if (any)
        rdma_turn(ep);
    ep->in_turn = false;
    return any;
}

static bool rdma_look(struct tp_endpoint *base)
{
    return look((struct rdma *)base, rdma_rail_take);
}

static bool rdma_arm(struct tp_endpoint *base)
{
    return look((struct rdma *)base, rdma_rail_arm);
}

/* ---- endpoints ----------------------------------------------------------------------------------------------- */

static void copy_config(struct rdma *ep, const struct tp_rdma_config *c)
{
    ep->config = c ? *c : (struct tp_rdma_config){0};
    ep->config.stripe_min = ep->config.stripe_min ? ep->config.stripe_min : RDMA_STRIPE_MIN;
    if (!c)
        return;
    snprintf(ep->devices, sizeof ep->devices, "%s", c->devices ? c->devices : "");
    snprintf(ep->address, sizeof ep->address, "%s", c->address ? c->address : "");
    ep->config.devices = ep->devices;
    ep->config.address = ep->address;
}

static uint32_t within(uint32_t value, uint32_t otherwise, uint32_t least, uint32_t most)
{
    if (value == 0)
        return otherwise;
    return value < least ? least : value > most ? most : value;
}

/* What the machine lacks is said here already, although rails are opened when the address is known. */
static int survey(struct rdma *ep, const char *address, struct tp_rdma_facts *facts, struct tp_rdma_choice *choice,
                  struct cfg_error *err)
{
    struct tp_rdma_want want = {.devices = ep->devices};
    int rc = tp_rdma_inspect(facts, err);
    if (rc)
        return rc == -EACCES ? rc : -ENOTSUP;
    if (!facts->has_cm && facts->device_count)
        return cfg_error_set(err, ENOTSUP,
                             "rdma: /dev/infiniband/rdma_cm cannot be opened; load rdma_ucm, and give a container the "
                             "device");
    if (*address && tp_rdma_address_parse(address, want.address))
        return cfg_error_set(err, EINVAL, "rdma: %s is not an address in numbers", address);
    if (tp_rdma_choose(facts, &want, choice))
        return cfg_error_set(err, ENOTSUP, "rdma: %s", choice->why);
    return 0;
}

int rdma_rails(struct rdma *ep, const char *address, struct cfg_error *err)
{
    struct tp_rdma_choice choice;
    if (ep->rails)
        return 0;
    struct tp_rdma_facts *facts = malloc(sizeof *facts);
    if (!facts)
        return cfg_error_set(err, ENOMEM, "rdma: no memory");
    int rc = survey(ep, ep->address[0] ? ep->address : address ? address : "", facts, &choice, err);
    for (int i = 0; rc == 0 && i < choice.rail_count; i++) {
        struct rdma_rail *r = &ep->rail[i];
        *r = (struct rdma_rail){.owner = RDMA_LISTENER, .ep = ep, .index = i};
        rc = rdma_rail_open(r, &facts->device[choice.rail[i].device], &choice.rail[i], err);
        ep->rails = i + 1; /* one that was opened in part is closed like the others */
    }
    if (rc) {
        for (int i = 0; i < ep->rails; i++)
            rdma_rail_close(&ep->rail[i]);
        ep->rails = 0;
    }
    free(facts);
    return rc;
}

static void rdma_close(struct tp_endpoint *base);

static int rdma_open(const struct tp_endpoint_config *config, struct tp_endpoint **out, struct cfg_error *err)
{
    struct tp_rdma_choice choice;
    struct rdma *ep = config->host.base ? calloc(1, sizeof *ep) : NULL;
    struct tp_rdma_facts *facts = malloc(sizeof *facts);
    if (!ep || !facts) {
        free(ep);
        free(facts);
        return cfg_error_set(err, config->host.base ? ENOMEM : EINVAL, "rdma: an endpoint needs memory and a loop");
    }
    ep->base.ops = &tp_rdma_ops;
    ep->base.host = config->host;
    copy_config(ep, config->provider);
    ep->frame_max = within(config->frame_max, TP_RDMA_FRAME, TP_FRAME_MIN, 1 << 20);
    ep->depth = within(config->depth, TP_RDMA_DEPTH, TP_CREDITS_MIN, DEPTH_MAX);
    ep->connect_ns = config->connect_ns ? config->connect_ns : CONNECT_DEFAULT;
    ep->silence_ns = config->silence_ns ? config->silence_ns : SILENCE_DEFAULT;
    ep->due = TP_NEVER;
    int rc = survey(ep, ep->address, facts, &choice, err);
    free(facts);
    if (rc == 0) {
        ep->cm = rdma_create_event_channel();
        if (!ep->cm || fcntl(ep->cm->fd, F_SETFL, O_NONBLOCK))
            rc = cfg_error_set(err, ENOTSUP, "rdma: no connection manager (%s); load rdma_ucm", strerror(errno));
    }
    if (rc == 0) {
        ep->on_cm = event_new(config->host.base, ep->cm->fd, EV_READ | EV_PERSIST, on_cm, ep);
        ep->kick = event_new(config->host.base, -1, EV_PERSIST, on_kick, ep);
        if (!ep->on_cm || !ep->kick || event_add(ep->on_cm, NULL) || event_add(ep->kick, NULL))
            rc = cfg_error_set(err, ENOMEM, "rdma: the event loop takes no more");
    }
    if (rc) {
        rdma_close(&ep->base);
        return rc;
    }
    *out = &ep->base;
    return 0;
}

static void rdma_remove_region(struct tp_endpoint *base, struct tp_region *r);

static void rdma_close(struct tp_endpoint *base)
{
    struct rdma *ep = (struct rdma *)base;
    /* Nothing marks channels any more. */
    if (ep->kick)
        event_free(ep->kick);
    ep->kick = NULL;
    for (int i = 0; i < ep->rails; i++)
        if (ep->rail[i].listener)
            rdma_destroy_id(ep->rail[i].listener);
    while (ep->channels)
        rdma_channel_free(ep->channels);
    while (ep->regions)
        rdma_remove_region(base, ep->regions);
    for (int i = 0; i < ep->rails; i++)
        rdma_rail_close(&ep->rail[i]);
    if (ep->dns)
        evdns_base_free(ep->dns, 0);
    if (ep->on_cm)
        event_free(ep->on_cm);
    if (ep->cm)
        rdma_destroy_event_channel(ep->cm);
    free(ep);
}

/* ---- registered memory --------------------------------------------------------------------------------------- */

static void deregister(struct rdma *ep, struct tp_region *r)
{
    for (int i = 0; i < r->pieces * ep->rails; i++)
        if (r->mr[i])
            ibv_dereg_mr(r->mr[i]);
}

/* Bytes per registration: what every device of the endpoint can, or less when the configuration says so. */
static uint64_t piece_limit(const struct rdma *ep)
{
    uint64_t limit = ep->config.register_max ? ep->config.register_max : UINT64_MAX;
    for (int i = 0; i < ep->rails; i++) {
        struct ibv_device_attr a;
        if (ibv_query_device(ep->rail[i].ctx, &a) == 0 && a.max_mr_size && a.max_mr_size < limit)
            limit = a.max_mr_size;
    }
    return limit < PAGE ? PAGE : limit / PAGE * PAGE;
}

static int register_pieces(struct rdma *ep, struct tp_region *r, struct tp_rdma_window *w, struct cfg_error *err)
{
    for (int p = 0; p < r->pieces; p++)
        for (int i = 0; i < ep->rails; i++) {
            size_t at = (size_t)p * r->piece, size = r->size - at < r->piece ? r->size - at : r->piece;
            int k = p * ep->rails + i;
            r->mr[k] = ibv_reg_mr(ep->rail[i].pd, r->base + at, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
            if (!r->mr[k])
                return rdma_memory_error(err, errno ? errno : ENOMEM, "registering memory", ep->rail[i].name, r->size);
            w->rkey[k] = r->mr[k]->rkey;
        }
    return 0;
}

static int rdma_add_region(struct tp_endpoint *base, void *mem, size_t size, struct tp_region **out, struct tp_key *key,
                           struct cfg_error *err)
{
    struct rdma *ep = (struct rdma *)base;
    if (size == 0)
        return cfg_error_set(err, EINVAL, "rdma: an empty region");
    int rc = rdma_rails(ep, NULL, err);
    if (rc)
        return rc;
    uint64_t limit = piece_limit(ep), piece = ((uint64_t)size + PAGE - 1) / PAGE * PAGE;
    piece = piece > limit ? limit : piece;
    uint64_t pieces = (size + piece - 1) / piece;
    if (pieces * (uint64_t)ep->rails > TP_RDMA_RKEYS_MAX)
        return cfg_error_set(
            err, ENOMEM,
            "rdma: %zu MiB need %llu registrations of at most %llu MiB on each of %d devices, a window "
            "may have %d in all; use fewer devices, or lower kv.memory",
            size >> 20, (unsigned long long)pieces, (unsigned long long)(limit >> 20), ep->rails, TP_RDMA_RKEYS_MAX);
    struct tp_region *r = calloc(1, sizeof *r);
    if (!r)
        return cfg_error_set(err, ENOMEM, "rdma: no memory for a region");
    *r = (struct tp_region){.base = mem, .size = size, .piece = piece, .pieces = (int)pieces};
    struct tp_rdma_window w = {
        .base = (uintptr_t)mem, .size = size, .piece = piece, .pieces = r->pieces, .rails = ep->rails};
    rc = register_pieces(ep, r, &w, err);
    if (rc) {
        deregister(ep, r);
        free(r);
        return rc;
    }
    tp_rdma_window_write(&w, key);
    r->next = ep->regions;
    ep->regions = r;
    base->regions++;
    base->region_bytes += size;
    *out = r;
    return 0;
}

static void rdma_remove_region(struct tp_endpoint *base, struct tp_region *r)
{
    struct rdma *ep = (struct rdma *)base;
    for (struct tp_region **at = &ep->regions; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            base->regions--;
            base->region_bytes -= r->size;
            deregister(ep, r);
            free(r);
            return;
        }
}

const struct tp_ops tp_rdma_ops = {
    .name = "rdma",
    .open = rdma_open,
    .close = rdma_close,
    .listen = rdma_listen_at,
    .add_region = rdma_add_region,
    .remove_region = rdma_remove_region,
    .connect = rdma_dial,
    .send = rdma_send,
    .put = rdma_put,
    .trust = rdma_trust,
    .finish = rdma_finish,
    .abort = rdma_abort,
    .poll = rdma_poll,
    .look = rdma_look,
    .arm = rdma_arm,
};
