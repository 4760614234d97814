/* How a prompt enters a sequence: which segments, over which layers, in which order.
 *
 *   exact            every token through every layer.
 *   bounded replay   layers below the cut on every token, their end state bridged into the cut layer's global rows;
 * then layers from the cut on for the last R tokens only, as a segment that sees no window row before its start. The
 * normal mode: an approximation that the model was trained for; equal to exact when N <= R.
 *
 * A prefix hit of H tokens (even) brings their global rows along (mdl_seq_copy_prefix).
 *
 * Replay, with window rows of the encoder and N - H >= R (with `extra` more rows also when H - (N - R) <= extra, from
 * N - R on): the encoder goes on at H as if nothing had happened.
 *
 * Replay otherwise: the encoder is replayed from max(0, H - max(W, R)), sees nothing before, writes no row below H.
 *
 * Replay, with rows from C < H on that were written behind a replayed hit of C tokens: the run that wrote them goes on,
 * with its bits. It begins where it did, or at H - (cut (W-1) + W-1 + R), from where on each layer drops its first W-1
 * rows, and writes no row below H.
 *
 * Exact: tokens from H - (layers (W-1) + W) run again through all layers; each layer drops its first W-1 rows, which
 * saw a short window, so everything from H on has the bits of a cold run. A shorter prefix counts as a miss.
 *
 * A plan belongs to the owner of its sequence. It borrows ids. */
#ifndef WEFT_MODEL_PREFILL_H
#define WEFT_MODEL_PREFILL_H

#include "model/step.h"

struct mdl_prefill_params {
    bool exact;
    int replay;       /* R >= window; at most the R that the sequence was made for */
    bool full_bridge; /* cut layer's replayed rows also see window rows before the replay start */
    int hit;          /* H, even; rows below must be in the sequence */
    int hit_clean;    /* C, even; 0: H. Rows from here to H were written behind a replayed hit of this length */
    bool hit_window;  /* encoder window rows before H are there too; not with C < H */
    int hit_extra;    /* this many more of them than the window (snapshots): the encoder restarts exactly before H */
    bool all_logits;  /* logits for every row that runs through all layers (exact: from the hit on), else for the last
                         only */
};

struct mdl_prefill {
    struct mdl_seq *seq;
    const int32_t *ids;
    int n;
    struct mdl_prefill_params params;
    bool two_passes;            /* encoder, then decoder replay */
    int hit;                    /* what was used: 0 after a miss */
    bool continued;             /* the encoder went on exactly: rows behind the hit are what a cold run would write */
    int behind;                 /* else they are those that are written behind a replayed hit of this length */
    int encoder_start;          /* first row of the first pass */
    int decoder_start;          /* first row of the layers from the cut on */
    int encoder_at, decoder_at; /* next row of either pass */
};

/* Checks the request and sets the window bounds of the sequence. ids [n], n >= 1. -EINVAL names the bad part. */
int mdl_prefill_begin(struct mdl_prefill *p, struct mdl_seq *seq, const int32_t *ids, int n,
                      const struct mdl_prefill_params *params, struct cfg_error *err);
/* Goes on where the encoder's pass over all n tokens has ended, somewhere else: the sequence has what
 * mdl_handoff_state_load of form encoder brought. Only replay and full_bridge of params count. -EINVAL. */
int mdl_prefill_resume(struct mdl_prefill *p, struct mdl_seq *seq, const int32_t *ids, int n,
                       const struct mdl_prefill_params *params, struct cfg_error *err);
/* The next segment of at most max_rows rows; false when the prompt is in. To be committed before the next call. */
bool mdl_prefill_next(struct mdl_prefill *p, int max_rows, struct mdl_segment *out);
/* The segment of the last mdl_prefill_next was committed. */
void mdl_prefill_advance(struct mdl_prefill *p, const struct mdl_segment *seg);

/* Runs the whole plan alone in `step` with chunks of at most chunk rows (0: the step's capacity). on_chunk, when given,
 * sees each finished segment (index 0 of the step) before its commit. Logits of the last row stay in the step. */
typedef void mdl_prefill_chunk_fn(void *ctx, struct mdl_step *step, const struct mdl_segment *seg);
int mdl_prefill_run(struct mdl_prefill *p, struct mdl_step *step, int chunk, mdl_prefill_chunk_fn *on_chunk, void *ctx,
                    struct cfg_error *err);

/* Tokens before H that an exact restart reruns: layers (W-1) + W. */
int mdl_prefill_exact_reach(const struct mdl_config *cfg);
/* A run of rows [C, H) behind a replayed hit spares tokens only where it has more than so many: with fewer the run
 * begins where it did. */
int mdl_prefill_run_least(const struct mdl_config *cfg);

#endif
