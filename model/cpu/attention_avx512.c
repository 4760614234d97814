/* Attention, indexer and decoding kernels of the AVX-512 path, and its table. Called through the table only. */
#include "model/backend.h"
#include "model/cpu/avx512.h"
#include "model/cpu/lanes_avx512.h"

/* ---- attention ---- */

MDL_INLINE void dots_block(int nk, const uint16_t *q, const uint16_t *keys, size_t ld, int dim, float *s)
{
    __m512 acc[8];
    MDL_UNROLL
    for (int i = 0; i < nk; i++)
        acc[i] = _mm512_setzero_ps();
    for (int c = 0; c < dim; c += 32) {
        __m512i v = _mm512_loadu_si512(q + c);
        MDL_UNROLL
        for (int i = 0; i < nk; i++)
            acc[i] = dot_step(acc[i], v, _mm512_loadu_si512(keys + (size_t)i * ld + c));
    }
    if (nk == 1) {
        _mm_store_ss(s, sum_lanes4(acc[0], acc[0], acc[0], acc[0]));
        return;
    }
    _mm_storeu_ps(s, sum_lanes4(acc[0], acc[1], acc[2], acc[3]));
    _mm_storeu_ps(s + 4, sum_lanes4(acc[4], acc[5], acc[6], acc[7]));
}

static void avx512_dots(const uint16_t *q, const uint16_t *keys, size_t ld, int n_keys, int dim, float *s)
{
    int i = 0;
    for (; i + 8 <= n_keys; i += 8)
        dots_block(8, q, keys + (size_t)i * ld, ld, dim, s + i);
    for (; i < n_keys; i++)
        dots_block(1, q, keys + (size_t)i * ld, ld, dim, s + i);
}

/* 32 * nb columns. Even and odd columns sum in registers of their own and are interleaved at the ends. */
MDL_INLINE void sum_columns(int nb, const float *p, const uint16_t *keys, size_t ld, int n_keys, float *acc)
{
    const __m512i even_at = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd_at = _mm512_add_epi32(even_at, _mm512_set1_epi32(1));
    const __m512i first_at = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i second_at = _mm512_add_epi32(first_at, _mm512_set1_epi32(8));
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    __m512 even[8], odd[8];
    MDL_UNROLL
    for (int b = 0; b < nb; b++) {
        __m512 lo = _mm512_loadu_ps(acc + b * 32), hi = _mm512_loadu_ps(acc + b * 32 + 16);
        even[b] = _mm512_permutex2var_ps(lo, even_at, hi);
        odd[b] = _mm512_permutex2var_ps(lo, odd_at, hi);
    }
    for (int i = 0; i < n_keys; i++) {
        __m512 w = _mm512_set1_ps(p[i]);
        MDL_UNROLL
        for (int b = 0; b < nb; b++) {
            __m512i v = _mm512_loadu_si512(keys + (size_t)i * ld + b * 32);
            even[b] = _mm512_fmadd_ps(w, _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)), even[b]);
            odd[b] = _mm512_fmadd_ps(w, _mm512_castsi512_ps(_mm512_and_si512(v, upper)), odd[b]);
        }
    }
    MDL_UNROLL
    for (int b = 0; b < nb; b++) {
        _mm512_storeu_ps(acc + b * 32, _mm512_permutex2var_ps(even[b], first_at, odd[b]));
        _mm512_storeu_ps(acc + b * 32 + 16, _mm512_permutex2var_ps(even[b], second_at, odd[b]));
    }
}

static void avx512_weighted_sum(const float *p, const uint16_t *keys, size_t ld, int n_keys, int dim, float *acc)
{
    int c = 0;
    for (; c + 256 <= dim; c += 256)
        sum_columns(8, p, keys + c, ld, n_keys, acc + c);
    for (; c < dim; c += 32)
        sum_columns(1, p, keys + c, ld, n_keys, acc + c);
}

/* ---- indexer ---- */

enum { INDEX_KEYS = 16, INDEX_DIM = 512 };

static void decode_index_key(const uint8_t *codes, const uint8_t *scales, int dim, uint16_t *out)
{
    __m512i table = _mm512_load_si512(mdl_avx512_e2m1);
    for (int c = 0; c < dim; c += 32) {
        if (!scale_folds(scales[c / 32])) {
            mdl_dequant_q4i(codes + c / 2, scales + c / 32, 32, out + c);
            continue;
        }
        __m512i at = e2m1_indices(_mm_loadu_si128((const __m128i *)(codes + c / 2)));
        _mm512_store_si512(out + c, _mm512_permutexvar_epi16(at, e2m1_scaled_table(table, scale_addend(scales[c / 32]))));
    }
}

