/* Name to tensor: the hash table behind one file and behind a whole checkpoint. Keys point into the tensors, which
 * must outlive the table. Built by one thread, then read by any. Private to model/. */
#ifndef WEFT_MODEL_NAMETAB_H
#define WEFT_MODEL_NAMETAB_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "model/safetensors.h"

struct mdl_nametab {
    const struct mdl_tensor **slot;
    size_t mask; /* slots - 1; slots is a power of two and at least twice the number of names */
};

static inline int mdl_nametab_init(struct mdl_nametab *t, size_t names)
{
    size_t slots = 16;
    while (slots / 2 < names)
        slots *= 2;
    t->slot = calloc(slots, sizeof(const struct mdl_tensor *));
    t->mask = slots - 1;
    return t->slot ? 0 : -ENOMEM;
}

static inline void mdl_nametab_free(struct mdl_nametab *t)
{
    free(t->slot);
    t->slot = NULL;
}

/* The slot that holds name, or the empty one where it belongs. */
static inline const struct mdl_tensor **mdl_nametab_slot(const struct mdl_nametab *t, const char *name)
{
    size_t i = (size_t)XXH3_64bits(name, strlen(name)) & t->mask;
    while (t->slot[i] && strcmp(t->slot[i]->name, name) != 0)
        i = (i + 1) & t->mask;
    return &t->slot[i];
}

/* Returns the tensor already there under this name, NULL when it was new and has been entered. */
static inline const struct mdl_tensor *mdl_nametab_put(struct mdl_nametab *t, const struct mdl_tensor *tensor)
{
    const struct mdl_tensor **slot = mdl_nametab_slot(t, tensor->name);
    if (*slot)
        return *slot;
    *slot = tensor;
    return NULL;
}

static inline const struct mdl_tensor *mdl_nametab_get(const struct mdl_nametab *t, const char *name)
{
    return t->slot ? *mdl_nametab_slot(t, name) : NULL;
}

#endif
