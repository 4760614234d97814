/* The expert exchange between the engine's actors: what travels, and what becomes of a step whose exchange is lost, at
 * every exchange of every layer, while answers to the lost one come late. */
#include "tests/harness.h"

#include <errno.h>
#include <limits.h>

#include "actors/eplb.h"
#include "actors/exchange_wire.h"
#include "actors/expert_finder.h"
#include "actors/link.h"
#include "actors/recipe.h"
#include "tests/support/engine_world.h"
#include "tests/support/model.h"

enum { SHARDS = 2, LAYERS_MAX = 64, HELD_MAX = 4096 };

/* What the suite does to the k-th dispatch, counted over all shards. */
enum meddling { MEDDLE_NOT, MEDDLE_RETURN, MEDDLE_DIE };

struct meddler {
    enum meddling how;
    int at;                    /* the dispatch that is meddled with; -1: none */
    int dispatches, results;   /* seen so far */
    int per_layer[LAYERS_MAX]; /* dispatches, by layer */
    int prefill, decode;       /* by source */
    int aborted_layer;         /* of the dispatch that was meddled with */
    bool forged;               /* a late answer to it is to be sent */
    struct act_p_expert_result head;
    struct act_addr to;
    size_t bytes; /* of an answer */
    int late;     /* forged answers sent */
};

static void note_dispatch(struct ts_world *w, struct meddler *d, struct act_msg *m)
{
    d->dispatches++;
    d->per_layer[act_p_expert_dispatch(m)->layer]++;
    d->prefill += act_addr_equal(m->src, w->e.prefill[0]);
    d->decode += act_addr_equal(m->src, w->e.decode[0]);
}

/* An answer to the exchange that was given up, with bytes that are no result of anything. It is sent while the step,
 * run again, waits at the same layer, and from the same shard: only its sequence tells it from the right one. */
static void send_late(struct ts_world *w, struct meddler *d, struct act_self *self, struct act_addr source)
{
    struct act_msg m;
    size_t bytes;
    cr_assert_eq(act_msg_new(ACT_EXPERT_RESULT, source, d->bytes, &m), 0);
    *act_p_expert_result(&m) = d->head;
    memset(act_msg_tail(&m, &bytes), 0x40, d->bytes);
    cr_assert_eq(act_send(self, &m), 0);
    act_flush(self);
    d->late++;
}

static bool meddle(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m, int *fail)
{
    struct meddler *d = w->before_ctx;
    d->results += who->part != TS_PART_EXPERT && m->type == ACT_EXPERT_RESULT;
    if (who->part != TS_PART_EXPERT || m->type != ACT_EXPERT_DISPATCH)
        return false;
    const struct act_p_expert_dispatch *p = act_p_expert_dispatch(m);
    if (d->forged && p->layer == d->head.layer && p->stream == d->head.stream && p->sequence != d->head.sequence) {
        send_late(w, d, self, m->src);
        d->forged = false;
    }
    bool hit = d->dispatches == d->at;
    note_dispatch(w, d, m);
    if (!hit)
        return false;
    d->aborted_layer = p->layer;
    d->head = (struct act_p_expert_result){p->sequence, p->map, p->stream, p->layer, p->rows, p->set, p->wave};
    d->bytes = (size_t)p->rows * (size_t)w->m->cfg->topk_experts * (size_t)w->m->cfg->hidden * sizeof(uint16_t);
    d->forged = true;
    if (d->how == MEDDLE_DIE) {
        *fail = -5;
        return false; /* the runtime returns it as one that its receiver died with */
    }
    act_return(self, m);
    return true;
}

static void run(struct ts_world *w, struct meddler *d, enum meddling how, int at)
{
    ts_world_open(w, 40, SHARDS);
    *d = (struct meddler){.how = how, .at = at};
    w->before = meddle;
    w->before_ctx = d;
    ts_world_requests(w, 1, 9);
    w->wanted[0].n_prompt = 30;
    w->wanted[0].max_new = 5;
    ts_world_run(w, 1);
}

static void check(struct ts_world *w, const int32_t *want, const char *what, int at)
{
    cr_assert_eq(w->got[0].terminal, 1, "%s %d", what, at);
    cr_assert_eq(w->got[0].n, 5, "%s %d: %d tokens", what, at, w->got[0].n);
    cr_assert_eq(memcmp(w->got[0].ids, want, 5 * sizeof *want), 0, "%s %d", what, at);
    ts_world_check_baseline(w);
}

/* Computes on the spot and counts which shards an exchange of actors would have addressed. */
struct counter {
    struct mdl_model *m;
    int per_layer[LAYERS_MAX], sum;
};

static int count_experts(void *ctx, struct mdl_step *step, struct mdl_exchange *x)
{
    struct counter *c = ctx;
    int experts = c->m->cfg->n_experts;
    bool used[SHARDS] = {false};
    for (int i = 0; i < x->rows * x->k && x->layer < c->m->cfg->n_layers; i++)
        for (int s = 0; s < SHARDS; s++)
            used[s] |= x->expert[i] >= experts * s / SHARDS && x->expert[i] < experts * (s + 1) / SHARDS;
    for (int s = 0; s < SHARDS && x->layer < c->m->cfg->n_layers; s++) {
        c->per_layer[x->layer] += used[s];
        c->sum += used[s];
    }
    return mdl_providers_local.experts(NULL, step, x);
}

