/* Building blocks of the AVX-512 path: decoding of packed formats to bf16 and sums over lanes.
 *
 * Included only by model/cpu/ files that are compiled with AVX-512 F, BW, VL, DQ, VBMI and BF16.
 *
 * Products are taken by vdpbf16ps, which reads and writes float32 and bf16 subnormals as zero: bf16 inputs below 2^-126
 * and partial sums below 2^-126 count as zero here. No E4M3 or E2M1 code becomes a bf16 subnormal: scales for which one
 * would (outside SCALE_MIN..SCALE_MAX) are applied to the block's sum instead. */
#ifndef WEFT_MODEL_CPU_LANES_AVX512_H
#define WEFT_MODEL_CPU_LANES_AVX512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "model/numerics.h"

/* Accumulators live in registers only when the loops over them are unrolled; clang does so unasked. */
#if defined(__clang__)
#define MDL_UNROLL
#else
#define MDL_UNROLL _Pragma("GCC unroll 16")
#endif
#define MDL_INLINE static inline __attribute__((always_inline))

/* E8M0 codes for which code x scale is a normal bf16 for every finite E4M3 and E2M1 code: 2^-9 x 2^-117 = 2^-126 and
 * 448 x 2^119 < 2^128. */
enum { SCALE_MIN = 10, SCALE_MAX = 246 };

MDL_INLINE bool scale_folds(uint8_t scale)
{
    return scale >= SCALE_MIN && scale <= SCALE_MAX;
}

MDL_INLINE __m512 dot_step(__m512 acc, __m512i a, __m512i b)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}

/* What to add to a decoded bf16 word to multiply it by the scale. The tables mark a finite nonzero value by a set bit 0
 * (no decoded value uses it); only marked words take the addend, which clears the mark. Zero and NaN stay. */
MDL_INLINE __m512i scale_addend(uint8_t scale)
{
    return _mm512_set1_epi16((short)(((int)scale - 127) * 128 - 1));
}

MDL_INLINE __m512i fold_scale(__m512i marked, __m512i addend)
{
    return _mm512_mask_add_epi16(marked, _mm512_test_epi16_mask(marked, _mm512_set1_epi16(1)), marked, addend);
}

/* bf16 bits of the E4M3 magnitudes 0..127, low and high bytes apart; the low byte carries the mark. */
extern const uint8_t mdl_avx512_e4m3_low[128], mdl_avx512_e4m3_high[128];
/* The low bytes without the mark, for values that take no scale. */
extern const uint8_t mdl_avx512_e4m3_plain[128];
/* Marked bf16 words of the E2M1 codes, twice, so that bit 4 of an index is of no matter. */
extern const uint16_t mdl_avx512_e2m1[32];

struct e4m3_lut {
    __m512i low0, low1, high0, high1;
};

MDL_INLINE struct e4m3_lut e4m3_load_lut(const uint8_t *low)
{
    return (struct e4m3_lut){
        _mm512_load_si512(low),
        _mm512_load_si512(low + 64),
        _mm512_load_si512(mdl_avx512_e4m3_high),
        _mm512_load_si512(mdl_avx512_e4m3_high + 64),
    };
}

/* 64 codes to marked words: elements 0..31 and 32..63. */
MDL_INLINE void e4m3_decode(const struct e4m3_lut *lut, __m512i codes, __m512i *first, __m512i *second)
{
    /* The unpack instructions work within 128-bit lanes; this order of 8-byte pieces makes their results consecutive.
     */
    codes = _mm512_permutexvar_epi64(_mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0), codes);
    __m512i low = _mm512_permutex2var_epi8(lut->low0, codes, lut->low1);
    __m512i high = _mm512_permutex2var_epi8(lut->high0, codes, lut->high1);
    /* high | (codes & 0x80) */
    high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8((char)0x80), 0xf8);
    *first = _mm512_unpacklo_epi8(low, high);
    *second = _mm512_unpackhi_epi8(low, high);
}

/* 16 bytes (32 codes) to indices for the E2M1 table: only the low five bits of each word count. */
MDL_INLINE __m512i e2m1_indices(__m128i codes)
{
    /* Byte b of every 32-bit lane goes to its low word as b and to its high word as b >> 4. */
    const __m512i shifts = _mm512_set1_epi64(0x2424202004040000);
    return _mm512_multishift_epi64_epi8(shifts, _mm512_cvtepu8_epi32(codes));
}

