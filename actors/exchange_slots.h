/* The source's side of slots (slots.h): which slots of this stream are in use, dispatches that are put, results that
 * were. Part of an exchange (exchange.h); exchange.c alone calls it.
 *
 * A slot is free again when the shard has answered what was in it, or when the connection over which it was put is
 * gone, and the put itself has its end. One that stays in use for longer than the deadline of an exchange ends that
 * connection (LINK_FENCE): what is on its way then never lands. In the meantime the shard gets messages. */
#ifndef WEFT_ACTORS_EXCHANGE_SLOTS_H
#define WEFT_ACTORS_EXCHANGE_SLOTS_H

#include "actors/exchange.h"
#include "actors/exchange_wire.h"

struct act_exchange_slot {
    bool owed;    /* the shard may still read it, and write its result */
    bool putting; /* LINK_PUT_DONE is to come */
    bool left;    /* by the source that had this place before: its answer frees the slot and is of no use */
    uint8_t wave;
    uint16_t peer; /* the connection: the node's number in addresses, and the generation */
    uint32_t link;
    uint64_t epoch;      /* of that node */
    uint32_t generation; /* of the source */
    uint32_t sequence, map;
    int64_t since;
};

/* A result that lies in its slot. */
struct act_slot_result {
    int shard;
    struct act_p_expert_result head;
    const uint8_t *rows;
    size_t bytes;
};

/* -ENOMEM. Without slots in this deployment: nothing. */
int act_exchange_slots_init(struct act_exchange *e);
/* The source ends: who has its place next learns which slots are not to be used yet. */
void act_exchange_slots_free(struct act_exchange *e);
/* Most rows of a wave to this shard, of `rows` in all that it gets, so that waves fit slots; 0: no matter. */
int act_exchange_slot_rows(struct act_exchange *e, int shard, int rows);
/* Sends the wave: 1; 0: it goes as a message; -EINPROGRESS: its slot is free soon, the end of a put or a result tells;
 * -EAGAIN: no room, ROOM tells; -ENOMEM. */
int act_exchange_slot_send(struct act_exchange *e, int shard, int wave);
/* LINK_IMMEDIATE. False: not of something that is waited for. */
bool act_exchange_slot_result(struct act_exchange *e, struct act_msg *m, struct act_slot_result *out);
/* The shard has answered by a message. */
void act_exchange_slot_answered(struct act_exchange *e, int shard, uint32_t sequence, int wave);
/* LINK_PUT_DONE, or a LINK_PUT that came back. Returns the shard whose dispatch did not get there although this
 * exchange waits for it, and why: -ENOTCONN, -ESTALE for a connection that is still the one to its node as far as is
 * known here; -ENOMEM; 0 for other reasons, of which its end is on its way or known. -1: none. */
int act_exchange_slot_put_done(struct act_exchange *e, struct act_msg *m, int *why);

/* exchange.c: what of the current exchange goes to a shard in a wave, and its bytes. */
struct act_dispatch_size act_exchange_size(const struct act_exchange *e, int shard, int wave);
void act_exchange_fill(const struct act_exchange *e, int shard, int wave, struct act_dispatch d);
int64_t act_exchange_deadline(const struct act_exchange *e);

#endif
