/* Drops of the shared tier: files that name blocks of segments that are not to be found any more. A segment never
 * changes, so this is how a drop outlives its process and reaches the others. One file per batch; writing one counts as
 * a removal, and those are limited in rate. A file goes when none of its segments is left. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "kvtiers/bytes.h"
#include "kvtiers/shared_impl.h"

enum {
    VERSION = 1,
    HEAD = 64,
    PAGE_SUM = KV_PAGE - 8,
    ENTRY = 8 + KV_KEY_BYTES,
    PER_PAGE = (PAGE_SUM - HEAD) / ENTRY,
    PAGES_MAX = 4096
};

static const char magic[8] = "WEFTKVSD";

/* ---- what is dropped ---- */

static struct shared_drop *drop_find(const struct shared *t, const char *name)
{
    struct shared_link *l = shared_name_find(t, SHARED_DROPS, name);
    return l ? SHARED_OF(l, struct shared_drop, by_name) : NULL;
}

static struct shared_drop *drop_new(struct shared *t, const char *name)
{
    struct shared_drop *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    char node[SHARED_NODE];
    uint64_t epoch;
    snprintf(d->name, sizeof d->name, "%s", name);
    d->own = shared_name_parse(name, "drop", node, &epoch) && !strcmp(node, t->node);
    d->since_s = shared_wall(t);
    d->next = t->drops;
    t->drops = d;
    shared_name_add(t, SHARED_DROPS, &d->by_name, d->name);
    return d;
}

void shared_drop_see(struct shared *t, const char *name)
{
    struct shared_drop *d = drop_find(t, name);
    if (!d && (d = drop_new(t, name))) {
        t->drops_at = 0;
        t->n_new_drops++;
    }
    if (d)
        d->seen = t->listings;
}

static uint64_t pair_hash(uint64_t segment, const struct kv_key *key)
{
    return kv_get_uint(key->b, 8) ^ segment * UINT64_C(0x9e3779b97f4a7c15);
}

/* From now on what the file names is found by nobody here. */
static void publish(struct shared *t, struct shared_drop *d)
{
    d->state = DROP_READY;
    for (int i = 0; i < d->n; i++) {
        const struct shared_drop_pair *p = &d->pair[i];
        shared_table_add(&t->dropped, &d->pair[i].by_block, pair_hash(p->segment, &p->key));
        for (struct shared_entry *e = shared_entry_of(t, &p->key, NULL), *next; e; e = next) {
            next = shared_entry_of(t, &p->key, e);
            if (e->segment->id != p->segment)
                continue;
            e->segment->dropped++;
            shared_unlist(t, e);
        }
    }
}

static void drop_free(struct shared *t, struct shared_drop *d)
{
    for (int i = 0; i < d->n && d->state == DROP_READY; i++)
        shared_table_remove(&t->dropped, &d->pair[i].by_block);
    shared_table_remove(&t->names[SHARED_DROPS], &d->by_name);
    t->n_new_drops -= d->state == DROP_NEW;
    free(d->pair);
    free(d);
}

void shared_drops_forget(struct shared *t)
{
    for (struct shared_drop **at = &t->drops; *at;) {
        struct shared_drop *d = *at;
        if (d->seen == t->listings || d == t->drop_loading || d->fresh) {
            d->fresh = false; /* the listing may have begun before it was there */
            at = &d->next;
            continue;
        }
        *at = d->next;
        drop_free(t, d);
    }
}

void shared_drops_free(struct shared *t)
{
    while (t->drops) {
        struct shared_drop *d = t->drops;
        t->drops = d->next;
        drop_free(t, d);
    }
    free(t->drop_bytes);
    free(t->drop_pair);
}

bool shared_drops_pending(const struct shared *t)
{
    return t->n_new_drops > 0;
}

