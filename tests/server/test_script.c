/* Chosen tokens through the real engine, sampler and gateway: tool calls, reasoning, stop strings, characters that span
 * tokens, log-probabilities; with a token boundary, or the end of a step of several tokens, at every place. */
#include "tests/harness.h"

#include <jansson.h>
#include <unistd.h>

#include "model/chat.h"
#include "model/tokenizer.h"
#include "tests/support/answer.h"
#include "tests/support/process.h"
#include "tests/support/server.h"

#define D MDL_CHAT_DSML
#define CALL(name, parameters) "<" D " invoke name=\"" name "\">\n" parameters "</" D " invoke>\n"
#define STRING(name, value) "<" D " parameter name=\"" name "\" string=\"true\">" value "</" D " parameter>\n"
#define JSON(name, value) "<" D " parameter name=\"" name "\" string=\"false\">" value "</" D " parameter>\n"
#define CALLS(calls) "\n\n<" D " calls>\n" calls "</" D " calls>"
#define TOOL(name)                                                                                                     \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name                                                            \
    "\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}"
#define CHAT_TOOLS "\"tools\":[" TOOL("weather") "," TOOL("run") "]"

enum { IDS_MAX = 4096 };

static struct ts_server server;
static char *script_path;
static struct mdl_tokenizer *tok;

static void stop(void)
{
    ts_server_free(&server);
    mdl_tokenizer_free(tok);
    free(script_path);
    tok = NULL;
    script_path = NULL;
}

TestSuite(script, .fini = stop, .timeout = 600);

static void start(int draft)
{
    char config[300];
    struct cfg_error err;
    const char *program = ts_program("tests/server/weft_scripted");
    /* The hook finds the file through the environment; the server's folder is only made with it. */
    char path[] = "/tmp/weft-script-XXXXXX";
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    close(fd);
    script_path = strdup(path);
    setenv("WEFT_SCRIPT", path, 1);
    snprintf(config, sizeof config,
             "speculation = { draft_length = %d; };\nlog = { level = \"warning\"; };\n"
             "compute = { threads = 1; };\n",
             draft);
    ts_server_start(&server, program, config);
    unlink(path);
    cr_assert_eq(mdl_tokenizer_load("samples/tiny", &tok, &err), 0, "%s", err.msg);
}

/* ---- texts as tokens ---- */

/* The longest token that the text begins with and that does not reach beyond `room`. Added ones count first. */
static int32_t longest(const char *text, size_t room, size_t *len)
{
    int32_t id = -1;
    for (int32_t k = 0; k < mdl_tokenizer_vocab_size(tok) && *text == '<'; k++) {
        const char *bytes;
        if (mdl_tokenizer_is_added(tok, k) && mdl_tokenizer_bytes(tok, k, &bytes, len) && *len && *len <= room &&
            !memcmp(bytes, text, *len))
            return k;
    }
    id = mdl_tokenizer_added_id(tok, MDL_CHAT_DSML);
    if (!strncmp(text, MDL_CHAT_DSML, strlen(MDL_CHAT_DSML)) && room >= strlen(MDL_CHAT_DSML)) {
        *len = strlen(MDL_CHAT_DSML);
        return id;
    }
    for (*len = room < 16 ? room : 16; *len; --*len)
        if ((id = mdl_tokenizer_id(tok, text, *len)) >= 0)
            return id;
    return -1;
}

/* Tokens of the text with a boundary behind byte `cut` (a marker is never cut). most: longest token in bytes. */
static int tokens_of(const char *text, size_t cut, size_t most, int32_t *ids)
{
    size_t n = strlen(text), at = 0;
    int count = 0;
    while (at < n) {
        size_t len, whole;
        int32_t id = longest(text + at, n - at, &whole);
        if (mdl_tokenizer_is_added(tok, id)) {
            len = whole;
        } else {
            size_t room = at < cut && cut < n ? cut - at : n - at;
            id = longest(text + at, room < most ? room : most, &len);
        }
        cr_assert(id >= 0 && count < IDS_MAX, "no token for \"%s\"", text + at);
        ids[count++] = id;
        at += len;
    }
    return count;
}

