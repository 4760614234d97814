/* A node on one side, an endpoint that speaks by hand on the other. Whoever has not proved that it knows the cluster's
 * secret writes nothing: not who dials a node, nor who is dialled by one, at any step of the handshake, with the true
 * key of a window; with rdma in the guest of tests/rdma/guest.sh. And what a node does without memory. */
#include "tests/harness.h"

#include <arpa/inet.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/rdma_rig.h"
#include "transport/fault.h"
#include "transport/inproc.h"
#include "transport/net.h"
#include "transport/tcp.h"

enum { WINDOW = 300000, ID = 9, DEADLINE_S = 60, DIALS = 1, IS_DIALLED = 2 };

enum over { INPROC, FAULTY, TCP, RDMA };

struct world {
    const struct tp_ops *ops, *node_ops;
    const void *provider[2]; /* of the node and of the other one */
    char address[2][TP_ADDRESS_TEXT], bound[2][TP_ADDRESS_TEXT];
    struct event_base *base;
    struct tp_inproc_hub *hub;
    struct tp_fault fault; /* of the node, with FAULTY */
    int64_t clock;         /* 0: the real one */
    struct tp_rdma_config devices[2];
    /* the node */
    struct tp_net *net;
    uint8_t *window;
    int immediates, logs;
    char log[1024]; /* the last line */
    /* the other one */
    struct tp_endpoint *ep;
    struct tp_region *region;
    uint8_t *memory;
    struct tp_channel *c;
    int open, closed, frames, puts_done, put_status;
    uint8_t frame[TP_HANDSHAKE_MAX]; /* the last one that came */
    size_t size;
    int64_t came_at;
    struct tp_key key; /* of the node's window, once it was told */
};

static int64_t now(void *ctx)
{
    struct timespec t;
    if (ctx && ((struct world *)ctx)->clock)
        return ((struct world *)ctx)->clock;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void random_bytes(void *ctx, void *out, size_t size)
{
    static uint8_t next;
    (void)ctx;
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)out)[i] = next++;
}

static void wake(void *ctx)
{
    (void)ctx;
}

/* ---- the node -------------------------------------------------------------------------------------------------- */

static void on_up(void *ctx, int peer, uint64_t epoch)
{
    (void)ctx, (void)peer, (void)epoch;
}

static void on_down(void *ctx, int peer, uint64_t epoch, int reason, const char *why)
{
    (void)ctx, (void)peer, (void)epoch, (void)reason, (void)why;
}

static void on_class_up(void *ctx, int peer, enum tp_class class, uint32_t generation)
{
    (void)ctx, (void)peer, (void)class, (void)generation;
}

static void on_class_down(void *ctx, int peer, enum tp_class class, uint32_t generation, int reason)
{
    (void)ctx, (void)peer, (void)class, (void)generation, (void)reason;
}

static void on_immediate(void *ctx, int peer, enum tp_class class, uint32_t immediate)
{
    (void)peer, (void)class, (void)immediate;
    ((struct world *)ctx)->immediates++;
}

static void on_log(void *ctx, enum tp_log_level level, const char *text)
{
    struct world *w = ctx;
    (void)level;
    w->logs++;
    snprintf(w->log, sizeof w->log, "%s", text);
}

static const struct tp_net_sink node_sink = {.up = on_up,
                                             .down = on_down,
                                             .class_up = on_class_up,
                                             .class_down = on_class_down,
                                             .immediate = on_immediate,
                                             .log = on_log};

/* ---- the other one --------------------------------------------------------------------------------------------- */

static void take_open(void *ctx, struct tp_channel *c)
{
    struct world *w = ctx;
    if (c->class != TP_CLASS_CONTROL) { /* it plays no further part */
        c->ops->abort(c);
        return;
    }
    w->c = c;
    w->open++;
}

static void take_frame(void *ctx, struct tp_channel *c, const uint8_t *bytes, size_t size)
{
    struct world *w = ctx;
    if (c != w->c)
        return;
    memcpy(w->frame, bytes, size < sizeof w->frame ? size : sizeof w->frame);
    w->size = size;
    w->frames++;
    w->came_at = now(w);
}

static void take_put_done(void *ctx, struct tp_channel *c, uint64_t cookie, int status)
{
    struct world *w = ctx;
    (void)c, (void)cookie;
    w->puts_done++;
    w->put_status = status;
}

