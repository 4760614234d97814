/* The engine's actors with tiers below the device, in the simulation: reads under compute, failures, crowds. In exact
 * mode every request must have the tokens of a plain run, wherever its rows came from. */
#include "tests/harness.h"

#include <errno.h>

#include "kvtiers/host.h"
#include "kvtiers/ssd.h"
#include "kvtiers/storage_sim.h"
#include "tests/support/engine_world.h"

#define MS INT64_C(1000000)

/* ---- a tier whose reads the test answers ---- */

enum { SCRIPT_READS = 64 };

/* Keeps every block. Reads are answered source by source at virtual times of the test's choosing. */
struct script {
    struct kv_tier base;
    const struct kv_layout *layout;
    struct ts_world *w;
    struct kv_tier_block block[256]; /* bytes are its own */
    int n;
    int64_t at[KV_SOURCES_MAX]; /* virtual ns; 0: at once */
    int ok;                     /* leading blocks of a read that succeed; -1: all */
    uint64_t byte_ns;           /* what its statistics say a byte costs */
    uint64_t bytes;             /* delivered */
    bool garbage;               /* what does not succeed overwrites its memory all the same */
    int reads;
    struct {
        struct kv_tier_op *op;
        int source;
    } open[SCRIPT_READS];
    int n_open;
};

static struct kv_tier_block *script_find(struct script *t, const struct kv_key *key)
{
    for (int i = 0; i < t->n; i++)
        if (!memcmp(&t->block[i].key, key, sizeof *key))
            return &t->block[i];
    return NULL;
}

static void script_lookup(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct script *t = (struct script *)tier;
    int n = 0;
    while (n < op->n && script_find(t, &op->block[n].key))
        n++;
    kv_op_finish(op, n, 0);
}

static int64_t virtual_now(const struct script *t)
{
    return t->w->sim ? act_sim_now(t->w->sim) : 0;
}

static void script_turn(struct script *t)
{
    const struct kv_layout *l = t->layout;
    for (int i = 0; i < t->n_open; i++) {
        struct kv_tier_op *op = t->open[i].op;
        int n = op->n, source = t->open[i].source;
        while (source < l->n_sources && virtual_now(t) >= t->at[source]) {
            for (int b = 0; b < n; b++) {
                const struct kv_tier_block *from = script_find(t, &op->block[b].key);
                bool good = from && (t->ok < 0 || b < t->ok);
                if (good)
                    memcpy(op->block[b].bytes + l->offset[source], from->bytes + l->offset[source], l->bytes[source]);
                else if (t->garbage)
                    memset(op->block[b].bytes + l->offset[source], 0xab, l->bytes[source]);
                t->bytes += good ? l->bytes[source] : 0;
                kv_op_read_extent(op, l->n_sources, b, source, good ? 0 : -EIO); /* the last one ends op */
            }
            source++;
        }
        t->open[i].source = source;
        if (source == l->n_sources)
            t->open[i--] = t->open[--t->n_open];
    }
}

static void script_read(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct script *t = (struct script *)tier;
    kv_op_read_begin(op, t->layout->n_sources);
    cr_assert_lt(t->n_open, SCRIPT_READS);
    t->open[t->n_open].op = op;
    t->open[t->n_open++].source = 0;
    t->reads++;
    script_turn(t);
}

static void script_store(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct script *t = (struct script *)tier;
    for (int i = 0; i < op->n; i++) {
        if (script_find(t, &op->block[i].key))
            continue;
        cr_assert_lt(t->n, 256);
        t->block[t->n] = op->block[i];
        t->block[t->n].bytes = malloc(t->layout->block_bytes);
        memcpy(t->block[t->n++].bytes, op->block[i].bytes, t->layout->block_bytes);
    }
    kv_op_finish(op, op->n, 0);
}

static void script_drop(struct kv_tier *tier, struct kv_tier_op *op)
{
    (void)tier;
    kv_op_finish(op, 0, 0);
}

