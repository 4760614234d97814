/* `weft serve` as its clients see it: every endpoint and protocol, on a real process with the sample model. */
#include "tests/harness.h"

#include <unistd.h>

#include "tests/support/answer.h"
#include "tests/support/server.h"

#define GREEDY "sampling = { temperature = 0.0; };\n"
#define PROMPT "In the beginning God created the heaven and the earth"

static struct ts_server server;

static void stop(void)
{
    ts_server_free(&server);
}

TestSuite(serve, .fini = stop, .timeout = 300);

static json_t *parsed(struct ts_reply *r, int status)
{
    json_error_t err;
    cr_assert_eq(r->status, status, "%d: %s", r->status, r->body);
    json_t *j = json_loads(r->body, 0, &err);
    cr_assert(j != NULL, "no JSON: %s", r->body);
    ts_reply_free(r);
    return j;
}

static const char *text_at(const json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));
    return s ? s : "";
}

Test(serve, small_endpoints)
{
    ts_server_start(&server, NULL, "");
    struct ts_reply r = ts_get(&server, "/v1/models");
    json_t *j = parsed(&r, 200), *model = json_array_get(json_object_get(j, "data"), 0);
    cr_expect_str_eq(text_at(model, "id"), "tiny");
    cr_expect_str_eq(text_at(model, "object"), "model");
    for (int i = 0; i < 2; i++) {
        r = ts_get(&server, i ? "/v1/models/%74in%79" : "/v1/models/tiny");
        json_t *one = parsed(&r, 200);
        cr_expect(json_equal(one, model));
        json_decref(one);
    }
    json_decref(j);
    static const char *const none[] = {"/v1/models/tin", "/v1/models/tiny2", "/v1/models/%7", "/v1/models/"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        r = ts_get(&server, none[i]);
        j = parsed(&r, 404);
        cr_expect_str_eq(text_at(json_object_get(j, "error"), "code"), "model_not_found", "%s", none[i]);
        json_decref(j);
    }
    r = ts_get(&server, "/version");
    j = parsed(&r, 200);
    cr_expect_str_eq(text_at(j, "model"), "tiny");
    cr_expect_neq(text_at(j, "version")[0], 0);
    json_decref(j);
    for (int i = 0; i < 2; i++) {
        r = ts_get(&server, i ? "/health/ready" : "/health/live");
        j = parsed(&r, 200);
        cr_expect_str_eq(text_at(j, "status"), "ok");
        cr_expect_gt(json_array_size(json_object_get(j, "workers")), 1);
        json_decref(j);
    }
    r = ts_get(&server, "/");
    cr_expect_eq(r.status, 200);
    cr_expect(strstr(r.body, "<title>Weft"));
    ts_reply_free(&r);
    r = ts_get(&server, "/nothing");
    j = parsed(&r, 404);
    cr_expect(json_is_object(json_object_get(j, "error")));
    json_decref(j);
    r = ts_get(&server, "/v1/chat/completions");
    cr_expect(strstr(r.head, "\r\nAllow: POST\r\n"), "%s", r.head);
    j = parsed(&r, 405);
    json_decref(j);
    r = ts_post(&server, "/v1/models", "{}");
    cr_expect(strstr(r.head, "\r\nAllow: GET, HEAD\r\n"), "%s", r.head);
    j = parsed(&r, 405);
    json_decref(j);
}

