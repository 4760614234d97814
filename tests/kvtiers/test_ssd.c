/* The ssd tier on a disk that loses power, tears, reorders and fails: never a wrong byte, never a lost block that was
 * reported durable, and always a tier that goes on. */
#include "tests/harness.h"

#include "tests/support/kv_blocks.h"
#include "tests/support/less.h"
#include "tests/support/ssd_rig.h"

Test(ssd, blocks_come_back_after_a_restart)
{
    struct ts_ssd r;
    ts_ssd_new(&r, 1, 64);
    for (int i = 0; i < 40; i++)
        cr_assert(ts_ssd_store(&r, i));
    ts_ssd_close(&r);
    ts_ssd_open(&r);
    cr_assert_eq(ts_ssd_stat(&r).blocks, 40u);
    for (int i = 0; i < 40; i++)
        cr_assert(ts_ssd_read_back(&r, i), "block %d", i);
    cr_assert_not(ts_ssd_has(&r, 40));
    ts_ssd_free(&r);
}

Test(ssd, a_long_prefix_is_stored_and_read_in_one_op)
{
    struct ts_ssd r;
    static struct ts_op o;
    int n[100];
    ts_ssd_new(&r, 2, 400);
    for (int i = 0; i < 100; i++)
        n[i] = i;
    ts_op_run(&o, r.tier, r.storage, &r.layout, TS_STORE, n, 100);
    cr_assert_eq(o.done, 1);
    cr_assert_eq(o.op.count, 100);
    ts_op_free(&o);
    ts_op_run(&o, r.tier, r.storage, &r.layout, TS_READ, n, 100);
    cr_assert_eq(o.done, 1);
    cr_assert_eq(o.n_rows, 2);
    cr_assert_eq(o.op.count, 100);
    for (int i = 0; i < 100; i++)
        cr_assert(ts_block_good(&r.layout, i, o.block[i].bytes));
    ts_op_free(&o);
    ts_ssd_free(&r);
}

/* Rows 41, 55: a block is bound to its name; nothing of another block, source or use of the place is delivered. */
Test(ssd, old_blocks_make_room_and_never_show_their_bytes_again)
{
    struct ts_ssd r;
    ts_ssd_new(&r, 3, 32);
    for (int i = 0; i < 400; i++) {
        cr_assert(ts_ssd_store(&r, i), "block %d finds room", i);
        if (i % 7 == 0)
            ts_ssd_read_back(&r, i / 2); /* there or not, but never wrong */
    }
    cr_assert_gt(ts_ssd_stat(&r).evicted, 300u);
    int here = 0;
    for (int i = 0; i < 400; i++)
        here += ts_ssd_read_back(&r, i);
    cr_assert_gt(here, 8);
    cr_assert_le(here, 32);
    ts_ssd_close(&r);
    ts_ssd_open(&r);
    for (int i = 0; i < 400; i++)
        ts_ssd_read_back(&r, i);
    cr_assert_eq(ts_ssd_stat(&r).bad, 0u, "the index says nothing false after an orderly end");
    ts_ssd_free(&r);
}

/* The systematic one. Stores, evictions, drops and reads run until the disk stops at its n-th write point, for every n;
 * what was reported durable before, and was not evicted or dropped since, must be there afterwards. */
static bool crash_at(uint64_t seed, int64_t point, enum kv_crash how)
{
    enum { KEYS = 60 };
    struct ts_ssd r;
    bool durable[KEYS] = {0}, touched[KEYS] = {0};
    ts_ssd_new(&r, seed, 24);
    static struct ts_op o;
    kv_disk_stop_after(r.disk, point);
    for (int i = 0; i < KEYS && !kv_disk_stopped(r.disk); i++) {
        int some[8], n = i % 9 == 8 ? 8 : 2; /* eight need more slabs than are emptied ahead */
        for (int k = 0; k < n; k++)
            some[k] = (i + k) % KEYS;
        ts_op_run(&o, r.tier, r.storage, &r.layout, TS_STORE, some, n);
        for (int k = 0; k < n && o.done; k++)
            durable[some[k]] |= o.op.count == n;
        if (o.done)
            ts_op_free(&o); /* otherwise the process that dies has it */
        if (i % 5 == 4 && !kv_disk_stopped(r.disk)) {
            int gone = i - 2;
            ts_op_run(&o, r.tier, r.storage, &r.layout, TS_DROP, &gone, 1);
            touched[gone] = true;
            if (o.done)
                ts_op_free(&o);
        }
        for (int k = 0; k < KEYS && !kv_disk_stopped(r.disk); k++)
            if (durable[k] && !ts_ssd_has(&r, k))
                durable[k] = false; /* evicted, which may or may not be durable */
    }
    bool stopped = kv_disk_stopped(r.disk);
    /* An eviction may have begun in the op that never ended. */
    bool visible[KEYS];
    for (int k = 0; k < KEYS; k++)
        visible[k] = durable[k] && !touched[k] && ts_ssd_has(&r, k);
    ts_ssd_crash(&r, how);
    ts_op_free(&o);
    ts_ssd_open(&r);
    for (int k = 0; k < KEYS; k++) {
        bool here = ts_ssd_read_back(&r, k);
        cr_assert(here || !visible[k], "seed %d, point %d, %s: block %d was durable and is lost", (int)seed, (int)point,
                  how == KV_CRASH_POWER ? "power" : "kill", k);
        if (here)
            cr_assert(ts_ssd_has(&r, k));
    }
    cr_assert_eq(ts_ssd_stat(&r).bad, 0u, "seed %d, point %d: the index names what is not there", (int)seed,
                 (int)point);
    for (int k = 0; k < 4; k++)
        cr_assert(ts_ssd_store(&r, 1000 + k) && ts_ssd_read_back(&r, 1000 + k), "the tier goes on after point %d",
                  (int)point);
    ts_ssd_free(&r);
    return stopped;
}

