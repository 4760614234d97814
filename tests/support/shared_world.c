/* Implementation of tests/support/shared_world.h. On a real folder every storage is wrapped into a gate, which holds
 * requests, fails them, and stops a process at a write, as the disk in memory does. */
#define _GNU_SOURCE
#include "tests/support/shared_world.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvtiers/usrbio.h"
#include "tests/harness.h"
#include "tests/support/less.h"
#include "tests/support/process.h"

enum { SECTOR = 512, FAULTS_MAX = 16, OPEN_MAX_FILES = 256, NAME_BYTES = 128, DEPTH = 32, PATIENCE_MS = 30000 };

struct fault {
    bool used, hold;
    enum kv_io_op op;
    char name[NAME_BYTES];
    int skip, times;
    int64_t result;
};

struct gate;

/* A request that went on to the storage below. */
struct passed {
    struct kv_io io;
    struct gate *g;
    struct kv_io *outer;
};

struct gate {
    struct kv_storage base;
    struct sw_disk *d;
    struct gate *next;
    struct kv_storage *inner;
    unsigned boot;
    struct kv_io *queue; /* held back so far */
    struct kv_storage_stats stats;
    int segments, most_segments; /* open, at most so far */
    struct {
        int file; /* -1: unused */
        char name[NAME_BYTES];
    } open[OPEN_MAX_FILES];
};

struct sw_disk {
    const struct sw_kind *kind;
    struct kv_disk *memory; /* SW_MEMORY; what follows is of the others */
    char *folder;
    bool direct, stopped;
    uint64_t random;
    int64_t points, stop_at;
    unsigned boots;
    struct fault fault[FAULTS_MAX];
    struct gate *first;
};

static struct {
    void *library;
    char path[4096];
    struct usrbio_faults *faults;
    struct usrbio_counts *counts;
} usrbio;
static uint64_t round_now;

static uint64_t draw(struct sw_disk *d)
{
    d->random ^= d->random << 13;
    d->random ^= d->random >> 7;
    d->random ^= d->random << 17;
    return d->random * UINT64_C(0x2545f4914f6cdd1d) >> 16;
}

/* ---- the gate: what a process asks for, and whether it gets it ---- */

static bool changes(enum kv_io_op op)
{
    return op != KV_IO_READ && op != KV_IO_LIST && op != KV_IO_SIZE && op != KV_IO_SPACE && op != KV_IO_CLOSE;
}

static bool dead(const struct gate *g)
{
    return g->d->stopped || g->boot != g->d->boots;
}

static void note_open(struct gate *g, int old, int file, const char *name)
{
    for (int i = 0; i < OPEN_MAX_FILES; i++)
        if (g->open[i].file == old) {
            g->segments += old == -1 && !strncmp(name, "seg-", 4);
            g->segments -= old != -1 && !strncmp(g->open[i].name, "seg-", 4);
            g->most_segments = g->segments > g->most_segments ? g->segments : g->most_segments;
            g->open[i].file = file;
            snprintf(g->open[i].name, NAME_BYTES, "%s", name);
            return;
        }
    cr_assert(old != -1, "more than %d open files", OPEN_MAX_FILES);
}

static const char *name_of(const struct gate *g, const struct kv_io *io)
{
    if (io->op == KV_IO_OPEN || io->op == KV_IO_RENAME || io->op == KV_IO_UNLINK || io->op == KV_IO_MKDIR ||
        io->op == KV_IO_LIST)
        return io->path;
    for (int i = 0; i < OPEN_MAX_FILES; i++)
        if (g->open[i].file == io->file)
            return g->open[i].name;
    return "";
}

static struct fault *fault_of(struct gate *g, const struct kv_io *io, bool hold)
{
    const char *name = name_of(g, io);
    for (int i = 0; i < FAULTS_MAX; i++) {
        struct fault *f = &g->d->fault[i];
        if (f->used && f->hold == hold && f->op == io->op && (!f->name[0] || strstr(name, f->name)))
            return f;
    }
    return NULL;
}

