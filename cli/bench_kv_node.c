#include "cli/bench_kv_node.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "actors/kv_node.h"
#include "actors/link.h"
#include "actors/runtime/runtime.h"
#include "actors/tier_nodes.h"
#include "actors/tier_store.h"
#include "cli/bench_kv.h"
#include "config/config.h"
#include "kvtiers/host.h"
#include "kvtiers/memory.h"
#include "transport/tcp.h"

enum {
    WORKER_IO,
    WORKER_TIER,
    WORKER_READER,
    WORKERS,
    OUTBOX = 1024,
    JOIN_TRIES = 1000,
    JOIN_US = 10000,
    PASS_S = 120
};

#define PATIENCE_NS INT64_C(30000000000) /* nobody is left out here because the machine is busy */

/* ---- who reads: so many runs, so many at a time, of the store of its node ---- */

struct reads {
    const struct bench_kv_node_arg *arg;
    const struct act_addr *store;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done; /* under lock, as are the next two */
    int status;
    int64_t took_ns;
};

struct reader {
    struct reads *r;
    int next, end, busy, status;
    int64_t began;
};

static int reader_start(struct act_self *self, void *state, const void *arg)
{
    (void)self;
    ((struct reader *)state)->r = (struct reads *)(uintptr_t)arg;
    return 0;
}

/* Run number `next` into the memory of that slot. */
static int begin_read(struct act_self *self, struct reader *s, int slot)
{
    const struct bench_kv_node_arg *a = s->r->arg;
    struct act_msg m;
    size_t bytes;
    int r = act_msg_new(ACT_TIER_READ, *s->r->store, (size_t)a->run * sizeof(struct act_tier_place), &m);
    if (r)
        return r;
    struct act_tier_place *p = act_msg_tail(&m, &bytes);
    for (int i = 0; i < a->run; i++)
        p[i] = (struct act_tier_place){
            .key = a->key[a->order[s->next] * a->run + i],
            .address = (uint64_t)(uintptr_t)(a->memory + (size_t)(slot * a->run + i) * a->layout->block_bytes)};
    *act_p_tier_read(&m) = (struct act_p_tier_read){.blocks = (uint32_t)a->run, .load = (uint32_t)slot};
    r = act_request(self, &m);
    if (r)
        act_msg_drop(&m);
    s->next++;
    s->busy += !r;
    return r;
}

static void go_on(struct act_self *self, struct reader *s, int slot)
{
    if (!s->status && s->next < s->end)
        s->status = begin_read(self, s, slot);
    if (s->busy)
        return;
    pthread_mutex_lock(&s->r->lock);
    s->r->done = true;
    s->r->status = s->status;
    s->r->took_ns = act_now(self) - s->began;
    pthread_cond_signal(&s->r->changed);
    pthread_mutex_unlock(&s->r->lock);
}

static int reader_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct reader *s = state;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_PING) {
            *s = (struct reader){.r = s->r, .end = (int)act_p_ping(&m[i])->a, .began = act_now(self)};
            int ops = (int)act_p_ping(&m[i])->b;
            for (int slot = 0; slot < ops && s->next < s->end && !s->status; slot++)
                s->status = begin_read(self, s, slot);
            if (s->status)
                go_on(self, s, 0);
        } else if (m[i].type == ACT_TIER_DONE) {
            s->busy--;
            if (act_p_tier_done(&m[i])->blocks < (uint32_t)s->r->arg->run)
                s->status = act_p_tier_done(&m[i])->status ? act_p_tier_done(&m[i])->status : -EIO;
            go_on(self, s, (int)act_p_tier_done(&m[i])->load);
        } else if (m[i].type == ACT_UNDELIVERABLE) {
            s->busy--;
            s->status = -EIO;
            go_on(self, s, 0);
        }
    }
    return 0;
}

static const struct act_behaviour reader_behaviour = {
    .name = "reader", .state_size = sizeof(struct reader), .start = reader_start, .receive = reader_receive};

