/* Room that the ssd tier takes and gives back: a tier that has become smaller, and files that grow. */
#include "tests/harness.h"

#include <errno.h>

#include "kvtiers/ssd.h"
#include "kvtiers/storage_sim.h"
#include "tests/support/kv_blocks.h"

struct rig {
    struct kv_disk *disk;
    struct kv_storage *storage;
    struct kv_layout layout;
    struct kv_tier *tier;
    int blocks; /* of the tier */
    int64_t reserve;
    size_t file_bytes;
    int warnings;
};

static void on_log(void *ctx, bool warning, const char *text)
{
    (void)text;
    ((struct rig *)ctx)->warnings += warning;
}

static int rig_try(struct rig *r, struct cfg_error *err)
{
    r->storage = kv_storage_sim_new(r->disk);
    cr_assert_not_null(r->storage);
    return kv_ssd_new(&(struct kv_ssd_params){.storage = r->storage,
                                              .folder = "disk",
                                              .layout = r->layout,
                                              .bytes = (int64_t)r->blocks * (int64_t)r->layout.block_bytes,
                                              .reserve = r->reserve,
                                              .file_bytes = r->file_bytes,
                                              .direct = true,
                                              .clock = ts_clock,
                                              .log = on_log,
                                              .log_ctx = r},
                      &r->tier, err);
}

static void settle(struct rig *r)
{
    for (int i = 0; i < 64; i++) {
        r->tier->ops->tick(r->tier);
        ts_turn(r->storage);
    }
}

static void rig_open(struct rig *r)
{
    struct cfg_error err;
    cr_assert_eq(rig_try(r, &err), 0, "%s", err.msg);
    settle(r);
}

static void rig_close(struct rig *r)
{
    if (r->tier)
        r->tier->ops->free(r->tier);
    r->tier = NULL;
    kv_storage_free(r->storage);
    r->storage = NULL;
}

static void rig_free(struct rig *r)
{
    rig_close(r);
    kv_disk_free(r->disk);
}

static void rig_crash(struct rig *r, enum kv_crash how)
{
    rig_close(r); /* its memory; a stopped storage completes nothing any more */
    kv_disk_crash(r->disk, how);
}

static struct kv_tier_stats stat(struct rig *r)
{
    struct kv_tier_stats s;
    r->tier->ops->stat(r->tier, &s);
    return s;
}

static bool store(struct rig *r, int n)
{
    return ts_store_one(r->tier, r->storage, &r->layout, n);
}

static bool has(struct rig *r, int n)
{
    return ts_has(r->tier, r->storage, &r->layout, n);
}

static bool read_back(struct rig *r, int n)
{
    return ts_read_one(r->tier, r->storage, &r->layout, n);
}

enum { MANY = 960, SLAB = 48, FEW = 432, STORED = 768 }; /* twenty slabs, of four in each file; nine; sixteen */

static void many_new(struct rig *r, uint64_t seed)
{
    *r = (struct rig){.disk = kv_disk_new(seed), .layout = ts_layout(256), .blocks = MANY};
    r->file_bytes = 4 * SLAB * r->layout.block_bytes;
    rig_open(r);
    static struct ts_op o;
    int n[96];
    for (int i = 0; i < STORED; i += 96) {
        for (int k = 0; k < 96; k++)
            n[k] = i + k;
        ts_op_run(&o, r->tier, r->storage, &r->layout, TS_STORE, n, 96);
        cr_assert_eq(o.op.count, 96, "%d: %d", i, o.op.count);
        ts_op_free(&o);
    }
    cr_assert_eq(stat(r).blocks, (uint64_t)STORED);
    rig_close(r);
}

static int64_t on_disk(const struct rig *r)
{
    int64_t sum = 0;
    for (int i = 0; i < 8; i++) {
        char name[32];
        snprintf(name, sizeof name, "weft-kv.%03d", i);
        int64_t n = kv_disk_size(r->disk, name);
        sum += n > 0 ? n : 0;
    }
    return sum;
}

/* How many of the blocks are there; none of them is wrong, and none is promised in vain. */
static int found(struct rig *r)
{
    int n = 0;
    for (int i = 0; i < MANY; i++)
        if (has(r, i)) {
            cr_assert(read_back(r, i), "block %d is named and not there", i);
            n++;
        }
    cr_assert_eq(stat(r).bad + stat(r).short_reads, 0u);
    return n;
}

Test(ssd_room, a_smaller_tier_gives_its_room_back)
{
    struct rig r;
    many_new(&r, 41);
    int64_t index = kv_disk_size(r.disk, "weft-kv.index");
    cr_assert_eq(on_disk(&r), MANY * (int64_t)r.layout.block_bytes);
    r.blocks = FEW;
    rig_open(&r);
    cr_assert_eq(on_disk(&r), FEW * (int64_t)r.layout.block_bytes);
    cr_assert_eq(kv_disk_size(r.disk, "weft-kv.002"), SLAB * (int64_t)r.layout.block_bytes);
    cr_assert_eq(kv_disk_size(r.disk, "weft-kv.003"), -ENOENT);
    cr_assert_eq(kv_disk_size(r.disk, "weft-kv.index"), index - 11 * 2 * KV_PAGE);
    cr_assert_eq(r.warnings, 0);
    cr_assert_eq(found(&r), FEW, "what lies in the part that stays, stays");
    for (int i = 0; i < 100; i++)
        cr_assert(store(&r, 5000 + i) && read_back(&r, 5000 + i));
    rig_close(&r);
    r.blocks = MANY; /* and grown again: nothing of the old comes back */
    rig_open(&r);
    cr_assert_eq(on_disk(&r), MANY * (int64_t)r.layout.block_bytes);
    cr_assert_le(found(&r), FEW);
    for (int i = 0; i < 400; i++)
        cr_assert(store(&r, 6000 + i) && read_back(&r, 6000 + i));
    rig_free(&r);
}

