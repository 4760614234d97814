/* The chat form: a conversation (messages of the OpenAI kind) as the prompt the model was trained on.
 *
 * A prompt is a list of segments. Markers (begin of text, role names, <think>, </think>, the DSML token, end of text)
 * become the ids of the tokenizer's added tokens; everything else is encoded as plain text, with added tokens switched
 * off. So a user, a tool or an earlier answer that writes "<|User|>" in the model's own spelling gets the letters,
 * never the marker: nobody can open another role from inside a message.
 *
 * The form (markers in capitals):
 *   BOS, then the messages, nothing between them.
 *   SYSTEM once at the start when there is an effort line (thinking mode) or message 0 is a system message; the effort
 *     line comes first, then the system text. A later system message is SYSTEM + text in place and counts as a user
 *     message below.
 *   USER + text. Tool results are <tool_result>text</tool_result> blocks, in the order of the calls that they answer,
 *     in the user turn before them or in one of their own; a user message right behind them joins that turn. Blocks,
 *     and text parts of one message, are separated by a blank line.
 *   ASSISTANT + (THINK or ENDTHINK) before every assistant message and, to make the model speak, at the end.
 *   assistant: [reasoning + ENDTHINK] + content + [blank line + calls] + EOS. In thinking mode a turn behind the last
 *     user message keeps its reasoning, and so do all turns when any message has tools; other turns have ENDTHINK
 *     headers and lose it, as do all in chat mode.
 *   calls: <DSML calls>, per call <DSML invoke name="F">, per argument <DSML parameter name="K" string="true|false">V
 *     </DSML parameter>, closed in turn, one element a line; strings raw with "true", anything else JSON with "false".
 *   tools: the system text, a blank line, a block of instructions with one JSON schema a line. Tools of the request
 *     belong to message 0 if that is a system message, else to an empty system message put before it. A response
 *     format with a schema follows as a block "## Response Format:".
 * The sentences of the tools block and of the response-format block are this project's own (mdl_chat_tool_text,
 * chat.c): the model's makers ship theirs with the weights, and an operator who has them passes them in the options.
 *
 * Functions are pure and may be called from any thread. */
#ifndef WEFT_MODEL_CHAT_H
#define WEFT_MODEL_CHAT_H

#include <jansson.h>

#include "model/tokenizer.h"

enum { MDL_CHAT_EFFORT_LOW = 50, MDL_CHAT_EFFORT_HIGH = 75, MDL_CHAT_EFFORT_MAX = 100 };

struct mdl_chat_options {
    bool chat_mode;        /* mode when the request does not say: false thinking, true chat */
    int effort;            /* 1..100 when the request does not say; 0: MDL_CHAT_EFFORT_HIGH */
    bool complete;         /* the last message may be a finished assistant message; nothing is left to generate then */
    const char *tool_text; /* instructions about tools; "{tools}" stands for the schemas, the DSML token's name for the
                              token. NULL: mdl_chat_tool_text */
};

struct mdl_chat_segment {
    size_t off, len; /* in the prompt's text */
    bool marker;     /* the name of one added token */
};

struct mdl_chat_prompt {
    struct mdl_text text; /* the whole prompt, readable; ambiguous where users write markers: encode by segments */
    struct mdl_chat_segment *seg;
    size_t n_seg, cap_seg;
    bool thinking;  /* the model's answer begins inside <think> */
    int effort;     /* of thinking mode */
    bool open_text; /* the answer continues a given prefix (of the content, or of the reasoning when thinking) */
};

extern const char mdl_chat_tool_text[];

/* Renders a request into *out (zeroed by the caller; freed with mdl_chat_prompt_free, also after an error).
 * request: an object with "messages", or the list itself. Read from the object besides: "tools"; "response_format"
 * (type text, json_object, json_schema); "thinking" (true, false or {"type": "enabled"|"disabled"});
 * "reasoning_effort" (minimal, low; medium, high, xhigh; max, ultra; none for chat mode; or 1..100; it turns thinking
 * on unless "thinking" says otherwise). Other keys are the caller's.
 * messages: role system (or developer), user, assistant, tool; content a string, null or a list of {"type":"text"}
 * parts; of system messages "tools" and "response_format"; of assistant messages "reasoning_content", "tool_calls"
 * and, in the last one, "prefix": true, which asks the model to go on from there; of tool messages "tool_call_id".
 * options may be NULL. Errors: -EINVAL with the path of the field at fault, -ENOMEM. */
int mdl_chat_render(const json_t *request, const struct mdl_chat_options *options, struct mdl_chat_prompt *out,
                    struct cfg_error *err);
void mdl_chat_prompt_free(struct mdl_chat_prompt *p);

/* Appends the prompt's ids. tok is the tokenizer that enc is bound to. Errors: -EINVAL when tok lacks a marker the
 * prompt needs, or has it as a token that plain text can produce; others as mdl_tok_encode. */
int mdl_chat_encode(const struct mdl_tokenizer *tok, struct mdl_tok_encoder *enc, const struct mdl_chat_prompt *p,
                    struct mdl_ids *out, struct cfg_error *err);

/* Whether tok has every marker of the form; a server calls this once at start. with_tools: the DSML token too. */
int mdl_chat_check(const struct mdl_tokenizer *tok, bool with_tools, struct cfg_error *err);

/* Names of the markers, for those who read what the model writes. */
#define MDL_CHAT_BOS                                                                                                   \
    "<\xef\xbd\x9c"                                                                                                    \
    "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"
#define MDL_CHAT_EOS                                                                                                   \
    "<\xef\xbd\x9c"                                                                                                    \
    "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"
#define MDL_CHAT_SYSTEM "<\xef\xbd\x9cSystem\xef\xbd\x9c>"
#define MDL_CHAT_USER "<\xef\xbd\x9cUser\xef\xbd\x9c>"
#define MDL_CHAT_ASSISTANT                                                                                             \
    "<\xef\xbd\x9c"                                                                                                    \
    "Assistant\xef\xbd\x9c>"
#define MDL_CHAT_THINK "<think>"
#define MDL_CHAT_END_THINK "</think>"
#define MDL_CHAT_DSML                                                                                                  \
    "\xef\xbd\x9c"                                                                                                     \
    "DSML\xef\xbd\x9c"

#endif
