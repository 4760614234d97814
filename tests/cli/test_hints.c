/* Messages name commands that are there: each hint of a `weft ... --help` is run. */
#include "tests/harness.h"

#include "tests/support/process.h"

enum { NAMES = 40 };

/* The names of a list in the output of --help: lines with two blanks, a name, and more. */
static int list_names(const char *help, char names[NAMES][32])
{
    int n = 0;
    for (const char *at = help; (at = strstr(at, "\n  ")) && n < NAMES;) {
        at += 3;
        if (*at >= 'a' && *at <= 'z' && sscanf(at, "%31[a-z-]", names[n]) == 1)
            n++;
    }
    return n;
}

/* `weft WORDS --help` in the message is the command's own help. */
static void check_hint(const char *const *words, int n, const char *message)
{
    const char *at = strstr(message, "`weft ");
    char hint[128] = "", *end, want[128];
    const char *argv[8] = {ts_weft()};
    int argc = 1;
    cr_expect_not_null(at, "no hint: %s", message);
    if (!at)
        return;
    snprintf(hint, sizeof hint, "%s", at + 6);
    if ((end = strchr(hint, '`')))
        *end = 0;
    snprintf(want, sizeof want, "usage: weft %s", words[0]);
    for (int i = 1; i < n; i++)
        snprintf(want + strlen(want), sizeof want - strlen(want), " %s", words[i]);
    for (char *save, *word = strtok_r(hint, " ", &save); word && argc < 7; word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    struct ts_result r = ts_run_argv(NULL, argv);
    cr_expect_eq(r.status, 0, "%s: `weft %s ...` fails: %s", message, argv[1], r.err);
    cr_expect_eq(strncmp(r.out, want, strlen(want)), 0, "%s: expected \"%s\", found %.60s", message, want, r.out);
    ts_result_free(&r);
}

static void check_command(const char *const *words, int n)
{
    static const char *const wrong[] = {"--nosuchoption", "--nosuch=3", "-%"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const char *argv[6] = {ts_weft()};
        for (int k = 0; k < n; k++)
            argv[1 + k] = words[k];
        argv[1 + n] = wrong[i];
        struct ts_result r = ts_run_argv(NULL, argv);
        cr_expect_eq(r.status, 2, "%s %s: %d %s", words[n - 1], wrong[i], r.status, r.err);
        check_hint(words, n, r.err);
        ts_result_free(&r);
    }
}

Test(hints, name_the_command_as_it_is_called)
{
    static char names[NAMES][32];
    struct ts_result help = ts_run(ts_weft(), "--help");
    int n = list_names(help.out, names), checked = 0;
    ts_result_free(&help);
    cr_assert_gt(n, 15);
    for (int i = 0; i < n; i++) {
        const char *const words[] = {names[i]};
        if (!strcmp(names[i], "bench") || !strcmp(names[i], "help") || !strcmp(names[i], "model"))
            continue; /* they take the name of another */
        check_command(words, 1);
        checked++;
    }
    cr_expect_gt(checked, 12);
    check_command((const char *const[]){"model", "info"}, 2);
}

Test(hints, name_benchmarks_as_they_are_called)
{
    static char names[NAMES][32];
    struct ts_result help = ts_run(ts_weft(), "bench", "--help");
    int n = list_names(help.out, names);
    ts_result_free(&help);
    cr_assert_eq(n, 9, "%d benchmarks", n);
    for (int i = 0; i < n; i++) {
        const char *const words[] = {"bench", names[i]};
        check_command(words, 2);
        /* Of other mistakes too. */
        static const char *const wrong[][2] = {{"unexpected", NULL}, {"--threads", "x"}, {"--seed", NULL}};
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
            struct ts_result r = ts_run(ts_weft(), "bench", names[i], wrong[k][0], wrong[k][1]);
            cr_expect_eq(r.status, 2, "%s: %s", names[i], r.err);
            check_hint(words, 2, r.err);
            ts_result_free(&r);
        }
    }
}