bool shared_dropped(const struct shared *t, uint64_t segment, const struct kv_key *key)
{
    struct shared_link *l = shared_table_first(&t->dropped, pair_hash(segment, key));
    for (; l; l = shared_table_next(l)) {
        const struct shared_drop_pair *p = SHARED_OF(l, struct shared_drop_pair, by_block);
        if (p->segment == segment && !memcmp(&p->key, key, sizeof *key))
            return true;
    }
    return false;
}

/* Whether a segment is there that the file may name. */
static bool wanted(const struct shared *t, const struct shared_drop *d)
{
    if (d->state == DROP_BAD && d->foreign)
        return t->stats.unusable[KV_OTHER_LAYOUT].files > 0;
    if (d->state == DROP_BAD) /* maybe only here: what it names is gone, too, after so long */
        return !d->own && (!t->p.ttl_s || shared_wall(t) - d->since_s <= 2 * t->p.ttl_s);
    for (int i = 0; i < d->n; i++)
        if (shared_table_first(&t->ids, d->pair[i].segment))
            return true;
    return d->state != DROP_READY;
}

/* A file that has done its work: all segments in the folder are known, and for long none of its own was among them (a
 * folder may show its names late). */
const char *shared_drop_done(struct shared *t)
{
    int64_t now = shared_now(t);
    for (struct shared_drop *d = t->drops; d && !t->n_new && !t->n_unread; d = d->next) {
        bool is = d->fresh || d->removing || wanted(t, d);
        d->done_at = is ? 0 : d->done_at ? d->done_at : now;
        if (!is && now - d->done_at >= t->p.orphan_ns) {
            d->removing = true;
            return d->name;
        }
    }
    return NULL;
}

/* ---- reading a file ---- */

/* A drop that cannot be read now holds up the segments that are not known yet: they may have what it names. Not for
 * ever, but it is tried again all the same. */
static void load_end(struct shared *t)
{
    struct shared_drop *d = t->drop_loading;
    int64_t result = t->drop_result;
    t->drop_loading = NULL;
    free(t->drop_bytes);
    t->drop_bytes = NULL;
    t->stats.errors += result < 0 && result != -ENOENT && result != -EBADMSG;
    bool was_new = d->state == DROP_NEW;
    if (result >= 0) {
        publish(t, d);
    } else if (d->foreign || (result == -EBADMSG && d->tries + 1 >= SHARED_TRIES)) {
        d->state = DROP_BAD;
    } else {
        d->try_at = shared_later(t, ++d->tries);
        t->drops_at = d->try_at < t->drops_at ? d->try_at : t->drops_at;
        if (result == -ENOENT || result == -EBADMSG || d->tries >= SHARED_TRIES)
            d->state = DROP_LATE;
    }
    t->n_new_drops -= was_new && d->state != DROP_NEW;
    shared_pump(t);
}

static void load_step(struct shared *t, struct kv_io io, void (*done)(struct kv_io *))
{
    t->drop_io = io;
    shared_submit(t, &t->drop_io, done);
}

static void on_load_closed(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    load_end(t);
}

static void load_close(struct shared *t, int64_t result)
{
    t->drop_result = result;
    load_step(t, (struct kv_io){.op = KV_IO_CLOSE, .file = t->drop_file}, on_load_closed);
}

static bool sealed(const uint8_t *p)
{
    return !memcmp(p, magic, 8) && kv_get_uint(p + PAGE_SUM, 8) == XXH3_64bits(p, PAGE_SUM);
}

/* Of another version or layout. */
static bool foreign(const struct shared *t, const uint8_t *p)
{
    return sealed(p) && (kv_get_uint(p + 8, 4) != VERSION || kv_get_uint(p + 24, 8) != t->layout_id);
}

static bool page_good(const struct shared *t, const uint8_t *p, uint64_t number, uint64_t pages)
{
    return sealed(p) && !foreign(t, p) && kv_get_uint(p + 12, 4) <= PER_PAGE && kv_get_uint(p + 16, 8) == number &&
           kv_get_uint(p + 32, 8) == pages;
}

