/* The rules of the layout: which layer may include which, and the size of files. */
#include "tests/harness.h"
#include "tests/support/process.h"

#include <glob.h>
#include <string.h>

/* What a file in folder may include beyond its own folder. weft.c is the top. */
static const struct {
    const char *folder;
    const char *below[8];
} layers[] = {
    {"config", {NULL}},
    {"model", {"config", NULL}},
    {"kvtiers", {"config", NULL}},
    {"transport", {"config", NULL}},
    {"actors", {"config", "model", "kvtiers", "transport", NULL}},
    {"cli", {"config", "model", "kvtiers", "transport", "actors", NULL}},
};

static bool allowed(size_t layer, const char *folder)
{
    if (strcmp(folder, layers[layer].folder) == 0)
        return true;
    for (int i = 0; layers[layer].below[i]; i++)
        if (strcmp(folder, layers[layer].below[i]) == 0)
            return true;
    return false;
}

/* Checks every #include "FOLDER/..." of the file; returns how many there were. */
static int check_includes(const char *path, size_t layer)
{
    char *text = ts_read_file(path, NULL);
    cr_assert_not_null(text, "%s", path);
    int count = 0;
    for (const char *p = text; (p = strstr(p, "#include \"")); count++) {
        p += strlen("#include \"");
        char folder[64] = "";
        size_t n = strcspn(p, "/\"");
        snprintf(folder, sizeof folder, "%.*s", (int)n, p);
        cr_expect(p[n] == '/', "%s: #include \"%.*s\" does not start with a folder", path, (int)strcspn(p, "\""), p);
        cr_expect(allowed(layer, folder), "%s: the layer %s may not include %.*s", path, layers[layer].folder,
                  (int)strcspn(p, "\""), p);
    }
    free(text);
    return count;
}

static const char *const patterns[] = {"%s/*.c", "%s/*.h", "%s/*/*.c", "%s/*/*.h", "%s/*/*/*.c", "%s/*/*/*.h"};

Test(layout, no_layer_includes_upward)
{
    int count = 0;
    for (size_t l = 0; l < sizeof layers / sizeof layers[0]; l++) {
        for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
            char pattern[128];
            glob_t g;
            snprintf(pattern, sizeof pattern, patterns[i], layers[l].folder);
            if (glob(pattern, 0, NULL, &g) != 0)
                continue;
            for (size_t f = 0; f < g.gl_pathc; f++)
                count += check_includes(g.gl_pathv[f], l);
            globfree(&g);
        }
    }
    cr_expect_gt(count, 30, "only %d includes were seen", count);
}

Test(layout, files_stay_below_a_thousand_lines)
{
    static const char *const folders[] = {"config", "model", "kvtiers", "transport", "actors",
                                          "cli",    "tests", "tools",   "bench"};
    int files = 0;
    for (size_t d = 0; d < sizeof folders / sizeof folders[0]; d++) {
        for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
            char pattern[128];
            glob_t g;
            snprintf(pattern, sizeof pattern, patterns[i], folders[d]);
            if (glob(pattern, 0, NULL, &g) != 0)
                continue;
            for (size_t f = 0; f < g.gl_pathc; f++, files++) {
                char *text = ts_read_file(g.gl_pathv[f], NULL);
                cr_assert_not_null(text);
                int lines = 0;
                for (const char *p = text; *p; p++)
                    lines += *p == '\n';
                cr_expect_lt(lines, 1000, "%s has %d lines", g.gl_pathv[f], lines);
                free(text);
            }
            globfree(&g);
        }
    }
    cr_expect_gt(files, 20, "only %d files were seen", files);
}