static void take_closed(void *ctx, struct tp_channel *c, int reason, const char *why)
{
    struct world *w = ctx;
    (void)reason, (void)why;
    if (c != w->c)
        return;
    w->c = NULL;
    w->closed++;
}

static const struct tp_sink hand_sink = {
    .accepted = take_open, .opened = take_open, .frame = take_frame, .put_done = take_put_done, .closed = take_closed};

/* ---- both ------------------------------------------------------------------------------------------------------ */

static void choose(struct world *w, enum over over)
{
    if (over == INPROC || over == FAULTY) {
        w->ops = &tp_inproc;
        cr_assert_not_null(w->hub = tp_inproc_hub_new());
        w->provider[0] = w->provider[1] = w->hub;
        w->fault = (struct tp_fault){.ops = &tp_inproc, .provider = w->hub};
        strcpy(w->address[0], "node");
        strcpy(w->address[1], "other");
    } else if (over == TCP) {
        w->ops = &tp_tcp;
        for (int i = 0; i < 2; i++)
            strcpy(w->address[i], "127.0.0.1:0");
    } else {
        w->ops = rr_ops();
        for (int i = 0; i < 2; i++) {
            w->devices[i].devices = i ? "rxe2,rxe4" : "rxe1,rxe3";
            w->provider[i] = &w->devices[i];
            strcpy(w->address[i], i ? "10.77.1.2:0" : "10.77.1.1:0");
        }
    }
    w->node_ops = w->ops;
    if (over == FAULTY) {
        w->node_ops = &tp_faulty;
        w->provider[0] = &w->fault;
    }
}

static struct tp_net_config node_config(struct world *w, bool dials)
{
    struct tp_net_config c = {
        .ops = w->node_ops,
        .endpoint = {.host = {.ctx = w, .now = now, .random = random_bytes, .wake = wake, .base = w->base},
                     .provider = w->provider[0],
                     .connect_ns = INT64_C(30000000000),
                     .silence_ns = INT64_C(30000000000)},
        .sink = &node_sink,
        .handshake_ns = INT64_C(30000000000),
        .self = {.kind = TP_KIND_NODE, .number = dials ? DIALS : IS_DIALLED, .epoch = 200, .roles = 1, .name = "node"}};
    memset(c.secret, 5, sizeof c.secret);
    return c;
}

static struct world *world_new(enum over over, bool node_dials)
{
    struct world *w = calloc(1, sizeof *w);
    struct cfg_error err;
    cr_assert_not_null(w);
    cr_assert_not_null(w->base = event_base_new());
    choose(w, over);
    const struct tp_net_config node = node_config(w, node_dials);
    const struct tp_endpoint_config other = {
        .host = {.sink = &hand_sink, .ctx = w, .now = now, .random = random_bytes, .wake = wake, .base = w->base},
        .provider = w->provider[1],
        .connect_ns = INT64_C(30000000000),
        .silence_ns = INT64_C(30000000000)};
    w->window = calloc(1, WINDOW);
    w->memory = calloc(1, WINDOW);
    struct tp_key own;
    cr_assert_eq(tp_net_new(&node, &w->net, &err), 0, "%s", err.msg);
    cr_assert_eq(tp_net_listen(w->net, w->address[0], w->bound[0], &err), 0, "%s", err.msg);
    cr_assert_eq(tp_net_add_window(w->net, ID, w->window, WINDOW, &err), 0, "%s", err.msg);
    cr_assert_eq(w->ops->open(&other, &w->ep, &err), 0, "%s", err.msg);
    cr_assert_eq(w->ops->listen(w->ep, w->address[1], w->bound[1], &err), 0, "%s", err.msg);
    cr_assert_eq(w->ops->add_region(w->ep, w->memory, WINDOW, &w->region, &own, &err), 0, "%s", err.msg);
    cr_assert_ge(tp_net_add_peer(w->net, "other", node_dials ? IS_DIALLED : DIALS, w->bound[1], &err), 0);
    return w;
}

static void world_free(struct world *w)
{
    w->ops->close(w->ep);
    tp_net_free(w->net);
    event_base_free(w->base);
    tp_inproc_hub_free(w->hub);
    free(w->window);
    free(w->memory);
    free(w);
}

static void until(struct world *w, const int *what, int n)
{
    int64_t limit = now(NULL) + DEADLINE_S * INT64_C(1000000000);
    while (*what < n && now(NULL) < limit) {
        tp_net_poll(w->net);
        w->ops->poll(w->ep);
        event_base_loop(w->base, EVLOOP_NONBLOCK);
    }
    cr_assert_ge(*what, n, "it does not come to that: open %d, closed %d, frames %d, puts %d, immediates %d", w->open,
                 w->closed, w->frames, w->puts_done, w->immediates);
}

