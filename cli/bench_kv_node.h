/* A kv node for `weft bench kv`: two nodes of one process, joined over tcp on loopback. One has a tier and the role kv;
 * its blocks are read by an actor beside it, and by one of the other node. Main thread; starts threads of its own and
 * ends them. */
#ifndef WEFT_CLI_BENCH_KV_NODE_H
#define WEFT_CLI_BENCH_KV_NODE_H

#include "config/error.h"
#include "kvtiers/tier.h"

enum { BENCH_KV_NODE_BLOCKS = 256 }; /* of the node's pool */

struct bench_kv_node_arg {
    const struct kv_layout *layout;
    struct kv_tier *tier;       /* has the blocks; nobody else calls it meanwhile */
    bool durable;               /* it goes behind a host tier, which has nothing */
    struct kv_storage *storage; /* of the tier; NULL: none. Nor this */
    const struct kv_key *key;   /* [runs][run] */
    const int *order;           /* [runs]: in which order they are read */
    int runs, run, ops;         /* run: blocks of one read; ops: reads at a time */
    uint8_t *memory;            /* [ops][run] blocks: what is read comes here */
    uint8_t *pool;              /* [BENCH_KV_NODE_BLOCKS] blocks */
    int rounds;
    double seconds; /* of a measurement, about */
};

/* Medians of the rounds. */
struct bench_kv_node {
    double local, remote, ratio; /* bytes per second; remote / local */
    double local_ms, remote_ms;  /* one read of `run` blocks, alone */
};

/* 0, or a negative errno with a sentence; -EIO: some blocks did not come. */
int bench_kv_node(const struct bench_kv_node_arg *arg, struct bench_kv_node *out, struct cfg_error *err);

#endif
