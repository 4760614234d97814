/* Rows of tables through a cache: the right bytes from any place in a file, read once however many ask, and errors that
 * cost their rows only. */
#include "tests/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvtiers/rows.h"
#include "kvtiers/storage_sim.h"
#include "tests/support/kv_blocks.h"
#include "tests/support/process.h"

/* Two tables in one file behind an odd head; rows of 96 + 5 bytes, so that many lie across pages. */
enum { A = 96, B = 5, ROW = A + B, ROWS = 3000, HEAD = 1237, TABLES = 2, PART_A = ROWS * A, PART_B = ROWS * B };

static uint8_t byte_of(int table, uint64_t row, int i)
{
    return (uint8_t)(row * 131 + (uint64_t)i * 7 + (uint64_t)table * 77 + (row >> 8));
}

static size_t fill(uint8_t *file)
{
    uint8_t *at = file + HEAD;
    for (int t = 0; t < TABLES; t++)
        for (int part = 0; part < 2; part++)
            for (uint64_t r = 0; r < ROWS; r++)
                for (int i = 0; i < (part ? B : A); i++)
                    *at++ = byte_of(t, r, part ? A + i : i);
    return (size_t)(at - file);
}

struct rig {
    struct kv_disk *disk;
    struct kv_storage *storage;
    struct kv_rows *rows;
};

static struct kv_rows_params params(struct kv_storage *storage, int64_t cache, bool direct)
{
    struct kv_rows_params p = {.storage = storage,
                               .folder = "disk",
                               .n_tables = TABLES,
                               .cache_bytes = cache,
                               .direct = direct,
                               .clock = ts_clock};
    for (int t = 0; t < TABLES; t++)
        p.table[t] = (struct kv_rows_table){.part = {{"weights", HEAD + (uint64_t)t * (PART_A + PART_B), A},
                                                     {"weights", HEAD + (uint64_t)t * (PART_A + PART_B) + PART_A, B}},
                                            .n_parts = 2,
                                            .rows = ROWS};
    return p;
}

static void write_file(struct kv_storage *s)
{
    size_t len = HEAD + TABLES * (PART_A + PART_B);
    uint8_t *bytes = calloc(1, len);
    cr_assert_eq(fill(bytes), len);
    struct kv_io io = {.op = KV_IO_OPEN, .path = "weights", .flags = KV_OPEN_WRITE | KV_OPEN_CREATE};
    int f = (int)kv_io_run(s, &io);
    cr_assert_ge(f, 0);
    io = (struct kv_io){.op = KV_IO_WRITE, .file = f, .bytes = bytes, .len = len};
    cr_assert_eq(kv_io_run(s, &io), (int64_t)len);
    io = (struct kv_io){.op = KV_IO_CLOSE, .file = f};
    kv_io_run(s, &io);
    free(bytes);
}

static void open_rig(struct rig *r, int64_t cache)
{
    struct cfg_error err;
    *r = (struct rig){.disk = kv_disk_new(5)};
    r->storage = kv_storage_sim_new(r->disk);
    write_file(r->storage);
    const struct kv_rows_params p = params(r->storage, cache, true);
    cr_assert_eq(kv_rows_new(&p, &r->rows, &err), 0, "%s", err.msg);
    cr_assert_eq(kv_rows_bytes(r->rows), (size_t)ROW);
}

static void close_rig(struct rig *r)
{
    kv_rows_free(r->rows);
    kv_storage_free(r->storage);
    kv_disk_free(r->disk);
}

struct question {
    struct kv_rows_op op;
    uint64_t *row;
    int done;
};

static void on_done(struct kv_rows_op *op)
{
    ((struct question *)op->ctx)->done++;
}

