/* Messages between workers: lanes, their accounts of room, outboxes, wake-ups, and the sending functions of runtime.h.
 */
#include "actors/runtime/internal.h"

#include <errno.h>
#include <stdlib.h>

/* ---- nodes ----------------------------------------------------------------------------------- */

enum {
    SLAB_NODES = 128,
    SHOW_EVERY = 16, /* messages that a call may send to a worker before it sees them */
};

struct act_slab {
    struct act_slab *next;
    struct act_node node[SLAB_NODES];
};

struct act_node *node_new(struct act_worker *w)
{
    if (!w->free_nodes) {
        struct act_slab *s = malloc(sizeof *s);
        if (!s)
            return NULL;
        s->next = w->slabs;
        w->slabs = s;
        for (int i = 0; i < SLAB_NODES; i++)
            node_free(w, &s->node[i]);
    }
    struct act_node *n = w->free_nodes;
    w->free_nodes = n->next;
    n->next = NULL;
    n->owner = NULL;
    return n;
}

void node_free(struct act_worker *w, struct act_node *n)
{
    n->next = w->free_nodes;
    w->free_nodes = n;
}

void nodes_destroy(struct act_worker *w)
{
    while (w->slabs) {
        struct act_slab *s = w->slabs;
        w->slabs = s->next;
        free(s);
    }
    w->free_nodes = NULL;
}

void fifo_push(struct act_fifo *f, struct act_node *n)
{
    n->next = NULL;
    if (f->tail)
        f->tail->next = n;
    else
        f->head = n;
    f->tail = n;
}

struct act_node *fifo_pop(struct act_fifo *f)
{
    struct act_node *n = f->head;
    if (n) {
        f->head = n->next;
        if (!f->head)
            f->tail = NULL;
    }
    return n;
}

/* ---- lanes ----------------------------------------------------------------------------------- */

int lane_init(struct act_lane *l, int from, int to, int64_t sent, int64_t requests, int64_t back_sent,
              int64_t back_requests)
{
    l->from = from;
    l->take_from = (uint32_t)from;
    l->to = to;
    l->limit_sent = sent;
    l->limit_requests = requests;
    if (from == to)
        return 0;
    /* One slot of a ck_ring stays empty. */
    size_t need = (size_t)(sent + requests + back_sent + back_requests) + 1, size = 4;
    while (size < need)
        size *= 2;
    l->put_slots = l->take_slots = aligned_alloc(64, size * sizeof *l->put_slots);
    if (!l->put_slots)
        return -ENOMEM;
    ck_ring_init(&l->ring, (unsigned)size);
    return 0;
}

void lane_destroy(struct act_lane *l)
{
    unsigned head, count = l->take_slots ? act_ring_look(&l->ring, &head) : 0;
    for (unsigned i = 0; i < count; i++)
        act_msg_drop(&l->take_slots[(head + i) & l->ring.mask]);
    free(l->take_slots);
    for (struct act_node *n; (n = fifo_pop(&l->outbox));)
        act_msg_drop(&n->msg); /* the node belongs to a slab */
}

static bool has_room(struct act_lane *l, bool request)
{
    if (l->sent - l->sent_back - l->sent_taken >= l->limit_sent)
        /* Seq_cst: must not be older than a flag `starved` that this worker set before; partner: worker_publish, which
         * writes the count first and looks at the flag then. */
        l->sent_taken = atomic_load_explicit(&l->consumer_sent, memory_order_seq_cst);
    if (l->sent - l->sent_back - l->sent_taken >= l->limit_sent)
        return false;
    if (!request)
        return true;
    if (l->requests >= l->limit_requests) {
        /* As above. */
        int64_t taken = atomic_load_explicit(&l->consumer_requests, memory_order_seq_cst);
        l->requests -= taken - l->requests_taken;
        l->requests_taken = taken;
    }
    return l->requests < l->limit_requests;
}

static void use_room(struct act_lane *l, bool request)
{
    l->sent++;
    l->requests += request;
}

