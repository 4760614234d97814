#include "actors/tier_source.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct tier_source {
    int bell;
    struct act_tier_source_arg arg;
};

static int tier_source_open(void *arg, void **source, struct cfg_error *err)
{
    struct tier_source *s = malloc(sizeof *s);
    if (!s)
        return cfg_error_set(err, ENOMEM, "no memory for a worker");
    *s =
        (struct tier_source){.bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .arg = *(struct act_tier_source_arg *)arg};
    if (s->bell < 0) {
        int e = errno;
        free(s);
        return cfg_error_set(err, e, "no eventfd for a worker: %s; raise the limit of open files", strerror(e));
    }
    *source = s;
    return 0;
}

static int poll_all(struct tier_source *s)
{
    int n = 0;
    for (int i = 0; i < ACT_STORAGES_MAX; i++)
        if (s->arg.storage[i])
            n += s->arg.storage[i]->ops->poll(s->arg.storage[i]);
    return n;
}

/* What the actors submitted since the last turn enters the kernel here, together. */
static int tier_source_wait(void *source, int64_t timeout_ns)
{
    struct tier_source *s = source;
    uint64_t count;
    struct pollfd p[1 + ACT_STORAGES_MAX] = {{.fd = s->bell, .events = POLLIN}};
    struct timespec t = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    if (poll_all(s))
        return 0;
    for (int i = 0; i < ACT_STORAGES_MAX; i++) {
        struct kv_storage *st = s->arg.storage[i];
        p[1 + i] = (struct pollfd){.fd = st ? st->ops->descriptor(st) : -1, .events = POLLIN};
    }
    if (ppoll(p, 1 + ACT_STORAGES_MAX, timeout_ns == INT64_MAX ? NULL : &t, NULL) < 0)
        return errno == EINTR ? 0 : -errno;
    if (p[0].revents) {
        ssize_t r;
        do
            r = read(s->bell, &count, sizeof count);
        while (r < 0 && errno == EINTR);
    }
    poll_all(s);
    return 0;
}

static void tier_source_wake(void *source)
{
    const uint64_t one = 1;
    ssize_t n;
    do
        n = write(((struct tier_source *)source)->bell, &one, sizeof one);
    while (n < 0 && errno == EINTR);
}

static void tier_source_close(void *source)
{
    close(((struct tier_source *)source)->bell);
    free(source);
}

static struct event_base *no_base(void *source)
{
    (void)source;
    return NULL;
}

const struct act_source_ops act_source_tier = {
    .name = "tier",
    .open = tier_source_open,
    .wait = tier_source_wait,
    .wake = tier_source_wake,
    .close = tier_source_close,
    .event_base = no_base,
};
