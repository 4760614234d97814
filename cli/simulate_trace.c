/* A recorded load for `weft simulate`: the gateway's request trace. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/request_trace.h"
#include "cli/simulate.h"

struct reader {
    struct sim_trace *out;
    size_t cap, keys, key_cap;
    size_t *first_key; /* [cap] of each arrival; the keys move while they are read */
};

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

static int take(void *ctx, const struct cli_traced *line, struct cfg_error *err)
{
    struct reader *r = ctx;
    if (grow(r, (size_t)line->n_names + 1))
        return cfg_error_set(err, ENOMEM, "request trace: out of memory");
    struct sim_arrival *a = &r->out->arrival[r->out->n];
    *a = (struct sim_arrival){.at = line->t,
                              .prompt = line->prompt,
                              .output = line->output,
                              .line = line->line,
                              .n_chain = line->n_names ? line->n_names + 1 : 0};
    r->first_key[r->out->n] = r->keys;
    put_name(&r->out->key[r->keys++], 0);
    for (int i = 0; i < line->n_names; i++)
        put_name(&r->out->key[r->keys++], line->name[i]);
    r->out->block_tokens = line->block_tokens;
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
    struct reader r = {.out = out};
    *out = (struct sim_trace){0};
    int rc = cli_request_trace_read(path, take, &r, err);
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
