#include "cli/bench_kv_rows.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli/bench_kv.h"
#include "cli/bench_kv_fio.h"
#include "kvtiers/rows.h"

enum {
    ROWS = 1 << 20,
    WARM = 1 << 16, /* rows that the cache has */
    BYTES_A = ROWS * BENCH_ROWS_A,
    FILE_BYTES = ROWS * (BENCH_ROWS_A + BENCH_ROWS_B),
    MANY = BENCH_ROWS_MANY * BENCH_ROWS_TOKEN,
    ONES = 256,      /* tokens alone, of a round */
    COLD_ROUNDS = 4, /* of 64 tokens: few of the file's pages */
    ROUNDS_MAX = 99,
};

static const char file_name[] = "rows";

/* One way to get rows; ctx is its own. -errno. */
struct source {
    int (*get)(void *ctx, const uint64_t *row, int n, uint8_t *out);
    void *ctx;
    uint64_t among; /* rows are drawn from the first so many */
};

static double now(void)
{
    return 1e-9 * (double)kv_clock_system.now(NULL);
}

static void draw(uint64_t *row, int n, uint64_t among, uint64_t *seed)
{
    for (int i = 0; i < n; i++) {
        *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        row[i] = (*seed >> 33) % among;
    }
}

/* ---- mapped ---- */

struct mapped {
    char path[1100];
    uint8_t *base;
};

static int get_mapped(void *ctx, const uint64_t *row, int n, uint8_t *out)
{
    const struct mapped *m = ctx;
    for (int i = 0; i < n; i++, out += BENCH_ROWS_A + BENCH_ROWS_B) {
        memcpy(out, m->base + row[i] * BENCH_ROWS_A, BENCH_ROWS_A);
        memcpy(out + BENCH_ROWS_A, m->base + BYTES_A + row[i] * BENCH_ROWS_B, BENCH_ROWS_B);
    }
    return 0;
}

/* cold: nothing of the file is in memory. */
static int map(struct mapped *m, bool cold)
{
    int fd = open(m->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (cold)
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    void *p = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    int e = errno;
    close(fd);
    if (p == MAP_FAILED)
        return -e;
    m->base = p;
    madvise(p, FILE_BYTES, MADV_RANDOM);
    volatile uint8_t sink = 0;
    for (size_t at = 0; at < FILE_BYTES && !cold; at += KV_PAGE)
        sink ^= m->base[at];
    return 0;
}

static void unmap(struct mapped *m)
{
    munmap(m->base, FILE_BYTES);
}

/* ---- through kvtiers/rows.h ---- */

struct through {
    struct kv_rows *rows;
    struct kv_storage *storage;
};

static void on_done(struct kv_rows_op *op)
{
    *(bool *)op->ctx = true;
}

static int get_through(void *ctx, const uint64_t *row, int n, uint8_t *out)
{
    struct through *t = ctx;
    bool done = false;
    struct kv_rows_op op = {.row = row, .n = n, .out = out, .done = on_done, .ctx = &done};
    kv_rows_read(t->rows, &op);
    while (!done)
        t->storage->ops->wait(t->storage, 1000);
    return op.failed ? -EIO : 0;
}

static int open_through(const struct bench_kv_rows_arg *a, int64_t cache_bytes, struct through *t,
                        struct cfg_error *err)
{
    const struct kv_rows_params p = {
        .storage = a->storage,
        .folder = a->folder,
        .table = {{.part = {{file_name, 0, BENCH_ROWS_A}, {file_name, BYTES_A, BENCH_ROWS_B}},
                   .n_parts = 2,
                   .rows = ROWS}},
        .n_tables = 1,
        .cache_bytes = cache_bytes,
        .direct = true,
        .clock = kv_clock_system,
    };
    t->storage = a->storage;
    return kv_rows_new(&p, &t->rows, err);
}

static int warm(struct through *t, uint8_t *out)
{
    static uint64_t row[MANY];
    int r = 0;
    for (uint64_t at = 0; !r && at < WARM; at += MANY) {
        for (uint64_t i = 0; i < MANY; i++)
            row[i] = at + i;
        r = get_through(t, row, MANY, out);
    }
    return r;
}

/* ---- measuring ---- */

/* seconds 0: a few rounds only. */
static int measure(const struct source *s, double seconds, uint64_t *seed, uint8_t *out, double *us, double *many)
{
    static uint64_t row[MANY];
    double took[ONES], spent = 0;
    long rows = 0;
    int r = 0, ones = seconds > 0 ? (int)ONES : ONES / 4;
    for (int i = 0; !r && i < ones; i++) {
        draw(row, BENCH_ROWS_TOKEN, s->among, seed);
        double began = now();
        r = s->get(s->ctx, row, BENCH_ROWS_TOKEN, out);
        took[i] = 1e6 * (now() - began);
    }
    for (int k = 0; !r && (seconds > 0 ? spent < seconds : k < COLD_ROUNDS); k++) {
        draw(row, MANY, s->among, seed);
        double began = now();
        r = s->get(s->ctx, row, MANY, out);
        spent += now() - began;
        rows += MANY;
    }
    *us = r ? 0 : cli_bench_kv_median(took, ones);
    *many = r ? 0 : (double)rows / spent;
    return r;
}

static int write_file(const char *path)
{
    enum { CHUNK = 1 << 20 };
    uint8_t *bytes = malloc(CHUNK);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600), r = fd < 0 ? -errno : bytes ? 0 : -ENOMEM;
    for (int i = 0; bytes && i < CHUNK; i++)
        bytes[i] = (uint8_t)((unsigned)i * 2654435761u >> 13);
    for (size_t at = 0; !r && at < FILE_BYTES;) {
        ssize_t n = write(fd, bytes, FILE_BYTES - at < CHUNK ? FILE_BYTES - at : (size_t)CHUNK);
        r = n < 0 ? -errno : 0;
        at += n > 0 ? (size_t)n : 0;
    }
    if (!r && fsync(fd))
        r = -errno;
    if (fd >= 0)
        close(fd);
    free(bytes);
    return r;
}

