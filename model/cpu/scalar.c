/* The scalar path: plain C in the order in which the network's definition is written. The reference for every other
 * path and the one that runs on any machine. */
#include <math.h>

#include "model/backend.h"
#include "model/numerics.h"

static float weight_at(const struct mdl_linear *w, size_t row, int k)
{
    switch (w->kind) {
    case MDL_W_FP8:
        return mdl_e4m3_table[((const uint8_t *)w->data)[row * (size_t)w->k + (size_t)k]];
    case MDL_W_FP4: {
        uint8_t b = ((const uint8_t *)w->data)[(row * (size_t)w->k + (size_t)k) / 2];
        return mdl_e2m1_table[k & 1 ? b >> 4 : b & 15];
    }
    case MDL_W_BF16:
        return mdl_from_bf16(((const uint16_t *)w->data)[row * (size_t)w->k + (size_t)k]);
    default:
        return ((const float *)w->data)[row * (size_t)w->k + (size_t)k];
    }
}

static float block_scale(const struct mdl_linear *w, size_t row, int kb)
{
    size_t blocks = (size_t)w->k / 32;
    if (w->kind == MDL_W_FP8)
        return mdl_from_e8m0(w->scale[row / 32 * blocks + (size_t)kb]);
    if (w->kind == MDL_W_FP4)
        return mdl_from_e8m0(w->scale[row * blocks + (size_t)kb]);
    return 1.0f;
}

static void scalar_linear(const struct mdl_linear *w, const uint16_t *x, size_t ldx, int rows, int n0, int n1, float *y,
                          size_t ldy)
{
    for (int n = n0; n < n1; n++) {
        for (int r = 0; r < rows; r++)
            y[(size_t)r * ldy + (size_t)(n - n0)] = 0.0f;
        for (int kb = 0; kb * 32 < w->k; kb++) {
            int len = w->k - kb * 32 < 32 ? w->k - kb * 32 : 32;
            float wv[32], scale = block_scale(w, (size_t)n, kb);
            for (int k = 0; k < len; k++)
                wv[k] = weight_at(w, (size_t)n, kb * 32 + k);
            for (int r = 0; r < rows; r++) {
                const uint16_t *xr = x + (size_t)r * ldx + kb * 32;
                float sum = 0.0f;
                for (int k = 0; k < len; k++)
                    sum += mdl_from_bf16(xr[k]) * wv[k];
                y[(size_t)r * ldy + (size_t)(n - n0)] += sum * scale;
            }
        }
    }
}

static void scalar_dots(const uint16_t *q, int heads, const uint16_t *keys, int n, int dim, float *s, size_t lds)
{
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < n; i++) {
            const uint16_t *key = keys + (size_t)i * (size_t)dim, *qh = q + (size_t)h * (size_t)dim;
            float sum = 0.0f;
            for (int c = 0; c < dim; c++)
                sum += mdl_from_bf16(qh[c]) * mdl_from_bf16(key[c]);
            s[(size_t)h * lds + (size_t)i] = sum;
        }
}

static float scalar_softmax(float *s, int n, float scale, float *top)
{
    float most = -INFINITY, sum = 0.0f;
    for (int i = 0; i < n; i++) {
        s[i] *= scale;
        most = s[i] > most ? s[i] : most;
    }
    for (int i = 0; i < n; i++) {
        float e = mdl_expf(s[i] - most);
        sum += e;
        s[i] = mdl_round_bf16(e);
    }
    *top = most;
    return sum;
}

static void scalar_values(const float *p, size_t ldp, const float *den, int heads, const uint16_t *keys, int n, int dim,
                          uint16_t *o)
{
    for (int h = 0; h < heads; h++)
        for (int c0 = 0; c0 < dim; c0 += 32) {
            float acc[32] = {0};
            for (int i = 0; i < n; i++)
                for (int c = 0; c < 32; c++)
                    acc[c] += p[(size_t)h * ldp + (size_t)i] *
                              mdl_from_bf16(keys[(size_t)i * (size_t)dim + (size_t)(c0 + c)]);
            for (int c = 0; c < 32; c++)
                o[(size_t)h * (size_t)dim + (size_t)(c0 + c)] = mdl_to_bf16(acc[c] / den[h]);
        }
}

