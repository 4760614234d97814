/* The engine's actors (Prefill, Decode, expert shards, device tier) in the simulation, against the same requests run
 * without actors. */
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

#include "actors/decode.h"
#include "actors/expert.h"
#include "actors/prefill.h"
#include "actors/recipe.h"
#include "actors/runtime/sim.h"
#include "actors/runtime/stats.h"
#include "actors/tier_device.h"

enum { WORKER_ENGINE, WORKER_CLIENT, MAX_REQUESTS = 64, BLOCK = 16, NEW = 24 };

struct wanted {
    int n_prompt, max_new;
    int32_t prompt[256];
    float temperature;
    uint64_t seed;
    int64_t start, cancel; /* virtual ns; cancel 0: never */
};

struct outcome {
    int32_t ids[256];
    int n, terminal; /* terminal events seen */
    int finish, cached, status;
};

struct world {
    struct mdl_model *m;
    struct act_sim *sim;
    struct act_runtime *rt;
    struct act_engine e;
    struct act_expert_arg expert[8];
    struct act_addr client;
    struct wanted wanted[MAX_REQUESTS];
    struct outcome got[MAX_REQUESTS];
    int n;
    int dispatches, fail_at; /* of shard 0; fail_at -1: never */
    bool flaky;
    bool deaf;                                /* the client ends when its first tokens come */
    struct act_timer timer[2 * MAX_REQUESTS]; /* of the client: starts, then cancels */
};

/* ---- the client ---- */

struct client {
    struct world *w;
};

static void send_request(struct act_self *self, struct world *w, int i)
{
    const struct wanted *q = &w->wanted[i];
    int chain = 1 + q->n_prompt / BLOCK;
    struct act_msg m;
    size_t bytes;
    cr_assert_eq(act_msg_new(ACT_PREFILL, w->e.prefill, act_recipe_tail(q->n_prompt, chain, 0, 0), &m), 0);
    m.request = (uint64_t)i + 1;
    *act_p_prefill(&m) = (struct act_p_prefill){.ids = (uint32_t)q->n_prompt, .blocks = (uint32_t)chain};
    *act_b_prefill(&m) = (struct act_b_prefill){.requester = act_self_addr(self),
                                                .seed = q->seed,
                                                .max_tokens = (uint32_t)q->max_new,
                                                .temperature = q->temperature,
                                                .top_p = 1,
                                                .repetition = 1,
                                                .chain = (uint32_t)chain,
                                                .flags = ACT_RECIPE_IGNORE_EOS};
    uint8_t *at = act_msg_tail(&m, &bytes);
    memcpy(at, q->prompt, (size_t)q->n_prompt * sizeof(int32_t));
    struct kv_key *key = (struct kv_key *)(void *)(at + (size_t)q->n_prompt * sizeof(int32_t));
    kv_key_root(
        &(struct kv_identity){.revision = 1, .format = KV_FORMAT_ROWS, .block_tokens = BLOCK, .numerics = "test"}, key);
    for (int b = 0; b + 1 < chain; b++)
        kv_key_extend(&key[b], q->prompt + b * BLOCK, BLOCK, &key[b + 1]);
    cr_assert_eq(act_send(self, &m), 0);
}

static void take_tokens(struct outcome *o, struct act_msg *m)
{
    const struct act_p_tokens *p = act_p_tokens(m);
    size_t bytes;
    const int32_t *ids = act_msg_tail(m, &bytes);
    cr_assert_eq((int)p->first, o->n, "tokens out of order");
    for (int i = 0; i < p->count; i++)
        o->ids[o->n++] = ids[i];
    if (p->finish) {
        o->finish = p->finish;
        o->terminal++;
    }
}

static int client_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct world *w = ((struct client *)state)->w;
    for (int i = 0; i < count; i++) {
        struct outcome *o = m[i].request ? &w->got[m[i].request - 1] : NULL;
        if (m[i].type == ACT_TIMER) {
            int at = (int)act_p_timer(&m[i])->tag;
            if (at < MAX_REQUESTS)
                send_request(self, w, at);
            else {
                act_cancel(self, w->e.prefill, (uint64_t)(at - MAX_REQUESTS) + 1, 0, -1);
                act_cancel(self, w->e.decode, (uint64_t)(at - MAX_REQUESTS) + 1, 0, -1);
            }
        } else if (m[i].type == ACT_TOKENS && w->deaf) {
            act_stop(self, 0);
        } else if (m[i].type == ACT_TOKENS) {
            take_tokens(o, &m[i]);
        } else if (m[i].type == ACT_PREFILLED) {
            o->cached = (int)act_p_prefilled(&m[i])->cached;
        } else if (m[i].type == ACT_FAILED) {
            o->status = act_p_failed(&m[i])->status;
            o->terminal++;
        }
    }
    return 0;
}