void worker_put(struct act_worker *w, int to, const struct act_msg *m)
{
    struct act_lane *l = w->out[to];
    COUNT_ADD(w->count.sent, 1);
    if (l->put_slots) {
        w->touched |= UINT64_C(1) << to;
        if (act_ring_put(&l->ring, l->put_slots, m, &l->producer)) {
            if (++l->hidden == SHOW_EVERY) {
                act_ring_show(&l->ring, &l->producer);
                l->hidden = 0;
            }
            return;
        }
    }
    struct act_node *n = l->put_slots ? NULL : node_new(w);
    if (n) {
        n->msg = *m;
        n->worker = (uint32_t)w->index;
        worker_deliver(w, n);
        return;
    }
    /* No memory for a message within this worker (a lane always has the slot): it is lost, its room is not. */
    struct act_msg lost = *m;
    act_log_write(w->rt->config.log, ACT_LOG_ERROR, w->config.name, m->request, "no memory for a message of type %s",
                  act_type_name(m->type));
    worker_release(w, &lost, w->index);
    if ((lost.flags & (ACT_MSG_WANTS_REPLY | ACT_MSG_RETURNED)) == ACT_MSG_WANTS_REPLY)
        l->requests--;
    act_msg_drop(&lost);
}

void worker_release(struct act_worker *w, const struct act_msg *m, int from)
{
    unsigned f = m->flags;
    if (f & (ACT_MSG_CONTROL | ACT_MSG_COPY))
        return;
    struct act_lane *in = w->in[from], *out = w->out[from];
    switch (f & (ACT_MSG_RETURNED | ACT_MSG_REPLY | ACT_MSG_WANTS_REPLY)) {
    case ACT_MSG_REPLY:
    case ACT_MSG_RETURNED | ACT_MSG_WANTS_REPLY:
        out->requests--; /* this worker's request has its end */
        return;
    case ACT_MSG_RETURNED:
        out->sent_back++; /* this worker's message came back */
        return;
    case ACT_MSG_RETURNED | ACT_MSG_REPLY:
        in->taken_requests++; /* this worker's reply came back: now the requester's room is free */
        break;
    default:
        in->taken_sent++;
    }
    w->taken |= UINT64_C(1) << from;
}

void worker_publish(struct act_worker *w, bool sure)
{
    /* Lanes that were written without being sure are looked at again and again, until a sure look. */
    uint64_t fresh = w->taken, lanes = w->taken | w->told;
    w->taken = 0;
    w->told = sure ? 0 : lanes;
    for (; lanes; lanes &= lanes - 1) {
        int from = __builtin_ctzll(lanes);
        struct act_lane *l = w->in[from];
        bool waits;
        if (sure) {
            /* Seq_cst: first the counts, then the look at the flag, so that either the producer sees the room or this
             * worker sees that somebody waits for it. Partner: has_room and want_room. */
            atomic_store_explicit(&l->consumer_sent, l->taken_sent, memory_order_seq_cst);
            atomic_store_explicit(&l->consumer_requests, l->taken_requests, memory_order_seq_cst);
            waits = atomic_load_explicit(&l->starved, memory_order_seq_cst) != 0;
        } else {
            /* Release: what was read of the messages comes before. Relaxed: a hint, see above. Partner: has_room. */
            if (fresh >> from & 1) {
                atomic_store_explicit(&l->consumer_sent, l->taken_sent, memory_order_release);
                atomic_store_explicit(&l->consumer_requests, l->taken_requests, memory_order_release);
            }
            waits = atomic_load_explicit(&l->starved, memory_order_relaxed) != 0;
        }
        if (waits && atomic_exchange_explicit(&l->starved, 0, memory_order_seq_cst))
            worker_wake(&w->rt->worker[from]);
    }
}

/* Somebody on w waits for room in l. */
static void want_room(struct act_worker *w, struct act_lane *l)
{
    w->starved |= UINT64_C(1) << l->to;
    /* Seq_cst: before the next look at the counts. Partner: worker_publish. */
    atomic_store_explicit(&l->starved, 1, memory_order_seq_cst);
}

static bool is_request(const struct act_node *n)
{
    return (n->msg.flags & ACT_MSG_WANTS_REPLY) != 0;
}

/* Moves what fits from the outbox into the lane. */
static bool move_outbox(struct act_worker *w, struct act_lane *l)
{
    bool moved = false;
    for (struct act_node *n; (n = l->outbox.head) && has_room(l, is_request(n)); moved = true) {
        fifo_pop(&l->outbox);
        if (n->owner) {
            n->owner->outbox--;
            COUNT_ADD(n->owner->shown_outbox, -1);
        }
        use_room(l, is_request(n));
        struct act_msg m = n->msg;
        node_free(w, n);
        worker_put(w, l->to, &m);
    }
    return moved;
}

