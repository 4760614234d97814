/* Sequences that move between two nodes as they are, with their links and one-sided puts over the simulated network:
 * both sides die at any write, or one does and begins again on the same address, ends of puts come late or never, a
 * side falls silent while it stays connected. In exact mode, where a request that goes on elsewhere has the same
 * tokens. */
#include "tests/harness.h"

#include <errno.h>
#include <string.h>

#include "actors/recipe.h"
#include "tests/support/less.h"
#include "tests/support/nodes_world.h"

#define MS INT64_C(1000000)

enum { REQUESTS = 4, TOKENS = 48, LEFT = 1, GONE_TO = 2 };

static struct ts_nodes net;
static int32_t want[REQUESTS][256];
static bool known;

static void open_net(int nodes, uint64_t seed)
{
    struct ts_world *w = &net.w;
    ts_nodes_open(&net, nodes, seed);
    net.turn_ns = MS / 20;
    w->n = REQUESTS;
    for (int i = 0; i < REQUESTS; i++) {
        struct ts_wanted *q = &w->wanted[i];
        *q = (struct ts_wanted){.n_prompt = 20 + 20 * i,
                                .max_new = TOKENS,
                                .seed = (uint64_t)i,
                                .temperature = (float)(i % 2),
                                .start = 500 * MS + i * MS};
        for (int k = 0; k < q->n_prompt; k++)
            q->prompt[k] = (i * 131 + k * 7 + 5) % w->m->cfg->vocab_size;
    }
    for (int i = 0; i < REQUESTS && !known; i++)
        ts_world_plain(w, &w->wanted[i], NULL, want[i]);
    known = true;
}

static bool all_speak(void)
{
    for (int i = 0; i < REQUESTS; i++)
        if (net.w.got[i].n < 4)
            return false;
    return true;
}

static int running_at(int node)
{
    int n = 0;
    for (int i = 0; i < REQUESTS; i++)
        n += net.w.got[i].place.decode.peer == node;
    return n;
}

/* All requests are being decoded, some at the side that is left. */
static void begin(uint64_t seed)
{
    ts_nodes_start(&net, seed);
    while (!all_speak())
        ts_nodes_run(&net, MS / 10);
    for (int i = 0; i < REQUESTS; i++)
        cr_assert(!net.w.got[i].terminal, "request %d is over before it could move", i);
    cr_assert_gt(running_at(LEFT), 0);
}

static int moved(void)
{
    int n = 0;
    for (int i = 0; i < REQUESTS; i++)
        n += net.w.got[i].place.moved;
    return n;
}

static int replaced(void)
{
    int n = 0;
    for (int i = 0; i < REQUESTS; i++)
        n += net.w.got[i].place.replaced;
    return n;
}

/* Every request ends once; whole, or, where nobody may be left, with an end that its client is told and what it has
 * right. Returns how many failed. */
static int finish(const char *when, bool may_fail)
{
    int failed = 0;
    bool ended = ts_nodes_run_all(&net, act_sim_now(net.w.sim) + 120000 * MS);
    for (int i = 0; i < REQUESTS; i++) {
        const struct ts_outcome *o = &net.w.got[i];
        cr_assert(ended && o->terminal == 1, "%s, request %d: %d ends", when, i, o->terminal);
        bool whole = !o->status && o->finish == ACT_FINISH_LENGTH && o->n == TOKENS;
        failed += !whole;
        cr_assert(whole || (may_fail && (o->status == -EHOSTDOWN || o->status == -ESHUTDOWN)),
                  "%s, request %d: status %d, %d tokens of %d", when, i, o->status, o->n, TOKENS);
        cr_assert_arr_eq(o->ids, want[i], (size_t)o->n * sizeof o->ids[0], "%s, request %d: other tokens", when, i);
    }
    ts_nodes_run(&net, 3000 * MS);
    ts_nodes_check(&net, when);
    return failed;
}

/* ---- no faults ---- */

