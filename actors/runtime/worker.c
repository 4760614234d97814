/* The worker: its loop, control messages, timers, and the call of an actor with everything that waits. */
#define _GNU_SOURCE
#include "actors/runtime/internal.h"
#include "actors/runtime/spin.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum {
    DRAIN_MAX = 64,   /* messages taken from one lane per turn */
    RUNS_MAX = 16,    /* actors called per turn */
    TURN_NS = 500000, /* after this long the turn ends, whatever is still runnable */
    SPINS_PER_CLOCK = 32,
    LOOKS_PER_CLOCK = 4, /* a look takes longer than one at the lanes */
    TURNS_PER_CLOCK = 16,
    POLL_NS = 50000, /* a busy worker looks at its source this often */
};

/* ---- run queues ------------------------------------------------------------------------------ */

void worker_ready(struct act_self *a)
{
    if (a->queued)
        return;
    struct act_worker *w = a->worker;
    struct act_run_queue *q = &w->run[a->spec.run_class == ACT_CLASS_BULK];
    a->queued = true;
    a->run_next = NULL;
    a->run_since = w->now;
    if (q->tail)
        q->tail->run_next = a;
    else
        q->head = a;
    q->tail = a;
    q->count++;
    COUNT_ADD(w->count.runnable, 1);
}

/* Urgent before bulk, unless the first bulk actor has waited for age_ns. */
struct act_run_queue *worker_queue(struct act_worker *w)
{
    struct act_run_queue *urgent = &w->run[0], *bulk = &w->run[1];
    bool aged = bulk->head && w->now - bulk->head->run_since >= w->rt->config.age_ns;
    return urgent->head && !aged ? urgent : bulk;
}

struct act_self *worker_take(struct act_worker *w, struct act_run_queue *q, int skip)
{
    struct act_self **at = &q->head, *before = NULL;
    for (; *at && skip > 0; skip--) {
        before = *at;
        at = &(*at)->run_next;
    }
    struct act_self *a = *at;
    if (!a)
        return NULL;
    *at = a->run_next;
    if (q->tail == a)
        q->tail = before;
    q->count--;
    a->queued = false;
    COUNT_ADD(w->count.runnable, -1);
    return a;
}

/* ---- control --------------------------------------------------------------------------------- */

static void control_message(struct act_worker *w, struct act_ctl *c)
{
    struct act_self *a = actor_find(w, c->msg.dst);
    struct act_node *n = a ? node_new(w) : NULL;
    if (!n) {
        act_msg_drop(&c->msg);
        return;
    }
    n->msg = c->msg;
    n->worker = (uint32_t)w->index;
    /* A posted message is an ordinary one for its actor. */
    bool posted = act_addr_is_nobody(c->msg.src);
    fifo_push(posted ? &a->mail : &a->control, n);
    a->waiting++;
    COUNT_ADD(a->shown_waiting, 1);
    worker_ready(a);
}

static void control_one(struct act_worker *w, struct act_ctl *c)
{
    switch (c->kind) {
    case CTL_MESSAGE:
        control_message(w, c);
        free(c);
        return;
    case CTL_EXIT: {
        struct act_self *a = actor_find(w, c->msg.dst);
        if (a)
            actor_fail_later(a, act_p_exit(&c->msg)->reason);
        free(c);
        return;
    }
    case CTL_WATCH:
        watch_arrived(w, (struct act_watch *)(void *)c);
        return;
    case CTL_UNWATCH:
        watch_withdrawn(w, (struct act_watching *)(void *)c);
        return;
    case CTL_DOWN:
        watch_came_back(w, (struct act_watch *)(void *)c);
        return;
    }
}

void worker_take_control(struct act_worker *w)
{
    /* Relaxed: a hint; the exchange below, or the look before sleep, decides. */
    if (!atomic_load_explicit(&w->control, memory_order_relaxed))
        return;
    /* Acquire: what the pushers wrote. Partner: worker_control. */
    struct act_ctl *list = atomic_exchange_explicit(&w->control, NULL, memory_order_acquire), *in_order = NULL;
    while (list) {
        struct act_ctl *c = list;
        list = c->next;
        c->next = in_order;
        in_order = c;
    }
    while (in_order) {
        struct act_ctl *c = in_order;
        in_order = c->next;
        control_one(w, c);
    }
}

