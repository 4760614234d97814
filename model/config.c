/* config.json to struct mdl_config: two naming schemes, nested or flat, every value checked before anything uses it.
 *
 * Owns nothing after return; the JSON tree lives only inside mdl_config_parse. Callable from any thread. */
#include "model/config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG_MAX_BYTES = 16 << 20 };

/* One parse in progress. text holds the network's keys, outer the special ids and the quantisation; the same object in
 * the flat form. */
struct reader {
    const char *name;
    json_t *text, *outer;
    struct mdl_config *c;
    struct cfg_error *err;
};

/* A JSON value as short text for a message. */
static const char *show(const json_t *v, char buf[72])
{
    char *s = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    if (!v)
        snprintf(buf, 72, "missing");
    else if (!s)
        snprintf(buf, 72, "unprintable");
    else if (strlen(s) > 60)
        snprintf(buf, 72, "%.57s...", s);
    else
        snprintf(buf, 72, "%s", s);
    free(s);
    return buf;
}

static int bad(struct reader *r, const char *key, const json_t *v, const char *expected)
{
    char buf[72];
    return cfg_error_set(r->err, EINVAL, "%s: %s is %s, expected %s", r->name, key, show(v, buf), expected);
}

/* A key under either of its names; JSON null counts as absent. Two names with different values are a contradiction. */
static int lookup(struct reader *r, json_t *obj, const char *key, const char *alt, json_t **out)
{
    *out = NULL;
    json_t *a = json_object_get(obj, key), *b = alt ? json_object_get(obj, alt) : NULL;
    if (json_is_null(a))
        a = NULL;
    if (json_is_null(b))
        b = NULL;
    if (a && b && !json_equal(a, b)) {
        char x[72], y[72];
        return cfg_error_set(r->err, EINVAL, "%s: %s is %s but %s, the other name of the same value, is %s; keep one",
                             r->name, key, show(a, x), alt, show(b, y));
    }
    *out = a ? a : b;
    return 0;
}

static int check_int(struct reader *r, const char *key, const json_t *v, int64_t min, int64_t max, int64_t *out)
{
    char expected[96];
    *out = 0;
    snprintf(expected, sizeof expected, "an integer from %" PRId64 " to %" PRId64, min, max);
    if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max)
        return bad(r, key, v, expected);
    *out = json_integer_value(v);
    return 0;
}

enum need { REQUIRED, OPTIONAL };

/* Integer keys of the network. Optional ones take def. */
struct int_key {
    const char *name, *alt;
    size_t offset;
    int64_t min, max;
    enum need need;
    int def;
};

#define INT(field) offsetof(struct mdl_config, field)

static const struct int_key base_keys[] = {
    {"vocab_size", NULL, INT(vocab_size), 2, 1 << 24, REQUIRED, 0},
    {"hidden_size", "dim", INT(hidden), 32, 1 << 17, REQUIRED, 0},
    {"num_hidden_layers", "n_layers", INT(n_layers), 1, MDL_MAX_LAYERS, REQUIRED, 0},
    {"num_attention_heads", "n_heads", INT(n_heads), 1, 4096, REQUIRED, 0},
    {"head_dim", NULL, INT(head_dim), 32, 1 << 16, REQUIRED, 0},
    {"qk_rope_head_dim", "rope_head_dim", INT(rope_dim), 2, 1 << 16, REQUIRED, 0},
    {"q_lora_rank", NULL, INT(q_lora), 32, 1 << 17, REQUIRED, 0},
    {"o_lora_rank", NULL, INT(o_lora), 1, 1 << 17, REQUIRED, 0},
    {"o_groups", NULL, INT(o_groups), 1, 4096, REQUIRED, 0},
    {"sliding_window", "window_size", INT(window), 1, 1 << 20, REQUIRED, 0},
    {"hc_sinkhorn_iters", NULL, INT(hc_sinkhorn_iters), 1, 1000, REQUIRED, 0},
    {"n_routed_experts", NULL, INT(n_experts), 1, 1 << 16, REQUIRED, 0},
    {"num_experts_per_tok", "n_activated_experts", INT(topk_experts), 1, MDL_MAX_TOPK, REQUIRED, 0},
    {"moe_intermediate_size", "moe_inter_dim", INT(moe_inter), 32, 1 << 17, REQUIRED, 0},
    {"n_shared_experts", NULL, INT(n_shared_experts), 1, 1, OPTIONAL, 1},
    {"num_nextn_predict_layers", "n_mtp_layers", INT(n_draft), 0, MDL_MAX_DRAFT, OPTIONAL, 0},
};

