/* What a node of a deployment has beside its Decode actors: the Landing, which stands for them towards other nodes, and
 * the Prefill actor that finishes prompts which come in a form that leaves something to do. */
#include "actors/landing.h"
#include "actors/prefill.h"
#include "actors/server_impl.h"

/* The forms have the same numbers in the configuration. */
_Static_assert((int)CFG_HANDOFF_GLOBAL == (int)MDL_HANDOFF_GLOBAL, "forms of a hand-off");

int server_spawn_landing(struct act_server *s, struct cfg_error *err)
{
    struct act_engine *e = &s->engine;
    if (s->config->n_nodes < 2)
        return 0; /* sequences move inside the process */
    struct act_spawn spec = {.behaviour = &act_prefill_behaviour,
                             .worker = SERVER_WORKER_ENGINE,
                             .arg = e,
                             .run_class = ACT_CLASS_BULK,
                             .outbox = 4096,
                             .policy = ACT_POLICY_RESTART};
    int r = act_runtime_spawn(s->rt, &spec, &s->landing.replay, err);
    if (r)
        return r;
    s->landing.engine = e;
    s->landing.router = &e->router;
    spec.behaviour = &act_landing_behaviour;
    spec.arg = &s->landing;
    spec.run_class = ACT_CLASS_URGENT;
    r = act_runtime_spawn(s->rt, &spec, &e->landing, err);
    e->load = e->landing;
    return r;
}

const struct act_engine *server_members(struct act_server *s)
{
    if (act_addr_is_nobody(s->engine.landing))
        return &s->engine;
    s->members = s->engine;
    s->members.decode[0] = s->engine.landing;
    s->members.n_decode = 1;
    return &s->members;
}
