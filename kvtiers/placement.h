/* Which of several nodes keeps a block: consistent hashing in the form of rendezvous hashing. Each node has a score for
 * each key, made of the key and of the node's name; the block is kept by the node with the highest score among those
 * that are there. So every process with the same list agrees without asking anybody, whatever the order of its list;
 * a node that leaves gives up its own blocks only, evenly to all others, and gets the same ones back when it returns.
 * Pure functions; any thread. */
#ifndef WEFT_KVTIERS_PLACEMENT_H
#define WEFT_KVTIERS_PLACEMENT_H

#include <stdbool.h>

#include "kvtiers/key.h"

/* What stands for a node in scores. */
uint64_t kv_place_id(const char *name);
/* Which of the n nodes keeps the block; of those with there[i] only. -1: none is there. */
int kv_place(const struct kv_key *key, const uint64_t *id, const bool *there, int n);

#endif
