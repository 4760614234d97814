#include "kvtiers/storage_sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SECTOR = 512, FILES_MAX = 4096, NAME_BYTES = 128, FAULTS_MAX = 16, HANDLES_MAX = 1024 };

/* After a failed flush a sector counts as clean, and no later flush makes it safe before it is written again. */
enum sector { CLEAN, DIRTY, FORGOTTEN };

/* The content of a file; names point to it. */
struct inode {
    uint8_t *now, *safe; /* what a read returns; what is sure to survive, [cap] both */
    uint8_t *dirty;      /* [cap / SECTOR] enum sector */
    size_t size, safe_size, cap;
    bool folder;
    int lock; /* handle that has it, -1 */
};

struct name {
    char text[NAME_BYTES]; /* "": unused */
    int inode;
};

/* One change of names since the last flush of a folder. */
struct change {
    struct name set, cleared;
};

struct fault {
    bool used;
    enum kv_io_op op;
    char name[NAME_BYTES];
    int skip, times;
    int64_t result;
    bool hold;
};

struct kv_disk {
    uint64_t random;
    struct inode *inode[FILES_MAX];
    struct name name[FILES_MAX], safe_name[FILES_MAX];
    struct change *change;
    int n_changes, change_cap;
    int handle[HANDLES_MAX]; /* inode, -1: closed */
    char handle_name[HANDLES_MAX][NAME_BYTES];
    struct fault fault[FAULTS_MAX];
    int64_t points, stop_at, room;
    bool stopped;
    unsigned boots;
    struct sim *first;
};

struct sim {
    struct kv_storage base;
    struct kv_disk *d;
    struct sim *next;
    unsigned boot;
    struct kv_io *queue; /* submitted, not completed */
    struct kv_storage_stats stats;
};

static uint64_t draw(struct kv_disk *d)
{
    d->random ^= d->random << 13;
    d->random ^= d->random >> 7;
    d->random ^= d->random << 17;
    return d->random * UINT64_C(0x2545f4914f6cdd1d) >> 16;
}

struct kv_disk *kv_disk_new(uint64_t seed)
{
    struct kv_disk *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    d->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    d->stop_at = -1;
    d->room = -1;
    for (int i = 0; i < HANDLES_MAX; i++)
        d->handle[i] = -1;
    return d;
}

static void inode_free(struct inode *f)
{
    if (!f)
        return;
    free(f->now);
    free(f->safe);
    free(f->dirty);
    free(f);
}

void kv_disk_free(struct kv_disk *d)
{
    if (!d)
        return;
    for (int i = 0; i < FILES_MAX; i++)
        inode_free(d->inode[i]);
    free(d->change);
    free(d);
}

void kv_disk_stop_after(struct kv_disk *d, int64_t n)
{
    d->stop_at = n < 0 ? -1 : d->points + n;
}

bool kv_disk_stopped(const struct kv_disk *d)
{
    return d->stopped;
}

int64_t kv_disk_points(const struct kv_disk *d)
{
    return d->points;
}

static struct fault *fault_slot(struct kv_disk *d, enum kv_io_op op, const char *name, bool hold)
{
    struct fault *f = NULL;
    for (int i = 0; i < FAULTS_MAX && !f; i++)
        if (!d->fault[i].used)
            f = &d->fault[i];
    if (!f)
        abort(); /* a defect of the test */
    *f = (struct fault){.used = true, .op = op, .hold = hold};
    strncpy(f->name, name ? name : "", sizeof f->name - 1);
    return f;
}

void kv_disk_fail(struct kv_disk *d, enum kv_io_op op, const char *name, int skip, int times, int64_t result)
{
    struct fault *f = fault_slot(d, op, name, false);
    f->skip = skip;
    f->times = times;
    f->result = result;
}

void kv_disk_hold(struct kv_disk *d, enum kv_io_op op, const char *name, bool hold)
{
    if (hold) {
        fault_slot(d, op, name, true);
        return;
    }
    for (int i = 0; i < FAULTS_MAX; i++)
        if (d->fault[i].used && d->fault[i].hold && d->fault[i].op == op && !strcmp(d->fault[i].name, name ? name : ""))
            d->fault[i].used = false;
}

void kv_disk_room(struct kv_disk *d, int64_t bytes)
{
    d->room = bytes;
}

