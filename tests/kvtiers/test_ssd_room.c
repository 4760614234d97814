/* Room that the ssd tier takes and gives back: a tier that has become smaller, and files that grow. */
#include "tests/harness.h"

#include <errno.h>

#include "tests/support/kv_blocks.h"
#include "tests/support/ssd_rig.h"

enum {
    MANY = 960,
    SLAB = 48,
    FEW = 432,
    STORED = 768,
    SSD_STORE = 48
}; /* twenty slabs, of four in each file; nine; sixteen; one */

static void many_new(struct ts_ssd *r, uint64_t seed)
{
    *r = (struct ts_ssd){.disk = kv_disk_new(seed), .layout = ts_layout(256), .blocks = MANY};
    r->file_bytes = 4 * SLAB * r->layout.block_bytes;
    ts_ssd_open(r);
    static struct ts_op o;
    int n[96];
    for (int i = 0; i < STORED; i += 96) {
        for (int k = 0; k < 96; k++)
            n[k] = i + k;
        ts_op_run(&o, r->tier, r->storage, &r->layout, TS_STORE, n, 96);
        cr_assert_eq(o.op.count, 96, "%d: %d", i, o.op.count);
        ts_op_free(&o);
    }
    cr_assert_eq(ts_ssd_stat(r).blocks, (uint64_t)STORED);
    ts_ssd_close(r);
}

static int64_t on_disk(const struct ts_ssd *r)
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
static int found(struct ts_ssd *r)
{
    int n = 0;
    for (int i = 0; i < MANY; i++)
        if (ts_ssd_has(r, i)) {
            cr_assert(ts_ssd_read_back(r, i), "block %d is named and not there", i);
            n++;
        }
    cr_assert_eq(ts_ssd_stat(r).bad + ts_ssd_stat(r).short_reads, 0u);
    return n;
}

Test(ssd_room, a_smaller_tier_gives_its_room_back)
{
    struct ts_ssd r;
    many_new(&r, 41);
    int64_t index = kv_disk_size(r.disk, "weft-kv.index");
    cr_assert_eq(on_disk(&r), MANY * (int64_t)r.layout.block_bytes);
    r.blocks = FEW;
    ts_ssd_open(&r);
    cr_assert_eq(on_disk(&r), FEW * (int64_t)r.layout.block_bytes);
    cr_assert_eq(kv_disk_size(r.disk, "weft-kv.002"), SLAB * (int64_t)r.layout.block_bytes);
    cr_assert_eq(kv_disk_size(r.disk, "weft-kv.003"), -ENOENT);
    cr_assert_eq(kv_disk_size(r.disk, "weft-kv.index"), index - 11 * 2 * KV_PAGE);
    cr_assert_eq(r.warnings, 0);
    cr_assert_eq(found(&r), FEW, "what lies in the part that stays, stays");
    for (int i = 0; i < 100; i++)
        cr_assert(ts_ssd_store(&r, 5000 + i) && ts_ssd_read_back(&r, 5000 + i));
    ts_ssd_close(&r);
    r.blocks = MANY; /* and grown again: nothing of the old comes back */
    ts_ssd_open(&r);
    cr_assert_eq(on_disk(&r), MANY * (int64_t)r.layout.block_bytes);
    cr_assert_le(found(&r), FEW);
    for (int i = 0; i < 400; i++)
        cr_assert(ts_ssd_store(&r, 6000 + i) && ts_ssd_read_back(&r, 6000 + i));
    ts_ssd_free(&r);
}

/* Also when it is so small that it needs smaller slabs, and starts empty. */
Test(ssd_room, a_tier_of_other_slabs_gives_its_room_back)
{
    struct ts_ssd r;
    many_new(&r, 42);
    r.blocks = 64;
    ts_ssd_open(&r);
    cr_assert_eq(on_disk(&r), 64 * (int64_t)r.layout.block_bytes);
    cr_assert_eq(found(&r), 0);
    cr_assert(ts_ssd_store(&r, 1) && ts_ssd_read_back(&r, 1));
    ts_ssd_free(&r);
}

static void store_all(struct ts_ssd *r, int n)
{
    for (int i = 0; i < n; i++)
        cr_assert(ts_ssd_store(r, i), "%d", i);
}