/* Only read when some layer has global KV. */
static const struct int_key sparse_keys[] = {
    {"index_n_heads", NULL, INT(index_heads), 1, 4096, REQUIRED, 0},
    {"index_head_dim", NULL, INT(index_dim), 32, MDL_MAX_INDEX_DIM, REQUIRED, 0},
    {"index_topk", NULL, INT(index_topk), 1, 1 << 20, REQUIRED, 0},
};

static const struct int_key candidate_keys[] = {
    {"candidate_topk_blocks", NULL, INT(candidate_blocks), 1, 1 << 20, REQUIRED, 0},
    {"candidate_block_size", NULL, INT(candidate_block_size), 1, 1 << 16, REQUIRED, 0},
};

static const struct int_key engram_keys[] = {
    {"engram_max_ngram_size", NULL, INT(engram_ngram), 2, 16, REQUIRED, 0},
    {"engram_n_heads", NULL, INT(engram_heads), 1, 1024, REQUIRED, 0},
    {"engram_head_dim", NULL, INT(engram_dim), 32, 1 << 16, REQUIRED, 0},
    {"engram_pad_token_id", "engram_pad_id", INT(engram_pad_id), 0, INT_MAX, REQUIRED, 0},
    {"engram_compressed_vocab_size", NULL, INT(engram_compressed_vocab), 1, INT_MAX, REQUIRED, 0},
};

static const struct int_key draft_keys[] = {
    {"dspark_block_size", NULL, INT(draft_block), 1, MDL_MAX_BLOCK, REQUIRED, 0},
    {"dspark_noise_token_id", NULL, INT(draft_noise_id), 0, INT_MAX, REQUIRED, 0},
    {"dspark_markov_rank", NULL, INT(markov_rank), 1, 1 << 16, REQUIRED, 0},
    {"dspark_n_routed_experts", NULL, INT(draft_experts), 1, 1 << 16, REQUIRED, 0},
    {"dspark_num_experts_per_tok", "dspark_n_activated_experts", INT(draft_topk), 1, MDL_MAX_TOPK, REQUIRED, 0},
};

static int read_ints(struct reader *r, const struct int_key *keys, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct int_key *k = &keys[i];
        json_t *v;
        int64_t value = k->def;
        int rc = lookup(r, r->text, k->name, k->alt, &v);
        if (rc)
            return rc;
        if ((v || k->need == REQUIRED) && (rc = check_int(r, k->name, v, k->min, k->max, &value)))
            return rc;
        *(int *)((char *)r->c + k->offset) = (int)value;
    }
    return 0;
}
#define READ_INTS(r, keys) read_ints(r, keys, sizeof(keys) / sizeof(keys)[0])

static int read_real(struct reader *r, json_t *obj, const char *key, const char *alt, double min, double max,
                     const double *def, double *out)
{
    json_t *v;
    int rc = lookup(r, obj, key, alt, &v);
    if (rc)
        return rc;
    if (!v && def) {
        *out = *def;
        return 0;
    }
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= min && x <= max)) {
        char expected[96];
        snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
        return bad(r, key, v, expected);
    }
    *out = x;
    return 0;
}

static int read_float(struct reader *r, const char *key, const char *alt, double min, double max, float *out)
{
    double x = 0;
    int rc = read_real(r, r->text, key, alt, min, max, NULL, &x);
    *out = (float)x;
    return rc;
}

/* A list of integers in [min, max]; *n is its length, at most cap. Absent: n = -1. */
static int read_list(struct reader *r, const char *key, const char *alt, int64_t min, int64_t max, int cap,
                     int64_t *out, int *n)
{
    json_t *v;
    *n = -1;
    int rc = lookup(r, r->text, key, alt, &v);
    if (rc)
        return rc;
    if (!v)
        return 0;
    char expected[128];
    snprintf(expected, sizeof expected, "a list of at most %d integers from %" PRId64 " to %" PRId64, cap, min, max);
    if (!json_is_array(v) || json_array_size(v) > (size_t)cap)
        return bad(r, key, v, expected);
    *n = (int)json_array_size(v);
    for (int i = 0; i < *n; i++) {
        const json_t *e = json_array_get(v, (size_t)i);
        if (!json_is_integer(e) || json_integer_value(e) < min || json_integer_value(e) > max) {
            char where[96];
            snprintf(where, sizeof where, "%s[%d]", key, i);
            return bad(r, where, e, expected);
        }
        out[i] = json_integer_value(e);
    }
    return 0;
}