/* Every exchange of every layer is messages: as many dispatches as shards have work, and one result for each. */
Test(exchange, each_shard_with_work_gets_one_message_and_answers_one)
{
    struct ts_world w;
    struct meddler d;
    int32_t got[256];
    run(&w, &d, MEDDLE_NOT, -1);
    struct counter c = {.m = w.m};
    const struct mdl_providers counting = {&c, count_experts, mdl_providers_local.engram, mdl_providers_local.kv};
    ts_world_plain(&w, &w.wanted[0], &counting, got);
    check(&w, got, "run", 0);
    cr_assert_gt(c.sum, 0);
    cr_assert_eq(d.dispatches, c.sum, "%d messages, %d shards had work", d.dispatches, c.sum);
    cr_assert_eq(d.results, c.sum);
    cr_assert_eq(d.prefill + d.decode, c.sum);
    cr_assert_gt(d.prefill, 0);
    cr_assert_gt(d.decode, 0);
    for (int l = 0; l < w.m->cfg->n_layers; l++)
        cr_assert_eq(d.per_layer[l], c.per_layer[l], "layer %d: %d messages instead of %d", l, d.per_layer[l],
                     c.per_layer[l]);
    ts_world_close(&w);
}

static void meddle_everywhere(enum meddling how, const char *what)
{
    struct ts_world w;
    struct meddler d;
    int32_t want[256];
    run(&w, &d, MEDDLE_NOT, -1);
    ts_world_plain(&w, &w.wanted[0], NULL, want);
    int dispatches = d.dispatches, layers = w.m->cfg->n_layers, hit[LAYERS_MAX] = {0}, late = 0;
    ts_world_close(&w);
    for (int k = 0; k < dispatches; k++) {
        run(&w, &d, how, k);
        check(&w, want, what, k);
        /* The step began again: at least the lost exchange was asked for once more. */
        cr_assert_gt(d.dispatches, dispatches, "%s %d: no step was run again", what, k);
        hit[d.aborted_layer]++;
        late += d.late;
        ts_world_close(&w);
    }
    for (int l = 0; l < layers; l++)
        cr_assert_gt(hit[l], 0, "layer %d was never aborted", l);
    cr_assert_eq(late, dispatches, "%d of %d late answers were sent", late, dispatches);
}

Test(exchange, a_step_that_lost_any_exchange_is_run_again_with_the_same_bits)
{
    meddle_everywhere(MEDDLE_RETURN, "returned dispatch");
}

Test(exchange, a_step_whose_shard_died_at_any_exchange_is_run_again_with_the_same_bits)
{
    meddle_everywhere(MEDDLE_DIE, "death at dispatch");
}

/* ---- shards as processes: links, replicas, waves, deaths ---- */

enum { MS = 1000000 };

/* A map with replicas here and there, every expert somewhere. */
static struct act_map *random_map(const struct ts_world *w, uint64_t seed, uint32_t version)
{
    const struct mdl_config *cfg = w->m->cfg;
    int shards = w->e.experts.n, slots = (cfg->n_experts + shards - 1) / shards + (int)ts_random(&seed, 3);
    float *load = malloc((size_t)cfg->n_layers * (size_t)cfg->n_experts * sizeof *load);
    static const struct act_shard_set nobody;
    struct act_map *map;
    for (int i = 0; i < cfg->n_layers * cfg->n_experts; i++)
        load[i] = (float)(1 + ts_random(&seed, 100));
    cr_assert_eq(act_eplb_place(version, cfg->n_layers, cfg->n_experts, shards, slots, &nobody, load, NULL, &map), 0);
    free(load);
    return map;
}

static void open_apart(struct ts_world *w, int shards, uint64_t seed)
{
    ts_world_open(w, 40, shards);
    act_map_free(w->map);
    w->e.experts.map = w->map = random_map(w, seed, 1);
    w->apart = true;
    w->link = (struct act_sim_fault){.delay_min = 20000, .delay_max = 200000};
    ts_world_requests(w, 6, (unsigned)seed);
}

static void check_all(struct ts_world *w, uint64_t seed)
{
    for (int i = 0; i < w->n; i++)
        cr_assert_eq(w->got[i].terminal, 1, "seed %d: request %d had %d ends", (int)seed, i, w->got[i].terminal);
    for (int i = 0; i < w->n; i++)
        ts_world_check_same(w, i);
    ts_world_check_baseline(w);
}

/* No message has more rows than a shard's slots. */
static bool check_rows(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                       int *fail)
{
    int most = w->e.experts.limits.rows;
    if (who->part == TS_PART_EXPERT && m->type == ACT_EXPERT_DISPATCH && most) {
        cr_assert_le(act_p_expert_dispatch(m)->rows, most);
        *(int *)w->before_ctx += act_p_expert_dispatch(m)->wave > 0;
    }
    return false;
}

Test(exchange, any_sharding_replication_and_size_of_waves_gives_the_same_bits)
{
    static const int shards[] = {1, 2, 3, 5, 8}, rows[] = {0, 1, 2, 7};
    int later_waves = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct ts_world w;
        open_apart(&w, shards[seed % 5], seed);
        w.e.experts.limits.rows = rows[seed / 5 % 4];
        w.link.copy = 20000;
        w.before = check_rows;
        w.before_ctx = &later_waves;
        ts_world_run(&w, seed);
        check_all(&w, seed);
        ts_world_close(&w);
    }
    cr_assert_gt(later_waves, 0);
}

