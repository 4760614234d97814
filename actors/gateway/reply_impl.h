/* Inside of the replies: what the four protocols share.
 *
 * Events come in order and at most one part (reasoning, text, call) is open at a time, so the parts of a reply are
 * written one behind the other: the open one's text in `part`, the finished ones as JSON in `items`. */
#ifndef WEFT_GATEWAY_REPLY_IMPL_H
#define WEFT_GATEWAY_REPLY_IMPL_H

#include "actors/gateway/reply.h"

enum gw_part { GW_PART_NONE, GW_PART_REASONING, GW_PART_TEXT, GW_PART_CALL };

struct gw_reply_ops {
    void (*begin)(struct gw_reply *r, struct gw_bytes *out);
    void (*event)(struct gw_reply *r, const struct gw_event *ev, struct gw_bytes *out);
    void (*logprob)(struct gw_reply *r, const struct gw_token_logprob *lp);
    void (*finish)(struct gw_reply *r, enum gw_finish finish, const char *stop, const struct gw_usage *usage,
                   struct gw_bytes *out);
    void (*fail)(struct gw_reply *r, const struct gw_error *err, struct gw_bytes *out);
};

extern const struct gw_reply_ops gw_chat_reply, gw_completions_reply, gw_responses_reply, gw_messages_reply;

struct gw_reply {
    const struct gw_request *request;
    const struct gw_reply_ops *ops;
    char *id;
    int64_t created;
    bool begun;
    struct gw_usage prompt;
    struct gw_bytes model; /* as JSON */
    struct gw_bytes head;  /* what every chunk or response object begins with */
    struct gw_bytes tail;  /* Responses: the fields that its object repeats */
    enum gw_part open;
    struct gw_bytes part;            /* text of the open part, or a call's arguments */
    struct gw_bytes name;            /* of the open call */
    struct gw_bytes text, reasoning; /* Chat, Completions: everything so far, when not streaming */
    struct gw_bytes items;           /* finished parts (of Chat: calls), separated by commas */
    int n_items, n_calls;
    uint64_t sequence;             /* Responses: number of the next event */
    struct gw_bytes logprobs;      /* entries that no event has taken yet, separated by commas */
    struct gw_bytes part_logprobs; /* Responses: those of the open part */
    struct gw_bytes lp_tokens, lp_values, lp_offsets, lp_tops; /* Completions: the same in four lists */
    size_t offset;                                             /* Completions: characters before the next token */
};

/* A comma unless b is empty. */
void gw_comma(struct gw_bytes *b);
/* The start of a frame; event NULL: data only. gw_frame_end closes it. */
void gw_frame(struct gw_bytes *out, const char *event);
void gw_frame_end(struct gw_bytes *out);
/* ,"key":"...": a text of known length. */
void gw_json_field(struct gw_bytes *b, const char *key, const char *s, size_t n);
/* One entry in the shape of Chat and Responses. */
void gw_logprob_entry(struct gw_bytes *b, const struct gw_token_logprob *lp);
/* usage in the shape of Chat and Completions, an object. */
/* ",\"speculation\":{...}" when anything was drafted. */
void gw_usage_drafts(struct gw_bytes *b, const struct gw_usage *u);
void gw_openai_usage(struct gw_bytes *b, const struct gw_usage *u);
const char *gw_openai_finish(enum gw_finish f);

#endif