Test(ssd, a_crash_at_every_write_point_loses_nothing_durable, .timeout = 3600)
{
    for (int how = 0; how < 2; how++)
        for (uint64_t seed = 1; seed <= (uint64_t)ts_more(2, 40); seed++)
            for (int64_t point = 0; crash_at(seed, point, (enum kv_crash)how); point++)
                ;
}

/* The same while the tier is being made. */
Test(ssd, a_crash_while_it_is_made)
{
    for (int64_t point = 0;; point++) {
        struct ts_ssd r = {.disk = kv_disk_new((uint64_t)point + 9), .layout = ts_layout(256), .blocks = 24};
        struct cfg_error err;
        kv_disk_stop_after(r.disk, point);
        int made = ts_ssd_try(&r, &err);
        if (made == 0)
            ts_ssd_settle(&r);
        bool stopped = kv_disk_stopped(r.disk);
        ts_ssd_crash(&r, KV_CRASH_POWER);
        ts_ssd_open(&r);
        cr_assert(ts_ssd_store(&r, 1) && ts_ssd_read_back(&r, 1));
        ts_ssd_free(&r);
        if (!stopped)
            break;
    }
}

/* Twelve blocks on a new disk, in the files of a tier that has ended. */
static void twelve(struct ts_ssd *r)
{
    kv_disk_free(r->disk);
    r->disk = kv_disk_new(5);
    ts_ssd_open(r);
    for (int i = 0; i < 12; i++)
        cr_assert(ts_ssd_store(r, i));
    ts_ssd_close(r);
}

/* What the index says beside places: what was stored, whatever became of the page. */
static void check_info(void *ctx, const struct kv_key *key, const struct kv_block_info *info, int64_t age_s)
{
    (void)ctx;
    (void)key;
    cr_assert_eq(info->taint, KV_CLEAN);
    cr_assert_eq(info->hit, 0);
    cr_assert(age_s >= 0 && age_s < 1000, "%lld s", (long long)age_s);
}

/* A tier on files that were changed behind its back: what it delivers is right, what it cannot is dropped, and it goes
 * on. Returns the misses. */
static int open_damaged(struct ts_ssd *r, bool index_whole)
{
    int misses = 0;
    ts_ssd_open(r);
    r->tier->ops->each(r->tier, check_info, NULL);
    for (int i = 0; i < 12; i++) {
        bool offered = ts_ssd_has(r, i), good = ts_ssd_read_back(r, i);
        misses += !good;
        cr_assert(good || !offered || !ts_ssd_has(r, i), "a bad block is dropped");
    }
    cr_assert(ts_ssd_store(r, 50) && ts_ssd_read_back(r, 50), "it goes on");
    cr_assert(ts_ssd_stat(r).bad == 0 || !index_whole, "the index has named what is not there");
    ts_ssd_close(r);
    return misses;
}

/* Pages of 4 KiB of a file in each other's place. */
Test(ssd, pages_in_each_others_place_are_misses, .timeout = 3600)
{
    static const char *const files[] = {"weft-kv.index", "weft-kv.000"};
    struct ts_ssd r = {.layout = ts_layout(256), .blocks = 16};
    int misses = 0, step = ts_more(3, 1);
    twelve(&r);
    for (int f = 0; f < 2; f++) {
        int pages = (int)(kv_disk_size(r.disk, files[f]) / KV_PAGE);
        for (int a = 0; a < pages && a < 40; a++)
            for (int b = a + 1; b < pages && b < 40; b += step) {
                uint8_t *bytes = kv_disk_bytes(r.disk, files[f]), keep[KV_PAGE];
                memcpy(keep, bytes + a * KV_PAGE, KV_PAGE);
                memmove(bytes + a * KV_PAGE, bytes + b * KV_PAGE, KV_PAGE);
                memcpy(bytes + b * KV_PAGE, keep, KV_PAGE);
                misses += open_damaged(&r, f == 0);
                twelve(&r);
            }
    }
    cr_assert_gt(misses, 100, "%d", misses);
    ts_ssd_free(&r);
}

