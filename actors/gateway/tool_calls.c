/* Tool markup: the tags and what stands between them. A tag is recognised by output.c when its '>' arrives; here it
 * moves the machine between text, call and value (tool_values.c).
 *
 *   <DSML calls> <DSML invoke name="F"> <DSML parameter name="K" string="true|false">V</DSML parameter>
 *   </DSML invoke> </DSML calls>
 *
 * where DSML is the token, with or without a space behind it. */
#include <string.h>

#include "actors/gateway/json_scan.h"
#include "actors/gateway/output_impl.h"
#include "actors/gateway/tool_schema.h"
#include "model/chat.h"

static const char open_mark[] = "<" MDL_CHAT_DSML, close_mark[] = "</" MDL_CHAT_DSML;

enum element { WRAPPER, INVOKE, PARAMETER };

struct tag {
    enum element element;
    bool close, empty; /* </...>, <.../> */
    bool has_name, has_string, string;
    char name[GW_NAME_MAX];
};

/* ---- tags ---- */

static bool begins(const char *s, size_t n, const char *what, size_t len)
{
    return memcmp(s, what, n < len ? n : len) == 0;
}

bool gw_tag_viable(const char *tag, size_t n)
{
    size_t len = n > 1 && tag[1] == '/' ? sizeof close_mark - 1 : sizeof open_mark - 1;
    if (!begins(tag, n, len == sizeof open_mark - 1 ? open_mark : close_mark, len))
        return false;
    if (n <= len)
        return true;
    unsigned char c = (unsigned char)tag[n - 1];
    return n < GW_TAG_MAX && c != '<' && c >= 0x20;
}

bool gw_tag_is_markup(const char *tag, size_t n)
{
    return (n >= sizeof open_mark - 1 && begins(tag, n, open_mark, sizeof open_mark - 1)) ||
           (n >= sizeof close_mark - 1 && begins(tag, n, close_mark, sizeof close_mark - 1));
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static void skip_spaces(const char **p)
{
    while (**p == ' ')
        ++*p;
}

static bool take_word(const char **p, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(*p, word, n) != 0 || !strchr(" >/", (*p)[n]))
        return false;
    *p += n;
    return true;
}