/* ---- names and contents ---- */

static struct name *find(struct name *list, const char *text)
{
    for (int i = 0; i < FILES_MAX; i++)
        if (list[i].text[0] && !strcmp(list[i].text, text))
            return &list[i];
    return NULL;
}

static struct inode *content(const struct kv_disk *d, const char *name)
{
    struct name *n = find((struct name *)d->name, name);
    return n ? d->inode[n->inode] : NULL;
}

static void list_set(struct name *list, const char *text, int inode)
{
    struct name *n = find(list, text);
    for (int i = 0; i < FILES_MAX && !n; i++)
        if (!list[i].text[0])
            n = &list[i];
    if (!n)
        abort();
    strncpy(n->text, text, NAME_BYTES - 1);
    n->inode = inode;
}

static void apply_change(struct name *list, const struct change *c)
{
    struct name *gone = c->cleared.text[0] ? find(list, c->cleared.text) : NULL;
    if (gone)
        gone->text[0] = 0;
    if (c->set.text[0])
        list_set(list, c->set.text, c->set.inode);
}

static void note_change(struct kv_disk *d, const char *set, int inode, const char *cleared)
{
    if (d->n_changes == d->change_cap) {
        int cap = d->change_cap ? 2 * d->change_cap : 64;
        struct change *p = realloc(d->change, (size_t)cap * sizeof *p);
        if (!p)
            abort();
        d->change = p;
        d->change_cap = cap;
    }
    struct change *c = &d->change[d->n_changes++];
    memset(c, 0, sizeof *c);
    strncpy(c->set.text, set ? set : "", NAME_BYTES - 1);
    c->set.inode = inode;
    strncpy(c->cleared.text, cleared ? cleared : "", NAME_BYTES - 1);
    apply_change(d->name, c);
}

static int inode_new(struct kv_disk *d, bool folder)
{
    for (int i = 0; i < FILES_MAX; i++)
        if (!d->inode[i]) {
            d->inode[i] = calloc(1, sizeof *d->inode[i]);
            if (!d->inode[i])
                abort();
            d->inode[i]->folder = folder;
            d->inode[i]->lock = -1;
            return i;
        }
    return -1;
}

static bool grow(struct kv_disk *d, struct inode *f, size_t size)
{
    if (size <= f->size)
        return true;
    if (d->room >= 0 && (int64_t)(size - f->size) > d->room)
        return false;
    if (d->room >= 0)
        d->room -= (int64_t)(size - f->size);
    if (size > f->cap) {
        size_t cap = (size * 3 / 2 + 65535) / 65536 * 65536;
        uint8_t *now = realloc(f->now, cap), *safe = realloc(f->safe, cap), *dirty = realloc(f->dirty, cap / SECTOR);
        if (!now || !safe || !dirty)
            abort();
        memset(now + f->cap, 0, cap - f->cap);
        memset(safe + f->cap, 0, cap - f->cap);
        memset(dirty + f->cap / SECTOR, 0, (cap - f->cap) / SECTOR);
        f->now = now;
        f->safe = safe;
        f->dirty = dirty;
        f->cap = cap;
    }
    f->size = size;
    return true;
}

int64_t kv_disk_size(const struct kv_disk *d, const char *name)
{
    struct inode *f = content(d, name);
    return f ? (int64_t)f->size : -ENOENT;
}

uint8_t *kv_disk_bytes(const struct kv_disk *d, const char *name)
{
    struct inode *f = content(d, name);
    return f ? f->now : NULL;
}

int kv_disk_truncate(struct kv_disk *d, const char *name, size_t len)
{
    struct inode *f = content(d, name);
    if (!f || len > f->size)
        return -ENOENT;
    memset(f->now + len, 0, f->size - len);
    f->size = f->safe_size = len;
    return 0;
}

/* ---- crash ---- */

static void settle(struct kv_disk *d, struct inode *f, enum kv_crash how)
{
    if (how == KV_CRASH_POWER) {
        if (f->size != f->safe_size && draw(d) & 1)
            f->size = f->safe_size;
        for (size_t s = 0; s < f->cap / SECTOR; s++)
            if (f->dirty[s] == FORGOTTEN || (f->dirty[s] == DIRTY && draw(d) & 1))
                memcpy(f->now + s * SECTOR, f->safe + s * SECTOR, SECTOR);
        if (f->size < f->cap)
            memset(f->now + f->size, 0, f->cap - f->size);
    }
    if (f->cap) {
        memcpy(f->safe, f->now, f->cap);
        memset(f->dirty, 0, f->cap / SECTOR);
    }
    f->safe_size = f->size;
}

