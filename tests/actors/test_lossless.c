/* Speculation changes no text: the planner in the counterexample of the DSpark paper (arXiv 2607.05147, appendix A),
 * and the engine's actors under changing plans, through parking, cancels, restarts of steps. */
#include "tests/harness.h"

#include "actors/recipe.h"
#include "actors/plan.h"
#include "model/reject.h"
#include "tests/support/engine_world.h"

/* ---- appendix A: two tokens A and B, target .7/.3, drafter .5/.5. Steps of 1, 2 and 3 rows run at speeds 1, .5 and
 * .45. The first draft survives with .8; the second with .72 behind A and not at all behind B. ---- */

enum { ROUNDS = 40000 };

enum decider { DECIDE_LAGGED, DECIDE_EARLY_STOP, DECIDE_IN_HINDSIGHT };

struct shares {
    double a, a_offered, offered; /* of A in all rounds, of A in those that offered a draft, of these in all */
};

/* three: speed of three rows. */
static struct shares shares_with(enum decider how, double three)
{
    const float p[] = {0.7f, 0.3f}, q[] = {0.5f, 0.5f};
    struct act_steptime t;
    act_steptime_init(&t, 2);
    t.padded = true;
    for (int rows = 1; rows <= 3; rows++) {
        const double speed[] = {1, 0.5, three};
        act_steptime_add(&t.plain, rows, 1 / speed[rows - 1]);
        act_steptime_add(&t.full, rows, 1 / speed[rows - 1]);
    }
    act_steptime_add(&t.draft, 1, 1e-9);
    struct act_plan_options o = {.mode = ACT_PLAN_DYNAMIC,
                                 .length = 2,
                                 .budget = how == DECIDE_EARLY_STOP ? ACT_PLAN_EARLY_STOP : ACT_PLAN_LAGGED,
                                 .probe_share = 0.2};
    struct act_plan plan;
    struct act_plan_memory memory = {0};
    int a = 0, offered = 0, both = 0;
    cr_assert_eq(act_plan_init(&plan, &o, 2, 1, &t), 0);
    for (int round = 0; round < ROUNDS; round++) {
        struct act_plan_request r = {.memory = &memory, .cap = 2};
        int32_t draft = mdl_reject_draft(q, 2, 1, round, 0);
        act_plan_draft(&plan, &r, 1, 0);
        r.drafted = r.draft;
        r.confidence[0] = 0.8f;
        r.confidence[1] = draft == 0 ? 0.9f : 0;
        act_plan_split(&plan, &r, 1);
        int offer = r.offer;
        if (how == DECIDE_IN_HINDSIGHT) {
            const float survival[] = {0.8f, 0.8f * r.confidence[1]};
            offer = act_plan_best(&plan, survival, &(int){2}, 1, 0).budget;
        }
        bool is_a = mdl_reject_choose(p, offer > 0 ? q : NULL, draft, 2, 1, round) == 0;
        a += is_a;
        both += is_a && offer > 0;
        offered += offer > 0;
    }
    act_plan_free(&plan);
    return (struct shares){(double)a / ROUNDS, offered ? (double)both / offered : 0, (double)offered / ROUNDS};
}

static struct shares shares_of(enum decider how)
{
    return shares_with(how, 0.45);
}

Test(lossless, a_budget_from_earlier_blocks_keeps_the_distribution)
{
    struct shares s = shares_of(DECIDE_LAGGED);
    cr_assert(s.offered > 0.03 && s.offered < 0.9, "%.3f of the rounds offered a draft", s.offered);
    cr_assert_float_eq(s.a, 0.7, 0.01);
    cr_assert_float_eq(s.a_offered, 0.7, 0.03, "%.3f", s.a_offered);
}

/* Three rows that are a little faster: in the mean two drafts pay, so every round offers them, also where this block
 * says that its second one will not be kept. With this very block in view none would be offered then. */
Test(lossless, a_block_has_no_say_in_its_own_budget)
{
    struct shares s = shares_with(DECIDE_LAGGED, 0.52);
    cr_assert_gt(s.offered, 0.9, "%.3f of the rounds offered a draft", s.offered);
    cr_assert_float_eq(s.a, 0.7, 0.01, "%.3f", s.a);
    s = shares_with(DECIDE_IN_HINDSIGHT, 0.52);
    cr_assert_float_eq(s.a, 0.85, 0.01, "%.3f", s.a);
}