/* 0, -EBADMSG, -ENOMEM. */
static int parse(struct shared *t, const uint8_t *bytes, uint64_t pages)
{
    struct shared_drop *d = t->drop_loading;
    d->foreign = foreign(t, bytes);
    for (uint64_t p = 0; p < pages; p++)
        if (!page_good(t, bytes + p * KV_PAGE, p, pages))
            return -EBADMSG;
    d->pair = calloc((size_t)pages * PER_PAGE, sizeof *d->pair);
    for (uint64_t p = 0; d->pair && p < pages; p++, bytes += KV_PAGE)
        for (uint64_t i = 0; i < kv_get_uint(bytes + 12, 4); i++) {
            const uint8_t *at = bytes + HEAD + i * ENTRY;
            d->pair[d->n].segment = kv_get_uint(at, 8);
            memcpy(&d->pair[d->n++].key, at + 8, KV_KEY_BYTES);
        }
    return d->pair ? 0 : -ENOMEM;
}

static void on_load_read(struct kv_io *io)
{
    struct shared *t = io->ctx;
    int64_t result = io->result < 0 ? io->result : io->result < (int64_t)io->len ? -EBADMSG : 0;
    t->in_flight--;
    load_close(t, result ? result : parse(t, t->drop_bytes, io->len / KV_PAGE));
}

static void on_load_size(struct kv_io *io)
{
    struct shared *t = io->ctx;
    int64_t size = io->result;
    t->in_flight--;
    bool fits = size >= KV_PAGE && size % KV_PAGE == 0 && size <= (int64_t)PAGES_MAX * KV_PAGE;
    t->drop_bytes = fits ? aligned_alloc(KV_PAGE, (size_t)size) : NULL;
    if (!t->drop_bytes) {
        load_close(t, size < 0 ? size : fits ? -ENOMEM : -EBADMSG);
        return;
    }
    load_step(t,
              (struct kv_io){.op = KV_IO_READ,
                             .file = t->drop_file,
                             .flags = t->p.direct ? KV_OPEN_DIRECT : 0,
                             .bytes = t->drop_bytes,
                             .len = (size_t)size},
              on_load_read);
}

static void on_load_opened(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    if (io->result < 0) {
        shared_files_fewer(t, io->result);
        t->drop_result = io->result;
        load_end(t);
        return;
    }
    t->drop_file = (int)io->result;
    load_step(t, (struct kv_io){.op = KV_IO_SIZE, .file = t->drop_file}, on_load_size);
}

/* ---- writing one ---- */

static bool pair_add(struct shared *t, uint64_t segment, const struct kv_key *key)
{
    if (t->n_drop_pairs == t->drop_pair_cap) {
        int cap = t->drop_pair_cap ? 2 * t->drop_pair_cap : 64;
        struct shared_drop_pair *p = realloc(t->drop_pair, (size_t)cap * sizeof *p);
        if (!p)
            return false;
        t->drop_pair = p;
        t->drop_pair_cap = cap;
    }
    t->drop_pair[t->n_drop_pairs++] = (struct shared_drop_pair){.segment = segment, .key = *key};
    return true;
}

/* From now on nobody finds the blocks here; those of the open segment will not be in it. */
static void take_op(struct shared *t, struct kv_tier_op *op)
{
    struct shared_entry *e;
    op->count = 0;
    op->status = 0;
    for (int i = 0; i < op->n; i++) {
        const struct kv_key *key = &op->block[i].key;
        bool any = shared_unwrite(t, key);
        for (; (e = shared_entry_of(t, key, NULL)); any = true) { /* also what cannot be read now */
            if (!pair_add(t, e->segment->id, key))
                op->status = -ENOMEM;
            e->segment->dropped++;
            shared_unlist(t, e);
        }
        op->count += any;
    }
    t->stats.dropped += (uint64_t)op->count;
}

