/* The simulation: mixed traffic with cancels, failures, and lost, late and doubled messages, over many seeds; replay.
 */
#include <errno.h>

#include "actors/runtime/sim.h"
#include "actors/runtime/stats.h"
#include "tests/harness.h"

enum { MS = 1000000, CLIENTS = 4, EACH = 25, SERVERS = 2, OPEN_MAX = 6, HELD_MAX = 64, SEEDS = 300 };

struct world {
    struct act_addr server[SERVERS], executor;
    int terminal[CLIENTS][EACH]; /* terminal events of each request */
    long finished, cancelled, timed_out, failed, refused, stale, jobs, deaths;
    long held; /* sequences that servers hold */
};

/* ---- the server: takes a request, emits its tokens bit by bit, ends -------------------------- */

struct held {
    bool used;
    struct act_addr to;
    struct act_promise promise;
    uint64_t request;
    uint16_t attempt;
    uint32_t sent, total;
    struct act_buf *prompt;
};

struct server {
    struct world *world;
    struct held held[HELD_MAX];
    struct act_timer tick;
};

static int server_start(struct act_self *self, void *state, const void *arg)
{
    struct server *s = state;
    s->world = *(struct world *const *)arg;
    act_timer_after(self, &s->tick, 1 * MS, 0);
    return 0;
}

static void drop_held(struct server *s, struct held *h)
{
    act_buf_free(h->prompt);
    *h = (struct held){0};
    s->world->held--;
}

/* Tells the requester, if it waits for a reply; the sequence is gone afterwards. */
static void end_held(struct act_self *self, struct server *s, struct held *h, enum act_type type, int status)
{
    struct act_msg r = act_msg_make(type, ACT_NOBODY);
    if (type == ACT_CANCELLED)
        act_p_cancelled(&r)->reason = status;
    else if (type == ACT_FAILED)
        act_p_failed(&r)->status = status;
    else
        act_p_tokens(&r)->finish = 1;
    act_reply(self, &h->promise, &r);
    drop_held(s, h);
}

static void take_prefill(struct act_self *self, struct server *s, struct act_msg *m)
{
    struct act_promise p = act_promise_of(m);
    struct held *h = NULL;
    for (int i = 0; i < HELD_MAX; i++) {
        if (s->held[i].used && s->held[i].request == m->request && act_addr_equal(s->held[i].to, m->src))
            return; /* delivered twice */
        if (!h && !s->held[i].used)
            h = &s->held[i];
    }
    if (!h || !p.number) {
        if (p.number)
            act_return(self, m);
        return;
    }
    *h = (struct held){.used = true,
                       .to = m->src,
                       .promise = p,
                       .request = m->request,
                       .attempt = m->attempt,
                       .total = 1 + (uint32_t)(act_random(self) % 6),
                       .prompt = act_msg_take(m)};
    s->world->held++;
}

static void take_cancel(struct act_self *self, struct server *s, const struct act_msg *m)
{
    for (int i = 0; i < HELD_MAX; i++)
        if (s->held[i].used && s->held[i].request == m->request && act_addr_equal(s->held[i].to, m->src))
            end_held(self, s, &s->held[i], ACT_CANCELLED, -ECANCELED);
}

static void one_step(struct act_self *self, struct server *s)
{
    for (int i = 0; i < HELD_MAX; i++) {
        struct held *h = &s->held[i];
        if (!h->used)
            continue;
        if (h->sent == h->total) {
            end_held(self, s, h, ACT_TOKENS, 0);
            continue;
        }
        struct act_msg t;
        if (act_msg_new(ACT_TOKENS, h->to, 4, &t) != 0)
            continue;
        t.request = h->request;
        t.attempt = h->attempt;
        act_p_tokens(&t)->first = h->sent;
        act_p_tokens(&t)->count = 1;
        if (act_send(self, &t) == 0)
            h->sent++;
        else
            act_msg_drop(&t); /* again with the next step */
    }
    act_busy(self, (int64_t)(act_random(self) % (2 * MS)));
}

