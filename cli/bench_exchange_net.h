/* Two nodes of one process for `weft bench exchange`: one runs the source (bench_exchange_source.h), the other has the
 * expert shards, and a provider of the transport joins them. As in a deployment, each has a link on an io worker, and
 * dispatches and results are put into slots, or go as messages. Main thread; starts threads of its own and ends them.
 */
#ifndef WEFT_CLI_BENCH_EXCHANGE_NET_H
#define WEFT_CLI_BENCH_EXCHANGE_NET_H

#include "cli/bench_exchange_source.h"
#include "transport/transport.h"

enum { BENCH_SOURCE_NODE, BENCH_SHARD_NODE, BENCH_NODES };

struct bench_exchange_net_arg {
    const char *model;
    int rows, shards, threads;
    int slot_rows;                     /* 0: messages */
    bool apart;                        /* the source has a CPU of its own */
    const struct tp_ops *ops;          /* the provider, */
    const void *provider[BENCH_NODES]; /* its part of the endpoints' configuration; outlive the nodes, */
    const char *listen;                /* and where the shards' node listens */
};

struct bench_exchange_net;

/* Returns when dispatches go as they are to. Negative errno with a sentence; *out is NULL then. */
int bench_exchange_net_open(const struct bench_exchange_net_arg *arg, struct bench_exchange_net **out,
                            struct cfg_error *err);
/* NULL is allowed. */
void bench_exchange_net_close(struct bench_exchange_net *n);
/* For bench_exchange_measure. */
struct act_runtime *bench_exchange_net_runtime(struct bench_exchange_net *n);
struct bench_source *bench_exchange_net_source(struct bench_exchange_net *n);

#endif
