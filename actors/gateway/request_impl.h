/* Inside of request parsing: one table of fields per protocol, and what the protocols share.
 *
 * Every reader returns false after it has filled the error. Paths of fields ("messages[2].content") are written into
 * the parser's own buffer by gw_path. */
#ifndef WEFT_GATEWAY_REQUEST_IMPL_H
#define WEFT_GATEWAY_REQUEST_IMPL_H

#include <stddef.h>

#include "actors/gateway/request.h"

enum { GW_MAX_TOOLS = 1024, GW_MAX_TOOL_NAME = 127, GW_MAX_CALLS = 512 /* of one message */ };

struct gw_parse {
    enum gw_protocol protocol;
    bool count; /* count_tokens */
    const json_t *root;
    struct gw_request *out;
    struct gw_error *err;
    json_t *conversation, *messages; /* the latter is a borrowed member of the former */
    json_t *calls;      /* object of the ids of the last assistant message's calls; true: has no result yet. Or NULL */
    json_t *tool_names; /* object: names declared */
    char path[96];
};

struct gw_field {
    const char *name;
    bool (*read)(struct gw_parse *p, const char *name, const json_t *v);
    const char *why; /* with read NULL: refused for this reason; both NULL: harmless */
};

struct gw_codec {
    const struct gw_field *field;       /* ends with a NULL name */
    bool (*finish)(struct gw_parse *p); /* what spans several fields; the conversation */
};

extern const struct gw_codec gw_chat_codec, gw_completions_codec, gw_responses_codec, gw_messages_codec;

/* Sets a 400 for the field and returns false. */
bool gw_fail(struct gw_parse *p, const char *param, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool gw_fail_memory(struct gw_parse *p);
const char *gw_path(struct gw_parse *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *gw_json_kind(const json_t *v); /* "a string", "null", ... */
/* Member that is neither absent nor null. */
json_t *gw_member(const json_t *o, const char *key);
/* Whether every member that is not null is one of the names (a list that ends with NULL). base: path of the object. */
bool gw_only(struct gw_parse *p, const json_t *o, const char *const *names, const char *base);

/* Scalars. */
bool gw_want_string(struct gw_parse *p, const char *path, const json_t *v, const char **out);
bool gw_want_bool(struct gw_parse *p, const char *path, const json_t *v, bool *out);
bool gw_want_real(struct gw_parse *p, const char *path, const json_t *v, double low, double high, double *out);
/* Whole number; a real that is whole counts. */
bool gw_want_int(struct gw_parse *p, const char *path, const json_t *v, int64_t low, int64_t high, int64_t *out);
/* One of the names (ends with NULL). */
bool gw_want_word(struct gw_parse *p, const char *path, const json_t *v, const char *const *names);

/* Field readers that several tables use. */
bool gw_read_model(struct gw_parse *p, const char *name, const json_t *v);
bool gw_read_max_tokens(struct gw_parse *p, const char *name, const json_t *v);
bool gw_read_temperature(struct gw_parse *p, const char *name, const json_t *v);
bool gw_read_top_p(struct gw_parse *p, const char *name, const json_t *v);
bool gw_read_top_k(struct gw_parse *p, const char *name, const json_t *v);
bool gw_read_min_p(struct gw_parse *p, const char *name, const json_t *v);
bool gw_read_penalty(struct gw_parse *p, const char *name, const json_t *v);
bool gw_read_seed(struct gw_parse *p, const char *name, const json_t *v);
bool gw_read_stop(struct gw_parse *p, const char *name, const json_t *v);
bool gw_read_stream(struct gw_parse *p, const char *name, const json_t *v);
bool gw_read_stream_options(struct gw_parse *p, const char *name, const json_t *v);
bool gw_read_logit_bias(struct gw_parse *p, const char *name, const json_t *v);
bool gw_read_ignore_eos(struct gw_parse *p, const char *name, const json_t *v);
bool gw_read_cache_salt(struct gw_parse *p, const char *name, const json_t *v);
bool gw_read_user(struct gw_parse *p, const char *name, const json_t *v);
bool gw_read_one(struct gw_parse *p, const char *name, const json_t *v);    /* 1, or refused */
bool gw_read_false(struct gw_parse *p, const char *name, const json_t *v);  /* false, or refused */
bool gw_read_medium(struct gw_parse *p, const char *name, const json_t *v); /* "medium", or refused */
bool gw_read_parallel(struct gw_parse *p, const char *name, const json_t *v);
bool gw_read_effort(struct gw_parse *p, const char *name, const json_t *v);    /* none, low ... max, 1..100 */
bool gw_read_reasoning(struct gw_parse *p, const char *name, const json_t *v); /* {"effort": ...} */
/* A text format: {"type":"text"} or refused, with the path of its type. */
bool gw_check_format(struct gw_parse *p, const char *path, const json_t *v);

/* The conversation. */
/* Appends a message of the chat form; takes over m. */
bool gw_add_message(struct gw_parse *p, json_t *m);
json_t *gw_new_message(const char *role);
/* content as a string or a list of text parts whose type is one of types; *out is new, NULL when v is absent. path is
 * copied before it is used. */
bool gw_read_content(struct gw_parse *p, const char *path, const json_t *v, const char *const *types, json_t **out);
/* The arguments of an earlier call: a JSON text or an object; *out is a new object. */
bool gw_read_arguments(struct gw_parse *p, const char *path, const json_t *v, json_t **out);
/* Appends a call to assistant message m and remembers its id. */
bool gw_add_call(struct gw_parse *p, json_t *m, const char *path, const char *id, const char *name, json_t *arguments);
/* A result's id must be of a call in the assistant message before it that has no result yet. */
bool gw_answer_call(struct gw_parse *p, const char *path, const json_t *id);
/* No call is known any more: an assistant message begins. */
void gw_forget_calls(struct gw_parse *p);
/* Reads the place of a declaration; o has name, description, parameters (or schema_key) and strict. */
bool gw_add_tool(struct gw_parse *p, const char *path, const json_t *o, const char *schema_key);
bool gw_check_name(struct gw_parse *p, const char *path, const char *name);
bool gw_choose_tool(struct gw_parse *p, const char *path, const char *name);
/* tool_choice of the two OpenAI protocols: a word, or {"type": "function"} with the name in it (inside NULL) or in the
 * member `inside`. */
bool gw_read_choice(struct gw_parse *p, const json_t *v, const char *inside);
/* The last message asks for an answer. path: the field that holds the messages. */
bool gw_finish_conversation(struct gw_parse *p, const char *path);

#endif
