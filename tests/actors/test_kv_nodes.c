/* Two kv nodes and a process that computes, with the real actors in the simulation, over links that may lose, double
 * and delay everything. In exact mode every request must have the tokens of a plain run, wherever its rows came from
 * and whatever became of the nodes. */
#include "tests/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/kv_node.h"
#include "actors/link.h"
#include "actors/tier_nodes_impl.h"
#include "kvtiers/host.h"
#include "tests/support/less.h"
#include "tests/support/tier_world.h"

enum { NODES = 2, POOL = ACT_REMOTE_READ_MAX, WINDOW_SLOTS = 9, WINDOW_POOL = 20, SLOTS = 8, GENERATION = 7 };

/* A kv_node actor to which something may happen at one of its messages. */
struct fate {
    int at, count;      /* messages; at < 0: never */
    bool silent;        /* it stands still from then on, instead of ending */
    enum act_type lose; /* or just this one is lost; ACT_NONE: none */
    bool over;
};

struct keeper {
    struct kv_tier *host;
    struct act_store store;
    struct act_addr store_addr, addr;
    struct act_kv_node_arg arg;
    struct act_kv_node_stats stats;
    uint8_t *buffer;
    struct fate fate;
    bool lies; /* in its place is an actor that says what is not so */
    int lie;
};

struct rig {
    struct ts_tiers t;
    struct keeper node[NODES];
    struct act_sim_fault link;
    bool scripted; /* node 0 has the script below its host tier */
    int64_t down;  /* when node 0 is told to be lost; 0: never */
    bool puts;     /* nodes write into the reader's window */
    int unlisted;  /* of the nodes, the last ones: the process does not know them when it starts */
    int behind;    /* blocks that may be on their way to nodes; 0: 64 */
    int bad_put;   /* this one fails after half of its bytes; -1: none */
    int hung_put;  /* this one has no end before its connection is ended; -1: none */
    struct act_promise hung;
    int64_t patience; /* of nodes; 0: 200 ms */
    int n_puts, n_fences, n_node_fences;
    uint8_t *slots;
    struct act_addr link_addr;
};

static struct rig rig;

/* ---- an actor with a fate ---- */

struct outer {
    struct keeper *k;
    _Alignas(64) uint8_t state[];
};

static int outer_start(struct act_self *self, void *state, const void *arg)
{
    struct outer *o = state;
    o->k = (struct keeper *)(uintptr_t)arg;
    return act_kv_node_behaviour.start(self, o->state, &o->k->arg);
}

static int outer_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct outer *o = state;
    struct fate *f = &o->k->fate;
    for (int i = 0; i < count; i++) {
        bool there = m[i].type >= ACT_REMOTE_ROWS && m[i].type <= ACT_REMOTE_STORED; /* from another node */
        bool counts = f->lose ? there : m[i].type != ACT_TIMER;
        if (counts && f->count++ == f->at) {
            f->over = true;
            if (f->lose) {
                m[i].type = ACT_NONE;
                continue;
            }
            if (!f->silent)
                return -EIO;
        }
        if (f->over && f->silent)
            m[i].type = ACT_NONE;
    }
    return act_kv_node_behaviour.receive(self, o->state, m, count);
}

static void outer_stop(struct act_self *self, void *state, int reason)
{
    act_kv_node_behaviour.stop(self, ((struct outer *)state)->state, reason);
}

static const struct act_behaviour liar_behaviour;

/* ---- a link that makes puts ---- */

static int put_all(const struct act_msg *m)
{
    const struct act_b_link_put *b = act_b_link_put((struct act_msg *)(uintptr_t)m);
    size_t bytes;
    const struct act_put_range *r = act_msg_tail(m, &bytes);
    const struct keeper *from = &rig.node[b->from_window - WINDOW_POOL];
    bool bad = rig.n_puts++ == rig.bad_put;
    cr_assert_eq(b->to_window, WINDOW_SLOTS);
    cr_assert_eq(b->generation, GENERATION);
    for (size_t i = 0; i < bytes / sizeof *r; i++) {
        cr_assert_leq(r[i].from + r[i].size, POOL * rig.t.layout.block_bytes);
        cr_assert_leq(r[i].to + r[i].size, SLOTS * (size_t)ACT_REMOTE_PIECE);
        memcpy(rig.slots + r[i].to, from->buffer + r[i].from, bad ? r[i].size / 2 : r[i].size);
    }
    return bad ? -ECONNRESET : 0;
}

static int puts_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    (void)state;
    for (int i = 0; i < count; i++) {
        struct act_promise p = act_promise_of(&m[i]);
        if (m[i].type == ACT_LINK_PUT && rig.n_puts == rig.hung_put) {
            rig.n_puts++;
            rig.hung = p;
        } else if (m[i].type == ACT_LINK_PUT) {
            struct act_msg r = act_msg_make(ACT_LINK_PUT_DONE, ACT_NOBODY);
            act_p_link_put_done(&r)->status = put_all(&m[i]);
            act_reply(self, &p, &r);
        } else if (m[i].type == ACT_LINK_FENCE) {
            struct act_msg r = act_msg_make(ACT_LINK_FENCE, ACT_NOBODY),
                           cut = act_msg_make(ACT_LINK_PUT_DONE, ACT_NOBODY);
            rig.n_fences++;
            for (int k = 0; k < NODES; k++)
                rig.n_node_fences += act_addr_equal(m[i].src, rig.node[k].addr);
            act_p_link_put_done(&cut)->status = -ECONNRESET;
            if (rig.hung.number)
                act_reply(self, &rig.hung, &cut);
            act_reply(self, &p, &r);
        }
    }
    return 0;
}

