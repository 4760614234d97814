/* Several Prefill and Decode actors: the Router's choices, and requests that go on when the part that works for them
 * ends. */
#include "tests/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/link.h"
#include "actors/runtime/peers.h"
#include "tests/support/engine_world.h"

/* ---- requests over several actors ---- */

Test(placement, two_of_each_give_the_tokens_of_one_of_each)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct ts_world w;
        ts_world_open(&w, 64, 2);
        w.prefills = w.decodes = 2;
        ts_world_requests(&w, 12, (unsigned)seed);
        ts_world_run(&w, seed);
        int at[2] = {0};
        for (int i = 0; i < w.n; i++) {
            ts_world_check_same(&w, i);
            for (int k = 0; k < 2; k++)
                at[k] += act_addr_equal(w.got[i].place.decode, w.e.decode[k]);
        }
        cr_expect(at[0] && at[1], "seed %d: all requests ran at one Decode actor", (int)seed);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

/* Six requests in exact mode, where one that goes on elsewhere has the same tokens. */
static void open_exact(struct ts_world *w, unsigned seed)
{
    ts_world_open(w, 64, 2);
    w->e.limits.replay = 0;
    w->prefills = w->decodes = 2;
    ts_world_requests(w, 6, seed);
}

/* What everything is compared with: how long the run takes when nobody fails, and the tokens. */
struct undisturbed {
    int64_t end;
    struct ts_outcome got[TS_WORLD_REQUESTS];
};

static void run_undisturbed(unsigned seed, struct undisturbed *u)
{
    struct ts_world w;
    open_exact(&w, seed);
    ts_world_run(&w, seed);
    u->end = 0;
    for (int i = 0; i < w.n; i++) {
        ts_world_check_same(&w, i);
        u->got[i] = w.got[i];
        u->end = w.got[i].ended > u->end ? w.got[i].ended : u->end;
    }
    ts_world_close(&w);
}

static void check_undisturbed(const struct ts_world *w, const struct undisturbed *u, const char *when)
{
    for (int i = 0; i < w->n; i++) {
        const struct ts_outcome *got = &w->got[i], *want = &u->got[i];
        cr_assert_eq(got->terminal, 1, "%s, request %d: %d ends", when, i, got->terminal);
        cr_assert_eq(got->n, want->n, "%s, request %d: %d tokens of %d", when, i, got->n, want->n);
        cr_assert_eq(memcmp(got->ids, want->ids, (size_t)want->n * sizeof *want->ids), 0,
                     "%s, request %d: other tokens", when, i);
    }
}

static int replaced(const struct ts_world *w)
{
    int n = 0;
    for (int i = 0; i < w->n; i++)
        n += w->got[i].place.replaced;
    return n;
}

