#include "kvtiers/ssd.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvtiers/ssd_impl.h"

#define NS_PER_S INT64_C(1000000000)

enum { STORE, DROP }; /* kv_tier_op.pending: what the op of a batch is */

#define BACKOFF_FIRST (NS_PER_S)
#define BACKOFF_MOST (300 * NS_PER_S)

void ssd_say(const struct ssd *t, bool warning, const char *fmt, ...)
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

static int64_t now_ns(const struct ssd *t)
{
    return t->p.clock.now(t->p.clock.ctx);
}

static int64_t now_s(const struct ssd *t)
{
    return t->p.clock.wall(t->p.clock.ctx);
}

/* ---- table ---- */

static int bucket_of(const struct ssd *t, const struct kv_key *key)
{
    uint32_t v;
    memcpy(&v, key->b, sizeof v);
    return (int)(v & (uint32_t)(t->n_buckets - 1));
}

int ssd_find(const struct ssd *t, const struct kv_key *key)
{
    int i = t->bucket[bucket_of(t, key)];
    while (i != SSD_NONE && memcmp(&t->entry[i].key, key, sizeof *key))
        i = t->entry[i].chain;
    return i;
}

void ssd_table_add(struct ssd *t, int entry)
{
    int *head = &t->bucket[bucket_of(t, &t->entry[entry].key)];
    t->entry[entry].chain = *head;
    *head = entry;
}

/* Takes an entry out of sight. Its page says so with the next commit. */
static void bury(struct ssd *t, int entry)
{
    struct ssd_entry *e = &t->entry[entry];
    int *at = &t->bucket[bucket_of(t, &e->key)];
    while (*at != entry)
        at = &t->entry[*at].chain;
    *at = e->chain;
    if (e->state == ENTRY_VISIBLE) {
        t->stats.blocks--;
        t->stats.bytes -= t->p.layout.block_bytes;
        t->slab[entry / t->slab_blocks].visible--;
    }
    if (e->state != ENTRY_WRITING) /* it is in a page, or in one on its way */
        ssd_mark(t, entry / t->slab_blocks);
    e->state = ENTRY_DEAD;
}

bool ssd_expire(struct ssd *t, int i)
{
    if (t->entry[i].state != ENTRY_VISIBLE || !t->p.ttl_s || now_s(t) - t->entry[i].stored_s <= t->p.ttl_s)
        return false;
    bury(t, i);
    t->stats.expired++;
    return true;
}

/* Visible, or on its way. */
static int find_live(struct ssd *t, const struct kv_key *key)
{
    int i = ssd_find(t, key);
    return i != SSD_NONE && ssd_expire(t, i) ? SSD_NONE : i;
}

static int find_visible(struct ssd *t, const struct kv_key *key)
{
    int i = find_live(t, key);
    return i != SSD_NONE && t->entry[i].state == ENTRY_VISIBLE ? i : SSD_NONE;
}

/* Slabs go as a whole: worth rises with use and with the floor, which rises with every eviction (see host.c). */
static void slab_use(struct ssd *t, int slab)
{
    struct ssd_slab *s = &t->slab[slab];
    s->uses++;
    double per = (double)s->uses / t->slab_blocks;
    s->worth = t->floor + 1 + (per < 8 ? per : 8);
}

/* ---- extents ---- */

static struct ssd_extent *extent_take(struct ssd *t)
{
    struct ssd_extent *x = t->free_extent;
    t->free_extent = x->next_free;
    t->in_flight++;
    return x;
}

static void extent_give(struct ssd *t, struct ssd_extent *x)
{
    x->next_free = t->free_extent;
    t->free_extent = x;
    t->in_flight--;
}

/* Where an extent lies: the run is layer-major. */
static void extent_place(const struct ssd *t, int entry, int source, int *file, uint64_t *offset)
{
    const struct ssd_entry *e = &t->entry[entry];
    const struct kv_layout *l = &t->p.layout;
    int slab = entry / t->slab_blocks;
    *file = ssd_file_of(t, slab);
    *offset = (uint64_t)(slab - *file * t->file_slabs) * t->slab_bytes + (uint64_t)e->run_first * l->block_bytes +
              (uint64_t)e->run_len * l->offset[source] + (uint64_t)e->run_at * l->bytes[source];
}

