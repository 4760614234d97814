#include "actors/tier_store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/tier_cost.h"
#include "actors/tier_hedge.h"
#include "actors/tier_nodes.h"
#include "actors/tier_times.h"
#include "kvtiers/host.h"

enum {
    TICK_NS = 20000000,
    POLL_NS = 100000,
    REPORT_TICKS = 25,
    TAG_TICK = 1,
    TAG_POLL = 2,
    TAG_HEDGE = 3,
    SSD_OP_MAX = 64,
    AT_NODES = 4096
};

/* A run of blocks that one tier has. */
struct segment {
    int tier, first, n;
    struct read_op *read;
};

/* A lookup or a read on its way. */
struct ask {
    struct store *s;
    struct ask *next, **link;
    bool reading;
    struct act_promise promise;
    struct act_addr reader;
    uint32_t load;
    uint64_t block_ns;        /* TIER_FIND */
    int n, at, tier;          /* blocks; found so far; tier that is being asked */
    int fruitless;            /* tiers that had none of the next blocks */
    unsigned asked;           /* tiers that were asked, as bits */
    int known[ACT_TIERS_MAX]; /* block before which a tier said that it has all from its last question on */
    bool stepping, answered;  /* ask_step is at work; the lookup that it began has ended */
    struct segment *segment;  /* [n], of which n_segments are found */
    int n_segments, segments_left;
    int settled; /* sources reported */
    int status;
    int wanted;           /* of the read (kvtiers/tier.h) */
    struct kv_tier_op op; /* of the lookup */
    int64_t began;
    struct kv_tier_block block[];
};

struct read_op {
    struct kv_tier_op op;
    struct ask *ask;
    int first, settled, ok[KV_SOURCES_MAX], count;
    int tier;
    int64_t began;
    bool hedged; /* its tiers account for themselves */
    bool ended;
};

/* Blocks in the host tier on their way into a durable one, pinned there meanwhile. */
struct push {
    struct kv_tier_op op;
    struct store *s;
    struct push *next, **link;
    int tier;
    int64_t began;
    struct act_addr from; /* of the TIER_STORE */
    struct kv_tier_block block[];
};

/* TIER_STORE messages that wait for room in the host tier. */
struct held_store {
    struct held_store *next;
    struct act_promise promise;
    struct act_addr from;
    struct act_buf *buf;
    const struct act_tier_place *place;
    int n, at;
};

struct store {
    struct act_self *self;
    const struct act_store *c;
    struct ask *asks;
    struct push *pushes;
    struct held_store *held, **held_end;
    struct act_timer tick, poll, late;
    struct act_hedger hedger;
    int ticks;
    struct act_tier_cost cost[ACT_TIERS_MAX];
    struct act_times times[ACT_TIERS_MAX][ACT_TIER_VERBS];
    struct {
        uint64_t gone, no_space, closed; /* blocks that could not be read or kept */
        uint64_t looked_for, found;      /* blocks of questions: what a read looks up once more does not count */
        uint32_t reading, storing;       /* blocks under way */
    } figure[ACT_TIERS_MAX];
    bool late_read[ACT_TIERS_MAX], late_store[ACT_TIERS_MAX];
    uint32_t
        share; /* blocks of the host tier that stores to one tier may pin: one share is left for what else needs room */
    struct kv_key at_nodes[AT_NODES]; /* blocks lately read that kv nodes were given, by hash; a lost one is sent */
    bool stopping;
};

static int64_t time_now(const struct store *s)
{
    return s->c->clock.now(s->c->clock.ctx);
}

/* ---- cost ---- */

/* How many of the blocks that were found are worth reading, when computing one takes block_ns (0: not known, all are):
 * whole segments from the first on, as many as save most time. */
static int worth_reading(const struct ask *a)
{
    double gain = 0, best = 0;
    int n = 0;
    for (int i = 0; i < a->n_segments; i++) {
        const struct segment *g = &a->segment[i];
        double byte_ns = a->s->cost[g->tier].byte_ns;
        gain += g->n * ((double)a->block_ns - byte_ns * (double)a->s->c->layout.block_bytes);
        if (!a->block_ns || gain >= best) {
            best = gain;
            n = g->first + g->n;
        }
    }
    return n;
}