Test(serve, tokenize_and_back)
{
    static const char text[] = "In the beginning, \\u00e4\\u20ac \\ud83d\\ude00 God";
    ts_server_start(&server, NULL, "");
    struct ts_reply r = ts_postf(&server, "/tokenize", "{\"prompt\":\"%s\"}", text);
    json_t *j = parsed(&r, 200), *tokens = json_object_get(j, "tokens");
    cr_expect_eq((size_t)json_integer_value(json_object_get(j, "count")), json_array_size(tokens));
    char *list = json_dumps(tokens, JSON_COMPACT);
    r = ts_postf(&server, "/detokenize", "{\"tokens\":%s}", list);
    json_t *back = parsed(&r, 200);
    cr_expect_str_eq(text_at(back, "prompt"), "In the beginning, ä€ 😀 God");
    json_decref(back);
    free(list);
    json_decref(j);
    static const char *const bad[][2] = {
        {"/tokenize", "{}"},
        {"/tokenize", "nonsense"},
        {"/tokenize", "{\"prompt\":3}"},
        {"/detokenize", "{\"tokens\":\"x\"}"},
        {"/detokenize", "{\"tokens\":[\"a\"]}"},
        {"/detokenize", "{\"tokens\":[-1]}"},
        {"/detokenize", "{\"tokens\":[99999999]}"},
        {"/detokenize", "{\"tokens\":[4294967297]}"},
        {"/tokenize", "{\"prompt\":\"a\",\"prompt\":\"b\"}"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        r = ts_post(&server, bad[i][0], bad[i][1]);
        cr_expect_eq(r.status, 400, "%s %s: %d %s", bad[i][0], bad[i][1], r.status, r.body);
        ts_reply_free(&r);
    }
}

Test(serve, every_protocol_gives_the_same_text_whole_and_streamed)
{
    static const char *const length[] = {"length", "length", "incomplete", "max_tokens"};
    ts_server_start(&server, NULL, GREEDY);
    for (int p = 0; p < TS_PROTOCOLS; p++) {
        struct ts_answer whole = ts_ask(&server, p, PROMPT, 24, false, ""),
                         stream = ts_ask(&server, p, PROMPT, 24, true, "");
        cr_expect_neq(whole.text[0], 0);
        cr_expect_str_eq(whole.text, stream.text, "%s", ts_path(p));
        cr_expect_gt(stream.deltas, 5, "%s: %d pieces", ts_path(p), stream.deltas);
        cr_expect_str_eq(whole.finish, length[p]);
        cr_expect_str_eq(stream.finish, length[p]);
        cr_expect_eq(whole.output, 24, "%s: %d", ts_path(p), whole.output);
        cr_expect_eq(stream.output, 24, "%s: %d", ts_path(p), stream.output);
        cr_expect_eq(whole.prompt, stream.prompt);
        cr_expect_gt(whole.prompt, 5, "%s: %d", ts_path(p), whole.prompt);
        ts_answer_free(&whole);
        ts_answer_free(&stream);
    }
}

Test(serve, the_counted_prompt_is_the_prompt_that_is_billed)
{
    ts_server_start(&server, NULL, GREEDY);
    char *body = ts_body(TS_MESSAGES, PROMPT, 1, false, "");
    struct ts_reply r = ts_post(&server, "/v1/messages/count_tokens", body);
    free(body);
    json_t *j = parsed(&r, 200);
    struct ts_answer a = ts_ask(&server, TS_MESSAGES, PROMPT, 1, false, "");
    cr_expect_eq((int)json_integer_value(json_object_get(j, "input_tokens")), a.prompt);
    ts_answer_free(&a);
    json_decref(j);
}

/* A stream's chunks: finish_reason null until the last one, usage in a chunk of its own, then [DONE]. */
Test(serve, a_chat_stream_ends_as_clients_expect)
{
    ts_server_start(&server, NULL, GREEDY);
    char *body = ts_body(TS_CHAT, PROMPT, 8, true, "");
    struct ts_reply r = ts_post(&server, ts_path(TS_CHAT), body);
    free(body);
    cr_expect(strcasestr(r.head, "Content-Type: text/event-stream"));
    int finishes = 0, after = 0, usages = 0;
    json_error_t err;
    for (char *at = r.body; (at = strstr(at, "data: {")); at++) {
        json_t *j = json_loads(at + 6, JSON_DISABLE_EOF_CHECK, &err);
        cr_assert(j != NULL);
        json_t *choice = json_array_get(json_object_get(j, "choices"), 0),
               *finish = json_object_get(choice, "finish_reason");
        cr_expect(!choice || finish, "finish_reason is not there");
        after += finishes && choice;
        finishes += json_is_string(finish);
        usages += json_is_object(json_object_get(j, "usage"));
        json_decref(j);
    }
    cr_expect_eq(finishes, 1);
    cr_expect_eq(after, 0);
    cr_expect_eq(usages, 1);
    cr_expect(r.len > 14 && !strcmp(r.body + r.len - 14, "data: [DONE]\n\n"));
    ts_reply_free(&r);
}

Test(serve, limits_of_the_output)
{
    ts_server_start(&server, NULL, GREEDY "model = { path = \"samples/tiny\"; name = \"tiny\"; context = 96; };\n");
    static const char *const all[] = {"\"max_tokens\":null", "\"max_tokens\":100000000",
                                      "\"max_completion_tokens\":null", ""};
    char *first = NULL;
    for (int i = 0; i < 4; i++) {
        struct ts_answer a = ts_ask(&server, TS_CHAT, PROMPT, 0, i & 1, all[i]);
        if (!strcmp(a.finish, "length"))
            cr_expect_eq(a.prompt + a.output, 96, "%s: %d + %d", all[i], a.prompt, a.output);
        else
            cr_expect_str_eq(a.finish, "stop");
        if (!first)
            first = strdup(a.text);
        cr_expect_str_eq(a.text, first);
        ts_answer_free(&a);
    }
    free(first);
    struct ts_answer a = ts_ask(&server, TS_CHAT, PROMPT, 0, false, "\"max_completion_tokens\":3");
    cr_expect_eq(a.output, 3);
    ts_answer_free(&a);
    char longest[2000] = "";
    for (int i = 0; i < 120; i++)
        strcat(longest, "the LORD ");
    char *body = ts_body(TS_CHAT, longest, 4, true, "");
    struct ts_reply r = ts_post(&server, ts_path(TS_CHAT), body);
    free(body);
    json_t *j = parsed(&r, 400);
    cr_expect_str_eq(text_at(json_object_get(j, "error"), "code"), "context_length_exceeded");
    json_decref(j);
    cr_expect_eq(ts_metric(&server, "weft_requests_refused_total{cause=\"too_long\"}"), 1.0);
}

/* Every substring of a known text as the stop string: the answer is what stands before its first occurrence. */
Test(serve, stop_strings_at_every_position)
{
    ts_server_start(&server, NULL, GREEDY);
    struct ts_answer known = ts_ask(&server, TS_COMPLETIONS, PROMPT, 20, false, "");
    int n = (int)strlen(known.text);
    cr_assert_gt(n, 20);
    for (int i = 0; i < n - 1; i++) {
        int len = 1 + i % 7;
        len = len < n - i ? len : n - i;
        char stop[16] = "";
        memcpy(stop, known.text + i, (size_t)len);
        if ((stop[0] & 0xc0) == 0x80)
            continue;
        json_t *quoted = json_pack("{s:[s]}", "stop", stop);
        if (!quoted)
            continue;
        char *more = json_dumps(quoted, JSON_COMPACT);
        size_t m = strlen(more);
        more[m - 1] = 0;
        struct ts_answer a = ts_ask(&server, TS_COMPLETIONS, PROMPT, 20, i % 2, more + 1);
        const char *at = strstr(known.text, stop);
        cr_expect_str_eq(a.finish, "stop", "stop string \"%s\"", stop);
        cr_expect_eq(strlen(a.text), (size_t)(at - known.text), "stop string \"%s\": \"%s\"", stop, a.text);
        cr_expect(!strncmp(a.text, known.text, strlen(a.text)), "stop string \"%s\": \"%s\"", stop, a.text);
        ts_answer_free(&a);
        free(more);
        json_decref(quoted);
    }
    ts_answer_free(&known);
    struct ts_answer a = ts_ask(&server, TS_MESSAGES, PROMPT, 20, true, "\"stop_sequences\":[\" the\"]");
    cr_expect_str_eq(a.finish, "stop_sequence");
    cr_expect_null(strstr(a.text, " the"));
    ts_answer_free(&a);
    ts_until_metric(&server, "weft_num_requests_running", 0);
    ts_until_metric(&server, "weft_num_requests_waiting", 0);
}

/* ---- log-probabilities ---- */

static void check_logprobs(const struct ts_answer *a, int top)
{
    size_t i, k;
    json_t *e, *t;
    char text[4096] = "";
    cr_expect_eq((int)json_array_size(a->logprobs), a->output, "%zu of %d", json_array_size(a->logprobs), a->output);
    json_array_foreach (a->logprobs, i, e) {
        json_t *list = json_object_get(e, "top_logprobs");
        double own = json_number_value(json_object_get(e, "logprob")), last = 0, sum = 0;
        bool among = false;
        cr_expect_eq((int)json_array_size(list), top);
        strncat(text, text_at(e, "token"), sizeof text - strlen(text) - 1);
        json_array_foreach (list, k, t) {
            double v = json_number_value(json_object_get(t, "logprob"));
            cr_expect(k == 0 || v <= last, "token %zu: %g behind %g", i, v, last);
            last = v;
            sum += exp(v);
            among |= !strcmp(text_at(t, "token"), text_at(e, "token")) && v == own; // NOLINT: the same number
        }
        cr_expect(own <= 0 && own > -1e4, "token %zu: %g", i, own);
        cr_expect(sum > 0 && sum < 1 + 1e-6, "token %zu: %g", i, sum);
        cr_expect(among, "token %zu, the most likely one, is not in its own list", i);
    }
    cr_expect_str_eq(text, a->text);
}

/* Drafting changes neither text nor log-probabilities, however many tokens a step gives. */
Test(serve, logprobs_with_and_without_speculation)
{
    static const int drafts[] = {0, 3, 5};
    char *want = NULL, *drawn = NULL;
    for (int i = 0; i < 3; i++) {
        char config[200];
        snprintf(config, sizeof config, GREEDY "speculation = { draft_length = %d; };\n", drafts[i]);
        ts_server_start(&server, NULL, config);
        for (int stream = 0; stream < 2; stream++) {
            struct ts_answer a = ts_ask(&server, TS_CHAT, PROMPT, 40, stream, "\"logprobs\":true,\"top_logprobs\":5");
            check_logprobs(&a, 5);
            char *got = json_dumps(a.logprobs, JSON_COMPACT);
            if (!want)
                want = strdup(got);
            cr_expect_str_eq(got, want, "draft length %d", drafts[i]);
            free(got);
            ts_answer_free(&a);
        }
        struct ts_answer a =
            ts_ask(&server, TS_CHAT, PROMPT, 40, true, "\"logprobs\":true,\"seed\":5,\"temperature\":1");
        char *got = json_dumps(a.logprobs, JSON_COMPACT);
        if (!drawn)
            drawn = strdup(got);
        cr_expect_str_eq(got, drawn, "draft length %d", drafts[i]);
        free(got);
        ts_answer_free(&a);
        if (drafts[i])
            cr_expect_gt(ts_metric(&server, "weft_spec_decode_num_offered_tokens_total"), 0.0);
        ts_server_free(&server);
    }
    free(want);
    free(drawn);
}

Test(serve, a_seed_decides_the_text)
{
    char *text[4];
    ts_server_start(&server, NULL, "");
    for (int i = 0; i < 4; i++) {
        char more[64];
        snprintf(more, sizeof more, "\"seed\":%d,\"temperature\":1", i < 3 ? 11 : 12);
        struct ts_answer a = ts_ask(&server, TS_COMPLETIONS, PROMPT, 40, i == 1, more);
        text[i] = strdup(a.text);
        ts_answer_free(&a);
    }
    cr_expect_str_eq(text[0], text[1]);
    cr_expect_str_eq(text[0], text[2]);
    cr_expect_str_neq(text[0], text[3]);
    for (int i = 0; i < 4; i++)
        free(text[i]);
}

/* ---- many at a time ---- */

/* Request i of a mixed load: every third one greedy, the others each with a seed of its own. */
static void mixed_request(int i, char prompt[128], char more[64])
{
    snprintf(more, 64, "\"seed\":%d,\"temperature\":%s", i, i % 3 ? "1" : "0");
    snprintf(prompt, 128, "%s, and %d times %.*s", PROMPT, i, i * 2, PROMPT);
}

/* All n requests at a time; answer [n], each to be freed. */
static void ask_mixed(int n, struct ts_answer *answer)
{
    struct ts_flow f[64];
    char prompt[128], more[64];
    for (int i = 0; i < n; i++) {
        mixed_request(i, prompt, more);
        char *body = ts_body(TS_COMPLETIONS, prompt, 30, true, more);
        cr_assert(ts_flow_open(&f[i], server.port, ts_path(TS_COMPLETIONS), body));
        free(body);
    }
    while (ts_flows_turn(f, n, 1000))
        ;
    for (int i = 0; i < n; i++) {
        char *body = ts_flow_body(&f[i]);
        answer[i] = ts_answer_of(TS_COMPLETIONS, body, true);
        free(body);
        ts_flow_close(&f[i]);
    }
}

/* Both times behind the hits that earlier requests with the same prompts left: a hit is part of what a result depends
 * on. */
Test(serve, the_same_text_alone_and_among_32_others)
{
    enum { N = 33 };
    struct ts_answer alone[N], among[N];
    int hits = 0;
    char prompt[128], more[64];
    ts_server_start(&server, NULL, "engine = { decode_streams = 64; prefill_streams = 8; };\n");
    ask_mixed(N, among);
    for (int i = 0; i < N; i++) {
        ts_answer_free(&among[i]);
        mixed_request(i, prompt, more);
        alone[i] = ts_ask(&server, TS_COMPLETIONS, prompt, 30, true, more);
    }
    ask_mixed(N, among);
    for (int i = 0; i < N; i++) {
        hits += alone[i].cached > 0;
        cr_expect_eq(among[i].cached, alone[i].cached, "stream %d: %d, %d", i, among[i].cached, alone[i].cached);
        cr_expect_str_eq(among[i].text, alone[i].text, "stream %d", i);
        ts_answer_free(&alone[i]);
        ts_answer_free(&among[i]);
    }
    cr_expect_eq(hits, N, "%d hits", hits);
}

/* Several Prefill and Decode actors change where a request is computed, and nothing else. */
Test(serve, the_same_text_from_one_and_from_two_actors_of_each_kind)
{
    enum { N = 12 };
    struct ts_answer answer[2][N];
    for (int two = 0; two < 2; two++) {
        ts_server_start(&server, NULL, two ? "engine = { prefill_actors = 2; decode_actors = 2; };\n" : "");
        ask_mixed(N, answer[two]);
        ts_until_metric(&server, "weft_num_requests_running", 0);
        ts_until_metric(&server, "weft_kv_pages_held", two ? 16 : 8); /* a lease for each Decode actor */
        ts_server_free(&server);
    }
    for (int i = 0; i < N; i++) {
        cr_expect_str_eq(answer[1][i].text, answer[0][i].text, "request %d", i);
        ts_answer_free(&answer[0][i]);
        ts_answer_free(&answer[1][i]);
    }
}

static char *long_prompt(int words)
{
    char *text = malloc((size_t)words * 16 + 1);
    int n = 0;
    for (int i = 0; i < words; i++)
        n += sprintf(text + n, "%s ", i % 3 ? "the LORD spake" : i % 2 ? "unto Moses" : "and saying");
    return text;
}

/* In exact mode a hit changes nothing (and needs a long prompt, because the windows of all layers are made again); in
 * the default mode equal hits give equal texts. The answer says how many tokens came from the cache. */
Test(serve, a_repeated_prompt_comes_from_the_cache)
{
    static const char *const mode[] = {"true", "false"};
    for (int m = 0; m < 2; m++) {
        char config[200];
        snprintf(config, sizeof config, GREEDY "kv = { block_tokens = 32; };\nreplay = { exact = %s; };\n", mode[m]);
        ts_server_start(&server, NULL, config);
        char *prompt = long_prompt(m ? 60 : 240);
        struct ts_answer cold = ts_ask(&server, TS_COMPLETIONS, prompt, 30, false, ""),
                         warm = ts_ask(&server, TS_COMPLETIONS, prompt, 30, true, ""),
                         salted =
                             ts_ask(&server, TS_COMPLETIONS, prompt, 30, true, "\"cache_salt\":\"another tenant\""),
                         again = ts_ask(&server, TS_COMPLETIONS, prompt, 30, true, "");
        cr_expect_eq(cold.cached, 0);
        cr_expect_gt(warm.cached, 32, "%d cached", warm.cached);
        cr_expect_eq(salted.cached, 0, "another tenant's blocks were used");
        cr_expect_eq(again.cached, warm.cached);
        cr_expect_str_eq(warm.text, again.text);
        cr_expect_str_eq(cold.text, salted.text);
        if (!m)
            cr_expect_str_eq(cold.text, warm.text);
        cr_expect_eq(ts_metric(&server, "weft_prefix_cache_hits_total"), (double)(warm.cached + again.cached));
        ts_answer_free(&cold);
        ts_answer_free(&warm);
        ts_answer_free(&salted);
        ts_answer_free(&again);
        free(prompt);
        ts_server_free(&server);
    }
}

/* A conversation's second turn finds what the first turn's answer left behind. */
Test(serve, a_second_turn_finds_the_first_one_and_its_answer)
{
    ts_server_start(&server, NULL, GREEDY "kv = { block_tokens = 16; };\n");
    struct ts_answer first = ts_ask(&server, TS_COMPLETIONS, PROMPT, 60, false, "");
    char *all = NULL;
    cr_assert(asprintf(&all, "%s%s", PROMPT, first.text) > 0);
    struct ts_answer second = ts_ask(&server, TS_COMPLETIONS, all, 10, false, "");
    cr_expect_gt(second.cached, first.prompt, "%d cached of %d", second.cached, second.prompt);
    free(all);
    ts_answer_free(&first);
    ts_answer_free(&second);
}

/* ---- what is refused ---- */

Test(serve, bad_requests_name_the_field)
{
    static const struct {
        enum ts_protocol p;
        const char *more, *param;
    } bad[] = {
        {TS_CHAT, "\"temperature\":9", "temperature"},
        {TS_CHAT, "\"n\":2", "n"},
        {TS_CHAT, "\"response_format\":{\"type\":\"json_object\"}", "response_format"},
        {TS_CHAT, "\"logit_bias\":{\"99999999\":1}", "logit_bias"},
        {TS_CHAT, "\"logit_bias\":{\"x\":1}", "logit_bias"},
        {TS_CHAT, "\"max_tokens\":-1", "max_tokens"},
        {TS_CHAT, "\"no_such_field\":1", "no_such_field"},
        {TS_CHAT, "\"stop\":[1]", "stop"},
        {TS_CHAT, "\"top_logprobs\":5", "top_logprobs"},
        {TS_COMPLETIONS, "\"best_of\":3", "best_of"},
        {TS_COMPLETIONS, "\"prompt\":[99999999]", "prompt"},
        {TS_RESPONSES, "\"previous_response_id\":\"resp_1\"", "previous_response_id"},
        {TS_MESSAGES, "\"max_tokens\":\"a\"", "max_tokens"},
        {TS_MESSAGES, "\"top_k\":-2", "top_k"},
    };
    ts_server_start(&server, NULL, "");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *body = ts_body(bad[i].p, PROMPT, 4, i % 2, bad[i].more);
        struct ts_reply r = ts_post(&server, ts_path(bad[i].p), body);
        json_error_t err;
        json_t *j = json_loads(r.body, 0, &err), *e = json_object_get(j, "error");
        cr_expect_eq(r.status, 400, "%s: %d %s", body, r.status, r.body);
        cr_expect(strstr(text_at(e, "message"), bad[i].param), "%s: %s", body, r.body);
        if (bad[i].p != TS_MESSAGES)
            cr_expect(!strncmp(text_at(e, "param"), bad[i].param, strlen(bad[i].param)), "%s: %s", body, r.body);
        else
            cr_expect_str_eq(text_at(j, "type"), "error");
        json_decref(j);
        ts_reply_free(&r);
        free(body);
    }
    struct ts_answer a = ts_ask(&server, TS_CHAT, PROMPT, 3, false, "");
    cr_expect_eq(a.output, 3);
    ts_answer_free(&a);
}

