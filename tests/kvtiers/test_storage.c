/* Requests that are run to their end (kv_io_run), and what becomes of those that end too late. */
#include "tests/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvtiers/storage_sim.h"
#include "tests/support/kv_blocks.h"

enum { BYTES = 8192 };

struct rig {
    struct kv_disk *disk;
    struct kv_storage *storage;
    int file;
};

static int64_t run(struct rig *r, struct kv_io io)
{
    return kv_io_run(r->storage, &io);
}

static void rig_new(struct rig *r)
{
    uint8_t bytes[BYTES];
    memset(bytes, 7, sizeof bytes);
    r->disk = kv_disk_new(3);
    r->storage = kv_storage_sim_new(r->disk);
    cr_assert_not_null(r->storage);
    int64_t f = run(r, (struct kv_io){.op = KV_IO_OPEN, .path = "a", .flags = KV_OPEN_WRITE | KV_OPEN_CREATE});
    cr_assert_ge(f, 0);
    r->file = (int)f;
    struct kv_io io = {.op = KV_IO_WRITE, .file = r->file, .bytes = bytes, .len = BYTES};
    cr_assert_eq(kv_io_run(r->storage, &io), BYTES);
    cr_assert_eq(io.result, BYTES);
    cr_assert(io.bytes == bytes, "the request is as it was");
}

static void rig_free(struct rig *r)
{
    kv_storage_free(r->storage);
    kv_disk_free(r->disk);
}

Test(storage, a_request_that_is_run_moves_its_bytes)
{
    struct rig r;
    uint8_t bytes[BYTES + 100];
    rig_new(&r);
    memset(bytes, 9, sizeof bytes);
    cr_assert_eq(run(&r, (struct kv_io){.op = KV_IO_READ, .file = r.file, .bytes = bytes, .len = sizeof bytes}), BYTES);
    for (size_t i = 0; i < sizeof bytes; i++)
        cr_assert_eq(bytes[i], i < BYTES ? 7 : 9, "byte %zu", i);
    struct kv_io list = {.op = KV_IO_LIST, .path = ""};
    cr_assert_eq(kv_io_run(r.storage, &list), 1);
    cr_assert_str_eq(list.names, "a");
    free(list.names);
    rig_free(&r);
}

/* Memory, paths and the request itself are gone when it ends: what ends then is the storage's own copy. */
Test(storage, a_read_that_ends_after_its_time_touches_nothing)
{
    struct rig r;
    rig_new(&r);
    uint8_t *bytes = malloc(BYTES);
    struct kv_io *io = malloc(sizeof *io);
    cr_assert(bytes && io);
    memset(bytes, 9, BYTES);
    *io = (struct kv_io){.op = KV_IO_READ, .file = r.file, .bytes = bytes, .len = BYTES};
    kv_disk_hold(r.disk, KV_IO_READ, "a", true);
    cr_assert_eq(kv_io_run(r.storage, io), -ETIMEDOUT);
    cr_assert_eq(io->result, -ETIMEDOUT);
    free(io);
    kv_disk_hold(r.disk, KV_IO_READ, "a", false);
    cr_assert_eq(r.storage->ops->poll(r.storage), 1);
    for (int i = 0; i < BYTES; i++)
        cr_assert_eq(bytes[i], 9, "byte %d of memory that nobody lends any more", i);
    free(bytes);
    cr_assert_null(r.storage->left);
    rig_free(&r);
}

Test(storage, a_write_that_ends_after_its_time_has_bytes_of_its_own)
{
    struct rig r;
    uint8_t *bytes = malloc(BYTES), back[BYTES];
    rig_new(&r);
    cr_assert_not_null(bytes);
    memset(bytes, 5, BYTES);
    kv_disk_hold(r.disk, KV_IO_WRITE, "a", true);
    cr_assert_eq(run(&r, (struct kv_io){.op = KV_IO_WRITE, .file = r.file, .bytes = bytes, .len = BYTES}), -ETIMEDOUT);
    memset(bytes, 6, BYTES);
    free(bytes);
    kv_disk_hold(r.disk, KV_IO_WRITE, "a", false);
    ts_turn(r.storage);
    cr_assert_eq(run(&r, (struct kv_io){.op = KV_IO_READ, .file = r.file, .bytes = back, .len = BYTES}), BYTES);
    for (int i = 0; i < BYTES; i++)
        cr_assert_eq(back[i], 5, "byte %d", i);
    rig_free(&r);
}

/* A file that nobody knows of would keep its lock for ever. */
Test(storage, a_file_that_is_opened_too_late_is_closed)
{
    struct rig r;
    char name[8] = "lock";
    struct kv_io lock = {.op = KV_IO_OPEN, .path = name, .flags = KV_OPEN_WRITE | KV_OPEN_CREATE | KV_OPEN_LOCK};
    rig_new(&r);
    kv_disk_hold(r.disk, KV_IO_OPEN, "lock", true);
    cr_assert_eq(run(&r, lock), -ETIMEDOUT);
    memset(name, 'x', sizeof name - 1);
    kv_disk_hold(r.disk, KV_IO_OPEN, "lock", false);
    ts_turn(r.storage);
    cr_assert_eq(kv_disk_size(r.disk, "lock"), 0, "it was made under its own name");
    lock.path = "lock";
    cr_assert_ge(run(&r, lock), 0, "and is nobody's now");
    rig_free(&r);
}

Test(storage, what_never_ends_goes_with_the_storage)
{
    struct rig r;
    rig_new(&r);
    kv_disk_hold(r.disk, KV_IO_LIST, NULL, true);
    kv_disk_hold(r.disk, KV_IO_SIZE, NULL, true);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(run(&r, (struct kv_io){.op = KV_IO_LIST, .path = ""}), -ETIMEDOUT);
        cr_assert_eq(run(&r, (struct kv_io){.op = KV_IO_SIZE, .file = r.file}), -ETIMEDOUT);
    }
    kv_disk_hold(r.disk, KV_IO_LIST, NULL, false);
    ts_turn(r.storage); /* the names that came are nobody's */
    rig_free(&r);
}
