/* What a client of the four protocols makes of an answer, whole or streamed. For tests; ends the test on what is no
 * proper answer. */
#ifndef WEFT_TESTS_SUPPORT_ANSWER_H
#define WEFT_TESTS_SUPPORT_ANSWER_H

#include <jansson.h>
#include <stdbool.h>

#include "tests/support/server.h"

enum ts_protocol { TS_CHAT, TS_COMPLETIONS, TS_RESPONSES, TS_MESSAGES, TS_PROTOCOLS };

enum { TS_CALLS_MAX = 8, TS_LOGPROBS_MAX = 512 };

struct ts_answer {
    char *text, *reasoning;
    char finish[32];                              /* finish_reason, status or stop_reason */
    int prompt, cached, output, reasoning_tokens; /* usage; -1: not reported */
    struct {
        char name[64];
        char *arguments;
    } call[TS_CALLS_MAX];
    int n_calls;
    json_t *logprobs; /* chat: array of the tokens' entries */
    int deltas;       /* pieces of text that a stream brought */
};

const char *ts_path(enum ts_protocol p);
/* A request's body: the prompt as the protocol wants it, and `more`, further fields such as "\"seed\":1" ("" for none).
 * limit: most tokens; 0 leaves the field out. Freed by the caller. */
char *ts_body(enum ts_protocol p, const char *prompt, int limit, bool stream, const char *more);
/* Sends it and reads the answer. */
struct ts_answer ts_ask(const struct ts_server *s, enum ts_protocol p, const char *prompt, int limit, bool stream,
                        const char *more);
/* From an answer's body. */
struct ts_answer ts_answer_of(enum ts_protocol p, const char *body, bool stream);
void ts_answer_free(struct ts_answer *a);

#endif
