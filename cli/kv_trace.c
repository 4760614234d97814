#include "cli/kv_trace.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/conditions.h"
#include "cli/plot.h"
#include "cli/request_trace.h"

enum { NONE = -1, SIZES = 4, PLOT_TTLS = 9 };

/* Prompts by length in blocks: fewer than 4, 16, 64, and the others. */
enum { CLASSES = 4 };
static const int class_below[CLASSES] = {4, 16, 64, 0};

static int class_of(int blocks)
{
    int c = 0;
    while (class_below[c] && blocks >= class_below[c])
        c++;
    return c;
}

struct request {
    double t;
    int prompt, first, n; /* blocks first .. first + n - 1 of trace.block */
    int best;             /* leading blocks that a tier which keeps everything would have */
};

struct trace {
    struct request *request;
    int n, cap;
    int *block; /* numbers of distinct blocks */
    int n_blocks, block_cap;
    json_t *numbers; /* name to number */
    int distinct;
    int could;    /* requests for which a tier that keeps everything has something */
    double fresh; /* tokens of theirs that are new all the same, on average */
    int block_tokens;
    double block_bytes;
};

static bool grow(void **p, int *cap, int n, size_t size)
{
    if (n < *cap)
        return true;
    int want = *cap ? 2 * *cap : 1024;
    void *q = *cap <= INT_MAX / 2 ? realloc(*p, (size_t)want * size) : NULL;
    if (!q)
        return false;
    *p = q;
    *cap = want;
    return true;
}

/* The number of a name, a new one the first time; NONE: out of memory. */
static int number_of(struct trace *t, uint64_t name)
{
    char key[17];
    snprintf(key, sizeof key, "%016" PRIx64, name);
    json_t *v = json_object_get(t->numbers, key);
    if (v)
        return (int)json_integer_value(v);
    return json_object_set_new(t->numbers, key, json_integer(t->distinct)) ? NONE : t->distinct++;
}

static int take(void *ctx, const struct cli_traced *line, struct cfg_error *err)
{
    struct trace *t = ctx;
    bool ok = grow((void **)&t->request, &t->cap, t->n, sizeof *t->request);
    struct request *r = ok ? &t->request[t->n++] : NULL;
    if (ok)
        *r = (struct request){.t = line->t, .prompt = line->prompt, .first = t->n_blocks, .n = line->n_names};
    t->block_tokens = line->block_tokens;
    t->block_bytes = (double)line->block_bytes;
    for (int i = 0; ok && i < line->n_names; i++) {
        ok = grow((void **)&t->block, &t->block_cap, t->n_blocks, sizeof *t->block) &&
             (t->block[t->n_blocks] = number_of(t, line->name[i])) != NONE;
        t->n_blocks += ok;
    }
    return ok ? 0 : cfg_error_set(err, ENOMEM, "request trace: out of memory");
}

static int by_arrival(const void *a, const void *b)
{
    double x = ((const struct request *)a)->t, y = ((const struct request *)b)->t;
    return (x > y) - (x < y);
}

/* At least one token of a prompt is computed. */
static bool may_hit(const struct trace *t, const struct request *r, int blocks)
{
    return blocks < r->n && (blocks + 1) * t->block_tokens < r->prompt;
}

static bool find_best(struct trace *t)
{
    bool *seen = calloc((size_t)t->distinct + 1, sizeof *seen);
    for (int i = 0; seen && i < t->n; i++) {
        struct request *r = &t->request[i];
        while (may_hit(t, r, r->best) && seen[t->block[r->first + r->best]])
            r->best++;
        t->could += r->best > 0;
        t->fresh += r->best ? r->prompt - (double)r->best * t->block_tokens : 0;
        for (int k = 0; k < r->n; k++)
            seen[t->block[r->first + k]] = true;
    }
    t->fresh = t->could ? t->fresh / t->could : 0;
    bool ok = seen != NULL;
    free(seen);
    return ok;
}

