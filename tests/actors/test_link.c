/* The link between nodes: two runtimes in one simulation over inproc, and two with threads over TCP. */
#include "tests/harness.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "actors/link.h"
#include "actors/link_impl.h"
#include "actors/runtime/peers.h"
#include "actors/runtime/sim.h"
#include "actors/runtime/stats.h"
#include "transport/inproc.h"
#include "transport/tcp.h"

enum { MS = 1000000, WINDOW = 1 << 16, WINDOW_ID = 5 };
#define A_REQUEST_KEEPS UINT64_C(1000000) /* request ids from here on are kept by the server without an answer */

/* ---- a server: answers PING with PONG and the same buffer; keeps some, which it answers on DRAINED, the first one
 * with nonsense; ends on DRAIN ---------------------------------------------------------------------------------- */

enum { FIND_UNANSWERABLE = 77 }; /* request id */

struct server {
    int kept, cancelled;
    struct act_promise promise[64];
};

static _Atomic int replies_back; /* that nobody wanted any more */
static int questions_back;       /* of the server's, that ended without what they carried */

static int server_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct server *s = state;
    for (int i = 0; i < count; i++) {
        struct act_promise p = act_promise_of(&m[i]);
        if (m[i].type == ACT_DRAIN)
            act_stop(self, 0);
        if (m[i].type == ACT_CANCEL) {
            s->cancelled++;
            struct act_msg r = act_msg_make(ACT_CANCELLED, m[i].src);
            r.request = m[i].request;
            if (act_send(self, &r))
                act_msg_drop(&r);
        }
        if (m[i].type == ACT_REMOTE_STORE && m[i].request == FIND_UNANSWERABLE) {
            struct act_msg r = act_msg_make(ACT_PAGES_GIVEN, ACT_NOBODY); /* a defect: it may not leave the node */
            act_reply(self, &p, &r);
            continue;
        }
        if (m[i].type == ACT_UNDELIVERABLE && act_msg_returned_type(&m[i]) == ACT_PONG) {
            atomic_fetch_add_explicit(&replies_back, 1, memory_order_relaxed); /* a count; read in the same thread */
            continue;
        }
        if (m[i].type == ACT_UNDELIVERABLE && act_msg_returned_type(&m[i]) == ACT_RESERVE) {
            questions_back += (m[i].flags & ACT_MSG_ABANDONED) != 0;
            continue;
        }
        if (m[i].type == ACT_PARKED) { /* from the test: ask the client in the name of a life of node 9 that is over */
            struct act_msg q;
            uint16_t number;
            cr_assert_eq(act_peer_number(act_self_runtime(self), 9, 5, &number), 0);
            cr_assert_eq(act_msg_new(ACT_RESERVE, s->promise[0].to, 0, &q), 0);
            q.request = m[i].request;
            act_p_reserve(&q)->requester =
                (struct act_addr){.generation = 1, .index = 1, .peer = number & (ACT_PEERS_MAX - 1)};
            cr_assert_eq(act_request(self, &q), 0);
            continue;
        }
        if (m[i].type == ACT_RESUMED) { /* from the test: a message and a reply in the name of somebody of node 9 */
            struct act_addr who = {.generation = 1, .index = 1};
            uint16_t number;
            cr_assert_eq(act_peer_number(act_self_runtime(self), 9, 5, &number), 0);
            who.peer = number & (ACT_PEERS_MAX - 1);
            struct act_msg f = act_msg_make(m[i].request ? ACT_PONG : ACT_CANCELLED, s->promise[0].to);
            f.src = who;
            f.request = s->promise[0].request;
            cr_assert_eq(m[i].request ? act_forward_reply(self, &s->promise[0], &f) : act_forward(self, &f), 0);
            continue;
        }
        if (m[i].type == ACT_DRAINED) {
            for (int k = 0; k < s->kept; k++) {
                struct act_msg r = act_msg_make(ACT_PONG, ACT_NOBODY);
                act_p_pong(&r)->a = k ? s->promise[k].request + 1 : 0;
                cr_assert_eq(act_reply(self, &s->promise[k], &r), 0);
            }
            continue;
        }
        if (m[i].type != ACT_PING || m[i].request >= A_REQUEST_KEEPS) {
            s->promise[s->kept++ % 64] = p;
            continue;
        }
        struct act_msg r = act_msg_make(ACT_PONG, ACT_NOBODY);
        act_p_pong(&r)->a = act_p_ping(&m[i])->a + 1;
        r.buf = act_msg_take(&m[i]);
        if (act_reply(self, &p, &r))
            act_msg_drop(&r);
    }
    return 0;
}

