/* POST /v1/messages and /v1/messages/count_tokens. */
#include <stdio.h>
#include <string.h>

#include "actors/gateway/request_impl.h"
#include "model/chat.h"

static const char *const text_types[] = {"text", NULL};

/* ---- messages ---- */

/* One message of the protocol may become several of the chat form: results go out as they come, the text that follows
 * them is collected. */
struct turn {
    const char *role;
    json_t *text;      /* list of parts */
    json_t *assistant; /* the message under construction */
};

static bool flush_text(struct gw_parse *p, struct turn *t)
{
    if (!t->text)
        return true;
    json_t *m = gw_new_message(t->role);
    if (!m || json_object_set_new(m, "content", t->text)) {
        json_decref(m);
        t->text = NULL;
        return gw_fail_memory(p);
    }
    t->text = NULL;
    return gw_add_message(p, m);
}

static bool take_text(struct gw_parse *p, struct turn *t, const char *base, const json_t *block)
{
    static const char *const known[] = {"type", "text", "cache_control", "citations", NULL};
    json_t *text = json_object_get(block, "text");
    const char *s;
    if (!gw_only(p, block, known, base) || !gw_want_string(p, gw_path(p, "%s.text", base), text, &s))
        return false;
    if (!t->text && !(t->text = json_array()))
        return gw_fail_memory(p);
    json_t *part = json_pack("{s:s, s:O}", "type", "text", "text", text);
    return !json_array_append_new(t->text, part) || gw_fail_memory(p);
}

/* A result that is marked as an error says so in front of its text. */
static json_t *mark_error(json_t *text)
{
    static const char mark[] = "Error: ";
    json_t *out;
    if (!text)
        return json_string("Error");
    if (json_is_string(text)) {
        out = json_sprintf("%s%s", mark, json_string_value(text));
    } else {
        out = json_array();
        json_t *part = json_pack("{s:s, s:s}", "type", "text", "text", "Error:");
        if (json_array_append_new(out, part) || json_array_extend(out, text)) {
            json_decref(out);
            out = NULL;
        }
    }
    json_decref(text);
    return out;
}

static bool take_result(struct gw_parse *p, struct turn *t, const char *base, const json_t *block)
{
    static const char *const known[] = {"type", "tool_use_id", "content", "is_error", "cache_control", NULL};
    json_t *id = json_object_get(block, "tool_use_id"), *text;
    const json_t *failed = gw_member(block, "is_error");
    bool error = false;
    if (!gw_only(p, block, known, base) || !gw_answer_call(p, gw_path(p, "%s.tool_use_id", base), id) ||
        (failed && !gw_want_bool(p, gw_path(p, "%s.is_error", base), failed, &error)) ||
        !gw_read_content(p, gw_path(p, "%s.content", base), gw_member(block, "content"), text_types, &text))
        return false;
    if (error)
        text = mark_error(text);
    else if (!text)
        text = json_string("");
    json_t *m = gw_new_message("tool");
    if (!m || json_object_set(m, "tool_call_id", id) || json_object_set_new(m, "content", text)) {
        json_decref(m);
        return gw_fail_memory(p);
    }
    if (!flush_text(p, t)) {
        json_decref(m);
        return false;
    }
    return gw_add_message(p, m);
}

static bool take_use(struct gw_parse *p, struct turn *t, const char *base, const json_t *block)
{
    static const char *const known[] = {"type", "id", "name", "input", "cache_control", NULL};
    const char *id, *name;
    json_t *args;
    const json_t *input = gw_member(block, "input");
    if (!gw_only(p, block, known, base) ||
        !gw_want_string(p, gw_path(p, "%s.id", base), json_object_get(block, "id"), &id) ||
        !gw_want_string(p, gw_path(p, "%s.name", base), json_object_get(block, "name"), &name) ||
        !gw_check_name(p, gw_path(p, "%s.name", base), name))
        return false;
    if (!json_is_object(input))
        return gw_fail(p, gw_path(p, "%s.input", base), "must be an object, not %s", gw_json_kind(input));
    return gw_read_arguments(p, gw_path(p, "%s.input", base), input, &args) &&
           gw_add_call(p, t->assistant, gw_path(p, "%s.id", base), id, name, args);
}

