#include "actors/gateway/gateway.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "actors/gateway/bytes.h"
#include "actors/gateway/status_page.h"
#include "actors/runtime/stats.h"
#include "config/version.h"

enum { TAG_CLOSING = 1, CLOSING_NS = 10000000 };

struct gateway {
    struct gw_context *g;
    bool closing; /* every request has ended: connections are let go of */
    struct act_timer look;
};

/* ---- answers ---- */

static void answer_json(struct gw_context *g, struct gw_exchange *x, int status, json_t *j)
{
    char id[GW_REQUEST_ID], *text = json_dumps(j, JSON_COMPACT | JSON_PRESERVE_ORDER);
    gw_request_id(g, x, id);
    gw_exchange_reply(x, status, "application/json", &(struct gw_header){"X-Request-Id", id}, 1, text ? text : "{}",
                      text ? strlen(text) : 2);
    free(text);
    json_decref(j);
}

void gw_answer_error(struct gw_context *g, struct gw_exchange *x, enum gw_protocol protocol, const struct gw_error *err)
{
    size_t len;
    char retry[16], id[GW_REQUEST_ID], *body = gw_error_body(protocol, err, &len);
    struct gw_header h[4] = {{"X-Request-Id", id}};
    int n = 1;
    gw_request_id(g, x, id);
    snprintf(retry, sizeof retry, "%d", err->retry_after);
    if (err->retry_after > 0)
        h[n++] = (struct gw_header){"Retry-After", retry};
    if (err->status == 401)
        h[n++] = (struct gw_header){"WWW-Authenticate", "Bearer"};
    if (err->allow)
        h[n++] = (struct gw_header){"Allow", err->allow};
    gw_exchange_reply(x, err->status, "application/json", h, n, body ? body : "", body ? len : 0);
    free(body);
}

static void refuse(struct gw_context *g, struct gw_exchange *x, enum gw_protocol protocol, enum gw_refusal why,
                   int status, const char *type, const char *code, const char *message)
{
    struct gw_error err = {.status = status, .retry_after = status == 429 ? 1 : 0};
    snprintf(err.type, sizeof err.type, "%s", type);
    snprintf(err.code, sizeof err.code, "%s", code);
    snprintf(err.message, sizeof err.message, "%s", message);
    g->metrics.refused[why]++;
    gw_answer_error(g, x, protocol, &err);
}

/* ---- who asks ---- */

/* The client's own id when it is one, else the number. */
static void public_id(const struct gw_exchange *x, uint64_t number, char out[GW_REQUEST_ID])
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-";
    const char *given = gw_exchange_header(x, "x-request-id");
    size_t n = given ? strlen(given) : 0;
    if (n && n < GW_REQUEST_ID && strspn(given, allowed) == n)
        memcpy(out, given, n + 1);
    else
        snprintf(out, GW_REQUEST_ID, "%016llx", (unsigned long long)number);
}

void gw_request_id(struct gw_context *g, struct gw_exchange *x, char out[GW_REQUEST_ID])
{
    const struct gw_job *job = gw_exchange_user(x);
    if (job)
        memcpy(out, job->public_id, GW_REQUEST_ID);
    else
        public_id(x, act_random(g->self), out);
}

static const char *sent_key(const struct gw_exchange *x)
{
    const char *bearer = gw_exchange_header(x, "authorization");
    if (bearer && !strncasecmp(bearer, "bearer ", 7))
        return bearer + 7 + strspn(bearer + 7, " ");
    return gw_exchange_header(x, "x-api-key");
}

bool gw_admit(struct gw_context *g, struct gw_exchange *x, enum gw_protocol protocol, struct gw_key **key)
{
    const char *sent = sent_key(x);
    *key = NULL;
    if (!g->keys_file)
        return true;
    if (sent)
        *key = gw_keys_find(&g->keys, sent, strlen(sent));
    if (*key)
        return true;
    struct gw_error err;
    gw_error_set(&err, protocol, 401, NULL, "%s",
                 sent ? "this API key is not known here"
                      : "an API key is needed; send it as \"Authorization: Bearer KEY\" or \"x-api-key: KEY\"");
    snprintf(err.code, sizeof err.code, "invalid_api_key");
    g->metrics.refused[GW_REF_KEY]++;
    gw_answer_error(g, x, protocol, &err);
    return false;
}

