/* The planner against brute force, against its promises (what a plan may depend on), and against every fixed length in
 * virtual time. */
#include "tests/harness.h"

#include <errno.h>

#include "actors/plan.h"
#include "model/sampler.h"

enum { BLOCK = 5, MOST = 64 };

static uint64_t state;

static double unit(void)
{
    return mdl_random_unit(7, state++, 0);
}

static int below(int n)
{
    return (int)(unit() * n);
}

/* Time of rows that rises in steps of `tile` rows, and by little within one. */
static struct act_steptime stairs(int tile, double flat, double step, double draft, double pick)
{
    struct act_steptime t;
    act_steptime_init(&t, BLOCK);
    t.padded = true;
    for (int k = 1; k <= 40; k++) {
        act_steptime_add(&t.plain, k * tile, flat + step * k);
        act_steptime_add(&t.full, k * tile, flat + step * k);
    }
    act_steptime_add(&t.draft, 1, draft);
    act_steptime_add(&t.draft, MOST, 3 * draft);
    t.pick_ns = pick;
    return t;
}

static struct act_steptime smooth(double flat, double row, double draft, double pick)
{
    struct act_steptime t;
    act_steptime_init(&t, BLOCK);
    for (int n = 1; n <= 512; n *= 2) {
        act_steptime_add(&t.plain, n, flat + row * n);
        act_steptime_add(&t.full, n, flat + 0.8 * row * n);
        if (n <= MOST)
            act_steptime_add(&t.draft, n, draft + 0.1 * draft * n);
    }
    t.pick_ns = pick;
    return t;
}

static struct act_plan_options dynamic_options(void)
{
    return (struct act_plan_options){.mode = ACT_PLAN_DYNAMIC, .length = BLOCK};
}

static struct act_plan new_plan(struct act_plan_options o, struct act_steptime *t)
{
    struct act_plan p;
    cr_assert_eq(act_plan_init(&p, &o, BLOCK, MOST, t), 0);
    return p;
}

/* Confidences with ties, zeros, ones and numbers that are none. */
static float odd_confidence(void)
{
    static const float odd[] = {0, 1, 0.5f, 0.5f, 0.25f, -1, 2, NAN};
    return below(3) ? (float)unit() : odd[below(8)];
}

static float clean(float c)
{
    return c >= 0 ? (c < 1 ? c : 1) : 0;
}

/* ---- the split ---- */

static void fill_requests(struct act_plan_request *r, struct act_plan_memory *m, int n)
{
    for (int i = 0; i < n; i++) {
        memset(&m[i], 0, sizeof m[i]);
        r[i] = (struct act_plan_request){.memory = &m[i], .cap = below(BLOCK + 2)};
    }
}

static void draw_confidences(struct act_plan_request *r, int n)
{
    for (int i = 0; i < n; i++) {
        r[i].drafted = r[i].draft;
        for (int k = 0; k < BLOCK; k++)
            r[i].confidence[k] = odd_confidence();
    }
}

static double offered_sum(const struct act_plan_request *r, int n, const int *offer)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double a = 1;
        for (int k = 0; k < offer[i]; k++)
            sum += a *= (double)clean(r[i].confidence[k]);
    }
    return sum;
}

/* The largest sum of survivals with `budget` drafts, over all ways to give them out. */
static double best_sum(const struct act_plan_request *r, int n, int budget)
{
    int offer[4] = {0};
    double best = 0;
    for (;;) {
        int total = 0;
        for (int i = 0; i < n; i++)
            total += offer[i];
        if (total == budget) {
            double sum = offered_sum(r, n, offer);
            best = sum > best ? sum : best;
        }
        int i = 0;
        while (i < n && offer[i] == r[i].drafted)
            offer[i++] = 0;
        if (i == n)
            return best;
        offer[i]++;
    }
}

Test(plan, the_split_is_the_best_one)
{
    struct act_steptime t = smooth(100, 10, 5, 1);
    struct act_plan p = new_plan(dynamic_options(), &t);
    struct act_plan_request r[4];
    struct act_plan_memory m[4];
    for (int round = 0; round < 400; round++) {
        int n = 1 + below(4), total = 0, drafted = 0, offer[4];
        fill_requests(r, m, n);
        act_plan_draft(&p, r, n, 0);
        for (int i = 0; i < n; i++)
            r[i].draft = r[i].cap < BLOCK ? r[i].cap : BLOCK;
        draw_confidences(r, n);
        p.choice.budget = below(n * BLOCK + 1);
        act_plan_split(&p, r, n);
        for (int i = 0; i < n; i++) {
            cr_assert(r[i].offer >= 0 && r[i].offer <= r[i].drafted);
            total += offer[i] = r[i].offer;
            drafted += r[i].drafted;
        }
        int budget = p.choice.budget < drafted ? p.choice.budget : drafted;
        double want = best_sum(r, n, budget);
        cr_assert_float_eq(offered_sum(r, n, offer), want, 1e-5, "round %d: %g of %g", round, offered_sum(r, n, offer),
                           want);
        /* Drafts that cannot come true are left out, everything else of the budget is used. */
        cr_assert_le(total, budget);
        for (int i = 0; i < n && total < budget; i++)
            if (r[i].offer < r[i].drafted) {
                double a = 1;
                for (int k = 0; k <= r[i].offer; k++)
                    a *= (double)clean(r[i].confidence[k]);
                cr_assert_lt(a, 1e-5, "a draft of survival %g was left out of a budget that had room", a);
            }
    }
    act_plan_free(&p);
}

