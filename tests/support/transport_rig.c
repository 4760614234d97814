/* Implementation of transport_rig.h, without the cases. */
#include "tests/support/transport_rig.h"

#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/harness.h"

enum { DEADLINE_S = 60, IDLE_US = 2000 };

static int64_t real_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t host_now(void *ctx)
{
    struct tr_rig *r = ((struct tr_side *)ctx)->rig;
    return r->now ? r->now : real_now();
}

static void host_random(void *ctx, void *out, size_t size)
{
    (void)ctx;
    static unsigned char next;
    for (size_t i = 0; i < size; i++)
        ((unsigned char *)out)[i] = next++;
}

static void host_wake(void *ctx)
{
    struct tr_side *s = ctx;
    s->poll_at = 0;
    s->rig->woken = true;
}

static void note(struct tr_side *s, struct tr_event e, const uint8_t *bytes)
{
    if (s->n < TR_LOG)
        s->log[s->n++] = e;
    if (s->on_event)
        s->on_event(s, &e, bytes);
}

static void take_new(struct tr_side *s, struct tp_channel *c)
{
    s->last = c;
    if (!s->rig->wary)
        c->ops->trust(c); /* fails when it is over already */
}

static void on_accepted(void *ctx, struct tp_channel *c)
{
    struct tr_side *s = ctx;
    s->accepted++;
    take_new(s, c);
    note(s, (struct tr_event){.what = TR_ACCEPTED, .c = c}, NULL);
}

static void on_opened(void *ctx, struct tp_channel *c)
{
    struct tr_side *s = ctx;
    s->opened++;
    take_new(s, c);
    note(s, (struct tr_event){.what = TR_OPENED, .c = c}, NULL);
}

static void on_frame(void *ctx, struct tp_channel *c, const uint8_t *bytes, size_t size)
{
    struct tr_side *s = ctx;
    struct tr_event e = {.what = TR_FRAME, .c = c, .size = size};
    memcpy(&e.number, bytes, size < 8 ? size : 8);
    s->frames++;
    s->in_order &= e.number == s->next_frame++;
    for (size_t i = 8; s->check_payload && i < size; i++)
        s->payload_ok &= bytes[i] == (uint8_t)(e.number + i);
    note(s, e, bytes);
}

static void on_immediate(void *ctx, struct tp_channel *c, uint32_t immediate)
{
    struct tr_side *s = ctx;
    s->immediates++;
    if (s->watch && s->n_watched < (int)sizeof s->watched)
        s->watched[s->n_watched++] = *s->watch;
    note(s, (struct tr_event){.what = TR_IMMEDIATE, .c = c, .number = immediate}, NULL);
}

static void on_put_done(void *ctx, struct tp_channel *c, uint64_t cookie, int status)
{
    struct tr_side *s = ctx;
    s->puts_done++;
    note(s, (struct tr_event){.what = TR_PUT_DONE, .c = c, .number = cookie, .status = status}, NULL);
}

static void on_room(void *ctx, struct tp_channel *c)
{
    struct tr_side *s = ctx;
    s->rooms++;
    note(s, (struct tr_event){.what = TR_ROOM, .c = c}, NULL);
}

static void on_closed(void *ctx, struct tp_channel *c, int reason, const char *why)
{
    struct tr_side *s = ctx;
    snprintf(s->why, sizeof s->why, "%d %s", reason, why);
    s->closed++;
    if (s->last == c)
        s->last = NULL;
    note(s, (struct tr_event){.what = TR_CLOSED, .c = c, .status = reason}, NULL);
}

static const struct tp_sink sink = {.accepted = on_accepted,
                                    .opened = on_opened,
                                    .frame = on_frame,
                                    .immediate = on_immediate,
                                    .put_done = on_put_done,
                                    .room = on_room,
                                    .closed = on_closed};

struct tr_rig *tr_prepare(const struct tr_kind *kind)
{
    struct tr_rig *r = calloc(1, sizeof *r);
    cr_assert_not_null(r);
    r->kind = kind;
    strcpy(r->address, "127.0.0.1:0");
    if (kind->uses_base)
        cr_assert_not_null(r->base = event_base_new());
    for (int i = 0; i < 2; i++) {
        r->side[i].rig = r;
        r->side[i].in_order = r->side[i].payload_ok = true;
        r->config[i].host = (struct tp_host){.sink = &sink,
                                             .ctx = &r->side[i],
                                             .now = host_now,
                                             .random = host_random,
                                             .wake = host_wake,
                                             .base = r->base,
                                             .looks = kind->looks};
    }
    if (kind->set_up)
        kind->set_up(r);
    return r;
}

void tr_open(struct tr_rig *r)
{
    struct cfg_error err;
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(r->kind->ops->open(&r->config[i], &r->side[i].ep, &err), 0, "%s", err.msg);
        r->window[i] = calloc(1, TR_WINDOW);
        cr_assert_not_null(r->window[i]);
        cr_assert_eq(r->kind->ops->add_region(r->side[i].ep, r->window[i], TR_WINDOW, &r->region[i], &r->key[i], &err),
                     0, "%s", err.msg);
    }
    cr_assert_eq(r->kind->ops->listen(r->side[1].ep, r->address, r->bound, &err), 0, "%s", err.msg);
}

