#include "cli/spec_figures.h"

#include <errno.h>
#include <math.h>

static double ratio(int64_t a, int64_t b)
{
    return b ? (double)a / (double)b : NAN;
}

struct cli_spec_figures cli_spec_figures(const struct mdl_counters *c)
{
    return (struct cli_spec_figures){.emitted_per_step = ratio(c->emitted, c->steps),
                                     .offered_per_step = ratio(c->offered, c->steps),
                                     .rows_per_step = ratio(c->offered + c->steps, c->steps),
                                     .accepted_per_offered = ratio(c->accepted, c->offered),
                                     .accepted_per_drafted = ratio(c->accepted, c->drafted)};
}

int cli_spec_convert(bool dynamic, int drafts, double rate, double *tokens_per_step, struct cfg_error *err)
{
    if (dynamic)
        return cfg_error_set(err, EINVAL,
                             "1 + drafts x rate holds for a fixed number of drafts; a dynamic run is counted by the "
                             "tokens that it emitted");
    if (drafts < 0 || !(rate >= 0 && rate <= 1))
        return cfg_error_set(err, EINVAL, "a rate of accepted drafts is 0 to 1, not %g", rate);
    *tokens_per_step = 1 + drafts * rate;
    return 0;
}

void cli_spec_interval(const double *v, int n, double *mean, double *half)
{
    static const double t[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                               2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086};
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++)
        sum += v[i];
    *mean = n ? sum / n : NAN;
    for (int i = 0; i < n; i++)
        squares += (v[i] - *mean) * (v[i] - *mean);
    double quantile = n < 2 ? NAN : n - 2 < (int)(sizeof t / sizeof t[0]) ? t[n - 2] : 1.96 + 2.5 / (n - 1);
    *half = n < 2 ? NAN : quantile * sqrt(squares / (n - 1) / n);
}
