/* The CPU paths: each against the definition in double precision, and each against itself over rows, tiles and threads.
 */
#include "tests/harness.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/backend.h"
#include "model/numerics.h"

static uint64_t seed;

static uint32_t rnd(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 32);
}

static float uniform(void)
{
    return (float)((int)(rnd() >> 8) - (1 << 23)) * 0x1p-23f;
}

static const char *const path_names[] = {"scalar", "avx2", "avx512"};
enum { PATHS = 3 };

/* The path, or NULL where this machine or build lacks it. */
static const struct mdl_backend *path_at(int i)
{
    const struct mdl_backend *be;
    struct cfg_error err;
    int r = mdl_backend_select(path_names[i], &be, &err);
    if (r == -ENOTSUP)
        return NULL;
    cr_assert_eq(r, 0);
    cr_assert_str_eq(be->name, path_names[i]);
    return be;
}

static void fill_bf16(uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rnd() % 16 ? mdl_to_bf16(uniform() * (float)(1 << rnd() % 4)) : 0;
}

static struct mdl_linear make_linear(enum mdl_wkind kind, int n, int k)
{
    size_t cells = (size_t)n * (size_t)k, blocks = (size_t)k / 32;
    size_t unit2 = kind == MDL_W_FP4 ? 1 : kind == MDL_W_FP8 ? 2 : kind == MDL_W_BF16 ? 4 : 8;
    uint8_t *data = malloc(cells * unit2 / 2), *scale = NULL;
    if (kind == MDL_W_BF16)
        fill_bf16((uint16_t *)data, cells);
    else if (kind == MDL_W_F32)
        for (size_t i = 0; i < cells; i++)
            ((float *)data)[i] = uniform();
    else
        for (size_t i = 0; i < cells * unit2 / 2; i++) {
            data[i] = (uint8_t)rnd();
            if (kind == MDL_W_FP8 && (data[i] & 0x7f) == 0x7f)
                data[i] = 0;
        }
    if (kind == MDL_W_FP8 || kind == MDL_W_FP4) {
        size_t rows = kind == MDL_W_FP8 ? ((size_t)n + 31) / 32 : (size_t)n;
        scale = malloc(rows * blocks + 1);
        for (size_t i = 0; i < rows * blocks; i++)
            scale[i] = (uint8_t)(112 + rnd() % 12);
    }
    return (struct mdl_linear){.kind = kind, .n = n, .k = k, .data = data, .scale = scale};
}

static void free_linear(struct mdl_linear *w)
{
    free((void *)w->data);
    free((void *)w->scale);
}

static double weight(const struct mdl_linear *w, int n, int k)
{
    size_t at = (size_t)n * (size_t)w->k + (size_t)k, blocks = (size_t)w->k / 32;
    switch (w->kind) {
    case MDL_W_FP8:
        return (double)mdl_e4m3_table[((const uint8_t *)w->data)[at]] *
               (double)mdl_from_e8m0(w->scale[(size_t)(n / 32) * blocks + (size_t)(k / 32)]);
    case MDL_W_FP4:
        return (double)mdl_e2m1_table[((const uint8_t *)w->data)[at / 2] >> (at % 2 * 4) & 15] *
               (double)mdl_from_e8m0(w->scale[(size_t)n * blocks + (size_t)(k / 32)]);
    case MDL_W_BF16:
        return mdl_from_bf16(((const uint16_t *)w->data)[at]);
    default:
        return ((const float *)w->data)[at];
    }
}

static bool same(const void *a, const void *b, size_t floats)
{
    return !memcmp(a, b, floats * sizeof(float));
}

/* A sum of float32 values may be off by one rounding of half a unit per addition, relative to the sum of magnitudes. No
 * path adds more than k/16 values in a row in a lane, a block of 32, and then the lanes or blocks. */
static double bound(int k, double magnitude)
{
    return (k / 16 + 64) * 0x1p-24 * magnitude + 1e-35;
}

struct shape {
    int n, k;
};

