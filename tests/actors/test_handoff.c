/* Prefill and Decode in two processes, as far as actors can tell: another worker, other pages, other shards, and a link
 * that may lose, double and delay everything. */
#include "tests/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/doubled_grant.h"
#include "tests/support/less.h"

static const enum mdl_handoff_form forms[] = {MDL_HANDOFF_FULL, MDL_HANDOFF_ENCODER, MDL_HANDOFF_GLOBAL};

/* ---- no faults ---- */

/* Form global is an approximation; what it must equal is in model/test_handoff. */
Test(handoff, two_processes_give_the_tokens_of_one)
{
    for (int form = MDL_HANDOFF_FULL; form <= MDL_HANDOFF_ENCODER; form++)
        for (uint64_t seed = 1; seed <= 3; seed++) {
            struct ts_world w;
            ts_world_open(&w, 64, 2);
            ts_world_split(&w, 64, forms[form]);
            ts_world_requests(&w, 10, (unsigned)seed);
            ts_world_run(&w, seed);
            for (int i = 0; i < w.n; i++)
                ts_world_check_same(&w, i);
            cr_expect_eq(w.far.stats.taken, 10);
            cr_expect_eq(w.far.stats.stale, 0);
            ts_world_check_baseline(&w);
            ts_world_close(&w);
        }
}

/* The decoder's device is small: prompts wait for places and pages, and every one comes through. */
Test(handoff, a_crowd_before_a_small_decoder)
{
    struct ts_world w;
    ts_world_open(&w, 64, 2);
    w.e.limits.lease = 1;
    ts_world_split(&w, 14, MDL_HANDOFF_ENCODER);
    ts_world_requests(&w, 16, 2);
    for (int i = 0; i < w.n; i++)
        w.wanted[i].max_new = TS_WORLD_NEW;
    ts_world_run(&w, 3);
    for (int i = 0; i < w.n; i++) {
        ts_world_check_same(&w, i);
        cr_expect_eq(w.got[i].place.replaced, 0, "request %d: to be refused is no failure", i);
    }
    ts_world_check_baseline(&w);
    ts_world_close(&w);
}

/* What fits in the pages of the writer and never in those of the reader: there is nothing to wait for. */
Test(handoff, what_the_decoder_can_never_hold_is_refused_at_once)
{
    struct ts_world w;
    ts_world_open(&w, 64, 2);
    ts_world_split(&w, 4, MDL_HANDOFF_FULL);
    ts_world_requests(&w, 2, 2);
    w.wanted[0].n_prompt = 100;
    w.wanted[1].n_prompt = 4;
    w.wanted[1].max_new = 2;
    ts_world_run(&w, 3);
    cr_assert_eq(w.got[0].terminal, 1);
    cr_expect_eq(w.got[0].status, -E2BIG);
    cr_expect_lt(w.got[0].ended, w.wanted[0].start + 100000000);
    cr_expect_eq(w.got[0].place.replaced, 0);
    ts_world_check_same(&w, 1);
    ts_world_check_baseline(&w);
    ts_world_close(&w);
}

Test(handoff, cancels_at_any_time_leave_nothing)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct ts_world w;
        ts_world_open(&w, 64, 2);
        ts_world_split(&w, 64, forms[seed % 3]);
        ts_world_requests(&w, 12, (unsigned)seed);
        for (int i = 0; i < w.n; i += 2)
            w.wanted[i].cancel = w.wanted[i].start + rand() % 4000000;
        ts_world_run(&w, seed);
        for (int i = 1; i < w.n && forms[seed % 3] != MDL_HANDOFF_GLOBAL; i += 2)
            ts_world_check_same(&w, i);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

/* ---- faults ---- */

/* How puts fare in the worlds of open_exact. */
static struct ts_wire wire;

/* In exact mode a request that goes on elsewhere has the same tokens, so everything can be compared. */
static void open_exact(struct ts_world *w, unsigned seed)
{
    ts_world_open(w, 64, 2);
    w->wire = wire;
    w->e.limits.replay = 0;
    w->restart = true;
    ts_world_split(w, 64, MDL_HANDOFF_FULL);
    ts_world_requests(w, 6, seed);
}

