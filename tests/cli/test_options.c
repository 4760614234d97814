/* Option tables and the parsing of single values. */
#define _GNU_SOURCE
#include "tests/harness.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/options.h"
#include "tests/support/process.h"

struct values {
    bool flag;
    int number;
    int64_t wide;
    uint64_t seed;
    double ratio;
    const char *text;
    int choice;
    bool number_given, text_given;
    struct cli_list list;
};

static const char *const choices[] = {"red", "green", NULL};

/* argv: the command's own, ended by NULL. */
static int parse(struct values *v, char **argv, int *first)
{
    const struct cli_option options[] = {
        {CLI_FLAG, "flag", 'f', &v->flag, NULL, "a flag"},
        {CLI_INT, "number", 'n', &v->number, "N", "an integer", 1, 10, .given = &v->number_given},
        {CLI_INT64, "wide", 0, &v->wide, "N", "a wide integer", -1e15, 1e15},
        {CLI_UINT64, "seed", 0, &v->seed, "N", "a seed"},
        {CLI_DOUBLE, "ratio", 'r', &v->ratio, "X", "a number", 0, 1},
        {CLI_TEXT, "text", 't', &v->text, "TEXT", "a text", .given = &v->text_given},
        {CLI_CHOICE, "choice", 0, &v->choice, "COLOUR", "a choice", .choices = choices},
        {CLI_LIST, "item", 'i', &v->list, "TEXT", "several texts"},
        {CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "sample [OPTIONS] [ARG]", .intro = "A sample.", .options = options, .max_args = 2};
    int argc = 0;
    while (argv[argc])
        argc++;
    return cli_options_parse(&usage, argc, argv, first);
}

#define PARSE(v, first, ...) parse(v, (char *[]){"sample", __VA_ARGS__, NULL}, first)

Test(options, every_kind_is_stored)
{
    static struct values v;
    int first;
    cr_assert_eq(PARSE(&v, &first, "a", "--flag", "-n", "7", "--wide=-5000000000", "--seed", "18446744073709551615",
                       "-r0.5", "--text", "x", "--choice", "green", "-i", "1", "b", "--item=2"),
                 CLI_GO_ON);
    cr_expect(v.flag);
    cr_expect_eq(v.number, 7);
    cr_expect(v.number_given);
    cr_expect_eq(v.wide, INT64_C(-5000000000));
    cr_expect_eq(v.seed, UINT64_MAX);
    cr_expect_float_eq(v.ratio, 0.5, 0);
    cr_expect_str_eq(v.text, "x");
    cr_expect_eq(v.choice, 1);
    cr_assert_eq(v.list.count, 2);
    cr_expect_str_eq(v.list.item[0], "1");
    cr_expect_str_eq(v.list.item[1], "2");
    cr_expect_eq(first, 15, "arguments that are no options come last");
}

Test(options, what_is_not_given_keeps_its_default)
{
    static struct values v = {.number = 5, .text = "default"};
    int first;
    cr_assert_eq(PARSE(&v, &first, "--", "-n"), CLI_GO_ON);
    cr_expect_eq(v.number, 5);
    cr_expect_not(v.number_given);
    cr_expect_str_eq(v.text, "default");
    cr_expect_eq(first, 2, "behind -- everything is an argument");
}

Test(options, bad_values_are_refused)
{
    static struct values v = {.number = 5};
    cr_expect_eq(PARSE(&v, NULL, "-n", "11"), CLI_USAGE);
    cr_expect_eq(PARSE(&v, NULL, "-n", "0"), CLI_USAGE);
    cr_expect_eq(PARSE(&v, NULL, "-n", "3x"), CLI_USAGE);
    cr_expect_eq(PARSE(&v, NULL, "-n", ""), CLI_USAGE);
    cr_expect_eq(PARSE(&v, NULL, "-n", " 3"), CLI_USAGE);
    cr_expect_eq(PARSE(&v, NULL, "-n", "+3"), CLI_USAGE);
    cr_expect_eq(PARSE(&v, NULL, "--seed", " 3"), CLI_USAGE);
    cr_expect_eq(PARSE(&v, NULL, "--ratio", " 0.5"), CLI_USAGE);
    cr_expect_eq(PARSE(&v, NULL, "--ratio", "0x0.8"), CLI_USAGE);
    cr_expect_eq(PARSE(&v, NULL, "--ratio", "1.5"), CLI_USAGE);
    cr_expect_eq(PARSE(&v, NULL, "--choice", "blue"), CLI_USAGE);
    cr_expect_eq(PARSE(&v, NULL, "--seed", "-1"), CLI_USAGE);
    cr_expect_eq(PARSE(&v, NULL, "a", "b", "c"), CLI_USAGE);
    cr_expect_eq(PARSE(&v, NULL, "--nubmer", "3"), CLI_USAGE);
    cr_expect_eq(v.number, 5, "nothing is stored from a bad value");
}

Test(options, messages_name_the_option_and_the_range)
{
    struct cfg_error err;
    int i = 0;
    double d = 0;
    uint64_t u = 0;
    cr_expect_eq(cli_parse_int("12", "--tokens", 0, 10, &i, &err), -EINVAL);
    cr_expect_str_eq(err.msg, "--tokens: 12 is outside of 0 to 10");
    cr_expect_eq(cli_parse_int("99999999999999999999", "--tokens", 0, 10, &i, &err), -EINVAL);
    cr_expect_eq(cli_parse_int("a\nb", "--tokens", 0, 10, &i, &err), -EINVAL);
    cr_expect_str_eq(err.msg, "--tokens: \"a?b\" is not a whole number");
    cr_expect_eq(cli_parse_double("nan", "--top-p", 0, 1, &d, &err), -EINVAL);
    cr_expect_str_eq(err.msg, "--top-p: \"nan\" is not a number");
    cr_expect_eq(cli_parse_double("2", "--top-p", 0, 1, &d, &err), -EINVAL);
    cr_expect_str_eq(err.msg, "--top-p: 2 is outside of 0 to 1");
    cr_expect_eq(cli_parse_uint64("18446744073709551616", "--seed", &u, &err), -EINVAL);
    cr_expect_eq(cli_parse_choice("blue", "--colour", choices, &i, &err), -EINVAL);
    cr_expect_str_eq(err.msg, "--colour: \"blue\" is none of red, green");
}

Test(options, lists_of_numbers)
{
    struct cfg_error err;
    int v[4], n = -1;
    cr_expect_eq(cli_parse_ints("3,1,10", "--list", 1, 10, 4, v, &n, &err), 0);
    cr_expect(n == 3 && v[0] == 3 && v[1] == 1 && v[2] == 10);
    cr_expect_eq(cli_parse_ints("7", "--list", 1, 10, 1, v, &n, &err), 0);
    cr_expect(n == 1 && v[0] == 7);
    static const char *const bad[] = {"",  "1,",  ",1",        "1,,2",  "1,11",
                                      "0", "1 2", "1,2,3,4,5", "2,1,2", "1,99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_expect_eq(cli_parse_ints(bad[i], "--list", 1, 10, 4, v, &n, &err), -EINVAL, "\"%s\"", bad[i]);
        cr_expect_not_null(strstr(err.msg, "--list"), "%s", err.msg);
    }
}

