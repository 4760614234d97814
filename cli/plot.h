/* Plots through gnuplot: the caller writes gnuplot commands, the file's suffix (.svg or .png) chooses the terminal.
 * gnuplot is needed only by those who ask for a plot. */
#ifndef WEFT_CLI_PLOT_H
#define WEFT_CLI_PLOT_H

#include <jansson.h>
#include <stdbool.h>

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
/* Numbers beside points, of which only those are written that lie on no other one: x and y as shares of the panel's
 * axes, wide and high what a number takes of them. Zeroed but for wide and high at the beginning of a panel. */
enum { CLI_PLOT_LABELS = 512 };
struct cli_plot_labels {
    double wide, high, x[CLI_PLOT_LABELS], y[CLI_PLOT_LABELS];
    int n;
};
bool cli_plot_label_fits(struct cli_plot_labels *l, double x, double y);
/* Line colours that can be told apart; any index. */
const char *cli_plot_colour(int i);
/* Waits for gnuplot; p is gone afterwards. On an error there is no new file, and one of that name is as it was. */
int cli_plot_end(struct cli_plot *p, struct cfg_error *err);

#endif