static void ask(struct rig *r, struct question *q, int table, int n, unsigned seed, bool ahead)
{
    *q = (struct question){.row = calloc((size_t)n + 1, sizeof *q->row)};
    srand(seed);
    for (int i = 0; i < n; i++)
        q->row[i] = (uint64_t)(rand() % ROWS);
    q->op = (struct kv_rows_op){.table = table,
                                .row = q->row,
                                .n = n,
                                .out = ahead ? NULL : malloc((size_t)n * ROW + 1),
                                .done = on_done,
                                .ctx = q};
    kv_rows_read(r->rows, &q->op);
}

static void check(struct question *q)
{
    cr_assert_eq(q->done, 1, "done %d times", q->done);
    cr_assert_eq(q->op.failed, 0);
    for (int i = 0; i < q->op.n && q->op.out; i++)
        for (int k = 0; k < ROW; k++)
            cr_assert_eq(q->op.out[i * ROW + k], byte_of(q->op.table, q->row[i], k), "row %d, byte %d", (int)q->row[i],
                         k);
    free(q->op.out);
    free(q->row);
}

static struct kv_rows_stats stat_of(struct rig *r)
{
    struct kv_rows_stats s;
    kv_rows_stat(r->rows, &s);
    return s;
}

Test(rows, come_right_through_caches_of_any_size)
{
    static const int64_t cache[] = {1, 40 * ROW, 700 * ROW, 2 * ROWS * ROW};
    for (int c = 0; c < 4; c++) {
        struct rig r;
        struct question q[24];
        open_rig(&r, cache[c]);
        for (unsigned round = 0; round < 3; round++) {
            for (unsigned i = 0; i < 24; i++)
                ask(&r, &q[i], (int)i % TABLES, (int)(i * 37) % 400, 100 * round + i, i % 5 == 4);
            ts_turn(r.storage);
            for (int i = 0; i < 24; i++)
                check(&q[i]);
        }
        struct kv_rows_stats s = stat_of(&r);
        cr_assert_eq(s.queue, 0);
        cr_assert_eq(s.errors, 0u);
        cr_assert_le(s.used, s.slots);
        cr_assert_eq(s.evicted > 0, c < 3);
        close_rig(&r);
    }
}

/* All of a table at once, more than there are requests; then all of it again. */
Test(rows, many_rows_of_a_page_are_one_read_and_what_is_cached_is_none)
{
    struct rig r;
    struct question q[3];
    open_rig(&r, 2 * ROWS * ROW);
    for (int i = 0; i < 3; i++) {
        q[i] = (struct question){.row = calloc(ROWS, sizeof(uint64_t))};
        for (uint64_t k = 0; k < ROWS; k++)
            q[i].row[k] = k;
        q[i].op =
            (struct kv_rows_op){.row = q[i].row, .n = ROWS, .out = malloc(ROWS * ROW), .done = on_done, .ctx = &q[i]};
    }
    kv_rows_read(r.rows, &q[0].op);
    kv_rows_read(r.rows, &q[1].op); /* while the first is under way */
    ts_turn(r.storage);
    uint64_t pages = (PART_A + PART_B) / KV_PAGE + 4, reads = stat_of(&r).reads;
    cr_assert_le(reads, 2 * pages, "%d reads of %d pages", (int)reads, (int)pages); /* those across pages read two */
    kv_rows_read(r.rows, &q[2].op);
    cr_assert_eq(q[2].done, 1, "it is there at once");
    cr_assert_eq(stat_of(&r).reads, reads);
    for (int i = 0; i < 3; i++)
        check(&q[i]);
    close_rig(&r);
}

Test(rows, asked_for_ahead_they_are_there)
{
    struct rig r;
    struct question ahead, q;
    open_rig(&r, 1000 * ROW);
    ask(&r, &ahead, 1, 300, 3, true);
    ts_turn(r.storage);
    check(&ahead);
    ask(&r, &q, 1, 300, 3, false);
    check(&q);
    cr_assert_eq(stat_of(&r).ahead, 300u);
    cr_assert_ge(stat_of(&r).cached, 300u);
    close_rig(&r);
}