/* One actor ends, at forty moments of the run each. */
static void kill_at_every_moment(unsigned role, bool restart)
{
    enum { MOMENTS = 40 };
    static struct undisturbed u;
    int moved = 0;
    run_undisturbed(3, &u);
    for (int k = 1; k < MOMENTS; k++) {
        struct ts_world w;
        open_exact(&w, 3);
        w.restart = restart;
        if (restart)
            w.prefills = w.decodes = 1;
        w.kill[w.n_kills++] = (struct ts_kill){.at = u.end * k / MOMENTS, .role = role};
        ts_world_run(&w, 3);
        char when[64];
        snprintf(when, sizeof when, "end at %lld ns", (long long)w.kill[0].at);
        check_undisturbed(&w, &u, when);
        moved += replaced(&w);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
    cr_expect_gt(moved, MOMENTS / 4, "only %d requests had to move", moved);
}

Test(placement, the_end_of_a_decode_actor_costs_one_gap)
{
    kill_at_every_moment(CFG_ROLE_DECODE, false);
}

Test(placement, the_end_of_a_prefill_actor_costs_a_retry)
{
    kill_at_every_moment(CFG_ROLE_PREFILL, false);
}

Test(placement, an_actor_that_begins_again_is_used_again)
{
    kill_at_every_moment(CFG_ROLE_DECODE, true);
    kill_at_every_moment(CFG_ROLE_PREFILL, true);
}

/* Whose prompt is computed notices nothing. */
Test(placement, a_prefill_that_ends_behind_its_prompts_costs_nothing)
{
    struct ts_world w;
    open_exact(&w, 5);
    w.prefills = 1;
    w.n = 1;
    w.kill[w.n_kills++] = (struct ts_kill){.tokens = 20, .role = CFG_ROLE_PREFILL};
    w.wanted[0].max_new = 60;
    ts_world_run(&w, 5);
    ts_world_check_same(&w, 0);
    cr_expect_eq(w.got[0].place.replaced, 0, "it went on elsewhere");
    ts_world_check_baseline(&w);
    ts_world_close(&w);
}

/* With the last one gone there is nothing to wait for but another one; that ends too. */
/* A Decode loses the cancel of an attempt that was placed again elsewhere, and decodes on. */
struct stale {
    struct act_addr first; /* where the attempt is */
    bool lost;
    int cancels;    /* of that attempt, behind the one that was lost */
    int dispatches; /* of that Decode */
};

static bool lose_cancel(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                        int *fail)
{
    struct stale *s = w->before_ctx;
    (void)fail;
    s->dispatches += who->part == TS_PART_EXPERT && m->type == ACT_EXPERT_DISPATCH && act_addr_equal(m->src, s->first);
    if (who->part != TS_PART_DECODE || m->attempt)
        return false;
    if (m->type == ACT_HANDOFF && act_addr_is_nobody(s->first)) {
        struct act_msg failed = act_msg_make(ACT_FAILED, w->client);
        failed.request = m->request;
        act_p_failed(&failed)->status = -EHOSTDOWN;
        cr_assert_eq(act_send(self, &failed), 0);
        s->first = act_self_addr(self);
    } else if (m->type == ACT_CANCEL && act_addr_equal(act_self_addr(self), s->first)) {
        s->cancels += s->lost;
        bool loses = !s->lost;
        s->lost = true;
        return loses;
    }
    return false;
}

Test(placement, tokens_of_an_older_attempt_end_it)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct ts_world w;
        struct stale s = {.first = ACT_NOBODY};
        open_exact(&w, (unsigned)seed);
        w.n = 1;
        w.wanted[0].max_new = TS_WORLD_NEW;
        w.before = lose_cancel;
        w.before_ctx = &s;
        ts_world_run(&w, seed);
        ts_world_check_same(&w, 0);
        cr_assert(s.lost);
        cr_assert_eq(w.got[0].place.replaced, 1);
        cr_assert_not(act_addr_equal(w.got[0].place.decode, s.first), "it came to the same Decode");
        cr_expect_gt(s.cancels, 0, "seed %d: it is not cancelled again", (int)seed);
        cr_expect_lt(s.dispatches, TS_WORLD_NEW / 2 * w.m->cfg->n_layers,
                     "seed %d: %d dispatches for an attempt that is over", (int)seed, s.dispatches);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

Test(placement, without_any_decode_actor_requests_end_with_a_reason)
{
    struct ts_world w;
    open_exact(&w, 5);
    w.prefills = w.decodes = 1;
    w.kill[w.n_kills++] = (struct ts_kill){.at = 2000000, .role = CFG_ROLE_DECODE};
    for (int i = 0; i < w.n; i++)
        w.wanted[i].max_new = 100;
    ts_world_run(&w, 5);
    for (int i = 0; i < w.n; i++) {
        cr_expect_eq(w.got[i].terminal, 1, "request %d: %d ends", i, w.got[i].terminal);
        cr_expect_eq(w.got[i].status, -EHOSTDOWN);
    }
    struct kv_device_stats s;
    kv_device_stat(w.e.device, &s);
    cr_expect_eq(s.held, 0, "%d pages are still held", s.held);
    ts_world_close(&w);
}

/* ---- places that fail what they are given ---- */

/* These Prefill actors answer every prompt with this status, `ns` after it came; nobody else fails. */
struct failing {
    unsigned who; /* bits */
    int status;
    int64_t ns;
    int count, tried[TS_WORLD_REQUESTS];
};

static bool fail_prompt(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                        int *fail)
{
    struct failing *f = w->before_ctx;
    (void)fail;
    if (who->part != TS_PART_PREFILL || m->type != ACT_PREFILL || !(f->who >> who->index & 1))
        return false;
    struct act_msg no = act_msg_make(ACT_FAILED, act_b_prefill(m)->requester);
    no.request = m->request;
    no.attempt = m->attempt;
    act_p_failed(&no)->status = f->status;
    act_busy(self, f->ns);
    f->count++;
    f->tried[m->request - 1]++;
    cr_assert_eq(act_send(self, &no), 0);
    return true;
}

static void run_failing(struct ts_world *w, struct failing *f, int prefills, int requests)
{
    open_exact(w, 5);
    w->prefills = prefills;
    w->n = requests;
    w->before = fail_prompt;
    w->before_ctx = f;
    ts_world_run(w, 5);
}

/* Whoever says that its experts are gone has waited for them: it is asked once, and everybody else first. */
Test(placement, a_place_without_experts_is_asked_once_and_the_others_are_used)
{
    for (unsigned well = 0; well < 4; well++) {
        struct ts_world w;
        struct failing f = {.who = 15u & ~(1u << well), .status = -ENOLINK};
        run_failing(&w, &f, 4, 6);
        for (int i = 0; i < w.n; i++) {
            ts_world_check_same(&w, i);
            cr_expect_le(f.tried[i], 3, "request %d was tried %d times at three places", i, f.tried[i]);
        }
        cr_expect_gt(f.count, 0);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

Test(placement, without_experts_anywhere_a_request_fails_when_each_place_was_asked)
{
    struct ts_world w;
    struct failing f = {.who = 7, .status = -ENOLINK, .ns = 50000000};
    run_failing(&w, &f, 3, 2);
    for (int i = 0; i < w.n; i++) {
        cr_expect_eq(w.got[i].terminal, 1);
        cr_expect_eq(w.got[i].status, -ENOLINK, "request %d: status %d", i, w.got[i].status);
        cr_expect_eq(f.tried[i], 3, "request %d was tried %d times at three places", i, f.tried[i]);
        cr_expect_lt(w.got[i].ended, 500000000, "request %d: after %d ms", i, (int)(w.got[i].ended / 1000000));
    }
    ts_world_check_baseline(&w);
    ts_world_close(&w);
}

/* What may get better is tried for a while: ten seconds, longer pauses each time; and three times where one try takes
 * longer than that. */
Test(placement, places_that_fail_are_tried_for_a_while_and_no_longer)
{
    static const struct {
        int64_t ns, patience;
        int tries_least, tries_most, ms_most;
    } row[] = {
        {0, 0, 6, 10, 13500}, {4000000000, 0, 4, 4, 17500}, {12000000000, 0, 3, 3, 36500}, {0, 1000000000, 3, 5, 1500}};
    for (size_t k = 0; k < sizeof row / sizeof *row; k++) {
        struct ts_world w;
        struct failing f = {.who = 1, .status = -EHOSTDOWN, .ns = row[k].ns};
        open_exact(&w, 5);
        w.prefills = w.n = 1;
        w.patience = row[k].patience;
        w.before = fail_prompt;
        w.before_ctx = &f;
        ts_world_run(&w, 5);
        int ms = (int)(w.got[0].ended / 1000000);
        cr_expect_eq(w.got[0].terminal, 1);
        cr_expect_eq(w.got[0].status, -EHOSTDOWN);
        cr_expect(f.count >= row[k].tries_least && f.count <= row[k].tries_most, "case %d: %d tries", (int)k, f.count);
        cr_expect_lt(ms, row[k].ms_most, "case %d: after %d ms and %d tries", (int)k, ms, f.count);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

/* ---- the Router alone ---- */

enum { MEMBERS = 6, ASKED = 400 };

/* Actors that only have an address, and one that reports their loads and asks. */
struct rig {
    struct act_runtime *rt;
    struct act_engine e;
    struct act_router_arg arg;
    struct act_b_load load[MEMBERS];
    struct act_key chain[5];
    int n_chain;
    bool done;                                                    /* each request is over before the next one asks */
    enum { NO_KEEPER, KEEPER, KEEPER_LEFT, KEEPER_AGAIN } keeper; /* a kv node, before the first request */
    int asked, answered, status;
    int prefill[ASKED], decode[ASKED];
    struct act_timer timer;
};

static int idle_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    (void)self, (void)state, (void)m, (void)count;
    return 0;
}

static const struct act_behaviour idle_behaviour = {.name = "idle", .receive = idle_receive};

static int index_of(const struct act_addr *list, int n, struct act_addr who)
{
    int i = 0;
    while (i < n && !act_addr_equal(list[i], who))
        i++;
    return i < n ? i : -1;
}

static void ask_router(struct act_self *self, struct rig *g)
{
    struct act_msg m;
    size_t bytes;
    cr_assert_eq(act_msg_new(ACT_ROUTE, g->e.router, (size_t)g->n_chain * sizeof *g->chain, &m), 0);
    if (g->n_chain)
        memcpy(act_msg_tail(&m, &bytes), g->chain, (size_t)g->n_chain * sizeof *g->chain);
    m.request = (uint64_t)++g->asked;
    *act_p_route(&m) = (struct act_p_route){.ids = 100, .max_tokens = 60, .blocks = (uint32_t)g->n_chain};
    cr_assert_eq(act_request(self, &m), 0);
}

static void report_all(struct act_self *self, struct rig *g)
{
    for (int i = 0; i < g->e.n_prefill + g->e.n_decode; i++) {
        bool prefill = i < g->e.n_prefill;
        struct act_msg m;
        cr_assert_eq(act_msg_new(ACT_LOAD, g->e.router, 0, &m), 0);
        *act_p_load(&m) = (struct act_p_load){.who = prefill ? g->e.prefill[i] : g->e.decode[i - g->e.n_prefill],
                                              .role = prefill ? CFG_ROLE_PREFILL : CFG_ROLE_DECODE,
                                              .sequence = 1};
        *act_b_load(&m) = g->load[i];
        cr_assert_eq(act_send(self, &m), 0);
    }
}

static void tell_keeper(struct act_self *self, struct rig *g, uint16_t peer, bool up)
{
    const struct act_node_actor kv = {.kind = ACT_NODE_KV, .addr = {.peer = peer, .index = 1, .generation = 1}};
    struct act_msg m = act_msg_make(ACT_NODE_DOWN, g->e.router);
    size_t bytes;
    if (up) {
        cr_assert_eq(act_msg_new(ACT_NODE_UP, g->e.router, sizeof kv, &m), 0);
        memcpy(act_msg_tail(&m, &bytes), &kv, sizeof kv);
        *act_p_node_up(&m) = (struct act_p_node_up){.node = 7, .peer = peer, .roles = CFG_ROLE_KV, .actors = 1};
    } else {
        *act_p_node_down(&m) = (struct act_p_node_down){.node = 7, .peer = peer};
    }
    cr_assert_eq(act_send(self, &m), 0);
}

static void tell_keepers(struct act_self *self, struct rig *g)
{
    if (g->keeper)
        tell_keeper(self, g, 3, true);
    if (g->keeper == KEEPER_AGAIN)
        tell_keeper(self, g, 4, true);
    if (g->keeper > KEEPER)
        tell_keeper(self, g, 3, false);
}

static int asker_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct rig *g = *(struct rig **)state;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_TIMER) {
            report_all(self, g);
            tell_keepers(self, g);
            ask_router(self, g);
        }
        if (m[i].type != ACT_ROUTED)
            continue;
        const struct act_b_routed *b = act_b_routed(&m[i]);
        g->status = act_p_routed(&m[i])->status;
        g->prefill[g->answered] = index_of(g->e.prefill, g->e.n_prefill, b->prefill);
        g->decode[g->answered++] = index_of(g->e.decode, g->e.n_decode, b->decode);
        if (g->done) {
            struct act_msg d = act_msg_make(ACT_ROUTE_DONE, g->e.router);
            d.request = m[i].request;
            *act_p_route_done(&d) = (struct act_p_route_done){.prefill = b->prefill, .decode = b->decode};
            act_send(self, &d);
        }
        if (g->asked < ASKED)
            ask_router(self, g);
    }
    return 0;
}

static int asker_start(struct act_self *self, void *state, const void *arg)
{
    struct rig *g = *(struct rig **)state = (struct rig *)arg;
    act_timer_after(self, &g->timer, 1000000, 0);
    return 0;
}

static const struct act_behaviour asker_behaviour = {
    .name = "asker", .state_size = sizeof(struct rig *), .start = asker_start, .receive = asker_receive};

static void spawn(struct rig *g, const struct act_behaviour *b, const void *arg, struct act_addr *out)
{
    struct cfg_error err;
    cr_assert_eq(act_runtime_spawn(g->rt, &(struct act_spawn){.behaviour = b, .arg = arg, .outbox = 16}, out, &err), 0,
                 "%s", err.msg);
}

static void run_router(struct rig *g, int prefills, int decodes, uint64_t seed)
{
    struct act_sim *sim;
    struct cfg_error err;
    struct act_addr asker;
    cr_assert_eq(act_sim_new(&(struct act_sim_config){.seed = seed}, &sim, &err), 0);
    struct act_config c = {.epoch = 1, .workers = 1};
    c.worker[0] = (struct act_worker_config){.name = "io", .kind = ACT_WORKER_ENGINE, .cpu = -1};
    cr_assert_eq(act_sim_add(sim, &c, &g->rt, &err), 0);
    for (g->e.n_prefill = 0; g->e.n_prefill < prefills; g->e.n_prefill++)
        spawn(g, &idle_behaviour, NULL, &g->e.prefill[g->e.n_prefill]);
    for (g->e.n_decode = 0; g->e.n_decode < decodes; g->e.n_decode++)
        spawn(g, &idle_behaviour, NULL, &g->e.decode[g->e.n_decode]);
    g->arg.engine = &g->e;
    g->arg.block_tokens = TS_WORLD_BLOCK;
    spawn(g, &act_router_behaviour, &g->arg, &g->e.router);
    spawn(g, &asker_behaviour, g, &asker);
    act_sim_run(sim, INT64_C(1000000000), 1000000);
    cr_assert_eq(g->answered, ASKED);
    act_sim_free(sim);
}

static void count(const int *at, int n, int members, int *out)
{
    memset(out, 0, (size_t)members * sizeof *out);
    for (int i = 0; i < n; i++) {
        cr_assert(at[i] >= 0 && at[i] < members, "request %d went to nobody", i);
        out[at[i]]++;
    }
}

Test(router, what_it_placed_itself_counts_at_once)
{
    static struct rig g;
    int n[MEMBERS];
    run_router(&g, 3, 3, 1); /* no request ends, one report at the beginning */
    count(g.prefill, ASKED, 3, n);
    for (int i = 0; i < 3; i++)
        cr_expect(n[i] > 120 && n[i] < 147, "Prefill %d got %d of %d", i, n[i], ASKED);
    count(g.decode, ASKED, 3, n);
    for (int i = 0; i < 3; i++)
        cr_expect(n[i] > 120 && n[i] < 147, "Decode %d got %d of %d", i, n[i], ASKED);
}

Test(router, reported_load_of_others_counts_too)
{
    static struct rig g;
    int n[MEMBERS];
    g.done = true;
    g.load[0].tokens_outstanding = 5000;
    g.load[2].running = 9; /* the first of two Decode actors */
    run_router(&g, 2, 2, 1);
    count(g.prefill, ASKED, 2, n);
    cr_expect_eq(n[1], ASKED, "%d went to the Prefill actor with 5000 tokens before it", n[0]);
    count(g.decode, ASKED, 2, n);
    cr_expect_eq(n[1], ASKED, "%d went to the Decode actor with 9 sequences", n[0]);
}

Test(router, a_decode_actor_without_room_is_left_alone)
{
    static struct rig g;
    int n[MEMBERS];
    g.done = true;
    g.load[1] = (struct act_b_load){.pages_free = 9, .pages_total = 100}; /* 160 tokens need ten pages */
    g.load[2] = (struct act_b_load){.pages_free = 100000, .pages_total = 100000, .running = 30};
    run_router(&g, 1, 2, 1);
    count(g.decode, ASKED, 2, n);
    cr_expect_eq(n[1], ASKED, "%d went to the Decode actor without room", n[0]);
}

Test(router, members_without_experts_get_something_where_there_are_no_others)
{
    static struct rig g;
    int n[MEMBERS];
    g.done = true;
    g.load[0].experts = g.load[2].experts = ACT_EXPERTS_MISSING; /* the first Prefill and the first Decode */
    g.load[1].tokens_outstanding = 5000;
    g.load[3].running = 9;
    run_router(&g, 2, 2, 1);
    count(g.prefill, ASKED, 2, n);
    cr_expect_eq(n[1], ASKED, "%d went to the Prefill actor without experts", n[0]);
    count(g.decode, ASKED, 2, n);
    cr_expect_eq(n[1], ASKED, "%d went to the Decode actor without experts", n[0]);
    static struct rig all;
    all.load[0].experts = all.load[1].experts = ACT_EXPERTS_MISSING;
    run_router(&all, 1, 1, 1);
    cr_expect_eq(all.status, 0);
    count(all.decode, ASKED, 1, n);
}

Test(router, draining_members_get_nothing_and_all_draining_says_so)
{
    static struct rig g;
    int n[MEMBERS];
    g.load[0].draining = 1;
    run_router(&g, 2, 1, 1);
    count(g.prefill, ASKED, 2, n);
    cr_expect_eq(n[1], ASKED);
    cr_expect_eq(g.status, 0);
    static struct rig all;
    all.load[0].draining = all.load[1].draining = 1;
    run_router(&all, 2, 1, 1);
    cr_expect_eq(all.status, -ESHUTDOWN, "status %d", all.status);
    static struct rig later; /* the last of the two roles that are looked at */
    later.load[1].draining = 1;
    run_router(&later, 1, 1, 1);
    cr_expect_eq(later.status, -ESHUTDOWN, "status %d", later.status);
    static struct rig none;
    run_router(&none, 0, 1, 1);
    cr_expect_eq(none.status, -EHOSTDOWN, "status %d", none.status);
}

Test(router, a_known_prefix_draws_a_prompt_until_the_load_outweighs_it)
{
    static struct rig g, load;
    int n[MEMBERS];
    for (int i = 0; i < 5; i++)
        memset(&g.chain[i], i + 1, sizeof g.chain[i]);
    g.n_chain = 5;
    g.done = g.arg.prefix = true;
    memcpy(load.chain, g.chain, sizeof g.chain);
    load.n_chain = 5;
    load.done = true;
    run_router(&g, 4, 1, 1);
    count(g.prefill, ASKED, 4, n);
    cr_expect_eq(n[g.prefill[0]], ASKED, "the prompt left the actor that knew it");
    run_router(&load, 4, 1, 1);
    count(load.prefill, ASKED, 4, n);
    for (int i = 0; i < 4; i++)
        cr_expect_gt(n[i], 0, "by load alone Prefill %d got nothing", i);
    static struct rig busy; /* nothing ends: 64 known tokens of 100 do not outweigh a queue */
    memcpy(busy.chain, g.chain, sizeof g.chain);
    busy.n_chain = 5;
    busy.arg.prefix = true;
    run_router(&busy, 4, 1, 1);
    count(busy.prefill, ASKED, 4, n);
    for (int i = 0; i < 4; i++)
        cr_expect_gt(n[i], 90, "with a queue Prefill %d got %d", i, n[i]);
}

static void open_costs(struct rig *g, bool common)
{
    for (int i = 0; i < 5; i++)
        memset(&g->chain[i], i + 1, sizeof g->chain[i]);
    g->n_chain = 5;
    g->arg.prefix = g->arg.cost = true;
    g->arg.common = common;
    for (int i = 0; i < 3; i++)
        g->load[i].token_ns = 1000;
}

/* By time, as routing = "auto" has it. 64 tokens of each prompt are known where the first one was. */
Test(router, by_cost_the_place_of_a_prefix_counts_as_much_as_reading_it_elsewhere_would_cost)
{
    static struct rig alone, common, slow;
    int n[MEMBERS];
    open_costs(&alone, false);
    alone.done = true;
    run_router(&alone, 3, 1, 1);
    count(alone.prefill, ASKED, 3, n);
    cr_expect_eq(n[alone.prefill[0]], ASKED, "without a common tier the prompt left the actor that knew it");
    open_costs(&common, true); /* nothing is known of reading: it is tried */
    common.done = true;
    run_router(&common, 3, 1, 1);
    count(common.prefill, ASKED, 3, n);
    for (int i = 0; i < 3; i++)
        cr_expect_gt(n[i], 90, "where all read the same, Prefill %d got %d", i, n[i]);
    open_costs(&slow, true);
    slow.done = true;
    for (int i = 0; i < 3; i++)
        slow.load[i].read_ns = 900;
    run_router(&slow, 3, 1, 1);
    count(slow.prefill, ASKED, 3, n);
    cr_expect_eq(n[slow.prefill[0]], ASKED, "reading costs nearly what computing does, and the prompt left");
}

/* As long as a kv node is there, what one Prefill has computed all can read. */
Test(router, by_cost_a_kv_node_makes_places_equal_while_it_is_there)
{
    static struct rig rig[KEEPER_AGAIN + 1];
    int n[MEMBERS];
    for (int k = KEEPER; k <= KEEPER_AGAIN; k++) {
        struct rig *g = &rig[k];
        open_costs(g, false);
        g->done = true;
        g->keeper = k;
        run_router(g, 3, 1, 1);
        count(g->prefill, ASKED, 3, n);
        if (k == KEEPER_LEFT)
            cr_expect_eq(n[g->prefill[0]], ASKED, "without a kv node the prompt left the actor that knew it");
        for (int i = 0; i < 3 && k != KEEPER_LEFT; i++)
            cr_expect_gt(n[i], 90, "case %d: where all read the same, Prefill %d got %d", k, i, n[i]);
    }
}

Test(router, by_cost_a_slow_prefill_gets_less)
{
    static struct rig g;
    int n[MEMBERS];
    open_costs(&g, false);
    g.n_chain = 0;
    g.load[0].token_ns = 3000;
    g.load[1].token_ns = 0;  /* not known: as the others */
    run_router(&g, 3, 1, 1); /* nothing ends, so all queues grow alike in time */
    count(g.prefill, ASKED, 3, n);
    cr_expect(n[0] > 60 && n[0] < 100, "the one at a third of the speed got %d of %d", n[0], ASKED);
    cr_expect_gt(n[2], n[1], "it was taken for one of average speed: %d, %d", n[1], n[2]);
}

Test(router, by_cost_a_queue_outweighs_a_known_prefix)
{
    static struct rig g;
    int n[MEMBERS];
    open_costs(&g, false);
    run_router(&g, 3, 1, 1);
    count(g.prefill, ASKED, 3, n);
    for (int i = 0; i < 3; i++)
        cr_expect_gt(n[i], 120, "Prefill %d got %d", i, n[i]);
}

/* ---- members of other nodes ---- */

/* Stands for the link: tells of a node, then of its new list, then of its end; the asker asks in between. */
struct directory {
    struct rig rig;
    struct act_addr link;
    int wanted, lost, watched, refused;
    struct act_timer timer;
};

static int member_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct directory *d = *(struct directory **)state;
    (void)self;
    for (int i = 0; i < count; i++)
        d->wanted += m[i].type == ACT_LOAD_WANTED;
    return 0;
}

