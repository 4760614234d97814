/* group_sync in the simulation: two Decode processes with different step times, of which one leads. */
#include "tests/harness.h"

#include "tests/support/engine_world.h"

enum { REQUESTS = 8 };

/* In the first process, which leads, drafting never pays; in the second one it always does. */
static void open_world(struct ts_world *w, bool sync)
{
    ts_world_open(w, 96, 2);
    w->e.limits.replay = 0;
    w->e.limits.streams = REQUESTS;
    w->e.limits.lease = 24;
    w->restart = true;
    w->cost[TS_PART_DECODE] = 100000;
    w->e.plan = (struct act_plan_options){.mode = ACT_PLAN_DYNAMIC, .length = w->e.limits.draft};
    w->e.group_sync = sync;
    act_steptime_init(&w->e.steptime, w->e.limits.draft);
    for (int n = 1; n <= 64; n *= 2) {
        act_steptime_add(&w->e.steptime.plain, n, 1000 + n);
        act_steptime_add(&w->e.steptime.full, n, 1000 + n);
    }
    act_steptime_add(&w->e.steptime.draft, 1, 1);
    ts_world_split(w, 96, MDL_HANDOFF_FULL);
    ts_world_add_other(w, 96);
    act_steptime_add(&w->far.e.steptime.draft, 1, 1e9);
    w->far.e.node = 1;
    w->other.e.node = 2;
    ts_world_requests(w, REQUESTS, 3);
    for (int i = 0; i < w->n; i++) {
        w->wanted[i].max_new = 40;
        w->wanted[i].start = 1000000 + i * 1000;
    }
}

/* Drafts of the requests that ran in the second process. */
static int drafts(const struct ts_world *w, int *requests)
{
    int sum = 0;
    *requests = 0;
    for (int i = 0; i < w->n; i++)
        if (act_addr_equal(w->got[i].place.decode, w->other.landing)) {
            sum += w->got[i].drafted;
            ++*requests;
        }
    return sum;
}

static void check_all(struct ts_world *w)
{
    for (int i = 0; i < w->n; i++)
        ts_world_check_same(w, i);
    ts_world_check_baseline(w);
}

static bool lose_figures(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                         int *fail)
{
    (void)who, (void)self, (void)fail;
    bool it = m->type == ACT_GROUP_BUDGET || m->type == ACT_GROUP_COUNT;
    *(int *)w->before_ctx += it;
    return it;
}

Test(group, members_follow_the_leader_and_none_waits_for_him)
{
    int alone, together, lost, n, figures = 0;
    struct ts_world w;
    open_world(&w, false);
    ts_world_run(&w, 5);
    check_all(&w);
    alone = drafts(&w, &n);
    cr_assert_gt(n, 1, "%d requests in the second process", n);
    cr_assert_gt(alone, 20 * n, "only %d drafts of %d requests", alone, n);
    ts_world_close(&w);

    open_world(&w, true);
    ts_world_run(&w, 5);
    check_all(&w);
    together = drafts(&w, &n);
    cr_assert_gt(n, 1);
    cr_expect_lt(together, alone / 4, "%d drafts after the leader said none, %d alone", together, alone);
    ts_world_close(&w);

    open_world(&w, true); /* nothing of the leader's arrives: everybody plans for himself */
    w.before = lose_figures;
    w.before_ctx = &figures;
    ts_world_run(&w, 5);
    check_all(&w);
    lost = drafts(&w, &n);
    cr_expect_gt(figures, 0);
    cr_expect_gt(lost, 20 * n, "%d drafts of %d requests", lost, n);
    ts_world_close(&w);
}

/* ---- figures ---- */

/* Tells the second process, the member, what the test says in place of the leader. */
struct told {
    int depth;
    double share;
    int figures;
};

static bool tell_otherwise(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                           int *fail)
{
    struct told *t = w->before_ctx;
    (void)self, (void)fail;
    if (m->type != ACT_GROUP_BUDGET || who->index < TS_OTHER)
        return false;
    act_p_group_budget(m)->depth = (uint16_t)t->depth;
    act_p_group_budget(m)->share = (uint32_t)(65536 * t->share);
    t->figures++;
    return false;
}