static struct inode *file_of(const struct kv_disk *d, int handle)
{
    return handle >= 0 && handle < HANDLES_MAX && d->handle[handle] >= 0 ? d->inode[d->handle[handle]] : NULL;
}

/* An unfinished write: any of its sectors may be there. */
static void settle_write(struct kv_disk *d, const struct kv_io *io)
{
    struct inode *f = file_of(d, io->file);
    if (!f || io->offset >= f->size)
        return;
    for (size_t at = 0; at < io->len && io->offset + at < f->size; at += SECTOR) {
        size_t n = io->len - at < SECTOR ? io->len - at : (size_t)SECTOR;
        if (io->offset + at + n > f->size)
            n = f->size - io->offset - at;
        if (draw(d) & 1) {
            memcpy(f->now + io->offset + at, (const uint8_t *)io->bytes + at, n);
            f->dirty[(io->offset + at) / SECTOR] = DIRTY;
        }
    }
}

/* ---- requests ---- */

static bool changes(enum kv_io_op op)
{
    return op != KV_IO_READ && op != KV_IO_LIST && op != KV_IO_SIZE && op != KV_IO_SPACE && op != KV_IO_CLOSE;
}

static const char *name_of(const struct kv_disk *d, const struct kv_io *io)
{
    bool by_path = io->op == KV_IO_OPEN || io->op == KV_IO_RENAME || io->op == KV_IO_UNLINK || io->op == KV_IO_MKDIR ||
                   io->op == KV_IO_LIST;
    if (by_path)
        return io->path;
    return io->file >= 0 && io->file < HANDLES_MAX ? d->handle_name[io->file] : "";
}

static struct fault *fault_of(struct kv_disk *d, const struct kv_io *io, bool hold)
{
    const char *name = name_of(d, io);
    for (int i = 0; i < FAULTS_MAX; i++) {
        struct fault *f = &d->fault[i];
        if (f->used && f->hold == hold && f->op == io->op && (!f->name[0] || strstr(name, f->name)))
            return f;
    }
    return NULL;
}

/* The process is gone: nothing completes any more, and nothing of its memory may be looked at later. */
static void stop_all(struct kv_disk *d)
{
    d->stopped = true;
    for (struct sim *s = d->first; s; s = s->next) {
        for (struct kv_io *io = s->boot == d->boots ? s->queue : NULL; io; io = io->next)
            if (io->op == KV_IO_WRITE)
                settle_write(d, io);
        s->queue = NULL;
    }
}

static void sim_submit(struct kv_storage *base, struct kv_io *io)
{
    struct sim *s = (struct sim *)base;
    struct kv_disk *d = s->d;
    struct kv_io **at = &s->queue;
    if (d->stopped || s->boot != d->boots)
        return;
    s->stats.submitted++;
    s->stats.in_flight++;
    while (*at)
        at = &(*at)->next;
    io->next = NULL;
    *at = io;
    if (changes(io->op)) {
        if (d->stop_at >= 0 && d->points >= d->stop_at)
            stop_all(d);
        d->points++;
    }
}

void kv_disk_crash(struct kv_disk *d, enum kv_crash how)
{
    stop_all(d);
    int keep = how == KV_CRASH_KILL ? d->n_changes : (int)(draw(d) % (uint64_t)(d->n_changes + 1));
    for (int i = 0; i < keep; i++)
        apply_change(d->safe_name, &d->change[i]);
    d->n_changes = 0;
    memcpy(d->name, d->safe_name, sizeof d->name);
    for (int i = 0; i < FILES_MAX; i++)
        if (d->inode[i]) {
            settle(d, d->inode[i], how);
            d->inode[i]->lock = -1;
        }
    for (int i = 0; i < HANDLES_MAX; i++)
        d->handle[i] = -1;
    d->boots++;
    d->stopped = false;
    d->stop_at = -1;
}

