/* `weft bench prefill`: one prompt alone through the model, over prompt lengths and chunk sizes, exact and with bounded
 * replay. Its times are step times: no queue, no tokenizer, no sampling, no network, so none of them is a time to first
 * token, which `weft bench serve` measures. The run (bench_prefill.c) fills points with raw counters; the report
 * (bench_prefill_report.c) derives every figure from them, also from a file of an earlier run. Main thread. */
#ifndef WEFT_CLI_BENCH_PREFILL_H
#define WEFT_CLI_BENCH_PREFILL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "config/error.h"

enum { BP_LENGTHS = 16, BP_CHUNKS = 8, BP_REPEATS = 512 };

/* One prompt, once. */
struct bp_point {
    bool exact;        /* else bounded replay */
    int tokens, chunk; /* of the prompt; rows of a step, at most */
    int repeat;
    double seconds;           /* of all its steps */
    double longest, shortest; /* of its steps */
    int64_t steps;            /* passes through the model */
    int64_t layer_rows;       /* rows of these times the layers that they went through */
};

struct bp_results {
    json_t *conditions; /* owned; texts */
    struct bp_point *point;
    int n, cap;
};

int bp_add(struct bp_results *r, const struct bp_point *p, struct cfg_error *err);
void bp_free(struct bp_results *r);

/* Of one form, length and chunk, over its repeats. Every half is half of a 95 % interval, NaN with one repeat. */
struct bp_figures {
    int repeats;
    int64_t steps;          /* of one prompt */
    double seconds, half;   /* of one prompt: all seconds over all repeats */
    double rate, rate_half; /* prompt tokens per second of step time */
    double longest;         /* longest step of a prompt, seconds, median of the repeats */
    double layers;          /* layers that a token of the prompt goes through, in the mean */
    double change,
        change_half; /* of rate against exact with the same chunk, per cent; NaN: is exact, or there is none */
};
/* false: there is no such point. */
bool bp_figures(const struct bp_results *r, bool exact, int tokens, int chunk, struct bp_figures *out);

void bp_print(const struct bp_results *r);
int bp_write_json(const struct bp_results *r, const char *path, struct cfg_error *err);
int bp_write_csv(const struct bp_results *r, const char *path, struct cfg_error *err);
/* Step time of a prompt, its tokens per second, and its longest step, over the prompt's length. */
int bp_plot(const struct bp_results *r, const char *path, struct cfg_error *err);
/* Of an earlier run. -EINVAL: not such a file, or points that contradict each other. */
int bp_read_json(const char *path, struct bp_results *r, struct cfg_error *err);

int cli_bench_prefill_run(int argc, char **argv);

#endif
