#include "tests/support/plots.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/harness.h"
#include "tests/support/process.h"

void ts_plots_record(const char *dir)
{
    static const char script[] = "#!/bin/sh\n"
                                 "cat > \"$WEFT_TEST_PLOT\"\n"
                                 "file=$(sed -n \"s/^set output '\\(.*\\)'/\\1/p\" \"$WEFT_TEST_PLOT\")\n"
                                 "echo drawn > \"$file\"\n";
    char *gnuplot = ts_write_file(dir, "gnuplot", script), *path = NULL, *told = NULL;
    cr_assert_eq(chmod(gnuplot, 0755), 0);
    cr_assert(asprintf(&path, "%s:%s", dir, getenv("PATH")) > 0 && asprintf(&told, "%s/told", dir) > 0);
    setenv("PATH", path, 1);
    setenv("WEFT_TEST_PLOT", told, 1);
    free(gnuplot);
    free(path);
    free(told);
}

char *ts_plots_told(const char *dir)
{
    char *path = NULL;
    cr_assert_gt(asprintf(&path, "%s/told", dir), 0);
    char *text = ts_read_file(path, NULL);
    free(path);
    return text;
}

int ts_plots_data(const char *told, const char *name, int columns, int most, double out[][8])
{
    char head[64];
    int n = 0;
    snprintf(head, sizeof head, "$%s << EOD\n", name);
    const char *at = strstr(told, head);
    if (!at)
        return -1;
    for (at += strlen(head); strncmp(at, "EOD\n", 4);) {
        const char *line_end = strchr(at, '\n');
        cr_assert_not_null(line_end, "%s does not end", name);
        if (line_end > at) { /* blank lines part series */
            cr_assert_lt(n, most);
            char *next = (char *)at;
            for (int k = 0; k < columns; k++)
                out[n][k] = strtod(next, &next);
            cr_assert(next <= line_end, "%s, row %d: fewer than %d numbers", name, n, columns);
            n++;
        }
        at = line_end + 1;
    }
    return n;
}
