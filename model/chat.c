/* Rendering works in two steps: messages become turns (checked, tool results merged, tools attached), turns become
 * segments. */
#include "model/chat.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/json_text.h"

const char mdl_chat_tool_text[] =
    "## Tools\n\n"
    "You can call the tools listed at the end, one JSON schema per line. To call some of them, finish the reply with "
    "one block of this form:\n\n"
    "<" MDL_CHAT_DSML " calls>\n"
    "<" MDL_CHAT_DSML " invoke name=\"TOOL\">\n"
    "<" MDL_CHAT_DSML " parameter name=\"PARAMETER\" string=\"true\">VALUE</" MDL_CHAT_DSML " parameter>\n"
    "</" MDL_CHAT_DSML " invoke>\n"
    "</" MDL_CHAT_DSML " calls>\n\n"
    "Write one invoke element per call and one parameter element per argument. A text goes in as it is, with "
    "string=\"true\"; every other value as JSON, with string=\"false\". Results arrive as <tool_result> elements in "
    "the order of the calls.\n\n"
    "{tools}";

static const char format_text[] =
    "## Response Format:\n\nAnswer with JSON that fits this schema, and with nothing else:\n";

enum turn_kind { TURN_SYSTEM, TURN_USER, TURN_ASSISTANT };

struct turn {
    enum turn_kind kind;
    struct mdl_text text;
    bool has_results;        /* user: holds tool results */
    const json_t *tools[2];  /* system: of the message and of the request; lists of one or more, or NULL */
    const json_t *schema[2]; /* likewise */
    const json_t *reasoning; /* assistant: a string or NULL */
    const json_t *calls;     /* assistant: a list of one or more, or NULL */
    bool prefix;             /* assistant */
    size_t message;          /* index, for error messages */
};

struct chat {
    const json_t *request, *messages;
    const struct mdl_chat_options *opt;
    struct turn *turn;
    size_t n_turns;
    struct mdl_chat_prompt *out;
    struct cfg_error *err;
    int rc; /* first failure of the segment writers */
};

static int nomem(struct chat *c)
{
    return cfg_error_set(c->err, ENOMEM, "out of memory while writing a prompt");
}

static const json_t *present(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

/* ---- reading messages ---- */

static int add_block(struct chat *c, struct mdl_text *t, const char *open, const char *s, size_t n, const char *close)
{
    bool more = t->n != 0;
    if ((more && mdl_text_puts(t, "\n\n")) || mdl_text_puts(t, open) || mdl_text_add(t, s, n) ||
        mdl_text_puts(t, close))
        return nomem(c);
    return 0;
}

/* content of message i, appended to t; parts are separated by blank lines. */
static int read_content(struct chat *c, const json_t *m, size_t i, struct mdl_text *t)
{
    const json_t *v = present(m, "content");
    if (!v)
        return 0;
    if (json_is_string(v))
        return mdl_text_add(t, json_string_value(v), json_string_length(v)) ? nomem(c) : 0;
    if (!json_is_array(v))
        return cfg_error_set(c->err, EINVAL, "messages[%zu].content must be a string, null or a list of text parts", i);
    for (size_t k = 0; k < json_array_size(v); k++) {
        const json_t *part = json_array_get(v, k), *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type || strcmp(type, "text") != 0)
            return cfg_error_set(c->err, EINVAL,
                                 "messages[%zu].content[%zu].type is %s; this engine reads only \"text\"", i, k,
                                 type ? type : "missing");
        if (!json_is_string(text))
            return cfg_error_set(c->err, EINVAL, "messages[%zu].content[%zu].text must be a string", i, k);
        int rc = add_block(c, t, "", json_string_value(text), json_string_length(text), "");
        if (rc)
            return rc;
    }
    return 0;
}