static const struct act_behaviour server_behaviour = {
    .name = "server", .state_size = sizeof(struct server), .receive = server_receive};

/* ---- a client: what happens to it is counted, what it does is told from outside ------------------------------- */

struct client {
    struct act_addr link, server;
    uint16_t peer;
    int64_t patience; /* of its questions; 0: none */
    int ups, node_downs, downs, down_reason, replies, wrong, returned, abandoned, late, payloads, cancelled, immediates,
        puts, fences, put_status, finds_abandoned, kv_downs;
    uint32_t kv_generation, put_generation;
    bool kv_up;
    uint32_t immediate;
    _Atomic int ends; /* of requests; read by the test's thread */
    _Atomic int known;
};

static void take_returned(struct client *c, struct act_msg *m)
{
    c->finds_abandoned += act_msg_returned_type(m) == ACT_REMOTE_STORE && m->flags & ACT_MSG_ABANDONED;
    c->late += (m->flags & ACT_MSG_LATE) != 0;
    if (m->flags & ACT_MSG_ABANDONED)
        c->abandoned++;
    else
        c->returned++;
    c->payloads += m->buf != NULL;
}

static int client_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct client *c = *(struct client **)state;
    size_t bytes;
    for (int i = 0; i < count; i++) {
        switch (m[i].type) {
        case ACT_RELOAD: { /* from the test: begin */
            struct act_msg w = act_msg_make(ACT_NODES_WATCH, c->link);
            act_p_nodes_watch(&w)->flags = ACT_WATCH_CLASSES;
            act_send(self, &w);
            break;
        }
        case ACT_NODE_UP: {
            const struct act_node_actor *a = act_msg_tail(&m[i], &bytes);
            c->ups++;
            c->peer = act_p_node_up(&m[i])->peer;
            for (uint32_t k = 0; k < act_p_node_up(&m[i])->actors; k++)
                if (a[k].kind == ACT_NODE_DECODE)
                    c->server = a[k].addr;
            /* Release: what is known of the node. Partner: the test's thread. */
            atomic_store_explicit(&c->known, c->ups, memory_order_release);
            break;
        }
        case ACT_NODE_DOWN:
            c->node_downs++;
            break;
        case ACT_NODE_CLASS:
            if (act_p_node_class(&m[i])->class == TP_CLASS_KV) {
                c->kv_generation = act_p_node_class(&m[i])->generation;
                c->kv_up = act_p_node_class(&m[i])->up;
                c->kv_downs += !c->kv_up;
            }
            break;
        case ACT_DOWN:
            c->downs++;
            c->down_reason = act_p_down(&m[i])->reason;
            break;
        case ACT_PONG:
            c->wrong += act_p_pong(&m[i])->a != m[i].request + 1 ||
                        (m[i].buf && m[i].buf->data[m[i].buf->size - 1] != (uint8_t)m[i].request);
            c->replies++;
            atomic_fetch_add_explicit(&c->ends, 1, memory_order_release); /* partner: the test's thread */
            break;
        case ACT_UNDELIVERABLE:
            take_returned(c, &m[i]);
            atomic_fetch_add_explicit(&c->ends, 1, memory_order_release); /* partner: the test's thread */
            break;
        case ACT_CANCELLED:
            c->cancelled++;
            break;
        case ACT_LINK_IMMEDIATE:
            c->immediates++;
            c->immediate = act_p_link_immediate(&m[i])->immediate;
            break;
        case ACT_LINK_PUT_DONE:
            c->puts++;
            c->put_status = act_p_link_put_done(&m[i])->status;
            c->put_generation = act_p_link_put_done(&m[i])->generation;
            break;
        case ACT_LINK_FENCE:
            c->fences++;
            break;
        case ACT_PING: { /* from the test: ask a of these, of b bytes, with request ids from m->request on */
            for (uint64_t k = 0; k < act_p_ping(&m[i])->a; k++) {
                struct act_msg q = act_msg_make(ACT_PING, c->server);
                q.request = m[i].request + k;
                act_p_ping(&q)->a = q.request;
                if (c->patience)
                    q.deadline = act_now(self) + c->patience;
                size_t size = act_p_ping(&m[i])->b;
                if (size) {
                    q.buf = act_buf_new(size);
                    memset(q.buf->data, (uint8_t)q.request, size);
                }
                if (act_request(self, &q)) {
                    act_msg_drop(&q);
                    c->wrong++;
                }
            }
            break;
        }
        case ACT_REMOTE_STORED: { /* from the test: one over class kv */
            struct act_msg q;
            cr_assert_eq(act_msg_new(ACT_REMOTE_STORE, c->server, 32, &q), 0);
            memset(act_msg_tail(&q, &bytes), 0, 32);
            q.request = m[i].request;
            c->wrong += act_request(self, &q) != 0;
            break;
        }
        case ACT_DRAINED: { /* from the test: watch the server */
            struct act_msg w = act_msg_make(ACT_LINK_WATCH, c->link);
            *act_p_link_watch(&w) = (struct act_p_link_watch){.who = c->server, .tag = 7};
            act_send(self, &w);
            break;
        }
        case ACT_EXPERT_FIND: { /* from the test: put; with a request, its second half is not in the window */
            const struct act_put_range range[2] = {{16, 32, 100}, {116, 132, WINDOW - 132 + (m[i].request != 0)}};
            const struct act_put put = {.peer = c->peer,
                                        .class = TP_CLASS_KV,
                                        .generation = act_p_expert_find(&m[i])->flags,
                                        .from_window = WINDOW_ID,
                                        .to_window = WINDOW_ID,
                                        .with_immediate = true,
                                        .immediate = 2u << 28 | 99};
            act_link_put(self, c->link, &put, range, 2);
            break;
        }
        case ACT_TIER_WANT: { /* from the test: fence */
            struct act_msg f = act_msg_make(ACT_LINK_FENCE, c->link);
            *act_p_link_fence(&f) = (struct act_p_link_fence){.peer = c->peer, .class = TP_CLASS_KV};
            act_request(self, &f);
            break;
        }
        default:
            break;
        }
    }
    return 0;
}

