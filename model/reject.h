/* Speculative sampling by rejection: a draft drawn from the drafter's distribution q is kept with probability
 * min(1, p/q) under the target's distribution p, and replaced by a draw from the normalised max(p - q, 0) otherwise
 * (Leviathan et al. 2023, Chen et al. 2023). What comes out is distributed as p, whatever q is, as long as q is exactly
 * what the draft was drawn from, and as long as the decision to verify a draft was made without knowing it (plan.h).
 *
 * It accepts at least as often as sample-and-match, but the tokens of a seed depend on the schedule: the same place can
 * be an accepted draft in one run and a draw of the target in another. Therefore opt-in.
 *
 * Distributions are weights, f32 [vocab], in any scale (mdl_sampler_distribution). Three random numbers per position,
 * from generator streams of their own. Pure functions. */
#ifndef WEFT_MODEL_REJECT_H
#define WEFT_MODEL_REJECT_H

#include <stdint.h>

/* A draft for this position, drawn from q. */
int32_t mdl_reject_draft(const float *q, int vocab, uint64_t seed, int64_t position);
/* The token of this position. q NULL: no draft was offered here, a plain draw from p. Otherwise `draft` was drawn from
 * q; the result is it or a token that is not it (or, where p and q are equal within rounding, a draw from p). */
int32_t mdl_reject_choose(const float *p, const float *q, int32_t draft, int vocab, uint64_t seed, int64_t position);

#endif
