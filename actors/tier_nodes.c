/* Nodes that come and go, and lookups. See tier_nodes.h. */
#include "actors/tier_nodes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/link.h"
#include "actors/runtime/log.h"
#include "actors/tier_nodes_impl.h"
#include "kvtiers/placement.h"

_Static_assert(sizeof(struct act_key) == sizeof(struct kv_key), "keys travel as they are");

#define LEFT_OUT_MIN INT64_C(250000000)
#define LEFT_OUT_MAX INT64_C(8000000000)

/* ---- nodes ---- */

bool remote_is_there(const struct remote_tier *t, int node)
{
    const struct remote_node *n = &t->node[node];
    return t->self && !act_addr_is_nobody(n->addr) && !n->draining && act_now(t->self) >= n->not_before;
}

void remote_there(const struct remote_tier *t, bool there[ACT_KV_NODES_MAX])
{
    for (int i = 0; i < t->arg.n; i++)
        there[i] = remote_is_there(t, i);
}

int remote_owner(const struct remote_tier *t, const bool *there, const struct kv_key *key)
{
    return kv_place(key, t->place_id, there, t->arg.n);
}

void remote_leave_out(struct remote_tier *t, int node, const char *why)
{
    struct remote_node *n = &t->node[node];
    int64_t wait = LEFT_OUT_MIN << (n->failures < 5 ? n->failures : 5);
    if (n->failures++ == 0)
        act_log_event(t->arg.log, ACT_LOG_WARNING, "tier-kv", 0, "kv_node_left_out", "node=%s reason=%s",
                      t->arg.node[node].name, why);
    n->not_before = act_now(t->self) + (wait < LEFT_OUT_MAX ? wait : LEFT_OUT_MAX);
    remote_store_drop(t, node, -ETIMEDOUT);
}

void remote_praise(struct remote_tier *t, int node)
{
    struct remote_node *n = &t->node[node];
    if (n->failures)
        act_log_event(t->arg.log, ACT_LOG_INFO, "tier-kv", 0, "kv_node_back", "node=%s failures=%d",
                      t->arg.node[node].name, n->failures);
    n->failures = 0;
    n->not_before = 0;
}

void remote_heard(struct remote_tier *t, int node, int status)
{
    if (status == -ESHUTDOWN && !t->node[node].draining) {
        t->node[node].draining = true;
        remote_store_drop(t, node, status);
    } else if (status == -EPROTO) {
        remote_leave_out(t, node, "other_blocks");
    } else {
        remote_praise(t, node);
    }
}

static int node_of(const struct remote_tier *t, uint16_t number)
{
    for (int i = 0; i < t->arg.n; i++)
        if (t->arg.node[i].number == number)
            return i;
    return -1;
}

static void node_gone(struct remote_tier *t, int node)
{
    t->node[node].addr = ACT_NOBODY;
    remote_store_drop(t, node, -ENOTCONN);
}

static void set_name(struct remote_tier *t, int node, const char *name)
{
    snprintf(t->arg.node[node].name, sizeof t->arg.node[node].name, "%s", name);
    t->place_id[node] = kv_place_id(name);
}

/* The place of a kv node that is there. One that the list had not at the start (SIGHUP has brought it) gets one: from
 * now on it has its share of the keys, which are misses there until they are stored again. -1: there is no room. */
static int place_of(struct remote_tier *t, uint16_t number, const char *name)
{
    int node = node_of(t, number);
    if (node < 0 && !name[0])
        return -1;
    if (node < 0 && t->arg.n == ACT_KV_NODES_MAX) {
        act_log_event(t->arg.log, ACT_LOG_ERROR, "tier-kv", 0, "kv_node_unused", "node=%s reason=more_than_%d", name,
                      ACT_KV_NODES_MAX);
        return -1;
    }
    if (node < 0) {
        node = t->arg.n++;
        t->node[node] = (struct remote_node){.queue_end = &t->node[node].queue};
        t->arg.node[node].number = number;
        t->arg.node[node].name[0] = 0;
    }
    if (name[0] && strcmp(name, t->arg.node[node].name)) {
        set_name(t, node, name);
        act_log_event(t->arg.log, ACT_LOG_INFO, "tier-kv", 0, "kv_node_added", "node=%s nodes=%d", name, t->arg.n);
    }
    return node;
}

