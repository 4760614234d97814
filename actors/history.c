#include "actors/history.h"

#include <string.h>

void act_history_chain(const struct act_engine *e, const struct act_recipe *r, const int32_t *ids, int blocks,
                       struct act_key *out)
{
    int per = e->layout.block_tokens, known = r->n_chain - 1 < blocks ? r->n_chain - 1 : blocks;
    *out = r->chain[known];
    for (int b = known; b < blocks; b++)
        kv_key_extend((const struct kv_key *)out, ids + b * per, per, (struct kv_key *)out);
}

void act_history_publish(struct act_self *self, const struct act_engine *e, const struct act_recipe *r,
                         const int32_t *ids, const struct mdl_seq *seq, const uint32_t *pages, int n_pages,
                         uint32_t replayed, int32_t hit)
{
    int per = e->layout.block_tokens, full = seq->encoded / per;
    int first = replayed ? hit / per : 0; /* what the hit brought is not the sequence's to name */
    struct act_msg m;
    size_t bytes;
    full = full < n_pages ? full : n_pages;
    if (replayed && (hit < 0 || hit % per)) /* lookups end with a block, so nobody could ask for these */
        return;
    if (full <= first || r->n_chain < 1 ||
        act_msg_new(ACT_KV_STORE, e->tier, (size_t)(full - first) * sizeof(struct act_tier_block), &m))
        return;
    struct act_tier_block *b = act_msg_tail(&m, &bytes);
    struct act_key chain = r->chain[0];
    for (int i = 0; i < full; i++) {
        if (i + 1 < r->n_chain)
            chain = r->chain[i + 1];
        else
            kv_key_extend((struct kv_key *)&chain, ids + i * per, per, (struct kv_key *)&chain);
        if (i >= first)
            *b++ = (struct act_tier_block){.chain = chain, .page = pages[i], .replayed = replayed, .hit = hit};
    }
    act_p_kv_store(&m)->blocks = (uint32_t)(full - first);
    if (act_send(self, &m))
        act_msg_drop(&m);
}

void act_history_snapshot(struct act_self *self, const struct act_engine *e, const struct act_recipe *r,
                          const int32_t *ids, const struct mdl_seq *seq, int most)
{
    int per = e->layout.block_tokens, pos = (most < seq->encoded ? most : seq->encoded) & ~1;
    size_t bytes = r->n_chain && e->snapshots ? mdl_seq_snapshot_bytes(seq, pos) : 0, room;
    int blocks = pos / per, rest = pos - blocks * per;
    struct act_msg m;
    if (!bytes || act_msg_new(ACT_SNAPSHOT, e->tier, sizeof(struct act_key) + (size_t)rest * sizeof *ids + bytes, &m))
        return;
    *act_p_snapshot(&m) =
        (struct act_p_snapshot){.position = (uint32_t)pos, .blocks = (uint32_t)blocks, .ids = (uint32_t)rest};
    uint8_t *at = act_msg_tail(&m, &room);
    act_history_chain(e, r, ids, blocks, (struct act_key *)(void *)at);
    at += sizeof(struct act_key);
    memcpy(at, ids + blocks * per, (size_t)rest * sizeof *ids);
    mdl_seq_snapshot_save(seq, pos, at + (size_t)rest * sizeof *ids);
    if (act_send(self, &m))
        act_msg_drop(&m);
}