static int member_start(struct act_self *self, void *state, const void *arg)
{
    (void)self;
    *(struct directory **)state = (struct directory *)arg;
    return 0;
}

static const struct act_behaviour member_behaviour = {
    .name = "member", .state_size = sizeof(void *), .start = member_start, .receive = member_receive};

static void tell_node(struct act_self *self, struct directory *d, int first)
{
    struct act_msg m;
    size_t bytes;
    const struct act_engine *e = &d->rig.e;
    int n = e->n_prefill - first + e->n_decode;
    cr_assert_eq(act_msg_new(ACT_NODE_UP, e->router, (size_t)n * sizeof(struct act_node_actor), &m), 0);
    act_p_node_up(&m)->actors = (uint32_t)n;
    struct act_node_actor *a = act_msg_tail(&m, &bytes);
    for (int i = first; i < e->n_prefill; i++)
        *a++ = (struct act_node_actor){.kind = ACT_NODE_PREFILL, .addr = e->prefill[i]};
    for (int i = 0; i < e->n_decode; i++)
        *a++ = (struct act_node_actor){.kind = ACT_NODE_DECODE, .addr = e->decode[i]};
    cr_assert_eq(act_send(self, &m), 0);
}

static int link_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct directory *d = *(struct directory **)state;
    for (int i = 0; i < count; i++) {
        d->watched += m[i].type == ACT_LINK_WATCH;
        if (m[i].type == ACT_NODES_WATCH) {
            tell_node(self, d, 0);
            act_timer_after(self, &d->timer, 1000000, 1);
        }
        if (m[i].type == ACT_ROUTED) {
            d->refused += act_p_routed(&m[i])->status != 0;
            d->rig.answered++;
        }
        d->lost += m[i].type == ACT_ROUTE_LOST;
        if (m[i].type != ACT_TIMER)
            continue;
        uint64_t at = act_p_timer(&m[i])->tag;
        if (at == 1) /* all are there */
            for (int k = 0; k < 8; k++)
                ask_router(self, &d->rig);
        else if (at == 2) /* one Prefill has left the list */
            tell_node(self, d, 1);
        else if (at == 3) { /* the node is gone */
            struct act_msg down = act_msg_make(ACT_NODE_DOWN, d->rig.e.router);
            act_send(self, &down);
        } else if (at == 4)
            ask_router(self, &d->rig);
        if (at < 4)
            act_timer_after(self, &d->timer, 1000000, at + 1);
    }
    return 0;
}

