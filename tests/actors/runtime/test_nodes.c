/* Two nodes in one simulation: messages go through their wire form, by way of an actor on each side. */
#include <errno.h>

#include "actors/runtime/sim.h"
#include "actors/runtime/wire.h"
#include "tests/harness.h"

enum { MS = 1000000, ASKS = 50 };

struct net;

/* What is on the wire. */
struct packet {
    struct net *net;
    int to;
    size_t size;
    uint8_t bytes[256];
};

struct net {
    struct act_sim *sim;
    struct act_runtime *rt[2];
    struct act_addr proxy[2], server, seen_server;
    long packets, replies, wrong, unreachable;
};

/* ---- the proxy: encodes what goes to the other node, decodes what comes ---------------------- */

struct proxy {
    struct net *net;
    int me;
    struct act_promise open[ASKS + 1]; /* by request id */
};

struct proxy_arg {
    struct net *net;
    int me;
};

static int proxy_start(struct act_self *self, void *state, const void *arg)
{
    const struct proxy_arg *a = arg;
    (void)self;
    *(struct proxy *)state = (struct proxy){.net = a->net, .me = a->me};
    return 0;
}

/* The bytes arrive: they are given to the proxy of that side as the buffer of a PING. */
static void arrive(void *ctx)
{
    struct packet *p = ctx;
    struct act_msg m = act_msg_make(ACT_PING, p->net->proxy[p->to]);
    m.buf = act_buf_copy(p->bytes, p->size);
    p->net->wrong += act_runtime_post(p->net->rt[p->to], &m) != 0;
    free(p);
}

static void send_over(struct act_self *self, struct proxy *x, struct act_msg *m)
{
    struct packet *p = calloc(1, sizeof *p);
    p->net = x->net;
    p->to = 1 - x->me;
    if (m->request <= ASKS && (m->flags & ACT_MSG_WANTS_REPLY))
        x->open[m->request] = act_promise_of(m);
    if (act_wire_size(m) > sizeof p->bytes ||
        act_wire_encode(act_self_runtime(self), m, act_now(self), p->bytes, &p->size) != 0) {
        x->net->wrong++;
        free(p);
        return;
    }
    x->net->packets++;
    act_sim_at(x->net->sim, act_sim_now(x->net->sim) + 1 * MS, arrive, p);
}

static void take_over(struct act_self *self, struct proxy *x, const struct act_buf *bytes)
{
    struct act_msg m;
    size_t used;
    struct cfg_error err;
    if (act_wire_decode(act_self_runtime(self), bytes->data, bytes->size, act_now(self), &m, &used, &err) != 0) {
        x->net->wrong++;
        return;
    }
    int rc = m.flags & ACT_MSG_REPLY ? act_forward_reply(self, &x->open[m.request], &m) : act_forward(self, &m);
    if (rc != 0) {
        x->net->wrong++;
        act_msg_drop(&m);
    }
}

static int proxy_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct proxy *x = state;
    for (int i = 0; i < count; i++) {
        if (m[i].dst.peer)
            send_over(self, x, &m[i]);
        else if (m[i].buf)
            take_over(self, x, m[i].buf);
    }
    return 0;
}

static const struct act_behaviour proxy_behaviour = {
    .name = "proxy", .state_size = sizeof(struct proxy), .start = proxy_start, .receive = proxy_receive};

/* ---- both ends ------------------------------------------------------------------------------- */

static int server_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    (void)state;
    for (int i = 0; i < count; i++) {
        struct act_promise p = act_promise_of(&m[i]);
        struct act_msg r = act_msg_make(ACT_PONG, ACT_NOBODY);
        act_p_pong(&r)->a = act_p_ping(&m[i])->a + 1;
        r.buf = act_msg_take(&m[i]);
        if (act_reply(self, &p, &r) != 0)
            act_msg_drop(&r);
    }
    return 0;
}

static const struct act_behaviour server_behaviour = {.name = "server", .receive = server_receive};

struct asker {
    struct net *net;
};

static int asker_start(struct act_self *self, void *state, const void *arg)
{
    struct net *net = ((struct asker *)state)->net = *(struct net *const *)arg;
    for (uint64_t i = 1; i <= ASKS; i++) {
        struct act_msg m = act_msg_make(ACT_PING, net->seen_server);
        m.request = i;
        m.deadline = act_now(self) + 500 * MS;
        act_p_ping(&m)->a = i * 10;
        m.buf = act_buf_copy(&i, sizeof i);
        if (act_request(self, &m) != 0)
            return -EIO;
    }
    /* Nobody leads to this peer. */
    struct act_addr lost = net->seen_server;
    lost.peer = 77;
    struct act_msg m = act_msg_make(ACT_PING, lost);
    return act_request(self, &m);
}

static int asker_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct net *net = ((struct asker *)state)->net;
    (void)self;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_UNDELIVERABLE) {
            net->unreachable++;
            continue;
        }
        bool ok = m[i].type == ACT_PONG && act_addr_equal(m[i].src, net->seen_server) &&
                  act_p_pong(&m[i])->a == m[i].request * 10 + 1 && m[i].buf && m[i].buf->size == 8 &&
                  memcmp(m[i].buf->data, &m[i].request, 8) == 0;
        net->wrong += !ok;
        net->replies++;
    }
    return 0;
}

static const struct act_behaviour asker_behaviour = {
    .name = "asker", .state_size = sizeof(struct asker), .start = asker_start, .receive = asker_receive};

static struct act_addr spawn(struct act_runtime *rt, int worker, const struct act_behaviour *b, const void *arg)
{
    struct act_spawn spec = {.behaviour = b, .worker = worker, .arg = arg};
    struct act_addr a;
    struct cfg_error err;
    cr_assert_eq(act_runtime_spawn(rt, &spec, &a, &err), 0, "%s", err.msg);
    return a;
}

Test(nodes, requests_cross_and_come_back)
{
    long before = act_buf_live();
    struct act_sim_config sc = {.seed = 5};
    struct net net = {0}, *p = &net;
    struct proxy_arg arg[2] = {{&net, 0}, {&net, 1}};
    struct cfg_error err;
    uint16_t peer[2];
    cr_assert_eq(act_sim_new(&sc, &net.sim, &err), 0);
    for (int i = 0; i < 2; i++) {
        struct act_config c = {.node = (uint16_t)(10 + i), .epoch = 100 + (uint64_t)i, .workers = 2};
        cr_assert_eq(act_sim_add(net.sim, &c, &net.rt[i], &err), 0, "%s", err.msg);
    }
    for (int i = 0; i < 2; i++) {
        net.proxy[i] = spawn(net.rt[i], 0, &proxy_behaviour, &arg[i]);
        cr_assert_eq(act_peer_number(net.rt[i], (uint16_t)(11 - i), 101 - (uint64_t)i, &peer[i]), 0);
        cr_assert_eq(act_peer_route(net.rt[i], peer[i], net.proxy[i]), 0);
    }
    net.server = net.seen_server = spawn(net.rt[1], 1, &server_behaviour, NULL);
    net.seen_server.peer = peer[0];
    spawn(net.rt[0], 1, &asker_behaviour, &p);
    act_sim_run(net.sim, 1000 * MS, 100000);
    cr_expect_eq(net.wrong, 0);
    cr_expect_eq(net.replies, ASKS, "%ld replies", net.replies);
    cr_expect_eq(net.packets, 2 * ASKS);
    cr_expect_eq(net.unreachable, 1);
    act_sim_free(net.sim);
    cr_expect_eq(act_buf_live(), before);
}
