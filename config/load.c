/* Reads a configuration: libconfig parses the text, this file compares what it found with the table of keys and fills
 * struct cfg_config. Goes on after a problem, so that one run reports all of them. */
#include "config/config.h"

#include <errno.h>
#include <libconfig.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/check.h"
#include "config/keys.h"
#include "config/source.h"
#include "config/suggest.h"
#include "config/units.h"

enum { PATH_TEXT = 256 };

struct loader {
    const struct cfg_source *source;
    struct cfg_config *config;
    struct cfg_report *report;
};

static struct cfg_place place_of(const struct loader *l, const config_setting_t *s)
{
    return cfg_source_place(l->source, (int)config_setting_source_line(s));
}

#define REPORT(l, setting, remedy, ...)                                                                                \
    do {                                                                                                               \
        struct cfg_place at_ = place_of(l, setting);                                                                   \
        cfg_report_add((l)->report, (l)->source->files[at_.file], at_.line, remedy, __VA_ARGS__);                      \
    } while (0)

static const char *type_found(const config_setting_t *s)
{
    switch (config_setting_type(s)) {
    case CONFIG_TYPE_INT:
    case CONFIG_TYPE_INT64:
        return "an integer";
    case CONFIG_TYPE_FLOAT:
        return "a number with a fraction";
    case CONFIG_TYPE_STRING:
        return "a text";
    case CONFIG_TYPE_BOOL:
        return "a truth value";
    case CONFIG_TYPE_ARRAY:
        return "an array";
    case CONFIG_TYPE_LIST:
        return "a list";
    case CONFIG_TYPE_GROUP:
        return "a group";
    default:
        return "nothing";
    }
}

static bool is_integer(const config_setting_t *s)
{
    int t = config_setting_type(s);
    return t == CONFIG_TYPE_INT || t == CONFIG_TYPE_INT64;
}

/* How to write a value of this key, as a sentence. */
static void write_remedy(int key, char *out, size_t size)
{
    const struct cfg_key *k = &cfg_keys[key];
    static const char *const forms[] = {
        [CFG_GROUP] = "{ ... }",
        [CFG_LIST] = "( { ... }, { ... } )",
        [CFG_BOOL] = "true or false",
        [CFG_INT] = "an integer",
        [CFG_DOUBLE] = "a number",
        [CFG_SIZE] = "a text with a unit such as \"64MiB\", or plain bytes",
        [CFG_DURATION] = "a text with a unit such as \"250ms\"",
        [CFG_TEXT] = "a text in double quotes",
        [CFG_ADDRESS] = "an address such as \"127.0.0.1:8000\"",
        [CFG_ENUM] = "a text in double quotes",
        [CFG_SET] = "an array of texts such as [\"a\", \"b\"]",
    };
    char range[256];
    cfg_key_range(key, range, sizeof range);
    int n = snprintf(out, size, "Write %s", forms[k->type]);
    if (k->type == CFG_DURATION)
        n += snprintf(out + n, size - (size_t)n, ", or a plain number of %s", k->unit);
    if (k->type == CFG_LIST)
        n += snprintf(out + n, size - (size_t)n, " with %s elements", range);
    else if (range[0])
        n += snprintf(out + n, size - (size_t)n, "%s %s", k->type == CFG_ENUM || k->type == CFG_SET ? ":" : ",", range);
    if (k->fallback && k->fallback[0])
        n += snprintf(out + n, size - (size_t)n, " (default %s)", k->fallback);
    snprintf(out + n, size - (size_t)n, ".");
}

static void wrong_type(struct loader *l, const config_setting_t *s, int key)
{
    char remedy[512];
    write_remedy(key, remedy, sizeof remedy);
    REPORT(l, s, remedy, "%s is %s, not a value of type \"%s\"", cfg_keys[key].path, type_found(s),
           cfg_type_name(cfg_keys[key].type));
}

static void out_of_range(struct loader *l, const config_setting_t *s, int key, const char *value)
{
    char range[256], remedy[512];
    cfg_key_range(key, range, sizeof range);
    write_remedy(key, remedy, sizeof remedy);
    REPORT(l, s, remedy, "%s = %s is out of range (%s)", cfg_keys[key].path, value, range);
}

static bool in_range(const struct cfg_key *k, double v)
{
    return v <= k->max && (k->above_min ? v > k->min : v >= k->min);
}

static void set_int(struct loader *l, const config_setting_t *s, int key, int *field)
{
    char text[CFG_UNIT_TEXT_MAX];
    if (!is_integer(s)) {
        wrong_type(l, s, key);
        return;
    }
    long long v = config_setting_get_int64(s);
    snprintf(text, sizeof text, "%lld", v);
    if (!in_range(&cfg_keys[key], (double)v))
        out_of_range(l, s, key, text);
    else
        *field = (int)v;
}

