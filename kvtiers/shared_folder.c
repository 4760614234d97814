#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvtiers/shared_impl.h"

enum { REMOVALS_BURST = 4, ERRORS_MOST = 4 };

/* ---- names: KIND-NODE-EPOCH-NUMBER ---- */

static bool parse_name(const char *name, const char *kind, char node[SHARED_NODE], uint64_t *epoch)
{
    size_t k = strlen(kind), n = strlen(name);
    unsigned long long e;
    unsigned number;
    int used = 0;
    if (n >= SHARED_NAME || n < k + 2 + 16 + 1 + 8 || strncmp(name, kind, k) || name[k] != '-')
        return false;
    const char *tail = name + n - 26; /* -EPOCH-NUMBER */
    size_t len = (size_t)(tail - name) - k - 1;
    if (tail <= name + k + 1 || len >= SHARED_NODE || sscanf(tail, "-%16llx-%8x%n", &e, &number, &used) != 2 ||
        used != 26)
        return false;
    memcpy(node, name + k + 1, len);
    node[len] = 0;
    *epoch = e;
    return true;
}

/* ---- segments ---- */

static struct shared_segment *segment_find(struct shared *t, const char *name)
{
    struct shared_segment *s = t->segments;
    while (s && strcmp(s->name, name))
        s = s->next;
    return s;
}

void shared_segment_lose(struct shared *t, struct shared_segment *s, enum shared_state state)
{
    if (s->state == SEGMENT_READY) {
        t->stats.bytes -= s->size;
        for (int i = 0; i < s->n; i++)
            shared_unlist(t, shared_entry_at(t, s->entries, i));
    }
    s->state = state;
}

static void on_closed(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    free(io);
}

static void close_later(struct shared *t, int file)
{
    struct kv_io *io = file >= 0 ? calloc(1, sizeof *io) : NULL;
    if (!io)
        return;
    *io = (struct kv_io){.op = KV_IO_CLOSE, .file = file};
    shared_submit(t, io, on_closed);
}

void shared_segments_sweep(struct shared *t)
{
    for (struct shared_segment **at = &t->segments; *at;) {
        struct shared_segment *s = *at;
        if (s->state != SEGMENT_GONE || s->pins || s == t->loading || s->removing) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        close_later(t, s->file);
        free(s->entries);
        free(s);
    }
}

void shared_segments_free(struct shared *t)
{
    while (t->segments) {
        struct shared_segment *s = t->segments;
        t->segments = s->next;
        free(s->entries);
        free(s);
    }
    while (t->opens) {
        struct shared_open *o = t->opens;
        t->opens = o->next;
        free(o);
    }
}

/* ---- loading an index: open, size, last page, footer ---- */

bool shared_try_again(const struct shared *t, int64_t result, int *tries, int64_t *try_at)
{
    if (result >= 0 || result == -ENOENT || ++*tries >= SHARED_TRIES)
        return false;
    *try_at = shared_now(t) + (t->p.poll_ns << (*tries - 1));
    return true;
}

/* state: READY, or BAD with the result of the request that failed (0 or more: there is no sense in the bytes). */
static void load_end(struct shared *t, enum shared_state state, int64_t result)
{
    struct shared_segment *s = t->loading;
    free(t->footer);
    t->footer = NULL;
    t->loading = NULL;
    if (state == SEGMENT_BAD) {
        close_later(t, s->file);
        s->file = -1;
        t->stats.errors += result < 0 && result != -ENOENT;
    }
    if (s->state == SEGMENT_NEW && (state == SEGMENT_READY || !shared_try_again(t, result, &s->tries, &s->try_at)))
        s->state = state;
    shared_pump(t);
}

static void load_step(struct shared *t, struct kv_io io, void (*done)(struct kv_io *))
{
    t->load_io = io;
    shared_submit(t, &t->load_io, done);
}

static void on_footer(struct kv_io *io)
{
    struct shared *t = io->ctx;
    struct shared_segment *s = t->loading;
    uint64_t id, offset, pages;
    t->in_flight--;
    if (io->result != (int64_t)io->len || s->state != SEGMENT_NEW ||
        !shared_trailer_read(t, t->footer + io->len - KV_PAGE, s->size, &id, &offset, &pages)) {
        load_end(t, SEGMENT_BAD, io->result);
        return;
    }
    s->id = id;
    s->n = shared_footer_read(t, t->footer, pages, id, offset, &s->entries);
    if (s->n < 0) {
        s->n = 0;
        load_end(t, SEGMENT_BAD, 0);
        return;
    }
    for (int i = 0; i < s->n; i++) {
        struct shared_entry *e = shared_entry_at(t, s->entries, i);
        e->segment = s;
        s->newest_s = e->stored_s > s->newest_s ? e->stored_s : s->newest_s;
        if (!shared_dropped(t, id, &e->key))
            shared_list(t, e);
    }
    s->worth = t->floor + 1;
    t->stats.bytes += s->size;
    load_end(t, SEGMENT_READY, 0);
}

