/* Storage through USRBIO, over a double of its library: full rings, completions out of order, short moves, late errors,
 * and the one function whose errors are positive. The tiers on it behave as on any other storage. */
#include "tests/harness.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "kvtiers/shared.h"
#include "kvtiers/ssd.h"
#include "kvtiers/usrbio.h"
#include "tests/doubles/usrbio_faults.h"
#include "tests/support/kv_blocks.h"
#include "tests/support/process.h"

#define MS INT64_C(1000000)

static void *double_handle;
static char *folder, *library;
static struct kv_storage *storage;
static struct kv_tier *tier;
static struct usrbio_faults *faults;

static void close_tier(void)
{
    if (tier)
        tier->ops->free(tier);
    kv_storage_free(storage);
    tier = NULL;
    storage = NULL;
}

static void open_storage(uint64_t seed)
{
    struct cfg_error err = {0};
    int r = kv_storage_usrbio_new(folder, library, 32, &storage, &err);
    if (r == -EPERM || r == -ENOSYS || r == -ENOMEM)
        cr_skip_test("no io_uring here: %s", err.msg);
    cr_assert_eq(r, 0, "%s", err.msg);
    *faults = (struct usrbio_faults){.again = 150, .short_move = 200, .late = 400, .errors_left = -1, .seed = seed};
}

static void init(void)
{
    folder = ts_temp_dir();
    library = strdup(ts_program("tests/doubles/usrbio.so"));
    double_handle = dlopen(library, RTLD_NOW);
    cr_assert_not_null(double_handle, "%s", dlerror());
    faults = dlsym(double_handle, "usrbio_faults");
    cr_assert_not_null(faults);
}

static void fini(void)
{
    close_tier();
    if (double_handle)
        dlclose(double_handle);
    if (folder)
        ts_remove_dir(folder);
    free(folder);
    free(library);
    folder = library = NULL;
    double_handle = NULL;
}

TestSuite(usrbio, .init = init, .fini = fini, .timeout = 120);

static void settle(int turns)
{
    for (int i = 0; i < turns; i++) {
        ts_clock_ns += 20 * MS;
        tier->ops->tick(tier);
        ts_turn(storage);
    }
}

static void open_ssd(const struct kv_layout *l)
{
    struct cfg_error err;
    const struct kv_ssd_params p = {.storage = storage,
                                    .folder = folder,
                                    .layout = *l,
                                    .bytes = 64 * (int64_t)l->block_bytes,
                                    .direct = true,
                                    .clock = ts_clock};
    cr_assert_eq(kv_ssd_new(&p, &tier, &err), 0, "%s", err.msg);
    settle(4);
}

static void open_shared(const struct kv_layout *l, const char *node)
{
    struct cfg_error err;
    const struct kv_shared_params p = {.storage = storage,
                                       .folder = folder,
                                       .node = node,
                                       .layout = *l,
                                       .bytes = 1 << 30,
                                       .segment_bytes = 20 * (int64_t)l->block_bytes,
                                       .seal_ns = 100 * MS,
                                       .poll_ns = 50 * MS,
                                       .orphan_ns = 60000 * MS,
                                       .removals_per_s = 10,
                                       .direct = true,
                                       .clock = ts_clock};
    cr_assert_eq(kv_shared_new(&p, &tier, &err), 0, "%s", err.msg);
    settle(8);
}

Test(usrbio, the_ssd_tier_on_it_keeps_what_it_promised)
{
    struct kv_layout l = ts_layout(256);
    for (uint64_t seed = 1; seed <= 3; seed++) {
        open_storage(seed);
        open_ssd(&l);
        srand((unsigned)seed);
        for (int i = 0; i < 200; i++) {
            int n = rand() % 100;
            if (rand() % 2)
                cr_assert(ts_store_one(tier, storage, &l, n) && ts_has(tier, storage, &l, n));
            else
                ts_read_one(tier, storage, &l, n);
        }
        struct kv_tier_stats s;
        tier->ops->stat(tier, &s);
        cr_assert_eq(s.bad, 0u);
        cr_assert_eq(s.errors, 0u);
        cr_assert(ts_store_one(tier, storage, &l, 7));
        close_tier();
        open_storage(seed + 10);
        open_ssd(&l);
        cr_assert(ts_read_one(tier, storage, &l, 7), "it is there after a restart");
        close_tier();
    }
}

