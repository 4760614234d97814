/* One model step: a ragged batch of rows that walks through the layers.
 *
 * A step holds segments. A segment is a run of consecutive positions of one sequence (a prefill chunk, a decode token,
 * the rows of a verification, a replayed tail, a draft block) with the range of layers it passes. Every row is computed
 * from its own sequence alone, so the same row gives the same bits in any company.
 *
 * The pass is resumable: mdl_step_run works until the step is done or needs something that is not there (Engram rows,
 * global KV rows, expert results), returns MDL_STEP_WAIT, and goes on from the same (layer, phase) when called again
 * after delivery. State lives in struct mdl_step only, never on the stack. mdl_step_advance does one phase at a time
 * for callers that must look at other things in between.
 *
 * Nothing a sequence can see changes before mdl_step_commit; an uncommitted step may be thrown away (mdl_step_begin) or
 * rerun. One owner thread at a time. */
#ifndef WEFT_MODEL_STEP_H
#define WEFT_MODEL_STEP_H

#include "model/kv.h"
#include "model/model.h"

enum mdl_step_status { MDL_STEP_DONE = 0, MDL_STEP_WAIT = 1, MDL_STEP_MORE = 2 };

enum mdl_phase {
    MDL_PHASE_START,   /* rows enter: embedding or bridge rows */
    MDL_PHASE_ENGRAM,  /* waits for table rows */
    MDL_PHASE_PROJECT, /* mix, queries, window rows, compressor, index queries */
    MDL_PHASE_ATTEND,  /* waits for global KV rows; select, attend, output, expand */
    MDL_PHASE_ROUTE,   /* mix, router, dispatch to experts, shared expert */
    MDL_PHASE_COMBINE, /* waits for expert results; sum, expand */
    MDL_PHASE_LEAVE,   /* bridge projection for segments that end at the cut */
    MDL_PHASE_HEAD,    /* drafter rows, logits */
    MDL_PHASE_DONE,
};

struct mdl_segment {
    struct mdl_seq *seq;
    int start, n;               /* positions start .. start+n-1 */
    const int32_t *ids;         /* [n] borrowed until commit; NULL for segments that start at the cut layer */
    int layer_begin, layer_end; /* layers [begin, end); begin is 0 or the cut layer */
    int write_from;             /* global rows of tokens below this position are cached already and are not written */
    int logits_from;            /* rows logits_from .. n-1 (index in the segment) get logits; n: none */
    bool draft;                 /* a draft block: stages instead of layers, rows see each other */
    int first_row;              /* set by mdl_step_add: row of the step that holds position start */
};

/* Expert work of one layer, as it would travel: FP8 codes in, bf16 rows out. */
struct mdl_exchange {
    int layer; /* backbone layer, or n_layers + stage of the drafter */
    int rows, k;
    const uint8_t *codes;  /* E4M3 [rows][hidden] */
    const uint8_t *scales; /* E8M0 [rows][hidden/32] */
    const int32_t *expert; /* [rows][k], ascending per row */
    const float *weight;   /* [rows][k], routing weight, applied by the expert before its second projection */
    uint16_t *result;      /* bf16 [rows][k][hidden] */
    uint8_t *have;         /* [rows][k] delivered */
    int pending;
};

/* Engram rows of one layer for the rows of a step. */
struct mdl_engram_fetch {
    int slot; /* index in config.engram_layers */
    int rows, columns;
    const int64_t *row_ids; /* [rows][columns] */
    uint8_t *codes;         /* E4M3 [rows][columns][dim] */
    uint8_t *scales;        /* E8M0 [rows][columns][dim/32] */
    uint8_t *have;          /* [rows][columns] */
    int pending;
};

struct mdl_step;

/* Who answers. Each call may deliver at once, later, in any order; 0 or a negative errno (the step fails with it). */
struct mdl_providers {
    void *ctx;
    int (*experts)(void *ctx, struct mdl_step *step, struct mdl_exchange *x);
    int (*engram)(void *ctx, struct mdl_step *step, struct mdl_engram_fetch *f);
    /* Are the first `rows` global rows of the source there? 1 yes, 0 not yet (asked again at the next run). */
    int (*kv)(void *ctx, struct mdl_step *step, const struct mdl_seq *seq, int source, int rows);
};

/* Answers everything on the spot from the mapped checkpoint. ctx is unused. */
extern const struct mdl_providers mdl_providers_local;

/* Computes one delivered-at-once exchange on this machine: what an expert shard does with a message. first..first+count
 * selects the experts it owns. */
int mdl_experts_compute(const struct mdl_model *m, struct mdl_exchange *x, int first, int count);
/* Hands in one result row (bf16 [hidden]); a second delivery of the same slot is ignored. */
void mdl_exchange_deliver(struct mdl_exchange *x, int row, int slot, int hidden, const uint16_t *result);
void mdl_engram_deliver(struct mdl_engram_fetch *f, int row, int column, int dim, const uint8_t *codes,
                        const uint8_t *scales);