/* That draft k is verified may depend on confidences up to k, since these were there before draft k was drawn, and on
 * nothing later of the same request. */
static void check_causality(enum act_plan_budget budget)
{
    struct act_steptime t = smooth(100, 30, 5, 1);
    struct act_plan_options o = dynamic_options();
    o.budget = budget;
    struct act_plan p = new_plan(o, &t);
    int changed = 0;
    for (int round = 0; round < 4000; round++) {
        struct act_plan_request r[6], other[6];
        struct act_plan_memory m[6], m2[6];
        int n = 1 + below(6), at = below(n), k = below(BLOCK);
        fill_requests(r, m, n);
        act_plan_draft(&p, r, n, 0);
        for (int i = 0; i < n; i++)
            r[i].draft = r[i].cap < BLOCK ? r[i].cap : BLOCK;
        draw_confidences(r, n);
        memcpy(other, r, sizeof r);
        memcpy(m2, m, sizeof m);
        for (int i = 0; i < n; i++)
            other[i].memory = &m2[i];
        for (int j = k + 1; j < BLOCK; j++)
            other[at].confidence[j] = odd_confidence();
        if (budget == ACT_PLAN_LAGGED)
            p.choice.budget = below(n * BLOCK + 1);
        struct act_plan q = p;
        act_plan_split(&p, r, n);
        act_plan_split(&q, other, n);
        cr_assert_eq(r[at].offer > k, other[at].offer > k, "round %d: draft %d of request %d", round, k, at);
        changed += r[at].offer != other[at].offer;
    }
    cr_assert_gt(changed, 20, "the confidences that were changed should matter for later drafts");
    act_plan_free(&p);
}

Test(plan, a_draft_is_offered_whatever_comes_behind_it)
{
    check_causality(ACT_PLAN_LAGGED);
}

Test(plan, early_stop_looks_at_no_later_draft)
{
    check_causality(ACT_PLAN_EARLY_STOP);
}

/* Depth and budget are settled before the block is there. */
Test(plan, the_budget_does_not_see_the_block)
{
    struct act_steptime t = smooth(100, 10, 5, 1);
    struct act_plan p = new_plan(dynamic_options(), &t);
    struct act_plan_request r[3];
    struct act_plan_memory m[3];
    fill_requests(r, m, 3);
    for (int i = 0; i < 3; i++)
        r[i].cap = BLOCK;
    act_plan_draft(&p, r, 3, 0);
    struct act_plan_choice before = p.choice;
    cr_assert_gt(before.budget, 0);
    for (int i = 0; i < 3; i++) {
        r[i].drafted = r[i].draft;
        for (int k = 0; k < BLOCK; k++)
            r[i].confidence[k] = 0.1f;
    }
    act_plan_split(&p, r, 3);
    cr_assert_eq(p.rows, 3 + before.budget, "poor confidences of this block do not shorten it");
    for (int round = 0; round < 400; round++) {
        act_plan_draft(&p, r, 3, 0);
        for (int i = 0; i < 3; i++)
            r[i].drafted = r[i].draft;
        act_plan_split(&p, r, 3);
    }
    cr_assert_eq(p.choice.budget, 0, "but they do shorten the next ones");
    act_plan_free(&p);
}

/* ---- depth and budget ---- */

/* Expected tokens per ns of the best way to offer, over every depth and every way. */
static double brute_speed(const struct act_steptime *t, const float *survival, const int *cap, int n)
{
    double best = 0;
    for (int depth = 0; depth <= BLOCK; depth++) {
        int offer[4] = {0}, drafts = 0;
        for (int i = 0; i < n; i++)
            drafts += cap[i] < depth ? cap[i] : depth;
        for (;;) {
            double tokens = n;
            int rows = n;
            for (int i = 0; i < n; i++)
                for (int k = 0; k < offer[i]; k++, rows++)
                    tokens += (double)survival[i * BLOCK + k];
            double s = tokens / (act_steptime_draft_ns(t, n, drafts) + act_steptime_verify_ns(t, n, rows, 0));
            best = s > best ? s : best;
            int i = 0;
            while (i < n && offer[i] == (cap[i] < depth ? cap[i] : depth))
                offer[i++] = 0;
            if (i == n)
                break;
            offer[i]++;
        }
    }
    return best;
}

