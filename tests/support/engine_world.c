#include "tests/support/engine_world.h"

#include "tests/harness.h"

#include "actors/decode.h"
#include "actors/prefill.h"
#include "actors/tier_device.h"

/* ---- the world ---- */

static struct kv_device *new_device(const struct act_engine *e, int pages)
{
    struct kv_device *d;
    struct cfg_error err;
    cr_assert_eq(kv_device_new(pages, e->layout.block_bytes, 8 << 20, &d, &err), 0);
    cr_assert_eq(kv_device_canary(d), 0);
    return d;
}

void ts_world_open(struct ts_world *w, int pages, int shards)
{
    struct cfg_error err;
    memset(w, 0, sizeof *w);
    cr_assert_eq(mdl_model_open("tests/golden/mini8", 1, NULL, &w->m, &err), 0, "%s", err.msg);
    w->e.m = w->m;
    w->e.vocab = w->m->cfg->vocab_size;
    w->e.limits = (struct act_engine_limits){
        .context = 192, .streams = 4, .prefills = 2, .chunk = 24, .draft = 3, .replay = 24, .rollback = 8, .lease = 2};
    w->e.plan = (struct act_plan_options){.mode = ACT_PLAN_FIXED, .length = w->e.limits.draft};
    mdl_calibration_identity(&w->e.calibration, w->m->cfg->draft_block);
    cr_assert_eq(mdl_kv_layout_init(w->m->cfg, TS_WORLD_BLOCK, &w->e.layout, &err), 0);
    w->e.device = new_device(&w->e, pages);
    w->e.experts.n = shards;
    cr_assert_eq(act_map_even(1, w->m->cfg->n_layers, w->m->cfg->n_experts, shards, &w->map), 0);
    w->e.experts.map = w->map;
    w->prefill_class = ACT_CLASS_BULK;
    w->router = (struct act_router_arg){.engine = &w->e, .block_tokens = TS_WORLD_BLOCK};
}

/* ---- the actors, with something of the test before them ---- */

struct outer {
    const struct ts_inner *in;
    _Alignas(64) uint8_t state[];
};

static int outer_start(struct act_self *self, void *state, const void *arg)
{
    struct outer *o = state;
    o->in = arg;
    ((struct ts_inner *)(uintptr_t)arg)->state = o->state;
    return o->in->behaviour->start(self, o->state, o->in->arg);
}

/* Pages must not go back while somebody may write to them. */
static void check_pages_back(const struct ts_world *w, const struct kv_device *device, struct act_msg *m)
{
    size_t bytes;
    const uint32_t *page = act_msg_tail(m, &bytes);
    for (uint32_t i = 0; i < act_p_pages_back(m)->pages; i++)
        cr_assert(!ts_wire_writes_to(&w->wire, device, page[i]),
                  "page %u is given back while a put is on its way to it", page[i]);
}

static void note_seen(struct ts_seen *s, enum ts_part part, const struct act_msg *m)
{
    if (m->type == ACT_UNDELIVERABLE)
        s->back[part][m->returned]++;
    else
        s->got[part][m->type]++;
}

static int outer_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct outer *o = state;
    struct ts_world *w = o->in->w;
    int fail = 0;
    if (o->in->silent)
        return 0;
    for (int i = 0; w->seen && i < count; i++)
        note_seen(w->seen, o->in->part, &m[i]);
    for (int i = 0; w->before && i < count && !fail; i++)
        if (w->before(w, o->in, self, &m[i], &fail))
            m[i].type = ACT_NONE;
    if (w->frozen == o->in)
        return fail;
    for (int i = 0; i < count && o->in->part == TS_PART_TIER && o->in->index >= TS_FAR; i++)
        if (m[i].type == ACT_PAGES_BACK)
            check_pages_back(w, o->in->index >= TS_OTHER && w->two ? w->other.e.device : w->far.e.device, &m[i]);
    act_busy(self, w->cost[o->in->part]);
    return fail ? fail : o->in->behaviour->receive(self, o->state, m, count);
}

static void outer_stop(struct act_self *self, void *state, int reason)
{
    struct outer *o = state;
    o->in->behaviour->stop(self, o->state, reason);
    ((struct ts_inner *)(uintptr_t)o->in)->state = NULL;
}

