/* What every tier must do, over each of them: device, host, ssd on a disk in memory, ssd on real files through
 * io_uring. */
#include "tests/harness.h"

#include <errno.h>

#include "kvtiers/device.h"
#include "kvtiers/host.h"
#include "kvtiers/ssd.h"
#include "kvtiers/storage_sim.h"
#include "tests/support/kv_blocks.h"
#include "tests/support/process.h"

enum kind { DEVICE, HOST, SSD, SSD_FILES, KINDS };
static const char *const kind_name[] = {"device", "host", "ssd", "ssd on files"};

enum { ROOM = 64 };

struct rig {
    enum kind kind;
    struct kv_layout layout;
    struct kv_device *device;
    struct kv_disk *disk;
    struct kv_storage *storage;
    char *folder;
    struct kv_tier *tier;
};

/* False: this machine cannot. */
static bool open_rig(struct rig *r, enum kind kind)
{
    struct cfg_error err = {0};
    int e = 0;
    *r = (struct rig){.kind = kind, .layout = ts_layout(256)};
    int64_t bytes = ROOM * (int64_t)r->layout.block_bytes;
    if (kind == DEVICE) {
        e = kv_device_new(ROOM, r->layout.block_bytes, 0, &r->device, &err);
        e = e ? e : kv_device_tier(r->device, &r->layout, &r->tier, &err);
    } else if (kind == HOST) {
        const struct kv_host_params p = {.layout = r->layout, .bytes = bytes, .clock = ts_clock, .verify = true};
        e = kv_host_new(&p, &r->tier, &err);
    } else {
        if (kind == SSD) {
            r->disk = kv_disk_new(3);
            r->storage = kv_storage_sim_new(r->disk);
        } else {
            r->folder = ts_temp_dir();
            e = kv_storage_uring_new(r->folder, 64, &r->storage, &err);
            if (e == -EPERM || e == -ENOSYS || e == -ENOMEM) {
                cr_log_info("%s", err.msg);
                return false;
            }
        }
        for (int direct = 1; !e && !r->tier && direct >= 0; direct--) {
            const struct kv_ssd_params p = {.storage = r->storage,
                                            .folder = r->folder ? r->folder : "disk",
                                            .layout = r->layout,
                                            .bytes = bytes,
                                            .direct = direct,
                                            .clock = ts_clock};
            int k = kv_ssd_new(&p, &r->tier, &err); /* a temporary folder in memory takes no direct I/O */
            e = k == -EINVAL && direct ? 0 : k;
        }
    }
    cr_assert_eq(e, 0, "%s: %s", kind_name[kind], err.msg);
    for (int i = 0; i < 8; i++) {
        r->tier->ops->tick(r->tier);
        ts_turn(r->storage);
    }
    return true;
}

static void close_rig(struct rig *r)
{
    if (r->tier)
        r->tier->ops->free(r->tier);
    kv_storage_free(r->storage);
    kv_disk_free(r->disk);
    kv_device_free(r->device);
    if (r->folder)
        ts_remove_dir(r->folder);
    free(r->folder);
}

#define EACH(r)                                                                                                        \
    for (int kind_ = 0; kind_ < KINDS; kind_++, close_rig(r))                                                          \
        if (open_rig(r, (enum kind)kind_))