/* A shard gives, now and then, the number of a wave that it was not sent yet to the rows of another one. */
struct wave_forger {
    int seen; /* results of first waves */
    struct {
        unsigned part, stream, shard;
        uint32_t sequence;
        int answered;
    } at[64];
};

static bool forge_wave(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                       int *fail)
{
    struct wave_forger *f = w->before_ctx;
    (void)self, (void)fail;
    if (who->part == TS_PART_EXPERT || m->type != ACT_EXPERT_RESULT)
        return false;
    struct act_p_expert_result *p = act_p_expert_result(m);
    int i = 0;
    while (f->at[i].part &&
           (f->at[i].part != (unsigned)who->part + 1 || f->at[i].stream != p->stream || f->at[i].shard != m->src.index))
        i++;
    cr_assert_lt(i, 63);
    f->at[i].part = (unsigned)who->part + 1;
    f->at[i].stream = p->stream;
    f->at[i].shard = m->src.index;
    if (f->at[i].sequence != p->sequence)
        f->at[i].answered = 0;
    f->at[i].sequence = p->sequence;
    if (!p->wave && ++f->seen % 97 == 0)
        p->wave = (uint8_t)(f->at[i].answered + ACT_EXCHANGE_WAVES); /* so many are under way, and not this one */
    else
        f->at[i].answered++;
    return false;
}

/* It is no answer: the rows of that wave are computed, and the one that has none is missed. */
Test(exchange, an_answer_to_a_wave_that_was_not_sent_is_none)
{
    for (uint64_t seed = 1; seed <= 2; seed++) {
        struct ts_world w;
        open_apart(&w, 2, seed);
        w.e.experts.limits = (struct act_exchange_limits){.rows = 1, .deadline_ns = 5 * MS};
        struct wave_forger f = {.seen = 0};
        w.before = forge_wave;
        w.before_ctx = &f;
        ts_world_run(&w, seed);
        check_all(&w, seed);
        cr_assert_gt(f.seen, 2 * 97);
        ts_world_close(&w);
    }
}

Test(exchange, lost_messages_cost_a_deadline_and_no_token)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct ts_world w;
        open_apart(&w, 4, seed);
        w.e.experts.limits = (struct act_exchange_limits){.rows = 4, .deadline_ns = 5 * MS};
        w.link.lose = 2000;
        ts_world_run(&w, seed);
        check_all(&w, seed);
        ts_world_close(&w);
    }
}

/* A shard that is dead for good from its k-th dispatch on, or silent for some time. */
struct ending {
    int shard, at, seen;
    bool silent;
    int64_t until;        /* silent up to then */
    int swallowed, after; /* dispatches that a silent shard did not hear, and heard again */
};

static bool end_shard(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                      int *fail)
{
    struct ending *d = w->before_ctx;
    if (who->part != TS_PART_EXPERT || who->index != d->shard || m->type != ACT_EXPERT_DISPATCH)
        return false;
    if (d->seen++ < d->at)
        return false;
    if (!d->silent) {
        *fail = -EIO;
        return false;
    }
    if (!d->until)
        d->until = act_now(self) + 300 * MS;
    if (act_now(self) < d->until) {
        d->swallowed++;
        return true;
    }
    d->after++;
    return false;
}

Test(exchange, a_dead_shard_is_taken_over_by_replicas_or_by_whoever_is_left)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct ts_world w;
        open_apart(&w, 3, seed);
        struct ending d = {.shard = (int)seed % 3, .at = (int)seed * 7};
        w.mortal = true;
        w.before = end_shard;
        w.before_ctx = &d;
        ts_world_run(&w, seed);
        cr_assert_gt(d.seen, d.at, "the shard did not live long enough to die");
        check_all(&w, seed);
        ts_world_close(&w);
    }
}

Test(exchange, without_takeover_and_replicas_requests_wait_then_fail_and_nothing_hangs)
{
    struct ts_world w;
    open_apart(&w, 3, 1);
    act_map_free(w.map);
    cr_assert_eq(act_map_even(1, w.m->cfg->n_layers, w.m->cfg->n_experts, 3, &w.map), 0);
    w.e.experts.map = w.map;
    w.e.experts.limits = (struct act_exchange_limits){.no_takeover = true, .patience_ns = 500 * MS};
    struct ending d = {.shard = 1, .at = 60};
    w.mortal = true;
    w.before = end_shard;
    w.before_ctx = &d;
    ts_world_run(&w, 1);
    int failed = 0;
    for (int i = 0; i < w.n; i++) {
        cr_assert_eq(w.got[i].terminal, 1, "request %d", i);
        failed += w.got[i].status == -ENOLINK;
        cr_assert_neq(w.got[i].finish, ACT_FINISH_ERROR, "request %d", i);
        cr_assert_gt(w.got[i].ended, 0);
        /* The patience once: not for each attempt, and not for each that waits behind others. */
        cr_assert_lt(w.got[i].ended, 700 * (int64_t)MS, "request %d ends after %d ms", i,
                     (int)(w.got[i].ended / (int64_t)MS));
    }
    cr_assert_gt(failed, 0);
    ts_world_check_baseline(&w);
    ts_world_close(&w);
}

