/* Linear maps of the AVX-512 path. Called through mdl_backend_avx512 only.
 *
 * One output element is one accumulator of 16 lanes over ascending blocks of 32 inputs; weights are decoded to bf16
 * with their scale multiplied in, which is exact. Two kernels share that order: few rows decode a weight in registers
 * and use it at once, many rows decode a panel of eight weight rows and pass it over all input rows. A tile with a
 * scale that cannot be multiplied in goes through a third, slow kernel with the same order. */
#include "model/backend.h"
#include "model/cpu/avx512.h"
#include "model/cpu/lanes_avx512.h"

#define E4W(e, m)                                                                                                      \
    ((e) == 0                ? (m) == 0   ? 0                                                                          \
                               : (m) == 1 ? 0x3b01                                                                     \
                               : (m) < 4  ? 0x3b81 + ((m)-2) * 64                                                      \
                                          : 0x3c01 + ((m)-4) * 32                                                      \
     : (e) == 15 && (m) == 7 ? 0x7fc0                                                                                  \
                             : ((e) + 120) * 128 + (m)*16 + 1)
#define E4ROW(e, f)                                                                                                    \
    f(E4W(e, 0)), f(E4W(e, 1)), f(E4W(e, 2)), f(E4W(e, 3)), f(E4W(e, 4)), f(E4W(e, 5)), f(E4W(e, 6)), f(E4W(e, 7))
#define E4ALL(f)                                                                                                       \
    E4ROW(0, f), E4ROW(1, f), E4ROW(2, f), E4ROW(3, f), E4ROW(4, f), E4ROW(5, f), E4ROW(6, f), E4ROW(7, f),            \
        E4ROW(8, f), E4ROW(9, f), E4ROW(10, f), E4ROW(11, f), E4ROW(12, f), E4ROW(13, f), E4ROW(14, f), E4ROW(15, f)
#define LOW(w) ((w)&255)
#define PLAIN(w) ((w)&254)
#define HIGH(w) ((w) >> 8)

_Alignas(64) const uint8_t mdl_avx512_e4m3_low[128] = {E4ALL(LOW)};
_Alignas(64) const uint8_t mdl_avx512_e4m3_plain[128] = {E4ALL(PLAIN)};
_Alignas(64) const uint8_t mdl_avx512_e4m3_high[128] = {E4ALL(HIGH)};

#define E2ALL                                                                                                          \
    0x0000, 0x3f01, 0x3f81, 0x3fc1, 0x4001, 0x4041, 0x4081, 0x40c1, 0x8000, 0xbf01, 0xbf81, 0xbfc1, 0xc001, 0xc041,    \
        0xc081, 0xc0c1
_Alignas(64) const uint16_t mdl_avx512_e2m1[32] = {E2ALL, E2ALL};

enum {
    NW = 4,           /* weight rows that a kernel takes together; divides the 32 rows of a scale block */
    DIRECT = 4,       /* up to this many rows decode in registers */
    DIRECT_K = 20480, /* up to this width */
    PW = 8,           /* weight rows of a panel */
    NR = 3,           /* input rows per register block of the panel kernel */
    AHEAD = 16384,    /* bytes between a prefetch and its use */
    GROUP = 96,       /* input rows that share one decoded panel */
    CHUNK = 1024      /* inputs per panel */
};

/* Where a kernel reads: the same weight row twice when fewer than NW are left. */
struct wrows {
    const uint8_t *data[NW], *scale[NW];
};

MDL_INLINE size_t row_bytes(enum mdl_wkind kind, int k)
{
    return kind == MDL_W_FP8    ? (size_t)k
           : kind == MDL_W_FP4  ? (size_t)k / 2
           : kind == MDL_W_BF16 ? (size_t)k * 2
                                : (size_t)k * 4;
}

