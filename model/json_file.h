/* JSON files of any origin: read whole, refused with the reason. Any thread. */
#ifndef WEFT_MODEL_JSON_FILE_H
#define WEFT_MODEL_JSON_FILE_H

#include <jansson.h>

#include "config/error.h"

enum { MDL_JSON_FILE_MAX = 64 << 20 }; /* bytes */

/* The value in a regular file; the caller owns *out. An object may name a key once. Negative errno of opening it, or
 * -EINVAL with file, line and column. */
int mdl_json_file(const char *path, json_t **out, struct cfg_error *err);

/* Writes `root` (flags of json_dumpf). A regular file is replaced by a whole one that has its mode, where a link leads
 * to, or stays as it is; anything else, such as a device or a pipe, is written to and never replaced. -EIO: err says
 * why. */
int mdl_json_file_write(const char *path, const json_t *root, size_t flags, struct cfg_error *err);

#endif
