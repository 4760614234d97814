/* The provider sim (sim.h). A connection is a struct pipe that both channels share, with one queue of items per
 * direction, ordered by the time at which they are there. The receiving side takes them in its poll. */
#include "transport/sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_DEFAULT = 64, FRAME_DEFAULT = 64 << 10, PIECE_DEFAULT = 4096, RETRIES_DEFAULT = 6, MILLION = 1000000 };

#define MS INT64_C(1000000)

struct rule {
    struct rule *next;
    char from[TP_ADDRESS_TEXT], to[TP_ADDRESS_TEXT];
    struct tp_sim_fault fault;
    bool own, cut; /* fault counts; nothing arrives */
};

struct tp_sim_net {
    uint64_t random; /* splitmix64 */
    struct tp_sim_fault fault;
    struct rule *rules;
    struct end *ends;
    uint64_t next_region;
    struct tp_sim_stats stats;
};

struct tp_region {
    struct tp_region *next;
    uint64_t id;
    uint8_t *base;
    size_t size;
};

enum kind { FRAME, PUT, ACK, FIN };

struct item {
    struct item *next;
    enum kind kind;
    int64_t sent, due;
    bool of_put; /* ACK */
    int status;  /* ACK */
    struct tp_put put;
    uint32_t *order; /* PUT: numbers of its pieces, as they land */
    size_t pieces, landed, piece;
    size_t size;
    uint8_t bytes[];
};

struct side {
    struct end *ep; /* NULL: this side has ended */
    struct item *head, *tail;
    int64_t over_at; /* when this side learns that the connection has ended; TP_NEVER: it has not */
    int reason;
};

struct pipe {
    int sides;
    uint32_t depth;
    char name[2][TP_ADDRESS_TEXT];
    struct side side[2];
};

struct waiting_put {
    struct waiting_put *next;
    uint64_t cookie;
};

struct channel {
    struct tp_channel base;
    struct channel *next;
    struct pipe *pipe; /* NULL: nobody answered */
    int me;
    int64_t there_at; /* when it is opened or accepted, or fails */
    bool announced, finishing, fin_sent, fin_seen, aborted, starved;
    int failed; /* of a connect without a pipe */
    uint32_t under_way;
    int64_t heard; /* or the time since which something is under way */
    struct waiting_put *puts, **puts_tail;
};

struct end {
    struct tp_endpoint base;
    struct tp_sim_net *net;
    char name[TP_ADDRESS_TEXT], address[TP_ADDRESS_TEXT];
    uint32_t frame_max, depth;
    int64_t connect_ns, silence_ns;
    struct channel *channels;
    struct tp_region *regions;
    bool listening;
    struct end *next;
};

/* ---- the network ------------------------------------------------------------------------------- */

