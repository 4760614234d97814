#include "actors/recipe.h"

#include <string.h>

size_t act_recipe_tail(int n_ids, int n_blocks, int n_bias, int n_stop)
{
    return (size_t)n_ids * sizeof(int32_t) + (size_t)n_blocks * sizeof(struct act_key) +
           (size_t)n_bias * sizeof(struct mdl_logit_bias) + (size_t)n_stop * sizeof(int32_t);
}

const char *act_recipe_read(struct act_msg *m, int n_ids, int n_blocks, struct act_recipe *out)
{
    const struct act_b_prefill *b = act_msg_body(m, sizeof *b);
    size_t bytes;
    const uint8_t *at = act_msg_tail(m, &bytes);
    *out = (struct act_recipe){.body = b, .n_ids = n_ids, .n_blocks = n_blocks};
    if (!b || n_ids < 1 || n_blocks < 0 || b->biases > MDL_MAX_LOGIT_BIAS || b->stop_ids > 1024 ||
        act_recipe_tail(n_ids, n_blocks, (int)b->biases, (int)b->stop_ids) > bytes)
        return "the recipe does not fit its message";
    out->ids = (const int32_t *)(const void *)at;
    at += (size_t)n_ids * sizeof(int32_t);
    out->chain = (const struct act_key *)(const void *)at;
    at += (size_t)n_blocks * sizeof(struct act_key);
    out->n_stop = (int)b->stop_ids;
    mdl_sampling_init(&out->sampling);
    out->sampling.temperature = (double)b->temperature;
    out->sampling.top_p = (double)b->top_p;
    out->sampling.min_p = (double)b->min_p;
    out->sampling.top_k = (int)b->top_k;
    out->sampling.presence_penalty = (double)b->presence;
    out->sampling.frequency_penalty = (double)b->frequency;
    out->sampling.repetition_penalty = (double)b->repetition;
    out->sampling.seed = b->seed;
    out->sampling.top_logprobs = (int)b->top_logprobs;
    out->sampling.bias = (const struct mdl_logit_bias *)(const void *)at;
    out->sampling.n_bias = (int)b->biases;
    at += (size_t)b->biases * sizeof(struct mdl_logit_bias);
    out->stop = (const int32_t *)(const void *)at;
    return NULL;
}