static const struct act_behaviour link_behaviour = {
    .name = "link", .state_size = sizeof(void *), .start = member_start, .receive = link_receive};

Test(router, members_of_other_nodes_come_and_go_with_the_directory)
{
    static struct directory d;
    struct act_sim *sim;
    struct cfg_error err;
    struct rig *g = &d.rig;
    cr_assert_eq(act_sim_new(&(struct act_sim_config){.seed = 1}, &sim, &err), 0);
    struct act_config c = {.epoch = 1, .workers = 1};
    c.worker[0] = (struct act_worker_config){.name = "io", .kind = ACT_WORKER_ENGINE, .cpu = -1};
    cr_assert_eq(act_sim_add(sim, &c, &g->rt, &err), 0);
    for (; g->e.n_prefill < 2; g->e.n_prefill++)
        spawn(g, &member_behaviour, &d, &g->e.prefill[g->e.n_prefill]);
    spawn(g, &member_behaviour, &d, &g->e.decode[g->e.n_decode++]);
    spawn(g, &link_behaviour, &d, &d.link);
    g->arg.block_tokens = TS_WORLD_BLOCK;
    g->arg.link = d.link;
    spawn(g, &act_router_behaviour, &g->arg, &g->e.router);
    act_sim_run(sim, INT64_C(1000000000), 100000);
    cr_expect_eq(d.wanted, 3, "%d members were asked for their load", d.wanted);
    cr_expect_eq(d.watched, 3);
    cr_expect_eq(g->answered, 9);
    cr_expect_eq(d.refused, 1, "without members nothing is placed");
    /* Four lose their Prefill, then all eight what they have left. */
    cr_expect(d.lost >= 12 && d.lost <= 20, "%d messages of lost places", d.lost);
    act_sim_free(sim);
}

