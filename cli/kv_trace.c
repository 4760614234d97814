#include "cli/kv_trace.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

enum { NONE = -1, SHORT_BLOCKS = 4 };

struct request {
    double t;
    int prompt, first, n; /* blocks first .. first + n - 1 of trace.block */
};

struct trace {
    struct request *request;
    int n, cap;
    int *block; /* numbers of distinct blocks */
    int n_blocks, block_cap;
    json_t *numbers; /* name to number */
    int distinct;
    int block_tokens;
    double block_bytes;
};

static bool grow(void **p, int *cap, int n, size_t size)
{
    if (n < *cap)
        return true;
    int want = *cap ? 2 * *cap : 1024;
    void *q = realloc(*p, (size_t)want * size);
    if (!q)
        return false;
    *p = q;
    *cap = want;
    return true;
}

/* The number of a name, a new one the first time. */
static int number_of(struct trace *t, const char *name)
{
    json_t *v = json_object_get(t->numbers, name);
    if (v)
        return (int)json_integer_value(v);
    json_object_set_new(t->numbers, name, json_integer(t->distinct));
    return t->distinct++;
}

static const char *take_line(struct trace *t, const char *line)
{
    json_error_t e;
    json_t *j = json_loads(line, 0, &e), *blocks = json_object_get(j, "blocks"), *name;
    size_t i;
    const char *bad = NULL;
    int tokens = (int)json_integer_value(json_object_get(j, "block_tokens"));
    double bytes = (double)json_integer_value(json_object_get(j, "block_bytes"));
    if (!j || !json_is_array(blocks) || tokens < 1 || bytes < 1)
        bad = "it is no line of a request trace";
    else if (t->n && tokens != t->block_tokens)
        bad = "its blocks have another size than those before";
    else if (!grow((void **)&t->request, &t->cap, t->n, sizeof *t->request))
        bad = "out of memory";
    if (!bad) {
        struct request *r = &t->request[t->n++];
        *r = (struct request){.t = json_number_value(json_object_get(j, "t")),
                              .prompt = (int)json_integer_value(json_object_get(j, "prompt")),
                              .first = t->n_blocks};
        t->block_tokens = tokens;
        t->block_bytes = bytes;
        json_array_foreach (blocks, i, name) {
            if (!json_is_string(name) || !grow((void **)&t->block, &t->block_cap, t->n_blocks, sizeof *t->block)) {
                bad = "it is no line of a request trace";
                break;
            }
            t->block[t->n_blocks++] = number_of(t, json_string_value(name));
            r->n++;
        }
    }
    json_decref(j);
    return bad;
}

static int by_arrival(const void *a, const void *b)
{
    double x = ((const struct request *)a)->t, y = ((const struct request *)b)->t;
    return (x > y) - (x < y);
}

static int read_trace(struct trace *t, const char *path)
{
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t size = 0;
    const char *bad = NULL;
    int number = 0;
    if (!f)
        return cli_error(CLI_FAILED, "%s: %s", path, strerror(errno));
    t->numbers = json_object();
    while (!bad && getline(&line, &size, f) > 0) {
        number++;
        bad = take_line(t, line);
    }
    free(line);
    fclose(f);
    if (bad)
        return cli_error(CLI_FAILED, "%s:%d: %s", path, number, bad);
    if (!t->n)
        return cli_error(CLI_FAILED, "%s holds no request", path);
    /* Lines come in the order in which requests ended. */
    qsort(t->request, (size_t)t->n, sizeof *t->request, by_arrival);
    for (int i = t->n - 1; i >= 0; i--)
        t->request[i].t -= t->request[0].t;
    return CLI_OK;
}

/* ---- one tier: least recently used goes first ---- */

struct cache {
    int *prev, *next; /* of present blocks, oldest first */
    double *since, *used;
    bool *here;
    int old, young, n, room;
    double ttl, byte_s; /* bytes times seconds that were kept */
};

static void leave(struct cache *c, int b, double at, double bytes)
{
    *(c->prev[b] == NONE ? &c->old : &c->next[c->prev[b]]) = c->next[b];
    *(c->next[b] == NONE ? &c->young : &c->prev[c->next[b]]) = c->prev[b];
    c->here[b] = false;
    c->n--;
    c->byte_s += (at - c->since[b]) * bytes;
}

static void enter(struct cache *c, int b, double at)
{
    c->prev[b] = c->young;
    c->next[b] = NONE;
    *(c->young == NONE ? &c->old : &c->next[c->young]) = b;
    c->young = b;
    c->here[b] = true;
    c->n++;
    c->since[b] = c->used[b] = at;
}

