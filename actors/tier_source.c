#include "actors/tier_source.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct tier_source {
    int bell;
    struct kv_storage *storage;
};

static int tier_source_open(void *arg, void **source, struct cfg_error *err)
{
    const struct act_tier_source_arg *a = arg;
    struct tier_source *s = malloc(sizeof *s);
    if (!s)
        return cfg_error_set(err, ENOMEM, "no memory for a worker");
    *s = (struct tier_source){.bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .storage = a->storage};
    if (s->bell < 0) {
        int e = errno;
        free(s);
        return cfg_error_set(err, e, "no eventfd for a worker: %s; raise the limit of open files", strerror(e));
    }
    *source = s;
    return 0;
}

/* What the actors submitted since the last turn enters the kernel here, together. */
static int tier_source_wait(void *source, int64_t timeout_ns)
{
    struct tier_source *s = source;
    uint64_t count;
    if (s->storage && s->storage->ops->poll(s->storage))
        return 0;
    struct pollfd p[2] = {{.fd = s->bell, .events = POLLIN},
                          {.fd = s->storage ? s->storage->ops->descriptor(s->storage) : -1, .events = POLLIN}};
    struct timespec t = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    int n = ppoll(p, 2, timeout_ns == INT64_MAX ? NULL : &t, NULL);
    if (n < 0)
        return errno == EINTR ? 0 : -errno;
    if (p[0].revents) {
        ssize_t r;
        do
            r = read(s->bell, &count, sizeof count);
        while (r < 0 && errno == EINTR);
    }
    if (p[1].revents)
        s->storage->ops->poll(s->storage);
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
