/* Timers, run classes, sub-steps, jobs, supervision: each in threads and in the simulation. */
#include <errno.h>
#include <stdatomic.h>
#include <time.h>

#include "tests/harness.h"
#include "tests/support/actor_rig.h"

#define EACH_MODE(rig, mode)                                                                                           \
    struct ts_rig rig;                                                                                                 \
    for (enum ts_rig_mode mode = 0; mode < TS_RIG_MODES; mode++)

enum { MS = 1000000 };

struct told {
    _Atomic long done, wrong, starts, stops, downs, reason, urgent, bulk;
};

static void add(_Atomic long *n, long v)
{
    /* Release: what was written before; partner: ts_rig_until and get. */
    atomic_fetch_add_explicit(n, v, memory_order_release);
}

static long get(_Atomic long *n)
{
    return atomic_load_explicit(n, memory_order_acquire); /* partner: add */
}

/* ---- timers ---------------------------------------------------------------------------------- */

enum { CLOCKS = 5 };

struct clocks {
    struct told *told;
    struct act_timer timer[CLOCKS], never;
    int64_t at[CLOCKS];
    int fired;
};

static int clocks_start(struct act_self *self, void *state, const void *arg)
{
    struct clocks *c = state;
    c->told = *(struct told *const *)arg;
    static const int ms[CLOCKS] = {30, 5, 12, 1, 20};
    for (int i = 0; i < CLOCKS; i++) {
        c->at[i] = act_now(self) + (int64_t)ms[i] * MS;
        act_timer_at(self, &c->timer[i], c->at[i], (uint64_t)i);
    }
    act_timer_after(self, &c->never, 0, 99);
    act_timer_after(self, &c->never, INT64_C(3600000) * MS, 98); /* replaces */
    return 0;
}

static int clocks_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct clocks *c = state;
    static const uint64_t order[CLOCKS] = {3, 1, 2, 4, 0};
    for (int i = 0; i < count; i++) {
        if (m[i].type != ACT_TIMER)
            continue;
        uint64_t tag = act_p_timer(&m[i])->tag;
        if (c->fired >= CLOCKS || tag != order[c->fired++] || act_now(self) < c->at[tag] ||
            act_p_timer(&m[i])->late_ns < 0)
            add(&c->told->wrong, 1);
        if (tag == 1)
            act_timer_cancel(self, &c->never);
        add(&c->told->done, 1);
    }
    return 0;
}

static const struct act_behaviour clocks_behaviour = {
    .name = "clocks", .state_size = sizeof(struct clocks), .start = clocks_start, .receive = clocks_receive};

static void check_timers(enum ts_rig_mode mode, enum act_worker_kind kind)
{
    struct ts_rig rig;
    ts_rig_init(&rig, mode, 1);
    rig.config.worker[0].kind = kind;
    ts_rig_open(&rig);
    struct told told = {0}, *p = &told;
    ts_rig_spawn(&rig, 0, &clocks_behaviour, &p);
    ts_rig_start(&rig);
    cr_expect(ts_rig_until(&rig, &told.done, CLOCKS), "mode %d: %ld timers fired", mode, get(&told.done));
    ts_rig_settle(&rig);
    cr_expect_eq(get(&told.done), CLOCKS);
    cr_expect_eq(get(&told.wrong), 0);
    struct act_stats_worker s;
    cr_assert_eq(act_stats_worker(rig.rt, 0, &s), 0);
    if (mode == TS_RIG_THREADS)
        cr_expect_gt(s.sleeps, 0, "an idle worker sleeps");
    ts_rig_close(&rig);
}

Test(timers, fire_on_an_idle_worker)
{
    check_timers(TS_RIG_THREADS, ACT_WORKER_ENGINE);
    check_timers(TS_RIG_SIM, ACT_WORKER_ENGINE);
}

Test(timers, fire_on_an_idle_loop)
{
    check_timers(TS_RIG_THREADS, ACT_WORKER_IO);
}

