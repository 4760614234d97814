/* Fuzz target: what another process says of a prompt and of its state. The first byte of the input says what it is: a
 * recipe (PREFILL, RESERVE) as its body and tail, which is used as a decoder would when it is taken; or the state of a
 * hand-off in one of its forms. Of a state the next six bytes say how long it is (0: as it should be) and where the
 * others are written over what would be right, so that all checks are reached. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "actors/recipe.h"
#include "model/handoff.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCAB = 64, IDS = 5, BLOCK = 6, MAX = 48, REPLAY = 24, STATE_MAX = 1 << 16 };

static void check(bool right)
{
    if (!right)
        abort();
}

/* ---- a recipe ---- */

static void use(const struct act_recipe *r)
{
    static struct mdl_sampler *sampler;
    float logits[VOCAB];
    struct mdl_logprobs lp;
    struct cfg_error err;
    int32_t id;
    if (!sampler)
        check((sampler = mdl_sampler_new(VOCAB)));
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)(i * 7 % 13) * 0.25f;
    int rc = mdl_sampler_sample(sampler, &r->sampling, logits, VOCAB, r->ids, r->n_ids, r->n_prompt, r->n_ids, &id, &lp,
                                &err);
    check(rc < 0 || (id >= 0 && id < VOCAB));
    check(rc < 0 || mdl_sampler_logprobs(sampler, logits, VOCAB, id, r->sampling.top_logprobs, &lp, &err) == 0);
    static volatile uint8_t sum; /* reads every byte */
    for (int i = 0; i < r->n_chain; i++)
        sum = sum ^ r->chain[i].byte[sizeof r->chain[i].byte - 1];
    for (int i = 0; i < r->n_stop; i++)
        sum = sum ^ (uint8_t)r->stop[i];
    check(r->n_prompt >= 1 && r->n_prompt <= r->n_ids && r->body->max_tokens >= 1);
}

static void recipe(const uint8_t *data, size_t size)
{
    struct act_msg m;
    struct act_recipe r;
    size_t body = act_type_info(ACT_PREFILL)->body_size, tail;
    int n_ids = size ? data[0] : 0;
    if (size < 1 + body || act_msg_new(ACT_PREFILL, ACT_NOBODY, size - 1 - body, &m))
        return;
    memcpy(act_b_prefill(&m), data + 1, body);
    memcpy(act_msg_tail(&m, &tail), data + 1 + body, size - 1 - body);
    if (!act_recipe_read(&m, n_ids, VOCAB, &r))
        use(&r);
    act_msg_drop(&m);
}

/* ---- the state of a hand-off ---- */

static struct mdl_seq *sequence(int replay)
{
    static struct mdl_model *model;
    const struct mdl_seq_params params = {
        .max_tokens = MAX, .block_tokens = BLOCK, .rollback = 2, .replay = replay, .window_extra = 1};
    struct mdl_seq *s;
    struct cfg_error err;
    check(model || mdl_model_open("tests/golden/mini8", 1, NULL, &model, &err) == 0);
    check(mdl_seq_new(model->cfg, &params, &s, &err) == 0);
    return s;
}

static void state(enum mdl_handoff_form form, const uint8_t *data, size_t size)
{
    static struct mdl_seq *from, *to[2]; /* one with rows for a replay, one without */
    const int32_t ids[IDS] = {1, 2, 3, 4, 5};
    struct cfg_error err;
    if (size < 6)
        return;
    for (int i = 0; i < 2 && !to[1]; i++)
        to[i] = sequence(i ? 0 : REPLAY);
    if (!from)
        from = sequence(REPLAY);
    mdl_seq_reset(from);
    from->encoded = IDS;
    size_t right = mdl_handoff_state_bytes(from, form), at = data[0] | data[1] << 8;
    size_t bytes = data[2] | data[3] << 8 | (size_t)data[4] << 16 | (size_t)data[5] << 24;
    bytes = !bytes ? right : bytes > STATE_MAX ? STATE_MAX : bytes;
    uint8_t *all = calloc(1, right > bytes ? right : bytes), *cut = malloc(bytes);
    check(all && cut);
    mdl_handoff_state_save(from, form, all);
    memcpy(cut, all, bytes); /* exactly so long, so that a sanitizer sees a read past its end */
    if (at < bytes)
        memcpy(cut + at, data + 6, size - 6 < bytes - at ? size - 6 : bytes - at);
    for (int i = 0; i < 2; i++) {
        int rc = mdl_handoff_state_load(to[i], form, ids, IDS, cut, bytes, &err);
        check(rc == 0 || (rc == -EINVAL && to[i]->encoded == 0));
    }
    free(all);
    free(cut);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size || size > STATE_MAX)
        return 0;
    if (data[0] % 4 == 0)
        recipe(data + 1, size - 1);
    else
        state((enum mdl_handoff_form)(data[0] % 4 - 1), data + 1, size - 1);
    return 0;
}