static void script_stat(struct kv_tier *tier, struct kv_tier_stats *out)
{
    const struct script *t = (struct script *)tier;
    *out = (struct kv_tier_stats){.read_bytes = t->bytes, .read_ns = t->bytes * t->byte_ns};
}

static void script_tick(struct kv_tier *tier)
{
    script_turn((struct script *)tier);
}

static void script_free(struct kv_tier *tier)
{
    struct script *t = (struct script *)tier;
    for (int i = 0; i < t->n; i++)
        free(t->block[i].bytes);
    t->n = 0;
}

static const struct kv_tier_ops script_ops = {"script",    script_lookup, script_read, script_store, script_drop,
                                              script_stat, script_tick,   NULL,        script_free};

/* ---- a world with tiers ---- */

static int64_t world_ns(void *ctx)
{
    struct ts_world *w = ctx;
    return w->sim ? act_sim_now(w->sim) + 1 : 1;
}

static int64_t world_s(void *ctx)
{
    return 1000000 + world_ns(ctx) / (1000 * MS);
}

struct rig {
    struct ts_world w;
    struct act_store store;
    struct script script;
    struct kv_layout layout;
    struct kv_disk *disk;
};

static void open_world(struct rig *r, int pages, bool exact)
{
    size_t bytes[MDL_MAX_SOURCES];
    struct cfg_error err;
    ts_world_open(&r->w, pages, 2);
    if (exact)
        r->w.e.limits.replay = 0;
    for (int i = 0; i < r->w.m->cfg->n_kv_sources; i++)
        bytes[i] = r->w.e.layout.source[i].bytes;
    cr_assert_eq(kv_layout_init(KV_FORMAT_ROWS, TS_WORLD_BLOCK, bytes, r->w.m->cfg->n_kv_sources, &r->layout, &err), 0);
    r->w.e.store_pages = 8;
    r->w.e.read_timeout_ns = 2000 * MS;
    r->store = (struct act_store){.layout = r->layout, .clock = {world_ns, world_s, &r->w}};
    r->w.store = &r->store;
}

static void add_host(struct rig *r, int blocks)
{
    struct cfg_error err;
    const struct kv_host_params p = {.layout = r->layout,
                                     .bytes = blocks * (int64_t)r->layout.block_bytes,
                                     .clock = {world_ns, world_s, &r->w},
                                     .verify = true};
    cr_assert_eq(kv_host_new(&p, &r->store.tier[0], &err), 0, "%s", err.msg);
    r->store.n_tiers = 1;
}

static void add_script(struct rig *r)
{
    r->script.base.ops = &script_ops;
    r->script.layout = &r->layout;
    r->script.w = &r->w;
    r->store.tier[r->store.n_tiers++] = &r->script.base;
}

static void add_ssd(struct rig *r, int blocks)
{
    struct cfg_error err;
    r->store.storage[0] = kv_storage_sim_new(r->disk);
    const struct kv_ssd_params p = {.storage = r->store.storage[0],
                                    .folder = "disk",
                                    .layout = r->layout,
                                    .bytes = blocks * (int64_t)r->layout.block_bytes,
                                    .direct = true,
                                    .clock = {world_ns, world_s, &r->w}};
    cr_assert_eq(kv_ssd_new(&p, &r->store.tier[r->store.n_tiers++], &err), 0, "%s", err.msg);
}

/* The script's blocks stay for the next world when `keep`. */
static void close_world(struct rig *r, bool keep)
{
    ts_world_check_baseline(&r->w);
    act_sim_free(r->w.sim);
    r->w.sim = NULL;
    while (r->store.n_tiers) {
        struct kv_tier *t = r->store.tier[--r->store.n_tiers];
        if (t != &r->script.base || !keep)
            t->ops->free(t);
    }
    kv_storage_free(r->store.storage[0]);
    r->store.storage[0] = NULL;
    kv_device_free(r->w.e.device);
    act_map_free(r->w.map);
    mdl_model_close(r->w.m);
}