static int server_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct server *s = state;
    bool step = false;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_PREFILL)
            take_prefill(self, s, &m[i]);
        else if (m[i].type == ACT_CANCEL)
            take_cancel(self, s, &m[i]);
        else if (m[i].type == ACT_TIMER)
            step = true;
    }
    if (step) {
        one_step(self, s);
        act_timer_after(self, &s->tick, 1 * MS, 0);
        if (act_random(self) % 400 == 0)
            return -EIO;
    }
    return 0;
}

static void server_stop(struct act_self *self, void *state, int reason)
{
    struct server *s = state;
    (void)self;
    (void)reason;
    s->world->deaths++;
    for (int i = 0; i < HELD_MAX; i++)
        if (s->held[i].used)
            drop_held(s, &s->held[i]);
}

static const struct act_behaviour server_behaviour = {.name = "server",
                                                      .state_size = sizeof(struct server),
                                                      .start = server_start,
                                                      .receive = server_receive,
                                                      .stop = server_stop};

/* ---- the client: requests, cancels, deadlines ------------------------------------------------ */

struct open {
    bool used;
    uint64_t request;
    struct act_addr server;
    struct act_timer deadline, cancel;
};

struct client {
    struct world *world;
    int index, next;
    struct open open[OPEN_MAX];
    struct act_timer pause;
    struct act_job job;
    bool job_out;
};

struct client_arg {
    struct world *world;
    int index;
};

static int job_run(struct act_job *job)
{
    (void)job;
    return 0;
}

static int client_start(struct act_self *self, void *state, const void *arg)
{
    struct client *c = state;
    const struct client_arg *a = arg;
    c->world = a->world;
    c->index = a->index;
    c->job = (struct act_job){.run = job_run, .name = "tokenise", .cost_ns = 2 * MS};
    act_yield(self);
    return 0;
}

static struct open *find_open(struct client *c, uint64_t request)
{
    for (int i = 0; i < OPEN_MAX; i++)
        if (c->open[i].used && c->open[i].request == request)
            return &c->open[i];
    return NULL;
}

static void terminal(struct act_self *self, struct client *c, struct open *o, long *what)
{
    c->world->terminal[c->index][o->request % EACH]++;
    ++*what;
    act_timer_cancel(self, &o->deadline);
    act_timer_cancel(self, &o->cancel);
    o->used = false;
}

static void start_one(struct act_self *self, struct client *c, struct open *o)
{
    struct world *w = c->world;
    int which = (int)(act_random(self) % SERVERS);
    struct act_addr to = act_current(act_self_runtime(self), w->server[which]);
    struct act_msg m;
    if (act_msg_new(ACT_PREFILL, act_addr_is_nobody(to) ? w->server[which] : to, 16, &m) != 0)
        return;
    m.request = (uint64_t)(c->index * EACH + c->next);
    if (act_request(self, &m) != 0) {
        act_msg_drop(&m);
        w->refused++;
        return;
    }
    c->next++;
    o->used = true;
    o->request = m.request;
    o->server = m.dst;
    act_timer_after(self, &o->deadline, 60 * MS, 100 + (uint64_t)(o - c->open));
    if (act_random(self) % 3 == 0)
        act_timer_after(self, &o->cancel, (int64_t)(act_random(self) % (8 * MS)), 200 + (uint64_t)(o - c->open));
}

static void take_timer(struct act_self *self, struct client *c, uint64_t tag)
{
    if (tag < 100)
        return;
    struct open *o = &c->open[tag % 100];
    if (!o->used)
        return;
    act_cancel(self, o->server, o->request, 0, -ETIMEDOUT);
    if (tag < 200)
        terminal(self, c, o, &c->world->timed_out);
}

