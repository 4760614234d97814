/* A question from outside: a net of its own with one connection, in an event loop of its own. */
#include <errno.h>
#include <event2/event.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "transport/bytes.h"
#include "transport/net_impl.h"

struct asking {
    struct tp_net *net;
    struct event_base *base;
    const struct tp_ask *ask;
    struct tp_answer *out;
    int64_t began, up_at, limit;
    bool done;
    int status;
    char why[TP_REASON_TEXT];
};

static int64_t ask_now(void *ctx)
{
    struct timespec t;
    (void)ctx;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void ask_random(void *ctx, void *out, size_t size)
{
    (void)ctx;
    randombytes_buf(out, size);
}

/* The loop below polls after every turn, and turns never last long. */
static void ask_wake(void *ctx)
{
    (void)ctx;
}

static void on_tool_up(void *ctx, struct net_conn *c)
{
    struct asking *a = ctx;
    struct iovec v = {(void *)(uintptr_t)a->ask->question, a->ask->size};
    a->up_at = ask_now(NULL);
    a->out->connect_ns = a->up_at - a->began;
    a->out->node = c->other;
    if (a->ask->size == 0 || net_conn_send(c, &v, 1))
        a->done = true;
}

static void on_tool_end(void *ctx, int reason, const char *why)
{
    struct asking *a = ctx;
    if (a->done)
        return;
    a->done = true;
    a->status = reason ? reason : -ECONNRESET;
    tp_copy_text(a->why, sizeof a->why, why);
}

static void on_message(void *ctx, int peer, enum tp_class class, const uint8_t *bytes, size_t size)
{
    struct asking *a = ctx;
    (void)peer;
    (void)class;
    a->out->bytes = malloc(size + 1);
    if (a->out->bytes) {
        memcpy(a->out->bytes, bytes, size);
        a->out->bytes[size] = 0;
        a->out->size = size;
    }
    a->out->answer_ns = ask_now(NULL) - a->up_at;
    a->status = a->out->bytes ? 0 : -ENOMEM;
    a->done = true;
}

static const struct tp_net_sink sink = {.message = on_message};

static void on_tick(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    (void)ctx;
}

static void turn(struct asking *a)
{
    enum { TICK_US = 2000 };
    struct timeval t = {0, TICK_US};
    tp_net_poll(a->net);
    if (a->done)
        return;
    event_base_once(a->base, -1, EV_TIMEOUT, on_tick, NULL, &t);
    event_base_loop(a->base, EVLOOP_ONCE);
    if (!a->done && ask_now(NULL) >= a->limit) {
        a->done = true;
        a->status = -ETIMEDOUT;
        snprintf(a->why, sizeof a->why, a->up_at ? "it is connected and does not answer" : "no answer in time");
    }
}

static int open_net(struct asking *a, struct cfg_error *err)
{
    struct tp_net_config c = {
        .ops = a->ask->ops,
        .endpoint = {.host = {.ctx = a, .now = ask_now, .random = ask_random, .wake = ask_wake, .base = a->base},
                     .provider = a->ask->provider},
        .sink = &sink,
        .self = {.kind = TP_KIND_TOOL},
        .handshake_ns = a->ask->timeout_ns};
    tp_copy_text(c.self.name, sizeof c.self.name, a->ask->tool);
    memcpy(c.secret, a->ask->secret, TP_SECRET);
    int r = tp_net_new(&c, &a->net, err);
    if (r)
        return r;
    a->net->on_tool_up = on_tool_up;
    a->net->on_tool_end = on_tool_end;
    struct net_conn *conn;
    return net_conn_dial(a->net, -1, a->ask->address, TP_CLASS_CONTROL, 1, a->ask->name, a->ask->number, &conn, err);
}

int tp_net_ask(const struct tp_ask *ask, struct tp_answer *out, struct cfg_error *err)
{
    struct asking a = {.ask = ask, .out = out, .base = event_base_new()};
    *out = (struct tp_answer){0};
    if (!a.base)
        return cfg_error_set(err, ENOMEM, "no event loop");
    a.began = ask_now(NULL);
    a.limit = a.began + ask->timeout_ns;
    int r = open_net(&a, err);
    while (!r && !a.done)
        turn(&a);
    if (!r && a.status)
        r = cfg_error_set(err, -a.status, "node %s at %s: %s", ask->name, ask->address,
                          a.why[0] ? a.why : strerror(-a.status));
    tp_net_free(a.net);
    event_base_free(a.base);
    if (r) {
        free(out->bytes);
        out->bytes = NULL;
    }
    return r;
}
