#include "tests/support/nodes_world.h"

#include <errno.h>
#include <string.h>

#include "actors/decode.h"
#include "actors/prefill.h"
#include "actors/runtime/buffer.h"
#include "actors/tier_device.h"
#include "tests/harness.h"

#define MS INT64_C(1000000)

enum { LINK_WORKER, ENGINE_WORKER, CLIENT_WORKER, WORKERS, PAGES = 48 };

struct ts_far *ts_nodes_far(struct ts_nodes *n, int node)
{
    return node == 1 ? &n->w.far : &n->w.other;
}

static struct act_engine *engine_of(struct ts_nodes *n, int node)
{
    if (n->apart && node != 1)
        return node ? &n->gateway : &n->prefill;
    return node ? &ts_nodes_far(n, node)->e : &n->w.e;
}

/* ---- actors that may be silent ---- */

struct outer {
    struct ts_nodes_actor *a;
    _Alignas(64) uint8_t state[];
};

static int outer_start(struct act_self *self, void *state, const void *arg)
{
    struct outer *o = state;
    o->a = (struct ts_nodes_actor *)(uintptr_t)arg;
    o->a->state = o->state;
    return o->a->behaviour->start ? o->a->behaviour->start(self, o->state, o->a->arg) : 0;
}

static int outer_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct outer *o = state;
    struct ts_nodes *n = o->a->n;
    if (n->silent[o->a->node])
        return 0;
    if (o->a->behaviour == &act_decode_behaviour)
        act_busy(self, n->turn_ns);
    if (o->a->behaviour == &act_prefill_behaviour)
        act_busy(self, n->prefill_ns);
    for (int i = 0; i < count; i++) {
        n->dispatches += m[i].type == ACT_EXPERT_DISPATCH && !o->a->node;
        if (n->deaf && m[i].type == ACT_NODE_DOWN && o->a->node != TS_NODES_GATEWAY)
            act_p_node_down(&m[i])->peer = 0;
        bool word = m[i].type == ACT_UNDELIVERABLE &&
                    (act_msg_returned_type(&m[i]) == ACT_PREFILLING || act_msg_returned_type(&m[i]) == ACT_PREFILLED);
        if (n->deaf > 1 && word)
            m[i].request = 0;
    }
    return o->a->behaviour->receive(self, o->state, m, count);
}

static void outer_stop(struct act_self *self, void *state, int reason)
{
    struct outer *o = state;
    if (o->a->behaviour->stop)
        o->a->behaviour->stop(self, o->state, reason);
}

static struct act_addr spawn(struct ts_nodes *n, int node, int worker, const struct act_behaviour *b, const void *arg)
{
    struct cfg_error err;
    cr_assert_lt(n->n_actors[node], TS_NODES_ACTORS);
    struct ts_nodes_actor *a = &n->actor[node][n->n_actors[node]++];
    *a = (struct ts_nodes_actor){.n = n, .node = node, .behaviour = b, .arg = arg};
    a->outer = (struct act_behaviour){.name = b->name,
                                      .state_size = sizeof(struct outer) + b->state_size,
                                      .start = outer_start,
                                      .receive = outer_receive,
                                      .stop = outer_stop};
    const struct act_spawn spec = {.behaviour = &a->outer, .worker = worker, .arg = a, .outbox = 1024};
    cr_assert_eq(act_runtime_spawn(n->rt[node], &spec, &a->addr, &err), 0, "%s", err.msg);
    return a->addr;
}

static struct act_addr spawn_bare(struct ts_nodes *n, int node, int worker, const struct act_behaviour *b,
                                  const void *arg)
{
    struct cfg_error err;
    struct act_addr a;
    const struct act_spawn spec = {.behaviour = b, .worker = worker, .arg = arg, .outbox = 1024};
    cr_assert_eq(act_runtime_spawn(n->rt[node], &spec, &a, &err), 0, "%s", err.msg);
    return a;
}

/* ---- the end of a node ---- */

static int reaper_start(struct act_self *self, void *state, const void *arg)
{
    (void)self;
    *(struct ts_nodes **)state = (struct ts_nodes *)(uintptr_t)arg;
    return 0;
}

/* a: node; b 0: its link, which comes first, so that nobody's last words leave; 1: the others. */
static int reaper_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct ts_nodes *n = *(struct ts_nodes **)state;
    for (int i = 0; i < count; i++) {
        if (m[i].type != ACT_PING)
            continue;
        int node = (int)act_p_ping(&m[i])->a;
        if (!act_p_ping(&m[i])->b)
            act_exit(self, engine_of(n, node)->link, -EIO);
        for (int k = 0; k < n->n_actors[node] && act_p_ping(&m[i])->b; k++)
            act_exit(self, n->actor[node][k].addr, -EIO);
    }
    return 0;
}

