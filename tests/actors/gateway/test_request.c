/* Requests of four protocols: what they become, and what is refused by name. */
#include <limits.h>

#include "actors/gateway/bytes.h"
#include "actors/gateway/request.h"
#include "model/chat.h"
#include "tests/harness.h"

#define MSG "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define TOOL "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"
#define ATOOL "\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\"}}]"
#define CALLED                                                                                                         \
    "{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c1\",\"type\":"          \
    "\"function\","                                                                                                    \
    "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}"

struct row {
    enum gw_protocol protocol;
    const char *body, *param;
};

static const struct row hostile[] = {
    /* JSON itself */
    {GW_CHAT, "", ""},
    {GW_CHAT, "null", ""},
    {GW_CHAT, "[]", ""},
    {GW_CHAT, "\"x\"", ""},
    {GW_CHAT, "{", ""},
    {GW_CHAT, "{" MSG ",}", ""},
    {GW_CHAT, "{" MSG "} x", ""},
    {GW_CHAT, "{" MSG ",\"temperature\":NaN}", "temperature"},
    {GW_CHAT, "{" MSG ",\"temperature\":Infinity}", "temperature"},
    {GW_CHAT, "{" MSG ",\"temperature\":1e999}", "temperature"},
    {GW_CHAT, "{" MSG ",\"top_p\":.5}", "top_p"},
    {GW_CHAT, "{" MSG ",\"user\":\"\\ud800\"}", "user"},
    {GW_CHAT, "{" MSG ",\"user\":\"\\u0000\"}", "user"},
    {GW_CHAT, "{" MSG ",\"user\":\"\xff\"}", "user"},
    {GW_CHAT, "{" MSG ",\"n\":1,\"n\":1}", "n"},
    /* messages */
    {GW_CHAT, "{}", "messages"},
    {GW_CHAT, "{\"messages\":null}", "messages"},
    {GW_CHAT, "{\"messages\":{}}", "messages"},
    {GW_CHAT, "{\"messages\":[]}", "messages"},
    {GW_CHAT, "{\"messages\":[1]}", "messages[0]"},
    {GW_CHAT, "{\"messages\":[{}]}", "messages[0].role"},
    {GW_CHAT, "{\"messages\":[{\"role\":\"king\",\"content\":\"x\"}]}", "messages[0].role"},
    {GW_CHAT, "{\"messages\":[{\"role\":5,\"content\":\"x\"}]}", "messages[0].role"},
    {GW_CHAT, "{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content"},
    {GW_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":7}]}", "messages[0].content"},
    {GW_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[7]}]}", "messages[0].content[0]"},
    {GW_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}", "messages[0].content[0].text"},
    {GW_CHAT,
     "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]}",
     "messages[0].content[0].type"},
    {GW_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}]}",
     "messages[0].content[0].type"},
    {GW_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"wig\":1}]}", "messages[0].wig"},
    {GW_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"y\"}]}",
     "messages"},
    {GW_CHAT, "{\"messages\":[{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":\"c1\"}]}",
     "messages[0].tool_call_id"},
    {GW_CHAT, "{\"messages\":[" CALLED ",{\"role\":\"tool\",\"content\":\"x\"}]}", "messages[2].tool_call_id"},
    {GW_CHAT, "{\"messages\":[" CALLED ",{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":\"c2\"}]}",
     "messages[2].tool_call_id"},
    {GW_CHAT,
     "{\"messages\":[" CALLED ",{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":\"c1\"},"
     "{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":\"c1\"}]}",
     "messages[3].tool_call_id"},
    {GW_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":{}}]}", "messages[0].tool_calls"},
    {GW_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\"}]}]}",
     "messages[0].tool_calls[0].function"},
    {GW_CHAT,
     "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":"
     "\"{\"}}]}]}",
     "messages[0].tool_calls[0].function.arguments"},
    {GW_CHAT,
     "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":"
     "\"[]\"}}]}]}",
     "messages[0].tool_calls[0].function.arguments"},
    {GW_CHAT,
     "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":"
     "\"{\\\"<\\\":1}\"}}]}]}",
     "messages[0].tool_calls[0].function.arguments"},
    {GW_CHAT,
     "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f>\"}}]}]}",
     "messages[0].tool_calls[0].function.name"},
    {GW_CHAT,
     "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"prefix\":true},"
     "{\"role\":\"user\",\"content\":\"x\"}]}",
     "messages[0].prefix"},
    {GW_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":1}]}",
     "messages[0].reasoning_content"},
    /* scalars */
    {GW_CHAT, "{" MSG ",\"model\":7}", "model"},
    {GW_CHAT, "{" MSG ",\"max_tokens\":0}", "max_tokens"},
    {GW_CHAT, "{" MSG ",\"max_tokens\":-1}", "max_tokens"},
    {GW_CHAT, "{" MSG ",\"max_tokens\":1.5}", "max_tokens"},
    {GW_CHAT, "{" MSG ",\"max_tokens\":\"5\"}", "max_tokens"},
    {GW_CHAT, "{" MSG ",\"max_tokens\":-99999999999999999999999}", "max_tokens"},
    {GW_CHAT, "{" MSG ",\"max_completion_tokens\":[]}", "max_completion_tokens"},
    {GW_CHAT, "{" MSG ",\"temperature\":-0.1}", "temperature"},
    {GW_CHAT, "{" MSG ",\"temperature\":2.1}", "temperature"},
    {GW_CHAT, "{" MSG ",\"temperature\":\"hot\"}", "temperature"},
    {GW_CHAT, "{" MSG ",\"top_p\":0}", "top_p"},
    {GW_CHAT, "{" MSG ",\"top_p\":1.01}", "top_p"},
    {GW_CHAT, "{" MSG ",\"top_k\":-2}", "top_k"},
    {GW_CHAT, "{" MSG ",\"top_k\":1e20}", "top_k"},
    {GW_CHAT, "{" MSG ",\"min_p\":2}", "min_p"},
    {GW_CHAT, "{" MSG ",\"presence_penalty\":3}", "presence_penalty"},
    {GW_CHAT, "{" MSG ",\"frequency_penalty\":-3}", "frequency_penalty"},
    {GW_CHAT, "{" MSG ",\"repetition_penalty\":0}", "repetition_penalty"},
    {GW_CHAT, "{" MSG ",\"repetition_penalty\":1e-38}", "repetition_penalty"},
    {GW_CHAT, "{" MSG ",\"seed\":1.5}", "seed"},
    {GW_CHAT, "{" MSG ",\"seed\":99999999999999999999}", "seed"},
    {GW_CHAT, "{" MSG ",\"stream\":1}", "stream"},
    {GW_CHAT, "{" MSG ",\"stream_options\":{\"include_usage\":true}}", "stream_options"},
    {GW_CHAT, "{" MSG ",\"stream\":true,\"stream_options\":{\"include_usage\":1}}", "stream_options.include_usage"},
    {GW_CHAT, "{" MSG ",\"stream\":true,\"stream_options\":{\"x\":1}}", "stream_options.x"},
    {GW_CHAT, "{" MSG ",\"stop\":\"\"}", "stop"},
    {GW_CHAT, "{" MSG ",\"stop\":5}", "stop"},
    {GW_CHAT, "{" MSG ",\"stop\":[\"a\",null]}", "stop[1]"},
    {GW_CHAT, "{" MSG ",\"stop\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", "stop"},
    {GW_CHAT, "{" MSG ",\"logit_bias\":[]}", "logit_bias"},
    {GW_CHAT, "{" MSG ",\"logit_bias\":{\"x\":1}}", "logit_bias"},
    {GW_CHAT, "{" MSG ",\"logit_bias\":{\"-1\":1}}", "logit_bias"},
    {GW_CHAT, "{" MSG ",\"logit_bias\":{\"01\":1}}", "logit_bias"},
    {GW_CHAT, "{" MSG ",\"logit_bias\":{\"99999999999\":1}}", "logit_bias"},
    {GW_CHAT, "{" MSG ",\"logit_bias\":{\"2147483648\":1}}", "logit_bias"},
    {GW_CHAT, "{" MSG ",\"logit_bias\":{\"5\":101}}", "logit_bias.5"},
    {GW_CHAT, "{" MSG ",\"logit_bias\":{\"5\":1e999}}", "logit_bias.5"},
    {GW_CHAT, "{" MSG ",\"logprobs\":1}", "logprobs"},
    {GW_CHAT, "{" MSG ",\"top_logprobs\":2}", "top_logprobs"},
    {GW_CHAT, "{" MSG ",\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs"},
    {GW_CHAT, "{" MSG ",\"n\":2}", "n"},
    {GW_CHAT, "{" MSG ",\"n\":0}", "n"},
    {GW_CHAT, "{" MSG ",\"best_of\":3}", "best_of"},
    {GW_CHAT, "{" MSG ",\"cache_salt\":\"\"}", "cache_salt"},
    {GW_CHAT, "{" MSG ",\"thinking\":\"yes\"}", "thinking"},
    {GW_CHAT, "{" MSG ",\"thinking\":{\"type\":\"maybe\"}}", "thinking.type"},
    {GW_CHAT, "{" MSG ",\"reasoning_effort\":\"huge\"}", "reasoning_effort"},
    {GW_CHAT, "{" MSG ",\"reasoning_effort\":101}", "reasoning_effort"},
    {GW_CHAT, "{" MSG ",\"chat_template_kwargs\":{\"x\":true}}", "chat_template_kwargs.x"},
    {GW_CHAT, "{" MSG ",\"response_format\":{\"type\":\"json_object\"}}", "response_format"},
    {GW_CHAT, "{" MSG ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}}", "response_format"},
    {GW_CHAT, "{" MSG ",\"response_format\":{}}", "response_format.type"},
    {GW_CHAT, "{" MSG ",\"modalities\":[\"text\",\"audio\"]}", "modalities"},
    {GW_CHAT, "{" MSG ",\"audio\":{}}", "audio"},
    {GW_CHAT, "{" MSG ",\"functions\":[]}", "functions"},
    {GW_CHAT, "{" MSG ",\"guided_json\":{}}", "guided_json"},
    {GW_CHAT, "{" MSG ",\"frobnicate\":1}", "frobnicate"},
    /* tools */
    {GW_CHAT, "{" MSG ",\"tools\":{}}", "tools"},
    {GW_CHAT, "{" MSG ",\"tools\":[3]}", "tools[0]"},
    {GW_CHAT, "{" MSG ",\"tools\":[{\"type\":\"custom\"}]}", "tools[0].type"},
    {GW_CHAT, "{" MSG ",\"tools\":[{\"type\":\"function\"}]}", "tools[0].function"},
    {GW_CHAT, "{" MSG ",\"tools\":[{\"type\":\"function\",\"function\":{}}]}", "tools[0].function.name"},
    {GW_CHAT, "{" MSG ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]}",
     "tools[0].function.name"},
    {GW_CHAT, "{" MSG ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":\"x\"}}]}",
     "tools[0].function.parameters"},
    {GW_CHAT, "{" MSG ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true}}]}",
     "tools[0].function.strict"},
    {GW_CHAT,
     "{" MSG ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\"}}]}",
     "tools[1].function.name"},
    {GW_CHAT, "{" MSG "," TOOL ",\"tool_choice\":\"maybe\"}", "tool_choice"},
    {GW_CHAT, "{" MSG "," TOOL ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}}",
     "tool_choice.function.name"},
    {GW_CHAT, "{" MSG ",\"tool_choice\":\"required\"}", "tool_choice"},
    {GW_CHAT, "{" MSG "," TOOL ",\"tool_choice\":{\"type\":\"allowed_tools\"}}", "tool_choice.type"},
    /* completions */
    {GW_COMPLETIONS, "{}", "prompt"},
    {GW_COMPLETIONS, "{\"prompt\":5}", "prompt"},
    {GW_COMPLETIONS, "{\"prompt\":[]}", "prompt"},
    {GW_COMPLETIONS, "{\"prompt\":[[]]}", "prompt"},
    {GW_COMPLETIONS, "{\"prompt\":[\"a\",\"b\"]}", "prompt"},
    {GW_COMPLETIONS, "{\"prompt\":[[1],[2]]}", "prompt"},
    {GW_COMPLETIONS, "{\"prompt\":[1,-2]}", "prompt[1]"},
    {GW_COMPLETIONS, "{\"prompt\":[1,2.5]}", "prompt[1]"},
    {GW_COMPLETIONS, "{\"prompt\":[4294967296]}", "prompt[0]"},
    {GW_COMPLETIONS, "{\"prompt\":[1,\"a\"]}", "prompt[1]"},
    {GW_COMPLETIONS, "{\"prompt\":\"a\",\"suffix\":\"b\"}", "suffix"},
    {GW_COMPLETIONS, "{\"prompt\":\"a\",\"best_of\":2}", "best_of"},
    {GW_COMPLETIONS, "{\"prompt\":\"a\",\"logprobs\":21}", "logprobs"},
    {GW_COMPLETIONS, "{\"prompt\":\"a\",\"logprobs\":true}", "logprobs"},
    {GW_COMPLETIONS, "{\"prompt\":\"a\",\"logprobs\":1,\"echo\":true}", "logprobs"},
    {GW_COMPLETIONS, "{\"prompt\":\"a\",\"echo\":\"yes\"}", "echo"},
    {GW_COMPLETIONS, "{\"prompt\":\"a\",\"messages\":[]}", "messages"},
    /* responses */
    {GW_RESPONSES, "{}", "input"},
    {GW_RESPONSES, "{\"input\":4}", "input"},
    {GW_RESPONSES, "{\"input\":[]}", "input"},
    {GW_RESPONSES, "{\"input\":[4]}", "input[0]"},
    {GW_RESPONSES, "{\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]}", "input[0].type"},
    {GW_RESPONSES, "{\"input\":[{\"role\":\"user\"}]}", "input[0].content"},
    {GW_RESPONSES, "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}",
     "input[0].content[0].type"},
    {GW_RESPONSES, "{\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"x\",\"output\":\"\"}]}",
     "input[0].call_id"},
    {GW_RESPONSES, "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"x\",\"name\":\"f\",\"arguments\":\"7\"}]}",
     "input[0].arguments"},
    {GW_RESPONSES,
     "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"x\",\"name\":\"f\",\"arguments\":\"{}\"},"
     "{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\"},"
     "{\"type\":\"function_call_output\",\"call_id\":\"x\",\"output\":\"1\"}]}",
     "input[3].call_id"},
    {GW_RESPONSES, "{\"input\":\"a\",\"instructions\":[]}", "instructions"},
    {GW_RESPONSES, "{\"input\":\"a\",\"previous_response_id\":\"resp_1\"}", "previous_response_id"},
    {GW_RESPONSES, "{\"input\":\"a\",\"store\":true}", "store"},
    {GW_RESPONSES, "{\"input\":\"a\",\"background\":true}", "background"},
    {GW_RESPONSES, "{\"input\":\"a\",\"conversation\":\"c\"}", "conversation"},
    {GW_RESPONSES, "{\"input\":\"a\",\"truncation\":\"auto\"}", "truncation"},
    {GW_RESPONSES, "{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_schema\"}}}", "text.format"},
    {GW_RESPONSES, "{\"input\":\"a\",\"reasoning\":{\"effort\":\"wild\"}}", "reasoning.effort"},
    {GW_RESPONSES, "{\"input\":\"a\",\"include\":[\"file_search_call.results\"]}", "include[0]"},
    {GW_RESPONSES, "{\"input\":\"a\",\"tools\":[{\"type\":\"web_search\"}]}", "tools[0].type"},
    {GW_RESPONSES, "{\"input\":\"a\",\"max_output_tokens\":0}", "max_output_tokens"},
    /* messages */
    {GW_MESSAGES, "{" MSG "}", "max_tokens"},
    {GW_MESSAGES, "{\"max_tokens\":5}", "messages"},
    {GW_MESSAGES, "{\"max_tokens\":5,\"messages\":[]}", "messages"},
    {GW_MESSAGES, "{\"max_tokens\":5,\"messages\":[{\"role\":\"system\",\"content\":\"x\"}]}", "messages[0].role"},
    {GW_MESSAGES, "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\"}]}", "messages[0].content"},
    {GW_MESSAGES, "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}",
     "messages[0].content[0].type"},
    {GW_MESSAGES,
     "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"a\"}]"
     "}]}",
     "messages[0].content[0].tool_use_id"},
    {GW_MESSAGES,
     "{\"max_tokens\":5,\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\","
     "\"name\":\"f\",\"input\":\"x\"}]}]}",
     "messages[0].content[0].input"},
    {GW_MESSAGES,
     "{\"max_tokens\":5,\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\","
     "\"name\":\"f\",\"input\":{}}]}]}",
     "messages[0]"},
    {GW_MESSAGES,
     "{\"max_tokens\":5,\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"redacted_thinking\"}]}]}",
     "messages[0].content[0].type"},
    {GW_MESSAGES, "{\"max_tokens\":5," MSG ",\"system\":7}", "system"},
    {GW_MESSAGES, "{\"max_tokens\":5," MSG ",\"temperature\":1.5}", "temperature"},
    {GW_MESSAGES, "{\"max_tokens\":5," MSG ",\"stop_sequences\":\"x\"}", "stop_sequences"},
    {GW_MESSAGES, "{\"max_tokens\":5," MSG ",\"thinking\":{\"type\":\"enabled\"}}", "thinking.budget_tokens"},
    {GW_MESSAGES, "{\"max_tokens\":5," MSG ",\"thinking\":true}", "thinking"},
    {GW_MESSAGES, "{\"max_tokens\":5," MSG ",\"tool_choice\":\"auto\"}", "tool_choice"},
    {GW_MESSAGES, "{\"max_tokens\":5," MSG "," ATOOL ",\"tool_choice\":{\"type\":\"tool\",\"name\":\"g\"}}",
     "tool_choice.name"},
    {GW_MESSAGES, "{\"max_tokens\":5," MSG ",\"tools\":[{\"type\":\"bash_20250124\",\"name\":\"bash\"}]}",
     "tools[0].type"},
    {GW_MESSAGES, "{\"max_tokens\":5," MSG ",\"tools\":[{\"name\":\"f\"}]}", "tools[0].input_schema"},
    {GW_MESSAGES, "{\"max_tokens\":5," MSG ",\"container\":\"x\"}", "container"},
    {GW_MESSAGES, "{\"max_tokens\":5," MSG ",\"metadata\":{\"user_id\":5}}", "metadata.user_id"},
    {GW_MESSAGES, "{\"max_tokens\":5," MSG ",\"stop\":[\"x\"]}", "stop"},
};

