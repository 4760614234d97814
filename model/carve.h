/* One allocation cut into aligned pieces: the same code runs twice, first with base NULL to count the bytes, then to
 * hand the pieces out. Owned by the function that carves. */
#ifndef WEFT_MODEL_CARVE_H
#define WEFT_MODEL_CARVE_H

#include <stddef.h>
#include <stdint.h>

enum { MDL_CARVE_ALIGN = 64 };

struct mdl_carver {
    uint8_t *base;
    size_t used;
};

/* count items of size bytes; NULL while counting. */
static inline void *mdl_carve(struct mdl_carver *c, size_t count, size_t size)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += (count * size + MDL_CARVE_ALIGN - 1) / MDL_CARVE_ALIGN * MDL_CARVE_ALIGN;
    return p;
}

#endif
