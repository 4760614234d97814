/* The Landing's part where a ticket is ready: the sequence is put together and handed on. */
#include "actors/landing_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/handoff.h"
#include "actors/tier_device.h"

/* To Decode as a Prefill of this process does it. last [n bytes]: logits, or ids of a sequence that moves and what the
 * planner knows of it. */
static int hand_to_decode(struct landing *l, struct land_slot *s, const struct act_b_kv_ready *b, const uint8_t *last,
                          size_t n)
{
    size_t bytes, held = (size_t)s->n_pages * sizeof *s->pages, memory = land_is_moved(s) ? b->memory : 0;
    struct act_msg m;
    n -= memory;
    if (act_handoff_new(ACT_HANDOFF, l->decode[s->decode].addr, s->seq, n + held + memory, &m))
        return -ENOMEM;
    m.request = s->request;
    m.attempt = s->attempt;
    act_p_handoff(&m)->ticket = s->place;
    act_p_handoff(&m)->pages = (uint32_t)s->n_pages;
    *act_b_handoff(&m) = (struct act_b_handoff){.cached = b->cached,
                                                .hit = b->hit,
                                                .replayed = b->replayed,
                                                .decoder_start = b->decoder_start,
                                                .moved = land_is_moved(s) ? (uint32_t)(n / sizeof(int32_t)) + 1 : 0,
                                                .memory = (uint32_t)memory};
    uint8_t *tail = act_msg_tail(&m, &bytes);
    if (n)
        memcpy(tail, last, n);
    memcpy(tail + n, s->pages, held);
    if (memory)
        memcpy(tail + n + held, last + n, memory);
    s->seq = NULL;
    s->n_pages = 0;
    land_send(l, &m);
    return 0;
}

static int hand_to_replay(struct landing *l, struct land_slot *s, const struct act_b_kv_ready *b)
{
    size_t bytes, held = (size_t)s->n_pages * sizeof *s->pages;
    struct act_msg m;
    if (act_addr_is_nobody(l->replay)) /* it has ended for good, or there never was one */
        return act_addr_is_nobody(l->arg->replay) ? -ENOTSUP : -EHOSTDOWN;
    if (act_handoff_new(ACT_REPLAY, l->replay, s->seq, held + s->buf->size, &m))
        return -ENOMEM;
    m.request = s->request;
    m.attempt = s->attempt;
    act_p_replay(&m)->ticket = s->place;
    act_p_replay(&m)->pages = (uint32_t)s->n_pages;
    *act_b_replay(&m) = (struct act_b_replay){.decode = l->decode[s->decode].addr,
                                              .form = s->announced.form,
                                              .ids = (uint32_t)s->recipe.n_ids,
                                              .max_tokens = (uint32_t)s->max_new,
                                              .cached = b->cached,
                                              .hit = b->hit,
                                              .requester = s->requester};
    uint8_t *tail = act_msg_tail(&m, &bytes);
    memcpy(tail, s->pages, held);
    memcpy(tail + held, s->buf->data, s->buf->size);
    s->seq = NULL;
    s->n_pages = 0;
    land_send(l, &m);
    return 0;
}

/* Of a sequence that moves: the ids behind those of its RESERVE are in `last` [n bytes], in front of `memory` bytes of
 * what the planner knows. */
static int load_moved(struct landing *l, struct land_slot *s, const uint8_t *state, size_t state_bytes,
                      const uint8_t *last, size_t n, size_t memory)
{
    struct act_plan_memory known;
    if (memory > n || act_plan_memory_load(last + n - memory, memory, &known))
        return -EPROTO;
    n -= memory;
    int more = (int)(n / sizeof(int32_t)), all = s->recipe.n_ids + more;
    if (n % sizeof(int32_t) || n > (size_t)act_move_slack(l->e) * sizeof(int32_t) || all - 1 > land_most_tokens(l, s) ||
        all > s->recipe.n_ids + s->max_new)
        return -EPROTO;
    int32_t *ids = malloc((size_t)all * sizeof *ids);
    if (!ids)
        return -ENOMEM;
    memcpy(ids, s->recipe.ids, (size_t)s->recipe.n_ids * sizeof *ids);
    if (n)
        memcpy(ids + s->recipe.n_ids, last, n);
    int r = 0;
    for (int i = 0; i < all && !r; i++)
        r = ids[i] < 0 || ids[i] >= l->e->m->cfg->vocab_size ? -EPROTO : 0;
    if (!r)
        r = mdl_handoff_state_load(s->seq, MDL_HANDOFF_FULL, ids, all - 1, state, state_bytes, &l->err);
    free(ids);
    return r;
}

/* How the rows came about is part of the names that their blocks get, so what is said of it has to make sense. */
static bool makes_sense(const struct land_slot *s, const struct act_b_kv_ready *b)
{
    uint32_t n = (uint32_t)s->recipe.n_ids;
    return b->cached <= n && b->decoder_start <= n && b->hit >= ACT_HIT_MIXED && b->hit <= s->recipe.n_ids &&
           !b->hit == !b->replayed;
}

int land_hand_on(struct landing *l, struct land_slot *s)
{
    const size_t body = act_type_info(ACT_KV_READY)->body_size,
                 vocab = (size_t)l->e->m->cfg->vocab_size * sizeof(float);
    const struct act_b_kv_ready *b = (const struct act_b_kv_ready *)(const void *)s->ready->data;
    const uint8_t *tail = s->ready->data + body;
    size_t bytes = s->ready->size - body;
    enum mdl_handoff_form form = (enum mdl_handoff_form)s->announced.form;
    bool full = form == MDL_HANDOFF_FULL;
    int r = form >= MDL_HANDOFF_FORMS || b->state > bytes || !makes_sense(s, b) || (land_is_moved(s) && !full) ||
                    (full && !land_is_moved(s) && bytes - b->state != vocab)
                ? -EPROTO
            : land_is_moved(s)
                ? load_moved(l, s, tail, (size_t)b->state, tail + b->state, bytes - (size_t)b->state, b->memory)
                : mdl_handoff_state_load(s->seq, form, s->recipe.ids, s->recipe.n_ids, tail, (size_t)b->state, &l->err);
    struct land_handed *h = &l->decode[s->decode].handed[s->place];
    if (!r)
        r = full ? hand_to_decode(l, s, b, tail + b->state, bytes - (size_t)b->state) : hand_to_replay(l, s, b);
    if (r)
        return r;
    s->placed = false;
    *h = (struct land_handed){s->request, s->attempt, s->requester};
    return 0;
}
