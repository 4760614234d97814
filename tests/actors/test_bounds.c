/* What the engine promises beside other work, in virtual time: the gap between a stream's tokens while prompts are
 * computed, and that cancels at any moment leave nothing behind. */
#include "tests/harness.h"

#include "actors/runtime/buffer.h"
#include "tests/support/engine_world.h"
#include "tests/support/less.h"

enum { US = 1000, MS = 1000 * US };

/* ---- gaps ---- */

enum { PIECE = 500 * US, SHARE = 20 * MS };

/* A stream, and from some time on long prompts, one after the other. Every call of an actor takes PIECE or less. */
static void open_gap_world(struct ts_world *w, int prompts)
{
    ts_world_open(w, 200, 2);
    w->e.limits.prefill_share_ns = SHARE;
    w->e.limits.streams = 8;
    w->in_turn = true;
    w->cost[TS_PART_EXPERT] = PIECE / 2;
    w->cost[TS_PART_DECODE] = PIECE / 10;
    w->cost[TS_PART_PREFILL] = PIECE;
    ts_world_requests(w, 1 + prompts, 3);
    for (int i = 0; i < w->n; i++) {
        w->wanted[i].n_prompt = i ? 150 + i : 8;
        w->wanted[i].max_new = i ? 1 : 150;
        w->wanted[i].start = i ? 100 * MS + i * MS : 0;
    }
}

/* The longest gap of the stream, and when the last prompt had its token. */
static int64_t longest_gap(struct ts_world *w, uint64_t seed, int64_t *prompts_end)
{
    ts_world_run(w, seed);
    for (int i = 0; i < w->n; i++)
        ts_world_check_same(w, i);
    ts_world_check_baseline(w);
    *prompts_end = 0;
    for (int i = 1; i < w->n; i++)
        *prompts_end = w->got[i].ended > *prompts_end ? w->got[i].ended : *prompts_end;
    return w->got[0].gap;
}

/* A round, the share, and what may be under way when the share ends: a phase of the prompts' step, its experts at one
 * layer, and the same for the decode actor's own pieces. */
static int64_t bound_of(const struct ts_world *w, int64_t alone)
{
    return alone + SHARE + 2 * PIECE + w->m->cfg->n_experts * w->cost[TS_PART_EXPERT];
}

static int64_t gap_alone(uint64_t seed)
{
    struct ts_world w;
    int64_t end;
    open_gap_world(&w, 0);
    int64_t alone = longest_gap(&w, seed, &end);
    ts_world_close(&w);
    return alone;
}

Test(bounds, prompts_stretch_the_gap_of_a_stream_by_their_share_and_no_more)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct ts_world w;
        int64_t end, alone = gap_alone(seed);
        open_gap_world(&w, 5);
        int64_t beside = longest_gap(&w, seed, &end);
        cr_assert_le(beside, bound_of(&w, alone),
                     "seed %d: %.2f ms without tokens, the bound is %.2f ms (a round: %.2f ms)", (int)seed,
                     (double)beside / MS, (double)bound_of(&w, alone) / MS, (double)alone / MS);
        cr_assert_gt(beside, alone + SHARE / 2, "the prompts did not get their share");
        cr_assert_lt(end, w.got[0].ended, "the prompts waited until the stream had ended");
        ts_world_close(&w);
    }
}

/* The bound is held by what the engine does for it: with prompts as urgent as streams it is broken. */
Test(bounds, prompts_that_do_not_give_way_break_the_bound)
{
    struct ts_world w;
    int64_t end, alone = gap_alone(1);
    open_gap_world(&w, 5);
    w.prefill_class = ACT_CLASS_URGENT;
    int64_t beside = longest_gap(&w, 1, &end);
    cr_assert_gt(beside, bound_of(&w, alone), "%.2f ms", (double)beside / MS);
    ts_world_close(&w);
}

/* ---- cancels ---- */

/* What a prompt asks of the experts, and how much of it after its cancel. */
struct asked {
    int64_t cancel;
    int all, after;
};

static bool count_asked(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                        int *fail)
{
    struct asked *a = w->before_ctx;
    (void)fail;
    if (who->part != TS_PART_EXPERT || m->type != ACT_EXPERT_DISPATCH)
        return false;
    a->all++;
    a->after += a->cancel && act_now(self) > a->cancel;
    return false;
}

/* A long prompt, and behind it another one that has to wait for it, which is cancelled at once. */
static void ask_long(struct ts_world *w, struct asked *a, bool another)
{
    ts_world_open(w, 40, 2);
    w->e.limits.replay = 0; /* every step has all layers */
    w->cost[TS_PART_PREFILL] = w->cost[TS_PART_EXPERT] = 20 * US;
    ts_world_requests(w, 1 + another, 4);
    w->e.limits.prefills = 1;
    if (another)
        w->wanted[1] = (struct ts_wanted){.n_prompt = 100,
                                          .max_new = 1,
                                          .start = w->wanted[0].start + 300 * US,
                                          .cancel = w->wanted[0].start + 600 * US};
    w->wanted[0].n_prompt = 168; /* seven steps */
    w->wanted[0].max_new = 1;
    w->wanted[0].cancel = a->cancel;
    w->before = count_asked;
    w->before_ctx = a;
    ts_world_run(w, 4);
}

