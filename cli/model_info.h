/* `weft model`: reports about a model directory. Main thread only. */
#ifndef WEFT_CLI_MODEL_INFO_H
#define WEFT_CLI_MODEL_INFO_H

/* argv[0] is the command's name, argv[1] the report ("info"). Results go to standard output, messages to standard
 * error. Returns the exit status: 0 done, 1 the model cannot be read, 2 the command line is wrong. */
int cli_model_run(int argc, char **argv);

#endif
