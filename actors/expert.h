/* An expert shard: owns a range of the routed experts of every backbone layer and answers dispatches with their
 * outputs.
 *
 * It waits for nobody who sent nothing, works on one expert at a time and yields between them, so that a large prefill
 * dispatch does not hold up its worker. Dispatches of running streams go before those of prompts, also in the middle of
 * one; what has waited for 20 ms gets one expert all the same. Within a class they are answered in the order in which
 * they came. */
#ifndef WEFT_ACTORS_EXPERT_H
#define WEFT_ACTORS_EXPERT_H

#include "actors/runtime/runtime.h"
#include "model/model.h"

struct act_expert_arg {
    struct mdl_model *m; /* of the engine worker; outlives the actor */
    int first, count;
};

extern const struct act_behaviour act_expert_behaviour;

#endif
