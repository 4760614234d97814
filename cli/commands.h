/* The commands that run a model; weft.c lists them. Same contract as struct cli_command.run (cli/cli.h). */
#ifndef WEFT_CLI_COMMANDS_H
#define WEFT_CLI_COMMANDS_H

int cli_score_run(int argc, char **argv);
int cli_generate_run(int argc, char **argv);
int cli_fidelity_run(int argc, char **argv);

#endif