/* The first `runs` runs of the order. Seconds, or a negative errno. */
static double read_runs(struct act_runtime *rt, struct act_addr reader, struct reads *r, int runs, int ops)
{
    struct act_msg m = act_msg_make(ACT_PING, reader);
    struct timespec until;
    *act_p_ping(&m) = (struct act_p_ping){.a = (uint64_t)runs, .b = (uint64_t)ops};
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PASS_S;
    pthread_mutex_lock(&r->lock);
    r->done = false;
    int e = act_runtime_post(rt, &m);
    while (!e && !r->done)
        e = -pthread_cond_timedwait(&r->changed, &r->lock, &until);
    e = r->done ? r->status : e;
    double took = 1e-9 * (double)r->took_ns;
    pthread_mutex_unlock(&r->lock);
    return e ? e : took;
}

/* ---- a node ---- */

struct side {
    struct act_runtime *rt;
    struct act_store store;
    struct act_tier_source_arg source;
    struct act_addr store_addr, kv_addr, link_addr, reader_addr;
    struct act_link_arg link;
    struct act_link_peer peer;
    struct cfg_error link_error;
    struct act_kv_node_arg kv;
    struct kv_tier *host; /* its own */
    uint8_t *slots;
    struct reads reads;
};

enum { READER = 1, KEEPER = 2, SLOTS_BYTES = 64 << 20 };
static const char *const names[] = {[READER] = "reader", [KEEPER] = "keeper"};

static int spawn(struct side *s, const struct act_behaviour *behaviour, int worker, const void *arg, int outbox,
                 struct act_addr *out, struct cfg_error *err)
{
    const struct act_spawn spec = {
        .behaviour = behaviour, .worker = worker, .arg = arg, .batch = 256, .outbox = outbox};
    return act_runtime_spawn(s->rt, &spec, out, err);
}

/* The runtime with its link, which listens if listen is not empty. */
static int open_side(struct side *s, const struct bench_kv_node_arg *a, int number, const char *address,
                     struct cfg_error *err)
{
    static const enum act_worker_kind kinds[WORKERS] = {ACT_WORKER_IO, ACT_WORKER_TIER, ACT_WORKER_ENGINE};
    static const char *const workers[WORKERS] = {"io", "tier", "reader"};
    struct act_config c = {
        .node = (uint16_t)number, .epoch = 1, .workers = WORKERS, .lane_slots = 4096, .reply_slots = 4096};
    s->store.layout = *a->layout;
    s->store.clock = kv_clock_system;
    s->source.storage[0] = s->store.storage[0];
    for (int i = 0; i < WORKERS; i++) {
        c.worker[i] = (struct act_worker_config){.kind = kinds[i], .cpu = -1};
        snprintf(c.worker[i].name, sizeof c.worker[i].name, "%s", workers[i]);
    }
    c.worker[WORKER_TIER].source = &act_source_tier;
    c.worker[WORKER_TIER].source_arg = &s->source;
    int r = act_runtime_new(&c, &s->rt, err), other = READER + KEEPER - number;
    if (r)
        return r;
    struct act_link_arg *l = &s->link;
    l->net.ops = &tp_tcp;
    l->net.self = (struct tp_hello){.kind = TP_KIND_NODE,
                                    .number = (uint16_t)number,
                                    .epoch = 1,
                                    .roles = number == KEEPER ? CFG_ROLE_KV : CFG_ROLE_PREFILL,
                                    .kv_format = a->layout->format,
                                    .block_tokens = a->layout->block_tokens,
                                    .numerics = "bench"};
    snprintf(l->net.self.name, sizeof l->net.self.name, "%s", names[number]);
    l->net.handshake_ns = l->net.silence_ns = PATIENCE_NS;
    snprintf(s->peer.name, sizeof s->peer.name, "%s", names[other]);
    s->peer.number = (uint16_t)other;
    snprintf(s->peer.address, sizeof s->peer.address, "%s", address);
    l->peer = &s->peer;
    l->n_peers = 1;
    l->start_error = &s->link_error;
    if (number == KEEPER)
        snprintf(l->listen, sizeof l->listen, "127.0.0.1:0");
    return 0;
}

static int spawn_link(struct side *s, struct cfg_error *err)
{
    int r = spawn(s, &act_link_behaviour, WORKER_IO, &s->link, 1 << 16, &s->link_addr, err);
    if (r && s->link_error.msg[0])
        *err = s->link_error;
    return r;
}

