#include "kvtiers/key.h"

#include <sodium.h>
#include <string.h>

_Static_assert(KV_KEY_BYTES == crypto_generichash_BYTES, "keys are BLAKE2b-256");

/* Integers enter the hash in little-endian order whatever the machine, so that nodes agree on names. */
static void add_u32(crypto_generichash_state *h, uint32_t v)
{
    uint8_t b[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
    crypto_generichash_update(h, b, sizeof b);
}

static void add_u64(crypto_generichash_state *h, uint64_t v)
{
    add_u32(h, (uint32_t)v);
    add_u32(h, (uint32_t)(v >> 32));
}

void kv_key_root(const struct kv_identity *id, struct kv_key *out)
{
    static const char domain[] = "weft kv root";
    size_t numerics = strlen(id->numerics);
    crypto_generichash_state h;
    crypto_generichash_init(&h, NULL, 0, KV_KEY_BYTES);
    crypto_generichash_update(&h, (const uint8_t *)domain, sizeof domain);
    add_u64(&h, id->revision);
    add_u32(&h, id->format);
    add_u32(&h, id->block_tokens);
    add_u64(&h, numerics);
    crypto_generichash_update(&h, (const uint8_t *)id->numerics, numerics);
    add_u64(&h, id->salt_len);
    crypto_generichash_update(&h, id->salt, id->salt_len);
    crypto_generichash_final(&h, out->b, KV_KEY_BYTES);
}

void kv_key_extend(const struct kv_key *parent, const int32_t *ids, int n, struct kv_key *out)
{
    crypto_generichash_state h;
    crypto_generichash_init(&h, parent->b, KV_KEY_BYTES, KV_KEY_BYTES);
    add_u32(&h, (uint32_t)n);
    for (int i = 0; i < n; i++)
        add_u32(&h, (uint32_t)ids[i]);
    crypto_generichash_final(&h, out->b, KV_KEY_BYTES);
}

void kv_key_block(const struct kv_key *chain, struct kv_key *out)
{
    static const uint8_t clean = KV_CLEAN;
    crypto_generichash(out->b, KV_KEY_BYTES, &clean, sizeof clean, chain->b, KV_KEY_BYTES);
}

void kv_key_behind(const struct kv_key *chain, uint32_t hit, uint32_t replay, struct kv_key *out)
{
    static const uint8_t tainted = KV_TAINTED;
    crypto_generichash_state h;
    crypto_generichash_init(&h, chain->b, KV_KEY_BYTES, KV_KEY_BYTES);
    crypto_generichash_update(&h, &tainted, sizeof tainted);
    add_u32(&h, hit);
    add_u32(&h, replay);
    crypto_generichash_final(&h, out->b, KV_KEY_BYTES);
}