static const struct act_behaviour reaper_behaviour = {
    .name = "reaper", .state_size = sizeof(struct ts_nodes *), .start = reaper_start, .receive = reaper_receive};

void ts_nodes_kill(struct ts_nodes *n, int node)
{
    for (uint64_t step = 0; step < 2; step++) {
        struct act_msg m = act_msg_make(ACT_PING, n->reaper[node]);
        *act_p_ping(&m) = (struct act_p_ping){.a = (uint64_t)node, .b = step};
        cr_assert_eq(act_runtime_post(n->rt[node], &m), 0);
        /* All that this node does at this instant: no time passes. */
        act_sim_run(n->w.sim, act_sim_now(n->w.sim), 100000);
        n->silent[node] = true;
    }
    for (int i = 0; n->apart && node == TS_NODES_GATEWAY && i < n->w.n; i++)
        n->w.got[i].cancelled |= n->w.got[i].place.self && !n->w.got[i].terminal;
}

/* ---- a node ---- */

static void spawn_link(struct ts_nodes *n, int i)
{
    struct act_engine *e = engine_of(n, i);
    struct act_link_arg *a = &n->link[i];
    *a = (struct act_link_arg){.net = {.ops = &tp_faulty,
                                       .endpoint = {.provider = &n->fault[i], .connect_ns = 100 * MS},
                                       .self = {.kind = TP_KIND_NODE,
                                                .number = (uint16_t)(i + 1),
                                                .epoch = n->epoch[i],
                                                .roles = 1,
                                                .model = 1,
                                                .block_tokens = TS_WORLD_BLOCK},
                                       .handshake_ns = 200 * MS,
                                       .retry_max_ns = 100 * MS,
                                       .ping_ns = 100 * MS,
                                       .silence_ns = 400 * MS},
                               .peer = n->peer[i],
                               .n_peers = n->nodes - 1,
                               .call_ns = 500 * MS};
    if (e->device)
        a->window[a->n_windows++] =
            (struct act_link_window){.id = ACT_WINDOW_PAGES,
                                     .base = kv_device_bytes(e->device, 0),
                                     .size = (size_t)kv_device_pages(e->device) * e->layout.block_bytes};
    snprintf(a->net.self.name, sizeof a->net.self.name, "n%d", i);
    snprintf(a->listen, sizeof a->listen, "n%d", i);
    for (int k = 0, at = 0; k < n->nodes; k++) {
        if (k == i)
            continue;
        snprintf(n->peer[i][at].name, sizeof n->peer[i][at].name, "n%d", k);
        snprintf(n->peer[i][at].address, sizeof n->peer[i][at].address, "n%d", k);
        n->peer[i][at++].number = (uint16_t)(k + 1);
    }
    e->link = spawn_bare(n, i, LINK_WORKER, &act_link_behaviour, a);
    a->own[a->n_own++] = (struct act_node_actor){.kind = ACT_NODE_LINK, .addr = e->link};
}

static void spawn_engine(struct ts_nodes *n, int node, struct act_expert_arg *expert, const struct act_map *map)
{
    struct act_engine *e = engine_of(n, node);
    e->tier = spawn(n, node, ENGINE_WORKER, &act_tier_device_behaviour, e);
    *expert = (struct act_expert_arg){.m = n->w.m, .map = map, .index = 0};
    e->experts.shard[0] = spawn(n, node, ENGINE_WORKER, &act_expert_behaviour, expert);
}

static void spawn_decode_node(struct ts_nodes *n, int node)
{
    struct ts_far *f = ts_nodes_far(n, node);
    struct act_link_arg *a = &n->link[node];
    spawn_link(n, node);
    spawn_engine(n, node, &f->expert[0], f->map);
    f->e.n_decode = 1;
    f->e.decode[0] = spawn(n, node, ENGINE_WORKER, &act_decode_behaviour, &f->e);
    f->replay = spawn(n, node, ENGINE_WORKER, &act_prefill_behaviour, &f->e);
    f->arg = (struct act_landing_arg){.engine = &f->e, .replay = f->replay, .stats = &f->stats};
    f->e.load = f->e.landing = f->landing = spawn(n, node, ENGINE_WORKER, &act_landing_behaviour, &f->arg);
    a->port[TP_CLASS_KV][ACT_PORT_LANDING] = f->landing;
    a->own[a->n_own++] = (struct act_node_actor){.kind = ACT_NODE_DECODE, .addr = f->landing};
}

