#include "actors/expert_slots.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/link.h"
#include "actors/runtime/peers.h"

static size_t count(const struct act_slots *s)
{
    return (size_t)s->shape.nodes * s->shape.places * ACT_SLOT_SETS;
}

int act_expert_slots_init(struct act_expert_slots *s, struct act_self *self, struct act_slots *slots,
                          struct act_addr link, int local, int index)
{
    *s = (struct act_expert_slots){.self = self, .link = link, .local = local, .index = index};
    if (!slots || !slots->dispatches)
        return 0;
    s->slots = slots;
    s->putting = calloc(count(slots), sizeof *s->putting);
    s->seen = calloc(count(slots), sizeof *s->seen);
    if (s->putting && s->seen)
        return 0;
    act_expert_slots_free(s);
    return -ENOMEM;
}

void act_expert_slots_free(struct act_expert_slots *s)
{
    free(s->putting);
    free(s->seen);
    s->putting = NULL;
    s->seen = NULL;
}

static size_t number(const struct act_slots *s, int rank, int place, int set)
{
    return ((size_t)rank * s->shape.places + (size_t)place) * ACT_SLOT_SETS + (size_t)set;
}

/* Whether the head belongs to the put that told of it. Of its other fields `layer` and `rows` are compared with the
 * dispatch (expert.c); `map`, `stream` and `wave` are the source's, which gets them back. */
static bool fits(const struct act_expert_slots *s, const struct act_slot_head *h, const struct act_slot_word *w,
                 uint32_t link, uint64_t epoch)
{
    return h->magic == ACT_SLOT_MAGIC && h->epoch == epoch && h->link == link &&
           (h->sequence & ACT_SLOT_SEQUENCE) == w->sequence && h->place == w->other && h->set == w->set &&
           h->set == ((h->sequence + h->wave) & 1) && h->shard == s->index && h->source_index < ACT_INDEX_MAX &&
           h->source_generation && !(h->zero[0] | h->zero[1] | h->zero[2] | h->zero[3]) &&
           h->bytes <= s->slots->dispatch_bytes - sizeof *h;
}

bool act_expert_slots_take(struct act_expert_slots *s, struct act_msg *m, struct act_slot_work *out)
{
    const struct act_p_link_immediate *p = act_p_link_immediate(m);
    struct act_slot_word w = act_slot_word_of(p->immediate);
    uint64_t epoch;
    uint16_t node;
    s->stale++; /* taken back when it is none */
    if (!s->slots || p->class != TP_CLASS_EXPERT || (int)w.member != s->local || w.other >= s->slots->shape.places ||
        act_peer_identity(act_self_runtime(s->self), p->peer, &node, &epoch) || node >= ACT_SLOT_NODES ||
        !s->slots->shape.rank[node])
        return false;
    int rank = s->slots->shape.rank[node] - 1;
    uint8_t *at = s->slots->dispatches + act_slots_dispatch(s->slots, rank, (int)w.other, (int)w.set, s->local);
    struct act_slot_head h, *seen = &s->seen[number(s->slots, rank, (int)w.other, (int)w.set)];
    memcpy(&h, at, sizeof h);
    if (!fits(s, &h, &w, p->generation, epoch) || memcmp(&h, seen, sizeof h) == 0)
        return false;
    *seen = h;
    s->stale--;
    *out =
        (struct act_slot_work){.head = h,
                               .source = {.generation = h.source_generation, .peer = p->peer, .index = h.source_index},
                               .link = p->generation,
                               .rank = rank,
                               .set = (int)w.set,
                               .tail = at + sizeof h};
    return true;
}

uint8_t *act_expert_slots_answer(struct act_expert_slots *s, const struct act_slot_work *w, size_t bytes)
{
    if (s->putting[number(s->slots, w->rank, w->head.place, w->set)] ||
        bytes > s->slots->result_bytes - sizeof(struct act_slot_head))
        return NULL;
    return s->slots->dispatches + act_slots_answer(s->slots, w->rank, w->head.place, w->set, s->local) +
           sizeof(struct act_slot_head);
}

int act_expert_slots_put(struct act_expert_slots *s, const struct act_slot_work *w, size_t bytes, int others)
{
    const struct act_slot_word word = {.member = w->head.place,
                                       .other = w->head.shard,
                                       .set = (unsigned)w->set,
                                       .sequence = w->head.sequence & ACT_SLOT_SEQUENCE};
    size_t from = act_slots_answer(s->slots, w->rank, w->head.place, w->set, s->local);
    size_t at = number(s->slots, w->rank, w->head.place, w->set);
    struct act_slot_head *h = (struct act_slot_head *)(void *)(s->slots->dispatches + from);
    *h = w->head;
    h->bytes = (uint32_t)bytes;
    h->rows = (uint16_t)others;
    h->epoch = s->slots->epoch;
    const struct act_put put = {.peer = w->source.peer,
                                .class = TP_CLASS_EXPERT,
                                .generation = w->link,
                                .from_window = ACT_WINDOW_DISPATCHES,
                                .to_window = ACT_WINDOW_RESULTS,
                                .with_immediate = true,
                                .immediate = act_slot_immediate(ACT_PORT_SOURCES, &word),
                                .request = at};
    const struct act_put_range range = {.from = from,
                                        .to = act_slots_result(s->slots, w->head.place, w->set, w->head.shard),
                                        .size = sizeof *h + bytes};
    int r = act_link_put(s->self, s->link, &put, &range, 1);
    s->putting[at] = r == 0;
    return r;
}

void act_expert_slots_returned(struct act_expert_slots *s, struct act_msg *m)
{
    const struct act_p_expert_result *p = act_p_expert_result(m);
    uint64_t epoch;
    uint16_t node;
    if (!s->slots || m->flags & ACT_MSG_ABANDONED ||
        act_peer_identity(act_self_runtime(s->self), m->src.peer, &node, &epoch) || node >= ACT_SLOT_NODES ||
        !s->slots->shape.rank[node])
        return;
    size_t each = (size_t)s->slots->shape.places * ACT_SLOT_SETS, rank = (size_t)s->slots->shape.rank[node] - 1;
    for (size_t i = rank * each; i < (rank + 1) * each; i++) {
        const struct act_slot_head *h = &s->seen[i];
        const struct act_slot_work work = {
            .head = *h, .source = m->src, .link = h->link, .rank = (int)rank, .set = (int)(i % ACT_SLOT_SETS)};
        if (h->epoch != epoch || h->source_index != m->src.index || h->source_generation != m->src.generation ||
            h->sequence != p->sequence || h->stream != p->stream || h->wave != p->wave || s->putting[i])
            continue;
        act_expert_slots_put(s, &work, 0, 0); /* else the slot's deadline ends it */
        return;
    }
}

void act_expert_slots_put_done(struct act_expert_slots *s, const struct act_msg *m)
{
    if (s->slots && m->request < count(s->slots))
        s->putting[m->request] = false;
}
