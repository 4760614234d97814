/* The state of one sequence: global KV in blocks, sliding-window rings, compressor tails, drafter rings, bridge rows.
 *
 * One owner at a time (the actor that runs the sequence). A model step reads a sequence and writes only rows of global
 * KV that are not visible yet; everything else changes in mdl_step_commit, so a step that is abandoned leaves no trace.
 *
 * Global KV: blocks of block_tokens tokens. A block holds one extent per KV source, each padded to 4 KiB:
 *   main rows   rows x (head_dim/2 E2M1 pairs, head_dim/16 E4M3 scales)
 *   index codes rows x index_dim/2 E2M1 pairs
 *   index scales rows x index_dim/32 E8M0
 * with rows = block_tokens / ratio. Row j of ratio r belongs to tokens j*r .. j*r+r-1 and is visible from token
 * j*r+r-1 on. The codes are those of the first quantisation. */
#ifndef WEFT_MODEL_KV_H
#define WEFT_MODEL_KV_H

#include "model/checkpoint.h"

struct mdl_kv_extent {
    int rows;                         /* rows per block */
    size_t offset, bytes;             /* of the extent inside a block; bytes is a multiple of 4096 */
    size_t index_codes, index_scales; /* offsets inside the extent */
};

struct mdl_kv_layout {
    int block_tokens;
    size_t main_row, index_code_row, index_scale_row, swa_row; /* bytes */
    size_t block_bytes;
    struct mdl_kv_extent source[MDL_MAX_SOURCES];
};

/* block_tokens: even, positive. */
int mdl_kv_layout_init(const struct mdl_config *cfg, int block_tokens, struct mdl_kv_layout *out,
                       struct cfg_error *err);

struct mdl_seq_params {
    int max_tokens;   /* longest sequence, prompt and output together */
    int block_tokens; /* 0: 256 */
    int rollback;     /* committed tokens that mdl_seq_truncate can take back; rows kept beyond the window */
    int replay;       /* R: bridge rows kept for the decoder replay; 0: exact mode only */
    bool full_bridge; /* keep the cut layer's window rows for bridge_window = full */
    int window_extra; /* further window rows of the encoder layers, for snapshots that a later prompt restarts from */
    bool external_blocks; /* blocks are lent by the caller (mdl_seq_attach), who also takes them back */
};

struct mdl_seq {
    const struct mdl_config *cfg;
    struct mdl_kv_layout layout;
    struct mdl_seq_params params;
    int32_t *ids;     /* committed tokens, [len or encoded, whichever is larger] */
    int encoded;      /* tokens whose layers below the cut are committed (all layers in exact mode) */
    int len;          /* tokens whose every layer is committed */
    int highest;      /* most tokens that were ever committed: older rows than its rings hold are gone for good */
    uint8_t **blocks; /* [ceil(max_tokens/block_tokens)], NULL until needed; owned unless external */
    int n_blocks;
    /* Rings of window rows, slot = position mod ring_rows; rows below window_lo do not exist. */
    uint8_t *ring[MDL_MAX_LAYERS];
    int ring_rows[MDL_MAX_LAYERS];
    int window_lo[MDL_MAX_LAYERS];
    uint8_t *draft_ring[MDL_MAX_DRAFT];
    int draft_ring_rows, draft_lo;
    /* Raw compressor input (kv, gate) f32 [2][head_dim] of the last tail_rows tokens, for sources of ratio 2. */
    float *tail[MDL_MAX_SOURCES];
    int tail_rows;
    /* (X, pre) entering the cut layer, positions bridge_lo .. encoded-1, slot = position mod params.replay. */
    uint16_t *bridge_x;
    float *bridge_pre;
    int bridge_lo;
    void *memory; /* rings, tails, bridge in one piece */
};

int mdl_seq_new(const struct mdl_config *cfg, const struct mdl_seq_params *params, struct mdl_seq **out,
                struct cfg_error *err);
void mdl_seq_free(struct mdl_seq *seq);
/* Sequences of this process that are not freed. Any thread. */
long mdl_seq_live(void);
/* Forgets everything but keeps the memory. */
void mdl_seq_reset(struct mdl_seq *seq);
/* Lends block number `block` (4 KiB aligned, layout.block_bytes) to a sequence with external blocks, or NULL takes it
 * back; returns what was there. A shared block must be complete: no row of it is written again. */
uint8_t *mdl_seq_attach(struct mdl_seq *seq, int block, uint8_t *bytes);
/* Makes blocks exist for tokens 0..tokens-1. -ENOSPC beyond max_tokens or where an external block is missing, -ENOMEM.
 */
int mdl_seq_reserve(struct mdl_seq *seq, int tokens, struct cfg_error *err);
/* Takes back committed tokens so that len tokens remain. -EINVAL when more than params.rollback of the most tokens that
 * the sequence ever had would be gone, in however many calls. */
int mdl_seq_truncate(struct mdl_seq *seq, int len, struct cfg_error *err);

/* A prefix hit: dst (empty) receives src's global rows of the first hit tokens (even) and its ids; with window also the
 * encoder window rows of the last `window` positions before hit, which src must still hold. src is unchanged. */
int mdl_seq_copy_prefix(struct mdl_seq *dst, const struct mdl_seq *src, int hit, bool window, struct cfg_error *err);

/* An empty sequence whose blocks hold the global rows of the first `hit` (even) tokens already: takes their ids [hit].
 */
void mdl_seq_adopt(struct mdl_seq *seq, const int32_t *ids, int hit);

/* A snapshot: what a sequence needs beside its full blocks to go on exactly at an even position: the global rows of the
 * unfinished block, and the encoder's window rows of the last window + window_extra positions. Possible for positions
 * whose rows the rings still hold; 0 bytes when not. Layout: docs/FORMATS.md. */
size_t mdl_seq_snapshot_bytes(const struct mdl_seq *seq, int pos);
void mdl_seq_snapshot_save(const struct mdl_seq *seq, int pos, uint8_t *out);
/* Into an empty sequence whose blocks are there (full ones with their rows, the unfinished one to be filled); takes
 * ids [pos]. -EINVAL when the bytes do not fit this sequence and position. */
int mdl_seq_snapshot_load(struct mdl_seq *seq, const int32_t *ids, int pos, const uint8_t *bytes, size_t len);

uint8_t *mdl_seq_main_row(const struct mdl_seq *seq, int source, int row);
uint8_t *mdl_seq_index_codes(const struct mdl_seq *seq, int source, int row);
uint8_t *mdl_seq_index_scales(const struct mdl_seq *seq, int source, int row);
uint8_t *mdl_seq_ring_row(const struct mdl_seq *seq, int layer, int pos);
uint8_t *mdl_seq_draft_row(const struct mdl_seq *seq, int stage, int pos);
float *mdl_seq_tail(const struct mdl_seq *seq, int source, int pos);

/* Bytes of a sequence that do not grow with its length: what the window alone needs, and what rollback adds. */
void mdl_seq_fixed_bytes(const struct mdl_config *cfg, int rollback, size_t *window_bytes, size_t *rollback_bytes);

#endif