Test(tier, what_is_stored_is_found_and_read)
{
    struct rig r;
    static struct ts_op o;
    EACH(&r)
    {
        int n[24];
        for (int i = 0; i < 24; i++)
            n[i] = i;
        ts_op_run(&o, r.tier, r.storage, &r.layout, TS_STORE, n, 20);
        cr_assert_eq(o.done, 1, "%s", kind_name[r.kind]);
        cr_assert_eq(o.op.count, 20, "%s", kind_name[r.kind]);
        ts_op_free(&o);
        ts_op_run(&o, r.tier, r.storage, &r.layout, TS_LOOKUP, n, 24);
        cr_assert_eq(o.op.count, 20, "%s: leading blocks that are here", kind_name[r.kind]);
        ts_op_free(&o);
        ts_op_run(&o, r.tier, r.storage, &r.layout, TS_READ, n, 24);
        cr_assert_eq(o.done, 1);
        cr_assert_eq(o.n_rows, 2);
        cr_assert_eq(o.rows[0], 20);
        cr_assert_eq(o.op.count, 20);
        cr_assert_neq(o.op.status, 0, "%s: it says why", kind_name[r.kind]);
        for (int i = 0; i < 20; i++)
            cr_assert(ts_block_good(&r.layout, i, o.block[i].bytes), "%s", kind_name[r.kind]);
        ts_op_free(&o);
        struct kv_tier_stats s;
        r.tier->ops->stat(r.tier, &s);
        cr_assert_eq(s.blocks, 20u);
        cr_assert_eq(s.stored, 20u);
        cr_assert_ge(s.capacity, s.bytes);
    }
}

Test(tier, empty_requests_end)
{
    struct rig r;
    static struct ts_op o;
    EACH(&r) for (int verb = TS_LOOKUP; verb <= TS_DROP; verb++)
    {
        ts_op_run(&o, r.tier, r.storage, &r.layout, (enum ts_verb)verb, NULL, 0);
        cr_assert_eq(o.done, 1, "%s, verb %d", kind_name[r.kind], verb);
        cr_assert_eq(o.op.count, 0);
        ts_op_free(&o);
    }
}

Test(tier, a_dropped_block_is_gone)
{
    struct rig r;
    static struct ts_op o;
    int two = 2;
    EACH(&r)
    {
        for (int i = 0; i < 4; i++)
            cr_assert(ts_store_one(r.tier, r.storage, &r.layout, i));
        ts_op_run(&o, r.tier, r.storage, &r.layout, TS_DROP, &two, 1);
        cr_assert_eq(o.op.count, 1, "%s", kind_name[r.kind]);
        ts_op_free(&o);
        for (int i = 0; i < 4; i++)
            cr_assert_eq(ts_read_one(r.tier, r.storage, &r.layout, i), i != 2, "%s", kind_name[r.kind]);
        cr_assert(ts_store_one(r.tier, r.storage, &r.layout, 2) && ts_read_one(r.tier, r.storage, &r.layout, 2));
    }
}

/* Random operations: never a wrong byte, never more than there is room for; what has just been stored is there. */
Test(tier, agrees_with_a_model)
{
    struct rig r;
    EACH(&r)
    {
        srand(7);
        for (int i = 0; i < (r.kind == SSD_FILES ? 150 : 1500); i++) {
            int n = rand() % 100;
            if (rand() % 2)
                cr_assert(ts_store_one(r.tier, r.storage, &r.layout, n) && ts_has(r.tier, r.storage, &r.layout, n));
            else
                ts_read_one(r.tier, r.storage, &r.layout, n);
        }
        struct kv_tier_stats s;
        r.tier->ops->stat(r.tier, &s);
        cr_assert_le(s.blocks, (uint64_t)ROOM);
        cr_assert_eq(s.bad, 0u);
        cr_assert_eq(s.errors, 0u);
    }
}

/* The age of the oldest block, also after it is gone and after a restart. */
Test(tier, the_oldest_block_has_an_age)
{
    struct rig r;
    static struct ts_op o;
    struct kv_tier_stats s;
    EACH(&r)
    {
        if (r.kind == DEVICE)
            continue; /* pages have no date */
        int64_t began = ts_clock_s;
        r.tier->ops->stat(r.tier, &s);
        cr_assert_eq(s.oldest_s, 0, "%s", kind_name[r.kind]);
        for (int i = 0; i < ROOM / 8; i++) /* the places of a slab */
            ts_store_one(r.tier, r.storage, &r.layout, i);
        ts_clock_s += 100;
        ts_store_one(r.tier, r.storage, &r.layout, 1000);
        r.tier->ops->stat(r.tier, &s);
        cr_assert_eq(s.oldest_s, 100, "%s: %d s", kind_name[r.kind], (int)s.oldest_s);
        for (int i = 0; i < ROOM / 8; i++) {
            ts_op_run(&o, r.tier, r.storage, &r.layout, TS_DROP, &i, 1);
            ts_op_free(&o);
        }
        ts_clock_s += 7;
        r.tier->ops->stat(r.tier, &s);
        cr_assert_eq(s.oldest_s, 7, "%s: %d s", kind_name[r.kind], (int)s.oldest_s);
        ts_clock_s = began;
    }
}

