/* The modules of a block as functions over rows; internal to model/ and its tests.
 *
 * x is the array of residual streams bf16 [..][4][hidden]; idx lists the rows that take part (NULL: 0..n-1). All other
 * arrays are compact: entry i belongs to idx[i]. */
#ifndef WEFT_MODEL_MODULES_H
#define WEFT_MODEL_MODULES_H

#include "model/step.h"

struct mdl_scratch {
    uint16_t *keys;  /* bf16 [window + rows of a draft block + index_topk][head_dim] */
    float *prob;     /* [same rows] */
    uint64_t *order; /* [most visible rows] selection keys */
    float *block;    /* [most blocks] candidate block scores */
};

/* mHC: pre [n][4], post [n][4], comb [n][4][4] (first index = source stream). */
void mdl_mhc_mix(const struct mdl_exec *ex, const struct mdl_hc *hc, const uint16_t *x, const int *idx, int n,
                 float *pre, float *post, float *comb);
/* u[i] = bf(sum_c pre[c] x[c]); pre is indexed like x when by_row, else compact. */
void mdl_mhc_collapse(const struct mdl_exec *ex, const uint16_t *x, const float *pre, bool by_row, const int *idx,
                      int n, uint16_t *u);
/* x[j] = bf(post[j] v + sum_i comb[i][j] x[i]) in place. */
void mdl_mhc_expand(const struct mdl_exec *ex, const uint16_t *v, const float *post, const float *comb, const int *idx,
                    int n, uint16_t *x);

/* Attention half of `layer` for the active rows of the step: reads s->u, leaves the result in s->out. */
void mdl_attn_project(struct mdl_step *s, int layer);
void mdl_attn_attend(struct mdl_step *s, int layer);
/* What the cut layer keeps of rows that leave before it: global rows, and window rows for a full bridge. rows [n] are
 * step rows, s->u holds their normed input of that layer. */
void mdl_attn_bridge(struct mdl_step *s, int layer, const int *rows, int n);
/* One query row's attention: q bf16 [heads][dim], keys bf16 [n][dim], sink [heads] -> o bf16 [heads][dim] (q may be o).
 * prob [min(MDL_ATTN_HEADS, h1-h0)][n] is scratch. Heads h0..h1-1. */
void mdl_attn_core(const struct mdl_backend *be, const uint16_t *q, const uint16_t *keys, int n, int dim,
                   const float *sink, int h0, int h1, float *prob, uint16_t *o);

/* The k best of score[0..n-1]: higher first, ties to the lower index, never -inf; ascending ids to sel, returns how
 * many. order: n entries of scratch. */
int mdl_select_topk(const float *score, int n, int k, uint64_t *order, int32_t *sel);
/* Candidate blocks: the newest block always, then the best by their best row; ascending block ids, returns how many. */
int mdl_select_blocks(const float *score, int n, int block, int keep, float *block_score, uint64_t *order,
                      int32_t *blocks);
/* Sets score to -inf outside the kept blocks. */
void mdl_select_restrict(float *score, int n, int block, const int32_t *blocks, int n_blocks);

void mdl_index_select(struct mdl_step *s, int layer);

/* Router: z f32 [n][experts] (logits), expert [n][k] ascending, weight [n][k]. */
void mdl_moe_route(const struct mdl_exec *ex, const struct mdl_block *b, const uint16_t *xin, int n, int k, float *z,
                   int32_t *expert, float *weight);
/* One expert over n rows: x is fake-quantised bf16 [n][hidden], weight [n] or NULL for 1; y bf16 [n][hidden]. */
int mdl_moe_expert(const struct mdl_exec *ex, const struct mdl_expert *e, const uint16_t *x, int n, const float *weight,
                   uint16_t *y);
/* out[i] = bf(sum of the k routed results of row i, ascending expert id, then shared[i]), summed in float32. result
 * bf16 [n][k][hidden], shared and out bf16 [n][hidden]. */
void mdl_moe_combine(const struct mdl_exec *ex, const uint16_t *result, const uint16_t *shared, int n, int k,
                     uint16_t *out);

/* n-gram rows of one position: history[0] is the token itself, [1..ngram-1] the ones before (-1: none). */
void mdl_engram_rows(const struct mdl_config *cfg, const struct mdl_engram *e, const int32_t *map,
                     const int32_t *history, int64_t *row_ids);
/* Gate and add: e bf16 [n][columns*dim] unquantised table values; x is changed. dot and gate f32 [n][4] are optional
 * outputs, kv bf16 [n][5*hidden] is scratch or output. */
void mdl_engram_apply(const struct mdl_exec *ex, const struct mdl_engram *e, const uint16_t *values, const int *idx,
                      int n, uint16_t *quantised, uint16_t *kv, float *dot, float *gate, uint16_t *x);

/* logits f32 [n][vocab] of collapsed rows y; normed bf16 [n][hidden] is scratch. */
void mdl_head_logits(const struct mdl_exec *ex, const struct mdl_checkpoint *ck, const uint16_t *norm,
                     const uint16_t *y, int n, uint16_t *normed, float *logits);

/* Drafter ring rows of the taps of n rows: window rows of every stage, positions given by angles. */
void mdl_draft_ring_rows(struct mdl_step *s, const int *rows, int n);

#endif
