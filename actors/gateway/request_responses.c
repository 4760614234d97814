/* POST /v1/responses. Items on the assistant's side that stand together (reasoning, text, calls) are one message of the
 * conversation. */
#include <stdio.h>
#include <string.h>

#include "actors/gateway/request_impl.h"

static const char *const input_types[] = {"input_text", "text", "output_text", NULL};
static const char *const answer_types[] = {"output_text", "text", "input_text", "refusal", NULL};

/* ---- input ---- */

/* The open assistant message, or a new one. Borrowed. */
static json_t *assistant(struct gw_parse *p)
{
    size_t n = json_array_size(p->messages);
    json_t *last = json_array_get(p->messages, n - 1);
    if (n && strcmp(json_string_value(json_object_get(last, "role")), "assistant") == 0)
        return last;
    gw_forget_calls(p);
    json_t *m = gw_new_message("assistant");
    if (json_array_append_new(p->messages, m)) {
        gw_fail_memory(p);
        return NULL;
    }
    return m;
}

/* Appends a text to a member that is a string, behind a blank line. */
static bool append_text(struct gw_parse *p, json_t *m, const char *key, const char *s)
{
    const char *old = json_string_value(json_object_get(m, key));
    json_t *text = old && *old ? json_sprintf("%s\n\n%s", old, s) : json_string(s);
    return !json_object_set_new(m, key, text) || gw_fail_memory(p);
}

static bool append_parts(struct gw_parse *p, json_t *m, json_t *content)
{
    json_t *list = json_object_get(m, "content");
    if (!list && json_object_set_new(m, "content", list = json_array()))
        return gw_fail_memory(p);
    if (json_is_array(content))
        return !json_array_extend(list, content) || gw_fail_memory(p);
    json_t *part = json_pack("{s:s, s:O}", "type", "text", "text", content);
    return !json_array_append_new(list, part) || gw_fail_memory(p);
}

static bool read_message(struct gw_parse *p, const char *base, const json_t *item)
{
    static const char *const known[] = {"type", "role", "content", "id", "status", "phase", NULL};
    static const char *const roles[] = {"user", "assistant", "system", "developer", NULL};
    const json_t *role = json_object_get(item, "role"), *content = gw_member(item, "content");
    json_t *text;
    if (!gw_want_word(p, gw_path(p, "%s.role", base), role, roles) || !gw_only(p, item, known, base))
        return false;
    if (!content)
        return gw_fail(p, gw_path(p, "%s.content", base), "is missing");
    bool answer = strcmp(json_string_value(role), "assistant") == 0;
    if (!gw_read_content(p, gw_path(p, "%s.content", base), content, answer ? answer_types : input_types, &text))
        return false;
    json_t *m = answer ? assistant(p) : gw_new_message(json_string_value(role));
    bool ok = m != NULL;
    if (ok && answer) {
        ok = append_parts(p, m, text);
    } else if (ok) {
        ok = !json_object_set(m, "content", text) || gw_fail_memory(p);
        if (ok)
            ok = gw_add_message(p, m);
        else
            json_decref(m);
    }
    json_decref(text);
    return ok;
}

static bool read_call(struct gw_parse *p, const char *base, const json_t *item)
{
    static const char *const known[] = {"type", "id", "call_id", "name", "arguments", "status", NULL};
    const char *id, *name;
    json_t *args, *m;
    if (!gw_only(p, item, known, base) ||
        !gw_want_string(p, gw_path(p, "%s.call_id", base), json_object_get(item, "call_id"), &id) ||
        !gw_want_string(p, gw_path(p, "%s.name", base), json_object_get(item, "name"), &name) ||
        !gw_check_name(p, gw_path(p, "%s.name", base), name) ||
        !gw_read_arguments(p, gw_path(p, "%s.arguments", base), gw_member(item, "arguments"), &args))
        return false;
    m = assistant(p);
    if (!m) {
        json_decref(args);
        return false;
    }
    return gw_add_call(p, m, gw_path(p, "%s.call_id", base), id, name, args);
}

static bool read_result(struct gw_parse *p, const char *base, const json_t *item)
{
    static const char *const known[] = {"type", "id", "call_id", "output", "status", NULL};
    json_t *id = json_object_get(item, "call_id"), *text;
    const json_t *output = gw_member(item, "output");
    if (!gw_only(p, item, known, base) || !gw_answer_call(p, gw_path(p, "%s.call_id", base), id))
        return false;
    if (!output)
        return gw_fail(p, gw_path(p, "%s.output", base), "is missing");
    if (!gw_read_content(p, gw_path(p, "%s.output", base), output, input_types, &text))
        return false;
    json_t *m = json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", text);
    return m ? gw_add_message(p, m) : gw_fail_memory(p);
}