/* Those that were not used for too long have left when their time was over. */
static void expire(struct cache *c, double at, double bytes)
{
    while (c->ttl > 0 && c->old != NONE && at - c->used[c->old] > c->ttl)
        leave(c, c->old, c->used[c->old] + c->ttl, bytes);
}

struct outcome {
    double saved, prompt, byte_s;
    double short_saved, short_prompt; /* of prompts of fewer than SHORT_BLOCKS blocks */
    int hits;
};

static bool replay(const struct trace *t, int room, double ttl, struct outcome *out)
{
    size_t n = (size_t)t->distinct + 1;
    struct cache c = {.prev = malloc(n * sizeof(int)),
                      .next = malloc(n * sizeof(int)),
                      .since = malloc(n * sizeof(double)),
                      .used = malloc(n * sizeof(double)),
                      .here = calloc(n, sizeof(bool)),
                      .old = NONE,
                      .young = NONE,
                      .room = room,
                      .ttl = ttl};
    bool ok = c.prev && c.next && c.since && c.used && c.here;
    double end = t->request[t->n - 1].t;
    *out = (struct outcome){0};
    for (int i = 0; ok && i < t->n; i++) {
        const struct request *r = &t->request[i];
        int hit = 0;
        expire(&c, r->t, t->block_bytes);
        while (hit < r->n && (hit + 1) * t->block_tokens < r->prompt && c.here[t->block[r->first + hit]])
            hit++;
        for (int k = 0; k < r->n; k++) {
            int b = t->block[r->first + k];
            if (c.here[b]) {
                double since = c.since[b];
                leave(&c, b, since, 0);
                enter(&c, b, r->t);
                c.since[b] = since;
                continue;
            }
            while (c.n >= c.room)
                leave(&c, c.old, r->t, t->block_bytes);
            enter(&c, b, r->t);
        }
        double saved = (double)hit * t->block_tokens;
        out->saved += saved;
        out->prompt += r->prompt;
        out->hits += hit > 0;
        if (r->n < SHORT_BLOCKS) {
            out->short_saved += saved;
            out->short_prompt += r->prompt;
        }
    }
    expire(&c, end, t->block_bytes);
    while (ok && c.old != NONE)
        leave(&c, c.old, end, t->block_bytes);
    out->byte_s = c.byte_s;
    free(c.prev);
    free(c.next);
    free(c.since);
    free(c.used);
    free(c.here);
    return ok;
}

static void print_row(const struct trace *t, int room, double ttl, const struct outcome *o)
{
    char life[32];
    snprintf(life, sizeof life, ttl > 0 ? "%.0f s" : "no limit", ttl);
    printf("%12.1f %10s %8.1f %8.1f %10d %12.0f ", (double)room * t->block_bytes / (1 << 20), life,
           o->prompt > 0 ? 100 * o->saved / o->prompt : 0,
           o->short_prompt > 0 ? 100 * o->short_saved / o->short_prompt : 0, o->hits, o->hits ? o->saved / o->hits : 0);
    if (o->saved > 0)
        printf("%16.0f\n", o->byte_s / o->saved);
    else
        printf("%16s\n", "pays nothing");
}

int cli_kv_trace_replay(const char *path)
{
    static const double shares[] = {0.05, 0.2, 0.5, 1.0};
    struct trace t = {0};
    int status = read_trace(&t, path);
    double end = status ? 0 : t.request[t.n - 1].t;
    const double ttls[] = {end / 16, end / 4, 0};
    if (!status) {
        printf("%d requests over %.0f s, %d distinct blocks of %d tokens and %.0f bytes\n", t.n, end, t.distinct,
               t.block_tokens, t.block_bytes);
        printf("%12s %10s %8s %8s %10s %12s %16s\n", "MiB", "kept for", "saved %", "short %", "hits", "tokens/hit",
               "byte s/token");
    }
    for (size_t s = 0; !status && s < sizeof shares / sizeof *shares; s++)
        for (size_t k = 0; !status && k < sizeof ttls / sizeof *ttls; k++) {
            struct outcome o;
            int room = (int)(shares[s] * t.distinct);
            room = room > 0 ? room : 1;
            if (!replay(&t, room, ttls[k], &o))
                status = cli_error(CLI_FAILED, "out of memory");
            else
                print_row(&t, room, ttls[k], &o);
        }
    if (!status)
        printf("saved: prompt tokens found, of all; short: the same of prompts of fewer than %d blocks. byte s/token: "
               "bytes "
               "kept,\ntimes seconds, per token saved: what a hit costs. Longer keeping makes more requests hit; a "
               "request "
               "that hits anyway\ndoes not get faster (tokens/hit).\n",
               SHORT_BLOCKS);
    json_decref(t.numbers);
    free(t.request);
    free(t.block);
    return status;
}
