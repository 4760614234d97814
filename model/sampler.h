/* From logits to one token: a recipe applied to numbers, with no state of its own.
 *
 * The token is a function of (recipe, logits, history, position) alone, bit for bit on every machine: the arithmetic
 * is double precision in a fixed order with exponentials of this file's own, and randomness is a counter-based
 * generator keyed by (seed, position). So a request gives the same tokens in whatever process and batch it runs, with
 * or without drafts.
 *
 * Order of the steps; later ones see what earlier ones left:
 *   1 repetition_penalty  for every token of prompt or output: a positive logit is divided by it, others multiplied
 *   2 frequency_penalty   times how often the token occurs in the output, subtracted;
 *     presence_penalty    subtracted if it occurs in the output
 *   3 bias                added
 *   4 temperature         0: the highest logit wins, of equals the lowest id, and the steps below do nothing
 *   5 top_k               the k most probable tokens; of equals the lower ids
 *   6 top_p               of these, the fewest most probable ones that together have at least this share of their mass
 *   7 min_p               of these, the ones at least this many times as probable as the most probable
 *   8 draw                by u in [0, 1) from the generator: the first token at which the running mass exceeds u
 * The draw walks the tokens by falling probability (of equals, rising id) after top_k or top_p, by rising id
 * otherwise. A token e^-64 times as probable as the best, or less, has no chance. Log-probabilities are those of the
 * model: of the logits as given, before step 1. */
#ifndef WEFT_MODEL_SAMPLER_H
#define WEFT_MODEL_SAMPLER_H

#include <stdint.h>

#include "config/error.h"

enum { MDL_MAX_TOP_LOGPROBS = 20, MDL_MAX_LOGIT_BIAS = 1024 };

struct mdl_logit_bias {
    int32_t id;
    float bias; /* -100..100 */
};

/* The recipe; see the ranges. Copy freely; bias is not owned. */
struct mdl_sampling {
    double temperature;        /* 0..100 */
    int top_k;                 /* 0 and above; 0: all */
    double top_p;              /* above 0, to 1; 1: all */
    double min_p;              /* 0..1; 0: all */
    double repetition_penalty; /* above 0, to 10; 1: none */
    double presence_penalty;   /* -2..2 */
    double frequency_penalty;  /* -2..2 */
    const struct mdl_logit_bias *bias;
    int n_bias; /* at most MDL_MAX_LOGIT_BIAS, ids different */
    uint64_t seed;
    int top_logprobs; /* 0..MDL_MAX_TOP_LOGPROBS: alternatives that struct mdl_logprobs lists */
};

struct mdl_logprobs {
    double logprob; /* of the token, natural */
    int n_top;
    struct {
        int32_t id;
        double logprob;
    } top[MDL_MAX_TOP_LOGPROBS]; /* falling, of equals the lower id first */
};

/* Temperature 1, everything else off, seed 0. */
void mdl_sampling_init(struct mdl_sampling *s);
/* -EINVAL with the field's name when a value is out of its range or an id is not below vocab. */
int mdl_sampling_check(const struct mdl_sampling *s, int vocab, struct cfg_error *err);

/* -EDOM with the first token whose logit is NaN or +infinity: no sound model gives one. */
int mdl_logits_check(const float *logits, int vocab, struct cfg_error *err);

/* Scratch for one thread and vocabularies of up to max_vocab ids (20 bytes per id). NULL: out of memory. */
struct mdl_sampler;
struct mdl_sampler *mdl_sampler_new(int max_vocab);
void mdl_sampler_free(struct mdl_sampler *scratch);

/* Samples one token of ids 0..vocab-1; a caller whose model has more logits than its tokenizer has ids passes the
 * tokenizer's size. The recipe must have passed mdl_sampling_check.
 * history: prompt (n_prompt ids) and output so far, n_history in all; ids outside the vocabulary are ignored.
 * position: index of the sampled token in its sequence; with the seed it keys the random number.
 * lp may be NULL. Errors: -EDOM when a logit is NaN or +infinity, or all are -infinity (which is how a caller masks
 * tokens), also after bias; nothing is written then. */
int mdl_sampler_sample(struct mdl_sampler *scratch, const struct mdl_sampling *s, const float *logits, int vocab,
                       const int32_t *history, int n_history, int n_prompt, int64_t position, int32_t *id,
                       struct mdl_logprobs *lp, struct cfg_error *err);

/* Steps 1 to 7 without the draw: weight [vocab], of which the token is to be drawn in proportion; 0 for what the recipe
 * excludes, a single 1 at temperature 0. Errors as above. */
int mdl_sampler_distribution(struct mdl_sampler *scratch, const struct mdl_sampling *s, const float *logits, int vocab,
                             const int32_t *history, int n_history, int n_prompt, float *weight, struct cfg_error *err);
/* Log-probabilities of a token that was chosen elsewhere, from the logits as given. -EDOM as above. */
int mdl_sampler_logprobs(struct mdl_sampler *scratch, const float *logits, int vocab, int32_t id, int n_top,
                         struct mdl_logprobs *lp, struct cfg_error *err);

/* The generator: Philox 4x32, ten rounds, on counter (position, stream) under the key seed. Stream 0 is the sampler's,
 * those whose low byte is 1 to 4 are reject.h's. Equal arguments give equal numbers; different ones independent numbers. */
void mdl_random(uint64_t seed, uint64_t position, uint32_t stream, uint32_t out[4]);
/* A number in [0, 1) with 53 random bits. */
double mdl_random_unit(uint64_t seed, uint64_t position, uint32_t stream);

#endif
