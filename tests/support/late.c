/* Providers of tests/support/model.h that answer late, out of order, in parts and twice. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/support/model.h"

/* One row of experts or of an Engram table. */
struct ts_answer {
    struct mdl_exchange *exchange; /* one of the two */
    struct mdl_engram_fetch *fetch;
    int row, slot, dim;
    uint16_t *result;              /* owned; exchange only */
    const uint8_t *codes, *scales; /* in the checkpoint; fetch only */
};

static struct ts_answer *answer_add(struct ts_late *l)
{
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 64;
        l->queue = realloc(l->queue, (size_t)l->cap * sizeof *l->queue);
        cr_assert_not_null(l->queue);
    }
    struct ts_answer *a = &l->queue[l->n++];
    *a = (struct ts_answer){0};
    return a;
}

static bool fails(struct ts_late *l, enum ts_fault kind)
{
    return l->calls[kind - TS_FAULT_EXPERTS]++ == l->fault_at && l->fault == kind;
}

/* What a set of shards would send back: each computes its experts from a copy of the message. */
static int ask_experts(void *ctx, struct mdl_step *step, struct mdl_exchange *x)
{
    struct ts_late *l = ctx;
    if (fails(l, TS_FAULT_EXPERTS))
        return -EIO;
    size_t d = (size_t)step->m->cfg->hidden, slots = (size_t)x->rows * (size_t)x->k;
    struct mdl_exchange copy = *x;
    copy.result = calloc(slots * d, sizeof *copy.result);
    copy.have = calloc(slots, 1);
    int r = 0, experts = mdl_step_block(step, x->layer)->n_experts;
    for (int first = 0; first < experts && !r;) {
        int count = 1 + (int)ts_random(&l->random, 3);
        r = mdl_experts_compute(step->m, &copy, first, count);
        first += count;
    }
    cr_assert_eq(copy.pending, 0, "%d results of layer %d did not come", copy.pending, x->layer);
    for (size_t i = 0; i < slots; i++) {
        struct ts_answer *a = answer_add(l);
        *a = (struct ts_answer){.exchange = x, .row = (int)i / x->k, .slot = (int)i % x->k, .dim = (int)d};
        a->result = malloc(d * sizeof *a->result);
        memcpy(a->result, copy.result + i * d, d * sizeof *a->result);
    }
    free(copy.result);
    free(copy.have);
    return r;
}

static int ask_engram(void *ctx, struct mdl_step *step, struct mdl_engram_fetch *f)
{
    struct ts_late *l = ctx;
    if (fails(l, TS_FAULT_ENGRAM))
        return -EIO;
    const struct mdl_engram *e = &step->m->ck->engram[f->slot];
    size_t dim = (size_t)step->m->cfg->engram_dim;
    for (int i = 0; i < f->rows * f->columns; i++) {
        if (f->have[i])
            continue;
        *answer_add(l) = (struct ts_answer){
            .fetch = f,
            .row = i / f->columns,
            .slot = i % f->columns,
            .dim = (int)dim,
            .codes = e->table + (size_t)f->row_ids[i] * dim,
            .scales = e->table_scale + (size_t)f->row_ids[i] * (dim / 32),
        };
    }
    return 0;
}

static int ask_kv(void *ctx, struct mdl_step *step, const struct mdl_seq *seq, int source, int rows)
{
    struct ts_late *l = ctx;
    (void)step, (void)seq, (void)source, (void)rows;
    if (fails(l, TS_FAULT_KV))
        return -EIO;
    if (l->kv_refusals == 0 && ts_random(&l->random, 3) == 0)
        l->kv_refusals = 1 + (int)ts_random(&l->random, 3);
    if (l->kv_refusals == 0)
        return 1;
    return --l->kv_refusals == 0;
}

void ts_late_init(struct ts_late *l, uint64_t seed)
{
    *l = (struct ts_late){.random = seed};
    l->providers = (struct mdl_providers){l, ask_experts, ask_engram, ask_kv};
}

void ts_late_drop(struct ts_late *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->queue[i].result);
    l->n = 0;
    l->kv_refusals = 0;
}

void ts_late_free(struct ts_late *l)
{
    ts_late_drop(l);
    free(l->queue);
    *l = (struct ts_late){0};
}

/* Sends the answer; with spoil, afterwards once more with other bytes, which must not count. */
static void send_answer(const struct ts_answer *a, bool spoil)
{
    if (a->exchange) {
        mdl_exchange_deliver(a->exchange, a->row, a->slot, a->dim, a->result);
        memset(a->result, 0x41, (size_t)a->dim * sizeof *a->result);
        if (spoil)
            mdl_exchange_deliver(a->exchange, a->row, a->slot, a->dim, a->result);
        return;
    }
    mdl_engram_deliver(a->fetch, a->row, a->slot, a->dim, a->codes, a->scales);
    uint8_t other[1024];
    cr_assert_le((size_t)a->dim, sizeof other);
    memset(other, 0x41, sizeof other);
    if (spoil)
        mdl_engram_deliver(a->fetch, a->row, a->slot, a->dim, other, other);
}

void ts_late_deliver(struct ts_late *l)
{
    int count = 1 + (int)ts_random(&l->random, (uint32_t)l->n / 2 + 1);
    for (; count > 0 && l->n > 0; count--) {
        int i = (int)ts_random(&l->random, (uint32_t)l->n);
        send_answer(&l->queue[i], ts_random(&l->random, 4) == 0);
        free(l->queue[i].result);
        l->queue[i] = l->queue[--l->n];
    }
}

int ts_finish(struct mdl_step *step, struct ts_late *late)
{
    int r;
    while ((r = mdl_step_run(step)) == MDL_STEP_WAIT && late) {
        late->waits++;
        ts_late_deliver(late);
    }
    return r;
}
