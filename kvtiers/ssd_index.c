#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "kvtiers/bytes.h"
#include "kvtiers/ssd_impl.h"

enum {
    VERSION = 1,
    HEADER_PAGES = 2,
    PAGE_HEAD = 64,
    PAGE_SUM = KV_PAGE - 8,
    ENTRY_FIXED = 56,
    REBUILD_SLABS = 64,
    FILE_BYTES = 1 << 30,
    SLABS_MIN = 4, /* fewer would empty much of the tier with each that is filled again */
    SLABS_MAX = INT32_MAX / SSD_SLAB_MAX,
};

static const char header_magic[8] = "WEFTKVIX", slab_magic[8] = "WEFTKVSL";
static const char index_name[] = "weft-kv.index", new_name[] = "weft-kv.index.new", lock_name[] = "weft-kv.lock";

static void seal(uint8_t *page)
{
    kv_put_uint(page + PAGE_SUM, XXH3_64bits(page, PAGE_SUM), 8);
}

static bool sealed(const uint8_t *page, const char magic[8])
{
    return !memcmp(page, magic, 8) && kv_get_uint(page + PAGE_SUM, 8) == XXH3_64bits(page, PAGE_SUM);
}

/* ---- pages of slabs ---- */

static size_t entry_bytes(const struct kv_layout *l)
{
    return ENTRY_FIXED + 8 * (size_t)l->n_sources;
}

int ssd_page_entries(const struct kv_layout *l)
{
    return (int)((PAGE_SUM - PAGE_HEAD) / entry_bytes(l));
}

uint64_t ssd_page_offset(int slab, int copy)
{
    return (uint64_t)(HEADER_PAGES + 2 * slab + copy) * KV_PAGE;
}

void ssd_page_make(const struct ssd *t, int slab, uint8_t *page)
{
    const struct ssd_slab *s = &t->slab[slab];
    const struct kv_layout *l = &t->p.layout;
    uint8_t *at = page + PAGE_HEAD;
    int n = 0, used = 0;
    memset(page, 0, KV_PAGE);
    for (int i = 0; i < t->slab_blocks; i++) {
        int id = slab * t->slab_blocks + i;
        const struct ssd_entry *e = &t->entry[id];
        if (e->state != ENTRY_VISIBLE && e->state != ENTRY_COMMITTING)
            continue;
        memcpy(at, e->key.b, KV_KEY_BYTES);
        kv_put_uint(at + 32, (uint64_t)e->info.taint, 4);
        kv_put_uint(at + 36, (uint64_t)(uint32_t)e->info.hit, 4);
        kv_put_uint(at + 40, e->run_first, 2);
        kv_put_uint(at + 42, e->run_len, 2);
        kv_put_uint(at + 44, e->run_at, 2);
        kv_put_uint(at + 48, (uint64_t)e->stored_s, 8);
        for (int k = 0; k < l->n_sources; k++)
            kv_put_uint(at + ENTRY_FIXED + 8 * k, t->sum[(size_t)id * (size_t)l->n_sources + (size_t)k], 8);
        at += entry_bytes(l);
        n++;
        used = e->run_first + e->run_len > used ? e->run_first + e->run_len : used;
    }
    memcpy(page, slab_magic, 8);
    kv_put_uint(page + 8, (uint64_t)slab, 8);
    kv_put_uint(page + 16, s->sequence + 1, 8);
    kv_put_uint(page + 24, s->generation, 8);
    kv_put_uint(page + 32, t->layout_id, 8);
    kv_put_uint(page + 40, (uint64_t)n, 4);
    kv_put_uint(page + 44, (uint64_t)used, 4);
    seal(page);
}

