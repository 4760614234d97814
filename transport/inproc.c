/* The provider inproc (inproc.h). A connection is a struct pipe that both channels share: two queues of items, one
 * lock. Each side takes from its own queue on its own thread and puts into the other's.
 *
 * Locks: the hub's (who listens), then a pipe's. wake is called under them and must not call back. An endpoint is
 * reached from other threads only through its pipes and the hub, both of which it leaves before it is freed. */
#include "transport/inproc.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_DEFAULT = 64, FRAME_DEFAULT = 64 << 10, ITEMS_PER_POLL = 64 };

struct tp_inproc_hub {
    pthread_mutex_t lock;
    struct inproc *listeners;
    uint64_t next_region;
};

struct tp_region {
    struct tp_region *next;
    uint64_t id;
    uint8_t *base;
    size_t size;
};

enum kind { FRAME, PUT, DONE, FIN };

struct item {
    struct item *next;
    enum kind kind;
    struct tp_put put; /* PUT; DONE has its cookie */
    int status;        /* DONE */
    size_t size;       /* FRAME */
    uint8_t bytes[];
};

struct side {
    struct inproc *ep; /* NULL: this side has ended */
    struct item *head, *tail;
    uint32_t waiting; /* FRAME and PUT in this queue */
    bool room;        /* this side was refused, and there is room now */
    bool starved;     /* this side was refused */
};

struct pipe {
    pthread_mutex_t lock;
    int sides; /* that hold it */
    bool dead; /* one side has aborted; nothing moves any more */
    int reason;
    uint32_t depth;
    struct side side[2];
};

struct waiting_put {
    struct waiting_put *next;
    uint64_t cookie;
};

struct channel {
    struct tp_channel base;
    struct channel *next;
    struct pipe *pipe; /* NULL: nobody listened */
    int me;
    bool announced; /* OPENED or ACCEPTED was called */
    bool finishing, fin_sent, fin_seen, aborted;
    struct waiting_put *puts, **puts_tail;
};

struct inproc {
    struct tp_endpoint base;
    struct tp_inproc_hub *hub;
    uint32_t frame_max, depth;
    struct channel *channels;
    struct tp_region *regions;
    /* Under the hub's lock: */
    struct inproc *listeners_next;
    bool listening;
    char name[TP_ADDRESS_TEXT];
    struct channel *arrived; /* made by others, not yet in channels */
};

struct tp_inproc_hub *tp_inproc_hub_new(void)
{
    struct tp_inproc_hub *h = calloc(1, sizeof *h);
    if (h)
        pthread_mutex_init(&h->lock, NULL);
    return h;
}

void tp_inproc_hub_free(struct tp_inproc_hub *hub)
{
    if (!hub)
        return;
    pthread_mutex_destroy(&hub->lock);
    free(hub);
}

static void wake(struct inproc *ep)
{
    ep->base.host.wake(ep->base.host.ctx);
}

/* ---- queues; the pipe's lock is held ----------------------------------------------------------- */

static void push(struct pipe *p, int to, struct item *i)
{
    struct side *s = &p->side[to];
    i->next = NULL;
    if (s->tail)
        s->tail->next = i;
    else
        s->head = i;
    s->tail = i;
    s->waiting += i->kind == FRAME || i->kind == PUT;
    if (s->ep)
        wake(s->ep);
}

static struct item *pop(struct pipe *p, int me)
{
    struct side *s = &p->side[me], *other = &p->side[1 - me];
    struct item *i = s->head;
    if (!i)
        return NULL;
    s->head = i->next;
    if (!s->head)
        s->tail = NULL;
    if (i->kind == FRAME || i->kind == PUT) {
        s->waiting--;
        if (other->starved) {
            other->starved = false;
            other->room = true;
            if (other->ep)
                wake(other->ep);
        }
    }
    return i;
}

static void kill_pipe(struct pipe *p, int me, int reason)
{
    if (p->dead)
        return;
    p->dead = true;
    p->reason = reason;
    if (p->side[1 - me].ep)
        wake(p->side[1 - me].ep);
}