/* ---- rules and files ---- */

struct ruled {
    const char *from, *in, *csv, *plot, *table;
    int context, colour;
    bool flag;
    struct cli_list list;
};

static int parse_ruled(struct ruled *v, char **argv)
{
    const struct cli_option options[] = {
        {CLI_INPUT, "from", 0, &v->from, "FILE", "a file"},
        {CLI_INPUT, "in", 0, &v->in, "FILE", "another"},
        {CLI_OUTPUT, "csv", 0, &v->csv, "FILE", "a result"},
        {CLI_PLOT, "plot", 0, &v->plot, "FILE", "a picture"},
        {CLI_KEPT, "table", 0, &v->table, "FILE", "a table"},
        {CLI_INT, "context", 'c', &v->context, "N", "a number", 1, 10},
        {CLI_CHOICE, "colour", 0, &v->colour, "COLOUR", "a choice", .choices = choices},
        {CLI_FLAG, "flag", 'f', &v->flag, NULL, "a flag"},
        {CLI_LIST, "item", 'i', &v->list, "TEXT", "several texts"},
        {CLI_END},
    };
    static const struct cli_rule rules[] = {
        {CLI_ALLOWS, "from", "csv plot", "it measures nothing"},
        {CLI_EXCLUDES, "colour=green", "context flag+item", "green says it"},
        {CLI_NEEDS, "flag", "context colour=green"},
        {CLI_RULES_END},
    };
    const struct cli_usage usage = {
        .synopsis = "sample nested [OPTIONS]", .intro = "A sample.", .options = options, .rules = rules};
    int argc = 0;
    *v = (struct ruled){0};
    while (argv[argc])
        argc++;
    return cli_options_parse(&usage, argc, argv, NULL);
}