static int client_start(struct act_self *self, void *state, const void *arg)
{
    struct world *w = ((struct client *)state)->w = (struct world *)arg;
    for (int i = 0; i < w->n; i++) {
        act_timer_at(self, &w->timer[i], w->wanted[i].start, (uint64_t)i);
        if (w->wanted[i].cancel)
            act_timer_at(self, &w->timer[MAX_REQUESTS + i], w->wanted[i].cancel, (uint64_t)(MAX_REQUESTS + i));
    }
    return 0;
}

static const struct act_behaviour client_behaviour = {
    .name = "client",
    .state_size = sizeof(struct client),
    .start = client_start,
    .receive = client_receive,
};

/* ---- a shard that fails ---- */

/* Sends its k-th dispatch back, as a dead shard's mail comes back; otherwise an expert shard. */
struct flaky {
    struct world *w;
    _Alignas(16) uint8_t inner[256];
};

static int flaky_start(struct act_self *self, void *state, const void *arg)
{
    struct flaky *f = state;
    f->w = (struct world *)arg;
    cr_assert_le(act_expert_behaviour.state_size, sizeof f->inner);
    return act_expert_behaviour.start(self, f->inner, &f->w->expert[0]);
}

static int flaky_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct flaky *f = state;
    for (int i = 0; i < count; i++)
        if (m[i].type == ACT_EXPERT_DISPATCH && f->w->dispatches++ == f->w->fail_at) {
            act_return(self, &m[i]);
            m[i].type = ACT_NONE;
        }
    return act_expert_behaviour.receive(self, f->inner, m, count);
}

static void flaky_stop(struct act_self *self, void *state, int reason)
{
    act_expert_behaviour.stop(self, ((struct flaky *)state)->inner, reason);
}

static const struct act_behaviour flaky_behaviour = {
    .name = "flaky",
    .state_size = sizeof(struct flaky),
    .start = flaky_start,
    .receive = flaky_receive,
    .stop = flaky_stop,
};

/* ---- the world ---- */

static void open_world(struct world *w, int pages, int shards)
{
    struct cfg_error err;
    memset(w, 0, sizeof *w);
    cr_assert_eq(mdl_model_open("tests/golden/mini8", 1, NULL, &w->m, &err), 0, "%s", err.msg);
    w->e.m = w->m;
    w->e.vocab = w->m->cfg->vocab_size;
    w->e.limits = (struct act_engine_limits){
        .context = 192, .streams = 4, .prefills = 2, .chunk = 24, .draft = 3, .replay = 24, .rollback = 8, .lease = 2};
    cr_assert_eq(mdl_kv_layout_init(w->m->cfg, BLOCK, &w->e.layout, &err), 0);
    cr_assert_eq(kv_device_new(pages, w->e.layout.block_bytes, 8 << 20, &w->e.device, &err), 0);
    w->e.n_shards = shards;
    w->fail_at = -1;
}

static void spawn(struct world *w, const struct act_behaviour *b, int worker, const void *arg, struct act_addr *out)
{
    struct cfg_error err;
    const struct act_spawn spec = {.behaviour = b,
                                   .worker = worker,
                                   .arg = arg,
                                   .outbox = 256,
                                   .run_class = b == &act_prefill_behaviour ? ACT_CLASS_BULK : ACT_CLASS_URGENT};
    cr_assert_eq(act_runtime_spawn(w->rt, &spec, out, &err), 0, "%s", err.msg);
}