/* Layer ids, strictly ascending. Absent counts as empty. */
static int read_layer_ids(struct reader *r, const char *key, const char *alt, int cap, int *out, int *n)
{
    int64_t ids[MDL_MAX_LAYERS] = {0};
    int rc = read_list(r, key, alt, 0, r->c->n_layers - 1, cap, ids, n);
    if (rc)
        return rc;
    if (*n < 0)
        *n = 0;
    for (int i = 0; i < *n; i++) {
        if (i && ids[i] <= ids[i - 1])
            return cfg_error_set(r->err, EINVAL,
                                 "%s: %s[%d] is %" PRId64 " after %" PRId64
                                 ", expected layer ids in ascending order without repeats",
                                 r->name, key, i, ids[i], ids[i - 1]);
        out[i] = (int)ids[i];
    }
    return 0;
}

static int need_multiple(struct reader *r, const char *what, int64_t value, int of)
{
    if (value % of == 0)
        return 0;
    return cfg_error_set(r->err, EINVAL, "%s: %s is %" PRId64 ", expected a multiple of %d", r->name, what, value, of);
}

static int need_at_most(struct reader *r, const char *what, int64_t value, const char *limit_name, int64_t limit)
{
    if (value <= limit)
        return 0;
    return cfg_error_set(r->err, EINVAL, "%s: %s is %" PRId64 ", expected at most %s, which is %" PRId64, r->name, what,
                         value, limit_name, limit);
}

/* Keys that have only one legal value. They may be absent: then the value is implied by the architecture. */
static int check_fixed(struct reader *r)
{
    static const struct {
        const char *key, *alt, *value;
        int outer;
    } fixed[] = {
        {"hidden_act", NULL, "\"silu\"", 0},       {"scoring_func", "score_func", "\"sqrtsoftplus\"", 0},
        {"topk_method", NULL, "\"noaux_tc\"", 0},  {"norm_topk_prob", NULL, "true", 0},
        {"num_key_value_heads", NULL, "1", 0},     {"tie_word_embeddings", NULL, "false", 0},
        {"attention_bias", NULL, "false", 0},      {"hc_mult", NULL, "4", 0},
        {"tie_word_embeddings", NULL, "false", 1}, {"scale_fmt", NULL, "\"ue8m0\"", 1},
        {"expert_dtype", NULL, "\"fp4\"", 1},
    };
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        json_t *v, *want = json_loads(fixed[i].value, JSON_DECODE_ANY, NULL);
        int rc = lookup(r, fixed[i].outer ? r->outer : r->text, fixed[i].key, fixed[i].alt, &v);
        if (!want)
            rc = cfg_error_set(r->err, ENOMEM, "%s: out of memory", r->name);
        else if (!rc && v && !json_equal(v, want))
            rc = bad(r, fixed[i].key, v, fixed[i].value);
        json_decref(want);
        if (rc)
            return rc;
    }
    return 0;
}

static int check_model_type(struct reader *r)
{
    static const char *const known[] = {"deepseek_v41", "deepseek_v41_text"};
    for (int inner = 0; inner < 2; inner++) {
        json_t *v = json_object_get(inner ? r->text : r->outer, "model_type");
        if (!v || json_is_null(v))
            continue;
        const char *s = json_string_value(v);
        if (!s || (strcmp(s, known[0]) != 0 && strcmp(s, known[1]) != 0))
            return bad(r, "model_type", v,
                       "deepseek_v41 (outer) or deepseek_v41_text; other models have another network");
    }
    return 0;
}

static int check_quantisation(struct reader *r)
{
    static const struct {
        const char *key, *value;
    } fixed[] = {
        {"quant_method", "\"fp8\""}, {"activation_scheme", "\"dynamic\""}, {"weight_block_size", "[32,32]"},
        {"scale_fmt", "\"ue8m0\""},  {"expert_dtype", "\"fp4\""},
    };
    json_t *q;
    int rc = lookup(r, r->outer, "quantization_config", NULL, &q);
    if (!rc && !q && r->text != r->outer)
        rc = lookup(r, r->text, "quantization_config", NULL, &q);
    if (rc || !q)
        return rc;
    if (!json_is_object(q))
        return bad(r, "quantization_config", q, "an object");
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        json_t *v = json_object_get(q, fixed[i].key), *want = json_loads(fixed[i].value, 0, NULL);
        if (!want)
            want = json_loads(fixed[i].value, JSON_DECODE_ANY, NULL);
        char key[64];
        snprintf(key, sizeof key, "quantization_config.%s", fixed[i].key);
        if (!want)
            rc = cfg_error_set(r->err, ENOMEM, "%s: out of memory", r->name);
        else if (v && !json_is_null(v) && !json_equal(v, want))
            rc = bad(r, key, v, fixed[i].value);
        json_decref(want);
        if (rc)
            return rc;
    }
    return 0;
}

