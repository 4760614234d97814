/* The seam: the tables through which actors reach time, randomness, waiting and compute. The threaded runtime uses
 * act_world_system and the sources of source.h; the simulation (sim.h) puts its own in their place. Network and storage
 * have their tables in transport/ and kvtiers/. No actor calls clock_gettime, rand, poll or sleep. */
#ifndef WEFT_ACTORS_RUNTIME_WORLD_H
#define WEFT_ACTORS_RUNTIME_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "config/error.h"

struct act_job;
struct event_base;

/* All are called on any worker's thread. */
struct act_world_ops {
    int64_t (*now)(void *ctx);     /* ns, monotonic, >= 0 */
    int64_t (*wall)(void *ctx);    /* ns since 1970; for logs and epochs, never for decisions */
    uint64_t (*random)(void *ctx); /* seeds the workers' generators */
    /* Runs job->run(job) to its end, now, and returns how long that counts: 0 when it took real time, else ns by which
     * the worker is busy (the simulation). */
    int64_t (*job_run)(void *ctx, struct act_job *job);
    /* The caller's worker counts as busy for ns more; nothing in real time. */
    void (*busy)(void *ctx, int worker, int64_t ns);
};

/* CLOCK_MONOTONIC, CLOCK_REALTIME, getrandom. ctx is not used. */
extern const struct act_world_ops act_world_system;

/* What a worker sleeps on. open, wait, close run on the worker's thread (open and close may run on the thread that
 * makes and frees the runtime, before and after the worker's thread lives); wake on any. */
struct act_source_ops {
    const char *name;
    /* Makes the source. arg: from struct act_worker_config. */
    int (*open)(void *arg, void **source, struct cfg_error *err);
    /* Handles what is ready (callbacks run inside); waits for something to be ready, for wake, or for timeout_ns to
     * pass: 0 does not wait, ACT_NEVER is no limit. May return early. 0 or -errno. */
    int (*wait)(void *source, int64_t timeout_ns);
    /* Ends the running or the next wait. */
    void (*wake)(void *source);
    void (*close)(void *source);
    /* libevent's loop, or NULL when the source has none. */
    struct event_base *(*event_base)(void *source);
};

/* An eventfd and ppoll; for engine and helper workers. arg: NULL. */
extern const struct act_source_ops act_source_eventfd;
/* A libevent loop with an eventfd in it; for io workers. arg: NULL. */
extern const struct act_source_ops act_source_libevent;

#endif
