/* Looks at JSON text before and beside the parser: nesting and places, without recursion and without memory. The text may
 * be malformed; the answers then describe the part before the defect. */
#ifndef WEFT_GATEWAY_JSON_SCAN_H
#define WEFT_GATEWAY_JSON_SCAN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum { GW_JSON_DEPTH = 64 };

/* Whether objects and lists nest deeper than `limit`; *at is where, or len. */
bool gw_json_too_deep(const char *text, size_t len, int limit, size_t *at);
/* The key of the outermost object whose value holds byte `at`; "" when there is none. out is cut at size - 1. */
void gw_json_field_at(const char *text, size_t len, size_t at, char *out, size_t size);
/* A copy of the text in which whole numbers of more than 18 digits and numbers beyond a double's range, within the
 * outermost two levels, are written as reals that a parser takes (so that "max_tokens": 10^30 is a large number and no
 * syntax error). malloc'ed, NULL when out of memory; *out_len its length. */
char *gw_json_widen(const char *text, size_t len, size_t *out_len);
/* A value of any kind, at most GW_JSON_DEPTH levels deep. NULL with err->text filled. */
json_t *gw_json_load(const char *text, size_t len, size_t flags, json_error_t *err);

#endif
