/* The output machine. Every text is tried whole, byte by byte and cut in two at every place; the events must be equal.
 */
#include <jansson.h>

#include "actors/gateway/output.h"
#include "tests/harness.h"

#define D                                                                                                              \
    "\xef\xbd\x9c"                                                                                                     \
    "DSML"                                                                                                             \
    "\xef\xbd\x9c"
#define CALLS "<" D " calls>\n"
#define END_CALLS "</" D " calls>"
#define INVOKE(name) "<" D " invoke name=\"" name "\">\n"
#define END_INVOKE "</" D " invoke>\n"
#define STR(key, value) "<" D " parameter name=\"" key "\" string=\"true\">" value "</" D " parameter>\n"
#define RAW(key, value) "<" D " parameter name=\"" key "\" string=\"false\">" value "</" D " parameter>\n"

enum { LOG_SIZE = 16384 };

/* Events as text: R[..] reasoning, T[..] answer, C0[name] A[..] E0 calls (X0: cut off); neighbours of one kind are
 * joined. */
struct log {
    char s[LOG_SIZE];
    size_t n;
    int kind, events, args_events;
    bool torn; /* an event that is no UTF-8 by itself */
};

static void put(struct log *l, const char *s, size_t n)
{
    cr_assert_lt(l->n + n, sizeof l->s);
    memcpy(l->s + l->n, s, n);
    l->n += n;
    l->s[l->n] = 0;
}

static void on_event(void *ctx, const struct gw_event *ev)
{
    struct log *l = ctx;
    char head[16];
    json_t *check = json_stringn(ev->text, ev->len);
    l->torn |= !check;
    json_decref(check);
    l->events++;
    l->args_events += ev->kind == GW_EV_CALL_ARGS;
    bool numbered = ev->kind == GW_EV_CALL_BEGIN || ev->kind == GW_EV_CALL_END || ev->kind == GW_EV_CALL_CUT;
    if (ev->kind == (enum gw_event_kind)l->kind && !numbered) {
        l->n--; /* its ']' */
    } else {
        if (numbered)
            snprintf(head, sizeof head, "%c%d[", "RTCAEX"[ev->kind], ev -> index);
        else
            snprintf(head, sizeof head, "%c[", "RTCAEX"[ev->kind]);
        put(l, head, strlen(head));
    }
    put(l, ev->text, ev->len);
    put(l, "]", 1);
    l->kind = ev->kind;
}

struct outcome {
    struct log log;
    bool stopped, done;
    int calls, repaired;
    char stop[64];
};

struct setup {
    bool thinking, no_tools, raw, open_text, cut;
    int max_calls;
    const char *stop[4];
    json_t *declared;
};

static void push(struct gw_output *o, const char *s, size_t n)
{
    char *copy = malloc(n ? n : 1); /* a read past the end shows */
    memcpy(copy, s, n);
    cr_assert_eq(gw_output_push(o, copy, n), 0);
    free(copy);
}

/* cut: 0 byte by byte, else two pieces. */
static void run(const struct setup *s, const char *text, size_t cut, struct outcome *out)
{
    size_t lens[4], len = strlen(text);
    memset(out, 0, sizeof *out);
    out->log.kind = -1;
    struct gw_output_options opt = {.thinking = s->thinking,
                                    .tools = !s->no_tools,
                                    .declared = s->declared,
                                    .raw = s->raw,
                                    .open_text = s->open_text,
                                    .max_calls = s->max_calls,
                                    .stop = s->stop,
                                    .stop_len = lens,
                                    .on_event = on_event,
                                    .ctx = &out->log};
    while (opt.n_stop < 4 && s->stop[opt.n_stop]) {
        lens[opt.n_stop] = strlen(s->stop[opt.n_stop]);
        opt.n_stop++;
    }
    struct gw_output *o = gw_output_new(&opt);
    cr_assert_not_null(o);
    if (cut == 0) {
        for (size_t i = 0; i < len; i++)
            push(o, text + i, 1);
    } else {
        push(o, text, cut < len ? cut : len);
        if (cut < len)
            push(o, text + cut, len - cut);
    }
    cr_assert_eq(gw_output_end(o, s->cut), 0);
    out->stopped = gw_output_stopped(o);
    out->done = gw_output_done(o);
    out->calls = gw_output_calls(o);
    out->repaired = gw_output_repaired(o);
    if (gw_output_stop(o))
        snprintf(out->stop, sizeof out->stop, "%s", gw_output_stop(o));
    gw_output_free(o);
}

