/* The layout of a dispatch's tail (actors/exchange.h gives the bytes), for both of its ends. */
#ifndef WEFT_ACTORS_EXCHANGE_WIRE_H
#define WEFT_ACTORS_EXCHANGE_WIRE_H

#include <stddef.h>
#include <stdint.h>

struct act_dispatch_size {
    uint32_t rows, pairs, hidden, zero;
};

struct act_dispatch_pair {
    uint32_t expert;
    float weight;
};

struct act_dispatch {
    uint32_t *pairs;
    struct act_dispatch_pair *pair;
    uint8_t *codes, *scales;
};

static inline size_t act_dispatch_bytes(const struct act_dispatch_size *s)
{
    return sizeof *s + (size_t)s->rows * (sizeof(uint32_t) + s->hidden + s->hidden / 32) +
           (size_t)s->pairs * sizeof(struct act_dispatch_pair);
}

/* Where the parts of a tail of these sizes begin; nothing is written. */
static inline void act_dispatch_parts(const struct act_dispatch_size *s, void *tail, struct act_dispatch *out)
{
    uint8_t *p = (uint8_t *)tail + sizeof *s;
    out->pairs = (uint32_t *)(void *)p;
    p += (size_t)s->rows * sizeof(uint32_t);
    out->pair = (struct act_dispatch_pair *)(void *)p;
    p += (size_t)s->pairs * sizeof(struct act_dispatch_pair);
    out->codes = p;
    out->scales = p + (size_t)s->rows * s->hidden;
}

/* The same for a tail that is being made: writes the sizes, too. */
static inline void act_dispatch_place(const struct act_dispatch_size *s, void *tail, struct act_dispatch *out)
{
    *(struct act_dispatch_size *)tail = *s;
    act_dispatch_parts(s, tail, out);
}

#endif
