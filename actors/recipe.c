#include "actors/recipe.h"

#include <string.h>

size_t act_recipe_tail(int n_ids, int n_chain, int n_bias, int n_stop)
{
    return (size_t)n_ids * sizeof(int32_t) + (size_t)n_chain * sizeof(struct act_key) +
           (size_t)n_bias * sizeof(struct mdl_logit_bias) + (size_t)n_stop * sizeof(int32_t);
}

/* Ids index embeddings and logits, counts index arrays, and all of it may be of a foreign process. */
static const char *check(const struct act_recipe *r, int vocab)
{
    struct cfg_error err;
    for (int i = 0; i < r->n_ids; i++)
        if (r->ids[i] < 0 || r->ids[i] >= vocab)
            return "the prompt has ids that the vocabulary does not have";
    return mdl_sampling_check(&r->sampling, vocab, &err) ? "its sampling settings are out of range" : NULL;
}

const char *act_recipe_read(const struct act_msg *m, int n_ids, int vocab, struct act_recipe *out)
{
    /* RESERVE carries the body and the tail of PREFILL as its own tail, so the place of both is counted from the start.
     */
    const size_t head = act_type_info(ACT_PREFILL)->body_size;
    const struct act_b_prefill *b = act_msg_body(m, head);
    if (!b)
        return "the recipe is missing";
    const uint8_t *at = m->buf->data + head;
    size_t bytes = m->buf->size - head;
    int n_chain = b->chain > 1u << 20 ? -1 : (int)b->chain;
    *out = (struct act_recipe){.body = b, .n_ids = n_ids, .n_chain = n_chain};
    if (n_ids < 1 || b->committed >= (uint32_t)n_ids || b->max_tokens < 1 || n_chain < 0 ||
        b->biases > MDL_MAX_LOGIT_BIAS || b->stop_ids > 1024 ||
        act_recipe_tail(n_ids, n_chain, (int)b->biases, (int)b->stop_ids) > bytes)
        return "the recipe does not fit its message";
    out->ids = (const int32_t *)(const void *)at;
    out->n_prompt = n_ids - (int)b->committed;
    at += (size_t)n_ids * sizeof(int32_t);
    out->chain = (const struct act_key *)(const void *)at;
    at += (size_t)n_chain * sizeof(struct act_key);
    out->n_stop = (int)b->stop_ids;
    mdl_sampling_init(&out->sampling);
    out->sampling.temperature = (double)b->temperature;
    out->sampling.top_p = (double)b->top_p;
    out->sampling.min_p = (double)b->min_p;
    out->sampling.top_k = b->top_k > INT32_MAX ? -1 : (int)b->top_k;
    out->sampling.presence_penalty = (double)b->presence;
    out->sampling.frequency_penalty = (double)b->frequency;
    out->sampling.repetition_penalty = (double)b->repetition;
    out->sampling.seed = b->seed;
    out->sampling.top_logprobs = b->top_logprobs > INT32_MAX ? -1 : (int)b->top_logprobs;
    out->sampling.bias = (const struct mdl_logit_bias *)(const void *)at;
    out->sampling.n_bias = (int)b->biases;
    at += (size_t)b->biases * sizeof(struct mdl_logit_bias);
    out->stop = (const int32_t *)(const void *)at;
    return check(out, vocab);
}