/* wrong: place at which the drafter guesses wrong, -1 none, -2 everywhere. */
static void write_script(const int32_t *ids, int n, int wrong)
{
    FILE *f = fopen(script_path, "w");
    cr_assert(f != NULL);
    for (int i = 0; i < n; i++)
        fprintf(f, "%s%d\n", wrong == i || wrong == -2 ? "!" : "", ids[i]);
    fclose(f);
}

/* ---- what must come of it ---- */

struct expected {
    const char *text, *reasoning;
    const char *finish;
    int n_calls;
    struct {
        const char *name, *arguments;
    } call[3];
};

static void check(const struct ts_answer *a, const struct expected *e, const char *what, int place)
{
    cr_expect_str_eq(a->text, e->text, "%s %d", what, place);
    cr_expect_str_eq(a->reasoning, e->reasoning, "%s %d", what, place);
    cr_expect_str_eq(a->finish, e->finish, "%s %d", what, place);
    cr_expect_eq(a->n_calls, e->n_calls, "%s %d: %d calls", what, place, a->n_calls);
    for (int i = 0; i < a->n_calls && i < e->n_calls; i++) {
        json_error_t err;
        json_t *got = json_loads(a->call[i].arguments ? a->call[i].arguments : "", 0, &err),
               *want = json_loads(e->call[i].arguments, 0, &err);
        cr_expect_str_eq(a->call[i].name, e->call[i].name);
        cr_expect(got && json_equal(got, want), "%s %d: %s", what, place, a->call[i].arguments);
        json_decref(got);
        json_decref(want);
    }
}

static void ask_and_check(enum ts_protocol p, bool stream, const char *more, const struct expected *e, const char *what,
                          int place)
{
    struct ts_answer a = ts_ask(&server, p, "Go", 0, stream, more);
    check(&a, e, what, place);
    ts_answer_free(&a);
}

/* A boundary between tokens at every byte, then the end of a step at every token. step: every so many places. */
static void at_every_place(enum ts_protocol p, const char *text, const char *more, const struct expected *e, int step)
{
    step *= 2 * TS_LESS - 1;
    int32_t ids[IDS_MAX];
    int n = 0;
    for (size_t cut = 0; cut <= strlen(text); cut += (size_t)step) {
        n = tokens_of(text, cut, 64, ids);
        write_script(ids, n, -1);
        ask_and_check(p, cut % 4 != 3, more, e, "a token ends at byte", (int)cut);
    }
    for (int i = 0; i < n; i += step + 2) {
        write_script(ids, n, i);
        ask_and_check(p, i % 4 != 3, more, e, "a step ends at token", i);
    }
    n = tokens_of(text, 0, 1, ids);
    for (int wrong = -2; wrong < 0; wrong++) {
        write_script(ids, n, wrong);
        ask_and_check(p, true, more, e, "bytes, wrong guesses:", wrong);
    }
}

#define ANSWER                                                                                                         \
    "M\xc3\xbc?\n</think>\n\n\xe2\x82\xac \xf0\x9f\x98\x80 <b> < b" CALLS(CALL(                                        \
        "weather", STRING("c", "K\xc3\xb6 \"a\"\\\n") JSON("n", "[3, {}]")) CALL("run", STRING("x", "a 2>&1 </b")))

static const struct expected answer = {
    "\xe2\x82\xac \xf0\x9f\x98\x80 <b> < b",
    "M\xc3\xbc?",
    "tool_calls",
    2,
    {{"weather", "{\"c\":\"K\xc3\xb6 \\\"a\\\"\\\\\\n\",\"n\":[3,{}]}"}, {"run", "{\"x\":\"a 2>&1 </b\"}"}}};

Test(script, reasoning_text_and_calls_of_a_chat)
{
    start(5);
    at_every_place(TS_CHAT, ANSWER, CHAT_TOOLS ",\"reasoning_effort\":\"high\"", &answer, 1);
    cr_expect_gt(ts_metric(&server, "weft_spec_decode_num_accepted_tokens_total"), 100.0);
    cr_expect_gt(ts_metric(&server, "weft_request_success_total{finished_reason=\"tool_calls\"}"), 20.0);
    ts_until_metric(&server, "weft_num_requests_running", 0);
    ts_until_metric(&server, "weft_kv_pages_held", 8);
}

/* An end of text that the drafter guessed is a draft that was kept, and the step has nothing of the target's behind it;
 * one that it did not guess is the target's own. Here every guess is right but the one that is said to be wrong. */
