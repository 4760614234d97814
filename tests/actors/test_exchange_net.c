/* The expert exchange between nodes as they are: dispatches that are put into slots of the shard's node and results
 * into slots of the source's, over links, the fault decorator and the simulated network. Tokens are those of a run
 * without actors, whatever is lost, doubled, late, cut off or ended. */
#include "tests/harness.h"

#include <errno.h>

#include "actors/runtime/stats.h"
#include "tests/support/expert_net.h"
#include "tests/support/less.h"

#define MS INT64_C(1000000)

static struct ts_expert_net net;

static int puts_at(const struct ts_expert_net *n)
{
    int sum = 0;
    for (int i = 1; i <= n->shards; i++)
        sum += n->shard[i].puts;
    return sum;
}

static int messages_at(const struct ts_expert_net *n)
{
    int sum = 0;
    for (int i = 1; i <= n->shards; i++)
        sum += n->shard[i].messages;
    return sum;
}

/* Any sharding, with and without replicas, slots that hold a step and slots so small that most batches take waves. */
Test(exchange_net, any_sharding_over_slots_gives_the_tokens_of_one_process)
{
    static const int rows[] = {64, 3, 1, 6};
    for (int k = 0; k < 6; k += TS_LESS) {
        int shards = 1 + k % 5;
        ts_net_open(&net, shards, rows[k % 4], 5, (unsigned)k + 1);
        if (k % 2)
            ts_net_replicate(&net, (uint64_t)k);
        const struct tp_fault_rule *out = ts_net_count(&net, 0, TP_FAULT_PUT);
        ts_net_start(&net, (uint64_t)k + 1);
        ts_net_run(&net);
        ts_net_check(&net, "slots");
        cr_assert_gt(puts_at(&net), 100, "%d shards: %d dispatches were put", shards, puts_at(&net));
        cr_assert_eq(messages_at(&net), 0, "%d shards: %d dispatches went as messages", shards, messages_at(&net));
        cr_assert_eq((int)out->seen, puts_at(&net));
        ts_net_close(&net);
    }
}

/* A node with other sizes: both sides see that, and talk in messages. */
Test(exchange_net, a_node_with_other_slots_gets_messages)
{
    ts_net_open(&net, 3, 8, 4, 3);
    net.other_rows = 9;
    ts_net_start(&net, 3);
    ts_net_run(&net);
    ts_net_check(&net, "other slots");
    cr_assert_gt(net.shard[1].puts, 0);
    cr_assert_gt(net.shard[3].messages, 0);
    cr_assert_eq(net.shard[3].puts, 0);
    ts_net_close(&net);
}

Test(exchange_net, without_slots_everything_is_a_message)
{
    ts_net_open(&net, 2, 0, 3, 4);
    const struct tp_fault_rule *out = ts_net_count(&net, 0, TP_FAULT_PUT);
    ts_net_start(&net, 4);
    ts_net_run(&net);
    ts_net_check(&net, "messages");
    cr_assert_gt(messages_at(&net), 100);
    cr_assert_eq(out->seen, 0u);
    ts_net_close(&net);
}

/* ---- what providers never do, and networks do ---- */

/* every: so many of these operations at a time. */
static void disturb(enum tp_fault_do what, uint32_t on, uint64_t every, int64_t delay_ns, const char *name)
{
    uint64_t done = 0;
    for (uint64_t seed = 1; seed <= 2; seed += TS_LESS) {
        ts_net_open(&net, 3, 4, 5, (unsigned)seed);
        for (int i = 0; i <= net.shards; i++) {
            net.fault[i].rule[0] = (struct tp_fault_rule){.on = on,
                                                          .classes = 1 << TP_CLASS_EXPERT,
                                                          .what = what,
                                                          .at = 13 + 5 * seed,
                                                          .every = every + 7 * (uint64_t)i,
                                                          .delay_ns = delay_ns};
            net.fault[i].rules = 1;
        }
        ts_net_start(&net, seed);
        ts_net_run(&net);
        ts_net_check(&net, name);
        for (int i = 0; i <= net.shards; i++)
            done += net.fault[i].rule[0].done;
        ts_net_close(&net);
    }
    cr_assert_gt(done, 4u, "%s happened %d times", name, (int)done);
}

/* The slot of what is never answered stays in use until its connection is ended. */
Test(exchange_net, lost_words_of_puts_cost_a_deadline_and_no_token)
{
    disturb(TP_FAULT_LOSE, TP_FAULT_IMMEDIATE | TP_FAULT_PUT_DONE, 60, 0, "lost completions");
}