Test(plan, depth_and_budget_are_the_best_of_all)
{
    int skipped = 0, deep = 0;
    for (int round = 0; round < 300; round++) {
        struct act_steptime t = round % 2
                                    ? stairs(1 + below(5), 50 * unit(), 5 + 20 * unit(), 30 * unit() + 0.1, 3 * unit())
                                    : smooth(100 * unit(), 1 + 20 * unit(), 30 * unit() + 0.1, 3 * unit());
        struct act_plan p = new_plan(dynamic_options(), &t);
        float survival[4 * BLOCK];
        int cap[4], n = 1 + below(4);
        for (int i = 0; i < n; i++) {
            float a = 1;
            cap[i] = below(BLOCK + 1);
            for (int k = 0; k < BLOCK; k++)
                survival[i * BLOCK + k] = a *= clean(odd_confidence());
        }
        struct act_plan_choice c = act_plan_best(&p, survival, cap, n, 0);
        double want = brute_speed(&t, survival, cap, n);
        cr_assert_float_eq(c.tokens / c.ns / want, 1, 1e-6, "round %d: depth %d, budget %d", round, c.depth, c.budget);
        skipped += c.depth == 0;
        deep += c.depth > 2;
        act_plan_free(&p);
    }
    cr_assert(skipped > 10 && deep > 10, "%d skipped, %d deep", skipped, deep);
}

/* A step of the staircase that one more row only reaches, several climb: a search that stops at the first loss stays
 * below it. */
Test(plan, a_cliff_does_not_hold_the_search)
{
    struct act_steptime t = stairs(4, 10, 6, 0.1, 0);
    struct act_plan_options o = dynamic_options();
    float survival[4 * BLOCK];
    int cap[4];
    for (int i = 0; i < 4 * BLOCK; i++)
        survival[i] = 0.9f;
    for (int i = 0; i < 4; i++)
        cap[i] = BLOCK;
    struct act_plan p = new_plan(o, &t);
    struct act_plan_choice c = act_plan_best(&p, survival, cap, 4, 0);
    cr_assert_ge(c.budget, 4, "a whole step is worth it, its first row alone is not");
    act_plan_free(&p);
    o.budget = ACT_PLAN_EARLY_STOP;
    p = new_plan(o, &t);
    struct act_plan_request r[4];
    struct act_plan_memory m[4];
    fill_requests(r, m, 4);
    for (int i = 0; i < 4; i++)
        r[i].cap = BLOCK;
    act_plan_draft(&p, r, 4, 0);
    for (int i = 0; i < 4; i++) {
        r[i].drafted = r[i].draft;
        for (int k = 0; k < BLOCK; k++)
            r[i].confidence[k] = k ? 1 : 0.9f;
    }
    act_plan_split(&p, r, 4);
    cr_assert_eq(p.rows, 4, "early stop does not climb");
    act_plan_free(&p);
}

Test(plan, rows_that_cost_nothing_are_taken_along)
{
    struct act_steptime t = stairs(8, 100, 1000, 1, 0);
    struct act_plan p = new_plan(dynamic_options(), &t);
    struct act_plan_request r[2];
    struct act_plan_memory m[2];
    fill_requests(r, m, 2);
    r[0].cap = r[1].cap = BLOCK;
    act_plan_draft(&p, r, 2, 0);
    cr_assert_eq(p.choice.budget, 6, "2 requests and 6 drafts fill 8 rows; budget %d", p.choice.budget);
    act_plan_free(&p);
}

Test(plan, caps_and_rows_bound_every_mode)
{
    for (int mode = ACT_PLAN_OFF; mode <= ACT_PLAN_DYNAMIC; mode++)
        for (int round = 0; round < 200; round++) {
            struct act_steptime t = smooth(1000, 1, 1, 0.1);
            struct act_plan_options o = {
                .mode = (enum act_plan_mode)mode, .length = 1 + below(BLOCK), .max_rows = 1 + below(20)};
            struct act_plan p = new_plan(o, &t);
            struct act_plan_request r[6];
            struct act_plan_memory m[6];
            int n = 1 + below(6), rows = n;
            fill_requests(r, m, n);
            act_plan_draft(&p, r, n, 0);
            for (int i = 0; i < n; i++) {
                cr_assert_le(r[i].draft, r[i].cap);
                cr_assert_le(r[i].draft, o.length);
                cr_assert(mode != ACT_PLAN_OFF || !r[i].draft);
            }
            draw_confidences(r, n);
            act_plan_split(&p, r, n);
            for (int i = 0; i < n; i++) {
                rows += r[i].offer;
                if (mode == ACT_PLAN_FIXED && o.max_rows >= n + n * BLOCK)
                    cr_assert_eq(r[i].offer, r[i].drafted);
            }
            cr_assert(rows == n || rows <= o.max_rows, "%d rows of %d", rows, o.max_rows);
            act_plan_free(&p);
        }
}