/* The E2M1 table times a scale, given as its addend. */
MDL_INLINE __m512i e2m1_scaled_table(__m512i table, __m512i addend)
{
    /* Codes 0 and 8 of both copies are zero and carry no mark. */
    return _mm512_mask_add_epi16(table, (__mmask32)~0x01010101u, table, addend);
}

/* Sum over the lanes of one accumulator, in the order of the path: i + i+8, i + i+4, i + i+2, i + i+1. */
MDL_INLINE __m128 sum_lanes4(__m512 a, __m512 b, __m512 c, __m512 d)
{
    __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    __m512 t = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    t = _mm512_add_ps(t, _mm512_permute_ps(t, 0x4e));
    t = _mm512_add_ps(t, _mm512_permute_ps(t, 0xb1));
    const __m512i firsts = _mm512_castsi128_si512(_mm_set_epi32(12, 8, 4, 0));
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, t));
}

/* Four sums of four lanes each, before the last two additions. */
MDL_INLINE __m512 sum_lanes_half(const __m512 *a)
{
    __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a[0], a[1], 0x44), _mm512_shuffle_f32x4(a[0], a[1], 0xee));
    __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(a[2], a[3], 0x44), _mm512_shuffle_f32x4(a[2], a[3], 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

/* Lane i of the result is the sum over the lanes of a[i], in the same order. */
MDL_INLINE __m512 sum_lanes16(const __m512 *a)
{
    __m512 t0 = sum_lanes_half(a), t1 = sum_lanes_half(a + 4), t2 = sum_lanes_half(a + 8), t3 = sum_lanes_half(a + 12);
    __m512 u = _mm512_add_ps(_mm512_shuffle_ps(t0, t1, 0x44), _mm512_shuffle_ps(t0, t1, 0xee));
    __m512 v = _mm512_add_ps(_mm512_shuffle_ps(t2, t3, 0x44), _mm512_shuffle_ps(t2, t3, 0xee));
    __m512 s = _mm512_add_ps(_mm512_shuffle_ps(u, v, 0x88), _mm512_shuffle_ps(u, v, 0xdd));
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return _mm512_permutexvar_ps(order, s);
}

/* mdl_to_bf16 of 16 lanes; the result is in the low halves. */
MDL_INLINE __m512i round_bf16(__m512 x)
{
    __m512i u = _mm512_castps_si512(x), one = _mm512_set1_epi32(1);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), one);
    __m512i r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    __m512i nan = _mm512_or_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
    return _mm512_mask_mov_epi32(r, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
}

/* mdl_expf of 16 lanes: the same operations in the same order, nothing fused. */
MDL_INLINE __m512 exp_lanes(__m512 x)
{
    const __m512 magic = _mm512_set1_ps(0x1.8p23f);
    __m512 k = _mm512_sub_ps(_mm512_add_ps(_mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p+0f)), magic), magic);
    __m512 r = _mm512_sub_ps(x, _mm512_mul_ps(k, _mm512_set1_ps(0x1.62e4p-1f)));
    r = _mm512_sub_ps(r, _mm512_mul_ps(k, _mm512_set1_ps(0x1.7f7d1cp-20f)));
    static const float coefficient[7] = {
        0x1.6c16c2p-10f, 0x1.111112p-7f, 0x1.555556p-5f, 0x1.555556p-3f, 0.5f, 1.0f, 1.0f};
    __m512 p = _mm512_set1_ps(0x1.a01a02p-13f);
    MDL_UNROLL
    for (int i = 0; i < 7; i++)
        p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(coefficient[i]));
    __m512i ki = _mm512_cvttps_epi32(k);
    __m512i half = _mm512_srai_epi32(_mm512_add_epi32(ki, _mm512_srli_epi32(ki, 31)), 1); /* rounds toward zero */
    const __m512i bias = _mm512_set1_epi32(127);
    __m512 a = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23));
    __m512 b = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(ki, half), bias), 23));
    p = _mm512_mul_ps(_mm512_mul_ps(p, a), b);
    p = _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(x, _mm512_set1_ps(-104.0f), _CMP_LT_OQ), _mm512_setzero_ps());
    return _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(x, _mm512_set1_ps(88.7f), _CMP_GT_OQ),
                              _mm512_castsi512_ps(_mm512_set1_epi32(0x7f800000)));
}

MDL_INLINE __mmask16 mask16(int n)
{
    return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
}

/* The first n of 32 words or 64 bytes; n may be outside. */
MDL_INLINE __mmask32 mask32(int n)
{
    return n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (1u << n) - 1;
}

MDL_INLINE __mmask64 mask64(int n)
{
    return n >= 64 ? ~0ull : n <= 0 ? 0 : (1ull << n) - 1;
}

#endif
