/* A request of any protocol as one neutral form, and the errors that each protocol's clients expect.
 *
 * Codecs take and give bytes; they know no sockets, no actors and no model. Pure functions, any thread. */
#ifndef WEFT_GATEWAY_REQUEST_H
#define WEFT_GATEWAY_REQUEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum gw_protocol { GW_CHAT, GW_COMPLETIONS, GW_RESPONSES, GW_MESSAGES };

enum { GW_MAX_STOPS = 16, GW_MAX_STOP_BYTES = 1024, GW_MAX_TOP_LOGPROBS = 20, GW_MAX_LOGIT_BIAS = 1024 };

enum gw_tool_choice { GW_TOOLS_AUTO, GW_TOOLS_NONE, GW_TOOLS_REQUIRED, GW_TOOLS_NAMED };

/* What went wrong, for the client. status is an HTTP status; param the field at fault ("" when none). */
struct gw_error {
    int status;
    char type[40]; /* invalid_request_error, rate_limit_error, ... as the protocol calls it */
    char code[48]; /* short machine name, may be "" */
    char param[96];
    char message[512];
    int retry_after;   /* seconds, 0: no header */
    const char *allow; /* of status 405: the methods that are allowed; else NULL. Not owned */
};

struct gw_logit_bias {
    int32_t id;
    float bias;
};

struct gw_request {
    enum gw_protocol protocol;
    char model[128]; /* "" when the client named none */
    /* The prompt: a conversation for chat, responses and messages; for completions text or token ids. All owned. */
    json_t *conversation; /* object with "messages", "tools", "thinking", "reasoning_effort" as mdl_chat_render reads */
    char *prompt;
    size_t prompt_len;
    int32_t *prompt_ids;
    int n_prompt_ids;
    /* Output. */
    int max_tokens; /* 0: as many as fit */
    bool stream, include_usage, echo;
    struct {
        char *text;
        size_t len;
    } stop[GW_MAX_STOPS];
    int n_stop;
    bool logprobs;
    int top_logprobs;
    /* Sampling; has_* false means the server's default. */
    bool has_temperature, has_top_p, has_seed;
    double temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
    int top_k;
    uint64_t seed;
    struct gw_logit_bias *bias;
    int n_bias;
    bool ignore_eos;
    /* Tools. */
    bool has_tools;      /* at least one; also with GW_TOOLS_NONE: they are in the prompt, the model may not call */
    bool parallel_tools; /* false: one call at most */
    json_t *tools;       /* array of function declarations in the chat form, or NULL */
    enum gw_tool_choice tool_choice;
    char tool_name[128]; /* GW_TOOLS_NAMED */
    /* Set when the prompt is rendered: the answer begins inside <think>; it continues a given beginning; text that was
     * put before it to force a tool call (owned). */
    bool thinking, open_text;
    char *forced;
    char cache_salt[128];
    char user[128];   /* for logs; cut off when longer */
    json_t *settings; /* Responses: the fields that its reply repeats, else NULL */
};

/* Parses a body. false: *err is filled and *out is empty. A field that is known and not supported is refused by name,
 * an unknown one too unless it is in the list of harmless ones (metadata, user, store, ...). null is the same as
 * absent. max_tokens may be any positive number; beyond INT_MAX it is INT_MAX, the caller clamps it to the context. A
 * conversation that passes here is one that mdl_chat_render takes. */
bool gw_request_parse(enum gw_protocol protocol, const char *body, size_t len, struct gw_request *out,
                      struct gw_error *err);
/* A body of /v1/messages/count_tokens: as GW_MESSAGES, but max_tokens may be absent. */
bool gw_request_parse_count(const char *body, size_t len, struct gw_request *out, struct gw_error *err);
void gw_request_free(struct gw_request *r);
/* Whether every id that the client wrote (prompt, logit_bias) is below vocab; else a 400 in *err. */
bool gw_request_check_ids(const struct gw_request *r, int vocab, struct gw_error *err);

/* Fills *err with what the protocol calls an error of this status. param "" or NULL: no field is at fault; else the
 * message begins with it. */
void gw_error_set(struct gw_error *err, enum gw_protocol protocol, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* The body of an error in the protocol's own shape; freed by the caller with free(). NULL: out of memory. */
char *gw_error_body(enum gw_protocol protocol, const struct gw_error *err, size_t *len);
/* The same as an event of a stream that has begun. */
char *gw_error_event(enum gw_protocol protocol, const struct gw_error *err, size_t *len);

#endif