static void all_there(struct ts_ssd *r, int n)
{
    for (int i = 0; i < n; i++)
        cr_assert(ts_ssd_read_back(r, i), "block %d is lost", i);
}

/* A small tier has smaller slabs than it would have had as a large one: they stay as they were made. */
Test(ssd_room, a_small_tier_grows_and_keeps_its_blocks)
{
    struct ts_ssd r;
    ts_ssd_new(&r, 46, 64);
    store_all(&r, 40);
    ts_ssd_close(&r);
    r.blocks = MANY;
    ts_ssd_open(&r);
    cr_assert_eq(ts_ssd_stat(&r).capacity, MANY * r.layout.block_bytes);
    all_there(&r, 40);
    store_all(&r, MANY / 2);
    ts_ssd_close(&r);
    r.blocks = 64;
    ts_ssd_open(&r);
    cr_assert_eq(found(&r), 64, "and back: what lies in the part that stays, stays");
    cr_assert_eq(r.warnings, 0);
    ts_ssd_free(&r);
}

/* There are at most 256 files, the last of which takes what is more. */
Test(ssd_room, a_tier_grows_beyond_its_files_and_keeps_its_blocks)
{
    enum { BEFORE = 250 * SLAB, AFTER = 300 * SLAB, LAST = 255 };
    struct ts_ssd r = {.disk = kv_disk_new(47), .layout = ts_layout(2), .blocks = BEFORE};
    const int64_t slab = SLAB * (int64_t)r.layout.block_bytes;
    r.file_bytes = (size_t)slab;
    ts_ssd_open(&r);
    store_all(&r, 2 * SLAB);
    ts_ssd_close(&r);
    r.blocks = AFTER;
    ts_ssd_open(&r);
    cr_assert_eq(ts_ssd_stat(&r).capacity, (uint64_t)(300 * slab));
    cr_assert_eq(kv_disk_size(r.disk, "weft-kv.254"), slab);
    cr_assert_eq(kv_disk_size(r.disk, "weft-kv.255"), (300 - LAST) * slab);
    all_there(&r, 2 * SLAB);
    for (int i = 0; i < AFTER + SLAB; i += SSD_STORE) { /* once through all slabs, those of the last file, too */
        static struct ts_op o;
        int n[SSD_STORE];
        for (int k = 0; k < SSD_STORE; k++)
            n[k] = 100000 + i + k;
        ts_op_run(&o, r.tier, r.storage, &r.layout, TS_STORE, n, SSD_STORE);
        cr_assert_eq(o.op.count, SSD_STORE, "%d: %d", i, o.op.count);
        ts_op_free(&o);
    }
    for (int i = AFTER / 2; i < AFTER; i += 7)
        cr_assert(ts_ssd_read_back(&r, 100000 + i), "%d", i);
    ts_ssd_close(&r);
    ts_ssd_open(&r);
    for (int i = AFTER / 2; i < AFTER; i += 7)
        cr_assert(ts_ssd_read_back(&r, 100000 + i), "%d, after a restart", i);
    ts_ssd_close(&r);
    r.blocks = BEFORE;
    ts_ssd_open(&r);
    cr_assert_eq(kv_disk_size(r.disk, "weft-kv.249"), slab);
    cr_assert_eq(kv_disk_size(r.disk, "weft-kv.250"), -ENOENT);
    ts_ssd_free(&r);
}

/* An index that the disk does not give at the moment is no reason to begin an empty one; half a header is enough. */
Test(ssd_room, an_index_that_cannot_be_read_now_is_not_replaced)
{
    struct ts_ssd r;
    struct cfg_error err;
    ts_ssd_new(&r, 48, 64);
    store_all(&r, 40);
    ts_ssd_close(&r);
    kv_disk_fail(r.disk, KV_IO_READ, "weft-kv.index", 0, 2, -EIO);
    cr_assert_eq(ts_ssd_try(&r, &err), -EIO);
    cr_assert(strstr(err.msg, "weft-kv.index: Input/output error"), "%s", err.msg);
    ts_ssd_close(&r);
    for (int page = 0; page < 2; page++) {
        kv_disk_fail(r.disk, KV_IO_READ, "weft-kv.index", page, 1, -EIO);
        ts_ssd_open(&r);
        all_there(&r, 40);
        ts_ssd_close(&r);
    }
    cr_assert_eq(r.warnings, 0);
    ts_ssd_free(&r);
}