static void take_up(struct remote_tier *t, struct act_msg *m)
{
    const struct act_p_node_up *p = act_p_node_up(m);
    char name[TP_NAME_TEXT];
    size_t bytes;
    const struct act_node_actor *a = act_msg_tail(m, &bytes);
    struct act_addr who = ACT_NOBODY;
    for (uint32_t i = 0; i < p->actors && (i + 1) * sizeof *a <= bytes; i++)
        if (a[i].kind == ACT_NODE_KV)
            who = a[i].addr;
    act_node_name(m, name);
    int node = act_addr_is_nobody(who) ? node_of(t, p->node) : place_of(t, p->node, name);
    if (node < 0)
        return;
    if (act_addr_equal(who, t->node[node].addr))
        return;
    node_gone(t, node);
    t->node[node].addr = who;
    t->node[node].peer = p->peer;
    t->node[node].draining = false;
    t->node[node].not_before = 0;
}

static void take_down(struct remote_tier *t, struct act_msg *m)
{
    int node = node_of(t, act_p_node_down(m)->node);
    if (node >= 0 && t->node[node].peer == act_p_node_down(m)->peer)
        node_gone(t, node);
}

/* ---- lookups ---- */

static void lookup_part(struct remote_tier *t, struct remote_lookup *l, int count)
{
    l->count = count < l->count ? count : l->count;
    if (--l->left)
        return;
    t->stats.found += (uint64_t)l->count;
    t->stats.queue--;
    struct kv_tier_op *op = l->op;
    int n = l->count;
    free(l);
    kv_op_finish(op, n, 0);
}

static void find_end(struct remote_tier *t, struct remote_find *f, int blocks)
{
    struct remote_find **at = &t->finds;
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    struct remote_lookup *l = f->lookup;
    int count = blocks < f->n ? f->at[blocks > 0 ? blocks : 0] : l->count;
    free(f);
    lookup_part(t, l, count);
}

/* Asks a node for its share of the keys. The question is in the list, or there is none. */
static bool ask(struct remote_tier *t, struct remote_lookup *l, int node, const int *owner, int n)
{
    struct remote_find *f = calloc(1, sizeof *f + (size_t)n * sizeof *f->at);
    struct act_msg m;
    size_t bytes;
    if (!f)
        return false;
    for (int i = 0; i < n; i++)
        if (owner[i] == node)
            f->at[f->n++] = i;
    if (act_msg_new(ACT_REMOTE_FIND, t->node[node].addr, (size_t)f->n * sizeof(struct kv_key), &m)) {
        free(f);
        return false;
    }
    struct kv_key *key = act_msg_tail(&m, &bytes);
    for (int i = 0; i < f->n; i++)
        key[i] = l->op->block[f->at[i]].key;
    act_p_remote_find(&m)->blocks = (uint32_t)f->n;
    act_b_remote_find(&m)->layout = t->layout;
    m.request = f->id = ++t->ids;
    m.deadline = l->deadline;
    if (act_request(t->self, &m)) {
        act_msg_drop(&m);
        free(f);
        return false;
    }
    f->lookup = l;
    f->node = node;
    f->next = t->finds;
    t->finds = f;
    l->left++;
    return true;
}