/* A step that lost an expert shard runs again from its start: one round, one block of each request. */
Test(plan, a_round_that_is_run_again_counts_once)
{
    struct act_steptime t = smooth(1000, 1, 1, 0);
    struct act_plan p = new_plan(dynamic_options(), &t);
    struct act_plan_memory memory[2] = {{0}};
    struct act_plan_request r[2] = {{.memory = &memory[0], .cap = BLOCK}, {.memory = &memory[1], .cap = BLOCK}};
    int offer[2], trimmed = 0;
    for (int round = 1; round <= 3; round++) {
        act_plan_draft(&p, r, 2, 0);
        for (int again = 0; again < 3; again++) {
            for (int i = 0; i < 2; i++) {
                r[i].drafted = r[i].draft;
                for (int k = 0; k < BLOCK; k++)
                    r[i].confidence[k] = i ? 0.9f : 0.001f;
            }
            act_plan_split(&p, r, 2);
            for (int i = 0; i < 2; i++) {
                cr_expect_eq(memory[i].n, round);
                cr_expect(!again || r[i].offer == offer[i]);
                offer[i] = r[i].offer;
            }
        }
        for (int i = 0; i < 2; i++)
            trimmed += r[i].drafted - r[i].offer;
        act_plan_done(&p, 1, 1000, true);
    }
    cr_expect_eq(p.counters.rounds, 3);
    cr_expect_eq(p.blocks_seen, 6);
    cr_expect_gt(trimmed, 0);
    cr_expect_eq(p.counters.trimmed, (uint64_t)trimmed);
    act_plan_free(&p);
}

/* A round beside a prompt, or one that was run twice, says nothing of what rounds take. */
Test(plan, a_disturbed_round_teaches_nothing)
{
    struct act_steptime t = smooth(1000, 10, 100, 1);
    struct act_plan p = new_plan(dynamic_options(), &t);
    struct act_plan_memory m = {0};
    struct act_plan_request r = {.memory = &m, .cap = BLOCK};
    for (int k = 0; k < 50; k++) {
        double before = act_steptime_verify_ns(&t, 1, 1, 0);
        act_plan_draft(&p, &r, 1, 0);
        r.drafted = r.draft;
        for (int j = 0; j < BLOCK; j++)
            r.confidence[j] = 0.5f;
        act_plan_split(&p, &r, 1);
        act_plan_done(&p, 1e4, 1e5, k >= 25);
        cr_expect_eq(act_steptime_verify_ns(&t, 1, 1, 0) > before, k >= 25, "round %d", k);
    }
    cr_expect_gt(p.counters.seen_ns, 24 * 1.1e5);
    cr_expect_lt(p.counters.seen_ns, 26 * 1.1e5);
    act_plan_free(&p);
}

Test(plan, refuses)
{
    struct act_steptime empty, t = smooth(1, 1, 1, 1);
    struct act_plan p;
    struct act_plan_options o = dynamic_options();
    act_steptime_init(&empty, BLOCK);
    cr_expect_eq(act_plan_init(&p, &o, BLOCK, MOST, NULL), -EINVAL, "nothing to weigh drafts against");
    cr_expect_eq(act_plan_init(&p, &o, BLOCK, MOST, &empty), -EINVAL);
    cr_expect_eq(act_plan_init(&p, &o, ACT_PLAN_BLOCK_MAX + 1, MOST, &t), -EINVAL);
    cr_expect_eq(act_plan_init(&p, &o, BLOCK, 0, &t), -EINVAL);
    o.mode = ACT_PLAN_FIXED;
    cr_expect_eq(act_plan_init(&p, &o, BLOCK, MOST, NULL), 0);
    act_plan_free(&p);
}

/* ---- in virtual time, against every fixed length ---- */

struct traffic {
    int requests;
    double mean, spread; /* of confidences; spread 0: all equal */
};

struct result {
    double tokens, ns;
    int switches; /* changes of depth or budget, probes apart */
    struct act_plan_counters counters;
};

