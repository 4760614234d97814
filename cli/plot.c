#include "cli/plot.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct cli_plot {
    const char *file;
    FILE *to;
};

static int has_gnuplot(void)
{
    return system("command -v gnuplot >/dev/null 2>&1") == 0;
}

int cli_plot_begin(const char *file, struct cli_plot **out, struct cfg_error *err)
{
    const char *dot = strrchr(file, '.');
    *out = NULL;
    if (!dot || (strcmp(dot, ".svg") && strcmp(dot, ".png")) || strpbrk(file, "'\n\\"))
        return cfg_error_set(err, EINVAL, "plot file \"%s\": use a name that ends in .svg or .png, without quotes",
                             file);
    if (!has_gnuplot())
        return cfg_error_set(err, ENOENT, "a plot needs gnuplot; install the package gnuplot-nox (make deps does)");
    struct cli_plot *p = malloc(sizeof *p);
    if (!p)
        return cfg_error_set(err, ENOMEM, "plot: out of memory");
    *p = (struct cli_plot){file, popen("gnuplot", "w")};
    if (!p->to) {
        free(p);
        return cfg_error_set(err, errno, "gnuplot does not start: %s", strerror(errno));
    }
    const char *terminal = strcmp(dot, ".svg") ? "pngcairo size 1100,700 font 'sans,11'"
                                               : "svg size 1100,700 dynamic background rgb 'white' font 'sans,13'";
    fprintf(p->to, "set terminal %s\nset output '%s'\n", terminal, file);
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

int cli_plot_end(struct cli_plot *p, struct cfg_error *err)
{
    int status = pclose(p->to);
    const char *file = p->file;
    free(p);
    struct stat st;
    if (status == -1 || !WIFEXITED(status) || WEXITSTATUS(status) || stat(file, &st) || !st.st_size)
        return cfg_error_set(err, EIO, "gnuplot could not draw %s; its own message is above", file);
    return 0;
}
