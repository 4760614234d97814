#include "kvtiers/storage.h"

#include <errno.h>

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

static void note_done(struct kv_io *io)
{
    *(bool *)io->ctx = true;
}

int64_t kv_io_run(struct kv_storage *s, struct kv_io *io)
{
    bool done = false;
    io->done = note_done;
    io->ctx = &done;
    kv_io_start(s, io);
    while (!done)
        if (!s->ops->wait(s, RUN_TIMEOUT_MS) && !done)
            return -ETIMEDOUT;
    return io->result;
}

void kv_storage_free(struct kv_storage *s)
{
    if (s)
        s->ops->free(s);
}