static void measure(struct store *s)
{
    for (int i = 0; i < s->c->n_tiers; i++) {
        struct kv_tier_stats st;
        s->c->tier[i]->ops->stat(s->c->tier[i], &st);
        if (s->late_read[i])
            act_tier_cost_skip(&s->cost[i], st.read_bytes, time_now(s));
        else
            act_tier_cost_measure(&s->cost[i], st.read_bytes, time_now(s));
    }
}

/* ---- tiers that hang ---- */

static void find_late(struct store *s)
{
    int64_t begun = time_now(s) - s->c->late_ns;
    memset(s->late_read, 0, sizeof s->late_read);
    memset(s->late_store, 0, sizeof s->late_store);
    if (!s->c->late_ns)
        return;
    for (const struct ask *a = s->asks; a; a = a->next)
        for (int i = 0; i < a->n_segments; i++) {
            const struct read_op *r = a->segment[i].read;
            if (r && r->began && !r->ended && !r->hedged && r->began < begun)
                s->late_read[r->tier] = true;
        }
    for (const struct push *p = s->pushes; p; p = p->next)
        if (p->began < begun)
            s->late_store[p->tier] = true;
}

/* A block that came from the kv nodes is not sent back to them, nor one from memory, which went to them when it came
 * into memory (what they refused then is offered again by who has it): the other tiers keep it. (They have checks of
 * their own.) Once: when it is published again it was computed anew, so they lost it. */
static struct kv_key *at_nodes(struct store *s, const struct kv_key *key)
{
    uint32_t v;
    memcpy(&v, key->b, sizeof v);
    return &s->at_nodes[v % AT_NODES];
}

static void note_at_nodes(struct store *s, int tier, const struct kv_tier_op *op)
{
    for (int i = 0; s->c->nodes && (!tier || s->c->tier[tier] == s->c->nodes) && i < op->count; i++)
        *at_nodes(s, &op->block[i].key) = op->block[i].key;
}

static bool is_at_nodes(struct store *s, int tier, const struct kv_key *key)
{
    struct kv_key *at = at_nodes(s, key);
    if (s->c->tier[tier] != s->c->nodes || memcmp(at, key, sizeof *key))
        return false;
    memset(at, 0, sizeof *at);
    return true;
}

/* ---- asking ---- */

static void ask_step(struct ask *a);

static void ask_free(struct ask *a)
{
    *a->link = a->next;
    if (a->next)
        a->next->link = a->link;
    for (int i = 0; i < a->n_segments; i++)
        free(a->segment[i].read);
    free(a->segment);
    free(a);
}

static void answer_found(struct ask *a)
{
    struct act_msg r = act_msg_make(ACT_TIER_FOUND, ACT_NOBODY);
    int n = worth_reading(a);
    *act_p_tier_found(&r) =
        (struct act_p_tier_found){.blocks = (uint32_t)n, .dear = (uint32_t)(a->at - n), .asked = a->asked};
    act_reply(a->s->self, &a->promise, &r);
    ask_free(a);
}

static void answer_done(struct ask *a)
{
    struct act_msg r = act_msg_make(ACT_TIER_DONE, ACT_NOBODY);
    int blocks = 0;
    for (int i = 0; i < a->n_segments; i++) {
        struct read_op *r_op = a->segment[i].read;
        blocks += r_op->count;
        if (r_op->count < a->segment[i].n) {
            a->status = r_op->op.status ? r_op->op.status : -EIO;
            break;
        }
    }
    *act_p_tier_done(&r) =
        (struct act_p_tier_done){.load = a->load, .blocks = (uint32_t)blocks, .status = blocks < a->n ? a->status : 0};
    act_reply(a->s->self, &a->promise, &r);
    ask_free(a);
}