/* ---- timers ---------------------------------------------------------------------------------- */

static void timer_disown(struct act_timer *t)
{
    *t->own_link = t->own_next;
    if (t->own_next)
        t->own_next->own_link = t->own_link;
    t->own_next = NULL;
    t->own_link = NULL;
}

static void timer_own(struct act_self *a, struct act_timer **list, struct act_timer *t)
{
    t->owner = a;
    t->own_next = *list;
    t->own_link = list;
    if (*list)
        (*list)->own_link = &t->own_next;
    *list = t;
}

static void timer_fired(void *ctx, struct act_timer *t)
{
    struct act_worker *w = ctx;
    struct act_self *a = t->owner;
    timer_disown(t);
    COUNT_ADD(w->count.timers, 1);
    if (t == &a->restart) {
        actor_restart(a);
        return;
    }
    /* The list of due timers is in order of time. */
    struct act_timer **at = &a->due;
    while (*at && ((*at)->at < t->at || ((*at)->at == t->at && (*at)->sequence < t->sequence)))
        at = &(*at)->own_next;
    timer_own(a, at, t);
    t->state = ACT_TIMER_DUE;
    worker_ready(a);
}

void worker_timers(struct act_worker *w)
{
    act_wheel_advance(&w->wheel, w->now, timer_fired, w);
}

void act_timer_cancel(struct act_self *self, struct act_timer *t)
{
    if (t->state == ACT_TIMER_IDLE)
        return;
    if (t->state == ACT_TIMER_PENDING)
        act_wheel_remove(&self->worker->wheel, t);
    timer_disown(t);
    t->state = ACT_TIMER_IDLE;
}

void act_timer_at(struct act_self *self, struct act_timer *t, int64_t at, uint64_t tag)
{
    act_timer_cancel(self, t);
    t->at = at;
    t->tag = tag;
    act_wheel_add(&self->worker->wheel, t);
    timer_own(self, &self->timers, t);
}

void act_timer_after(struct act_self *self, struct act_timer *t, int64_t ns, uint64_t tag)
{
    int64_t now = act_now(self);
    act_timer_at(self, t, ns > ACT_NEVER - now ? ACT_NEVER : now + ns, tag);
}

bool act_timer_pending(const struct act_timer *t)
{
    return t->state != ACT_TIMER_IDLE;
}

/* ---- calling an actor ------------------------------------------------------------------------ */

static int gather_timers(struct act_worker *w, struct act_self *a, int n, int max)
{
    while (a->due && n < max) {
        struct act_timer *t = a->due;
        timer_disown(t);
        t->state = ACT_TIMER_IDLE;
        struct act_msg *m = &w->batch[n++];
        *m = act_msg_make(ACT_TIMER, actor_addr(a));
        act_p_timer(m)->tag = t->tag;
        act_p_timer(m)->late_ns = w->now - t->at;
    }
    return n;
}

static int gather_room(struct act_worker *w, struct act_self *a, int n, int max)
{
    while (a->room_given && n < max) {
        struct act_msg *m = &w->batch[n++];
        *m = act_msg_make(ACT_ROOM, actor_addr(a));
        act_p_room(m)->worker = (uint32_t)__builtin_ctzll(a->room_given);
        a->room_given &= a->room_given - 1;
    }
    return n;
}

static int gather_mail(struct act_worker *w, struct act_self *a, struct act_fifo *f, int n, int max)
{
    while (n < max) {
        struct act_node *node = fifo_pop(f);
        if (!node)
            break;
        struct act_msg *m = &w->batch[n];
        *m = node->msg;
        int from = (int)node->worker;
        node_free(w, node);
        a->waiting--;
        if ((m->flags & (ACT_MSG_WANTS_REPLY | ACT_MSG_RETURNED)) == ACT_MSG_WANTS_REPLY) {
            m->promise = actor_owe(a, m, from);
            if (!m->promise) { /* no memory for the promise: as if nobody were here */
                worker_bounce(w, m, from);
                continue;
            }
        }
        worker_release(w, m, from);
        n++;
    }
    return n;
}

