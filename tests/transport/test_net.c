/* Nodes over a provider: handshake, incarnations, reconnects, messages. Over inproc the clock is virtual: it jumps to
 * the next thing that is due when nothing is under way. */
#include "tests/harness.h"

#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "transport/inproc.h"
#include "transport/net.h"
#include "transport/tcp.h"

enum { NODES = 3, WINDOW = 100000, LOG = 64, TURNS = 2000000 };
#define MS INT64_C(1000000)

struct rig;

struct node {
    struct rig *rig;
    struct tp_net *net;
    char address[TP_ADDRESS_TEXT];
    uint8_t *window;
    bool frozen; /* is not polled */
    bool woken;
    int64_t poll_at;
    int ups, downs, class_ups, class_downs, messages, immediates, puts, bad_puts, asked, logs;
    uint64_t up_epoch, down_epoch;
    int last_reason;
    size_t last_size;
    uint64_t next, wrong;
    char log[LOG][TP_REASON_TEXT];
    char order[256]; /* U, D for the control class, u, d for the others */
    int n_order;
};

struct rig {
    bool tcp;
    int64_t now;
    struct event_base *base;
    struct tp_inproc_hub *hub;
    struct node node[NODES + 1]; /* one more for second incarnations */
};

static int64_t rig_now(void *ctx)
{
    struct node *n = ctx;
    struct timespec t;
    if (!n->rig->tcp)
        return n->rig->now;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 * MS + t.tv_nsec;
}

static void rig_random(void *ctx, void *out, size_t size)
{
    static uint64_t s = 88172645463325252u;
    (void)ctx;
    for (size_t i = 0; i < size; i++) {
        s ^= s << 13, s ^= s >> 7, s ^= s << 17;
        ((uint8_t *)out)[i] = (uint8_t)s;
    }
}

static void rig_wake(void *ctx)
{
    ((struct node *)ctx)->woken = true;
}

static void mark(struct node *n, char c)
{
    if (n->n_order < (int)sizeof n->order - 1)
        n->order[n->n_order++] = c;
}

static void on_up(void *ctx, int peer, uint64_t epoch)
{
    struct node *n = ctx;
    (void)peer;
    n->ups++;
    n->up_epoch = epoch;
    mark(n, 'U');
}

static void on_down(void *ctx, int peer, uint64_t epoch, int reason, const char *why)
{
    struct node *n = ctx;
    (void)peer;
    (void)why;
    n->downs++;
    n->down_epoch = epoch;
    n->last_reason = reason;
    mark(n, 'D');
}

static void on_class_up(void *ctx, int peer, enum tp_class class, uint32_t generation)
{
    (void)peer, (void)class, (void)generation;
    ((struct node *)ctx)->class_ups++;
    mark(ctx, 'u');
}

static void on_class_down(void *ctx, int peer, enum tp_class class, uint32_t generation, int reason)
{
    (void)peer, (void)class, (void)generation, (void)reason;
    ((struct node *)ctx)->class_downs++;
    mark(ctx, 'd');
}

/* A message is a number and bytes that follow from it. */
static void on_message(void *ctx, int peer, enum tp_class class, const uint8_t *bytes, size_t size)
{
    struct node *n = ctx;
    uint64_t number = 0;
    (void)peer, (void)class;
    memcpy(&number, bytes, size < 8 ? size : 8);
    n->wrong += number != n->next++;
    for (size_t i = 8; i < size; i++)
        n->wrong += bytes[i] != (uint8_t)(number + i);
    n->messages++;
    n->last_size = size;
}

static void on_immediate(void *ctx, int peer, enum tp_class class, uint32_t immediate)
{
    (void)peer, (void)class, (void)immediate;
    ((struct node *)ctx)->immediates++;
}

static void on_put_done(void *ctx, int peer, enum tp_class class, uint64_t cookie, int status)
{
    (void)peer, (void)class, (void)cookie;
    ((struct node *)ctx)->puts++;
    ((struct node *)ctx)->bad_puts += status != 0;
}

static void on_net_room(void *ctx, int peer, enum tp_class class)
{
    (void)ctx, (void)peer, (void)class;
}

static void on_asked(void *ctx, uint64_t tool, const uint8_t *bytes, size_t size)
{
    struct node *n = ctx;
    n->asked++;
    tp_net_answer(n->net, tool, bytes, size);
}

static void on_log(void *ctx, enum tp_log_level level, const char *text)
{
    struct node *n = ctx;
    (void)level;
    if (n->logs < LOG)
        snprintf(n->log[n->logs], sizeof n->log[0], "%s", text);
    n->logs++;
}

static const struct tp_net_sink sink = {.up = on_up,
                                        .down = on_down,
                                        .class_up = on_class_up,
                                        .class_down = on_class_down,
                                        .message = on_message,
                                        .immediate = on_immediate,
                                        .put_done = on_put_done,
                                        .room = on_net_room,
                                        .asked = on_asked,
                                        .log = on_log};