struct undisturbed {
    int64_t end;
    int writes; /* messages of tickets that the Landing got from Prefill */
    struct ts_outcome got[TS_WORLD_REQUESTS];
};

static bool from_writer(const struct act_msg *m)
{
    return m->type == ACT_LINK_IMMEDIATE || m->type == ACT_KV_READY || m->type == ACT_RESERVE ||
           m->type == ACT_TICKET_CLOSED;
}

static bool count_writes(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                         int *fail)
{
    (void)self, (void)fail;
    *(int *)w->before_ctx += who->part == TS_PART_LANDING && from_writer(m);
    return false;
}

static void run_undisturbed(unsigned seed, struct undisturbed *u)
{
    struct ts_world w;
    open_exact(&w, seed);
    u->writes = 0;
    u->end = 0;
    w.before = count_writes;
    w.before_ctx = &u->writes;
    ts_world_run(&w, seed);
    for (int i = 0; i < w.n; i++) {
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
        cr_assert_eq(got->terminal, 1, "%s, request %d: %d ends", when, i, got->terminal);
        cr_assert_eq(got->status, 0, "%s, request %d: status %d", when, i, got->status);
        cr_assert_eq(got->n, want->n, "%s, request %d: %d tokens of %d", when, i, got->n, want->n);
        cr_assert_eq(memcmp(got->ids, want->ids, (size_t)want->n * sizeof *want->ids), 0,
                     "%s, request %d: other tokens", when, i);
    }
    ts_world_check_baseline(w);
}

static void kill_at_every_moment(unsigned role)
{
    enum { MOMENTS = 24 };
    static struct undisturbed u;
    int moved = 0;
    run_undisturbed(3, &u);
    for (int k = 1; k < MOMENTS; k++) {
        struct ts_world w;
        char when[64];
        open_exact(&w, 3);
        w.kill[w.n_kills++] = (struct ts_kill){.at = u.end * k / MOMENTS, .role = role};
        ts_world_run(&w, 3);
        snprintf(when, sizeof when, "role %u ends at %lld ns", role, (long long)w.kill[0].at);
        check_undisturbed(&w, &u, when);
        for (int i = 0; i < w.n; i++)
            moved += w.got[i].place.replaced;
        ts_world_close(&w);
    }
    cr_expect_gt(moved, 3, "only %d requests had to move", moved);
}

Test(handoff, a_prefill_that_ends_costs_a_retry)
{
    kill_at_every_moment(CFG_ROLE_PREFILL);
}

Test(handoff, a_decode_that_ends_costs_a_gap)
{
    kill_at_every_moment(CFG_ROLE_DECODE);
}

Test(handoff, a_landing_that_ends_costs_a_gap)
{
    kill_at_every_moment(CFG_ROLE_KV);
}

/* The writer dies behind its k-th message of all tickets: what it sent before arrives, nothing after it does. */
struct cut {
    int at, count;
    bool dead, silent; /* silent: it freezes instead, nobody is told */
    uint32_t generation;
};

static bool cut_writer(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                       int *fail)
{
    struct cut *c = w->before_ctx;
    (void)fail;
    if (who->part != TS_PART_LANDING || !from_writer(m))
        return false;
    /* What it had put is on its way and lands. */
    if (c->dead && m->type != ACT_LINK_IMMEDIATE && m->src.generation == c->generation) {
        if (!c->silent)
            return true;
        return m->attempt == 0;
    }
    if (!c->dead && c->count++ == c->at) {
        c->dead = true;
        c->generation = w->e.prefill[0].generation;
        if (!c->silent)
            act_exit(self, w->e.prefill[0], -EIO);
        return c->silent;
    }
    return false;
}