/* Tells the actors that were refused and would not be refused now. Returns whether some still wait. */
static bool tell_room(struct act_worker *w, struct act_lane *l, bool *told)
{
    uint64_t bit = UINT64_C(1) << l->to;
    bool for_send = has_room(l, false), for_request = has_room(l, true), left = false;
    for (int i = 0; i < w->actor_count; i++) {
        struct act_self *a = &w->actors[i];
        if (a->state != ACTOR_ALIVE || !((a->send_wanted | a->request_wanted) & bit))
            continue;
        if (((a->send_wanted & bit) && for_send) || ((a->request_wanted & bit) && for_request)) {
            a->send_wanted &= ~bit;
            a->request_wanted &= ~bit;
            a->room_given |= bit;
            *told = true;
            worker_ready(a);
        } else {
            left = true;
        }
    }
    return left;
}

bool worker_room(struct act_worker *w, bool look_only)
{
    bool moved = false;
    for (uint64_t rest = w->starved; rest; rest &= rest - 1) {
        struct act_lane *l = w->out[__builtin_ctzll(rest)];
        /* The flag may have been taken back for room of the kind that nobody waits for: set it before looking. */
        want_room(w, l);
        bool room = l->outbox.head ? has_room(l, is_request(l->outbox.head)) : has_room(l, !l->send_wanted);
        if (!room)
            continue;
        if (look_only)
            return true;
        moved |= move_outbox(w, l);
        if (l->outbox.head)
            continue;
        l->send_wanted = false;
        if (!tell_room(w, l, &moved))
            w->starved &= ~(UINT64_C(1) << l->to);
    }
    return moved;
}

int lane_drain(struct act_worker *w, struct act_lane *l, int max)
{
    unsigned head, there = act_ring_look(&l->ring, &head);
    int count = 0;
    for (max = (unsigned)max < there ? max : (int)there; count < max; count++, head++) {
        struct act_node *n = node_new(w);
        if (!n)
            break; /* the messages stay where they are until there is memory */
        n->msg = l->take_slots[head & l->ring.mask];
        n->worker = l->take_from;
        if (l->hold && sim_hold(w, l, n))
            continue;
        worker_deliver(w, n);
    }
    /* Delivering may put a return into the lane back, never into this one, so this may come last. */
    if (count)
        act_ring_taken(&l->ring, head);
    return count;
}

void worker_deliver(struct act_worker *w, struct act_node *n)
{
    struct act_self *a = actor_find(w, n->msg.dst);
    if (!a) {
        struct act_msg m = n->msg;
        int from = (int)n->worker;
        node_free(w, n);
        worker_bounce(w, &m, from);
        return;
    }
    fifo_push(&a->mail, n);
    a->waiting++;
    COUNT_ADD(a->shown_waiting, 1);
    worker_ready(a);
}

void worker_bounce(struct act_worker *w, struct act_msg *m, int from)
{
    if ((m->flags & (ACT_MSG_RETURNED | ACT_MSG_CONTROL | ACT_MSG_COPY)) || act_addr_is_nobody(m->src)) {
        worker_release(w, m, from);
        act_msg_drop(m);
        return;
    }
    COUNT_ADD(w->count.returned, 1);
    /* A request gives its place among the sends back at once and comes back in the room of its reply. */
    if (m->flags & ACT_MSG_WANTS_REPLY) {
        w->in[from]->taken_sent++;
        w->taken |= UINT64_C(1) << from;
    }
    struct act_msg r = *m;
    r.returned = m->type;
    r.type = ACT_UNDELIVERABLE;
    r.flags |= ACT_MSG_RETURNED;
    r.src = m->dst;
    r.dst = m->src;
    m->buf = NULL;
    worker_put(w, from, &r);
}

/* ---- waking ---------------------------------------------------------------------------------- */

void worker_wake(struct act_worker *w)
{
    /* Seq_cst: after what there is to see was written. Partner: sleep_until, which sets the flag first and looks then.
     */
    if (atomic_load_explicit(&w->sleeping, memory_order_seq_cst) &&
        atomic_exchange_explicit(&w->sleeping, 0, memory_order_seq_cst))
        w->source_ops->wake(w->source);
}