/* rope_scaling as an object (published form) or as flat keys; neither: no scaling. */
static int read_rope(struct reader *r)
{
    struct mdl_config *c = r->c;
    static const double fast = 32, slow = 1;
    json_t *s, *orig;
    int rc;
    if ((rc = read_real(r, r->text, "rope_theta", NULL, 1, 1e12, NULL, &c->rope_theta)) ||
        (rc = read_real(r, r->text, "compress_rope_theta", NULL, 1.0001, 1e12, &c->rope_theta,
                        &c->compress_rope_theta)) ||
        (rc = lookup(r, r->text, "rope_scaling", NULL, &s)))
        return rc;
    json_t *obj = s ? s : r->text;
    const char *orig_key = s ? "original_max_position_embeddings" : "original_seq_len";
    const char *factor_key = s ? "factor" : "rope_factor";
    c->yarn_factor = 1;
    c->yarn_beta_fast = fast;
    c->yarn_beta_slow = slow;
    if (s) {
        json_t *t;
        if (!json_is_object(s))
            return bad(r, "rope_scaling", s, "an object or null");
        if ((rc = lookup(r, s, "type", "rope_type", &t)))
            return rc;
        if (!json_is_string(t) || strcmp(json_string_value(t), "yarn") != 0)
            return bad(r, "rope_scaling.type", t, "\"yarn\"");
    }
    if ((rc = lookup(r, obj, orig_key, NULL, &orig)))
        return rc;
    if (!orig && !s)
        return 0;
    int64_t len;
    if ((rc = check_int(r, orig_key, orig, s ? 1 : 0, 1 << 28, &len)) ||
        (rc = read_real(r, obj, factor_key, NULL, 1, 1e6, NULL, &c->yarn_factor)) ||
        (rc = read_real(r, obj, "beta_fast", NULL, 1e-3, 1e6, &fast, &c->yarn_beta_fast)) ||
        (rc = read_real(r, obj, "beta_slow", NULL, 1e-3, 1e6, &slow, &c->yarn_beta_slow)))
        return rc;
    c->yarn_original_len = (int)len;
    if (c->yarn_beta_fast < c->yarn_beta_slow)
        return cfg_error_set(r->err, EINVAL, "%s: beta_fast is %g, expected at least beta_slow, which is %g", r->name,
                             c->yarn_beta_fast, c->yarn_beta_slow);
    if (len && c->compress_rope_theta <= 1)
        return cfg_error_set(r->err, EINVAL, "%s: compress_rope_theta is %g, expected more than 1 with yarn", r->name,
                             c->compress_rope_theta);
    return 0;
}

static int read_max_position(struct reader *r)
{
    struct mdl_config *c = r->c;
    json_t *v;
    int64_t n;
    int rc = lookup(r, r->text, "max_position_embeddings", "max_seq_len", &v);
    if (rc)
        return rc;
    if (v) {
        rc = check_int(r, "max_position_embeddings", v, 1, 1 << 28, &n);
        c->max_position = rc ? 0 : (int)n;
        return rc;
    }
    double implied = c->yarn_original_len * c->yarn_factor;
    c->max_position = implied >= 1 && implied <= 1 << 28 ? (int)implied : 1 << 20;
    return 0;
}

static int read_ratios(struct reader *r, int ratio[MDL_MAX_LAYERS])
{
    struct mdl_config *c = r->c;
    int64_t v[MDL_MAX_LAYERS + MDL_MAX_DRAFT] = {0};
    int n, rc = read_list(r, "compress_ratios", NULL, 0, 2, MDL_MAX_LAYERS + MDL_MAX_DRAFT, v, &n);
    if (rc)
        return rc;
    if (n != c->n_layers && n != c->n_layers + c->n_draft)
        return cfg_error_set(
            r->err, EINVAL,
            "%s: compress_ratios has %d entries, expected %d (one per layer) or %d (with the drafter's)", r->name,
            n < 0 ? 0 : n, c->n_layers, c->n_layers + c->n_draft);
    for (int i = c->n_layers; i < n; i++)
        if (v[i])
            return cfg_error_set(r->err, EINVAL,
                                 "%s: compress_ratios[%d] is %" PRId64
                                 ", expected 0: drafter layers have a sliding window only",
                                 r->name, i, v[i]);
    for (int i = 0; i < c->n_layers; i++)
        ratio[i] = (int)v[i];
    return 0;
}

static int slot_of(const int *list, int n, int layer)
{
    for (int i = 0; i < n; i++)
        if (list[i] == layer)
            return i;
    return -1;
}

