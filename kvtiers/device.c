#include "kvtiers/device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "kvtiers/memory.h"

enum { NONE = -1 };

struct page {
    int count;
    bool published;
    struct kv_key key;
    struct kv_block_info info;
    int64_t born, used; /* when it was published, when last used */
    int chain;          /* next page of the same hash bucket */
    int prev, next;     /* free list or list of cached pages, by state */
};

struct snapshot {
    struct kv_key key;
    struct kv_block_info info;
    size_t len;
    uint64_t used, sum; /* sum: with a canary */
    int64_t since;      /* when it was stored or last found */
    void *bytes;        /* NULL: unused slot */
};

struct kv_device {
    int n_pages;
    size_t page_bytes;
    uint8_t *memory;
    struct page *page;
    int *bucket;
    int n_buckets; /* power of two */
    int free_head;
    int old, young; /* cached pages, least recently used first */
    struct snapshot *snapshot;
    int n_snapshots, snapshot_cap;
    uint64_t clock; /* counts uses of snapshots */
    uint64_t *sum;  /* [n_pages] of finished blocks; NULL: no canary */
    struct kv_device_stats stats;
    int64_t now, block_ttl, snapshot_ttl; /* ns; no limit: 0 */
    int64_t next_expiry;                  /* no snapshot ends before */
    struct kv_life_times life[KV_LIVES];
};

#define S INT64_C(1000000000)

const int64_t kv_life_bound[KV_LIFE_BOUNDS] = {S / 10,    S,         5 * S,     15 * S,    60 * S,
                                               300 * S,   900 * S,   1800 * S,  3600 * S,  7200 * S,
                                               14400 * S, 28800 * S, 86400 * S, 604800 * S};

static void lived(struct kv_device *d, enum kv_life which, int64_t since)
{
    struct kv_life_times *t = &d->life[which];
    int64_t ns = d->now > since ? d->now - since : 0;
    t->count++;
    t->sum_ns += (uint64_t)ns;
    for (int i = 0; i < KV_LIFE_BOUNDS; i++)
        if (ns <= kv_life_bound[i]) {
            t->bucket[i]++;
            return;
        }
}

int kv_device_new(int pages, size_t page_bytes, size_t snapshot_limit, struct kv_device **out, struct cfg_error *err)
{
    *out = NULL;
    if (pages < 1 || !page_bytes || page_bytes % 4096)
        return cfg_error_set(err, EINVAL,
                             "device tier of %d pages of %zu bytes: give at least one page, of whole 4 KiB", pages,
                             page_bytes);
    struct kv_device *d = calloc(1, sizeof *d);
    if (!d)
        return cfg_error_set(err, ENOMEM, "device tier: out of memory");
    *d = (struct kv_device){.n_pages = pages, .page_bytes = page_bytes, .n_buckets = 64, .old = NONE, .young = NONE};
    while (d->n_buckets < 2 * pages)
        d->n_buckets *= 2;
    d->page = calloc((size_t)pages, sizeof *d->page);
    d->bucket = malloc((size_t)d->n_buckets * sizeof *d->bucket);
    d->memory = kv_memory_new((size_t)pages * page_bytes);
    if (!d->page || !d->bucket || !d->memory) {
        kv_device_free(d);
        return cfg_error_set(err, ENOMEM, "device tier: %zu bytes for %d pages are not available; use fewer pages",
                             (size_t)pages * page_bytes, pages);
    }
    for (int b = 0; b < d->n_buckets; b++)
        d->bucket[b] = NONE;
    for (int p = 0; p < pages; p++)
        d->page[p].next = p + 1 < pages ? p + 1 : NONE;
    d->stats = (struct kv_device_stats){.pages = pages, .free = pages, .snapshot_limit = snapshot_limit};
    *out = d;
    return 0;
}

void kv_device_free(struct kv_device *d)
{
    if (!d)
        return;
    kv_memory_free(d->memory, (size_t)d->n_pages * d->page_bytes);
    for (int i = 0; i < d->n_snapshots; i++)
        free(d->snapshot[i].bytes);
    free(d->snapshot);
    free(d->bucket);
    free(d->page);
    free(d->sum);
    free(d);
}

int kv_device_pages(const struct kv_device *d)
{
    return d->n_pages;
}

uint8_t *kv_device_bytes(const struct kv_device *d, int page)
{
    return d->memory + (size_t)page * d->page_bytes;
}

int kv_device_available(const struct kv_device *d)
{
    return d->stats.free + d->stats.cached;
}

/* ---- lists and table ---- */

static int bucket_of(const struct kv_device *d, const struct kv_key *key)
{
    uint32_t h;
    memcpy(&h, key->b, sizeof h); /* keys are hashes already */
    return (int)(h & (uint32_t)(d->n_buckets - 1));
}

static void table_remove(struct kv_device *d, int page)
{
    int *at = &d->bucket[bucket_of(d, &d->page[page].key)];
    while (*at != page)
        at = &d->page[*at].chain;
    *at = d->page[page].chain;
    d->page[page].published = false;
}