/* Row 56: what is used often outlives a stream of what is used once. */
Test(tier, host_keeps_what_is_used)
{
    struct rig r;
    cr_assert(open_rig(&r, HOST));
    for (int i = 0; i < 8; i++)
        ts_store_one(r.tier, NULL, &r.layout, i);
    for (int k = 0; k < 6; k++)
        for (int i = 0; i < 8; i++)
            cr_assert(ts_read_one(r.tier, NULL, &r.layout, i));
    for (int i = 100; i < 100 + 3 * ROOM; i++)
        ts_store_one(r.tier, NULL, &r.layout, i);
    for (int i = 0; i < 8; i++)
        cr_assert(ts_has(r.tier, NULL, &r.layout, i), "block %d", i);
    for (int i = 1000; i < 1000 + 20 * ROOM; i++)
        ts_store_one(r.tier, NULL, &r.layout, i);
    cr_assert_not(ts_has(r.tier, NULL, &r.layout, 0), "but not for ever");
    close_rig(&r);
}

/* Of a prefix the end goes first: what is behind a gap is of no use. */
Test(tier, host_lets_the_end_of_a_prefix_go_first)
{
    struct rig r;
    cr_assert(open_rig(&r, HOST));
    for (int i = 0; i < ROOM; i++)
        cr_assert(ts_store_one(r.tier, NULL, &r.layout, i));
    ts_clock_ns += INT64_C(5000000000);
    for (int i = 100; i < 100 + ROOM / 2; i++)
        cr_assert(ts_store_one(r.tier, NULL, &r.layout, i));
    for (int i = 0; i < ROOM; i++)
        cr_assert_eq(ts_has(r.tier, NULL, &r.layout, i), i < ROOM - ROOM / 2, "block %d", i);
    close_rig(&r);
}

/* What a store says is kept is there when it says so, also when there is room for a part of it only. */
Test(tier, host_keeps_the_beginning_of_a_store_that_is_too_long)
{
    struct rig r;
    static struct ts_op o;
    int n[ROOM + 20];
    struct kv_tier_stats s;
    cr_assert(open_rig(&r, HOST));
    cr_assert(ts_store_one(r.tier, NULL, &r.layout, 1000));
    for (int i = 0; i < ROOM + 20; i++)
        n[i] = i % (ROOM + 10); /* ten of them twice */
    ts_op_run(&o, r.tier, NULL, &r.layout, TS_STORE, n, ROOM + 20);
    cr_assert_eq(o.op.count, ROOM, "%d", o.op.count);
    cr_assert_eq(o.op.status, -ENOSPC);
    ts_op_free(&o);
    for (int i = 0; i < ROOM + 10; i++)
        cr_assert_eq(ts_has(r.tier, NULL, &r.layout, i), i < ROOM, "block %d", i);
    r.tier->ops->stat(r.tier, &s);
    cr_assert_eq(s.refused, 20u);
    for (int i = 2000; i < 2000 + ROOM; i++)
        cr_assert(ts_store_one(r.tier, NULL, &r.layout, i), "and makes room afterwards");
    cr_assert_not(ts_has(r.tier, NULL, &r.layout, 0));
    close_rig(&r);
}

