/* Implementation of tests/support/text_model.h. */
#include "tests/support/text_model.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/process.h"

#define FIXTURE "tests/fixtures/tokenizer/tokenizer.json"

static void link_file(const char *dir, const char *golden, const char *name)
{
    char from[4096], to[4096], cwd[2048];
    cr_assert_not_null(getcwd(cwd, sizeof cwd));
    snprintf(from, sizeof from, "%s/%s/%s", cwd, golden, name);
    snprintf(to, sizeof to, "%s/%s", dir, name);
    if (access(from, R_OK) == 0)
        cr_assert_eq(symlink(from, to), 0, "%s", to);
}

/* Keeps the first `keep` entries of the vocabulary and the merges that lead to them; added tokens follow. */
static void cut_tokenizer(json_t *t, int keep)
{
    json_t *model = json_object_get(t, "model"), *vocab = json_object_get(model, "vocab"), *merges = json_array(),
           *merge, *id;
    const char *name;
    void *next;
    size_t i;
    int last = keep;
    json_array_foreach (json_object_get(model, "merges"), i, merge) {
        char joined[256];
        const char *text = json_string_value(merge), *space = strchr(text, ' ');
        snprintf(joined, sizeof joined, "%.*s%s", (int)(space - text), text, space + 1);
        if (json_integer_value(json_object_get(vocab, joined)) < keep)
            json_array_append(merges, merge);
    }
    json_object_set_new(model, "merges", merges);
    json_object_foreach_safe(vocab, next, name, id) if (json_integer_value(id) >= keep) json_object_del(vocab, name);
    json_array_foreach (json_object_get(t, "added_tokens"), i, merge)
        if (json_integer_value(json_object_get(merge, "id")) >= keep)
            json_object_set_new(merge, "id", json_integer(last++));
}

char *ts_text_model(const char *golden)
{
    char *dir = ts_temp_dir(), path[4096];
    json_t *t = json_load_file(FIXTURE, 0, NULL);
    snprintf(path, sizeof path, "%s/config.json", golden);
    json_t *config = json_load_file(path, 0, NULL);
    cr_assert(dir && t && config, "%s, %s", FIXTURE, path);
    json_int_t vocab = json_integer_value(json_object_get(json_object_get(config, "text_config"), "vocab_size"));
    cut_tokenizer(t, (int)vocab - (int)json_array_size(json_object_get(t, "added_tokens")));
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    cr_assert_eq(json_dump_file(t, path, 0), 0, "%s", path);
    json_decref(t);
    json_decref(config);
    static const char *const files[] = {"config.json", "model.safetensors", "engram.safetensors",
                                        "model.safetensors.index.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        link_file(dir, golden, files[i]);
    return dir;
}
