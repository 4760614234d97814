/* The shared tier: blocks in a folder that many processes on many nodes read and write at the same time, on any file
 * system that they share.
 *
 * Blocks are written to segments. A segment has one writer; it is sealed by size or age (index at its end, flush,
 * close, rename) and never changes again. Readers list the folder now and then, read the index of segments that are new
 * and keep it in memory. Nobody waits for anybody: correctness rests on no lease, no clock and no order of names,
 * because every extent proves itself after it was read, by a checksum seeded with key, source and the number of the
 * segment. A segment that vanishes, is cut short or never was finished is a miss.
 *
 * Room: when the folder holds more than its size, the oldest segments have to go, whoever wrote them: so each process
 * knows how much of that is its part, and removes so many bytes of its own segments, the least used first. Those of
 * others it removes when they are not gone after a long time, or when the folder holds much more than its size.
 * Segments that this process cannot use (of another layout, damaged) count as the others do. Unfinished segments are
 * removed by a later life of their writer, or by anybody when they stayed unfinished for a long time. Removals are
 * limited in rate. One thread. docs/FORMATS.md has the bytes.
 */
#ifndef WEFT_KVTIERS_SHARED_H
#define WEFT_KVTIERS_SHARED_H

#include "kvtiers/storage.h"
#include "kvtiers/tier.h"

enum { KV_SHARED_FILES = 256 };

struct kv_shared_params {
    struct kv_storage *storage; /* of the folder; borrowed, outlives the tier */
    const char *folder;         /* for messages */
    const char *node;           /* name of this writer; unique among those alive, or made so by `claim` */
    bool claim;                 /* by a lock in the folder: when another has NODE, this one is NODE.2, and so on */
    struct kv_layout layout;
    int64_t bytes;         /* of sealed segments in the folder, all writers together */
    int64_t segment_bytes; /* a segment is sealed when it has this many, */
    int64_t seal_ns;       /* or is so old */
    int64_t poll_ns;       /* the folder is listed this often */
    int64_t orphan_ns;     /* unfinished segments of others are removed after so long */
    double removals_per_s;
    int64_t ttl_s; /* 0: none */
    bool direct;
    int files; /* of segments open at a time; 0: KV_SHARED_FILES */
    struct kv_clock clock;
    void (*log)(void *ctx, bool warning, const char *text);
    void *log_ctx;
};

/* As tier.h says, except: store ends when the bytes are written, the blocks are durable and visible to everybody once
 * their segment is sealed. drop: this process forgets the blocks at once, the others when they list the folder, and a
 * later life never finds them; it counts as a removal, and what is dropped meanwhile goes along. kv_tier_ops.free seals
 * what is open. */
int kv_shared_new(const struct kv_shared_params *params, struct kv_tier **out, struct cfg_error *err);

#endif
