/* POST /v1/chat/completions. */
#include <stdio.h>
#include <string.h>

#include "actors/gateway/request_impl.h"

static const char *const text_types[] = {"text", NULL}, *const answer_types[] = {"text", "refusal", NULL};

/* ---- messages ---- */

static bool read_call(struct gw_parse *p, json_t *out, const char *path, const json_t *call)
{
    static const char *const known[] = {"id", "type", "function", "index", NULL};
    static const char *const known_function[] = {"name", "arguments", NULL};
    static const char *const types[] = {"function", NULL};
    const char *id, *name;
    json_t *args;
    if (!json_is_object(call))
        return gw_fail(p, path, "must be an object, not %s", gw_json_kind(call));
    const json_t *type = gw_member(call, "type"), *f = json_object_get(call, "function");
    char base[sizeof p->path];
    snprintf(base, sizeof base, "%s", path);
    if (!gw_only(p, call, known, base) || (type && !gw_want_word(p, gw_path(p, "%s.type", base), type, types)) ||
        !gw_want_string(p, gw_path(p, "%s.id", base), json_object_get(call, "id"), &id))
        return false;
    if (!json_is_object(f))
        return gw_fail(p, gw_path(p, "%s.function", base), "must be an object, not %s", gw_json_kind(f));
    if (!gw_only(p, f, known_function, gw_path(p, "%s.function", base)) ||
        !gw_want_string(p, gw_path(p, "%s.function.name", base), json_object_get(f, "name"), &name) ||
        !gw_check_name(p, gw_path(p, "%s.function.name", base), name) ||
        !gw_read_arguments(p, gw_path(p, "%s.function.arguments", base), gw_member(f, "arguments"), &args))
        return false;
    return gw_add_call(p, out, gw_path(p, "%s.id", base), id, name, args);
}

static bool read_calls(struct gw_parse *p, json_t *out, const char *base, const json_t *calls)
{
    gw_forget_calls(p);
    if (!calls)
        return true;
    if (!json_is_array(calls))
        return gw_fail(p, gw_path(p, "%s.tool_calls", base), "must be a list, not %s", gw_json_kind(calls));
    for (size_t k = 0; k < json_array_size(calls); k++) {
        char path[sizeof p->path];
        snprintf(path, sizeof path, "%s.tool_calls[%zu]", base, k);
        if (!read_call(p, out, path, json_array_get(calls, k)))
            return false;
    }
    return true;
}

static bool read_assistant(struct gw_parse *p, json_t *out, const char *base, const json_t *m, bool last)
{
    const json_t *reasoning = gw_member(m, "reasoning_content"), *prefix = gw_member(m, "prefix");
    const char *s;
    bool on = false;
    if (!reasoning)
        reasoning = gw_member(m, "reasoning");
    if (reasoning && (!gw_want_string(p, gw_path(p, "%s.reasoning_content", base), reasoning, &s) ||
                      json_object_set(out, "reasoning_content", (json_t *)reasoning)))
        return false;
    if (!read_calls(p, out, base, gw_member(m, "tool_calls")))
        return false;
    if (prefix && !gw_want_bool(p, gw_path(p, "%s.prefix", base), prefix, &on))
        return false;
    if (on && !last)
        return gw_fail(p, gw_path(p, "%s.prefix", base), "only the last message can be continued");
    if (on && json_object_get(out, "tool_calls"))
        return gw_fail(p, gw_path(p, "%s.prefix", base), "a message with tool_calls cannot be continued");
    return !on || !json_object_set_new(out, "prefix", json_true()) || gw_fail_memory(p);
}