/* True step times are the table's; each draft is kept with its stated confidence. */
static struct result run_traffic(struct act_plan_options o, struct act_steptime t, const struct traffic *f, int rounds)
{
    static struct act_plan_request r[MOST];
    static struct act_plan_memory m[MOST];
    const struct act_steptime truth = t;
    struct act_plan p = new_plan(o, &t);
    struct result out = {0};
    int depth = -1, budget = -1;
    uint64_t own = 1;
    memset(m, 0, sizeof m);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < f->requests; i++)
            r[i] = (struct act_plan_request){.memory = &m[i], .cap = BLOCK};
        act_plan_draft(&p, r, f->requests, 0);
        if (!p.probe) {
            out.switches += depth >= 0 && (depth != p.choice.depth || budget != p.choice.budget);
            depth = p.choice.depth;
            budget = p.choice.budget;
        }
        int drafts = 0, rows = f->requests, tokens = f->requests;
        for (int i = 0; i < f->requests; i++) {
            drafts += r[i].drafted = r[i].draft;
            for (int k = 0; k < BLOCK; k++) {
                double c = f->mean + f->spread * (2 * mdl_random_unit(1, own++, 1) - 1);
                r[i].confidence[k] = (float)(c < 0.02 ? 0.02 : c > 0.98 ? 0.98 : c);
            }
        }
        act_plan_split(&p, r, f->requests);
        for (int i = 0; i < f->requests; i++) {
            rows += r[i].offer;
            for (int k = 0; k < r[i].offer && mdl_random_unit(2, own++, 2) < (double)r[i].confidence[k]; k++)
                tokens++;
        }
        double draft_ns = act_steptime_draft_ns(&truth, f->requests, drafts),
               verify_ns = act_steptime_verify_ns(&truth, f->requests, rows, 0);
        double noise = 0.9 + 0.2 * mdl_random_unit(3, own++, 3);
        act_plan_done(&p, noise * draft_ns, noise * verify_ns, true);
        if (round >= rounds / 8) { /* the first rounds learn */
            out.tokens += tokens;
            out.ns += draft_ns + verify_ns;
        }
    }
    out.counters = p.counters;
    act_plan_free(&p);
    return out;
}

static void check_traffic(struct act_steptime t, const struct traffic *f, const char *what)
{
    struct act_plan_options o = dynamic_options();
    o.min_gain = 0.01;
    o.probe_share = 0.005;
    int rounds = f->requests < 4 ? 6000 : 800;
    struct result d = run_traffic(o, t, f, rounds);
    double best = 0;
    int best_length = 0;
    for (int length = 0; length <= BLOCK; length++) {
        struct act_plan_options fixed = {.mode = length ? ACT_PLAN_FIXED : ACT_PLAN_OFF, .length = length};
        struct result r = run_traffic(fixed, t, f, rounds);
        if (r.tokens / r.ns > best) {
            best = r.tokens / r.ns;
            best_length = length;
        }
    }
    cr_expect_gt(d.tokens / d.ns, 0.98 * best, "%s, %d requests, confidence %g +- %g: dynamic has %.4f of length %d",
                 what, f->requests, f->mean, f->spread, d.tokens / d.ns / best, best_length);
}

Test(plan, dynamic_is_never_below_the_best_fixed_length)
{
    static const double mean[] = {0.3, 0.6, 0.85};
    static const int requests[] = {1, 3, 16, 64};
    for (int m = 0; m < 3; m++)
        for (int n = 0; n < 4; n++)
            for (int spread = 0; spread < 2; spread++) {
                struct traffic f = {requests[n], mean[m], 0.4 * spread};
                check_traffic(smooth(1000, 20, 40, 5), &f, "rows are cheap");
                check_traffic(smooth(1000, 150, 200, 20), &f, "rows are dear");
                check_traffic(smooth(100, 100, 300, 60), &f, "drafts are dear");
                check_traffic(stairs(8, 400, 200, 50, 5), &f, "a staircase");
            }
}

/* Where drafts never pay, probes keep to their share of the time: what they cost above the best plan. Both kinds lie
 * far behind here, so that each has half of its half. */
Test(plan, probes_keep_to_their_share)
{
    static const double share[] = {0.0025, 0.005, 0.02};
    for (int i = 0; i < 3; i++) {
        struct act_steptime t = smooth(10, 100, 500, 60);
        struct act_plan_options o = dynamic_options();
        o.probe_share = share[i];
        o.min_gain = 0.01;
        struct traffic f = {4, 0.5, 0.2};
        struct result d = run_traffic(o, t, &f, 40000), off = run_traffic((struct act_plan_options){0}, t, &f, 40000);
        double lost = 1 - d.tokens / d.ns * off.ns / off.tokens;
        cr_expect(lost > 0.35 * share[i] && lost < 0.65 * share[i], "%.5f of the time for a share of %g", lost,
                  share[i]);
        cr_expect_gt(d.counters.probes, 5u, "%d probes", (int)d.counters.probes);
        cr_expect_gt(d.counters.skipped, d.counters.rounds * 9 / 10);
    }
}