static struct wrows rows_at(const struct mdl_linear *w, int n, int n1)
{
    struct wrows r = {0};
    size_t blocks = (size_t)w->k / 32;
    for (int i = 0; i < NW; i++) {
        size_t row = (size_t)(n + i < n1 ? n + i : n1 - 1);
        r.data[i] = (const uint8_t *)w->data + row * row_bytes(w->kind, w->k);
        if (w->kind == MDL_W_FP8)
            r.scale[i] = w->scale + row / 32 * blocks;
        if (w->kind == MDL_W_FP4)
            r.scale[i] = w->scale + row * blocks;
    }
    return r;
}

struct decoder {
    struct e4m3_lut e4m3;
    __m512i e2m1;
};

MDL_INLINE struct decoder decoder_load(enum mdl_wkind kind)
{
    struct decoder d = {0};
    if (kind == MDL_W_FP8)
        d.e4m3 = e4m3_load_lut(mdl_avx512_e4m3_low);
    if (kind == MDL_W_FP4)
        d.e2m1 = _mm512_load_si512(mdl_avx512_e2m1);
    return d;
}

/* Elements k..k+63 of a weight row as bf16, scale included; with left < 64 the others are zero. */
MDL_INLINE void decode64(enum mdl_wkind kind, const struct decoder *d, const uint8_t *data, const uint8_t *scale, int k,
                         int left, __m512i *w0, __m512i *w1)
{
    bool second = left > 32;
    if (kind == MDL_W_FP8) {
        __m512i c = left >= 64 ? _mm512_loadu_si512(data + k) : _mm512_maskz_loadu_epi8(mask64(left), data + k);
        e4m3_decode(&d->e4m3, c, w0, w1);
        *w0 = fold_scale(*w0, scale_addend(scale[k / 32]));
        *w1 = second ? fold_scale(*w1, scale_addend(scale[k / 32 + 1])) : _mm512_setzero_si512();
    } else if (kind == MDL_W_FP4) {
        __m512i i0 = e2m1_indices(_mm_loadu_si128((const __m128i *)(data + k / 2)));
        *w0 = _mm512_permutexvar_epi16(i0, e2m1_scaled_table(d->e2m1, scale_addend(scale[k / 32])));
        *w1 = _mm512_setzero_si512();
        if (second) {
            __m512i i1 = e2m1_indices(_mm_loadu_si128((const __m128i *)(data + k / 2 + 16)));
            *w1 = _mm512_permutexvar_epi16(i1, e2m1_scaled_table(d->e2m1, scale_addend(scale[k / 32 + 1])));
        }
    } else {
        const uint16_t *p = (const uint16_t *)data + k;
        *w0 = left >= 64 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16(mask32(left), p);
        *w1 = left >= 64 ? _mm512_loadu_si512(p + 32) : _mm512_maskz_loadu_epi16(mask32(left - 32), p + 32);
    }
}

MDL_INLINE __m512i load_x(const uint16_t *x, int left)
{
    return left >= 32 ? _mm512_loadu_si512(x) : _mm512_maskz_loadu_epi16(mask32(left), x);
}

MDL_INLINE void store_sums(__m512 (*acc)[NW], int nr, float *y, size_t ldy, int nw)
{
    MDL_UNROLL
    for (int r = 0; r < nr; r++)
        _mm_mask_storeu_ps(y + (size_t)r * ldy, (__mmask8)((1 << nw) - 1),
                           sum_lanes4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]));
}

/* ---- few rows: weights are decoded in registers and used at once ---- */

/* FP8 scales belong to 32 weight rows, so they are multiplied into the inputs, once for a whole tile. This is the same
 * product as with the scale in the weight as long as the scaled input stays a normal bf16; returns false when one does
 * not. Zeros, subnormals (zero to the dot product), infinities and NaN stay as they are. */