static void spawn_prefill_node(struct ts_nodes *n)
{
    struct ts_world *w = &n->w;
    struct act_link_arg *a = &n->link[0];
    struct act_engine *e = engine_of(n, 0);
    spawn_link(n, 0);
    spawn_engine(n, 0, &w->expert[0], w->map);
    e->prefill[e->n_prefill++] = spawn(n, 0, ENGINE_WORKER, &act_prefill_behaviour, e);
    a->own[a->n_own++] = (struct act_node_actor){.kind = ACT_NODE_PREFILL, .addr = e->prefill[0]};
    if (n->apart)
        return;
    w->members = w->e;
    w->router.engine = &w->members;
    w->router.link = w->e.link;
    w->e.router = spawn_bare(n, 0, CLIENT_WORKER, &act_router_behaviour, &w->router);
    w->client = spawn_bare(n, 0, CLIENT_WORKER, &ts_world_client, w);
}

static void spawn_gateway(struct ts_nodes *n)
{
    struct ts_world *w = &n->w;
    spawn_link(n, TS_NODES_GATEWAY);
    w->router.engine = NULL;
    w->router.link = n->gateway.link;
    w->e.router = spawn(n, TS_NODES_GATEWAY, CLIENT_WORKER, &act_router_behaviour, &w->router);
    w->client = spawn(n, TS_NODES_GATEWAY, CLIENT_WORKER, &ts_world_client, w);
}

static void new_runtime(struct ts_nodes *n, int node)
{
    struct cfg_error err;
    struct act_config c = {.node = (uint16_t)(node + 1), .epoch = ++n->epoch[node], .workers = WORKERS};
    for (int k = 0; k < WORKERS; k++)
        c.worker[k] = (struct act_worker_config){.kind = ACT_WORKER_ENGINE, .cpu = -1};
    cr_assert_eq(act_sim_add(n->w.sim, &c, &n->rt[node], &err), 0, "%s", err.msg);
    n->n_actors[node] = 0;
    n->silent[node] = false;
    n->reaper[node] = spawn_bare(n, node, CLIENT_WORKER, &reaper_behaviour, n);
}

static void make_device(struct ts_far *f)
{
    struct cfg_error err;
    cr_assert_eq(kv_device_new(PAGES, f->e.layout.block_bytes, 8 << 20, &f->e.device, &err), 0);
    cr_assert_eq(kv_device_canary(f->e.device), 0);
    f->stats = (struct act_landing_stats){0};
}

void ts_nodes_restart(struct ts_nodes *n, int node)
{
    struct ts_far *f = ts_nodes_far(n, node);
    if (n->apart && node == TS_NODES_GATEWAY) {
        for (int i = 0; i < n->w.n; i++) /* its timers are gone by now */
            n->w.got[i].place = (struct act_place){0};
        new_runtime(n, node);
        spawn_gateway(n);
        return;
    }
    kv_device_free(f->e.device);
    make_device(f);
    new_runtime(n, node);
    spawn_decode_node(n, node);
}

void ts_nodes_drain(struct ts_nodes *n, int node)
{
    struct act_msg m = act_msg_make(ACT_DRAIN, ts_nodes_far(n, node)->landing);
    cr_assert_eq(act_runtime_post(n->rt[node], &m), 0);
}

void ts_nodes_cut_gateway(struct ts_nodes *n, int64_t ns)
{
    struct tp_fault *f = &n->fault[TS_NODES_GATEWAY];
    f->rule[0] =
        (struct tp_fault_rule){.on = TP_FAULT_SEND | TP_FAULT_FRAME, .what = TP_FAULT_KILL, .at = 1, .every = 1};
    f->rule[1] = (struct tp_fault_rule){.on = TP_FAULT_CONNECT, .what = TP_FAULT_REFUSE, .at = 1, .every = 1};
    f->rules = 2;
    ts_nodes_run(n, ns);
    f->rules = 0;
}

/* ---- the world ---- */

static void add_end(struct ts_nodes *n, int i, uint64_t seed)
{
    n->end[i].net = n->net;
    snprintf(n->end[i].name, sizeof n->end[i].name, "n%d", i);
    n->fault[i] = (struct tp_fault){.ops = &tp_sim, .provider = &n->end[i], .seed = seed + (uint64_t)i};
}

