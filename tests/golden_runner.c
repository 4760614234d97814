/* golden_runner DIR: every check on a folder of golden cases, or on one case (format: tests/golden/README.md).
 *
 * Prints each failed check with what was measured and its limit, the time of each suite, and "N passed, N failed".
 * Exit status 0 when something ran and nothing failed. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/golden_common.h"

static const char usage[] = "usage: golden_runner [--cpu scalar|avx2|avx512] [--threads N] [--filter TEXT] [-v] DIR\n"
                            "  DIR       a case, or a folder of cases\n"
                            "  --filter  only suites whose CASE/SUITE contains TEXT\n"
                            "  -v        passed checks too\n";

static bool is_case(const char *dir)
{
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/golden.json", dir);
    return stat(path, &st) == 0;
}

/* Tensors that no check looked at; only meaningful when every suite ran. */
static void report_unchecked(struct gold_case *c)
{
    bool modules = strcmp(gold_string(c->json, "kind"), "modules") == 0;
    if (c->g->filter || !gold_begin(c, "unchecked"))
        return;
    for (size_t i = 0; i < mdl_st_count(c->st); i++) {
        const char *name = mdl_st_at(c->st, i)->name;
        if (!modules || strncmp(name, "in/", 3))
            gold_check(c, c->seen[i], "%s: no check looks at this tensor", name);
    }
    gold_end(c);
}

static void run_case(struct gold *g, const char *dir)
{
    struct gold_case c = {.g = g};
    struct cfg_error err = {{0}};
    char path[4096];
    size_t len = strlen(dir);
    while (len > 1 && dir[len - 1] == '/')
        len--;
    size_t begin = len;
    while (begin > 0 && dir[begin - 1] != '/')
        begin--;
    snprintf(c.name, sizeof c.name, "%.*s", (int)(len - begin), dir + begin);
    snprintf(path, sizeof path, "%s/golden.json", dir);
    json_error_t je;
    c.json = json_load_file(path, 0, &je);
    snprintf(c.suite, sizeof c.suite, "open");
    gold_check(&c, c.json != NULL, "%s: %s", path, c.json ? "read" : je.text);
    snprintf(path, sizeof path, "%s/golden.safetensors", dir);
    int r = mdl_st_open(path, &c.st, &err);
    gold_ok(&c, r, &err, "%s", path);
    if (!r && c.json) {
        r = mdl_model_open(dir, g->threads, g->cpu, &c.m, &err);
        gold_ok(&c, r, &err, "model in %s", dir);
        c.seen = calloc(mdl_st_count(c.st) + 1, sizeof *c.seen);
        c.data = calloc(2 * mdl_st_count(c.st) + 1, sizeof *c.data);
    }
    if (c.m && c.seen && c.data) {
        if (!strcmp(gold_string(c.json, "kind"), "modules"))
            gold_modules(&c);
        else
            gold_models(&c);
        report_unchecked(&c);
    }
    free(c.memory);
    free(c.data);
    free(c.seen);
    mdl_model_close(c.m);
    mdl_st_close(c.st);
    json_decref(c.json);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void run_folder(struct gold *g, const char *dir)
{
    struct dirent **entry;
    int n = scandir(dir, &entry, NULL, by_name);
    if (n < 0) {
        perror(dir);
        return;
    }
    for (int i = 0; i < n; i++) {
        char path[3072];
        snprintf(path, sizeof path, "%s/%s", dir, entry[i]->d_name);
        if (entry[i]->d_name[0] != '.' && is_case(path))
            run_case(g, path);
        free(entry[i]);
    }
    free(entry);
}

int main(int argc, char **argv)
{
    struct gold g = {.threads = 1};
    const char *dir = NULL;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(a, "-v")) {
            g.verbose = true;
        } else if (!strcmp(a, "-h") || !strcmp(a, "--help")) {
            fputs(usage, stdout);
            return 0;
        } else if (value && !strcmp(a, "--cpu")) {
            g.cpu = argv[++i];
        } else if (value && !strcmp(a, "--threads")) {
            g.threads = atoi(argv[++i]);
        } else if (value && !strcmp(a, "--filter")) {
            g.filter = argv[++i];
        } else if (a[0] == '-' || dir) {
            fputs(usage, stderr);
            return 2;
        } else {
            dir = a;
        }
    }
    if (!dir || g.threads < 0) {
        fputs(usage, stderr);
        return 2;
    }
    if (is_case(dir))
        run_case(&g, dir);
    else
        run_folder(&g, dir);
    printf("%d passed, %d failed\n", g.passed, g.failed);
    if (!g.passed && !g.failed)
        fprintf(stderr, "golden_runner: no case in %s; a case is a folder with golden.json\n", dir);
    return g.failed || !g.passed;
}
