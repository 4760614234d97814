/* Implementation of stats.h. All loads are relaxed: the counters stand for themselves; their writers are COUNT_ADD,
 * show() in actor.c and worker_main. */
#include "actors/runtime/stats.h"

#include <errno.h>
#include <string.h>

#include "actors/runtime/internal.h"

#define READ(field) atomic_load_explicit(&(field), memory_order_relaxed)

static int64_t progress_age(const struct act_self *a, int64_t now)
{
    if (!READ(a->working))
        return 0;
    int64_t age = now - READ(a->progress_at);
    return age > 0 ? age : 0;
}

int act_stats_worker(const struct act_runtime *rt, int worker, struct act_stats_worker *out)
{
    if (worker < 0 || worker >= rt->workers)
        return -EINVAL;
    struct act_worker *w = &rt->worker[worker];
    struct act_counters *c = &w->count;
    memset(out, 0, sizeof *out);
    memcpy(out->name, w->config.name, sizeof out->name);
    out->kind = w->config.kind;
    out->turns = READ(c->turns);
    out->batches = READ(c->batches);
    out->messages = READ(c->messages);
    out->sent = READ(c->sent);
    out->refused = READ(c->refused);
    out->returned = READ(c->returned);
    out->timers = READ(c->timers);
    out->sleeps = READ(c->sleeps);
    out->wakes = READ(c->wakes);
    out->failures = READ(c->failures);
    out->restarts = READ(c->restarts);
    out->escalations = READ(c->escalations);
    out->actors = READ(c->actors);
    out->runnable = READ(c->runnable);
    int64_t now = rt->world->now(rt->world_ctx), turn_at = READ(c->turn_at), age = now - turn_at;
    /* Acquire: partner is sleep_until in worker.c. */
    bool asleep = atomic_load_explicit(&w->sleeping, memory_order_acquire) != 0;
    out->turn_age_ns = turn_at == 0 || asleep || age < 0 ? 0 : age; /* 0: it has not begun */
    for (int i = 0; i < w->actor_count; i++)
        if (READ(w->actors[i].live)) {
            out->waiting += READ(w->actors[i].shown_waiting);
            age = progress_age(&w->actors[i], now);
            out->progress_age_ns = age > out->progress_age_ns ? age : out->progress_age_ns;
        }
    return 0;
}

void act_stats_actors(const struct act_runtime *rt, void (*fn)(void *ctx, const struct act_stats_actor *a), void *ctx)
{
    int64_t now = rt->world->now(rt->world_ctx);
    for (int i = 0; i < rt->workers; i++)
        for (int j = 0; j < rt->worker[i].actor_count; j++) {
            struct act_self *a = &rt->worker[i].actors[j];
            /* Acquire: partner is show() in actor.c. */
            uint32_t live = atomic_load_explicit(&a->live, memory_order_acquire);
            const struct act_behaviour *b = READ(a->shown);
            if (!live || !b)
                continue;
            struct act_stats_actor s = {
                .addr = {.generation = live, .peer = 0, .index = a->index},
                .name = b->name,
                .worker = i,
                .bulk = READ(a->shown_bulk),
                .batches = READ(a->batches),
                .messages = READ(a->messages),
                .waiting = READ(a->shown_waiting),
                .outbox = READ(a->shown_outbox),
                .watchers = READ(a->shown_watchers),
                .progress_age_ns = progress_age(a, now),
            };
            fn(ctx, &s);
        }
}

int act_stats_lane(const struct act_runtime *rt, int from, int to, int *messages, int *requests)
{
    if (from < 0 || from >= rt->workers || to < 0 || to >= rt->workers)
        return -EINVAL;
    const struct act_lane *l = &rt->lanes[from * rt->workers + to];
    *messages = (int)(l->sent - l->sent_back - l->taken_sent);
    *requests = (int)(l->requests - (l->taken_requests - l->requests_taken));
    return 0;
}