static void set_double(struct loader *l, const config_setting_t *s, int key, double *field)
{
    char text[CFG_UNIT_TEXT_MAX];
    double v;
    if (is_integer(s)) {
        v = (double)config_setting_get_int64(s);
    } else if (config_setting_type(s) == CONFIG_TYPE_FLOAT) {
        v = config_setting_get_float(s);
    } else {
        wrong_type(l, s, key);
        return;
    }
    snprintf(text, sizeof text, "%g", v);
    if (!isfinite(v) || !in_range(&cfg_keys[key], v))
        out_of_range(l, s, key, text);
    else
        *field = v;
}

/* Sizes and durations: a text with a unit, or an integer in the unit of the key. */
static void set_measure(struct loader *l, const config_setting_t *s, int key, int64_t *field)
{
    const struct cfg_key *k = &cfg_keys[key];
    bool size = k->type == CFG_SIZE;
    int64_t scale = size ? cfg_size_unit(k->unit) : cfg_duration_unit(k->unit);
    int64_t v = 0;
    char text[CFG_UNIT_TEXT_MAX + 32];
    int rc = 0;
    if (is_integer(s)) {
        rc = __builtin_mul_overflow((int64_t)config_setting_get_int64(s), scale, &v) ? -ERANGE : 0;
        snprintf(text, sizeof text, "%lld", (long long)config_setting_get_int64(s));
    } else if (config_setting_type(s) == CONFIG_TYPE_STRING) {
        const char *given = config_setting_get_string(s);
        rc = size ? cfg_size_parse(given, &v) : cfg_duration_parse(given, &v);
        snprintf(text, sizeof text, "%.40s", given);
    } else {
        wrong_type(l, s, key);
        return;
    }
    if (rc == -EINVAL) {
        char remedy[512];
        write_remedy(key, remedy, sizeof remedy);
        REPORT(l, s, remedy, "%s = \"%s\" is not a %s", k->path, text, size ? "size" : "duration");
    } else if (rc != 0 || !in_range(k, (double)v / (double)scale)) {
        out_of_range(l, s, key, text);
    } else {
        *field = v;
    }
}

static void set_text(struct loader *l, const config_setting_t *s, int key, char *field)
{
    const struct cfg_key *k = &cfg_keys[key];
    if (config_setting_type(s) != CONFIG_TYPE_STRING) {
        wrong_type(l, s, key);
        return;
    }
    const char *v = config_setting_get_string(s);
    size_t len = strlen(v);
    for (const char *p = v; *p; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f) {
            REPORT(l, s, "Take it out.", "%s has a control character", k->path);
            return;
        }
    }
    char remedy[512];
    write_remedy(key, remedy, sizeof remedy);
    if (len >= k->size)
        REPORT(l, s, "Make it shorter.", "%s is longer than %zu bytes", k->path, k->size - 1);
    else if (len == 0 && !(k->fallback && k->fallback[0] == 0))
        REPORT(l, s, remedy, "%s is empty", k->path);
    else if (k->type == CFG_ADDRESS && len > 0 && !cfg_address_valid(v))
        REPORT(l, s, remedy, "%s = \"%s\" is not HOST:PORT with a port of 0 (any free one) to 65535", k->path, v);
    else
        memcpy(field, v, len + 1);
}

/* Index of the text in the values of the key; reports and returns -1 when it is none. */
static int value_index(struct loader *l, const config_setting_t *s, int key)
{
    const struct cfg_key *k = &cfg_keys[key];
    size_t count = 0;
    const char *text = config_setting_get_string(s);
    for (; k->values[count]; count++)
        if (strcmp(k->values[count], text) == 0)
            return (int)count;
    char remedy[640], form[512];
    write_remedy(key, form, sizeof form);
    const char *near = cfg_suggest(text, k->values, count);
    if (near)
        snprintf(remedy, sizeof remedy, "Did you mean \"%s\"? %s", near, form);
    REPORT(l, s, near ? remedy : form, "%s: there is no \"%.100s\"", k->path, text);
    return -1;
}

static void set_enum(struct loader *l, const config_setting_t *s, int key, int *field)
{
    if (config_setting_type(s) != CONFIG_TYPE_STRING) {
        wrong_type(l, s, key);
        return;
    }
    int v = value_index(l, s, key);
    if (v >= 0)
        *field = v;
}

