/* Implementation of cli/options.h. */
#include "cli/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "config/suggest.h"

enum { OPTIONS_MAX = 64, LONG_BASE = 256 }; /* getopt values of long options start at LONG_BASE */

int cli_parse_int64(const char *text, const char *what, int64_t min, int64_t max, int64_t *out, struct cfg_error *err)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end)
        return cfg_error_set(err, EINVAL, "%s: \"%s\" is not a whole number", what, text);
    if (errno == ERANGE || v < min || v > max)
        return cfg_error_set(err, EINVAL, "%s: %s is outside of %lld to %lld", what, text, (long long)min,
                             (long long)max);
    *out = v;
    return 0;
}

int cli_parse_int(const char *text, const char *what, int min, int max, int *out, struct cfg_error *err)
{
    int64_t v = 0;
    int rc = cli_parse_int64(text, what, min, max, &v, err);
    if (rc == 0)
        *out = (int)v;
    return rc;
}

int cli_parse_uint64(const char *text, const char *what, uint64_t *out, struct cfg_error *err)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (end == text || *end || strchr(text, '-'))
        return cfg_error_set(err, EINVAL, "%s: \"%s\" is not a whole number of at least 0", what, text);
    if (errno == ERANGE)
        return cfg_error_set(err, EINVAL, "%s: %s does not fit into 64 bits", what, text);
    *out = v;
    return 0;
}

int cli_parse_double(const char *text, const char *what, double min, double max, double *out, struct cfg_error *err)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v))
        return cfg_error_set(err, EINVAL, "%s: \"%s\" is not a number", what, text);
    if (v < min || v > max)
        return cfg_error_set(err, EINVAL, "%s: %s is outside of %g to %g", what, text, min, max);
    *out = v;
    return 0;
}

int cli_parse_ints(const char *text, const char *what, int min, int max, int most, int *out, int *n,
                   struct cfg_error *err)
{
    char one[32];
    *n = 0;
    for (const char *at = text;; at++) {
        size_t len = strcspn(at, ",");
        if (*n == most)
            return cfg_error_set(err, EINVAL, "%s takes at most %d numbers", what, most);
        snprintf(one, sizeof one, "%.*s", (int)(len < sizeof one ? len : sizeof one), at);
        int r = cli_parse_int(one, what, min, max, &out[*n], err);
        if (r)
            return r;
        ++*n;
        at += len;
        if (!*at)
            return 0;
    }
}

int cli_parse_choice(const char *text, const char *what, const char *const *choices, int *out, struct cfg_error *err)
{
    char all[512] = "";
    size_t len = 0;
    for (int i = 0; choices[i]; i++) {
        if (strcmp(choices[i], text) == 0) {
            *out = i;
            return 0;
        }
        if (len < sizeof all)
            len += (size_t)snprintf(all + len, sizeof all - len, "%s%s", i ? ", " : "", choices[i]);
    }
    return cfg_error_set(err, EINVAL, "%s: \"%s\" is none of %s", what, text, all);
}

