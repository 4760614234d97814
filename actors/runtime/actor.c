/* Actors: slots and their pools, spawning, ending, restarts, the promises that an actor owes, and what it asks about
 * itself. */
#include "actors/runtime/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH_DEFAULT = 64, RESTARTS_DEFAULT = 3, OWED_MAX = UINT16_MAX };
#define WINDOW_DEFAULT INT64_C(10000000000)

struct act_addr actor_addr(const struct act_self *a)
{
    return (struct act_addr){.generation = a->generation, .peer = 0, .index = a->index};
}

static struct act_addr route_of(const struct act_runtime *rt, unsigned peer)
{
    /* Acquire: the entries below were written before. Partner: act_peer_number. */
    if ((int)peer >= atomic_load_explicit(&rt->peers, memory_order_acquire))
        return ACT_NOBODY;
    /* Acquire: whoever set the route has made the actor before. Partner: act_peer_route. */
    uint64_t n = atomic_load_explicit(&rt->peer[peer].route, memory_order_acquire);
    return (struct act_addr){.generation = (uint32_t)(n >> 32), .peer = 0, .index = n & (ACT_INDEX_MAX - 1)};
}

int actor_worker(const struct act_runtime *rt, struct act_addr dst)
{
    if (dst.peer)
        dst = route_of(rt, dst.peer);
    return act_addr_is_nobody(dst) || dst.index >= rt->indices ? -1 : rt->worker_of[dst.index];
}

struct act_self *actor_find(struct act_worker *w, struct act_addr addr)
{
    if (addr.peer)
        addr = route_of(w->rt, addr.peer);
    uint32_t i = addr.index - w->first_index;
    if (addr.index < w->first_index || i >= (uint32_t)w->actor_count)
        return NULL;
    struct act_self *a = &w->actors[i];
    return a->state == ACTOR_ALIVE && a->generation == addr.generation ? a : NULL;
}

bool actor_lives_on(const struct act_worker *w, struct act_addr addr)
{
    uint32_t i = addr.index - w->first_index;
    if (addr.peer || addr.index < w->first_index || i >= (uint32_t)w->actor_count)
        return false;
    const struct act_self *a = &w->actors[i];
    /* Relaxed: this thread has written it. Differences, because generations wrap around. */
    uint32_t first = atomic_load_explicit(&a->first, memory_order_relaxed);
    return a->state != ACTOR_FREE && addr.generation - first < a->generation - first;
}

/* ---- promises -------------------------------------------------------------------------------- */

uint16_t actor_owe(struct act_self *a, const struct act_msg *m, int worker)
{
    if (!a->owed_free) {
        size_t old = a->owed_size, size = old ? old * 2 : 8;
        size = size > OWED_MAX ? OWED_MAX : size;
        struct act_owed *o = size > old ? realloc(a->owed, size * sizeof *o) : NULL;
        if (!o)
            return 0;
        a->owed = o;
        a->owed_size = (uint16_t)size;
        for (size_t i = size; i-- > old;) {
            o[i] = (struct act_owed){.next_free = a->owed_free};
            a->owed_free = (uint16_t)(i + 1);
        }
    }
    uint16_t number = a->owed_free;
    struct act_owed *o = &a->owed[number - 1];
    a->owed_free = o->next_free;
    *o = (struct act_owed){.used = true,
                           .worker = (uint8_t)worker,
                           .type = m->type,
                           .attempt = m->attempt,
                           .call = m->promise,
                           .to = m->src,
                           .request = m->request,
                           .deadline = m->deadline};
    return number;
}

/* The actor has ended: who still waits for its reply gets the request back, without payload. */
static void break_promises(struct act_self *a)
{
    for (int i = 0; i < a->owed_size; i++) {
        const struct act_owed *o = &a->owed[i];
        if (!o->used)
            continue;
        struct act_msg m = act_msg_make(ACT_UNDELIVERABLE, o->to);
        m.returned = o->type;
        m.flags = ACT_MSG_RETURNED | ACT_MSG_ABANDONED | ACT_MSG_WANTS_REPLY;
        m.src = actor_addr(a);
        m.request = o->request;
        m.attempt = o->attempt;
        m.deadline = o->deadline;
        worker_put(a->worker, o->worker, &m);
    }
    free(a->owed);
    a->owed = NULL;
    a->owed_size = a->owed_free = 0;
}

