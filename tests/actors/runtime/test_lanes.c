/* Messages between workers: floods, order, room, replies, returns. Each in threads and in the simulation. */
#include <errno.h>
#include <stdatomic.h>

#include "tests/harness.h"
#include "tests/support/actor_rig.h"

#define EACH_MODE(rig, mode)                                                                                           \
    struct ts_rig rig;                                                                                                 \
    for (enum ts_rig_mode mode = 0; mode < TS_RIG_MODES; mode++)

/* What actors tell the test. Atomic: threads write it. */
struct told {
    _Atomic long done, wrong, returned, abandoned, replies, messages;
    struct act_addr peer; /* set before the start */
    long count;
};

static void add(_Atomic long *n, long v)
{
    /* Release: what was written before; partner: ts_rig_until. */
    atomic_fetch_add_explicit(n, v, memory_order_release);
}

static long get(_Atomic long *n)
{
    return atomic_load_explicit(n, memory_order_acquire); /* partner: add */
}

/* ---- two actors that flood each other -------------------------------------------------------- */

struct flood {
    struct told *told;
    long sent, got, replied;
    bool reported;
};

static int flood_start(struct act_self *self, void *state, const void *arg)
{
    ((struct flood *)state)->told = *(struct told *const *)arg;
    act_yield(self);
    return 0;
}

static void flood_take(struct act_self *self, struct flood *f, struct act_msg *m)
{
    if (m->type == ACT_PONG) {
        f->replied++;
        f->told->wrong += !(m->flags & ACT_MSG_REPLY);
        return;
    }
    if (m->type != ACT_PING)
        return;
    uint64_t number = act_p_ping(m)->a;
    if (number != (uint64_t)f->got || !m->buf || m->buf->size != 8 || memcmp(m->buf->data, &number, 8) != 0)
        add(&f->told->wrong, 1);
    f->got++;
    struct act_promise p = act_promise_of(m);
    if (!p.number)
        return;
    struct act_msg r = act_msg_make(ACT_PONG, ACT_NOBODY);
    r.buf = act_msg_take(m); /* the buffer goes back */
    if (act_reply(self, &p, &r) != 0 || act_reply(self, &p, &r) != -ENOENT)
        add(&f->told->wrong, 1);
}

static int flood_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct flood *f = state;
    for (int i = 0; i < count; i++)
        flood_take(self, f, &m[i]);
    while (f->sent < f->told->count) {
        struct act_msg x = act_msg_make(ACT_PING, f->told->peer);
        act_p_ping(&x)->a = (uint64_t)f->sent;
        x.buf = act_buf_copy(&act_p_ping(&x)->a, 8);
        struct act_buf *buf = x.buf;
        int rc = f->sent % 3 == 2 ? act_request(self, &x) : act_send(self, &x);
        if (rc == -EAGAIN) {
            if (x.buf != buf)
                add(&f->told->wrong, 1);
            act_msg_drop(&x);
            break;
        }
        if (rc != 0 || x.buf)
            add(&f->told->wrong, 1);
        f->sent++;
    }
    if (f->sent == f->told->count && f->got == f->told->count && f->replied == f->told->count / 3 && !f->reported) {
        f->reported = true;
        add(&f->told->done, 1);
    }
    return 0;
}

static const struct act_behaviour flooder = {
    .name = "flooder", .state_size = sizeof(struct flood), .start = flood_start, .receive = flood_receive};