Test(rows, errors_and_short_reads_cost_their_rows_only)
{
    for (int kind = 0; kind < 2; kind++) {
        struct rig r;
        struct question q, again;
        open_rig(&r, 1000 * ROW);
        kv_disk_fail(r.disk, KV_IO_READ, "weights", 3, 2, kind ? 17 : -EIO);
        ask(&r, &q, 0, 200, 9, false);
        ts_turn(r.storage);
        cr_assert_eq(q.done, 1);
        cr_assert(q.op.failed > 0 && q.op.failed < 200, "%d failed", q.op.failed);
        free(q.op.out);
        free(q.row);
        ask(&r, &again, 0, 200, 9, false);
        ts_turn(r.storage);
        check(&again);
        close_rig(&r);
    }
}

Test(rows, numbers_beyond_the_table_fail)
{
    struct rig r;
    struct question q;
    open_rig(&r, 1000 * ROW);
    uint64_t row[] = {1, ROWS, UINT64_MAX};
    q = (struct question){0};
    uint8_t out[3 * ROW];
    q.op = (struct kv_rows_op){.row = row, .n = 3, .out = out, .done = on_done, .ctx = &q};
    kv_rows_read(r.rows, &q.op);
    ts_turn(r.storage);
    cr_assert_eq(q.done, 1);
    cr_assert_eq(q.op.failed, 2);
    ask(&r, &q, 0, 0, 1, false);
    cr_assert_eq(q.done, 1, "nothing is asked for");
    check(&q);
    close_rig(&r);
}

/* Real files, with and without direct I/O; and what is missing is said. */
Test(rows, from_real_files)
{
    char *dir = ts_temp_dir();
    struct rig r = {0};
    struct cfg_error err;
    struct question q;
    int e = kv_storage_uring_new(dir, 64, &r.storage, &err);
    if (e)
        cr_skip_test("%s", err.msg);
    struct kv_rows_params p = params(r.storage, 500 * ROW, false);
    cr_assert_eq(kv_rows_new(&p, &r.rows, &err), -ENOENT);
    cr_assert(strstr(err.msg, "weights"), "%s", err.msg);
    write_file(r.storage);
    for (int direct = 0; direct < 2; direct++) {
        p = params(r.storage, 500 * ROW, direct);
        e = kv_rows_new(&p, &r.rows, &err);
        if (e == -EINVAL && direct) {
            cr_log_info("%s", err.msg);
            break;
        }
        cr_assert_eq(e, 0, "%s", err.msg);
        ask(&r, &q, 1, 900, 4, false);
        for (int i = 0; i < 1000 && !q.done; i++)
            r.storage->ops->wait(r.storage, 1000);
        check(&q);
        kv_rows_free(r.rows);
    }
    kv_storage_free(r.storage);
    ts_remove_dir(dir);
    free(dir);
}

static int in_vain(struct kv_storage *s, int timeout_ms)
{
    (void)s;
    (void)timeout_ms;
    return 0;
}

/* Who leaves while a read hangs does not wait for ever, and leaves the memory that it may yet fill. */
Test(rows, what_a_read_that_hangs_may_fill_stays)
{
    static struct rig r; /* what is left hangs on it */
    struct question q;
    open_rig(&r, 1 << 20);
    const struct kv_storage_ops *real = r.storage->ops;
    struct kv_storage_ops hangs = *real;
    hangs.outlasts = true;
    hangs.wait = in_vain;
    r.storage->ops = &hangs;
    ask(&r, &q, 0, 40, 9, false);
    cr_assert_eq(q.done, 0);
    kv_rows_free(r.rows);
    cr_assert(r.storage->hung);
    kv_storage_free(r.storage);
    r.storage->ops = real; /* the reads end after all */
    while (real->poll(r.storage))
        ;
    cr_assert_gt(stat_of(&r).reads, 0u);
    check(&q);
    real->free(r.storage);
    kv_disk_free(r.disk);
}