/* One file as it was some time ago, the other as it is now. */
Test(ssd, an_older_file_beside_a_newer_one_is_a_miss, .timeout = 3600)
{
    static const char *const files[] = {"weft-kv.index", "weft-kv.000"};
    struct ts_ssd r = {.layout = ts_layout(256), .blocks = 16};
    for (int f = 0; f < 2; f++)
        for (int more = 1; more <= 40; more += ts_more(3, 1)) {
            twelve(&r);
            size_t size = (size_t)kv_disk_size(r.disk, files[f]);
            uint8_t *old = malloc(size);
            memcpy(old, kv_disk_bytes(r.disk, files[f]), size);
            ts_ssd_open(&r);
            for (int i = 0; i < more; i++)
                cr_assert(ts_ssd_store(&r, 100 + i));
            ts_ssd_close(&r);
            memcpy(kv_disk_bytes(r.disk, files[f]), old, size);
            free(old);
            ts_ssd_open(&r);
            for (int i = 0; i < more; i++)
                ts_ssd_read_back(&r, 100 + i);
            ts_ssd_close(&r);
            open_damaged(&r, false);
        }
    ts_ssd_free(&r);
}

/* Rows 52, 55: every byte of data and index, flipped, is a miss or the right bytes, and a bad block is not tried twice
 * (54). */
Test(ssd, a_flipped_byte_anywhere_is_a_miss, .timeout = 3600)
{
    static const char *const files[] = {"weft-kv.index", "weft-kv.000"};
    struct ts_ssd r;
    ts_ssd_new(&r, 5, 16);
    for (int i = 0; i < 12; i++)
        cr_assert(ts_ssd_store(&r, i));
    ts_ssd_close(&r);
    int misses = 0;
    for (int f = 0; f < 2; f++)
        for (int64_t at = 0; at < kv_disk_size(r.disk, files[f]); at += f ? ts_more(1021, 61) : ts_more(61, 1)) {
            uint8_t *b = kv_disk_bytes(r.disk, files[f]);
            b[at] ^= 0x41;
            ts_ssd_open(&r);
            r.tier->ops->each(r.tier, check_info, NULL);
            for (int i = 0; i < 12; i++)
                if (ts_ssd_has(&r, i) && !ts_ssd_read_back(&r, i)) {
                    misses++;
                    cr_assert_not(ts_ssd_has(&r, i), "a bad block is dropped");
                }
            struct kv_tier_stats s = ts_ssd_stat(&r);
            cr_assert_eq(s.bad > 0, s.dropped > 0);
            ts_ssd_close(&r);
            twelve(&r); /* dropping rewrote pages, a damaged header emptied the tier */
        }
    cr_assert_gt(misses, 50);
    ts_ssd_free(&r);
}

Test(ssd, truncated_files_are_misses, .timeout = 3600)
{
    static const char *const files[] = {"weft-kv.index", "weft-kv.000"};
    for (int f = 0; f < 2; f++)
        for (int part = 0, parts = ts_more(8, 400); part < parts; part++) {
            struct ts_ssd r;
            ts_ssd_new(&r, 6, 16);
            for (int i = 0; i < 12; i++)
                cr_assert(ts_ssd_store(&r, i));
            ts_ssd_close(&r);
            int64_t size = kv_disk_size(r.disk, files[f]);
            cr_assert_eq(kv_disk_truncate(r.disk, files[f], (size_t)(size * part / parts)), 0);
            ts_ssd_open(&r);
            for (int i = 0; i < 12; i++)
                ts_ssd_read_back(&r, i);
            cr_assert(ts_ssd_store(&r, 50) && ts_ssd_read_back(&r, 50), "goes on");
            ts_ssd_free(&r);
        }
}

