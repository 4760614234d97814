/* The actors of a simulated deployment. A cluster's ranks are nodes of their own, as far as their actors can tell:
 * prompts are computed by a Prefill with pages of its own and handed on under tickets to the Landing before a Decode.
 * In one process a single Prefill and a single Decode share pages and the worker's time.
 *
 * Ranks of a kind share a worker whose own time is next to nothing: what takes time is their compute, which timers end,
 * and the way between workers. In one process the engine's worker is busy as long as its steps are. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actors/decode.h"
#include "actors/landing.h"
#include "actors/prefill.h"
#include "actors/router.h"
#include "actors/tier_device.h"
#include "cli/simulate.h"
#include "cli/simulate_common.h"

enum { WORKER_FRONT, WORKER_ENGINE, WORKER_PREFILL, OUTBOX = 1 << 20, LEASE = 8 };

struct rank {
    struct act_engine engine;
    struct act_engine decode_engine; /* what the Decode actor sees: with group_sync all Decodes of the group */
    struct sim_compute compute;
    struct act_landing_arg landing;
    struct act_landing_stats stats;
    struct sim_way *way; /* to the common tier; NULL: none */
};

struct world {
    const struct sim_profile *p;
    const struct sim_world_options *o;
    struct act_sim *sim;
    struct act_runtime *rt;
    struct mdl_config config;
    struct act_steptime believed;
    struct rank *rank; /* [n]: decode ranks, then prefill ranks */
    int n;
    struct sim_common *common;     /* NULL: none */
    struct sim_lockstep *lockstep; /* [decode ranks], one for each group; NULL: ranks don't wait for each other */
    struct act_router_arg router;
    struct act_addr router_addr;
    struct sim_load_arg load;
};

static int spawn(struct world *w, const struct act_behaviour *b, int worker, enum act_class class, const void *arg,
                 struct act_addr *out, struct cfg_error *err)
{
    const struct act_spawn spec = {.behaviour = b, .worker = worker, .arg = arg, .run_class = class, .outbox = OUTBOX};
    return act_runtime_spawn(w->rt, &spec, out, err);
}

/* Where prompts take no time no rows are kept for a replay that costs nothing. */
static int replay_of(const struct sim_profile *p, const struct mdl_config *config)
{
    return p->tail.n && p->replay > config->window ? p->replay : config->window;
}

/* What a node of this machine is configured with. */
static int make_engine(struct world *w, int index, struct rank *r, struct cfg_error *err)
{
    const struct sim_profile *p = w->p;
    struct act_engine *e = &r->engine;
    sim_compute_init(&r->compute, p, &w->config, sim_hash(w->o->seed, (uint64_t)index));
    r->compute.planned = w->o->plan.mode == ACT_PLAN_DYNAMIC;
    r->compute.extra_ns[0] = sim_group_ns(&p->decode_group, w->o->decode_group ? w->o->decode_group : w->o->decode);
    r->compute.extra_ns[1] = sim_group_ns(&p->prefill_group, w->o->prefill_group ? w->o->prefill_group : w->o->prefill);
    if (w->lockstep && index < w->o->decode)
        r->compute.group = &w->lockstep[w->o->decode_group ? index / w->o->decode_group : 0];
    int64_t pages = p->kv_tokens / p->block_tokens;
    *e = (struct act_engine){.m = &r->compute.model,
                             .limits = {.context = p->context,
                                        .streams = p->streams,
                                        .prefills = p->prompts,
                                        .chunk = p->chunk,
                                        .draft = w->o->plan.mode == ACT_PLAN_OFF ? 0 : p->block,
                                        .replay = replay_of(p, &w->config),
                                        .rollback = 0,
                                        .lease = pages > 64 ? LEASE : 1,
                                        .prefill_share_ns = (int64_t)(1e3 * p->share_us)},
                             .plan = w->o->plan,
                             .steptime = w->believed,
                             .read_timeout_ns = INT64_C(1000000000),
                             .form = MDL_HANDOFF_FULL,
                             .vocab = w->config.vocab_size,
                             .router = w->router_addr};
    mdl_calibration_identity(&e->calibration, p->block);
    int rc = mdl_kv_layout_init(&w->config, p->block_tokens, &e->layout, err);
    return rc ? rc : kv_device_new((int)pages, e->layout.block_bytes, 0, &e->device, err);
}