Test(serve, every_series_is_there_from_the_start)
{
    static const char *const names[] = {
        "weft_num_requests_running",
        "weft_num_requests_waiting",
        "weft_prompt_tokens_total",
        "weft_generation_tokens_total",
        "weft_kv_cache_usage_perc",
        "weft_prefix_cache_queries_total",
        "weft_prefix_cache_hits_total",
        "weft_spec_decode_num_offered_tokens_total",
        "weft_spec_decode_num_accepted_tokens_total",
        "weft_num_preemptions_total",
        "weft_time_to_first_token_seconds_count",
        "weft_inter_token_latency_seconds_count",
        "weft_e2e_request_latency_seconds_count",
        "weft_request_prefill_time_seconds_count",
        "weft_request_decode_time_seconds_count",
        "weft_request_success_total{finished_reason=\"stop\"}",
        "weft_request_success_total{finished_reason=\"cancelled\"}",
        "weft_requests_refused_total{cause=\"busy\"}",
        "weft_disconnected_clients_total",
        "weft_decode_batch_size",
        "weft_decode_steps_total",
    };
    ts_server_start(&server, NULL, GREEDY);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        cr_expect_eq(ts_metric(&server, names[i]), 0.0, "%s", names[i]);
    struct ts_answer a = ts_ask(&server, TS_CHAT, PROMPT, 9, true, "");
    cr_expect_eq(ts_metric(&server, "weft_generation_tokens_total"), 9.0);
    cr_expect_eq(ts_metric(&server, "weft_prompt_tokens_total"), (double)a.prompt);
    cr_expect_eq(ts_metric(&server, "weft_request_success_total{finished_reason=\"length\"}"), 1.0);
    cr_expect_eq(ts_metric(&server, "weft_time_to_first_token_seconds_count"), 1.0);
    cr_expect_eq(ts_metric(&server, "weft_inter_token_latency_seconds_count"), 8.0);
    ts_until_metric(&server, "weft_decode_batch_size", 0);
    cr_expect_gt(ts_metric(&server, "weft_decode_steps_total"), 1.0);
    ts_answer_free(&a);
}