/* ---- beginning ------------------------------------------------------------------------------- */

static void show(struct act_self *a, bool alive)
{
    /* Relaxed: a name for statistics; the behaviour is constant. Partner: act_stats_actors. */
    atomic_store_explicit(&a->shown, alive ? a->spec.behaviour : NULL, memory_order_relaxed);
    atomic_store_explicit(&a->shown_bulk, a->spec.run_class == ACT_CLASS_BULK, memory_order_relaxed);
    atomic_store_explicit(&a->working, false, memory_order_relaxed);
    atomic_store_explicit(&a->progress_at, a->worker->now, memory_order_relaxed);
    if (alive) {
        atomic_store_explicit(&a->batches, 0, memory_order_relaxed);
        atomic_store_explicit(&a->messages, 0, memory_order_relaxed);
    }
    /* Release: after the fields above. Partner: act_current, act_stats_actors. */
    atomic_store_explicit(&a->live, alive ? a->generation : 0, memory_order_release);
    COUNT_ADD(a->worker->count.actors, alive ? 1 : -1);
}

/* Runs the start callback of an actor whose slot and spec are set. On failure nothing is left but the slot. */
static int begin(struct act_self *a)
{
    a->state = ACTOR_ALIVE;
    a->ending = a->again = a->begun = false;
    a->reason = 0;
    show(a, true);
    a->memory = line_alloc(a->spec.behaviour->state_size);
    if (!a->memory)
        return -ENOMEM;
    int rc = a->spec.behaviour->start ? a->spec.behaviour->start(a, a->memory, a->spec.arg) : 0;
    if (rc != 0)
        return rc > 0 ? -EINVAL : rc;
    a->begun = true;
    return watch_supervisor(a);
}

static void slot_free(struct act_self *a)
{
    struct act_worker *w = a->worker;
    a->state = ACTOR_FREE;
    a->restarts = 0;
    /* Behind the others, so that a slot rests as long as possible. */
    a->free_next = NULL;
    if (w->free_tail)
        w->free_tail->free_next = a;
    else
        w->free_head = a;
    w->free_tail = a;
}

static void next_generation(struct act_self *a)
{
    a->generation++;
    if (a->generation == 0)
        a->generation = 1;
}

int actor_spawn(struct act_worker *w, const struct act_spawn *spec, struct act_addr *out, struct cfg_error *err)
{
    *out = ACT_NOBODY;
    if (!spec->behaviour || !spec->behaviour->receive || spec->batch < 0 || spec->batch > ACT_BATCH_LIMIT)
        return cfg_error_set(err, EINVAL, "an actor needs a receive function and a batch of 0 to %d", ACT_BATCH_LIMIT);
    struct act_self *a = w->free_head;
    if (!a)
        return cfg_error_set(err, EAGAIN, "worker %s has no free actor slot of its %d; raise actors_max",
                             w->config.name, w->actor_count);
    w->free_head = a->free_next;
    if (!w->free_head)
        w->free_tail = NULL;
    a->spec = *spec;
    /* Relaxed: seen with the next `live`, which show() releases. Partner: act_current. */
    atomic_store_explicit(&a->first, a->generation, memory_order_relaxed);
    a->spec.worker = w->index;
    a->spec.batch = spec->batch ? spec->batch : BATCH_DEFAULT;
    a->spec.restarts = spec->restarts ? spec->restarts : RESTARTS_DEFAULT;
    a->spec.restart_window_ns = spec->restart_window_ns ? spec->restart_window_ns : WINDOW_DEFAULT;
    int rc = begin(a);
    if (rc != 0) {
        actor_end(a, rc, false);
        return cfg_error_set(err, -rc, "actor %s did not start: %s", spec->behaviour->name, strerror(-rc));
    }
    *out = actor_addr(a);
    if (a->ending)
        worker_ready(a);
    return 0;
}