Test(exchange_net, lost_puts_cost_a_deadline_and_no_token)
{
    disturb(TP_FAULT_LOSE, TP_FAULT_PUT, 60, 0, "lost puts");
}

Test(exchange_net, words_of_puts_that_come_twice_are_taken_once)
{
    disturb(TP_FAULT_DOUBLE, TP_FAULT_IMMEDIATE | TP_FAULT_PUT_DONE, 60, 0, "doubled completions");
}

/* Later than the deadline: the step runs again, and the answers to the first one come while it does. Not in every step:
 * one that runs again and again is given up. */
Test(exchange_net, answers_to_exchanges_that_are_over_are_not_taken_for_others)
{
    disturb(TP_FAULT_DELAY, TP_FAULT_IMMEDIATE, 200, 45 * MS, "late completions");
}

Test(exchange_net, refused_puts_are_tried_again)
{
    disturb(TP_FAULT_REFUSE, TP_FAULT_PUT, 60, 0, "refused puts");
}

/* Something is lost in every step, and something arrives: steps that begin again and again are given up in the end. */
Test(exchange_net, a_network_that_lets_no_step_through_fails_requests_in_time)
{
    ts_net_open(&net, 3, 1, 2, 5);
    for (int i = 0; i < net.w.n; i++)
        net.w.wanted[i].n_prompt = 60;
    net.fault[0].rule[0] = (struct tp_fault_rule){
        .on = TP_FAULT_IMMEDIATE, .classes = 1 << TP_CLASS_EXPERT, .what = TP_FAULT_LOSE, .at = 40, .every = 40};
    net.fault[0].rules = 1;
    ts_net_start(&net, 5);
    ts_net_run(&net);
    for (int i = 0; i < net.w.n; i++)
        cr_assert(net.w.got[i].terminal == 1 && net.w.got[i].status == -EHOSTDOWN, "request %d: %d ends, status %d", i,
                  net.w.got[i].terminal, net.w.got[i].status);
    cr_assert_gt(puts_at(&net), 1000, "nothing got through at all");
    ts_net_close(&net);
}

/* The source, or a shard's node, is cut off at its k-th write of class expert. */
static void cut(int node, const char *name)
{
    uint64_t writes = 1;
    for (uint64_t k = 0; k <= writes; k += 1 + writes / 8) {
        ts_net_open(&net, 2, 4, 3, 6);
        net.fault[node].rule[0] = (struct tp_fault_rule){.on = TP_FAULT_SEND | TP_FAULT_PUT,
                                                         .classes = 1 << TP_CLASS_EXPERT,
                                                         .what = k % 2 ? TP_FAULT_CRASH : TP_FAULT_KILL,
                                                         .at = k ? k : UINT64_MAX};
        net.fault[node].rules = 1;
        ts_net_start(&net, 6);
        ts_net_run(&net);
        ts_net_check(&net, name);
        if (!k)
            writes = net.fault[node].rule[0].seen;
        else
            cr_assert_eq(net.fault[node].rule[0].done, 1u, "%s at write %d of %d", name, (int)k, (int)writes);
        ts_net_close(&net);
    }
    cr_assert_gt(writes, 100u);
}

Test(exchange_net, a_source_that_is_cut_off_at_any_write_goes_on)
{
    cut(0, "source cut off");
}

Test(exchange_net, a_shard_that_is_cut_off_at_any_write_is_used_again)
{
    cut(2, "shard cut off");
}

/* A connection that takes nothing any more while its end is still to come, as with an adapter that drains its queues:
 * the shards behind it are left out meanwhile, and no step fails. */
Test(exchange_net, a_connection_that_ends_slowly_is_not_tried_again_and_again)
{
    for (uint64_t k = 1; k <= 4; k++) {
        int node = k % 2 ? 0 : 2;
        ts_net_open(&net, k < 3 ? 2 : 1, 4, 6, 16);
        net.fault[node % (net.shards + 1)].rule[0] = (struct tp_fault_rule){.on = TP_FAULT_PUT,
                                                                            .classes = 1 << TP_CLASS_EXPERT,
                                                                            .what = TP_FAULT_KILL,
                                                                            .at = 20 * k,
                                                                            .every = 150,
                                                                            .delay_ns = 250 * MS};
        net.fault[node % (net.shards + 1)].rules = 1;
        ts_net_start(&net, 16);
        ts_net_run(&net);
        ts_net_check(&net, "a slow end");
        cr_assert_gt(net.fault[node % (net.shards + 1)].rule[0].done, 0u);
        ts_net_close(&net);
    }
}