/* Row 43: a store that failed is never visible. Row 42 of reads. */
Test(ssd, failed_writes_and_flushes_are_not_published)
{
    static const struct {
        enum kv_io_op op;
        const char *file;
        int64_t result;
    } fault[] = {
        {KV_IO_WRITE, "weft-kv.000", -28},   {KV_IO_WRITE, "weft-kv.000", -5},   {KV_IO_SYNC, "weft-kv.000", -5},
        {KV_IO_WRITE, "weft-kv.index", -28}, {KV_IO_WRITE, "weft-kv.index", -5}, {KV_IO_SYNC, "weft-kv.index", -5},
    };
    for (size_t f = 0; f < sizeof fault / sizeof *fault; f++)
        for (int skip = 0; skip < (f < 2 ? 2 : 1); skip++) { /* a store writes two extents, one page */
            struct ts_ssd r;
            ts_ssd_new(&r, 7, 64);
            cr_assert(ts_ssd_store(&r, 1));
            kv_disk_fail(r.disk, fault[f].op, fault[f].file, skip, 1, fault[f].result);
            cr_assert_not(ts_ssd_store(&r, 2), "fault %d", (int)f);
            cr_assert_not(ts_ssd_has(&r, 2));
            cr_assert(ts_ssd_stat(&r).read_only);
            cr_assert(ts_ssd_read_back(&r, 1), "reads go on");
            cr_assert_not(ts_ssd_store(&r, 3), "read-only");
            ts_clock_ns += INT64_C(2000000000);
            ts_ssd_settle(&r);
            cr_assert_not(ts_ssd_stat(&r).read_only, "it recovers");
            cr_assert(ts_ssd_store(&r, 2) && ts_ssd_read_back(&r, 2));
            ts_ssd_crash(&r, KV_CRASH_POWER);
            ts_ssd_open(&r);
            cr_assert(ts_ssd_read_back(&r, 1) && ts_ssd_read_back(&r, 2), "fault %d", (int)f);
            ts_ssd_free(&r);
        }
}

/* ---- flushes ---- */

static uint64_t flushes(struct ts_ssd *r)
{
    struct kv_storage_stats s;
    r->storage->ops->stat(r->storage, &s);
    return s.syncs;
}

enum { STORES = 8, EACH = 3 };

static void stores_begin(struct ts_ssd *r, struct ts_op *o, int first, int n)
{
    for (int i = 0; i < n; i++) {
        int blocks[EACH];
        for (int k = 0; k < EACH; k++)
            blocks[k] = (first + i) * EACH + k;
        ts_op_begin(&o[i], r->tier, &r->layout, TS_STORE, blocks, EACH);
    }
}

static int stores_done(const struct ts_op *o, int n)
{
    int done = 0;
    for (int i = 0; i < n; i++)
        done += o[i].done;
    return done;
}

static void stores_free(struct ts_op *o, int n)
{
    for (int i = 0; i < n; i++) {
        cr_assert_eq(o[i].done, 1);
        cr_assert_eq(o[i].op.count, EACH);
        ts_op_free(&o[i]);
    }
}

/* Stores that come together share one flush of the blocks and one of the index; what comes while these run shares the
 * next ones. A store alone has both to itself. */
Test(ssd, many_stores_cost_one_flush)
{
    struct ts_ssd r;
    static struct ts_op o[STORES];
    ts_ssd_new(&r, 70, 200);
    uint64_t before = flushes(&r);
    for (int i = 0; i < 2; i++)
        cr_assert(ts_ssd_store(&r, 100 + i));
    cr_assert_eq(flushes(&r) - before, 4u, "one after the other they share nothing");
    before = flushes(&r);
    stores_begin(&r, o, 0, STORES);
    ts_turn(r.storage);
    cr_assert_eq(flushes(&r) - before, 2u, "%d flushes for %d stores", (int)(flushes(&r) - before), STORES);
    stores_free(o, STORES);
    before = flushes(&r);
    kv_disk_hold(r.disk, KV_IO_SYNC, NULL, true);
    stores_begin(&r, o, STORES, 1);
    ts_turn(r.storage);
    stores_begin(&r, o + 1, STORES + 1, STORES - 1);
    ts_turn(r.storage);
    cr_assert_eq(stores_done(o, STORES), 0);
    kv_disk_hold(r.disk, KV_IO_SYNC, NULL, false);
    ts_turn(r.storage);
    cr_assert_eq(flushes(&r) - before, 4u, "%d flushes for one store and those behind it", (int)(flushes(&r) - before));
    stores_free(o, STORES);
    ts_ssd_free(&r);
}

/* A store that waits for its flush, of the blocks or of the index, is neither answered nor found, and after a loss of
 * power nothing of it was promised. */
