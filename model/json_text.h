/* JSON values as the text a model was trained on: Python's json.dumps without ASCII escapes. ", " and ": " between
 * items, keys in their order, shortest digits of a number that read back the same, 1.0 for a whole real. */
#ifndef WEFT_MODEL_JSON_TEXT_H
#define WEFT_MODEL_JSON_TEXT_H

#include <jansson.h>

#include "model/utf8.h"

/* Appends v. 0 or -ENOMEM. v must come from a parser (finite numbers, bounded depth). */
int mdl_json_write(const json_t *v, struct mdl_text *out);

#endif