/* Nothing arrives at a node for a time, with no word to anybody: shorter than the connection lives, and longer. */
static void mend(void *ctx)
{
    (void)ctx;
    cr_assert_eq(tp_sim_net_cut(net.net, "n0", "n1", false), 0);
}

static void part(void *ctx)
{
    cr_assert_eq(tp_sim_net_cut(net.net, "n0", "n1", true), 0);
    cr_assert_eq(act_sim_at(net.w.sim, act_sim_now(net.w.sim) + *(int64_t *)ctx, mend, NULL), 0);
}

Test(exchange_net, a_silent_node_is_left_out_and_used_again)
{
    static int64_t silence[] = {60 * MS, 900 * MS};
    for (int k = 0; k < 2; k++) {
        ts_net_open(&net, 3, 4, 8, 7);
        net.w.wanted[7].start = 3000 * MS;
        for (int i = 0; i < net.w.n; i++)
            net.w.wanted[i].max_new = TS_WORLD_NEW;
        ts_net_start(&net, 7);
        cr_assert_eq(act_sim_at(net.w.sim, 520 * MS, part, &silence[k]), 0);
        act_sim_run(net.w.sim, 2900 * MS, 10000000);
        int before = net.shard[1].puts;
        ts_net_run(&net);
        ts_net_check(&net, "silence");
        cr_assert_gt(net.shard[1].puts, before, "the node is not used any more, or not through slots");
        ts_net_close(&net);
    }
}

/* ---- shards that fail inside a living process ---- */

/* It comes back under another address, at once or after a while; the sources find it, with slots and without. */
Test(exchange_net, a_shard_that_was_restarted_in_its_process_is_found_again)
{
    static const int64_t delay[] = {0, 5 * MS, 80 * MS};
    for (int k = 0; k < 6; k++) {
        ts_net_open(&net, 3, k < 3 ? 4 : 0, 4, 8);
        net.restart_delay_ns = delay[k % 3];
        net.shard[2].die_at = 40;
        net.w.wanted[3].start = 3000 * MS;
        ts_net_start(&net, 8);
        act_sim_run(net.w.sim, 2900 * MS, 10000000);
        cr_assert_eq(net.shard[2].starts, 2, "the shard did not die");
        int before = net.shard[2].puts + net.shard[2].messages;
        ts_net_run(&net);
        ts_net_check(&net, "restart");
        cr_assert_gt(net.shard[2].puts + net.shard[2].messages, before + 20, "case %d", k);
        ts_net_close(&net);
    }
}

static int64_t timers_of(int node)
{
    struct act_stats_worker s;
    cr_assert_eq(act_stats_worker(net.rt[node], 0, &s), 0);
    return (int64_t)s.timers;
}

/* One that cannot be started again is gone although its node lives: its node says so, the others take its experts over,
 * and nobody goes on looking for it. */
Test(exchange_net, a_shard_that_has_ended_for_good_is_taken_over_and_looked_for_no_more)
{
    static const int64_t delay[] = {0, 5 * MS, 300 * MS};
    for (int k = 0; k < 3; k++) {
        ts_net_open(&net, 3, 4, 6, 13);
        net.restart_delay_ns = delay[k];
        net.shard[2].die_at = 40;
        net.shard[2].stillborn = true;
        net.w.wanted[4].start = 6000 * MS;
        net.w.wanted[5].start = 6500 * MS;
        ts_net_start(&net, 13);
        act_sim_run(net.w.sim, 4000 * MS, 10000000);
        cr_assert_gt(net.shard[2].starts, 1, "the shard did not die");
        cr_assert(!ts_net_has_shard(&net, 2), "case %d: its node still says that it is there", k);
        cr_assert(ts_net_has_shard(&net, 1) && ts_net_has_shard(&net, 3));
        int64_t before = timers_of(2), other = timers_of(1);
        act_sim_run(net.w.sim, 5000 * MS, 10000000);
        before = timers_of(2) - before;
        other = timers_of(1) - other;
        /* Looking for it would be dozens of attempts and their deadlines more. */
        cr_assert_leq(before, other + other / 2, "case %d: %d timers in a second, elsewhere %d", k, (int)before,
                      (int)other);
        int asked = net.shard[2].puts + net.shard[2].messages;
        ts_net_run(&net);
        ts_net_check(&net, "ended for good");
        cr_assert_eq(net.shard[2].puts + net.shard[2].messages, asked);
        cr_assert_eq(ts_net_connections(&net, 0, 2, TP_CLASS_CONTROL), 1u, "its node was given up");
        ts_net_close(&net);
    }
}

