/* `weft bench decode`: decoding alone, at a fixed context, over numbers of sequences and ways of drafting. The run
 * (bench_decode.c) fills points with raw counters; the report (bench_decode_report.c) derives every figure from them,
 * also from a file of an earlier run. Main thread. */
#ifndef WEFT_CLI_BENCH_DECODE_H
#define WEFT_CLI_BENCH_DECODE_H

#include <jansson.h>

#include "cli/spec_figures.h"

enum { BD_DYNAMIC = -1, BD_MODES = MDL_MAX_BLOCK + 2, BD_LOADS = 24, BD_REPEATS = 64 };

/* One way of drafting at one load in one repeat. */
struct bd_point {
    int mode; /* drafts per step, 0: off, BD_DYNAMIC */
    int load; /* sequences at a time, on one device */
    int repeat;
    double seconds; /* of its rounds, planning included */
    int64_t rounds, skipped, probes;
    struct mdl_counters counters;
};

struct bd_results {
    json_t *conditions; /* owned; text values, printed as they are */
    struct bd_point *point;
    int n, cap;
    double convert; /* rate of the conversion, NaN: none */
};

int bd_add(struct bd_results *r, const struct bd_point *p, struct cfg_error *err);
void bd_free(struct bd_results *r);
void bd_mode_name(int mode, char out[16]);

void bd_print(const struct bd_results *r);
int bd_write_json(const struct bd_results *r, const char *path, struct cfg_error *err);
int bd_write_csv(const struct bd_results *r, const char *path, struct cfg_error *err);
/* Speed per user against throughput per device, and dynamic's change against the best other, with all conditions. */
int bd_plot(const struct bd_results *r, const char *path, struct cfg_error *err);
/* Of an earlier run. -EINVAL: not such a file, or counters that contradict each other. */
int bd_read_json(const char *path, struct bd_results *r, struct cfg_error *err);

int cli_bench_decode_run(int argc, char **argv);

#endif