static void check_definition(const struct mdl_backend *be, enum mdl_wkind kind, int n, int k)
{
    struct mdl_linear w = make_linear(kind, n, k);
    enum { ROWS = 7 };
    uint16_t *x = malloc((size_t)ROWS * (size_t)k * sizeof *x);
    float *y = malloc((size_t)ROWS * (size_t)n * sizeof *y);
    fill_bf16(x, (size_t)ROWS * (size_t)k);
    be->linear(&w, x, (size_t)k, ROWS, 0, n, y, (size_t)n);
    int wrong = 0;
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < n; i++) {
            double sum = 0, magnitude = 0;
            for (int c = 0; c < k; c++) {
                double p = weight(&w, i, c) * (double)mdl_from_bf16(x[(size_t)r * (size_t)k + (size_t)c]);
                sum += p;
                magnitude += fabs(p);
            }
            wrong += !(fabs((double)y[r * n + i] - sum) <= bound(k, magnitude));
        }
    cr_expect_eq(wrong, 0, "%s, kind %d, %d x %d: %d values beyond the bound", be->name, (int)kind, n, k, wrong);
    free(y);
    free(x);
    free_linear(&w);
}

Test(backend, linear_matches_definition)
{
    static const struct shape any[] = {{1, 32}, {5, 64}, {24, 96}, {33, 160}, {40, 2304}, {64, 1056}, {36, 5120}};
    static const struct shape odd[] = {{7, 1}, {6, 8}, {24, 40}, {9, 1000}, {3, 2081}};
    seed = 1;
    for (int p = 0; p < PATHS; p++) {
        const struct mdl_backend *be = path_at(p);
        for (int kind = MDL_W_FP8; be && kind <= MDL_W_F32; kind++) {
            for (size_t i = 0; i < sizeof any / sizeof *any; i++)
                check_definition(be, (enum mdl_wkind)kind, any[i].n, any[i].k);
            for (size_t i = 0; kind >= MDL_W_BF16 && i < sizeof odd / sizeof *odd; i++)
                check_definition(be, (enum mdl_wkind)kind, odd[i].n, odd[i].k);
        }
    }
}

/* Each row alone, against blocks of rows of every kind that a kernel may form; x and y with gaps between rows. */
static void check_rows(const struct mdl_backend *be, enum mdl_wkind kind, int n, int k)
{
    enum { ROWS = 103 };
    static const int splits[] = {103, 1, 2, 3, 4, 5, 6, 7, 12, 64, 97};
    struct mdl_linear w = make_linear(kind, n, k);
    size_t ldx = (size_t)k + 8, ldy = (size_t)n + 3;
    uint16_t *x = malloc(ROWS * ldx * sizeof *x);
    float *alone = malloc(ROWS * ldy * sizeof *alone), *y = malloc(ROWS * ldy * sizeof *y);
    fill_bf16(x, ROWS * ldx);
    memset(alone, 0, ROWS * ldy * sizeof *alone);
    for (int r = 0; r < ROWS; r++)
        be->linear(&w, x + (size_t)r * ldx, ldx, 1, 0, n, alone + (size_t)r * ldy, ldy);
    for (size_t s = 0; s < sizeof splits / sizeof *splits; s++) {
        memset(y, 0, ROWS * ldy * sizeof *y);
        for (int r = 0; r < ROWS; r += splits[s])
            be->linear(&w, x + (size_t)r * ldx, ldx, ROWS - r < splits[s] ? ROWS - r : splits[s], 0, n,
                       y + (size_t)r * ldy, ldy);
        cr_expect(same(alone, y, ROWS * ldy), "%s, kind %d, %d x %d: %d rows together differ from one", be->name,
                  (int)kind, n, k, splits[s]);
    }
    free(y);
    free(alone);
    free(x);
    free_linear(&w);
}

Test(backend, rows_together_equal_one_row)
{
    seed = 2;
    for (int p = 0; p < PATHS; p++) {
        const struct mdl_backend *be = path_at(p);
        for (int kind = MDL_W_FP8; be && kind <= MDL_W_F32; kind++) {
            check_rows(be, (enum mdl_wkind)kind, 33, 96);
            check_rows(be, (enum mdl_wkind)kind, 6, 1024);
            check_rows(be, (enum mdl_wkind)kind, 5, 2080);
        }
    }
}

/* The widths of the full-size network, 1 row against several. */
Test(backend, rows_together_equal_one_row_full_size)
{
    static const int widths[] = {5120, 1280, 2304, 8192, 15360, 6144, 20480};
    enum { ROWS = 13, N = 32 };
    seed = 3;
    for (int p = 1; p < PATHS; p++) {
        const struct mdl_backend *be = path_at(p);
        for (int kind = MDL_W_FP8; be && kind <= MDL_W_F32; kind++)
            for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
                int k = widths[i];
                struct mdl_linear w = make_linear((enum mdl_wkind)kind, N, k);
                uint16_t *x = malloc((size_t)ROWS * (size_t)k * sizeof *x);
                float alone[ROWS * N], y[ROWS * N];
                fill_bf16(x, (size_t)ROWS * (size_t)k);
                for (int r = 0; r < ROWS; r++)
                    be->linear(&w, x + (size_t)r * (size_t)k, (size_t)k, 1, 0, N, alone + r * N, N);
                be->linear(&w, x, (size_t)k, ROWS, 0, N, y, N);
                cr_expect(same(alone, y, ROWS * N), "%s, kind %d, width %d", be->name, kind, k);
                free(x);
                free_linear(&w);
            }
    }
}

