/* The simulated runtime: the same actors on one thread, a virtual clock, and every choice from one seed.
 *
 * Each step picks, by the seed, a worker and what it does next: take messages from a lane, take control messages, or
 * run one of its runnable actors. When nothing can happen at this instant, the clock jumps to the next timer, delivery
 * or end of work. The same seed and the same program give the same steps, which the trace hash shows. A simulation
 * holds one or more runtimes (nodes) that share clock and seed. One thread at a time. */
#ifndef WEFT_ACTORS_RUNTIME_SIM_H
#define WEFT_ACTORS_RUNTIME_SIM_H

#include <stdio.h>

#include "actors/runtime/job.h"
#include "actors/runtime/runtime.h"

struct act_sim;

struct act_sim_config {
    uint64_t seed;
    /* Virtual ns that one call of receive takes: base + per message; 0: 1 us and 100 ns. act_busy adds to it. */
    int64_t call_ns, message_ns;
    /* The virtual cost of a job; NULL: job->cost_ns. */
    int64_t (*job_cost)(void *ctx, const struct act_job *job);
    void *job_ctx;
    /* A worker runs an actor only when no message, timer or room waits to be seen, as a thread's turn does. Without it
     * an actor may run first however often: right for finding mistakes, wrong for measuring how long things take. */
    bool in_turn;
    FILE *trace; /* one line per step, for people; NULL: none */
};

/* Faults of a link that was declared unreliable. Probabilities are per million messages; only types that may cross
 * nodes are lost or doubled. Delays hold for every message; equal delays keep the order, others mix it. */
struct act_sim_fault {
    uint32_t lose, copy;
    int64_t delay_min, delay_max; /* ns */
};

int act_sim_new(const struct act_sim_config *config, struct act_sim **out, struct cfg_error *err);
/* Adds a node. config's world is not used, sources neither. The runtime belongs to the simulation: no
 * act_runtime_start, act_runtime_stop or act_runtime_free. Spawn before or between steps. */
int act_sim_add(struct act_sim *sim, const struct act_config *config, struct act_runtime **out, struct cfg_error *err);
/* Declares the link from one worker of rt to another unreliable (or changes it). NULL: reliable again. */
void act_sim_link(struct act_sim *sim, struct act_runtime *rt, int from, int to, const struct act_sim_fault *fault);
/* One step. False: nothing can ever happen any more unless something comes from outside (no timer, no message). */
bool act_sim_step(struct act_sim *sim);
/* Steps until nothing can happen, the clock would pass `until`, or `steps` steps are done. Returns the number done. */
uint64_t act_sim_run(struct act_sim *sim, int64_t until, uint64_t steps);
int64_t act_sim_now(const struct act_sim *sim);
/* Depends on every step so far and on no address. */
uint64_t act_sim_trace(const struct act_sim *sim);
/* Random bits of the simulation, for the world around the actors (simulated disks, links, clients). */
uint64_t act_sim_random(struct act_sim *sim);
/* fn(ctx) is called at this virtual time, between steps: what the world outside does. Runs once. -ENOMEM. */
int act_sim_at(struct act_sim *sim, int64_t at, void (*fn)(void *ctx), void *ctx);
/* Ends the actors of a worker (below 0: of every worker) at this instant, as the end of their process does: none of
 * them gets anything to do with the end of another. back: those whose policy says so begin again after their restart
 * delay, which has to be above 0; otherwise nobody does. Between two steps, or in what act_sim_at calls. */
void act_sim_end(struct act_runtime *rt, int worker, bool back);
/* Ends all actors (stop callbacks run), then all runtimes. */
void act_sim_free(struct act_sim *sim);

#endif