static int client_start(struct act_self *self, void *state, const void *arg)
{
    (void)self;
    *(const void **)state = arg;
    return 0;
}

static const struct act_behaviour client_behaviour = {
    .name = "client", .state_size = sizeof(struct client *), .start = client_start, .receive = client_receive};

/* Ends the actor that it is told of. */
static int killer_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    (void)m;
    if (count)
        act_exit(self, **(struct act_addr **)state, -EIO);
    return 0;
}

static const struct act_behaviour killer_behaviour = {
    .name = "killer", .state_size = sizeof(struct act_addr *), .start = client_start, .receive = killer_receive};

/* ---- two nodes ------------------------------------------------------------------------------------------------ */

struct pair {
    struct act_sim *sim; /* NULL: threads */
    struct tp_inproc_hub *hub;
    struct act_runtime *rt[2];
    struct act_link_arg *arg[2];
    struct act_link_peer peer[2];
    struct act_addr link[2], client_addr, server;
    struct client client;
    uint8_t *window[2];
};

static void fill_arg(struct pair *p, int i, uint64_t epoch)
{
    struct act_link_arg *a = p->arg[i];
    *a = (struct act_link_arg){.net = {.ops = p->sim ? &tp_inproc : &tp_tcp,
                                       .endpoint.provider = p->hub,
                                       .self = {.kind = TP_KIND_NODE,
                                                .number = (uint16_t)(i + 1),
                                                .epoch = epoch,
                                                .roles = 1,
                                                .model = 1,
                                                .block_tokens = 256}},
                               .peer = &p->peer[1 - i],
                               .n_peers = i == 0 || p->sim, /* over TCP the first node learns the port of the other */
                               .n_windows = 1};
    snprintf(a->net.self.name, sizeof a->net.self.name, "n%d", i);
    snprintf(a->listen, sizeof a->listen, "%s", p->sim ? i ? "b" : "a" : "127.0.0.1:0");
    a->window[0] = (struct act_link_window){WINDOW_ID, p->window[i], WINDOW};
}

static struct act_addr spawn(struct act_runtime *rt, int worker, const struct act_behaviour *b, const void *arg)
{
    struct act_spawn spec = {.behaviour = b, .worker = worker, .arg = arg, .outbox = 1 << 16};
    struct act_addr a;
    struct cfg_error err;
    cr_assert_eq(act_runtime_spawn(rt, &spec, &a, &err), 0, "%s", err.msg);
    return a;
}

/* A link that hears, as from the other node, what the test has made up. */
static struct {
    bool due;
    enum link_kind kind;
    unsigned type;
    struct act_msg message;
    int rc;
} forged;

static int forged_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    uint8_t bytes[512] = {(uint8_t)forged.kind, (uint8_t)forged.type};
    size_t size;
    struct cfg_error err;
    if (forged.due) {
        struct act_runtime *rt = act_self_runtime(self);
        cr_assert_eq(act_wire_encode(rt, &forged.message, act_now(self), bytes + LINK_HEAD, &size), 0);
        forged.rc = link_take(state, 0, bytes, LINK_HEAD + size, &err);
        forged.due = false;
    }
    return act_link_behaviour.receive(self, state, m, count);
}

