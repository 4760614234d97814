/* Sequences that move from one Decode process to another because theirs is drained, in the simulation: another worker,
 * other pages, other shards, and links that may lose, double and delay everything. */
#include "tests/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/runtime/log.h"
#include "tests/support/doubled_grant.h"
#include "tests/support/less.h"
#include "tests/support/process.h"

enum { REQUESTS = 4, CONTEXT = 192 };

/* Requests that decode for long. replay 0: exact mode, in which one that goes on elsewhere has the same tokens too. */
static bool longer;              /* to the end of the context */
static int64_t turn_ns = 100000; /* of Decode */

static void open_world(struct ts_world *w, unsigned seed, int replay, enum mdl_handoff_form form)
{
    ts_world_open(w, 96, 2);
    w->e.limits.replay = replay;
    w->restart = true;
    ts_world_split(w, 96, form);
    ts_world_add_other(w, 96);
    ts_world_requests(w, REQUESTS, seed);
    w->cost[TS_PART_DECODE] = turn_ns;
    for (int i = 0; i < w->n; i++) {
        if (longer && w->wanted[i].n_prompt > 24)
            w->wanted[i].n_prompt = 24;
        w->wanted[i].max_new = longer ? CONTEXT - w->wanted[i].n_prompt : 30 + rand() % 20;
        w->wanted[i].start += 1000000; /* when the Router has heard of both */
    }
}

struct undisturbed {
    int64_t begin, end; /* of all requests */
    struct ts_outcome got[REQUESTS];
};

/* Where no move has been asked for. */
static void run_undisturbed(unsigned seed, int replay, enum mdl_handoff_form form, bool rejection,
                            struct undisturbed *u)
{
    struct ts_world w;
    open_world(&w, seed, replay, form);
    w.far.e.rejection = w.other.e.rejection = rejection;
    ts_world_run(&w, seed);
    u->begin = w.wanted[0].start;
    u->end = 0;
    for (int i = 0; i < w.n; i++) {
        if (!rejection)
            ts_world_check_same(&w, i);
        u->got[i] = w.got[i];
        u->end = w.got[i].ended > u->end ? w.got[i].ended : u->end;
    }
    ts_world_close(&w);
}

static void check_undisturbed(struct ts_world *w, const struct undisturbed *u, const char *when)
{
    for (int i = 0; i < w->n; i++) {
        const struct ts_outcome *got = &w->got[i], *want = &u->got[i];
        if (w->wanted[i].cancel)
            continue;
        cr_assert_eq(got->terminal, 1, "%s, request %d: %d ends", when, i, got->terminal);
        cr_assert_eq(got->status, 0, "%s, request %d: status %d", when, i, got->status);
        cr_assert_eq(got->n, want->n, "%s, request %d: %d tokens of %d", when, i, got->n, want->n);
        cr_assert_eq(memcmp(got->ids, want->ids, (size_t)want->n * sizeof *want->ids), 0,
                     "%s, request %d: other tokens", when, i);
    }
    ts_world_check_baseline(w);
}

static int moved(const struct ts_world *w)
{
    int n = 0;
    for (int i = 0; i < w->n; i++)
        n += w->got[i].place.moved;
    return n;
}

static int replaced(const struct ts_world *w)
{
    int n = 0;
    for (int i = 0; i < w->n; i++)
        n += w->got[i].place.replaced;
    return n;
}

static int64_t moment(const struct undisturbed *u, int k, int of)
{
    return u->begin + (u->end - u->begin) * k / of;
}

static void drain(struct ts_world *w, int64_t at, bool other)
{
    w->kill[w->n_kills++] = (struct ts_kill){.at = at, .role = CFG_ROLE_KV, .drain = true, .other = other};
}

/* ---- no faults ---- */

/* What Decodes say in their log of the sequences that came to them: how many, and how many of these with what their
 * planner had seen of their drafts. */
