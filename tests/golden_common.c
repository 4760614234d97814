/* Helpers of the golden runner: see golden_common.h. */
#include "tests/golden_common.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/numerics.h"

/* ---- suites and checks ---- */

bool gold_begin(struct gold_case *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->suite, sizeof c->suite, fmt, ap);
    va_end(ap);
    char full[600];
    snprintf(full, sizeof full, "%s/%s", c->name, c->suite);
    if (c->g->filter && !strstr(full, c->g->filter))
        return false;
    c->passed_before = c->g->passed;
    c->failed_before = c->g->failed;
    clock_gettime(CLOCK_MONOTONIC, &c->begin);
    return true;
}

void gold_end(struct gold_case *c)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double s = (double)(now.tv_sec - c->begin.tv_sec) + 1e-9 * (double)(now.tv_nsec - c->begin.tv_nsec);
    int failed = c->g->failed - c->failed_before;
    printf("%s %s/%s: %d passed, %d failed, %.3f s\n", failed ? "FAIL" : "  ok", c->name, c->suite,
           c->g->passed - c->passed_before, failed, s);
    fflush(stdout);
    for (size_t i = 0; i < c->n_memory; i++)
        free(c->memory[i]);
    c->n_memory = 0;
    memset(c->data, 0, 2 * mdl_st_count(c->st) * sizeof *c->data);
}

static bool count(struct gold_case *c, bool ok, const char *what, const char *detail)
{
    if (ok)
        c->g->passed++;
    else
        c->g->failed++;
    if (!ok || c->g->verbose)
        printf("%s %s/%s: %s%s\n", ok ? "     pass" : "     FAIL", c->name, c->suite, what, detail);
    return ok;
}

bool gold_check(struct gold_case *c, bool ok, const char *fmt, ...)
{
    char what[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return count(c, ok, what, "");
}

bool gold_limit(struct gold_case *c, double measured, double limit, const char *fmt, ...)
{
    char what[1024], detail[96];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    snprintf(detail, sizeof detail, ": measured %.6g, limit %.6g", measured, limit);
    return count(c, measured <= limit, what, detail);
}

bool gold_ok(struct gold_case *c, int r, const struct cfg_error *err, const char *fmt, ...)
{
    if (!r)
        return true;
    char what[512], detail[CFG_ERROR_MAX + 64];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    snprintf(detail, sizeof detail, ": error %d: %s", r, err ? err->msg : "");
    return count(c, false, what, detail);
}

void *gold_alloc(struct gold_case *c, size_t n, size_t size)
{
    if (c->n_memory == c->cap_memory) {
        c->cap_memory = 2 * c->cap_memory + 64;
        void **p = realloc(c->memory, c->cap_memory * sizeof *p);
        if (!p) {
            fprintf(stderr, "golden_runner: out of memory\n");
            exit(2);
        }
        c->memory = p;
    }
    void *p = calloc(n ? n : 1, size);
    if (!p) {
        fprintf(stderr, "golden_runner: out of memory\n");
        exit(2);
    }
    return c->memory[c->n_memory++] = p;
}

/* ---- tensors ---- */

static size_t number_of(const struct gold_case *c, const struct mdl_tensor *t)
{
    return (size_t)(t - mdl_st_at(c->st, 0));
}

static const struct mdl_tensor *find(struct gold_case *c, bool look, const char *fmt, va_list ap)
{
    char name[512];
    vsnprintf(name, sizeof name, fmt, ap);
    const struct mdl_tensor *t = mdl_st_find(c->st, name);
    if (t && look)
        c->seen[number_of(c, t)] = true;
    return t;
}

const struct mdl_tensor *gold_get(struct gold_case *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const struct mdl_tensor *t = find(c, true, fmt, ap);
    va_end(ap);
    return t;
}

bool gold_has(struct gold_case *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const struct mdl_tensor *t = find(c, false, fmt, ap);
    va_end(ap);
    return t != NULL;
}

int64_t gold_count(const struct mdl_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++)
        n *= t->shape[i];
    return n;
}

int gold_rows(const struct mdl_tensor *t)
{
    return t->ndim ? (int)t->shape[0] : 1;
}

int gold_cols(const struct mdl_tensor *t)
{
    int64_t n = 1;
    for (int i = 1; i < t->ndim; i++)
        n *= t->shape[i];
    return (int)n;
}

const void *gold_data(struct gold_case *c, const struct mdl_tensor *t)
{
    /* Weights of the checkpoint come here too: they lie in other files. */
    bool own = mdl_st_find(c->st, t->name) == t;
    void **kept = own ? &c->data[2 * number_of(c, t)] : NULL;
    if ((uintptr_t)t->data % 8 == 0)
        return t->data;
    if (kept && *kept)
        return *kept;
    void *copy = gold_alloc(c, t->bytes, 1);
    memcpy(copy, t->data, t->bytes);
    if (kept)
        *kept = copy;
    return copy;
}

