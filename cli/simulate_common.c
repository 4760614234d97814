/* A tier that every Prefill rank of a simulated deployment reads and writes, below the host tier of each. It keeps
 * which blocks there are, not their bytes, which nobody computes from. A rank's reads follow one another: each takes
 * the profile's time per operation and token. What is written is there at once. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/simulate_common.h"
#include "kvtiers/host.h"

enum { HOST_BLOCKS = 64, FIRST_CAP = 1 << 12 };

struct entry {
    bool used;
    struct kv_key key;
    struct kv_block_info info;
};

struct sim_common {
    struct entry *entry; /* [cap], open addressing by the key, which is a hash */
    size_t n, cap;
};

struct reading {
    struct kv_tier_op *op;
    int64_t due;
};

/* One rank's way to it: a tier, and the storage whose turns end its reads. */
struct sim_way {
    struct kv_tier tier;
    struct kv_storage storage;
    struct sim_common *common;
    const struct sim_profile *p;
    struct act_sim *sim;
    struct kv_layout layout;
    struct reading *reading; /* [n], in order of due */
    int n, cap;
    int64_t free_at;
    uint64_t blocks_read, ops;
    int64_t read_ns;
    struct act_store store;
};

static size_t place_of(const struct sim_common *c, const struct kv_key *key)
{
    uint64_t h;
    memcpy(&h, key->b, sizeof h);
    size_t i = (size_t)h & (c->cap - 1);
    while (c->entry[i].used && memcmp(&c->entry[i].key, key, sizeof *key) != 0)
        i = (i + 1) & (c->cap - 1);
    return i;
}

static bool grow(struct sim_common *c)
{
    struct sim_common more = {.n = c->n, .cap = c->cap ? 2 * c->cap : FIRST_CAP};
    more.entry = calloc(more.cap, sizeof *more.entry);
    for (size_t i = 0; more.entry && i < c->cap; i++)
        if (c->entry[i].used)
            more.entry[place_of(&more, &c->entry[i].key)] = c->entry[i];
    if (!more.entry)
        return false;
    free(c->entry);
    *c = more;
    return true;
}

/* ---- the tier ---- */

static struct sim_way *way_of_tier(struct kv_tier *t)
{
    return (struct sim_way *)(void *)((char *)t - offsetof(struct sim_way, tier));
}

static struct sim_way *way_of_storage(struct kv_storage *s)
{
    return (struct sim_way *)(void *)((char *)s - offsetof(struct sim_way, storage));
}

static void lookup(struct kv_tier *t, struct kv_tier_op *op)
{
    const struct sim_common *c = way_of_tier(t)->common;
    int n = 0;
    for (; n < op->n && c->cap; n++) {
        const struct entry *e = &c->entry[place_of(c, &op->block[n].key)];
        if (!e->used)
            break;
        op->block[n].info = e->info;
    }
    kv_op_finish(op, n, 0);
}

static void store(struct kv_tier *t, struct kv_tier_op *op)
{
    struct sim_common *c = way_of_tier(t)->common;
    int n = 0;
    for (; n < op->n && (2 * (c->n + 1) <= c->cap || grow(c)); n++) {
        struct entry *e = &c->entry[place_of(c, &op->block[n].key)];
        c->n += !e->used;
        *e = (struct entry){true, op->block[n].key, op->block[n].info};
    }
    kv_op_finish(op, n, n < op->n ? -ENOMEM : 0);
}

static void begin_read(struct kv_tier *t, struct kv_tier_op *op)
{
    struct sim_way *w = way_of_tier(t);
    int64_t now = act_sim_now(w->sim), begin = w->free_at > now ? w->free_at : now;
    double us = w->p->common_op_us + w->p->common_token_us * op->n * w->p->block_tokens;
    if (w->n == w->cap) {
        int cap = w->cap ? 2 * w->cap : 16;
        void *more = realloc(w->reading, (size_t)cap * sizeof *w->reading);
        if (!more) {
            kv_op_finish(op, 0, -ENOMEM);
            return;
        }
        w->reading = more;
        w->cap = cap;
    }
    w->free_at = begin + (int64_t)(1e3 * us);
    w->ops++;
    w->blocks_read += (uint64_t)op->n;
    w->read_ns += w->free_at - now;
    kv_op_read_begin(op, w->layout.n_sources);
    w->reading[w->n++] = (struct reading){op, w->free_at};
}

