/* `weft bench exchange`: how far the expert exchange hides behind compute, and what it costs between nodes. A source
 * runs the model's steps on one worker, expert shards answer on another. Either an actor between them holds every
 * message for a given time, as a link would; or they are on two nodes that a provider of the transport joins, once with
 * messages and once with slots (bench_exchange_net.h). The same two micro-batches run one after the other (serial) and
 * alternating. Main thread; starts threads of its own and ends them. */
#include "cli/bench_exchange.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actors/expert.h"
#include "cli/bench_exchange_net.h"
#include "cli/bench_transport.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "transport/rdma.h"
#include "transport/tcp.h"

enum { WORKER_SOURCE, WORKER_LINK, WORKER_SHARDS, WORKERS, HELD_MAX = 1024, SHARDS_MAX = 64 };

static const char *const overs[] = {"delay", "tcp", "rdma", NULL};
enum { OVER_DELAY, OVER_TCP, OVER_RDMA };

static struct {
    const char *model, *device, *peer_device;
    int rows, shards, steps, threads, over, slot_rows;
    double delay_us; /* -1: several, chosen by the measured compute */
    bool json;
} options = {.model = "samples/tiny",
             .device = "",
             .peer_device = "",
             .rows = 32,
             .shards = 2,
             .steps = 12,
             .threads = 1,
             .slot_rows = 64,
             .delay_us = -1};

