/* A described machine in the place of a model's kernels. Its steps take the profile's time: on a rank of its own by a
 * timer, in one process by taking the worker's time in pieces, so that Prefill and Decode share it as they do when they
 * compute.
 *
 * What it "computes" has no memory: which drafts are kept follows from the request's number and the position alone, so
 * the same request meets the same luck under every plan and in every company. The number is in the last ids of a
 * prompt, five bits per id, and every later id repeats the one SIM_TAIL before it; an id with DIFFERS set is one that
 * the drafter did not guess. */
#include <math.h>
#include <string.h>

#include "cli/simulate.h"

/* Of the runtime: who has waited for so long has a turn before those of a better class. */
static const int64_t AGE_NS = 20000000;

enum { VOCAB = 64, DIGIT = 31, DIFFERS = 32, WINDOW = 8, PHASES = 4, CUT = 1, LAYERS = 2 };

void sim_compute_config(const struct sim_profile *p, struct mdl_config *out)
{
    *out = (struct mdl_config){.vocab_size = VOCAB,
                               .hidden = 16,
                               .n_layers = LAYERS,
                               .n_heads = 1,
                               .head_dim = 16,
                               .window = WINDOW,
                               .max_position = 1 << 22,
                               .candidate_layer = -1,
                               .n_kv_sources = 1,
                               .kv_sources = {CUT},
                               .kv_source_ratio = {1},
                               .cut = CUT,
                               .n_draft = 1,
                               .draft_block = p->block,
                               .bos_id = -1,
                               .eos_id = -1,
                               .pad_id = -1,
                               .image_id = -1};
    for (int l = 0; l < LAYERS; l++)
        out->layer[l] = (struct mdl_layer_role){.mode = l < CUT ? MDL_LAYER_SWA : MDL_LAYER_FULL,
                                                .ratio = l >= CUT,
                                                .kv_source = l < CUT ? -1 : 0,
                                                .index_source = l < CUT ? -1 : CUT,
                                                .engram = -1};
}

/* ---- whose sequence, and its luck ---- */

void sim_compute_name(uint64_t request, int n, int32_t *tail)
{
    for (int i = 0; i < SIM_TAIL; i++)
        tail[i] = (int32_t)(request >> 5 * ((n - SIM_TAIL + i) % SIM_TAIL)) & DIGIT;
}

static int32_t id_at(const struct mdl_segment *seg, int pos)
{
    return pos < 0 ? 0 : pos >= seg->start && seg->ids ? seg->ids[pos - seg->start] : seg->seq->ids[pos];
}

/* By the ids of the SIM_TAIL positions up to pos. */
static uint64_t request_of(const struct mdl_segment *seg, int pos)
{
    uint64_t r = 0;
    for (int q = pos - SIM_TAIL + 1; q <= pos; q++)
        if (q >= 0)
            r |= (uint64_t)(id_at(seg, q) & DIGIT) << 5 * (q % SIM_TAIL);
    return r;
}

/* Of the drafts behind position `start`: what their confidences share. */
static double ease(const struct sim_profile *p, uint64_t request, int start)
{
    uint64_t own = sim_hash(request, 1), block = sim_hash(request, 2 + (uint64_t)start);
    return sqrt(p->persist) * sim_normal(&own) + sqrt(1 - p->persist) * sim_normal(&block);
}

static double logit(const struct sim_profile *p, double x, int k)
{
    return p->base + p->slope * k + p->spread * x;
}

static void draft(void *ctx, const struct mdl_step *s, int segment, int n, struct mdl_draft *out)
{
    struct sim_compute *c = ctx;
    const struct mdl_segment *seg = &s->segment[segment];
    double x = ease(c->profile, request_of(seg, seg->start), seg->start);
    out->n = n;
    for (int k = 0; k < n; k++) {
        int pos = seg->start + 1 + k - SIM_TAIL; /* whose id is repeated */
        out->ids[k] = (pos > seg->start ? out->ids[pos - seg->start - 1] : id_at(seg, pos)) & DIGIT;
        out->confidence[k] = (float)logit(c->profile, x, k);
    }
    double ns = n * c->profile->table.pick_ns;
    if (c->shared)
        act_busy(((const struct act_exchange *)s->providers->ctx)->self, (int64_t)ns);
    else
        c->picks_ns += ns;
}

