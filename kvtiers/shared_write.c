#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "kvtiers/bytes.h"
#include "kvtiers/shared_impl.h"

#define NS_PER_S INT64_C(1000000000)

static const char page_magic[8] = "WEFTKVSI", trailer_magic[8] = "WEFTKVSE";

enum { VERSION = 1, PAGE_SUM = KV_PAGE - 8 };

static void seal_page(uint8_t *page, uint64_t id)
{
    kv_put_uint(page + PAGE_SUM, XXH3_64bits_withSeed(page, PAGE_SUM, id), 8);
}

static bool sealed(const uint8_t *page, const char magic[8], uint64_t id)
{
    return !memcmp(page, magic, 8) && kv_get_uint(page + PAGE_SUM, 8) == XXH3_64bits_withSeed(page, PAGE_SUM, id);
}

/* ---- the pages at the end ---- */

static size_t disk_entry(const struct shared *t)
{
    return SHARED_ENTRY + 8 * (size_t)t->p.layout.n_sources;
}

int shared_footer_entries(const struct shared *t)
{
    return (int)((PAGE_SUM - SHARED_HEAD) / disk_entry(t));
}

static void entry_write(const struct shared *t, const struct shared_entry *e, uint8_t *at)
{
    memcpy(at, e->key.b, KV_KEY_BYTES);
    kv_put_uint(at + 32, (uint64_t)e->info.taint, 4);
    kv_put_uint(at + 36, (uint64_t)(uint32_t)e->info.hit, 4);
    kv_put_uint(at + 40, e->offset, 8);
    kv_put_uint(at + 48, e->run_len, 4);
    kv_put_uint(at + 52, e->run_at, 4);
    kv_put_uint(at + 56, (uint64_t)e->stored_s, 8);
    for (int k = 0; k < t->p.layout.n_sources; k++)
        kv_put_uint(at + SHARED_ENTRY + 8 * k, e->sum[k], 8);
}

static bool entry_read(const struct shared *t, const uint8_t *at, uint64_t end, struct shared_entry *e)
{
    const struct kv_layout *l = &t->p.layout;
    memcpy(e->key.b, at, KV_KEY_BYTES);
    uint64_t taint = kv_get_uint(at + 32, 4);
    e->info = (struct kv_block_info){(enum kv_taint)taint, (int32_t)kv_get_uint(at + 36, 4)};
    e->offset = kv_get_uint(at + 40, 8);
    e->run_len = (uint32_t)kv_get_uint(at + 48, 4);
    e->run_at = (uint32_t)kv_get_uint(at + 52, 4);
    e->stored_s = (int64_t)kv_get_uint(at + 56, 8);
    for (int k = 0; k < l->n_sources; k++)
        e->sum[k] = kv_get_uint(at + SHARED_ENTRY + 8 * k, 8);
    return taint <= KV_TAINTED && e->run_len >= 1 && e->run_len <= SHARED_RUN_MAX && e->run_at < e->run_len &&
           e->offset % KV_PAGE == 0 && e->offset <= end && e->run_len * l->block_bytes <= end - e->offset;
}

bool shared_trailer_read(const struct shared *t, const uint8_t *page, uint64_t size, uint64_t *id, uint64_t *offset,
                         uint64_t *pages)
{
    *id = kv_get_uint(page + 16, 8);
    *offset = kv_get_uint(page + 32, 8);
    *pages = kv_get_uint(page + 40, 8);
    return sealed(page, trailer_magic, *id) && kv_get_uint(page + 8, 4) == VERSION &&
           kv_get_uint(page + 24, 8) == t->layout_id && *offset % KV_PAGE == 0 && *pages >= 1 && *pages <= 1 << 16 &&
           *offset <= size && *offset + (*pages + 1) * KV_PAGE == size;
}

bool shared_trailer_foreign(const struct shared *t, const uint8_t *pages, int64_t *newest)
{
    const uint8_t *last = pages + KV_PAGE;
    uint64_t id = kv_get_uint(last + 16, 8), version = kv_get_uint(last + 8, 4);
    if (!sealed(last, trailer_magic, id) || (version == VERSION && kv_get_uint(last + 24, 8) == t->layout_id))
        return false;
    /* An entry begins alike in every layout. */
    bool known = version == VERSION && sealed(pages, page_magic, id) && kv_get_uint(pages + 8, 4);
    *newest = known ? (int64_t)kv_get_uint(pages + SHARED_HEAD + 56, 8) : 0;
    return true;
}

