/* The picture of `weft simulate`: up to three panels of one size and the conditions below them. Axes are set here, so
 * that gnuplot has nothing to guess where a panel has one point, or none. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/plot.h"
#include "cli/simulate_report.h"

enum { LEGEND = 210, PANEL = 430, HEIGHT = 560, LINE_PIXELS = 17, FIRST_LABEL = 100, COLOURS = 7, X = 0, Y = 1 };

struct drawing {
    const struct sim_report *r;
    const struct sim_profile *p;
    struct cli_plot *to;
    bool sizes; /* more than one size of the deployment */
    int lines;
    double width, height; /* of the picture, pixels */
};

/* What a panel shows of a point. */
typedef void coordinates(const struct drawing *d, int i, double at[2]);

static bool same_line(const struct sim_point *a, const struct sim_point *b)
{
    return sim_same_ranks(a, b) && a->open == b->open && !strcmp(a->mode, b->mode);
}

static bool same_mode(const struct sim_point *a, const struct sim_point *b)
{
    return a->open == b->open && strcmp(a->mode, b->mode) == 0;
}

/* How many different ones there are before the first one like i. */
static int place_of(const struct sim_report *r, int i, bool (*same)(const struct sim_point *, const struct sim_point *))
{
    int place = 0;
    for (int k = 0; !same(r->point[k], r->point[i]); k++) {
        bool seen = false;
        for (int j = 0; j < k; j++)
            seen |= same(r->point[j], r->point[k]);
        place += !seen;
    }
    return place;
}

static bool begins_line(const struct sim_report *r, int i)
{
    for (int k = 0; k < i; k++)
        if (same_line(r->point[k], r->point[i]))
            return false;
    return true;
}

/* ---- what is shown ---- */

static void speeds(const struct drawing *d, int i, double at[2])
{
    struct sim_figures f = sim_figures_of(d->r->point[i], d->p);
    at[X] = f.user;
    at[Y] = f.per_device;
}

/* A trace has no load of its own. */
static void changes(const struct drawing *d, int i, double at[2])
{
    at[X] = d->r->point[i]->value > 0 ? d->r->point[i]->value : 1;
    at[Y] = sim_change_of(d->r, i, d->p);
}

static void costs(const struct drawing *d, int i, double at[2])
{
    struct sim_figures f = sim_figures_of(d->r->point[i], d->p);
    at[X] = 1e3 * sim_histogram_quantile(&d->r->point[i]->outcome.first_token, 0.99);
    at[Y] = d->p->price > 0 ? f.price : f.per_device;
}

/* Least and most over all points that are shown. Returns how many there are. */
static int extent(const struct drawing *d, coordinates *of, double least[2], double most[2])
{
    int n = 0;
    least[X] = least[Y] = INFINITY;
    most[X] = most[Y] = -INFINITY;
    for (int i = 0; i < d->r->n; i++) {
        double at[2];
        of(d, i, at);
        if (!isfinite(at[X]) || !isfinite(at[Y]))
            continue;
        n++;
        for (int k = 0; k < 2; k++) {
            least[k] = fmin(least[k], at[k]);
            most[k] = fmax(most[k], at[k]);
        }
    }
    return n;
}

/* ---- axes ---- */

struct axis {
    double low, high;
    bool log;
};

/* From zero, unless all points lie so far up that they would be one heap. */
static struct axis axis_of(double least, double most, bool may_log)
{
    double room = most > least ? 0.1 * (most - least) : 0.1 * fabs(most);
    room = room > 0 ? room : 1;
    if (may_log && least > 0 && most > 20 * least)
        return (struct axis){least / 1.3, 1.3 * most, true};
    if (least < 0)
        return (struct axis){least - room, fmax(most, 0) + room, false};
    bool far = least > 0.6 * most && most - least > 0.02 * most;
    return (struct axis){far ? least - 1.5 * room : 0, most + (far ? 1.2 * room : 0.1 * most) + (most > 0 ? 0 : 1),
                         false};
}

static double share_of(const struct axis *a, double v)
{
    return a->log ? log(v / a->low) / log(a->high / a->low) : (v - a->low) / (a->high - a->low);
}

static void set_axis(struct drawing *d, char which, const struct axis *a)
{
    bool plain = a->high < 1e6 && a->high >= 0.01;
    cli_plot_printf(d->to, "%s logscale %c\nset %crange [%.9g:%.9g]\nset %ctics autofreq\nset format %c '%s'\n",
                    a->log ? "set" : "unset", which, which, a->low, a->high, which, which, plain ? "%g" : "%.1te%T");
}

