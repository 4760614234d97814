#include "kvtiers/storage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { RETRIES = 8, SECTOR = 4096, RUN_TIMEOUT_MS = 60000 };

static void finish(struct kv_io *io, int64_t result)
{
    io->bytes = io->first;
    io->len = io->asked;
    io->offset -= io->moved;
    io->result = result;
    io->done = io->whole_done;
    io->done(io);
}

/* Direct requests go on at a sector's beginning, so bytes of a torn end are moved twice. */
static void go_on(struct kv_io *io)
{
    int64_t r = io->result;
    if ((r == -EAGAIN || r == -EINTR) && io->retries++ < RETRIES) {
        io->storage->ops->submit(io->storage, io);
        return;
    }
    if (r < 0 || (r == 0 && io->len)) {
        finish(io, r < 0 ? r : (int64_t)io->moved);
        return;
    }
    size_t n = (size_t)r;
    if (n < io->len && io->flags & KV_OPEN_DIRECT)
        n = n / SECTOR * SECTOR;
    if (n == 0 && io->retries++ >= RETRIES) {
        finish(io, (int64_t)io->moved + r); /* the file ends inside a sector */
        return;
    }
    if (n)
        io->retries = 0; /* they count what brings nothing, one after the other */
    io->moved += n;
    io->offset += n;
    io->bytes = (uint8_t *)io->bytes + n;
    io->len -= n;
    if (io->len)
        io->storage->ops->submit(io->storage, io);
    else
        finish(io, (int64_t)io->moved);
}

void kv_io_start(struct kv_storage *s, struct kv_io *io)
{
    if (io->op == KV_IO_READ || io->op == KV_IO_WRITE) {
        io->whole_done = io->done;
        io->done = go_on;
        io->storage = s;
        io->moved = 0;
        io->retries = 0;
        io->asked = io->len;
        io->first = io->bytes;
    }
    s->ops->submit(s, io);
}

/* A request of kv_io_run with all that it names. It belongs to the storage's side: who waited may have gone. */
struct kv_io_run {
    struct kv_io io;
    struct kv_storage *storage;
    struct kv_io_run *next, **link; /* of those for which nobody waits any more */
    bool done, left;
    char *path, *path2;
    uint8_t *bytes;
};

static void run_free(struct kv_io_run *r)
{
    if (!r)
        return;
    free(r->path);
    free(r->path2);
    free(r->bytes);
    free(r);
}

static void run_unlink(struct kv_io_run *r)
{
    *r->link = r->next;
    if (r->next)
        r->next->link = r->link;
}

static void run_done(struct kv_io *io)
{
    struct kv_io_run *r = io->ctx;
    r->done = true;
    if (!r->left)
        return;
    if (io->op == KV_IO_OPEN && io->result >= 0) { /* nobody else knows of this file */
        r->io = (struct kv_io){.op = KV_IO_CLOSE, .file = (int)io->result, .done = run_done, .ctx = r};
        kv_io_start(r->storage, &r->io);
        return;
    }
    free(io->names);
    run_unlink(r);
    run_free(r);
}

static void run_leave(struct kv_io_run *r)
{
    r->left = true;
    r->next = r->storage->left;
    r->link = &r->storage->left;
    if (r->next)
        r->next->link = &r->next;
    r->storage->left = r;
}

/* Copies, aligned for direct requests. NULL: no memory. */
static struct kv_io_run *run_new(struct kv_storage *s, const struct kv_io *io)
{
    struct kv_io_run *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->storage = s;
    r->io = *io;
    r->io.done = run_done;
    r->io.ctx = r;
    r->io.names = NULL;
    r->io.path = r->path = io->path ? strdup(io->path) : NULL;
    r->io.path2 = r->path2 = io->path2 ? strdup(io->path2) : NULL;
    r->io.bytes = r->bytes = io->bytes ? aligned_alloc(SECTOR, (io->len + SECTOR) / SECTOR * SECTOR) : NULL;
    if (!r->path != !io->path || !r->path2 != !io->path2 || !r->bytes != !io->bytes) {
        run_free(r);
        return NULL;
    }
    if (io->op == KV_IO_WRITE)
        memcpy(r->bytes, io->bytes, io->len);
    return r;
}

int64_t kv_io_run(struct kv_storage *s, struct kv_io *io)
{
    struct kv_io_run *r = run_new(s, io);
    if (!r)
        return io->result = -ENOMEM;
    kv_io_start(s, &r->io);
    while (!r->done)
        if (!s->ops->wait(s, RUN_TIMEOUT_MS) && !r->done) {
            run_leave(r);
            return io->result = -ETIMEDOUT;
        }
    io->result = r->io.result;
    io->names = r->io.names;
    if (io->op == KV_IO_READ && io->result > 0)
        memcpy(io->bytes, r->bytes, (size_t)io->result);
    run_free(r);
    return io->result;
}

void kv_storage_forget(struct kv_storage *s)
{
    while (s->left) {
        struct kv_io_run *r = s->left;
        run_unlink(r);
        run_free(r);
    }
}

bool kv_storage_leave(struct kv_storage *s)
{
    s->hung = s->ops->outlasts;
    return !s->hung;
}

void kv_storage_free(struct kv_storage *s)
{
    if (s && !s->hung)
        s->ops->free(s);
}
