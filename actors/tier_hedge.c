#include "actors/tier_hedge.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* One tier's part in a read. */
struct attempt {
    struct kv_tier_op op;
    struct act_hedge *g;
    int tier;
    bool live, reporting; /* its tier has not ended it; is in its call */
    int64_t began;
    int settled, ok[KV_SOURCES_MAX]; /* sources that it has reported */
    uint8_t *memory;
    struct kv_tier_block *block;
};

struct act_hedge {
    struct act_hedge *next, **link;
    struct act_hedger *h;
    struct kv_tier_op *op; /* NULL: it has ended */
    int64_t late_at;
    int settled, count, status;
    int n, live, calls; /* tiers asked; their reads under way; calls into tiers on the stack */
    int last;           /* attempt that the last source came from */
    struct attempt attempt[ACT_HEDGE_TIERS];
};

static void hedge_look(struct act_hedge *g);

static int64_t now(const struct act_hedger *h)
{
    return h->clock.now(h->clock.ctx);
}

static size_t attempt_bytes(const struct act_hedger *h, int n)
{
    return (size_t)n * h->layout.block_bytes;
}

static void attempt_free(struct act_hedge *g, struct attempt *a, int n)
{
    if (a->memory)
        g->h->used -= attempt_bytes(g->h, n);
    free(a->memory);
    free(a->block);
    a->memory = NULL;
    a->block = NULL;
}

static void hedge_free(struct act_hedge *g)
{
    *g->link = g->next;
    if (g->next)
        g->next->link = g->link;
    free(g);
}

static void on_rows(struct kv_tier_op *op, int source, int ok)
{
    struct attempt *a = op->ctx;
    a->ok[source] = ok;
    a->settled = source + 1;
    a->reporting = true;
    hedge_look(a->g); /* a is live, so both stay */
    a->reporting = false;
}

static void on_done(struct kv_tier_op *op)
{
    struct attempt *a = op->ctx;
    struct act_hedge *g = a->g;
    while (a->settled < g->h->layout.n_sources) /* ended as a whole */
        a->ok[a->settled++] = op->count;
    a->live = false;
    g->live--;
    g->h->live--;
    if (g->h->ended)
        g->h->ended(g->h->ctx, a->tier, op->n, op->count, op->status, now(g->h) - a->began);
    hedge_look(g);
}

/* ---- asking ---- */

static bool attempt_begin(struct act_hedge *g, int tier)
{
    struct act_hedger *h = g->h;
    struct attempt *a = &g->attempt[g->n];
    int n = g->op->n;
    if (h->used + attempt_bytes(h, n) > h->limit)
        return false;
    *a = (struct attempt){.g = g, .tier = tier, .live = true};
    a->memory = aligned_alloc(KV_PAGE, attempt_bytes(h, n));
    a->block = calloc((size_t)n, sizeof *a->block);
    h->used += a->memory ? attempt_bytes(h, n) : 0;
    if (!a->memory || !a->block) {
        attempt_free(g, a, n);
        return false;
    }
    for (int i = 0; i < n; i++)
        a->block[i] =
            (struct kv_tier_block){.key = g->op->block[i].key, .bytes = a->memory + (size_t)i * h->layout.block_bytes};
    a->op = (struct kv_tier_op){
        .block = a->block, .n = n, .rows = on_rows, .done = on_done, .ctx = a, .wanted = g->op->wanted};
    g->n++;
    g->live++;
    h->live++;
    a->began = now(h);
    double expected = h->cost ? 2 * h->cost[tier].byte_ns * (double)attempt_bytes(h, n) : 0;
    g->late_at = a->began + (expected > (double)h->after_ns ? (int64_t)expected : h->after_ns);
    if (h->began)
        h->began(h->ctx, tier, n);
    g->calls++;
    h->tier[tier]->ops->read(h->tier[tier], &a->op);
    g->calls--;
    return true;
}

/* The next tier that was not asked yet, in the order in which tiers are asked. */
static int tier_next(const struct act_hedge *g)
{
    for (int k = 1; k < g->h->n_tiers; k++) {
        int t = (g->attempt[0].tier + k) % g->h->n_tiers;
        bool asked = t == 0;
        for (int i = 0; i < g->n; i++)
            asked |= g->attempt[i].tier == t;
        if (!asked)
            return t;
    }
    return -1;
}

static bool ask_another(struct act_hedge *g)
{
    int tier = tier_next(g), n = g->op->n;
    if (tier < 0 || !attempt_begin(g, tier)) {
        g->late_at = INT64_MAX;
        return false;
    }
    g->h->stats.asked[tier] += (uint64_t)n;
    return true;
}

/* ---- settling ---- */

/* Who has the most of a source: nothing more can come, or all of it is there. NULL: not yet. */
static struct attempt *settled_by(struct act_hedge *g, int source)
{
    struct attempt *best = NULL;
    bool all = true;
    for (int i = 0; i < g->n; i++) {
        struct attempt *a = &g->attempt[i];
        all &= a->settled > source;
        if (a->settled > source && (!best || a->ok[source] > best->ok[source]))
            best = a;
    }
    return best && (all || best->ok[source] == g->op->n) ? best : NULL;
}