static void write_end(struct shared *t, int status)
{
    struct kv_tier_op *ops = t->drop_batch;
    t->drop_batch = NULL;
    t->drop_writing = false;
    free(t->drop_bytes);
    t->drop_bytes = NULL;
    if (!status && !drop_find(t, t->drop_name)) { /* known without being read */
        struct shared_drop *d = drop_new(t, t->drop_name);
        if (d) {
            d->fresh = true;
            d->pair = t->drop_pair;
            d->n = t->n_drop_pairs;
            t->drop_pair = NULL;
            t->drop_pair_cap = 0;
            publish(t, d);
        }
    } else {
        t->stats.errors++;
        shared_say(t, true, "%s: a drop cannot be written: %s; until the next start only", t->p.folder,
                   strerror(-status));
    }
    t->n_drop_pairs = 0;
    while (ops) {
        struct kv_tier_op *op = ops;
        ops = op->next;
        kv_op_finish(op, op->count, status ? status : op->status);
    }
    shared_pump(t);
}

enum { W_OPEN, W_WRITE, W_SYNC, W_CLOSE, W_RENAME, W_FOLDER, W_FOLDER_SYNC, W_FOLDER_CLOSE };

static void on_failed_closed(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    write_end(t, t->drop_status);
}

/* What is left of the file has the name of an orphan. */
static void write_failed(struct shared *t, int status)
{
    t->drop_status = status;
    if (t->drop_phase == W_WRITE || t->drop_phase == W_SYNC || t->drop_phase == W_FOLDER_SYNC)
        load_step(t, (struct kv_io){.op = KV_IO_CLOSE, .file = t->drop_file}, on_failed_closed);
    else
        write_end(t, status);
}

static void on_write_step(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    bool whole = io->op != KV_IO_WRITE || io->result == (int64_t)io->len;
    if (io->result < 0 || !whole) {
        shared_files_fewer(t, io->result);
        write_failed(t, io->result < 0 ? (int)io->result : -ENOSPC);
        return;
    }
    struct kv_io next = {.op = KV_IO_WRITE};
    switch (t->drop_phase++) {
    case W_OPEN:
        t->drop_file = (int)io->result;
        next = (struct kv_io){.op = KV_IO_WRITE,
                              .file = t->drop_file,
                              .flags = t->p.direct ? KV_OPEN_DIRECT : 0,
                              .bytes = t->drop_bytes,
                              .len = t->drop_len};
        break;
    case W_WRITE:
        next = (struct kv_io){.op = KV_IO_SYNC, .file = t->drop_file};
        break;
    case W_SYNC:
        next = (struct kv_io){.op = KV_IO_CLOSE, .file = t->drop_file};
        break;
    case W_CLOSE:
        next = (struct kv_io){.op = KV_IO_RENAME, .path = t->drop_open_name, .path2 = t->drop_name};
        break;
    case W_RENAME:
        next = (struct kv_io){.op = KV_IO_OPEN, .path = "", .flags = KV_OPEN_FOLDER};
        break;
    case W_FOLDER:
        t->drop_file = (int)io->result;
        next = (struct kv_io){.op = KV_IO_SYNC, .file = t->drop_file, .flags = KV_OPEN_FOLDER};
        break;
    case W_FOLDER_SYNC:
        next = (struct kv_io){.op = KV_IO_CLOSE, .file = t->drop_file};
        break;
    default:
        write_end(t, 0);
        return;
    }
    load_step(t, next, on_write_step);
}

static bool make_pages(struct shared *t)
{
    uint64_t pages = (uint64_t)((t->n_drop_pairs + PER_PAGE - 1) / PER_PAGE);
    t->drop_len = (size_t)pages * KV_PAGE;
    t->drop_bytes = aligned_alloc(KV_PAGE, t->drop_len);
    if (!t->drop_bytes)
        return false;
    memset(t->drop_bytes, 0, t->drop_len);
    for (uint64_t p = 0; p < pages; p++) {
        uint8_t *page = t->drop_bytes + p * KV_PAGE;
        int first = (int)p * PER_PAGE, n = t->n_drop_pairs - first < PER_PAGE ? t->n_drop_pairs - first : (int)PER_PAGE;
        memcpy(page, magic, 8);
        kv_put_uint(page + 8, VERSION, 4);
        kv_put_uint(page + 12, (uint64_t)n, 4);
        kv_put_uint(page + 16, p, 8);
        kv_put_uint(page + 24, t->layout_id, 8);
        kv_put_uint(page + 32, pages, 8);
        for (int i = 0; i < n; i++) {
            kv_put_uint(page + HEAD + i * ENTRY, t->drop_pair[first + i].segment, 8);
            memcpy(page + HEAD + i * ENTRY + 8, &t->drop_pair[first + i].key, KV_KEY_BYTES);
        }
        kv_put_uint(page + PAGE_SUM, XXH3_64bits(page, PAGE_SUM), 8);
    }
    return true;
}

