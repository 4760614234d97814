/* A recorded load for `weft simulate`: the gateway's request trace, one JSON object per line (docs/FORMATS.md). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/simulate.h"

enum { LINE_MAX_BYTES = 1 << 22, BLOCKS_MAX = 1 << 16 };

struct reader {
    const char *path;
    int line;
    struct sim_trace *out;
    size_t cap, keys, key_cap;
    size_t *first_key; /* [cap] of each arrival; the keys move while they are read */
};

static int wrong(const struct reader *r, struct cfg_error *err, const char *what)
{
    return cfg_error_set(err, EINVAL, "%s:%d: %s", r->path, r->line, what);
}

static int grow(struct reader *r, size_t keys)
{
    if ((size_t)r->out->n == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 1024;
        void *a = realloc(r->out->arrival, cap * sizeof *r->out->arrival);
        r->out->arrival = a ? a : r->out->arrival;
        void *b = a ? realloc(r->first_key, cap * sizeof *r->first_key) : NULL;
        r->first_key = b ? b : r->first_key;
        if (!b)
            return -ENOMEM;
        r->cap = cap;
    }
    if (r->keys + keys > r->key_cap) {
        size_t cap = 2 * (r->keys + keys);
        void *k = realloc(r->out->key, cap * sizeof *r->out->key);
        if (!k)
            return -ENOMEM;
        r->out->key = k;
        r->key_cap = cap;
    }
    return 0;
}

static void put_name(struct act_key *key, uint64_t name)
{
    for (uint64_t i = 0; i < 4; i++) {
        uint64_t v = sim_hash(name + i, 11);
        memcpy(key->byte + 8 * i, &v, sizeof v);
    }
}

static int take_line(struct reader *r, const json_t *j, struct cfg_error *err)
{
    const json_t *t = json_object_get(j, "t"), *prompt = json_object_get(j, "prompt"),
                 *output = json_object_get(j, "output"), *blocks = json_object_get(j, "blocks"),
                 *per = json_object_get(j, "block_tokens");
    json_int_t n = json_integer_value(prompt), m = json_integer_value(output), block = json_integer_value(per);
    size_t names = json_array_size(blocks);
    if (!json_is_number(t) || json_number_value(t) < -1e9 || json_number_value(t) > 1e9)
        return wrong(r, err, "t must be seconds");
    if (!json_is_integer(prompt) || !json_is_integer(output) || n < 1 || m < 0 || n > 1 << 22 || m > 1 << 22)
        return wrong(r, err, "prompt and output must be numbers of tokens");
    if (!json_is_array(blocks) || names > BLOCKS_MAX || !json_is_integer(per) || block < 2 || block > 65536 ||
        (r->out->n && block != r->out->block_tokens) || (json_int_t)names * block > n)
        return wrong(r, err, "blocks must name the full blocks of the prompt, of the same size in every line");
    if (grow(r, names + 1))
        return cfg_error_set(err, ENOMEM, "%s: out of memory", r->path);
    struct sim_arrival *a = &r->out->arrival[r->out->n];
    *a = (struct sim_arrival){.at = json_number_value(t),
                              .prompt = (int)n,
                              .output = (int)m,
                              .line = r->line,
                              .n_chain = names ? (int)names + 1 : 0};
    r->first_key[r->out->n] = r->keys;
    put_name(&r->out->key[r->keys++], 0);
    for (size_t i = 0; i < names; i++) {
        const char *text = json_string_value(json_array_get(blocks, i));
        char *end = NULL;
        if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
            return wrong(r, err, "a block's name must be 16 hexadecimal digits");
        put_name(&r->out->key[r->keys++], strtoull(text, &end, 16));
    }
    r->out->block_tokens = (int)block;
    r->out->n++;
    return 0;
}

static int by_time(const void *a, const void *b)
{
    double x = ((const struct sim_arrival *)a)->at, y = ((const struct sim_arrival *)b)->at;
    return (x > y) - (x < y);
}

/* Lines are written when requests end, so they are not in the order of arrival. */
static void settle(struct reader *r)
{
    struct sim_trace *t = r->out;
    for (int i = 0; i < t->n; i++)
        t->arrival[i].chain = t->arrival[i].n_chain ? t->key + r->first_key[i] : NULL;
    qsort(t->arrival, (size_t)t->n, sizeof *t->arrival, by_time);
    for (int i = t->n; i--;)
        t->arrival[i].at -= t->arrival[0].at;
}

int sim_trace_read(const char *path, struct sim_trace *out, struct cfg_error *err)
{
    struct reader r = {.path = path, .out = out};
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    int rc = 0;
    *out = (struct sim_trace){0};
    FILE *f = fopen(path, "re");
    if (!f)
        return cfg_error_set(err, errno, "%s: %s", path, strerror(errno));
    while (!rc && (n = getline(&line, &room, f)) > 0) {
        json_error_t je;
        r.line++;
        json_t *j = n <= LINE_MAX_BYTES ? json_loadb(line, (size_t)n, JSON_REJECT_DUPLICATES, &je) : NULL;
        rc = j ? take_line(&r, j, err) : wrong(&r, err, "not a JSON object on a line");
        json_decref(j);
    }
    free(line);
    fclose(f);
    if (!rc && !out->n)
        rc = cfg_error_set(err, EINVAL, "%s: there is no request in it", path);
    if (!rc)
        settle(&r);
    free(r.first_key);
    if (rc)
        sim_trace_free(out);
    return rc;
}

void sim_trace_free(struct sim_trace *t)
{
    free(t->arrival);
    free(t->key);
    *t = (struct sim_trace){0};
}