static void check(const struct setup *s, const char *text, const char *want, int repaired)
{
    static struct outcome o;
    for (size_t cut = 0; cut <= strlen(text); cut++) {
        run(s, text, cut, &o);
        cr_assert_str_eq(o.log.s, want, "cut at %zu", cut);
        cr_assert_not(o.log.torn, "an event cuts a character, cut at %zu", cut);
        cr_assert_eq(o.repaired, repaired, "repaired %d, wanted %d, cut at %zu", o.repaired, repaired, cut);
    }
}

static const struct setup answer = {0}, thinking = {.thinking = true};

Test(output, reasoning_ends_and_newlines_around_it_go)
{
    check(&thinking, "let me\n\nsee\n\n</think>\n\nHi\nyou", "R[let me\n\nsee]T[Hi\nyou]", 0);
    check(&thinking, "\n\nhm</think>", "R[hm]", 0);
    check(&thinking, "</think>yes", "T[yes]", 0);
    check(&thinking, "never ends\n", "R[never ends\n]", 0);
    check(&thinking, "a < b </thin </think>c", "R[a < b </thin ]T[c]", 0);
}

Test(output, stray_end_of_reasoning_is_dropped)
{
    check(&answer, "one</think> two", "T[one two]", 0);
    check(&answer, "</think>\n\ntwo\n", "T[two\n]", 0);
}

Test(output, text_keeps_what_only_looks_like_markup)
{
    check(&answer, "if (a<b) <think> <<" D " <invoke name=\"x\"> 2>&1",
          "T[if (a<b) <think> <<" D " <invoke name=\"x\"> 2>&1]", 0);
    check(&answer, "<" D " foo>x</" D " calls>", "T[<" D " foo>x</" D " calls>]", 0);
    check(&answer, "<" D " parameter name=\"a\" string=\"true\">x", "T[<" D " parameter name=\"a\" string=\"true\">x]",
          0);
    check(&answer, "the end <" D " cal", "T[the end <" D " cal]", 0);
    check(&answer, "caf\xc3\xa9 \xf0\x9f\x98\x80 <\xef\xbd\x9c", "T[caf\xc3\xa9 \xf0\x9f\x98\x80 <\xef\xbd\x9c]", 0);
}

Test(output, broken_utf8_becomes_replacement)
{
    check(&answer,
          "a\xff"
          "b\xc3",
          "T[a\xef\xbf\xbd"
          "b\xef\xbf\xbd]",
          0);
}

Test(output, calls_with_every_kind_of_argument)
{
    check(&answer,
          "I look.\n\n" CALLS INVOKE("get") STR("city", "Bad \"Ems\"\n\\ \x01 caf\xc3\xa9") RAW("days", "3")
              RAW("o", "{\"a\": [1, null]}") END_INVOKE INVOKE("now") END_INVOKE END_CALLS "\n\nand more",
          "T[I look.]C0[get]A[{\"city\": \"Bad \\\"Ems\\\"\\n\\\\ \\u0001 caf\xc3\xa9\", \"days\": 3, \"o\": {\"a\": "
          "[1, null]}}]E0[]"
          "C1[now]A[{}]E1[]",
          0);
}

Test(output, calls_start_inside_reasoning)
{
    check(&thinking, "I must call\n\n" CALLS INVOKE("f") STR("a", "") END_INVOKE END_CALLS,
          "R[I must call]C0[f]A[{\"a\": \"\"}]E0[]", 0);
}

Test(output, spelling_without_space)
{
    check(&answer,
          "<" D "tool_calls>\n<" D "invoke name=\"f\">\n<" D "parameter name=\"a\" string=\"true\">x</" D
          "parameter>\n</" D "invoke>\n</" D "tool_calls>",
          "C0[f]A[{\"a\": \"x\"}]E0[]", 0);
    check(&answer,
          CALLS INVOKE("f") "<" D " parameter name=\"a\" string=\"true\">x</" D "parameter>\n</" D "invoke></" D
                            "calls>tail",
          "C0[f]A[{\"a\": \"x\"}]E0[]", 0);
}

Test(output, values_keep_what_looks_like_tags)
{
    check(&answer,
          CALLS INVOKE("run") STR("command", "make 2>&1")
              STR("b", "</parameter> <invoke name=\"x\"> <\xef\xbd\x9c </" D " para <" D " parameter> </think>\n")
                  END_INVOKE END_CALLS,
          "C0[run]A[{\"command\": \"make 2>&1\", \"b\": \"</parameter> <invoke name=\\\"x\\\"> <\xef\xbd\x9c </" D
          " para <" D " parameter> </think>\\n\"}]E0[]",
          0);
    check(&answer, CALLS INVOKE("run") STR("command", "ls 2>") STR("x", "<") STR("y", "\n\n") END_INVOKE END_CALLS,
          "C0[run]A[{\"command\": \"ls 2>\", \"x\": \"<\", \"y\": \"\\n\\n\"}]E0[]", 0);
}

