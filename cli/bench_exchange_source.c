#include "cli/bench_exchange_source.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

enum { WARM_UP = 2 };

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* ---- the actors ---- */

/* One micro-batch: the first rows of a sequence, computed again and again and never committed. */
struct bench_lane {
    struct bench_source *s;
    struct act_self *self;
    int index;
    struct mdl_step *step;
    struct mdl_seq *seq;
    int32_t *ids;
    struct act_exchange exchange;
    bool running, waiting;
};

static int make_lane(struct bench_lane *l, struct act_self *self)
{
    struct cfg_error err;
    struct mdl_model *m = l->s->m;
    int rows = l->s->rows / BENCH_LANES;
    struct mdl_seq_params p = {.max_tokens = rows + 1};
    l->ids = malloc((size_t)rows * sizeof *l->ids);
    if (!l->ids || mdl_step_new(m, rows, rows + 1, &l->step, &err) || mdl_seq_new(m->cfg, &p, &l->seq, &err))
        return -ENOMEM;
    for (int k = 0; k < rows; k++)
        l->ids[k] = (int32_t)(((uint32_t)(l->index * rows + k) * 2654435761u >> 8) % (uint32_t)m->cfg->vocab_size);
    return act_exchange_init(&l->exchange, self, m, (uint16_t)l->index, l->s->experts);
}

static void lane_stop(struct act_self *self, void *state, int reason)
{
    struct bench_lane *l = state;
    (void)self;
    (void)reason;
    act_exchange_free(&l->exchange);
    mdl_step_free(l->step);
    mdl_seq_free(l->seq);
    free(l->ids);
}

static int lane_start(struct act_self *self, void *state, const void *arg)
{
    const struct bench_lane_arg *a = arg;
    struct bench_lane *l = state;
    *l = (struct bench_lane){.s = a->s, .self = self, .index = a->index};
    int r = make_lane(l, self);
    if (r)
        lane_stop(self, state, r);
    else
        a->s->lane[a->index] = l;
    return r;
}

static void finish(struct bench_source *s, int error)
{
    s->left = 0;
    s->now.took = now_ns() - s->began;
    s->now.error = error;
    for (int i = 0; i < BENCH_LANES; i++) {
        s->wanted[i] = s->lane[i]->running = false;
        s->now.dispatched += s->lane[i]->exchange.counters.dispatched;
        s->now.puts += s->lane[i]->exchange.counters.puts;
    }
    s->now.dispatched -= s->dispatched;
    s->now.puts -= s->puts;
    s->dispatched += s->now.dispatched;
    s->puts += s->now.puts;
    pthread_mutex_lock(&s->lock);
    s->result = s->now;
    s->done = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static int begin(struct bench_lane *l)
{
    struct cfg_error err;
    int rows = l->s->rows / BENCH_LANES;
    const struct mdl_segment seg = {
        .seq = l->seq, .n = rows, .ids = l->ids, .layer_end = l->s->m->cfg->n_layers, .logits_from = rows - 1};
    act_exchange_begin(&l->exchange);
    mdl_step_begin(l->step, &l->exchange.providers);
    l->running = true;
    l->waiting = false;
    return mdl_step_add(l->step, &seg, &err);
}

static bool can_go_on(const struct bench_lane *l)
{
    return l->running && !l->waiting;
}

/* It is to begin. */
static void want(struct bench_source *s, int lane)
{
    s->wanted[lane] = true;
    act_yield(s->lane[lane]->self);
}

/* One phase. A step that lost its exchange is run again, as the engine's actors do. */
static int advance(struct bench_lane *l)
{
    struct bench_source *s = l->s;
    if (!can_go_on(l))
        return 0;
    if (l->exchange.lost) {
        s->now.again++;
        return begin(l);
    }
    int r = mdl_step_advance(l->step);
    if (r == MDL_STEP_MORE || r < 0)
        return r < 0 ? r : 0;
    l->waiting = r == MDL_STEP_WAIT;
    l->running = r != MDL_STEP_DONE;
    if (!l->running) {
        act_exchange_end(&l->exchange);
        s->left--;
    }
    if (!l->running && s->left && s->turns == BENCH_SERIAL)
        want(s, 1 - l->index);
    return 0;
}

/* To the first one: the step of both begins. */
static void start_step(struct bench_source *s, int64_t at)
{
    s->now = (struct bench_step){0};
    s->began = at;
    s->left = BENCH_LANES;
    want(s, 0);
    if (s->turns == BENCH_ALTERNATING)
        want(s, 1);
}

static int lane_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct bench_lane *l = state;
    struct bench_source *s = l->s;
    int64_t at = now_ns();
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_PING)
            start_step(s, at);
        if (act_exchange_message(&l->exchange, &m[i]))
            l->waiting = false;
    }
    bool under_way = s->left > 0;
    int r = 0;
    if (s->wanted[l->index]) {
        s->wanted[l->index] = false;
        r = begin(l);
    }
    if (!r)
        r = advance(l);
    s->now.busy += now_ns() - at;
    if (under_way && (r || s->left == 0))
        finish(s, r);
    if (can_go_on(l))
        act_yield(self);
    return 0;
}

