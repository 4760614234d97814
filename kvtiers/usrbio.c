#include "kvtiers/usrbio.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kvtiers/usrbio_api.h"

enum { SLOT = 256 << 10, CQES = 64, NAP_US = 200, WRITES = 0, READS = 1, RINGS = 2, END_S = 10 };

#define DEFAULT_TIMEOUT INT64_C(30000000000)
#define LOOK_NS INT64_C(50000000) /* at the time of requests */
#define BACKOFF_FIRST INT64_C(1000000000)
#define BACKOFF_MOST INT64_C(60000000000)

struct api {
#define X(result, name, arguments) result(*name) arguments;
    HF3FS_FUNCTIONS(X)
#undef X
};

struct usrbio;

/* A request of ours: a piece of the shared memory while it is in a ring. */
struct slot {
    struct kv_io *io; /* NULL: not in the ring */
    uint8_t *bytes;
    int64_t began;
    struct slot *next_free;
};

enum ring_state { RING_OPEN, RING_FAILED, RING_OPENING };

/* A ring and the memory of its requests. While it is being opened again, all below is the opening thread's. */
struct ring {
    struct usrbio *u;
    int kind; /* READS, WRITES */
    enum ring_state state;
    int64_t retry_at, backoff;
    int64_t full_since; /* it takes nothing, without having something of ours; 0: it does */
    int running;
    bool prepared;
    pthread_t thread;
    bool opened; /* by the thread, under u->lock: it has ended, with result */
    int result;
    struct hf3fs_iov iov;
    struct hf3fs_ior ior;
    bool have_iov, have_ior;
    struct slot *slot, *free_slot;
};

/* An OPEN or CLOSE on its way through the storage below. */
struct wrap {
    struct kv_io io;
    struct usrbio *u;
    struct kv_io *outer;
};

struct fifo {
    struct kv_io *head, **tail;
};