static void hand_say(struct world *w, const uint8_t *bytes, size_t size)
{
    struct iovec v = {(void *)(uintptr_t)bytes, size};
    cr_assert_eq(w->c->ops->send(w->c, &v, 1), 0);
}

static void put(struct world *w, uint8_t value, bool with_immediate)
{
    memset(w->memory, value, WINDOW);
    const struct tp_put p = {.region = w->region,
                             .from = w->memory,
                             .size = WINDOW,
                             .key = w->key,
                             .with_immediate = with_immediate,
                             .immediate = 1};
    cr_assert_eq(w->c->ops->put(w->c, &p), 0);
}

/* A put that is not allowed: it fails, ends the channel, and nobody has seen anything of it. */
static void expect_refused(struct world *w, const char *step)
{
    int done = w->puts_done + 1, closed = w->closed + 1, immediates = w->immediates;
    uint8_t before = w->window[0];
    put(w, (uint8_t)(before + 1), true);
    until(w, &w->closed, closed);
    cr_expect_eq(w->puts_done, done, "%s", step);
    cr_expect_lt(w->put_status, 0, "%s: the put arrived", step);
    cr_expect_eq(w->immediates, immediates, "%s: the put was told of", step);
    for (int i = 0; i < WINDOW; i++)
        cr_assert_eq(w->window[i], before, "%s: byte %d was written", step, i);
}

static void learn_key(struct world *w)
{
    struct tp_window windows[TP_WINDOWS_MAX];
    struct cfg_error err;
    int n = 0;
    cr_assert_eq(tp_proof_decode(w->frame, w->size, windows, &n, &err), 0, "%s", err.msg);
    cr_assert(n == 1 && windows[0].id == ID && windows[0].size == WINDOW);
    w->key = windows[0].key;
}

static void end_channel(struct world *w)
{
    int closed = w->closed + 1;
    w->c->ops->abort(w->c);
    until(w, &w->closed, closed);
}

static struct tp_hello other_hello(bool dials)
{
    struct tp_hello h = {.kind = TP_KIND_NODE,
                         .number = dials ? DIALS : IS_DIALLED,
                         .epoch = 100,
                         .roles = 1,
                         .generation = 1,
                         .name = "other"};
    if (dials) {
        strcpy(h.wanted, "node");
        h.wanted_number = IS_DIALLED;
    }
    return h;
}

/* ---- who dials ------------------------------------------------------------------------------------------------- */

static void dial(struct world *w)
{
    struct cfg_error err;
    int open = w->open + 1;
    struct tp_channel *c;
    cr_assert_eq(w->ops->connect(w->ep, w->bound[0], TP_CLASS_CONTROL, NULL, &c, &err), 0, "%s", err.msg);
    until(w, &w->open, open);
}

/* As far as CHALLENGE; what was said. */
static size_t greet(struct world *w, uint8_t said[2 * TP_HANDSHAKE_MAX])
{
    int frames = w->frames + 1;
    const struct tp_hello h = other_hello(true);
    size_t n = tp_hello_encode(&h, said);
    hand_say(w, said, n);
    until(w, &w->frames, frames);
    cr_assert_eq(w->frame[0], TP_FRAME_CHALLENGE);
    memcpy(said + n, w->frame, w->size);
    return n + w->size;
}

/* The whole handshake, with the secret. */
static void dial_up(struct world *w)
{
    uint8_t said[2 * TP_HANDSHAKE_MAX], proof[TP_HANDSHAKE_MAX], secret[TP_SECRET];
    memset(secret, 5, sizeof secret);
    dial(w);
    size_t n = greet(w, said);
    int frames = w->frames + 1;
    hand_say(w, proof, tp_proof_encode(TP_FRAME_PROOF, secret, said, n, NULL, 0, proof));
    until(w, &w->frames, frames);
    cr_assert_eq(w->frame[0], TP_FRAME_WELCOME);
    learn_key(w);
}

/* And a put. */
static void dial_lawfully(struct world *w, uint8_t value)
{
    int immediates = w->immediates + 1, done = w->puts_done + 1;
    dial_up(w);
    put(w, value, true);
    until(w, &w->immediates, immediates);
    until(w, &w->puts_done, done);
    cr_expect_arr_eq(w->window, w->memory, WINDOW);
    end_channel(w);
}