/* The store, and the actor that reads from it. */
static int spawn_store(struct side *s, const struct bench_kv_node_arg *a, struct cfg_error *err)
{
    int r = spawn(s, &act_tier_store_behaviour, WORKER_TIER, &s->store, 4096, &s->store_addr, err);
    s->reads.arg = a;
    s->reads.store = &s->store_addr;
    pthread_mutex_init(&s->reads.lock, NULL);
    pthread_cond_init(&s->reads.changed, NULL);
    return r ? r : spawn(s, &reader_behaviour, WORKER_READER, &s->reads, OUTBOX, &s->reader_addr, err);
}

static int empty_host(struct side *s, struct cfg_error *err)
{
    const struct kv_host_params p = {
        .layout = s->store.layout, .bytes = (int64_t)s->store.layout.block_bytes, .clock = kv_clock_system};
    int r = kv_host_new(&p, &s->host, err);
    s->store.tier[0] = s->host;
    s->store.kind[0] = ACT_TIER_HOST;
    s->store.n_tiers = !r;
    return r;
}

static int open_keeper(struct side *s, const struct bench_kv_node_arg *a, struct cfg_error *err)
{
    s->store.storage[0] = a->storage;
    int r = open_side(s, a, KEEPER, "127.0.0.1:1", err);
    if (!r && a->durable)
        r = empty_host(s, err);
    if (r)
        return r;
    s->store.kind[s->store.n_tiers] = a->durable ? ACT_TIER_SSD : ACT_TIER_HOST;
    s->store.tier[s->store.n_tiers++] = a->tier;
    size_t bytes = BENCH_KV_NODE_BLOCKS * a->layout->block_bytes;
    s->link.window[s->link.n_windows++] =
        (struct act_link_window){.id = ACT_WINDOW_POOL, .base = a->pool, .size = bytes};
    r = spawn_link(s, err);
    if (!r)
        r = spawn_store(s, a, err);
    s->kv = (struct act_kv_node_arg){.layout = *a->layout,
                                     .store = &s->store_addr,
                                     .buffer = a->pool,
                                     .buffers = BENCH_KV_NODE_BLOCKS,
                                     .window = ACT_WINDOW_POOL,
                                     .link = &s->link_addr,
                                     .store_bytes = bytes,
                                     .patience = PATIENCE_NS};
    if (!r)
        r = spawn(s, &act_kv_node_behaviour, WORKER_TIER, &s->kv, 4096, &s->kv_addr, err);
    s->link.own[s->link.n_own++] = (struct act_node_actor){.kind = ACT_NODE_KV, .addr = s->kv_addr};
    return r ? r : act_runtime_start(s->rt, err);
}

static int open_reader(struct side *s, const struct bench_kv_node_arg *a, const char *address, struct cfg_error *err)
{
    int r = open_side(s, a, READER, address, err);
    if (!r)
        r = empty_host(s, err);
    s->slots = r ? NULL : kv_memory_new(SLOTS_BYTES);
    if (r || !s->slots)
        return r ? r : cfg_error_set(err, ENOMEM, "out of memory");
    struct act_nodes_arg n = {.layout = *a->layout,
                              .node = {{.number = KEEPER, .name = "keeper"}},
                              .n = 1,
                              .link = &s->link_addr,
                              .find_ns = PATIENCE_NS,
                              .quiet_ns = PATIENCE_NS,
                              .store_bytes = a->layout->block_bytes,
                              .window = s->slots,
                              .window_bytes = SLOTS_BYTES,
                              .window_id = ACT_WINDOW_SLOTS};
    r = act_nodes_new(&n, &s->store.nodes, err);
    if (r)
        return r;
    s->store.kind[1] = ACT_TIER_NODES;
    s->store.tier[s->store.n_tiers++] = s->store.nodes;
    s->link.window[s->link.n_windows++] =
        (struct act_link_window){.id = ACT_WINDOW_SLOTS, .base = s->slots, .size = SLOTS_BYTES};
    r = spawn_link(s, err);
    if (!r)
        r = spawn_store(s, a, err);
    return r ? r : act_runtime_start(s->rt, err);
}

