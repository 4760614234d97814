/* `weft bench actors`: what the actor runtime costs, beside the bare ck_ring under it, in one run. Main thread; starts
 * threads of its own and ends them. */
#define _GNU_SOURCE
#include "cli/bench_actors.h"

#include <ck_ring.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "actors/runtime/runtime.h"
#include "cli/cli.h"
#include "cli/options.h"

enum { RING_SLOTS = 1024, ROUNDS_MAX = 64, WAKE_GAP_US = 300, SPIN_US = 1000 };

static struct {
    int messages, trips, wakes, rounds;
    int cpu_a, cpu_b;
    bool json;
} options = {.messages = 2000000, .trips = 100000, .wakes = 300, .rounds = 7, .cpu_a = 0, .cpu_b = 1};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* CPU time of this thread: what the others on the machine do does not count. */
static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((unsigned)cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct figure {
    double value[ROUNDS_MAX];
    int count;
};

static void add(struct figure *f, double v)
{
    if (f->count < ROUNDS_MAX && !isnan(v))
        f->value[f->count++] = v;
}

static double at(struct figure *f, double part)
{
    if (f->count == 0)
        return NAN;
    qsort(f->value, (size_t)f->count, sizeof f->value[0], compare);
    return f->value[(int)(part * (f->count - 1) + 0.5)];
}

/* ---- bare ck_ring ---------------------------------------------------------------------------- */

CK_RING_PROTOTYPE(bench, act_msg)

struct bare {
    alignas(64) ck_ring_t there, back;
    struct act_msg *there_slots, *back_slots;
    long count;
    bool echo;
};

static void *bare_other(void *arg)
{
    struct bare *b = arg;
    struct act_msg m;
    pin(options.cpu_b);
    for (long i = 0; i < b->count; i++) {
        while (!ck_ring_dequeue_spsc_bench(&b->there, b->there_slots, &m))
            ck_pr_stall();
        if (b->echo)
            while (!ck_ring_enqueue_spsc_bench(&b->back, b->back_slots, &m))
                ck_pr_stall();
    }
    return NULL;
}

/* Seconds per message (one way, as fast as it goes) or per round trip. */
static double run_bare(bool echo, long count)
{
    struct bare b = {.count = count, .echo = echo};
    pthread_t other;
    b.there_slots = aligned_alloc(64, RING_SLOTS * sizeof(struct act_msg));
    b.back_slots = aligned_alloc(64, RING_SLOTS * sizeof(struct act_msg));
    cpu_set_t before;
    sched_getaffinity(0, sizeof before, &before);
    double per = NAN;
    if (b.there_slots && b.back_slots) {
        ck_ring_init(&b.there, RING_SLOTS);
        ck_ring_init(&b.back, RING_SLOTS);
        struct act_msg m = act_msg_make(ACT_PING, ACT_NOBODY);
        if (pthread_create(&other, NULL, bare_other, &b) == 0) {
            pin(options.cpu_a); /* after the other thread was made, which would inherit it */
            double start = now_s();
            for (long i = 0; i < count; i++) {
                act_p_ping(&m)->a = (uint64_t)i;
                while (!ck_ring_enqueue_spsc_bench(&b.there, b.there_slots, &m))
                    ck_pr_stall();
                if (echo)
                    while (!ck_ring_dequeue_spsc_bench(&b.back, b.back_slots, &m))
                        ck_pr_stall();
            }
            pthread_join(other, NULL);
            per = (now_s() - start) / (double)count;
            sched_setaffinity(0, sizeof before, &before); /* the runtime counts the CPUs that it may use */
        }
    }
    free(b.there_slots);
    free(b.back_slots);
    return per;
}

/* ---- actors ---------------------------------------------------------------------------------- */

enum pattern { FLOOD, PING_PONG, WAKE };

struct plan {
    enum pattern pattern;
    bool local; /* both actors on one worker */
    long count;
    struct act_addr peer;
    double took;      /* seconds in all */
    double wake_sum;  /* WAKE: seconds of all one-way times */
    _Atomic int done; /* set by an actor, read by the main thread */
};

struct runner {
    struct plan *plan;
    long sent, got;
    double start;
    struct act_timer timer;
};

static double stamp(const struct plan *p)
{
    return p->local ? cpu_s() : now_s();
}

static int runner_start(struct act_self *self, void *state, const void *arg)
{
    ((struct runner *)state)->plan = *(struct plan *const *)arg;
    return 0;
}

static void finish(struct plan *p, double took)
{
    p->took = took;
    /* Release: the figures before it. Partner: run_actors. */
    atomic_store_explicit(&p->done, 1, memory_order_release);
}

static void ping(struct act_self *self, struct runner *r)
{
    struct act_msg m = act_msg_make(ACT_PING, r->plan->peer);
    act_p_ping(&m)->a = (uint64_t)(now_s() * 1e9);
    act_send(self, &m);
    r->sent++;
}

static int source_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct runner *r = state;
    struct plan *p = r->plan;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_PONG)
            r->got++;
        else if (m[i].type == ACT_TIMER)
            ping(self, r);
    }
    if (r->start == 0)
        r->start = stamp(p);
    struct act_msg x = act_msg_make(ACT_PING, p->peer);
    switch (p->pattern) {
    case FLOOD:
        while (r->sent < p->count) {
            act_p_ping(&x)->a = (uint64_t)r->sent;
            if (act_send(self, &x) != 0)
                break;
            r->sent++;
        }
        if (r->got)
            finish(p, stamp(p) - r->start);
        break;
    case PING_PONG:
        if (r->got == p->count) {
            finish(p, stamp(p) - r->start);
        } else if (r->sent == r->got) {
            act_p_ping(&x)->a = (uint64_t)r->sent;
            act_send(self, &x);
            r->sent++;
        }
        break;
    case WAKE: /* the other worker has fallen asleep when the timer fires */
        if (r->got == p->count)
            finish(p, stamp(p) - r->start);
        else if (r->sent == r->got)
            act_timer_after(self, &r->timer, WAKE_GAP_US * INT64_C(1000), 0);
        break;
    }
    return 0;
}

