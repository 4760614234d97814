/* The shared tier: many writers and readers of one folder, a writer that dies at any write, damage, room. */
#include "tests/harness.h"

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kvtiers/shared.h"
#include "kvtiers/storage_sim.h"
#include "tests/support/kv_blocks.h"
#include "tests/support/less.h"
#include "tests/support/process.h"

#define MS INT64_C(1000000)

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
                                     .bytes = 1 << 30,
                                     .segment_bytes = 20 * (int64_t)n->layout.block_bytes,
                                     .seal_ns = 100 * MS,
                                     .poll_ns = 50 * MS,
                                     .orphan_ns = 60000 * MS,
                                     .removals_per_s = 10,
                                     .direct = true,
                                     .clock = ts_clock};
}

static void open_with(struct node *n, const struct kv_shared_params *p)
{
    struct cfg_error err;
    cr_assert_eq(kv_shared_new(p, &n->tier, &err), 0, "%s", err.msg);
}

static void open_node(struct node *n, struct kv_disk *disk, const char *name)
{
    *n = (struct node){.layout = ts_layout(256), .storage = kv_storage_sim_new(disk)};
    struct kv_shared_params p = params(n, name);
    open_with(n, &p);
}

static void close_node(struct node *n)
{
    if (n->tier)
        n->tier->ops->free(n->tier);
    kv_storage_free(n->storage);
    *n = (struct node){0};
}

/* Time goes by for some nodes: what is due is sealed, listed, removed. */
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

static bool store(struct node *n, int block)
{
    return ts_store_one(n->tier, n->storage, &n->layout, block);
}

static bool has(struct node *n, int block)
{
    return ts_has(n->tier, n->storage, &n->layout, block);
}

static bool read_back(struct node *n, int block)
{
    return ts_read_one(n->tier, n->storage, &n->layout, block);
}

static struct kv_tier_stats figures(struct node *n)
{
    struct kv_tier_stats s;
    n->tier->ops->stat(n->tier, &s);
    return s;
}

/* A prefix that one node placed is used by another that never saw it. */
Test(shared, what_one_node_stores_another_reads)
{
    struct kv_disk *disk = kv_disk_new(1);
    struct node a, b, c;
    open_node(&a, disk, "a");
    open_node(&b, disk, "b");
    struct node *all[] = {&a, &b};
    static struct ts_op o;
    int n[50];
    for (int i = 0; i < 50; i++)
        n[i] = i;
    ts_op_run(&o, a.tier, a.storage, &a.layout, TS_STORE, n, 30);
    for (int i = 0; i < 20 && !o.done; i++)
        pass(all, 2, 20);
    cr_assert_eq(o.done, 1, "a store that needs a second segment ends too");
    cr_assert_eq(o.op.count, 30);
    ts_op_free(&o);
    pass(all, 2, 600);
    ts_op_run(&o, b.tier, b.storage, &b.layout, TS_READ, n, 50);
    cr_assert_eq(o.op.count, 30);
    for (int i = 0; i < 30; i++)
        cr_assert(ts_block_good(&b.layout, i, o.block[i].bytes));
    ts_op_free(&o);
    cr_assert_eq(figures(&b).blocks, 30u);
    cr_assert(store(&b, 3), "what is there already is not written again");
    cr_assert_eq(figures(&b).stored, 0u);
    close_node(&a);
    open_node(&c, disk, "c");
    struct node *later[] = {&b, &c};
    pass(later, 2, 300);
    for (int i = 0; i < 30; i++)
        cr_assert(read_back(&c, i));
    close_node(&b);
    close_node(&c);
    kv_disk_free(disk);
}

/* An orderly end seals what is open. */
Test(shared, an_orderly_end_loses_nothing)
{
    struct kv_disk *disk = kv_disk_new(2);
    struct node a, b;
    open_node(&a, disk, "a");
    for (int i = 0; i < 5; i++)
        cr_assert(store(&a, i));
    close_node(&a);
    open_node(&b, disk, "b");
    struct node *all[] = {&b};
    pass(all, 1, 200);
    for (int i = 0; i < 5; i++)
        cr_assert(read_back(&b, i));
    close_node(&b);
    kv_disk_free(disk);
}

/* The machine of a writer stops at its n-th write point, for every n: what others find afterwards is right, what was
 * sealed is there, and what was left unfinished is removed by the writer's next life. */