Test(output, missing_wrapper_is_recovered)
{
    check(&answer, "Ok\n\n" INVOKE("f") RAW("n", "1") END_INVOKE, "T[Ok]C0[f]A[{\"n\": 1}]E0[]", 1);
    check(&answer, INVOKE("f") END_INVOKE INVOKE("g") END_INVOKE END_CALLS "x", "C0[f]A[{}]E0[]C1[g]A[{}]E1[]", 2);
    check(&answer, INVOKE("f") END_INVOKE " then text", "C0[f]A[{}]E0[]T[then text]", 1);
}

Test(output, missing_closers_are_implied)
{
    const char *want = "C0[f]A[{\"a\": \"x\"}]E0[]";
    check(&answer, CALLS INVOKE("f") "<" D " parameter name=\"a\" string=\"true\">x\n" END_INVOKE END_CALLS, want, 1);
    check(&answer, CALLS INVOKE("f") STR("a", "x") END_CALLS, want, 1);
    check(&answer, CALLS INVOKE("f") STR("a", "x"), want, 1);
    check(&answer, CALLS INVOKE("f") "<" D " parameter name=\"a\" string=\"true\">x", want, 1);
    check(&answer, CALLS INVOKE("f") "<" D " parameter name=\"a\" string=\"true\">x</" D " par", want, 1);
    check(&answer, CALLS INVOKE("f") STR("a", "x") END_INVOKE, want, 0);
    check(&answer,
          CALLS INVOKE("f") "<" D " parameter name=\"a\" string=\"true\">x\n" STR("b", "y") INVOKE("g")
              END_INVOKE END_CALLS,
          "C0[f]A[{\"a\": \"x\", \"b\": \"y\"}]E0[]C1[g]A[{}]E1[]", 1);
}

Test(output, values_that_are_no_json_become_strings)
{
    check(&answer,
          CALLS INVOKE("f") RAW("a", "hello") RAW("b", "{\"x\": ") RAW("c", "") RAW("d", "NaN") END_INVOKE END_CALLS,
          "C0[f]A[{\"a\": \"hello\", \"b\": \"{\\\"x\\\": \", \"c\": \"\", \"d\": \"NaN\"}]E0[]", 1);
    check(&answer, CALLS INVOKE("f") "<" D " parameter name=\"a\">7</" D " parameter>" END_INVOKE END_CALLS,
          "C0[f]A[{\"a\": \"7\"}]E0[]", 1);
    check(&answer, CALLS INVOKE("f") "<" D " parameter name=\"a\" string=\"false\">[1, 2",
          "C0[f]A[{\"a\": \"[1, 2\"}]E0[]", 1);
}

Test(output, an_object_in_place_of_parameters)
{
    check(&answer, CALLS INVOKE("f") "{\"a\": 1}\n" END_INVOKE END_CALLS, "C0[f]A[{\"a\": 1}]E0[]", 1);
    check(&answer, CALLS INVOKE("f") "what?\n" STR("a", "x") END_INVOKE END_CALLS, "C0[f]A[{\"a\": \"x\"}]E0[]T[what?]",
          1);
}

Test(output, a_block_without_a_call_is_given_back)
{
    check(&answer, "see\n\n" CALLS "nothing here", "T[see\n\n" CALLS "nothing here]", 0);
    check(&answer, CALLS END_CALLS, "T[" CALLS END_CALLS "]", 0);
    check(&answer, CALLS, "T[" CALLS "]", 0);
    check(&thinking, "a " CALLS "b</think>c", "R[a " CALLS "b]T[c]", 0);
    check(&thinking, "a " CALLS "</think>c", "R[a <" D " calls>]T[c]", 0);
}

Test(output, self_closing_tags)
{
    check(&answer,
          CALLS "<" D " invoke name=\"f\"/>\n<" D " invoke name=\"g\">\n<" D
                " parameter name=\"a\" string=\"true\" />" END_INVOKE END_CALLS,
          "C0[f]A[{}]E0[]C1[g]A[{\"a\": \"\"}]E1[]", 0);
}