static struct tp_net_config config_of(struct rig *r, int at, int number, uint64_t epoch)
{
    struct tp_net_config c = {
        .ops = r->tcp ? &tp_tcp : &tp_inproc,
        .endpoint =
            {.host = {.ctx = &r->node[at], .now = rig_now, .random = rig_random, .wake = rig_wake, .base = r->base},
             .provider = r->hub},
        .sink = &sink,
        .self = {.kind = TP_KIND_NODE,
                 .number = (uint16_t)number,
                 .epoch = epoch,
                 .roles = 1u << number,
                 .model = 77,
                 .kv_format = 1,
                 .block_tokens = 256,
                 .numerics = "cpu/test",
                 .replay = "rows = 140, bridge_window = truncate"}};
    snprintf(c.self.name, sizeof c.self.name, "node%d", number);
    memset(c.secret, 5, sizeof c.secret);
    return c;
}

static void start(struct rig *r, int at, const struct tp_net_config *c, const char *address)
{
    struct node *n = &r->node[at];
    struct cfg_error err;
    *n = (struct node){.rig = r, .woken = true, .window = calloc(1, WINDOW)};
    cr_assert_eq(tp_net_new(c, &n->net, &err), 0, "%s", err.msg);
    cr_assert_eq(tp_net_listen(n->net, address, n->address, &err), 0, "%s", err.msg);
    cr_assert_eq(tp_net_add_window(n->net, 9, n->window, WINDOW, &err), 0, "%s", err.msg);
}

static void stop(struct rig *r, int at)
{
    tp_net_free(r->node[at].net);
    free(r->node[at].window);
    r->node[at].net = NULL;
    r->node[at].window = NULL;
}

static void start_node(struct rig *r, int at, int number, uint64_t epoch)
{
    struct tp_net_config c = config_of(r, at, number, epoch);
    char name[32];
    snprintf(name, sizeof name, r->tcp ? "127.0.0.1:0" : "place%d", number);
    start(r, at, &c, name);
}

static void know(struct rig *r, int at, int other, int number)
{
    struct cfg_error err;
    char name[32];
    snprintf(name, sizeof name, "node%d", number);
    cr_assert_ge(tp_net_add_peer(r->node[at].net, name, (uint16_t)number, r->node[other].address, &err), 0, "%s",
                 err.msg);
}

static struct rig *rig_new(bool tcp)
{
    struct rig *r = calloc(1, sizeof *r);
    r->tcp = tcp;
    r->now = 1000 * MS;
    if (tcp)
        cr_assert_not_null(r->base = event_base_new());
    else
        cr_assert_not_null(r->hub = tp_inproc_hub_new());
    return r;
}

static void rig_free(struct rig *r)
{
    for (int i = 0; i <= NODES; i++)
        if (r->node[i].net)
            stop(r, i);
    if (r->base)
        event_base_free(r->base);
    tp_inproc_hub_free(r->hub);
    free(r);
}

static void on_tick(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd, (void)what, (void)ctx;
}

static void turn(struct rig *r)
{
    int64_t next = TP_NEVER;
    bool woken = false;
    for (int i = 0; i <= NODES; i++) {
        struct node *n = &r->node[i];
        if (!n->net || n->frozen)
            continue;
        n->woken = false;
        n->poll_at = tp_net_poll(n->net);
    }
    for (int i = 0; i <= NODES; i++) {
        struct node *n = &r->node[i];
        if (!n->net || n->frozen)
            continue;
        woken |= n->woken;
        next = n->poll_at < next ? n->poll_at : next;
    }
    if (r->tcp) {
        struct timeval t = {0, 1000};
        event_base_once(r->base, -1, EV_TIMEOUT, on_tick, NULL, &t);
        event_base_loop(r->base, EVLOOP_ONCE);
    } else if (!woken && next != TP_NEVER && next > r->now) {
        r->now = next;
    }
}

static void until(struct rig *r, const int *what, int n)
{
    struct timespec began, t;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (int i = 0; *what < n && i < TURNS; i++) {
        turn(r);
        clock_gettime(CLOCK_MONOTONIC, &t);
        if (t.tv_sec - began.tv_sec > 60)
            break;
    }
    cr_assert_ge(*what, n, "it does not come to that; last log: %s",
                 r->node[0].logs ? r->node[0].log[(r->node[0].logs - 1) % LOG] : "-");
}

/* Two nodes that know each other, 1 dials 2. */
static struct rig *pair(bool tcp)
{
    struct rig *r = rig_new(tcp);
    start_node(r, 0, 1, 100);
    start_node(r, 1, 2, 200);
    know(r, 0, 1, 2);
    know(r, 1, 0, 1);
    return r;
}

static void until_joined(struct rig *r)
{
    for (int i = 0; i < 2; i++) {
        until(r, &r->node[i].ups, 1);
        until(r, &r->node[i].class_ups, 2);
    }
}

