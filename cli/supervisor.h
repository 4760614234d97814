/* The processes of `weft up` on one machine: started, watched, started again, stopped. weft down uses the stopping part
 * when the supervisor itself is gone.
 *
 * Each node is a process of its own in a process group of its own, so that Ctrl-C reaches the supervisor alone. Its
 * standard error is appended to NAME.log in the run folder; its first line on standard output says that it accepts.
 * Everything waits in one poll; main thread. */
#ifndef WEFT_CLI_SUPERVISOR_H
#define WEFT_CLI_SUPERVISOR_H

#include <signal.h>
#include <stdio.h>

#include "cli/nodes.h"
#include "cli/run_dir.h"

enum sup_state {
    SUP_OFF,      /* not started, or ended for good */
    SUP_STARTING, /* runs and has not said that it accepts */
    SUP_RUNNING,
    SUP_WAITING, /* ended; begins again at `again` */
    SUP_ENDED,   /* ended, and nobody has decided yet */
};

struct sup_node {
    struct cfg_node what; /* as the configuration had it when it was taken up */
    enum sup_state state;
    bool leaving;   /* it is in the configuration no more: not started again */
    bool told;      /* this process has been told to drain: another SIGTERM would cut its requests off */
    pid_t pid;      /* > 0: a child that was not reaped */
    int fd;         /* pidfd; -1: none */
    int out;        /* its standard output until it accepts; -1 */
    char line[256]; /* what it printed there */
    size_t line_size;
    long log_at;          /* size of its log when it began */
    int64_t began, again; /* ms of CLOCK_MONOTONIC */
    int64_t pause;        /* ms until it begins again; grows */
    int restarts;
    int end; /* of waitpid, when it has ended */
};

struct supervisor {
    const struct cfg_config *c;
    struct cfg_config *other; /* into which the file is read again; changes places with c */
    bool all;                 /* every node of this machine, those that come later included */
    struct cli_nodes nodes;
    const char *file;
    char given[2 * CFG_PATH_TEXT]; /* what weft up and weft down have to be given: the file, and the folder if it was */
    char dir[CFG_PATH_TEXT], program[4096];
    char *const *more; /* further arguments of weft serve, NULL-terminated; may be NULL */
    bool restart;      /* nodes that fail begin again */
    FILE *say;         /* where events go */
    bool stamped;      /* with the time before them */
    struct sup_node node[CFG_NODES_MAX];
    int n;
    int signals; /* signalfd */
    int later;   /* SIGHUP or SIGUSR1 that came while the nodes were starting; 0: none */
};

/* Starts every node and waits until all accept, and as far as the other nodes are on this machine too, until each is ok
 * and connected to them. A node that ends instead, or the end of limit_ms, or a signal, is a failure: the reason with
 * the end of the node's log was said, and everything was stopped. CLI_OK, CLI_FAILED, CLI_USAGE when a node says that
 * the configuration is wrong. SIGHUP and SIGUSR1 wait for sup_run. */
int sup_start(struct supervisor *s, int64_t limit_ms);

/* Watches them until a signal asks for the end and all have ended, or all have ended by themselves. CLI_OK: on purpose
 * and well.
 *
 * SIGHUP: the file is read again. Nodes of this machine that are new in it are started, those that are in it no more
 * drain and end, the others get the signal. SIGUSR1: the same; and nodes that have a file NAME.start in the run folder
 * and are away are started, and the file goes. */
int sup_run(struct supervisor *s);

/* From another process than the supervisor, which runs: has it start those of the nodes of *s that are away, and waits
 * until all that run on this machine are ok and connected. missing [CFG_NODES_MAX]: which these were; *n_missing 0:
 * none, and it has only read the file again. The reason of a failure was said. */
int sup_start_missing(struct supervisor *s, int64_t limit_ms, struct sup_node *missing, int *n_missing);

/* Which nodes of the configuration have an address of this machine. n_which: their number. */
int sup_local(const struct cfg_config *c, int which[CFG_NODES_MAX], int *n_which, struct cfg_error *err);

/* The first node that machines other than this one may reach, as its host is no loopback address (or not known here);
 * NULL: they are all on loopback. */
const struct cfg_node *sup_not_loopback(const struct cfg_config *c);

/* Processes that are to end, children or not. In order: gateways, so that their requests can end; prefill and decode;
 * the rest. Each order is told SIGTERM once the one before has ended; those that drain already are waited for. */
struct sup_stop {
    const struct cfg_config *c;
    const char *dir; /* run folder */
    struct sup_node *node;
    int n;
    int order;        /* that was told; -1: none */
    bool now;         /* do not wait for requests */
    bool cut, killed; /* a second SIGTERM, SIGKILL was sent */
    int64_t until;    /* ms */
};
/* Does what is due. Returns whether all have ended. Called again after events and every now and then. */
bool sup_stop_turn(struct sup_stop *t, int64_t now_ms);
int64_t sup_now_ms(void);

#endif
