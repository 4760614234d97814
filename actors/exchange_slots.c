#include "actors/exchange_slots.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/link.h"
#include "actors/runtime/peers.h"
#include "actors/slots.h"

enum { PLACE_UNKNOWN = -2, PLACE_NONE = -1, WAVES_MAX = 256 };

int act_exchange_slots_init(struct act_exchange *e)
{
    e->place = PLACE_UNKNOWN;
    if (!e->experts->slots)
        return 0;
    e->slot = calloc((size_t)e->experts->n * ACT_SLOT_SETS, sizeof *e->slot);
    return e->slot ? 0 : -ENOMEM;
}

static struct act_exchange_slot *slot_of(struct act_exchange *e, int set, int shard)
{
    return &e->slot[set * e->experts->n + shard];
}

static struct act_slot_left *left_of(const struct act_exchange *e)
{
    return e->experts->slots->left + (size_t)e->place * ACT_SLOT_SETS * (size_t)e->experts->n;
}

/* Slots that the source before this one could not finish with: they are free when its answers come, like its own. */
static void take_over(struct act_exchange *e)
{
    const struct act_slot_left *left = left_of(e);
    for (int i = 0; i < ACT_SLOT_SETS * e->experts->n; i++)
        e->slot[i] = (struct act_exchange_slot){.owed = left[i].link != 0,
                                                .left = left[i].link != 0,
                                                .wave = left[i].wave,
                                                .peer = left[i].peer,
                                                .link = left[i].link,
                                                .epoch = left[i].epoch,
                                                .generation = left[i].generation,
                                                .sequence = left[i].sequence,
                                                .map = left[i].map,
                                                .since = act_now(e->self)};
}

/* The list of sources is complete when the runtime runs. A source that was restarted has the index that it had. */
static bool has_place(struct act_exchange *e)
{
    const struct act_slots *s = e->experts->slots;
    if (!s || !s->results)
        return false;
    if (e->place == PLACE_UNKNOWN) {
        e->place = PLACE_NONE;
        for (int i = 0; i < s->n_sources; i++)
            if (s->source[i].index == act_self_addr(e->self).index)
                e->place = i;
        if (e->place >= 0)
            take_over(e);
    }
    return e->place >= 0;
}

void act_exchange_slots_free(struct act_exchange *e)
{
    if (e->slot && e->place >= 0) {
        struct act_slot_left *left = left_of(e);
        /* What is answered has been read, whether or not its put has its end here. */
        for (int i = 0; i < ACT_SLOT_SETS * e->experts->n; i++) {
            const struct act_exchange_slot *s = &e->slot[i];
            left[i] = (struct act_slot_left){0};
            if (s->owed)
                left[i] = (struct act_slot_left){.peer = s->peer,
                                                 .wave = s->wave,
                                                 .link = s->link,
                                                 .epoch = s->epoch,
                                                 .generation = s->generation,
                                                 .sequence = s->sequence,
                                                 .map = s->map};
        }
    }
    free(e->slot);
    e->slot = NULL;
}

int act_exchange_slot_rows(struct act_exchange *e, int shard, int rows)
{
    if (!e->peer[shard].link || !has_place(e))
        return 0;
    const struct act_slots_shape *p = &e->experts->slots->shape;
    int most = (int)p->rows, by_pairs = (int)p->pairs / e->current->k;
    int least = by_pairs < most ? by_pairs : most; /* that every wave takes, however its experts fall */
    return least < 1 || rows > least * WAVES_MAX ? 0 : most;
}

/* Nothing that was put over it lands any more when the answer comes, which the finder hears of too. Once per
 * connection.
 */
static void fence(struct act_exchange *e, struct act_exchange_peer *p, const struct act_exchange_slot *slot)
{
    if (p->fenced == slot->link && p->fenced_peer == slot->peer)
        return;
    struct act_msg m = act_msg_make(ACT_LINK_FENCE, e->experts->link);
    *act_p_link_fence(&m) =
        (struct act_p_link_fence){.peer = slot->peer, .class = TP_CLASS_EXPERT, .generation = slot->link};
    if (act_request(e->self, &m)) {
        act_msg_drop(&m);
        return;
    }
    p->fenced = slot->link;
    p->fenced_peer = slot->peer;
    e->counters.fences++;
}

