/* A profile of this machine for `weft simulate`. Main thread. */
#ifndef WEFT_CLI_SIMULATE_MEASURE_H
#define WEFT_CLI_SIMULATE_MEASURE_H

#include "cli/simulate.h"

struct sim_measure_options {
    const char *model;
    int threads, drafts;              /* as the server that is to be predicted has them */
    int prompt_tokens, output_tokens; /* of its requests */
};

/* Writes the profile to file. What the options do not say is as in the default configuration. */
int sim_measure(const struct sim_measure_options *o, const char *file, struct cfg_error *err);

/* Time from a client's sending of a prompt of n ids until the gateway has understood it, and of a first byte back: ns.
 */
int sim_measure_request(const int32_t *ids, int n, double *ns, struct cfg_error *err);

/* Predicts every point of a file of `weft bench serve --json` with the profile and prints both side by side. */
int sim_against(struct sim_profile *p, const char *mode, const struct act_plan_options *plan, const char *file,
                uint64_t seed, struct cfg_error *err);

#endif