void worker_flush(struct act_worker *w)
{
    if (!w->touched)
        return;
    for (uint64_t left = w->touched; left; left &= left - 1) {
        struct act_lane *l = w->out[__builtin_ctzll(left)];
        if (l->hidden)
            act_ring_show(&l->ring, &l->producer);
        l->hidden = 0;
    }
    /* The messages in the rings come before the looks at `sleeping`. Rings are written by ck, so the fence is ck's.
     * Partner: sleep_until, which has the same fence between the flag and its look at the rings. */
    ck_pr_fence_memory();
    for (; w->touched; w->touched &= w->touched - 1) {
        struct act_worker *other = &w->rt->worker[__builtin_ctzll(w->touched)];
        /* Relaxed: ordered by the fence. */
        if (atomic_load_explicit(&other->sleeping, memory_order_relaxed)) {
            COUNT_ADD(w->count.wakes, 1);
            worker_wake(other);
        }
    }
}

void worker_control(struct act_worker *w, struct act_ctl *c)
{
    /* Relaxed: the exchange below checks it. */
    struct act_ctl *head = atomic_load_explicit(&w->control, memory_order_relaxed);
    do
        c->next = head;
    /* Seq_cst (release for *c): partner is worker_take_control, and worker_has_input before sleep. */
    while (!atomic_compare_exchange_weak_explicit(&w->control, &head, c, memory_order_seq_cst, memory_order_relaxed));
    worker_wake(w);
}

/* ---- sending --------------------------------------------------------------------------------- */

static int refuse(struct act_self *self, const struct act_msg *m, const char *what)
{
    act_log_write(self->rt->config.log, ACT_LOG_ERROR, self->spec.behaviour->name, m->request,
                  "a message of type %s was not sent: %s", act_type_name(m->type), what);
    return -EINVAL;
}

static int send(struct act_self *self, struct act_msg *m, struct act_addr src, unsigned flags, uint16_t call)
{
    struct act_worker *w = self->worker;
    const char *wrong = m->type == ACT_UNDELIVERABLE ? "it is the runtime's" : act_msg_check(m);
    if (wrong)
        return refuse(self, m, wrong);
    bool request = (flags & ACT_MSG_WANTS_REPLY) != 0;
    int to = actor_worker(self->rt, m->dst);
    if (to < 0)
        to = w->index; /* nobody is there: it comes back from here */
    struct act_lane *l = w->out[to];
    struct act_msg out = *m;
    out.src = src;
    out.promise = request ? call : 0;
    out.flags = (uint16_t)((m->flags & ~(ACT_MSG_USER - 1u)) | flags);
    if (l->outbox.head || !has_room(l, request)) {
        want_room(w, l);
        struct act_node *n = self->outbox < self->spec.outbox ? node_new(w) : NULL;
        if (!n) {
            if (has_room(l, false) && !l->outbox.head) {
                self->request_wanted |= UINT64_C(1) << to;
            } else {
                self->send_wanted |= UINT64_C(1) << to;
                l->send_wanted = true;
            }
            COUNT_ADD(w->count.refused, 1);
            return -EAGAIN;
        }
        n->msg = out;
        n->owner = self;
        fifo_push(&l->outbox, n);
        self->outbox++;
        COUNT_ADD(self->shown_outbox, 1);
    } else {
        use_room(l, request);
        worker_put(w, to, &out);
    }
    m->src = src;
    m->buf = NULL;
    return 0;
}

int act_send(struct act_self *self, struct act_msg *m)
{
    return send(self, m, actor_addr(self), 0, 0);
}

int act_request(struct act_self *self, struct act_msg *m)
{
    return send(self, m, actor_addr(self), ACT_MSG_WANTS_REPLY, 0);
}

int act_forward(struct act_self *self, struct act_msg *m)
{
    return send(self, m, m->src, m->flags & ACT_MSG_WANTS_REPLY, m->promise);
}

/* The entry of a promise, or NULL. */
static struct act_owed *find_owed(struct act_self *self, const struct act_promise *p)
{
    if (p->number == 0 || p->number > self->owed_size)
        return NULL;
    struct act_owed *o = &self->owed[p->number - 1];
    return o->used && act_addr_equal(o->to, p->to) && o->request == p->request ? o : NULL;
}

