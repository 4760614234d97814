#include "tests/support/tier_world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvtiers/host.h"
#include "kvtiers/ssd.h"
#include "tests/harness.h"

static struct kv_tier_block *script_find(struct ts_script *t, const struct kv_key *key)
{
    for (int i = 0; i < t->n; i++)
        if (!memcmp(&t->block[i].key, key, sizeof *key))
            return &t->block[i];
    return NULL;
}

static int64_t virtual_now(const struct ts_script *t)
{
    return t->w->sim ? act_sim_now(t->w->sim) : 0;
}

static void script_lookup(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct ts_script *t = (struct ts_script *)tier;
    int n = 0;
    if (virtual_now(t) < t->lookups_at) {
        cr_assert_lt(t->n_lookups, TS_SCRIPT_READS);
        t->lookup[t->n_lookups++] = op;
        return;
    }
    while (n < op->n && script_find(t, &op->block[n].key))
        n++;
    kv_op_finish(op, n, 0);
}

static void script_store(struct kv_tier *tier, struct kv_tier_op *op);

static void script_turn(struct ts_script *t)
{
    const struct kv_layout *l = t->layout;
    while (t->n_stores && virtual_now(t) >= t->stores_at)
        script_store(&t->base, t->store[--t->n_stores]);
    while (t->n_lookups && virtual_now(t) >= t->lookups_at)
        script_lookup(&t->base, t->lookup[--t->n_lookups]);
    for (int i = 0; i < t->n_open; i++) {
        struct kv_tier_op *op = t->open[i].op;
        int n = op->n, source = t->open[i].source;
        while (source < l->n_sources && virtual_now(t) >= t->at[source] && virtual_now(t) >= t->open[i].ready) {
            for (int b = 0; b < n; b++) {
                const struct kv_tier_block *from = script_find(t, &op->block[b].key);
                bool good = from && (t->ok < 0 || b < t->ok) && (!t->ok_of[source] || b < t->ok_of[source]);
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
    struct ts_script *t = (struct ts_script *)tier;
    if (t->refuse) {
        t->refuse--;
        kv_op_finish(op, 0, -EAGAIN);
        return;
    }
    kv_op_read_begin(op, t->layout->n_sources);
    cr_assert_lt(t->n_open, TS_SCRIPT_READS);
    int64_t now = virtual_now(t), bytes = op->n * (int64_t)t->layout->block_bytes;
    t->open[t->n_open].op = op;
    t->open[t->n_open].source = 0;
    t->open[t->n_open++].ready = t->cheap_at && now >= t->cheap_at ? now : now + bytes * (int64_t)t->byte_ns;
    t->reads++;
    script_turn(t);
}

static void script_want(struct kv_tier *tier, struct kv_tier_op *op, int sources)
{
    struct ts_script *t = (struct ts_script *)tier;
    if (kv_op_want(op, sources))
        t->wanted = sources > t->wanted ? sources : t->wanted;
}

static void script_store(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct ts_script *t = (struct ts_script *)tier;
    if (virtual_now(t) < t->stores_at) {
        cr_assert_lt(t->n_stores, TS_SCRIPT_READS);
        t->store[t->n_stores++] = op;
        return;
    }
    t->offered += op->n;
    for (int i = 0; i < op->n; i++) {
        if (script_find(t, &op->block[i].key))
            continue;
        cr_assert_lt(t->n, TS_SCRIPT_BLOCKS);
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
    const struct ts_script *t = (struct ts_script *)tier;
    *out = (struct kv_tier_stats){.read_bytes = t->bytes};
}

static void script_tick(struct kv_tier *tier)
{
    script_turn((struct ts_script *)tier);
}

static void script_free(struct kv_tier *tier)
{
    struct ts_script *t = (struct ts_script *)tier;
    while (t->n_stores)
        kv_op_finish(t->store[--t->n_stores], 0, -ESHUTDOWN);
    for (int i = 0; i < t->n; i++)
        free(t->block[i].bytes);
    t->n = 0;
}

static const struct kv_tier_ops script_ops = {
    .name = "script",
    .lookup = script_lookup,
    .read = script_read,
    .store = script_store,
    .drop = script_drop,
    .stat = script_stat,
    .tick = script_tick,
    .free = script_free,
    .want = script_want,
};

static int64_t world_ns(void *ctx)
{
    struct ts_world *w = ctx;
    return w->sim ? act_sim_now(w->sim) + 1 : 1;
}

static int64_t world_s(void *ctx)
{
    return 1000000 + world_ns(ctx) / (1000 * MS);
}

void ts_tiers_open(struct ts_tiers *r, int pages, bool exact)
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
    r->store = (struct act_store){
        .layout = r->layout, .late_ns = r->w.e.read_timeout_ns / 4, .clock = {world_ns, world_s, &r->w}};
    r->w.store = &r->store;
}

void ts_tiers_host(struct ts_tiers *r, int blocks)
{
    struct cfg_error err;
    const struct kv_host_params p = {.layout = r->layout,
                                     .bytes = blocks * (int64_t)r->layout.block_bytes,
                                     .clock = {world_ns, world_s, &r->w},
                                     .verify = true};
    cr_assert_eq(kv_host_new(&p, &r->store.tier[0], &err), 0, "%s", err.msg);
    r->store.n_tiers = 1;
}

void ts_tiers_script(struct ts_tiers *r)
{
    r->script.base.ops = &script_ops;
    r->script.layout = &r->layout;
    r->script.w = &r->w;
    r->store.tier[r->store.n_tiers++] = &r->script.base;
}

void ts_tiers_ssd(struct ts_tiers *r, int blocks)
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

void ts_tiers_close(struct ts_tiers *r, bool keep)
{
    ts_world_check_baseline(&r->w);
    ts_tiers_end(r, keep);
}

void ts_tiers_end(struct ts_tiers *r, bool keep)
{
    act_sim_free(r->w.sim);
    r->w.sim = NULL;
    while (r->store.n_tiers) {
        struct kv_tier *t = r->store.tier[--r->store.n_tiers];
        if (t != &r->script.base || !keep)
            t->ops->free(t);
    }
    kv_storage_free(r->store.storage[0]);
    r->store.storage[0] = NULL;
    ts_world_free(&r->w);
}

void ts_tiers_prompts(struct ts_tiers *r, int n)
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

void ts_tiers_prepare(struct ts_tiers *r)
{
    memset(r, 0, sizeof *r);
    r->script.ok = -1;
    ts_tiers_open(r, 64, true);
    ts_tiers_host(r, 32);
    ts_tiers_script(r);
    ts_tiers_prompts(r, 1);
    ts_world_run(&r->w, 1);
    ts_world_check_same(&r->w, 0);
    cr_assert_ge(r->script.n, 9, "%d blocks went down", r->script.n);
    ts_tiers_close(r, true);
}

void ts_tiers_second(struct ts_tiers *r, int pages)
{
    ts_tiers_open(r, pages, true);
    ts_tiers_host(r, 4);
    ts_tiers_script(r);
}

void ts_tiers_forget(struct ts_tiers *r)
{
    r->script.base.ops->free(&r->script.base);
}

void ts_tiers_other(struct ts_tiers *r, int i)
{
    for (int k = 0; k < 160; k++)
        r->w.wanted[i].prompt[k] = (k * (17 + i) + 3) % r->w.m->cfg->vocab_size;
}

bool ts_note_layers(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m, int *fail)
{
    struct ts_trace *t = w->before_ctx;
    (void)fail;
    if (who->part == TS_PART_EXPERT && m->type == ACT_EXPERT_DISPATCH) {
        int layer = act_p_expert_dispatch(m)->layer;
        if (layer < MDL_MAX_LAYERS && !t->first[layer])
            t->first[layer] = act_now(self);
    }
    return false;
}
