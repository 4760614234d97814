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
};

/* A point to fill in; NULL: out of memory. */
struct sim_point *sim_report_add(struct sim_report *r);
void sim_report_free(struct sim_report *r);

void sim_report_print(const struct sim_report *r, const struct sim_profile *p);
int sim_report_json(const struct sim_report *r, const struct sim_profile *p, const char *file, struct cfg_error *err);
int sim_report_csv(const struct sim_report *r, const struct sim_profile *p, const char *file, struct cfg_error *err);
/* Per-device throughput over per-user speed, a line per mode and size of the deployment. */
int sim_report_plot(const struct sim_report *r, const struct sim_profile *p, const char *file, struct cfg_error *err);

#endif
