/* One generation, from its parsed request to its last byte. It alone talks to the client, and ends the exchange exactly
 * once: with a reply, with the end of a stream, or because the client went away. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actors/gateway/bytes.h"
#include "actors/gateway/gateway.h"
#include "actors/gateway/output.h"
#include "actors/gateway/reply.h"
#include "actors/placement.h"
#include "actors/recipe.h"

enum { TAG_KEEPALIVE = 1 };

struct request {
    struct gw_job *job;
    struct gw_context *g;
    struct act_self *self;
    bool begun, ended, timed; /* timed: the client knows how long it queued and its prefill took */
    struct act_place place;
    struct gw_prompt prompt; /* prompt, then output */
    int n_prompt;
    uint64_t seed;
    struct gw_output *output;
    struct gw_reply *reply;
    struct mdl_tok_stream decode;
    struct mdl_text piece;
    struct gw_bytes out;
    struct act_timer keepalive;
    struct gw_usage usage;
    uint32_t received;                                  /* output tokens seen */
    struct gw_drafts drafts_before;                     /* of earlier attempts; usage.drafts has all */
    int64_t started, computing, prefilled, first, last; /* ns */
    int failed;                                         /* negative errno of an event callback */
    int status; /* HTTP status of the answer; 0: the client left before there was one */
};

static double seconds(int64_t ns)
{
    return 1e-9 * (double)ns;
}

/* ---- times ---- */

static double between(int64_t from, int64_t to)
{
    return from && to > from ? seconds(to - from) : 0;
}

/* What is known so far, as the header Server-Timing has it, in ms; "" before the prompt's computation began. */
static void timing_text(const struct request *r, char *out, size_t size)
{
    out[0] = 0;
    if (!r->computing)
        return;
    int n = snprintf(out, size, "queue;dur=%.3f", 1e3 * between(r->started, r->computing));
    if (r->prefilled)
        snprintf(out + n, size - (size_t)n, ", prefill;dur=%.3f", 1e3 * between(r->computing, r->prefilled));
}

/* ---- output ---- */

static void flush(struct request *r)
{
    if (r->job->gone || !r->out.n)
        return;
    gw_exchange_write(r->job->x, r->out.p, r->out.n);
    r->out.n = 0;
}

static void on_event(void *ctx, const struct gw_event *ev)
{
    struct request *r = ctx;
    if (gw_reply_event(r->reply, ev, &r->out))
        r->failed = -ENOMEM;
}

/* The head of a streamed answer. Before it, errors are HTTP errors; behind it, events of the stream. */
static void begin(struct request *r)
{
    static const struct gw_header headers[] = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    char timing[128];
    if (r->begun || r->job->gone)
        return;
    r->begun = true;
    r->status = 200;
    if (gw_reply_begin(r->reply, &r->usage, &r->out))
        r->failed = -ENOMEM;
    if (!r->job->request.stream)
        return;
    timing_text(r, timing, sizeof timing);
    r->timed = timing[0] && r->prefilled;
    const struct gw_header all[] = {
        headers[0], headers[1], {"X-Request-Id", r->job->public_id}, {"Server-Timing", timing}};
    gw_exchange_begin(r->job->x, 200, "text/event-stream; charset=utf-8", all, timing[0] ? 4 : 3);
    flush(r);
}

/* ---- ends ---- */