/* A source is settled when every segment has settled it. */
static void report_sources(struct ask *a)
{
    for (;;) {
        int ok = 0;
        bool whole = true;
        if (a->settled == a->s->c->layout.n_sources)
            return;
        for (int i = 0; i < a->n_segments; i++) {
            const struct read_op *r = a->segment[i].read;
            if (r->settled <= a->settled)
                return;
            ok += whole ? r->ok[a->settled] : 0;
            whole = whole && r->ok[a->settled] == a->segment[i].n;
        }
        struct act_msg m = act_msg_make(ACT_TIER_ROWS, a->reader);
        *act_p_tier_rows(&m) =
            (struct act_p_tier_rows){.load = a->load, .source = (uint32_t)a->settled, .blocks = (uint32_t)ok};
        act_send(a->s->self, &m); /* without room: TIER_DONE says all of it */
        a->settled++;
    }
}

static void on_rows(struct kv_tier_op *op, int source, int ok)
{
    struct read_op *r = op->ctx;
    struct store *s = r->ask->s;
    if (!source)
        act_times_add(&s->times[r->tier][ACT_TIER_FIRST], time_now(s) - r->began);
    r->ok[source] = ok;
    r->settled = source + 1;
    report_sources(r->ask);
}

static void read_began(void *ctx, int tier, int n)
{
    struct store *s = ctx;
    s->figure[tier].reading += (uint32_t)n;
    act_tier_cost_began(&s->cost[tier], time_now(s));
}

static void read_ended(void *ctx, int tier, int n, int ok, int status, int64_t ns)
{
    struct store *s = ctx;
    act_times_add(&s->times[tier][ACT_TIER_WHOLE], ns);
    s->figure[tier].reading -= (uint32_t)n;
    act_tier_cost_ended(&s->cost[tier], time_now(s));
    if (status == -ENOENT)
        s->figure[tier].gone += (uint64_t)(n - ok);
}

static void on_read(struct kv_tier_op *op)
{
    struct read_op *r = op->ctx;
    struct ask *a = r->ask;
    r->count = op->count;
    r->ended = true;
    if (!r->hedged) {
        note_at_nodes(a->s, r->tier, op);
        read_ended(a->s, r->tier, op->n, op->count, op->status, time_now(a->s) - r->began);
    }
    if (r->settled < a->s->c->layout.n_sources) { /* refused as a whole */
        for (int k = r->settled; k < a->s->c->layout.n_sources; k++)
            r->ok[k] = op->count;
        r->settled = a->s->c->layout.n_sources;
        report_sources(a);
    }
    if (--a->segments_left == 0)
        answer_done(a);
}

static void start_reads(struct ask *a)
{
    struct store *s = a->s;
    const struct act_store *c = s->c;
    a->segments_left = a->n_segments + 1; /* segments may end while others begin: a is held until all have begun */
    for (int i = 0; i < a->n_segments; i++) {
        const struct segment *g = &a->segment[i];
        g->read->began = time_now(s);
        g->read->hedged = s->hedger.after_ns && g->tier && c->n_tiers > 2;
        if (g->read->hedged) {
            act_hedge_read(&s->hedger, g->tier, &g->read->op);
            continue;
        }
        read_began(s, g->tier, g->n);
        c->tier[g->tier]->ops->read(c->tier[g->tier], &g->read->op);
    }
    if (--a->segments_left == 0)
        answer_done(a);
}

static bool make_reads(struct ask *a)
{
    for (int i = 0; i < a->n_segments; i++) {
        struct segment *g = &a->segment[i];
        struct read_op *r = g->read = calloc(1, sizeof *r);
        if (!r) {
            a->n_segments = i;
            return false;
        }
        *r = (struct read_op){.op = {.block = a->block + g->first,
                                     .n = g->n,
                                     .rows = on_rows,
                                     .done = on_read,
                                     .ctx = r,
                                     .wanted = a->wanted},
                              .ask = a,
                              .first = g->first,
                              .tier = g->tier};
    }
    return true;
}

static void ask_end(struct ask *a)
{
    if (!a->reading) {
        answer_found(a);
        return;
    }
    if (a->at < a->n)
        a->status = -ENOENT;
    if (!make_reads(a))
        a->status = -ENOMEM;
    start_reads(a);
}

/* The tier that is being asked has the next count blocks. What of them memory has too comes from there: the run ends
 * before it, memory is asked next, and the run goes on behind it without another question. */