static uint64_t draw(struct tp_sim_net *net)
{
    uint64_t z = net->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static bool chance(struct tp_sim_net *net, uint32_t per_million)
{
    return per_million && draw(net) % MILLION < per_million;
}

struct tp_sim_net *tp_sim_net_new(uint64_t seed)
{
    struct tp_sim_net *net = calloc(1, sizeof *net);
    if (net)
        net->random = seed;
    return net;
}

void tp_sim_net_free(struct tp_sim_net *net)
{
    for (struct rule *r; net && (r = net->rules);) {
        net->rules = r->next;
        free(r);
    }
    free(net);
}

void tp_sim_net_fault(struct tp_sim_net *net, const struct tp_sim_fault *fault)
{
    net->fault = *fault;
}

static struct rule *find_rule(const struct tp_sim_net *net, const char *from, const char *to)
{
    struct rule *r = net->rules;
    while (r && (strcmp(r->from, from) || strcmp(r->to, to)))
        r = r->next;
    return r;
}

static struct rule *add_rule(struct tp_sim_net *net, const char *from, const char *to)
{
    struct rule *r = find_rule(net, from, to);
    if (r || !(r = calloc(1, sizeof *r)))
        return r;
    snprintf(r->from, sizeof r->from, "%s", from);
    snprintf(r->to, sizeof r->to, "%s", to);
    r->next = net->rules;
    return net->rules = r;
}

int tp_sim_net_link(struct tp_sim_net *net, const char *from, const char *to, const struct tp_sim_fault *fault)
{
    struct rule *r = add_rule(net, from, to);
    if (!r)
        return -ENOMEM;
    r->fault = *fault;
    r->own = true;
    return 0;
}

static void wake(struct end *ep)
{
    ep->base.host.wake(ep->base.host.ctx);
}

int tp_sim_net_cut(struct tp_sim_net *net, const char *a, const char *b, bool cut)
{
    struct rule *there = add_rule(net, a, b), *back = add_rule(net, b, a);
    if (!there || !back)
        return -ENOMEM;
    there->cut = back->cut = cut;
    for (struct end *e = net->ends; e; e = e->next)
        wake(e);
    return 0;
}

void tp_sim_net_stat(const struct tp_sim_net *net, struct tp_sim_stats *out)
{
    *out = net->stats;
}

static const struct tp_sim_fault *fault_of(const struct tp_sim_net *net, const char *from, const char *to)
{
    const struct rule *r = find_rule(net, from, to);
    return r && r->own ? &r->fault : &net->fault;
}

static bool is_cut(const struct tp_sim_net *net, const char *from, const char *to)
{
    const struct rule *r = find_rule(net, from, to);
    return r && r->cut;
}

/* How long one thing takes, retries included. False: the sender gives up after that time. */
static bool draw_delay(struct tp_sim_net *net, const struct tp_sim_fault *f, int64_t *out)
{
    int64_t pause = f->retry_ns ? f->retry_ns : MS;
    int tries = 0, most = f->retries ? f->retries : RETRIES_DEFAULT;
    *out = f->delay_min;
    if (f->delay_max > f->delay_min)
        *out += (int64_t)(draw(net) % (uint64_t)(f->delay_max - f->delay_min + 1));
    net->stats.items++;
    while (chance(net, f->lose)) {
        net->stats.lost++;
        *out += pause << tries;
        if (++tries > most)
            return false;
    }
    return true;
}

/* ---- a connection ------------------------------------------------------------------------------ */

static int64_t now_of(const struct end *ep)
{
    return ep->base.host.now(ep->base.host.ctx);
}

static void item_free(struct item *i)
{
    if (i)
        free(i->order);
    free(i);
}

static void learn_end(struct pipe *p, int side, int64_t at, int reason)
{
    struct side *s = &p->side[side];
    if (s->over_at <= at)
        return;
    s->over_at = at;
    s->reason = reason;
    if (s->ep)
        wake(s->ep);
}

/* Puts an item on its way, or ends the connection. Items that are there at the same time keep their order. */
static void send_item(struct channel *c, struct item *i)
{
    struct end *ep = (struct end *)c->base.endpoint;
    struct pipe *p = c->pipe;
    struct side *to = &p->side[1 - c->me];
    struct tp_sim_net *net = ep->net;
    const struct tp_sim_fault *f = fault_of(net, p->name[c->me], p->name[1 - c->me]);
    int64_t now = now_of(ep), delay;
    bool arrives = draw_delay(net, f, &delay);
    i->sent = now;
    i->due = to->tail && to->tail->due > now + delay ? to->tail->due : now + delay;
    i->next = NULL;
    if (!arrives) {
        net->stats.given_up++;
        learn_end(p, c->me, now + delay, -ETIMEDOUT);
        learn_end(p, 1 - c->me, now + delay, -ECONNRESET);
        i->due = now + delay + 1; /* puts may land in part */
    } else if (chance(net, f->disconnect)) {
        net->stats.disconnected++;
        int64_t at = now + (int64_t)(draw(net) % (uint64_t)(delay + 1));
        learn_end(p, c->me, at + delay, -ECONNRESET);
        learn_end(p, 1 - c->me, at, -ECONNRESET);
        i->due = i->due > at ? i->due : at + 1;
    }
    if (to->tail)
        to->tail->next = i;
    else
        to->head = i;
    to->tail = i;
    if (to->ep)
        wake(to->ep);
}

static struct item *pop(struct pipe *p, int me)
{
    struct side *s = &p->side[me];
    struct item *i = s->head;
    if (i && !(s->head = i->next))
        s->tail = NULL;
    return i;
}

static void leave_pipe(struct tp_sim_net *net, struct pipe *p, int me)
{
    p->side[me].ep = NULL;
    for (struct item *i; (i = pop(p, me)); item_free(i))
        net->stats.partial += i->kind == PUT && i->landed && i->landed < i->pieces;
    if (--p->sides)
        return;
    for (struct item *i; (i = pop(p, 1 - me));)
        item_free(i);
    free(p);
}

/* The other side learns of this side's end as of anything else. */
static void tell_end(struct channel *c, int reason)
{
    struct end *ep = (struct end *)c->base.endpoint;
    struct pipe *p = c->pipe;
    int64_t delay;
    draw_delay(ep->net, fault_of(ep->net, p->name[c->me], p->name[1 - c->me]), &delay);
    learn_end(p, 1 - c->me, now_of(ep) + delay, reason);
}

/* ---- endpoints --------------------------------------------------------------------------------- */

static int sim_open(const struct tp_endpoint_config *config, struct tp_endpoint **out, struct cfg_error *err)
{
    const struct tp_sim_end *world = config->provider;
    struct end *ep = calloc(1, sizeof *ep);
    if (!ep)
        return cfg_error_set(err, ENOMEM, "no memory for an endpoint");
    ep->base.ops = &tp_sim;
    ep->base.host = config->host;
    ep->net = world->net;
    memcpy(ep->name, world->name, sizeof ep->name);
    ep->frame_max = config->frame_max ? config->frame_max : FRAME_DEFAULT;
    ep->depth = config->depth ? config->depth : DEPTH_DEFAULT;
    ep->connect_ns = config->connect_ns ? config->connect_ns : 5000 * MS;
    ep->silence_ns = config->silence_ns ? config->silence_ns : 10000 * MS;
    struct end **at = &ep->net->ends;
    while (*at)
        at = &(*at)->next;
    *at = ep;
    *out = &ep->base;
    return 0;
}

static struct end *find_listener(const struct tp_sim_net *net, const char *address)
{
    struct end *e = net->ends;
    while (e && !(e->listening && !strcmp(e->address, address)))
        e = e->next;
    return e;
}

static int sim_listen(struct tp_endpoint *base, const char *address, char bound[TP_ADDRESS_TEXT], struct cfg_error *err)
{
    struct end *ep = (struct end *)base;
    if (ep->listening || strlen(address) >= TP_ADDRESS_TEXT)
        return cfg_error_set(err, EINVAL, "%s: not an address to listen at, or the endpoint listens already", address);
    if (find_listener(ep->net, address))
        return cfg_error_set(err, EADDRINUSE, "%s: another endpoint of this network listens there", address);
    snprintf(ep->address, sizeof ep->address, "%s", address);
    ep->listening = true;
    snprintf(bound, TP_ADDRESS_TEXT, "%s", address);
    return 0;
}

static int sim_add_region(struct tp_endpoint *base, void *mem, size_t size, struct tp_region **out, struct tp_key *key,
                          struct cfg_error *err)
{
    struct end *ep = (struct end *)base;
    struct tp_region *r = size ? calloc(1, sizeof *r) : NULL;
    if (!r)
        return cfg_error_set(err, size ? ENOMEM : EINVAL, size ? "no memory for a region" : "an empty region");
    *r = (struct tp_region){.next = ep->regions, .id = ++ep->net->next_region, .base = mem, .size = size};
    ep->regions = r;
    base->regions++;
    base->region_bytes += size;
    *key = (struct tp_key){.size = sizeof r->id};
    memcpy(key->byte, &r->id, sizeof r->id);
    *out = r;
    return 0;
}

static void sim_remove_region(struct tp_endpoint *base, struct tp_region *r)
{
    struct end *ep = (struct end *)base;
    struct tp_region **at = &ep->regions;
    while (*at && *at != r)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = r->next;
    base->regions--;
    base->region_bytes -= r->size;
    free(r);
}

/* ---- channels ---------------------------------------------------------------------------------- */

static struct channel *channel_new(struct end *ep, enum tp_class class, const char *peer)
{
    struct channel *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->base.ops = &tp_sim;
    c->base.endpoint = &ep->base;
    c->base.class = class;
    snprintf(c->base.peer, sizeof c->base.peer, "%s", peer);
    c->puts_tail = &c->puts;
    return c;
}

static void link_channel(struct end *ep, struct channel *c)
{
    struct channel **at = &ep->channels;
    while (*at)
        at = &(*at)->next;
    *at = c;
    ep->base.channels++;
    wake(ep);
}

static int make_pipe(struct end *ep, struct end *to, struct channel *mine, int64_t there, int64_t back)
{
    struct pipe *p = calloc(1, sizeof *p);
    struct channel *theirs = channel_new(to, mine->base.class, ep->name);
    if (!p || !theirs) {
        free(p);
        free(theirs);
        return -ENOMEM;
    }
    p->sides = 2;
    p->depth = ep->depth < to->depth ? ep->depth : to->depth;
    memcpy(p->name[0], ep->name, sizeof p->name[0]);
    memcpy(p->name[1], to->name, sizeof p->name[1]);
    p->side[0] = (struct side){.ep = ep, .over_at = TP_NEVER};
    p->side[1] = (struct side){.ep = to, .over_at = TP_NEVER};
    mine->pipe = theirs->pipe = p;
    theirs->me = 1;
    theirs->there_at = there;
    mine->there_at = there + back;
    mine->base.frame_max = theirs->base.frame_max = ep->frame_max < to->frame_max ? ep->frame_max : to->frame_max;
    mine->base.credits_max = theirs->base.credits_max = p->depth;
    link_channel(to, theirs);
    return 0;
}

static int sim_connect(struct tp_endpoint *base, const char *address, enum tp_class class, void *user,
                       struct tp_channel **out, struct cfg_error *err)
{
    struct end *ep = (struct end *)base, *to = find_listener(ep->net, address);
    struct channel *c = channel_new(ep, class, address);
    if (!c)
        return cfg_error_set(err, ENOMEM, "no memory for a channel");
    c->base.user = user;
    c->base.dialled = true;
    const char *name = to ? to->name : address;
    const struct tp_sim_fault *f = fault_of(ep->net, ep->name, name);
    int64_t now = now_of(ep), there, back;
    bool answered = draw_delay(ep->net, f, &there) && !is_cut(ep->net, ep->name, name) && !chance(ep->net, f->refuse);
    answered &= draw_delay(ep->net, fault_of(ep->net, name, ep->name), &back);
    ep->net->stats.refused += !answered;
    c->there_at = now + (answered ? there + back : ep->connect_ns);
    c->failed = answered ? -ECONNREFUSED : -ETIMEDOUT;
    if (answered && to && make_pipe(ep, to, c, now + there, back)) {
        free(c);
        return cfg_error_set(err, ENOMEM, "no memory for a channel");
    }
    link_channel(ep, c);
    *out = &c->base;
    return 0;
}

static bool is_over(const struct channel *c)
{
    return c->pipe->side[c->me].over_at <= now_of((const struct end *)c->base.endpoint);
}

static int check_usable(struct channel *c)
{
    if (!c->pipe || !c->announced || c->finishing || c->aborted || c->fin_seen || is_over(c))
        return -ENOTCONN;
    return 0;
}

static int take_credit(struct channel *c)
{
    c->starved = c->under_way >= c->pipe->depth;
    return c->starved ? -EAGAIN : 0;
}

static void count_under_way(struct channel *c)
{
    if (!c->under_way++)
        c->heard = now_of((const struct end *)c->base.endpoint);
}

static int sim_send(struct tp_channel *base, const struct iovec *part, int n)
{
    struct channel *c = (struct channel *)base;
    size_t size = tp_iov_size(part, n);
    int rc = check_usable(c);
    if (rc == 0 && (size == 0 || size > base->frame_max))
        rc = -EMSGSIZE;
    if (rc == 0)
        rc = take_credit(c);
    struct item *i = rc == 0 ? calloc(1, sizeof *i + size) : NULL;
    if (!i)
        return rc ? rc : -ENOMEM;
    i->kind = FRAME;
    for (int k = 0; k < n; k++) {
        memcpy(i->bytes + i->size, part[k].iov_base, part[k].iov_len);
        i->size += part[k].iov_len;
    }
    count_under_way(c);
    send_item(c, i);
    base->frames_out++;
    base->bytes_out += size;
    return 0;
}

/* Its bytes, cut into pieces that land in an order of their own. */
static struct item *new_put(struct channel *c, const struct tp_put *put)
{
    struct tp_sim_net *net = ((struct end *)c->base.endpoint)->net;
    const struct tp_sim_fault *f = fault_of(net, c->pipe->name[c->me], c->pipe->name[1 - c->me]);
    struct item *i = calloc(1, sizeof *i + put->size);
    if (!i)
        return NULL;
    i->kind = PUT;
    i->put = *put;
    i->size = put->size;
    i->piece = f->piece ? f->piece : PIECE_DEFAULT;
    i->pieces = (put->size + i->piece - 1) / i->piece;
    i->order = malloc(i->pieces * sizeof *i->order);
    if (!i->order) {
        free(i);
        return NULL;
    }
    for (size_t k = 0; k < i->pieces; k++) {
        size_t other = draw(net) % (k + 1);
        i->order[k] = i->order[other];
        i->order[other] = (uint32_t)k;
    }
    memcpy(i->bytes, put->from, put->size);
    return i;
}

static int sim_put(struct tp_channel *base, const struct tp_put *put)
{
    struct channel *c = (struct channel *)base;
    const struct tp_region *r = put->region;
    const uint8_t *from = put->from;
    int rc = check_usable(c);
    if (rc)
        return rc;
    if (put->size == 0 || from < r->base || put->size > r->size || from > r->base + (r->size - put->size))
        return -EINVAL;
    rc = take_credit(c);
    struct waiting_put *w = rc == 0 ? calloc(1, sizeof *w) : NULL;
    struct item *i = w ? new_put(c, put) : NULL;
    if (!i) {
        free(w);
        return rc ? rc : -ENOMEM;
    }
    w->cookie = put->cookie;
    *c->puts_tail = w;
    c->puts_tail = &w->next;
    count_under_way(c);
    send_item(c, i);
    base->puts_out++;
    base->put_bytes_out += put->size;
    return 0;
}

static void sim_finish(struct tp_channel *base)
{
    ((struct channel *)base)->finishing = true;
    wake((struct end *)base->endpoint);
}

static int sim_trust(struct tp_channel *base)
{
    int rc = check_usable((struct channel *)base);
    base->trusted |= !rc;
    return rc;
}

static void sim_abort(struct tp_channel *base)
{
    struct channel *c = (struct channel *)base;
    if (c->pipe && !c->aborted)
        tell_end(c, -ECONNRESET);
    c->aborted = true;
    wake((struct end *)base->endpoint);
}

/* ---- what arrives ------------------------------------------------------------------------------ */

/* Where the other side's put lands; NULL: nowhere. */
static struct tp_region *find_region(struct end *ep, const struct channel *c, const struct tp_put *p)
{
    uint64_t id = 0;
    if (p->key.size == sizeof id)
        memcpy(&id, p->key.byte, sizeof id);
    struct tp_region *r = ep->regions;
    while (r && r->id != id)
        r = r->next;
    return r && c->base.trusted && p->size <= r->size && p->offset <= r->size - p->size ? r : NULL;
}

static int64_t piece_due(const struct item *i, size_t k)
{
    return i->sent + (int64_t)((double)(i->due - i->sent) * (double)(k + 1) / (double)i->pieces);
}

static struct item *next_put(struct item *i)
{
    while (i && i->kind != PUT)
        i = i->next;
    return i;
}

/* The pieces that are there by `now`. True: all are, and the next put's may land. */
static bool land(struct end *ep, const struct channel *c, struct item *i, int64_t now)
{
    struct tp_region *r = find_region(ep, c, &i->put);
    while (i->landed < i->pieces && (i->due <= now || piece_due(i, i->landed) <= now)) {
        size_t at = i->order[i->landed++] * i->piece, n = i->size - at < i->piece ? i->size - at : i->piece;
        if (r)
            memcpy(r->base + i->put.offset + at, i->bytes + at, n);
    }
    return i->landed == i->pieces;
}

static void acknowledge(struct channel *c, struct item *i, bool of_put, int status)
{
    free(i->order);
    i->order = NULL;
    i->kind = ACK;
    i->of_put = of_put;
    i->status = status;
    send_item(c, i);
}

static void done_put(struct end *ep, struct channel *c, int status)
{
    struct waiting_put *w = c->puts;
    uint64_t cookie = w->cookie;
    if (!(c->puts = w->next))
        c->puts_tail = &c->puts;
    free(w);
    ep->base.host.sink->put_done(ep->base.host.ctx, &c->base, cookie, status);
}

static void take_put(struct end *ep, struct channel *c, struct item *i)
{
    const struct tp_put p = i->put;
    bool there = find_region(ep, c, &p) != NULL;
    land(ep, c, i, i->due);
    acknowledge(c, i, true, there ? 0 : -EACCES);
    if (!there) { /* this side ends it; the other one has to have the acknowledgement first */
        struct pipe *pipe = c->pipe;
        learn_end(pipe, c->me, now_of(ep), -EACCES);
        learn_end(pipe, 1 - c->me, i->due + 1, -EACCES);
        return;
    }
    c->base.put_bytes_in += p.size;
    if (p.with_immediate)
        ep->base.host.sink->immediate(ep->base.host.ctx, &c->base, p.immediate);
}

static void take_ack(struct end *ep, struct channel *c, const struct item *i)
{
    const struct tp_host *h = &ep->base.host;
    bool room = c->starved;
    c->under_way--;
    c->starved = false;
    if (i->of_put && c->puts)
        done_put(ep, c, i->status);
    if (room && !c->aborted && !check_usable(c))
        h->sink->room(h->ctx, &c->base);
}

static void take_item(struct end *ep, struct channel *c, struct item *i)
{
    const struct tp_host *h = &ep->base.host;
    c->heard = now_of(ep);
    switch (i->kind) {
    case FRAME:
        c->base.frames_in++;
        c->base.bytes_in += i->size;
        if (!c->finishing)
            h->sink->frame(h->ctx, &c->base, i->bytes, i->size);
        if (c->aborted)
            break;
        acknowledge(c, i, false, 0);
        return;
    case PUT:
        take_put(ep, c, i);
        return;
    case ACK:
        take_ack(ep, c, i);
        break;
    case FIN:
        c->fin_seen = true;
        break;
    }
    item_free(i);
}

/* ---- ends -------------------------------------------------------------------------------------- */

static void end(struct end *ep, struct channel *c, int reason, const char *why)
{
    const struct tp_host *h = &ep->base.host;
    while (c->puts)
        done_put(ep, c, reason ? reason : -ECONNRESET);
    h->sink->closed(h->ctx, &c->base, reason, why);
    if (c->pipe)
        leave_pipe(ep->net, c->pipe, c->me);
    struct channel **at = &ep->channels;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    ep->base.channels--;
    free(c);
}

static const char *reason_text(int reason)
{
    return reason == -EACCES      ? "a put named a window or a range that is not there"
           : reason == -ETIMEDOUT ? "the other side did not answer"
                                  : "";
}

enum turn { NOTHING, DID, GONE };

static enum turn finish_step(struct end *ep, struct channel *c)
{
    if ((c->finishing || c->fin_seen) && !c->fin_sent && (c->finishing || !c->puts)) {
        struct item *i = calloc(1, sizeof *i);
        if (!i)
            return NOTHING; /* tried again at the next poll */
        i->kind = FIN;
        c->fin_sent = true;
        send_item(c, i);
    }
    if (!c->fin_seen || !c->fin_sent || c->puts)
        return NOTHING;
    end(ep, c, 0, "");
    return GONE;
}

static enum turn announce(struct end *ep, struct channel *c)
{
    const struct tp_host *h = &ep->base.host;
    if (c->there_at > now_of(ep))
        return NOTHING;
    c->announced = true;
    if (!c->pipe) {
        end(ep, c, c->failed, c->failed == -ECONNREFUSED ? "nobody listens there" : reason_text(c->failed));
        return GONE;
    }
    if (c->base.dialled)
        h->sink->opened(h->ctx, &c->base);
    else
        h->sink->accepted(h->ctx, &c->base);
    return DID;
}

static bool silent(const struct end *ep, const struct channel *c)
{
    return c->under_way && now_of(ep) - c->heard >= ep->silence_ns;
}

/* One thing that one channel has to do now. */
static enum turn turn(struct end *ep, struct channel *c)
{
    if (c->aborted) {
        end(ep, c, -ECANCELED, "");
        return GONE;
    }
    if (!c->announced)
        return announce(ep, c);
    int64_t now = now_of(ep);
    struct side *s = &c->pipe->side[c->me];
    bool cut = is_cut(ep->net, c->pipe->name[1 - c->me], c->pipe->name[c->me]);
    struct item *put = cut ? NULL : next_put(s->head);
    for (; put && land(ep, c, put, now < s->over_at ? now : s->over_at); put = next_put(put->next))
        ;
    if (!cut && s->head && s->head->due <= now && s->head->due <= s->over_at) {
        take_item(ep, c, pop(c->pipe, c->me));
        return DID;
    }
    if (s->over_at <= now && (!cut || s->reason == -ETIMEDOUT)) {
        end(ep, c, s->reason, reason_text(s->reason));
        return GONE;
    }
    if (silent(ep, c)) {
        tell_end(c, -ECONNRESET);
        end(ep, c, -ETIMEDOUT, reason_text(-ETIMEDOUT));
        return GONE;
    }
    return finish_step(ep, c);
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t next_of(const struct end *ep, const struct channel *c)
{
    if (c->aborted)
        return 0;
    if (!c->announced)
        return c->there_at;
    const struct side *s = &c->pipe->side[c->me];
    int64_t next = c->under_way ? c->heard + ep->silence_ns : TP_NEVER;
    if (is_cut(ep->net, c->pipe->name[1 - c->me], c->pipe->name[c->me]))
        return s->reason == -ETIMEDOUT ? earlier(next, s->over_at) : next;
    next = earlier(next, s->over_at);
    if (s->head)
        next = earlier(next, s->head->due);
    for (struct item *i = next_put(s->head); i; i = next_put(i->next))
        if (i->landed < i->pieces)
            return earlier(next, piece_due(i, i->landed));
    return next;
}

static int64_t sim_poll(struct tp_endpoint *base)
{
    struct end *ep = (struct end *)base;
    int64_t next = TP_NEVER;
    /* Only the channel at hand can end during a turn; callbacks may add others behind. */
    for (struct channel *c = ep->channels, *after; c; c = after) {
        enum turn did;
        do {
            after = c->next;
            did = turn(ep, c);
        } while (did == DID);
    }
    for (struct channel *c = ep->channels; c; c = c->next)
        next = earlier(next, next_of(ep, c));
    return next;
}

static void sim_close(struct tp_endpoint *base)
{
    struct end *ep = (struct end *)base;
    struct end **at = &ep->net->ends;
    while (*at != ep)
        at = &(*at)->next;
    *at = ep->next;
    for (struct channel *c; (c = ep->channels);) {
        ep->channels = c->next;
        if (c->pipe) {
            tell_end(c, -ECONNRESET);
            leave_pipe(ep->net, c->pipe, c->me);
        }
        for (struct waiting_put *w; (w = c->puts);) {
            c->puts = w->next;
            free(w);
        }
        free(c);
    }
    while (ep->regions)
        sim_remove_region(base, ep->regions);
    free(ep);
}

const struct tp_ops tp_sim = {
    .name = "sim",
    .open = sim_open,
    .close = sim_close,
    .listen = sim_listen,
    .add_region = sim_add_region,
    .remove_region = sim_remove_region,
    .connect = sim_connect,
    .send = sim_send,
    .put = sim_put,
    .trust = sim_trust,
    .finish = sim_finish,
    .abort = sim_abort,
    .poll = sim_poll,
};
