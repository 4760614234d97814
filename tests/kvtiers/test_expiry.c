/* Blocks beyond their time: they leave files, memory and counters though nobody asks for them, a little at a time, and
 * are no obstacle to the same block when it comes again. The host, ssd and shared tiers on a clock that goes when told.
 */
#include "tests/harness.h"

#include "kvtiers/host.h"
#include "kvtiers/shared.h"
#include "kvtiers/ssd.h"
#include "kvtiers/storage_sim.h"
#include "tests/support/kv_blocks.h"

#define MS INT64_C(1000000)

enum kind { HOST, SSD, SHARED, KINDS };
static const char *const kind_name[] = {"host", "ssd", "shared"};

enum { TTL_S = 100, ROOM = 64 };

struct rig {
    enum kind kind;
    int blocks;
    struct kv_layout layout;
    struct kv_disk *disk;
    struct kv_storage *storage;
    struct kv_tier *tier;
};

static void begin(struct rig *r)
{
    struct cfg_error err = {0};
    int64_t bytes = r->blocks * (int64_t)r->layout.block_bytes;
    int e;
    r->storage = r->kind == HOST ? NULL : kv_storage_sim_new(r->disk);
    if (r->kind == HOST)
        e = kv_host_new(
            &(struct kv_host_params){
                .layout = r->layout, .bytes = bytes, .ttl_s = TTL_S, .clock = ts_clock, .verify = true},
            &r->tier, &err);
    else if (r->kind == SSD)
        e = kv_ssd_new(&(struct kv_ssd_params){.storage = r->storage,
                                               .folder = "disk",
                                               .layout = r->layout,
                                               .bytes = bytes,
                                               .ttl_s = TTL_S,
                                               .direct = true,
                                               .clock = ts_clock},
                       &r->tier, &err);
    else
        e = kv_shared_new(
            &(struct kv_shared_params){.storage = r->storage,
                                       .folder = "disk",
                                       .node = "a",
                                       .layout = r->layout,
                                       .bytes = 4 * bytes,
                                       .segment_bytes = 20 * (int64_t)r->layout.block_bytes,
                                       .seal_ns = 100 * MS,
                                       .poll_ns = 50 * MS,
                                       .orphan_ns = 6000 * MS,
                                       .removals_per_s = 0.001, /* files stay: only blocks are looked at */
                                       .ttl_s = TTL_S,
                                       .direct = true,
                                       .clock = ts_clock},
            &r->tier, &err);
    cr_assert_eq(e, 0, "%s: %s", kind_name[r->kind], err.msg);
}

static void end(struct rig *r)
{
    r->tier->ops->free(r->tier);
    kv_storage_free(r->storage);
}

static void rig_new(struct rig *r, enum kind kind, int blocks)
{
    *r = (struct rig){.kind = kind, .blocks = blocks, .layout = ts_layout(256)};
    r->disk = kind == HOST ? NULL : kv_disk_new(1);
    begin(r);
}

static void rig_free(struct rig *r)
{
    end(r);
    kv_disk_free(r->disk);
}

static void ticks(struct rig *r, int n)
{
    for (int i = 0; i < n; i++) {
        ts_clock_ns += 20 * MS;
        r->tier->ops->tick(r->tier);
        ts_turn(r->storage);
    }
}

static struct kv_tier_stats figures(struct rig *r)
{
    struct kv_tier_stats s;
    r->tier->ops->stat(r->tier, &s);
    return s;
}

static void store(struct rig *r, int first, int n)
{
    for (int i = first; i < first + n; i++)
        cr_assert(ts_store_one(r->tier, r->storage, &r->layout, i), "%s: block %d", kind_name[r->kind], i);
    ticks(r, 20);
}

static bool has(struct rig *r, int block)
{
    return ts_has(r->tier, r->storage, &r->layout, block);
}

static void count_one(void *ctx, const struct kv_key *key, const struct kv_block_info *info, int64_t age_s)
{
    (void)key, (void)info, (void)age_s;
    ++*(int *)ctx;
}