Test(handoff, a_writer_that_dies_between_any_two_writes)
{
    static struct undisturbed u;
    int again = 0, deaths = 0;
    run_undisturbed(4, &u);
    cr_expect_gt(u.writes, 20);
    for (int k = 0; k < u.writes; k += TS_LESS) {
        struct ts_world w;
        struct cut cut = {.at = k};
        char when[64];
        open_exact(&w, 4);
        w.before = cut_writer;
        w.before_ctx = &cut;
        ts_world_run(&w, 4);
        snprintf(when, sizeof when, "writer dies behind message %d", k);
        check_undisturbed(&w, &u, when);
        cr_assert(cut.dead, "%s: it lives", when);
        deaths++;
        for (int i = 0; i < w.n; i++)
            again += w.got[i].place.replaced;
        ts_world_close(&w);
    }
    cr_expect_geq(again, deaths / 2, "%d deaths, %d requests were placed again", deaths, again);
}

/* Nobody tells of it: deadlines end what waits for it, at either side. */
Test(handoff, a_writer_that_falls_silent_between_any_two_writes)
{
    static struct undisturbed u;
    run_undisturbed(4, &u);
    for (int k = 0; k < u.writes; k += TS_LESS) {
        struct ts_world w;
        struct cut cut = {.at = k, .silent = true};
        char when[64];
        open_exact(&w, 4);
        w.before = cut_writer;
        w.before_ctx = &cut;
        ts_world_run(&w, 4);
        snprintf(when, sizeof when, "writer is silent from message %d on", k);
        check_undisturbed(&w, &u, when);
        cr_assert(cut.dead);
        ts_world_close(&w);
    }
}

/* A process stands still from the k-th message of its ticket on, and nothing else goes on that could remind the other
 * one of it. */
struct freeze {
    enum ts_part part; /* TS_PART_PREFILL: the writer */
    int at, count;
    int64_t since; /* virtual ns; 0: it does not stand still yet */
    bool ready;    /* the last message was on its way by then */
    int open;      /* tickets at the reader when the test looked */
};

static bool freeze(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m, int *fail)
{
    struct freeze *f = w->before_ctx;
    (void)fail;
    if (who->part != TS_PART_LANDING || !from_writer(m))
        return false;
    f->ready |= m->type == ACT_KV_READY && !f->since;
    if (f->count++ == f->at) {
        int i = act_addr_equal(w->got[0].place.prefill, w->e.prefill[0]) ? 0 : 1;
        w->frozen = f->part == TS_PART_PREFILL ? &w->inner[TS_PART_PREFILL][i] : who;
        f->since = act_now(self);
    }
    return false;
}

static void run_frozen(struct ts_world *w, struct freeze *f)
{
    open_exact(w, 6);
    w->n = 1;
    w->wanted[0].n_prompt = 100;
    w->cost[TS_PART_PREFILL] = w->cost[TS_PART_EXPERT] = 100000; /* chunks take longer than messages */
    w->prefills = 2;
    w->before = freeze;
    w->before_ctx = f;
    ts_world_run(w, 6);
}

/* The reader, alone and idle, gives the ticket up when its lease ends, tells the requester, and ends the connection
 * when the writer does not say that its writes have ended. */
Test(handoff, a_frozen_writer_costs_the_reader_its_deadlines)
{
    int64_t lease = INT64_C(1000000000);
    int again = 0;
    for (int k = 0, more = 1; more; k++) {
        struct ts_world w;
        struct kv_device_stats s;
        struct freeze f = {.part = TS_PART_PREFILL, .at = k};
        run_frozen(&w, &f);
        ts_world_check_same(&w, 0);
        cr_assert_lt(w.got[0].ended, w.wanted[0].start + lease + lease / 10, "message %d: %d ms", k,
                     (int)((w.got[0].ended - w.wanted[0].start) / 1000000));
        cr_assert_eq(w.far.stats.open, 0, "message %d: %d tickets are open", k, w.far.stats.open);
        kv_device_stat(w.far.e.device, &s);
        cr_assert_le(s.held, w.far.e.limits.lease + 2, "message %d: %d pages are held", k, s.held);
        again += w.got[0].place.replaced;
        more = f.since && !f.ready;
        ts_world_close(&w);
    }
    cr_expect_gt(again, 3);
}