/* ---- what else a request can ask for ---- */

Test(serve, logit_bias_forces_and_forbids)
{
    ts_server_start(&server, NULL, GREEDY);
    struct ts_reply r = ts_post(&server, "/tokenize", "{\"prompt\":\" the\"}");
    json_t *j = parsed(&r, 200);
    int id = (int)json_integer_value(json_array_get(json_object_get(j, "tokens"), 0));
    cr_assert_eq(json_array_size(json_object_get(j, "tokens")), 1);
    json_decref(j);
    char more[64];
    snprintf(more, sizeof more, "\"logit_bias\":{\"%d\":100}", id);
    struct ts_answer a = ts_ask(&server, TS_COMPLETIONS, PROMPT, 6, true, more);
    cr_expect_str_eq(a.text, " the the the the the the");
    ts_answer_free(&a);
    snprintf(more, sizeof more, "\"logit_bias\":{\"%d\":-100}", id);
    struct ts_answer with = ts_ask(&server, TS_COMPLETIONS, PROMPT, 60, true, ""),
                     without = ts_ask(&server, TS_COMPLETIONS, PROMPT, 60, true, more);
    cr_expect(strstr(with.text, " the "));
    cr_expect_null(strstr(without.text, " the "), "%s", without.text);
    ts_answer_free(&with);
    ts_answer_free(&without);
}

