/* What the parts of `weft check` share: check.c (the command, machine, model, what clients touch), check_memory.c,
 * check_tiers.c. Nobody else includes this. Main thread. */
#ifndef WEFT_CLI_CHECK_IMPL_H
#define WEFT_CLI_CHECK_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/check_cluster.h"
#include "config/config.h"
#include "model/config.h"

struct check {
    const struct cfg_config *c;
    const struct cfg_node *node;
    int problems, warnings;
    bool config_wrong, rdma;
    bool rdma_known; /* what this machine has of it was said */
    const char *file;
    int timeout_s;       /* for other nodes to answer */
    uint64_t revision;   /* of the model; 0: not known */
    char replay[64];     /* how it goes on behind a known prefix (cfg_replay_text); "": not known */
    size_t block_bytes;  /* of its rows; 0: not known */
    int64_t slot_bytes;  /* of its windows for the expert exchange; 0: none, or not known */
    const char *backend; /* name of the CPU path; NULL: none */
    enum cli_peers peers;
    int64_t need; /* bytes of memory, of the nodes that were checked so far */
    int threads;  /* the same */
};

enum finding { FINE, WARNING, PROBLEM };

void cli_check_say(struct check *k, enum finding how, const char *part, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Whether this node computes; whether it keeps blocks for others. */
static inline bool check_computes(const struct check *k)
{
    return (k->node->roles & (CFG_ROLE_PREFILL | CFG_ROLE_DECODE)) != 0;
}
static inline bool check_keeps(const struct check *k)
{
    return k->c->n_nodes > 1 && (k->node->roles & CFG_ROLE_KV) != 0;
}

/* Memory of the node's roles against what is available; sets block_bytes and slot_bytes, adds to need. */
void cli_check_memory(struct check *k, const struct mdl_config *m);
/* The same of all nodes of this machine together. */
void cli_check_memory_of_all(struct check *k, int nodes);
/* Folders, disks and limits of the tiers that the node has, and the kv nodes of the deployment. After the memory. */
void cli_check_tiers(struct check *k);

#endif