/* A timer that fired, but was cancelled before the actor got it, is not seen. */
struct late {
    struct told *told;
    struct act_timer a, b;
};

static int late_start(struct act_self *self, void *state, const void *arg)
{
    struct late *l = state;
    l->told = *(struct told *const *)arg;
    act_timer_after(self, &l->a, 1 * MS, 1);
    act_timer_after(self, &l->b, 1 * MS, 2);
    return 0;
}

static int late_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct late *l = state;
    for (int i = 0; i < count; i++) {
        add(&l->told->done, m[i].type == ACT_TIMER);
        act_timer_cancel(self, &l->a);
        act_timer_cancel(self, &l->b);
        if (act_timer_pending(&l->a) || act_timer_pending(&l->b))
            add(&l->told->wrong, 1);
    }
    return 0;
}

static const struct act_behaviour late_behaviour = {
    .name = "late", .state_size = sizeof(struct late), .start = late_start, .receive = late_receive};

Test(timers, a_cancelled_one_is_not_seen)
{
    EACH_MODE(rig, mode)
    {
        ts_rig_init(&rig, mode, 1);
        ts_rig_open(&rig);
        struct told told = {0}, *p = &told;
        struct act_spawn spec = {.behaviour = &late_behaviour, .arg = &p, .batch = 1};
        ts_rig_spawn_spec(&rig, &spec);
        ts_rig_start(&rig);
        cr_expect(ts_rig_until(&rig, &told.done, 1));
        ts_rig_settle(&rig);
        cr_expect_eq(get(&told.done), 1);
        cr_expect_eq(get(&told.wrong), 0);
        ts_rig_close(&rig);
    }
}

/* ---- run classes and sub-steps --------------------------------------------------------------- */

enum { STEPS = 200 };

struct stepper {
    struct told *told;
    bool urgent;
    int steps, pings;
};

struct stepper_arg {
    struct told *told;
    bool urgent;
};

static int stepper_start(struct act_self *self, void *state, const void *arg)
{
    struct stepper *s = state;
    const struct stepper_arg *a = arg;
    s->told = a->told;
    s->urgent = a->urgent;
    act_yield(self);
    return 0;
}

static int stepper_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct stepper *s = state;
    for (int i = 0; i < count; i++)
        s->pings += m[i].type == ACT_TIMER || m[i].type == ACT_PONG;
    if (s->steps == STEPS)
        return 0;
    s->steps++;
    act_busy(self, MS); /* virtual time only */
    add(s->urgent ? &s->told->urgent : &s->told->bulk, 1);
    /* While the urgent one has work, the bulk one moves by ageing only. */
    if (s->urgent && s->steps == STEPS)
        add(&s->told->reason, get(&s->told->bulk));
    if (s->steps < STEPS)
        act_yield(self);
    else
        add(&s->told->done, 1);
    return 0;
}

static const struct act_behaviour stepper_behaviour = {
    .name = "stepper", .state_size = sizeof(struct stepper), .start = stepper_start, .receive = stepper_receive};

Test(classes, urgent_goes_first_and_bulk_ages)
{
    struct ts_rig rig;
    ts_rig_init(&rig, TS_RIG_SIM, 1);
    rig.config.age_ns = 10 * MS;
    ts_rig_open(&rig);
    struct told told = {0};
    struct stepper_arg urgent = {&told, true}, bulk = {&told, false};
    struct act_spawn spec = {.behaviour = &stepper_behaviour, .arg = &bulk, .run_class = ACT_CLASS_BULK};
    ts_rig_spawn_spec(&rig, &spec);
    ts_rig_spawn(&rig, 0, &stepper_behaviour, &urgent);
    cr_expect(ts_rig_until(&rig, &told.done, 2));
    /* 200 urgent steps of 1 ms with one bulk step each time it has waited 10 ms: about 18. */
    cr_expect(get(&told.reason) >= 10 && get(&told.reason) <= 25, "%ld bulk steps beside the urgent ones",
              get(&told.reason));
    ts_rig_close(&rig);
}