static void extent_start(struct ssd *t, struct ssd_extent *x, enum kv_io_op op, uint8_t *bytes,
                         void (*done)(struct kv_io *))
{
    const struct kv_layout *l = &t->p.layout;
    int file;
    uint64_t offset;
    extent_place(t, x->entry, x->source, &file, &offset);
    x->t = t;
    x->io = (struct kv_io){.op = op,
                           .file = t->data_file[file],
                           .flags = t->p.direct ? KV_OPEN_DIRECT : 0,
                           .bytes = bytes + l->offset[x->source],
                           .len = l->bytes[x->source],
                           .offset = offset,
                           .done = done,
                           .ctx = x};
    kv_io_start(t->p.storage, &x->io);
}

/* ---- reading ---- */

static void read_account(struct ssd *t, struct kv_tier_op *op)
{
    t->stats.read_ns += (uint64_t)(now_ns(t) - op->began);
    t->stats.read_ops++;
}

/* After this op may be gone. */
static void read_settle(struct ssd *t, struct kv_tier_op *op, int block, int source, int status)
{
    int left = 0;
    for (int s = 0; s < t->p.layout.n_sources; s++)
        left += op->left[s];
    if (left == 1)
        read_account(t, op);
    kv_op_read_extent(op, t->p.layout.n_sources, block, source, status);
}

static void read_done(struct kv_io *io)
{
    struct ssd_extent *x = io->ctx;
    struct ssd *t = x->t;
    const struct ssd_entry *e = &t->entry[x->entry];
    const struct ssd_slab *slab = &t->slab[x->entry / t->slab_blocks];
    int source = x->source, block = x->block, entry = x->entry, status = 0;
    struct kv_tier_op *op = x->op;
    if (io->result < 0) {
        status = (int)io->result;
        t->stats.errors++;
    } else if ((size_t)io->result != io->len) {
        status = -EIO;
        t->stats.short_reads++;
    } else if (kv_extent_sum(&e->key, source, slab->generation, io->bytes, io->len) !=
               t->sum[(size_t)entry * (size_t)t->p.layout.n_sources + (size_t)source]) {
        status = -EBADMSG;
        t->stats.bad++;
    } else {
        t->stats.read_bytes += io->len;
        t->stats.read += source == t->p.layout.n_sources - 1;
    }
    if (status && e->state == ENTRY_VISIBLE) {
        bury(t, entry);
        t->stats.dropped++;
    }
    t->slab[entry / t->slab_blocks].pins--;
    t->reads_running--;
    extent_give(t, x);
    read_settle(t, op, block, source, status);
    ssd_pump(t);
}

static void ssd_read(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct ssd *t = (struct ssd *)tier;
    struct ssd_work *w = op->n ? malloc(sizeof *w + (size_t)op->n * sizeof *w->entry) : NULL;
    if (!w) {
        kv_op_finish(op, 0, op->n ? -ENOMEM : 0);
        return;
    }
    *w = (struct ssd_work){.op = op, .n = op->n};
    op->began = now_ns(t);
    kv_op_read_begin(op, t->p.layout.n_sources);
    for (int i = 0; i < op->n; i++) {
        w->entry[i] = find_visible(t, &op->block[i].key);
        if (w->entry[i] == SSD_NONE)
            continue;
        op->block[i].info = t->entry[w->entry[i]].info;
        /* Held against eviction until each of its extents has been read. */
        t->slab[w->entry[i] / t->slab_blocks].pins += t->p.layout.n_sources;
        slab_use(t, w->entry[i] / t->slab_blocks);
    }
    *t->reads_end = w;
    t->reads_end = &w->next;
    ssd_pump(t);
}

static void work_unlink(struct ssd_work **at, struct ssd_work ***end)
{
    *at = (*at)->next;
    if (!*at)
        *end = at;
}

/* The oldest read with an extent that somebody waits for; else the oldest one of all. */
static struct ssd_work **read_pick(struct ssd *t, int64_t now, bool *first)
{
    struct ssd_work **at = &t->reads;
    while (*at && !kv_op_first((*at)->op, (*at)->source, now))
        at = &(*at)->next;
    *first = *at != NULL;
    return *first ? at : &t->reads;
}

