/* The expert exchange of a deployment for many seeds: sources and shards on nodes of their own, over slots, the link
 * and a network, where everything is drawn from the seed: sharding, replicas, sizes of slots and waves, which shard
 * fails at which dispatch (in a later wave of a batch, too) and whether it begins again, which node's process ends and
 * is back under a new epoch, which node is silent, deaf or cut off, and which words of the link are lost, doubled, late
 * or refused. As long as somebody who can compute is left, every request ends with the tokens of a run without actors;
 * where nobody is, with an error in time. Nothing is left over.
 *
 * WEFT_SEED=N runs the seed N alone and says what its deployment is, WEFT_SEEDS=N the seeds 1 to N; WEFT_TRACE=1
 * prints every step. */
#include "tests/harness.h"

#include <errno.h>

#include "actors/recipe.h"
#include "actors/runtime/stats.h"
#include "tests/support/expert_net.h"
#include "tests/support/less.h"
#include "tests/support/model.h"

#define MS INT64_C(1000000)

enum { SEEDS = 64 / TS_LESS, EVENTS = 3 };

enum kind { FAILS, FAILS_IN_WAVE, GOES, IS_DEAF, IS_SILENT, RESTARTS, IS_CUT_OFF, KINDS };

static const char *const kind_name[KINDS] = {"fails",     "fails in a later wave", "fails for good", "is deaf",
                                             "is silent", "ends as a process",     "is cut off"};

struct event {
    struct run *r;
    enum kind kind;
    int node, at; /* dispatches or writes */
    int64_t from, ns;
    bool happened;
};

struct run {
    struct ts_expert_net net;
    uint64_t seed, random;
    struct event event[EVENTS];
    int events, maps;
    int noise[TP_FAULT_CRASH + 1]; /* rules of each kind */
    bool replicated, nobody;       /* is left in the end */
};

/* Over all seeds. */
struct total {
    struct ts_net_counts count;
    int happened[KINDS], noise[TP_FAULT_CRASH + 1];
    int replicated, balanced, maps, taken_over, requests, failed;
};

static int draw(struct run *r, int n)
{
    return (int)ts_random(&r->random, (uint32_t)n);
}

static bool one_in(struct run *r, int n)
{
    return draw(r, n) == 0;
}

/* ---- what happens ---- */

static void begin_again(void *ctx)
{
    struct event *v = ctx;
    ts_net_begin(&v->r->net, v->node);
}

static void heal(void *ctx)
{
    struct event *v = ctx;
    ts_net_cut(&v->r->net, v->node, false);
}

static void strike(void *ctx)
{
    struct event *v = ctx;
    struct ts_expert_net *n = &v->r->net;
    v->happened = true;
    if (v->kind == RESTARTS)
        ts_net_end(n, v->node);
    else
        ts_net_cut(n, v->node, true);
    cr_assert_eq(act_sim_at(n->w.sim, act_sim_now(n->w.sim) + v->ns, v->kind == RESTARTS ? begin_again : heal, v), 0);
}

static bool is_taken(const struct run *r, int node)
{
    for (int i = 0; i < r->events; i++)
        if (r->event[i].node == node)
            return true;
    return false;
}