/* The keys belong to the nodes that are there; a hit ends at the first block that its node does not have. */
static void remote_lookup(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct remote_tier *t = (struct remote_tier *)tier;
    bool there[ACT_KV_NODES_MAX] = {false}, wanted[ACT_KV_NODES_MAX] = {false};
    int n = op->n < ACT_REMOTE_FIND_MAX ? op->n : ACT_REMOTE_FIND_MAX;
    struct remote_lookup *l = calloc(1, sizeof *l);
    int *owner = malloc((size_t)(n > 0 ? n : 1) * sizeof *owner);
    remote_there(t, there);
    for (int i = 0; owner && i < n; i++) {
        owner[i] = remote_owner(t, there, &op->block[i].key);
        if (owner[i] < 0)
            n = i;
        else
            wanted[owner[i]] = true;
    }
    t->stats.lookups += (uint64_t)op->n;
    if (!l || !owner || !n) {
        free(l);
        free(owner);
        kv_op_finish(op, 0, 0);
        return;
    }
    /* left: one more than questions until all are asked. */
    *l = (struct remote_lookup){.op = op, .count = n, .left = 1, .deadline = act_now(t->self) + t->arg.find_ns};
    t->stats.queue++;
    for (int i = 0; i < t->arg.n; i++)
        if (wanted[i] && !ask(t, l, i, owner, n))
            l->count = 0;
    free(owner);
    lookup_part(t, l, l->count);
}

static struct remote_find *find_of(struct remote_tier *t, uint64_t id)
{
    struct remote_find *f = t->finds;
    while (f && f->id != id)
        f = f->next;
    return f;
}

static void take_found(struct remote_tier *t, struct act_msg *m)
{
    struct remote_find *f = find_of(t, m->request);
    if (!f)
        return;
    remote_heard(t, f->node, act_p_remote_found(m)->status);
    find_end(t, f, act_p_remote_found(m)->status ? 0 : (int)act_p_remote_found(m)->blocks);
}

static void find_lost(struct remote_tier *t, uint64_t id)
{
    struct remote_find *f = find_of(t, id);
    if (!f)
        return;
    remote_leave_out(t, f->node, "lost");
    find_end(t, f, 0);
}

static void find_tick(struct remote_tier *t, int64_t now)
{
    struct remote_find *f;
    do {
        for (f = t->finds; f && f->lookup->deadline > now; f = f->next)
            ;
        if (f) {
            t->stats.errors++;
            remote_leave_out(t, f->node, "late_lookup");
            find_end(t, f, 0);
        }
    } while (f);
}

/* ---- the tier ---- */

static void remote_drop(struct kv_tier *tier, struct kv_tier_op *op)
{
    (void)tier;
    kv_op_finish(op, 0, -EROFS); /* blocks of a node are its own to drop */
}

static void remote_stat(struct kv_tier *tier, struct kv_tier_stats *out)
{
    *out = ((struct remote_tier *)tier)->stats;
}

static void remote_tick(struct kv_tier *tier)
{
    struct remote_tier *t = (struct remote_tier *)tier;
    if (!t->self)
        return;
    int64_t now = act_now(t->self);
    find_tick(t, now);
    remote_read_tick(t, now);
    remote_store_tick(t, now);
}

static void remote_free(struct kv_tier *tier)
{
    struct remote_tier *t = (struct remote_tier *)tier;
    while (t->leases) { /* the windows are closed by now */
        struct remote_lease *l = t->leases;
        t->leases = l->next;
        free(l);
    }
    free(t->free_slot);
    free(t);
}

static const struct kv_tier_ops remote_ops = {
    .name = "kv",
    .lookup = remote_lookup,
    .read = remote_read,
    .store = remote_store,
    .drop = remote_drop,
    .stat = remote_stat,
    .tick = remote_tick,
    .free = remote_free,
    .cancel = remote_cancel,
    .want = remote_want,
};