/* The entry at a place of a page; false: no sense in it. */
static bool entry_read(const struct ssd *t, const uint8_t *at, struct ssd_entry *e)
{
    *e = (struct ssd_entry){.state = ENTRY_VISIBLE, .chain = SSD_NONE};
    memcpy(e->key.b, at, KV_KEY_BYTES);
    uint64_t taint = kv_get_uint(at + 32, 4);
    e->info.taint = (enum kv_taint)taint;
    e->info.hit = (int32_t)kv_get_uint(at + 36, 4);
    e->run_first = (uint16_t)kv_get_uint(at + 40, 2);
    e->run_len = (uint16_t)kv_get_uint(at + 42, 2);
    e->run_at = (uint16_t)kv_get_uint(at + 44, 2);
    e->stored_s = (int64_t)kv_get_uint(at + 48, 8);
    return taint <= KV_TAINTED && e->run_at < e->run_len && e->run_first + e->run_len <= t->slab_blocks;
}

static void take_entries(struct ssd *t, int slab, const uint8_t *page)
{
    const struct kv_layout *l = &t->p.layout;
    int n = (int)kv_get_uint(page + 40, 4), most = ssd_page_entries(l);
    const uint8_t *at = page + PAGE_HEAD;
    for (int i = 0; i < n && i < most; i++, at += entry_bytes(l)) {
        struct ssd_entry e;
        if (!entry_read(t, at, &e))
            continue;
        int id = slab * t->slab_blocks + e.run_first + e.run_at, old = ssd_find(t, &e.key);
        if (t->entry[id].state != ENTRY_EMPTY)
            continue;
        if (old != SSD_NONE) { /* both are good: the one that was dropped last may have come back */
            t->entry[id].state = ENTRY_DEAD;
            ssd_mark(t, slab); /* or it would be back when the other one has been dropped */
            continue;
        }
        t->entry[id] = e;
        for (int k = 0; k < l->n_sources; k++)
            t->sum[(size_t)id * (size_t)l->n_sources + (size_t)k] = kv_get_uint(at + ENTRY_FIXED + 8 * k, 8);
        ssd_table_add(t, id);
        struct ssd_slab *s = &t->slab[slab];
        s->first_s = s->visible && s->first_s < e.stored_s ? s->first_s : e.stored_s;
        s->visible++;
        t->stats.blocks++;
        t->stats.bytes += l->block_bytes;
    }
}

/* Which of the two copies holds, and what it says. */
static void take_slab(struct ssd *t, int slab, const uint8_t *pages)
{
    struct ssd_slab *s = &t->slab[slab];
    int best = -1;
    for (int c = 0; c < 2; c++) {
        const uint8_t *p = pages + (size_t)c * KV_PAGE;
        if (sealed(p, slab_magic) && kv_get_uint(p + 8, 8) == (uint64_t)slab &&
            kv_get_uint(p + 32, 8) == t->layout_id && (best < 0 || kv_get_uint(p + 16, 8) > s->sequence)) {
            best = c;
            s->sequence = kv_get_uint(p + 16, 8);
        }
    }
    s->state = SLAB_FREE;
    s->copy = best == 0 ? 0 : 1;
    s->generation = t->epoch << 32 | t->next_generation++;
    if (best >= 0) {
        const uint8_t *p = pages + (size_t)best * KV_PAGE;
        int used = (int)kv_get_uint(p + 44, 4);
        s->generation = kv_get_uint(p + 24, 8);
        s->used = (uint16_t)(used < t->slab_blocks ? used : t->slab_blocks);
        take_entries(t, slab, p);
        for (int i = 0; i < s->used; i++)
            if (t->entry[slab * t->slab_blocks + i].state == ENTRY_EMPTY)
                t->entry[slab * t->slab_blocks + i].state = ENTRY_DEAD;
        if (s->used)
            s->state = SLAB_FULL;
        if (s->used && s->used < t->slab_blocks && t->open_slab == SSD_NONE) { /* goes on where it was */
            s->state = SLAB_OPEN;
            t->open_slab = slab;
        }
    }
    s->worth = t->floor + 1;
    t->n_free += s->state == SLAB_FREE;
}

