/* Training kernels for the tiny checkpoint: fused forward and hand-written backward passes, all in
 * f32, row-major, single-threaded (the trainer runs one process per core).
 *
 * The global flag `quant` selects the numerics of the network's specification: bf16 rounding of
 * activations and fake-quantisation of activations and KV rows. With it off everything is plain
 * f32. Every quantiser is straight-through: the backward passes ignore all rounding.
 *
 * Convention: `g_*` arguments of backward kernels are accumulated into when they belong to
 * parameters (the caller owns zeroing) and overwritten when they belong to activations, unless a
 * comment says otherwise. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t i32;
#define EPS 1e-20f
#define HC 4
#define HC_EPS 1e-6f
#define SINKHORN 19

static int quant = 0;
void set_quant(int on) { quant = on; }

/* ---- rounding and number formats ------------------------------------------------------------ */
static inline uint32_t bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static inline float unbits(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
static inline float bf(float x) {
    uint32_t u = bits(x);
    return unbits((u + 0x7fffu + ((u >> 16) & 1)) & 0xffff0000u);
}
static inline float rb(float x) { return quant ? bf(x) : x; }
/* 2^ceil(log2 x) for positive normal x. */
static inline float p2ceil(float x) {
    uint32_t u = bits(x);
    return unbits((u & 0x7fffffu) ? ((u >> 23) + 1) << 23 : u);
}
static inline float e4m3(float x) {
    float a = fabsf(x) < 448.f ? fabsf(x) : 448.f;
    /* step = 2^(max(exponent, -6) - 3); adding and removing 2^23 * step rounds to nearest even */
    int32_t e = (int32_t)(bits(a) >> 23);
    e = e < 121 ? 121 : e;
    float magic = unbits((uint32_t)(e - 3 + 23) << 23);
    volatile float r = a + magic;
    return copysignf(r - magic, x);
}
static inline float e2m1(float x) {
    float a = fabsf(x);
    float r = a <= .25f ? 0 : a < .75f ? .5f : a <= 1.25f ? 1 : a < 1.75f ? 1.5f : a <= 2.5f ? 2
            : a < 3.5f ? 3 : a <= 5 ? 4 : 6;
    return copysignf(r, x);
}
/* vectorisable E4M3 rounding by integer arithmetic on the f32 pattern (normal range of E4M3), with
 * the magic-number form for E4M3 subnormals */
static inline float e4m3v(float x) {
    uint32_t u = bits(x), s = u & 0x80000000u, a = u & 0x7fffffffu;
    uint32_t r = (a + 0x7ffffu + ((a >> 20) & 1)) & 0xfff00000u;
    r = r > 0x43e00000u ? 0x43e00000u : r;
    /* below 2^-6 the step is 2^-9: round a * 2^9 to an integer */
    float sub = (float)(int32_t)(unbits(a) * 512.f);
    float fr = unbits(a) * 512.f - sub;
    int32_t odd = (int32_t)sub & 1;
    sub += (fr > .5f || (fr == .5f && odd)) ? 1.f : 0.f;
    float res = a < 0x3c800000u ? sub * (1.f / 512.f) : unbits(r);
    return unbits(bits(res) | s);
}
static void q8_row(const float *x, float *y, int n) {
    for (int b = 0; b < n; b += 32) {
        float am = 1e-4f;
        for (int i = 0; i < 32; i++) { float a = fabsf(x[b + i]); am = a > am ? a : am; }
        float s = p2ceil(am * (1.f / 448.f)), inv = 1.f / s;
        for (int i = 0; i < 32; i++) y[b + i] = e4m3v(x[b + i] * inv) * s;
    }
}
static void q4i_row(const float *x, float *y, int n) {
    for (int b = 0; b < n; b += 32) {
        float am = 6.f * 0x1p-126f;
        for (int i = 0; i < 32; i++) { float a = fabsf(x[b + i]); am = a > am ? a : am; }
        float s = p2ceil(am * (1.f / 6.f)), inv = 1.f / s;
        for (int i = 0; i < 32; i++) y[b + i] = e2m1(x[b + i] * inv) * s;
    }
}
static void q4k_row(const float *x, float *y, int n) {
    for (int b = 0; b < n; b += 16) {
        float am = 6.f * 0x1p-9f;
        for (int i = 0; i < 16; i++) { float a = fabsf(x[b + i]); am = a > am ? a : am; }
        volatile float six = 6.f;
        float s = e4m3(am / six);
        for (int i = 0; i < 16; i++) y[b + i] = e2m1(x[b + i] / s) * s;
    }
}
enum { Q_NONE, Q_8, Q_4K, Q_4I };
static void quant_row(int kind, float *x, int n) {
    if (!quant) return;
    if (kind == Q_8) q8_row(x, x, n);
    if (kind == Q_4K) q4k_row(x, x, n);
    if (kind == Q_4I) q4i_row(x, x, n);
}
/* y = fakequant_q8(x) when quantising, else a copy */
void k_q8(const float *x, float *y, i32 rows, i32 n) {
    for (long t = 0; t < rows; t++)
        if (quant) q8_row(x + t * n, y + t * n, n);
        else memcpy(y + t * n, x + t * n, sizeof(float) * (size_t)n);
}
void k_round(float *x, int64_t n) {
    if (quant) for (int64_t i = 0; i < n; i++) x[i] = bf(x[i]);
}

/* Weight quantisers (always on): master f32 -> value actually used and exported.
 * kind 0: f32 copy, 1: bf16, 2: E4M3 with 32x32 E8M0 tiles, 3: E2M1 with 1x32 E8M0,
 * 4: E4M3 with 1x32 E8M0. codes/scales may be NULL (training) or receive the exported bytes. */
static uint8_t code8(float v) { /* v is an E4M3 value */
    uint32_t u = bits(v), s = (u >> 24) & 0x80u;
    float a = fabsf(v);
    if (a < 0x1p-6f) return (uint8_t)(s | (uint32_t)(a * 512.f));
    return (uint8_t)(s | (((u >> 23) & 0xff) - 120) << 3 | ((u >> 20) & 7));
}
static uint8_t code4(float v) {
    static const float t[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    uint8_t c = 0;
    while (t[c] != fabsf(v)) c++;
    return (uint8_t)(c | (bits(v) >> 31 ? 8 : 0));
}
void k_weight(int kind, const float *w, float *y, i32 N, i32 K, uint8_t *codes, uint8_t *scales) {
    if (kind == 0) { memcpy(y, w, sizeof(float) * (size_t)N * (size_t)K); return; }
    if (kind == 1) { for (long i = 0; i < (long)N * K; i++) y[i] = bf(w[i]); return; }
    int tr = kind == 2 ? 32 : 1;
    for (int n0 = 0; n0 < N; n0 += tr)
        for (int k0 = 0; k0 < K; k0 += 32) {
            int n1 = n0 + tr < N ? n0 + tr : N;
            float am = 1e-12f;
            for (int n = n0; n < n1; n++)
                for (int k = k0; k < k0 + 32; k++) {
                    float a = fabsf(w[(long)n * K + k]);
                    am = a > am ? a : am;
                }
            float s = p2ceil(am * (kind == 3 ? 1.f / 6.f : 1.f / 448.f)), inv = 1.f / s;
            if (scales) scales[(long)(n0 / tr) * (K / 32) + k0 / 32] = (uint8_t)(bits(s) >> 23);
            for (int n = n0; n < n1; n++) {
                const float *wr = w + (long)n * K + k0;
                float *yr = y + (long)n * K + k0;
                for (int k = 0; k < 32; k++) {
                    float c = kind == 3 ? e2m1(wr[k] * inv) : e4m3v(wr[k] * inv);
                    yr[k] = c * s;
                    if (!codes) continue;
                    long i = (long)n * K + k0 + k;
                    if (kind != 3) codes[i] = code8(c);
                    else if (i & 1) codes[i / 2] |= (uint8_t)(code4(c) << 4);
                    else codes[i / 2] = code4(c);
                }
            }
        }
}

/* ---- elementary functions ------------------------------------------------------------------- */
/* exp by exponent insertion and a degree-6 polynomial: gcc does not vectorise expf itself. */
static inline float ex(float x) {
    x = x < -87.f ? -87.f : x > 88.f ? 88.f : x;
    float t = x * 1.44269504089f, n = (float)(int)(t + (t < 0 ? -.5f : .5f)), f = t - n;
    float p = 1.5403530e-4f;
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.f;
    return p * unbits((uint32_t)((int)n + 127) << 23);
}
static inline float sigm(float x) { return 1.f / (1.f + expf(-x)); }

/* ---- RMS norm ------------------------------------------------------------------------------- */
static void rms_row(const float *x, const float *w, float *y, int n) {
    float s = 0;
    for (int i = 0; i < n; i++) s += x[i] * x[i];
    float r = 1.f / sqrtf(s / (float)n + EPS);
    if (quant) for (int i = 0; i < n; i++) y[i] = bf(w[i] * (x[i] * r));
    else for (int i = 0; i < n; i++) y[i] = w[i] * (x[i] * r);
}
static void rms_row_bwd(const float *x, const float *w, const float *gy, float *gx, float *gw, int n) {
    float s = 0, d = 0;
    for (int i = 0; i < n; i++) { s += x[i] * x[i]; d += w[i] * gy[i] * x[i]; }
    float r = 1.f / sqrtf(s / (float)n + 1e-12f), k = r * r * r * d / (float)n;
    for (int i = 0; i < n; i++) {
        gw[i] += gy[i] * x[i] * r;
        gx[i] = w[i] * gy[i] * r - x[i] * k;
    }
}
/* Rows of n values at the given strides. */
void k_rms(const float *x, i32 sx, const float *w, float *y, i32 rows, i32 n) {
    for (long t = 0; t < rows; t++) rms_row(x + t * sx, w, y + t * n, n);
}
void k_rms_bwd(const float *x, i32 sx, const float *w, const float *gy, float *gx, i32 sgx, float *gw,
               i32 rows, i32 n) {
    for (long t = 0; t < rows; t++) rms_row_bwd(x + t * sx, w, gy + t * n, gx + t * sgx, gw, n);
}

/* ---- RoPE ------------------------------------------------------------------------------------ */
/* Rotates the last rd channels of each of H vectors per row as adjacent pairs by the angles of
 * cs[pos][rd/2][cos,sin]; sign -1 is the inverse. Then quantises per vector. y may equal x. */
void k_rope(const float *x, float *y, const float *cs, const i32 *pos, i32 rows, i32 H, i32 hd, i32 rd,
            float sign, i32 kind) {
    for (long t = 0; t < rows; t++) {
        const float *c = cs + (long)pos[t] * rd;
        for (int h = 0; h < H; h++) {
            const float *xi = x + (t * H + h) * hd;
            float *yi = y + (t * H + h) * hd;
            if (y != x) memcpy(yi, xi, sizeof(float) * (size_t)(hd - rd));
            for (int i = 0; i < rd / 2; i++) {
                int j = hd - rd + 2 * i;
                float a = xi[j], b = xi[j + 1], co = c[2 * i], si = sign * c[2 * i + 1];
                yi[j] = rb(a * co - b * si);
                yi[j + 1] = rb(a * si + b * co);
            }
            quant_row(kind, yi, hd);
        }
    }
}

/* ---- mHC ------------------------------------------------------------------------------------- */
/* Row factor of the mixing projection: r = rsqrt(mean(X^2) + eps) over all 4D values. */
void k_rowscale(const float *X, float *r, i32 rows, i32 n) {
    for (long t = 0; t < rows; t++) {
        const float *x = X + t * n;
        float s = 0;
        for (int i = 0; i < n; i++) s += x[i] * x[i];
        r[t] = 1.f / sqrtf(s / (float)n + EPS);
    }
}
static inline float row_sum(const float *c, int i) {
    return c[4 * i] + c[4 * i + 1] + c[4 * i + 2] + c[4 * i + 3] + HC_EPS;
}
static inline float col_sum(const float *c, int j) {
    return c[j] + c[4 + j] + c[8 + j] + c[12 + j] + HC_EPS;
}
/* Softmax rows, then alternate column and row normalisations, ending on columns. st receives the
 * 2*SINKHORN+2 states needed by the backward pass (state 0 = softmax without eps). */
static void sinkhorn(const float *B, float st[2 * SINKHORN + 3][16]) {
    for (int i = 0; i < 4; i++) {
        float m = B[4 * i], s = 0;
        for (int j = 1; j < 4; j++) m = B[4 * i + j] > m ? B[4 * i + j] : m;
        for (int j = 0; j < 4; j++) s += st[0][4 * i + j] = expf(B[4 * i + j] - m);
        for (int j = 0; j < 4; j++) st[0][4 * i + j] /= s;
    }
    for (int k = 0; k < 16; k++) st[1][k] = st[0][k] + HC_EPS;
    int n = 1;
    for (int it = 0; it <= SINKHORN; it++) {
        if (it) {
            float s[4];
            for (int i = 0; i < 4; i++) s[i] = 1.f / row_sum(st[n], i);
            for (int k = 0; k < 16; k++) st[n + 1][k] = st[n][k] * s[k / 4];
            n++;
        }
        float s[4];
        for (int j = 0; j < 4; j++) s[j] = 1.f / col_sum(st[n], j);
        for (int k = 0; k < 16; k++) st[n + 1][k] = st[n][k] * s[k % 4];
        n++;
    }
}
/* m[rows,24] raw projection, r[rows]; P[rows,24] = pre, post, comb. */
void k_mix(const float *m, const float *r, const float *base, const float *scale, float *P, i32 rows) {
    float st[2 * SINKHORN + 3][16];
    for (long t = 0; t < rows; t++) {
        const float *mt = m + t * 24;
        float *p = P + t * 24, B[16];
        for (int c = 0; c < 4; c++) {
            p[c] = sigm(mt[c] * r[t] * scale[0] + base[c]) + HC_EPS;
            p[4 + c] = 2.f * sigm(mt[4 + c] * r[t] * scale[1] + base[4 + c]);
        }
        for (int k = 0; k < 16; k++) B[k] = mt[8 + k] * r[t] * scale[2] + base[8 + k];
        sinkhorn(B, st);
        memcpy(p + 8, st[2 * SINKHORN + 2], 64);
    }
}
/* gm: gradient of the raw projection; gr: gradient of the row factor. */
void k_mix_bwd(const float *m, const float *r, const float *base, const float *scale, const float *gP,
               float *gm, float *gr, float *gbase, float *gscale, i32 rows) {
    float st[2 * SINKHORN + 3][16];
    for (long t = 0; t < rows; t++) {
        const float *mt = m + t * 24, *gp = gP + t * 24;
        float B[16], g[16], gz[24];
        for (int c = 0; c < 4; c++) {
            float a = sigm(mt[c] * r[t] * scale[0] + base[c]);
            float b = sigm(mt[4 + c] * r[t] * scale[1] + base[4 + c]);
            gz[c] = gp[c] * a * (1 - a);
            gz[4 + c] = gp[4 + c] * 2 * b * (1 - b);
        }
        for (int k = 0; k < 16; k++) B[k] = mt[8 + k] * r[t] * scale[2] + base[8 + k];
        sinkhorn(B, st);
        memcpy(g, gp + 8, 64);
        int n = 2 * SINKHORN + 2;
        for (int it = SINKHORN; it >= 0; it--) {
            float s[4], d[4] = {0};
            /* c' = c / s, s = sum + eps: gradient (g - sum g c') / s */
            for (int j = 0; j < 4; j++) s[j] = 1.f / col_sum(st[n - 1], j);
            for (int k = 0; k < 16; k++) d[k % 4] += g[k] * st[n][k];
            for (int k = 0; k < 16; k++) g[k] = (g[k] - d[k % 4]) * s[k % 4];
            n--;
            if (!it) break;
            float e[4] = {0};
            for (int i = 0; i < 4; i++) s[i] = 1.f / row_sum(st[n - 1], i);
            for (int k = 0; k < 16; k++) e[k / 4] += g[k] * st[n][k];
            for (int k = 0; k < 16; k++) g[k] = (g[k] - e[k / 4]) * s[k / 4];
            n--;
        }
        for (int i = 0; i < 4; i++) {
            float d = 0;
            for (int j = 0; j < 4; j++) d += g[4 * i + j] * st[0][4 * i + j];
            for (int j = 0; j < 4; j++) gz[8 + 4 * i + j] = st[0][4 * i + j] * (g[4 * i + j] - d);
        }
        float ar = 0;
        for (int k = 0; k < 24; k++) {
            int c = k < 4 ? 0 : k < 8 ? 1 : 2;
            gbase[k] += gz[k];
            gscale[c] += gz[k] * mt[k] * r[t];
            gm[t * 24 + k] = gz[k] * scale[c] * r[t];
            ar += gz[k] * scale[c] * mt[k];
        }
        gr[t] = ar;
    }
}
/* u = bf(sum_c pre[c] X[c]) (kept for the backward pass), y = rms(u, w). pre has row stride 24. */
void k_collapse(const float *X, const float *P, const float *w, float *u, float *y, i32 rows, i32 D) {
    for (long t = 0; t < rows; t++) {
        const float *x = X + t * 4 * D, *p = P + t * 24;
        float *ut = u + t * D;
        for (int i = 0; i < D; i++)
            ut[i] = rb(p[0] * x[i] + p[1] * x[D + i] + p[2] * x[2 * D + i] + p[3] * x[3 * D + i]);
        rms_row(ut, w, y + t * D, D);
    }
}
/* Overwrites gX with the collapse part plus, where gr is given, the mixing row-factor part, and
 * writes gP[0..3] (the rest zero). gX may already hold the projection part: it is added to. */
void k_collapse_bwd(const float *X, const float *P, const float *w, const float *u, const float *gy,
                    const float *r, const float *gr, float *gX, float *gP, float *gw, i32 rows, i32 D) {
    float *gu = malloc(sizeof(float) * (size_t)D);
    for (long t = 0; t < rows; t++) {
        const float *x = X + t * 4 * D, *p = P + t * 24;
        float *gx = gX + t * 4 * D, *gp = gP + t * 24;
        rms_row_bwd(u + t * D, w, gy + t * D, gu, gw, D);
        float k = gr ? -gr[t] * r[t] * r[t] * r[t] / (float)(4 * D) : 0.f;
        memset(gp, 0, 24 * sizeof(float));
        for (int c = 0; c < 4; c++) {
            float d = 0;
            for (int i = 0; i < D; i++) {
                d += gu[i] * x[c * D + i];
                gx[c * D + i] += p[c] * gu[i] + k * x[c * D + i];
            }
            gp[c] = d;
        }
    }
    free(gu);
}
/* Y[j] = bf(post[j] v + sum_i comb[i][j] X[i]) */
void k_expand(const float *v, const float *X, const float *P, float *Y, i32 rows, i32 D) {
    for (long t = 0; t < rows; t++) {
        const float *x = X + t * 4 * D, *p = P + t * 24, *vt = v + t * D, *c = p + 8;
        float *y = Y + t * 4 * D;
        for (int j = 0; j < 4; j++)
            for (int i = 0; i < D; i++)
                y[j * D + i] = rb(p[4 + j] * vt[i] + (c[j] * x[i] + c[4 + j] * x[D + i]
                                  + c[8 + j] * x[2 * D + i] + c[12 + j] * x[3 * D + i]));
    }
}
void k_expand_bwd(const float *v, const float *X, const float *P, const float *gY, float *gv, float *gX,
                  float *gP, i32 rows, i32 D) {
    for (long t = 0; t < rows; t++) {
        const float *x = X + t * 4 * D, *p = P + t * 24, *vt = v + t * D, *c = p + 8, *g = gY + t * 4 * D;
        float *gx = gX + t * 4 * D, *gp = gP + t * 24, *gvt = gv + t * D;
        memset(gp, 0, 16);
        for (int i = 0; i < D; i++)
            gvt[i] = p[4] * g[i] + p[5] * g[D + i] + p[6] * g[2 * D + i] + p[7] * g[3 * D + i];
        for (int j = 0; j < 4; j++) {
            float d = 0;
            for (int i = 0; i < D; i++) d += g[j * D + i] * vt[i];
            gp[4 + j] = d;
        }
        for (int s = 0; s < 4; s++) {
            float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
            for (int i = 0; i < D; i++) {
                float xi = x[s * D + i];
                gx[s * D + i] = c[4 * s] * g[i] + c[4 * s + 1] * g[D + i] + c[4 * s + 2] * g[2 * D + i]
                              + c[4 * s + 3] * g[3 * D + i];
                d0 += xi * g[i]; d1 += xi * g[D + i]; d2 += xi * g[2 * D + i]; d3 += xi * g[3 * D + i];
            }
            gp[8 + 4 * s] = d0; gp[9 + 4 * s] = d1; gp[10 + 4 * s] = d2; gp[11 + 4 * s] = d3;
        }
    }
}
void k_mean4(const float *X, float *y, i32 rows, i32 D) {
    for (long t = 0; t < rows; t++)
        for (int i = 0; i < D; i++) {
            const float *x = X + t * 4 * D + i;
            y[t * D + i] = rb((x[0] + x[D] + x[2 * D] + x[3 * D]) * .25f);
        }
}

/* ---- attention ------------------------------------------------------------------------------- */
/* Row t attends to rows [lo[t], hi[t]) of A and to rows idx[t][0..K) of G (negative = none), K = V,
 * one KV head, with a sink per head. probs[rows][H][W+K] keeps the normalised probabilities, local
 * keys first. hs (may be NULL) [rows][K]: head-summed probability of the listed rows. */
void k_attn(const float *q, const float *A, const i32 *lo, const i32 *hi, const float *G, const i32 *idx,
            i32 K, const float *sink, float *o, float *probs, float *hs, i32 W, i32 rows, i32 H, i32 d) {
    float scale = 1.f / sqrtf((float)d);
    for (long t = 0; t < rows; t++) {
        int nl = hi[t] - lo[t];
        const i32 *ix = idx ? idx + t * K : NULL;
        if (hs) memset(hs + t * K, 0, sizeof(float) * (size_t)K);
        for (int h = 0; h < H; h++) {
            const float *qh = q + (t * H + h) * d;
            float *p = probs + (t * H + h) * (W + K), *oh = o + (t * H + h) * d, M = -1e30f;
            for (int k = 0; k < nl; k++) {
                const float *kv = A + (long)(lo[t] + k) * d;
                float s = 0;
                for (int i = 0; i < d; i++) s += qh[i] * kv[i];
                p[k] = s * scale;
                M = p[k] > M ? p[k] : M;
            }
            for (int k = nl; k < W; k++) p[k] = -1e30f;
            for (int k = 0; k < K; k++) {
                float s = 0;
                if (ix[k] < 0) { p[W + k] = -1e30f; continue; }
                const float *kv = G + (long)ix[k] * d;
                for (int i = 0; i < d; i++) s += qh[i] * kv[i];
                p[W + k] = s * scale;
                M = p[W + k] > M ? p[W + k] : M;
            }
            float den = expf(sink[h] - M);
            for (int k = 0; k < W + K; k++) {
                float e = p[k] < -1e29f ? 0.f : ex(p[k] - M);
                den += e;
                p[k] = rb(e);
            }
            float inv = 1.f / den;
            memset(oh, 0, sizeof(float) * (size_t)d);
            for (int k = 0; k < nl; k++) {
                const float *kv = A + (long)(lo[t] + k) * d;
                float e = p[k];
                for (int i = 0; i < d; i++) oh[i] += e * kv[i];
            }
            for (int k = 0; k < K; k++) {
                float e = p[W + k];
                if (ix[k] < 0) continue;
                const float *kv = G + (long)ix[k] * d;
                for (int i = 0; i < d; i++) oh[i] += e * kv[i];
            }
            for (int i = 0; i < d; i++) oh[i] = rb(oh[i] * inv);
            for (int k = 0; k < W + K; k++) p[k] *= inv;
            if (hs) for (int k = 0; k < K; k++) hs[t * K + k] += p[W + k];
        }
    }
}
/* gA and gG are added to (the caller zeroes them); gsink is a parameter gradient. */
void k_attn_bwd(const float *q, const float *A, const i32 *lo, const i32 *hi, const float *G, const i32 *idx,
                i32 K, const float *probs, const float *o, const float *go, float *gq, float *gA, float *gG,
                float *gsink, i32 W, i32 rows, i32 H, i32 d) {
    float scale = 1.f / sqrtf((float)d);
    for (long t = 0; t < rows; t++)
        for (int h = 0; h < H; h++) {
            const float *qh = q + (t * H + h) * d, *gh = go + (t * H + h) * d, *oh = o + (t * H + h) * d;
            const float *p = probs + (t * H + h) * (W + K);
            float *gqh = gq + (t * H + h) * d, D = 0, tot = 0;
            memset(gqh, 0, sizeof(float) * (size_t)d);
            for (int i = 0; i < d; i++) D += gh[i] * oh[i];
            for (int k = 0; k < W + K; k++) {
                const float *kv;
                float *gkv;
                if (k < W) {
                    if (k >= hi[t] - lo[t]) continue;
                    kv = A + (long)(lo[t] + k) * d;
                    gkv = gA + (long)(lo[t] + k) * d;
                } else {
                    i32 j = idx[t * K + k - W];
                    if (j < 0) continue;
                    kv = G + (long)j * d;
                    gkv = gG + (long)j * d;
                }
                float dp = 0, pk = p[k];
                tot += pk;
                for (int i = 0; i < d; i++) dp += gh[i] * kv[i];
                float ds = pk * (dp - D) * scale;
                for (int i = 0; i < d; i++) {
                    gqh[i] += ds * kv[i];
                    gkv[i] += ds * qh[i] + pk * gh[i];
                }
            }
            gsink[h] -= (1.f - tot) * D;
        }
}

/* ---- compressor of ratio 2 ------------------------------------------------------------------- */
/* x[rows][2d] = (kv, gate) per token; pairs of tokens -> m[rows/2][d] */
void k_pair(const float *x, float *m, i32 pairs, i32 d) {
    for (long j = 0; j < pairs; j++) {
        const float *a = x + j * 4 * d, *b = a + 2 * d;
        for (int c = 0; c < d; c++) {
            float s = 1.f / (1.f + ex(b[d + c] - a[d + c]));
            m[j * d + c] = rb(s * a[c] + (1.f - s) * b[c]);
        }
    }
}
void k_pair_bwd(const float *x, const float *gm, float *gx, i32 pairs, i32 d) {
    for (long j = 0; j < pairs; j++) {
        const float *a = x + j * 4 * d, *b = a + 2 * d;
        float *ga = gx + j * 4 * d, *gb = ga + 2 * d;
        for (int c = 0; c < d; c++) {
            float s = 1.f / (1.f + ex(b[d + c] - a[d + c])), g = gm[j * d + c];
            float gs = g * (a[c] - b[c]) * s * (1.f - s);
            ga[c] = g * s; gb[c] = g * (1.f - s);
            ga[d + c] = gs; gb[d + c] = -gs;
        }
    }
}

/* ---- indexer --------------------------------------------------------------------------------- */
static uint64_t rng_state = 88172645463325252ull;
void set_seed(uint64_t s) { rng_state = s * 2862933555777941757ull + 3037000493ull; if (!rng_state) rng_state = 1; }
static uint32_t rnd(void) {
    rng_state ^= rng_state << 13; rng_state ^= rng_state >> 7; rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 32);
}
/* Sort key: larger = better; monotone score bits, then lower index. +0 and -0 compare equal. */
static uint64_t score_key(float s, uint32_t j) {
    uint32_t u = s == 0.f ? 0 : bits(s);
    u = u >> 31 ? ~u : u | 0x80000000u;
    return (uint64_t)u << 32 | (uint32_t)~j;
}
/* k-th largest key (k >= 1); a is reordered. */
static uint64_t kth_largest(uint64_t *a, int n, int k) {
    int lo = 0, hi = n - 1;
    k--;
    while (lo < hi) {
        uint64_t p = a[(lo + hi) / 2];
        int i = lo, j = hi;
        while (i <= j) {
            while (a[i] > p) i++;
            while (a[j] < p) j--;
            if (i <= j) { uint64_t x = a[i]; a[i++] = a[j]; a[j--] = x; }
        }
        if (k <= j) hi = j; else if (k >= i) lo = i; else break;
    }
    return a[k];
}
/* qi[rows][H][d], wt[rows][H] (scaled), IK rows: row t scores j < vis[t] at IK[base[t] + j].
 * sel[rows][K]: chosen j + base[t], ascending, -1 padded. cand_in[rows][nb] (may be NULL) limits
 * the choice; cand_out (may be NULL) receives the kept blocks. explore > 0 gives that many of the
 * K places to random eligible rows. scores (may be NULL) [rows][maxvis] for tests. */
void k_index(const float *qi, const float *wt, const float *IK, const i32 *vis, const i32 *base, i32 K,
             const uint8_t *cand_in, uint8_t *cand_out, i32 nb, i32 block, i32 keep, i32 explore,
             i32 *sel, float *scores, i32 maxvis, i32 rows, i32 H, i32 d) {
    float *sc = malloc(sizeof(float) * (size_t)(maxvis + 1));
    uint64_t *key = malloc(8 * (size_t)(maxvis + 1));
    uint8_t *take = malloc((size_t)(maxvis + 1));
    for (long t = 0; t < rows; t++) {
        int n = vis[t], m = 0;
        const float *ik = IK + (long)base[t] * d;
        for (int j = 0; j < n; j++) {
            float s = 0;
            for (int h = 0; h < H; h++) {
                const float *q = qi + (t * H + h) * d;
                float a = 0;
                for (int i = 0; i < d; i++) a += q[i] * ik[(long)j * d + i];
                s += (a > 0 ? a : 0) * wt[t * H + h];
            }
            sc[j] = s;
            if (scores) scores[t * maxvis + j] = s;
        }
        if (cand_out) {
            uint8_t *co = cand_out + t * nb;
            int blocks = (n + block - 1) / block;
            memset(co, 0, (size_t)nb);
            for (int b = 0; b < blocks; b++) {
                float s = -3e38f;
                for (int j = b * block; j < n && j < (b + 1) * block; j++) s = sc[j] > s ? sc[j] : s;
                key[b] = score_key(b == blocks - 1 ? 3.4e38f : s, (uint32_t)b);
            }
            if (blocks > keep) {
                uint64_t *k2 = malloc(8 * (size_t)blocks);
                memcpy(k2, key, 8 * (size_t)blocks);
                uint64_t th = kth_largest(k2, blocks, keep);
                for (int b = 0; b < blocks; b++) co[b] = key[b] >= th;
                free(k2);
            } else memset(co, 1, (size_t)blocks);
        }
        for (int j = 0; j < n; j++) {
            take[j] = 0;
            if (!cand_in || cand_in[t * nb + j / block]) key[m++] = score_key(sc[j], (uint32_t)j);
        }
        if (m <= K) {
            for (int i = 0; i < m; i++) take[~(uint32_t)key[i]] = 1;
        } else {
            int best = K - explore;
            uint64_t th = kth_largest(key, m, best);
            for (int i = 0; i < m; i++) if (key[i] >= th) take[~(uint32_t)key[i]] = 1;
            for (int e = 0; e < explore;) {
                uint32_t j = ~(uint32_t)key[rnd() % (uint32_t)m];
                if (!take[j]) take[j] = 1, e++;
            }
        }
        int c = 0;
        for (int j = 0; j < n; j++) if (take[j]) sel[t * K + c++] = j + base[t];
        while (c < K) sel[t * K + c++] = -1;
    }
    free(sc); free(key); free(take);
}
/* KL(hs normalised || softmax of index scores) over the selected rows, summed over rows; gradients
 * of the sum in gqi, gwt (overwritten) and gIK (added to). */
double k_index_kl(const float *qi, const float *wt, const float *IK, const i32 *sel, const float *hs, i32 K,
                  float *gqi, float *gwt, float *gIK, i32 rows, i32 H, i32 d) {
    double loss = 0;
    float *sc = malloc(sizeof(float) * (size_t)K), *dot = malloc(sizeof(float) * (size_t)K * (size_t)H);
    memset(gqi, 0, sizeof(float) * (size_t)rows * (size_t)H * (size_t)d);
    memset(gwt, 0, sizeof(float) * (size_t)rows * (size_t)H);
    for (long t = 0; t < rows; t++) {
        const i32 *s = sel + t * K;
        int n = 0;
        float tot = 0, M = -3e38f, Z = 0;
        while (n < K && s[n] >= 0) n++;
        for (int k = 0; k < n; k++) {
            tot += hs[t * K + k];
            sc[k] = 0;
            for (int h = 0; h < H; h++) {
                const float *q = qi + (t * H + h) * d, *ik = IK + (long)s[k] * d;
                float a = 0;
                for (int i = 0; i < d; i++) a += q[i] * ik[i];
                dot[k * H + h] = a;
                sc[k] += (a > 0 ? a : 0) * wt[t * H + h];
            }
            M = sc[k] > M ? sc[k] : M;
        }
        if (n < 2 || tot < 1e-8f) continue;
        for (int k = 0; k < n; k++) Z += expf(sc[k] - M);
        float lz = logf(Z) + M;
        for (int k = 0; k < n; k++) {
            float y = hs[t * K + k] / tot, p = expf(sc[k] - lz), g = p - y;
            if (y > 1e-12f) loss += y * (logf(y) - (sc[k] - lz));
            const float *ik = IK + (long)s[k] * d;
            float *gik = gIK + (long)s[k] * d;
            for (int h = 0; h < H; h++) {
                float a = dot[k * H + h];
                if (a <= 0) continue;
                const float *q = qi + (t * H + h) * d;
                float *gq = gqi + (t * H + h) * d, ga = g * wt[t * H + h];
                gwt[t * H + h] += g * a;
                for (int i = 0; i < d; i++) { gq[i] += ga * ik[i]; gik[i] += ga * q[i]; }
            }
        }
    }
    free(sc); free(dot);
    return loss;
}

/* ---- mixture of experts ---------------------------------------------------------------------- */
/* z[rows][E] gate logits -> idx[rows][k] ascending, s (scores) and w (weights) in the same order;
 * order[rows*k]: slots sorted by expert, inv[slot]: place in that order, off[E+1], load[E] added. */
void k_route(const float *z, const float *bias, i32 *idx, float *s, float *w, i32 *order, i32 *inv, i32 *off,
             const i32 *forced, i32 rows, i32 E, i32 k, float route_scale) {
    memset(off, 0, sizeof(i32) * (size_t)(E + 1));
    for (long t = 0; t < rows; t++) {
        float sc[1024];
        uint8_t used[1024] = {0};
        for (int e = 0; e < E; e++) {
            float x = z[t * E + e];
            sc[e] = sqrtf(x > 20.f ? x : log1pf(expf(x)));
        }
        for (int i = 0; i < k; i++) {
            int b = -1;
            if (forced) b = forced[t * k + i];
            else for (int e = 0; e < E; e++)
                if (!used[e] && (b < 0 || sc[e] + bias[e] > sc[b] + bias[b])) b = e;
            used[b] = 1;
        }
        float sum = 0;
        int c = 0;
        for (int e = 0; e < E; e++) if (used[e]) { idx[t * k + c] = e; s[t * k + c++] = sc[e]; sum += sc[e]; off[e + 1]++; }
        for (int i = 0; i < k; i++) w[t * k + i] = s[t * k + i] / (sum + EPS) * route_scale;
    }
    for (int e = 0; e < E; e++) off[e + 1] += off[e];
    i32 at[1024];
    memcpy(at, off, sizeof(i32) * (size_t)E);
    for (i32 i = 0; i < rows * k; i++) { inv[i] = at[idx[i]]++; order[inv[i]] = i; }
}
/* gw[slot] -> gz[rows][E] */
void k_route_bwd(const float *z, const i32 *idx, const float *s, const float *gw, float *gz, i32 rows, i32 E,
                 i32 k, float route_scale) {
    memset(gz, 0, sizeof(float) * (size_t)rows * (size_t)E);
    for (long t = 0; t < rows; t++) {
        float sum = 0, d = 0;
        for (int i = 0; i < k; i++) { sum += s[t * k + i]; d += gw[t * k + i] * s[t * k + i]; }
        for (int i = 0; i < k; i++) {
            float gs = route_scale / sum * (gw[t * k + i] - d / sum);
            int e = idx[t * k + i];
            gz[t * E + e] = gs * sigm(z[t * E + e]) / (2.f * s[t * k + i] + 1e-6f);
        }
    }
}
void k_gather(const float *x, const i32 *order, float *y, i32 slots, i32 k, i32 D) {
    for (long i = 0; i < slots; i++) memcpy(y + i * D, x + (long)(order[i] / k) * D, sizeof(float) * (size_t)D);
}
/* out[t] = base[t] + sum over its k slots of y[inv[slot]] (ascending expert id, base last) */
void k_combine(const float *y, const i32 *inv, const float *base, float *out, i32 rows, i32 k, i32 D, i32 round) {
    for (long t = 0; t < rows; t++)
        for (int i = 0; i < D; i++) {
            float s = 0;
            for (int j = 0; j < k; j++) s += y[(long)inv[t * k + j] * D + i];
            s += base[t * D + i];
            out[t * D + i] = round ? rb(s) : s;
        }
}
/* ab[n][2I] = (gate, up); w (may be NULL) at w[order[n]]; h = q8(bf(w silu(a) b)) */
void k_swiglu(const float *ab, const float *w, const i32 *order, float *h, i32 rows, i32 I, float lim) {
    for (long n = 0; n < rows; n++) {
        const float *a = ab + n * 2 * I, *b = a + I;
        float wn = w ? w[order[n]] : 1.f, *y = h + n * I;
        for (int i = 0; i < I; i++) {
            float x = a[i] < lim ? a[i] : lim, u = b[i] > lim ? lim : b[i] < -lim ? -lim : b[i];
            y[i] = rb(wn * (x / (1.f + ex(-x))) * u);
        }
        quant_row(Q_8, y, I);
    }
}
void k_swiglu_bwd(const float *ab, const float *w, const i32 *order, const float *gh, float *gab, float *gw,
                  i32 rows, i32 I, float lim) {
    for (long n = 0; n < rows; n++) {
        const float *a = ab + n * 2 * I, *b = a + I, *g = gh + n * I;
        float wn = w ? w[order[n]] : 1.f, *ga = gab + n * 2 * I, *gb = ga + I, d = 0;
        for (int i = 0; i < I; i++) {
            float x = a[i] < lim ? a[i] : lim, u = b[i] > lim ? lim : b[i] < -lim ? -lim : b[i];
            float sg = 1.f / (1.f + ex(-x)), si = x * sg;
            d += g[i] * si * u;
            ga[i] = a[i] < lim ? g[i] * wn * u * (sg + si * (1.f - sg)) : 0.f;
            gb[i] = fabsf(b[i]) < lim ? g[i] * wn * si : 0.f;
        }
        if (w) gw[order[n]] = d;
    }
}

/* ---- Engram ---------------------------------------------------------------------------------- */
/* e[t][n*hd] = table rows; drop[t*n] (may be NULL) blanks single rows (training regulariser). */
void k_rows(const float *table, const int64_t *ids, const uint8_t *drop, float *e, i32 rows, i32 n, i32 hd) {
    for (long i = 0; i < (long)rows * n; i++)
        if (drop && drop[i]) memset(e + i * hd, 0, sizeof(float) * (size_t)hd);
        else memcpy(e + i * hd, table + ids[i] * hd, sizeof(float) * (size_t)hd);
}
void k_rows_bwd(const float *ge, const int64_t *ids, const uint8_t *drop, float *gt, i32 rows, i32 n, i32 hd) {
    for (long i = 0; i < (long)rows * n; i++) {
        if (drop && drop[i]) continue;
        float *g = gt + ids[i] * hd;
        for (int c = 0; c < hd; c++) g[c] += ge[i * hd + c];
    }
}
/* kv[t][5D] = 4 keys, value. Y[c] = bf(X[c] + g_c value); gate[t][4] = g, dot[t][4] = d kept. */
void k_engram(const float *X, const float *kv, const float *qw, const float *kw, float *Y, float *gate,
              float *dot, i32 rows, i32 D) {
    float is = 1.f / sqrtf((float)D);
    for (long t = 0; t < rows; t++)
        for (int c = 0; c < 4; c++) {
            const float *q = X + (t * 4 + c) * D, *k = kv + (t * 5 + c) * D, *v = kv + (t * 5 + 4) * D;
            float a = 0, sq = 0, sk = 0, *y = Y + (t * 4 + c) * D;
            for (int i = 0; i < D; i++) {
                a += q[i] * qw[c * D + i] * kw[c * D + i] * k[i];
                sq += q[i] * q[i];
                sk += k[i] * k[i];
            }
            float d = a / (sqrtf(sq / (float)D + EPS) * sqrtf(sk / (float)D + EPS)) * is;
            float m = fabsf(d) > 1e-6f ? fabsf(d) : 1e-6f, g = sigm(copysignf(sqrtf(m), d));
            gate[t * 4 + c] = g;
            dot[t * 4 + c] = d;
            for (int i = 0; i < D; i++) y[i] = rb(q[i] + g * v[i]);
        }
}
/* The derivative of sqrt|d| is capped near 0 (|d| < 1e-4) to keep the gate's gradient finite. */
void k_engram_bwd(const float *X, const float *kv, const float *qw, const float *kw, const float *gate,
                  const float *dot, const float *gY, float *gX, float *gkv, float *gqw, float *gkw,
                  i32 rows, i32 D) {
    float is = 1.f / sqrtf((float)D);
    for (long t = 0; t < rows; t++) {
        float *gv = gkv + (t * 5 + 4) * D;
        memset(gv, 0, sizeof(float) * (size_t)D);
        for (int c = 0; c < 4; c++) {
            const float *q = X + (t * 4 + c) * D, *k = kv + (t * 5 + c) * D, *v = kv + (t * 5 + 4) * D;
            const float *gy = gY + (t * 4 + c) * D, *wq = qw + c * D, *wk = kw + c * D;
            float g = gate[t * 4 + c], d = dot[t * 4 + c], sq = 0, sk = 0, dg = 0;
            float *gx = gX + (t * 4 + c) * D, *gk = gkv + (t * 5 + c) * D;
            for (int i = 0; i < D; i++) {
                gv[i] += g * gy[i];
                dg += gy[i] * v[i];
                sq += q[i] * q[i];
                sk += k[i] * k[i];
            }
            float ad = fabsf(d) > 1e-4f ? fabsf(d) : 1e-4f;
            float gd = dg * g * (1.f - g) * .5f / sqrtf(ad);
            float rq = 1.f / sqrtf(sq / (float)D + 1e-12f), rk = 1.f / sqrtf(sk / (float)D + 1e-12f);
            float b = gd * is * rq * rk, cq = gd * d * rq * rq / (float)D, ck = gd * d * rk * rk / (float)D;
            for (int i = 0; i < D; i++) {
                gx[i] = gy[i] + b * wq[i] * wk[i] * k[i] - cq * q[i];
                gk[i] = b * wq[i] * wk[i] * q[i] - ck * k[i];
                gqw[c * D + i] += b * q[i] * wk[i] * k[i];
                gkw[c * D + i] += b * q[i] * wq[i] * k[i];
            }
        }
    }
}

/* ---- losses ---------------------------------------------------------------------------------- */
/* logits[rows][V] -> gradient of the summed cross-entropy in place; returns the sum. Rows whose
 * target is negative are skipped (zero gradient). nll (may be NULL) receives per-row losses. */
double k_ce(float *logits, const i32 *target, float *nll, i32 rows, i32 V) {
    double loss = 0;
    for (long t = 0; t < rows; t++) {
        float *l = logits + t * V, M = -3e38f, Z = 0;
        if (target[t] < 0) { memset(l, 0, sizeof(float) * (size_t)V); if (nll) nll[t] = 0; continue; }
        for (int i = 0; i < V; i++) M = l[i] > M ? l[i] : M;
        float lt = l[target[t]] - M;
        for (int i = 0; i < V; i++) Z += l[i] = ex(l[i] - M);
        float inv = 1.f / Z, n = logf(Z) - lt;
        for (int i = 0; i < V; i++) l[i] *= inv;
        l[target[t]] -= 1.f;
        loss += n;
        if (nll) nll[t] = n;
    }
    return loss;
}
/* Drafter loss of one row: cw * (soft CE to p + CE to the actual token) / 2 + lw * L1(q, p), all
 * weighted by rw[row]. z: draft logits (gradient in place), pl: target logits. overlap[row] =
 * 1 - L1/2, hit[row] = argmax equal. */
double k_draft_loss(float *z, const float *pl, const i32 *target, const float *rw, float cw, float lw,
                    float *overlap, i32 *hit, i32 rows, i32 V) {
    double loss = 0;
    float *p = malloc(sizeof(float) * (size_t)V), *q = malloc(sizeof(float) * (size_t)V);
    for (long t = 0; t < rows; t++) {
        float *l = z + t * V, Mz = -3e38f, Mp = -3e38f, Z = 0, Zp = 0, L1 = 0, dot = 0, ce = 0;
        const float *a = pl + t * V;
        int az = 0, ap = 0;
        for (int i = 0; i < V; i++) { Mz = l[i] > Mz ? l[i] : Mz; Mp = a[i] > Mp ? a[i] : Mp; }
        while (l[az] != Mz) az++;
        while (a[ap] != Mp) ap++;
        for (int i = 0; i < V; i++) { Z += q[i] = ex(l[i] - Mz); Zp += p[i] = ex(a[i] - Mp); }
        float iz = 1.f / Z, ip = 1.f / Zp, lz = logf(Z) + Mz;
        for (int i = 0; i < V; i++) {
            q[i] *= iz; p[i] *= ip;
            float df = q[i] - p[i];
            L1 += fabsf(df);
            dot += q[i] * (df > 0 ? 1.f : -1.f);
            ce += p[i] * (lz - l[i]);
        }
        hit[t] = az == ap;
        overlap[t] = 1.f - .5f * L1;
        float hard = lz - l[target[t]], w = rw[t];
        loss += w * (cw * .5f * (ce + hard) + lw * L1);
        for (int i = 0; i < V; i++) {
            float df = q[i] - p[i];
            l[i] = w * (cw * .5f * (df + q[i]) + lw * q[i] * ((df > 0 ? 1.f : -1.f) - dot));
        }
        l[target[t]] -= w * cw * .5f;
    }
    free(p); free(q);
    return loss;
}

/* ---- optimiser ------------------------------------------------------------------------------- */
double k_sumsq(const float *g, int64_t n) {
    double s = 0;
    for (int64_t i = 0; i < n; i += 4096) {
        float a = 0;
        for (int64_t j = i; j < n && j < i + 4096; j++) a += g[j] * g[j];
        s += a;
    }
    return s;
}
/* One AdamW range: gradients g (scaled by gs) are zeroed afterwards. */
void k_adam(float *w, float *g, float *m, float *v, int64_t n, float gs, float lr, float wd, float b1, float b2,
            float c1, float c2) {
    for (int64_t i = 0; i < n; i++) {
        float gi = g[i] * gs;
        m[i] += (1.f - b1) * (gi - m[i]);
        v[i] += (1.f - b2) * (gi * gi - v[i]);
        w[i] -= lr * (m[i] * c1 / (sqrtf(v[i] * c2) + 1e-10f) + wd * w[i]);
        g[i] = 0.f;
    }
}
void k_add(float *a, float *b, int64_t n) { for (int64_t i = 0; i < n; i++) { a[i] += b[i]; b[i] = 0.f; } }
