#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "kvtiers/shared_impl.h"

/* ---- names: KIND-NODE-EPOCH-NUMBER ---- */

bool shared_name_parse(const char *name, const char *kind, char node[SHARED_NODE], uint64_t *epoch)
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

static uint64_t hash_of(const char *name)
{
    return XXH3_64bits(name, strlen(name));
}

static const char *text_of(const struct shared_link *l, enum shared_kind kind)
{
    return kind == SHARED_SEGMENTS ? SHARED_OF(l, struct shared_segment, by_name)->name
           : kind == SHARED_OPENS  ? SHARED_OF(l, struct shared_open, by_name)->name
                                   : SHARED_OF(l, struct shared_drop, by_name)->name;
}

struct shared_link *shared_name_find(const struct shared *t, enum shared_kind kind, const char *name)
{
    struct shared_link *l = shared_table_first(&t->names[kind], hash_of(name));
    while (l && strcmp(text_of(l, kind), name))
        l = shared_table_next(l);
    return l;
}

void shared_name_add(struct shared *t, enum shared_kind kind, struct shared_link *l, const char *name)
{
    shared_table_add(&t->names[kind], l, hash_of(name));
}

/* Notes that NODE has made a file; NULL: no memory. */
static struct shared_owner *owner_of(struct shared *t, const char *node)
{
    struct shared_link *l = shared_table_first(&t->owner_names, hash_of(node));
    while (l && strcmp(SHARED_OF(l, struct shared_owner, by_name)->name, node))
        l = shared_table_next(l);
    struct shared_owner *o = l ? SHARED_OF(l, struct shared_owner, by_name) : calloc(1, sizeof *o);
    if (!o)
        return NULL;
    if (!l) {
        snprintf(o->name, sizeof o->name, "%s", node);
        o->next = t->owners;
        t->owners = o;
        shared_table_add(&t->owner_names, &o->by_name, hash_of(node));
    }
    o->active = shared_now(t);
    return o;
}

/* ---- segments ---- */

static struct shared_segment *segment_find(const struct shared *t, const char *name)
{
    struct shared_link *l = shared_name_find(t, SHARED_SEGMENTS, name);
    return l ? SHARED_OF(l, struct shared_segment, by_name) : NULL;
}

static void leave_state(struct shared *t, struct shared_segment *s)
{
    if (s->state == SEGMENT_READY) {
        t->stats.bytes -= s->size;
        shared_table_remove(&t->ids, &s->by_id);
        for (int i = 0; i < s->n; i++)
            shared_unlist(t, shared_entry_at(t, s->entries, i));
    } else if (s->state == SEGMENT_BAD) {
        t->stats.unusable[s->kind].files--;
        t->stats.unusable[s->kind].bytes -= s->size;
    }
    t->n_new -= s->state == SEGMENT_NEW;
    t->n_unread -= s->state == SEGMENT_BAD && s->kind == KV_UNREADABLE;
}

void shared_segment_set(struct shared *t, struct shared_segment *s, enum shared_state state, enum kv_unusable kind)
{
    leave_state(t, s);
    s->state = state;
    s->kind = kind;
    if (state == SEGMENT_READY) {
        t->stats.bytes += s->size;
        shared_table_add(&t->ids, &s->by_id, s->id);
    } else if (state == SEGMENT_BAD) {
        t->stats.unusable[kind].files++;
        t->stats.unusable[kind].bytes += s->size;
        t->n_unread += kind == KV_UNREADABLE;
    } else if (state == SEGMENT_GONE) {
        s->next_gone = t->gone;
        t->gone = s;
        t->later_at = s->queued ? 0 : t->later_at; /* it is taken out there */
    }
}

static void segment_free(struct shared *t, struct shared_segment *s)
{
    *s->link = s->next;
    if (s->next)
        s->next->link = s->link;
    shared_table_remove(&t->names[SHARED_SEGMENTS], &s->by_name);
    free(s->entries);
    free(s);
}

void shared_segments_sweep(struct shared *t)
{
    for (struct shared_segment **at = &t->gone; *at;) {
        struct shared_segment *s = *at;
        if (s->pins || s->users || s == t->loading || s->removing || s->queued || !shared_file_close(t, s)) {
            at = &s->next_gone;
            continue;
        }
        *at = s->next_gone;
        segment_free(t, s);
    }
}

