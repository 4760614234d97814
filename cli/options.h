/* Options of a command: one table per command from which parsing, checks, messages and --help come. Built on
 * getopt_long. Main thread only. */
#ifndef WEFT_CLI_OPTIONS_H
#define WEFT_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/error.h"

enum cli_kind {
    CLI_END,    /* ends a table */
    CLI_FLAG,   /* bool *: set to true */
    CLI_INT,    /* int *: min..max */
    CLI_INT64,  /* int64_t *: min..max */
    CLI_UINT64, /* uint64_t *: any; min and max are not used */
    CLI_DOUBLE, /* double *: min..max, finite */
    CLI_TEXT,   /* const char **: points into argv */
    CLI_CHOICE, /* int *: index in choices */
    CLI_LIST,   /* struct cli_list *: every use adds one text */
    CLI_INPUT,  /* const char **: a file that is read */
    CLI_OUTPUT, /* the same: one that is written in the end; that it can be is seen to before the command begins */
    CLI_PLOT,   /* the same, drawn by cli/plot.h */
    CLI_KEPT,   /* the same: read where it is there and fits, else written */
};

enum { CLI_LIST_MAX = 256 };

struct cli_list {
    int count;
    const char *item[CLI_LIST_MAX]; /* pointing into argv */
};

struct cli_option {
    enum cli_kind kind;
    const char *name;           /* long name, without dashes */
    char letter;                /* short name, 0: none */
    void *value;                /* by kind; holds the default before parsing */
    const char *arg;            /* what the help calls the value, such as "DIR"; NULL for flags */
    const char *help;           /* one or more lines, separated by '\n' */
    double min, max;            /* inclusive */
    const char *const *choices; /* NULL-terminated; CLI_CHOICE */
    bool *given;                /* set to true when the option is used; may be NULL */
};

/* What options ask of each other, so that none is taken and then left out of account. A term is "name" (the option is
 * given), "name=choice" (a CLI_CHOICE has that value, given or not), or several of these with '+' between. */
enum cli_rule_kind {
    CLI_RULES_END, /* ends a table */
    CLI_EXCLUDES,  /* term: none of the others */
    CLI_NEEDS,     /* term: one of the others at least */
    CLI_ALLOWS,    /* term: of all options only those of its own and the others */
};

struct cli_rule {
    enum cli_rule_kind kind;
    const char *term, *others; /* others: terms with blanks between */
    const char *why;           /* ends the message; may be NULL */
};

struct cli_usage {
    const char *synopsis; /* behind "usage: weft ", such as "config [--check FILE]"; '\n' starts another form. Its
                           * first words, of small letters, are the command, as messages name it */
    const char *intro;    /* what the command does */
    const struct cli_option *options; /* ends with CLI_END; NULL: only --help */
    const struct cli_rule *rules;     /* ends with CLI_RULES_END; NULL: none */
    int min_args, max_args;           /* arguments that are not options; max_args -1: any number */
    const char *args_help;            /* printed below the options; may be NULL */
};

enum { CLI_GO_ON = -1 }; /* parsed; anything else is the exit status */

/* Parses argv (argv[0] is the command). --help prints the help to standard output and returns CLI_OK; a mistake prints
 * one message to standard error and returns CLI_USAGE: also one against the rules, and with rules an option given twice
 * (without, the last one counts); two outputs that are one file, or an output that is an input. An output that cannot
 * be written, or a plot without a program that draws it, is a message and CLI_FAILED. *first (may be NULL) becomes the
 * index of the first argument that is no option; getopt_long moves those to the end of argv. */
int cli_options_parse(const struct cli_usage *usage, int argc, char **argv, int *first);

/* One value. what names it in the message, such as "--tokens". Return 0, or -EINVAL with the message in err. */
int cli_parse_int64(const char *text, const char *what, int64_t min, int64_t max, int64_t *out, struct cfg_error *err);
int cli_parse_int(const char *text, const char *what, int min, int max, int *out, struct cfg_error *err);
int cli_parse_uint64(const char *text, const char *what, uint64_t *out, struct cfg_error *err);
int cli_parse_double(const char *text, const char *what, double min, double max, double *out, struct cfg_error *err);
/* "1,2,4" into out [most], none of them twice. *n: how many there are, at least 1. */
int cli_parse_ints(const char *text, const char *what, int min, int max, int most, int *out, int *n,
                   struct cfg_error *err);
int cli_parse_choice(const char *text, const char *what, const char *const *choices, int *out, struct cfg_error *err);

#endif
