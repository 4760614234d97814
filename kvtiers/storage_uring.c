/* Storage on io_uring. Listing folders, sizes, free space and cutting files are not among its operations (of every
 * kernel); a helper thread does those,
 * so that a slow file system never holds up the caller. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "kvtiers/storage.h"

enum { REGIONS_MAX = 256, PIECE = 1 << 30 };

struct fifo {
    struct kv_io *head, **tail;
    int n;
};

struct uring {
    struct kv_storage base;
    struct io_uring ring;
    bool have_ring;
    int folder, bell, depth;
    int in_kernel;
    struct fifo waiting; /* no room in the kernel yet */
    struct kv_storage_stats stats;
    struct iovec region[REGIONS_MAX]; /* registered memory, in pieces */
    int n_regions;
    /* The helper: requests go in, come back through helped; both under lock. */
    pthread_t helper;
    bool have_helper, stop;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct fifo todo, helped;
};

static void fifo_add(struct fifo *f, struct kv_io *io)
{
    io->next = NULL;
    if (!f->head)
        f->tail = &f->head;
    *f->tail = io;
    f->tail = &io->next;
    f->n++;
}

static struct kv_io *fifo_take(struct fifo *f)
{
    struct kv_io *io = f->head;
    if (io) {
        f->head = io->next;
        f->n--;
    }
    return io;
}

/* ---- the helper ---- */

static int64_t list_folder(const struct uring *u, struct kv_io *io)
{
    size_t len = 0, cap = 0;
    int64_t n = 0;
    int fd = openat(u->folder, io->path[0] ? io->path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        int e = errno;
        if (fd >= 0)
            close(fd);
        return -e;
    }
    io->names = NULL;
    errno = 0;
    for (struct dirent *e; (e = readdir(d)); errno = 0) {
        size_t k = strlen(e->d_name) + 1;
        if (e->d_name[0] == '.')
            continue;
        if (len + k > cap) {
            cap = (len + k) * 2;
            char *p = realloc(io->names, cap);
            if (!p) {
                errno = ENOMEM;
                break;
            }
            io->names = p;
        }
        memcpy(io->names + len, e->d_name, k);
        len += k;
        n++;
    }
    int e = errno;
    closedir(d);
    if (e) {
        free(io->names);
        io->names = NULL;
    }
    return e ? -e : n;
}

static int64_t help(const struct uring *u, struct kv_io *io)
{
    struct stat st;
    struct statvfs v;
    switch (io->op) {
    case KV_IO_LIST:
        return list_folder(u, io);
    case KV_IO_CUT:
        return ftruncate(io->file, (off_t)io->offset) ? -errno : 0;
    case KV_IO_SIZE:
        return fstat(io->file, &st) ? -errno : (int64_t)st.st_size;
    case KV_IO_SPACE:
        return fstatvfs(u->folder, &v) ? -errno : (int64_t)v.f_bavail * (int64_t)v.f_frsize;
    default:
        return -ENOSYS;
    }
}

static void *helper_main(void *arg)
{
    struct uring *u = arg;
    const uint64_t one = 1;
    pthread_mutex_lock(&u->lock);
    for (;;) {
        struct kv_io *io = fifo_take(&u->todo);
        if (!io && u->stop)
            break;
        if (!io) {
            pthread_cond_wait(&u->changed, &u->lock);
            continue;
        }
        pthread_mutex_unlock(&u->lock);
        io->result = help(u, io);
        pthread_mutex_lock(&u->lock);
        fifo_add(&u->helped, io);
        pthread_cond_broadcast(&u->changed);
        ssize_t w;
        do
            w = write(u->bell, &one, sizeof one);
        while (w < 0 && errno == EINTR);
    }
    pthread_mutex_unlock(&u->lock);
    return NULL;
}

static void ask_helper(struct uring *u, struct kv_io *io)
{
    if (!u->have_helper && pthread_create(&u->helper, NULL, helper_main, u) == 0)
        u->have_helper = true;
    pthread_mutex_lock(&u->lock);
    if (u->have_helper) {
        fifo_add(&u->todo, io);
    } else {
        io->result = -EAGAIN;
        fifo_add(&u->helped, io);
    }
    pthread_cond_broadcast(&u->changed);
    pthread_mutex_unlock(&u->lock);
}

/* ---- submission ---- */

static int region_of(const struct uring *u, const void *at, size_t len)
{
    const uint8_t *p = at;
    for (int i = 0; i < u->n_regions; i++) {
        const uint8_t *base = u->region[i].iov_base;
        if (p >= base && p + len <= base + u->region[i].iov_len)
            return i;
    }
    return -1;
}

static int open_flags(unsigned f)
{
    int o = O_CLOEXEC | (f & KV_OPEN_WRITE ? O_RDWR : O_RDONLY);
    if (f & KV_OPEN_CREATE)
        o |= O_CREAT;
    if (f & KV_OPEN_EXCL)
        o |= O_EXCL;
    if (f & KV_OPEN_DIRECT)
        o |= O_DIRECT;
    if (f & KV_OPEN_FOLDER)
        o |= O_DIRECTORY;
    return o;
}