static bool scale_inputs(const uint8_t *scale, const uint16_t *x, int k, uint16_t *out)
{
    const __m512i magnitude = _mm512_set1_epi16(0x7fff), least = _mm512_set1_epi16(0x80),
                  span = _mm512_set1_epi16(0x7eff);
    __mmask32 bad = 0;
    for (int i = 0; i < k; i += 32) {
        __m512i v = _mm512_loadu_si512(x + i), add = _mm512_set1_epi16((short)(((int)scale[i / 32] - 127) * 128));
        __m512i above = _mm512_sub_epi16(_mm512_and_si512(v, magnitude), least);
        __mmask32 normal = _mm512_cmple_epu16_mask(above, span);
        bad |= _mm512_mask_cmpgt_epu16_mask(normal, _mm512_add_epi16(above, add), span);
        _mm512_store_si512(out + i, _mm512_mask_add_epi16(v, normal, v, add));
    }
    return !bad;
}

MDL_INLINE void fp8_step(int nr, const struct e4m3_lut *lut, const struct wrows *w, const uint16_t *x, size_t ldx,
                         int k, int left, __m512 (*acc)[NW])
{
    MDL_UNROLL
    for (int i = 0; i < NW; i++) {
        __m512i w0, w1;
        e4m3_decode(lut,
                    left >= 64 ? _mm512_loadu_si512(w->data[i] + k)
                               : _mm512_maskz_loadu_epi8(mask64(left), w->data[i] + k),
                    &w0, &w1);
        MDL_UNROLL
        for (int r = 0; r < nr; r++) {
            acc[r][i] = dot_step(acc[r][i], w0, load_x(x + (size_t)r * ldx + k, left));
            acc[r][i] = dot_step(acc[r][i], w1, load_x(x + (size_t)r * ldx + k + 32, left - 32));
        }
    }
}

/* Rows of a matrix lie one after the other, so what comes next follows in memory; it is fetched line by line while NW
 * rows are used, at least AHEAD bytes before its turn. Rows are too short for the hardware to find its pace in each of
 * them. */
MDL_INLINE void prefetch_lines(const uint8_t *at, int lines)
{
    MDL_UNROLL
    for (int i = 0; i < lines; i++)
        _mm_prefetch((const char *)at + 64 * i, _MM_HINT_T0);
}

/* Addends of the FP4 scales of NW rows, as words. The scales of rows further on are fetched meanwhile. */
static void fp4_addends(const struct wrows *w, int blocks, size_t rows_ahead, uint16_t (*addend)[DIRECT_K / 32])
{
    for (int i = 0; i < NW * blocks; i += 64)
        prefetch_lines(w->scale[0] + rows_ahead * (size_t)blocks + i, 1);
    for (int i = 0; i < NW; i++)
        for (int b = 0; b < blocks; b += 32) {
            __m256i s = _mm256_maskz_loadu_epi8(mask32(blocks - b), w->scale[i] + b);
            __m512i a =
                _mm512_sub_epi16(_mm512_slli_epi16(_mm512_cvtepu8_epi16(s), 7), _mm512_set1_epi16(127 * 128 + 1));
            _mm512_store_si512(addend[i] + b, a);
        }
}

MDL_INLINE void fp4_step(int nr, __m512i table, const struct wrows *w, uint16_t (*addend)[DIRECT_K / 32],
                         const uint16_t *x, size_t ldx, int k, __m512 (*acc)[NW])
{
    MDL_UNROLL
    for (int i = 0; i < NW; i++) {
        __m512i at = e2m1_indices(_mm_loadu_si128((const __m128i *)(w->data[i] + k / 2)));
        __m512i v = _mm512_permutexvar_epi16(at, e2m1_scaled_table(table, _mm512_set1_epi16((short)addend[i][k / 32])));
        MDL_UNROLL
        for (int r = 0; r < nr; r++)
            acc[r][i] = dot_step(acc[r][i], v, _mm512_loadu_si512(x + (size_t)r * ldx + k));
    }
}

MDL_INLINE void bf16_step(int nr, const struct wrows *w, const uint16_t *x, size_t ldx, int k, int left,
                          __m512 (*acc)[NW])
{
    MDL_UNROLL
    for (int i = 0; i < NW; i++) {
        __m512i v = load_x((const uint16_t *)w->data[i] + k, left);
        MDL_UNROLL
        for (int r = 0; r < nr; r++)
            acc[r][i] = dot_step(acc[r][i], v, load_x(x + (size_t)r * ldx + k, left));
    }
}