Test(script, an_end_that_was_drafted_was_accepted)
{
    enum { N = 9, DRAFTS = 3, END = 1 /* eos_token_id of the model */ };
    int32_t ids[IDS_MAX];
    start(DRAFTS);
    double all[2] = {0};
    for (int n = 1; n <= N; n++)
        for (int wrong = 0; wrong < 2; wrong++) {
            cr_assert_gt(tokens_of("a b c d e ", 0, 1, ids), N);
            ids[n] = END;
            write_script(ids, n + 1, wrong ? n : -1);
            struct ts_reply r =
                ts_post(&server, "/v1/completions", "{\"prompt\":\"Go\",\"max_tokens\":40,\"temperature\":0}");
            cr_assert_eq(r.status, 200, "%s", r.body);
            json_t *j = json_loads(r.body, 0, NULL), *usage = json_object_get(j, "usage"),
                   *own = json_object_get(usage, "speculation");
            int steps = (int)json_integer_value(json_object_get(own, "steps")),
                accepted = (int)json_integer_value(json_object_get(own, "accepted")),
                tokens = (int)json_integer_value(json_object_get(usage, "completion_tokens"));
            /* n tokens and the end: the first one from the prompt, the others in steps of up to 4. */
            int full = (n - 1) / (DRAFTS + 1), rest = n - full * (DRAFTS + 1); /* of the last step */
            bool drafted = rest <= DRAFTS && !wrong;
            cr_expect_eq(steps, full + 1, "%d tokens: %d steps", n, steps);
            cr_expect_eq(accepted, full * DRAFTS + rest - !drafted, "%d tokens%s: %d accepted", n,
                         wrong ? ", end not guessed" : "", accepted);
            cr_expect_eq(steps + accepted - drafted, tokens - 1, "%d tokens", tokens);
            all[0] += steps;
            all[1] += accepted;
            json_decref(j);
            ts_reply_free(&r);
        }
    ts_until_metric(&server, "weft_spec_decode_request_steps_total", all[0]);
    cr_expect_eq(ts_metric(&server, "weft_spec_decode_num_accepted_tokens_total"), all[1]);
}

Test(script, reasoning_text_and_calls_of_the_other_protocols)
{
    struct expected e = answer;
    start(3);
    e.finish = "tool_use";
    at_every_place(TS_MESSAGES, ANSWER,
                   "\"tools\":[{\"name\":\"weather\",\"input_schema\":{\"type\":\"object\"}},{\"name\":\"run\","
                   "\"input_schema\":{\"type\":\"object\"}}],\"max_tokens\":900,"
                   "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024}",
                   &e, 11);
    e.finish = "completed";
    at_every_place(TS_RESPONSES, ANSWER,
                   "\"tools\":[{\"type\":\"function\",\"name\":\"weather\",\"parameters\":{\"type\":\"object\"}},"
                   "{\"type\":\"function\",\"name\":\"run\",\"parameters\":{\"type\":\"object\"}}],"
                   "\"reasoning\":{\"effort\":\"high\"}",
                   &e, 11);
}

