/* `weft bench kv`. Main thread. */
#ifndef WEFT_CLI_BENCH_KV_H
#define WEFT_CLI_BENCH_KV_H

int cli_bench_kv_run(int argc, char **argv);
/* The middle one of n values, which are sorted. */
double cli_bench_kv_median(double *v, int n);

#endif
