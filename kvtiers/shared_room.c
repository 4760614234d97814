/* What is removed from the folder: unfinished files that nobody finishes, segments and drops that nobody can use, the
 * oldest segments when there are too many.
 *
 * Every process sees the same segments with the same ages, so all agree, about, which ones are the oldest whose bytes
 * are too many. Each one's part of them is what it wrote. It removes so many bytes and no more until a new listing
 * shows how things are; of its own segments the least used ones, so an old one that is used may stay in the place of a
 * younger one, and is not counted again for a long time, in which the others do their part. For those that are no more
 * the others do it in the end. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvtiers/shared_impl.h"

enum { REMOVALS_BURST = 4, PATIENCE_POLLS = 32 };

#define LOOK_NS INT64_C(1000000000)

/* ---- the plan ---- */

/* In which others do their part, if they live. */
static int64_t patience(const struct shared *t)
{
    return (t->p.poll_ns < LOOK_NS ? t->p.poll_ns : LOOK_NS) * PATIENCE_POLLS;
}

/* Second of its last block, about. One that does not tell, as those of another version, is as young as it was seen. */
static int64_t youth(const struct shared_segment *s)
{
    return s->newest_s ? s->newest_s : s->since_s;
}

/* Older ones first; the name decides among equals, so that all nodes agree. */
static int by_age(const void *a, const void *b)
{
    const struct shared_segment *x = *(struct shared_segment *const *)a, *y = *(struct shared_segment *const *)b;
    int64_t of_x = youth(x), of_y = youth(y);
    return of_x != of_y ? (of_x > of_y) - (of_x < of_y) : strcmp(x->name, y->name);
}

static uint64_t bytes_of_all(const struct shared *t)
{
    uint64_t all = t->stats.bytes;
    for (int k = 0; k < KV_UNUSABLE_KINDS; k++)
        all += t->stats.unusable[k].bytes;
    return all;
}

static bool takes_room(const struct shared_segment *s)
{
    return s->size && (s->state == SEGMENT_READY || s->state == SEGMENT_BAD);
}

/* Segments oldest first, up to `excess` bytes, have to go. Those of others this process removes when they are not gone
 * for long and their owner has not written for long; sooner if there is more than an eighth too much. */
static void mark_due(struct shared *t, struct shared_segment **all, int n, uint64_t excess)
{
    int64_t now = shared_now(t);
    uint64_t at = 0, spare = (uint64_t)t->p.bytes / 8;
    for (int i = 0; i < n; i++) {
        struct shared_segment *s = all[i];
        if (at >= excess) {
            s->due_since = s->spared_until = 0;
            s->helped = false;
            continue;
        }
        s->due_since = s->due_since ? s->due_since : now;
        bool urgent = excess > spare && at < excess - spare;
        int64_t since = s->owner && s->owner->active > s->due_since ? s->owner->active : s->due_since;
        s->helped = now - since >= (urgent ? t->p.orphan_ns / 8 : t->p.orphan_ns);
        if (s->own && now >= s->spared_until)
            t->share += s->size;
        at += s->size;
    }
}

static void plan(struct shared *t)
{
    uint64_t all = bytes_of_all(t), most = (uint64_t)t->p.bytes;
    size_t segments = t->names[SHARED_SEGMENTS].n;
    struct shared_segment **of = segments ? malloc(segments * sizeof(struct shared_segment *)) : NULL;
    int n = 0;
    t->plan_due = false;
    t->share = 0;
    if (!of)
        return;
    for (struct shared_segment *s = t->segments; s; s = s->next)
        if (takes_room(s))
            of[n++] = s;
    if (all > most)
        qsort(of, (size_t)n, sizeof of[0], by_age);
    mark_due(t, of, n, all > most ? all - most : 0);
    free(of);
}

/* This process has done its part: what it left of the oldest ones stays in the place of what it took. */
static void part_done(struct shared *t)
{
    int64_t now = shared_now(t);
    for (struct shared_segment *s = t->segments; s; s = s->next)
        if (s->own && s->due_since && now >= s->spared_until)
            s->spared_until = now + t->p.orphan_ns + patience(t);
    t->share = 0;
}

/* ---- who goes next ---- */