static void count_end(struct request *r, enum gw_outcome outcome)
{
    static const char *const protocols[] = {"chat", "completions", "responses", "messages"};
    static const char *const outcomes[] = {"stop", "length", "tool_calls", "cancelled", "error"};
    struct gw_metrics *m = &r->g->metrics;
    int64_t now = act_now(r->self), computing = r->computing ? r->computing : now,
            ready = r->prefilled ? r->prefilled : now;
    if (r->first)
        m->running--;
    else
        m->waiting--;
    m->outcome[outcome]++;
    gw_observe(&m->total, seconds(now - r->started));
    if (r->first)
        gw_observe(&m->decode, seconds(now - r->first));
    gw_trace_add(r->g->trace, r->started, r->usage.prompt_tokens, r->usage.completion_tokens, r->prompt.chain,
                 r->prompt.n_chain);
    act_log_event(r->g->log, ACT_LOG_INFO, "request", r->job->id, "request_end",
                  "id=%s protocol=%s stream=%d outcome=%s status=%d prompt=%d cached=%d output=%d steps=%u drafted=%u "
                  "offered=%u accepted=%u emitted=%u "
                  "replaced=%d queue=%.6f prefill=%.6f first_token=%.6f decode=%.6f total=%.6f%s%s",
                  r->job->public_id, protocols[r->job->protocol], r->job->request.stream, outcomes[outcome], r->status,
                  r->usage.prompt_tokens, r->usage.cached_tokens, r->usage.completion_tokens, r->usage.drafts.steps,
                  r->usage.drafts.drafted, r->usage.drafts.offered, r->usage.drafts.accepted, r->usage.drafts.emitted,
                  r->place.replaced, seconds(computing - r->started), between(r->computing, ready),
                  between(r->prefilled, r->first), between(r->first, now), seconds(now - r->started),
                  r->job->key ? " key=" : "", r->job->key ? r->job->key->name : "");
}

static void finish_actor(struct request *r, enum gw_outcome outcome)
{
    if (r->ended)
        return;
    r->ended = true;
    count_end(r, outcome);
    act_stop(r->self, 0);
}

static void give_up(struct request *r, int reason)
{
    act_place_cancel(&r->place, reason);
}

static void fail(struct request *r, const struct gw_error *err)
{
    if (r->ended)
        return;
    give_up(r, -ECANCELED);
    if (err->status >= 500)
        act_log_event(r->g->log, err->status == 500 ? ACT_LOG_WARNING : ACT_LOG_INFO, "request", r->job->id,
                      "request_failed", "id=%s attempt=%u status=%d code=%s message=\"%s\"", r->job->public_id,
                      r->place.attempt, err->status, err->code, err->message);
    r->status = r->job->gone || gw_exchange_begun(r->job->x) ? r->status : err->status;
    if (!r->job->gone && gw_exchange_begun(r->job->x)) {
        gw_reply_fail(r->reply, err, &r->out);
        flush(r);
        gw_exchange_end(r->job->x);
    } else if (!r->job->gone) {
        gw_answer_error(r->g, r->job->x, r->job->protocol, err);
    }
    r->job->gone = true;
    finish_actor(r, GW_OUT_ERROR);
}

static void fail_text(struct request *r, int status, const char *code, const char *message)
{
    struct gw_error err;
    gw_error_set(&err, r->job->protocol, status, NULL, "%s", message);
    snprintf(err.code, sizeof err.code, "%s", code);
    err.retry_after = status == 429;
    fail(r, &err);
}

static void finish(struct request *r, enum act_finish how)
{
    if (r->ended)
        return;
    begin(r);
    r->piece.n = 0;
    bool cut = how == ACT_FINISH_LENGTH;
    if (!cut && (mdl_tok_stream_end(&r->decode, &r->piece) || gw_output_push(r->output, r->piece.s, r->piece.n)))
        r->failed = -ENOMEM;
    if (gw_output_end(r->output, cut))
        r->failed = -ENOMEM;
    enum gw_finish reason = gw_output_stopped(r->output) ? GW_FINISH_STOP_SEQUENCE
                            : cut                        ? GW_FINISH_LENGTH
                            : gw_output_calls(r->output) ? GW_FINISH_TOOL_CALLS
                                                         : GW_FINISH_STOP;
    if (r->failed || gw_reply_finish(r->reply, reason, gw_output_stop(r->output), &r->usage, &r->out)) {
        fail_text(r, 500, "out_of_memory", "the server ran out of memory");
        return;
    }
    if (!r->job->gone && r->job->request.stream) {
        flush(r);
        gw_exchange_end(r->job->x);
    } else if (!r->job->gone) {
        char timing[128];
        timing_text(r, timing, sizeof timing);
        const struct gw_header h[] = {{"X-Request-Id", r->job->public_id}, {"Server-Timing", timing}};
        gw_exchange_reply(r->job->x, 200, "application/json", h, timing[0] ? 2 : 1, r->out.p, r->out.n);
    }
    r->status = 200;
    r->job->gone = true;
    finish_actor(r, reason == GW_FINISH_LENGTH       ? GW_OUT_LENGTH
                    : reason == GW_FINISH_TOOL_CALLS ? GW_OUT_TOOL_CALLS
                                                     : GW_OUT_STOP);
}

