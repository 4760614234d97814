/* Jobs: work that takes long or blocks, done elsewhere (or later), answered by a message.
 *
 * An executor is an actor that runs jobs one after the other: on a helper worker for work that would hold up an io
 * worker (tokenising a long prompt, reading a file), on an engine worker for pieces of a model step. In the simulation
 * a job runs inline and its cost is virtual time. */
#ifndef WEFT_ACTORS_RUNTIME_JOB_H
#define WEFT_ACTORS_RUNTIME_JOB_H

#include "actors/runtime/runtime.h"

struct act_job {
    /* On the executor's thread; sees nothing but the job. Returns 0 or a negative errno, which JOB_DONE carries. */
    int (*run)(struct act_job *job);
    /* When a job ends with nobody to own it: the requester died, the runtime stops. NULL: nothing is freed. */
    void (*release)(struct act_job *job);
    const char *name; /* for the log and the cost profile */
    int64_t cost_ns;  /* what it counts in virtual time */
    int status;       /* run's result */
};

/* An executor on spec->worker (behaviour, arg and batch of spec are not used). As act_runtime_spawn. */
int act_executor_spawn(struct act_runtime *rt, const struct act_spawn *spec, struct act_addr *out,
                       struct cfg_error *err);
/* Gives job to an executor. JOB_DONE{job, status} comes back with the request id, and owns the job again; or
 * UNDELIVERABLE with the type JOB. -EAGAIN as act_request: the job is still the caller's. */
int act_job_submit(struct act_self *self, struct act_addr executor, uint64_t request, struct act_job *job);
/* Takes the job out of a JOB_DONE or a JOB (also one that came back): the caller owns it. NULL if m has none, or the
 * job was lost with its executor (ACT_MSG_ABANDONED: release has been called). A job that nobody takes is released. */
struct act_job *act_job_take(struct act_msg *m);

#endif