static bool take_thinking(struct gw_parse *p, struct turn *t, const char *base, const json_t *block)
{
    static const char *const known[] = {"type", "thinking", "signature", "cache_control", NULL};
    const char *s, *old = json_string_value(json_object_get(t->assistant, "reasoning_content"));
    if (!gw_only(p, block, known, base) ||
        !gw_want_string(p, gw_path(p, "%s.thinking", base), json_object_get(block, "thinking"), &s))
        return false;
    json_t *text = old ? json_sprintf("%s\n\n%s", old, s) : json_string(s);
    return !json_object_set_new(t->assistant, "reasoning_content", text) || gw_fail_memory(p);
}

static bool take_block(struct gw_parse *p, struct turn *t, const char *base, const json_t *block)
{
    if (!json_is_object(block))
        return gw_fail(p, base, "must be an object, not %s", gw_json_kind(block));
    const char *type;
    if (!gw_want_string(p, gw_path(p, "%s.type", base), json_object_get(block, "type"), &type))
        return false;
    if (strcmp(type, "text") == 0)
        return take_text(p, t, base, block);
    if (!t->assistant && strcmp(type, "tool_result") == 0)
        return take_result(p, t, base, block);
    if (t->assistant && strcmp(type, "tool_use") == 0)
        return take_use(p, t, base, block);
    if (t->assistant && strcmp(type, "thinking") == 0)
        return take_thinking(p, t, base, block);
    return gw_fail(p, gw_path(p, "%s.type", base), "\"%.40s\" is not supported by this server in a message of role %s",
                   type, t->role);
}

static bool take_content(struct gw_parse *p, struct turn *t, size_t i, const json_t *content)
{
    char base[64];
    snprintf(base, sizeof base, "messages[%zu].content", i);
    if (json_is_string(content)) {
        json_t *block = json_pack("{s:s, s:O}", "type", "text", "text", content);
        bool ok = block ? take_text(p, t, base, block) : gw_fail_memory(p);
        json_decref(block);
        return ok;
    }
    if (!json_is_array(content))
        return gw_fail(p, base, "must be a string or a list of blocks, not %s", gw_json_kind(content));
    for (size_t k = 0; k < json_array_size(content); k++) {
        snprintf(base, sizeof base, "messages[%zu].content[%zu]", i, k);
        if (!take_block(p, t, base, json_array_get(content, k)))
            return false;
    }
    return true;
}

/* A last assistant message is the beginning of the answer. */
static bool end_assistant(struct gw_parse *p, struct turn *t, size_t i, bool last)
{
    json_t *m = t->assistant;
    if (t->text && json_object_set(m, "content", t->text))
        return gw_fail_memory(p);
    if (!last)
        return true;
    if (json_object_get(m, "tool_calls"))
        return gw_fail(p, gw_path(p, "messages[%zu]", i), "ends with a call, so its result must follow");
    return !json_object_set_new(m, "prefix", json_true()) || gw_fail_memory(p);
}

static bool read_message(struct gw_parse *p, size_t i, const json_t *m, bool last)
{
    static const char *const known[] = {"role", "content", "id", NULL};
    static const char *const roles[] = {"user", "assistant", NULL};
    char base[32];
    snprintf(base, sizeof base, "messages[%zu]", i);
    if (!json_is_object(m))
        return gw_fail(p, base, "must be an object, not %s", gw_json_kind(m));
    const json_t *role = json_object_get(m, "role");
    if (!gw_want_word(p, gw_path(p, "%s.role", base), role, roles) || !gw_only(p, m, known, base))
        return false;
    struct turn t = {.role = json_string_value(role)};
    if (t.role[0] == 'a') {
        gw_forget_calls(p);
        t.assistant = gw_new_message("assistant");
        if (!t.assistant)
            return gw_fail_memory(p);
    }
    bool ok = take_content(p, &t, i, json_object_get(m, "content"));
    if (ok && t.assistant) {
        ok = end_assistant(p, &t, i, last) && gw_add_message(p, json_incref(t.assistant));
    } else if (ok) {
        if (!t.text && json_array_size(json_object_get(m, "content")) == 0)
            t.text = json_array(); /* an empty message is one, too */
        ok = flush_text(p, &t);
    }
    json_decref(t.text);
    json_decref(t.assistant);
    return ok;
}