MDL_INLINE void direct_rows(enum mdl_wkind kind, int nr, const struct mdl_linear *lin, const uint16_t *x, size_t ldx,
                            int n0, int n1, float *y, size_t ldy)
{
    struct e4m3_lut lut = {0};
    __m512i table = _mm512_load_si512(mdl_avx512_e2m1);
    _Alignas(64) uint16_t addend[NW][DIRECT_K / 32]; /* FP4 only */
    if (kind == MDL_W_FP8)
        lut = e4m3_load_lut(mdl_avx512_e4m3_plain);
    int step = kind == MDL_W_FP8 ? 64 : 32, full = lin->k & -step;
    size_t together = NW * row_bytes(kind, lin->k), ahead = (AHEAD + together - 1) / together * together;
    for (int n = n0; n < n1; n += NW) {
        struct wrows w = rows_at(lin, n, n1);
        __m512 acc[DIRECT][NW];
        MDL_UNROLL
        for (int r = 0; r < nr; r++)
            MDL_UNROLL
        for (int i = 0; i < NW; i++)
            acc[r][i] = _mm512_setzero_ps();
        const uint8_t *next = w.data[0] + ahead;
        if (kind == MDL_W_FP4) {
            fp4_addends(&w, lin->k / 32, ahead / row_bytes(kind, lin->k), addend);
            for (int k = 0; k < full; k += 32) {
                prefetch_lines(next + 2 * k, 1);
                fp4_step(nr, table, &w, addend, x, ldx, k, acc);
            }
        } else if (kind == MDL_W_FP8) {
            for (int k = 0; k < full; k += 64) {
                prefetch_lines(next + NW * k, NW);
                fp8_step(nr, &lut, &w, x, ldx, k, 64, acc);
            }
            if (full < lin->k)
                fp8_step(nr, &lut, &w, x, ldx, full, lin->k - full, acc);
        } else {
            for (int k = 0; k < full; k += 32) {
                prefetch_lines(next + 2 * NW * k, NW);
                bf16_step(nr, &w, x, ldx, k, 32, acc);
            }
            if (full < lin->k)
                bf16_step(nr, &w, x, ldx, full, lin->k - full, acc);
        }
        store_sums(acc, nr, y + (n - n0), ldy, n1 - n < NW ? n1 - n : NW);
    }
}

MDL_INLINE void direct(enum mdl_wkind kind, const struct mdl_linear *w, const uint16_t *x, size_t ldx, int rows, int n0,
                       int n1, float *y, size_t ldy)
{
    switch (rows) {
    case 1:
        direct_rows(kind, 1, w, x, ldx, n0, n1, y, ldy);
        break;
    case 2:
        direct_rows(kind, 2, w, x, ldx, n0, n1, y, ldy);
        break;
    case 3:
        direct_rows(kind, 3, w, x, ldx, n0, n1, y, ldy);
        break;
    default:
        direct_rows(kind, 4, w, x, ldx, n0, n1, y, ldy);
        break;
    }
}

/* Tile by tile with scaled inputs; false when a scaled input would leave bf16's range. */
static bool direct_fp8(const struct mdl_linear *w, const uint16_t *x, size_t ldx, int rows, int n0, int n1, float *y,
                       size_t ldy)
{
    _Alignas(64) uint16_t scaled[DIRECT][DIRECT_K];
    for (int n = n0; n < n1; n = (n / 32 + 1) * 32) {
        int stop = (n / 32 + 1) * 32 < n1 ? (n / 32 + 1) * 32 : n1;
        for (int r = 0; r < rows; r++)
            if (!scale_inputs(w->scale + (size_t)(n / 32) * (size_t)(w->k / 32), x + (size_t)r * ldx, w->k, scaled[r]))
                return false;
        direct(MDL_W_FP8, w, scaled[0], DIRECT_K, rows, n, stop, y + (n - n0), ldy);
    }
    return true;
}