static void close_side(struct side *s)
{
    act_runtime_free(s->rt);
    if (s->store.nodes)
        s->store.nodes->ops->free(s->store.nodes);
    if (s->host)
        s->host->ops->free(s->host);
    kv_memory_free(s->slots, SLOTS_BYTES);
}

/* ---- the measurement ---- */

/* Until the reader has found the node: a read before that finds nothing. */
static int join(struct side *reader, struct cfg_error *err)
{
    for (int i = 0; i < JOIN_TRIES; i++) {
        double s = read_runs(reader->rt, reader->reader_addr, &reader->reads, 1, 1);
        if (s >= 0)
            return 0;
        if ((int)s != -ENOENT)
            return cfg_error_set(err, (int)-s, "a read through the kv node failed: %s", strerror((int)-s));
        usleep(JOIN_US);
    }
    return cfg_error_set(err, ETIMEDOUT, "the kv node was not found over 127.0.0.1 within %d s",
                         JOIN_TRIES / (1000000 / JOIN_US));
}

/* All runs, again and again until the time is over. Bytes per second; negative errno. */
static double rate(struct side *s, const struct bench_kv_node_arg *a)
{
    double took = 0;
    int passes = 0;
    while (took < a->seconds) {
        double one = read_runs(s->rt, s->reader_addr, &s->reads, a->runs, a->ops);
        if (one < 0)
            return one;
        took += one;
        passes++;
    }
    return (double)passes * a->runs * a->run * (double)a->layout->block_bytes / took;
}

/* ms of a read that is alone; negative errno. */
static double alone(struct side *s, const struct bench_kv_node_arg *a)
{
    int runs = a->runs < 64 ? a->runs : 64;
    double took = read_runs(s->rt, s->reader_addr, &s->reads, runs, 1);
    return took < 0 ? took : 1e3 * took / runs;
}

enum { LOCAL, REMOTE, RATIO, LOCAL_MS, REMOTE_MS, FIGURES };

static int measure(struct side *keeper, struct side *reader, const struct bench_kv_node_arg *a,
                   struct bench_kv_node *out, struct cfg_error *err)
{
    int n = a->rounds;
    double(*v)[n] = calloc(FIGURES, sizeof *v);
    if (!v)
        return cfg_error_set(err, ENOMEM, "out of memory");
    int r = join(reader, err);
    for (int k = 0; !r && k < n; k++) {
        v[LOCAL][k] = rate(keeper, a);
        v[REMOTE][k] = rate(reader, a);
        v[RATIO][k] = v[REMOTE][k] / v[LOCAL][k];
        v[LOCAL_MS][k] = alone(keeper, a);
        v[REMOTE_MS][k] = alone(reader, a);
        for (int i = 0; i < FIGURES && !r; i++)
            if (v[i][k] < 0 && i != RATIO)
                r = cfg_error_set(err, (int)-v[i][k], "reading %s the kv node failed: %s",
                                  i == LOCAL || i == LOCAL_MS ? "beside" : "through", strerror((int)-v[i][k]));
    }
    if (!r)
        *out = (struct bench_kv_node){cli_bench_kv_median(v[LOCAL], n), cli_bench_kv_median(v[REMOTE], n),
                                      cli_bench_kv_median(v[RATIO], n), cli_bench_kv_median(v[LOCAL_MS], n),
                                      cli_bench_kv_median(v[REMOTE_MS], n)};
    free(v);
    return r;
}

int bench_kv_node(const struct bench_kv_node_arg *arg, struct bench_kv_node *out, struct cfg_error *err)
{
    struct side *side = calloc(2, sizeof *side);
    if (!side)
        return cfg_error_set(err, ENOMEM, "out of memory");
    int r = open_keeper(&side[0], arg, err);
    if (!r)
        r = open_reader(&side[1], arg, side[0].link.bound, err);
    if (!r)
        r = measure(&side[0], &side[1], arg, out, err);
    close_side(&side[1]);
    close_side(&side[0]);
    free(side);
    return r;
}
