#include "kvtiers/shared.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvtiers/bytes.h"
#include "kvtiers/shared_impl.h"

enum { SWEEP_ENTRIES = 512, CLAIMS_MOST = 99, LATER_MOST = 8 };

#define LATER_NS INT64_C(1000000000)

void shared_say(const struct shared *t, bool warning, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    if (!t->p.log)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    t->p.log(t->p.log_ctx, warning, text);
}

int64_t shared_now(const struct shared *t)
{
    return t->p.clock.now(t->p.clock.ctx);
}

int64_t shared_wall(const struct shared *t)
{
    return t->p.clock.wall(t->p.clock.ctx);
}

void shared_submit(struct shared *t, struct kv_io *io, void (*done)(struct kv_io *))
{
    io->done = done;
    io->ctx = t;
    t->in_flight++;
    kv_io_start(t->p.storage, io);
}

int64_t shared_later(const struct shared *t, int tries)
{
    int64_t first = t->p.poll_ns < LATER_NS ? t->p.poll_ns : LATER_NS;
    return shared_now(t) + (first << (tries - 1 < LATER_MOST ? tries - 1 : (int)LATER_MOST));
}

/* ---- table: a key may be in several segments ---- */

static uint64_t hash_of(const struct kv_key *key)
{
    return kv_get_uint(key->b, 8);
}

struct shared_entry *shared_entry_of(const struct shared *t, const struct kv_key *key, const struct shared_entry *e)
{
    struct shared_link *l = e ? shared_table_next(&e->by_key) : shared_table_first(&t->keys, hash_of(key));
    while (l && memcmp(&SHARED_OF(l, struct shared_entry, by_key)->key, key, sizeof *key))
        l = shared_table_next(l);
    return l ? SHARED_OF(l, struct shared_entry, by_key) : NULL;
}

static bool expired(const struct shared *t, const struct shared_entry *e)
{
    return t->p.ttl_s && shared_wall(t) - e->stored_s > t->p.ttl_s;
}

struct shared_entry *shared_find(const struct shared *t, const struct kv_key *key)
{
    struct shared_entry *e = shared_entry_of(t, key, NULL);
    while (e && (expired(t, e) || (e->try_at && shared_now(t) < e->try_at)))
        e = shared_entry_of(t, key, e);
    return e;
}

void shared_list(struct shared *t, struct shared_entry *e)
{
    shared_table_add(&t->keys, &e->by_key, hash_of(&e->key));
    e->listed = true;
    e->segment->listed++;
    t->stats.blocks++;
}

void shared_unlist(struct shared *t, struct shared_entry *e)
{
    if (!e->listed)
        return;
    shared_table_remove(&t->keys, &e->by_key);
    e->listed = false;
    e->segment->listed--;
    t->stats.blocks--;
}

/* ---- reading ---- */

static void read_settle(struct shared *t, struct kv_tier_op *op, int block, int source, int status)
{
    int left = 0;
    for (int s = 0; s < t->p.layout.n_sources; s++)
        left += op->left[s];
    if (left == 1) {
        t->stats.read_ns += (uint64_t)(shared_now(t) - op->began);
        t->stats.read_ops++;
    }
    kv_op_read_extent(op, t->p.layout.n_sources, block, source, status);
}

/* A block whose bytes are wrong is none. What the file system cannot read now is not found for a while, the longer the
 * more often that was so. */
static void read_failed(struct shared *t, struct shared_entry *e, int status)
{
    if (status == -EBADMSG || status == -ENODATA) {
        shared_unlist(t, e);
        t->stats.dropped++;
        return;
    }
    e->segment->doubtful = true;
    e->tries += e->tries < UINT8_MAX;
    e->try_at = shared_later(t, e->tries);
    if (status == -ENOENT && e->segment->state == SEGMENT_READY) /* it will not be listed any more */
        shared_segment_set(t, e->segment, SEGMENT_GONE, 0);
}

