/* Slots of the expert exchange: memory of a node into which the others write dispatches and results, at addresses that
 * both sides compute. Who uses them: exchange_slots.c (the source's side), expert_slots.c (the shard's); this file has
 * what both have to agree on.
 *
 * A node that runs steps has a window of results: for each of its sources (a Prefill or Decode actor; its number among
 * them is its place), each of two sets and each shard of the group, room from which a dispatch is put and room into
 * which the result is. A node with shards has a window of dispatches: for each node of the group that runs steps, each
 * place there, each set and each of its own shards, room into which a dispatch is put and room from which the result
 * is. A wave of an exchange uses the set (sequence + wave) & 1. So an address is a function of source, set and shard:
 * nobody asks for room, and there are no credits.
 *
 * A slot begins with a head that says all that makes it this one: exchange, writer's incarnation, connection, actor.
 * The immediate that tells of it has the low bits of the sequence, too. What does not fit its slot goes as a message.
 *
 * Nodes whose configurations give other sizes use messages between each other: the fingerprint is in their directories
 * (ACT_NODE_SLOTS). Made before the runtime starts. Threads: what is constant is read by everybody; the rest, as said
 * there. */
#ifndef WEFT_ACTORS_SLOTS_H
#define WEFT_ACTORS_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "actors/expert_map.h"
#include "actors/runtime/message.h"
#include "config/error.h"

enum {
    ACT_SLOT_SETS = 2,
    ACT_SLOT_PLACES = 256, /* sources of a node */
    ACT_SLOT_NODES = 512,  /* numbers of nodes are below this */
    ACT_SLOT_MAGIC = 0x58735731,
};

/* What the sides must have in common. */
struct act_slots_shape {
    uint32_t hidden, rows, pairs; /* rows and (row, expert) pairs of a slot at most */
    uint32_t shards, each;        /* of the group; of a node of it */
    uint32_t places, nodes;       /* sources of a node at most; nodes with sources */
    uint8_t rank[ACT_SLOT_NODES]; /* by number: 1 + which of these nodes it is; 0: none */
};

/* A slot that a source could not finish with before it ended: in use until its answer has come or that connection is
 * gone. All that tells its answer (struct act_exchange_slot). */
struct act_slot_left {
    uint16_t peer;
    uint8_t wave;
    uint32_t link; /* 0: free */
    uint64_t epoch;
    uint32_t generation, sequence, map;
};

struct act_slots {
    struct act_slots_shape shape;
    uint64_t fingerprint;
    size_t dispatch_bytes, result_bytes; /* of a slot, head included */
    uint8_t *results, *dispatches;       /* the windows; NULL: the node has no such part */
    size_t results_bytes, dispatches_bytes;
    uint64_t epoch; /* of this process */
    /* By place; set before the runtime starts. */
    struct act_addr source[ACT_SLOT_PLACES];
    int n_sources;
    /* [places][sets][shards]; of the source that has the place, and after its end of the next one: the same worker. */
    struct act_slot_left *left;
};

/* The start of a slot. All of it is the writer's. */
struct act_slot_head {
    uint32_t magic;
    uint32_t bytes; /* behind the head */
    uint64_t epoch; /* of the writer's process */
    uint32_t link;  /* generation of the connection */
    uint32_t sequence, map;
    uint32_t source_generation, source_index; /* address of the source in its own process */
    uint16_t stream, layer;
    uint16_t rows; /* of a dispatch; of a result: what the shard worked on together */
    uint16_t place, shard;
    uint8_t set, wave;
    uint32_t zero[4];
};

_Static_assert(sizeof(struct act_slot_head) == 64, "a slot's head is one cache line");

/* What an immediate of the class expert says; member and other by port: to shards, the local number of the shard and
 * the place of the source; to sources, the place and the shard's index in the map. */
struct act_slot_word {
    unsigned member, other, set, sequence;
};

enum { ACT_SLOT_SEQUENCE = (1 << 11) - 1 };

/* Pairs of a slot of so many rows: experts of a row spread over the shards, so it seldom has more than twice its even
 * part at one of them. What has more goes in one more wave. */
uint32_t act_slots_pairs(uint32_t rows, uint32_t topk, uint32_t shards);
/* Windows for the parts that the node has, zeroed, as nothing was written yet. -EINVAL: act_slots_check; -ENOMEM. */
int act_slots_new(const struct act_slots_shape *shape, bool sources, bool shards, struct act_slots **out,
                  struct cfg_error *err);
void act_slots_free(struct act_slots *s);
/* -EINVAL: a row and its experts do not fit; numbers that an immediate has no room for; a slot larger than 4 GiB. */
int act_slots_check(const struct act_slots_shape *shape, struct cfg_error *err);
/* Bytes that act_slots_new takes for a part. */
size_t act_slots_results_bytes(const struct act_slots_shape *shape);
size_t act_slots_dispatches_bytes(const struct act_slots_shape *shape);

/* Offsets in the window of results: where a dispatch is put from, and where its result arrives. */
size_t act_slots_outgoing(const struct act_slots *s, int place, int set, int shard);
size_t act_slots_result(const struct act_slots *s, int place, int set, int shard);
/* Offsets in the window of dispatches; rank: from 0. */
size_t act_slots_dispatch(const struct act_slots *s, int rank, int place, int set, int local);
size_t act_slots_answer(const struct act_slots *s, int rank, int place, int set, int local);

uint32_t act_slot_immediate(unsigned port, const struct act_slot_word *w);
struct act_slot_word act_slot_word_of(uint32_t immediate);

#endif
