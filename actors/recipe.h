/* The body of PREFILL (and RESERVE) in usable form: prompt, hash chain, sampling recipe. Borrowed from the message's
 * buffer. Any actor. */
#ifndef WEFT_ACTORS_RECIPE_H
#define WEFT_ACTORS_RECIPE_H

#include "actors/runtime/message.h"
#include "model/sampler.h"

/* Bits of its flags. MOVED, in a RESERVE: the sequence decodes already, at the sender's, and goes on doing so until its
 * state is sent (decode_move.c). STAYS, there: it was taken back several times, and is not to be again. */
enum {
    ACT_RECIPE_IGNORE_EOS = 1,
    ACT_RECIPE_EXACT = 2,
    ACT_RECIPE_LOGPROBS = 4,
    ACT_RECIPE_MOVED = 8,
    ACT_RECIPE_STAYS = 16
};

/* Bits of TOKENS.finish. */
enum act_finish { ACT_FINISH_NONE, ACT_FINISH_STOP, ACT_FINISH_LENGTH, ACT_FINISH_CANCELLED, ACT_FINISH_ERROR };
/* Bits of TOKENS.flags. */
enum { ACT_TOKENS_LOGPROBS = 1 };

struct act_recipe {
    const struct act_b_prefill *body;
    const int32_t *ids;
    int n_ids;
    int n_prompt;                /* the ids behind it are output of earlier attempts */
    const struct act_key *chain; /* [n_chain]: the root, then the chain behind each full block of the prompt */
    int n_chain;
    const int32_t *stop;
    int n_stop;
    struct mdl_sampling sampling; /* bias points into the buffer */
};

/* Reads m's buffer (PREFILL, RESERVE: same body), which may have come from another process: counts, ids (below vocab)
 * and sampling settings are checked, so that whoever computes with them need not. NULL, or what is wrong with it. */
const char *act_recipe_read(const struct act_msg *m, int n_ids, int vocab, struct act_recipe *out);
/* Bytes of the tail for these counts. */
size_t act_recipe_tail(int n_ids, int n_chain, int n_bias, int n_stop);

#endif
