/* From the bytes of a request to what the engine computes: the parsed request, its token ids, the names of its blocks.
 *
 * Pure work on one thread's own encoder. A short body is done on the io worker on the spot; a long one is a job for the
 * helper worker, because reading it takes longer than a stream may wait (about 40 ns per byte). */
#ifndef WEFT_GATEWAY_PROMPT_H
#define WEFT_GATEWAY_PROMPT_H

#include "actors/gateway/request.h"
#include "actors/runtime/job.h"
#include "kvtiers/key.h"
#include "model/tokenizer.h"

enum { GW_SHORT_BODY = 16 << 10 /* bytes */ };

/* What it takes; the same for every thread but for the encoder. */
struct gw_prompts {
    const struct mdl_tokenizer *tok;
    struct mdl_tok_encoder *enc; /* of the one thread that uses this */
    int bos_id;                  /* -1: none */
    int vocab;                   /* ids of the model */
    int block_tokens;
    struct kv_identity identity; /* without the tenant's salt */
};

struct gw_prompt {
    struct mdl_ids ids;
    struct kv_key *chain; /* [n_chain]: the root, then behind each full block */
    int n_chain;
};

/* Renders the conversation and encodes it; sets what gw_request says is set then. False: err says what is wrong. */
bool gw_prompt_ids(const struct gw_prompts *with, struct gw_request *r, struct mdl_ids *out, struct gw_error *err);
/* Brings the chain up to date with the ids, which may have grown. 0 or -ENOMEM. */
int gw_prompt_chain(const struct gw_prompts *with, const char *salt, struct gw_prompt *p);
/* Ids and chain. *out is zeroed by the caller and freed by him, also after an error. */
bool gw_prompt_make(const struct gw_prompts *with, struct gw_request *r, struct gw_prompt *out, struct gw_error *err);
void gw_prompt_free(struct gw_prompt *p);

/* A body as a job, from JSON to the prompt. */
struct gw_prompt_job {
    struct act_job job;
    const struct gw_prompts *with;
    enum gw_protocol protocol;
    char *body; /* owned */
    size_t len;
    struct gw_request request; /* when parsed */
    struct gw_prompt prompt;
    bool parsed, made; /* not parsed, or not made: err says why */
    struct gw_error err;
};

/* Takes over body. NULL: out of memory, body is freed. */
struct gw_prompt_job *gw_prompt_job_new(const struct gw_prompts *with, enum gw_protocol protocol, char *body,
                                        size_t len);
void gw_prompt_job_free(struct gw_prompt_job *j);

#endif
