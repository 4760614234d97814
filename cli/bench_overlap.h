/* `weft bench overlap`. Main thread. */
#ifndef WEFT_CLI_BENCH_OVERLAP_H
#define WEFT_CLI_BENCH_OVERLAP_H

int cli_bench_overlap_run(int argc, char **argv);

#endif
