#include "tests/support/expert_net.h"

#include <errno.h>

#include "actors/decode.h"
#include "actors/eplb.h"
#include "actors/prefill.h"
#include "actors/runtime/buffer.h"
#include "actors/tier_device.h"
#include "tests/harness.h"
#include "tests/support/model.h"

#define MS INT64_C(1000000)

enum { LINK_WORKER, ENGINE_WORKER, CLIENT_WORKER, WORKERS };

/* ---- a shard with something of the test before it ---- */

struct outer {
    struct ts_net_shard *in;
    _Alignas(64) uint8_t state[];
};

static int outer_start(struct act_self *self, void *state, const void *arg)
{
    struct outer *o = state;
    o->in = (struct ts_net_shard *)(uintptr_t)arg;
    if (o->in->starts++ && o->in->stillborn)
        return -EIO;
    o->in->puts = o->in->messages = 0;
    return act_expert_behaviour.start(self, o->state, &o->in->net->expert[o->in->node]);
}

/* As if its writer had other ideas of what a dispatch is. */
static void garble(const struct ts_net_shard *s, struct act_msg *m)
{
    const struct act_slots *slots = s->net->slots[s->node];
    struct act_slot_word w = act_slot_word_of(act_p_link_immediate(m)->immediate);
    uint8_t *at = slots->dispatches + act_slots_dispatch(slots, 0, (int)w.other, (int)w.set, 0);
    memset(at + sizeof(struct act_slot_head), 0xff, sizeof(uint32_t));
}

static int wave_of(const struct ts_net_shard *s, struct act_msg *m)
{
    const struct act_slots *slots = s->net->slots[s->node];
    if (m->type == ACT_EXPERT_DISPATCH)
        return act_p_expert_dispatch(m)->wave;
    struct act_slot_word w = act_slot_word_of(act_p_link_immediate(m)->immediate);
    const uint8_t *at = slots->dispatches + act_slots_dispatch(slots, 0, (int)w.other, (int)w.set, 0);
    return ((const struct act_slot_head *)(const void *)at)->wave;
}

/* Whether the shard fails at this dispatch. */
static bool take_dispatch(struct ts_net_shard *s, struct act_msg *m)
{
    struct ts_net_counts *c = &s->net->count;
    bool put = m->type == ACT_LINK_IMMEDIATE, later = wave_of(s, m) > 0;
    s->puts += put;
    s->messages += !put;
    c->puts += put;
    c->messages += !put;
    c->waves += later;
    if (s->die_at && s->puts + s->messages >= s->die_at && (later || !s->later_wave)) {
        s->die_at = 0;
        c->deaths++;
        c->in_wave += later;
        c->gone += s->for_good;
        return true;
    }
    if (put && s->garbled_from && s->puts >= s->garbled_from)
        garble(s, m);
    if (put && s->deaf > 0) {
        s->deaf--;
        c->forgotten++;
        m->type = ACT_NONE;
    }
    return false;
}

static int outer_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct outer *o = state;
    for (int i = 0; i < count; i++)
        if ((m[i].type == ACT_LINK_IMMEDIATE || m[i].type == ACT_EXPERT_DISPATCH) && take_dispatch(o->in, &m[i]))
            return -EIO;
    return act_expert_behaviour.receive(self, o->state, m, count);
}

static void outer_stop(struct act_self *self, void *state, int reason)
{
    act_expert_behaviour.stop(self, ((struct outer *)state)->state, reason);
}

static struct act_behaviour outer_behaviour = {
    .name = "expert", .start = outer_start, .receive = outer_receive, .stop = outer_stop};

/* ---- nodes ---- */

static struct act_addr spawn(struct ts_expert_net *n, int node, int worker, const struct act_behaviour *b,
                             const void *arg)
{
    bool source = b == &act_decode_behaviour || b == &act_prefill_behaviour;
    bool back = (b == &outer_behaviour && !n->shard[node].for_good) || (source && n->restart_sources);
    const struct act_spawn spec = {.behaviour = b,
                                   .worker = worker,
                                   .arg = arg,
                                   .outbox = 4096,
                                   .policy = back ? ACT_POLICY_RESTART : ACT_POLICY_STOP,
                                   .restart_delay_ns = b == &outer_behaviour ? n->restart_delay_ns : 0};
    struct act_addr a;
    struct cfg_error err;
    cr_assert_eq(act_runtime_spawn(n->rt[node], &spec, &a, &err), 0, "%s", err.msg);
    return a;
}

