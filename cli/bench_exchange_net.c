#include "cli/bench_exchange_net.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actors/expert.h"
#include "actors/expert_finder.h"
#include "actors/link.h"
#include "config/config.h"

enum { WORKER_ENGINE, WORKER_IO, WORKERS, JOIN_TRIES = 500, JOIN_US = 10000 };

#define PATIENCE_NS INT64_C(60000000000) /* nobody is left out here because the machine is busy */

struct node {
    struct act_runtime *rt;
    struct mdl_model *m;
    struct act_link_arg link;
    struct act_link_peer peer;
    struct cfg_error link_error;
    struct act_addr link_addr;
    struct act_experts experts;
    struct act_slots *slots;
};

struct bench_exchange_net {
    struct node node[BENCH_NODES];
    struct act_map *map;
    struct act_finder_arg finder;
    struct act_expert_arg expert[ACT_SHARDS_MAX];
    struct bench_source source;
};

static int spawn(struct node *n, const struct act_behaviour *behaviour, int worker, const void *arg,
                 struct act_addr *out, struct cfg_error *err)
{
    const struct act_spawn spec = {
        .behaviour = behaviour, .worker = worker, .arg = arg, .batch = 256, .outbox = 1 << 14};
    return act_runtime_spawn(n->rt, &spec, out, err);
}

/* With fewer CPUs than workers the source computes on one, and everything else has the other. */
static int cpu_of(const struct bench_exchange_net_arg *a, int node, int worker)
{
    if (!a->apart)
        return -1;
    if (sysconf(_SC_NPROCESSORS_ONLN) >= BENCH_NODES * WORKERS)
        return node * WORKERS + worker;
    return node != BENCH_SOURCE_NODE || worker != WORKER_ENGINE;
}

static int open_runtime(struct node *n, const struct bench_exchange_net_arg *a, int node, struct cfg_error *err)
{
    static const char *const names[WORKERS] = {"engine", "io"};
    static const enum act_worker_kind kinds[WORKERS] = {ACT_WORKER_ENGINE, ACT_WORKER_IO};
    struct act_config c = {
        .node = (uint16_t)(node + 1), .epoch = 1, .workers = WORKERS, .lane_slots = 4096, .reply_slots = 4096};
    for (int i = 0; i < WORKERS; i++) {
        c.worker[i] =
            (struct act_worker_config){.kind = kinds[i], .cpu = cpu_of(a, node, i), .actors_max = ACT_SHARDS_MAX + 8};
        snprintf(c.worker[i].name, sizeof c.worker[i].name, "%s", names[i]);
    }
    int r = mdl_model_open(a->model, a->threads, NULL, &n->m, err);
    return r ? r : act_runtime_new(&c, &n->rt, err);
}

/* As server_slots.c does, with all shards on one node. */
static int open_slots(struct node *n, const struct bench_exchange_net_arg *a, int node, struct cfg_error *err)
{
    const struct mdl_config *m = n->m->cfg;
    struct act_slots_shape shape = {
        .hidden = (uint32_t)m->hidden,
        .rows = (uint32_t)a->slot_rows,
        .pairs = act_slots_pairs((uint32_t)a->slot_rows, (uint32_t)m->topk_experts, (uint32_t)a->shards),
        .shards = (uint32_t)a->shards,
        .each = (uint32_t)a->shards,
        .places = BENCH_LANES,
        .nodes = 1};
    shape.rank[BENCH_SOURCE_NODE + 1] = 1;
    if (!a->slot_rows)
        return 0;
    int r = act_slots_new(&shape, node == BENCH_SOURCE_NODE, node == BENCH_SHARD_NODE, &n->slots, err);
    if (r)
        return r;
    n->slots->epoch = 1;
    n->link.window[n->link.n_windows++] =
        node == BENCH_SOURCE_NODE
            ? (struct act_link_window){ACT_WINDOW_RESULTS, n->slots->results, n->slots->results_bytes}
            : (struct act_link_window){ACT_WINDOW_DISPATCHES, n->slots->dispatches, n->slots->dispatches_bytes};
    return 0;
}