static int arrived_with_memory(const char *path, int *all)
{
    char *text = ts_read_file(path, NULL);
    int n = 0;
    *all = 0;
    for (const char *at = text; at && (at = strstr(at, "moved_here")); at++) {
        const char *blocks = strstr(at, "blocks=");
        ++*all;
        n += blocks && atoi(blocks + strlen("blocks=")) > 0;
    }
    free(text);
    return n;
}

/* Plans change no token, and what they are made from moves with a sequence. */
Test(move, what_the_planner_knows_goes_along)
{
    static struct undisturbed u;
    char *dir = ts_temp_dir(), path[4200];
    snprintf(path, sizeof path, "%s/log", dir);
    run_undisturbed(4, 0, MDL_HANDOFF_FULL, false, &u);
    const struct act_log_config c = {.path = path, .level = ACT_LOG_INFO, .direct = true};
    struct act_log *log;
    struct cfg_error err;
    cr_assert_eq(act_log_open(&c, &log, &err), 0, "%s", err.msg);
    struct ts_world w;
    open_world(&w, 4, 0, MDL_HANDOFF_FULL);
    struct act_engine *e[] = {&w.far.e, &w.other.e};
    for (int i = 0; i < 2; i++) { /* drafts are cheap, so every round has some */
        e[i]->log = log;
        e[i]->plan = (struct act_plan_options){.mode = ACT_PLAN_DYNAMIC, .length = e[i]->limits.draft};
        act_steptime_init(&e[i]->steptime, e[i]->limits.draft);
        for (int n = 1; n <= 64; n *= 2) {
            act_steptime_add(&e[i]->steptime.plain, n, 1000 + n);
            act_steptime_add(&e[i]->steptime.full, n, 1000 + n);
        }
        act_steptime_add(&e[i]->steptime.draft, 1, 1);
    }
    drain(&w, moment(&u, 1, 2), false);
    ts_world_run(&w, 4);
    check_undisturbed(&w, &u, "planned");
    int n = moved(&w), all;
    ts_world_close(&w);
    act_log_close(log);
    int known = arrived_with_memory(path, &all);
    cr_expect_gt(n, 0, "nothing was there to be moved");
    cr_expect_eq(all, n, "%d arrived, %d moved", all, n);
    cr_expect_eq(known, all, "%d of %d came with what was known of their drafts", known, all);
    ts_remove_dir(dir);
    free(dir);
}

/* In the default mode, where a request that is placed again may get other tokens: a move changes no bit. */
Test(move, a_drained_decode_hands_its_sequences_over_bit_for_bit)
{
    enum { MOMENTS = 8 / (TS_LESS > 2 ? 2 : TS_LESS) };
    static struct undisturbed u;
    static const enum mdl_handoff_form forms[] = {MDL_HANDOFF_FULL, MDL_HANDOFF_ENCODER, MDL_HANDOFF_GLOBAL};
    int all = 0;
    for (int f = 0; f < 2; f++) {
        run_undisturbed(1 + (unsigned)f, 24, forms[f], false, &u);
        for (int k = 1; k < MOMENTS; k++) {
            struct ts_world w;
            char when[64];
            open_world(&w, 1 + (unsigned)f, 24, forms[f]);
            drain(&w, moment(&u, k, MOMENTS), k % 2);
            ts_world_run(&w, 1 + (uint64_t)f);
            snprintf(when, sizeof when, "form %d, drained at moment %d", f, k);
            check_undisturbed(&w, &u, when);
            cr_assert_eq(replaced(&w), 0, "%s: %d requests had to be placed again", when, replaced(&w));
            all += moved(&w);
            ts_world_close(&w);
        }
    }
    cr_expect_gt(all, MOMENTS, "only %d sequences moved", all);
}