Test(move_net, a_drained_node_hands_its_sequences_over)
{
    open_net(3, 1);
    begin(1);
    int n = running_at(LEFT);
    ts_nodes_drain(&net, LEFT);
    finish("no faults", false);
    cr_expect_eq(moved(), n, "%d of %d moved", moved(), n);
    cr_expect_eq(replaced(), 0);
    ts_nodes_close(&net);
}

/* ---- deaths ---- */

static bool struck;

static void note(void *ctx, const struct tp_fault_rule *rule)
{
    (void)ctx, (void)rule;
    struck = true;
}

/* The k-th frame or put of class kv of the side that is left is lost, and then `who` die; they begin again on the same
 * addresses. Returns false when there was no such write. */
static bool die_at(uint64_t k, unsigned who, bool again, uint64_t *writes)
{
    struct tp_fault *f = &net.fault[LEFT];
    f->rule[0] = (struct tp_fault_rule){.on = TP_FAULT_SEND | TP_FAULT_PUT,
                                        .classes = 1 << TP_CLASS_KV,
                                        .what = TP_FAULT_LOSE,
                                        .at = k ? k : UINT64_MAX};
    f->rules = 1;
    f->struck = note;
    struck = false;
    int here = running_at(LEFT);
    ts_nodes_drain(&net, LEFT);
    int64_t limit = act_sim_now(net.w.sim) + 300 * MS;
    while (!struck && moved() + replaced() < here && act_sim_run(net.w.sim, limit, 1))
        ;
    if (writes)
        *writes = f->rule[0].seen;
    f->rules = 0;
    if (!struck)
        return false;
    for (int i = 1; i <= 2; i++)
        if (who >> i & 1)
            ts_nodes_kill(&net, i);
    ts_nodes_run(&net, 20 * MS);
    for (int i = 1; i <= 2 && again; i++)
        if (who >> i & 1)
            ts_nodes_restart(&net, i);
    return true;
}

static void die_at_every_write(unsigned who, bool again, const char *what)
{
    uint64_t writes = 1;
    int all = 0, gone = 0;
    /* Of a single death every other write, for the sake of time. */
    const uint64_t step = (TS_LESS > 2 ? 6 : 1) * (who == (1 << LEFT | 1 << GONE_TO) ? 1 : 2);
    for (uint64_t k = 0; k <= writes; k += k ? step : 1) {
        char when[96];
        snprintf(when, sizeof when, "%s at write %d", what, (int)k);
        open_net(3, 3);
        begin(3);
        cr_assert_eq(die_at(k, who, again, k ? NULL : &writes), k > 0, "%s: it was not made", when);
        int failed = finish(when, !again);
        cr_assert(k || !failed);
        for (int i = 0; i < REQUESTS && k; i++) /* each one goes on elsewhere a few times at most, and not for ever */
            cr_assert_leq(net.w.got[i].place.replaced, 4, "%s, request %d was placed %d times more", when, i,
                          net.w.got[i].place.replaced);
        all += k ? replaced() : 0;
        gone += failed;
        ts_nodes_close(&net);
    }
    cr_log_info("%s: %d writes, %d placed again, %d failed", what, (int)writes, all, gone);
    cr_expect_gt(writes, 4);
    cr_expect_gt(all, 0);
}

Test(move_net, the_side_that_is_left_dies_at_any_write_and_begins_again)
{
    die_at_every_write(1 << LEFT, true, "the side that is left dies");
}

Test(move_net, the_side_that_is_gone_to_dies_at_any_write_and_begins_again)
{
    die_at_every_write(1 << GONE_TO, true, "the side that is gone to dies");
}

Test(move_net, both_sides_die_at_any_write_and_begin_again)
{
    die_at_every_write(1 << LEFT | 1 << GONE_TO, true, "both die");
}

Test(move_net, both_sides_die_for_good)
{
    open_net(3, 3);
    begin(3);
    cr_assert(die_at(2, 1 << LEFT | 1 << GONE_TO, false, NULL));
    cr_expect_eq(finish("both die for good", true), REQUESTS);
    ts_nodes_close(&net);
}

/* ---- ends of puts that are late, or never come ---- */