static uint64_t run_world(struct world *w, uint64_t seed)
{
    struct cfg_error err;
    cr_assert_eq(act_sim_new(&(struct act_sim_config){.seed = seed}, &w->sim, &err), 0);
    struct act_config c = {.epoch = 1, .workers = 2};
    c.worker[WORKER_ENGINE] = (struct act_worker_config){.name = "engine", .kind = ACT_WORKER_ENGINE, .cpu = -1};
    c.worker[WORKER_CLIENT] = (struct act_worker_config){.name = "client", .kind = ACT_WORKER_ENGINE, .cpu = -1};
    cr_assert_eq(act_sim_add(w->sim, &c, &w->rt, &err), 0, "%s", err.msg);
    int experts = w->m->cfg->n_experts;
    spawn(w, &act_tier_device_behaviour, WORKER_ENGINE, &w->e, &w->e.tier);
    for (int i = 0; i < w->e.n_shards; i++) {
        int first = experts * i / w->e.n_shards, end = experts * (i + 1) / w->e.n_shards;
        w->expert[i] = (struct act_expert_arg){w->m, first, end - first};
        w->e.shard[i] = (struct act_shard){.first = first, .count = end - first};
        if (i == 0 && w->flaky)
            spawn(w, &flaky_behaviour, WORKER_ENGINE, w, &w->e.shard[i].addr);
        else
            spawn(w, &act_expert_behaviour, WORKER_ENGINE, &w->expert[i], &w->e.shard[i].addr);
    }
    spawn(w, &act_decode_behaviour, WORKER_ENGINE, &w->e, &w->e.decode);
    spawn(w, &act_prefill_behaviour, WORKER_ENGINE, &w->e, &w->e.prefill);
    spawn(w, &client_behaviour, WORKER_CLIENT, w, &w->client);
    act_sim_run(w->sim, INT64_C(60000000000), 20000000);
    return act_sim_trace(w->sim);
}

/* After everything has ended only what the actors keep by design is held: Decode's lease. */
static void check_baseline(struct world *w)
{
    struct kv_device_stats s;
    kv_device_stat(w->e.device, &s);
    cr_expect_le(s.held, w->e.limits.lease + 2, "%d pages are still held", s.held);
}

static void close_world(struct world *w)
{
    act_sim_free(w->sim);
    kv_device_free(w->e.device);
    mdl_model_close(w->m);
}

/* ---- the reference ---- */

struct plain {
    struct mdl_sampler *sampler;
    struct mdl_sampling recipe;
    int32_t ids[512];
    int n, n_prompt, vocab;
};

static int32_t plain_pick(void *ctx, int pos, float *logits, bool draft)
{
    struct plain *p = ctx;
    struct cfg_error err;
    int32_t id;
    if (mdl_sampler_sample(p->sampler, &p->recipe, logits, p->vocab, p->ids, p->n, p->n_prompt, pos, &id, NULL, &err))
        return -1;
    if (!draft)
        p->ids[p->n++] = id;
    return id;
}

static void run_plain(struct world *w, const struct wanted *q, int32_t *out)
{
    struct cfg_error err;
    struct mdl_seq *seq;
    struct mdl_step *step;
    struct mdl_decoder *d;
    struct mdl_prefill plan;
    const struct act_engine_limits *l = &w->e.limits;
    struct plain p = {
        .sampler = mdl_sampler_new(w->e.vocab), .n = q->n_prompt, .n_prompt = q->n_prompt, .vocab = w->e.vocab};
    mdl_sampling_init(&p.recipe);
    p.recipe.temperature = (double)q->temperature;
    p.recipe.seed = q->seed;
    memcpy(p.ids, q->prompt, (size_t)q->n_prompt * sizeof(int32_t));
    cr_assert_eq(mdl_seq_new(w->m->cfg, &(struct mdl_seq_params){.max_tokens = 256, .replay = l->replay}, &seq, &err),
                 0);
    cr_assert_eq(mdl_step_new(w->m, 64, 256, &step, &err), 0);
    cr_assert_eq(mdl_decoder_new(w->m, 1, 0, 256, &d, &err), 0);
    cr_assert_eq(
        mdl_prefill_begin(&plan, seq, q->prompt, q->n_prompt, &(struct mdl_prefill_params){.replay = l->replay}, &err),
        0);
    cr_assert_eq(mdl_prefill_run(&plan, step, 0, NULL, NULL, &err), 0);
    struct mdl_stream s = {.seq = seq, .limit = 1, .pick = plain_pick, .pick_ctx = &p}, *list = &s;
    s.next = plain_pick(&p, p.n, (float *)mdl_step_logits(step, 0, step->segment[0].n - 1), false);
    while (p.n < q->n_prompt + q->max_new)
        cr_assert_eq(mdl_decoder_round(d, &list, 1, &err), 0);
    memcpy(out, p.ids + q->n_prompt, (size_t)q->max_new * sizeof(int32_t));
    mdl_decoder_free(d);
    mdl_step_free(step);
    mdl_seq_free(seq);
    mdl_sampler_free(p.sampler);
}