/* The next extent of a read. */
static void pump_read(struct ssd *t, struct ssd_work **at)
{
    struct ssd_work *w = *at;
    struct kv_tier_op *op = w->op;
    int block = w->block, source = w->source, entry = w->entry[block], n = w->n;
    if (++w->block == n) {
        w->block = 0;
        if (++w->source == t->p.layout.n_sources) {
            work_unlink(at, &t->reads_end);
            free(w);
        }
    }
    if (entry == SSD_NONE) {
        read_settle(t, op, block, source, -ENOENT);
        return;
    }
    struct ssd_extent *x = extent_take(t);
    x->op = op;
    x->block = block;
    x->source = source;
    x->entry = entry;
    t->reads_running++;
    extent_start(t, x, KV_IO_READ, op->block[block].bytes, read_done);
}

static void ssd_cancel(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct ssd *t = (struct ssd *)tier;
    struct ssd_work **at = &t->reads, *w;
    while (*at && (*at)->op != op)
        at = &(*at)->next;
    if (!(w = *at))
        return; /* all of it is on its way */
    work_unlink(at, &t->reads_end);
    for (int s = w->source, b = w->block; s < t->p.layout.n_sources; s++, b = 0)
        for (; b < w->n; b++) {
            if (w->entry[b] != SSD_NONE)
                t->slab[w->entry[b] / t->slab_blocks].pins--;
            read_settle(t, op, b, s, -ECANCELED); /* op may be gone after the last */
        }
    free(w);
    ssd_pump(t);
}

static void ssd_want(struct kv_tier *tier, struct kv_tier_op *op, int sources)
{
    if (kv_op_want(op, sources))
        ssd_pump((struct ssd *)tier);
}

/* Reads that may begin now. */
static void pump_reads(struct ssd *t, int64_t now)
{
    while (t->reads && t->free_extent) {
        bool first;
        struct ssd_work **at = read_pick(t, now, &first);
        if (!first && t->reads_running + t->writes_running >= SSD_EXTENTS - SSD_KEPT)
            return;
        pump_read(t, at);
    }
}

/* ---- storing ---- */

static struct ssd_batch *filling(struct ssd *t)
{
    return &t->batch[t->filling];
}

static void stop_storing(struct ssd *t, int status, const char *what)
{
    if (!t->read_only)
        ssd_say(t, true, "%s: %s: %s; the tier takes no blocks for %lld s", t->p.folder, what, strerror(-status),
                (long long)(t->backoff / NS_PER_S));
    t->read_only = true;
    t->stats.errors++;
    t->retry_at = now_ns(t) + t->backoff;
    t->backoff = t->backoff * 2 < BACKOFF_MOST ? t->backoff * 2 : BACKOFF_MOST;
}

static bool worn(const struct ssd *t)
{
    if (!t->p.write_bytes_per_day)
        return false;
    /* An hour's worth at once, then as the days go by. */
    double day = (double)t->p.write_bytes_per_day, days = (double)(now_ns(t) - t->opened_at) / (86400.0 * 1e9);
    return (double)t->stats.stored_bytes > day / 24 + day * days;
}

/* Without blocks, or of less worth. */
static bool goes_before(const struct ssd_slab *a, const struct ssd_slab *b)
{
    return !a->visible != !b->visible ? !a->visible : a->worth < b->worth;
}

/* Picks the slab of least worth and makes it invisible. */
static bool retire_one(struct ssd *t)
{
    int victim = SSD_NONE;
    for (int i = 0; i < t->n_slabs; i++) {
        const struct ssd_slab *s = &t->slab[i];
        if (s->state == SLAB_FULL && !s->pins && !s->busy && !s->writing &&
            (victim == SSD_NONE || goes_before(s, &t->slab[victim])))
            victim = i;
    }
    if (victim == SSD_NONE)
        return false;
    struct ssd_slab *s = &t->slab[victim];
    if (s->visible && s->worth > t->floor)
        t->floor = s->worth;
    for (int i = 0; i < t->slab_blocks; i++) {
        int id = victim * t->slab_blocks + i;
        if (t->entry[id].state == ENTRY_VISIBLE) {
            bury(t, id);
            t->stats.evicted++;
        }
    }
    s->state = SLAB_RETIRING;
    t->n_retiring++;
    s->generation = t->epoch << 32 | t->next_generation++;
    s->used = 0;
    ssd_mark(t, victim);
    return true;
}