struct values {
    double us[ROUNDS_MAX], many[ROUNDS_MAX];
};

static struct bench_kv_rows_one middle(struct values *v, int n)
{
    return (struct bench_kv_rows_one){cli_bench_kv_median(v->us, n), cli_bench_kv_median(v->many, n)};
}

static int all_rounds(const struct bench_kv_rows_arg *a, struct mapped *m, struct through *cached, struct through *read,
                      uint8_t *out, struct bench_kv_rows *result)
{
    static struct values v[4];
    double fio[ROUNDS_MAX];
    uint64_t seed = 1;
    int r = warm(cached, out);
    for (int k = 0; !r && k < a->rounds; k++) {
        const struct source mapped = {get_mapped, m, ROWS}, from_cache = {get_through, cached, WARM},
                            from_device = {get_through, read, ROWS};
        for (int cold = 1; !r && cold >= 0; cold--) {
            struct values *w = &v[cold];
            r = map(m, cold);
            if (r)
                break;
            r = measure(&mapped, cold ? 0 : a->seconds, &seed, out, &w->us[k], &w->many[k]);
            unmap(m);
        }
        if (!r)
            r = measure(&from_cache, a->seconds, &seed, out, &v[2].us[k], &v[2].many[k]);
        if (!r)
            r = measure(&from_device, a->seconds, &seed, out, &v[3].us[k], &v[3].many[k]);
        fio[k] = !r && bench_kv_fio_available()
                     ? bench_kv_fio(m->path, BENCH_FIO_PAGES, FILE_BYTES, a->depth, a->seconds) / KV_PAGE
                     : 0;
    }
    if (!r)
        *result = (struct bench_kv_rows){.mapped = middle(&v[0], a->rounds),
                                         .mapped_cold = middle(&v[1], a->rounds),
                                         .cached = middle(&v[2], a->rounds),
                                         .read = middle(&v[3], a->rounds),
                                         .fio = cli_bench_kv_median(fio, a->rounds)};
    return r;
}

int bench_kv_rows(const struct bench_kv_rows_arg *arg, struct bench_kv_rows *out, struct cfg_error *err)
{
    struct mapped m;
    struct through cached = {0}, read = {0};
    uint8_t *rows = malloc((size_t)MANY * (BENCH_ROWS_A + BENCH_ROWS_B));
    snprintf(m.path, sizeof m.path, "%s/%s", arg->folder, file_name);
    int r = rows ? write_file(m.path) : -ENOMEM;
    if (r)
        cfg_error_set(err, -r, "%s: %s", m.path, strerror(-r));
    if (!r)
        r = open_through(arg, (int64_t)WARM * (BENCH_ROWS_A + BENCH_ROWS_B) * 2, &cached, err);
    if (!r)
        r = open_through(arg, 1, &read, err);
    if (!r) {
        r = all_rounds(arg, &m, &cached, &read, rows, out);
        if (r)
            cfg_error_set(err, -r, "%s: rows could not be read: %s", m.path, strerror(-r));
    }
    kv_rows_free(cached.rows);
    kv_rows_free(read.rows);
    unlink(m.path);
    free(rows);
    return r;
}
