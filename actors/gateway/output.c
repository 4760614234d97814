/* Sections and stop strings. Each byte passes: UTF-8 decoder, tag recognition, then the current element: a section's
 * text (newline rules, stop strings) or a call (tool_calls.c). Events of one kind are joined per push. */
#include "actors/gateway/output.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/gateway/output_impl.h"

static const char end_think[] = "</think>";

/* ---- events ---- */

void gw_out_flush(struct gw_output *o)
{
    if (o->text.n) {
        struct gw_event ev = {o->kind, o->index, o->text.p, o->text.n};
        o->opt.on_event(o->opt.ctx, &ev);
    }
    o->text.n = 0;
}

void gw_out_emit(struct gw_output *o, enum gw_event_kind kind, const char *s, size_t n)
{
    int index = kind == GW_EV_CALL_ARGS ? o->calls - 1 : 0;
    if (kind == GW_EV_CALL_ARGS)
        gw_call_announce(o);
    if (kind != o->kind || index != o->index)
        gw_out_flush(o);
    o->kind = kind;
    o->index = index;
    gw_bytes_add(&o->text, s, n);
}

/* ---- a section's text ---- */

static void emit_newlines(struct gw_output *o, enum gw_event_kind kind)
{
    for (; o->newlines; o->newlines--)
        gw_out_emit(o, kind, "\n", 1);
}

/* Behind the stop strings: newlines wait for something that follows them. */
static void visible(struct gw_output *o, const char *s, size_t n)
{
    enum gw_event_kind kind = o->reasoning ? GW_EV_REASONING : GW_EV_TEXT;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\n' && !o->opt.raw) {
            o->newlines++;
            continue;
        }
        emit_newlines(o, kind);
        gw_out_emit(o, kind, s + i, 1);
    }
}

static void release_held(struct gw_output *o, size_t n)
{
    visible(o, o->held, n);
    o->n_held -= n;
    memmove(o->held, o->held + n, o->n_held);
}

static size_t stop_step(struct gw_stop_match *m, char c)
{
    while (m->at && (m->at == m->len || m->text[m->at] != c))
        m->at = m->fail[m->at - 1];
    if (m->text[m->at] == c)
        m->at++;
    return m->at;
}

static void answer_byte(struct gw_output *o, char c)
{
    size_t keep = 0, longest = 0;
    int found = -1;
    if (o->opt.n_stop == 0) {
        visible(o, &c, 1);
        return;
    }
    o->held[o->n_held++] = c;
    for (int i = 0; i < o->opt.n_stop; i++) {
        size_t at = stop_step(&o->stop[i], c);
        if (at > keep)
            keep = at;
        if (at == o->stop[i].len && at > longest) {
            longest = at;
            found = i;
        }
    }
    if (found < 0) {
        release_held(o, o->n_held - keep);
        return;
    }
    release_held(o, o->n_held - longest);
    emit_newlines(o, GW_EV_TEXT);
    o->n_held = 0;
    o->stopped = found;
}

void gw_out_section_text(struct gw_output *o, const char *s, size_t n)
{
    for (size_t i = 0; i < n && o->stopped < 0; i++) {
        if (o->at_start && s[i] == '\n')
            continue;
        o->at_start = false;
        if (o->reasoning)
            visible(o, s + i, 1);
        else
            answer_byte(o, s[i]);
    }
}

void gw_out_answer(struct gw_output *o)
{
    release_held(o, o->n_held);
    for (int i = 0; i < o->opt.n_stop; i++)
        o->stop[i].at = 0;
    o->newlines = 0;
    o->reasoning = false;
    o->at_start = true;
}

/* ---- bytes ---- */

static void plain(struct gw_output *o, char c)
{
    if (o->state == GW_OUT_CALL || o->state == GW_OUT_VALUE)
        gw_call_byte(o, c);
    else if (o->state == GW_OUT_TEXT && !gw_between_byte(o, c))
        gw_out_section_text(o, &c, 1);
}

static void plain_tag(struct gw_output *o)
{
    size_t n = o->tag_len;
    char copy[GW_TAG_MAX];
    memcpy(copy, o->tag, n);
    o->tag_len = 0;
    for (size_t i = 0; i < n; i++)
        plain(o, copy[i]);
}

static bool viable(const struct gw_output *o)
{
    size_t n = o->tag_len;
    if (o->state == GW_OUT_TEXT && n < sizeof end_think && memcmp(o->tag, end_think, n) == 0)
        return true;
    return o->opt.tools && gw_tag_viable(o->tag, n);
}

static void complete_tag(struct gw_output *o)
{
    size_t n = o->tag_len;
    if (o->state == GW_OUT_TEXT && n == strlen(end_think) && memcmp(o->tag, end_think, n) == 0) {
        o->tag_len = 0;
        gw_calls_end(o); /* a wrapper without a call belongs to this section */
        if (o->reasoning)
            gw_out_answer(o);
    } else if (o->opt.tools && gw_tag_take(o, o->tag, n)) {
        o->tag_len = 0;
    } else {
        plain_tag(o);
    }
}

