/* Write-behind to kv nodes: what is on its way is bounded, the rest is refused; two messages per node at a time, so
 * that nothing else of the connection waits long behind them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/tier_nodes_impl.h"

enum { UNDER_WAY = 2, BATCH_BYTES = 1 << 20 };

static void item_end(struct remote_tier *t, struct remote_item *x, int status)
{
    struct remote_put *p = x->put;
    if (status && x->at < p->cut)
        p->cut = x->at;
    t->store_bytes -= t->arg.layout.block_bytes;
    if (status) {
        t->stats.refused++;
        p->status = status;
    } else {
        t->stats.stored++;
        t->stats.stored_bytes += t->arg.layout.block_bytes;
    }
    free(x);
    if (--p->left)
        return;
    struct kv_tier_op *op = p->op;
    int kept = p->cut, why = p->status; /* all before it */
    free(p);
    t->stats.queue--;
    kv_op_finish(op, kept, why);
}

/* The list's items end; the first `stored` of them are kept. */
static void items_end(struct remote_tier *t, struct remote_item *x, int stored, int status)
{
    for (struct remote_item *next; x; x = next, stored--) {
        next = x->next;
        item_end(t, x, stored > 0 ? 0 : status ? status : -ENOSPC);
    }
}

static int write_message(const struct remote_tier *t, int node, const struct remote_item *items, int n,
                         struct act_msg *m)
{
    const struct kv_layout *l = &t->arg.layout;
    size_t head = sizeof(struct act_remote_block) + (size_t)l->n_sources * sizeof(uint64_t), bytes;
    int r = act_msg_new(ACT_REMOTE_STORE, t->node[node].addr, (size_t)n * (head + l->block_bytes), m);
    if (r)
        return r;
    act_p_remote_store(m)->blocks = (uint32_t)n;
    act_b_remote_store(m)->layout = t->layout;
    struct act_remote_block *b = act_msg_tail(m, &bytes);
    uint64_t *sum = (uint64_t *)(void *)(b + n);
    uint8_t *rows = (uint8_t *)(sum + (size_t)n * (size_t)l->n_sources);
    for (const struct remote_item *x = items; x; x = x->next, b++, rows += l->block_bytes) {
        memcpy(&b->key, &x->block->key, sizeof b->key);
        b->taint = (uint32_t)x->block->info.taint;
        b->hit = x->block->info.hit;
        memcpy(rows, x->block->bytes, l->block_bytes);
        for (int s = 0; s < l->n_sources; s++)
            *sum++ = kv_extent_sum(&x->block->key, s, 0, rows + l->offset[s], l->bytes[s]);
    }
    return 0;
}

/* The next blocks of the queue as one message. */
static bool send_batch(struct remote_tier *t, int node)
{
    struct remote_node *k = &t->node[node];
    struct remote_batch *b = calloc(1, sizeof *b);
    struct remote_item **end;
    struct act_msg m;
    int most = (int)(BATCH_BYTES / t->arg.layout.block_bytes);
    if (!b)
        return false;
    most = most < 1 ? 1 : most < ACT_REMOTE_STORE_MAX ? most : ACT_REMOTE_STORE_MAX;
    struct remote_item *behind = NULL; /* a block that was refused: nobody finds them */
    for (end = &b->items; k->queue && b->n < most;) {
        struct remote_item *x = k->queue;
        k->queue = x->next;
        if (x->at > x->put->cut) {
            x->next = behind;
            behind = x;
            continue;
        }
        *end = x;
        end = &x->next;
        b->n++;
    }
    *end = NULL;
    if (!k->queue)
        k->queue_end = &k->queue;
    items_end(t, behind, 0, -ENOSPC);
    if (!b->n) {
        free(b);
        return true;
    }
    int r = write_message(t, node, b->items, b->n, &m);
    if (!r) {
        b->id = m.request = ++t->ids;
        m.deadline = act_now(t->self) + t->arg.quiet_ns;
        r = act_request(t->self, &m);
        if (r)
            act_msg_drop(&m);
    }
    if (r) {
        struct remote_item *items = b->items;
        free(b);
        items_end(t, items, 0, r);
        return false;
    }
    b->node = node;
    b->deadline = act_now(t->self) + t->arg.quiet_ns;
    b->next = t->batches;
    t->batches = b;
    k->batches++;
    return true;
}

static void send_on(struct remote_tier *t, int node)
{
    struct remote_node *k = &t->node[node];
    while (k->queue && k->batches < UNDER_WAY && remote_is_there(t, node) && send_batch(t, node))
        ;
    if (k->queue && !k->batches) /* nothing will come back that could send the rest */
        remote_store_drop(t, node, -EAGAIN);
}

void remote_store_drop(struct remote_tier *t, int node, int status)
{
    struct remote_node *k = &t->node[node];
    struct remote_item *items = k->queue;
    k->queue = NULL;
    k->queue_end = &k->queue;
    items_end(t, items, 0, status);
}

void remote_store(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct remote_tier *t = (struct remote_tier *)tier;
    size_t each = t->arg.layout.block_bytes;
    bool there[ACT_KV_NODES_MAX] = {false}, touched[ACT_KV_NODES_MAX] = {false};
    struct remote_put *p = calloc(1, sizeof *p);
    if (!p) {
        kv_op_finish(op, 0, -ENOMEM);
        return;
    }
    /* left: one more than items until all are queued. */
    *p = (struct remote_put){.op = op, .left = 1, .cut = op->n};
    t->stats.queue++;
    remote_there(t, there);
    for (int i = 0; i < op->n; i++) {
        const struct kv_tier_block *b = &op->block[i];
        int node = remote_owner(t, there, &b->key);
        bool room = node >= 0 && i < p->cut && t->store_bytes + each <= t->arg.store_bytes;
        struct remote_item *x = room ? calloc(1, sizeof *x) : NULL;
        if (!x) {
            t->stats.refused++;
            p->status = node < 0 ? -ENOTCONN : -ENOSPC;
            if (i < p->cut)
                p->cut = i;
            continue;
        }
        *x = (struct remote_item){.put = p, .block = b, .at = i};
        *t->node[node].queue_end = x;
        t->node[node].queue_end = &x->next;
        t->store_bytes += each;
        touched[node] = true;
        p->left++;
    }
    for (int i = 0; i < t->arg.n; i++)
        if (touched[i])
            send_on(t, i);
    if (--p->left == 0) {
        int kept = p->cut, why = p->status;
        free(p);
        t->stats.queue--;
        kv_op_finish(op, kept, why);
    }
}

void remote_take_stored(struct remote_tier *t, uint64_t id, int blocks, int status, const char *why)
{
    struct remote_batch **at = &t->batches, *b;
    while ((b = *at) && b->id != id)
        at = &b->next;
    if (!b)
        return;
    *at = b->next;
    int node = b->node;
    t->node[node].batches--;
    t->stats.errors += why != NULL;
    struct remote_item *items = b->items;
    free(b);
    items_end(t, items, status && !blocks ? 0 : blocks, status);
    if (why)
        remote_leave_out(t, node, why);
    else
        remote_heard(t, node, status);
    send_on(t, node);
}

void remote_store_tick(struct remote_tier *t, int64_t now)
{
    struct remote_batch *b;
    do {
        for (b = t->batches; b && b->deadline > now; b = b->next)
            ;
        if (b)
            remote_take_stored(t, b->id, 0, -ETIMEDOUT, "late_store");
    } while (b);
}
