#include "kvtiers/extent.h"

#include <errno.h>
#include <string.h>
#include <xxhash.h>

int kv_layout_init(uint32_t format, uint32_t block_tokens, const size_t *bytes, int n, struct kv_layout *out,
                   struct cfg_error *err)
{
    *out = (struct kv_layout){.format = format, .block_tokens = block_tokens, .n_sources = n};
    if (n < 1 || n > KV_SOURCES_MAX)
        return cfg_error_set(err, EINVAL, "blocks of %d sources: tiers hold 1 to %d", n, KV_SOURCES_MAX);
    for (int i = 0; i < n; i++) {
        if (!bytes[i] || bytes[i] % KV_PAGE)
            return cfg_error_set(err, EINVAL, "an extent of %zu bytes is no multiple of %d", bytes[i], KV_PAGE);
        out->offset[i] = out->block_bytes;
        out->bytes[i] = bytes[i];
        out->block_bytes += bytes[i];
    }
    return 0;
}

static void put(uint8_t **at, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        *(*at)++ = (uint8_t)(v >> (8 * i));
}

uint64_t kv_layout_id(const struct kv_layout *l)
{
    uint8_t b[12 + 8 * KV_SOURCES_MAX], *at = b;
    put(&at, l->format, 4);
    put(&at, l->block_tokens, 4);
    put(&at, (uint64_t)l->n_sources, 4);
    for (int i = 0; i < l->n_sources; i++)
        put(&at, l->bytes[i], 8);
    return XXH3_64bits(b, (size_t)(at - b));
}

uint64_t kv_extent_sum(const struct kv_key *key, int source, uint64_t generation, const void *bytes, size_t len)
{
    uint8_t b[KV_KEY_BYTES + 12], *at = b + KV_KEY_BYTES;
    memcpy(b, key->b, KV_KEY_BYTES);
    put(&at, (uint64_t)source, 4);
    put(&at, generation, 8);
    return XXH3_64bits_withSeed(bytes, len, XXH3_64bits(b, sizeof b));
}