int shared_footer_read(const struct shared *t, const uint8_t *footer, uint64_t pages, uint64_t id, uint64_t end,
                       uint8_t **entries)
{
    int per = shared_footer_entries(t), n = 0;
    *entries = calloc((size_t)pages * (size_t)per, t->entry_bytes);
    for (uint64_t p = 0; *entries && p < pages; p++) {
        const uint8_t *page = footer + p * KV_PAGE;
        int here = (int)kv_get_uint(page + 8, 4);
        if (!sealed(page, page_magic, id) || kv_get_uint(page + 16, 8) != p || here > per) {
            free(*entries);
            *entries = NULL;
            return -EBADMSG;
        }
        for (int i = 0; i < here; i++)
            n += entry_read(t, page + SHARED_HEAD + (size_t)i * disk_entry(t), end, shared_entry_at(t, *entries, n));
    }
    return *entries ? n : -ENOMEM;
}

/* ---- the open segment ---- */

static void writer_none(struct shared *t)
{
    t->writer = WRITER_NONE;
    t->n_written = 0;
    t->offset = 0;
    t->write_status = 0;
    t->want_seal = false;
    free(t->seal_bytes);
    t->seal_bytes = NULL;
}

static void stop_storing(struct shared *t, int status, const char *what)
{
    if (!t->read_only)
        shared_say(t, true, "%s: %s: %s; the tier takes no blocks for %lld s", t->p.folder, what, strerror(-status),
                   (long long)(t->backoff / NS_PER_S));
    t->read_only = true;
    t->stats.errors++;
    t->retry_at = shared_now(t) + t->backoff;
    t->backoff = t->backoff * 2 < 300 * NS_PER_S ? t->backoff * 2 : 300 * NS_PER_S;
}

static void on_ended(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    writer_none(t);
    shared_pump(t);
}

static void on_closed_bad(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    t->seal_io = (struct kv_io){.op = KV_IO_UNLINK, .path = t->open_name};
    shared_submit(t, &t->seal_io, on_ended);
}

/* The segment will not be: whatever it had is a miss, and its file goes. status 0: it has nothing. */
static void give_up(struct shared *t, int status, const char *what)
{
    if (status) {
        t->failures++;
        stop_storing(t, status, what);
    }
    t->writer = WRITER_ENDING;
    t->seal_io = (struct kv_io){.op = KV_IO_CLOSE, .file = t->file};
    shared_submit(t, &t->seal_io, on_closed_bad);
}

/* Without room that is there before, the file grows as it is written. */
static void on_allocated(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    t->allocated = io->result >= 0;
    t->no_alloc = io->result < 0 && io->result != -ENOSPC;
    t->writer = WRITER_OPEN;
    shared_pump(t);
}

/* Direct writes that make a file longer go one after the other in most file systems, so the file is made as long as a
 * segment becomes, and cut when it is sealed. */
static void on_created(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    t->allocated = false;
    if (io->result < 0) {
        shared_files_fewer(t, io->result);
        if (io->result != -EEXIST) /* somebody has this name: the next number */
            stop_storing(t, (int)io->result, "a segment cannot be made");
        writer_none(t);
    } else if (t->p.direct && !t->no_alloc) {
        t->file = (int)io->result;
        t->seal_io = (struct kv_io){.op = KV_IO_ALLOC, .file = t->file, .len = (size_t)t->p.segment_bytes};
        shared_submit(t, &t->seal_io, on_allocated);
        return;
    } else {
        t->file = (int)io->result;
        t->writer = WRITER_OPEN;
    }
    shared_pump(t);
}