static const struct act_behaviour lane_behaviour = {.name = "source",
                                                    .state_size = sizeof(struct bench_lane),
                                                    .start = lane_start,
                                                    .receive = lane_receive,
                                                    .stop = lane_stop};

int bench_source_spawn(struct act_runtime *rt, int worker, struct bench_source *s, struct cfg_error *err)
{
    int r = 0;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    for (int i = 0; i < BENCH_LANES && !r; i++) {
        s->arg[i] = (struct bench_lane_arg){s, i};
        const struct act_spawn spec = {
            .behaviour = &lane_behaviour, .worker = worker, .arg = &s->arg[i], .outbox = 1024};
        r = act_runtime_spawn(rt, &spec, &s->addr[i], err);
    }
    return r;
}

/* ---- measuring ---- */

struct bench_step bench_source_run(struct act_runtime *rt, struct bench_source *s, enum bench_turns turns)
{
    pthread_mutex_lock(&s->lock);
    s->done = false;
    s->turns = turns;
    pthread_mutex_unlock(&s->lock);
    struct act_msg m = act_msg_make(ACT_PING, s->addr[0]);
    int r = act_runtime_post(rt, &m);
    pthread_mutex_lock(&s->lock);
    while (!r && !s->done)
        pthread_cond_wait(&s->changed, &s->lock);
    struct bench_step step = s->result;
    pthread_mutex_unlock(&s->lock);
    return r ? (struct bench_step){.error = r} : step;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, compare);
    return v[n / 2];
}

enum { COMPUTE, EXCHANGE, SERIAL, ALTERNATING, OVERLAPPED, FIGURES };

struct series {
    double v[FIGURES][BENCH_STEPS_MAX];
    uint64_t dispatched, puts;
    int again;
};

/* i below 0: not counted. */
static int take_step(struct act_runtime *rt, struct bench_source *s, int i, struct series *to)
{
    struct bench_step a = bench_source_run(rt, s, BENCH_SERIAL);
    struct bench_step b = a.error ? a : bench_source_run(rt, s, BENCH_ALTERNATING);
    if (i < 0 || b.error)
        return b.error;
    to->v[COMPUTE][i] = (double)a.busy * 1e-6;
    to->v[EXCHANGE][i] = (double)(a.took - a.busy) * 1e-6;
    to->v[SERIAL][i] = (double)a.took * 1e-6;
    to->v[ALTERNATING][i] = (double)b.took * 1e-6;
    to->v[OVERLAPPED][i] = (double)b.busy * 1e-6;
    to->dispatched += a.dispatched + b.dispatched;
    to->puts += a.puts + b.puts;
    to->again += a.again + b.again;
    return 0;
}

int bench_exchange_measure(struct act_runtime *const *rt, struct bench_source *const *s, int forms, int n,
                           struct bench_exchange_point *out)
{
    struct series *x = calloc((size_t)forms, sizeof *x);
    int r = x ? 0 : -ENOMEM;
    for (int i = -WARM_UP; i < n && !r; i++)
        for (int f = 0; f < forms && !r; f++)
            r = take_step(rt[f], s[f], i, &x[f]);
    for (int f = 0; f < forms && !r; f++)
        out[f] = (struct bench_exchange_point){
            .compute = median(x[f].v[COMPUTE], n),
            .exchange = median(x[f].v[EXCHANGE], n),
            .serial = median(x[f].v[SERIAL], n),
            .alternating = median(x[f].v[ALTERNATING], n),
            .overlapped = median(x[f].v[OVERLAPPED], n),
            .slots = x[f].dispatched ? (double)x[f].puts / (double)x[f].dispatched : 0,
            .again = x[f].again,
        };
    free(x);
    return r;
}