static void say(struct node *n, enum tp_class class, uint64_t number, size_t size)
{
    uint8_t *bytes = malloc(size + 8);
    memcpy(bytes, &number, 8);
    for (size_t i = 8; i < size; i++)
        bytes[i] = (uint8_t)(number + i);
    struct iovec v[2] = {{bytes, size / 2}, {bytes + size / 2, size - size / 2}};
    cr_assert_eq(tp_net_send(n->net, 0, class, v, 2), 0);
    free(bytes);
}

static bool has_log(const struct node *n, const char *text)
{
    for (int i = 0; i < n->logs && i < LOG; i++)
        if (strstr(n->log[i], text))
            return true;
    return false;
}

static void talk(bool tcp)
{
    struct rig *r = pair(tcp);
    until_joined(r);
    cr_expect_eq(r->node[0].up_epoch, 200);
    cr_expect_eq(r->node[1].up_epoch, 100);
    cr_expect_eq(tp_net_peer(r->node[0].net, 0)->roles, 4);
    cr_expect_eq(tp_net_peer(r->node[0].net, 0)->n_windows, 1);
    static const size_t sizes[] = {1, 7, 8, 100, 65000, 65528, 65529, 200000, 5000000, 9, 64};
    int n = sizeof sizes / sizeof sizes[0];
    for (int k = 0; k < n; k++)
        for (int i = 0; i < 2; i++)
            say(&r->node[i], TP_CLASS_CONTROL, (uint64_t)k, sizes[k]);
    for (int i = 0; i < 2; i++) {
        until(r, &r->node[i].messages, n);
        cr_expect_eq(r->node[i].wrong, 0);
        cr_expect_eq(r->node[i].last_size, 64);
    }
    memset(r->node[0].window, 0x3c, WINDOW);
    struct tp_net_put p = {.from_window = 9, .to_window = 9, .to = 10, .size = WINDOW - 10, .with_immediate = true};
    cr_assert_eq(tp_net_put(r->node[0].net, 0, TP_CLASS_KV, &p), 0);
    until(r, &r->node[1].immediates, 1);
    until(r, &r->node[0].puts, 1);
    int channels = tp_net_channels(r->node[0].net);
    for (int k = 0; k < 300; k++) { /* however many: over the connection that is there */
        cr_assert_eq(tp_net_put(r->node[0].net, 0, TP_CLASS_KV, &p), 0);
        until(r, &r->node[0].puts, k + 2);
    }
    cr_expect(tp_net_channels(r->node[0].net) == channels && !r->node[0].class_downs);
    cr_expect_eq(r->node[0].bad_puts, 0);
    cr_expect_eq(r->node[1].window[9], 0);
    cr_expect_eq(r->node[1].window[10], 0x3c);
    cr_expect_eq(r->node[1].window[WINDOW - 1], 0x3c);
    p.to = 11;
    cr_expect_eq(tp_net_put(r->node[0].net, 0, TP_CLASS_KV, &p), -EINVAL);
    p.to_window = 8;
    cr_expect_eq(tp_net_put(r->node[0].net, 0, TP_CLASS_KV, &p), -EINVAL);
    cr_expect_eq(tp_net_channels(r->node[0].net), 3);
    rig_free(r);
}

Test(net, messages_and_puts_over_inproc)
{
    talk(false);
}

Test(net, messages_and_puts_over_tcp)
{
    talk(true);
}

/* node 1 is told to be somebody else in some way; both sides learn why that does not go. */
static void refused(void (*change)(struct tp_net_config *c), const char *why, bool both_log)
{
    for (int who = 0; who < 2; who++) {
        struct rig *r = rig_new(false);
        for (int i = 0; i < 2; i++) {
            struct tp_net_config c = config_of(r, i, i + 1, 100);
            char name[32];
            snprintf(name, sizeof name, "place%d", i);
            if (i == who)
                change(&c);
            start(r, i, &c, name);
        }
        know(r, 0, 1, 2);
        know(r, 1, 0, 1);
        until(r, &r->node[0].logs, 1);
        for (int i = 0; i < 200; i++)
            turn(r);
        cr_expect_eq(r->node[0].ups + r->node[1].ups, 0);
        cr_expect(has_log(&r->node[0], why), "the dialling side says: %s", r->node[0].log[0]);
        cr_expect_eq(r->node[0].logs, 1, "one line per episode, not %d", r->node[0].logs);
        if (both_log) {
            cr_expect(has_log(&r->node[1], why), "the accepting side says: %s", r->node[1].log[0]);
            cr_expect_eq(r->node[1].logs, 1, "one line per episode, not %d", r->node[1].logs);
        }
        cr_expect(tp_net_peer(r->node[0].net, 0)->breaker, "it is not tried often");
        cr_expect_le(tp_net_channels(r->node[1].net), 1);
        rig_free(r);
    }
}

static void other_secret(struct tp_net_config *c)
{
    c->secret[31] ^= 1;
}

static void other_model(struct tp_net_config *c)
{
    c->self.model++;
}

static void other_numerics(struct tp_net_config *c)
{
    strcpy(c->self.numerics, "cpu/other");
}

