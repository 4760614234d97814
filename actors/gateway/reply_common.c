/* What the replies of all protocols share, and the way to the right one. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/gateway/reply_impl.h"

static const struct gw_reply_ops *ops_of(enum gw_protocol protocol)
{
    switch (protocol) {
    case GW_CHAT:
        return &gw_chat_reply;
    case GW_COMPLETIONS:
        return &gw_completions_reply;
    case GW_RESPONSES:
        return &gw_responses_reply;
    case GW_MESSAGES:
        break;
    }
    return &gw_messages_reply;
}

struct gw_reply *gw_reply_new(const struct gw_request *request, const char *id, const char *model, int64_t created)
{
    struct gw_reply *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->request = request;
    r->ops = ops_of(request->protocol);
    r->created = created;
    r->id = strdup(id);
    gw_bytes_json(&r->model, model, strlen(model));
    if (!r->id || r->model.failed) {
        gw_reply_free(r);
        return NULL;
    }
    return r;
}

void gw_reply_free(struct gw_reply *r)
{
    if (!r)
        return;
    struct gw_bytes *const all[] = {&r->model,     &r->head,      &r->tail,       &r->part,     &r->name,
                                    &r->text,      &r->reasoning, &r->items,      &r->logprobs, &r->part_logprobs,
                                    &r->lp_tokens, &r->lp_values, &r->lp_offsets, &r->lp_tops};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        gw_bytes_free(all[i]);
    free(r->id);
    free(r);
}

const char *gw_reply_type(const struct gw_reply *r)
{
    return r->request->stream ? "text/event-stream" : "application/json";
}

static int status(const struct gw_reply *r, const struct gw_bytes *out)
{
    bool failed = (out && out->failed) || r->head.failed || r->tail.failed || r->part.failed || r->name.failed ||
                  r->text.failed || r->reasoning.failed || r->items.failed || r->logprobs.failed ||
                  r->part_logprobs.failed || r->lp_tokens.failed || r->lp_values.failed || r->lp_offsets.failed ||
                  r->lp_tops.failed;
    return failed ? -ENOMEM : 0;
}

int gw_reply_begin(struct gw_reply *r, const struct gw_usage *prompt_usage, struct gw_bytes *out)
{
    r->prompt = *prompt_usage;
    r->begun = true;
    r->ops->begin(r, out);
    return status(r, out);
}

int gw_reply_event(struct gw_reply *r, const struct gw_event *ev, struct gw_bytes *out)
{
    if (ev->len || ev->kind == GW_EV_CALL_BEGIN || ev->kind == GW_EV_CALL_END || ev->kind == GW_EV_CALL_CUT)
        r->ops->event(r, ev, out);
    return status(r, out);
}

int gw_reply_logprob(struct gw_reply *r, const struct gw_token_logprob *lp)
{
    if (r->request->logprobs && r->ops->logprob)
        r->ops->logprob(r, lp);
    return status(r, NULL);
}

int gw_reply_keepalive(struct gw_reply *r, struct gw_bytes *out)
{
    if (!r->request->stream)
        return 0;
    if (r->request->protocol == GW_MESSAGES && r->begun)
        gw_bytes_puts(out, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
    else
        gw_bytes_puts(out, ": keep-alive\n\n");
    return status(r, out);
}

int gw_reply_finish(struct gw_reply *r, enum gw_finish finish, const char *stop, const struct gw_usage *usage,
                    struct gw_bytes *out)
{
    if (finish == GW_FINISH_STOP && r->n_calls)
        finish = GW_FINISH_TOOL_CALLS;
    r->ops->finish(r, finish, stop, usage, out);
    return status(r, out);
}

int gw_reply_fail(struct gw_reply *r, const struct gw_error *err, struct gw_bytes *out)
{
    if (r->ops->fail && r->begun) {
        r->ops->fail(r, err, out);
        return status(r, out);
    }
    size_t len;
    char *frame = gw_error_event(r->request->protocol, err, &len);
    if (!frame)
        return -ENOMEM;
    gw_bytes_add(out, frame, len);
    free(frame);
    return status(r, out);
}

int gw_reply_count(int input_tokens, struct gw_bytes *out)
{
    gw_bytes_printf(out, "{\"input_tokens\":%d}", input_tokens);
    return out->failed ? -ENOMEM : 0;
}

/* ---- pieces ---- */

