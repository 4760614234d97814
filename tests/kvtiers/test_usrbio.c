/* Storage through USRBIO, over a double of its library: full rings, completions out of order, short moves, late errors,
 * and the one function whose errors are positive. The tiers on it behave as on any other storage. */
#include "tests/harness.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvtiers/shared.h"
#include "kvtiers/ssd.h"
#include "kvtiers/usrbio.h"
#include "tests/doubles/usrbio_faults.h"
#include "tests/support/kv_blocks.h"
#include "tests/support/process.h"

#define MS INT64_C(1000000)

enum { TIMEOUT_MS = 30000 };

static void *double_handle;
static char *folder, *library;
static struct kv_storage *storage;
static struct kv_tier *tier;
static struct usrbio_faults *faults;
static struct usrbio_counts *counts;

static void close_tier(void)
{
    if (tier)
        tier->ops->free(tier);
    kv_storage_free(storage);
    tier = NULL;
    storage = NULL;
}

static int said[2]; /* lines about a ring that is open again, and that has failed */

static void on_log(void *ctx, bool warning, const char *text)
{
    (void)ctx;
    cr_assert_not_null(strstr(text, "USRBIO: the ring for "));
    said[warning]++;
}

static int new_storage(const char *at, const char *with, int depth, struct kv_storage **out, struct cfg_error *err)
{
    const struct kv_usrbio_params p = {
        .folder = at, .library = with, .depth = depth, .clock = ts_clock, .timeout_ns = TIMEOUT_MS * MS, .log = on_log};
    return kv_storage_usrbio_new(&p, out, err);
}