static void other_blocks(struct tp_net_config *c)
{
    c->self.block_tokens = 128;
}

static void other_replay(struct tp_net_config *c)
{
    strcpy(c->self.replay, "rows = 200, bridge_window = truncate");
}

static void other_name(struct tp_net_config *c)
{
    strcpy(c->self.name, "somebody");
}

Test(net, a_node_that_differs_is_refused_on_both_sides)
{
    refused(other_secret, "the secrets differ", true);
    refused(other_name, "somebody", true);
    refused(other_model, "serves model revision", true);
    refused(other_numerics, "cpu/other", true);
    refused(other_blocks, "blocks of 128", true);
    refused(other_replay, "with replay.rows = 200, bridge_window = truncate", true);
    refused(other_replay, "with replay.rows = 140, bridge_window = truncate", true);
}

/* One of the two is frozen after each turn of a handshake that goes well, or that is refused: what the other one waits
 * for ends in time, and it takes connections again. */
static void frozen_at_every_turn(bool is_refused)
{
    enum { STEPS = 40, LIMIT_MS = 12000 /* a handshake, or a ping and the silence behind it; and half a second */ };
    int most = 0;
    for (int step = 0; step < STEPS; step++)
        for (int who = 0; who < 2; who++) {
            struct rig *r = rig_new(false);
            for (int i = 0; i < 2; i++) {
                struct tp_net_config c = config_of(r, i, i + 1, 100);
                char name[32];
                snprintf(name, sizeof name, "place%d", i);
                if (i == who && is_refused)
                    other_model(&c);
                start(r, i, &c, name);
            }
            know(r, 0, 1, 2);
            know(r, 1, 0, 1);
            for (int i = 0; i < step; i++)
                turn(r);
            struct node *lives = &r->node[!who];
            const int had = tp_net_channels(lives->net);
            most = had > most ? had : most;
            r->node[who].frozen = true;
            /* The dialling side tries again and again, and what it tries ends. */
            int64_t limit = r->now + LIMIT_MS * MS;
            const struct tp_peer_info *p = tp_net_peer(lives->net, 0);
            for (int i = 0; i < 10000 && r->now < limit && (who ? !p->failures : tp_net_channels(lives->net) > 0); i++)
                turn(r);
            cr_assert_lt(r->now, limit, "node %d is frozen at step %d, and the other one waits", who + 1, step);
            cr_assert(who ? p->failures : !tp_net_channels(lives->net),
                      "node %d is frozen at step %d: %d channels wait", who + 1, step, tp_net_channels(lives->net));
            rig_free(r);
        }
    cr_expect_gt(most, 0);
}

Test(net, a_peer_that_freezes_at_any_step_of_the_handshake_is_let_go)
{
    frozen_at_every_turn(false);
}

Test(net, a_refused_peer_that_freezes_is_let_go)
{
    frozen_at_every_turn(true);
}

Test(net, a_new_incarnation_replaces_the_old_one_and_the_old_one_is_refused)
{
    struct rig *r = pair(false);
    until_joined(r);
    /* It dies without a word and comes back. */
    stop(r, 0);
    start_node(r, 0, 1, 101);
    know(r, 0, 1, 2);
    until(r, &r->node[1].ups, 2);
    cr_expect_eq(r->node[1].downs, 1);
    cr_expect_eq(r->node[1].down_epoch, 100);
    cr_expect_eq(r->node[1].up_epoch, 101);
    cr_expect_str_eq(r->node[1].order, "UuuddDU");
    /* An older one has no chance, even when the newer one has gone. */
    stop(r, 0);
    until(r, &r->node[1].downs, 2);
    start_node(r, 0, 1, 50);
    know(r, 0, 1, 2);
    until(r, &r->node[0].logs, 1);
    cr_expect(has_log(&r->node[0], "has a newer incarnation"), "%s", r->node[0].log[0]);
    cr_expect_eq(r->node[1].ups, 2);
    rig_free(r);
}

Test(net, a_frozen_incarnation_is_retired_by_a_newer_one)
{
    struct rig *r = pair(false);
    until_joined(r);
    r->node[0].frozen = true; /* as by SIGSTOP: its connections stay */
    struct tp_net_config c = config_of(r, 3, 1, 300);
    int64_t began = r->now;
    start(r, 3, &c, "elsewhere");
    know(r, 3, 1, 2);
    until(r, &r->node[1].ups, 2);
    cr_expect_lt(r->now - began, 2500 * MS, "one ping decides: %d ms", (int)((r->now - began) / MS));
    cr_expect_eq(r->node[1].up_epoch, 300);
    cr_expect_str_eq(r->node[1].order, "UuuddDU", "the old one has ended before the new one is up");
    rig_free(r);
}