static void rebuild_done(struct kv_io *io)
{
    struct ssd *t = io->ctx;
    int n = t->n_slabs - t->rebuild_at < REBUILD_SLABS ? t->n_slabs - t->rebuild_at : (int)REBUILD_SLABS;
    t->in_flight--;
    t->rebuild_running = false;
    if (io->result < (int64_t)((size_t)n * 2 * KV_PAGE)) { /* an unreadable index holds nothing */
        size_t have = io->result > 0 ? (size_t)io->result : 0;
        t->stats.errors++;
        memset(t->rebuild_page + have, 0, (size_t)n * 2 * KV_PAGE - have);
    }
    for (int i = 0; i < n; i++)
        take_slab(t, t->rebuild_at + i, t->rebuild_page + (size_t)i * 2 * KV_PAGE);
    t->rebuild_at += n;
    if (t->rebuild_at == t->n_slabs) {
        free(t->rebuild_page);
        t->rebuild_page = NULL;
        ssd_say(t, false, "%s: index read, %llu blocks found", t->p.folder, (unsigned long long)t->stats.blocks);
    }
    ssd_pump(t);
}

void ssd_rebuild(struct ssd *t)
{
    if (t->rebuild_running || t->rebuild_at == t->n_slabs)
        return;
    if (!t->rebuild_page)
        t->rebuild_page = aligned_alloc(KV_PAGE, (size_t)REBUILD_SLABS * 2 * KV_PAGE);
    if (!t->rebuild_page)
        return; /* the next tick tries again */
    int n = t->n_slabs - t->rebuild_at < REBUILD_SLABS ? t->n_slabs - t->rebuild_at : (int)REBUILD_SLABS;
    t->rebuild_io = (struct kv_io){.op = KV_IO_READ,
                                   .file = t->index_file,
                                   .flags = t->p.direct ? KV_OPEN_DIRECT : 0,
                                   .bytes = t->rebuild_page,
                                   .len = (size_t)n * 2 * KV_PAGE,
                                   .offset = ssd_page_offset(t->rebuild_at, 0),
                                   .done = rebuild_done,
                                   .ctx = t};
    t->rebuild_running = true;
    t->in_flight++;
    kv_io_start(t->p.storage, &t->rebuild_io);
}

/* ---- opening ---- */

static int64_t run_io(struct ssd *t, struct kv_io io)
{
    return kv_io_run(t->p.storage, &io);
}

static int64_t open_file(struct ssd *t, const char *name, unsigned flags)
{
    return run_io(t, (struct kv_io){.op = KV_IO_OPEN, .path = name, .flags = flags});
}

static int64_t sync_folder(struct ssd *t)
{
    int64_t f = open_file(t, "", KV_OPEN_FOLDER);
    if (f < 0)
        return f;
    int64_t r = run_io(t, (struct kv_io){.op = KV_IO_SYNC, .file = (int)f, .flags = KV_OPEN_FOLDER});
    run_io(t, (struct kv_io){.op = KV_IO_CLOSE, .file = (int)f});
    return r;
}

static unsigned data_flags(const struct ssd *t)
{
    return KV_OPEN_WRITE | (t->p.direct ? (unsigned)KV_OPEN_DIRECT : 0);
}

static void header_make(const struct ssd *t, uint64_t sequence, uint8_t *page)
{
    memset(page, 0, KV_PAGE);
    memcpy(page, header_magic, 8);
    kv_put_uint(page + 8, VERSION, 4);
    kv_put_uint(page + 12, (uint64_t)t->slab_blocks, 4);
    kv_put_uint(page + 16, (uint64_t)t->n_slabs, 8);
    kv_put_uint(page + 24, t->layout_id, 8);
    kv_put_uint(page + 32, t->epoch, 8);
    kv_put_uint(page + 40, sequence, 8);
    kv_put_uint(page + 48, (uint64_t)t->file_slabs, 8);
    seal(page);
}

static int64_t header_write(struct ssd *t, int file, uint64_t sequence, uint8_t *page)
{
    header_make(t, sequence, page);
    int64_t r = run_io(t, (struct kv_io){.op = KV_IO_WRITE,
                                         .file = file,
                                         .flags = data_flags(t),
                                         .bytes = page,
                                         .len = KV_PAGE,
                                         .offset = (sequence & 1) * KV_PAGE});
    return r < 0 ? r : run_io(t, (struct kv_io){.op = KV_IO_SYNC, .file = file});
}