/* The end of an extent, after which x and its op may be others'. */
static void read_end(struct shared *t, struct shared_read *x, int status)
{
    struct shared_entry *e = x->entry;
    struct kv_tier_op *op = x->op;
    int block = x->block, source = x->source;
    if (status && e->listed)
        read_failed(t, e, status);
    else if (!status)
        e->tries = 0, e->try_at = 0;
    shared_file_leave(t, e->segment);
    e->segment->pins--;
    x->next = t->free_read;
    t->free_read = x;
    t->reads--;
    read_settle(t, op, block, source, status == -ENODATA ? -EIO : status);
    shared_pump(t);
}

static void on_read(struct kv_io *io)
{
    struct shared_read *x = io->ctx;
    struct shared *t = x->t;
    const struct shared_entry *e = x->entry;
    int status = 0;
    t->in_flight--;
    if (io->result < 0) {
        status = (int)io->result;
        t->stats.errors++;
    } else if ((size_t)io->result != io->len) {
        status = -ENODATA; /* the file was cut */
        t->stats.short_reads++;
    } else if (kv_extent_sum(&e->key, x->source, e->segment->id, io->bytes, io->len) != e->sum[x->source]) {
        status = -EBADMSG;
        t->stats.bad++;
    } else {
        t->stats.read_bytes += io->len;
        t->stats.read += x->source == t->p.layout.n_sources - 1;
    }
    read_end(t, x, status);
}

void shared_read_go_on(struct shared *t, struct shared_read *x, int status)
{
    const struct kv_layout *l = &t->p.layout;
    const struct shared_entry *e = x->entry;
    if (status) {
        t->stats.errors += status != -ENOENT;
        read_end(t, x, status);
        return;
    }
    x->io = (struct kv_io){.op = KV_IO_READ,
                           .file = e->segment->file,
                           .flags = t->p.direct ? KV_OPEN_DIRECT : 0,
                           .bytes = x->op->block[x->block].bytes + l->offset[x->source],
                           .len = l->bytes[x->source],
                           .offset = e->offset + (uint64_t)e->run_len * l->offset[x->source] +
                                     (uint64_t)e->run_at * l->bytes[x->source],
                           .done = on_read,
                           .ctx = x};
    t->in_flight++;
    kv_io_start(t->p.storage, &x->io);
}

static void work_unlink(struct shared *t, struct shared_work **at)
{
    *at = (*at)->next;
    if (!*at)
        t->works_end = at;
}

/* The oldest read with an extent that somebody waits for; else the oldest one of all. */
static struct shared_work **read_pick(struct shared *t, int64_t now, bool *first)
{
    struct shared_work **at = &t->works;
    while (*at && !kv_op_first((*at)->op, (*at)->source, now))
        at = &(*at)->next;
    *first = *at != NULL;
    return *first ? at : &t->works;
}

static void pump_read(struct shared *t, struct shared_work **at)
{
    struct shared_work *w = *at;
    struct kv_tier_op *op = w->op;
    int block = w->block, source = w->source;
    struct shared_entry *e = w->entry[block];
    if (++w->block == w->n) {
        w->block = 0;
        if (++w->source == t->p.layout.n_sources) {
            work_unlink(t, at);
            free(w);
        }
    }
    if (!e) {
        read_settle(t, op, block, source, -ENOENT);
        return;
    }
    struct shared_read *x = t->free_read;
    t->free_read = x->next;
    *x = (struct shared_read){.t = t, .op = op, .entry = e, .block = block, .source = source};
    t->reads++;
    if (shared_file_use(t, e->segment)) {
        shared_read_go_on(t, x, 0);
        return;
    }
    x->next = e->segment->waiting;
    e->segment->waiting = x;
}

static void pump_reads(struct shared *t)
{
    int64_t now = shared_now(t);
    while (t->works && t->free_read) {
        bool first;
        struct shared_work **at = read_pick(t, now, &first);
        if (!first && t->reads >= SHARED_READS - SHARED_KEPT)
            return;
        pump_read(t, at);
    }
}

