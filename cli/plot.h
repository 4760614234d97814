/* Plots through gnuplot: the caller writes gnuplot commands, the file's suffix (.svg or .png) chooses the terminal.
 * gnuplot is needed only by those who ask for a plot. */
#ifndef WEFT_CLI_PLOT_H
#define WEFT_CLI_PLOT_H

#include <jansson.h>

#include "config/error.h"

struct cli_plot;

/* Whether a plot could be drawn into this file: to be asked before what is to be drawn is measured. Errors as begin. */
int cli_plot_check(const char *file, struct cfg_error *err);
/* -EINVAL: unknown suffix; -ENOENT: no gnuplot, with the package to install; or the file cannot be written. The file
 * is there when it is whole (cli/output.h). */
int cli_plot_begin(const char *file, struct cli_plot **out, struct cfg_error *err);
/* The same, of another size in pixels (begin: 1100 x 700). */
int cli_plot_begin_sized(const char *file, int width, int height, struct cli_plot **out, struct cfg_error *err);
void cli_plot_printf(struct cli_plot *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* For the inside of double quotes: what gnuplot would read as its own is replaced. */
void cli_plot_text(struct cli_plot *p, const char *text);
/* The conditions under which figures hold, an object of texts, as labels 1, 2, ... at the lower left: one line each,
 * long ones broken, the last one just above the edge. Returns the height that they take, as a share of the picture: to
 * be called first, and the lower margin set above it. `unset label` takes them off again for the next panel. */
double cli_plot_conditions(struct cli_plot *p, const json_t *conditions);
/* Line colours that can be told apart; any index. */
const char *cli_plot_colour(int i);
/* Waits for gnuplot; p is gone afterwards. */
int cli_plot_end(struct cli_plot *p, struct cfg_error *err);

#endif