/* One request of 160 tokens: nine blocks, which an exact restart can use. */
static void one_prompt(struct rig *r, int n)
{
    ts_world_requests(&r->w, n, 4);
    for (int i = 0; i < n; i++) {
        r->w.wanted[i].n_prompt = 160;
        r->w.wanted[i].max_new = 8;
        r->w.wanted[i].start = i ? (1000 + 200 * i) * MS : 0;
        for (int k = 0; k < 160; k++)
            r->w.wanted[i].prompt[k] = (k * 31 + 7) % r->w.m->cfg->vocab_size;
    }
}

/* Fills the script from a first world. */
static void prepare(struct rig *r)
{
    memset(r, 0, sizeof *r);
    r->script.ok = -1;
    open_world(r, 64, true);
    add_host(r, 32);
    add_script(r);
    one_prompt(r, 1);
    ts_world_run(&r->w, 1);
    ts_world_check_same(&r->w, 0);
    cr_assert_ge(r->script.n, 9, "%d blocks went down", r->script.n);
    close_world(r, true);
}

/* A second process: the device and the host are empty, the script has the blocks. */
static void second(struct rig *r, int pages)
{
    open_world(r, pages, true);
    add_host(r, 4);
    add_script(r);
}

Test(tiers, blocks_come_back_from_below)
{
    static struct rig r;
    prepare(&r);
    second(&r, 64);
    one_prompt(&r, 1);
    ts_world_run(&r.w, 2);
    ts_world_check_same(&r.w, 0);
    cr_assert_eq(r.w.got[0].cached, 144, "%d", r.w.got[0].cached);
    cr_assert_eq(r.script.reads, 1);
    close_world(&r, false);
}

/* ---- overlap ---- */

struct trace {
    int64_t first[MDL_MAX_LAYERS]; /* virtual time of a layer's first dispatch */
};

static bool note_layers(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                        int *fail)
{
    struct trace *t = w->before_ctx;
    (void)fail;
    if (who->part == TS_PART_EXPERT && m->type == ACT_EXPERT_DISPATCH) {
        int layer = act_p_expert_dispatch(m)->layer;
        if (layer < MDL_MAX_LAYERS && !t->first[layer])
            t->first[layer] = act_now(self);
    }
    return false;
}

/* Each source's rows are held back for a long time: the layers before it have run by then, and it has not. */
Test(tiers, layers_run_while_rows_of_later_ones_are_held_back)
{
    static struct rig r;
    prepare(&r);
    const int sources = r.layout.n_sources;
    for (int held = 0; held < sources; held++) {
        static struct trace t;
        memset(&t, 0, sizeof t);
        second(&r, 64);
        one_prompt(&r, 1);
        r.w.before = note_layers;
        r.w.before_ctx = &t;
        for (int s = 0; s < sources; s++)
            r.script.at[s] = s >= held ? 1000 * MS : 0;
        ts_world_run(&r.w, 3);
        ts_world_check_same(&r.w, 0);
        cr_assert_eq(r.w.got[0].cached, 144);
        int layer = r.w.m->cfg->kv_sources[held];
        cr_assert_gt(layer, 0);
        for (int l = 0; l < layer; l++)
            cr_assert_lt(t.first[l], 500 * MS, "layer %d waited for the rows of layer %d", l, layer);
        cr_assert_ge(t.first[layer], 1000 * MS, "layer %d ran without its rows", layer);
        close_world(&r, true);
        memset(r.script.at, 0, sizeof r.script.at);
    }
    r.script.base.ops->free(&r.script.base);
}

