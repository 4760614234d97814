/* The gateway's request trace (docs/FORMATS.md, "Request trace"), line by line: what a line says is checked here, for
 * all who replay one. */
#ifndef WEFT_CLI_REQUEST_TRACE_H
#define WEFT_CLI_REQUEST_TRACE_H

#include <stdint.h>

#include "config/error.h"

struct cli_traced {
    int line;             /* of the file, from 1 */
    double t;             /* s, within 1e9 of zero */
    int prompt, output;   /* tokens, to 2^22; at least 1 and 0 */
    int block_tokens;     /* 2 to 65536; the same in all lines */
    int64_t block_bytes;  /* to 2^40, the same in all lines; 0: no line says it */
    const uint64_t *name; /* [n_names] of the prompt's full blocks; until the callback returns */
    int n_names;          /* times block_tokens at most prompt */
};

/* Calls `take` for each line, in their order, until it returns a negative errno, having set err. Returns that, or 0, or
 * -EINVAL for a line that is none of a trace and for a file without lines, with file, line and cause in err. Any
 * thread; reads the whole file. */
int cli_request_trace_read(const char *path,
                           int (*take)(void *ctx, const struct cli_traced *line, struct cfg_error *err), void *ctx,
                           struct cfg_error *err);

#endif