/* What is computed of a cancelled prompt is the step that was under way. */
Test(bounds, a_cancelled_prompt_ends_with_its_step)
{
    enum { STEPS = 7, MOMENTS = 20 };
    struct ts_world w;
    struct asked whole = {0};
    ask_long(&w, &whole, false);
    int64_t start = w.wanted[0].start, took = w.got[0].ended - start;
    cr_assert_eq(w.e.limits.chunk * STEPS, w.wanted[0].n_prompt);
    ts_world_close(&w);
    for (int k = 1; k < MOMENTS; k++) {
        struct asked a = {.cancel = start + took * k / MOMENTS};
        ask_long(&w, &a, false);
        cr_assert_le(a.after, whole.all / STEPS + 2, "cancelled after %d of %d: %d more", a.all - a.after, whole.all,
                     a.after);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
    struct asked first = {0};
    ask_long(&w, &first, true);
    cr_expect_eq(first.all, whole.all, "of a prompt that waited %d exchanges were made", first.all - whole.all);
    ts_world_check_same(&w, 0);
    ts_world_close(&w);
}

/* And of a stream, the round; wherever it runs. */
static void cancel_stream(bool split)
{
    enum { ROUNDS = 60, MOMENTS = 10 };
    struct asked whole = {0};
    int64_t start = 0, end = 0;
    for (int k = 0; k < MOMENTS; k++) {
        struct ts_world w;
        struct asked a = {.cancel = k ? start + (end - start) * k / MOMENTS : 0};
        ts_world_open(&w, 40, 2);
        w.e.plan.length = w.e.limits.draft = 0; /* a token is a round */
        if (split)
            ts_world_split(&w, 40, MDL_HANDOFF_FULL);
        w.cost[TS_PART_DECODE] = w.cost[TS_PART_EXPERT] = 20 * US;
        ts_world_requests(&w, 1, 4);
        w.wanted[0].n_prompt = 3;
        w.wanted[0].max_new = ROUNDS;
        w.wanted[0].cancel = a.cancel;
        w.before = count_asked;
        w.before_ctx = &a;
        ts_world_run(&w, 4);
        if (!k) {
            whole = a;
            start = w.wanted[0].start;
            end = w.got[0].ended;
        }
        cr_assert_le(a.after, 2 * whole.all / ROUNDS, "cancelled after %d of %d: %d more", a.all - a.after, whole.all,
                     a.after);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

Test(bounds, a_cancelled_stream_ends_with_its_round)
{
    cancel_stream(false);
    cancel_stream(true);
}

enum { CANCELS = 10000 / TS_LESS, AT_A_TIME = 250 };

struct left {
    int queued, streaming, ended; /* what a request was in when it was cancelled */
};

/* Requests that come one after the other, so that some run, some wait, and some are done; all but a few are cancelled
 * at some moment of what would have been their life. The virtual cost of calls spreads the moments over all sub-steps.
 */
static void cancel_many(uint64_t seed, struct left *left)
{
    static struct ts_world w;
    ts_world_open(&w, 40, 2);
    w.cost[TS_PART_EXPERT] = w.cost[TS_PART_DECODE] = w.cost[TS_PART_PREFILL] = 20 * US;
    ts_world_requests(&w, AT_A_TIME, (unsigned)seed);
    for (int i = 0; i < w.n; i++) {
        w.wanted[i].n_prompt = 1 + w.wanted[i].n_prompt / 3;
        w.wanted[i].start = (int64_t)i * 6 * MS + rand() % (6 * MS);
        if (i % 25)
            w.wanted[i].cancel =
                w.wanted[i].start + (rand() % 2 ? rand() % (30 * MS) : rand() % (1 << rand() % 11) * 10 * US);
    }
    ts_world_run(&w, seed);
    for (int i = 0; i < w.n; i++) {
        const struct ts_outcome *o = &w.got[i];
        cr_assert_le(o->terminal, 1);
        if (!w.wanted[i].cancel)
            ts_world_check_same(&w, i);
        else
            *(o->terminal ? &left->ended : o->n ? &left->streaming : &left->queued) += 1;
    }
    ts_world_check_baseline(&w);
    ts_world_close(&w);
}

Test(bounds, random_cancels_leave_every_pool_where_it_was)
{
    struct left left = {0};
    long buffers = act_buf_live();
    for (uint64_t seed = 1; seed <= CANCELS / AT_A_TIME + 2; seed++) {
        cancel_many(seed, &left);
        cr_assert_eq(act_buf_live(), buffers, "seed %d: %ld buffers are left", (int)seed, act_buf_live() - buffers);
    }
    int sum = left.queued + left.streaming + left.ended;
    cr_assert_ge(sum, CANCELS);
    cr_assert_gt(left.queued, sum / 8, "of %d cancels %d came before the first token", sum, left.queued);
    cr_assert_gt(left.streaming, sum / 8, "of %d cancels %d came in the middle of a stream", sum, left.streaming);
    cr_log_info("%d cancels: %d before the first token, %d in a stream, %d too late", sum, left.queued, left.streaming,
                left.ended);
}