/* Each refusal goes as a message, the slot is free again. */
Test(exchange_net, a_shard_that_understands_nothing_any_more_is_left_out)
{
    ts_net_open(&net, 3, 4, 8, 14);
    net.shard[2].garbled_from = 30;
    for (int i = 0; i < net.w.n; i++)
        net.w.wanted[i].start = 500 * MS + i * 300 * MS;
    ts_net_start(&net, 14);
    ts_net_run(&net);
    ts_net_check(&net, "garbled");
    int more = net.shard[2].puts - net.shard[2].garbled_from;
    cr_assert_gt(more, 0);
    cr_assert_lt(more, 100, "it was asked %d times more", more);
    for (int i = 1; i <= 3; i++)
        cr_assert_eq(ts_net_connections(&net, 0, i, TP_CLASS_EXPERT), 1u, "node %d was fenced", i);
    ts_net_close(&net);
}

/* ---- sources that fail ---- */

/* Prefill or Decode begins again in the middle of a step, with dispatches of the one before still under way: their
 * answers free the slots, and no connection to a healthy node is ended for them. */
Test(exchange_net, a_source_that_was_restarted_costs_no_connection)
{
    int killed = 0;
    for (int k = 0; k < 8; k += TS_LESS) {
        ts_net_open(&net, 3, 4, 8, 15);
        net.restart_sources = true;
        for (int i = 0; i < 3; i++)
            net.w.kill[net.w.n_kills++] = (struct ts_kill){.at = 505 * MS + i * 20 * MS + k * 700000,
                                                           .role = k % 2 ? CFG_ROLE_DECODE : CFG_ROLE_PREFILL};
        ts_net_start(&net, 15 + (uint64_t)k);
        ts_net_run(&net);
        struct act_stats_worker s;
        cr_assert_eq(act_stats_worker(net.rt[0], 1, &s), 0);
        killed += (int)s.restarts;
        for (int i = 0; i < net.w.n; i++)
            cr_assert_eq(net.w.got[i].terminal, 1, "case %d, request %d", k, i);
        for (int i = 1; i <= 3; i++) {
            cr_assert_eq(ts_net_connections(&net, 0, i, TP_CLASS_EXPERT), 1u, "case %d: node %d was fenced", k, i);
            cr_assert_gt(net.shard[i].puts, 20);
        }
        ts_net_close(&net);
    }
    cr_assert_gt(killed, 0, "nobody was restarted");
}

/* A shard that forgets: its slots are in use until the connection is ended for their sake, then it serves again. */
Test(exchange_net, slots_that_are_not_given_back_are_fenced)
{
    ts_net_open(&net, 2, 4, 8, 9);
    net.shard[1].deaf = 6;
    net.w.wanted[7].start = 4000 * MS;
    net.w.wanted[7].max_new = TS_WORLD_NEW;
    ts_net_start(&net, 9);
    act_sim_run(net.w.sim, 3900 * MS, 10000000);
    int before = net.shard[1].puts;
    ts_net_run(&net);
    ts_net_check(&net, "deaf");
    cr_assert_gt(net.shard[1].puts, before + 20);
    cr_assert_gt(ts_net_connections(&net, 0, 1, TP_CLASS_EXPERT), 1u, "nothing was fenced");
    cr_assert_eq(ts_net_connections(&net, 0, 2, TP_CLASS_EXPERT), 1u, "the other node was fenced");
    for (int i = 1; i <= 2; i++) {
        cr_assert_eq(ts_net_connections(&net, 0, i, TP_CLASS_CONTROL), 1u, "node %d was given up", i);
        cr_assert_eq(ts_net_connections(&net, 0, i, TP_CLASS_KV), 1u);
    }
    ts_net_close(&net);
}

/* ---- the balancer that is in charge, and the next one ---- */

enum { MAPS = 256 };

/* What the balancers have rolled out, by node. */
struct maps {
    int n;
    struct {
        int node;
        uint32_t version;
        int on_first; /* experts on the first shard, of all layers */
        int64_t at;
    } map[MAPS];
};

static struct maps maps;