static void make_requests(struct world *w, int n, unsigned seed)
{
    srand(seed);
    w->n = n;
    for (int i = 0; i < n; i++) {
        struct wanted *q = &w->wanted[i];
        *q = (struct wanted){.n_prompt = 1 + rand() % 100,
                             .max_new = 1 + rand() % NEW,
                             .seed = (uint64_t)rand(),
                             .temperature = rand() % 2 ? 1.0f : 0.0f,
                             .start = rand() % 3000000};
        for (int k = 0; k < q->n_prompt; k++)
            q->prompt[k] = rand() % w->m->cfg->vocab_size;
    }
}

static void check_same(struct world *w, int i)
{
    int32_t want[256];
    run_plain(w, &w->wanted[i], want);
    cr_assert_eq(w->got[i].terminal, 1, "request %d had %d terminal events", i, w->got[i].terminal);
    cr_assert_eq(w->got[i].n, w->wanted[i].max_new, "request %d: %d tokens of %d", i, w->got[i].n,
                 w->wanted[i].max_new);
    for (int k = 0; k < w->got[i].n; k++)
        cr_assert_eq(w->got[i].ids[k], want[k], "request %d, token %d: %d instead of %d", i, k, w->got[i].ids[k],
                     want[k]);
}

Test(engine, requests_get_the_tokens_of_a_plain_run)
{
    struct world w;
    open_world(&w, 64, 3);
    make_requests(&w, 10, 1);
    run_world(&w, 7);
    for (int i = 0; i < w.n; i++)
        check_same(&w, i);
    check_baseline(&w);
    close_world(&w);
}

Test(engine, a_crowd_in_little_memory_is_parked_and_comes_back)
{
    struct world w;
    open_world(&w, 14, 2); /* four sequences of up to 8 pages each do not fit */
    w.e.limits.lease = 1;
    make_requests(&w, 12, 2);
    for (int i = 0; i < w.n; i++)
        w.wanted[i].max_new = NEW;
    run_world(&w, 3);
    for (int i = 0; i < w.n; i++)
        check_same(&w, i);
    check_baseline(&w);
    close_world(&w);
}

Test(engine, cancelled_requests_leave_nothing_and_harm_nobody)
{
    struct world w;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        open_world(&w, 40, 2);
        make_requests(&w, 12, (unsigned)seed);
        for (int i = 0; i < w.n; i += 2)
            w.wanted[i].cancel = w.wanted[i].start + rand() % 4000000;
        run_world(&w, seed);
        for (int i = 1; i < w.n; i += 2)
            check_same(&w, i);
        check_baseline(&w);
        close_world(&w);
    }
}

Test(engine, the_same_seed_gives_the_same_run)
{
    uint64_t trace[3];
    for (int i = 0; i < 3; i++) {
        struct world w;
        open_world(&w, 40, 2);
        make_requests(&w, 6, 5);
        trace[i] = run_world(&w, i == 2 ? 99 : 11);
        close_world(&w);
    }
    cr_assert_eq(trace[0], trace[1]);
    cr_assert_neq(trace[0], trace[2]);
}

Test(engine, what_can_never_fit_is_refused_at_once)
{
    struct world w;
    open_world(&w, 4, 1);
    make_requests(&w, 1, 1);
    w.wanted[0].n_prompt = 100;
    run_world(&w, 1);
    cr_assert_eq(w.got[0].terminal, 1);
    cr_assert_eq(w.got[0].status, -7, "status %d", w.got[0].status); /* -E2BIG */
    check_baseline(&w);
    close_world(&w);
}

Test(engine, a_second_prompt_finds_the_blocks_of_the_first)
{
    struct world w;
    open_world(&w, 64, 2);
    make_requests(&w, 2, 4);
    w.wanted[0].n_prompt = w.wanted[1].n_prompt = 90;
    w.wanted[0].start = 0;
    w.wanted[1].start = INT64_C(2000000000);
    memcpy(w.wanted[1].prompt, w.wanted[0].prompt, sizeof w.wanted[0].prompt);
    run_world(&w, 1);
    cr_assert_eq(w.got[0].cached, 0);
    cr_assert_eq(w.got[1].cached, 80, "%d tokens cached", w.got[1].cached);
    cr_assert_eq(w.got[1].terminal, 1);
    check_baseline(&w);
    close_world(&w);
}

