/* Little-endian numbers in bytes, and texts in arrays. Any thread. */
#ifndef WEFT_TRANSPORT_BYTES_H
#define WEFT_TRANSPORT_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline void tp_put_uint(uint8_t *at, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

static inline uint64_t tp_get_uint(const uint8_t *at, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint64_t)at[i] << (8 * i);
    return v;
}

static inline uint32_t tp_get32(const uint8_t *at)
{
    return (uint32_t)tp_get_uint(at, 4);
}

static inline uint64_t tp_get64(const uint8_t *at)
{
    return tp_get_uint(at, 8);
}

/* Copies text into out, cut to its size. The two may be the same. */
static inline void tp_copy_text(char *out, size_t size, const char *text)
{
    size_t n = strnlen(text, size - 1);
    memmove(out, text, n);
    out[n] = 0;
}

#endif