/* The runtime and the plan of its link, which connects to `address`. */
static int open_node(struct node *n, const struct bench_exchange_net_arg *a, int node, const char *address,
                     struct cfg_error *err)
{
    static const char *const names[BENCH_NODES] = {"source", "shards"};
    int r = open_runtime(n, a, node, err), other = 1 - node;
    if (r)
        return r;
    struct act_link_arg *l = &n->link;
    l->net.ops = a->ops;
    l->net.endpoint.provider = a->provider[node];
    l->net.self = (struct tp_hello){.kind = TP_KIND_NODE,
                                    .number = (uint16_t)(node + 1),
                                    .epoch = 1,
                                    .roles = node == BENCH_SOURCE_NODE ? CFG_ROLE_DECODE : CFG_ROLE_EXPERT,
                                    .model = n->m->ck->revision,
                                    .numerics = "bench"};
    snprintf(l->net.self.name, sizeof l->net.self.name, "%s", names[node]);
    l->net.handshake_ns = l->net.silence_ns = PATIENCE_NS;
    snprintf(n->peer.name, sizeof n->peer.name, "%s", names[other]);
    n->peer.number = (uint16_t)(other + 1);
    snprintf(n->peer.address, sizeof n->peer.address, "%s", address);
    l->peer = &n->peer;
    l->n_peers = 1;
    l->start_error = &n->link_error;
    if (node == BENCH_SHARD_NODE)
        snprintf(l->listen, sizeof l->listen, "%s", a->listen);
    r = open_slots(n, a, node, err);
    if (r)
        return r;
    r = spawn(n, &act_link_behaviour, WORKER_IO, l, &n->link_addr, err);
    if (r && n->link_error.msg[0])
        *err = n->link_error;
    n->experts.n = a->shards;
    n->experts.limits = (struct act_exchange_limits){.deadline_ns = PATIENCE_NS, .patience_ns = PATIENCE_NS};
    n->experts.slots = n->slots;
    n->experts.link = n->link_addr;
    n->experts.node = (uint16_t)(node + 1);
    return r;
}

static void list(struct node *n, enum act_node_kind kind, struct act_addr who, uint32_t a, uint32_t b)
{
    n->link.own[n->link.n_own++] = (struct act_node_actor){.kind = kind, .a = a, .b = b, .addr = who};
}

static void list_slots(struct node *n)
{
    list(n, ACT_NODE_LINK, n->link_addr, 0, 0);
    if (n->slots)
        list(n, ACT_NODE_SLOTS, n->link_addr, (uint32_t)n->slots->fingerprint, (uint32_t)(n->slots->fingerprint >> 32));
}

static int open_shards(struct bench_exchange_net *x, const struct bench_exchange_net_arg *a, struct cfg_error *err)
{
    struct node *n = &x->node[BENCH_SHARD_NODE];
    const struct mdl_config *m;
    int r = open_node(n, a, BENCH_SHARD_NODE, "127.0.0.1:1", err);
    if (r)
        return r;
    m = n->m->cfg;
    if (a->shards > m->n_experts)
        return cfg_error_set(err, EINVAL, "%d shards are more than the model's %d experts", a->shards, m->n_experts);
    if (act_map_even(1, m->n_layers, m->n_experts, a->shards, &x->map))
        return cfg_error_set(err, ENOMEM, "out of memory");
    list_slots(n);
    for (int i = 0; i < a->shards && !r; i++) {
        x->expert[i] = (struct act_expert_arg){
            .m = n->m, .map = x->map, .index = i, .slots = n->slots, .link = n->link_addr, .local = i};
        r = spawn(n, &act_expert_behaviour, WORKER_ENGINE, &x->expert[i], &n->experts.shard[i], err);
        list(n, ACT_NODE_EXPERT, n->experts.shard[i], (uint32_t)i, (uint32_t)a->shards);
    }
    n->link.fan[TP_CLASS_EXPERT][ACT_PORT_SHARDS] = (struct act_link_fan){n->experts.shard, a->shards};
    return r ? r : act_runtime_start(n->rt, err);
}

