/* A node as its main thread sees it: made, started, drained, freed. */
#include "actors/server.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "actors/runtime/stats.h"
#include "actors/server_impl.h"

void server_on_ready(void *ctx, int port)
{
    struct act_server *s = ctx;
    pthread_mutex_lock(&s->lock);
    s->ready = true;
    s->port = port;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void server_on_failed(void *ctx)
{
    struct act_server *s = ctx;
    pthread_mutex_lock(&s->lock);
    s->failed = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void server_on_drained(void *ctx)
{
    struct act_server *s = ctx;
    pthread_mutex_lock(&s->lock);
    s->drained = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
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
    s->node = node;
    s->log = log;
    s->lock_file = -1;
    s->began_s = now_ns() / 1000000000;
    s->engine.tally = &s->tally;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    struct act_config rc = {
        .epoch = 1, .workers = SERVER_WORKERS, .spin_us = 0, .log = log, .lane_slots = 4096, .reply_slots = 4096};
    rc.worker[SERVER_WORKER_IO] = (struct act_worker_config){
        .name = "io", .kind = ACT_WORKER_IO, .cpu = -1, .actors_max = config->limits.requests + 16};
    rc.worker[SERVER_WORKER_ENGINE] = (struct act_worker_config){
        .name = "engine", .kind = ACT_WORKER_ENGINE, .cpu = -1, .actors_max = ACT_SHARDS_MAX + 16};
    rc.worker[SERVER_WORKER_HELPER] =
        (struct act_worker_config){.name = "helper", .kind = ACT_WORKER_HELPER, .cpu = -1, .actors_max = 4};
    rc.node = (uint16_t)(node - config->nodes + 1);
    int r = server_incarnation(s, &rc.epoch, err);
    if (!r)
        r = server_plan(s, err);
    if (!r)
        r = server_slots_open(s, err);
    if (!r)
        r = server_plan_link(s, rc.epoch, err);
    memcpy(s->tier_source.storage, s->store.storage, sizeof s->store.storage);
    s->tier_source.storage[ACT_SOURCE_KV] = s->kv.store.storage[0];
    s->tier_source.storage[ACT_SOURCE_ENGRAM] = s->engram.storage;
    rc.worker[SERVER_WORKER_TIER] = (struct act_worker_config){
        .name = "tier", .kind = ACT_WORKER_TIER, .cpu = -1, .source = &act_source_tier, .source_arg = &s->tier_source};
    if (!s->store.n_tiers && !s->kv.store.n_tiers && !s->engram.rows)
        rc.workers = SERVER_WORKER_TIER;
    if (!r)
        r = act_runtime_new(&rc, &s->rt, err);
    if (!r)
        r = server_spawn(s, err);
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
    if (!server_has(s, CFG_ROLE_GATEWAY) && act_addr_is_nobody(s->figures_addr))
        server_on_ready(s, 0);
    pthread_mutex_lock(&s->lock);
    while (!s->ready && !s->failed)
        pthread_cond_wait(&s->changed, &s->lock);
    *port = s->port;
    bool ready = s->ready;
    pthread_mutex_unlock(&s->lock);
    return ready ? 0 : cfg_error_set(err, EIO, "what accepts HTTP ended before it did; the log says why");
}

void act_server_url(const struct act_server *s, char *out, size_t size)
{
    const char *host = s->gateway.settings.host;
    bool v6 = strchr(host, ':') != NULL, gateway = server_has(s, CFG_ROLE_GATEWAY);
    int n = gateway ? 0 : snprintf(out, size, "node %s at %s", s->node->name, s->link ? s->link->bound : "nowhere");
    if (!gateway && act_addr_is_nobody(s->figures_addr))
        return;
    if (!gateway && n < (int)size)
        n += snprintf(out + n, size - (size_t)n, ", figures at ");
    if (n < (int)size)
        snprintf(out + n, size - (size_t)n, "%s://%s%s%s:%d", s->gateway.tls_cert ? "https" : "http", v6 ? "[" : "",
                 host, v6 ? "]" : "", s->port);
}

static bool is_loopback(const char *host)
{
    return !strncmp(host, "127.", 4) || !strcmp(host, "localhost") || !strcmp(host, "::1");
}

const char *act_server_warning(const struct act_server *s)
{
    if (!server_has(s, CFG_ROLE_GATEWAY) || is_loopback(s->gateway.settings.host))
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
    const struct act_addr who[] = {s->gateway_addr, s->figures_addr, s->engine.link};
    for (int i = 0; i < 3; i++) {
        struct act_msg m = act_msg_make(ACT_RELOAD, who[i]);
        if (!act_addr_is_nobody(who[i]))
            act_runtime_post(s->rt, &m);
    }
}

void act_server_set_stale(struct act_server *s, char *lines)
{
    pthread_mutex_lock(&s->lock);
    free(s->stale);
    s->stale = lines;
    pthread_mutex_unlock(&s->lock);
}

static void tell_to_drain(struct act_server *s, struct act_addr who)
{
    struct act_msg m = act_msg_make(ACT_DRAIN, act_current(s->rt, who));
    if (!act_addr_is_nobody(m.dst))
        act_runtime_post(s->rt, &m);
}

void act_server_drain(struct act_server *s)
{
    server_drain_begins(s);
    s->drain_began = now_ns();
    tell_to_drain(s, s->gateway_addr);
    tell_to_drain(s, s->figures_addr);
    tell_to_drain(s, s->kv.addr);
    if (!s->link)
        return;
    for (int i = 0; i < s->engine.n_prefill; i++)
        tell_to_drain(s, s->engine.prefill[i]);
    tell_to_drain(s, s->engine.landing);
}

void act_server_cut(struct act_server *s)
{
    if (!server_has(s, CFG_ROLE_GATEWAY))
        return;
    struct act_msg m = act_msg_make(ACT_DRAIN, s->gateway_addr);
    act_p_drain(&m)->flags = GW_DRAIN_CUT;
    act_runtime_post(s->rt, &m);
}

bool act_server_drain_asked(struct act_server *s)
{
    pthread_mutex_lock(&s->lock);
    bool asked = s->drain_asked;
    pthread_mutex_unlock(&s->lock);
    return asked;
}

static void count_busy(void *ctx, const struct act_stats_actor *a)
{
    *(int *)ctx += a->progress_age_ns > 0 || a->waiting > 0;
}

/* Other nodes have heard that nothing more is to be placed here, and what they had placed has ended. */
static bool engine_is_idle(struct act_server *s)
{
    int busy = 0;
    act_stats_actors(s->rt, count_busy, &busy);
    return !busy && !act_tally_awaited(&s->tally) && now_ns() - s->drain_began > 3 * (int64_t)ACT_LOAD_REPORT_NS;
}

int act_server_drained(struct act_server *s, int wait_ms)
{
    if (s->link && !engine_is_idle(s))
        return 0;
    if (!server_has(s, CFG_ROLE_GATEWAY))
        server_on_drained(s);
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
    free(s->link);
    free(s->link_peers);
    free(s->stale);
    if (s->lock_file >= 0)
        close(s->lock_file);
    gw_keys_free(&s->gateway.keys);
    gw_trace_free(s->gateway.trace);
    gw_http_tls_free(s->gateway.tls);
    act_map_free(s->map);
    act_slots_free(s->slots);
    server_tiers_close(s);
    server_kv_close(s);
    server_engram_close(s);
    kv_device_free(s->engine.device);
    mdl_tok_encoder_free(s->enc[0]);
    mdl_tok_encoder_free(s->enc[1]);
    mdl_tokenizer_free(s->tok);
    mdl_model_close(s->m);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
