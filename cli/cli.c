/* Implementation of cli/cli.h: dispatch, help and version. */
#include "cli/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/options.h"
#include "config/suggest.h"

enum { COMMANDS_MAX = 64 };

/* The table that cli_main was given; `weft help` reads it. */
static const struct cli_command *table;

int cli_error(int status, const char *fmt, ...)
{
    fputs("weft: ", stderr);
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    return status;
}

static const struct cli_command *find(const char *name)
{
    for (const struct cli_command *c = table; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

static int unknown_command(const char *name)
{
    const char *names[COMMANDS_MAX];
    size_t count = 0;
    for (const struct cli_command *c = table; c->name && count < COMMANDS_MAX; c++)
        names[count++] = c->name;
    const char *near = cfg_suggest(name, names, count);
    if (near)
        return cli_error(CLI_USAGE, "there is no command \"%s\"; did you mean \"%s\"? `weft --help` lists all", name,
                         near);
    return cli_error(CLI_USAGE, "there is no command \"%s\"; `weft --help` lists all", name);
}

static void print_help(FILE *f)
{
    fputs("usage: weft COMMAND [OPTIONS]\n\n", f);
    fputs("Weft runs language models of the DeepSeek-V4.1-Flash class.\n\ncommands:\n", f);
    for (const struct cli_command *c = table; c->name; c++)
        fprintf(f, "  %-12s %s\n", c->name, c->summary);
    fputs("\n`weft COMMAND --help` explains a command.\n", f);
}

int cli_help_run(int argc, char **argv)
{
    if (argc > 2)
        return cli_error(CLI_USAGE, "help takes the name of one command; `weft --help` lists all");
    if (argc == 2 && argv[1][0] != '-') {
        const struct cli_command *c = find(argv[1]);
        if (!c)
            return unknown_command(argv[1]);
        char option[] = "--help";
        return c->run(2, (char *[]){argv[1], option, NULL});
    }
    print_help(stdout);
    return CLI_OK;
}

int cli_version_run(int argc, char **argv)
{
    static const struct cli_usage usage = {.synopsis = "version", .intro = "Prints the version of this program."};
    int status = cli_options_parse(&usage, argc, argv, NULL);
    if (status != CLI_GO_ON)
        return status;
    char build[CFG_BUILD_ID_TEXT];
    cfg_build_id(build);
    printf("weft " WEFT_VERSION "%s%s\n", build[0] ? ", build " : "", build);
    return CLI_OK;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return cli_help_run(1, argv);
    if (strcmp(name, "--version") == 0)
        return cli_version_run(1, argv);
    if (name[0] == '-')
        return cli_error(CLI_USAGE, "unknown option \"%s\" before the command; `weft --help` explains", name);
    const struct cli_command *c = find(name);
    return c ? c->run(argc - 1, argv + 1) : unknown_command(name);
}

int cli_main(const struct cli_command *commands, int argc, char **argv)
{
    table = commands;
    int status = dispatch(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout))
        return cli_error(CLI_FAILED, "cannot write to standard output: %s", strerror(errno));
    return status;
}
