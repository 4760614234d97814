/* Responses: numbered events around output items, or one response object. */
#include <stdlib.h>
#include <string.h>

#include "actors/gateway/reply_impl.h"

/* ---- the response object ---- */

static void setting(struct gw_reply *r, const char *key, const char *otherwise)
{
    json_t *v = json_object_get(r->request->settings, key);
    char *text = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    if (v && !text)
        r->tail.failed = true;
    gw_bytes_printf(&r->tail, ",\"%s\":", key);
    gw_bytes_puts(&r->tail, text ? text : otherwise);
    free(text);
}

/* Everything that does not change while the response grows. */
static void fixed_parts(struct gw_reply *r)
{
    gw_bytes_puts(&r->head, "{\"id\":\"resp_");
    gw_bytes_json_inner(&r->head, r->id, strlen(r->id));
    gw_bytes_printf(&r->head, "\",\"object\":\"response\",\"created_at\":%lld,\"background\":false,\"model\":",
                    (long long)r->created);
    gw_bytes_add(&r->head, r->model.p, r->model.n);
    setting(r, "instructions", "null");
    setting(r, "max_output_tokens", "null");
    setting(r, "metadata", "{}");
    setting(r, "parallel_tool_calls", "true");
    setting(r, "reasoning", "{\"effort\":null,\"summary\":null}");
    setting(r, "temperature", "null");
    setting(r, "text", "{\"format\":{\"type\":\"text\"}}");
    setting(r, "tool_choice", "\"auto\"");
    setting(r, "tools", "[]");
    setting(r, "top_p", "null");
    setting(r, "user", "null");
    gw_bytes_printf(&r->tail,
                    ",\"previous_response_id\":null,\"store\":false,\"top_logprobs\":%d,"
                    "\"truncation\":\"disabled\"}",
                    r->request->top_logprobs);
}

static void usage_object(struct gw_bytes *b, const struct gw_usage *u)
{
    gw_bytes_printf(b,
                    "{\"input_tokens\":%d,\"input_tokens_details\":{\"cached_tokens\":%d},\"output_tokens\":%d,"
                    "\"output_tokens_details\":{\"reasoning_tokens\":%d},\"total_tokens\":%d",
                    u->prompt_tokens, u->cached_tokens, u->completion_tokens, u->reasoning_tokens,
                    u->prompt_tokens + u->completion_tokens);
    gw_usage_drafts(b, u);
    gw_bytes_puts(b, "}");
}

static void response(struct gw_reply *r, const char *status, const struct gw_error *err, const struct gw_usage *usage,
                     struct gw_bytes *b)
{
    gw_bytes_add(b, r->head.p, r->head.n);
    gw_bytes_printf(b, ",\"status\":\"%s\",\"error\":", status);
    if (err) {
        gw_bytes_puts(b, "{");
        gw_bytes_json_pair(b, false, "code", *err->code ? err->code : "server_error");
        gw_bytes_json_pair(b, true, "message", err->message);
        gw_bytes_puts(b, "}");
    } else {
        gw_bytes_puts(b, "null");
    }
    gw_bytes_puts(b, strcmp(status, "incomplete") == 0
                         ? ",\"incomplete_details\":{\"reason\":\"max_output_tokens\"},\"output\":["
                         : ",\"incomplete_details\":null,\"output\":[");
    gw_bytes_add(b, r->items.p, r->items.n);
    gw_bytes_puts(b, "],\"usage\":");
    if (usage)
        usage_object(b, usage);
    else
        gw_bytes_puts(b, "null");
    gw_bytes_add(b, r->tail.p, r->tail.n);
}

/* ---- frames ---- */

static void frame(struct gw_reply *r, const char *type, struct gw_bytes *out)
{
    gw_frame(out, type);
    gw_bytes_printf(out, "{\"type\":\"%s\",\"sequence_number\":%llu", type, (unsigned long long)r->sequence++);
}

static void frame_end(struct gw_bytes *out)
{
    gw_bytes_puts(out, "}");
    gw_frame_end(out);
}

static void response_frame(struct gw_reply *r, const char *type, const char *status, const struct gw_error *err,
                           const struct gw_usage *usage, struct gw_bytes *out)
{
    frame(r, type, out);
    gw_bytes_puts(out, ",\"response\":");
    response(r, status, err, usage, out);
    frame_end(out);
}