static void complete(struct gate *g, struct kv_io *io, int64_t result)
{
    io->result = result;
    g->stats.in_flight--;
    g->stats.completed++;
    g->stats.failed += result < 0;
    io->done(io);
}

static void on_passed(struct kv_io *io)
{
    struct passed *p = io->ctx;
    struct gate *g = p->g;
    struct kv_io *outer = p->outer;
    int64_t result = io->result;
    char *names = io->names;
    if (io->op == KV_IO_OPEN && result >= 0)
        note_open(g, -1, (int)result, io->path);
    free(p);
    if (dead(g)) { /* it happened, and nobody lives to see it */
        if (outer->op == KV_IO_LIST)
            free(names);
        return;
    }
    if (outer->op == KV_IO_LIST)
        outer->names = names;
    complete(g, outer, result);
}

/* An unfinished write of a process that is no more: any of its sectors may be there. */
static void tear(struct sw_disk *d, const struct kv_io *io)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", io->file);
    int fd = open(path, O_WRONLY | O_CLOEXEC); /* not O_DIRECT, which sectors would not suit */
    for (size_t at = 0; fd >= 0 && at < io->len; at += SECTOR) {
        size_t n = io->len - at < SECTOR ? io->len - at : (size_t)SECTOR;
        if (draw(d) & 1)
            cr_assert_eq(pwrite(fd, (const uint8_t *)io->bytes + at, n, (off_t)(io->offset + at)), (ssize_t)n);
    }
    if (fd >= 0)
        close(fd);
}

static void stop_all(struct sw_disk *d)
{
    for (struct gate *g = d->first; g; g = g->next) {
        for (struct kv_io *io = dead(g) ? NULL : g->queue; io; io = io->next)
            if (io->op == KV_IO_WRITE)
                tear(d, io);
        g->queue = NULL;
    }
    d->stopped = true;
}

static void gate_submit(struct kv_storage *base, struct kv_io *io)
{
    struct gate *g = (struct gate *)base;
    struct sw_disk *d = g->d;
    struct kv_io **at = &g->queue;
    if (dead(g))
        return;
    g->stats.submitted++;
    g->stats.in_flight++;
    while (*at)
        at = &(*at)->next;
    io->next = NULL;
    *at = io;
    if (changes(io->op)) {
        if (d->stop_at >= 0 && d->points >= d->stop_at)
            stop_all(d);
        d->points++;
    }
}

static int in_inner(struct gate *g)
{
    struct kv_storage_stats s;
    g->inner->ops->stat(g->inner, &s);
    return s.in_flight;
}

/* Requests that went on use memory of the process that stopped, and files that it had. */
static void drain(struct gate *g)
{
    while (in_inner(g) && g->inner->ops->wait(g->inner, PATIENCE_MS))
        ;
    cr_assert_eq(in_inner(g), 0, "a request has no end");
}

static void pass(struct gate *g, struct kv_io *io)
{
    struct fault *bad = fault_of(g, io, false);
    struct passed *p = malloc(sizeof *p);
    cr_assert_not_null(p);
    *p = (struct passed){.io = *io, .g = g, .outer = io};
    p->io.done = on_passed;
    p->io.ctx = p;
    if (bad && bad->skip-- <= 0) {
        bad->used = --bad->times > 0;
        if (bad->result < 0) {
            free(p);
            complete(g, io, bad->result);
            return;
        }
        p->io.len = (size_t)bad->result < io->len ? (size_t)bad->result : io->len;
    }
    if (io->op == KV_IO_CLOSE)
        note_open(g, io->file, -1, "");
    g->inner->ops->submit(g->inner, &p->io);
}

/* Some of what waits goes on. */
static int pass_some(struct gate *g)
{
    struct kv_io *list = g->queue, *kept = NULL, **end = &kept;
    int n = 0;
    g->queue = NULL;
    for (struct kv_io *io = list, *next; io && !dead(g); io = next) {
        next = io->next;
        if (fault_of(g, io, true) || (draw(g->d) & 3) == 0) {
            *end = io;
            end = &io->next;
            continue;
        }
        n++;
        pass(g, io);
    }
    *end = g->queue; /* what came meanwhile */
    g->queue = dead(g) ? NULL : kept;
    return n;
}

