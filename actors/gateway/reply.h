/* Replies of every protocol: a stream of events (SSE) or one JSON body, from the neutral events of gateway/output.h.
 *
 * A reply collects or emits: in streaming mode every call appends complete SSE frames to the byte buffer that the
 * caller sends and empties (out->n = 0); otherwise gw_reply_finish produces the whole body. One owner. */
#ifndef WEFT_GATEWAY_REPLY_H
#define WEFT_GATEWAY_REPLY_H

#include "actors/gateway/bytes.h"
#include "actors/gateway/output.h"
#include "actors/gateway/request.h"
#include "model/config.h"

enum gw_finish { GW_FINISH_STOP, GW_FINISH_LENGTH, GW_FINISH_TOOL_CALLS, GW_FINISH_STOP_SEQUENCE };

struct gw_usage {
    int prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    struct gw_drafts {
        uint32_t steps, drafted, offered, accepted, emitted; /* as in model/decode.h */
        uint32_t places, offered_at[MDL_MAX_BLOCK], accepted_at[MDL_MAX_BLOCK];
    } drafts;
};

struct gw_token_logprob {
    int32_t id;
    double logprob;
    const char *bytes; /* of the token */
    size_t len;
    int n_top;
    struct {
        int32_t id;
        double logprob;
        const char *bytes;
        size_t len;
    } top[GW_MAX_TOP_LOGPROBS];
};

struct gw_reply;

/* id: unique text such as "0123456789abcdef"; prefixes (chatcmpl-, msg_, resp_) are added. created: Unix seconds. The
 * request is borrowed and must live as long as the reply. NULL: out of memory. */
struct gw_reply *gw_reply_new(const struct gw_request *request, const char *id, const char *model, int64_t created);
void gw_reply_free(struct gw_reply *r);
/* "text/event-stream" or "application/json". */
const char *gw_reply_type(const struct gw_reply *r);

/* Each returns 0 or -ENOMEM and, when streaming, appends frames to out. Order: begin, events, then finish or fail.
 * A completion with echo begins with the prompt's text (request->prompt; a caller that got ids puts their text there).
 */
int gw_reply_begin(struct gw_reply *r, const struct gw_usage *prompt_usage, struct gw_bytes *out);
int gw_reply_event(struct gw_reply *r, const struct gw_event *ev, struct gw_bytes *out);
/* Log-probabilities of the tokens whose text the following event carries; what no event follows goes with the end. */
int gw_reply_logprob(struct gw_reply *r, const struct gw_token_logprob *lp);
/* May come before begin. */
int gw_reply_keepalive(struct gw_reply *r, struct gw_bytes *out);
/* The last frames (finish reason, usage when asked for, [DONE] or message_stop), or the whole JSON body. stop: the stop
 * string of GW_FINISH_STOP_SEQUENCE, else NULL. GW_FINISH_STOP counts as GW_FINISH_TOOL_CALLS when there were calls. */
int gw_reply_finish(struct gw_reply *r, enum gw_finish finish, const char *stop, const struct gw_usage *usage,
                    struct gw_bytes *out);
/* Ends a stream with an error instead of finish; a whole reply that fails is an HTTP error (gw_error_body). */
int gw_reply_fail(struct gw_reply *r, const struct gw_error *err, struct gw_bytes *out);

/* The body of a token count. */
int gw_reply_count(int input_tokens, struct gw_bytes *out);

#endif
