/* What an actor that owns a sequence tells the device tier about it: finished blocks and snapshots. */
#ifndef WEFT_ACTORS_HISTORY_H
#define WEFT_ACTORS_HISTORY_H

#include "actors/engine.h"
#include "actors/recipe.h"
#include "actors/tier_device.h"

/* The chain behind `blocks` full blocks; the recipe has it for blocks of the prompt, ids give the rest. */
void act_history_chain(const struct act_engine *e, const struct act_recipe *r, const int32_t *ids, int blocks,
                       struct act_key *out);
/* Publishes the sequence's full blocks, which are in pages [n_pages]. replayed, hit: as in struct act_tier_block. */
void act_history_publish(struct act_self *self, const struct act_engine *e, const struct act_recipe *r,
                         const int32_t *ids, const struct mdl_seq *seq, const uint32_t *pages, int n_pages,
                         uint32_t replayed, int32_t hit);
/* Keeps a snapshot at the last even position of a clean sequence up to `most`, if its rows are still there. A prompt
 * must go on behind the position at which it restarts: where the same prompt may come again, most is below its end. */
void act_history_snapshot(struct act_self *self, const struct act_engine *e, const struct act_recipe *r,
                          const int32_t *ids, const struct mdl_seq *seq, int most);

#endif