static int read_trace(struct trace *t, const char *path)
{
    struct cfg_error err;
    t->numbers = json_object();
    if (cli_request_trace_read(path, take, t, &err))
        return cli_error(CLI_FAILED, "%s", err.msg);
    if (t->block_bytes < 1)
        return cli_error(CLI_FAILED, "%s: no line says block_bytes, the bytes of a block", path);
    /* Lines come in the order in which requests ended. */
    qsort(t->request, (size_t)t->n, sizeof *t->request, by_arrival);
    for (int i = t->n - 1; i >= 0; i--)
        t->request[i].t -= t->request[0].t;
    if (!find_best(t))
        return cli_error(CLI_FAILED, "out of memory");
    return CLI_OK;
}

/* ---- one tier: least recently used goes first ---- */

struct cache {
    int *prev, *next; /* of present blocks, oldest first */
    double *since, *used;
    bool *here;
    uint8_t *class; /* of the prompt that brought the block */
    int old, young, n, room;
    double ttl, byte_s; /* bytes times seconds that were kept */
    double vain;        /* of these, after a block's last use */
    double class_byte_s[CLASSES];
};

static void leave(struct cache *c, int b, double at, double bytes)
{
    *(c->prev[b] == NONE ? &c->old : &c->next[c->prev[b]]) = c->next[b];
    *(c->next[b] == NONE ? &c->young : &c->prev[c->next[b]]) = c->prev[b];
    c->here[b] = false;
    c->n--;
    c->byte_s += (at - c->since[b]) * bytes;
    c->vain += (at - c->used[b]) * bytes;
    c->class_byte_s[c->class[b]] += (at - c->since[b]) * bytes;
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
    double saved, prompt, byte_s, vain;
    int hits, whole; /* requests that found something; that found all that was ever there of them */
    double left;     /* tokens to compute in requests for which there ever was something */
    double class_saved[CLASSES], class_prompt[CLASSES], class_byte_s[CLASSES];
    int class_requests[CLASSES];
};

static bool replay(const struct trace *t, int room, double ttl, struct outcome *out)
{
    size_t n = (size_t)t->distinct + 1;
    struct cache c = {.prev = malloc(n * sizeof(int)),
                      .next = malloc(n * sizeof(int)),
                      .since = malloc(n * sizeof(double)),
                      .used = malloc(n * sizeof(double)),
                      .here = calloc(n, sizeof(bool)),
                      .class = calloc(n, 1),
                      .old = NONE,
                      .young = NONE,
                      .room = room,
                      .ttl = ttl};
    bool ok = c.prev && c.next && c.since && c.used && c.here && c.class;
    double end = t->request[t->n - 1].t;
    *out = (struct outcome){0};
    for (int i = 0; ok && i < t->n; i++) {
        const struct request *r = &t->request[i];
        int hit = 0;
        expire(&c, r->t, t->block_bytes);
        while (may_hit(t, r, hit) && c.here[t->block[r->first + hit]])
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
            c.class[b] = (uint8_t)class_of(r->n);
            enter(&c, b, r->t);
        }
        double saved = (double)hit * t->block_tokens;
        int class = class_of(r->n);
        out->saved += saved;
        out->prompt += r->prompt;
        out->hits += hit > 0;
        out->whole += hit && hit == r->best;
        out->left += r->best ? r->prompt - saved : 0;
        out->class_saved[class] += saved;
        out->class_prompt[class] += r->prompt;
        out->class_requests[class]++;
    }
    expire(&c, end, t->block_bytes);
    while (ok && c.old != NONE)
        leave(&c, c.old, end, t->block_bytes);
    out->byte_s = c.byte_s;
    out->vain = c.vain;
    memcpy(out->class_byte_s, c.class_byte_s, sizeof c.class_byte_s);
    free(c.prev);
    free(c.next);
    free(c.since);
    free(c.used);
    free(c.here);
    free(c.class);
    return ok;
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static void print_cost(double byte_s, double saved)
{
    if (saved > 0)
        printf("%16.0f\n", byte_s / saved);
    else
        printf("%16s\n", "pays nothing");
}

