/* The value of one parameter of a call: a string that flows, raw JSON that is checked first, or a wrapper around all
 * arguments that is taken off. */
#include <string.h>

#include "actors/gateway/output_impl.h"
#include "actors/gateway/tool_schema.h"

void gw_args(struct gw_output *o, const char *s, size_t n)
{
    gw_out_emit(o, GW_EV_CALL_ARGS, s, n);
}

static void escaped(struct gw_output *o, const char *s, size_t n)
{
    gw_out_emit(o, GW_EV_CALL_ARGS, "", 0);
    gw_bytes_json_inner(&o->text, s, n);
}

/* A character's bytes come one after the other within one push, so the pieces of its escape need no decoder. */
static void string_byte(struct gw_output *o, char c)
{
    if ((unsigned char)c < 0x80)
        escaped(o, &c, 1);
    else
        gw_args(o, &c, 1);
}

/* ---- raw JSON ---- */

/* A short value is held back until it is known to be JSON. A long one flows; when it then turns out to be broken, it is
 * closed where it broke and the rest is loose text. */
static void raw_byte(struct gw_output *o, char c)
{
    if (!o->value_bad && !gw_json_check_byte(&o->json, c))
        o->value_bad = true;
    if (o->value_flows) {
        if (o->value_bad)
            gw_bytes_add(&o->loose, &c, 1);
        else
            gw_args(o, &c, 1);
        return;
    }
    gw_bytes_add(&o->value, &c, 1);
    if (!o->value_bad && o->value.n >= GW_VALUE_HELD) {
        gw_args(o, o->value.p, o->value.n);
        o->value_flows = true;
    }
}

static void end_raw(struct gw_output *o)
{
    bool whole = !o->value_bad && gw_json_check_done(&o->json);
    o->call_repaired |= !whole;
    if (o->value_flows && !whole) {
        gw_args(o, "", 0);
        gw_json_check_close(&o->json, &o->text);
    } else if (!o->value_flows && whole) {
        gw_args(o, o->value.p, o->value.n);
    } else if (!o->value_flows) {
        gw_args(o, "\"", 1);
        escaped(o, o->value.p ? o->value.p : "", o->value.n);
        gw_args(o, "\"", 1);
    }
}

/* ---- an argument ---- */

static void open_argument(struct gw_output *o)
{
    gw_args(o, o->has_args ? ", \"" : "{\"", o->has_args ? 3 : 2);
    escaped(o, o->key, strlen(o->key));
    gw_args(o, "\": ", 3);
    o->has_args = true;
    o->wrapper = GW_WRAPPER_NONE;
    o->value.n = 0;
    o->value_flows = o->value_bad = false;
    o->json = (struct gw_json_check){0};
    if (o->string_value)
        gw_args(o, "\"", 1);
}

/* ---- a wrapper: its members become the arguments, its last brace stays open for further parameters ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* What stands between the braces of the n bytes of text; 0 when that is only space. */
static size_t inner(const char *text, size_t n, const char **out)
{
    const char *from = memchr(text, '{', n), *end = text + n;
    while (from && from < end && (*from == '{' || is_space(*from)))
        from++;
    while (end > text && is_space(end[-1]))
        end--;
    if (from && end > from && end[-1] == '}' && n)
        end--;
    while (from && end > from && is_space(end[-1]))
        end--;
    *out = from;
    return from && end > from ? (size_t)(end - from) : 0;
}

/* It is an argument like others. */
static void no_wrapper(struct gw_output *o)
{
    struct gw_bytes held = o->value;
    o->value = (struct gw_bytes){0};
    open_argument(o);
    for (size_t i = 0; i < held.n; i++)
        if (o->string_value)
            string_byte(o, held.p[i]);
        else
            raw_byte(o, held.p[i]);
    gw_bytes_free(&held);
}

static void open_wrapper(struct gw_output *o, const char *members, size_t n)
{
    gw_args(o, "{", 1);
    gw_args(o, members, n);
    o->has_args = o->call_repaired = true;
    o->wrapper = GW_WRAPPER_OPEN;
}

/* Whatever stands behind the brace of the object that is held back; nothing yet is possible. */
static void open_members(struct gw_output *o)
{
    const char *from = o->value.n ? memchr(o->value.p, '{', o->value.n) : NULL, *end = o->value.p + o->value.n;
    while (from && from + 1 < end && is_space(from[1]))
        from++;
    if (from && from + 1 < end)
        open_wrapper(o, from + 1, (size_t)(end - from - 1));
}