/* Tics at the loads themselves, as many as have room beside each other. */
static void set_load_tics(struct drawing *d, const struct axis *x)
{
    struct cli_plot_labels room = {.wide = 0.11, .high = 1};
    int n = 0;
    cli_plot_printf(d->to, "set xtics (");
    for (int i = 0; i < d->r->n; i++) {
        double at[2];
        char text[24];
        changes(d, i, at);
        if (!cli_plot_label_fits(&room, share_of(x, at[X]), 0))
            continue;
        sim_load_text(d->r->point[i], text, sizeof text);
        cli_plot_printf(d->to, "%s'%s' %.9g", n++ ? ", " : "", text, at[X]);
    }
    cli_plot_printf(d->to, ")\n");
}

/* ---- panels ---- */

static void send_lines(const struct drawing *d, coordinates *of, const char *name)
{
    for (int first = 0; first < d->r->n; first++) {
        if (!begins_line(d->r, first))
            continue;
        cli_plot_printf(d->to, "$%s%d << EOD\n", name, first);
        for (int i = first; i < d->r->n; i++) {
            double at[2];
            of(d, i, at);
            if (same_line(d->r->point[i], d->r->point[first]) && isfinite(at[X]) && isfinite(at[Y]))
                cli_plot_printf(d->to, "%.9g %.9g\n", at[X], at[Y]);
        }
        cli_plot_printf(d->to, "EOD\n");
    }
}

static bool has_points(const struct drawing *d, coordinates *of, int first)
{
    for (int i = first; i < d->r->n; i++) {
        double at[2];
        of(d, i, at);
        if (same_line(d->r->point[i], d->r->point[first]) && isfinite(at[X]) && isfinite(at[Y]))
            return true;
    }
    return false;
}

static bool both_loops(const struct sim_report *r)
{
    for (int i = 1; i < r->n; i++)
        if (r->point[i]->open != r->point[0]->open)
            return true;
    return false;
}

/* The size of the deployment decides the colour, the mode dashes and points; of one size the mode decides both. Later
 * points are smaller, so that those below them show; sizes whose colour was used before have other points. */
static void line_style(const struct drawing *d, int i)
{
    static const int points[] = {7, 5, 9, 13, 11};
    int mode = place_of(d->r, i, same_mode), size = place_of(d->r, i, sim_same_ranks), before = 0;
    for (int k = 0; k < i; k++)
        before += begins_line(d->r, k);
    cli_plot_printf(d->to, " with linespoints pt %d ps %.2f lw 1.5 dt %d lc rgb '%s' ",
                    points[(mode + 2 * (size / COLOURS)) % 5], before < 8 ? 1.1 - 0.08 * before : 0.45,
                    d->sizes ? 1 + mode % 5 : 1, cli_plot_colour(d->sizes ? size : mode));
}

static void plot_lines(const struct drawing *d, coordinates *of, const char *name, bool titles)
{
    int n = 0;
    cli_plot_printf(d->to, "plot ");
    for (int i = 0; i < d->r->n; i++) {
        const struct sim_point *pt = d->r->point[i];
        bool shown = begins_line(d->r, i) && has_points(d, of, i);
        char ranks[48];
        if (!shown && !(titles && begins_line(d->r, i)))
            continue;
        if (shown)
            cli_plot_printf(d->to, "%s$%s%d using 1:2", n++ ? ", " : "", name, i);
        else /* in the legend all the same */
            cli_plot_printf(d->to, "%sNaN", n++ ? ", " : "");
        line_style(d, i);
        sim_ranks_text(pt, d->p, ranks, sizeof ranks);
        if (titles)
            cli_plot_printf(d->to, "title '%s%s%s%s'", d->sizes ? ranks : "", d->sizes ? " " : "", pt->mode,
                            !both_loops(d->r) ? ""
                            : pt->open        ? ", open loop"
                                              : ", closed loop");
        else
            cli_plot_printf(d->to, "notitle");
    }
    cli_plot_printf(d->to, "%s\n", n ? "" : "NaN notitle");
}

static void label_points(struct drawing *d, coordinates *of, const struct axis *x, const struct axis *y)
{
    struct cli_plot_labels labels = {.wide = 0.13, .high = 0.05};
    for (int i = 0; i < d->r->n; i++) {
        double at[2];
        char text[24];
        of(d, i, at);
        bool inside = share_of(x, at[X]) < 0.86; /* else it would cross the edge */
        double middle = share_of(x, at[X]) + (inside ? 0.07 : -0.07);
        if (!isfinite(at[X]) || !isfinite(at[Y]) || !cli_plot_label_fits(&labels, middle, share_of(y, at[Y])))
            continue;
        sim_load_text(d->r->point[i], text, sizeof text);
        cli_plot_printf(d->to, "set label %d '%s' at %.9g,%.9g %s,0.6 font ',8'\n", FIRST_LABEL + i, text, at[X], at[Y],
                        inside ? "left offset 0.7" : "right offset -0.7");
    }
}