Test(exchange, a_silent_shard_is_left_out_after_the_deadline_and_used_again_when_it_answers)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct ts_world w;
        open_apart(&w, 3, seed);
        w.e.experts.limits.deadline_ns = 10 * MS;
        for (int i = 0; i < w.n; i++)
            w.wanted[i].max_new = TS_WORLD_NEW;
        w.wanted[w.n - 1].start = 2000 * (int64_t)MS;
        struct ending d = {.shard = (int)seed % 3, .at = 40, .silent = true};
        w.before = end_shard;
        w.before_ctx = &d;
        ts_world_run(&w, seed);
        check_all(&w, seed);
        cr_assert_gt(d.swallowed, 0);
        for (int i = 0; i < w.n - 1; i++) /* in virtual time: what was asked of it is given up at its deadline */
            cr_expect_lt(w.got[i].ended, 1500 * (int64_t)MS, "request %d ends after %d ms", i,
                         (int)(w.got[i].ended / (int64_t)MS));
        cr_assert_lt(d.swallowed, 40, "%d dispatches went to a shard that does not answer", d.swallowed);
        cr_assert_gt(d.after, 0, "the shard was never used again");
        ts_world_close(&w);
    }
}

/* A shard that lives and does not compute what it is asked for one layer, from some moment on. */
struct refuser {
    int shard, layer;  /* layer -1: all */
    bool as_returned;  /* the dispatch comes back; else: a result without rows */
    int64_t until;     /* 0: for ever */
    int refused, kept; /* dispatches */
};

static bool refuse(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m, int *fail)
{
    struct refuser *d = w->before_ctx;
    if (who->part != TS_PART_EXPERT || (d->shard >= 0 && who->index != d->shard) || m->type != ACT_EXPERT_DISPATCH)
        return false;
    const struct act_p_expert_dispatch *p = act_p_expert_dispatch(m);
    if ((d->layer >= 0 && p->layer != d->layer) || (d->until && act_now(self) > d->until)) {
        d->kept++;
        return false;
    }
    struct act_promise promise = act_promise_of(m);
    struct act_msg r;
    d->refused++;
    if (d->as_returned) {
        act_return(self, m);
        return true;
    }
    cr_assert_eq(act_msg_new(ACT_EXPERT_RESULT, ACT_NOBODY, 0, &r), 0);
    *act_p_expert_result(&r) =
        (struct act_p_expert_result){p->sequence, p->map, p->stream, p->layer, p->rows, p->set, p->wave};
    cr_assert_eq(act_reply(self, &promise, &r), 0);
    return true;
}

/* The others take its experts over; it is asked again ever less often, also when it answers for other layers. */
Test(exchange, a_shard_that_refuses_again_and_again_is_left_out)
{
    for (int k = 0; k < 8; k++) {
        struct ts_world w;
        struct refuser d = {.shard = k % 3, .layer = k & 2 ? 2 : -1, .as_returned = k & 1};
        open_apart(&w, 3, (uint64_t)k + 1);
        w.apart = k < 4; /* else on the worker of those who ask */
        ts_world_requests(&w, 24, (unsigned)k + 1);
        for (int i = 0; i < w.n; i++)
            w.wanted[i].start += i * 150 * (int64_t)MS;
        w.before = refuse;
        w.before_ctx = &d;
        ts_world_run(&w, (uint64_t)k + 1);
        check_all(&w, (uint64_t)k);
        cr_assert_ge(d.refused, ACT_EXCHANGE_REFUSALS, "case %d", k);
        cr_assert_lt(d.refused, 60, "case %d: a shard that refuses was asked %d times", k, d.refused);
        ts_world_close(&w);
    }
}

