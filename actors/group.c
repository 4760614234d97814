#include "actors/group.h"

#include <string.h>

#include "actors/link.h"

static const int64_t ms = 1000000;
static const double SHARE = 65536;

void act_group_init(struct act_group *g, struct act_self *self, const struct act_engine *e)
{
    *g = (struct act_group){.self = self, .e = e};
}

static void send(struct act_group *g, struct act_msg *m)
{
    if (act_send(g->self, m))
        act_msg_drop(m);
}

static bool is_first(const struct act_group *g)
{
    return act_addr_equal(act_self_addr(g->self), g->e->decode[0]);
}

static bool leads(const struct act_group *g)
{
    bool yes = is_first(g);
    for (int i = 0; i < ACT_GROUP_NODES && yes; i++)
        yes = act_addr_is_nobody(g->node[i].landing) || g->node[i].node > g->e->node;
    return yes;
}

/* ---- the leader ---- */

static void ask_for_nodes(struct act_group *g)
{
    g->asked = true;
    if (!is_first(g) || act_addr_is_nobody(g->e->link))
        return;
    struct act_msg m = act_msg_make(ACT_NODES_WATCH, g->e->link);
    send(g, &m);
}

static void tell(struct act_group *g, struct act_addr to, int depth, uint32_t share)
{
    struct act_msg m = act_msg_make(ACT_GROUP_BUDGET, to);
    *act_p_group_budget(&m) = (struct act_p_group_budget){
        .sequence = g->sequence, .leader = g->e->node, .depth = (uint16_t)depth, .share = share};
    send(g, &m);
}

void act_group_after(struct act_group *g, int n, const struct act_plan_choice *choice)
{
    uint32_t share = (uint32_t)(SHARE * choice->budget / n);
    int64_t now = act_now(g->self);
    bool same = g->sent_depth == choice->depth && g->sent_share == share;
    if (!g->e->group_sync || !leads(g) || (same && g->sequence && now - g->sent_at < ACT_GROUP_REPEAT_MS * ms))
        return;
    g->sent_depth = choice->depth;
    g->sent_share = share;
    g->sent_at = now;
    g->sequence++;
    for (int i = 1; i < g->e->n_decode; i++)
        tell(g, g->e->decode[i], choice->depth, share);
    for (int i = 0; i < ACT_GROUP_NODES; i++)
        if (!act_addr_is_nobody(g->node[i].landing))
            tell(g, g->node[i].landing, choice->depth, share);
}

static void take_count(struct act_group *g, struct act_msg *m)
{
    struct act_group_member *at = NULL;
    for (int i = 0; i < ACT_GROUP_NODES; i++) {
        struct act_group_member *k = &g->member[i];
        if (act_addr_equal(k->addr, m->src)) {
            at = k;
            break;
        }
        if (!at && k->until <= act_now(g->self))
            at = k;
    }
    if (at)
        *at = (struct act_group_member){m->src, (int)act_p_group_count(m)->requests,
                                        act_now(g->self) + ACT_GROUP_FRESH_MS * ms};
}

static double scale_of(const struct act_group *g, int n)
{
    int most = n;
    for (int i = 0; i < ACT_GROUP_NODES; i++)
        if (g->member[i].until > act_now(g->self) && g->member[i].requests > most)
            most = g->member[i].requests;
    return (double)most / n;
}

/* ---- a member ---- */

static void tell_count(struct act_group *g, int n)
{
    int64_t now = act_now(g->self);
    if (g->sent_requests == n && now - g->sent_at < ACT_GROUP_REPEAT_MS * ms)
        return;
    g->sent_requests = n;
    g->sent_at = now;
    struct act_msg m = act_msg_make(ACT_GROUP_COUNT, g->leader);
    *act_p_group_count(&m) = (struct act_p_group_count){.sequence = ++g->sequence, .requests = (uint32_t)n};
    send(g, &m);
}

/* Of several that think they lead, as when nodes find each other one by one, the one of the lowest node counts. */
static void take_budget(struct act_group *g, struct act_msg *m)
{
    const struct act_p_group_budget *in = act_p_group_budget(m);
    bool same = act_addr_equal(m->src, g->leader), fresh = g->until > act_now(g->self);
    if (fresh && !same && in->leader > g->leader_node)
        return;
    if (same && (int32_t)(in->sequence - g->seen) <= 0)
        return;
    g->leader = m->src;
    g->leader_node = in->leader;
    g->seen = in->sequence;
    g->given = (struct act_plan_given){.depth = in->depth, .share = in->share / SHARE};
    g->until = act_now(g->self) + ACT_GROUP_FRESH_MS * ms;
}

/* ---- both ---- */

const struct act_plan_given *act_group_before(struct act_group *g, int n, double *scale)
{
    *scale = 1;
    if (!g->e->group_sync)
        return NULL;
    if (!g->asked)
        ask_for_nodes(g);
    if (leads(g)) {
        *scale = scale_of(g, n);
        return NULL;
    }
    if (g->until <= act_now(g->self))
        return NULL;
    tell_count(g, n);
    return &g->given;
}

static struct act_group_node *node_of(struct act_group *g, uint16_t peer)
{
    for (int i = 0; i < ACT_GROUP_NODES; i++)
        if (!act_addr_is_nobody(g->node[i].landing) && g->node[i].peer == peer)
            return &g->node[i];
    return NULL;
}

static void take_node(struct act_group *g, struct act_msg *m)
{
    const struct act_p_node_up *in = act_p_node_up(m);
    struct act_group_node *at = node_of(g, in->peer);
    size_t bytes;
    const struct act_node_actor *a = act_msg_tail(m, &bytes);
    for (int i = 0; i < ACT_GROUP_NODES && !at; i++)
        if (act_addr_is_nobody(g->node[i].landing))
            at = &g->node[i];
    if (!at)
        return;
    *at = (struct act_group_node){.node = in->node, .peer = in->peer};
    for (uint32_t k = 0; k < in->actors && (k + 1) * sizeof *a <= bytes; k++)
        if (a[k].kind == ACT_NODE_DECODE)
            at->landing = a[k].addr;
}

void act_group_message(struct act_group *g, struct act_msg *m)
{
    struct act_group_node *gone = m->type == ACT_NODE_DOWN ? node_of(g, act_p_node_down(m)->peer) : NULL;
    if (gone)
        *gone = (struct act_group_node){0};
    else if (m->type == ACT_NODE_UP)
        take_node(g, m);
    else if (m->type == ACT_GROUP_BUDGET)
        take_budget(g, m);
    else if (m->type == ACT_GROUP_COUNT)
        take_count(g, m);
}