static bool dies_at(uint64_t seed, int64_t point, enum kv_crash how)
{
    enum { KEYS = 36 };
    struct kv_disk *disk = kv_disk_new(seed);
    struct node a, b;
    bool sealed[KEYS] = {0};
    static struct ts_op o;
    open_node(&a, disk, "a");
    struct node *one[] = {&a};
    kv_disk_stop_after(disk, point);
    for (int i = 0; i < KEYS && !kv_disk_stopped(disk); i += 3) {
        int three[] = {i, i + 1, i + 2};
        ts_op_run(&o, a.tier, a.storage, &a.layout, TS_STORE, three, 3);
        if (kv_disk_stopped(disk))
            break;
        for (int k = 0; k < 100 && !o.done; k++)
            pass(one, 1, 20);
        if (o.done)
            ts_op_free(&o);
        if (i % 6 == 3)
            pass(one, 1, 300);
        for (int k = 0; k < KEYS && !kv_disk_stopped(disk); k++)
            sealed[k] = has(&a, k); /* it finds its own only in sealed segments */
    }
    bool stopped = kv_disk_stopped(disk);
    close_node(&a);
    ts_op_free(&o);
    kv_disk_crash(disk, how);
    ts_clock_s += 10;
    open_node(&a, disk, "a");
    open_node(&b, disk, "b");
    struct node *all[] = {&a, &b};
    pass(all, 2, 2000);
    for (int k = 0; k < KEYS; k++) {
        bool here = read_back(&b, k);
        cr_assert(here || !sealed[k], "seed %d, point %d: block %d was sealed and is lost", (int)seed, (int)point, k);
    }
    cr_assert(store(&a, 500));
    pass(all, 2, 500);
    cr_assert(read_back(&b, 500));
    close_node(&a);
    close_node(&b);
    kv_disk_free(disk);
    return stopped;
}

Test(shared, a_writer_that_dies_at_any_write_harms_nobody, .timeout = 3600)
{
    for (int how = 0; how < 2; how++)
        for (int seed = 0; seed < ts_more(1, 10); seed++) {
            int64_t point = 0;
            while (dies_at((uint64_t)(1000 * seed + point + 3), point, (enum kv_crash)how))
                point++;
            cr_assert_gt(point, 100, "%d write points", (int)point);
        }
}

static int files_with(struct kv_storage *s, const char *beginning)
{
    struct kv_io io = {.op = KV_IO_LIST, .path = ""};
    int64_t n = kv_io_run(s, &io);
    int found = 0;
    const char *at = io.names;
    for (int64_t i = 0; i < n; i++, at += strlen(at) + 1)
        found += !strncmp(at, beginning, strlen(beginning));
    free(io.names);
    return found;
}

/* Unfinished segments: the writer's next life removes them at once, others after a long time. */
Test(shared, orphans_are_collected)
{
    for (int other = 0; other < 2; other++) {
        struct kv_disk *disk = kv_disk_new(4);
        struct node a, b;
        open_node(&a, disk, "a");
        cr_assert(store(&a, 1));
        cr_assert_eq(files_with(a.storage, "open-"), 1);
        kv_disk_stop_after(disk, 0);
        static struct ts_op o;
        int two = 2;
        ts_op_run(&o, a.tier, a.storage, &a.layout, TS_STORE, &two, 1);
        close_node(&a);
        ts_op_free(&o);
        kv_disk_crash(disk, KV_CRASH_KILL);
        ts_clock_s += 10;
        open_node(&b, disk, other ? "b" : "a");
        struct node *all[] = {&b};
        pass(all, 1, 500);
        cr_assert_eq(files_with(b.storage, "open-"), other, "%s", other ? "somebody may still write" : "it is dead");
        pass(all, 1, 61000);
        cr_assert_eq(files_with(b.storage, "open-"), 0);
        cr_assert_not(has(&b, 1));
        close_node(&b);
        kv_disk_free(disk);
    }
}

/* The n-th file whose name begins so. */
static void name_of(struct kv_storage *s, const char *beginning, int n, char out[128])
{
    struct kv_io io = {.op = KV_IO_LIST, .path = ""};
    int64_t count = kv_io_run(s, &io);
    const char *p = io.names;
    out[0] = 0;
    for (int64_t i = 0; i < count && !out[0]; i++, p += strlen(p) + 1)
        if (!strncmp(p, beginning, strlen(beginning)) && n-- == 0)
            snprintf(out, 128, "%s", p);
    free(io.names);
    cr_assert(out[0], "no file %s", beginning);
}

