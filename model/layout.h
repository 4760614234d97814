/* The published tensor layout: which tensors a config implies, with name, dtype, shape and where a checkpoint keeps
 * them. One walk serves the loader (binds), the report (sums bytes) and the generator (writes). Private to model/ and
 * tools/; pure functions, callable from any thread. */
#ifndef WEFT_MODEL_LAYOUT_H
#define WEFT_MODEL_LAYOUT_H

#include "model/config.h"
#include "model/safetensors.h"

enum mdl_class {
    MDL_CLASS_EXPERT, /* routed experts of the backbone */
    MDL_CLASS_DENSE,  /* everything else of the backbone: embedding, head, attention, routers, shared experts, mHC */
    MDL_CLASS_ENGRAM_TABLE, /* rows that are looked up */
    MDL_CLASS_ENGRAM,       /* projections and gates beside the tables */
    MDL_CLASS_DRAFT_EXPERT,
    MDL_CLASS_DRAFT, /* everything else of the drafter */
    MDL_CLASS_COUNT,
};

/* The struct a tensor's pointer lives in. */
enum mdl_place { MDL_PLACE_CHECKPOINT, MDL_PLACE_BLOCK, MDL_PLACE_EXPERT, MDL_PLACE_ENGRAM };

enum mdl_bind {
    MDL_BIND_NONE,    /* checked when present, used by nobody on the text path */
    MDL_BIND_POINTER, /* offset is a plain pointer */
    MDL_BIND_WEIGHT,  /* offset is a struct mdl_linear: kind, n, k, data */
    MDL_BIND_SCALE,   /* offset is a struct mdl_linear: scale */
};

struct mdl_want {
    char name[96];
    enum mdl_dtype dtype;
    int ndim;
    int64_t shape[2];
    enum mdl_class cls;
    enum mdl_place place;
    int block;  /* backbone layer; n_layers + stage for the drafter; -1: outside of blocks */
    int expert; /* -1: not of a routed expert */
    int slot;   /* Engram slot, -1 */
    enum mdl_bind bind;
    size_t offset;
    int kind;     /* enum mdl_wkind of a linear */
    int k;        /* columns of a linear (a packed weight has k / 2 bytes per row) */
    bool or_bf16; /* the weight may be BF16 [n][k]; then there is no scale */
    bool optional;
};

/* Calls visit for every tensor in a fixed order: outside, layers, drafter stages. Stops at the first non-zero return
 * and returns it. */
int mdl_layout_each(const struct mdl_config *c, int (*visit)(void *arg, const struct mdl_want *w), void *arg);

static inline size_t mdl_want_bytes(const struct mdl_want *w)
{
    return (size_t)w->shape[0] * (size_t)(w->ndim > 1 ? w->shape[1] : 1) * mdl_dtype_size(w->dtype);
}

#endif