static bool read_messages(struct gw_parse *p)
{
    const json_t *v = gw_member(p->root, "messages");
    if (!json_is_array(v))
        return gw_fail(p, "messages", "must be a list, not %s", gw_json_kind(v));
    size_t n = json_array_size(v);
    if (n == 0)
        return gw_fail(p, "messages", "must hold at least one message");
    for (size_t i = 0; i < n; i++)
        if (!read_message(p, i, json_array_get(v, i), i + 1 == n))
            return false;
    return true;
}

static bool read_system(struct gw_parse *p)
{
    const json_t *v = gw_member(p->root, "system");
    json_t *text;
    if (!v)
        return true;
    if (!gw_read_content(p, "system", v, text_types, &text))
        return false;
    json_t *m = json_pack("{s:s, s:o}", "role", "system", "content", text);
    return m ? gw_add_message(p, m) : gw_fail_memory(p);
}

/* ---- tools ---- */

static bool read_tools(struct gw_parse *p, const char *name, const json_t *v)
{
    static const char *const known[] = {"type", "name", "description", "input_schema", "cache_control", "strict", NULL};
    static const char *const types[] = {"custom", NULL};
    if (!json_is_array(v))
        return gw_fail(p, name, "must be a list, not %s", gw_json_kind(v));
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *tool = json_array_get(v, i);
        char base[32];
        snprintf(base, sizeof base, "tools[%zu]", i);
        if (!json_is_object(tool))
            return gw_fail(p, base, "must be an object, not %s", gw_json_kind(tool));
        const json_t *type = gw_member(tool, "type");
        if ((type && !gw_want_word(p, gw_path(p, "%s.type", base), type, types)) || !gw_only(p, tool, known, base))
            return false;
        if (!gw_member(tool, "input_schema"))
            return gw_fail(p, gw_path(p, "%s.input_schema", base), "is missing");
        if (!gw_add_tool(p, base, tool, "input_schema"))
            return false;
    }
    return true;
}

static bool choose(struct gw_parse *p, const json_t *v)
{
    static const char *const known[] = {"type", "name", "disable_parallel_tool_use", NULL};
    static const char *const types[] = {"auto", "any", "tool", "none", NULL};
    const char *name;
    if (!json_is_object(v))
        return gw_fail(p, "tool_choice", "must be an object, not %s", gw_json_kind(v));
    const json_t *single = gw_member(v, "disable_parallel_tool_use");
    bool one = false;
    if (!gw_want_word(p, "tool_choice.type", json_object_get(v, "type"), types) ||
        !gw_only(p, v, known, "tool_choice") ||
        (single && !gw_want_bool(p, "tool_choice.disable_parallel_tool_use", single, &one)))
        return false;
    p->out->parallel_tools = !one;
    const char *type = json_string_value(json_object_get(v, "type"));
    if (strcmp(type, "tool") == 0)
        return gw_want_string(p, "tool_choice.name", json_object_get(v, "name"), &name) &&
               gw_choose_tool(p, "tool_choice.name", name);
    p->out->tool_choice = *type == 'n' ? GW_TOOLS_NONE : strcmp(type, "any") == 0 ? GW_TOOLS_REQUIRED : GW_TOOLS_AUTO;
    return true;
}

/* ---- thinking: off unless asked for, as this protocol's clients expect ---- */

static int effort_of_budget(int64_t tokens)
{
    return tokens < 4096 ? MDL_CHAT_EFFORT_LOW : tokens < 32768 ? MDL_CHAT_EFFORT_HIGH : MDL_CHAT_EFFORT_MAX;
}

