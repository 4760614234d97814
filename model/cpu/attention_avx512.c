/* Attention, indexer and decoding kernels of the AVX-512 path, and its table. Called through the table only. */
#include "model/backend.h"
#include "model/cpu/avx512.h"
#include "model/cpu/lanes_avx512.h"

/* ---- attention ---- */

/* Four keys, or one, for nh heads. */
MDL_INLINE void dots_block(int nh, int nk, const uint16_t *q, const uint16_t *keys, int dim, float *s, size_t lds)
{
    __m512 acc[4][4];
    MDL_UNROLL
    for (int h = 0; h < nh; h++)
        MDL_UNROLL
    for (int i = 0; i < nk; i++)
        acc[h][i] = _mm512_setzero_ps();
    for (int c = 0; c < dim; c += 32) {
        __m512i k[4];
        MDL_UNROLL
        for (int i = 0; i < nk; i++)
            k[i] = _mm512_loadu_si512(keys + (size_t)i * (size_t)dim + c);
        MDL_UNROLL
        for (int h = 0; h < nh; h++) {
            __m512i v = _mm512_loadu_si512(q + (size_t)h * (size_t)dim + c);
            MDL_UNROLL
            for (int i = 0; i < nk; i++)
                acc[h][i] = dot_step(acc[h][i], v, k[i]);
        }
    }
    MDL_UNROLL
    for (int h = 0; h < nh; h++)
        if (nk == 4)
            _mm_storeu_ps(s + (size_t)h * lds, sum_lanes4(acc[h][0], acc[h][1], acc[h][2], acc[h][3]));
        else
            _mm_store_ss(s + (size_t)h * lds, sum_lanes4(acc[h][0], acc[h][0], acc[h][0], acc[h][0]));
}

MDL_INLINE void dots_heads(int nh, const uint16_t *q, const uint16_t *keys, int n, int dim, float *s, size_t lds)
{
    int i = 0;
    for (; i + 4 <= n; i += 4)
        dots_block(nh, 4, q, keys + (size_t)i * (size_t)dim, dim, s + i, lds);
    for (; i < n; i++)
        dots_block(nh, 1, q, keys + (size_t)i * (size_t)dim, dim, s + i, lds);
}

static void avx512_dots(const uint16_t *q, int heads, const uint16_t *keys, int n, int dim, float *s, size_t lds)
{
    int h = 0;
    for (; h + 4 <= heads; h += 4)
        dots_heads(4, q + (size_t)h * (size_t)dim, keys, n, dim, s + (size_t)h * lds, lds);
    for (; h < heads; h++)
        dots_heads(1, q + (size_t)h * (size_t)dim, keys, n, dim, s + (size_t)h * lds, lds);
}

static float avx512_softmax(float *s, int n, float scale, float *top)
{
    const __m512 factor = _mm512_set1_ps(scale), least = _mm512_set1_ps(-__builtin_inff());
    __m512 most = least, sum = _mm512_setzero_ps();
    for (int i = 0; i < n; i += 16) {
        __mmask16 m = mask16(n - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, s + i), factor);
        most = _mm512_mask_max_ps(most, m, v, most);
        _mm512_mask_storeu_ps(s + i, m, v);
    }
    *top = _mm512_reduce_max_ps(most);
    most = _mm512_set1_ps(*top);
    for (int i = 0; i < n; i += 16) {
        __mmask16 m = mask16(n - i);
        __m512 e = exp_lanes(_mm512_sub_ps(_mm512_maskz_loadu_ps(m, s + i), most));
        sum = _mm512_mask_add_ps(sum, m, sum, e);
        _mm512_mask_storeu_ps(s + i, m, _mm512_castsi512_ps(_mm512_slli_epi32(round_bf16(e), 16)));
    }
    return _mm_cvtss_f32(sum_lanes4(sum, sum, sum, sum));
}

/* Columns 0..63, or 0..31, of nh heads. Even and odd columns of 32 sum in registers of their own and meet at the end.
 */
