/* Speculative sampling by rejection: a draft drawn from the drafter's distribution q is kept with probability
 * min(1, p/q) under the target's distribution p, and replaced by a draw from the normalised max(p - q, 0) otherwise
 * (Leviathan et al. 2023, Chen et al. 2023). What comes out is distributed as p, whatever q is, as long as q is exactly
 * what the draft was drawn from, and as long as the decision to verify a draft was made without knowing it (plan.h).
 *
 * It accepts at least as often as sample-and-match, but the tokens of a seed depend on the schedule: the same place can
 * be an accepted draft in one run and a draw of the target in another. Therefore opt-in.
 *
 * That needs random numbers of which nobody has seen anything when the decision is made. Whether a token is kept, and
 * which one takes its place, is asked once per position. But a position can be drafted several times, by a block that
 * is rejected before it and by the next ones, and what the first of them drew has been seen: it is in the confidences
 * behind it, from which later budgets are made. So each draft has a number by position and place in its block, which
 * together say where the block began, and no two blocks of a sequence begin at the same position; a block that is run
 * again draws the same. And where confidences of one request decide about the drafts of another, requests with the
 * same seed must not share numbers: mdl_reject_key.
 *
 * Distributions are weights, f32 [vocab], in any scale (mdl_sampler_distribution). Pure functions. */
#ifndef WEFT_MODEL_REJECT_H
#define WEFT_MODEL_REJECT_H

#include <stdint.h>

/* A key of this request alone, whatever others have the same seed. Where nothing that other requests drew has a say in
 * what is verified (drafts of fixed length), the seed itself is a key, and a seed then gives the same text again. */
uint64_t mdl_reject_key(uint64_t seed, uint64_t request);
/* A draft for this position, drawn from q. place: of the draft in its block, 0..MDL_MAX_BLOCK-1. */
int32_t mdl_reject_draft(const float *q, int vocab, uint64_t key, int64_t position, int place);
/* The token of this position. q NULL: no draft was offered here, a plain draw from p. Otherwise `draft` was drawn from
 * q; the result is it or a token that is not it (or, where p and q are equal within rounding, a draw from p). */
int32_t mdl_reject_choose(const float *p, const float *q, int32_t draft, int vocab, uint64_t key, int64_t position);

#endif