/* One connection for answers of both kinds and a refused request between them. */
Test(serve, a_connection_is_used_again)
{
    ts_server_start(&server, NULL, GREEDY);
    int fd = ts_connect(server.port);
    for (int i = 0; i < 6; i++) {
        char *body = ts_body(TS_CHAT, PROMPT, 6, i % 2, i == 3 ? "\"n\":7" : "");
        cr_assert(ts_send_request(fd, "POST", ts_path(TS_CHAT), body));
        struct ts_reply r = ts_read_reply(fd);
        cr_assert(r.whole);
        cr_expect_eq(r.status, i == 3 ? 400 : 200);
        ts_reply_free(&r);
        free(body);
    }
    close(fd);
    cr_expect_eq(ts_metric(&server, "weft_http_requests_total"), 7.0);
}

/* A stream that waits for its turn says so with comments, and is a proper stream afterwards. */
Test(serve, a_waiting_stream_is_kept_alive)
{
    ts_server_start(&server, NULL,
                    GREEDY "engine = { decode_streams = 1; };\nlimits = { keepalive = \"100ms\"; };\n"
                           "compute = { cpu = \"scalar\"; threads = 1; };\n");
    struct ts_answer alone = ts_ask(&server, TS_CHAT, PROMPT, 4, true, "");
    for (int p = 0; p < TS_PROTOCOLS; p++) {
        struct ts_flow f[2];
        char *first = ts_body(TS_CHAT, PROMPT, 0, true, "\"ignore_eos\":true"),
             *second = ts_body(p, PROMPT, 4, true, "");
        cr_assert(ts_flow_open(&f[0], server.port, ts_path(TS_CHAT), first));
        ts_until_metric(&server, "weft_num_requests_running", 1);
        cr_assert(ts_flow_open(&f[1], server.port, ts_path(p), second));
        for (int i = 0; i < 1000 && !(f[1].data && (strstr(f[1].data, "\n:") || strstr(f[1].data, "ping"))); i++)
            ts_flows_turn(f, 2, 100);
        cr_expect_eq(ts_flow_status(&f[1]), 200);
        ts_flow_close(&f[0]);
        while (ts_flows_turn(f + 1, 1, 1000))
            ;
        char *body = ts_flow_body(&f[1]);
        cr_expect(strstr(body, p == TS_MESSAGES ? "ping" : ":"), "%s", body);
        struct ts_answer a = ts_answer_of(p, body, true);
        if (p != TS_COMPLETIONS)
            cr_expect_str_eq(a.text, alone.text, "%s", ts_path(p));
        cr_expect_eq(a.output, 4);
        ts_answer_free(&a);
        ts_flow_close(&f[1]);
        free(body);
        free(first);
        free(second);
        ts_until_metric(&server, "weft_num_requests_running", 0);
    }
    ts_answer_free(&alone);
}

