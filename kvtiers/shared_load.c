/* Indexes of segments, read one after the other: size, last two pages, pages of entries. What cannot be read is tried
 * again, later and later; what makes no sense a few times, since a file system may show a file before it is whole. */
#include <errno.h>
#include <stdlib.h>

#include "kvtiers/shared_impl.h"

enum { TAIL = 2 * KV_PAGE };

static void queue(struct shared *t, struct shared_segment *s)
{
    s->queued = true;
    s->next_load = NULL;
    *t->to_load_end = s;
    t->to_load_end = &s->next_load;
}

static void queue_later(struct shared *t, struct shared_segment *s)
{
    s->queued = true;
    s->next_load = t->later;
    t->later = s;
    t->later_at = s->try_at < t->later_at ? s->try_at : t->later_at;
}

void shared_load_ask(struct shared *t, struct shared_segment *s)
{
    if (s->try_at)
        queue_later(t, s);
    else
        queue(t, s);
}

/* status: 0, or why there is no index; kind: what the segment is then. */
static void load_end(struct shared *t, int status, enum kv_unusable kind)
{
    struct shared_segment *s = t->loading;
    free(t->footer);
    t->footer = NULL;
    t->loading = NULL;
    s->doubtful |= status != 0;
    shared_file_leave(t, s);
    if (s->state == SEGMENT_GONE || !status) {
        s->tries = 0;
        shared_pump(t);
        return;
    }
    s->tries++;
    t->stats.errors += kind == KV_UNREADABLE && status != -ENOENT;
    bool again = kind == KV_UNREADABLE || (kind == KV_DAMAGED && s->tries < SHARED_TRIES);
    s->try_at = again ? shared_later(t, s->tries) : 0;
    /* What may come soon is waited for. */
    if (kind != KV_UNREADABLE || status == -ENOENT || s->tries >= SHARED_TRIES || s->state == SEGMENT_BAD)
        shared_segment_set(t, s, SEGMENT_BAD, kind);
    if (again)
        shared_load_ask(t, s);
    shared_pump(t);
}

static void load_step(struct shared *t, struct kv_io io, void (*done)(struct kv_io *))
{
    t->load_io = io;
    shared_submit(t, &t->load_io, done);
}

static void load_read(struct shared *t, uint64_t offset, size_t len, void (*done)(struct kv_io *))
{
    free(t->footer);
    t->footer = aligned_alloc(KV_PAGE, len);
    if (!t->footer) {
        load_end(t, -ENOMEM, KV_UNREADABLE);
        return;
    }
    load_step(t,
              (struct kv_io){.op = KV_IO_READ,
                             .file = t->loading->file,
                             .flags = t->p.direct ? KV_OPEN_DIRECT : 0,
                             .bytes = t->footer,
                             .len = len,
                             .offset = offset},
              done);
}

/* Whether a read brought all its bytes; ends the load if not. */
static bool have_all(struct shared *t, const struct kv_io *io)
{
    t->in_flight--;
    if (io->result == (int64_t)io->len)
        return true;
    load_end(t, io->result < 0 ? (int)io->result : -EBADMSG, io->result < 0 ? KV_UNREADABLE : KV_DAMAGED);
    return false;
}

static void on_footer(struct kv_io *io)
{
    struct shared *t = io->ctx;
    struct shared_segment *s = t->loading;
    uint64_t id, offset, pages;
    if (!have_all(t, io))
        return;
    if (s->state == SEGMENT_GONE ||
        !shared_trailer_read(t, t->footer + io->len - KV_PAGE, s->size, &id, &offset, &pages)) {
        load_end(t, -EBADMSG, KV_DAMAGED);
        return;
    }
    int n = shared_footer_read(t, t->footer, pages, id, offset, &s->entries);
    if (n < 0) {
        load_end(t, n == -ENOMEM ? n : -EBADMSG, n == -ENOMEM ? KV_UNREADABLE : KV_DAMAGED);
        return;
    }
    s->id = id;
    s->n = n;
    shared_segment_set(t, s, SEGMENT_READY, 0);
    for (int i = 0; i < n; i++) {
        struct shared_entry *e = shared_entry_at(t, s->entries, i);
        e->segment = s;
        s->newest_s = e->stored_s > s->newest_s ? e->stored_s : s->newest_s;
        if (shared_dropped(t, id, &e->key))
            s->dropped++;
        else
            shared_list(t, e);
    }
    s->worth = t->floor + 1;
    load_end(t, 0, 0);
}

static void on_tail(struct kv_io *io)
{
    struct shared *t = io->ctx;
    struct shared_segment *s = t->loading;
    uint64_t id, offset, pages;
    if (!have_all(t, io))
        return;
    if (shared_trailer_read(t, t->footer + KV_PAGE, s->size, &id, &offset, &pages))
        load_read(t, offset, (size_t)(pages + 1) * KV_PAGE, on_footer);
    else if (shared_trailer_foreign(t, t->footer, &s->newest_s))
        load_end(t, -EBADMSG, KV_OTHER_LAYOUT);
    else
        load_end(t, -EBADMSG, KV_DAMAGED);
}

static void on_size(struct kv_io *io)
{
    struct shared *t = io->ctx;
    struct shared_segment *s = t->loading;
    t->in_flight--;
    if (io->result < 0) {
        load_end(t, (int)io->result, KV_UNREADABLE);
        return;
    }
    if (s->state == SEGMENT_BAD) { /* its size is in the accounts */
        t->stats.unusable[s->kind].bytes += (uint64_t)io->result - s->size;
    }
    s->size = (uint64_t)io->result;
    if (s->size < TAIL || s->size % KV_PAGE)
        load_end(t, -EBADMSG, KV_DAMAGED);
    else
        load_read(t, s->size - TAIL, TAIL, on_tail);
}

void shared_load_go_on(struct shared *t, int status)
{
    if (status)
        load_end(t, status, KV_UNREADABLE);
    else
        load_step(t, (struct kv_io){.op = KV_IO_SIZE, .file = t->loading->file}, on_size);
}

/* Those whose time has come. */
static void take_later(struct shared *t)
{
    struct shared_segment *list = t->later;
    int64_t now = shared_now(t);
    if (!list || now < t->later_at)
        return;
    t->later = NULL;
    t->later_at = INT64_MAX;
    for (struct shared_segment *s = list, *next; s; s = next) {
        next = s->next_load;
        if (s->state == SEGMENT_GONE)
            s->queued = false;
        else if (now < s->try_at)
            queue_later(t, s);
        else
            queue(t, s);
    }
}

void shared_load_turn(struct shared *t)
{
    take_later(t);
    while (!t->loading && t->to_load &&
           !shared_drops_pending(t)) { /* what was dropped is found not even for a moment */
        struct shared_segment *s = t->to_load;
        t->to_load = s->next_load;
        if (!t->to_load)
            t->to_load_end = &t->to_load;
        s->queued = false;
        if (s->state == SEGMENT_GONE)
            continue;
        t->loading = s;
        s->load_waits = !shared_file_use(t, s);
        if (!s->load_waits)
            shared_load_go_on(t, 0);
    }
}