static const struct act_behaviour puts_behaviour = {.name = "puts", .receive = puts_receive};

static void spawn_puts(struct ts_world *w)
{
    struct cfg_error err;
    const struct act_spawn spec = {.behaviour = &puts_behaviour, .worker = TS_WORLD_FAR};
    cr_assert_eq(act_runtime_spawn(w->rt, &spec, &rig.link_addr, &err), 0);
    for (int i = 0; i < NODES; i++) {
        struct act_msg m = act_msg_make(ACT_NODE_CLASS, w->e.store);
        *act_p_node_class(&m) = (struct act_p_node_class){
            .peer = (uint16_t)(1 + i), .class = TP_CLASS_KV, .generation = GENERATION, .up = 1};
        cr_assert_eq(act_runtime_post(w->rt, &m), 0);
    }
}

/* ---- the world ---- */

static void spawn_keeper(struct ts_world *w, struct keeper *k)
{
    static struct act_behaviour outer;
    struct cfg_error err;
    outer = (struct act_behaviour){.name = "kv-node",
                                   .state_size = sizeof(struct outer) + act_kv_node_behaviour.state_size,
                                   .start = outer_start,
                                   .receive = outer_receive,
                                   .stop = outer_stop};
    struct act_spawn spec = {
        .behaviour = &act_tier_store_behaviour, .worker = TS_WORLD_FAR, .arg = &k->store, .outbox = 256};
    cr_assert_eq(act_runtime_spawn(w->rt, &spec, &k->store_addr, &err), 0, "%s", err.msg);
    spec.behaviour = k->lies ? &liar_behaviour : &outer;
    spec.arg = k;
    cr_assert_eq(act_runtime_spawn(w->rt, &spec, &k->addr, &err), 0, "%s", err.msg);
}

static void say_up(struct ts_world *w, int i)
{
    struct act_msg m;
    size_t bytes;
    char name[16];
    const size_t head = sizeof(struct act_node_actor);
    size_t len = (size_t)snprintf(name, sizeof name, "kv-%d", i);
    cr_assert_eq(act_msg_new(ACT_NODE_UP, w->e.store, head + len, &m), 0);
    *act_p_node_up(&m) = (struct act_p_node_up){.node = (uint16_t)(10 + i), .peer = (uint16_t)(1 + i), .actors = 1};
    uint8_t *tail = act_msg_tail(&m, &bytes);
    *(struct act_node_actor *)(void *)tail = (struct act_node_actor){.kind = ACT_NODE_KV, .addr = rig.node[i].addr};
    memcpy(tail + head, name, len);
    cr_assert_eq(act_runtime_post(w->rt, &m), 0);
}

static void say_down(void *ctx)
{
    struct ts_world *w = ctx;
    struct act_msg m = act_msg_make(ACT_NODE_DOWN, w->e.store);
    *act_p_node_down(&m) = (struct act_p_node_down){.node = 10, .peer = 1, .reason = -ETIMEDOUT};
    cr_assert_eq(act_runtime_post(w->rt, &m), 0);
}

static void spawn_nodes(struct ts_world *w)
{
    if (rig.puts)
        spawn_puts(w);
    for (int i = 0; i < NODES; i++) {
        spawn_keeper(w, &rig.node[i]);
        say_up(w, i);
    }
    if (rig.link.lose || rig.link.copy || rig.link.delay_max) {
        act_sim_link(w->sim, w->rt, TS_WORLD_CLIENT, TS_WORLD_FAR, &rig.link);
        act_sim_link(w->sim, w->rt, TS_WORLD_FAR, TS_WORLD_CLIENT, &rig.link);
    }
    if (rig.down)
        cr_assert_eq(act_sim_at(w->sim, rig.down, say_down, w), 0);
}

static struct kv_tier *new_host(const struct kv_layout *l, const struct kv_clock *clock, int blocks)
{
    struct cfg_error err;
    struct kv_tier *t;
    const struct kv_host_params p = {
        .layout = *l, .bytes = blocks * (int64_t)l->block_bytes, .clock = *clock, .verify = true};
    cr_assert_eq(kv_host_new(&p, &t, &err), 0, "%s", err.msg);
    return t;
}

/* A process with an empty device and a small host tier; the nodes keep what they had from the process before. */
static void open_process(int pages)
{
    struct ts_tiers *t = &rig.t;
    struct cfg_error err;
    ts_tiers_open(t, pages, true);
    ts_tiers_host(t, 8);
    struct act_nodes_arg a = {.layout = t->layout,
                              .n = NODES - rig.unlisted,
                              .find_ns = 50 * MS,
                              .quiet_ns = 200 * MS,
                              .store_bytes = (size_t)(rig.behind ? rig.behind : 64) * t->layout.block_bytes};
    rig.link_addr = ACT_NOBODY;
    rig.n_puts = rig.n_fences = rig.n_node_fences = 0;
    rig.hung = (struct act_promise){0};
    if (rig.puts) {
        rig.slots = rig.slots ? rig.slots : malloc(SLOTS * (size_t)ACT_REMOTE_PIECE);
        a.window = rig.slots;
        a.window_bytes = SLOTS * (size_t)ACT_REMOTE_PIECE;
        a.window_id = WINDOW_SLOTS;
        a.link = &rig.link_addr;
    }
    for (int i = 0; i < NODES; i++) {
        struct keeper *k = &rig.node[i];
        a.node[i].number = (uint16_t)(10 + i);
        snprintf(a.node[i].name, sizeof a.node[i].name, "kv-%d", i);
        if (!k->host)
            k->host = new_host(&t->layout, &t->store.clock, 64);
        if (!k->buffer)
            k->buffer = aligned_alloc(KV_PAGE, POOL * t->layout.block_bytes);
        k->store = (struct act_store){.layout = t->layout, .tier = {k->host}, .n_tiers = 1, .clock = t->store.clock};
        k->fate = (struct fate){.at = -1};
        k->lies = false;
        k->arg = (struct act_kv_node_arg){.layout = t->layout,
                                          .store = &k->store_addr,
                                          .buffer = k->buffer,
                                          .buffers = POOL,
                                          .store_bytes = POOL * t->layout.block_bytes,
                                          .window = rig.puts ? (uint32_t)(WINDOW_POOL + i) : 0,
                                          .link = &rig.link_addr,
                                          .patience = rig.patience ? rig.patience : 200 * MS,
                                          .stats = &k->stats};
    }
    cr_assert_eq(act_nodes_new(&a, &t->store.nodes, &err), 0);
    t->store.tier[t->store.n_tiers++] = t->store.nodes;
    t->w.before_sources = spawn_nodes;
    if (rig.scripted) {
        ts_tiers_script(t); /* of node 0, not of this process */
        rig.node[0].store.tier[rig.node[0].store.n_tiers++] = t->store.tier[--t->store.n_tiers];
    }
}