/* What is done to a disk on which node a has sealed blocks 0 to 5 in one segment and 6 to 11 in another one, and has
 * dropped 10 and 11: change number n. False: there is no such change. */
typedef bool change(struct kv_disk *disk, struct kv_storage *s, int64_t n);

static bool flip_drop(struct kv_disk *disk, struct kv_storage *s, int64_t n)
{
    char name[128];
    name_of(s, "drop-", 0, name);
    int64_t at = n * ts_more(61, 7);
    if (at < kv_disk_size(disk, name))
        kv_disk_bytes(disk, name)[at] ^= 0x41;
    return at < kv_disk_size(disk, name);
}

/* Each change on a disk of its own. What a later node delivers is right, what it cannot is not offered again, and it
 * goes on. Returns the misses of blocks 0 to 9. */
static int damage(change *how)
{
    int misses = 0;
    for (int64_t n = 0;; n++) {
        struct kv_disk *disk = kv_disk_new(5);
        struct node a, b;
        open_node(&a, disk, "a");
        struct node *one[] = {&a};
        for (int i = 0; i < 12; i++) {
            cr_assert(store(&a, i));
            if (i == 5)
                pass(one, 1, 300);
        }
        pass(one, 1, 300);
        static struct ts_op o;
        const int last[2] = {10, 11};
        ts_op_run(&o, a.tier, a.storage, &a.layout, TS_DROP, last, 2);
        pass(one, 1, 100);
        cr_assert(o.done && o.op.count == 2);
        ts_op_free(&o);
        close_node(&a);
        open_node(&b, disk, "b");
        bool any = how(disk, b.storage, n);
        struct node *all[] = {&b};
        bool back[12];
        pass(all, 1, 300);
        for (int i = 0; i < 12; i++) {
            bool offered = has(&b, i), good = read_back(&b, i);
            misses += !good && i < 10;
            back[i] = good;
            cr_assert(any || good == (i < 10), "block %d of what is whole", i);
            cr_assert(good || !offered || !has(&b, i), "a bad block is dropped");
        }
        if (how == flip_drop)
            cr_assert_eq(back[10], back[11], "a drop holds as a whole, or not at all");
        cr_assert(store(&b, 100));
        pass(all, 1, 500);
        cr_assert(read_back(&b, 100), "it goes on");
        close_node(&b);
        kv_disk_free(disk);
        if (!any)
            return misses;
    }
}

static bool flip(struct kv_disk *disk, struct kv_storage *s, int64_t n)
{
    char name[128];
    name_of(s, "seg-", 0, name);
    int64_t at = n * ts_more(977, 61);
    if (at < kv_disk_size(disk, name))
        kv_disk_bytes(disk, name)[at] ^= 0x41;
    return at < kv_disk_size(disk, name);
}

/* Row 55: every byte of a sealed segment, flipped, is a miss or the right bytes. */
Test(shared, a_flipped_byte_anywhere_is_a_miss, .timeout = 3600)
{
    cr_assert_gt(damage(flip), 20);
}

/* A drop that cannot be read costs nothing but itself. */
Test(shared, a_flipped_byte_of_a_drop_harms_nothing_else, .timeout = 3600)
{
    cr_assert_eq(damage(flip_drop), 0);
}

static bool cut(struct kv_disk *disk, struct kv_storage *s, int64_t n)
{
    char name[128];
    name_of(s, n % 2 ? "drop-" : "seg-", 0, name);
    int64_t size = kv_disk_size(disk, name), to = n / 2 * 1365; /* three places per page */
    if (to < size)
        cr_assert_eq(kv_disk_truncate(disk, name, (size_t)to), 0);
    return n % 2 || to < size;
}

Test(shared, truncated_files_are_misses)
{
    cr_assert_gt(damage(cut), 50);
}

