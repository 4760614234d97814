/* Scalars and the field readers that several protocols use. */
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actors/gateway/request_impl.h"

bool gw_fail(struct gw_parse *p, const char *param, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    gw_error_set(p->err, p->protocol, 400, param, "%s", text);
    return false;
}

bool gw_fail_memory(struct gw_parse *p)
{
    gw_error_set(p->err, p->protocol, 500, NULL, "out of memory while reading the request");
    return false;
}

const char *gw_path(struct gw_parse *p, const char *fmt, ...)
{
    char path[sizeof p->path];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(path, sizeof path, fmt, ap); /* an argument may be p->path itself */
    va_end(ap);
    memcpy(p->path, path, sizeof path);
    return p->path;
}

const char *gw_json_kind(const json_t *v)
{
    if (!v)
        return "absent";
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    case JSON_NULL:
        return "null";
    }
    return "unknown";
}

json_t *gw_member(const json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

bool gw_only(struct gw_parse *p, const json_t *o, const char *const *names, const char *base)
{
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)o, key, v) {
        const char *const *n = names;
        while (*n && strcmp(*n, key) != 0)
            n++;
        if (!*n && !json_is_null(v))
            return gw_fail(p, gw_path(p, "%s.%s", base, key), "this field is not supported by this server");
    }
    return true;
}

/* ---- scalars ---- */

bool gw_want_string(struct gw_parse *p, const char *path, const json_t *v, const char **out)
{
    *out = "";
    if (!json_is_string(v))
        return gw_fail(p, path, "must be a string, not %s", gw_json_kind(v));
    *out = json_string_value(v);
    return true;
}

bool gw_want_bool(struct gw_parse *p, const char *path, const json_t *v, bool *out)
{
    *out = json_is_true(v);
    return json_is_boolean(v) || gw_fail(p, path, "must be true or false, not %s", gw_json_kind(v));
}

/* A number as the client may have meant it: beyond a double's range there is only a largest one (gw_json_load). */
static const char *number_text(double x, char out[24])
{
    snprintf(out, 24, fabs(x) < 1e308 ? "%g" : x < 0 ? "below -1e308" : "beyond 1e308", x);
    return out;
}

bool gw_want_real(struct gw_parse *p, const char *path, const json_t *v, double low, double high, double *out)
{
    if (!json_is_number(v))
        return gw_fail(p, path, "must be a number, not %s", gw_json_kind(v));
    char text[24];
    double x = json_number_value(v);
    if (!(x >= low && x <= high))
        return gw_fail(p, path, "is %s; allowed are %g to %g", number_text(x, text), low, high);
    *out = x;
    return true;
}

bool gw_want_int(struct gw_parse *p, const char *path, const json_t *v, int64_t low, int64_t high, int64_t *out)
{
    *out = 0;
    if (!json_is_number(v))
        return gw_fail(p, path, "must be a whole number, not %s", gw_json_kind(v));
    if (json_is_real(v)) {
        char text[24];
        double x = json_real_value(v);
        if (x != floor(x))
            return gw_fail(p, path, "must be a whole number, not %g", x);
        if (!(x >= -9007199254740992.0 && x <= 9007199254740992.0))
            return gw_fail(p, path, "is %s; allowed are %lld to %lld", number_text(x, text), (long long)low,
                           (long long)high);
        *out = (int64_t)x;
    } else {
        *out = json_integer_value(v);
    }
    if (*out < low || *out > high)
        return gw_fail(p, path, "is %lld; allowed are %lld to %lld", (long long)*out, (long long)low, (long long)high);
    return true;
}

bool gw_want_word(struct gw_parse *p, const char *path, const json_t *v, const char *const *names)
{
    const char *s;
    char list[160] = "";
    size_t n = 0;
    if (!gw_want_string(p, path, v, &s))
        return false;
    for (const char *const *k = names; *k; k++) {
        if (strcmp(*k, s) == 0)
            return true;
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", *k);
        if (n >= sizeof list)
            break;
    }
    return gw_fail(p, path, "is \"%.60s\"; allowed: %s", s, list);
}

/* Copies at most size - 1 bytes, never a part of a character. */
static void copy_text(char *out, size_t size, const char *s)
{
    size_t n = strlen(s);
    if (n >= size) {
        n = size - 1;
        while (n > 0 && ((unsigned char)s[n] & 0xc0) == 0x80)
            n--;
    }
    memcpy(out, s, n);
    out[n] = 0;
}

/* ---- fields ---- */

bool gw_read_model(struct gw_parse *p, const char *name, const json_t *v)
{
    const char *s;
    if (!gw_want_string(p, name, v, &s))
        return false;
    if (strlen(s) >= sizeof p->out->model)
        return gw_fail(p, name, "is longer than %zu bytes", sizeof p->out->model - 1);
    copy_text(p->out->model, sizeof p->out->model, s);
    return true;
}