/* A slab with room, or none now. */
static int slab_with_room(struct ssd *t)
{
    if (t->open_slab != SSD_NONE && t->slab[t->open_slab].used < t->slab_blocks)
        return t->open_slab;
    if (t->open_slab != SSD_NONE)
        t->slab[t->open_slab].state = SLAB_FULL;
    t->open_slab = SSD_NONE;
    for (int i = 0; i < t->n_slabs && t->n_free; i++)
        if (t->slab[i].state == SLAB_FREE) {
            struct ssd_slab *s = &t->slab[i];
            s->state = SLAB_OPEN;
            s->used = 0;
            s->uses = 0;
            s->first_s = now_s(t);
            s->worth = t->floor + 1;
            for (int k = 0; k < t->slab_blocks; k++)
                t->entry[i * t->slab_blocks + k].state = ENTRY_EMPTY;
            t->n_free--;
            t->open_slab = i;
            break;
        }
    return t->open_slab;
}

static void entry_make(struct ssd *t, int id, const struct kv_tier_block *b, int first, int len, int at)
{
    const struct kv_layout *l = &t->p.layout;
    int slab = id / t->slab_blocks;
    t->entry[id] = (struct ssd_entry){.state = ENTRY_WRITING,
                                      .run_first = (uint16_t)first,
                                      .run_len = (uint16_t)len,
                                      .run_at = (uint16_t)at,
                                      .key = b->key,
                                      .info = b->info,
                                      .stored_s = now_s(t)};
    for (int k = 0; k < l->n_sources; k++)
        t->sum[(size_t)id * (size_t)l->n_sources + (size_t)k] =
            kv_extent_sum(&b->key, k, t->slab[slab].generation, b->bytes + l->offset[k], l->bytes[k]);
    ssd_table_add(t, id);
    t->slab[slab].busy++;
}

/* Gives the blocks of op from `first` on that are not here yet a run in a slab. Returns how many blocks were dealt
 * with: 0 when there is no room now. */
static int place_run(struct ssd *t, struct kv_tier_op *op, int first)
{
    struct ssd_batch *b = filling(t);
    int n = 0, room = SSD_BATCH_MAX - b->n, most = ssd_room_blocks(t), slab;
    if (find_live(t, &op->block[first].key) != SSD_NONE)
        return 1;
    room = room < most ? room : most;
    if (room == 0 || (slab = slab_with_room(t)) == SSD_NONE)
        return 0;
    int left = t->slab_blocks - t->slab[slab].used;
    room = room < left ? room : left;
    room = room < SSD_RUN_MAX ? room : (int)SSD_RUN_MAX;
    while (n < room && first + n < op->n && find_live(t, &op->block[first + n].key) == SSD_NONE)
        n++;
    ssd_room_taken(t, n);
    struct ssd_work *w = malloc(sizeof *w + (size_t)n * sizeof *w->entry);
    if (!w)
        return 0;
    *w = (struct ssd_work){.op = op, .first = first, .n = n};
    int at = t->slab[slab].used;
    for (int i = 0; i < n; i++) {
        w->entry[i] = slab * t->slab_blocks + at + i;
        b->entry[b->n++] = w->entry[i];
    }
    t->slab[slab].used = (uint16_t)(at + n);
    int done = 0;
    for (; done < n; done++) {
        /* The same key twice in one op: the second finds the first. */
        if (ssd_find(t, &op->block[first + done].key) != SSD_NONE)
            break;
        entry_make(t, w->entry[done], &op->block[first + done], at, n, done);
    }
    for (int i = done; i < n; i++)
        t->entry[w->entry[i]].state = ENTRY_DEAD;
    b->n -= n - done;
    w->n = done;
    b->writes += done * t->p.layout.n_sources;
    b->file[ssd_file_of(t, slab)] = true;
    *t->writes_end = w;
    t->writes_end = &w->next;
    return done;
}

static void write_done(struct kv_io *io)
{
    struct ssd_extent *x = io->ctx;
    struct ssd *t = x->t;
    struct ssd_batch *b = filling(t); /* a batch commits only when its writes are done */
    int status = io->result < 0 ? (int)io->result : (size_t)io->result < io->len ? -ENOSPC : 0;
    b->writes--;
    if (status && !b->status)
        b->status = status;
    t->writes_running--;
    extent_give(t, x);
    ssd_pump(t);
}

static void pump_write(struct ssd *t)
{
    struct ssd_work *w = t->writes;
    struct kv_tier_block *b = &w->op->block[w->first + w->block];
    struct ssd_extent *x = extent_take(t);
    x->source = w->source;
    x->entry = w->entry[w->block];
    if (++w->block == w->n) {
        w->block = 0;
        if (++w->source == t->p.layout.n_sources) {
            work_unlink(&t->writes, &t->writes_end);
            free(w);
        }
    }
    t->writes_running++;
    extent_start(t, x, KV_IO_WRITE, b->bytes, write_done);
}