static bool take_element(const char **p, enum element *e)
{
    static const struct {
        const char *word;
        enum element element;
    } words[] = {
        {"calls", WRAPPER}, {"tool_calls", WRAPPER},  {"function_calls", WRAPPER},
        {"invoke", INVOKE}, {"parameter", PARAMETER},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (take_word(p, words[i].word)) {
            *e = words[i].element;
            return true;
        }
    return false;
}

/* key="value"; other keys than the known ones are passed over. */
static bool take_attribute(const char **p, struct tag *t)
{
    const char *key = *p, *eq = strchr(key, '='), *end;
    if (!eq || eq == key || eq[1] != '"' || !(end = strchr(eq + 2, '"')))
        return false;
    size_t n = (size_t)(eq - key), len = (size_t)(end - eq - 2);
    if (n == 4 && memcmp(key, "name", 4) == 0) {
        if (len == 0 || len >= sizeof t->name)
            return false;
        memcpy(t->name, eq + 2, len);
        t->name[len] = 0;
        t->has_name = true;
    } else if (n == 6 && memcmp(key, "string", 6) == 0) {
        t->has_string = true;
        t->string = !(len == 5 && memcmp(eq + 2, "false", 5) == 0);
    }
    *p = end + 1;
    return true;
}

static bool parse_tag(const char *text, size_t n, struct tag *t)
{
    char copy[GW_TAG_MAX + 1];
    memcpy(copy, text, n);
    copy[n] = 0;
    memset(t, 0, sizeof *t);
    t->close = copy[1] == '/';
    const char *p = copy + (t->close ? sizeof close_mark : sizeof open_mark) - 1;
    skip_spaces(&p);
    if (!take_element(&p, &t->element))
        return false;
    skip_spaces(&p);
    while (!t->close && *p && *p != '>' && *p != '/') {
        if (!take_attribute(&p, t))
            return false;
        skip_spaces(&p);
    }
    if (!t->close && *p == '/') {
        t->empty = true;
        p++;
    }
    if (p[0] != '>' || p[1])
        return false;
    return t->close || t->element == WRAPPER || t->has_name;
}

/* ---- calls ---- */

static void begin_call(struct gw_output *o, const char *name)
{
    gw_out_answer(o);
    gw_out_flush(o);
    o->opener.n = 0;
    o->call_repaired = !o->in_block;
    o->has_args = false;
    o->loose.n = 0;
    o->schema = gw_tool_schema(o->opt.declared, name);
    o->name.n = 0;
    gw_bytes_add(&o->name, name, strlen(name));
    o->calls++;
    o->state = GW_OUT_CALL;
}

void gw_call_announce(struct gw_output *o)
{
    struct gw_event ev = {GW_EV_CALL_BEGIN, o->calls - 1, o->name.p, o->name.n};
    if (!o->name.n)
        return;
    gw_out_flush(o);
    o->opt.on_event(o->opt.ctx, &ev);
    o->name.n = 0;
}

/* Text inside the call that is in no parameter: the arguments as one JSON object, or text to give back. */
static json_t *loose_arguments(const struct gw_output *o)
{
    json_error_t je;
    if (o->has_args || o->loose.n == 0)
        return NULL;
    json_t *v = gw_json_load(o->loose.p, o->loose.n, JSON_ALLOW_NUL, &je);
    if (json_is_object(v))
        return v;
    json_decref(v);
    return NULL;
}

static void trim_loose(struct gw_output *o)
{
    while (o->loose.n && is_space(o->loose.p[o->loose.n - 1]))
        o->loose.n--;
}

static void end_call(struct gw_output *o, bool implied)
{
    trim_loose(o);
    json_t *object = loose_arguments(o);
    bool give_back = o->loose.n && !object;
    o->call_repaired |= o->loose.n > 0;
    if (object)
        gw_value_object(o, object, o->loose.p, o->loose.n);
    else
        gw_args(o, o->has_args ? "}" : "{}", o->has_args ? 1 : 2);
    json_decref(object);
    gw_out_flush(o);
    struct gw_event ev = {GW_EV_CALL_END, o->calls - 1, "", 0};
    o->opt.on_event(o->opt.ctx, &ev);
    o->call_repaired |= implied;
    o->repaired += o->call_repaired;
    o->state = GW_OUT_TEXT;
    o->at_start = true;
    o->skip_space = true;
    if (give_back)
        gw_out_emit(o, GW_EV_TEXT, o->loose.p, o->loose.n);
    o->loose.n = 0;
    if (o->opt.max_calls && o->calls >= o->opt.max_calls)
        o->state = GW_OUT_DONE;
}

/* The call stays open: its arguments are what has come of them. */
static void cut_call(struct gw_output *o)
{
    trim_loose(o);
    json_t *object = loose_arguments(o);
    bool part = !o->has_args && o->loose.n && o->loose.p[0] == '{';
    if (object)
        gw_value_object(o, object, o->loose.p, o->loose.n);
    else if (part)
        gw_args(o, o->loose.p, o->loose.n);
    json_decref(object);
    gw_out_flush(o);
    struct gw_event ev = {GW_EV_CALL_CUT, o->calls - 1, "", 0};
    if (o->name.n)
        o->calls--;
    else
        o->opt.on_event(o->opt.ctx, &ev);
    o->name.n = 0;
    if (o->loose.n && !part)
        gw_out_emit(o, GW_EV_TEXT, o->loose.p, o->loose.n);
    o->loose.n = 0;
    o->state = GW_OUT_TEXT;
}

/* ---- the machine ---- */

static void close_open(struct gw_output *o)
{
    if (o->state == GW_OUT_VALUE)
        gw_value_end(o, true);
    if (o->state == GW_OUT_CALL)
        end_call(o, true);
}

static void give_back_opener(struct gw_output *o)
{
    struct gw_bytes text = o->opener;
    o->opener = (struct gw_bytes){0};
    o->in_block = false;
    o->skip_space = false;
    gw_out_section_text(o, text.p, text.n);
    gw_bytes_free(&text);
}

/* The text before it stays as it is, stop strings half seen included, until it is known that a call follows. */
static void open_wrapper(struct gw_output *o, const char *tag, size_t n)
{
    close_open(o);
    if (o->state != GW_OUT_TEXT)
        return;
    if (!o->calls)
        gw_bytes_add(&o->opener, tag, n);
    o->in_block = true;
    o->skip_space = true;
}

static bool take_open(struct gw_output *o, const struct tag *t, const char *text, size_t n)
{
    if (t->element == WRAPPER) {
        open_wrapper(o, text, n);
        return true;
    }
    if (t->element == PARAMETER) {
        if (o->state == GW_OUT_TEXT)
            return false;
        if (o->state == GW_OUT_VALUE)
            gw_value_end(o, true);
        gw_value_begin(o, t->name, t->has_string, t->string);
        if (t->empty)
            gw_value_end(o, false);
        return true;
    }
    close_open(o);
    if (o->state != GW_OUT_TEXT)
        return true;
    begin_call(o, t->name);
    if (t->empty)
        end_call(o, false);
    return true;
}

static bool take_close(struct gw_output *o, const struct tag *t)
{
    if (o->state == GW_OUT_TEXT) {
        if (o->calls == 0 && !o->in_block)
            return false;
        if (o->calls && t->element == WRAPPER) {
            o->state = GW_OUT_DONE;
            return true;
        }
        return o->calls > 0; /* one closing tag too many; in a block without a call it is given back with the opener */
    }
    if (t->element == PARAMETER) {
        if (o->state == GW_OUT_VALUE)
            gw_value_end(o, false);
        else
            o->call_repaired = true;
        return true;
    }
    if (o->state == GW_OUT_VALUE)
        gw_value_end(o, true);
    end_call(o, t->element == WRAPPER);
    if (t->element == WRAPPER)
        o->state = GW_OUT_DONE;
    return true;
}

bool gw_tag_take(struct gw_output *o, const char *tag, size_t n)
{
    struct tag t;
    if (!gw_tag_is_markup(tag, n) || !parse_tag(tag, n, &t))
        return false;
    return t.close ? take_close(o, &t) : take_open(o, &t, tag, n);
}

void gw_call_byte(struct gw_output *o, char c)
{
    if (o->state == GW_OUT_CALL) {
        if (o->loose.n || !is_space(c))
            gw_bytes_add(&o->loose, &c, 1);
        return;
    }
    if (o->value_newline)
        gw_value_byte(o, '\n');
    o->value_newline = c == '\n';
    if (c != '\n')
        gw_value_byte(o, c);
}

bool gw_between_byte(struct gw_output *o, char c)
{
    if (!o->skip_space)
        return false;
    bool pending = o->in_block && !o->calls;
    if (is_space(c) && (!pending || o->opener.n < GW_BLOCK_SPACE + GW_TAG_MAX)) {
        if (pending)
            gw_bytes_add(&o->opener, &c, 1);
        return true;
    }
    if (pending)
        give_back_opener(o);
    o->skip_space = false;
    return false;
}

void gw_calls_end(struct gw_output *o)
{
    close_open(o);
    if (o->in_block && !o->calls)
        give_back_opener(o);
}

void gw_calls_cut(struct gw_output *o)
{
    if (o->state == GW_OUT_VALUE)
        gw_value_cut(o);
    if (o->state == GW_OUT_CALL)
        cut_call(o);
    o->opener.n = 0;
}

void gw_calls_free(struct gw_output *o)
{
    gw_bytes_free(&o->opener);
    gw_bytes_free(&o->loose);
    gw_bytes_free(&o->name);
    gw_bytes_free(&o->value);
}
