#define _GNU_SOURCE
#include "model/team.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The job fields are plain: the owner writes them before it publishes a new round under the lock, a worker reads them
 * after it saw that round under the same lock. */
struct mdl_team {
    int size;
    pthread_t *threads;
    pthread_mutex_t lock;
    pthread_cond_t start, finished;
    unsigned round;
    int active;   /* workers still inside the current round */
    bool stop;
    int n, grain;
    mdl_team_fn *fn;
    void *ctx;
    _Atomic int next;
};

struct worker_arg {
    struct mdl_team *team;
    int index;
};

static void take_items(struct mdl_team *t, int thread)
{
    for (;;) {
        /* relaxed: only the distribution of items; the data they touch is ordered by the lock around each round. */
        int begin = atomic_fetch_add_explicit(&t->next, t->grain, memory_order_relaxed);
        if (begin >= t->n)
            return;
        int end = begin + t->grain < t->n ? begin + t->grain : t->n;
        t->fn(t->ctx, begin, end, thread);
    }
}

static void *worker_main(void *p)
{
    struct worker_arg arg = *(struct worker_arg *)p;
    struct mdl_team *t = arg.team;
    free(p);
    unsigned seen = 0;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (t->round == seen && !t->stop)
            pthread_cond_wait(&t->start, &t->lock);
        if (t->stop)
            break;
        seen = t->round;
        pthread_mutex_unlock(&t->lock);
        take_items(t, arg.index);
        pthread_mutex_lock(&t->lock);
        if (--t->active == 0)
            pthread_cond_signal(&t->finished);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

int mdl_team_new(int threads, struct mdl_team **out, struct cfg_error *err)
{
    *out = NULL;
    struct mdl_team *t = calloc(1, sizeof *t);
    if (!t || !(t->threads = calloc((size_t)threads, sizeof *t->threads))) {
        free(t);
        return cfg_error_set(err, ENOMEM, "compute team: out of memory");
    }
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->start, NULL);
    pthread_cond_init(&t->finished, NULL);
    t->size = 1;
    for (int i = 1; i < threads; i++) {
        struct worker_arg *arg = malloc(sizeof *arg);
        int e = ENOMEM;
        if (arg) {
            *arg = (struct worker_arg){t, i};
            e = pthread_create(&t->threads[i], NULL, worker_main, arg);
        }
        if (e) {
            free(arg);
            mdl_team_free(t);
            return cfg_error_set(err, e, "compute team: cannot start thread %d of %d (%s); use fewer threads", i, threads,
                                 strerror(e));
        }
        t->size++;
    }
    *out = t;
    return 0;
}

void mdl_team_free(struct mdl_team *t)
{
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_broadcast(&t->start);
    pthread_mutex_unlock(&t->lock);
    for (int i = 1; i < t->size; i++)
        pthread_join(t->threads[i], NULL);
    pthread_cond_destroy(&t->finished);
    pthread_cond_destroy(&t->start);
    pthread_mutex_destroy(&t->lock);
    free(t->threads);
    free(t);
}

int mdl_team_size(const struct mdl_team *t)
{
    return t->size;
}

void mdl_team_run(struct mdl_team *t, int n, int grain, mdl_team_fn *fn, void *ctx)
{
    if (n <= 0)
        return;
    if (t->size == 1 || n <= grain) {
        fn(ctx, 0, n, 0);
        return;
    }
    pthread_mutex_lock(&t->lock);
    t->n = n;
    t->grain = grain;
    t->fn = fn;
    t->ctx = ctx;
    /* relaxed: published by the unlock below. */
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    t->active = t->size - 1;
    t->round++;
    pthread_cond_broadcast(&t->start);
    pthread_mutex_unlock(&t->lock);
    take_items(t, 0);
    pthread_mutex_lock(&t->lock);
    while (t->active > 0)
        pthread_cond_wait(&t->finished, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

int mdl_team_default_threads(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set))
        return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}
