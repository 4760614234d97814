#include "model/numerics.h"

#include <math.h>

/* clang-format off */
#define E4(e, m) ((e) == 0 ? (float)(m) * 0x1p-9f : (1.0f + (float)(m) / 8.0f) * (float)(1 << (e)) * 0x1p-7f)
#define E4ROW(e) E4(e,0), E4(e,1), E4(e,2), E4(e,3), E4(e,4), E4(e,5), E4(e,6), E4(e,7)
#define N4ROW(e) -E4(e,0), -E4(e,1), -E4(e,2), -E4(e,3), -E4(e,4), -E4(e,5), -E4(e,6), -E4(e,7)
const float mdl_e4m3_table[256] = {
    E4ROW(0), E4ROW(1), E4ROW(2), E4ROW(3), E4ROW(4), E4ROW(5), E4ROW(6), E4ROW(7),
    E4ROW(8), E4ROW(9), E4ROW(10), E4ROW(11), E4ROW(12), E4ROW(13), E4ROW(14),
    E4(15,0), E4(15,1), E4(15,2), E4(15,3), E4(15,4), E4(15,5), E4(15,6), NAN,
    N4ROW(0), N4ROW(1), N4ROW(2), N4ROW(3), N4ROW(4), N4ROW(5), N4ROW(6), N4ROW(7),
    N4ROW(8), N4ROW(9), N4ROW(10), N4ROW(11), N4ROW(12), N4ROW(13), N4ROW(14),
    -E4(15,0), -E4(15,1), -E4(15,2), -E4(15,3), -E4(15,4), -E4(15,5), -E4(15,6), NAN,
};
const float mdl_e2m1_table[16] = {
    0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f,
};
/* clang-format on */

uint8_t mdl_to_e4m3(float x)
{
    uint32_t u = mdl_bits(x);
    uint8_t sign = (uint8_t)((u >> 24) & 0x80);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return sign | 0x7f;
    float a = mdl_float(u);
    if (a >= 448.0f)
        return sign | 0x7e;
    if (a < 0x1p-6f) {
        /* Subnormal range: the unit is 2^-9. Adding 1.5 * 2^14 leaves a mantissa unit of 2^-9 and rounds to even. */
        float t = a + 0x1.8p14f;
        return sign | (uint8_t)(mdl_bits(t) & 0xf);
    }
    /* Three mantissa bits stay: round the lower 20 to nearest even, then rebias. */
    u += 0x7ffffu + ((u >> 20) & 1);
    return sign | (uint8_t)((u >> 20) - ((127 - 7) << 3));
}

uint8_t mdl_to_e2m1(float x)
{
    uint8_t sign = signbit(x) ? 8 : 0;
    float a = fabsf(x);
    /* Midpoints go to the even code. */
    uint8_t c = a > 5.0f     ? 7
                : a >= 3.5f  ? 6
                : a > 2.5f   ? 5
                : a >= 1.75f ? 4
                : a > 1.25f  ? 3
                : a >= 0.75f ? 2
                : a > 0.25f  ? 1
                             : 0;
    return sign | c;
}

uint8_t mdl_p2ceil_code(float x)
{
    uint32_t u = mdl_bits(x);
    uint32_t e = u >> 23, m = u & 0x7fffffu;
    if (e == 0)
        return m <= 0x400000u ? 0 : 1; /* 2^-127 is the smallest code */
    return (uint8_t)(e + (m != 0));
}

static float amax_of(const uint16_t *x, int n)
{
    uint16_t a = 0;
    for (int i = 0; i < n; i++) {
        uint16_t v = x[i] & 0x7fff;
        if (v > a)
            a = v;
    }
    return mdl_from_bf16(a);
}

void mdl_quant_q8(const uint16_t *x, int n, uint8_t *codes, uint8_t *scales)
{
    for (int g = 0; g < n / 32; g++) {
        float amax = amax_of(x + g * 32, 32);
        if (amax < 1e-4f)
            amax = 1e-4f;
        uint8_t sc = mdl_p2ceil_code(amax * (1.0f / 448.0f));
        float inv = 1.0f / mdl_from_e8m0(sc); /* a power of two: the division is exact */
        for (int i = 0; i < 32; i++)
            codes[g * 32 + i] = mdl_to_e4m3(mdl_from_bf16(x[g * 32 + i]) * inv);
        scales[g] = sc;
    }
}

static void pack_e2m1(const uint16_t *x, int n, float scale, uint8_t *codes)
{
    for (int i = 0; i < n; i += 2) {
        uint8_t lo = mdl_to_e2m1(mdl_from_bf16(x[i]) / scale);
        uint8_t hi = mdl_to_e2m1(mdl_from_bf16(x[i + 1]) / scale);
        codes[i / 2] = (uint8_t)(lo | (hi << 4));
    }
}

void mdl_quant_q4k(const uint16_t *x, int n, uint8_t *codes, uint8_t *scales)
{
    for (int g = 0; g < n / 16; g++) {
        float amax = amax_of(x + g * 16, 16);
        if (amax < 6.0f * 0x1p-9f)
            amax = 6.0f * 0x1p-9f;
        uint8_t sc = mdl_to_e4m3(amax / 6.0f);
        pack_e2m1(x + g * 16, 16, mdl_e4m3_table[sc], codes + g * 8);
        scales[g] = sc;
    }
}

