/* From the configuration to the tiers below the device. They are opened before the actors exist and closed after them.
 */
#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#include "actors/runtime/log.h"
#include "actors/server_impl.h"
#include "kvtiers/host.h"
#include "kvtiers/shared.h"
#include "kvtiers/ssd.h"
#include "kvtiers/usrbio.h"

enum { DEPTH = 256, US_PER_S = 1000000, SSD = 0, SHARED = 1 };

static void on_ssd_log(void *ctx, bool warning, const char *text)
{
    act_log_write(((struct act_server *)ctx)->log, warning ? ACT_LOG_WARNING : ACT_LOG_INFO, "tier-ssd", 0, "%s", text);
}

static void on_shared_log(void *ctx, bool warning, const char *text)
{
    act_log_write(((struct act_server *)ctx)->log, warning ? ACT_LOG_WARNING : ACT_LOG_INFO, "tier-shared", 0, "%s",
                  text);
}

/* Segments of the shared tier may be open at a time: where few descriptors are had, a quarter of them, since
 * connections need theirs. Rings of USRBIO take two for each. */
static int segments_open(bool usrbio)
{
    struct rlimit limit;
    rlim_t share = getrlimit(RLIMIT_NOFILE, &limit) ? KV_SHARED_FILES : limit.rlim_cur / (usrbio ? 8 : 4);
    return share < 1 ? 1 : share < KV_SHARED_FILES ? (int)share : KV_SHARED_FILES;
}

void server_add_tier(struct act_store *c, enum act_tier_kind kind, struct kv_tier *t)
{
    c->kind[c->n_tiers] = kind;
    c->tier[c->n_tiers++] = t;
}

int server_add_ssd(struct act_server *s, struct act_store *store, const char *folder, int64_t bytes,
                   void (*log)(void *ctx, bool warning, const char *text), struct cfg_error *err)
{
    const struct cfg_config *c = s->config;
    struct kv_tier *ssd;
    const struct kv_ssd_params p = {.storage = store->storage[SSD],
                                    .folder = folder,
                                    .layout = store->layout,
                                    .bytes = bytes,
                                    .reserve = c->kv.ssd.reserve,
                                    .ttl_s = c->kv.ttl_us / US_PER_S,
                                    .write_bytes_per_day = c->kv.ssd.write_per_day,
                                    .direct = c->kv.ssd.direct,
                                    .clock = kv_clock_system,
                                    .log = log,
                                    .log_ctx = s};
    int r = kv_ssd_new(&p, &ssd, err);
    if (!r)
        server_add_tier(store, ACT_TIER_SSD, ssd);
    return r;
}

/* Requests on registered memory cost the kernel less. Where it cannot be had, everything works all the same. */
static void register_memory(struct act_server *s, struct kv_storage *st, struct kv_tier *host, const char *folder)
{
    struct kv_device_stats d;
    void *base;
    size_t len;
    kv_device_stat(s->engine.device, &d);
    kv_host_memory(host, &base, &len);
    int r = st->ops->register_memory(st, kv_device_bytes(s->engine.device, 0),
                                     (size_t)d.pages * s->engine.layout.block_bytes);
    if (!r)
        r = st->ops->register_memory(st, base, len);
    if (r)
        act_log_write(
            s->log, ACT_LOG_WARNING, "tiers", 0,
            "%s: pages are not registered with io_uring (%s), so each request pins them anew; raise the limit "
            "of locked memory (ulimit -l)",
            folder, strerror(-r));
}

static int open_ssd(struct act_server *s, struct kv_tier *host, struct cfg_error *err)
{
    const struct cfg_config *c = s->config;
    int r = kv_storage_uring_new(c->kv.ssd.path, DEPTH, &s->store.storage[SSD], err);
    if (r)
        return r;
    register_memory(s, s->store.storage[SSD], host, c->kv.ssd.path);
    return server_add_ssd(s, &s->store, c->kv.ssd.path, c->kv.ssd.size, on_ssd_log, err);
}