static void on_trailer(struct kv_io *io)
{
    struct shared *t = io->ctx;
    struct shared_segment *s = t->loading;
    uint64_t id, offset, pages;
    t->in_flight--;
    if (io->result != KV_PAGE || !shared_trailer_read(t, t->footer, s->size, &id, &offset, &pages)) {
        load_end(t, SEGMENT_BAD, io->result);
        return;
    }
    size_t len = (size_t)(pages + 1) * KV_PAGE;
    free(t->footer);
    t->footer = aligned_alloc(KV_PAGE, len);
    if (!t->footer) {
        load_end(t, SEGMENT_BAD, -ENOMEM);
        return;
    }
    load_step(t,
              (struct kv_io){.op = KV_IO_READ,
                             .file = s->file,
                             .flags = t->p.direct ? KV_OPEN_DIRECT : 0,
                             .bytes = t->footer,
                             .len = len,
                             .offset = offset},
              on_footer);
}

static void on_size(struct kv_io *io)
{
    struct shared *t = io->ctx;
    struct shared_segment *s = t->loading;
    t->in_flight--;
    t->footer = io->result >= 2 * KV_PAGE && io->result % KV_PAGE == 0 ? aligned_alloc(KV_PAGE, KV_PAGE) : NULL;
    if (!t->footer) {
        load_end(t, SEGMENT_BAD, io->result);
        return;
    }
    s->size = (uint64_t)io->result;
    load_step(t,
              (struct kv_io){.op = KV_IO_READ,
                             .file = s->file,
                             .flags = t->p.direct ? KV_OPEN_DIRECT : 0,
                             .bytes = t->footer,
                             .len = KV_PAGE,
                             .offset = s->size - KV_PAGE},
              on_trailer);
}

static void on_opened(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    t->loading->file = (int)io->result;
    if (io->result < 0) {
        t->loading->file = -1;
        load_end(t, SEGMENT_BAD, io->result);
        return;
    }
    load_step(t, (struct kv_io){.op = KV_IO_SIZE, .file = t->loading->file}, on_size);
}

static void load_next(struct shared *t)
{
    struct shared_segment *s = t->segments;
    while (s && (s->state != SEGMENT_NEW || shared_now(t) < s->try_at))
        s = s->next;
    if (t->loading || !s || shared_drops_pending(t)) /* what was dropped is never found, not even for a moment */
        return;
    t->loading = s;
    load_step(t, (struct kv_io){.op = KV_IO_OPEN, .path = s->name, .flags = t->p.direct ? (unsigned)KV_OPEN_DIRECT : 0},
              on_opened);
}

/* ---- listing ---- */

static void see_segment(struct shared *t, const char *name, const char *node)
{
    struct shared_segment *s = segment_find(t, name);
    if (!s) {
        s = calloc(1, sizeof *s);
        if (!s)
            return;
        snprintf(s->name, sizeof s->name, "%s", name);
        s->file = -1;
        s->own = !strcmp(node, t->node);
        s->next = t->segments;
        t->segments = s;
    }
    s->seen = true;
}

static void see_open(struct shared *t, const char *name, const char *node, uint64_t epoch)
{
    struct shared_open *o = t->opens;
    while (o && strcmp(o->name, name))
        o = o->next;
    if (!o) {
        o = calloc(1, sizeof *o);
        if (!o)
            return;
        snprintf(o->name, sizeof o->name, "%s", name);
        o->since = shared_now(t);
        /* A writer of this name lives under another epoch now: this one does not. */
        if (!strcmp(node, t->node) && epoch < t->epoch)
            o->since -= t->p.orphan_ns;
        o->next = t->opens;
        t->opens = o;
    }
    o->seen = true;
}

static void forget_unseen(struct shared *t)
{
    for (struct shared_segment *s = t->segments; s; s = s->next)
        if (!s->seen && s->state != SEGMENT_GONE)
            shared_segment_lose(t, s, SEGMENT_GONE);
    for (struct shared_open **at = &t->opens; *at;) {
        struct shared_open *o = *at;
        if (o->seen || o->removing) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        free(o);
    }
}