static bool read_thinking(struct gw_parse *p)
{
    static const char *const known[] = {"type", "budget_tokens", "display", NULL};
    static const char *const types[] = {"enabled", "disabled", "adaptive", NULL};
    const json_t *v = gw_member(p->root, "thinking");
    int64_t budget;
    bool on = false;
    if (v) {
        if (!json_is_object(v))
            return gw_fail(p, "thinking", "must be an object, not %s", gw_json_kind(v));
        if (!gw_want_word(p, "thinking.type", json_object_get(v, "type"), types) || !gw_only(p, v, known, "thinking"))
            return false;
        const char *type = json_string_value(json_object_get(v, "type"));
        const json_t *tokens = gw_member(v, "budget_tokens");
        on = *type != 'd';
        if (*type == 'e' && !tokens)
            return gw_fail(p, "thinking.budget_tokens", "is missing");
        if (tokens) {
            if (!gw_want_int(p, "thinking.budget_tokens", tokens, 1, INT64_MAX, &budget))
                return false;
            if (!json_object_get(p->conversation, "reasoning_effort") &&
                json_object_set_new(p->conversation, "reasoning_effort", json_integer(effort_of_budget(budget))))
                return gw_fail_memory(p);
        }
    }
    return !json_object_set_new(p->conversation, "thinking", json_boolean(on)) || gw_fail_memory(p);
}

static bool read_output_config(struct gw_parse *p, const char *name, const json_t *v)
{
    static const char *const known[] = {"effort", "format", NULL};
    if (!json_is_object(v))
        return gw_fail(p, name, "must be an object, not %s", gw_json_kind(v));
    const json_t *effort = gw_member(v, "effort"), *format = gw_member(v, "format");
    return gw_only(p, v, known, name) && (!format || gw_check_format(p, "output_config.format", format)) &&
           (!effort || gw_read_effort(p, "output_config.effort", effort));
}

/* ---- other fields ---- */

static bool read_metadata(struct gw_parse *p, const char *name, const json_t *v)
{
    if (!json_is_object(v))
        return gw_fail(p, name, "must be an object, not %s", gw_json_kind(v));
    const json_t *user = gw_member(v, "user_id");
    return !user || gw_read_user(p, "metadata.user_id", user);
}

static bool read_empty(struct gw_parse *p, const char *name, const json_t *v)
{
    return (json_is_array(v) && json_array_size(v) == 0) || gw_fail(p, name, "not supported by this server");
}

static bool finish(struct gw_parse *p)
{
    const json_t *choice = gw_member(p->root, "tool_choice");
    if (!p->count && !p->out->max_tokens)
        return gw_fail(p, "max_tokens", "is missing");
    return read_thinking(p) && (!choice || choose(p, choice)) && read_system(p) && read_messages(p) &&
           gw_finish_conversation(p, "messages");
}

static const struct gw_field fields[] = {
    {"messages", NULL, NULL}, /* these four are read by finish, in order */
    {"system", NULL, NULL},
    {"thinking", NULL, NULL},
    {"tool_choice", NULL, NULL},
    {"model", gw_read_model, NULL},
    {"max_tokens", gw_read_max_tokens, NULL},
    {"temperature", gw_read_temperature, NULL},
    {"top_p", gw_read_top_p, NULL},
    {"top_k", gw_read_top_k, NULL},
    {"min_p", gw_read_min_p, NULL},
    {"seed", gw_read_seed, NULL},
    {"stop_sequences", gw_read_stop, NULL},
    {"stream", gw_read_stream, NULL},
    {"tools", read_tools, NULL},
    {"output_config", read_output_config, NULL},
    {"ignore_eos", gw_read_ignore_eos, NULL},
    {"cache_salt", gw_read_cache_salt, NULL},
    {"metadata", read_metadata, NULL},
    {"betas", NULL, NULL},
    {"service_tier", NULL, NULL},
    {"cache_control", NULL, NULL},
    {"mcp_servers", read_empty, NULL},
    {"container", NULL, "it runs no code"},
    {"context_management", NULL, "it does not shorten conversations"},
    {"output_format", NULL, "structured output"},
    {NULL, NULL, NULL},
};

const struct gw_codec gw_messages_codec = {fields, finish};