/* Nothing is left under way at a node that lives. */
static void close_process(void)
{
    for (int i = 0; i < NODES; i++) {
        const struct act_kv_node_stats *s = &rig.node[i].stats;
        if (rig.node[i].fate.over && !rig.node[i].fate.lose)
            continue;
        cr_assert_eq(s->readings + s->waiting + s->keepings + s->findings, 0, "node %d: %d %d %d %d", i, s->readings,
                     s->waiting, s->keepings, s->findings);
        cr_assert_eq(s->free, POOL, "node %d: %d places of %d", i, s->free, POOL);
        cr_assert_eq(s->keeping_bytes, 0u);
    }
    ts_tiers_close(&rig.t, true);
}

static void forget_nodes(void)
{
    free(rig.slots);
    rig.slots = NULL;
    rig.puts = false;
    for (int i = 0; i < NODES; i++) {
        rig.node[i].host->ops->free(rig.node[i].host);
        free(rig.node[i].buffer);
    }
    if (rig.scripted)
        ts_tiers_forget(&rig.t);
}

static uint64_t blocks_at(int i)
{
    struct kv_tier_stats s;
    rig.node[i].host->ops->stat(rig.node[i].host, &s);
    return s.blocks;
}

/* A first process computes a prompt; its blocks go to the nodes. */
static void prepare(bool scripted)
{
    memset(&rig, 0, sizeof rig);
    rig.hung_put = rig.bad_put = -1;
    rig.t.script.ok = -1;
    rig.scripted = scripted;
    open_process(64);
    ts_tiers_prompts(&rig.t, 1);
    ts_world_run(&rig.t.w, 1);
    ts_world_check_same(&rig.t.w, 0);
    close_process();
    cr_assert_geq(blocks_at(0) + blocks_at(1), 9u);
    cr_assert(blocks_at(0) && blocks_at(1), "one node has them all");
}

/* A second process that never saw the prompt. */
static void second(void)
{
    open_process(64);
    ts_tiers_prompts(&rig.t, 1);
}

static void check(const char *when, int n)
{
    for (int i = 0; i < n; i++) {
        cr_assert_eq(rig.t.w.got[i].terminal, 1, "%s: request %d has no end", when, i);
        ts_world_check_same(&rig.t.w, i);
    }
    close_process();
}

/* ---- without faults ---- */

Test(kv_nodes, what_one_process_computed_another_reads)
{
    prepare(false);
    second();
    ts_world_run(&rig.t.w, 2);
    cr_assert_eq(rig.t.w.got[0].cached, 144, "%d", rig.t.w.got[0].cached);
    struct kv_tier_stats s;
    rig.t.store.nodes->ops->stat(rig.t.store.nodes, &s);
    cr_assert_eq(s.read, 9u);
    cr_assert_eq(s.read_bytes, 9 * rig.t.layout.block_bytes);
    cr_assert_eq(s.errors + s.bad, 0u);
    cr_assert_eq(s.stored, 1u, "%d blocks were sent: what came from the nodes is there", (int)s.stored);
    check("undisturbed", 1);
    forget_nodes();
}

/* The list that the process was started with ends before the last node, which has its share all the same once it is
 * there. */
Test(kv_nodes, a_node_that_the_list_had_not_at_the_start)
{
    prepare(false);
    cr_assert_gt(blocks_at(NODES - 1), 0u);
    rig.unlisted = 1;
    second();
    ts_world_run(&rig.t.w, 2);
    cr_assert_eq(rig.t.w.got[0].cached, 144, "%d", rig.t.w.got[0].cached);
    check("unlisted", 1);
    forget_nodes();
}

/* Rows of a source that the node's own tier holds back: the layers before it have run by then, as with local tiers, and
 * that tier knows what the pass waits for. */
