/* The part of /metrics about the node as a whole: who it is, what it has to do, whom it is connected to, and what has
 * crossed. And the plan of what answers /metrics on a node without a gateway. Text: thread of the io worker. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "actors/gateway/bytes.h"
#include "actors/server_impl.h"
#include "actors/speculate_start.h"
#include "config/version.h"

static void head(struct gw_bytes *b, const char *name, const char *type, const char *help)
{
    gw_bytes_printf(b, "# HELP weft_%s %s\n# TYPE weft_%s %s\n", name, help, name, type);
}

/* Names of nodes have no characters that a label would have to escape. */
static void node_info(const struct act_server *s, struct gw_bytes *b)
{
    char roles[128];
    cfg_roles_text(s->node->roles, roles, sizeof roles);
    head(b, "node_info", "gauge", "Which node of its configuration this is; always 1.");
    gw_bytes_printf(b, "weft_node_info{node=\"%s\",roles=\"%s\"} 1\n", s->node->name, roles);
}

static void prefill_load(const struct act_server *s, struct gw_bytes *b)
{
    struct act_b_load p = act_gauge_sum(&s->gauge, CFG_ROLE_PREFILL);
    head(b, "prefill_prompts", "gauge", "Prompts that are computed, and that wait for it.");
    gw_bytes_printf(b, "weft_prefill_prompts{state=\"running\"} %u\nweft_prefill_prompts{state=\"waiting\"} %u\n",
                    p.running, p.waiting);
    head(b, "prefill_tokens_outstanding", "gauge", "Tokens of these that are still to be computed.");
    gw_bytes_printf(b, "weft_prefill_tokens_outstanding %llu\n", (unsigned long long)p.tokens_outstanding);
}

static const char *roles_of(const struct act_server *s, const char *name, char roles[128])
{
    unsigned r = 0;
    for (int i = 0; i < s->n_listed; i++)
        r = strcmp(s->listed[i].name, name) ? r : s->listed[i].roles;
    cfg_roles_text(r, roles, 128);
    return roles;
}

static void peer_info(const struct act_server *s, struct gw_bytes *b)
{
    struct tp_peer_info info;
    char roles[128];
    int calls;
    head(b, "peer_info", "gauge", "The other nodes, with their roles by the configuration; always 1.");
    for (int i = 0; i < ACT_LINK_PEERS_MAX; i++)
        if (act_link_peer_info(s->link->self, i, &info, &calls))
            gw_bytes_printf(b, "weft_peer_info{peer=\"%s\",roles=\"%s\"} 1\n", info.name,
                            roles_of(s, info.name, roles));
}

static void peers(const struct act_server *s, struct gw_bytes *b)
{
    static const struct {
        const char *name, *type, *help;
    } row[] = {
        {"peer_up", "gauge", "1 while this node is connected to the other one, on every class."},
        {"peer_round_trip_seconds", "gauge", "Of the last ping; 0 before the first."},
        {"peer_failures", "gauge", "Attempts to connect that have failed since the last one that did not."},
    };
    struct tp_peer_info info;
    int calls;
    for (size_t k = 0; k < sizeof row / sizeof *row; k++) {
        head(b, row[k].name, row[k].type, row[k].help);
        for (int i = 0; i < ACT_LINK_PEERS_MAX; i++) {
            if (!act_link_peer_info(s->link->self, i, &info, &calls))
                continue;
            bool up = info.up;
            for (int c = 0; c < TP_CLASSES; c++)
                up &= info.class_up[c];
            const double value[] = {up, 1e-9 * (double)info.rtt_ns, up ? 0 : info.failures};
            gw_bytes_printf(b, "weft_%s{peer=\"%s\"} %.9g\n", row[k].name, info.name, value[k]);
        }
    }
}

static void traffic(const struct act_server *s, struct gw_bytes *b)
{
    static const struct {
        const char *name, *help;
    } row[] = {{"transport_message_bytes_total", "Bytes of messages to and from other nodes."},
               {"transport_put_bytes_total", "Bytes of one-sided writes into and from other nodes' memory."}};
    for (int k = 0; k < 2; k++) {
        head(b, row[k].name, "counter", row[k].help);
        for (int i = 0; i < TP_CLASSES; i++) {
            struct tp_traffic t;
            act_link_traffic(s->link->self, (enum tp_class)i, &t);
            const uint64_t out[] = {t.bytes_out, t.put_bytes_out}, in[] = {t.bytes_in, t.put_bytes_in};
            const char *class = tp_class_name((enum tp_class)i);
            gw_bytes_printf(b, "weft_%s{class=\"%s\",direction=\"out\"} %llu\n", row[k].name, class,
                            (unsigned long long)out[k]);
            gw_bytes_printf(b, "weft_%s{class=\"%s\",direction=\"in\"} %llu\n", row[k].name, class,
                            (unsigned long long)in[k]);
        }
    }
}

