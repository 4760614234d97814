/* Small files in and out for the commands. Main thread. */
#ifndef WEFT_CLI_FILES_H
#define WEFT_CLI_FILES_H

#include <stddef.h>
#include <stdint.h>

#include "config/error.h"

/* The whole of a file ("-": standard input), NUL-terminated behind len bytes; freed by the caller. */
int cli_file_read(const char *path, char **text, size_t *len, struct cfg_error *err);
/* Whitespace-separated decimal token ids; ids [n], freed by the caller. An empty file gives n = 0. */
int cli_file_read_ids(const char *path, int32_t **ids, int *n, struct cfg_error *err);
/* Makes a folder and its parents; one that exists is fine. */
int cli_file_make_dir(const char *path, struct cfg_error *err);

#endif
