/* What the table of keys says, for people: --explain, the Markdown of docs/CONFIG.md, and --dump. */
#include <errno.h>
#include <string.h>

#include "config/config.h"
#include "config/keys.h"
#include "config/suggest.h"

enum { VALUE_TEXT = 4 * CFG_PATH_TEXT, WIDTH = 100 };

/* The default as it would stand in a file; "" where there is none. */
static void default_text(int key, char *out, size_t size)
{
    static _Thread_local struct cfg_config scratch;
    const struct cfg_key *k = &cfg_keys[key];
    out[0] = 0;
    if (k->type == CFG_GROUP || k->type == CFG_LIST || k->required)
        return;
    cfg_key_set_default(key, &scratch); /* elements of lists are smaller, so their offsets fit as well */
    cfg_key_print(key, &scratch, out, size);
}

/* Breaks at blanks so that lines stay below WIDTH. */
static void print_wrapped(const char *text, const char *indent, FILE *f)
{
    size_t column = 0;
    while (*text) {
        size_t n = strcspn(text, " ");
        if (column > 0 && column + 1 + n > WIDTH) {
            fputc('\n', f);
            column = 0;
        }
        column += (size_t)fprintf(f, "%s%.*s", column == 0 ? indent : " ", (int)n, text);
        text += n;
        text += strspn(text, " ");
    }
    fputc('\n', f);
}

static void explain_key(int key, FILE *f)
{
    const struct cfg_key *k = &cfg_keys[key];
    char range[256], value[VALUE_TEXT];
    cfg_key_range(key, range, sizeof range);
    default_text(key, value, sizeof value);
    fprintf(f, "%s\n    %s", k->path, cfg_type_name(k->type));
    if (k->unit)
        fprintf(f, ", %s", k->unit);
    if (range[0])
        fprintf(f, "; %s", range);
    if (k->required)
        fprintf(f, "; required");
    else if (value[0])
        fprintf(f, "; default %s", value);
    fputc('\n', f);
    print_wrapped(k->help, "    ", f);
}

int cfg_explain(const char *key, FILE *f, struct cfg_error *err)
{
    const char *paths[CFG_KEYS_MAX];
    bool found = false;
    for (int i = 0; i < cfg_n_keys; i++) {
        const char *path = paths[i] = cfg_keys[i].path;
        size_t n = key ? strlen(key) : 0;
        bool below = key && strncmp(path, key, n) == 0 && (path[n] == 0 || path[n] == '.' || path[n] == '[');
        if (key && !below)
            continue;
        if (found)
            fputc('\n', f);
        explain_key(i, f);
        found = true;
    }
    if (found)
        return 0;
    const char *near = cfg_suggest(key, paths, (size_t)cfg_n_keys);
    if (near)
        return cfg_error_set(err, ENOENT, "there is no key \"%s\"; did you mean \"%s\"?", key, near);
    return cfg_error_set(err, ENOENT, "there is no key \"%s\"; `weft config --explain` lists all", key);
}

void cfg_explain_markdown(FILE *f)
{
    fputs("# Configuration keys\n\n"
          "This page is the output of `weft config --explain --markdown`; `make docs` writes it again.\n\n"
          "A file is in the format of libconfig; [config/single.conf](../config/single.conf) is a commented one. "
          "`weft config --check FILE` reports every mistake with file, line and remedy and exits with status 2; "
          "`weft config --dump FILE` prints all values that result. "
          "A size or duration is a text with its unit (`\"64MiB\"`, `\"250ms\"`) or a plain number of the unit in the "
          "table. Units of sizes: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB; of durations: us, ms, s, min, h. "
          "`@include \"NAME\"`, alone on a line, puts another file in its place; the name starts at the folder of the "
          "file it stands in.\n",
          f);
    for (int i = 0; i < cfg_n_keys; i++) {
        const struct cfg_key *k = &cfg_keys[i];
        char range[256], value[VALUE_TEXT];
        cfg_key_range(i, range, sizeof range);
        default_text(i, value, sizeof value);
        if (k->type == CFG_GROUP || k->type == CFG_LIST) {
            fprintf(f, "\n## %s\n\n%s", k->path, k->help);
            if (k->type == CFG_LIST)
                fprintf(f, " A list of groups: `%s = ( { ... }, { ... } );`, %s.", k->path, range);
            fputs("\n\n| key | type | unit | range | default | meaning |\n|---|---|---|---|---|---|\n", f);
            continue;
        }
        const char *quote = value[0] ? "`" : "";
        fprintf(f, "| `%s` | %s | %s | %s | %s%s%s | %s |\n", k->path, cfg_type_name(k->type), k->unit ? k->unit : "",
                range, quote, k->required ? "required" : value, quote, k->help);
    }
}

static void dump_list(const struct cfg_config *c, const struct cfg_key *list, FILE *f)
{
    char prefix[256], value[VALUE_TEXT];
    const char *name, *element = (const char *)c + list->offset;
    int count = *(const int *)((const char *)c + list->count_offset);
    snprintf(prefix, sizeof prefix, "%s[]", list->path);
    fprintf(f, "%s = (", list->path);
    for (int n = 0; n < count; n++, element += list->size) {
        fprintf(f, "%s\n    {", n ? "," : "");
        for (int i = 0; i < cfg_n_keys; i++) {
            if (!cfg_key_below(i, prefix, &name))
                continue;
            cfg_key_print(i, element, value, sizeof value);
            fprintf(f, " %s = %s;", name, value);
        }
        fputs(" }", f);
    }
    fputs("\n);\n", f);
}

/* A group's own keys, then the groups inside it. */
static void dump_group(const struct cfg_config *c, int group, const char *name, int depth, FILE *f)
{
    char value[VALUE_TEXT];
    fprintf(f, "%*s%s = {\n", 4 * depth, "", name);
    for (int i = 0; i < cfg_n_keys; i++) {
        if (!cfg_key_below(i, cfg_keys[group].path, &name))
            continue;
        if (cfg_keys[i].type == CFG_GROUP) {
            dump_group(c, i, name, depth + 1, f);
            continue;
        }
        cfg_key_print(i, c, value, sizeof value);
        fprintf(f, "%*s%s = %s;\n", 4 * (depth + 1), "", name, value);
    }
    fprintf(f, "%*s};\n", 4 * depth, "");
}

void cfg_config_dump(const struct cfg_config *c, FILE *f)
{
    for (int g = 0; g < cfg_n_keys; g++) {
        if (cfg_keys[g].type == CFG_LIST)
            dump_list(c, &cfg_keys[g], f);
        if (cfg_keys[g].type == CFG_GROUP && !strchr(cfg_keys[g].path, '.'))
            dump_group(c, g, cfg_keys[g].path, 0, f);
    }
}
