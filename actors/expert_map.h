/* Which shard holds which routed experts: one version of the placement, and which of several replicas a token uses.
 *
 * A placement gives every layer the same number of slots per shard; a slot holds one expert or none, and an expert may
 * be in slots of several shards. It is made once (act_map_index) and never changed; who shares it counts. Plain
 * data: any thread may read one, the functions below write to what they are given only. */
#ifndef WEFT_ACTORS_EXPERT_MAP_H
#define WEFT_ACTORS_EXPERT_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ACT_SHARDS_MAX = 256 };

struct act_map {
    uint32_t version;
    int layers, experts, shards;
    int slots;       /* per layer and shard */
    int32_t *slot;   /* [layers][shards][slots] expert, -1: none */
    uint32_t *first; /* [layers * experts + 1] index into owner */
    uint16_t *owner; /* shards that hold an expert, ascending, each once */
    int refs;        /* of the owner's thread; act_map_free counts down */
};

/* An empty one. -EINVAL: sizes; -ENOMEM. */
int act_map_new(uint32_t version, int layers, int experts, int shards, int slots, struct act_map **out);
/* Shard i holds experts experts*i/shards .. of every layer: where a deployment begins. */
int act_map_even(uint32_t version, int layers, int experts, int shards, struct act_map **out);
static inline int32_t *act_map_slots(const struct act_map *p, int layer, int shard)
{
    return p->slot + ((size_t)layer * (size_t)p->shards + (size_t)shard) * (size_t)p->slots;
}
/* Finishes one whose slots have been set. -EINVAL: an expert of some layer is nowhere, or a slot holds what is none. */
int act_map_index(struct act_map *p);
/* One more user; each frees it. */
struct act_map *act_map_share(struct act_map *p);
void act_map_free(struct act_map *p);
static inline const uint16_t *act_map_owners(const struct act_map *p, int layer, int expert, int *n)
{
    size_t at = (size_t)layer * (size_t)p->experts + (size_t)expert;
    *n = (int)(p->first[at + 1] - p->first[at]);
    return p->owner + p->first[at];
}
bool act_map_holds(const struct act_map *p, int layer, int shard, int expert);

/* Bytes of the form that travels (docs/FORMATS.md), and the form itself. Reading checks everything: -EBADMSG. */
size_t act_map_bytes(const struct act_map *p);
void act_map_write(const struct act_map *p, void *to);
int act_map_read(const void *from, size_t bytes, struct act_map **out);

/* ---- which replica a token uses ---- */

/* Shards that take no work at the moment: bit i of word i / 64. */
struct act_shard_set {
    uint64_t word[ACT_SHARDS_MAX / 64];
};

static inline bool act_shard_in(const struct act_shard_set *s, int i)
{
    return s->word[i / 64] >> (i % 64) & 1;
}

static inline void act_shard_add(struct act_shard_set *s, int i)
{
    s->word[i / 64] |= UINT64_C(1) << (i % 64);
}

static inline void act_shard_remove(struct act_shard_set *s, int i)
{
    s->word[i / 64] &= ~(UINT64_C(1) << (i % 64));
}

/* Chooses a shard for every (row, k) of one exchange, so that the (row, expert) pairs are spread as evenly as the
 * placement allows: what has one owner first, then each other pair to the owner with the fewest pairs so far; among
 * equals the one that gets this row anyway, then the next one from `turn` on, which differs between sources. Results do
 * not depend on the choice. An expert all of whose owners are in `out_of_service` goes to one of the other shards, the
 * same one for every source (takeover), or to none: shard -1. The number of pairs without a shard is returned. */
int act_map_choose(const struct act_map *p, int layer, const int32_t *expert, int rows, int k,
                   const struct act_shard_set *out_of_service, bool takeover, uint32_t turn, int16_t *shard);

#endif
