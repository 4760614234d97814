/* The kv nodes of a deployment, from both sides: what a node with the role kv has (tiers of its own, a pool, the
 * kv_node actor), and the tier through which nodes that compute use them. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "actors/kv_node.h"
#include "actors/runtime/log.h"
#include "actors/server_impl.h"
#include "actors/tier_nodes.h"
#include "kvtiers/host.h"
#include "kvtiers/memory.h"
#include "kvtiers/ssd.h"

enum { DEPTH = 256, US_PER_S = 1000000 };

bool server_keeps_blocks(const struct act_server *s)
{
    return s->config->n_nodes > 1 && server_has(s, CFG_ROLE_KV);
}

int server_layout(const struct act_server *s, struct kv_layout *out, struct cfg_error *err)
{
    size_t bytes[MDL_MAX_SOURCES];
    for (int i = 0; i < s->m->cfg->n_kv_sources; i++)
        bytes[i] = s->engine.layout.source[i].bytes;
    return kv_layout_init(KV_FORMAT_ROWS, (uint32_t)s->engine.layout.block_tokens, bytes, s->m->cfg->n_kv_sources, out,
                          err);
}

/* ---- a node that keeps ---- */

static void on_log(void *ctx, bool warning, const char *text)
{
    act_log_write(((struct act_server *)ctx)->log, warning ? ACT_LOG_WARNING : ACT_LOG_INFO, "kv-node", 0, "%s", text);
}

/* Memory that the kernel reads and writes, pinned once where that is allowed. */
static void register_memory(struct act_server *s, struct kv_tier *host, const char *folder)
{
    struct kv_storage *st = s->kv.store.storage[0];
    void *base;
    size_t len;
    kv_host_memory(host, &base, &len);
    int r = st->ops->register_memory(st, base, len);
    if (!r)
        r = st->ops->register_memory(st, s->kv.buffer, s->kv.buffer_bytes);
    if (r)
        act_log_write(s->log, ACT_LOG_WARNING, "kv-node", 0,
                      "%s: memory is not registered with io_uring (%s), so each request pins it anew; raise the limit "
                      "of locked memory (ulimit -l)",
                      folder, strerror(-r));
}

static int open_ssd(struct act_server *s, struct kv_tier *host, struct cfg_error *err)
{
    const struct cfg_config *c = s->config;
    char *folder = s->kv.folder;
    if (cfg_kv_folder(c, s->node, folder, sizeof s->kv.folder))
        return cfg_error_set(err, ENAMETOOLONG, "kv.nodes.path is too long");
    if (mkdir(folder, 0755) && errno != EEXIST)
        return cfg_error_set(err, errno, "kv.nodes.path: folder %s: %s; kv.nodes.path names an existing folder", folder,
                             strerror(errno));
    int r = kv_storage_uring_new(folder, DEPTH, &s->kv.store.storage[0], err);
    if (r)
        return r;
    register_memory(s, host, folder);
    return server_add_ssd(s, &s->kv.store, folder, c->kv.nodes.size, on_log, err);
}

int server_kv_open(struct act_server *s, struct cfg_error *err)
{
    const struct cfg_config *c = s->config;
    struct server_kv *k = &s->kv;
    struct kv_tier *host;
    if (!server_keeps_blocks(s))
        return 0;
    int r = server_layout(s, &k->store.layout, err);
    if (r)
        return r;
    size_t block = k->store.layout.block_bytes;
    k->arg.buffers = (int)(c->kv.nodes.buffer / (int64_t)block);
    if (k->arg.buffers < ACT_REMOTE_READ_MAX)
        k->arg.buffers = ACT_REMOTE_READ_MAX;
    k->buffer_bytes = (size_t)k->arg.buffers * block;
    k->buffer = kv_memory_new(k->buffer_bytes);
    if (!k->buffer)
        return cfg_error_set(err, ENOMEM, "%zu bytes for blocks under way are not available; lower kv.nodes.buffer",
                             k->buffer_bytes);
    k->store.clock = kv_clock_system;
    k->store.observer = &k->watch;
    const struct kv_host_params p = {.layout = k->store.layout,
                                     .bytes = c->kv.nodes.memory > (int64_t)block ? c->kv.nodes.memory : (int64_t)block,
                                     .ttl_s = c->kv.ttl_us / US_PER_S,
                                     .clock = kv_clock_system,
                                     .verify = true};
    r = kv_host_new(&p, &host, err);
    if (r)
        return r;
    server_add_tier(&k->store, ACT_TIER_HOST, host);
    return c->kv.nodes.path[0] ? open_ssd(s, host, err) : 0;
}

