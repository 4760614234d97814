/* The tier ops table: what every place that keeps blocks can do. device, host, ssd, shared and remote kv nodes answer
 * the same five verbs.
 *
 * A request is a struct kv_tier_op that its issuer owns and lends until op->done is called: the op itself, the array of
 * blocks, and the memory that the blocks name. done may be called inside the call that began it, or later on the same
 * thread, from the tier's storage. A tier belongs to one thread (its tier worker); nothing here waits. Who loses
 * interest in a read may say so, and leaves the memory where it is until done.
 *
 *   lookup  n keys            count: leading blocks that are here now. A promise of nothing: a read can still miss.
 *   read    n keys, memory    the extents, source by source in ascending order; each is verified after it has arrived.
 *                             rows(op, source, ok) once per source as soon as it is settled: its extents of the first
 *                             ok blocks are in place. done: count blocks have all their extents. Memory of blocks
 *                             beyond count is undefined. A block that fails is dropped here.
 *   store   n keys, memory    count: blocks that are here now, durably if the tier is durable. Others were not kept
 *                             (full, read-only): no error.
 *   drop    n keys            they are gone, durably before done.
 *   stat                      at once.
 *
 * Order, where a tier has a queue: first extents that somebody waits for (op->wanted, want), then extents that are read
 * ahead of need, in the order of their reads, then stores. What has waited for KV_AGE_NS waits no longer behind what
 * came after it: an old read goes as if it were waited for, old stores get some of the requests. The order is that of
 * submission; what a device or a kernel has taken is not called back.
 */
#ifndef WEFT_KVTIERS_TIER_H
#define WEFT_KVTIERS_TIER_H

#include <stdbool.h>

#include "kvtiers/extent.h"

#define KV_AGE_NS INT64_C(200000000)

/* What is known about a block beside its bytes. */
struct kv_block_info {
    enum kv_taint taint;
    int32_t hit; /* length of the replayed prefix hit behind which the rows were written; 0 when clean */
};

struct kv_tier_block {
    struct kv_key key;
    uint8_t *bytes;            /* [layout.block_bytes], 4 KiB aligned; read: written; store: read; else not used */
    struct kv_block_info info; /* lookup, read: out, of tiers that know it; store: in */
};

struct kv_tier_op {
    struct kv_tier_block *block;
    int n;
    void (*rows)(struct kv_tier_op *op, int source, int ok); /* read; may be NULL */
    void (*done)(struct kv_tier_op *op);
    void *ctx;
    int wanted; /* read: its sources below this are waited for now, the others will be later */
    int count;  /* out */
    int status; /* out: 0, or why count is short: -EIO, -EBADMSG (checksum), -ENOSPC, -EROFS, -ENOENT, -ENOMEM */
    /* the tier's */
    struct kv_tier_op *next;
    int ok[KV_SOURCES_MAX], left[KV_SOURCES_MAX], settled, pending;
    int64_t began;
};

/* Why a file that has the name of the tier's holds no block for this process. */
enum kv_unusable { KV_OTHER_LAYOUT, KV_DAMAGED, KV_UNREADABLE /* now */, KV_UNUSABLE_KINDS };

struct kv_tier_stats {
    uint64_t capacity, bytes; /* of blocks */
    uint64_t blocks;
    uint64_t lookups, found;   /* blocks asked for, and here */
    uint64_t read, read_bytes; /* blocks delivered */
    uint64_t stored, stored_bytes, refused;
    uint64_t evicted, expired, dropped;
    uint64_t bad; /* extents whose checksum did not fit */
    uint64_t short_reads, errors;
    uint64_t read_ns; /* of reads from begin to end, added up, with read_ops of them */
    uint64_t read_ops;
    int64_t oldest_s; /* age of the oldest block, about; 0: none */
    int queue;        /* requests under way */
    bool read_only, rebuilding;
    struct {
        uint64_t files, bytes; /* bytes: as far as known; not in those above */
    } unusable[KV_UNUSABLE_KINDS];
};

/* Time as tiers see it. */
struct kv_clock {
    int64_t (*now)(void *ctx);  /* ns, monotonic: latencies and retries */
    int64_t (*wall)(void *ctx); /* s since 1970: ages that outlive the process; never decides whether bytes are right */
    void *ctx;
};
extern const struct kv_clock kv_clock_system;

struct kv_tier;

struct kv_tier_ops {
    const char *name;
    void (*lookup)(struct kv_tier *t, struct kv_tier_op *op);
    void (*read)(struct kv_tier *t, struct kv_tier_op *op);
    void (*store)(struct kv_tier *t, struct kv_tier_op *op);
    void (*drop)(struct kv_tier *t, struct kv_tier_op *op);
    void (*stat)(struct kv_tier *t, struct kv_tier_stats *out);
    /* Time passes: retries, expiry, commits that wait for company. Called now and then (tens of ms). */
    void (*tick)(struct kv_tier *t);
    /* Calls fn(ctx, key, info, age in s) for every block; for tools. NULL: this tier cannot list. */
    void (*each)(struct kv_tier *t,
                 void (*fn)(void *ctx, const struct kv_key *key, const struct kv_block_info *info, int64_t age_s),
                 void *ctx);
    /* Ends what is under way (done is called), then frees. */
    void (*free)(struct kv_tier *t);
    /* Nobody waits for this read any more: what has not begun of it fails with -ECANCELED, so that others are served
     * sooner. done comes all the same, maybe inside the call. NULL: the read just goes on. */
    void (*cancel)(struct kv_tier *t, struct kv_tier_op *op);
    /* From now on somebody waits for the first `sources` sources of this read, which has not ended. done of any op may
     * come inside the call. NULL: the tier has no queue. */
    void (*want)(struct kv_tier *t, struct kv_tier_op *op, int sources);
};

struct kv_tier {
    const struct kv_tier_ops *ops;
};

/* ---- for tiers: the bookkeeping of a read ---- */

/* Sets up op for n_sources extents of each of its n blocks. */
void kv_op_read_begin(struct kv_tier_op *op, int n_sources);
/* One extent has arrived (status 0), or will not. Calls rows when its source is settled, done when all are. Sources are
 * reported in ascending order. */
void kv_op_read_extent(struct kv_tier_op *op, int n_sources, int block, int source, int status);
/* This source of a read (which began at op->began) goes before others. */
bool kv_op_first(const struct kv_tier_op *op, int source, int64_t now);
/* Notes that sources are waited for; false: they were before. */
bool kv_op_want(struct kv_tier_op *op, int sources);
/* Tells t, if it has a queue. */
void kv_tier_want(struct kv_tier *t, struct kv_tier_op *op, int sources);
/* Ends op. */
void kv_op_finish(struct kv_tier_op *op, int count, int status);

#endif
