/* Long bodies are read and tokenised by the helper worker: what streams and what is short never waits for that. The
 * helper's thread is held, so every order of events below is one that the test makes, not one that it hopes for. */
#include "tests/harness.h"

#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actors/gateway/prompt.h"
#include "tests/support/answer.h"
#include "tests/support/process.h"
#include "tests/support/server.h"

static struct ts_server server;

static void stop(void)
{
    ts_server_free(&server);
}

TestSuite(long_prompts, .fini = stop);

/* Makes a body long without making its prompt longer than the small model's context. Freed by the caller. */
static char *fill(const char *begin, const char *end)
{
    char *s = malloc(3 * GW_SHORT_BODY);
    cr_assert_not_null(s);
    size_t n = strlen(begin);
    memcpy(s, begin, n);
    memset(s + n, 'x', 2 * GW_SHORT_BODY);
    memcpy(s + n + 2 * GW_SHORT_BODY, end, strlen(end) + 1);
    return s;
}

static char *long_body(const char *format, ...) __attribute__((format(printf, 1, 2)));
static char *long_body(const char *format, ...)
{
    char *filler = fill("\"metadata\":{\"fill\":\"", "\"}"), *fields = NULL, *body = NULL;
    va_list ap;
    va_start(ap, format);
    cr_assert(vasprintf(&fields, format, ap) > 0 &&
              asprintf(&body, "{%s%s%s}", fields, *fields ? "," : "", filler) > 0);
    va_end(ap);
    free(fields);
    free(filler);
    return body;
}

/* A text of more bytes than are tokenised on the spot. */
static char *long_text(void)
{
    enum { WORDS = GW_SHORT_BODY / 2 };
    char *s = malloc(5 * WORDS + 1);
    cr_assert_not_null(s);
    for (int i = 0; i < WORDS; i++)
        memcpy(s + (ptrdiff_t)(5 * i), "word ", 6);
    return s;
}

static int post(const char *path, const char *body)
{
    int fd = ts_connect(server.port);
    cr_assert(fd >= 0 && ts_send_request(fd, "POST", path, body));
    return fd;
}

static bool silent(int fd)
{
    return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0) == 0;
}

/* Messages that the helper has taken, and such that wait there. */
static void executor(int *messages, int *waiting)
{
    struct ts_reply r = ts_get(&server, "/debug/actors");
    json_t *j = json_loads(r.body, 0, NULL), *a;
    size_t i;
    *messages = *waiting = -1;
    json_array_foreach (json_object_get(j, "actors"), i, a)
        if (!strcmp(json_string_value(json_object_get(a, "name")), "executor")) {
            *messages = (int)json_integer_value(json_object_get(a, "messages"));
            *waiting = (int)json_integer_value(json_object_get(a, "waiting"));
        }
    json_decref(j);
    ts_reply_free(&r);
}

#define CHAT "\"messages\":[{\"role\":\"user\",\"content\":\"Tell me of the sea.\"}],\"max_tokens\":8"

Test(long_prompts, give_what_short_ones_give)
{
    ts_server_start(&server, NULL, "security = { debug = true; };\nsampling = { temperature = 0.0; };");
    int before, after, waiting;
    executor(&before, &waiting);
    for (int p = 0; p < TS_PROTOCOLS; p++) {
        char *filler =
            fill(p == TS_COMPLETIONS ? "\"user\":\"" : "\"metadata\":{\"fill\":\"", p == TS_COMPLETIONS ? "\"" : "\"}");
        struct ts_answer brief = ts_ask(&server, (enum ts_protocol)p, "Tell me of the sea.", 12, false, "");
        executor(&after, &waiting);
        cr_expect_eq(after, before, "a short body went to the helper");
        struct ts_answer a = ts_ask(&server, (enum ts_protocol)p, "Tell me of the sea.", 12, true, filler);
        executor(&after, &waiting);
        cr_expect_eq(after, before + 1, "a long body did not go to the helper: %s, %d", ts_path((enum ts_protocol)p),
                     after - before);
        before = after;
        cr_expect_str_eq(a.text, brief.text, "%s", ts_path((enum ts_protocol)p));
        cr_expect_eq(a.prompt, brief.prompt);
        ts_answer_free(&a);
        ts_answer_free(&brief);
        free(filler);
    }
    char *body = long_body("\"messages\":[{\"role\":\"user\",\"content\":%d}]", 3);
    struct ts_reply r = ts_post(&server, "/v1/chat/completions", body);
    cr_expect_eq(r.status, 400, "%d %s", r.status, r.body);
    cr_expect(strstr(r.body, "\"messages[0].content\""), "%s", r.body);
    cr_expect_float_eq(ts_metric(&server, "weft_requests_refused_total{cause=\"bad_request\"}"), 1, 0);
    cr_expect_float_eq(ts_metric(&server, "weft_request_success_total{finished_reason=\"error\"}"), 0, 0);
    cr_expect_float_eq(ts_metric(&server, "weft_num_requests_waiting"), 0, 0);
    ts_reply_free(&r);
    free(body);
}

