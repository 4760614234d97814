/* What the shared tier removes from its folder and what it counts: by many writers no more than has to go, of what it
 * cannot use, and files that are open at a time. */
#include "tests/harness.h"

#include <errno.h>
#include <string.h>
#include <xxhash.h>

#include "kvtiers/bytes.h"
#include "kvtiers/shared.h"
#include "kvtiers/storage_sim.h"
#include "tests/support/kv_blocks.h"

#define MS INT64_C(1000000)

enum { SEGMENT = 5 /* blocks */, TTL_S = 1000 };

struct node {
    struct kv_layout layout;
    struct kv_storage *storage;
    struct kv_tier *tier;
};

static struct kv_shared_params params(const struct node *n, const char *name)
{
    return (struct kv_shared_params){.storage = n->storage,
                                     .folder = "disk",
                                     .node = name,
                                     .layout = n->layout,
                                     .bytes = INT64_C(1) << 40,
                                     .segment_bytes = SEGMENT * (int64_t)n->layout.block_bytes,
                                     .seal_ns = 100 * MS,
                                     .poll_ns = 50 * MS,
                                     .orphan_ns = 60000 * MS,
                                     .removals_per_s = 50,
                                     .ttl_s = TTL_S,
                                     .direct = true,
                                     .clock = ts_clock};
}

static void open_with(struct node *n, const struct kv_shared_params *p)
{
    struct cfg_error err;
    cr_assert_eq(kv_shared_new(p, &n->tier, &err), 0, "%s", err.msg);
}

static struct node node_on(struct kv_disk *disk, uint32_t block_tokens)
{
    return (struct node){.layout = ts_layout(block_tokens), .storage = kv_storage_sim_new(disk)};
}

static void open_node(struct node *n, struct kv_disk *disk, const char *name, uint32_t block_tokens)
{
    *n = node_on(disk, block_tokens);
    struct kv_shared_params p = params(n, name);
    open_with(n, &p);
}

static void close_node(struct node *n)
{
    n->tier->ops->free(n->tier);
    kv_storage_free(n->storage);
}

static void pass(struct node *const *n, int count, int64_t ms)
{
    for (int64_t at = 0; at < ms; at += 20) {
        ts_clock_ns += 20 * MS;
        for (int i = 0; i < count; i++) {
            n[i]->tier->ops->tick(n[i]->tier);
            ts_turn(n[i]->storage);
        }
    }
}

static struct kv_tier_stats figures(struct node *n)
{
    struct kv_tier_stats s;
    n->tier->ops->stat(n->tier, &s);
    return s;
}

static bool has(struct node *n, int block)
{
    return ts_has(n->tier, n->storage, &n->layout, block);
}

static bool read_back(struct node *n, int block)
{
    return ts_read_one(n->tier, n->storage, &n->layout, block);
}

/* Full segments of this node, one second after the other. */
static void store_segments(struct node *n, int first, int segments)
{
    static struct ts_op o;
    for (int s = 0; s < segments; s++) {
        int number[SEGMENT];
        for (int i = 0; i < SEGMENT; i++)
            number[i] = first + s * SEGMENT + i;
        ts_op_run(&o, n->tier, n->storage, &n->layout, TS_STORE, number, SEGMENT);
        cr_assert_eq(o.op.count, SEGMENT);
        ts_op_free(&o);
        pass(&n, 1, 160);
        ts_clock_s++;
    }
}

/* The n-th file whose name begins so; returns how many there are. */
static int files(struct node *n, const char *beginning, int number, char out[128])
{
    struct kv_io io = {.op = KV_IO_LIST, .path = ""};
    int64_t count = kv_io_run(n->storage, &io);
    int found = 0;
    const char *p = io.names;
    for (int64_t i = 0; i < count; i++, p += strlen(p) + 1)
        if (!strncmp(p, beginning, strlen(beginning)) && found++ == number && out)
            snprintf(out, 128, "%s", p);
    free(io.names);
    return found;
}

enum { WRITERS = 8, EACH = 6 };

static void writer_name(int i, char out[8])
{
    snprintf(out, 8, "w%d", i);
}

/* Segments of WRITERS nodes, written in turn, in a folder without limit. */
static struct kv_disk *fill(void)
{
    struct kv_disk *disk = kv_disk_new(1);
    for (int k = 0; k < EACH; k++)
        for (int i = 0; i < WRITERS; i++) {
            struct node n;
            char name[8];
            writer_name(i, name);
            open_node(&n, disk, name, 256);
            store_segments(&n, (k * WRITERS + i) * SEGMENT, 1);
            close_node(&n);
        }
    return disk;
}

/* All writers see the same excess at the same time, and a few removals at a time are made: what goes are the oldest
 * segments, and not one more. Before, each writer made all the room by itself. */