void gw_comma(struct gw_bytes *b)
{
    if (b->n)
        gw_bytes_add(b, ",", 1);
}

void gw_frame(struct gw_bytes *out, const char *event)
{
    if (event)
        gw_bytes_printf(out, "event: %s\n", event);
    gw_bytes_puts(out, "data: ");
}

void gw_frame_end(struct gw_bytes *out)
{
    gw_bytes_puts(out, "\n\n");
}

void gw_json_field(struct gw_bytes *b, const char *key, const char *s, size_t n)
{
    gw_bytes_printf(b, ",\"%s\":", key);
    gw_bytes_json(b, s ? s : "", n);
}

static void token_fields(struct gw_bytes *b, const char *bytes, size_t len, double logprob)
{
    gw_bytes_puts(b, "{\"token\":");
    gw_bytes_json(b, bytes, len);
    gw_bytes_puts(b, ",\"logprob\":");
    gw_bytes_json_real(b, logprob);
    gw_bytes_puts(b, ",\"bytes\":[");
    for (size_t i = 0; i < len; i++)
        gw_bytes_printf(b, "%s%u", i ? "," : "", (unsigned)(unsigned char)bytes[i]);
    gw_bytes_puts(b, "]");
}

void gw_logprob_entry(struct gw_bytes *b, const struct gw_token_logprob *lp)
{
    gw_comma(b);
    token_fields(b, lp->bytes, lp->len, lp->logprob);
    gw_bytes_puts(b, ",\"top_logprobs\":[");
    for (int i = 0; i < lp->n_top; i++) {
        if (i)
            gw_bytes_puts(b, ",");
        token_fields(b, lp->top[i].bytes, lp->top[i].len, lp->top[i].logprob);
        gw_bytes_puts(b, "}");
    }
    gw_bytes_puts(b, "]}");
}

static void by_place(struct gw_bytes *b, const char *key, const uint32_t *counts, uint32_t n)
{
    gw_bytes_printf(b, ",\"%s\":[", key);
    for (uint32_t k = 0; k < n; k++)
        gw_bytes_printf(b, "%s%u", k ? "," : "", counts[k]);
    gw_bytes_puts(b, "]");
}

void gw_usage_drafts(struct gw_bytes *b, const struct gw_usage *u)
{
    const struct gw_drafts *d = &u->drafts;
    if (!d->drafted)
        return;
    gw_bytes_printf(b, ",\"speculation\":{\"steps\":%u,\"drafted\":%u,\"offered\":%u,\"accepted\":%u,\"emitted\":%u",
                    d->steps, d->drafted, d->offered, d->accepted, d->emitted);
    by_place(b, "offered_by_position", d->offered_at, d->places);
    by_place(b, "accepted_by_position", d->accepted_at, d->places);
    gw_bytes_puts(b, "}");
}

void gw_openai_usage(struct gw_bytes *b, const struct gw_usage *u)
{
    gw_bytes_printf(b,
                    "{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d,"
                    "\"prompt_tokens_details\":{\"cached_tokens\":%d},"
                    "\"completion_tokens_details\":{\"reasoning_tokens\":%d}",
                    u->prompt_tokens, u->completion_tokens, u->prompt_tokens + u->completion_tokens, u->cached_tokens,
                    u->reasoning_tokens);
    gw_usage_drafts(b, u);
    gw_bytes_puts(b, "}");
}

const char *gw_openai_finish(enum gw_finish f)
{
    switch (f) {
    case GW_FINISH_LENGTH:
        return "length";
    case GW_FINISH_TOOL_CALLS:
        return "tool_calls";
    case GW_FINISH_STOP:
    case GW_FINISH_STOP_SEQUENCE:
        break;
    }
    return "stop";
}