/* ---- items ---- */

static const char *prefix(enum gw_part part)
{
    return part == GW_PART_CALL ? "fc" : part == GW_PART_TEXT ? "msg" : "rs";
}

static void item_id(struct gw_reply *r, const char *kind, struct gw_bytes *b)
{
    gw_bytes_printf(b, "\"%s_", kind);
    gw_bytes_json_inner(b, r->id, strlen(r->id));
    gw_bytes_printf(b, "_%d\"", r->n_items);
}

static void where(struct gw_reply *r, bool content, struct gw_bytes *out)
{
    gw_bytes_puts(out, ",\"item_id\":");
    item_id(r, prefix(r->open), out);
    gw_bytes_printf(out, ",\"output_index\":%d%s", r->n_items, content ? ",\"content_index\":0" : "");
}

/* The content of a message or a reasoning item, its part object. */
static void part_object(struct gw_reply *r, bool whole, struct gw_bytes *b)
{
    size_t n = whole ? r->part.n : 0;
    if (r->open == GW_PART_REASONING) {
        gw_bytes_puts(b, "{\"type\":\"reasoning_text\"");
        gw_json_field(b, "text", r->part.p, n);
    } else {
        gw_bytes_puts(b, "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[");
        if (whole)
            gw_bytes_add(b, r->part_logprobs.p, r->part_logprobs.n);
        gw_bytes_puts(b, "]");
        gw_json_field(b, "text", r->part.p, n);
    }
    gw_bytes_puts(b, "}");
}

static void item_object(struct gw_reply *r, const char *status, struct gw_bytes *b)
{
    bool whole = strcmp(status, "in_progress") != 0;
    gw_bytes_puts(b, "{\"id\":");
    item_id(r, prefix(r->open), b);
    gw_bytes_printf(b, ",\"status\":\"%s\"", status);
    if (r->open == GW_PART_CALL) {
        gw_bytes_puts(b, ",\"type\":\"function_call\",\"call_id\":");
        item_id(r, "call", b);
        gw_json_field(b, "name", r->name.p, r->name.n);
        gw_json_field(b, "arguments", r->part.p, whole ? r->part.n : 0);
        gw_bytes_puts(b, "}");
        return;
    }
    gw_bytes_puts(b, r->open == GW_PART_TEXT ? ",\"type\":\"message\",\"role\":\"assistant\",\"content\":["
                                             : ",\"type\":\"reasoning\",\"summary\":[],\"content\":[");
    if (whole)
        part_object(r, true, b);
    gw_bytes_puts(b, "]}");
}

static void close_text(struct gw_reply *r, struct gw_bytes *out)
{
    bool text = r->open == GW_PART_TEXT;
    frame(r, text ? "response.output_text.done" : "response.reasoning_text.done", out);
    where(r, true, out);
    gw_json_field(out, "text", r->part.p, r->part.n);
    if (text) {
        gw_bytes_puts(out, ",\"logprobs\":[");
        gw_bytes_add(out, r->part_logprobs.p, r->part_logprobs.n);
        gw_bytes_puts(out, "]");
    }
    frame_end(out);
    frame(r, "response.content_part.done", out);
    where(r, true, out);
    gw_bytes_puts(out, ",\"part\":");
    part_object(r, true, out);
    frame_end(out);
}

static void take_logprobs(struct gw_reply *r)
{
    if (!r->logprobs.n)
        return;
    gw_comma(&r->part_logprobs);
    gw_bytes_add(&r->part_logprobs, r->logprobs.p, r->logprobs.n);
    r->logprobs.n = 0;
}

static void close_item(struct gw_reply *r, const char *status, struct gw_bytes *out)
{
    bool cut = strcmp(status, "incomplete") == 0;
    if (r->open == GW_PART_NONE)
        return;
    if (r->request->stream) {
        if (r->open == GW_PART_CALL && !cut) {
            frame(r, "response.function_call_arguments.done", out);
            where(r, false, out);
            gw_json_field(out, "name", r->name.p, r->name.n);
            gw_json_field(out, "arguments", r->part.p, r->part.n);
            frame_end(out);
        } else if (r->open != GW_PART_CALL) {
            close_text(r, out);
        }
        frame(r, "response.output_item.done", out);
        gw_bytes_printf(out, ",\"output_index\":%d,\"item\":", r->n_items);
        item_object(r, status, out);
        frame_end(out);
    }
    gw_comma(&r->items);
    item_object(r, status, &r->items);
    r->n_items++;
    r->open = GW_PART_NONE;
}

