/* An expert shard: owns experts of every backbone layer, by the map of the deployment, and answers dispatches with
 * their outputs.
 *
 * It waits for nobody who sent nothing. Dispatches of several sources for the same layer are worked on together, so
 * that one read of an expert's weights serves all of them; it works on one expert at a time and yields between them, so
 * that a large prefill dispatch does not hold up its worker. Dispatches of running streams go before those of prompts,
 * also in the middle of one; what has waited for 20 ms gets one expert all the same.
 *
 * Which experts it owns decides what it keeps in memory, not what it can compute: weights come from the mapped
 * checkpoint, so a dispatch for any expert is answered (a shard that stands in for a dead one, a source that has not
 * switched yet), only slower the first time. PLAN makes it load the experts that the next map adds, one between two
 * pieces of other work, and answer READY; RETIRE makes it drop what the map it names does not give it. */
#ifndef WEFT_ACTORS_EXPERT_H
#define WEFT_ACTORS_EXPERT_H

#include "actors/expert_map.h"
#include "actors/runtime/runtime.h"
#include "actors/slots.h"
#include "model/model.h"

struct act_expert_arg {
    struct mdl_model *m;       /* of the worker; outlives the actor */
    const struct act_map *map; /* to begin with; outlives the actor */
    int index;                 /* in the map */
    bool release;              /* give memory of experts back that it no longer owns: nobody else in the process needs
                                  it */
    const struct act_addr *observer; /* gets its FIGURES; NULL: nobody */
    struct act_slots *slots; /* into which sources of other nodes put their dispatches (slots.h); NULL: messages only */
    struct act_addr link;    /* with slots */
    int local;               /* likewise: which of its node's shards it is */
};

extern const struct act_behaviour act_expert_behaviour;

#endif