static void flood_each_other(int lane_slots, int reply_slots, long count, int batch, int outbox, bool spin)
{
    EACH_MODE(rig, mode)
    {
        long before = act_buf_live();
        ts_rig_init(&rig, mode, 2);
        rig.config.lane_slots = lane_slots;
        rig.config.reply_slots = reply_slots;
        rig.config.spin_us = spin ? 50 : 0;
        ts_rig_open(&rig);
        struct told a = {.count = count}, b = {.count = count};
        struct told *pa = &a, *pb = &b;
        struct act_spawn spec = {.behaviour = &flooder, .worker = 0, .arg = &pa, .batch = batch, .outbox = outbox};
        b.peer = ts_rig_spawn_spec(&rig, &spec);
        spec.worker = 1;
        spec.arg = &pb;
        a.peer = ts_rig_spawn_spec(&rig, &spec);
        ts_rig_start(&rig);
        cr_expect(ts_rig_until(&rig, &a.done, 1), "the first did not finish (mode %d, %d slots)", mode, lane_slots);
        cr_expect(ts_rig_until(&rig, &b.done, 1), "the second did not finish (mode %d, %d slots)", mode, lane_slots);
        ts_rig_settle(&rig);
        cr_expect_eq(ts_rig_close(&rig), 0, "room was lost (mode %d)", mode);
        cr_expect_eq(get(&a.wrong) + get(&b.wrong), 0, "mode %d", mode);
        cr_expect_eq(act_buf_live(), before, "mode %d: buffers leaked", mode);
    }
}

Test(lanes, two_workers_flood_each_other_through_four_slots)
{
    flood_each_other(4, 4, 6000, 0, 0, false);
}

Test(lanes, a_flood_with_one_slot_and_spinning)
{
    flood_each_other(1, 1, 600, 1, 0, true);
}

Test(lanes, a_flood_with_outboxes)
{
    flood_each_other(4, 2, 6000, 8, 16, false);
}

/* ---- within one worker ----------------------------------------------------------------------- */

Test(lanes, a_flood_within_one_worker)
{
    EACH_MODE(rig, mode)
    {
        long before = act_buf_live();
        ts_rig_init(&rig, mode, 1);
        rig.config.local_slots = 5;
        ts_rig_open(&rig);
        struct told a = {.count = 3000}, b = {.count = 3000};
        struct told *pa = &a, *pb = &b;
        b.peer = ts_rig_spawn(&rig, 0, &flooder, &pa);
        a.peer = ts_rig_spawn(&rig, 0, &flooder, &pb);
        ts_rig_start(&rig);
        cr_expect(ts_rig_until(&rig, &a.done, 1));
        cr_expect(ts_rig_until(&rig, &b.done, 1));
        ts_rig_settle(&rig);
        cr_expect_eq(ts_rig_close(&rig), 0);
        cr_expect_eq(get(&a.wrong) + get(&b.wrong), 0);
        cr_expect_eq(act_buf_live(), before);
    }
}

/* ---- many to one ----------------------------------------------------------------------------- */

enum { SENDERS = 3, EACH = 2000 };

struct collect {
    struct told *told;
    uint64_t next[SENDERS];
    int calls;
};

static int collect_start(struct act_self *self, void *state, const void *arg)
{
    (void)self;
    ((struct collect *)state)->told = *(struct told *const *)arg;
    return 0;
}

static int collect_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct collect *c = state;
    (void)self;
    for (int i = 0; i < count; i++) {
        if (m[i].type != ACT_PING)
            continue;
        uint64_t who = act_p_ping(&m[i])->a, number = act_p_ping(&m[i])->b;
        if (who >= SENDERS || number != c->next[who]++)
            add(&c->told->wrong, 1);
    }
    add(&c->told->messages, count);
    return 0;
}

static const struct act_behaviour collector = {
    .name = "collector", .state_size = sizeof(struct collect), .start = collect_start, .receive = collect_receive};

struct order_arg {
    struct told *told;
    uint64_t who;
};

struct orderly {
    struct order_arg arg;
    uint64_t sent;
};

static int orderly_start(struct act_self *self, void *state, const void *arg)
{
    ((struct orderly *)state)->arg = *(const struct order_arg *)arg;
    act_yield(self);
    return 0;
}

static int orderly_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct orderly *o = state;
    (void)m;
    (void)count;
    while (o->sent < EACH) {
        struct act_msg x = act_msg_make(ACT_PING, o->arg.told->peer);
        *act_p_ping(&x) = (struct act_p_ping){.a = o->arg.who, .b = o->sent};
        if (act_send(self, &x) != 0)
            break;
        o->sent++;
    }
    return 0;
}

static const struct act_behaviour orderly_sender = {
    .name = "orderly", .state_size = sizeof(struct orderly), .start = orderly_start, .receive = orderly_receive};