static bool any_free(struct gate *g)
{
    for (struct kv_io *io = g->queue; io; io = io->next)
        if (!fault_of(g, io, true))
            return true;
    return false;
}

static int gate_poll(struct kv_storage *base)
{
    struct gate *g = (struct gate *)base;
    if (dead(g)) {
        drain(g);
        return 0;
    }
    int n = pass_some(g);
    n += g->inner->ops->poll(g->inner);
    if (dead(g))
        drain(g);
    return n;
}

static int gate_wait(struct kv_storage *base, int timeout_ms)
{
    struct gate *g = (struct gate *)base;
    int n = gate_poll(base);
    while (!n && !dead(g) && (in_inner(g) || any_free(g))) {
        n = pass_some(g);
        if (in_inner(g) && !(n += g->inner->ops->wait(g->inner, timeout_ms)))
            break;
    }
    if (dead(g))
        drain(g);
    return n;
}

static int gate_descriptor(struct kv_storage *base)
{
    (void)base;
    return -1;
}

static int gate_register(struct kv_storage *base, void *at, size_t len)
{
    struct gate *g = (struct gate *)base;
    return g->inner->ops->register_memory(g->inner, at, len);
}

static void gate_stat(struct kv_storage *base, struct kv_storage_stats *out)
{
    *out = ((struct gate *)base)->stats;
}

/* The end of a process closes its files. */
static void gate_free(struct kv_storage *base)
{
    struct gate *g = (struct gate *)base, **at = &g->d->first;
    int files = 0;
    bool alive = !dead(g);
    drain(g);
    for (int i = 0; i < OPEN_MAX_FILES; i++)
        if (g->open[i].file >= 0) {
            struct kv_io io = {.op = KV_IO_CLOSE, .file = g->open[i].file};
            files++;
            kv_io_run(g->inner, &io);
        }
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    kv_storage_free(g->inner);
    free(g);
    cr_expect(!alive || !files, "%d files were left open by a process that ended in order", files);
}

static const struct kv_storage_ops gate_ops = {
    .name = "gate",
    .submit = gate_submit,
    .poll = gate_poll,
    .wait = gate_wait,
    .descriptor = gate_descriptor,
    .register_memory = gate_register,
    .stat = gate_stat,
    .free = gate_free,
};

/* Its time is the machine's: that of the worlds jumps while requests are under way. */
static int usrbio_new(const char *folder, struct kv_storage **out, struct cfg_error *err)
{
    const struct kv_usrbio_params p = {
        .folder = folder, .library = usrbio.path, .depth = DEPTH, .clock = kv_clock_system};
    return kv_storage_usrbio_new(&p, out, err);
}

int sw_process_storage(const struct sw_kind *kind, uint64_t seed, const char *folder, struct kv_storage **out,
                       struct cfg_error *err)
{
    if (kind->io != SW_USRBIO)
        return kv_storage_uring_new(folder, DEPTH, out, err);
    *usrbio.faults = kind->faults;
    usrbio.faults->seed = seed;
    return usrbio_new(folder, out, err);
}

static struct kv_storage *gate_new(struct sw_disk *d)
{
    struct gate *g = calloc(1, sizeof *g);
    struct cfg_error err;
    cr_assert_not_null(g);
    int r = d->kind->io == SW_USRBIO ? usrbio_new(d->folder, &g->inner, &err)
                                     : kv_storage_uring_new(d->folder, DEPTH, &g->inner, &err);
    cr_assert_eq(r, 0, "%s", err.msg);
    for (int i = 0; i < OPEN_MAX_FILES; i++)
        g->open[i].file = -1;
    g->base.ops = &gate_ops;
    g->d = d;
    g->boot = d->boots;
    g->next = d->first;
    d->first = g;
    return &g->base;
}

/* ---- folders ---- */