Test(classes, both_finish_in_threads)
{
    struct ts_rig rig;
    ts_rig_init(&rig, TS_RIG_THREADS, 1);
    ts_rig_open(&rig);
    struct told told = {0};
    struct stepper_arg urgent = {&told, true}, bulk = {&told, false};
    struct act_spawn spec = {.behaviour = &stepper_behaviour, .arg = &bulk, .run_class = ACT_CLASS_BULK};
    ts_rig_spawn_spec(&rig, &spec);
    ts_rig_spawn(&rig, 0, &stepper_behaviour, &urgent);
    ts_rig_start(&rig);
    cr_expect(ts_rig_until(&rig, &told.done, 2));
    ts_rig_close(&rig);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

struct sum_job {
    struct act_job job;
    struct told *told;
    long n, sum;
};

static int sum_run(struct act_job *job)
{
    struct sum_job *s = (struct sum_job *)job;
    for (long i = 1; i <= s->n; i++)
        s->sum += i;
    return s->n == 13 ? -EDOM : 0;
}

static void sum_release(struct act_job *job)
{
    struct sum_job *s = (struct sum_job *)job;
    add(&s->told->stops, 1);
    free(s);
}

struct client_arg {
    struct told *told;
    struct act_addr executor;
    bool leaves; /* ends before its jobs do */
};

struct client {
    struct client_arg arg;
    long sent;
};

static int client_start(struct act_self *self, void *state, const void *arg)
{
    ((struct client *)state)->arg = *(const struct client_arg *)arg;
    act_yield(self);
    return 0;
}

static int client_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct client *c = state;
    struct told *t = c->arg.told;
    for (int i = 0; i < count; i++) {
        struct sum_job *s = (struct sum_job *)act_job_take(&m[i]);
        if (!s)
            continue;
        long n = (long)m[i].request;
        if (m[i].type != ACT_JOB_DONE || s->n != n || s->sum != n * (n + 1) / 2 ||
            act_p_job_done(&m[i])->status != (n == 13 ? -EDOM : 0))
            add(&t->wrong, 1);
        free(s);
        add(&t->done, 1);
    }
    while (c->sent < 50) {
        struct sum_job *s = calloc(1, sizeof *s);
        *s = (struct sum_job){
            .job = {.run = sum_run, .release = sum_release, .name = "sum", .cost_ns = 5 * MS}, .told = t, .n = c->sent};
        if (act_job_submit(self, c->arg.executor, (uint64_t)c->sent, &s->job) != 0) {
            free(s);
            break;
        }
        c->sent++;
    }
    if (c->arg.leaves)
        act_stop(self, 0);
    return 0;
}

static const struct act_behaviour client_behaviour = {
    .name = "client", .state_size = sizeof(struct client), .start = client_start, .receive = client_receive};

Test(jobs, run_elsewhere_and_come_back)
{
    EACH_MODE(rig, mode)
    {
        ts_rig_init(&rig, mode, 2);
        rig.config.worker[1].kind = ACT_WORKER_HELPER;
        rig.config.lane_slots = 8;
        ts_rig_open(&rig);
        struct told told = {0};
        struct client_arg arg = {.told = &told};
        struct act_spawn spec = {.worker = 1};
        struct cfg_error err;
        cr_assert_eq(act_executor_spawn(rig.rt, &spec, &arg.executor, &err), 0, "%s", err.msg);
        ts_rig_spawn(&rig, 0, &client_behaviour, &arg);
        ts_rig_start(&rig);
        cr_expect(ts_rig_until(&rig, &told.done, 50), "mode %d: %ld", mode, get(&told.done));
        if (mode == TS_RIG_SIM)
            cr_expect_ge(act_sim_now(rig.sim), 49 * 5 * (int64_t)MS, "jobs cost virtual time");
        ts_rig_settle(&rig);
        cr_expect_eq(ts_rig_close(&rig), 0);
        cr_expect_eq(get(&told.wrong), 0);
        cr_expect_eq(get(&told.stops), 0);
    }
}

