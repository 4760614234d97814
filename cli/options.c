/* Implementation of cli/options.h. */
#include "cli/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/output.h"
#include "cli/plot.h"
#include "config/suggest.h"

enum { OPTIONS_MAX = 64, LONG_BASE = 256 }; /* getopt values of long options start at LONG_BASE */

int cli_parse_int64(const char *text, const char *what, int64_t min, int64_t max, int64_t *out, struct cfg_error *err)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || !strchr("-0123456789", *text))
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
    if (end == text || *end || strspn(text, "0123456789") != strlen(text))
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
    if (end == text || *end || !isfinite(v) || strspn(text, "-.0123456789eE+") != strlen(text))
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
        for (int i = 0; i < *n && !r; i++)
            if (out[i] == out[*n])
                r = cfg_error_set(err, EINVAL, "%s names %d twice", what, out[i]);
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
    case CLI_INPUT:
    case CLI_OUTPUT:
    case CLI_PLOT:
    case CLI_KEPT:
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

/* ---- rules ---- */

/* What was given, beside the table that it was given for. */
struct given {
    const struct cli_usage *u;
    bool is[OPTIONS_MAX];
};

/* The option of a term's first part of n bytes, and its choice if it has one. */
static int part_option(const struct given *g, const char *part, size_t n, const char **choice, size_t *choice_n)
{
    size_t name = strcspn(part, "=+ ");
    *choice = name < n && part[name] == '=' ? part + name + 1 : NULL;
    *choice_n = *choice ? n - name - 1 : 0;
    for (int i = 0; g->u->options[i].kind != CLI_END; i++)
        if (strlen(g->u->options[i].name) == name && !memcmp(g->u->options[i].name, part, name))
            return i;
    return -1; /* a mistake in the table: it holds never, which the command's test shows */
}

static bool part_holds(const struct given *g, const char *part, size_t n)
{
    const char *choice;
    size_t len;
    int i = part_option(g, part, n, &choice, &len);
    if (i < 0)
        return false;
    const struct cli_option *o = &g->u->options[i];
    const char *has = choice ? o->choices[*(const int *)o->value] : NULL;
    return choice ? strlen(has) == len && !memcmp(has, choice, len) : g->is[i];
}

static bool term_holds(const struct given *g, const char *term)
{
    for (size_t n = 0;; term += n + 1) {
        n = strcspn(term, "+ ");
        if (!part_holds(g, term, n))
            return false;
        if (term[n] != '+')
            return true;
    }
}

/* "a+b=c" as "--a with --b c". */
static void term_text(const char *term, char *out, size_t size)
{
    size_t at = (size_t)snprintf(out, size, "--");
    for (; *term && *term != ' ' && at + 8 < size; term++)
        if (*term == '+')
            at += (size_t)snprintf(out + at, size - at, " with --");
        else
            out[at++] = *term == '=' ? ' ' : *term;
    out[at] = 0;
}

static const char *next_term(const char *term)
{
    term += strcspn(term, " ");
    return term + strspn(term, " ");
}

static bool named(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; *at; at = next_term(at))
        if (strcspn(at, "=+ ") == n && !memcmp(at, name, n))
            return true;
    return false;
}

static int check_rule(const struct given *g, const struct cli_rule *rule, const char *command)
{
    char term[128], other[128], all[256] = "";
    const char *colon = rule->why ? ": " : "", *why = rule->why ? rule->why : "";
    bool any = false;
    size_t at = 0;
    if (!term_holds(g, rule->term))
        return CLI_GO_ON;
    term_text(rule->term, term, sizeof term);
    for (int i = 0; rule->kind == CLI_ALLOWS && g->u->options[i].kind != CLI_END; i++) {
        const char *name = g->u->options[i].name;
        if (g->is[i] && !named(rule->term, name) && !named(rule->others, name))
            return cli_error(CLI_USAGE, "%s: --%s has no effect with %s%s%s; `weft %s --help` explains", command, name,
                             term, colon, why, command);
    }
    for (const char *o = rule->others; *o && rule->kind != CLI_ALLOWS; o = next_term(o)) {
        bool holds = term_holds(g, o);
        any |= holds;
        term_text(o, other, sizeof other);
        at += (size_t)snprintf(all + at, at < sizeof all ? sizeof all - at : 0, "%s%s", at ? " or " : "", other);
        if (holds && rule->kind == CLI_EXCLUDES)
            return cli_error(CLI_USAGE, "%s: %s and %s do not go together%s%s; `weft %s --help` explains", command,
                             term, other, colon, why, command);
    }
    if (rule->kind == CLI_NEEDS && !any)
        return cli_error(CLI_USAGE, "%s: %s has no effect without %s%s%s; `weft %s --help` explains", command, term,
                         all, colon, why, command);
    return CLI_GO_ON;
}