/* Whether the slot may be used: 1; else what act_exchange_slot_send says. */
static int look_at_slot(struct act_exchange *e, struct act_exchange_peer *p, struct act_exchange_slot *slot)
{
    /* Another connection is there: with the one before it everything has ended that went over it. */
    slot->owed &= slot->link == p->link && slot->peer == p->addr.peer;
    if (!slot->owed && !slot->putting)
        return 1;
    if (act_now(e->self) - slot->since > act_exchange_deadline(e)) {
        fence(e, p, slot);
        return 0;
    }
    bool soon = !slot->owed || (!slot->left && slot->sequence == e->sequence);
    return soon ? -EINPROGRESS : 0;
}

static void write_slot(struct act_exchange *e, int shard, int wave, const struct act_dispatch_size *size,
                       const struct act_exchange_slot *slot, uint8_t *to)
{
    const struct act_slots *s = e->experts->slots;
    struct act_addr self = act_self_addr(e->self);
    struct act_dispatch d;
    *(struct act_slot_head *)(void *)to = (struct act_slot_head){.magic = ACT_SLOT_MAGIC,
                                                                 .bytes = (uint32_t)act_dispatch_bytes(size),
                                                                 .epoch = s->epoch,
                                                                 .link = slot->link,
                                                                 .sequence = e->sequence,
                                                                 .map = e->map->version,
                                                                 .source_generation = self.generation,
                                                                 .source_index = self.index,
                                                                 .stream = e->stream,
                                                                 .layer = (uint16_t)e->current->layer,
                                                                 .rows = (uint16_t)size->rows,
                                                                 .place = (uint16_t)e->place,
                                                                 .shard = (uint16_t)shard,
                                                                 .set = (e->sequence + (uint32_t)wave) & 1,
                                                                 .wave = (uint8_t)wave};
    act_dispatch_place(size, to + sizeof(struct act_slot_head), &d);
    act_exchange_fill(e, shard, wave, d);
}

static int put(struct act_exchange *e, int shard, int set, size_t bytes)
{
    const struct act_slots *s = e->experts->slots;
    const struct act_exchange_peer *p = &e->peer[shard];
    int local = shard % (int)s->shape.each, rank = s->shape.rank[e->experts->node] - 1;
    const struct act_slot_word w = {.member = (unsigned)local,
                                    .other = (unsigned)e->place,
                                    .set = (unsigned)set,
                                    .sequence = e->sequence & ACT_SLOT_SEQUENCE};
    const struct act_put put = {.peer = p->addr.peer,
                                .class = TP_CLASS_EXPERT,
                                .generation = p->link,
                                .from_window = ACT_WINDOW_RESULTS,
                                .to_window = ACT_WINDOW_DISPATCHES,
                                .with_immediate = true,
                                .immediate = act_slot_immediate(ACT_PORT_SHARDS, &w),
                                .request = ACT_EXCHANGE_TAG | (uint64_t)(set * e->experts->n + shard)};
    const struct act_put_range range = {.from = act_slots_outgoing(s, e->place, set, shard),
                                        .to = act_slots_dispatch(s, rank, e->place, set, local),
                                        .size = bytes};
    return act_link_put(e->self, e->experts->link, &put, &range, 1);
}

int act_exchange_slot_send(struct act_exchange *e, int shard, int wave)
{
    struct act_exchange_peer *p = &e->peer[shard];
    const struct act_slots *s = e->experts->slots;
    if (!p->link || !has_place(e))
        return 0;
    int set = (int)((e->sequence + (uint32_t)wave) & 1);
    struct act_exchange_slot *slot = slot_of(e, set, shard);
    int r = look_at_slot(e, p, slot);
    if (r < 1)
        return r;
    struct act_dispatch_size size = act_exchange_size(e, shard, wave);
    uint64_t epoch;
    uint16_t node;
    if (size.rows > s->shape.rows || size.pairs > s->shape.pairs ||
        act_peer_identity(act_self_runtime(e->self), p->addr.peer, &node, &epoch))
        return 0;
    *slot = (struct act_exchange_slot){.wave = (uint8_t)wave,
                                       .peer = p->addr.peer,
                                       .link = p->link,
                                       .epoch = epoch,
                                       .generation = act_self_addr(e->self).generation,
                                       .sequence = e->sequence,
                                       .map = e->map->version,
                                       .since = act_now(e->self)};
    write_slot(e, shard, wave, &size, slot, s->results + act_slots_outgoing(s, e->place, set, shard));
    r = put(e, shard, set, sizeof(struct act_slot_head) + act_dispatch_bytes(&size));
    slot->owed = slot->putting = r == 0;
    e->counters.puts += r == 0;
    return r ? r : 1;
}

