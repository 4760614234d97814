/* `weft bench exchange`: how far the expert exchange hides behind compute. A source runs the model's steps on one
 * worker, expert shards answer on another, and an actor between them holds every message for a given time, as a link
 * would. The same two micro-batches run one after the other (serial) and alternating. Main thread; starts threads of
 * its own and ends them. */
#include "cli/bench_exchange.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "actors/exchange.h"
#include "actors/expert.h"
#include "cli/cli.h"
#include "cli/options.h"

enum {
    WORKER_SOURCE,
    WORKER_LINK,
    WORKER_SHARDS,
    WORKERS,
    LANES = 2,
    HELD_MAX = 1024,
    SHARDS_MAX = 64,
    POINTS_MAX = 16
};

static struct {
    const char *model;
    int rows, shards, steps, threads;
    double delay_us; /* -1: several, chosen by the measured compute */
    bool json;
} options = {.model = "samples/tiny", .rows = 32, .shards = 2, .steps = 12, .threads = 1, .delay_us = -1};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* ---- the link: one actor before each shard ---- */

struct held {
    struct act_msg m;
    int64_t due;
    bool answer;
};

struct link_arg {
    struct act_addr shard;
    const int64_t *delay_ns; /* constant while a measurement runs */
};

struct link {
    const struct link_arg *arg;
    struct held held[HELD_MAX]; /* in order of due */
    int first, n;
    struct act_promise promise[HELD_MAX];
    uint64_t next;
    struct act_timer timer;
};

static int link_start(struct act_self *self, void *state, const void *arg)
{
    (void)self;
    ((struct link *)state)->arg = arg;
    return 0;
}

static void let_go(struct act_self *self, struct link *l, struct held *h)
{
    if (h->answer) {
        struct act_promise *p = &l->promise[h->m.request % HELD_MAX];
        if (act_reply(self, p, &h->m))
            act_msg_drop(&h->m);
        return;
    }
    h->m.dst = l->arg->shard;
    if (act_request(self, &h->m))
        act_msg_drop(&h->m);
}

static int link_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct link *l = state;
    int64_t now = act_now(self);
    for (int i = 0; i < count; i++) {
        bool answer = m[i].type == ACT_EXPERT_RESULT;
        if ((!answer && m[i].type != ACT_EXPERT_DISPATCH) || l->n == HELD_MAX)
            continue;
        struct held *h = &l->held[(l->first + l->n++) % HELD_MAX];
        *h = (struct held){.m = m[i], .due = now + *l->arg->delay_ns, .answer = answer};
        h->m.buf = act_msg_take(&m[i]);
        if (!answer) {
            l->promise[l->next % HELD_MAX] = act_promise_of(&m[i]);
            h->m.request = l->next++;
            h->m.flags = 0;
        }
    }
    while (l->n && l->held[l->first].due <= now) {
        struct held *h = &l->held[l->first];
        l->first = (l->first + 1) % HELD_MAX;
        l->n--;
        let_go(self, l, h);
    }
    if (l->n)
        act_timer_at(self, &l->timer, l->held[l->first].due, 0);
    return 0;
}

static void link_stop(struct act_self *self, void *state, int reason)
{
    struct link *l = state;
    (void)self;
    (void)reason;
    for (int i = 0; i < l->n; i++)
        act_msg_drop(&l->held[(l->first + i) % HELD_MAX].m);
}

static const struct act_behaviour link_behaviour = {
    .name = "link", .state_size = sizeof(struct link), .start = link_start, .receive = link_receive, .stop = link_stop};

/* ---- the source ---- */

/* One micro-batch: the first rows of a sequence, computed again and again and never committed. */
struct lane {
    struct mdl_step *step;
    struct mdl_seq *seq;
    int32_t *ids;
    struct act_exchange exchange;
    bool running, waiting;
};

struct result {
    int64_t took, busy; /* ns; busy: of the source */
    int error;
};

struct source_arg {
    struct mdl_model *m;
    const struct act_experts *experts;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done, alternate;
    int steps;
    struct result result;
};

struct source {
    struct source_arg *arg;
    struct lane lane[LANES];
    int left, turn;
    int64_t began, busy;
};

static int lane_new(struct source *s, struct act_self *self, int i)
{
    struct lane *l = &s->lane[i];
    struct cfg_error err;
    const struct mdl_config *cfg = s->arg->m->cfg;
    int rows = options.rows / LANES;
    struct mdl_seq_params p = {.max_tokens = rows + 1};
    l->ids = malloc((size_t)rows * sizeof *l->ids);
    if (!l->ids || mdl_step_new(s->arg->m, rows, rows + 1, &l->step, &err) || mdl_seq_new(cfg, &p, &l->seq, &err))
        return -ENOMEM;
    for (int k = 0; k < rows; k++)
        l->ids[k] = (int32_t)(((uint32_t)(i * rows + k) * 2654435761u >> 8) % (uint32_t)cfg->vocab_size);
    return act_exchange_init(&l->exchange, self, s->arg->m, (uint16_t)i, s->arg->experts);
}