float *gold_from_bf16(struct gold_case *c, const uint16_t *x, size_t n)
{
    float *f = gold_alloc(c, n, sizeof *f);
    for (size_t i = 0; i < n; i++)
        f[i] = mdl_from_bf16(x[i]);
    return f;
}

const float *gold_floats(struct gold_case *c, const struct mdl_tensor *t)
{
    const void *data = gold_data(c, t);
    size_t n = (size_t)gold_count(t);
    void **kept = &c->data[2 * number_of(c, t) + 1];
    if (t->dtype == MDL_F32)
        return data;
    if (*kept)
        return *kept;
    float *f = gold_alloc(c, n, sizeof *f);
    for (size_t i = 0; i < n; i++)
        f[i] = t->dtype == MDL_BF16      ? mdl_from_bf16(((const uint16_t *)data)[i])
               : t->dtype == MDL_I32     ? (float)((const int32_t *)data)[i]
               : t->dtype == MDL_F8_E4M3 ? mdl_e4m3_table[((const uint8_t *)data)[i]]
               : t->dtype == MDL_F8_E8M0 ? mdl_from_e8m0(((const uint8_t *)data)[i])
                                         : (float)((const uint8_t *)data)[i];
    *kept = f;
    return f;
}

/* ---- JSON ---- */

const json_t *gold_json(const json_t *at, const char *key)
{
    return at ? json_object_get(at, key) : NULL;
}