/* Where nobody may or can take over, requests wait, then fail and say why. */
Test(exchange, when_nobody_else_may_compute_what_a_shard_refuses_requests_fail_in_time)
{
    for (int k = 0; k < 4; k++) {
        struct ts_world w;
        struct refuser d = {.shard = k < 2 ? 1 : -1, .layer = k & 1 ? 2 : -1, .as_returned = k == 3};
        open_apart(&w, 3, 1);
        act_map_free(w.map);
        cr_assert_eq(act_map_even(1, w.m->cfg->n_layers, w.m->cfg->n_experts, 3, &w.map), 0);
        w.e.experts.map = w.map;
        w.e.experts.limits = (struct act_exchange_limits){.no_takeover = k < 2, .patience_ns = 500 * MS};
        w.before = refuse;
        w.before_ctx = &d;
        ts_world_run(&w, 1);
        int64_t last = 0;
        for (int i = 0; i < w.n; i++) {
            cr_assert_eq(w.got[i].terminal, 1, "case %d, request %d", k, i);
            cr_assert_eq(w.got[i].status, -ENOLINK, "case %d, request %d", k, i);
            last = w.got[i].ended > last ? w.got[i].ended : last;
        }
        cr_assert_lt(last, 700 * (int64_t)MS, "case %d: after %d ms", k, (int)(last / MS));
        cr_assert_lt(d.refused, 200, "case %d: it was asked %d times", k, d.refused);
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}

/* One that has recovered is used again. */
Test(exchange, a_shard_that_refuses_no_more_is_used_again)
{
    struct ts_world w;
    struct refuser d = {.shard = 1, .layer = -1, .until = 400 * (int64_t)MS};
    open_apart(&w, 3, 5);
    for (int i = 0; i < w.n; i++)
        w.wanted[i].start += i * 300 * (int64_t)MS;
    w.before = refuse;
    w.before_ctx = &d;
    ts_world_run(&w, 5);
    check_all(&w, 5);
    cr_assert_gt(d.refused, 0);
    cr_assert_gt(d.kept, 20);
    ts_world_close(&w);
}

/* ---- shards that are found, and go away ---- */

/* In the place of the link: node i + 1 has shard i. */
struct fake_link {
    struct act_addr shard[TS_WORLD_SHARDS], finder;
    struct act_finder_arg arg;
    struct act_timer timer;
    int n, turn;
};

static struct fake_link fake;

static void say(struct act_self *self, int node, bool up)
{
    struct act_msg m;
    size_t bytes;
    const struct act_node_actor a = {ACT_NODE_EXPERT, (uint32_t)node - 1, (uint32_t)fake.n, fake.shard[node - 1]};
    if (!up) {
        m = act_msg_make(ACT_NODE_DOWN, fake.finder);
        act_p_node_down(&m)->node = (uint16_t)node;
    } else {
        cr_assert_eq(act_msg_new(ACT_NODE_UP, fake.finder, sizeof a, &m), 0);
        *act_p_node_up(&m) = (struct act_p_node_up){.node = (uint16_t)node, .actors = 1};
        memcpy(act_msg_tail(&m, &bytes), &a, sizeof a);
    }
    cr_assert_eq(act_send(self, &m), 0);
}

/* All come after a while; then one after the other is gone for a moment. */
static int fake_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    (void)state;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_NODES_WATCH) {
            fake.finder = m[i].src;
            act_timer_after(self, &fake.timer, 30 * MS, 0);
        }
        if (m[i].type != ACT_TIMER || fake.turn > 20)
            continue;
        for (int k = 0; k < fake.n && !fake.turn; k++)
            say(self, k + 1, true);
        if (fake.turn)
            say(self, 1 + (fake.turn - 1) / 2 % fake.n, fake.turn % 2 == 0);
        fake.turn++;
        act_timer_after(self, &fake.timer, 8 * MS, 0);
    }
    return 0;
}

static const struct act_behaviour fake_behaviour = {.name = "link", .receive = fake_receive};

static void hide_shards(struct ts_world *w)
{
    struct cfg_error err;
    fake = (struct fake_link){.n = w->e.experts.n};
    memcpy(fake.shard, w->e.experts.shard, sizeof fake.shard);
    memset(w->e.experts.shard, 0, sizeof w->e.experts.shard);
    fake.arg = (struct act_finder_arg){.experts = &w->e.experts};
    for (int i = 1; i <= fake.n; i++)
        fake.arg.member[i] = true;
    struct act_spawn spec = {.behaviour = &fake_behaviour, .worker = TS_WORLD_CLIENT};
    cr_assert_eq(act_runtime_spawn(w->rt, &spec, &fake.arg.link, &err), 0);
    spec = (struct act_spawn){.behaviour = &act_finder_behaviour, .worker = TS_WORLD_CLIENT, .arg = &fake.arg};
    cr_assert_eq(act_runtime_spawn(w->rt, &spec, &w->e.experts.finder, &err), 0);
}

Test(exchange, shards_of_other_nodes_are_found_lost_and_found_again)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct ts_world w;
        open_apart(&w, 3, seed);
        w.e.experts.limits.no_takeover = seed % 2;
        for (int i = 0; i < w.n; i++)
            w.wanted[i].max_new = TS_WORLD_NEW;
        w.before_sources = hide_shards;
        ts_world_run(&w, seed);
        cr_assert_gt(fake.turn, 20, "the shards did not come and go");
        for (int i = 0; i < w.n; i++)
            cr_assert_lt(w.got[i].ended, 3000 * (int64_t)MS, "request %d waited for a deadline", i);
        check_all(&w, seed);
        ts_world_close(&w);
    }
}

/* ---- a source alone ---- */

enum { PEERS = 3 };

/* A source without steps, whose finder says that shard s is there, or gone. */
struct source {
    struct ts_world *w;
    struct act_experts experts;
    struct act_exchange e;
};

static void find_shard(struct source *s, int shard, bool there)
{
    struct act_msg m = act_msg_make(ACT_EXPERT_SHARD, act_self_addr(s->e.self));
    *act_p_expert_shard(&m) = (struct act_p_expert_shard){
        .index = (uint32_t)shard,
        .shard = there ? (struct act_addr){.generation = 1, .peer = (uint16_t)(shard + 1), .index = 1} : ACT_NOBODY};
    act_exchange_message(&s->e, &m);
}

