/* Files that a command writes when its work is done: written beside and renamed, so that what was there stays until the
 * new one is whole. A device, a pipe or another thing that is no regular file is written as it is. Main thread. */
#ifndef WEFT_CLI_OUTPUT_H
#define WEFT_CLI_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "config/error.h"

/* Whether a file could be written there: to be asked before the work. Makes a file beside it and takes it away again;
 * what is there is not touched. Negative errno with a sentence. */
int cli_output_check(const char *path, struct cfg_error *err);
/* Whether two names are of one file, be it there or not. /dev/null is as many files as one likes. */
bool cli_output_same(const char *a, const char *b);

struct cli_output {
    FILE *to;    /* what the caller writes to */
    char *path;  /* owned: where it belongs, behind links */
    char *fresh; /* owned: where it is until then; NULL: written as it is */
};
int cli_output_begin(struct cli_output *o, const char *path, struct cfg_error *err);
/* status: of the caller's work; when it is not 0 what was written is thrown away and status returned. Else 0, or
 * negative errno with a sentence and what was there before. */
int cli_output_end(struct cli_output *o, int status, struct cfg_error *err);

/* A whole file of JSON; flags as of json_dumpf. all may be NULL (there was no memory for it) and is given up. */
int cli_output_json(const char *path, json_t *all, size_t flags, struct cfg_error *err);

#endif
