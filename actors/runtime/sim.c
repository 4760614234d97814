/* Implementation of sim.h: a loop over the workers of all nodes that takes one small action at a time, chosen by the
 * seed. Everything below the loop (lanes, room, mailboxes, timers, supervision) is the code of the threaded runtime. */
#include "actors/runtime/sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/runtime/internal.h"

enum { NODES_MAX = 64, DRAIN_MOST = 8, MILLION = 1000000 };

enum action_kind { DO_CONTROL, DO_LANE, DO_HELD, DO_TIMERS, DO_ROOM, DO_RUN, DO_EVENT };

struct action {
    struct act_worker *worker;
    int node, from;
    enum action_kind kind;
};

struct held {
    struct held *next;
    int64_t due;
    uint64_t sequence;
    struct act_msg msg;
    int from;
};

/* What an unreliable link does; hangs on its lane. */
struct sim_hold {
    struct act_sim *sim;
    bool active;
    struct act_sim_fault fault;
    struct held *first;    /* in order of due, then sequence */
    struct sim_hold *next; /* of the simulation */
};

struct event_at {
    struct event_at *next;
    int64_t at;
    void (*fn)(void *ctx);
    void *ctx;
};

struct node {
    struct act_sim *sim;
    struct act_runtime *rt;
};

struct act_sim {
    struct act_sim_config config;
    uint64_t random; /* splitmix64 */
    int64_t now;
    uint64_t trace, sequence;
    struct node node[NODES_MAX];
    int nodes;
    struct sim_hold *holds;
    struct event_at *events;
    struct action *action;
    size_t action_size;
};