void ts_nodes_open(struct ts_nodes *n, int nodes, uint64_t seed)
{
    struct ts_world *w = &n->w;
    memset(n, 0, sizeof *n);
    n->buffers = act_buf_live();
    n->sequences = mdl_seq_live();
    n->nodes = nodes;
    ts_world_open(w, PAGES, 1);
    w->e.limits.context = 160;
    w->e.limits.replay = 0; /* so that a request that goes on elsewhere has the same tokens */
    ts_world_split(w, PAGES, MDL_HANDOFF_FULL);
    w->e.tickets = w->far.e.tickets =
        (struct act_ticket_times){.grant = 100 * MS, .lease = 200 * MS, .quarantine = 100 * MS, .fence = 100 * MS};
    w->far.e.limits = w->e.limits;
    if (nodes > 2) {
        w->other.e = w->far.e;
        make_device(&w->other);
        cr_assert_eq(act_map_even(1, w->m->cfg->n_layers, w->m->cfg->n_experts, 1, &w->other.map), 0);
        w->other.e.experts.map = w->other.map;
    }
    n->net = tp_sim_net_new(seed);
    tp_sim_net_fault(n->net, &(struct tp_sim_fault){.delay_min = MS / 20, .delay_max = MS / 2, .piece = 256});
    for (int i = 0; i < nodes; i++)
        add_end(n, i, seed);
}

void ts_nodes_open_apart(struct ts_nodes *n, uint64_t seed)
{
    ts_nodes_open(n, 2, seed);
    n->apart = true;
    add_end(n, n->nodes++, seed);
}

void ts_nodes_start(struct ts_nodes *n, uint64_t seed)
{
    struct cfg_error err;
    cr_assert_eq(act_sim_new(&(struct act_sim_config){.seed = seed}, &n->w.sim, &err), 0);
    for (int i = 0; i < n->nodes; i++)
        new_runtime(n, i);
    n->w.rt = n->rt[0];
    n->prefill = n->w.e;
    for (int i = 1; i < n->nodes - n->apart; i++)
        spawn_decode_node(n, i);
    spawn_prefill_node(n);
    if (n->apart)
        spawn_gateway(n);
}

void ts_nodes_run(struct ts_nodes *n, int64_t ns)
{
    act_sim_run(n->w.sim, act_sim_now(n->w.sim) + ns, 50000000);
}

static bool all_ended(const struct ts_world *w)
{
    for (int i = 0; i < w->n; i++)
        if (!w->got[i].terminal && !w->got[i].cancelled)
            return false;
    return true;
}

bool ts_nodes_run_all(struct ts_nodes *n, int64_t limit)
{
    while (!all_ended(&n->w) && act_sim_now(n->w.sim) < limit)
        ts_nodes_run(n, 5 * MS);
    return all_ended(&n->w);
}

void ts_nodes_check(struct ts_nodes *n, const char *when)
{
    struct kv_device_stats s;
    kv_device_stat(n->w.e.device, &s);
    cr_assert_eq(s.held, 0, "%s: %d pages are held by the writer", when, s.held);
    cr_assert_eq(s.changed + (uint64_t)kv_device_canary_check(n->w.e.device), 0u, "%s: a finished block was written to",
                 when);
    for (int i = 1; i < n->nodes - n->apart; i++) {
        const struct ts_far *f = ts_nodes_far(n, i);
        if (n->silent[i])
            continue;
        kv_device_stat(f->e.device, &s);
        cr_assert_eq(f->stats.open, 0, "%s: %d tickets are open at node %d", when, f->stats.open, i);
        cr_assert_eq(s.held, f->e.limits.lease, "%s: %d pages are held at node %d", when, s.held, i);
        cr_assert_eq(s.changed + (uint64_t)kv_device_canary_check(f->e.device), 0u,
                     "%s: a finished block was written to at node %d", when, i);
    }
    for (int i = 0; i < n->nodes; i++)
        for (int k = 0; k < WORKERS * WORKERS; k++) {
            int messages = 0, requests = 0;
            act_stats_lane(n->rt[i], k / WORKERS, k % WORKERS, &messages, &requests);
            cr_assert(n->silent[i] || !requests, "%s: a question at node %d has no end", when, i);
        }
}

void ts_nodes_close(struct ts_nodes *n)
{
    ts_world_close(&n->w);
    tp_sim_net_free(n->net);
    cr_assert_eq(mdl_seq_live(), n->sequences, "%ld sequences are left", mdl_seq_live() - n->sequences);
    cr_assert_eq(act_buf_live(), n->buffers, "%ld buffers are left", act_buf_live() - n->buffers);
}