static void read_keys(struct gw_context *g)
{
    struct cfg_error err;
    if (!g->keys_file)
        return;
    if (gw_keys_load(&g->keys, g->keys_file, &err))
        act_log_write(g->log, ACT_LOG_ERROR, "gateway", 0, "%s; the keys stay as they were", err.msg);
    else
        act_log_event(g->log, ACT_LOG_INFO, "gateway", 0, "keys_read", "keys=%d", g->keys.listed);
}

/* Connections that are open keep the old certificate, which goes with the last of them. */
static void read_certificate(struct gw_context *g)
{
    struct ssl_ctx_st *tls;
    struct cfg_error err;
    char until[32];
    if (!g->tls)
        return;
    if (gw_http_tls_new(g->tls_cert, g->tls_key, &tls, &err)) {
        act_log_write(g->log, ACT_LOG_ERROR, "gateway", 0, "%s; the certificate stays as it was", err.msg);
        return;
    }
    gw_http_set_tls(g->http, tls);
    gw_http_tls_free(g->tls);
    g->tls = tls;
    gw_http_tls_until(tls, until);
    act_log_event(g->log, ACT_LOG_INFO, "gateway", 0, "certificate_read", "until=%s", until);
}

static void reopen_trace(struct gw_context *g)
{
    struct cfg_error err;
    if (gw_trace_reopen(g->trace, &err))
        act_log_write(g->log, ACT_LOG_ERROR, "gateway", 0, "%s", err.msg);
    else if (g->trace)
        act_log_write(g->log, ACT_LOG_INFO, "gateway", 0, "the request trace was opened again");
}

/* ---- endpoints ---- */

#define MODELS_PATH "/v1/models"

static json_t *describe_model(const struct gw_context *g)
{
    return json_pack("{s:s,s:s,s:I,s:s,s:i}", "id", g->settings.model_name, "object", "model", "created",
                     (json_int_t)g->settings.started_at, "owned_by", "weft", "context_length", g->settings.context);
}

/* `text` as it stands in a path, its %XX included, names the model. */
static bool names_model(const struct gw_context *g, const char *text)
{
    const char *name = g->settings.model_name;
    for (; *text && *name; name++) {
        char hex[3] = {0}, c = *text;
        if (c == '%' && isxdigit((unsigned char)text[1]) && isxdigit((unsigned char)text[2])) {
            memcpy(hex, text + 1, 2);
            c = (char)strtol(hex, NULL, 16);
            text += 2;
        }
        if (c != *name)
            return false;
        text++;
    }
    return !*text && !*name;
}

/* The list, or the one that the path names. */
static void show_models(struct gw_context *g, struct gw_exchange *x)
{
    const char *name = gw_exchange_request(x)->path + strlen(MODELS_PATH);
    char message[256];
    if (!*name) {
        answer_json(g, x, 200, json_pack("{s:s,s:[o]}", "object", "list", "data", describe_model(g)));
    } else if (names_model(g, name + 1)) {
        answer_json(g, x, 200, describe_model(g));
    } else {
        snprintf(message, sizeof message, "there is no model %.90s; this server has %.90s", name + 1,
                 g->settings.model_name);
        refuse(g, x, GW_CHAT, GW_REF_BAD_REQUEST, 404, "invalid_request_error", "model_not_found", message);
    }
}

static void show_version(struct gw_context *g, struct gw_exchange *x)
{
    char revision[17];
    snprintf(revision, sizeof revision, "%016llx", (unsigned long long)g->settings.revision);
    answer_json(g, x, 200,
                json_pack("{s:s,s:s,s:s,s:s,s:i,s:i,s:s}", "version", WEFT_VERSION, "model", g->settings.model_name,
                          "model_revision", revision, "numerics", g->settings.numerics, "threads", g->settings.threads,
                          "context", g->settings.context, "speculation", g->settings.speculation));
}