static int open_shared(struct act_server *s, struct cfg_error *err)
{
    const struct cfg_config *c = s->config;
    struct kv_tier *shared;
    const struct kv_usrbio_params rings = {.folder = c->kv.shared.path,
                                           .library = c->kv.shared.usrbio,
                                           .depth = DEPTH,
                                           .clock = kv_clock_system,
                                           .log = on_shared_log,
                                           .log_ctx = s};
    int r = c->kv.shared.usrbio[0] ? kv_storage_usrbio_new(&rings, &s->store.storage[SHARED], err)
                                   : kv_storage_uring_new(c->kv.shared.path, DEPTH, &s->store.storage[SHARED], err);
    if (r)
        return r;
    const struct kv_shared_params p = {.storage = s->store.storage[SHARED],
                                       .folder = c->kv.shared.path,
                                       .node = s->node->name,
                                       .claim = true,
                                       .layout = s->store.layout,
                                       .bytes = c->kv.shared.size,
                                       .segment_bytes = c->kv.shared.segment,
                                       .seal_ns = c->kv.shared.seal_us * 1000,
                                       .poll_ns = c->kv.shared.poll_us * 1000,
                                       .orphan_ns = c->kv.shared.orphan_us * 1000,
                                       .removals_per_s = c->kv.shared.removals,
                                       .files = segments_open(c->kv.shared.usrbio[0]),
                                       .ttl_s = c->kv.ttl_us / US_PER_S,
                                       .direct = c->kv.shared.direct,
                                       .clock = kv_clock_system,
                                       .log = on_shared_log,
                                       .log_ctx = s};
    r = kv_shared_new(&p, &shared, err);
    if (!r)
        server_add_tier(&s->store, ACT_TIER_SHARED, shared);
    return r;
}

int server_tiers_open(struct act_server *s, struct cfg_error *err)
{
    const struct cfg_config *c = s->config;
    struct act_engine *e = &s->engine;
    bool ssd = c->kv.ssd.path[0] != 0, shared = c->kv.shared.path[0] != 0, nodes = cfg_uses_kv_nodes(c);
    struct kv_tier *host;
    e->read_timeout_ns = c->kv.read_timeout_us * 1000;
    if (!e->device || (!ssd && !shared && !nodes && !c->kv.host))
        return 0;
    int r = server_layout(s, &e->store_layout, err);
    if (r)
        return r;
    s->store.layout = e->store_layout;
    s->store.clock = kv_clock_system;
    s->store.observer = &s->engine.observer;
    s->store.late_ns = e->read_timeout_ns / 4;
    s->store.hedge_ns = c->kv.hedge_us * 1000;
    s->store.hedge_bytes = (size_t)c->kv.write_behind;
    e->store_pages = (int)(c->kv.write_behind / (int64_t)e->layout.block_bytes);
    /* Blocks on their way to a durable tier wait in the host tier, so there is always one. */
    int64_t room = c->kv.host > c->kv.write_behind ? c->kv.host : c->kv.write_behind;
    room = room > (int64_t)e->layout.block_bytes ? room : (int64_t)e->layout.block_bytes;
    const struct kv_host_params p = {.layout = s->store.layout,
                                     .bytes = room,
                                     .ttl_s = c->kv.ttl_us / US_PER_S,
                                     .clock = kv_clock_system,
                                     .verify = true};
    r = kv_host_new(&p, &host, err);
    if (r)
        return r;
    server_add_tier(&s->store, ACT_TIER_HOST, host);
    r = ssd ? open_ssd(s, host, err) : 0;
    if (!r && nodes)
        r = server_nodes_open(s, err);
    if (!r && nodes)
        server_add_tier(&s->store, ACT_TIER_NODES, s->store.nodes);
    if (!r && shared)
        r = open_shared(s, err);
    return r;
}

void server_tiers_close(struct act_server *s)
{
    /* The durable ones first: they may still read from the host tier. */
    while (s->store.n_tiers) {
        struct kv_tier *t = s->store.tier[--s->store.n_tiers];
        t->ops->free(t);
    }
    for (int i = 0; i < ACT_STORAGES_MAX; i++) {
        kv_storage_free(s->store.storage[i]);
        s->store.storage[i] = NULL;
    }
}
