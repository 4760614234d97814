/* What nobody waits for any more ends everywhere, and keeps nobody else waiting: a gateway dies with a long queue, or
 * is lost for a moment and comes back in the same life. Gateway, Prefill and Decode are nodes of their own, with their
 * links over the simulated network. In exact mode, where a request that goes on elsewhere has the same tokens. */
#include "tests/harness.h"

#include <string.h>

#include "actors/decode.h"
#include "actors/decode_impl.h"
#include "actors/prefill.h"
#include "actors/prefill_impl.h"
#include "tests/support/less.h"
#include "tests/support/nodes_world.h"

#define MS INT64_C(1000000)

enum { REQUESTS = 24, LATER = 4, PROMPT = 60, TOKENS = 12, SEEDS = 6 };

static struct ts_nodes net;
static int32_t want[REQUESTS + LATER][256];
static bool known;

/* All of the first REQUESTS come at once; the later ones are left to the test. */
static void open_net(int later, uint64_t seed)
{
    struct ts_world *w = &net.w;
    ts_nodes_open_apart(&net, seed);
    net.turn_ns = MS / 10;
    net.prefill_ns = MS / 2;
    w->n = REQUESTS + later;
    for (int i = 0; i < REQUESTS + LATER; i++) {
        struct ts_wanted *q = &w->wanted[i];
        *q = (struct ts_wanted){.n_prompt = PROMPT + i % 8,
                                .max_new = TOKENS,
                                .seed = (uint64_t)i,
                                .temperature = (float)(i % 2),
                                .start = i < REQUESTS ? 500 * MS + i * MS / 20 : INT64_C(1) << 60};
        for (int k = 0; k < q->n_prompt; k++)
            q->prompt[k] = (i * 131 + k * 7 + 5) % w->m->cfg->vocab_size;
        if (!known)
            ts_world_plain(w, q, NULL, want[i]);
    }
    known = true;
    ts_nodes_start(&net, seed);
}

/* Jobs at Prefill: of all requests, or of the ones from `first` on. */
static int jobs(uint64_t first)
{
    int n = 0;
    for (int i = 0; i < net.n_actors[0]; i++) {
        const struct prefill *p = net.actor[0][i].state;
        if (net.actor[0][i].behaviour != &act_prefill_behaviour)
            continue;
        for (const struct job *j = p->first; j; j = j->next)
            n += j->request > first;
    }
    return n;
}

/* Places at Decode that somebody is to have tokens from. */
static int wanted_places(void)
{
    int n = 0;
    for (int i = 0; i < net.n_actors[1]; i++) {
        const struct decode *d = net.actor[1][i].state;
        if (net.actor[1][i].behaviour != &act_decode_behaviour)
            continue;
        for (int k = 0; k < d->e->limits.streams; k++)
            n += d->stream[k].state != DEC_FREE && !d->stream[k].cancelled;
    }
    return n;
}

/* The most jobs that a request has, without those that end with their step. */
static int doubles(void)
{
    int n[REQUESTS + LATER + 1] = {0}, most = 0;
    for (int i = 0; i < net.n_actors[0]; i++) {
        const struct prefill *p = net.actor[0][i].state;
        if (net.actor[0][i].behaviour != &act_prefill_behaviour)
            continue;
        for (const struct job *j = p->first; j; j = j->next)
            most = !j->cancelled && ++n[j->request] > most ? n[j->request] : most;
    }
    return most;
}

static int with_tokens(void)
{
    int n = 0;
    for (int i = 0; i < REQUESTS; i++)
        n += net.w.got[i].n > 0;
    return n;
}

static int replaced(void)
{
    int n = 0;
    for (int i = 0; i < net.w.n; i++)
        n += net.w.got[i].place.replaced;
    return n;
}

/* Some are being decoded, many wait for Prefill. */
static void until_half_way(int tokens)
{
    while (with_tokens() < tokens) {
        cr_assert_lt(act_sim_now(net.w.sim), 20000 * MS, "nothing goes on");
        ts_nodes_run(&net, MS / 4);
    }
    cr_assert_gt(jobs(0), REQUESTS / 3, "only %d prompts are left", jobs(0));
}

static void check_same(int from, int to, const char *when)
{
    for (int i = from; i < to; i++) {
        const struct ts_outcome *o = &net.w.got[i];
        cr_assert_eq(o->terminal, 1, "%s, request %d: %d ends, status %d", when, i, o->terminal, o->status);
        cr_assert(!o->status && o->n == TOKENS, "%s, request %d: status %d, %d tokens", when, i, o->status, o->n);
        cr_assert_arr_eq(o->ids, want[i], TOKENS * sizeof o->ids[0], "%s, request %d: other tokens", when, i);
    }
}

/* Dispatches that a prompt costs, more or less. */
static uint64_t cost_of_a_prompt(void)
{
    static uint64_t cost;
    if (!cost) {
        open_net(0, 1);
        cr_assert(ts_nodes_run_all(&net, 20000 * MS), "they do not end");
        cost = net.dispatches / REQUESTS;
        ts_nodes_run(&net, 3000 * MS);
        check_same(0, REQUESTS, "undisturbed");
        cr_expect_eq(replaced(), 0);
        ts_nodes_check(&net, "undisturbed");
        ts_nodes_close(&net);
    }
    return cost;
}

