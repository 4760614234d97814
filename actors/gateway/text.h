/* /tokenize, /detokenize and /v1/messages/count_tokens: text in, numbers out, no model. Short bodies are answered on
 * the spot; a long one gets an actor that waits for the helper worker. */
#ifndef WEFT_GATEWAY_TEXT_H
#define WEFT_GATEWAY_TEXT_H

#include "actors/gateway/bytes.h"
#include "actors/gateway/prompt.h"

enum gw_text { GW_TEXT_TOKENIZE, GW_TEXT_DETOKENIZE, GW_TEXT_COUNT };

struct gw_text_job {
    struct act_job job;
    const struct gw_prompts *with;
    enum gw_text what;
    char *body; /* owned */
    size_t len;
    struct gw_bytes out; /* the answer, when done */
    bool done;           /* false: err says why not */
    struct gw_error err;
};

/* Takes over body. NULL: out of memory, body is freed. */
struct gw_text_job *gw_text_job_new(const struct gw_prompts *with, enum gw_text what, char *body, size_t len);
void gw_text_job_run(struct gw_text_job *j);
void gw_text_job_free(struct gw_text_job *j);

/* arg: struct gw_job * with work.text; the actor owns it. */
extern const struct act_behaviour gw_text_behaviour;

#endif
