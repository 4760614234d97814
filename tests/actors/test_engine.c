/* The engine's actors (Prefill, Decode, expert shards, device tier) in the simulation, against the same requests run
 * without actors. */
#include "tests/harness.h"

#include "tests/support/engine_world.h"
#include "tests/support/less.h"

Test(engine, requests_get_the_tokens_of_a_plain_run)
{
    struct ts_world w;
    ts_world_open(&w, 64, 3);
    ts_world_requests(&w, 10, 1);
    ts_world_run(&w, 7);
    for (int i = 0; i < w.n; i++)
        ts_world_check_same(&w, i);
    ts_world_check_baseline(&w);
    ts_world_close(&w);
}

Test(engine, a_crowd_in_little_memory_is_parked_and_comes_back)
{
    struct ts_world w;
    ts_world_open(&w, 14, 2); /* four sequences of up to 8 pages each do not fit */
    w.e.limits.lease = 1;
    ts_world_requests(&w, 12, 2);
    for (int i = 0; i < w.n; i++)
        w.wanted[i].max_new = TS_WORLD_NEW;
    ts_world_run(&w, 3);
    for (int i = 0; i < w.n; i++)
        ts_world_check_same(&w, i);
    ts_world_check_baseline(&w);
    ts_world_close(&w);
}

/* Sequences that come one after the other, all with room for their prompts and not for their outputs: who came last is
 * set aside, and comes back when there is room; who came first never is. */
Test(engine, the_youngest_is_parked_for_the_oldest_and_comes_back)
{
    enum { PROMPT = 12, NEW = 76, EACH = (PROMPT + NEW) / 16 + 1, PAGES = 2 * EACH };
    int parked = 0;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct ts_world w;
        ts_world_open(&w, PAGES, 2);
        w.e.limits.lease = 1;
        w.cost[TS_PART_DECODE] = 1000000;
        ts_world_requests(&w, 4, (unsigned)seed);
        for (int i = 0; i < w.n; i++) {
            w.wanted[i].n_prompt = PROMPT;
            w.wanted[i].max_new = NEW;
            w.wanted[i].start = 1 + i * INT64_C(3000000);
        }
        ts_world_run(&w, seed);
        for (int i = 0; i < w.n; i++) {
            ts_world_check_same(&w, i);
            parked += w.got[i].parked;
        }
        cr_expect_eq(w.got[0].parked, 0, "seed %d: the oldest was parked %d times", (int)seed, w.got[0].parked);
        cr_expect_lt(w.got[3].parked, 10, "seed %d: the youngest was parked %d times", (int)seed, w.got[3].parked);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
    cr_expect_gt(parked, 3, "nobody was parked");
}