/* column: from the left. */
static void draw_panel(struct drawing *d, int column, coordinates *of, const char *name, const char *head, bool last)
{
    double least[2], most[2], left = column * PANEL + 88;
    bool points = extent(d, of, least, most), loads = of == changes;
    struct axis x = axis_of(points ? least[X] : 0, points ? most[X] : 1, true),
                y = axis_of(points ? least[Y] : 0, points ? most[Y] : 1, of == costs);
    if (loads && points) {
        y.low = fmin(y.low, -1); /* per cent: less is no news */
        y.high = fmax(y.high, 1);
    }
    if (loads && points)
        x = most[X] > 3 * least[X] ? (struct axis){least[X] / 1.3, 1.3 * most[X], true}
                                   : (struct axis){0.8 * least[X], 1.2 * most[X], false};
    cli_plot_printf(d->to, "set lmargin at screen %g\nset rmargin at screen %g\n%s\n", left / d->width,
                    (column + 1) * PANEL / d->width, head);
    set_axis(d, 'x', &x);
    set_axis(d, 'y', &y);
    if (loads)
        set_load_tics(d, &x);
    else
        label_points(d, of, &x, &y);
    cli_plot_printf(d->to, loads ? "set xzeroaxis lt -1 lw 1.2\n" : "unset xzeroaxis\n");
    if (!points)
        cli_plot_printf(d->to,
                        "set label %d 'nothing to show: no answer of two tokens ended' at graph 0.5,0.5 center\n",
                        FIRST_LABEL - 1);
    cli_plot_printf(d->to,
                    last ? "set key at screen %g,0.94 top left Left reverse noenhanced font ',9' samplen 2\n"
                         : "unset key\n",
                    1 - (LEGEND - 12.0) / d->width);
    plot_lines(d, of, name, last);
    cli_plot_printf(d->to, "unset label\n");
}

int sim_report_plot(const struct sim_report *r, const struct sim_profile *p, const char *file, struct cfg_error *err)
{
    struct drawing d = {.r = r, .p = p};
    double least[2], most[2];
    char costs_head[256];
    bool trace_alone = r->n && r->point[0]->open && !(r->point[0]->value > 0);
    const char *loads_label = trace_alone                 ? "requests as in the trace"
                              : both_loops(r)             ? "requests at a time per decode rank; N/s: per second"
                              : r->n && r->point[0]->open ? "requests per second"
                                                          : "requests at a time per decode rank";
    for (int i = 0; i < r->n; i++) {
        d.sizes |= !sim_same_ranks(r->point[0], r->point[i]);
        d.lines += begins_line(r, i);
    }
    /* Without times of prompts the first token takes none, and there is nothing to show of it. */
    bool with_changes = extent(&d, changes, least, most), with_costs = p->encoder.n > 0;
    int panels = 1 + with_changes + with_costs, column = 0, high = 60 + LINE_PIXELS * d.lines;
    d.width = panels * PANEL + LEGEND;
    high = (high > HEIGHT ? high : HEIGHT) + 15 * (int)json_object_size(r->conditions) + 40;
    d.height = high;
    int bad = cli_plot_begin_sized(file, (int)d.width, high, &d.to, err);
    if (bad)
        return bad;
    send_lines(&d, speeds, "s");
    send_lines(&d, changes, "c");
    send_lines(&d, costs, "f");
    double bottom = cli_plot_conditions(d.to, r->conditions) + 62 / d.height;
    cli_plot_printf(d.to,
                    "set multiplot\nset grid lt 1 lw 0.7 lc rgb '#e0e0e0'\nset bmargin at screen %g\n"
                    "set tmargin at screen %g\n",
                    bottom, 1 - 36 / d.height);
    draw_panel(
        &d, column++, speeds, "s",
        "set title 'Speed per user against throughput'\nset xlabel 'tokens per second and user (median request)'\n"
        "set ylabel 'tokens per second and device, prefill ranks included'",
        panels == 1);
    if (with_changes) {
        char head[384];
        snprintf(head, sizeof head, "set title 'Change of throughput to %.20s'\nset xlabel '%s'\nset ylabel 'per cent'",
                 r->point[0]->mode, loads_label);
        draw_panel(&d, column++, changes, "c", head, !with_costs);
    }
    snprintf(costs_head, sizeof costs_head,
             "set title 'First token against %s'\nset xlabel 'first token, 99th percentile, ms'\nset ylabel '%s'",
             p->price > 0 ? "cost" : "throughput",
             p->price > 0 ? "price of a million output tokens" : "tokens per second and device");
    if (with_costs)
        draw_panel(&d, column, costs, "f", costs_head, true);
    cli_plot_printf(d.to, "unset multiplot\n");
    return cli_plot_end(d.to, err);
}