/* The target's choice for the position behind each row that has logits. Returns how many will be picked. */
static int choose(const struct sim_compute *c, struct mdl_step *s, const struct mdl_segment *seg)
{
    int picked = 0;
    bool goes_on = true;
    uint64_t request = request_of(seg, seg->start);
    bool judges = seg->layer_begin == 0 && seg->n > 1 && s->logits_row[seg->first_row] >= 0;
    double x = judges ? ease(c->profile, request, seg->start) : 0;
    for (int i = 0; i < seg->n; i++) {
        int at = s->logits_row[seg->first_row + i], pos = seg->start + i + 1;
        if (at < 0)
            continue;
        int32_t id = id_at(seg, pos - SIM_TAIL) & DIGIT;
        uint64_t luck = sim_hash(request, ~(uint64_t)pos);
        if (judges && i + 1 < seg->n && sim_uniform(&luck) >= 1 / (1 + exp(-logit(c->profile, x, i))))
            id |= DIFFERS;
        picked += goes_on;
        goes_on &= !(id & DIFFERS);
        float *logits = s->logits + (size_t)at * VOCAB;
        memset(logits, 0, VOCAB * sizeof *logits);
        logits[id] = 1;
    }
    return picked;
}

/* ---- time ---- */

static double curve_ns(const struct sim_profile *p, const struct act_steptime_curve *c, int rows)
{
    return rows ? act_steptime_at(&p->table, c, rows) : 0;
}

static double prefill_ns(const struct sim_compute *c, const struct mdl_step *s)
{
    const struct sim_profile *p = c->profile;
    int encoder = 0, tail = 0;
    for (int i = 0; i < s->n_segments; i++) {
        const struct mdl_segment *seg = &s->segment[i];
        *(seg->layer_begin == 0 ? &encoder : &tail) += seg->n;
    }
    return 1 + curve_ns(p, &p->encoder, encoder) + curve_ns(p, &p->tail, tail) + c->extra_ns[1];
}

static double round_ns(struct sim_compute *c, const struct mdl_step *s)
{
    const struct sim_profile *p = c->profile;
    bool drafts = s->segment[0].draft;
    double ns = c->planned && !c->plan_paid ? 1e3 * p->plan_us : 0;
    c->plan_paid = drafts; /* a round's second step, if it has two, is its last */
    if (drafts)
        return ns + act_steptime_at(&p->table, &p->table.draft, s->n_segments);
    ns += act_steptime_verify_ns(&p->table, s->n_segments, s->n_rows, 0) + curve_ns(p, &p->exchange, s->n_rows) +
          c->extra_ns[0] + c->picks_ns;
    c->picks_ns = 0;
    return ns;
}

static double step_ns(struct sim_compute *c, const struct mdl_step *s, bool bulk)
{
    double ns = bulk ? prefill_ns(c, s) : round_ns(c, s);
    ns = ns > 1 ? ns : 1;
    return c->profile->noise > 0 ? ns * exp(c->profile->noise * sim_normal(&c->random)) : ns;
}

/* Rows that the step reads and that are still on their way from a tier. */
static bool rows_are_there(struct mdl_step *s)
{
    for (int i = 0; i < s->n_segments; i++) {
        const struct mdl_segment *seg = &s->segment[i];
        if (!seg->draft && s->providers->kv(s->providers->ctx, s, seg->seq, 0, seg->start + seg->n) == 0)
            return false;
    }
    return true;
}

/* The tokens are picked in the call that ends the step, so the time for that comes behind it. */
static int finish(struct sim_compute *c, struct mdl_step *s, struct act_self *self)
{
    int picked = 0;
    for (int i = 0; i < s->n_segments; i++)
        picked += s->segment[i].draft ? 0 : choose(c, s, &s->segment[i]);
    double ns = 1e3 * c->profile->emit_us * picked;
    if (c->shared)
        act_busy(self, (int64_t)ns);
    else
        c->late_ns -= ns;
    return MDL_STEP_DONE;
}

/* Of a round: the layers, or the drafter. Of a prompt's step: the layers that its rows run through. */
static int layers_of(const struct sim_profile *p, const struct mdl_step *s, bool bulk)
{
    bool runs[2] = {!bulk, !bulk};
    for (int i = 0; bulk && i < s->n_segments; i++)
        runs[s->segment[i].layer_begin > 0] = true;
    return s->segment[0].draft ? 1 : runs[0] * p->layers[0] + runs[1] * p->layers[1];
}

static void take_experts(struct act_self *self, struct sim_running *prompt, double before_ns)
{
    if (!prompt->experts)
        return;
    act_busy(self, (int64_t)prompt->expert_ns);
    prompt->experts--;
    prompt->whole = act_now(self) + (int64_t)(before_ns + prompt->expert_ns);
}

/* One process. The worker turns between the phases of steps, rounds before prompts. Experts are computed by shards,
 * actors of the rounds' class: those of a prompt's layer go on beside a round, one part after each of its phases, and
 * the prompt's next phase waits for the end of the round. While they are computed Prefill does not stand in line for a
 * turn, so it grows no older there. */
