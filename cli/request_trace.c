#include "cli/request_trace.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES_MAX (INT64_C(1) << 40)

enum { LINE_MAX_BYTES = 1 << 22, NAMES_MAX = 1 << 16, TOKENS_MAX = 1 << 22 };

struct reader {
    const char *path;
    struct cli_traced at;
    bool begun;
    uint64_t name[NAMES_MAX];
};

static int wrong(const struct reader *r, struct cfg_error *err, const char *what)
{
    return cfg_error_set(err, EINVAL, "%s:%d: %s", r->path, r->at.line, what);
}

static bool whole(const json_t *j, const char *key, json_int_t least, json_int_t most, json_int_t *out)
{
    const json_t *v = json_object_get(j, key);
    *out = json_integer_value(v);
    return json_is_integer(v) && *out >= least && *out <= most;
}

static bool take_names(struct reader *r, const json_t *blocks)
{
    r->at.name = r->name;
    r->at.n_names = (int)json_array_size(blocks);
    for (int i = 0; i < r->at.n_names; i++) {
        const char *text = json_string_value(json_array_get(blocks, (size_t)i));
        if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
            return false;
        r->name[i] = strtoull(text, NULL, 16);
    }
    return true;
}

static int take_line(struct reader *r, const json_t *j, struct cfg_error *err)
{
    const json_t *t = json_object_get(j, "t"), *blocks = json_object_get(j, "blocks");
    const struct cli_traced was = r->at;
    json_int_t prompt, output, tokens, bytes = 0;
    if (!json_is_number(t) || json_number_value(t) < -1e9 || json_number_value(t) > 1e9)
        return wrong(r, err, "t must be seconds");
    if (!whole(j, "prompt", 1, TOKENS_MAX, &prompt) || !whole(j, "output", 0, TOKENS_MAX, &output))
        return wrong(r, err, "prompt and output must be numbers of tokens");
    if (!json_is_array(blocks) || json_array_size(blocks) > NAMES_MAX || !whole(j, "block_tokens", 2, 65536, &tokens) ||
        (r->begun && tokens != was.block_tokens) || (json_int_t)json_array_size(blocks) * tokens > prompt)
        return wrong(r, err, "blocks must name the full blocks of the prompt, of the same size in every line");
    if ((json_object_get(j, "block_bytes") && !whole(j, "block_bytes", 1, BLOCK_BYTES_MAX, &bytes)) ||
        (r->begun && bytes != was.block_bytes))
        return wrong(r, err, "block_bytes must be the bytes of a block, the same in every line");
    if (!take_names(r, blocks))
        return wrong(r, err, "a block's name must be 16 hexadecimal digits");
    r->at.t = json_number_value(t);
    r->at.prompt = (int)prompt;
    r->at.output = (int)output;
    r->at.block_tokens = (int)tokens;
    r->at.block_bytes = bytes;
    r->begun = true;
    return 0;
}

static int take_lines(struct reader *r, FILE *f, int (*take)(void *, const struct cli_traced *, struct cfg_error *),
                      void *ctx, struct cfg_error *err)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    int rc = 0;
    while (!rc && (n = getline(&line, &room, f)) > 0) {
        json_error_t je;
        r->at.line++;
        json_t *j = n <= LINE_MAX_BYTES ? json_loadb(line, (size_t)n, JSON_REJECT_DUPLICATES, &je) : NULL;
        rc = j ? take_line(r, j, err) : wrong(r, err, "not a JSON object on a line");
        json_decref(j);
        if (!rc)
            rc = take(ctx, &r->at, err);
    }
    if (!rc && ferror(f))
        rc = cfg_error_set(err, errno, "%s: %s", r->path, strerror(errno));
    else if (!rc && !r->begun)
        rc = cfg_error_set(err, EINVAL, "%s: there is no request in it", r->path);
    free(line);
    return rc;
}

int cli_request_trace_read(const char *path,
                           int (*take)(void *ctx, const struct cli_traced *line, struct cfg_error *err), void *ctx,
                           struct cfg_error *err)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return cfg_error_set(err, errno, "%s: %s", path, strerror(errno));
    struct reader *r = calloc(1, sizeof *r);
    int rc = r ? 0 : cfg_error_set(err, ENOMEM, "%s: out of memory", path);
    if (r) {
        r->path = path;
        rc = take_lines(r, f, take, ctx, err);
    }
    free(r);
    fclose(f);
    return rc;
}