const char *sw_parent(const struct sw_kind *kind, int view)
{
    const char *given = getenv(view && getenv("WEFT_SHARED_DIR2") ? "WEFT_SHARED_DIR2" : "WEFT_SHARED_DIR");
    const char *base = getenv("TMPDIR");
    if (given)
        return given;
    /* The double's bytes need no disk, whose flushes take their time. */
    if (kind->io == SW_USRBIO && access("/dev/shm", W_OK) == 0)
        return "/dev/shm";
    return base && *base ? base : "/tmp";
}

static void path_of(const struct sw_disk *d, const char *name, char out[4400])
{
    snprintf(out, 4400, "%s/%s", d->folder, name);
}

static bool takes_direct(const struct sw_disk *d)
{
    char path[4400];
    path_of(d, "direct", path);
    int fd = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    void *page = aligned_alloc(4096, 4096);
    bool ok = fd >= 0 && page && memset(page, 0, 4096) && pwrite(fd, page, 4096, 0) == 4096 &&
              pread(fd, page, 4096, 0) == 4096;
    free(page);
    if (fd >= 0)
        close(fd);
    unlink(path);
    return ok;
}

struct sw_disk *sw_disk_new(const struct sw_kind *kind, uint64_t seed)
{
    struct sw_disk *d = calloc(1, sizeof *d);
    cr_assert_not_null(d);
    d->kind = kind;
    seed += round_now * 1000003;
    if (kind->io == SW_MEMORY) {
        d->memory = kv_disk_new(seed);
        cr_assert_not_null(d->memory);
        return d;
    }
    d->stop_at = -1;
    d->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    cr_assert_gt(asprintf(&d->folder, "%s/weft-shared-XXXXXX", sw_parent(kind, 0)), 0);
    cr_assert_not_null(mkdtemp(d->folder), "%s: %s", d->folder, strerror(errno));
    d->direct = takes_direct(d);
    if (kind->io == SW_USRBIO) {
        *usrbio.faults = kind->faults;
        usrbio.faults->seed = d->random;
        *usrbio.counts = (struct usrbio_counts){0};
    }
    return d;
}

void sw_disk_free(struct sw_disk *d)
{
    if (d->memory) {
        kv_disk_free(d->memory);
    } else {
        if (d->kind->io == SW_USRBIO) {
            cr_expect_eq(usrbio.counts->misuses, 0, "USRBIO was used as it must not be");
            cr_expect_eq(usrbio.counts->rings, 0);
            cr_expect_eq(usrbio.counts->iovs, 0);
            cr_expect_eq(usrbio.counts->descriptors, 0);
        }
        ts_remove_dir(d->folder);
        free(d->folder);
    }
    free(d);
}

struct kv_storage *sw_storage(struct sw_disk *d)
{
    return d->memory ? kv_storage_sim_new(d->memory) : gate_new(d);
}

int sw_most_open(struct kv_storage *s)
{
    return s->ops == &gate_ops ? ((struct gate *)s)->most_segments : 0;
}

bool sw_direct(const struct sw_disk *d)
{
    return d->memory || d->kind->io == SW_USRBIO || d->direct;
}

bool sw_error_came(const struct sw_disk *d)
{
    return d->kind->errors && usrbio.counts->errors + usrbio.counts->refused;
}

void sw_faults_end(struct sw_disk *d)
{
    if (d->kind->io == SW_USRBIO)
        usrbio.faults->errors_left = 0;
}

void sw_stop_after(struct sw_disk *d, int64_t n)
{
    if (d->memory)
        kv_disk_stop_after(d->memory, n);
    else
        d->stop_at = n < 0 ? -1 : d->points + n;
}

bool sw_stopped(const struct sw_disk *d)
{
    return d->memory ? kv_disk_stopped(d->memory) : d->stopped;
}

void sw_crash(struct sw_disk *d, enum kv_crash how)
{
    if (d->memory) {
        kv_disk_crash(d->memory, how);
        return;
    }
    cr_assert_eq(how, KV_CRASH_KILL, "the power of a real machine stays on");
    stop_all(d);
    for (struct gate *g = d->first; g; g = g->next)
        drain(g);
    d->boots++;
    d->stopped = false;
    d->stop_at = -1;
}