/* Two rows alone do not pay, so it stops before it could see what three would bring. */
Test(lossless, early_stop_keeps_the_distribution)
{
    struct shares s = shares_of(DECIDE_EARLY_STOP);
    cr_assert_float_eq(s.a, 0.7, 0.01);
}

/* The barrier removed on purpose: the budget is the best in view of this very block. */
Test(lossless, a_budget_from_the_block_itself_would_not)
{
    struct shares s = shares_of(DECIDE_IN_HINDSIGHT);
    cr_assert_float_eq(s.a, 0.85, 0.01);
}

/* ---- the engine under changing plans ---- */

/* Tables in which every number of drafts is best at some confidence; so the plan changes from step to step. */
static void plan_dynamically(struct ts_world *w, uint64_t seed)
{
    struct act_engine *e = &w->e;
    uint32_t u[4];
    mdl_random(seed, 1, 0, u);
    e->limits.draft = e->m->cfg->draft_block;
    e->plan = (struct act_plan_options){.mode = ACT_PLAN_DYNAMIC,
                                        .length = e->limits.draft,
                                        .budget = seed % 3 == 2 ? ACT_PLAN_EARLY_STOP : ACT_PLAN_LAGGED,
                                        .probe_share = 0.05};
    act_steptime_init(&e->steptime, e->limits.draft);
    for (int n = 1; n <= 24; n++) {
        act_steptime_add(&e->steptime.plain, n, 1000 + (100 + u[0] % 400) * n);
        act_steptime_add(&e->steptime.full, n, 1000 + (100 + u[1] % 400) * n);
    }
    act_steptime_add(&e->steptime.draft, 1, 10 + u[2] % 300);
    e->steptime.pick_ns = u[3] % 40;
    e->steptime.padded = seed % 2;
}

Test(lossless, changing_plans_change_no_text)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct ts_world w;
        ts_world_open(&w, 64, 3);
        plan_dynamically(&w, seed);
        ts_world_requests(&w, 10, (unsigned)seed);
        ts_world_run(&w, seed);
        for (int i = 0; i < w.n; i++)
            ts_world_check_same(&w, i);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

/* Little memory: sequences are parked between rounds and drafts give way to a page that is not there. */
Test(lossless, changing_plans_in_little_memory)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct ts_world w;
        ts_world_open(&w, 14, 2);
        plan_dynamically(&w, seed);
        w.e.limits.lease = 1;
        ts_world_requests(&w, 12, (unsigned)seed);
        for (int i = 0; i < w.n; i++)
            w.wanted[i].max_new = TS_WORLD_NEW;
        ts_world_run(&w, seed);
        for (int i = 0; i < w.n; i++)
            ts_world_check_same(&w, i);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

/* Requests go away in the middle of a block, while others beside them draft. */
Test(lossless, changing_plans_beside_cancels)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct ts_world w;
        ts_world_open(&w, 40, 2);
        plan_dynamically(&w, seed);
        ts_world_requests(&w, 12, (unsigned)seed);
        for (int i = 0; i < w.n; i += 2)
            w.wanted[i].cancel = w.wanted[i].start + rand() % 4000000;
        ts_world_run(&w, seed);
        for (int i = 1; i < w.n; i += 2)
            ts_world_check_same(&w, i);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

/* A Decode actor dies in the middle of its blocks; its requests go on with the next one, with the tokens they have. In
 * exact mode that changes no token; a bounded replay over prompt and output is another function. */
Test(lossless, changing_plans_through_the_death_of_a_decoder)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct ts_world w;
        ts_world_open(&w, 64, 2);
        plan_dynamically(&w, seed);
        w.e.limits.replay = 0;
        w.decodes = 2;
        w.restart = true;
        ts_world_requests(&w, 8, (unsigned)seed);
        for (int i = 0; i < w.n; i++)
            w.wanted[i].max_new = TS_WORLD_NEW;
        w.kill[w.n_kills++] = (struct ts_kill){.at = 2000000 + (int64_t)(seed * 300000), .role = CFG_ROLE_DECODE};
        ts_world_run(&w, seed);
        for (int i = 0; i < w.n; i++)
            ts_world_check_same(&w, i);
        ts_world_close(&w);
    }
}

