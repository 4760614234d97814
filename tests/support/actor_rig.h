/* A runtime for tests that runs in threads or in the simulation, so that a test of behaviour can hold in both. The
 * test's thread owns it. */
#ifndef WEFT_TESTS_SUPPORT_ACTOR_RIG_H
#define WEFT_TESTS_SUPPORT_ACTOR_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "actors/runtime/sim.h"
#include "actors/runtime/stats.h"

enum ts_rig_mode { TS_RIG_THREADS, TS_RIG_SIM, TS_RIG_MODES };

struct ts_rig {
    enum ts_rig_mode mode;
    struct act_config config; /* may be changed between ts_rig_init and ts_rig_open */
    struct act_sim_config sim_config;
    struct act_runtime *rt;
    struct act_sim *sim;
};

/* A configuration with this many engine workers, none pinned. */
void ts_rig_init(struct ts_rig *rig, enum ts_rig_mode mode, int workers);
/* Makes the runtime; ends the test when that fails. */
void ts_rig_open(struct ts_rig *rig);
/* Spawns on the worker; ends the test when that fails. */
struct act_addr ts_rig_spawn(struct ts_rig *rig, int worker, const struct act_behaviour *behaviour, const void *arg);
struct act_addr ts_rig_spawn_spec(struct ts_rig *rig, const struct act_spawn *spec);
/* Starts the threads; nothing in the simulation. */
void ts_rig_start(struct ts_rig *rig);
/* Runs until *flag >= value; false after a long time (20 s, or 5 million steps) without. */
bool ts_rig_until(struct ts_rig *rig, const _Atomic long *flag, long value);
/* Runs until nothing moves any more. */
void ts_rig_settle(struct ts_rig *rig);
/* Stops and frees. Returns how many messages and requests were on their way, by the accounts of the lanes: 0, unless
 * room was lost or a promise was never kept. */
int ts_rig_close(struct ts_rig *rig);

#endif
