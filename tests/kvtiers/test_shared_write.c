/* The open segment of the shared tier: the room that it has before it is written, its end, and what a store says of its
 * blocks. */
#include "tests/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvtiers/shared.h"
#include "kvtiers/storage_sim.h"
#include "tests/support/kv_blocks.h"

#define MS INT64_C(1000000)

enum { SEGMENT = 20 };

struct node {
    struct kv_layout layout;
    struct kv_disk *disk;
    struct kv_storage *storage;
    struct kv_tier *tier;
    int warnings;
};

static void on_log(void *ctx, bool warning, const char *text)
{
    (void)text;
    ((struct node *)ctx)->warnings += warning;
}

static void open_node(struct node *n, struct kv_disk *disk, const char *name)
{
    struct cfg_error err;
    *n = (struct node){.layout = ts_layout(256), .disk = disk, .storage = kv_storage_sim_new(disk)};
    const struct kv_shared_params p = {.storage = n->storage,
                                       .folder = "disk",
                                       .node = name,
                                       .layout = n->layout,
                                       .bytes = 1 << 30,
                                       .segment_bytes = SEGMENT * (int64_t)n->layout.block_bytes,
                                       .seal_ns = 100 * MS,
                                       .poll_ns = 50 * MS,
                                       .orphan_ns = 60000 * MS,
                                       .removals_per_s = 10,
                                       .direct = true,
                                       .clock = ts_clock,
                                       .log = on_log,
                                       .log_ctx = n};
    cr_assert_eq(kv_shared_new(&p, &n->tier, &err), 0, "%s", err.msg);
}

static void close_node(struct node *n)
{
    n->tier->ops->free(n->tier);
    kv_storage_free(n->storage);
}

static void pass(struct node *n, int64_t ms)
{
    for (int64_t at = 0; at < ms; at += 20) {
        ts_clock_ns += 20 * MS;
        n->tier->ops->tick(n->tier);
        ts_turn(n->storage);
    }
}

static bool has(struct node *n, int block)
{
    return ts_has(n->tier, n->storage, &n->layout, block);
}

static bool read_back(struct node *n, int block)
{
    return ts_read_one(n->tier, n->storage, &n->layout, block);
}

/* Begins a store of blocks first..first+n-1 and lets time pass until it is done. */
static void store(struct node *nd, struct ts_op *o, int first, int n)
{
    int number[TS_BLOCKS_MAX];
    for (int i = 0; i < n; i++)
        number[i] = first + i;
    ts_op_begin(o, nd->tier, &nd->layout, TS_STORE, number, n);
    for (int i = 0; i < 100 && !o->done; i++) {
        ts_turn(nd->storage);
        nd->tier->ops->tick(nd->tier);
    }
    cr_assert_eq(o->done, 1);
}

/* The size of the one file whose name begins so; 0: there is none. */
static int64_t size_of(struct node *n, const char *begin)
{
    struct kv_io io = {.op = KV_IO_LIST, .path = ""};
    int64_t size = 0, files = kv_io_run(n->storage, &io);
    const char *at = io.names;
    for (int64_t i = 0; i < files; i++, at += strlen(at) + 1)
        if (!strncmp(at, begin, strlen(begin)))
            size = kv_disk_size(n->disk, at);
    free(io.names);
    return size;
}

/* A segment has its whole room from its beginning, so that no write makes the file longer, and ends behind its index
 * when it is sealed. */
Test(shared_write, a_segment_has_its_room_before_it_is_written)
{
    struct kv_disk *disk = kv_disk_new(1);
    struct node a, b;
    static struct ts_op o;
    open_node(&a, disk, "a");
    const int64_t block = (int64_t)a.layout.block_bytes;
    store(&a, &o, 0, 5);
    cr_assert_eq(o.op.count, 5);
    ts_op_free(&o);
    cr_assert_eq(size_of(&a, "open-"), SEGMENT * block, "%lld bytes", (long long)size_of(&a, "open-"));
    pass(&a, 300);
    cr_assert_eq(size_of(&a, "open-"), 0);
    cr_assert_eq(size_of(&a, "seg-"), 5 * block + 2 * KV_PAGE, "five blocks, a page of entries, the trailer");
    open_node(&b, disk, "b");
    pass(&b, 200);
    for (int i = 0; i < 5; i++)
        cr_assert(read_back(&b, i));
    close_node(&a);
    close_node(&b);
    kv_disk_free(disk);
}

