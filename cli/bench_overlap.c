/* `weft bench overlap`: time to the first token of a prompt whose beginning comes from a slow tier, with reading under
 * the computation, without, and with everything computed. The engine's own actors run in this process, in threads, on a
 * tier that delivers each source's rows at a chosen time. */
#include "cli/bench_overlap.h"

#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "actors/decode.h"
#include "actors/engine.h"
#include "actors/expert.h"
#include "actors/prefill.h"
#include "actors/recipe.h"
#include "actors/runtime/runtime.h"
#include "actors/tier_device.h"
#include "actors/tier_store.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "kvtiers/host.h"
#include "model/team.h"

enum { BLOCK = 256, BLOCKS_MAX = 64, ROUNDS_MAX = 25, WORKER_ENGINE = 0, WORKER_TIER = 1 };

static struct {
    const char *model;
    int prompt, rounds, chunk;
} options = {.prompt = 2304, .rounds = 5, .chunk = 256};

/* ---- a tier that takes its time ---- */

enum order {
    IN_TURN,   /* source after source, in proportion to their bytes */
    AT_ONCE,   /* all at the end */
    LATE_FROM, /* those before one at the beginning, that one and the others at the end */
};

struct slow {
    struct kv_tier base;
    struct kv_storage storage; /* its descriptor wakes the worker when rows are due */
    struct kv_layout layout;
    struct kv_tier_block block[BLOCKS_MAX];
    int n, timer;
    double read_s; /* of a whole read, from its beginning */
    enum order order;
    int held;              /* LATE_FROM: the first source that is late */
    struct kv_tier_op *op; /* the one read of a run */
    double began;
    int source;
};

static double now(void)
{
    return 1e-9 * (double)kv_clock_system.now(NULL);
}

static struct slow *of_storage(struct kv_storage *s)
{
    return (struct slow *)(void *)((uint8_t *)s - offsetof(struct slow, storage));
}

static struct kv_tier_block *slow_find(struct slow *t, const struct kv_key *key)
{
    for (int i = 0; i < t->n; i++)
        if (!memcmp(&t->block[i].key, key, sizeof *key))
            return &t->block[i];
    return NULL;
}

/* Share of a read that is over when a source is there. */
static double share(const struct slow *t, int source)
{
    size_t bytes = t->layout.offset[source] + t->layout.bytes[source];
    if (t->order == IN_TURN)
        return (double)bytes / (double)t->layout.block_bytes;
    return t->order == LATE_FROM && source < t->held ? 0 : 1;
}

static double due(const struct slow *t, int source)
{
    return t->began + share(t, source) * t->read_s;
}

static void set_timer(struct slow *t)
{
    double left = due(t, t->source) - now();
    left = left > 1e-6 ? left : 1e-6;
    struct itimerspec at = {.it_value = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)}};
    timerfd_settime(t->timer, 0, &at, NULL);
}

static int slow_poll(struct kv_storage *s)
{
    struct slow *t = of_storage(s);
    const struct kv_layout *l = &t->layout;
    uint64_t count;
    ssize_t r = read(t->timer, &count, sizeof count);
    int done = 0;
    (void)r;
    while (t->op && now() >= due(t, t->source)) {
        struct kv_tier_op *op = t->op;
        int k = t->source++, n = op->n;
        if (t->source == l->n_sources)
            t->op = NULL;
        for (int b = 0; b < n; b++) {
            const struct kv_tier_block *from = slow_find(t, &op->block[b].key);
            memcpy(op->block[b].bytes + l->offset[k], from->bytes + l->offset[k], l->bytes[k]);
            kv_op_read_extent(op, l->n_sources, b, k, 0);
        }
        done++;
    }
    if (t->op)
        set_timer(t);
    return done;
}

static int slow_wait(struct kv_storage *s, int timeout_ms)
{
    (void)timeout_ms;
    return slow_poll(s);
}

static int slow_descriptor(struct kv_storage *s)
{
    return of_storage(s)->timer;
}

static void slow_storage_stat(struct kv_storage *s, struct kv_storage_stats *out)
{
    *out = (struct kv_storage_stats){.in_flight = of_storage(s)->op != NULL};
}

static const struct kv_storage_ops slow_storage_ops = {
    .name = "slow", .poll = slow_poll, .wait = slow_wait, .descriptor = slow_descriptor, .stat = slow_storage_stat};