static void source_stop(struct act_self *self, void *state, int reason)
{
    struct source *s = state;
    (void)self;
    (void)reason;
    for (int i = 0; i < LANES; i++) {
        act_exchange_free(&s->lane[i].exchange);
        mdl_step_free(s->lane[i].step);
        mdl_seq_free(s->lane[i].seq);
        free(s->lane[i].ids);
    }
}

static int source_start(struct act_self *self, void *state, const void *arg)
{
    struct source *s = state;
    s->arg = (struct source_arg *)(uintptr_t)arg;
    for (int i = 0; i < LANES; i++) {
        int r = lane_new(s, self, i);
        if (r) {
            source_stop(self, state, r);
            return r;
        }
    }
    return 0;
}

static void finish(struct source *s, int error)
{
    struct source_arg *a = s->arg;
    s->left = 0;
    pthread_mutex_lock(&a->lock);
    a->result = (struct result){now_ns() - s->began, s->busy, error};
    a->done = true;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static int lane_begin(struct source *s, struct lane *l)
{
    struct cfg_error err;
    int rows = options.rows / LANES;
    const struct mdl_segment seg = {
        .seq = l->seq, .n = rows, .ids = l->ids, .layer_end = s->arg->m->cfg->n_layers, .logits_from = rows - 1};
    act_exchange_begin(&l->exchange);
    mdl_step_begin(l->step, &l->exchange.providers);
    int r = mdl_step_add(l->step, &seg, &err);
    l->running = !r;
    l->waiting = false;
    return r;
}

/* Every lane that may begins: both, or with `alternate` off the next one when the one before has ended. */
static int begin_lanes(struct source *s)
{
    bool any = s->lane[0].running || s->lane[1].running;
    if (any)
        return 0;
    if (s->left == 0) {
        finish(s, 0);
        return 0;
    }
    if (s->arg->alternate) {
        s->left -= LANES;
        int r = lane_begin(s, &s->lane[0]);
        return r ? r : lane_begin(s, &s->lane[1]);
    }
    s->left--;
    return lane_begin(s, &s->lane[s->turn++ % LANES]);
}

static int advance(struct source *s)
{
    for (int i = 0; i < LANES; i++) {
        struct lane *l = &s->lane[(s->turn + i) % LANES];
        if (!l->running || l->waiting)
            continue;
        int r = l->exchange.lost ? -EIO : mdl_step_advance(l->step);
        if (r == MDL_STEP_WAIT) {
            l->waiting = true;
            s->turn += s->arg->alternate;
        }
        if (r == MDL_STEP_DONE) {
            l->running = false;
            act_exchange_end(&l->exchange);
        }
        return r < 0 ? r : 0;
    }
    return 0;
}

static int source_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct source *s = state;
    int64_t at = now_ns();
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_PING) {
            s->left = s->arg->steps * LANES;
            s->began = at;
            s->busy = 0;
        }
        for (int k = 0; k < LANES; k++)
            if (act_exchange_message(&s->lane[k].exchange, &m[i]))
                s->lane[k].waiting = false;
    }
    bool any = s->left || s->lane[0].running || s->lane[1].running;
    int r = any ? advance(s) : 0;
    if (!r && any)
        r = begin_lanes(s);
    s->busy += now_ns() - at;
    if (r)
        finish(s, r);
    for (int k = 0; k < LANES && !r; k++)
        if (s->lane[k].running && !s->lane[k].waiting) {
            act_yield(self);
            break;
        }
    return 0;
}

static const struct act_behaviour source_behaviour = {.name = "source",
                                                      .state_size = sizeof(struct source),
                                                      .start = source_start,
                                                      .receive = source_receive,
                                                      .stop = source_stop};

/* ---- the whole ---- */

struct bench {
    struct mdl_model *source_model, *shard_model;
    struct act_map *map;
    struct act_experts experts;
    struct act_expert_arg expert[SHARDS_MAX];
    struct link_arg link[SHARDS_MAX];
    struct source_arg source;
    struct act_addr source_addr;
    struct act_runtime *rt;
    int64_t delay_ns;
};