static void on_listed(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    t->listing = false;
    t->listed_at = t->list_again ? 0 : shared_now(t) ? shared_now(t) : 1;
    if (io->result < 0) { /* not to be had now: what is known stays */
        t->stats.errors++;
        t->list_again = false;
        shared_pump(t);
        return;
    }
    for (struct shared_segment *s = t->segments; s; s = s->next)
        s->seen = false;
    for (struct shared_open *o = t->opens; o; o = o->next)
        o->seen = false;
    shared_drops_unsee(t);
    const char *name = io->names;
    for (int64_t i = 0; i < io->result; i++, name += strlen(name) + 1) {
        char node[SHARED_NODE];
        uint64_t epoch;
        if (parse_name(name, "seg", node, &epoch))
            see_segment(t, name, node);
        else if (parse_name(name, "drop", node, &epoch))
            shared_drop_see(t, name);
        else if (parse_name(name, "open", node, &epoch) && strcmp(name, t->writer ? t->open_name : ""))
            see_open(t, name, node, epoch);
    }
    free(io->names);
    io->names = NULL;
    forget_unseen(t);
    shared_drops_forget(t);
    t->list_again = false;
    shared_pump(t);
}

/* ---- removing ---- */

static void on_removed(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    t->removing = false;
    if (io->result < 0 && io->result != -ENOENT)
        t->stats.errors++;
    struct shared_segment *s = segment_find(t, t->remove_name);
    if (s)
        s->removing = false;
    for (struct shared_open *o = t->opens; o; o = o->next)
        o->removing &= strcmp(o->name, t->remove_name) != 0;
    shared_pump(t);
}

static void remove_file(struct shared *t, const char *name)
{
    snprintf(t->remove_name, sizeof t->remove_name, "%s", name);
    t->removing = true;
    t->removals -= 1;
    t->remove_io = (struct kv_io){.op = KV_IO_UNLINK, .path = t->remove_name};
    shared_submit(t, &t->remove_io, on_removed);
}

static bool too_old(const struct shared *t, const struct shared_segment *s)
{
    int64_t age = shared_wall(t) - s->newest_s;
    /* Others remove theirs; what nobody removes for long is nobody's. */
    return t->p.ttl_s && s->state == SEGMENT_READY && age > t->p.ttl_s * (s->own ? 1 : 2);
}

/* The segment that should go next; NULL: none. */
static struct shared_segment *victim(struct shared *t)
{
    struct shared_segment *own = NULL, *other = NULL;
    for (struct shared_segment *s = t->segments; s; s = s->next) {
        if (s->state != SEGMENT_READY)
            continue;
        if (too_old(t, s) || (s->n && !s->listed))
            return s;
        struct shared_segment **best = s->own ? &own : &other;
        if (!*best || s->worth < (*best)->worth || (s->worth == (*best)->worth && s->newest_s < (*best)->newest_s))
            *best = s;
    }
    uint64_t most = (uint64_t)t->p.bytes;
    if (own && t->stats.bytes > most)
        return own;
    return other && t->stats.bytes > most + most / 8 ? other : NULL;
}

static void remove_next(struct shared *t)
{
    int64_t now = shared_now(t);
    t->removals += (double)(now - t->removals_at) * 1e-9 * t->p.removals_per_s;
    t->removals = t->removals < REMOVALS_BURST ? t->removals : REMOVALS_BURST;
    t->removals_at = now;
    if (t->removing || t->removals < 1)
        return;
    for (struct shared_open *o = t->opens; o; o = o->next)
        if (!o->removing && now - o->since >= t->p.orphan_ns) {
            o->removing = true;
            o->since = now; /* once in a while is enough, should it not go */
            remove_file(t, o->name);
            return;
        }
    const char *drop = shared_drop_done(t);
    if (drop) {
        remove_file(t, drop);
        return;
    }
    struct shared_segment *s = victim(t);
    if (!s)
        return;
    if (too_old(t, s))
        t->stats.expired += (uint64_t)s->listed;
    else
        t->stats.evicted += (uint64_t)s->listed;
    t->floor = s->worth > t->floor ? s->worth : t->floor;
    shared_segment_lose(t, s, SEGMENT_GONE);
    s->removing = true;
    remove_file(t, s->name);
}

void shared_folder_turn(struct shared *t)
{
    if (!t->listing && !t->ending && (!t->listed_at || shared_now(t) - t->listed_at >= t->p.poll_ns)) {
        t->listing = true;
        t->list_io = (struct kv_io){.op = KV_IO_LIST, .path = ""};
        shared_submit(t, &t->list_io, on_listed);
    }
    if (!t->ending) {
        load_next(t);
        remove_next(t);
    }
    shared_segments_sweep(t);
}