Test(backend, gate_of_384_experts)
{
    enum { N = 384, K = 5120, ROWS = 5 };
    seed = 4;
    struct mdl_linear w = make_linear(MDL_W_BF16, N, K);
    uint16_t *x = malloc(ROWS * K * sizeof *x);
    float *y = malloc(ROWS * N * sizeof *y), *alone = malloc(N * sizeof *alone);
    fill_bf16(x, ROWS * K);
    for (int p = 0; p < PATHS; p++) {
        const struct mdl_backend *be = path_at(p);
        if (!be)
            continue;
        be->linear(&w, x, K, ROWS, 0, N, y, N);
        be->linear(&w, x + 4 * K, K, 1, 0, N, alone, N);
        cr_expect(same(y + (size_t)4 * N, alone, N), "%s", be->name);
    }
    free(alone);
    free(y);
    free(x);
    free_linear(&w);
}

Test(backend, tiles_equal_the_whole)
{
    enum { N = 150, K = 192, ROWS = 9 };
    seed = 5;
    for (int p = 0; p < PATHS; p++) {
        const struct mdl_backend *be = path_at(p);
        for (int kind = MDL_W_FP8; be && kind <= MDL_W_F32; kind++) {
            struct mdl_linear w = make_linear((enum mdl_wkind)kind, N, K);
            uint16_t x[ROWS * K];
            float whole[ROWS * N], y[ROWS * N];
            fill_bf16(x, ROWS * K);
            be->linear(&w, x, K, ROWS, 0, N, whole, N);
            for (int step = 32; step <= 96; step += 32) {
                memset(y, 0, sizeof y);
                for (int n0 = 0; n0 < N; n0 += step)
                    be->linear(&w, x, K, ROWS, n0, n0 + step < N ? n0 + step : N, y + n0, N);
                cr_expect(same(whole, y, ROWS * N), "%s, kind %d, tiles of %d", be->name, kind, step);
            }
            free_linear(&w);
        }
    }
}

Test(backend, threads_change_nothing)
{
    enum { N = 328, K = 320, ROWS = 70 };
    seed = 6;
    struct mdl_linear w = make_linear(MDL_W_FP8, N, K);
    uint16_t *x = malloc(ROWS * K * sizeof *x), *h = malloc(2 * ROWS * N * sizeof *h);
    float *y = malloc(2 * ROWS * N * sizeof *y);
    fill_bf16(x, ROWS * K);
    for (int p = 0; p < PATHS; p++) {
        struct mdl_exec ex = {.be = path_at(p)};
        for (int threads = 1; ex.be && threads <= 5; threads += 2) {
            struct cfg_error err;
            int at = threads > 1;
            cr_assert_eq(mdl_team_new(threads, &ex.team, &err), 0);
            mdl_linear_f32(&ex, &w, x, K, ROWS, y + at * ROWS * N, N);
            mdl_linear_bf16(&ex, &w, x, K, ROWS, h + at * ROWS * N, N);
            mdl_team_free(ex.team);
            cr_expect(same(y, y + at * ROWS * N, ROWS * N), "%s, %d threads", ex.be->name, threads);
            for (int i = 0; i < ROWS * N; i++)
                cr_assert_eq(h[at * ROWS * N + i], mdl_to_bf16(y[i]));
        }
    }
    free(y);
    free(h);
    free(x);
    free_linear(&w);
}

static bool same_or_nan(float a, float b)
{
    return mdl_bits(a) == mdl_bits(b) || (isnan(a) && isnan(b)) || (a == 0.0f && b == 0.0f);
}

/* One product per output, so every path must be exact: all codes, all scales (also those that leave bf16's range), both
 * kernels. */
