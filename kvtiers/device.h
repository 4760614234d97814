/* The device tier: the pages that the engine computes on, the cache of finished blocks among them, and snapshots.
 *
 * A page holds one block. Pages are counted: a sequence holds its own pages, a finished block may be held by many. A
 * published page whose count falls to zero stays as cache until its memory is wanted, least recently used first; any
 * other goes back to the free list. A page is written only by its one holder and never again once published.
 *
 * A snapshot belongs to a position of a token sequence: the rows of its unfinished block and the encoder's last window
 * rows, so that a prompt that begins with the same tokens goes on there exactly. Snapshots live in a byte budget of
 * their own, least recently used first out, and only as long as the next turn of a conversation is likely.
 *
 * Not thread-safe: the actor that owns the tier is the only caller. */
#ifndef WEFT_KVTIERS_DEVICE_H
#define WEFT_KVTIERS_DEVICE_H

#include <stdbool.h>

#include "config/error.h"
#include "kvtiers/tier.h"

struct kv_device_stats {
    int pages, free, held, cached; /* held: count above zero; cached: published, count zero */
    uint64_t evicted, expired, published, found, missed;
    size_t snapshot_bytes, snapshot_limit;
    int snapshots;
    uint64_t snapshots_evicted, snapshots_expired, snapshots_stored, snapshots_found, snapshots_missed;
    uint64_t changed; /* canary: finished blocks and snapshots whose bytes were not what they had been */
    uint64_t unheld;  /* releases of pages that nobody held: a defect of a caller, without effect */
};

/* How finished blocks fared, as histograms of seconds. */
enum kv_life {
    KV_LIFE_WHOLE, /* from its finishing until its room was taken */
    KV_LIFE_IDLE,  /* from its last use until then */
    KV_LIFE_GAP,   /* from a use to the next one */
    KV_LIVES,
};

enum { KV_LIFE_BOUNDS = 14 };

/* Upper bounds in nanoseconds, ascending. */
extern const int64_t kv_life_bound[KV_LIFE_BOUNDS];

struct kv_life_times {
    uint64_t bucket[KV_LIFE_BOUNDS]; /* not more than the bound and more than the one before */
    uint64_t count, sum_ns;
};

struct kv_device;

/* pages of page_bytes each (multiple of 4096), mapped at once; snapshot_limit in bytes. */
int kv_device_new(int pages, size_t page_bytes, size_t snapshot_limit, struct kv_device **out, struct cfg_error *err);
void kv_device_free(struct kv_device *d);
/* Times to live, by kv_device_clock; 0: none. A block that was published longer ago is not found any more (whoever
 * holds its page goes on). A snapshot that was neither stored nor found for so long is not found any more, and its
 * memory is given back by kv_device_clock. */
void kv_device_ttl(struct kv_device *d, int64_t block_ns, int64_t snapshot_ns);
/* For finding defects: from now on every finished block and snapshot has a checksum, which is verified whenever it is
 * found, and of a block when its page goes. What was changed is a miss and counted. Costs a read of the bytes each
 * time. -ENOMEM. */
int kv_device_canary(struct kv_device *d);
/* Verifies every finished block; how many were changed, as far as that was not known. */
int kv_device_canary_check(struct kv_device *d);

/* Pages lie one after the other. */
int kv_device_pages(const struct kv_device *d);
uint8_t *kv_device_bytes(const struct kv_device *d, int page);
/* Pages that kv_device_take could hand out now: free and cached ones. */
int kv_device_available(const struct kv_device *d);
/* Takes n pages (count 1 each), evicting cached ones as needed. All or none: -ENOSPC. */
int kv_device_take(struct kv_device *d, int n, int *pages);
void kv_device_hold(struct kv_device *d, int page);
void kv_device_release(struct kv_device *d, int page);

/* Makes a held page findable. A block that exists under the key already stays; false then, and the page remains the
 * caller's private one. */
bool kv_device_publish(struct kv_device *d, int page, const struct kv_key *key, const struct kv_block_info *info);
/* The page of a key, held for the caller, or -1. */
int kv_device_find(struct kv_device *d, const struct kv_key *key, struct kv_block_info *info);
/* Forgets a published block; its page is freed when nobody holds it. */
void kv_device_drop(struct kv_device *d, const struct kv_key *key);

/* Snapshots, by the chain at their position (blocks before it, then the ids behind the last boundary). Bytes are
 * copied. One larger than the budget is not kept (-ENOSPC); clean replaces tainted, anything else leaves an old one in
 * place. */
int kv_device_snapshot_put(struct kv_device *d, const struct kv_key *tail, const struct kv_block_info *info,
                           const void *bytes, size_t len);
/* The bytes of a snapshot, valid until the next put or drop; NULL when there is none. */
const void *kv_device_snapshot_get(struct kv_device *d, const struct kv_key *tail, struct kv_block_info *info,
                                   size_t *len);

/* Whether there is one, without any other effect. */
bool kv_device_snapshot_has(const struct kv_device *d, const struct kv_key *tail);

void kv_device_stat(const struct kv_device *d, struct kv_device_stats *out);
/* The owner's clock for what follows, in nanoseconds, for figures and times to live. Called at least now and then. */
void kv_device_clock(struct kv_device *d, int64_t now);
/* [KV_LIVES], valid as long as d. */
const struct kv_life_times *kv_device_lives(const struct kv_device *d);

/* The same pages behind the table of tiers: a read copies out of them, a store takes a page and copies into it. d is
 * borrowed; its page size is the layout's block. For who has no pages of his own here: other nodes, tools, tests. The
 * engine uses the functions above and copies nothing. */
int kv_device_tier(struct kv_device *d, const struct kv_layout *layout, struct kv_tier **out, struct cfg_error *err);

#endif
