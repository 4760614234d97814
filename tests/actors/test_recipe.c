/* A recipe as another process may send it: what whoever computes with it relies on is checked when it is read. */
#include <math.h>

#include "actors/recipe.h"
#include "tests/harness.h"

TestSuite(recipe, .timeout = 60);

enum { VOCAB = 50, IDS = 4, CHAIN = 2, BIAS = 2, STOP = 1 };

static struct act_msg good(void)
{
    struct act_msg m;
    size_t bytes;
    cr_assert_eq(act_msg_new(ACT_PREFILL, ACT_NOBODY, act_recipe_tail(IDS, CHAIN, BIAS, STOP), &m), 0);
    *act_b_prefill(&m) = (struct act_b_prefill){.max_tokens = 10,
                                                .committed = 1,
                                                .temperature = 1,
                                                .top_p = 1,
                                                .repetition = 1,
                                                .top_k = 5,
                                                .top_logprobs = MDL_MAX_TOP_LOGPROBS,
                                                .chain = CHAIN,
                                                .biases = BIAS,
                                                .stop_ids = STOP};
    uint8_t *at = act_msg_tail(&m, &bytes);
    memset(at, 0, bytes);
    memcpy(at, (int32_t[IDS]){0, 1, VOCAB - 1, 2}, IDS * sizeof(int32_t));
    at += IDS * sizeof(int32_t) + CHAIN * sizeof(struct act_key);
    memcpy(at, (struct mdl_logit_bias[BIAS]){{0, -100}, {VOCAB - 1, 100}}, BIAS * sizeof(struct mdl_logit_bias));
    return m;
}

static int32_t *id_of(struct act_msg *m, int i)
{
    size_t bytes;
    return (int32_t *)act_msg_tail(m, &bytes) + i;
}

static struct mdl_logit_bias *bias_of(struct act_msg *m, int i)
{
    return (struct mdl_logit_bias *)(void *)((uint8_t *)id_of(m, IDS) + CHAIN * sizeof(struct act_key)) + i;
}

static void refused(struct act_msg m, int n_ids, const char *what)
{
    struct act_recipe r;
    cr_expect(act_recipe_read(&m, n_ids, VOCAB, &r) != NULL, "taken: %s", what);
    act_msg_drop(&m);
}

#define REFUSED(change)                                                                                                \
    do {                                                                                                               \
        struct act_msg x = good();                                                                                     \
        struct act_b_prefill *b = act_b_prefill(&x);                                                                   \
        (void)b;                                                                                                       \
        change;                                                                                                        \
        refused(x, IDS, #change);                                                                                      \
    } while (0)

Test(recipe, what_would_write_or_read_beyond_something_is_refused)
{
    struct act_msg m = good();
    struct act_recipe r;
    cr_assert_null(act_recipe_read(&m, IDS, VOCAB, &r), "%s", act_recipe_read(&m, IDS, VOCAB, &r));
    cr_expect(r.n_prompt == IDS - 1 && r.n_chain == CHAIN && r.n_stop == STOP && r.sampling.n_bias == BIAS);
    act_msg_drop(&m);
    refused(good(), 0, "no ids");
    refused(good(), 1000, "more ids than bytes");
    REFUSED(b->top_logprobs = MDL_MAX_TOP_LOGPROBS + 1);
    REFUSED(b->top_logprobs = UINT32_MAX);
    REFUSED(b->max_tokens = 0);
    REFUSED(b->committed = IDS);
    REFUSED(b->top_k = UINT32_MAX);
    REFUSED(b->temperature = NAN);
    REFUSED(b->top_p = 0);
    REFUSED(b->repetition = -1);
    REFUSED(b->presence = INFINITY);
    REFUSED(b->biases = MDL_MAX_LOGIT_BIAS + 1);
    REFUSED(b->stop_ids = UINT32_MAX);
    REFUSED(b->chain = UINT32_MAX);
    REFUSED(*id_of(&x, 2) = VOCAB);
    REFUSED(*id_of(&x, 3) = -1);
    REFUSED(bias_of(&x, 0)->id = -1);
    REFUSED(bias_of(&x, 1)->id = VOCAB);
    REFUSED(bias_of(&x, 1)->id = 0);
    REFUSED(bias_of(&x, 1)->bias = NAN);
}