/* live: the loop turns, which this answer shows. ready: accepting, and no part of the engine is stuck. */
static void show_health(struct gw_context *g, struct gw_exchange *x, bool ready)
{
    struct act_runtime *rt = act_self_runtime(g->self);
    json_t *workers = json_array();
    bool stuck = false;
    for (int w = 0; w < act_runtime_workers(rt); w++) {
        struct act_stats_worker s;
        if (act_stats_worker(rt, w, &s))
            continue;
        stuck |= s.progress_age_ns > g->settings.stuck_ns;
        json_array_append_new(workers, json_pack("{s:s,s:f,s:f}", "worker", s.name, "turn_age_seconds",
                                                 1e-9 * (double)s.turn_age_ns, "progress_age_seconds",
                                                 1e-9 * (double)s.progress_age_ns));
    }
    const char *status = g->draining ? "draining" : g->lost ? "lost" : stuck ? "stuck" : "ok";
    json_t *j = json_pack("{s:s}", "status", status);
    if (g->lost)
        json_object_set_new(j, "lacks", json_string(g->lost));
    json_object_set_new(j, "workers", workers);
    answer_json(g, x, ready && strcmp(status, "ok") ? 503 : 200, j);
}

static void add_actor(void *ctx, const struct act_stats_actor *a)
{
    json_array_append_new(ctx,
                          json_pack("{s:s,s:i,s:i,s:b,s:I,s:I,s:i,s:i,s:f}", "name", a->name, "index",
                                    (int)a->addr.index, "worker", a->worker, "bulk", a->bulk, "batches",
                                    (json_int_t)a->batches, "messages", (json_int_t)a->messages, "waiting", a->waiting,
                                    "outbox", a->outbox, "progress_age_seconds", 1e-9 * (double)a->progress_age_ns));
}

/* Only where it is enabled and to this machine only; to others there is nothing here. */
static void show_actors(struct gw_context *g, struct gw_exchange *x)
{
    if (!g->settings.debug || !gw_exchange_request(x)->loopback) {
        refuse(g, x, GW_CHAT, GW_REF_BAD_REQUEST, 404, "invalid_request_error", "not_found",
               "there is nothing at /debug; security.debug = true offers it to clients on this machine");
        return;
    }
    json_t *list = json_array();
    act_stats_actors(act_self_runtime(g->self), add_actor, list);
    answer_json(g, x, 200, json_pack("{s:o}", "actors", list));
}

static void show_metrics(struct gw_context *g, struct gw_exchange *x)
{
    struct gw_bytes b = {0};
    gw_metrics_text(g, &b);
    gw_exchange_reply(x, b.failed ? 503 : 200, "text/plain; version=0.0.4; charset=utf-8", NULL, 0, b.p ? b.p : "",
                      b.n);
    gw_bytes_free(&b);
}

void gw_text_answer(struct gw_context *g, struct gw_exchange *x, struct gw_text_job *j)
{
    char id[GW_REQUEST_ID];
    gw_request_id(g, x, id);
    if (j->done) {
        gw_exchange_reply(x, 200, "application/json", &(struct gw_header){"X-Request-Id", id}, 1, j->out.p, j->out.n);
        return;
    }
    g->metrics.refused[GW_REF_BAD_REQUEST]++;
    gw_answer_error(g, x, j->what == GW_TEXT_COUNT ? GW_MESSAGES : GW_CHAT, &j->err);
}

static void refuse_busy(struct gw_context *g, struct gw_exchange *x, enum gw_protocol protocol)
{
    refuse(g, x, protocol, GW_REF_BUSY, 429, "rate_limit_error", "busy", "too many requests at a time; try again");
}

static void refuse_memory(struct gw_context *g, struct gw_exchange *x, enum gw_protocol protocol)
{
    refuse(g, x, protocol, GW_REF_BUSY, 503, "server_error", "out_of_memory", "the server is out of memory");
}

static struct gw_job *new_job(struct gw_context *g, struct gw_exchange *x, enum gw_protocol protocol)
{
    struct gw_job *job = calloc(1, sizeof *job);
    if (!job)
        return NULL;
    job->g = g;
    job->x = x;
    job->protocol = protocol;
    job->id = act_random(g->self) | 1;
    public_id(x, job->id, job->public_id);
    return job;
}