static void create(struct shared *t)
{
    uint8_t b[SHARED_NODE + 12];
    uint32_t number = t->sequence++;
    memset(b, 0, sizeof b);
    memcpy(b, t->node, strlen(t->node));
    kv_put_uint(b + SHARED_NODE, t->epoch, 8);
    kv_put_uint(b + SHARED_NODE + 8, number, 4);
    t->segment_id = XXH3_64bits(b, sizeof b);
    snprintf(t->open_name, sizeof t->open_name, "open-%s-%016llx-%08x", t->node, (unsigned long long)t->epoch, number);
    snprintf(t->seal_name, sizeof t->seal_name, "seg-%s-%016llx-%08x", t->node, (unsigned long long)t->epoch, number);
    t->writer = WRITER_CREATING;
    t->writer_since = shared_now(t);
    t->seal_io = (struct kv_io){.op = KV_IO_OPEN,
                                .path = t->open_name,
                                .flags = KV_OPEN_WRITE | KV_OPEN_CREATE | KV_OPEN_EXCL |
                                         (t->p.direct ? (unsigned)KV_OPEN_DIRECT : 0)};
    shared_submit(t, &t->seal_io, on_created);
}

/* ---- blocks ---- */

static bool in_open(const struct shared *t, const struct kv_key *key)
{
    for (int i = 0; i < t->n_written; i++)
        if (!memcmp(&shared_entry_at(t, t->written, i)->key, key, sizeof *key))
            return true;
    return false;
}

bool shared_unwrite(struct shared *t, const struct kv_key *key)
{
    int n = t->n_written;
    for (int i = 0; t->writer == WRITER_OPEN && i < t->n_written; i++)
        if (!memcmp(&shared_entry_at(t, t->written, i)->key, key, sizeof *key)) {
            uint8_t *at = t->written + (size_t)i-- * t->entry_bytes;
            memmove(at, at + t->entry_bytes, (size_t)(--t->n_written - i - 1) * t->entry_bytes);
        }
    return t->n_written < n;
}

static bool have(const struct shared *t, const struct kv_key *key)
{
    return shared_find(t, key) || in_open(t, key);
}

/* Blocks of a segment that is sealed and not yet listed are in no table: where nothing has failed since the op began,
 * all that it placed is here. */
static void op_written(struct shared *t, struct kv_tier_op *op)
{
    int n = op->settled == t->failures ? op->count : 0;
    for (int i = 0; i < op->n && op->settled != t->failures; i++)
        n += have(t, &op->block[i].key);
    t->stats.refused += (uint64_t)(op->n - n);
    kv_op_finish(op, n, n < op->n ? op->status : 0);
}

static void on_written(struct kv_io *io)
{
    struct shared_write *w = io->ctx;
    struct shared *t = w->t;
    struct kv_tier_op *op = w->op;
    int status = io->result < 0 ? (int)io->result : (size_t)io->result < io->len ? -ENOSPC : 0;
    *w->link = w->next;
    if (w->next)
        w->next->link = w->link;
    free(w);
    t->in_flight--;
    t->writes--;
    if (status && !t->write_status)
        t->write_status = status;
    if (status) {
        t->failures++;
        t->n_written = 0; /* none of the segment's blocks is promised to anybody any more */
        op->status = status;
    }
    if (--op->pending == 0)
        op_written(t, op);
    shared_pump(t);
}

static bool grow(struct shared *t, int n)
{
    if (t->n_written + n <= t->written_cap)
        return true;
    int cap = t->written_cap ? 2 * t->written_cap : 256;
    uint8_t *p = realloc(t->written, (size_t)cap * t->entry_bytes);
    if (!p)
        return false;
    t->written = p;
    t->written_cap = cap;
    return true;
}

static bool write_extent(struct shared *t, struct kv_tier_op *op, const struct kv_tier_block *b, int source,
                         uint64_t offset)
{
    const struct kv_layout *l = &t->p.layout;
    struct shared_write *w = malloc(sizeof *w);
    if (!w)
        return false;
    *w = (struct shared_write){.t = t, .op = op, .next = t->running, .link = &t->running};
    if (w->next)
        w->next->link = &w->next;
    t->running = w;
    w->io = (struct kv_io){.op = KV_IO_WRITE,
                           .file = t->file,
                           .flags = t->p.direct ? KV_OPEN_DIRECT : 0,
                           .bytes = b->bytes + l->offset[source],
                           .len = l->bytes[source],
                           .offset = offset,
                           .done = on_written,
                           .ctx = w};
    op->pending++;
    t->writes++;
    t->in_flight++;
    kv_io_start(t->p.storage, &w->io);
    return true;
}