Test(kv_nodes, layers_run_while_rows_of_later_ones_are_held_back)
{
    prepare(true);
    const int sources = rig.t.layout.n_sources;
    for (int held = 0; held < sources; held++) {
        static struct ts_trace t;
        memset(&t, 0, sizeof t);
        rig.node[0].host->ops->free(rig.node[0].host);
        rig.node[0].host = NULL; /* only the script has them */
        second();
        rig.t.w.before = ts_note_layers;
        rig.t.w.before_ctx = &t;
        for (int s = 0; s < sources; s++)
            rig.t.script.at[s] = s >= held ? 150 * MS : 0;
        rig.t.script.wanted = 0;
        ts_world_run(&rig.t.w, 3);
        cr_assert_eq(rig.t.script.wanted, held + 1, "%d sources instead of %d are waited for", rig.t.script.wanted,
                     held + 1);
        cr_assert_eq(rig.t.w.got[0].cached, 144);
        int layer = rig.t.w.m->cfg->kv_sources[held];
        for (int l = 0; l < layer; l++)
            cr_assert_lt(t.first[l], 100 * MS, "layer %d waited for the rows of layer %d", l, layer);
        cr_assert_geq(t.first[layer], 150 * MS, "layer %d ran without its rows", layer);
        check("held back", 1);
        memset(rig.t.script.at, 0, sizeof rig.t.script.at);
    }
    forget_nodes();
}

/* The same by puts into slots of the reader's window. A put that fails costs what it should have brought; nothing is
 * lent again before that connection is fenced. */
Test(kv_nodes, rows_are_put_into_the_readers_window)
{
    prepare(false);
    rig.puts = true;
    for (rig.bad_put = -1; rig.bad_put < 4; rig.bad_put++) {
        second();
        ts_tiers_prompts(&rig.t, 2);
        ts_world_run(&rig.t.w, (uint64_t)rig.bad_put + 5);
        cr_assert_geq(rig.n_puts, rig.bad_put < 0 ? rig.t.layout.n_sources * NODES : rig.bad_put + 1);
        cr_assert_eq(rig.n_fences, rig.bad_put >= 0);
        cr_assert_eq(rig.t.w.got[0].cached, rig.bad_put < 0 ? 144 : 0, "put %d", rig.bad_put);
        cr_assert_eq(rig.t.w.got[1].cached, 144);
        check("puts", 2);
    }
    rig.bad_put = -1;
    forget_nodes();
}

/* ---- what is lent comes back ---- */

static void check_slots(const char *when)
{
    const struct remote_tier *t = (const struct remote_tier *)(const void *)rig.t.store.nodes;
    cr_assert_eq(t->n_free, t->n_slots, "%s: %d of %d slots are free", when, t->n_free, t->n_slots);
    cr_assert(!t->fetches && !t->finds && !t->batches, "%s: something is under way", when);
}

/* A node that is there and does nothing, from any message on: slots that it was lent come back, with its connection. */
Test(kv_nodes, a_node_that_is_silent_for_good_keeps_no_slot)
{
    int fenced = 0;
    prepare(false);
    rig.puts = true;
    for (int k = 0; k<12; k += TS_LESS> 2 ? 4 : 2) {
        char when[64];
        second();
        rig.node[0].fate = (struct fate){.at = k, .silent = true};
        ts_world_run(&rig.t.w, (uint64_t)k + 1);
        snprintf(when, sizeof when, "silent from message %d on", k);
        check_slots(when);
        fenced += rig.n_fences;
        check(when, 1);
    }
    cr_expect_gt(fenced, 0, "nothing was lent");
    forget_nodes();
}

/* The end of a put is lost: the node ends the connection when it has waited for long enough, and its places are free.
 */
Test(kv_nodes, a_put_without_an_end_keeps_no_place)
{
    prepare(false);
    rig.puts = true;
    rig.patience = 20 * MS; /* so that it does so before its reader does */
    for (rig.hung_put = 0; rig.hung_put<4; rig.hung_put += TS_LESS> 2 ? 3 : 1) {
        second();
        ts_world_run(&rig.t.w, (uint64_t)rig.hung_put + 1);
        cr_assert_gt(rig.n_node_fences, 0, "put %d: no node has ended its connection", rig.hung_put);
        check_slots("a put without an end");
        check("a put without an end", 1);
    }
    rig.hung_put = -1;
    rig.patience = 0;
    forget_nodes();
}

/* ---- fates ---- */

/* Whatever happens to node 0 at its k-th message, for every k: while a process reads, and while one stores. */
static void every_message(bool storing, bool silent, enum act_type lose)
{
    prepare(false);
    rig.puts = !storing;
    rig.bad_put = -1;
    for (int k = 0, more = 1; more; k += storing ? 2 * TS_LESS : TS_LESS) {
        char when[96];
        if (storing)
            for (int i = 0; i < NODES; i++) { /* nobody has anything */
                rig.node[i].host->ops->free(rig.node[i].host);
                rig.node[i].host = NULL;
            }
        second();
        ts_tiers_prompts(&rig.t, 2);
        ts_tiers_other(&rig.t, 1); /* a second later */
        rig.node[0].fate = (struct fate){.at = k, .silent = silent, .lose = lose};
        rig.down = silent ? 700 * MS : 0;
        ts_world_run(&rig.t.w, (uint64_t)k + 1);
        snprintf(when, sizeof when, "%s, message %d", storing ? "storing" : "reading", k);
        more = rig.node[0].fate.over;
        cr_assert_lt(k, 400);
        check(when, 2);
    }
    rig.down = 0;
    forget_nodes();
}

Test(kv_nodes, a_node_that_dies_at_any_message_is_a_miss)
{
    every_message(false, false, ACT_NONE);
    every_message(true, false, ACT_NONE);
}

Test(kv_nodes, a_node_that_stands_still_at_any_message_is_a_miss)
{
    every_message(false, true, ACT_NONE);
    every_message(true, true, ACT_NONE);
}

Test(kv_nodes, any_message_to_a_node_may_be_lost)
{
    every_message(false, false, ACT_PING);
    every_message(true, false, ACT_PING);
}