/* An actor for a job. False: refused, the job is still the caller's. */
static bool spawn_job(struct gw_context *g, struct gw_job *job, const struct act_behaviour *behaviour)
{
    struct act_addr addr;
    struct cfg_error e;
    const struct act_spawn spec = {.behaviour = behaviour, .arg = job, .outbox = 16};
    gw_exchange_set_user(job->x, job);
    if (act_spawn(g->self, &spec, &addr, &e) == 0)
        return true;
    gw_exchange_set_user(job->x, NULL);
    refuse_busy(g, job->x, job->protocol);
    return false;
}

static void start_text(struct gw_context *g, struct gw_exchange *x, enum gw_text what)
{
    enum gw_protocol protocol = what == GW_TEXT_COUNT ? GW_MESSAGES : GW_CHAT;
    size_t len;
    char *body = gw_exchange_take_body(x, &len);
    bool brief = len <= GW_SHORT_BODY;
    struct gw_text_job *text = body ? gw_text_job_new(brief ? &g->here : &g->there, what, body, len) : NULL;
    struct gw_job *job = text && !brief ? new_job(g, x, protocol) : NULL;
    if (text && brief) {
        gw_text_job_run(text);
        gw_text_answer(g, x, text);
    } else if (!job) {
        refuse_memory(g, x, protocol);
    } else {
        job->text = text;
        if (spawn_job(g, job, &gw_text_behaviour))
            return;
        free(job);
    }
    gw_text_job_free(text);
}

/* Parses a short body; a long one is left to the helper. False: refused. */
static bool read_body(struct gw_context *g, struct gw_job *job)
{
    struct gw_error err;
    size_t len;
    const struct gw_http_request *h = gw_exchange_request(job->x);
    if (h->len > GW_SHORT_BODY) {
        char *body = gw_exchange_take_body(job->x, &len);
        job->unread = body ? gw_prompt_job_new(&g->there, job->protocol, body, len) : NULL;
        if (!job->unread)
            refuse_memory(g, job->x, job->protocol);
        return job->unread != NULL;
    }
    bool parsed = gw_request_parse(job->protocol, h->body, h->len, &job->request, &err);
    if (parsed && gw_request_check_ids(&job->request, g->model->vocab_size, &err))
        return true;
    if (parsed)
        gw_request_free(&job->request);
    g->metrics.refused[GW_REF_BAD_REQUEST]++;
    gw_answer_error(g, job->x, job->protocol, &err);
    return false;
}

static void start_generation(struct gw_context *g, struct gw_exchange *x, enum gw_protocol protocol)
{
    struct gw_key *key;
    if (g->draining) {
        refuse(g, x, protocol, GW_REF_DRAINING, 503, "server_error", "draining", "the server is shutting down");
        return;
    }
    if (!gw_admit(g, x, protocol, &key))
        return;
    if (g->requests >= g->settings.max_requests) {
        refuse_busy(g, x, protocol);
        return;
    }
    struct gw_job *job = new_job(g, x, protocol);
    if (!job) {
        refuse_memory(g, x, protocol);
        return;
    }
    job->trace = g->settings.debug && gw_exchange_request(x)->loopback && gw_exchange_header(x, "x-weft-trace");
    if (!read_body(g, job)) {
        free(job);
        return;
    }
    job->key = key;
    if (key && !gw_key_enter(key)) {
        refuse(g, x, protocol, GW_REF_BUSY, 429, "rate_limit_error", "key_busy",
               "this API key has as many requests at a time as it may have; try again");
        job->key = NULL;
    } else if (spawn_job(g, job, &gw_request_behaviour)) {
        return;
    }
    if (job->key)
        gw_key_leave(&g->keys, job->key);
    gw_prompt_job_free(job->unread);
    gw_request_free(&job->request);
    free(job);
}

/* ---- routes ---- */