/* File systems that give no room before, or have not so much: the file grows, and nobody notices. The first kind is
 * asked once. */
Test(shared_write, no_room_before_is_no_fault)
{
    for (int full = 0; full < 2; full++) {
        struct kv_disk *disk = kv_disk_new(2);
        struct node a;
        static struct ts_op o;
        open_node(&a, disk, "a");
        kv_disk_fail(disk, KV_IO_ALLOC, NULL, 0, full ? 3 : 1, full ? -ENOSPC : -EOPNOTSUPP);
        store(&a, &o, 0, 50);
        cr_assert_eq(o.op.count, 50);
        ts_op_free(&o);
        cr_assert_eq(size_of(&a, "open-"), 10 * (int64_t)a.layout.block_bytes, "asked again");
        pass(&a, 300);
        for (int i = 0; i < 50; i++)
            cr_assert(read_back(&a, i), "block %d", i);
        cr_assert_eq(a.warnings, 0);
        close_node(&a);
        kv_disk_free(disk);
    }
}

/* A segment that cannot be cut is none: its blocks are misses, and the tier goes on later. */
Test(shared_write, a_segment_without_its_end_is_given_up)
{
    struct kv_disk *disk = kv_disk_new(3);
    struct node a;
    static struct ts_op o;
    open_node(&a, disk, "a");
    kv_disk_fail(disk, KV_IO_CUT, NULL, 0, 1, -EIO);
    store(&a, &o, 0, 5);
    ts_op_free(&o);
    pass(&a, 300);
    cr_assert_not(has(&a, 0));
    cr_assert_eq(size_of(&a, "seg-") + size_of(&a, "open-"), 0, "a file is left over");
    cr_assert_eq(a.warnings, 1);
    pass(&a, 2000);
    store(&a, &o, 0, 5);
    cr_assert_eq(o.op.count, 5);
    ts_op_free(&o);
    pass(&a, 300);
    cr_assert(read_back(&a, 0));
    close_node(&a);
    kv_disk_free(disk);
}

/* While the tier takes no blocks, because the file system is full or broken, they are refused and counted, and reads go
 * on; offered again when it does, they are stored, and other nodes find them. */
Test(shared_write, what_was_refused_is_stored_when_it_is_offered_again)
{
    static const struct {
        enum kv_io_op op;
        int64_t result;
    } fault[] = {{KV_IO_WRITE, -ENOSPC}, {KV_IO_WRITE, -EIO}, {KV_IO_SYNC, -ENOSPC}, {KV_IO_SYNC, -EIO}};
    for (int f = 0; f < 4; f++) {
        struct kv_disk *disk = kv_disk_new(4);
        struct node a, b;
        struct kv_tier_stats s;
        static struct ts_op o;
        open_node(&a, disk, "a");
        store(&a, &o, 0, 5);
        ts_op_free(&o);
        pass(&a, 300);
        kv_disk_fail(disk, fault[f].op, "open-", 0, 1, fault[f].result);
        store(&a, &o, 100, 5);
        ts_op_free(&o);
        pass(&a, 300);
        a.tier->ops->stat(a.tier, &s);
        cr_assert(s.read_only && a.warnings == 1, "fault %d", f);
        const uint64_t refused = s.refused;
        store(&a, &o, 100, 5);
        cr_assert_eq(o.op.count, 0, "fault %d", f);
        cr_assert_eq(o.op.status, -EROFS, "fault %d", f);
        ts_op_free(&o);
        a.tier->ops->stat(a.tier, &s);
        cr_assert_eq(s.refused, refused + 5, "fault %d", f);
        cr_assert(read_back(&a, 0) && !has(&a, 100), "fault %d", f);
        pass(&a, 2000);
        a.tier->ops->stat(a.tier, &s);
        cr_assert_not(s.read_only, "fault %d", f);
        store(&a, &o, 100, 5);
        cr_assert_eq(o.op.count, 5, "fault %d", f);
        ts_op_free(&o);
        pass(&a, 300);
        open_node(&b, disk, "b");
        pass(&b, 200);
        for (int i = 0; i < 5; i++)
            cr_assert(read_back(&b, i) && read_back(&b, 100 + i), "fault %d, block %d", f, i);
        close_node(&a);
        close_node(&b);
        kv_disk_free(disk);
    }
}