/* A list of {"type":"function","function":{"name":...}}; *out is NULL when it is absent or empty. */
static int read_tools(struct chat *c, const json_t *o, const char *where, const json_t **out)
{
    const json_t *v = present(o, "tools");
    if (!v)
        return 0;
    if (!json_is_array(v))
        return cfg_error_set(c->err, EINVAL, "%stools must be a list", where);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *tool = json_array_get(v, i), *f = json_object_get(tool, "function");
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (type && strcmp(type, "function") != 0)
            return cfg_error_set(c->err, EINVAL, "%stools[%zu].type is %s; only \"function\" is supported", where, i,
                                 type);
        if (!json_is_object(f) || json_string_length(json_object_get(f, "name")) == 0)
            return cfg_error_set(c->err, EINVAL, "%stools[%zu].function must be an object with a name", where, i);
    }
    *out = json_array_size(v) ? v : NULL;
    return 0;
}

static int read_format(struct chat *c, const json_t *o, const char *where, const json_t **out)
{
    const json_t *v = present(o, "response_format");
    if (!v)
        return 0;
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!type)
        return cfg_error_set(c->err, EINVAL, "%sresponse_format must be an object with a type", where);
    if (strcmp(type, "text") == 0 || strcmp(type, "json_object") == 0)
        return 0;
    if (strcmp(type, "json_schema") != 0)
        return cfg_error_set(c->err, EINVAL,
                             "%sresponse_format.type is %s; text, json_object and json_schema are supported", where,
                             type);
    *out = json_object_get(json_object_get(v, "json_schema"), "schema");
    if (!json_is_object(*out))
        return cfg_error_set(c->err, EINVAL, "%sresponse_format.json_schema.schema must be an object", where);
    return 0;
}

static struct turn *new_turn(struct chat *c, enum turn_kind kind, size_t message)
{
    struct turn *t = &c->turn[c->n_turns++]; /* room for one per message and one more */
    t->kind = kind;
    t->message = message;
    return t;
}

static int read_system(struct chat *c, const json_t *m, size_t i)
{
    char where[40];
    snprintf(where, sizeof where, "messages[%zu].", i);
    struct turn *t = new_turn(c, TURN_SYSTEM, i);
    int rc = read_content(c, m, i, &t->text);
    if (!rc)
        rc = read_tools(c, m, where, &t->tools[0]);
    if (!rc)
        rc = read_format(c, m, where, &t->schema[0]);
    return rc;
}

static struct turn *last_turn(struct chat *c)
{
    return c->n_turns ? &c->turn[c->n_turns - 1] : NULL;
}

static int read_user(struct chat *c, const json_t *m, size_t i)
{
    struct turn *t = last_turn(c);
    if (!t || t->kind != TURN_USER || !t->has_results) {
        t = new_turn(c, TURN_USER, i);
        return read_content(c, m, i, &t->text);
    }
    struct mdl_text own = {0};
    int rc = read_content(c, m, i, &own);
    if (!rc && own.n)
        rc = add_block(c, &t->text, "", own.s, own.n, "");
    mdl_text_free(&own);
    return rc;
}

static int check_calls(struct chat *c, const json_t *calls, size_t i)
{
    if (!json_is_array(calls))
        return cfg_error_set(c->err, EINVAL, "messages[%zu].tool_calls must be a list", i);
    for (size_t k = 0; k < json_array_size(calls); k++) {
        const json_t *call = json_array_get(calls, k), *id = present(call, "id");
        const json_t *f = json_object_get(call, "function"), *name = json_object_get(f, "name");
        if (id && !json_is_string(id))
            return cfg_error_set(c->err, EINVAL, "messages[%zu].tool_calls[%zu].id must be a string", i, k);
        if (json_string_length(name) == 0 || strpbrk(json_string_value(name), "\"<>\n"))
            return cfg_error_set(c->err, EINVAL,
                                 "messages[%zu].tool_calls[%zu].function.name must be a name without quotes, "
                                 "angle brackets and line ends",
                                 i, k);
    }
    return 0;
}

