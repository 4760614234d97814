/* Replies: the exact frames of each protocol for one small answer with reasoning, text and a call. */
#include "actors/gateway/reply.h"
#include "tests/harness.h"

static const struct gw_usage prompt_usage = {10, 4, 0, 0}, usage = {10, 4, 6, 2};

static struct gw_request parse(enum gw_protocol protocol, const char *more)
{
    char body[512];
    struct gw_request r;
    struct gw_error e;
    static const char *const base[] = {
        [GW_CHAT] = "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]",
        [GW_COMPLETIONS] = "\"prompt\":\"Hi\"",
        [GW_RESPONSES] = "\"input\":\"hi\"",
        [GW_MESSAGES] = "\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]",
    };
    snprintf(body, sizeof body, "{%s%s}", base[protocol], more);
    bool ok = gw_request_parse(protocol, body, strlen(body), &r, &e);
    cr_assert(ok, "%s", e.message);
    return r;
}

static void send_event(struct gw_reply *r, enum gw_event_kind kind, const char *text, struct gw_bytes *out)
{
    struct gw_event ev = {kind, 0, text, strlen(text)};
    cr_assert_eq(gw_reply_event(r, &ev, out), 0);
}

enum { REASONING = 1, TEXT = 2, CALL = 4, CUT_CALL = 8, CUT_NAME = 16 };

/* The reply to a scripted output; the caller frees it. */
static char *reply(enum gw_protocol protocol, const char *more, int what, enum gw_finish f, const char *stop)
{
    struct gw_request q = parse(protocol, more);
    struct gw_bytes out = {0};
    struct gw_reply *r = gw_reply_new(&q, "1f", "tiny", 1700000000);
    cr_assert_not_null(r);
    cr_assert_eq(gw_reply_begin(r, &prompt_usage, &out), 0);
    if (!q.stream)
        cr_assert_eq(out.n, 0, "a whole reply has nothing to send yet");
    if (what & REASONING)
        send_event(r, GW_EV_REASONING, "hm", &out);
    if (what & TEXT) {
        send_event(r, GW_EV_TEXT, "a\"", &out);
        send_event(r, GW_EV_TEXT, "\xc3\xa9", &out);
    }
    if (what & CALL) {
        send_event(r, GW_EV_CALL_BEGIN, "f", &out);
        send_event(r, GW_EV_CALL_ARGS, "{\"x\": ", &out);
        send_event(r, GW_EV_CALL_ARGS, "1}", &out);
        send_event(r, GW_EV_CALL_END, "", &out);
    }
    if (what & (CUT_CALL | CUT_NAME))
        send_event(r, GW_EV_CALL_BEGIN, "g", &out);
    if (what & CUT_CALL)
        send_event(r, GW_EV_CALL_ARGS, "{\"y\": ", &out);
    if (what & (CUT_CALL | CUT_NAME))
        send_event(r, GW_EV_CALL_CUT, "", &out);
    cr_assert_eq(gw_reply_finish(r, f, stop, &usage, &out), 0);
    gw_reply_free(r);
    gw_request_free(&q);
    return out.p;
}

static void want(enum gw_protocol protocol, const char *more, int what, enum gw_finish f, const char *stop,
                 const char *text)
{
    char *got = reply(protocol, more, what, f, stop);
    cr_expect_str_eq(got, text);
    free(got);
}

#define CHUNK                                                                                                          \
    "data: "                                                                                                           \
    "{\"id\":\"chatcmpl-1f\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"tiny\","          \
    "\"choices\":["
#define DELTA(d) CHUNK "{\"index\":0,\"delta\":{" d "},\"logprobs\":null,\"finish_reason\":null}]"
#define USAGE                                                                                                          \
    "\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":6,\"total_tokens\":16,\"prompt_tokens_details\":{"          \
    "\"cached_tokens\":4},\"completion_tokens_details\":{\"reasoning_tokens\":2}}"