/* What a header says of how the files are divided. */
struct shape {
    uint64_t sequence; /* of the header; 0: none that is good */
    int slab_blocks, file_slabs, n_slabs;
};

/* How an index that begins empty divides the files. */
static struct shape shape_new(const struct ssd *t)
{
    int64_t blocks = t->p.bytes / (int64_t)t->p.layout.block_bytes, most = ssd_page_entries(&t->p.layout);
    const size_t file = t->p.file_bytes ? t->p.file_bytes : (size_t)FILE_BYTES;
    struct shape s = {0};
    most = most < SSD_SLAB_MAX ? most : (int64_t)SSD_SLAB_MAX;
    /* At least eight slabs, so that filling one and emptying another leaves most of the blocks in place. */
    int64_t per = blocks / 8 < most ? blocks / 8 : most;
    size_t slab = (size_t)per * t->p.layout.block_bytes;
    s.slab_blocks = (int)per;
    s.n_slabs = (int)(blocks / per < SLABS_MAX ? blocks / per : SLABS_MAX);
    s.file_slabs = file / slab ? (int)(file / slab) : 1;
    if ((s.n_slabs - 1) / s.file_slabs + 1 > SSD_FILES_MAX)
        s.file_slabs = (s.n_slabs - 1) / SSD_FILES_MAX + 1;
    return s;
}

/* Takes the newest good header of this layout among the two pages; else tells why there is none. */
static void header_read(struct ssd *t, const uint8_t *pages, struct shape *out, const char **why)
{
    const int most = ssd_page_entries(&t->p.layout);
    *out = (struct shape){0};
    *why = "its header is damaged";
    for (int c = 0; c < 2; c++) {
        const uint8_t *p = pages + (size_t)c * KV_PAGE;
        if (!sealed(p, header_magic))
            continue;
        if (kv_get_uint(p + 32, 8) >= t->epoch) /* also of a header that does not fit: never the same epoch twice */
            t->epoch = kv_get_uint(p + 32, 8) + 1;
        uint64_t blocks = kv_get_uint(p + 12, 4), slabs = kv_get_uint(p + 16, 8), per_file = kv_get_uint(p + 48, 8);
        bool ours = kv_get_uint(p + 8, 4) == VERSION && kv_get_uint(p + 24, 8) == t->layout_id,
             sane = blocks && blocks <= (uint64_t)most && blocks <= SSD_SLAB_MAX && slabs && slabs <= SLABS_MAX &&
                    per_file && per_file <= SLABS_MAX;
        if (!ours)
            *why = "it holds blocks of another layout";
        else if (sane && kv_get_uint(p + 40, 8) > out->sequence)
            *out = (struct shape){.sequence = kv_get_uint(p + 40, 8),
                                  .slab_blocks = (int)blocks,
                                  .n_slabs = (int)slabs,
                                  .file_slabs = (int)per_file};
    }
}

static uint64_t index_bytes(int slabs)
{
    return ssd_page_offset(slabs, 0);
}

/* Every page of a new index exists and is zero, so that later writes need no room; pages of slabs that are given up are
 * made so. */
static int64_t index_fill(struct ssd *t, int file, uint64_t from, uint64_t end)
{
    enum { CHUNK = 1 << 20 };
    uint8_t *zero = aligned_alloc(KV_PAGE, CHUNK);
    int64_t r = zero ? 0 : -ENOMEM;
    if (zero)
        memset(zero, 0, CHUNK);
    for (uint64_t at = from; r >= 0 && at < end; at += CHUNK)
        r = run_io(t, (struct kv_io){.op = KV_IO_WRITE,
                                     .file = file,
                                     .flags = data_flags(t),
                                     .bytes = zero,
                                     .len = end - at < CHUNK ? end - at : (size_t)CHUNK,
                                     .offset = at});
    free(zero);
    return r;
}

static int64_t index_create(struct ssd *t, uint8_t *page)
{
    int64_t f = open_file(t, new_name, data_flags(t) | KV_OPEN_CREATE);
    if (f < 0)
        return f;
    int64_t r = index_fill(t, (int)f, 0, index_bytes(t->n_slabs));
    if (r >= 0)
        r = header_write(t, (int)f, 1, page);
    run_io(t, (struct kv_io){.op = KV_IO_CLOSE, .file = (int)f});
    if (r >= 0)
        r = run_io(t, (struct kv_io){.op = KV_IO_RENAME, .path = new_name, .path2 = index_name});
    return r < 0 ? r : sync_folder(t);
}