static bool parse(enum gw_protocol protocol, const char *body, size_t len, struct gw_request *r, struct gw_error *e)
{
    char *copy = malloc(len ? len : 1); /* a read past the end shows */
    memcpy(copy, body, len);
    bool ok = gw_request_parse(protocol, copy, len, r, e);
    free(copy);
    return ok;
}

Test(request, hostile_bodies_are_refused_by_name)
{
    static const struct gw_request empty;
    size_t n = sizeof hostile / sizeof *hostile;
    cr_assert_ge(n, 80);
    for (size_t i = 0; i < n; i++) {
        struct gw_request r;
        struct gw_error e;
        bool ok = parse(hostile[i].protocol, hostile[i].body, strlen(hostile[i].body), &r, &e);
        cr_expect_not(ok, "taken: %s", hostile[i].body);
        if (ok) {
            gw_request_free(&r);
            continue;
        }
        cr_expect_eq(e.status, 400, "%s", hostile[i].body);
        cr_expect_str_eq(e.param, hostile[i].param, "%s: %s", hostile[i].body, e.message);
        cr_expect_str_eq(e.type, "invalid_request_error");
        cr_expect_gt(strlen(e.message), strlen(e.param));
        cr_expect(strncmp(e.message, e.param, strlen(e.param)) == 0, "%s", e.message);
        cr_expect_arr_eq(&r, &empty, sizeof r, "not empty: %s", hostile[i].body);
    }
}

