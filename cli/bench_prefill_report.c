#include "cli/bench_prefill.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/conditions.h"
#include "cli/output.h"
#include "cli/plot.h"
#include "cli/result_file.h"
#include "cli/spec_figures.h"

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

static int wrong(struct cfg_error *err, const char *where, const char *what, double is, const char *why, double should)
{
    return cfg_error_set(err, EINVAL, "%s: \"%s\" is %.9g, %s %.9g", where, what, is, why, should);
}

static int check_point(const struct bp_point *p, const char *where, struct cfg_error *err)
{
    /* The longest step and all others, none of which is shorter than the shortest, are parts of the whole; a file has
     * nine digits. */
    double least = p->longest + (double)(p->steps - 1) * p->shortest;
    int64_t whole = (p->tokens + p->chunk - 1) / p->chunk;
    if (p->longest < p->shortest)
        return wrong(err, where, "longest_step_seconds", p->longest, "less than the shortest,", p->shortest);
    if (p->exact ? p->steps != whole : p->steps < whole)
        return wrong(err, where, "steps", (double)p->steps, "but so many tokens in such chunks need", (double)whole);
    if (p->seconds < least * (1 - 1e-6))
        return wrong(err, where, "seconds", p->seconds, "but its steps take at least", least);
    if (p->layer_rows < p->tokens)
        return wrong(err, where, "layer_rows", (double)p->layer_rows, "fewer than the tokens,", p->tokens);
    if (p->exact && p->layer_rows % p->tokens)
        return cfg_error_set(err, EINVAL,
                             "%s: \"layer_rows\" is %lld, no multiple of the %d tokens, which all go "
                             "through every layer",
                             where, (long long)p->layer_rows, p->tokens);
    return 0;
}

static int read_point(const json_t *j, const char *where, struct bp_point *p, struct cfg_error *err)
{
    enum { TOKENS_MAX = 1 << 24 };
    const double seconds_max = 1e6, rows_max = 1e15;
    int64_t tokens, chunk, repeat;
    const char *form;
    *p = (struct bp_point){0};
    const struct cli_member members[] = {
        {"form", CLI_MEMBER_TEXT, &form},
        {"prompt_tokens", CLI_MEMBER_INTEGER, &tokens, 1, TOKENS_MAX},
        {"chunk", CLI_MEMBER_INTEGER, &chunk, 1, 65536},
        {"repeat", CLI_MEMBER_INTEGER, &repeat, 0, BP_REPEATS - 1},
        {"seconds", CLI_MEMBER_NUMBER, &p->seconds, 1e-9, seconds_max},
        {"longest_step_seconds", CLI_MEMBER_NUMBER, &p->longest, 1e-9, seconds_max},
        {"shortest_step_seconds", CLI_MEMBER_NUMBER, &p->shortest, 1e-9, seconds_max},
        {"steps", CLI_MEMBER_INTEGER, &p->steps, 1, TOKENS_MAX},
        {"layer_rows", CLI_MEMBER_INTEGER, &p->layer_rows, 1, rows_max},
        {.kind = CLI_MEMBER_END},
    };
    int r = cli_members_read(j, where, members, err);
    if (r)
        return r;
    if (strcmp(form, "exact") && strcmp(form, "replay"))
        return cfg_error_set(err, EINVAL, "%s: \"form\" must be exact or replay", where);
    p->exact = form[0] == 'e';
    p->tokens = (int)tokens;
    p->chunk = (int)chunk;
    p->repeat = (int)repeat;
    return check_point(p, where, err);
}

/* What was read so far, by ways through the model; tables and plots hold so many lengths and chunks. */
struct order {
    int n, n_lengths, n_chunks, length[BP_LENGTHS], chunk[BP_CHUNKS];
    int64_t layers; /* of exact ones; 0: none yet */
    struct {
        struct bp_point first;
        int seen;
    } way[2 * BP_LENGTHS * BP_CHUNKS];
};

static bool list_value(int *list, int *n, int most, int v)
{
    int i = 0;
    while (i < *n && list[i] != v)
        i++;
    if (i == most)
        return false;
    list[i] = v;
    *n += i == *n;
    return true;
}

/* Repeats of one form, length and chunk are numbered in their order, and all go the same way through the model. */
static int check_order(struct order *o, const struct bp_point *p, const char *where, struct cfg_error *err)
{
    int w = 0;
    if (!list_value(o->length, &o->n_lengths, BP_LENGTHS, p->tokens) ||
        !list_value(o->chunk, &o->n_chunks, BP_CHUNKS, p->chunk))
        return cfg_error_set(err, EINVAL, "%s: more than %d values of \"prompt_tokens\" or %d of \"chunk\"", where,
                             BP_LENGTHS, BP_CHUNKS);
    o->layers = p->exact && !o->layers ? p->layer_rows / p->tokens : o->layers;
    if (p->exact && p->layer_rows != o->layers * p->tokens)
        return wrong(err, where, "layer_rows", (double)p->layer_rows, "but with the layers of the others it is",
                     (double)(o->layers * p->tokens));
    for (; w < o->n; w++) {
        const struct bp_point *f = &o->way[w].first;
        if (f->exact == p->exact && f->tokens == p->tokens && f->chunk == p->chunk)
            break;
    }
    if (w == o->n) {
        o->way[w].first = *p;
        o->way[w].seen = 0;
        o->n++;
    }
    const struct bp_point *f = &o->way[w].first;
    if (f->steps != p->steps)
        return wrong(err, where, "steps", (double)p->steps, "but its other repeats have", (double)f->steps);
    if (f->layer_rows != p->layer_rows)
        return wrong(err, where, "layer_rows", (double)p->layer_rows, "but its other repeats have",
                     (double)f->layer_rows);
    if (p->repeat != o->way[w].seen)
        return wrong(err, where, "repeat", p->repeat, "but the next one of its form, length and chunk is",
                     o->way[w].seen);
    o->way[w].seen++;
    return 0;
}

static int read_root(const json_t *root, const char *path, struct bp_results *r, struct cfg_error *err)
{
    struct order order = {0};
    const json_t *points, *conditions;
    const struct cli_member members[] = {
        {"format", CLI_MEMBER_INTEGER, NULL, FORMAT, FORMAT},
        {"kind", CLI_MEMBER_TEXT, NULL},
        {"conditions", CLI_MEMBER_OBJECT, &conditions},
        {"points", CLI_MEMBER_LIST, &points},
        {.kind = CLI_MEMBER_END},
    };
    int bad = cli_members_read(root, path, members, err);
    if (bad)
        return bad;
    r->conditions = json_incref((json_t *)conditions);
    bad = cli_conditions_check(r->conditions, path, err);
    for (size_t i = 0; !bad && i < json_array_size(points); i++) {
        struct bp_point p;
        char where[300];
        snprintf(where, sizeof where, "%.250s, point %zu", path, i + 1);
        bad = read_point(json_array_get(points, i), where, &p, err);
        if (!bad)
            bad = check_order(&order, &p, where, err);
        if (!bad)
            bad = bp_add(r, &p, err);
    }
    return bad;
}

int bp_read_json(const char *path, struct bp_results *r, struct cfg_error *err)
{
    json_t *root;
    int bad = cli_result_read(path, CLI_RESULT_PREFILL, &root, err);
    if (!bad)
        bad = read_root(root, path, r, err);
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