static void strike(uint32_t on, enum tp_fault_do what, uint64_t every, int64_t delay, const char *name)
{
    int all = 0;
    uint64_t done = 0;
    for (uint64_t seed = 1; seed <= 4 / (TS_LESS > 2 ? 4 : TS_LESS); seed++) {
        char when[96];
        snprintf(when, sizeof when, "%s, seed %d", name, (int)seed);
        open_net(3, seed);
        begin(seed);
        for (int i = 1; i <= 2; i++) {
            net.fault[i].rule[0] = (struct tp_fault_rule){
                .on = on, .classes = 1 << TP_CLASS_KV, .what = what, .at = seed, .every = every, .delay_ns = delay};
            net.fault[i].rules = 1;
        }
        ts_nodes_drain(&net, LEFT);
        finish(when, false);
        for (int i = 1; i <= 2; i++)
            done += net.fault[i].rule[0].done;
        all += moved();
        ts_nodes_close(&net);
    }
    cr_log_info("%s: %d struck, %d moved", name, (int)done, all);
    cr_expect_gt(done, 0, "%s: nothing was struck", name);
    cr_expect(all > 0 || TS_LESS > 1, "%s: nothing moved", name);
}

Test(move_net, completions_that_never_come)
{
    strike(TP_FAULT_IMMEDIATE | TP_FAULT_PUT_DONE, TP_FAULT_LOSE, 7, 0, "lost completions");
}

/* Behind the lease: the ticket has been taken back, and its pages are others' by then, or the connection has ended. */
Test(move_net, completions_that_come_after_revocation)
{
    strike(TP_FAULT_PUT_DONE, TP_FAULT_DELAY, 7, 900 * MS, "late ends of puts");
    strike(TP_FAULT_IMMEDIATE, TP_FAULT_DELAY, 7, 900 * MS, "late immediates");
}

Test(move_net, frames_and_completions_twice)
{
    strike(TP_FAULT_IMMEDIATE, TP_FAULT_DOUBLE, 3, 0, "doubled immediates");
}

/* ---- silence ---- */

/* The node is connected, answers pings and does nothing: the Router hears no reports. Where the other one is being
 * drained there is no place left then. */
static void fall_silent(int node, int64_t after, const char *when)
{
    open_net(3, 5);
    net.w.router.silent_ns = 1000 * MS;
    begin(5);
    ts_nodes_drain(&net, LEFT);
    ts_nodes_run(&net, after);
    net.silent[node] = true;
    finish(when, node == GONE_TO);
    cr_expect_lt(act_sim_now(net.w.sim), 20000 * MS);
    ts_nodes_close(&net);
}

Test(move_net, a_side_that_falls_silent_is_lost_though_it_is_connected)
{
    const int step = TS_LESS > 2 ? 8 : 2;
    for (int k = 0; k < 8; k += step) {
        fall_silent(GONE_TO, k * MS / 2, "the side that is gone to falls silent");
        fall_silent(LEFT, k * MS / 2, "the side that is left falls silent");
    }
}

/* ---- no way for rows ---- */

/* Prefill and the only Decode are connected, but for the class that rows go over. */
Test(move_net, without_a_way_for_rows_a_request_fails_in_time)
{
    open_net(2, 6);
    ts_nodes_start(&net, 6);
    ts_nodes_run(&net, 300 * MS);
    for (int i = 0; i < 2; i++) {
        net.fault[i].rule[0] = (struct tp_fault_rule){
            .on = TP_FAULT_CONNECT, .classes = 1 << TP_CLASS_KV, .what = TP_FAULT_REFUSE, .at = 1, .every = 1};
        net.fault[i].rule[1] = (struct tp_fault_rule){.on = TP_FAULT_SEND | TP_FAULT_FRAME,
                                                      .classes = 1 << TP_CLASS_KV,
                                                      .what = TP_FAULT_KILL,
                                                      .at = 1,
                                                      .every = 1};
        net.fault[i].rules = 2;
    }
    cr_expect_eq(finish("no way for rows", true), REQUESTS);
    cr_expect_lt(act_sim_now(net.w.sim), 60000 * MS);
    ts_nodes_close(&net);
}
