/* The shape of a model: what config.json says, checked, with the role of every layer derived from its lists.
 *
 * Owned by whoever called mdl_config_load; immutable afterwards and readable from any thread.
 * Names follow the published config.json; the maths behind each field is in docs/ARCHITECTURE.md, "The network". */
#ifndef WEFT_MODEL_CONFIG_H
#define WEFT_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

#include "config/error.h"

enum {
    MDL_MAX_LAYERS = 256, /* backbone layers */
    MDL_MAX_SOURCES = 64, /* layers that own global KV */
    MDL_MAX_ENGRAM = 16,
    MDL_MAX_DRAFT = 16,      /* drafter stages */
    MDL_MAX_BLOCK = 32,      /* draft block length */
    MDL_MAX_TAPS = 16,       /* drafter target layers */
    MDL_MAX_TOPK = 64,       /* experts per token */
    MDL_MAX_INDEX_DIM = 512, /* channels of an index head */
    MDL_HC = 4,              /* residual streams; the only value the architecture is defined for */
};

enum mdl_layer_mode {
    MDL_LAYER_SWA,     /* sliding window only */
    MDL_LAYER_FULL,    /* owns a compressor, global KV, index keys and an indexer */
    MDL_LAYER_REINDEX, /* own indexer over the keys of its KV source */
    MDL_LAYER_REUSE,   /* reads KV and selection of earlier layers */
};

struct mdl_layer_role {
    enum mdl_layer_mode mode;
    int ratio;             /* tokens per row of the global KV that the layer reads; 0: none */
    int kv_source;         /* slot in kv_sources[] whose rows are read, -1: none */
    int index_source;      /* layer whose published selection is read (itself for sources), -1: none */
    int engram;            /* slot in engram_layers[], -1: none */
    bool candidate_source; /* builds the candidate blocks */
    bool restricted;       /* selects only inside the candidate blocks */
};

struct mdl_config {
    /* sizes */
    int vocab_size, hidden, n_layers, n_heads, head_dim, rope_dim, q_lora, o_lora, o_groups, window;
    int max_position;
    float rms_eps, hc_eps, swiglu_limit;
    int hc_sinkhorn_iters;
    /* rotary tables: plain for ratio-0 layers and the drafter, YaRN-scaled for all others */
    double rope_theta, compress_rope_theta;
    double yarn_factor, yarn_beta_fast, yarn_beta_slow;
    int yarn_original_len; /* 0: no scaling */
    /* sparse attention */
    int index_heads, index_dim, index_topk;
    int candidate_blocks, candidate_block_size;
    int candidate_layer; /* -1: none */
    int n_kv_sources;
    int kv_sources[MDL_MAX_SOURCES]; /* layer ids, ascending */
    int kv_source_ratio[MDL_MAX_SOURCES];
    struct mdl_layer_role layer[MDL_MAX_LAYERS];
    /* Layers cut..n_layers-1 form the decoder: cut is the last KV source, no Engram lies at or after it, ratio 1 from
     * there on, and the drafter taps none of the layers before it. -1 when the lists have no such point: then only
     * exact mode exists (cut_reason says why). */
    int cut;
    char cut_reason[160];
    /* mixture of experts */
    int n_experts, topk_experts, moe_inter, n_shared_experts;
    float route_scale;
    /* Engram */
    int n_engram;
    int engram_layers[MDL_MAX_ENGRAM];
    int64_t engram_rows[MDL_MAX_ENGRAM];
    int engram_ngram, engram_heads, engram_dim, engram_pad_id, engram_compressed_vocab;
    int64_t engram_vocab;
    /* drafter */
    int n_draft;     /* stages; 0: no drafter */
    int draft_block; /* tokens drafted at once */
    int draft_noise_id, draft_experts, draft_topk, markov_rank;
    int n_taps;
    int tap_layers[MDL_MAX_TAPS]; /* ascending position in the concatenation = order in the config */
    /* special ids of the outer config */
    int bos_id, eos_id, pad_id, image_id; /* -1: absent */
    bool has_vision;
};

/* Reads DIR/config.json (outer form with text_config, or flat with either naming scheme). On failure nothing is kept.
 * Errors: -ENOENT/-EACCES (file), -EINVAL (content; message names the key and what was expected). */
int mdl_config_load(const char *dir, struct mdl_config *out, struct cfg_error *err);

/* Same from memory; name is used in messages. */
int mdl_config_parse(const char *json, size_t len, const char *name, struct mdl_config *out, struct cfg_error *err);

/* The primes that the published search gives the Engram table of one slot, in row-offset order: one ascending run over
 * all slots that starts at engram_vocab. out holds (engram_ngram - 1) * engram_heads values. -EINVAL: no such slot.
 * A checkpoint's own primes come from its sidecar; this is for whoever makes one. */
int mdl_config_engram_primes(const struct mdl_config *c, int slot, int64_t *out);

/* Row sizes in bytes of the packed KV formats. */
static inline size_t mdl_swa_row_bytes(const struct mdl_config *c)
{
    return (size_t)c->head_dim + (size_t)c->head_dim / 32; /* E4M3 codes, one E8M0 scale per 32 */
}
static inline size_t mdl_main_row_bytes(const struct mdl_config *c)
{
    return (size_t)c->head_dim / 2 + (size_t)c->head_dim / 16; /* E2M1 pairs, one E4M3 scale per 16 */
}
static inline size_t mdl_index_row_bytes(const struct mdl_config *c)
{
    return (size_t)c->index_dim / 2 + (size_t)c->index_dim / 32; /* E2M1 pairs, one E8M0 scale per 32 */
}

#endif