static void set_set(struct loader *l, const config_setting_t *s, int key, unsigned *field)
{
    int type = config_setting_type(s);
    if (type != CONFIG_TYPE_ARRAY && type != CONFIG_TYPE_LIST) {
        wrong_type(l, s, key);
        return;
    }
    unsigned bits = 0;
    for (int i = 0; i < config_setting_length(s); i++) {
        const config_setting_t *e = config_setting_get_elem(s, (unsigned)i);
        if (config_setting_type(e) != CONFIG_TYPE_STRING) {
            wrong_type(l, e, key);
            return;
        }
        int v = value_index(l, e, key);
        if (v < 0)
            return;
        if (bits >> v & 1)
            REPORT(l, e, "Name it once.", "%s names \"%s\" twice", cfg_keys[key].path, cfg_keys[key].values[v]);
        bits |= 1u << v;
    }
    if (bits == 0) {
        char remedy[512];
        write_remedy(key, remedy, sizeof remedy);
        REPORT(l, s, remedy, "%s is empty", cfg_keys[key].path);
    }
    *field = bits;
}

static void load_group(struct loader *l, const config_setting_t *group, const char *prefix, void *base);

static void load_list(struct loader *l, const config_setting_t *s, int key)
{
    const struct cfg_key *k = &cfg_keys[key];
    int count = config_setting_length(s), used = 0;
    char prefix[PATH_TEXT];
    snprintf(prefix, sizeof prefix, "%s[]", k->path);
    if (config_setting_type(s) != CONFIG_TYPE_LIST) {
        wrong_type(l, s, key);
        return;
    }
    if (count < (int)k->min)
        REPORT(l, s, "Name at least one, or leave the list out.", "%s is empty", k->path);
    if (count > (int)k->max) {
        REPORT(l, s, "Leave some out.", "%s has %d elements; at most %.0f are possible", k->path, count, k->max);
        count = (int)k->max;
    }
    char *element = (char *)l->config + k->offset;
    for (int i = 0; i < count; i++) {
        const config_setting_t *e = config_setting_get_elem(s, (unsigned)i);
        if (config_setting_type(e) != CONFIG_TYPE_GROUP) {
            REPORT(l, e, "Write ( { ... }, { ... } ).", "%s: element %d is %s, not a group", k->path, i + 1,
                   type_found(e));
            continue;
        }
        memset(element, 0, k->size);
        *(struct cfg_place *)element = place_of(l, e);
        load_group(l, e, prefix, element);
        element += k->size;
        used++;
    }
    *(int *)((char *)l->config + k->count_offset) = used;
}

static void set_value(struct loader *l, const config_setting_t *s, int key, void *base)
{
    const struct cfg_key *k = &cfg_keys[key];
    void *field = (char *)base + k->offset;
    switch (k->type) {
    case CFG_GROUP:
        if (config_setting_type(s) == CONFIG_TYPE_GROUP)
            load_group(l, s, k->path, base);
        else
            wrong_type(l, s, key);
        break;
    case CFG_LIST:
        load_list(l, s, key);
        break;
    case CFG_BOOL:
        if (config_setting_type(s) == CONFIG_TYPE_BOOL)
            *(bool *)field = config_setting_get_bool(s) != 0;
        else
            wrong_type(l, s, key);
        break;
    case CFG_INT:
        set_int(l, s, key, field);
        break;
    case CFG_DOUBLE:
        set_double(l, s, key, field);
        break;
    case CFG_SIZE:
    case CFG_DURATION:
        set_measure(l, s, key, field);
        break;
    case CFG_TEXT:
    case CFG_ADDRESS:
        set_text(l, s, key, field);
        break;
    case CFG_ENUM:
        set_enum(l, s, key, field);
        break;
    case CFG_SET:
        set_set(l, s, key, field);
        break;
    }
}

/* A key that is right in another group is the likelier mistake than one that is merely spelt like a neighbour. */
static void unknown_key(struct loader *l, const config_setting_t *s, const char *prefix, const char *name)
{
    const char *names[CFG_KEYS_MAX];
    size_t count = 0;
    char remedy[512];
    const char *elsewhere = NULL, *own;
    for (int i = 0; i < cfg_n_keys; i++) {
        const char *dot = strrchr(cfg_keys[i].path, '.');
        if (dot && strcmp(dot + 1, name) == 0)
            elsewhere = cfg_keys[i].path;
        if (cfg_key_below(i, prefix, &own))
            names[count++] = own;
    }
    const char *near = cfg_suggest(name, names, count);
    if (near)
        snprintf(remedy, sizeof remedy, "Did you mean \"%s\"? `weft config --explain` lists all keys.", near);
    else if (elsewhere)
        snprintf(remedy, sizeof remedy, "Did you mean %s? `weft config --explain` lists all keys.", elsewhere);
    else
        snprintf(remedy, sizeof remedy, "Take it out; `weft config --explain` lists all keys.");
    REPORT(l, s, remedy, "unknown key %s%s%.100s", prefix, prefix[0] ? "." : "", name);
}