static void shared_want(struct kv_tier *tier, struct kv_tier_op *op, int sources)
{
    if (kv_op_want(op, sources))
        shared_pump((struct shared *)tier);
}

static void shared_read_op(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct shared *t = (struct shared *)tier;
    struct shared_work *w = op->n ? malloc(sizeof *w + (size_t)op->n * sizeof(struct shared_entry *)) : NULL;
    if (!w) {
        kv_op_finish(op, 0, op->n ? -ENOMEM : 0);
        return;
    }
    *w = (struct shared_work){.op = op, .n = op->n};
    op->began = shared_now(t);
    kv_op_read_begin(op, t->p.layout.n_sources);
    for (int i = 0; i < op->n; i++) {
        struct shared_entry *e = w->entry[i] = shared_find(t, &op->block[i].key);
        if (!e)
            continue;
        op->block[i].info = e->info;
        e->segment->pins += t->p.layout.n_sources; /* one per extent */
        e->segment->uses++;
        double per = (double)e->segment->uses / (e->segment->n ? e->segment->n : 1);
        e->segment->worth = t->floor + 1 + (per < 8 ? per : 8);
    }
    *t->works_end = w;
    t->works_end = &w->next;
    shared_pump(t);
}

static void shared_cancel(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct shared *t = (struct shared *)tier;
    struct shared_work **at = &t->works, *w;
    while (*at && (*at)->op != op)
        at = &(*at)->next;
    if (!(w = *at))
        return; /* all of it is on its way */
    work_unlink(t, at);
    for (int s = w->source, b = w->block; s < t->p.layout.n_sources; s++, b = 0)
        for (; b < w->n; b++) {
            if (w->entry[b])
                w->entry[b]->segment->pins--;
            read_settle(t, op, b, s, -ECANCELED); /* op may be gone after the last */
        }
    free(w);
    shared_pump(t);
}

/* ---- the other verbs ---- */

static void shared_lookup(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct shared *t = (struct shared *)tier;
    struct shared_entry *e;
    int n = 0;
    while (n < op->n && (e = shared_find(t, &op->block[n].key)))
        op->block[n++].info = e->info;
    t->stats.lookups += (uint64_t)op->n;
    t->stats.found += (uint64_t)n;
    kv_op_finish(op, n, 0);
}

static void shared_store(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct shared *t = (struct shared *)tier;
    op->next = NULL;
    op->status = 0;
    op->pending = 1; /* taken away when all of it is on its way */
    op->count = 0;   /* placed */
    op->settled = t->failures;
    op->began = shared_now(t);
    *t->stores_end = op;
    t->stores_end = &op->next;
    shared_pump(t);
}

static void shared_drop_op(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct shared *t = (struct shared *)tier;
    shared_drop_ask(t, op);
    shared_pump(t);
}

static void shared_stat(struct kv_tier *tier, struct kv_tier_stats *out)
{
    struct shared *t = (struct shared *)tier;
    *out = t->stats;
    out->capacity = (uint64_t)t->p.bytes;
    out->read_only = t->read_only;
    out->rebuilding = !t->listed_at || shared_drops_pending(t) || t->n_new;
    out->queue = t->in_flight;
    for (const struct shared_segment *s = t->segments; s; s = s->next)
        if (s->state == SEGMENT_READY && shared_wall(t) - s->newest_s > out->oldest_s)
            out->oldest_s = shared_wall(t) - s->newest_s;
}

/* Blocks too old go though nobody asks for them: some buckets a tick, round and round. */
static void sweep(struct shared *t)
{
    for (int n = 0; t->p.ttl_s && n < SWEEP_ENTRIES; n++) {
        for (struct shared_link *l = t->keys.bucket[t->sweep_at], *next; l; l = next, n++) {
            struct shared_entry *e = SHARED_OF(l, struct shared_entry, by_key);
            next = l->next;
            if (expired(t, e)) {
                shared_unlist(t, e);
                t->stats.expired++;
            }
        }
        t->sweep_at = (t->sweep_at + 1) & (t->keys.n_buckets - 1);
    }
}

