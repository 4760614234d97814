/* What `weft simulate` found, point by point, and its ways out. Main thread. */
#ifndef WEFT_CLI_SIMULATE_REPORT_H
#define WEFT_CLI_SIMULATE_REPORT_H

#include "cli/simulate.h"

enum sim_routing { SIM_ROUTING_LOAD, SIM_ROUTING_PREFIX, SIM_ROUTING_COMMON };

struct sim_point {
    int decode, prefill, decode_group, prefill_group; /* groups 0: all ranks of a kind */
    bool open;
    double value; /* closed loop: requests at a time per decode rank; open: per second, 0: a trace's own */
    char mode[32];
    struct sim_outcome outcome;
};

struct sim_report {
    struct sim_point **point; /* [n] */
    int n, cap;
    json_t *conditions; /* texts (cli/conditions.h); owned */
};

struct sim_figures {
    int devices;
    double rate, per_rank, per_device; /* tokens per second */
    double offered, emitted;           /* per sequence and round; NAN: there was none */
    double user;  /* tokens per second of half the requests, at least; NAN: no request of two tokens */
    double price; /* of a million tokens; NAN: unknown */
};
struct sim_figures sim_figures_of(const struct sim_point *p, const struct sim_profile *profile);
bool sim_same_ranks(const struct sim_point *a, const struct sim_point *b);
/* "64+8", and the groups where they are not all of a kind: "64+8/2", "128/64+8"; "16", "10/s", "trace". */
void sim_ranks_text(const struct sim_point *p, const struct sim_profile *profile, char *out, size_t size);
void sim_load_text(const struct sim_point *p, char *out, size_t size);
/* Change of throughput against the first mode at this place, per cent; NAN for that mode itself, and where it had none.
 */
double sim_change_of(const struct sim_report *r, int i, const struct sim_profile *p);

/* A point to fill in; NULL: out of memory. */
struct sim_point *sim_report_add(struct sim_report *r);
void sim_report_free(struct sim_report *r);

void sim_report_print(const struct sim_report *r, const struct sim_profile *p);
int sim_report_json(const struct sim_report *r, const struct sim_profile *p, const char *file, struct cfg_error *err);
int sim_report_csv(const struct sim_report *r, const struct sim_profile *p, const char *file, struct cfg_error *err);
/* -ENODATA: not one request ended in all runs, so that there is nothing to see. */
int sim_report_ended(const struct sim_report *r, struct cfg_error *err);
/* Per-device throughput over per-user speed, a line per mode and size of the deployment; changes of throughput between
 * modes, losses too; first token over cost (cli/simulate_plot.c). */
int sim_report_plot(const struct sim_report *r, const struct sim_profile *p, const char *file, struct cfg_error *err);

#endif
