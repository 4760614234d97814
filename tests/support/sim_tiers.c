#include "tests/support/sim_tiers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actors/link.h"
#include "actors/tier_nodes.h"
#include "kvtiers/host.h"
#include "kvtiers/ssd.h"
#include "tests/harness.h"

#define MS INT64_C(1000000)

enum { POOL = ACT_REMOTE_READ_MAX, FIRST_NODE = 10, OPEN_TRIES = 20 };

static int processes(const struct ts_sim_tiers *t)
{
    return 1 + t->w->split + t->w->two;
}

/* ---- tiers of a process ---- */

static int64_t world_ns(void *ctx)
{
    const struct ts_world *w = ctx;
    return w->sim ? act_sim_now(w->sim) + 1 : 1;
}

static int64_t world_s(void *ctx)
{
    return 1000000 + world_ns(ctx) / (1000 * MS);
}

static struct kv_tier *new_host(const struct ts_sim_tiers *t, int blocks)
{
    struct kv_tier *out;
    struct cfg_error err;
    const struct kv_host_params p = {
        .layout = t->layout, .bytes = blocks * (int64_t)t->layout.block_bytes, .clock = t->clock, .verify = true};
    cr_assert_eq(kv_host_new(&p, &out, &err), 0, "%s", err.msg);
    return out;
}

/* A fault that is due may strike the opening, as it may any other use. */
static struct kv_tier *new_disk_tier(struct ts_sim_tiers *t, struct ts_sim_store *s)
{
    struct cfg_error err;
    struct kv_tier *out = NULL;
    s->store.storage[0] = kv_storage_sim_new(s->disk);
    const struct kv_ssd_params p = {.storage = s->store.storage[0],
                                    .folder = "disk",
                                    .layout = t->layout,
                                    .bytes = t->disk_blocks * (int64_t)t->layout.block_bytes,
                                    .direct = true,
                                    .clock = t->clock};
    for (int i = 0; i < OPEN_TRIES && kv_ssd_new(&p, &out, &err); i++)
        out = NULL;
    cr_assert_not_null(out, "%s", err.msg);
    return out;
}

static struct kv_tier *new_nodes(const struct ts_sim_tiers *t)
{
    struct kv_tier *out;
    struct cfg_error err;
    struct act_nodes_arg a = {.layout = t->layout,
                              .n = t->nodes,
                              .find_ns = 50 * MS,
                              .quiet_ns = 200 * MS,
                              .store_bytes = 64 * t->layout.block_bytes};
    for (int i = 0; i < t->nodes; i++) {
        a.node[i].number = (uint16_t)(FIRST_NODE + i);
        snprintf(a.node[i].name, sizeof a.node[i].name, "kv-%d", i);
    }
    cr_assert_eq(act_nodes_new(&a, &out, &err), 0, "%s", err.msg);
    return out;
}

static void make_tiers(struct ts_sim_tiers *t, struct ts_sim_store *s)
{
    s->store = (struct act_store){.layout = t->layout,
                                  .clock = t->clock,
                                  .late_ns = t->w->e.read_timeout_ns / 4,
                                  .hedge_ns = t->hedge_ns,
                                  .hedge_bytes = 16 * t->layout.block_bytes,
                                  .tier = {new_host(t, t->host_blocks)},
                                  .kind = {ACT_TIER_HOST},
                                  .n_tiers = 1};
    if (t->disk_blocks) {
        s->store.kind[s->store.n_tiers] = ACT_TIER_SSD;
        s->store.tier[s->store.n_tiers++] = new_disk_tier(t, s);
    }
    if (t->nodes) {
        s->store.kind[s->store.n_tiers] = ACT_TIER_NODES;
        s->store.tier[s->store.n_tiers++] = s->store.nodes = new_nodes(t);
    }
}

static void sum_up(struct ts_sim_tiers *t, const struct ts_sim_store *s)
{
    for (int i = 0; i < s->store.n_tiers; i++) {
        struct kv_tier_stats st;
        s->store.tier[i]->ops->stat(s->store.tier[i], &st);
        bool disk = s->store.kind[i] == ACT_TIER_SSD;
        *(disk ? &t->disk_read : s->store.kind[i] == ACT_TIER_NODES ? &t->node_read : &t->host_read) += st.read;
        t->disk_stored += disk ? st.stored : 0;
        t->disk_errors += disk ? st.errors : 0;
    }
}

static void free_tiers(struct ts_sim_store *s)
{
    while (s->store.n_tiers) {
        struct kv_tier *tier = s->store.tier[--s->store.n_tiers];
        tier->ops->free(tier);
    }
    kv_storage_free(s->store.storage[0]);
    s->store.storage[0] = NULL;
}

/* ---- actors ---- */