static void shared_tick(struct kv_tier *tier)
{
    struct shared *t = (struct shared *)tier;
    sweep(t);
    shared_pump(t);
}

static void
shared_each(struct kv_tier *tier,
            void (*fn)(void *ctx, const struct kv_key *key, const struct kv_block_info *info, int64_t age_s), void *ctx)
{
    struct shared *t = (struct shared *)tier;
    for (struct shared_segment *s = t->segments; s; s = s->next)
        for (int i = 0; i < s->n && s->state == SEGMENT_READY; i++) {
            const struct shared_entry *e = shared_entry_at(t, s->entries, i);
            if (e->listed)
                fn(ctx, &e->key, &e->info, shared_wall(t) - e->stored_s);
        }
}

void shared_pump(struct shared *t)
{
    t->again = true;
    if (t->pumping)
        return; /* a callback came back here */
    t->pumping = true;
    while (t->again) {
        t->again = false;
        pump_reads(t);
        shared_write_turn(t);
        shared_folder_turn(t);
        if (!t->ending) {
            shared_load_turn(t);
            shared_room_turn(t);
        }
        shared_drop_turn(t);
        shared_files_turn(t);
    }
    t->pumping = false;
}

static void shared_free(struct kv_tier *tier)
{
    struct shared *t = (struct shared *)tier;
    bool alive = true;
    t->ending = true;
    shared_pump(t);
    while (alive && (t->in_flight || t->works))
        alive = t->p.storage->ops->wait(t->p.storage, 10000) > 0;
    for (struct kv_tier_op *op = t->stores, *next; op; op = next) {
        next = op->next;
        kv_op_finish(op, 0, -ESHUTDOWN);
    }
    struct kv_tier_op *drops[] = {t->drop_ops, t->drop_batch};
    for (int i = 0; i < 2; i++)
        for (struct kv_tier_op *op = drops[i], *next; op; op = next) {
            next = op->next;
            kv_op_finish(op, 0, -ESHUTDOWN);
        }
    if (!alive && !kv_storage_leave(t->p.storage))
        return;
    while (t->works) {
        struct shared_work *w = t->works;
        t->works = w->next;
        free(w);
    }
    while (t->running) { /* the storage has left them */
        struct shared_write *w = t->running;
        t->running = w->next;
        free(w);
    }
    for (struct shared_segment *s = t->segments; s && alive; s = s->next) {
        struct kv_io io = {.op = KV_IO_CLOSE, .file = s->file};
        if (s->file_state == FILE_OPEN && kv_io_run(t->p.storage, &io) == -ETIMEDOUT)
            alive = false;
    }
    struct kv_io unlock = {.op = KV_IO_CLOSE, .file = t->lock_file};
    if (t->lock_file >= 0 && alive)
        kv_io_run(t->p.storage, &unlock);
    shared_segments_free(t);
    shared_drops_free(t);
    for (int k = 0; k < SHARED_KINDS; k++)
        shared_table_free(&t->names[k]);
    shared_table_free(&t->keys);
    shared_table_free(&t->ids);
    shared_table_free(&t->dropped);
    shared_table_free(&t->owner_names);
    free(t->footer);
    free(t->seal_bytes);
    free(t->written);
    free(t->read);
    free(t);
}

static const struct kv_tier_ops shared_ops = {
    .name = "shared",
    .lookup = shared_lookup,
    .read = shared_read_op,
    .store = shared_store,
    .drop = shared_drop_op,
    .stat = shared_stat,
    .tick = shared_tick,
    .each = shared_each,
    .free = shared_free,
    .cancel = shared_cancel,
    .want = shared_want,
};

/* Makes the name one that no living process writes under: two that take each other for an earlier life of themselves
 * would remove each other's segments. The lock goes with the process. */
