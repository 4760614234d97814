/* Number formats and the element functions of the network.
 *
 * Pure functions without state; any thread. All are written with plain IEEE single or double operations (the build
 * forbids contraction), so they give the same bits on every machine; that is why the exponential and the logarithm are
 * our own: the C library picks variants by CPU.
 *
 * Formats (docs/ARCHITECTURE.md, "Numbers"):
 *   bf16   upper half of a float32, round to nearest even
 *   E4M3   bias 7, largest 448, no infinity, 0x7F/0xFF NaN
 *   E8M0   2^(code-127), 255 NaN
 *   E2M1   0 .5 1 1.5 2 3 4 6, bit 3 = sign; two per byte, even index in the low nibble */
#ifndef WEFT_MODEL_NUMERICS_H
#define WEFT_MODEL_NUMERICS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t mdl_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static inline float mdl_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static inline float mdl_from_bf16(uint16_t h)
{
    return mdl_float((uint32_t)h << 16);
}

/* NaN stays NaN (quiet); overflow rounds to infinity. */
static inline uint16_t mdl_to_bf16(float x)
{
    uint32_t u = mdl_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

static inline float mdl_round_bf16(float x)
{
    return mdl_from_bf16(mdl_to_bf16(x));
}

/* Decode tables; index = code. */
extern const float mdl_e4m3_table[256];
extern const float mdl_e2m1_table[16];

/* 2^(code-127); code 255 is NaN, code 0 the float32 subnormal 2^-127. */
static inline float mdl_from_e8m0(uint8_t code)
{
    if (code == 0)
        return mdl_float(0x00400000u);
    if (code == 255)
        return mdl_float(0x7fc00000u);
    return mdl_float((uint32_t)code << 23);
}

/* Saturating casts: clamp to the largest finite value, then round to nearest even. NaN gives the format's NaN (E4M3)
 * or 0 (E2M1); neither occurs in a run. */
uint8_t mdl_to_e4m3(float x);
uint8_t mdl_to_e2m1(float x);

/* E8M0 code of the smallest power of two that is not below x; x > 0 and finite. */
uint8_t mdl_p2ceil_code(float x);

/* Quantisers: group along the row, codes and scales written separately. n is a multiple of the group (32, 16, 32).
 * x is bf16. q8: E4M3 + E8M0 per 32. q4k: packed E2M1 + E4M3 per 16. q4i: packed E2M1 + E8M0 per 32. */
void mdl_quant_q8(const uint16_t *x, int n, uint8_t *codes, uint8_t *scales);
void mdl_quant_q4k(const uint16_t *x, int n, uint8_t *codes, uint8_t *scales);
void mdl_quant_q4i(const uint16_t *x, int n, uint8_t *codes, uint8_t *scales);

/* The products code x scale are exact in bf16. */
void mdl_dequant_q8(const uint8_t *codes, const uint8_t *scales, int n, uint16_t *out);
void mdl_dequant_q4k(const uint8_t *codes, const uint8_t *scales, int n, uint16_t *out);
void mdl_dequant_q4i(const uint8_t *codes, const uint8_t *scales, int n, uint16_t *out);

/* Quantise and dequantise in one go; in place allowed. */
void mdl_fakequant_q8(const uint16_t *x, int n, uint16_t *out);

/* e^x, relative error below 2e-7; 0 below -104, infinity above 88.7. The vector paths use the same steps per lane. */
float mdl_expf(float x);
/* Double versions, relative error below 1e-15. */
double mdl_exp(double x);
double mdl_log(double x);

/* 1/(1+e^-x) and log(1+e^x), evaluated in double and rounded once. */
float mdl_sigmoid(float x);
float mdl_softplus(float x);

#endif