static int sink_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct runner *r = state;
    struct plan *p = r->plan;
    double t = p->pattern == WAKE ? now_s() : 0;
    for (int i = 0; i < count; i++) {
        if (m[i].type != ACT_PING)
            continue;
        r->got++;
        if (p->pattern == WAKE)
            p->wake_sum += t - (double)act_p_ping(&m[i])->a * 1e-9;
        if (p->pattern == FLOOD && r->got < p->count)
            continue;
        struct act_msg x = act_msg_make(ACT_PONG, m[i].src);
        act_send(self, &x);
    }
    return 0;
}

static const struct act_behaviour source = {
    .name = "source", .state_size = sizeof(struct runner), .start = runner_start, .receive = source_receive};
static const struct act_behaviour sink = {
    .name = "sink", .state_size = sizeof(struct runner), .start = runner_start, .receive = sink_receive};

static int run_actors(struct plan *p, struct cfg_error *err)
{
    static struct act_config c;
    struct act_runtime *rt;
    struct act_addr from = ACT_NOBODY;
    memset(&c, 0, sizeof c);
    c.epoch = 1;
    c.workers = p->local ? 1 : 2;
    c.lane_slots = c.local_slots = c.reply_slots = RING_SLOTS / 4 - 1; /* which makes rings of RING_SLOTS */
    c.spin_us = p->pattern == WAKE ? 0 : SPIN_US;
    for (int i = 0; i < 2; i++) {
        c.worker[i].kind = ACT_WORKER_ENGINE;
        c.worker[i].cpu = i == 0 ? options.cpu_a : options.cpu_b;
    }
    int rc = act_runtime_new(&c, &rt, err);
    if (rc != 0)
        return rc;
    struct act_spawn spec = {.behaviour = &sink, .worker = c.workers - 1, .arg = &p, .batch = 256};
    rc = act_runtime_spawn(rt, &spec, &p->peer, err);
    spec.behaviour = &source;
    spec.worker = 0;
    if (rc == 0)
        rc = act_runtime_spawn(rt, &spec, &from, err);
    if (rc == 0)
        rc = act_runtime_start(rt, err);
    struct act_msg go = act_msg_make(ACT_ROOM, from);
    if (rc == 0)
        rc = act_runtime_post(rt, &go);
    /* Acquire: partner is finish. */
    while (rc == 0 && !atomic_load_explicit(&p->done, memory_order_acquire))
        usleep(1000);
    act_runtime_free(rt);
    return rc;
}

/* ---- the report ------------------------------------------------------------------------------ */

static void print_conditions(void)
{
    struct utsname u;
    double load[3] = {NAN, NAN, NAN};
    int p = sched_getscheduler(0);
    const char *policy = p == SCHED_FIFO || p == SCHED_RR ? "real-time priority" : "normal priority";
    uname(&u);
    if (getloadavg(load, 3) < 1)
        load[0] = NAN;
    printf(
        "conditions: %s %s, %ld CPUs online, workers on CPU %d and %d, %s, load average %.2f before the\n"
        "            run, 64-byte messages, rings of %d, %d rounds with the two in turn; median (lowest - highest)\n",
        u.sysname, u.machine, sysconf(_SC_NPROCESSORS_ONLN), options.cpu_a, options.cpu_b, policy, load[0], RING_SLOTS,
        options.rounds);
}

static void print_figure(const char *name, struct figure *f, double scale, const char *unit)
{
    int digits = scale > 1 ? 1 : 2;
    printf("  %-44s %9.*f %s  (%.*f - %.*f)\n", name, digits, at(f, 0.5) * scale, unit, digits, at(f, 0) * scale,
           digits, at(f, 1) * scale);
}

static struct figure bare_flood, lane_flood, bare_trip, lane_trip, flood_ratio, trip_ratio, wake, local;