int act_spawn(struct act_self *self, const struct act_spawn *spec, struct act_addr *out, struct cfg_error *err)
{
    return actor_spawn(self->worker, spec, out, err);
}

/* ---- ending ---------------------------------------------------------------------------------- */

void actor_fail_later(struct act_self *a, int reason)
{
    if (a->ending && a->reason != 0)
        return; /* the first failure counts */
    a->ending = true;
    a->reason = reason;
    worker_ready(a);
}

void act_stop(struct act_self *self, int reason)
{
    actor_fail_later(self, reason);
}

static void return_mail(struct act_self *a, struct act_fifo *f)
{
    struct act_worker *w = a->worker;
    for (struct act_node *n; (n = fifo_pop(f));) {
        struct act_msg m = n->msg;
        int from = (int)n->worker;
        node_free(w, n);
        a->waiting--;
        worker_bounce(w, &m, from);
    }
}

/* What the actor still has in outboxes goes out, but is nobody's any more. */
static void disown_outbox(struct act_self *a)
{
    for (int i = 0; a->outbox && i < a->rt->workers; i++)
        for (struct act_node *n = a->worker->out[i]->outbox.head; n; n = n->next)
            if (n->owner == a) {
                n->owner = NULL;
                a->outbox--;
            }
}

/* Whether the policy allows one more restart now; sets the delay. */
static bool may_restart(struct act_self *a, int64_t *delay)
{
    if (a->spec.policy != ACT_POLICY_RESTART)
        return false;
    int64_t now = a->worker->now;
    if (a->restarts == 0 || now - a->window_start > a->spec.restart_window_ns) {
        a->window_start = now;
        a->restarts = 0;
    }
    if (a->restarts >= a->spec.restarts)
        return false;
    *delay = a->spec.restart_delay_ns;
    for (int i = 0; i < a->restarts && *delay < a->spec.restart_window_ns; i++)
        *delay *= 2;
    a->restarts++;
    return true;
}

static void escalated(struct act_self *a, struct act_addr who, int reason)
{
    COUNT_ADD(a->worker->count.escalations, 1);
    act_log_write(a->rt->config.log, ACT_LOG_ERROR, a->spec.behaviour->name, 0, "failed and nobody supervises it: %s",
                  strerror(-reason));
    if (a->rt->config.escalated)
        a->rt->config.escalated(a->rt->config.escalated_ctx, who, reason);
}

void actor_end(struct act_self *a, int reason, bool restart)
{
    struct act_worker *w = a->worker;
    struct act_addr who = actor_addr(a);
    bool failed = reason < 0 && restart;
    int64_t delay = 0;
    if (failed) {
        COUNT_ADD(w->count.failures, 1);
        act_log_write(a->rt->config.log, ACT_LOG_WARNING, a->spec.behaviour->name, 0, "failed: %s", strerror(-reason));
    }
    bool back = failed && reason != -ESHUTDOWN && reason != -EOWNERDEAD && may_restart(a, &delay);
    bool escalate = failed && !back && reason != -EOWNERDEAD && a->spec.policy != ACT_POLICY_STOP;
    if (a->begun && a->spec.behaviour->stop)
        a->spec.behaviour->stop(a, a->memory, reason);
    while (a->timers)
        act_timer_cancel(a, a->timers);
    while (a->due)
        act_timer_cancel(a, a->due);
    if (a->state == ACTOR_ALIVE)
        show(a, false);
    /* From here on the generation is dead: what still arrives goes back. */
    a->state = ACTOR_FREE;
    break_promises(a);
    return_mail(a, &a->control);
    return_mail(a, &a->mail);
    /* Relaxed: one writer; see COUNT_ADD. */
    atomic_store_explicit(&a->shown_waiting, 0, memory_order_relaxed);
    disown_outbox(a);
    atomic_store_explicit(&a->shown_outbox, 0, memory_order_relaxed);
    a->send_wanted = a->request_wanted = a->room_given = 0;
    a->waiting = a->outbox = 0;
    a->ending = a->again = false;
    bool told = watch_end(a, reason, !back, escalate);
    free(a->memory);
    a->memory = NULL;
    a->begun = false;
    next_generation(a);
    if (escalate && !told)
        escalated(a, who, reason);
    if (!back) {
        slot_free(a);
        return;
    }
    COUNT_ADD(w->count.restarts, 1);
    a->state = ACTOR_RESTARTING;
    if (delay > 0)
        act_timer_at(a, &a->restart, w->now + delay, 0);
    else
        actor_restart(a);
}

