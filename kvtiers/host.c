#include "kvtiers/host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvtiers/memory.h"

enum { NONE = -1, AGE_SLOTS = 4096, SWEEP_SLOTS = 512 };
#define NS_PER_S INT64_C(1000000000)
#define PINNED 1e300 /* worth of a block that cannot go */

struct slot {
    bool used;
    int pins;
    struct kv_key key;
    struct kv_block_info info;
    int64_t stored_s;
    double worth;  /* see touch */
    int64_t order; /* among those of one worth */
    uint32_t uses;
    int chain; /* next in the bucket */
    int at;    /* place in the heap */
    uint64_t sum[KV_SOURCES_MAX];
};

struct host {
    struct kv_tier base;
    struct kv_host_params p;
    uint8_t *memory;
    size_t memory_len;
    int n_slots, n_buckets, n_free;
    struct slot *slot;
    int *bucket, *heap, *free_slot; /* heap of used slots, the least worth first */
    int n_heap;
    uint32_t touches;
    double floor;               /* worth of the last evicted block: what is used from now on is worth more */
    int age_at;                 /* next slot that the search for the oldest block looks at */
    int64_t age_best, oldest_s; /* second of the oldest block so far, and of the last whole search; 0: none */
    int sweep_at;               /* next slot that is looked at for its age */
    struct kv_tier_stats stats;
};

/* ---- table ---- */

static int bucket_of(const struct host *h, const struct kv_key *key)
{
    uint32_t v;
    memcpy(&v, key->b, sizeof v);
    return (int)(v & (uint32_t)(h->n_buckets - 1));
}

static int find(const struct host *h, const struct kv_key *key)
{
    int i = h->bucket[bucket_of(h, key)];
    while (i != NONE && memcmp(&h->slot[i].key, key, sizeof *key))
        i = h->slot[i].chain;
    return i;
}

/* ---- heap by worth ---- */

static void place(struct host *h, int at, int slot)
{
    h->heap[at] = slot;
    h->slot[slot].at = at;
}

static bool goes_before(const struct slot *a, const struct slot *b)
{
    return a->worth < b->worth || (a->worth == b->worth && a->order < b->order);
}

static const struct slot *slot_at(const struct host *h, int at)
{
    return &h->slot[h->heap[at]];
}

