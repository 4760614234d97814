/* Option tables and the parsing of single values. */
#include "tests/harness.h"

#include <errno.h>

#include "cli/cli.h"
#include "cli/options.h"

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
    static const char *const bad[] = {
        "", "1,", ",1", "1,,2", "1,11", "0", "1 2", "1,2,3,4,5", "1,99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_expect_eq(cli_parse_ints(bad[i], "--list", 1, 10, 4, v, &n, &err), -EINVAL, "\"%s\"", bad[i]);
        cr_expect_not_null(strstr(err.msg, "--list"), "%s", err.msg);
    }
}