static void spawn_node(struct pair *p, int i)
{
    static struct act_behaviour hears;
    hears = act_link_behaviour;
    hears.receive = forged_receive;
    p->link[i] = spawn(p->rt[i], 0, i ? &act_link_behaviour : &hears, p->arg[i]);
    p->arg[i]->own[p->arg[i]->n_own++] = (struct act_node_actor){.kind = ACT_NODE_LINK, .addr = p->link[i]};
    if (i == 0) {
        p->client.link = p->link[0];
        p->client_addr = spawn(p->rt[0], 1, &client_behaviour, &p->client);
    } else {
        p->server = spawn(p->rt[1], 1, &server_behaviour, NULL);
        p->arg[1]->own[p->arg[1]->n_own++] = (struct act_node_actor){.kind = ACT_NODE_DECODE, .addr = p->server};
    }
}

static struct act_config runtime_config(int i, bool threads, uint64_t epoch)
{
    struct act_config c = {.node = (uint16_t)(i + 1), .epoch = epoch, .workers = 2};
    c.worker[0].kind = threads ? ACT_WORKER_IO : ACT_WORKER_ENGINE;
    c.worker[1].kind = ACT_WORKER_ENGINE;
    c.worker[0].cpu = c.worker[1].cpu = -1;
    return c;
}

static struct pair *pair_new(bool threads, uint64_t seed)
{
    struct pair *p = calloc(1, sizeof *p);
    struct cfg_error err;
    for (int i = 0; i < 2; i++) {
        p->arg[i] = calloc(1, sizeof *p->arg[i]);
        p->window[i] = calloc(1, WINDOW);
    }
    if (!threads) {
        const struct act_sim_config sc = {.seed = seed};
        cr_assert_eq(act_sim_new(&sc, &p->sim, &err), 0);
        p->hub = tp_inproc_hub_new();
    }
    for (int i = 1; i >= 0; i--) {
        struct act_config c = runtime_config(i, threads, 10 + (uint64_t)i);
        fill_arg(p, i, 10 + (uint64_t)i);
        cr_assert_eq(threads ? act_runtime_new(&c, &p->rt[i], &err) : act_sim_add(p->sim, &c, &p->rt[i], &err), 0, "%s",
                     err.msg);
        snprintf(p->peer[i].name, sizeof p->peer[i].name, "n%d", i);
        p->peer[i].number = (uint16_t)(i + 1);
        if (!threads)
            snprintf(p->peer[i].address, sizeof p->peer[i].address, "%s", i ? "b" : "a");
    }
    if (threads) { /* node 1 listens first; it need not know where node 0 is, since that one dials */
        p->arg[1]->n_peers = 1;
        strcpy(p->peer[0].address, "127.0.0.1:1");
    }
    spawn_node(p, 1);
    if (threads)
        snprintf(p->peer[1].address, sizeof p->peer[1].address, "%s", p->arg[1]->bound);
    spawn_node(p, 0);
    p->arg[0]->port[TP_CLASS_KV][2] = p->client_addr;
    p->arg[1]->port[TP_CLASS_KV][2] = p->server;
    return p;
}

static void pair_free(struct pair *p)
{
    if (p->sim)
        act_sim_free(p->sim);
    for (int i = 0; i < 2; i++) {
        if (!p->sim)
            act_runtime_free(p->rt[i]);
        free(p->arg[i]);
        free(p->window[i]);
    }
    tp_inproc_hub_free(p->hub);
    free(p);
}

static void tell(struct pair *p, enum act_type type, uint64_t request, uint64_t a, uint64_t b)
{
    struct act_msg m = act_msg_make(type, p->client_addr);
    m.request = request;
    if (type == ACT_PING)
        *act_p_ping(&m) = (struct act_p_ping){a, b};
    cr_assert_eq(act_runtime_post(p->rt[0], &m), 0);
}

/* A put over this connection (0: any), or one of which a part is beyond the window. */
static void tell_put(struct pair *p, uint32_t generation, bool beyond)
{
    struct act_msg m = act_msg_make(ACT_EXPERT_FIND, p->client_addr);
    m.request = beyond;
    act_p_expert_find(&m)->flags = generation;
    cr_assert_eq(act_runtime_post(p->rt[0], &m), 0);
}

static void run(struct pair *p, int64_t ms)
{
    act_sim_run(p->sim, act_sim_now(p->sim) + ms * MS, 1000000);
}

/* ---- the tests ------------------------------------------------------------------------------------------------ */