void actor_restart(struct act_self *a)
{
    int rc = begin(a);
    if (rc != 0)
        actor_fail_later(a, rc); /* counts as one more failure */
}

/* ---- what an actor asks and says about itself ------------------------------------------------ */

void act_yield(struct act_self *self)
{
    self->again = true;
    worker_ready(self);
}

struct act_addr act_current(const struct act_runtime *rt, struct act_addr who)
{
    if (act_addr_is_nobody(who) || who.peer || who.index >= rt->indices)
        return ACT_NOBODY;
    struct act_worker *w = &rt->worker[rt->worker_of[who.index]];
    struct act_self *a = &w->actors[who.index - w->first_index];
    /* Acquire: partner is show(). Relaxed: partner is actor_spawn; a newer one than belongs to `live` says the same as
     * the end that came between them. */
    uint32_t live = atomic_load_explicit(&a->live, memory_order_acquire);
    uint32_t first = atomic_load_explicit(&a->first, memory_order_relaxed);
    return live && who.generation - first <= live - first
               ? (struct act_addr){.generation = live, .peer = 0, .index = who.index}
               : ACT_NOBODY;
}

struct act_addr act_self_addr(const struct act_self *self)
{
    return actor_addr(self);
}

struct act_runtime *act_self_runtime(const struct act_self *self)
{
    return self->rt;
}

int act_self_worker(const struct act_self *self)
{
    return self->worker->index;
}

void *act_self_state(const struct act_self *self)
{
    return self->memory;
}

struct event_base *act_self_event_base(const struct act_self *self)
{
    struct act_worker *w = self->worker;
    return w->source ? w->source_ops->event_base(w->source) : NULL;
}

int act_look_at(struct act_self *self, const struct act_looked_at *what)
{
    struct act_worker *w = self->worker;
    if (what && w->looked.look)
        return -EBUSY;
    if (!act_self_event_base(self))
        return -ENOTSUP;
    w->looked = what ? *what : (struct act_looked_at){0};
    if (w->rt->crowded)
        w->looked.spin_ns = 0;
    w->look_ns = w->looked.spin_ns;
    return 0;
}

int64_t act_now(struct act_self *self)
{
    return self->rt->world->now(self->rt->world_ctx);
}

int64_t act_wall(struct act_self *self)
{
    return self->rt->world->wall(self->rt->world_ctx);
}

/* xoroshiro128+; the seed comes from the seam. */
uint64_t act_random(struct act_self *self)
{
    uint64_t *s = self->worker->random, a = s[0], b = s[1], sum = a + b;
    b ^= a;
    s[0] = (a << 24 | a >> 40) ^ b ^ b << 16;
    s[1] = b << 37 | b >> 27;
    return sum;
}

void act_busy(struct act_self *self, int64_t ns)
{
    if (ns > 0)
        self->rt->world->busy(self->rt->world_ctx, self->worker->index, ns);
}

void act_working(struct act_self *self, bool working)
{
    /* Relaxed: for health only; partner: stats.c. The time first, so that a reader sees no old age. */
    if (working && !atomic_load_explicit(&self->working, memory_order_relaxed))
        act_progress(self);
    atomic_store_explicit(&self->working, working, memory_order_relaxed);
}

void act_progress(struct act_self *self)
{
    /* Relaxed: for health only; partner: stats.c. */
    atomic_store_explicit(&self->progress_at, act_now(self), memory_order_relaxed);
}