static void spawn(struct ts_world *w, enum ts_part part, int index, const void *arg, struct act_addr *out)
{
    static const struct act_behaviour *const inner[TS_PARTS] = {&act_tier_device_behaviour, &act_expert_behaviour,
                                                                &act_decode_behaviour, &act_prefill_behaviour,
                                                                &act_landing_behaviour};
    struct cfg_error err;
    struct ts_inner *in = &w->inner[part][index];
    *in = (struct ts_inner){w, part, index, inner[part], arg};
    w->outer[part] = (struct act_behaviour){.name = in->behaviour->name,
                                            .state_size = sizeof(struct outer) + in->behaviour->state_size,
                                            .start = outer_start,
                                            .receive = outer_receive,
                                            .stop = outer_stop};
    const struct act_spawn spec = {.behaviour = &w->outer[part],
                                   .worker = w->two && index >= TS_OTHER          ? TS_WORLD_OTHER
                                             : w->split && index >= TS_FAR        ? TS_WORLD_FAR
                                             : part == TS_PART_EXPERT && w->apart ? TS_WORLD_APART + index
                                                                                  : TS_WORLD_ENGINE,
                                   .arg = in,
                                   .outbox = 256,
                                   .policy = (part == TS_PART_EXPERT && !w->mortal) || w->restart ? ACT_POLICY_RESTART
                                                                                                  : ACT_POLICY_STOP,
                                   .restart_delay_ns = w->restart_ns,
                                   .run_class = part == TS_PART_PREFILL ? w->prefill_class : ACT_CLASS_URGENT};
    cr_assert_eq(act_runtime_spawn(w->rt, &spec, out, &err), 0, "%s", err.msg);
}

static void spawn_at_client(struct ts_world *w, const struct act_behaviour *b, const void *arg, struct act_addr *out)
{
    struct cfg_error err;
    const struct act_spawn spec = {.behaviour = b,
                                   .worker = TS_WORLD_CLIENT,
                                   .arg = arg,
                                   .outbox = 256,
                                   .policy = b == &act_balancer_behaviour ? ACT_POLICY_RESTART : ACT_POLICY_STOP};
    cr_assert_eq(act_runtime_spawn(w->rt, &spec, out, &err), 0, "%s", err.msg);
}

/* ---- the other process ---- */

static void make_far(struct ts_world *w, struct ts_far *f, int pages)
{
    f->e = w->e;
    cr_assert_le(w->e.experts.n, TS_OTHER - TS_FAR);
    f->e.device = new_device(&f->e, pages);
    cr_assert_eq(act_map_even(1, w->m->cfg->n_layers, w->m->cfg->n_experts, w->e.experts.n, &f->map), 0);
    f->e.experts.map = f->map;
}

void ts_world_split(struct ts_world *w, int pages, enum mdl_handoff_form form)
{
    w->split = true;
    w->e.form = form;
    w->e.tickets = (struct act_ticket_times){
        .grant = 500000000, .lease = INT64_C(1000000000), .quarantine = 500000000, .fence = 100000000};
    make_far(w, &w->far, pages);
}

void ts_world_add_other(struct ts_world *w, int pages)
{
    w->two = true;
    make_far(w, &w->other, pages);
}

static void spawn_far(struct ts_world *w, struct ts_far *f, int index)
{
    spawn(w, TS_PART_TIER, index, &f->e, &f->e.tier);
    for (int i = 0; i < f->e.experts.n; i++) {
        f->expert[i] = (struct act_expert_arg){.m = w->m, .map = f->map, .index = i};
        spawn(w, TS_PART_EXPERT, index + i, &f->expert[i], &f->e.experts.shard[i]);
    }
    for (f->e.n_decode = 0; f->e.n_decode < (w->decodes ? w->decodes : 1); f->e.n_decode++)
        spawn(w, TS_PART_DECODE, index + f->e.n_decode, &f->e, &f->e.decode[f->e.n_decode]);
    spawn(w, TS_PART_PREFILL, index, &f->e, &f->replay);
    f->arg = (struct act_landing_arg){
        .engine = &f->e, .replay = f->replay, .router = w->two ? NULL : &w->e.router, .stats = &f->stats};
    spawn(w, TS_PART_LANDING, index, &f->arg, &f->landing);
    f->e.load = f->e.landing = f->landing;
}