/* Every layer's role follows from the lists: a consumer reads the most recent source at or before it. */
static int derive_roles(struct reader *r, const int *ratio)
{
    struct mdl_config *c = r->c;
    int index_sources[MDL_MAX_LAYERS] = {0}, n_index = 0, rc;
    if ((rc = read_layer_ids(r, "kv_source_layer_ids", "kv_source_layers", MDL_MAX_SOURCES, c->kv_sources,
                             &c->n_kv_sources)) ||
        (rc = read_layer_ids(r, "index_source_layer_ids", "index_source_layers", MDL_MAX_LAYERS, index_sources,
                             &n_index)))
        return rc;
    int kv = -1, index = -1;
    for (int l = 0; l < c->n_layers; l++) {
        struct mdl_layer_role *role = &c->layer[l];
        int own_kv = slot_of(c->kv_sources, c->n_kv_sources, l), own_index = slot_of(index_sources, n_index, l);
        *role =
            (struct mdl_layer_role){MDL_LAYER_SWA, ratio[l], -1, -1, slot_of(c->engram_layers, c->n_engram, l), 0, 0};
        if (own_kv >= 0 && own_index < 0)
            return cfg_error_set(r->err, EINVAL,
                                 "%s: layer %d is in kv_source_layer_ids, expected it in "
                                 "index_source_layer_ids too: a layer that owns KV selects from its own rows",
                                 r->name, l);
        if (!ratio[l]) {
            if (own_kv >= 0 || own_index >= 0)
                return cfg_error_set(r->err, EINVAL, "%s: compress_ratios[%d] is 0, expected 1 or 2: layer %d is in %s",
                                     r->name, l, l, own_kv >= 0 ? "kv_source_layer_ids" : "index_source_layer_ids");
            continue;
        }
        if (own_kv >= 0) {
            kv = own_kv;
            c->kv_source_ratio[kv] = ratio[l];
        }
        if (kv < 0)
            return cfg_error_set(r->err, EINVAL,
                                 "%s: compress_ratios[%d] is %d, expected 0: no layer of "
                                 "kv_source_layer_ids is at or before layer %d",
                                 r->name, l, ratio[l], l);
        if (own_index >= 0)
            index = l;
        if (c->kv_source_ratio[kv] != ratio[l])
            return cfg_error_set(r->err, EINVAL,
                                 "%s: compress_ratios[%d] is %d, expected %d, the ratio of layer %d, whose "
                                 "KV layer %d reads",
                                 r->name, l, ratio[l], c->kv_source_ratio[kv], c->kv_sources[kv], l);
        role->mode = own_kv >= 0 ? MDL_LAYER_FULL : own_index >= 0 ? MDL_LAYER_REINDEX : MDL_LAYER_REUSE;
        role->kv_source = kv;
        role->index_source = index;
    }
    return 0;
}

static int read_candidates(struct reader *r)
{
    struct mdl_config *c = r->c;
    json_t *v;
    int64_t layer;
    int rc = lookup(r, r->text, "candidate_source_layer_id", "candidate_source_layer", &v);
    c->candidate_layer = -1;
    if (rc || !v || (json_is_integer(v) && json_integer_value(v) == -1))
        return rc;
    if ((rc = check_int(r, "candidate_source_layer_id", v, 0, c->n_layers - 1, &layer)) ||
        (rc = READ_INTS(r, candidate_keys)))
        return rc;
    enum mdl_layer_mode mode = c->layer[layer].mode;
    if (mode != MDL_LAYER_FULL && mode != MDL_LAYER_REINDEX)
        return bad(r, "candidate_source_layer_id", v, "a layer of index_source_layer_ids");
    if (c->n_kv_sources && c->kv_sources[c->n_kv_sources - 1] > layer)
        return bad(r, "candidate_source_layer_id", v,
                   "no KV source after it: candidate blocks name rows of one KV source only");
    int64_t sure = (int64_t)(c->candidate_blocks - 1) * c->candidate_block_size + 1;
    if (sure < c->index_topk)
        return cfg_error_set(r->err, EINVAL,
                             "%s: candidate_topk_blocks %d of candidate_block_size %d are only sure to hold "
                             "%" PRId64 " rows, expected at least index_topk, which is %d",
                             r->name, c->candidate_blocks, c->candidate_block_size, sure, c->index_topk);
    c->candidate_layer = (int)layer;
    c->layer[layer].candidate_source = true;
    for (int l = (int)layer + 1; l < c->n_layers; l++)
        c->layer[l].restricted = c->layer[l].mode == MDL_LAYER_REINDEX;
    return 0;
}