/* The next blocks of op that nobody has yet, as one layer-major run. Returns how many blocks are dealt with. */
static int place_run(struct shared *t, struct kv_tier_op *op, int first)
{
    const struct kv_layout *l = &t->p.layout;
    int n = 0;
    if (have(t, &op->block[first].key))
        return 1;
    while (n < SHARED_RUN_MAX && first + n < op->n && !have(t, &op->block[first + n].key) &&
           t->offset + (uint64_t)(n + 1) * l->block_bytes <= (uint64_t)t->p.segment_bytes) {
        bool twice = false;
        for (int i = 0; i < n; i++)
            twice |= !memcmp(&op->block[first + i].key, &op->block[first + n].key, sizeof(struct kv_key));
        if (twice)
            break;
        n++;
    }
    if (!n || !grow(t, n))
        return 0;
    for (int i = 0; i < n; i++) {
        const struct kv_tier_block *b = &op->block[first + i];
        struct shared_entry *e = shared_entry_at(t, t->written, t->n_written++);
        memset(e, 0, t->entry_bytes);
        e->key = b->key;
        e->info = b->info;
        e->offset = t->offset;
        e->run_len = (uint32_t)n;
        e->run_at = (uint32_t)i;
        e->stored_s = shared_wall(t);
        for (int k = 0; k < l->n_sources; k++)
            e->sum[k] = kv_extent_sum(&b->key, k, t->segment_id, b->bytes + l->offset[k], l->bytes[k]);
        t->stats.stored++;
        t->stats.stored_bytes += l->block_bytes;
    }
    for (int k = 0; k < l->n_sources; k++)
        for (int i = 0; i < n; i++)
            if (!write_extent(t, op, &op->block[first + i], k,
                              t->offset + (uint64_t)n * l->offset[k] + (uint64_t)i * l->bytes[k]))
                t->write_status = -ENOMEM;
    t->offset += (uint64_t)n * l->block_bytes;
    return n;
}

static struct kv_tier_op *store_take(struct shared *t)
{
    struct kv_tier_op *op = t->stores;
    t->stores = op->next;
    if (!t->stores)
        t->stores_end = &t->stores;
    t->store_block = 0;
    return op;
}

/* Stores begin another run below so many writes: none while reads have not begun, but for stores that have waited for
 * long. */
static int writes_most(const struct shared *t)
{
    bool old = shared_now(t) - t->stores->began >= KV_AGE_NS;
    int idle = t->reads ? (int)SHARED_FEW_WRITES : (int)SHARED_WRITES;
    return t->ending ? INT32_MAX : !t->works ? idle : old ? (int)SHARED_OLD_WRITES : 0;
}

static void take_stores(struct shared *t)
{
    while (t->stores && t->writes < writes_most(t)) {
        struct kv_tier_op *op = t->stores;
        while (!t->read_only && t->writer == WRITER_OPEN && !t->want_seal && !t->write_status &&
               t->store_block < op->n && t->writes < writes_most(t)) {
            int n = place_run(t, op, t->store_block);
            t->want_seal |= !n; /* full */
            t->store_block += n;
            op->count += n;
        }
        if (t->store_block < op->n && !t->read_only && !t->ending) {
            if (t->writer == WRITER_NONE)
                create(t);
            return; /* goes on in the next segment */
        }
        store_take(t);
        op->status = t->read_only ? -EROFS : op->status;
        if (--op->pending == 0)
            op_written(t, op);
    }
}

/* ---- sealing ---- */

static void on_folder_closed(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    writer_none(t);
    t->backoff = NS_PER_S;
    t->listed_at = 0; /* look at once: this process finds its segment like everybody */
    shared_pump(t);
}

static void on_folder_synced(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    t->seal_io = (struct kv_io){.op = KV_IO_CLOSE, .file = t->folder_file};
    shared_submit(t, &t->seal_io, on_folder_closed);
}

static void on_folder_opened(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    if (io->result < 0) { /* the name may be lost with the machine; nothing else */
        t->in_flight++;
        on_folder_closed(io);
        return;
    }
    t->folder_file = (int)io->result;
    t->seal_io = (struct kv_io){.op = KV_IO_SYNC, .file = t->folder_file, .flags = KV_OPEN_FOLDER};
    shared_submit(t, &t->seal_io, on_folder_synced);
}

static void on_renamed(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    if (io->result < 0) {
        stop_storing(t, (int)io->result, "a segment cannot be named");
        t->failures++;
        writer_none(t);
        shared_pump(t);
        return;
    }
    t->list_again = t->listing;
    t->seal_io = (struct kv_io){.op = KV_IO_OPEN, .path = "", .flags = KV_OPEN_FOLDER};
    shared_submit(t, &t->seal_io, on_folder_opened);
}