Test(reply, chat_stream)
{
    want(
        GW_CHAT, ",\"stream\":true", REASONING | TEXT | CALL, GW_FINISH_STOP, NULL,
        DELTA("\"role\":\"assistant\",\"content\":\"\"") "}\n\n" DELTA("\"reasoning_content\":\"hm\"") "}\n\n" DELTA("\"content\":\"a\\\"\"") "}\n\n" DELTA("\"content\":\"\xc3\xa9\"") "}\n\n" DELTA(
            "\"tool_calls\":[{\"index\":0,\"id\":\"call_1f_0\",\"type\":\"function\",\"function\":{\"name\":\"f\","
            "\"arguments\":\"\"}}]") "}\n\n" DELTA("\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{"
                                                   "\\\"x\\\": \"}}]") "}\n\n" DELTA("\"tool_calls\":[{\"index\":0,"
                                                                                     "\"function\":{\"arguments\":\"1}"
                                                                                     "\"}}]") "}\n\n" CHUNK
                                                                                              "{\"index\":0,\"delta\":{"
                                                                                              "},\"logprobs\":null,"
                                                                                              "\"finish_reason\":"
                                                                                              "\"tool_calls\"}]}\n\n"
                                                                                              "data: [DONE]\n\n");
}

Test(reply, chat_stream_with_usage)
{
    want(GW_CHAT, ",\"stream\":true,\"stream_options\":{\"include_usage\":true}", 0, GW_FINISH_LENGTH, NULL,
         DELTA("\"role\":\"assistant\",\"content\":\"\"") ",\"usage\":null}\n\n" CHUNK
                                                          "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_"
                                                          "reason\":\"length\"}],\"usage\":null}\n\n" CHUNK "]," USAGE
                                                          "}\n\n"
                                                          "data: [DONE]\n\n");
}

#define WHOLE                                                                                                          \
    "{\"id\":\"chatcmpl-1f\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"tiny\",\"choices\":["

Test(reply, chat_whole)
{
    want(GW_CHAT, "", TEXT, GW_FINISH_STOP_SEQUENCE, "x",
         WHOLE "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"a\\\"\xc3\xa9\",\"refusal\":null},"
               "\"logprobs\":null,\"finish_reason\":\"stop\"}]," USAGE "}");
    want(GW_CHAT, "", REASONING | CALL, GW_FINISH_TOOL_CALLS, NULL,
         WHOLE "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":null,\"refusal\":null,\"reasoning_"
               "content\":\"hm\","
               "\"tool_calls\":[{\"id\":\"call_1f_0\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
               "\"{\\\"x\\\": 1}\"}}]},"
               "\"logprobs\":null,\"finish_reason\":\"tool_calls\"}]," USAGE "}");
}

#define TEXT_CHUNK                                                                                                     \
    "{\"id\":\"cmpl-1f\",\"object\":\"text_completion\",\"created\":1700000000,\"model\":\"tiny\",\"choices\":["

Test(reply, completions)
{
    want(GW_COMPLETIONS, "", TEXT, GW_FINISH_LENGTH, NULL,
         TEXT_CHUNK "{\"index\":0,\"text\":\"a\\\"\xc3\xa9\",\"logprobs\":null,\"finish_reason\":\"length\"}]," USAGE
                    "}");
    want(GW_COMPLETIONS, ",\"stream\":true,\"echo\":true", TEXT, GW_FINISH_STOP, NULL,
         "data: " TEXT_CHUNK "{\"index\":0,\"text\":\"Hi\",\"logprobs\":null,\"finish_reason\":null}]}\n\n"
         "data: " TEXT_CHUNK "{\"index\":0,\"text\":\"a\\\"\",\"logprobs\":null,\"finish_reason\":null}]}\n\n"
         "data: " TEXT_CHUNK "{\"index\":0,\"text\":\"\xc3\xa9\",\"logprobs\":null,\"finish_reason\":null}]}\n\n"
         "data: " TEXT_CHUNK "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n"
         "data: [DONE]\n\n");
    want(GW_COMPLETIONS, ",\"echo\":true", 0, GW_FINISH_STOP, NULL,
         TEXT_CHUNK "{\"index\":0,\"text\":\"Hi\",\"logprobs\":null,\"finish_reason\":\"stop\"}]," USAGE "}");
}

#define MSG_HEAD "{\"id\":\"msg_1f\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"tiny\",\"content\":["
#define MSG_USAGE(n)                                                                                                   \
    "\"usage\":{\"input_tokens\":6,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":4,\"output_"          \
    "tokens\":" n "}"
#define BLOCK(i, type, field)                                                                                          \
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":" i ",\"delta\":{\"type\":\"" type  \
    "\"," field "}}\n\n"
#define BLOCK_STOP(i) "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":" i "}\n\n"