Test(lanes, order_of_each_sender_is_kept)
{
    EACH_MODE(rig, mode)
    {
        ts_rig_init(&rig, mode, 2);
        rig.config.lane_slots = 7;
        ts_rig_open(&rig);
        struct told told = {0}, *p = &told;
        told.peer = ts_rig_spawn(&rig, 0, &collector, &p);
        struct order_arg arg[SENDERS];
        for (int i = 0; i < SENDERS; i++) {
            arg[i] = (struct order_arg){&told, (uint64_t)i};
            ts_rig_spawn(&rig, i < 2 ? 1 : 0, &orderly_sender, &arg[i]);
        }
        ts_rig_start(&rig);
        cr_expect(ts_rig_until(&rig, &told.messages, SENDERS * EACH), "mode %d: %ld arrived", mode,
                  get(&told.messages));
        ts_rig_settle(&rig);
        struct act_stats_worker s;
        cr_assert_eq(act_stats_worker(rig.rt, 0, &s), 0);
        cr_expect_lt(s.batches, s.messages, "mode %d: never more than one message per call", mode);
        cr_expect_eq(ts_rig_close(&rig), 0);
        cr_expect_eq(get(&told.wrong), 0);
    }
}

/* ---- receivers that are dead, die, or return what they get ----------------------------------- */

enum mood { KEEPS, DIES, RETURNS, REPLIES_LATE };

struct mortal_arg {
    struct told *told;
    enum mood mood;
};

struct mortal {
    struct mortal_arg arg;
    struct act_promise kept[64];
    int count;
};

static int mortal_start(struct act_self *self, void *state, const void *arg)
{
    (void)self;
    ((struct mortal *)state)->arg = *(const struct mortal_arg *)arg;
    return 0;
}

static int mortal_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct mortal *x = state;
    for (int i = 0; i < count; i++) {
        if (x->arg.mood == RETURNS) {
            act_return(self, &m[i]);
            continue;
        }
        struct act_promise p = act_promise_of(&m[i]);
        if (p.number && x->count < 64)
            x->kept[x->count++] = p;
        add(&x->arg.told->messages, 1);
    }
    if (x->arg.mood == DIES && x->count >= 10)
        return -EIO;
    if (x->arg.mood == REPLIES_LATE && x->count == 40)
        while (x->count) {
            struct act_msg r = act_msg_make(ACT_PONG, ACT_NOBODY);
            if (act_reply(self, &x->kept[--x->count], &r) != 0)
                add(&x->arg.told->wrong, 1);
        }
    return 0;
}

static const struct act_behaviour mortal_behaviour = {
    .name = "mortal", .state_size = sizeof(struct mortal), .start = mortal_start, .receive = mortal_receive};

struct asker {
    struct told *told;
    long sent;
};

static int asker_start(struct act_self *self, void *state, const void *arg)
{
    ((struct asker *)state)->told = *(struct told *const *)arg;
    act_yield(self);
    return 0;
}

static int asker_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct asker *x = state;
    struct told *t = x->told;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_PONG)
            add(&t->replies, 1);
        if (m[i].type == ACT_UNDELIVERABLE) {
            bool abandoned = (m[i].flags & ACT_MSG_ABANDONED) != 0;
            add(abandoned ? &t->abandoned : &t->returned, 1);
            if (act_msg_returned_type(&m[i]) != ACT_PING || !act_addr_equal(m[i].src, t->peer) || m[i].request == 0)
                add(&t->wrong, 1);
            /* The payload and the buffer are the original ones. */
            if (!abandoned && (act_p_ping(&m[i])->a != m[i].request * 7 || !m[i].buf ||
                               memcmp(m[i].buf->data, &m[i].request, 8) != 0))
                add(&t->wrong, 1);
        }
    }
    while (x->sent < t->count) {
        struct act_msg r = act_msg_make(ACT_PING, t->peer);
        r.request = (uint64_t)x->sent + 1;
        act_p_ping(&r)->a = r.request * 7;
        r.buf = act_buf_copy(&r.request, 8);
        int rc = x->sent % 2 ? act_request(self, &r) : act_send(self, &r);
        if (rc != 0) {
            act_msg_drop(&r);
            break;
        }
        x->sent++;
    }
    add(&t->done, 1);
    return 0;
}

