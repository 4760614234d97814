/* Engram rows that are not taken from the mapped checkpoint: an actor on a tier worker that reads them from its files
 * through a cache (kvtiers/rows.h). It alone calls the row store and its storage.
 *
 * Steps ask for the rows of all their layers when they begin (ENGRAM_READ), so reading runs under the layers before the
 * one that needs them; prompts also name the rows of tokens that they will come to (ENGRAM_AHEAD). What several ask for
 * at a time is read once. */
#ifndef WEFT_ACTORS_ENGRAM_STORE_H
#define WEFT_ACTORS_ENGRAM_STORE_H

#include "actors/runtime/runtime.h"
#include "kvtiers/rows.h"

/* What the actor starts with; outlives it. */
struct act_engram_store {
    struct kv_rows *rows;
    struct kv_storage *storage;
    struct kv_clock clock;
    const struct act_addr *observer; /* gets ENGRAM_STATS twice a second; nobody: none */
};

/* arg: struct act_engram_store *. */
extern const struct act_behaviour act_engram_store_behaviour;

#endif
