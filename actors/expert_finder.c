#include "actors/expert_finder.h"

#include <string.h>

#include "actors/link.h"
#include "actors/slots.h"

enum { ASKERS_MAX = 512 };

struct finder {
    const struct act_finder_arg *arg;
    struct act_addr asker[ASKERS_MAX];
    int n_askers;
    bool begun; /* the runtime runs */
    struct act_addr shard[ACT_SHARDS_MAX], balancer;
    struct act_addr balancer_of[ACT_FINDER_NODES]; /* by node; nobody: it is not there, or has none */
    uint16_t node[ACT_SHARDS_MAX];                 /* that has the shard; 0: this one, or not known */
    uint32_t told[ACT_SHARDS_MAX];                 /* the connection that the askers know; 0: none */
    /* By number in addresses: the connection of class expert, 0: none; and whether its slots are as here. */
    uint32_t link[ACT_PEERS_MAX];
    bool slots[ACT_PEERS_MAX];
};

static int finder_start(struct act_self *self, void *state, const void *arg)
{
    struct finder *f = state;
    f->arg = arg;
    const struct act_experts *e = f->arg->experts;
    memcpy(f->shard, e->shard, sizeof f->shard);
    struct act_msg m = act_msg_make(ACT_NODES_WATCH, f->arg->link);
    act_p_nodes_watch(&m)->flags = ACT_WATCH_CLASSES;
    return act_send(self, &m);
}

static void tell(struct act_self *self, struct act_addr to, uint32_t index, struct act_addr shard, uint32_t link)
{
    struct act_msg m = act_msg_make(ACT_EXPERT_SHARD, to);
    *act_p_expert_shard(&m) = (struct act_p_expert_shard){.index = index, .shard = shard, .link = link};
    if (act_send(self, &m))
        act_msg_drop(&m);
}

static void tell_all(struct act_self *self, const struct finder *f, uint32_t index, struct act_addr shard,
                     uint32_t link)
{
    for (int i = 0; i < f->n_askers; i++)
        tell(self, f->asker[i], index, shard, link);
}

/* The connection over which slots of the shard's node may be used. */
static uint32_t link_of(const struct finder *f, struct act_addr shard)
{
    return shard.peer && f->slots[shard.peer] ? f->link[shard.peer] : 0;
}

static void set_shard(struct act_self *self, struct finder *f, int index, struct act_addr shard)
{
    uint32_t link = link_of(f, shard);
    if (act_addr_equal(f->shard[index], shard) && f->told[index] == link)
        return;
    f->shard[index] = shard;
    f->told[index] = link;
    tell_all(self, f, (uint32_t)index, shard, link);
}

/* That of the first node that has one. */
static void choose_balancer(struct act_self *self, struct finder *f)
{
    struct act_addr balancer = ACT_NOBODY;
    for (int i = 0; i < ACT_FINDER_NODES && act_addr_is_nobody(balancer); i++)
        balancer = f->balancer_of[i];
    if (act_addr_equal(f->balancer, balancer))
        return;
    f->balancer = balancer;
    tell_all(self, f, ACT_SHARD_BALANCER, balancer, 0);
}

/* Own shards do not come from the link; nobody is told of them, since their addresses are known and looked up. */
static void take_ask(struct act_self *self, struct finder *f, struct act_addr who)
{
    bool known = false;
    for (int i = 0; i < f->n_askers; i++)
        known |= act_addr_equal(f->asker[i], who);
    if (!known && f->n_askers < ASKERS_MAX)
        f->asker[f->n_askers++] = who;
    for (int s = 0; s < f->arg->experts->n; s++)
        if (!act_addr_is_nobody(f->shard[s]))
            tell(self, who, (uint32_t)s, f->shard[s], f->told[s]);
    if (!act_addr_is_nobody(f->balancer))
        tell(self, who, ACT_SHARD_BALANCER, f->balancer, 0);
}

static void take_gone(struct finder *f, struct act_addr who)
{
    for (int i = 0; i < f->n_askers; i++)
        if (act_addr_equal(f->asker[i], who))
            f->asker[i--] = f->asker[--f->n_askers];
}

