/* What the nodes of ts_cluster say about themselves, over tcp or rdma, and what the kernel says about them: which
 * provider carried how much, and whether anything else could have. */
#ifndef WEFT_TESTS_SUPPORT_DEPLOYMENT_H
#define WEFT_TESTS_SUPPORT_DEPLOYMENT_H

#include <jansson.h>
#include <sys/types.h>

/* A node's answer to `weft status`, freed by the caller; asked over rdma when the node has a host, else over tcp. Ends
 * the test when none comes. */
json_t *ts_status_of(int node);

/* A counter of a status: class "control", "kv" or "expert". */
long long ts_carried(const json_t *status, const char *class, const char *what);

/* A figure of the node's tier of that name. */
long long ts_tier_figure(const json_t *status, const char *tier, const char *key);
/* Waits for a figure of a node's tier; returns the node's answer that has it. */
json_t *ts_until_figure(int node, const char *tier, const char *key, long long least);

/* Sockets of TCP that a process has beside those of its HTTP port (0: none): of its descriptors, those that the
 * kernel's tables of TCP know. */
int ts_tcp_sockets(pid_t pid, int port);

#endif
