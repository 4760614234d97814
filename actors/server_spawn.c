/* The actors of a node, by its roles. Each function makes the actors of one role and writes their addresses where the
 * others look for them; a role that the node has not leaves nobody there. */
#include "actors/decode.h"
#include "actors/prefill.h"
#include "actors/server_impl.h"
#include "actors/tier_device.h"

static int spawn_tier(struct act_server *s, struct cfg_error *err)
{
    const struct act_spawn spec = {
        .behaviour = &act_tier_device_behaviour, .worker = SERVER_WORKER_ENGINE, .arg = &s->engine, .outbox = 1024};
    return act_runtime_spawn(s->rt, &spec, &s->engine.tier, err);
}

/* The tiers below the device; they are named by the tier actor, so they come before it. */
static int spawn_store(struct act_server *s, struct cfg_error *err)
{
    const struct act_spawn spec = {
        .behaviour = &act_tier_store_behaviour, .worker = SERVER_WORKER_TIER, .arg = &s->store, .outbox = 4096};
    return s->store.n_tiers ? act_runtime_spawn(s->rt, &spec, &s->engine.store, err) : 0;
}

static int spawn_decode(struct act_server *s, struct cfg_error *err)
{
    struct act_engine *e = &s->engine;
    const struct act_spawn spec = {.behaviour = &act_decode_behaviour,
                                   .worker = SERVER_WORKER_ENGINE,
                                   .arg = e,
                                   .outbox = 4096,
                                   .policy = ACT_POLICY_RESTART};
    int r = 0;
    for (; !r && e->n_decode < s->config->engine.decode_actors; e->n_decode += !r)
        r = act_runtime_spawn(s->rt, &spec, &e->decode[e->n_decode], err);
    return r;
}

static int spawn_prefill(struct act_server *s, struct cfg_error *err)
{
    struct act_engine *e = &s->engine;
    const struct act_spawn spec = {.behaviour = &act_prefill_behaviour,
                                   .worker = SERVER_WORKER_ENGINE,
                                   .arg = e,
                                   .run_class = ACT_CLASS_BULK,
                                   .outbox = 4096,
                                   .policy = ACT_POLICY_RESTART};
    int r = 0;
    for (; !r && e->n_prefill < s->config->engine.prefill_actors; e->n_prefill += !r)
        r = act_runtime_spawn(s->rt, &spec, &e->prefill[e->n_prefill], err);
    return r;
}

/* No Prefill or no Decode actor is there: the gateway is not ready. In one process that is for good; other nodes come
 * and go. */
static void on_lacking(void *ctx, const char *part)
{
    struct act_server *s = ctx;
    s->gateway.lost = part;
    if (part && !s->link)
        server_on_failed(s);
}

/* A part of another node whose worker makes no progress for so long is as good as lost; reports come every
 * ACT_LOAD_REPORT_NS, so a short limits.stuck, which is for the health page, does not mean them. */
static int64_t silence(const struct cfg_config *c)
{
    const int64_t stuck = c->limits.stuck_us * 1000, least = 50 * (int64_t)ACT_LOAD_REPORT_NS;
    return stuck > least ? stuck : least;
}

static int spawn_router(struct act_server *s, struct cfg_error *err)
{
    const struct cfg_config *c = s->config;
    s->router = (struct act_router_arg){.engine = server_members(s),
                                        .prefix = c->engine.routing != CFG_ROUTING_LOAD,
                                        .cost = c->engine.routing == CFG_ROUTING_AUTO,
                                        .common = c->kv.shared.path[0] || server_keeps_blocks(s),
                                        .link = s->engine.link,
                                        .block_tokens = c->kv.block_tokens,
                                        .silent_ns = silence(c),
                                        .log = s->log,
                                        .requests = &s->placed,
                                        .lacking = on_lacking,
                                        .ctx = s};
    const struct act_spawn spec = {
        .behaviour = &act_router_behaviour, .worker = SERVER_WORKER_IO, .arg = &s->router, .outbox = 1024};
    return act_runtime_spawn(s->rt, &spec, &s->engine.router, err);
}

static int spawn_helper(struct act_server *s, struct cfg_error *err)
{
    const struct act_spawn spec = {.worker = SERVER_WORKER_HELPER, .policy = ACT_POLICY_RESTART};
    return act_executor_spawn(s->rt, &spec, &s->gateway.helper, err);
}

static int spawn_gateway(struct act_server *s, struct cfg_error *err)
{
    const struct act_spawn spec = {
        .behaviour = &gw_gateway_behaviour, .worker = SERVER_WORKER_IO, .arg = &s->gateway, .outbox = 64};
    s->gateway.router = s->engine.router;
    s->gateway.tier = s->engine.tier;
    int r = act_runtime_spawn(s->rt, &spec, &s->gateway_addr, err);
    if (r && s->gateway_error.msg[0])
        *err = s->gateway_error;
    s->engine.observer = s->gateway_addr;
    return r;
}

/* In a deployment tools ask for the load of a node. */
static int spawn_gauge(struct act_server *s, struct cfg_error *err)
{
    const struct act_engine *e = &s->engine;
    struct act_gauge_arg *g = &s->gauge;
    const struct act_spawn spec = {.behaviour = &act_gauge_behaviour,
                                   .worker = SERVER_WORKER_IO,
                                   .arg = g,
                                   .outbox = ACT_INSTANCES_MAX + 1,
                                   .policy = ACT_POLICY_RESTART};
    struct act_addr who;
    for (int i = 0; i < e->n_prefill; i++, g->n++) {
        g->who[g->n] = e->prefill[i];
        g->role[g->n] = CFG_ROLE_PREFILL;
    }
    if (!act_addr_is_nobody(e->landing)) {
        g->who[g->n] = e->landing;
        g->role[g->n++] = CFG_ROLE_DECODE;
    }
    return s->link && g->n ? act_runtime_spawn(s->rt, &spec, &who, err) : 0;
}

int server_spawn(struct act_server *s, struct cfg_error *err)
{
    /* Those that others name come first. */
    static const struct {
        unsigned roles;
        int (*spawn)(struct act_server *s, struct cfg_error *err);
    } parts[] = {
        {CFG_ROLE_KV, server_spawn_kv},
        {CFG_ROLE_PREFILL | CFG_ROLE_DECODE, spawn_store},
        {CFG_ROLE_PREFILL | CFG_ROLE_DECODE, server_spawn_engram},
        {CFG_ROLE_PREFILL | CFG_ROLE_DECODE, spawn_tier},
        {CFG_ROLE_PREFILL | CFG_ROLE_DECODE | CFG_ROLE_EXPERT, server_spawn_experts},
        {CFG_ROLE_DECODE, spawn_decode},
        {CFG_ROLE_DECODE, server_spawn_landing},
        {CFG_ROLE_PREFILL, spawn_prefill},
        {CFG_ROLE_PREFILL | CFG_ROLE_DECODE, spawn_gauge},
        {CFG_ROLE_GATEWAY, spawn_router},
        {CFG_ROLE_GATEWAY, spawn_helper},
        {CFG_ROLE_GATEWAY, spawn_gateway},
    };
    int r = server_spawn_link(s, err);
    if (!r)
        r = server_spawn_watch(s, err);
    if (!r)
        r = server_spawn_figures(s, err);
    for (size_t i = 0; !r && i < sizeof parts / sizeof parts[0]; i++)
        if (server_has(s, parts[i].roles))
            r = parts[i].spawn(s, err);
    if (!r)
        server_list_actors(s);
    return r;
}
