/* What `weft bench serve` has seen, and its report: table, files, plot, also from a file of an earlier run. Every time
 * here is a client's, seconds, unless its name says otherwise. Main thread. */
#ifndef WEFT_CLI_BENCH_SERVE_REPORT_H
#define WEFT_CLI_BENCH_SERVE_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "cli/load_client.h"

enum { BS_POINTS_MAX = 32, BS_QUANTILES = 3, BS_REQUESTS_MAX = 100000 };
#define BS_LOAD_MAX 1e6
extern const double bs_quantile[BS_QUANTILES]; /* 0.5, 0.9, 0.99 */

enum bs_column {
    BS_FIRST_TOKEN, /* sent to first text */
    BS_INTER_TOKEN, /* between pieces of text of one answer */
    BS_END_TO_END,
    BS_QUEUE,   /* the server's own */
    BS_PREFILL, /* the server's own */
    BS_FIRST_DELIVERY,
    BS_DELIVERY,
    BS_USER_TOKEN, /* of a whole answer: first to last text, for each of its tokens behind the first */
    BS_COLUMNS
};

/* One load. What no request had is NaN. */
struct bs_point {
    bool open;
    double load;                          /* requests at a time, or per second */
    int requests, whole, refused, failed; /* refused: 429 and 503; failed: anything else that is not a whole answer */
    double seconds;
    int64_t prompt_tokens, output_tokens; /* of whole answers */
    double value[BS_COLUMNS][BS_QUANTILES], mean[BS_COLUMNS];
};

struct bs_results {
    json_t *conditions; /* owned; as FORMATS.md lists them */
    struct bs_point point[BS_POINTS_MAX];
    int n;
};

/* Counts and percentiles of a run of n requests into p, whose loop and load are set. Sorts the run's lists. */
void bs_take(struct bs_point *p, struct load_run *run, int n);

/* deliveries: the columns of --gateway too. */
void bs_print(const struct bs_results *r, bool deliveries);
int bs_write_json(const struct bs_results *r, const char *path, struct cfg_error *err);
int bs_write_csv(const struct bs_results *r, const char *path, struct cfg_error *err);
/* First token, time between pieces, and speed per user against throughput; a row of panels for each loop. */
int bs_plot(const struct bs_results *r, const char *path, struct cfg_error *err);
/* Of an earlier run. -EINVAL: not such a file. */
int bs_read_json(const char *path, struct bs_results *r, struct cfg_error *err);

#endif