Test(ssd, nothing_is_durable_before_its_flush)
{
    static const char *const file[] = {"weft-kv.000", "weft-kv.index"};
    static struct ts_op o[STORES];
    for (int f = 0; f < 2; f++)
        for (int lost = 0; lost < 2; lost++) {
            struct ts_ssd r;
            ts_ssd_new(&r, (uint64_t)(71 + f), 200);
            uint64_t before = flushes(&r);
            kv_disk_hold(r.disk, KV_IO_SYNC, file[f], true);
            stores_begin(&r, o, 0, STORES);
            ts_turn(r.storage);
            cr_assert_eq(flushes(&r) - before, (uint64_t)f, "the blocks are flushed before the index is");
            cr_assert_eq(stores_done(o, STORES), 0, "answered before the flush of %s", file[f]);
            for (int i = 0; i < STORES * EACH; i++)
                cr_assert_not(ts_ssd_has(&r, i), "block %d is found before the flush of %s", i, file[f]);
            cr_assert_eq(ts_ssd_stat(&r).stored, 0u);
            if (lost) {
                kv_disk_crash(r.disk, KV_CRASH_POWER); /* before its memory goes: flushes are under way */
                ts_ssd_close(&r);
                kv_disk_hold(r.disk, KV_IO_SYNC, file[f], false);
                for (int i = 0; i < STORES; i++)
                    ts_op_free(&o[i]);
                ts_ssd_open(&r);
                for (int i = 0; i < STORES * EACH; i++)
                    cr_assert(!ts_ssd_has(&r, i) || ts_ssd_read_back(&r, i), "what is named is there");
                cr_assert_eq(ts_ssd_stat(&r).bad, 0u);
            } else {
                kv_disk_hold(r.disk, KV_IO_SYNC, file[f], false);
                ts_turn(r.storage);
                stores_free(o, STORES);
                for (int i = 0; i < STORES * EACH; i++)
                    cr_assert(ts_ssd_read_back(&r, i), "block %d", i);
            }
            ts_ssd_free(&r);
        }
}

/* Row 43: a flush that fails loses what it was to keep for good, also for those who would flush next. So no block whose
 * bytes were written before it may be called durable after it. */
Test(ssd, a_failed_flush_ends_all_that_was_written_before_it)
{
    static const char *const file[] = {"weft-kv.000", "weft-kv.index"};
    for (int f = 0; f < 2; f++) {
        struct ts_ssd r;
        struct ts_op a, b;
        ts_ssd_new(&r, 31, 64);
        cr_assert(ts_ssd_store(&r, 1));
        kv_disk_hold(r.disk, KV_IO_SYNC, file[f], true);
        ts_op_begin(&a, r.tier, &r.layout, TS_STORE, (int[]){2}, 1);
        ts_turn(r.storage);
        ts_op_begin(&b, r.tier, &r.layout, TS_STORE, (int[]){3}, 1);
        ts_turn(r.storage);
        cr_assert(!a.done && !b.done, "both are written, the first waits for its flush");
        kv_disk_fail(r.disk, KV_IO_SYNC, file[f], 0, 1, -5);
        kv_disk_hold(r.disk, KV_IO_SYNC, file[f], false);
        ts_turn(r.storage);
        cr_assert(a.done && b.done);
        cr_assert(a.op.count == 0 && b.op.count == 0, "not durable, so not told: %d, %d", a.op.count, b.op.count);
        cr_assert_not(ts_ssd_has(&r, 2) || ts_ssd_has(&r, 3));
        ts_clock_ns += INT64_C(2000000000);
        ts_ssd_settle(&r);
        cr_assert(ts_ssd_store(&r, 4), "it goes on");
        ts_ssd_crash(&r, KV_CRASH_POWER);
        ts_ssd_open(&r);
        cr_assert(ts_ssd_read_back(&r, 1) && ts_ssd_read_back(&r, 4));
        cr_assert_not(ts_ssd_has(&r, 2) || ts_ssd_has(&r, 3));
        ts_op_free(&a);
        ts_op_free(&b);
        ts_ssd_free(&r);
    }
}

/* What was told to be dropped is gone for good, also when that takes more index pages than one commit writes. */
Test(ssd, a_drop_of_many_slabs_is_durable_when_it_ends)
{
    enum { OPS = 26, EACH_OP = 100 };
    struct ts_ssd r;
    static struct ts_op o[OPS];
    int n[EACH_OP];
    ts_ssd_new(&r, 33, 4000);
    for (int i = 0; i < OPS; i++) {
        for (int k = 0; k < EACH_OP; k++)
            n[k] = i * EACH_OP + k;
        ts_op_run(&o[0], r.tier, r.storage, &r.layout, TS_STORE, n, EACH_OP);
        cr_assert_eq(o[0].op.count, EACH_OP);
        ts_op_free(&o[0]);
    }
    for (int i = 0; i < OPS; i++) {
        for (int k = 0; k < EACH_OP; k++)
            n[k] = i * EACH_OP + k;
        ts_op_begin(&o[i], r.tier, &r.layout, TS_DROP, n, EACH_OP);
    }
    int done = 0;
    while (done < OPS) {
        cr_assert_gt(r.storage->ops->poll(r.storage), 0);
        done = 0;
        for (int i = 0; i < OPS; i++)
            done += o[i].done;
    }
    for (int i = 0; i < OPS; i++) {
        cr_assert_eq(o[i].op.count, EACH_OP);
        ts_op_free(&o[i]);
    }
    kv_disk_crash(r.disk, KV_CRASH_POWER); /* at once: what is still on its way does not arrive */
    ts_ssd_close(&r);
    ts_ssd_open(&r);
    cr_assert_eq(ts_ssd_stat(&r).blocks, 0u, "%d are back", (int)ts_ssd_stat(&r).blocks);
    ts_ssd_free(&r);
}