static void take_found(struct ask *a, int count)
{
    int n = 1;
    a->known[a->tier] = a->at + count;
    while (n < count && (!a->tier || !kv_host_has(a->s->c->tier[0], &a->block[a->at + n].key)))
        n++;
    a->segment[a->n_segments++] = (struct segment){.tier = a->tier, .first = a->at, .n = n};
    a->at += n;
    a->fruitless = 0;
    if (!a->reading)
        a->s->figure[a->tier].found += (uint64_t)n;
    a->tier = a->tier ? 0 : 1 % a->s->c->n_tiers;
}

static void take_none(struct ask *a)
{
    a->fruitless++;
    a->tier = (a->tier + 1) % a->s->c->n_tiers;
}

static void on_found(struct kv_tier_op *op)
{
    struct ask *a = op->ctx;
    act_times_add(&a->s->times[a->tier][ACT_TIER_LOOKUP], time_now(a->s) - a->began);
    if (!a->reading) {
        a->s->figure[a->tier].looked_for += a->asked & 1u << a->tier ? 0 : (uint64_t)op->n;
        a->asked |= 1u << a->tier;
    }
    if (op->count > 0)
        take_found(a, op->count);
    else
        take_none(a);
    a->answered = true;
    if (!a->stepping)
        ask_step(a);
}

/* Asks the tiers in turn for the blocks that are not found yet, until none has the next one. */
static void ask_step(struct ask *a)
{
    a->stepping = true;
    do {
        for (; a->fruitless < a->s->c->n_tiers && a->s->late_read[a->tier]; a->fruitless++)
            a->tier = (a->tier + 1) % a->s->c->n_tiers;
        if (a->at == a->n || a->fruitless >= a->s->c->n_tiers) {
            ask_end(a);
            return;
        }
        a->answered = a->known[a->tier] > a->at;
        if (a->answered) {
            take_found(a, a->known[a->tier] - a->at);
            continue;
        }
        struct kv_tier *t = a->s->c->tier[a->tier];
        a->op = (struct kv_tier_op){.block = a->block + a->at, .n = a->n - a->at, .done = on_found, .ctx = a};
        a->began = time_now(a->s);
        t->ops->lookup(t, &a->op);
    } while (a->answered);
    a->stepping = false;
}

static struct ask *ask_new(struct store *s, struct act_msg *m, int n)
{
    struct ask *a = calloc(1, sizeof *a + (size_t)n * sizeof *a->block);
    if (!a || !(a->segment = calloc((size_t)n + 1, sizeof *a->segment))) {
        free(a);
        return NULL;
    }
    a->s = s;
    a->n = n;
    a->promise = act_promise_of(m);
    a->reader = m->src;
    a->next = s->asks;
    a->link = &s->asks;
    if (s->asks)
        s->asks->link = &a->next;
    s->asks = a;
    return a;
}

static void take_find(struct store *s, struct act_msg *m)
{
    size_t bytes;
    const struct kv_key *key = act_msg_tail(m, &bytes);
    uint32_t n = act_p_tier_find(m)->blocks;
    struct ask *a = (size_t)n * sizeof *key <= bytes ? ask_new(s, m, (int)n) : NULL;
    if (!a) {
        act_return(s->self, m);
        return;
    }
    a->block_ns = act_p_tier_find(m)->block_ns;
    a->asked = act_p_tier_find(m)->asked;
    for (uint32_t i = 0; i < n; i++)
        a->block[i].key = key[i];
    ask_step(a);
}

static void take_read(struct store *s, struct act_msg *m)
{
    size_t bytes;
    const struct act_tier_place *p = act_msg_tail(m, &bytes);
    uint32_t n = act_p_tier_read(m)->blocks;
    struct ask *a = (size_t)n * sizeof *p <= bytes ? ask_new(s, m, (int)n) : NULL;
    if (!a) {
        act_return(s->self, m);
        return;
    }
    a->reading = true;
    a->load = act_p_tier_read(m)->load;
    a->wanted = (int)act_p_tier_read(m)->wanted;
    for (uint32_t i = 0; i < n; i++)
        a->block[i] = (struct kv_tier_block){.key = p[i].key, .bytes = (uint8_t *)(uintptr_t)p[i].address};
    ask_step(a);
}

