/* Replay of a request trace against tiers of several sizes and times to live; for `weft bench kv --trace`. */
#ifndef WEFT_CLI_KV_TRACE_H
#define WEFT_CLI_KV_TRACE_H

/* Prints the tables, and draws them to plot_file unless it is NULL. Exit status. */
int cli_kv_trace_replay(const char *path, const char *plot_file);

#endif