/* Also when a smaller size means smaller slabs, so that it starts empty. */
Test(ssd_room, a_tier_of_other_slabs_gives_its_room_back)
{
    struct rig r;
    many_new(&r, 42);
    r.blocks = 64;
    rig_open(&r);
    cr_assert_eq(on_disk(&r), 64 * (int64_t)r.layout.block_bytes);
    cr_assert_eq(found(&r), 0);
    cr_assert(store(&r, 1) && read_back(&r, 1));
    rig_free(&r);
}

/* It stops at any point, and is opened again with either size: what is named is there, what stays is not lost. */
Test(ssd_room, a_crash_while_room_is_given_back)
{
    int points = 0;
    for (int how = 0; how < 2; how++)
        for (int again = 0; again < 2; again++)
            for (int64_t point = 0;; point++, points++) {
                struct rig r;
                struct cfg_error err;
                many_new(&r, (uint64_t)(43 + point));
                r.blocks = FEW;
                kv_disk_stop_after(r.disk, point);
                if (rig_try(&r, &err) == 0)
                    settle(&r);
                bool stopped = kv_disk_stopped(r.disk);
                rig_crash(&r, (enum kv_crash)how);
                r.blocks = again ? MANY : FEW;
                rig_open(&r);
                int n = found(&r);
                cr_assert_ge(n, FEW, "point %d: %d of the blocks that stay", (int)point, n);
                cr_assert_eq(on_disk(&r), r.blocks * (int64_t)r.layout.block_bytes);
                cr_assert(store(&r, 7000) && read_back(&r, 7000));
                rig_free(&r);
                if (!stopped)
                    break;
            }
    cr_assert_gt(points, 40, "%d points", points);
}

/* A failure there costs the room, not the tier. */
Test(ssd_room, room_that_cannot_be_given_back_is_said)
{
    static const enum kv_io_op op[] = {KV_IO_LIST, KV_IO_CUT, KV_IO_UNLINK, KV_IO_SYNC};
    for (int i = 0; i < 4; i++) {
        struct rig r;
        many_new(&r, 44);
        r.blocks = FEW;
        bool flush = op[i] == KV_IO_SYNC; /* of the index, the second one: that no page names what will be cut */
        kv_disk_fail(r.disk, op[i], flush ? "weft-kv.index" : NULL, flush, 1, -EIO);
        rig_open(&r);
        cr_assert_eq(r.warnings, 1);
        cr_assert(!flush || on_disk(&r) == MANY * (int64_t)r.layout.block_bytes, "cut before the index was durable");
        cr_assert_eq(found(&r), FEW);
        rig_close(&r);
        rig_open(&r);
        cr_assert_eq(r.warnings, 1);
        cr_assert_eq(on_disk(&r), FEW * (int64_t)r.layout.block_bytes);
        rig_free(&r);
    }
}

/* Files that cannot be made in full length grow as they are written, and not into the reserve, whoever takes the room.
 */
Test(ssd_room, the_reserve_holds_where_files_grow)
{
    struct rig r = {.disk = kv_disk_new(45), .layout = ts_layout(256), .blocks = 64};
    const int64_t block = (int64_t)r.layout.block_bytes;
    int kept = 0;
    r.reserve = 10 * block;
    kv_disk_room(r.disk, 200 * block);
    kv_disk_fail(r.disk, KV_IO_ALLOC, NULL, 0, 1, -EOPNOTSUPP);
    rig_open(&r);
    cr_assert(store(&r, 0) && !stat(&r).read_only);
    kv_disk_room(r.disk, 25 * block); /* somebody else takes most of it */
    ts_clock_ns += INT64_C(1000000000);
    settle(&r);
    cr_assert_not(stat(&r).read_only);
    static struct ts_op o;
    int n[30];
    for (int i = 0; i < 30; i++)
        n[i] = 1 + i;
    ts_op_run(&o, r.tier, r.storage, &r.layout, TS_STORE, n, 30);
    cr_assert_eq(o.done, 1);
    cr_assert(o.op.count >= 14 && o.op.count <= 15, "%d", o.op.count);
    cr_assert_eq(o.op.status, -ENOSPC);
    kept = o.op.count;
    ts_op_free(&o);
    cr_assert(stat(&r).read_only);
    cr_assert_eq(r.warnings, 1);
    cr_assert_not(store(&r, 100));
    for (int i = 0; i <= kept; i++)
        cr_assert(read_back(&r, i), "reads go on");
    ts_clock_ns += INT64_C(1000000000);
    settle(&r);
    cr_assert(stat(&r).read_only && !store(&r, 100));
    cr_assert_eq(r.warnings, 1, "once");
    kv_disk_room(r.disk, 100 * block);
    ts_clock_ns += INT64_C(1000000000);
    settle(&r);
    cr_assert_not(stat(&r).read_only);
    cr_assert(store(&r, 100) && read_back(&r, 100));
    rig_close(&r);
    rig_free(&r);
}