Test(link, requests_cross_and_every_one_has_an_end)
{
    long before = act_buf_live();
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct pair *p = pair_new(false, seed);
        struct client *c = &p->client;
        tell(p, ACT_RELOAD, 0, 0, 0);
        run(p, 500);
        cr_assert_eq(c->ups, 1, "seed %llu", (unsigned long long)seed);
        cr_assert_neq(c->server.peer, 0);
        tell(p, ACT_PING, 1, 100, 0);
        tell(p, ACT_PING, 1000, 20, 5000);
        tell(p, ACT_PING, 2000, 3, 1000000);
        run(p, 500);
        cr_expect_eq(c->replies, 123);
        cr_expect_eq(c->wrong, 0);
        /* The server keeps some, somebody watches it, and it ends. */
        tell(p, ACT_DRAINED, 0, 0, 0);
        tell(p, ACT_PING, A_REQUEST_KEEPS, 10, 100);
        run(p, 100);
        cr_expect_eq(c->abandoned, 0);
        struct act_msg end = act_msg_make(ACT_DRAIN, p->server);
        act_runtime_post(p->rt[1], &end);
        run(p, 100);
        cr_expect_eq(c->abandoned, 10, "%d of the kept requests have ended", c->abandoned);
        cr_expect_eq(c->downs, 1);
        cr_expect_eq(c->down_reason, 0);
        cr_expect_eq(c->ups, 2, "the directory has changed");
        cr_expect_eq(c->node_downs, 0);
        /* Nobody is there any more: they come back with what they carried. */
        tell(p, ACT_PING, 5000, 5, 64);
        run(p, 100);
        cr_expect_eq(c->returned, 5);
        cr_expect_eq(c->payloads, 5);
        int messages, requests;
        cr_assert_eq(act_stats_lane(p->rt[0], 1, 0, &messages, &requests), 0);
        cr_expect_eq(messages + requests, 0, "no room has leaked");
        pair_free(p);
    }
    cr_expect_eq(act_buf_live(), before);
}

Test(link, a_lost_node_gives_back_what_it_was_asked)
{
    struct pair *p = pair_new(false, 3);
    struct client *c = &p->client;
    tell(p, ACT_RELOAD, 0, 0, 0);
    run(p, 500);
    tell(p, ACT_DRAINED, 0, 0, 0);
    tell(p, ACT_PING, A_REQUEST_KEEPS, 30, 100);
    run(p, 100);
    cr_expect_eq(c->ends, 0);
    /* Its link stops: every connection ends, and nobody comes back. */
    struct act_spawn spec = {.behaviour = &killer_behaviour, .worker = 0, .arg = &p->link[1]};
    struct act_addr killer;
    struct cfg_error err;
    cr_assert_eq(act_runtime_spawn(p->rt[1], &spec, &killer, &err), 0);
    struct act_msg go = act_msg_make(ACT_DRAIN, killer);
    act_runtime_post(p->rt[1], &go);
    run(p, 200);
    cr_expect_eq(c->abandoned, 30);
    cr_expect_eq(c->node_downs, 1);
    cr_expect_eq(c->downs, 1);
    cr_expect_lt(c->down_reason, 0);
    tell(p, ACT_PING, 1, 4, 10);
    run(p, 10);
    cr_expect_eq(c->returned, 4, "what is sent to a lost node comes back at once");
    cr_expect_eq(c->payloads, 4);
    pair_free(p);
}

/* A node that is there and says nothing: each question ends at its deadline, and gives its room back. What comes later
 * is nobody's, also not that of a question with the same names, and goes back to who sent it. */
Test(link, a_silent_node_costs_a_call_its_deadline_and_a_late_reply_is_for_nobody)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct pair *p = pair_new(false, seed);
        struct client *c = &p->client;
        int messages, requests;
        atomic_store_explicit(&replies_back, 0, memory_order_relaxed); /* nobody else is there yet */
        p->arg[0]->call_ns = 2000 * (int64_t)MS;
        tell(p, ACT_RELOAD, 0, 0, 0);
        run(p, 500);
        c->patience = 300 * (int64_t)MS;
        tell(p, ACT_PING, A_REQUEST_KEEPS, 1, 100);
        run(p, 299);
        cr_expect_eq(c->ends, 0, "it ends before its deadline");
        run(p, 2);
        cr_expect_eq(c->late, 1, "it has no end");
        cr_expect_eq(c->abandoned, 1);
        cr_expect_eq(c->node_downs, 0);
        /* One without a deadline, and equal names: they have the link's. */
        c->patience = 0;
        tell(p, ACT_PING, A_REQUEST_KEEPS, 5, 100);
        run(p, 1000);
        cr_expect_eq(c->ends, 1);
        struct act_msg speak = act_msg_make(ACT_DRAINED, p->server);
        act_runtime_post(p->rt[1], &speak);
        run(p, 100);
        cr_expect_eq(c->replies, 5, "%d of 5 questions were answered", c->replies);
        cr_expect_eq(c->wrong, 0, "the late answer to the first question was taken for the second's");
        cr_expect_eq(replies_back, 1, "whoever sent it does not learn that it was late");
        run(p, 3000);
        cr_expect_eq(c->late, 1);
        tell(p, ACT_PING, A_REQUEST_KEEPS + 10, 20, 100);
        run(p, 1990);
        cr_expect_eq(c->late, 1);
        run(p, 20);
        cr_expect_eq(c->late, 21, "%d of 20 questions without a deadline have ended", c->late - 1);
        cr_assert_eq(act_stats_lane(p->rt[0], 1, 0, &messages, &requests), 0);
        cr_expect_eq(messages + requests, 0, "no room has leaked");
        tell(p, ACT_PING, 1, 10, 0);
        run(p, 100);
        cr_expect_eq(c->replies, 15, "the node answers again");
        pair_free(p);
    }
}

