#include "kvtiers/rows.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvtiers/memory.h"

enum { NONE = -1, READS = 1024, SPAN = 2 * KV_PAGE, READ_BUCKETS = 2048, FILES = KV_ROWS_TABLES * KV_ROWS_PARTS };

/* One part of one row that a read will bring. */
struct kv_rows_wait {
    struct kv_rows_wait *next;
    struct kv_rows_op *op;
    int row; /* of the op */
    uint16_t from, bytes, to;
};

/* A page on its way, or two where a part lies across. */
struct page_read {
    struct kv_io io;
    struct kv_rows *r;
    struct page_read *next; /* free, or in its bucket */
    struct kv_rows_wait *waits;
    uint8_t *bytes;
};

struct slot {
    uint64_t key; /* 0: empty */
    int32_t chain;
    bool used_lately;
};

struct kv_rows {
    struct kv_rows_params p;
    size_t row_bytes;
    int file[FILES], n_files;
    const char *name[FILES];
    int part_file[KV_ROWS_TABLES][KV_ROWS_PARTS];
    /* reads */
    struct page_read *read, *free_read, *bucket[READ_BUCKETS];
    int n_free;
    uint8_t *pages;
    struct queue {
        struct kv_rows_op *first, **end;
    } now, ahead; /* for somebody who waits; into the cache only */
    bool pumping;
    /* cache: clock */
    struct slot *slot;
    uint8_t *cache;
    size_t cache_len;
    int32_t n_slots, hand, *table;
    uint32_t mask;
    struct kv_rows_stats stats;
};

/* ---- cache ---- */

static uint64_t key_of(int table, uint64_t row)
{
    return (uint64_t)(table + 1) << 56 | row;
}

static int32_t *head_of(const struct kv_rows *r, uint64_t key)
{
    uint64_t h = key * UINT64_C(0x9e3779b97f4a7c15);
    return &r->table[(uint32_t)(h >> 32) & r->mask];
}

static const uint8_t *cache_find(struct kv_rows *r, uint64_t key)
{
    int32_t i = *head_of(r, key);
    while (i != NONE && r->slot[i].key != key)
        i = r->slot[i].chain;
    if (i == NONE)
        return NULL;
    r->slot[i].used_lately = true;
    return r->cache + (size_t)i * r->row_bytes;
}

/* The next place, whose row was not used since the hand last came by. */
static int32_t cache_place(struct kv_rows *r)
{
    while (r->slot[r->hand].used_lately) {
        r->slot[r->hand].used_lately = false;
        r->hand = (r->hand + 1) % r->n_slots;
    }
    int32_t i = r->hand;
    r->hand = (r->hand + 1) % r->n_slots;
    if (!r->slot[i].key) {
        r->stats.used++;
        return i;
    }
    int32_t *at = head_of(r, r->slot[i].key);
    while (*at != i)
        at = &r->slot[*at].chain;
    *at = r->slot[i].chain;
    r->stats.evicted++;
    return i;
}

static void cache_put(struct kv_rows *r, uint64_t key, const uint8_t *bytes)
{
    if (cache_find(r, key))
        return;
    int32_t i = cache_place(r), *head = head_of(r, key);
    r->slot[i] = (struct slot){.key = key, .chain = *head};
    *head = i;
    memcpy(r->cache + (size_t)i * r->row_bytes, bytes, r->row_bytes);
}

/* ---- reads ---- */

static void pump(struct kv_rows *r);

static struct page_read **bucket_of(struct kv_rows *r, int file, uint64_t page)
{
    uint64_t h = (page * 31 + (uint64_t)file) * UINT64_C(0x9e3779b97f4a7c15);
    return &r->bucket[(h >> 32) % READ_BUCKETS];
}

static void op_end(struct kv_rows *r, struct kv_rows_op *op)
{
    free(op->wait);
    free(op->left);
    free(op->own);
    op->wait = NULL;
    op->left = op->own = NULL;
    (void)r;
    op->done(op);
}

static uint8_t *row_out(const struct kv_rows *r, const struct kv_rows_op *op, int row)
{
    return (op->out ? op->out : op->own) + (size_t)row * r->row_bytes;
}

static void wait_end(struct kv_rows *r, struct kv_rows_wait *w, const struct page_read *x)
{
    struct kv_rows_op *op = w->op;
    enum { BAD = 0x80 };
    if (x->io.result < (int64_t)w->from + w->bytes)
        op->left[w->row] |= BAD;
    else
        memcpy(row_out(r, op, w->row) + w->to, x->bytes + w->from, w->bytes);
    op->left[w->row]--;
    if (op->left[w->row] == BAD)
        op->failed++;
    else if (!op->left[w->row])
        cache_put(r, key_of(op->table, op->row[w->row]), row_out(r, op, w->row));
    if (--op->pending == 0 && op->at == op->n)
        op_end(r, op);
}