Test(backend, every_code_and_scale_is_exact)
{
    enum { ROWS = 6 };
    uint16_t x[ROWS * 32] = {0};
    for (int r = 0; r < ROWS; r++)
        x[r * 32 + r] = mdl_to_bf16(1.0f);
    for (int p = 0; p < PATHS; p++) {
        const struct mdl_backend *be = path_at(p);
        for (int kind = MDL_W_FP8; be && kind <= MDL_W_FP4; kind++)
            for (int s = 0; s < 256; s++) {
                int codes = kind == MDL_W_FP8 ? 256 : 16, wrong = 0;
                uint8_t data[256 * 32] = {0}, scale[256];
                memset(scale, s, sizeof scale);
                for (int c = 0; c < codes; c++)
                    for (int r = 0; r < ROWS; r++) {
                        if (kind == MDL_W_FP8)
                            data[c * 32 + r] = (uint8_t)c;
                        else
                            data[(c * 32 + r) / 2] = (uint8_t)(c | c << 4);
                    }
                struct mdl_linear w = {(enum mdl_wkind)kind, codes, 32, data, scale};
                float y[ROWS * 256], one[256];
                be->linear(&w, x, 32, ROWS, 0, codes, y, 256);
                be->linear(&w, x, 32, 1, 0, codes, one, 256);
                for (int c = 0; c < codes; c++) {
                    float code = kind == MDL_W_FP8 ? mdl_e4m3_table[c] : mdl_e2m1_table[c];
                    /* The other five products of the block are zero times the code: NaN for a NaN. */
                    float want = code * mdl_from_e8m0((uint8_t)s);
                    wrong += !same_or_nan(one[c], want);
                    for (int r = 0; r < ROWS; r++)
                        wrong += !same_or_nan(y[r * 256 + c], want);
                }
                cr_expect_eq(wrong, 0, "%s, kind %d, scale %d: %d wrong", be->name, kind, s, wrong);
            }
    }
}

/* A scale outside the range that a bf16 weight can take, amid ordinary ones. */
Test(backend, extreme_scales_keep_the_order)
{
    enum { N = 36, K = 160, ROWS = 6 };
    static const uint8_t extreme[] = {0, 1, 9, 247, 252};
    seed = 7;
    for (int p = 0; p < PATHS; p++) {
        const struct mdl_backend *be = path_at(p);
        for (int kind = MDL_W_FP8; be && kind <= MDL_W_FP4; kind++)
            for (size_t e = 0; e < sizeof extreme; e++) {
                struct mdl_linear w = make_linear((enum mdl_wkind)kind, N, K);
                uint16_t x[ROWS * K];
                float y[ROWS * N], one[N], before[N];
                fill_bf16(x, sizeof x / sizeof *x);
                be->linear(&w, x, K, 1, 0, N, before, N);
                ((uint8_t *)w.scale)[2] = extreme[e];
                be->linear(&w, x, K, ROWS, 0, N, y, N);
                for (int r = 0; r < ROWS; r++) {
                    be->linear(&w, x + r * K, K, 1, 0, N, one, N);
                    cr_expect(same(one, y + r * N, N), "%s, kind %d, scale %d, row %d", be->name, kind, extreme[e], r);
                }
                /* A block scaled below 2^-117 adds nothing that counts. */
                int wrong = 0;
                for (int n = 0; extreme[e] < 127 && n < N; n++) {
                    double sum = 0, magnitude = 0;
                    for (int k = 0; k < K; k++) {
                        double v = weight(&w, n, k) * (double)mdl_from_bf16(x[k]);
                        sum += v;
                        magnitude += fabs(v);
                    }
                    wrong += !(fabs((double)y[n] - sum) <= bound(K, magnitude));
                }
                cr_expect_eq(wrong, 0, "%s, kind %d, scale %d: %d beyond the bound", be->name, kind, extreme[e], wrong);
                /* Rows of other scale blocks are as before. */
                int other = kind == MDL_W_FP8 ? 32 : 1;
                cr_expect(same(before + other, y + other, (size_t)(N - other)));
                free_linear(&w);
            }
    }
}