/* More text than there is memory for: the youngest are set aside and come back, and nobody's text changes. */
Test(serve, out_of_pages_the_youngest_wait)
{
    enum { N = 6, TOKENS = 700 };
    struct ts_flow f[N];
    char *alone = NULL;
    ts_server_start(&server, NULL,
                    GREEDY "kv = { memory = \"1MiB\"; block_tokens = 32; };\nspeculation = { draft_length = 0; };\n");
    struct ts_answer a = ts_ask(&server, TS_COMPLETIONS, PROMPT, TOKENS, true, "\"ignore_eos\":true");
    alone = strdup(a.text);
    ts_answer_free(&a);
    for (int i = 0; i < N; i++) {
        char *body = ts_body(TS_COMPLETIONS, PROMPT, TOKENS, true, "\"ignore_eos\":true");
        cr_assert(ts_flow_open(&f[i], server.port, ts_path(TS_COMPLETIONS), body));
        free(body);
    }
    while (ts_flows_turn(f, N, 1000))
        ;
    for (int i = 0; i < N; i++) {
        char *body = ts_flow_body(&f[i]);
        a = ts_answer_of(TS_COMPLETIONS, body, true);
        cr_expect_eq(a.output, TOKENS, "stream %d: %d", i, a.output);
        cr_expect_str_eq(a.text, alone, "stream %d", i);
        ts_answer_free(&a);
        free(body);
        ts_flow_close(&f[i]);
    }
    cr_expect_gt(ts_metric(&server, "weft_num_preemptions_total"), 0.0);
    ts_until_metric(&server, "weft_num_requests_running", 0);
    ts_until_metric(&server, "weft_kv_pages_held", 8);
    free(alone);
}

/* One long word needs much memory to be divided into tokens, and gives it back. */
Test(serve, a_huge_word_keeps_no_memory)
{
    enum { WORD = 1 << 20 };
    ts_server_start(&server, NULL, "");
    double before = ts_metric(&server, "weft_heap_bytes");
    char *body = malloc(WORD + 64);
    size_t at = (size_t)sprintf(body, "{\"prompt\":\"");
    memset(body + at, 'a', WORD);
    strcpy(body + at + WORD, "\"}");
    struct ts_reply r = ts_post(&server, "/v1/completions", body);
    free(body);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body, "context_length_exceeded"), "%s", r.body);
    ts_reply_free(&r);
    if (TS_LESS == 1)
        cr_expect_lt(ts_metric(&server, "weft_heap_bytes") - before, 8.0 * (1 << 20));
}
