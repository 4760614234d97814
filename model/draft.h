/* The drafter: one block of tokens per sequence from the backbone's taps, several sequences in one step.
 *
 * The parallel part is an ordinary step over the drafter's stages (mdl_draft_add, then mdl_step_run); the sequential
 * part adds the Markov bias and picks tokens one by one (mdl_draft_pick). Nothing of a draft is kept: the rings hold
 * rows of committed positions only, so a rejected draft needs no undoing. The whole block is always computed, because
 * its rows see each other; a caller that wants fewer drafts uses the first ones. */
#ifndef WEFT_MODEL_DRAFT_H
#define WEFT_MODEL_DRAFT_H

#include "model/step.h"

/* Picks a token for position pos of the segment from logits f32 [vocab], which it may change; a negative value ends the
 * draft before this position. */
typedef int32_t mdl_draft_choose_fn(void *ctx, int segment, int pos, float *logits);

struct mdl_draft {
    int n;
    int32_t ids[MDL_MAX_BLOCK];      /* guess j is for position seq->len + 1 + j */
    float confidence[MDL_MAX_BLOCK]; /* raw logit of being accepted, given that the earlier ones were */
};

/* Adds the draft block of a sequence whose next token (position seq->len) is `token`. The ids live in the step. */
int mdl_draft_add(struct mdl_step *step, struct mdl_seq *seq, int32_t token, struct cfg_error *err);
/* After the step is done: the first n guesses of a segment. choose NULL: highest logit, lowest id on ties. logits, when
 * given, receives f32 [n][vocab]. Runs on the step's team. -ENOMEM. */
int mdl_draft_pick(struct mdl_step *step, int segment, int n, mdl_draft_choose_fn *choose, void *ctx,
                   struct mdl_draft *out, float *logits);

/* Index of the highest value, the lowest index on ties. */
int32_t mdl_argmax(const float *x, int n);

#endif