/* Both ways. */
static void link_far(struct ts_world *w)
{
    static const int worker[] = {TS_WORLD_ENGINE, TS_WORLD_FAR, TS_WORLD_OTHER};
    if (!w->kv_link.lose && !w->kv_link.copy && !w->kv_link.delay_max)
        return;
    for (int i = 0; i < 2 + w->two; i++)
        for (int k = 0; k < 2 + w->two; k++)
            if (i != k)
                act_sim_link(w->sim, w->rt, worker[i], worker[k], &w->kv_link);
}

/* Late, in order. */
static void link_client(struct ts_world *w, int workers)
{
    const struct act_sim_fault late = {.delay_min = w->client_delay, .delay_max = w->client_delay};
    for (int i = 0; i < workers && w->client_delay; i++)
        if (i != TS_WORLD_CLIENT && i < TS_WORLD_WIRE) {
            act_sim_link(w->sim, w->rt, i, TS_WORLD_CLIENT, &late);
            act_sim_link(w->sim, w->rt, TS_WORLD_CLIENT, i, &late);
        }
}

int ts_world_worker(const struct ts_world *w, int k)
{
    return TS_WORLD_APART + (w->apart ? w->e.experts.n : 0) + k;
}

struct act_engine *ts_world_engine(struct ts_world *w, enum ts_process p)
{
    return p == TS_HERE ? &w->e : p == TS_THERE ? &w->far.e : &w->other.e;
}

struct act_addr ts_world_next_life(struct act_addr who)
{
    if (!++who.generation)
        who.generation = 1;
    return who;
}

void ts_world_end_process(struct ts_world *w, enum ts_process p)
{
    static const int worker[] = {TS_WORLD_ENGINE, TS_WORLD_FAR, TS_WORLD_OTHER};
    struct act_engine *e = ts_world_engine(w, p);
    cr_assert(w->restart && w->restart_ns > 0);
    cr_assert_lt(w->n_old, TS_WORLD_OLD);
    act_sim_end(w->rt, worker[p], true);
    w->old[w->n_old++] = e->device;
    e->device = new_device(e, kv_device_pages(e->device));
    e->tier = ts_world_next_life(e->tier);
    if (p == TS_HERE)
        w->members.device = e->device;
    if (!w->split)
        return;
    struct act_msg m = act_msg_make(ACT_PING, w->e.link);
    ts_wire_process_ended(&w->wire, w->old[w->n_old - 1], e->device);
    cr_assert_eq(act_runtime_post(w->rt, &m), 0);
}