/* The state folder of the node that accepts is lost, and its clock is behind: both sides are told, once. */
Test(net, an_older_incarnation_that_accepts_is_refused_on_both_sides)
{
    struct rig *r = pair(false);
    until_joined(r);
    stop(r, 1);
    until(r, &r->node[0].downs, 1);
    start_node(r, 1, 2, 150);
    know(r, 1, 0, 1);
    until(r, &r->node[1].logs, 1);
    int64_t began = r->now;
    while (r->now - began < 60000 * MS)
        turn(r);
    cr_expect(has_log(&r->node[1], "node node2 has a newer incarnation (epoch 200, this one 150)"), "%s",
              r->node[1].log[0]);
    cr_expect(has_log(&r->node[0], "node node2 has a newer incarnation"), "also when the episode began otherwise");
    cr_expect_eq(r->node[1].logs, 1, "one line per reason, not %d", r->node[1].logs);
    cr_expect_eq(r->node[1].ups, 0, "it is never up there");
    cr_expect_eq(r->node[0].ups, 1);
    stop(r, 1);
    start_node(r, 1, 2, 201);
    know(r, 1, 0, 1);
    until(r, &r->node[0].ups, 2);
    rig_free(r);
}

Test(net, a_second_live_owner_of_a_name_is_refused_by_name)
{
    struct rig *r = pair(false);
    until_joined(r);
    struct tp_net_config c = config_of(r, 3, 1, 300);
    start(r, 3, &c, "elsewhere");
    know(r, 3, 1, 2);
    until(r, &r->node[3].logs, 1);
    cr_expect(has_log(&r->node[3], "another process lives as node node1"), "%s", r->node[3].log[0]);
    cr_expect(has_log(&r->node[1], "another process lives as node node1"));
    cr_expect_eq(r->node[1].ups, 1);
    cr_expect_eq(r->node[1].downs, 0, "the one that lives is not touched");
    rig_free(r);
}

/* by: who asks for it, the node that dials (0) or the one that accepts. */
static void fence(bool tcp, int by)
{
    struct rig *r = pair(tcp);
    until_joined(r);
    uint32_t generation = tp_net_peer(r->node[1].net, 0)->generation[TP_CLASS_KV];
    tp_net_fence(r->node[by].net, 0, TP_CLASS_KV);
    until(r, &r->node[1].class_downs, 1);
    until(r, &r->node[0].class_downs, 1);
    until(r, &r->node[1].class_ups, 3);
    cr_expect_gt(tp_net_peer(r->node[1].net, 0)->generation[TP_CLASS_KV], generation);
    cr_expect_eq(r->node[1].downs, 0);
    cr_expect_eq(r->node[1].class_downs, 1, "the other class is not touched");
    rig_free(r);
}

Test(net, a_fence_ends_one_class_and_it_comes_back)
{
    for (int k = 0; k < 4; k++) /* by either side, over tcp too */
        fence(k / 2, k % 2);
}

Test(net, a_dead_peer_is_tried_ever_less_often_and_logged_once)
{
    struct rig *r = pair(false);
    until_joined(r);
    int logs = r->node[0].logs;
    stop(r, 1);
    until(r, &r->node[0].downs, 1);
    int64_t began = r->now;
    const struct tp_peer_info *p = tp_net_peer(r->node[0].net, 0);
    int failures = p->failures;
    while (p->failures < 7) /* before the breaker */
        turn(r);
    cr_expect_gt(r->now - began, 1500 * MS, "seven tries within %d ms", (int)((r->now - began) / MS));
    while (r->now - began < 60000 * MS)
        turn(r);
    cr_expect_gt(p->failures - failures, 8);
    cr_expect_lt(p->failures - failures, 25, "%d tries in a minute", p->failures - failures);
    cr_expect(p->breaker);
    cr_expect_eq(r->node[0].logs, logs + 1, "one line for the episode");
    cr_expect(has_log(&r->node[0], "is lost"));
    start_node(r, 1, 2, 201);
    know(r, 1, 0, 1);
    until(r, &r->node[0].ups, 2);
    cr_expect_eq(r->node[0].logs, logs + 2, "and one for its end");
    cr_expect_not(p->breaker && p->up && p->failures == 0);
    cr_expect_le(tp_net_channels(r->node[0].net), 3);
    rig_free(r);
}

/* A channel that comes up and dies at once is no success. */
Test(net, a_channel_that_never_lives_for_long_is_tried_ever_less_often)
{
    struct rig *r = pair(false);
    until_joined(r);
    for (int64_t began = r->now; r->now - began < 60000 * MS; turn(r))
        if (r->node[0].class_ups == r->node[0].class_downs + 2) /* nobody else's end, and seen up here */
            tp_net_fence(r->node[1].net, 0, TP_CLASS_KV);
    cr_expect(r->node[0].class_downs > 8 && r->node[0].class_downs < 30, "up %d times", r->node[0].class_downs);
    rig_free(r);
}

Test(net, a_silent_peer_is_lost_in_time)
{
    struct rig *r = pair(false);
    until_joined(r);
    r->node[1].frozen = true;
    int64_t began = r->now;
    until(r, &r->node[0].downs, 1);
    cr_expect_ge(r->now - began, 5000 * MS);
    cr_expect_lt(r->now - began, 8000 * MS, "%lld ms", (long long)((r->now - began) / MS));
    rig_free(r);
}