Test(reply, messages_stream)
{
    want(GW_MESSAGES, ",\"stream\":true", REASONING | TEXT | CALL, GW_FINISH_STOP, NULL,
         "event: message_start\ndata: {\"type\":\"message_start\",\"message\":" MSG_HEAD
         "],\"stop_reason\":null,\"stop_sequence\":null," MSG_USAGE(
             "0") "}}\n\n"
                  "event: content_block_start\ndata: "
                  "{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"thinking\","
                  "\"thinking\":\"\",\"signature\":\"\"}}\n\n" BLOCK("0", "thinking_delta", "\"thinking\":\"hm\"")
                      BLOCK("0", "signature_delta", "\"signature\":\"sig_1f\"") BLOCK_STOP(
                          "0") "event: content_block_start\ndata: "
                               "{\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"text\","
                               "\"text\":\"\"}}\n\n" BLOCK("1", "text_delta", "\"text\":\"a\\\"\"")
                                   BLOCK("1", "text_delta", "\"text\":\"\xc3\xa9\"") BLOCK_STOP(
                                       "1") "event: content_block_start\ndata: "
                                            "{\"type\":\"content_block_start\",\"index\":2,\"content_block\":{\"type\":"
                                            "\"tool_use\","
                                            "\"id\":\"toolu_1f_0\",\"name\":\"f\",\"input\":{}}}\n\n" BLOCK(
                                                "2", "input_json_delta", "\"partial_json\":\"{\\\"x\\\": \"")
                                                BLOCK("2", "input_json_delta", "\"partial_json\":\"1}\"") BLOCK_STOP(
                                                    "2") "event: message_delta\ndata: "
                                                         "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":"
                                                         "\"tool_use\",\"stop_sequence\":null}," MSG_USAGE(
                                                             "6") "}\n\n"
                                                                  "event: message_stop\ndata: "
                                                                  "{\"type\":\"message_stop\"}\n\n");
}

Test(reply, messages_whole)
{
    want(GW_MESSAGES, "", REASONING | TEXT | CALL, GW_FINISH_LENGTH, NULL,
         MSG_HEAD "{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"sig_1f\"},{\"type\":\"text\",\"text\":"
                  "\"a\\\"\xc3\xa9\"},"
                  "{\"type\":\"tool_use\",\"id\":\"toolu_1f_0\",\"name\":\"f\",\"input\":{\"x\": 1}}],"
                  "\"stop_reason\":\"max_tokens\",\"stop_sequence\":null," MSG_USAGE("6") "}");
    want(GW_MESSAGES, "", 0, GW_FINISH_STOP_SEQUENCE, "EN\"D",
         MSG_HEAD "],\"stop_reason\":\"stop_sequence\",\"stop_sequence\":\"EN\\\"D\"," MSG_USAGE("6") "}");
    want(GW_MESSAGES, "", 0, GW_FINISH_STOP, NULL,
         MSG_HEAD "],\"stop_reason\":\"end_turn\",\"stop_sequence\":null," MSG_USAGE("6") "}");
}

/* ---- Responses: the events are parsed, since each repeats much ---- */

struct frames {
    json_t *list;
};

static struct frames parse_frames(const char *text)
{
    struct frames f = {json_array()};
    while (*text) {
        char name[64];
        const char *end = strstr(text, "\n\n"), *data = strstr(text, "\ndata: ");
        cr_assert(end && data && data < end && strncmp(text, "event: ", 7) == 0, "%s", text);
        snprintf(name, sizeof name, "%.*s", (int)(data - text - 7), text + 7);
        json_t *v = json_loadb(data + 7, (size_t)(end - data - 7), 0, NULL);
        cr_assert_not_null(v, "%s", data);
        cr_assert_str_eq(json_string_value(json_object_get(v, "type")), name);
        cr_assert_eq((size_t)json_integer_value(json_object_get(v, "sequence_number")), json_array_size(f.list));
        json_array_append_new(f.list, v);
        text = end + 2;
    }
    return f;
}

Test(reply, responses_stream)
{
    static const char *const types[] = {
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    };
    enum { N = sizeof types / sizeof *types };
    char *text = reply(GW_RESPONSES, ",\"stream\":true", REASONING | TEXT | CALL, GW_FINISH_STOP, NULL);
    struct frames f = parse_frames(text);
    cr_assert_eq(json_array_size(f.list), N);
    for (size_t i = 0; i < N; i++)
        cr_expect_str_eq(json_string_value(json_object_get(json_array_get(f.list, i), "type")), types[i]);
    /* the items that were reported one by one are the output of the end */
    json_t *response = json_object_get(json_array_get(f.list, N - 1), "response");
    json_t *output = json_object_get(response, "output");
    static const int done[] = {7, 14, 19};
    cr_assert_eq(json_array_size(output), 3);
    for (size_t i = 0; i < 3; i++) {
        json_t *ev = json_array_get(f.list, (size_t)done[i]);
        cr_expect(json_equal(json_object_get(ev, "item"), json_array_get(output, i)));
        cr_expect_eq((size_t)json_integer_value(json_object_get(ev, "output_index")), i);
    }
    cr_expect_str_eq(json_string_value(json_object_get(response, "status")), "completed");
    json_decref(f.list);
    free(text);
}