/* Blocks of segments that were sealed meanwhile are kept, though no listing has shown them yet; those of one that will
 * not be are not. */
Test(shared_write, a_store_over_several_segments_counts_all_its_blocks)
{
    for (int bad = 0; bad < 2; bad++) {
        struct kv_disk *disk = kv_disk_new(4);
        struct node a;
        static struct ts_op o;
        open_node(&a, disk, "a");
        pass(&a, 100);
        kv_disk_hold(disk, KV_IO_LIST, NULL, true);
        if (bad)
            kv_disk_fail(disk, KV_IO_RENAME, NULL, 1, 1, -EIO);
        store(&a, &o, 0, 50);
        cr_assert_eq(o.op.count == 50, !bad, "%d of 50", o.op.count);
        cr_assert_eq(o.op.status != 0, bad, "%d", o.op.status);
        ts_op_free(&o);
        kv_disk_hold(disk, KV_IO_LIST, NULL, false);
        pass(&a, 3000);
        int here = 0;
        for (int i = 0; i < 50; i++)
            here += read_back(&a, i);
        cr_assert_eq(here == 50, !bad, "%d of 50", here);
        close_node(&a);
        kv_disk_free(disk);
    }
}

static void drop(struct node *nd, int first, int n)
{
    static struct ts_op o;
    int number[TS_BLOCKS_MAX];
    for (int i = 0; i < n; i++)
        number[i] = first + i;
    ts_op_begin(&o, nd->tier, &nd->layout, TS_DROP, number, n);
    for (int i = 0; i < 20 && !o.done; i++)
        pass(nd, 20);
    cr_assert_eq(o.done, 1);
    cr_assert_eq(o.op.count, n);
    ts_op_free(&o);
}

/* Everything in an open segment is dropped, full or not: it goes, and stores get another one. */
Test(shared_write, a_segment_whose_blocks_were_all_dropped_is_no_obstacle)
{
    for (int full = 0; full < 2; full++) {
        struct kv_disk *disk = kv_disk_new(5);
        struct node a;
        static struct ts_op o, more;
        int number[SEGMENT + 2], next[] = {50, 51}, n = full ? SEGMENT + 2 : 5;
        for (int i = 0; i < SEGMENT + 2; i++)
            number[i] = i;
        open_node(&a, disk, "a");
        pass(&a, 100);
        kv_disk_hold(disk, KV_IO_WRITE, "open-", full); /* its blocks are placed, and it is to be sealed */
        ts_op_begin(&o, a.tier, &a.layout, TS_STORE, number, n);
        pass(&a, 20);
        kv_disk_hold(disk, KV_IO_WRITE, "open-", false);
        drop(&a, 0, full ? SEGMENT : 5);
        ts_op_begin(&more, a.tier, &a.layout, TS_STORE, next, 2);
        for (int i = 0; i < 50 && !(o.done && more.done); i++)
            pass(&a, 20);
        cr_assert(o.done && more.done, "a store waits for ever");
        cr_assert_eq(more.op.count, 2);
        ts_op_free(&o);
        ts_op_free(&more);
        pass(&a, 400);
        for (int i = 0; i < n; i++)
            cr_assert_eq(has(&a, i), i >= SEGMENT, "block %d", i);
        cr_assert(read_back(&a, 50) && read_back(&a, 51));
        cr_assert_eq(size_of(&a, "open-"), 0);
        cr_assert_eq(a.warnings, 0);
        close_node(&a);
        kv_disk_free(disk);
    }
}