static struct fault *fault_new(struct sw_disk *d, enum kv_io_op op, const char *name)
{
    struct fault *f = d->fault;
    while (f < d->fault + FAULTS_MAX && f->used)
        f++;
    cr_assert_lt(f - d->fault, FAULTS_MAX);
    *f = (struct fault){.used = true, .op = op};
    snprintf(f->name, NAME_BYTES, "%s", name ? name : "");
    return f;
}

void sw_fail(struct sw_disk *d, enum kv_io_op op, const char *name, int skip, int times, int64_t result)
{
    if (d->memory) {
        kv_disk_fail(d->memory, op, name, skip, times, result);
        return;
    }
    struct fault *f = fault_new(d, op, name);
    f->skip = skip;
    f->times = times;
    f->result = result;
}

void sw_hold(struct sw_disk *d, enum kv_io_op op, const char *name, bool hold)
{
    if (d->memory) {
        kv_disk_hold(d->memory, op, name, hold);
        return;
    }
    if (hold)
        fault_new(d, op, name)->hold = true;
    for (int i = 0; i < FAULTS_MAX && !hold; i++)
        if (d->fault[i].hold && d->fault[i].op == op && !strcmp(d->fault[i].name, name ? name : ""))
            d->fault[i].used = false;
}

int64_t sw_size(const struct sw_disk *d, const char *name)
{
    char path[4400];
    struct stat st;
    if (d->memory)
        return kv_disk_size(d->memory, name);
    path_of(d, name, path);
    return stat(path, &st) ? -errno : (int64_t)st.st_size;
}

void sw_truncate(struct sw_disk *d, const char *name, int64_t len)
{
    char path[4400];
    path_of(d, name, path);
    cr_assert_eq(d->memory ? kv_disk_truncate(d->memory, name, (size_t)len) : truncate(path, (off_t)len), 0);
}

void sw_peek(const struct sw_disk *d, const char *name, int64_t at, void *bytes, size_t len)
{
    char path[4400];
    if (d->memory) {
        memcpy(bytes, kv_disk_bytes(d->memory, name) + at, len);
        return;
    }
    path_of(d, name, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    cr_assert_eq(pread(fd, bytes, len, (off_t)at), (ssize_t)len, "%s: %s", path, strerror(errno));
    close(fd);
}

void sw_poke(struct sw_disk *d, const char *name, int64_t at, const void *bytes, size_t len)
{
    char path[4400];
    if (d->memory) {
        memcpy(kv_disk_bytes(d->memory, name) + at, bytes, len);
        return;
    }
    path_of(d, name, path);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    cr_assert_eq(pwrite(fd, bytes, len, (off_t)at), (ssize_t)len, "%s: %s", path, strerror(errno));
    close(fd);
}

/* ---- running a case ---- */

static void load_double(void)
{
    snprintf(usrbio.path, sizeof usrbio.path, "%s", ts_program("tests/doubles/usrbio.so"));
    usrbio.library = dlopen(usrbio.path, RTLD_NOW);
    cr_assert_not_null(usrbio.library, "%s", dlerror());
    usrbio.faults = dlsym(usrbio.library, "usrbio_faults");
    usrbio.counts = dlsym(usrbio.library, "usrbio_counts");
    cr_assert(usrbio.faults && usrbio.counts);
}

uint64_t sw_round(void)
{
    return round_now;
}

void sw_run(const struct sw_kind *kind, sw_case *test)
{
    struct kv_storage *probe;
    struct cfg_error err;
    if (kind->io == SW_USRBIO && !usrbio.library)
        load_double();
    int r = kind->io == SW_MEMORY ? 0 : kv_storage_uring_new(sw_parent(kind, 0), DEPTH, &probe, &err);
    if (r == -EPERM || r == -ENOSYS || r == -ENOMEM)
        cr_skip_test("no io_uring here: %s", err.msg);
    cr_assert_eq(r, 0, "%s", err.msg);
    if (kind->io != SW_MEMORY)
        kv_storage_free(probe);
    int seeds = ts_more(kind->seeds, kind->many_seeds);
    for (round_now = 0; round_now < (uint64_t)(seeds ? seeds : 1); round_now++)
        test(kind);
    round_now = 0;
}