#define RESP_TAIL                                                                                                      \
    ",\"usage\":{\"input_tokens\":10,\"input_tokens_details\":{\"cached_tokens\":4},\"output_tokens\":6,"              \
    "\"output_tokens_details\":{\"reasoning_tokens\":2},\"total_tokens\":16},\"instructions\":null,"                   \
    "\"max_output_tokens\":9,\"metadata\":{\"k\":\"v\"},\"parallel_tool_calls\":true,\"reasoning\":{\"effort\":null,"  \
    "\"summary\":null},\"temperature\":null,\"text\":{\"format\":{\"type\":\"text\"}},\"tool_choice\":\"auto\","       \
    "\"tools\":[],\"top_p\":null,\"user\":null,\"previous_response_id\":null,\"store\":false,\"top_logprobs\":0,"      \
    "\"truncation\":\"disabled\"}"

Test(reply, responses_whole)
{
    want(
        GW_RESPONSES, ",\"max_output_tokens\":9,\"metadata\":{\"k\":\"v\"}", REASONING | TEXT | CALL, GW_FINISH_STOP,
        NULL,
        "{\"id\":\"resp_1f\",\"object\":\"response\",\"created_at\":1700000000,\"background\":false,\"model\":\"tiny\","
        "\"status\":\"completed\",\"error\":null,\"incomplete_details\":null,\"output\":["
        "{\"id\":\"rs_1f_0\",\"status\":\"completed\",\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":"
        "\"reasoning_text\",\"text\":\"hm\"}]},"
        "{\"id\":\"msg_1f_1\",\"status\":\"completed\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[{"
        "\"type\":\"output_text\","
        "\"annotations\":[],\"logprobs\":[],\"text\":\"a\\\"\xc3\xa9\"}]},"
        "{\"id\":\"fc_1f_2\",\"status\":\"completed\",\"type\":\"function_call\",\"call_id\":\"call_1f_2\",\"name\":"
        "\"f\","
        "\"arguments\":\"{\\\"x\\\": 1}\"}]" RESP_TAIL);
    want(
        GW_RESPONSES, ",\"max_output_tokens\":9,\"metadata\":{\"k\":\"v\"}", TEXT, GW_FINISH_LENGTH, NULL,
        "{\"id\":\"resp_1f\",\"object\":\"response\",\"created_at\":1700000000,\"background\":false,\"model\":\"tiny\","
        "\"status\":\"incomplete\",\"error\":null,\"incomplete_details\":{\"reason\":\"max_output_tokens\"},\"output\":"
        "["
        "{\"id\":\"msg_1f_0\",\"status\":\"incomplete\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[{"
        "\"type\":\"output_text\","
        "\"annotations\":[],\"logprobs\":[],\"text\":\"a\\\"\xc3\xa9\"}]}]" RESP_TAIL);
}

/* ---- log-probabilities ---- */

static void add_logprob(struct gw_reply *r, const char *bytes, double logprob)
{
    struct gw_token_logprob lp = {.logprob = logprob, .bytes = bytes, .len = strlen(bytes), .n_top = 1};
    lp.top[0].logprob = -0.25;
    lp.top[0].bytes = "\xc3";
    lp.top[0].len = 1;
    cr_assert_eq(gw_reply_logprob(r, &lp), 0);
}

/* Two tokens whose text one event carries, and one that no event follows. */
static char *with_logprobs(enum gw_protocol protocol, const char *more)
{
    struct gw_request q = parse(protocol, more);
    struct gw_bytes out = {0};
    struct gw_reply *r = gw_reply_new(&q, "1f", "tiny", 1700000000);
    gw_reply_begin(r, &prompt_usage, &out);
    add_logprob(r, "\xc3", -0.5);
    add_logprob(r, "\xa9", -INFINITY);
    send_event(r, GW_EV_TEXT, "\xc3\xa9", &out);
    add_logprob(r, "z", -1);
    gw_reply_finish(r, GW_FINISH_STOP, NULL, &usage, &out);
    gw_reply_free(r);
    gw_request_free(&q);
    return out.p;
}