static void on_read(struct kv_io *io)
{
    struct page_read *x = io->ctx;
    struct kv_rows *r = x->r;
    struct page_read **at = bucket_of(r, io->file, io->offset / KV_PAGE);
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    r->stats.queue--;
    if (io->result < 0)
        r->stats.errors++;
    else
        r->stats.read_bytes += (uint64_t)io->result;
    for (struct kv_rows_wait *w = x->waits, *next; w; w = next) {
        next = w->next;
        wait_end(r, w, x);
    }
    x->next = r->free_read;
    r->free_read = x;
    r->n_free++;
    pump(r);
}

static struct page_read *page_under_way(struct kv_rows *r, int file, uint64_t page, size_t len)
{
    struct page_read *x = *bucket_of(r, file, page);
    while (x && (x->io.file != file || x->io.offset != page * KV_PAGE || x->io.len < len))
        x = x->next;
    return x;
}

static void part_ask(struct kv_rows *r, struct kv_rows_op *op, int row, int k, uint16_t to)
{
    const struct kv_rows_part *p = &r->p.table[op->table].part[k];
    struct kv_rows_wait *w = &op->wait[row * KV_ROWS_PARTS + k];
    uint64_t at = p->offset + op->row[row] * p->bytes, page = at / KV_PAGE;
    size_t from = (size_t)(at % KV_PAGE), len = from + p->bytes > KV_PAGE ? SPAN : KV_PAGE;
    int file = r->file[r->part_file[op->table][k]];
    struct page_read *x = page_under_way(r, file, page, len);
    *w = (struct kv_rows_wait){.op = op, .row = row, .from = (uint16_t)from, .bytes = (uint16_t)p->bytes, .to = to};
    op->left[row]++;
    op->pending++;
    if (x) {
        r->stats.shared += k == 0;
        w->next = x->waits;
        x->waits = w;
        return;
    }
    x = r->free_read;
    r->free_read = x->next;
    r->n_free--;
    x->waits = w;
    x->io = (struct kv_io){.op = KV_IO_READ,
                           .file = file,
                           .flags = r->p.direct ? KV_OPEN_DIRECT : 0,
                           .bytes = x->bytes,
                           .len = len,
                           .offset = page * KV_PAGE,
                           .done = on_read,
                           .ctx = x};
    struct page_read **head = bucket_of(r, file, page);
    x->next = *head;
    *head = x;
    r->stats.reads++;
    r->stats.queue++;
    /* Past the end of the file there is nothing: a short read may be a whole one, so it is not repeated. */
    r->p.storage->ops->submit(r->p.storage, &x->io);
}

static void row_ask(struct kv_rows *r, struct kv_rows_op *op, int row)
{
    const struct kv_rows_table *t = &r->p.table[op->table];
    uint16_t to = 0;
    if (op->row[row] >= t->rows) {
        op->failed++;
        return;
    }
    const uint8_t *have = cache_find(r, key_of(op->table, op->row[row]));
    r->stats.rows++;
    r->stats.ahead += !op->out;
    if (have) {
        r->stats.cached++;
        memcpy(row_out(r, op, row), have, r->row_bytes);
        return;
    }
    for (int k = 0; k < t->n_parts; k++) {
        part_ask(r, op, row, k, to);
        to = (uint16_t)(to + t->part[k].bytes);
    }
}

/* What is read ahead goes when nobody waits for rows, or when it has waited for long. */
static struct queue *queue_next(struct kv_rows *r)
{
    const struct kv_rows_op *old = r->ahead.first;
    bool first = old && (!r->now.first || r->p.clock.now(r->p.clock.ctx) - old->began >= KV_AGE_NS);
    return first ? &r->ahead : &r->now;
}

/* Ops in order, as far as there are reads for them; those that wait for nothing end here. */
static void pump(struct kv_rows *r)
{
    struct queue *q;
    if (r->pumping)
        return; /* an op that ended began another one */
    r->pumping = true;
    while (r->n_free >= KV_ROWS_PARTS && (q = queue_next(r))->first) {
        struct kv_rows_op *op = q->first;
        while (op->at < op->n && r->n_free >= KV_ROWS_PARTS) {
            int row = op->at;
            row_ask(r, op, row); /* reads end later, never inside */
            op->at++;
        }
        if (op->at < op->n)
            break;
        q->first = op->next;
        if (!q->first)
            q->end = &q->first;
        if (!op->pending)
            op_end(r, op);
    }
    r->pumping = false;
}

void kv_rows_read(struct kv_rows *r, struct kv_rows_op *op)
{
    op->failed = op->at = op->pending = 0;
    op->next = NULL;
    op->wait = calloc((size_t)op->n * KV_ROWS_PARTS + 1, sizeof *op->wait);
    op->left = calloc((size_t)op->n + 1, 1);
    op->own = op->out ? NULL : malloc((size_t)op->n * r->row_bytes + 1);
    if (!op->wait || !op->left || (!op->out && !op->own)) {
        op->failed = op->n;
        op_end(r, op);
        return;
    }
    struct queue *q = op->out ? &r->now : &r->ahead;
    op->began = r->p.clock.now(r->p.clock.ctx);
    *q->end = op;
    q->end = &op->next;
    pump(r);
}