Test(request, every_cut_of_a_body_is_refused_or_taken_whole)
{
    static const char body[] = "{" MSG ",\"stop\":[\"a\"],\"logit_bias\":{\"5\":1}," TOOL ",\"max_tokens\":5}";
    for (size_t len = 0; len < sizeof body; len++) {
        struct gw_request r;
        struct gw_error e;
        bool ok = parse(GW_CHAT, body, len, &r, &e);
        cr_assert_eq(ok, len == sizeof body - 1, "cut at %zu", len);
        if (ok)
            gw_request_free(&r);
    }
}

Test(request, deep_nesting_is_refused)
{
    enum { DEPTH = 100000 };
    char *body = malloc(3 * DEPTH), *p = body;
    p += sprintf(p, "{\"messages\":");
    memset(p, '[', DEPTH);
    struct gw_request r;
    struct gw_error e;
    cr_assert_not(parse(GW_CHAT, body, (size_t)(p - body) + DEPTH, &r, &e));
    cr_assert_eq(e.status, 400);
    cr_assert_str_eq(e.param, "messages");
    free(body);
    /* in the text of arguments, too */
    char deep[2048] = "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":"
                      "\"f\",\"arguments\":\"";
    for (int i = 0; i < 200; i++)
        strcat(deep, "[");
    strcat(deep, "\"}}]}]}");
    cr_assert_not(parse(GW_CHAT, deep, strlen(deep), &r, &e));
    cr_assert_str_eq(e.param, "messages[0].tool_calls[0].function.arguments");
    /* brackets in strings are none */
    char flat[512] = "{\"messages\":[{\"role\":\"user\",\"content\":\"";
    for (int i = 0; i < 200; i++)
        strcat(flat, i % 2 ? "[" : "{");
    strcat(flat, "\"}]}");
    cr_assert(parse(GW_CHAT, flat, strlen(flat), &r, &e), "%s", e.message);
    gw_request_free(&r);
}