/* ---- the way in ---- */

/* Most tokens that the output may still get. */
static int tokens_left(const struct request *r)
{
    const struct gw_request *in = &r->job->request;
    int room = r->g->settings.context - (int)r->prompt.ids.n;
    int wanted = in->max_tokens ? in->max_tokens : r->g->settings.default_max_tokens;
    int left = wanted - ((int)r->prompt.ids.n - r->n_prompt);
    return wanted && left < room ? left : room;
}

static int ask_for_place(struct request *r)
{
    r->drafts_before = r->usage.drafts;
    int status = gw_prompt_chain(&r->g->here, r->job->request.cache_salt, &r->prompt);
    return status ? status
                  : act_place_ask(&r->place, (int)r->prompt.ids.n, tokens_left(r),
                                  (const struct act_key *)r->prompt.chain, r->prompt.n_chain);
}

static int send_prefill(struct request *r)
{
    const struct gw_request *in = &r->job->request;
    int n = (int)r->prompt.ids.n;
    struct act_msg m;
    size_t bytes;
    int status = act_msg_new(ACT_PREFILL, r->place.prefill, act_recipe_tail(n, r->prompt.n_chain, in->n_bias, 0), &m);
    if (status)
        return status;
    const struct mdl_sampling *d = &r->g->settings.sampling;
    m.request = r->job->id;
    m.attempt = r->place.attempt;
    *act_p_prefill(&m) =
        (struct act_p_prefill){.ids = (uint32_t)n, .blocks = (uint32_t)r->prompt.n_chain, .decode = r->place.decode};
    *act_b_prefill(&m) = (struct act_b_prefill){
        .requester = act_self_addr(r->self),
        .seed = r->seed,
        .max_tokens = (uint32_t)tokens_left(r),
        .committed = (uint32_t)(n - r->n_prompt),
        .temperature = (float)(in->has_temperature ? in->temperature : d->temperature),
        .top_p = (float)(in->has_top_p ? in->top_p : d->top_p),
        .min_p = (float)in->min_p,
        .top_k = (uint32_t)in->top_k,
        .presence = (float)in->presence_penalty,
        .frequency = (float)in->frequency_penalty,
        .repetition = (float)(in->repetition_penalty > 0 ? in->repetition_penalty : 1.0),
        .top_logprobs = (uint32_t)in->top_logprobs,
        .biases = (uint32_t)in->n_bias,
        .chain = (uint32_t)r->prompt.n_chain,
        .flags = (in->ignore_eos ? ACT_RECIPE_IGNORE_EOS : 0u) | (in->logprobs ? ACT_RECIPE_LOGPROBS : 0u)};
    uint8_t *at = act_msg_tail(&m, &bytes);
    memcpy(at, r->prompt.ids.v, (size_t)n * sizeof(int32_t));
    at += (size_t)n * sizeof(int32_t);
    memcpy(at, r->prompt.chain, (size_t)r->prompt.n_chain * sizeof *r->prompt.chain);
    at += (size_t)r->prompt.n_chain * sizeof *r->prompt.chain;
    for (int i = 0; i < in->n_bias; i++, at += sizeof(struct mdl_logit_bias))
        memcpy(at, &(struct mdl_logit_bias){in->bias[i].id, in->bias[i].bias}, sizeof(struct mdl_logit_bias));
    status = act_send(r->self, &m);
    if (status)
        act_msg_drop(&m);
    return status;
}