/* Reads may end while they are told: a is held until all were. */
static void take_want(struct store *s, struct act_msg *m)
{
    struct ask *a = s->asks;
    int sources = (int)act_p_tier_want(m)->sources;
    while (a && !(a->reading && a->load == act_p_tier_want(m)->load && act_addr_equal(a->reader, m->src)))
        a = a->next;
    if (!a || sources <= a->wanted)
        return;
    a->wanted = sources;
    if (!a->segments_left) /* it is still being looked up */
        return;
    a->segments_left++;
    for (int i = 0; i < a->n_segments; i++) {
        struct read_op *r = a->segment[i].read;
        if (r->ended)
            continue;
        if (r->hedged)
            act_hedge_want(&s->hedger, r->tier, &r->op, sources);
        else
            kv_tier_want(s->c->tier[r->tier], &r->op, sources);
    }
    if (--a->segments_left == 0)
        answer_done(a);
}

/* ---- storing ---- */

static void push_free(struct push *p)
{
    *p->link = p->next;
    if (p->next)
        p->next->link = p->link;
    free(p);
}

static void go_on_storing(struct store *s);

/* A tier has not kept these. Without room for the message they wait until they are stored anew. Beside kv nodes, which
 * get the bytes once more with each offer, other tiers do not ask for one. */
static void tell_refused(struct store *s, int tier, struct act_addr to, const struct kv_tier_block *block, int n)
{
    struct act_msg m;
    size_t bytes;
    if (s->stopping || n <= 0 || (s->c->nodes && s->c->nodes != s->c->tier[tier]) ||
        act_msg_new(ACT_TIER_REFUSED, to, (size_t)n * sizeof(struct kv_key), &m))
        return;
    struct kv_key *key = act_msg_tail(&m, &bytes);
    for (int i = 0; i < n; i++)
        key[i] = block[i].key;
    act_p_tier_refused(&m)->blocks = (uint32_t)n;
    if (act_send(s->self, &m))
        act_msg_drop(&m);
}

static void on_pushed(struct kv_tier_op *op)
{
    struct push *p = op->ctx;
    struct store *s = p->s;
    act_times_add(&s->times[p->tier][ACT_TIER_KEEP], time_now(s) - p->began);
    s->figure[p->tier].storing -= (uint32_t)op->n;
    if (op->status == -ENOSPC)
        s->figure[p->tier].no_space += (uint64_t)(op->n - op->count);
    else if (op->status == -EROFS || op->status == -EDQUOT)
        s->figure[p->tier].closed += (uint64_t)(op->n - op->count);
    for (int i = 0; i < op->n; i++)
        kv_host_unpin(s->c->tier[0], &p->block[i].key);
    int kept = s->c->nodes == s->c->tier[p->tier] ? op->count : op->count < op->n ? 0 : op->n; /* from the first on */
    tell_refused(s, p->tier, p->from, p->block + kept, op->n - kept);
    push_free(p);
    if (!s->stopping)
        act_yield(s->self); /* stores may wait for the room */
}

static void on_kept(struct kv_tier_op *op)
{
    (void)op;
}

/* From the host tier into a durable one, without another copy. The blocks are there. */
static void push_down(struct store *s, int tier, struct act_addr from, const struct kv_tier_block *block, int n)
{
    struct kv_tier *host = s->c->tier[0], *to = s->c->tier[tier];
    struct push *p = calloc(1, sizeof *p + (size_t)n * sizeof *p->block);
    if (!p)
        return;
    int k = 0;
    for (int i = 0; i < n; i++) {
        if (is_at_nodes(s, tier, &block[i].key))
            continue;
        p->block[k] = block[i];
        p->block[k++].bytes = kv_host_pin(host, &block[i].key);
    }
    if (!k) {
        free(p);
        return;
    }
    p->s = s;
    p->tier = tier;
    p->from = from;
    p->began = time_now(s);
    s->figure[tier].storing += (uint32_t)k;
    p->op = (struct kv_tier_op){.block = p->block, .n = k, .done = on_pushed, .ctx = p};
    p->next = s->pushes;
    p->link = &s->pushes;
    if (s->pushes)
        s->pushes->link = &p->next;
    s->pushes = p;
    to->ops->store(to, &p->op);
}

