/* The host tier: a pool of memory for blocks that the device may have given up. Not durable. One thread. */
#ifndef WEFT_KVTIERS_HOST_H
#define WEFT_KVTIERS_HOST_H

#include "kvtiers/tier.h"

struct kv_host_params {
    struct kv_layout layout;
    int64_t bytes; /* of the pool; rounded down to whole blocks, at least one */
    int64_t ttl_s; /* blocks older than this are not found any more; 0: no limit */
    struct kv_clock clock;
    bool verify; /* keep a checksum per extent and verify it on every read */
};

int kv_host_new(const struct kv_host_params *params, struct kv_tier **out, struct cfg_error *err);
/* The pool's memory, for registration with a storage. */
void kv_host_memory(struct kv_tier *t, void **base, size_t *len);
/* Whether lookup would find it; counted nowhere. */
bool kv_host_has(struct kv_tier *t, const struct kv_key *key);
/* The bytes of a block, which stays until kv_host_unpin; NULL: it is not here. For tiers below that store from the pool
 * without a further copy. */
uint8_t *kv_host_pin(struct kv_tier *t, const struct kv_key *key);
void kv_host_unpin(struct kv_tier *t, const struct kv_key *key);

#endif