/* ---- files ---- */

static bool is_file(enum cli_kind kind)
{
    return kind == CLI_INPUT || kind == CLI_OUTPUT || kind == CLI_PLOT || kind == CLI_KEPT;
}

static const char *file_of(const struct cli_option *o)
{
    return is_file(o->kind) ? *(const char *const *)o->value : NULL;
}

static int check_files(const struct cli_usage *u, const char *command)
{
    struct cfg_error err;
    for (const struct cli_option *a = u->options; a && a->kind != CLI_END; a++)
        for (const struct cli_option *b = u->options; file_of(a) && b != a; b++)
            if (file_of(b) && (a->kind != CLI_INPUT || b->kind != CLI_INPUT) && cli_output_same(file_of(a), file_of(b)))
                return cli_error(CLI_USAGE, "%s: --%s and --%s are one file, %s", command, b->name, a->name,
                                 file_of(a));
    for (const struct cli_option *o = u->options; o && o->kind != CLI_END; o++) {
        if (!file_of(o) || o->kind == CLI_INPUT)
            continue;
        int r = o->kind == CLI_PLOT ? cli_plot_check(file_of(o), &err) : 0;
        if (!r)
            r = cli_output_check(file_of(o), &err);
        if (r)
            return cli_error(r == -EINVAL ? CLI_USAGE : CLI_FAILED, "%s: --%s: %s", command, o->name, err.msg);
    }
    return CLI_GO_ON;
}

/* The words of small letters that the synopsis begins with: the command as it is called, not as a table of nested ones
 * calls it. */
static void command_of(const struct cli_usage *u, char *out, size_t size)
{
    static const char small[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    size_t at = 0;
    for (const char *p = u->synopsis; *p >= 'a' && *p <= 'z';) {
        size_t n = strspn(p, small);
        if (p[n] && p[n] != ' ' && p[n] != '\n')
            break;
        at += (size_t)snprintf(out + at, size - at, "%s%.*s", at ? " " : "", (int)n, p);
        if (p[n] != ' ')
            break;
        p += n + 1;
    }
    out[at] = 0;
}

int cli_options_parse(const struct cli_usage *u, int argc, char **argv, int *first)
{
    struct option longs[OPTIONS_MAX + 2];
    char letters[2 * OPTIONS_MAX + 4], command[64];
    int n = build_tables(u, longs, letters);
    struct given given = {.u = u};
    command_of(u, command, sizeof command);
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
        bool *is = &given.is[o - u->options];
        if (u->rules && *is && o->kind != CLI_FLAG && o->kind != CLI_LIST)
            return cli_error(CLI_USAGE, "%s: --%s is given twice; `weft %s --help` explains", command, o->name,
                             command);
        *is = true;
        if (set_value(o, optarg, &err) != 0)
            return cli_error(CLI_USAGE, "%s: %s; `weft %s --help` explains", command, err.msg, command);
    }
    int count = argc - optind;
    if (count < u->min_args)
        return cli_error(CLI_USAGE, "%s: an argument is missing; `weft %s --help` explains", command, command);
    if (u->max_args >= 0 && count > u->max_args)
        return cli_error(CLI_USAGE, "%s: unexpected argument \"%s\"; `weft %s --help` explains", command,
                         argv[optind + u->max_args], command);
    int status = CLI_GO_ON;
    for (const struct cli_rule *rule = u->rules; rule && rule->kind != CLI_RULES_END && status == CLI_GO_ON; rule++)
        status = check_rule(&given, rule, command);
    if (status == CLI_GO_ON)
        status = check_files(u, command);
    if (first)
        *first = optind;
    return status;
}