void mdl_quant_q4i(const uint16_t *x, int n, uint8_t *codes, uint8_t *scales)
{
    for (int g = 0; g < n / 32; g++) {
        float amax = amax_of(x + g * 32, 32);
        if (amax < 6.0f * 0x1p-126f)
            amax = 6.0f * 0x1p-126f;
        uint8_t sc = mdl_p2ceil_code(amax * (1.0f / 6.0f));
        pack_e2m1(x + g * 32, 32, mdl_from_e8m0(sc), codes + g * 16);
        scales[g] = sc;
    }
}

void mdl_dequant_q8(const uint8_t *codes, const uint8_t *scales, int n, uint16_t *out)
{
    for (int i = 0; i < n; i++)
        out[i] = mdl_to_bf16(mdl_e4m3_table[codes[i]] * mdl_from_e8m0(scales[i / 32]));
}

static void unpack_e2m1(const uint8_t *codes, int n, float scale, uint16_t *out)
{
    for (int i = 0; i < n; i += 2) {
        out[i] = mdl_to_bf16(mdl_e2m1_table[codes[i / 2] & 15] * scale);
        out[i + 1] = mdl_to_bf16(mdl_e2m1_table[codes[i / 2] >> 4] * scale);
    }
}

void mdl_dequant_q4k(const uint8_t *codes, const uint8_t *scales, int n, uint16_t *out)
{
    for (int g = 0; g < n / 16; g++)
        unpack_e2m1(codes + g * 8, 16, mdl_e4m3_table[scales[g]], out + g * 16);
}

void mdl_dequant_q4i(const uint8_t *codes, const uint8_t *scales, int n, uint16_t *out)
{
    for (int g = 0; g < n / 32; g++)
        unpack_e2m1(codes + g * 16, 32, mdl_from_e8m0(scales[g]), out + g * 32);
}

void mdl_fakequant_q8(const uint16_t *x, int n, uint16_t *out)
{
    uint8_t codes[32], scale;
    for (int g = 0; g < n / 32; g++) {
        mdl_quant_q8(x + g * 32, 32, codes, &scale);
        mdl_dequant_q8(codes, &scale, 32, out + g * 32);
    }
}

float mdl_expf(float x)
{
    if (x < -104.0f)
        return 0.0f;
    if (x > 88.7f)
        return INFINITY;
    /* x = k ln2 + r with |r| <= ln2/2, ln2 in two parts so that k times the first is exact. Adding and subtracting
     * 1.5*2^23 rounds to the nearest integer. */
    float k = (x * 0x1.715476p+0f + 0x1.8p23f) - 0x1.8p23f;
    float r = x - k * 0x1.62e4p-1f;
    r = r - k * 0x1.7f7d1cp-20f;
    /* Taylor polynomial of degree 7: the first omitted term is below 6e-9. */
    float p = 0x1.a01a02p-13f;
    p = p * r + 0x1.6c16c2p-10f;
    p = p * r + 0x1.111112p-7f;
    p = p * r + 0x1.555556p-5f;
    p = p * r + 0x1.555556p-3f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    /* Two factors, so that results below the normal range are rounded and not flushed. */
    int ki = (int)k, half = ki / 2;
    return p * mdl_float((uint32_t)(half + 127) << 23) * mdl_float((uint32_t)(ki - half + 127) << 23);
}

static double pow2i(int k)
{
    uint64_t u = (uint64_t)(k + 1023) << 52;
    double d;
    memcpy(&d, &u, 8);
    return d;
}

double mdl_exp(double x)
{
    if (x < -745.0)
        return 0.0;
    if (x > 709.0)
        return HUGE_VAL;
    double k = (x * 0x1.71547652b82fep+0 + 0x1.8p52) - 0x1.8p52;
    double r = x - k * 0x1.62e42fee00000p-1;
    r = r - k * 0x1.a39ef35793c76p-33;
    /* Taylor to degree 13 by Horner on r/n. */
    double p = 1.0;
    for (int n = 13; n >= 1; n--)
        p = 1.0 + p * r / n;
    int ki = (int)k, half = ki / 2;
    return p * pow2i(half) * pow2i(ki - half);
}

double mdl_log(double x)
{
    if (!(x > 0.0))
        return x == 0.0 ? -HUGE_VAL : NAN;
    if (isinf(x))
        return x;
    /* x = m 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh((m-1)/(m+1)). frexp only moves bits. */
    int e;
    double m = frexp(x, &e);
    if (m < 0x1.6a09e667f3bcdp-1) {
        m *= 2.0;
        e--;
    }
    double s = (m - 1.0) / (m + 1.0), s2 = s * s, p = 0.0;
    for (int n = 23; n >= 1; n -= 2)
        p = p * s2 + 1.0 / n;
    return 2.0 * s * p + e * 0x1.a39ef35793c76p-33 + e * 0x1.62e42fee00000p-1;
}

float mdl_sigmoid(float x)
{
    return (float)(1.0 / (1.0 + mdl_exp(-(double)x)));
}

float mdl_softplus(float x)
{
    if (x > 20.0f)
        return x;
    return (float)mdl_log(1.0 + mdl_exp((double)x));
}
