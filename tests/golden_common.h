/* What the suites of the golden runner share: a case, its tensors, statistics, and the count of checks.
 *
 * A case is a folder in the format of tests/golden/README.md. Tensors handed out by gold_get count as looked at; what
 * no check looked at is reported as a failure at the end of the case. Everything runs on one thread; memory from
 * gold_alloc lives until the end of the suite. */
#ifndef WEFT_TESTS_GOLDEN_COMMON_H
#define WEFT_TESTS_GOLDEN_COMMON_H

#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <time.h>

#include "model/draft.h"
#include "model/model.h"
#include "model/prefill.h"
#include "model/step.h"

struct gold {
    const char *cpu, *filter;
    int threads;
    bool verbose;
    int passed, failed;
};

struct gold_case {
    struct gold *g;
    char name[256];
    struct mdl_model *m;
    struct mdl_st *st;
    json_t *json;
    bool *seen;  /* per tensor of st */
    void **data; /* [2] per tensor: aligned bytes, f32 values; filled as needed, until the end of the suite */
    char suite[256];
    struct timespec begin;
    int passed_before, failed_before;
    void **memory;
    size_t n_memory, cap_memory;
};

#define GOLD_PRINTF(a, b) __attribute__((format(printf, a, b)))

/* ---- suites and checks ---- */

/* False when the filter leaves the suite out. */
bool gold_begin(struct gold_case *c, const char *fmt, ...) GOLD_PRINTF(2, 3);
void gold_end(struct gold_case *c);
bool gold_check(struct gold_case *c, bool ok, const char *fmt, ...) GOLD_PRINTF(3, 4);
/* measured <= limit; a NaN fails. */
bool gold_limit(struct gold_case *c, double measured, double limit, const char *fmt, ...) GOLD_PRINTF(4, 5);
/* Reports a call that returned r != 0 with its message; true when r is 0. */
bool gold_ok(struct gold_case *c, int r, const struct cfg_error *err, const char *fmt, ...) GOLD_PRINTF(4, 5);

/* Zeroed memory until the end of the suite; exits when there is none. */
void *gold_alloc(struct gold_case *c, size_t count, size_t size);

/* ---- tensors ---- */

/* NULL when absent. */
const struct mdl_tensor *gold_get(struct gold_case *c, const char *fmt, ...) GOLD_PRINTF(2, 3);
/* Whether it is there, without looking at it. */
bool gold_has(struct gold_case *c, const char *fmt, ...) GOLD_PRINTF(2, 3);
int64_t gold_count(const struct mdl_tensor *t);
int gold_rows(const struct mdl_tensor *t); /* first dimension, 1 for a scalar */
int gold_cols(const struct mdl_tensor *t); /* all other dimensions together */
/* The bytes, aligned for any element. */
const void *gold_data(struct gold_case *c, const struct mdl_tensor *t);
/* As f32; BF16, F32, I32, U8, E4M3 and E8M0 (decoded). */
const float *gold_floats(struct gold_case *c, const struct mdl_tensor *t);
float *gold_from_bf16(struct gold_case *c, const uint16_t *x, size_t n);

/* ---- JSON ---- */

const json_t *gold_json(const json_t *at, const char *key); /* NULL when absent */
double gold_number(const json_t *at, const char *key, double otherwise);
int gold_int(const json_t *at, const char *key, int otherwise);
const char *gold_string(const json_t *at, const char *key);
/* Integer array; *n entries. */
int32_t *gold_ids(struct gold_case *c, const json_t *array, int *n);

/* ---- statistics ---- */

struct gold_stat {
    double *v;
    size_t n, cap;
};

void gold_add(struct gold_stat *s, double v);
/* q in 0..1, the lower of the two ranks around it, so that few rows may have one outlier; 0 when empty. */
double gold_quantile(struct gold_stat *s, double q);
void gold_stat_free(struct gold_stat *s);

/* max|got - want| / max|want|; 0 for equal rows, infinity for a NaN or any difference from an all-zero row. */
double gold_row_error(const float *got, const float *want, size_t n);
double gold_row_error_bf16(const uint16_t *got, const uint16_t *want, size_t n);
/* rms(got - want) / standard deviation of want. */
double gold_logits_error(const float *got, const float *want, size_t n);
/* Highest minus second highest value. */
double gold_gap(const float *x, int n);
/* Standard deviation of n values. */
double gold_sd(const float *x, int n);
/* Gap at the cut when the k highest of n values are taken, -inf never: in standard deviations sd; infinity when all are
 * taken. The lowest taken value goes to *lowest when given. */
double gold_cut_margin(struct gold_case *c, const float *x, int n, int k, double sd, float *lowest);

/* Elements that differ; zeros of either sign are equal, and so are NaNs. packed: two E2M1 codes a byte. */
size_t gold_codes_differ(const uint8_t *got, const uint8_t *want, size_t bytes, bool packed, bool zero_signs);
size_t gold_floats_differ(const float *got, const float *want, size_t n);

/* max|got - want| over n index scores in standard deviations of the golden ones (of their size when there is none). */
double gold_score_error(const float *got, const float *want, int n);
/* The listed blocks are those that kept [blocks] marks. */
bool gold_same_blocks(const int32_t *list, int n, const uint8_t *kept, int blocks);
/* Ascending selection of one row, -1 padded, against the golden one. */
bool gold_same_selection(const int32_t *got, int got_n, const int32_t *want, int want_n);

/* ---- sequences and steps ---- */

struct mdl_seq *gold_seq(struct gold_case *c, int max_tokens, int replay, bool full_bridge);
struct mdl_step *gold_step(struct gold_case *c, int rows, int max_tokens);
/* Greatest number of tokens that any run of the case reaches: prompt, continuation, drafts. */
int gold_longest(struct gold_case *c);

/* ---- the suites ---- */

void gold_modules(struct gold_case *c);
void gold_models(struct gold_case *c);

#endif