static int make_decode_rank(struct world *w, struct rank *r, struct cfg_error *err)
{
    struct act_engine *e = &r->engine;
    int rc = spawn(w, &act_tier_device_behaviour, WORKER_ENGINE, ACT_CLASS_URGENT, e, &e->tier, err);
    if (!rc)
        r->decode_engine = *e;
    if (!rc)
        rc = spawn(w, &act_decode_behaviour, WORKER_ENGINE, ACT_CLASS_URGENT, &r->decode_engine, &e->decode[0], err);
    e->n_decode = 1;
    r->landing = (struct act_landing_arg){.engine = e, .router = &w->router_addr, .stats = &r->stats};
    if (!rc && !w->p->one_process)
        rc = spawn(w, &act_landing_behaviour, WORKER_ENGINE, ACT_CLASS_URGENT, &r->landing, &e->load, err);
    return rc;
}

static int make_prefill_rank(struct world *w, struct rank *r, struct cfg_error *err)
{
    struct act_engine *e = &r->engine;
    int worker = w->p->one_process ? WORKER_ENGINE : WORKER_PREFILL;
    int rc = 0;
    if (!w->p->one_process && w->common) { /* the tiers below are named by the device tier, so they come before it */
        rc = sim_way_new(w->common, w->p, w->sim, e, &r->way, err);
        if (rc)
            return rc;
        e->store_layout = sim_way_store(r->way)->layout;
        e->store_pages = 16;
        rc = spawn(w, &act_tier_store_behaviour, worker, ACT_CLASS_URGENT, sim_way_store(r->way), &e->store, err);
    }
    if (!rc && !w->p->one_process)
        rc = spawn(w, &act_tier_device_behaviour, worker, ACT_CLASS_URGENT, e, &e->tier, err);
    if (!rc)
        rc = spawn(w, &act_prefill_behaviour, worker, ACT_CLASS_BULK, e, &e->prefill[0], err);
    e->n_prefill = 1;
    return rc;
}

/* Tells a rank's Decode what is known when all are there. */
static void complete_decode(struct world *w, int index)
{
    struct rank *r = &w->rank[index];
    int size = w->o->decode_group ? w->o->decode_group : w->o->decode, first = index - index % size;
    r->decode_engine = r->engine;
    r->decode_engine.group_sync = w->o->group_sync && w->o->plan.mode == ACT_PLAN_DYNAMIC;
    if (!r->decode_engine.group_sync)
        return;
    r->decode_engine.n_decode = 0;
    for (int i = first; i < first + size && i < w->o->decode; i++)
        r->decode_engine.decode[r->decode_engine.n_decode++] = w->rank[i].engine.decode[0];
}

static int make_ranks(struct world *w, struct cfg_error *err)
{
    int rc = 0;
    for (int i = 0; !rc && i < w->n; i++) {
        struct rank *r = &w->rank[i];
        rc = make_engine(w, i, r, err);
        if (!rc && i < w->o->decode)
            rc = make_decode_rank(w, r, err);
        if (!rc && (i >= w->o->decode || w->p->one_process))
            rc = make_prefill_rank(w, r, err);
    }
    for (int i = 0; !rc && i < w->o->decode; i++)
        complete_decode(w, i);
    return rc;
}

