/* What the three conversation protocols share: messages of the chat form, calls, results and tool declarations. */
#include <stdio.h>
#include <string.h>

#include "actors/gateway/json_scan.h"
#include "actors/gateway/request_impl.h"

json_t *gw_new_message(const char *role)
{
    json_t *m = json_object();
    if (json_object_set_new(m, "role", json_string(role))) {
        json_decref(m);
        return NULL;
    }
    return m;
}

bool gw_add_message(struct gw_parse *p, json_t *m)
{
    return !json_array_append_new(p->messages, m) || gw_fail_memory(p);
}

static json_t *text_part(json_t *text)
{
    json_t *part = json_object();
    if (json_object_set_new(part, "type", json_string("text")) || json_object_set(part, "text", text)) {
        json_decref(part);
        return NULL;
    }
    return part;
}

static bool read_part(struct gw_parse *p, const char *path, const json_t *part, const char *const *types, json_t *list)
{
    static const char *const known[] = {"type",        "text",      "refusal",  "cache_control",
                                        "annotations", "citations", "logprobs", NULL};
    if (!json_is_object(part))
        return gw_fail(p, path, "must be an object, not %s", gw_json_kind(part));
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type)
        return gw_fail(p, gw_path(p, "%s.type", path), "must be a string");
    const char *const *t = types;
    while (*t && strcmp(*t, type) != 0)
        t++;
    if (!*t)
        return gw_fail(p, gw_path(p, "%s.type", path), "\"%.40s\" is not supported by this server; it reads only text",
                       type);
    const char *key = strcmp(type, "refusal") == 0 ? "refusal" : "text";
    json_t *text = json_object_get(part, key);
    if (!json_is_string(text))
        return gw_fail(p, gw_path(p, "%s.%s", path, key), "must be a string, not %s", gw_json_kind(text));
    return gw_only(p, part, known, path) && (!json_array_append_new(list, text_part(text)) || gw_fail_memory(p));
}

bool gw_read_content(struct gw_parse *p, const char *path, const json_t *v, const char *const *types, json_t **out)
{
    char base[sizeof p->path], at[sizeof p->path + 32];
    snprintf(base, sizeof base, "%s", path);
    *out = NULL;
    if (!v)
        return true;
    if (json_is_string(v)) {
        *out = json_incref((json_t *)v);
        return true;
    }
    if (!json_is_array(v))
        return gw_fail(p, base, "must be a string or a list of text parts, not %s", gw_json_kind(v));
    json_t *list = json_array();
    if (!list)
        return gw_fail_memory(p);
    for (size_t i = 0; i < json_array_size(v); i++) {
        snprintf(at, sizeof at, "%s[%zu]", base, i);
        if (!read_part(p, at, json_array_get(v, i), types, list)) {
            json_decref(list);
            return false;
        }
    }
    *out = list;
    return true;
}

/* ---- calls ---- */

bool gw_read_arguments(struct gw_parse *p, const char *path, const json_t *v, json_t **out)
{
    char base[sizeof p->path];
    json_error_t je = {.text = "not an object"};
    const char *key;
    json_t *x;
    snprintf(base, sizeof base, "%s", path);
    if (!v || (json_is_string(v) && json_string_length(v) == 0))
        *out = json_object();
    else if (json_is_string(v))
        *out = gw_json_load(json_string_value(v), json_string_length(v), 0, &je);
    else
        *out = json_incref((json_t *)v);
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return gw_fail(p, base, "must be a JSON object%s (%.100s)",
                       p->protocol == GW_MESSAGES ? "" : " or a string that holds one", je.text);
    }
    json_object_foreach (*out, key, x) {
        if (strpbrk(key, "\"<>\n")) {
            gw_fail(p, base, "the name \"%.60s\" has a quote, an angle bracket or a line end", key);
            json_decref(*out);
            *out = NULL;
            return false;
        }
    }
    return true;
}

void gw_forget_calls(struct gw_parse *p)
{
    json_decref(p->calls);
    p->calls = NULL;
}

static json_t *new_call(const char *id, const char *name, json_t *arguments)
{
    return json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id, "type", "function", "function", "name", name, "arguments",
                     arguments);
}

bool gw_add_call(struct gw_parse *p, json_t *m, const char *path, const char *id, const char *name, json_t *arguments)
{
    char base[sizeof p->path];
    snprintf(base, sizeof base, "%s", path);
    if (json_object_get(p->calls, id)) {
        json_decref(arguments);
        return gw_fail(p, base, "two calls have the id \"%.60s\"", id);
    }
    if (json_object_size(p->calls) >= GW_MAX_CALLS) {
        json_decref(arguments);
        return gw_fail(p, base, "more than %d calls in one message", GW_MAX_CALLS);
    }
    if (!p->calls && !(p->calls = json_object())) {
        json_decref(arguments);
        return gw_fail_memory(p);
    }
    json_t *list = json_object_get(m, "tool_calls");
    if (!list) {
        list = json_array();
        if (json_object_set_new(m, "tool_calls", list)) {
            json_decref(arguments);
            return gw_fail_memory(p);
        }
    }
    if (json_array_append_new(list, new_call(id, name, arguments)) || json_object_set_new(p->calls, id, json_true()))
        return gw_fail_memory(p);
    return true;
}