/* A link that loses one in thirty, doubles one in thirty and delays all, for many seeds. */
Test(kv_nodes, a_bad_link_costs_time_and_nothing_else, .timeout = 3600)
{
    int cached = 0, seeds = ts_more(16 / TS_LESS, 400);
    prepare(false);
    for (int seed = 1; seed <= seeds; seed++) {
        char when[64];
        second();
        ts_tiers_prompts(&rig.t, 6);
        for (int i = 2; i < 6; i++)
            ts_tiers_other(&rig.t, i / 2);
        rig.link = (struct act_sim_fault){.lose = 33000, .copy = 33000, .delay_min = 1000, .delay_max = 30 * MS};
        ts_world_run(&rig.t.w, (uint64_t)seed);
        snprintf(when, sizeof when, "seed %d", seed);
        cached += rig.t.w.got[0].cached > 0;
        check(when, 6);
    }
    cr_assert_gt(cached, seeds / 4, "%d hits of %d", cached, seeds);
    rig.link = (struct act_sim_fault){0};
    forget_nodes();
}

/* An answer that comes long after its deadline touches nobody's pages and confuses no later read. */
Test(kv_nodes, late_rows_touch_nothing)
{
    prepare(false);
    for (int seed = 1; seed <= 3; seed++) {
        second();
        ts_tiers_prompts(&rig.t, 4);
        for (int i = 1; i < 4; i++)
            rig.t.w.wanted[i].start = (60 + 90 * i) * MS;
        ts_tiers_other(&rig.t, 2);
        rig.link = (struct act_sim_fault){.delay_min = 20 * MS, .delay_max = (100 + 100 * seed) * MS};
        ts_world_run(&rig.t.w, (uint64_t)seed);
        check("late", 4);
    }
    rig.link = (struct act_sim_fault){0};
    forget_nodes();
}

/* ---- nodes that are not to be believed ---- */

enum lie { GARBAGE, SHORT_TAIL, NO_SUCH_SOURCE, A_GAP, TOO_MANY, DONE_AT_ONCE, FOUND_MORE, SILENCE, OTHER_LOAD, LIES };

struct liar {
    const struct keeper *k;
};

static int liar_start(struct act_self *self, void *state, const void *arg)
{
    (void)self;
    ((struct liar *)state)->k = arg;
    return 0;
}

static void tell_lie(struct act_self *self, struct act_addr to, uint32_t load, enum lie lie, uint32_t blocks)
{
    const struct kv_layout *l = &rig.t.layout;
    struct act_msg m;
    size_t each = sizeof(uint64_t) + l->bytes[0], tail;
    uint16_t n = (uint16_t)(lie == TOO_MANY ? blocks + 1 : lie == A_GAP ? blocks - 1 : blocks);
    size_t size = lie == SHORT_TAIL ? each * n - 1 : each * n;
    cr_assert_eq(act_msg_new(ACT_REMOTE_ROWS, to, size, &m), 0);
    memset(act_msg_tail(&m, &tail), 0xab, size);
    *act_p_remote_rows(&m) = (struct act_p_remote_rows){.load = lie == OTHER_LOAD ? load + 1000 : load,
                                                        .source = lie == NO_SUCH_SOURCE ? 99 : 0,
                                                        .first = lie == A_GAP ? 1 : 0,
                                                        .blocks = n};
    if (act_request(self, &m))
        act_msg_drop(&m);
}

static int liar_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    enum lie lie = (enum lie)((struct liar *)state)->k->lie;
    for (int i = 0; i < count; i++) {
        struct act_promise p = act_promise_of(&m[i]);
        struct act_msg r;
        if (m[i].type == ACT_REMOTE_FIND) {
            r = act_msg_make(ACT_REMOTE_FOUND, ACT_NOBODY);
            act_p_remote_found(&r)->blocks = lie == FOUND_MORE ? UINT32_MAX : act_p_remote_find(&m[i])->blocks;
            act_reply(self, &p, &r);
        } else if (m[i].type == ACT_REMOTE_READ && lie != SILENCE) {
            uint32_t load = act_p_remote_read(&m[i])->load, blocks = act_p_remote_read(&m[i])->blocks;
            if (lie != DONE_AT_ONCE && lie != FOUND_MORE)
                tell_lie(self, m[i].src, load, lie, blocks);
            r = act_msg_make(ACT_REMOTE_DONE, ACT_NOBODY);
            *act_p_remote_done(&r) = (struct act_p_remote_done){.load = load, .blocks = blocks};
            act_reply(self, &p, &r);
        }
    }
    return 0;
}

static const struct act_behaviour liar_behaviour = {
    .name = "liar", .state_size = sizeof(struct liar), .start = liar_start, .receive = liar_receive};

/* Bytes that do not fit their sums, and everything that is malformed: the request is served all the same. */
Test(kv_nodes, what_a_node_says_is_checked)
{
    prepare(false);
    for (int lie = 0; lie < LIES; lie++) {
        char when[32];
        second();
        rig.node[0].lies = true;
        rig.node[0].lie = lie;
        ts_world_run(&rig.t.w, (uint64_t)lie + 1);
        snprintf(when, sizeof when, "lie %d", lie);
        struct kv_tier_stats s;
        rig.t.store.nodes->ops->stat(rig.t.store.nodes, &s);
        cr_assert_eq(s.bad > 0, lie == GARBAGE, "%s: %d bad extents", when, (int)s.bad);
        cr_assert_eq(s.queue, 0, "%s", when);
        cr_assert_lt(rig.t.w.got[0].cached, 144, "%s", when);
        check(when, 1);
    }
    forget_nodes();
}