static void spawn(struct ts_sim_tiers *t, int worker, const struct act_behaviour *b, const void *arg, int64_t restart,
                  struct act_addr *out)
{
    struct cfg_error err;
    const struct act_spawn spec = {.behaviour = b,
                                   .worker = worker,
                                   .arg = arg,
                                   .outbox = 256,
                                   .policy = restart ? ACT_POLICY_RESTART : ACT_POLICY_STOP,
                                   .restart_delay_ns = restart};
    cr_assert_eq(act_runtime_spawn(t->w->rt, &spec, out, &err), 0, "%s", err.msg);
}

/* What a link says to the store of a process of the nodes that it reaches. */
static void say_up(struct ts_sim_tiers *t, int process, int node)
{
    struct act_msg m;
    size_t bytes;
    char name[16];
    const size_t head = sizeof(struct act_node_actor), len = (size_t)snprintf(name, sizeof name, "kv-%d", node);
    struct act_addr to = act_current(t->w->rt, t->store[process].addr), who = act_current(t->w->rt, t->node[node].addr);
    if (act_addr_is_nobody(to) || act_addr_is_nobody(who))
        return;
    cr_assert_eq(act_msg_new(ACT_NODE_UP, to, head + len, &m), 0);
    *act_p_node_up(&m) =
        (struct act_p_node_up){.node = (uint16_t)(FIRST_NODE + node), .peer = (uint16_t)(1 + node), .actors = 1};
    uint8_t *tail = act_msg_tail(&m, &bytes);
    const struct act_node_actor a = {.kind = ACT_NODE_KV, .addr = who};
    memcpy(tail, &a, head);
    memcpy(tail + head, name, len);
    cr_assert_eq(act_runtime_post(t->w->rt, &m), 0);
}

static void say_down(struct ts_sim_tiers *t, int process, int node)
{
    struct act_msg m = act_msg_make(ACT_NODE_DOWN, act_current(t->w->rt, t->store[process].addr));
    *act_p_node_down(&m) = (struct act_p_node_down){
        .node = (uint16_t)(FIRST_NODE + node), .peer = (uint16_t)(1 + node), .reason = -ECONNRESET};
    if (!act_addr_is_nobody(m.dst))
        cr_assert_eq(act_runtime_post(t->w->rt, &m), 0);
}

static void all_up(void *ctx)
{
    struct ts_sim_tiers *t = ctx;
    for (int p = 0; p < processes(t); p++)
        for (int k = 0; k < t->nodes; k++)
            say_up(t, p, k);
}

static void make_node(struct ts_sim_tiers *t, struct ts_sim_keeper *k)
{
    k->store =
        (struct act_store){.layout = t->layout, .clock = t->clock, .tier = {new_host(t, t->node_blocks)}, .n_tiers = 1};
    k->stats = (struct act_kv_node_stats){.free = POOL};
}

static void link_node(struct ts_sim_tiers *t, int node, const struct act_sim_fault *f)
{
    for (int p = 0; p < processes(t); p++) {
        act_sim_link(t->w->sim, t->w->rt, t->store[p].worker, t->node[node].worker, f);
        act_sim_link(t->w->sim, t->w->rt, t->node[node].worker, t->store[p].worker, f);
    }
}

static void spawn_node(struct ts_sim_tiers *t, int i)
{
    struct ts_sim_keeper *k = &t->node[i];
    k->t = t;
    k->number = i;
    k->worker = ts_world_worker(t->w, processes(t) + i);
    k->buffer = aligned_alloc(KV_PAGE, POOL * t->layout.block_bytes);
    cr_assert_not_null(k->buffer);
    make_node(t, k);
    k->arg = (struct act_kv_node_arg){.layout = t->layout,
                                      .store = &k->store_addr,
                                      .buffer = k->buffer,
                                      .buffers = POOL,
                                      .store_bytes = POOL * t->layout.block_bytes,
                                      .patience = 200 * MS,
                                      .stats = &k->stats};
    spawn(t, k->worker, &act_tier_store_behaviour, &k->store, t->node_restart_ns, &k->store_addr);
    spawn(t, k->worker, &act_kv_node_behaviour, &k->arg, t->node_restart_ns, &k->addr);
    link_node(t, i, &t->link);
}

static void before_tiers(struct ts_world *w, void *ctx)
{
    struct ts_sim_tiers *t = ctx;
    for (int p = 0; p < processes(t); p++) {
        struct ts_sim_store *s = &t->store[p];
        struct act_engine *e = ts_world_engine(w, (enum ts_process)p);
        s->worker = ts_world_worker(w, p);
        s->disk = t->disk_blocks ? kv_disk_new((uint64_t)p + 1) : NULL;
        make_tiers(t, s);
        spawn(t, s->worker, &act_tier_store_behaviour, &s->store, w->restart_ns, &s->addr);
        e->store = s->addr;
        e->store_layout = t->layout;
        e->store_pages = w->e.store_pages;
        e->read_timeout_ns = w->e.read_timeout_ns;
    }
    for (int i = 0; i < t->nodes; i++)
        spawn_node(t, i);
    all_up(t);
}