/* Each of another node. */
static void draw_event(struct run *r)
{
    struct ts_expert_net *n = &r->net;
    struct event *v = &r->event[r->events];
    *v = (struct event){.r = r,
                        .kind = (enum kind)draw(r, KINDS),
                        .node = 1 + draw(r, n->shards),
                        .at = 1 + draw(r, 200),
                        .from = 505 * MS + draw(r, 120) * MS,
                        .ns = one_in(r, 2) ? 1 + draw(r, 60) * MS : draw(r, 900) * MS};
    if (v->kind == IS_CUT_OFF)
        v->node = draw(r, n->shards + 1);
    if (is_taken(r, v->node))
        return;
    r->events++;
    struct ts_net_shard *s = &n->shard[v->node];
    if (v->kind <= GOES)
        s->die_at = v->at;
    s->later_wave = v->kind == FAILS_IN_WAVE;
    s->for_good = v->kind == GOES;
    s->deaf = v->kind == IS_DEAF ? 1 + v->at % 8 : 0;
    if (v->kind == IS_CUT_OFF) {
        struct tp_fault *f = &n->fault[v->node];
        f->rule[f->rules++] = (struct tp_fault_rule){.on = TP_FAULT_SEND | TP_FAULT_PUT,
                                                     .classes = 1 << TP_CLASS_EXPERT,
                                                     .what = one_in(r, 2) ? TP_FAULT_CRASH : TP_FAULT_KILL,
                                                     .at = (uint64_t)v->at * 2};
    }
}

static void draw_noise(struct run *r)
{
    static const struct {
        enum tp_fault_do what;
        uint32_t on;
    } noise[] = {{TP_FAULT_LOSE, TP_FAULT_IMMEDIATE | TP_FAULT_PUT_DONE},
                 {TP_FAULT_LOSE, TP_FAULT_PUT},
                 {TP_FAULT_DOUBLE, TP_FAULT_IMMEDIATE | TP_FAULT_PUT_DONE | TP_FAULT_FRAME},
                 {TP_FAULT_DELAY, TP_FAULT_IMMEDIATE | TP_FAULT_FRAME},
                 {TP_FAULT_REFUSE, TP_FAULT_PUT | TP_FAULT_SEND}};
    int k = draw(r, 5), rare = noise[k].what <= TP_FAULT_DELAY ? 8 : 1; /* a step has up to some thousand puts */
    for (int i = 0; i <= r->net.shards; i++) {
        struct tp_fault *f = &r->net.fault[i];
        f->rule[f->rules++] = (struct tp_fault_rule){.on = noise[k].on,
                                                     .classes = 1 << TP_CLASS_EXPERT,
                                                     .what = noise[k].what,
                                                     .at = 1 + (uint64_t)draw(r, 100),
                                                     .every = (uint64_t)(rare * (100 + draw(r, 200))),
                                                     .delay_ns = draw(r, 60) * MS};
    }
    r->noise[noise[k].what] = 1;
}

static void note_map(void *ctx, const struct act_balance *b)
{
    const struct ts_net_shard *s = ctx;
    (void)b;
    ((struct run *)(void *)((uint8_t *)s->net - offsetof(struct run, net)))->maps++;
}

static void draw_world(struct run *r)
{
    static const int rows[] = {64, 6, 3, 1, 0};
    struct ts_expert_net *n = &r->net;
    int shards = 1 + draw(r, 5), slot_rows = rows[draw(r, 9) / 2];
    ts_net_open(n, shards, slot_rows, 3 + draw(r, 4), (unsigned)r->seed);
    for (int i = 0; i < n->w.n; i++) { /* long prompts take waves, many short ones many steps */
        n->w.wanted[i].n_prompt = 1 + n->w.wanted[i].n_prompt % (i % 2 ? 24 : 80);
        n->w.wanted[i].max_new = 1 + n->w.wanted[i].max_new % 12;
    }
    if ((r->replicated = one_in(r, 2)))
        ts_net_replicate(n, r->seed);
    n->other_rows = slot_rows && one_in(r, 6) ? slot_rows + 1 : 0;
    n->w.e.experts.limits.rows = one_in(r, 3) ? 1 + draw(r, 8) : 0;
    n->restart_delay_ns = one_in(r, 2) ? draw(r, 80) * MS : 0;
    n->balance = one_in(r, 4);
    n->changed = note_map;
    for (int i = draw(r, EVENTS + 1); i > 0; i--)
        draw_event(r);
    if (one_in(r, 2))
        draw_noise(r);
    int go = 0;
    for (int i = 0; i < r->events; i++)
        go += r->event[i].kind == GOES;
    if ((r->nobody = go == shards))
        n->w.e.experts.limits.patience_ns = 500 * MS;
}

