/* The benchmark of the transport's providers; the command `weft bench` calls it. */
#ifndef WEFT_CLI_BENCH_TRANSPORT_H
#define WEFT_CLI_BENCH_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/rdma.h"

/* argv[0] is "transport". Returns the exit status. */
int cli_bench_transport_run(int argc, char **argv);

/* ---- anchors, bench_anchor.c: what the thing under a provider does without it ----------------------------------- */

/* Blocking sockets over loopback between two processes: half the median time of n round trips of `size` bytes, in us;
 * and MiB/s of count writes of `size` bytes. NAN: it could not be measured. */
double cli_anchor_tcp_latency(int size, int n);
double cli_anchor_tcp_bandwidth(int size, int count);
/* MiB/s of copying blocks of `size` bytes through `span` bytes. */
double cli_anchor_copy_bandwidth(int size, int64_t bytes);

struct cli_rdma_place {
    char device[64];
    int gid;
    char address[48];
};

/* The devices that two ends use, by their lists of names; "": the nearest. Negative errno with a sentence. */
int cli_rdma_places(const struct tp_rdma_plugin *plugin, const char *devices, const char *peer,
                    struct cli_rdma_place out[2], struct cfg_error *err);

/* perftest's ib_send_lat (typical, us) and ib_write_bw (average, MiB/s) between two devices of this machine; NAN when
 * the programs are not there or fail. events: it sleeps until a completion wakes it; otherwise both poll. */
double cli_anchor_rdma_latency(const struct cli_rdma_place place[2], int size, int n, bool events);
double cli_anchor_rdma_bandwidth(const struct cli_rdma_place place[2], int size, int count);

#endif
