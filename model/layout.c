/* The tables of the published layout and the walk over them. See layout.h. */
#include "model/layout.h"

#include <stdio.h>
#include <string.h>

#include "model/checkpoint.h"

/* Widths by name, so that the tables below can state shapes. */
enum dim {
    D_VECTOR, /* as k: the tensor has one dimension only */
    D_ONE,
    D_HIDDEN,
    D_VOCAB,
    D_MIX,     /* mHC values per half-layer */
    D_STREAMS, /* hidden of all residual streams */
    D_HC,
    D_THREE,
    D_Q_LORA,
    D_HEADS,
    D_HEAD_DIM,
    D_Q_WIDTH, /* heads x head_dim */
    D_O_RANK,  /* groups x o_lora */
    D_O_GROUP, /* head outputs of one group */
    D_INDEX_DIM,
    D_INDEX_HEADS,
    D_INDEX_Q, /* index heads x index_dim */
    D_INTER,
    D_EXPERTS, /* of the block at hand */
    D_ENGRAM_ROWS,
    D_ENGRAM_DIM,
    D_ENGRAM_IN, /* looked-up width per token */
    D_ENGRAM_OUT,
    D_TAPS,
    D_RANK,
    D_CONFIDENCE,
};

/* Where in the model a row applies. */
enum when { ALWAYS, KV_SOURCE, KV_SOURCE_GATED, INDEX_SOURCE, FIRST_STAGE, LAST_STAGE };

enum form { F_BF16, F_F32, F_F32_UNUSED, F_LIN_FP8, F_LIN_FP8_OR_BF16, F_LIN_FP4, F_LIN_BF16, F_TABLE_FP8 };

struct row {
    const char *name; /* linears in FP8/FP4: without .weight/.scale */
    enum form form;
    size_t offset;
    enum dim n, k;
    enum when when;
    size_t scale_offset; /* F_TABLE_FP8 only */
};

#define CK(f) offsetof(struct mdl_checkpoint, f)
#define BL(f) offsetof(struct mdl_block, f)
#define EN(f) offsetof(struct mdl_engram, f)
#define EX(f) offsetof(struct mdl_expert, f)
#define ROWS(a) (a), sizeof(a) / sizeof(a)[0]

static const struct row outside_rows[] = {
    {"embed.weight", F_BF16, CK(embed), D_VOCAB, D_HIDDEN, ALWAYS, 0},
    {"head.weight", F_LIN_BF16, CK(head), D_VOCAB, D_HIDDEN, ALWAYS, 0},
    {"norm.weight", F_BF16, CK(norm), D_HIDDEN, D_VECTOR, ALWAYS, 0},
};

