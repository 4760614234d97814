/* Models, random prompts, runs that remember every logits row, and bit-exact comparison of sequences, for the equality
 * tests of model/. Failures end the running test with a message that starts with `what`. Main thread of a test. */
#ifndef WEFT_TESTS_SUPPORT_MODEL_H
#define WEFT_TESTS_SUPPORT_MODEL_H

#include "model/decode.h"
#include "model/prefill.h"

#define TS_MINI8 "tests/golden/mini8"
#define TS_EDGE "tests/golden/edge"
#define TS_TINY "samples/tiny" /* may be absent */

/* cpu NULL: the path that the environment or the machine chooses. */
struct mdl_model *ts_model_cpu(const char *dir, int threads, const char *cpu);
struct mdl_model *ts_model(const char *dir, int threads);
struct mdl_step *ts_step(struct mdl_model *m, int rows, int max_tokens);
struct mdl_seq *ts_seq(const struct mdl_model *m, struct mdl_seq_params params);

/* A new folder with the checkpoint of `dir` (from the repository's root) without the tensors that only the layers behind
 * the bridge need; the caller removes and frees it. */
char *ts_encoder_only(const char *dir);

/* A small generator: the next number below n, from a state that the caller seeds. */
uint32_t ts_random(uint64_t *state, uint32_t n);
/* n token ids of the model's vocabulary, freed by the caller. */
int32_t *ts_ids(const struct mdl_model *m, uint64_t seed, int n);

/* ---- providers that answer late ---- */

enum ts_fault { TS_FAULT_NONE, TS_FAULT_EXPERTS, TS_FAULT_ENGRAM, TS_FAULT_KV };

/* Takes every question and answers on ts_late_deliver, some at a time, in shuffled order, with duplicates that carry
 * other bytes (the first delivery counts). Experts are computed in shards of random size. */
struct ts_late {
    struct mdl_providers providers;
    uint64_t random;
    enum ts_fault fault; /* this provider fails with -EIO at its fault_at-th call */
    int fault_at;
    int calls[3];    /* experts, engram, kv */
    int waits;       /* times the step had to wait */
    int kv_refusals; /* open ones */
    struct ts_answer *queue;
    int n, cap;
};

void ts_late_init(struct ts_late *l, uint64_t seed);
void ts_late_free(struct ts_late *l);
/* Forgets what was asked for a step that is thrown away. */
void ts_late_drop(struct ts_late *l);
/* Hands in a few of the open answers. */
void ts_late_deliver(struct ts_late *l);
/* Runs the step to its end; late NULL: it must not wait. Returns mdl_step_run's last word. */
int ts_finish(struct mdl_step *step, struct ts_late *late);

/* ---- runs ---- */

/* One sequence and the tokens it is to see, with the logits of each row by position. */
struct ts_run {
    struct mdl_model *m;
    struct mdl_seq *seq;
    struct ts_late *late; /* NULL: local providers */
    int n;
    int32_t *ids;            /* [n] */
    float *logits;           /* [n][vocab] */
    uint8_t *seen;           /* [n] rows of logits that exist */
    struct mdl_prefill plan; /* of the last ts_run_prefill */
};

struct ts_run ts_run_new(struct mdl_model *m, struct mdl_seq_params params, uint64_t seed, int n);
void ts_run_free(struct ts_run *r);
/* The first n_prompt ids. chunks: sizes used in turn, ended by 0; NULL: as many rows as the step takes. */
void ts_run_prefill(struct ts_run *r, struct mdl_step *step, int n_prompt, const struct mdl_prefill_params *params,
                    const int *chunks);
/* Ids from the sequence's end to position `to`, as segments of `rows` rows through all layers. */
void ts_run_decode(struct ts_run *r, struct mdl_step *step, int to, int rows);
/* Keeps the logits of a finished segment of the step. */
void ts_run_note(struct ts_run *r, const struct mdl_step *step, int segment);
/* Segment of rows start .. start+n-1 through all layers with all logits. */
struct mdl_segment ts_segment(const struct ts_run *r, int start, int n);

/* Logits of positions from..to-1 exist in both runs and have the same bits. */
void ts_same_logits(const struct ts_run *a, const struct ts_run *b, int from, int to, const char *what);

/* ---- state ---- */

struct ts_scope {
    int from;     /* tails and rings are compared from this position on, global rows from the even one at or below */
    bool visible; /* only what a later row can see (for runs that kept different amounts of the past) */
    bool bridge;  /* bridge rows too */
};

/* Everything that a later step of the two sequences reads has the same bits. */
void ts_same_state(const struct mdl_seq *a, const struct mdl_seq *b, struct ts_scope scope, const char *what);

/* All bytes of a sequence that it may have to show to anyone: numbers, rings, tails, bridge, ids, and the global rows
 * of its first `tokens` tokens (at least the committed ones). */
struct ts_image {
    uint8_t *data;
    size_t len;
};
struct ts_image ts_image_take(const struct mdl_seq *s, int tokens);
bool ts_image_same(const struct ts_image *a, const struct ts_image *b);
void ts_image_free(struct ts_image *i);

/* A sequence in the same state, in memory of its own. */
struct mdl_seq *ts_seq_clone(const struct mdl_seq *s);

#endif