/* ---- many rows: a panel of decoded weights passes over all of them ---- */

/* Decoded weights of one chunk, block by block and row by row within a block, so that a step reads consecutive memory.
 */
typedef uint16_t panel_block[PW][32];

MDL_INLINE void fill_panel(enum mdl_wkind kind, const struct mdl_linear *lin, int n, int n1, int k0, int len,
                           panel_block *panel)
{
    struct decoder d = decoder_load(kind);
    /* The next chunk of these rows, or the first one of the next rows. */
    size_t next = row_bytes(kind, k0 + CHUNK < lin->k ? CHUNK : PW * lin->k - k0);
    for (int i = 0; i < PW; i += NW) {
        struct wrows w = rows_at(lin, n + i < n1 ? n + i : n1 - 1, n1);
        for (int k = 0; k < len; k += 64)
            MDL_UNROLL
        for (int j = 0; j < NW; j++) {
            __m512i w0, w1;
            prefetch_lines(w.data[j] + row_bytes(kind, k0 + k) + next, kind == MDL_W_BF16 ? 2 : 1);
            if (len - k >= 64)
                decode64(kind, &d, w.data[j], w.scale[j], k0 + k, 64, &w0, &w1);
            else
                decode64(kind, &d, w.data[j], w.scale[j], k0 + k, len - k, &w0, &w1);
            _mm512_store_si512(panel[k / 32][i + j], w0);
            _mm512_store_si512(panel[k / 32 + 1][i + j], w1);
        }
    }
}

MDL_INLINE void panel_step(int nr, const panel_block *p, const uint16_t *x, size_t ldx, int left, __m512 (*acc)[PW])
{
    __m512i v[NR];
    MDL_UNROLL
    for (int r = 0; r < nr; r++)
        v[r] = load_x(x + (size_t)r * ldx, left);
    MDL_UNROLL
    for (int i = 0; i < PW; i++) {
        __m512i w = _mm512_load_si512((*p)[i]);
        MDL_UNROLL
        for (int r = 0; r < nr; r++)
            acc[r][i] = dot_step(acc[r][i], w, v[r]);
    }
}

/* nr input rows over one panel; sums of earlier chunks come from and go to keep. */
MDL_INLINE void panel_rows(int nr, const panel_block *panel, int len, const uint16_t *x, size_t ldx, bool first,
                           float (*keep)[PW][16])
{
    __m512 acc[NR][PW];
    MDL_UNROLL
    for (int r = 0; r < nr; r++)
        MDL_UNROLL
    for (int i = 0; i < PW; i++)
        acc[r][i] = first ? _mm512_setzero_ps() : _mm512_load_ps(keep[r][i]);
    int k = 0;
    for (; k + 32 <= len; k += 32)
        panel_step(nr, &panel[k / 32], x + k, ldx, 32, acc);
    if (k < len)
        panel_step(nr, &panel[k / 32], x + k, ldx, len - k, acc);
    MDL_UNROLL
    for (int r = 0; r < nr; r++)
        MDL_UNROLL
    for (int i = 0; i < PW; i++)
        _mm512_store_ps(keep[r][i], acc[r][i]);
}

static __attribute__((noinline)) void panel_rows_all(const panel_block *panel, int len, const uint16_t *x, size_t ldx,
                                                     int rows, bool first, float (*keep)[PW][16])
{
    int r = 0;
    for (; r + NR <= rows; r += NR)
        panel_rows(NR, panel, len, x + (size_t)r * ldx, ldx, first, keep + r);
    x += (size_t)r * ldx;
    switch (rows - r) {
    case 1:
        panel_rows(1, panel, len, x, ldx, first, keep + r);
        break;
    case 2:
        panel_rows(2, panel, len, x, ldx, first, keep + r);
        break;
    default:
        break;
    }
}

