/* Room on file systems that cannot make a file in its full length (fallocate): there the files grow as blocks are
 * placed, and others take room meanwhile. The tier looks once a second, and places no more than what was left beyond
 * the reserve then. */
#include "kvtiers/ssd_impl.h"

#define LOOK_NS INT64_C(1000000000)

static void close_tier(struct ssd *t)
{
    if (!t->room.full)
        ssd_say(t, true,
                "%s: the file system has no more room than kv.ssd.reserve; the tier takes no blocks until it has",
                t->p.folder);
    t->room.full = true;
}

static void looked(struct kv_io *io)
{
    struct ssd *t = io->ctx;
    struct ssd_room *r = &t->room;
    r->asking = false;
    t->in_flight--;
    if (io->result < 0) {
        t->stats.errors++;
        return;
    }
    r->left = io->result - t->p.reserve;
    if (r->left < (int64_t)t->p.layout.block_bytes) {
        close_tier(t);
    } else if (r->full && r->left >= 2 * (int64_t)t->slab_bytes) { /* not for every block that somebody else removes */
        r->full = false;
        ssd_say(t, false, "%s: there is room again; the tier takes blocks", t->p.folder);
    }
    ssd_pump(t);
}

void ssd_room_look(struct ssd *t)
{
    struct ssd_room *r = &t->room;
    int64_t now = t->p.clock.now(t->p.clock.ctx);
    if (!r->grows || r->asking || now < r->look_at)
        return;
    r->look_at = now + LOOK_NS;
    r->asking = true;
    t->in_flight++;
    r->io = (struct kv_io){.op = KV_IO_SPACE, .done = looked, .ctx = t};
    kv_io_start(t->p.storage, &r->io);
}

int ssd_room_blocks(struct ssd *t)
{
    const int64_t block = (int64_t)t->p.layout.block_bytes;
    if (!t->room.grows)
        return INT32_MAX;
    if (t->room.left < block)
        close_tier(t);
    return t->room.full ? 0 : t->room.left / block < INT32_MAX ? (int)(t->room.left / block) : INT32_MAX;
}

void ssd_room_taken(struct ssd *t, int blocks)
{
    t->room.left -= blocks * (int64_t)t->p.layout.block_bytes;
}