/* What is printed to standard error goes to a file. */
static int told(struct ruled *v, char **argv, char *out, size_t size)
{
    fflush(stderr);
    int saved = dup(2), fd = memfd_create("err", 0);
    dup2(fd, 2);
    int r = parse_ruled(v, argv);
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    ssize_t n = pread(fd, out, size - 1, 0);
    out[n < 0 ? 0 : n] = 0;
    close(fd);
    return r;
}

Test(options, rules_name_both_options)
{
    static struct ruled v;
    static const struct {
        char *argument[6];
        const char *says; /* NULL: goes on */
    } at[] = {
        {{"--context", "3"}, NULL},
        {{"--from", "x", "--csv", "/dev/null"}, NULL},
        {{"--from", "x", "-c", "3"},
         "sample nested: --context has no effect with --from: it measures nothing; `weft "
         "sample nested --help` explains"},
        {{"--from", "x", "--item", "y"}, "--item has no effect with --from"},
        {{"--colour", "green", "--context", "3"}, "--colour green and --context do not go together: green says it"},
        {{"--colour", "green", "--flag", "-i", "x"}, "--colour green and --flag with --item do not go together"},
        {{"--colour", "green", "--flag"}, NULL},
        {{"--colour", "green", "-i", "x"}, NULL},
        {{"--colour", "red", "--context", "3"}, NULL},
        {{"--flag", "--context", "3"}, NULL},
        {{"--flag"}, "--flag has no effect without --context or --colour green;"},
        {{"--context", "3", "-c", "3"}, "--context is given twice"},
        {{"-i", "x", "-i", "x"}, NULL},
        {{"--flag", "-f", "-c", "1"}, NULL},
    };
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        char *argv[8] = {"nested"}, text[400];
        for (int k = 0; k < 6 && at[i].argument[k]; k++)
            argv[1 + k] = at[i].argument[k];
        int r = told(&v, argv, text, sizeof text);
        cr_expect_eq(r, at[i].says ? CLI_USAGE : CLI_GO_ON, "case %zu: %s", i, text);
        cr_expect(!at[i].says || strstr(text, at[i].says), "case %zu: %s", i, text);
    }
}

/* Before a command begins, and without a trace of the look. */
Test(options, files_are_looked_at)
{
    static struct ruled v;
    char *dir = ts_temp_dir(), a[4200], b[4200], link[4200], none[4200], text[800];
    snprintf(a, sizeof a, "%s/a", dir);
    snprintf(b, sizeof b, "%s/../%s/a", dir, strrchr(dir, '/') + 1);
    snprintf(link, sizeof link, "%s/link", dir);
    snprintf(none, sizeof none, "%s/none/a", dir);
    cr_assert_eq(symlink(a, link), 0);
    const struct {
        char *argument[4];
        int status;
        const char *says;
    } at[] = {
        {{"--csv", a, "--table", b}, CLI_USAGE, "sample nested: --csv and --table are one file"},
        {{"--from", a, "--csv", b}, CLI_USAGE, "--from and --csv are one file"},
        {{"--in", a, "--from", a}, CLI_USAGE, "--in has no effect with --from"},
        {{"--csv", none, "--table", a}, CLI_FAILED, "none/a cannot be written: No such file"},
        {{"--table", dir, NULL}, CLI_FAILED, "--table: "},
        {{"--csv", "", NULL}, CLI_FAILED, "--csv: "},
        {{"--plot", "x.jpg", NULL}, CLI_USAGE, "ends in .svg or .png"},
        {{"--csv", "/dev/null", "--table", "/dev/null"}, CLI_GO_ON, ""},
        {{"--csv", a, "--table", link}, CLI_GO_ON, ""}, /* a link to nothing is replaced */
    };
    for (int there = 0; there < 2; there++) {
        for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
            char *argv[6] = {"nested", at[i].argument[0], at[i].argument[1], at[i].argument[2], at[i].argument[3]};
            bool linked = there && i + 1 == sizeof at / sizeof *at;
            int r = told(&v, argv, text, sizeof text);
            cr_expect_eq(r, linked ? CLI_USAGE : at[i].status, "case %zu: %d %s", i, r, text);
            cr_expect_not_null(strstr(text, linked ? "are one file" : at[i].says), "case %zu: %s", i, text);
        }
        if (there)
            break;
        cr_expect(access(a, F_OK) != 0, "looking at it has made it");
        free(ts_write_file(dir, "a", "kept"));
    }
    char *kept = ts_read_file(a, NULL);
    cr_expect_str_eq(kept, "kept");
    free(kept);
    ts_remove_dir(dir);
    free(dir);
}