static int read_assistant(struct chat *c, const json_t *m, size_t i)
{
    const json_t *prefix = present(m, "prefix");
    struct turn *t = new_turn(c, TURN_ASSISTANT, i);
    t->reasoning = present(m, "reasoning_content");
    t->calls = present(m, "tool_calls");
    if (t->reasoning && !json_is_string(t->reasoning))
        return cfg_error_set(c->err, EINVAL, "messages[%zu].reasoning_content must be a string", i);
    if (prefix && !json_is_boolean(prefix))
        return cfg_error_set(c->err, EINVAL, "messages[%zu].prefix must be true or false", i);
    t->prefix = json_is_true(prefix);
    int rc = t->calls ? check_calls(c, t->calls, i) : 0;
    if (json_array_size(t->calls) == 0)
        t->calls = NULL;
    if (!rc && t->prefix && i + 1 != json_array_size(c->messages))
        return cfg_error_set(c->err, EINVAL, "messages[%zu].prefix: only the last message can be continued", i);
    if (!rc && t->prefix && t->calls)
        return cfg_error_set(c->err, EINVAL, "messages[%zu].prefix: a message with tool_calls cannot be continued", i);
    return rc ? rc : read_content(c, m, i, &t->text);
}

/* Place of tool message i among the calls it may answer; messages without an id keep their order behind the others. */
static int result_place(struct chat *c, const json_t *calls, size_t i, size_t *place)
{
    const json_t *id = present(json_array_get(c->messages, i), "tool_call_id");
    *place = SIZE_MAX;
    if (!id)
        return 0;
    if (!json_is_string(id))
        return cfg_error_set(c->err, EINVAL, "messages[%zu].tool_call_id must be a string", i);
    for (size_t k = 0; k < json_array_size(calls); k++) {
        const char *call_id = json_string_value(json_object_get(json_array_get(calls, k), "id"));
        if (call_id && strcmp(call_id, json_string_value(id)) == 0) {
            *place = k;
            return 0;
        }
    }
    return cfg_error_set(c->err, EINVAL,
                         "messages[%zu].tool_call_id \"%s\" is not the id of a call in the assistant message "
                         "before it",
                         i, json_string_value(id));
}

static const char *role_of(const json_t *m)
{
    const char *s = json_string_value(json_object_get(m, "role"));
    return s ? s : "";
}

static int add_result(struct chat *c, struct turn *t, size_t i)
{
    struct mdl_text own = {0};
    int rc = read_content(c, json_array_get(c->messages, i), i, &own);
    if (!rc)
        rc = add_block(c, &t->text, "<tool_result>", own.s ? own.s : "", own.n, "</tool_result>");
    mdl_text_free(&own);
    return rc;
}

/* The run of tool messages that begins at i; *next is the message behind it. */
static int read_results(struct chat *c, size_t i, size_t *next)
{
    const json_t *calls = NULL;
    for (size_t k = c->n_turns; k-- > 0 && !calls;)
        if (c->turn[k].kind == TURN_ASSISTANT) {
            calls = c->turn[k].calls;
            break;
        }
    size_t end = i;
    while (end < json_array_size(c->messages) && strcmp(role_of(json_array_get(c->messages, end)), "tool") == 0)
        end++;
    *next = end;
    if (!calls)
        return cfg_error_set(c->err, EINVAL,
                             "messages[%zu] is a tool result, but the assistant message before it has no "
                             "tool_calls",
                             i);
    struct turn *t = last_turn(c);
    if (t->kind != TURN_USER)
        t = new_turn(c, TURN_USER, i);
    t->has_results = true;
    size_t n = end - i, n_calls = json_array_size(calls), *place = calloc(n, sizeof *place);
    int rc = place ? 0 : nomem(c);
    for (size_t k = 0; !rc && k < n; k++)
        rc = result_place(c, calls, i + k, &place[k]);
    for (size_t want = 0; !rc && want <= n_calls; want++) /* by call, then those without an id */
        for (size_t k = 0; !rc && k < n; k++)
            if (place[k] == (want < n_calls ? want : SIZE_MAX))
                rc = add_result(c, t, i + k);
    free(place);
    return rc;
}

