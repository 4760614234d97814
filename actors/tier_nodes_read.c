/* Reads from kv nodes: rows come in pieces, source by source, and are verified in the pages of the reader. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/link.h"
#include "actors/tier_nodes_impl.h"

/* A node gives slots back when it has given up the read, of which it hears after quiet_ns at most. One that is silent
 * for so many of these has its connection ended for them. */
enum { LEASE_QUIETS = 10 };

/* An extent has its end. The last one ends op. */
static void settle(struct remote_tier *t, struct kv_tier_op *op, int block, int source, int status)
{
    if (!status) {
        t->stats.read_bytes += t->arg.layout.bytes[source];
        t->stats.read += source == t->arg.layout.n_sources - 1;
    }
    if (--op->pending == 0) {
        t->stats.read_ns += (uint64_t)(act_now(t->self) - op->began);
        t->stats.read_ops++;
        t->stats.queue--;
    }
    kv_op_read_extent(op, t->arg.layout.n_sources, block, source, status);
}

static void fetch_unlink(struct remote_tier *t, const struct remote_fetch *f)
{
    struct remote_fetch **at = &t->fetches;
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
}

/* What has not come does not come any more. */
static void fetch_fail(struct remote_tier *t, struct remote_fetch *f, int status)
{
    fetch_unlink(t, f);
    for (int s = 0; s < t->arg.layout.n_sources; s++)
        for (int i = f->got[s]; i < f->n; i++)
            settle(t, f->op, f->at[i], s, status);
    free(f);
}

static bool fetch_whole(const struct remote_tier *t, const struct remote_fetch *f)
{
    for (int s = 0; s < t->arg.layout.n_sources; s++)
        if (f->got[s] < f->n)
            return false;
    return true;
}

/* ---- slots ---- */

int remote_slots_init(struct remote_tier *t)
{
    if (!t->arg.window)
        return 0;
    t->slot_bytes = ACT_REMOTE_PIECE;
    for (int s = 0; s < t->arg.layout.n_sources; s++)
        if (t->arg.layout.bytes[s] > t->slot_bytes)
            t->slot_bytes = t->arg.layout.bytes[s];
    t->n_slots = (int)(t->arg.window_bytes / t->slot_bytes);
    t->free_slot = malloc((size_t)(t->n_slots + 1) * sizeof *t->free_slot);
    if (!t->free_slot)
        return -ENOMEM;
    for (t->n_free = 0; t->n_free < t->n_slots; t->n_free++)
        t->free_slot[t->n_free] = t->n_free;
    return 0;
}

/* NULL: bytes come in messages, because there is no window, no room in it, or no connection of known generation. */
static struct remote_lease *lend(struct remote_tier *t, int node, uint64_t id)
{
    uint16_t peer = t->node[node].peer; /* 0: it is this process itself */
    if (t->n_free < ACT_REMOTE_SLOTS || !peer || !t->generation[peer & (ACT_PEERS_MAX - 1)])
        return NULL;
    struct remote_lease *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    *l = (struct remote_lease){
        .next = t->leases, .id = id, .peer = peer, .generation = t->generation[peer & (ACT_PEERS_MAX - 1)]};
    for (int i = 0; i < ACT_REMOTE_SLOTS; i++)
        l->slot[i] = t->free_slot[--t->n_free];
    t->leases = l;
    return l;
}

static void take_back(struct remote_tier *t, struct remote_lease *l)
{
    struct remote_lease **at = &t->leases;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    for (int i = 0; i < ACT_REMOTE_SLOTS; i++)
        t->free_slot[t->n_free++] = l->slot[i];
    free(l);
}

/* Nothing that went over this connection lands any more once the link has answered. Where it cannot be asked, it is
 * asked when the lease is over. */
static void fence(struct remote_tier *t, struct remote_lease *l)
{
    struct act_msg m = act_msg_make(ACT_LINK_FENCE, *t->arg.link);
    *act_p_link_fence(&m) =
        (struct act_p_link_fence){.peer = l->peer, .class = TP_CLASS_KV, .generation = l->generation};
    m.request = l->fence = ++t->ids;
    if (act_request(t->self, &m)) {
        act_msg_drop(&m);
        l->fence = 0;
    }
}

static int64_t lease_end(const struct remote_tier *t)
{
    return act_now(t->self) + LEASE_QUIETS * t->arg.quiet_ns;
}

void remote_lease_end(struct remote_tier *t, uint64_t id, int status)
{
    struct remote_lease *l = t->leases;
    while (l && l->id != id)
        l = l->next;
    if (!l || l->fence)
        return;
    if (status == -EREMOTEIO)
        fence(t, l);
    else
        take_back(t, l);
}

void remote_take_fence(struct remote_tier *t, uint64_t id)
{
    struct remote_lease *l = t->leases;
    while (l && l->fence != id)
        l = l->next;
    if (l)
        take_back(t, l);
}