#define TOP ",\"top_logprobs\":[{\"token\":\"\xef\xbf\xbd\",\"logprob\":-0.25,\"bytes\":[195]}]}"
#define LP1 "{\"token\":\"\xef\xbf\xbd\",\"logprob\":-0.5,\"bytes\":[195]" TOP
#define LP2 "{\"token\":\"\xef\xbf\xbd\",\"logprob\":-9999,\"bytes\":[169]" TOP
#define LP3 "{\"token\":\"z\",\"logprob\":-1,\"bytes\":[122]" TOP

Test(reply, chat_logprobs_go_with_their_text)
{
    char *text = with_logprobs(GW_CHAT, ",\"logprobs\":true,\"top_logprobs\":1,\"stream\":true");
    cr_expect_str_eq(
        text,
        DELTA("\"role\":\"assistant\",\"content\":\"\"") "}\n\n" CHUNK "{\"index\":0,\"delta\":{\"content\":"
                                                         "\"\xc3\xa9\"},\"logprobs\":{\"content\":[" LP1 "," LP2
                                                         "],\"refusal\":null},\"finish_reason\":null}]}\n\n" CHUNK
                                                         "{\"index\":0,\"delta\":{},\"logprobs\":{\"content\":[" LP3
                                                         "],\"refusal\":null},\"finish_reason\":\"stop\"}]}\n\n"
                                                         "data: [DONE]\n\n");
    free(text);
    text = with_logprobs(GW_CHAT, ",\"logprobs\":true,\"top_logprobs\":1");
    cr_expect_not_null(strstr(text, "\"logprobs\":{\"content\":[" LP1 "," LP2 "," LP3 "],\"refusal\":null}"), "%s",
                       text);
    free(text);
    text = with_logprobs(GW_CHAT, "");
    cr_expect_not_null(strstr(text, "\"logprobs\":null"));
    free(text);
}

Test(reply, completions_logprobs)
{
    char *text = with_logprobs(GW_COMPLETIONS, ",\"logprobs\":1");
    cr_expect_not_null(
        strstr(text,
               "\"logprobs\":{\"tokens\":[\"bytes:\\\\xc3\",\"bytes:\\\\xa9\",\"z\"],"
               "\"token_logprobs\":[-0.5,-9999,-1],\"text_offset\":[0,1,1],"
               "\"top_logprobs\":[{\"bytes:\\\\xc3\":-0.25},{\"bytes:\\\\xc3\":-0.25},{\"bytes:\\\\xc3\":-0.25}]}"),
        "%s", text);
    free(text);
}

