/* The benchmark of the actor runtime; the command `weft bench` calls it. */
#ifndef WEFT_CLI_BENCH_ACTORS_H
#define WEFT_CLI_BENCH_ACTORS_H

/* argv[0] is "actors", the rest its options. Returns an exit status. */
int cli_bench_actors_run(int argc, char **argv);

#endif
