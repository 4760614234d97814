#include "actors/slots.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "actors/exchange_wire.h"

static size_t round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t dispatch_bytes(const struct act_slots_shape *p)
{
    const struct act_dispatch_size most = {.rows = p->rows, .pairs = p->pairs, .hidden = p->hidden};
    return round_up(sizeof(struct act_slot_head) + act_dispatch_bytes(&most));
}

static size_t result_bytes(const struct act_slots_shape *p)
{
    return round_up(sizeof(struct act_slot_head) + (size_t)p->pairs * p->hidden * sizeof(uint16_t));
}

static size_t outgoing_slots(const struct act_slots_shape *p)
{
    return (size_t)p->places * ACT_SLOT_SETS * p->shards;
}

static size_t incoming_slots(const struct act_slots_shape *p)
{
    return (size_t)p->nodes * p->places * ACT_SLOT_SETS * p->each;
}

size_t act_slots_results_bytes(const struct act_slots_shape *p)
{
    return outgoing_slots(p) * (dispatch_bytes(p) + result_bytes(p));
}

uint32_t act_slots_pairs(uint32_t rows, uint32_t topk, uint32_t shards)
{
    uint32_t each = 1 + 2 * topk / shards;
    return rows * (each < topk ? each : topk);
}

size_t act_slots_dispatches_bytes(const struct act_slots_shape *p)
{
    return incoming_slots(p) * (dispatch_bytes(p) + result_bytes(p));
}

static int map(size_t bytes, uint8_t **out)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *out = at == MAP_FAILED ? NULL : at;
    return *out ? 0 : -ENOMEM;
}

/* A head counts bytes in 32 bits. */
static int check_size(const struct act_slots_shape *p, struct cfg_error *err)
{
    size_t head = sizeof(struct act_slot_head), most = UINT32_MAX, result = result_bytes(p),
           dispatch = dispatch_bytes(p);
    size_t larger = result > dispatch ? result : dispatch, each = (larger - head) / p->rows + 1;
    if (result <= most && dispatch <= most)
        return 0;
    return cfg_error_set(err, EINVAL,
                         "experts.slot_rows = %u makes slots of %zu bytes with this model, more than 4 GiB; set it to "
                         "%zu or less",
                         p->rows, larger, (most - 2 * head) / each);
}

int act_slots_check(const struct act_slots_shape *p, struct cfg_error *err)
{
    if (!p->rows || p->pairs < p->rows || !p->hidden || p->hidden % 32 || !p->shards || p->shards > ACT_SHARDS_MAX ||
        !p->each || p->each > ACT_SHARDS_MAX || !p->places || p->places > ACT_SLOT_PLACES)
        return cfg_error_set(err, EINVAL, "slots of the expert exchange: %u rows, %u pairs, %u shards, %u sources",
                             p->rows, p->pairs, p->shards, p->places);
    return check_size(p, err);
}

int act_slots_new(const struct act_slots_shape *shape, bool sources, bool shards, struct act_slots **out,
                  struct cfg_error *err)
{
    *out = NULL;
    int r = act_slots_check(shape, err);
    if (r)
        return r;
    struct act_slots *s = calloc(1, sizeof *s);
    if (!s)
        return cfg_error_set(err, ENOMEM, "slots of the expert exchange: out of memory");
    s->shape = *shape;
    s->fingerprint = XXH3_64bits(shape, sizeof *shape);
    s->dispatch_bytes = dispatch_bytes(shape);
    s->result_bytes = result_bytes(shape);
    s->results_bytes = sources ? act_slots_results_bytes(shape) : 0;
    s->dispatches_bytes = shards ? act_slots_dispatches_bytes(shape) : 0;
    s->left = calloc(outgoing_slots(shape), sizeof *s->left);
    r = s->left ? 0 : -ENOMEM;
    if (!r && s->results_bytes)
        r = map(s->results_bytes, &s->results);
    if (!r && s->dispatches_bytes)
        r = map(s->dispatches_bytes, &s->dispatches);
    if (r) {
        cfg_error_set(err, ENOMEM, "%zu bytes for slots of the expert exchange are not available; lower %s",
                      s->results_bytes + s->dispatches_bytes, "experts.slot_rows");
        act_slots_free(s);
        return r;
    }
    *out = s;
    return 0;
}

void act_slots_free(struct act_slots *s)
{
    if (!s)
        return;
    if (s->results)
        munmap(s->results, s->results_bytes);
    if (s->dispatches)
        munmap(s->dispatches, s->dispatches_bytes);
    free(s->left);
    free(s);
}

static size_t outgoing(const struct act_slots *s, int place, int set, int shard)
{
    return ((size_t)place * ACT_SLOT_SETS + (size_t)set) * s->shape.shards + (size_t)shard;
}

static size_t incoming(const struct act_slots *s, int rank, int place, int set, int local)
{
    size_t source = (size_t)rank * s->shape.places + (size_t)place;
    return (source * ACT_SLOT_SETS + (size_t)set) * s->shape.each + (size_t)local;
}

size_t act_slots_outgoing(const struct act_slots *s, int place, int set, int shard)
{
    return outgoing(s, place, set, shard) * s->dispatch_bytes;
}

size_t act_slots_result(const struct act_slots *s, int place, int set, int shard)
{
    return outgoing_slots(&s->shape) * s->dispatch_bytes + outgoing(s, place, set, shard) * s->result_bytes;
}

size_t act_slots_dispatch(const struct act_slots *s, int rank, int place, int set, int local)
{
    return incoming(s, rank, place, set, local) * s->dispatch_bytes;
}

size_t act_slots_answer(const struct act_slots *s, int rank, int place, int set, int local)
{
    return incoming_slots(&s->shape) * s->dispatch_bytes + incoming(s, rank, place, set, local) * s->result_bytes;
}

uint32_t act_slot_immediate(unsigned port, const struct act_slot_word *w)
{
    return (uint32_t)port << 28 | (uint32_t)(w->member & 255) << 20 | (uint32_t)(w->other & 255) << 12 |
           (uint32_t)(w->set & 1) << 11 | (uint32_t)(w->sequence & ACT_SLOT_SEQUENCE);
}

struct act_slot_word act_slot_word_of(uint32_t immediate)
{
    return (struct act_slot_word){.member = immediate >> 20 & 255,
                                  .other = immediate >> 12 & 255,
                                  .set = immediate >> 11 & 1,
                                  .sequence = immediate & ACT_SLOT_SEQUENCE};
}