Test(net, an_idle_pair_stays)
{
    struct rig *r = pair(false);
    until_joined(r);
    int64_t began = r->now;
    while (r->now - began < 3600000 * MS)
        turn(r);
    cr_expect_eq(r->node[0].downs + r->node[1].downs, 0);
    cr_expect_eq(r->node[0].class_downs + r->node[1].class_downs, 0);
    say(&r->node[0], TP_CLASS_EXPERT, 0, 100);
    until(r, &r->node[1].messages, 1);
    rig_free(r);
}

/* One pair breaks, the other does not notice. */
Test(net, a_failing_pair_leaves_a_stable_one_alone)
{
    struct rig *r = pair(false);
    struct cfg_error err;
    start_node(r, 2, 3, 1);
    know(r, 2, 0, 1);
    know(r, 0, 2, 3);
    until_joined(r);
    until(r, &r->node[2].class_ups, 2);
    for (int i = 0; i < 20; i++) {
        stop(r, 2);
        start_node(r, 2, 3, (uint64_t)i + 2);
        cr_assert_ge(tp_net_add_peer(r->node[2].net, "node1", 1, r->node[0].address, &err), 0);
        until(r, &r->node[2].class_ups, 2);
        say(&r->node[1], TP_CLASS_CONTROL, (uint64_t)i, 1000);
        until(r, &r->node[0].messages, i + 1);
    }
    cr_expect_eq(r->node[1].downs, 0);
    cr_expect_eq(r->node[0].wrong, 0);
    cr_expect_eq(r->node[0].downs, 20);
    cr_expect_le(tp_net_channels(r->node[0].net), 6);
    rig_free(r);
}

Test(net, a_removed_peer_goes_and_is_a_stranger_then)
{
    struct rig *r = pair(false);
    until_joined(r);
    tp_net_remove_peer(r->node[1].net, 0);
    until(r, &r->node[1].downs, 1);
    until(r, &r->node[0].downs, 1);
    for (int i = 0; i < 500; i++)
        turn(r);
    cr_expect_null(tp_net_peer(r->node[1].net, 0));
    cr_expect_eq(r->node[1].ups, 1);
    cr_expect_not_null(strstr(tp_net_peer(r->node[0].net, 0)->last, "is not in the configuration"), "%s",
                       tp_net_peer(r->node[0].net, 0)->last);
    struct cfg_error err;
    for (int i = 0; i < 2 * TP_PEERS_MAX; i++) { /* nodes come and go for ever */
        int at = tp_net_add_peer(r->node[1].net, "passing", 1, "nowhere", &err);
        cr_assert_eq(at, 0, "%s", err.msg);
        tp_net_remove_peer(r->node[1].net, at);
    }
    know(r, 1, 0, 1);
    until(r, &r->node[1].ups, 2);
    rig_free(r);
}

/* ---- handshakes by hand -------------------------------------------------------------------------- */

/* Speaks as node 1 to node 2 of a rig, frame by frame. */
struct hand {
    struct tp_endpoint *ep;
    struct tp_channel *c;
    int opened, closed, frames;
    uint8_t frame[TP_HANDSHAKE_MAX]; /* the last one that came */
    size_t size;
    uint8_t hello[TP_HANDSHAKE_MAX], challenge[TP_HANDSHAKE_MAX], proof[TP_HANDSHAKE_MAX];
    size_t hello_size, challenge_size, proof_size;
};

static void hand_opened(void *ctx, struct tp_channel *c)
{
    (void)c;
    ((struct hand *)ctx)->opened++;
}

static void hand_frame(void *ctx, struct tp_channel *c, const uint8_t *bytes, size_t size)
{
    struct hand *h = ctx;
    (void)c;
    cr_assert_le(size, sizeof h->frame);
    memcpy(h->frame, bytes, size);
    h->size = size;
    h->frames++;
}

static void hand_closed(void *ctx, struct tp_channel *c, int reason, const char *why)
{
    (void)c, (void)reason, (void)why;
    ((struct hand *)ctx)->closed++;
}

static int64_t hand_now(void *ctx)
{
    (void)ctx;
    return 1;
}

static void hand_wake(void *ctx)
{
    (void)ctx;
}

static const struct tp_sink hand_sink = {.opened = hand_opened, .frame = hand_frame, .closed = hand_closed};

/* No time passes. */
static void hand_until(struct rig *r, struct hand *h, const int *what, int n)
{
    for (int i = 0; *what < n && i < 1000; i++) {
        tp_net_poll(r->node[1].net);
        tp_inproc.poll(h->ep);
    }
    cr_assert_ge(*what, n);
}