/* A prompt that waits for rows holds up nobody. */
Test(tiers, others_go_on_while_a_prompt_waits_for_rows)
{
    static struct rig r;
    prepare(&r);
    second(&r, 64);
    one_prompt(&r, 2);
    r.w.wanted[1].start = 100 * MS;
    for (int k = 0; k < 160; k++)
        r.w.wanted[1].prompt[k] = (k * 17 + 3) % r.w.m->cfg->vocab_size;
    r.script.at[0] = r.script.at[1] = 1500 * MS;
    ts_world_run(&r.w, 4);
    for (int i = 0; i < 2; i++)
        ts_world_check_same(&r.w, i);
    cr_assert_lt(r.w.got[1].ended, 1000 * MS, "it ended at %d ms", (int)(r.w.got[1].ended / MS));
    cr_assert_ge(r.w.got[0].ended, 1500 * MS);
    cr_assert_eq(r.w.got[0].cached, 144);
    close_world(&r, false);
}

/* ---- failures ---- */

/* Rows 44, 47, 86: what cannot be read is computed; any number of leading blocks may have come. */
Test(tiers, a_failed_read_is_computed)
{
    static struct rig r;
    prepare(&r);
    for (int ok = 0; ok <= 8; ok++) {
        second(&r, 64);
        one_prompt(&r, 2); /* the second one comes when all is over */
        r.script.ok = ok;
        r.script.garbage = true;
        r.w.wanted[1].start = 5000 * MS;
        ts_world_run(&r.w, (uint64_t)ok + 5);
        for (int i = 0; i < 2; i++)
            ts_world_check_same(&r.w, i);
        cr_assert_eq(r.w.got[0].cached, 0, "an exact restart needs more than %d blocks", ok);
        cr_assert_eq(r.w.got[1].cached, 144, "computed blocks are found afterwards");
        close_world(&r, true);
    }
    r.script.base.ops->free(&r.script.base);
}

/* A read that comes after its deadline finds no page of anybody: its bytes must do no harm. */
Test(tiers, a_late_read_writes_into_nobodys_pages)
{
    static struct rig r;
    prepare(&r);
    for (int seed = 0; seed < 4; seed++) {
        second(&r, 64);
        one_prompt(&r, 4);
        r.w.e.read_timeout_ns = 50 * MS;
        r.script.ok = 0;
        r.script.garbage = true;
        r.script.at[0] = 120 * MS;
        r.script.at[1] = (200 + 300 * seed) * MS;
        for (int i = 1; i < 4; i++) { /* others want pages all the while */
            r.w.wanted[i].start = (40 + 30 * i) * MS;
            for (int k = 0; k < 160 && i < 3; k++)
                r.w.wanted[i].prompt[k] = (k * (17 + i) + 3) % r.w.m->cfg->vocab_size;
        }
        r.w.wanted[3].start = 3000 * MS; /* finds what the first one computed */
        r.w.cost[TS_PART_PREFILL] = MS;
        ts_world_run(&r.w, (uint64_t)seed + 1);
        cr_assert_eq(r.w.got[3].cached, 144);
        for (int i = 0; i < 4; i++)
            ts_world_check_same(&r.w, i);
        close_world(&r, true);
    }
    r.script.base.ops->free(&r.script.base);
}

/* A cancelled prompt is gone at once, not when its rows have come; its pages stay out of use until then. */
Test(tiers, a_cancelled_prompt_does_not_wait_for_its_rows)
{
    static struct rig r;
    prepare(&r);
    second(&r, 24);
    one_prompt(&r, 3);
    r.script.ok = 0;
    r.script.garbage = true;
    r.script.at[0] = r.script.at[1] = 900 * MS;
    r.w.wanted[0].cancel = 50 * MS;
    for (int i = 1; i < 3; i++) {
        r.w.wanted[i].start = (60 + 300 * i) * MS;
        for (int k = 0; k < 160; k++)
            r.w.wanted[i].prompt[k] = (k * (17 + i) + 3) % r.w.m->cfg->vocab_size;
    }
    ts_world_run(&r.w, 1);
    for (int i = 1; i < 3; i++)
        ts_world_check_same(&r.w, i);
    cr_assert_lt(r.w.got[1].ended, 900 * MS);
    close_world(&r, false);
}