bool gw_read_max_tokens(struct gw_parse *p, const char *name, const json_t *v)
{
    if (!json_is_number(v))
        return gw_fail(p, name, "must be a whole number, not %s", gw_json_kind(v));
    char text[24];
    double x = json_number_value(v);
    if (!(x >= 1) || x != floor(x))
        return gw_fail(p, name, "must be a whole number of 1 or more, not %s", number_text(x, text));
    int n = x >= INT_MAX ? INT_MAX : (int)x;
    if (p->out->max_tokens == 0 || n < p->out->max_tokens) /* two names for it: the smaller counts */
        p->out->max_tokens = n;
    return true;
}

bool gw_read_temperature(struct gw_parse *p, const char *name, const json_t *v)
{
    p->out->has_temperature = true;
    return gw_want_real(p, name, v, 0, p->protocol == GW_MESSAGES ? 1 : 2, &p->out->temperature);
}

bool gw_read_top_p(struct gw_parse *p, const char *name, const json_t *v)
{
    if (!gw_want_real(p, name, v, 0, 1, &p->out->top_p))
        return false;
    if (p->out->top_p <= 0)
        return gw_fail(p, name, "must be above 0 and at most 1");
    p->out->has_top_p = true;
    return true;
}

bool gw_read_top_k(struct gw_parse *p, const char *name, const json_t *v)
{
    int64_t k;
    if (!gw_want_int(p, name, v, -1, INT_MAX, &k))
        return false;
    p->out->top_k = k < 0 ? 0 : (int)k; /* -1 is how some clients say "all" */
    return true;
}

bool gw_read_min_p(struct gw_parse *p, const char *name, const json_t *v)
{
    return gw_want_real(p, name, v, 0, 1, &p->out->min_p);
}

bool gw_read_penalty(struct gw_parse *p, const char *name, const json_t *v)
{
    if (strcmp(name, "presence_penalty") == 0)
        return gw_want_real(p, name, v, -2, 2, &p->out->presence_penalty);
    if (strcmp(name, "frequency_penalty") == 0)
        return gw_want_real(p, name, v, -2, 2, &p->out->frequency_penalty);
    return gw_want_real(p, name, v, 1e-6, 10, &p->out->repetition_penalty);
}

bool gw_read_seed(struct gw_parse *p, const char *name, const json_t *v)
{
    int64_t seed;
    if (!gw_want_int(p, name, v, INT64_MIN, INT64_MAX, &seed))
        return false;
    p->out->seed = (uint64_t)seed;
    p->out->has_seed = true;
    return true;
}

static bool add_stop(struct gw_parse *p, const char *path, const json_t *v)
{
    struct gw_request *r = p->out;
    const char *s;
    if (!gw_want_string(p, path, v, &s))
        return false;
    size_t len = json_string_length(v);
    if (len == 0)
        return gw_fail(p, path, "must not be an empty string");
    if (len > GW_MAX_STOP_BYTES)
        return gw_fail(p, path, "is longer than %d bytes", GW_MAX_STOP_BYTES);
    char *copy = malloc(len + 1);
    if (!copy)
        return gw_fail_memory(p);
    memcpy(copy, s, len + 1);
    r->stop[r->n_stop].text = copy;
    r->stop[r->n_stop++].len = len;
    return true;
}

bool gw_read_stop(struct gw_parse *p, const char *name, const json_t *v)
{
    if (json_is_string(v) && p->protocol != GW_MESSAGES)
        return add_stop(p, name, v);
    if (!json_is_array(v))
        return gw_fail(p, name, "must be %s, not %s",
                       p->protocol == GW_MESSAGES ? "a list of strings" : "a string or a list of strings",
                       gw_json_kind(v));
    if (json_array_size(v) > GW_MAX_STOPS)
        return gw_fail(p, name, "has %zu strings; at most %d are allowed", json_array_size(v), GW_MAX_STOPS);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!add_stop(p, gw_path(p, "%s[%zu]", name, i), json_array_get(v, i)))
            return false;
    return true;
}

bool gw_read_stream(struct gw_parse *p, const char *name, const json_t *v)
{
    return gw_want_bool(p, name, v, &p->out->stream);
}

bool gw_read_stream_options(struct gw_parse *p, const char *name, const json_t *v)
{
    static const char *const known[] = {"include_usage", "include_obfuscation", NULL};
    bool obfuscate = false;
    if (!json_is_object(v))
        return gw_fail(p, name, "must be an object, not %s", gw_json_kind(v));
    if (!json_is_true(json_object_get(p->root, "stream")))
        return gw_fail(p, name, "is only allowed when stream is true");
    const json_t *usage = gw_member(v, "include_usage"), *obfuscation = gw_member(v, "include_obfuscation");
    if (p->protocol == GW_RESPONSES && usage)
        return gw_fail(p, gw_path(p, "%s.include_usage", name), "does not exist here: usage is always included");
    return gw_only(p, v, known, name) &&
           (!usage || gw_want_bool(p, gw_path(p, "%s.include_usage", name), usage, &p->out->include_usage)) &&
           (!obfuscation || gw_want_bool(p, gw_path(p, "%s.include_obfuscation", name), obfuscation, &obfuscate));
}

