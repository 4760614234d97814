/* Number formats against slow definitions: every code, every bf16 value, ties; and the element functions against the C
 * library. */
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/numerics.h"

/* Value of a small float format by its definition; code has its sign bit on top. */
static double value_of(int code, int exponent_bits, int mantissa_bits, int bias)
{
    int m = code & ((1 << mantissa_bits) - 1), e = code >> mantissa_bits & ((1 << exponent_bits) - 1);
    double v =
        e ? ldexp(1.0 + m / (double)(1 << mantissa_bits), e - bias) : ldexp(m / (double)(1 << mantissa_bits), 1 - bias);
    return code >> (exponent_bits + mantissa_bits) & 1 ? -v : v;
}

static double e4m3(int code)
{
    static double table[256];
    if (table[1] == 0.0)
        for (int c = 0; c < 256; c++)
            table[c] = value_of(c, 4, 3, 7);
    return table[code];
}

static double e2m1(int code)
{
    return value_of(code, 2, 1, 1);
}

/* Nearest code among 0..last by walking up to it; a tie goes to the even code; the sign is put back. */
static int nearest(double x, int last, int sign_bit, double (*value)(int code))
{
    double a = fmin(fabs(x), value(last));
    int above = 0;
    while (value(above) < a)
        above++;
    int best = above;
    if (above > 0) {
        double up = value(above) - a, down = a - value(above - 1);
        best = down < up || (down == up && above % 2 == 1) ? above - 1 : above;
    }
    return signbit(x) ? best | sign_bit : best;
}

Test(numerics, tables)
{
    for (int c = 0; c < 256; c++) {
        if ((c & 0x7f) == 0x7f)
            cr_expect(isnan(mdl_e4m3_table[c]));
        else
            cr_expect(mdl_e4m3_table[c] == e4m3(c) && !!signbit(mdl_e4m3_table[c]) == (c >> 7), "E4M3 code %d", c);
        if (c < 16)
            cr_expect(mdl_e2m1_table[c] == e2m1(c) && !!signbit(mdl_e2m1_table[c]) == (c >> 3), "E2M1 code %d", c);
        if (c == 255)
            cr_expect(isnan(mdl_from_e8m0(255)));
        else
            cr_expect_eq(mdl_from_e8m0((uint8_t)c), ldexp(1.0, c - 127), "E8M0 code %d", c);
    }
}

/* Every bf16 value goes there and back; every float32 beside one, and half way between two, rounds as it should. */
Test(numerics, bf16)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        float x = mdl_from_bf16((uint16_t)h);
        if (isnan(x)) {
            cr_assert(isnan(mdl_from_bf16(mdl_to_bf16(x))));
            continue;
        }
        cr_assert_eq(mdl_to_bf16(x), h);
        if (isinf(x))
            continue;
        cr_assert_eq(mdl_to_bf16(mdl_float(h << 16 | 0x0001)), h);
        cr_assert_eq(mdl_to_bf16(mdl_float(h << 16 | 0x7fff)), h);
        cr_assert_eq(mdl_to_bf16(mdl_float(h << 16 | 0x8000)), h + (h & 1));
        cr_assert_eq(mdl_to_bf16(mdl_float(h << 16 | 0x8001)), h + 1);
    }
    cr_expect(isnan(mdl_from_bf16(mdl_to_bf16(mdl_float(0x7f800001u)))), "a NaN whose upper half says infinity");
    cr_expect(isinf(mdl_from_bf16(mdl_to_bf16(mdl_float(0x7f7fffffu)))));
}