static void open_item(struct gw_reply *r, enum gw_part part, struct gw_bytes *out)
{
    close_item(r, "completed", out);
    r->open = part;
    r->part.n = r->part_logprobs.n = 0;
    if (!r->request->stream)
        return;
    frame(r, "response.output_item.added", out);
    gw_bytes_printf(out, ",\"output_index\":%d,\"item\":", r->n_items);
    item_object(r, "in_progress", out);
    frame_end(out);
    if (part == GW_PART_CALL)
        return;
    frame(r, "response.content_part.added", out);
    where(r, true, out);
    gw_bytes_puts(out, ",\"part\":");
    part_object(r, false, out);
    frame_end(out);
}

/* ---- the reply ---- */

static void begin(struct gw_reply *r, struct gw_bytes *out)
{
    fixed_parts(r);
    if (!r->request->stream)
        return;
    response_frame(r, "response.created", "in_progress", NULL, NULL, out);
    response_frame(r, "response.in_progress", "in_progress", NULL, NULL, out);
}

static void delta(struct gw_reply *r, const struct gw_event *ev, struct gw_bytes *out)
{
    static const char *const types[] = {
        [GW_PART_REASONING] = "response.reasoning_text.delta",
        [GW_PART_TEXT] = "response.output_text.delta",
        [GW_PART_CALL] = "response.function_call_arguments.delta",
    };
    gw_bytes_add(&r->part, ev->text, ev->len);
    if (r->request->stream) {
        frame(r, types[r->open], out);
        where(r, r->open != GW_PART_CALL, out);
        gw_json_field(out, "delta", ev->text, ev->len);
        if (r->open == GW_PART_TEXT) {
            gw_bytes_puts(out, ",\"logprobs\":[");
            gw_bytes_add(out, r->logprobs.p, r->logprobs.n);
            gw_bytes_puts(out, "]");
        }
        frame_end(out);
    }
    if (r->open == GW_PART_TEXT)
        take_logprobs(r);
}

static void event(struct gw_reply *r, const struct gw_event *ev, struct gw_bytes *out)
{
    enum gw_part part = ev->kind == GW_EV_REASONING ? GW_PART_REASONING
                        : ev->kind == GW_EV_TEXT    ? GW_PART_TEXT
                                                    : GW_PART_CALL;
    if (part != GW_PART_TEXT)
        r->logprobs.n = 0; /* the protocol has a place for those of the answer only */
    if (ev->kind == GW_EV_CALL_BEGIN) {
        r->n_calls++;
        close_item(r, "completed", out);
        r->name.n = 0;
        gw_bytes_add(&r->name, ev->text, ev->len);
        open_item(r, part, out);
    } else if (ev->kind == GW_EV_CALL_END || ev->kind == GW_EV_CALL_CUT) {
        close_item(r, ev->kind == GW_EV_CALL_END ? "completed" : "incomplete", out);
    } else {
        if (r->open != part)
            open_item(r, part, out);
        delta(r, ev, out);
    }
}

static void add_logprob(struct gw_reply *r, const struct gw_token_logprob *lp)
{
    gw_logprob_entry(&r->logprobs, lp);
}

static void finish(struct gw_reply *r, enum gw_finish f, const char *stop, const struct gw_usage *usage,
                   struct gw_bytes *out)
{
    bool cut = f == GW_FINISH_LENGTH;
    if (r->open == GW_PART_TEXT)
        take_logprobs(r);
    close_item(r, cut ? "incomplete" : "completed", out);
    if (r->request->stream)
        response_frame(r, cut ? "response.incomplete" : "response.completed", cut ? "incomplete" : "completed", NULL,
                       usage, out);
    else
        response(r, cut ? "incomplete" : "completed", NULL, usage, out);
}

static void fail(struct gw_reply *r, const struct gw_error *err, struct gw_bytes *out)
{
    response_frame(r, "response.failed", "failed", err, NULL, out);
}

const struct gw_reply_ops gw_responses_reply = {begin, event, add_logprob, finish, fail};