static int spawn(struct bench *b, const struct act_behaviour *behaviour, int worker, const void *arg,
                 struct act_addr *out, struct cfg_error *err)
{
    const struct act_spawn spec = {.behaviour = behaviour, .worker = worker, .arg = arg, .outbox = 1024};
    return act_runtime_spawn(b->rt, &spec, out, err);
}

static int spawn_all(struct bench *b, struct cfg_error *err)
{
    int r = 0;
    for (int i = 0; i < options.shards && !r; i++) {
        b->expert[i] = (struct act_expert_arg){.m = b->shard_model, .map = b->map, .index = i};
        r = spawn(b, &act_expert_behaviour, WORKER_SHARDS, &b->expert[i], &b->link[i].shard, err);
        b->link[i].delay_ns = &b->delay_ns;
        if (!r)
            r = spawn(b, &link_behaviour, WORKER_LINK, &b->link[i], &b->experts.shard[i], err);
    }
    b->experts.n = options.shards;
    b->experts.map = b->map;
    b->experts.limits.deadline_ns = INT64_C(60000000000);
    b->source.m = b->source_model;
    b->source.experts = &b->experts;
    if (!r)
        r = spawn(b, &source_behaviour, WORKER_SOURCE, &b->source, &b->source_addr, err);
    return r ? r : act_runtime_start(b->rt, err);
}

static int open_bench(struct bench *b, struct cfg_error *err)
{
    int r = mdl_model_open(options.model, options.threads, NULL, &b->source_model, err);
    if (!r)
        r = mdl_model_open(options.model, options.threads, NULL, &b->shard_model, err);
    if (r)
        return r;
    const struct mdl_config *cfg = b->source_model->cfg;
    if (options.shards > cfg->n_experts)
        return cfg_error_set(err, EINVAL, "%d shards are more than the model's %d experts", options.shards,
                             cfg->n_experts);
    if (act_map_even(1, cfg->n_layers, cfg->n_experts, options.shards, &b->map))
        return cfg_error_set(err, ENOMEM, "out of memory");
    /* The shards stand for another machine: without CPUs of their own, what the scheduler does would be measured. */
    bool apart = options.threads == 1 && sysconf(_SC_NPROCESSORS_ONLN) > 1;
    struct act_config c = {.epoch = 1, .workers = WORKERS, .spin_us = 0};
    static const char *const names[WORKERS] = {"source", "link", "shards"};
    for (int i = 0; i < WORKERS; i++) {
        c.worker[i] = (struct act_worker_config){
            .kind = ACT_WORKER_ENGINE, .cpu = apart ? i != WORKER_SOURCE : -1, .actors_max = 2 * SHARDS_MAX};
        snprintf(c.worker[i].name, sizeof c.worker[i].name, "%s", names[i]);
    }
    pthread_mutex_init(&b->source.lock, NULL);
    pthread_cond_init(&b->source.changed, NULL);
    r = act_runtime_new(&c, &b->rt, err);
    return r ? r : spawn_all(b, err);
}

static void close_bench(struct bench *b)
{
    act_runtime_free(b->rt);
    act_map_free(b->map);
    mdl_model_close(b->source_model);
    mdl_model_close(b->shard_model);
}

static struct result run_once(struct bench *b, bool alternate, int steps)
{
    struct source_arg *a = &b->source;
    pthread_mutex_lock(&a->lock);
    a->done = false;
    a->alternate = alternate;
    a->steps = steps;
    pthread_mutex_unlock(&a->lock);
    struct act_msg m = act_msg_make(ACT_PING, b->source_addr);
    act_runtime_post(b->rt, &m);
    pthread_mutex_lock(&a->lock);
    while (!a->done)
        pthread_cond_wait(&a->changed, &a->lock);
    struct result r = a->result;
    pthread_mutex_unlock(&a->lock);
    return r;
}

/* Of one step of both micro-batches, ms. */
struct point {
    double delay_us, compute, exchange, serial, alternating;
    double overlapped; /* compute, while the shards work beside it */
};

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

/* Step by step, serial and alternating in turn, medians. */
static int measure(struct bench *b, double delay_us, struct point *p)
{
    double busy[1000], idle[1000], serial[1000], both[1000], overlapped[1000];
    b->delay_ns = (int64_t)(delay_us * 1e3);
    for (int i = -2; i < options.steps; i++) {
        struct result s = run_once(b, false, 1), t = run_once(b, true, 1);
        if (s.error || t.error)
            return s.error ? s.error : t.error;
        if (i < 0)
            continue;
        busy[i] = (double)s.busy * 1e-6;
        idle[i] = (double)(s.took - s.busy) * 1e-6;
        serial[i] = (double)s.took * 1e-6;
        both[i] = (double)t.took * 1e-6;
        overlapped[i] = (double)t.busy * 1e-6;
    }
    *p = (struct point){delay_us,
                        median(busy, options.steps),
                        median(idle, options.steps),
                        median(serial, options.steps),
                        median(both, options.steps),
                        median(overlapped, options.steps)};
    return 0;
}