static int64_t do_open(struct kv_disk *d, struct kv_io *io)
{
    static const char root[] = ".";
    const char *path = io->path[0] ? io->path : root;
    struct name *n = find(d->name, path);
    bool is_root = path == root;
    int inode = n ? n->inode : -1;
    if (n && io->flags & KV_OPEN_EXCL)
        return -EEXIST;
    if (!n && !is_root) {
        if (!(io->flags & KV_OPEN_CREATE))
            return -ENOENT;
        inode = inode_new(d, false);
        if (inode < 0)
            return -ENOSPC;
        note_change(d, path, inode, NULL);
    }
    if (is_root && (n = find(d->name, root)) == NULL) {
        inode = inode_new(d, true);
        list_set(d->name, root, inode);
        list_set(d->safe_name, root, inode);
    }
    for (int h = 0; h < HANDLES_MAX; h++)
        if (d->handle[h] < 0) {
            if (io->flags & KV_OPEN_LOCK) {
                if (d->inode[inode]->lock >= 0)
                    return -EWOULDBLOCK;
                d->inode[inode]->lock = h;
            }
            d->handle[h] = inode;
            strncpy(d->handle_name[h], path, NAME_BYTES - 1);
            d->handle_name[h][NAME_BYTES - 1] = 0;
            return h;
        }
    return -EMFILE;
}

static int64_t do_write(struct kv_disk *d, struct inode *f, const struct kv_io *io, size_t len)
{
    if (!grow(d, f, io->offset + len))
        return -ENOSPC;
    memcpy(f->now + io->offset, io->bytes, len);
    for (size_t s = io->offset / SECTOR; len && s <= (io->offset + len - 1) / SECTOR; s++)
        f->dirty[s] = DIRTY;
    return (int64_t)len;
}

static int64_t do_sync(struct kv_disk *d, struct inode *f)
{
    if (f->folder) {
        for (int i = 0; i < d->n_changes; i++)
            apply_change(d->safe_name, &d->change[i]);
        d->n_changes = 0;
        return 0;
    }
    for (size_t s = 0; s < f->cap / SECTOR; s++)
        if (f->dirty[s] == DIRTY) {
            memcpy(f->safe + s * SECTOR, f->now + s * SECTOR, SECTOR);
            f->dirty[s] = CLEAN;
        }
    f->safe_size = f->size;
    return 0;
}

static void sync_failed(struct inode *f)
{
    for (size_t s = 0; f && s < f->cap / SECTOR; s++)
        if (f->dirty[s] == DIRTY)
            f->dirty[s] = FORGOTTEN;
}

static int64_t do_list(struct kv_disk *d, struct kv_io *io)
{
    size_t under = strlen(io->path), len = 0;
    int64_t n = 0;
    io->names = malloc((size_t)FILES_MAX * NAME_BYTES);
    if (!io->names)
        return -ENOMEM;
    for (int i = 0; i < FILES_MAX; i++) {
        const char *t = d->name[i].text;
        if (!t[0] || !strcmp(t, ".") || (under && (strncmp(t, io->path, under) || t[under] != '/')))
            continue;
        t += under ? under + 1 : 0;
        if (strchr(t, '/'))
            continue;
        memcpy(io->names + len, t, strlen(t) + 1);
        len += strlen(t) + 1;
        n++;
    }
    return n;
}

/* What was behind the new end is gone with the next flush. */
static int64_t do_cut(struct inode *f, size_t len)
{
    if (len > f->size)
        return -EINVAL;
    for (size_t s = len / SECTOR; s * SECTOR < f->size; s++)
        f->dirty[s] = 1;
    memset(f->now + len, 0, f->size - len);
    f->size = len;
    return 0;
}

