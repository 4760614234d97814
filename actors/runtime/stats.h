/* What the runtime counts. Read on any thread while it runs: each number is right, but numbers of one snapshot may be
 * some messages apart. */
#ifndef WEFT_ACTORS_RUNTIME_STATS_H
#define WEFT_ACTORS_RUNTIME_STATS_H

#include "actors/runtime/runtime.h"

struct act_stats_worker {
    char name[ACT_NAME_TEXT];
    enum act_worker_kind kind;
    uint64_t turns;    /* of the loop */
    uint64_t batches;  /* calls of receive */
    uint64_t messages; /* handed to receive */
    uint64_t sent;     /* put into lanes or the local queue */
    uint64_t refused;  /* act_send and act_request without room */
    uint64_t returned; /* messages that came back as undeliverable */
    uint64_t timers;   /* fired */
    uint64_t sleeps;   /* waits that were allowed to sleep */
    uint64_t wakes;    /* wake-ups that this worker gave to others */
    uint64_t failures; /* actors that failed */
    uint64_t restarts;
    uint64_t escalations;    /* past the last supervisor */
    int actors;              /* alive */
    int waiting;             /* messages in mailboxes */
    int runnable;            /* actors that could run */
    int64_t turn_age_ns;     /* since the loop last turned; 0 while it sleeps: live */
    int64_t progress_age_ns; /* greatest of its working actors; 0 when none is working: ready */
};

struct act_stats_actor {
    struct act_addr addr;
    const char *name; /* of the behaviour */
    int worker;
    bool bulk; /* its class, which goes behind the others of its worker */
    uint64_t batches, messages;
    int waiting; /* messages in its mailbox */
    int outbox;
    int watchers;            /* monitors, links and supervisors that its end will be told to */
    int64_t progress_age_ns; /* 0 when it has no work */
};

/* -EINVAL: no such worker. */
int act_stats_worker(const struct act_runtime *rt, int worker, struct act_stats_worker *out);
/* Calls fn for every live actor of the process, in order of their indices. */
void act_stats_actors(const struct act_runtime *rt, void (*fn)(void *ctx, const struct act_stats_actor *a), void *ctx);
/* The message limits and use of the lane from one worker to another: messages sent and not yet taken, requests without
 * a reply. Only when the runtime has stopped, or in the simulation: what is left then has leaked. */
int act_stats_lane(const struct act_runtime *rt, int from, int to, int *messages, int *requests);

#endif