static void print_point(const struct point *p, bool first)
{
    double most = p->compute > p->exchange ? p->compute : p->exchange;
    if (options.json)
        printf(
            "%s{\"delay_us\":%.0f,\"compute_ms\":%.3f,\"exchange_ms\":%.3f,\"serial_ms\":%.3f,\"alternating_ms\":%.3f,"
            "\"overlapped_compute_ms\":%.3f,\"serial_ratio\":%.3f,\"alternating_ratio\":%.3f}",
            first ? "" : ",", p->delay_us, p->compute, p->exchange, p->serial, p->alternating, p->overlapped,
            p->serial / most, p->alternating / most);
    else
        printf("%8.0f us  %9.3f  %9.3f  %9.3f  %11.3f  %10.3f  %8.2f  %11.2f\n", p->delay_us, p->compute, p->exchange,
               p->serial, p->alternating, p->overlapped, p->serial / most, p->alternating / most);
}

static int measure_all(struct bench *b)
{
    static const double times[] = {0.5, 0.75, 1, 1.5, 2};
    struct point p;
    int layers = b->source_model->cfg->n_layers, r;
    if (options.delay_us >= 0) {
        r = measure(b, options.delay_us, &p);
        if (!r)
            print_point(&p, true);
        return r;
    }
    r = measure(b, 0, &p);
    if (!r)
        print_point(&p, true);
    /* Each exchange of each micro-batch waits for two delays. */
    struct point zero = p;
    for (size_t i = 0; i < sizeof times / sizeof *times && !r; i++) {
        double delay = (times[i] * zero.compute - zero.exchange) * 1e3 / (2 * LANES * layers);
        if (delay < 50)
            continue;
        r = measure(b, delay, &p);
        if (!r)
            print_point(&p, false);
    }
    return r;
}

int cli_bench_exchange_run(int argc, char **argv)
{
    const struct cli_option table[] = {
        {CLI_TEXT, "model", 'm', &options.model, "DIR", "the model", 0, 0, NULL, NULL},
        {CLI_INT, "rows", 'r', &options.rows, "N", "rows of a step, half of them in each micro-batch", 2, 4096, NULL,
         NULL},
        {CLI_INT, "shards", 's', &options.shards, "N", "expert shards, on one worker", 1, SHARDS_MAX, NULL, NULL},
        {CLI_INT, "steps", 'n', &options.steps, "N", "steps per line, of which the medians count", 1, 1000, NULL, NULL},
        {CLI_INT, "threads", 't', &options.threads, "N", "compute threads of the source, and of the shards", 1, 256,
         NULL, NULL},
        {CLI_DOUBLE, "delay", 'd', &options.delay_us, "US",
         "microseconds that the link holds a message; without it, several:\nsuch that the exchange takes 0.5 to 2 "
         "times "
         "the compute",
         0, 1e7, NULL, NULL},
        {CLI_FLAG, "json", 0, &options.json, NULL, "a JSON array instead of text", 0, 0, NULL, NULL},
        {CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "bench exchange [OPTIONS]",
        .intro = "Measures how far the exchange with expert shards hides behind compute with two micro-batches.",
        .options = table};
    int status = cli_options_parse(&usage, argc, argv, NULL);
    if (status != CLI_GO_ON)
        return status;
    struct bench b = {0};
    struct cfg_error err = {{0}};
    int r = open_bench(&b, &err);
    if (!r && !options.json)
        printf(
            "%s, %d rows in two micro-batches, %d shards on a worker of their own, medians of %d steps\n"
            "ms per step; compute and exchange are those of the serial form, overlapped is the same compute while the "
            "shards\nwork beside it; ratios to the larger of compute and exchange (target: 1.15)\n\n"
            "%11s  %9s  %9s  %9s  %11s  %10s  %8s  %11s\n",
            options.model, options.rows, options.shards, options.steps, "link delay", "compute", "exchange", "serial",
            "alternating", "overlapped", "serial", "alternating");
    else if (!r)
        putchar('[');
    if (!r) {
        r = measure_all(&b);
        if (options.json)
            puts("]");
        if (r)
            cfg_error_set(&err, -r, "a step failed: %s", strerror(-r));
    }
    close_bench(&b);
    return r ? cli_error(CLI_FAILED, "%s", err.msg) : CLI_OK;
}