static const struct row block_rows[] = {
    {"attn_norm.weight", F_BF16, BL(attn_norm), D_HIDDEN, D_VECTOR, ALWAYS, 0},
    {"ffn_norm.weight", F_BF16, BL(ffn_norm), D_HIDDEN, D_VECTOR, ALWAYS, 0},
    {"hc_attn_fn", F_F32, BL(hc_attn.fn), D_MIX, D_STREAMS, ALWAYS, 0},
    {"hc_attn_base", F_F32, BL(hc_attn.base), D_MIX, D_VECTOR, ALWAYS, 0},
    {"hc_attn_scale", F_F32, BL(hc_attn.scale), D_THREE, D_VECTOR, ALWAYS, 0},
    {"hc_ffn_fn", F_F32, BL(hc_ffn.fn), D_MIX, D_STREAMS, ALWAYS, 0},
    {"hc_ffn_base", F_F32, BL(hc_ffn.base), D_MIX, D_VECTOR, ALWAYS, 0},
    {"hc_ffn_scale", F_F32, BL(hc_ffn.scale), D_THREE, D_VECTOR, ALWAYS, 0},
    {"attn.wq_a", F_LIN_FP8, BL(wq_a), D_Q_LORA, D_HIDDEN, ALWAYS, 0},
    {"attn.q_norm.weight", F_BF16, BL(q_norm), D_Q_LORA, D_VECTOR, ALWAYS, 0},
    {"attn.wq_b", F_LIN_FP8, BL(wq_b), D_Q_WIDTH, D_Q_LORA, ALWAYS, 0},
    {"attn.wkv", F_LIN_FP8, BL(wkv), D_HEAD_DIM, D_HIDDEN, ALWAYS, 0},
    {"attn.kv_norm.weight", F_BF16, BL(kv_norm), D_HEAD_DIM, D_VECTOR, ALWAYS, 0},
    {"attn.attn_sink", F_F32, BL(attn_sink), D_HEADS, D_VECTOR, ALWAYS, 0},
    {"attn.wo_a", F_LIN_FP8_OR_BF16, BL(wo_a), D_O_RANK, D_O_GROUP, ALWAYS, 0},
    {"attn.wo_b", F_LIN_FP8, BL(wo_b), D_HIDDEN, D_O_RANK, ALWAYS, 0},
    {"attn.compressor.wkv.weight", F_LIN_BF16, BL(comp_wkv), D_HEAD_DIM, D_HIDDEN, KV_SOURCE, 0},
    {"attn.compressor.wgate.weight", F_LIN_BF16, BL(comp_wgate), D_HEAD_DIM, D_HIDDEN, KV_SOURCE_GATED, 0},
    {"attn.compressor.norm.weight", F_BF16, BL(comp_norm), D_HEAD_DIM, D_VECTOR, KV_SOURCE, 0},
    {"attn.indexer.wk.weight", F_LIN_BF16, BL(idx_wk), D_INDEX_DIM, D_HEAD_DIM, KV_SOURCE, 0},
    {"attn.indexer.k_norm.weight", F_BF16, BL(idx_k_norm), D_INDEX_DIM, D_VECTOR, KV_SOURCE, 0},
    {"attn.indexer.wq_b", F_LIN_FP8, BL(idx_wq_b), D_INDEX_Q, D_Q_LORA, INDEX_SOURCE, 0},
    {"attn.indexer.weights_proj.weight", F_LIN_BF16, BL(idx_weights), D_INDEX_HEADS, D_HIDDEN, INDEX_SOURCE, 0},
    {"ffn.gate.weight", F_LIN_BF16, BL(gate), D_EXPERTS, D_HIDDEN, ALWAYS, 0},
    {"ffn.gate.bias", F_F32, BL(gate_bias), D_EXPERTS, D_VECTOR, ALWAYS, 0},
    {"ffn.gate.bias_vl", F_F32_UNUSED, 0, D_EXPERTS, D_VECTOR, ALWAYS, 0},
    {"ffn.shared_experts.w1", F_LIN_FP8, BL(shared.w1), D_INTER, D_HIDDEN, ALWAYS, 0},
    {"ffn.shared_experts.w3", F_LIN_FP8, BL(shared.w3), D_INTER, D_HIDDEN, ALWAYS, 0},
    {"ffn.shared_experts.w2", F_LIN_FP8, BL(shared.w2), D_HIDDEN, D_INTER, ALWAYS, 0},
};

static const struct row expert_rows[] = {
    {"w1", F_LIN_FP4, EX(w1), D_INTER, D_HIDDEN, ALWAYS, 0},
    {"w3", F_LIN_FP4, EX(w3), D_INTER, D_HIDDEN, ALWAYS, 0},
    {"w2", F_LIN_FP4, EX(w2), D_HIDDEN, D_INTER, ALWAYS, 0},
};

static const struct row engram_table_rows[] = {
    {"engram.embed", F_TABLE_FP8, EN(table), D_ENGRAM_ROWS, D_ENGRAM_DIM, ALWAYS, EN(table_scale)},
};

static const struct row engram_rows[] = {
    {"engram.wkv", F_LIN_FP8, EN(wkv), D_ENGRAM_OUT, D_ENGRAM_IN, ALWAYS, 0},
    {"engram.q_weight", F_BF16, EN(q_weight), D_HC, D_HIDDEN, ALWAYS, 0},
    {"engram.k_weight", F_BF16, EN(k_weight), D_HC, D_HIDDEN, ALWAYS, 0},
};

static const struct row stage_rows[] = {
    {"main_proj", F_LIN_FP8, CK(main_proj), D_HIDDEN, D_TAPS, FIRST_STAGE, 0},
    {"main_norm.weight", F_BF16, CK(main_norm), D_HIDDEN, D_VECTOR, FIRST_STAGE, 0},
    {"norm.weight", F_BF16, CK(draft_norm), D_HIDDEN, D_VECTOR, LAST_STAGE, 0},
    {"markov_head.embed.weight", F_BF16, CK(markov_embed), D_VOCAB, D_RANK, LAST_STAGE, 0},
    {"markov_head.head.weight", F_LIN_BF16, CK(markov_head), D_VOCAB, D_RANK, LAST_STAGE, 0},
    {"confidence_head.proj.weight", F_LIN_BF16, CK(confidence), D_ONE, D_CONFIDENCE, LAST_STAGE, 0},
};