static bool read_reasoning_item(struct gw_parse *p, const char *base, const json_t *item)
{
    static const char *const known[] = {"type", "id", "summary", "content", "encrypted_content", "status", NULL};
    static const char *const types[] = {"reasoning_text", "summary_text", "text", NULL};
    const json_t *content = gw_member(item, "content"), *part;
    json_t *text, *m;
    size_t i;
    if (!gw_only(p, item, known, base))
        return false;
    const char *key = json_array_size(content) || json_is_string(content) ? "content" : "summary";
    if (!gw_read_content(p, gw_path(p, "%s.%s", base, key), gw_member(item, key), types, &text))
        return false;
    m = assistant(p);
    bool ok = m != NULL;
    if (json_is_string(text)) {
        ok = ok && append_text(p, m, "reasoning_content", json_string_value(text));
    } else {
        json_array_foreach (text, i, part)
            ok = ok && append_text(p, m, "reasoning_content", json_string_value(json_object_get(part, "text")));
    }
    json_decref(text);
    return ok;
}

static bool read_item(struct gw_parse *p, size_t i, const json_t *item)
{
    char base[32];
    snprintf(base, sizeof base, "input[%zu]", i);
    if (!json_is_object(item))
        return gw_fail(p, base, "must be an object, not %s", gw_json_kind(item));
    const json_t *type = gw_member(item, "type");
    const char *s = "message";
    if (type && !gw_want_string(p, gw_path(p, "%s.type", base), type, &s))
        return false;
    if (strcmp(s, "message") == 0)
        return read_message(p, base, item);
    if (strcmp(s, "function_call") == 0)
        return read_call(p, base, item);
    if (strcmp(s, "function_call_output") == 0)
        return read_result(p, base, item);
    if (strcmp(s, "reasoning") == 0)
        return read_reasoning_item(p, base, item);
    return gw_fail(p, gw_path(p, "%s.type", base), "\"%.40s\" is not supported by this server", s);
}

static bool read_input(struct gw_parse *p)
{
    const json_t *v = gw_member(p->root, "input");
    if (!v)
        return gw_fail(p, "input", "is missing");
    if (json_is_string(v)) {
        json_t *m = json_pack("{s:s, s:O}", "role", "user", "content", v);
        return m ? gw_add_message(p, m) : gw_fail_memory(p);
    }
    if (!json_is_array(v))
        return gw_fail(p, "input", "must be a string or a list of items, not %s", gw_json_kind(v));
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!read_item(p, i, json_array_get(v, i)))
            return false;
    return true;
}

static bool read_instructions(struct gw_parse *p)
{
    const json_t *v = gw_member(p->root, "instructions");
    const char *s;
    if (!v)
        return true;
    if (!gw_want_string(p, "instructions", v, &s))
        return false;
    json_t *m = json_pack("{s:s, s:s}", "role", "system", "content", s);
    return m ? gw_add_message(p, m) : gw_fail_memory(p);
}

/* ---- tools ---- */

static bool read_tools(struct gw_parse *p, const char *name, const json_t *v)
{
    static const char *const known[] = {"type", "name", "description", "parameters", "strict", NULL};
    static const char *const types[] = {"function", NULL};
    if (!json_is_array(v))
        return gw_fail(p, name, "must be a list, not %s", gw_json_kind(v));
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *tool = json_array_get(v, i);
        char base[32];
        snprintf(base, sizeof base, "tools[%zu]", i);
        if (!json_is_object(tool))
            return gw_fail(p, base, "must be an object, not %s", gw_json_kind(tool));
        if (!gw_want_word(p, gw_path(p, "%s.type", base), json_object_get(tool, "type"), types) ||
            !gw_only(p, tool, known, base) || !gw_add_tool(p, base, tool, "parameters"))
            return false;
    }
    return true;
}

/* ---- other fields ---- */

static bool read_text(struct gw_parse *p, const char *name, const json_t *v)
{
    static const char *const known[] = {"format", "verbosity", NULL};
    if (!json_is_object(v))
        return gw_fail(p, name, "must be an object, not %s", gw_json_kind(v));
    const json_t *format = gw_member(v, "format"), *verbosity = gw_member(v, "verbosity");
    return gw_only(p, v, known, name) && (!format || gw_check_format(p, "text.format", format)) &&
           (!verbosity || gw_read_medium(p, "text.verbosity", verbosity));
}