Test(jobs, nobody_leaks_when_the_asker_leaves)
{
    EACH_MODE(rig, mode)
    {
        ts_rig_init(&rig, mode, 2);
        ts_rig_open(&rig);
        struct told told = {0};
        struct client_arg arg = {.told = &told, .leaves = true};
        struct act_spawn spec = {.worker = 1};
        struct cfg_error err;
        cr_assert_eq(act_executor_spawn(rig.rt, &spec, &arg.executor, &err), 0, "%s", err.msg);
        ts_rig_spawn(&rig, 0, &client_behaviour, &arg);
        ts_rig_start(&rig);
        cr_expect(ts_rig_until(&rig, &told.stops, 50), "mode %d: %ld released", mode, get(&told.stops));
        ts_rig_settle(&rig);
        cr_expect_eq(ts_rig_close(&rig), 0);
    }
}

/* ---- supervision ----------------------------------------------------------------------------- */

struct child_arg {
    struct told *told;
    int fail_at;                /* message at which it fails; 0: never */
    struct act_addr watch, tie; /* to monitor, to link with */
};

struct child {
    struct child_arg arg;
    int seen;
    void *memory;
    struct act_timer timer;
};

static int child_start(struct act_self *self, void *state, const void *arg)
{
    struct child *c = state;
    c->arg = *(const struct child_arg *)arg;
    c->memory = malloc(10); /* the sanitizers see whether stop is called */
    add(&c->arg.told->starts, 1);
    act_timer_after(self, &c->timer, INT64_C(3600000) * MS, 0);
    if (!act_addr_is_nobody(c->arg.watch) && act_monitor(self, c->arg.watch, 42) != 0)
        return -EINVAL;
    if (!act_addr_is_nobody(c->arg.tie) && act_link(self, c->arg.tie) != 0)
        return -EINVAL;
    return 0;
}

static int child_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct child *c = state;
    (void)self;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_DOWN) {
            struct act_p_down *d = act_p_down(&m[i]);
            if (!act_addr_is_nobody(c->arg.watch) && (d->tag != 42 || !act_addr_equal(d->who, c->arg.watch)))
                add(&c->arg.told->wrong, 1);
            atomic_store_explicit(&c->arg.told->reason, d->reason, memory_order_relaxed); /* partner: downs below */
            add(&c->arg.told->downs, 1);
        }
        if (m[i].type == ACT_PING && ++c->seen == c->arg.fail_at)
            return -EIO;
    }
    return 0;
}

static void child_stop(struct act_self *self, void *state, int reason)
{
    struct child *c = state;
    (void)self;
    (void)reason;
    free(c->memory);
    add(&c->arg.told->stops, 1);
}

static const struct act_behaviour child_behaviour = {.name = "child",
                                                     .state_size = sizeof(struct child),
                                                     .start = child_start,
                                                     .receive = child_receive,
                                                     .stop = child_stop};

static void poke(struct ts_rig *rig, struct act_addr who)
{
    struct act_msg m = act_msg_make(ACT_PING, who);
    cr_assert_eq(act_runtime_post(rig->rt, &m), 0);
}