Test(usrbio, the_shared_tier_on_it_passes_blocks_between_nodes)
{
    struct kv_layout l = ts_layout(256);
    open_storage(5);
    open_shared(&l, "a");
    for (int i = 0; i < 30; i++)
        cr_assert(ts_store_one(tier, storage, &l, i) || (settle(10), ts_store_one(tier, storage, &l, i)));
    close_tier();
    open_storage(6);
    open_shared(&l, "b");
    settle(20);
    for (int i = 0; i < 30; i++)
        cr_assert(ts_read_one(tier, storage, &l, i), "block %d", i);
}

/* Errors that come with the completion cost what they touch and nothing else. */
Test(usrbio, late_errors_are_misses)
{
    struct kv_layout l = ts_layout(256);
    open_storage(7);
    open_ssd(&l);
    for (int i = 0; i < 20; i++)
        cr_assert(ts_store_one(tier, storage, &l, i));
    faults->error = 1000;
    faults->errors_left = 3;
    int misses = 0;
    for (int i = 0; i < 20; i++)
        misses += !ts_read_one(tier, storage, &l, i);
    cr_assert_ge(misses, 1);
    cr_assert_le(misses, 3);
    ts_clock_ns += 5000 * MS; /* one may have met the note of a miss in the index */
    settle(4);
    faults->errors_left = 1;
    cr_assert_not(ts_store_one(tier, storage, &l, 50), "a store whose write failed is not reported");
    cr_assert_not(ts_has(tier, storage, &l, 50));
    settle(1); /* the rest of it, before time goes by */
    ts_clock_ns += 5000 * MS;
    settle(4);
    cr_assert(ts_store_one(tier, storage, &l, 50) && ts_read_one(tier, storage, &l, 50), "it recovers");
}

static int open_files(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* reg_fd is the one function whose errors are positive numbers; negative ones are descriptors of its own. */
Test(usrbio, a_file_that_is_not_registered_is_not_open)
{
    open_storage(9);
    struct kv_io io = {.op = KV_IO_OPEN, .path = "x", .flags = KV_OPEN_WRITE | KV_OPEN_CREATE};
    int before = open_files();
    faults->refuse = 1000;
    cr_assert_eq(kv_io_run(storage, &io), -ENOMEM);
    cr_assert_eq(open_files(), before);
    faults->refuse = 0;
    int64_t file = kv_io_run(storage, &io);
    cr_assert_ge(file, 0, "%d", (int)file);
    for (int i = 0; i < 3; i++) { /* the number of a file that was closed is registered for the next one */
        io = (struct kv_io){.op = KV_IO_CLOSE, .file = (int)file};
        cr_assert_eq(kv_io_run(storage, &io), 0);
        cr_assert_eq(open_files(), before);
        io = (struct kv_io){.op = KV_IO_OPEN, .path = "x", .flags = KV_OPEN_WRITE};
        cr_assert_eq(kv_io_run(storage, &io), file);
    }
    io = (struct kv_io){.op = KV_IO_CLOSE, .file = (int)file};
    cr_assert_eq(kv_io_run(storage, &io), 0);
}

Test(usrbio, what_is_missing_is_said)
{
    struct cfg_error err;
    struct kv_storage *s;
    cr_assert_eq(kv_storage_usrbio_new(folder, "/nonexistent/lib.so", 8, &s, &err), -ENOENT);
    cr_assert_not_null(strstr(err.msg, "/nonexistent/lib.so"), "%s", err.msg);
    char path[4200];
    snprintf(path, sizeof path, "%s/not-3fs", folder);
    free(ts_write_file(folder, "x", ""));
    cr_assert_eq(mkdir(path, 0700), 0);
    cr_assert_eq(kv_storage_usrbio_new(path, library, 8, &s, &err), -EINVAL);
    cr_assert_not_null(strstr(err.msg, "not in a mounted 3FS"), "%s", err.msg);
    cr_assert_eq(kv_storage_usrbio_new(folder, library, 4000, &s, &err), -ENOMEM);
    cr_assert_not_null(strstr(err.msg, "ring"), "%s", err.msg);
}