/* What a node sends is from its own actors. One that says that it is another is not heard, and is cut off. */
Test(link, a_node_that_speaks_in_the_name_of_another_is_cut_off)
{
    for (int reply = 0; reply < 2; reply++) {
        struct pair *p = pair_new(false, 8);
        struct client *c = &p->client;
        tell(p, ACT_RELOAD, 0, 0, 0);
        run(p, 500);
        tell(p, ACT_PING, A_REQUEST_KEEPS, 1, 100);
        run(p, 100);
        struct act_msg speak = act_msg_make(ACT_RESUMED, p->server);
        speak.request = (uint64_t)reply;
        act_runtime_post(p->rt[1], &speak);
        run(p, 20);
        cr_expect_eq(c->cancelled, 0, "it was heard");
        cr_expect_eq(c->replies, 0, "its reply was heard");
        cr_expect_eq(c->node_downs, 1, "it was not cut off");
        cr_expect_eq(c->abandoned, 1, "what it was asked has no end");
        run(p, 500);
        tell(p, ACT_PING, 1, 3, 0);
        run(p, 100);
        cr_expect_eq(c->replies, 3, "it does not come back");
        pair_free(p);
    }
}

/* A question in which somebody is named who is no more is not asked here, and has its end there. */
Test(link, a_question_that_names_a_life_that_is_over_is_given_back)
{
    struct pair *p = pair_new(false, 9);
    struct client *c = &p->client;
    uint16_t newer;
    int messages, requests;
    tell(p, ACT_RELOAD, 0, 0, 0);
    run(p, 500);
    tell(p, ACT_PING, A_REQUEST_KEEPS, 1, 100); /* so that the server knows the client */
    run(p, 100);
    cr_assert_eq(act_peer_number(p->rt[0], 9, 6, &newer), 0);
    questions_back = 0;
    struct act_msg speak = act_msg_make(ACT_PARKED, p->server);
    speak.request = 42;
    act_runtime_post(p->rt[1], &speak);
    run(p, 100);
    cr_expect_eq(questions_back, 1, "the question has no end");
    cr_expect_eq(c->node_downs, 0, "the node was cut off for what it cannot know");
    cr_assert_eq(act_stats_lane(p->rt[1], 1, 0, &messages, &requests), 0);
    cr_expect_eq(requests, 0, "the room of its answer has leaked");
    pair_free(p);
}

/* One that cannot leave ends alone: its equal, which is under way, keeps its own end. */
Test(link, a_request_that_cannot_leave_does_not_end_its_equal)
{
    struct pair *p = pair_new(false, 6);
    struct client *c = &p->client;
    int messages, requests;
    tell(p, ACT_RELOAD, 0, 0, 0);
    run(p, 500);
    tell(p, ACT_PING, A_REQUEST_KEEPS, 1, 100);
    run(p, 100);
    tell(p, ACT_PING, A_REQUEST_KEEPS, 1, TP_MESSAGE_MAX);
    run(p, 100);
    cr_expect_eq(c->returned, 1);
    cr_expect_eq(c->abandoned, 0);
    struct act_msg end = act_msg_make(ACT_DRAIN, p->server);
    act_runtime_post(p->rt[1], &end);
    run(p, 100);
    cr_expect_eq(c->abandoned, 1, "%d of the kept requests have ended", c->abandoned);
    cr_assert_eq(act_stats_lane(p->rt[0], 1, 0, &messages, &requests), 0);
    cr_expect_eq(messages + requests, 0, "no room has leaked");
    pair_free(p);
}