Test(supervision, a_failed_actor_restarts_under_a_new_generation)
{
    EACH_MODE(rig, mode)
    {
        ts_rig_init(&rig, mode, 2);
        ts_rig_open(&rig);
        struct told told = {0}, above = {0};
        struct child_arg arg = {.told = &told, .fail_at = 1}, boss = {.told = &above};
        struct act_addr supervisor = ts_rig_spawn(&rig, 0, &child_behaviour, &boss);
        struct act_spawn spec = {.behaviour = &child_behaviour,
                                 .worker = 1,
                                 .arg = &arg,
                                 .policy = ACT_POLICY_RESTART,
                                 .supervisor = supervisor,
                                 .restarts = 3,
                                 .restart_delay_ns = 1 * MS};
        struct act_addr first = ts_rig_spawn_spec(&rig, &spec), now = first;
        ts_rig_start(&rig);
        for (int i = 0; i < 3; i++) {
            poke(&rig, now);
            cr_assert(ts_rig_until(&rig, &told.starts, i + 2), "mode %d: restart %d", mode, i);
            ts_rig_settle(&rig);
            struct act_addr next = act_current(rig.rt, first);
            cr_assert(next.index == first.index && next.generation == now.generation + 1, "mode %d", mode);
            now = next;
        }
        cr_expect_eq(get(&told.stops), 3);
        cr_expect_eq(get(&above.stops) + get(&above.downs), 0, "restarts are not the supervisor's business");
        /* One more is too much: the supervisor fails, and nobody is above it. */
        poke(&rig, now);
        cr_expect(ts_rig_until(&rig, &above.stops, 1), "mode %d: no escalation", mode);
        ts_rig_settle(&rig);
        cr_expect(act_addr_is_nobody(act_current(rig.rt, first)));
        cr_expect_eq(get(&told.starts), 4);
        struct act_stats_worker s;
        cr_assert_eq(act_stats_worker(rig.rt, 1, &s), 0);
        cr_expect_eq(s.restarts, 3);
        cr_expect_eq(s.failures, 4);
        ts_rig_close(&rig);
    }
}

Test(supervision, the_supervisor_hears_of_an_end)
{
    EACH_MODE(rig, mode)
    {
        ts_rig_init(&rig, mode, 2);
        ts_rig_open(&rig);
        struct told told = {0}, above = {0};
        struct child_arg arg = {.told = &told, .fail_at = 2}, boss = {.told = &above};
        struct act_addr supervisor = ts_rig_spawn(&rig, 0, &child_behaviour, &boss);
        struct act_spawn spec = {.behaviour = &child_behaviour, .worker = 1, .arg = &arg, .supervisor = supervisor};
        struct act_addr a = ts_rig_spawn_spec(&rig, &spec);
        ts_rig_start(&rig);
        poke(&rig, a);
        poke(&rig, a);
        cr_expect(ts_rig_until(&rig, &above.downs, 1), "mode %d", mode);
        cr_expect_eq(get(&above.reason), -EIO);
        cr_expect_eq(get(&above.stops), 0);
        ts_rig_close(&rig);
    }
}

static long failures_told;

static void note_escalation(void *ctx, struct act_addr who, int reason)
{
    (void)ctx;
    failures_told += !act_addr_is_nobody(who) && reason == -EIO;
}

Test(supervision, children_end_with_their_supervisor)
{
    EACH_MODE(rig, mode)
    {
        ts_rig_init(&rig, mode, 3);
        rig.config.escalated = note_escalation;
        failures_told = 0;
        ts_rig_open(&rig);
        struct told told = {0}, above = {0};
        struct child_arg arg = {.told = &told}, boss = {.told = &above, .fail_at = 1};
        struct act_spawn top = {
            .behaviour = &child_behaviour, .worker = 0, .arg = &boss, .policy = ACT_POLICY_ESCALATE};
        struct act_addr supervisor = ts_rig_spawn_spec(&rig, &top);
        for (int i = 0; i < 6; i++) {
            struct act_spawn spec = {.behaviour = &child_behaviour,
                                     .worker = i % 3,
                                     .arg = &arg,
                                     .policy = ACT_POLICY_RESTART,
                                     .supervisor = supervisor};
            ts_rig_spawn_spec(&rig, &spec);
        }
        ts_rig_start(&rig);
        poke(&rig, supervisor);
        cr_expect(ts_rig_until(&rig, &told.stops, 6), "mode %d: %ld ended", mode, get(&told.stops));
        ts_rig_settle(&rig);
        cr_expect_eq(get(&told.starts), 6, "mode %d: a child came back", mode);
        ts_rig_close(&rig);
        cr_expect_eq(failures_told, 1, "mode %d", mode);
    }
}