static void prepare(struct uring *u, struct io_uring_sqe *e, struct kv_io *io)
{
    /* The kernel takes 32-bit lengths; the rest follows as after any short transfer. */
    unsigned len = io->len > PIECE ? PIECE : (unsigned)io->len;
    int at = io->op == KV_IO_READ || io->op == KV_IO_WRITE ? region_of(u, io->bytes, len) : -1;
    switch (io->op) {
    case KV_IO_OPEN:
        io_uring_prep_openat(e, u->folder, io->path[0] ? io->path : ".", open_flags(io->flags), 0600);
        break;
    case KV_IO_CLOSE:
        io_uring_prep_close(e, io->file);
        break;
    case KV_IO_READ:
        if (at >= 0)
            io_uring_prep_read_fixed(e, io->file, io->bytes, len, io->offset, at);
        else
            io_uring_prep_read(e, io->file, io->bytes, len, io->offset);
        break;
    case KV_IO_WRITE:
        if (at >= 0)
            io_uring_prep_write_fixed(e, io->file, io->bytes, len, io->offset, at);
        else
            io_uring_prep_write(e, io->file, io->bytes, len, io->offset);
        break;
    case KV_IO_SYNC:
        io_uring_prep_fsync(e, io->file, io->flags & KV_OPEN_FOLDER ? 0 : IORING_FSYNC_DATASYNC);
        break;
    case KV_IO_ALLOC:
        io_uring_prep_fallocate(e, io->file, 0, (off_t)io->offset, (off_t)io->len);
        break;
    case KV_IO_RENAME:
        io_uring_prep_renameat(e, u->folder, io->path, u->folder, io->path2, 0);
        break;
    case KV_IO_UNLINK:
        io_uring_prep_unlinkat(e, u->folder, io->path, 0);
        break;
    case KV_IO_MKDIR:
        io_uring_prep_mkdirat(e, u->folder, io->path, 0700);
        break;
    default:
        io_uring_prep_nop(e);
        break;
    }
    io_uring_sqe_set_data(e, io);
}

static void push(struct uring *u)
{
    while (u->waiting.head && u->in_kernel < u->depth) {
        struct io_uring_sqe *e = io_uring_get_sqe(&u->ring);
        if (!e) {
            io_uring_submit(&u->ring);
            e = io_uring_get_sqe(&u->ring);
            if (!e)
                break;
        }
        prepare(u, e, fifo_take(&u->waiting));
        u->in_kernel++;
    }
    if (io_uring_sq_ready(&u->ring))
        io_uring_submit(&u->ring); /* -EBUSY, -EAGAIN: the next turn tries again */
}

static void uring_submit(struct kv_storage *s, struct kv_io *io)
{
    struct uring *u = (struct uring *)s;
    u->stats.submitted++;
    u->stats.in_flight++;
    if (io->op == KV_IO_LIST || io->op == KV_IO_SIZE || io->op == KV_IO_SPACE || io->op == KV_IO_CUT)
        ask_helper(u, io);
    else
        fifo_add(&u->waiting, io);
    /* Requests of one turn enter the kernel together; a full queue's worth goes at once. */
    if (u->waiting.n + u->in_kernel >= u->depth)
        push(u);
}

/* ---- completion ---- */

static void complete(struct uring *u, struct kv_io *io)
{
    u->stats.completed++;
    u->stats.in_flight--;
    u->stats.failed += io->result < 0;
    if (io->op == KV_IO_READ && io->result > 0)
        u->stats.bytes_read += (uint64_t)io->result;
    if (io->op == KV_IO_WRITE && io->result > 0)
        u->stats.bytes_written += (uint64_t)io->result;
    u->stats.syncs += io->op == KV_IO_SYNC;
    if (io->op == KV_IO_OPEN && io->result >= 0 && io->flags & KV_OPEN_LOCK &&
        flock((int)io->result, LOCK_EX | LOCK_NB)) {
        int e = errno;
        close((int)io->result);
        io->result = -e;
    }
    io->done(io);
}

static int take_helped(struct uring *u)
{
    int n = 0;
    for (;;) {
        pthread_mutex_lock(&u->lock);
        struct kv_io *io = fifo_take(&u->helped);
        pthread_mutex_unlock(&u->lock);
        if (!io)
            return n;
        complete(u, io);
        n++;
    }
}

static int uring_poll(struct kv_storage *s)
{
    struct uring *u = (struct uring *)s;
    uint64_t count;
    int n = take_helped(u);
    ssize_t r = read(u->bell, &count, sizeof count); /* before looking, so that nothing later is missed */
    (void)r;
    push(u);
    for (;;) {
        struct io_uring_cqe *c[64];
        unsigned k = io_uring_peek_batch_cqe(&u->ring, c, 64);
        struct {
            struct kv_io *io;
            int result;
        } got[64];
        if (!k)
            break;
        for (unsigned i = 0; i < k; i++) {
            got[i].io = io_uring_cqe_get_data(c[i]);
            got[i].result = c[i]->res;
        }
        io_uring_cq_advance(&u->ring, k);
        u->in_kernel -= (int)k;
        for (unsigned i = 0; i < k; i++) {
            got[i].io->result = got[i].result;
            complete(u, got[i].io);
        }
        n += (int)k;
        push(u);
    }
    push(u);
    return n + take_helped(u);
}