static int read_messages(struct chat *c)
{
    size_t n = json_array_size(c->messages);
    for (size_t i = 0; i < n;) {
        const json_t *m = json_array_get(c->messages, i);
        const char *role = role_of(m);
        bool system = strcmp(role, "system") == 0 || strcmp(role, "developer") == 0;
        size_t next = i + 1;
        int rc;
        if (!system && present(m, "tools"))
            rc = cfg_error_set(c->err, EINVAL, "messages[%zu].tools: only a system message can define tools", i);
        else if (system)
            rc = read_system(c, m, i);
        else if (strcmp(role, "user") == 0)
            rc = read_user(c, m, i);
        else if (strcmp(role, "assistant") == 0)
            rc = read_assistant(c, m, i);
        else if (strcmp(role, "tool") == 0)
            rc = read_results(c, i, &next);
        else
            rc = cfg_error_set(c->err, EINVAL,
                               "messages[%zu].role must be system, developer, user, assistant or tool%s%s", i,
                               *role ? ", not " : "", role);
        if (rc)
            return rc;
        i = next;
    }
    const struct turn *last = last_turn(c);
    if (last->kind == TURN_ASSISTANT && !last->prefix && !c->opt->complete)
        return cfg_error_set(c->err, EINVAL,
                             "messages[%zu] is a finished assistant message, so there is nothing to answer; add "
                             "a user message, or \"prefix\": true to continue it",
                             last->message);
    return 0;
}

/* Tools and response format of the request go to the leading system turn, which is made when there is none. */
static int attach_request(struct chat *c)
{
    const json_t *tools = NULL, *schema = NULL;
    int rc = read_tools(c, c->request, "", &tools);
    if (!rc)
        rc = read_format(c, c->request, "", &schema);
    if (rc || (!tools && !schema))
        return rc;
    if (c->turn[0].kind != TURN_SYSTEM) {
        memmove(c->turn + 1, c->turn, c->n_turns * sizeof *c->turn);
        c->turn[0] = (struct turn){.kind = TURN_SYSTEM};
        c->n_turns++;
    }
    c->turn[0].tools[1] = tools;
    c->turn[0].schema[1] = schema;
    return 0;
}

static int effort_name(const char *s, int *effort)
{
    static const struct {
        const char *name;
        int effort;
    } names[] = {
        {"none", 0},
        {"minimal", MDL_CHAT_EFFORT_LOW},
        {"low", MDL_CHAT_EFFORT_LOW},
        {"medium", MDL_CHAT_EFFORT_HIGH},
        {"high", MDL_CHAT_EFFORT_HIGH},
        {"xhigh", MDL_CHAT_EFFORT_HIGH},
        {"max", MDL_CHAT_EFFORT_MAX},
        {"ultra", MDL_CHAT_EFFORT_MAX},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(s, names[i].name) == 0) {
            *effort = names[i].effort;
            return 0;
        }
    return -EINVAL;
}

static int read_mode(struct chat *c)
{
    const json_t *thinking = present(c->request, "thinking"), *effort = present(c->request, "reasoning_effort");
    struct mdl_chat_prompt *p = c->out;
    p->thinking = !c->opt->chat_mode;
    p->effort = c->opt->effort ? c->opt->effort : MDL_CHAT_EFFORT_HIGH;
    bool off = false;
    if (json_is_string(effort)) {
        int e;
        if (effort_name(json_string_value(effort), &e))
            return cfg_error_set(c->err, EINVAL,
                                 "reasoning_effort is %s; none, minimal, low, medium, high, xhigh, max, ultra or "
                                 "1 to 100 are allowed",
                                 json_string_value(effort));
        off = e == 0;
        if (e)
            p->effort = e;
    } else if (json_is_integer(effort)) {
        json_int_t e = json_integer_value(effort);
        p->effort = e >= 1 && e <= 100 ? (int)e : -1;
    } else if (effort) {
        p->effort = -1;
    }
    if (p->effort < 1 || p->effort > 100)
        return cfg_error_set(c->err, EINVAL, "reasoning_effort must be a name or a whole number from 1 to 100");
    if (off)
        p->thinking = false;
    else if (effort)
        p->thinking = true;
    const char *type = json_string_value(json_object_get(thinking, "type"));
    if (json_is_boolean(thinking))
        p->thinking = json_is_true(thinking);
    else if (type && (strcmp(type, "enabled") == 0 || strcmp(type, "disabled") == 0))
        p->thinking = *type == 'e';
    else if (thinking)
        return cfg_error_set(c->err, EINVAL, "thinking must be true, false or {\"type\": \"enabled\" or \"disabled\"}");
    return 0;
}