void worker_run_actor(struct act_worker *w, struct act_self *a)
{
    if (a->state != ACTOR_ALIVE)
        return;
    if (!a->ending) {
        int max = a->spec.batch, before = a->waiting;
        int n = gather_mail(w, a, &a->control, 0, max);
        n = gather_timers(w, a, n, max);
        n = gather_room(w, a, n, max);
        n = gather_mail(w, a, &a->mail, n, max);
        if (a->waiting != before)
            COUNT_ADD(a->shown_waiting, a->waiting - before);
        worker_publish(w, false);
        bool again = a->again;
        a->again = false;
        if (n || again) {
            COUNT_ADD(w->count.batches, 1);
            COUNT_ADD(w->count.messages, (uint64_t)n);
            COUNT_ADD(a->batches, 1);
            COUNT_ADD(a->messages, (uint64_t)n);
            if (w->rt->on_batch)
                w->rt->on_batch(w->rt->on_batch_ctx, a, w->batch, n);
            int rc = a->spec.behaviour->receive(a, a->memory, w->batch, n);
            for (int i = 0; i < n; i++)
                if (w->batch[i].buf || w->batch[i].type == ACT_JOB || w->batch[i].type == ACT_JOB_DONE ||
                    w->batch[i].type == ACT_UNDELIVERABLE)
                    act_msg_drop(&w->batch[i]);
            if (rc < 0)
                actor_fail_later(a, rc);
        }
    }
    if (a->ending) {
        actor_end(a, a->reason, true);
        worker_publish(w, false);
    } else if (a->again || a->mail.head || a->control.head || a->due || a->room_given) {
        worker_ready(a);
    }
    worker_flush(w);
}