Test(shared_room, many_writers_remove_what_is_too_much_once)
{
    struct kv_disk *disk = fill();
    struct node n[WRITERS], *all[WRITERS];
    const int keep = 30, total = WRITERS * EACH;
    for (int i = 0; i < WRITERS; i++) {
        char name[8];
        writer_name(i, name);
        all[i] = &n[i];
        n[i] = node_on(disk, 256);
        struct kv_shared_params p = params(&n[i], name);
        p.bytes = keep * (SEGMENT * (int64_t)n[i].layout.block_bytes + 2 * KV_PAGE) + 100;
        p.removals_per_s = 0.5 + i; /* not all are as quick */
        open_with(&n[i], &p);
    }
    for (int round = 0; round < 60; round++) {
        pass(all, WRITERS, 200);
        cr_assert_geq(files(&n[0], "seg-", -1, NULL), keep, "too many went");
    }
    cr_assert_eq(files(&n[0], "seg-", -1, NULL), keep);
    uint64_t evicted = 0;
    for (int i = 0; i < WRITERS; i++)
        evicted += figures(&n[i]).evicted;
    cr_assert_eq(evicted, (uint64_t)(total - keep) * SEGMENT, "%d blocks", (int)evicted);
    for (int s = 0; s < total; s++)
        cr_assert_eq(has(&n[0], s * SEGMENT), s >= total - keep, "segment %d of %d", s, total);
    for (int i = 0; i < WRITERS; i++)
        close_node(&n[i]);
    kv_disk_free(disk);
}

/* A writer keeps an old segment that is used and gives another one for it; the others do not do its part. */
Test(shared_room, what_is_used_stays_for_a_younger_one_of_its_writer)
{
    struct kv_disk *disk = fill();
    struct node n[2], *all[2] = {&n[0], &n[1]};
    const int keep = WRITERS * EACH - 4; /* of the four oldest, writers 0 and 1 have one each */
    for (int i = 0; i < 2; i++) {
        char name[8];
        writer_name(i, name);
        n[i] = node_on(disk, 256);
        struct kv_shared_params p = params(&n[i], name);
        p.bytes = keep * (SEGMENT * (int64_t)n[i].layout.block_bytes + 2 * KV_PAGE) + 100;
        p.removals_per_s = 1;
        open_with(&n[i], &p);
    }
    pass(all, 2, 600);
    for (int k = 0; k < 3 * SEGMENT; k++)
        cr_assert(read_back(&n[0], 0));
    pass(all, 2, 1500);
    pass(all, 2, 20000);
    cr_assert(has(&n[1], 0), "the oldest of all, and used by its writer");
    cr_assert_eq(files(&n[0], "seg-w0", -1, NULL), EACH - 1);
    cr_assert_eq(files(&n[0], "seg-w1", -1, NULL), EACH - 1);
    cr_assert_eq(files(&n[0], "seg-", -1, NULL), WRITERS * EACH - 2, "those of writers that are not here stay");
    /* Until it is plain that nobody removes them. */
    for (int k = 0; k < 3; k++) {
        store_segments(&n[0], 1000 + k * SEGMENT, 1);
        pass(all, 2, 25000);
        cr_assert_geq(files(&n[0], "seg-", -1, NULL), keep);
    }
    cr_assert_leq(files(&n[0], "seg-", -1, NULL), keep + 3);
    cr_assert_not(has(&n[1], 2 * SEGMENT), "as old, of a writer that is no more");
    cr_assert(has(&n[1], 0), "its writer lives");
    close_node(&n[0]);
    close_node(&n[1]);
    kv_disk_free(disk);
}

/* Segments of another layout count, are told of, go when they are old, the own ones sooner, and are never touched
 * before; the other side sees it the other way round. */