/* The shards stand for another machine: without CPUs of their own, what the scheduler does would be measured. */
static bool apart(void)
{
    return options.threads == 1 && sysconf(_SC_NPROCESSORS_ONLN) > 1;
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

/* ---- behind a link that delays ---- */

struct bench {
    struct mdl_model *source_model, *shard_model;
    struct act_map *map;
    struct act_experts experts;
    struct act_expert_arg expert[SHARDS_MAX];
    struct link_arg link[SHARDS_MAX];
    struct bench_source source;
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
    b->source.rows = options.rows;
    if (!r)
        r = bench_source_spawn(b->rt, WORKER_SOURCE, &b->source, err);
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
    struct act_config c = {.epoch = 1, .workers = WORKERS, .spin_us = 0};
    static const char *const names[WORKERS] = {"source", "link", "shards"};
    for (int i = 0; i < WORKERS; i++) {
        c.worker[i] = (struct act_worker_config){
            .kind = ACT_WORKER_ENGINE, .cpu = apart() ? i != WORKER_SOURCE : -1, .actors_max = 2 * SHARDS_MAX};
        snprintf(c.worker[i].name, sizeof c.worker[i].name, "%s", names[i]);
    }
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

static double larger(const struct bench_exchange_point *p)
{
    return p->compute > p->exchange ? p->compute : p->exchange;
}

static void print_json(const struct bench_exchange_point *p)
{
    printf("\"compute_ms\":%.3f,\"exchange_ms\":%.3f,\"serial_ms\":%.3f,\"alternating_ms\":%.3f,"
           "\"overlapped_compute_ms\":%.3f,\"serial_ratio\":%.3f,\"alternating_ratio\":%.3f}",
           p->compute, p->exchange, p->serial, p->alternating, p->overlapped, p->serial / larger(p),
           p->alternating / larger(p));
}

static void print_text(const struct bench_exchange_point *p)
{
    printf("  %9.3f  %9.3f  %9.3f  %11.3f  %10.3f  %8.2f  %11.2f", p->compute, p->exchange, p->serial, p->alternating,
           p->overlapped, p->serial / larger(p), p->alternating / larger(p));
}

static void print_heading(const char *where, const char *first)
{
    printf("%s, %d rows in two micro-batches, %d shards %s, medians of %d steps\n"
           "ms per step; compute and exchange are those of the serial form, overlapped is the same compute while the "
           "shards\nwork beside it; ratios to the larger of compute and exchange (target: 1.15)\n\n"
           "%11s  %9s  %9s  %9s  %11s  %10s  %8s  %11s\n",
           options.model, options.rows, options.shards, where, options.steps, first, "compute", "exchange", "serial",
           "alternating", "overlapped", "serial", "alternating");
}

static int measure(struct bench *b, double delay_us, struct bench_exchange_point *p, bool first)
{
    struct bench_source *source = &b->source;
    b->delay_ns = (int64_t)(delay_us * 1e3);
    int r = bench_exchange_measure(&b->rt, &source, 1, options.steps, p);
    if (r)
        return r;
    if (options.json) {
        printf("%s{\"delay_us\":%.0f,", first ? "" : ",", delay_us);
        print_json(p);
    } else {
        printf("%8.0f us", delay_us);
        print_text(p);
        putchar('\n');
    }
    fflush(stdout);
    return 0;
}

static int measure_all(struct bench *b)
{
    static const double times[] = {0.5, 0.75, 1, 1.5, 2};
    struct bench_exchange_point zero, p;
    int layers = b->source_model->cfg->n_layers;
    if (options.delay_us >= 0)
        return measure(b, options.delay_us, &p, true);
    int r = measure(b, 0, &zero, true);
    /* Each exchange of each micro-batch waits for two delays. */
    for (size_t i = 0; i < sizeof times / sizeof *times && !r; i++) {
        double delay = (times[i] * zero.compute - zero.exchange) * 1e3 / (2 * BENCH_LANES * layers);
        if (delay >= 50)
            r = measure(b, delay, &p, false);
    }
    return r;
}

static int run_delayed(struct cfg_error *err)
{
    struct bench b = {0};
    int r = open_bench(&b, err);
    if (!r) {
        if (options.json)
            putchar('[');
        else
            print_heading("on a worker of their own", "link delay");
        r = measure_all(&b);
        if (options.json)
            puts("]");
        if (r)
            cfg_error_set(err, -r, "a step failed: %s", strerror(-r));
    }
    close_bench(&b);
    return r;
}

/* ---- between nodes ---- */

enum { MESSAGES, SLOTS, FORMS };
static const char *const forms[FORMS] = {"messages", "slots"};

/* What one exchange of a micro-batch costs, us: the source's waiting in the serial form. */
static double each(const struct bench_exchange_point *p, int layers)
{
    return 1e3 * p->exchange / (BENCH_LANES * layers);
}

static void print_forms(const struct bench_exchange_point p[FORMS], int layers)
{
    if (options.json)
        putchar('[');
    for (int f = 0; f < FORMS; f++) {
        if (options.json)
            printf("%s{\"over\":\"%s\",\"dispatches\":\"%s\",\"in_slots\":%.3f,\"one_exchange_us\":%.1f,"
                   "\"begun_again\":%d,",
                   f ? "," : "", overs[options.over], forms[f], p[f].slots, each(&p[f], layers), p[f].again);
        if (options.json)
            print_json(&p[f]);
        else
            printf("%11s", forms[f]);
        if (!options.json) {
            print_text(&p[f]);
            putchar('\n');
        }
    }
    if (options.json) {
        puts("]");
        return;
    }
    printf("\none exchange of a layer takes %.0f us with messages, %.0f us with slots: x%.2f\n", each(&p[0], layers),
           each(&p[1], layers), each(&p[1], layers) / each(&p[0], layers));
    if (p[SLOTS].slots < 1)
        printf("%.1f %% of the dispatches of the lower line went as messages\n", 100 * (1 - p[SLOTS].slots));
    if (p[MESSAGES].again || p[SLOTS].again)
        printf("%d and %d micro-batches lost an exchange and began again\n", p[MESSAGES].again, p[SLOTS].again);
}

static int measure_forms(const struct bench_exchange_net_arg *arg, const char *where, struct cfg_error *err)
{
    struct bench_exchange_net *net[FORMS] = {NULL};
    struct act_runtime *rt[FORMS];
    struct bench_source *source[FORMS];
    struct bench_exchange_point p[FORMS];
    int r = 0;
    for (int f = 0; f < FORMS && !r; f++) {
        struct bench_exchange_net_arg a = *arg;
        a.slot_rows = f == SLOTS ? options.slot_rows : 0;
        r = bench_exchange_net_open(&a, &net[f], err);
        if (r)
            break;
        rt[f] = bench_exchange_net_runtime(net[f]);
        source[f] = bench_exchange_net_source(net[f]);
    }
    if (!r) {
        r = bench_exchange_measure(rt, source, FORMS, options.steps, p);
        if (r)
            cfg_error_set(err, -r, "a step failed: %s", strerror(-r));
    }
    if (!r && !options.json)
        print_heading(where, "dispatches");
    if (!r)
        print_forms(p, source[0]->m->cfg->n_layers);
    for (int f = 0; f < FORMS; f++)
        bench_exchange_net_close(net[f]);
    return r;
}

static struct bench_exchange_net_arg net_arg(const struct tp_ops *ops, const char *listen)
{
    return (struct bench_exchange_net_arg){.model = options.model,
                                           .rows = options.rows,
                                           .shards = options.shards,
                                           .threads = options.threads,
                                           .apart = apart(),
                                           .ops = ops,
                                           .listen = listen};
}

static int run_tcp(struct cfg_error *err)
{
    const struct bench_exchange_net_arg arg = net_arg(&tp_tcp, "127.0.0.1:0");
    return measure_forms(&arg, "on a node of their own over tcp on 127.0.0.1", err);
}

static int run_rdma(struct cfg_error *err)
{
    const struct tp_rdma_plugin *plugin;
    struct cli_rdma_place place[BENCH_NODES];
    const char *peer = *options.peer_device ? options.peer_device : options.device;
    int r = tp_rdma_load(&plugin, err);
    if (!r)
        r = cli_rdma_places(plugin, options.device, peer, place, err);
    if (r)
        return r;
    const struct tp_rdma_config end[BENCH_NODES] = {{.devices = place[0].device}, {.devices = place[1].device}};
    char listen[64], where[192];
    snprintf(listen, sizeof listen, strchr(place[1].address, ':') ? "[%s]:0" : "%s:0", place[1].address);
    snprintf(where, sizeof where, "on a node of their own over rdma from %s to %s", place[0].device, place[1].device);
    struct bench_exchange_net_arg arg = net_arg(plugin->ops, listen);
    arg.provider[BENCH_SOURCE_NODE] = &end[0];
    arg.provider[BENCH_SHARD_NODE] = &end[1];
    return measure_forms(&arg, where, err);
}

int cli_bench_exchange_run(int argc, char **argv)
{
    const struct cli_option table[] = {
        {CLI_TEXT, "model", 'm', &options.model, "DIR", "the model", 0, 0, NULL, NULL},
        {CLI_INT, "rows", 'r', &options.rows, "N", "rows of a step, half of them in each micro-batch", 2, 4096, NULL,
         NULL},
        {CLI_INT, "shards", 's', &options.shards, "N", "expert shards, on one worker", 1, SHARDS_MAX, NULL, NULL},
        {CLI_INT, "steps", 'n', &options.steps, "N", "steps per line, of which the medians count", 1, BENCH_STEPS_MAX,
         NULL, NULL},
        {CLI_INT, "threads", 't', &options.threads, "N", "compute threads of the source, and of the shards", 1, 256,
         NULL, NULL},
        {CLI_CHOICE, "over", 0, &options.over, "WHAT",
         "delay: a link inside this process that holds every message; tcp, rdma: two\nnodes joined by that provider, "
         "with dispatches as messages and in slots",
         0, 0, overs, NULL},
        {CLI_DOUBLE, "delay", 'd', &options.delay_us, "US",
         "microseconds that the link holds a message; without it, several:\nsuch that the exchange takes 0.5 to 2 "
         "times "
         "the compute",
         0, 1e7, NULL, NULL},
        {CLI_INT, "slot-rows", 0, &options.slot_rows, "N", "between nodes: experts.slot_rows", 1, 65535, NULL, NULL},
        {CLI_TEXT, "device", 0, &options.device, "NAME", "over rdma: the source's device; without it the nearest", 0, 0,
         NULL, NULL},
        {CLI_TEXT, "peer-device", 0, &options.peer_device, "NAME", "over rdma: the shards'; without it the same", 0, 0,
         NULL, NULL},
        {CLI_FLAG, "json", 0, &options.json, NULL, "a JSON array instead of text", 0, 0, NULL, NULL},
        {CLI_END},
    };
    static const struct cli_rule rules[] = {
        {CLI_NEEDS, "delay", "over=delay"},
        {CLI_NEEDS, "slot-rows", "over=tcp over=rdma"},
        {CLI_NEEDS, "device", "over=rdma"},
        {CLI_NEEDS, "peer-device", "over=rdma"},
        {CLI_RULES_END},
    };
    const struct cli_usage usage = {
        .rules = rules,
        .synopsis = "bench exchange [OPTIONS]",
        .intro = "Measures how far the exchange with expert shards hides behind compute with two micro-batches, and\n"
                 "between nodes what it costs with messages and with slots, in turns, step by step.",
        .options = table};
    int status = cli_options_parse(&usage, argc, argv, NULL);
    if (status != CLI_GO_ON)
        return status;
    struct cfg_error err = {{0}};
    int r;
    if (options.over == OVER_DELAY)
        r = run_delayed(&err);
    else
        r = options.over == OVER_TCP ? run_tcp(&err) : run_rdma(&err);
    return r ? cli_error(CLI_FAILED, "%s", err.msg) : CLI_OK;
}
