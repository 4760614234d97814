/* The expert exchange between the engine's actors: what travels, and what becomes of a step whose exchange is lost, at
 * every exchange of every layer, while answers to the lost one come late. */
#include "tests/harness.h"

#include "tests/support/engine_world.h"

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