/* A member drafts as deep as he is told, and of the drafts verifies the share that he is told, whatever pays here. */
Test(group, members_verify_the_share_that_they_are_told)
{
    static const double shares[] = {0, 1, 2, 3};
    double offered[4] = {0};
    for (int k = 0; k < 4; k++) {
        struct ts_world w;
        struct told told = {3, shares[k], 0};
        int steps = 0, drafted, n;
        open_world(&w, true);
        w.before = tell_otherwise;
        w.before_ctx = &told;
        ts_world_run(&w, 5);
        check_all(&w);
        drafted = drafts(&w, &n);
        for (int i = 0; i < w.n; i++)
            if (act_addr_equal(w.got[i].place.decode, w.other.landing)) {
                steps += w.got[i].steps;
                offered[k] += w.got[i].offered;
            }
        cr_assert(told.figures > 0 && steps > 0);
        cr_expect_gt(drafted, 2 * steps, "%d drafts in %d steps", drafted, steps);
        /* Before the first figure he plans for himself, and at its end a text has no use for so many. */
        cr_expect_float_eq(offered[k] / steps, shares[k], 0.5, "share %g: %.2f drafts per step", shares[k],
                           offered[k] / steps);
        ts_world_close(&w);
    }
}

/* What the member says to the leader. */
struct heard {
    bool lose;
    int most; /* requests */
};

static bool listen(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m, int *fail)
{
    struct heard *h = w->before_ctx;
    (void)who, (void)self, (void)fail;
    if (m->type != ACT_GROUP_COUNT)
        return false;
    int count = (int)act_p_group_count(m)->requests;
    h->most = count > h->most ? count : h->most;
    return h->lose;
}

/* Drafts pay for the one request of the leader, up to four rows, and not for the several of the member. Having heard of
 * these he plans for them. */
Test(group, the_leader_plans_for_the_largest_member)
{
    double drafted[2];
    for (int lose = 0; lose < 2; lose++) {
        struct ts_world w;
        struct heard heard = {.lose = lose};
        int steps = 0, n;
        open_world(&w, true);
        for (int i = 0; i < 2; i++) {
            struct act_engine *e = i ? &w.other.e : &w.far.e;
            act_steptime_init(&e->steptime, e->limits.draft);
            for (int k = 1; k <= 64; k++) {
                double ns = k <= 4 ? 1000 + k : 8000 * (k - 3);
                act_steptime_add(&e->steptime.plain, k, ns);
                act_steptime_add(&e->steptime.full, k, ns);
            }
            act_steptime_add(&e->steptime.draft, 1, 1);
        }
        w.far.e.limits.streams = 1;
        w.before = listen;
        w.before_ctx = &heard;
        ts_world_run(&w, 5);
        check_all(&w);
        cr_assert_gt(heard.most, 2, "the member had %d requests at a time", heard.most);
        drafted[lose] = drafts(&w, &n);
        for (int i = 0; i < w.n; i++)
            if (act_addr_equal(w.got[i].place.decode, w.other.landing))
                steps += w.got[i].steps;
        cr_assert_gt(steps, 0);
        drafted[lose] /= steps;
        ts_world_close(&w);
    }
    cr_expect_lt(drafted[0], drafted[1] / 2, "%.2f drafts per step, %.2f when the leader does not hear of the member",
                 drafted[0], drafted[1]);
}

/* The leader ends and begins again; his requests go on, and so do the others. */
Test(group, the_leader_may_end)
{
    for (int k = 1; k <= 4; k++) {
        struct ts_world w;
        open_world(&w, true);
        w.kill[w.n_kills++] = (struct ts_kill){.at = k * 20000000, .role = k % 2 ? CFG_ROLE_DECODE : CFG_ROLE_KV};
        ts_world_run(&w, (uint64_t)k);
        check_all(&w);
        ts_world_close(&w);
    }
}
