/* The real world behind world.h: clocks, random bits, and what workers sleep on. */
#define _GNU_SOURCE
#include "actors/runtime/world.h"

#include <errno.h>
#include <event2/event.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "actors/runtime/job.h"

#define NS_PER_S INT64_C(1000000000)

/* ---- the world ------------------------------------------------------------------------------- */

static int64_t read_clock(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

static int64_t system_now(void *ctx)
{
    (void)ctx;
    return read_clock(CLOCK_MONOTONIC);
}

static int64_t system_wall(void *ctx)
{
    (void)ctx;
    return read_clock(CLOCK_REALTIME);
}

static uint64_t system_random(void *ctx)
{
    (void)ctx;
    uint64_t r;
    while (getrandom(&r, sizeof r, 0) != (ssize_t)sizeof r)
        ; /* interrupted before the pool was ready */
    return r;
}

static int64_t system_job_run(void *ctx, struct act_job *job)
{
    (void)ctx;
    job->status = job->run(job);
    return 0;
}

static void system_busy(void *ctx, int worker, int64_t ns)
{
    (void)ctx;
    (void)worker;
    (void)ns;
}

const struct act_world_ops act_world_system = {
    .now = system_now,
    .wall = system_wall,
    .random = system_random,
    .job_run = system_job_run,
    .busy = system_busy,
};

/* ---- eventfd --------------------------------------------------------------------------------- */

static int open_eventfd(struct cfg_error *err, int *out)
{
    *out = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (*out < 0)
        return cfg_error_set(err, errno, "no eventfd for a worker: %s; raise the limit of open files", strerror(errno));
    return 0;
}

static void ring_bell(int fd)
{
    uint64_t one = 1;
    ssize_t n;
    do
        n = write(fd, &one, sizeof one);
    while (n < 0 && errno == EINTR); /* EAGAIN: it rings already */
}

static void quiet_bell(int fd)
{
    uint64_t n;
    while (read(fd, &n, sizeof n) < 0 && errno == EINTR)
        ;
}

struct fd_source {
    int fd;
};

static int fd_open(void *arg, void **source, struct cfg_error *err)
{
    (void)arg;
    struct fd_source *s = malloc(sizeof *s);
    if (!s)
        return cfg_error_set(err, ENOMEM, "no memory for a worker");
    int rc = open_eventfd(err, &s->fd);
    if (rc != 0) {
        free(s);
        return rc;
    }
    *source = s;
    return 0;
}

static int fd_wait(void *source, int64_t timeout_ns)
{
    struct fd_source *s = source;
    struct pollfd p = {.fd = s->fd, .events = POLLIN};
    struct timespec t = {timeout_ns / NS_PER_S, timeout_ns % NS_PER_S};
    int n = ppoll(&p, 1, timeout_ns == INT64_MAX ? NULL : &t, NULL);
    if (n > 0)
        quiet_bell(s->fd);
    return n < 0 && errno != EINTR ? -errno : 0;
}

static void fd_wake(void *source)
{
    ring_bell(((struct fd_source *)source)->fd);
}

static void fd_close(void *source)
{
    close(((struct fd_source *)source)->fd);
    free(source);
}

static struct event_base *no_base(void *source)
{
    (void)source;
    return NULL;
}

const struct act_source_ops act_source_eventfd = {
    .name = "eventfd",
    .open = fd_open,
    .wait = fd_wait,
    .wake = fd_wake,
    .close = fd_close,
    .event_base = no_base,
};

/* ---- libevent -------------------------------------------------------------------------------- */

struct loop_source {
    struct event_base *base;
    struct event *bell, *limit;
    int fd;
};

static void on_bell(evutil_socket_t fd, short what, void *ctx)
{
    (void)what;
    (void)ctx;
    quiet_bell(fd);
}

static void on_limit(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    (void)ctx;
}

static void loop_close(void *source)
{
    struct loop_source *s = source;
    if (s->bell)
        event_free(s->bell);
    if (s->limit)
        event_free(s->limit);
    if (s->base)
        event_base_free(s->base);
    if (s->fd >= 0)
        close(s->fd);
    free(s);
}

static int loop_open(void *arg, void **source, struct cfg_error *err)
{
    (void)arg;
    struct loop_source *s = calloc(1, sizeof *s);
    if (!s)
        return cfg_error_set(err, ENOMEM, "no memory for a worker");
    int rc = open_eventfd(err, &s->fd);
    if (rc == 0) {
        /* One thread per base, and no libevent function is called from others: the bell is an eventfd of our own. The
         * precise timer lets a worker sleep for less than a millisecond. */
        struct event_config *c = event_config_new();
        if (c) {
            event_config_set_flag(c, EVENT_BASE_FLAG_NOLOCK | EVENT_BASE_FLAG_PRECISE_TIMER);
            s->base = event_base_new_with_config(c);
            event_config_free(c);
        }
        if (s->base) {
            s->bell = event_new(s->base, s->fd, EV_READ | EV_PERSIST, on_bell, s);
            s->limit = event_new(s->base, -1, 0, on_limit, s);
        }
        if (!s->bell || !s->limit || event_add(s->bell, NULL) != 0)
            rc = cfg_error_set(err, ENOMEM, "libevent could not make a loop for a worker");
    }
    if (rc != 0) {
        loop_close(s);
        return rc;
    }
    *source = s;
    return 0;
}

static int loop_wait(void *source, int64_t timeout_ns)
{
    struct loop_source *s = source;
    if (timeout_ns == 0)
        return event_base_loop(s->base, EVLOOP_NONBLOCK) < 0 ? -EIO : 0;
    if (timeout_ns != INT64_MAX) {
        int64_t us = (timeout_ns + 999) / 1000;
        struct timeval t = {us / 1000000, us % 1000000};
        event_add(s->limit, &t);
    }
    int rc = event_base_loop(s->base, EVLOOP_ONCE);
    event_del(s->limit);
    return rc < 0 ? -EIO : 0;
}

static void loop_wake(void *source)
{
    ring_bell(((struct loop_source *)source)->fd);
}

static struct event_base *loop_base(void *source)
{
    return ((struct loop_source *)source)->base;
}

const struct act_source_ops act_source_libevent = {
    .name = "libevent",
    .open = loop_open,
    .wait = loop_wait,
    .wake = loop_wake,
    .close = loop_close,
    .event_base = loop_base,
};