/* What the table is held against is the batch that ran, also where it was not that of the chosen budget. */
Test(plan, expected_time_is_of_the_batch_that_ran)
{
    for (int way = 0; way < 3; way++) {
        struct act_steptime t = smooth(1000, way == 2 ? 150 : 30, 50, 5);
        struct act_plan_options o = dynamic_options();
        o.budget = way == 1 ? ACT_PLAN_EARLY_STOP : ACT_PLAN_LAGGED;
        struct act_plan p = new_plan(o, &t);
        struct act_plan_memory m[4] = {{0}};
        struct act_plan_request r[4];
        int left_out = 0;
        for (int round = 0; round < 60; round++) {
            for (int i = 0; i < 4; i++)
                r[i] = (struct act_plan_request){.memory = &m[i], .cap = BLOCK};
            act_plan_draft(&p, r, 4, 0);
            int budget = p.choice.budget, rows = 4, drafts = 0;
            for (int i = 0; i < 4; i++) {
                drafts += r[i].drafted = r[i].draft;
                for (int k = 0; k < BLOCK; k++)
                    r[i].confidence[k] = way == 2 && i < 3 && round % 2 ? 0 : 0.6f;
            }
            act_plan_split(&p, r, 4);
            for (int i = 0; i < 4; i++)
                rows += r[i].offer;
            left_out += rows < 4 + budget;
            double expected = p.counters.expected_ns, seen = p.counters.seen_ns,
                   draft_ns = act_steptime_draft_ns(&t, 4, drafts), verify_ns = act_steptime_verify_ns(&t, 4, rows, 0);
            act_plan_done(&p, draft_ns, verify_ns, true);
            cr_expect_float_eq(p.counters.expected_ns - expected, draft_ns + verify_ns, 1e-6);
            cr_expect_float_eq(p.counters.seen_ns - seen, draft_ns + verify_ns, 1e-6);
        }
        cr_expect(way == 0 || left_out > 0, "way %d", way);
        act_plan_free(&p);
    }
}

/* Only rounds whose drafts were all to be verified before the drafter had made them are a sample for a calibration. */
Test(plan, untrimmed_is_settled_before_the_block)
{
    struct act_steptime t = smooth(1000, 1, 1, 0.1);
    struct act_plan_memory m[2] = {{0}};
    struct act_plan_request r[2];
    for (int way = 0; way < 5; way++) {
        struct act_plan_options o = dynamic_options();
        o.mode = way == 3 ? ACT_PLAN_FIXED : way == 4 ? ACT_PLAN_OFF : ACT_PLAN_DYNAMIC;
        o.budget = way == 2 ? ACT_PLAN_EARLY_STOP : ACT_PLAN_LAGGED;
        struct act_plan p = new_plan(o, &t);
        for (int i = 0; i < 2; i++)
            r[i] = (struct act_plan_request){.memory = &m[i], .cap = BLOCK};
        act_plan_draft(&p, r, 2, 0);
        for (int i = 0; i < 2; i++) {
            r[i].drafted = r[i].draft;
            for (int k = 0; k < BLOCK; k++)
                r[i].confidence[k] = i ? 0 : 0.99f; /* even a draft that cannot come true is verified then */
        }
        if (way == 1)
            p.choice.budget--;
        act_plan_split(&p, r, 2);
        cr_expect_eq(p.untrimmed, way == 0 || way == 3, "way %d", way);
        cr_expect_eq(r[1].offer, p.untrimmed ? BLOCK : 0, "way %d", way);
        act_plan_free(&p);
    }
}

/* A plan of short blocks has not seen what lies behind their ends. It takes it to go on as before, rather than to be as
 * bad as what was assumed when nothing was known, and so finds out. */
Test(plan, depths_that_were_never_drafted_are_not_written_off)
{
    struct act_steptime t = smooth(1000, 100, 100, 5);
    struct act_plan p = new_plan(dynamic_options(), &t);
    struct act_plan_memory m[2] = {{0}};
    struct act_plan_request r[2] = {{.memory = &m[0], .cap = 2}, {.memory = &m[1], .cap = BLOCK}};
    for (int round = 0; round < 50; round++) {
        act_plan_draft(&p, r, 1, 0);
        r[0].drafted = r[0].draft;
        for (int k = 0; k < BLOCK; k++)
            r[0].confidence[k] = 0.97f;
        act_plan_split(&p, r, 1);
    }
    cr_expect_eq(p.choice.depth, 2, "more is of no use to this request");
    for (int k = 0; k < BLOCK; k++)
        cr_expect_float_eq(p.prior[k], pow(0.97, k + 1), 1e-3, "position %d: %g", k, p.prior[k]);
    r[0].cap = BLOCK;
    act_plan_draft(&p, r, 1, 0);
    cr_expect_eq(p.choice.depth, BLOCK, "%d", p.choice.depth);
    act_plan_free(&p);
}

