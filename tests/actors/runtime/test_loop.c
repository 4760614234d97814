/* An actor on an io worker that waits for a file descriptor with libevent. Threads only: the simulation has no loop. */
#include <event2/event.h>
#include <stdatomic.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/actor_rig.h"

enum { BYTES = 200 };

struct told {
    _Atomic long echoed, wrong, freed;
    int fd[2];
    struct act_addr counter;
};

static void add(_Atomic long *n, long v)
{
    atomic_fetch_add_explicit(n, v, memory_order_release); /* partner: ts_rig_until */
}

/* ---- reads bytes from a pipe and sends each on ----------------------------------------------- */

struct reader {
    struct told *told;
    struct act_self *self;
    struct event *event;
    uint8_t pending[BYTES];
    int count, sent;
};

static void readable(evutil_socket_t fd, short what, void *ctx)
{
    struct reader *r = ctx;
    (void)what;
    ssize_t n = read(fd, r->pending + r->count, (size_t)(BYTES - r->count));
    if (n > 0)
        r->count += (int)n;
    act_yield(r->self);
}

static int reader_start(struct act_self *self, void *state, const void *arg)
{
    struct reader *r = state;
    r->told = *(struct told *const *)arg;
    r->self = self;
    struct event_base *base = act_self_event_base(self);
    r->event = base ? event_new(base, r->told->fd[0], EV_READ | EV_PERSIST, readable, r) : NULL;
    return r->event && event_add(r->event, NULL) == 0 ? 0 : -1;
}

static int reader_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct reader *r = state;
    (void)m;
    (void)count;
    for (; r->sent < r->count; r->sent++) {
        struct act_msg x = act_msg_make(ACT_PING, r->told->counter);
        act_p_ping(&x)->a = r->pending[r->sent];
        if (act_send(self, &x) != 0)
            break; /* ROOM brings us back */
    }
    return 0;
}

static void reader_stop(struct act_self *self, void *state, int reason)
{
    struct reader *r = state;
    (void)self;
    (void)reason;
    event_free(r->event);
    add(&r->told->freed, 1);
}

static const struct act_behaviour reader_behaviour = {.name = "reader",
                                                      .state_size = sizeof(struct reader),
                                                      .start = reader_start,
                                                      .receive = reader_receive,
                                                      .stop = reader_stop};

struct counter {
    struct told *told;
    long next;
};

static int counter_start(struct act_self *self, void *state, const void *arg)
{
    ((struct counter *)state)->told = *(struct told *const *)arg;
    return act_self_event_base(self) == NULL ? 0 : -1;
}

static int counter_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct counter *c = state;
    (void)self;
    for (int i = 0; i < count; i++) {
        add(&c->told->wrong, act_p_ping(&m[i])->a != (uint64_t)(c->next++ & 0xff));
        add(&c->told->echoed, 1);
    }
    return 0;
}

static const struct act_behaviour counter_behaviour = {
    .name = "counter", .state_size = sizeof(struct counter), .start = counter_start, .receive = counter_receive};

Test(loop, a_descriptor_wakes_its_actor)
{
    struct ts_rig rig;
    struct told told = {0}, *p = &told;
    cr_assert_eq(pipe(told.fd), 0);
    ts_rig_init(&rig, TS_RIG_THREADS, 2);
    rig.config.worker[0].kind = ACT_WORKER_IO;
    rig.config.lane_slots = 4;
    ts_rig_open(&rig);
    told.counter = ts_rig_spawn(&rig, 1, &counter_behaviour, &p);
    ts_rig_spawn(&rig, 0, &reader_behaviour, &p);
    ts_rig_start(&rig);
    for (int i = 0; i < BYTES; i++) {
        uint8_t byte = (uint8_t)i;
        cr_assert_eq(write(told.fd[1], &byte, 1), 1);
        if (i % 50 == 0) /* it has fallen asleep in between */
            cr_expect(ts_rig_until(&rig, &told.echoed, i + 1), "byte %d did not arrive", i);
    }
    cr_expect(ts_rig_until(&rig, &told.echoed, BYTES));
    ts_rig_settle(&rig);
    cr_expect_eq(ts_rig_close(&rig), 0);
    cr_expect_eq(atomic_load_explicit(&told.wrong, memory_order_acquire), 0);
    cr_expect_eq(atomic_load_explicit(&told.freed, memory_order_acquire), 1);
    close(told.fd[0]);
    close(told.fd[1]);
}
