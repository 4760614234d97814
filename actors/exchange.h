/* The expert exchange, seen from a source: an exchange of the model's step becomes one message per shard, and results
 * become deliveries.
 *
 * An exchange is named by (source, stream, sequence, layer, map version). One row goes to a shard once, with the list
 * of its local experts; the shard answers one bf16 row per (row, expert) in the same order, so the answer needs no
 * list. Results of an exchange that is not the current one are late: counted and dropped.
 *
 *   dispatch tail   u32 row_count, u32 pair_count, u32 hidden, u32 zero
 *                   u32 pairs[row_count]                 experts of each row on this shard
 *                   {u32 expert, f32 weight}[pair_count] ascending per row
 *                   u8 codes[row_count][hidden], u8 scales[row_count][hidden/32]
 *   result tail     u16 bf16[pair_count][hidden]
 *
 * Part of the state of the actor that runs steps (Prefill, Decode); that actor alone calls it. */
#ifndef WEFT_ACTORS_EXCHANGE_H
#define WEFT_ACTORS_EXCHANGE_H

#include "actors/expert_map.h"
#include "actors/runtime/runtime.h"
#include "model/step.h"

enum { ACT_EXCHANGE_LOSSES = 64 };

/* Streams of a source. The bit tells a shard that the step is a prompt's and gives way to running streams. */
enum { ACT_STREAM_BULK = 0x8000 };

/* Where the experts of the backbone layers live: shard i owns experts first .. first+count-1 of every layer. */
struct act_shard {
    struct act_addr addr;
    int first, count;
};

struct act_exchange_counters {
    uint64_t dispatched, results, late, returned;
};

struct act_exchange {
    struct act_self *self;
    struct mdl_model *m;
    struct act_shard shard[ACT_SHARDS_MAX];
    int n_shards;
    uint32_t map; /* version of the placement */
    uint16_t stream;
    uint32_t sequence;                     /* of the current exchange */
    struct mdl_exchange *current;          /* NULL: none */
    struct act_msg unsent[ACT_SHARDS_MAX]; /* waiting for room */
    int n_unsent;
    bool lost;              /* a shard of the current exchange is gone: the step must be run again */
    int shard_rows;         /* rows that the busiest shard worked on when it last answered; 0: unknown */
    uint32_t shard_rows_of; /* the exchange of shard_rows */
    int losses;             /* exchanges lost in a row; too many fail the step */
    struct act_exchange_counters counters;
    struct mdl_providers providers; /* to hand to the step */
};

void act_exchange_init(struct act_exchange *e, struct act_self *self, struct mdl_model *m, uint16_t stream,
                       const struct act_shard *shard, int n_shards);
/* Frees what was not sent; results still on the way are late from now on. Also to abandon a step. */
void act_exchange_abandon(struct act_exchange *e);
/* EXPERT_RESULT, UNDELIVERABLE of a dispatch, or ROOM. True when the step may have something to go on with. */
bool act_exchange_message(struct act_exchange *e, struct act_msg *m);

#endif
