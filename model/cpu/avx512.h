/* The parts of the AVX-512 table that live in their own file; for model/cpu/ only. */
#ifndef WEFT_MODEL_CPU_AVX512_H
#define WEFT_MODEL_CPU_AVX512_H

#include <stddef.h>
#include <stdint.h>

struct mdl_linear;

/* As struct mdl_backend.linear. */
void mdl_avx512_linear(const struct mdl_linear *w, const uint16_t *x, size_t ldx, int rows, int n0, int n1, float *y,
                       size_t ldy);

#endif