/* ---- a move to a Decode that has ended in the meantime ---- */

struct mover {
    struct rig rig;
    int lost;
    uint64_t request;
    uint16_t attempt;
    struct act_addr who, to;
    struct act_timer timer;
};

static int mover_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct mover *v = *(struct mover **)state;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_TIMER) {
            ask_router(self, &v->rig);
        } else if (m[i].type == ACT_ROUTED) {
            struct act_msg moved = act_msg_make(ACT_ROUTE_MOVED, v->rig.e.router);
            cr_assert_eq(act_p_routed(&m[i])->status, 0);
            moved.request = m[i].request;
            moved.attempt = 7;
            act_p_route_moved(&moved)->decode = v->to;
            cr_assert_eq(act_send(self, &moved), 0);
        } else if (m[i].type == ACT_ROUTE_LOST) {
            v->lost++;
            v->request = m[i].request;
            v->attempt = m[i].attempt;
            v->who = act_p_route_lost(&m[i])->who;
        }
    }
    return 0;
}

static int mover_start(struct act_self *self, void *state, const void *arg)
{
    struct mover *v = *(struct mover **)state = (struct mover *)arg;
    act_timer_after(self, &v->timer, 1000000, 0);
    return 0;
}

static const struct act_behaviour mover_behaviour = {
    .name = "mover", .state_size = sizeof(struct mover *), .start = mover_start, .receive = mover_receive};

