/* Messages: content blocks between message_start and message_stop, or one message. */
#include <string.h>

#include "actors/gateway/reply_impl.h"

static void usage_fields(struct gw_bytes *b, const struct gw_usage *u, int output_tokens)
{
    gw_bytes_printf(b,
                    "{\"input_tokens\":%d,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%d,"
                    "\"output_tokens\":%d",
                    u->prompt_tokens - u->cached_tokens, u->cached_tokens, output_tokens);
    gw_usage_drafts(b, u);
    gw_bytes_puts(b, "}");
}

static void head(struct gw_reply *r, struct gw_bytes *b)
{
    gw_bytes_puts(b, "{\"id\":\"msg_");
    gw_bytes_json_inner(b, r->id, strlen(r->id));
    gw_bytes_puts(b, "\",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    gw_bytes_add(b, r->model.p, r->model.n);
    gw_bytes_puts(b, ",\"content\":[");
}

static void begin(struct gw_reply *r, struct gw_bytes *out)
{
    if (!r->request->stream)
        return;
    gw_frame(out, "message_start");
    gw_bytes_puts(out, "{\"type\":\"message_start\",\"message\":");
    head(r, out);
    gw_bytes_puts(out, "],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    usage_fields(out, &r->prompt, 0);
    gw_bytes_puts(out, "}}");
    gw_frame_end(out);
}

/* ---- blocks ---- */

/* Reasoning is plain text; the signature only tells clients that the block is whole. */
static void signature(struct gw_reply *r, struct gw_bytes *b)
{
    gw_bytes_puts(b, "\"signature\":\"sig_");
    gw_bytes_json_inner(b, r->id, strlen(r->id));
    gw_bytes_puts(b, "\"");
}

static void call_fields(struct gw_reply *r, struct gw_bytes *b)
{
    gw_bytes_puts(b, "\"type\":\"tool_use\",\"id\":\"toolu_");
    gw_bytes_json_inner(b, r->id, strlen(r->id));
    gw_bytes_printf(b, "_%d\",\"name\":", r->n_calls - 1);
    gw_bytes_json(b, r->name.p ? r->name.p : "", r->name.n);
    gw_bytes_puts(b, ",\"input\":");
}

/* The finished block, for a whole reply. */
static void keep_block(struct gw_reply *r)
{
    struct gw_bytes *b = &r->items;
    const char *text = r->part.p ? r->part.p : "";
    gw_comma(b);
    gw_bytes_puts(b, "{");
    if (r->open == GW_PART_CALL) {
        call_fields(r, b);
        gw_bytes_add(b, r->part.n ? text : "{}", r->part.n ? r->part.n : 2);
    } else {
        bool thinking = r->open == GW_PART_REASONING;
        gw_bytes_puts(b, thinking ? "\"type\":\"thinking\"" : "\"type\":\"text\"");
        gw_json_field(b, thinking ? "thinking" : "text", text, r->part.n);
        if (thinking) {
            gw_bytes_puts(b, ",");
            signature(r, b);
        }
    }
    gw_bytes_puts(b, "}");
}

static void delta_begin(struct gw_reply *r, const char *type, struct gw_bytes *out)
{
    gw_frame(out, "content_block_delta");
    gw_bytes_printf(out, "{\"type\":\"content_block_delta\",\"index\":%d,\"delta\":{\"type\":\"%s\",", r->n_items,
                    type);
}

static void delta_end(struct gw_bytes *out)
{
    gw_bytes_puts(out, "}}");
    gw_frame_end(out);
}

static void close_block(struct gw_reply *r, struct gw_bytes *out)
{
    if (r->open == GW_PART_NONE)
        return;
    if (r->request->stream) {
        if (r->open == GW_PART_REASONING) {
            delta_begin(r, "signature_delta", out);
            signature(r, out);
            delta_end(out);
        }
        gw_frame(out, "content_block_stop");
        gw_bytes_printf(out, "{\"type\":\"content_block_stop\",\"index\":%d}", r->n_items);
        gw_frame_end(out);
    } else {
        keep_block(r);
    }
    r->n_items++;
    r->open = GW_PART_NONE;
}

static void open_block(struct gw_reply *r, enum gw_part part, struct gw_bytes *out)
{
    close_block(r, out);
    r->open = part;
    r->part.n = 0;
    if (!r->request->stream)
        return;
    gw_frame(out, "content_block_start");
    gw_bytes_printf(out, "{\"type\":\"content_block_start\",\"index\":%d,\"content_block\":{", r->n_items);
    if (part == GW_PART_CALL) {
        call_fields(r, out);
        gw_bytes_puts(out, "{}");
    } else if (part == GW_PART_REASONING) {
        gw_bytes_puts(out, "\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"");
    } else {
        gw_bytes_puts(out, "\"type\":\"text\",\"text\":\"\"");
    }
    delta_end(out);
}

static void delta(struct gw_reply *r, const struct gw_event *ev, struct gw_bytes *out)
{
    static const struct {
        const char *type, *key;
    } kinds[] = {
        [GW_PART_REASONING] = {"thinking_delta", "thinking"},
        [GW_PART_TEXT] = {"text_delta", "text"},
        [GW_PART_CALL] = {"input_json_delta", "partial_json"},
    };
    if (!r->request->stream) {
        gw_bytes_add(&r->part, ev->text, ev->len);
        return;
    }
    delta_begin(r, kinds[r->open].type, out);
    gw_bytes_printf(out, "\"%s\":", kinds[r->open].key);
    gw_bytes_json(out, ev->text, ev->len);
    delta_end(out);
}

/* A whole reply has no form for half an object: the call is not in it, and stop_reason says why. */
static void cut_call(struct gw_reply *r, struct gw_bytes *out)
{
    if (r->open == GW_PART_CALL && !r->request->stream)
        r->open = GW_PART_NONE;
    close_block(r, out);
}

static void event(struct gw_reply *r, const struct gw_event *ev, struct gw_bytes *out)
{
    enum gw_part part = ev->kind == GW_EV_REASONING ? GW_PART_REASONING
                        : ev->kind == GW_EV_TEXT    ? GW_PART_TEXT
                                                    : GW_PART_CALL;
    if (ev->kind == GW_EV_CALL_BEGIN) {
        r->n_calls++;
        r->name.n = 0;
        gw_bytes_add(&r->name, ev->text, ev->len);
        open_block(r, part, out);
    } else if (ev->kind == GW_EV_CALL_END) {
        close_block(r, out);
    } else if (ev->kind == GW_EV_CALL_CUT) {
        cut_call(r, out);
    } else {
        if (r->open != part)
            open_block(r, part, out);
        delta(r, ev, out);
    }
}

/* ---- the end ---- */

static void stop_fields(struct gw_bytes *b, enum gw_finish f, const char *stop)
{
    static const char *const reasons[] = {
        [GW_FINISH_STOP] = "end_turn",
        [GW_FINISH_LENGTH] = "max_tokens",
        [GW_FINISH_TOOL_CALLS] = "tool_use",
        [GW_FINISH_STOP_SEQUENCE] = "stop_sequence",
    };
    gw_bytes_printf(b, "\"stop_reason\":\"%s\",\"stop_sequence\":", reasons[f]);
    if (f == GW_FINISH_STOP_SEQUENCE && stop)
        gw_bytes_json(b, stop, strlen(stop));
    else
        gw_bytes_puts(b, "null");
}

static void finish(struct gw_reply *r, enum gw_finish f, const char *stop, const struct gw_usage *usage,
                   struct gw_bytes *out)
{
    close_block(r, out);
    if (!r->request->stream) {
        head(r, out);
        gw_bytes_add(out, r->items.p, r->items.n);
        gw_bytes_puts(out, "],");
        stop_fields(out, f, stop);
        gw_bytes_puts(out, ",\"usage\":");
        usage_fields(out, usage, usage->completion_tokens);
        gw_bytes_puts(out, "}");
        return;
    }
    gw_frame(out, "message_delta");
    gw_bytes_puts(out, "{\"type\":\"message_delta\",\"delta\":{");
    stop_fields(out, f, stop);
    gw_bytes_puts(out, "},\"usage\":");
    usage_fields(out, usage, usage->completion_tokens);
    gw_bytes_puts(out, "}");
    gw_frame_end(out);
    gw_frame(out, "message_stop");
    gw_bytes_puts(out, "{\"type\":\"message_stop\"}");
    gw_frame_end(out);
}

const struct gw_reply_ops gw_messages_reply = {begin, event, NULL, finish, NULL};