static int fail(const struct ssd *t, struct cfg_error *err, int64_t r, const char *what)
{
    if (r == -EINVAL && t->p.direct)
        return cfg_error_set(err, EINVAL,
                             "%s: %s: no direct I/O (the file system has none, or this is no ordinary file); use "
                             "another one, or kv.ssd.direct = false",
                             t->p.folder, what);
    return cfg_error_set(err, (int)-r, "%s: %s: %s%s", t->p.folder, what, strerror((int)-r),
                         r == -ENOSPC ? "; lower kv.ssd.size or make room" : "");
}

/* Reads the header pages, one by one: a disk that fails on one of them may give the other. A page that cannot be read
 * or does not exist is zero. Returns the first error. */
static int64_t header_pages(struct ssd *t, uint8_t *pages)
{
    int64_t first = 0;
    memset(pages, 0, HEADER_PAGES * KV_PAGE);
    for (int c = 0; c < HEADER_PAGES; c++) {
        uint8_t *page = pages + (size_t)c * KV_PAGE;
        int64_t n = run_io(t, (struct kv_io){.op = KV_IO_READ,
                                             .file = t->index_file,
                                             .flags = data_flags(t),
                                             .bytes = page,
                                             .len = KV_PAGE,
                                             .offset = (uint64_t)c * KV_PAGE});
        if (n != KV_PAGE)
            memset(page, 0, KV_PAGE);
        first = n < 0 && !first ? n : first;
    }
    return first;
}

/* Opens the index if there is one and it can be used, which decides how the files are divided; *out has no sequence
 * otherwise. A tool, which looks, fails then; so does everyone when the disk cannot say what is there. */
static int find_index(struct ssd *t, uint8_t *pages, struct shape *out, struct cfg_error *err)
{
    const char *why = NULL;
    *out = (struct shape){0};
    int64_t r = open_file(t, index_name, data_flags(t));
    if (r == -ENOENT)
        return 0;
    if (r < 0)
        return fail(t, err, r, index_name);
    t->index_file = (int)r;
    r = header_pages(t, pages);
    header_read(t, pages, out, &why);
    if (out->sequence && !t->p.keep_room &&
        t->p.bytes / (int64_t)t->p.layout.block_bytes / out->slab_blocks < SLABS_MIN) {
        out->sequence = 0;
        why = "kv.ssd.size is now less than a few of the parts that it is divided into";
    }
    if (out->sequence)
        return 0;
    if (r < 0)
        return fail(t, err, r, index_name);
    if (t->p.keep_room)
        return cfg_error_set(err, EBADMSG,
                             "%s: the index is not read: %s; use the configuration of the server that wrote it",
                             t->p.folder, why);
    ssd_say(t, true, "%s: the index is not used: %s; the tier starts empty", t->p.folder, why);
    run_io(t, (struct kv_io){.op = KV_IO_CLOSE, .file = t->index_file});
    t->index_file = -1;
    return 0;
}

/* Makes a new index, or makes the one found this owner's. */
static int64_t take_index(struct ssd *t, uint64_t sequence, uint8_t *page)
{
    if (!sequence) {
        int64_t r = index_create(t, page);
        if (r >= 0)
            r = open_file(t, index_name, data_flags(t));
        t->index_file = (int)r;
        return r;
    }
    int64_t size = run_io(t, (struct kv_io){.op = KV_IO_SIZE, .file = t->index_file}), r = size;
    if (size >= 0 && (uint64_t)size < index_bytes(t->n_slabs))
        r = index_fill(t, t->index_file, (uint64_t)size / KV_PAGE * KV_PAGE, index_bytes(t->n_slabs));
    return r < 0 ? r : header_write(t, t->index_file, sequence + 1, page);
}