/* The prompt is there. */
static void start_work(struct request *r)
{
    struct gw_request *in = &r->job->request;
    char id[32];
    const char *stop[GW_MAX_STOPS];
    size_t stop_len[GW_MAX_STOPS];
    if ((int)r->prompt.ids.n >= r->g->settings.context) {
        char text[200];
        snprintf(text, sizeof text, "the prompt has %zu tokens; this model's context is %d tokens, output included",
                 r->prompt.ids.n, r->g->settings.context);
        r->g->metrics.refused[GW_REF_TOO_LONG]++;
        fail_text(r, 400, "context_length_exceeded", text);
        return;
    }
    for (int i = 0; i < in->n_stop; i++) {
        stop[i] = in->stop[i].text;
        stop_len[i] = in->stop[i].len;
    }
    r->usage.prompt_tokens = r->n_prompt = (int)r->prompt.ids.n;
    r->seed = in->has_seed ? in->seed : act_random(r->self);
    snprintf(id, sizeof id, "%016llx", (unsigned long long)r->job->id);
    r->reply = gw_reply_new(in, id, r->g->settings.model_name, act_wall(r->self) / 1000000000);
    r->output = gw_output_new(&(struct gw_output_options){.thinking = in->thinking,
                                                          .tools = in->has_tools,
                                                          .declared = in->tools,
                                                          .raw = in->protocol == GW_COMPLETIONS,
                                                          .open_text = in->open_text,
                                                          .max_calls = in->has_tools && !in->parallel_tools,
                                                          .stop = stop,
                                                          .stop_len = stop_len,
                                                          .n_stop = in->n_stop,
                                                          .on_event = on_event,
                                                          .ctx = r});
    mdl_tok_stream_init(&r->decode, r->g->tok, 0);
    act_place_init(&r->place, r->self, r->g->router, r->job->id);
    r->place.patience = r->g->settings.retry_ns;
    if (!r->reply || !r->output || ask_for_place(r)) {
        fail_text(r, 503, "overloaded", "the engine takes no requests at this moment");
        return;
    }
    act_timer_after(r->self, &r->keepalive, (int64_t)r->g->settings.keepalive_ms * 1000000, TAG_KEEPALIVE);
}

/* The client asked for what there is not: no generation has begun, so none ends. */
static void refuse(struct request *r, const struct gw_error *err)
{
    r->ended = true;
    r->g->metrics.waiting--;
    r->g->metrics.refused[GW_REF_BAD_REQUEST]++;
    gw_answer_error(r->g, r->job->x, r->job->protocol, err);
    r->job->gone = true;
    act_stop(r->self, 0);
}

/* A short body is parsed already; a long one is read elsewhere, so that the streams of this worker go on. */
static void prepare(struct request *r)
{
    struct gw_error err = {0};
    struct gw_prompt_job *j = r->job->unread;
    if (!j) {
        if (gw_prompt_make(&r->g->here, &r->job->request, &r->prompt, &err))
            start_work(r);
        else
            fail(r, &err);
        return;
    }
    if (act_job_submit(r->self, r->g->helper, r->job->id, &j->job) == 0)
        r->job->unread = NULL;
    else
        fail_text(r, 503, "overloaded", "the server takes no long prompts at this moment");
}

static void take_prompt(struct request *r, struct act_msg *m)
{
    struct gw_prompt_job *j = (struct gw_prompt_job *)(void *)act_job_take(m);
    if (!j)
        return;
    r->job->request = j->request;
    r->prompt = j->prompt;
    j->request = (struct gw_request){0};
    j->prompt = (struct gw_prompt){0};
    if (!j->parsed)
        refuse(r, &j->err);
    else if (!j->made)
        fail(r, &j->err);
    else
        start_work(r);
    gw_prompt_job_free(j);
}

/* ---- messages ---- */

/* The end of text is no part of the answer, so it has no entry among the log-probabilities either. */
static bool ends_text(const struct request *r, int32_t id)
{
    return id == r->g->model->eos_id && !r->job->request.ignore_eos;
}

static bool take_logprob(struct request *r, int32_t id, const uint8_t **at, const uint8_t *end)
{
    struct gw_token_logprob lp = {.id = id};
    float own;
    uint32_t n;
    if (end - *at < 8)
        return false;
    memcpy(&own, *at, 4);
    memcpy(&n, *at + 4, 4);
    *at += 8;
    if (n > GW_MAX_TOP_LOGPROBS || (size_t)(end - *at) < 8 * (size_t)n)
        return false;
    lp.logprob = (double)own;
    lp.n_top = (int)n;
    mdl_tokenizer_bytes(r->g->tok, id, &lp.bytes, &lp.len);
    for (uint32_t k = 0; k < n; k++, *at += 8) {
        memcpy(&lp.top[k].id, *at, 4);
        memcpy(&own, *at + 4, 4);
        lp.top[k].logprob = (double)own;
        mdl_tokenizer_bytes(r->g->tok, lp.top[k].id, &lp.top[k].bytes, &lp.top[k].len);
    }
    return ends_text(r, id) || gw_reply_logprob(r->reply, &lp) == 0;
}