Test(request, calls_of_one_message_are_limited)
{
    for (int n = 512; n <= 513; n++) {
        struct gw_bytes b = {0};
        struct gw_request r;
        struct gw_error e;
        gw_bytes_puts(&b, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[");
        for (int i = 0; i < n; i++)
            gw_bytes_printf(&b, "%s{\"id\":\"%d\",\"function\":{\"name\":\"f\"}}", i ? "," : "", i);
        gw_bytes_puts(&b, "]},{\"role\":\"user\",\"content\":\"x\"}]}");
        bool ok = parse(GW_CHAT, b.p, b.n, &r, &e);
        cr_expect_eq(ok, n == 512, "%s", e.message);
        if (ok)
            gw_request_free(&r);
        else
            cr_expect_str_eq(e.param, "messages[0].tool_calls[512].id");
        gw_bytes_free(&b);
    }
}

Test(request, sixty_four_levels_are_the_limit)
{
    for (int levels = 60; levels <= 61; levels++) { /* the schema stands in the fourth */
        char body[1024] = "{" MSG ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":";
        for (int i = 0; i < levels; i++)
            strcat(body, "{\"a\":");
        strcat(body, "1");
        for (int i = 0; i < levels; i++)
            strcat(body, "}");
        strcat(body, "}}]}");
        struct gw_request r;
        struct gw_error e;
        bool ok = parse(GW_CHAT, body, strlen(body), &r, &e);
        cr_expect_eq(ok, levels == 60, "%d", levels);
        if (ok)
            gw_request_free(&r);
        else
            cr_expect_str_eq(e.param, "tools");
    }
}

static void take(enum gw_protocol protocol, const char *body, struct gw_request *r)
{
    struct gw_error e;
    bool ok = parse(protocol, body, strlen(body), r, &e);
    cr_assert(ok, "%s: %s", body, e.message);
}

/* The conversation as JSON text; it must also be one that the chat form takes. */
static void want_conversation(enum gw_protocol protocol, const char *body, const char *want)
{
    struct gw_request r;
    take(protocol, body, &r);
    char *text = json_dumps(r.conversation, JSON_COMPACT);
    cr_expect_str_eq(text, want, "%s", body);
    free(text);
    struct mdl_chat_prompt prompt = {0};
    struct cfg_error err = {{0}};
    cr_expect_eq(mdl_chat_render(r.conversation, NULL, &prompt, &err), 0, "%s: %s", body, err.msg);
    mdl_chat_prompt_free(&prompt);
    gw_request_free(&r);
}

Test(request, chat_conversations)
{
    want_conversation(GW_CHAT, "{" MSG "}", "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    want_conversation(
        GW_CHAT,
        "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"be\"}]}," CALLED
        ",{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"42\"}]," TOOL
        ",\"thinking\":{\"type\":\"disabled\"},\"reasoning_effort\":\"low\"}",
        "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"be\"}]},"
        "{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c1\","
        "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
        "{\"role\":\"tool\",\"content\":\"42\",\"tool_call_id\":\"c1\"}],"
        "\"thinking\":{\"type\":\"disabled\"},\"reasoning_effort\":\"low\","
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}");
    want_conversation(GW_CHAT,
                      "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":null,"
                      "\"reasoning_content\":\"hm\",\"refusal\":null,\"annotations\":[],\"audio\":null,"
                      "\"function_call\":null},{\"role\":\"user\",\"content\":\"b\",\"name\":\"Bo\"},"
                      "{\"role\":\"assistant\",\"content\":\"So\",\"prefix\":true}]}",
                      "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
                      "\"reasoning_content\":\"hm\"},{\"role\":\"user\",\"content\":\"b\"},"
                      "{\"role\":\"assistant\",\"content\":\"So\",\"prefix\":true}]}");
    want_conversation(GW_CHAT, "{" MSG ",\"chat_template_kwargs\":{\"enable_thinking\":false}}",
                      "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"thinking\":false}");
}

Test(request, responses_conversations)
{
    want_conversation(
        GW_RESPONSES,
        "{\"input\":\"hi\",\"instructions\":\"be\",\"reasoning\":{\"effort\":\"high\",\"summary\":\"auto\"}}",
        "{\"messages\":[{\"role\":\"system\",\"content\":\"be\"},{\"role\":\"user\",\"content\":\"hi\"}],"
        "\"reasoning_effort\":\"high\"}");
    want_conversation(
        GW_RESPONSES,
        "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"q\"}]},"
        "{\"type\":\"reasoning\",\"id\":\"rs\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":"
        "\"hm\"}]},"
        "{\"type\":\"message\",\"role\":\"assistant\",\"status\":\"completed\",\"id\":\"m\",\"content\":[{\"type\":"
        "\"output_text\",\"text\":\"ok\",\"annotations\":[],\"logprobs\":[]}]},"
        "{\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"},"
        "{\"type\":\"function_call\",\"call_id\":\"b\",\"name\":\"f\",\"arguments\":\"\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"b\",\"output\":\"2\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"a\",\"output\":[{\"type\":\"input_text\",\"text\":\"1\"}]}],"
        "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\"},"
        "\"strict\":false}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"q\"}]},"
        "{\"role\":\"assistant\",\"reasoning_content\":\"hm\",\"content\":[{\"type\":\"text\",\"text\":\"ok\"}],"
        "\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1}}},"
        "{\"id\":\"b\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"2\"},"
        "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":[{\"type\":\"text\",\"text\":\"1\"}]}],"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":"
        "\"object\"}}}]}");
}

Test(request, messages_conversations)
{
    want_conversation(GW_MESSAGES, "{\"max_tokens\":9," MSG ",\"system\":\"be\"}",
                      "{\"messages\":[{\"role\":\"system\",\"content\":\"be\"},{\"role\":\"user\",\"content\":["
                      "{\"type\":\"text\",\"text\":\"hi\"}]}],\"thinking\":false}");
    want_conversation(
        GW_MESSAGES,
        "{\"max_tokens\":9,\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":2000},\"system\":[{\"type\":\"text\","
        "\"text\":\"s\","
        "\"cache_control\":{\"type\":\"ephemeral\"}}],\"messages\":[{\"role\":\"user\",\"content\":\"q\"},"
        "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"x\"},"
        "{\"type\":\"text\",\"text\":\"ok\"},{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"f\",\"input\":{\"x\":1}}]},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"is_error\":true,\"content\":"
        "\"no\"},"
        "{\"type\":\"text\",\"text\":\"go on\"}]}]," ATOOL "}",
        "{\"messages\":[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"s\"}]},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"q\"}]},"
        "{\"role\":\"assistant\",\"reasoning_content\":\"hm\",\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\","
        "\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1}}}],\"content\":[{\"type\":\"text\",\"text\":\"ok\"}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"Error: no\"},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"go on\"}]}],"
        "\"reasoning_effort\":50,\"thinking\":true,"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}]}");
    want_conversation(GW_MESSAGES,
                      "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
                      "\"content\":\"So\"}]}",
                      "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"q\"}]},"
                      "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"So\"}],\"prefix\":true}],"
                      "\"thinking\":false}");
}