/* What is known of a request goes with it: the other planner plans as this one would. Whatever else comes is refused.
 */
Test(plan, memory_travels)
{
    uint8_t bytes[ACT_PLAN_MEMORY_BYTES + 4];
    for (int round = 0; round < 200; round++) {
        struct act_steptime t = smooth(1000, 60, 100, 5);
        struct act_plan p = new_plan(dynamic_options(), &t);
        struct act_plan_memory m = {0}, there;
        struct act_plan_request r = {.memory = &m, .cap = BLOCK};
        for (int k = below(20); k > 0; k--) {
            r.cap = 1 + below(BLOCK);
            act_plan_draft(&p, &r, 1, 0);
            r.drafted = r.draft;
            for (int j = 0; j < BLOCK; j++)
                r.confidence[j] = odd_confidence();
            act_plan_split(&p, &r, 1);
        }
        size_t n = act_plan_memory_save(&m, bytes);
        cr_assert_leq(n, ACT_PLAN_MEMORY_BYTES);
        cr_assert_eq(act_plan_memory_load(bytes, n, &there), 0);
        cr_expect(there.n == m.n && there.name == 0, "%d of %d blocks", there.n, m.n);
        for (int k = 1; k <= m.n; k++) {
            int a = (m.next - k + ACT_PLAN_MEMORY) % ACT_PLAN_MEMORY,
                b = (there.next - k + ACT_PLAN_MEMORY) % ACT_PLAN_MEMORY;
            cr_assert_eq(m.depth[a], there.depth[b], "%d blocks ago", k);
            cr_assert_eq(memcmp(m.survival[a], there.survival[b], (size_t)m.depth[a] * sizeof(float)), 0);
        }
        /* Cut short, too long, or with a bit flipped: refused, or something that is well-formed again; never a crash.
         */
        for (size_t cut = 1; cut < n; cut++)
            cr_assert_eq(act_plan_memory_load(bytes, cut, &there), -EPROTO);
        cr_assert_eq(act_plan_memory_load(bytes, n + 4, &there), -EPROTO);
        for (int k = 0; k < 50; k++) {
            size_t at = (size_t)below((int)n);
            uint8_t flip = (uint8_t)(1 << below(8));
            bytes[at] ^= flip;
            if (!act_plan_memory_load(bytes, n, &there))
                for (int i = 0; i < there.n; i++)
                    for (int j = 0; j < there.depth[i]; j++)
                        cr_assert(there.survival[i][j] >= 0 && there.survival[i][j] <= 1);
            else
                cr_assert_eq(there.n, 0);
            bytes[at] ^= flip;
        }
        act_plan_free(&p);
    }
    struct act_plan_memory none;
    cr_expect_eq(act_plan_memory_load(NULL, 0, &none), 0, "of a sequence that never drafted");
    cr_expect_eq(none.n, 0);
}

/* While nothing is drafted a search serves some rounds, not for ever: what becomes cheap is noticed without a probe. */
Test(plan, a_search_is_not_kept_for_ever)
{
    struct act_steptime t = smooth(1000, 20, 4000, 5);
    struct act_plan p = new_plan(dynamic_options(), &t);
    struct act_plan_memory m = {0};
    struct act_plan_request r[1] = {{.memory = &m, .cap = BLOCK}};
    for (int round = 0; round < 40; round++) {
        act_plan_draft(&p, r, 1, 0);
        cr_assert_eq(p.choice.depth, 0, "a draft costs four rounds");
        act_plan_split(&p, r, 1);
    }
    t.draft_scale = 0.001;
    int rounds = 0;
    for (; rounds < 100 && !p.choice.depth; rounds++) {
        act_plan_draft(&p, r, 1, 0);
        act_plan_split(&p, r, 1);
    }
    cr_expect_leq(rounds, 17, "%d rounds until the cheap drafts were seen", rounds);
    act_plan_free(&p);
}

/* Times that scatter by a tenth and confidences that scatter, between choices of nearly equal worth: the plan keeps to
 * one, where without hysteresis it follows the noise. */