static bool bias_id(const char *key, int32_t *id)
{
    size_t n = strlen(key);
    if (n == 0 || n > 10 || (key[0] == '0' && n > 1) || strspn(key, "0123456789") != n)
        return false;
    long long x = strtoll(key, NULL, 10);
    *id = (int32_t)x;
    return x <= INT32_MAX;
}

bool gw_read_logit_bias(struct gw_parse *p, const char *name, const json_t *v)
{
    struct gw_request *r = p->out;
    const char *key;
    json_t *x;
    if (!json_is_object(v))
        return gw_fail(p, name, "must be an object from token ids to numbers, not %s", gw_json_kind(v));
    size_t n = json_object_size(v);
    if (n > GW_MAX_LOGIT_BIAS)
        return gw_fail(p, name, "has %zu tokens; at most %d are allowed", n, GW_MAX_LOGIT_BIAS);
    if (n == 0)
        return true;
    r->bias = calloc(n, sizeof *r->bias);
    if (!r->bias)
        return gw_fail_memory(p);
    json_object_foreach ((json_t *)v, key, x) {
        double bias;
        struct gw_logit_bias *b = &r->bias[r->n_bias];
        if (!bias_id(key, &b->id))
            return gw_fail(p, name, "\"%.40s\" is not a token id", key);
        if (!gw_want_real(p, gw_path(p, "%s.%s", name, key), x, -100, 100, &bias))
            return false;
        b->bias = (float)bias;
        r->n_bias++;
    }
    return true;
}

bool gw_read_ignore_eos(struct gw_parse *p, const char *name, const json_t *v)
{
    return gw_want_bool(p, name, v, &p->out->ignore_eos);
}

bool gw_read_cache_salt(struct gw_parse *p, const char *name, const json_t *v)
{
    const char *s;
    if (!gw_want_string(p, name, v, &s))
        return false;
    if (!*s || strlen(s) >= sizeof p->out->cache_salt)
        return gw_fail(p, name, "must have 1 to %zu bytes", sizeof p->out->cache_salt - 1);
    copy_text(p->out->cache_salt, sizeof p->out->cache_salt, s);
    return true;
}

bool gw_read_user(struct gw_parse *p, const char *name, const json_t *v)
{
    const char *s;
    if (!gw_want_string(p, name, v, &s))
        return false;
    copy_text(p->out->user, sizeof p->out->user, s);
    return true;
}

bool gw_read_one(struct gw_parse *p, const char *name, const json_t *v)
{
    if (json_is_number(v) && json_number_value(v) == 1)
        return true;
    return gw_fail(p, name, "only 1 is supported by this server");
}

bool gw_read_false(struct gw_parse *p, const char *name, const json_t *v)
{
    bool on;
    if (!gw_want_bool(p, name, v, &on))
        return false;
    return !on || gw_fail(p, name, "true is not supported by this server");
}

bool gw_read_medium(struct gw_parse *p, const char *name, const json_t *v)
{
    if (json_is_string(v) && strcmp(json_string_value(v), "medium") == 0)
        return true;
    return gw_fail(p, name, "only \"medium\" is supported by this server");
}

bool gw_read_parallel(struct gw_parse *p, const char *name, const json_t *v)
{
    return gw_want_bool(p, name, v, &p->out->parallel_tools);
}

bool gw_read_effort(struct gw_parse *p, const char *name, const json_t *v)
{
    static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra", NULL};
    int64_t n;
    if (json_is_string(v) ? !gw_want_word(p, name, v, words) : !gw_want_int(p, name, v, 1, 100, &n))
        return false;
    json_t *copy = json_is_string(v) ? json_incref((json_t *)v) : json_integer(n);
    return !json_object_set_new(p->conversation, "reasoning_effort", copy) || gw_fail_memory(p);
}

bool gw_read_reasoning(struct gw_parse *p, const char *name, const json_t *v)
{
    static const char *const known[] = {"effort", "summary", "generate_summary", NULL};
    static const char *const summaries[] = {"auto", "concise", "detailed", NULL};
    if (!json_is_object(v))
        return gw_fail(p, name, "must be an object, not %s", gw_json_kind(v));
    if (!gw_only(p, v, known, name))
        return false;
    const json_t *effort = gw_member(v, "effort");
    for (int i = 1; i <= 2; i++) { /* a request for summaries is met by the whole reasoning */
        const json_t *summary = gw_member(v, known[i]);
        if (summary && !gw_want_word(p, gw_path(p, "%s.%s", name, known[i]), summary, summaries))
            return false;
    }
    return !effort || gw_read_effort(p, gw_path(p, "%s.effort", name), effort);
}

bool gw_check_format(struct gw_parse *p, const char *path, const json_t *v)
{
    if (!json_is_object(v))
        return gw_fail(p, path, "must be an object, not %s", gw_json_kind(v));
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!type)
        return gw_fail(p, gw_path(p, "%s.type", path), "must be a string");
    if (strcmp(type, "text") == 0)
        return true;
    return gw_fail(p, path, "type \"%.40s\" asks for structured output, which is not supported by this server", type);
}