Test(output, without_tools_markup_is_text)
{
    const struct setup s = {.no_tools = true};
    check(&s, "a\n\n" CALLS INVOKE("f") END_INVOKE, "T[a\n\n" CALLS INVOKE("f") END_INVOKE "]", 0);
}

Test(output, raw_text_passes_untouched)
{
    const struct setup s = {.raw = true, .stop = {"END"}};
    check(&s, "\n\n</think>" CALLS INVOKE("f") "\nEN", "T[\n\n</think>" CALLS INVOKE("f") "\nEN]", 0);
    check(&s, "\na END b", "T[\na ]", 0);
}

Test(output, continued_text_keeps_its_newlines)
{
    const struct setup s = {.open_text = true};
    check(&s, "\nb", "T[\nb]", 0);
}

Test(output, max_calls_ends_the_output)
{
    const struct setup s = {.max_calls = 1};
    static struct outcome o;
    const char *text = CALLS INVOKE("f") END_INVOKE INVOKE("g") END_INVOKE END_CALLS;
    check(&s, text, "C0[f]A[{}]E0[]", 0);
    run(&s, text, strlen(text), &o);
    cr_assert(o.done);
    cr_assert_eq(o.calls, 1);
}

static void check_stop(const struct setup *s, const char *text, const char *want, const char *stop)
{
    static struct outcome o;
    check(s, text, want, 0);
    run(s, text, 0, &o);
    cr_assert_eq(o.stopped, stop != NULL, "%s", text);
    cr_assert_str_eq(o.stop, stop ? stop : "");
}

Test(output, stop_strings_end_the_answer)
{
    const struct setup s = {.stop = {"STOP", "\n\nUser:", "ab", "aab"}};
    check_stop(&s, "one STOP two", "T[one ]", "STOP");
    check_stop(&s, "one STO", "T[one STO]", NULL);
    check_stop(&s, "one\n\nUse\n\nUser: x", "T[one\n\nUse]", "\n\nUser:");
    check_stop(&s, "STSTOPx", "T[ST]", "STOP");
    check_stop(&s, "xaaab", "T[xa]", "aab"); /* the longest of those that end together */
    check_stop(&s, "x\nSTOP", "T[x\n]", "STOP");
    check_stop(&s, "a</think>b", "", "ab"); /* what the client would read */
}

Test(output, the_longest_of_the_stop_strings_that_end_together_counts)
{
    const struct setup s = {.stop = {"aab", "b", "ab"}};
    check_stop(&s, "xaaab", "T[xa]", "aab");
    check_stop(&s, "xab", "T[x]", "ab");
    check_stop(&s, "xb", "T[x]", "b");
}

Test(output, stop_strings_do_not_match_elsewhere)
{
    const struct setup s = {.thinking = true, .stop = {"STOP", "<", "f"}};
    check_stop(&s, "think STOP</think>go" CALLS INVOKE("f") STR("STOP", "STOP <f") END_INVOKE END_CALLS,
               "R[think STOP]T[go]C0[f]A[{\"STOP\": \"STOP <f\"}]E0[]", NULL);
    check_stop(&s, "x</think>y<z", "R[x]T[y]", "<");
}

Test(output, stop_strings_reach_into_what_is_given_back)
{
    const struct setup s = {.stop = {"a<", "\n\n<\xef", ">x"}};
    check_stop(&s, "a" CALLS "b", "", "a<");
    check_stop(&s, "b\n\n" CALLS "b", "T[b]", "\n\n<\xef");
    check_stop(&s, "b<" D " calls>x", "T[b<" D " calls]", ">x");
}

Test(output, stop_strings_with_long_borders)
{
    const struct setup s = {.stop = {"aaaaaaab"}};
    check_stop(&s, "aaaaaaaaaaaaaaaab!", "T[aaaaaaaaa]", "aaaaaaab");
}

Test(output, long_arguments_flow)
{
    enum { SIZE = 50000, PIECE = 7 };
    static struct log l;
    size_t total = 0;
    memset(&l, 0, sizeof l);
    struct gw_output_options opt = {.tools = true, .on_event = on_event, .ctx = &l};
    struct gw_output *o = gw_output_new(&opt);
    const char *head = CALLS INVOKE("write") "<" D " parameter name=\"text\" string=\"true\">";
    cr_assert_eq(gw_output_push(o, head, strlen(head)), 0);
    int before = l.args_events;
    for (int i = 0; i < SIZE / PIECE; i++) {
        l.n = 0; /* only counted */
        l.kind = -1;
        cr_assert_eq(gw_output_push(o, "some \"x", PIECE), 0);
        total += l.n;
    }
    cr_assert_ge(l.args_events - before, SIZE / PIECE - 1);
    cr_assert_ge(total, SIZE);
    l.kind = -1;
    cr_assert_eq(gw_output_end(o, false), 0);
    cr_assert_eq(gw_output_calls(o), 1);
    gw_output_free(o);
}