/* Two pages of a segment, or one of each segment. */
static bool exchange(struct kv_disk *disk, struct kv_storage *s, int64_t n)
{
    char name[2][128];
    name_of(s, "seg-", 0, name[0]);
    name_of(s, "seg-", 1, name[1]);
    int64_t pages = kv_disk_size(disk, name[0]) / KV_PAGE, pairs = 0;
    for (int64_t a = 0; a < pages; a++)
        for (int64_t b = 0; b < pages; b++) {
            if (a == b || pairs++ != n * ts_more(5, 1))
                continue;
            uint8_t *one = kv_disk_bytes(disk, name[0]) + a * KV_PAGE, keep[KV_PAGE],
                    *two = kv_disk_bytes(disk, name[a > b]) + b * KV_PAGE;
            memcpy(keep, one, KV_PAGE);
            memmove(one, two, KV_PAGE);
            memcpy(two, keep, KV_PAGE);
            return true;
        }
    return false;
}

Test(shared, pages_in_each_others_place_are_misses, .timeout = 3600)
{
    cr_assert_gt(damage(exchange), 50);
}

/* A segment under the name of another one. */
static bool rename_all(struct kv_disk *disk, struct kv_storage *s, int64_t n)
{
    char name[2][128];
    (void)disk;
    name_of(s, "seg-", 0, name[0]);
    name_of(s, "seg-", 1, name[1]);
    const char *const from[] = {name[0], name[1], "seg-x"}, *const to[] = {"seg-x", name[0], name[1]};
    for (int i = 0; i < 3 && n == 0; i++) {
        struct kv_io io = {.op = KV_IO_RENAME, .path = from[i], .path2 = to[i]};
        cr_assert_eq(kv_io_run(s, &io), 0);
    }
    return n == 0;
}

Test(shared, segments_under_each_others_names_are_no_danger)
{
    damage(rename_all);
}

static bool drop(struct node *n, int first, int count, struct node *const *all, int nodes)
{
    static struct ts_op o;
    int block[64];
    for (int i = 0; i < count; i++)
        block[i] = first + i;
    ts_op_run(&o, n->tier, n->storage, &n->layout, TS_DROP, block, count);
    for (int i = 0; i < 100 && !o.done; i++)
        pass(all, nodes, 20);
    cr_assert_eq(o.done, 1);
    bool whole = o.op.count == count && !o.op.status;
    ts_op_free(&o);
    return whole;
}

/* A drop reaches every node and every later life; what is stored again afterwards is found again. */
Test(shared, drops_outlive_the_process_and_reach_the_others)
{
    struct kv_disk *disk = kv_disk_new(31);
    struct node a, b;
    open_node(&a, disk, "a");
    open_node(&b, disk, "b");
    struct node *all[] = {&a, &b};
    for (int i = 0; i < 30; i++)
        cr_assert(store(&a, i));
    pass(all, 2, 600);
    cr_assert(has(&b, 7) && has(&b, 29));
    cr_assert(drop(&b, 5, 10, all, 2), "any node may drop");
    pass(all, 2, 200);
    for (int life = 0; life < 2; life++) {
        for (int i = 0; i < 30; i++)
            for (int k = 0; k < 2; k++)
                cr_assert_eq(read_back(all[k], i), i < 5 || i >= 15, "life %d: node %d, block %d", life, k, i);
        close_node(&a);
        close_node(&b);
        open_node(&a, disk, "a");
        open_node(&b, disk, "b");
        pass(all, 2, 600);
    }
    cr_assert(store(&a, 7));
    pass(all, 2, 600);
    cr_assert(read_back(&b, 7), "stored again");
    close_node(&a);
    close_node(&b);
    kv_disk_free(disk);
}

/* Also what its segment has not published yet; and when all of a segment is dropped, the files go. */
Test(shared, drops_before_the_seal_and_of_whole_segments_leave_no_files)
{
    struct kv_disk *disk = kv_disk_new(32);
    struct node a, b;
    open_node(&a, disk, "a");
    open_node(&b, disk, "b");
    struct node *all[] = {&a, &b};
    pass(all, 2, 100);
    for (int i = 0; i < 6; i++)
        cr_assert(store(&a, i));
    cr_assert(drop(&a, 2, 2, all, 2), "not sealed yet");
    pass(all, 2, 600);
    for (int i = 0; i < 6; i++)
        cr_assert_eq(has(&b, i), i != 2 && i != 3, "block %d", i);
    cr_assert(drop(&a, 0, 2, all, 2));
    cr_assert(drop(&b, 4, 2, all, 2));
    pass(all, 2, 2000);
    cr_assert_eq(files_with(a.storage, "seg-"), 0, "a segment without blocks");
    cr_assert_eq(files_with(a.storage, "drop-"), 2, "a folder may show its names late");
    pass(all, 2, 62000);
    cr_assert_eq(files_with(a.storage, "drop-"), 0, "drops without a segment");
    close_node(&a);
    close_node(&b);
    kv_disk_free(disk);
}