Test(supervision, monitors_and_links)
{
    EACH_MODE(rig, mode)
    {
        ts_rig_init(&rig, mode, 2);
        ts_rig_open(&rig);
        struct told target = {0}, watchers = {0}, tied = {0};
        struct child_arg t = {.told = &target, .fail_at = 1};
        struct act_addr a = ts_rig_spawn(&rig, 1, &child_behaviour, &t);
        struct child_arg w = {.told = &watchers, .watch = a}, l = {.told = &tied, .tie = a};
        for (int i = 0; i < 4; i++) {
            ts_rig_spawn(&rig, i % 2, &child_behaviour, &w);
            ts_rig_spawn(&rig, i % 2, &child_behaviour, &l);
        }
        ts_rig_start(&rig);
        ts_rig_settle(&rig);
        poke(&rig, a);
        cr_expect(ts_rig_until(&rig, &watchers.downs, 4), "mode %d: %ld heard", mode, get(&watchers.downs));
        cr_expect(ts_rig_until(&rig, &tied.stops, 4), "mode %d: %ld fell with it", mode, get(&tied.stops));
        ts_rig_settle(&rig);
        cr_expect_eq(get(&watchers.downs), 4);
        cr_expect_eq(get(&watchers.reason), -EIO);
        cr_expect_eq(get(&watchers.stops), 0);
        cr_expect_eq(get(&watchers.wrong), 0);
        ts_rig_close(&rig);
    }
}

Test(supervision, monitoring_the_dead_is_answered)
{
    EACH_MODE(rig, mode)
    {
        ts_rig_init(&rig, mode, 2);
        ts_rig_open(&rig);
        struct told told = {0};
        struct child_arg w = {.told = &told, .watch = {.generation = 9, .peer = 0, .index = 70}};
        ts_rig_spawn(&rig, 0, &child_behaviour, &w);
        ts_rig_start(&rig);
        cr_expect(ts_rig_until(&rig, &told.downs, 1), "mode %d", mode);
        cr_expect_eq(get(&told.reason), -ESRCH);
        cr_expect_eq(get(&told.wrong), 0);
        ts_rig_close(&rig);
    }
}

/* ---- pools: many short actors that watch a long one ------------------------------------------ */

struct parent {
    struct told *told;
    struct act_addr watched;
    struct child_arg child;
    long spawned, full;
};

static int brief_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    (void)state;
    (void)m;
    (void)count;
    act_stop(self, 0);
    return 0;
}

static int brief_start(struct act_self *self, void *state, const void *arg)
{
    int rc = child_start(self, state, arg);
    act_yield(self);
    return rc;
}

static const struct act_behaviour brief_behaviour = {.name = "brief",
                                                     .state_size = sizeof(struct child),
                                                     .start = brief_start,
                                                     .receive = brief_receive,
                                                     .stop = child_stop};

static int parent_start(struct act_self *self, void *state, const void *arg)
{
    struct parent *p = state;
    p->child = *(const struct child_arg *)arg;
    p->told = p->child.told;
    act_yield(self);
    return 0;
}

static int parent_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct parent *p = state;
    (void)m;
    (void)count;
    for (int i = 0; i < 20 && p->spawned < 1000; i++) {
        struct act_spawn spec = {.behaviour = &brief_behaviour, .arg = &p->child};
        struct act_addr a;
        struct cfg_error err;
        int rc = act_spawn(self, &spec, &a, &err);
        if (rc == -EAGAIN) {
            p->full++;
            break;
        }
        if (rc != 0 || act_addr_is_nobody(a))
            add(&p->told->wrong, 1);
        p->spawned++;
    }
    if (p->spawned < 1000)
        act_yield(self);
    else
        add(&p->told->done, p->full);
    return 0;
}

