/* The kernels of one CPU path behind one table, and the parallel loops around them.
 *
 * A path is chosen once per process (WEFT_CPU=scalar|avx2|avx512 forces one; otherwise the best that the machine has).
 * Within a path every kernel computes an output element in one fixed order that depends on nothing but the sizes of
 * that element's own operands, so neither the number of rows nor the split over tiles and threads changes a bit. The
 * orders:
 *
 *   scalar  linear: 32-element blocks in ascending order, elements of a block in ascending order, each block sum
 *           multiplied by its scale and added to the total. dot products of attention and indexer: ascending.
 *   avx512  linear and dot products: 16 lanes; 32 elements at a time, blocks in ascending order, lane i adds the
 * products of elements 2i and 2i+1 of each block as vdpbf16ps does. Scales are multiplied into the weights first, which
 *           is exact; a block whose scale would leave bf16's range (below 2^-117 or above 2^119) is summed from zero
 * and its lanes are multiplied by the scale and added (fused). At the end lanes are added in pairs: i + i+8, i + i+4, i
 * + i+2, i + i+1. float32 weights: 16 elements at a time, lane i takes element i (fused), the same end. vdpbf16ps takes
 * inputs and sums below 2^-126 as zero. Softmax sums: keys in slot order (window first, then selected rows), 16 at a
 * time, key i to lane i, the same end. scalar  softmax sums: keys in ascending slot order. all     value sums: keys in
 * ascending slot order. Heads of an index score: ascending.
 *
 * Products of bf16, E4M3 and E2M1 values are exact in float32, and scales are powers of two (or E4M3 for main KV rows,
 * applied exactly), so only the order of additions matters. */
#ifndef WEFT_MODEL_BACKEND_H
#define WEFT_MODEL_BACKEND_H

#include "model/checkpoint.h"
#include "model/team.h"

struct mdl_backend {
    const char *name;
    /* y[r*ldy + (n-n0)] = sum_k x[r*ldx + k] W[n][k] for n in n0..n1-1; x bf16, y f32. n0 is a multiple of 32. */
    void (*linear)(const struct mdl_linear *w, const uint16_t *x, size_t ldx, int rows, int n0, int n1, float *y,
                   size_t ldy);
    /* Attention of some heads over the same n keys: q and o bf16 [heads][dim], keys [n][dim], s and p [heads][n] with
     * rows lds apart. dim is a multiple of 32. dots: s[h][i] = q_h . key_i. */
    void (*dots)(const uint16_t *q, int heads, const uint16_t *keys, int n, int dim, float *s, size_t lds);
    /* One head: s[i] becomes bf16(e^(s[i] scale - top)), top the largest s[i] scale. Returns the sum before rounding.
     */
    float (*softmax)(float *s, int n, float scale, float *top);
    /* o_h[c] = bf16(sum_i p[h][i] key_i[c] / den[h]), i ascending; p holds bf16 values. Same bits in every path. */
    void (*values)(const float *p, size_t ldp, const float *den, int heads, const uint16_t *keys, int n, int dim,
                   uint16_t *o);
    /* score[j] = sum_h relu(q_h . k_j) weight[h], h ascending, for n rows of packed index keys (codes dim/2 bytes and
     * scales dim/32 bytes a row, each array contiguous). q: bf16 [heads][dim]. dim is at most MDL_MAX_INDEX_DIM. */
    void (*index_scores)(const uint16_t *q, const float *weight, int heads, int dim, const uint8_t *codes,
                         const uint8_t *scales, int n, float *score);
    void (*dequant_q8)(const uint8_t *codes, const uint8_t *scales, int n, uint16_t *out);
    void (*dequant_q4k)(const uint8_t *codes, const uint8_t *scales, int n, uint16_t *out);

    /* Rows, element by element: same bits in every path. x, y, u, v, h are bf16. */
    /* As mdl_quant_q8 and mdl_fakequant_q8: n is a multiple of 32; in place allowed for the second. */
    void (*quant_q8)(const uint16_t *x, int n, uint8_t *codes, uint8_t *scales);
    void (*fakequant_q8)(const uint16_t *x, int n, uint16_t *out);
    /* Mean of squares in double, eight interleaved partial sums, added in pairs. */
    double (*mean_square)(const uint16_t *x, int n);
    /* y = w (x inv); y may be x. */
    void (*rms_scale)(const uint16_t *x, const uint16_t *w, float inv, int n, uint16_t *y);
    /* h = weight (silu(min(a, limit)) clamp(b, -limit, limit)); h may be a. */
    void (*swiglu)(const uint16_t *a, const uint16_t *b, float limit, float weight, int n, uint16_t *h);
    /* u = sum_c p[c] x_c over four streams of d values each, one after the other in x. */
    void (*collapse)(const uint16_t *x, const float *p, int d, uint16_t *u);
    /* x_c = post[c] v + sum_from comb[from][c] x_from. */
    void (*expand)(const uint16_t *v, const float *post, const float *comb, int d, uint16_t *x);
};

/* The best path of this machine when name is NULL or empty, else the named one. -ENOTSUP when the machine or the build
 * lacks it (the message lists the missing CPU features), -EINVAL for an unknown name; then *out is NULL. */
int mdl_backend_select(const char *name, const struct mdl_backend **out, struct cfg_error *err);

/* Heads that attention takes together, so that a key is read once for all of them. */
enum { MDL_ATTN_HEADS = 8 };

extern const struct mdl_backend mdl_backend_scalar;
#if defined(__x86_64__)
extern const struct mdl_backend mdl_backend_avx512; /* only through mdl_backend_select, which checks the CPU */
#endif

/* What every module needs to compute: borrowed pointers, lives with the model. */
struct mdl_exec {
    const struct mdl_config *cfg;
    const struct mdl_backend *be;
    struct mdl_team *team;
};

/* y = W x over the whole output, split over the team. bf16 results are rounded once from the f32 sum. */
void mdl_linear_f32(const struct mdl_exec *ex, const struct mdl_linear *w, const uint16_t *x, size_t ldx, int rows,
                    float *y, size_t ldy);
void mdl_linear_bf16(const struct mdl_exec *ex, const struct mdl_linear *w, const uint16_t *x, size_t ldx, int rows,
                     uint16_t *y, size_t ldy);

/* rms(x, w) of one row: x, w, y bf16 [n]; y may be x. */
void mdl_rms_row(const struct mdl_backend *be, const uint16_t *x, const uint16_t *w, int n, float eps, uint16_t *y);
void mdl_rms_rows(const struct mdl_exec *ex, const uint16_t *x, size_t ldx, const uint16_t *w, int n, int rows,
                  uint16_t *y, size_t ldy);
/* Fake-quantised q8 copy of rows. */
void mdl_fakequant_q8_rows(const struct mdl_exec *ex, const uint16_t *x, size_t ldx, int n, int rows, uint16_t *y,
                           size_t ldy);
#endif
