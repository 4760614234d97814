/* The benchmark of expert balance; the command `weft bench` calls it. */
#ifndef WEFT_CLI_BENCH_EPLB_H
#define WEFT_CLI_BENCH_EPLB_H

/* argv[0] is "eplb". Returns the exit status. */
int cli_bench_eplb_run(int argc, char **argv);

#endif
