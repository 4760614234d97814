/* Implementation of config/report.h. */
#include "config/report.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "config/error.h"

void cfg_report_add(struct cfg_report *r, const char *file, int line, const char *remedy, const char *message, ...)
{
    char text[CFG_ERROR_MAX];
    va_list ap;
    va_start(ap, message);
    vsnprintf(text, sizeof text, message, ap);
    va_end(ap);
    struct cfg_error clean; /* control bytes of the file must not reach a terminal */
    cfg_error_set(&clean, 0, "%s", text);
    struct cfg_problem *grown = NULL;
    if (r->count < CFG_PROBLEMS_MAX)
        grown = realloc(r->problems, (r->count + 1) * sizeof *grown);
    if (grown)
        r->problems = grown;
    struct cfg_problem p = {strdup(file), line, strdup(clean.msg), NULL};
    cfg_error_set(&clean, 0, "%s", remedy);
    p.remedy = strdup(clean.msg);
    if (!grown || !p.file || !p.message || !p.remedy) {
        free(p.file);
        free(p.message);
        free(p.remedy);
        r->dropped++;
        return;
    }
    r->problems[r->count++] = p;
}

bool cfg_report_any(const struct cfg_report *r)
{
    return r->count + r->dropped > 0;
}

static size_t file_rank(const struct cfg_report *r, const char *file)
{
    size_t i = 0;
    while (i < r->count && strcmp(r->problems[i].file, file) != 0)
        i++;
    return i;
}

/* Insertion sort: stable, and reports are short. The rank of a file is taken before anything moves. */
void cfg_report_sort(struct cfg_report *r)
{
    size_t rank[CFG_PROBLEMS_MAX];
    for (size_t i = 0; i < r->count; i++)
        rank[i] = file_rank(r, r->problems[i].file);
    for (size_t i = 1; i < r->count; i++) {
        struct cfg_problem p = r->problems[i];
        size_t pr = rank[i], j = i;
        for (; j > 0 && (rank[j - 1] > pr || (rank[j - 1] == pr && r->problems[j - 1].line > p.line)); j--) {
            r->problems[j] = r->problems[j - 1];
            rank[j] = rank[j - 1];
        }
        r->problems[j] = p;
        rank[j] = pr;
    }
}

void cfg_report_print(const struct cfg_report *r, FILE *f)
{
    for (size_t i = 0; i < r->count; i++) {
        const struct cfg_problem *p = &r->problems[i];
        if (p->line > 0)
            fprintf(f, "%s:%d: %s. %s\n", p->file, p->line, p->message, p->remedy);
        else
            fprintf(f, "%s: %s. %s\n", p->file, p->message, p->remedy);
    }
    if (r->dropped)
        fprintf(f, "... and %zu more\n", r->dropped);
}

void cfg_report_free(struct cfg_report *r)
{
    for (size_t i = 0; i < r->count; i++) {
        free(r->problems[i].file);
        free(r->problems[i].message);
        free(r->problems[i].remedy);
    }
    free(r->problems);
    *r = (struct cfg_report){0};
}
