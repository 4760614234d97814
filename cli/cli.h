/* The command line: a table of subcommands and what they share. The commands sit above every other layer; weft.c holds
 * nothing but the table.
 *
 * Exit status: 0 done, 1 the work failed, 2 the command line or a configuration file is wrong, 3 (weft serve, drain, down)
 * what was asked to end has ended, and what still ran was cut off. Messages go to standard error as "weft: ..."; results go to
 * standard output. Main thread only. */
#ifndef WEFT_CLI_CLI_H
#define WEFT_CLI_CLI_H

#include "config/version.h"

enum cli_status { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_CUT_OFF = 3 };

struct cli_command {
    const char *name;
    const char *summary; /* one line for `weft --help` */
    /* argv[0] is the command's name, the rest are its arguments. Handles --help itself (cli/options.h does). */
    int (*run)(int argc, char **argv);
};

/* Runs the command that argv names; commands ends with a NULL name and outlives the call. Returns the exit status;
 * CLI_FAILED also when standard output could not be written. */
int cli_main(const struct cli_command *commands, int argc, char **argv);

/* Prints "weft: " and the message to standard error, as one line. Returns status, so that a command can
 * `return cli_error(CLI_FAILED, ...)`. */
int cli_error(int status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The commands. */
int cli_help_run(int argc, char **argv);
int cli_config_run(int argc, char **argv);
int cli_version_run(int argc, char **argv);
int cli_score_run(int argc, char **argv);
int cli_generate_run(int argc, char **argv);
int cli_fidelity_run(int argc, char **argv);
int cli_perplexity_run(int argc, char **argv);
int cli_serve_run(int argc, char **argv);
int cli_simulate_run(int argc, char **argv);
int cli_check_run(int argc, char **argv);
int cli_up_run(int argc, char **argv);
int cli_down_run(int argc, char **argv);
int cli_status_run(int argc, char **argv);
int cli_drain_run(int argc, char **argv);
int cli_kv_run(int argc, char **argv);
int cli_bench_run(int argc, char **argv);
int cli_calibrate_run(int argc, char **argv);

#endif