static void look_at_tickets(void *ctx)
{
    struct ts_world *w = ctx;
    ((struct freeze *)w->before_ctx)->open = w->far.stats.open;
}

/* A cancel does not need the writer either: the pages are free after quarantine and fence, long before the lease ends.
 */
Test(handoff, a_cancel_frees_the_tickets_of_a_frozen_writer)
{
    struct ts_world w;
    struct freeze f = {.part = TS_PART_PREFILL, .at = 2, .open = -1};
    int64_t ms = 1000000;
    open_exact(&w, 6);
    w.n = 1;
    w.wanted[0].n_prompt = 100;
    w.wanted[0].cancel = w.wanted[0].start + 20 * ms;
    w.before = freeze;
    w.before_ctx = &f;
    w.far.e.tickets.lease = 3000 * ms;
    ts_world_start(&w, 6);
    cr_assert_eq(act_sim_at(w.sim, w.wanted[0].start + 700 * ms, look_at_tickets, &w), 0);
    act_sim_run(w.sim, 60000 * ms, 20000000);
    cr_assert(f.since && f.since < w.wanted[0].cancel && !f.ready);
    cr_expect_eq(f.open, 0);
    ts_world_close(&w);
}

/* The writer asks nobody: each attempt ends with its deadline, and the request with a reason. A reader that stands
 * still later on has been written to and told by then; its silence is the Router's to report (test_placement). */
Test(handoff, a_frozen_reader_costs_the_writer_its_deadlines)
{
    struct ts_world w;
    struct kv_device_stats s;
    struct freeze f = {.part = TS_PART_LANDING};
    run_frozen(&w, &f);
    cr_assert_eq(w.got[0].terminal, 1, "%d ends", w.got[0].terminal);
    cr_assert_eq(w.got[0].status, -EHOSTDOWN);
    cr_assert_lt(w.got[0].ended, INT64_C(30000000000));
    kv_device_stat(w.e.device, &s);
    cr_assert_eq(s.held, 0, "%d pages are held by the writer", s.held);
    ts_world_close(&w);
}

/* One after another, every message of a hand-off is lost, in either direction. */
struct loss {
    int at, count;
    enum ts_part part; /* whose mail */
};

static bool between(const struct act_msg *m)
{
    return from_writer(m) || m->type == ACT_TICKET_ABORT ||
           (m->type == ACT_RESERVED && act_p_reserved((struct act_msg *)m)->pages);
}

static bool lose_one(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                     int *fail)
{
    struct loss *l = w->before_ctx;
    (void)self, (void)fail;
    bool here = who->part == l->part && (l->part == TS_PART_LANDING || who->index < TS_FAR);
    return here && between(m) && l->count++ == l->at;
}

static void lose_each(enum ts_part part)
{
    static struct undisturbed u;
    run_undisturbed(5, &u);
    for (int k = 0, more = 1; more; k += TS_LESS) {
        struct ts_world w;
        struct loss loss = {.at = k, .part = part};
        char when[64];
        open_exact(&w, 5);
        w.before = lose_one;
        w.before_ctx = &loss;
        ts_world_run(&w, 5);
        snprintf(when, sizeof when, "message %d to part %d is lost", k, part);
        check_undisturbed(&w, &u, when);
        more = loss.count > k;
        ts_world_close(&w);
        cr_assert_lt(k, 400);
    }
}

Test(handoff, every_message_to_the_decoder_may_be_lost)
{
    lose_each(TS_PART_LANDING);
}

Test(handoff, every_message_to_the_writer_may_be_lost)
{
    lose_each(TS_PART_PREFILL);
}

/* The decoder has it and says so, and its word is lost: the writer's deadline is over while tokens come. Whose request
 * it is knows better. */
static bool lose_success(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                         int *fail)
{
    bool is = who->part == TS_PART_PREFILL && who->index < TS_FAR && m->type == ACT_TICKET_CLOSED;
    (void)self, (void)fail;
    *(int *)w->before_ctx += is;
    return is;
}

