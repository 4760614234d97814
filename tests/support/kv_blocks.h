/* Blocks with known bytes, and tier operations run to their end, for tests of kvtiers/. One thread. */
#ifndef WEFT_TESTS_SUPPORT_KV_BLOCKS_H
#define WEFT_TESTS_SUPPORT_KV_BLOCKS_H

#include "kvtiers/storage.h"
#include "kvtiers/tier.h"

enum { TS_BLOCKS_MAX = 128 };

/* Two sources, of 8 KiB and 4 KiB; block_tokens distinguishes layouts. */
struct kv_layout ts_layout(uint32_t block_tokens);
struct kv_key ts_key(int n);
/* Fills, or checks, the bytes that block n must have. */
void ts_block_fill(const struct kv_layout *l, int n, uint8_t *bytes);
bool ts_block_good(const struct kv_layout *l, int n, const uint8_t *bytes);

/* Aligned memory for `blocks` blocks; free. */
uint8_t *ts_block_memory(const struct kv_layout *l, int blocks);

/* What became of one op on blocks number[0..n). */
struct ts_op {
    struct kv_tier_op op;
    struct kv_tier_block block[TS_BLOCKS_MAX];
    uint8_t *memory;
    int number[TS_BLOCKS_MAX];
    int rows[KV_SOURCES_MAX], n_rows, done;
};

enum ts_verb { TS_LOOKUP, TS_READ, TS_STORE, TS_DROP };

/* Begins the op; memory is filled for a store. The caller turns the storage (if any) until o->done. */
void ts_op_begin(struct ts_op *o, struct kv_tier *t, const struct kv_layout *l, enum ts_verb verb, const int *number,
                 int n);
/* Begins it and polls s until it is done, or nothing comes any more. */
void ts_op_run(struct ts_op *o, struct kv_tier *t, struct kv_storage *s, const struct kv_layout *l, enum ts_verb verb,
               const int *number, int n);
/* kv_tier_op.done of an op whose ctx is a struct ts_op. */
void ts_op_done(struct kv_tier_op *op);
void ts_op_free(struct ts_op *o);
/* One block, run to its end: stored; found; read with the right bytes (wrong bytes end the test). */
bool ts_store_one(struct kv_tier *t, struct kv_storage *s, const struct kv_layout *l, int n);
bool ts_has(struct kv_tier *t, struct kv_storage *s, const struct kv_layout *l, int n);
bool ts_read_one(struct kv_tier *t, struct kv_storage *s, const struct kv_layout *l, int n);
/* Polls until nothing comes any more. */
void ts_turn(struct kv_storage *s);

/* A clock that stands still until it is told. */
extern int64_t ts_clock_ns, ts_clock_s;
extern const struct kv_clock ts_clock;

#endif