static void print_row(const struct trace *t, int room, double ttl, const struct outcome *o)
{
    char life[32];
    snprintf(life, sizeof life, ttl > 0 ? "%.0f s" : "no limit", ttl);
    double mib = (double)room * t->block_bytes / (1 << 20);
    printf("%12.*f %10s %8.1f %8d %8d %11.0f %8.1f ", mib < 10 ? 3 : 1, mib, life, percent(o->saved, o->prompt),
           o->hits, o->whole, t->could ? o->left / t->could : 0, percent(o->vain, o->byte_s));
    print_cost(o->byte_s, o->saved);
}

static void class_name(int class, char out[32])
{
    if (class == 0)
        snprintf(out, 32, "below %d", class_below[0]);
    else if (!class_below[class])
        snprintf(out, 32, "%d and more", class_below[class - 1]);
    else
        snprintf(out, 32, "%d to %d", class_below[class - 1], class_below[class] - 1);
}

static void print_classes(const struct outcome *o)
{
    printf("\nby length of the prompt, with room for everything and no limit:\n%12s %10s %8s %16s\n", "blocks",
           "requests", "saved %", "byte s/token");
    for (int c = 0; c < CLASSES; c++) {
        char name[32];
        class_name(c, name);
        printf("%12s %10d %8.1f ", name, o->class_requests[c], percent(o->class_saved[c], o->class_prompt[c]));
        if (o->class_requests[c])
            print_cost(o->class_byte_s[c], o->class_saved[c]);
        else
            printf("%16s\n", "none");
    }
}

static const double shares[SIZES] = {0.05, 0.2, 0.5, 1.0};

static int room_of(const struct trace *t, int size)
{
    int room = (int)(shares[size] * t->distinct);
    return room > 0 ? room : 1;
}

/* ---- the picture ---- */

static void plot_line(struct cli_plot *to, const struct outcome *o, const double *ttl, int size)
{
    cli_plot_printf(to, "$s%d << EOD\n", size);
    for (int k = 0; k < PLOT_TTLS; k++, o++)
        if (o->saved > 0)
            cli_plot_printf(to, "%.9g %.9g %.9g\n", ttl[k], o->byte_s / o->saved, percent(o->vain, o->byte_s));
        else
            cli_plot_printf(to, "%.9g NaN %.9g\n", ttl[k], percent(o->vain, o->byte_s));
    cli_plot_printf(to, "EOD\n");
}

static void plot_lines(const struct trace *t, struct cli_plot *to, int column)
{
    for (int s = 0; s < SIZES; s++)
        cli_plot_printf(to, "%s$s%d using 1:%d with linespoints pt 7 ps 0.5 lw 2 title '%.3g MiB'", s ? ", " : "plot ",
                        s, column, (double)room_of(t, s) * t->block_bytes / (1 << 20));
    cli_plot_printf(to, "\n");
}

/* Bars from `least` upwards on a logarithmic scale; what saved nothing has none. */
/* "87 kB s" */
static void cost_text(double byte_s, char *out, size_t size)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    int u = 0;
    for (; byte_s >= 1000 && u < 5; u++)
        byte_s /= 1000;
    snprintf(out, size, "%.3g %s s", byte_s, units[u]);
}

static void plot_classes(struct cli_plot *to, const struct outcome *o)
{
    cli_plot_printf(to, "$classes << EOD\n");
    for (int c = 0; c < CLASSES; c++) {
        char name[32], word[32] = "";
        class_name(c, name);
        if (!o->class_requests[c])
            snprintf(word, sizeof word, "none");
        else if (o->class_saved[c] <= 0)
            snprintf(word, sizeof word, "pays nothing");
        else
            cost_text(o->class_byte_s[c] / o->class_saved[c], word, sizeof word);
        cli_plot_printf(to, "%d %.9g \"%s\" \"%s\"\n", c, percent(o->class_saved[c], o->class_prompt[c]), name, word);
    }
    cli_plot_printf(to, "EOD\n");
}