/* ---- writing segments: failures are kept in c->rc ---- */

static void put(struct chat *c, const char *s, size_t n, bool marker)
{
    struct mdl_chat_prompt *p = c->out;
    struct mdl_chat_segment *last = p->n_seg ? &p->seg[p->n_seg - 1] : NULL;
    if (c->rc || n == 0)
        return;
    size_t off = p->text.n;
    c->rc = mdl_text_add(&p->text, s, n);
    if (!c->rc && last && !last->marker && !marker) {
        last->len += n;
        return;
    }
    if (!c->rc && p->n_seg == p->cap_seg) {
        size_t cap = p->cap_seg ? p->cap_seg * 2 : 16;
        struct mdl_chat_segment *seg = realloc(p->seg, cap * sizeof *seg);
        if (seg) {
            p->seg = seg;
            p->cap_seg = cap;
        } else {
            c->rc = -ENOMEM;
        }
    }
    if (!c->rc)
        p->seg[p->n_seg++] = (struct mdl_chat_segment){off, n, marker};
}

static void put_text(struct chat *c, const char *s)
{
    put(c, s, strlen(s), false);
}

static void put_marker(struct chat *c, const char *name)
{
    put(c, name, strlen(name), true);
}

static void put_json(struct chat *c, const json_t *v)
{
    struct mdl_text t = {0};
    if (!c->rc)
        c->rc = mdl_json_write(v, &t);
    if (!c->rc)
        put(c, t.s, t.n, false);
    mdl_text_free(&t);
}

/* "<" or "</", the DSML token, a space and the rest of the tag. */
static void put_tag(struct chat *c, const char *open, const char *rest)
{
    put_text(c, open);
    put_marker(c, MDL_CHAT_DSML);
    put_text(c, " ");
    put_text(c, rest);
}

static void put_schemas(struct chat *c, const struct turn *t)
{
    bool first = true;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < json_array_size(t->tools[k]); i++) {
            put_text(c, first ? "" : "\n");
            put_json(c, json_object_get(json_array_get(t->tools[k], i), "function"));
            first = false;
        }
}

static void put_tools(struct chat *c, const struct turn *t)
{
    const char *s = c->opt->tool_text ? c->opt->tool_text : mdl_chat_tool_text;
    put_text(c, "\n\n");
    while (*s) {
        const char *dsml = strstr(s, MDL_CHAT_DSML), *tools = strstr(s, "{tools}");
        const char *at = dsml && (!tools || dsml < tools) ? dsml : tools;
        put(c, s, at ? (size_t)(at - s) : strlen(s), false);
        if (!at)
            break;
        if (at == dsml) {
            put_marker(c, MDL_CHAT_DSML);
            s = at + strlen(MDL_CHAT_DSML);
        } else {
            put_schemas(c, t);
            s = at + strlen("{tools}");
        }
    }
}

static void put_system(struct chat *c, const struct turn *t)
{
    put(c, t->text.s, t->text.n, false);
    if (t->tools[0] || t->tools[1])
        put_tools(c, t);
    for (int k = 0; k < 2; k++)
        if (t->schema[k]) {
            put_text(c, "\n\n");
            put_text(c, format_text);
            put_json(c, t->schema[k]);
        }
}