static void scalar_index_scores(const uint16_t *q, const float *weight, int heads, int dim, const uint8_t *codes,
                                const uint8_t *scales, int n, float *score)
{
    uint16_t key[MDL_MAX_INDEX_DIM];
    for (int j = 0; j < n; j++) {
        mdl_dequant_q4i(codes + (size_t)j * (size_t)(dim / 2), scales + (size_t)j * (size_t)(dim / 32), dim, key);
        float total = 0.0f;
        for (int h = 0; h < heads; h++) {
            float sum = 0.0f;
            for (int c = 0; c < dim; c++)
                sum += mdl_from_bf16(q[h * dim + c]) * mdl_from_bf16(key[c]);
            total += (sum > 0.0f ? sum : 0.0f) * weight[h];
        }
        score[j] = total;
    }
}

static double scalar_mean_square(const uint16_t *x, int n)
{
    double s[8] = {0};
    for (int i = 0; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) {
            double v = mdl_from_bf16(x[i + k]);
            s[k] += v * v;
        }
    for (int i = n & ~7; i < n; i++) {
        double v = mdl_from_bf16(x[i]);
        s[i & 7] += v * v;
    }
    return (((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))) / n;
}

static void scalar_rms_scale(const uint16_t *x, const uint16_t *w, float inv, int n, uint16_t *y)
{
    for (int i = 0; i < n; i++)
        y[i] = mdl_to_bf16(mdl_from_bf16(w[i]) * (mdl_from_bf16(x[i]) * inv));
}

static void scalar_swiglu(const uint16_t *gate, const uint16_t *up, float limit, float weight, int n, uint16_t *h)
{
    for (int i = 0; i < n; i++) {
        float a = mdl_from_bf16(gate[i]), b = mdl_from_bf16(up[i]);
        a = a > limit ? limit : a;
        b = b > limit ? limit : b < -limit ? -limit : b;
        float silu = a / (1.0f + mdl_expf(-a));
        h[i] = mdl_to_bf16(weight * (silu * b));
    }
}

static void scalar_collapse(const uint16_t *x, const float *p, int d, uint16_t *u)
{
    for (int k = 0; k < d; k++) {
        float s = p[0] * mdl_from_bf16(x[k]);
        for (int c = 1; c < 4; c++)
            s += p[c] * mdl_from_bf16(x[c * d + k]);
        u[k] = mdl_to_bf16(s);
    }
}

static void scalar_expand(const uint16_t *v, const float *post, const float *comb, int d, uint16_t *x)
{
    for (int k = 0; k < d; k++) {
        float old[4];
        for (int c = 0; c < 4; c++)
            old[c] = mdl_from_bf16(x[c * d + k]);
        for (int c = 0; c < 4; c++) {
            float s = comb[c] * old[0];
            for (int from = 1; from < 4; from++)
                s += comb[from * 4 + c] * old[from];
            x[c * d + k] = mdl_to_bf16(post[c] * mdl_from_bf16(v[k]) + s);
        }
    }
}

const struct mdl_backend mdl_backend_scalar = {
    .name = "scalar",
    .linear = scalar_linear,
    .dots = scalar_dots,
    .softmax = scalar_softmax,
    .values = scalar_values,
    .index_scores = scalar_index_scores,
    .dequant_q8 = mdl_dequant_q8,
    .dequant_q4k = mdl_dequant_q4k,
    .quant_q8 = mdl_quant_q8,
    .fakequant_q8 = mdl_fakequant_q8,
    .mean_square = scalar_mean_square,
    .rms_scale = scalar_rms_scale,
    .swiglu = scalar_swiglu,
    .collapse = scalar_collapse,
    .expand = scalar_expand,
};
