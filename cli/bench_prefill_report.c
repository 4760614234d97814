#include "cli/bench_prefill.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/conditions.h"
#include "cli/output.h"
#include "cli/plot.h"
#include "cli/spec_figures.h"
#include "model/json_file.h"

enum { FORMAT = 1 };

int bp_add(struct bp_results *r, const struct bp_point *p, struct cfg_error *err)
{
    if (r->n == r->cap) {
        int cap = r->cap ? 2 * r->cap : 256;
        struct bp_point *more = realloc(r->point, (size_t)cap * sizeof *more);
        if (!more)
            return cfg_error_set(err, ENOMEM, "out of memory");
        r->point = more;
        r->cap = cap;
    }
    r->point[r->n++] = *p;
    return 0;
}

void bp_free(struct bp_results *r)
{
    json_decref(r->conditions);
    free(r->point);
}

/* ---- figures ---- */

struct cell {
    int n;
    double tokens[BP_REPEATS], seconds[BP_REPEATS], longest[BP_REPEATS];
    int64_t steps, layer_rows; /* of one prompt: the same in every repeat */
};

static void make_cell(const struct bp_results *r, bool exact, int tokens, int chunk, struct cell *c)
{
    c->n = 0;
    for (int i = 0; i < r->n && c->n < BP_REPEATS; i++) {
        const struct bp_point *p = &r->point[i];
        if (p->exact != exact || p->tokens != tokens || p->chunk != chunk)
            continue;
        c->tokens[c->n] = p->tokens;
        c->seconds[c->n] = p->seconds;
        c->longest[c->n++] = p->longest;
        c->steps = p->steps;
        c->layer_rows = p->layer_rows;
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bool bp_figures(const struct bp_results *r, bool exact, int tokens, int chunk, struct bp_figures *out)
{
    struct cell c, other;
    make_cell(r, exact, tokens, chunk, &c);
    if (!c.n)
        return false;
    const struct cli_spec_runs runs = {c.tokens, c.seconds};
    *out = (struct bp_figures){
        .repeats = c.n, .steps = c.steps, .layers = (double)c.layer_rows / tokens, .change = NAN, .change_half = NAN};
    cli_spec_rate(runs, c.n, &out->rate, &out->rate_half);
    out->seconds = tokens / out->rate;
    out->half = out->seconds * out->rate_half / out->rate;
    if (!exact) {
        make_cell(r, true, tokens, chunk, &other);
        if (other.n)
            cli_spec_change(runs, (struct cli_spec_runs){other.tokens, other.seconds}, c.n < other.n ? c.n : other.n,
                            &out->change, &out->change_half);
    }
    qsort(c.longest, (size_t)c.n, sizeof *c.longest, by_value);
    out->longest = c.n % 2 ? c.longest[c.n / 2] : (c.longest[c.n / 2 - 1] + c.longest[c.n / 2]) / 2;
    return true;
}

/* Different values, ascending. */
static int list_values(const struct bp_results *r, bool chunks, int most, int *out)
{
    int n = 0;
    for (int i = 0; i < r->n; i++) {
        int v = chunks ? r->point[i].chunk : r->point[i].tokens, at = 0;
        while (at < n && out[at] < v)
            at++;
        if ((at < n && out[at] == v) || n == most)
            continue;
        for (int k = n++; k > at; k--)
            out[k] = out[k - 1];
        out[at] = v;
    }
    return n;
}

/* ---- text ---- */

static void print_number(double v, int width, int digits)
{
    if (isnan(v))
        printf(" %*s", width, "-");
    else
        printf(" %*.*f", width, digits, v);
}

void bp_print(const struct bp_results *r)
{
    int lengths[BP_LENGTHS], chunks[BP_CHUNKS];
    int n_lengths = list_values(r, false, BP_LENGTHS, lengths), n_chunks = list_values(r, true, BP_CHUNKS, chunks);
    cli_conditions_print(r->conditions);
    puts("\nstep time of one prompt, which is no time to first token; +- is half of the 95 % interval over the "
         "repeats;\n"
         "longest: its longest step; layers: that a token goes through in the mean; change: of tokens/s against exact");
    printf("%7s %6s %-7s %6s %10s %8s %10s %9s %8s %7s %9s %6s\n", "tokens", "chunk", "form", "steps", "ms", "+-",
           "tokens/s", "+-", "longest", "layers", "change %", "+-");
    for (int l = 0; l < n_lengths; l++)
        for (int c = 0; c < n_chunks; c++)
            for (int exact = 1; exact >= 0; exact--) {
                struct bp_figures f;
                if (!bp_figures(r, exact, lengths[l], chunks[c], &f))
                    continue;
                printf("%7d %6d %-7s %6lld", lengths[l], chunks[c], exact ? "exact" : "replay", (long long)f.steps);
                print_number(1e3 * f.seconds, 10, 2);
                print_number(1e3 * f.half, 8, 2);
                print_number(f.rate, 10, 1);
                print_number(f.rate_half, 9, 1);
                print_number(1e3 * f.longest, 8, 2);
                print_number(f.layers, 7, 2);
                print_number(f.change, 9, 1);
                print_number(f.change_half, 6, 1);
                putchar('\n');
            }
}

/* ---- files ---- */

int bp_write_json(const struct bp_results *r, const char *path, struct cfg_error *err)
{
    json_t *points = json_array();
    for (int i = 0; i < r->n; i++) {
        const struct bp_point *p = &r->point[i];
        json_t *j = json_pack("{s:s,s:i,s:i,s:i,s:f}", "form", p->exact ? "exact" : "replay", "prompt_tokens",
                              p->tokens, "chunk", p->chunk, "repeat", p->repeat, "seconds", p->seconds);
        json_object_update_new(j, json_pack("{s:f,s:f,s:I,s:I}", "longest_step_seconds", p->longest,
                                            "shortest_step_seconds", p->shortest, "steps", (json_int_t)p->steps,
                                            "layer_rows", (json_int_t)p->layer_rows));
        json_array_append_new(points, j);
    }
    json_t *all = json_pack("{s:i,s:s,s:O,s:o}", "format", FORMAT, "kind", "prefill", "conditions", r->conditions,
                            "points", points);
    return cli_output_json(path, all, JSON_INDENT(1) | JSON_REAL_PRECISION(9) | JSON_PRESERVE_ORDER, err);
}

int bp_write_csv(const struct bp_results *r, const char *path, struct cfg_error *err)
{
    struct cli_output out;
    int bad = cli_output_begin(&out, path, err);
    if (bad)
        return bad;
    FILE *f = out.to;
    fputs("form,prompt_tokens,chunk,repeat,seconds,longest_step_seconds,shortest_step_seconds,steps,layer_rows,prompt_"
          "tokens_per_second\n",
          f);
    for (int i = 0; i < r->n; i++) {
        const struct bp_point *p = &r->point[i];
        fprintf(f, "%s,%d,%d,%d,%.9f,%.9f,%.9f,%lld,%lld,%.6g\n", p->exact ? "exact" : "replay", p->tokens, p->chunk,
                p->repeat, p->seconds, p->longest, p->shortest, (long long)p->steps, (long long)p->layer_rows,
                p->tokens / p->seconds);
    }
    return cli_output_end(&out, 0, err);
}

/* ---- reading ---- */

static bool integer_of(const json_t *j, const char *key, int64_t min, int64_t max, int64_t *out)
{
    const json_t *v = json_object_get(j, key);
    *out = json_integer_value(v);
    return json_is_integer(v) && *out >= min && *out <= max;
}

static const char *read_point(const json_t *j, struct bp_point *p)
{
    enum { TOKENS_MAX = 1 << 24 };
    const char *form = json_string_value(json_object_get(j, "form"));
    int64_t tokens, chunk, repeat;
    *p = (struct bp_point){.seconds = json_number_value(json_object_get(j, "seconds")),
                           .longest = json_number_value(json_object_get(j, "longest_step_seconds")),
                           .shortest = json_number_value(json_object_get(j, "shortest_step_seconds"))};
    if (!form || (strcmp(form, "exact") && strcmp(form, "replay")))
        return "\"form\" is exact or replay";
    if (!integer_of(j, "prompt_tokens", 1, TOKENS_MAX, &tokens) || !integer_of(j, "chunk", 1, TOKENS_MAX, &chunk) ||
        !integer_of(j, "repeat", 0, BP_REPEATS - 1, &repeat))
        return "prompt_tokens and chunk are needed, above 0, and the repeat";
    if (!integer_of(j, "steps", 1, TOKENS_MAX, &p->steps) || !integer_of(j, "layer_rows", 1, INT64_MAX, &p->layer_rows))
        return "a counter is missing";
    /* The longest step and all others, none of which is shorter than the shortest, are parts of the whole; a file has
     * nine digits. */
    double least = p->longest + (double)(p->steps - 1) * p->shortest;
    if (!(p->shortest > 0) || !(p->longest >= p->shortest) || !(p->seconds >= least * (1 - 1e-6)) ||
        p->steps * chunk < tokens || p->layer_rows < tokens)
        return "the counters contradict each other";
    p->exact = form[0] == 'e';
    p->tokens = (int)tokens;
    p->chunk = (int)chunk;
    p->repeat = (int)repeat;
    return NULL;
}

int bp_read_json(const char *path, struct bp_results *r, struct cfg_error *err)
{
    size_t i;
    json_t *root, *point;
    if (mdl_json_file(path, &root, err))
        return -EINVAL; /* whatever is wrong with it: the command line named it */
    json_t *points = json_object_get(root, "points");
    const char *kind = json_string_value(json_object_get(root, "kind"));
    r->conditions = json_incref(json_object_get(root, "conditions"));
    int bad = json_integer_value(json_object_get(root, "format")) != FORMAT || !kind || strcmp(kind, "prefill") ||
                      !json_is_object(r->conditions) || !json_array_size(points)
                  ? cfg_error_set(err, EINVAL, "%s is no result of `weft bench prefill --json`", path)
                  : cli_conditions_check(r->conditions, path, err);
    if (!bad)
        json_array_foreach (points, i, point) {
            struct bp_point p;
            const char *why = read_point(point, &p);
            bad = why ? cfg_error_set(err, EINVAL, "%s, point %zu: %s", path, i + 1, why) : bp_add(r, &p, err);
            if (bad)
                break;
        }
    json_decref(root);
    return bad;
}

/* ---- plot ---- */

/* A line of the plot: a form with a chunk. tokens, ms, +-, tokens/s, +-, longest step in ms. */
static int plot_line(const struct bp_results *r, struct cli_plot *p, bool exact, int chunk, const int *lengths, int n,
                     int line)
{
    int points = 0;
    cli_plot_printf(p, "$l%d << EOD\n", line);
    for (int l = 0; l < n; l++) {
        struct bp_figures f;
        if (!bp_figures(r, exact, lengths[l], chunk, &f))
            continue;
        cli_plot_printf(p, "%d %.9g %.6g %.9g %.6g %.9g\n", lengths[l], 1e3 * f.seconds,
                        isnan(f.half) ? 0 : 1e3 * f.half, f.rate, isnan(f.rate_half) ? 0 : f.rate_half,
                        1e3 * f.longest);
        points++;
    }
    cli_plot_printf(p, "EOD\n");
    return points;
}

struct line {
    int number, chunk, colour;
    bool exact;
};

/* errors: the column of the half-intervals, 0: none. */
static void plot_panel(struct cli_plot *p, const struct line *line, int n, int column, int errors, bool titles)
{
    cli_plot_printf(p, "plot ");
    for (int i = 0; i < n; i++) {
        const char *colour = cli_plot_colour(line[i].colour);
        if (errors)
            cli_plot_printf(p, "$l%d using 1:%d:%d with yerrorbars pt 0 lc rgb '%s' notitle, ", line[i].number, column,
                            errors, colour);
        cli_plot_printf(p, "$l%d using 1:%d with linespoints pt %d ps 0.7 lw 1.5 dt %d lc rgb '%s' ", line[i].number,
                        column, line[i].exact ? 7 : 6, line[i].exact ? 1 : 2, colour);
        if (titles)
            cli_plot_printf(p, "title '%s, chunks of %d'", line[i].exact ? "exact" : "replay", line[i].chunk);
        else
            cli_plot_printf(p, "notitle");
        cli_plot_printf(p, "%s", i + 1 < n ? ", " : "\n");
    }
}

static void panel_head(struct cli_plot *p, double left, const char *title, const char *ylabel, const char *range)
{
    cli_plot_printf(p,
                    "set lmargin at screen %g\nset rmargin at screen %g\nset title '%s'\nset ylabel '%s' offset 1,0\n"
                    "%s\n",
                    left, left + 0.255, title, ylabel, range);
}

int bp_plot(const struct bp_results *r, const char *path, struct cfg_error *err)
{
    enum { WIDTH = 1400, HEIGHT = 700 };
    int lengths[BP_LENGTHS], chunks[BP_CHUNKS], n_lines = 0;
    int n_lengths = list_values(r, false, BP_LENGTHS, lengths), n_chunks = list_values(r, true, BP_CHUNKS, chunks);
    struct line line[2 * BP_CHUNKS];
    struct cli_plot *p;
    int bad = cli_plot_begin_sized(path, WIDTH, HEIGHT, &p, err);
    if (bad)
        return bad;
    for (int c = 0; c < n_chunks; c++)
        for (int exact = 1; exact >= 0; exact--)
            if (plot_line(r, p, exact, chunks[c], lengths, n_lengths, 2 * c + !exact))
                line[n_lines++] = (struct line){2 * c + !exact, chunks[c], c, exact};
    double bottom = cli_plot_conditions(p, r->conditions) + 0.17;
    cli_plot_printf(
        p,
        "set multiplot\nset grid lt 1 lw 0.7 lc rgb '#e0e0e0'\nset bmargin at screen %g\nset tmargin at screen 0.93\n"
        "set xlabel 'tokens of the prompt'\nset logscale x 2\nset xrange [%g:%g]\n"
        "set key at screen 0.98,%g right top vertical maxrows 3 font ',9'\n",
        bottom, 0.85 * lengths[0], 1.18 * lengths[n_lengths - 1], bottom - 0.085);
    panel_head(p, 0.06, "Step time of a prompt (not time to first token)", "step time of the whole prompt, ms",
               "set logscale y 10\nset yrange [*:*]");
    plot_panel(p, line, n_lines, 2, 3, true);
    cli_plot_printf(p, "unset label\nunset key\n");
    panel_head(p, 0.39, "Throughput of step time", "prompt tokens per second of step time",
               "unset logscale y\nset yrange [0:*]");
    plot_panel(p, line, n_lines, 4, 5, false);
    panel_head(p, 0.72, "Longest step (others wait for it)", "step time of the longest step, ms",
               "set logscale y 10\nset yrange [*:*]");
    plot_panel(p, line, n_lines, 6, 0, false);
    cli_plot_printf(p, "unset multiplot\n");
    return cli_plot_end(p, err);
}