/* What Decode counted in this attempt joins what earlier ones had. */
static void take_drafts(struct request *r, const struct act_p_tokens *p, const struct act_b_tokens *b,
                        const uint8_t *places)
{
    const struct gw_drafts *before = &r->drafts_before;
    struct gw_drafts *d = &r->usage.drafts;
    d->drafted = before->drafted + p->drafted;
    d->accepted = before->accepted + p->accepted;
    if (!b)
        return;
    d->steps = before->steps + b->steps;
    d->offered = before->offered + b->offered;
    d->emitted = before->emitted + b->emitted;
    d->places = before->places > b->places ? before->places : b->places;
    for (uint32_t k = 0; k < b->places; k++) {
        uint32_t offered, accepted;
        memcpy(&offered, places + 4 * k, 4);
        memcpy(&accepted, places + 4 * (b->places + k), 4);
        d->offered_at[k] = before->offered_at[k] + offered;
        d->accepted_at[k] = before->accepted_at[k] + accepted;
    }
}

static void take_token(struct request *r, int32_t id)
{
    r->usage.completion_tokens++;
    r->usage.reasoning_tokens += gw_output_in_reasoning(r->output);
    if (ends_text(r, id))
        return;
    r->piece.n = 0;
    if (mdl_tok_stream_push(&r->decode, id, &r->piece) || gw_output_push(r->output, r->piece.s, r->piece.n))
        r->failed = -ENOMEM;
}

static void observe_tokens(struct request *r, int count)
{
    struct gw_metrics *m = &r->g->metrics;
    int64_t now = act_now(r->self);
    if (!r->first && count) {
        r->first = now;
        m->waiting--;
        m->running++;
        gw_observe(&m->first_token, seconds(now - r->started));
    } else if (count) {
        for (int i = 0; i < count; i++)
            gw_observe(&m->inter_token, seconds(now - r->last) / count);
    }
    r->last = now;
    m->generated_tokens += (uint64_t)count;
}

/* What the head of a stream that began before its prompt could not say yet; and the time stamps that a client may ask
 * for. */
static void comment(struct request *r, int64_t made_at)
{
    if (!r->job->request.stream)
        return;
    if (!r->timed) {
        char timing[128];
        timing_text(r, timing, sizeof timing);
        gw_bytes_printf(&r->out, ": Server-Timing: %s\n\n", timing);
        r->timed = true;
    }
    if (r->job->trace && made_at)
        gw_bytes_printf(&r->out, ": made %lld\n\n", (long long)made_at);
}

static void take_tokens(struct request *r, struct act_msg *m)
{
    const struct act_p_tokens *p = act_p_tokens(m);
    size_t bytes;
    const uint8_t *at = act_msg_tail(m, &bytes), *end = at + bytes;
    const struct act_b_tokens *b = act_b_tokens(m);
    size_t places = b ? 8 * (size_t)b->places : 0;
    if (p->first != r->received || places > 8 * MDL_MAX_BLOCK || bytes < p->count * sizeof(int32_t) + places) {
        fail_text(r, 500, "internal_error", "tokens were lost inside the engine");
        return;
    }
    const int32_t *ids = (const int32_t *)(const void *)at;
    end -= places;
    at += (size_t)p->count * sizeof(int32_t);
    int64_t made_at = b ? b->made_at : 0;
    r->received += p->count;
    for (int i = 0; i < p->count; i++)
        if (mdl_ids_add(&r->prompt.ids, ids[i]))
            r->failed = -ENOMEM;
    act_place_progress(&r->place, true);
    take_drafts(r, p, b, end);
    begin(r);
    comment(r, made_at);
    if (r->job->request.forced && p->first == 0 &&
        gw_output_push(r->output, r->job->request.forced, strlen(r->job->request.forced)))
        r->failed = -ENOMEM;
    bool more = true;
    int taken = 0;
    for (; taken < p->count && more; taken++) {
        if (p->flags & ACT_TOKENS_LOGPROBS && !take_logprob(r, ids[taken], &at, end))
            r->failed = -EPROTO;
        take_token(r, ids[taken]);
        more = !gw_output_stopped(r->output) && !gw_output_done(r->output) && !r->failed;
    }
    observe_tokens(r, taken);
    if (r->job->request.stream) {
        flush(r);
        if (made_at)
            gw_observe(&r->g->metrics.delivery, seconds(act_now(r->self) - made_at));
    }
    if (r->failed)
        fail_text(r, 500, "internal_error", "the answer could not be put together");
    else if (!more) {
        give_up(r, 0); /* a stop string or the end of a tool block: nothing more is wanted */
        finish(r, ACT_FINISH_STOP);
    } else if (p->finish == ACT_FINISH_ERROR)
        fail_text(r, 500, "internal_error", "the engine failed on this request");
    else if (p->finish)
        finish(r, (enum act_finish)p->finish);
    if (!r->ended)
        act_timer_after(r->self, &r->keepalive, (int64_t)r->g->settings.keepalive_ms * 1000000, TAG_KEEPALIVE);
}