/* A writer of drops that dies at any write: a drop that was reported holds in every later life, others may; nothing
 * else is lost, and nothing that is left over stays. */
Test(shared, a_drop_that_was_reported_survives_every_crash, .timeout = 300)
{
    for (int how = KV_CRASH_KILL; how <= KV_CRASH_POWER; how++)
        for (int64_t n = 0, end = 0; !end; n++) {
            struct kv_disk *disk = kv_disk_new((uint64_t)n + 90);
            struct node a, b;
            static struct ts_op o;
            int block[4] = {3, 4, 5, 6};
            open_node(&a, disk, "a");
            struct node *all[] = {&a};
            for (int i = 0; i < 10; i++)
                cr_assert(store(&a, i));
            pass(all, 1, 600);
            kv_disk_stop_after(disk, n);
            ts_op_run(&o, a.tier, a.storage, &a.layout, TS_DROP, block, 4);
            for (int i = 0; i < 20 && !o.done && !kv_disk_stopped(disk); i++)
                pass(all, 1, 20);
            bool reported = o.done && !o.op.status;
            end = !kv_disk_stopped(disk);
            cr_assert(!end || reported);
            kv_disk_stop_after(disk, -1);
            if (!end) {
                close_node(&a);
                kv_disk_crash(disk, (enum kv_crash)how);
            } else {
                close_node(&a);
            }
            ts_op_free(&o);
            ts_clock_s++;
            open_node(&b, disk, "a");
            struct node *later[] = {&b};
            pass(later, 1, 1000);
            for (int i = 0; i < 10; i++)
                if (i < 3 || i > 6)
                    cr_assert(read_back(&b, i), "point %d: block %d is lost", (int)n, i);
                else if (reported)
                    cr_assert_not(has(&b, i), "point %d: block %d is back", (int)n, i);
            cr_assert_eq(files_with(b.storage, "open-"), 0);
            close_node(&b);
            kv_disk_free(disk);
        }
}

/* As many files of drops as removals are allowed, however many ask. */
Test(shared, drops_are_limited_in_rate_and_gathered)
{
    struct kv_disk *disk = kv_disk_new(33);
    struct node a = {.layout = ts_layout(256), .storage = kv_storage_sim_new(disk)};
    struct kv_shared_params p = params(&a, "a");
    p.removals_per_s = 1;
    open_with(&a, &p);
    struct node *all[] = {&a};
    static struct ts_op o[40];
    for (int i = 0; i < 40; i++)
        cr_assert(store(&a, i));
    pass(all, 1, 600);
    for (int i = 0; i < 40; i += 1)
        ts_op_begin(&o[i], a.tier, &a.layout, TS_DROP, &i, 1);
    pass(all, 1, 3000);
    for (int i = 0; i < 39; i++) {
        cr_assert_eq(o[i].done, 1, "drop %d", i);
        cr_assert_not(has(&a, i));
        ts_op_free(&o[i]);
    }
    ts_op_free(&o[39]);
    int files = files_with(a.storage, "drop-");
    cr_assert(files >= 1 && files <= 4, "%d files", files);
    close_node(&a);
    kv_disk_free(disk);
}