/* Everything that is said about a token is the target's: the same log-probabilities as without a draft, bit for bit,
 * under any plan, beside cancels in the middle of blocks and through parking. */
Test(lossless, changing_plans_change_no_log_probability)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct ts_world w;
        ts_world_open(&w, seed % 2 ? 64 : 14, 2);
        plan_dynamically(&w, seed);
        w.e.limits.lease = seed % 2 ? 2 : 1;
        ts_world_requests(&w, 10, (unsigned)seed);
        for (int i = 0; i < w.n; i++) {
            w.wanted[i].logprobs = i % 3 < 2;
            w.wanted[i].cancel = i % 5 ? 0 : w.wanted[i].start + rand() % 4000000;
        }
        ts_world_run(&w, seed);
        for (int i = 0; i < w.n; i++)
            if (!w.wanted[i].cancel)
                ts_world_check_same(&w, i);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

/* ---- across processes ---- */

/* Prompts that arrive while blocks of others are being verified, places and pages that run short, cancels. */
Test(lossless, changing_plans_behind_a_hand_off)
{
    static const enum mdl_handoff_form forms[] = {MDL_HANDOFF_FULL, MDL_HANDOFF_ENCODER};
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct ts_world w;
        ts_world_open(&w, 64, 2);
        plan_dynamically(&w, seed);
        w.e.limits.lease = 1;
        ts_world_split(&w, seed > 2 ? 14 : 64, forms[seed % 2]);
        ts_world_requests(&w, 10, (unsigned)seed);
        for (int i = 0; i < w.n; i++) {
            w.wanted[i].logprobs = i % 2;
            w.wanted[i].cancel = i % 5 ? 0 : w.wanted[i].start + rand() % 4000000;
        }
        ts_world_run(&w, seed);
        for (int i = 0; i < w.n; i++)
            if (!w.wanted[i].cancel)
                ts_world_check_same(&w, i);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

/* Sequences that move to another process in the middle of their blocks, into other company and another plan. */
Test(lossless, changing_plans_while_sequences_move)
{
    int moved = 0;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct ts_world w;
        ts_world_open(&w, 64, 2);
        plan_dynamically(&w, seed);
        w.e.limits.streams = 8;
        w.cost[TS_PART_DECODE] = 100000;
        ts_world_split(&w, 64, MDL_HANDOFF_FULL);
        ts_world_add_other(&w, 64);
        ts_world_requests(&w, 8, (unsigned)seed);
        for (int i = 0; i < w.n; i++) {
            w.wanted[i].max_new = 2 * TS_WORLD_NEW;
            w.wanted[i].start += 1000000;
            w.wanted[i].logprobs = i % 2;
        }
        w.kill[w.n_kills++] = (struct ts_kill){
            .at = 60000000 + (int64_t)seed * 10000000, .role = CFG_ROLE_KV, .drain = true, .other = seed % 2};
        ts_world_run(&w, seed);
        for (int i = 0; i < w.n; i++) {
            ts_world_check_same(&w, i);
            moved += w.got[i].place.moved;
        }
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
    cr_expect_gt(moved, 0);
}

/* Draft state travels: with a fixed plan every request has as many drafts made and kept as in one process, behind a
 * hand-off and through a move. */
Test(lossless, acceptance_is_the_same_with_and_without_disaggregation)
{
    enum { N = 8 };
    static const enum mdl_handoff_form forms[] = {MDL_HANDOFF_FULL, MDL_HANDOFF_ENCODER};
    int drafted[N], accepted[N], moved = 0, sum = 0;
    for (int kind = 0; kind < 4; kind++) { /* one process; two, in each form; moved */
        struct ts_world w;
        ts_world_open(&w, 96, 2);
        w.e.limits.streams = N;
        w.e.limits.lease = 24; /* a page that comes late costs a draft */
        w.cost[TS_PART_DECODE] = 100000;
        if (kind)
            ts_world_split(&w, 96, forms[kind == 2]);
        if (kind == 3) {
            ts_world_add_other(&w, 96);
            w.kill[w.n_kills++] = (struct ts_kill){.at = 60000000, .role = CFG_ROLE_KV, .drain = true};
        }
        ts_world_requests(&w, N, 3);
        for (int i = 0; i < N; i++) {
            w.wanted[i].max_new = 40;
            w.wanted[i].start += 1000000;
        }
        ts_world_run(&w, 4);
        for (int i = 0; i < N; i++) {
            ts_world_check_same(&w, i);
            if (!kind) {
                drafted[i] = w.got[i].drafted;
                accepted[i] = w.got[i].accepted;
                sum += accepted[i];
            }
            cr_expect_eq(w.got[i].drafted, drafted[i], "kind %d, request %d: %d drafts, %d in one process", kind, i,
                         w.got[i].drafted, drafted[i]);
            cr_expect_eq(w.got[i].accepted, accepted[i], "kind %d, request %d: %d kept, %d in one process", kind, i,
                         w.got[i].accepted, accepted[i]);
            moved += w.got[i].place.moved;
        }
        ts_world_close(&w);
    }
    cr_expect_gt(moved, 0);
    cr_expect_gt(sum, 0, "no draft was ever kept");
}

/* Ids that end a text do so where the plain run meets them, not where a draft that is not kept happens to be one. */
Test(lossless, drafts_stop_no_text)
{
    enum { N = 12 };
    int ended = 0;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct ts_world w;
        int length[N];
        static int32_t want[N][256];
        ts_world_open(&w, 64, 2);
        plan_dynamically(&w, seed);
        ts_world_requests(&w, N, (unsigned)seed);
        for (int i = 0; i < N; i++) {
            struct ts_wanted *q = &w.wanted[i];
            q->max_new = TS_WORLD_NEW;
            ts_world_plain(&w, q, NULL, want[i]);
            /* The last ones of the text, and others that it has not. */
            for (q->n_stop = 0; q->n_stop < 8; q->n_stop++)
                q->stop[q->n_stop] = q->n_stop < 2 ? want[i][TS_WORLD_NEW - 1 - q->n_stop] : q->n_stop * 7 + i;
            for (length[i] = 0; length[i] < TS_WORLD_NEW; length[i]++) {
                bool stops = false;
                for (int k = 0; k < q->n_stop; k++)
                    stops |= want[i][length[i]] == q->stop[k];
                if (stops)
                    break;
            }
            ended += length[i] > 4;
            length[i] += length[i] < TS_WORLD_NEW;
        }
        ts_world_run(&w, seed);
        for (int i = 0; i < N; i++) {
            cr_assert_eq(w.got[i].terminal, 1);
            cr_assert_eq(w.got[i].n, length[i], "seed %d, request %d: %d tokens of %d", (int)seed, i, w.got[i].n,
                         length[i]);
            cr_assert_eq(memcmp(w.got[i].ids, want[i], (size_t)length[i] * sizeof(int32_t)), 0);
            cr_assert_eq(w.got[i].finish, ACT_FINISH_STOP);
        }
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
    cr_expect_gt(ended, 0);
}

/* ---- rejection ---- */

/* Drafts that were made and not offered leave the target's own draw behind them, not what is left of it without them:
 * with no row for any draft the text is that without drafts. */
Test(lossless, drafts_that_are_not_offered_reject_nothing)
{
    enum { N = 8 };
    static struct ts_outcome plain[N];
    int drafted = 0;
    for (int made = 0; made < 2; made++) {
        struct ts_world w;
        ts_world_open(&w, 64, 2);
        w.e.rejection = true;
        w.e.plan = made ? (struct act_plan_options){.mode = ACT_PLAN_FIXED, .length = 3, .max_rows = 1}
                        : (struct act_plan_options){.mode = ACT_PLAN_OFF};
        ts_world_requests(&w, N, 3);
        for (int i = 0; i < N; i++)
            w.wanted[i].temperature = 1;
        ts_world_run(&w, 5);
        for (int i = 0; i < N; i++) {
            cr_assert_eq(w.got[i].terminal, 1);
            cr_assert_eq(w.got[i].n, w.wanted[i].max_new);
            drafted += made ? w.got[i].drafted : 0;
            cr_assert_eq(w.got[i].accepted, 0);
            if (made)
                cr_assert_eq(memcmp(w.got[i].ids, plain[i].ids, (size_t)w.got[i].n * sizeof(int32_t)), 0,
                             "request %d: other tokens", i);
            plain[i] = w.got[i];
        }
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
    cr_expect_gt(drafted, 0);
}

/* By rejection a seed's text depends on the plan; greedy requests beside it do not, and everyone gets all his tokens.
 */
Test(lossless, rejection_beside_greedy)
{
    struct ts_world w;
    ts_world_open(&w, 64, 2);
    plan_dynamically(&w, 1);
    w.e.rejection = true;
    ts_world_requests(&w, 12, 3);
    ts_world_run(&w, 5);
    for (int i = 0; i < w.n; i++) {
        cr_assert_eq(w.got[i].terminal, 1);
        cr_assert_eq(w.got[i].n, w.wanted[i].max_new);
        if (w.wanted[i].temperature <= 0)
            ts_world_check_same(&w, i);
    }
    ts_world_check_baseline(&w);
    ts_world_close(&w);
}

/* ---- no drafts ---- */

/* What the shards are asked. */
static bool count_dispatches(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                             int *fail)
{
    (void)who, (void)self, (void)fail;
    *(int *)w->before_ctx += m->type == ACT_EXPERT_DISPATCH;
    return false;
}

enum { NO_DRAFTER, OFF, PLANNED, FIXED, KINDS };

static void without_drafts(int requests, uint64_t *trace, int *asked)
{
    for (int kind = 0; kind < KINDS; kind++) {
        struct ts_world w;
        int drafted = 0;
        ts_world_open(&w, 64, 2);
        w.e.limits.draft = kind == NO_DRAFTER ? 0 : w.e.limits.draft;
        w.e.plan.mode = kind == PLANNED ? ACT_PLAN_DYNAMIC : kind == FIXED ? ACT_PLAN_FIXED : ACT_PLAN_OFF;
        w.e.plan.length = w.e.limits.draft;
        act_steptime_init(&w.e.steptime, w.e.limits.draft);
        for (int n = 1; n <= 64; n *= 2) {
            act_steptime_add(&w.e.steptime.plain, n, 1000 + n);
            act_steptime_add(&w.e.steptime.full, n, 1000 + n);
        }
        act_steptime_add(&w.e.steptime.draft, 1, 1e9); /* never pays */
        w.before = count_dispatches;
        w.before_ctx = &asked[kind];
        ts_world_requests(&w, requests, 3);
        for (int i = 0; i < w.n; i++)
            w.wanted[i].max_new = TS_WORLD_NEW;
        trace[kind] = ts_world_run(&w, 5);
        for (int i = 0; i < w.n; i++) {
            ts_world_check_same(&w, i);
            drafted += w.got[i].drafted;
            cr_expect(kind == FIXED || w.got[i].steps == w.got[i].n - 1);
        }
        cr_expect(kind == FIXED ? drafted > 0 : drafted == 0, "kind %d: %d drafts", kind, drafted);
        ts_world_close(&w);
    }
}

/* A depth of 0 costs what a plain step costs: the whole course of the world, message by message, is that without
 * speculation, and the shards are asked for nothing more than where there is no drafter. (That the drafter itself does
 * not run: model/test_decode.) */
Test(lossless, a_plan_without_drafts_is_a_plain_step)
{
    for (int requests = 1; requests <= 8; requests += 7) {
        uint64_t trace[KINDS];
        int asked[KINDS] = {0};
        without_drafts(requests, trace, asked);
        cr_expect_eq(asked[PLANNED], asked[OFF], "%d messages to the shards, %d without speculation", asked[PLANNED],
                     asked[OFF]);
        cr_expect_eq(trace[PLANNED], trace[OFF], "another course than without speculation");
        cr_expect_neq(asked[FIXED], asked[OFF]);
        /* Several meet in other batches where there are other pages to be had. */
        if (requests == 1)
            cr_expect_eq(asked[OFF], asked[NO_DRAFTER], "%d messages to the shards, %d without a drafter", asked[OFF],
                         asked[NO_DRAFTER]);
    }
}