/* ---- reading ---- */

/* Up to ACT_REMOTE_READ_MAX blocks at a time; all of a read's questions are asked at once, so that the first source of
 * all blocks comes first. */
static int fetch_start(struct remote_tier *t, struct kv_tier_op *op, int node, const int *at, int n)
{
    struct remote_fetch *f = calloc(1, sizeof *f);
    struct act_msg m;
    size_t bytes;
    if (!f)
        return -ENOMEM;
    int r = act_msg_new(ACT_REMOTE_READ, t->node[node].addr, (size_t)n * sizeof(struct kv_key), &m);
    if (!r) {
        struct kv_key *key = act_msg_tail(&m, &bytes);
        for (int i = 0; i < n; i++) {
            f->at[i] = at[i];
            key[i] = op->block[at[i]].key;
        }
        f->id = m.request = ++t->ids;
        *act_p_remote_read(&m) = (struct act_p_remote_read){.blocks = (uint32_t)n, .load = (uint32_t)f->id};
        f->lease = lend(t, node, f->id);
        *act_b_remote_read(&m) = (struct act_b_remote_read){.layout = t->layout, .wanted = (uint32_t)op->wanted};
        if (f->lease) {
            act_b_remote_read(&m)->window = t->arg.window_id;
            act_b_remote_read(&m)->slot_bytes = (uint32_t)t->slot_bytes;
            act_b_remote_read(&m)->generation = f->lease->generation;
            act_b_remote_read(&m)->slot_a = (uint64_t)f->lease->slot[0] * t->slot_bytes;
            act_b_remote_read(&m)->slot_b = (uint64_t)f->lease->slot[1] * t->slot_bytes;
        }
        r = act_request(t->self, &m);
        if (r)
            act_msg_drop(&m);
        if (r && f->lease)
            take_back(t, f->lease);
    }
    if (r) {
        free(f);
        return r;
    }
    f->op = op;
    f->node = node;
    f->n = n;
    f->deadline = act_now(t->self) + t->arg.quiet_ns;
    if (f->lease)
        f->lease->until = lease_end(t);
    f->next = t->fetches;
    t->fetches = f;
    return 0;
}

void remote_read(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct remote_tier *t = (struct remote_tier *)tier;
    int sources = t->arg.layout.n_sources, at[ACT_KV_NODES_MAX][ACT_REMOTE_READ_MAX], n[ACT_KV_NODES_MAX] = {0};
    bool there[ACT_KV_NODES_MAX] = {false};
    int *lost = malloc((size_t)(op->n ? op->n : 1) * sizeof *lost), n_lost = 0;
    if (!lost || !op->n) {
        free(lost);
        kv_op_finish(op, 0, lost ? 0 : -ENOMEM);
        return;
    }
    kv_op_read_begin(op, sources);
    op->pending = op->n * sources;
    op->began = act_now(t->self);
    t->stats.queue++;
    remote_there(t, there);
    for (int i = 0; i < op->n; i++) {
        int node = remote_owner(t, there, &op->block[i].key);
        if (node < 0) {
            lost[n_lost++] = i;
            continue;
        }
        at[node][n[node]++] = i;
        if (n[node] < ACT_REMOTE_READ_MAX)
            continue;
        if (fetch_start(t, op, node, at[node], n[node]))
            for (int k = 0; k < n[node]; k++)
                lost[n_lost++] = at[node][k];
        n[node] = 0;
    }
    for (int node = 0; node < t->arg.n; node++)
        if (n[node] && fetch_start(t, op, node, at[node], n[node]))
            for (int k = 0; k < n[node]; k++)
                lost[n_lost++] = at[node][k];
    for (int k = 0; k < n_lost; k++)
        for (int s = 0; s < sources; s++)
            settle(t, op, lost[k], s, -ENOENT);
    free(lost);
}

static void tell_to_stop(struct remote_tier *t, const struct remote_fetch *f, int reason)
{
    struct act_addr who = t->node[f->node].addr;
    if (!act_addr_is_nobody(who))
        act_cancel(t->self, who, f->id, 0, reason);
}

void remote_cancel(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct remote_tier *t = (struct remote_tier *)tier;
    uint64_t last = t->ids; /* op may be gone after its last one, and its memory that of another */
    struct remote_fetch *f;
    do {
        for (f = t->fetches; f && (f->op != op || f->id > last); f = f->next)
            ;
        if (f) {
            tell_to_stop(t, f, -ECANCELED);
            fetch_fail(t, f, -ECANCELED);
        }
    } while (f);
}

