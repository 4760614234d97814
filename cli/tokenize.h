/* `weft tokenize`: text to ids and back on the command line. Called by the table of subcommands only. */
#ifndef WEFT_CLI_TOKENIZE_H
#define WEFT_CLI_TOKENIZE_H

/* argv[0] is the subcommand's name. Returns the exit status: 0, 1 (failed), 2 (bad usage). Writes to stdout, errors to
 * stderr. */
int cli_tokenize_run(int argc, char **argv);

#endif