static void gateway_dies(uint64_t seed, bool unheard)
{
    char when[64];
    uint64_t prompt = cost_of_a_prompt(), before;
    snprintf(when, sizeof when, "seed %d%s", (int)seed, unheard ? ", unheard" : "");
    open_net(LATER, seed);
    net.deaf = unheard;
    net.turn_ns = unheard ? net.turn_ns : 2 * MS; /* a round is long: its tokens tell nothing yet */
    until_half_way(1 + (int)seed);
    int queued = jobs(0);
    before = net.dispatches;
    cr_assert_gt(wanted_places(), 0);
    ts_nodes_kill(&net, TS_NODES_GATEWAY);
    ts_nodes_run(&net, 16 * MS);
    if (!unheard) { /* what is in a step or a round ends with that */
        cr_assert_leq(jobs(0), net.prefill.limits.prefills, "%s: %d prompts are left", when, jobs(0));
        cr_assert_eq(wanted_places(), 0, "%s: %d sequences go on", when, wanted_places());
    }
    ts_nodes_run(&net, 100 * MS); /* the step that was running has ended */
    for (int i = 0; i < LATER; i++)
        net.w.wanted[REQUESTS + i].start = act_sim_now(net.w.sim) + 300 * MS;
    if (!unheard)
        cr_assert_eq(jobs(0), 0, "%s: %d prompts of the dead gateway are left", when, jobs(0));
    ts_nodes_restart(&net, TS_NODES_GATEWAY);
    cr_assert(ts_nodes_run_all(&net, act_sim_now(net.w.sim) + 20000 * MS));
    check_same(REQUESTS, REQUESTS + LATER, when);
    /* Those that run at that moment may come to the end of their step, no more; where nobody is told, to their first
     * word. */
    uint64_t most = (LATER + 1 + (uint64_t)(unheard ? queued / 2 : 1)) * prompt;
    cr_assert_lt(net.dispatches - before, most, "%s: %d dispatches, %d for a prompt", when,
                 (int)(net.dispatches - before), (int)prompt);
    ts_nodes_run(&net, 3000 * MS);
    cr_assert_eq(jobs(0), 0, "%s: %d jobs", when, jobs(0));
    ts_nodes_check(&net, when);
    ts_nodes_close(&net);
}

Test(unwanted, a_gateway_that_dies_leaves_no_queue)
{
    for (uint64_t seed = 1; seed <= SEEDS / TS_LESS + 1; seed++)
        gateway_dies(seed, false);
}

/* Even so, what comes back ends it: the word that a prompt has begun, or tokens. */
Test(unwanted, a_gateway_that_dies_unheard_costs_no_more_than_the_next_word)
{
    for (uint64_t seed = 1; seed <= SEEDS / TS_LESS + 1; seed++)
        gateway_dies(seed, true);
}

static void gateway_is_lost(uint64_t seed, bool unheard)
{
    char when[64];
    snprintf(when, sizeof when, "seed %d%s", (int)seed, unheard ? ", unheard" : "");
    uint64_t prompt = cost_of_a_prompt();
    open_net(0, seed);
    net.deaf = unheard ? 2 : 0; /* the queue is still there when the later attempts come */
    until_half_way(1 + (int)seed);
    ts_nodes_cut_gateway(&net, 100 * MS);
    if (!unheard)
        cr_assert_eq(jobs(0), 0, "%s: %d prompts go on", when, jobs(0));
    for (int ended = 0; !ended;) {
        ended = ts_nodes_run_all(&net, act_sim_now(net.w.sim) + MS);
        cr_assert_leq(doubles(), 1, "%s: a request has %d prompts here", when, doubles());
        cr_assert_lt(act_sim_now(net.w.sim), 60000 * MS, "%s: some have no end", when);
    }
    check_same(0, REQUESTS, when);
    cr_assert_gt(replaced(), REQUESTS / 2, "%s: %d were placed again", when, replaced());
    cr_assert_lt(net.dispatches, 2 * REQUESTS * prompt, "%s: %d dispatches, %d for a prompt", when, (int)net.dispatches,
                 (int)prompt);
    ts_nodes_run(&net, 3000 * MS);
    ts_nodes_check(&net, when);
    ts_nodes_close(&net);
}

/* Its requests are placed again, each prompt is there once, and nothing of the attempts before is left. */
Test(unwanted, a_gateway_that_is_lost_for_a_moment_has_each_prompt_once)
{
    for (uint64_t seed = 1; seed <= SEEDS / TS_LESS + 1; seed++)
        gateway_is_lost(seed, false);
}

/* The later attempt ends the earlier one, when nobody else has. */
Test(unwanted, a_later_attempt_ends_the_earlier_one)
{
    for (uint64_t seed = 1; seed <= SEEDS / TS_LESS + 1; seed++)
        gateway_is_lost(seed, true);
}