static void describe(const struct run *r)
{
    const struct ts_expert_net *n = &r->net;
    fprintf(stderr, "seed %d: %d shards%s%s, slots of %d rows (the last one's %d), waves of %d, %d requests\n",
            (int)r->seed, n->shards, r->replicated ? " with replicas" : "", n->balance ? ", balanced" : "",
            n->slot_rows, n->other_rows ? n->other_rows : n->slot_rows, n->w.e.experts.limits.rows, n->w.n);
    for (int i = 0; i < r->events; i++)
        fprintf(stderr, "  node %d %s: at %d, or from %lld us for %lld us\n", r->event[i].node,
                kind_name[r->event[i].kind], r->event[i].at, (long long)r->event[i].from / 1000,
                (long long)r->event[i].ns / 1000);
    for (int i = 0; i <= TP_FAULT_CRASH; i++)
        if (r->noise[i])
            fprintf(stderr, "  noise of kind %d, now and then\n", i);
}

/* ---- a run ---- */

static void no_questions(const struct run *r, const struct act_runtime *rt, int node)
{
    int messages, requests;
    for (int from = 0; from < act_runtime_workers(rt); from++)
        for (int to = 0; to < act_runtime_workers(rt); to++)
            if (act_stats_lane(rt, from, to, &messages, &requests) == 0)
                cr_assert_eq(requests, 0, "seed %d, node %d: %d questions from worker %d to %d have no end",
                             (int)r->seed, node, requests, from, to);
}

static void check_requests(struct run *r, struct total *t)
{
    struct ts_world *w = &r->net.w;
    struct kv_device_stats s;
    for (int i = 0; i < w->n; i++) {
        const struct ts_outcome *o = &w->got[i];
        bool failed = o->status == -ENOLINK || o->finish == ACT_FINISH_ERROR;
        cr_assert(o->terminal == 1 && (!o->status || failed) && (!failed || r->nobody),
                  "seed %d, request %d: %d ends, status %d", (int)r->seed, i, o->terminal, o->status);
        t->failed += failed;
        if (!failed)
            ts_world_check_same(w, i);
    }
    kv_device_stat(w->e.device, &s);
    cr_assert_le(s.held, w->e.limits.lease, "seed %d: %d pages are held", (int)r->seed, s.held);
    cr_assert_eq(mdl_seq_live(), r->net.sequences, "seed %d: sequences are left", (int)r->seed);
}

static void count(const struct run *r, struct total *t)
{
    const struct ts_net_counts *c = &r->net.count;
    int *sum = (int *)&t->count;
    for (size_t i = 0; i < sizeof *c / sizeof(int); i++)
        sum[i] += ((const int *)c)[i];
    for (int i = 0; i < r->events; i++) {
        const struct event *v = &r->event[i];
        const struct ts_net_shard *s = &r->net.shard[v->node];
        const struct tp_fault *f = &r->net.fault[v->node];
        bool cut_off = false;
        for (int k = 0; k < f->rules; k++)
            cut_off |= f->rule[k].what >= TP_FAULT_KILL && f->rule[k].done;
        t->happened[v->kind] += v->kind <= GOES         ? !s->die_at
                                : v->kind == IS_DEAF    ? s->deaf < 1 + v->at % 8
                                : v->kind == IS_CUT_OFF ? cut_off
                                                        : v->happened;
        t->taken_over += v->kind == GOES && !s->die_at && !r->replicated;
    }
    for (int i = 0; i <= r->net.shards; i++)
        for (int k = 0; k < r->net.fault[i].rules; k++)
            t->noise[r->net.fault[i].rule[k].what] += (int)r->net.fault[i].rule[k].done;
    t->replicated += r->replicated;
    t->balanced += r->net.balance;
    t->maps += r->maps;
    t->requests += r->net.w.n;
}