/* The same way between all workers, in both directions. */
static void link_workers(struct world *w, int workers)
{
    int64_t ns = (int64_t)(1e3 * w->p->network_us);
    const struct act_sim_fault f = {.delay_min = ns, .delay_max = ns};
    for (int a = 0; ns && a < workers; a++)
        for (int b = 0; b < workers; b++)
            if (a != b)
                act_sim_link(w->sim, w->rt, a, b, &f);
}

static int make_runtime(struct world *w, struct cfg_error *err)
{
    static const char *const names[] = {"front", "engine", "prefill"};
    bool one = w->p->one_process;
    const struct act_sim_config sc = {
        .seed = w->o->seed, .in_turn = true, .call_ns = one ? 0 : 1, .message_ns = one ? 0 : 1};
    int rc = act_sim_new(&sc, &w->sim, err);
    struct act_config c = {.epoch = 1,
                           .workers = one ? WORKER_PREFILL : WORKER_PREFILL + 1,
                           .local_slots = 1 << 28,
                           .lane_slots = 1 << 16};
    for (int i = 0; i < c.workers; i++) {
        c.worker[i] = (struct act_worker_config){.kind = ACT_WORKER_ENGINE, .cpu = -1, .actors_max = 4 * w->n + 16};
        snprintf(c.worker[i].name, sizeof c.worker[i].name, "%s", names[i]);
    }
    if (!rc)
        rc = act_sim_add(w->sim, &c, &w->rt, err);
    if (!rc)
        link_workers(w, c.workers);
    return rc;
}

static int make_front(struct world *w, struct cfg_error *err)
{
    w->router = (struct act_router_arg){.prefix = w->o->prefix, .block_tokens = w->p->block_tokens};
    return spawn(w, &act_router_behaviour, WORKER_FRONT, ACT_CLASS_URGENT, &w->router, &w->router_addr, err);
}

static int run(struct world *w, const struct sim_load *load, struct sim_outcome *out, struct cfg_error *err)
{
    struct act_addr addr;
    w->load = (struct sim_load_arg){.profile = w->p, .load = load, .router = w->router_addr, .out = out};
    int rc = spawn(w, &sim_load_behaviour, WORKER_FRONT, ACT_CLASS_URGENT, &w->load, &addr, err);
    while (!rc && !w->load.done) {
        uint64_t steps = act_sim_run(w->sim, ACT_NEVER, 4096);
        out->messages += steps;
        if (!steps)
            rc = cfg_error_set(err, EDEADLK, "the simulation came to a stop before its load had ended");
    }
    out->trace = act_sim_trace(w->sim);
    return rc;
}

int sim_world_run(const struct sim_profile *p, const struct sim_world_options *o, const struct sim_load *load,
                  struct sim_outcome *out, struct cfg_error *err)
{
    struct world w = {.p = p, .o = o, .n = p->one_process ? 1 : o->decode + o->prefill};
    memset(out, 0, sizeof *out);
    sim_compute_config(p, &w.config);
    w.rank = calloc((size_t)w.n, sizeof *w.rank);
    w.common = o->common ? sim_common_new() : NULL;
    w.lockstep = p->lockstep && !p->one_process ? calloc((size_t)o->decode, sizeof *w.lockstep) : NULL;
    bool complete = w.rank && (w.common || !o->common) && (w.lockstep || !p->lockstep || p->one_process);
    int rc = complete ? sim_profile_believed(p, 5, &w.believed) : -ENOMEM;
    if (rc)
        cfg_error_set(err, -rc, "simulation: %s", strerror(-rc));
    if (!rc)
        rc = make_runtime(&w, err);
    if (!rc)
        rc = make_front(&w, err);
    if (!rc)
        rc = make_ranks(&w, err);
    if (!rc)
        rc = run(&w, load, out, err);
    act_sim_free(w.sim);
    for (int i = 0; w.rank && i < w.n; i++) {
        kv_device_free(w.rank[i].engine.device);
        sim_way_free(w.rank[i].way);
    }
    sim_common_free(w.common);
    free(w.lockstep);
    free(w.rank);
    return rc;
}