static void held_byte(struct gw_output *o, char c)
{
    bool object = o->json.depth || gw_json_check_done(&o->json) || c == '{' || is_space(c);
    gw_bytes_add(&o->value, &c, 1);
    if (!object || !gw_json_check_byte(&o->json, c)) {
        no_wrapper(o);
        return;
    }
    if (o->value.n >= GW_VALUE_HELD && !gw_json_check_done(&o->json))
        open_members(o);
}

static void wrapper_byte(struct gw_output *o, char c)
{
    if (o->wrapper == GW_WRAPPER_MAYBE) {
        held_byte(o, c);
        return;
    }
    o->value_bad |= !gw_json_check_byte(&o->json, c);
    if (o->value_bad)
        gw_bytes_add(&o->loose, &c, 1);
    else if (!gw_json_check_done(&o->json))
        gw_args(o, &c, 1);
}

static void end_wrapper(struct gw_output *o)
{
    if (o->wrapper == GW_WRAPPER_OPEN && !gw_json_check_done(&o->json)) {
        gw_args(o, "", 0);
        gw_json_check_close(&o->json, &o->text);
        o->text.n--; /* the brace of the wrapper itself */
    } else if (o->wrapper == GW_WRAPPER_MAYBE) {
        const char *members;
        size_t n = inner(o->value.p, o->value.n, &members);
        o->call_repaired = true;
        if (n)
            open_wrapper(o, members, n);
    }
    o->wrapper = GW_WRAPPER_NONE;
}

/* ---- for the calls ---- */

void gw_value_begin(struct gw_output *o, const char *name, bool has_string, bool string)
{
    snprintf(o->key, sizeof o->key, "%s", name);
    o->call_repaired |= !has_string;
    o->string_value = has_string ? string : !gw_schema_is_no_text(o->schema, name);
    o->value_newline = false;
    o->state = GW_OUT_VALUE;
    if (o->has_args || !gw_schema_is_wrapper(o->schema, name)) {
        open_argument(o);
        return;
    }
    o->wrapper = GW_WRAPPER_MAYBE;
    o->value.n = 0;
    o->value_bad = false;
    o->json = (struct gw_json_check){0};
}

void gw_value_byte(struct gw_output *o, char c)
{
    if (o->wrapper != GW_WRAPPER_NONE)
        wrapper_byte(o, c);
    else if (o->string_value)
        string_byte(o, c);
    else
        raw_byte(o, c);
}

void gw_value_end(struct gw_output *o, bool implied)
{
    if (o->value_newline && !implied)
        gw_value_byte(o, '\n');
    o->value_newline = false;
    o->call_repaired |= implied;
    o->state = GW_OUT_CALL;
    if (o->wrapper == GW_WRAPPER_MAYBE && !gw_json_check_done(&o->json))
        no_wrapper(o);
    if (o->wrapper != GW_WRAPPER_NONE)
        end_wrapper(o);
    else if (o->string_value)
        gw_args(o, "\"", 1);
    else
        end_raw(o);
}

/* A newline at its end may belong to its closing tag, so it does not count. */
void gw_value_cut(struct gw_output *o)
{
    o->value_newline = false;
    o->state = GW_OUT_CALL;
    if (o->wrapper == GW_WRAPPER_MAYBE) {
        if (gw_json_check_done(&o->json))
            end_wrapper(o);
        else
            open_members(o);
    } else if (o->wrapper == GW_WRAPPER_NONE && !o->string_value && !o->value_flows) {
        gw_args(o, "\"", o->value_bad);
        if (o->value_bad)
            escaped(o, o->value.p, o->value.n);
        else if (o->value.n)
            gw_args(o, o->value.p, o->value.n);
    }
    o->wrapper = GW_WRAPPER_NONE;
}

/* The n bytes at text are a JSON object in place of parameters. When it has a wrapper and nothing else, its members. */
void gw_value_object(struct gw_output *o, const json_t *object, const char *text, size_t n)
{
    const char *key = json_object_iter_key(json_object_iter((json_t *)object)), *members = memchr(text, '{', n);
    bool wrapped = json_object_size(object) == 1 && gw_schema_is_wrapper(o->schema, key) &&
                   json_is_object(json_object_get(object, key));
    if (wrapped) {
        members = memchr(members + 1, '{', n - (size_t)(members + 1 - text));
        while (text[n - 1] != '}')
            n--;
        n -= (size_t)(members - text) + 1;
        while (members[n - 1] != '}')
            n--;
    }
    gw_args(o, wrapped ? members : text, n);
}