void ts_world_start(struct ts_world *w, uint64_t seed)
{
    struct cfg_error err;
    cr_assert_eq(
        act_sim_new(&(struct act_sim_config){.seed = seed, .in_turn = w->in_turn, .trace = w->trace}, &w->sim, &err),
        0);
    struct act_config c = {.epoch = 1, .workers = ts_world_worker(w, w->more_workers)};
    c.worker[TS_WORLD_ENGINE] = (struct act_worker_config){.name = "engine", .kind = ACT_WORKER_ENGINE, .cpu = -1};
    c.worker[TS_WORLD_FAR] = (struct act_worker_config){.name = "far", .kind = ACT_WORKER_ENGINE, .cpu = -1};
    c.worker[TS_WORLD_OTHER] = (struct act_worker_config){.name = "other", .kind = ACT_WORKER_ENGINE, .cpu = -1};
    c.worker[TS_WORLD_CLIENT] = (struct act_worker_config){.name = "client", .kind = ACT_WORKER_ENGINE, .cpu = -1};
    c.worker[TS_WORLD_WIRE] = (struct act_worker_config){.name = "wire", .kind = ACT_WORKER_ENGINE, .cpu = -1};
    for (int i = TS_WORLD_APART; i < c.workers; i++)
        c.worker[i] = (struct act_worker_config){.name = "apart", .kind = ACT_WORKER_ENGINE, .cpu = -1};
    cr_assert_eq(act_sim_add(w->sim, &c, &w->rt, &err), 0, "%s", err.msg);
    for (int i = 0; i < w->e.experts.n && w->apart; i++) {
        act_sim_link(w->sim, w->rt, TS_WORLD_ENGINE, TS_WORLD_APART + i, &w->link);
        act_sim_link(w->sim, w->rt, TS_WORLD_APART + i, TS_WORLD_ENGINE, &w->link);
        if (w->balance) {
            act_sim_link(w->sim, w->rt, TS_WORLD_CLIENT, TS_WORLD_APART + i, &w->link);
            act_sim_link(w->sim, w->rt, TS_WORLD_APART + i, TS_WORLD_CLIENT, &w->link);
        }
    }
    if (w->split) {
        w->wire.page_bytes = w->e.layout.block_bytes;
        w->wire.end[0].device = w->e.device;
        w->wire.end[1] =
            (struct ts_wire_end){.device = w->far.e.device, .landing = &w->far.landing, .decode = w->far.e.decode};
        if (w->two)
            w->wire.end[2] = (struct ts_wire_end){
                .device = w->other.e.device, .landing = &w->other.landing, .decode = w->other.e.decode};
        const struct act_spawn spec = {
            .behaviour = &ts_wire_behaviour, .worker = TS_WORLD_WIRE, .arg = &w->wire, .outbox = 4096};
        cr_assert_eq(act_runtime_spawn(w->rt, &spec, &w->e.link, &err), 0, "%s", err.msg);
        w->far.e.link = w->other.e.link = w->e.link;
    }
    link_client(w, c.workers);
    if (w->before_tiers)
        w->before_tiers(w, w->tiers_ctx);
    if (w->store) {
        w->e.store_layout = w->store->layout;
        spawn_at_client(w, &act_tier_store_behaviour, w->store, &w->e.store);
    }
    if (w->engram)
        spawn_at_client(w, &act_engram_store_behaviour, w->engram, &w->e.experts.engram);
    spawn(w, TS_PART_TIER, 0, &w->e, &w->e.tier);
    for (int i = 0; i < w->e.experts.n; i++) {
        w->expert[i] = (struct act_expert_arg){.m = w->m, .map = w->map, .index = i};
        spawn(w, TS_PART_EXPERT, i, &w->expert[i], &w->e.experts.shard[i]);
    }
    if (w->before_sources)
        w->before_sources(w);
    if (w->balance) {
        w->balancer.experts = &w->e.experts;
        w->e.experts.balanced = true;
        spawn_at_client(w, &act_balancer_behaviour, &w->balancer, &w->e.experts.balancer);
    }
    for (w->e.n_decode = 0; !w->split && w->e.n_decode < (w->decodes ? w->decodes : 1); w->e.n_decode++)
        spawn(w, TS_PART_DECODE, w->e.n_decode, &w->e, &w->e.decode[w->e.n_decode]);
    for (w->e.n_prefill = 0; w->e.n_prefill < (w->prefills ? w->prefills : 1); w->e.n_prefill++)
        spawn(w, TS_PART_PREFILL, w->e.n_prefill, &w->e, &w->e.prefill[w->e.n_prefill]);
    w->members = w->e;
    if (w->split) {
        spawn_far(w, &w->far, TS_FAR);
        if (w->two)
            spawn_far(w, &w->other, TS_OTHER);
        link_far(w);
        w->members.n_decode = !w->two;
        w->members.decode[0] = w->far.landing;
        w->router.engine = &w->members;
    }
    spawn_at_client(w, &act_router_behaviour, &w->router, &w->e.router);
    spawn_at_client(w, &ts_world_client, w, &w->client);
    if (w->watch)
        w->e.observer = w->far.e.observer = w->other.e.observer = w->client;
}

uint64_t ts_world_run(struct ts_world *w, uint64_t seed)
{
    ts_world_start(w, seed);
    if (w->at)
        cr_assert_eq(act_sim_at(w->sim, w->at_ns, w->at, w->before_ctx), 0);
    act_sim_run(w->sim, INT64_C(60000000000), 20000000);
    return act_sim_trace(w->sim);
}

