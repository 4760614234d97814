/* Asking the nodes of a deployment from outside, over authenticated connections (transport/net.h, tp_net_ask): what
 * weft status, drain, check and up share. Main thread; several nodes are asked at a time by threads of the call. */
#ifndef WEFT_CLI_NODES_H
#define WEFT_CLI_NODES_H

#include <jansson.h>
#include <stdbool.h>

#include "config/config.h"
#include "transport/net.h"
#include "transport/providers.h"

struct cli_nodes {
    const struct cfg_config *c;
    const char *file; /* of the configuration, for messages */
    struct tp_provider provider;
    uint8_t secret[TP_SECRET];
};

/* What became of one question. Released with cli_answer_clear. */
struct cli_answer {
    int status;                    /* 0, or a negative errno */
    char why[CFG_ERROR_MAX + 128]; /* of status: what is wrong, and what to do about it */
    char address[CFG_ADDRESS_TEXT + 16];
    struct tp_hello hello;         /* what the node says about itself in the handshake */
    int64_t connect_ns, answer_ns; /* until the handshake was done; from then to the answer */
    json_t *json;                  /* NULL: none was asked for, or status is not 0 */
};

/* file: as given on the command line. c outlives *out, which does not move. -EINVAL: the file itself is at fault;
 * -ENOTSUP and others: what it names cannot be had here. A file with one node needs no secret. */
int cli_nodes_open(const struct cfg_config *c, const char *file, struct cli_nodes *out, struct cfg_error *err);

/* Asks n nodes at a time (indices into c->nodes), each for at most timeout_ns. question "": only the handshake. A file
 * with one node is asked over HTTP, and only for "status". out [n]. */
void cli_nodes_ask(const struct cli_nodes *nodes, const int *which, int n, const char *tool, const char *question,
                   int64_t timeout_ns, struct cli_answer *out);
void cli_answer_clear(struct cli_answer *a);

/* Reads the configuration of a command and prints what is wrong with it. CLI_OK or CLI_USAGE. */
int cli_nodes_config(const char *file, struct cfg_config *out);

/* The node that an argument names. NULL: an error was printed. */
const struct cfg_node *cli_nodes_find(const struct cfg_config *c, const char *file, const char *command,
                                      const char *name);

#endif