static void slow_lookup(struct kv_tier *tier, struct kv_tier_op *op)
{
    int n = 0;
    while (n < op->n && slow_find((struct slow *)tier, &op->block[n].key))
        n++;
    kv_op_finish(op, n, 0);
}

static void slow_read(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct slow *t = (struct slow *)tier;
    kv_op_read_begin(op, t->layout.n_sources);
    t->op = op;
    t->source = 0;
    t->began = now();
    set_timer(t);
}

static void slow_store(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct slow *t = (struct slow *)tier;
    for (int i = 0; i < op->n && t->n < BLOCKS_MAX; i++) {
        if (slow_find(t, &op->block[i].key))
            continue;
        struct kv_tier_block *b = &t->block[t->n];
        *b = op->block[i];
        b->bytes = malloc(t->layout.block_bytes);
        if (!b->bytes)
            break;
        memcpy(b->bytes, op->block[i].bytes, t->layout.block_bytes);
        t->n++;
    }
    kv_op_finish(op, op->n, 0);
}

static void slow_drop(struct kv_tier *tier, struct kv_tier_op *op)
{
    (void)tier;
    kv_op_finish(op, 0, 0);
}

static void slow_stat(struct kv_tier *tier, struct kv_tier_stats *out)
{
    (void)tier;
    *out = (struct kv_tier_stats){0};
}

static void slow_tick(struct kv_tier *tier)
{
    (void)tier;
}

static const struct kv_tier_ops slow_ops = {.name = "slow",
                                            .lookup = slow_lookup,
                                            .read = slow_read,
                                            .store = slow_store,
                                            .drop = slow_drop,
                                            .stat = slow_stat,
                                            .tick = slow_tick};

/* ---- a client with one prompt ---- */

struct run {
    struct act_engine *e;
    const int32_t *ids;
    sem_t done;
    double began, first;
    int cached, status;
};

static int client_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct run *r = *(struct run **)state;
    (void)self;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_PREFILLED)
            r->cached = (int)act_p_prefilled(&m[i])->cached;
        if (m[i].type == ACT_FAILED)
            r->status = act_p_failed(&m[i])->status ? act_p_failed(&m[i])->status : -EIO;
        if (m[i].type != ACT_TOKENS && m[i].type != ACT_FAILED)
            continue;
        if (!r->first) {
            r->first = now();
            sem_post(&r->done);
        }
    }
    return 0;
}

static int client_start(struct act_self *self, void *state, const void *arg)
{
    struct run *r = *(struct run **)state = *(struct run *const *)arg;
    int n = options.prompt, chain = 1 + n / BLOCK;
    struct act_msg m;
    size_t bytes;
    if (act_msg_new(ACT_PREFILL, r->e->prefill[0], act_recipe_tail(n, chain, 0, 0), &m))
        return -ENOMEM;
    m.request = 1;
    *act_p_prefill(&m) =
        (struct act_p_prefill){.ids = (uint32_t)n, .blocks = (uint32_t)chain, .decode = r->e->decode[0]};
    *act_b_prefill(&m) = (struct act_b_prefill){.requester = act_self_addr(self),
                                                .max_tokens = 2,
                                                .top_p = 1,
                                                .repetition = 1,
                                                .chain = (uint32_t)chain,
                                                .flags = ACT_RECIPE_IGNORE_EOS};
    uint8_t *at = act_msg_tail(&m, &bytes);
    memcpy(at, r->ids, (size_t)n * sizeof *r->ids);
    struct kv_key *key = (struct kv_key *)(void *)(at + (size_t)n * sizeof *r->ids);
    kv_key_root(&(struct kv_identity){.numerics = "bench", .block_tokens = BLOCK, .format = KV_FORMAT_ROWS}, key);
    for (int b = 0; b + 1 < chain; b++)
        kv_key_extend(&key[b], r->ids + b * BLOCK, BLOCK, &key[b + 1]);
    r->began = now();
    return act_send(self, &m);
}

static const struct act_behaviour client_behaviour = {
    .name = "client", .state_size = sizeof(struct run *), .start = client_start, .receive = client_receive};

/* ---- one run: an engine of its own, so that nothing is in its pages ---- */