static int put_call(struct chat *c, const struct turn *t, size_t k)
{
    const json_t *f = json_object_get(json_array_get(t->calls, k), "function");
    const json_t *given = present(f, "arguments");
    json_error_t je = {.text = "not an object"};
    json_t *args = NULL, *v;
    if (!given || (json_is_string(given) && json_string_length(given) == 0))
        args = json_object();
    else if (json_is_string(given))
        args = json_loadb(json_string_value(given), json_string_length(given), JSON_REJECT_DUPLICATES | JSON_DECODE_ANY,
                          &je);
    else
        args = json_incref((json_t *)given);
    if (!json_is_object(args)) {
        json_decref(args);
        return cfg_error_set(c->err, EINVAL,
                             "messages[%zu].tool_calls[%zu].function.arguments must be a JSON object, or a string "
                             "that holds one (%s)",
                             t->message, k, je.text);
    }
    put_tag(c, "<", "invoke name=\"");
    put_text(c, json_string_value(json_object_get(f, "name")));
    put_text(c, "\">\n");
    const char *key;
    int rc = 0;
    json_object_foreach (args, key, v) {
        if (strpbrk(key, "\"<>\n")) {
            rc = cfg_error_set(c->err, EINVAL,
                               "messages[%zu].tool_calls[%zu].function.arguments: the name %s has a quote, an angle "
                               "bracket or a line end",
                               t->message, k, key);
            break;
        }
        put_tag(c, "<", "parameter name=\"");
        put_text(c, key);
        put_text(c, json_is_string(v) ? "\" string=\"true\">" : "\" string=\"false\">");
        if (json_is_string(v))
            put(c, json_string_value(v), json_string_length(v), false);
        else
            put_json(c, v);
        put_tag(c, "</", "parameter>\n");
    }
    json_decref(args);
    put_tag(c, "</", "invoke>\n");
    return rc;
}

static int put_assistant(struct chat *c, const struct turn *t, bool keep)
{
    put_marker(c, MDL_CHAT_ASSISTANT);
    put_marker(c, keep ? MDL_CHAT_THINK : MDL_CHAT_END_THINK);
    if (keep) {
        put(c, json_string_value(t->reasoning), json_string_length(t->reasoning), false);
        if (t->prefix && t->text.n == 0) /* go on thinking */
            return 0;
        put_marker(c, MDL_CHAT_END_THINK);
    }
    put(c, t->text.s, t->text.n, false);
    if (t->prefix) {
        c->out->thinking = false;
        return 0;
    }
    if (t->calls) {
        put_text(c, "\n\n");
        put_tag(c, "<", "calls>\n");
        for (size_t k = 0; k < json_array_size(t->calls); k++) {
            int rc = put_call(c, t, k);
            if (rc)
                return rc;
        }
        put_tag(c, "</", "calls>");
    }
    put_marker(c, MDL_CHAT_EOS);
    return 0;
}

static int put_turns(struct chat *c)
{
    struct mdl_chat_prompt *p = c->out;
    bool thinking = p->thinking, any_tools = false;
    size_t last_user = 0;
    char effort[128];
    for (size_t i = 0; i < c->n_turns; i++) {
        const struct turn *t = &c->turn[i];
        any_tools |= t->tools[0] || t->tools[1];
        if (t->kind == TURN_USER || (t->kind == TURN_SYSTEM && i > 0))
            last_user = i;
    }
    put_marker(c, MDL_CHAT_BOS);
    if (thinking || c->turn[0].kind == TURN_SYSTEM)
        put_marker(c, MDL_CHAT_SYSTEM);
    snprintf(effort, sizeof effort,
             "Reasoning Effort: %d (range 1-100, the higher the value, the more thorough the "
             "reasoning)\n\n",
             p->effort);
    if (thinking)
        put_text(c, effort);
    for (size_t i = 0; i < c->n_turns; i++) {
        const struct turn *t = &c->turn[i];
        if (t->kind == TURN_ASSISTANT) {
            int rc = put_assistant(c, t, thinking && (any_tools || i >= last_user));
            if (rc)
                return rc;
            continue;
        }
        if (t->kind == TURN_USER || i > 0)
            put_marker(c, t->kind == TURN_USER ? MDL_CHAT_USER : MDL_CHAT_SYSTEM);
        if (t->kind == TURN_USER)
            put(c, t->text.s, t->text.n, false);
        else
            put_system(c, t);
    }
    const struct turn *last = last_turn(c);
    p->open_text = last->prefix;
    if (last->kind != TURN_ASSISTANT) {
        put_marker(c, MDL_CHAT_ASSISTANT);
        put_marker(c, thinking ? MDL_CHAT_THINK : MDL_CHAT_END_THINK);
    }
    return c->rc ? nomem(c) : 0;
}