/* The request hears of it under the attempt that it has there: any other it would take for an older one's. */
Test(router, a_request_that_moved_to_a_member_that_is_gone_has_lost_its_place)
{
    static struct mover v;
    struct act_sim *sim;
    struct cfg_error err;
    struct rig *g = &v.rig;
    struct act_addr mover;
    cr_assert_eq(act_sim_new(&(struct act_sim_config){.seed = 1}, &sim, &err), 0);
    struct act_config c = {.epoch = 1, .workers = 1};
    c.worker[0] = (struct act_worker_config){.name = "io", .kind = ACT_WORKER_ENGINE, .cpu = -1};
    cr_assert_eq(act_sim_add(sim, &c, &g->rt, &err), 0);
    spawn(g, &idle_behaviour, NULL, &g->e.prefill[g->e.n_prefill++]);
    spawn(g, &idle_behaviour, NULL, &g->e.decode[g->e.n_decode++]);
    g->arg.engine = &g->e;
    g->arg.block_tokens = TS_WORLD_BLOCK;
    spawn(g, &act_router_behaviour, &g->arg, &g->e.router);
    v.to = (struct act_addr){.generation = 1, .index = 99};
    spawn(g, &mover_behaviour, &v, &mover);
    act_sim_run(sim, INT64_C(1000000000), 100000);
    cr_expect_eq(v.lost, 1);
    cr_expect_eq(v.request, 1);
    cr_expect_eq(v.attempt, 7, "of attempt %d", v.attempt);
    cr_expect(act_addr_equal(v.who, v.to));
    act_sim_free(sim);
}