static int source_start(struct act_self *self, void *state, const void *arg)
{
    struct source *s = *(struct source **)state = (struct source *)(uintptr_t)arg;
    cr_assert_eq(act_exchange_init(&s->e, self, s->w->m, 0, &s->experts), 0);
    cr_expect_eq(act_exchange_experts(&s->e), ACT_EXPERTS_MISSING, "nobody was found yet");
    for (int i = 0; i < PEERS; i++)
        find_shard(s, i, true);
    cr_expect_eq(act_exchange_experts(&s->e), ACT_EXPERTS_THERE);
    bool one = s->experts.limits.no_takeover; /* the experts of one shard are nowhere without it */
    find_shard(s, 1, false);
    cr_expect_eq(act_exchange_experts(&s->e), one ? ACT_EXPERTS_MISSING : ACT_EXPERTS_THERE, "takeover %d", !one);
    find_shard(s, 0, false);
    find_shard(s, 2, false);
    cr_expect_eq(act_exchange_experts(&s->e), ACT_EXPERTS_MISSING);
    for (int i = 0; i < PEERS; i++)
        find_shard(s, i, true);
    cr_expect_eq(act_exchange_experts(&s->e), ACT_EXPERTS_THERE);
    for (int i = 0; i < PEERS; i++) { /* all are late */
        s->e.peer[i].fails = 1;
        s->e.peer[i].out_until = act_now(self) + 10 * (int64_t)MS;
    }
    cr_expect_eq(act_exchange_experts(&s->e), ACT_EXPERTS_MISSING);
    for (int i = 0; i < PEERS; i++)
        s->e.peer[i].out_until = act_now(self);
    cr_expect_eq(act_exchange_experts(&s->e), ACT_EXPERTS_DOUBTFUL, "they may be tried again");
    s->e.peer[2].fails = 0;
    cr_expect_eq(act_exchange_experts(&s->e), one ? ACT_EXPERTS_DOUBTFUL : ACT_EXPERTS_THERE, "takeover %d", !one);
    act_exchange_free(&s->e);
    return 0;
}

static int source_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    (void)self, (void)state, (void)m, (void)count;
    return 0;
}

Test(exchange, a_source_knows_when_nobody_computes_its_experts)
{
    static const struct act_behaviour behaviour = {
        .name = "source", .state_size = sizeof(struct source *), .start = source_start, .receive = source_receive};
    for (int takeover = 0; takeover < 2; takeover++) {
        struct ts_world w;
        struct act_map *even;
        struct cfg_error err;
        struct act_addr addr;
        ts_world_open(&w, 4, 1);
        cr_assert_eq(act_map_even(1, w.map->layers, w.map->experts, PEERS, &even), 0);
        struct source s = {.w = &w, .experts = {.n = PEERS, .map = even, .limits.no_takeover = !takeover}};
        cr_assert_eq(act_sim_new(&(struct act_sim_config){.seed = 1}, &w.sim, &err), 0);
        struct act_config c = {.epoch = 1, .workers = 1};
        c.worker[0] = (struct act_worker_config){.name = "engine", .kind = ACT_WORKER_ENGINE, .cpu = -1};
        cr_assert_eq(act_sim_add(w.sim, &c, &w.rt, &err), 0);
        const struct act_spawn spec = {.behaviour = &behaviour, .worker = 0, .arg = &s};
        cr_assert_eq(act_runtime_spawn(w.rt, &spec, &addr, &err), 0);
        act_sim_run(w.sim, MS, 1000);
        cr_assert_not_null(s.e.self, "it did not run");
        act_map_free(even);
        ts_world_close(&w);
    }
}

/* ---- a shard alone ---- */

/* Sends what the test has made, and notes in which order the answers come. */
struct asker {
    struct ts_world *w;
    struct act_msg out[8];
    int n, answers, order[8], rows[8], refused;
};

static int asker_start(struct act_self *self, void *state, const void *arg)
{
    struct asker *a = *(struct asker **)state = (struct asker *)(uintptr_t)arg;
    for (int i = 0; i < a->n; i++)
        cr_assert_eq(act_request(self, &a->out[i]), 0);
    return 0;
}

static int asker_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct asker *a = *(struct asker **)state;
    (void)self;
    for (int i = 0; i < count; i++) {
        size_t bytes;
        cr_assert_eq(m[i].type, ACT_EXPERT_RESULT);
        act_msg_tail(&m[i], &bytes);
        a->refused += !bytes;
        if (bytes) {
            a->rows[a->answers] = act_p_expert_result(&m[i])->rows;
            a->order[a->answers++] = (int)act_p_expert_result(&m[i])->sequence;
        }
    }
    return 0;
}

static const struct act_behaviour asker_behaviour = {
    .name = "asker", .state_size = sizeof(struct asker *), .start = asker_start, .receive = asker_receive};

/* rows rows, each with `each` experts from the first on. */
static struct act_msg make_dispatch(struct asker *a, struct act_addr shard, uint16_t stream, uint16_t layer, int rows,
                                    int each, struct act_dispatch *d)
{
    struct act_dispatch_size size = {(uint32_t)rows, (uint32_t)(rows * each), (uint32_t)a->w->m->cfg->hidden, 0};
    struct act_msg m;
    size_t bytes;
    cr_assert_eq(act_msg_new(ACT_EXPERT_DISPATCH, shard, act_dispatch_bytes(&size), &m), 0);
    memset(act_msg_tail(&m, &bytes), 0x30, act_dispatch_bytes(&size));
    *act_p_expert_dispatch(&m) = (struct act_p_expert_dispatch){
        .sequence = (uint32_t)a->n, .map = 1, .stream = stream, .layer = layer, .rows = (uint16_t)rows};
    act_dispatch_place(&size, act_msg_tail(&m, &bytes), d);
    for (int r = 0; r < rows; r++)
        d->pairs[r] = (uint32_t)each;
    for (int i = 0; i < rows * each; i++)
        d->pair[i] = (struct act_dispatch_pair){(uint32_t)(i % each), 0.5f};
    return m;
}

