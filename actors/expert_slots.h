/* The shard's side of slots (slots.h): dispatches that sources of other nodes have put, and answers that are put into
 * their windows. Part of an expert shard; expert.c alone calls it. */
#ifndef WEFT_ACTORS_EXPERT_SLOTS_H
#define WEFT_ACTORS_EXPERT_SLOTS_H

#include "actors/runtime/runtime.h"
#include "actors/slots.h"

/* A dispatch in its slot. The slot stays as it is until its answer has arrived there; what another node could change
 * nevertheless must not be believed twice. */
struct act_slot_work {
    struct act_slot_head head;
    struct act_addr source;
    uint32_t link;
    int rank, set;
    uint8_t *tail; /* head.bytes */
};

struct act_expert_slots {
    struct act_self *self;
    struct act_slots *slots; /* NULL: none */
    struct act_addr link;
    int local, index;           /* which of its node's shards it is, and of the map's */
    bool *putting;              /* [nodes][places][sets] an answer that is on its way */
    struct act_slot_head *seen; /* likewise: the newest dispatch */
    uint64_t stale;             /* words of what was not there */
};

/* -ENOMEM. */
int act_expert_slots_init(struct act_expert_slots *s, struct act_self *self, struct act_slots *slots,
                          struct act_addr link, int local, int index);
void act_expert_slots_free(struct act_expert_slots *s);
/* LINK_IMMEDIATE. False: it is not of a fresh dispatch for this shard. */
bool act_expert_slots_take(struct act_expert_slots *s, struct act_msg *m, struct act_slot_work *out);
/* Where the rows of an answer of so many bytes go; NULL: it is to be sent as a message. */
uint8_t *act_expert_slots_answer(struct act_expert_slots *s, const struct act_slot_work *w, size_t bytes);
/* They are there. others: rows of other sources worked on together with them. -EAGAIN, -ENOMEM: as a message. */
int act_expert_slots_put(struct act_expert_slots *s, const struct act_slot_work *w, size_t bytes, int others);
/* EXPERT_RESULT that came back, of a dispatch in a slot: its source is gone. Whoever has its place now needs the slot's
 * answer to use it again: an empty one is put there. */
void act_expert_slots_returned(struct act_expert_slots *s, struct act_msg *m);
/* LINK_PUT_DONE, or a LINK_PUT that came back. */
void act_expert_slots_put_done(struct act_expert_slots *s, const struct act_msg *m);

#endif