Test(request, thinking_budgets_become_effort)
{
    static const struct {
        const char *budget;
        int effort;
    } rows[] = {{"1024", 50}, {"4096", 75}, {"32000", 75}, {"32768", 100}, {"1000000", 100}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[256];
        struct gw_request r;
        snprintf(body, sizeof body,
                 "{\"max_tokens\":9," MSG ",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":%s}}", rows[i].budget);
        take(GW_MESSAGES, body, &r);
        cr_expect_eq(json_integer_value(json_object_get(r.conversation, "reasoning_effort")), rows[i].effort);
        gw_request_free(&r);
    }
}

Test(request, every_sampling_field_arrives)
{
    struct gw_request r;
    take(GW_CHAT,
         "{" MSG ",\"model\":\"m\",\"max_tokens\":7,\"temperature\":0,\"top_p\":0.5,\"top_k\":-1,\"min_p\":0.25,"
         "\"presence_penalty\":1,\"frequency_penalty\":-1.5,\"repetition_penalty\":1.25,\"seed\":-1,"
         "\"stop\":[\"a\",\"bc\"],\"logit_bias\":{\"7\":-100,\"0\":2.5},\"logprobs\":true,\"top_logprobs\":3,"
         "\"stream\":true,\"stream_options\":{\"include_usage\":true,\"include_obfuscation\":false},\"n\":1,"
         "\"ignore_eos\":true,\"cache_salt\":\"pepper\",\"user\":\"u\",\"metadata\":{\"a\":\"b\"},\"store\":true,"
         "\"service_tier\":\"auto\",\"response_format\":{\"type\":\"text\"},\"modalities\":[\"text\"]," TOOL
         ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},\"parallel_tool_calls\":false}",
         &r);
    cr_expect_str_eq(r.model, "m");
    cr_expect_eq(r.max_tokens, 7);
    cr_expect(r.has_temperature && r.temperature == 0 && r.has_top_p && r.top_p == 0.5);
    cr_expect(r.top_k == 0 && r.min_p == 0.25);
    cr_expect(r.presence_penalty == 1 && r.frequency_penalty == -1.5 && r.repetition_penalty == 1.25);
    cr_expect(r.has_seed && r.seed == UINT64_MAX);
    cr_expect_eq(r.n_stop, 2);
    cr_expect_str_eq(r.stop[1].text, "bc");
    cr_expect_eq(r.n_bias, 2);
    cr_expect(r.bias[0].id == 7 && r.bias[0].bias == -100 && r.bias[1].id == 0 && r.bias[1].bias == 2.5f);
    cr_expect(r.logprobs && r.top_logprobs == 3 && r.stream && r.include_usage && r.ignore_eos);
    cr_expect_str_eq(r.cache_salt, "pepper");
    cr_expect(r.has_tools && r.tool_choice == GW_TOOLS_NAMED && !r.parallel_tools);
    cr_expect_str_eq(r.tool_name, "f");
    struct gw_error e;
    cr_expect(gw_request_check_ids(&r, 8, &e));
    cr_expect_not(gw_request_check_ids(&r, 7, &e));
    cr_expect_str_eq(e.param, "logit_bias");
    gw_request_free(&r);
}

