/* Blocks as tiers see them: extents of bytes with a format, nothing of what the bytes mean. Pure functions. */
#ifndef WEFT_KVTIERS_EXTENT_H
#define WEFT_KVTIERS_EXTENT_H

#include <stddef.h>
#include <stdint.h>

#include "config/error.h"
#include "kvtiers/key.h"

enum { KV_SOURCES_MAX = 16, KV_PAGE = 4096 };

/* A block is one extent per KV source, one behind the other, each a multiple of KV_PAGE. */
struct kv_layout {
    uint32_t format, block_tokens;
    int n_sources;
    size_t offset[KV_SOURCES_MAX], bytes[KV_SOURCES_MAX];
    size_t block_bytes;
};

/* bytes [n]: of each extent. -EINVAL names what does not fit. */
int kv_layout_init(uint32_t format, uint32_t block_tokens, const size_t *bytes, int n, struct kv_layout *out,
                   struct cfg_error *err);
/* A number that differs between layouts. */
uint64_t kv_layout_id(const struct kv_layout *l);

/* Checksum of one stored extent: XXH3-64 of its bytes, seeded with XXH3-64 over key, u32 source and u64 generation, so
 * that bytes of another block, source or use of the same place never fit. */
uint64_t kv_extent_sum(const struct kv_key *key, int source, uint64_t generation, const void *bytes, size_t len);

#endif