/* Inputs that leave bf16's range when a scale is multiplied into them, and subnormal ones, among ordinary ones. */
Test(backend, extreme_inputs_keep_the_order)
{
    enum { N = 40, K = 160, ROWS = 6 };
    static const uint32_t extreme[] = {0x03800000u, 0x00800000u, 0x00010000u, 0x7e800000u, 0x80810000u};
    seed = 15;
    for (int p = 0; p < PATHS; p++) {
        const struct mdl_backend *be = path_at(p);
        for (int kind = MDL_W_FP8; be && kind <= MDL_W_F32; kind++)
            for (size_t e = 0; e < sizeof extreme / sizeof *extreme; e++) {
                struct mdl_linear w = make_linear((enum mdl_wkind)kind, N, K);
                uint16_t x[ROWS * K];
                float y[ROWS * N], one[N];
                fill_bf16(x, sizeof x / sizeof *x);
                for (int i = 0; i < ROWS * K; i += 37)
                    x[i] = (uint16_t)(extreme[e] >> 16);
                if (w.scale)
                    memset((void *)w.scale, extreme[e] >> 24 == 0x7e ? 135 : 100,
                           kind == MDL_W_FP8 ? N / 32 * K / 32 : K / 32);
                be->linear(&w, x, K, ROWS, 0, N, y, N);
                for (int r = 0; r < ROWS; r++) {
                    be->linear(&w, x + r * K, K, 1, 0, N, one, N);
                    cr_expect(same(one, y + r * N, N), "%s, kind %d, input %zu, row %d", be->name, kind, e, r);
                }
                free_linear(&w);
            }
    }
}

Test(backend, dots)
{
    static const int dims[] = {32, 64, 96, 512}, counts[] = {0, 1, 3, 4, 9, 38, 640};
    enum { HEADS = 7, KEYS = 640, LDS = KEYS + 5 };
    seed = 8;
    uint16_t *keys = malloc(KEYS * 512 * sizeof *keys), q[HEADS * 512];
    float *s = malloc(HEADS * LDS * sizeof *s), one;
    for (int p = 0; p < PATHS; p++) {
        const struct mdl_backend *be = path_at(p);
        for (size_t d = 0; be && d < 4; d++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                int dim = dims[d], n = counts[c], wrong = 0, differ = 0;
                fill_bf16(keys, (size_t)(n * dim));
                fill_bf16(q, HEADS * 512);
                be->dots(q, HEADS, keys, n, dim, s, LDS);
                for (int h = 0; h < HEADS; h++)
                    for (int i = 0; i < n; i++) {
                        double sum = 0, magnitude = 0;
                        for (int k = 0; k < dim; k++) {
                            double v = (double)mdl_from_bf16(q[h * dim + k]) * (double)mdl_from_bf16(keys[i * dim + k]);
                            sum += v;
                            magnitude += fabs(v);
                        }
                        wrong += !(fabs((double)s[h * LDS + i] - sum) <= bound(dim, magnitude) * 8);
                        be->dots(q + h * dim, 1, keys + i * dim, 1, dim, &one, 1);
                        differ += !same(&one, &s[h * LDS + i], 1);
                    }
                cr_expect_eq(wrong, 0, "%s, dim %d, %d keys: %d beyond the bound", be->name, dim, n, wrong);
                cr_expect_eq(differ, 0, "%s, dim %d, %d keys: %d differ from a call of their own", be->name, dim, n,
                             differ);
            }
    }
    free(s);
    free(keys);
}

/* All but the sum has the same bits in every path. */
Test(backend, softmax)
{
    static float s[5000], want[5000];
    seed = 11;
    for (int p = 0; p < PATHS; p++) {
        const struct mdl_backend *be = path_at(p);
        for (int n = 1; be && n <= 5000; n = n < 40 ? n + 1 : n * 3) {
            float scale = 0.0442f * (float)(1 + n % 3), most = -INFINITY, top;
            double sum = 0;
            for (int i = 0; i < n; i++) {
                s[i] = uniform() * 400.0f;
                want[i] = s[i] * scale;
                most = fmaxf(most, want[i]);
            }
            for (int i = 0; i < n; i++) {
                float e = mdl_expf(want[i] - most);
                sum += (double)e;
                want[i] = mdl_round_bf16(e);
            }
            float got = be->softmax(s, n, scale, &top);
            cr_expect(same(s, want, (size_t)n), "%s, %d values", be->name, n);
            cr_expect_eq(top, most, "%s, %d values: the largest", be->name, n);
            cr_expect_lt(fabs((double)got / sum - 1.0), n * 0x1p-24, "%s, %d values: sum", be->name, n);
        }
    }
}