Test(handoff, a_lost_word_of_success_disturbs_nobody)
{
    struct ts_world w;
    int lost = 0;
    open_exact(&w, 5);
    w.e.tickets.confirm = w.far.e.tickets.confirm = 20000000;
    w.cost[TS_PART_DECODE] = 5000000;
    w.before = lose_success;
    w.before_ctx = &lost;
    for (int i = 0; i < w.n; i++)
        w.wanted[i].max_new = 20;
    ts_world_run(&w, 5);
    cr_expect_eq(lost, w.n, "%d of %d words were lost", lost, w.n);
    for (int i = 0; i < w.n; i++) {
        ts_world_check_same(&w, i);
        cr_expect_eq(w.got[i].place.replaced, 0, "request %d went on elsewhere", i);
    }
    ts_world_check_baseline(&w);
    ts_world_close(&w);
}

/* The decoder has one place only, and the answer to the first question for it does not come in time. */
static bool lose_first_place(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                             int *fail)
{
    bool is = who->part == TS_PART_LANDING && m->type == ACT_RESERVED && !act_p_reserved(m)->status;
    (void)self, (void)fail;
    return is && !(*(int *)w->before_ctx)++;
}

Test(handoff, a_place_that_was_given_in_vain_is_given_to_the_next_question)
{
    struct ts_world w;
    int places = 0;
    open_exact(&w, 5);
    w.n = 1;
    w.far.e.limits.streams = 1;
    w.before = lose_first_place;
    w.before_ctx = &places;
    ts_world_run(&w, 5);
    ts_world_check_same(&w, 0);
    cr_expect_eq(w.got[0].place.replaced, 0, "the request went on elsewhere");
    cr_expect_eq(places, 2, "%d places were given", places);
    ts_world_check_baseline(&w);
    ts_world_close(&w);
}

/* Everything at once: a link that loses one in fifty, doubles one in fifty and delays all, for many seeds. */
Test(handoff, a_bad_link_costs_time_and_nothing_else)
{
    for (uint64_t seed = 1; seed <= 24 / TS_LESS; seed++) {
        static struct undisturbed u;
        struct ts_world w;
        char when[64];
        run_undisturbed((unsigned)seed, &u);
        open_exact(&w, (unsigned)seed);
        w.kv_link = (struct act_sim_fault){.lose = 20000, .copy = 20000, .delay_min = 1000, .delay_max = 2000000};
        ts_world_run(&w, seed);
        snprintf(when, sizeof when, "seed %d", (int)seed);
        check_undisturbed(&w, &u, when);
        ts_world_close(&w);
    }
}

/* ---- the price of distance ---- */

/* Virtual time from a request to its first token, with messages of either direction so long on their way. */
static int64_t first_token(enum mdl_handoff_form form, int prompt, int64_t delay)
{
    struct ts_world w;
    ts_world_open(&w, 64, 1);
    ts_world_split(&w, 64, form);
    w.kv_link = (struct act_sim_fault){.delay_min = delay, .delay_max = delay};
    ts_world_requests(&w, 1, 3);
    w.wanted[0].n_prompt = prompt;
    w.wanted[0].max_new = 1;
    ts_world_run(&w, 1);
    cr_assert_eq(w.got[0].status, 0);
    cr_assert_eq(w.got[0].n, 1);
    int64_t took = w.got[0].last - w.wanted[0].start;
    ts_world_check_baseline(&w);
    ts_world_close(&w);
    return took;
}

/* Puts take no time here, computing neither: what a longer way adds is round trips of messages: there and back for the
 * place, and once there to say that the bytes have come. */
Test(handoff, few_round_trips_beside_the_bytes)
{
    static const char *const names[] = {"full", "encoder", "global"};
    static const int prompts[] = {5, 30, 120};
    for (size_t f = 0; f < 3; f++)
        for (size_t k = 0; k < 3; k++) {
            const int64_t near = 5000000, far = 45000000;
            double trips = (double)(first_token(forms[f], prompts[k], far) - first_token(forms[f], prompts[k], near)) /
                           (double)(2 * (far - near));
            printf("form %s, %d tokens: %.2f round trips\n", names[f], prompts[k], trips);
            cr_expect_leq(trips, 2.0);
            cr_expect_geq(trips, 0.5, "the link is not in the way");
        }
}