/* None while reads have not begun, but for stores that have waited for long. */
static void pump_writes(struct ssd *t, int64_t now)
{
    while (t->writes && t->free_extent) {
        bool old = now - t->writes->op->began >= KV_AGE_NS;
        int idle = t->reads_running ? (int)SSD_FEW_WRITES : (int)SSD_WRITES;
        int most = !t->reads ? idle : old ? (int)SSD_OLD_WRITES : 0;
        if (t->writes_running >= most)
            return;
        pump_write(t);
    }
}

static void store_finish(struct ssd *t, struct kv_tier_op *op, int status)
{
    int n = 0;
    if (op->pending == DROP) {
        kv_op_finish(op, op->count, status);
        return;
    }
    for (int i = 0; i < op->n; i++)
        n += find_visible(t, &op->block[i].key) != SSD_NONE;
    t->stats.refused += (uint64_t)(op->n - n);
    kv_op_finish(op, n, n < op->n ? status : 0);
}

/* Empty slabs are made before they are wanted, with a commit that happens anyway. */
static void retire_ahead(struct ssd *t)
{
    int have = t->n_free + t->n_retiring;
    while (t->stores && t->rebuild_at == t->n_slabs && have < 2 && retire_one(t))
        have++;
}

/* Stores go into the batch in order; what cannot be placed now waits for the next commit. */
static void take_stores(struct ssd *t)
{
    retire_ahead(t);
    while (t->stores) {
        struct kv_tier_op *op = t->stores;
        int refuse = t->read_only ? -EROFS : worn(t) ? -EDQUOT : 0;
        while (!refuse && t->store_block < op->n) {
            int n = place_run(t, op, t->store_block);
            refuse = !n && !ssd_room_blocks(t) ? -ENOSPC : 0;
            if (!n)
                break;
            t->store_block += n;
        }
        if (!refuse && t->store_block < op->n) {
            bool soon = filling(t)->n || t->in_flight || t->phase != PHASE_IDLE || t->rebuild_at < t->n_slabs;
            if (soon || t->n_retiring || retire_one(t))
                return;
            refuse = -ENOSPC;
        }
        bool placed = t->store_block > 0;
        t->stores = op->next;
        if (!t->stores)
            t->stores_end = &t->stores;
        t->store_block = 0;
        if (refuse && !placed) {
            store_finish(t, op, refuse);
        } else { /* answered by the commit, when what it placed is durable */
            op->status = refuse;
            op->next = filling(t)->ops;
            filling(t)->ops = op;
        }
    }
}

static void ssd_store(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct ssd *t = (struct ssd *)tier;
    op->next = NULL;
    op->pending = STORE;
    op->began = now_ns(t);
    *t->stores_end = op;
    t->stores_end = &op->next;
    ssd_pump(t);
}

/* ---- committing ---- */

static void commit_next(struct ssd *t);

/* The commit since which a page waits to be written. */
static uint64_t oldest_dirty(const struct ssd *t)
{
    uint64_t oldest = UINT64_MAX;
    for (int i = 0; i < t->n_slabs && t->n_dirty; i++)
        if (t->slab[i].dirty && t->slab[i].dirty_at < oldest)
            oldest = t->slab[i].dirty_at;
    return oldest;
}

static void batch_close(struct ssd *t, struct ssd_batch *b, int status)
{
    struct kv_tier_op *ops = b->ops;
    for (int i = 0; i < b->n; i++) {
        struct ssd_entry *e = &t->entry[b->entry[i]];
        t->slab[b->entry[i] / t->slab_blocks].busy--;
        if (e->state == ENTRY_DEAD)
            continue;
        if (status) {
            bury(t, b->entry[i]);
            continue;
        }
        e->state = ENTRY_VISIBLE;
        t->slab[b->entry[i] / t->slab_blocks].visible++;
        t->stats.blocks++;
        t->stats.bytes += t->p.layout.block_bytes;
        t->stats.stored++;
        t->stats.stored_bytes += t->p.layout.block_bytes;
    }
    *b = (struct ssd_batch){0};
    if (!status)
        t->backoff = BACKOFF_FIRST;
    uint64_t oldest = oldest_dirty(t);
    while (ops) {
        struct kv_tier_op *op = ops;
        ops = op->next;
        if (!status && op->pending == DROP && oldest <= (uint64_t)op->began) {
            op->next = filling(t)->ops; /* more pages than one commit takes: the next one goes on */
            filling(t)->ops = op;
            continue;
        }
        store_finish(t, op, status ? status : op->status);
    }
}