int ts_sim_tiers_workers(const struct ts_sim_tiers *t)
{
    return processes(t) + t->nodes;
}

void ts_sim_tiers_open(struct ts_sim_tiers *t, struct ts_world *w)
{
    size_t bytes[MDL_MAX_SOURCES];
    struct cfg_error err;
    *t = (struct ts_sim_tiers){.w = w, .clock = {world_ns, world_s, w}};
    for (int i = 0; i < w->m->cfg->n_kv_sources; i++)
        bytes[i] = w->e.layout.source[i].bytes;
    cr_assert_eq(kv_layout_init(KV_FORMAT_ROWS, TS_WORLD_BLOCK, bytes, w->m->cfg->n_kv_sources, &t->layout, &err), 0);
    w->e.store_pages = 8;
    w->e.read_timeout_ns = 500 * MS;
    w->before_tiers = before_tiers;
    w->tiers_ctx = t;
}

/* ---- what happens ---- */

void ts_sim_tiers_end_process(struct ts_sim_tiers *t, enum ts_process p)
{
    struct ts_sim_store *s = &t->store[p];
    if (s->disk)
        kv_disk_hold(s->disk, KV_IO_READ, NULL, false);
    act_sim_end(t->w->rt, s->worker, true);
    sum_up(t, s);
    free_tiers(s);
    if (s->disk)
        kv_disk_crash(s->disk, KV_CRASH_KILL);
    make_tiers(t, s);
    s->addr = ts_world_next_life(s->addr);
    ts_world_engine(t->w, p)->store = s->addr;
    cr_assert_eq(act_sim_at(t->w->sim, act_sim_now(t->w->sim) + t->w->restart_ns + MS, all_up, t), 0);
}

void ts_sim_tiers_end_node(struct ts_sim_tiers *t, int node)
{
    struct ts_sim_keeper *k = &t->node[node];
    act_sim_end(t->w->rt, k->worker, true);
    k->store.tier[0]->ops->free(k->store.tier[0]);
    make_node(t, k);
    k->store_addr = ts_world_next_life(k->store_addr);
    for (int p = 0; p < processes(t); p++)
        say_down(t, p, node);
    cr_assert_eq(act_sim_at(t->w->sim, act_sim_now(t->w->sim) + t->node_restart_ns + MS, all_up, t), 0);
}

void ts_sim_tiers_silence(struct ts_sim_tiers *t, int node, bool silent)
{
    const struct act_sim_fault nothing = {.lose = 1000000};
    link_node(t, node, silent ? &nothing : &t->link);
}

/* ---- the end ---- */

void ts_sim_tiers_check(struct ts_sim_tiers *t, int seed)
{
    for (int p = 0; p < processes(t); p++) {
        const struct ts_sim_store *s = &t->store[p];
        for (int i = 0; i < s->store.n_tiers; i++) {
            struct kv_tier_stats st;
            s->store.tier[i]->ops->stat(s->store.tier[i], &st);
            cr_assert_eq(st.queue, 0, "seed %d: %d blocks are under way at tier %d of process %d", seed, st.queue, i,
                         p);
        }
        if (s->store.storage[0]) {
            struct kv_storage_stats io;
            s->store.storage[0]->ops->stat(s->store.storage[0], &io);
            cr_assert_eq(io.in_flight, 0, "seed %d: %d requests are at the disk of process %d", seed, io.in_flight, p);
        }
        sum_up(t, s);
    }
    for (int i = 0; i < t->nodes; i++) {
        const struct act_kv_node_stats *s = &t->node[i].stats;
        cr_assert_eq(s->readings + s->waiting + s->keepings + s->findings, 0, "seed %d, kv node %d: %d %d %d %d", seed,
                     i, s->readings, s->waiting, s->keepings, s->findings);
        cr_assert(s->free == POOL && !s->keeping_bytes, "seed %d, kv node %d: %d places of %d, %zu bytes", seed, i,
                  s->free, POOL, s->keeping_bytes);
    }
}

void ts_sim_tiers_close(struct ts_sim_tiers *t)
{
    for (int p = 0; p < processes(t); p++)
        if (t->store[p].disk)
            kv_disk_hold(t->store[p].disk, KV_IO_READ, NULL, false);
    act_sim_free(t->w->sim);
    t->w->sim = NULL;
    for (int p = 0; p < processes(t); p++) {
        free_tiers(&t->store[p]);
        kv_disk_free(t->store[p].disk);
    }
    for (int i = 0; i < t->nodes; i++) {
        t->node[i].store.tier[0]->ops->free(t->node[i].store.tier[0]);
        free(t->node[i].buffer);
    }
}
