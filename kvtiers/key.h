/* Names of cached blocks: keyed hashes over everything that the bytes depend on.
 *
 * chain(b) = H(chain(b-1), token ids of block b), beginning at a root that holds the model's revision, the row format,
 * the numerics id and the tenant's salt. The key of a block is H(chain, how its rows came about): the same tokens have
 * one clean key, and one for each replayed prefix hit behind which their rows were written. Equal keys mean equal bits.
 * Pure functions; any thread. */
#ifndef WEFT_KVTIERS_KEY_H
#define WEFT_KVTIERS_KEY_H

#include <stddef.h>
#include <stdint.h>

enum { KV_KEY_BYTES = 32 };

struct kv_key {
    uint8_t b[KV_KEY_BYTES];
};

/* How the rows of a block came about. */
enum kv_taint {
    KV_CLEAN = 0,   /* equal to a cold run, bit for bit */
    KV_TAINTED = 1, /* written behind a prefix hit whose window rows were replayed */
};

struct kv_identity {
    uint64_t revision; /* weights, config, Engram sidecar */
    uint32_t format;   /* row layout; KV_FORMAT_ROWS */
    uint32_t block_tokens;
    const char *numerics; /* backend and CPU path, such as "cpu/avx512" */
    const void *salt;     /* tenant's salt, may be empty */
    size_t salt_len;
};

enum { KV_FORMAT_ROWS = 1 };

void kv_key_root(const struct kv_identity *id, struct kv_key *out);
/* Adds n token ids to a chain; parent may be out. */
void kv_key_extend(const struct kv_key *parent, const int32_t *ids, int n, struct kv_key *out);
/* Of a clean block. */
void kv_key_block(const struct kv_key *chain, struct kv_key *out);
/* Of a block whose rows were written behind a clean hit of `hit` tokens, the last `replay` of which were replayed. */
void kv_key_behind(const struct kv_key *chain, uint32_t hit, uint32_t replay, struct kv_key *out);

#endif