/* A raw value of `pad` bytes of a list, then `text`, cut off or closed. */
static void run_long(int pad, const char *text, bool closed, struct outcome *o)
{
    static char s[8192];
    size_t n = (size_t)snprintf(s, sizeof s, CALLS INVOKE("f") "<" D " parameter name=\"a\" string=\"false\">[");
    while (pad-- > 0)
        s[n++] = ' ';
    snprintf(s + n, sizeof s - n, "%s%s", text, closed ? "</" D " parameter>" END_INVOKE END_CALLS : "");
    run(&answer, s, 0, o);
}

Test(output, long_raw_values_flow_and_are_closed_where_they_end)
{
    static struct outcome o;
    static const struct {
        const char *text, *tail, *rest;
    } rows[] = {
        {"1]", "1]}", ""},
        {"{\"a\": \"b", "{\"a\": \"b\"}]}", ""},
        {"{\"a", "{\"a\":null}]}", ""},
        {"{\"a\"", "{\"a\":null}]}", ""},
        {"{\"a\": 1,", "{\"a\": 1,\"\":null}]}", ""},
        {"{", "{}]}", ""},
        {"[", "[]]}", ""},
        {"tr", "true]}", ""},
        {"-", "-0]}", ""},
        {"1.", "1.0]}", ""},
        {"2e+", "2e+0]}", ""},
        {"2,", "2,null]}", ""},
        {"\"x\\", "\"x\\\\\"]}", ""},
        {"\"x\\u", "\"x\\u0000\"]}", ""},
        {"\"x\\ud", "\"x\\ud000\"]}", ""},
        {"\"x\\ud8", "\"x\\ud800\\udc00\"]}", ""},
        {"\"x\\ud83d\\", "\"x\\ud83d\\udc00\"]}", ""},
        {"\"x\\ud83d\\uD", "\"x\\ud83d\\uDc00\"]}", ""},
        {"1 2 3", "1 ]}", "2 3"},
        {"\"x\\udc00\"", "\"x\\ud000\"]}", "c00\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int closed = 0; closed < 2; closed++) {
            char want[128];
            run_long(2000, rows[i].text, closed, &o);
            snprintf(want, sizeof want, "%s]E0[]%s%s%s", rows[i].tail, *rows[i].rest ? "T[" : "", rows[i].rest,
                     *rows[i].rest ? "]" : "");
            size_t n = strlen(want);
            cr_assert_gt(o.log.n, n);
            cr_expect_str_eq(o.log.s + o.log.n - n, want, "%s", rows[i].text);
            cr_expect_gt(o.log.args_events, 900); /* byte by byte: all behind the part that is held back */
            cr_expect_eq(o.repaired, i > 0 || !closed, "%s", rows[i].text);
            char *from = strstr(o.log.s, "A[") + 2, *to = strstr(from, "]E0");
            json_t *v = json_loadb(from, (size_t)(to - from), JSON_ALLOW_NUL, NULL);
            cr_expect(json_is_array(json_object_get(v, "a")), "%s", rows[i].text);
            json_decref(v);
        }
}

Test(output, arguments_are_json_whatever_the_value)
{
    static struct outcome o;
    for (int b = 1; b < 256; b++) {
        char text[512];
        snprintf(text, sizeof text, CALLS INVOKE("f") "<" D " parameter name=\"a\" string=\"%s\">x%cy",
                 b & 1 ? "true" : "false", b);
        run(&answer, text, 0, &o);
        char *from = strstr(o.log.s, "A[") + 2, *to = strstr(from, "]E0");
        json_t *v = json_loadb(from, (size_t)(to - from), 0, NULL);
        cr_assert_not_null(v, "byte %d: %s", b, o.log.s);
        json_decref(v);
    }
}

/* ---- what a function's schema decides ---- */

/* f takes a and n; g takes "input"; h says nothing; i takes anything. */
static json_t *declarations(void)
{
    json_t *j = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
                           "\"properties\":{\"a\":{\"type\":\"string\"},\"n\":{\"type\":[\"integer\",\"null\"]},"
                           "\"m\":{\"type\":\"object\"}}}}},"
                           "{\"type\":\"function\",\"function\":{\"name\":\"g\",\"parameters\":{\"type\":\"object\","
                           "\"properties\":{\"input\":{\"type\":\"object\"}}}}},"
                           "{\"type\":\"function\",\"function\":{\"name\":\"h\"}},"
                           "{\"type\":\"function\",\"function\":{\"name\":\"i\",\"parameters\":{\"type\":\"object\","
                           "\"properties\":{},\"additionalProperties\":{\"type\":\"object\"}}}}]",
                           0, NULL);
    cr_assert_not_null(j);
    return j;
}

