/* What a node answers to tools that ask over the link: weft status, weft drain. On the io worker's thread. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "actors/runtime/log.h"
#include "actors/runtime/stats.h"
#include "actors/server_impl.h"
#include "config/version.h"

static void add_progress(void *ctx, const struct act_stats_actor *a)
{
    int64_t *age = ctx;
    if (a->progress_age_ns > *age)
        *age = a->progress_age_ns;
}

static json_t *peers_json(struct act_server *s)
{
    json_t *list = json_array();
    struct tp_peer_info info;
    int calls;
    for (int i = 0; i < ACT_LINK_PEERS_MAX; i++) {
        if (!act_link_peer_info(s->link->self, i, &info, &calls))
            continue;
        bool whole = info.up;
        for (int k = 0; k < TP_CLASSES; k++)
            whole &= info.class_up[k];
        json_array_append_new(list, json_pack("{s:s, s:b, s:I, s:i, s:b, s:s, s:f, s:i}", "name", info.name, "up",
                                              whole, "epoch", (json_int_t)info.epoch, "failures", info.failures,
                                              "breaker", info.breaker, "reason", whole ? "" : info.last, "rtt_us",
                                              (double)info.rtt_ns / 1e3, "requests", calls));
    }
    return list;
}

/* What carried how much, so that nobody has to believe that it was the configured provider. */
static json_t *transport_json(struct act_server *s)
{
    json_t *j = json_pack("{s:s}", "provider", s->provider.ops->name);
    for (int i = 0; j && i < TP_CLASSES; i++) {
        struct tp_traffic t;
        act_link_traffic(s->link->self, (enum tp_class)i, &t);
        json_object_set_new(j, tp_class_name((enum tp_class)i),
                            json_pack("{s:I, s:I, s:I, s:I, s:I}", "message_bytes_out", (json_int_t)t.bytes_out,
                                      "message_bytes_in", (json_int_t)t.bytes_in, "puts_out", (json_int_t)t.puts_out,
                                      "put_bytes_out", (json_int_t)t.put_bytes_out, "put_bytes_in",
                                      (json_int_t)t.put_bytes_in));
    }
    struct tp_held h;
    act_link_held(s->link->self, &h);
    json_object_set_new(j, "held",
                        json_pack("{s:i, s:i, s:i, s:I}", "channels", h.channels, "queue_pairs", h.queue_pairs,
                                  "regions", h.regions, "region_bytes", (json_int_t)h.region_bytes));
    return j;
}

/* By role: what runs, what waits, and what room there is. */
static json_t *load_json(struct act_server *s)
{
    json_t *load = json_object();
    if (server_has(s, CFG_ROLE_GATEWAY))
        json_object_set_new(load, "gateway",
                            json_pack("{s:i, s:i, s:i}", "requests", s->gateway.requests, "limit",
                                      s->gateway.settings.max_requests, "placed", s->placed));
    if (server_has(s, CFG_ROLE_PREFILL)) {
        struct act_b_load p = act_gauge_sum(&s->gauge, CFG_ROLE_PREFILL);
        json_object_set_new(load, "prefill",
                            json_pack("{s:i, s:i, s:I}", "running", (int)p.running, "waiting", (int)p.waiting, "tokens",
                                      (json_int_t)p.tokens_outstanding));
    }
    if (server_has(s, CFG_ROLE_DECODE)) {
        struct act_b_load d = act_gauge_sum(&s->gauge, CFG_ROLE_DECODE);
        json_object_set_new(load, "decode",
                            json_pack("{s:i, s:i, s:i, s:i}", "running", (int)d.running, "waiting", (int)d.waiting,
                                      "pages_free", (int)d.pages_free, "pages", (int)d.pages_total));
    }
    return load;
}

/* Of a node that computes. */
static bool lacks_experts(struct act_server *s)
{
    return act_gauge_sum(&s->gauge, CFG_ROLE_PREFILL).experts || act_gauge_sum(&s->gauge, CFG_ROLE_DECODE).experts;
}

static const char *health_of(struct act_server *s, int64_t age)
{
    pthread_mutex_lock(&s->lock);
    bool failed = s->failed, draining = s->draining || s->drain_asked, drained = s->drained;
    pthread_mutex_unlock(&s->lock);
    bool lost = server_has(s, CFG_ROLE_GATEWAY) && s->gateway.lost;
    bool stuck = age > s->config->limits.stuck_us * 1000;
    return failed             ? "failed"
           : drained          ? "drained"
           : draining         ? "draining"
           : lost             ? "lost"
           : lacks_experts(s) ? "no-experts"
           : stuck            ? "stuck"
                              : "ok";
}

/* What waits for the next start. */
static json_t *stale_json(struct act_server *s)
{
    json_t *list = json_array();
    pthread_mutex_lock(&s->lock);
    for (const char *at = s->stale, *end; at && (end = strchr(at, '\n')); at = end + 1)
        json_array_append_new(list, json_stringn(at, (size_t)(end - at)));
    pthread_mutex_unlock(&s->lock);
    return list;
}

static char *status_text(struct act_server *s)
{
    int64_t age = 0;
    char roles[128];
    act_stats_actors(s->rt, add_progress, &age);
    cfg_roles_text(s->node->roles, roles, sizeof roles);
    json_t *j = json_pack("{s:s, s:I, s:s, s:s, s:s, s:f, s:i, s:o, s:o, s:o}", "node", s->node->name, "epoch",
                          (json_int_t)act_runtime_epoch(s->rt), "version", WEFT_VERSION, "roles", roles, "health",
                          health_of(s, age), "progress_age_s", (double)age / 1e9, "pid", (int)getpid(), "load",
                          load_json(s), "peers", peers_json(s), "transport", transport_json(s));
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    json_object_set_new(j, "uptime_s", json_integer(now.tv_sec - s->began_s));
    json_object_set_new(j, "stale", stale_json(s));
    json_t *drain = server_drain_json(s);
    if (drain)
        json_object_set_new(j, "drain", drain);
    json_object_set_new(j, "tiers", act_tier_watch_json(&s->watch, s->kv.store_addr));
    if (j && server_has(s, CFG_ROLE_GATEWAY) && s->gateway.lost)
        json_object_set_new(j, "lacks", json_string(s->gateway.lost));
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    return text;
}

char *server_answer_tool(void *ctx, const char *question)
{
    struct act_server *s = ctx;
    if (strcmp(question, "status") == 0)
        return status_text(s);
    if (strcmp(question, "drained") == 0) {
        bool settled = server_drain_settled(s);
        char *text = status_text(s);
        if (settled && text)
            server_drain_told(s);
        return text;
    }
    if (strcmp(question, "drain") == 0 || strcmp(question, "drain watched") == 0) {
        act_log_event(s->log, ACT_LOG_INFO, "link", 0, "drain_asked", "node=%s", s->node->name);
        pthread_mutex_lock(&s->lock);
        s->drain_asked = true;
        s->watched |= question[5] != 0;
        pthread_mutex_unlock(&s->lock);
        return strdup("{\"draining\": true}");
    }
    return strdup("{\"error\": \"this node knows the questions status, drain, drain watched and drained\"}");
}