/* ---- members that fall silent ---- */

enum { SILENT_MS = 100, EACH = 8 };

/* Two Prefill actors of other nodes, which exist by their addresses and reports only; the first one says nothing from
 * 50 ms to 450 ms. */
struct silence {
    struct rig rig;
    struct act_addr link;
    struct act_timer ask, report;
    uint32_t sequence;
    int lost, of_the_other, reason, turn, wanted;
    int64_t lost_at;
    int placed[3][2]; /* asked at 20 ms, 250 ms, 600 ms: requests at each of the two */
};

static void report_one(struct act_self *self, struct silence *q, int i)
{
    struct act_msg m;
    cr_assert_eq(act_msg_new(ACT_LOAD, q->rig.e.router, 0, &m), 0);
    *act_p_load(&m) =
        (struct act_p_load){.who = q->rig.e.prefill[i], .role = CFG_ROLE_PREFILL, .sequence = ++q->sequence};
    cr_assert_eq(act_send(self, &m), 0);
}

static int silence_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct silence *q = *(struct silence **)state;
    struct act_engine *e = &q->rig.e;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_NODES_WATCH) {
            struct act_msg up;
            size_t bytes;
            for (int k = 0; k < 2; k++) {
                cr_assert_eq(act_msg_new(ACT_NODE_UP, e->router, sizeof(struct act_node_actor), &up), 0);
                *act_p_node_up(&up) = (struct act_p_node_up){.peer = e->prefill[k].peer, .actors = 1};
                *(struct act_node_actor *)act_msg_tail(&up, &bytes) =
                    (struct act_node_actor){.kind = ACT_NODE_PREFILL, .addr = e->prefill[k]};
                cr_assert_eq(act_send(self, &up), 0);
            }
            act_timer_after(self, &q->ask, 20000000, 1);
            act_timer_after(self, &q->report, 10000000, 2);
        } else if (m[i].type == ACT_LOAD_WANTED) { /* as the route to the members */
            q->wanted += act_addr_equal(m[i].dst, e->prefill[0]) && act_now(self) > 50000000;
        } else if (m[i].type == ACT_TIMER && act_p_timer(&m[i])->tag == 1) {
            for (int k = 0; k < EACH; k++)
                ask_router(self, &q->rig);
            if (q->turn < 2)
                act_timer_after(self, &q->ask, q->turn ? 350000000 : 230000000, 1);
            q->turn++;
        } else if (m[i].type == ACT_TIMER) {
            bool silent = act_now(self) > 50000000 && act_now(self) < 450000000;
            for (int k = silent; k < 2; k++)
                report_one(self, q, k);
            act_timer_after(self, &q->report, 10000000, 2);
        } else if (m[i].type == ACT_ROUTED && !act_p_routed(&m[i])->status) {
            q->placed[q->turn - 1][act_addr_equal(act_b_routed(&m[i])->prefill, e->prefill[1])]++;
        } else if (m[i].type == ACT_ROUTE_LOST) {
            q->lost++;
            q->of_the_other += !act_addr_equal(act_p_route_lost(&m[i])->who, e->prefill[0]);
            q->reason = act_p_route_lost(&m[i])->reason;
            q->lost_at = act_now(self);
        }
    }
    return 0;
}