/* The cut: the last KV source, when nothing at or after it needs anything but its rows and the replayed tail. */
static void derive_cut(struct mdl_config *c)
{
    c->cut = -1;
    c->cut_reason[0] = 0;
    if (!c->n_kv_sources) {
        snprintf(c->cut_reason, sizeof c->cut_reason, "no layer owns global KV, so no layer can be skipped in prefill");
        return;
    }
    int cut = c->kv_sources[c->n_kv_sources - 1];
    if (cut == 0) {
        snprintf(c->cut_reason, sizeof c->cut_reason, "the last KV source is layer 0, so no encoder layer precedes it");
        return;
    }
    for (int l = cut; l < c->n_layers; l++) {
        if (c->layer[l].ratio != 1) {
            snprintf(c->cut_reason, sizeof c->cut_reason,
                     "compress_ratios[%d] is %d; every layer from the last KV source (%d) on must read it at ratio 1",
                     l, c->layer[l].ratio, cut);
            return;
        }
        if (c->layer[l].engram >= 0) {
            snprintf(c->cut_reason, sizeof c->cut_reason,
                     "layer %d has an Engram; none may lie at or after the last KV source (%d)", l, cut);
            return;
        }
    }
    for (int t = 0; c->n_draft && t < c->n_taps; t++)
        if (c->tap_layers[t] < cut) {
            snprintf(c->cut_reason, sizeof c->cut_reason,
                     "the drafter reads layer %d, which a replay does not run: it starts at the last KV source (%d)",
                     c->tap_layers[t], cut);
            return;
        }
    c->cut = cut;
}

static int is_prime(int64_t n)
{
    if (n < 4)
        return n > 1;
    if (n % 2 == 0)
        return 0;
    for (int64_t d = 3; d * d <= n; d += 2)
        if (n % d == 0)
            return 0;
    return 1;
}

/* Every order of a layer starts again at engram_vocab and skips what is taken, so the whole is one ascending run. */
static int64_t next_prime(int64_t p)
{
    do
        p++;
    while (!is_prime(p));
    return p;
}

int mdl_config_engram_primes(const struct mdl_config *c, int slot, int64_t *out)
{
    int per_layer = (c->engram_ngram - 1) * c->engram_heads;
    if (slot < 0 || slot >= c->n_engram)
        return -EINVAL;
    int64_t p = c->engram_vocab - 1;
    for (int i = 0; i < slot * per_layer; i++)
        p = next_prime(p);
    for (int i = 0; i < per_layer; i++)
        out[i] = p = next_prime(p);
    return 0;
}

/* A config that leaves the table sizes out means those of the published prime search. */
static void derive_engram_rows(struct mdl_config *c)
{
    int64_t p = c->engram_vocab - 1;
    for (int s = 0; s < c->n_engram; s++)
        for (int i = 0; i < (c->engram_ngram - 1) * c->engram_heads; i++)
            c->engram_rows[s] += p = next_prime(p);
}

static int read_engram(struct reader *r)
{
    struct mdl_config *c = r->c;
    json_t *v;
    int n, rc = read_layer_ids(r, "engram_layer_ids", "engram_layers", MDL_MAX_ENGRAM, c->engram_layers, &c->n_engram);
    if (rc || !c->n_engram)
        return rc;
    if ((rc = READ_INTS(r, engram_keys)) || (rc = lookup(r, r->text, "engram_vocab_size", NULL, &v)) ||
        (rc = check_int(r, "engram_vocab_size", v, 2, 1 << 30, &c->engram_vocab)) ||
        (rc = need_multiple(r, "engram_head_dim", c->engram_dim, 32)) ||
        (rc = need_at_most(r, "engram_pad_token_id", c->engram_pad_id, "vocab_size - 1", c->vocab_size - 1)) ||
        (rc = need_at_most(r, "engram_compressed_vocab_size", c->engram_compressed_vocab, "vocab_size",
                           c->vocab_size)) ||
        (rc = need_at_most(r, "engram_n_heads * (engram_max_ngram_size - 1)",
                           (int64_t)c->engram_heads * (c->engram_ngram - 1), "the supported rows per token", 256)) ||
        (rc = need_at_most(r, "engram_n_heads * (engram_max_ngram_size - 1) * engram_head_dim",
                           (int64_t)c->engram_heads * (c->engram_ngram - 1) * c->engram_dim, "the supported width",
                           1 << 20)) ||
        (rc = read_list(r, "engram_num_embeddings", NULL, 1, (int64_t)1 << 40, MDL_MAX_ENGRAM, c->engram_rows, &n)))
        return rc;
    if (n >= 0 && n != c->n_engram)
        return cfg_error_set(r->err, EINVAL,
                             "%s: engram_num_embeddings has %d entries, expected %d, one per layer of "
                             "engram_layer_ids",
                             r->name, n, c->n_engram);
    if (n < 0)
        derive_engram_rows(c);
    return 0;
}