#define CALL(name, arguments)                                                                                          \
    CALLS INVOKE(name)                                                                                                 \
    arguments END_INVOKE END_CALLS

Test(output, a_wrapper_that_the_schema_does_not_have_is_taken_off)
{
    const struct setup s = {.declared = declarations()};
    check(&s, CALL("f", RAW("arguments", "{\"a\": \"x\", \"n\": {\"k\": [1, {}]}}")),
          "C0[f]A[{\"a\": \"x\", \"n\": {\"k\": [1, {}]}}]E0[]", 1);
    check(&s, CALL("f", STR("input", "\n { \"a\" : 1 } \n")), "C0[f]A[{\"a\" : 1}]E0[]", 1);
    check(&s, CALL("f", RAW("arguments", "{}")), "C0[f]A[{}]E0[]", 1);
    check(&s, CALL("f", RAW("arguments", "{ } ")), "C0[f]A[{}]E0[]", 1);
    check(&s, CALL("f", RAW("arguments", "{}") RAW("n", "2")), "C0[f]A[{\"n\": 2}]E0[]", 1);
    check(&s, CALL("f", RAW("arguments", "{\"a\": \"}{\"}") RAW("n", "2") STR("a", "y")),
          "C0[f]A[{\"a\": \"}{\", \"n\": 2, \"a\": \"y\"}]E0[]", 1);
    check(&s, CALL("f", "{\"arguments\": { \"a\": {\"b\": 1} } }\n"), "C0[f]A[{ \"a\": {\"b\": 1} }]E0[]", 1);
    check(&s, CALLS INVOKE("f") RAW("arguments", "{\"a\": 1}"), "C0[f]A[{\"a\": 1}]E0[]", 1);
    json_decref(s.declared);
}

Test(output, a_wrapper_that_may_be_an_argument_stays)
{
    const struct setup s = {.declared = declarations()};
    check(&s, CALL("g", RAW("input", "{\"a\": 1}")), "C0[g]A[{\"input\": {\"a\": 1}}]E0[]", 0);
    check(&s, CALL("h", RAW("input", "{\"a\": 1}")), "C0[h]A[{\"input\": {\"a\": 1}}]E0[]", 0);
    check(&s, CALL("i", STR("input", "{\"a\": 1}")), "C0[i]A[{\"input\": \"{\\\"a\\\": 1}\"}]E0[]", 0);
    check(&s, CALL("unknown", RAW("arguments", "{}")), "C0[unknown]A[{\"arguments\": {}}]E0[]", 0);
    check(&s, CALL("f", RAW("n", "1") RAW("arguments", "{\"a\": 1}")),
          "C0[f]A[{\"n\": 1, \"arguments\": {\"a\": 1}}]E0[]", 0);
    check(&s, CALL("g", "{\"input\": {\"a\": 1}}"), "C0[g]A[{\"input\": {\"a\": 1}}]E0[]", 1);
    check(&s, CALL("f", "{\"arguments\": 7}"), "C0[f]A[{\"arguments\": 7}]E0[]", 1);
    json_decref(s.declared);
}

Test(output, a_wrapper_that_holds_no_object_stays)
{
    const struct setup s = {.declared = declarations()};
    check(&s, CALL("f", RAW("arguments", " [1]")), "C0[f]A[{\"arguments\":  [1]}]E0[]", 0);
    check(&s, CALL("f", STR("arguments", "caf\xc3\xa9 {")), "C0[f]A[{\"arguments\": \"caf\xc3\xa9 {\"}]E0[]", 0);
    check(&s, CALL("f", STR("arguments", "")), "C0[f]A[{\"arguments\": \"\"}]E0[]", 0);
    check(&s, CALL("f", STR("arguments", "{a: \xc3\xa9\n}")), "C0[f]A[{\"arguments\": \"{a: \xc3\xa9\\n}\"}]E0[]", 0);
    check(&s, CALL("f", RAW("arguments", "{\"a\": 1} x")), "C0[f]A[{\"arguments\": \"{\\\"a\\\": 1} x\"}]E0[]", 1);
    check(&s, CALLS INVOKE("f") "<" D " parameter name=\"input\" string=\"true\">{\"a\": [1",
          "C0[f]A[{\"input\": \"{\\\"a\\\": [1\"}]E0[]", 1);
    json_decref(s.declared);
}