static void paneled(const struct mdl_linear *lin, const uint16_t *x, size_t ldx, int rows, int n0, int n1, float *y,
                    size_t ldy)
{
    _Alignas(64) panel_block panel[CHUNK / 32];
    _Alignas(64) float keep[GROUP][PW][16];
    for (int n = n0; n < n1; n += PW) {
        for (int k0 = 0; k0 < lin->k; k0 += CHUNK) {
            int len = lin->k - k0 < CHUNK ? lin->k - k0 : CHUNK;
            switch (lin->kind) {
            case MDL_W_FP8:
                fill_panel(MDL_W_FP8, lin, n, n1, k0, len, panel);
                break;
            case MDL_W_FP4:
                fill_panel(MDL_W_FP4, lin, n, n1, k0, len, panel);
                break;
            default:
                fill_panel(MDL_W_BF16, lin, n, n1, k0, len, panel);
                break;
            }
            panel_rows_all((const panel_block *)panel, len, x + k0, ldx, rows, k0 == 0, keep);
        }
        for (int i = 0; i < PW && n + i < n1; i += NW) {
            int nw = n1 - n - i < NW ? n1 - n - i : NW;
            for (int r = 0; r < rows; r++) {
                __m512 acc[1][NW];
                for (int j = 0; j < NW; j++)
                    acc[0][j] = _mm512_load_ps(keep[r][i + j]);
                store_sums(acc, 1, y + (size_t)r * ldy + (n + i - n0), ldy, nw);
            }
        }
    }
}

/* ---- scales that no bf16 exponent can take ---- */

static bool scales_fold(const struct mdl_linear *w, int n0, int n1)
{
    if (w->kind != MDL_W_FP8 && w->kind != MDL_W_FP4)
        return true;
    size_t blocks = (size_t)w->k / 32, first = (size_t)n0, last = (size_t)n1 - 1;
    if (w->kind == MDL_W_FP8) {
        first /= 32;
        last /= 32;
    }
    const uint8_t *s = w->scale + first * blocks;
    size_t n = (last - first + 1) * blocks;
    __mmask64 bad = 0;
    const __m512i low = _mm512_set1_epi8(SCALE_MIN), span = _mm512_set1_epi8((char)(SCALE_MAX - SCALE_MIN));
    for (size_t i = 0; i < n; i += 64) {
        __mmask64 m = mask64(n - i < 64 ? (int)(n - i) : 64);
        __m512i v = _mm512_sub_epi8(_mm512_maskz_loadu_epi8(m, s + i), low);
        bad |= _mm512_mask_cmpgt_epu8_mask(m, v, span);
    }
    return !bad;
}

static __m512i decode32(const struct mdl_linear *w, const uint8_t *data, int k, uint8_t scale)
{
    uint8_t two[2] = {scale, scale};
    __m512i first, second;
    struct decoder d = decoder_load(w->kind);
    const uint8_t *at = data + row_bytes(w->kind, k);
    if (w->kind == MDL_W_FP8)
        decode64(MDL_W_FP8, &d, at, two, 0, 32, &first, &second);
    else
        decode64(MDL_W_FP4, &d, at, two, 0, 32, &first, &second);
    return first;
}

/* Block by block: a scale that folds is folded as everywhere, another multiplies the lanes of the block's own sum. */
static void wild(const struct mdl_linear *lin, const uint16_t *x, size_t ldx, int rows, int n0, int n1, float *y,
                 size_t ldy)
{
    for (int n = n0; n < n1; n++) {
        struct wrows w = rows_at(lin, n, n1);
        for (int r = 0; r < rows; r++) {
            __m512 acc = _mm512_setzero_ps();
            for (int k = 0; k < lin->k; k += 32) {
                uint8_t scale = w.scale[0][k / 32];
                __m512i v = _mm512_loadu_si512(x + (size_t)r * ldx + k);
                if (scale_folds(scale)) {
                    acc = dot_step(acc, decode32(lin, w.data[0], k, scale), v);
                } else {
                    __m512 sum = dot_step(_mm512_setzero_ps(), decode32(lin, w.data[0], k, 127), v);
                    acc = _mm512_fmadd_ps(sum, _mm512_set1_ps(mdl_from_e8m0(scale)), acc);
                }
            }
            __m512 one[1][NW] = {{acc, acc, acc, acc}};
            store_sums(one, 1, y + (size_t)r * ldy + (n - n0), ldy, 1);
        }
    }
}