static int read_drafter(struct reader *r)
{
    struct mdl_config *c = r->c;
    int64_t taps[MDL_MAX_TAPS] = {0};
    int rc;
    if (!c->n_draft)
        return 0;
    if ((rc = READ_INTS(r, draft_keys)) ||
        (rc = read_list(r, "dspark_target_layer_ids", "dspark_target_layers", 0, c->n_layers - 1, MDL_MAX_TAPS, taps,
                        &c->n_taps)) ||
        (rc = need_at_most(r, "dspark_noise_token_id", c->draft_noise_id, "vocab_size - 1", c->vocab_size - 1)) ||
        (rc =
             need_at_most(r, "dspark_num_experts_per_tok", c->draft_topk, "dspark_n_routed_experts", c->draft_experts)))
        return rc;
    if (c->n_taps < 1)
        return bad(r, "dspark_target_layer_ids", json_object_get(r->text, "dspark_target_layer_ids"),
                   "at least one layer id: the drafter reads the backbone there");
    for (int i = 0; i < c->n_taps; i++) {
        c->tap_layers[i] = (int)taps[i];
        if (slot_of(c->tap_layers, i, (int)taps[i]) >= 0)
            return cfg_error_set(r->err, EINVAL,
                                 "%s: dspark_target_layer_ids names layer %d twice, expected distinct layers", r->name,
                                 (int)taps[i]);
    }
    return 0;
}

/* bos, eos, pad and image ids sit beside text_config. A list (several end ids) counts with its first entry. */
static int read_special_ids(struct reader *r)
{
    struct mdl_config *c = r->c;
    const struct {
        const char *key;
        int *out;
    } ids[] = {
        {"bos_token_id", &c->bos_id},
        {"eos_token_id", &c->eos_id},
        {"pad_token_id", &c->pad_id},
        {"image_token_id", &c->image_id},
    };
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        json_t *v;
        int64_t id = -1;
        int rc = lookup(r, r->outer, ids[i].key, NULL, &v);
        if (!rc && !v)
            rc = lookup(r, r->text, ids[i].key, NULL, &v);
        if (!rc && json_is_array(v) && json_array_size(v) > 0)
            v = json_array_get(v, 0);
        if (!rc && v)
            rc = check_int(r, ids[i].key, v, 0, c->vocab_size - 1, &id);
        if (rc)
            return rc;
        *ids[i].out = (int)id;
    }
    json_t *vision = json_object_get(r->outer, "vision_config");
    c->has_vision = json_is_object(vision);
    return 0;
}

/* Widths that the quantised formats and the head groups need, and products that must stay addressable. */
static int check_widths(struct reader *r)
{
    const struct mdl_config *c = r->c;
    int rc;
    if ((rc = need_multiple(r, "hidden_size", c->hidden, 32)) ||
        (rc = need_multiple(r, "q_lora_rank", c->q_lora, 32)) || (rc = need_multiple(r, "head_dim", c->head_dim, 32)) ||
        (rc = need_multiple(r, "moe_intermediate_size", c->moe_inter, 32)) ||
        (rc = need_multiple(r, "o_groups * o_lora_rank", (int64_t)c->o_groups * c->o_lora, 32)) ||
        (rc = need_multiple(r, "qk_rope_head_dim", c->rope_dim, 2)) ||
        (rc = need_at_most(r, "qk_rope_head_dim", c->rope_dim, "head_dim", c->head_dim)) ||
        (rc = need_at_most(r, "num_experts_per_tok", c->topk_experts, "n_routed_experts", c->n_experts)) ||
        (rc = need_at_most(r, "num_attention_heads * head_dim", (int64_t)c->n_heads * c->head_dim,
                           "the supported width", 1 << 24)) ||
        (rc = need_at_most(r, "o_groups * o_lora_rank", (int64_t)c->o_groups * c->o_lora, "the supported width",
                           1 << 24)))
        return rc;
    if (c->n_heads % c->o_groups)
        return cfg_error_set(r->err, EINVAL,
                             "%s: num_attention_heads is %d, expected a multiple of o_groups, which is %d", r->name,
                             c->n_heads, c->o_groups);
    if ((rc = need_multiple(r, "num_attention_heads * head_dim / o_groups",
                            (int64_t)c->n_heads * c->head_dim / c->o_groups, 32)))
        return rc;
    if (!c->n_kv_sources)
        return 0;
    if ((rc = need_multiple(r, "index_head_dim", c->index_dim, 32)) ||
        (rc = need_at_most(r, "qk_rope_head_dim", c->rope_dim, "index_head_dim", c->index_dim)))
        return rc;
    return need_at_most(r, "index_n_heads * index_head_dim", (int64_t)c->index_heads * c->index_dim,
                        "the supported width", 1 << 24);
}