/* An interrupted prompt keeps what was computed of it. */
Test(tiers, blocks_of_a_cancelled_prompt_are_found)
{
    static struct rig r;
    memset(&r, 0, sizeof r);
    open_world(&r, 64, false);
    add_host(&r, 32);
    one_prompt(&r, 2);
    r.w.cost[TS_PART_PREFILL] = MS;
    r.w.wanted[0].cancel = 100 * MS;
    r.w.wanted[1].start = 2000 * MS;
    ts_world_run(&r.w, 1);
    cr_assert_eq(r.w.got[0].n, 0, "it was cancelled before its first token");
    cr_assert_gt(r.w.got[1].cached, 0);
    cr_assert_lt(r.w.got[1].cached, 144);
    cr_assert_eq(r.w.got[1].terminal, 1);
    close_world(&r, false);
}

/* Two prompts that want the same blocks share one read. */
Test(tiers, one_read_serves_two_prompts)
{
    static struct rig r;
    prepare(&r);
    for (int ok = -1; ok < 3; ok += 3) {
        second(&r, 64);
        one_prompt(&r, 2);
        r.w.wanted[1].start = 10 * MS;
        r.script.ok = ok;
        r.script.reads = 0;
        r.script.at[1] = 500 * MS;
        ts_world_run(&r.w, 6);
        for (int i = 0; i < 2; i++) {
            ts_world_check_same(&r.w, i);
            cr_assert_eq(r.w.got[i].cached, ok < 0 ? 144 : 0);
        }
        cr_assert_eq(r.script.reads, 1, "%d reads", r.script.reads);
        close_world(&r, true);
    }
    r.script.base.ops->free(&r.script.base);
}

/* Row 50: a hit is not cut short because pages are: it waits for them, and is whole then. */
Test(tiers, a_hit_waits_for_its_pages)
{
    static struct rig r;
    prepare(&r);
    second(&r, 18);
    one_prompt(&r, 2);
    r.w.e.limits.lease = 1;
    r.w.wanted[0].max_new = 24;
    for (int k = 0; k < 160; k++)
        r.w.wanted[0].prompt[k] = (k * 17 + 3) % r.w.m->cfg->vocab_size;
    r.w.wanted[1].start = 20 * MS;
    r.w.cost[TS_PART_PREFILL] = r.w.cost[TS_PART_DECODE] = MS;
    ts_world_run(&r.w, 12);
    for (int i = 0; i < 2; i++)
        ts_world_check_same(&r.w, i);
    cr_assert_eq(r.w.got[1].cached, 144, "%d", r.w.got[1].cached);
    cr_assert_gt(r.w.got[1].ended, r.w.got[0].ended);
    close_world(&r, false);
}

static bool kill_store(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                       int *fail)
{
    (void)fail;
    if (who->part == TS_PART_TIER && m->type == *(const enum act_type *)w->before_ctx)
        act_exit(self, w->e.store, -EIO);
    return false;
}

/* Row 57: the tiers below end, before a lookup or between lookup and read: everybody is served from what is left. */
Test(tiers, requests_are_served_when_the_tiers_below_are_gone)
{
    static struct rig r;
    static const enum act_type when[] = {ACT_KV_LOOKUP, ACT_TIER_FOUND};
    prepare(&r);
    for (int i = 0; i < 2; i++) {
        second(&r, 64);
        one_prompt(&r, 3);
        r.w.before = kill_store;
        r.w.before_ctx = (void *)&when[i];
        ts_world_run(&r.w, 13);
        for (int k = 0; k < 3; k++)
            ts_world_check_same(&r.w, k);
        cr_assert_eq(r.w.got[0].cached, 0);
        cr_assert_eq(r.w.got[2].cached, 144, "the pages go on as a cache");
        close_world(&r, true);
    }
    r.script.base.ops->free(&r.script.base);
}