uint64_t act_sim_random(struct act_sim *sim)
{
    uint64_t z = sim->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint64_t below(struct act_sim *sim, uint64_t n)
{
    return n > 1 ? act_sim_random(sim) % n : 0;
}

static void mix(struct act_sim *sim, uint64_t v)
{
    uint64_t h = (sim->trace ^ v) * UINT64_C(0x9e3779b97f4a7c15);
    sim->trace = h ^ h >> 29;
}

/* ---- the simulated world --------------------------------------------------------------------- */

static int64_t world_now(void *ctx)
{
    return ((struct node *)ctx)->sim->now;
}

static uint64_t world_random(void *ctx)
{
    return act_sim_random(((struct node *)ctx)->sim);
}

static int64_t world_job_run(void *ctx, struct act_job *job)
{
    const struct act_sim_config *c = &((struct node *)ctx)->sim->config;
    job->status = job->run(job);
    return c->job_cost ? c->job_cost(c->job_ctx, job) : job->cost_ns;
}

static void world_busy(void *ctx, int worker, int64_t ns)
{
    const struct node *n = ctx;
    struct act_worker *w = &n->rt->worker[worker];
    if (w->busy_until < n->sim->now)
        w->busy_until = n->sim->now;
    w->busy_until += ns;
}

/* The wall clock is the virtual one: it starts in 1970. */
static const struct act_world_ops world = {
    .now = world_now,
    .wall = world_now,
    .random = world_random,
    .job_run = world_job_run,
    .busy = world_busy,
};

/* ---- the trace ------------------------------------------------------------------------------- */

static void trace_message(struct act_sim *sim, const struct act_msg *m)
{
    mix(sim, (uint64_t)m->type << 48 | (uint64_t)m->flags << 32 | (uint64_t)m->attempt << 16 | m->promise);
    mix(sim, act_addr_number(m->src));
    mix(sim, m->request);
    mix(sim, m->buf ? m->buf->size + 1 : 0);
    unsigned type = m->type == ACT_UNDELIVERABLE ? m->returned : m->type;
    if (type == ACT_JOB || type == ACT_JOB_DONE || type == ACT_HANDOFF)
        return; /* the payload is an address */
    uint64_t words[2];
    memcpy(words, m->data, sizeof words);
    mix(sim, words[0]);
    mix(sim, words[1]);
}

static void on_batch(void *ctx, struct act_self *a, const struct act_msg *m, int count)
{
    struct node *n = ctx;
    struct act_sim *sim = n->sim;
    mix(sim, act_addr_number(actor_addr(a)));
    mix(sim, (uint64_t)sim->now);
    for (int i = 0; i < count; i++)
        trace_message(sim, &m[i]);
    world_busy(n, a->worker->index, sim->config.call_ns + count * sim->config.message_ns);
    if (!sim->config.trace)
        return;
    fprintf(sim->config.trace, "%lld node %d %s[%u.%u]", (long long)sim->now, (int)(n - sim->node),
            a->spec.behaviour->name, a->index, a->generation);
    for (int i = 0; i < count; i++)
        fprintf(sim->config.trace, " %s%s(%llx)", act_type_name(m[i].type),
                m[i].type == ACT_UNDELIVERABLE ? act_type_name(m[i].returned) : "", (unsigned long long)m[i].request);
    fputc('\n', sim->config.trace);
}

/* ---- links ----------------------------------------------------------------------------------- */

static bool chance(struct act_sim *sim, uint32_t per_million)
{
    return per_million && below(sim, MILLION) < per_million;
}

static bool hold_one(struct sim_hold *h, const struct act_msg *m, int from)
{
    const struct act_sim_fault *f = &h->fault;
    struct held *x = malloc(sizeof *x);
    if (!x)
        return false;
    x->due = h->sim->now + f->delay_min;
    if (f->delay_max > f->delay_min)
        x->due += (int64_t)below(h->sim, (uint64_t)(f->delay_max - f->delay_min) + 1);
    x->sequence = ++h->sim->sequence;
    x->msg = *m;
    x->from = from;
    struct held **at = &h->first;
    while (*at && (*at)->due <= x->due)
        at = &(*at)->next;
    x->next = *at;
    *at = x;
    return true;
}

/* The receiver never gets m; its room is free. */
static void lose(struct act_worker *w, struct act_msg *m, int from)
{
    worker_release(w, m, from);
    if ((m->flags & (ACT_MSG_WANTS_REPLY | ACT_MSG_RETURNED)) == ACT_MSG_WANTS_REPLY)
        w->in[from]->taken_requests++; /* no reply will come */
    act_msg_drop(m);
}

/* A second delivery: with bytes of its own, and without room. */
static void copy(struct sim_hold *h, const struct act_msg *m, int from)
{
    struct act_msg c = *m;
    c.flags = (uint16_t)((c.flags & ~ACT_MSG_WANTS_REPLY) | ACT_MSG_COPY);
    if (m->buf && !(c.buf = act_buf_copy(m->buf->data, m->buf->size)))
        return;
    if (!hold_one(h, &c, from))
        act_msg_drop(&c);
}

bool sim_hold(struct act_worker *w, struct act_lane *l, struct act_node *n)
{
    struct sim_hold *h = l->hold;
    if (!h->active)
        return false;
    int from = (int)n->worker;
    bool faulty = act_type_info(n->msg.type)->scope == ACT_SCOPE_CROSSES && !(n->msg.flags & ACT_MSG_RETURNED);
    if (faulty && chance(h->sim, h->fault.lose)) {
        mix(h->sim, 0x105e);
        struct act_msg m = n->msg;
        node_free(w, n);
        lose(w, &m, from);
        return true;
    }
    if (faulty && chance(h->sim, h->fault.copy)) {
        mix(h->sim, 0xc0b1);
        copy(h, &n->msg, from);
    }
    if (h->fault.delay_max <= 0 || !hold_one(h, &n->msg, from))
        return false;
    node_free(w, n);
    return true;
}

void act_sim_link(struct act_sim *sim, struct act_runtime *rt, int from, int to, const struct act_sim_fault *fault)
{
    struct act_lane *l = &rt->lanes[from * rt->workers + to];
    if (from == to || (!l->hold && !fault))
        return;
    if (!l->hold) {
        l->hold = calloc(1, sizeof *l->hold);
        if (!l->hold)
            return;
        l->hold->sim = sim;
        l->hold->next = sim->holds;
        sim->holds = l->hold;
    }
    l->hold->active = fault != NULL;
    if (fault)
        l->hold->fault = *fault;
}

static void deliver_held(struct act_worker *w, struct sim_hold *h)
{
    struct held *x = h->first;
    struct act_node *n = node_new(w);
    h->first = x->next;
    if (n) {
        n->msg = x->msg;
        n->worker = (uint32_t)x->from;
        worker_deliver(w, n);
    } else {
        lose(w, &x->msg, x->from);
    }
    free(x);
}

/* ---- one step -------------------------------------------------------------------------------- */

static void add_action(struct act_sim *sim, size_t *count, struct action a)
{
    if (*count < sim->action_size)
        sim->action[(*count)++] = a;
}

static size_t worker_actions(struct act_sim *sim, int node, struct act_worker *w, size_t count)
{
    struct action a = {.worker = w, .node = node};
    size_t before = count;
    /* Relaxed: one thread. */
    if (atomic_load_explicit(&w->control, memory_order_relaxed))
        add_action(sim, &count, (a.kind = DO_CONTROL, a));
    for (int i = 0; i < w->rt->workers; i++) {
        struct act_lane *l = w->in[i];
        a.from = i;
        if (l->take_slots && act_ring_any(&l->ring))
            add_action(sim, &count, (a.kind = DO_LANE, a));
        if (l->hold && l->hold->first && l->hold->first->due <= sim->now)
            add_action(sim, &count, (a.kind = DO_HELD, a));
    }
    if (act_wheel_next(&w->wheel) <= sim->now)
        add_action(sim, &count, (a.kind = DO_TIMERS, a));
    if (w->starved && worker_room(w, true))
        add_action(sim, &count, (a.kind = DO_ROOM, a));
    if ((w->run[0].head || w->run[1].head) && (!sim->config.in_turn || count == before))
        add_action(sim, &count, (a.kind = DO_RUN, a));
    return count;
}

/* All that can happen now, in an order that depends on nothing but the program. */
static size_t gather(struct act_sim *sim)
{
    size_t count = 0;
    for (int n = 0; n < sim->nodes; n++)
        for (int i = 0; i < sim->node[n].rt->workers; i++) {
            struct act_worker *w = &sim->node[n].rt->worker[i];
            w->now = sim->now;
            if (w->busy_until <= sim->now)
                count = worker_actions(sim, n, w, count);
        }
    if (sim->events && sim->events->at <= sim->now)
        add_action(sim, &count, (struct action){.kind = DO_EVENT});
    return count;
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* When something can happen next, given that nothing can now. */
static int64_t next_time(const struct act_sim *sim)
{
    int64_t next = sim->events ? sim->events->at : ACT_NEVER;
    for (int n = 0; n < sim->nodes; n++)
        for (int i = 0; i < sim->node[n].rt->workers; i++) {
            struct act_worker *w = &sim->node[n].rt->worker[i];
            int64_t at = act_wheel_next(&w->wheel);
            if (w->busy_until > sim->now && (w->run[0].head || w->run[1].head || w->starved ||
                                             atomic_load_explicit(&w->control, memory_order_relaxed)))
                at = w->busy_until; /* relaxed: one thread */
            for (int j = 0; j < w->rt->workers; j++) {
                const struct act_lane *l = w->in[j];
                if (l->take_slots && w->busy_until > sim->now && act_ring_any(&w->in[j]->ring))
                    at = w->busy_until;
                if (l->hold && l->hold->first && l->hold->first->due < at)
                    at = l->hold->first->due;
            }
            if (at != ACT_NEVER)
                at = later(at, w->busy_until);
            next = at < next ? at : next;
        }
    return next;
}

static void run_event(struct act_sim *sim)
{
    struct event_at *e = sim->events;
    sim->events = e->next;
    mix(sim, (uint64_t)e->at);
    e->fn(e->ctx);
    free(e);
}

static void act(struct act_sim *sim, const struct action *a)
{
    struct act_worker *w = a->worker;
    mix(sim, (uint64_t)a->kind << 32 | (uint64_t)a->node << 16 | (w ? (uint64_t)w->index : 0));
    switch (a->kind) {
    case DO_CONTROL:
        worker_take_control(w);
        break;
    case DO_LANE:
        lane_drain(w, w->in[a->from], 1 + (int)below(sim, DRAIN_MOST));
        break;
    case DO_HELD:
        deliver_held(w, w->in[a->from]->hold);
        break;
    case DO_TIMERS:
        worker_timers(w);
        break;
    case DO_ROOM:
        worker_room(w, false);
        break;
    case DO_RUN: {
        struct act_run_queue *q = worker_queue(w);
        worker_run_actor(w, worker_take(w, q, (int)below(sim, (uint64_t)q->count)));
        break;
    }
    case DO_EVENT:
        run_event(sim);
        return;
    }
    worker_publish(w, true);
    worker_flush(w);
}

static bool step(struct act_sim *sim, int64_t until)
{
    size_t count;
    while (!(count = gather(sim))) {
        int64_t next = next_time(sim);
        if (next == ACT_NEVER || next > until)
            return false;
        sim->now = later(next, sim->now);
    }
    act(sim, &sim->action[below(sim, count)]);
    return true;
}

bool act_sim_step(struct act_sim *sim)
{
    return step(sim, ACT_NEVER);
}

uint64_t act_sim_run(struct act_sim *sim, int64_t until, uint64_t steps)
{
    uint64_t done = 0;
    while (done < steps && step(sim, until))
        done++;
    if (done < steps && until != ACT_NEVER)
        sim->now = later(until, sim->now);
    return done;
}

int64_t act_sim_now(const struct act_sim *sim)
{
    return sim->now;
}

uint64_t act_sim_trace(const struct act_sim *sim)
{
    return sim->trace;
}

int act_sim_at(struct act_sim *sim, int64_t at, void (*fn)(void *ctx), void *ctx)
{
    struct event_at *e = malloc(sizeof *e);
    if (!e)
        return -ENOMEM;
    *e = (struct event_at){.at = at, .fn = fn, .ctx = ctx};
    struct event_at **p = &sim->events;
    while (*p && (*p)->at <= at)
        p = &(*p)->next;
    e->next = *p;
    *p = e;
    return 0;
}

/* ---- making and ending ----------------------------------------------------------------------- */

int act_sim_new(const struct act_sim_config *config, struct act_sim **out, struct cfg_error *err)
{
    *out = NULL;
    struct act_sim *sim = calloc(1, sizeof *sim);
    struct action *first = malloc(sizeof *first); /* for what the world outside does */
    if (!sim || !first) {
        free(sim);
        free(first);
        return cfg_error_set(err, ENOMEM, "no memory for a simulation");
    }
    sim->action = first;
    sim->action_size = 1;
    sim->config = *config;
    sim->config.call_ns = config->call_ns ? config->call_ns : 1000;
    sim->config.message_ns = config->message_ns ? config->message_ns : 100;
    sim->random = config->seed;
    sim->now = 1;
    *out = sim;
    return 0;
}

int act_sim_add(struct act_sim *sim, const struct act_config *config, struct act_runtime **out, struct cfg_error *err)
{
    *out = NULL;
    if (sim->nodes == NODES_MAX)
        return cfg_error_set(err, ENOSPC, "a simulation has at most %d nodes", NODES_MAX);
    struct node *n = &sim->node[sim->nodes];
    n->sim = sim;
    struct act_config c = *config;
    c.world = &world;
    c.world_ctx = n;
    int rc = runtime_make(&c, true, &n->rt, err);
    if (rc != 0)
        return rc;
    size_t actions = sim->action_size + (size_t)c.workers * ((size_t)c.workers * 2 + 4);
    struct action *a = realloc(sim->action, actions * sizeof *a);
    if (!a) {
        act_runtime_free(n->rt);
        return cfg_error_set(err, ENOMEM, "no memory for a simulation");
    }
    sim->action = a;
    sim->action_size = actions;
    n->rt->on_batch = on_batch;
    n->rt->on_batch_ctx = n;
    sim->nodes++;
    *out = n->rt;
    return 0;
}

void act_sim_end(struct act_runtime *rt, int worker, bool back)
{
    for (int i = worker < 0 ? 0 : worker; i <= (worker < 0 ? rt->workers - 1 : worker); i++) {
        struct act_worker *w = &rt->worker[i];
        w->now = rt->world->now(rt->world_ctx);
        for (int k = 0; back && k < w->actor_count; k++)
            if (w->actors[k].state == ACTOR_ALIVE)
                actor_end(&w->actors[k], -EIO, true);
        if (!back)
            worker_end_actors(w, -ESHUTDOWN);
        worker_publish(w, true);
        worker_flush(w);
    }
}

void act_sim_free(struct act_sim *sim)
{
    if (!sim)
        return;
    for (int i = 0; i < sim->nodes; i++)
        runtime_end_actors(sim->node[i].rt, -ESHUTDOWN);
    for (struct sim_hold *h = sim->holds; h;) {
        struct sim_hold *next = h->next;
        for (struct held *x = h->first; x;) {
            struct held *after = x->next;
            act_msg_drop(&x->msg);
            free(x);
            x = after;
        }
        free(h);
        h = next;
    }
    for (int i = 0; i < sim->nodes; i++)
        act_runtime_free(sim->node[i].rt);
    for (struct event_at *e = sim->events; e;) {
        struct event_at *next = e->next;
        free(e);
        e = next;
    }
    free(sim->action);
    free(sim);
}