static int take_turns(struct sim_compute *c, struct mdl_step *s, struct act_self *self, bool bulk, double ns)
{
    const struct sim_profile *p = c->profile;
    struct sim_running *r = &c->running[bulk], *prompt = &c->running[1];
    if (ns > 0) {
        int layers = layers_of(p, s, bulk);
        double share = bulk ? p->expert_share : 0;
        *r = (struct sim_running){.turns = layers * PHASES,
                                  .turn_ns = (1 - share) * ns / (layers * PHASES),
                                  .expert_ns = share * ns / (layers * p->expert_parts)};
    }
    bool in_round = bulk && c->running[0].turns > 0;
    if (in_round && (r->experts > 0 || act_now(self) - r->whole < AGE_NS))
        return MDL_STEP_MORE;
    if (r->experts) {
        take_experts(self, r, 0);
        return MDL_STEP_MORE;
    }
    if (!r->turns)
        return finish(c, s, self);
    act_busy(self, (int64_t)r->turn_ns);
    r->turns--;
    if (!bulk)
        take_experts(self, prompt, r->turn_ns);
    else if (r->turns % PHASES == 1 && p->expert_share > 0) /* the last phase puts together what they bring */
        r->experts = p->expert_parts;
    return MDL_STEP_MORE;
}

/* Longer than ranks of a group come apart while they draft and plan, shorter than a step. */
static int64_t gathering_ns(const struct sim_lockstep *g)
{
    int64_t quarter = (g->end - g->began) / 4;
    return quarter > 100000 ? quarter : 100000;
}

/* Where the rank has to go on: the end of what the group gathers, or of the step, or now when that is over. */
static int64_t with_the_group(struct sim_lockstep *g, struct sim_running *r, int64_t now)
{
    if (r->joined && r->joined != g->number)
        return now; /* others have begun the next one */
    if (!r->joined && now > g->gathers_until && now < g->end)
        return g->end; /* without it; it is in the next one */
    if (!r->joined) {
        if (now > g->gathers_until)
            *g = (struct sim_lockstep){
                .began = now, .gathers_until = now + gathering_ns(g), .end = now, .number = g->number + 1};
        int64_t end = now + (int64_t)r->own_ns;
        g->end = end > g->end ? end : g->end;
        r->joined = g->number;
    }
    if (now <= g->gathers_until)
        return g->gathers_until + 1;
    return g->end > now ? g->end : now;
}

static int take_time_together(struct sim_compute *c, struct mdl_step *s, struct act_self *self, struct sim_running *r,
                              double ns)
{
    int64_t now = act_now(self);
    if (ns > 0) {
        double late = c->late_ns < ns / 2 ? c->late_ns : ns / 2;
        c->late_ns -= late;
        r->own_ns = ns - late;
        r->joined = 0;
    } else if (act_timer_pending(&r->timer)) {
        return MDL_STEP_WAIT;
    }
    int64_t at = with_the_group(c->group, r, now);
    if (at > now) {
        r->due = at;
        act_timer_at(self, &r->timer, at, ACT_COMPUTED_TAG);
        return MDL_STEP_WAIT;
    }
    c->late_ns += (double)(now - r->due);
    return finish(c, s, self);
}

static int take_time(struct sim_compute *c, struct mdl_step *s, struct act_self *self, struct sim_running *r, double ns)
{
    if (ns > 0) {
        double late = c->late_ns < ns / 2 ? c->late_ns : ns / 2; /* below 0: it still owes time */
        c->late_ns -= late;
        r->due = act_now(self) + (int64_t)(ns - late);
        act_timer_at(self, &r->timer, r->due, ACT_COMPUTED_TAG);
        return MDL_STEP_WAIT;
    }
    if (act_timer_pending(&r->timer))
        return MDL_STEP_WAIT;
    c->late_ns += (double)(act_now(self) - r->due);
    return finish(c, s, self);
}

static int advance(void *ctx, struct mdl_step *s)
{
    struct sim_compute *c = ctx;
    const struct act_exchange *x = s->providers->ctx; /* an actor's step is its exchange's (engine.h) */
    bool bulk = (x->stream & ACT_STREAM_BULK) != 0, begins = s->phase == MDL_PHASE_START;
    if (begins && !rows_are_there(s))
        return MDL_STEP_WAIT;
    double ns = begins ? step_ns(c, s, bulk) : 0;
    s->phase = MDL_PHASE_ATTEND;
    if (c->group && !bulk && !s->segment[0].draft)
        return take_time_together(c, s, x->self, &c->running[0], ns);
    if (c->shared)
        return take_turns(c, s, x->self, bulk, ns);
    return take_time(c, s, x->self, &c->running[bulk], ns);
}

void sim_compute_init(struct sim_compute *c, const struct sim_profile *p, const struct mdl_config *config,
                      uint64_t seed)
{
    *c = (struct sim_compute){.profile = p, .shared = p->one_process, .random = sim_hash(seed, 3)};
    c->ops = (struct mdl_compute){.ctx = c, .advance = advance, .draft = draft};
    c->model = (struct mdl_model){.cfg = config, .compute = &c->ops};
    c->model.exec.cfg = config;
}