/* After everything has ended only what the actors keep by design is held: Decode's lease. */
void ts_world_check_baseline(struct ts_world *w)
{
    struct kv_device_stats s;
    kv_device_stat(w->e.device, &s);
    cr_expect_le(s.held, w->e.n_decode * w->e.limits.lease + (w->split ? 0 : 2), "%d pages are still held", s.held);
    cr_expect_eq(s.unheld, 0u, "%d pages came back twice", (int)s.unheld);
    cr_expect_eq(s.changed + (uint64_t)kv_device_canary_check(w->e.device), 0u, "a finished block was written to");
    for (int i = 0; i < w->split + w->two; i++) {
        const struct ts_far *f = i ? &w->other : &w->far;
        kv_device_stat(f->e.device, &s);
        cr_expect_le(s.held, f->e.n_decode * f->e.limits.lease + 2, "%d pages are still held at the other side",
                     s.held);
        cr_expect_eq(s.changed + (uint64_t)kv_device_canary_check(f->e.device), 0u,
                     "a finished block was written to at the other side");
        cr_expect_eq(s.unheld, 0u, "%d pages came back twice at the other side", (int)s.unheld);
        cr_expect_eq(f->stats.open, 0, "%d tickets are open", f->stats.open);
    }
}

void ts_world_reports(struct ts_world *w)
{
    struct act_msg m = act_msg_make(ACT_PING, w->client);
    cr_assert_eq(act_runtime_post(w->rt, &m), 0);
    w->n_reports = 0;
    act_sim_run(w->sim, act_sim_now(w->sim) + INT64_C(600000000), 1000000);
}

void ts_world_cancel(struct ts_world *w, int i)
{
    struct act_msg m = act_msg_make(ACT_PING, w->client);
    *act_p_ping(&m) = (struct act_p_ping){.a = 2, .b = (uint64_t)i};
    cr_assert_eq(act_runtime_post(w->rt, &m), 0);
}

void ts_world_end_all(struct ts_world *w)
{
    struct act_msg m = act_msg_make(ACT_PING, w->client);
    act_p_ping(&m)->a = 1;
    w->lost_late = 0; /* before, the end of a request and that of its place may cross */
    cr_assert_eq(act_runtime_post(w->rt, &m), 0);
    act_sim_run(w->sim, act_sim_now(w->sim) + INT64_C(100000000), 1000000);
}

void ts_world_close(struct ts_world *w)
{
    act_sim_free(w->sim);
    ts_world_free(w);
}

void ts_world_free(struct ts_world *w)
{
    kv_device_free(w->e.device);
    kv_device_free(w->far.e.device);
    kv_device_free(w->other.e.device);
    for (int i = 0; i < w->n_old; i++)
        kv_device_free(w->old[i]);
    act_map_free(w->map);
    act_map_free(w->far.map);
    act_map_free(w->other.map);
    mdl_model_close(w->m);
}

/* ---- the reference ---- */

struct plain {
    struct mdl_sampler *sampler;
    struct mdl_sampling recipe;
    int32_t ids[512];
    int n, n_prompt, vocab;
    float *logprob; /* [output] */
};

static int32_t plain_pick(void *ctx, int pos, float *logits, bool draft)
{
    struct plain *p = ctx;
    struct cfg_error err;
    struct mdl_logprobs lp;
    int32_t id;
    if (mdl_sampler_sample(p->sampler, &p->recipe, logits, p->vocab, p->ids, p->n, p->n_prompt, pos, &id, &lp, &err))
        return -1;
    if (draft)
        return id;
    p->logprob[p->n - p->n_prompt] = (float)lp.logprob;
    p->ids[p->n++] = id;
    return id;
}

static void plain_prompt(struct ts_world *w, const struct ts_wanted *q, const struct mdl_providers *providers,
                         struct mdl_seq *seq, struct mdl_step *step)
{
    struct cfg_error err;
    struct mdl_prefill plan;
    struct mdl_segment seg;
    struct mdl_prefill_params params = {.exact = !w->e.limits.replay, .replay = w->e.limits.replay};
    cr_assert_eq(mdl_prefill_begin(&plan, seq, q->prompt, q->n_prompt, &params, &err), 0, "%s", err.msg);
    while (mdl_prefill_next(&plan, step->capacity, &seg)) {
        mdl_step_begin(step, providers);
        cr_assert_eq(mdl_step_add(step, &seg, &err), 0, "%s", err.msg);
        cr_assert_eq(mdl_step_run(step), MDL_STEP_DONE);
        mdl_step_commit(step, 0, seg.n);
        mdl_prefill_advance(&plan, &seg);
    }
}

