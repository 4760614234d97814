#include "kvtiers/usrbio.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kvtiers/usrbio_api.h"

enum { SLOT = 256 << 10, CQES = 64, NAP_US = 200 };

struct api {
#define X(result, name, arguments) result(*name) arguments;
    HF3FS_FUNCTIONS(X)
#undef X
};

struct usrbio;

/* A request of ours: a piece of the shared memory while it is in a ring. */
struct slot {
    struct kv_io *io;
    uint8_t *bytes;
    struct slot *next_free;
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
    struct hf3fs_iov iov;
    struct hf3fs_ior ring[2]; /* writes, reads */
    bool have_iov, have_ring[2], prepared[2];
    int running[2];
    struct slot *slot, *free_slot;
    int depth;
    struct fifo waiting, ended; /* no slot or ring full; ended without having run */
    struct kv_storage_stats stats;
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

/* ---- rings ---- */

/* -EAGAIN: no room now. */
static int begin(struct usrbio *u, struct kv_io *io)
{
    bool read = io->op == KV_IO_READ;
    struct slot *s = u->free_slot;
    size_t len = io->len < SLOT ? io->len : (size_t)SLOT; /* the rest follows as after any short transfer */
    if (!s || u->running[read] == u->depth)
        return -EAGAIN;
    if (!read)
        memcpy(s->bytes, io->bytes, len);
    s->io = io;
    int r = u->api.hf3fs_prep_io(&u->ring[read], &u->iov, read, s->bytes, io->file, io->offset, len, s);
    if (r < 0)
        return r;
    u->free_slot = s->next_free;
    u->running[read]++;
    u->prepared[read] = true;
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
    for (int r = 0; r < 2; r++)
        if (u->prepared[r] && u->api.hf3fs_submit_ios(&u->ring[r]) == 0)
            u->prepared[r] = false;
}

static int reap(struct usrbio *u, int ring)
{
    struct hf3fs_cqe cqe[CQES];
    struct timespec now;
    if (!u->running[ring])
        return 0;
    clock_gettime(CLOCK_REALTIME, &now);
    int n = u->api.hf3fs_wait_for_ios(&u->ring[ring], cqe, CQES, 0, &now);
    for (int i = 0; i < n; i++) {
        struct slot *s = (struct slot *)(uintptr_t)cqe[i].userdata;
        struct kv_io *io = s->io;
        int64_t result = cqe[i].result;
        if (ring == 1 && result > 0)
            memcpy(io->bytes, s->bytes, (size_t)result < io->len ? (size_t)result : io->len);
        s->io = NULL;
        s->next_free = u->free_slot;
        u->free_slot = s;
        u->running[ring]--;
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
    push(u);
    for (struct kv_io *io; (io = fifo_take(&u->ended)); n++)
        complete(u, io, io->result);
    n += reap(u, 0) + reap(u, 1);
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

static void usrbio_free(struct kv_storage *base)
{
    struct usrbio *u = (struct usrbio *)base;
    while (u->stats.in_flight && usrbio_wait(base, 10000))
        ;
    for (int r = 0; r < 2; r++)
        if (u->have_ring[r])
            u->api.hf3fs_iordestroy(&u->ring[r]);
    if (u->have_iov)
        u->api.hf3fs_iovdestroy(&u->iov);
    kv_storage_free(u->inner);
    if (u->library)
        dlclose(u->library);
    free(u->slot);
    free(u);
}

static const struct kv_storage_ops usrbio_ops = {
    .name = "usrbio",
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
    char mount[256];
    int n = u->api.hf3fs_extract_mount_point(mount, sizeof mount, folder);
    if (n <= 0 || n > (int)sizeof mount)
        return cfg_error_set(err, EINVAL, "USRBIO: %s is not in a mounted 3FS; leave kv.shared.usrbio out elsewhere",
                             folder);
    int r = u->api.hf3fs_iovcreate(&u->iov, mount, (size_t)2 * (size_t)u->depth * SLOT, 0, -1);
    if (r)
        return cfg_error_set(err, -r, "USRBIO: no shared memory of %zu bytes for %s: %s",
                             (size_t)2 * (size_t)u->depth * SLOT, mount, strerror(-r));
    u->have_iov = true;
    for (int k = 0; k < 2; k++) {
        /* Depth 0: begin what is prepared. A hole is no data: it must not be read as zeros. */
        r = u->api.hf3fs_iorcreate4(&u->ring[k], mount, u->depth, k == 1, 0, 0, -1, k ? HF3FS_FORBID_READ_HOLES : 0);
        if (r)
            return cfg_error_set(err, -r, "USRBIO: no ring of %d entries for %s: %s", u->depth, mount, strerror(-r));
        u->have_ring[k] = true;
    }
    return 0;
}

int kv_storage_usrbio_new(const char *folder, const char *library, int depth, struct kv_storage **out,
                          struct cfg_error *err)
{
    *out = NULL;
    struct usrbio *u = calloc(1, sizeof *u);
    if (!u)
        return cfg_error_set(err, ENOMEM, "storage: out of memory");
    u->base.ops = &usrbio_ops;
    u->depth = depth;
    int r = kv_storage_uring_new(folder, depth, &u->inner, err);
    if (!r)
        r = load(u, library, err);
    if (!r)
        r = open_rings(u, folder, err);
    u->slot = r ? NULL : calloc((size_t)2 * (size_t)depth, sizeof *u->slot);
    if (!r && !u->slot)
        r = cfg_error_set(err, ENOMEM, "storage: out of memory");
    for (int i = 0; !r && i < 2 * depth; i++) {
        u->slot[i] = (struct slot){.bytes = u->iov.base + (size_t)i * SLOT, .next_free = u->free_slot};
        u->free_slot = &u->slot[i];
    }
    if (r) {
        usrbio_free(&u->base);
        return r;
    }
    *out = &u->base;
    return 0;
}