bool gw_answer_call(struct gw_parse *p, const char *path, const json_t *id)
{
    const char *s;
    if (!gw_want_string(p, path, id, &s))
        return false;
    const json_t *open = json_object_get(p->calls, s);
    if (!open)
        return gw_fail(p, path, "\"%.80s\" is not the id of a call in the assistant message before it", s);
    if (json_is_false(open))
        return gw_fail(p, path, "the call \"%.80s\" has a result already", s);
    return !json_object_set_new(p->calls, s, json_false()) || gw_fail_memory(p);
}

/* ---- tools ---- */

bool gw_check_name(struct gw_parse *p, const char *path, const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n > GW_MAX_TOOL_NAME)
        return gw_fail(p, path, "must have 1 to %d characters", GW_MAX_TOOL_NAME);
    for (const char *c = name; *c; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || strchr("_-.", *c)))
            return gw_fail(p, path, "may have letters, digits, '_', '-' and '.' only");
    return true;
}

bool gw_add_tool(struct gw_parse *p, const char *path, const json_t *o, const char *schema_key)
{
    char base[sizeof p->path];
    const char *name, *text = NULL;
    bool strict = false;
    snprintf(base, sizeof base, "%s", path);
    if (!p->out->tools && (!(p->out->tools = json_array()) || !(p->tool_names = json_object())))
        return gw_fail_memory(p);
    const json_t *description = gw_member(o, "description"), *schema = gw_member(o, schema_key);
    const json_t *strictly = gw_member(o, "strict");
    if (!gw_want_string(p, gw_path(p, "%s.name", base), json_object_get(o, "name"), &name) ||
        !gw_check_name(p, gw_path(p, "%s.name", base), name) ||
        (description && !gw_want_string(p, gw_path(p, "%s.description", base), description, &text)) ||
        (strictly && !gw_want_bool(p, gw_path(p, "%s.strict", base), strictly, &strict)))
        return false;
    if (strict)
        return gw_fail(p, gw_path(p, "%s.strict", base),
                       "true asks for structured output, which is not supported by this server");
    if (schema && !json_is_object(schema))
        return gw_fail(p, gw_path(p, "%s.%s", base, schema_key), "must be an object, not %s", gw_json_kind(schema));
    if (json_object_get(p->tool_names, name))
        return gw_fail(p, gw_path(p, "%s.name", base), "two tools are named \"%.60s\"", name);
    if (json_array_size(p->out->tools) >= GW_MAX_TOOLS)
        return gw_fail(p, "tools", "more than %d tools", GW_MAX_TOOLS);
    json_t *tool = json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", name);
    json_t *f = json_object_get(tool, "function");
    if (!tool || (description && json_object_set(f, "description", (json_t *)description)) ||
        (schema && json_object_set(f, "parameters", (json_t *)schema))) {
        json_decref(tool);
        return gw_fail_memory(p);
    }
    return (!json_array_append_new(p->out->tools, tool) && !json_object_set_new(p->tool_names, name, json_true())) ||
           gw_fail_memory(p);
}

bool gw_choose_tool(struct gw_parse *p, const char *path, const char *name)
{
    if (!json_object_get(p->tool_names, name))
        return gw_fail(p, path, "\"%.80s\" is not the name of a tool in tools", name);
    p->out->tool_choice = GW_TOOLS_NAMED;
    snprintf(p->out->tool_name, sizeof p->out->tool_name, "%s", name);
    return true;
}

bool gw_read_choice(struct gw_parse *p, const json_t *v, const char *inside)
{
    static const char *const words[] = {"auto", "none", "required", NULL};
    static const char *const types[] = {"function", NULL};
    const char *name;
    if (json_is_string(v)) {
        if (!gw_want_word(p, "tool_choice", v, words))
            return false;
        char c = json_string_value(v)[0];
        p->out->tool_choice = c == 'a' ? GW_TOOLS_AUTO : c == 'n' ? GW_TOOLS_NONE : GW_TOOLS_REQUIRED;
        return true;
    }
    if (!json_is_object(v))
        return gw_fail(p, "tool_choice", "must be a string or an object, not %s", gw_json_kind(v));
    const json_t *holder = inside ? json_object_get(v, inside) : v;
    return gw_want_word(p, "tool_choice.type", json_object_get(v, "type"), types) &&
           gw_want_string(p, gw_path(p, "tool_choice%s%s.name", inside ? "." : "", inside ? inside : ""),
                          json_object_get(holder, "name"), &name) &&
           gw_choose_tool(p, p->path, name);
}

bool gw_finish_conversation(struct gw_parse *p, const char *path)
{
    struct gw_request *r = p->out;
    size_t n = json_array_size(p->messages);
    if (n == 0)
        return gw_fail(p, path, "must hold at least one message");
    const json_t *last = json_array_get(p->messages, n - 1);
    if (strcmp(json_string_value(json_object_get(last, "role")), "assistant") == 0 &&
        !json_is_true(json_object_get(last, "prefix")))
        return gw_fail(p, path, "the last message is a finished assistant message, so there is nothing to answer");
    r->has_tools = json_array_size(r->tools) > 0;
    if (r->tool_choice == GW_TOOLS_REQUIRED && !r->has_tools)
        return gw_fail(p, "tool_choice", "asks for a call, but tools is empty");
    if (r->has_tools && json_object_set(p->conversation, "tools", r->tools))
        return gw_fail_memory(p);
    r->conversation = json_incref(p->conversation);
    return true;
}