Test(reply, responses_logprobs)
{
    char *text = with_logprobs(GW_RESPONSES, ",\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":1");
    cr_expect_not_null(strstr(text, "\"annotations\":[],\"logprobs\":[" LP1 "," LP2 "," LP3 "]"), "%s", text);
    free(text);
}

Test(reply, logprobs_stay_with_their_item)
{
    struct gw_request q = parse(GW_RESPONSES, ",\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":1");
    struct gw_bytes out = {0};
    struct gw_reply *r = gw_reply_new(&q, "1f", "tiny", 1700000000);
    gw_reply_begin(r, &prompt_usage, &out);
    add_logprob(r, "z", -1);
    send_event(r, GW_EV_TEXT, "z", &out);
    add_logprob(r, "z", -1);
    send_event(r, GW_EV_CALL_BEGIN, "f", &out);
    send_event(r, GW_EV_CALL_END, "", &out);
    send_event(r, GW_EV_TEXT, "y", &out);
    gw_reply_finish(r, GW_FINISH_STOP, NULL, &usage, &out);
    cr_expect_not_null(strstr(out.p, "\"logprobs\":[" LP3 "],\"text\":\"z\""), "%s", out.p);
    cr_expect_not_null(strstr(out.p, "\"logprobs\":[],\"text\":\"y\""), "%s", out.p);
    gw_bytes_free(&out);
    gw_reply_free(r);
    gw_request_free(&q);
}

/* ---- keep-alive and failure ---- */

static char *failing(enum gw_protocol protocol)
{
    struct gw_request q = parse(protocol, ",\"stream\":true");
    struct gw_bytes out = {0};
    struct gw_error e;
    struct gw_reply *r = gw_reply_new(&q, "1f", "tiny", 1700000000);
    cr_assert_str_eq(gw_reply_type(r), "text/event-stream");
    cr_assert_eq(gw_reply_keepalive(r, &out), 0);
    cr_expect_str_eq(out.p, ": keep-alive\n\n");
    gw_reply_begin(r, &prompt_usage, &out);
    out.n = 0;
    cr_assert_eq(gw_reply_keepalive(r, &out), 0);
    gw_error_set(&e, protocol, 500, NULL, "broken");
    cr_assert_eq(gw_reply_fail(r, &e, &out), 0);
    gw_reply_free(r);
    gw_request_free(&q);
    return out.p;
}

Test(reply, failures_end_a_stream_in_its_own_way)
{
    char *text = failing(GW_CHAT);
    cr_expect_str_eq(text,
                     ": keep-alive\n\ndata: "
                     "{\"error\":{\"message\":\"broken\",\"type\":\"server_error\",\"param\":null,\"code\":null}}\n\n");
    free(text);
    text = failing(GW_MESSAGES);
    cr_expect_str_eq(
        text, "event: ping\ndata: {\"type\":\"ping\"}\n\n"
              "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"broken\"}}\n\n");
    free(text);
    text = failing(GW_RESPONSES);
    cr_expect_not_null(strstr(
        text, "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":2,\"response\":{"));
    cr_expect_not_null(
        strstr(text, "\"status\":\"failed\",\"error\":{\"code\":\"server_error\",\"message\":\"broken\"}"));
    free(text);
}

Test(reply, whole_replies_send_no_keepalive)
{
    struct gw_request q = parse(GW_CHAT, "");
    struct gw_bytes out = {0};
    struct gw_reply *r = gw_reply_new(&q, "1f", "tiny", 1700000000);
    cr_expect_str_eq(gw_reply_type(r), "application/json");
    gw_reply_keepalive(r, &out);
    cr_expect_eq(out.n, 0);
    gw_reply_free(r);
    gw_request_free(&q);
}

Test(reply, token_counts)
{
    struct gw_bytes out = {0};
    cr_assert_eq(gw_reply_count(42, &out), 0);
    cr_expect_str_eq(out.p, "{\"input_tokens\":42}");
    gw_bytes_free(&out);
}

Test(reply, json_text_is_escaped)
{
    struct gw_bytes b = {0};
    gw_bytes_json(&b, "a\"\\\n\r\t\x01\x7f\xff\xc3\xa9", 11);
    cr_expect_str_eq(b.p, "\"a\\\"\\\\\\n\\r\\t\\u0001\x7f\xef\xbf\xbd\xc3\xa9\"");
    gw_bytes_free(&b);
}

/* A call that the length cut off is not given as a whole one. */
Test(reply, a_call_that_is_cut_off)
{
    static const struct {
        enum gw_protocol protocol;
        const char *more;
        int what;
        const char *has, *has_not;
    } rows[] = {
        {GW_CHAT, "", CUT_CALL, "\"name\":\"g\",\"arguments\":\"{\\\"y\\\": \"}}]", "stop"},
        {GW_CHAT, "", CUT_NAME, "\"name\":\"g\",\"arguments\":\"\"}}]", "{}"},
        {GW_CHAT, ",\"stream\":true", CUT_CALL, "\"arguments\":\"{\\\"y\\\": \"}}]", "}\""},
        {GW_MESSAGES, "", CALL | CUT_CALL, "\"content\":[{\"type\":\"tool_use\",\"id\":\"toolu_1f_0\"", "\"g\""},
        {GW_MESSAGES, "", CUT_NAME, "\"content\":[],\"stop_reason\":\"max_tokens\"", "tool"},
        {GW_MESSAGES, ",\"stream\":true", CUT_CALL, "\"partial_json\":\"{\\\"y\\\": \"}}", "\"tool_use\"}"},
        {GW_RESPONSES, "", CUT_CALL, "\"status\":\"incomplete\",\"type\":\"function_call\"", "y\\\": }"},
        {GW_RESPONSES, ",\"stream\":true", CUT_CALL, "\"arguments\":\"{\\\"y\\\": \"}}\n\nevent: response.incomplete",
         "arguments.done"},
        {GW_RESPONSES, ",\"stream\":true", CUT_NAME,
         "\"name\":\"g\",\"arguments\":\"\"}}\n\nevent: response.incomplete", "arguments.done"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *got = reply(rows[i].protocol, rows[i].more, rows[i].what, GW_FINISH_LENGTH, NULL);
        cr_expect(strstr(got, rows[i].has), "%zu: %s", i, got);
        cr_expect_not(strstr(got, rows[i].has_not), "%zu: %s", i, got);
        free(got);
    }
}