static void cached_remove(struct kv_device *d, int page)
{
    struct page *p = &d->page[page];
    *(p->prev == NONE ? &d->old : &d->page[p->prev].next) = p->next;
    *(p->next == NONE ? &d->young : &d->page[p->next].prev) = p->prev;
    d->stats.cached--;
}

static void cached_add(struct kv_device *d, int page)
{
    struct page *p = &d->page[page];
    p->prev = d->young;
    p->next = NONE;
    *(d->young == NONE ? &d->old : &d->page[d->young].next) = page;
    d->young = page;
    d->stats.cached++;
}

static void free_add(struct kv_device *d, int page)
{
    d->page[page].next = d->free_head;
    d->free_head = page;
    d->stats.free++;
}

/* ---- canary ---- */

static uint64_t page_sum(const struct kv_device *d, int page)
{
    return XXH3_64bits_withSeed(kv_device_bytes(d, page), d->page_bytes, (uint64_t)page);
}

/* A finished block that is not what it was. */
static bool page_changed(struct kv_device *d, int page)
{
    if (!d->sum || d->sum[page] == page_sum(d, page))
        return false;
    d->stats.changed++;
    return true;
}

int kv_device_canary(struct kv_device *d)
{
    if (!d->sum)
        d->sum = calloc((size_t)d->n_pages, sizeof *d->sum);
    if (!d->sum)
        return -ENOMEM;
    for (int p = 0; p < d->n_pages; p++)
        if (d->page[p].published)
            d->sum[p] = page_sum(d, p);
    return 0;
}

/* ---- pages ---- */

static int take_one(struct kv_device *d)
{
    int page = d->free_head;
    if (page != NONE) {
        d->free_head = d->page[page].next;
        d->stats.free--;
    } else {
        page = d->old;
        page_changed(d, page);
        lived(d, KV_LIFE_WHOLE, d->page[page].born);
        lived(d, KV_LIFE_IDLE, d->page[page].used);
        cached_remove(d, page);
        table_remove(d, page);
        d->stats.evicted++;
    }
    d->page[page].count = 1;
    d->stats.held++;
    return page;
}

int kv_device_take(struct kv_device *d, int n, int *pages)
{
    if (n > kv_device_available(d))
        return -ENOSPC;
    for (int i = 0; i < n; i++)
        pages[i] = take_one(d);
    return 0;
}

void kv_device_hold(struct kv_device *d, int page)
{
    struct page *p = &d->page[page];
    if (p->count++)
        return;
    cached_remove(d, page); /* a page without holder is cached when somebody can still name it */
    d->stats.held++;
}

void kv_device_release(struct kv_device *d, int page)
{
    struct page *p = &d->page[page];
    if (!p->count) {
        d->stats.unheld++;
        return;
    }
    if (--p->count)
        return;
    d->stats.held--;
    p->used = d->now;
    if (p->published)
        cached_add(d, page);
    else
        free_add(d, page);
}

static int table_find(const struct kv_device *d, const struct kv_key *key)
{
    int page = d->bucket[bucket_of(d, key)];
    while (page != NONE && memcmp(&d->page[page].key, key, sizeof *key))
        page = d->page[page].chain;
    return page;
}

bool kv_device_publish(struct kv_device *d, int page, const struct kv_key *key, const struct kv_block_info *info)
{
    struct page *p = &d->page[page];
    if (p->published || table_find(d, key) != NONE)
        return false;
    int *head = &d->bucket[bucket_of(d, key)];
    p->key = *key;
    p->info = *info;
    p->published = true;
    p->born = p->used = d->now;
    p->chain = *head;
    *head = page;
    d->stats.published++;
    if (d->sum)
        d->sum[page] = page_sum(d, page);
    return true;
}

int kv_device_find(struct kv_device *d, const struct kv_key *key, struct kv_block_info *info)
{
    int page = table_find(d, key);
    if (page != NONE && page_changed(d, page)) {
        kv_device_drop(d, key);
        page = NONE;
    }
    if (page != NONE && d->block_ttl && d->now - d->page[page].born > d->block_ttl) {
        kv_device_drop(d, key);
        d->stats.expired++;
        page = NONE;
    }
    if (page == NONE) {
        d->stats.missed++;
        return NONE;
    }
    d->stats.found++;
    *info = d->page[page].info;
    lived(d, KV_LIFE_GAP, d->page[page].used);
    d->page[page].used = d->now;
    kv_device_hold(d, page);
    return page;
}

void kv_device_drop(struct kv_device *d, const struct kv_key *key)
{
    int page = table_find(d, key);
    if (page == NONE)
        return;
    table_remove(d, page);
    if (!d->page[page].count) {
        cached_remove(d, page);
        free_add(d, page);
    }
}

int kv_device_canary_check(struct kv_device *d)
{
    int n = 0;
    for (int p = 0; p < d->n_pages; p++)
        if (d->page[p].published && page_changed(d, p)) {
            struct kv_key key = d->page[p].key;
            kv_device_drop(d, &key);
            n++;
        }
    return n;
}

