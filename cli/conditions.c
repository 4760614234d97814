#include "cli/conditions.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actors/steptime_file.h"
#include "cli/text.h"

void cli_condition_set(json_t *to, const char *key, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cli_text_clean(text);
    json_object_set_new(to, key, json_string(text));
}

void cli_condition_model(json_t *to, const struct mdl_model *m, const char *dir)
{
    struct act_steptime_identity id;
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    size_t from = n;
    while (from > 0 && dir[from - 1] != '/')
        from--;
    double load[1];
    if (getloadavg(load, 1) < 1)
        load[0] = NAN;
    act_steptime_identity(m, 1, 0, &id);
    cli_condition_set(to, "model", "%.*s, revision %016llx, %d + 0 experts", (int)(n - from), dir + from,
                      (unsigned long long)m->ck->revision, m->cfg->n_experts);
    cli_condition_set(to, "machine", "%s (%s), load average %.2f before", id.machine, id.build, load[0]);
}

void cli_conditions_print(const json_t *conditions)
{
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)conditions, key, value)
        printf("%-11s %s\n", key, json_string_value(value));
}

static bool printable(const char *text)
{
    char copy[64];
    snprintf(copy, sizeof copy, "%s", text);
    cli_text_clean(copy);
    return !strcmp(copy, text);
}

int cli_conditions_check(json_t *conditions, const char *path, struct cfg_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach (conditions, key, value)
        if (!printable(key))
            return cfg_error_set(err, EINVAL, "%s: the name of a condition is no text", path);
        else if (!json_is_string(value))
            return cfg_error_set(err, EINVAL, "%s: condition \"%.60s\" is no text", path, key);
    cli_text_clean_json(conditions);
    return 0;
}