Test(expiry, old_blocks_go_though_nobody_asks_for_them)
{
    for (enum kind kind = HOST; kind < KINDS; kind++) {
        struct rig r;
        int listed = 0;
        rig_new(&r, kind, ROOM);
        ticks(&r, 20);
        store(&r, 0, 20);
        ts_clock_s += TTL_S / 2;
        store(&r, 20, 10);
        ts_clock_s += TTL_S / 2 + 1;
        cr_assert_eq(figures(&r).blocks, 30u, "%s", kind_name[kind]);
        ticks(&r, 40);
        cr_assert_eq(figures(&r).blocks, 10u, "%s: %d", kind_name[kind], (int)figures(&r).blocks);
        cr_assert_eq(figures(&r).expired, 20u, "%s", kind_name[kind]);
        r.tier->ops->each(r.tier, count_one, &listed);
        cr_assert_eq(listed, 10, "%s", kind_name[kind]);
        for (int i = 20; i < 30; i++)
            cr_assert(has(&r, i), "%s: block %d is not old", kind_name[kind], i);
        ts_clock_s += TTL_S;
        ticks(&r, 40);
        cr_assert_eq(figures(&r).blocks, 0u, "%s", kind_name[kind]);
        if (kind != SHARED)
            cr_assert_eq(figures(&r).bytes, 0u, "%s", kind_name[kind]);
        rig_free(&r);
    }
}

/* The first store after the end of its time takes it, and it is found again, also by the next process. */
Test(expiry, an_old_block_is_stored_again_at_once)
{
    for (enum kind kind = HOST; kind < KINDS; kind++) {
        struct rig r;
        rig_new(&r, kind, ROOM);
        ticks(&r, 20);
        store(&r, 0, 4);
        ts_clock_s += TTL_S + 1;
        cr_assert(ts_store_one(r.tier, r.storage, &r.layout, 2), "%s", kind_name[kind]);
        ticks(&r, 20);
        cr_assert(has(&r, 2), "%s", kind_name[kind]);
        if (kind != HOST) {
            end(&r);
            begin(&r);
            ticks(&r, 40);
            cr_assert(has(&r, 2), "%s: after a restart", kind_name[kind]);
        }
        cr_assert_not(has(&r, 1), "%s", kind_name[kind]);
        cr_assert(ts_read_one(r.tier, r.storage, &r.layout, 2), "%s", kind_name[kind]);
        rig_free(&r);
    }
}

/* A tick looks at some of them only: the thread has other work. */
Test(expiry, a_tick_takes_a_part)
{
    enum { MANY = 4000 };
    for (enum kind kind = HOST; kind <= SSD; kind++) {
        struct rig r;
        rig_new(&r, kind, MANY + 400);
        ticks(&r, 80);
        for (int i = 0; i < MANY; i += 100) {
            static struct ts_op o;
            int n[100];
            for (int k = 0; k < 100; k++)
                n[k] = i + k;
            ts_op_run(&o, r.tier, r.storage, &r.layout, TS_STORE, n, 100);
            cr_assert_eq(o.op.count, 100, "%s", kind_name[kind]);
            ts_op_free(&o);
        }
        ts_clock_s += TTL_S + 1;
        ticks(&r, 1);
        uint64_t left = figures(&r).blocks;
        cr_assert_geq(left, (uint64_t)MANY - 1000, "%s: %d left", kind_name[kind], (int)left);
        ticks(&r, 40);
        cr_assert_eq(figures(&r).blocks, 0u, "%s", kind_name[kind]);
        rig_free(&r);
    }
}

/* What is old makes room before anything that is not. */
Test(expiry, the_room_of_old_blocks_is_used_first)
{
    for (enum kind kind = HOST; kind <= SSD; kind++) {
        struct rig r;
        rig_new(&r, kind, ROOM);
        ticks(&r, 20);
        store(&r, 100, 24);
        ts_clock_s += TTL_S - 10;
        for (int k = 0; k < 30; k++) /* worth more than the others, but old */
            for (int i = 100; i < 124; i++)
                cr_assert(ts_read_one(r.tier, r.storage, &r.layout, i));
        store(&r, 0, 24);
        ts_clock_s += 11;
        ticks(&r, 20);
        uint64_t evicted = figures(&r).evicted;
        store(&r, 200, 24);
        cr_assert_eq(figures(&r).evicted, evicted, "%s", kind_name[kind]);
        for (int i = 0; i < 24; i++)
            cr_assert(has(&r, i) && has(&r, 200 + i), "%s: block %d", kind_name[kind], i);
        rig_free(&r);
    }
}