static void held(const struct act_server *s, struct gw_bytes *b)
{
    struct tp_held h;
    act_link_held(s->link->self, &h);
    head(b, "transport_channels", "gauge",
         "Connections to other nodes, one per class, and of tools; those that begin included.");
    gw_bytes_printf(b, "weft_transport_channels %d\n", h.channels);
    head(b, "transport_queue_pairs", "gauge", "Queue pairs of RDMA adapters; 0 over tcp.");
    gw_bytes_printf(b, "weft_transport_queue_pairs %d\n", h.queue_pairs);
    head(b, "transport_regions", "gauge", "Memory regions that other nodes may write to.");
    gw_bytes_printf(b, "weft_transport_regions %d\n", h.regions);
    head(b, "transport_region_bytes", "gauge", "Bytes of these.");
    gw_bytes_printf(b, "weft_transport_region_bytes %zu\n", h.region_bytes);
}

void server_node_metrics(void *ctx, struct gw_bytes *b)
{
    struct act_server *s = ctx;
    node_info(s, b);
    if (!s->link)
        return;
    if (server_has(s, CFG_ROLE_PREFILL))
        prefill_load(s, b);
    peer_info(s, b);
    peers(s, b);
    traffic(s, b);
    held(s, b);
}

int server_plan_http(struct act_server *s, const char *key, const char *address, struct cfg_error *err)
{
    const struct cfg_config *c = s->config;
    struct gw_context *g = &s->gateway;
    struct gw_settings *set = &g->settings;
    const char *port;
    if (cfg_address_split(address, set->host, sizeof set->host, &port))
        return cfg_error_set(err, EINVAL, "node \"%s\": %s = \"%s\" is not HOST:PORT", s->node->name, key, address);
    set->port = atoi(port);
    const char *slash = strrchr(c->model.path, '/');
    const char *name = c->model.name[0] ? c->model.name : slash && slash[1] ? slash + 1 : c->model.path;
    snprintf(set->model_name, sizeof set->model_name, "%.*s", (int)sizeof set->model_name - 1, name);
    snprintf(set->numerics, sizeof set->numerics, "cpu/%s", s->m->exec.be->name);
    set->started_at = time(NULL);
    set->revision = s->m->ck->revision;
    act_speculation_describe(&s->engine, set->speculation, sizeof set->speculation);
    set->context = s->engine.limits.context;
    set->threads = mdl_team_size(s->m->team);
    set->stuck_ns = c->limits.stuck_us * 1000;
    set->retry_ns = c->limits.retry_us * 1000;
    set->http = (struct gw_http_limits){.connections = c->limits.connections,
                                        .header_bytes = (size_t)c->limits.header_bytes,
                                        .body_bytes = (size_t)c->limits.request_bytes,
                                        .pending_bytes = (size_t)c->limits.unread_bytes,
                                        .header_ms = 10000,
                                        .body_ms = 30000,
                                        .idle_ms = 75000,
                                        .stuck_ms = (int)(c->limits.unread_us / 1000)};
    g->figures_only = !server_has(s, CFG_ROLE_GATEWAY);
    g->roles = s->node->roles;
    g->page_bytes = s->engine.layout.block_bytes;
    g->metrics.decoder.places = s->engine.limits.draft;
    g->tiers = &s->watch;
    g->served = server_keeps_blocks(s) ? &s->kv.store_addr : NULL;
    g->node_metrics = server_node_metrics;
    g->log = s->log;
    g->ready = server_on_ready;
    g->failed = server_on_failed;
    g->ready_ctx = s;
    g->start_error = &s->gateway_error;
    g->keys_file = c->security.keys_file[0] ? c->security.keys_file : NULL;
    g->tls_cert = c->security.tls_cert[0] ? c->security.tls_cert : NULL;
    g->tls_key = c->security.tls_key;
    return g->tls_cert && gw_http_tls_new(g->tls_cert, g->tls_key, &g->tls, err) ? -EINVAL : 0;
}

/* Named by whoever reports figures, so before the runtime starts. */
int server_spawn_figures(struct act_server *s, struct cfg_error *err)
{
    const struct act_spawn spec = {
        .behaviour = &gw_gateway_behaviour, .worker = SERVER_WORKER_IO, .arg = &s->gateway, .outbox = 64};
    if (server_has(s, CFG_ROLE_GATEWAY) || !s->node->metrics[0])
        return 0;
    int r = act_runtime_spawn(s->rt, &spec, &s->figures_addr, err);
    if (r && s->gateway_error.msg[0])
        *err = s->gateway_error;
    s->engine.observer = s->figures_addr;
    return r;
}