/* Messages that a kv_node refuses, each with its answer. */
enum { QUESTIONS = 9 };

struct asker {
    struct act_addr node;
    int answers, status[QUESTIONS], stored;
};

/* Makes the tail of REMOTE_STORE right: names, sums, bytes. */
static void fill_store(struct act_msg *m, uint32_t n, enum kv_taint taint)
{
    const struct kv_layout *l = &rig.t.layout;
    size_t bytes;
    struct act_remote_block *b = act_msg_tail(m, &bytes);
    uint64_t *sum = (uint64_t *)(void *)(b + n);
    uint8_t *rows = (uint8_t *)(sum + n * (uint32_t)l->n_sources);
    memset(rows, 0x5a, n * l->block_bytes);
    for (uint32_t i = 0; i < n; i++) {
        memset(&b[i], (int)(0x60 + i), sizeof b->key);
        b[i].taint = (uint32_t)taint;
        b[i].hit = 0;
        for (int k = 0; k < l->n_sources; k++)
            *sum++ = kv_extent_sum((const struct kv_key *)&b[i].key, k, 0, rows + l->offset[k], l->bytes[k]);
    }
}

static void ask_badly(struct act_self *self, struct act_addr node, int which)
{
    const struct kv_layout *l = &rig.t.layout;
    static const enum act_type types[] = {ACT_REMOTE_FIND, ACT_REMOTE_FIND,  ACT_REMOTE_READ,
                                          ACT_REMOTE_READ, ACT_REMOTE_STORE, ACT_REMOTE_STORE,
                                          ACT_REMOTE_READ, ACT_REMOTE_STORE, ACT_REMOTE_STORE};
    struct act_msg m;
    size_t bytes, block = sizeof(struct act_remote_block) + (size_t)l->n_sources * 8 + l->block_bytes;
    size_t one = which == 6 ? sizeof(struct act_key) : block;
    uint32_t n = which == 8 ? 3 : 1;
    cr_assert_eq(act_msg_new(types[which], node, n * one, &m), 0);
    memset(act_msg_tail(&m, &bytes), 0x5a, n * one);
    m.request = (uint64_t)which + 1;
    *(uint32_t *)(void *)m.data = n;                                                     /* blocks */
    *(uint64_t *)(void *)m.buf->data = which % 2 || which > 5 ? kv_layout_id(l) : 12345; /* layout */
    if (which == 5) /* clean, but its sums are wrong */
        memset((uint8_t *)act_msg_tail(&m, &bytes) + sizeof(struct act_key), 0, 8);
    if (which == 6) { /* slots that hold no extent */
        memset(m.buf->data + 8, 0, sizeof(struct act_b_remote_read) - 8);
        act_b_remote_read(&m)->window = WINDOW_SLOTS;
        act_b_remote_read(&m)->slot_bytes = 512;
        act_b_remote_read(&m)->generation = GENERATION;
    }
    if (which == 7) /* whole, and of a kind that nobody knows */
        fill_store(&m, 1, (enum kv_taint)(KV_TAINTED + 1));
    if (which == 8) { /* the second of three has changed on its way */
        fill_store(&m, n, KV_CLEAN);
        ((uint8_t *)act_msg_tail(&m, &bytes))[n * one - l->block_bytes - 1] ^= 1;
    }
    cr_assert_eq(act_request(self, &m), 0);
}

static int asker_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct asker *a = *(struct asker **)state;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_RELOAD)
            for (int k = 0; k < QUESTIONS; k++)
                ask_badly(self, a->node, k);
        int status = m[i].type == ACT_REMOTE_FOUND    ? act_p_remote_found(&m[i])->status
                     : m[i].type == ACT_REMOTE_DONE   ? act_p_remote_done(&m[i])->status
                     : m[i].type == ACT_REMOTE_STORED ? act_p_remote_stored(&m[i])->status
                                                      : 0;
        if (!status)
            continue;
        a->answers++;
        a->status[m[i].request - 1] = status;
        a->stored += m[i].type == ACT_REMOTE_STORED ? (int)act_p_remote_stored(&m[i])->blocks : 0;
    }
    return 0;
}

static int asker_start(struct act_self *self, void *state, const void *arg)
{
    (void)self;
    *(const void **)state = arg;
    return 0;
}

static const struct act_behaviour asker_behaviour = {
    .name = "asker", .state_size = sizeof(struct asker *), .start = asker_start, .receive = asker_receive};

static struct asker asker;

static void spawn_asker(struct ts_world *w)
{
    struct cfg_error err;
    struct act_addr who;
    spawn_nodes(w);
    asker.node = rig.node[0].addr;
    const struct act_spawn spec = {.behaviour = &asker_behaviour, .worker = TS_WORLD_CLIENT, .arg = &asker};
    cr_assert_eq(act_runtime_spawn(w->rt, &spec, &who, &err), 0);
    struct act_msg m = act_msg_make(ACT_RELOAD, who);
    cr_assert_eq(act_runtime_post(w->rt, &m), 0);
}

Test(kv_nodes, a_node_checks_what_it_is_asked)
{
    prepare(false);
    rig.puts = true;
    rig.bad_put = -1;
    second();
    memset(&asker, 0, sizeof asker);
    rig.t.w.before_sources = spawn_asker;
    uint64_t before = blocks_at(0);
    ts_world_run(&rig.t.w, 1);
    cr_assert_eq(asker.answers, QUESTIONS, "%d answers", asker.answers);
    for (int i = 0; i < QUESTIONS; i++)
        cr_assert_eq(asker.status[i], i == 5 || i > 6 ? -EBADMSG : -EPROTO, "question %d: %d", i, asker.status[i]);
    cr_assert_eq(asker.stored, 1, "%d kept", asker.stored);
    cr_assert_eq(blocks_at(0), before + 1, "what was wrong was kept");
    check("asked badly", 1);
    forget_nodes();
}

