#include "model/json_file.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

int mdl_json_file(const char *path, json_t **out, struct cfg_error *err)
{
    struct stat sb;
    json_error_t je;
    if (stat(path, &sb))
        return cfg_error_set(err, errno, "%s: %s", path, strerror(errno));
    if (!S_ISREG(sb.st_mode) || sb.st_size > MDL_JSON_FILE_MAX)
        return cfg_error_set(err, EINVAL, "%s: expected a regular file of at most %d bytes", path, MDL_JSON_FILE_MAX);
    *out = json_load_file(path, JSON_REJECT_DUPLICATES, &je);
    if (!*out)
        return cfg_error_set(err, EINVAL, "%s:%d:%d: not valid JSON: %s", path, je.line, je.column, je.text);
    return 0;
}
