/* The parts of the AVX-512 table that live in their own file; for model/cpu/ only. */
#ifndef WEFT_MODEL_CPU_AVX512_H
#define WEFT_MODEL_CPU_AVX512_H

#include <stddef.h>
#include <stdint.h>

struct mdl_linear;

/* As struct mdl_backend.linear. */
void mdl_avx512_linear(const struct mdl_linear *w, const uint16_t *x, size_t ldx, int rows, int n0, int n1, float *y,
                       size_t ldy);

/* As the entries of struct mdl_backend with these names. */
void mdl_avx512_quant_q8(const uint16_t *x, int n, uint8_t *codes, uint8_t *scales);
void mdl_avx512_fakequant_q8(const uint16_t *x, int n, uint16_t *out);
double mdl_avx512_mean_square(const uint16_t *x, int n);
void mdl_avx512_rms_scale(const uint16_t *x, const uint16_t *w, float inv, int n, uint16_t *y);
void mdl_avx512_swiglu(const uint16_t *a, const uint16_t *b, float limit, float weight, int n, uint16_t *h);
void mdl_avx512_collapse(const uint16_t *x, const float *p, int d, uint16_t *u);
void mdl_avx512_expand(const uint16_t *v, const float *post, const float *comb, int d, uint16_t *x);

#endif