/* ---- float32 weights: 16 inputs at a time, lane i takes element i, multiply and add fused ---- */

MDL_INLINE void f32_step(int nr, const struct wrows *w, const uint16_t *x, size_t ldx, int k, __mmask16 m,
                         __m512 (*acc)[NW])
{
    __m512 v[NW];
    MDL_UNROLL
    for (int i = 0; i < NW; i++)
        v[i] = _mm512_maskz_loadu_ps(m, (const float *)w->data[i] + k);
    MDL_UNROLL
    for (int r = 0; r < nr; r++) {
        __m256i h = _mm256_maskz_loadu_epi16(m, x + (size_t)r * ldx + k);
        __m512 f = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
        MDL_UNROLL
        for (int i = 0; i < NW; i++)
            acc[r][i] = _mm512_fmadd_ps(v[i], f, acc[r][i]);
    }
}

MDL_INLINE void f32_rows(int nr, const struct mdl_linear *lin, const uint16_t *x, size_t ldx, int n0, int n1, float *y,
                         size_t ldy)
{
    for (int n = n0; n < n1; n += NW) {
        struct wrows w = rows_at(lin, n, n1);
        __m512 acc[DIRECT][NW];
        MDL_UNROLL
        for (int r = 0; r < nr; r++)
            MDL_UNROLL
        for (int i = 0; i < NW; i++)
            acc[r][i] = _mm512_setzero_ps();
        int k = 0;
        for (; k + 16 <= lin->k; k += 16)
            f32_step(nr, &w, x, ldx, k, 0xffff, acc);
        if (k < lin->k)
            f32_step(nr, &w, x, ldx, k, (__mmask16)((1u << (lin->k - k)) - 1), acc);
        store_sums(acc, nr, y + (n - n0), ldy, n1 - n < NW ? n1 - n : NW);
    }
}

static void f32_linear(const struct mdl_linear *w, const uint16_t *x, size_t ldx, int rows, int n0, int n1, float *y,
                       size_t ldy)
{
    int r = 0;
    for (; r + 4 <= rows; r += 4)
        f32_rows(4, w, x + (size_t)r * ldx, ldx, n0, n1, y + (size_t)r * ldy, ldy);
    for (; r < rows; r++)
        f32_rows(1, w, x + (size_t)r * ldx, ldx, n0, n1, y + (size_t)r * ldy, ldy);
}

void mdl_avx512_linear(const struct mdl_linear *w, const uint16_t *x, size_t ldx, int rows, int n0, int n1, float *y,
                       size_t ldy)
{
    if (w->kind == MDL_W_F32) {
        f32_linear(w, x, ldx, rows, n0, n1, y, ldy);
        return;
    }
    if (!scales_fold(w, n0, n1)) {
        wild(w, x, ldx, rows, n0, n1, y, ldy);
        return;
    }
    if (rows <= DIRECT && w->k <= DIRECT_K) {
        if (w->kind == MDL_W_FP8 && direct_fp8(w, x, ldx, rows, n0, n1, y, ldy))
            return;
        if (w->kind == MDL_W_FP4) {
            direct(MDL_W_FP4, w, x, ldx, rows, n0, n1, y, ldy);
            return;
        }
        if (w->kind == MDL_W_BF16) {
            direct(MDL_W_BF16, w, x, ldx, rows, n0, n1, y, ldy);
            return;
        }
    }
    for (int r = 0; r < rows; r += GROUP)
        paneled(w, x + (size_t)r * ldx, ldx, rows - r < GROUP ? rows - r : GROUP, n0, n1, y + (size_t)r * ldy, ldy);
}