Test(link, puts_land_and_tell_their_port)
{
    struct pair *p = pair_new(false, 4);
    struct client *c = &p->client;
    tell(p, ACT_RELOAD, 0, 0, 0);
    run(p, 500);
    cr_expect(c->kv_up);
    memset(p->window[0], 0x2a, WINDOW);
    tell_put(p, 0, false);
    run(p, 100);
    cr_expect_eq(c->puts, 1);
    cr_expect_eq(c->put_status, 0);
    cr_expect_eq(c->put_generation, c->kv_generation);
    cr_expect_eq(p->window[1][31], 0);
    cr_expect_eq(p->window[1][32], 0x2a);
    cr_expect_eq(p->window[1][131], 0x2a);
    cr_expect_eq(p->window[1][WINDOW - 1], 0x2a);
    uint32_t first = c->kv_generation;
    tell(p, ACT_TIER_WANT, 0, 0, 0);
    run(p, 500);
    cr_expect_eq(c->fences, 1);
    cr_expect_eq(c->node_downs, 0);
    cr_expect(c->kv_up, "the class is connected again");
    cr_expect_gt(c->kv_generation, first);
    /* What was meant for the connection before is not made over this one. */
    memset(p->window[0], 0x2b, WINDOW);
    tell_put(p, first, false);
    run(p, 100);
    cr_expect_eq(c->puts, 2);
    cr_expect_eq(c->put_status, -ESTALE);
    cr_expect_eq(p->window[1][32], 0x2a);
    tell_put(p, c->kv_generation, false);
    run(p, 100);
    cr_expect_eq(c->puts, 3);
    cr_expect_eq(c->put_status, 0);
    cr_expect_eq(p->window[1][WINDOW - 1], 0x2b);
    /* One that cannot be made whole is told of; the connection goes on. */
    uint32_t second = c->kv_generation;
    tell_put(p, second, true);
    run(p, 100);
    cr_expect_eq(c->puts, 4);
    cr_expect_eq(c->put_status, -EINVAL);
    cr_expect(c->kv_up && c->kv_generation == second);
    pair_free(p);
}

/* What was asked over a class has its end with it; the node, and what was asked over the others, live on. */
Test(link, the_end_of_a_class_gives_back_what_was_asked_over_it_and_nothing_else)
{
    struct pair *p = pair_new(false, 5);
    struct client *c = &p->client;
    tell(p, ACT_RELOAD, 0, 0, 0);
    run(p, 500);
    tell(p, ACT_PING, A_REQUEST_KEEPS, 10, 100);
    for (uint64_t i = 0; i < 4; i++)
        tell(p, ACT_REMOTE_STORED, A_REQUEST_KEEPS + i, 0, 0);
    run(p, 100);
    cr_assert_eq(c->abandoned, 0);
    tell(p, ACT_TIER_WANT, 0, 0, 0);
    run(p, 500);
    cr_expect_eq(c->fences, 1);
    cr_expect_eq(c->finds_abandoned, 4);
    cr_expect_eq(c->abandoned, 4, "%d requests were given back, 4 were asked over that class", c->abandoned);
    cr_expect_eq(c->node_downs, 0);
    cr_expect_eq(c->ups, 1);
    cr_expect(c->kv_up, "it is connected again");
    tell(p, ACT_PING, 1, 5, 0);
    run(p, 100);
    cr_expect_eq(c->replies, 5);
    cr_expect_eq(c->wrong, 0);
    pair_free(p);
}

/* A reply that cannot leave ends the class that it would have gone over, so that its request has an end. */
Test(link, a_reply_that_cannot_leave_costs_its_class_and_not_the_node)
{
    struct pair *p = pair_new(false, 6);
    struct client *c = &p->client;
    tell(p, ACT_RELOAD, 0, 0, 0);
    run(p, 500);
    tell(p, ACT_PING, A_REQUEST_KEEPS, 3, 100);
    tell(p, ACT_REMOTE_STORED, FIND_UNANSWERABLE, 0, 0);
    run(p, 500);
    cr_expect_eq(c->kv_downs, 1);
    cr_expect_eq(c->finds_abandoned, 1, "the request has no end");
    cr_expect_eq(c->abandoned, 1);
    cr_expect_eq(c->node_downs, 0);
    cr_expect(c->kv_up);
    pair_free(p);
}

static int forge(struct pair *p, enum link_kind kind, unsigned type, unsigned flags, uint64_t request)
{
    struct act_msg poke = act_msg_make(ACT_RELOAD, p->link[0]);
    forged.kind = kind;
    forged.type = type;
    forged.message = act_msg_make(ACT_PING, p->client.server);
    forged.message.src = p->client_addr;
    forged.message.request = request;
    forged.message.flags = (uint16_t)flags;
    forged.due = true;
    cr_assert_eq(act_runtime_post(p->rt[0], &poke), 0);
    run(p, 10);
    cr_assert_not(forged.due);
    return forged.rc;
}