/* ---- the queue of a node ---- */

/* Asks for as much as the pool holds, twice, or stores more at a time than the node takes. */
enum { STORES = 4 };

struct hoarder {
    struct act_addr node;
    struct kv_key key;
    bool stores, drain; /* drain: the node has been told to */
    int64_t began, ended[2];
    int status[2], blocks[2];
    int stored, refused, other; /* stores */
};

static struct hoarder hoarder;

static void ask_for_all(struct act_self *self, uint32_t load)
{
    struct act_msg m;
    size_t bytes;
    cr_assert_eq(act_msg_new(ACT_REMOTE_READ, hoarder.node, POOL * sizeof(struct kv_key), &m), 0);
    struct kv_key *key = act_msg_tail(&m, &bytes);
    for (int i = 0; i < POOL; i++)
        key[i] = hoarder.key;
    *act_p_remote_read(&m) = (struct act_p_remote_read){.blocks = POOL, .load = load};
    *act_b_remote_read(&m) = (struct act_b_remote_read){.layout = kv_layout_id(&rig.t.layout)};
    m.request = 100 + load;
    cr_assert_eq(act_request(self, &m), 0);
}

static void store_much(struct act_self *self)
{
    const struct kv_layout *l = &rig.t.layout;
    size_t one = sizeof(struct act_remote_block) + (size_t)l->n_sources * 8 + l->block_bytes;
    struct act_msg m;
    for (int i = 0; i < STORES; i++) {
        cr_assert_eq(act_msg_new(ACT_REMOTE_STORE, hoarder.node, ACT_REMOTE_STORE_MAX * one, &m), 0);
        act_p_remote_store(&m)->blocks = ACT_REMOTE_STORE_MAX;
        act_b_remote_store(&m)->layout = kv_layout_id(l);
        fill_store(&m, ACT_REMOTE_STORE_MAX, KV_CLEAN);
        m.request = 200 + (uint64_t)i;
        cr_assert_eq(act_request(self, &m), 0);
    }
}

static int hoarder_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    (void)state;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_RELOAD) {
            hoarder.began = act_now(self);
            ask_for_all(self, 0);
            ask_for_all(self, 1);
            if (hoarder.stores)
                store_much(self);
        } else if (m[i].type == ACT_REMOTE_STORED) {
            int status = act_p_remote_stored(&m[i])->status;
            hoarder.stored += !status;
            hoarder.refused += status == -EAGAIN;
            hoarder.other = status && status != -EAGAIN ? status : hoarder.other;
        } else if (m[i].type == ACT_REMOTE_ROWS) {
            struct act_promise p = act_promise_of(&m[i]);
            struct act_msg r = act_msg_make(ACT_REMOTE_TAKEN, ACT_NOBODY);
            act_p_remote_taken(&r)->load = act_p_remote_rows(&m[i])->load;
            act_reply(self, &p, &r);
        } else if (m[i].type == ACT_REMOTE_DONE) {
            uint32_t load = act_p_remote_done(&m[i])->load;
            hoarder.ended[load] = act_now(self);
            hoarder.status[load] = act_p_remote_done(&m[i])->status;
            hoarder.blocks[load] = (int)act_p_remote_done(&m[i])->blocks;
        }
    }
    return 0;
}

static const struct act_behaviour hoarder_behaviour = {.name = "hoarder", .receive = hoarder_receive};

static void spawn_hoarder(struct ts_world *w)
{
    struct cfg_error err;
    struct act_addr who;
    spawn_nodes(w);
    hoarder.node = rig.node[0].addr;
    const struct act_spawn spec = {.behaviour = &hoarder_behaviour, .worker = TS_WORLD_CLIENT};
    cr_assert_eq(act_runtime_spawn(w->rt, &spec, &who, &err), 0);
    struct act_msg m = act_msg_make(ACT_DRAIN, hoarder.node);
    if (hoarder.drain)
        cr_assert_eq(act_runtime_post(w->rt, &m), 0);
    m = act_msg_make(ACT_RELOAD, who);
    cr_assert_eq(act_runtime_post(w->rt, &m), 0);
}

/* The node's disk takes its time with a read that has the whole pool. The next one is refused in time, not left waiting
 * for that disk; the first one is served. */
Test(kv_nodes, a_read_that_finds_no_room_in_time_is_refused)
{
    prepare(true);
    rig.node[0].host->ops->free(rig.node[0].host);
    rig.node[0].host = NULL; /* only the script has them */
    second();
    ts_tiers_prompts(&rig.t, 2);
    memset(&hoarder, 0, sizeof hoarder);
    hoarder.key = rig.t.script.block[0].key;
    rig.t.w.before_sources = spawn_hoarder;
    for (int s = 0; s < rig.t.layout.n_sources; s++)
        rig.t.script.at[s] = 900 * MS;
    ts_world_run(&rig.t.w, 1);
    cr_assert_eq(hoarder.status[1], -EAGAIN, "%d, %d blocks", hoarder.status[1], hoarder.blocks[1]);
    cr_assert_leq(hoarder.ended[1] - hoarder.began, 400 * MS, "after %d ms",
                  (int)((hoarder.ended[1] - hoarder.began) / MS));
    cr_assert_eq(hoarder.status[0], 0, "%d", hoarder.status[0]);
    cr_assert_eq(hoarder.blocks[0], POOL);
    cr_assert_geq(hoarder.ended[0] - hoarder.began, 890 * MS);
    check("no room", 2);
    forget_nodes();
}