static int open_source(struct bench_exchange_net *x, const struct bench_exchange_net_arg *a, struct cfg_error *err)
{
    struct node *n = &x->node[BENCH_SOURCE_NODE];
    int r = open_node(n, a, BENCH_SOURCE_NODE, x->node[BENCH_SHARD_NODE].link.bound, err);
    if (r)
        return r;
    static const struct act_addr nobody = {0};
    n->experts.map = x->map;
    x->finder = (struct act_finder_arg){
        .link = n->link_addr, .experts = &n->experts, .self = BENCH_SOURCE_NODE + 1, .balancer = &nobody};
    x->finder.member[BENCH_SHARD_NODE + 1] = true;
    x->source.m = n->m;
    x->source.experts = &n->experts;
    x->source.rows = a->rows;
    r = spawn(n, &act_finder_behaviour, WORKER_IO, &x->finder, &n->experts.finder, err);
    if (!r)
        r = bench_source_spawn(n->rt, WORKER_ENGINE, &x->source, err);
    list_slots(n);
    if (n->slots) {
        for (int i = 0; i < BENCH_LANES; i++)
            n->slots->source[n->slots->n_sources++] = x->source.addr[i];
        n->link.fan[TP_CLASS_EXPERT][ACT_PORT_SOURCES] = (struct act_link_fan){n->slots->source, BENCH_LANES};
    }
    return r ? r : act_runtime_start(n->rt, err);
}

/* Until the source has found the shards, and the connection over which slots are used. */
static int join(struct bench_exchange_net *x, const struct bench_exchange_net_arg *a, struct cfg_error *err)
{
    struct bench_step s = {0};
    for (int i = 0; i < JOIN_TRIES; i++) {
        s = bench_source_run(x->node[BENCH_SOURCE_NODE].rt, &x->source, BENCH_SERIAL);
        if (s.error)
            return cfg_error_set(err, -s.error, "the experts of the other node could not be used: %s",
                                 strerror(-s.error));
        if (!s.again && (!a->slot_rows || s.puts))
            return 0;
        usleep(JOIN_US);
    }
    return cfg_error_set(err, ETIMEDOUT, "in %d steps %s", JOIN_TRIES,
                         s.again ? "none went through undisturbed" : "no dispatch was put into a slot");
}

int bench_exchange_net_open(const struct bench_exchange_net_arg *arg, struct bench_exchange_net **out,
                            struct cfg_error *err)
{
    struct bench_exchange_net *x = *out = calloc(1, sizeof *x);
    if (!x)
        return cfg_error_set(err, ENOMEM, "out of memory");
    int r = open_shards(x, arg, err);
    if (!r)
        r = open_source(x, arg, err);
    if (!r)
        r = join(x, arg, err);
    if (r) {
        bench_exchange_net_close(x);
        *out = NULL;
    }
    return r;
}

static void close_node(struct node *n)
{
    act_runtime_free(n->rt);
    act_slots_free(n->slots);
    mdl_model_close(n->m);
}

void bench_exchange_net_close(struct bench_exchange_net *x)
{
    if (!x)
        return;
    close_node(&x->node[BENCH_SOURCE_NODE]);
    close_node(&x->node[BENCH_SHARD_NODE]);
    act_map_free(x->map);
    free(x);
}

struct act_runtime *bench_exchange_net_runtime(struct bench_exchange_net *x)
{
    return x->node[BENCH_SOURCE_NODE].rt;
}

struct bench_source *bench_exchange_net_source(struct bench_exchange_net *x)
{
    return &x->source;
}