static bool read_message(struct gw_parse *p, size_t i, const json_t *m, bool last)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", NULL};
    static const char *const known[] = {"role", "content", "name", "id", "refusal", "annotations", NULL};
    static const char *const known_assistant[] = {"role",    "content",     "name",       "id",
                                                  "refusal", "annotations", "tool_calls", "reasoning_content",
                                                  "prefix",  "reasoning",   NULL};
    static const char *const known_tool[] = {"role", "content", "name", "tool_call_id", NULL};
    char base[32];
    snprintf(base, sizeof base, "messages[%zu]", i);
    if (!json_is_object(m))
        return gw_fail(p, base, "must be an object, not %s", gw_json_kind(m));
    const json_t *role = json_object_get(m, "role");
    if (!gw_want_word(p, gw_path(p, "%s.role", base), role, roles))
        return false;
    const char *r = json_string_value(role);
    bool assistant = strcmp(r, "assistant") == 0, tool = strcmp(r, "tool") == 0;
    const json_t *content = gw_member(m, "content");
    json_t *text;
    if (!gw_only(p, m, assistant ? known_assistant : tool ? known_tool : known, base))
        return false;
    if (!content && !assistant)
        return gw_fail(p, gw_path(p, "%s.content", base), "is missing");
    if (!gw_read_content(p, gw_path(p, "%s.content", base), content, assistant ? answer_types : text_types, &text))
        return false;
    json_t *out = gw_new_message(r);
    if (!out || (text && json_object_set(out, "content", text))) {
        json_decref(text);
        json_decref(out);
        return gw_fail_memory(p);
    }
    json_decref(text);
    bool ok = true;
    if (assistant) {
        ok = read_assistant(p, out, base, m, last);
    } else if (tool) {
        json_t *id = json_object_get(m, "tool_call_id");
        ok = gw_answer_call(p, gw_path(p, "%s.tool_call_id", base), id) &&
             (!json_object_set(out, "tool_call_id", id) || gw_fail_memory(p));
    }
    if (!ok) {
        json_decref(out);
        return false;
    }
    return gw_add_message(p, out);
}

static bool read_messages(struct gw_parse *p, const char *name, const json_t *v)
{
    if (!json_is_array(v))
        return gw_fail(p, name, "must be a list, not %s", gw_json_kind(v));
    size_t n = json_array_size(v);
    for (size_t i = 0; i < n; i++)
        if (!read_message(p, i, json_array_get(v, i), i + 1 == n))
            return false;
    return true;
}

/* ---- tools ---- */

static bool read_tools(struct gw_parse *p, const char *name, const json_t *v)
{
    static const char *const known[] = {"type", "function", "cache_control", NULL};
    static const char *const known_function[] = {"name", "description", "parameters", "strict", NULL};
    static const char *const types[] = {"function", NULL};
    if (!json_is_array(v))
        return gw_fail(p, name, "must be a list, not %s", gw_json_kind(v));
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *tool = json_array_get(v, i), *f = json_object_get(tool, "function");
        char base[48];
        snprintf(base, sizeof base, "tools[%zu]", i);
        if (!json_is_object(tool))
            return gw_fail(p, base, "must be an object, not %s", gw_json_kind(tool));
        if (!gw_want_word(p, gw_path(p, "%s.type", base), json_object_get(tool, "type"), types) ||
            !gw_only(p, tool, known, base))
            return false;
        snprintf(base, sizeof base, "tools[%zu].function", i);
        if (!json_is_object(f))
            return gw_fail(p, base, "must be an object, not %s", gw_json_kind(f));
        if (!gw_only(p, f, known_function, base) || !gw_add_tool(p, base, f, "parameters"))
            return false;
    }
    return true;
}

/* ---- other fields ---- */

static bool read_logprobs(struct gw_parse *p, const char *name, const json_t *v)
{
    return gw_want_bool(p, name, v, &p->out->logprobs);
}

static bool read_top_logprobs(struct gw_parse *p, const char *name, const json_t *v)
{
    int64_t n;
    if (!gw_want_int(p, name, v, 0, GW_MAX_TOP_LOGPROBS, &n))
        return false;
    p->out->top_logprobs = (int)n;
    return true;
}

static bool read_thinking(struct gw_parse *p, const char *name, const json_t *v)
{
    static const char *const known[] = {"type", NULL};
    static const char *const words[] = {"enabled", "disabled", NULL};
    if (!json_is_object(v) && !json_is_boolean(v))
        return gw_fail(p, name, "must be true, false or an object with a type, not %s", gw_json_kind(v));
    if (json_is_object(v) && (!gw_only(p, v, known, name) ||
                              !gw_want_word(p, gw_path(p, "%s.type", name), json_object_get(v, "type"), words)))
        return false;
    return !json_object_set(p->conversation, "thinking", (json_t *)v) || gw_fail_memory(p);
}

