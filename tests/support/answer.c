/* Implementation of tests/support/answer.h. */
#include "tests/support/answer.h"

#include "tests/harness.h"

const char *ts_path(enum ts_protocol p)
{
    static const char *const paths[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"};
    return paths[p];
}

char *ts_body(enum ts_protocol p, const char *prompt, int limit, bool stream, const char *more)
{
    static const char *const limits[] = {"max_tokens", "max_tokens", "max_output_tokens", "max_tokens"};
    json_t *quoted = json_string(prompt), *j = json_object();
    json_error_t err;
    char *text = NULL;
    if (p == TS_CHAT || p == TS_MESSAGES)
        json_object_set_new(j, "messages", json_pack("[{s:s,s:O}]", "role", "user", "content", quoted));
    else
        json_object_set(j, p == TS_COMPLETIONS ? "prompt" : "input", quoted);
    json_object_set_new(j, "model", json_string("tiny"));
    if (limit)
        json_object_set_new(j, limits[p], json_integer(limit));
    if (stream)
        json_object_set_new(j, "stream", json_true());
    if (stream && (p == TS_CHAT || p == TS_COMPLETIONS))
        json_object_set_new(j, "stream_options", json_pack("{s:b}", "include_usage", 1));
    if (asprintf(&text, "{%s}", more) < 0)
        abort();
    json_t *add = json_loads(text, 0, &err);
    cr_assert(add != NULL, "a test's own fields: %s", text);
    json_object_update(j, add);
    json_decref(add);
    json_decref(quoted);
    free(text);
    text = json_dumps(j, JSON_COMPACT);
    json_decref(j);
    return text;
}

static void append(char **to, const char *from)
{
    char *all = NULL;
    if (from && asprintf(&all, "%s%s", *to ? *to : "", from) < 0)
        abort();
    if (!from)
        return;
    free(*to);
    *to = all;
}

static const char *text_of(const json_t *j, const char *key)
{
    return json_string_value(json_object_get(j, key));
}

static int number_of(const json_t *j, const char *key)
{
    const json_t *v = json_object_get(j, key);
    return json_is_integer(v) ? (int)json_integer_value(v) : -1;
}

static void set_finish(struct ts_answer *a, const char *finish)
{
    if (finish)
        snprintf(a->finish, sizeof a->finish, "%s", finish);
}

static void take_usage(struct ts_answer *a, const json_t *u)
{
    if (!json_is_object(u))
        return;
    bool openai = json_object_get(u, "prompt_tokens");
    const json_t *in = json_object_get(u, openai ? "prompt_tokens_details" : "input_tokens_details");
    const json_t *out = json_object_get(u, openai ? "completion_tokens_details" : "output_tokens_details");
    int prompt = number_of(u, openai ? "prompt_tokens" : "input_tokens");
    int cached = in ? number_of(in, "cached_tokens") : number_of(u, "cache_read_input_tokens");
    /* The messages protocol counts what came from the cache apart. */
    if (prompt >= 0 && !openai && !in)
        prompt += cached > 0 ? cached : 0;
    a->prompt = prompt >= 0 ? prompt : a->prompt;
    a->cached = cached >= 0 ? cached : a->cached;
    a->output = number_of(u, openai ? "completion_tokens" : "output_tokens");
    if (out)
        a->reasoning_tokens = number_of(out, "reasoning_tokens");
}

static void take_calls(struct ts_answer *a, const json_t *calls)
{
    size_t i;
    json_t *c;
    json_array_foreach (calls, i, c) {
        int index = number_of(c, "index") >= 0 ? number_of(c, "index") : (int)i;
        const json_t *f = json_object_get(c, "function");
        cr_assert(index < TS_CALLS_MAX);
        if (text_of(f, "name"))
            snprintf(a->call[index].name, sizeof a->call[index].name, "%s", text_of(f, "name"));
        append(&a->call[index].arguments, text_of(f, "arguments"));
        a->n_calls = index + 1 > a->n_calls ? index + 1 : a->n_calls;
    }
}

/* A choice of chat or completions: in a stream its delta. */
static void take_choice(struct ts_answer *a, const json_t *choice, bool stream, bool chat)
{
    const json_t *m = chat ? json_object_get(choice, stream ? "delta" : "message") : choice;
    const char *text = text_of(m, chat ? "content" : "text");
    append(&a->text, text);
    a->deltas += text && *text;
    append(&a->reasoning, text_of(m, "reasoning_content"));
    take_calls(a, json_object_get(m, "tool_calls"));
    set_finish(a, text_of(choice, "finish_reason"));
    json_t *lp = json_object_get(json_object_get(choice, "logprobs"), "content");
    if (json_is_array(lp))
        json_array_extend(a->logprobs, lp);
}

static void take_openai(struct ts_answer *a, const json_t *j, bool stream, bool chat)
{
    size_t i;
    json_t *c;
    json_array_foreach (json_object_get(j, "choices"), i, c)
        take_choice(a, c, stream, chat);
    take_usage(a, json_object_get(j, "usage"));
}

static void new_call(struct ts_answer *a, const char *name)
{
    cr_assert(a->n_calls < TS_CALLS_MAX);
    snprintf(a->call[a->n_calls].name, sizeof a->call[0].name, "%s", name ? name : "");
    append(&a->call[a->n_calls++].arguments, "");
}

static void take_response(struct ts_answer *a, const json_t *j)
{
    size_t i, k;
    json_t *item, *part;
    json_array_foreach (json_object_get(j, "output"), i, item) {
        const char *type = text_of(item, "type");
        if (type && !strcmp(type, "function_call")) {
            new_call(a, text_of(item, "name"));
            append(&a->call[a->n_calls - 1].arguments, text_of(item, "arguments"));
        }
        json_array_foreach (json_object_get(item, "content"), k, part)
            append(type && !strcmp(type, "reasoning") ? &a->reasoning : &a->text, text_of(part, "text"));
    }
    set_finish(a, text_of(j, "status"));
    take_usage(a, json_object_get(j, "usage"));
}

static void take_response_event(struct ts_answer *a, const json_t *j, const char *type)
{
    const json_t *item = json_object_get(j, "item"), *response = json_object_get(j, "response");
    if (!strcmp(type, "response.output_text.delta")) {
        append(&a->text, text_of(j, "delta"));
        a->deltas++;
    } else if (!strcmp(type, "response.reasoning_text.delta") || !strcmp(type, "response.reasoning_summary_text.delta"))
        append(&a->reasoning, text_of(j, "delta"));
    else if (!strcmp(type, "response.output_item.added") && text_of(item, "name"))
        new_call(a, text_of(item, "name"));
    else if (!strcmp(type, "response.function_call_arguments.delta") && a->n_calls)
        append(&a->call[a->n_calls - 1].arguments, text_of(j, "delta"));
    else if (!strcmp(type, "response.completed") || !strcmp(type, "response.incomplete") ||
             !strcmp(type, "response.failed")) {
        set_finish(a, text_of(response, "status"));
        take_usage(a, json_object_get(response, "usage"));
    }
}

static void take_block(struct ts_answer *a, const json_t *b)
{
    const char *type = text_of(b, "type");
    if (type && !strcmp(type, "tool_use")) {
        new_call(a, text_of(b, "name"));
        char *input = json_dumps(json_object_get(b, "input"), JSON_COMPACT);
        if (input && strcmp(input, "{}"))
            append(&a->call[a->n_calls - 1].arguments, input);
        free(input);
    }
    append(&a->text, text_of(b, "text"));
    append(&a->reasoning, text_of(b, "thinking"));
}

static void take_message_event(struct ts_answer *a, const json_t *j, const char *type)
{
    const json_t *delta = json_object_get(j, "delta");
    if (!strcmp(type, "message_start"))
        take_usage(a, json_object_get(json_object_get(j, "message"), "usage"));
    else if (!strcmp(type, "content_block_start"))
        take_block(a, json_object_get(j, "content_block"));
    else if (!strcmp(type, "content_block_delta")) {
        append(&a->text, text_of(delta, "text"));
        a->deltas += text_of(delta, "text") != NULL;
        append(&a->reasoning, text_of(delta, "thinking"));
        if (text_of(delta, "partial_json") && a->n_calls)
            append(&a->call[a->n_calls - 1].arguments, text_of(delta, "partial_json"));
    } else if (!strcmp(type, "message_delta")) {
        set_finish(a, text_of(delta, "stop_reason"));
        take_usage(a, json_object_get(j, "usage"));
    }
}

static void take_whole(struct ts_answer *a, enum ts_protocol p, const json_t *j)
{
    size_t i;
    json_t *b;
    if (p == TS_RESPONSES)
        take_response(a, j);
    else if (p != TS_MESSAGES)
        take_openai(a, j, false, p == TS_CHAT);
    else {
        json_array_foreach (json_object_get(j, "content"), i, b)
            take_block(a, b);
        set_finish(a, text_of(j, "stop_reason"));
        take_usage(a, json_object_get(j, "usage"));
    }
}

static void take_event(struct ts_answer *a, enum ts_protocol p, const json_t *j)
{
    const char *type = text_of(j, "type");
    if (p == TS_CHAT || p == TS_COMPLETIONS)
        take_openai(a, j, true, p == TS_CHAT);
    else if (type && p == TS_RESPONSES)
        take_response_event(a, j, type);
    else if (type)
        take_message_event(a, j, type);
}

struct ts_answer ts_answer_of(enum ts_protocol p, const char *body, bool stream)
{
    struct ts_answer a = {.prompt = -1, .cached = -1, .output = -1, .reasoning_tokens = -1, .logprobs = json_array()};
    json_error_t err;
    append(&a.text, "");
    append(&a.reasoning, "");
    if (!stream) {
        json_t *j = json_loads(body, 0, &err);
        cr_assert(j != NULL, "no JSON: %s", body);
        take_whole(&a, p, j);
        json_decref(j);
        return a;
    }
    for (const char *at = strstr(body, "data: "); at; at = strstr(at, "\ndata: ")) {
        at += *at == '\n' ? 7 : 6;
        const char *end = strchr(at, '\n');
        cr_assert(end != NULL, "an event was cut off: %s", at);
        if (!strncmp(at, "[DONE]", 6)) {
            at = end;
            continue;
        }
        json_t *j = json_loadb(at, (size_t)(end - at), 0, &err);
        cr_assert(j != NULL, "no JSON: %.*s", (int)(end - at), at);
        take_event(&a, p, j);
        json_decref(j);
        at = end;
    }
    return a;
}

struct ts_answer ts_ask(const struct ts_server *s, enum ts_protocol p, const char *prompt, int limit, bool stream,
                        const char *more)
{
    char *body = ts_body(p, prompt, limit, stream, more);
    struct ts_reply r = ts_post(s, ts_path(p), body);
    cr_assert_eq(r.status, 200, "%s %s: %d %s", ts_path(p), body, r.status, r.body);
    cr_assert(r.whole, "%s %s was cut off: %s", ts_path(p), body, r.body);
    struct ts_answer a = ts_answer_of(p, r.body, stream);
    ts_reply_free(&r);
    free(body);
    return a;
}

void ts_answer_free(struct ts_answer *a)
{
    free(a->text);
    free(a->reasoning);
    for (int i = 0; i < a->n_calls; i++)
        free(a->call[i].arguments);
    json_decref(a->logprobs);
    *a = (struct ts_answer){0};
}