/* Behind the part that is held back, a wrapper's members flow as they come; a broken one is closed where it broke. */
Test(output, long_wrappers_flow)
{
    const struct setup s = {.declared = declarations()};
    static const struct {
        const char *text, *tail;
        int repaired;
    } rows[] = {
        {"\"}</" D " parameter>\n" RAW("n", "1") END_INVOKE END_CALLS, "\", \"n\": 1}]E0[]", 1},
        {"\"} </" D " parameter>\n" END_INVOKE END_CALLS, "\"}]E0[]", 1},
        {"\", \"m\": {\"x\": [", "\", \"m\": {\"x\": []}}]E0[]", 1},
        {"\", \"n\": 1 2}</" D " parameter>\n" RAW("n", "3") END_INVOKE END_CALLS, "\", \"n\": 1 , \"n\": 3}]E0[]T[2}]",
         1},
        {"\"} tail</" D " parameter>\n" END_INVOKE END_CALLS, "\"}]E0[]T[tail]", 1},
    };
    static char text[8192];
    static struct outcome o;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t n = (size_t)snprintf(text, sizeof text, "%s",
                                    CALLS INVOKE("f") "<" D " parameter name=\"arguments\" string=\"true\">{\"a\": \"");
        memset(text + n, 'x', 2000);
        snprintf(text + n + 2000, sizeof text - n - 2000, "%s", rows[i].text);
        for (size_t cut = 0; cut <= strlen(text); cut += cut < n || cut > n + 1990 ? 1 : 97) {
            run(&s, text, cut, &o);
            size_t len = strlen(rows[i].tail);
            cr_assert(o.log.n > 2000 + len && !strncmp(o.log.s, "C0[f]A[{\"a\": \"xxx", 17), "%s", o.log.s);
            cr_assert_str_eq(o.log.s + o.log.n - len, rows[i].tail, "cut at %zu", cut);
            cr_assert_eq(o.repaired, rows[i].repaired);
            if (cut == 0)
                cr_assert_gt(o.log.args_events, 900);
        }
    }
    json_decref(s.declared);
}

Test(output, a_parameter_without_its_kind_takes_it_from_the_schema)
{
    const struct setup s = {.declared = declarations()};
#define BARE(key, value) "<" D " parameter name=\"" key "\">" value "</" D " parameter>\n"
    check(&s, CALL("f", BARE("n", "7") BARE("a", "7") BARE("m", "{\"x\": 1}") BARE("other", "7")),
          "C0[f]A[{\"n\": 7, \"a\": \"7\", \"m\": {\"x\": 1}, \"other\": \"7\"}]E0[]", 1);
    check(&s, CALL("f", BARE("n", "seven")), "C0[f]A[{\"n\": \"seven\"}]E0[]", 1);
    json_decref(s.declared);
}

Test(output, counts_reasoning)
{
    static struct log l;
    memset(&l, 0, sizeof l);
    l.kind = -1;
    struct gw_output_options opt = {.thinking = true, .tools = true, .on_event = on_event, .ctx = &l};
    struct gw_output *o = gw_output_new(&opt);
    cr_assert(gw_output_in_reasoning(o));
    gw_output_push(o, "a</think", 8);
    cr_assert(gw_output_in_reasoning(o));
    gw_output_push(o, ">", 1);
    cr_assert_not(gw_output_in_reasoning(o));
    gw_output_free(o);
}

/* ---- cut off by the length ---- */