/* What depends on the schedule is fixed here, so acceptance by rejection can be compared too. */
Test(move, acceptance_by_rejection_goes_on_as_before)
{
    enum { MOMENTS = 6 / (TS_LESS > 2 ? 2 : TS_LESS) };
    static struct undisturbed u;
    int all = 0;
    run_undisturbed(5, 0, MDL_HANDOFF_FULL, true, &u);
    for (int k = 1; k < MOMENTS; k++) {
        struct ts_world w;
        open_world(&w, 5, 0, MDL_HANDOFF_FULL);
        w.far.e.rejection = w.other.e.rejection = true;
        drain(&w, moment(&u, k, MOMENTS), k % 2);
        ts_world_run(&w, 5);
        check_undisturbed(&w, &u, "by rejection");
        all += moved(&w);
        ts_world_close(&w);
    }
    cr_expect_gt(all, 0);
}

/* Both are drained at last, one after the other: what the second one has got stays there to its end. */
Test(move, without_another_decode_sequences_end_where_they_are)
{
    static struct undisturbed u;
    struct ts_world w;
    run_undisturbed(7, 24, MDL_HANDOFF_FULL, false, &u);
    open_world(&w, 7, 24, MDL_HANDOFF_FULL);
    drain(&w, moment(&u, 1, 2), false);
    drain(&w, moment(&u, 4, 5), true);
    ts_world_run(&w, 7);
    check_undisturbed(&w, &u, "both are drained");
    cr_expect_gt(moved(&w), 0);
    cr_expect_eq(replaced(&w), 0);
    ts_world_close(&w);
}

/* The other Decode has told that its experts are gone. */
static bool without_experts(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                            int *fail)
{
    (void)self, (void)fail;
    if (who->part == TS_PART_LANDING && who->index >= TS_OTHER && m->type == ACT_LOAD &&
        act_p_load(m)->role == CFG_ROLE_DECODE)
        act_b_load(m)->experts = *(const uint32_t *)w->before_ctx;
    return false;
}

Test(move, no_sequence_goes_where_the_experts_are_missing)
{
    static struct undisturbed u;
    run_undisturbed(7, 24, MDL_HANDOFF_FULL, false, &u);
    for (uint32_t experts = ACT_EXPERTS_DOUBTFUL; experts <= ACT_EXPERTS_MISSING; experts++) {
        struct ts_world w;
        open_world(&w, 7, 24, MDL_HANDOFF_FULL);
        w.before = without_experts;
        w.before_ctx = &experts;
        drain(&w, moment(&u, 1, 2), false);
        ts_world_run(&w, 7);
        check_undisturbed(&w, &u, "nowhere to go");
        cr_expect_eq(moved(&w), 0);
        cr_expect_eq(replaced(&w), 0);
        ts_world_close(&w);
    }
}

/* The other side has room for few: the rest asks again until it has. */
Test(move, a_crowd_before_a_small_decoder)
{
    static struct undisturbed u;
    struct ts_world w;
    run_undisturbed(9, 24, MDL_HANDOFF_FULL, false, &u);
    open_world(&w, 9, 24, MDL_HANDOFF_FULL);
    w.other.e.limits.streams = 1;
    w.other.e.limits.lease = 1;
    drain(&w, moment(&u, 1, 2), false);
    ts_world_run(&w, 9);
    check_undisturbed(&w, &u, "a small decoder");
    cr_expect_eq(replaced(&w), 0);
    ts_world_close(&w);
}

Test(move, cancels_at_any_time_leave_nothing)
{
    int all = 0;
    for (uint64_t seed = 1; seed <= 6 / (TS_LESS > 2 ? 2 : TS_LESS); seed++) {
        static struct undisturbed u;
        struct ts_world w;
        run_undisturbed((unsigned)seed, 24, MDL_HANDOFF_FULL, false, &u);
        open_world(&w, (unsigned)seed, 24, MDL_HANDOFF_FULL);
        int64_t at = moment(&u, 1 + (int)seed % 10, 12);
        drain(&w, at, seed % 2);
        /* Around the time at which the Router has heard of it. */
        for (int i = 0; i < w.n; i += 2)
            w.wanted[i].cancel = at + rand() % 100000000;
        ts_world_run(&w, seed);
        check_undisturbed(&w, &u, "cancelled");
        all += moved(&w);
        ts_world_close(&w);
    }
    cr_expect_gt(all, 0);
}