/* One prompt, a few tokens: every exchange of every layer is lost once, in a run of its own. The other shard's answer
 * to the abandoned step comes late. */
Test(engine, a_step_that_lost_any_exchange_is_run_again_with_the_same_bits)
{
    struct world w;
    int32_t want[256];
    int exchanges = 1;
    for (int k = -1; k < exchanges; k++) {
        open_world(&w, 40, 2);
        w.flaky = true;
        w.fail_at = k;
        make_requests(&w, 1, 9);
        w.wanted[0].n_prompt = 30;
        w.wanted[0].max_new = 5;
        run_world(&w, 1);
        if (k < 0) {
            exchanges = w.dispatches;
            run_plain(&w, &w.wanted[0], want);
            /* Two chunks below the cut, one replayed tail above it, and at least one decode round over all layers. */
            cr_assert_gt(exchanges, 2 * w.m->cfg->cut + w.m->cfg->n_layers);
        }
        cr_assert_eq(w.got[0].terminal, 1, "exchange %d", k);
        cr_assert_eq(w.got[0].n, 5, "exchange %d: %d tokens", k, w.got[0].n);
        cr_assert_eq(memcmp(w.got[0].ids, want, 5 * sizeof *want), 0, "exchange %d", k);
        check_baseline(&w);
        close_world(&w);
    }
}

/* A conversation: the second prompt is the first one, its answer, and something new. With the snapshot of the answer's
 * end it goes on exactly, also when little is new and the replayed tail reaches back behind the snapshot. */
Test(engine, a_later_turn_goes_on_exactly_from_a_snapshot)
{
    for (int more = 1; more <= 41; more += 10) {
        struct world w;
        int32_t answer[256];
        open_world(&w, 64, 2);
        w.e.snapshots = true;
        make_requests(&w, 2, (unsigned)more);
        w.wanted[0].n_prompt = 53;
        w.wanted[0].max_new = 20;
        w.wanted[0].start = 0;
        run_plain(&w, &w.wanted[0], answer);
        struct wanted *second = &w.wanted[1];
        memcpy(second->prompt, w.wanted[0].prompt, 53 * sizeof(int32_t));
        memcpy(second->prompt + 53, answer, 20 * sizeof(int32_t));
        second->n_prompt = 73 + more;
        second->start = INT64_C(2000000000);
        run_world(&w, (uint64_t)more);
        cr_assert_eq(w.got[1].cached, 72, "%d new tokens: %d cached", more, w.got[1].cached);
        for (int i = 0; i < w.n; i++)
            check_same(&w, i);
        check_baseline(&w);
        close_world(&w);
    }
}

/* The cancel is sent first, so it overtakes the prompt for certain; nothing of the request may remain or be answered.
 */
Test(engine, a_cancel_that_overtakes_its_prompt_still_counts)
{
    struct world w;
    open_world(&w, 40, 2);
    make_requests(&w, 2, 3);
    w.wanted[0].start = 2000000;
    w.wanted[0].cancel = 1000000;
    w.wanted[1].start = 3000000;
    run_world(&w, 1);
    cr_assert_eq(w.got[0].terminal, 0);
    cr_assert_eq(w.got[0].n, 0, "%d tokens of a cancelled request", w.got[0].n);
    check_same(&w, 1);
    check_baseline(&w);
    close_world(&w);
}

/* Whoever asked is gone and never cancelled: its first tokens come back, and that ends the sequence. */
Test(engine, a_requester_that_died_costs_no_more_than_its_next_tokens)
{
    struct world w;
    open_world(&w, 40, 2);
    make_requests(&w, 1, 6);
    w.wanted[0].n_prompt = 30;
    w.wanted[0].max_new = 150;
    w.wanted[0].start = 0;
    w.deaf = w.flaky = true; /* the flaky shard counts its dispatches */
    run_world(&w, 1);
    cr_assert_lt(w.dispatches, 20 * w.m->cfg->n_layers, "%d dispatches for nobody", w.dispatches);
    check_baseline(&w);
    close_world(&w);
}