static void phase_done(struct kv_io *io)
{
    struct ssd *t = io->ctx;
    bool moved_all = io->op == KV_IO_SYNC || io->result == (int64_t)io->len;
    t->in_flight--;
    if ((io->result < 0 || !moved_all) && !t->phase_status)
        t->phase_status = io->result < 0 ? (int)io->result : -EIO;
    if (--t->phase_left == 0)
        commit_next(t);
    ssd_pump(t);
}

static void phase_io(struct ssd *t, struct kv_io *at, struct kv_io io)
{
    *at = io;
    at->done = phase_done;
    at->ctx = t;
    t->phase_left++;
    t->in_flight++;
}

static void begin_data_sync(struct ssd *t, const struct ssd_batch *b)
{
    t->phase = PHASE_DATA_SYNC;
    for (int f = 0; f < t->n_files; f++)
        if (b->file[f])
            phase_io(t, &t->sync_io[f], (struct kv_io){.op = KV_IO_SYNC, .file = t->data_file[f]});
    if (!t->phase_left) {
        commit_next(t);
        return;
    }
    for (int f = 0; f < t->n_files; f++)
        if (b->file[f])
            kv_io_start(t->p.storage, &t->sync_io[f]);
}

static void add_page(struct ssd *t, int slab)
{
    struct ssd_slab *s = &t->slab[slab];
    if (s->writing || t->n_pages == SSD_BATCH_MAX)
        return;
    t->n_dirty -= s->dirty;
    s->dirty = false;
    s->writing = true;
    uint8_t *page = t->page + (size_t)t->n_pages * KV_PAGE;
    ssd_page_make(t, slab, page);
    phase_io(t, &t->page_io[t->n_pages],
             (struct kv_io){.op = KV_IO_WRITE,
                            .file = t->index_file,
                            .flags = t->p.direct ? KV_OPEN_DIRECT : 0,
                            .bytes = page,
                            .len = KV_PAGE,
                            .offset = ssd_page_offset(slab, !s->copy)});
    t->page_slab[t->n_pages++] = slab;
}

/* The slabs of the batch first: they must be in this commit. */
static void begin_index_write(struct ssd *t, const struct ssd_batch *b)
{
    t->phase = PHASE_INDEX_WRITE;
    t->n_pages = 0;
    for (int i = 0; i < b->n; i++)
        add_page(t, b->entry[i] / t->slab_blocks);
    for (int i = 0; i < t->n_slabs && t->n_dirty; i++)
        if (t->slab[i].dirty && t->slab[i].state != SLAB_UNKNOWN)
            add_page(t, i);
    if (!t->n_pages) {
        commit_next(t);
        return;
    }
    for (int i = 0, n = t->n_pages; i < n; i++)
        kv_io_start(t->p.storage, &t->page_io[i]);
}

static void begin_index_sync(struct ssd *t)
{
    t->phase = PHASE_INDEX_SYNC;
    if (!t->n_pages) {
        commit_next(t);
        return;
    }
    phase_io(t, &t->sync_io[0], (struct kv_io){.op = KV_IO_SYNC, .file = t->index_file});
    kv_io_start(t->p.storage, &t->sync_io[0]);
}

/* The pages are durable, or nobody knows what they are: then they are written again, in the same place. */
static void end_pages(struct ssd *t, bool durable)
{
    for (int i = 0; i < t->n_pages; i++) {
        struct ssd_slab *s = &t->slab[t->page_slab[i]];
        s->writing = false;
        s->sequence++;
        if (!durable) {
            ssd_mark(t, t->page_slab[i]);
            continue;
        }
        s->copy = !s->copy;
        if (s->state == SLAB_RETIRING && !s->dirty) {
            s->state = SLAB_FREE;
            t->n_retiring--;
            t->n_free++;
        }
    }
    t->n_pages = 0;
}