/* Everything that waits goes into one file. */
static void write_begin(struct shared *t)
{
    t->drop_writing = true;
    while (t->drop_ops && t->n_drop_pairs < PAGES_MAX * PER_PAGE / 2) {
        struct kv_tier_op *op = t->drop_ops;
        t->drop_ops = op->next;
        take_op(t, op);
        op->next = t->drop_batch;
        t->drop_batch = op;
    }
    if (!t->drop_ops)
        t->drop_ops_end = &t->drop_ops;
    if (!t->n_drop_pairs) { /* nothing of it was ever sealed */
        struct kv_tier_op *ops = t->drop_batch;
        t->drop_batch = NULL;
        t->drop_writing = false;
        while (ops) {
            struct kv_tier_op *op = ops;
            ops = op->next;
            kv_op_finish(op, op->count, op->status);
        }
        return;
    }
    if (!make_pages(t)) {
        write_end(t, -ENOMEM);
        return;
    }
    uint32_t number = t->sequence++;
    snprintf(t->drop_open_name, SHARED_NAME, "open-%s-%016llx-%08x", t->node, (unsigned long long)t->epoch, number);
    snprintf(t->drop_name, SHARED_NAME, "drop-%s-%016llx-%08x", t->node, (unsigned long long)t->epoch, number);
    t->removals -= 1;
    t->drop_phase = W_OPEN;
    load_step(t,
              (struct kv_io){.op = KV_IO_OPEN,
                             .path = t->drop_open_name,
                             .flags = KV_OPEN_WRITE | KV_OPEN_CREATE | KV_OPEN_EXCL |
                                      (t->p.direct ? (unsigned)KV_OPEN_DIRECT : 0)},
              on_write_step);
}

/* All that is in the folder is known, and no segment of this process is between its end and its name: then a drop
 * misses nothing. */
static bool view_complete(const struct shared *t)
{
    return t->listed_at && !t->listing && !t->loading && t->writer != WRITER_SEALING && !shared_drops_pending(t) &&
           !t->n_new;
}

/* A file that can be read now; NULL: none. */
static struct shared_drop *next_unread(struct shared *t)
{
    int64_t now = shared_now(t), soonest = INT64_MAX;
    if (now < t->drops_at)
        return NULL;
    for (struct shared_drop *d = t->drops; d; d = d->next) {
        if (d->state == DROP_READY || d->state == DROP_BAD)
            continue;
        if (now >= d->try_at)
            return d;
        soonest = d->try_at < soonest ? d->try_at : soonest;
    }
    t->drops_at = soonest;
    return NULL;
}

void shared_drop_turn(struct shared *t)
{
    if (t->drop_writing || t->drop_loading || t->ending)
        return;
    struct shared_drop *d = next_unread(t);
    if (d) {
        t->drop_loading = d;
        load_step(
            t, (struct kv_io){.op = KV_IO_OPEN, .path = d->name, .flags = t->p.direct ? (unsigned)KV_OPEN_DIRECT : 0},
            on_load_opened);
        return;
    }
    if (t->drop_ops && t->removals >= 1 && view_complete(t))
        write_begin(t);
}

void shared_drop_ask(struct shared *t, struct kv_tier_op *op)
{
    op->next = NULL;
    *t->drop_ops_end = op;
    t->drop_ops_end = &op->next;
}