static void data_name(int file, char name[SSD_NAME])
{
    snprintf(name, SSD_NAME, "weft-kv.%03d", file);
}

static int slabs_of_file(const struct ssd *t, int file, int slabs)
{
    int64_t left = slabs - (int64_t)file * t->file_slabs;
    return left < 0 ? 0 : left < t->file_slabs || file == SSD_FILES_MAX - 1 ? (int)left : t->file_slabs;
}

/* Data files as far as the file system has room; the tier is smaller when it has not. */
static int open_data(struct ssd *t, struct cfg_error *err)
{
    int slabs = 0;
    t->n_files = 0;
    while (slabs < t->n_slabs) {
        char name[SSD_NAME];
        int n = slabs_of_file(t, t->n_files, t->n_slabs);
        size_t len = (size_t)n * t->slab_bytes;
        data_name(t->n_files, name);
        int64_t f = open_file(t, name, data_flags(t) | KV_OPEN_CREATE);
        if (f < 0)
            return fail(t, err, f, name);
        int64_t have = run_io(t, (struct kv_io){.op = KV_IO_SIZE, .file = (int)f}),
                space = run_io(t, (struct kv_io){.op = KV_IO_SPACE}), r = 0;
        if (have >= 0 && (uint64_t)have < len && !t->p.keep_room) {
            if (space >= 0 && space - (int64_t)(len - (size_t)have) < t->p.reserve)
                r = -ENOSPC;
            else
                r = run_io(t, (struct kv_io){.op = KV_IO_ALLOC, .file = (int)f, .offset = 0, .len = len});
            if (r == -EOPNOTSUPP) { /* the file grows as it is written */
                t->room.grows = true;
                t->room.left = space - t->p.reserve;
                r = 0;
            }
        }
        if (r < 0) {
            run_io(t, (struct kv_io){.op = KV_IO_CLOSE, .file = (int)f});
            if (slabs < 2)
                return fail(t, err, r, name);
            ssd_say(t, true, "%s: room for %d of %d slabs only (%s); kv.ssd.size is more than there is", t->p.folder,
                    slabs, t->n_slabs, strerror((int)-r));
            t->n_slabs = slabs;
            return 0;
        }
        t->data_file[t->n_files++] = (int)f;
        slabs += n;
    }
    return 0;
}

/* ---- a tier that has become smaller ---- */

/* Data files behind the last one; those before it end where they shall. */
static int64_t cut_data(struct ssd *t, int slabs)
{
    struct kv_io list = {.op = KV_IO_LIST, .path = ""};
    int64_t n = kv_io_run(t->p.storage, &list), r = n;
    int files = ssd_file_of(t, slabs - 1) + 1;
    for (int i = 0; i < t->n_files && r >= 0; i++) {
        uint64_t len = (uint64_t)slabs_of_file(t, i, slabs) * t->slab_bytes;
        r = run_io(t, (struct kv_io){.op = KV_IO_SIZE, .file = t->data_file[i]});
        if (r >= 0 && (uint64_t)r > len)
            r = run_io(t, (struct kv_io){.op = KV_IO_CUT, .file = t->data_file[i], .offset = len});
    }
    const char *name = list.names;
    for (int64_t k = 0; k < n && r >= 0; k++, name += strlen(name) + 1)
        for (int i = files; i < SSD_FILES_MAX; i++) {
            char ours[SSD_NAME];
            data_name(i, ours);
            if (!strcmp(name, ours))
                r = run_io(t, (struct kv_io){.op = KV_IO_UNLINK, .path = ours});
        }
    free(list.names);
    return r < 0 ? r : sync_folder(t);
}

/* Room behind the first `slabs`, which is more than the tier shall have, goes back to the file system: first no index
 * page names a block there, durably, then the bytes go, last the pages. Whatever is cut off in between happens again
 * with the next opening, or is not wanted any more when the tier has grown again by then. */