static void commit_end(struct ssd *t)
{
    struct ssd_batch *b = &t->batch[!t->filling];
    int status = t->phase_status;
    end_pages(t, !status);
    t->phase = PHASE_IDLE;
    t->phase_status = 0;
    if (status) {
        /* What a failed flush did not keep, no later one does: the system reports it once and forgets. So the batch
         * whose extents may be written by now ends with this one. */
        struct ssd_batch *after = filling(t);
        if (after->n && !after->status)
            after->status = status;
        stop_storing(t, status, "storing failed");
    }
    batch_close(t, b, status);
}

static void commit_next(struct ssd *t)
{
    struct ssd_batch *b = &t->batch[!t->filling];
    if (t->phase_status || t->phase == PHASE_INDEX_SYNC) {
        commit_end(t);
    } else if (t->phase == PHASE_IDLE) {
        begin_data_sync(t, b);
    } else if (t->phase == PHASE_DATA_SYNC) {
        for (int i = 0; i < b->n; i++)
            if (t->entry[b->entry[i]].state == ENTRY_WRITING)
                t->entry[b->entry[i]].state = ENTRY_COMMITTING;
        begin_index_write(t, b);
    } else {
        begin_index_sync(t);
    }
}

/* A batch commits when its bytes are there and the one before it is durable; what comes meanwhile fills the next. */
static void try_commit(struct ssd *t)
{
    struct ssd_batch *b = filling(t);
    if (t->phase != PHASE_IDLE || b->writes)
        return;
    if (b->status && b->n) {
        stop_storing(t, b->status, "writing failed");
        batch_close(t, b, b->status);
        return;
    }
    if (!b->n && !b->ops && (t->read_only || !t->n_dirty))
        return;
    t->filling = !t->filling;
    t->commits++;
    commit_next(t);
}

void ssd_pump(struct ssd *t)
{
    t->pump_again = true;
    if (t->pumping)
        return; /* a callback came back here */
    t->pumping = true;
    while (t->pump_again) {
        t->pump_again = false;
        take_stores(t);
        int64_t now = now_ns(t);
        pump_writes(t, now); /* old ones, before reads take every request */
        pump_reads(t, now);
        pump_writes(t, now);
        try_commit(t);
    }
    t->pumping = false;
}

/* ---- the other verbs ---- */

static void ssd_lookup(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct ssd *t = (struct ssd *)tier;
    int n = 0, i;
    while (n < op->n && (i = find_visible(t, &op->block[n].key)) != SSD_NONE)
        op->block[n++].info = t->entry[i].info;
    t->stats.lookups += (uint64_t)op->n;
    t->stats.found += (uint64_t)n;
    kv_op_finish(op, n, 0);
}

static void ssd_drop(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct ssd *t = (struct ssd *)tier;
    int n = 0;
    for (int i = 0; i < op->n; i++) {
        int e = ssd_find(t, &op->block[i].key); /* also one that is on its way */
        if (e != SSD_NONE) {
            bury(t, e);
            t->stats.dropped++;
            n++;
        }
    }
    op->count = n;
    op->status = 0;
    op->pending = DROP;
    op->began = (int64_t)t->commits;
    op->next = filling(t)->ops;
    filling(t)->ops = op; /* answered when the pages are durable */
    ssd_pump(t);
}

static void ssd_stat(struct kv_tier *tier, struct kv_tier_stats *out)
{
    struct ssd *t = (struct ssd *)tier;
    *out = t->stats;
    out->oldest_s = ssd_oldest(t);
    out->capacity = (uint64_t)t->n_slabs * t->slab_bytes;
    out->read_only = t->read_only || t->room.full;
    out->rebuilding = t->rebuild_at < t->n_slabs;
    out->queue = t->in_flight;
}

static void ssd_tick(struct kv_tier *tier)
{
    struct ssd *t = (struct ssd *)tier;
    if (t->read_only && now_ns(t) >= t->retry_at) {
        t->read_only = false; /* the next failure closes it again, for longer */
        ssd_say(t, false, "%s: the tier takes blocks again", t->p.folder);
    }
    ssd_rebuild(t);
    ssd_sweep(t);
    ssd_room_look(t);
    ssd_pump(t);
}

static void ssd_each(struct kv_tier *tier,
                     void (*fn)(void *ctx, const struct kv_key *key, const struct kv_block_info *info, int64_t age_s),
                     void *ctx)
{
    struct ssd *t = (struct ssd *)tier;
    for (int i = 0; i < t->n_slabs * t->slab_blocks; i++)
        if (t->entry[i].state == ENTRY_VISIBLE)
            fn(ctx, &t->entry[i].key, &t->entry[i].info, now_s(t) - t->entry[i].stored_s);
}