Test(plan, noise_does_not_make_the_plan_swing)
{
    static const struct {
        int requests, row;
    } near[] = {{1, 200}, {8, 200}, {8, 300}, {8, 400}};
    for (int i = 0; i < 4; i++) {
        struct act_steptime t = smooth(1000, near[i].row, 50, 10);
        struct act_plan_options o = dynamic_options();
        struct traffic f = {near[i].requests, 0.6, 0.2};
        struct result loose = run_traffic(o, t, &f, 4000);
        o.min_gain = 0.01;
        struct result held = run_traffic(o, t, &f, 4000);
        cr_expect_lt(held.switches, 8, "%d changes in 4000 rounds", held.switches);
        cr_expect_gt(loose.switches, 30, "case %d: %d changes without hysteresis", i, loose.switches);
    }
}

Test(plan, a_small_gain_changes_nothing)
{
    struct act_steptime t = smooth(400, 100, 50, 10);
    struct act_plan_options o = dynamic_options();
    struct act_plan_memory m;
    struct act_plan_request r;
    float survival[BLOCK];
    for (int held = 0; held < 2; held++) {
        o.min_gain = held ? 0.5 : 0;
        struct act_plan p = new_plan(o, &t);
        memset(&m, 0, sizeof m);
        for (int round = 0; round < 300; round++) {
            r = (struct act_plan_request){.memory = &m, .cap = BLOCK};
            act_plan_draft(&p, &r, 1, 0);
            r.drafted = r.draft;
            for (int k = 0; k < BLOCK; k++)
                r.confidence[k] = 0.6f;
            act_plan_split(&p, &r, 1);
        }
        float a = 1;
        for (int k = 0; k < BLOCK; k++)
            survival[k] = a *= 0.6f;
        struct act_plan_choice best = act_plan_best(&p, survival, &(int){BLOCK}, 1, 0);
        cr_assert_lt(best.budget, BLOCK);
        cr_assert_eq(p.choice.budget, held ? BLOCK : best.budget,
                     "the whole block is kept unless the gain is large; budget %d", p.choice.budget);
        act_plan_free(&p);
    }
}

/* ---- a figure from elsewhere ---- */

Test(plan, a_given_figure_is_used_as_far_as_it_can_be)
{
    struct act_steptime t = smooth(1000, 1, 1, 0.1); /* drafting is nearly free: alone it would take all */
    struct act_plan p = new_plan((struct act_plan_options){.mode = ACT_PLAN_DYNAMIC, .length = BLOCK}, &t);
    struct act_plan_memory memory[4] = {0};
    struct act_plan_request r[4];
    for (int i = 0; i < 4; i++)
        r[i] = (struct act_plan_request){.memory = &memory[i], .cap = i ? BLOCK : 1};
    act_plan_draft(&p, r, 4, 0);
    cr_expect_eq(p.choice.depth, BLOCK);
    const struct act_plan_given none = {0, 0}, some = {2, 0.75}, all = {100, 100};
    p.given = &none;
    act_plan_draft(&p, r, 4, 0);
    cr_expect_eq(p.choice.depth, 0);
    cr_expect_eq(r[3].draft, 0);
    p.given = &some;
    act_plan_draft(&p, r, 4, 0);
    cr_expect_eq(p.choice.depth, 2);
    cr_expect_eq(p.choice.budget, 3);
    cr_expect_eq(r[0].draft, 1, "a request has use for one");
    cr_expect_eq(r[3].draft, 2);
    for (int i = 0; i < 4; i++) {
        r[i].drafted = r[i].draft;
        for (int k = 0; k < BLOCK; k++)
            r[i].confidence[k] = 0.9f;
    }
    act_plan_split(&p, r, 4);
    cr_expect_eq(r[0].offer + r[1].offer + r[2].offer + r[3].offer, 3);
    p.given = &all;
    act_plan_draft(&p, r, 4, 0);
    cr_expect_eq(p.choice.budget, 3 * BLOCK + 1, "no more than there is use for");
    p.given = NULL;
    act_plan_draft(&p, r, 4, 0);
    cr_expect_eq(p.choice.budget, 3 * BLOCK + 1, "and by itself again");
    act_plan_free(&p);
}

/* A leader with few requests plans for the member that has many, whose steps all wait for. */
Test(plan, a_leader_plans_for_the_largest_member)
{
    struct act_steptime t = stairs(8, 100, 1000, 1, 0); /* up to eight rows are cheap */
    struct act_plan p = new_plan((struct act_plan_options){.mode = ACT_PLAN_DYNAMIC, .length = BLOCK}, &t);
    struct act_plan_memory memory = {0};
    struct act_plan_request r = {.memory = &memory, .cap = BLOCK};
    act_plan_draft(&p, &r, 1, 0);
    int alone = p.choice.budget;
    cr_expect_gt(alone, 1);
    p.scale = 8;
    act_plan_draft(&p, &r, 1, 0);
    cr_expect_lt(p.choice.budget, alone, "%d for eight times as many", p.choice.budget);
    act_plan_free(&p);
}
