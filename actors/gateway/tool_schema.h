/* What a tool's declaration says about one of its arguments. Pure functions; borrowed JSON, only read. */
#ifndef WEFT_GATEWAY_TOOL_SCHEMA_H
#define WEFT_GATEWAY_TOOL_SCHEMA_H

#include <jansson.h>
#include <stdbool.h>

/* The parameters' JSON schema of the tool with this name. tools: declarations in the chat form, or NULL. NULL: there is
 * no such tool, or it declares nothing. */
const json_t *gw_tool_schema(const json_t *tools, const char *name);
/* Models put all arguments into one more object at times: {"arguments": {...}} or {"input": {...}}. Whether `name` is
 * such a wrapper: it has one of these names, and the schema lists properties without it and does not say that there may
 * be others. */
bool gw_schema_is_wrapper(const json_t *schema, const char *name);
/* Whether the schema gives the argument a type, and that is not (also) a string. */
bool gw_schema_is_no_text(const json_t *schema, const char *name);

#endif