struct bench {
    struct mdl_model *m;
    struct act_map *map;
    struct slow slow;
    int32_t *ids;
};

static int spawn(struct act_runtime *rt, const struct act_behaviour *b, int worker, const void *arg,
                 struct act_addr *out, struct cfg_error *err)
{
    const struct act_spawn spec = {.behaviour = b,
                                   .worker = worker,
                                   .arg = arg,
                                   .outbox = 1024,
                                   .run_class = b == &act_prefill_behaviour ? ACT_CLASS_BULK : ACT_CLASS_URGENT};
    return act_runtime_spawn(rt, &spec, out, err);
}

static int make_engine(struct bench *b, struct act_engine *e, struct cfg_error *err)
{
    *e = (struct act_engine){.m = b->m, .vocab = b->m->cfg->vocab_size, .read_timeout_ns = INT64_C(60000000000)};
    e->limits = (struct act_engine_limits){.context = options.prompt + 16,
                                           .streams = 1,
                                           .prefills = 1,
                                           .chunk = options.chunk,
                                           .replay = b->m->cfg->window + 12,
                                           .rollback = 12,
                                           .lease = 1};
    e->plan = (struct act_plan_options){.mode = ACT_PLAN_FIXED};
    mdl_calibration_identity(&e->calibration, b->m->cfg->draft_block);
    e->store_layout = b->slow.layout;
    e->store_pages = BLOCKS_MAX;
    e->experts.n = 1;
    e->experts.map = b->map;
    int r = mdl_kv_layout_init(b->m->cfg, BLOCK, &e->layout, err);
    return r ? r : kv_device_new(5 * (options.prompt / BLOCK + 4), e->layout.block_bytes, 0, &e->device, err);
}

static int run_once(struct bench *b, bool with_tier, double *seconds, int *cached, struct cfg_error *err)
{
    struct act_engine e;
    struct kv_tier *host = NULL;
    struct act_runtime *rt = NULL;
    struct act_store store = {.layout = b->slow.layout, .clock = kv_clock_system};
    struct act_tier_source_arg source = {.storage = {&b->slow.storage}};
    struct act_expert_arg expert = {.m = b->m, .map = b->map};
    struct run run = {.e = &e, .ids = b->ids}, *run_at = &run;
    struct act_config c = {.epoch = 1, .workers = with_tier ? 2 : 1};
    struct act_addr nobody;
    c.worker[WORKER_ENGINE] = (struct act_worker_config){.name = "engine", .kind = ACT_WORKER_ENGINE, .cpu = -1};
    c.worker[WORKER_TIER] = (struct act_worker_config){
        .name = "tier", .kind = ACT_WORKER_TIER, .cpu = -1, .source = &act_source_tier, .source_arg = &source};
    sem_init(&run.done, 0, 0);
    int r = make_engine(b, &e, err);
    if (!r && with_tier) {
        const struct kv_host_params p = {.layout = b->slow.layout,
                                         .bytes = BLOCKS_MAX * (int64_t)b->slow.layout.block_bytes,
                                         .clock = kv_clock_system};
        r = kv_host_new(&p, &host, err);
        store.tier[0] = host;
        store.tier[1] = &b->slow.base;
        store.n_tiers = 2;
        store.storage[0] = &b->slow.storage;
    }
    if (!r)
        r = act_runtime_new(&c, &rt, err);
    if (!r && with_tier)
        r = spawn(rt, &act_tier_store_behaviour, WORKER_TIER, &store, &e.store, err);
    if (!r)
        r = spawn(rt, &act_tier_device_behaviour, WORKER_ENGINE, &e, &e.tier, err);
    if (!r)
        r = spawn(rt, &act_expert_behaviour, WORKER_ENGINE, &expert, &e.experts.shard[0], err);
    if (!r)
        r = spawn(rt, &act_decode_behaviour, WORKER_ENGINE, &e, &e.decode[0], err);
    e.n_decode = e.n_prefill = 1;
    if (!r)
        r = spawn(rt, &act_prefill_behaviour, WORKER_ENGINE, &e, &e.prefill[0], err);
    if (!r)
        r = spawn(rt, &client_behaviour, WORKER_ENGINE, &run_at, &nobody, err);
    if (!r) {
        run.began = now(); /* the prompt was sent when the client was made; work begins now */
        r = act_runtime_start(rt, err);
    }
    if (!r) {
        sem_wait(&run.done);
        /* What a first run computed must reach the tier before the engine ends. */
        double end = now() + 10;
        int blocks = (options.prompt - 1) / BLOCK;
        while (with_tier && __atomic_load_n(&b->slow.n, __ATOMIC_ACQUIRE) < blocks && now() < end)
            usleep(1000);
    }
    act_runtime_free(rt);
    if (host)
        host->ops->free(host);
    kv_device_free(e.device);
    sem_destroy(&run.done);
    if (!r && run.status)
        r = cfg_error_set(err, -run.status, "the prompt failed: %s", strerror(-run.status));
    *seconds = run.first - run.began;
    *cached = run.cached;
    return r;
}

