#include "actors/gateway/tool_schema.h"

#include <string.h>

const json_t *gw_tool_schema(const json_t *tools, const char *name)
{
    size_t i;
    json_t *tool;
    json_array_foreach ((json_t *)tools, i, tool) {
        const json_t *f = json_object_get(tool, "function");
        const char *own = json_string_value(json_object_get(f, "name"));
        if (own && strcmp(own, name) == 0)
            return json_object_get(f, "parameters");
    }
    return NULL;
}

bool gw_schema_is_wrapper(const json_t *schema, const char *name)
{
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *others = json_object_get(schema, "additionalProperties");
    if (strcmp(name, "arguments") != 0 && strcmp(name, "input") != 0)
        return false;
    return json_is_object(properties) && !json_object_get(properties, name) && (!others || json_is_false(others)) &&
           !json_object_get(schema, "patternProperties");
}

bool gw_schema_is_no_text(const json_t *schema, const char *name)
{
    const json_t *type = json_object_get(json_object_get(json_object_get(schema, "properties"), name), "type");
    size_t i;
    json_t *one;
    if (json_is_string(type))
        return strcmp(json_string_value(type), "string") != 0;
    json_array_foreach ((json_t *)type, i, one)
        if (json_is_string(one) && strcmp(json_string_value(one), "string") == 0)
            return false;
    return json_array_size(type) > 0;
}
