/* `weft bench decode`: decoding alone, at a fixed context, over numbers of sequences and ways of drafting. The run
 * (bench_decode.c) fills points with raw counters; the report (bench_decode_report.c) derives every figure from them,
 * also from those of an earlier run (bench_decode_file.c). Main thread. */
#ifndef WEFT_CLI_BENCH_DECODE_H
#define WEFT_CLI_BENCH_DECODE_H

#include <jansson.h>

#include "cli/spec_figures.h"

enum { BD_DYNAMIC = -1, BD_MODES = MDL_MAX_BLOCK + 2, BD_LOADS = 24, BD_REPEATS = 512 };

/* One way of drafting at one load in one repeat. */
struct bd_point {
    int mode; /* drafts per step, 0: off, BD_DYNAMIC */
    int load; /* sequences at a time, on one device */
    int repeat;
    double seconds;  /* of its rounds, planning included */
    double planning; /* of these, in the planner; NaN: not known */
    /* Tokens that were to be expected of its rounds: with stated acceptance every verified draft counts with the chance
     * that its coin has, which leaves the luck out. Below 0: not known, what came out counts. */
    double expected;
    int64_t rounds, skipped, probes;
    struct mdl_counters counters;
};

/* What points were counted on, as far as a preset asks for it. */
struct bd_setup {
    int devices;   /* that decode as one group, each with its own sequences and a part of the experts */
    int experts;   /* of the model */
    int redundant; /* more, which are copies of some */
    int context;   /* tokens */
    int drafts;    /* that the drafter makes at once */
};

struct bd_results {
    json_t *conditions;    /* owned; text values, printed as they are */
    struct bd_setup setup; /* zero: not known */
    struct bd_point *point;
    int n, cap;
    double convert; /* rate of the conversion, NaN: none */
};

int bd_add(struct bd_results *r, const struct bd_point *p, struct cfg_error *err);
void bd_free(struct bd_results *r);
void bd_mode_name(int mode, char out[16]);

/* Change of speed of one way against another at a load in per cent, and half of its 95 % interval. Returns the repeats
 * that both have. */
int bd_change(const struct bd_results *r, int load, int mode, int other, double *percent, double *half);

/* Dynamic against the best of the others at a load. */
struct bd_verdict {
    int best;             /* the best of all repeats */
    double percent, half; /* against the best, chosen and compared on different repeats */
    int hardest;          /* the way against which the interval reaches lowest, */
    double low;           /* and how low */
    int64_t rounds, skipped, probes;
    double planning; /* share of dynamic's time */
};
/* The best other of the odd repeats is compared on the even ones, and the other way round: a way that was best by luck
 * does not take its luck into the comparison. false: there is nothing to compare. */
bool bd_judge(const struct bd_results *r, int load, struct bd_verdict *v);

void bd_print(const struct bd_results *r);
int bd_write_json(const struct bd_results *r, const char *path, struct cfg_error *err);
int bd_write_csv(const struct bd_results *r, const char *path, struct cfg_error *err);
/* Speed per user against throughput per device, and dynamic's change against the best other, with all conditions. */
int bd_plot(const struct bd_results *r, const char *path, struct cfg_error *err);
/* Of an earlier run. -EINVAL: not such a file, or counters that contradict each other or what a run can count; the
 * message names the point and the figure. */
int bd_read_json(const char *path, struct bd_results *r, struct cfg_error *err);

/* ---- presets (bench_decode_preset.c) ---- */

enum bd_preset { BD_PRESET_NONE, BD_PRESET_DECODE_131K };
extern const char *const bd_preset_names[];
/* A setup on which a preset's curve can be taken, and how: all drafts fixed, at an assumed rate. */
struct bd_preset_needs {
    struct bd_setup setup;
    int drafts;  /* of a step */
    double rate; /* of the conversion */
};
const struct bd_preset_needs *bd_preset_needs(enum bd_preset preset);
/* -ENOTSUP: err lists everything that is missing, and no more. where: of the list, such as "here". */
int bd_preset_check(enum bd_preset preset, const struct bd_setup *have, const char *where, struct cfg_error *err);
/* Of recorded points: their setup and that they are of the preset's length; sets the conversion, and the conditions
 * that the preset stands for. -ENOTSUP. */
int bd_preset_apply(enum bd_preset preset, struct bd_results *r, struct cfg_error *err);

int cli_bench_decode_run(int argc, char **argv);

#endif