/* A block may be dropped while it is on its way. */
Test(ssd, a_drop_overtakes_its_store)
{
    for (int held = 0; held < 2; held++) {
        struct ts_ssd r;
        struct ts_op s, d;
        ts_ssd_new(&r, 34, 64);
        cr_assert(ts_ssd_store(&r, 1));
        const char *file = held ? "weft-kv.index" : "weft-kv.000";
        kv_disk_hold(r.disk, KV_IO_SYNC, file, true);
        ts_op_begin(&s, r.tier, &r.layout, TS_STORE, (int[]){2}, 1);
        ts_turn(r.storage);
        ts_op_begin(&d, r.tier, &r.layout, TS_DROP, (int[]){2}, 1);
        ts_turn(r.storage);
        cr_assert(!s.done && !d.done);
        kv_disk_hold(r.disk, KV_IO_SYNC, file, false);
        ts_turn(r.storage);
        cr_assert(s.done && d.done);
        cr_assert_eq(d.op.count, 1);
        cr_assert_not(ts_ssd_has(&r, 2));
        ts_ssd_crash(&r, KV_CRASH_POWER);
        ts_ssd_open(&r);
        cr_assert_not(ts_ssd_has(&r, 2));
        cr_assert(ts_ssd_read_back(&r, 1));
        ts_op_free(&s);
        ts_op_free(&d);
        ts_ssd_free(&r);
    }
}

/* Row 52: short reads go on until all is there; at the end of the file they are a miss. */
Test(ssd, short_reads_are_continued)
{
    struct ts_ssd r;
    ts_ssd_new(&r, 8, 64);
    cr_assert(ts_ssd_store(&r, 1));
    kv_disk_fail(r.disk, KV_IO_READ, "weft-kv.000", 0, 2, 4096); /* the half of one extent, and the other one whole */
    cr_assert(ts_ssd_read_back(&r, 1));
    kv_disk_fail(r.disk, KV_IO_READ, "weft-kv.000", 0, 1, -5);
    cr_assert_not(ts_ssd_read_back(&r, 1));
    cr_assert_not(ts_ssd_has(&r, 1), "a block that cannot be read is not offered again");
    cr_assert_eq(ts_ssd_stat(&r).errors, 1u);
    cr_assert(ts_ssd_store(&r, 2));
    kv_disk_fail(r.disk, KV_IO_READ, "weft-kv.000", 0, 2, 0);
    cr_assert_not(ts_ssd_read_back(&r, 2));
    cr_assert_eq(ts_ssd_stat(&r).short_reads, 2u);
    cr_assert_eq(ts_ssd_stat(&r).bad, 0u, "what has not come is not looked at");
    ts_ssd_free(&r);
}

/* Row 42: another block size, layout or version is never used. */
Test(ssd, another_layout_starts_empty)
{
    struct ts_ssd r;
    ts_ssd_new(&r, 9, 64);
    cr_assert(ts_ssd_store(&r, 1));
    ts_ssd_close(&r);
    r.layout = ts_layout(128);
    ts_ssd_open(&r);
    cr_assert_gt(r.warnings, 0);
    cr_assert_not(ts_ssd_has(&r, 1));
    cr_assert(ts_ssd_store(&r, 2) && ts_ssd_read_back(&r, 2));
    ts_ssd_free(&r);
}

/* Nor one page of the index that was made for another layout, in a folder whose header fits. */
Test(ssd, a_page_of_another_layout_is_not_used)
{
    struct ts_ssd other = {.layout = ts_layout(128), .blocks = 16}, r = {.layout = ts_layout(256), .blocks = 16};
    twelve(&other);
    twelve(&r);
    size_t size = (size_t)kv_disk_size(r.disk, "weft-kv.index"), head = 2 * KV_PAGE;
    cr_assert_eq(kv_disk_size(other.disk, "weft-kv.index"), (int64_t)size);
    memcpy(kv_disk_bytes(r.disk, "weft-kv.index") + head, kv_disk_bytes(other.disk, "weft-kv.index") + head,
           size - head);
    ts_ssd_open(&r);
    for (int i = 0; i < 12; i++)
        cr_assert_not(ts_ssd_has(&r, i), "block %d", i);
    ts_ssd_free(&r);
    ts_ssd_free(&other);
}