/* One function has no parameter "arguments", so what stands in it are the arguments; the other has one. */
Test(script, a_wrapper_goes_where_the_schema_has_none)
{
    static const char value[] = "{\"c\": \"K\xc3\xb6\", \"n\": {}}";
    char text[1024];
    snprintf(text, sizeof text, CALLS(CALL("weather", JSON("arguments", "%s")) CALL("run", JSON("arguments", "%s"))),
             value, value);
    start(4);
    at_every_place(
        TS_CHAT, text,
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{\"properties\":"
        "{\"c\":{\"type\":\"string\"}}}}},{\"type\":\"function\",\"function\":{\"name\":\"run\",\"parameters\":"
        "{\"properties\":{\"arguments\":{\"type\":\"object\"}}}}}],\"max_tokens\":900",
        &(struct expected){
            "",
            "",
            "tool_calls",
            2,
            {{"weather", "{\"c\":\"K\xc3\xb6\",\"n\":{}}"}, {"run", "{\"arguments\":{\"c\":\"K\xc3\xb6\",\"n\":{}}}"}}},
        5);
}

/* Without tools in the request the markup is text. */
Test(script, markup_without_tools_is_text)
{
    static const char text[] = "See" CALLS(CALL("weather", ""));
    int32_t ids[IDS_MAX];
    start(3);
    write_script(ids, tokens_of(text, 0, 64, ids), -1);
    ask_and_check(TS_CHAT, true, "\"max_tokens\":200", &(struct expected){text, "", "stop", 0, {{0}}}, "no tools", 0);
}

Test(script, stop_strings_are_never_partly_given)
{
    start(5);
    at_every_place(TS_CHAT, "STOP it, STO \xc3\xa4 ST\xc3\xb6 and then STOP\xc3\xb6 it",
                   "\"stop\":[\"STOP\xc3\xb6\",\"ST\xc3\xa4\"]",
                   &(struct expected){"STOP it, STO \xc3\xa4 ST\xc3\xb6 and then ", "", "stop", 0, {{0}}}, 1);
}

/* A stop string inside reasoning is none. */
Test(script, stop_strings_count_in_the_answer_only)
{
    start(5);
    at_every_place(TS_CHAT, "Must not STOP here.</think>But STOP here",
                   "\"stop\":\"STOP\",\"reasoning_effort\":\"high\"",
                   &(struct expected){"But ", "Must not STOP here.", "stop", 0, {{0}}}, 1);
}

/* What stands behind a stop string in the same step is neither given nor billed. */
Test(script, tokens_behind_a_stop_are_not_billed)
{
    int32_t ids[IDS_MAX];
    start(5);
    int n = tokens_of("abSTOPdefghijklmnopqrstuvwxyz", 0, 1, ids);
    write_script(ids, n, -1);
    struct ts_answer a = ts_ask(&server, TS_CHAT, "Go", 0, true, "\"stop\":\"STOP\",\"logprobs\":true");
    cr_expect_str_eq(a.text, "ab");
    cr_expect_eq(a.output, 6, "%d", a.output);
    ts_answer_free(&a);
    cr_expect_eq(ts_metric(&server, "weft_generation_tokens_total"), 6.0);
}

/* One entry a token, each with its own bytes, whatever part of a character they are. */
Test(script, logprobs_of_characters_that_span_tokens)
{
    static const char text[] = "\xf0\x9f\x98\x80\xc3\xa4 and \xe2\x82\xac";
    int32_t ids[IDS_MAX];
    start(5);
    int n = tokens_of(text, 0, 1, ids);
    for (int wrong = -2; wrong < n; wrong++)
        for (int stream = 0; stream < 2; stream++) {
            write_script(ids, n, wrong);
            struct ts_answer a = ts_ask(&server, TS_CHAT, "Go", 0, stream, "\"logprobs\":true,\"top_logprobs\":2");
            char bytes[200] = "";
            size_t i, k, len = 0;
            json_t *e, *b;
            cr_expect_str_eq(a.text, text);
            json_array_foreach (a.logprobs, i, e)
                json_array_foreach (json_object_get(e, "bytes"), k, b)
                    if (len + 1 < sizeof bytes)
                        bytes[len++] = (char)json_integer_value(b);
            cr_expect_eq((int)json_array_size(a.logprobs), n, "%zu entries for %d tokens", json_array_size(a.logprobs),
                         n);
            cr_expect_str_eq(bytes, text);
            ts_answer_free(&a);
        }
}

Test(script, reasoning_tokens_are_counted)
{
    int32_t ids[IDS_MAX];
    start(3);
    int n = tokens_of("0123456789</think>abc", 0, 1, ids);
    write_script(ids, n, -1);
    struct ts_answer a = ts_ask(&server, TS_CHAT, "Go", 0, true, "\"reasoning_effort\":\"high\"");
    cr_expect_str_eq(a.reasoning, "0123456789");
    cr_expect_str_eq(a.text, "abc");
    /* With the end of text, and the marker that ends the reasoning. */
    cr_expect_eq(a.output, n + 1, "%d", a.output);
    cr_expect(a.reasoning_tokens == 10 || a.reasoning_tokens == 11, "%d", a.reasoning_tokens);
    ts_answer_free(&a);
}

Test(script, one_call_only_when_parallel_calls_are_off)
{
    int32_t ids[IDS_MAX];
    start(5);
    write_script(ids, tokens_of(CALLS(CALL("run", STRING("a", "1")) CALL("run", STRING("a", "2"))), 0, 64, ids), -1);
    ask_and_check(TS_CHAT, true, CHAT_TOOLS ",\"parallel_tool_calls\":false",
                  &(struct expected){"", "", "tool_calls", 1, {{"run", "{\"a\":\"1\"}"}}}, "one call", 0);
}

/* A call that is asked for begins in the prompt; the model writes the rest. */
Test(script, forced_calls_begin_where_the_model_goes_on)
{
    static const char tail[] = "</" D " invoke>\n</" D " calls>";
    static const struct {
        const char *choice, *head, *name;
    } rows[] = {
        {"{\"type\":\"function\",\"function\":{\"name\":\"run\"}}", "", "run"},
        {"\"required\"", "weather\">\n", "weather"},
    };
    start(4);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512], more[512], arguments[] = "{\"a\":\"1\"}";
        snprintf(text, sizeof text, "%s" STRING("a", "1") "%s", rows[i].head, tail);
        snprintf(more, sizeof more, CHAT_TOOLS ",\"reasoning_effort\":\"high\",\"tool_choice\":%s", rows[i].choice);
        at_every_place(TS_CHAT, text, more, &(struct expected){"", "", "tool_calls", 1, {{rows[i].name, arguments}}},
                       7);
    }
}