/* A node is heard by this one's actors, and not passed on to a third one's. */
Test(link, a_node_does_not_pass_on_what_is_for_another)
{
    struct pair *p = pair_new(false, 7);
    struct client *c = &p->client;
    uint16_t third;
    tell(p, ACT_RELOAD, 0, 0, 0);
    run(p, 500);
    cr_assert_eq(act_peer_number(p->rt[0], 9, 5, &third), 0);
    cr_assert_eq(act_peer_route(p->rt[0], third, p->client_addr), 0); /* what is sent there is seen here */
    for (int k = 0; k < 2; k++) {
        struct act_msg poke = act_msg_make(ACT_RELOAD, p->link[0]);
        struct act_addr to =
            k ? (struct act_addr){.generation = 1, .index = 1, .peer = third & (ACT_PEERS_MAX - 1)} : p->client_addr;
        forged.kind = LINK_MESSAGE;
        forged.type = ACT_CANCELLED;
        forged.message = act_msg_make(ACT_CANCELLED, to);
        forged.message.src = c->server;
        forged.due = true;
        cr_assert_eq(act_runtime_post(p->rt[0], &poke), 0);
        run(p, 10);
        cr_expect_eq(forged.rc, 0);
        cr_expect_eq(c->cancelled, 1, "%d: %d were delivered", k, c->cancelled);
    }
    pair_free(p);
}

/* What a node says it gives back has to be what it was given. */
Test(link, what_comes_back_is_what_was_sent)
{
    struct pair *p = pair_new(false, 7);
    struct client *c = &p->client;
    tell(p, ACT_RELOAD, 0, 0, 0);
    run(p, 500);
    tell(p, ACT_PING, A_REQUEST_KEEPS, 1, 100);
    run(p, 100);
    cr_expect_eq(forge(p, LINK_ABANDONED, ACT_LINK_PUT, 0, 5), -EPROTO);
    cr_expect_eq(forge(p, LINK_ABANDONED, ACT_LINK_PUT, ACT_MSG_WANTS_REPLY, A_REQUEST_KEEPS), -EPROTO);
    cr_expect_eq(forge(p, LINK_ABANDONED, 255, 0, 5), -EPROTO);
    cr_expect_eq(forge(p, LINK_ABANDONED, ACT_REMOTE_STORED, ACT_MSG_WANTS_REPLY, A_REQUEST_KEEPS), 0);
    cr_expect_eq(c->abandoned, 0, "the request has ended by the end of another one");
    cr_expect_eq(forge(p, LINK_ABANDONED, ACT_PING, ACT_MSG_WANTS_REPLY, A_REQUEST_KEEPS), 0);
    cr_expect_eq(c->abandoned, 1);
    pair_free(p);
}

static bool wait_for(_Atomic int *what, int n)
{
    /* Acquire: partner is client_receive. */
    for (int i = 0; i < 60000; i++) {
        if (atomic_load_explicit(what, memory_order_acquire) >= n)
            return true;
        struct timespec t = {0, MS};
        nanosleep(&t, NULL);
    }
    return false;
}

Test(link, threads_over_tcp_and_a_node_that_is_killed)
{
    long before = act_buf_live();
    struct pair *p = pair_new(true, 0);
    struct client *c = &p->client;
    struct cfg_error err;
    for (int i = 0; i < 2; i++)
        cr_assert_eq(act_runtime_start(p->rt[i], &err), 0);
    tell(p, ACT_RELOAD, 0, 0, 0);
    cr_assert(wait_for(&c->known, 1), "the nodes do not find each other");
    tell(p, ACT_PING, 1, 200, 3000);
    tell(p, ACT_PING, 1000, 3, 3000000);
    cr_assert(wait_for(&c->ends, 203));
    tell(p, ACT_PING, A_REQUEST_KEEPS, 50, 1000);
    tell(p, ACT_PING, 5000, 150, 20000);
    act_runtime_free(p->rt[1]);
    p->rt[1] = NULL;
    cr_assert(wait_for(&c->ends, 403), "requests are left without an end: %d", c->ends);
    act_runtime_stop(p->rt[0]);
    cr_expect_eq(c->ends, 403, "each has one end");
    cr_expect_eq(c->wrong, 0);
    cr_expect_ge(c->replies, 203);
    cr_expect_eq(c->node_downs, 1);
    pair_free(p);
    cr_expect_eq(act_buf_live(), before);
}