Test(shared_room, segments_of_another_layout_are_counted_and_go_when_they_are_old)
{
    for (int own = 0; own < 2; own++) {
        struct kv_disk *disk = kv_disk_new(2);
        struct node old, n, *one[] = {&n}, *both[] = {&n, &old};
        open_node(&old, disk, own ? "a" : "b", 512);
        store_segments(&old, 0, 3);
        static struct ts_op o; /* a drop of that layout */
        ts_op_begin(&o, old.tier, &old.layout, TS_DROP, (int[]){0}, 1);
        pass(both + 1, 1, 200);
        cr_assert(o.done && o.op.count == 1);
        ts_op_free(&o);
        open_node(&n, disk, "a", 256);
        pass(both, 2, 400);
        struct kv_tier_stats s = figures(&n);
        cr_assert_eq(s.unusable[KV_OTHER_LAYOUT].files, 3u);
        cr_assert_eq(s.unusable[KV_OTHER_LAYOUT].bytes,
                     3 * (SEGMENT * (uint64_t)old.layout.block_bytes + 2 * (uint64_t)KV_PAGE));
        cr_assert_eq(s.unusable[KV_DAMAGED].files + s.unusable[KV_UNREADABLE].files + s.blocks + s.bytes, 0u);
        cr_assert_not(s.rebuilding);
        cr_assert(read_back(&old, 1), "nobody else is harmed");
        close_node(&old);
        ts_clock_s += TTL_S - 10;
        pass(one, 1, 2000);
        cr_assert_eq(files(&n, "seg-", -1, NULL), 3);
        ts_clock_s += 20;
        pass(one, 1, 2000);
        cr_assert_eq(files(&n, "seg-", -1, NULL), own ? 0 : 3);
        ts_clock_s += TTL_S;
        pass(one, 1, 2000);
        cr_assert_eq(files(&n, "seg-", -1, NULL), 0);
        cr_assert_eq(figures(&n).unusable[KV_OTHER_LAYOUT].files, 0u);
        pass(one, 1, 70000);
        cr_assert_eq(files(&n, "drop-", -1, NULL), 0, "nor do its drops stay");
        close_node(&n);
        kv_disk_free(disk);
    }
}

/* Two deployments with different models in one folder of a bounded size: together they stay within it, and each keeps
 * its youngest segments. */
Test(shared_room, other_layouts_take_part_in_making_room)
{
    struct kv_disk *disk = kv_disk_new(3);
    struct node n[2], *all[2] = {&n[0], &n[1]};
    const int64_t segment = SEGMENT * (int64_t)ts_layout(256).block_bytes + 2 * KV_PAGE;
    for (int i = 0; i < 2; i++) {
        n[i] = node_on(disk, i ? 512 : 256);
        struct kv_shared_params p = params(&n[i], i ? "b" : "a");
        p.bytes = 10 * segment + 100;
        open_with(&n[i], &p);
    }
    for (int k = 0; k < 16; k++) {
        store_segments(&n[k & 1], 1000 * (k & 1) + k / 2 * SEGMENT, 1);
        pass(all, 2, 1000);
        cr_assert_leq(files(&n[0], "seg-", -1, NULL), 11);
    }
    cr_assert_eq(files(&n[0], "seg-", -1, NULL), 10);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 8; k++)
            cr_assert_eq(has(&n[i], 1000 * i + k * SEGMENT), k >= 3, "node %d, segment %d", i, k);
    close_node(&n[0]);
    close_node(&n[1]);
    kv_disk_free(disk);
}

/* A newer version may write other footers, of which only the last page is known. */
static void make_newer_version(struct kv_disk *disk, const char *name)
{
    uint8_t *last = kv_disk_bytes(disk, name) + kv_disk_size(disk, name) - KV_PAGE;
    kv_put_uint(last + 8, kv_get_uint(last + 8, 4) + 1, 4);
    kv_put_uint(last + KV_PAGE - 8, XXH3_64bits_withSeed(last, KV_PAGE - 8, kv_get_uint(last + 16, 8)), 8);
}

/* While nodes are replaced one after the other: the folder is full, and what a newer node has just written is not taken
 * for the oldest, even when that node writes nothing for long. It goes when all that was there before it has gone. */
Test(shared_room, segments_of_a_newer_version_are_as_young_as_they_were_seen)
{
    struct kv_disk *disk = kv_disk_new(6);
    struct node newer, n, *one[] = {&n};
    const int keep = 4;
    char name[128];
    n = node_on(disk, 256);
    struct kv_shared_params p = params(&n, "a");
    p.bytes = keep * (SEGMENT * (int64_t)n.layout.block_bytes + 2 * KV_PAGE) + 100;
    p.ttl_s = 0;
    open_with(&n, &p);
    store_segments(&n, 0, keep - 1);
    open_node(&newer, disk, "b", 256);
    store_segments(&newer, 1000, 1);
    close_node(&newer);
    cr_assert_eq(files(&n, "seg-b", 0, name), 1);
    make_newer_version(disk, name);
    pass(one, 1, 1000);
    cr_assert_eq(figures(&n).unusable[KV_OTHER_LAYOUT].files, 1u);
    for (int k = 0; k < keep - 1; k++) {
        ts_clock_s++;
        store_segments(&n, 2000 + k * SEGMENT, 1);
        pass(one, 1, 70000); /* longer than others have to do their part */
        cr_assert_eq(files(&n, "seg-b", -1, NULL), 1, "after %d segments", k + 1);
        cr_assert_eq(files(&n, "seg-a", -1, NULL), keep - 1);
    }
    ts_clock_s++;
    store_segments(&n, 3000, 1);
    pass(one, 1, 70000);
    cr_assert_eq(files(&n, "seg-b", -1, NULL), 0, "now it is the oldest");
    cr_assert_eq(files(&n, "seg-a", -1, NULL), keep);
    close_node(&n);
    kv_disk_free(disk);
}