/* The exponential in it, over steps of a prime through all bit patterns below zero. */
Test(backend, softmax_exponential_equals_scalar)
{
    enum { N = 65521 };
    static float x[N], want[N];
    for (int p = 0; p < PATHS; p++) {
        const struct mdl_backend *be = path_at(p);
        for (uint32_t round = 0; be && round < 4; round++) {
            x[0] = want[0] = 0.0f;
            for (uint32_t i = 1; i < N; i++)
                x[i] = want[i] = mdl_float(0x80000000u | (i * 32767u + round * 8191u) % 0x7f800001u);
            if (round == 3) /* where the results are neither 0 nor 1 */
                for (uint32_t i = 1; i < N; i++)
                    x[i] = want[i] = (float)i * -0.0016f;
            for (uint32_t i = 0; i < N; i++)
                want[i] = mdl_round_bf16(mdl_expf(want[i]));
            float top;
            be->softmax(x, N, 1.0f, &top);
            cr_expect(same(x, want, N), "%s, round %u", be->name, round);
        }
    }
}

/* Keys one after the other in every path, so the bits are the scalar ones. */
Test(backend, values_equal_scalar)
{
    static const int dims[] = {32, 64, 288, 512};
    enum { HEADS = 6, KEYS = 200, LDP = 203 };
    seed = 9;
    uint16_t *keys = malloc(KEYS * 512 * sizeof *keys), *a = malloc(2 * HEADS * 512 * sizeof *a), *b = a + HEADS * 512;
    float weights[HEADS * LDP], den[HEADS];
    for (int p = 0; p < PATHS; p++) {
        const struct mdl_backend *be = path_at(p);
        for (size_t d = 0; be && d < sizeof dims / sizeof *dims; d++)
            for (int n = 0; n <= KEYS; n += 50) {
                int dim = dims[d], wrong = 0;
                fill_bf16(keys, (size_t)(n * dim));
                for (int i = 0; i < HEADS * LDP; i++)
                    weights[i] = mdl_round_bf16(fabsf(uniform()));
                for (int i = 0; i < HEADS; i++)
                    den[i] = 1.0f + fabsf(uniform()) * 100.0f;
                be->values(weights, LDP, den, HEADS, keys, n, dim, a);
                mdl_backend_scalar.values(weights, LDP, den, HEADS, keys, n, dim, b);
                cr_expect_arr_eq(a, b, (size_t)(HEADS * dim) * sizeof *a, "%s, dim %d, %d keys", be->name, dim, n);
                for (int h = 0; h < HEADS; h++)
                    for (int c = 0; c < dim; c++) {
                        double sum = 0, magnitude = 0;
                        for (int i = 0; i < n; i++) {
                            double v = (double)weights[h * LDP + i] * (double)mdl_from_bf16(keys[i * dim + c]);
                            sum += v;
                            magnitude += fabs(v);
                        }
                        double got = mdl_from_bf16(a[h * dim + c]), at = sum / (double)den[h];
                        wrong +=
                            !(fabs(got - at) <= fabs(at) * 0x1.01p-8 + (n + 1) * 0x1p-24 * magnitude / (double)den[h]);
                    }
                cr_expect_eq(wrong, 0, "%s, dim %d, %d keys: %d values wrong", be->name, dim, n, wrong);
            }
    }
    free(a);
    free(keys);
}

Test(backend, index_scores)
{
    static const struct {
        int heads, dim;
    } shapes[] = {{32, 128}, {2, 32}, {5, 96}, {4, 512}};
    enum { N = 53 };
    seed = 10;
    for (int p = 0; p < PATHS; p++) {
        const struct mdl_backend *be = path_at(p);
        for (size_t i = 0; be && i < sizeof shapes / sizeof *shapes; i++) {
            int heads = shapes[i].heads, dim = shapes[i].dim, wrong = 0, differ = 0;
            uint16_t q[32 * 128], key[512];
            uint8_t codes[N * 256], scales[N * 16];
            float w[32], score[N], one;
            fill_bf16(q, (size_t)(heads * dim));
            for (int k = 0; k < N * dim / 2; k++)
                codes[k] = (uint8_t)rnd();
            for (int k = 0; k < N * dim / 32; k++)
                scales[k] = (uint8_t)(rnd() % 8 ? 118 + rnd() % 10 : 2 + rnd() % 10); /* also very small ones */
            for (int h = 0; h < heads; h++)
                w[h] = uniform();
            be->index_scores(q, w, heads, dim, codes, scales, N, score);
            for (int j = 0; j < N; j++) {
                mdl_dequant_q4i(codes + j * dim / 2, scales + j * dim / 32, dim, key);
                double total = 0, magnitude = 0;
                for (int h = 0; h < heads; h++) {
                    double sum = 0;
                    for (int c = 0; c < dim; c++) {
                        double v = (double)mdl_from_bf16(q[h * dim + c]) * (double)mdl_from_bf16(key[c]);
                        sum += v;
                        magnitude += fabs(v) * fabs((double)w[h]);
                    }
                    total += (sum > 0 ? sum : 0) * (double)w[h];
                }
                wrong += !(fabs((double)score[j] - total) <= bound(dim, magnitude) * 8);
                be->index_scores(q, w, heads, dim, codes + j * dim / 2, scales + j * dim / 32, 1, &one);
                differ += !same(&one, &score[j], 1);
            }
            cr_expect_eq(wrong, 0, "%s, %d x %d: %d beyond the bound", be->name, heads, dim, wrong);
            cr_expect_eq(differ, 0, "%s, %d x %d: %d differ from a call of their own", be->name, heads, dim, differ);
        }
    }
}

