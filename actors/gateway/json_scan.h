/* Looks at JSON text before and beside the parser: nesting and places, without recursion and without memory. The text
 * may be malformed; the answers then describe the part before the defect. */
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
/* A value of any kind, at most GW_JSON_DEPTH levels deep. Whole numbers beyond 64 bits and numbers beyond a double's
 * range become reals (the largest one at most), so that a limit of 10^30 is a large number and no syntax error. NULL
 * with *err filled; flags are jansson's. */
json_t *gw_json_load(const char *text, size_t len, size_t flags, json_error_t *err);

#endif
