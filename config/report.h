/* A list of problems, each with its place and its remedy, so that one run can name them all. Owned by the caller; one
 * thread at a time. */
#ifndef WEFT_CONFIG_REPORT_H
#define WEFT_CONFIG_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { CFG_PROBLEMS_MAX = 200 }; /* further ones are counted, not kept */

struct cfg_problem {
    char *file;    /* as the user wrote it */
    int line;      /* from 1; 0: the file as a whole */
    char *message; /* what is wrong; no line breaks */
    char *remedy;  /* what to do */
};

struct cfg_report {
    struct cfg_problem *problems; /* in order of discovery until cfg_report_sort */
    size_t count;                 /* kept */
    size_t dropped;               /* not kept: over the limit, or memory ran out */
};

/* Adds one problem; remedy is a sentence, message (printf style) is none and gets no full stop. A zeroed report is
 * empty. Never fails: what cannot be kept counts as dropped. */
void cfg_report_add(struct cfg_report *r, const char *file, int line, const char *remedy, const char *message, ...)
    __attribute__((format(printf, 5, 6)));
/* Whether any problem was added. */
bool cfg_report_any(const struct cfg_report *r);
/* Orders by file (in order of first mention) and line. */
void cfg_report_sort(struct cfg_report *r);
/* One line each: "FILE:LINE: MESSAGE. REMEDY". */
void cfg_report_print(const struct cfg_report *r, FILE *f);
/* Releases everything and leaves the report empty. */
void cfg_report_free(struct cfg_report *r);

#endif