/* Others remove theirs; what nobody removes for long is nobody's. */
static bool too_old(const struct shared *t, const struct shared_segment *s)
{
    int64_t age = shared_wall(t) - youth(s);
    return t->p.ttl_s && takes_room(s) && age > t->p.ttl_s * (s->own ? 1 : 2);
}

/* Of no use to anybody: all of it was dropped; its writer finds no sense in it, or none of its blocks any more. */
static bool useless(const struct shared_segment *s)
{
    if (s->state == SEGMENT_READY)
        return s->n && (s->dropped == s->n || (s->own && !s->listed));
    return s->own && s->state == SEGMENT_BAD && s->kind == KV_DAMAGED && !s->try_at;
}

static bool goes_before(const struct shared_segment *a, const struct shared_segment *b)
{
    return !b || a->worth < b->worth || (a->worth == b->worth && by_age(&a, &b) < 0);
}

/* NULL: none. */
static struct shared_segment *victim(struct shared *t)
{
    struct shared_segment *own = NULL, *other = NULL;
    for (struct shared_segment *s = t->segments; s; s = s->next) {
        if (s->state == SEGMENT_GONE)
            continue;
        if (too_old(t, s) || useless(s))
            return s;
        if (!takes_room(s))
            continue;
        bool readable = s->state == SEGMENT_READY || s->kind != KV_UNREADABLE;
        if (s->own && readable && s->size <= t->share && goes_before(s, own))
            own = s;
        if (!s->own && s->helped && (!other || by_age(&s, &other) < 0))
            other = s;
    }
    if (t->share && !own)
        part_done(t);
    return own ? own : other;
}

/* ---- removing ---- */

static void on_removed(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    t->removing = false;
    t->stats.errors += io->result < 0 && io->result != -ENOENT;
    if (t->remove_count && io->result >= 0) /* else somebody else has removed it */
        *t->remove_count += t->remove_blocks;
    t->remove_count = NULL;
    struct shared_link *s = shared_name_find(t, SHARED_SEGMENTS, t->remove_name),
                       *o = shared_name_find(t, SHARED_OPENS, t->remove_name);
    if (s)
        SHARED_OF(s, struct shared_segment, by_name)->removing = false;
    if (o)
        SHARED_OF(o, struct shared_open, by_name)->removing = false;
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

static void remove_segment(struct shared *t, struct shared_segment *s)
{
    t->remove_count = too_old(t, s) ? &t->stats.expired : &t->stats.evicted;
    t->remove_blocks = (uint64_t)s->listed;
    if (s->own && !too_old(t, s) && !useless(s)) {
        t->floor = s->worth > t->floor ? s->worth : t->floor;
        t->share -= s->size < t->share ? s->size : t->share;
        if (!t->share)
            part_done(t);
    }
    shared_segment_set(t, s, SEGMENT_GONE, 0);
    s->removing = true;
    remove_file(t, s->name);
}

static bool remove_next(struct shared *t)
{
    int64_t now = shared_now(t);
    for (struct shared_open *o = t->opens; o; o = o->next)
        if (!o->removing && now - o->since >= t->p.orphan_ns) {
            o->removing = true;
            o->since = now; /* once in a while is enough, should it not go */
            remove_file(t, o->name);
            return true;
        }
    const char *drop = shared_drop_done(t);
    if (drop) {
        remove_file(t, drop);
        return true;
    }
    /* Sizes are known with the indexes; a view that is never whole will do, too. */
    if (t->plan_due && (!t->n_new || now - t->planned_at >= patience(t))) {
        t->planned_at = now;
        plan(t);
    }
    struct shared_segment *s = victim(t);
    if (s)
        remove_segment(t, s);
    return s != NULL;
}

/* Looks when something has changed, and now and then. */
void shared_room_turn(struct shared *t)
{
    int64_t now = shared_now(t);
    t->removals += (double)(now - t->removals_at) * 1e-9 * t->p.removals_per_s;
    t->removals = t->removals < REMOVALS_BURST ? t->removals : REMOVALS_BURST;
    t->removals_at = now;
    if (t->ending || t->removing || t->removals < 1 || now < t->look_at)
        return;
    if (!remove_next(t))
        t->look_at = now + (t->p.poll_ns < LOOK_NS ? t->p.poll_ns : LOOK_NS);
}