static void take(struct act_self *self, struct client *c, struct act_msg *m)
{
    struct world *w = c->world;
    if (m->type == ACT_TIMER) {
        take_timer(self, c, act_p_timer(m)->tag);
        return;
    }
    if (m->type == ACT_JOB_DONE) {
        c->job_out = act_job_take(m) != &c->job;
        w->jobs++;
        return;
    }
    struct open *o = find_open(c, m->request);
    if (m->type != ACT_TOKENS && m->type != ACT_CANCELLED && m->type != ACT_FAILED && m->type != ACT_UNDELIVERABLE)
        return;
    if (!o)
        w->stale++;
    else if (m->type == ACT_CANCELLED)
        terminal(self, c, o, &w->cancelled);
    else if (m->type == ACT_UNDELIVERABLE)
        terminal(self, c, o, &w->failed);
    else if (m->type == ACT_TOKENS && act_p_tokens(m)->finish)
        terminal(self, c, o, &w->finished);
}

static int client_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct client *c = state;
    for (int i = 0; i < count; i++)
        take(self, c, &m[i]);
    for (int i = 0; i < OPEN_MAX && c->next < EACH; i++)
        if (!c->open[i].used && act_random(self) % 2)
            start_one(self, c, &c->open[i]);
    if (!c->job_out && c->next < EACH && act_job_submit(self, c->world->executor, 1, &c->job) == 0)
        c->job_out = true;
    if (c->next < EACH)
        act_timer_after(self, &c->pause, 1 * MS, 1);
    return 0;
}

static const struct act_behaviour client_behaviour = {
    .name = "client", .state_size = sizeof(struct client), .start = client_start, .receive = client_receive};

/* ---- one run --------------------------------------------------------------------------------- */

enum faults { RELIABLE, FAULTY };

static struct act_addr spawn(struct act_runtime *rt, int worker, const struct act_behaviour *b, const void *arg,
                             enum act_policy policy)
{
    struct act_spawn spec = {
        .behaviour = b, .worker = worker, .arg = arg, .policy = policy, .restarts = 1000, .batch = 4};
    struct act_addr a;
    struct cfg_error err;
    cr_assert_eq(act_runtime_spawn(rt, &spec, &a, &err), 0, "%s", err.msg);
    return a;
}

static uint64_t run(uint64_t seed, enum faults faults, struct world *w)
{
    struct act_sim_config sc = {.seed = seed};
    struct act_config c = {.node = 1, .epoch = 1, .workers = 4, .lane_slots = 6, .reply_slots = 9};
    struct client_arg arg[CLIENTS];
    struct act_sim *sim;
    struct act_runtime *rt;
    struct cfg_error err;
    long before = act_buf_live();
    memset(w, 0, sizeof *w);
    cr_assert_eq(act_sim_new(&sc, &sim, &err), 0, "%s", err.msg);
    cr_assert_eq(act_sim_add(sim, &c, &rt, &err), 0, "%s", err.msg);
    struct act_spawn helper = {.worker = 3};
    cr_assert_eq(act_executor_spawn(rt, &helper, &w->executor, &err), 0, "%s", err.msg);
    for (int i = 0; i < SERVERS; i++)
        w->server[i] = spawn(rt, 1 + i, &server_behaviour, &w, ACT_POLICY_RESTART);
    for (int i = 0; i < CLIENTS; i++) {
        arg[i] = (struct client_arg){w, i};
        spawn(rt, 0, &client_behaviour, &arg[i], ACT_POLICY_STOP);
    }
    struct act_sim_fault f = {.lose = 50000, .copy = 30000, .delay_min = 1000, .delay_max = 4 * MS};
    for (int i = 1; faults == FAULTY && i <= SERVERS; i++) {
        act_sim_link(sim, rt, 0, i, &f);
        act_sim_link(sim, rt, i, 0, &f);
    }
    act_sim_run(sim, 2000 * (int64_t)MS, 300000);
    uint64_t trace = act_sim_trace(sim);
    for (int i = 0; i < CLIENTS; i++)
        for (int j = 0; j < EACH; j++)
            cr_assert_eq(w->terminal[i][j], 1, "seed %llu: request %d of client %d ended %d times",
                         (unsigned long long)seed, j, i, w->terminal[i][j]);
    cr_assert_eq(w->held, 0, "seed %llu: servers hold %ld sequences", (unsigned long long)seed, w->held);
    for (int i = 0; i < c.workers; i++)
        for (int j = 0; j < c.workers; j++) {
            int messages, requests;
            act_stats_lane(rt, i, j, &messages, &requests);
            cr_assert(messages == 0 && requests == 0, "seed %llu: lane %d -> %d lost room for %d messages, %d requests",
                      (unsigned long long)seed, i, j, messages, requests);
        }
    act_sim_free(sim);
    cr_assert_eq(act_buf_live(), before, "seed %llu: %ld buffers leaked", (unsigned long long)seed,
                 act_buf_live() - before);
    return trace;
}