static const struct act_behaviour parent_behaviour = {
    .name = "parent", .state_size = sizeof(struct parent), .start = parent_start, .receive = parent_receive};

static void count_watchers(void *ctx, const struct act_stats_actor *a)
{
    *(int *)ctx += a->watchers;
}

Test(pools, slots_are_used_again)
{
    EACH_MODE(rig, mode)
    {
        ts_rig_init(&rig, mode, 2);
        rig.config.worker[0].actors_max = 8;
        ts_rig_open(&rig);
        struct told told = {0}, target = {0};
        struct child_arg t = {.told = &target};
        struct child_arg arg = {.told = &told, .watch = ts_rig_spawn(&rig, 1, &child_behaviour, &t)};
        ts_rig_spawn(&rig, 0, &parent_behaviour, &arg);
        ts_rig_start(&rig);
        cr_expect(ts_rig_until(&rig, &told.done, 1), "mode %d", mode);
        cr_expect(ts_rig_until(&rig, &told.stops, 1000), "mode %d", mode);
        ts_rig_settle(&rig);
        cr_expect_eq(get(&told.wrong), 0);
        struct act_stats_worker s;
        cr_assert_eq(act_stats_worker(rig.rt, 0, &s), 0);
        cr_expect_eq(s.actors, 1, "mode %d: only the parent lives", mode);
        int watchers = 0;
        act_stats_actors(rig.rt, count_watchers, &watchers);
        cr_expect_eq(watchers, 0, "mode %d: %d watches outlive their watchers", mode, watchers);
        ts_rig_close(&rig);
    }
}

/* ---- health ---------------------------------------------------------------------------------- */

struct wedge {
    struct told *told;
};

static int wedge_start(struct act_self *self, void *state, const void *arg)
{
    (void)self;
    ((struct wedge *)state)->told = *(struct told *const *)arg;
    return 0;
}

static int wedge_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_PING)
            act_working(self, true);
        if (m[i].type == ACT_PONG)
            act_working(self, false);
    }
    add(&((struct wedge *)state)->told->done, count);
    return 0;
}

static const struct act_behaviour wedge_behaviour = {
    .name = "wedge", .state_size = sizeof(struct wedge), .start = wedge_start, .receive = wedge_receive};

Test(health, progress_ages_only_with_work)
{
    struct ts_rig rig;
    ts_rig_init(&rig, TS_RIG_SIM, 1);
    ts_rig_open(&rig);
    struct told told = {0}, *p = &told;
    struct act_addr a = ts_rig_spawn(&rig, 0, &wedge_behaviour, &p);
    struct act_stats_worker s;
    act_sim_run(rig.sim, 500 * (int64_t)MS, 1000);
    act_stats_worker(rig.rt, 0, &s);
    cr_expect_eq(s.progress_age_ns, 0, "idle");
    poke(&rig, a);
    act_sim_run(rig.sim, act_sim_now(rig.sim) + 700 * (int64_t)MS, 1000);
    act_stats_worker(rig.rt, 0, &s);
    cr_expect(s.progress_age_ns >= 690 * (int64_t)MS && s.progress_age_ns <= 700 * (int64_t)MS, "stuck for %lld",
              (long long)s.progress_age_ns);
    struct act_msg m = act_msg_make(ACT_PONG, a);
    cr_assert_eq(act_runtime_post(rig.rt, &m), 0);
    act_sim_run(rig.sim, act_sim_now(rig.sim) + 100 * (int64_t)MS, 1000);
    act_stats_worker(rig.rt, 0, &s);
    cr_expect_eq(s.progress_age_ns, 0, "idle again");
    ts_rig_close(&rig);
}