static void on_closed(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    t->seal_io = (struct kv_io){.op = KV_IO_RENAME, .path = t->open_name, .path2 = t->seal_name};
    shared_submit(t, &t->seal_io, on_renamed);
}

static void on_synced(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    if (io->result < 0) {
        give_up(t, (int)io->result, "flushing failed");
        return;
    }
    t->seal_io = (struct kv_io){.op = KV_IO_CLOSE, .file = t->file};
    shared_submit(t, &t->seal_io, on_closed);
}

static void flush(struct shared *t)
{
    t->seal_io = (struct kv_io){.op = KV_IO_SYNC, .file = t->file};
    shared_submit(t, &t->seal_io, on_synced);
}

static void on_cut(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    if (io->result < 0)
        give_up(t, (int)io->result, "a segment cannot be cut");
    else
        flush(t);
}

static void on_footer(struct kv_io *io)
{
    struct shared *t = io->ctx;
    t->in_flight--;
    if (io->result < (int64_t)io->len) {
        give_up(t, io->result < 0 ? (int)io->result : -ENOSPC, "writing failed");
    } else if (t->allocated) { /* its end is where readers look for the trailer */
        t->seal_io = (struct kv_io){.op = KV_IO_CUT, .file = t->file, .offset = io->offset + io->len};
        shared_submit(t, &t->seal_io, on_cut);
    } else {
        flush(t);
    }
}

static void seal(struct shared *t)
{
    int per = shared_footer_entries(t);
    uint64_t pages = (uint64_t)((t->n_written + per - 1) / per);
    size_t len = (size_t)(pages + 1) * KV_PAGE;
    t->seal_bytes = aligned_alloc(KV_PAGE, len);
    if (!t->seal_bytes) {
        give_up(t, -ENOMEM, "sealing failed");
        return;
    }
    memset(t->seal_bytes, 0, len);
    for (uint64_t p = 0; p < pages; p++) {
        uint8_t *page = t->seal_bytes + p * KV_PAGE;
        int first = (int)p * per, n = t->n_written - first < per ? t->n_written - first : per;
        memcpy(page, page_magic, 8);
        kv_put_uint(page + 8, (uint64_t)n, 4);
        kv_put_uint(page + 16, p, 8);
        for (int i = 0; i < n; i++)
            entry_write(t, shared_entry_at(t, t->written, first + i), page + SHARED_HEAD + (size_t)i * disk_entry(t));
        seal_page(page, t->segment_id);
    }
    uint8_t *last = t->seal_bytes + pages * KV_PAGE;
    memcpy(last, trailer_magic, 8);
    kv_put_uint(last + 8, VERSION, 4);
    kv_put_uint(last + 16, t->segment_id, 8);
    kv_put_uint(last + 24, t->layout_id, 8);
    kv_put_uint(last + 32, t->offset, 8);
    kv_put_uint(last + 40, pages, 8);
    seal_page(last, t->segment_id);
    t->writer = WRITER_SEALING;
    t->seal_io = (struct kv_io){.op = KV_IO_WRITE,
                                .file = t->file,
                                .flags = t->p.direct ? KV_OPEN_DIRECT : 0,
                                .bytes = t->seal_bytes,
                                .len = len,
                                .offset = t->offset};
    shared_submit(t, &t->seal_io, on_footer);
}

void shared_write_turn(struct shared *t)
{
    if (t->read_only && shared_now(t) >= t->retry_at)
        t->read_only = false;
    take_stores(t);
    if (t->writer != WRITER_OPEN || t->writes)
        return;
    int64_t age = shared_now(t) - t->writer_since;
    bool due = t->want_seal || t->ending || age >= t->p.seal_ns;
    if (t->write_status)
        give_up(t, t->write_status, "writing failed");
    else if (t->n_written && due)
        seal(t);
    else if (t->want_seal && !t->offset)
        give_up(t, -ENOMEM, "there is no memory for the index of a segment");
    else if (t->ending || (due && (t->offset || age >= t->p.orphan_ns / 4)))
        give_up(t, 0, NULL); /* all of it was dropped, or nothing came; in time, or others take it for an orphan */
}
