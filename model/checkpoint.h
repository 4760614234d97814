/* A checkpoint bound to its config: every tensor the text path needs, found, checked and pointed at in the mapped
 * files. Only tensors of wide elements that a file puts at an odd address are copied. Immutable after load; any thread
 * may read. */
#ifndef WEFT_MODEL_CHECKPOINT_H
#define WEFT_MODEL_CHECKPOINT_H

#include "model/config.h"
#include "model/safetensors.h"

enum mdl_wkind {
    MDL_W_FP8,  /* E4M3 codes [n][k], E8M0 scales [ceil(n/32)][k/32] */
    MDL_W_FP4,  /* E2M1 pairs [n][k/2] (even index in the low nibble), E8M0 scales [n][k/32] */
    MDL_W_BF16, /* [n][k] */
    MDL_W_F32,  /* [n][k] */
};

/* One linear map y[n] = W[n][k] x[k]. data NULL: the tensor is not mapped in this process (role). */
struct mdl_linear {
    enum mdl_wkind kind;
    int n, k;
    const void *data;
    const uint8_t *scale; /* FP8, FP4 only */
};

struct mdl_expert {
    struct mdl_linear w1, w2, w3; /* gate, down, up */
};

struct mdl_hc {
    const float *fn;    /* [24][4*hidden] */
    const float *base;  /* [24] */
    const float *scale; /* [3] */
};

/* One block: a backbone layer or a drafter stage. Vectors of norms are bf16 bit patterns. */
struct mdl_block {
    const uint16_t *attn_norm, *ffn_norm; /* [hidden] */
    struct mdl_hc hc_attn, hc_ffn;
    struct mdl_linear wq_a, wq_b, wkv, wo_a, wo_b; /* wo_a: [o_groups*o_lora][n_heads*head_dim/o_groups], FP8 or BF16 */
    const uint16_t *q_norm, *kv_norm;              /* [q_lora], [head_dim] */
    const float *attn_sink;                        /* [n_heads] */
    /* KV sources only */
    struct mdl_linear comp_wkv, comp_wgate; /* BF16; wgate.data NULL for ratio 1 */
    const uint16_t *comp_norm;              /* [head_dim] */
    struct mdl_linear idx_wk;               /* BF16 [index_dim][head_dim] */
    const uint16_t *idx_k_norm;             /* [index_dim] */
    /* index sources only */
    struct mdl_linear idx_wq_b, idx_weights; /* FP8, BF16 */
    /* experts */
    struct mdl_linear gate; /* BF16 [experts][hidden] */
    const float *gate_bias; /* [experts] */
    int n_experts;
    struct mdl_expert *experts; /* [n_experts] */
    struct mdl_expert shared;   /* FP8 */
};

struct mdl_engram {
    const uint8_t *table;       /* E4M3 [rows][dim], stays in the mapped file */
    const uint8_t *table_scale; /* E8M0 [rows][dim/32] */
    int64_t rows;
    struct mdl_linear wkv;               /* FP8 [5*hidden][heads*(ngram-1)*dim] */
    const uint16_t *q_weight, *k_weight; /* bf16 [4][hidden] */
    /* from the sidecar */
    const int64_t *multipliers; /* [ngram] */
    const int64_t *primes;      /* [(ngram-1)*heads] */
};

struct mdl_checkpoint {
    struct mdl_config config;
    const uint16_t *embed;    /* bf16 [vocab][hidden] */
    struct mdl_linear head;   /* BF16 [vocab][hidden] */
    const uint16_t *norm;     /* [hidden] */
    struct mdl_block *layers; /* [n_layers] */
    struct mdl_engram engram[MDL_MAX_ENGRAM];
    const int32_t *engram_map; /* compressed ids [vocab]; NULL without Engram */
    /* drafter */
    struct mdl_block *draft; /* [n_draft] */
    struct mdl_linear main_proj;
    const uint16_t *main_norm, *draft_norm; /* [hidden] */
    const uint16_t *markov_embed;           /* bf16 [vocab][rank] */
    struct mdl_linear markov_head;          /* BF16 [vocab][rank] */
    struct mdl_linear confidence;           /* BF16 [1][hidden+rank] */
    /* identity: XXH3-64 over config, tensor names, shapes, dtypes and sampled data of every tensor; names the revision
     * in reports */
    uint64_t revision;
    bool revision_given; /* of a part whose rest is not there, so that it could not be computed: by whoever opened it */
    size_t mapped; /* bytes of the weight files that are mapped */
    void *priv;    /* mapped files, index; owned */
};

/* What of a checkpoint is bound. ENCODER: the embedding, the layers below the cut, and of the cut layer what its global
 * rows take; not: experts from the cut layer on, later layers, drafter, head. All that computes the prompt of a
 * hand-off in the forms encoder and global; of a model without a cut layer, everything. Pointers to the rest are NULL,
 * and its bytes are not mapped; its files may lack. */
enum mdl_part { MDL_PART_ALL, MDL_PART_ENCODER };

/* Opens DIR: config.json, model.safetensors or model.safetensors.index.json with its shards, engram.safetensors.
 * Errors: -errno of a file, -EINVAL with the tensor's name and what was expected. On failure *out is NULL. */
int mdl_checkpoint_open(const char *dir, struct mdl_checkpoint **out, struct cfg_error *err);
/* A part of it. revision: what the whole checkpoint has (weft check prints it); 0: not known. A checkpoint that is
 * whole must have it, one that is not takes it from here. */
int mdl_checkpoint_open_part(const char *dir, enum mdl_part part, uint64_t revision, struct mdl_checkpoint **out,
                             struct cfg_error *err);
void mdl_checkpoint_close(struct mdl_checkpoint *ck);

/* Calls visit for every tensor of the weight files, also those the text path does not use, file by file. Stops at the
 * first non-zero return and returns it. */
int mdl_checkpoint_each(const struct mdl_checkpoint *ck, int (*visit)(void *arg, const struct mdl_tensor *t),
                        void *arg);

/* Any tensor of the checkpoint by its published name (of a part: only those that are bound have data), also those the
 * text path does not use; NULL when absent. */
const struct mdl_tensor *mdl_checkpoint_tensor(const struct mdl_checkpoint *ck, const char *name);

#endif