/* The page of one that was parked is for the one that waited for it, although the parked one has room in it yet. */
Test(engine, a_parked_sequence_does_not_take_its_page_back_from_the_one_that_waits_for_it)
{
    enum { PROMPT = 12, NEW = 76, PAGES = (PROMPT + NEW) / 16 + 1 };
    int64_t alone = 0;
    int parked = 0;
    for (int k = 0; k < 8; k++) { /* the second one comes ever later in the life of the first one; k 0: never */
        struct ts_world w;
        ts_world_open(&w, PAGES, 2);
        w.e.limits.lease = 1;
        w.cost[TS_PART_DECODE] = 1000000;
        ts_world_requests(&w, k ? 2 : 1, 1);
        for (int i = 0; i < w.n; i++) {
            w.wanted[i].n_prompt = i ? 2 : PROMPT;
            w.wanted[i].max_new = i ? 30 : NEW;
            w.wanted[i].start = 1 + i * alone * k / 8;
        }
        ts_world_run(&w, 1);
        for (int i = 0; i < w.n; i++)
            ts_world_check_same(&w, i);
        alone = k ? alone : w.got[0].ended;
        parked += w.got[1].parked * (k > 0);
        cr_expect(!k || w.got[1].parked <= 3, "%d: it was parked %d times", k, w.got[1].parked);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
    cr_expect_gt(parked, 0, "it was never parked");
}

/* Three of one age come to the end of their pages together, and the fourth was parked for them: what is at hand is for
 * all that wait, before the parked one takes from it. Else it comes back to be parked again at once. */
Test(engine, a_parked_sequence_comes_back_behind_all_that_wait)
{
    static const struct {
        int pages, prompt; /* of the fourth: it has a page, two, three */
    } at[] = {{10, 2}, {11, 18}, {12, 34}};
    for (int k = 0; k < 9; k++) {
        struct ts_world w;
        int parked = 0;
        ts_world_open(&w, at[k / 3].pages, 2);
        w.e.limits.lease = 1;
        w.cost[TS_PART_DECODE] = 1000000;
        ts_world_requests(&w, 4, 1);
        for (int i = 0; i < w.n; i++) {
            w.wanted[i].n_prompt = i < 3 ? 12 : at[k / 3].prompt;
            w.wanted[i].max_new = i < 3 ? 60 : 30;
            w.wanted[i].start = i < 3 ? 1 : 1 + (1 + k % 3) * INT64_C(20000000);
        }
        ts_world_run(&w, 1);
        for (int i = 0; i < w.n; i++) {
            ts_world_check_same(&w, i);
            parked += w.got[i].parked;
        }
        cr_expect(parked >= 1 && parked <= 3, "%d pages, case %d: parked %d, %d, %d, %d times", at[k / 3].pages, k % 3,
                  w.got[0].parked, w.got[1].parked, w.got[2].parked, w.got[3].parked);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

/* Two Decodes share the pages. When each has parked all it had, what one of them gathers to go on must not be what the
 * other lacks. */
Test(engine, decodes_with_parked_sequences_alone_do_not_wait_for_each_others_pages)
{
    enum { PROMPT = 12, NEW = 76, EACH = (PROMPT + NEW) / 16 + 1, PAGES = EACH + 2 };
    int parked = 0;
    for (uint64_t seed = 1; seed <= (TS_LESS > 2 ? 2 : 4); seed++) {
        struct ts_world w;
        ts_world_open(&w, PAGES, 2);
        w.decodes = 2;
        w.e.limits.lease = 1;
        ts_world_requests(&w, 4, (unsigned)seed);
        for (int i = 0; i < w.n; i++) {
            w.wanted[i].n_prompt = PROMPT;
            w.wanted[i].max_new = NEW;
        }
        ts_world_run(&w, seed);
        for (int i = 0; i < w.n; i++) {
            ts_world_check_same(&w, i);
            parked += w.got[i].parked;
        }
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
    cr_expect_gt(parked, 2, "%d were parked", parked);
}

/* Two prompts find ten of their blocks each, which are all pages that there are but one, and each needs two more. */
Test(engine, two_prompts_with_hits_never_wait_for_each_others_pages)
{
    enum { KNOWN = 160, LONGER = 188, PAGES = 23 /* the blocks of both, the lease, and one */ };
    for (uint64_t seed = 1; seed <= (TS_LESS > 2 ? 1 : 2); seed++) {
        struct ts_world w;
        ts_world_open(&w, PAGES, 2);
        w.e.limits.replay = 0;
        ts_world_requests(&w, 4, (unsigned)seed);
        for (int i = 0; i < w.n; i++) {
            struct ts_wanted *q = &w.wanted[i];
            q->n_prompt = i < 2 ? KNOWN + 1 : LONGER;
            q->max_new = 4;
            q->start = i < 2 ? 1 + i * INT64_C(500000000) : INT64_C(2000000000);
            for (int k = 0; k < q->n_prompt; k++)
                q->prompt[k] = (i % 2 * 131 + k * 7 + 5 + (k < KNOWN ? 0 : i)) % w.m->cfg->vocab_size;
        }
        ts_world_run(&w, seed);
        for (int i = 0; i < w.n; i++)
            ts_world_check_same(&w, i);
        cr_assert_gt(w.got[2].cached + w.got[3].cached, 0, "nobody had a hit");
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

Test(engine, cancelled_requests_leave_nothing_and_harm_nobody)
{
    struct ts_world w;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        ts_world_open(&w, 40, 2);
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

Test(engine, the_same_seed_gives_the_same_run)
{
    uint64_t trace[3];
    for (int i = 0; i < 3; i++) {
        struct ts_world w;
        ts_world_open(&w, 40, 2);
        ts_world_requests(&w, 6, 5);
        trace[i] = ts_world_run(&w, i == 2 ? 99 : 11);
        ts_world_close(&w);
    }
    cr_assert_eq(trace[0], trace[1]);
    cr_assert_neq(trace[0], trace[2]);
}

Test(engine, what_can_never_fit_is_refused_at_once)
{
    struct ts_world w;
    ts_world_open(&w, 4, 1);
    ts_world_requests(&w, 1, 1);
    w.wanted[0].n_prompt = 100;
    ts_world_run(&w, 1);
    cr_assert_eq(w.got[0].terminal, 1);
    cr_assert_eq(w.got[0].status, -7, "status %d", w.got[0].status); /* -E2BIG */
    ts_world_check_baseline(&w);
    ts_world_close(&w);
}

/* A gateway of another process may say what it likes; the others do not notice. */
Test(engine, a_prompt_that_makes_no_sense_is_refused_and_harms_nobody)
{
    struct ts_world w;
    ts_world_open(&w, 40, 1);
    ts_world_requests(&w, 6, 1);
    w.wanted[1].prompt[0] = w.e.vocab;
    w.wanted[2].max_new = 0;
    w.wanted[3].prompt[w.wanted[3].n_prompt - 1] = -1;
    ts_world_run(&w, 1);
    for (int i = 0; i < 6; i++) {
        cr_assert_eq(w.got[i].terminal, 1);
        if (i >= 1 && i <= 3)
            cr_expect_eq(w.got[i].status, -22, "status %d", w.got[i].status); /* -EINVAL */
        else
            ts_world_check_same(&w, i);
    }
    ts_world_check_baseline(&w);
    ts_world_close(&w);
}

Test(engine, a_second_prompt_finds_the_blocks_of_the_first)
{
    struct ts_world w;
    ts_world_open(&w, 64, 2);
    ts_world_requests(&w, 2, 4);
    w.wanted[0].n_prompt = w.wanted[1].n_prompt = 90;
    w.wanted[0].start = 0;
    w.wanted[1].start = INT64_C(2000000000);
    memcpy(w.wanted[1].prompt, w.wanted[0].prompt, sizeof w.wanted[0].prompt);
    ts_world_run(&w, 1);
    cr_assert_eq(w.got[0].cached, 0);
    cr_assert_eq(w.got[1].cached, 80, "%d tokens cached", w.got[1].cached);
    cr_assert_eq(w.got[1].terminal, 1);
    ts_world_check_baseline(&w);
    ts_world_close(&w);
}

/* A conversation: the second prompt is the first one, its answer, and something new. With the snapshot of the answer's
 * end it goes on exactly, also when little is new and the replayed tail reaches back behind the snapshot. */
Test(engine, a_later_turn_goes_on_exactly_from_a_snapshot)
{
    for (int more = 1; more <= 41; more += 10) {
        struct ts_world w;
        int32_t answer[256];
        ts_world_open(&w, 64, 2);
        w.e.snapshots = true;
        ts_world_requests(&w, 2, (unsigned)more);
        w.wanted[0].n_prompt = 53;
        w.wanted[0].max_new = 20;
        w.wanted[0].start = 0;
        ts_world_plain(&w, &w.wanted[0], NULL, answer);
        struct ts_wanted *second = &w.wanted[1];
        memcpy(second->prompt, w.wanted[0].prompt, 53 * sizeof(int32_t));
        memcpy(second->prompt + 53, answer, 20 * sizeof(int32_t));
        second->n_prompt = 73 + more;
        second->start = INT64_C(2000000000);
        ts_world_run(&w, (uint64_t)more);
        cr_assert_eq(w.got[1].cached, 72, "%d new tokens: %d cached", more, w.got[1].cached);
        for (int i = 0; i < w.n; i++)
            ts_world_check_same(&w, i);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

/* The same prompt once more, of even and of odd length: all but its end is there. */
Test(engine, a_repeated_prompt_goes_on_exactly_from_a_snapshot)
{
    for (int n = 5; n <= 105; n += 25) {
        struct ts_world w;
        ts_world_open(&w, 64, 2);
        w.e.snapshots = true;
        ts_world_requests(&w, 2, (unsigned)n);
        w.wanted[0].n_prompt = w.wanted[1].n_prompt = n;
        w.wanted[0].start = 0;
        w.wanted[1].start = INT64_C(2000000000);
        memcpy(w.wanted[1].prompt, w.wanted[0].prompt, sizeof w.wanted[0].prompt);
        ts_world_run(&w, (uint64_t)n);
        cr_assert_eq(w.got[1].cached, (n - 1) / 2 * 2, "%d of %d tokens cached", w.got[1].cached, n);
        for (int i = 0; i < w.n; i++)
            ts_world_check_same(&w, i);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

/* A turn that comes later than snapshots live is a replayed hit; one in time goes on exactly, and makes it live on. */
Test(engine, snapshots_end_when_no_turn_comes_and_blocks_stay)
{
    const int64_t second = INT64_C(1000000000), ttl = 15 * second;
    struct ts_world w;
    ts_world_open(&w, 64, 2);
    w.e.snapshots = true;
    kv_device_ttl(w.e.device, 3600 * second, ttl);
    ts_world_requests(&w, 4, 9);
    const int64_t start[] = {0, 14 * second, 28 * second, 50 * second};
    for (int i = 0; i < 4; i++) {
        w.wanted[i].n_prompt = 90;
        w.wanted[i].max_new = 4;
        w.wanted[i].start = start[i];
        memcpy(w.wanted[i].prompt, w.wanted[0].prompt, sizeof w.wanted[0].prompt);
    }
    ts_world_run(&w, 1);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(w.got[i].terminal, 1);
    cr_assert_eq(w.got[1].cached, 88, "%d", w.got[1].cached);
    cr_assert_eq(w.got[2].cached, 88, "the one before it made it live on: %d", w.got[2].cached);
    cr_assert_eq(w.got[3].cached, 80, "only its blocks are left: %d", w.got[3].cached);
    ts_world_check_baseline(&w);
    ts_world_close(&w);
}

/* A prompt that leaves an earlier one in the middle goes on from the last point before that, as if it were cold. */
Test(engine, a_prompt_that_branches_off_goes_on_from_a_snapshot_point)
{
    for (int same = 36; same <= 116; same += 16) {
        struct ts_world w;
        ts_world_open(&w, 64, 2);
        w.e.snapshots = true;
        w.e.snapshot_blocks = 2;
        ts_world_requests(&w, 2, (unsigned)same);
        w.wanted[0].n_prompt = 120;
        w.wanted[0].start = 0;
        struct ts_wanted *second = &w.wanted[1];
        memcpy(second->prompt, w.wanted[0].prompt, (size_t)same * sizeof(int32_t));
        for (int i = same; i < 150; i++)
            second->prompt[i] = (w.wanted[0].prompt[i % 120] + 1) % w.m->cfg->vocab_size;
        second->n_prompt = 150;
        second->start = INT64_C(2000000000);
        ts_world_run(&w, (uint64_t)same);
        cr_assert_eq(w.got[1].cached, same / 32 * 32, "%d tokens are the same, %d cached", same, w.got[1].cached);
        for (int i = 0; i < w.n; i++)
            ts_world_check_same(&w, i);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

/* To the first shard. */
static bool count_dispatches(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                             int *fail)
{
    *(int *)w->before_ctx += who->part == TS_PART_EXPERT && who->index == 0 && m->type == ACT_EXPERT_DISPATCH;
    return false;
}

/* The cancel is sent first, so it overtakes the prompt for certain; nothing of the request may remain or be answered.
 */
Test(engine, a_cancel_that_overtakes_its_prompt_still_counts)
{
    struct ts_world w;
    int dispatches = 0;
    ts_world_open(&w, 40, 2);
    ts_world_requests(&w, 2, 3);
    w.before = count_dispatches;
    w.before_ctx = &dispatches;
    w.wanted[0].start = 2000000;
    w.wanted[0].cancel = 1000000;
    w.wanted[1].start = 3000000;
    ts_world_run(&w, 1);
    int with = dispatches;
    cr_assert_eq(w.got[0].terminal, 0);
    cr_assert_eq(w.got[0].n, 0, "%d tokens of a cancelled request", w.got[0].n);
    ts_world_check_same(&w, 1);
    ts_world_check_baseline(&w);
    ts_world_close(&w);
    dispatches = 0;
    ts_world_open(&w, 40, 2);
    ts_world_requests(&w, 2, 3);
    w.wanted[0] = w.wanted[1];
    w.n = 1;
    w.wanted[0].start = 3000000;
    w.before = count_dispatches;
    w.before_ctx = &dispatches;
    ts_world_run(&w, 1);
    cr_expect_eq(with, dispatches, "the cancelled prompt was computed");
    ts_world_close(&w);
}

/* Whoever asked is gone and never cancelled: its first tokens come back, and that ends the sequence. */
Test(engine, a_requester_that_died_costs_no_more_than_its_next_tokens)
{
    struct ts_world w;
    ts_world_open(&w, 40, 2);
    ts_world_requests(&w, 1, 6);
    w.wanted[0].n_prompt = 30;
    w.wanted[0].max_new = 150;
    w.wanted[0].start = 0;
    int dispatches = 0;
    w.deaf = true;
    w.before = count_dispatches;
    w.before_ctx = &dispatches;
    ts_world_run(&w, 1);
    cr_assert_lt(dispatches, 20 * w.m->cfg->n_layers, "%d dispatches for nobody", dispatches);
    ts_world_check_baseline(&w);
    ts_world_close(&w);
}