static void take_failed(struct request *r, struct act_msg *m)
{
    size_t bytes;
    const char *text = act_msg_tail(m, &bytes);
    char message[256];
    int status = act_p_failed(m)->status;
    snprintf(message, sizeof message, "%.*s", (int)bytes, bytes ? text : "");
    if (status == -E2BIG) {
        r->g->metrics.refused[GW_REF_TOO_LONG]++;
        fail_text(r, 400, "context_length_exceeded", message);
    } else if (status == -EAGAIN)
        fail_text(r, 429, "overloaded", message);
    else
        fail_text(r, 500, "internal_error", message);
}

static void keep_alive(struct request *r)
{
    if (!r->job->request.stream)
        return;
    begin(r);
    if (gw_reply_keepalive(r->reply, &r->out) == 0)
        flush(r);
    act_timer_after(r->self, &r->keepalive, (int64_t)r->g->settings.keepalive_ms * 1000000, TAG_KEEPALIVE);
}

/* Of the first attempt alone: a later one computes the same prompt once more. */
static void take_prefilled(struct request *r, struct act_msg *m)
{
    const struct act_p_prefilled *p = act_p_prefilled(m);
    act_place_progress(&r->place, false);
    if (r->prefilled)
        return;
    r->prefilled = act_now(r->self);
    r->usage.cached_tokens = (int)p->cached;
    r->g->metrics.prompt_tokens += p->ids;
    r->g->metrics.cached_tokens += p->cached;
    r->g->metrics.below_tokens += p->below < p->cached ? p->below : p->cached;
    gw_observe(&r->g->metrics.prefill, between(r->computing, r->prefilled));
}

static void take_prefilling(struct request *r)
{
    if (r->computing)
        return;
    r->computing = act_now(r->self);
    gw_observe(&r->g->metrics.queue, between(r->started, r->computing));
}

static void no_place(struct request *r)
{
    if (r->place.status == -EAGAIN)
        fail_text(r, 429, "overloaded", "every part of the engine is busy; try again");
    else if (r->place.status == -ESHUTDOWN)
        fail_text(r, 503, "draining", "the server is shutting down");
    else if (r->place.status == -ENOLINK)
        fail_text(r, 503, "unavailable",
                  "nobody computes some of the experts: their nodes are gone or do not answer; try again later");
    else if (r->place.replaced)
        fail_text(r, 503, "unavailable", "parts of the engine ended while they worked on this request, several times");
    else if (r->g->lost && (!strcmp(r->g->lost, "prefill") || !strcmp(r->g->lost, "decode")))
        fail_text(r, 503, "unavailable",
                  !strcmp(r->g->lost, "prefill") ? "no prefill node is connected; try again later"
                                                 : "no decode node is connected; try again later");
    else
        fail_text(r, 503, "unavailable", "a part of the engine is not there");
}

static void note_replaced(struct request *r)
{
    if (!r->place.reason)
        return; /* asks again for the same attempt */
    act_log_event(r->g->log, ACT_LOG_WARNING, "request", r->job->id, "placed_again",
                  "id=%s attempt=%d tokens=%u reason=%s", r->job->public_id, r->place.attempt, r->received,
                  act_reason_name(r->place.reason));
    r->g->metrics.replaced++;
    r->place.reason = 0;
}

