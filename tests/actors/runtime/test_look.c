/* An io worker that looks at a queue beside its event loop, as at an adapter's completions: nothing is missed whether
 * it sleeps or not, and it sleeps when looking does not pay. */
#define _GNU_SOURCE
#include <errno.h>
#include <event2/event.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "actors/runtime/spin.h"
#include "actors/runtime/stats.h"
#include "tests/harness.h"
#include "tests/support/actor_rig.h"

enum { ITEMS = 300 };

/* The queue: what was put minus what was taken is there. A put into an armed queue rings the bell, once. */
struct queue {
    _Atomic long put, taken, received, looks, arms, freed;
    _Atomic int armed;
    int bell;
    int64_t spin_ns;
};

static void put(struct queue *q)
{
    /* Seq_cst: either this exchange sees the flag of arm, or the look that follows arming sees this item. */
    atomic_fetch_add_explicit(&q->put, 1, memory_order_seq_cst);
    if (atomic_exchange_explicit(&q->armed, 0, memory_order_seq_cst))
        cr_expect_eq(eventfd_write(q->bell, 1), 0);
}

struct taker {
    struct queue *q;
    struct act_self *self;
    struct event *event;
    long have;
};

static bool take(struct taker *t)
{
    /* Seq_cst: partner is put. */
    long n = atomic_load_explicit(&t->q->put, memory_order_seq_cst) -
             atomic_load_explicit(&t->q->taken, memory_order_relaxed);
    if (n == 0)
        return false;
    atomic_fetch_add_explicit(&t->q->taken, n, memory_order_relaxed); /* one writer */
    t->have += n;
    act_yield(t->self);
    return true;
}

static bool on_look(void *ctx)
{
    struct taker *t = ctx;
    atomic_fetch_add_explicit(&t->q->looks, 1, memory_order_relaxed); /* read when the threads have ended */
    return take(t);
}

static bool on_arm(void *ctx)
{
    struct taker *t = ctx;
    atomic_fetch_add_explicit(&t->q->arms, 1, memory_order_relaxed); /* likewise */
    /* Seq_cst: partner is put. */
    atomic_store_explicit(&t->q->armed, 1, memory_order_seq_cst);
    return take(t);
}

static void on_bell(evutil_socket_t fd, short what, void *ctx)
{
    eventfd_t n;
    (void)what;
    (void)ctx;
    eventfd_read(fd, &n); /* what rang is found by looking */
}

static int taker_start(struct act_self *self, void *state, const void *arg)
{
    struct taker *t = state;
    t->q = *(struct queue *const *)arg;
    t->self = self;
    const struct act_looked_at what = {.look = on_look, .arm = on_arm, .ctx = t, .spin_ns = t->q->spin_ns};
    t->event = event_new(act_self_event_base(self), t->q->bell, EV_READ | EV_PERSIST, on_bell, t);
    cr_assert_eq(act_look_at(self, &what), 0);
    cr_expect_eq(act_look_at(self, &what), -EBUSY);
    return event_add(t->event, NULL);
}

static int taker_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct taker *t = state;
    (void)self;
    (void)m;
    (void)count;
    long n = t->have;
    t->have = 0;
    atomic_fetch_add_explicit(&t->q->received, n, memory_order_release); /* partner: ts_rig_until */
    return 0;
}

static void taker_stop(struct act_self *self, void *state, int reason)
{
    struct taker *t = state;
    (void)reason;
    act_look_at(self, NULL);
    event_free(t->event);
    atomic_fetch_add_explicit(&t->q->freed, 1, memory_order_relaxed); /* read when the threads have ended */
}

static const struct act_behaviour taker_behaviour = {.name = "taker",
                                                     .state_size = sizeof(struct taker),
                                                     .start = taker_start,
                                                     .receive = taker_receive,
                                                     .stop = taker_stop};

static int start_engine(struct act_self *self, void *state, const void *arg)
{
    (void)state;
    (void)arg;
    const struct act_looked_at what = {.look = on_look, .arm = on_arm};
    cr_expect_eq(act_look_at(self, &what), -ENOTSUP, "a worker without an event loop would sleep for ever");
    return 0;
}

static int receive_nothing(struct act_self *self, void *state, struct act_msg *m, int count)
{
    (void)self;
    (void)state;
    (void)m;
    (void)count;
    return 0;
}