static void who_dials(enum over over)
{
    uint8_t said[2 * TP_HANDSHAKE_MAX];
    struct world *w = world_new(over, false);
    dial_lawfully(w, 1);
    dial(w);
    expect_refused(w, "before HELLO");
    dial(w);
    greet(w, said);
    expect_refused(w, "before PROOF");
    dial_lawfully(w, 2);
    world_free(w);
}

Test(net_by_hand, who_dials_over_inproc)
{
    who_dials(INPROC);
}

Test(net_by_hand, who_dials_over_tcp)
{
    who_dials(TCP);
}

Test(net_by_hand_rdma, who_dials)
{
    rr_need_guest();
    who_dials(RDMA);
}

/* Somebody who calls himself another every time. */
static void call_as(struct world *w, int number)
{
    uint8_t said[TP_HANDSHAKE_MAX];
    int closed = w->closed + 1;
    struct tp_hello h = other_hello(true);
    snprintf(h.name, sizeof h.name, "stranger-%d", number);
    dial(w);
    hand_say(w, said, tp_hello_encode(&h, said));
    until(w, &w->closed, closed);
    while (tp_net_channels(w->net)) /* the node's end of it */
        tp_net_poll(w->net);
}

Test(net_by_hand, strangers_do_not_fill_the_log)
{
    enum { CALLS = 100, MOST = 8 };
    struct world *w = world_new(INPROC, false);
    w->clock = now(NULL);
    for (int i = 0; i < CALLS; i++)
        call_as(w, i);
    cr_expect_eq(w->logs, MOST, "%d lines", w->logs);
    cr_expect(strstr(w->log, "stranger-7"), "%s", w->log);
    w->clock += INT64_C(61) * 1000000000;
    call_as(w, CALLS);
    cr_expect_eq(w->logs, MOST + 2);
    cr_expect(strstr(w->log, "92 more connections were refused"), "%s", w->log);
    dial_lawfully(w, 1);
    world_free(w);
}