void server_kv_close(struct act_server *s)
{
    struct server_kv *k = &s->kv;
    while (k->store.n_tiers) { /* the ssd tier may still read from the host tier */
        struct kv_tier *t = k->store.tier[--k->store.n_tiers];
        t->ops->free(t);
    }
    kv_storage_free(k->store.storage[0]);
    kv_memory_free(k->buffer, k->buffer_bytes);
    kv_memory_free(k->slots, k->slots_bytes);
}

int server_spawn_kv(struct act_server *s, struct cfg_error *err)
{
    struct server_kv *k = &s->kv;
    if (!server_keeps_blocks(s))
        return 0;
    struct act_spawn spec = {
        .behaviour = &act_tier_store_behaviour, .worker = SERVER_WORKER_TIER, .arg = &k->store, .outbox = 4096};
    int r = act_runtime_spawn(s->rt, &spec, &k->store_addr, err);
    if (r)
        return r;
    k->arg.layout = k->store.layout;
    k->arg.store = &k->store_addr;
    k->arg.buffer = k->buffer;
    k->arg.store_bytes = k->buffer_bytes;
    k->arg.window = ACT_WINDOW_POOL;
    k->arg.link = &s->engine.link;
    k->arg.patience = s->config->kv.nodes.quiet_us * 1000;
    k->arg.observer = &s->engine.observer;
    k->arg.log = s->log;
    spec.behaviour = &act_kv_node_behaviour;
    spec.arg = &k->arg;
    return act_runtime_spawn(s->rt, &spec, &k->addr, err);
}

int server_spawn_watch(struct act_server *s, struct cfg_error *err)
{
    const struct act_spawn spec = {
        .behaviour = &act_tier_watch_behaviour, .worker = SERVER_WORKER_IO, .arg = &s->watch};
    if (!s->link)
        return 0;
    int r = act_runtime_spawn(s->rt, &spec, &s->kv.watch, err);
    s->engine.observer = s->kv.watch; /* until there is a gateway */
    return r;
}

/* ---- a node that computes ---- */

int server_nodes_open(struct act_server *s, struct cfg_error *err)
{
    const struct cfg_config *c = s->config;
    struct server_kv *k = &s->kv;
    k->slots_bytes = (size_t)c->kv.nodes.buffer;
    k->slots = kv_memory_new(k->slots_bytes);
    if (!k->slots)
        return cfg_error_set(err, ENOMEM, "%zu bytes for what kv nodes send are not available; lower kv.nodes.buffer",
                             k->slots_bytes);
    struct act_nodes_arg a = {.layout = s->store.layout,
                              .link = &s->engine.link,
                              .here = &s->kv.addr,
                              .find_ns = c->kv.nodes.find_us * 1000,
                              .quiet_ns = c->kv.nodes.quiet_us * 1000,
                              /* The host tier has room left for what comes meanwhile. */
                              .store_bytes = (size_t)c->kv.write_behind / 2,
                              .window = k->slots,
                              .window_bytes = k->slots_bytes,
                              .window_id = ACT_WINDOW_SLOTS,
                              .log = s->log};
    for (int here = 1; here >= 0; here--) /* this node first */
        for (int i = 0; i < c->n_nodes; i++) {
            const struct cfg_node *n = &c->nodes[i];
            if (!(n->roles & CFG_ROLE_KV) || (n == s->node) != here)
                continue;
            if (a.n == ACT_KV_NODES_MAX)
                return cfg_error_set(err, EINVAL, "more than %d nodes with the role kv", ACT_KV_NODES_MAX);
            a.node[a.n].number = (uint16_t)(i + 1);
            snprintf(a.node[a.n++].name, sizeof a.node[0].name, "%s", n->name);
        }
    return act_nodes_new(&a, &s->store.nodes, err);
}
