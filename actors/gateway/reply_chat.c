/* Chat Completions: chunks with deltas and [DONE], or one chat.completion. */
#include <string.h>

#include "actors/gateway/reply_impl.h"

static void head(struct gw_reply *r, const char *object)
{
    gw_bytes_puts(&r->head, "{\"id\":\"chatcmpl-");
    gw_bytes_json_inner(&r->head, r->id, strlen(r->id));
    gw_bytes_printf(&r->head, "\",\"object\":\"%s\",\"created\":%lld,\"model\":", object, (long long)r->created);
    gw_bytes_add(&r->head, r->model.p, r->model.n);
    gw_bytes_puts(&r->head, ",\"choices\":[");
}

static void chunk_begin(struct gw_reply *r, struct gw_bytes *out)
{
    gw_frame(out, NULL);
    gw_bytes_add(out, r->head.p, r->head.n);
    gw_bytes_puts(out, "{\"index\":0,\"delta\":{");
}

static void logprobs(struct gw_reply *r, struct gw_bytes *out)
{
    if (!r->request->logprobs || !r->logprobs.n) {
        gw_bytes_puts(out, "null");
        return;
    }
    gw_bytes_puts(out, "{\"content\":[");
    gw_bytes_add(out, r->logprobs.p, r->logprobs.n);
    gw_bytes_puts(out, "],\"refusal\":null}");
    r->logprobs.n = 0;
}

static void chunk_end(struct gw_reply *r, const char *finish, struct gw_bytes *out)
{
    gw_bytes_puts(out, "},\"logprobs\":");
    logprobs(r, out);
    if (finish)
        gw_bytes_printf(out, ",\"finish_reason\":\"%s\"}]", finish);
    else
        gw_bytes_puts(out, ",\"finish_reason\":null}]");
    gw_bytes_puts(out, r->request->include_usage ? ",\"usage\":null}" : "}");
    gw_frame_end(out);
}

static void begin(struct gw_reply *r, struct gw_bytes *out)
{
    head(r, r->request->stream ? "chat.completion.chunk" : "chat.completion");
    if (!r->request->stream)
        return;
    chunk_begin(r, out);
    gw_bytes_puts(out, "\"role\":\"assistant\",\"content\":\"\"");
    chunk_end(r, NULL, out);
}

static void call_id(struct gw_reply *r, int index, struct gw_bytes *b)
{
    gw_bytes_puts(b, "\"id\":\"call_");
    gw_bytes_json_inner(b, r->id, strlen(r->id));
    gw_bytes_printf(b, "_%d\",\"type\":\"function\",\"function\":{\"name\":", index);
}

static void stream_event(struct gw_reply *r, const struct gw_event *ev, struct gw_bytes *out)
{
    if (ev->kind == GW_EV_CALL_END || ev->kind == GW_EV_CALL_CUT)
        return;
    chunk_begin(r, out);
    if (ev->kind == GW_EV_CALL_BEGIN || ev->kind == GW_EV_CALL_ARGS)
        gw_bytes_printf(out, "\"tool_calls\":[{\"index\":%d,", ev->index);
    switch (ev->kind) {
    case GW_EV_REASONING:
        gw_bytes_puts(out, "\"reasoning_content\":");
        gw_bytes_json(out, ev->text, ev->len);
        break;
    case GW_EV_TEXT:
        gw_bytes_puts(out, "\"content\":");
        gw_bytes_json(out, ev->text, ev->len);
        break;
    case GW_EV_CALL_BEGIN:
        call_id(r, ev->index, out);
        gw_bytes_json(out, ev->text, ev->len);
        gw_bytes_puts(out, ",\"arguments\":\"\"}}]");
        break;
    case GW_EV_CALL_ARGS:
        gw_bytes_puts(out, "\"function\":{\"arguments\":");
        gw_bytes_json(out, ev->text, ev->len);
        gw_bytes_puts(out, "}}]");
        break;
    case GW_EV_CALL_END:
    case GW_EV_CALL_CUT:
        break;
    }
    chunk_end(r, NULL, out);
}

static void collect_event(struct gw_reply *r, const struct gw_event *ev)
{
    switch (ev->kind) {
    case GW_EV_REASONING:
        gw_bytes_add(&r->reasoning, ev->text, ev->len);
        break;
    case GW_EV_TEXT:
        gw_bytes_add(&r->text, ev->text, ev->len);
        break;
    case GW_EV_CALL_BEGIN:
        gw_comma(&r->items);
        gw_bytes_puts(&r->items, "{");
        call_id(r, ev->index, &r->items);
        gw_bytes_json(&r->items, ev->text, ev->len);
        r->part.n = 0;
        break;
    case GW_EV_CALL_ARGS:
        gw_bytes_add(&r->part, ev->text, ev->len);
        break;
    case GW_EV_CALL_END:
    case GW_EV_CALL_CUT: /* finish_reason says that it is not whole */
        gw_json_field(&r->items, "arguments", r->part.p, r->part.n);
        gw_bytes_puts(&r->items, "}}");
        break;
    }
}

static void event(struct gw_reply *r, const struct gw_event *ev, struct gw_bytes *out)
{
    r->n_calls += ev->kind == GW_EV_CALL_BEGIN;
    if (r->request->stream)
        stream_event(r, ev, out);
    else
        collect_event(r, ev);
}

static void add_logprob(struct gw_reply *r, const struct gw_token_logprob *lp)
{
    gw_logprob_entry(&r->logprobs, lp);
}

static void finish_stream(struct gw_reply *r, enum gw_finish finish, const struct gw_usage *usage, struct gw_bytes *out)
{
    chunk_begin(r, out);
    chunk_end(r, gw_openai_finish(finish), out);
    if (r->request->include_usage) {
        gw_frame(out, NULL);
        gw_bytes_add(out, r->head.p, r->head.n);
        gw_bytes_puts(out, "],\"usage\":");
        gw_openai_usage(out, usage);
        gw_bytes_puts(out, "}");
        gw_frame_end(out);
    }
    gw_bytes_puts(out, "data: [DONE]\n\n");
}

static void finish(struct gw_reply *r, enum gw_finish f, const char *stop, const struct gw_usage *usage,
                   struct gw_bytes *out)
{
    if (r->request->stream) {
        finish_stream(r, f, usage, out);
        return;
    }
    gw_bytes_add(out, r->head.p, r->head.n);
    gw_bytes_puts(out, "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":");
    if (r->n_calls && !r->text.n)
        gw_bytes_puts(out, "null");
    else
        gw_bytes_json(out, r->text.p ? r->text.p : "", r->text.n);
    gw_bytes_puts(out, ",\"refusal\":null");
    if (r->reasoning.n)
        gw_json_field(out, "reasoning_content", r->reasoning.p, r->reasoning.n);
    if (r->n_calls) {
        gw_bytes_puts(out, ",\"tool_calls\":[");
        gw_bytes_add(out, r->items.p, r->items.n);
        gw_bytes_puts(out, "]");
    }
    gw_bytes_puts(out, "},\"logprobs\":");
    logprobs(r, out);
    gw_bytes_printf(out, ",\"finish_reason\":\"%s\"}],\"usage\":", gw_openai_finish(f));
    gw_openai_usage(out, usage);
    gw_bytes_puts(out, "}");
}

const struct gw_reply_ops gw_chat_reply = {begin, event, add_logprob, finish, NULL};