static bool has_same_slots(const struct finder *f, const struct act_node_actor *a, uint32_t n)
{
    const struct act_slots *own = f->arg->experts->slots;
    for (uint32_t i = 0; own && i < n; i++)
        if (a[i].kind == ACT_NODE_SLOTS)
            return (a[i].a | (uint64_t)a[i].b << 32) == own->fingerprint;
    return false;
}

/* A connection of class expert has begun, or has ended. */
static void take_class(struct act_self *self, struct finder *f, const struct act_p_node_class *c)
{
    if (c->class != TP_CLASS_EXPERT || c->peer >= ACT_PEERS_MAX || (!c->up && c->generation != f->link[c->peer]))
        return;
    f->link[c->peer] = c->up ? c->generation : 0;
    for (int i = 0; i < f->arg->experts->n; i++)
        if (f->shard[i].peer == c->peer && f->node[i])
            set_shard(self, f, i, f->shard[i]);
}

static bool has_shard(const struct act_node_actor *a, size_t n, uint32_t shard)
{
    for (size_t i = 0; i < n; i++)
        if (a[i].kind == ACT_NODE_EXPERT && a[i].a == shard)
            return true;
    return false;
}

static void take_up(struct act_self *self, struct finder *f, struct act_msg *m)
{
    uint16_t node = act_p_node_up(m)->node, peer = act_p_node_up(m)->peer;
    size_t bytes;
    const struct act_node_actor *a = act_msg_tail(m, &bytes);
    size_t n = bytes / sizeof *a < act_p_node_up(m)->actors ? bytes / sizeof *a : act_p_node_up(m)->actors;
    bool member = node < ACT_FINDER_NODES && f->arg->member[node];
    if (peer < ACT_PEERS_MAX)
        f->slots[peer] = has_same_slots(f, a, (uint32_t)n);
    if (member)
        f->balancer_of[node] = ACT_NOBODY;
    for (int s = 0; member && s < f->arg->experts->n; s++)
        if (f->node[s] == node && !has_shard(a, n, (uint32_t)s)) /* it has ended for good */
            set_shard(self, f, s, ACT_NOBODY);
    for (size_t i = 0; i < n; i++) {
        if (a[i].kind == ACT_NODE_EXPERT && member && a[i].a < (uint32_t)f->arg->experts->n) {
            f->node[a[i].a] = node;
            set_shard(self, f, (int)a[i].a, a[i].addr);
        }
        if (a[i].kind == ACT_NODE_BALANCER && member)
            f->balancer_of[node] = a[i].addr;
    }
    choose_balancer(self, f);
}

static void take_node_down(struct act_self *self, struct finder *f, uint16_t node, uint16_t peer)
{
    if (peer < ACT_PEERS_MAX) {
        f->link[peer] = 0;
        f->slots[peer] = false;
    }
    for (int i = 0; i < f->arg->experts->n; i++)
        if (f->node[i] == node)
            set_shard(self, f, i, ACT_NOBODY);
    if (node < ACT_FINDER_NODES)
        f->balancer_of[node] = ACT_NOBODY;
    choose_balancer(self, f);
}

static int finder_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct finder *f = state;
    if (!f->begun && f->arg->balancer) {
        f->balancer_of[f->arg->self] = *f->arg->balancer;
        choose_balancer(self, f);
    }
    f->begun = true;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_EXPERT_FIND)
            take_ask(self, f, m[i].src);
        else if (m[i].type == ACT_NODE_UP)
            take_up(self, f, &m[i]);
        else if (m[i].type == ACT_NODE_DOWN)
            take_node_down(self, f, act_p_node_down(&m[i])->node, act_p_node_down(&m[i])->peer);
        else if (m[i].type == ACT_NODE_CLASS)
            take_class(self, f, act_p_node_class(&m[i]));
        else if (m[i].type == ACT_UNDELIVERABLE && act_msg_returned_type(&m[i]) == ACT_EXPERT_SHARD)
            take_gone(f, m[i].src);
    }
    return 0;
}

const struct act_behaviour act_finder_behaviour = {
    .name = "expert_finder", .state_size = sizeof(struct finder), .start = finder_start, .receive = finder_receive};