static void leave_pipe(struct pipe *p, int me)
{
    pthread_mutex_lock(&p->lock);
    p->side[me].ep = NULL;
    for (struct item *i; (i = pop(p, me));)
        free(i);
    bool last = --p->sides == 0;
    pthread_mutex_unlock(&p->lock);
    if (!last)
        return;
    for (int s = 0; s < 2; s++)
        for (struct item *i; (i = pop(p, s));)
            free(i);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* ---- endpoints --------------------------------------------------------------------------------- */

static int inproc_open(const struct tp_endpoint_config *config, struct tp_endpoint **out, struct cfg_error *err)
{
    struct inproc *ep = calloc(1, sizeof *ep);
    if (!ep)
        return cfg_error_set(err, ENOMEM, "no memory for an endpoint");
    ep->base.ops = &tp_inproc;
    ep->base.host = config->host;
    ep->hub = (struct tp_inproc_hub *)(uintptr_t)config->provider;
    ep->frame_max = config->frame_max ? config->frame_max : FRAME_DEFAULT;
    ep->depth = config->depth ? config->depth : DEPTH_DEFAULT;
    *out = &ep->base;
    return 0;
}

static struct inproc *find_listener(struct tp_inproc_hub *hub, const char *name)
{
    struct inproc *l = hub->listeners;
    while (l && strcmp(l->name, name) != 0)
        l = l->listeners_next;
    return l;
}

static int inproc_listen(struct tp_endpoint *base, const char *address, char bound[TP_ADDRESS_TEXT],
                         struct cfg_error *err)
{
    struct inproc *ep = (struct inproc *)base;
    if (ep->listening || strlen(address) >= TP_ADDRESS_TEXT)
        return cfg_error_set(err, EINVAL, "%s: not an address to listen at, or the endpoint listens already", address);
    pthread_mutex_lock(&ep->hub->lock);
    bool taken = find_listener(ep->hub, address) != NULL;
    if (!taken) {
        snprintf(ep->name, sizeof ep->name, "%s", address);
        ep->listeners_next = ep->hub->listeners;
        ep->hub->listeners = ep;
        ep->listening = true;
    }
    pthread_mutex_unlock(&ep->hub->lock);
    if (taken)
        return cfg_error_set(err, EADDRINUSE, "%s: another endpoint of this process listens there", address);
    snprintf(bound, TP_ADDRESS_TEXT, "%s", address);
    return 0;
}

static int inproc_add_region(struct tp_endpoint *base, void *mem, size_t size, struct tp_region **out,
                             struct tp_key *key, struct cfg_error *err)
{
    struct inproc *ep = (struct inproc *)base;
    struct tp_region *r = size ? calloc(1, sizeof *r) : NULL;
    if (!r)
        return cfg_error_set(err, size ? ENOMEM : EINVAL, size ? "no memory for a region" : "an empty region");
    pthread_mutex_lock(&ep->hub->lock);
    r->id = ++ep->hub->next_region;
    pthread_mutex_unlock(&ep->hub->lock);
    r->base = mem;
    r->size = size;
    r->next = ep->regions;
    ep->regions = r;
    base->regions++;
    base->region_bytes += size;
    *key = (struct tp_key){.size = sizeof r->id};
    memcpy(key->byte, &r->id, sizeof r->id);
    *out = r;
    return 0;
}

static void inproc_remove_region(struct tp_endpoint *base, struct tp_region *r)
{
    struct inproc *ep = (struct inproc *)base;
    for (struct tp_region **at = &ep->regions; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            base->regions--;
            base->region_bytes -= r->size;
            free(r);
            return;
        }
}

/* ---- channels ---------------------------------------------------------------------------------- */

static struct channel *channel_new(struct inproc *ep, enum tp_class class, const char *peer)
{
    struct channel *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->base.ops = &tp_inproc;
    c->base.endpoint = &ep->base;
    c->base.class = class;
    snprintf(c->base.peer, sizeof c->base.peer, "%s", peer);
    c->puts_tail = &c->puts;
    return c;
}

static void link_channel(struct inproc *ep, struct channel *c)
{
    c->next = ep->channels;
    ep->channels = c;
    ep->base.channels++;
}

/* Makes both ends of a connection; the listener gets its one at its next poll. The hub's lock is held. */
static int make_pipe(struct inproc *ep, struct inproc *to, struct channel *mine)
{
    struct pipe *p = calloc(1, sizeof *p);
    struct channel *theirs = channel_new(to, mine->base.class, ep->name[0] ? ep->name : "inproc");
    if (!p || !theirs) {
        free(p);
        free(theirs);
        return -ENOMEM;
    }
    pthread_mutex_init(&p->lock, NULL);
    p->sides = 2;
    p->depth = ep->depth < to->depth ? ep->depth : to->depth;
    p->side[0].ep = ep;
    p->side[1].ep = to;
    mine->pipe = theirs->pipe = p;
    theirs->me = 1;
    mine->base.frame_max = theirs->base.frame_max = ep->frame_max < to->frame_max ? ep->frame_max : to->frame_max;
    mine->base.credits_max = theirs->base.credits_max = p->depth;
    theirs->next = NULL;
    struct channel **at = &to->arrived;
    while (*at)
        at = &(*at)->next;
    *at = theirs;
    wake(to);
    return 0;
}

static int inproc_connect(struct tp_endpoint *base, const char *address, enum tp_class class, void *user,
                          struct tp_channel **out, struct cfg_error *err)
{
    struct inproc *ep = (struct inproc *)base;
    struct channel *c = channel_new(ep, class, address);
    if (!c)
        return cfg_error_set(err, ENOMEM, "no memory for a channel");
    c->base.user = user;
    c->base.dialled = true;
    pthread_mutex_lock(&ep->hub->lock);
    struct inproc *to = find_listener(ep->hub, address);
    int rc = to ? make_pipe(ep, to, c) : 0;
    pthread_mutex_unlock(&ep->hub->lock);
    if (rc) {
        free(c);
        return cfg_error_set(err, -rc, "no memory for a channel");
    }
    link_channel(ep, c);
    wake(ep);
    *out = &c->base;
    return 0;
}

/* Whether this side may put one more item into the other's queue. The pipe's lock is held. */
static bool has_room(struct channel *c)
{
    struct pipe *p = c->pipe;
    if (p->side[1 - c->me].waiting < p->depth)
        return true;
    p->side[c->me].starved = true;
    return false;
}

static bool usable(const struct channel *c)
{
    return c->pipe && c->announced && !c->finishing && !c->aborted && !c->fin_seen;
}

static int inproc_send(struct tp_channel *base, const struct iovec *part, int n)
{
    struct channel *c = (struct channel *)base;
    size_t size = tp_iov_size(part, n);
    if (!usable(c))
        return -ENOTCONN;
    if (size == 0 || size > base->frame_max)
        return -EMSGSIZE;
    pthread_mutex_lock(&c->pipe->lock);
    int rc = c->pipe->dead ? -ENOTCONN : has_room(c) ? 0 : -EAGAIN;
    pthread_mutex_unlock(&c->pipe->lock);
    struct item *i = rc == 0 ? malloc(sizeof *i + size) : NULL;
    if (!i)
        return rc ? rc : -ENOMEM;
    i->kind = FRAME;
    i->size = 0;
    for (int k = 0; k < n; k++) {
        memcpy(i->bytes + i->size, part[k].iov_base, part[k].iov_len);
        i->size += part[k].iov_len;
    }
    /* Room can only have grown since: this side alone fills that queue. */
    pthread_mutex_lock(&c->pipe->lock);
    push(c->pipe, 1 - c->me, i);
    pthread_mutex_unlock(&c->pipe->lock);
    base->frames_out++;
    base->bytes_out += size;
    return 0;
}

static int inproc_put(struct tp_channel *base, const struct tp_put *put)
{
    struct channel *c = (struct channel *)base;
    const struct tp_region *r = put->region;
    const uint8_t *from = put->from;
    if (!usable(c))
        return -ENOTCONN;
    if (put->size == 0 || from < r->base || put->size > r->size || from > r->base + (r->size - put->size))
        return -EINVAL;
    struct item *i = calloc(1, sizeof *i);
    struct waiting_put *w = calloc(1, sizeof *w);
    if (!i || !w) {
        free(i);
        free(w);
        return -ENOMEM;
    }
    i->kind = PUT;
    i->put = *put;
    w->cookie = put->cookie;
    pthread_mutex_lock(&c->pipe->lock);
    int rc = c->pipe->dead ? -ENOTCONN : has_room(c) ? 0 : -EAGAIN;
    if (rc == 0)
        push(c->pipe, 1 - c->me, i);
    pthread_mutex_unlock(&c->pipe->lock);
    if (rc) {
        free(i);
        free(w);
        return rc;
    }
    *c->puts_tail = w;
    c->puts_tail = &w->next;
    base->puts_out++;
    base->put_bytes_out += put->size;
    return 0;
}

static int inproc_trust(struct tp_channel *base)
{
    if (!usable((struct channel *)base))
        return -ENOTCONN;
    base->trusted = true;
    return 0;
}

static void inproc_finish(struct tp_channel *base)
{
    struct channel *c = (struct channel *)base;
    c->finishing = true;
    wake((struct inproc *)base->endpoint);
}

static void inproc_abort(struct tp_channel *base)
{
    struct channel *c = (struct channel *)base;
    c->aborted = true;
    if (c->pipe) {
        pthread_mutex_lock(&c->pipe->lock);
        kill_pipe(c->pipe, c->me, -ECONNRESET);
        pthread_mutex_unlock(&c->pipe->lock);
    }
    wake((struct inproc *)base->endpoint);
}

/* ---- what arrives ------------------------------------------------------------------------------ */

static struct tp_region *find_region(struct inproc *ep, const struct tp_key *key)
{
    uint64_t id = 0;
    if (key->size != sizeof id)
        return NULL;
    memcpy(&id, key->byte, sizeof id);
    struct tp_region *r = ep->regions;
    while (r && r->id != id)
        r = r->next;
    return r;
}

/* Copies for a put of the other side, unless that side has aborted: its memory may be something else by then. */
static int land(struct inproc *ep, struct channel *c, const struct tp_put *p)
{
    struct tp_region *r = c->base.trusted ? find_region(ep, &p->key) : NULL;
    if (!r || p->size > r->size || p->offset > r->size - p->size)
        return -EACCES;
    pthread_mutex_lock(&c->pipe->lock);
    bool dead = c->pipe->dead;
    if (!dead)
        memcpy(r->base + p->offset, p->from, p->size);
    pthread_mutex_unlock(&c->pipe->lock);
    if (dead)
        return -ECONNRESET;
    c->base.put_bytes_in += p->size;
    return 0;
}

static void take_put(struct inproc *ep, struct channel *c, struct item *i)
{
    struct tp_put p = i->put;
    int status = land(ep, c, &p);
    i->kind = DONE;
    i->status = status;
    pthread_mutex_lock(&c->pipe->lock);
    push(c->pipe, 1 - c->me, i);
    if (status == -EACCES)
        kill_pipe(c->pipe, c->me, -EACCES);
    pthread_mutex_unlock(&c->pipe->lock);
    if (status == 0 && p.with_immediate)
        ep->base.host.sink->immediate(ep->base.host.ctx, &c->base, p.immediate);
}

static void done_put(struct inproc *ep, struct channel *c, int status)
{
    struct waiting_put *w = c->puts;
    uint64_t cookie = w->cookie;
    c->puts = w->next;
    if (!c->puts)
        c->puts_tail = &c->puts;
    free(w);
    ep->base.host.sink->put_done(ep->base.host.ctx, &c->base, cookie, status);
}

static void take_item(struct inproc *ep, struct channel *c, struct item *i)
{
    const struct tp_host *h = &ep->base.host;
    switch (i->kind) {
    case FRAME:
        c->base.frames_in++;
        c->base.bytes_in += i->size;
        if (!c->finishing)
            h->sink->frame(h->ctx, &c->base, i->bytes, i->size);
        break;
    case PUT:
        take_put(ep, c, i);
        return;
    case DONE:
        done_put(ep, c, i->status);
        break;
    case FIN:
        c->fin_seen = true;
        break;
    }
    free(i);
}

static void end(struct inproc *ep, struct channel *c, int reason, const char *why)
{
    const struct tp_host *h = &ep->base.host;
    while (c->puts)
        done_put(ep, c, reason ? reason : -ECONNRESET);
    h->sink->closed(h->ctx, &c->base, reason, why);
    if (c->pipe)
        leave_pipe(c->pipe, c->me);
    for (struct channel **at = &ep->channels; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    ep->base.channels--;
    free(c);
}

static void announce(struct inproc *ep, struct channel *c)
{
    const struct tp_host *h = &ep->base.host;
    c->announced = true;
    if (c->base.dialled)
        h->sink->opened(h->ctx, &c->base);
    else
        h->sink->accepted(h->ctx, &c->base);
}

/* The pipe has died: what DONE items are left are still true, the rest is void. */
static void end_dead(struct inproc *ep, struct channel *c, int reason)
{
    for (;;) {
        pthread_mutex_lock(&c->pipe->lock);
        struct item *i = pop(c->pipe, c->me);
        pthread_mutex_unlock(&c->pipe->lock);
        if (!i)
            break;
        if (i->kind == DONE && c->puts)
            done_put(ep, c, i->status);
        free(i);
    }
    end(ep, c, reason, reason == -EACCES ? "a put named a window or a range that is not there" : "");
}

static bool finish_step(struct inproc *ep, struct channel *c)
{
    if ((c->finishing || c->fin_seen) && !c->fin_sent && (c->finishing || !c->puts)) {
        struct item *i = calloc(1, sizeof *i);
        if (!i)
            return false; /* tried again at the next poll */
        i->kind = FIN;
        c->fin_sent = true;
        pthread_mutex_lock(&c->pipe->lock);
        push(c->pipe, 1 - c->me, i);
        pthread_mutex_unlock(&c->pipe->lock);
    }
    if (!c->fin_seen || !c->fin_sent || c->puts)
        return false;
    end(ep, c, 0, "");
    return true;
}

/* Everything that one channel has to do now. Returns whether more is left. c may be gone afterwards. */
static bool poll_channel(struct inproc *ep, struct channel *c)
{
    const struct tp_host *h = &ep->base.host;
    if (!c->pipe || c->aborted) {
        end(ep, c, c->aborted ? -ECANCELED : -ECONNREFUSED, c->aborted ? "" : "nobody listens there");
        return true;
    }
    if (!c->announced) {
        announce(ep, c);
        return true;
    }
    for (int n = 0; n < ITEMS_PER_POLL; n++) {
        pthread_mutex_lock(&c->pipe->lock);
        bool dead = c->pipe->dead;
        int reason = c->pipe->reason;
        bool room = c->pipe->side[c->me].room;
        c->pipe->side[c->me].room = false;
        struct item *i = dead ? NULL : pop(c->pipe, c->me);
        pthread_mutex_unlock(&c->pipe->lock);
        if (dead) {
            end_dead(ep, c, c->aborted ? -ECANCELED : reason);
            return true;
        }
        if (room && usable(c))
            h->sink->room(h->ctx, &c->base);
        if (!i)
            return finish_step(ep, c);
        take_item(ep, c, i);
        if (c->aborted)
            return true;
    }
    return true;
}

static int64_t inproc_poll(struct tp_endpoint *base)
{
    struct inproc *ep = (struct inproc *)base;
    bool more = false;
    pthread_mutex_lock(&ep->hub->lock);
    struct channel *arrived = ep->arrived;
    ep->arrived = NULL;
    pthread_mutex_unlock(&ep->hub->lock);
    for (struct channel *c; (c = arrived);) {
        arrived = c->next;
        link_channel(ep, c);
        more = true;
    }
    /* Only the channel at hand can end during a turn; callbacks may add others in front. */
    for (struct channel *c = ep->channels, *next; c; c = next) {
        next = c->next;
        more |= poll_channel(ep, c);
    }
    return more ? base->host.now(base->host.ctx) : TP_NEVER;
}

static void inproc_close(struct tp_endpoint *base)
{
    struct inproc *ep = (struct inproc *)base;
    pthread_mutex_lock(&ep->hub->lock);
    for (struct inproc **at = &ep->hub->listeners; *at; at = &(*at)->listeners_next)
        if (*at == ep) {
            *at = ep->listeners_next;
            break;
        }
    struct channel *arrived = ep->arrived;
    ep->arrived = NULL;
    pthread_mutex_unlock(&ep->hub->lock);
    struct channel *lists[] = {arrived, ep->channels};
    for (int l = 0; l < 2; l++)
        for (struct channel *c; (c = lists[l]);) {
            lists[l] = c->next;
            if (c->pipe) {
                pthread_mutex_lock(&c->pipe->lock);
                kill_pipe(c->pipe, c->me, -ECONNRESET);
                pthread_mutex_unlock(&c->pipe->lock);
                leave_pipe(c->pipe, c->me);
            }
            for (struct waiting_put *w; (w = c->puts);) {
                c->puts = w->next;
                free(w);
            }
            free(c);
        }
    while (ep->regions)
        inproc_remove_region(base, ep->regions);
    free(ep);
}

const struct tp_ops tp_inproc = {
    .name = "inproc",
    .open = inproc_open,
    .close = inproc_close,
    .listen = inproc_listen,
    .add_region = inproc_add_region,
    .remove_region = inproc_remove_region,
    .connect = inproc_connect,
    .send = inproc_send,
    .put = inproc_put,
    .trust = inproc_trust,
    .finish = inproc_finish,
    .abort = inproc_abort,
    .poll = inproc_poll,
};