int mdl_chat_render(const json_t *request, const struct mdl_chat_options *options, struct mdl_chat_prompt *out,
                    struct cfg_error *err)
{
    static const struct mdl_chat_options none;
    struct chat c = {.request = request, .opt = options ? options : &none, .out = out, .err = err};
    c.messages = json_is_array(request) ? request : json_object_get(request, "messages");
    size_t n = json_array_size(c.messages);
    if (n == 0)
        return cfg_error_set(err, EINVAL, "messages must be a list of one or more messages");
    c.turn = calloc(n + 1, sizeof *c.turn);
    if (!c.turn)
        return nomem(&c);
    int rc = read_mode(&c);
    if (!rc)
        rc = read_messages(&c);
    if (!rc)
        rc = attach_request(&c);
    if (!rc)
        rc = put_turns(&c);
    for (size_t i = 0; i < c.n_turns; i++)
        mdl_text_free(&c.turn[i].text);
    free(c.turn);
    return rc;
}

void mdl_chat_prompt_free(struct mdl_chat_prompt *p)
{
    mdl_text_free(&p->text);
    free(p->seg);
    *p = (struct mdl_chat_prompt){0};
}

static int marker_id(const struct mdl_tokenizer *tok, const char *name, size_t n, int32_t *id, struct cfg_error *err)
{
    *id = mdl_tokenizer_id(tok, name, n);
    if (*id < 0 || !mdl_tokenizer_is_added(tok, *id))
        return cfg_error_set(err, EINVAL,
                             "the tokenizer has no added token %.*s, which the chat form needs; this model was made "
                             "for another prompt form",
                             (int)n, name);
    if (mdl_tokenizer_is_typable(tok, *id))
        return cfg_error_set(err, EINVAL,
                             "the tokenizer's token %.*s can be built from plain text, so messages could forge it; "
                             "the chat form refuses such a tokenizer",
                             (int)n, name);
    return 0;
}

int mdl_chat_encode(const struct mdl_tokenizer *tok, struct mdl_tok_encoder *enc, const struct mdl_chat_prompt *p,
                    struct mdl_ids *out, struct cfg_error *err)
{
    size_t before = out->n;
    int rc = 0;
    for (size_t i = 0; i < p->n_seg && !rc; i++) {
        const struct mdl_chat_segment *s = &p->seg[i];
        int32_t id = -1;
        if (!s->marker)
            rc = mdl_tok_encode(enc, p->text.s + s->off, s->len, 0, out, err);
        else
            rc = marker_id(tok, p->text.s + s->off, s->len, &id, err);
        if (!rc && s->marker && mdl_ids_add(out, id))
            rc = cfg_error_set(err, ENOMEM, "out of memory while encoding a prompt");
    }
    if (rc)
        out->n = before;
    return rc;
}

int mdl_chat_check(const struct mdl_tokenizer *tok, bool with_tools, struct cfg_error *err)
{
    static const char *const names[] = {
        MDL_CHAT_BOS,       MDL_CHAT_EOS,   MDL_CHAT_SYSTEM,    MDL_CHAT_USER,
        MDL_CHAT_ASSISTANT, MDL_CHAT_THINK, MDL_CHAT_END_THINK, MDL_CHAT_DSML,
    };
    size_t n = sizeof names / sizeof *names - !with_tools;
    int rc = 0;
    int32_t id;
    for (size_t i = 0; i < n && !rc; i++)
        rc = marker_id(tok, names[i], strlen(names[i]), &id, err);
    return rc;
}
