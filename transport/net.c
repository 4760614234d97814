/* Peers of a net: whom to dial when, which incarnation is up, and the public functions of net.h. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/bytes.h"
#include "transport/net_impl.h"

#define MS INT64_C(1000000)

/* Lines about refused connections, and in how long. */
enum { RATION = 8 };
#define RATION_NS (60000 * MS)

void net_log(struct tp_net *net, enum tp_log_level level, const char *fmt, ...)
{
    char text[2 * TP_REASON_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (net->config.sink->log)
        net->config.sink->log(net->config.endpoint.host.ctx, level, text);
}

/* ---- the host that the provider sees ------------------------------------------------------------- */

static int64_t host_now(void *ctx)
{
    return net_now(ctx);
}

static void host_random(void *ctx, void *out, size_t size)
{
    const struct tp_host *h = &((struct tp_net *)ctx)->config.endpoint.host;
    h->random(h->ctx, out, size);
}

static void host_wake(void *ctx)
{
    net_wake(ctx);
}

/* ---- making -------------------------------------------------------------------------------------- */

static int64_t or_default(int64_t v, int64_t fallback)
{
    return v > 0 ? v : fallback;
}

int tp_net_new(const struct tp_net_config *config, struct tp_net **out, struct cfg_error *err)
{
    struct tp_net *net = calloc(1, sizeof *net);
    struct net_peer *peers = calloc(TP_PEERS_MAX, sizeof *peers);
    if (!net || !peers) {
        free(net);
        free(peers);
        return cfg_error_set(err, ENOMEM, "no memory for a net");
    }
    net->peer = peers;
    net->config = *config;
    struct tp_net_config *c = &net->config;
    c->retry_min_ns = or_default(c->retry_min_ns, 50 * MS);
    c->retry_max_ns = or_default(c->retry_max_ns, 5000 * MS);
    c->handshake_ns = or_default(c->handshake_ns, 5000 * MS);
    c->ping_ns = or_default(c->ping_ns, 1000 * MS);
    c->silence_ns = or_default(c->silence_ns, 5000 * MS);
    c->breaker = c->breaker > 0 ? c->breaker : 8;
    struct tp_endpoint_config e = c->endpoint;
    e.connect_ns = or_default(e.connect_ns, c->handshake_ns);
    e.silence_ns = or_default(e.silence_ns, c->silence_ns);
    e.host = (struct tp_host){.sink = &net_conn_sink,
                              .ctx = net,
                              .now = host_now,
                              .random = host_random,
                              .wake = host_wake,
                              .base = c->endpoint.host.base,
                              .looks = c->endpoint.host.looks};
    int r = c->ops->open(&e, &net->ep, err);
    if (r) {
        free(peers);
        free(net);
        return r;
    }
    *out = net;
    return 0;
}

void tp_net_free(struct tp_net *net)
{
    if (!net)
        return;
    net->config.ops->close(net->ep);
    while (net->conns)
        net_conn_free(net->conns);
    free(net->peer);
    free(net);
}

int tp_net_listen(struct tp_net *net, const char *address, char bound[TP_ADDRESS_TEXT], struct cfg_error *err)
{
    return net->config.ops->listen(net->ep, address, bound, err);
}

int tp_net_add_window(struct tp_net *net, uint32_t id, void *base, size_t size, struct cfg_error *err)
{
    if (net->n_windows == TP_WINDOWS_MAX || net->peers)
        return cfg_error_set(err, EINVAL, "windows come before the first peer, and there are %d at most",
                             TP_WINDOWS_MAX);
    struct net_window *w = &net->window[net->n_windows];
    *w = (struct net_window){.id = id, .base = base, .size = size};
    int r = net->config.ops->add_region(net->ep, base, size, &w->region, &w->key, err);
    if (!r)
        net->n_windows++;
    return r;
}

/* A peer that was removed, of which something has not ended. */
static bool is_in_use(const struct tp_net *net, int peer)
{
    bool used = net->peer[peer].info.up || net->peer[peer].dying;
    for (const struct net_conn *c = net->conns; c; c = c->next)
        used |= c->peer == peer;
    return used;
}

int tp_net_add_peer(struct tp_net *net, const char *name, uint16_t number, const char *address, struct cfg_error *err)
{
    for (int i = 0; i < net->peers; i++)
        if (net->peer[i].there && (net->peer[i].info.number == number || !strcmp(net->peer[i].info.name, name)))
            return cfg_error_set(err, EEXIST, "node %s (number %u) is in the list already", name, number);
    int at = 0;
    while (at < net->peers && (net->peer[at].there || is_in_use(net, at)))
        at++;
    if (at == TP_PEERS_MAX)
        return cfg_error_set(err, ENOSPC, "more than %d nodes", TP_PEERS_MAX);
    struct net_peer *p = &net->peer[at];
    *p = (struct net_peer){.there = true, .info.number = number};
    tp_copy_text(p->info.name, sizeof p->info.name, name);
    tp_copy_text(p->info.address, sizeof p->info.address, address);
    net_wake(net);
    net->peers += at == net->peers;
    return at;
}

void tp_net_remove_peer(struct tp_net *net, int peer)
{
    struct net_peer *p = &net->peer[peer];
    p->there = false;
    for (int i = 0; i < TP_CLASSES; i++)
        if (p->conn[i] && p->conn[i]->step != NET_ENDING)
            net_conn_abort(p->conn[i], "the node was taken out of the configuration");
    net_wake(net);
}

int tp_net_peers(const struct tp_net *net)
{
    return net->peers;
}

const struct tp_peer_info *tp_net_peer(const struct tp_net *net, int peer)
{
    return peer >= 0 && peer < net->peers && net->peer[peer].there ? &net->peer[peer].info : NULL;
}

int tp_net_channels(const struct tp_net *net)
{
    return net->ep->channels;
}

void tp_net_held(const struct tp_net *net, struct tp_held *out)
{
    const struct tp_endpoint *ep = net->ep;
    *out = (struct tp_held){ep->channels, ep->queue_pairs, ep->regions, ep->region_bytes};
}

static void add_traffic(struct tp_traffic *t, const struct tp_channel *c)
{
    t->frames_out += c->frames_out;
    t->frames_in += c->frames_in;
    t->bytes_out += c->bytes_out;
    t->bytes_in += c->bytes_in;
    t->puts_out += c->puts_out;
    t->put_bytes_out += c->put_bytes_out;
    t->put_bytes_in += c->put_bytes_in;
}

void tp_net_traffic(const struct tp_net *net, enum tp_class class, struct tp_traffic *out)
{
    *out = net->ended[class];
    for (const struct net_conn *c = net->conns; c; c = c->next)
        if (c->channel && !c->tool && c->class == class)
            add_traffic(out, c->channel);
}

/* ---- who may be talked to ------------------------------------------------------------------------- */

static struct net_peer *find_peer(struct tp_net *net, const char *name, uint16_t number, int *index)
{
    for (int i = 0; i < net->peers; i++)
        if (net->peer[i].there && net->peer[i].info.number == number && !strcmp(net->peer[i].info.name, name)) {
            *index = i;
            return &net->peer[i];
        }
    return NULL;
}

static bool acceptable_node(struct net_conn *c)
{
    struct tp_net *net = c->net;
    const struct tp_hello *self = &net->config.self, *o = &c->other;
    bool accepts = !c->channel->dialled;
    if (o->model != self->model) {
        net_conn_refuse(c, TP_REFUSED_MODEL,
                        "node %s serves model revision %016llx, node %s %016llx; all nodes need the same files",
                        o->name, (unsigned long long)o->model, self->name, (unsigned long long)self->model);
        return false;
    }
    if (o->kv_format != self->kv_format || o->block_tokens != self->block_tokens ||
        strcmp(o->numerics, self->numerics) != 0) {
        net_conn_refuse(c, TP_REFUSED_FORMAT,
                        "node %s computes with %s (KV format %u, blocks of %u), node %s with %s (format %u, blocks of "
                        "%u); set compute.cpu and kv.block_tokens to the same on all nodes",
                        o->name, o->numerics, o->kv_format, o->block_tokens, self->name, self->numerics,
                        self->kv_format, self->block_tokens);
        return false;
    }
    if (o->replay[0] && self->replay[0] && strcmp(o->replay, self->replay) != 0) {
        net_conn_refuse(
            c, TP_REFUSED_FORMAT,
            "node %s goes on behind a known prefix with replay.%s, node %s with replay.%s, and other tokens "
            "come of it; set all of replay to the same on all nodes",
            o->name, o->replay, self->name, self->replay);
        return false;
    }
    if (!accepts) {
        /* Here, as what dials learns it too late from the other's WELCOME, and the other would never learn why. */
        if (o->epoch < net->peer[c->peer].seen)
            net_conn_refuse(c, TP_REFUSED_STALE, "node %s has a newer incarnation (epoch %llu, this one %llu)", o->name,
                            (unsigned long long)net->peer[c->peer].seen, (unsigned long long)o->epoch);
        return o->epoch >= net->peer[c->peer].seen;
    }
    if (!find_peer(net, o->name, o->number, &c->peer)) {
        c->peer = -1;
        net_conn_refuse(c, TP_REFUSED_STRANGER,
                        "node %s (number %u) is not in the configuration of node %s; use one file for all nodes",
                        o->name, o->number, self->name);
        return false;
    }
    if (o->number >= self->number) {
        c->peer = -1;
        net_conn_refuse(c, TP_REFUSED_ROLE, "node %s comes before node %s, so that one dials", self->name, o->name);
        return false;
    }
    return true;
}

bool net_acceptable(struct net_conn *c)
{
    const struct tp_hello *self = &c->net->config.self, *o = &c->other;
    if (o->class != c->class) {
        net_conn_abort(c, "it means another class");
        return false;
    }
    if (!c->channel->dialled && (strcmp(o->wanted, self->name) != 0 || o->wanted_number != self->number)) {
        net_conn_refuse(c, TP_REFUSED_ROLE, "%s wants node %s (number %u) here, and this is %s (number %u)", o->name,
                        o->wanted, o->wanted_number, self->name, self->number);
        return false;
    }
    /* A tool talks to anybody who knows the secret, and anybody to a tool. */
    if (o->kind == TP_KIND_TOOL || self->kind == TP_KIND_TOOL)
        return true;
    bool ok = acceptable_node(c);
    /* Until it has proved itself it counts as unknown. */
    if (!c->channel->dialled)
        c->peer = -1;
    return ok;
}

/* ---- incarnations --------------------------------------------------------------------------------- */

/* The channels of another incarnation that have not ended. */
static bool others_left(const struct net_peer *p, uint64_t epoch, bool abort)
{
    bool left = false;
    for (int i = 0; i < TP_CLASSES; i++)
        if (p->conn[i] && p->conn[i]->epoch != epoch) {
            left = true;
            if (abort && p->conn[i]->step != NET_ENDING)
                net_conn_abort(p->conn[i], "a newer incarnation of the node has come");
        }
    return left;
}

/* A newer incarnation wants in while an older one is up: does that one still live? */
static void decide_newer(struct net_conn *c, struct net_peer *p)
{
    struct tp_net *net = c->net;
    struct net_conn *old = p->conn[TP_CLASS_CONTROL];
    int64_t now = net_now(net);
    c->step = NET_HELD;
    if (!old || old->step != NET_UP || old->epoch == c->epoch) {
        others_left(p, c->epoch, true);
        return;
    }
    if (!p->probe_until) {
        p->probe_from = now;
        p->probe_until = now + net->config.ping_ns;
        net_conn_ping(old);
        net_wake(net);
    } else if (old->heard > p->probe_from) {
        p->probe_until = 0;
        net_conn_refuse(c, TP_REFUSED_DUPLICATE,
                        "another process lives as node %s (epoch %llu); stop it, or give this one a node of its own",
                        p->info.name, (unsigned long long)old->epoch);
    } else if (now >= p->probe_until) {
        p->probe_until = 0;
        others_left(p, c->epoch, true);
    }
}

static void decide_tool(struct net_conn *c)
{
    c->tool = ++c->net->tools;
    net_conn_welcome(c);
}

void net_decide(struct net_conn *c)
{
    struct tp_net *net = c->net;
    if (c->other.kind == TP_KIND_TOOL) {
        decide_tool(c);
        return;
    }
    int index;
    struct net_peer *p = find_peer(net, c->other.name, c->other.number, &index);
    if (!p) {
        net_conn_refuse(c, TP_REFUSED_STRANGER, "node %s has been taken out of the configuration", c->other.name);
        return;
    }
    struct net_conn *same = p->conn[c->class];
    c->peer = index;
    if (c->epoch < p->seen) {
        net_conn_refuse(c, TP_REFUSED_STALE, "node %s has a newer incarnation (epoch %llu, this one %llu)",
                        p->info.name, (unsigned long long)p->seen, (unsigned long long)c->epoch);
    } else if (others_left(p, c->epoch, false)) {
        decide_newer(c, p);
    } else if (same && c->generation <= same->generation) {
        net_conn_refuse(c, TP_REFUSED_STALE, "a newer %s channel of node %s is there (generation %u, this one %u)",
                        tp_class_name(c->class), p->info.name, same->generation, c->generation);
    } else if (same) {
        c->step = NET_HELD;
        if (same->step != NET_ENDING)
            net_conn_abort(same, "a newer channel has come");
    } else if (c->class == TP_CLASS_CONTROL && p->dying) {
        c->step = NET_HELD;
    } else if (c->class != TP_CLASS_CONTROL && (!p->info.up || p->dying)) {
        net_conn_refuse(c, TP_REFUSED_BUSY, "its control channel is not up");
    } else {
        p->conn[c->class] = c;
        net_conn_welcome(c);
    }
}

void net_conn_is_up(struct net_conn *c)
{
    struct tp_net *net = c->net;
    void *ctx = net->config.endpoint.host.ctx;
    if (net->on_tool_up) {
        net->on_tool_up(ctx, c);
        return;
    }
    if (c->tool)
        return;
    struct net_peer *p = &net->peer[c->peer];
    if (c->epoch < p->seen) {
        net_conn_abort(c, "an older incarnation answers");
        return;
    }
    if (c->class != TP_CLASS_CONTROL && (!p->info.up || p->dying || c->epoch != p->info.epoch)) {
        net_conn_abort(c, "its control channel is of another incarnation");
        c->retry_soon = true;
        return;
    }
    p->info.generation[c->class] = c->generation;
    p->info.class_up[c->class] = true;
    if (c->class != TP_CLASS_CONTROL) {
        net->config.sink->class_up(ctx, c->peer, c->class, c->generation);
        return;
    }
    p->seen = c->epoch;
    p->refused[0] = 0;
    p->probe_until = 0;
    p->info.up = true;
    p->info.epoch = c->epoch;
    p->info.roles = c->other.roles;
    p->info.last[0] = 0;
    memcpy(p->info.windows, c->windows, sizeof p->info.windows);
    p->info.n_windows = c->n_windows;
    if (p->episode)
        net_log(net, TP_LOG_INFO, "node %s is connected (epoch %llu)%s", p->info.name, (unsigned long long)c->epoch,
                p->info.failures > 1 ? " after several tries" : "");
    else
        net_log(net, TP_LOG_INFO, "node %s is connected (epoch %llu)", p->info.name, (unsigned long long)c->epoch);
    p->episode = false;
    net->config.sink->up(ctx, c->peer, c->epoch);
    net_wake(net);
}

/* ---- ends ----------------------------------------------------------------------------------------- */

/* An attempt failed, or a channel ended that had not been up for long. */
static void count_failure(struct net_peer *p, struct net_conn *c)
{
    struct tp_net *net = c->net;
    const struct tp_net_config *g = &net->config;
    int64_t delay = g->retry_min_ns;
    p->info.failures++;
    for (int i = 1; i < p->info.failures && delay < g->retry_max_ns; i++)
        delay *= 2;
    p->info.breaker = p->info.failures >= g->breaker || c->hopeless;
    if (delay > g->retry_max_ns || p->info.breaker)
        delay = g->retry_max_ns;
    /* Spread by a quarter, so that nodes which lost the same peer do not come back at the same moment. */
    uint32_t spread;
    g->endpoint.host.random(g->endpoint.host.ctx, &spread, sizeof spread);
    delay += delay / 4 * (int64_t)(spread % 1024) / 1024;
    p->next_try[c->class] = net_now(net) + delay;
}

/* refused: time alone does not mend it; in an episode that began with another reason it is worth a line of its own. */
static void log_failure(struct tp_net *net, struct net_peer *p, bool was_up, bool refused, const char *why)
{
    tp_copy_text(p->info.last, sizeof p->info.last, why);
    if (p->episode && !(refused && strcmp(p->refused, why) != 0))
        return;
    if (refused)
        tp_copy_text(p->refused, sizeof p->refused, why);
    p->episode = true;
    net_log(net, TP_LOG_WARNING, "node %s (%s) %s: %s", p->info.name, p->info.address,
            was_up ? "is lost" : "cannot be reached", why);
}

/* Whoever connects chooses the reasons: so many lines in so long, and the first one behind says how many there were. */
static bool is_in_ration(struct tp_net *net, int64_t now)
{
    if (!net->refusals_since || now - net->refusals_since >= RATION_NS) {
        net->refusals_since = now;
        net->refusals_told = 0;
    }
    bool is = net->refusals_told < RATION;
    net->refusals_told += is;
    net->refusals_untold += !is;
    return is;
}

/* What came from outside and never was up. */
static void log_refused(struct net_conn *c, const char *why)
{
    struct tp_net *net = c->net;
    int index;
    struct net_peer *p = find_peer(net, c->other.name, c->other.number, &index);
    char *last = p ? p->refused : net->stranger;
    int64_t now = net_now(net);
    /* The other side of a name that is dialled logs its own episodes. */
    if (!c->why[0] || (!strcmp(last, c->why) && (p || now - net->stranger_at < 3600000 * MS)))
        return;
    if (!is_in_ration(net, now))
        return;
    tp_copy_text(last, TP_REASON_TEXT, c->why);
    net->stranger_at = now;
    net_log(net, TP_LOG_WARNING, "a connection from %s was refused: %s", c->channel->peer, why);
    if (net->refusals_untold)
        net_log(net, TP_LOG_WARNING, "%llu more connections were refused since the lines before, for other reasons",
                (unsigned long long)net->refusals_untold);
    net->refusals_untold = 0;
}

/* The last channel of an incarnation that is given up has ended. */
static void finish_dying(struct tp_net *net, int index)
{
    struct net_peer *p = &net->peer[index];
    for (int i = 0; i < TP_CLASSES; i++)
        if (p->conn[i])
            return;
    int reason = p->dying;
    p->dying = 0;
    p->info.up = false;
    net->config.sink->down(net->config.endpoint.host.ctx, index, p->info.epoch, reason, p->dying_why);
}

static void peer_conn_ended(struct net_conn *c, int reason, const char *why)
{
    struct tp_net *net = c->net;
    struct net_peer *p = &net->peer[c->peer];
    bool was_up = c->up_at > 0 && p->info.class_up[c->class];
    p->conn[c->class] = NULL;
    p->info.class_up[c->class] = false;
    bool short_life = !was_up || net_now(net) - c->up_at < net->config.retry_max_ns;
    if (!short_life)
        p->info.failures = 0;
    if (c->channel->dialled && c->retry_soon)
        p->next_try[c->class] = net_now(net) + net->config.retry_min_ns;
    else if (c->channel->dialled)
        count_failure(p, c);
    if (c->class == TP_CLASS_CONTROL || !was_up)
        log_failure(net, p, was_up, c->hopeless, why);
    if (was_up && c->class != TP_CLASS_CONTROL)
        net->config.sink->class_down(net->config.endpoint.host.ctx, c->peer, c->class, c->generation, reason);
    if (was_up && c->class == TP_CLASS_CONTROL) {
        p->dying = reason ? reason : -ECONNRESET;
        tp_copy_text(p->dying_why, sizeof p->dying_why, why);
        for (int i = 0; i < TP_CLASSES; i++)
            if (p->conn[i] && p->conn[i]->step != NET_ENDING)
                net_conn_abort(p->conn[i], "the node's control channel has ended");
    }
    if (p->dying)
        finish_dying(net, c->peer);
}

void net_conn_ended(struct net_conn *c, int reason, const char *why)
{
    struct tp_net *net = c->net;
    if (!why[0])
        why = reason == 0 ? "the other side has finished" : strerror(-reason);
    /* One that was held for a probe: the next newcomer asks again. */
    if (c->peer >= 0 && !c->channel->dialled && net->peer[c->peer].conn[c->class] != c)
        net->peer[c->peer].probe_until = 0;
    if (net->on_tool_end)
        net->on_tool_end(net->config.endpoint.host.ctx, reason, why);
    else if (c->peer >= 0 && net->peer[c->peer].conn[c->class] == c)
        peer_conn_ended(c, reason, why);
    else if (!c->tool)
        log_refused(c, why);
    if (!c->tool)
        add_traffic(&net->ended[c->class], c->channel);
    c->channel = NULL; /* it is freed next; what it carried is counted once */
}

/* ---- what is due ----------------------------------------------------------------------------------- */

static void dial(struct tp_net *net, int index, enum tp_class class)
{
    struct net_peer *p = &net->peer[index];
    struct cfg_error err;
    struct net_conn *c;
    int r = net_conn_dial(net, index, p->info.address, class, ++p->generation[class], p->info.name, p->info.number, &c,
                          &err);
    if (r) {
        p->next_try[class] = net_now(net) + net->config.retry_max_ns;
        log_failure(net, p, false, false, err.msg);
        return;
    }
    p->conn[class] = c;
}

static int64_t dial_peer(struct tp_net *net, int index, int64_t now)
{
    struct net_peer *p = &net->peer[index];
    int64_t next = TP_NEVER;
    if (!p->there || p->info.number <= net->config.self.number)
        return next;
    for (int i = 0; i < TP_CLASSES; i++) {
        bool may = !p->conn[i] && !p->dying && (i == TP_CLASS_CONTROL ? !p->info.up : p->info.up);
        for (int k = 0; i == TP_CLASS_CONTROL && k < TP_CLASSES; k++)
            may &= !p->conn[k];
        if (may && p->next_try[i] <= now)
            dial(net, index, (enum tp_class)i);
        else if (may && p->next_try[i] < next)
            next = p->next_try[i];
    }
    return next;
}

/* Deadlines of a channel. Returns its next one. */
static int64_t watch_conn(struct net_conn *c, int64_t now)
{
    const struct tp_net_config *g = &c->net->config;
    if (c->step == NET_ENDING && c->leaving && now >= c->deadline) {
        c->leaving = false;
        c->channel->ops->abort(c->channel);
    }
    if (c->step == NET_ENDING)
        return c->leaving ? c->deadline : TP_NEVER;
    if (c->step == NET_HELD)
        net_decide(c);
    if (c->step != NET_UP) {
        if (now >= c->deadline && c->step != NET_ENDING)
            net_conn_abort(c, "the handshake was not finished in time");
        if (c->step == NET_HELD && c->peer >= 0 && c->net->peer[c->peer].probe_until)
            return c->net->peer[c->peer].probe_until;
        return c->step == NET_ENDING ? TP_NEVER : c->deadline;
    }
    if (c->pinged && now - c->pinged >= g->silence_ns) {
        net_conn_abort(c, "it does not answer");
        return TP_NEVER;
    }
    int64_t ask = (c->heard > c->pinged ? c->heard : c->pinged) + g->ping_ns;
    if (now >= ask) {
        net_conn_ping(c);
        ask = now + g->ping_ns;
    }
    if (c->pump_at && now >= c->pump_at)
        net_conn_pump(c);
    int64_t lost = c->pinged ? c->pinged + g->silence_ns : TP_NEVER, next = ask < lost ? ask : lost;
    return c->pump_at && c->pump_at < next ? c->pump_at : next;
}

bool tp_net_look(struct tp_net *net)
{
    return net->config.ops->look && net->config.ops->look(net->ep);
}

bool tp_net_arm(struct tp_net *net)
{
    return net->config.ops->arm && net->config.ops->arm(net->ep);
}

int64_t tp_net_poll(struct tp_net *net)
{
    int64_t next = net->config.ops->poll(net->ep), now = net_now(net), at;
    /* Nothing here ends a channel: their ends come from the provider. */
    for (struct net_conn *c = net->conns; c; c = c->next) {
        at = watch_conn(c, now);
        next = at < next ? at : next;
    }
    for (int i = 0; i < net->peers; i++) {
        at = dial_peer(net, i, now);
        next = at < next ? at : next;
    }
    return next;
}

/* ---- sending --------------------------------------------------------------------------------------- */

static struct net_conn *up_conn(struct tp_net *net, int peer, enum tp_class class)
{
    if (peer < 0 || peer >= net->peers || (unsigned)class >= TP_CLASSES)
        return NULL;
    struct net_conn *c = net->peer[peer].conn[class];
    return c && c->step == NET_UP ? c : NULL;
}

int tp_net_send(struct tp_net *net, int peer, enum tp_class class, const struct iovec *part, int n)
{
    struct net_conn *c = up_conn(net, peer, class);
    return c ? net_conn_send(c, part, n) : -ENOTCONN;
}

int tp_net_answer(struct tp_net *net, uint64_t tool, const void *bytes, size_t size)
{
    struct iovec v = {(void *)(uintptr_t)bytes, size};
    for (struct net_conn *c = net->conns; c; c = c->next)
        if (c->tool == tool && tool && c->step == NET_UP)
            return net_conn_send(c, &v, 1);
    return -ENOENT;
}

int tp_net_put(struct tp_net *net, int peer, enum tp_class class, const struct tp_net_put *put)
{
    struct net_conn *c = up_conn(net, peer, class);
    if (!c)
        return -ENOTCONN;
    const struct tp_peer_info *info = &net->peer[peer].info;
    const struct net_window *from = NULL;
    const struct tp_window *to = NULL;
    for (int i = 0; i < net->n_windows; i++)
        if (net->window[i].id == put->from_window)
            from = &net->window[i];
    for (int i = 0; i < info->n_windows; i++)
        if (info->windows[i].id == put->to_window)
            to = &info->windows[i];
    if (!from || !to || put->size == 0 || put->size > from->size || put->from > from->size - put->size ||
        put->size > to->size || put->to > to->size - put->size)
        return -EINVAL;
    const struct tp_put p = {.region = from->region,
                             .from = from->base + put->from,
                             .size = put->size,
                             .key = to->key,
                             .offset = put->to,
                             .with_immediate = put->with_immediate,
                             .immediate = put->immediate,
                             .cookie = put->cookie};
    int r = c->channel->ops->put(c->channel, &p);
    if (r == -EAGAIN)
        c->put_starved = true;
    if (r == 0)
        c->spoken = net_now(net);
    return r;
}

void tp_net_fence(struct tp_net *net, int peer, enum tp_class class)
{
    struct net_conn *c = up_conn(net, peer, class);
    if (!c)
        return;
    c->retry_soon = true;
    net_conn_abort(c, "fenced");
}