/* How many blocks may go down now: every tier that is not late takes them all. */
static int room_below(const struct store *s)
{
    uint32_t most = SSD_OP_MAX;
    for (int t = 1; t < s->c->n_tiers; t++) {
        uint32_t storing = s->figure[t].storing, room = storing < s->share ? s->share - storing : 0;
        if (!s->late_store[t] && room < most)
            most = room;
    }
    return (int)most;
}

/* As many blocks of h as the host tier has room for. Each is pinned before the next one could push it out. */
static void store_some(struct store *s, struct held_store *h)
{
    struct kv_tier *host = s->c->tier[0];
    struct kv_tier_block block[SSD_OP_MAX];
    int n = 0, most = room_below(s);
    for (bool room = true; room && h->at < h->n && n < most; h->at += room) {
        const struct act_tier_place *p = &h->place[h->at];
        block[n] = (struct kv_tier_block){
            .key = p->key, .bytes = (uint8_t *)(uintptr_t)p->address, .info = {(enum kv_taint)p->taint, p->hit}};
        struct kv_tier_op op = {.block = &block[n], .n = 1, .done = on_kept};
        int64_t began = time_now(s);
        host->ops->store(host, &op); /* ends inside the call: memory to memory */
        act_times_add(&s->times[0][ACT_TIER_KEEP], time_now(s) - began);
        room = op.count == 1;
        if (room)
            kv_host_pin(host, &block[n++].key);
    }
    for (int t = 1; t < s->c->n_tiers && n; t++)
        if (!s->late_store[t]) {
            push_down(s, t, h->from, block, n);
        } else {
            s->figure[t].closed += (uint64_t)n;
            tell_refused(s, t, h->from, block, n);
        }
    for (int i = 0; i < n; i++)
        kv_host_unpin(host, &block[i].key);
}

/* With the end of a store that is under way. */
static bool room_will_come(const struct store *s)
{
    const struct push *p = s->pushes;
    while (p && s->late_store[p->tier])
        p = p->next;
    return p != NULL;
}

static void go_on_storing(struct store *s)
{
    while (s->held) {
        struct held_store *h = s->held;
        for (int before = -1; h->at < h->n && h->at != before;) {
            before = h->at;
            store_some(s, h);
        }
        if (h->at < h->n && room_will_come(s))
            return;
        struct act_msg r = act_msg_make(ACT_TIER_STORED, ACT_NOBODY);
        *act_p_tier_stored(&r) =
            (struct act_p_tier_stored){.blocks = (uint32_t)h->at, .status = h->at < h->n ? -ENOSPC : 0};
        act_reply(s->self, &h->promise, &r);
        s->held = h->next;
        if (!s->held)
            s->held_end = &s->held;
        act_buf_free(h->buf);
        free(h);
    }
}

static void take_store(struct store *s, struct act_msg *m)
{
    size_t bytes;
    const struct act_tier_place *p = act_msg_tail(m, &bytes);
    uint32_t n = act_p_tier_store(m)->blocks;
    struct held_store *h = (size_t)n * sizeof *p <= bytes ? calloc(1, sizeof *h) : NULL;
    if (!h) {
        act_return(s->self, m);
        return;
    }
    *h = (struct held_store){.promise = act_promise_of(m), .from = m->src, .place = p, .n = (int)n};
    h->buf = act_msg_take(m);
    *s->held_end = h;
    s->held_end = &h->next;
}

/* ---- time ---- */

static void send_times(struct store *s, int tier)
{
    struct act_msg m;
    size_t bytes;
    if (act_msg_new(ACT_TIER_TIMES, *s->c->observer, sizeof s->times[tier], &m))
        return;
    memcpy(act_msg_tail(&m, &bytes), s->times[tier], sizeof s->times[tier]);
    *act_p_tier_times(&m) = (struct act_p_tier_times){.tier = s->c->kind[tier], .verbs = ACT_TIER_VERBS};
    if (act_send(s->self, &m))
        act_msg_drop(&m);
}