static void claim_name(struct shared *t)
{
    char base[SHARED_NODE - 4], name[SHARED_NAME];
    struct kv_io io;
    snprintf(base, sizeof base, "%.*s", SHARED_NODE - 5, t->node);
    for (int i = 1; i <= CLAIMS_MOST; i++) {
        if (i > 1)
            snprintf(t->node, sizeof t->node, "%s.%d", base, i);
        snprintf(name, sizeof name, "lock-%s", t->node);
        io = (struct kv_io){.op = KV_IO_OPEN, .path = name, .flags = KV_OPEN_WRITE | KV_OPEN_CREATE | KV_OPEN_LOCK};
        int64_t r = kv_io_run(t->p.storage, &io);
        if (r >= 0)
            t->lock_file = (int)r;
        if (r != -EWOULDBLOCK)
            break;
    }
    if (t->lock_file < 0)
        shared_say(t, true,
                   "%s: the name %s cannot be locked (%s), so make sure that no other process writes there under it",
                   t->p.folder, t->node, strerror((int)-io.result));
    else if (strcmp(t->node, base))
        shared_say(t, false, "%s: another process writes there as %s, this one does as %s", t->p.folder, base, t->node);
}

static bool make_tables(struct shared *t)
{
    bool names = true;
    for (int k = 0; k < SHARED_KINDS; k++)
        names = names && shared_table_new(&t->names[k]);
    return names && shared_table_new(&t->keys) && shared_table_new(&t->ids) && shared_table_new(&t->dropped) &&
           shared_table_new(&t->owner_names);
}

int kv_shared_new(const struct kv_shared_params *params, struct kv_tier **out, struct cfg_error *err)
{
    *out = NULL;
    struct shared *t = calloc(1, sizeof *t);
    if (!t)
        return cfg_error_set(err, ENOMEM, "shared tier: out of memory");
    t->base.ops = &shared_ops;
    t->p = *params;
    if (t->p.segment_bytes < (int64_t)t->p.layout.block_bytes)
        t->p.segment_bytes = (int64_t)t->p.layout.block_bytes;
    snprintf(t->node, sizeof t->node, "%s", params->node[0] ? params->node : "node");
    for (char *c = t->node; *c; c++)
        *c = isalnum((unsigned char)*c) || *c == '.' ? *c : '_';
    t->layout_id = kv_layout_id(&t->p.layout);
    t->entry_bytes = (sizeof(struct shared_entry) + 8 * (size_t)t->p.layout.n_sources + 15) / 16 * 16;
    /* Unique among the lives of one name; EXCL guards against two that live at once. */
    t->epoch = (uint64_t)shared_wall(t) << 20 | ((uint64_t)shared_now(t) & 0xfffff);
    t->works_end = &t->works;
    t->stores_end = &t->stores;
    t->drop_ops_end = &t->drop_ops;
    t->file = -1;
    t->lock_file = -1;
    t->backoff = INT64_C(1000000000);
    t->removals_at = shared_now(t);
    t->to_load_end = &t->to_load;
    t->later_at = INT64_MAX;
    t->p.files = t->files_most = params->files ? params->files : KV_SHARED_FILES;
    t->read = calloc(SHARED_READS, sizeof *t->read);
    if (!t->read || !make_tables(t)) {
        shared_free(&t->base);
        return cfg_error_set(err, ENOMEM, "shared tier: out of memory");
    }
    for (int i = 0; i < SHARED_READS; i++) {
        t->read[i].next = t->free_read;
        t->free_read = &t->read[i];
    }
    /* Whether this file system takes what will be asked of it is better known now. */
    struct kv_io io = {.op = KV_IO_LIST, .path = ""};
    int64_t n = kv_io_run(t->p.storage, &io);
    free(io.names);
    if (n < 0) {
        shared_free(&t->base);
        return cfg_error_set(err, (int)-n, "%s: the folder cannot be read: %s", params->folder, strerror((int)-n));
    }
    if (t->p.claim)
        claim_name(t);
    *out = &t->base;
    return 0;
}