/* Fields of a request with one tool "run"; choice: 0 auto, 1 some tool, 2 this one. */
static const char *tool_fields(enum ts_protocol p, int choice)
{
    static const char *const choices[][3] = {
        [TS_CHAT] = {"\"auto\"", "\"required\"", "{\"type\":\"function\",\"function\":{\"name\":\"run\"}}"},
        [TS_RESPONSES] = {"\"auto\"", "\"required\"", "{\"type\":\"function\",\"name\":\"run\"}"},
        [TS_MESSAGES] = {"{\"type\":\"auto\"}", "{\"type\":\"any\"}", "{\"type\":\"tool\",\"name\":\"run\"}"},
    };
    static const char *const tools[] = {
        [TS_CHAT] = "{\"type\":\"function\",\"function\":{\"name\":\"run\",\"parameters\":%s}}",
        [TS_RESPONSES] = "{\"type\":\"function\",\"name\":\"run\",\"parameters\":%s}",
        [TS_MESSAGES] = "{\"name\":\"run\",\"input_schema\":%s}",
    };
    static char more[512], tool[256];
    snprintf(tool, sizeof tool, tools[p], "{\"type\":\"object\",\"required\":[\"a\"]}");
    snprintf(more, sizeof more, "\"tools\":[%s],\"tool_choice\":%s", tool, choices[p][choice]);
    return more;
}

/* The first `limit` tokens of an answer that is one call: never markup, never arguments that nobody wrote. */
static void check_cut(enum ts_protocol p, int choice, bool stream, int limit, const char *arguments)
{
    struct ts_answer a = ts_ask(&server, p, "Go", limit, stream, tool_fields(p, choice));
    const char *got = a.n_calls && a.call[0].arguments ? a.call[0].arguments : "";
    char what[600];
    snprintf(what, sizeof what, "%s, choice %d, stream %d, %d tokens: \"%s\", %d calls, %s", ts_path(p), choice, stream,
             limit, a.text, a.n_calls, got);
    cr_expect_str_eq(a.finish, p == TS_CHAT ? "length" : p == TS_MESSAGES ? "max_tokens" : "incomplete", "%s", what);
    cr_expect_str_eq(a.text, "", "%s", what);
    cr_expect_str_eq(a.reasoning, "", "%s", what);
    cr_expect_eq(a.output, limit, "%s", what);
    cr_expect(a.n_calls == 0 || (a.n_calls == 1 && !strcmp(a.call[0].name, "run")), "%s", what);
    if (p == TS_MESSAGES && a.n_calls)
        cr_expect_str_neq(got, "", "%s", what);
    if (p == TS_MESSAGES && !stream && a.n_calls) {
        json_error_t err;
        json_t *is = json_loads(got, 0, &err), *want = json_loads(arguments, 0, &err);
        cr_expect(is && json_equal(is, want), "%s", what);
        json_decref(is);
        json_decref(want);
    } else {
        cr_expect_eq(strncmp(arguments, got, strlen(got)), 0, "%s", what);
    }
    ts_answer_free(&a);
}

