/* The experts of a node: which shards its group has, in which order, and those that live here. */
#include <errno.h>
#include <string.h>

#include "actors/server_impl.h"

static bool in_group(const struct act_server *s, const struct cfg_node *n)
{
    return n->roles & CFG_ROLE_EXPERT && strcmp(n->experts, s->node->experts) == 0;
}

static int spawn_shards(struct act_server *s, int first, int n, struct cfg_error *err)
{
    struct act_experts *e = &s->engine.experts;
    s->first_shard = first;
    for (int i = first; i < first + n && i < e->n; i++, s->n_shards++) {
        /* Memory of experts is given back only where nothing else reads them. */
        s->expert[i] = (struct act_expert_arg){.m = s->m,
                                               .map = s->map,
                                               .index = i,
                                               .release = s->node->roles == CFG_ROLE_EXPERT && n == 1,
                                               .observer = &s->engine.observer,
                                               .slots = s->slots,
                                               .link = s->engine.link,
                                               .local = i - first};
        const struct act_spawn spec = {.behaviour = &act_expert_behaviour,
                                       .worker = SERVER_WORKER_ENGINE,
                                       .arg = &s->expert[i],
                                       .outbox = 1024,
                                       .policy = ACT_POLICY_RESTART};
        int r = act_runtime_spawn(s->rt, &spec, &e->shard[i], err);
        if (r)
            return r;
    }
    return 0;
}

static int spawn_balancer(struct act_server *s, int rank, int ranks, struct cfg_error *err)
{
    const struct cfg_config *c = s->config;
    s->balancer = (struct act_balancer_arg){.experts = &s->engine.experts,
                                            .slots = s->map->slots + c->experts.spare,
                                            .interval_ns = c->experts.balance_us * 1000,
                                            .gain = c->experts.gain,
                                            .rank = rank,
                                            .ranks = ranks,
                                            .log = s->log};
    const struct act_spawn spec = {.behaviour = &act_balancer_behaviour,
                                   .worker = SERVER_WORKER_IO,
                                   .arg = &s->balancer,
                                   .outbox = 1024,
                                   .policy = ACT_POLICY_RESTART};
    return act_runtime_spawn(s->rt, &spec, &s->balancer_addr, err);
}

/* Looks for the shards of other nodes; before whoever asks it. */
static int spawn_finder(struct act_server *s, struct cfg_error *err)
{
    const struct cfg_config *c = s->config;
    s->finder = (struct act_finder_arg){.link = s->engine.link,
                                        .experts = &s->engine.experts,
                                        .self = (int)(s->node - c->nodes) + 1,
                                        .balancer = &s->balancer_addr};
    for (int i = 0; i < c->n_nodes && i + 1 < ACT_FINDER_NODES; i++)
        s->finder.member[i + 1] = in_group(s, &c->nodes[i]);
    const struct act_spawn spec = {
        .behaviour = &act_finder_behaviour, .worker = SERVER_WORKER_IO, .arg = &s->finder, .outbox = 4096};
    return act_runtime_spawn(s->rt, &spec, &s->engine.experts.finder, err);
}

int server_spawn_experts(struct act_server *s, struct cfg_error *err)
{
    const struct cfg_config *c = s->config;
    struct act_experts *e = &s->engine.experts;
    int nodes = 0, here = -1, each = c->engine.expert_shards, experts = s->m->cfg->n_experts;
    for (int i = 0; i < c->n_nodes; i++) {
        if (!in_group(s, &c->nodes[i]))
            continue;
        if (&c->nodes[i] == s->node)
            here = nodes;
        nodes++;
    }
    e->n = nodes * each < experts ? nodes * each : experts;
    if (e->n > ACT_SHARDS_MAX || !e->n)
        return cfg_error_set(err, EINVAL, "%d expert nodes of %d shards: a group has 1 to %d shards", nodes, each,
                             ACT_SHARDS_MAX);
    if (act_map_even(1, s->m->cfg->n_layers, experts, e->n, &s->map))
        return cfg_error_set(err, ENOMEM, "experts: no map of %d experts over %d shards", experts, e->n);
    e->map = s->map;
    e->balanced = nodes > 1 && c->experts.balance_us > 0;
    e->report_ns = c->experts.balance_us * 1000 / 4;
    e->log = s->log;
    e->slots = s->slots;
    e->link = s->engine.link;
    e->node = (uint16_t)(s->node - c->nodes + 1);
    e->limits = (struct act_exchange_limits){.rows = c->experts.wave_rows,
                                             .deadline_ns = c->experts.deadline_us * 1000,
                                             .patience_ns = c->experts.patience_us * 1000,
                                             .no_takeover = c->experts.lost == CFG_LOST_WAIT};
    int r = here >= 0 ? spawn_shards(s, here * each, each, err) : 0;
    if (!r && !act_addr_is_nobody(s->engine.link))
        r = spawn_finder(s, err);
    return !r && here >= 0 && e->balanced ? spawn_balancer(s, here, nodes, err) : r;
}