/* Every bf16 value, with a few bits below it so that ties and their neighbours occur. */
Test(numerics, casts_round_to_nearest_even)
{
    static const uint32_t below[] = {0, 1, 0x8000, 0xffff};
    int wrong8 = 0, wrong4 = 0;
    for (uint32_t h = 0; h < 0x10000; h++)
        for (size_t b = 0; b < 4; b++) {
            float x = mdl_float(h << 16 | below[b]);
            if (isnan(x))
                continue;
            wrong8 += mdl_to_e4m3(x) != nearest(x, 0x7e, 0x80, e4m3);
            wrong4 += mdl_to_e2m1(x) != nearest(x, 7, 8, e2m1);
        }
    cr_expect_eq(wrong8, 0, "E4M3: %d wrong", wrong8);
    cr_expect_eq(wrong4, 0, "E2M1: %d wrong", wrong4);
    for (int c = 0; c < 0x7e; c++) {
        float mid = (float)((e4m3(c) + e4m3(c + 1)) / 2);
        cr_expect_eq(mdl_to_e4m3(mid), c + c % 2, "tie above E4M3 code %d", c);
        cr_expect_eq(mdl_to_e4m3(nextafterf(mid, 0.0f)), c);
        cr_expect_eq(mdl_to_e4m3(nextafterf(mid, 1e9f)), c + 1);
        cr_expect_eq(mdl_to_e4m3(-mid), (c + c % 2) | 0x80);
    }
    for (int c = 0; c < 7; c++) {
        float mid = (float)((e2m1(c) + e2m1(c + 1)) / 2);
        cr_expect_eq(mdl_to_e2m1(mid), c + c % 2, "tie above E2M1 code %d", c);
        cr_expect_eq(mdl_to_e2m1(nextafterf(mid, 0.0f)), c);
        cr_expect_eq(mdl_to_e2m1(nextafterf(mid, 1e9f)), c + 1);
    }
    cr_expect_eq(mdl_to_e4m3(INFINITY), 0x7e);
    cr_expect_eq(mdl_to_e4m3(-1e30f), 0xfe);
    cr_expect_eq(mdl_to_e2m1(-INFINITY), 15);
    cr_expect_eq(mdl_to_e4m3(NAN) & 0x7f, 0x7f);
}

Test(numerics, p2ceil)
{
    for (int e = -126; e < 127; e++) {
        float p = (float)ldexp(1.0, e);
        cr_expect_eq(mdl_p2ceil_code(p), e + 127);
        cr_expect_eq(mdl_p2ceil_code(nextafterf(p, 1e38f)), e + 128);
        cr_expect_eq(mdl_p2ceil_code(nextafterf(nextafterf(p, 1e38f), 0.0f)), e + 127);
        if (e > -126)
            cr_expect_eq(mdl_p2ceil_code(nextafterf(p, 0.0f)), e + 127);
    }
    cr_expect_eq(mdl_p2ceil_code(0x1p-127f), 0);
    cr_expect_eq(mdl_p2ceil_code(0x1p-149f), 0);
    cr_expect_eq(mdl_p2ceil_code(0x1.8p-127f), 1);
}

/* The least power of two that is not below x, by search. */
static int p2ceil_by_search(double x)
{
    int c = 0;
    while (ldexp(1.0, c - 127) < x)
        c++;
    return c;
}

/* A group that holds h as its largest magnitude, and smaller values of both signs. */
static void make_group(uint16_t h, int n, uint32_t *state, uint16_t *x)
{
    for (int i = 0; i < n; i++) {
        *state = *state * 1664525u + 1013904223u;
        uint16_t below = (uint16_t)((*state >> 16) % ((h & 0x7fffu) + 1u));
        /* Mostly within a few binades of the largest, where codes differ. */
        if (*state & 0x80 && below < (h & 0x7fff) - 0x200)
            below = (uint16_t)((h & 0x7fff) - (*state >> 20) % 0x200);
        x[i] = below | (uint16_t)(*state << 9 & 0x8000);
    }
    x[*state % (uint32_t)n] = h;
}

/* What rounding to bf16 makes of the largest codes and scales. */
static double or_infinity(double x)
{
    return fabs(x) < 0x1p128 ? x : copysign((double)INFINITY, x);
}