static int64_t perform(struct kv_disk *d, struct kv_io *io)
{
    struct inode *f = file_of(d, io->file);
    struct fault *bad = fault_of(d, io, false);
    size_t len = io->len;
    if (bad && bad->skip-- <= 0) {
        if (--bad->times <= 0)
            bad->used = false;
        if (bad->result < 0) {
            if (io->op == KV_IO_SYNC)
                sync_failed(f);
            return bad->result;
        }
        len = (size_t)bad->result < len ? (size_t)bad->result : len;
    }
    switch (io->op) {
    case KV_IO_OPEN:
        return do_open(d, io);
    case KV_IO_RENAME: {
        struct name *n = find(d->name, io->path);
        if (!n)
            return -ENOENT;
        int inode = n->inode;
        note_change(d, io->path2, inode, io->path);
        return 0;
    }
    case KV_IO_UNLINK:
        if (!find(d->name, io->path))
            return -ENOENT;
        note_change(d, NULL, -1, io->path);
        return 0;
    case KV_IO_MKDIR:
        if (find(d->name, io->path))
            return -EEXIST;
        note_change(d, io->path, inode_new(d, true), NULL);
        return 0;
    case KV_IO_LIST:
        return do_list(d, io);
    case KV_IO_SPACE:
        return d->room >= 0 ? d->room : INT64_C(1) << 40;
    default:
        break;
    }
    if (!f)
        return -EBADF;
    switch (io->op) {
    case KV_IO_CLOSE:
        if (f->lock == io->file)
            f->lock = -1;
        d->handle[io->file] = -1;
        return 0;
    case KV_IO_READ:
        if (io->offset >= f->size)
            return 0;
        len = f->size - io->offset < len ? f->size - io->offset : len;
        memcpy(io->bytes, f->now + io->offset, len);
        return (int64_t)len;
    case KV_IO_WRITE:
        return do_write(d, f, io, len);
    case KV_IO_SYNC:
        return do_sync(d, f);
    case KV_IO_ALLOC:
        return grow(d, f, io->offset + io->len) ? 0 : -ENOSPC;
    case KV_IO_CUT:
        return do_cut(f, (size_t)io->offset);
    case KV_IO_SIZE:
        return (int64_t)f->size;
    default:
        return -ENOSYS;
    }
}

static bool held(struct kv_disk *d, const struct kv_io *io)
{
    return fault_of(d, io, true) != NULL;
}

/* Completes one request, whichever the seed says. A flush takes what completed before it, as a disk does. */
static int sim_poll(struct kv_storage *base)
{
    struct sim *s = (struct sim *)base;
    struct kv_disk *d = s->d;
    int n = 0, k;
    if (d->stopped || s->boot != d->boots)
        return 0;
    for (struct kv_io *io = s->queue; io; io = io->next)
        n += !held(d, io);
    if (!n)
        return 0;
    k = (int)(draw(d) % (uint64_t)n);
    struct kv_io **at = &s->queue;
    while (held(d, *at) || k--)
        at = &(*at)->next;
    struct kv_io *io = *at;
    *at = io->next;
    io->result = perform(d, io);
    s->stats.in_flight--;
    s->stats.completed++;
    s->stats.failed += io->result < 0;
    if (io->op == KV_IO_READ && io->result > 0)
        s->stats.bytes_read += (uint64_t)io->result;
    if (io->op == KV_IO_WRITE && io->result > 0)
        s->stats.bytes_written += (uint64_t)io->result;
    s->stats.syncs += io->op == KV_IO_SYNC;
    io->done(io);
    return 1;
}

static int sim_wait(struct kv_storage *base, int timeout_ms)
{
    (void)timeout_ms;
    return sim_poll(base);
}

static int sim_descriptor(struct kv_storage *base)
{
    (void)base;
    return -1;
}

static int sim_register(struct kv_storage *base, void *at, size_t len)
{
    (void)at;
    (void)len;
    ((struct sim *)base)->stats.registered = true;
    return 0;
}

static void sim_stat(struct kv_storage *base, struct kv_storage_stats *out)
{
    *out = ((struct sim *)base)->stats;
}

static void sim_free(struct kv_storage *base)
{
    struct sim *s = (struct sim *)base, **at = &s->d->first;
    while (sim_poll(base))
        ;
    kv_storage_forget(base);
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    free(s);
}

static const struct kv_storage_ops sim_ops = {
    .name = "sim",
    .submit = sim_submit,
    .poll = sim_poll,
    .wait = sim_wait,
    .descriptor = sim_descriptor,
    .register_memory = sim_register,
    .stat = sim_stat,
    .free = sim_free,
};

struct kv_storage *kv_storage_sim_new(struct kv_disk *d)
{
    struct sim *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->base.ops = &sim_ops;
    s->d = d;
    s->boot = d->boots;
    s->next = d->first;
    d->first = s;
    return &s->base;
}
