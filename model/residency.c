#include "model/residency.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

struct span {
    const uint8_t *at;
    size_t bytes;
};

enum { SPANS = 6 };

/* Tensors of wide elements may be copies in ordinary memory, which must not be given back: they count as nothing. */
static size_t weight_bytes(const struct mdl_linear *w)
{
    size_t n = (size_t)w->n * (size_t)w->k;
    return !w->data ? 0 : w->kind == MDL_W_FP4 ? n / 2 : w->kind == MDL_W_FP8 ? n : 0;
}

static size_t scale_bytes(const struct mdl_linear *w)
{
    size_t n = (size_t)w->n, k = (size_t)w->k / 32;
    return !w->data ? 0 : w->kind == MDL_W_FP4 ? n * k : w->kind == MDL_W_FP8 ? (n + 31) / 32 * k : 0;
}

static void spans_of(const struct mdl_model *m, int layer, int expert, struct span span[SPANS])
{
    const struct mdl_expert *e = &m->ck->layers[layer].experts[expert];
    const struct mdl_linear *const w[] = {&e->w1, &e->w2, &e->w3};
    for (int i = 0; i < SPANS / 2; i++) {
        span[2 * i] = (struct span){w[i]->data, weight_bytes(w[i])};
        span[2 * i + 1] = (struct span){w[i]->scale, scale_bytes(w[i])};
    }
}

size_t mdl_expert_bytes(const struct mdl_model *m, int layer, int expert)
{
    struct span span[SPANS];
    size_t sum = 0;
    spans_of(m, layer, expert, span);
    for (int i = 0; i < SPANS; i++)
        sum += span[i].bytes;
    return sum;
}

/* Whole pages only when releasing: the others are shared with neighbours. */
static void advise(const struct span *s, int advice, bool whole)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t lo = (uintptr_t)s->at, hi = lo + s->bytes;
    lo = whole ? (lo + page - 1) / page * page : lo / page * page;
    hi = whole ? hi / page * page : hi;
    if (hi > lo)
        madvise((void *)lo, hi - lo, advice);
}

void mdl_expert_load(const struct mdl_model *m, int layer, int expert)
{
    struct span span[SPANS];
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    spans_of(m, layer, expert, span);
    for (int i = 0; i < SPANS; i++)
        if (span[i].bytes)
            advise(&span[i], MADV_WILLNEED, false);
    for (int i = 0; i < SPANS; i++)
        for (size_t at = 0; at < span[i].bytes; at += page)
            (void)*(const volatile uint8_t *)(span[i].at + at);
}

void mdl_expert_release(const struct mdl_model *m, int layer, int expert)
{
    struct span span[SPANS];
    spans_of(m, layer, expert, span);
    for (int i = 0; i < SPANS; i++)
        if (span[i].bytes)
            advise(&span[i], MADV_DONTNEED, true);
}
