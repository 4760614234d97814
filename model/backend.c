#include "model/backend.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/numerics.h"

/* The paths of this build, best first, with the CPU features that each needs. __builtin_cpu_supports also asks whether
 * the operating system keeps the registers. */
enum { LACKS_MAX = 128 };

static void add_lack(bool has, const char *feature, char *lacks)
{
    if (!has)
        snprintf(lacks + strlen(lacks), LACKS_MAX - strlen(lacks), "%s%s", lacks[0] ? ", " : "", feature);
}

#if defined(__x86_64__)
static void avx512_lacks(char *lacks)
{
    __builtin_cpu_init();
    add_lack(__builtin_cpu_supports("avx512f"), "AVX512F", lacks);
    add_lack(__builtin_cpu_supports("avx512bw"), "AVX512BW", lacks);
    add_lack(__builtin_cpu_supports("avx512vl"), "AVX512VL", lacks);
    add_lack(__builtin_cpu_supports("avx512dq"), "AVX512DQ", lacks);
    add_lack(__builtin_cpu_supports("avx512vbmi"), "AVX512_VBMI", lacks);
    add_lack(__builtin_cpu_supports("avx512bf16"), "AVX512_BF16", lacks);
}
#endif

static void scalar_lacks(char *lacks)
{
    (void)lacks;
}

static const struct {
    const struct mdl_backend *be;
    void (*lacks)(char *lacks); /* names the missing features; nothing when the machine has all */
} paths[] = {
#if defined(__x86_64__)
    {&mdl_backend_avx512, avx512_lacks},
#endif
    {&mdl_backend_scalar, scalar_lacks},
};

int mdl_backend_select(const char *name, const struct mdl_backend **out, struct cfg_error *err)
{
    *out = NULL;
    bool any = !name || !*name;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        if (!any && strcmp(name, paths[i].be->name))
            continue;
        char lacks[LACKS_MAX] = "";
        paths[i].lacks(lacks);
        if (!lacks[0]) {
            *out = paths[i].be;
            return 0;
        }
        if (!any)
            return cfg_error_set(err, ENOTSUP,
                                 "CPU path %s needs what this machine lacks: %s; leave WEFT_CPU unset to use the "
                                 "best path it has",
                                 name, lacks);
    }
    if (!strcmp(name, "avx512") || !strcmp(name, "avx2"))
        return cfg_error_set(err, ENOTSUP,
                             "CPU path %s is not part of this build; leave WEFT_CPU unset to use the best path it "
                             "has",
                             name);
    return cfg_error_set(err, EINVAL, "CPU path \"%s\" is unknown; use scalar, avx2 or avx512", name);
}

enum { TILE = 32, ROWS = 96 };

struct linear_job {
    const struct mdl_exec *ex;
    const struct mdl_linear *w;
    const uint16_t *x;
    size_t ldx, ldy;
    int rows;
    float *f32;
    uint16_t *bf16;
};

static void linear_items(void *ctx, int begin, int end, int thread)
{
    (void)thread;
    const struct linear_job *j = ctx;
    float tile[ROWS * TILE];
    for (int item = begin; item < end; item++) {
        int n0 = item * TILE, n1 = n0 + TILE < j->w->n ? n0 + TILE : j->w->n;
        for (int r0 = 0; r0 < j->rows; r0 += ROWS) {
            int rows = j->rows - r0 < ROWS ? j->rows - r0 : ROWS;
            const uint16_t *x = j->x + (size_t)r0 * j->ldx;
            if (j->f32) {
                j->ex->be->linear(j->w, x, j->ldx, rows, n0, n1, j->f32 + (size_t)r0 * j->ldy + n0, j->ldy);
                continue;
            }
            j->ex->be->linear(j->w, x, j->ldx, rows, n0, n1, tile, TILE);
            for (int r = 0; r < rows; r++)
                for (int n = n0; n < n1; n++)
                    j->bf16[(size_t)(r0 + r) * j->ldy + (size_t)n] = mdl_to_bf16(tile[r * TILE + n - n0]);
        }
    }
}

static void linear_run(const struct linear_job *j)
{
    mdl_team_run(j->ex->team, (j->w->n + TILE - 1) / TILE, 1, linear_items, (void *)j);
}

void mdl_linear_f32(const struct mdl_exec *ex, const struct mdl_linear *w, const uint16_t *x, size_t ldx, int rows,
                    float *y, size_t ldy)
{
    linear_run(&(struct linear_job){ex, w, x, ldx, ldy, rows, y, NULL});
}

void mdl_linear_bf16(const struct mdl_exec *ex, const struct mdl_linear *w, const uint16_t *x, size_t ldx, int rows,
                     uint16_t *y, size_t ldy)
{
    linear_run(&(struct linear_job){ex, w, x, ldx, ldy, rows, NULL, y});
}

void mdl_rms_row(const struct mdl_backend *be, const uint16_t *x, const uint16_t *w, int n, float eps, uint16_t *y)
{
    be->rms_scale(x, w, (float)(1.0 / sqrt(be->mean_square(x, n) + (double)eps)), n, y);
}

struct rows_job {
    const struct mdl_exec *ex;
    const uint16_t *x, *w;
    uint16_t *y;
    size_t ldx, ldy;
    int n;
};

static void rms_items(void *ctx, int begin, int end, int thread)
{
    (void)thread;
    const struct rows_job *j = ctx;
    for (int r = begin; r < end; r++)
        mdl_rms_row(j->ex->be, j->x + (size_t)r * j->ldx, j->w, j->n, j->ex->cfg->rms_eps, j->y + (size_t)r * j->ldy);
}

void mdl_rms_rows(const struct mdl_exec *ex, const uint16_t *x, size_t ldx, const uint16_t *w, int n, int rows,
                  uint16_t *y, size_t ldy)
{
    mdl_team_run(ex->team, rows, 4, rms_items, &(struct rows_job){ex, x, w, y, ldx, ldy, n});
}

static void fakequant_items(void *ctx, int begin, int end, int thread)
{
    (void)thread;
    const struct rows_job *j = ctx;
    for (int r = begin; r < end; r++)
        j->ex->be->fakequant_q8(j->x + (size_t)r * j->ldx, j->n, j->y + (size_t)r * j->ldy);
}

void mdl_fakequant_q8_rows(const struct mdl_exec *ex, const uint16_t *x, size_t ldx, int n, int rows, uint16_t *y,
                           size_t ldy)
{
    mdl_team_run(ex->team, rows, 4, fakequant_items, &(struct rows_job){ex, x, NULL, y, ldx, ldy, n});
}