/* A segment that makes no sense: its writer removes it, others when it is old; a damaged block costs itself alone. */
Test(shared_room, damage_costs_no_more_than_what_is_damaged)
{
    struct kv_disk *disk = kv_disk_new(4);
    struct node a, b, *both[] = {&a, &b};
    char name[2][128];
    open_node(&a, disk, "a", 256);
    store_segments(&a, 0, 2);
    close_node(&a);
    open_node(&b, disk, "b", 256);
    cr_assert_eq(files(&b, "seg-", 0, name[0]), 2);
    files(&b, "seg-", 1, name[1]);
    for (int i = 0; i < 4; i++) /* source 0 of four blocks of one segment */
        kv_disk_bytes(disk, name[0])[i * 8192] ^= 1;
    kv_disk_bytes(disk, name[1])[kv_disk_size(disk, name[1]) - 100] ^= 1; /* the last page of the other one */
    open_node(&a, disk, "a", 256);
    a.tier->ops->free(a.tier); /* a is not there: nothing may go */
    a.tier = NULL;
    pass(both + 1, 1, 600);
    int good = 0;
    for (int i = 0; i < 2 * SEGMENT; i++)
        good += read_back(&b, i);
    cr_assert_eq(good, SEGMENT - 4, "%d blocks", good);
    struct kv_tier_stats s = figures(&b);
    cr_assert_eq(s.bad, 4u);
    cr_assert_eq(s.blocks, 1u);
    cr_assert_eq(s.unusable[KV_DAMAGED].files, 1u);
    pass(both + 1, 1, 10000);
    cr_assert_eq(files(&b, "seg-", -1, NULL), 2, "others wait");
    kv_storage_free(a.storage);
    open_node(&a, disk, "a", 256);
    pass(both, 2, 100);
    cr_assert_eq(files(&b, "seg-", -1, NULL), 2, "maybe it was not whole yet");
    pass(both, 2, 10000);
    cr_assert_eq(files(&b, "seg-", -1, NULL), 1, "its writer removes it");
    cr_assert_eq(figures(&b).unusable[KV_DAMAGED].files, 0u);
    close_node(&a);
    close_node(&b);
    kv_disk_free(disk);
}

/* What the file system could not read is there again when it can: segments, drops, blocks. */
Test(shared_room, what_cannot_be_read_now_is_tried_again)
{
    static const enum kv_io_op ops[] = {KV_IO_OPEN, KV_IO_SIZE, KV_IO_READ};
    for (int f = 0; f < 3; f++) {
        struct kv_disk *disk = kv_disk_new(5);
        struct node a, b, *both[] = {&a, &b};
        static struct ts_op o;
        open_node(&a, disk, "a", 256);
        store_segments(&a, 0, 2);
        ts_op_begin(&o, a.tier, &a.layout, TS_DROP, (int[]){3}, 1);
        pass(both, 1, 200);
        cr_assert(o.done);
        ts_op_free(&o);
        kv_disk_fail(disk, ops[f], "-a-", 0, 18, -EIO); /* six times for each file */
        open_node(&b, disk, "b", 256);
        pass(both + 1, 1, 1200);
        cr_assert_not(figures(&b).rebuilding, "fault %d: nobody waits for ever", f);
        cr_assert_eq(figures(&b).unusable[KV_UNREADABLE].files, 2u, "fault %d", f);
        pass(both + 1, 1, 20000);
        cr_assert_eq(figures(&b).unusable[KV_UNREADABLE].files, 0u, "fault %d", f);
        for (int i = 0; i < 2 * SEGMENT; i++)
            cr_assert_eq(read_back(&b, i), i != 3, "fault %d, block %d", f, i);
        /* The same for blocks of a segment whose index is known. */
        kv_disk_fail(disk, KV_IO_READ, "seg-", 0, 2 * (2 * SEGMENT - 1), -EIO);
        for (int i = 0; i < 2 * SEGMENT; i++)
            cr_assert(!read_back(&b, i) && !has(&b, i), "fault %d, block %d", f, i);
        cr_assert_eq(figures(&b).blocks, 2u * SEGMENT - 1);
        pass(both + 1, 1, 1000);
        for (int i = 0; i < 2 * SEGMENT; i++)
            cr_assert_eq(read_back(&b, i), i != 3, "fault %d, block %d", f, i);
        close_node(&a);
        close_node(&b);
        kv_disk_free(disk);
    }
}