static const struct act_behaviour asker_behaviour = {
    .name = "asker", .state_size = sizeof(struct asker), .start = asker_start, .receive = asker_receive};

static void ask(enum ts_rig_mode mode, enum mood mood, bool same_worker, struct told *told, long count, bool alive)
{
    struct ts_rig rig;
    long before = act_buf_live();
    ts_rig_init(&rig, mode, 2);
    rig.config.lane_slots = 64;
    ts_rig_open(&rig);
    *told = (struct told){.count = count};
    struct mortal_arg arg = {told, mood};
    struct act_addr peer = ts_rig_spawn(&rig, 1, &mortal_behaviour, &arg);
    told->peer = peer;
    if (!alive)
        told->peer.generation += 5; /* nobody has this address */
    struct told *p = told;
    ts_rig_spawn(&rig, same_worker ? 1 : 0, &asker_behaviour, &p);
    ts_rig_start(&rig);
    ts_rig_until(&rig, &told->done, 1);
    ts_rig_settle(&rig);
    cr_expect_eq(get(&told->wrong), 0, "mode %d, mood %d", mode, mood);
    cr_expect_eq(ts_rig_close(&rig), mood == KEEPS && alive ? count / 2 : 0, "mode %d, mood %d", mode, mood);
    cr_expect_eq(act_buf_live(), before, "mode %d, mood %d: buffers leaked", mode, mood);
}

Test(lanes, messages_to_the_dead_come_back_with_their_buffers)
{
    struct told told;
    for (enum ts_rig_mode mode = 0; mode < TS_RIG_MODES; mode++)
        for (int same = 0; same < 2; same++) {
            ask(mode, KEEPS, same, &told, 1000, false);
            cr_expect_eq(get(&told.returned), 1000, "mode %d: %ld came back", mode, get(&told.returned));
        }
}

Test(lanes, a_request_ends_when_its_receiver_dies)
{
    struct told told;
    for (enum ts_rig_mode mode = 0; mode < TS_RIG_MODES; mode++)
        for (int same = 0; same < 2; same++) {
            ask(mode, DIES, same, &told, 500, true);
            /* Half are requests: each has exactly one end. The other half was taken or came back. */
            cr_expect_ge(get(&told.abandoned), 10, "mode %d", mode);
            cr_expect_eq(get(&told.messages) + get(&told.returned), 500, "mode %d", mode);
        }
}

Test(lanes, what_a_receiver_returns_comes_back)
{
    struct told told;
    for (enum ts_rig_mode mode = 0; mode < TS_RIG_MODES; mode++)
        for (int same = 0; same < 2; same++) {
            ask(mode, RETURNS, same, &told, 300, true);
            cr_expect_eq(get(&told.returned), 300, "mode %d: %ld came back", mode, get(&told.returned));
        }
}

Test(lanes, promises_are_kept_later_in_any_order)
{
    struct told told;
    for (enum ts_rig_mode mode = 0; mode < TS_RIG_MODES; mode++)
        for (int same = 0; same < 2; same++) {
            ask(mode, REPLIES_LATE, same, &told, 80, true);
            cr_expect_eq(get(&told.replies), 40, "mode %d", mode);
        }
}

Test(lanes, a_kept_promise_holds_its_room)
{
    struct told told;
    for (enum ts_rig_mode mode = 0; mode < TS_RIG_MODES; mode++)
        ask(mode, KEEPS, false, &told, 60, true); /* ask() looks at the room */
}

/* ---- cancels, posts, bad sends --------------------------------------------------------------- */

struct canceller {
    struct told *told;
    bool sent;
};

static int canceller_start(struct act_self *self, void *state, const void *arg)
{
    ((struct canceller *)state)->told = *(struct told *const *)arg;
    act_yield(self);
    return 0;
}