/* Observation points for tests and dumps; a hook may overwrite the arrays it is shown (layer-forced comparison). */
enum mdl_hook_point {
    MDL_HOOK_LAYER,    /* before a layer: x, pre, sel, cand */
    MDL_HOOK_ENGRAM,   /* row ids known: step->fetch[slot] */
    MDL_HOOK_TAPS,     /* after taps were taken */
    MDL_HOOK_ATTN_IN,  /* xin */
    MDL_HOOK_SELECTED, /* index sources only: sel, cand, score_dump (when want_scores) */
    MDL_HOOK_ATTN_OUT, /* out, before expand */
    MDL_HOOK_MID,      /* x after the attention half */
    MDL_HOOK_ROUTED,   /* exchange.expert, exchange.weight, router scores z */
    MDL_HOOK_FFN_OUT,  /* out, before expand */
    MDL_HOOK_LEFT,     /* after the last layer of any segment: x, pre */
};

/* Set before rows are added. */
struct mdl_hooks {
    void *ctx;
    bool want_scores; /* keep every visible row's index score of the layer at hand in step->score_dump */
    void (*point)(void *ctx, struct mdl_step *step, enum mdl_hook_point at, int layer);
};

struct mdl_step {
    struct mdl_model *m;
    const struct mdl_providers *providers;
    struct mdl_hooks hooks;
    int capacity;   /* rows */
    size_t swa_row; /* bytes of a window row */
    int max_tokens; /* longest sequence a row may look back over */

    int n_segments, n_rows;
    struct mdl_segment *segment; /* [capacity] */
    int *row_segment, *row_pos;  /* [capacity] */
    int32_t *draft_ids;          /* [capacity][MDL_MAX_BLOCK] ids of draft segments */

    /* Where the pass stands. */
    int layer;
    enum mdl_phase phase;
    int status;   /* negative errno once failed */
    int n_active; /* rows that take part in the current layer */
    int *active;  /* [capacity] row numbers, ascending */

    /* Per row of the step. */
    uint16_t *x;  /* bf16 [capacity][4][hidden] residual streams */
    float *pre;   /* [capacity][4] carried mixing weights */
    int32_t *sel; /* [capacity][index_topk] selected rows, ascending, -1 padded */
    int *sel_n;
    int32_t *cand;   /* [capacity][candidate_blocks] kept blocks, ascending */
    int *cand_n;     /* -1: every visible row is a candidate */
    uint16_t *taps;  /* bf16 [capacity][n_taps*hidden] */
    uint8_t *window; /* [layers + stages][capacity] window rows of this step */
    float *tail;     /* [sources][capacity][2][head_dim] */
    float *logits;   /* [n_logits][vocab]; grown as needed */
    int n_logits, logits_cap;
    int *logits_row; /* [capacity] index into logits or -1 */

    /* Per active row of the current layer. */
    float *mix_pre, *mix_post, *mix_comb; /* [4], [4], [16] */
    uint16_t *u;                          /* collapsed, then normed input [hidden]: xin */
    uint16_t *xq;                         /* fake-quantised input of the linear at hand, widest K */
    uint16_t *qr;                         /* [q_lora] */
    uint16_t *q;                          /* [heads*head_dim], becomes the attention output o */
    uint16_t *kv;                         /* [head_dim] */
    uint16_t *latent;                     /* [head_dim] per completed group */
    uint16_t *wide;                       /* grouped output, Engram values, normed head input: widest of those */
    float *z;                             /* [experts] router scores */
    uint16_t *qi;                         /* [index_heads*index_dim] */
    float *wt;                            /* [index_heads] */
    uint16_t *out;                        /* [hidden] */
    uint16_t *shared;                     /* [hidden] shared expert */
    struct mdl_rope_angle *angle[2];      /* per row of the step, both tables */
    int *group_row;                       /* rows that complete a compressor group, rows that leave, rows of the head */

    struct mdl_exchange exchange;
    uint8_t *ex_codes, *ex_scales;
    int32_t *ex_expert;
    float *ex_weight;
    struct mdl_engram_fetch fetch[MDL_MAX_ENGRAM];

    float *scores; /* index scores of a group of rows */
    size_t scores_cap;
    float *score_dump; /* [capacity][score_stride], unmasked, when hooks.want_scores */
    int score_stride;
    struct mdl_scratch *scratch; /* [team size] */
    void *memory;
};

/* capacity: most rows of a step; max_tokens: longest sequence. */
int mdl_step_new(struct mdl_model *m, int capacity, int max_tokens, struct mdl_step **out, struct cfg_error *err);
void mdl_step_free(struct mdl_step *s);

/* Starts an empty step; providers NULL: local ones. */
void mdl_step_begin(struct mdl_step *s, const struct mdl_providers *providers);
/* Adds a segment (copied). A sequence may appear once; its rows begin at its end or before (without hooks), bridge rows
 * are ones that it holds. On an error nothing is added: -ENOSPC when rows or tokens do not fit, -EINVAL, -ENOMEM. */
int mdl_step_add(struct mdl_step *s, const struct mdl_segment *seg, struct cfg_error *err);

/* One phase. MDL_STEP_MORE: call again; MDL_STEP_WAIT: something is outstanding; MDL_STEP_DONE; negative errno. */
int mdl_step_advance(struct mdl_step *s);
/* Until done, waiting or failed. */
int mdl_step_run(struct mdl_step *s);

/* Makes the first `accept` rows of a finished segment part of its sequence. accept = n except after verification. */
void mdl_step_commit(struct mdl_step *s, int segment, int accept);

/* Logits of a row of a segment (index in the segment), f32 [vocab]; NULL when not asked for. */
const float *mdl_step_logits(const struct mdl_step *s, int segment, int row);

/* The block that computes `layer` (drafter stages follow the backbone layers). */
const struct mdl_block *mdl_step_block(const struct mdl_step *s, int layer);

#endif