Test(tier, host_pins_hold_and_damage_is_seen)
{
    struct rig r;
    cr_assert(open_rig(&r, HOST));
    struct kv_key key = ts_key(1);
    ts_store_one(r.tier, NULL, &r.layout, 1);
    uint8_t *bytes = kv_host_pin(r.tier, &key);
    cr_assert_not_null(bytes);
    for (int i = 100; i < 100 + 4 * ROOM; i++)
        cr_assert(ts_store_one(r.tier, NULL, &r.layout, i));
    cr_assert(ts_block_good(&r.layout, 1, bytes), "a pinned block stays");
    kv_host_unpin(r.tier, &key);
    bytes[5] ^= 1;
    cr_assert_not(ts_read_one(r.tier, NULL, &r.layout, 1), "a block that changed in memory is not delivered");
    cr_assert_not(ts_has(r.tier, NULL, &r.layout, 1));
    close_rig(&r);
}

/* Real files: registered memory, O_DIRECT, many requests at a time, and a second start. */
Test(tier, files_survive_and_are_read_past_the_page_cache)
{
    struct rig r;
    struct cfg_error err;
    static struct ts_op o;
    if (!open_rig(&r, SSD_FILES))
        cr_skip_test("no io_uring here");
    int n[64];
    for (int i = 0; i < 40; i++)
        n[i] = i;
    ts_op_run(&o, r.tier, r.storage, &r.layout, TS_STORE, n, 40);
    cr_assert_eq(o.op.count, 40);
    ts_op_free(&o);
    r.tier->ops->free(r.tier);
    kv_storage_free(r.storage);
    cr_assert_eq(kv_storage_uring_new(r.folder, 64, &r.storage, &err), 0, "%s", err.msg);
    uint8_t *memory = ts_block_memory(&r.layout, 40);
    int reg = r.storage->ops->register_memory(r.storage, memory, 40 * r.layout.block_bytes);
    if (reg)
        cr_log_info("memory is not registered: %d", reg);
    const struct kv_ssd_params p = {.storage = r.storage,
                                    .folder = r.folder,
                                    .layout = r.layout,
                                    .bytes = ROOM * (int64_t)r.layout.block_bytes,
                                    .direct = true,
                                    .clock = ts_clock};
    int e = kv_ssd_new(&p, &r.tier, &err);
    if (e == -EINVAL)
        cr_skip_test("the temporary folder takes no direct I/O");
    cr_assert_eq(e, 0, "%s", err.msg);
    for (int i = 0; i < 8; i++) {
        r.tier->ops->tick(r.tier);
        ts_turn(r.storage);
    }
    struct kv_tier_block block[40];
    for (int i = 0; i < 40; i++)
        block[i] = (struct kv_tier_block){.key = ts_key(i), .bytes = memory + (size_t)i * r.layout.block_bytes};
    memset(&o, 0, sizeof o);
    ts_op_begin(&o, r.tier, &r.layout, TS_LOOKUP, n, 40);
    cr_assert_eq(o.op.count, 40);
    ts_op_free(&o);
    memset(&o, 0, sizeof o);
    o.op = (struct kv_tier_op){.block = block, .n = 40, .rows = NULL, .done = ts_op_done, .ctx = &o};
    r.tier->ops->read(r.tier, &o.op);
    while (!o.done && r.storage->ops->wait(r.storage, 10000))
        ;
    cr_assert_eq(o.op.count, 40);
    for (int i = 0; i < 40; i++)
        cr_assert(ts_block_good(&r.layout, i, block[i].bytes));
    r.tier->ops->free(r.tier);
    r.tier = NULL;
    kv_storage_free(r.storage);
    r.storage = NULL;
    free(memory);
    close_rig(&r);
}

Test(storage, a_missing_folder_and_a_full_depth_are_said)
{
    struct kv_storage *s;
    struct cfg_error err;
    cr_assert_eq(kv_storage_uring_new("/nonexistent/weft", 8, &s, &err), -ENOENT);
    cr_assert_not_null(strstr(err.msg, "/nonexistent/weft"));
    cr_assert_eq(kv_storage_uring_new("/tmp", 0, &s, &err), -EINVAL);
}