/* ---- faults ---- */

/* As in test_handoff; here the writer is the Decode that is left. */
Test(move, a_doubled_grant_closes_nothing_while_writes_are_under_way)
{
    static struct undisturbed u;
    run_undisturbed(3, 0, MDL_HANDOFF_FULL, false, &u);
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct ts_world w;
        struct ts_doubled_grant d = {.part = TS_PART_DECODE, .index = TS_FAR};
        open_world(&w, 3, 0, MDL_HANDOFF_FULL);
        w.wire.delay_max = 20000000;
        drain(&w, moment(&u, 1, 3), false);
        w.before = ts_double_grant;
        w.before_ctx = &d;
        ts_world_run(&w, seed);
        cr_expect(d.doubled, "seed %d: no grant was doubled", (int)seed);
        ts_doubled_grant_free(&d);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

/* Drained, and then somebody ends: the side that is left, the side that is gone to, their Landings. In exact mode,
 * where the tokens are the same whichever way a request goes on. */
static void kill_while_moving(unsigned role, bool other)
{
    enum { MOMENTS = 8 / (TS_LESS > 2 ? 2 : TS_LESS) };
    static struct undisturbed u;
    int all = 0;
    run_undisturbed(3, 0, MDL_HANDOFF_FULL, false, &u);
    for (int k = 0; k < MOMENTS; k++) {
        struct ts_world w;
        char when[64];
        open_world(&w, 3, 0, MDL_HANDOFF_FULL);
        drain(&w, moment(&u, 1, 3), false);
        w.kill[w.n_kills++] = (struct ts_kill){
            .at = moment(&u, 1, 3) + (u.end - u.begin) * k / (2 * MOMENTS), .role = role, .other = other};
        ts_world_run(&w, 3);
        snprintf(when, sizeof when, "role %u%s, moment %d", role, other ? ", receiving" : "", k);
        check_undisturbed(&w, &u, when);
        all += moved(&w);
        ts_world_close(&w);
    }
    cr_expect_gt(all, 0, "nothing moved");
}

Test(move, the_side_that_is_left_may_end)
{
    kill_while_moving(CFG_ROLE_DECODE, false);
}

Test(move, the_side_that_is_gone_to_may_end)
{
    kill_while_moving(CFG_ROLE_DECODE, true);
}

Test(move, the_landing_that_is_left_may_end)
{
    kill_while_moving(CFG_ROLE_KV, false);
}

Test(move, the_landing_that_is_gone_to_may_end)
{
    kill_while_moving(CFG_ROLE_KV, true);
}

/* One after another, every message between the two sides is lost. The sequence stays, or is there, or is placed again.
 */
struct loss {
    int at, count;
};

static bool lose_one(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                     int *fail)
{
    struct loss *l = w->before_ctx;
    (void)self, (void)fail;
    bool there = who->part == TS_PART_LANDING && who->index >= TS_OTHER &&
                 (m->type == ACT_RESERVE || m->type == ACT_KV_READY || m->type == ACT_TICKET_CLOSED) &&
                 act_addr_equal(m->src, w->far.e.decode[0]);
    bool back = who->part == TS_PART_DECODE && who->index >= TS_FAR && who->index < TS_OTHER &&
                (m->type == ACT_RESERVED || m->type == ACT_TICKET_CLOSED || m->type == ACT_TICKET_ABORT);
    return (there || back) && l->count++ == l->at;
}

Test(move, every_message_between_the_two_may_be_lost)
{
    static struct undisturbed u;
    int all = 0;
    run_undisturbed(3, 24, MDL_HANDOFF_FULL, false, &u);
    for (int k = 0, more = 1; more; k += TS_LESS > 2 ? 3 : 1) {
        struct ts_world w;
        struct loss loss = {.at = k};
        char when[64];
        open_world(&w, 3, 24, MDL_HANDOFF_FULL);
        drain(&w, moment(&u, 1, 3), false);
        w.before = lose_one;
        w.before_ctx = &loss;
        ts_world_run(&w, 3);
        snprintf(when, sizeof when, "message %d is lost", k);
        check_undisturbed(&w, &u, when);
        cr_assert_eq(replaced(&w), 0, "%s: %d requests had to be placed again", when, replaced(&w));
        all += moved(&w);
        more = loss.count > k;
        ts_world_close(&w);
        cr_assert_lt(k, 200);
    }
    cr_expect_gt(all, 0);
}

/* The answer to RESERVE takes longer than a sequence takes to outgrow what the other side will have pages for. */
Test(move, a_place_that_is_long_in_coming)
{
    static const int64_t delays[] = {1000000, 10000000, 15000000, 20000000, 25000000, 700000000};
    int all = 0;
    static struct undisturbed u;
    longer = true;
    turn_ns = 10000;
    run_undisturbed(11, 24, MDL_HANDOFF_FULL, false, &u);
    for (int k = 0; k < 6; k++) {
        struct ts_world w;
        char when[64];
        open_world(&w, 11, 24, MDL_HANDOFF_FULL);
        drain(&w, u.begin + 4 * delays[k] + 20000000, false);
        w.kv_link = (struct act_sim_fault){.delay_min = delays[k], .delay_max = delays[k]};
        ts_world_run(&w, 11);
        snprintf(when, sizeof when, "delay of %d us", (int)(delays[k] / 1000));
        check_undisturbed(&w, &u, when);
        cr_assert_eq(replaced(&w), 0, "%s: %d requests had to be placed again", when, replaced(&w));
        cr_assert_eq(w.other.stats.failed, 0, "%s: %d were too long", when, (int)w.other.stats.failed);
        all += moved(&w);
        ts_world_close(&w);
    }
    turn_ns = 100000;
    longer = false;
    cr_expect_gt(all, 0);
}

/* What comes cannot be used, which shows only when all of it is there: the sequence is still where it was. */
static bool spoil(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m, int *fail)
{
    int *spoilt = w->before_ctx;
    (void)self, (void)fail;
    if (who->part == TS_PART_LANDING && who->index >= TS_OTHER && m->type == ACT_KV_READY && m->buf &&
        act_addr_equal(m->src, w->far.e.decode[0])) {
        act_b_kv_ready(m)->state--;
        ++*spoilt;
    }
    return false;
}

Test(move, what_cannot_be_taken_stays)
{
    static struct undisturbed u;
    struct ts_world w;
    int spoilt = 0;
    run_undisturbed(3, 24, MDL_HANDOFF_FULL, false, &u);
    open_world(&w, 3, 24, MDL_HANDOFF_FULL);
    drain(&w, moment(&u, 1, 3), false);
    w.before = spoil;
    w.before_ctx = &spoilt;
    ts_world_run(&w, 3);
    check_undisturbed(&w, &u, "spoilt");
    cr_expect_gt(spoilt, 0);
    cr_expect_eq(moved(&w), 0);
    cr_expect_eq(replaced(&w), 0);
    ts_world_close(&w);
}

/* Everything at once: links that lose one in fifty, double one in fifty and delay all. */
Test(move, bad_links_cost_time_and_nothing_else)
{
    int all = 0;
    for (uint64_t seed = 1; seed <= 6 / (TS_LESS > 2 ? 2 : TS_LESS); seed++) {
        static struct undisturbed u;
        struct ts_world w;
        char when[64];
        run_undisturbed((unsigned)seed, 0, MDL_HANDOFF_FULL, false, &u);
        open_world(&w, (unsigned)seed, 0, MDL_HANDOFF_FULL);
        drain(&w, moment(&u, 1, 4), seed % 2);
        w.kv_link = (struct act_sim_fault){.lose = 20000, .copy = 20000, .delay_min = 1000, .delay_max = 2000000};
        ts_world_run(&w, seed);
        snprintf(when, sizeof when, "seed %d", (int)seed);
        check_undisturbed(&w, &u, when);
        all += moved(&w);
        ts_world_close(&w);
    }
    cr_expect_gt(all, 0);
}