/* It stops at any point, and is opened again with either size: what is named is there, what stays is not lost. */
Test(ssd_room, a_crash_while_room_is_given_back)
{
    int points = 0;
    for (int how = 0; how < 2; how++)
        for (int again = 0; again < 2; again++)
            for (int64_t point = 0;; point++, points++) {
                struct ts_ssd r;
                struct cfg_error err;
                many_new(&r, (uint64_t)(43 + point));
                r.blocks = FEW;
                kv_disk_stop_after(r.disk, point);
                if (ts_ssd_try(&r, &err) == 0)
                    ts_ssd_settle(&r);
                bool stopped = kv_disk_stopped(r.disk);
                ts_ssd_crash(&r, (enum kv_crash)how);
                r.blocks = again ? MANY : FEW;
                ts_ssd_open(&r);
                int n = found(&r);
                cr_assert_ge(n, FEW, "point %d: %d of the blocks that stay", (int)point, n);
                cr_assert_eq(on_disk(&r), r.blocks * (int64_t)r.layout.block_bytes);
                cr_assert(ts_ssd_store(&r, 7000) && ts_ssd_read_back(&r, 7000));
                ts_ssd_free(&r);
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
        struct ts_ssd r;
        many_new(&r, 44);
        r.blocks = FEW;
        bool flush = op[i] == KV_IO_SYNC; /* of the index, the second one: that no page names what will be cut */
        kv_disk_fail(r.disk, op[i], flush ? "weft-kv.index" : NULL, flush, 1, -EIO);
        ts_ssd_open(&r);
        cr_assert_eq(r.warnings, 1);
        cr_assert(!flush || on_disk(&r) == MANY * (int64_t)r.layout.block_bytes, "cut before the index was durable");
        cr_assert_eq(found(&r), FEW);
        ts_ssd_close(&r);
        ts_ssd_open(&r);
        cr_assert_eq(r.warnings, 1);
        cr_assert_eq(on_disk(&r), FEW * (int64_t)r.layout.block_bytes);
        ts_ssd_free(&r);
    }
}

/* Files that cannot be made in full length grow as they are written, and not into the reserve, whoever takes the room.
 */
Test(ssd_room, the_reserve_holds_where_files_grow)
{
    struct ts_ssd r = {.disk = kv_disk_new(45), .layout = ts_layout(256), .blocks = 64};
    const int64_t block = (int64_t)r.layout.block_bytes;
    int kept = 0;
    r.reserve = 10 * block;
    kv_disk_room(r.disk, 200 * block);
    kv_disk_fail(r.disk, KV_IO_ALLOC, NULL, 0, 1, -EOPNOTSUPP);
    ts_ssd_open(&r);
    cr_assert(ts_ssd_store(&r, 0) && !ts_ssd_stat(&r).read_only);
    kv_disk_room(r.disk, 25 * block); /* somebody else takes most of it */
    ts_clock_ns += INT64_C(1000000000);
    ts_ssd_settle(&r);
    cr_assert_not(ts_ssd_stat(&r).read_only);
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
    cr_assert(ts_ssd_stat(&r).read_only);
    cr_assert_eq(r.warnings, 1);
    cr_assert_not(ts_ssd_store(&r, 100));
    for (int i = 0; i <= kept; i++)
        cr_assert(ts_ssd_read_back(&r, i), "reads go on");
    ts_clock_ns += INT64_C(1000000000);
    ts_ssd_settle(&r);
    cr_assert(ts_ssd_stat(&r).read_only && !ts_ssd_store(&r, 100));
    cr_assert_eq(r.warnings, 1, "once");
    kv_disk_room(r.disk, 100 * block);
    ts_clock_ns += INT64_C(1000000000);
    ts_ssd_settle(&r);
    cr_assert_not(ts_ssd_stat(&r).read_only);
    cr_assert(ts_ssd_store(&r, 100) && ts_ssd_read_back(&r, 100));
    ts_ssd_close(&r);
    ts_ssd_free(&r);
}