static int count_unlike(const uint16_t *a, const uint16_t *b, int n)
{
    int unlike = 0;
    for (int i = 0; i < n; i++)
        unlike += a[i] != b[i] && !(isnan(mdl_from_bf16(a[i])) && isnan(mdl_from_bf16(b[i])));
    return unlike;
}

Test(backend, stored_rows_decode_as_scalar)
{
    uint8_t codes[256], scales[16];
    uint16_t a[512], b[512];
    for (int i = 0; i < 256; i++)
        codes[i] = (uint8_t)i;
    for (int p = 1; p < PATHS; p++) {
        const struct mdl_backend *be = path_at(p);
        for (int s = 0; be && s < 256; s++) {
            memset(scales, s, sizeof scales);
            scales[0] = (uint8_t)~s;
            be->dequant_q8(codes, scales, 256, a);
            mdl_dequant_q8(codes, scales, 256, b);
            cr_expect_eq(count_unlike(a, b, 256), 0, "%s, q8, scale %d", be->name, s);
            be->dequant_q4k(codes, scales, 256, a);
            mdl_dequant_q4k(codes, scales, 256, b);
            be->dequant_q4k(codes + 128, scales, 256, a + 256);
            mdl_dequant_q4k(codes + 128, scales, 256, b + 256);
            cr_expect_eq(count_unlike(a, b, 512), 0, "%s, q4k, scale %d", be->name, s);
        }
    }
}

/* Rows of every width that a loop may split, NaN-free; each path must give the scalar bits. */
Test(backend, element_wise_rows_equal_scalar)
{
    enum { WIDEST = 1003 };
    static const int widths[] = {1, 7, 8, 15, 16, 24, 33, 96, 192, WIDEST};
    static uint16_t x[4 * WIDEST], w[WIDEST], a[4 * WIDEST], b[4 * WIDEST];
    const struct mdl_backend *scalar = &mdl_backend_scalar;
    float p[4], comb[16];
    seed = 12;
    for (int path = 1; path < PATHS; path++) {
        const struct mdl_backend *be = path_at(path);
        for (size_t i = 0; be && i < sizeof widths / sizeof *widths; i++) {
            int n = widths[i];
            size_t row = (size_t)n * sizeof *x;
            fill_bf16(x, 4 * WIDEST);
            fill_bf16(w, WIDEST);
            for (int k = 0; k < 16; k++)
                comb[k] = p[k % 4] = uniform();
            cr_expect(be->mean_square(x, n) == scalar->mean_square(x, n), "mean_square, %d", n);
            be->rms_scale(x, w, 1.7f, n, a);
            scalar->rms_scale(x, w, 1.7f, n, b);
            cr_expect_arr_eq(a, b, row, "rms_scale, %d", n);
            be->collapse(x, p, n, a);
            scalar->collapse(x, p, n, b);
            cr_expect_arr_eq(a, b, row, "collapse, %d", n);
            memcpy(a, x, sizeof a);
            memcpy(b, x, sizeof b);
            be->expand(w, p, comb, n, a);
            scalar->expand(w, p, comb, n, b);
            cr_expect_arr_eq(a, b, sizeof a, "expand, %d", n);
            for (float limit = 0.5f; limit < 20.0f; limit *= 4.0f) {
                be->swiglu(x, w, limit, 0.37f, n, a);
                scalar->swiglu(x, w, limit, 0.37f, n, b);
                cr_expect_arr_eq(a, b, row, "swiglu, %d", n);
            }
        }
    }
}