static void plain_round(struct mdl_decoder *d, struct mdl_stream *s, const struct mdl_providers *providers)
{
    struct cfg_error err;
    int r = mdl_decoder_begin(d, &s, 1, providers, &err);
    cr_assert_eq(r, 0, "%s", err.msg);
    do
        r = mdl_decoder_advance(d, &err);
    while (r == MDL_STEP_MORE);
    cr_assert_eq(r, MDL_STEP_DONE);
}

void ts_world_plain(struct ts_world *w, const struct ts_wanted *q, const struct mdl_providers *providers, int32_t *out)
{
    struct cfg_error err;
    struct mdl_seq *seq;
    struct mdl_step *step;
    struct mdl_decoder *d;
    const struct act_engine_limits *l = &w->e.limits;
    const struct mdl_seq_params params = {.max_tokens = l->context, .rollback = l->rollback, .replay = l->replay};
    struct plain p = {.sampler = mdl_sampler_new(w->e.vocab),
                      .n = q->n_prompt,
                      .n_prompt = q->n_prompt,
                      .vocab = w->e.vocab,
                      .logprob = w->plain_logprob};
    mdl_sampling_init(&p.recipe);
    p.recipe.temperature = (double)q->temperature;
    p.recipe.seed = q->seed;
    memcpy(p.ids, q->prompt, (size_t)q->n_prompt * sizeof(int32_t));
    cr_assert_eq(mdl_seq_new(w->m->cfg, &params, &seq, &err), 0, "%s", err.msg);
    cr_assert_eq(mdl_step_new(w->m, l->chunk, l->context, &step, &err), 0, "%s", err.msg);
    cr_assert_eq(mdl_decoder_new(w->m, 1, l->draft, l->context, &d, &err), 0, "%s", err.msg);
    plain_prompt(w, q, providers, seq, step);
    struct mdl_stream s = {.seq = seq, .draft = l->draft, .pick = plain_pick, .pick_ctx = &p};
    s.next = plain_pick(&p, p.n, (float *)mdl_step_logits(step, 0, step->segment[0].n - 1), false);
    while (p.n < q->n_prompt + q->max_new) {
        s.limit = q->n_prompt + q->max_new - p.n;
        plain_round(d, &s, providers);
    }
    memcpy(out, p.ids + q->n_prompt, (size_t)q->max_new * sizeof(int32_t));
    mdl_decoder_free(d);
    mdl_step_free(step);
    mdl_seq_free(seq);
    mdl_sampler_free(p.sampler);
}

void ts_world_requests(struct ts_world *w, int n, unsigned seed)
{
    srand(seed);
    w->n = n;
    for (int i = 0; i < n; i++) {
        struct ts_wanted *q = &w->wanted[i];
        *q = (struct ts_wanted){.n_prompt = 1 + rand() % 100,
                                .max_new = 1 + rand() % TS_WORLD_NEW,
                                .seed = (uint64_t)rand(),
                                .temperature = rand() % 2 ? 1.0f : 0.0f,
                                .start = rand() % 3000000};
        for (int k = 0; k < q->n_prompt; k++)
            q->prompt[k] = rand() % w->m->cfg->vocab_size;
    }
}

void ts_world_check_same(struct ts_world *w, int i)
{
    int32_t want[256];
    ts_world_plain(w, &w->wanted[i], NULL, want);
    cr_assert_eq(w->got[i].terminal, 1, "request %d had %d terminal events", i, w->got[i].terminal);
    cr_assert_eq(w->got[i].n, w->wanted[i].max_new, "request %d: %d tokens of %d", i, w->got[i].n,
                 w->wanted[i].max_new);
    for (int k = 0; k < w->got[i].n; k++)
        cr_assert_eq(w->got[i].ids[k], want[k], "request %d, token %d: %d instead of %d", i, k, w->got[i].ids[k],
                     want[k]);
    for (int k = 0; k < w->got[i].n && w->wanted[i].logprobs; k++)
        cr_assert_eq(memcmp(&w->got[i].logprob[k], &w->plain_logprob[k], sizeof(float)), 0,
                     "request %d, token %d: log-probability %a instead of %a", i, k, (double)w->got[i].logprob[k],
                     (double)w->plain_logprob[k]);
}