static double bf(uint16_t h)
{
    return (double)mdl_from_bf16(h);
}

/* Each finite bf16 value is once the largest of a group. The quotient of two binary numbers is rounded to float32 where
 * the definition divides in float32; the power-of-two scales divide exactly. */
Test(numerics, quantisers_match_their_definition)
{
    uint32_t state = 1;
    int wrong8 = 0, wrong4k = 0, wrong4i = 0, back = 0;
    for (uint32_t h = 0; h < 0x10000; h++) {
        uint16_t x[32], out[32];
        uint8_t codes[32], scales[2];
        if ((h & 0x7fff) >= 0x7f80)
            continue;
        make_group((uint16_t)h, 32, &state, x);
        float amax = fabsf(mdl_from_bf16((uint16_t)h));

        mdl_quant_q8(x, 32, codes, scales);
        int sc = p2ceil_by_search((double)(fmaxf(amax, 1e-4f) * (1.0f / 448.0f)));
        wrong8 += scales[0] != sc;
        for (int i = 0; i < 32; i++)
            wrong8 += codes[i] != nearest(bf(x[i]) / ldexp(1.0, sc - 127), 0x7e, 0x80, e4m3);
        mdl_dequant_q8(codes, scales, 32, out);
        for (int i = 0; i < 32; i++)
            back += bf(out[i]) != or_infinity(e4m3(codes[i]) * ldexp(1.0, sc - 127));
        uint16_t fake[32];
        mdl_fakequant_q8(x, 32, fake);
        back += memcmp(fake, out, sizeof out) != 0;
        mdl_fakequant_q8(x, 32, x);
        back += memcmp(x, out, sizeof out) != 0;

        make_group((uint16_t)h, 32, &state, x);
        mdl_quant_q4i(x, 32, codes, scales);
        sc = p2ceil_by_search((double)(fmaxf(amax, 6.0f * 0x1p-126f) * (1.0f / 6.0f)));
        wrong4i += scales[0] != sc;
        for (int i = 0; i < 32; i++)
            wrong4i += (codes[i / 2] >> (i % 2 * 4) & 15) != nearest(bf(x[i]) / ldexp(1.0, sc - 127), 7, 8, e2m1);
        mdl_dequant_q4i(codes, scales, 32, out);
        for (int i = 0; i < 32; i++)
            back += bf(out[i]) != or_infinity(e2m1(codes[i / 2] >> (i % 2 * 4) & 15) * ldexp(1.0, sc - 127));

        make_group((uint16_t)h, 16, &state, x);
        mdl_quant_q4k(x, 16, codes, scales);
        sc = nearest((double)(fmaxf(amax, 6.0f * 0x1p-9f) / 6.0f), 0x7e, 0x80, e4m3);
        wrong4k += scales[0] != sc;
        for (int i = 0; i < 16; i++)
            wrong4k += (codes[i / 2] >> (i % 2 * 4) & 15) !=
                       nearest((double)(mdl_from_bf16(x[i]) / (float)e4m3(sc)), 7, 8, e2m1);
        mdl_dequant_q4k(codes, scales, 16, out);
        for (int i = 0; i < 16; i++)
            back += bf(out[i]) != e2m1(codes[i / 2] >> (i % 2 * 4) & 15) * e4m3(sc);
    }
    cr_expect_eq(wrong8, 0, "q8: %d wrong", wrong8);
    cr_expect_eq(wrong4k, 0, "q4k: %d wrong", wrong4k);
    cr_expect_eq(wrong4i, 0, "q4i: %d wrong", wrong4i);
    cr_expect_eq(back, 0, "decoded values: %d not exact", back);
}