void remote_want(struct kv_tier *tier, struct kv_tier_op *op, int sources)
{
    struct remote_tier *t = (struct remote_tier *)tier;
    if (!kv_op_want(op, sources))
        return;
    for (const struct remote_fetch *f = t->fetches; f; f = f->next) {
        if (f->op != op || act_addr_is_nobody(t->node[f->node].addr))
            continue;
        struct act_msg m = act_msg_make(ACT_REMOTE_WANT, t->node[f->node].addr);
        *act_p_remote_want(&m) = (struct act_p_remote_want){.load = (uint32_t)f->id, .sources = (uint32_t)sources};
        if (act_send(t->self, &m))
            act_msg_drop(&m); /* it comes in its turn */
    }
}

static struct remote_fetch *fetch_of(struct remote_tier *t, uint32_t load, struct act_addr from)
{
    struct remote_fetch *f = t->fetches;
    while (f && ((uint32_t)f->id != load || !act_addr_equal(t->node[f->node].addr, from)))
        f = f->next;
    return f;
}

/* Copies what came into its pages and verifies it there. Returns 0, or why the node is not to be believed. */
static int take_piece(struct remote_tier *t, struct remote_fetch *f, const struct act_p_remote_rows *p,
                      const uint8_t *tail, size_t bytes)
{
    const struct kv_layout *l = &t->arg.layout;
    if (p->source >= l->n_sources || p->first + p->blocks > f->n || p->slot > (f->lease ? ACT_REMOTE_SLOTS : 0) ||
        (p->slot && p->blocks * l->bytes[p->source] > t->slot_bytes) ||
        bytes != p->blocks * (sizeof(uint64_t) + (p->slot ? 0 : l->bytes[p->source])))
        return -EPROTO;
    if (p->first > f->got[p->source])
        return -EIO; /* what was before it is lost */
    const uint64_t *sum = (const uint64_t *)(const void *)tail;
    const uint8_t *rows =
        p->slot ? t->arg.window + (size_t)f->lease->slot[p->slot - 1] * t->slot_bytes : tail + p->blocks * sizeof *sum;
    int source = p->source, end = p->first + p->blocks;
    for (int i = f->got[source]; i < end; i++) {
        struct kv_tier_block *b = &f->op->block[f->at[i]];
        uint8_t *to = b->bytes + l->offset[source];
        memcpy(to, rows + (size_t)(i - p->first) * l->bytes[source], l->bytes[source]);
        bool good = kv_extent_sum(&b->key, source, 0, to, l->bytes[source]) == sum[i - p->first];
        t->stats.bad += !good;
        f->got[source] = i + 1; /* before op may be gone: nothing of f is settled twice */
        settle(t, f->op, f->at[i], source, good ? 0 : -EBADMSG);
    }
    for (int i = f->got[source]; p->status && i < f->n; i++) {
        f->got[source] = i + 1;
        settle(t, f->op, f->at[i], source, p->status);
    }
    return 0;
}

void remote_take_rows(struct remote_tier *t, struct act_msg *m)
{
    struct act_p_remote_rows p = *act_p_remote_rows(m);
    struct act_promise promise = act_promise_of(m);
    struct remote_fetch *f = fetch_of(t, p.load, m->src);
    size_t bytes;
    const uint8_t *tail = act_msg_tail(m, &bytes);
    int r = -ECANCELED, node = f ? f->node : 0;
    if (f) {
        f->deadline = act_now(t->self) + t->arg.quiet_ns;
        if (f->lease)
            f->lease->until = lease_end(t);
        r = take_piece(t, f, &p, tail, bytes);
        if (r)
            fetch_fail(t, f, r);
        else if (fetch_whole(t, f)) {
            fetch_unlink(t, f);
            free(f);
        }
        if (r == -EPROTO)
            remote_leave_out(t, node, "malformed_rows");
        else
            remote_praise(t, node);
    }
    struct act_msg reply = act_msg_make(ACT_REMOTE_TAKEN, ACT_NOBODY);
    *act_p_remote_taken(&reply) = (struct act_p_remote_taken){.load = p.load, .status = r};
    act_reply(t->self, &promise, &reply);
}

void remote_take_done(struct remote_tier *t, uint64_t id, int status, const char *why)
{
    struct remote_fetch *f = t->fetches;
    while (f && f->id != id)
        f = f->next;
    if (!f)
        return;
    t->stats.errors += status != 0 && status != -ENOENT;
    if (why)
        remote_leave_out(t, f->node, why);
    else
        remote_heard(t, f->node, status);
    fetch_fail(t, f, status ? status : -EIO);
}

void remote_read_tick(struct remote_tier *t, int64_t now)
{
    struct remote_fetch *f;
    do {
        for (f = t->fetches; f && f->deadline > now; f = f->next)
            ;
        if (f) {
            tell_to_stop(t, f, -ETIMEDOUT);
            remote_take_done(t, f->id, -ETIMEDOUT, "late_read");
        }
    } while (f);
    for (struct remote_lease *l = t->leases; l; l = l->next)
        if (!l->fence && l->until <= now)
            fence(t, l);
}