static int64_t give_back(struct ssd *t, int slabs)
{
    uint64_t end = index_bytes(slabs);
    int64_t size = run_io(t, (struct kv_io){.op = KV_IO_SIZE, .file = t->index_file}), r = size;
    const bool longer = size >= 0 && (uint64_t)size > end;
    if (longer)
        r = index_fill(t, t->index_file, end, ((uint64_t)size + KV_PAGE - 1) / KV_PAGE * KV_PAGE);
    if (longer && r >= 0)
        r = run_io(t, (struct kv_io){.op = KV_IO_SYNC, .file = t->index_file});
    if (r >= 0)
        r = cut_data(t, slabs);
    if (longer && r >= 0) {
        r = run_io(t, (struct kv_io){.op = KV_IO_CUT, .file = t->index_file, .offset = end});
        ssd_say(t, false, "%s: the tier has become smaller, by up to %llu blocks", t->p.folder,
                (unsigned long long)(((uint64_t)size - end) / (2 * KV_PAGE) * (uint64_t)t->slab_blocks));
    }
    return r;
}

/* Index, then data files as it divides them. */
static int open_all(struct ssd *t, uint8_t *pages, struct cfg_error *err)
{
    struct shape shape, fresh = shape_new(t);
    int e = find_index(t, pages, &shape, err);
    if (e)
        return e;
    const struct shape *use = shape.sequence ? &shape : &fresh;
    const int64_t slabs = t->p.bytes / (int64_t)t->p.layout.block_bytes / use->slab_blocks;
    t->slab_blocks = use->slab_blocks;
    t->slab_bytes = (size_t)use->slab_blocks * t->p.layout.block_bytes;
    t->file_slabs = use->file_slabs;
    /* A tool looks at what is there. */
    t->n_slabs = t->p.keep_room ? use->n_slabs : (int)(slabs < SLABS_MAX ? slabs : SLABS_MAX);
    const int wanted = t->n_slabs;
    if ((e = open_data(t, err)))
        return e;
    int64_t r = sync_folder(t);
    if (r < 0)
        return fail(t, err, r, "folder");
    if ((r = take_index(t, shape.sequence, pages)) < 0)
        return fail(t, err, r, index_name);
    if (!t->p.keep_room && (r = give_back(t, wanted)) < 0)
        ssd_say(t, true, "%s: room that the tier had cannot be given back: %s; the next start tries again", t->p.folder,
                strerror((int)-r));
    return 0;
}

/* A tool makes nothing where nothing is. */
static int none_yet(struct ssd *t, struct cfg_error *err)
{
    int64_t r = open_file(t, index_name, data_flags(t));
    if (r >= 0)
        r = run_io(t, (struct kv_io){.op = KV_IO_CLOSE, .file = (int)r});
    return r == -ENOENT ? cfg_error_set(err, ENOENT, "%s: no server has kept blocks here yet", t->p.folder)
           : r < 0      ? fail(t, err, r, index_name)
                        : 0;
}

int ssd_open_files(struct ssd *t, struct cfg_error *err)
{
    const struct kv_layout *l = &t->p.layout;
    int e = 0;
    if (t->p.bytes / (int64_t)l->block_bytes < 8)
        return cfg_error_set(err, EINVAL, "%s: ssd tier of %lld bytes: give room for at least 8 blocks of %zu bytes",
                             t->p.folder, (long long)t->p.bytes, l->block_bytes);
    t->layout_id = kv_layout_id(l);
    t->epoch = (uint64_t)t->p.clock.wall(t->p.clock.ctx) & UINT32_MAX;
    if (t->p.keep_room && (e = none_yet(t, err)))
        return e;
    int64_t r = open_file(t, lock_name, KV_OPEN_WRITE | KV_OPEN_CREATE | KV_OPEN_LOCK);
    if (r == -EWOULDBLOCK)
        return cfg_error_set(err, EWOULDBLOCK,
                             "%s: another process keeps its blocks here; give each its own kv.ssd.path", t->p.folder);
    if (r < 0)
        return fail(t, err, r, lock_name);
    t->lock_file = (int)r;
    uint8_t *pages = aligned_alloc(KV_PAGE, HEADER_PAGES * KV_PAGE);
    if (!pages)
        return cfg_error_set(err, ENOMEM, "ssd tier: out of memory");
    e = open_all(t, pages, err);
    free(pages);
    return e;
}