/* Every finite bf16 value through the quantisers and the activation. */
Test(backend, every_value_quantises_as_scalar)
{
    enum { N = 0x10000 };
    static uint16_t x[N], a[N], b[N];
    static uint8_t codes[2][N], scales[2][N / 32];
    seed = 13;
    for (int p = 1; p < PATHS; p++) {
        const struct mdl_backend *be = path_at(p);
        /* In order, so that groups hold like values; then with one value that sets the scale; then shuffled. */
        for (int round = 0; be && round < 4; round++) {
            for (int i = 0; i < N; i++) {
                uint32_t v = round == 3 ? rnd() & 0xffff : (uint32_t)i;
                if (round == 1 || round == 2)
                    v = i % 32 == 5 ? 0x3f80u + (uint32_t)(i / 32 % 7 * 0x33)
                                    : (v & 0x8000) | (0x3f80u - (v & 0x7fff) % 0x780);
                if (round == 2 && i % 32 != 5)
                    v = (v & 0x8000) | rnd() % 0x3f80;
                x[i] = (v & 0x7fff) < 0x7f80 ? (uint16_t)v : 0;
            }
            be->quant_q8(x, N, codes[0], scales[0]);
            mdl_quant_q8(x, N, codes[1], scales[1]);
            cr_expect_arr_eq(codes[0], codes[1], N, "%s, round %d: codes", be->name, round);
            cr_expect_arr_eq(scales[0], scales[1], N / 32, "%s, round %d: scales", be->name, round);
            be->fakequant_q8(x, N, a);
            mdl_fakequant_q8(x, N, b);
            cr_expect_arr_eq(a, b, sizeof a, "%s, round %d: values", be->name, round);
            be->fakequant_q8(x, N, x);
            cr_expect_arr_eq(x, b, sizeof x, "%s, round %d: in place", be->name, round);
        }
        for (int i = 0; be && i < N; i++)
            x[i] = (i & 0x7fff) < 0x7f80 ? (uint16_t)i : 0;
        if (!be)
            continue;
        be->swiglu(x, x, 7.0f, 1.0f, N, a);
        mdl_backend_scalar.swiglu(x, x, 7.0f, 1.0f, N, b);
        cr_expect_arr_eq(a, b, sizeof a, "%s: activation", be->name);
    }
}

/* Against the definition; the paths among each other are compared above. */
Test(backend, rms_norm)
{
    enum { N = 1003 };
    uint16_t x[N], w[N], y[N];
    seed = 14;
    fill_bf16(x, N);
    fill_bf16(w, N);
    double sum = 0;
    for (int i = 0; i < N; i++)
        sum += (double)mdl_from_bf16(x[i]) * (double)mdl_from_bf16(x[i]);
    cr_expect_lt(fabs(mdl_backend_scalar.mean_square(x, N) / (sum / N) - 1.0), 1e-14);
    mdl_rms_row(&mdl_backend_scalar, x, w, N, 1e-6f, y);
    for (int i = 0; i < N; i++) {
        double want = (double)mdl_from_bf16(w[i]) * (double)mdl_from_bf16(x[i]) / sqrt(sum / N + 1e-6);
        cr_expect_lt(fabs((double)mdl_from_bf16(y[i]) - want), fabs(want) * 0x1.02p-8 + 1e-30, "element %d", i);
    }
    mdl_rms_row(&mdl_backend_scalar, x, w, N, 1e-6f, x);
    cr_expect_arr_eq(x, y, sizeof x, "in place");
}

Test(backend, choice_of_path)
{
    const struct mdl_backend *be;
    struct cfg_error err = {""};
    cr_assert_eq(mdl_backend_select("scalar", &be, &err), 0);
    cr_assert_eq(be, &mdl_backend_scalar);
    cr_assert_eq(mdl_backend_select(NULL, &be, &err), 0);
    cr_assert_not_null(be);
    cr_assert_eq(mdl_backend_select("", &be, &err), 0);
    const struct mdl_backend *best = be;
    cr_assert_eq(mdl_backend_select("sse9", &be, &err), -EINVAL);
    cr_assert_not_null(strstr(err.msg, "sse9"));
    cr_assert_null(be);
    for (int p = PATHS - 1; p >= 0; p--) {
        err.msg[0] = 0;
        int r = mdl_backend_select(path_names[p], &be, &err);
        cr_assert(r == 0 || r == -ENOTSUP);
        if (r)
            cr_expect_not_null(strstr(err.msg, path_names[p]));
        if (r == 0) {
            cr_expect_eq(be, best, "the default is the best path of the machine");
            break;
        }
    }
}
