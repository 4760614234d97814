/* Plots through gnuplot: the caller writes gnuplot commands, the file's suffix (.svg or .png) chooses the terminal.
 * gnuplot is needed only by those who ask for a plot. */
#ifndef WEFT_CLI_PLOT_H
#define WEFT_CLI_PLOT_H

#include "config/error.h"

struct cli_plot;

/* -EINVAL: unknown suffix; -ENOENT: no gnuplot, with the package to install. */
int cli_plot_begin(const char *file, struct cli_plot **out, struct cfg_error *err);
void cli_plot_printf(struct cli_plot *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Waits for gnuplot; p is gone afterwards. */
int cli_plot_end(struct cli_plot *p, struct cfg_error *err);

#endif