static void close_files(struct ssd *t)
{
    for (int i = 0; i < t->n_files + 2; i++) {
        int f = i < t->n_files ? t->data_file[i] : i == t->n_files ? t->index_file : t->lock_file;
        struct kv_io io = {.op = KV_IO_CLOSE, .file = f};
        if (f >= 0 && kv_io_run(t->p.storage, &io) == -ETIMEDOUT)
            return;
    }
}

/* Waits for what is under way; a storage that does not answer any more (a stopped simulation) ends that. What one that
 * hangs may yet move stays, with all of the tier, until the process ends. */
static void ssd_free(struct kv_tier *tier)
{
    struct ssd *t = (struct ssd *)tier;
    bool alive = true;
    while (alive && (t->in_flight || t->reads))
        alive = t->p.storage->ops->wait(t->p.storage, 10000) > 0;
    struct kv_tier_op *ops[] = {t->stores, t->batch[0].ops, t->batch[1].ops};
    for (int i = 0; i < 3; i++)
        for (struct kv_tier_op *op = ops[i], *next; op; op = next) {
            next = op->next;
            kv_op_finish(op, 0, -ESHUTDOWN);
        }
    if (!alive && !kv_storage_leave(t->p.storage))
        return;
    while (t->reads) {
        struct ssd_work *w = t->reads;
        t->reads = w->next;
        free(w);
    }
    while (t->writes) {
        struct ssd_work *w = t->writes;
        t->writes = w->next;
        free(w);
    }
    if (alive)
        close_files(t);
    free(t->slab);
    free(t->entry);
    free(t->sum);
    free(t->bucket);
    free(t->extent);
    free(t->page);
    free(t->rebuild_page);
    free(t);
}

static const struct kv_tier_ops ssd_ops = {
    .name = "ssd",
    .lookup = ssd_lookup,
    .read = ssd_read,
    .store = ssd_store,
    .drop = ssd_drop,
    .stat = ssd_stat,
    .tick = ssd_tick,
    .each = ssd_each,
    .free = ssd_free,
    .cancel = ssd_cancel,
    .want = ssd_want,
};

static int make_tables(struct ssd *t, struct cfg_error *err)
{
    size_t entries = (size_t)t->n_slabs * (size_t)t->slab_blocks;
    t->n_buckets = 64;
    while ((size_t)t->n_buckets < 2 * entries)
        t->n_buckets *= 2;
    t->slab = calloc((size_t)t->n_slabs, sizeof *t->slab);
    t->entry = calloc(entries, sizeof *t->entry);
    t->sum = calloc(entries * (size_t)t->p.layout.n_sources, sizeof *t->sum);
    t->bucket = malloc((size_t)t->n_buckets * sizeof *t->bucket);
    t->extent = calloc(SSD_EXTENTS, sizeof *t->extent);
    t->page = aligned_alloc(KV_PAGE, (size_t)SSD_BATCH_MAX * KV_PAGE);
    if (!t->slab || !t->entry || !t->sum || !t->bucket || !t->extent || !t->page)
        return cfg_error_set(err, ENOMEM, "ssd tier: the index of %zu blocks does not fit in memory; lower kv.ssd.size",
                             entries);
    for (int b = 0; b < t->n_buckets; b++)
        t->bucket[b] = SSD_NONE;
    for (int i = 0; i < SSD_EXTENTS; i++) {
        t->extent[i].next_free = t->free_extent;
        t->free_extent = &t->extent[i];
    }
    return 0;
}

int kv_ssd_new(const struct kv_ssd_params *params, struct kv_tier **out, struct cfg_error *err)
{
    *out = NULL;
    struct ssd *t = calloc(1, sizeof *t);
    if (!t)
        return cfg_error_set(err, ENOMEM, "ssd tier: out of memory");
    t->base.ops = &ssd_ops;
    t->p = *params;
    t->index_file = t->lock_file = -1;
    t->open_slab = SSD_NONE;
    t->reads_end = &t->reads;
    t->writes_end = &t->writes;
    t->stores_end = &t->stores;
    t->backoff = BACKOFF_FIRST;
    t->opened_at = now_ns(t);
    int r = ssd_open_files(t, err);
    if (!r)
        r = make_tables(t, err);
    if (r) {
        ssd_free(&t->base);
        return r;
    }
    *out = &t->base;
    return 0;
}
