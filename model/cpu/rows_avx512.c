/* Element-wise rows of the AVX-512 path: the operations of the scalar path in the same order, 16 elements at a time,
 * nothing fused unless the product is exact. Called through mdl_backend_avx512 only. */
#include "model/cpu/avx512.h"
#include "model/cpu/lanes_avx512.h"

MDL_INLINE __m512 load_row(const uint16_t *x, __mmask16 m)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, x)), 16));
}

MDL_INLINE void store_row(uint16_t *y, __mmask16 m, __m512 v)
{
    _mm256_mask_storeu_epi16(y, m, _mm512_cvtepi32_epi16(round_bf16(v)));
}

/* ---- q8 ---- */

/* E8M0 code of a group of 32, as mdl_quant_q8 chooses it. */
MDL_INLINE uint8_t q8_scale(__m512i x)
{
    x = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
    __m256i h = _mm256_max_epu16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    __m128i q = _mm_max_epu16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    /* The instruction finds the smallest word: of the complements. */
    __m128i least = _mm_minpos_epu16(_mm_xor_si128(q, _mm_set1_epi16(-1)));
    float amax = mdl_from_bf16((uint16_t)~_mm_extract_epi16(least, 0));
    return mdl_p2ceil_code((amax < 1e-4f ? 1e-4f : amax) * (1.0f / 448.0f));
}

/* mdl_to_e4m3 of 16 lanes. */
MDL_INLINE __m128i to_e4m3(__m512 x)
{
    __m512i u = _mm512_castps_si512(x), sign = _mm512_and_si512(_mm512_srli_epi32(u, 24), _mm512_set1_epi32(0x80));
    u = _mm512_and_si512(u, _mm512_set1_epi32(0x7fffffff));
    __m512 a = _mm512_castsi512_ps(u);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 20), _mm512_set1_epi32(1));
    __m512i c = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff))), 20);
    c = _mm512_sub_epi32(c, _mm512_set1_epi32((127 - 7) << 3));
    __m512i low = _mm512_castps_si512(_mm512_add_ps(a, _mm512_set1_ps(0x1.8p14f)));
    c = _mm512_mask_and_epi32(c, _mm512_cmp_ps_mask(a, _mm512_set1_ps(0x1p-6f), _CMP_LT_OQ), low,
                              _mm512_set1_epi32(0xf));
    c = _mm512_mask_mov_epi32(c, _mm512_cmp_ps_mask(a, _mm512_set1_ps(448.0f), _CMP_GE_OQ), _mm512_set1_epi32(0x7e));
    c = _mm512_mask_mov_epi32(c, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), _mm512_set1_epi32(0x7f));
    return _mm512_cvtepi32_epi8(_mm512_or_si512(c, sign));
}

MDL_INLINE __m256i q8_codes(__m512i x, uint8_t scale)
{
    __m512 inv = _mm512_set1_ps(1.0f / mdl_from_e8m0(scale));
    __m512 a = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(x)), 16));
    __m512 b = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(x, 1)), 16));
    return _mm256_set_m128i(to_e4m3(_mm512_mul_ps(b, inv)), to_e4m3(_mm512_mul_ps(a, inv)));
}

void mdl_avx512_quant_q8(const uint16_t *x, int n, uint8_t *codes, uint8_t *scales)
{
    for (int i = 0; i < n; i += 32) {
        __m512i v = _mm512_loadu_si512(x + i);
        uint8_t scale = q8_scale(v);
        _mm256_storeu_si256((__m256i *)(codes + i), q8_codes(v, scale));
        scales[i / 32] = scale;
    }
}

