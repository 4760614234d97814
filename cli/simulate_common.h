/* A tier that all Prefill ranks of a simulated deployment share. One thread. */
#ifndef WEFT_CLI_SIMULATE_COMMON_H
#define WEFT_CLI_SIMULATE_COMMON_H

#include "actors/tier_store.h"
#include "cli/simulate.h"

struct sim_common; /* what is in it */
struct sim_way;    /* a rank's tiers: a small host tier of its own, the common one below it */

struct sim_common *sim_common_new(void); /* NULL: out of memory */
void sim_common_free(struct sim_common *c);

/* For the rank with engine e. Outlives its tier_store actor; c, p and sim outlive it. */
int sim_way_new(struct sim_common *c, const struct sim_profile *p, struct act_sim *sim, const struct act_engine *e,
                struct sim_way **out, struct cfg_error *err);
/* For the actor. */
const struct act_store *sim_way_store(const struct sim_way *w);
void sim_way_free(struct sim_way *w);

#endif
