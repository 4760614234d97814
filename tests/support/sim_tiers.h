/* The tiers below the device of a simulated deployment (engine_world.h): each process has a host tier, a disk if it is
 * wanted, and the kv nodes, each a process of its own. Disks outlive the processes. Failures end the running test. */
#ifndef WEFT_TESTS_SUPPORT_SIM_TIERS_H
#define WEFT_TESTS_SUPPORT_SIM_TIERS_H

#include "actors/kv_node.h"
#include "kvtiers/storage_sim.h"
#include "tests/support/engine_world.h"

enum { TS_KV_NODES = 2, TS_SIM_STORES = TS_PROCESSES };

struct ts_sim_tiers {
    struct ts_world *w;
    struct kv_layout layout;
    struct kv_clock clock;
    int host_blocks, disk_blocks; /* of each process; disk_blocks 0: no disk */
    int nodes, node_blocks;
    int64_t hedge_ns;          /* of the stores; 0: never */
    int64_t node_restart_ns;   /* that a kv node which ended is away */
    struct act_sim_fault link; /* between kv nodes and the others */
    struct ts_sim_store {
        struct act_store store;
        struct act_addr addr;
        struct kv_disk *disk;
        int worker;
    } store[TS_SIM_STORES];
    struct ts_sim_keeper {
        struct ts_sim_tiers *t;
        struct act_store store;
        struct act_addr store_addr, addr;
        struct act_kv_node_arg arg;
        struct act_kv_node_stats stats;
        uint8_t *buffer;
        int worker, number;
    } node[TS_KV_NODES];
    /* By tiers that have ended, too: blocks that were read from the host, from disks, from kv nodes, and stored on
     * disks. */
    uint64_t host_read, disk_read, node_read, disk_stored, disk_errors;
};

/* After ts_world_open; then the numbers above are set, and w->more_workers, before ts_world_start. */
void ts_sim_tiers_open(struct ts_sim_tiers *t, struct ts_world *w);
int ts_sim_tiers_workers(const struct ts_sim_tiers *t);
/* The tiers of a process end with it (ts_world_end_process, in the same instant), and its disk keeps what a kill
 * leaves.
 */
void ts_sim_tiers_end_process(struct ts_sim_tiers *t, enum ts_process p);
/* A kv node ends as a process; it is back after node_restart_ns, with nothing in it. */
void ts_sim_tiers_end_node(struct ts_sim_tiers *t, int node);
/* Nothing arrives at a kv node or comes from it; false: again as always. */
void ts_sim_tiers_silence(struct ts_sim_tiers *t, int node, bool silent);
/* Nothing is under way any more; what is in the tiers is summed up. seed: for messages. */
void ts_sim_tiers_check(struct ts_sim_tiers *t, int seed);
/* Ends the simulation, too; before ts_world_close. */
void ts_sim_tiers_close(struct ts_sim_tiers *t);

#endif