static int measure(struct cfg_error *err)
{
    int rc = 0;
    for (int i = 0; i < options.rounds && rc == 0; i++) {
        double ring = run_bare(false, options.messages), trip = run_bare(true, options.trips);
        struct plan f = {.pattern = FLOOD, .count = options.messages};
        struct plan p = {.pattern = PING_PONG, .count = options.trips}, w = {.pattern = WAKE, .count = options.wakes};
        struct plan l = {.pattern = FLOOD, .local = true, .count = options.messages};
        rc = run_actors(&l, err);
        rc = rc ? rc : run_actors(&f, err);
        rc = rc ? rc : run_actors(&p, err);
        rc = rc ? rc : run_actors(&w, err);
        if (rc != 0)
            break;
        add(&bare_flood, ring);
        add(&bare_trip, trip);
        add(&lane_flood, f.took / (double)options.messages);
        add(&lane_trip, p.took / (double)options.trips);
        add(&flood_ratio, f.took / (double)options.messages / ring);
        add(&trip_ratio, p.took / (double)options.trips / trip);
        add(&local, l.took / (double)options.messages);
        add(&wake, w.wake_sum / (double)options.wakes);
    }
    return rc;
}

static int parse_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) < 2)
        return cli_error(CLI_FAILED, "bench actors needs two CPUs: lanes between workers on one CPU are not measured");
    if (options.cpu_a == options.cpu_b || !CPU_ISSET((unsigned)options.cpu_a, &set) ||
        !CPU_ISSET((unsigned)options.cpu_b, &set))
        return cli_error(CLI_USAGE, "--cpu-a %d and --cpu-b %d must be two CPUs that this process may use",
                         options.cpu_a, options.cpu_b);
    return CLI_GO_ON;
}

int cli_bench_actors_run(int argc, char **argv)
{
    const struct cli_option table[] = {
        {CLI_INT, "messages", 'n', &options.messages, "N", "messages of a one-way flood", 1000, 1e9, NULL, NULL},
        {CLI_INT, "trips", 't', &options.trips, "N", "round trips", 100, 1e9, NULL, NULL},
        {CLI_INT, "wakes", 'w', &options.wakes, "N", "wake-ups from sleep", 1, 1e6, NULL, NULL},
        {CLI_INT, "rounds", 'r', &options.rounds, "N", "repetitions of the whole, of which the median counts", 1,
         ROUNDS_MAX, NULL, NULL},
        {CLI_INT, "cpu-a", 0, &options.cpu_a, "N", "CPU of the first worker", 0, CPU_SETSIZE - 1, NULL, NULL},
        {CLI_INT, "cpu-b", 0, &options.cpu_b, "N", "CPU of the second worker", 0, CPU_SETSIZE - 1, NULL, NULL},
        {CLI_FLAG, "json", 0, &options.json, NULL, "one JSON object instead of text", 0, 0, NULL, NULL},
        {CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "bench actors [OPTIONS]",
        .intro = "Measures messages between two workers of the actor runtime beside the bare ring under them.",
        .options = table};
    int status = cli_options_parse(&usage, argc, argv, NULL);
    if (status == CLI_GO_ON)
        status = parse_cpus();
    if (status != CLI_GO_ON)
        return status;
    if (!options.json)
        print_conditions();
    struct cfg_error err = {{0}};
    if (measure(&err) != 0)
        return cli_error(CLI_FAILED, "%s", err.msg);
    if (options.json) {
        printf("{\"ring_ns\":%.2f,\"lane_ns\":%.2f,\"lane_ratio\":%.3f,\"ring_round_trip_ns\":%.1f,"
               "\"actor_round_trip_ns\":%.1f,\"round_trip_ratio\":%.3f,\"wake_ns\":%.0f,\"local_cpu_ns\":%.2f,"
               "\"rounds\":%d}\n",
               at(&bare_flood, 0.5) * 1e9, at(&lane_flood, 0.5) * 1e9, at(&flood_ratio, 0.5), at(&bare_trip, 0.5) * 1e9,
               at(&lane_trip, 0.5) * 1e9, at(&trip_ratio, 0.5), at(&wake, 0.5) * 1e9, at(&local, 0.5) * 1e9,
               options.rounds);
        return CLI_OK;
    }
    puts("one way, as fast as it goes:");
    print_figure("bare ck_ring, thread to thread", &bare_flood, 1e9, "ns/message");
    print_figure("lane, actor to actor (target: 20)", &lane_flood, 1e9, "ns/message");
    print_figure("ratio", &flood_ratio, 1, "x");
    print_figure("within one worker, CPU time", &local, 1e9, "ns/message");
    puts("round trip, both sides spinning:");
    print_figure("bare ck_ring ping-pong", &bare_trip, 1e9, "ns");
    print_figure("actor to actor and back", &lane_trip, 1e9, "ns");
    print_figure("ratio (target: 1.2)", &trip_ratio, 1, "x");
    puts("from send to receive when the other worker sleeps:");
    print_figure("eventfd wake-up", &wake, 1e6, "us");
    return CLI_OK;
}
