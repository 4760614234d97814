/* The source of `weft bench exchange`: two micro-batches of a model, an actor each on one worker, that run steps over
 * expert shards. Where the shards are is the caller's (bench_exchange.c: behind a link that delays;
 * bench_exchange_net.c: on another node). Main thread, except what says otherwise. */
#ifndef WEFT_CLI_BENCH_EXCHANGE_SOURCE_H
#define WEFT_CLI_BENCH_EXCHANGE_SOURCE_H

#include <pthread.h>
#include <stdbool.h>

#include "actors/exchange.h"

enum { BENCH_LANES = 2, BENCH_STEPS_MAX = 1000 };

/* How the two share their worker. */
enum bench_turns {
    BENCH_SERIAL,      /* the second begins when the first has ended */
    BENCH_ALTERNATING, /* they take turns after every phase, as the engine's actors do, and one computes while the other
                          waits for its experts */
};

/* Of one step of both. */
struct bench_step {
    int64_t took, busy;        /* ns; busy: in which the worker computed for them */
    int again;                 /* times that one of them lost its exchange and began again */
    uint64_t dispatched, puts; /* waves; of these, put into slots */
    int error;                 /* negative errno */
};

struct bench_lane;

struct bench_lane_arg {
    struct bench_source *s;
    int index;
};

/* Zeroed, with these set before bench_source_spawn. Outlives the runtime. */
struct bench_source {
    struct mdl_model *m;
    const struct act_experts *experts;
    int rows;                          /* of both together */
    struct act_addr addr[BENCH_LANES]; /* set by bench_source_spawn */
    /* The rest is the source's own. Between main thread and worker, under lock: */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    enum bench_turns turns;
    struct bench_step result;
    struct bench_lane_arg arg[BENCH_LANES];
    /* Of the worker that both are on. */
    struct bench_lane *lane[BENCH_LANES];
    bool wanted[BENCH_LANES]; /* it is to begin */
    int left;
    int64_t began;
    struct bench_step now;
    uint64_t dispatched, puts; /* when the step began */
};

/* Before the runtime starts. Negative errno with a sentence. */
int bench_source_spawn(struct act_runtime *rt, int worker, struct bench_source *s, struct cfg_error *err);
/* One step of both micro-batches. */
struct bench_step bench_source_run(struct act_runtime *rt, struct bench_source *s, enum bench_turns turns);

/* Medians of n steps, ms. */
struct bench_exchange_point {
    double compute, exchange, serial; /* one after the other: the source's work, its waiting, both */
    double alternating, overlapped;   /* alternating: all of it, the source's work */
    double slots;                     /* the part of the dispatches that was put into slots */
    int again;                        /* steps that began again */
};

/* Forms are measured in turns, step by step, the first steps of each not counted. rt, s, out: [forms]; n: at most
 * BENCH_STEPS_MAX. 0, or a negative errno. */
int bench_exchange_measure(struct act_runtime *const *rt, struct bench_source *const *s, int forms, int n,
                           struct bench_exchange_point *out);

#endif