/* Reasoning comes in plain text, so nobody needs it encrypted to send it back. */
static bool read_include(struct gw_parse *p, const char *name, const json_t *v)
{
    static const char *const words[] = {"message.output_text.logprobs", "reasoning.encrypted_content", NULL};
    if (!json_is_array(v))
        return gw_fail(p, name, "must be a list, not %s", gw_json_kind(v));
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *x = json_array_get(v, i);
        if (!gw_want_word(p, gw_path(p, "%s[%zu]", name, i), x, words))
            return false;
        p->out->logprobs |= strcmp(json_string_value(x), words[0]) == 0;
    }
    return true;
}

static bool read_top_logprobs(struct gw_parse *p, const char *name, const json_t *v)
{
    int64_t n;
    if (!gw_want_int(p, name, v, 0, GW_MAX_TOP_LOGPROBS, &n))
        return false;
    p->out->top_logprobs = (int)n;
    return true;
}

static bool read_truncation(struct gw_parse *p, const char *name, const json_t *v)
{
    if (json_is_string(v) && strcmp(json_string_value(v), "disabled") == 0)
        return true;
    return gw_fail(p, name, "only \"disabled\" is supported by this server");
}

static bool read_metadata(struct gw_parse *p, const char *name, const json_t *v)
{
    return json_is_object(v) || gw_fail(p, name, "must be an object, not %s", gw_json_kind(v));
}

/* What the reply repeats. */
static bool keep_settings(struct gw_parse *p)
{
    static const char *const names[] = {"instructions", "max_output_tokens",
                                        "metadata",     "parallel_tool_calls",
                                        "reasoning",    "temperature",
                                        "text",         "tool_choice",
                                        "tools",        "top_p",
                                        "user",         NULL};
    p->out->settings = json_object();
    for (const char *const *n = names; *n; n++) {
        json_t *v = gw_member(p->root, *n);
        if (v && json_object_set(p->out->settings, *n, v))
            return gw_fail_memory(p);
    }
    return p->out->settings || gw_fail_memory(p);
}

static bool finish(struct gw_parse *p)
{
    const json_t *choice = gw_member(p->root, "tool_choice");
    if (p->out->top_logprobs && !p->out->logprobs)
        return gw_fail(p, "top_logprobs", "is only allowed with \"message.output_text.logprobs\" in include");
    return (!choice || gw_read_choice(p, choice, NULL)) && read_instructions(p) && read_input(p) &&
           gw_finish_conversation(p, "input") && keep_settings(p);
}

static const struct gw_field fields[] = {
    {"input", NULL, NULL},        /* read by finish, */
    {"instructions", NULL, NULL}, /* in order */
    {"model", gw_read_model, NULL},
    {"max_output_tokens", gw_read_max_tokens, NULL},
    {"temperature", gw_read_temperature, NULL},
    {"top_p", gw_read_top_p, NULL},
    {"top_k", gw_read_top_k, NULL},
    {"min_p", gw_read_min_p, NULL},
    {"presence_penalty", gw_read_penalty, NULL},
    {"frequency_penalty", gw_read_penalty, NULL},
    {"repetition_penalty", gw_read_penalty, NULL},
    {"seed", gw_read_seed, NULL},
    {"logit_bias", gw_read_logit_bias, NULL},
    {"stream", gw_read_stream, NULL},
    {"stream_options", gw_read_stream_options, NULL},
    {"top_logprobs", read_top_logprobs, NULL},
    {"include", read_include, NULL},
    {"tools", read_tools, NULL},
    {"tool_choice", NULL, NULL},
    {"parallel_tool_calls", gw_read_parallel, NULL},
    {"reasoning", gw_read_reasoning, NULL},
    {"text", read_text, NULL},
    {"truncation", read_truncation, NULL},
    {"store", gw_read_false, NULL},
    {"background", gw_read_false, NULL},
    {"ignore_eos", gw_read_ignore_eos, NULL},
    {"cache_salt", gw_read_cache_salt, NULL},
    {"user", gw_read_user, NULL},
    {"metadata", read_metadata, NULL},
    {"service_tier", NULL, NULL},
    {"safety_identifier", NULL, NULL},
    {"prompt_cache_key", NULL, NULL},
    {"prompt_cache_retention", NULL, NULL},
    {"previous_response_id", NULL, "it stores no responses; send the whole conversation in input"},
    {"conversation", NULL, "it stores no conversations; send the whole conversation in input"},
    {"prompt", NULL, "it stores no prompts"},
    {"context_management", NULL, "it does not shorten conversations"},
    {"max_tool_calls", NULL, "it runs no tools of its own"},
    {NULL, NULL, NULL},
};

const struct gw_codec gw_responses_codec = {fields, finish};