enum route {
    ROUTE_CHAT,
    ROUTE_COMPLETIONS,
    ROUTE_RESPONSES,
    ROUTE_MESSAGES,
    ROUTE_COUNT,
    ROUTE_TOKENIZE,
    ROUTE_DETOKENIZE,
    ROUTE_MODELS,
    ROUTE_LIVE,
    ROUTE_READY,
    ROUTE_METRICS,
    ROUTE_VERSION,
    ROUTE_PAGE,
    ROUTE_DEBUG_ACTORS,
};

static const struct {
    const char *method, *path;
    enum route route;
} routes[] = {
    {"POST", "/v1/chat/completions", ROUTE_CHAT},
    {"POST", "/v1/completions", ROUTE_COMPLETIONS},
    {"POST", "/v1/responses", ROUTE_RESPONSES},
    {"POST", "/v1/messages", ROUTE_MESSAGES},
    {"POST", "/v1/messages/count_tokens", ROUTE_COUNT},
    {"POST", "/tokenize", ROUTE_TOKENIZE},
    {"POST", "/detokenize", ROUTE_DETOKENIZE},
    {"GET", MODELS_PATH, ROUTE_MODELS},
    {"GET", "/health/live", ROUTE_LIVE},
    {"GET", "/health/ready", ROUTE_READY},
    {"GET", "/metrics", ROUTE_METRICS},
    {"GET", "/version", ROUTE_VERSION},
    {"GET", "/", ROUTE_PAGE},
    {"GET", "/debug/actors", ROUTE_DEBUG_ACTORS},
};

/* Under the list of models is each of them. */
static bool leads_to(size_t i, const char *path)
{
    size_t len = strlen(routes[i].path);
    return !strcmp(routes[i].path, path) ||
           (routes[i].route == ROUTE_MODELS && !strncmp(routes[i].path, path, len) && path[len] == '/');
}

static enum gw_protocol protocol_of(const char *path)
{
    return !strncmp(path, "/v1/messages", 12) ? GW_MESSAGES
           : !strcmp(path, "/v1/responses")   ? GW_RESPONSES
           : !strcmp(path, "/v1/completions") ? GW_COMPLETIONS
                                              : GW_CHAT;
}

/* With keys in use: probes are answered to everybody; figures and the status page to this machine too. Generations ask
 * for themselves. */
static bool is_open(const struct gw_http_request *h, enum route route)
{
    switch (route) {
    case ROUTE_LIVE:
    case ROUTE_READY:
    case ROUTE_CHAT:
    case ROUTE_COMPLETIONS:
    case ROUTE_RESPONSES:
    case ROUTE_MESSAGES:
        return true;
    case ROUTE_METRICS:
    case ROUTE_VERSION:
    case ROUTE_PAGE:
    case ROUTE_DEBUG_ACTORS:
        return h->loopback;
    default:
        return false;
    }
}

static void answer(struct gw_context *g, struct gw_exchange *x, enum route route)
{
    struct gw_key *key;
    const struct gw_http_request *h = gw_exchange_request(x);
    if (!is_open(h, route) && !gw_admit(g, x, protocol_of(h->path), &key))
        return;
    switch (route) {
    case ROUTE_CHAT:
        start_generation(g, x, GW_CHAT);
        break;
    case ROUTE_COMPLETIONS:
        start_generation(g, x, GW_COMPLETIONS);
        break;
    case ROUTE_RESPONSES:
        start_generation(g, x, GW_RESPONSES);
        break;
    case ROUTE_MESSAGES:
        start_generation(g, x, GW_MESSAGES);
        break;
    case ROUTE_COUNT:
        start_text(g, x, GW_TEXT_COUNT);
        break;
    case ROUTE_TOKENIZE:
        start_text(g, x, GW_TEXT_TOKENIZE);
        break;
    case ROUTE_DETOKENIZE:
        start_text(g, x, GW_TEXT_DETOKENIZE);
        break;
    case ROUTE_MODELS:
        show_models(g, x);
        break;
    case ROUTE_LIVE:
    case ROUTE_READY:
        show_health(g, x, route == ROUTE_READY);
        break;
    case ROUTE_METRICS:
        show_metrics(g, x);
        break;
    case ROUTE_VERSION:
        show_version(g, x);
        break;
    case ROUTE_DEBUG_ACTORS:
        show_actors(g, x);
        break;
    case ROUTE_PAGE:
        gw_exchange_reply(x, 200, "text/html; charset=utf-8", NULL, 0, gw_status_page, strlen(gw_status_page));
        break;
    }
}