static int by_size(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Median of the rounds. */
static int measure(struct bench *b, bool tier, double read_s, enum order order, double *out, int *cached,
                   struct cfg_error *err)
{
    double v[ROUNDS_MAX];
    int r = 0;
    b->slow.read_s = read_s;
    b->slow.order = order;
    for (int k = 0; !r && k < options.rounds; k++)
        r = run_once(b, tier, &v[k], cached, err);
    qsort(v, (size_t)options.rounds, sizeof *v, by_size);
    *out = v[options.rounds / 2];
    return r;
}

/* What is left to compute when a source comes last, for each: the rest of the time after it came so late that all that
 * does not need it was over. */
static int measure_rests(struct bench *b, double hit, double rest[KV_SOURCES_MAX], struct cfg_error *err)
{
    int r = 0, cached;
    for (int k = 0; !r && k < b->slow.layout.n_sources; k++) {
        b->slow.held = k;
        r = measure(b, true, 2 * hit, LATE_FROM, &rest[k], &cached, err);
        rest[k] -= 2 * hit;
    }
    return r;
}

/* No order of work ends sooner: all of the computation, and what needs a source behind its arrival. */
static double best(struct bench *b, double read_s, double hit, const double rest[KV_SOURCES_MAX])
{
    double t = hit;
    b->slow.order = IN_TURN;
    for (int k = 0; k < b->slow.layout.n_sources; k++) {
        double at = share(&b->slow, k) * read_s + rest[k];
        t = at > t ? at : t;
    }
    return t;
}

/* The same when sources may come in any order. Of all orders, the one in which what leaves most to compute comes first
 * has the least bound (one machine, jobs with tails). */
static double best_order(const struct bench *b, double read_s, double hit, const double rest[KV_SOURCES_MAX])
{
    const struct kv_layout *l = &b->slow.layout;
    double t = hit, at = 0;
    bool taken[KV_SOURCES_MAX] = {false};
    for (int n = 0; n < l->n_sources; n++) {
        int next = -1;
        for (int k = 0; k < l->n_sources; k++)
            if (!taken[k] && (next < 0 || rest[k] > rest[next]))
                next = k;
        taken[next] = true;
        at += read_s * (double)l->bytes[next] / (double)l->block_bytes;
        t = at + rest[next] > t ? at + rest[next] : t;
    }
    return t;
}

static int measure_all(struct bench *b, struct cfg_error *err)
{
    static const double ratios[] = {0.25, 1, 4};
    double cold, hit, fill, rest[KV_SOURCES_MAX];
    int cached;
    int r = run_once(b, true, &fill, &cached, err); /* fills the tier */
    if (!r)
        r = measure(b, false, 0, IN_TURN, &cold, &cached, err);
    if (!r)
        r = measure(b, true, 0, IN_TURN, &hit, &cached, err);
    if (!r)
        r = measure_rests(b, hit, rest, err);
    if (r)
        return r;
    printf("prompt of %d tokens, %d of them from the tier; %d threads, chunks of %d; medians of %d rounds\n"
           "computed whole %.1f ms; hit that is there at once (the computation C) %.1f ms\n",
           options.prompt, cached, mdl_team_size(b->m->team), options.chunk, options.rounds, cold * 1e3, hit * 1e3);
    printf("left to compute when a source comes last:");
    for (int k = 0; k < b->slow.layout.n_sources; k++)
        printf(" %.1f", rest[k] * 1e3);
    printf(" ms (best: no order of work that waits for these sources whole ends sooner;\n"
           "best order: nor would any, in whichever order sources came)\n\n"
           "%10s %10s %12s %14s %10s %10s %14s %24s %14s\n",
           "read / C", "read ms", "overlap ms", "one by one ms", "whole ms", "best ms", "best order ms",
           "overlap / max(read, C)", "overlap / best");
    for (size_t i = 0; !r && i < sizeof ratios / sizeof *ratios; i++) {
        double read = ratios[i] * hit, overlap = 0, serial = 0, bound = best(b, read, hit, rest),
               any = best_order(b, read, hit, rest);
        r = measure(b, true, read, IN_TURN, &overlap, &cached, err);
        if (!r)
            r = measure(b, true, read, AT_ONCE, &serial, &cached, err);
        if (!r)
            printf("%10.2f %10.1f %12.1f %14.1f %10.1f %10.1f %14.1f %24.2f %14.2f\n", ratios[i], read * 1e3,
                   overlap * 1e3, serial * 1e3, cold * 1e3, bound * 1e3, any * 1e3, overlap / (read > hit ? read : hit),
                   overlap / bound);
    }
    return r;
}

static int open_bench(struct bench *b, struct cfg_error *err)
{
    struct mdl_kv_layout l;
    size_t bytes[MDL_MAX_SOURCES];
    int r = mdl_model_open(options.model, 0, NULL, &b->m, err);
    if (!r)
        r = mdl_kv_layout_init(b->m->cfg, BLOCK, &l, err);
    for (int i = 0; !r && i < b->m->cfg->n_kv_sources; i++)
        bytes[i] = l.source[i].bytes;
    if (!r)
        r = kv_layout_init(KV_FORMAT_ROWS, BLOCK, bytes, b->m->cfg->n_kv_sources, &b->slow.layout, err);
    if (!r)
        r = act_map_even(1, b->m->cfg->n_layers, b->m->cfg->n_experts, 1, &b->map);
    b->ids = r ? NULL : malloc((size_t)options.prompt * sizeof *b->ids);
    if (!r && !b->ids)
        r = cfg_error_set(err, ENOMEM, "out of memory");
    for (int i = 0; !r && i < options.prompt; i++)
        b->ids[i] = (int32_t)((uint32_t)i * 2654435761u >> 8) % b->m->cfg->vocab_size;
    b->slow.base.ops = &slow_ops;
    b->slow.storage.ops = &slow_storage_ops;
    b->slow.timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (!r && b->slow.timer < 0)
        r = cfg_error_set(err, errno, "no timer: %s", strerror(errno));
    return r;
}

int cli_bench_overlap_run(int argc, char **argv)
{
    const struct cli_option table[] = {
        {CLI_TEXT, "model", 'm', &options.model, "DIR", "folder of the model"},
        {CLI_INT, "prompt", 'n', &options.prompt, "N", "tokens of the prompt", 2 * BLOCK, BLOCKS_MAX * BLOCK},
        {CLI_INT, "rounds", 'r', &options.rounds, "N", "repetitions, of which the median counts", 1, ROUNDS_MAX},
        {CLI_INT, "chunk", 'c', &options.chunk, "N", "rows of a prefill step", 16, 4096},
        {.kind = CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "bench overlap -m DIR [OPTIONS]",
        .intro =
            "Measures the time to the first token of a prompt of which all but the last blocks come from a tier that\n"
            "takes a quarter of, as long as, and four times as long as the computation that is left: with reading\n"
            "under the computation (overlap), with the computation behind the reading (one by one), and computed\n"
            "whole.",
        .options = table};
    static struct bench b;
    struct cfg_error err = {{0}};
    int r = cli_options_parse(&usage, argc, argv, NULL);
    if (r != CLI_GO_ON)
        return r;
    if (!options.model)
        return cli_error(CLI_USAGE, "name a model with -m DIR");
    r = open_bench(&b, &err);
    if (!r)
        r = measure_all(&b, &err);
    for (int i = 0; i < b.slow.n; i++)
        free(b.slow.block[i].bytes);
    if (b.slow.timer > 0)
        close(b.slow.timer);
    free(b.ids);
    act_map_free(b.map);
    mdl_model_close(b.m);
    return r ? cli_error(CLI_FAILED, "%s", err.msg[0] ? err.msg : strerror(-r)) : CLI_OK;
}