static void settle(struct act_self *self, struct act_owed *o)
{
    o->used = false;
    o->next_free = self->owed_free;
    self->owed_free = (uint16_t)(o - self->owed + 1);
}

static int reply(struct act_self *self, struct act_promise *p, struct act_msg *m, struct act_addr src)
{
    struct act_owed *o = find_owed(self, p);
    if (!o)
        return -ENOENT;
    const char *wrong = m->type == ACT_UNDELIVERABLE ? "it is the runtime's" : act_msg_check(m);
    if (wrong)
        return refuse(self, m, wrong);
    m->src = src;
    m->dst = o->to;
    m->request = o->request;
    m->attempt = o->attempt;
    m->promise = o->call;
    m->flags = (uint16_t)((m->flags & ~(ACT_MSG_USER - 1u)) | ACT_MSG_REPLY);
    int to = o->worker;
    settle(self, o);
    p->number = 0;
    worker_put(self->worker, to, m);
    m->buf = NULL;
    return 0;
}

int act_reply(struct act_self *self, struct act_promise *p, struct act_msg *m)
{
    return reply(self, p, m, actor_addr(self));
}

int act_forward_reply(struct act_self *self, struct act_promise *p, struct act_msg *m)
{
    return reply(self, p, m, m->src);
}

void act_return(struct act_self *self, struct act_msg *m)
{
    struct act_promise p = act_promise_of(m);
    struct act_owed *o = find_owed(self, &p);
    if (!o) {
        /* The room of a message without promise was given back when it was delivered, so its return takes the way of a
         * new message that needs none: the control list. */
        struct act_ctl *c = act_addr_is_nobody(m->src) || (m->flags & (ACT_MSG_RETURNED | ACT_MSG_CONTROL))
                                ? NULL
                                : calloc(1, sizeof *c);
        int to = actor_worker(self->rt, m->src);
        if (!c || to < 0) {
            free(c);
            act_msg_drop(m);
            return;
        }
        c->kind = CTL_MESSAGE;
        c->msg = *m;
        c->msg.returned = m->type;
        c->msg.type = ACT_UNDELIVERABLE;
        c->msg.flags = (uint16_t)((m->flags & ~(ACT_MSG_USER - 1u)) | ACT_MSG_RETURNED | ACT_MSG_CONTROL);
        c->msg.src = m->dst;
        c->msg.dst = m->src;
        m->buf = NULL;
        COUNT_ADD(self->worker->count.returned, 1);
        worker_control(&self->rt->worker[to], c);
        return;
    }
    struct act_msg r = *m;
    int to = o->worker;
    settle(self, o);
    r.returned = m->type;
    r.type = ACT_UNDELIVERABLE;
    r.flags |= ACT_MSG_RETURNED;
    r.src = m->dst;
    r.dst = m->src;
    m->buf = NULL;
    m->flags &= (uint16_t)~ACT_MSG_WANTS_REPLY;
    COUNT_ADD(self->worker->count.returned, 1);
    worker_put(self->worker, to, &r);
}

int act_cancel(struct act_self *self, struct act_addr dst, uint64_t request, uint16_t attempt, int reason)
{
    int to = actor_worker(self->rt, dst);
    if (to < 0)
        return 0; /* nobody is there who holds anything */
    struct act_ctl *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    c->kind = CTL_MESSAGE;
    c->msg = act_msg_make(ACT_CANCEL, dst);
    c->msg.flags = ACT_MSG_CONTROL;
    c->msg.src = actor_addr(self);
    c->msg.request = request;
    c->msg.attempt = attempt;
    act_p_cancel(&c->msg)->reason = reason;
    worker_control(&self->rt->worker[to], c);
    return 0;
}

int act_exit(struct act_self *self, struct act_addr who, int reason)
{
    int to = who.peer == 0 ? actor_worker(self->rt, who) : -1;
    if (to < 0)
        return 0;
    struct act_ctl *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    c->kind = CTL_EXIT;
    c->msg = act_msg_make(ACT_EXIT, who);
    act_p_exit(&c->msg)->reason = reason;
    worker_control(&self->rt->worker[to], c);
    return 0;
}

void act_flush(struct act_self *self)
{
    worker_flush(self->worker);
}

int act_outbox(const struct act_self *self)
{
    return self->outbox;
}
