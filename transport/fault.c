/* The fault decorator (fault.h). A channel here stands before a channel of the provider below, whose user it is. Events
 * of a channel go through one queue when one of them has to wait, so that they keep their order. */
#include "transport/fault.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MILLION = 1000000 };

struct event {
    struct event *next;
    enum tp_fault_on kind;
    int64_t due;
    uint64_t number; /* immediate or cookie */
    int status;
    size_t size;
    uint8_t bytes[];
};

struct channel {
    struct tp_channel base;
    struct channel *next;
    struct tp_channel *below;
    struct event *head, **tail;
    struct event *withheld; /* PUT_DONE for the end */
    bool killed, aborted, room, announced;
    int64_t ends_at; /* killed, and the end is to come; 0: it is under way, or the channel lives */
};

struct faulty {
    struct tp_endpoint base;
    struct tp_fault *fault;
    struct tp_endpoint *below;
    struct channel *channels;
};

/* ---- rules ------------------------------------------------------------------------------------- */

static uint64_t draw(struct tp_fault *f)
{
    uint64_t z = f->seed += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static bool can(enum tp_fault_do what, uint32_t on)
{
    static const uint32_t fits[] = {
        [TP_FAULT_LOSE] = TP_FAULT_SEND | TP_FAULT_PUT | TP_FAULT_FRAME | TP_FAULT_IMMEDIATE | TP_FAULT_PUT_DONE,
        [TP_FAULT_DELAY] = TP_FAULT_FRAME | TP_FAULT_IMMEDIATE | TP_FAULT_PUT_DONE,
        [TP_FAULT_DOUBLE] = TP_FAULT_FRAME | TP_FAULT_IMMEDIATE | TP_FAULT_PUT_DONE,
        [TP_FAULT_REFUSE] = TP_FAULT_CONNECT | TP_FAULT_REGISTER | TP_FAULT_SEND | TP_FAULT_PUT,
        [TP_FAULT_STARVE] = TP_FAULT_SEND | TP_FAULT_PUT,
        [TP_FAULT_KILL] = ~(uint32_t)(TP_FAULT_CONNECT | TP_FAULT_REGISTER),
        [TP_FAULT_CRASH] = ~(uint32_t)(TP_FAULT_CONNECT | TP_FAULT_REGISTER),
    };
    return fits[what] & on;
}

/* The rule that strikes this operation; NULL: none. Every rule that fits has counted it. */
static const struct tp_fault_rule *strike(struct tp_fault *f, enum tp_fault_on on, int class)
{
    struct tp_fault_rule *hit = NULL;
    for (int i = 0; i < f->rules; i++) {
        struct tp_fault_rule *r = &f->rule[i];
        if (!(r->on & on) || !can(r->what, on) || (r->classes && class >= 0 && !(r->classes >> class & 1)))
            continue;
        r->seen++;
        bool now = r->at ? r->seen == r->at || (r->every && r->seen > r->at && (r->seen - r->at) % r->every == 0)
                         : r->chance && draw(f) % MILLION < r->chance;
        if (now && !hit)
            hit = r;
    }
    if (hit) {
        hit->done++;
        if (f->struck)
            f->struck(f->ctx, hit);
    }
    return hit;
}

static bool ends_channel(const struct tp_fault_rule *r)
{
    return r && (r->what == TP_FAULT_KILL || r->what == TP_FAULT_CRASH);
}

static void kill_channel(struct faulty *ep, struct channel *c, int64_t delay_ns)
{
    const struct tp_host *h = &ep->base.host;
    if (c->killed)
        return;
    c->killed = true;
    if (!delay_ns) {
        c->below->ops->abort(c->below);
        return;
    }
    c->ends_at = h->now(h->ctx) + delay_ns;
    h->wake(h->ctx);
}

static void apply_end(struct faulty *ep, struct channel *c, const struct tp_fault_rule *r)
{
    kill_channel(ep, c, r->delay_ns);
    for (c = r->what == TP_FAULT_CRASH ? ep->channels : NULL; c; c = c->next)
        kill_channel(ep, c, r->delay_ns);
}

/* ---- events ------------------------------------------------------------------------------------ */

static void mirror(struct channel *c)
{
    const struct tp_channel *b = c->below;
    struct tp_channel *a = &c->base;
    a->frame_max = b->frame_max;
    a->credits_max = b->credits_max;
    memcpy(a->peer, b->peer, sizeof a->peer);
    a->frames_out = b->frames_out;
    a->frames_in = b->frames_in;
    a->bytes_out = b->bytes_out;
    a->bytes_in = b->bytes_in;
    a->puts_out = b->puts_out;
    a->put_bytes_out = b->put_bytes_out;
    a->put_bytes_in = b->put_bytes_in;
}

static void tell(struct faulty *ep, struct channel *c, enum tp_fault_on kind, uint64_t number, int status,
                 const uint8_t *bytes, size_t size)
{
    const struct tp_host *h = &ep->base.host;
    if (kind == TP_FAULT_FRAME)
        h->sink->frame(h->ctx, &c->base, bytes, size);
    else if (kind == TP_FAULT_IMMEDIATE)
        h->sink->immediate(h->ctx, &c->base, (uint32_t)number);
    else
        h->sink->put_done(h->ctx, &c->base, number, status);
}

static struct event *keep(enum tp_fault_on kind, uint64_t number, int status, const uint8_t *bytes, size_t size)
{
    struct event *e = calloc(1, sizeof *e + size);
    if (!e)
        return NULL;
    *e = (struct event){.kind = kind, .number = number, .status = status, .size = size};
    if (size)
        memcpy(e->bytes, bytes, size);
    return e;
}

static void withhold(struct channel *c, uint64_t cookie, int status)
{
    struct event *e = keep(TP_FAULT_PUT_DONE, cookie, status ? status : -ECONNRESET, NULL, 0);
    struct event **at = &c->withheld;
    while (*at)
        at = &(*at)->next;
    *at = e;
}

static void arrive(struct channel *c, enum tp_fault_on kind, uint64_t number, int status, const uint8_t *bytes,
                   size_t size)
{
    struct faulty *ep = (struct faulty *)c->base.endpoint;
    const struct tp_host *h = &ep->base.host;
    mirror(c);
    const struct tp_fault_rule *r = c->killed ? NULL : strike(ep->fault, kind, (int)c->base.class);
    if (ends_channel(r))
        apply_end(ep, c, r);
    if (c->killed) {
        if (kind == TP_FAULT_PUT_DONE)
            withhold(c, number, status);
        return;
    }
    if (r && r->what == TP_FAULT_LOSE) {
        if (kind == TP_FAULT_PUT_DONE)
            withhold(c, number, status);
        return;
    }
    int times = r && r->what == TP_FAULT_DOUBLE ? 2 : 1;
    int64_t due = r && r->what == TP_FAULT_DELAY ? h->now(h->ctx) + r->delay_ns : 0;
    for (int i = 0; i < times; i++) {
        struct event *e = c->head || due ? keep(kind, number, status, bytes, size) : NULL;
        if (!e) { /* or there is no memory to let it wait */
            tell(ep, c, kind, number, status, bytes, size);
            continue;
        }
        e->due = due;
        *c->tail = e;
        c->tail = &e->next;
    }
    if (c->head)
        h->wake(h->ctx);
}

static struct event *pop(struct channel *c)
{
    struct event *e = c->head;
    if (e && !(c->head = e->next))
        c->tail = &c->head;
    return e;
}

/* ---- what the provider below calls ------------------------------------------------------------- */

static struct channel *channel_new(struct faulty *ep, struct tp_channel *below, enum tp_class class, void *user)
{
    struct channel *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->base =
        (struct tp_channel){.ops = &tp_faulty, .endpoint = &ep->base, .class = class, .dialled = !below, .user = user};
    c->below = below;
    c->tail = &c->head;
    struct channel **at = &ep->channels;
    while (*at)
        at = &(*at)->next;
    *at = c;
    ep->base.channels++;
    return c;
}

static void channel_free(struct faulty *ep, struct channel *c)
{
    struct channel **at = &ep->channels;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    for (struct event *e; (e = pop(c));)
        free(e);
    for (struct event *e; (e = c->withheld);) {
        c->withheld = e->next;
        free(e);
    }
    ep->base.channels--;
    free(c);
}

static void on_accepted(void *ctx, struct tp_channel *below)
{
    struct faulty *ep = ctx;
    struct channel *c = channel_new(ep, below, below->class, NULL);
    below->user = c;
    if (!c) {
        below->ops->abort(below);
        return;
    }
    mirror(c);
    c->announced = true;
    ep->base.host.sink->accepted(ep->base.host.ctx, &c->base);
}

static void on_opened(void *ctx, struct tp_channel *below)
{
    struct faulty *ep = ctx;
    struct channel *c = below->user;
    mirror(c);
    c->announced = true;
    if (!c->killed)
        ep->base.host.sink->opened(ep->base.host.ctx, &c->base);
}

static void on_frame(void *ctx, struct tp_channel *below, const uint8_t *bytes, size_t size)
{
    (void)ctx;
    if (below->user)
        arrive(below->user, TP_FAULT_FRAME, 0, 0, bytes, size);
}

static void on_immediate(void *ctx, struct tp_channel *below, uint32_t immediate)
{
    (void)ctx;
    if (below->user)
        arrive(below->user, TP_FAULT_IMMEDIATE, immediate, 0, NULL, 0);
}

static void on_put_done(void *ctx, struct tp_channel *below, uint64_t cookie, int status)
{
    (void)ctx;
    if (below->user)
        arrive(below->user, TP_FAULT_PUT_DONE, cookie, status, NULL, 0);
}

static void on_room(void *ctx, struct tp_channel *below)
{
    struct faulty *ep = ctx;
    struct channel *c = below->user;
    if (c && !c->killed)
        ep->base.host.sink->room(ep->base.host.ctx, &c->base);
}

/* Frames that still waited are lost with the channel; puts have their ends. */
static void on_closed(void *ctx, struct tp_channel *below, int reason, const char *why)
{
    struct faulty *ep = ctx;
    struct channel *c = below->user;
    const struct tp_host *h = &ep->base.host;
    if (!c)
        return;
    mirror(c);
    for (struct event *e; (e = pop(c)); free(e))
        if (e->kind == TP_FAULT_PUT_DONE || reason == 0)
            tell(ep, c, e->kind, e->number, e->status, e->bytes, e->size);
    for (struct event *e; (e = c->withheld); free(e)) {
        c->withheld = e->next;
        h->sink->put_done(h->ctx, &c->base, e->number, e->status);
    }
    if (c->killed && !c->aborted)
        h->sink->closed(h->ctx, &c->base, -ECONNRESET, "a fault on purpose ended it");
    else
        h->sink->closed(h->ctx, &c->base, reason, why);
    channel_free(ep, c);
}

static const struct tp_sink sink = {.accepted = on_accepted,
                                    .opened = on_opened,
                                    .frame = on_frame,
                                    .immediate = on_immediate,
                                    .put_done = on_put_done,
                                    .room = on_room,
                                    .closed = on_closed};

static int64_t host_now(void *ctx)
{
    const struct tp_host *h = &((struct faulty *)ctx)->base.host;
    return h->now(h->ctx);
}

static void host_random(void *ctx, void *out, size_t size)
{
    const struct tp_host *h = &((struct faulty *)ctx)->base.host;
    h->random(h->ctx, out, size);
}

static void host_wake(void *ctx)
{
    const struct tp_host *h = &((struct faulty *)ctx)->base.host;
    h->wake(h->ctx);
}

/* ---- the table --------------------------------------------------------------------------------- */

static int faulty_open(const struct tp_endpoint_config *config, struct tp_endpoint **out, struct cfg_error *err)
{
    struct faulty *ep = calloc(1, sizeof *ep);
    if (!ep)
        return cfg_error_set(err, ENOMEM, "no memory for an endpoint");
    ep->base = (struct tp_endpoint){.ops = &tp_faulty, .host = config->host};
    ep->fault = (struct tp_fault *)(uintptr_t)config->provider;
    struct tp_endpoint_config c = *config;
    c.provider = ep->fault->provider;
    c.host = (struct tp_host){
        .sink = &sink, .ctx = ep, .now = host_now, .random = host_random, .wake = host_wake, .base = config->host.base};
    int rc = ep->fault->ops->open(&c, &ep->below, err);
    if (rc) {
        free(ep);
        return rc;
    }
    *out = &ep->base;
    return 0;
}

static void faulty_close(struct tp_endpoint *base)
{
    struct faulty *ep = (struct faulty *)base;
    ep->below->ops->close(ep->below);
    while (ep->channels)
        channel_free(ep, ep->channels);
    free(ep);
}

static int faulty_listen(struct tp_endpoint *base, const char *address, char bound[TP_ADDRESS_TEXT],
                         struct cfg_error *err)
{
    struct tp_endpoint *below = ((struct faulty *)base)->below;
    return below->ops->listen(below, address, bound, err);
}

static int faulty_add_region(struct tp_endpoint *base, void *mem, size_t size, struct tp_region **out,
                             struct tp_key *key, struct cfg_error *err)
{
    struct faulty *ep = (struct faulty *)base;
    if (strike(ep->fault, TP_FAULT_REGISTER, -1))
        return cfg_error_set(err, ENOMEM, "%zu bytes were not registered: a fault on purpose", size);
    int rc = ep->below->ops->add_region(ep->below, mem, size, out, key, err);
    base->regions = ep->below->regions;
    base->region_bytes = ep->below->region_bytes;
    return rc;
}

static void faulty_remove_region(struct tp_endpoint *base, struct tp_region *r)
{
    struct faulty *ep = (struct faulty *)base;
    ep->below->ops->remove_region(ep->below, r);
    base->regions = ep->below->regions;
    base->region_bytes = ep->below->region_bytes;
}

static int faulty_connect(struct tp_endpoint *base, const char *address, enum tp_class class, void *user,
                          struct tp_channel **out, struct cfg_error *err)
{
    struct faulty *ep = (struct faulty *)base;
    if (strike(ep->fault, TP_FAULT_CONNECT, (int)class))
        return cfg_error_set(err, ENETUNREACH, "%s: not reached, a fault on purpose", address);
    struct channel *c = channel_new(ep, NULL, class, user);
    if (!c)
        return cfg_error_set(err, ENOMEM, "no memory for a channel");
    int rc = ep->below->ops->connect(ep->below, address, class, c, &c->below, err);
    if (rc) {
        channel_free(ep, c);
        return rc;
    }
    mirror(c);
    *out = &c->base;
    return 0;
}

/* Of SEND and PUT: what the rule makes of it. 1: as always. */
static int before(struct channel *c, enum tp_fault_on on)
{
    struct faulty *ep = (struct faulty *)c->base.endpoint;
    const struct tp_host *h = &ep->base.host;
    if (c->killed || !c->announced)
        return -ENOTCONN;
    const struct tp_fault_rule *r = strike(ep->fault, on, (int)c->base.class);
    if (!r)
        return 1;
    if (ends_channel(r)) {
        apply_end(ep, c, r);
        return -ENOTCONN;
    }
    if (r->what == TP_FAULT_STARVE)
        return -ENOMEM;
    if (r->what == TP_FAULT_REFUSE) {
        c->room = true;
        h->wake(h->ctx);
        return -EAGAIN;
    }
    return 0;
}

static int faulty_send(struct tp_channel *base, const struct iovec *part, int n)
{
    struct channel *c = (struct channel *)base;
    size_t size = tp_iov_size(part, n);
    int rc = size && size <= base->frame_max ? before(c, TP_FAULT_SEND) : 1;
    if (rc <= 0)
        return rc;
    rc = c->below->ops->send(c->below, part, n);
    mirror(c);
    return rc;
}

static int faulty_put(struct tp_channel *base, const struct tp_put *put)
{
    struct channel *c = (struct channel *)base;
    int rc = before(c, TP_FAULT_PUT);
    if (rc < 0)
        return rc;
    if (rc == 0) {
        withhold(c, put->cookie, -ECONNRESET);
        return 0;
    }
    rc = c->below->ops->put(c->below, put);
    mirror(c);
    return rc;
}

static int faulty_trust(struct tp_channel *base)
{
    struct channel *c = (struct channel *)base;
    int rc = c->killed ? -ENOTCONN : c->below->ops->trust(c->below);
    base->trusted = c->below->trusted;
    return rc;
}

static void faulty_finish(struct tp_channel *base)
{
    struct channel *c = (struct channel *)base;
    c->below->ops->finish(c->below);
}

static void faulty_abort(struct tp_channel *base)
{
    struct channel *c = (struct channel *)base;
    c->aborted = true;
    c->ends_at = 0;
    c->below->ops->abort(c->below);
}

static int64_t faulty_poll(struct tp_endpoint *base)
{
    struct faulty *ep = (struct faulty *)base;
    const struct tp_host *h = &base->host;
    for (struct channel *c = ep->channels; c; c = c->next)
        if (c->ends_at && c->ends_at <= h->now(h->ctx)) {
            c->ends_at = 0;
            c->below->ops->abort(c->below);
        }
    int64_t next = ep->below->ops->poll(ep->below), now = h->now(h->ctx);
    /* Channels end in the poll below only. */
    for (struct channel *c = ep->channels; c; c = c->next) {
        bool room = c->room && !c->killed && !c->aborted;
        c->room = false;
        if (room)
            h->sink->room(h->ctx, &c->base);
        while (c->head && c->head->due <= now && !c->killed && !c->aborted) {
            struct event *e = pop(c);
            tell(ep, c, e->kind, e->number, e->status, e->bytes, e->size);
            free(e);
        }
        if (c->head && !c->killed && !c->aborted && c->head->due < next)
            next = c->head->due;
        if (c->ends_at && c->ends_at < next)
            next = c->ends_at;
    }
    return next;
}

const struct tp_ops tp_faulty = {
    .name = "faulty",
    .open = faulty_open,
    .close = faulty_close,
    .listen = faulty_listen,
    .add_region = faulty_add_region,
    .remove_region = faulty_remove_region,
    .connect = faulty_connect,
    .send = faulty_send,
    .put = faulty_put,
    .trust = faulty_trust,
    .finish = faulty_finish,
    .abort = faulty_abort,
    .poll = faulty_poll,
};