/* Blocks that wait for room in the host tier. */
static uint32_t held_blocks(const struct store *s)
{
    uint32_t n = 0;
    for (const struct held_store *h = s->held; h; h = h->next)
        n += (uint32_t)(h->n - h->at);
    return n;
}

static void send_stats(struct store *s)
{
    const uint64_t per = s->c->layout.block_tokens;
    for (int i = 0; i < s->c->n_tiers; i++) {
        struct kv_tier_stats t;
        struct act_msg m;
        if (!s->c->observer || act_addr_is_nobody(*s->c->observer) || act_msg_new(ACT_KV_STATS, *s->c->observer, 0, &m))
            return;
        s->c->tier[i]->ops->stat(s->c->tier[i], &t);
        act_p_kv_stats(&m)->tier = s->c->kind[i];
        *act_b_kv_stats(&m) = (struct act_b_kv_stats){
            .bytes = t.bytes,
            .capacity = t.capacity,
            .hits = s->figure[i].found,
            .misses = s->figure[i].looked_for - s->figure[i].found,
            .hit_tokens = s->figure[i].found * per,
            .asked_tokens = s->figure[i].looked_for * per,
            .errors = t.errors,
            .evicted = t.evicted,
            .cached = t.blocks,
            .read = t.read,
            .read_bytes = t.read_bytes,
            .stored = t.stored,
            .stored_bytes = t.stored_bytes,
            .refused = t.refused,
            .expired = t.expired,
            .bad = t.bad,
            .short_reads = t.short_reads,
            .read_ns = t.read_ns,
            .reads = t.read_ops,
            .oldest_s = (uint64_t)t.oldest_s,
            .other_layout = t.unusable[KV_OTHER_LAYOUT].bytes,
            .damaged = t.unusable[KV_DAMAGED].bytes,
            .unreadable = t.unusable[KV_UNREADABLE].bytes,
            .gone = s->figure[i].gone,
            .no_space = s->figure[i].no_space,
            .closed = s->figure[i].closed,
            .reading = s->figure[i].reading,
            .hedged = s->hedger.stats.asked[i],
            .won = s->hedger.stats.won[i],
            .storing = i ? s->figure[i].storing : held_blocks(s),
            .queue = (uint32_t)t.queue,
            .state = (t.read_only ? ACT_TIER_READ_ONLY : 0) | (t.rebuilding ? ACT_TIER_REBUILDING : 0) |
                     (s->late_read[i] || s->late_store[i] ? ACT_TIER_LATE : 0)};
        if (act_send(s->self, &m))
            act_msg_drop(&m);
        send_times(s, i);
    }
}

static void on_tick(struct store *s)
{
    for (int i = 0; i < s->c->n_tiers; i++)
        s->c->tier[i]->ops->tick(s->c->tier[i]);
    measure(s);
    find_late(s);
    if (++s->ticks % REPORT_TICKS == 0)
        send_stats(s);
    act_timer_after(s->self, &s->tick, TICK_NS, TAG_TICK);
}

/* A storage without a descriptor (the simulation's) is looked after in turns of the actor. */
static void turn_storage(struct store *s)
{
    for (int i = 0; i < ACT_STORAGES_MAX; i++) {
        struct kv_storage *st = s->c->storage[i];
        struct kv_storage_stats stats;
        if (!st || st->ops->descriptor(st) >= 0)
            continue;
        st->ops->poll(st);
        st->ops->stat(st, &stats);
        if (stats.in_flight)
            act_timer_after(s->self, &s->poll, POLL_NS, TAG_POLL);
    }
}

static void look_after_reads(struct store *s)
{
    int64_t next = act_hedge_turn(&s->hedger), now = time_now(s);
    if (next != INT64_MAX)
        act_timer_after(s->self, &s->late, next > now ? next - now : 0, TAG_HEDGE);
}

