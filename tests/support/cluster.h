/* A deployment of several `weft serve` processes on loopback, over tcp, for end-to-end tests. One at a time.
 *
 * Logs go to files of the deployment's folder; they are shown when something fails. Everything is ended and removed by
 * ts_cluster_end, which a suite names as its .fini. */
#ifndef WEFT_TESTS_SUPPORT_CLUSTER_H
#define WEFT_TESTS_SUPPORT_CLUSTER_H

#include <sys/types.h>

#include "tests/support/answer.h"
#include "tests/support/server.h"

enum { TS_CLUSTER_NODES = 8, TS_CLUSTER_TOKENS = 60, TS_CLUSTER_PROMPTS = 4, TS_CLUSTER_LONG = 2048 };

struct ts_node {
    const char *name, *roles, *group; /* roles as in the file, each in quotes; group NULL: the unnamed one */
    bool metrics;                     /* it answers /metrics; a gateway does anyway */
    const char *host;                 /* NULL: the default, loopback */
    struct ts_server http;            /* of a gateway, or of /metrics; port 0: neither */
    int port;
    pid_t pid; /* 0: not running */
};

struct ts_cluster {
    char *dir;
    struct ts_node node[TS_CLUSTER_NODES];
    int n;
};

extern struct ts_cluster ts_cluster;
/* The last one is longer than what a bounded replay runs again. */
extern const char *const ts_cluster_prompts[TS_CLUSTER_PROMPTS];

/* Further keys of the group `cluster`, of all deployments that follow. */
extern const char *ts_cluster_keys;

/* Starts n nodes, the last one first, and waits until the gateways are ready; each with one thread and the sample
 * model. engine: further keys of that group; more: further groups of the file (kv in place of a small device). Skips
 * the test without the model. */
void ts_cluster_start(const struct ts_node *nodes, int n, const char *engine, const char *more);
/* Writes weft.conf and the secret only; somebody else starts the nodes. */
void ts_cluster_write(const struct ts_node *nodes, int n, const char *engine, const char *more);
/* The same from a sample deployment: its text with free ports, and with the folder in place of `folder`. */
void ts_cluster_write_sample(const char *file, const char *folder);
void ts_cluster_end(void);
/* Starts one node and waits for its first line, which it prints when it accepts. */
void ts_node_start(struct ts_node *n);
void ts_node_kill(struct ts_node *n);
/* Waits until the node's log, which is written in the background, has the text; fails after a minute. */
void ts_node_wait_log(const struct ts_node *n, const char *what);
/* Waits until the gateway answers /health/ready with this status (it accepts before it has found the other nodes);
 * fails after a minute. */
void ts_node_wait_ready(const struct ts_node *n, int status);
void ts_cluster_show_logs(void);
/* What a node answers to a tool, freed by the caller; NULL: nothing. */
char *ts_node_ask(const struct ts_node *n, const char *question);

/* The text of a greedy completion of TS_CLUSTER_TOKENS, freed by the caller; fails on any other status than 200. */
char *ts_cluster_complete(const struct ts_server *s, const char *prompt);
/* The same of so many tokens. */
char *ts_cluster_complete_to(const struct ts_server *s, const char *prompt, int tokens);
/* Prompt number `which` of ts_cluster_ask. */
void ts_cluster_prompt(int which, char out[TS_CLUSTER_LONG]);
/* What a node answers to prompt number `which`: some hundred tokens, long enough for a hit (a short one brings nothing,
 * what it saves is replayed anyway). Prompts differ from their beginning on. Fails on any other status than 200. */
struct ts_answer ts_cluster_ask(const struct ts_node *n, int which, int tokens);
/* What a single process says to the prompts; more: further keys of its file. */
void ts_cluster_ask_alone(const char *more, char *want[TS_CLUSTER_PROMPTS]);
/* Asks every prompt and compares. when: for the message. */
void ts_cluster_check(const struct ts_server *s, char *const want[TS_CLUSTER_PROMPTS], const char *when);
void ts_cluster_forget(char *want[TS_CLUSTER_PROMPTS]);

#endif