/* A walk in progress; at holds the parts of the current tensor that its surroundings decide. */
struct walk {
    const struct mdl_config *c;
    int (*visit)(void *arg, const struct mdl_want *w);
    void *arg;
    struct mdl_want at;
};

static int64_t dim_value(const struct walk *wk, enum dim d)
{
    const struct mdl_config *c = wk->c;
    switch (d) {
    case D_VECTOR:
    case D_ONE:
        return 1;
    case D_HIDDEN:
        return c->hidden;
    case D_VOCAB:
        return c->vocab_size;
    case D_MIX:
        return 2 * MDL_HC + MDL_HC * MDL_HC;
    case D_STREAMS:
        return (int64_t)MDL_HC * c->hidden;
    case D_HC:
        return MDL_HC;
    case D_THREE:
        return 3;
    case D_Q_LORA:
        return c->q_lora;
    case D_HEADS:
        return c->n_heads;
    case D_HEAD_DIM:
        return c->head_dim;
    case D_Q_WIDTH:
        return (int64_t)c->n_heads * c->head_dim;
    case D_O_RANK:
        return (int64_t)c->o_groups * c->o_lora;
    case D_O_GROUP:
        return (int64_t)c->n_heads * c->head_dim / c->o_groups;
    case D_INDEX_DIM:
        return c->index_dim;
    case D_INDEX_HEADS:
        return c->index_heads;
    case D_INDEX_Q:
        return (int64_t)c->index_heads * c->index_dim;
    case D_INTER:
        return c->moe_inter;
    case D_EXPERTS:
        return wk->at.block < c->n_layers ? c->n_experts : c->draft_experts;
    case D_ENGRAM_ROWS:
        return c->engram_rows[wk->at.slot];
    case D_ENGRAM_DIM:
        return c->engram_dim;
    case D_ENGRAM_IN:
        return (int64_t)(c->engram_ngram - 1) * c->engram_heads * c->engram_dim;
    case D_ENGRAM_OUT:
        return (int64_t)(MDL_HC + 1) * c->hidden;
    case D_TAPS:
        return (int64_t)c->n_taps * c->hidden;
    case D_RANK:
        return c->markov_rank;
    case D_CONFIDENCE:
        return (int64_t)c->hidden + c->markov_rank;
    }
    return 0;
}

static bool applies(const struct walk *wk, enum when when)
{
    const struct mdl_config *c = wk->c;
    int block = wk->at.block;
    const struct mdl_layer_role *role = block >= 0 && block < c->n_layers ? &c->layer[block] : NULL;
    switch (when) {
    case ALWAYS:
        return true;
    case KV_SOURCE:
        return role && role->mode == MDL_LAYER_FULL;
    case KV_SOURCE_GATED:
        return role && role->mode == MDL_LAYER_FULL && role->ratio > 1;
    case INDEX_SOURCE:
        return role && (role->mode == MDL_LAYER_FULL || role->mode == MDL_LAYER_REINDEX);
    case FIRST_STAGE:
        return block == c->n_layers;
    case LAST_STAGE:
        return block == c->n_layers + c->n_draft - 1;
    }
    return false;
}

static int emit(struct walk *wk, const char *prefix, const char *name, const char *suffix, int64_t n, int64_t k)
{
    struct mdl_want *w = &wk->at;
    snprintf(w->name, sizeof w->name, "%s%s%s", prefix, name, suffix);
    w->shape[0] = n;
    w->shape[1] = k;
    return wk->visit(wk->arg, w);
}

/* A quantised weight and its scales: E4M3 with 32 x 32 tiles, or packed E2M1 or table rows with 1 x 32 groups. */
static int emit_scaled(struct walk *wk, const char *prefix, const struct row *r, int64_t n, int64_t k)
{
    struct mdl_want *w = &wk->at;
    bool tiles = r->form == F_LIN_FP8 || r->form == F_LIN_FP8_OR_BF16, packed = r->form == F_LIN_FP4;
    bool table = r->form == F_TABLE_FP8;
    w->kind = packed ? MDL_W_FP4 : MDL_W_FP8;
    w->or_bf16 = r->form == F_LIN_FP8_OR_BF16;
    w->dtype = packed ? MDL_I8 : MDL_F8_E4M3;
    w->bind = table ? MDL_BIND_POINTER : MDL_BIND_WEIGHT;
    int rc = emit(wk, prefix, r->name, ".weight", n, packed ? k / 2 : k);
    if (rc)
        return rc;
    w->dtype = MDL_F8_E8M0;
    w->bind = table ? MDL_BIND_POINTER : MDL_BIND_SCALE;
    w->offset = table ? r->scale_offset : r->offset;
    return emit(wk, prefix, r->name, ".scale", tiles ? (n + 31) / 32 : n, k / 32);
}