/* What the message means for the request's place. False: that is all it means. */
static bool take_placement(struct request *r, struct act_msg *m)
{
    switch (act_place_message(&r->place, m)) {
    case ACT_PLACE_NONE:
        return true;
    case ACT_PLACE_STALE:
        break;
    case ACT_PLACE_ASK:
        note_replaced(r);
        if (ask_for_place(r))
            fail_text(r, 503, "overloaded", "the engine takes no requests at this moment");
        break;
    case ACT_PLACE_GO:
        if (send_prefill(r))
            fail_text(r, 503, "overloaded", "the engine takes no requests at this moment");
        break;
    case ACT_PLACE_FAILED:
        no_place(r);
        break;
    case ACT_PLACE_MOVED:
        r->drafts_before = r->usage.drafts;
        r->g->metrics.moved++;
        act_log_event(r->g->log, ACT_LOG_INFO, "request", r->job->id, "moved", "id=%s attempt=%d tokens=%u",
                      r->job->public_id, r->place.attempt, r->received);
        break;
    }
    return false;
}

static int request_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct request *r = state;
    bool first = !r->started;
    if (first) {
        r->started = act_now(self);
        r->g->metrics.waiting++;
    }
    if (r->job->gone && !r->ended) {
        give_up(r, -ECONNRESET);
        finish_actor(r, GW_OUT_CANCELLED);
    } else if (r->job->cut) {
        fail_text(r, 503, "shutting_down", "the server is stopping");
    } else if (first) {
        prepare(r);
    }
    for (int i = 0; i < count && !r->ended; i++) {
        if (m[i].type == ACT_UNDELIVERABLE && act_msg_returned_type(&m[i]) == ACT_JOB)
            fail_text(r, 503, "unavailable", "the part of the server that reads long prompts is not there");
        else if (!take_placement(r, &m[i]))
            continue;
        else if (m[i].type == ACT_TOKENS)
            take_tokens(r, &m[i]);
        else if (m[i].type == ACT_JOB_DONE)
            take_prompt(r, &m[i]);
        else if (m[i].type == ACT_PREFILLING)
            take_prefilling(r);
        else if (m[i].type == ACT_PREFILLED)
            take_prefilled(r, &m[i]);
        else if (m[i].type == ACT_FAILED)
            take_failed(r, &m[i]);
        else if (m[i].type == ACT_TIMER)
            keep_alive(r);
    }
    return 0;
}

static int request_start(struct act_self *self, void *state, const void *arg)
{
    struct request *r = state;
    r->job = (struct gw_job *)arg;
    r->g = r->job->g;
    r->self = self;
    r->job->self = self;
    r->g->requests++;
    r->job->next = r->g->jobs;
    if (r->job->next)
        r->job->next->prev = r->job;
    r->g->jobs = r->job;
    act_yield(self);
    return 0;
}

static void request_stop(struct act_self *self, void *state, int reason)
{
    struct request *r = state;
    (void)self;
    if (!r->ended && r->started) {
        give_up(r, -ECANCELED);
        if (!r->job->gone && gw_exchange_begun(r->job->x))
            gw_exchange_abort(r->job->x);
        else if (!r->job->gone)
            gw_answer_error(r->g, r->job->x, r->job->protocol,
                            &(struct gw_error){.status = r->status = 503,
                                               .type = "server_error",
                                               .code = "shutting_down",
                                               .message = "the server is stopping"});
        count_end(r, GW_OUT_ERROR);
    }
    (void)reason;
    if (r->started)
        act_place_end(&r->place);
    gw_prompt_free(&r->prompt);
    gw_prompt_job_free(r->job->unread);
    mdl_text_free(&r->piece);
    gw_output_free(r->output);
    gw_reply_free(r->reply);
    gw_bytes_free(&r->out);
    gw_request_free(&r->job->request);
    if (r->job->key)
        gw_key_leave(&r->g->keys, r->job->key);
    *(r->job->prev ? &r->job->prev->next : &r->g->jobs) = r->job->next;
    if (r->job->next)
        r->job->next->prev = r->job->prev;
    if (--r->g->requests == 0 && r->g->draining && r->g->self)
        act_yield(r->g->self);
    free(r->job);
}

const struct act_behaviour gw_request_behaviour = {
    .name = "request",
    .state_size = sizeof(struct request),
    .start = request_start,
    .receive = request_receive,
    .stop = request_stop,
};