struct tr_rig *tr_new(const struct tr_kind *kind)
{
    struct tr_rig *r = tr_prepare(kind);
    tr_open(r);
    return r;
}

void tr_kill(struct tr_rig *r, int side)
{
    r->kind->ops->close(r->side[side].ep);
    r->side[side].ep = NULL;
}

void tr_free(struct tr_rig *r)
{
    for (int i = 0; i < 2; i++) {
        if (r->side[i].ep)
            r->kind->ops->close(r->side[i].ep);
        free(r->window[i]);
    }
    if (r->kind->tear_down)
        r->kind->tear_down(r);
    if (r->base)
        event_base_free(r->base);
    free(r);
}

static void on_tick(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    (void)ctx;
}

void tr_turn(struct tr_rig *r)
{
    int64_t next = TP_NEVER;
    r->woken = false;
    for (int i = 0; i < 2; i++) {
        struct tr_side *s = &r->side[i];
        if (!s->ep)
            continue;
        if (r->kind->looks)
            r->kind->ops->look(s->ep);
        s->poll_at = TP_NEVER;
        int64_t at = r->kind->ops->poll(s->ep);
        s->poll_at = at < s->poll_at ? at : s->poll_at;
    }
    for (int i = 0; i < 2; i++)
        if (r->side[i].ep && r->side[i].poll_at < next)
            next = r->side[i].poll_at;
    if (next <= host_now(&r->side[0]))
        next = 0;
    if (r->kind->idle) {
        if (next)
            r->kind->idle(r, next);
        return;
    }
    if (!r->base)
        return;
    for (int i = 0; i < 2 && r->kind->looks; i++)
        if (r->side[i].ep && r->kind->ops->arm(r->side[i].ep))
            next = 0;
    struct timeval t = {0, next ? IDLE_US : 0};
    if (next)
        event_base_once(r->base, -1, EV_TIMEOUT, on_tick, NULL, &t);
    event_base_loop(r->base, next ? EVLOOP_ONCE : EVLOOP_NONBLOCK);
}

void tr_until(struct tr_rig *r, const int *what, int n)
{
    int64_t limit = real_now() + (int64_t)DEADLINE_S * 1000000000;
    while (*what < n && real_now() < limit)
        tr_turn(r);
    cr_assert_ge(*what, n,
                 "%s: %d of %d, and nothing comes any more; opened %d, accepted %d; ended %d (%s) and %d (%s)",
                 r->kind->ops->name, *what, n, r->side[0].opened, r->side[1].accepted, r->side[0].closed,
                 r->side[0].why, r->side[1].closed, r->side[1].why);
}

void tr_join(struct tr_rig *r, enum tp_class class, struct tp_channel *c[2])
{
    struct cfg_error err;
    int opened = r->side[0].opened + 1, accepted = r->side[1].accepted + 1;
    cr_assert_eq(r->kind->ops->connect(r->side[0].ep, r->bound, class, NULL, &c[0], &err), 0, "%s", err.msg);
    tr_until(r, &r->side[0].opened, opened);
    tr_until(r, &r->side[1].accepted, accepted);
    c[1] = r->side[1].last;
    cr_assert_not_null(c[1]);
}

void tr_send(struct tr_rig *r, struct tp_channel *c, const void *bytes, size_t size)
{
    struct iovec v[2] = {{(void *)(uintptr_t)bytes, size / 3}, {(char *)(uintptr_t)bytes + size / 3, size - size / 3}};
    int rc;
    int64_t limit = real_now() + (int64_t)DEADLINE_S * 1000000000;
    while ((rc = c->ops->send(c, v, 2)) == -EAGAIN && real_now() < limit)
        tr_turn(r);
    cr_assert_eq(rc, 0, "send: %s", strerror(-rc));
}

void tr_send_number(struct tr_rig *r, struct tp_channel *c, uint64_t number, size_t size)
{
    uint8_t *bytes = malloc(size);
    cr_assert_not_null(bytes);
    for (size_t i = 0; i < size; i++)
        bytes[i] = i < 8 ? (uint8_t)(number >> (8 * i)) : (uint8_t)(number + i);
    tr_send(r, c, bytes, size);
    free(bytes);
}

void tr_put(struct tr_rig *r, struct tp_channel *c, size_t from, size_t to, size_t size, int64_t immediate,
            uint64_t cookie)
{
    int me = c->endpoint == r->side[1].ep;
    struct tp_put p = {.region = r->region[me],
                       .from = r->window[me] + from,
                       .size = size,
                       .key = r->key[1 - me],
                       .offset = to,
                       .with_immediate = immediate >= 0,
                       .immediate = (uint32_t)immediate,
                       .cookie = cookie};
    int rc;
    int64_t limit = real_now() + (int64_t)DEADLINE_S * 1000000000;
    while ((rc = c->ops->put(c, &p)) == -EAGAIN && real_now() < limit)
        tr_turn(r);
    cr_assert_eq(rc, 0, "put: %s", strerror(-rc));
}