static void sift(struct host *h, int at)
{
    int me = h->heap[at];
    const struct slot *s = &h->slot[me];
    while (at && goes_before(s, slot_at(h, (at - 1) / 2))) {
        place(h, at, h->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        int kid = 2 * at + 1;
        if (kid + 1 < h->n_heap && goes_before(slot_at(h, kid + 1), slot_at(h, kid)))
            kid++;
        if (kid >= h->n_heap || !goes_before(slot_at(h, kid), s))
            break;
        place(h, at, h->heap[kid]);
        at = kid;
    }
    place(h, at, me);
}

/* All blocks have one size, so what a block is worth keeping for is how often it was used, above the floor that rises
 * with every eviction: a block used twice long ago goes before one used once just now. Of those of one worth the ones
 * of an earlier second go first, and of these the later ones: they are the end of a prefix, which is of use without it.
 */
static void touch(struct host *h, int i)
{
    struct slot *s = &h->slot[i];
    s->worth = s->pins ? PINNED : h->floor + 1 + (s->uses < 8 ? s->uses : 8);
    s->order = (h->p.clock.now(h->p.clock.ctx) / NS_PER_S + 1) << 32;
    s->order -= ++h->touches;
    sift(h, s->at);
}

static void slot_remove(struct host *h, int i)
{
    struct slot *s = &h->slot[i];
    int *at = &h->bucket[bucket_of(h, &s->key)];
    while (*at != i)
        at = &h->slot[*at].chain;
    *at = s->chain;
    int hole = s->at, last = h->heap[--h->n_heap];
    if (hole < h->n_heap) {
        place(h, hole, last);
        sift(h, hole);
    }
    s->used = false;
    h->free_slot[h->n_free++] = i;
    h->stats.blocks--;
    h->stats.bytes -= h->p.layout.block_bytes;
}

static int slot_new(struct host *h)
{
    if (!h->n_free && h->n_heap && !h->slot[h->heap[0]].pins) {
        int i = h->heap[0];
        h->floor = h->slot[i].worth;
        slot_remove(h, i);
        h->stats.evicted++;
    }
    return h->n_free ? h->free_slot[--h->n_free] : NONE;
}

static bool expired(const struct host *h, const struct slot *s)
{
    return h->p.ttl_s && h->p.clock.wall(h->p.clock.ctx) - s->stored_s > h->p.ttl_s;
}

/* Frees the slot if its block is too old. */
static bool expire(struct host *h, int i)
{
    if (!expired(h, &h->slot[i]) || h->slot[i].pins)
        return false;
    slot_remove(h, i);
    h->stats.expired++;
    return true;
}

static int find_live(struct host *h, const struct kv_key *key)
{
    int i = find(h, key);
    return i != NONE && expire(h, i) ? NONE : i;
}

static uint8_t *bytes_of(const struct host *h, int i)
{
    return h->memory + (size_t)i * h->p.layout.block_bytes;
}

/* ---- verbs ---- */

static void host_lookup(struct kv_tier *t, struct kv_tier_op *op)
{
    struct host *h = (struct host *)t;
    int n = 0, i;
    while (n < op->n && (i = find_live(h, &op->block[n].key)) != NONE)
        op->block[n++].info = h->slot[i].info;
    h->stats.lookups += (uint64_t)op->n;
    h->stats.found += (uint64_t)n;
    kv_op_finish(op, n, 0);
}

static int read_extent(struct host *h, int i, int source, const struct kv_tier_block *b)
{
    const struct kv_layout *l = &h->p.layout;
    const struct slot *s = &h->slot[i];
    uint8_t *to = b->bytes + l->offset[source];
    memcpy(to, bytes_of(h, i) + l->offset[source], l->bytes[source]);
    if (!h->p.verify || s->sum[source] == kv_extent_sum(&b->key, source, 0, to, l->bytes[source]))
        return 0;
    h->stats.bad++;
    return -EBADMSG;
}

static void host_read(struct kv_tier *t, struct kv_tier_op *op)
{
    struct host *h = (struct host *)t;
    int64_t began = h->p.clock.now(h->p.clock.ctx);
    int sources = h->p.layout.n_sources, n = op->n;
    if (!n) {
        kv_op_finish(op, 0, 0);
        return;
    }
    kv_op_read_begin(op, sources);
    h->stats.read_ops++;
    for (int s = 0; s < sources; s++)
        for (int b = 0; b < n; b++) {
            int i = find_live(h, &op->block[b].key), status = i == NONE ? -ENOENT : read_extent(h, i, s, &op->block[b]);
            if (!status && s == 0) {
                op->block[b].info = h->slot[i].info;
                h->slot[i].uses++;
                touch(h, i);
                h->stats.read++;
                h->stats.read_bytes += h->p.layout.block_bytes;
            }
            if (status == -EBADMSG && !h->slot[i].pins) {
                slot_remove(h, i);
                h->stats.dropped++;
            }
            if (s == sources - 1 && b == n - 1) /* op may be gone after its last extent */
                h->stats.read_ns += (uint64_t)(h->p.clock.now(h->p.clock.ctx) - began);
            kv_op_read_extent(op, sources, b, s, status);
        }
}

/* The block is here and pinned, or there is no room. */
static bool keep(struct host *h, const struct kv_tier_block *b)
{
    const struct kv_layout *l = &h->p.layout;
    int i = find(h, &b->key);
    if (i != NONE) {
        h->slot[i].stored_s = h->p.clock.wall(h->p.clock.ctx);
        h->slot[i].pins++;
        touch(h, i);
        return true;
    }
    i = slot_new(h);
    if (i == NONE)
        return false;
    struct slot *s = &h->slot[i];
    int *head = &h->bucket[bucket_of(h, &b->key)];
    *s = (struct slot){.used = true,
                       .pins = 1,
                       .key = b->key,
                       .info = b->info,
                       .stored_s = h->p.clock.wall(h->p.clock.ctx),
                       .chain = *head,
                       .at = h->n_heap};
    *head = i;
    h->heap[h->n_heap++] = i;
    memcpy(bytes_of(h, i), b->bytes, l->block_bytes);
    for (int k = 0; h->p.verify && k < l->n_sources; k++)
        s->sum[k] = kv_extent_sum(&b->key, k, 0, bytes_of(h, i) + l->offset[k], l->bytes[k]);
    touch(h, i);
    h->stats.blocks++;
    h->stats.bytes += l->block_bytes;
    h->stats.stored++;
    h->stats.stored_bytes += l->block_bytes;
    return true;
}

static void host_store(struct kv_tier *t, struct kv_tier_op *op)
{
    struct host *h = (struct host *)t;
    int n = 0;
    while (n < op->n && keep(h, &op->block[n])) /* its last blocks do not push out its first ones */
        n++;
    for (int i = 0; i < n; i++)
        kv_host_unpin(t, &op->block[i].key);
    h->stats.refused += (uint64_t)(op->n - n);
    kv_op_finish(op, n, n < op->n ? -ENOSPC : 0);
}

static void host_drop(struct kv_tier *t, struct kv_tier_op *op)
{
    struct host *h = (struct host *)t;
    int n = 0;
    for (int b = 0; b < op->n; b++) {
        int i = find(h, &op->block[b].key);
        if (i != NONE && !h->slot[i].pins) {
            slot_remove(h, i);
            h->stats.dropped++;
            n++;
        }
    }
    kv_op_finish(op, n, 0);
}

static void host_stat(struct kv_tier *t, struct kv_tier_stats *out)
{
    struct host *h = (struct host *)t;
    *out = h->stats;
    /* A part of a large pool per call. */
    for (int i = 0; i < AGE_SLOTS && h->age_at < h->n_slots; i++, h->age_at++) {
        const struct slot *s = &h->slot[h->age_at];
        if (s->used && (!h->age_best || s->stored_s < h->age_best))
            h->age_best = s->stored_s;
    }
    if (h->age_at == h->n_slots) {
        h->oldest_s = h->age_best;
        h->age_best = h->age_at = 0;
    }
    out->oldest_s = h->oldest_s ? h->p.clock.wall(h->p.clock.ctx) - h->oldest_s : 0;
}

/* Blocks too old go though nobody asks for them: some slots a tick, round and round. */
static void host_tick(struct kv_tier *t)
{
    struct host *h = (struct host *)t;
    for (int i = 0; h->p.ttl_s && i < SWEEP_SLOTS && i < h->n_slots; i++) {
        if (h->slot[h->sweep_at].used)
            expire(h, h->sweep_at);
        h->sweep_at = (h->sweep_at + 1) % h->n_slots;
    }
}

static void host_each(struct kv_tier *t,
                      void (*fn)(void *ctx, const struct kv_key *key, const struct kv_block_info *info, int64_t age_s),
                      void *ctx)
{
    struct host *h = (struct host *)t;
    int64_t now = h->p.clock.wall(h->p.clock.ctx);
    for (int i = 0; i < h->n_slots; i++)
        if (h->slot[i].used)
            fn(ctx, &h->slot[i].key, &h->slot[i].info, now - h->slot[i].stored_s);
}

static void host_free(struct kv_tier *t)
{
    struct host *h = (struct host *)t;
    kv_memory_free(h->memory, h->memory_len);
    free(h->slot);
    free(h->bucket);
    free(h->heap);
    free(h->free_slot);
    free(h);
}

static const struct kv_tier_ops host_ops = {
    .name = "host",
    .lookup = host_lookup,
    .read = host_read,
    .store = host_store,
    .drop = host_drop,
    .stat = host_stat,
    .tick = host_tick,
    .each = host_each,
    .free = host_free,
};

int kv_host_new(const struct kv_host_params *params, struct kv_tier **out, struct cfg_error *err)
{
    *out = NULL;
    int64_t slots = params->bytes / (int64_t)params->layout.block_bytes;
    if (slots < 1 || slots > INT32_MAX / 2)
        return cfg_error_set(err, EINVAL, "host tier of %lld bytes: give room for at least one block of %zu bytes",
                             (long long)params->bytes, params->layout.block_bytes);
    struct host *h = calloc(1, sizeof *h);
    if (!h)
        return cfg_error_set(err, ENOMEM, "host tier: out of memory");
    h->base.ops = &host_ops;
    h->p = *params;
    h->n_slots = h->n_free = (int)slots;
    h->n_buckets = 64;
    while (h->n_buckets < 2 * h->n_slots)
        h->n_buckets *= 2;
    h->memory_len = (size_t)slots * params->layout.block_bytes;
    h->memory = kv_memory_new(h->memory_len);
    h->slot = calloc((size_t)slots, sizeof *h->slot);
    h->heap = calloc((size_t)slots, sizeof *h->heap);
    h->free_slot = calloc((size_t)slots, sizeof *h->free_slot);
    h->bucket = malloc((size_t)h->n_buckets * sizeof *h->bucket);
    if (!h->memory || !h->slot || !h->heap || !h->free_slot || !h->bucket) {
        host_free(&h->base);
        return cfg_error_set(err, ENOMEM, "host tier: %zu bytes are not available; lower kv.host", h->memory_len);
    }
    for (int b = 0; b < h->n_buckets; b++)
        h->bucket[b] = NONE;
    for (int i = 0; i < h->n_slots; i++)
        h->free_slot[i] = h->n_slots - 1 - i;
    h->stats.capacity = h->memory_len;
    *out = &h->base;
    return 0;
}

void kv_host_memory(struct kv_tier *t, void **base, size_t *len)
{
    struct host *h = (struct host *)t;
    *base = h->memory;
    *len = h->memory_len;
}

bool kv_host_has(struct kv_tier *t, const struct kv_key *key)
{
    return find_live((struct host *)t, key) != NONE;
}

uint8_t *kv_host_pin(struct kv_tier *t, const struct kv_key *key)
{
    struct host *h = (struct host *)t;
    int i = find(h, key);
    if (i == NONE)
        return NULL;
    h->slot[i].pins++;
    touch(h, i);
    return bytes_of(h, i);
}

void kv_host_unpin(struct kv_tier *t, const struct kv_key *key)
{
    struct host *h = (struct host *)t;
    int i = find(h, key);
    if (i == NONE || !h->slot[i].pins)
        return;
    h->slot[i].pins--;
    touch(h, i);
}