/* What a token costs, of all sizes and times; 0: nothing is saved anywhere. Keys stand above the lines. */
static double dearest(struct outcome (*o)[PLOT_TTLS])
{
    double most = 0;
    for (int s = 0; s < SIZES; s++)
        for (int k = 0; k < PLOT_TTLS; k++) {
            double cost = o[s][k].saved > 0 ? o[s][k].byte_s / o[s][k].saved : 0;
            most = cost > most ? cost : most;
        }
    return most;
}

static void plot_panels(const struct trace *t, struct cli_plot *to, double bottom, double dearest_token,
                        double most_left)
{
    cli_plot_printf(to,
                    "set multiplot layout 2,2 margins 0.09,0.92,%g,0.95 spacing 0.12,0.14\nset grid lc rgb '#dddddd'\n"
                    "set logscale x\nset format x '%%g'\nset xlabel 'kept for so many seconds without use'\n"
                    "set key top center horizontal font ',9' samplen 2\n",
                    bottom);
    cli_plot_printf(to, "set title 'What a saved token costs'\nset ylabel 'kept bytes x seconds per saved token'\n"
                        "set logscale y\nset format y '10^{%%T}'\n");
    if (dearest_token > 0) {
        cli_plot_printf(to, "set yrange [*:%.9g]\n", 10 * dearest_token);
        plot_lines(t, to, 2);
    } else {
        cli_plot_printf(to, "set label 2 'nothing is saved' at graph 0.5,0.5 center\n"
                            "plot [0.1:1] [1:10] 1 with dots lc rgb 'white' notitle\nunset label 2\n");
    }
    cli_plot_printf(
        to,
        "unset label\nunset logscale y\nset format y '%%g'\n"
        "set title 'Longer keeping: more whole hits, none of them gets faster'\n"
        "set ylabel 'whole hits, %% of requests'\nset yrange [0:125]\nset y2label 'tokens left to compute'\n"
        "set y2tics\nset ytics 0,20,100 nomirror\nset y2range [0:%.9g]\n"
        "plot $hits using 1:2 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#4477aa' title 'whole hits', "
        "$hits using 1:3 axes x1y2 with linespoints pt 5 ps 0.5 lw 2 lc rgb '#d62728' title 'tokens left, mean', "
        "$hits using 1:4 axes x1y2 with lines dt 2 lw 2 lc rgb '#d62728' title 'left in a whole hit'\n",
        1.25 * most_left);
    cli_plot_printf(to, "unset y2label\nunset y2tics\nset ytics 0,20,100 mirror\n"
                        "set title 'Little reuse: bytes kept after their last use'\n"
                        "set ylabel 'of what was kept, %%'\n");
    plot_lines(t, to, 3);
    cli_plot_printf(to,
                    "unset logscale x\nunset key\nset style fill solid 0.6\nset boxwidth 0.6\nset xrange [-0.6:%g]\n"
                    "set title 'By length of the prompt, with room for everything'\nset "
                    "xlabel 'blocks of the prompt'\n"
                    "set ylabel 'prompt tokens saved, %%'\nset yrange [0:115]\n"
                    "plot $classes using 1:2:xtic(3) with boxes lc rgb '#4477aa', "
                    "$classes using 1:2:4 with labels offset 0,0.7 font ',10'\nunset multiplot\n",
                    CLASSES - 0.4);
}

static json_t *conditions(const struct trace *t, const char *path)
{
    const char *slash = strrchr(path, '/');
    json_t *to = json_object();
    cli_condition_set(to, "trace", "%s: %d requests over %.0f s, %d distinct blocks of %d tokens and %.0f bytes",
                      slash ? slash + 1 : path, t->n, t->request[t->n - 1].t, t->distinct, t->block_tokens,
                      t->block_bytes);
    cli_condition_set(to, "tier",
                      "replayed, nothing is measured: one tier of each capacity, whatever was used least recently goes "
                      "first, and what was not used for the time on the axis");
    return to;
}