/* Lane j belongs to key j, so heads add in ascending order for 16 keys at once. */
static void avx512_index_scores(const uint16_t *q, const float *weight, int heads, int dim, const uint8_t *codes,
                                const uint8_t *scales, int n, float *score)
{
    _Alignas(64) uint16_t key[INDEX_KEYS][INDEX_DIM];
    size_t code_bytes = (size_t)dim / 2, scale_bytes = (size_t)dim / 32;
    for (int j = 0; j < n; j += INDEX_KEYS) {
        int have = n - j < INDEX_KEYS ? n - j : INDEX_KEYS;
        for (int i = 0; i < INDEX_KEYS; i++) {
            /* Lanes beyond the last key repeat it and are not stored. */
            size_t at = (size_t)(j + (i < have ? i : have - 1));
            decode_index_key(codes + at * code_bytes, scales + at * scale_bytes, dim, key[i]);
        }
        __m512 total = _mm512_setzero_ps();
        for (int h = 0; h < heads; h++) {
            __m512 acc[INDEX_KEYS];
            MDL_UNROLL
            for (int i = 0; i < INDEX_KEYS; i++)
                acc[i] = _mm512_setzero_ps();
            for (int c = 0; c < dim; c += 32) {
                __m512i v = _mm512_loadu_si512(q + (size_t)h * (size_t)dim + c);
                MDL_UNROLL
                for (int i = 0; i < INDEX_KEYS; i++)
                    acc[i] = dot_step(acc[i], v, _mm512_load_si512(key[i] + c));
            }
            /* max's second operand answers for NaN and equal zeros, as "sum > 0 ? sum : 0" does. */
            __m512 sum = _mm512_max_ps(sum_lanes16(acc), _mm512_setzero_ps());
            total = _mm512_add_ps(total, _mm512_mul_ps(sum, _mm512_set1_ps(weight[h])));
        }
        _mm512_mask_storeu_ps(score + j, (__mmask16)((1u << have) - 1), total);
    }
}

/* ---- decoding of stored rows: same bits as model/numerics.c ---- */

static void avx512_dequant_q8(const uint8_t *codes, const uint8_t *scales, int n, uint16_t *out)
{
    struct e4m3_lut lut = e4m3_load_lut(mdl_avx512_e4m3_low);
    for (int i = 0; i < n; i += 32) {
        if (!scale_folds(scales[i / 32])) {
            mdl_dequant_q8(codes + i, scales + i / 32, 32, out + i);
            continue;
        }
        __m512i first, second;
        __m256i c = _mm256_loadu_si256((const __m256i *)(codes + i));
        e4m3_decode(&lut, _mm512_zextsi256_si512(c), &first, &second);
        _mm512_storeu_si512(out + i, fold_scale(first, scale_addend(scales[i / 32])));
    }
}

static void avx512_dequant_q4k(const uint8_t *codes, const uint8_t *scales, int n, uint16_t *out)
{
    /* Unmarked values times an E4M3 scale: multiplied in float32 and cut, since the product is exact in bf16. */
    const __m512 table = _mm512_loadu_ps(mdl_e2m1_table);
    for (int i = 0; i < n; i += 16) {
        __m128i c = _mm_loadl_epi64((const __m128i *)(codes + i / 2));
        __m128i nibbles = _mm_unpacklo_epi8(c, _mm_srli_epi16(c, 4)); /* only the low four bits count */
        __m512 v = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(nibbles), table);
        v = _mm512_mul_ps(v, _mm512_set1_ps(mdl_e4m3_table[scales[i / 16]]));
        _mm256_storeu_si256((__m256i *)(out + i), _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(v), 16)));
    }
}

/* ---- mdl_expf, 16 lanes ---- */

MDL_INLINE __m512 exp_lanes(__m512 x)
{
    const __m512 magic = _mm512_set1_ps(0x1.8p23f);
    __m512 k = _mm512_sub_ps(_mm512_add_ps(_mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p+0f)), magic), magic);
    __m512 r = _mm512_sub_ps(x, _mm512_mul_ps(k, _mm512_set1_ps(0x1.62e4p-1f)));
    r = _mm512_sub_ps(r, _mm512_mul_ps(k, _mm512_set1_ps(0x1.7f7d1cp-20f)));
    static const float coefficient[7] = {0x1.6c16c2p-10f, 0x1.111112p-7f, 0x1.555556p-5f, 0x1.555556p-3f, 0.5f, 1.0f, 1.0f};
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

static void avx512_exps(float *x, int n)
{
    int i = 0;
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(x + i, exp_lanes(_mm512_loadu_ps(x + i)));
    if (i < n) {
        __mmask16 m = (__mmask16)((1u << (n - i)) - 1);
        _mm512_mask_storeu_ps(x + i, m, exp_lanes(_mm512_maskz_loadu_ps(m, x + i)));
    }
}

const struct mdl_backend mdl_backend_avx512 = {
    .name = "avx512",
    .linear = mdl_avx512_linear,
    .dots = avx512_dots,
    .weighted_sum = avx512_weighted_sum,
    .index_scores = avx512_index_scores,
    .dequant_q8 = avx512_dequant_q8,
    .dequant_q4k = avx512_dequant_q4k,
    .exps = avx512_exps,
};
