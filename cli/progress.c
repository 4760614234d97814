/* Implementation of cli/progress.h. */
#include "cli/progress.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double monotonic(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool is_terminal(void)
{
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && !(term && strcmp(term, "dumb") == 0);
}

void cli_progress_start(struct cli_progress *p, const char *what, const char *unit, double total)
{
    *p = (struct cli_progress){.what = what, .unit = unit, .total = total, .now = monotonic, .after = 1, .every = 0.1};
    p->out = is_terminal() ? stderr : NULL;
    p->start = p->now();
}

static void format_time(double s, char *out, size_t size)
{
    long t = (long)(s + 0.5);
    if (t < 60)
        snprintf(out, size, "%ld s", t);
    else if (t < 3600)
        snprintf(out, size, "%ld min %02ld s", t / 60, t % 60);
    else
        snprintf(out, size, "%ld h %02ld min", t / 3600, t / 60 % 60);
}

void cli_progress_update(struct cli_progress *p, double done)
{
    if (!p->out)
        return;
    double now = p->now(), gone = now - p->start;
    if (gone < p->after || (p->drawn && now - p->last < p->every))
        return;
    double rate = done / gone;
    /* "\r\033[K": back to the first column and clear the rest of the line. */
    fprintf(p->out, "\r\033[K%s: %.0f", p->what, done);
    if (p->total > 0)
        fprintf(p->out, " of %.0f", p->total);
    fprintf(p->out, " %s", p->unit);
    if (p->total > 0)
        fprintf(p->out, " (%.0f %%)", 100 * done / p->total);
    fprintf(p->out, rate < 10 ? ", %.2f/s" : ", %.0f/s", rate);
    if (p->total > done && rate > 0) {
        char left[32];
        format_time((p->total - done) / rate, left, sizeof left);
        fprintf(p->out, ", %s left", left);
    }
    fflush(p->out);
    p->drawn = true;
    p->last = now;
}

void cli_progress_end(struct cli_progress *p)
{
    if (p->out && p->drawn) {
        fputs("\r\033[K", p->out);
        fflush(p->out);
    }
    p->drawn = false;
}
