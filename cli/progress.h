/* A progress display on standard error: one line that is drawn over and over while something takes longer than a
 * second, and cleared at its end. Nothing is printed when standard error is no terminal. One thread per display. */
#ifndef WEFT_CLI_PROGRESS_H
#define WEFT_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdio.h>

struct cli_progress {
    const char *what, *unit; /* borrowed until cli_progress_end */
    double total;            /* in unit; 0: unknown */
    double start, last;      /* seconds */
    bool drawn;
    /* The seams that cli_progress_start fills and a test may replace before the first update. */
    FILE *out;           /* NULL: stay silent */
    double (*now)(void); /* seconds, monotonic */
    double after, every; /* seconds until the first line and between lines */
};

/* what is a short phrase such as "reading the prompt", unit such as "tokens". */
void cli_progress_start(struct cli_progress *p, const char *what, const char *unit, double total);
/* done counts from 0 in unit. Cheap enough to call for every item. */
void cli_progress_update(struct cli_progress *p, double done);
/* Clears the line. Call it before printing anything else. A later update draws again. */
void cli_progress_end(struct cli_progress *p);

#endif
