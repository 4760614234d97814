/* The part of `weft check` that is about a deployment: what a node shares with the others, and whether these can be
 * reached. Main thread. */
#ifndef WEFT_CLI_CHECK_CLUSTER_H
#define WEFT_CLI_CHECK_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"

enum cli_finding { CLI_FINE, CLI_WARNING, CLI_PROBLEM };
/* Which of the other nodes are asked. */
enum cli_peers { CLI_PEERS_ALL, CLI_PEERS_NONE, CLI_PEERS_ELSEWHERE /* those of other machines */ };

struct cli_check_cluster {
    const struct cfg_config *c;
    const struct cfg_node *node;
    const char *file;
    enum cli_peers peers;
    int timeout_s;        /* for all other nodes together; they are asked at a time */
    uint64_t revision;    /* of the model; 0: it could not be read */
    const char *numerics; /* "cpu/avx2"; NULL: not known */
    const char *replay;   /* as cfg_replay_text; "": not known */
    void (*say)(void *ctx, enum cli_finding how, const char *part, const char *text);
    void *ctx;
};

/* Whether a process of this machine runs the node: it holds `path`, which is set. No node of a file with one does. */
bool cli_node_runs(const struct cfg_config *c, const struct cfg_node *n, char path[CFG_PATH_TEXT + CFG_NAME_TEXT + 8]);

/* Nothing is said about a file with one node. A node that does not answer is a warning, since it may be started later;
 * one that answers and does not fit is a problem. */
void cli_check_cluster(const struct cli_check_cluster *k);

#endif
