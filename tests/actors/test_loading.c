/* A shard that loads what the next map gives it, beside its work: loading comes to its end although there is always
 * work, and nobody's rows wait for more than one expert of it. In virtual time, in which a turn of the shard and
 * loading an expert cost what is said here. The Makefile puts __wrap_mdl_expert_load between the shard and
 * mdl_expert_load. */
#include "tests/harness.h"

#include "actors/exchange.h"
#include "actors/exchange_wire.h"
#include "actors/expert.h"
#include "actors/runtime/sim.h"

enum { MS = 1000000, TURN = MS, PIECE = 5 * MS, ASKED = 3, LAYERS = 8, EXPERTS = 8, PIECES = LAYERS * EXPERTS / 2 };
enum { TAG_BEGIN, TAG_SINGLE };

/* Between two experts while there is work: see expert.c. */
static const int64_t every = INT64_C(50) * MS;

static struct {
    struct mdl_model *m;
    struct act_self *shard; /* the one that runs */
    struct act_addr addr;
    struct act_map *next; /* the plan; NULL: none */
    bool steady;          /* dispatches are under way all the time; else one is sent at `single` */
    int64_t single;
    /* What was seen. */
    int loaded, in_turn, most_in_turn, without_work, under_way;
    int64_t load_at, nearest; /* the last expert; the shortest time between two of them */
    int ready, answers;
    int64_t planned_at, ready_at, longest;
} t;

void __real_mdl_expert_load(const struct mdl_model *m, int layer, int expert);
void __wrap_mdl_expert_load(const struct mdl_model *m, int layer, int expert);

void __wrap_mdl_expert_load(const struct mdl_model *m, int layer, int expert)
{
    int64_t now = act_now(t.shard);
    __real_mdl_expert_load(m, layer, expert);
    if (t.loaded++ && now - t.load_at < t.nearest)
        t.nearest = now - t.load_at;
    t.load_at = now;
    t.in_turn++;
    act_busy(t.shard, PIECE);
}

/* ---- the shard, watched ---- */

static int start(struct act_self *self, void *state, const void *arg)
{
    t.shard = self;
    return act_expert_behaviour.start(self, state, arg);
}

static int receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    t.in_turn = 0;
    int r = act_expert_behaviour.receive(self, state, m, count);
    t.most_in_turn = t.in_turn > t.most_in_turn ? t.in_turn : t.most_in_turn;
    t.without_work += t.in_turn && !t.under_way;
    return r;
}

/* ---- who asks it ---- */

/* One row for every expert of a layer, so that it takes a turn for each. */
static void dispatch(struct act_self *self, int layer)
{
    struct act_dispatch_size size = {1, EXPERTS, (uint32_t)t.m->cfg->hidden, 0};
    struct act_dispatch d;
    struct act_msg m;
    size_t bytes;
    cr_assert_eq(act_msg_new(ACT_EXPERT_DISPATCH, t.addr, act_dispatch_bytes(&size), &m), 0);
    memset(act_msg_tail(&m, &bytes), 0x30, act_dispatch_bytes(&size));
    *act_p_expert_dispatch(&m) = (struct act_p_expert_dispatch){
        .sequence = (uint32_t)(act_now(self) / 1000), .map = 1, .layer = (uint16_t)layer, .rows = 1};
    act_dispatch_place(&size, act_msg_tail(&m, &bytes), &d);
    d.pairs[0] = EXPERTS;
    for (int i = 0; i < EXPERTS; i++)
        d.pair[i] = (struct act_dispatch_pair){(uint32_t)i, 0.5f};
    cr_assert_eq(act_request(self, &m), 0);
    t.under_way++;
}

static void plan(struct act_self *self)
{
    struct act_msg m;
    size_t bytes;
    cr_assert_eq(act_msg_new(ACT_EXPERT_PLAN, t.addr, act_map_bytes(t.next), &m), 0);
    act_p_expert_plan(&m)->map = t.next->version;
    act_map_write(t.next, act_msg_tail(&m, &bytes));
    cr_assert_eq(act_request(self, &m), 0);
    t.planned_at = act_now(self);
}

static int asker_start(struct act_self *self, void *state, const void *arg)
{
    struct act_timer *timer = state;
    (void)arg;
    act_timer_after(self, &timer[0], MS, TAG_BEGIN);
    if (!t.steady)
        act_timer_after(self, &timer[1], t.single, TAG_SINGLE);
    return 0;
}

static void begin(struct act_self *self)
{
    for (int i = 0; t.steady && i < ASKED; i++)
        dispatch(self, i);
    if (t.next)
        plan(self);
}

static int asker_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    (void)state;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_TIMER && act_p_timer(&m[i])->tag == TAG_BEGIN) {
            begin(self);
        } else if (m[i].type == ACT_TIMER) {
            dispatch(self, 0);
        } else if (m[i].type == ACT_EXPERT_READY) {
            cr_assert_eq(act_p_expert_ready(&m[i])->status, 0);
            t.ready++;
            t.ready_at = act_now(self);
        } else if (m[i].type == ACT_EXPERT_RESULT) {
            int64_t took = act_now(self) - (int64_t)act_p_expert_result(&m[i])->sequence * 1000;
            t.longest = took > t.longest ? took : t.longest;
            t.answers++;
            t.under_way--;
            if (t.steady) /* a layer that no other one is for at this moment: they are not worked on together */
                dispatch(self, act_p_expert_result(&m[i])->layer);
        }
    }
    return 0;
}