static int canceller_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct canceller *c = state;
    (void)m;
    (void)count;
    if (c->sent)
        return 0;
    c->sent = true;
    /* The lane is full; cancels still get through. */
    struct act_msg x;
    do {
        x = act_msg_make(ACT_PING, c->told->peer);
    } while (act_send(self, &x) == 0);
    for (int i = 0; i < 500; i++)
        if (act_cancel(self, c->told->peer, (uint64_t)i, 3, -ECANCELED) != 0)
            add(&c->told->wrong, 1);
    /* Nothing that does not fit the list is sent. */
    x = act_msg_make(ACT_PREFILL, c->told->peer);
    if (act_send(self, &x) != -EINVAL)
        add(&c->told->wrong, 1);
    x = act_msg_make(ACT_CANCEL, c->told->peer);
    x.buf = act_buf_new(4);
    if (act_send(self, &x) != -EINVAL || !x.buf)
        add(&c->told->wrong, 1);
    act_msg_drop(&x);
    return 0;
}

static const struct act_behaviour canceller_behaviour = {.name = "canceller",
                                                         .state_size = sizeof(struct canceller),
                                                         .start = canceller_start,
                                                         .receive = canceller_receive};

struct sleeper {
    struct told *told;
    uint64_t next;
};

static int sleeper_start(struct act_self *self, void *state, const void *arg)
{
    (void)self;
    ((struct sleeper *)state)->told = *(struct told *const *)arg;
    return 0;
}

static int sleeper_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct sleeper *s = state;
    (void)self;
    bool seen_other = false;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_CANCEL) {
            bool ok = !seen_other && m[i].request == s->next++ && m[i].attempt == 3 &&
                      act_p_cancel(&m[i])->reason == -ECANCELED;
            add(&s->told->wrong, !ok);
            add(&s->told->replies, 1);
        } else {
            seen_other = true;
        }
        if (m[i].type == ACT_PONG)
            add(&s->told->messages, act_addr_is_nobody(m[i].src) && m[i].buf && m[i].buf->size == 3);
    }
    return 0;
}

static const struct act_behaviour sleeper_behaviour = {
    .name = "sleeper", .state_size = sizeof(struct sleeper), .start = sleeper_start, .receive = sleeper_receive};

Test(lanes, cancels_pass_a_full_lane)
{
    EACH_MODE(rig, mode)
    {
        ts_rig_init(&rig, mode, 2);
        rig.config.lane_slots = 4;
        ts_rig_open(&rig);
        struct told told = {0}, *p = &told;
        told.peer = ts_rig_spawn(&rig, 1, &sleeper_behaviour, &p);
        ts_rig_spawn(&rig, 0, &canceller_behaviour, &p);
        ts_rig_start(&rig);
        cr_expect(ts_rig_until(&rig, &told.replies, 500));
        ts_rig_settle(&rig);
        cr_expect_eq(get(&told.wrong), 0, "mode %d", mode);
        cr_expect_eq(ts_rig_close(&rig), 0);
    }
}

Test(lanes, messages_from_outside)
{
    EACH_MODE(rig, mode)
    {
        long before = act_buf_live();
        ts_rig_init(&rig, mode, 1);
        ts_rig_open(&rig);
        struct told told = {0}, *p = &told;
        struct act_addr to = ts_rig_spawn(&rig, 0, &sleeper_behaviour, &p);
        ts_rig_start(&rig);
        for (int i = 0; i < 100; i++) {
            struct act_msg m = act_msg_make(ACT_PONG, to);
            m.buf = act_buf_copy("abc", 3);
            cr_assert_eq(act_runtime_post(rig.rt, &m), 0);
            cr_assert_null(m.buf);
        }
        cr_expect(ts_rig_until(&rig, &told.messages, 100));
        struct act_msg m = act_msg_make(ACT_PONG, (struct act_addr){.generation = 1, .peer = 0, .index = 100000});
        cr_expect_eq(act_runtime_post(rig.rt, &m), -EINVAL);
        cr_expect_eq(ts_rig_close(&rig), 0);
        cr_expect_eq(act_buf_live(), before);
    }
}
