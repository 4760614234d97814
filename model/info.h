/* What a model weighs: tensors and bytes by class, KV bytes per token, fixed bytes per request, what a node of one role
 * holds, and what the structure saves. Everything is computed from the config alone; sizes are exact bytes of the
 * published formats, without page or alignment padding. Pure functions, callable from any thread. */
#ifndef WEFT_MODEL_INFO_H
#define WEFT_MODEL_INFO_H

#include "model/config.h"
#include "model/layout.h"

struct mdl_info_source {
    int layer, ratio;
    int64_t main_row, index_row; /* bytes of one packed row */
};

struct mdl_info {
    int64_t tensors[MDL_CLASS_COUNT], bytes[MDL_CLASS_COUNT]; /* as published; optional tensors counted */
    int64_t total_tensors, total_bytes;
    int64_t read_per_token; /* weight bytes that one decoded token touches: backbone with topk experts, no drafter */
    /* Global KV. Rates are per two tokens, so that a row per two tokens stays a whole number. */
    int n_sources;
    struct mdl_info_source source[MDL_MAX_SOURCES];
    int64_t kv_per_2_tokens, kv_main_per_2_tokens, kv_index_per_2_tokens;
    /* The same model with every sparse layer owning its rows and index keys at its own ratio. */
    int64_t kv_unshared_per_2_tokens;
    /* Per request, whatever its length. */
    int64_t window_bytes, draft_ring_bytes, tail_bytes, fixed_bytes; /* fixed = sum of the three */
    int64_t encoder_window_bytes; /* windows of the layers before the cut, 0 without a cut */
    int rollback_rows;            /* rows a window ring keeps beyond the window: twice a draft block with its token */
    int64_t rollback_bytes;       /* these rows in all backbone layers; not part of fixed_bytes */
    int64_t bridge_row_bytes;     /* streams and carried mix of one token at the cut */
    int skipped_layers;           /* layers that prefill runs only for the replayed tail */
};

enum mdl_role { MDL_ROLE_ALL, MDL_ROLE_PREFILL, MDL_ROLE_DECODE, MDL_ROLE_EXPERT };

struct mdl_info_ask {
    enum mdl_role role;
    int ep;           /* expert shards that the routed experts are spread over; 0: experts on the node itself */
    int64_t context;  /* tokens per request */
    int64_t requests; /* held at once */
};

/* What one node holds. Engram tables are looked up row by row in mapped files, so they stand apart from the memory. */
struct mdl_info_node {
    int64_t weights[MDL_CLASS_COUNT]; /* bytes; tables included under their class */
    int64_t decoder_tail_weights; /* prefill only: added when this node replays the decoder itself, not in weights */
    int experts_per_layer;        /* routed experts of one backbone layer that are held here */
    int64_t global_kv, windows, draft_rings, tails, rollback, bridge_rows; /* bytes for all requests */
    int64_t memory; /* weights without Engram tables, plus state */
    int64_t tables; /* Engram tables: mapped file */
};

/* Never fails: a parsed config keeps every sum within 64 bits. */
void mdl_info_compute(const struct mdl_config *c, struct mdl_info *out);

/* Errors: -EINVAL (context beyond the model's positions, ep beyond the experts, counts below 1), -ERANGE (the state of
 * that many requests does not fit 64 bits). */
int mdl_info_node(const struct mdl_config *c, const struct mdl_info_ask *ask, struct mdl_info_node *out,
                  struct cfg_error *err);

/* "experts", "dense", ... for reports. */
const char *mdl_class_name(enum mdl_class cls);

#endif