static void make_slots(struct ts_expert_net *n, int node)
{
    struct cfg_error err;
    const struct mdl_config *m = n->w.m->cfg;
    int rows = node == n->shards && n->other_rows ? n->other_rows : n->slot_rows;
    struct act_slots_shape shape = {.hidden = (uint32_t)m->hidden,
                                    .rows = (uint32_t)rows,
                                    .pairs = (uint32_t)(rows + m->topk_experts), /* fewer than rows can have */
                                    .shards = (uint32_t)n->shards,
                                    .each = 1,
                                    .places = 2,
                                    .nodes = 1};
    shape.rank[1] = 1;
    if (!rows)
        return;
    cr_assert_eq(act_slots_new(&shape, node == 0, node > 0, &n->slots[node], &err), 0, "%s", err.msg);
    n->slots[node]->epoch = n->epoch[node];
    struct act_link_arg *a = &n->link[node];
    const struct act_slots *s = n->slots[node];
    a->window[a->n_windows++] =
        node ? (struct act_link_window){ACT_WINDOW_DISPATCHES, s->dispatches, s->dispatches_bytes}
             : (struct act_link_window){ACT_WINDOW_RESULTS, s->results, s->results_bytes};
}

static void add_own(struct act_link_arg *a, enum act_node_kind kind, struct act_addr who, uint32_t first,
                    uint32_t second)
{
    a->own[a->n_own++] = (struct act_node_actor){.kind = kind, .a = first, .b = second, .addr = who};
}

static void spawn_link(struct ts_expert_net *n, int i)
{
    struct act_link_arg *a = &n->link[i];
    *a = (struct act_link_arg){
        .net =
            {.ops = &tp_faulty,
             .endpoint = {.provider = &n->fault[i], .connect_ns = 100 * MS},
             .self = {.kind = TP_KIND_NODE, .number = (uint16_t)(i + 1), .epoch = n->epoch[i], .roles = 1, .model = 1},
             .handshake_ns = 200 * MS,
             .retry_max_ns = 100 * MS,
             .ping_ns = 100 * MS,
             .silence_ns = 400 * MS},
        .peer = n->peer[i]};
    make_slots(n, i);
    snprintf(a->net.self.name, sizeof a->net.self.name, "n%d", i);
    snprintf(a->listen, sizeof a->listen, "n%d", i);
    for (int k = 0; k <= n->shards; k++) {
        struct act_link_peer *p = &n->peer[i][a->n_peers];
        if (k == i)
            continue;
        snprintf(p->name, sizeof p->name, "n%d", k);
        snprintf(p->address, sizeof p->address, "n%d", k);
        p->number = (uint16_t)(k + 1);
        a->n_peers++;
    }
    n->link_addr[i] = spawn(n, i, LINK_WORKER, &act_link_behaviour, a);
    add_own(a, ACT_NODE_LINK, n->link_addr[i], 0, 0);
    if (n->slots[i])
        add_own(a, ACT_NODE_SLOTS, n->link_addr[i], (uint32_t)n->slots[i]->fingerprint,
                (uint32_t)(n->slots[i]->fingerprint >> 32));
}

static void spawn_finder(struct ts_expert_net *n, int i, struct act_experts *e)
{
    n->finder[i] =
        (struct act_finder_arg){.link = n->link_addr[i], .experts = e, .self = i + 1, .balancer = &n->balancer_addr[i]};
    for (int k = 1; k <= n->shards; k++)
        n->finder[i].member[k + 1] = true;
    e->finder = spawn(n, i, LINK_WORKER, &act_finder_behaviour, &n->finder[i]);
}

static void spawn_shard_node(struct ts_expert_net *n, int i)
{
    struct act_experts *e = &n->experts[i];
    *e = (struct act_experts){
        .n = n->shards, .map = n->w.map, .balanced = n->balance, .slots = n->slots[i], .link = n->link_addr[i]};
    n->expert[i] = (struct act_expert_arg){
        .m = n->w.m, .map = n->w.map, .index = i - 1, .slots = n->slots[i], .link = n->link_addr[i]};
    n->shard[i].net = n;
    n->shard[i].node = i;
    n->shard[i].starts = 0;
    e->shard[i - 1] = spawn(n, i, ENGINE_WORKER, &outer_behaviour, &n->shard[i]);
    n->link[i].fan[TP_CLASS_EXPERT][ACT_PORT_SHARDS] = (struct act_link_fan){&e->shard[i - 1], 1};
    add_own(&n->link[i], ACT_NODE_EXPERT, e->shard[i - 1], (uint32_t)i - 1, (uint32_t)n->shards);
    spawn_finder(n, i, e);
    if (!n->balance)
        return;
    n->balancer[i] = (struct act_balancer_arg){.experts = e,
                                               .slots = (n->w.m->cfg->n_experts + n->shards - 1) / n->shards + 1,
                                               .interval_ns = 20 * MS,
                                               .deadline_ns = 50 * MS,
                                               .gain = 0.05,
                                               .least_pairs = 200,
                                               .rank = i - 1,
                                               .ranks = n->shards,
                                               .changed = n->changed,
                                               .ctx = &n->shard[i]};
    n->balancer_addr[i] = spawn(n, i, LINK_WORKER, &act_balancer_behaviour, &n->balancer[i]);
    add_own(&n->link[i], ACT_NODE_BALANCER, n->balancer_addr[i], 0, 0);
}