/* Old segments of one's own make room, a few per second; a reader that had begun reads to its end. */
Test(shared, room_is_made_slowly_and_harms_no_reader)
{
    struct kv_disk *disk = kv_disk_new(6);
    struct node a, b;
    a = (struct node){.layout = ts_layout(256), .storage = kv_storage_sim_new(disk)};
    struct kv_shared_params p = params(&a, "a");
    p.bytes = 30 * (int64_t)a.layout.block_bytes;
    p.segment_bytes = 5 * (int64_t)a.layout.block_bytes;
    p.removals_per_s = 2;
    open_with(&a, &p);
    open_node(&b, disk, "b");
    struct node *all[] = {&a, &b};
    for (int i = 0; i < 20; i++) {
        cr_assert(store(&a, i));
        pass(all, 2, 120);
    }
    static struct ts_op slow;
    int zero = 0;
    cr_assert(has(&b, 0));
    kv_disk_hold(disk, KV_IO_READ, "seg-", true);
    ts_op_begin(&slow, b.tier, &b.layout, TS_READ, &zero, 1);
    for (int i = 20; i < 120; i++) {
        store(&a, i);
        pass(all, 2, 20);
    }
    kv_disk_hold(disk, KV_IO_READ, "seg-", false);
    int before = files_with(a.storage, "seg-");
    pass(all, 2, 1000);
    int after = files_with(a.storage, "seg-");
    cr_assert_le(before - after, 4 + 2, "%d segments removed in a second", before - after);
    cr_assert_eq(slow.done, 1);
    if (slow.op.count)
        cr_assert(ts_block_good(&b.layout, 0, slow.block[0].bytes));
    ts_op_free(&slow);
    pass(all, 2, 60000);
    cr_assert_gt(figures(&a).evicted, 20u);
    cr_assert_le(figures(&a).bytes, (uint64_t)p.bytes);
    cr_assert_not(has(&b, 0), "what is gone is found by nobody");
    close_node(&a);
    close_node(&b);
    kv_disk_free(disk);
}

/* Row 56: of one's own segments those go whose blocks nobody reads. */
Test(shared, what_is_used_is_kept)
{
    struct kv_disk *disk = kv_disk_new(8);
    struct node a = {.layout = ts_layout(256), .storage = kv_storage_sim_new(disk)};
    struct kv_shared_params p = params(&a, "a");
    p.bytes = 40 * (int64_t)a.layout.block_bytes;
    p.segment_bytes = 5 * (int64_t)a.layout.block_bytes;
    open_with(&a, &p);
    struct node *all[] = {&a};
    for (int i = 0; i < 10; i++)
        cr_assert(store(&a, i));
    pass(all, 1, 400);
    for (int k = 0; k < 40; k++)
        cr_assert(read_back(&a, 1));
    for (int i = 20; i < 60; i++) {
        cr_assert(store(&a, i));
        pass(all, 1, 120);
    }
    int others = 0;
    for (int i = 5; i < 30; i++)
        others += has(&a, i);
    cr_assert(has(&a, 1), "the block that was read went before %d others", others);
    cr_assert_not(has(&a, 7), "of the same age, and never read");
    close_node(&a);
    kv_disk_free(disk);
}

Test(shared, failed_writes_are_not_published)
{
    static const enum kv_io_op ops[] = {KV_IO_WRITE, KV_IO_SYNC, KV_IO_RENAME, KV_IO_OPEN};
    for (size_t f = 0; f < 4; f++) {
        struct kv_disk *disk = kv_disk_new(7);
        struct node a, b;
        open_node(&a, disk, "a");
        open_node(&b, disk, "b");
        struct node *all[] = {&a, &b};
        kv_disk_fail(disk, ops[f], "open-", 0, 1, f ? -EIO : -ENOSPC);
        store(&a, 1);
        pass(all, 2, 500);
        cr_assert_not(has(&b, 1), "fault %d", (int)f);
        cr_assert(figures(&a).read_only, "fault %d", (int)f);
        pass(all, 2, 3000);
        cr_assert_not(figures(&a).read_only);
        cr_assert(store(&a, 2));
        pass(all, 2, 500);
        cr_assert(read_back(&b, 2), "fault %d: it recovers", (int)f);
        cr_assert_eq(files_with(a.storage, "open-"), f == 2 ? 1 : 0, "fault %d leaves nothing open", (int)f);
        close_node(&a);
        close_node(&b);
        kv_disk_free(disk);
    }
}

/* ---- real processes ---- */

enum { WRITERS = 3, READERS = 2, KEYS = 60 };

/* A run on another file system (make test-shared) names its folder and takes longer. */
static int seconds(void)
{
    const char *s = getenv("WEFT_SHARED_SECONDS");
    return s ? atoi(s) : 3;
}

static int64_t real_ns(void *ctx)
{
    return kv_clock_system.now(ctx);
}

