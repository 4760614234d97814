/* The benchmark of a server under load; the command `weft bench` calls it. */
#ifndef WEFT_CLI_BENCH_SERVE_H
#define WEFT_CLI_BENCH_SERVE_H

/* argv[0] is "serve", the rest its options. Returns an exit status. */
int cli_bench_serve_run(int argc, char **argv);

/* The text that prompts are made from when none are given. */
extern const char bench_serve_filler[];

#endif