static void drop(struct kv_tier *t, struct kv_tier_op *op)
{
    (void)t;
    kv_op_finish(op, 0, 0);
}

static void stat_tier(struct kv_tier *t, struct kv_tier_stats *out)
{
    const struct sim_way *w = way_of_tier(t);
    *out = (struct kv_tier_stats){.blocks = w->common->n,
                                  .read = w->blocks_read,
                                  .read_bytes = w->blocks_read * w->layout.block_bytes,
                                  .read_ns = (uint64_t)w->read_ns,
                                  .read_ops = w->ops};
}

static void tick(struct kv_tier *t)
{
    (void)t;
}

static const struct kv_tier_ops tier_ops = {"common", lookup, begin_read, store, drop, stat_tier, tick, NULL, NULL};

/* ---- the storage ---- */

static int end_reads(struct kv_storage *s)
{
    struct sim_way *w = way_of_storage(s);
    int64_t now = act_sim_now(w->sim);
    int n = 0;
    while (w->n && w->reading[0].due <= now) {
        struct kv_tier_op *op = w->reading[0].op;
        memmove(w->reading, w->reading + 1, (size_t)--w->n * sizeof *w->reading);
        n++;
        for (int source = 0, blocks = op->n; source < w->layout.n_sources; source++)
            for (int b = 0; b < blocks; b++)
                kv_op_read_extent(op, w->layout.n_sources, b, source, 0); /* the last one ends op */
    }
    return n;
}

/* The simulation ends: no time passes any more. */
static int end_all(struct kv_storage *s, int timeout_ms)
{
    struct sim_way *w = way_of_storage(s);
    (void)timeout_ms;
    for (int i = 0; i < w->n; i++)
        w->reading[i].due = 0;
    return end_reads(s);
}

static int no_descriptor(struct kv_storage *s)
{
    (void)s;
    return -1;
}

static void stat_storage(struct kv_storage *s, struct kv_storage_stats *out)
{
    *out = (struct kv_storage_stats){.in_flight = way_of_storage(s)->n};
}

static const struct kv_storage_ops storage_ops = {
    .name = "common", .poll = end_reads, .wait = end_all, .descriptor = no_descriptor, .stat = stat_storage};

/* ---- making and ending ---- */

static int64_t virtual_ns(void *ctx)
{
    return act_sim_now(ctx);
}

static int64_t virtual_s(void *ctx)
{
    return 1 + act_sim_now(ctx) / 1000000000;
}

struct sim_common *sim_common_new(void)
{
    return calloc(1, sizeof(struct sim_common));
}

void sim_common_free(struct sim_common *c)
{
    if (c)
        free(c->entry);
    free(c);
}

int sim_way_new(struct sim_common *c, const struct sim_profile *p, struct act_sim *sim, const struct act_engine *e,
                struct sim_way **out, struct cfg_error *err)
{
    struct sim_way *w = calloc(1, sizeof *w);
    size_t bytes = e->layout.source[0].bytes;
    *out = NULL;
    if (!w)
        return cfg_error_set(err, ENOMEM, "out of memory");
    *w = (struct sim_way){.tier.ops = &tier_ops, .storage.ops = &storage_ops, .common = c, .p = p, .sim = sim};
    int r = kv_layout_init(KV_FORMAT_ROWS, (uint32_t)p->block_tokens, &bytes, 1, &w->layout, err);
    const struct kv_clock clock = {virtual_ns, virtual_s, sim};
    const struct kv_host_params host = {
        .layout = w->layout, .bytes = HOST_BLOCKS * (int64_t)w->layout.block_bytes, .clock = clock};
    w->store = (struct act_store){.layout = w->layout,
                                  .kind = {ACT_TIER_HOST, ACT_TIER_SHARED},
                                  .n_tiers = 2,
                                  .storage = {&w->storage},
                                  .clock = clock};
    w->store.tier[1] = &w->tier;
    if (!r)
        r = kv_host_new(&host, &w->store.tier[0], err);
    if (r)
        free(w);
    else
        *out = w;
    return r;
}

const struct act_store *sim_way_store(const struct sim_way *w)
{
    return &w->store;
}

void sim_way_free(struct sim_way *w)
{
    if (!w)
        return;
    w->store.tier[0]->ops->free(w->store.tier[0]);
    free(w->reading);
    free(w);
}