static const struct act_behaviour engine_behaviour = {
    .name = "engine", .state_size = 8, .start = start_engine, .receive = receive_nothing};

static void open_rig(struct ts_rig *rig, struct queue *q, int64_t spin_ns)
{
    *q = (struct queue){.spin_ns = spin_ns, .bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    cr_assert_geq(q->bell, 0);
    ts_rig_init(rig, TS_RIG_THREADS, 2);
    rig->config.worker[0].kind = ACT_WORKER_IO;
    ts_rig_open(rig);
    ts_rig_spawn(rig, 0, &taker_behaviour, &q);
    ts_rig_spawn(rig, 1, &engine_behaviour, NULL);
    ts_rig_start(rig);
}

static void close_rig(struct ts_rig *rig, struct queue *q)
{
    cr_expect_eq(ts_rig_close(rig), 0);
    cr_expect_eq(atomic_load_explicit(&q->freed, memory_order_relaxed), 1);
    close(q->bell);
}

/* Puts all items, some while the worker is busy and some when it has fallen asleep, and waits for them. */
static void put_all(struct ts_rig *rig, struct queue *q)
{
    for (int i = 0; i < ITEMS; i++) {
        put(q);
        if (i % 7 == 0)
            cr_assert(ts_rig_until(rig, &q->received, i + 1), "item %d was missed", i);
        if (i % 100 == 0)
            ts_rig_settle(rig);
    }
    cr_expect(ts_rig_until(rig, &q->received, ITEMS));
    ts_rig_settle(rig);
}

Test(look, a_worker_that_never_spins_misses_nothing)
{
    struct ts_rig rig;
    struct queue q, *p = &q;
    open_rig(&rig, p, 0);
    put_all(&rig, p);
    close_rig(&rig, p);
    cr_expect_geq(q.arms, 3);
}

Test(look, a_worker_that_spins_for_a_while_misses_nothing)
{
    struct ts_rig rig;
    struct queue q, *p = &q;
    open_rig(&rig, p, 200000);
    put_all(&rig, p);
    close_rig(&rig, p);
    cr_expect_geq(q.arms, 3);
}

static int cpus(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

Test(look, what_comes_in_time_costs_no_event)
{
    struct ts_rig rig;
    struct queue q, *p = &q;
    if (cpus() < 2)
        cr_skip_test("two workers spin on two CPUs or not at all");
    open_rig(&rig, p, INT64_C(600000000000)); /* longer than the test may take */
    for (int i = 0; i < ITEMS; i++) {
        put(p);
        cr_assert(ts_rig_until(&rig, &p->received, i + 1), "item %d was missed", i);
    }
    close_rig(&rig, p); /* and it does not keep a runtime from its end */
    cr_expect_eq(q.arms, 0);
}

Test(look, more_workers_than_cpus_never_spin)
{
    struct ts_rig rig;
    struct queue q, *p = &q;
    struct act_stats_worker s;
    cpu_set_t all, one;
    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
    open_rig(&rig, p, INT64_C(600000000000));
    put_all(&rig, p);
    act_stats_worker(rig.rt, 0, &s);
    long looks = atomic_load_explicit(&p->looks, memory_order_relaxed);
    sched_setaffinity(0, sizeof all, &all);
    close_rig(&rig, p);
    cr_expect_leq(looks, (long)s.turns, "one look a turn, none in between");
}

Test(look, how_long_it_pays_is_learned)
{
    const int64_t most = 50000;
    int64_t ns = most;
    cr_expect_eq(act_spin_next(ns, most, 20000), most, "it helped: it stays");
    for (int i = 0; i < 20; i++)
        ns = act_spin_next(ns, most, most + 1);
    cr_expect_eq(ns, 0, "waits that are too long: it is given up");
    ns = act_spin_next(ns, most, 20000);
    cr_expect_eq(ns, ACT_SPIN_LEAST, "waits that could have been looked through bring it back");
    for (int i = 0; i < 20 && ns < 20000; i++)
        ns = act_spin_next(ns, most, 20000);
    cr_expect_geq(ns, 20000);
    cr_expect_leq(ns, most);
    cr_expect_eq(act_spin_next(0, 0, 0), 0, "without permission it never looks");
    cr_expect_eq(act_spin_next(0, 0, 5), 0);
    ns = 0;
    for (int i = 0; i < 20; i++)
        ns = act_spin_next(ns, 3000, 2900);
    cr_expect_eq(ns, 3000);
}
