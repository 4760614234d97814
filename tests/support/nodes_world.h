/* Whole nodes in one simulation: each a runtime of its own with its link, over the fault decorator before the simulated
 * network. Node 0 has the client, the Router and Prefill, the others Decode. Router, Prefill, Landing, tickets, Decode
 * and links are the real ones. A node can be killed, begin again on the same address, or fall silent while it stays
 * connected. Or the client and the Router are apart, as a gateway: then node 0 has Prefill, 1 Decode, 2 these. Failures
 * end the running test. */
#ifndef WEFT_TESTS_SUPPORT_NODES_WORLD_H
#define WEFT_TESTS_SUPPORT_NODES_WORLD_H

#include "actors/link.h"
#include "tests/support/engine_world.h"
#include "transport/fault.h"
#include "transport/sim.h"

enum { TS_NODES_MAX = 3, TS_NODES_ACTORS = 8, TS_NODES_GATEWAY = 2 /* when it is apart */ };

struct ts_nodes;

/* An actor of a node, which may be silent as a whole but for its link. */
struct ts_nodes_actor {
    struct ts_nodes *n;
    int node;
    struct act_behaviour outer;
    const struct act_behaviour *behaviour;
    const void *arg;
    struct act_addr addr;
    void *state; /* the actor's own, once it has begun */
};

struct ts_nodes {
    struct ts_world w; /* client, Router and Prefill; far: node 1, other: node 2 */
    int nodes;
    struct act_runtime *rt[TS_NODES_MAX]; /* of the present incarnation */
    uint64_t epoch[TS_NODES_MAX];
    bool silent[TS_NODES_MAX];
    bool apart;                         /* the gateway is */
    int deaf;                           /* 1: Prefill and Landing are not told of nodes that are lost; 2: nor that
                                         * Prefill's words came back */
    uint64_t dispatches;                /* to the shard of node 0 */
    struct act_engine prefill, gateway; /* apart: of node 0; of the gateway, whose link alone is there */
    int64_t turn_ns, prefill_ns;        /* virtual time that a turn of Decode takes, and of Prefill */
    struct tp_sim_net *net;
    struct tp_sim_end end[TS_NODES_MAX];
    struct tp_fault fault[TS_NODES_MAX];
    struct act_link_arg link[TS_NODES_MAX];
    struct act_link_peer peer[TS_NODES_MAX][TS_NODES_MAX];
    struct ts_nodes_actor actor[TS_NODES_MAX][TS_NODES_ACTORS];
    int n_actors[TS_NODES_MAX];
    struct act_addr reaper[TS_NODES_MAX];
    long buffers, sequences; /* before it */
};

/* Requests are set by the caller afterwards, in n->w. Exact mode, form full. */
void ts_nodes_open(struct ts_nodes *n, int nodes, uint64_t seed);
/* The same with a node for Prefill, one for Decode and one for the gateway. */
void ts_nodes_open_apart(struct ts_nodes *n, uint64_t seed);
/* Makes all nodes; nothing has run yet. */
void ts_nodes_start(struct ts_nodes *n, uint64_t seed);
/* Runs for so long. */
void ts_nodes_run(struct ts_nodes *n, int64_t ns);
/* Until every request has its end, or virtual time has passed `limit`. */
bool ts_nodes_run_all(struct ts_nodes *n, int64_t limit);
/* Nothing more of a Decode node, or of the gateway, is sent; its memory is gone. Its requests are marked as cancelled.
 */
void ts_nodes_kill(struct ts_nodes *n, int node);
/* It is there again, under a new epoch, with nothing; of the gateway, with the requests that have not begun yet. */
void ts_nodes_restart(struct ts_nodes *n, int node);
void ts_nodes_drain(struct ts_nodes *n, int node);
/* The gateway loses both other nodes, and they it, and finds no way back for so long; nobody dies. */
void ts_nodes_cut_gateway(struct ts_nodes *n, int64_t ns);
/* Of a Decode node. */
struct ts_far *ts_nodes_far(struct ts_nodes *n, int node);
/* Nothing is held but the leases of Decode, no ticket is open, no question is without its end. */
void ts_nodes_check(struct ts_nodes *n, const char *when);
void ts_nodes_close(struct ts_nodes *n);

#endif