static void take_byte(struct gw_output *o, char c)
{
    if (o->stopped >= 0 || o->state == GW_OUT_DONE)
        return;
    if (o->opt.raw) {
        gw_out_section_text(o, &c, 1);
        return;
    }
    if (o->tag_len) {
        o->tag[o->tag_len++] = c;
        if (!viable(o)) {
            o->tag_len--;
            plain_tag(o); /* it has no other '<' than its first byte, so nothing else can begin inside */
        } else if (c == '>') {
            complete_tag(o);
            return;
        } else {
            return;
        }
        if (o->stopped >= 0)
            return;
    }
    if (c == '<')
        o->tag[o->tag_len++] = c;
    else
        plain(o, c);
}

static int take_chars(struct gw_output *o)
{
    for (size_t i = 0; i < o->chars.n; i++)
        take_byte(o, o->chars.s[i]);
    o->chars.n = 0;
    gw_out_flush(o);
    return o->text.failed || o->opener.failed || o->loose.failed || o->name.failed || o->value.failed ? -ENOMEM : 0;
}

int gw_output_push(struct gw_output *o, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (mdl_utf8_push(&o->utf8, (uint8_t)text[i], &o->chars))
            return -ENOMEM;
    return take_chars(o);
}

/* What may be a tag when the text ends. */
static void end_tag(struct gw_output *o)
{
    bool markup = gw_tag_is_markup(o->tag, o->tag_len) && (o->calls || o->state != GW_OUT_TEXT);
    if (o->tag_len && !markup && o->state != GW_OUT_CALL)
        plain_tag(o);
    o->tag_len = 0;
    gw_calls_end(o);
}

/* The same when more would have come: markup that says nothing yet goes, with the newlines before it. */
static void cut_tag(struct gw_output *o)
{
    bool tag = o->tag_len && o->opt.tools && gw_tag_viable(o->tag, o->tag_len);
    bool markup = tag || o->in_block || o->calls || o->state != GW_OUT_TEXT || (o->reasoning && o->tag_len > 1);
    if (o->tag_len && !markup)
        plain_tag(o);
    o->tag_len = 0;
    gw_calls_cut(o);
    if (markup) {
        release_held(o, o->n_held);
        o->newlines = 0;
    }
}

int gw_output_end(struct gw_output *o, bool cut)
{
    if (!cut && mdl_utf8_end(&o->utf8, &o->chars))
        return -ENOMEM;
    int rc = take_chars(o);
    if (rc || o->stopped >= 0 || o->state == GW_OUT_DONE)
        return rc;
    if (cut)
        cut_tag(o);
    else
        end_tag(o);
    if (o->stopped < 0) {
        release_held(o, o->n_held);
        emit_newlines(o, o->reasoning ? GW_EV_REASONING : GW_EV_TEXT);
    }
    o->state = GW_OUT_DONE;
    return take_chars(o);
}

/* ---- life ---- */

static bool stop_init(struct gw_stop_match *m, const char *text, size_t len)
{
    m->fail = calloc(len, sizeof *m->fail);
    if (!m->fail)
        return false;
    m->text = text;
    m->len = len;
    for (size_t i = 1, k = 0; i < len; i++) {
        while (k && text[i] != text[k])
            k = m->fail[k - 1];
        if (text[i] == text[k])
            k++;
        m->fail[i] = k;
    }
    return true;
}

struct gw_output *gw_output_new(const struct gw_output_options *options)
{
    struct gw_output *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    o->opt = *options;
    o->opt.tools &= !o->opt.raw;
    o->reasoning = options->thinking && !options->raw;
    o->at_start = !options->raw && !options->open_text;
    o->stopped = -1;
    o->kind = GW_EV_TEXT;
    o->opt.n_stop = 0;
    for (int i = 0; i < options->n_stop && i < GW_MAX_STOPS; i++) {
        size_t len = options->stop_len[i];
        if (len == 0 || len > GW_MAX_STOP_BYTES)
            continue;
        if (!stop_init(&o->stop[o->opt.n_stop++], options->stop[i], len)) {
            gw_output_free(o);
            return NULL;
        }
    }
    return o;
}

void gw_output_free(struct gw_output *o)
{
    if (!o)
        return;
    for (int i = 0; i < GW_MAX_STOPS; i++)
        free(o->stop[i].fail);
    mdl_text_free(&o->chars);
    gw_bytes_free(&o->text);
    gw_calls_free(o);
    free(o);
}

bool gw_output_stopped(const struct gw_output *o)
{
    return o->stopped >= 0;
}

const char *gw_output_stop(const struct gw_output *o)
{
    return o->stopped >= 0 ? o->stop[o->stopped].text : NULL;
}

bool gw_output_done(const struct gw_output *o)
{
    return o->state == GW_OUT_DONE;
}

int gw_output_calls(const struct gw_output *o)
{
    return o->calls;
}

int gw_output_repaired(const struct gw_output *o)
{
    return o->repaired;
}

bool gw_output_in_reasoning(const struct gw_output *o)
{
    return o->reasoning && o->state == GW_OUT_TEXT;
}