static void hand_say(struct rig *r, struct hand *h, const uint8_t *bytes, size_t size)
{
    struct iovec v = {(void *)(uintptr_t)bytes, size};
    int frames = h->frames + 1;
    cr_assert_eq(h->c->ops->send(h->c, &v, 1), 0);
    hand_until(r, h, &h->frames, frames);
}

/* As far as the other side's challenge. */
static void hand_begin(struct rig *r, struct hand *h, enum tp_class class, uint32_t generation, uint64_t epoch)
{
    struct cfg_error err;
    const struct tp_endpoint_config e = {
        .provider = r->hub,
        .host = {.sink = &hand_sink, .ctx = h, .now = hand_now, .random = rig_random, .wake = hand_wake}};
    struct tp_hello hello = {.kind = TP_KIND_NODE,
                             .class = (uint8_t) class,
                             .number = 1,
                             .wanted_number = 2,
                             .epoch = epoch,
                             .roles = 1,
                             .model = 77,
                             .kv_format = 1,
                             .block_tokens = 256,
                             .generation = generation,
                             .name = "node1",
                             .wanted = "node2",
                             .numerics = "cpu/test"};
    *h = (struct hand){0};
    cr_assert_eq(tp_inproc.open(&e, &h->ep, &err), 0, "%s", err.msg);
    cr_assert_eq(tp_inproc.connect(h->ep, r->node[1].address, class, NULL, &h->c, &err), 0, "%s", err.msg);
    hand_until(r, h, &h->opened, 1);
    h->hello_size = tp_hello_encode(&hello, h->hello);
    hand_say(r, h, h->hello, h->hello_size);
    cr_assert_eq(h->frame[0], TP_FRAME_CHALLENGE);
    memcpy(h->challenge, h->frame, h->size);
    h->challenge_size = h->size;
}

/* The whole of it; what the other side says at its end. */
static enum tp_frame hand_shake(struct rig *r, struct hand *h, enum tp_class class, uint32_t generation, uint64_t epoch)
{
    uint8_t said[2 * TP_HANDSHAKE_MAX], secret[TP_SECRET];
    memset(secret, 5, sizeof secret);
    hand_begin(r, h, class, generation, epoch);
    memcpy(said, h->hello, h->hello_size);
    memcpy(said + h->hello_size, h->challenge, h->challenge_size);
    h->proof_size = tp_proof_encode(TP_FRAME_PROOF, secret, said, h->hello_size + h->challenge_size, NULL, 0, h->proof);
    hand_say(r, h, h->proof, h->proof_size);
    return (enum tp_frame)h->frame[0];
}

static bool hand_told(const struct hand *h, const char *what)
{
    enum tp_refusal code;
    char reason[TP_REASON_TEXT];
    return tp_refuse_decode(h->frame, h->size, &code, reason) == 0 && strstr(reason, what);
}

static struct rig *hand_rig(void)
{
    struct rig *r = rig_new(false);
    struct cfg_error err;
    start_node(r, 1, 2, 200);
    cr_assert_ge(tp_net_add_peer(r->node[1].net, "node1", 1, "nowhere", &err), 0);
    return r;
}

/* A newcomer goes while the older one is asked whether it lives. What that one answered then says nothing later on. */
Test(net, a_newcomer_that_goes_leaves_no_verdict_for_the_next)
{
    struct rig *r = pair(false);
    static struct hand first;
    uint8_t said[2 * TP_HANDSHAKE_MAX], secret[TP_SECRET];
    until_joined(r);
    memset(secret, 5, sizeof secret);
    hand_begin(r, &first, TP_CLASS_CONTROL, 1, 300);
    memcpy(said, first.hello, first.hello_size);
    memcpy(said + first.hello_size, first.challenge, first.challenge_size);
    size_t n =
        tp_proof_encode(TP_FRAME_PROOF, secret, said, first.hello_size + first.challenge_size, NULL, 0, first.proof);
    struct iovec v = {first.proof, n};
    int frames = first.frames;
    cr_assert_eq(first.c->ops->send(first.c, &v, 1), 0);
    for (int i = 0; i < 20; i++) {
        tp_net_poll(r->node[1].net);
        tp_inproc.poll(first.ep);
    }
    cr_assert_eq(first.frames, frames, "it is held");
    tp_inproc.close(first.ep);
    for (int i = 0; i < 20; i++)
        tp_net_poll(r->node[1].net);
    for (int i = 0; i < 50; i++)
        turn(r);
    cr_assert_eq(r->node[1].downs, 0);
    r->node[0].frozen = true;
    struct tp_net_config c = config_of(r, 3, 1, 400);
    start(r, 3, &c, "elsewhere");
    know(r, 3, 1, 2);
    until(r, &r->node[1].ups, 2);
    cr_expect_eq(r->node[1].up_epoch, 400);
    cr_expect_not(has_log(&r->node[3], "another process lives"));
    rig_free(r);
}