struct usrbio {
    struct kv_storage base;
    struct kv_storage *inner; /* everything but reads and writes */
    void *library;
    struct api api;
    struct kv_clock clock;
    int64_t timeout, look_at;
    void (*log)(void *ctx, bool warning, const char *text);
    void *log_ctx;
    char mount[256];
    struct ring ring[RINGS];
    int depth;
    struct fifo waiting, ended; /* no slot or ring full; ended without having run */
    struct kv_storage_stats stats;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

static void fifo_add(struct fifo *f, struct kv_io *io)
{
    io->next = NULL;
    if (!f->head)
        f->tail = &f->head;
    *f->tail = io;
    f->tail = &io->next;
}

static struct kv_io *fifo_take(struct fifo *f)
{
    struct kv_io *io = f->head;
    if (io)
        f->head = io->next;
    return io;
}

static void complete(struct usrbio *u, struct kv_io *io, int64_t result)
{
    io->result = result;
    u->stats.in_flight--;
    u->stats.completed++;
    u->stats.failed += result < 0;
    if (io->op == KV_IO_READ && result > 0)
        u->stats.bytes_read += (uint64_t)result;
    if (io->op == KV_IO_WRITE && result > 0)
        u->stats.bytes_written += (uint64_t)result;
    io->done(io);
}

/* ---- what goes the usual way ---- */

static void on_passed(struct kv_io *io)
{
    struct wrap *w = io->ctx;
    struct usrbio *u = w->u;
    struct kv_io *outer = w->outer;
    int64_t result = io->result;
    outer->names = io->names;
    if (io->op == KV_IO_OPEN && result >= 0 && !(outer->flags & KV_OPEN_FOLDER)) {
        int e = u->api.hf3fs_reg_fd((int)result, 0);
        if (e > 0) { /* the one function whose errors are positive */
            close((int)result);
            result = -e;
        }
    }
    free(w);
    complete(u, outer, result);
}

static void pass_on(struct usrbio *u, struct kv_io *io)
{
    struct wrap *w = malloc(sizeof *w);
    if (!w) {
        io->result = -ENOMEM;
        fifo_add(&u->ended, io);
        return;
    }
    /* The number would be given to another file while this one is still registered under it. */
    if (io->op == KV_IO_CLOSE)
        u->api.hf3fs_dereg_fd(io->file);
    *w = (struct wrap){.io = *io, .u = u, .outer = io};
    w->io.done = on_passed;
    w->io.ctx = w;
    if (io->op == KV_IO_OPEN) /* its own way past the page cache is what the rings are for */
        w->io.flags &= ~(unsigned)KV_OPEN_DIRECT;
    u->inner->ops->submit(u->inner, &w->io);
}

/* ---- opening rings ---- */

static void ring_close(struct ring *r)
{
    if (r->have_ior)
        r->u->api.hf3fs_iordestroy(&r->ior);
    if (r->have_iov)
        r->u->api.hf3fs_iovdestroy(&r->iov);
    r->have_ior = r->have_iov = false;
}

/* *what: the call that failed. */
static int ring_open(struct ring *r, const char **what)
{
    struct usrbio *u = r->u;
    *what = "hf3fs_iovcreate";
    int e = u->api.hf3fs_iovcreate(&r->iov, u->mount, (size_t)u->depth * SLOT, 0, -1);
    if (e)
        return e;
    r->have_iov = true;
    /* Depth 0: begin what is prepared. A hole is no data: it must not be read as zeros. */
    *what = "hf3fs_iorcreate4";
    e = u->api.hf3fs_iorcreate4(&r->ior, u->mount, u->depth, r->kind == READS, 0, 0, -1,
                                r->kind == READS ? HF3FS_FORBID_READ_HOLES : 0);
    if (e) {
        ring_close(r);
        return e;
    }
    r->have_ior = true;
    r->free_slot = NULL;
    for (int i = u->depth; i--;) {
        r->slot[i] = (struct slot){.bytes = r->iov.base + (size_t)i * SLOT, .next_free = r->free_slot};
        r->free_slot = &r->slot[i];
    }
    return 0;
}

/* The file system that has left requests lying may hold up these calls as well: not the storage's thread. */
static void *reopen_main(void *arg)
{
    struct ring *r = arg;
    const char *what;
    ring_close(r);
    int e = ring_open(r, &what);
    pthread_mutex_lock(&r->u->lock);
    r->result = e;
    r->opened = true;
    pthread_cond_broadcast(&r->u->changed);
    pthread_mutex_unlock(&r->u->lock);
    return NULL;
}

static int64_t time_now(const struct usrbio *u)
{
    return u->clock.now(u->clock.ctx);
}

static void say(const struct ring *r, bool warning, const char *what)
{
    char text[256];
    snprintf(text, sizeof text, "USRBIO: the ring for %s of %.128s %s", r->kind == READS ? "reads" : "writes",
             r->u->mount, what);
    if (r->u->log)
        r->u->log(r->u->log_ctx, warning, text);
}

static void ring_again(struct ring *r, int64_t now)
{
    r->state = RING_FAILED;
    r->retry_at = now + r->backoff;
    r->backoff = 2 * r->backoff < BACKOFF_MOST ? 2 * r->backoff : BACKOFF_MOST;
}

static void ring_turn(struct ring *r, int64_t now)
{
    struct usrbio *u = r->u;
    if (r->state == RING_FAILED && now >= r->retry_at) {
        r->opened = false;
        if (pthread_create(&r->thread, NULL, reopen_main, r))
            ring_again(r, now);
        else
            r->state = RING_OPENING;
    } else if (r->state == RING_OPENING) {
        pthread_mutex_lock(&u->lock);
        bool opened = r->opened;
        pthread_mutex_unlock(&u->lock);
        if (!opened)
            return;
        pthread_join(r->thread, NULL);
        if (r->result) {
            ring_again(r, now);
            return;
        }
        r->state = RING_OPEN;
        say(r, false, "is open again");
    }
}

/* What a ring was given and has not ended in time may still move bytes, of its own memory: it is given up as a whole.
 */
static void ring_fail(struct ring *r, int64_t now)
{
    struct usrbio *u = r->u;
    r->state = RING_FAILED;
    r->retry_at = now;
    r->running = 0;
    r->full_since = 0;
    r->prepared = false;
    say(r, true,
        "does not end what it was given, or takes nothing; it is opened again, and what needs it fails until then");
    for (int i = 0; i < u->depth; i++) {
        struct kv_io *io = r->slot[i].io;
        r->slot[i].io = NULL;
        if (io) {
            io->result = -ETIMEDOUT;
            fifo_add(&u->ended, io);
        }
    }
}

static void look_at_time(struct usrbio *u)
{
    int64_t now = time_now(u);
    if (now < u->look_at)
        return;
    u->look_at = now + LOOK_NS;
    for (int k = 0; k < RINGS; k++) {
        struct ring *r = &u->ring[k];
        bool late = r->full_since && now - r->full_since > u->timeout;
        for (int i = 0; i < u->depth && r->state == RING_OPEN && r->running && !late; i++)
            late = r->slot[i].io && now - r->slot[i].began > u->timeout;
        if (late)
            ring_fail(r, now);
        ring_turn(r, now);
    }
}

/* ---- requests ---- */

/* -EAGAIN: no room now. -ENOTCONN: the ring is being opened again. */
static int begin(struct usrbio *u, struct kv_io *io)
{
    bool read = io->op == KV_IO_READ;
    struct ring *r = &u->ring[read ? READS : WRITES];
    size_t len = io->len < SLOT ? io->len : (size_t)SLOT; /* the rest follows as after any short transfer */
    if (r->state != RING_OPEN)
        return -ENOTCONN;
    struct slot *s = r->free_slot;
    if (!s)
        return -EAGAIN;
    if (!read)
        memcpy(s->bytes, io->bytes, len);
    int e = u->api.hf3fs_prep_io(&r->ior, &r->iov, read, s->bytes, io->file, io->offset, len, s);
    const int64_t now = time_now(u);
    if (e == -EAGAIN && !r->running && !r->full_since)
        r->full_since = now;
    if (e < 0)
        return e;
    r->full_since = 0;
    s->io = io;
    s->began = now;
    r->free_slot = s->next_free;
    r->running++;
    r->prepared = true;
    return 0;
}

static void push(struct usrbio *u)
{
    struct kv_io *first = u->waiting.head;
    u->waiting.head = NULL;
    for (struct kv_io *io = first, *next; io; io = next) {
        next = io->next;
        int r = begin(u, io);
        io->result = r;
        if (r)
            fifo_add(r == -EAGAIN ? &u->waiting : &u->ended, io);
    }
    for (int k = 0; k < RINGS; k++) {
        struct ring *r = &u->ring[k];
        if (r->prepared && u->api.hf3fs_submit_ios(&r->ior) == 0)
            r->prepared = false;
    }
}

static int reap(struct usrbio *u, struct ring *r)
{
    struct hf3fs_cqe cqe[CQES];
    struct timespec now;
    if (r->state != RING_OPEN || !r->running)
        return 0;
    clock_gettime(CLOCK_REALTIME, &now);
    int n = u->api.hf3fs_wait_for_ios(&r->ior, cqe, CQES, 0, &now);
    if (n > 0)
        r->backoff = BACKOFF_FIRST;
    for (int i = 0; i < n; i++) {
        struct slot *s = (struct slot *)(uintptr_t)cqe[i].userdata;
        struct kv_io *io = s->io;
        int64_t result = cqe[i].result;
        if (r->kind == READS && result > 0)
            memcpy(io->bytes, s->bytes, (size_t)result < io->len ? (size_t)result : io->len);
        s->io = NULL;
        s->next_free = r->free_slot;
        r->free_slot = s;
        r->running--;
        complete(u, io, result);
    }
    return n > 0 ? n : 0;
}

/* ---- the table ---- */

static void usrbio_submit(struct kv_storage *base, struct kv_io *io)
{
    struct usrbio *u = (struct usrbio *)base;
    u->stats.submitted++;
    u->stats.in_flight++;
    u->stats.syncs += io->op == KV_IO_SYNC;
    if (io->op == KV_IO_READ || io->op == KV_IO_WRITE)
        fifo_add(&u->waiting, io);
    else
        pass_on(u, io);
}

static int usrbio_poll(struct kv_storage *base)
{
    struct usrbio *u = (struct usrbio *)base;
    int n = u->inner->ops->poll(u->inner);
    look_at_time(u);
    push(u);
    for (struct kv_io *io; (io = fifo_take(&u->ended)); n++)
        complete(u, io, io->result);
    n += reap(u, &u->ring[WRITES]) + reap(u, &u->ring[READS]);
    push(u);
    return n;
}

static int usrbio_wait(struct kv_storage *base, int timeout_ms)
{
    struct usrbio *u = (struct usrbio *)base;
    int n = 0;
    for (int64_t us = (int64_t)timeout_ms * 1000; !(n = usrbio_poll(base)) && u->stats.in_flight && us > 0;
         us -= NAP_US)
        usleep(NAP_US);
    return n;
}

static int usrbio_descriptor(struct kv_storage *base)
{
    (void)base;
    return -1;
}

static int usrbio_register(struct kv_storage *base, void *at, size_t len)
{
    (void)base, (void)at, (void)len;
    return -EOPNOTSUPP;
}

static void usrbio_stat(struct kv_storage *base, struct kv_storage_stats *out)
{
    *out = ((struct usrbio *)base)->stats;
}

/* Whether no thread opens a ring any more. */
static bool opening_ended(struct usrbio *u)
{
    struct timespec until;
    bool ended = true;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += END_S;
    for (int k = 0; k < RINGS; k++) {
        struct ring *r = &u->ring[k];
        if (r->state != RING_OPENING)
            continue;
        pthread_mutex_lock(&u->lock);
        while (!r->opened && pthread_cond_timedwait(&u->changed, &u->lock, &until) == 0)
            ;
        bool opened = r->opened;
        pthread_mutex_unlock(&u->lock);
        if (opened)
            pthread_join(r->thread, NULL);
        else
            pthread_detach(r->thread);
        ended &= opened;
    }
    return ended;
}

static void usrbio_free(struct kv_storage *base)
{
    struct usrbio *u = (struct usrbio *)base;
    while (u->stats.in_flight && usrbio_wait(base, END_S * 1000))
        ;
    if (!opening_ended(u))
        return; /* the library hangs in it: its memory and ours stay until the process ends */
    for (int k = 0; k < RINGS; k++) {
        ring_close(&u->ring[k]);
        free(u->ring[k].slot);
    }
    kv_storage_free(u->inner);
    if (u->library)
        dlclose(u->library);
    pthread_mutex_destroy(&u->lock);
    pthread_cond_destroy(&u->changed);
    free(u);
}

static const struct kv_storage_ops usrbio_ops = {
    .name = "usrbio",
    .outlasts = true,
    .submit = usrbio_submit,
    .poll = usrbio_poll,
    .wait = usrbio_wait,
    .descriptor = usrbio_descriptor,
    .register_memory = usrbio_register,
    .stat = usrbio_stat,
    .free = usrbio_free,
};

/* ---- opening ---- */

static int load(struct usrbio *u, const char *library, struct cfg_error *err)
{
    const char *file = library[0] ? library : "libhf3fs_api_shared.so";
    u->library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!u->library)
        return cfg_error_set(err, ENOENT,
                             "USRBIO: %s; install the client library of 3FS or name it in "
                             "kv.shared.usrbio",
                             dlerror());
#define X(result, name, arguments)                                                                                     \
    *(void **)(void *)&u->api.name = dlsym(u->library, #name);                                                         \
    if (!u->api.name)                                                                                                  \
        return cfg_error_set(err, ENOSYS, "USRBIO: %s has no function %s; it is another version", file, #name);
    HF3FS_FUNCTIONS(X)
#undef X
    return 0;
}

static int open_rings(struct usrbio *u, const char *folder, struct cfg_error *err)
{
    int n = u->api.hf3fs_extract_mount_point(u->mount, sizeof u->mount, folder);
    if (n <= 0 || n > (int)sizeof u->mount)
        return cfg_error_set(err, EINVAL, "USRBIO: %s is not in a mounted 3FS; leave kv.shared.usrbio out elsewhere",
                             folder);
    for (int k = 0; k < RINGS; k++) {
        const char *what;
        struct ring *r = &u->ring[k];
        r->slot = calloc((size_t)u->depth, sizeof *r->slot);
        if (!r->slot)
            return cfg_error_set(err, ENOMEM, "storage: out of memory");
        int e = ring_open(r, &what);
        if (e)
            return cfg_error_set(err, -e,
                                 "USRBIO: no ring of %d entries with %zu bytes of shared memory for %s: %s: %s",
                                 u->depth, (size_t)u->depth * SLOT, u->mount, what, strerror(-e));
    }
    return 0;
}

int kv_storage_usrbio_new(const struct kv_usrbio_params *params, struct kv_storage **out, struct cfg_error *err)
{
    *out = NULL;
    struct usrbio *u = calloc(1, sizeof *u);
    if (!u)
        return cfg_error_set(err, ENOMEM, "storage: out of memory");
    u->base.ops = &usrbio_ops;
    u->depth = params->depth;
    u->clock = params->clock;
    u->log = params->log;
    u->log_ctx = params->log_ctx;
    u->timeout = params->timeout_ns ? params->timeout_ns : DEFAULT_TIMEOUT;
    pthread_mutex_init(&u->lock, NULL);
    pthread_cond_init(&u->changed, NULL);
    for (int k = 0; k < RINGS; k++)
        u->ring[k] = (struct ring){.u = u, .kind = k, .backoff = BACKOFF_FIRST};
    int r = kv_storage_uring_new(params->folder, params->depth, &u->inner, err);
    if (!r)
        r = load(u, params->library, err);
    if (!r)
        r = open_rings(u, params->folder, err);
    if (r) {
        usrbio_free(&u->base);
        return r;
    }
    *out = &u->base;
    return 0;
}