Test(numerics, zero_groups_stay_zero)
{
    uint16_t x[32] = {0}, out[32];
    uint8_t codes[32], scales[2];
    mdl_quant_q8(x, 32, codes, scales);
    mdl_dequant_q8(codes, scales, 32, out);
    cr_expect_arr_eq(x, out, sizeof x);
    mdl_quant_q4k(x, 32, codes, scales);
    mdl_dequant_q4k(codes, scales, 32, out);
    cr_expect_arr_eq(x, out, sizeof x);
    mdl_quant_q4i(x, 32, codes, scales);
    mdl_dequant_q4i(codes, scales, 32, out);
    cr_expect_arr_eq(x, out, sizeof x);
}

Test(numerics, exponentials)
{
    double worst = 0, worst_double = 0;
    for (double x = -87.0; x < 88.6; x += 0.000737) {
        float f = (float)x;
        worst = fmax(worst, fabs((double)mdl_expf(f) / exp((double)f) - 1.0));
        worst_double = fmax(worst_double, fabs(mdl_exp(x) / exp(x) - 1.0));
    }
    cr_expect_lt(worst, 2e-7, "relative error of mdl_expf: %g", worst);
    cr_expect_lt(worst_double, 1e-15, "relative error of mdl_exp: %g", worst_double);
    /* Below the normal range the absolute error counts. */
    for (float x = -103.9f; x < -87.0f; x += 0.0171f)
        cr_expect_lt(fabs((double)mdl_expf(x) - exp((double)x)), 0x1p-149 * 1.01 + 2e-7 * exp((double)x), "x = %g",
                     (double)x);
    cr_expect_eq(mdl_expf(0.0f), 1.0f);
    cr_expect_eq(mdl_expf(-INFINITY), 0.0f);
    cr_expect_eq(mdl_expf(-104.1f), 0.0f);
    cr_expect(isinf(mdl_expf(89.0f)));
    cr_expect_eq(mdl_exp(0.0), 1.0);
    cr_expect_eq(mdl_exp(-800.0), 0.0);
    cr_expect(isinf(mdl_exp(710.0)));
}

Test(numerics, logarithm)
{
    double worst = 0;
    for (int e = -1022; e < 1023; e += 7)
        for (double m = 1.0; m < 2.0; m += 0.00917) {
            double x = ldexp(m, e), want = log(x);
            worst = fmax(worst, fabs(mdl_log(x) - want) / fmax(fabs(want), 1e-2));
        }
    for (double d = 1e-15; d < 0.3; d *= 1.37) {
        worst = fmax(worst, fabs(mdl_log(1.0 + d) / log(1.0 + d) - 1.0));
        worst = fmax(worst, fabs(mdl_log(1.0 - d) / log(1.0 - d) - 1.0));
    }
    cr_expect_lt(worst, 1e-15, "relative error of mdl_log: %g", worst);
    cr_expect_eq(mdl_log(1.0), 0.0);
    cr_expect(isinf(mdl_log(0.0)) && mdl_log(0.0) < 0);
    cr_expect(isinf(mdl_log(INFINITY)));
    cr_expect(isnan(mdl_log(-1.0)));
    cr_expect(isnan(mdl_log(NAN)));
}

Test(numerics, sigmoid_and_softplus)
{
    for (float x = -60.0f; x < 60.0f; x += 0.0137f) {
        double s = 1.0 / (1.0 + exp(-(double)x)), p = log1p(exp((double)x));
        cr_expect_lt(fabs((double)mdl_sigmoid(x) / s - 1.0), 0x1p-24 * 1.001, "sigmoid(%g)", (double)x);
        /* log(1 + e^x) in double loses what e^x has below 2^-53. */
        cr_expect_lt(fabs((double)mdl_softplus(x) - p), 0x1p-24 * 1.01 * p + 0x1p-53 + (x > 20.0f ? 3e-9 : 0.0),
                     "softplus(%g)", (double)x);
    }
    cr_expect_eq(mdl_sigmoid(-INFINITY), 0.0f);
    cr_expect_eq(mdl_sigmoid(INFINITY), 1.0f);
}