/* Row 56: what is read again and again is kept while what is stored and not read goes. */
Test(ssd, what_is_used_is_kept)
{
    struct ts_ssd r;
    ts_ssd_new(&r, 61, 64);
    for (int i = 0; i < 48; i++)
        cr_assert(ts_ssd_store(&r, i));
    for (int k = 0; k < 40; k++)
        cr_assert(ts_ssd_read_back(&r, 5));
    int used = 0, others = 0;
    for (int i = 100; i < 164; i++)
        cr_assert(ts_ssd_store(&r, i));
    used = ts_ssd_has(&r, 5);
    for (int i = 16; i < 48; i++)
        others += ts_ssd_has(&r, i);
    cr_assert(used, "the block that was read went before %d others", others);
    cr_assert_lt(others, 16, "%d blocks that nobody has read", others);
    ts_ssd_free(&r);
}

/* Row 57: each use of a place has a generation of its own, over restarts too, so that an old index entry never fits new
 * bytes. Reads the pages as docs/FORMATS.md describes them. */
Test(ssd, no_place_is_used_twice_under_one_generation)
{
    enum { SLABS_MAX = 64, SEEN_MAX = 4096 };
    static uint64_t seen[SEEN_MAX], now[SLABS_MAX];
    int n = 0;
    struct ts_ssd r;
    memset(now, 0, sizeof now);
    ts_ssd_new(&r, 62, 32);
    for (int i = 0; i < 400; i++) {
        cr_assert(ts_ssd_store(&r, i));
        if (i % 40 == 39) {
            ts_ssd_close(&r);
            ts_ssd_open(&r);
        }
        const uint8_t *index = kv_disk_bytes(r.disk, "weft-kv.index");
        int slabs = (int)(kv_disk_size(r.disk, "weft-kv.index") / KV_PAGE - 2) / 2;
        for (int s = 0; s < slabs && s < SLABS_MAX; s++) {
            uint64_t number[2], generation[2];
            for (int c = 0; c < 2; c++) {
                memcpy(&number[c], index + (2 + 2 * s + c) * KV_PAGE + 16, 8);
                memcpy(&generation[c], index + (2 + 2 * s + c) * KV_PAGE + 24, 8);
            }
            uint64_t g = generation[number[1] > number[0]];
            if (!g || g == now[s])
                continue;
            for (int k = 0; k < n; k++)
                cr_assert_neq(seen[k], g, "slab %d has a generation that was used before", s);
            now[s] = g;
            cr_assert_lt(n, SEEN_MAX);
            seen[n++] = g;
        }
    }
    cr_assert_gt(n, 60, "%d generations", n);
    ts_ssd_free(&r);
}

/* Row 44: a block that vanishes between lookup and read ends the prefix there. */
Test(ssd, a_short_load_is_a_shorter_prefix)
{
    struct ts_ssd r;
    static struct ts_op o;
    const int all[] = {0, 1, 2, 3};
    int gone = 2;
    ts_ssd_new(&r, 10, 64);
    ts_op_run(&o, r.tier, r.storage, &r.layout, TS_STORE, all, 4);
    ts_op_free(&o);
    ts_op_run(&o, r.tier, r.storage, &r.layout, TS_LOOKUP, all, 4);
    cr_assert_eq(o.op.count, 4);
    ts_op_free(&o);
    ts_op_run(&o, r.tier, r.storage, &r.layout, TS_DROP, &gone, 1);
    ts_op_free(&o);
    ts_op_run(&o, r.tier, r.storage, &r.layout, TS_READ, all, 4);
    cr_assert_eq(o.op.count, 2);
    cr_assert_eq(o.rows[0], 2);
    for (int i = 0; i < 2; i++)
        cr_assert(ts_block_good(&r.layout, i, o.block[i].bytes));
    ts_op_free(&o);
    ts_ssd_free(&r);
}

/* Row 47: a block of which one source is bad is no block. */
Test(ssd, a_source_that_fails_clamps_the_prefix)
{
    for (int source = 0; source < 2; source++) {
        struct ts_ssd r;
        static struct ts_op o;
        const int all[] = {0, 1, 2, 3};
        ts_ssd_new(&r, 11, 64);
        ts_op_run(&o, r.tier, r.storage, &r.layout, TS_STORE, all, 4);
        ts_op_free(&o);
        /* A run of four: four extents of 8 KiB, then four of 4 KiB. */
        kv_disk_bytes(r.disk, "weft-kv.000")[source ? 4 * 8192 + 1 * 4096 + 7 : 1 * 8192 + 7] ^= 1;
        ts_op_run(&o, r.tier, r.storage, &r.layout, TS_READ, all, 4);
        cr_assert_eq(o.rows[source], 1);
        cr_assert_eq(o.rows[!source], 4);
        cr_assert_eq(o.op.count, 1);
        cr_assert_eq(o.op.status, -74);
        ts_op_free(&o);
        ts_ssd_free(&r);
    }
}