static int store_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct store *s = state;
    (void)self;
    for (int i = 0; i < count; i++) {
        switch (m[i].type) {
        case ACT_TIER_FIND:
            take_find(s, &m[i]);
            break;
        case ACT_TIER_READ:
            take_read(s, &m[i]);
            break;
        case ACT_TIER_STORE:
            take_store(s, &m[i]);
            break;
        case ACT_TIER_WANT:
            take_want(s, &m[i]);
            break;
        case ACT_TIMER:
            if (act_p_timer(&m[i])->tag == TAG_TICK)
                on_tick(s); /* TAG_HEDGE: every turn looks after them */
            break;
        default:
            if (s->c->nodes)
                act_nodes_message(s->c->nodes, &m[i]);
            break;
        }
    }
    go_on_storing(s);
    turn_storage(s);
    look_after_reads(s);
    return 0;
}

static uint32_t share_of_host(const struct act_store *c)
{
    struct kv_tier_stats st;
    c->tier[0]->ops->stat(c->tier[0], &st);
    uint64_t n = st.capacity / c->layout.block_bytes / (uint64_t)c->n_tiers;
    return n > 1 ? (uint32_t)n : 1;
}

static int store_start(struct act_self *self, void *state, const void *arg)
{
    struct store *s = state;
    s->self = self;
    s->c = arg;
    s->share = share_of_host(s->c);
    s->held_end = &s->held;
    s->hedger = (struct act_hedger){.layout = s->c->layout,
                                    .clock = s->c->clock,
                                    .tier = s->c->tier,
                                    .n_tiers = s->c->n_tiers,
                                    .after_ns = s->c->hedge_ns,
                                    .cost = s->cost,
                                    .limit = s->c->hedge_bytes,
                                    .began = read_began,
                                    .ended = read_ended,
                                    .ctx = s};
    on_tick(s);
    return s->c->nodes ? act_nodes_start(s->c->nodes, self) : 0;
}

/* The end of a push, a lookup or a read whose tier did not answer any more when the actor ended: the tier ends it when
 * it is freed, and nothing of the actor is there by then. */
static void on_orphan_pushed(struct kv_tier_op *op)
{
    free(op->ctx);
}

static void on_orphan_found(struct kv_tier_op *op)
{
    struct ask *a = op->ctx;
    free(a->segment);
    free(a);
}

static void on_orphan_rows(struct kv_tier_op *op, int source, int ok)
{
    (void)op;
    (void)source;
    (void)ok;
}

static void orphan_read_end(struct ask *a)
{
    if (--a->segments_left)
        return;
    for (int i = 0; i < a->n_segments; i++)
        free(a->segment[i].read);
    free(a->segment);
    free(a);
}

static void on_orphan_read(struct kv_tier_op *op)
{
    struct read_op *r = op->ctx;
    orphan_read_end(r->ask);
}

static void ask_leave(struct ask *a)
{
    a->op.done = on_orphan_found;
    if (!a->segments_left) /* it is being looked up */
        return;
    a->segments_left++;
    for (int i = 0; i < a->n_segments; i++) {
        struct read_op *r = a->segment[i].read;
        r->op.rows = on_orphan_rows;
        r->op.done = on_orphan_read;
        if (r->hedged && !r->ended) /* no tier has it; the hedger's own are left alone too */
            a->segments_left--;
    }
    orphan_read_end(a);
}

/* Pages of others are in the hands of the kernel: nothing is given up before it is done with them. */
static void store_stop(struct act_self *self, void *state, int reason)
{
    struct store *s = state;
    (void)self;
    (void)reason;
    s->stopping = true;
    if (s->c->nodes)
        act_nodes_stop(s->c->nodes);
    for (int i = 0; i < ACT_STORAGES_MAX; i++) {
        struct kv_storage *st = s->c->storage[i];
        while ((s->asks || s->pushes || s->hedger.live) && st && st->ops->wait(st, 10000))
            ;
    }
    for (struct push *p = s->pushes; p; p = p->next)
        p->op.done = on_orphan_pushed;
    act_hedge_stop(&s->hedger);
    for (struct ask *a = s->asks, *next; a; a = next) {
        next = a->next;
        ask_leave(a);
    }
    while (s->held) {
        struct held_store *h = s->held;
        s->held = h->next;
        act_buf_free(h->buf);
        free(h);
    }
}

const struct act_behaviour act_tier_store_behaviour = {
    .name = "tier-store",
    .state_size = sizeof(struct store),
    .start = store_start,
    .receive = store_receive,
    .stop = store_stop,
};