static int plot(const struct trace *t, const char *path, const char *file)
{
    static struct outcome o[SIZES][PLOT_TTLS];
    double ttl[PLOT_TTLS], end = t->request[t->n - 1].t;
    struct cli_plot *to;
    struct cfg_error err;
    end = end > 0 ? end : 1;
    for (int k = 0; k < PLOT_TTLS; k++)
        ttl[k] = end / (double)(1 << (PLOT_TTLS - 1 - k));
    for (int s = 0; s < SIZES; s++)
        for (int k = 0; k < PLOT_TTLS; k++)
            if (!replay(t, room_of(t, s), ttl[k], &o[s][k]))
                return cli_error(CLI_FAILED, "out of memory");
    if (cli_plot_begin_sized(file, 1200, 860, &to, &err))
        return cli_error(CLI_FAILED, "%s", err.msg);
    for (int s = 0; s < SIZES; s++)
        plot_line(to, o[s], ttl, s);
    double most_left = 1;
    cli_plot_printf(to, "$hits << EOD\n");
    for (int k = 0; k < PLOT_TTLS; k++) {
        const struct outcome *one = &o[SIZES - 1][k];
        double left = t->could ? one->left / t->could : 0;
        most_left = left > most_left ? left : most_left;
        cli_plot_printf(to, "%.9g %.9g %.9g %.9g\n", ttl[k], percent(one->whole, t->n), left, t->fresh);
    }
    cli_plot_printf(to, "EOD\n");
    plot_classes(to, &o[SIZES - 1][PLOT_TTLS - 1]);
    json_t *texts = conditions(t, path);
    double low = cli_plot_conditions(to, texts);
    json_decref(texts);
    plot_panels(t, to, low + 0.085, dearest(o), most_left);
    return cli_plot_end(to, &err) ? cli_error(CLI_FAILED, "%s", err.msg) : CLI_OK;
}

/* ---- the table ---- */

static int print_tables(const struct trace *t)
{
    double end = t->request[t->n - 1].t;
    const double ttls[] = {end / 16, end / 4, 0};
    struct outcome o;
    printf("%d requests over %.0f s, %d distinct blocks of %d tokens and %.0f bytes\n", t->n, end, t->distinct,
           t->block_tokens, t->block_bytes);
    printf("%12s %10s %8s %8s %8s %11s %8s %16s\n", "MiB", "kept for", "saved %", "hits", "whole", "left", "vain %",
           "byte s/token");
    for (int s = 0; s < SIZES; s++)
        for (size_t k = 0; k < sizeof ttls / sizeof *ttls; k++) {
            if (!replay(t, room_of(t, s), ttls[k], &o))
                return cli_error(CLI_FAILED, "out of memory");
            print_row(t, room_of(t, s), ttls[k], &o);
        }
    print_classes(&o);
    printf("\nsaved: prompt tokens found, of all. byte s/token: bytes kept, times seconds, per token saved. vain: of "
           "these, "
           "after a\nblock's last use. whole: requests that found all of their prompt that had ever been there. left: "
           "tokens to "
           "compute, mean\nof the %d requests that could find something; %.0f of them are new, and no keeping makes "
           "them fewer: "
           "longer keeping makes\nmore requests whole, and a whole one does not get faster.\n",
           t->could, t->fresh);
    return CLI_OK;
}

int cli_kv_trace_replay(const char *path, const char *plot_file)
{
    struct trace t = {0};
    int status = read_trace(&t, path);
    if (!status)
        status = print_tables(&t);
    if (!status && plot_file)
        status = plot(&t, path, plot_file);
    json_decref(t.numbers);
    free(t.request);
    free(t.block);
    return status;
}
