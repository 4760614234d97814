/* Decoding rounds: draft, verify, accept, commit, for several streams in one batch.
 *
 * Acceptance is sample-and-match: each verified row picks the token that plain decoding would pick at that position,
 * and a guess is kept when it is that token. The picks depend on logits, recipe and position alone, so the output is
 * the plain run's output under any draft length; greedy is the special case without randomness.
 *
 * A decoder belongs to the thread that owns the model's team; streams belong to the caller. */
#ifndef WEFT_MODEL_DECODE_H
#define WEFT_MODEL_DECODE_H

#include "model/draft.h"

enum { MDL_ROUND_MAX = MDL_MAX_BLOCK + 1 };

/* Raw events, by stream. Every ratio is derived from these. */
struct mdl_counters {
    int64_t steps;    /* rounds that verified at least one row of the stream */
    int64_t drafted;  /* tokens that the drafter produced */
    int64_t offered;  /* of these, rows given to verification */
    int64_t accepted; /* of these, tokens kept */
    /* Tokens that came out of rounds: accepted ones and, behind them, one of the target's own. A step whose last token
     * is an accepted one that ends the text has none of the target's own. */
    int64_t emitted;
    int64_t offered_at[MDL_MAX_BLOCK], accepted_at[MDL_MAX_BLOCK]; /* by draft position, 0 = first */
};

void mdl_counters_add(struct mdl_counters *sum, const struct mdl_counters *c);

/* Picks the token for position pos. draft: the logits are the drafter's and nothing is to be recorded; otherwise the
 * token is final when it returns, because every earlier one was accepted. A negative errno fails the stream. NULL:
 * greedy. */
typedef int32_t mdl_pick_fn(void *ctx, int pos, float *logits, bool draft);

struct mdl_stream {
    struct mdl_seq *seq;
    int32_t next; /* token at position seq->len, already picked, not yet run */
    int draft;    /* guesses to verify per round, 0..draft_block; fewer where the sequence ends */
    int limit;    /* most tokens to emit in this round; at least 1 */
    int offer;    /* of the round's guesses, the first ones that are verified: all, unless the plan says less */
    bool ghost;   /* given up in mid-round: its rows run on, nothing is picked or committed */
    mdl_pick_fn *pick;
    void *pick_ctx;
    /* Results of a round. */
    int32_t emitted[MDL_ROUND_MAX];
    int n_emitted;
    int n_accepted; /* of the guesses that were offered: those that came out; none behind one that ended the text */
    bool finished; /* set by pick: this token is the last, nothing more is picked */
    int status;    /* negative errno of pick: the stream cannot go on, its sequence is as before the round */
    struct mdl_counters counters;
    /* Filled for tests and logs: the last round's guesses. */
    struct mdl_draft guess;
};

/* Guesses that can still come true by length and limit: one token of a round is always the target's own. */
int mdl_stream_draft_cap(const struct mdl_stream *s);

/* Called once per round when every guess is picked and before verification, also when nothing was drafted: may lower
 * `offer` of each stream, which is guess.n. What is not offered was never run, so it needs no undoing. */
typedef void mdl_plan_fn(void *ctx, struct mdl_stream *const *streams, int n);

struct mdl_decoder;

/* max_streams of up to max_draft guesses each, sequences of up to max_tokens. */
int mdl_decoder_new(struct mdl_model *m, int max_streams, int max_draft, int max_tokens, struct mdl_decoder **out,
                    struct cfg_error *err);
void mdl_decoder_free(struct mdl_decoder *d);

/* plan NULL: every guess is offered. */
void mdl_decoder_set_plan(struct mdl_decoder *d, mdl_plan_fn *plan, void *ctx);

/* One round for n streams. Each needs room for at least one more token in its sequence. On an error nothing was
 * committed. */
int mdl_decoder_round(struct mdl_decoder *d, struct mdl_stream *const *streams, int n, struct cfg_error *err);

/* The same in pieces, for callers that do other things in between or whose providers answer with messages. The array of
 * streams is copied, the streams are borrowed until the round is done. A round may be abandoned at any time by
 * beginning another one: nothing was committed then. providers NULL: local ones. */
int mdl_decoder_begin(struct mdl_decoder *d, struct mdl_stream *const *streams, int n,
                      const struct mdl_providers *providers, struct cfg_error *err);
/* MDL_STEP_MORE: call again. MDL_STEP_WAIT: something is outstanding for the step that mdl_decoder_step names.
 * MDL_STEP_DONE: results are in the streams. Negative errno: the round failed, nothing was committed. */
int mdl_decoder_advance(struct mdl_decoder *d, struct cfg_error *err);
/* The step that runs now; NULL between rounds. */
struct mdl_step *mdl_decoder_step(struct mdl_decoder *d);

#endif