/* One side has lost its channel and the other has not noticed; what is late of the one before changes nothing. */
Test(net, a_newer_channel_retires_the_old_one_and_an_older_one_is_refused)
{
    struct rig *r = hand_rig();
    static struct hand control, first, again, newer, old;
    cr_assert_eq(hand_shake(r, &control, TP_CLASS_CONTROL, 1, 100), TP_FRAME_WELCOME);
    cr_assert_eq(hand_shake(r, &first, TP_CLASS_KV, 5, 100), TP_FRAME_WELCOME);
    cr_expect_str_eq(r->node[1].order, "Uu");
    cr_assert_eq(hand_shake(r, &again, TP_CLASS_KV, 5, 100), TP_FRAME_REFUSE);
    cr_expect(hand_told(&again, "a newer kv channel"));
    cr_expect_eq(tp_net_peer(r->node[1].net, 0)->generation[TP_CLASS_KV], 5);
    cr_assert_eq(hand_shake(r, &newer, TP_CLASS_KV, 6, 100), TP_FRAME_WELCOME);
    hand_until(r, &first, &first.closed, 1);
    cr_expect_str_eq(r->node[1].order, "Uudu", "the old one has ended before the new one is up");
    cr_expect_eq(tp_net_peer(r->node[1].net, 0)->generation[TP_CLASS_KV], 6);
    cr_assert_eq(hand_shake(r, &old, TP_CLASS_KV, 7, 99), TP_FRAME_REFUSE);
    cr_expect(hand_told(&old, "has a newer incarnation"));
    cr_expect_eq(r->node[1].downs, 0);
    struct hand *const all[] = {&control, &first, &again, &newer, &old};
    for (int i = 0; i < 5; i++)
        tp_inproc.close(all[i]->ep);
    rig_free(r);
}

/* Whoever has recorded a handshake cannot use it again: the other side asks something new each time, and a proof is of
 * everything that was said. */
Test(net, a_recorded_handshake_opens_nothing)
{
    struct rig *r = hand_rig();
    static struct hand recorded, replayed;
    cr_assert_eq(hand_shake(r, &recorded, TP_CLASS_CONTROL, 1, 100), TP_FRAME_WELCOME);
    tp_inproc.close(recorded.ep);
    until(r, &r->node[1].downs, 1);
    hand_begin(r, &replayed, TP_CLASS_CONTROL, 1, 100);
    cr_assert_eq(replayed.hello_size, recorded.hello_size);
    cr_assert_arr_eq(replayed.hello, recorded.hello, recorded.hello_size, "the same is said");
    hand_say(r, &replayed, recorded.proof, recorded.proof_size);
    cr_expect_eq(replayed.frame[0], TP_FRAME_REFUSE);
    cr_expect(hand_told(&replayed, "the secrets differ"));
    cr_expect_eq(r->node[1].ups, 1);
    tp_inproc.close(replayed.ep);
    rig_free(r);
}

/* ---- tools --------------------------------------------------------------------------------------- */

struct question {
    struct tp_ask ask;
    struct tp_answer answer;
    struct cfg_error err;
    int status;
    int done;
};

static void *ask(void *arg)
{
    struct question *q = arg;
    q->status = tp_net_ask(&q->ask, &q->answer, &q->err);
    /* Release: the answer is whole. Partner: the loop of ask_node. */
    __atomic_store_n(&q->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void ask_node(struct rig *r, struct question *q)
{
    pthread_t t;
    cr_assert_eq(pthread_create(&t, NULL, ask, q), 0);
    /* Acquire: partner is ask(). */
    while (!__atomic_load_n(&q->done, __ATOMIC_ACQUIRE))
        turn(r);
    pthread_join(t, NULL);
}

Test(net, tools_ask_and_are_answered)
{
    struct rig *r = pair(true);
    uint8_t secret[TP_SECRET], wrong[TP_SECRET] = {0};
    memset(secret, 5, sizeof secret);
    until_joined(r);
    struct question q = {.ask = {.ops = &tp_tcp,
                                 .secret = secret,
                                 .tool = "test",
                                 .address = r->node[1].address,
                                 .name = "node2",
                                 .number = 2,
                                 .question = "what?",
                                 .size = 5,
                                 .timeout_ns = 20000 * MS}};
    ask_node(r, &q);
    cr_expect_eq(q.status, 0, "%s", q.err.msg);
    cr_expect_str_eq((char *)q.answer.bytes, "what?");
    cr_expect_eq(q.answer.node.epoch, 200);
    cr_expect_gt(q.answer.connect_ns, 0);
    free(q.answer.bytes);
    struct question bad = {.ask = q.ask};
    bad.ask.secret = wrong;
    ask_node(r, &bad);
    cr_expect_lt(bad.status, 0);
    cr_expect_not_null(strstr(bad.err.msg, "the secrets differ"), "%s", bad.err.msg);
    struct question other = {.ask = q.ask};
    other.ask.name = "node9";
    ask_node(r, &other);
    cr_expect_lt(other.status, 0);
    cr_expect_not_null(strstr(other.err.msg, "node9"), "%s", other.err.msg);
    cr_expect_eq(r->node[1].asked, 1);
    rig_free(r);
}
