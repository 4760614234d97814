#include "cli/plot.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/output.h"
#include "cli/text.h"

enum { WIDTH = 1100, HEIGHT = 700, CONDITION_PIXELS = 15 };
static const double CHARACTER_PIXELS = 6.4; /* of the conditions' font, wide ones included */

struct cli_plot {
    const char *file;
    struct cli_output out; /* gnuplot opens it by its name */
    FILE *to;
    int width, height;
};

static int has_gnuplot(void)
{
    return system("command -v gnuplot >/dev/null 2>&1") == 0;
}

int cli_plot_begin(const char *file, struct cli_plot **out, struct cfg_error *err)
{
    return cli_plot_begin_sized(file, WIDTH, HEIGHT, out, err);
}

int cli_plot_check(const char *file, struct cfg_error *err)
{
    const char *dot = strrchr(file, '.');
    if (!dot || (strcmp(dot, ".svg") && strcmp(dot, ".png")) || strpbrk(file, "'\n\\"))
        return cfg_error_set(err, EINVAL, "plot file \"%s\": use a name that ends in .svg or .png, without quotes",
                             file);
    if (!has_gnuplot())
        return cfg_error_set(err, ENOENT, "a plot needs gnuplot; install the package gnuplot-nox (make deps does)");
    return 0;
}

int cli_plot_begin_sized(const char *file, int width, int height, struct cli_plot **out, struct cfg_error *err)
{
    int bad = cli_plot_check(file, err);
    *out = NULL;
    if (bad)
        return bad;
    const char *dot = strrchr(file, '.');
    struct cli_plot *p = malloc(sizeof *p);
    if (!p)
        return cfg_error_set(err, ENOMEM, "plot: out of memory");
    *p = (struct cli_plot){.file = file, .width = width, .height = height};
    bad = cli_output_begin(&p->out, file, err);
    if (!bad && !(p->to = popen("gnuplot", "w")))
        bad = cli_output_end(&p->out, cfg_error_set(err, errno, "gnuplot does not start: %s", strerror(errno)), err);
    if (bad) {
        free(p);
        return bad;
    }
    const char *rest = strcmp(dot, ".svg") ? "font 'sans,11'" : "dynamic background rgb 'white' font 'sans,13'";
    fprintf(p->to, "set encoding utf8\nset terminal %s size %d,%d %s\nset output '",
            strcmp(dot, ".svg") ? "pngcairo" : "svg", width, height, rest);
    for (const char *at = p->out.fresh ? p->out.fresh : p->out.path; *at; at++)
        fprintf(p->to, *at == '\'' ? "''" : "%c", *at); /* of the folders that a link leads to */
    fprintf(p->to, "'\n");
    *out = p;
    return 0;
}

void cli_plot_printf(struct cli_plot *p, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vfprintf(p->to, fmt, ap);
    va_end(ap);
}

void cli_plot_text(struct cli_plot *p, const char *text)
{
    char *copy = strdup(text);
    if (!copy)
        return;
    cli_text_clean(copy);
    for (const char *at = copy; *at; at++) /* a backtick would run a command, also inside of quotes */
        fputc(strchr("\"\\`", *at) ? '\'' : *at, p->to);
    free(copy);
}

bool cli_plot_label_fits(struct cli_plot_labels *l, double x, double y)
{
    for (int i = 0; i < l->n; i++)
        if (fabs(l->x[i] - x) < l->wide && fabs(l->y[i] - y) < l->high)
            return false;
    if (!isfinite(x) || !isfinite(y) || l->n == CLI_PLOT_LABELS)
        return false;
    l->x[l->n] = x;
    l->y[l->n++] = y;
    return true;
}

/* The longest beginning of a text that fits, up to a blank where there is one. */
static size_t line_of(const char *text, size_t most)
{
    size_t n = strlen(text), cut = most;
    if (n <= most)
        return n;
    while (cut > most / 2 && text[cut] != ' ')
        cut--;
    if (text[cut] != ' ')
        for (cut = most; cut && ((unsigned char)text[cut] & 0xc0) == 0x80;) /* within a character */
            cut--;
    return cut ? cut : most;
}

double cli_plot_conditions(struct cli_plot *p, const json_t *conditions)
{
    enum { LINES = 40 };
    char line[LINES][512];
    size_t most = (size_t)((p->width - 20) / CHARACTER_PIXELS);
    const char *key;
    json_t *value;
    int n = 0;
    most = most < sizeof line[0] ? most : sizeof line[0] - 1;
    json_object_foreach ((json_t *)conditions, key, value) {
        char *all = NULL;
        if (asprintf(&all, "%s: %s", key, json_string_value(value)) < 0)
            continue;
        for (const char *at = all; *at && n < LINES; n++) {
            size_t take = line_of(at, most - (at != all ? 4 : 0));
            snprintf(line[n], sizeof line[n], "%s%.*s", at != all ? "    " : "", (int)take, at);
            at += take + (at[take] == ' ');
        }
        free(all);
    }
    for (int i = 0; i < n; i++) {
        fprintf(p->to, "set label %d \"", i + 1);
        cli_plot_text(p, line[i]);
        fprintf(p->to, "\" at screen %g,%g noenhanced font ',9'\n", 10.0 / p->width,
                (10.0 + CONDITION_PIXELS * (n - 1 - i)) / p->height);
    }
    return (10.0 + CONDITION_PIXELS * n) / p->height;
}

const char *cli_plot_colour(int i)
{
    static const char *const colours[] = {"#4477aa", "#ee6677", "#228833", "#aa3377", "#66ccee", "#ccbb44", "#222222"};
    return colours[(unsigned)i % (sizeof colours / sizeof *colours)];
}

int cli_plot_end(struct cli_plot *p, struct cfg_error *err)
{
    int status = pclose(p->to), bad = 0;
    struct stat st;
    if (status == -1 || !WIFEXITED(status) || WEXITSTATUS(status) || fstat(fileno(p->out.to), &st) ||
        (S_ISREG(st.st_mode) && !st.st_size))
        bad = cfg_error_set(err, EIO, "gnuplot could not draw %s; its own message is above", p->file);
    bad = cli_output_end(&p->out, bad, err);
    free(p);
    return bad;
}