/* ---- puts that are late, and connections that end ---- */

/* Few pages, so that what one request gives up another has soon. */
Test(handoff, cancels_while_rows_are_under_way_harm_nobody)
{
    for (uint64_t seed = 1; seed <= 8 / TS_LESS; seed++) {
        struct ts_world w;
        ts_world_open(&w, 24, 2);
        w.e.limits.lease = 1;
        w.wire = (struct ts_wire){.delay_max = 4000000, .half = true};
        ts_world_split(&w, 20, seed % 2 ? MDL_HANDOFF_FULL : MDL_HANDOFF_ENCODER);
        ts_world_requests(&w, 16, (unsigned)seed);
        for (int i = 0; i < w.n; i += 2)
            w.wanted[i].cancel = w.wanted[i].start + rand() % 5000000;
        ts_world_run(&w, seed);
        for (int i = 1; i < w.n; i += 2)
            ts_world_check_same(&w, i);
        cr_expect_eq(w.wire.fences, 0, "every writer says that its writes have ended");
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

/* It is no grant for nobody: an answer that nothing will come would have the reader use the pages again, and writes are
 * on their way to them. The world fails when a page is given back that one is on its way to. */
Test(handoff, a_doubled_grant_closes_nothing_while_writes_are_under_way)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct ts_world w;
        struct ts_doubled_grant d = {.part = TS_PART_PREFILL};
        ts_world_open(&w, 64, 2);
        w.wire = (struct ts_wire){.delay_max = 20000000};
        ts_world_split(&w, 64, MDL_HANDOFF_FULL);
        ts_world_requests(&w, 3, (unsigned)seed);
        for (int i = 0; i < w.n; i++) {
            w.wanted[i].n_prompt = 100;
            for (int k = 0; k < 100; k++)
                w.wanted[i].prompt[k] = 1 + (i * 7 + k) % 50;
        }
        w.before = ts_double_grant;
        w.before_ctx = &d;
        ts_world_run(&w, seed);
        cr_expect(d.doubled, "seed %d: no grant was doubled", (int)seed);
        ts_doubled_grant_free(&d);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

/* Writes that are under way when the reader gives a request up, and end before the step that computes more of its
 * prompt: the prompt stays until that step has ended. */
Test(handoff, the_writes_of_a_given_up_request_end_while_it_is_in_a_step)
{
    for (uint64_t seed = 1; seed <= 8 / TS_LESS; seed++) {
        struct ts_world w;
        ts_world_open(&w, 64, 2);
        w.wire = (struct ts_wire){.delay_max = 1 << (12 + seed % 8), .half = true};
        ts_world_split(&w, 64, MDL_HANDOFF_FULL);
        ts_world_requests(&w, 16, (unsigned)seed);
        for (int i = 0; i < w.n; i++) {
            w.wanted[i].n_prompt = 100;
            for (int k = 0; k < 100; k++)
                w.wanted[i].prompt[k] = 1 + (i + k) % 50;
            if (i % 4)
                w.wanted[i].cancel = w.wanted[i].start + rand() % 3000000;
        }
        ts_world_run(&w, seed);
        for (int i = 0; i < w.n; i += 4)
            ts_world_check_same(&w, i);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

Test(handoff, a_connection_that_ends_before_any_put_costs_a_retry)
{
    static struct undisturbed u;
    int refused = 0;
    wire = (struct ts_wire){.delay_max = 300000, .half = true};
    run_undisturbed(7, &u);
    for (int k = 1, more = 1; more; k++) {
        struct ts_world w;
        char when[64];
        wire.break_at = k;
        open_exact(&w, 7);
        ts_world_run(&w, 7);
        snprintf(when, sizeof when, "the connection ends before put %d", k);
        check_undisturbed(&w, &u, when);
        more = w.wire.puts >= k;
        cr_expect(!more || w.wire.ends == 1);
        refused += w.wire.refused;
        ts_world_close(&w);
        cr_assert_lt(k, 200);
    }
    cr_expect_gt(refused, 0, "puts name their connection");
}

/* One of a ticket's writes cannot be made: its requester hears of it at once, long before anybody's deadline. */
Test(handoff, a_write_that_cannot_be_made_is_told_at_once)
{
    static struct undisturbed u;
    int again = 0;
    wire = (struct ts_wire){.delay_max = 300000};
    run_undisturbed(7, &u);
    for (int k = 1, more = 1; more; k++) {
        struct ts_world w;
        char when[64];
        wire.fail_at = k;
        open_exact(&w, 7);
        w.e.tickets.grant = w.e.tickets.lease = w.far.e.tickets.grant = w.far.e.tickets.lease = INT64_C(10000000000);
        ts_world_run(&w, 7);
        snprintf(when, sizeof when, "write %d cannot be made", k);
        check_undisturbed(&w, &u, when);
        for (int i = 0; i < w.n; i++) {
            cr_assert_lt(w.got[i].ended, INT64_C(5000000000), "%s: request %d waited for a deadline", when, i);
            again += w.got[i].place.replaced;
        }
        more = w.wire.puts >= k;
        ts_world_close(&w);
        cr_assert_lt(k, 200);
    }
    cr_expect_gt(again, 5);
    wire = (struct ts_wire){0};
}

/* A connection that ends takes every ticket with it that names it, also of requests that have nothing to do with why it
 * ended. That does not use their attempts up; but it does not go on for ever either. */
Test(handoff, connections_that_end_again_and_again_do_not_use_up_attempts)
{
    for (int breaks = 12; breaks <= 400; breaks += 388) {
        struct ts_world w;
        int most = 0;
        wire = (struct ts_wire){.break_at = 1, .breaks = breaks};
        open_exact(&w, 9);
        w.n = 1;
        ts_world_run(&w, 9);
        for (int i = 0; i < w.n; i++) {
            const struct ts_outcome *o = &w.got[i];
            most = o->place.replaced > most ? o->place.replaced : most;
            if (breaks == 12)
                ts_world_check_same(&w, i);
            else
                cr_expect(o->terminal == 1 && o->status == -EHOSTDOWN, "%d ends, status %d", o->terminal, o->status);
        }
        cr_expect_gt(most, 7, "%d connections end: %d attempts at most", breaks, most);
        cr_expect_lt(most, 40);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
    wire = (struct ts_wire){0};
}

/* It would land long after the reader has given it up, in pages of somebody else: the reader ends the connection first.
 */
Test(handoff, a_put_that_hangs_is_fenced)
{
    static struct undisturbed u;
    wire = (struct ts_wire){0};
    run_undisturbed(8, &u);
    for (int k = 0; k < 8; k++) {
        struct ts_world w;
        char when[64];
        wire = (struct ts_wire){.hold_at = k / 2 + 1, .hold_ns = INT64_C(20000000000), .half = true};
        open_exact(&w, 8);
        if (k % 2) /* the writer does not notice */
            w.e.tickets.lease = w.e.tickets.quarantine = INT64_C(15000000000);
        ts_world_run(&w, 8);
        snprintf(when, sizeof when, "put %d hangs%s", k / 2 + 1, k % 2 ? ", and the reader sees to it" : "");
        check_undisturbed(&w, &u, when);
        cr_expect_gt(w.wire.fences, 0);
        cr_expect_gt(w.wire.lost, 0);
        cr_expect(k % 2 == 0 || w.far.stats.fenced > 0);
        ts_world_close(&w);
    }
}

Test(handoff, ends_of_either_side_while_rows_are_under_way)
{
    wire = (struct ts_wire){.delay_max = 2000000, .half = true};
    kill_at_every_moment(CFG_ROLE_PREFILL);
    kill_at_every_moment(CFG_ROLE_KV);
}