void worker_end_actors(struct act_worker *w, int reason)
{
    for (int i = 0; i < w->actor_count; i++) {
        struct act_self *a = &w->actors[i];
        if (a->state == ACTOR_RESTARTING) {
            act_timer_cancel(a, &a->restart);
            a->state = ACTOR_FREE;
        }
        if (a->state == ACTOR_ALIVE)
            actor_end(a, reason, false);
    }
    worker_publish(w, false);
    worker_flush(w);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static int64_t clock_now(const struct act_worker *w)
{
    return w->rt->world->now(w->rt->world_ctx);
}

/* What the worker must see before it sleeps; the flag `sleeping` is set. */
bool worker_has_input(struct act_worker *w)
{
    /* Seq_cst: after the flag was set; partners: worker_control, act_runtime_stop. */
    if (atomic_load_explicit(&w->control, memory_order_seq_cst) ||
        atomic_load_explicit(&w->rt->stopping, memory_order_seq_cst))
        return true;
    for (int i = 0; i < w->rt->workers; i++)
        if (i != w->index && act_ring_any(&w->in[i]->ring))
            return true;
    return w->starved && worker_room(w, true);
}

static void drain_lanes(struct act_worker *w)
{
    for (int i = 0; i < w->rt->workers; i++)
        if (i != w->index && act_ring_any(&w->in[i]->ring))
            lane_drain(w, w->in[i], DRAIN_MAX);
}

/* Takes what is there beside the loop, and learns how long to look for it. */
static bool look(struct act_worker *w, bool (*take)(void *ctx))
{
    if (!take || !take(w->looked.ctx))
        return false;
    if (w->idle_since) {
        w->look_ns = act_spin_next(w->look_ns, w->looked.spin_ns, clock_now(w) - w->idle_since);
        w->idle_since = 0;
    }
    return true;
}

static void sleep_until(struct act_worker *w, int64_t until)
{
    /* Seq_cst: before the looks in worker_has_input. Partner: worker_wake. */
    atomic_store_explicit(&w->sleeping, 1, memory_order_seq_cst);
    /* Also before the looks at the rings. Partner: worker_flush. */
    ck_pr_fence_memory();
    worker_publish(w, true);
    if (!worker_has_input(w) && !look(w, w->looked.arm)) {
        COUNT_ADD(w->count.sleeps, 1);
        int64_t now = clock_now(w);
        w->source_ops->wait(w->source, until == ACT_NEVER ? ACT_NEVER : until > now ? until - now : 0);
    }
    /* Seq_cst, like the exchange of whoever wakes: one of the two takes the flag back. */
    atomic_store_explicit(&w->sleeping, 0, memory_order_seq_cst);
}

/* Looks for input for a short while. True: there is some. */
static bool spin(struct act_worker *w, int64_t until)
{
    int64_t end = 0; /* the clock is not read as long as messages come quickly */
    int64_t longest = w->rt->spin_ns > w->look_ns ? w->rt->spin_ns : w->look_ns;
    int per_clock = w->look_ns ? LOOKS_PER_CLOCK : SPINS_PER_CLOCK;
    if (longest == 0)
        return false;
    for (int i = 1;; i++) {
        for (int j = 0; j < w->rt->workers; j++)
            if (j != w->index && act_ring_any(&w->in[j]->ring))
                return true;
        /* Relaxed: a hint; worker_take_control and the look before sleep decide. */
        if (atomic_load_explicit(&w->control, memory_order_relaxed) ||
            atomic_load_explicit(&w->rt->stopping, memory_order_relaxed))
            return true;
        if (look(w, w->looked.look))
            return true;
        if (i % per_clock == 0) {
            if (w->starved && worker_room(w, true))
                return true;
            int64_t now = clock_now(w);
            if (!end) {
                worker_publish(w, true);
                end = now + longest;
                end = end < until ? end : until;
            }
            if (now >= end)
                return false;
        }
        ck_pr_stall();
    }
}

static void run_some(struct act_worker *w)
{
    int64_t start = w->now;
    for (int i = 0; i < RUNS_MAX; i++) {
        struct act_self *a = worker_take(w, worker_queue(w), 0);
        if (!a)
            return;
        worker_run_actor(w, a);
        if (!w->run[0].head && !w->run[1].head)
            return;
        w->now = clock_now(w);
        if (w->now - start >= TURN_NS)
            return;
    }
}

void *worker_main(void *arg)
{
    struct act_worker *w = arg;
    /* An eventfd says nothing but that there are messages. */
    bool polls = w->source_ops != &act_source_eventfd;
    int64_t polled = 0;
    unsigned turn = 0;
    /* Acquire: partner is act_runtime_stop. */
    while (!atomic_load_explicit(&w->rt->stopping, memory_order_acquire)) {
        /* Without timers and bulk actors nothing depends on the time within a few turns. */
        if (polls || w->wheel.count || w->run[1].head || turn % TURNS_PER_CLOCK == 0) {
            w->now = clock_now(w);
            /* Relaxed: for health only. */
            atomic_store_explicit(&w->count.turn_at, w->now, memory_order_relaxed);
        }
        turn++;
        COUNT_ADD(w->count.turns, 1);
        if (polls && w->now - polled >= POLL_NS) {
            w->source_ops->wait(w->source, 0);
            polled = w->now;
        }
        if (!look(w, w->looked.look))
            w->idle_since = 0;
        worker_take_control(w);
        drain_lanes(w);
        worker_timers(w);
        if (w->starved)
            worker_room(w, false);
        run_some(w);
        worker_publish(w, false);
        worker_flush(w);
        if (w->run[0].head || w->run[1].head)
            continue;
        int64_t next = act_wheel_next(&w->wheel);
        w->idle_since = w->looked.spin_ns ? clock_now(w) : 0;
        if (spin(w, next))
            continue;
        sleep_until(w, next);
        polled = w->now;
        turn = 0;
    }
    worker_end_actors(w, -ESHUTDOWN);
    return NULL;
}