static int read_network(struct reader *r)
{
    struct mdl_config *c = r->c;
    int ratio[MDL_MAX_LAYERS] = {0}, rc;
    if ((rc = check_model_type(r)) || (rc = READ_INTS(r, base_keys)) || (rc = check_fixed(r)) ||
        (rc = check_quantisation(r)) || (rc = read_float(r, "rms_norm_eps", "norm_eps", 1e-30, 0.1, &c->rms_eps)) ||
        (rc = read_float(r, "hc_eps", NULL, 1e-30, 0.1, &c->hc_eps)) ||
        (rc = read_float(r, "swiglu_limit", NULL, 1e-3, 1e30, &c->swiglu_limit)) ||
        (rc = read_float(r, "routed_scaling_factor", "route_scale", 1e-6, 1e6, &c->route_scale)) ||
        (rc = read_rope(r)) || (rc = read_max_position(r)) || (rc = read_engram(r)) || (rc = read_ratios(r, ratio)) ||
        (rc = derive_roles(r, ratio)))
        return rc;
    if (c->n_kv_sources && (rc = READ_INTS(r, sparse_keys)))
        return rc;
    c->candidate_layer = -1;
    if ((rc = check_widths(r)) || (c->n_kv_sources && (rc = read_candidates(r))) || (rc = read_drafter(r)) ||
        (rc = read_special_ids(r)))
        return rc;
    derive_cut(c);
    return 0;
}

int mdl_config_parse(const char *json, size_t len, const char *name, struct mdl_config *out, struct cfg_error *err)
{
    json_error_t je;
    if (len > CONFIG_MAX_BYTES)
        return cfg_error_set(err, EINVAL, "%s: %zu bytes, expected at most %d for a model config", name, len,
                             CONFIG_MAX_BYTES);
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &je);
    if (!root)
        return cfg_error_set(err, EINVAL, "%s:%d:%d: not valid JSON: %s", name, je.line, je.column, je.text);
    struct mdl_config c;
    memset(&c, 0, sizeof c);
    struct reader r = {name, root, root, &c, err};
    json_t *inner = json_object_get(root, "text_config");
    int rc = 0;
    if (!json_is_object(root))
        rc = cfg_error_set(err, EINVAL, "%s: expected a JSON object at the top", name);
    else if (inner && !json_is_object(inner))
        rc = bad(&r, "text_config", inner, "an object");
    else if (inner)
        r.text = inner;
    if (!rc)
        rc = read_network(&r);
    json_decref(root);
    if (!rc)
        *out = c;
    return rc;
}

/* Whole file in memory; config files are small and an oversized one is refused before it is read. */
static int read_small_file(const char *path, char **data, size_t *len, struct cfg_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st)) {
        int e = errno;
        if (fd >= 0)
            close(fd);
        return cfg_error_set(err, e, "%s: %s%s", path, strerror(e),
                             e == ENOENT ? "; a model directory holds config.json beside its weights" : "");
    }
    if (!S_ISREG(st.st_mode) || st.st_size > CONFIG_MAX_BYTES) {
        close(fd);
        return cfg_error_set(err, EINVAL, "%s: expected a regular file of at most %d bytes", path, CONFIG_MAX_BYTES);
    }
    char *buf = malloc((size_t)st.st_size + 1);
    size_t got = 0;
    ssize_t n = 1;
    while (buf && got < (size_t)st.st_size && (n = read(fd, buf + got, (size_t)st.st_size - got)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break;
        got += (size_t)n;
    }
    int e = n < 0 ? errno : ENOMEM;
    close(fd);
    if (!buf || n < 0) {
        free(buf);
        return cfg_error_set(err, e, "%s: %s", path, strerror(e));
    }
    *data = buf;
    *len = got;
    return 0;
}

int mdl_config_load(const char *dir, struct mdl_config *out, struct cfg_error *err)
{
    char path[PATH_MAX], *data = NULL;
    size_t len = 0;
    if ((size_t)snprintf(path, sizeof path, "%s/config.json", dir) >= sizeof path)
        return cfg_error_set(err, ENAMETOOLONG, "%s: the path is too long", dir);
    int rc = read_small_file(path, &data, &len, err);
    if (rc)
        return rc;
    rc = mdl_config_parse(data, len, path, out, err);
    free(data);
    return rc;
}
