/* The benchmark of the expert exchange; the command `weft bench` calls it. */
#ifndef WEFT_CLI_BENCH_EXCHANGE_H
#define WEFT_CLI_BENCH_EXCHANGE_H

/* argv[0] is "exchange". Returns the exit status. */
int cli_bench_exchange_run(int argc, char **argv);

#endif
