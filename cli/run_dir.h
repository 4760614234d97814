/* The folder in which `weft up` keeps what it runs: for every process a file NAME.pid with pid, start time and boot of
 * the machine, so that nobody signals another process that got the same pid; and the lock of the supervisor. Main
 * thread. */
#ifndef WEFT_CLI_RUN_DIR_H
#define WEFT_CLI_RUN_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "config/config.h"

enum { RUN_BOOT_TEXT = 40, RUN_PATH_TEXT = CFG_PATH_TEXT + CFG_NAME_TEXT + 64 };

/* Name of the supervisor's own files; names of nodes begin otherwise. */
#define RUN_SUPERVISOR "_supervisor"

struct run_process {
    pid_t pid;
    unsigned long long start; /* clock ticks after the boot */
    char boot[RUN_BOOT_TEXT]; /* of the machine */
    bool draining;            /* it has been told SIGTERM; another one would cut its requests off */
};

/* The folder for a configuration: given on the command line, or "up" in cluster.state, or FILE.run. -ENAMETOOLONG. */
int run_dir_of(const struct cfg_config *c, const char *file, const char *given, char out[CFG_PATH_TEXT],
               struct cfg_error *err);
void run_dir_path(const char *dir, const char *name, const char *suffix, char out[RUN_PATH_TEXT]);

/* -EEXIST: a supervisor holds it; *fd is to be kept open. The folder exists. */
int run_dir_lock(const char *dir, int *fd, struct cfg_error *err);

/* What the process with this pid is now. -ESRCH. */
int run_process_of(pid_t pid, struct run_process *out);
/* A descriptor of exactly that process (it becomes readable at its end, and signals go through it), or -ESRCH when it
 * has ended, whoever may have its pid now. */
int run_process_open(const struct run_process *p);

int run_file_write(const char *dir, const char *name, const struct run_process *p, struct cfg_error *err);
/* -ENOENT; -EINVAL: it holds no process. */
int run_file_read(const char *dir, const char *name, struct run_process *out);
void run_file_remove(const char *dir, const char *name);

#endif
