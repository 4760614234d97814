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

#endif