static void ask_alone(struct asker *a, struct ts_world *w)
{
    struct cfg_error err;
    struct act_addr addr;
    const struct act_spawn spec = {.behaviour = &asker_behaviour, .worker = 0, .arg = a};
    cr_assert_eq(act_runtime_spawn(w->rt, &spec, &addr, &err), 0);
    act_sim_run(w->sim, INT64_C(1000) * MS, 1000000);
}

static struct act_addr open_alone(struct ts_world *w, struct asker *a)
{
    struct cfg_error err;
    struct act_addr shard;
    ts_world_open(w, 4, 1);
    *a = (struct asker){.w = w};
    cr_assert_eq(act_sim_new(&(struct act_sim_config){.seed = 1, .in_turn = true}, &w->sim, &err), 0);
    struct act_config c = {.epoch = 1, .workers = 1};
    c.worker[0] = (struct act_worker_config){.name = "engine", .kind = ACT_WORKER_ENGINE, .cpu = -1};
    cr_assert_eq(act_sim_add(w->sim, &c, &w->rt, &err), 0);
    w->expert[0] = (struct act_expert_arg){.m = w->m, .map = w->map};
    const struct act_spawn spec = {.behaviour = &act_expert_behaviour, .worker = 0, .arg = &w->expert[0]};
    cr_assert_eq(act_runtime_spawn(w->rt, &spec, &shard, &err), 0);
    return shard;
}

Test(exchange, a_running_stream_goes_before_prompts_that_came_earlier)
{
    struct ts_world w;
    struct asker a;
    struct act_dispatch d;
    struct act_addr shard = open_alone(&w, &a);
    int each = w.m->cfg->topk_experts;
    for (uint16_t layer = 0; layer < 3; layer++, a.n++)
        a.out[a.n] = make_dispatch(&a, shard, ACT_STREAM_BULK, layer, 20, each, &d);
    a.out[a.n] = make_dispatch(&a, shard, 0, 0, 1, each, &d);
    a.n++;
    ask_alone(&a, &w);
    cr_assert_eq(a.answers, 4);
    cr_assert_eq(a.order[0], 3, "the stream's dispatch was answered after number %d", a.order[0]);
    for (int i = 1; i < 4; i++)
        cr_assert_eq(a.order[i], i - 1);
    ts_world_close(&w);
}

/* What a shard says of its load is the rows of others alone: those of the source itself are its own choice. */
Test(exchange, a_shard_reports_rows_of_other_sources_worked_on_together)
{
    struct ts_world w;
    struct asker a, b;
    struct act_dispatch d;
    struct cfg_error err;
    struct act_addr shard = open_alone(&w, &a), addr;
    int each = w.m->cfg->topk_experts;
    b = a;
    for (; a.n < 2; a.n++)
        a.out[a.n] = make_dispatch(&a, shard, 0, 0, 3 + a.n, each, &d);
    b.out[b.n++] = make_dispatch(&b, shard, 0, 0, 5, each, &d);
    const struct act_spawn spec = {.behaviour = &asker_behaviour, .worker = 0, .arg = &b};
    cr_assert_eq(act_runtime_spawn(w.rt, &spec, &addr, &err), 0);
    ask_alone(&a, &w);
    cr_assert_eq(a.answers, 2);
    cr_assert_eq(b.answers, 1);
    cr_expect_eq(a.rows[0], 5, "%d", a.rows[0]);
    cr_expect_eq(a.rows[1], 5, "%d", a.rows[1]);
    cr_expect_eq(b.rows[0], 7, "%d", b.rows[0]);
    ts_world_close(&w);
    shard = open_alone(&w, &a);
    for (; a.n < 2; a.n++)
        a.out[a.n] = make_dispatch(&a, shard, 0, 0, 3, each, &d);
    ask_alone(&a, &w);
    cr_assert_eq(a.answers, 2);
    cr_expect_eq(a.rows[0] + a.rows[1], 0, "alone");
    ts_world_close(&w);
}

/* Sets what shards report of others, for the steps of Decode, up to a number of results. */
struct rumour {
    int rows, results, last;
};

static bool spread(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m, int *fail)
{
    struct rumour *r = w->before_ctx;
    (void)self;
    (void)fail;
    if (who->part == TS_PART_DECODE && m->type == ACT_EXPERT_RESULT)
        act_p_expert_result(m)->rows = r->results++ < r->last ? (uint16_t)r->rows : 0;
    return false;
}

/* Drafts of a request when a row costs a millisecond of experts and nothing else: never worth it, unless the shards
 * are busy with rows of others anyway. */
