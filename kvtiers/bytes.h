/* Little-endian fields of what tiers write. Any thread. */
#ifndef WEFT_KVTIERS_BYTES_H
#define WEFT_KVTIERS_BYTES_H

#include <stdint.h>

static inline void kv_put_uint(uint8_t *at, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

static inline uint64_t kv_get_uint(const uint8_t *at, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint64_t)at[i] << (8 * i);
    return v;
}

#endif