size_t kv_rows_bytes(const struct kv_rows *r)
{
    return r->row_bytes;
}

void kv_rows_stat(const struct kv_rows *r, struct kv_rows_stats *out)
{
    *out = r->stats;
    out->slots = (uint64_t)r->n_slots;
}

/* ---- life ---- */

void kv_rows_free(struct kv_rows *r)
{
    bool alive = true;
    if (!r)
        return;
    while (alive && (r->stats.queue || r->now.first || r->ahead.first))
        alive = r->p.storage->ops->wait(r->p.storage, 10000) > 0;
    if (!alive && !kv_storage_leave(r->p.storage))
        return;
    for (int i = 0; i < r->n_files && alive; i++) {
        struct kv_io io = {.op = KV_IO_CLOSE, .file = r->file[i]};
        alive = kv_io_run(r->p.storage, &io) != -ETIMEDOUT;
    }
    kv_memory_free(r->cache, r->cache_len);
    free(r->pages);
    free(r->read);
    free(r->slot);
    free(r->table);
    free(r);
}

static int open_file(struct kv_rows *r, const char *name, struct cfg_error *err)
{
    for (int i = 0; i < r->n_files; i++)
        if (!strcmp(r->name[i], name))
            return i;
    struct kv_io io = {.op = KV_IO_OPEN, .path = name, .flags = r->p.direct ? KV_OPEN_DIRECT : 0};
    int64_t f = kv_io_run(r->p.storage, &io);
    if (f == -EINVAL && r->p.direct)
        return cfg_error_set(err, EINVAL, "%s/%s: the file system takes no direct I/O; use engram.store = \"host\"",
                             r->p.folder, name);
    if (f < 0)
        return cfg_error_set(err, (int)-f, "%s/%s: %s", r->p.folder, name, strerror((int)-f));
    r->name[r->n_files] = name;
    r->file[r->n_files] = (int)f;
    return r->n_files++;
}

static int open_tables(struct kv_rows *r, struct cfg_error *err)
{
    for (int t = 0; t < r->p.n_tables; t++) {
        size_t bytes = 0;
        for (int k = 0; k < r->p.table[t].n_parts; k++) {
            const struct kv_rows_part *p = &r->p.table[t].part[k];
            int f = p->bytes && p->bytes <= KV_PAGE ? open_file(r, p->file, err) : -EINVAL;
            if (f == -EINVAL && !(p->bytes && p->bytes <= KV_PAGE))
                return cfg_error_set(err, EINVAL, "%s: rows of %u bytes cannot be read one by one", p->file, p->bytes);
            if (f < 0)
                return f;
            r->part_file[t][k] = f;
            bytes += p->bytes;
        }
        if (t && bytes != r->row_bytes)
            return cfg_error_set(err, EINVAL, "%s: tables with rows of %zu and %zu bytes", r->p.folder, r->row_bytes,
                                 bytes);
        r->row_bytes = bytes;
    }
    return 0;
}

static int make_memory(struct kv_rows *r, struct cfg_error *err)
{
    int64_t slots = r->p.cache_bytes / (int64_t)r->row_bytes;
    r->n_slots = slots < 1 ? 1 : slots > 1 << 30 ? 1 << 30 : (int32_t)slots;
    uint32_t buckets = 64;
    while (buckets < 2 * (uint32_t)r->n_slots)
        buckets *= 2;
    r->mask = buckets - 1;
    r->cache_len = (size_t)r->n_slots * r->row_bytes;
    r->cache = kv_memory_new(r->cache_len);
    r->slot = calloc((size_t)r->n_slots, sizeof *r->slot);
    r->table = malloc((size_t)buckets * sizeof *r->table);
    r->read = calloc(READS, sizeof *r->read);
    r->pages = aligned_alloc(KV_PAGE, (size_t)READS * SPAN);
    if (!r->cache || !r->slot || !r->table || !r->read || !r->pages)
        return cfg_error_set(err, ENOMEM, "Engram rows: a cache of %zu bytes is not available; lower engram.cache",
                             r->cache_len);
    memset(r->table, 0xff, (size_t)buckets * sizeof *r->table); /* NONE */
    for (int i = 0; i < READS; i++) {
        r->read[i] = (struct page_read){.r = r, .bytes = r->pages + (size_t)i * SPAN, .next = r->free_read};
        r->free_read = &r->read[i];
    }
    r->n_free = READS;
    r->p.storage->ops->register_memory(r->p.storage, r->pages,
                                       (size_t)READS * SPAN); /* works without, a little slower */
    return 0;
}

int kv_rows_new(const struct kv_rows_params *params, struct kv_rows **out, struct cfg_error *err)
{
    struct kv_rows *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r)
        return cfg_error_set(err, ENOMEM, "Engram rows: out of memory");
    r->p = *params;
    r->now.end = &r->now.first;
    r->ahead.end = &r->ahead.first;
    int e = open_tables(r, err);
    e = e ? e : make_memory(r, err);
    if (e) {
        kv_rows_free(r);
        return e;
    }
    *out = r;
    return 0;
}