Test(long_prompts, hold_up_nobody_else)
{
    char *text = long_text(), *ask = NULL, *count = NULL;
    ts_server_start(&server, NULL, "security = { debug = true; };");
    /* Runs from before to after. */
    int running = post("/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1000,\"ignore_eos\":true,\"stream\":true}");
    cr_assert(ts_read_until(running, "data: "));
    pid_t helper = ts_server_hold(&server, "helper");
    if (!helper)
        cr_skip_test("a thread cannot be held here: ptrace is not allowed");
    char *chat = long_body(CHAT ",\"stream\":true"), *bad = long_body("\"messages\":%d", 7);
    cr_assert(asprintf(&ask, "{\"prompt\":\"%s\"}", text) > 0);
    cr_assert(asprintf(&count, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", text) > 0);
    int slow[] = {post("/v1/chat/completions", chat),       post("/tokenize", ask),
                  post("/v1/messages/count_tokens", count), post("/v1/chat/completions", bad),
                  post("/v1/chat/completions", chat),       post("/tokenize", ask)};
    ts_until_metric(&server, "weft_num_requests_waiting", 3);
    /* All that is short is answered to its end meanwhile, and what ran goes on. */
    struct ts_reply r = ts_post(&server, "/v1/chat/completions", "{" CHAT "}");
    cr_expect_eq(r.status, 200, "%d %s", r.status, r.body);
    ts_reply_free(&r);
    r = ts_post(&server, "/tokenize", "{\"prompt\":\"short\"}");
    cr_expect_eq(r.status, 200, "%d %s", r.status, r.body);
    ts_reply_free(&r);
    cr_expect(ts_read_until(running, "[DONE]"));
    for (size_t i = 0; i < 6; i++)
        cr_expect(silent(slow[i]), "answer %zu came without the helper", i);
    /* Clients that leave are gone at once; what the helper still has for them is freed by it. */
    close(slow[4]);
    close(slow[5]);
    ts_until_metric(&server, "weft_num_requests_waiting", 2);
    cr_assert(ts_server_let_go(helper));
    static const char *const words[] = {"[DONE]", "\"count\":", "\"input_tokens\":", "messages"};
    for (size_t i = 0; i < 4; i++) {
        cr_expect(ts_read_until(slow[i], words[i]), "answer %zu has no %s", i, words[i]);
        close(slow[i]);
    }
    int messages, waiting;
    do /* six jobs, and two results that came back because nobody is there any more */
        executor(&messages, &waiting);
    while (messages < 8);
    cr_expect_eq(messages, 8, "%d", messages);
    cr_expect_eq(waiting, 0);
    ts_until_metric(&server, "weft_num_requests_waiting", 0);
    close(running);
    free(chat);
    free(bad);
    free(ask);
    free(count);
    free(text);
}

/* What waits for the helper when the server is told to end is finished first; told twice, the server gives it all up.
 */
Test(long_prompts, end_with_the_server)
{
    char *text = long_text(), *ask = NULL, *chat = long_body(CHAT);
    cr_assert(asprintf(&ask, "{\"prompt\":\"%s\"}", text) > 0);
    for (int twice = 0; twice < 2; twice++) {
        ts_server_start(&server, NULL, "limits = { drain = \"60s\"; };");
        pid_t helper = ts_server_hold(&server, "helper");
        if (!helper)
            cr_skip_test("a thread cannot be held here: ptrace is not allowed");
        int fd[] = {post("/v1/chat/completions", chat), post("/tokenize", ask), post("/v1/chat/completions", chat)};
        ts_until_metric(&server, "weft_num_requests_waiting", 2);
        kill(server.pid, SIGTERM);
        ts_server_wait_log(&server, "draining");
        if (twice)
            kill(server.pid, SIGTERM);
        cr_assert(ts_server_let_go(helper));
        cr_expect(twice || ts_read_until(fd[2], "\"finish_reason\":"));
        int status = ts_server_wait(&server);
        cr_expect(status == 0 || (twice && status == 3), "%d", status);
        for (size_t i = 0; i < 3; i++)
            close(fd[i]);
        ts_server_free(&server);
    }
    free(chat);
    free(ask);
    free(text);
}