Test(script, a_call_that_the_length_cuts_off)
{
    static const char *const texts[] = {
        "\n\n<" D " calls>\n" CALL("run", STRING("a", "K\xc3\xb6\"") JSON("b", "[1]")) "</" D " calls>",
        "run\">\n" STRING("a", "K\xc3\xb6\"") JSON("b", "[1]") "</" D " invoke>\n</" D " calls>",
        STRING("a", "K\xc3\xb6\"") JSON("b", "[1]") "</" D " invoke>\n</" D " calls>",
    };
    static const enum ts_protocol protocols[] = {TS_CHAT, TS_MESSAGES, TS_RESPONSES};
    static const char arguments[] = "{\"a\": \"K\xc3\xb6\\\"\", \"b\": [1]}";
    int32_t ids[IDS_MAX];
    int turn = 0;
    start(3);
    for (int choice = 0; choice < 3; choice++) {
        int n = tokens_of(texts[choice], 0, 64, ids);
        write_script(ids, n, -1);
        for (int limit = 1; limit < n; limit += 2 * TS_LESS - 1, turn++)
            for (int k = 0; k < (choice == 1 && limit < 3 ? 6 : 1); k++)
                check_cut(protocols[(turn + k) % 3], choice, (turn + k) / 3 % 2, limit, arguments);
    }
    /* Inside of a character. */
    int n = tokens_of("<" D " parameter name=\"a\" string=\"true\">", 0, 64, ids);
    int head = n;
    n += tokens_of("K\xc3\xb6\"</", 0, 1, ids + n);
    write_script(ids, n, -1);
    for (int limit = head; limit < n; limit++, turn++)
        check_cut(protocols[turn % 3], 2, turn / 3 % 2, limit, arguments);
}

/* The model wants to call; it may not, so its markup cannot come. */
Test(script, forbidden_calls_do_not_come)
{
    int32_t ids[IDS_MAX];
    start(4);
    write_script(ids, tokens_of("No " CALLS(CALL("run", STRING("a", "1"))), 0, 64, ids), -1);
    for (int stream = 0; stream < 2; stream++) {
        struct ts_answer a =
            ts_ask(&server, TS_CHAT, "Go", 0, stream, CHAT_TOOLS ",\"tool_choice\":\"none\",\"max_tokens\":40");
        cr_expect_eq(a.n_calls, 0);
        cr_expect(!strncmp(a.text, "No ", 3), "%s", a.text);
        cr_expect_not(strstr(a.text, D), "%s", a.text);
        ts_answer_free(&a);
    }
}

/* What has begun and then fails ends with an error, never as if it were complete. */
Test(script, a_failure_in_mid_stream_is_said)
{
    static const char *const ends[] = {"[DONE]", "[DONE]", "response.completed", "message_stop"};
    int32_t ids[IDS_MAX];
    start(4);
    int n = tokens_of("one two three", 0, 3, ids);
    ids[n++] = -5;
    for (int wrong = -2; wrong < 0; wrong++)
        for (int p = 0; p < TS_PROTOCOLS; p++) {
            write_script(ids, n, wrong);
            for (int stream = 0; stream < 2; stream++) {
                char *body = ts_body((enum ts_protocol)p, "Go", 60, stream, "");
                struct ts_reply r = ts_post(&server, ts_path((enum ts_protocol)p), body);
                cr_expect_eq(r.status, stream ? 200 : 500, "%s: %d %s", ts_path((enum ts_protocol)p), r.status, r.body);
                cr_expect(r.whole && strstr(r.body, "the engine failed on this request"), "%s", r.body);
                cr_expect_not(strstr(r.body, ends[p]) || strstr(r.body, "\"finish_reason\":\"stop\""), "%s", r.body);
                cr_expect_eq(stream, strstr(r.body, "data: ") != NULL);
                ts_reply_free(&r);
                free(body);
            }
        }
    cr_expect_float_eq(ts_metric(&server, "weft_request_success_total{finished_reason=\"error\"}"), 16, 0.1);
    ts_until_metric(&server, "weft_num_requests_running", 0);
    ts_until_metric(&server, "weft_kv_pages_held", 8);
    write_script(ids, n - 1, -1);
    ask_and_check(TS_CHAT, true, "", &(struct expected){"one two three", "", "stop", 0, {{0}}}, "afterwards", 0);
}