Test(request, null_is_absent_and_large_limits_are_fine)
{
    struct gw_request r;
    take(
        GW_CHAT,
        "{" MSG ",\"max_tokens\":null,\"max_completion_tokens\":null,\"stop\":null,\"tools\":null,\"tool_choice\":null,"
        "\"logit_bias\":null,\"n\":null,\"response_format\":null,\"temperature\":null,\"audio\":null,\"unknown\":null}",
        &r);
    cr_expect_eq(r.max_tokens, 0);
    cr_expect_not(r.has_temperature || r.has_top_p || r.has_seed || r.has_tools);
    cr_expect(r.temperature == 1 && r.top_p == 1 && r.repetition_penalty == 1 && r.parallel_tools);
    gw_request_free(&r);
    static const char *const large[] = {"2147483648", "9223372036854775808", "1e30", "1e999",
                                        "100000000000000000000000"};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        char body[256];
        snprintf(body, sizeof body, "{" MSG ",\"max_completion_tokens\":%s}", large[i]);
        take(GW_CHAT, body, &r);
        cr_expect_eq(r.max_tokens, INT_MAX, "%s", large[i]);
        gw_request_free(&r);
    }
}

Test(request, numbers_beyond_the_parser_are_taken_in_schemas_and_arguments)
{
    want_conversation(
        GW_CHAT,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\","
        "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"id\\\":18446744073709551615}\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"\"}],\"tools\":[{\"type\":\"function\",\"function\":"
        "{\"name\":\"f\",\"parameters\":{\"maximum\":18446744073709551615}}}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\","
        "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"id\":1.8446744073709552e19}}}]},"
        "{\"role\":\"tool\",\"content\":\"\",\"tool_call_id\":\"a\"}],\"tools\":[{\"type\":\"function\",\"function\":"
        "{\"name\":\"f\",\"parameters\":{\"maximum\":1.8446744073709552e19}}}]}");
}

