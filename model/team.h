/* A compute team: the threads that share the loops of one model step.
 *
 * One owner thread calls mdl_team_run; it works too, so a team of 1 has no threads of its own. Which thread takes which
 * item is left to chance and must not influence any result. Not for concurrent callers. */
#ifndef WEFT_MODEL_TEAM_H
#define WEFT_MODEL_TEAM_H

#include "config/error.h"

struct mdl_team;

/* begin..end is a range of items; thread is 0..size-1 and may index per-thread scratch. */
typedef void mdl_team_fn(void *ctx, int begin, int end, int thread);

/* threads >= 1. Errors: -EAGAIN/-ENOMEM. */
int mdl_team_new(int threads, struct mdl_team **out, struct cfg_error *err);
void mdl_team_free(struct mdl_team *team);
int mdl_team_size(const struct mdl_team *team);

/* Runs fn over items 0..n-1 in pieces of grain items; returns when all are done. */
void mdl_team_run(struct mdl_team *team, int n, int grain, mdl_team_fn *fn, void *ctx);

/* CPUs that this process may use (affinity mask), at least 1. */
int mdl_team_default_threads(void);

#endif