/* A connection from 127.0.0.2, which speaks in bytes. */
static int connect_from_elsewhere(struct world *w)
{
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1)};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    to.sin_port = htons((uint16_t)atoi(strchr(w->bound[0], ':') + 1));
    cr_assert_eq(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* Looks after the node until so many channels are left; before the deadline of the handshakes. */
static void until_channels(struct world *w, int most)
{
    int64_t limit = now(NULL) + INT64_C(20000000000);
    do {
        tp_net_poll(w->net);
        event_base_loop(w->base, EVLOOP_NONBLOCK);
    } while (tp_net_channels(w->net) > most && now(NULL) < limit);
    cr_assert_leq(tp_net_channels(w->net), most, "%d channels", tp_net_channels(w->net));
}

enum { CROWD = 400, PLACES = 128 };

static const uint8_t preamble[TP_TCP_PREAMBLE] = {'W', 'E', 'F', 'T', 't', 'p', TP_TCP_VERSION, TP_CLASS_CONTROL,
                                                  0,   0,   1,   0,   8,   0};

static void crowd_in(struct world *w, int crowd[CROWD], bool begin)
{
    for (int i = 0; i < CROWD; i++) {
        crowd[i] = connect_from_elsewhere(w);
        if (begin)
            cr_assert_eq(send(crowd[i], preamble, sizeof preamble, 0), sizeof preamble);
        until_channels(w, CROWD + 1);
    }
}

/* More connections than there are places for, which say nothing or only begin. */
static void crowd_out(bool begin)
{
    uint8_t said[2 * TP_HANDSHAKE_MAX];
    int crowd[CROWD];
    struct world *w = world_new(TCP, false);
    dial(w); /* before them */
    crowd_in(w, crowd, begin);
    until_channels(w, 2 * PLACES);
    greet(w, said);
    dial_lawfully(w, 1); /* and while they are there */
    for (int i = 0; i < CROWD; i++)
        close(crowd[i]);
    world_free(w);
}

Test(net_by_hand, who_connects_and_says_nothing_keeps_nobody_out)
{
    crowd_out(false);
}

Test(net_by_hand, who_only_begins_keeps_nobody_out)
{
    crowd_out(true);
}

/* It could be of a message, of which no part is kept for somebody unknown. */
Test(net_by_hand, a_long_frame_of_a_stranger_is_not_waited_for)
{
    struct world *w = world_new(TCP, false);
    uint8_t first[1000] = {TP_TCP_FRAME};
    first[5] = 0x40; /* 16384 bytes */
    int fd = connect_from_elsewhere(w);
    cr_assert_eq(send(fd, preamble, sizeof preamble, 0), sizeof preamble);
    cr_assert_eq(send(fd, first, sizeof first, 0), sizeof first);
    while (!tp_net_channels(w->net))
        event_base_loop(w->base, EVLOOP_ONCE);
    until_channels(w, 0);
    close(fd);
    dial_lawfully(w, 1);
    world_free(w);
}

/* ---- who is dialled -------------------------------------------------------------------------------------------- */

/* The node dials, and has said HELLO. */
static void be_dialled(struct world *w)
{
    int open = w->open + 1, frames = w->frames + 1;
    until(w, &w->open, open);
    until(w, &w->frames, frames);
    cr_assert_eq(w->frame[0], TP_FRAME_HELLO);
}

/* As far as PROOF; the node is there for puts from then on, as one may follow WELCOME at once. */
static void answer_lawfully(struct world *w, uint8_t value)
{
    uint8_t challenge[TP_HANDSHAKE_MAX], secret[TP_SECRET];
    memset(secret, 5, sizeof secret);
    be_dialled(w);
    const struct tp_hello h = other_hello(false);
    int frames = w->frames + 1, done = w->puts_done + 1;
    hand_say(w, challenge, tp_challenge_encode(&h, secret, w->frame, w->size, challenge));
    until(w, &w->frames, frames);
    cr_assert_eq(w->frame[0], TP_FRAME_PROOF);
    learn_key(w);
    put(w, value, false);
    until(w, &w->puts_done, done);
    cr_expect_eq(w->put_status, 0);
    cr_expect_arr_eq(w->window, w->memory, WINDOW);
    end_channel(w);
}

static void who_is_dialled(enum over over)
{
    struct world *w = world_new(over, true);
    answer_lawfully(w, 1);
    be_dialled(w);
    expect_refused(w, "before CHALLENGE");
    answer_lawfully(w, 2);
    world_free(w);
}

Test(net_by_hand, who_is_dialled_over_inproc)
{
    who_is_dialled(INPROC);
}

Test(net_by_hand, who_is_dialled_over_tcp)
{
    who_is_dialled(TCP);
}

Test(net_by_hand_rdma, who_is_dialled)
{
    rr_need_guest();
    who_is_dialled(RDMA);
}

/* ---- without memory -------------------------------------------------------------------------------------------- */

/* A message waits for room, and then there is no memory to send its at-th frame, TRIES times. */
static void starve(uint64_t at)
{
    enum { TRIES = 4, SIZE = 200000, FRAMES = 4, MS = 1000000 };
    struct world *w = world_new(FAULTY, false);
    uint8_t *bytes = calloc(1, SIZE);
    dial_up(w);
    w->clock = now(NULL);
    int64_t began = w->clock, next;
    int last = w->frames + FRAMES;
    w->fault.rule[0] = (struct tp_fault_rule){.on = TP_FAULT_SEND, .what = TP_FAULT_REFUSE, .at = 1};
    w->fault.rule[1] = (struct tp_fault_rule){.on = TP_FAULT_SEND, .what = TP_FAULT_STARVE, .at = 1 + at, .every = 1};
    w->fault.rules = 2;
    struct iovec v = {bytes, SIZE};
    cr_assert_eq(tp_net_send(w->net, 0, TP_CLASS_CONTROL, &v, 1), 0);
    while (w->frames < last && w->clock < began + INT64_C(900) * MS) {
        for (int i = 0; i < 4; i++) { /* whatever can happen now */
            next = tp_net_poll(w->net);
            w->ops->poll(w->ep);
            if (w->fault.rule[1].done == TRIES)
                w->fault.rules = 0;
        }
        w->clock = next > w->clock ? next : w->clock;
    }
    cr_expect_eq(w->frames, last);
    cr_expect_eq(w->fault.rule[1].done, TRIES);
    cr_expect_le(w->came_at - began, TRIES * 10 * MS, "frame %d: after %lld us", (int)at,
                 (long long)(w->came_at - began) / 1000);
    free(bytes);
    world_free(w);
}

Test(net_by_hand, a_message_that_waits_without_memory_is_tried_again_soon)
{
    for (uint64_t at = 1; at <= 3; at++)
        starve(at);
}