/* False: no io_uring, or no tier. */
static bool open_real(struct node *n, const char *folder, const char *name)
{
    struct cfg_error err;
    *n = (struct node){.layout = ts_layout(256)};
    if (kv_storage_uring_new(folder, 32, &n->storage, &err))
        return false;
    struct kv_shared_params p = params(n, name);
    p.clock = (struct kv_clock){real_ns, kv_clock_system.wall, NULL};
    p.seal_ns = 20 * MS;
    p.poll_ns = 10 * MS;
    p.orphan_ns = 1000 * MS;
    p.bytes = 50 * (int64_t)n->layout.block_bytes; /* files come and go all the time */
    p.direct = false;
    return kv_shared_new(&p, &n->tier, &err) == 0;
}

enum { PATIENCE_S = 60 };

static void turn_real(struct node *n)
{
    struct kv_storage_stats s;
    n->storage->ops->stat(n->storage, &s);
    if (!s.in_flight)
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    n->storage->ops->wait(n->storage, 20);
    n->tier->ops->tick(n->tier);
}

/* False: it does not end. */
static bool finish_real(struct node *n, const struct ts_op *o)
{
    int64_t end = real_ns(NULL) + PATIENCE_S * 1000 * MS;
    while (!o->done && real_ns(NULL) < end)
        turn_real(n);
    return o->done;
}

/* Stores, reads and drops random blocks until it is killed or the time is over. Exit status: 0; 1: wrong bytes. */
static void live(const char *folder, int number, bool writes)
{
    struct node n;
    char name[16];
    snprintf(name, sizeof name, "p%d", number);
    if (!open_real(&n, folder, name))
        _exit(2);
    srand((unsigned)number);
    int64_t end = real_ns(NULL) + seconds() * 1000 * MS;
    int good = 0;
    while (real_ns(NULL) < end) {
        static struct ts_op o;
        int k = rand() % KEYS;
        enum ts_verb verb = !writes || rand() % 3 == 0 ? TS_READ : rand() % 16 == 0 ? TS_DROP : TS_STORE;
        ts_op_begin(&o, n.tier, &n.layout, verb, &k, 1);
        if (!finish_real(&n, &o))
            _exit(5);
        if (verb == TS_READ && o.op.count == 1 && !ts_block_good(&n.layout, k, o.block[0].bytes))
            _exit(1);
        good += verb == TS_READ && o.op.count == 1;
        ts_op_free(&o);
        n.tier->ops->tick(n.tier);
        n.storage->ops->poll(n.storage);
    }
    close_node(&n);
    _exit(writes || good > 20 ? 0 : 4);
}

Test(shared, many_processes_and_killed_writers_in_one_folder, .timeout = 120)
{
    struct kv_storage *probe;
    struct cfg_error err;
    const char *given = getenv("WEFT_SHARED_DIR");
    char *folder = given ? strdup(given) : ts_temp_dir();
    if (kv_storage_uring_new(folder, 8, &probe, &err)) {
        free(folder);
        cr_skip_test("no io_uring here: %s", err.msg);
    }
    pid_t pid[WRITERS + READERS];
    for (int i = 0; i < WRITERS + READERS; i++) {
        pid[i] = fork();
        if (pid[i] == 0)
            live(folder, i, i < WRITERS);
    }
    /* The first writer dies again and again, wherever it is; the first reader stands still while files that it knows
     * go. */
    for (int k = 0; k < 8 * seconds() / 3; k++) {
        nanosleep(&(struct timespec){0, 150000000 + 7000000 * (k % 16)}, NULL);
        kill(pid[WRITERS], k % 4 == 1 ? SIGSTOP : SIGCONT);
        kill(pid[0], SIGKILL);
        int status;
        waitpid(pid[0], &status, 0);
        pid[0] = fork();
        if (pid[0] == 0)
            live(folder, 0, true);
    }
    kill(pid[0], SIGKILL);
    kill(pid[WRITERS], SIGCONT);
    for (int i = 0; i < WRITERS + READERS; i++) {
        int status;
        waitpid(pid[i], &status, 0);
        if (i)
            cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "process %d: %x", i, (unsigned)status);
    }
    kv_storage_free(probe);
    if (!given)
        ts_remove_dir(folder);
    free(folder);
}

/* One op of a child to its end. -1: it does not end. */
static int count_real(struct node *n, enum ts_verb verb, int block, bool *good)
{
    static struct ts_op o;
    ts_op_begin(&o, n->tier, &n->layout, verb, &block, 1);
    if (!finish_real(n, &o))
        return -1;
    int count = o.op.count;
    *good = verb != TS_READ || !count || ts_block_good(&n->layout, block, o.block[0].bytes);
    ts_op_free(&o);
    return count;
}