Test(request, completions_prompts)
{
    struct gw_request r;
    take(GW_COMPLETIONS, "{\"prompt\":\"once\",\"echo\":true,\"suffix\":null,\"logprobs\":null}", &r);
    cr_expect_str_eq(r.prompt, "once");
    cr_expect_eq(r.prompt_len, 4);
    cr_expect(r.echo && !r.logprobs && r.max_tokens == 16);
    gw_request_free(&r);
    take(GW_COMPLETIONS, "{\"prompt\":[\"once\"],\"logprobs\":0,\"max_tokens\":3}", &r);
    cr_expect_str_eq(r.prompt, "once");
    cr_expect(r.logprobs && r.top_logprobs == 0 && r.max_tokens == 3);
    gw_request_free(&r);
    static const char *const lists[] = {"{\"prompt\":[5,0,7]}", "{\"prompt\":[[5,0,7]]}"};
    for (int i = 0; i < 2; i++) {
        struct gw_error e;
        take(GW_COMPLETIONS, lists[i], &r);
        cr_assert_eq(r.n_prompt_ids, 3);
        cr_expect(r.prompt_ids[0] == 5 && r.prompt_ids[1] == 0 && r.prompt_ids[2] == 7 && !r.prompt);
        cr_expect(gw_request_check_ids(&r, 8, &e));
        cr_expect_not(gw_request_check_ids(&r, 7, &e));
        cr_expect_str_eq(e.param, "prompt");
        gw_request_free(&r);
    }
}

