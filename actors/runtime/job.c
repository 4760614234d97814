/* Implementation of job.h: the executor actor. */
#include "actors/runtime/job.h"

#include <errno.h>

#include "actors/runtime/internal.h"

static int executor_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    (void)state;
    struct act_runtime *rt = act_self_runtime(self);
    for (int i = 0; i < count; i++) {
        if (m[i].type != ACT_JOB)
            continue;
        struct act_promise p = act_promise_of(&m[i]);
        struct act_job *job = act_job_take(&m[i]);
        if (!job)
            continue;
        act_working(self, true);
        act_busy(self, rt->world->job_run(rt->world_ctx, job));
        act_working(self, false);
        struct act_msg r = act_msg_make(ACT_JOB_DONE, ACT_NOBODY);
        act_p_job_done(&r)->job = (uint64_t)(uintptr_t)job;
        act_p_job_done(&r)->status = job->status;
        if (act_reply(self, &p, &r) != 0 && job->release)
            job->release(job); /* posted from outside: nobody waits for it */
    }
    return 0;
}

static const struct act_behaviour executor = {.name = "executor", .receive = executor_receive};

int act_executor_spawn(struct act_runtime *rt, const struct act_spawn *spec, struct act_addr *out,
                       struct cfg_error *err)
{
    struct act_spawn s = *spec;
    s.behaviour = &executor;
    s.arg = NULL;
    s.batch = 1; /* the loop turns between two jobs */
    return act_runtime_spawn(rt, &s, out, err);
}

int act_job_submit(struct act_self *self, struct act_addr to, uint64_t request, struct act_job *job)
{
    struct act_msg m = act_msg_make(ACT_JOB, to);
    m.request = request;
    act_p_job(&m)->job = (uint64_t)(uintptr_t)job;
    return act_request(self, &m);
}

struct act_job *act_job_take(struct act_msg *m)
{
    unsigned type = m->type == ACT_UNDELIVERABLE && !(m->flags & ACT_MSG_ABANDONED) ? m->returned : m->type;
    if (type != ACT_JOB && type != ACT_JOB_DONE)
        return NULL;
    struct act_job *job = (struct act_job *)(uintptr_t)act_p_job(m)->job;
    act_p_job(m)->job = 0;
    return job;
}