/* Until a lookup finds the block, or finds it no more. */
static bool wait_real(struct node *n, int block, bool there)
{
    int64_t end = real_ns(NULL) + PATIENCE_S * 1000 * MS;
    bool good;
    while (real_ns(NULL) < end) {
        int count = count_real(n, TS_LOOKUP, block, &good);
        if (count < 0 || (count == 1) == there)
            return count >= 0;
        turn_real(n);
    }
    return false;
}

/* Knows where block 7 lies, stands still until others are done with it, and reads it. Exit status: 0; 1: wrong bytes;
 * 2 and more: it did not get that far. */
static void stand_still(const char *folder)
{
    struct node n;
    bool good = true;
    if (!open_real(&n, folder, "still"))
        _exit(2);
    if (!wait_real(&n, 7, true))
        _exit(3);
    raise(SIGSTOP);
    for (int k = 0; k < 3; k++) /* with what it knew, and when it has looked again */
        if (count_real(&n, TS_READ, 7, &good) < 0 || !good)
            _exit(good ? 4 : 1);
    if (!wait_real(&n, 7, false))
        _exit(5);
    close_node(&n);
    _exit(0);
}

static bool stopped(pid_t pid)
{
    int status = 0;
    int64_t end = real_ns(NULL) + PATIENCE_S * 1000 * MS;
    while (real_ns(NULL) < end) {
        pid_t r = waitpid(pid, &status, WUNTRACED | WNOHANG);
        if (r)
            return r == pid && WIFSTOPPED(status);
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
    return false;
}

static bool store_all(struct node *n, int first, int blocks)
{
    bool good, all = true;
    for (int i = first; all && i < first + blocks; i++)
        all = count_real(n, TS_STORE, i, &good) == 1;
    return all;
}

/* A reader stands still while the block that it knows is dropped and its room is used again by others; a later process
 * and one that was there all the time see the drop. Nobody ever gets wrong bytes. */
Test(shared, many_drops_reach_all_and_a_reader_that_stands_still_gets_no_wrong_bytes, .timeout = 300)
{
    const char *given = getenv("WEFT_SHARED_DIR");
    char *folder = given ? NULL : ts_temp_dir(), path[512];
    struct node a, b;
    bool good;
    snprintf(path, sizeof path, "%s/still-%d", given ? given : folder, (int)getpid());
    cr_assert_eq(mkdir(path, 0700), 0);
    struct kv_storage *probe;
    struct cfg_error err;
    if (kv_storage_uring_new(path, 8, &probe, &err)) {
        rmdir(path);
        free(folder);
        cr_skip_test("no io_uring here: %s", err.msg);
    }
    kv_storage_free(probe);
    pid_t reader = fork(); /* before this process has threads */
    if (reader == 0)
        stand_still(path);
    cr_assert(open_real(&a, path, "a") && open_real(&b, path, "b"));
    cr_assert(store_all(&a, 0, 20));
    for (int64_t end = real_ns(NULL) + 100 * MS; real_ns(NULL) < end;)
        turn_real(&a);
    cr_assert(stopped(reader), "the reader has not found the block");
    cr_assert(wait_real(&b, 7, true));
    cr_assert_eq(count_real(&b, TS_DROP, 7, &good), 1, "any node may drop");
    cr_assert(wait_real(&a, 7, false), "the drop reaches the writer");
    /* The room that its segment had is wanted for others. */
    for (int round = 0; round < 4; round++)
        cr_assert(store_all(&a, 100 + 40 * round, 40));
    kill(reader, SIGCONT);
    int status = 0;
    cr_assert_eq(waitpid(reader, &status, 0), reader);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%x", (unsigned)status);
    close_node(&a);
    close_node(&b);
    cr_assert(open_real(&a, path, "later"));
    for (int64_t end = real_ns(NULL) + 200 * MS; real_ns(NULL) < end;)
        turn_real(&a);
    cr_assert_eq(count_real(&a, TS_LOOKUP, 7, &good), 0, "a later process sees the drop");
    close_node(&a);
    ts_remove_dir(path);
    if (folder)
        ts_remove_dir(folder);
    free(folder);
}
