/* Cases of shared_cases.def in one process, whose clock goes when it is told: many writers and readers of one folder, a
 * writer that dies at any write, damage, room. */
#include "tests/harness.h"

#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kvtiers/shared.h"
#include "tests/support/kv_blocks.h"
#include "tests/support/less.h"
#include "tests/support/shared_world.h"

#define MS INT64_C(1000000)

/* Holds; where hard errors come at random, until the first one has come. */
#define must(condition, ...) cr_assert((condition) || sw_error_came(disk), "" __VA_ARGS__)

struct node {
    struct kv_layout layout;
    bool direct;
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
                                     .orphan_ns = 6000 * MS,
                                     .removals_per_s = 10,
                                     .direct = n->direct,
                                     .clock = ts_clock};
}

static void open_with(struct node *n, const struct kv_shared_params *p)
{
    struct cfg_error err;
    cr_assert_eq(kv_shared_new(p, &n->tier, &err), 0, "%s", err.msg);
}

static struct node node_of(struct sw_disk *disk)
{
    return (struct node){.layout = ts_layout(256), .direct = sw_direct(disk), .storage = sw_storage(disk)};
}

static void open_node(struct node *n, struct sw_disk *disk, const char *name)
{
    *n = node_of(disk);
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

/* After errors the folder goes on as if nothing had been. */
static void finish(struct sw_disk *disk)
{
    struct node x, y;
    sw_faults_end(disk);
    if (sw_error_came(disk)) {
        ts_clock_s += 10;
        open_node(&x, disk, "x");
        open_node(&y, disk, "y");
        struct node *all[] = {&x, &y};
        cr_assert(store(&x, 900));
        pass(all, 2, 500);
        cr_assert(read_back(&y, 900), "it goes on after an error");
        close_node(&x);
        close_node(&y);
    }
    sw_disk_free(disk);
}

/* A sweep that leaves places out finds less. */
static int least(const struct sw_kind *kind)
{
    return kind->fewer ? kind->fewer + 1 : 1;
}

/* Of a sweep over places, those that this kind looks at. */
static int64_t stride(const struct sw_kind *kind, int usual, int many)
{
    int fewer = getenv("WEFT_SHARED_DIR") ? kind->fewer / 4 : kind->fewer; /* make test-shared */
    return (int64_t)ts_more(usual * (fewer ? fewer : 1), many);
}

/* A prefix that one node placed is used by another that never saw it. */
void sc_case_what_one_node_stores_another_reads(const struct sw_kind *kind)
{
    struct sw_disk *disk = sw_disk_new(kind, 1);
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
    must(o.op.count == 30);
    ts_op_free(&o);
    pass(all, 2, 600);
    ts_op_run(&o, b.tier, b.storage, &b.layout, TS_READ, n, 50);
    must(o.op.count == 30);
    for (int i = 0; i < o.op.count; i++)
        cr_assert(ts_block_good(&b.layout, i, o.block[i].bytes));
    ts_op_free(&o);
    must(figures(&b).blocks == 30);
    must(store(&b, 3), "what is there already is not written again");
    must(figures(&b).stored == 0);
    close_node(&a);
    open_node(&c, disk, "c");
    struct node *later[] = {&b, &c};
    pass(later, 2, 300);
    for (int i = 0; i < 30; i++)
        must(read_back(&c, i));
    close_node(&b);
    close_node(&c);
    finish(disk);
}

/* An orderly end seals what is open. */
void sc_case_an_orderly_end_loses_nothing(const struct sw_kind *kind)
{
    struct sw_disk *disk = sw_disk_new(kind, 2);
    struct node a, b;
    open_node(&a, disk, "a");
    for (int i = 0; i < 5; i++)
        must(store(&a, i));
    close_node(&a);
    open_node(&b, disk, "b");
    struct node *all[] = {&b};
    pass(all, 1, 200);
    for (int i = 0; i < 5; i++)
        must(read_back(&b, i));
    close_node(&b);
    finish(disk);
}

/* The machine of a writer stops at its n-th write point, for every n: what others find afterwards is right, what was
 * sealed is there, and what was left unfinished is removed by the writer's next life. */
static bool dies_at(const struct sw_kind *kind, uint64_t seed, int64_t point, enum kv_crash how)
{
    enum { KEYS = 36 };
    struct sw_disk *disk = sw_disk_new(kind, seed);
    struct node a, b;
    bool sealed[KEYS] = {0};
    static struct ts_op o;
    open_node(&a, disk, "a");
    struct node *one[] = {&a};
    sw_stop_after(disk, point);
    for (int i = 0; i < KEYS && !sw_stopped(disk); i += 3) {
        int three[] = {i, i + 1, i + 2};
        ts_op_run(&o, a.tier, a.storage, &a.layout, TS_STORE, three, 3);
        if (sw_stopped(disk))
            break;
        for (int k = 0; k < 100 && !o.done; k++)
            pass(one, 1, 20);
        if (o.done)
            ts_op_free(&o);
        if (i % 6 == 3)
            pass(one, 1, 300);
        for (int k = 0; k < KEYS && !sw_stopped(disk); k++)
            sealed[k] = has(&a, k); /* it finds its own only in sealed segments */
    }
    bool stopped = sw_stopped(disk);
    close_node(&a);
    ts_op_free(&o);
    sw_crash(disk, how);
    ts_clock_s += 10;
    open_node(&a, disk, "a");
    open_node(&b, disk, "b");
    struct node *all[] = {&a, &b};
    pass(all, 2, 2000);
    for (int k = 0; k < KEYS; k++) {
        bool here = read_back(&b, k);
        must(here || !sealed[k], "seed %d, point %d: block %d was sealed and is lost", (int)seed, (int)point, k);
    }
    must(store(&a, 500));
    pass(all, 2, 500);
    must(read_back(&b, 500));
    close_node(&a);
    close_node(&b);
    finish(disk);
    return stopped;
}

static void dies_everywhere(const struct sw_kind *kind, enum kv_crash how)
{
    for (int seed = 0; seed < ts_more(1, kind->fewer ? 1 : 10); seed++) {
        int64_t by = stride(kind, 1, 1), point = (int64_t)(sw_round() * 3) % by;
        while (dies_at(kind, (uint64_t)(1000 * seed + point + 3), point, how))
            point += by;
        /* After an error less is written. */
        cr_assert_gt(point, kind->errors ? 30 : 100, "%d write points", (int)point);
    }
}

void sc_case_a_writer_that_dies_at_any_write_harms_nobody(const struct sw_kind *kind)
{
    dies_everywhere(kind, KV_CRASH_KILL);
}

static void skip_without_power(const struct sw_kind *kind)
{
    if (kind->io != SW_MEMORY)
        cr_skip_test("the power of a real machine stays on: what was not flushed is there all the same");
}

void sc_case_a_writer_whose_machine_loses_power_harms_nobody(const struct sw_kind *kind)
{
    skip_without_power(kind);
    dies_everywhere(kind, KV_CRASH_POWER);
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
void sc_case_orphans_are_collected(const struct sw_kind *kind)
{
    for (int other = 0; other < 2; other++) {
        struct sw_disk *disk = sw_disk_new(kind, 4);
        struct node a, b;
        open_node(&a, disk, "a");
        must(store(&a, 1));
        must(files_with(a.storage, "open-") == 1);
        sw_stop_after(disk, 0);
        static struct ts_op o;
        int two = 2;
        ts_op_run(&o, a.tier, a.storage, &a.layout, TS_STORE, &two, 1);
        close_node(&a);
        ts_op_free(&o);
        sw_crash(disk, KV_CRASH_KILL);
        ts_clock_s += 10;
        open_node(&b, disk, other ? "b" : "a");
        struct node *all[] = {&b};
        pass(all, 1, 500);
        must(files_with(b.storage, "open-") == other, "%s", other ? "somebody may still write" : "it is dead");
        pass(all, 1, 6500);
        cr_assert_eq(files_with(b.storage, "open-"), 0);
        cr_assert_not(has(&b, 1));
        close_node(&b);
        finish(disk);
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
}

/* What is done to a disk on which node a has sealed blocks 0 to 5 in one segment and 6 to 11 in another one, and has
 * dropped 10 and 11: change number n. */
enum changed { CHANGED, NO_FILE /* errors have kept it from being */, NO_MORE };
typedef enum changed change(const struct sw_kind *kind, struct sw_disk *disk, struct kv_storage *s, int64_t n);

static enum changed flip_byte(struct sw_disk *disk, const char *name, int64_t at)
{
    uint8_t byte;
    if (at >= sw_size(disk, name))
        return NO_MORE;
    sw_peek(disk, name, at, &byte, 1);
    byte ^= 0x41;
    sw_poke(disk, name, at, &byte, 1);
    return CHANGED;
}

/* The first file of this kind; false: errors have kept it from being. */
static bool first_of(struct sw_disk *disk, struct kv_storage *s, const char *beginning, int n, char name[128])
{
    name_of(s, beginning, n, name);
    must(name[0], "no file %s", beginning);
    return name[0];
}

static enum changed flip_drop(const struct sw_kind *kind, struct sw_disk *disk, struct kv_storage *s, int64_t n)
{
    char name[128];
    return first_of(disk, s, "drop-", 0, name) ? flip_byte(disk, name, n * stride(kind, 61, 7)) : NO_FILE;
}

/* Each change on a disk of its own. What a later node delivers is right, what it cannot is not offered again, and it
 * goes on. Where hard errors come at random, each is made twice: first without any, which shows what the change alone
 * does and when there are no more, then with them, at other places each time. Returns the misses of blocks 0 to 9
 * without an error. */
static int damage(const struct sw_kind *kind, change *how)
{
    int misses = 0, times = kind->errors ? 2 : 1;
    for (int64_t k = 0;; k++) {
        int64_t n = k / times;
        bool with = k % times;
        struct sw_disk *disk = sw_disk_new(kind, with ? 6 + (uint64_t)n : 5);
        if (!with)
            sw_faults_end(disk);
        struct node a, b;
        open_node(&a, disk, "a");
        struct node *one[] = {&a};
        for (int i = 0; i < 12; i++) {
            must(store(&a, i));
            if (i == 5)
                pass(one, 1, 300);
        }
        pass(one, 1, 300);
        static struct ts_op o;
        const int last[2] = {10, 11};
        ts_op_run(&o, a.tier, a.storage, &a.layout, TS_DROP, last, 2);
        pass(one, 1, 100);
        cr_assert(o.done);
        must(o.op.count == 2);
        bool dropped = o.op.count == 2 && !o.op.status;
        ts_op_free(&o);
        close_node(&a);
        open_node(&b, disk, "b");
        enum changed changed = how(kind, disk, b.storage, n);
        bool any = changed == CHANGED;
        struct node *all[] = {&b};
        bool back[12];
        pass(all, 1, 300);
        for (int i = 0; i < 12; i++) {
            bool offered = has(&b, i), good = read_back(&b, i);
            misses += !good && i < 10 && !sw_error_came(disk);
            back[i] = good;
            must(any || good == (i < 10), "block %d of what is whole", i);
            cr_assert(any || !good || i < 10 || !dropped, "block %d was dropped", i);
            must(good || !offered || !has(&b, i), "a bad block is dropped; one that an error hid is tried again");
        }
        if (how == flip_drop)
            must(back[10] == back[11], "a drop holds as a whole, or not at all");
        must(store(&b, 100));
        pass(all, 1, 500);
        must(read_back(&b, 100), "it goes on");
        bool no_more = changed == NO_MORE && !sw_error_came(disk);
        close_node(&b);
        finish(disk);
        if (no_more)
            return misses;
    }
}

static enum changed flip(const struct sw_kind *kind, struct sw_disk *disk, struct kv_storage *s, int64_t n)
{
    char name[128];
    return first_of(disk, s, "seg-", 0, name) ? flip_byte(disk, name, n * stride(kind, 977, 61)) : NO_FILE;
}

/* Row 55: every byte of a sealed segment, flipped, is a miss or the right bytes. */
void sc_case_a_flipped_byte_anywhere_is_a_miss(const struct sw_kind *kind)
{
    cr_assert_gt(damage(kind, flip), 20 / least(kind));
}

/* A drop that cannot be read costs nothing but itself. */
void sc_case_a_flipped_byte_of_a_drop_harms_nothing_else(const struct sw_kind *kind)
{
    cr_assert_eq(damage(kind, flip_drop), 0);
}

static enum changed cut(const struct sw_kind *kind, struct sw_disk *disk, struct kv_storage *s, int64_t n)
{
    char name[128];
    if (!first_of(disk, s, n % 2 ? "drop-" : "seg-", 0, name))
        return NO_FILE;
    int64_t size = sw_size(disk, name), to = n / 2 * stride(kind, 1365, 1365); /* three places per page */
    if (to < size)
        sw_truncate(disk, name, to);
    return n % 2 || to < size ? CHANGED : NO_MORE;
}

void sc_case_truncated_files_are_misses(const struct sw_kind *kind)
{
    cr_assert_gt(damage(kind, cut), 50 / least(kind));
}

/* Two pages of a segment, or one of each segment. */
static enum changed exchange(const struct sw_kind *kind, struct sw_disk *disk, struct kv_storage *s, int64_t n)
{
    char name[2][128];
    if (!first_of(disk, s, "seg-", 0, name[0]) || !first_of(disk, s, "seg-", 1, name[1]))
        return NO_FILE;
    int64_t pages = sw_size(disk, name[0]) / KV_PAGE, pairs = 0, wanted = n * stride(kind, 5, 1);
    for (int64_t a = 0; a < pages; a++)
        for (int64_t b = 0; b < pages; b++) {
            if (a == b || pairs++ != wanted)
                continue;
            uint8_t one[KV_PAGE], two[KV_PAGE];
            const char *other = name[a > b];
            if ((b + 1) * KV_PAGE > sw_size(disk, other))
                continue;
            sw_peek(disk, name[0], a * KV_PAGE, one, KV_PAGE);
            sw_peek(disk, other, b * KV_PAGE, two, KV_PAGE);
            sw_poke(disk, name[0], a * KV_PAGE, two, KV_PAGE);
            sw_poke(disk, other, b * KV_PAGE, one, KV_PAGE);
            return CHANGED;
        }
    return NO_MORE;
}

void sc_case_pages_in_each_others_place_are_misses(const struct sw_kind *kind)
{
    cr_assert_gt(damage(kind, exchange), 20 / least(kind));
}

/* A segment under the name of another one. */
static enum changed rename_all(const struct sw_kind *kind, struct sw_disk *disk, struct kv_storage *s, int64_t n)
{
    char name[2][128];
    (void)kind;
    if (n)
        return NO_MORE;
    if (!first_of(disk, s, "seg-", 0, name[0]) || !first_of(disk, s, "seg-", 1, name[1]))
        return NO_FILE;
    const char *const from[] = {name[0], name[1], "seg-x"}, *const to[] = {"seg-x", name[0], name[1]};
    for (int i = 0; i < 3; i++) {
        struct kv_io io = {.op = KV_IO_RENAME, .path = from[i], .path2 = to[i]};
        cr_assert_eq(kv_io_run(s, &io), 0);
    }
    return CHANGED;
}

void sc_case_segments_under_each_others_names_are_no_danger(const struct sw_kind *kind)
{
    damage(kind, rename_all);
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
void sc_case_drops_outlive_the_process_and_reach_the_others(const struct sw_kind *kind)
{
    struct sw_disk *disk = sw_disk_new(kind, 31);
    struct node a, b;
    open_node(&a, disk, "a");
    open_node(&b, disk, "b");
    struct node *all[] = {&a, &b};
    for (int i = 0; i < 30; i++)
        must(store(&a, i));
    pass(all, 2, 600);
    must(has(&b, 7) && has(&b, 29));
    bool gone[30], dropped = drop(&b, 5, 10, all, 2);
    must(dropped, "any node may drop");
    pass(all, 2, 200);
    for (int i = 0; i < 30; i++)
        gone[i] = dropped && i >= 5 && i < 15;
    for (int life = 0; life < 2; life++) {
        for (int i = 0; i < 30; i++)
            for (int k = 0; k < 2; k++)
                if (gone[i])
                    cr_assert_not(has(all[k], i), "life %d: node %d has block %d, which was dropped", life, k, i);
                else
                    must(read_back(all[k], i), "life %d: node %d, block %d", life, k, i);
        close_node(&a);
        close_node(&b);
        open_node(&a, disk, "a");
        open_node(&b, disk, "b");
        pass(all, 2, 600);
    }
    must(store(&a, 7));
    pass(all, 2, 600);
    must(read_back(&b, 7), "stored again");
    close_node(&a);
    close_node(&b);
    finish(disk);
}

/* Also what its segment has not published yet; and when all of a segment is dropped, the files go. */
void sc_case_drops_before_the_seal_and_of_whole_segments_leave_no_files(const struct sw_kind *kind)
{
    struct sw_disk *disk = sw_disk_new(kind, 32);
    struct node a, b;
    open_node(&a, disk, "a");
    open_node(&b, disk, "b");
    struct node *all[] = {&a, &b};
    pass(all, 2, 100);
    for (int i = 0; i < 6; i++)
        must(store(&a, i));
    bool dropped = drop(&a, 2, 2, all, 2);
    must(dropped, "not sealed yet");
    pass(all, 2, 600);
    for (int i = 0; i < 6; i++)
        if (i == 2 || i == 3)
            cr_assert(!dropped || !has(&b, i), "block %d", i);
        else
            must(has(&b, i), "block %d", i);
    must(drop(&a, 0, 2, all, 2));
    must(drop(&b, 4, 2, all, 2));
    pass(all, 2, 2000);
    must(files_with(a.storage, "seg-") == 0, "a segment without blocks");
    must(files_with(a.storage, "drop-") == 2, "a folder may show its names late");
    pass(all, 2, 7000);
    must(files_with(a.storage, "drop-") == 0, "drops without a segment");
    close_node(&a);
    close_node(&b);
    finish(disk);
}

/* A writer of drops that dies at any write: a drop that was reported holds in every later life, others may; nothing
 * else is lost, and nothing that is left over stays. */
static void drops_survive(const struct sw_kind *kind, enum kv_crash how)
{
    for (int64_t n = 0, end = 0; !end; n++) {
        struct sw_disk *disk = sw_disk_new(kind, (uint64_t)n + 90);
        struct node a, b;
        static struct ts_op o;
        int block[4] = {3, 4, 5, 6};
        open_node(&a, disk, "a");
        struct node *all[] = {&a};
        for (int i = 0; i < 10; i++)
            must(store(&a, i));
        pass(all, 1, 600);
        sw_stop_after(disk, n);
        ts_op_run(&o, a.tier, a.storage, &a.layout, TS_DROP, block, 4);
        for (int i = 0; i < 20 && !o.done && !sw_stopped(disk); i++)
            pass(all, 1, 20);
        bool reported = o.done && !o.op.status;
        end = !sw_stopped(disk);
        must(!end || reported);
        sw_stop_after(disk, -1);
        close_node(&a);
        if (!end)
            sw_crash(disk, how);
        ts_op_free(&o);
        ts_clock_s++;
        open_node(&b, disk, "a");
        struct node *later[] = {&b};
        pass(later, 1, 1000);
        for (int i = 0; i < 10; i++)
            if (i < 3 || i > 6)
                must(read_back(&b, i), "point %d: block %d is lost", (int)n, i);
            else if (reported)
                cr_assert_not(has(&b, i), "point %d: block %d is back", (int)n, i);
        must(files_with(b.storage, "open-") == 0);
        close_node(&b);
        end &= !sw_error_came(disk) || n > 20; /* it ended early */
        finish(disk);
    }
}

void sc_case_a_drop_that_was_reported_survives_the_end_of_its_process(const struct sw_kind *kind)
{
    drops_survive(kind, KV_CRASH_KILL);
}

void sc_case_a_drop_that_was_reported_survives_a_loss_of_power(const struct sw_kind *kind)
{
    skip_without_power(kind);
    drops_survive(kind, KV_CRASH_POWER);
}

/* As many files of drops as removals are allowed, however many ask. */
void sc_case_drops_are_limited_in_rate_and_gathered(const struct sw_kind *kind)
{
    struct sw_disk *disk = sw_disk_new(kind, 33);
    struct node a = node_of(disk);
    struct kv_shared_params p = params(&a, "a");
    p.removals_per_s = 1;
    open_with(&a, &p);
    struct node *all[] = {&a};
    static struct ts_op o[40];
    for (int i = 0; i < 40; i++)
        must(store(&a, i));
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
    must(files >= 1, "%d files", files);
    cr_assert_le(files, 4);
    close_node(&a);
    finish(disk);
}

/* Old segments of one's own make room, a few per second; a reader that had begun reads to its end. */
void sc_case_room_is_made_slowly_and_harms_no_reader(const struct sw_kind *kind)
{
    struct sw_disk *disk = sw_disk_new(kind, 6);
    struct node a, b;
    a = node_of(disk);
    struct kv_shared_params p = params(&a, "a");
    p.bytes = 30 * (int64_t)a.layout.block_bytes;
    p.segment_bytes = 5 * (int64_t)a.layout.block_bytes;
    p.removals_per_s = 2;
    open_with(&a, &p);
    open_node(&b, disk, "b");
    struct node *all[] = {&a, &b};
    for (int i = 0; i < 15; i++) {
        must(store(&a, i));
        pass(all, 2, 120);
    }
    static struct ts_op slow;
    int zero = 0;
    must(has(&b, 0));
    sw_hold(disk, KV_IO_READ, "seg-", true);
    ts_op_begin(&slow, b.tier, &b.layout, TS_READ, &zero, 1);
    for (int i = 20; i < 120; i++) {
        store(&a, i);
        pass(all, 2, 20);
    }
    sw_hold(disk, KV_IO_READ, "seg-", false);
    int before = files_with(a.storage, "seg-");
    pass(all, 2, 1000);
    int after = files_with(a.storage, "seg-");
    cr_assert_le(before - after, 4 + 2, "%d segments removed in a second", before - after);
    cr_assert_eq(slow.done, 1);
    if (slow.op.count)
        cr_assert(ts_block_good(&b.layout, 0, slow.block[0].bytes));
    ts_op_free(&slow);
    pass(all, 2, 20000);
    must(figures(&a).evicted > 20);
    cr_assert_le(figures(&a).bytes, (uint64_t)p.bytes);
    must(!has(&b, 0), "what is gone is found by nobody");
    close_node(&a);
    close_node(&b);
    finish(disk);
}

/* Row 56: of one's own segments those go whose blocks nobody reads. */
void sc_case_what_is_used_is_kept(const struct sw_kind *kind)
{
    struct sw_disk *disk = sw_disk_new(kind, 8);
    struct node a = node_of(disk);
    struct kv_shared_params p = params(&a, "a");
    p.bytes = 40 * (int64_t)a.layout.block_bytes;
    p.segment_bytes = 5 * (int64_t)a.layout.block_bytes;
    open_with(&a, &p);
    struct node *all[] = {&a};
    for (int i = 0; i < 10; i++)
        must(store(&a, i));
    pass(all, 1, 400);
    for (int k = 0; k < 40; k++)
        must(read_back(&a, 1));
    for (int i = 20; i < 60; i++) {
        must(store(&a, i));
        pass(all, 1, 120);
    }
    int others = 0;
    for (int i = 5; i < 30; i++)
        others += has(&a, i);
    must(has(&a, 1), "the block that was read went before %d others", others);
    must(!has(&a, 7), "of the same age, and never read");
    close_node(&a);
    finish(disk);
}

void sc_case_failed_writes_are_not_published(const struct sw_kind *kind)
{
    static const enum kv_io_op ops[] = {KV_IO_WRITE, KV_IO_SYNC, KV_IO_RENAME, KV_IO_OPEN};
    for (size_t f = 0; f < 4; f++) {
        struct sw_disk *disk = sw_disk_new(kind, 7);
        struct node a, b;
        open_node(&a, disk, "a");
        open_node(&b, disk, "b");
        struct node *all[] = {&a, &b};
        sw_fail(disk, ops[f], "open-", 0, 1, f ? -EIO : -ENOSPC);
        store(&a, 1);
        pass(all, 2, 500);
        cr_assert_not(has(&b, 1), "fault %d", (int)f);
        must(figures(&a).read_only, "fault %d", (int)f);
        pass(all, 2, 3000);
        must(!figures(&a).read_only);
        must(store(&a, 2));
        pass(all, 2, 500);
        must(read_back(&b, 2), "fault %d: it recovers", (int)f);
        must(files_with(a.storage, "open-") == (f == 2), "fault %d leaves nothing open", (int)f);
        close_node(&a);
        close_node(&b);
        finish(disk);
    }
}

/* All blocks in one read, so that all their segments are wanted at a time. */
static int read_all(struct node *n, int blocks)
{
    static struct ts_op o;
    int number[TS_BLOCKS_MAX], good = 0;
    for (int i = 0; i < blocks; i++)
        number[i] = i;
    ts_op_run(&o, n->tier, n->storage, &n->layout, TS_READ, number, blocks);
    cr_assert_eq(o.done, 1);
    for (; good < o.op.count; good++)
        cr_assert(ts_block_good(&n->layout, good, o.block[good].bytes), "block %d", good);
    ts_op_free(&o);
    return good;
}

/* Segments of one block each. */
static void store_small(struct sw_disk *disk, struct node *n, int segments)
{
    for (int i = 0; i < segments; i++) {
        must(store(n, i));
        pass(&n, 1, 120);
    }
}

/* Files of segments that were not used for longest are closed for those that are wanted; none is in the middle of a
 * read. Where the system has fewer than thought, it goes on with these. */
void sc_case_more_segments_than_files_may_be_open(const struct sw_kind *kind)
{
    enum { FILES = 3, SEGMENTS = 14 };
    struct sw_disk *disk = sw_disk_new(kind, 41);
    struct node a, b = node_of(disk), *one[] = {&b};
    open_node(&a, disk, "a");
    store_small(disk, &a, SEGMENTS);
    struct kv_shared_params p = params(&b, "b");
    p.files = FILES;
    open_with(&b, &p);
    pass(one, 1, 400);
    for (int k = 0; k < 3; k++) {
        must(read_all(&b, SEGMENTS) == SEGMENTS);
        for (int i = SEGMENTS - 1; i >= 0; i -= 2)
            must(read_back(&b, i));
    }
    cr_assert_leq(sw_most_open(b.storage), FILES);
    for (int times = 1; times < 40; times += 13) {
        sw_fail(disk, KV_IO_OPEN, "seg-", 0, times, -EMFILE);
        int tries = 0;
        while (read_all(&b, SEGMENTS) < SEGMENTS && ++tries < 40)
            pass(one, 1, 8000);
        must(tries < 40, "%d times too many files", times);
    }
    cr_assert_leq(sw_most_open(b.storage), FILES);
    close_node(&a);
    close_node(&b);
    finish(disk);
}

/* With a limit of descriptors (ulimit -n) far below the number of segments. */
void sc_case_a_process_with_few_descriptors_reads_all(const struct sw_kind *kind)
{
    enum { SEGMENTS = 60, DESCRIPTORS = 24 };
    if (kind->io == SW_MEMORY)
        cr_skip_test("a disk in memory has no descriptors");
    struct sw_disk *disk = sw_disk_new(kind, 42);
    struct node a, b = node_of(disk), *one[] = {&b};
    struct rlimit was, few;
    open_node(&a, disk, "a");
    store_small(disk, &a, SEGMENTS);
    close_node(&a);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &was), 0);
    int next = dup(0); /* the lowest free one */
    close(next);
    few = (struct rlimit){(rlim_t)next + DESCRIPTORS, was.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    struct kv_shared_params p = params(&b, "b");
    open_with(&b, &p);
    pass(one, 1, 2000);
    read_all(&b, SEGMENTS);
    pass(one, 1, 8000);
    must(read_all(&b, SEGMENTS) == SEGMENTS);
    must(store(&b, 500), "and there is one left to write");
    pass(one, 1, 8000);
    must(read_back(&b, 500));
    close_node(&b);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
    finish(disk);
}