static int drafts_beside(int rows, int last)
{
    struct ts_world w;
    struct rumour r = {.rows = rows, .last = last};
    ts_world_open(&w, 40, SHARDS);
    w.e.plan = (struct act_plan_options){.mode = ACT_PLAN_DYNAMIC, .length = w.e.limits.draft};
    act_steptime_init(&w.e.steptime, w.e.limits.draft);
    for (int n = 1; n <= 2; n++)
        act_steptime_add(&w.e.steptime.plain, n, 1e6 * n);
    for (int n = 1; n <= 2; n++)
        act_steptime_add(&w.e.steptime.full, n * (w.e.limits.draft + 1), 1e6 * n * (w.e.limits.draft + 1));
    act_steptime_add(&w.e.steptime.draft, 1, 1);
    w.e.steptime.expert_share = 1;
    w.before = spread;
    w.before_ctx = &r;
    ts_world_requests(&w, 1, 9);
    w.wanted[0].n_prompt = 30;
    w.wanted[0].max_new = 20;
    ts_world_run(&w, 1);
    cr_assert_eq(w.got[0].n, 20);
    int drafted = w.got[0].drafted;
    ts_world_close(&w);
    return drafted;
}

Test(exchange, rows_of_others_at_the_shards_reach_the_plan_until_they_are_gone)
{
    int alone = drafts_beside(0, INT_MAX), busy = drafts_beside(1000, INT_MAX), soon_alone = drafts_beside(1000, 1);
    cr_expect_eq(alone, 0, "%d", alone);
    cr_expect_gt(busy, 10, "%d", busy);
    cr_expect(soon_alone < busy / 2, "%d of %d", soon_alone, busy);
}

/* Whatever a foreign process sends is answered or refused, and harms nobody. */
Test(exchange, a_dispatch_that_makes_no_sense_is_refused)
{
    for (int k = 0; k < 12; k++) {
        struct ts_world w;
        struct asker a;
        struct act_dispatch d;
        size_t bytes;
        struct act_addr shard = open_alone(&w, &a);
        struct act_msg *m = &a.out[a.n];
        *m = make_dispatch(&a, shard, 0, k == 0 ? 1000 : 0, 2, 2, &d);
        a.n++;
        struct act_dispatch_size *size = act_msg_tail(m, &bytes);
        size->rows = k == 1 ? 0 : k == 2 ? UINT32_MAX : size->rows;
        size->pairs = k == 3 ? 5 : k == 4 ? UINT32_MAX : size->pairs;
        size->hidden = k == 5 ? 0 : size->hidden;
        d.pairs[0] = k == 6 ? 0 : d.pairs[0];
        d.pair[0].expert = k == 7 ? 100000 : k == 8 ? d.pair[1].expert : d.pair[0].expert;
        act_p_expert_dispatch(m)->rows += k == 9;
        size->zero = k == 10;
        m->buf->size -= k == 11;
        a.out[a.n] = make_dispatch(&a, shard, 0, 0, 2, 2, &d);
        a.n++;
        ask_alone(&a, &w);
        cr_assert_eq(a.refused, 1, "case %d", k);
        cr_assert_eq(a.answers, 1, "case %d", k);
        ts_world_close(&w);
    }
}

/* ---- plans ---- */

/* Asks a shard for a map and says at once that everybody uses it, as when a shard begins again in the middle. */
struct planner {
    struct ts_world *w;
    struct act_map *map;
    int ready, status;
};

static struct planner planner;

static int planner_start(struct act_self *self, void *state, const void *arg)
{
    struct act_msg plan, retire = act_msg_make(ACT_EXPERT_RETIRE, planner.w->e.experts.shard[0]);
    size_t bytes;
    (void)state, (void)arg;
    cr_assert_eq(act_msg_new(ACT_EXPERT_PLAN, planner.w->e.experts.shard[0], act_map_bytes(planner.map), &plan), 0);
    act_p_expert_plan(&plan)->map = act_p_expert_retire(&retire)->map = planner.map->version;
    act_map_write(planner.map, act_msg_tail(&plan, &bytes));
    cr_assert_eq(act_request(self, &plan), 0);
    cr_assert_eq(act_send(self, &retire), 0);
    return 0;
}

static int planner_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    (void)self, (void)state;
    for (int i = 0; i < count; i++)
        if (m[i].type == ACT_EXPERT_READY) {
            planner.ready++;
            planner.status = act_p_expert_ready(&m[i])->status;
        }
    return 0;
}

static const struct act_behaviour planner_behaviour = {
    .name = "planner", .start = planner_start, .receive = planner_receive};

static void spawn_planner(struct ts_world *w)
{
    struct cfg_error err;
    struct act_addr a;
    const struct act_spawn spec = {.behaviour = &planner_behaviour, .worker = TS_WORLD_CLIENT};
    planner.w = w;
    cr_assert_eq(act_runtime_spawn(w->rt, &spec, &a, &err), 0);
}

Test(exchange, a_plan_that_is_in_use_before_it_is_loaded_has_an_answer)
{
    struct ts_world w;
    ts_world_open(&w, 40, SHARDS);
    planner = (struct planner){0};
    planner.map = random_map(&w, 5, 2);
    w.before_sources = spawn_planner;
    ts_world_requests(&w, 1, 3);
    ts_world_run(&w, 2);
    ts_world_check_same(&w, 0);
    cr_assert_eq(planner.ready, 1, "the plan has %d answers", planner.ready);
    cr_assert_eq(planner.status, 0);
    act_map_free(planner.map);
    ts_world_close(&w);
}