MDL_INLINE void values_block(int nh, int nb, const float *p, size_t ldp, const float *den, const uint16_t *keys, int n,
                             int dim, uint16_t *o)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    __m512 even[4][2], odd[4][2];
    MDL_UNROLL
    for (int h = 0; h < nh; h++)
        MDL_UNROLL
    for (int b = 0; b < nb; b++)
        even[h][b] = odd[h][b] = _mm512_setzero_ps();
    for (int i = 0; i < n; i++) {
        __m512 low[2], high[2];
        MDL_UNROLL
        for (int b = 0; b < nb; b++) {
            __m512i v = _mm512_loadu_si512(keys + (size_t)i * (size_t)dim + b * 32);
            low[b] = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
            high[b] = _mm512_castsi512_ps(_mm512_and_si512(v, upper));
        }
        MDL_UNROLL
        for (int h = 0; h < nh; h++) {
            __m512 w = _mm512_set1_ps(p[(size_t)h * ldp + (size_t)i]);
            MDL_UNROLL
            for (int b = 0; b < nb; b++) {
                even[h][b] = _mm512_fmadd_ps(w, low[b], even[h][b]);
                odd[h][b] = _mm512_fmadd_ps(w, high[b], odd[h][b]);
            }
        }
    }
    MDL_UNROLL
    for (int h = 0; h < nh; h++)
        MDL_UNROLL
    for (int b = 0; b < nb; b++) {
        __m512 d = _mm512_set1_ps(den[h]);
        __m512i e = round_bf16(_mm512_div_ps(even[h][b], d)), f = round_bf16(_mm512_div_ps(odd[h][b], d));
        _mm512_storeu_si512(o + (size_t)h * (size_t)dim + b * 32, _mm512_or_si512(e, _mm512_slli_epi32(f, 16)));
    }
}

MDL_INLINE void values_heads(int nh, const float *p, size_t ldp, const float *den, const uint16_t *keys, int n, int dim,
                             uint16_t *o)
{
    int c = 0;
    for (; c + 64 <= dim; c += 64)
        values_block(nh, 2, p, ldp, den, keys + c, n, dim, o + c);
    for (; c < dim; c += 32)
        values_block(nh, 1, p, ldp, den, keys + c, n, dim, o + c);
}

static void avx512_values(const float *p, size_t ldp, const float *den, int heads, const uint16_t *keys, int n, int dim,
                          uint16_t *o)
{
    int h = 0;
    for (; h + 4 <= heads; h += 4)
        values_heads(4, p + (size_t)h * ldp, ldp, den + h, keys, n, dim, o + (size_t)h * (size_t)dim);
    for (; h < heads; h++)
        values_heads(1, p + (size_t)h * ldp, ldp, den + h, keys, n, dim, o + (size_t)h * (size_t)dim);
}

/* ---- indexer ---- */

enum { INDEX_KEYS = 16 };

static void decode_index_key(const uint8_t *codes, const uint8_t *scales, int dim, uint16_t *out)
{
    __m512i table = _mm512_load_si512(mdl_avx512_e2m1);
    for (int c = 0; c < dim; c += 32) {
        if (!scale_folds(scales[c / 32])) {
            mdl_dequant_q4i(codes + c / 2, scales + c / 32, 32, out + c);
            continue;
        }
        __m512i at = e2m1_indices(_mm_loadu_si128((const __m128i *)(codes + c / 2)));
        _mm512_store_si512(out + c,
                           _mm512_permutexvar_epi16(at, e2m1_scaled_table(table, scale_addend(scales[c / 32]))));
    }
}

/* Lane j belongs to key j, so heads add in ascending order for 16 keys at once. */
static void avx512_index_scores(const uint16_t *q, const float *weight, int heads, int dim, const uint8_t *codes,
                                const uint8_t *scales, int n, float *score)
{
    _Alignas(64) uint16_t key[INDEX_KEYS][MDL_MAX_INDEX_DIM];
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

const struct mdl_backend mdl_backend_avx512 = {
    .name = "avx512",
    .linear = mdl_avx512_linear,
    .dots = avx512_dots,
    .softmax = avx512_softmax,
    .values = avx512_values,
    .index_scores = avx512_index_scores,
    .dequant_q8 = avx512_dequant_q8,
    .dequant_q4k = avx512_dequant_q4k,
    .quant_q8 = mdl_avx512_quant_q8,
    .fakequant_q8 = mdl_avx512_fakequant_q8,
    .mean_square = mdl_avx512_mean_square,
    .rms_scale = mdl_avx512_rms_scale,
    .swiglu = mdl_avx512_swiglu,
    .collapse = mdl_avx512_collapse,
    .expand = mdl_avx512_expand,
};
