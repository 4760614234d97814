/* The slots of a node's expert exchange (slots.h): their sizes, from the configuration, which is the same on all nodes;
 * their windows; and who uses them. */
#include <errno.h>
#include <string.h>

#include "actors/server_impl.h"
#include "actors/slots.h"

/* What a node has by its configuration. */
struct plan {
    struct act_slots_shape shape;
    bool sources, shards;
};

/* False: nothing, it uses messages. */
static bool make_plan(const struct cfg_config *c, const struct cfg_node *node, const struct mdl_config *m,
                      struct plan *out)
{
    struct act_slots_shape shape = {.hidden = (uint32_t)m->hidden, .rows = (uint32_t)c->experts.slot_rows};
    unsigned others = 0; /* roles of other nodes of its group: within a process there are no slots */
    int nodes = 0;
    for (int i = 0; i < c->n_nodes; i++) {
        const struct cfg_node *n = &c->nodes[i];
        bool mine = strcmp(n->experts, node->experts) == 0;
        nodes += mine && n->roles & CFG_ROLE_EXPERT;
        others |= mine && n != node ? n->roles : 0;
        if (mine && n->roles & (CFG_ROLE_PREFILL | CFG_ROLE_DECODE) && i + 1 < ACT_SLOT_NODES && shape.nodes < 255)
            shape.rank[i + 1] = (uint8_t)++shape.nodes;
    }
    *out = (struct plan){.sources = node->roles & (CFG_ROLE_PREFILL | CFG_ROLE_DECODE) && others & CFG_ROLE_EXPERT,
                         .shards = node->roles & CFG_ROLE_EXPERT && others & (CFG_ROLE_PREFILL | CFG_ROLE_DECODE)};
    if (c->n_nodes < 2 || !shape.rows || !nodes || !shape.nodes || !(out->shards || out->sources))
        return false;
    shape.each = (uint32_t)c->engine.expert_shards;
    shape.shards = shape.each * (uint32_t)nodes;
    if (shape.shards > (uint32_t)m->n_experts)
        shape.shards = (uint32_t)m->n_experts;
    if (shape.shards > ACT_SHARDS_MAX)
        return false; /* refused with a reason where shards are made */
    shape.pairs = act_slots_pairs(shape.rows, (uint32_t)m->topk_experts, shape.shards);
    shape.places = (uint32_t)(c->engine.prefill_actors + c->engine.decode_actors + 1);
    out->sources &= shape.rank[node - c->nodes + 1] != 0;
    out->shape = shape;
    return true;
}

int server_slots_open(struct act_server *s, struct cfg_error *err)
{
    struct plan p;
    return make_plan(s->config, s->node, s->m->cfg, &p) ? act_slots_new(&p.shape, p.sources, p.shards, &s->slots, err)
                                                        : 0;
}

int64_t act_server_slot_bytes(const struct cfg_config *c, const struct cfg_node *node, const struct mdl_config *m)
{
    struct plan p;
    if (!make_plan(c, node, m, &p))
        return 0;
    return (p.sources ? (int64_t)act_slots_results_bytes(&p.shape) : 0) +
           (p.shards ? (int64_t)act_slots_dispatches_bytes(&p.shape) : 0);
}

int act_server_slots_check(const struct cfg_config *c, const struct cfg_node *node, const struct mdl_config *m,
                           struct cfg_error *err)
{
    struct plan p;
    return make_plan(c, node, m, &p) ? act_slots_check(&p.shape, err) : 0;
}

static void add_source(struct act_slots *s, struct act_addr who)
{
    if (!act_addr_is_nobody(who) && s->n_sources < (int)s->shape.places)
        s->source[s->n_sources++] = who;
}

void server_slots_windows(struct act_server *s, struct act_link_arg *a)
{
    const struct act_slots *x = s->slots;
    if (x && x->results)
        a->window[a->n_windows++] =
            (struct act_link_window){.id = ACT_WINDOW_RESULTS, .base = x->results, .size = x->results_bytes};
    if (x && x->dispatches)
        a->window[a->n_windows++] =
            (struct act_link_window){.id = ACT_WINDOW_DISPATCHES, .base = x->dispatches, .size = x->dispatches_bytes};
}

void server_slots_ports(struct act_server *s, struct act_link_arg *a)
{
    struct act_slots *x = s->slots;
    const struct act_engine *e = &s->engine;
    if (!x)
        return;
    for (int i = 0; i < e->n_prefill; i++)
        add_source(x, e->prefill[i]);
    for (int i = 0; i < e->n_decode; i++)
        add_source(x, e->decode[i]);
    add_source(x, s->landing.replay);
    if (x->results)
        a->fan[TP_CLASS_EXPERT][ACT_PORT_SOURCES] = (struct act_link_fan){x->source, x->n_sources};
    if (x->dispatches && s->n_shards)
        a->fan[TP_CLASS_EXPERT][ACT_PORT_SHARDS] =
            (struct act_link_fan){&e->experts.shard[s->first_shard], s->n_shards};
}