/* Until this virtual time, or until nothing happens any more. */
static void run(bool with_plan, bool steady, int64_t single, int64_t until)
{
    static struct act_behaviour watched;
    const struct act_behaviour asker = {
        .name = "asker", .state_size = 2 * sizeof(struct act_timer), .start = asker_start, .receive = asker_receive};
    struct act_config c = {.epoch = 1, .workers = 2};
    struct act_map *map;
    struct act_runtime *rt;
    struct act_sim *sim;
    struct act_addr addr;
    struct cfg_error err;
    memset(&t, 0, sizeof t);
    t.steady = steady;
    t.single = single;
    t.nearest = INT64_MAX;
    cr_assert_eq(mdl_model_open("tests/golden/mini8", 1, NULL, &t.m, &err), 0, "%s", err.msg);
    cr_assert_eq(t.m->cfg->n_layers, LAYERS);
    cr_assert_eq(t.m->cfg->n_experts, EXPERTS);
    cr_assert_eq(act_map_even(1, LAYERS, EXPERTS, 2, &map), 0); /* half of all of them */
    if (with_plan)
        cr_assert_eq(act_map_even(2, LAYERS, EXPERTS, 1, &t.next), 0);
    const struct act_expert_arg arg = {.m = t.m, .map = map};
    cr_assert_eq(
        act_sim_new(&(struct act_sim_config){.seed = 1, .in_turn = true, .call_ns = TURN, .message_ns = 1}, &sim, &err),
        0);
    for (int i = 0; i < 2; i++)
        c.worker[i] = (struct act_worker_config){.name = "w", .kind = ACT_WORKER_ENGINE, .cpu = -1};
    cr_assert_eq(act_sim_add(sim, &c, &rt, &err), 0);
    watched = act_expert_behaviour;
    watched.start = start;
    watched.receive = receive;
    cr_assert_eq(
        act_runtime_spawn(rt, &(struct act_spawn){.behaviour = &watched, .worker = 0, .arg = &arg}, &t.addr, &err), 0);
    cr_assert_eq(act_runtime_spawn(rt, &(struct act_spawn){.behaviour = &asker, .worker = 1}, &addr, &err), 0);
    act_sim_run(sim, until, 10000000);
    act_sim_free(sim);
    act_map_free(t.next);
    act_map_free(map);
    mdl_model_close(t.m);
}

/* One expert every 50 ms, between two turns of work: so many that the balancer does not wait for ever, and so few that
 * no dispatch waits for two of them. */
Test(loading, a_shard_that_is_never_without_work_loads_all_of_a_plan_an_expert_at_a_time)
{
    const int64_t until = 2 * PIECES * every;
    run(false, true, 0, until);
    int64_t alone = t.longest;
    cr_assert_gt(t.answers, 100, "%d", t.answers);
    cr_assert_eq(t.loaded, 0);
    run(true, true, 0, until);
    cr_assert_eq(t.ready, 1, "after %lld ms of steady work %d of %d experts are loaded", (long long)(until / MS),
                 t.loaded, PIECES);
    cr_expect_eq(t.loaded, PIECES, "%d", t.loaded);
    cr_expect_eq(t.without_work, 0, "%d experts were loaded while there was no work", t.without_work);
    cr_expect_eq(t.most_in_turn, 1, "%d experts in one turn", t.most_in_turn);
    cr_expect_geq(t.nearest, every, "two experts within %lld ms", (long long)(t.nearest / MS));
    cr_expect_leq(t.ready_at - t.planned_at, PIECES * (every + PIECE + 2 * TURN), "%lld ms",
                  (long long)((t.ready_at - t.planned_at) / MS));
    cr_expect_leq(t.longest, alone + PIECE + TURN, "a dispatch took %lld us, without loading %lld",
                  (long long)(t.longest / 1000), (long long)(alone / 1000));
    cr_expect_geq(t.longest, alone + PIECE - TURN, "no dispatch was under way while experts were loaded");
}

/* A shard without work loads in one go, and yet whoever comes in the middle waits for the end of one expert only. */
Test(loading, a_dispatch_that_comes_while_experts_are_loaded_waits_for_one_of_them)
{
    run(false, false, 60 * MS, INT64_MAX);
    int64_t alone = t.longest;
    cr_assert_eq(t.answers, 1);
    for (int64_t at = 60 * MS; at < 72 * MS; at += MS) {
        run(true, false, at, INT64_MAX);
        cr_assert_eq(t.answers, 1);
        cr_assert_eq(t.ready, 1);
        cr_expect_eq(t.loaded, PIECES, "%d", t.loaded);
        cr_expect_eq(t.most_in_turn, 1, "%d experts in one turn", t.most_in_turn);
        cr_expect_gt(t.ready_at, at + alone, "it was loaded before the dispatch came");
        cr_expect_leq(t.longest, alone + PIECE + TURN, "at %lld ms: the dispatch took %lld us, without loading %lld",
                      (long long)(at / MS), (long long)(t.longest / 1000), (long long)(alone / 1000));
    }
}
