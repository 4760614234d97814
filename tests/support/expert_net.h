/* Expert shards on nodes of their own, in one simulation: each node a runtime with its link over the fault decorator
 * before the simulated network, its finder, and where there is one, its shard and its balancer. Node 0 has the client,
 * the Router, Prefill and Decode. Failures end the running test. */
#ifndef WEFT_TESTS_SUPPORT_EXPERT_NET_H
#define WEFT_TESTS_SUPPORT_EXPERT_NET_H

#include "actors/expert_finder.h"
#include "actors/link.h"
#include "actors/slots.h"
#include "tests/support/engine_world.h"
#include "transport/fault.h"
#include "transport/sim.h"

enum { TS_NET_NODES = 6, TS_NET_OLD = 16 };

struct ts_expert_net;

/* What a shard has been told, by incarnation of the actor; what a test ends. */
struct ts_net_shard {
    struct ts_expert_net *net;
    int node;
    int starts, puts, messages; /* of the newest incarnation: dispatches in slots, and as messages */
    int die_at;                 /* it fails at this dispatch, once; 0: never */
    bool later_wave;            /* or at the first one from there on that is of a second wave, or a later one */
    bool for_good;              /* and does not begin again */
    int deaf;                   /* dispatches in slots that it takes and forgets */
    int garbled_from;           /* what is in its slots makes no sense from this dispatch on; 0: never */
    bool stillborn;             /* once dead it cannot be started again */
};

/* Over the life of a net, all shards together. */
struct ts_net_counts {
    int puts, messages, waves; /* dispatches in slots, as messages; of these, in waves behind the first */
    int deaths, in_wave, gone; /* shards that failed; while in such a wave; for good */
    int forgotten;             /* dispatches that a deaf shard took */
    int restarts;              /* of nodes */
};

struct ts_expert_net {
    struct ts_world w;
    int shards, slot_rows; /* slot_rows 0: no slots */
    int other_rows;        /* of the last node's slots, as by another configuration; 0: the same */
    struct act_runtime *rt[TS_NET_NODES];
    struct tp_sim_net *net;
    struct tp_sim_end end[TS_NET_NODES];
    struct tp_fault fault[TS_NET_NODES];
    struct act_link_arg link[TS_NET_NODES];
    struct act_addr link_addr[TS_NET_NODES];
    struct act_link_peer peer[TS_NET_NODES][TS_NET_NODES];
    struct act_slots *slots[TS_NET_NODES];
    struct act_experts experts[TS_NET_NODES]; /* as the balancers and finders of the shards' nodes see them */
    struct act_finder_arg finder[TS_NET_NODES];
    struct act_expert_arg expert[TS_NET_NODES];
    struct ts_net_shard shard[TS_NET_NODES];
    struct ts_net_counts count;
    uint64_t epoch[TS_NET_NODES];
    struct act_slots *old[TS_NET_OLD]; /* slots of processes that have ended */
    int n_old;
    int64_t restart_delay_ns;
    bool restart_sources; /* Prefill and Decode begin again when they have failed */
    bool balance;         /* with balancers; they say what they did to `changed`, with balancer[i].ctx */
    struct act_balancer_arg balancer[TS_NET_NODES];
    struct act_addr balancer_addr[TS_NET_NODES];
    void (*changed)(void *ctx, const struct act_balance *b);
    long buffers, sequences;
};

/* shards nodes beside node 0; requests as ts_world_requests makes them, from half a second on. */
void ts_net_open(struct ts_expert_net *n, int shards, int slot_rows, int requests, unsigned seed);
/* Another map, with replicas. */
void ts_net_replicate(struct ts_expert_net *n, uint64_t seed);
/* Makes the nodes; nothing has run yet. */
void ts_net_start(struct ts_expert_net *n, uint64_t seed);
/* Runs until all requests have ended and a while longer. */
void ts_net_run(struct ts_expert_net *n);
/* Each request has ended once, with the tokens of a run without actors; nothing is left. */
void ts_net_check(struct ts_expert_net *n, const char *when);
void ts_net_close(struct ts_expert_net *n);
/* Parts a node from all others, or mends that. */
void ts_net_cut(struct ts_expert_net *n, int node, bool cut);
/* How often a node's connection of a class to another one has been made, as the node counts. */
uint32_t ts_net_connections(struct ts_expert_net *n, int node, int other, enum tp_class class);
/* Whether the node's directory has a shard. */
bool ts_net_has_shard(const struct ts_expert_net *n, int node);
/* The process of a node with a shard ends, and one of the next epoch begins in its place; ts_net_begin after
 * ts_net_end. Between two steps. */
void ts_net_end(struct ts_expert_net *n, int node);
void ts_net_begin(struct ts_expert_net *n, int node);
/* A rule that strikes never: for its count. */
struct tp_fault_rule *ts_net_count(struct ts_expert_net *n, int node, uint32_t on);

#endif