/* The switches that servers with a template take here. */
static bool read_template(struct gw_parse *p, const char *name, const json_t *v)
{
    static const char *const known[] = {"thinking", "enable_thinking", "reasoning_effort", NULL};
    bool on;
    if (!json_is_object(v))
        return gw_fail(p, name, "must be an object, not %s", gw_json_kind(v));
    if (!gw_only(p, v, known, name))
        return false;
    for (int i = 0; i < 2; i++) {
        json_t *x = gw_member(v, known[i]);
        if (x && !gw_want_bool(p, gw_path(p, "%s.%s", name, known[i]), x, &on))
            return false;
        if (x && json_object_set(p->conversation, "thinking", x))
            return gw_fail_memory(p);
    }
    const json_t *effort = gw_member(v, known[2]);
    return !effort || gw_read_effort(p, "chat_template_kwargs.reasoning_effort", effort);
}

static bool read_format(struct gw_parse *p, const char *name, const json_t *v)
{
    return gw_check_format(p, name, v);
}

static bool read_modalities(struct gw_parse *p, const char *name, const json_t *v)
{
    const char *s = json_string_value(json_array_get(v, 0));
    if (json_array_size(v) == 1 && s && strcmp(s, "text") == 0)
        return true;
    return gw_fail(p, name, "only [\"text\"] is supported by this server");
}

static bool finish(struct gw_parse *p)
{
    const json_t *choice = gw_member(p->root, "tool_choice");
    if (p->out->top_logprobs && !p->out->logprobs)
        return gw_fail(p, "top_logprobs", "is only allowed when logprobs is true");
    if (!json_is_array(json_object_get(p->root, "messages")))
        return gw_fail(p, "messages", "is missing");
    return (!choice || gw_read_choice(p, choice, "function")) && gw_finish_conversation(p, "messages");
}

static const struct gw_field fields[] = {
    {"messages", read_messages, NULL},
    {"model", gw_read_model, NULL},
    {"max_tokens", gw_read_max_tokens, NULL},
    {"max_completion_tokens", gw_read_max_tokens, NULL},
    {"temperature", gw_read_temperature, NULL},
    {"top_p", gw_read_top_p, NULL},
    {"top_k", gw_read_top_k, NULL},
    {"min_p", gw_read_min_p, NULL},
    {"presence_penalty", gw_read_penalty, NULL},
    {"frequency_penalty", gw_read_penalty, NULL},
    {"repetition_penalty", gw_read_penalty, NULL},
    {"seed", gw_read_seed, NULL},
    {"stop", gw_read_stop, NULL},
    {"stream", gw_read_stream, NULL},
    {"stream_options", gw_read_stream_options, NULL},
    {"logit_bias", gw_read_logit_bias, NULL},
    {"logprobs", read_logprobs, NULL},
    {"top_logprobs", read_top_logprobs, NULL},
    {"ignore_eos", gw_read_ignore_eos, NULL},
    {"n", gw_read_one, NULL},
    {"best_of", gw_read_one, NULL},
    {"tools", read_tools, NULL},
    {"tool_choice", NULL, NULL}, /* read by finish, when the tools are known */
    {"parallel_tool_calls", gw_read_parallel, NULL},
    {"thinking", read_thinking, NULL},
    {"reasoning_effort", gw_read_effort, NULL},
    {"reasoning", gw_read_reasoning, NULL},
    {"chat_template_kwargs", read_template, NULL},
    {"response_format", read_format, NULL},
    {"modalities", read_modalities, NULL},
    {"verbosity", gw_read_medium, NULL},
    {"cache_salt", gw_read_cache_salt, NULL},
    {"user", gw_read_user, NULL},
    {"metadata", NULL, NULL},
    {"store", NULL, NULL},
    {"service_tier", NULL, NULL},
    {"safety_identifier", NULL, NULL},
    {"prompt_cache_key", NULL, NULL},
    {"prompt_cache_retention", NULL, NULL},
    {"functions", NULL, "use tools"},
    {"function_call", NULL, "use tool_choice"},
    {"audio", NULL, "it writes text only"},
    {"web_search_options", NULL, "it runs no tools of its own"},
    {"prediction", NULL, "predicted outputs"},
    {"guided_json", NULL, "structured output"},
    {"guided_regex", NULL, "structured output"},
    {"guided_choice", NULL, "structured output"},
    {"guided_grammar", NULL, "structured output"},
    {"grammar", NULL, "structured output"},
    {"structured_outputs", NULL, "structured output"},
    {NULL, NULL, NULL},
};

const struct gw_codec gw_chat_codec = {fields, finish};