static void take_source(struct act_hedge *g, struct attempt *a, int source)
{
    const struct kv_layout *l = &g->h->layout;
    for (int i = 0; i < a->ok[source]; i++) {
        memcpy(g->op->block[i].bytes + l->offset[source], a->block[i].bytes + l->offset[source], l->bytes[source]);
        g->op->block[i].info = a->block[i].info;
    }
    g->count = a->ok[source] < g->count ? a->ok[source] : g->count;
    if (a->ok[source] < g->op->n && !g->status)
        g->status = a->op.status ? a->op.status : -EIO;
    g->last = (int)(a - g->attempt);
    g->settled = source + 1;
}

static void op_end(struct act_hedge *g)
{
    struct kv_tier_op *op = g->op;
    g->op = NULL;
    g->late_at = INT64_MAX;
    if (g->last > 0)
        g->h->stats.won[g->attempt[g->last].tier] += (uint64_t)g->count;
    for (int i = 0; i < g->n; i++) {
        struct kv_tier *t = g->h->tier[g->attempt[i].tier];
        /* Not from inside its own call: the tier is not done with what it tells there, and will be soon. */
        if (g->attempt[i].live && !g->attempt[i].reporting && t->ops->cancel)
            t->ops->cancel(t, &g->attempt[i].op);
    }
    kv_op_finish(op, g->count, g->count < op->n ? g->status : 0);
}

/* Reports what is settled, in order; asks another tier when all that were asked have failed. */
static void hedge_look(struct act_hedge *g)
{
    struct attempt *a;
    if (g->calls)
        return; /* whoever called will look */
    g->calls++;
    while (g->op && g->settled < g->h->layout.n_sources && (a = settled_by(g, g->settled))) {
        int source = g->settled;
        if (a->ok[source] < g->op->n && ask_another(g))
            continue;
        take_source(g, a, source);
        if (g->op->rows)
            g->op->rows(g->op, source, a->ok[source]);
    }
    if (g->op && g->settled == g->h->layout.n_sources)
        op_end(g);
    g->calls--;
    for (int i = 0; i < g->n && !g->op; i++)
        if (!g->attempt[i].live && g->attempt[i].memory)
            attempt_free(g, &g->attempt[i], g->attempt[i].op.n);
    if (!g->op && !g->live && !g->calls)
        hedge_free(g);
}

void act_hedge_read(struct act_hedger *h, int at, struct kv_tier_op *op)
{
    struct act_hedge *g = op->n ? calloc(1, sizeof *g) : NULL;
    if (!g || h->used + attempt_bytes(h, op->n) > h->limit) {
        h->stats.blind += op->n > 0;
        free(g);
        h->tier[at]->ops->read(h->tier[at], op);
        return;
    }
    *g = (struct act_hedge){.h = h, .op = op, .count = op->n, .next = h->first, .link = &h->first};
    if (g->next)
        g->next->link = &g->next;
    h->first = g;
    if (attempt_begin(g, at)) {
        hedge_look(g);
        return;
    }
    hedge_free(g);
    h->stats.blind++;
    h->tier[at]->ops->read(h->tier[at], op);
}

void act_hedge_want(struct act_hedger *h, int at, struct kv_tier_op *op, int sources)
{
    struct act_hedge *g = h->first;
    while (g && g->op != op)
        g = g->next;
    if (!g) { /* not hedged */
        kv_tier_want(h->tier[at], op, sources);
        return;
    }
    if (!kv_op_want(op, sources))
        return;
    g->calls++;
    for (int i = 0; i < g->n; i++)
        if (g->attempt[i].live)
            kv_tier_want(h->tier[g->attempt[i].tier], &g->attempt[i].op, sources);
    g->calls--;
    hedge_look(g);
}

int64_t act_hedge_turn(struct act_hedger *h)
{
    int64_t next = INT64_MAX, t = h->first ? now(h) : 0;
    for (struct act_hedge *g = h->first; g;) {
        if (!g->op || g->late_at > t) {
            g = g->next;
            continue;
        }
        if (ask_another(g))
            hedge_look(g);
        g = h->first; /* any of them may be gone */
    }
    for (const struct act_hedge *g = h->first; g; g = g->next)
        next = g->op && g->late_at < next ? g->late_at : next;
    return next;
}

/* ---- the end ---- */

static void orphan_rows(struct kv_tier_op *op, int source, int ok)
{
    (void)op;
    (void)source;
    (void)ok;
}

/* Knows of its siblings only: the hedger is gone. */
static void orphan_done(struct kv_tier_op *op)
{
    struct attempt *a = op->ctx;
    struct act_hedge *g = a->g;
    free(a->memory);
    free(a->block);
    if (--g->live == 0)
        free(g);
}

void act_hedge_stop(struct act_hedger *h)
{
    while (h->first) {
        struct act_hedge *g = h->first;
        h->first = g->next;
        for (int i = 0; i < g->n; i++) {
            struct attempt *a = &g->attempt[i];
            a->op.rows = orphan_rows;
            a->op.done = orphan_done;
            if (!a->live)
                attempt_free(g, a, a->op.n);
        }
        h->live -= g->live;
        if (!g->live)
            free(g);
    }
}