/* What the node says at the end of a read is true of all sources. */
Test(kv_nodes, a_read_is_as_long_as_its_shortest_source)
{
    prepare(true);
    for (int source = 0; source < rig.t.layout.n_sources; source++) {
        if (rig.node[0].host)
            rig.node[0].host->ops->free(rig.node[0].host);
        rig.node[0].host = NULL;
        second();
        memset(&hoarder, 0, sizeof hoarder);
        hoarder.key = rig.t.script.block[0].key;
        rig.t.w.before_sources = spawn_hoarder;
        memset(rig.t.script.ok_of, 0, sizeof rig.t.script.ok_of);
        rig.t.script.ok_of[source] = 3;
        ts_world_run(&rig.t.w, 1);
        cr_assert_eq(hoarder.blocks[0], 3, "source %d: %d blocks", source, hoarder.blocks[0]);
        cr_assert_neq(hoarder.status[0], 0);
        check("short", 1);
    }
    memset(rig.t.script.ok_of, 0, sizeof rig.t.script.ok_of);
    forget_nodes();
}

/* A node that drains refuses all that is new, and those who know of it ask it no more. */
Test(kv_nodes, a_node_that_drains_refuses_what_is_new)
{
    prepare(false);
    second();
    ts_tiers_prompts(&rig.t, 3);
    memset(&hoarder, 0, sizeof hoarder);
    hoarder.drain = hoarder.stores = true;
    rig.t.w.before_sources = spawn_hoarder;
    ts_world_run(&rig.t.w, 1);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(hoarder.status[i], -ESHUTDOWN, "%d", hoarder.status[i]);
    cr_assert_eq(hoarder.other, -ESHUTDOWN);
    cr_assert_eq(hoarder.stored, 0);
    struct kv_tier_stats s;
    rig.t.store.nodes->ops->stat(rig.t.store.nodes, &s);
    cr_assert_eq(s.errors, 0u, "nothing was late");
    check("draining", 3);
    forget_nodes();
}

/* What is on its way into a node's tiers is bounded. */
Test(kv_nodes, more_stores_than_a_node_has_memory_for_are_refused)
{
    prepare(false);
    second();
    memset(&hoarder, 0, sizeof hoarder);
    hoarder.stores = true;
    rig.t.w.before_sources = spawn_hoarder;
    ts_world_run(&rig.t.w, 1);
    cr_assert_eq(hoarder.other, 0, "%d", hoarder.other);
    cr_assert_eq(hoarder.stored + hoarder.refused, STORES);
    cr_assert_geq(hoarder.refused, 1);
    cr_assert_geq(hoarder.stored, 1);
    check("much to store", 1);
    forget_nodes();
}

/* A node that does not answer is asked less and less often, so that few lookups wait for it. */
Test(kv_nodes, a_silent_node_is_left_out_for_longer_and_longer)
{
    enum { N = 30 };
    prepare(false);
    second();
    ts_tiers_prompts(&rig.t, N);
    for (int i = 0; i < N; i++) {
        rig.t.w.wanted[i].start = 100 * i * MS;
        ts_tiers_other(&rig.t, i);
    }
    rig.node[0].fate = (struct fate){.at = 0, .silent = true, .lose = ACT_NONE};
    ts_world_run(&rig.t.w, 1);
    cr_assert_lt(rig.node[0].fate.count, N / 2, "%d questions to a node that never answers", rig.node[0].fate.count);
    cr_assert_gt(rig.node[0].fate.count, 1, "it is tried again");
    rig.node[0].fate.over = true;
    check("silent", N);
    forget_nodes();
}

/* So is what is on its way to nodes: the rest is refused, and nothing waits for it. What was refused is offered again
 * whenever it is found on the device, until a process that has nothing finds all of it at the nodes. */
Test(kv_nodes, blocks_that_were_refused_are_offered_again_when_they_are_hit)
{
    enum { HITS = 8 };
    int cached[2];
    for (int hits = 0; hits < 2; hits++) {
        memset(&rig, 0, sizeof rig);
        rig.t.script.ok = -1;
        rig.behind = 2;
        rig.link = (struct act_sim_fault){.delay_min = 15 * MS, .delay_max = 20 * MS};
        open_process(64);
        ts_tiers_prompts(&rig.t, hits ? 1 + HITS : 1);
        for (int i = 1; hits && i <= HITS; i++)
            rig.t.w.wanted[i].start = 2000 * i * MS;
        ts_world_run(&rig.t.w, 1);
        struct kv_tier_stats s;
        rig.t.store.nodes->ops->stat(rig.t.store.nodes, &s);
        cr_assert_geq(s.refused, 4u, "%d refused, %d stored", (int)s.refused, (int)s.stored);
        cr_assert(s.stored >= 1u && s.queue == 0);
        check("behind", hits ? 1 + HITS : 1);
        rig.link = (struct act_sim_fault){0};
        rig.behind = 0;
        open_process(64);
        ts_tiers_prompts(&rig.t, 1);
        ts_world_run(&rig.t.w, 2);
        ts_world_check_same(&rig.t.w, 0);
        cached[hits] = rig.t.w.got[0].cached;
        check("after", 1);
        forget_nodes();
    }
    cr_assert_lt(cached[0], 144, "%d", cached[0]);
    cr_assert_eq(cached[1], 144, "%d", cached[1]);
}