Test(request, tool_choices_of_each_protocol)
{
    static const struct {
        enum gw_protocol protocol;
        const char *body;
        enum gw_tool_choice want;
    } rows[] = {
        {GW_CHAT, "{" MSG "," TOOL "}", GW_TOOLS_AUTO},
        {GW_CHAT, "{" MSG "," TOOL ",\"tool_choice\":\"none\"}", GW_TOOLS_NONE},
        {GW_CHAT, "{" MSG "," TOOL ",\"tool_choice\":\"required\"}", GW_TOOLS_REQUIRED},
        {GW_MESSAGES, "{\"max_tokens\":5," MSG "," ATOOL ",\"tool_choice\":{\"type\":\"any\"}}", GW_TOOLS_REQUIRED},
        {GW_MESSAGES, "{\"max_tokens\":5," MSG "," ATOOL ",\"tool_choice\":{\"type\":\"auto\"}}", GW_TOOLS_AUTO},
        {GW_MESSAGES, "{\"max_tokens\":5," MSG "," ATOOL ",\"tool_choice\":{\"type\":\"none\"}}", GW_TOOLS_NONE},
        {GW_MESSAGES,
         "{\"max_tokens\":5," MSG "," ATOOL ",\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\","
         "\"disable_parallel_tool_use\":true}}",
         GW_TOOLS_NAMED},
        {GW_RESPONSES,
         "{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],"
         "\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"}}",
         GW_TOOLS_NAMED},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct gw_request r;
        take(rows[i].protocol, rows[i].body, &r);
        cr_expect_eq(r.tool_choice, rows[i].want, "%s", rows[i].body);
        cr_expect(r.has_tools && json_array_size(r.tools) == 1);
        gw_request_free(&r);
    }
}

Test(request, counting_needs_no_limit)
{
    struct gw_request r;
    struct gw_error e;
    const char *body = "{" MSG ",\"model\":\"m\"}";
    cr_assert(gw_request_parse_count(body, strlen(body), &r, &e), "%s", e.message);
    cr_assert_not_null(r.conversation);
    gw_request_free(&r);
}

Test(request, long_and_odd_names_do_no_harm)
{
    char body[1200];
    struct gw_request r;
    struct gw_error e;
    memset(body, 0, sizeof body);
    strcpy(body, "{\"");
    for (int i = 0; i < 250; i++)
        strcat(body, "\xc3\xa9");
    strcat(body, "\\n\":1}");
    cr_assert_not(parse(GW_CHAT, body, strlen(body), &r, &e));
    size_t len;
    char *text = gw_error_body(GW_CHAT, &e, &len);
    json_t *v = json_loadb(text, len, 0, NULL);
    cr_assert_not_null(v, "%s", text);
    json_decref(v);
    free(text);
}

Test(request, errors_in_each_shape)
{
    static const struct {
        enum gw_protocol protocol;
        int status;
        const char *body, *event;
    } rows[] = {
        {GW_CHAT, 400,
         "{\"error\":{\"message\":\"n: no\",\"type\":\"invalid_request_error\",\"param\":\"n\",\"code\":null}}",
         "data: {\"error\":{\"message\":\"n: "
         "no\",\"type\":\"invalid_request_error\",\"param\":\"n\",\"code\":null}}\n\n"},
        {GW_COMPLETIONS, 429,
         "{\"error\":{\"message\":\"n: no\",\"type\":\"rate_limit_error\",\"param\":\"n\",\"code\":null}}",
         "data: {\"error\":{\"message\":\"n: no\",\"type\":\"rate_limit_error\",\"param\":\"n\",\"code\":null}}\n\n"},
        {GW_RESPONSES, 500,
         "{\"error\":{\"message\":\"n: no\",\"type\":\"server_error\",\"param\":\"n\",\"code\":null}}",
         "event: error\ndata: {\"type\":\"error\",\"sequence_number\":0,\"code\":\"server_error\",\"message\":\"n: "
         "no\",\"param\":\"n\"}\n\n"},
        {GW_MESSAGES, 503, "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"n: no\"}}",
         "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"n: "
         "no\"}}\n\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct gw_error e;
        size_t len;
        gw_error_set(&e, rows[i].protocol, rows[i].status, "n", "no");
        char *body = gw_error_body(rows[i].protocol, &e, &len);
        cr_expect_str_eq(body, rows[i].body);
        cr_expect_eq(len, strlen(body));
        free(body);
        char *event = gw_error_event(rows[i].protocol, &e, &len);
        cr_expect_str_eq(event, rows[i].event);
        free(event);
    }
}

/* There is no double for such a number, so it is not given back as another one. */
Test(request, numbers_beyond_every_range_are_called_that)
{
    static const struct {
        const char *body, *says;
    } rows[] = {
        {"{" MSG ",\"temperature\":1e999}", "temperature: is beyond 1e308; allowed are 0 to 2"},
        {"{" MSG ",\"temperature\":-1e999}", "temperature: is below -1e308; allowed are 0 to 2"},
        {"{" MSG ",\"temperature\":3}", "temperature: is 3; allowed are 0 to 2"},
        {"{" MSG ",\"seed\":1e999}", "seed: is beyond 1e308; allowed are"},
        {"{" MSG ",\"max_tokens\":-1e999}", "max_tokens: must be a whole number of 1 or more, not below -1e308"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct gw_request r;
        struct gw_error e;
        cr_assert_not(gw_request_parse(GW_CHAT, rows[i].body, strlen(rows[i].body), &r, &e));
        cr_expect(strstr(e.message, rows[i].says), "%s: %s", rows[i].body, e.message);
    }
}