static int uring_wait(struct kv_storage *s, int timeout_ms)
{
    struct uring *u = (struct uring *)s;
    int n = uring_poll(s);
    if (n || !u->stats.in_flight)
        return n;
    if (u->in_kernel) {
        /* In slices, since the helper's answers come another way. */
        struct __kernel_timespec t = {.tv_nsec = 20000000};
        struct io_uring_cqe *c;
        for (int left = timeout_ms; !n && left > 0; left -= 20) {
            io_uring_wait_cqe_timeout(&u->ring, &c, &t);
            n = uring_poll(s);
        }
        return n;
    }
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += timeout_ms / 1000 + 1;
    pthread_mutex_lock(&u->lock);
    while (!u->helped.head && pthread_cond_timedwait(&u->changed, &u->lock, &until) == 0)
        ;
    pthread_mutex_unlock(&u->lock);
    return take_helped(u);
}

static int uring_descriptor(struct kv_storage *s)
{
    return ((struct uring *)s)->bell;
}

static int uring_register(struct kv_storage *s, void *base, size_t len)
{
    struct uring *u = (struct uring *)s;
    int old = u->n_regions;
    for (size_t at = 0; at < len; at += PIECE) {
        if (u->n_regions == REGIONS_MAX) {
            u->n_regions = old;
            return -E2BIG;
        }
        u->region[u->n_regions++] = (struct iovec){(uint8_t *)base + at, len - at < PIECE ? len - at : (size_t)PIECE};
    }
    if (old)
        io_uring_unregister_buffers(&u->ring);
    int r = io_uring_register_buffers(&u->ring, u->region, (unsigned)u->n_regions);
    if (r < 0) {
        u->n_regions = old;
        if (old && io_uring_register_buffers(&u->ring, u->region, (unsigned)old) < 0)
            u->n_regions = 0;
    }
    u->stats.registered = u->n_regions > 0;
    return r < 0 ? r : 0;
}

static void uring_stat(struct kv_storage *s, struct kv_storage_stats *out)
{
    *out = ((struct uring *)s)->stats;
}

static void uring_free(struct kv_storage *s)
{
    struct uring *u = (struct uring *)s;
    while (u->have_ring && u->stats.in_flight && uring_wait(s, 10000))
        ;
    if (u->have_helper) {
        pthread_mutex_lock(&u->lock);
        u->stop = true;
        pthread_cond_broadcast(&u->changed);
        pthread_mutex_unlock(&u->lock);
        pthread_join(u->helper, NULL);
    }
    if (u->have_ring)
        io_uring_queue_exit(&u->ring);
    if (u->bell >= 0)
        close(u->bell);
    if (u->folder >= 0)
        close(u->folder);
    pthread_mutex_destroy(&u->lock);
    pthread_cond_destroy(&u->changed);
    free(u);
}

static const struct kv_storage_ops uring_ops = {
    .name = "io_uring",
    .outlasts = true,
    .submit = uring_submit,
    .poll = uring_poll,
    .wait = uring_wait,
    .descriptor = uring_descriptor,
    .register_memory = uring_register,
    .stat = uring_stat,
    .free = uring_free,
};

int kv_storage_uring_new(const char *folder, int depth, struct kv_storage **out, struct cfg_error *err)
{
    *out = NULL;
    if (depth < 1 || depth > 4096)
        return cfg_error_set(err, EINVAL, "%d requests at a time: use 1 to 4096", depth);
    struct uring *u = calloc(1, sizeof *u);
    if (!u)
        return cfg_error_set(err, ENOMEM, "storage: out of memory");
    u->base.ops = &uring_ops;
    u->depth = depth;
    u->bell = -1;
    pthread_mutex_init(&u->lock, NULL);
    pthread_cond_init(&u->changed, NULL);
    u->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = u->folder < 0
                ? cfg_error_set(err, errno, "%s: %s; the folder must exist and be readable", folder, strerror(errno))
                : 0;
    if (!r && (u->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        r = cfg_error_set(err, errno, "no eventfd for storage: %s; raise the limit of open files", strerror(errno));
    if (!r) {
        int k = io_uring_queue_init((unsigned)depth, &u->ring, 0);
        u->have_ring = k == 0;
        if (k)
            r = cfg_error_set(err, -k,
                              "io_uring is not to be had: %s; check kernel.io_uring_disabled, the container's seccomp "
                              "profile and the limit of locked memory (ulimit -l)",
                              strerror(-k));
    }
    if (!r) {
        int k = io_uring_register_eventfd(&u->ring, u->bell);
        if (k)
            r = cfg_error_set(err, -k, "io_uring takes no eventfd: %s", strerror(-k));
    }
    if (r) {
        uring_free(&u->base);
        return r;
    }
    *out = &u->base;
    return 0;
}