Test(sim, every_request_ends_once_whatever_the_seed)
{
    static uint64_t trace[2 * SEEDS];
    struct world w, sum = {0};
    for (int i = 0; i < 2 * SEEDS; i++) {
        trace[i] = run((uint64_t)(i / 2) + 1, i % 2 ? FAULTY : RELIABLE, &w);
        sum.finished += w.finished;
        sum.cancelled += w.cancelled;
        sum.timed_out += w.timed_out;
        sum.failed += w.failed;
        sum.refused += w.refused;
        sum.stale += w.stale;
        sum.jobs += w.jobs;
        sum.deaths += w.deaths - SERVERS;
        cr_expect(i % 2 || w.timed_out == 0, "seed %d: a reliable link made a request time out", i / 2 + 1);
        for (int j = 0; j < i; j++)
            cr_assert_neq(trace[i], trace[j], "two runs are the same");
    }
    cr_log_info("finished %ld, cancelled %ld, timed out %ld, failed %ld, refused %ld, stale %ld, jobs %ld, deaths %ld",
                sum.finished, sum.cancelled, sum.timed_out, sum.failed, sum.refused, sum.stale, sum.jobs, sum.deaths);
    cr_expect(sum.finished > 20000 && sum.cancelled > 1000 && sum.timed_out > 1000 && sum.failed > 100 &&
                  sum.refused > 1000 && sum.stale > 1000 && sum.jobs > 1000 && sum.deaths > 100,
              "the traffic does not exercise everything");
}

Test(sim, a_seed_replays_exactly)
{
    struct world w;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        uint64_t a = run(seed, FAULTY, &w);
        void *shift = malloc(seed * 1000); /* other addresses */
        uint64_t b = run(seed, FAULTY, &w), c = run(seed + 1000, FAULTY, &w);
        free(shift);
        cr_expect_eq(a, b, "seed %d", (int)seed);
        cr_expect_neq(a, c, "seed %d", (int)seed);
    }
}

/* ---- the clock ------------------------------------------------------------------------------- */

static void note(void *ctx)
{
    (*(int *)ctx)++;
}

Test(sim, time_jumps_to_what_comes_next)
{
    struct act_sim_config sc = {.seed = 1};
    struct act_sim *sim;
    struct cfg_error err;
    int seen = 0;
    cr_assert_eq(act_sim_new(&sc, &sim, &err), 0);
    cr_assert_not(act_sim_step(sim), "nothing can happen");
    cr_assert_eq(act_sim_at(sim, INT64_C(3600) * 1000 * MS, note, &seen), 0);
    cr_assert_eq(act_sim_at(sim, 5, note, &seen), 0);
    cr_assert_eq(act_sim_run(sim, 10, 100), 1);
    cr_assert_eq(seen, 1);
    cr_assert_eq(act_sim_now(sim), 10);
    cr_assert(act_sim_step(sim));
    cr_assert_eq(seen, 2);
    cr_assert_eq(act_sim_now(sim), INT64_C(3600) * 1000 * MS);
    act_sim_free(sim);
}