static void open_storage(uint64_t seed)
{
    struct cfg_error err = {0};
    int r = new_storage(folder, library, 32, &storage, &err);
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
    counts = dlsym(double_handle, "usrbio_counts");
    cr_assert(faults && counts);
    *counts = (struct usrbio_counts){0};
    memset(said, 0, sizeof said);
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

static int ended;

static void note_end(struct kv_io *io)
{
    ended++;
    (void)io;
}

/* Memory behind what a read has brought is as it was: what lies in the shared memory there is of other requests. */
Test(usrbio, a_read_at_the_end_touches_nothing_behind_it)
{
    enum { HAVE = 8192, MORE = 4096 };
    static uint8_t bytes[HAVE + MORE];
    struct kv_io io = {.op = KV_IO_OPEN, .path = "x", .flags = KV_OPEN_WRITE | KV_OPEN_CREATE};
    open_storage(20);
    int64_t file = kv_io_run(storage, &io);
    cr_assert_ge(file, 0);
    io = (struct kv_io){.op = KV_IO_WRITE, .file = (int)file, .bytes = bytes, .len = HAVE};
    cr_assert_eq(kv_io_run(storage, &io), HAVE);
    memset(bytes, 7, sizeof bytes);
    ended = 0;
    io = (struct kv_io){.op = KV_IO_READ, .file = (int)file, .bytes = bytes, .len = sizeof bytes, .done = note_end};
    kv_io_start(storage, &io); /* kv_io_run has memory of its own */
    for (int i = 0; i < 100000 && !ended; i++)
        storage->ops->poll(storage);
    cr_assert_eq(ended, 1);
    cr_assert_eq(io.result, HAVE);
    for (int i = 0; i < HAVE + MORE; i++)
        cr_assert_eq(bytes[i], i < HAVE ? 0 : 7, "byte %d", i);
    io = (struct kv_io){.op = KV_IO_CLOSE, .file = (int)file};
    cr_assert_eq(kv_io_run(storage, &io), 0);
}

/* ---- rings that end nothing ---- */

enum { PIECE = 8192 };

/* A file with known bytes. */
static int file_with(int byte)
{
    static uint8_t bytes[PIECE];
    struct kv_io io = {.op = KV_IO_OPEN, .path = "x", .flags = KV_OPEN_WRITE | KV_OPEN_CREATE};
    int64_t f = kv_io_run(storage, &io);
    cr_assert_ge(f, 0);
    memset(bytes, byte, sizeof bytes);
    io = (struct kv_io){.op = KV_IO_WRITE, .file = (int)f, .bytes = bytes, .len = PIECE};
    cr_assert_eq(kv_io_run(storage, &io), PIECE);
    return (int)f;
}

static int64_t read_file(int file, uint8_t *bytes)
{
    struct kv_io io = {.op = KV_IO_READ, .file = file, .bytes = bytes, .len = PIECE};
    return kv_io_run(storage, &io);
}

/* Time goes by until the rings are open again. */
static void wait_open(int times)
{
    for (int i = 0; i < 30000 && said[0] < times; i++) {
        ts_clock_ns += 50 * MS;
        storage->ops->poll(storage);
        usleep(1000);
    }
    cr_assert_eq(said[0], times);
}

Test(usrbio, a_ring_that_ends_nothing_is_opened_again)
{
    enum { READS = 5 };
    struct kv_io io[READS + 1];
    uint8_t bytes[READS + 1][PIECE], back[PIECE];
    open_storage(21);
    *faults = (struct usrbio_faults){.errors_left = -1, .seed = 21};
    int file = file_with(1);
    faults->late = 1000;
    memset(bytes, 2, sizeof bytes);
    ended = 0;
    for (int i = 0; i <= READS; i++) {
        io[i] = (struct kv_io){.op = i < READS ? KV_IO_READ : KV_IO_WRITE,
                               .file = file,
                               .bytes = bytes[i],
                               .len = PIECE,
                               .offset = i < READS ? 0 : PIECE,
                               .done = note_end};
        kv_io_start(storage, &io[i]);
    }
    for (int i = 0; i < 10; i++) {
        storage->ops->poll(storage);
        ts_clock_ns += (TIMEOUT_MS - 100) / 10 * MS;
    }
    storage->ops->poll(storage);
    cr_assert_eq(ended, 0, "they have time");
    ts_clock_ns += 200 * MS;
    storage->ops->poll(storage);
    cr_assert_eq(ended, READS + 1);
    for (int i = 0; i <= READS; i++)
        cr_assert_eq(io[i].result, -ETIMEDOUT);
    cr_assert_eq(said[1], 2, "both rings, once each");
    faults->late = 0;
    wait_open(2);
    cr_assert_eq(read_file(file, back), PIECE);
    for (int i = 0; i < PIECE; i++) {
        cr_assert_eq(back[i], 1, "byte %d", i);
        for (int k = 0; k <= READS; k++)
            cr_assert_eq(bytes[k][i], 2, "what a ring that was given up still moves reaches nobody");
    }
    io[0] = (struct kv_io){.op = KV_IO_WRITE, .file = file, .bytes = bytes[0], .len = PIECE};
    cr_assert_eq(kv_io_run(storage, &io[0]), PIECE);
    cr_assert_eq(read_file(file, back), PIECE);
    cr_assert_eq(back[0], 2);
    cr_assert_eq(counts->rings, 2);
    cr_assert_eq(counts->iovs, 2);
    io[0] = (struct kv_io){.op = KV_IO_CLOSE, .file = file};
    cr_assert_eq(kv_io_run(storage, &io[0]), 0);
    close_tier();
    cr_assert_eq(counts->rings + counts->iovs + counts->descriptors, 0);
    cr_assert_eq(counts->misuses, 0u);
}

/* One that cannot be opened again yet, or that takes nothing, costs what needs it, and the other one goes on. */
Test(usrbio, a_ring_that_stays_closed_costs_its_requests)
{
    uint8_t back[PIECE];
    for (int takes = 0; takes < 2; takes++) {
        open_storage(22);
        *faults = (struct usrbio_faults){.errors_left = -1, .seed = 22};
        memset(said, 0, sizeof said);
        int file = file_with(3);
        struct kv_io io = {.op = KV_IO_READ, .file = file, .bytes = back, .len = PIECE, .done = note_end};
        ended = 0;
        *(takes ? &faults->late : &faults->again) = 1000;
        kv_io_start(storage, &io);
        storage->ops->poll(storage);
        faults->open = 1000;
        ts_clock_ns += (TIMEOUT_MS + 1) * MS;
        storage->ops->poll(storage);
        cr_assert_eq(ended, 1);
        cr_assert_eq(io.result, takes ? -ETIMEDOUT : -ENOTCONN);
        faults->late = faults->again = 0;
        for (int i = 0; i < 30000 && counts->unopened < 3; i++) {
            ts_clock_ns += 500 * MS;
            storage->ops->poll(storage);
            usleep(1000);
        }
        cr_assert_ge(counts->unopened, 3u, "it is tried again");
        cr_assert_eq(read_file(file, back), -ENOTCONN);
        struct kv_io w = {.op = KV_IO_WRITE, .file = file, .bytes = back, .len = PIECE, .offset = PIECE};
        cr_assert_eq(kv_io_run(storage, &w), PIECE);
        cr_assert_eq(said[1], 1, "once");
        faults->open = 0;
        wait_open(1);
        cr_assert_eq(read_file(file, back), PIECE);
        cr_assert_eq(back[PIECE - 1], 3);
        io = (struct kv_io){.op = KV_IO_CLOSE, .file = file};
        cr_assert_eq(kv_io_run(storage, &io), 0);
        close_tier();
        cr_assert_eq(counts->rings + counts->iovs + counts->descriptors, 0);
        cr_assert_eq(counts->misuses, 0u);
    }
}

/* A tier on it: a read ends as a miss, a store as refused, and both work again when the ring does. */
Test(usrbio, a_tier_outlives_a_ring_that_hangs)
{
    struct kv_layout l = ts_layout(256);
    struct ts_op o[2];
    int n[] = {1, 2};
    open_storage(23);
    open_ssd(&l);
    for (int i = 0; i < 4; i++)
        cr_assert(ts_store_one(tier, storage, &l, i));
    faults->late = 1000;
    ts_op_begin(&o[0], tier, &l, TS_READ, n, 2);
    ts_op_begin(&o[1], tier, &l, TS_STORE, (int[]){50}, 1);
    for (int i = 0; i < 400 && !(o[0].done && o[1].done); i++) {
        ts_clock_ns += 1000 * MS;
        tier->ops->tick(tier);
        storage->ops->poll(storage);
    }
    cr_assert(o[0].done && o[1].done);
    cr_assert_eq(o[0].op.count, 0);
    cr_assert_eq(o[1].op.count, 0);
    ts_op_free(&o[0]);
    ts_op_free(&o[1]);
    faults->late = 0;
    wait_open(said[1]);
    ts_clock_ns += 600000 * MS;
    settle(4);
    cr_assert(ts_read_one(tier, storage, &l, 3), "what was not asked for is still there");
    cr_assert(ts_store_one(tier, storage, &l, 51) && ts_read_one(tier, storage, &l, 51));
}

Test(usrbio, what_is_missing_is_said)
{
    struct cfg_error err;
    struct kv_storage *s;
    cr_assert_eq(new_storage(folder, "/nonexistent/lib.so", 8, &s, &err), -ENOENT);
    cr_assert_not_null(strstr(err.msg, "/nonexistent/lib.so"), "%s", err.msg);
    char path[4200];
    snprintf(path, sizeof path, "%s/not-3fs", folder);
    free(ts_write_file(folder, "x", ""));
    cr_assert_eq(mkdir(path, 0700), 0);
    cr_assert_eq(new_storage(path, library, 8, &s, &err), -EINVAL);
    cr_assert_not_null(strstr(err.msg, "not in a mounted 3FS"), "%s", err.msg);
    cr_assert_eq(new_storage(folder, library, 4000, &s, &err), -ENOMEM);
    cr_assert_not_null(strstr(err.msg, "ring"), "%s", err.msg);
}
