/* Figures of decoding with drafts, derived from raw counters. Every denominator is in the name; docs/MEASURING.md
 * explains them. Pure functions. */
#ifndef WEFT_CLI_SPEC_FIGURES_H
#define WEFT_CLI_SPEC_FIGURES_H

#include <stdbool.h>

#include "config/error.h"
#include "model/decode.h"

/* Of one run; NaN where the denominator is 0. A step is one request in one round. */
struct cli_spec_figures {
    double emitted_per_step;     /* tokens that came out, the target's own one included */
    double offered_per_step;     /* drafts verified */
    double rows_per_step;        /* offered_per_step + 1 */
    double accepted_per_offered; /* of the drafts that were verified */
    double accepted_per_drafted; /* of the drafts that were made, verified or not */
};
struct cli_spec_figures cli_spec_figures(const struct mdl_counters *c);

/* What a step of a fixed number of drafts counts for when only a rate is known: 1 + drafts x rate, the rate being
 * accepted drafts per offered draft, positions together. -EINVAL for dynamic runs: their number of drafts follows the
 * confidence, so no such rate describes them. */
int cli_spec_convert(bool dynamic, int drafts, double rate, double *tokens_per_step, struct cfg_error *err);

/* Mean and half width of the 95 % confidence interval (Student's t); half NaN for fewer than two values. */
void cli_spec_interval(const double *v, int n, double *mean, double *half);

/* Runs of one way of drafting: tokens and seconds of each. */
struct cli_spec_runs {
    const double *tokens, *seconds;
};

/* All tokens over all seconds, with half of its 95 % interval. A mean of the runs' own rates would be too high, the
 * more so the shorter they are. */
void cli_spec_rate(struct cli_spec_runs a, int n, double *rate, double *half);
/* Change of the rate of a against b in per cent. Run i of both happened next to each other; the interval comes from
 * leaving each pair out in turn (jackknife), so that what slowed both of a pair cancels. */
void cli_spec_change(struct cli_spec_runs a, struct cli_spec_runs b, int n, double *percent, double *half);

#endif