Test(output, a_call_that_is_cut_off_stays_open)
{
    const struct setup s = {.cut = true};
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"Hi\n\n", "T[Hi\n\n]"},
        {"Hi\n\n<", "T[Hi]"},
        {"Hi\n\n<" D, "T[Hi]"},
        {"Hi\n\n<" D " ca", "T[Hi]"},
        {"Hi\n\n" CALLS, "T[Hi]"},
        {"Hi\n\n" CALLS "<", "T[Hi]"},
        {"Hi\n\n" CALLS "<" D " invoke name=\"f", "T[Hi]"},
        {CALLS INVOKE("f"), ""},
        {CALLS INVOKE("f") "<" D " parameter name=\"a\" string=\"tr", ""},
        {CALLS INVOKE("f") "<" D " parameter name=\"a\" string=\"true\">", "C0[f]A[{\"a\": \"]X0[]"},
        {CALLS INVOKE("f") "<" D " parameter name=\"a\" string=\"true\">x\"\ny\n", "C0[f]A[{\"a\": \"x\\\"\\ny]X0[]"},
        {CALLS INVOKE("f") "<" D " parameter name=\"a\" string=\"true\">x<", "C0[f]A[{\"a\": \"x]X0[]"},
        {CALLS INVOKE("f") "<" D " parameter name=\"a\" string=\"true\">x</" D " par", "C0[f]A[{\"a\": \"x]X0[]"},
        {CALLS INVOKE("f") "<" D " parameter name=\"a\" string=\"true\">x\xe2\x82", "C0[f]A[{\"a\": \"x]X0[]"},
        {CALLS INVOKE("f") STR("a", "x"), "C0[f]A[{\"a\": \"x\"]X0[]"},
        {CALLS INVOKE("f") STR("a", "x") "</" D " invoke", "C0[f]A[{\"a\": \"x\"]X0[]"},
        {CALLS INVOKE("f") STR("a", "x") END_INVOKE, "C0[f]A[{\"a\": \"x\"}]E0[]"},
        {CALLS INVOKE("f") END_INVOKE "<", "C0[f]A[{}]E0[]"},
        {CALLS INVOKE("f") END_INVOKE INVOKE("g"), "C0[f]A[{}]E0[]"},
        {CALLS INVOKE("f") "<" D " parameter name=\"a\" string=\"false\">[1, {", "C0[f]A[{\"a\": [1, {]X0[]"},
        {CALLS INVOKE("f") "<" D " parameter name=\"a\" string=\"false\">[1] no", "C0[f]A[{\"a\": \"[1] no]X0[]"},
        {CALLS INVOKE("f") "{\"a\": [1", "C0[f]A[{\"a\": [1]X0[]"},
        {CALLS INVOKE("f") "loose", "T[loose]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check(&s, rows[i].text, rows[i].want, 0);
}

/* What a cut text gives is the beginning of what the whole text gives, and a call is closed only where it was. */
static void check_beginnings(struct setup s, const char *text)
{
    static struct outcome whole, part;
    run(&s, text, 0, &whole);
    s.cut = true;
    for (size_t n = 0; n < strlen(text); n++) {
        char *begin = strndup(text, n);
        int open = 0;
        for (size_t cut = 0; cut <= n; cut += 7) {
            run(&s, begin, cut, &part);
            cr_assert_not(strstr(part.log.s, D), "%s of %s", part.log.s, begin);
            cr_assert_le(part.repaired, whole.repaired);
            char *at = part.log.s, *end = at + strlen(at);
            for (open = 0; (at = strpbrk(at, "CEX")) != NULL; at++)
                open += at[1] < '0' || at[1] > '9' || at[2] != '[' ? 0 : *at == 'C' ? 1 : -1;
            cr_assert_eq(open, 0, "%s", part.log.s);
            if (end - part.log.s > 4 && end[-4] == 'X')
                end -= 4;
            while (end > part.log.s && (end[-1] == ']' || strchr("\n< ", end[-1])))
                end--;
            cr_assert_eq(strncmp(part.log.s, whole.log.s, (size_t)(end - part.log.s)), 0, "%s of %s: not in %s",
                         part.log.s, begin, whole.log.s);
        }
        free(begin);
    }
}

Test(output, what_is_cut_off_is_a_beginning)
{
    json_error_t e;
    json_t *declared = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
                                  "\"properties\":{\"q\":{\"type\":\"string\"}}}}}]",
                                  0, &e);
    check_beginnings(thinking, "hm\n</think>\n\nSee it\n\n" CALLS INVOKE("f") STR("k", "\xc3\xa9 \"1\\\n<b>\n2\n")
                                   RAW("n", "[1, {\"a\": 2}]") END_INVOKE INVOKE("g") END_INVOKE END_CALLS);
    check_beginnings(answer, "x" INVOKE("f") "{\"a\": [1, \"b\"]}" END_INVOKE);
    check_beginnings((struct setup){.declared = declared},
                     CALLS INVOKE("f") RAW("arguments", "{ \"q\": \"v\", \"w\": [] }") END_INVOKE END_CALLS);
    check_beginnings((struct setup){.declared = declared},
                     CALLS INVOKE("f") STR("arguments", " {\"q\": \"v\"}") STR("x", "y") END_INVOKE END_CALLS);
    json_decref(declared);
}
