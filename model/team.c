#define _GNU_SOURCE
#include "model/team.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* How a round works. The owner writes the job, opens the round by making `round` odd, takes items itself, closes the
 * round by making it even and waits until nobody is inside. A worker that sees an open round it has not done counts
 * itself in, looks again whether the round is open, and only then reads the job. A worker that comes late finds the
 * round closed and goes back to waiting, so the owner waits for workers that hold items and never for one that still
 * sleeps.
 *
 * Memory order. Three pairs of "write mine, then read yours" must not both miss: (round, inside), (round, sleepers) and
 * (owner_sleeps, inside); all of these accesses are seq_cst. As release and acquire they also carry the data: the job
 * and all that the owner wrote before to the workers through `round`, their results to the owner through `inside`. */
struct mdl_team {
    int size;
    int spin; /* looks at the shared state before a thread goes to sleep; 0 when threads outnumber CPUs */
    pthread_t *threads;
    pthread_mutex_t lock; /* for sleeping only */
    pthread_cond_t start, finished;
    int n, grain;
    mdl_team_fn *fn;
    void *ctx;
    _Atomic unsigned round;
    _Atomic int inside, sleepers, next;
    _Atomic bool owner_sleeps, stop;
};

/* About 50 us: longer than the owner's work between two loops of a small model, shorter than anybody notices. */
enum { SPIN = 2000 };

struct worker_arg {
    struct mdl_team *team;
    int index;
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void take_items(struct mdl_team *t, int thread)
{
    for (;;) {
        /* relaxed: only the distribution of items. */
        int begin = atomic_fetch_add_explicit(&t->next, t->grain, memory_order_relaxed);
        if (begin >= t->n)
            return;
        int end = begin + t->grain < t->n ? begin + t->grain : t->n;
        t->fn(t->ctx, begin, end, thread);
    }
}

static bool has_work(struct mdl_team *t, unsigned done)
{
    unsigned r = atomic_load(&t->round);
    return (r & 1 && r != done) || atomic_load(&t->stop);
}

static void wait_for_work(struct mdl_team *t, unsigned done)
{
    for (int i = 0; i < t->spin; i++) {
        if (has_work(t, done))
            return;
        relax();
    }
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->sleepers, 1);
    while (!has_work(t, done))
        pthread_cond_wait(&t->start, &t->lock);
    atomic_fetch_sub(&t->sleepers, 1);
    pthread_mutex_unlock(&t->lock);
}

static void *worker_main(void *p)
{
    struct worker_arg arg = *(struct worker_arg *)p;
    struct mdl_team *t = arg.team;
    free(p);
    unsigned done = 0;
    for (;;) {
        wait_for_work(t, done);
        if (atomic_load(&t->stop))
            return NULL;
        atomic_fetch_add(&t->inside, 1);
        unsigned r = atomic_load(&t->round);
        if (r & 1 && r != done) {
            done = r;
            take_items(t, arg.index);
        }
        if (atomic_fetch_sub(&t->inside, 1) == 1 && atomic_load(&t->owner_sleeps)) {
            pthread_mutex_lock(&t->lock);
            pthread_cond_signal(&t->finished);
            pthread_mutex_unlock(&t->lock);
        }
    }
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
    t->spin = threads <= mdl_team_default_threads() ? SPIN : 0;
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
            return cfg_error_set(err, e, "compute team: cannot start thread %d of %d (%s); use fewer threads", i,
                                 threads, strerror(e));
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
    atomic_store(&t->stop, true);
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

/* At most as many as there are items for. */
static void wake(struct mdl_team *t, int workers)
{
    pthread_mutex_lock(&t->lock);
    if (workers >= atomic_load_explicit(&t->sleepers, memory_order_relaxed)) /* changes under the lock only */
        pthread_cond_broadcast(&t->start);
    else
        for (int i = 0; i < workers; i++)
            pthread_cond_signal(&t->start);
    pthread_mutex_unlock(&t->lock);
}

static void wait_until_empty(struct mdl_team *t)
{
    for (int i = 0; i < t->spin; i++) {
        if (atomic_load(&t->inside) == 0)
            return;
        relax();
    }
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->owner_sleeps, true);
    while (atomic_load(&t->inside) > 0)
        pthread_cond_wait(&t->finished, &t->lock);
    atomic_store(&t->owner_sleeps, false);
    pthread_mutex_unlock(&t->lock);
}

void mdl_team_run(struct mdl_team *t, int n, int grain, mdl_team_fn *fn, void *ctx)
{
    if (n <= 0)
        return;
    if (t->size == 1 || n <= grain) {
        fn(ctx, 0, n, 0);
        return;
    }
    t->n = n;
    t->grain = grain;
    t->fn = fn;
    t->ctx = ctx;
    /* relaxed: published by the store to round. */
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    unsigned r = atomic_load_explicit(&t->round, memory_order_relaxed); /* only the owner writes it */
    atomic_store(&t->round, r + 1);
    if (atomic_load(&t->sleepers) > 0)
        wake(t, (n + grain - 1) / grain - 1);
    take_items(t, 0);
    atomic_store(&t->round, r + 2);
    wait_until_empty(t);
}

int mdl_team_default_threads(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set))
        return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}