/* base: what the offsets of keys below prefix count from. */
static void load_group(struct loader *l, const config_setting_t *group, const char *prefix, void *base)
{
    bool in_list = strstr(prefix, "[]") != NULL;
    const char *own;
    for (int i = 0; i < cfg_n_keys; i++) {
        if (!cfg_key_below(i, prefix, &own))
            continue;
        if (in_list)
            cfg_key_set_default(i, base);
        if (cfg_keys[i].required && !config_setting_get_member(group, own)) {
            char remedy[640], form[512];
            write_remedy(i, form, sizeof form);
            snprintf(remedy, sizeof remedy, "Add %s = ... . %s", own, form);
            REPORT(l, group, remedy, "%s is missing", cfg_keys[i].path);
        }
    }
    for (int c = 0; c < config_setting_length(group); c++) {
        const config_setting_t *s = config_setting_get_elem(group, (unsigned)c);
        const char *name = config_setting_name(s);
        char path[PATH_TEXT];
        snprintf(path, sizeof path, "%s%s%.100s", prefix, prefix[0] ? "." : "", name);
        int key = cfg_key_find(path);
        if (key < 0) {
            unknown_key(l, s, prefix, name);
            continue;
        }
        if (!in_list)
            l->config->places[key] = place_of(l, s);
        set_value(l, s, key, base);
    }
}

void cfg_config_default(struct cfg_config *out)
{
    memset(out, 0, sizeof *out);
    for (int i = 0; i < cfg_n_keys; i++)
        if (!strstr(cfg_keys[i].path, "[]"))
            cfg_key_set_default(i, out);
    struct cfg_node *node = &out->nodes[0];
    for (int i = 0; i < cfg_n_keys; i++)
        if (strstr(cfg_keys[i].path, "nodes[]."))
            cfg_key_set_default(i, node);
    strcpy(node->name, "local");
    strcpy(node->listen, "127.0.0.1:8000");
    node->roles = CFG_ROLE_GATEWAY | CFG_ROLE_PREFILL | CFG_ROLE_DECODE | CFG_ROLE_EXPERT | CFG_ROLE_KV;
    out->n_nodes = 1;
}

static void syntax_error(struct loader *l, const config_t *c)
{
    struct cfg_place at = cfg_source_place(l->source, config_error_line(c));
    const char *text = config_error_text(c);
    bool twice = text && strstr(text, "duplicate");
    cfg_report_add(l->report, l->source->files[at.file], at.line,
                   twice ? "Keep one of the two."
                         : "Look here and at the line before; every value ends with ';' or a line break, every "
                           "bracket and quote is closed.",
                   twice ? "a key is given twice in this group" : "not in the form of a configuration file (%s)",
                   text ? text : "syntax error");
}

static int load_source(const struct cfg_source *source, struct cfg_config *out, struct cfg_report *report)
{
    struct loader l = {source, out, report};
    for (int i = 0; i < source->n_files; i++)
        snprintf(out->files[i], sizeof out->files[i], "%s", source->files[i]);
    config_t c;
    config_init(&c);
    /* Should its scanner see an include where ours saw none, it finds nothing to open. */
    config_set_include_dir(&c, "/nonexistent/weft");
    if (config_read_string(&c, source->text)) {
        load_group(&l, config_root_setting(&c), "", out);
        cfg_check_combinations(out, report);
    } else {
        syntax_error(&l, &c);
    }
    config_destroy(&c);
    cfg_report_sort(report);
    return cfg_report_any(report) ? -EINVAL : 0;
}

int cfg_config_load(const char *path, struct cfg_config *out, struct cfg_report *report)
{
    struct cfg_source source;
    cfg_config_default(out);
    int rc = cfg_source_read(path, &source, report);
    if (rc == 0)
        rc = load_source(&source, out, report);
    cfg_source_free(&source);
    return rc;
}

int cfg_config_parse(const char *text, size_t len, const char *name, struct cfg_config *out, struct cfg_report *report)
{
    struct cfg_source source;
    cfg_config_default(out);
    int rc = cfg_source_set(text, len, name, &source, report);
    if (rc == 0)
        rc = load_source(&source, out, report);
    cfg_source_free(&source);
    return rc;
}