void kv_device_ttl(struct kv_device *d, int64_t block_ns, int64_t snapshot_ns)
{
    d->block_ttl = block_ns;
    d->snapshot_ttl = snapshot_ns;
    d->next_expiry = 0;
}

/* ---- snapshots ---- */

static struct snapshot *snapshot_find(const struct kv_device *d, const struct kv_key *key)
{
    for (int i = 0; i < d->n_snapshots; i++)
        if (d->snapshot[i].bytes && !memcmp(&d->snapshot[i].key, key, sizeof *key))
            return &d->snapshot[i];
    return NULL;
}

static void snapshot_forget(struct kv_device *d, struct snapshot *s)
{
    free(s->bytes);
    s->bytes = NULL;
    d->stats.snapshot_bytes -= s->len;
    d->stats.snapshots--;
}

static bool snapshot_expired(const struct kv_device *d, const struct snapshot *s)
{
    return d->snapshot_ttl && d->now - s->since > d->snapshot_ttl;
}

static void snapshots_expire(struct kv_device *d)
{
    if (!d->snapshot_ttl || d->now < d->next_expiry)
        return;
    d->next_expiry = d->now + d->snapshot_ttl;
    for (int i = 0; i < d->n_snapshots; i++) {
        struct snapshot *s = &d->snapshot[i];
        if (!s->bytes)
            continue;
        if (snapshot_expired(d, s)) {
            snapshot_forget(d, s);
            d->stats.snapshots_expired++;
        } else if (s->since + d->snapshot_ttl < d->next_expiry) {
            d->next_expiry = s->since + d->snapshot_ttl;
        }
    }
    d->next_expiry++; /* at its age a snapshot is still used */
}

static void snapshot_make_room(struct kv_device *d, size_t len)
{
    while (d->stats.snapshot_bytes + len > d->stats.snapshot_limit) {
        struct snapshot *oldest = NULL;
        for (int i = 0; i < d->n_snapshots; i++)
            if (d->snapshot[i].bytes && (!oldest || d->snapshot[i].used < oldest->used))
                oldest = &d->snapshot[i];
        snapshot_forget(d, oldest);
        d->stats.snapshots_evicted++;
    }
}

static struct snapshot *snapshot_slot(struct kv_device *d)
{
    for (int i = 0; i < d->n_snapshots; i++)
        if (!d->snapshot[i].bytes)
            return &d->snapshot[i];
    if (d->n_snapshots == d->snapshot_cap) {
        int cap = d->snapshot_cap ? 2 * d->snapshot_cap : 16;
        struct snapshot *p = realloc(d->snapshot, (size_t)cap * sizeof *p);
        if (!p)
            return NULL;
        d->snapshot = p;
        d->snapshot_cap = cap;
    }
    return &d->snapshot[d->n_snapshots++];
}

int kv_device_snapshot_put(struct kv_device *d, const struct kv_key *tail, const struct kv_block_info *info,
                           const void *bytes, size_t len)
{
    if (!len || len > d->stats.snapshot_limit)
        return -ENOSPC;
    struct snapshot *old = snapshot_find(d, tail);
    if (old && old->info.taint <= info->taint) {
        old->used = ++d->clock;
        old->since = d->now;
        return 0;
    }
    void *copy = malloc(len);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, bytes, len);
    if (old)
        snapshot_forget(d, old);
    snapshot_make_room(d, len);
    struct snapshot *s = snapshot_slot(d);
    if (!s) {
        free(copy);
        return -ENOMEM;
    }
    *s = (struct snapshot){.key = *tail, .info = *info, .len = len, .used = ++d->clock, .since = d->now, .bytes = copy};
    s->sum = d->sum ? XXH3_64bits(copy, len) : 0;
    d->stats.snapshot_bytes += len;
    d->stats.snapshots++;
    d->stats.snapshots_stored++;
    return 0;
}

const void *kv_device_snapshot_get(struct kv_device *d, const struct kv_key *tail, struct kv_block_info *info,
                                   size_t *len)
{
    struct snapshot *s = snapshot_find(d, tail);
    if (s && snapshot_expired(d, s)) {
        snapshot_forget(d, s);
        d->stats.snapshots_expired++;
        s = NULL;
    }
    if (!s) {
        d->stats.snapshots_missed++;
        return NULL;
    }
    if (d->sum && s->sum != XXH3_64bits(s->bytes, s->len)) {
        d->stats.changed++;
        snapshot_forget(d, s);
        return NULL;
    }
    s->used = ++d->clock;
    s->since = d->now;
    d->stats.snapshots_found++;
    *info = s->info;
    *len = s->len;
    return s->bytes;
}

bool kv_device_snapshot_has(const struct kv_device *d, const struct kv_key *tail)
{
    const struct snapshot *s = snapshot_find(d, tail);
    return s && !snapshot_expired(d, s);
}

void kv_device_stat(const struct kv_device *d, struct kv_device_stats *out)
{
    *out = d->stats;
}

void kv_device_clock(struct kv_device *d, int64_t now)
{
    d->now = now;
    snapshots_expire(d);
}

const struct kv_life_times *kv_device_lives(const struct kv_device *d)
{
    return d->life;
}