int act_nodes_new(const struct act_nodes_arg *arg, struct kv_tier **out, struct cfg_error *err)
{
    struct remote_tier *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return cfg_error_set(err, ENOMEM, "kv nodes: out of memory");
    t->base.ops = &remote_ops;
    t->arg = *arg;
    t->layout = kv_layout_id(&arg->layout);
    for (int i = 0; i < arg->n; i++) {
        t->place_id[i] = kv_place_id(arg->node[i].name);
        t->node[i].queue_end = &t->node[i].queue;
    }
    if (remote_slots_init(t)) {
        free(t);
        return cfg_error_set(err, ENOMEM, "kv nodes: out of memory");
    }
    *out = &t->base;
    return 0;
}

int act_nodes_start(struct kv_tier *tier, struct act_self *self)
{
    struct remote_tier *t = (struct remote_tier *)tier;
    t->self = self;
    if (t->arg.here && !act_addr_is_nobody(*t->arg.here))
        t->node[0].addr = *t->arg.here;
    if (!t->arg.link || act_addr_is_nobody(*t->arg.link))
        return 0;
    struct act_msg m = act_msg_make(ACT_NODES_WATCH, *t->arg.link);
    act_p_nodes_watch(&m)->flags = ACT_WATCH_CLASSES;
    return act_send(self, &m);
}

static void take_returned(struct remote_tier *t, struct act_msg *m)
{
    switch (act_msg_returned_type(m)) {
    case ACT_REMOTE_FIND:
        find_lost(t, m->request);
        break;
    case ACT_REMOTE_READ:
        remote_take_done(t, m->request, -ECONNRESET, "lost");
        /* The connection is lost, or nobody was there; a node that has not answered may write yet. */
        remote_lease_end(t, m->request, m->flags & ACT_MSG_LATE ? -EREMOTEIO : 0);
        break;
    case ACT_REMOTE_STORE:
        remote_take_stored(t, m->request, 0, -ECONNRESET, "lost");
        break;
    case ACT_LINK_FENCE:
        remote_take_fence(t, m->request); /* the link has ended, and all connections with it */
        break;
    default:
        break;
    }
}

void act_nodes_message(struct kv_tier *tier, struct act_msg *m)
{
    struct remote_tier *t = (struct remote_tier *)tier;
    switch (m->type) {
    case ACT_NODE_UP:
        take_up(t, m);
        break;
    case ACT_NODE_DOWN:
        take_down(t, m);
        break;
    case ACT_REMOTE_FOUND:
        take_found(t, m);
        break;
    case ACT_REMOTE_ROWS:
        remote_take_rows(t, m);
        break;
    case ACT_REMOTE_DONE:
        remote_take_done(t, m->request, act_p_remote_done(m)->status, NULL);
        remote_lease_end(t, m->request, act_p_remote_done(m)->status);
        break;
    case ACT_REMOTE_STORED:
        remote_take_stored(t, m->request, (int)act_p_remote_stored(m)->blocks, act_p_remote_stored(m)->status, NULL);
        break;
    case ACT_NODE_CLASS:
        if (act_p_node_class(m)->class == TP_CLASS_KV) /* comes before NODE_UP: by number, not by node */
            t->generation[act_p_node_class(m)->peer & (ACT_PEERS_MAX - 1)] =
                act_p_node_class(m)->up ? act_p_node_class(m)->generation : 0;
        break;
    case ACT_LINK_FENCE:
        remote_take_fence(t, m->request);
        break;
    case ACT_UNDELIVERABLE:
        take_returned(t, m);
        break;
    default:
        break;
    }
}

void act_nodes_stop(struct kv_tier *tier)
{
    struct remote_tier *t = (struct remote_tier *)tier;
    while (t->finds)
        find_end(t, t->finds, 0);
    while (t->fetches)
        remote_take_done(t, t->fetches->id, -ESHUTDOWN, NULL);
    while (t->batches)
        remote_take_stored(t, t->batches->id, 0, -ESHUTDOWN, NULL);
    for (int i = 0; i < t->arg.n; i++)
        remote_store_drop(t, i, -ESHUTDOWN);
    t->self = NULL;
}