/* A read in flight keeps its slab; the writer waits or refuses, and never overwrites. */
Test(ssd, reads_in_flight_are_pinned)
{
    struct ts_ssd r;
    static struct ts_op slow;
    const int two[] = {0, 1};
    ts_ssd_new(&r, 12, 16);
    for (int i = 0; i < 2; i++)
        cr_assert(ts_ssd_store(&r, i));
    kv_disk_hold(r.disk, KV_IO_READ, "weft-kv.000", true);
    ts_op_begin(&slow, r.tier, &r.layout, TS_READ, two, 2);
    ts_turn(r.storage);
    cr_assert_eq(slow.done, 0);
    for (int i = 10; i < 60; i++)
        ts_ssd_store(&r, i);
    cr_assert_gt(ts_ssd_stat(&r).evicted, 10u);
    kv_disk_hold(r.disk, KV_IO_READ, "weft-kv.000", false);
    ts_turn(r.storage);
    cr_assert_eq(slow.done, 1);
    cr_assert_eq(slow.op.count, 2);
    for (int i = 0; i < 2; i++)
        cr_assert(ts_block_good(&r.layout, i, slow.block[i].bytes));
    ts_op_free(&slow);
    ts_ssd_free(&r);
}

Test(ssd, blocks_expire_and_wear_is_limited)
{
    struct ts_ssd r = {.disk = kv_disk_new(13), .layout = ts_layout(256), .blocks = 64, .ttl = 100};
    r.per_day = 24 * 3 * (int64_t)r.layout.block_bytes; /* an hour's worth: three blocks */
    ts_ssd_open(&r);
    int kept = 0;
    for (int i = 0; i < 10; i++)
        kept += ts_ssd_store(&r, i);
    cr_assert_eq(kept, 4, "%d", kept);
    cr_assert_not(ts_ssd_stat(&r).read_only, "worn is not broken");
    ts_clock_ns += INT64_C(7200) * 1000000000;
    cr_assert(ts_ssd_store(&r, 20));
    ts_clock_s += 101;
    cr_assert_not(ts_ssd_has(&r, 0));
    cr_assert_not(ts_ssd_read_back(&r, 20));
    cr_assert_gt(ts_ssd_stat(&r).expired, 0u);
    ts_ssd_free(&r);
}

Test(ssd, a_folder_has_one_owner)
{
    struct ts_ssd r;
    struct cfg_error err;
    ts_ssd_new(&r, 14, 64);
    struct ts_ssd other = {.disk = r.disk, .layout = r.layout, .blocks = 64};
    cr_assert_eq(ts_ssd_try(&other, &err), -11);
    cr_assert_not_null(strstr(err.msg, "another process"));
    ts_ssd_close(&other);
    ts_ssd_free(&r);
}

Test(ssd, too_little_room_is_said)
{
    struct ts_ssd r = {.disk = kv_disk_new(15), .layout = ts_layout(256), .blocks = 3};
    struct cfg_error err;
    cr_assert_eq(ts_ssd_try(&r, &err), -22);
    ts_ssd_close(&r);
    r.blocks = 64;
    kv_disk_room(r.disk, 1000);
    cr_assert_eq(ts_ssd_try(&r, &err), -28, "%s", err.msg);
    cr_assert_not_null(strstr(err.msg, "kv.ssd.size"));
    ts_ssd_close(&r);
    kv_disk_free(r.disk);
}

/* Stores and lookups go on while a large index is being read. */
Test(ssd, the_index_is_rebuilt_while_serving)
{
    struct ts_ssd r;
    struct cfg_error err;
    ts_ssd_new(&r, 16, 600);
    for (int i = 0; i < 300; i += 100) {
        static struct ts_op o;
        int n[100];
        for (int k = 0; k < 100; k++)
            n[k] = i + k;
        ts_op_run(&o, r.tier, r.storage, &r.layout, TS_STORE, n, 100);
        cr_assert_eq(o.op.count, 100);
        ts_op_free(&o);
    }
    ts_ssd_close(&r);
    cr_assert_eq(ts_ssd_try(&r, &err), 0, "%s", err.msg);
    cr_assert(ts_ssd_stat(&r).rebuilding);
    cr_assert_not(ts_ssd_has(&r, 0), "not yet known");
    kv_disk_hold(r.disk, KV_IO_READ, "weft-kv.index", true);
    r.tier->ops->tick(r.tier);
    ts_turn(r.storage);
    static struct ts_op waiting;
    int late = 900;
    ts_op_begin(&waiting, r.tier, &r.layout, TS_STORE, &late, 1);
    kv_disk_hold(r.disk, KV_IO_READ, "weft-kv.index", false);
    ts_ssd_settle(&r);
    cr_assert_eq(waiting.done, 1);
    cr_assert_eq(waiting.op.count, 1);
    ts_op_free(&waiting);
    cr_assert_not(ts_ssd_stat(&r).rebuilding);
    for (int i = 0; i < 300; i++)
        cr_assert(ts_ssd_read_back(&r, i));
    ts_ssd_free(&r);
}
