/* Writers of one shared folder that were given one name, as two servers with a default config are. */
#include "tests/harness.h"

#include <string.h>

#include "kvtiers/shared.h"
#include "kvtiers/storage_sim.h"
#include "tests/support/kv_blocks.h"

#define MS INT64_C(1000000)

struct writer {
    struct kv_layout layout;
    struct kv_storage *storage;
    struct kv_tier *tier;
    int warnings, notes;
};

static void on_log(void *ctx, bool warning, const char *text)
{
    struct writer *w = ctx;
    (void)text;
    w->warnings += warning;
    w->notes += !warning;
}

static void begin(struct writer *w, struct kv_disk *disk)
{
    struct cfg_error err;
    *w = (struct writer){.layout = ts_layout(256), .storage = kv_storage_sim_new(disk)};
    const struct kv_shared_params p = {.storage = w->storage,
                                       .folder = "disk",
                                       .node = "local",
                                       .claim = true,
                                       .layout = w->layout,
                                       .bytes = 1 << 30,
                                       .segment_bytes = 20 * (int64_t)w->layout.block_bytes,
                                       .seal_ns = 100 * MS,
                                       .poll_ns = 50 * MS,
                                       .orphan_ns = 60000 * MS,
                                       .removals_per_s = 10,
                                       .direct = true,
                                       .clock = ts_clock,
                                       .log = on_log,
                                       .log_ctx = w};
    cr_assert_eq(kv_shared_new(&p, &w->tier, &err), 0, "%s", err.msg);
}

static void end(struct writer *w)
{
    w->tier->ops->free(w->tier);
    kv_storage_free(w->storage);
}

static void pass(struct writer *const *w, int n, int64_t ms)
{
    for (int64_t at = 0; at < ms; at += 20) {
        ts_clock_ns += 20 * MS;
        for (int i = 0; i < n; i++) {
            w[i]->tier->ops->tick(w[i]->tier);
            ts_turn(w[i]->storage);
        }
    }
}

/* The younger one took the older one's unfinished segment for what its own earlier life had left, and removed it. */
Test(shared_names, two_living_writers_never_share_one)
{
    struct kv_disk *disk = kv_disk_new(1);
    struct writer a, b;
    struct writer *const both[] = {&a, &b};
    begin(&a, disk);
    cr_assert(ts_store_one(a.tier, a.storage, &a.layout, 1));
    ts_clock_ns += MS;
    begin(&b, disk);
    cr_assert(ts_store_one(b.tier, b.storage, &b.layout, 2));
    cr_assert_eq(a.notes, 0);
    cr_assert_eq(b.notes, 1, "it says under which name it writes");
    pass(both, 2, 600);
    for (int i = 0; i < 2; i++)
        for (int block = 1; block <= 2; block++)
            cr_assert(ts_read_one(both[i]->tier, both[i]->storage, &a.layout, block), "block %d at %d", block, i);
    cr_assert_eq(a.warnings + b.warnings, 0);
    end(&a);
    end(&b);
    kv_disk_free(disk);
}

/* A name is free again with its owner's end, also after a kill, and its next owner knows what was left unfinished. */
Test(shared_names, a_name_goes_to_the_next_life)
{
    struct kv_disk *disk = kv_disk_new(2);
    struct writer a, b, *alone[] = {&b};
    begin(&a, disk);
    cr_assert(ts_store_one(a.tier, a.storage, &a.layout, 1));
    kv_disk_crash(disk, KV_CRASH_KILL);
    end(&a);
    ts_clock_ns += MS;
    ts_clock_s += 1;
    begin(&b, disk);
    cr_assert_eq(b.notes + b.warnings, 0);
    cr_assert_lt(kv_disk_size(disk, "lock-local.2"), 0);
    pass(alone, 1, 1000);
    char *names = NULL;
    struct kv_io io = {.op = KV_IO_LIST, .path = ""};
    int64_t n = kv_io_run(b.storage, &io);
    names = io.names;
    const char *at = names;
    for (int64_t i = 0; i < n; i++, at += strlen(at) + 1)
        cr_assert(strncmp(at, "open-", 5), "%s was left", at);
    free(names);
    end(&b);
    kv_disk_free(disk);
}

/* Where locks do not exist the operator is told what to look after. */
Test(shared_names, without_locks_it_says_so)
{
    struct kv_disk *disk = kv_disk_new(3);
    struct writer a;
    kv_disk_fail(disk, KV_IO_OPEN, "lock-", 0, 1, -95);
    begin(&a, disk);
    cr_assert_eq(a.warnings, 1);
    cr_assert(ts_store_one(a.tier, a.storage, &a.layout, 1));
    end(&a);
    kv_disk_free(disk);
}