/* A prefix that costs more to read than to compute is computed, by what both were measured to cost. */
Test(tiers, what_is_cheaper_to_compute_is_not_read)
{
    static struct rig r;
    prepare(&r);
    for (int dear = 0; dear < 2; dear++) {
        second(&r, 24); /* small, so that the other prompts push the blocks out of it */
        one_prompt(&r, 5);
        for (int i = 1; i < 4; i++)
            for (int k = 0; k < 160; k++)
                r.w.wanted[i].prompt[k] = (k * (17 + i) + 3) % r.w.m->cfg->vocab_size;
        r.w.cost[TS_PART_PREFILL] = MS; /* tens of milliseconds for a prompt */
        r.script.byte_ns = dear ? 10000 : 1;
        r.script.bytes = 0;
        r.script.reads = 0;
        ts_world_run(&r.w, 9);
        for (int i = 0; i < 5; i++)
            ts_world_check_same(&r.w, i);
        cr_assert_eq(r.w.got[0].cached, 144, "nothing is known yet");
        cr_assert_eq(r.w.got[4].cached, dear ? 0 : 144);
        cr_assert_eq(r.script.reads, dear ? 1 : 2, "%d reads", r.script.reads);
        close_world(&r, true);
    }
    r.script.base.ops->free(&r.script.base);
}

/* ---- crowds ---- */

/* Row 39, 51: 96 clients with few different prompts in tiny pools, on a disk that fails now and then: everybody gets
 * the tokens of a plain run. */
static void crowd(uint64_t seed, bool faults)
{
    static struct rig r;
    enum { CLIENTS = 96 };
    int cached = 0, cancelled = 0;
    memset(&r, 0, sizeof r);
    r.disk = kv_disk_new(seed);
    open_world(&r, 44, true);
    r.w.cost[TS_PART_PREFILL] = MS; /* computing is not for nothing */
    add_host(&r, 4);
    add_ssd(&r, 240);
    ts_world_requests(&r.w, CLIENTS, (unsigned)seed);
    for (int i = 0; i < CLIENTS; i++) {
        struct ts_wanted *q = &r.w.wanted[i];
        int which = i % 5;
        q->n_prompt = 150 + i % 20;
        q->max_new = 1 + i % 6;
        q->start = (i / 4) * 40 * MS;
        for (int k = 0; k < q->n_prompt; k++)
            q->prompt[k] = k < 146 ? (k * (13 + which) + which) % r.w.m->cfg->vocab_size : (k * 7 + i) % 200;
        if (i % 11 == 10)
            q->cancel = q->start + (int64_t)(seed * 7919 + (uint64_t)i * 104729) % (60 * MS);
    }
    if (faults) {
        kv_disk_fail(r.disk, KV_IO_READ, "weft-kv.000", 20, 3, -EIO);
        kv_disk_fail(r.disk, KV_IO_READ, "weft-kv.000", 60, 2, 4096);
        kv_disk_fail(r.disk, KV_IO_WRITE, "weft-kv.000", 50, 1, -ENOSPC);
        kv_disk_fail(r.disk, KV_IO_SYNC, NULL, 9, 1, -EIO);
    }
    ts_world_run(&r.w, seed);
    for (int i = 0; i < CLIENTS; i++) {
        cancelled += r.w.wanted[i].cancel != 0;
        if (r.w.wanted[i].cancel)
            continue;
        ts_world_check_same(&r.w, i);
        cached += r.w.got[i].cached > 0;
    }
    struct kv_tier_stats s;
    r.store.tier[1]->ops->stat(r.store.tier[1], &s);
    cr_assert_gt(cached, CLIENTS / 3, "%d hits", cached);
    cr_assert_gt(s.read, 50u, "nothing was read from the disk");
    cr_assert_eq(s.errors > 0, faults);
    cr_assert_eq(s.bad, 0u);
    close_world(&r, false);
    kv_disk_free(r.disk);
}

Test(tiers, ninety_six_clients_in_tiny_pools, .timeout = 600)
{
    crowd(1, false);
    crowd(2, true);
}