static void run_seed(uint64_t seed, bool say, struct total *t)
{
    static struct run run;
    struct run *r = &run;
    struct ts_expert_net *n = &r->net;
    memset(r, 0, sizeof *r);
    r->seed = r->random = seed;
    draw_world(r);
    if (say)
        describe(r);
    if (getenv("WEFT_TRACE"))
        n->w.trace = stderr;
    ts_net_start(n, seed);
    for (int i = 0; i < r->events; i++)
        if (r->event[i].kind == IS_SILENT || r->event[i].kind == RESTARTS)
            cr_assert_eq(act_sim_at(n->w.sim, r->event[i].from, strike, &r->event[i]), 0);
    ts_net_run(n);
    act_sim_run(n->w.sim, act_sim_now(n->w.sim) + 1500 * MS, 10000000); /* nodes that were silent are back */
    check_requests(r, t);
    for (int i = 0; i <= n->shards; i++) /* a put whose end was lost ends with its connection */
        ts_net_cut(n, i, true);
    act_sim_run(n->w.sim, act_sim_now(n->w.sim) + 2000 * MS, 10000000);
    for (int i = 0; i <= n->shards; i++)
        no_questions(r, n->rt[i], i);
    count(r, t);
    ts_net_close(n);
}

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void check_coverage(const struct total *t, int seeds)
{
    const struct ts_net_counts *c = &t->count;
    for (int i = 0; i < KINDS; i++)
        cr_expect_gt(t->happened[i], 0, "in %d seeds no node %s", seeds, kind_name[i]);
    for (int i = 0; i <= TP_FAULT_CRASH; i++)
        cr_expect_gt(t->noise[i], 0, "in %d seeds no word of the link had fault %d", seeds, i);
    cr_expect_gt(c->puts, 100 * seeds, "%d dispatches in slots", c->puts);
    cr_expect_gt(c->messages, seeds, "%d dispatches as messages", c->messages);
    cr_expect_gt(c->waves, seeds, "%d dispatches of later waves", c->waves);
    cr_expect_gt(c->in_wave, 0, "no shard failed in a later wave");
    cr_expect_gt(t->taken_over, 0, "nobody's experts had to be taken over");
    cr_expect_gt(t->failed, 0, "somebody was always left");
    cr_expect_lt(t->failed, t->requests / 8);
    cr_expect_gt(t->maps, 0, "no map of a balancer was rolled out");
}

Test(simulated_experts, whatever_becomes_of_shards_and_their_links_the_tokens_are_the_same)
{
    struct total t = {0};
    uint64_t one = from_environment("WEFT_SEED", 0), last = from_environment("WEFT_SEEDS", SEEDS);
    for (uint64_t seed = one ? one : 1; seed <= (one ? one : last); seed++)
        run_seed(seed, one, &t);
    const struct ts_net_counts *c = &t.count;
    cr_log_info("%d requests, of which %d failed, as nobody was left; dispatches: %d in slots, %d as messages, %d of "
                "later waves; shards: %d failed, %d of them in "
                "a later wave, %d for good (%d without replicas), %d dispatches forgotten; nodes: %d restarts, %d "
                "silences, %d cut off; %d seeds with replicas, %d balanced with %d maps; link: %d lost, %d late, %d "
                "doubled, %d refused",
                t.requests, t.failed, c->puts, c->messages, c->waves, c->deaths, c->in_wave, c->gone, t.taken_over,
                c->forgotten, c->restarts, t.happened[IS_SILENT], t.happened[IS_CUT_OFF], t.replicated, t.balanced,
                t.maps, t.noise[TP_FAULT_LOSE], t.noise[TP_FAULT_DELAY], t.noise[TP_FAULT_DOUBLE],
                t.noise[TP_FAULT_REFUSE]);
    if (!one && last >= 64)
        check_coverage(&t, (int)last);
}
