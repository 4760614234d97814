/* What the suites over whole models share: forcing a step layer by layer, prefills, the state after them. */
#ifndef WEFT_TESTS_GOLDEN_MODEL_H
#define WEFT_TESTS_GOLDEN_MODEL_H

#include "tests/golden_common.h"

/* Limits of a run, from golden.json. */
struct gold_limits {
    double rel_median, rel_p95, top1_gap;                                 /* free run */
    double x_median, x_p95, pre_p95, sel_margin_skip, expert_margin_skip; /* forced inputs */
};

struct gold_run {
    const char *name; /* prefix of its tensors */
    const json_t *json;
    int n; /* tokens */
    const int32_t *ids;
    struct gold_limits limit;
};

/* One pass whose layers get golden inputs: before each layer the hook compares the streams with the golden ones, then
 * replaces them and the selections that later layers reuse. */
struct gold_force {
    struct gold_case *c;
    const struct gold_limits *limit;
    const char *prefix; /* tensors are prefix/x.L ... */
    const char *infix;  /* "" or "enc." */
    int base;           /* position of row 0 of those tensors */
    bool whole;         /* final streams and taps belong to the pass: it ends at the last layer */
};

/* Ids of an exact run, as long as the suite; NULL when the tensor is missing. */
const int32_t *gold_run_ids(struct gold_case *c, const char *name);

void gold_force_hook(void *ctx, struct mdl_step *s, enum mdl_hook_point at, int layer);

/* A prefill in chunks (0: as large as the step). logits, when given, receives the rows of every position from
 * logits_from on. False when it failed (reported). */
bool gold_prefill(struct gold_case *c, struct mdl_step *s, struct mdl_seq *seq, const int32_t *ids, int n,
                  const struct mdl_prefill_params *params, int chunk, int logits_from, float *logits);

/* The state after T tokens against prefix/kv.*. Global rows from `hit` on. share: largest share of codes that may
 * differ (golden inputs), or 1; rms: largest rms difference of the decoded rows relative to the golden rms. */
void gold_compare_state(struct gold_case *c, const struct mdl_seq *seq, const char *prefix, int T, int hit,
                        double share, double rms);
/* Both sequences hold the same bits: ids, global rows, window rows, tails, drafter rows. */
bool gold_same_state(const struct mdl_seq *a, const struct mdl_seq *b);

/* Rows of logits against golden ones by rel_median, rel_p95 and top1_gap. */
void gold_compare_logits(struct gold_case *c, const float *got, const float *want, int rows,
                         const struct gold_limits *l, const char *what);

/* Greedy and speculative decoding of a sequence that was prefilled. */
struct gold_decode {
    struct gold_case *c;
    const struct gold_limits *limit;
    struct mdl_step *step; /* holds a whole draft block and its verification */
    struct mdl_seq *seq;
    /* Brings seq back to the state after the prefill; last receives the logits row that predicts the next token. */
    bool (*rewind)(void *ctx, struct mdl_seq *seq, float *last);
    void *ctx;
    const json_t *greedy, *spec; /* ids, gaps, must_agree; ids, steps. NULL: not in the case */
    char logits[300];            /* tensor of the greedy logits */
    char drafts[300];            /* tensors of draft logits, without ".<step>" */
};

void gold_decode(struct gold_decode *d);

/* Rows of a step that decodes: a token or a draft block with the token before it. */
int gold_decode_rows(const struct gold_case *c);

void gold_exact_decode(struct gold_case *c, const struct gold_run *run);
/* Draft blocks from golden taps. */
void gold_drafts(struct gold_case *c, const struct gold_run *run);
/* A replay run: ids and forced limits are those of base, the rest its own. */
void gold_replay(struct gold_case *c, const struct gold_run *base, const struct gold_run *run);

#endif