static int emit_row(struct walk *wk, const char *prefix, const struct row *r)
{
    struct mdl_want *w = &wk->at;
    int64_t n = dim_value(wk, r->n), k = dim_value(wk, r->k);
    w->ndim = r->k == D_VECTOR ? 1 : 2;
    w->offset = r->offset;
    w->k = (int)k;
    w->or_bf16 = false;
    w->optional = r->form == F_F32_UNUSED;
    switch (r->form) {
    case F_BF16:
        w->dtype = MDL_BF16;
        w->bind = MDL_BIND_POINTER;
        break;
    case F_F32:
    case F_F32_UNUSED:
        w->dtype = MDL_F32;
        w->bind = r->form == F_F32 ? MDL_BIND_POINTER : MDL_BIND_NONE;
        break;
    case F_LIN_BF16:
        w->dtype = MDL_BF16;
        w->bind = MDL_BIND_WEIGHT;
        w->kind = MDL_W_BF16;
        break;
    case F_LIN_FP8:
    case F_LIN_FP8_OR_BF16:
    case F_LIN_FP4:
    case F_TABLE_FP8:
        return emit_scaled(wk, prefix, r, n, k);
    }
    return emit(wk, prefix, r->name, "", n, k);
}

static int emit_rows(struct walk *wk, const char *prefix, enum mdl_class cls, enum mdl_place place,
                     const struct row *rows, size_t count)
{
    wk->at.cls = cls;
    wk->at.place = place;
    for (size_t i = 0; i < count; i++) {
        int rc = applies(wk, rows[i].when) ? emit_row(wk, prefix, &rows[i]) : 0;
        if (rc)
            return rc;
    }
    return 0;
}

static int emit_block(struct walk *wk, const char *prefix, int block)
{
    const struct mdl_config *c = wk->c;
    bool draft = block >= c->n_layers;
    wk->at.block = block;
    wk->at.slot = draft ? -1 : c->layer[block].engram;
    int rc = 0;
    if (wk->at.slot >= 0 &&
        ((rc = emit_rows(wk, prefix, MDL_CLASS_ENGRAM_TABLE, MDL_PLACE_ENGRAM, ROWS(engram_table_rows))) ||
         (rc = emit_rows(wk, prefix, MDL_CLASS_ENGRAM, MDL_PLACE_ENGRAM, ROWS(engram_rows)))))
        return rc;
    wk->at.slot = -1;
    if ((rc = emit_rows(wk, prefix, draft ? MDL_CLASS_DRAFT : MDL_CLASS_DENSE, MDL_PLACE_BLOCK, ROWS(block_rows))))
        return rc;
    int experts = (int)dim_value(wk, D_EXPERTS);
    for (int e = 0; !rc && e < experts; e++) {
        char inner[64];
        snprintf(inner, sizeof inner, "%sffn.experts.%d.", prefix, e);
        wk->at.expert = e;
        rc = emit_rows(wk, inner, draft ? MDL_CLASS_DRAFT_EXPERT : MDL_CLASS_EXPERT, MDL_PLACE_EXPERT,
                       ROWS(expert_rows));
    }
    wk->at.expert = -1;
    if (!rc && draft)
        rc = emit_rows(wk, prefix, MDL_CLASS_DRAFT, MDL_PLACE_CHECKPOINT, ROWS(stage_rows));
    wk->at.block = -1;
    return rc;
}

int mdl_layout_each(const struct mdl_config *c, int (*visit)(void *arg, const struct mdl_want *w), void *arg)
{
    struct walk wk = {c, visit, arg, {.block = -1, .expert = -1, .slot = -1}};
    int rc = emit_rows(&wk, "", MDL_CLASS_DENSE, MDL_PLACE_CHECKPOINT, ROWS(outside_rows));
    for (int b = 0; !rc && b < c->n_layers + c->n_draft; b++) {
        char prefix[32];
        if (b < c->n_layers)
            snprintf(prefix, sizeof prefix, "layers.%d.", b);
        else
            snprintf(prefix, sizeof prefix, "mtp.%d.", b - c->n_layers);
        rc = emit_block(&wk, prefix, b);
    }
    return rc;
}