static const struct act_behaviour silence_behaviour = {
    .name = "link", .state_size = sizeof(void *), .start = member_start, .receive = silence_receive};

/* The engine of a node may hang while its connections stand: whoever waits for it learns so from its silence, nothing
 * more is sent there, and it is used again when it speaks again. Those at the other node notice nothing. */
Test(router, a_silent_member_loses_its_requests_and_is_used_again_when_it_speaks)
{
    static struct silence q;
    struct act_sim *sim;
    struct cfg_error err;
    struct rig *g = &q.rig;
    cr_assert_eq(act_sim_new(&(struct act_sim_config){.seed = 1}, &sim, &err), 0);
    struct act_config c = {.epoch = 1, .workers = 1};
    c.worker[0] = (struct act_worker_config){.name = "io", .kind = ACT_WORKER_ENGINE, .cpu = -1};
    cr_assert_eq(act_sim_add(sim, &c, &g->rt, &err), 0);
    spawn(g, &idle_behaviour, NULL, &g->e.decode[0]);
    struct act_engine own = {.n_decode = 1};
    own.decode[0] = g->e.decode[0];
    for (int k = 0; k < 2; k++) {
        uint16_t number;
        cr_assert_eq(act_peer_number(g->rt, (uint16_t)(2 + k), 1, &number), 0);
        g->e.prefill[k] = (struct act_addr){.generation = 1, .peer = number, .index = 1};
    }
    spawn(g, &silence_behaviour, &q, &q.link);
    for (int k = 0; k < 2; k++)
        cr_assert_eq(act_peer_route(g->rt, (uint16_t)g->e.prefill[k].peer, q.link), 0);
    g->arg = (struct act_router_arg){
        .engine = &own, .link = q.link, .block_tokens = TS_WORLD_BLOCK, .silent_ns = SILENT_MS * INT64_C(1000000)};
    spawn(g, &act_router_behaviour, &g->arg, &g->e.router);
    act_sim_run(sim, INT64_C(800000000), 1000000);
    cr_assert_gt(q.placed[0][0], 1);
    cr_assert_gt(q.placed[0][1], 1);
    cr_expect_eq(q.lost, q.placed[0][0], "%d of %d learn of it", q.lost, q.placed[0][0]);
    cr_expect_eq(q.of_the_other, 0);
    cr_expect_eq(q.reason, -ETIMEDOUT);
    cr_expect(q.wanted >= 1 && q.wanted <= 3, "it is asked %d times", q.wanted);
    cr_expect(q.lost_at > 140000000 && q.lost_at < 190000000, "at %d ms", (int)(q.lost_at / 1000000));
    cr_expect(q.placed[1][0] == 0 && q.placed[1][1] == EACH, "%d are placed at the silent one", q.placed[1][0]);
    cr_expect_gt(q.placed[2][0], 1, "it speaks and is not used");
    act_sim_free(sim);
}