double gold_number(const json_t *at, const char *key, double otherwise)
{
    const json_t *v = gold_json(at, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

int gold_int(const json_t *at, const char *key, int otherwise)
{
    return (int)gold_number(at, key, otherwise);
}

const char *gold_string(const json_t *at, const char *key)
{
    const char *s = json_string_value(gold_json(at, key));
    return s ? s : "";
}

int32_t *gold_ids(struct gold_case *c, const json_t *array, int *n)
{
    *n = (int)json_array_size(array);
    int32_t *ids = gold_alloc(c, (size_t)*n, sizeof *ids);
    for (int i = 0; i < *n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    return ids;
}

/* ---- statistics ---- */

void gold_add(struct gold_stat *s, double v)
{
    if (s->n == s->cap) {
        s->cap = 2 * s->cap + 64;
        double *p = realloc(s->v, s->cap * sizeof *p);
        if (!p) {
            fprintf(stderr, "golden_runner: out of memory\n");
            exit(2);
        }
        s->v = p;
    }
    s->v[s->n++] = isnan(v) ? INFINITY : v;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double gold_quantile(struct gold_stat *s, double q)
{
    if (!s->n)
        return 0.0;
    qsort(s->v, s->n, sizeof *s->v, ascending);
    return s->v[(size_t)(q * (double)(s->n - 1))];
}

void gold_stat_free(struct gold_stat *s)
{
    free(s->v);
    *s = (struct gold_stat){0};
}

double gold_row_error(const float *got, const float *want, size_t n)
{
    double diff = 0.0, top = 0.0;
    for (size_t i = 0; i < n; i++) {
        if (mdl_bits(got[i]) == mdl_bits(want[i]) || (isnan(got[i]) && isnan(want[i])))
            continue;
        double d = fabs((double)got[i] - (double)want[i]);
        if (isnan(d))
            return INFINITY;
        diff = d > diff ? d : diff;
    }
    for (size_t i = 0; i < n; i++)
        if (isfinite(want[i]))
            top = fabs((double)want[i]) > top ? fabs((double)want[i]) : top;
    return diff == 0.0 ? 0.0 : diff / top;
}

double gold_row_error_bf16(const uint16_t *got, const uint16_t *want, size_t n)
{
    double diff = 0.0, top = 0.0;
    for (size_t i = 0; i < n; i++) {
        double g = mdl_from_bf16(got[i]), w = mdl_from_bf16(want[i]), d = fabs(g - w);
        if (isnan(d))
            return INFINITY;
        diff = d > diff ? d : diff;
        top = fabs(w) > top ? fabs(w) : top;
    }
    return diff == 0.0 ? 0.0 : diff / top;
}

double gold_sd(const float *x, int n)
{
    double sum = 0.0, square = 0.0;
    for (int i = 0; i < n; i++)
        sum += x[i];
    double mean = sum / (n ? n : 1);
    for (int i = 0; i < n; i++)
        square += ((double)x[i] - mean) * ((double)x[i] - mean);
    return sqrt(square / (n ? n : 1));
}

double gold_logits_error(const float *got, const float *want, size_t n)
{
    double sum = 0.0;
    for (size_t i = 0; i < n; i++)
        sum += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
    double rms = sqrt(sum / (double)n);
    return rms == 0.0 ? 0.0 : isnan(rms) ? INFINITY : rms / gold_sd(want, (int)n);
}

double gold_gap(const float *x, int n)
{
    float best = -INFINITY, second = -INFINITY;
    for (int i = 0; i < n; i++) {
        if (x[i] > best) {
            second = best;
            best = x[i];
        } else if (x[i] > second) {
            second = x[i];
        }
    }
    return (double)best - (double)second;
}

static int descending_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

double gold_cut_margin(struct gold_case *c, const float *x, int n, int k, double sd, float *lowest)
{
    float *v = gold_alloc(c, (size_t)n, sizeof *v);
    int m = 0;
    for (int i = 0; i < n; i++)
        if (x[i] > -INFINITY)
            v[m++] = x[i];
    if (m <= k)
        return INFINITY;
    qsort(v, (size_t)m, sizeof *v, descending_float);
    if (lowest)
        *lowest = v[k - 1];
    double gap = (double)v[k - 1] - (double)v[k];
    return gap == 0.0 ? 0.0 : gap / sd;
}

size_t gold_codes_differ(const uint8_t *got, const uint8_t *want, size_t bytes, bool packed, bool zero_signs)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (packed) {
            for (int shift = 0; shift < 8; shift += 4) {
                int g = got[i] >> shift & 15, w = want[i] >> shift & 15;
                n += g != w && !((g & 7) == 0 && (w & 7) == 0);
            }
        } else {
            n += got[i] != want[i] && !(zero_signs && (got[i] & 0x7f) == 0 && (want[i] & 0x7f) == 0);
        }
    }
    return n;
}

size_t gold_floats_differ(const float *got, const float *want, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        k += !(got[i] == want[i] || (isnan(got[i]) && isnan(want[i])));
    return k;
}

double gold_score_error(const float *got, const float *want, int n)
{
    double scale = n > 1 ? gold_sd(want, n) : 0.0, worst = 0.0;
    for (int j = 0; j < n && scale == 0.0; j++)
        scale = fabs((double)want[j]);
    for (int j = 0; j < n; j++) {
        double d = fabs((double)got[j] - (double)want[j]);
        d = d == 0.0 ? 0.0 : isnan(d) ? INFINITY : d / scale;
        worst = d > worst ? d : worst;
    }
    return worst;
}

bool gold_same_blocks(const int32_t *list, int n, const uint8_t *kept, int blocks)
{
    int want = 0, same = 0;
    for (int b = 0; b < blocks; b++)
        want += kept[b] != 0;
    for (int i = 0; i < n; i++)
        same += list[i] < blocks && kept[list[i]];
    return same == want && n == want;
}

bool gold_same_selection(const int32_t *got, int got_n, const int32_t *want, int want_n)
{
    int n = 0;
    while (n < want_n && want[n] >= 0)
        n++;
    return n == got_n && memcmp(got, want, (size_t)n * sizeof *got) == 0;
}

/* ---- sequences and steps ---- */

struct mdl_seq *gold_seq(struct gold_case *c, int max_tokens, int replay, bool full_bridge)
{
    struct cfg_error err = {{0}};
    struct mdl_seq *seq = NULL;
    /* Small blocks, so that rows cross block borders. */
    struct mdl_seq_params p = {.max_tokens = max_tokens,
                               .block_tokens = 16,
                               .rollback = c->m->cfg->draft_block + 1,
                               .replay = replay,
                               .full_bridge = full_bridge};
    gold_ok(c, mdl_seq_new(c->m->cfg, &p, &seq, &err), &err, "sequence of %d tokens", max_tokens);
    return seq;
}

struct mdl_step *gold_step(struct gold_case *c, int rows, int max_tokens)
{
    struct cfg_error err = {{0}};
    struct mdl_step *step = NULL;
    gold_ok(c, mdl_step_new(c->m, rows, max_tokens, &step, &err), &err, "step of %d rows", rows);
    return step;
}

int gold_longest(struct gold_case *c)
{
    int longest = 1;
    const char *name;
    json_t *run;
    json_object_foreach ((json_t *)gold_json(c->json, "runs"), name, run) {
        int tokens = gold_int(run, "tokens", gold_int(run, "N", 0)), more = 0;
        const json_t *greedy = gold_json(run, "greedy");
        const char *key;
        json_t *one;
        more = (int)json_array_size(gold_json(greedy, "ids"));
        json_object_foreach ((json_t *)greedy, key, one) {
            int n = (int)json_array_size(gold_json(one, "ids"));
            more = n > more ? n : more;
        }
        longest = tokens + more > longest ? tokens + more : longest;
    }
    return longest + 2 * c->m->cfg->draft_block + 2;
}
