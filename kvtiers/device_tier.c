/* The device tier as one of the tiers; see device.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvtiers/device.h"

struct device_tier {
    struct kv_tier base;
    struct kv_device *d;
    struct kv_layout layout;
    struct kv_tier_stats stats;
};

static void tier_lookup(struct kv_tier *t, struct kv_tier_op *op)
{
    struct device_tier *v = (struct device_tier *)t;
    int n = 0;
    for (int page; n < op->n && (page = kv_device_find(v->d, &op->block[n].key, &op->block[n].info)) >= 0; n++)
        kv_device_release(v->d, page);
    v->stats.lookups += (uint64_t)op->n;
    v->stats.found += (uint64_t)n;
    kv_op_finish(op, n, 0);
}

static void tier_read(struct kv_tier *t, struct kv_tier_op *op)
{
    struct device_tier *v = (struct device_tier *)t;
    const struct kv_layout *l = &v->layout;
    int n = op->n;
    if (!n) {
        kv_op_finish(op, 0, 0);
        return;
    }
    kv_op_read_begin(op, l->n_sources);
    v->stats.read_ops++;
    for (int s = 0; s < l->n_sources; s++)
        for (int b = 0; b < n; b++) {
            int page = kv_device_find(v->d, &op->block[b].key, &op->block[b].info);
            if (page >= 0) {
                memcpy(op->block[b].bytes + l->offset[s], kv_device_bytes(v->d, page) + l->offset[s], l->bytes[s]);
                kv_device_release(v->d, page);
                v->stats.read_bytes += l->bytes[s];
                v->stats.read += s == 0;
            }
            kv_op_read_extent(op, l->n_sources, b, s, page < 0 ? -ENOENT : 0); /* op may be gone after the last */
        }
}

static void tier_store(struct kv_tier *t, struct kv_tier_op *op)
{
    struct device_tier *v = (struct device_tier *)t;
    struct kv_block_info had;
    int n = 0;
    for (int page; n < op->n; n++) {
        const struct kv_tier_block *b = &op->block[n];
        if ((page = kv_device_find(v->d, &b->key, &had)) >= 0) {
            kv_device_release(v->d, page);
            continue;
        }
        if (kv_device_take(v->d, 1, &page))
            break;
        memcpy(kv_device_bytes(v->d, page), b->bytes, v->layout.block_bytes);
        kv_device_publish(v->d, page, &b->key, &b->info);
        kv_device_release(v->d, page);
        v->stats.stored++;
        v->stats.stored_bytes += v->layout.block_bytes;
    }
    v->stats.refused += (uint64_t)(op->n - n);
    kv_op_finish(op, n, n < op->n ? -ENOSPC : 0);
}

static void tier_drop(struct kv_tier *t, struct kv_tier_op *op)
{
    struct device_tier *v = (struct device_tier *)t;
    struct kv_block_info had;
    int n = 0;
    for (int i = 0; i < op->n; i++) {
        int page = kv_device_find(v->d, &op->block[i].key, &had);
        if (page < 0)
            continue;
        kv_device_drop(v->d, &op->block[i].key);
        kv_device_release(v->d, page);
        n++;
    }
    v->stats.dropped += (uint64_t)n;
    kv_op_finish(op, n, 0);
}

static void tier_stat(struct kv_tier *t, struct kv_tier_stats *out)
{
    struct device_tier *v = (struct device_tier *)t;
    struct kv_device_stats d;
    kv_device_stat(v->d, &d);
    *out = v->stats;
    out->capacity = (uint64_t)d.pages * v->layout.block_bytes;
    out->blocks = (uint64_t)d.cached;
    out->bytes = out->blocks * v->layout.block_bytes;
    out->evicted = d.evicted;
}

static void tier_tick(struct kv_tier *t)
{
    (void)t;
}

static void tier_free(struct kv_tier *t)
{
    free(t);
}

static const struct kv_tier_ops device_ops = {
    .name = "device",
    .lookup = tier_lookup,
    .read = tier_read,
    .store = tier_store,
    .drop = tier_drop,
    .stat = tier_stat,
    .tick = tier_tick,
    .free = tier_free,
};

int kv_device_tier(struct kv_device *d, const struct kv_layout *layout, struct kv_tier **out, struct cfg_error *err)
{
    struct device_tier *v = calloc(1, sizeof *v);
    *out = NULL;
    if (!v)
        return cfg_error_set(err, ENOMEM, "device tier: out of memory");
    *v = (struct device_tier){.base = {&device_ops}, .d = d, .layout = *layout};
    *out = &v->base;
    return 0;
}