void shared_segments_free(struct shared *t)
{
    while (t->segments)
        segment_free(t, t->segments);
    while (t->opens) {
        struct shared_open *o = t->opens;
        t->opens = o->next;
        free(o);
    }
    while (t->owners) {
        struct shared_owner *o = t->owners;
        t->owners = o->next;
        free(o);
    }
}

/* ---- listing ---- */

static bool see_segment(struct shared *t, const char *name)
{
    struct shared_segment *s = segment_find(t, name);
    char node[SHARED_NODE];
    uint64_t epoch;
    if (!s && !shared_name_parse(name, "seg", node, &epoch))
        return false;
    if (!s) {
        s = calloc(1, sizeof *s);
        if (!s)
            return true;
        snprintf(s->name, sizeof s->name, "%s", name);
        s->t = t;
        s->file = -1;
        s->own = !strcmp(node, t->node);
        s->owner = owner_of(t, node);
        s->since_s = shared_wall(t);
        s->next = t->segments;
        s->link = &t->segments;
        if (s->next)
            s->next->link = &s->next;
        t->segments = s;
        shared_name_add(t, SHARED_SEGMENTS, &s->by_name, s->name);
        t->n_new++;
        shared_load_ask(t, s);
    }
    s->seen = t->listings;
    return true;
}

static bool see_open(struct shared *t, const char *name)
{
    struct shared_link *l = shared_name_find(t, SHARED_OPENS, name);
    struct shared_open *o = l ? SHARED_OF(l, struct shared_open, by_name) : NULL;
    char node[SHARED_NODE];
    uint64_t epoch;
    if (!o && !shared_name_parse(name, "open", node, &epoch))
        return false;
    if (!o) {
        o = calloc(1, sizeof *o);
        if (!o)
            return true;
        snprintf(o->name, sizeof o->name, "%s", name);
        o->since = shared_now(t);
        owner_of(t, node);
        /* A writer of this name lives under another epoch now: this one does not. */
        if (!strcmp(node, t->node) && epoch < t->epoch)
            o->since -= t->p.orphan_ns;
        o->next = t->opens;
        t->opens = o;
        shared_name_add(t, SHARED_OPENS, &o->by_name, o->name);
    }
    o->seen = t->listings;
    return true;
}

static void see_drop(struct shared *t, const char *name)
{
    char node[SHARED_NODE];
    uint64_t epoch;
    if (shared_name_find(t, SHARED_DROPS, name) || shared_name_parse(name, "drop", node, &epoch))
        shared_drop_see(t, name);
}

static void forget_unseen(struct shared *t)
{
    for (struct shared_segment *s = t->segments; s; s = s->next)
        if (s->seen != t->listings && s->state != SEGMENT_GONE)
            shared_segment_set(t, s, SEGMENT_GONE, 0);
    for (struct shared_open **at = &t->opens; *at;) {
        struct shared_open *o = *at;
        if (o->seen == t->listings || o->removing) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        shared_table_remove(&t->names[SHARED_OPENS], &o->by_name);
        free(o);
    }
}

static void on_listed(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    t->listing = false;
    t->listed_at = t->list_again ? 0 : shared_now(t) ? shared_now(t) : 1;
    t->list_again = false;
    if (io->result < 0) { /* not to be had now: what is known stays */
        t->stats.errors++;
        shared_files_fewer(t, io->result);
        shared_pump(t);
        return;
    }
    t->listings++;
    const char *name = io->names;
    for (int64_t i = 0; i < io->result; i++, name += strlen(name) + 1)
        if (!see_segment(t, name) && strcmp(name, t->writer ? t->open_name : "") && !see_open(t, name))
            see_drop(t, name);
    free(io->names);
    io->names = NULL;
    forget_unseen(t);
    shared_drops_forget(t);
    t->plan_due = true;
    t->look_at = 0;
    if (t->files_most < t->p.files) /* there were too few descriptors for once */
        t->files_most += 1 + (t->p.files - t->files_most) / 8;
    shared_pump(t);
}

void shared_folder_turn(struct shared *t)
{
    if (!t->listing && !t->ending && (!t->listed_at || shared_now(t) - t->listed_at >= t->p.poll_ns)) {
        t->listing = true;
        t->list_io = (struct kv_io){.op = KV_IO_LIST, .path = ""};
        shared_submit(t, &t->list_io, on_listed);
    }
    shared_segments_sweep(t);
}