static void refuse_method(struct gw_context *g, struct gw_exchange *x, const char *allow)
{
    const struct gw_http_request *h = gw_exchange_request(x);
    struct gw_error err = {
        .status = 405, .type = "invalid_request_error", .code = "method_not_allowed", .allow = allow};
    snprintf(err.message, sizeof err.message, "%.16s is not allowed for %.180s", h->method, h->path);
    g->metrics.refused[GW_REF_BAD_REQUEST]++;
    gw_answer_error(g, x, protocol_of(h->path), &err);
}

static bool is_figure(enum route route)
{
    return route == ROUTE_LIVE || route == ROUTE_READY || route == ROUTE_METRICS || route == ROUTE_VERSION;
}

static void on_request(void *ctx, struct gw_exchange *x)
{
    struct gw_context *g = ctx;
    const struct gw_http_request *h = gw_exchange_request(x);
    const char *allow = NULL;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (!leads_to(i, h->path) || (g->figures_only && !is_figure(routes[i].route)))
            continue;
        allow = !strcmp(routes[i].method, "GET") ? "GET, HEAD" : routes[i].method;
        if (!strcmp(routes[i].method, h->method) || (!strcmp(h->method, "HEAD") && !strcmp(routes[i].method, "GET"))) {
            answer(g, x, routes[i].route);
            return;
        }
    }
    if (allow) {
        refuse_method(g, x, allow);
        return;
    }
    char message[256];
    snprintf(message, sizeof message, "there is nothing at %.120s%s", h->path,
             g->figures_only ? "; this node is no gateway: it has /metrics, /health/live, /health/ready and /version"
                             : "");
    refuse(g, x, protocol_of(h->path), GW_REF_BAD_REQUEST, 404, "invalid_request_error", "not_found", message);
}

static void on_refuse(void *ctx, struct gw_exchange *x, int status, const char *reason)
{
    refuse(ctx, x, protocol_of(gw_exchange_request(x)->path), GW_REF_BAD_REQUEST, status, "invalid_request_error", "",
           reason);
}

static void on_gone(void *ctx, struct gw_exchange *x, enum gw_gone why)
{
    struct gw_job *job = gw_exchange_user(x);
    (void)ctx;
    (void)why;
    if (!job)
        return;
    job->gone = true;
    act_yield(job->self);
}

/* ---- the actor ---- */

/* Prefill and Decode are the Router's to watch. */
static const char *const part_name[] = {"router", "tier"};

static struct act_addr *part(struct gw_context *g, uint32_t i)
{
    struct act_addr *const parts[] = {&g->router, &g->tier};
    return parts[i];
}

static void watch_engine(struct gw_context *g)
{
    for (uint32_t i = 0; i < 2; i++)
        if (!act_addr_is_nobody(*part(g, i)))
            act_monitor(g->self, *part(g, i), i);
}

/* A part of the engine has ended. One that was started again is used from now on. */
static void take_down(struct gw_context *g, struct act_msg *m)
{
    uint32_t i = act_p_down(m)->tag;
    if (act_p_down(m)->reason == -ESHUTDOWN)
        return;
    struct act_addr now = act_current(act_self_runtime(g->self), act_p_down(m)->who);
    act_log_event(g->log, ACT_LOG_ERROR, "gateway", 0, "part_ended", "part=%s reason=%s restarted=%d", part_name[i],
                  act_reason_name(act_p_down(m)->reason), !act_addr_is_nobody(now));
    if (!act_addr_is_nobody(now)) {
        *part(g, i) = now;
        act_monitor(g->self, now, i);
        return;
    }
    g->lost = part_name[i];
    if (g->failed)
        g->failed(g->ready_ctx);
}

