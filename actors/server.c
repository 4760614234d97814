#include "actors/server.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "actors/decode.h"
#include "actors/engine.h"
#include "actors/expert.h"
#include "actors/gateway/gateway.h"
#include "actors/prefill.h"
#include "actors/runtime/log.h"
#include "actors/runtime/runtime.h"
#include "actors/tier_device.h"
#include "model/chat.h"
#include "model/team.h"

enum { WORKER_IO, WORKER_ENGINE, WORKERS };

struct act_server {
    const struct cfg_config *config;
    struct act_log *log;
    struct mdl_model *m;
    struct mdl_tokenizer *tok;
    struct mdl_tok_encoder *enc;
    struct act_runtime *rt;
    struct act_engine engine;
    struct act_expert_arg expert[ACT_SHARDS_MAX];
    struct gw_context gateway;
    struct act_addr gateway_addr;
    /* What the gateway's thread tells the main one. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ready, drained, failed;
    int port;
    struct cfg_error gateway_error;
};

static void on_ready(void *ctx, int port)
{
    struct act_server *s = ctx;
    pthread_mutex_lock(&s->lock);
    s->ready = true;
    s->port = port;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void on_failed(void *ctx)
{
    struct act_server *s = ctx;
    pthread_mutex_lock(&s->lock);
    s->failed = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void on_drained(void *ctx)
{
    struct act_server *s = ctx;
    pthread_mutex_lock(&s->lock);
    s->drained = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* A model without the chat's markers still serves completions. Who starts it learns of it before the first chat does.
 */
static void warn_of_missing_markers(const struct act_server *s)
{
    struct cfg_error why = {0};
    if (mdl_chat_check(s->tok, false, &why))
        act_log_write(s->log, ACT_LOG_WARNING, "serve", 0, "chats will be refused: %s", why.msg);
    else if (mdl_chat_check(s->tok, true, &why))
        act_log_write(s->log, ACT_LOG_WARNING, "serve", 0, "chats with tools will be refused: %s", why.msg);
}

static int open_model(struct act_server *s, struct cfg_error *err)
{
    static const char *const paths[] = {NULL, "scalar", "avx2", "avx512"};
    const struct cfg_config *c = s->config;
    const char *cpu = getenv("WEFT_CPU") ? NULL : paths[c->compute.cpu];
    int r = mdl_model_open(c->model.path, c->compute.threads, cpu, &s->m, err);
    if (!r)
        r = mdl_tokenizer_load(c->model.path, &s->tok, err);
    if (!r)
        r = mdl_tok_encoder_new(s->tok, &s->enc, err);
    if (!r && mdl_tokenizer_vocab_size(s->tok) > s->m->cfg->vocab_size)
        r = cfg_error_set(err, EINVAL, "%s: the tokenizer has %d ids, the model only %d", c->model.path,
                          mdl_tokenizer_vocab_size(s->tok), s->m->cfg->vocab_size);
    return r == -EINVAL ? -EBADMSG : r;
}

/* The first thing in the configuration that does not fit the model. */
static int check_config(const struct act_server *s, struct cfg_error *err)
{
    const struct mdl_config *m = s->m->cfg;
    struct cfg_report report = {0};
    int r = cfg_config_check_model(s->config, m->window, m->max_position, m->n_draft ? m->draft_block : 0, &report);
    if (r && report.count) {
        const struct cfg_problem *p = &report.problems[0];
        cfg_error_set(err, EINVAL, "%s:%d: %s. %s", p->file, p->line, p->message, p->remedy);
    } else if (r) {
        cfg_error_set(err, EINVAL, "the configuration does not fit the model");
    }
    cfg_report_free(&report);
    return r;
}

static int plan_engine(struct act_server *s, struct cfg_error *err)
{
    const struct cfg_config *c = s->config;
    const struct mdl_config *m = s->m->cfg;
    struct act_engine *e = &s->engine;
    int per = c->kv.block_tokens;
    e->m = s->m;
    e->vocab = mdl_tokenizer_vocab_size(s->tok);
    int r = mdl_kv_layout_init(m, per, &e->layout, err);
    if (r)
        return r;
    int64_t pages = c->kv.memory / (int64_t)e->layout.block_bytes;
    if (pages < 2 || pages > INT32_MAX)
        return cfg_error_set(err, EINVAL, "kv.memory = %lld holds %lld pages of %zu bytes; give room for at least 2",
                             (long long)c->kv.memory, (long long)pages, e->layout.block_bytes);
    int context = c->model.context ? c->model.context : m->max_position;
    if (context > pages * per)
        context = (int)(pages * per);
    e->limits = (struct act_engine_limits){
        .context = context,
        .streams = c->engine.decode_streams,
        .prefills = c->engine.prefill_streams,
        .chunk = c->compute.prefill_chunk,
        .draft = c->speculation.draft_length < m->draft_block ? c->speculation.draft_length : m->draft_block,
        .replay = c->replay.exact || m->cut < 0 ? 0 : cfg_replay_rows(c, m->window),
        .rollback = c->replay.rollback,
        .full_bridge = c->replay.bridge_window == CFG_BRIDGE_FULL,
        .lease = pages > 64 ? 8 : 1,
        .prefill_share_ns = c->engine.prefill_share_us * 1000};
    if (!m->n_draft)
        e->limits.draft = 0;
    e->snapshots = c->kv.snapshots > 0 && e->limits.replay > 0 && e->limits.rollback > 0;
    return kv_device_new((int)pages, e->layout.block_bytes, (size_t)c->kv.snapshots, &e->device, err);
}

static int split_address(const char *listen, char host[256], int *port)
{
    const char *colon = strrchr(listen, ':');
    if (!colon || (size_t)(colon - listen) >= 256)
        return -EINVAL;
    const char *from = listen;
    size_t n = (size_t)(colon - listen);
    if (n > 1 && from[0] == '[' && from[n - 1] == ']') {
        from++;
        n -= 2;
    }
    memcpy(host, from, n);
    host[n] = 0;
    *port = atoi(colon + 1);
    return 0;
}

static int plan_gateway(struct act_server *s, const struct cfg_node *node, struct cfg_error *err)
{
    const struct cfg_config *c = s->config;
    struct gw_context *g = &s->gateway;
    struct gw_settings *set = &g->settings;
    if (split_address(node->listen, set->host, &set->port))
        return cfg_error_set(err, EINVAL, "node \"%s\": listen = \"%s\" is not HOST:PORT", node->name, node->listen);
    const char *slash = strrchr(c->model.path, '/');
    const char *name = c->model.name[0] ? c->model.name : slash && slash[1] ? slash + 1 : c->model.path;
    snprintf(set->model_name, sizeof set->model_name, "%.*s", (int)sizeof set->model_name - 1, name);
    snprintf(set->numerics, sizeof set->numerics, "cpu/%s", s->m->exec.be->name);
    set->started_at = time(NULL);
    set->revision = s->m->ck->revision;
    set->context = s->engine.limits.context;
    set->default_max_tokens = c->sampling.max_tokens;
    set->max_requests = c->limits.requests;
    set->threads = mdl_team_size(s->m->team);
    mdl_sampling_init(&set->sampling);
    set->sampling.temperature = c->sampling.temperature;
    set->sampling.top_p = c->sampling.top_p;
    set->debug = c->security.debug;
    set->stuck_ns = c->limits.stuck_us * 1000;
    set->keepalive_ms = (int)(c->limits.keepalive_us / 1000);
    set->http = (struct gw_http_limits){.connections = c->limits.connections,
                                        .header_bytes = (size_t)c->limits.header_bytes,
                                        .body_bytes = (size_t)c->limits.request_bytes,
                                        .pending_bytes = 1 << 20,
                                        .header_ms = 10000,
                                        .body_ms = 30000,
                                        .idle_ms = 75000,
                                        .stuck_ms = 30000};
    g->model = s->m->cfg;
    g->tok = s->tok;
    g->enc = s->enc;
    g->identity = (struct kv_identity){.revision = set->revision,
                                       .format = KV_FORMAT_ROWS,
                                       .block_tokens = (uint32_t)c->kv.block_tokens,
                                       .numerics = set->numerics};
    g->block_tokens = c->kv.block_tokens;
    g->page_bytes = s->engine.layout.block_bytes;
    g->metrics.decoder.places = s->engine.limits.draft;
    g->log = s->log;
    g->ready = on_ready;
    g->drained = on_drained;
    g->failed = on_failed;
    g->start_error = &s->gateway_error;
    g->keys_file = c->security.keys_file[0] ? c->security.keys_file : NULL;
    g->tls_cert = c->security.tls_cert[0] ? c->security.tls_cert : NULL;
    g->tls_key = c->security.tls_key;
    if (g->tls_cert && gw_http_tls_new(g->tls_cert, g->tls_key, &g->tls, err))
        return -EINVAL;
    g->ready_ctx = s;
    return 0;
}

static int spawn_experts(struct act_server *s, struct cfg_error *err)
{
    struct act_engine *e = &s->engine;
    int n = s->config->engine.expert_shards, experts = s->m->cfg->n_experts;
    n = n < experts ? n : experts;
    for (int i = 0; i < n; i++) {
        int first = experts * i / n, end = experts * (i + 1) / n;
        s->expert[i] = (struct act_expert_arg){s->m, first, end - first};
        e->shard[i] = (struct act_shard){.first = first, .count = end - first};
        const struct act_spawn spec = {.behaviour = &act_expert_behaviour,
                                       .worker = WORKER_ENGINE,
                                       .arg = &s->expert[i],
                                       .policy = ACT_POLICY_RESTART};
        int r = act_runtime_spawn(s->rt, &spec, &e->shard[i].addr, err);
        if (r)
            return r;
    }
    e->n_shards = n;
    return 0;
}

static int spawn_all(struct act_server *s, struct cfg_error *err)
{
    struct act_engine *e = &s->engine;
    struct act_spawn spec = {
        .behaviour = &act_tier_device_behaviour, .worker = WORKER_ENGINE, .arg = e, .outbox = 1024};
    int r = act_runtime_spawn(s->rt, &spec, &e->tier, err);
    if (!r)
        r = spawn_experts(s, err);
    spec.behaviour = &act_decode_behaviour;
    spec.outbox = 4096;
    if (!r)
        r = act_runtime_spawn(s->rt, &spec, &e->decode, err);
    spec.behaviour = &act_prefill_behaviour;
    spec.run_class = ACT_CLASS_BULK;
    if (!r)
        r = act_runtime_spawn(s->rt, &spec, &e->prefill, err);
    s->gateway.prefill = e->prefill;
    s->gateway.decode = e->decode;
    s->gateway.tier = e->tier;
    spec =
        (struct act_spawn){.behaviour = &gw_gateway_behaviour, .worker = WORKER_IO, .arg = &s->gateway, .outbox = 64};
    if (!r) {
        r = act_runtime_spawn(s->rt, &spec, &s->gateway_addr, err);
        if (r && s->gateway_error.msg[0])
            *err = s->gateway_error;
    }
    e->observer = s->gateway_addr;
    return r;
}

int act_server_new(const struct cfg_config *config, const char *node_name, struct act_log *log, struct act_server **out,
                   struct cfg_error *err)
{
    *out = NULL;
    const struct cfg_node *node = node_name              ? cfg_config_node(config, node_name)
                                  : config->n_nodes == 1 ? &config->nodes[0]
                                                         : NULL;
    if (!node)
        return cfg_error_set(err, EINVAL,
                             node_name ? "there is no node \"%s\" in the configuration"
                                       : "the configuration has several nodes; choose one with --node NAME%s",
                             node_name ? node_name : "");
    struct act_server *s = calloc(1, sizeof *s);
    if (!s)
        return cfg_error_set(err, ENOMEM, "server: out of memory");
    s->config = config;
    s->log = log;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    struct act_config rc = {
        .epoch = 1, .workers = WORKERS, .spin_us = 0, .log = log, .lane_slots = 4096, .reply_slots = 4096};
    rc.worker[WORKER_IO] = (struct act_worker_config){
        .name = "io", .kind = ACT_WORKER_IO, .cpu = -1, .actors_max = config->limits.requests + 16};
    rc.worker[WORKER_ENGINE] = (struct act_worker_config){
        .name = "engine", .kind = ACT_WORKER_ENGINE, .cpu = -1, .actors_max = ACT_SHARDS_MAX + 16};
    int r = open_model(s, err);
    if (!r)
        warn_of_missing_markers(s);
    if (!r)
        r = check_config(s, err);
    if (!r)
        r = plan_engine(s, err);
    if (!r)
        r = plan_gateway(s, node, err);
    if (!r)
        r = act_runtime_new(&rc, &s->rt, err);
    if (!r)
        r = spawn_all(s, err);
    if (r) {
        act_server_free(s);
        return r;
    }
    *out = s;
    return 0;
}

int act_server_start(struct act_server *s, int *port, struct cfg_error *err)
{
    int r = act_runtime_start(s->rt, err);
    if (r)
        return r;
    pthread_mutex_lock(&s->lock);
    while (!s->ready && !s->failed)
        pthread_cond_wait(&s->changed, &s->lock);
    *port = s->port;
    bool ready = s->ready;
    pthread_mutex_unlock(&s->lock);
    return ready ? 0 : cfg_error_set(err, EIO, "the gateway ended before it accepted; the log says why");
}

void act_server_url(const struct act_server *s, char *out, size_t size)
{
    const char *host = s->gateway.settings.host;
    bool v6 = strchr(host, ':') != NULL;
    snprintf(out, size, "%s://%s%s%s:%d", s->gateway.tls_cert ? "https" : "http", v6 ? "[" : "", host, v6 ? "]" : "",
             s->port);
}

static bool is_loopback(const char *host)
{
    return !strncmp(host, "127.", 4) || !strcmp(host, "localhost") || !strcmp(host, "::1");
}

const char *act_server_warning(const struct act_server *s)
{
    if (is_loopback(s->gateway.settings.host))
        return NULL;
    if (!s->gateway.keys_file)
        return "this address can be reached from other machines and no API key is asked for; set security.keys_file";
    return s->gateway.tls_cert
               ? NULL
               : "this address can be reached from other machines and nothing is encrypted, API keys included; set "
                 "security.tls_cert and security.tls_key, or put a TLS proxy before it";
}

bool act_server_failed(struct act_server *s)
{
    pthread_mutex_lock(&s->lock);
    bool failed = s->failed;
    pthread_mutex_unlock(&s->lock);
    return failed;
}

void act_server_reload(struct act_server *s)
{
    struct act_msg m = act_msg_make(ACT_RELOAD, s->gateway_addr);
    act_runtime_post(s->rt, &m);
}

void act_server_drain(struct act_server *s)
{
    struct act_msg m = act_msg_make(ACT_DRAIN, s->gateway_addr);
    act_runtime_post(s->rt, &m);
}

int act_server_drained(struct act_server *s, int wait_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += wait_ms / 1000;
    until.tv_nsec += wait_ms % 1000 * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&s->lock);
    while (!s->drained && pthread_cond_timedwait(&s->changed, &s->lock, &until) == 0)
        ;
    int drained = s->drained;
    pthread_mutex_unlock(&s->lock);
    return drained;
}

void act_server_free(struct act_server *s)
{
    if (!s)
        return;
    act_runtime_free(s->rt);
    gw_keys_free(&s->gateway.keys);
    gw_http_tls_free(s->gateway.tls);
    kv_device_free(s->engine.device);
    mdl_tok_encoder_free(s->enc);
    mdl_tokenizer_free(s->tok);
    mdl_model_close(s->m);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
