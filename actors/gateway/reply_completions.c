/* Completions: chunks of text and [DONE], or one text_completion. */
#include <string.h>

#include "actors/gateway/reply_impl.h"
#include "model/utf8.h"

static void head(struct gw_reply *r)
{
    gw_bytes_puts(&r->head, "{\"id\":\"cmpl-");
    gw_bytes_json_inner(&r->head, r->id, strlen(r->id));
    gw_bytes_printf(&r->head, "\",\"object\":\"text_completion\",\"created\":%lld,\"model\":", (long long)r->created);
    gw_bytes_add(&r->head, r->model.p, r->model.n);
    gw_bytes_puts(&r->head, ",\"choices\":[");
}

/* ---- log-probabilities: four lists ---- */

/* A token that is no text by itself is named by its bytes, so that two of them stay apart. */
static void token_name(struct gw_bytes *b, const char *bytes, size_t len)
{
    if (mdl_utf8_valid(bytes, len)) {
        gw_bytes_json(b, bytes, len);
        return;
    }
    gw_bytes_puts(b, "\"bytes:");
    for (size_t i = 0; i < len; i++)
        gw_bytes_printf(b, "\\\\x%02x", (unsigned)(unsigned char)bytes[i]);
    gw_bytes_puts(b, "\"");
}

static void add_logprob(struct gw_reply *r, const struct gw_token_logprob *lp)
{
    gw_comma(&r->lp_tokens);
    token_name(&r->lp_tokens, lp->bytes, lp->len);
    gw_comma(&r->lp_values);
    gw_bytes_json_real(&r->lp_values, lp->logprob);
    gw_comma(&r->lp_offsets);
    gw_bytes_printf(&r->lp_offsets, "%zu", r->offset);
    for (size_t i = 0; i < lp->len; i++)
        r->offset += ((unsigned char)lp->bytes[i] & 0xc0) != 0x80;
    gw_comma(&r->lp_tops);
    gw_bytes_puts(&r->lp_tops, "{");
    for (int i = 0; i < lp->n_top; i++) {
        gw_bytes_puts(&r->lp_tops, i ? "," : "");
        token_name(&r->lp_tops, lp->top[i].bytes, lp->top[i].len);
        gw_bytes_puts(&r->lp_tops, ":");
        gw_bytes_json_real(&r->lp_tops, lp->top[i].logprob);
    }
    gw_bytes_puts(&r->lp_tops, "}");
}

static void list(struct gw_bytes *out, const char *key, struct gw_bytes *entries)
{
    gw_bytes_printf(out, "\"%s\":[", key);
    gw_bytes_add(out, entries->p, entries->n);
    gw_bytes_puts(out, "]");
    entries->n = 0;
}

static void logprobs(struct gw_reply *r, struct gw_bytes *out)
{
    if (!r->lp_tokens.n) {
        gw_bytes_puts(out, "null");
        return;
    }
    gw_bytes_puts(out, "{");
    list(out, "tokens", &r->lp_tokens);
    gw_bytes_puts(out, ",");
    list(out, "token_logprobs", &r->lp_values);
    gw_bytes_puts(out, ",");
    list(out, "text_offset", &r->lp_offsets);
    gw_bytes_puts(out, ",");
    if (r->request->top_logprobs)
        list(out, "top_logprobs", &r->lp_tops);
    else
        gw_bytes_puts(out, "\"top_logprobs\":null");
    r->lp_tops.n = 0;
    gw_bytes_puts(out, "}");
}

/* ---- the reply ---- */

static void choice(struct gw_reply *r, const char *text, size_t len, const char *reason, struct gw_bytes *out)
{
    gw_bytes_puts(out, "{\"index\":0,\"text\":");
    gw_bytes_json(out, text ? text : "", len);
    gw_bytes_puts(out, ",\"logprobs\":");
    logprobs(r, out);
    if (reason)
        gw_bytes_printf(out, ",\"finish_reason\":\"%s\"}]", reason);
    else
        gw_bytes_puts(out, ",\"finish_reason\":null}]");
}

static void chunk(struct gw_reply *r, const char *text, size_t len, const char *reason, struct gw_bytes *out)
{
    gw_frame(out, NULL);
    gw_bytes_add(out, r->head.p, r->head.n);
    choice(r, text, len, reason, out);
    gw_bytes_puts(out, r->request->include_usage ? ",\"usage\":null}" : "}");
    gw_frame_end(out);
}

static void begin(struct gw_reply *r, struct gw_bytes *out)
{
    const struct gw_request *q = r->request;
    head(r);
    if (!q->echo || !q->prompt_len)
        return;
    if (q->stream)
        chunk(r, q->prompt, q->prompt_len, NULL, out);
    else
        gw_bytes_add(&r->text, q->prompt, q->prompt_len);
}

static void event(struct gw_reply *r, const struct gw_event *ev, struct gw_bytes *out)
{
    if (ev->kind != GW_EV_TEXT)
        return; /* the output machine is told to take everything as text */
    if (r->request->stream)
        chunk(r, ev->text, ev->len, NULL, out);
    else
        gw_bytes_add(&r->text, ev->text, ev->len);
}

static void finish(struct gw_reply *r, enum gw_finish f, const char *stop, const struct gw_usage *usage,
                   struct gw_bytes *out)
{
    if (!r->request->stream) {
        gw_bytes_add(out, r->head.p, r->head.n);
        choice(r, r->text.p, r->text.n, gw_openai_finish(f), out);
        gw_bytes_puts(out, ",\"usage\":");
        gw_openai_usage(out, usage);
        gw_bytes_puts(out, "}");
        return;
    }
    chunk(r, "", 0, gw_openai_finish(f), out);
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

const struct gw_reply_ops gw_completions_reply = {begin, event, add_logprob, finish, NULL};
