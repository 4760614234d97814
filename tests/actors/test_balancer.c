/* The balancer in the simulation: roll-outs beside requests, whose tokens never change, and what becomes of them when
 * shards, sources or the balancer end. */
#include "tests/harness.h"

#include <errno.h>

#include "actors/eplb.h"
#include "tests/support/engine_world.h"

enum { MS = 1000000, LOG_MAX = 256 };

struct seen {
    int n;
    uint32_t version[LOG_MAX];
    double before[LOG_MAX], after[LOG_MAX];
    int moved[LOG_MAX], shards[LOG_MAX], sources[LOG_MAX];
    int on_shard[TS_WORLD_SHARDS]; /* experts of all layers, by the last map */
    /* What travelled, by type. */
    int counts, plans, switches, switched, retires;
    uint32_t dispatched; /* the newest map that a dispatch named */
    /* Shard `victim` fails at its plan number `at`, for good or not. */
    int victim, at, victim_plans;
    int end_balancer; /* at this switch of Decode; 0: never */
};

static void note(void *ctx, const struct act_balance *b)
{
    struct seen *s = ctx;
    if (s->n == LOG_MAX)
        return;
    s->version[s->n] = b->map->version;
    s->before[s->n] = b->before;
    s->after[s->n] = b->after;
    s->moved[s->n] = b->moved;
    s->shards[s->n] = b->shards;
    s->sources[s->n++] = b->sources;
    for (int i = 0; i < b->map->shards; i++) {
        s->on_shard[i] = 0;
        for (int l = 0; l < b->map->layers; l++)
            for (int e = 0; e < b->map->experts; e++)
                s->on_shard[i] += act_map_holds(b->map, l, i, e);
    }
}

static bool watch(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m, int *fail)
{
    struct seen *s = w->before_ctx;
    if (m->type == ACT_EXPERT_SWITCH && who->part == TS_PART_DECODE && ++s->switched == s->end_balancer)
        act_exit(self, w->e.experts.balancer, -EIO);
    s->plans += m->type == ACT_EXPERT_PLAN;
    s->switches += m->type == ACT_EXPERT_SWITCH;
    s->retires += m->type == ACT_EXPERT_RETIRE;
    if (m->type == ACT_EXPERT_DISPATCH && act_p_expert_dispatch(m)->map > s->dispatched)
        s->dispatched = act_p_expert_dispatch(m)->map;
    if (m->type == ACT_EXPERT_PLAN && who->index == s->victim && s->victim_plans++ == s->at)
        *fail = -EIO;
    return false;
}

static void open_balanced(struct ts_world *w, struct seen *s, int shards, uint64_t seed)
{
    ts_world_open(w, 60, shards);
    *s = (struct seen){.victim = -1};
    w->apart = true;
    w->link = (struct act_sim_fault){.delay_min = 20000, .delay_max = 200000, .copy = 10000};
    w->before = watch;
    w->before_ctx = s;
    w->balance = true;
    int slots = (w->m->cfg->n_experts + shards - 1) / shards + 1;
    w->balancer = (struct act_balancer_arg){.slots = slots,
                                            .interval_ns = 20 * MS,
                                            .deadline_ns = 50 * MS,
                                            .least_pairs = 200,
                                            .gain = 0.05,
                                            .changed = note,
                                            .ctx = s};
    w->e.experts.report_ns = 2 * MS;
    w->e.experts.limits.deadline_ns = 20 * MS;
    ts_world_requests(w, 14, (unsigned)seed);
    for (int i = 0; i < w->n; i++)
        w->wanted[i].start = i * 12 * (int64_t)MS;
}

static void check_all(struct ts_world *w, uint64_t seed)
{
    for (int i = 0; i < w->n; i++)
        cr_assert_eq(w->got[i].terminal, 1, "seed %d: request %d had %d ends", (int)seed, i, w->got[i].terminal);
    for (int i = 0; i < w->n; i++)
        ts_world_check_same(w, i);
    ts_world_check_baseline(w);
}

Test(balancer, maps_change_beside_requests_and_no_token_does)
{
    int changes = 0;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct ts_world w;
        struct seen s;
        open_balanced(&w, &s, 2 + (int)seed % 3, seed);
        ts_world_run(&w, seed);
        check_all(&w, seed);
        for (int i = 0; i < s.n; i++) {
            cr_assert_lt(s.after[i], s.before[i], "seed %d: map %u", (int)seed, s.version[i]);
            cr_assert(!i || s.version[i] > s.version[i - 1]);
            cr_assert_gt(s.moved[i], 0);
            cr_assert_eq(s.shards[i], w.e.experts.n);
            cr_assert_eq(s.sources[i], 2, "Prefill and Decode");
        }
        cr_assert_gt(s.n, 0, "seed %d: nothing was balanced", (int)seed);
        cr_assert_gt(s.dispatched, 1, "seed %d: no map was used", (int)seed);
        cr_assert_gt(s.retires, 0);
        changes += s.n;
        ts_world_close(&w);
    }
    cr_assert_lt(changes, 60, "%d changes: maps go back and forth", changes);
}

Test(balancer, a_dead_shard_has_nothing_in_the_next_map)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct ts_world w;
        struct seen s;
        open_balanced(&w, &s, 3, seed);
        s.victim = (int)seed % 3;
        s.at = (int)seed / 3 % 2;
        w.mortal = true;
        ts_world_run(&w, seed);
        check_all(&w, seed);
        cr_assert_gt(s.victim_plans, s.at, "seed %d: the shard never died", (int)seed);
        cr_assert_gt(s.n, 0);
        cr_assert_eq(s.on_shard[s.victim], 0, "seed %d: %d experts are on a dead shard", (int)seed,
                     s.on_shard[s.victim]);
        ts_world_close(&w);
    }
}

Test(balancer, a_shard_that_restarts_in_the_middle_of_a_roll_out_is_told_what_it_holds)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct ts_world w;
        struct seen s;
        open_balanced(&w, &s, 3, seed);
        s.victim = (int)seed % 3;
        s.at = (int)seed / 3 % 2;
        ts_world_run(&w, seed);
        check_all(&w, seed);
        cr_assert_gt(s.victim_plans, s.at, "seed %d: the shard never died", (int)seed);
        cr_assert_gt(s.n, 0);
        cr_assert_gt(s.on_shard[s.victim], 0);
        ts_world_close(&w);
    }
}

/* Lost plans, readies and switches: stages end at their deadlines. */
Test(balancer, lost_messages_cost_deadlines_and_no_token)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct ts_world w;
        struct seen s;
        open_balanced(&w, &s, 3, seed);
        w.link.lose = 3000;
        ts_world_run(&w, seed);
        check_all(&w, seed);
        ts_world_close(&w);
    }
}

/* The one that begins anew asks a source for its map: versions go on, and what is loaded stays where it is. */
Test(balancer, a_balancer_that_was_restarted_goes_on_from_the_map_in_use)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct ts_world w;
        struct seen s;
        open_balanced(&w, &s, 3, seed);
        s.end_balancer = 1;
        w.balancer.gain = 0.01;
        ts_world_run(&w, seed);
        check_all(&w, seed);
        cr_assert_ge(s.switched, 1);
        for (int i = 1; i < s.n; i++)
            cr_assert_gt(s.version[i], s.version[i - 1], "seed %d: map %u follows map %u", (int)seed, s.version[i],
                         s.version[i - 1]);
        cr_assert_gt(s.n, 0, "seed %d: the new one did nothing", (int)seed);
        cr_assert_gt(s.version[0], 2, "seed %d: the first version was used twice", (int)seed);
        ts_world_close(&w);
    }
}