static void note_map(void *ctx, const struct act_balance *b)
{
    const struct ts_net_shard *s = ctx;
    int on_first = 0;
    cr_assert_lt(maps.n, MAPS, "maps go back and forth");
    for (int l = 0; l < b->map->layers; l++)
        for (int e = 0; e < b->map->experts; e++)
            on_first += act_map_holds(b->map, l, 0, e);
    maps.map[maps.n].node = s->node;
    maps.map[maps.n].version = b->map->version;
    maps.map[maps.n].on_first = on_first;
    maps.map[maps.n++].at = act_sim_now(net.w.sim);
}

static void take_away(void *ctx)
{
    (void)ctx;
    ts_net_cut(&net, 1, true);
}

static void bring_back(void *ctx)
{
    (void)ctx;
    ts_net_cut(&net, 1, false);
}

/* Requests from 0.5 s to 3 s; the first node, which has the balancer in charge, is away from `from` to `to`. */
static void run_balanced(int64_t from, int64_t to, unsigned seed)
{
    ts_net_open(&net, 3, 8, 60, seed);
    net.balance = true;
    net.changed = note_map;
    maps.n = 0;
    for (int i = 0; i < net.w.n; i++) {
        net.w.wanted[i].start = 500 * MS + i * 45 * MS;
        net.w.wanted[i].n_prompt = 1 + net.w.wanted[i].n_prompt % 24;
        net.w.wanted[i].max_new = 1 + net.w.wanted[i].max_new % 6;
    }
    ts_net_start(&net, seed);
    cr_assert_eq(act_sim_at(net.w.sim, from, take_away, NULL), 0);
    if (to)
        cr_assert_eq(act_sim_at(net.w.sim, to, bring_back, NULL), 0);
    ts_net_run(&net);
    ts_net_check(&net, "balanced");
}

static int maps_of(int node, int64_t from, int64_t to)
{
    int n = 0;
    for (int i = 0; i < maps.n; i++)
        n += maps.map[i].node == node && maps.map[i].at > from && maps.map[i].at <= to;
    return n;
}

/* No version has two makers, and each balancer's go up. */
static void check_versions(void)
{
    for (int i = 0; i < maps.n; i++)
        for (int k = 0; k < i; k++) {
            cr_assert_neq(maps.map[i].version, maps.map[k].version, "version %u was made twice", maps.map[i].version);
            if (maps.map[i].node == maps.map[k].node)
                cr_assert_gt(maps.map[i].version, maps.map[k].version);
        }
}

/* At any moment: before the first map, in the middle of a roll-out, between two. */
Test(exchange_net, when_the_node_with_the_balancer_is_lost_the_next_one_goes_on)
{
    int before = 0;
    for (int k = 0; k < 6; k += TS_LESS) {
        int64_t from = 1000 * MS + k * 7 * MS;
        uint32_t newest = 0;
        run_balanced(from, 0, 11);
        before += maps_of(1, 0, from);
        cr_assert_eq(maps_of(2, 0, from) + maps_of(3, 0, from), 0, "two are in charge");
        cr_assert_gt(maps_of(2, from, INT64_MAX), 0, "nobody is in charge");
        cr_assert_eq(maps_of(3, from, INT64_MAX), 0);
        check_versions();
        for (int i = 0; i < maps.n; i++) {
            if (maps.map[i].node == 1 && maps.map[i].at <= from)
                newest = maps.map[i].version;
            if (maps.map[i].node == 2) {
                cr_assert_gt(maps.map[i].version, newest, "the successor did not read the versions");
                cr_assert_eq(maps.map[i].on_first, 0, "experts are placed on a node that is gone");
            }
        }
        ts_net_close(&net);
    }
    cr_assert_gt(before, 0);
}

/* It was alone for a time and took itself for the one in charge; the higher version stays, and all shards are used. */
Test(exchange_net, a_balancer_that_comes_back_is_in_charge_again)
{
    int64_t from = 1000 * MS, to = 2000 * MS;
    run_balanced(from, to, 12);
    cr_assert_gt(maps_of(2, from, to + 500 * MS), 0);
    cr_assert_gt(maps_of(1, to + 100 * MS, INT64_MAX), 0, "it does nothing");
    cr_assert_eq(maps_of(2, to + 600 * MS, INT64_MAX), 0, "two are in charge");
    check_versions();
    cr_assert_gt(maps.map[maps.n - 1].on_first, 0, "the node is back and holds nothing");
    ts_net_close(&net);
}