static void spawn_source_node(struct ts_expert_net *n)
{
    struct ts_world *w = &n->w;
    w->rt = n->rt[0];
    w->e.link = n->link_addr[0];
    w->e.experts.slots = n->slots[0];
    w->e.experts.link = n->link_addr[0];
    w->e.experts.node = 1;
    w->e.experts.balanced = n->balance;
    w->e.experts.report_ns = 2 * MS;
    spawn_finder(n, 0, &w->e.experts);
    w->e.tier = spawn(n, 0, ENGINE_WORKER, &act_tier_device_behaviour, &w->e);
    w->e.decode[w->e.n_decode++] = spawn(n, 0, ENGINE_WORKER, &act_decode_behaviour, &w->e);
    w->e.prefill[w->e.n_prefill++] = spawn(n, 0, ENGINE_WORKER, &act_prefill_behaviour, &w->e);
    w->members = w->e;
    w->router.engine = &w->members;
    w->e.router = spawn(n, 0, CLIENT_WORKER, &act_router_behaviour, &w->router);
    w->client = spawn(n, 0, CLIENT_WORKER, &ts_world_client, w);
    if (n->slots[0]) {
        n->slots[0]->source[n->slots[0]->n_sources++] = w->e.prefill[0];
        n->slots[0]->source[n->slots[0]->n_sources++] = w->e.decode[0];
        n->link[0].fan[TP_CLASS_EXPERT][ACT_PORT_SOURCES] = (struct act_link_fan){n->slots[0]->source, 2};
    }
}

void ts_net_open(struct ts_expert_net *n, int shards, int slot_rows, int requests, unsigned seed)
{
    struct ts_world *w = &n->w;
    memset(n, 0, sizeof *n);
    n->buffers = act_buf_live();
    n->sequences = mdl_seq_live();
    n->shards = shards;
    n->slot_rows = slot_rows;
    ts_world_open(w, 40, shards);
    w->e.experts.limits = (struct act_exchange_limits){.deadline_ns = 30 * MS};
    ts_world_requests(w, requests, seed);
    for (int i = 0; i < requests; i++)
        w->wanted[i].start += 500 * MS + i * 5 * MS;
    n->net = tp_sim_net_new(seed);
    tp_sim_net_fault(n->net, &(struct tp_sim_fault){.delay_min = MS / 50, .delay_max = MS / 5, .piece = 512});
    for (int i = 0; i <= shards; i++) {
        n->end[i].net = n->net;
        snprintf(n->end[i].name, sizeof n->end[i].name, "n%d", i);
        n->fault[i] = (struct tp_fault){.ops = &tp_sim, .provider = &n->end[i], .seed = seed + (uint64_t)i};
    }
}

void ts_net_replicate(struct ts_expert_net *n, uint64_t seed)
{
    const struct mdl_config *cfg = n->w.m->cfg;
    int slots = (cfg->n_experts + n->shards - 1) / n->shards + 1, cells = cfg->n_layers * cfg->n_experts;
    float *load = malloc((size_t)cells * sizeof *load);
    static const struct act_shard_set nobody;
    for (int i = 0; i < cells; i++)
        load[i] = (float)(1 + ts_random(&seed, 100));
    act_map_free(n->w.map);
    cr_assert_eq(act_eplb_place(1, cfg->n_layers, cfg->n_experts, n->shards, slots, &nobody, load, NULL, &n->w.map), 0);
    n->w.e.experts.map = n->w.map;
    free(load);
}