/* Whether the head belongs to what was asked for in this slot. Of its fields `layer` is compared with the exchange
 * (exchange.c), and `rows` is the shard's to say. */
static bool is_answer(const struct act_exchange *e, const struct act_exchange_slot *slot, const struct act_slot_head *h,
                      const struct act_slot_word *w)
{
    struct act_addr self = act_self_addr(e->self);
    return h->magic == ACT_SLOT_MAGIC && h->epoch == slot->epoch && h->link == slot->link &&
           h->sequence == slot->sequence && (h->sequence & ACT_SLOT_SEQUENCE) == w->sequence && h->map == slot->map &&
           h->wave == slot->wave && h->set == w->set && h->shard == w->other && h->place == e->place &&
           h->stream == e->stream && h->source_index == self.index && h->source_generation == slot->generation &&
           !(h->zero[0] | h->zero[1] | h->zero[2] | h->zero[3]) &&
           h->bytes <= e->experts->slots->result_bytes - sizeof *h;
}

bool act_exchange_slot_result(struct act_exchange *e, struct act_msg *m, struct act_slot_result *out)
{
    const struct act_p_link_immediate *p = act_p_link_immediate(m);
    struct act_slot_word w = act_slot_word_of(p->immediate);
    const struct act_slots *s = e->experts->slots;
    if (!has_place(e) || p->class != TP_CLASS_EXPERT || w.member != (unsigned)e->place ||
        w.other >= (unsigned)e->experts->n)
        return false;
    struct act_exchange_slot *slot = slot_of(e, (int)w.set, (int)w.other);
    if (!slot->owed || slot->peer != p->peer || slot->link != p->generation)
        return false;
    const uint8_t *at = s->results + act_slots_result(s, e->place, (int)w.set, (int)w.other);
    struct act_slot_head h;
    memcpy(&h, at, sizeof h);
    if (!is_answer(e, slot, &h, &w))
        return false;
    slot->owed = false;
    if (slot->left)
        return false;
    *out = (struct act_slot_result){
        .shard = (int)w.other,
        .head = {h.sequence, h.map, h.stream, h.layer, h.rows, h.set, h.wave},
        .rows = at + sizeof h,
        .bytes = h.bytes,
    };
    return true;
}

void act_exchange_slot_answered(struct act_exchange *e, int shard, uint32_t sequence, int wave)
{
    for (int set = 0; e->slot && set < ACT_SLOT_SETS; set++) {
        struct act_exchange_slot *slot = slot_of(e, set, shard);
        if (slot->owed && slot->sequence == sequence && slot->wave == wave && !slot->left)
            slot->owed = false;
    }
}

int act_exchange_slot_put_done(struct act_exchange *e, struct act_msg *m, int *why)
{
    *why = 0;
    uint64_t at = m->request & ~ACT_EXCHANGE_TAG;
    if (!e->slot || at >= (uint64_t)(ACT_SLOT_SETS * e->experts->n))
        return -1;
    struct act_exchange_slot *slot = &e->slot[at];
    int shard = (int)at % e->experts->n;
    int status = m->type == ACT_UNDELIVERABLE ? -ENOTCONN : act_p_link_put_done(m)->status;
    bool mine = slot->owed && slot->sequence == e->sequence && e->current;
    slot->putting = false;
    if (!status)
        return -1;
    /* Of these nothing was written, so nobody answers. Of any other the end of its connection is on its way. */
    if (status == -ENOTCONN || status == -ESTALE || status == -EINVAL || status == -ENOMEM)
        slot->owed = false;
    if (status == -EINVAL)
        e->peer[shard].link = 0; /* their window is another */
    bool present = slot->link == e->peer[shard].link && slot->peer == e->peer[shard].addr.peer;
    *why = (present && (status == -ENOTCONN || status == -ESTALE)) || status == -ENOMEM ? status : 0;
    return mine ? shard : -1;
}

bool act_exchange_is_put(const struct act_msg *m)
{
    return (m->request & ~(uint64_t)UINT32_C(0xffffff)) == ACT_EXCHANGE_TAG && !m->attempt;
}
