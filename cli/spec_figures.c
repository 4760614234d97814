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

/* Of Student's t, two-sided 95 %, for a spread estimated from n values. */
static double quantile(int n)
{
    static const double t[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                               2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086};
    return n < 2 ? NAN : n - 2 < (int)(sizeof t / sizeof t[0]) ? t[n - 2] : 1.96 + 2.5 / (n - 1);
}

void cli_spec_interval(const double *v, int n, double *mean, double *half)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++)
        sum += v[i];
    *mean = n ? sum / n : NAN;
    for (int i = 0; i < n; i++)
        squares += (v[i] - *mean) * (v[i] - *mean);
    *half = n < 2 ? NAN : quantile(n) * sqrt(squares / (n - 1) / n);
}

static double total(const double *v, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += v[i];
    return sum;
}

/* Logarithm of the rate of all runs but one; without -1: of all. */
static double log_rate(struct cli_spec_runs a, double tokens, double seconds, int without)
{
    if (without >= 0) {
        tokens -= a.tokens[without];
        seconds -= a.seconds[without];
    }
    return log(tokens / seconds);
}

/* b may be empty (tokens NULL): the rate of a alone. As a logarithm. */
static void log_change(struct cli_spec_runs a, struct cli_spec_runs b, int n, double *value, double *half)
{
    double ta = total(a.tokens, n), sa = total(a.seconds, n), tb = 1, sb = 1, sum = 0, squares = 0;
    if (b.tokens) {
        tb = total(b.tokens, n);
        sb = total(b.seconds, n);
    }
    *value = log_rate(a, ta, sa, -1) - (b.tokens ? log_rate(b, tb, sb, -1) : 0);
    *half = NAN;
    if (n < 2)
        return;
    for (int i = 0; i < n; i++) {
        double d = log_rate(a, ta, sa, i) - (b.tokens ? log_rate(b, tb, sb, i) : 0) - *value;
        sum += d;
        squares += d * d;
    }
    *half = quantile(n) * sqrt((squares - sum * sum / n) * (n - 1) / n);
}

void cli_spec_rate(struct cli_spec_runs a, int n, double *rate, double *half)
{
    double value, wide;
    *rate = *half = NAN;
    if (n < 1)
        return;
    log_change(a, (struct cli_spec_runs){0}, n, &value, &wide);
    *rate = exp(value);
    *half = *rate * wide;
}

void cli_spec_change(struct cli_spec_runs a, struct cli_spec_runs b, int n, double *percent, double *half)
{
    double value, wide;
    *percent = *half = NAN;
    if (n < 1)
        return;
    log_change(a, b, n, &value, &wide);
    *percent = 100 * (exp(value) - 1);
    *half = 100 * exp(value) * wide;
}