static void add_node(struct ts_expert_net *n, int i)
{
    struct cfg_error err;
    struct act_config c = {.node = (uint16_t)(i + 1), .epoch = ++n->epoch[i], .workers = WORKERS};
    for (int k = 0; k < WORKERS; k++)
        c.worker[k] = (struct act_worker_config){.kind = ACT_WORKER_ENGINE, .cpu = -1};
    cr_assert_eq(act_sim_add(n->w.sim, &c, &n->rt[i], &err), 0, "%s", err.msg);
    spawn_link(n, i);
}

void ts_net_end(struct ts_expert_net *n, int node)
{
    act_sim_end(n->rt[node], -1, false);
    cr_assert_lt(n->n_old, TS_NET_OLD);
    n->old[n->n_old++] = n->slots[node];
    n->slots[node] = NULL;
    n->count.restarts++;
}

void ts_net_begin(struct ts_expert_net *n, int node)
{
    add_node(n, node);
    spawn_shard_node(n, node);
}

void ts_net_start(struct ts_expert_net *n, uint64_t seed)
{
    struct cfg_error err;
    outer_behaviour.state_size = sizeof(struct outer) + act_expert_behaviour.state_size;
    cr_assert_eq(act_sim_new(&(struct act_sim_config){.seed = seed, .trace = n->w.trace}, &n->w.sim, &err), 0);
    for (int i = 0; i <= n->shards; i++)
        add_node(n, i);
    for (int i = 1; i <= n->shards; i++)
        spawn_shard_node(n, i);
    spawn_source_node(n);
}

static bool all_ended(const struct ts_world *w)
{
    for (int i = 0; i < w->n; i++)
        if (!w->got[i].terminal)
            return false;
    return true;
}

void ts_net_run(struct ts_expert_net *n)
{
    struct ts_world *w = &n->w;
    while (!all_ended(w) && act_sim_now(w->sim) < 60000 * MS)
        act_sim_run(w->sim, act_sim_now(w->sim) + 20 * MS, 10000000);
    act_sim_run(w->sim, act_sim_now(w->sim) + 500 * MS, 10000000);
}

void ts_net_check(struct ts_expert_net *n, const char *when)
{
    struct ts_world *w = &n->w;
    struct kv_device_stats s;
    for (int i = 0; i < w->n; i++)
        cr_assert(w->got[i].terminal == 1 && !w->got[i].status, "%s, request %d: %d ends, status %d", when, i,
                  w->got[i].terminal, w->got[i].status);
    for (int i = 0; i < w->n; i++)
        ts_world_check_same(w, i);
    kv_device_stat(w->e.device, &s);
    cr_assert_le(s.held, w->e.limits.lease + 2, "%s: %d pages are held", when, s.held);
    cr_assert_eq(mdl_seq_live(), n->sequences, "%s: sequences are left", when);
}

void ts_net_close(struct ts_expert_net *n)
{
    ts_world_close(&n->w);
    tp_sim_net_free(n->net);
    for (int i = 0; i <= n->shards; i++)
        act_slots_free(n->slots[i]);
    for (int i = 0; i < n->n_old; i++)
        act_slots_free(n->old[i]);
    cr_assert_eq(act_buf_live(), n->buffers, "%ld buffers are left", act_buf_live() - n->buffers);
}

void ts_net_cut(struct ts_expert_net *n, int node, bool cut)
{
    for (int i = 0; i <= n->shards; i++)
        if (i != node)
            cr_assert_eq(tp_sim_net_cut(n->net, n->end[node].name, n->end[i].name, cut), 0);
}

uint32_t ts_net_connections(struct ts_expert_net *n, int node, int other, enum tp_class class)
{
    struct tp_peer_info info;
    int calls;
    char name[TP_NAME_TEXT];
    snprintf(name, sizeof name, "n%d", other);
    for (int i = 0; act_link_peer_info(n->link[node].self, i, &info, &calls); i++)
        if (!strcmp(info.name, name))
            return info.generation[class];
    return 0;
}

bool ts_net_has_shard(const struct ts_expert_net *n, int node)
{
    for (int i = 0; i < n->link[node].n_own; i++)
        if (n->link[node].own[i].kind == ACT_NODE_EXPERT)
            return true;
    return false;
}

struct tp_fault_rule *ts_net_count(struct ts_expert_net *n, int node, uint32_t on)
{
    struct tp_fault *f = &n->fault[node];
    cr_assert_lt(f->rules, TP_FAULT_RULES);
    f->rule[f->rules] =
        (struct tp_fault_rule){.on = on, .classes = 1 << TP_CLASS_EXPERT, .what = TP_FAULT_KILL, .at = UINT64_MAX};
    return &f->rule[f->rules++];
}