void mdl_avx512_fakequant_q8(const uint16_t *x, int n, uint16_t *out)
{
    struct e4m3_lut lut = e4m3_load_lut(mdl_avx512_e4m3_low);
    for (int i = 0; i < n; i += 32) {
        __m512i v = _mm512_loadu_si512(x + i), first, second;
        uint8_t scale = q8_scale(v);
        __m256i c = q8_codes(v, scale);
        if (scale_folds(scale)) {
            e4m3_decode(&lut, _mm512_zextsi256_si512(c), &first, &second);
            _mm512_storeu_si512(out + i, fold_scale(first, scale_addend(scale)));
        } else {
            uint8_t codes[32];
            _mm256_storeu_si256((__m256i *)codes, c);
            mdl_dequant_q8(codes, &scale, 32, out + i);
        }
    }
}

/* ---- norms ---- */

double mdl_avx512_mean_square(const uint16_t *x, int n)
{
    __m512d sum = _mm512_setzero_pd();
    for (int i = 0; i < n; i += 8) {
        __m128i h = _mm_maskz_loadu_epi16((__mmask8)mask16(n - i), x + i);
        __m512d v = _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)));
        sum = _mm512_fmadd_pd(v, v, sum); /* the square of a bf16 value is exact */
    }
    double s[8];
    _mm512_storeu_pd(s, sum);
    return (((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))) / n;
}

void mdl_avx512_rms_scale(const uint16_t *x, const uint16_t *w, float inv, int n, uint16_t *y)
{
    __m512 f = _mm512_set1_ps(inv);
    for (int i = 0; i < n; i += 16) {
        __mmask16 m = mask16(n - i);
        store_row(y + i, m, _mm512_mul_ps(load_row(w + i, m), _mm512_mul_ps(load_row(x + i, m), f)));
    }
}

/* ---- experts ---- */

void mdl_avx512_swiglu(const uint16_t *a, const uint16_t *b, float limit, float weight, int n, uint16_t *h)
{
    const __m512 high = _mm512_set1_ps(limit), low = _mm512_set1_ps(-limit), factor = _mm512_set1_ps(weight);
    const __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_set1_ps(-0.0f);
    for (int i = 0; i < n; i += 16) {
        __mmask16 m = mask16(n - i);
        /* The second operand of min and max stays when the first is not smaller or larger. */
        __m512 g = _mm512_min_ps(high, load_row(a + i, m));
        __m512 u = _mm512_min_ps(high, _mm512_max_ps(low, load_row(b + i, m)));
        __m512 silu = _mm512_div_ps(g, _mm512_add_ps(one, exp_lanes(_mm512_xor_ps(g, sign))));
        store_row(h + i, m, _mm512_mul_ps(factor, _mm512_mul_ps(silu, u)));
    }
}

/* ---- residual streams ---- */

void mdl_avx512_collapse(const uint16_t *x, const float *p, int d, uint16_t *u)
{
    for (int k = 0; k < d; k += 16) {
        __mmask16 m = mask16(d - k);
        __m512 s = _mm512_mul_ps(_mm512_set1_ps(p[0]), load_row(x + k, m));
        for (int c = 1; c < 4; c++)
            s = _mm512_add_ps(s, _mm512_mul_ps(_mm512_set1_ps(p[c]), load_row(x + c * d + k, m)));
        store_row(u + k, m, s);
    }
}

void mdl_avx512_expand(const uint16_t *v, const float *post, const float *comb, int d, uint16_t *x)
{
    for (int k = 0; k < d; k += 16) {
        __mmask16 m = mask16(d - k);
        __m512 old[4], add = load_row(v + k, m);
        MDL_UNROLL
        for (int c = 0; c < 4; c++)
            old[c] = load_row(x + c * d + k, m);
        MDL_UNROLL
        for (int c = 0; c < 4; c++) {
            __m512 s = _mm512_mul_ps(_mm512_set1_ps(comb[c]), old[0]);
            MDL_UNROLL
            for (int from = 1; from < 4; from++)
                s = _mm512_add_ps(s, _mm512_mul_ps(_mm512_set1_ps(comb[from * 4 + c]), old[from]));
            store_row(x + c * d + k, m, _mm512_add_ps(_mm512_mul_ps(_mm512_set1_ps(post[c]), add), s));
        }
    }
}