static void print_help(const struct cli_usage *u)
{
    printf("usage: weft ");
    for (const char *p = u->synopsis; *p; p++) {
        putchar(*p);
        if (*p == '\n')
            printf("       weft ");
    }
    printf("\n\n%s\n", u->intro);
    printf("\noptions:\n");
    for (const struct cli_option *o = u->options; o && o->kind != CLI_END; o++) {
        char head[96];
        snprintf(head, sizeof head, "%c%c%s --%s%s%s", o->letter ? '-' : ' ', o->letter ? o->letter : ' ',
                 o->letter ? "," : " ", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
        printf("  %-28s", head);
        if (strlen(head) >= 28)
            printf("\n  %-28s", "");
        for (const char *p = o->help; *p; p++) {
            putchar(*p);
            if (*p == '\n')
                printf("  %-28s", "");
        }
        putchar('\n');
    }
    printf("  %-28s%s\n", "-h,  --help", "print this");
    if (u->args_help)
        printf("\n%s\n", u->args_help);
}

static int set_value(const struct cli_option *o, const char *text, struct cfg_error *err)
{
    char what[64];
    snprintf(what, sizeof what, "--%s", o->name);
    if (o->given)
        *o->given = true;
    switch (o->kind) {
    case CLI_END:
        return 0;
    case CLI_FLAG:
        *(bool *)o->value = true;
        return 0;
    case CLI_INT:
        return cli_parse_int(text, what, (int)o->min, (int)o->max, o->value, err);
    case CLI_INT64:
        return cli_parse_int64(text, what, (int64_t)o->min, (int64_t)o->max, o->value, err);
    case CLI_UINT64:
        return cli_parse_uint64(text, what, o->value, err);
    case CLI_DOUBLE:
        return cli_parse_double(text, what, o->min, o->max, o->value, err);
    case CLI_TEXT:
        *(const char **)o->value = text;
        return 0;
    case CLI_CHOICE:
        return cli_parse_choice(text, what, o->choices, o->value, err);
    case CLI_LIST: {
        struct cli_list *list = o->value;
        if (list->count == CLI_LIST_MAX)
            return cfg_error_set(err, EINVAL, "%s: given more than %d times", what, CLI_LIST_MAX);
        list->item[list->count++] = text;
        return 0;
    }
    }
    return 0;
}

static int unknown_option(const struct cli_usage *u, const char *command, const char *word)
{
    const char *names[OPTIONS_MAX + 1] = {"help"};
    size_t count = 1;
    for (const struct cli_option *o = u->options; o && o->kind != CLI_END && count < OPTIONS_MAX; o++)
        names[count++] = o->name;
    char bare[128];
    snprintf(bare, sizeof bare, "%s", word + strspn(word, "-"));
    bare[strcspn(bare, "=")] = 0;
    const char *near = cfg_suggest(bare, names, count);
    if (near)
        return cli_error(CLI_USAGE, "%s: unknown option \"%s\"; did you mean \"--%s\"? `weft %s --help` lists all",
                         command, word, near, command);
    return cli_error(CLI_USAGE, "%s: unknown option \"%s\"; `weft %s --help` lists all", command, word, command);
}

/* Fills getopt's tables. Returns the number of options. */
static int build_tables(const struct cli_usage *u, struct option *longs, char *letters)
{
    int n = 0;
    size_t at = 0;
    letters[at++] = ':'; /* a missing value is told apart from an unknown option */
    for (const struct cli_option *o = u->options; o && o->kind != CLI_END && n < OPTIONS_MAX; o++, n++) {
        bool takes = o->kind != CLI_FLAG;
        longs[n] = (struct option){o->name, takes ? required_argument : no_argument, NULL, LONG_BASE + n};
        if (o->letter) {
            letters[at++] = o->letter;
            if (takes)
                letters[at++] = ':';
        }
    }
    letters[at++] = 'h';
    letters[at] = 0;
    longs[n] = (struct option){"help", no_argument, NULL, 'h'};
    longs[n + 1] = (struct option){0};
    return n;
}

static const struct cli_option *option_of(const struct cli_usage *u, int n, int value)
{
    if (value >= LONG_BASE)
        return value - LONG_BASE < n ? &u->options[value - LONG_BASE] : NULL;
    for (int i = 0; i < n; i++)
        if (u->options[i].letter == value)
            return &u->options[i];
    return NULL;
}

int cli_options_parse(const struct cli_usage *u, int argc, char **argv, int *first)
{
    struct option longs[OPTIONS_MAX + 2];
    char letters[2 * OPTIONS_MAX + 4];
    int n = build_tables(u, longs, letters);
    const char *command = argv[0];
    struct cfg_error err;
    opterr = 0;
    optind = 0; /* glibc: start afresh */
    for (;;) {
        int c = getopt_long(argc, argv, letters, longs, NULL);
        if (c == -1)
            break;
        if (c == 'h') {
            print_help(u);
            return CLI_OK;
        }
        const struct cli_option *o = option_of(u, n, c == '?' || c == ':' ? optopt : c);
        if (c == ':')
            return cli_error(CLI_USAGE, "%s: --%s needs a value (%s); `weft %s --help` explains", command, o->name,
                             o->arg, command);
        if (c == '?' && o && optopt >= LONG_BASE)
            return cli_error(CLI_USAGE, "%s: --%s takes no value; `weft %s --help` explains", command, o->name,
                             command);
        if (c == '?') {
            char letter[] = {'-', (char)optopt, 0};
            return unknown_option(u, command, optopt ? letter : argv[optind - 1]);
        }
        if (set_value(o, optarg, &err) != 0)
            return cli_error(CLI_USAGE, "%s: %s; `weft %s --help` explains", command, err.msg, command);
    }
    int count = argc - optind;
    if (count < u->min_args)
        return cli_error(CLI_USAGE, "%s: an argument is missing; `weft %s --help` explains", command, command);
    if (u->max_args >= 0 && count > u->max_args)
        return cli_error(CLI_USAGE, "%s: unexpected argument \"%s\"; `weft %s --help` explains", command,
                         argv[optind + u->max_args], command);
    if (first)
        *first = optind;
    return CLI_GO_ON;
}
