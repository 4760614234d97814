#include "cli/result_file.h"

#include <errno.h>
#include <string.h>

#include "model/json_file.h"

enum { FORMAT = 1 };

static const char *const kinds[] = {"decode", "prefill", "serve"};
static const char *const results[] = {"a result of `weft bench decode --json`",
                                      "a result of `weft bench prefill --json`",
                                      "a result of `weft bench serve --json`"};

static bool has(const json_t *o, const char *a, const char *b)
{
    return json_object_get(o, a) && json_object_get(o, b);
}

/* What wrote it, by its members; NULL: nothing that is known here. */
static const char *origin(const json_t *root)
{
    const json_t *conditions = json_object_get(root, "conditions"),
                 *first = json_array_get(json_object_get(root, "points"), 0);
    const char *kind = json_string_value(json_object_get(root, "kind"));
    for (size_t i = 0; kind && i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kind, kinds[i]))
            return results[i];
    if (has(root, "plain_us", "full_us"))
        return "a profile for `weft simulate`";
    if (json_object_get(root, "profile") && json_is_array(json_object_get(root, "points")))
        return "a result of `weft simulate --json`";
    if (has(root, "choices", "model_revision"))
        return "a calibration of `weft calibrate`";
    if (has(root, "plain", "full") && json_object_get(root, "build_id"))
        return "a table of step times (speculation.table_file, `weft bench decode --table`)";
    if (json_object_get(conditions, "server"))
        return results[CLI_RESULT_SERVE];
    return conditions && has(first, "drafts", "sequences") ? results[CLI_RESULT_DECODE] : NULL;
}

static int check(const json_t *root, const char *path, enum cli_result kind, struct cfg_error *err)
{
    const json_t *format = json_object_get(root, "format");
    const char *from = origin(root);
    if (from && from != results[kind])
        return cfg_error_set(err, EINVAL, "%s is not %s: it is %s", path, results[kind], from);
    if (!from || !json_is_object(json_object_get(root, "conditions")) ||
        !json_array_size(json_object_get(root, "points")))
        return cfg_error_set(err, EINVAL, "%s is not %s", path, results[kind]);
    if ((format || kind != CLI_RESULT_SERVE) && (!json_is_integer(format) || json_integer_value(format) != FORMAT))
        return cfg_error_set(err, EINVAL, "%s is of another format than %d, which is read here", path, FORMAT);
    return 0;
}

int cli_result_read(const char *path, enum cli_result kind, json_t **out, struct cfg_error *err)
{
    *out = NULL;
    if (mdl_json_file(path, out, err))
        return -EINVAL; /* whatever is wrong with it: the command line named it */
    int r = check(*out, path, kind, err);
    if (r) {
        json_decref(*out);
        *out = NULL;
    }
    return r;
}

static int read_member(const json_t *v, const char *where, const struct cli_member *m, struct cfg_error *err)
{
    static const char *const words[] = {
        [CLI_MEMBER_TEXT] = "a text",
        [CLI_MEMBER_FLAG] = "true or false",
        [CLI_MEMBER_OBJECT] = "an object",
        [CLI_MEMBER_LIST] = "a list",
    };
    double x = json_number_value(v);
    switch (m->kind) {
    case CLI_MEMBER_INTEGER:
        if (!json_is_integer(v) || !(x >= m->least && x <= m->most))
            return cfg_error_set(err, EINVAL, "%s: \"%s\" must be an integer from %.15g to %.15g", where, m->name,
                                 m->least, m->most);
        if (m->to)
            *(int64_t *)m->to = json_integer_value(v);
        return 0;
    case CLI_MEMBER_NUMBER:
        if (!json_is_number(v) || !(x >= m->least && x <= m->most))
            return cfg_error_set(err, EINVAL, "%s: \"%s\" must be a number from %g to %g", where, m->name, m->least,
                                 m->most);
        if (m->to)
            *(double *)m->to = x;
        return 0;
    case CLI_MEMBER_TEXT:
        if (json_is_string(v)) {
            if (m->to)
                *(const char **)m->to = json_string_value(v);
            return 0;
        }
        break;
    case CLI_MEMBER_FLAG:
        if (json_is_boolean(v)) {
            if (m->to)
                *(bool *)m->to = json_is_true(v);
            return 0;
        }
        break;
    case CLI_MEMBER_OBJECT:
    case CLI_MEMBER_LIST:
        if (m->kind == CLI_MEMBER_LIST ? json_is_array(v) : json_is_object(v)) {
            if (m->to)
                *(const json_t **)m->to = v;
            return 0;
        }
        break;
    case CLI_MEMBER_END:
        return 0;
    }
    return cfg_error_set(err, EINVAL, "%s: \"%s\" must be %s", where, m->name, words[m->kind]);
}

int cli_members_read(const json_t *object, const char *where, const struct cli_member *members, struct cfg_error *err)
{
    const char *key;
    json_t *v;
    if (!json_is_object(object))
        return cfg_error_set(err, EINVAL, "%s must be an object", where);
    json_object_foreach ((json_t *)object, key, v) {
        const struct cli_member *m = members;
        while (m->kind != CLI_MEMBER_END && strcmp(m->name, key))
            m++;
        if (m->kind == CLI_MEMBER_END)
            return cfg_error_set(err, EINVAL, "%s: \"%.40s\" is not a member; docs/FORMATS.md lists them", where, key);
        int r = read_member(v, where, m, err);
        if (r)
            return r;
    }
    for (const struct cli_member *m = members; m->kind != CLI_MEMBER_END; m++)
        if (!m->optional && !json_object_get(object, m->name))
            return cfg_error_set(err, EINVAL, "%s: \"%s\" is missing", where, m->name);
    return 0;
}