static int gateway_start(struct act_self *self, void *state, const void *arg)
{
    struct gateway *s = state;
    struct gw_context *g = s->g = (struct gw_context *)arg;
    struct cfg_error err;
    const struct gw_http_handler handler = {g, on_request, on_refuse, on_gone};
    g->self = self;
    int r = g->keys_file ? gw_keys_load(&g->keys, g->keys_file, &err) : 0;
    if (!r)
        r = gw_http_new(act_self_event_base(self), &g->settings.http, &handler, &g->http, &err);
    if (!r)
        r = gw_http_listen(g->http, g->settings.host, g->settings.port, g->tls, &g->bound_port, &err);
    if (r) {
        if (g->start_error)
            *g->start_error = err;
        gw_http_free(g->http);
        g->http = NULL;
        return r;
    }
    watch_engine(g);
    if (g->ready)
        g->ready(g->ready_ctx, g->bound_port);
    return 0;
}

/* While requests run, new ones are answered with 503. After the last one the port is closed, and the server is drained
 * once every answer has left. */
static void go_on_draining(struct act_self *self, struct gateway *s)
{
    struct gw_context *g = s->g;
    struct gw_http_stats stats;
    if (!g->draining || g->requests || g->figures_only)
        return;
    if (!s->closing)
        gw_http_stop_listening(g->http);
    s->closing = true;
    gw_http_stat(g->http, &stats);
    if (stats.connections)
        act_timer_after(self, &s->look, CLOSING_NS, TAG_CLOSING);
    else if (g->drained)
        g->drained(g->ready_ctx);
}

static void drain(struct gw_context *g, uint32_t flags)
{
    if (!g->draining)
        memcpy(g->drain.outcome, g->metrics.outcome, sizeof g->drain.outcome);
    g->draining = true;
    for (struct gw_job *job = g->jobs; job && flags & GW_DRAIN_CUT; job = job->next) {
        g->drain.cut += !job->cut;
        job->cut = true;
        act_yield(job->self);
    }
}

static int gateway_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct gateway *s = state;
    struct gw_context *g = s->g;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_KV_STATS) {
            const struct act_b_kv_stats *b = act_b_kv_stats(&m[i]);
            if (g->tiers)
                act_tier_watch_take(g->tiers, &m[i]);
            if (act_p_kv_stats(&m[i])->tier < GW_TIERS)
                g->metrics.tier[act_p_kv_stats(&m[i])->tier] = *b;
            if (act_p_kv_stats(&m[i])->tier) /* below the device */
                continue;
            g->metrics.kv.capacity = b->capacity;
            g->metrics.kv.held = b->held;
            g->metrics.kv.cached = b->cached;
            g->metrics.kv.evicted = b->evicted;
        }
        if (m[i].type == ACT_ENGRAM_STATS)
            gw_take_engram(g, &m[i]);
        if (m[i].type == ACT_TIER_TIMES)
            gw_take_tier_times(g, &m[i]);
        if (m[i].type == ACT_FIGURES)
            gw_take_engine_figures(g, &m[i]);
        if (m[i].type == ACT_DECODE_STATS)
            gw_take_figures(g, &m[i]);
        if (m[i].type == ACT_DOWN)
            take_down(g, &m[i]);
        if (m[i].type == ACT_RELOAD) {
            read_keys(g);
            read_certificate(g);
            reopen_trace(g);
        }
        if (m[i].type == ACT_DRAIN)
            drain(g, act_p_drain(&m[i])->flags);
    }
    go_on_draining(self, s);
    return 0;
}

static void gateway_stop(struct act_self *self, void *state, int reason)
{
    struct gw_context *g = ((struct gateway *)state)->g;
    (void)self;
    gw_http_free(g->http);
    g->http = NULL;
    g->self = NULL;
    gw_free_engine_figures(g);
    free(g->decode_part);
    g->decode_part = NULL;
    if (reason != -ESHUTDOWN && g->failed)
        g->failed(g->ready_ctx);
}

const struct act_behaviour gw_gateway_behaviour = {
    .name = "gateway",
    .state_size = sizeof(struct gateway),
    .start = gateway_start,
    .receive = gateway_receive,
    .stop = gateway_stop,
};
