/* Writes a random, well-conditioned model of any size in the published layout: config.json, weights (one file or
 * shards) and the Engram sidecar. For tests and benchmarks; it has no tokenizer and says nothing sensible.
 *
 * Every number is a function of (seed, tensor name, index), so a model is the same whatever its sharding, and data is
 * produced while it is written: memory stays small for models of any size. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "model/checkpoint.h"
#include "model/layout.h"

/* What a model is made from. Layers: swa without global KV, then the encoder at ratio 2 up to cut, then the decoder at
 * ratio 1. A KV source every share encoder layers and at cut, a reindexing layer every reindex decoder layers. */
struct spec {
    int vocab, hidden, layers, swa, cut, share, reindex;
    int heads, head_dim, rope_dim, q_lora, o_lora, o_groups, window, positions;
    int index_heads, index_dim, index_topk, candidate_blocks, candidate_block;
    int experts, topk, inter;
    int engram_heads, engram_dim, engram_vocab, engram_ngram;        /* engram_heads 0: no Engram */
    int draft, draft_block, draft_experts, draft_topk, markov, taps; /* draft 0: no drafter */
    int short_ratios; /* leave the drafter's entries out of compress_ratios */
    int vision;       /* add a few tensors of a vision half, which the text path ignores */
};

static const struct preset {
    const char *name, *what;
    struct spec spec;
} presets[] = {
    {"mini",
     "every role in 8 layers, about 4 MB",
     {.vocab = 512,
      .hidden = 128,
      .layers = 8,
      .swa = 1,
      .cut = 4,
      .share = 3,
      .reindex = 2,
      .heads = 4,
      .head_dim = 64,
      .rope_dim = 16,
      .q_lora = 64,
      .o_lora = 64,
      .o_groups = 2,
      .window = 16,
      .positions = 1024,
      .index_heads = 4,
      .index_dim = 64,
      .index_topk = 8,
      .candidate_blocks = 3,
      .candidate_block = 4,
      .experts = 8,
      .topk = 2,
      .inter = 64,
      .engram_heads = 2,
      .engram_dim = 32,
      .engram_vocab = 100,
      .engram_ngram = 4,
      .draft = 2,
      .draft_block = 5,
      .draft_experts = 4,
      .draft_topk = 2,
      .markov = 32,
      .taps = 3}},
    {"edge",
     "odd sizes: one head group, width 96, one drafter stage, a vision half, short compress_ratios",
     {.vocab = 320,
      .hidden = 96,
      .layers = 5,
      .swa = 1,
      .cut = 3,
      .share = 2,
      .reindex = 1,
      .heads = 2,
      .head_dim = 64,
      .rope_dim = 32,
      .q_lora = 32,
      .o_lora = 64,
      .o_groups = 1,
      .window = 16,
      .positions = 1024,
      .index_heads = 2,
      .index_dim = 32,
      .index_topk = 4,
      .candidate_blocks = 2,
      .candidate_block = 4,
      .experts = 4,
      .topk = 2,
      .inter = 32,
      .engram_heads = 1,
      .engram_dim = 32,
      .engram_vocab = 60,
      .engram_ngram = 4,
      .draft = 1,
      .draft_block = 3,
      .draft_experts = 2,
      .draft_topk = 1,
      .markov = 32,
      .taps = 1,
      .short_ratios = 1,
      .vision = 1}},
    {"mid",
     "about 2 GB, an eighth of it read per token, for benchmarks",
     {.vocab = 32768,
      .hidden = 1024,
      .layers = 16,
      .swa = 2,
      .cut = 8,
      .share = 3,
      .reindex = 4,
      .heads = 16,
      .head_dim = 128,
      .rope_dim = 64,
      .q_lora = 384,
      .o_lora = 256,
      .o_groups = 4,
      .window = 128,
      .positions = 131072,
      .index_heads = 8,
      .index_dim = 64,
      .index_topk = 256,
      .candidate_blocks = 512,
      .candidate_block = 8,
      .experts = 96,
      .topk = 4,
      .inter = 640,
      .engram_heads = 4,
      .engram_dim = 64,
      .engram_vocab = 50000,
      .engram_ngram = 4,
      .draft = 2,
      .draft_block = 5,
      .draft_experts = 16,
      .draft_topk = 2,
      .markov = 128,
      .taps = 3}},
};

#define SIZE(flag, field, what)                                                                                        \
    {                                                                                                                  \
        flag, offsetof(struct spec, field), what                                                                       \
    }

static const struct size_flag {
    const char *name;
    size_t offset;
    const char *what;
} size_flags[] = {
    SIZE("vocab", vocab, "vocabulary"),
    SIZE("hidden", hidden, "width"),
    SIZE("layers", layers, "backbone layers"),
    SIZE("swa-layers", swa, "leading layers with a sliding window only"),
    SIZE("cut", cut, "first decoder layer"),
    SIZE("share", share, "encoder layers per KV source"),
    SIZE("reindex", reindex, "decoder layers per index source"),
    SIZE("heads", heads, "attention heads"),
    SIZE("head-dim", head_dim, "channels per head"),
    SIZE("rope-dim", rope_dim, "rotated channels"),
    SIZE("q-lora", q_lora, "query rank"),
    SIZE("o-lora", o_lora, "output rank per group"),
    SIZE("o-groups", o_groups, "output groups"),
    SIZE("window", window, "sliding window"),
    SIZE("positions", positions, "longest context"),
    SIZE("index-heads", index_heads, "index heads"),
    SIZE("index-dim", index_dim, "channels per index head"),
    SIZE("index-topk", index_topk, "selected rows"),
    SIZE("candidate-blocks", candidate_blocks, "candidate blocks"),
    SIZE("candidate-block", candidate_block, "rows per candidate block"),
    SIZE("experts", experts, "routed experts"),
    SIZE("topk", topk, "experts per token"),
    SIZE("inter", inter, "expert width"),
    SIZE("engram-heads", engram_heads, "Engram heads, 0 for no Engram"),
    SIZE("engram-dim", engram_dim, "channels per Engram row"),
    SIZE("engram-vocab", engram_vocab, "about the rows per Engram head"),
    SIZE("engram-ngram", engram_ngram, "longest n-gram"),
    SIZE("draft", draft, "drafter stages, 0 for no drafter"),
    SIZE("draft-block", draft_block, "tokens drafted at once"),
    SIZE("draft-experts", draft_experts, "routed experts of a drafter stage"),
    SIZE("draft-topk", draft_topk, "experts per token of a drafter stage"),
    SIZE("markov", markov, "rank of the Markov head"),
    SIZE("taps", taps, "layers the drafter reads"),
};
enum { N_SIZE_FLAGS = sizeof size_flags / sizeof size_flags[0], FLAG_BASE = 1000 };

enum { GAUSS = 65536, N_TABLES = 16 };

/* By quantile: the code of a normal value with this deviation. A model has few different deviations. */
struct code_table {
    float dev; /* 0: not filled yet */
    bool fp4;
    uint8_t code[GAUSS];
};

struct job {
    struct spec spec;
    const char *out;
    uint64_t seed, shard_bytes;
    struct mdl_config config;
    struct mdl_want *items; /* every tensor, in layout order */
    size_t count, cap;
    uint64_t total, written;
    float *gauss;              /* GAUSS quantiles of the standard normal distribution */
    struct code_table *tables; /* N_TABLES, replaced in turn */
    int next_table;
    time_t shown;
    struct cfg_error err;
};

/* ---- numbers ---- */

/* The i-th 64 random bits under a key: a counter run through a mixing function. */
static uint64_t random_bits(uint64_t key, uint64_t i)
{
    uint64_t z = key + (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static uint64_t key_of(const struct job *j, const char *name)
{
    return XXH3_64bits_withSeed(name, strlen(name), j->seed);
}

/* Quantiles by bisection: 65536 numbers, once. */
static float *gauss_table(void)
{
    float *t = malloc(GAUSS * sizeof *t);
    for (int i = 0; t && i < GAUSS / 2; i++) {
        double want = (i + 0.5) / GAUSS, lo = -6, hi = 0;
        for (int step = 0; step < 50; step++) {
            double mid = (lo + hi) / 2;
            if (0.5 * erfc(-mid / sqrt(2)) < want)
                lo = mid;
            else
                hi = mid;
        }
        t[i] = (float)lo;
        t[GAUSS - 1 - i] = -(float)lo;
    }
    return t;
}

static uint16_t to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Nearest code of a small float format with e exponent bits (bias given) and m mantissa bits, sign on top. */
static uint8_t to_small(float x, int m, int bias, int top, int sign_bit)
{
    float a = fabsf(x), best_d = INFINITY;
    int best = 0;
    for (int c = 0; c <= top; c++) {
        int e = c >> m, frac = c & ((1 << m) - 1);
        float v = e ? ldexpf(1 + ldexpf((float)frac, -m), e - bias) : ldexpf((float)frac, 1 - bias - m);
        if (fabsf(v - a) < best_d) {
            best_d = fabsf(v - a);
            best = c;
        }
    }
    return (uint8_t)(best | (x < 0 && best ? sign_bit : 0));
}

/* ---- statistics ---- */

/* Deviations are multiples of fan_in^-1/2 where fan is set. They follow the published weights where those were
 * measured, so that neither norms nor routers of a random model are degenerate. First match by suffix wins. */
static const struct stat_row {
    const char *suffix;
    float mean, dev;
    bool fan;
} stat_rows[] = {
    {"attn.compressor.norm", 0.6f, 0.06f, false},
    {"attn.compressor.wkv", 0, 1.8f, true},
    {"attn.compressor.wgate", 0, 10, true},
    {"attn.indexer.wk", 0, 1, true},
    {"attn.indexer.k_norm", 0.5f, 0.05f, false},
    {"attn.indexer.wq_b", 0, 1.8f, true},
    {"attn.indexer.weights_proj", 0, 1, true},
    {"attn.q_norm", 0.97f, 0.097f, false},
    {"attn.kv_norm", 0.4f, 0.04f, false},
    {"attn.attn_sink", -0.2f, 0.7f, false},
    {"attn.wq_a", 0, 1.6f, true},
    {"attn.wq_b", 0, 0.95f, true},
    {"attn.wkv", 0, 1.8f, true},
    {"attn.wo_a", 0, 1.6f, true},
    {"attn.wo_b", 0, 1.9f, true},
    {"attn_norm", 0.025f, 0.0025f, false},
    {"ffn_norm", 0.2f, 0.02f, false},
    {"_fn", 0, 1, true},
    {"_base", 0, 0.5f, false},
    {"hc_attn_scale", 0.4f, 0.3f, false},
    {"hc_ffn_scale", 0.4f, 0.3f, false},
    {"gate.bias", 0, 0.1f, false},
    {"gate.bias_vl", 0, 0.1f, false},
    {"ffn.gate", 0, 2.9f, true},
    {"w1", 0, 1.5f, true},
    {"w3", 0, 1.5f, true},
    {"w2", 0, 1.05f, true},
    {"engram.embed", 0, 1.8f, false},
    {"engram.wkv", 0, 0.13f, true},
    {"q_weight", 1, 0.3f, false},
    {"k_weight", 1, 0.3f, false},
    {"main_proj", 0, 1, true},
    {"markov_head.embed", 0, 0.18f, false},
    {"markov_head.head", 0, 6, true},
    {"confidence_head.proj", 0, 1, true},
    {"embed", 0, 0.12f, false},
    {"head", 0, 1.1f, true},
    {"norm", 1, 0.1f, false},
    {"", 0, 0.1f, false},
};

static void statistics(const struct mdl_want *w, float *mean, float *dev)
{
    size_t stem = strlen(w->name);
    const char *dot = strrchr(w->name, '.');
    if (dot && (!strcmp(dot, ".weight") || !strcmp(dot, ".scale")))
        stem = (size_t)(dot - w->name);
    const struct stat_row *r = stat_rows;
    for (;; r++) {
        size_t n = strlen(r->suffix);
        if (n <= stem && !memcmp(w->name + stem - n, r->suffix, n))
            break;
    }
    *mean = r->mean;
    *dev = r->fan ? r->dev / sqrtf((float)w->k) : r->dev;
}

/* A quantised weight is code x 2^e with e spread over three neighbours from tile to tile, so that a misplaced scale
 * shows. Splits the deviation into that of the codes, which fills the format's range, and the middle exponent. */
static void split_deviation(float dev, bool fp4, float *codes, int *exponent)
{
    const float floor_dev = fp4 ? 1.25f : 45;
    float d = dev / sqrtf((0.25f + 1 + 4) / 3);
    *exponent = (int)floorf(log2f(d / floor_dev));
    *codes = ldexpf(d, -*exponent);
}

static const uint8_t *codes_of(struct job *j, float dev, bool fp4)
{
    for (int i = 0; i < N_TABLES; i++)
        if (j->tables[i].dev == dev && j->tables[i].fp4 == fp4)
            return j->tables[i].code;
    struct code_table *t = &j->tables[j->next_table];
    j->next_table = (j->next_table + 1) % N_TABLES;
    t->dev = dev;
    t->fp4 = fp4;
    for (int i = 0; i < GAUSS; i++)
        t->code[i] = fp4 ? to_small(j->gauss[i] * dev, 1, 1, 7, 8) : to_small(j->gauss[i] * dev, 3, 7, 0x7e, 0x80);
    return t->code;
}

static bool is_quantised(const struct mdl_want *w)
{
    return w->dtype == MDL_F8_E4M3 || w->dtype == MDL_I8;
}

static void show_progress(struct job *j)
{
    time_t now = time(NULL);
    if (now == j->shown || !isatty(STDERR_FILENO))
        return;
    j->shown = now;
    fprintf(stderr, "\rwriting %s: %3.0f %%", j->out, 100.0 * (double)j->written / (double)j->total);
}

static uint16_t draw16(uint64_t key, uint64_t i)
{
    return (uint16_t)(random_bits(key, i / 4) >> 16 * (i % 4));
}

static void fill_codes(struct job *j, const struct mdl_want *w, uint64_t key, size_t offset, size_t len, uint8_t *out)
{
    bool fp4 = w->dtype == MDL_I8;
    float mean, dev, code_dev;
    int exponent;
    statistics(w, &mean, &dev);
    split_deviation(dev, fp4, &code_dev, &exponent);
    const uint8_t *code = codes_of(j, code_dev, fp4);
    for (size_t i = 0; i < len; i++) {
        if (fp4)
            out[i] = (uint8_t)(code[draw16(key, 2 * (offset + i))] | code[draw16(key, 2 * (offset + i) + 1)] << 4);
        else
            out[i] = code[draw16(key, offset + i)];
    }
}

static void fill_scales(const struct mdl_want *w, uint64_t key, size_t offset, size_t len, uint8_t *out)
{
    float mean, dev, code_dev;
    int exponent;
    statistics(w, &mean, &dev);
    split_deviation(dev, w->kind == MDL_W_FP4, &code_dev, &exponent);
    for (size_t i = 0; i < len; i++)
        out[i] = (uint8_t)(127 + exponent + (int)(draw16(key, offset + i) % 3) - 1);
}

static void fill_floats(const struct job *j, const struct mdl_want *w, uint64_t key, size_t offset, size_t len,
                        void *out)
{
    size_t size = mdl_dtype_size(w->dtype);
    float mean, dev;
    statistics(w, &mean, &dev);
    for (size_t i = 0; i < len / size; i++) {
        float x = mean + dev * j->gauss[draw16(key, offset / size + i)];
        if (w->dtype == MDL_BF16)
            ((uint16_t *)out)[i] = to_bf16(x);
        else
            ((float *)out)[i] = x;
    }
}

struct shard {
    struct job *job;
    size_t first; /* item that the writer's tensor 0 is */
};

static int fill(void *arg, size_t index, size_t offset, size_t len, void *out)
{
    const struct shard *s = arg;
    struct job *j = s->job;
    const struct mdl_want *w = &j->items[s->first + index];
    uint64_t key = key_of(j, w->name);
    if (is_quantised(w))
        fill_codes(j, w, key, offset, len, out);
    else if (w->dtype == MDL_F8_E8M0)
        fill_scales(w, key, offset, len, out);
    else
        fill_floats(j, w, key, offset, len, out);
    j->written += len;
    show_progress(j);
    return 0;
}

/* ---- config.json ---- */

static void set(json_t *o, const char *key, int v)
{
    json_object_set_new(o, key, json_integer(v));
}

static json_t *ints(const int *v, int n)
{
    json_t *a = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(a, json_integer(v[i]));
    return a;
}

static void set_layers(json_t *t, const struct spec *s)
{
    int ratio[MDL_MAX_LAYERS + MDL_MAX_DRAFT] = {0}, kv[MDL_MAX_LAYERS], index[MDL_MAX_LAYERS], n_kv = 0, n_index = 0;
    for (int l = s->swa; l < s->layers; l++) {
        bool encoder = l < s->cut;
        ratio[l] = encoder ? 2 : 1;
        if (encoder ? (l - s->swa) % s->share == 0 : l == s->cut)
            kv[n_kv++] = index[n_index++] = l;
        else if (!encoder && (l - s->cut) % s->reindex == 0)
            index[n_index++] = l;
    }
    json_object_set_new(t, "compress_ratios", ints(ratio, s->layers + (s->short_ratios ? 0 : s->draft)));
    json_object_set_new(t, "kv_source_layer_ids", ints(kv, n_kv));
    json_object_set_new(t, "index_source_layer_ids", ints(index, n_index));
    set(t, "candidate_source_layer_id", s->cut);
}

static void set_engram(json_t *t, const struct spec *s)
{
    if (!s->engram_heads)
        return;
    /* The last layer without global KV, and the first with it. */
    int layers[2] = {s->swa ? s->swa - 1 : 0, s->swa ? s->swa : 1};
    json_object_set_new(t, "engram_layer_ids", ints(layers, 2));
    set(t, "engram_n_heads", s->engram_heads);
    set(t, "engram_head_dim", s->engram_dim);
    set(t, "engram_vocab_size", s->engram_vocab);
    set(t, "engram_max_ngram_size", s->engram_ngram);
    set(t, "engram_pad_token_id", 2);
    set(t, "engram_compressed_vocab_size", s->vocab - s->vocab / 4);
}

static void set_drafter(json_t *t, const struct spec *s)
{
    int taps[MDL_MAX_TAPS], n = s->taps < MDL_MAX_TAPS ? s->taps : MDL_MAX_TAPS;
    set(t, "num_nextn_predict_layers", s->draft);
    if (!s->draft)
        return;
    for (int i = 0; i < n; i++)
        taps[i] = s->layers - n + i;
    json_object_set_new(t, "dspark_target_layer_ids", ints(taps, n));
    set(t, "dspark_block_size", s->draft_block);
    set(t, "dspark_noise_token_id", s->vocab - 3);
    set(t, "dspark_markov_rank", s->markov);
    set(t, "dspark_n_routed_experts", s->draft_experts);
    set(t, "dspark_num_experts_per_tok", s->draft_topk);
}

static json_t *text_config(const struct spec *s)
{
    int original = s->positions / 16 > 32 ? s->positions / 16 : 32;
    json_t *t = json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:{s:s, s:i, s:i, s:i, s:i}, s:i}",
        "model_type", "deepseek_v41_text", "vocab_size", s->vocab, "hidden_size", s->hidden, "num_hidden_layers",
        s->layers, "num_attention_heads", s->heads, "num_key_value_heads", 1, "head_dim", s->head_dim,
        "qk_rope_head_dim", s->rope_dim, "q_lora_rank", s->q_lora, "o_lora_rank", s->o_lora, "o_groups", s->o_groups,
        "sliding_window", s->window, "rope_theta", 10000, "compress_rope_theta", 160000, "rope_scaling", "type", "yarn",
        "factor", 16, "beta_fast", 32, "beta_slow", 1, "original_max_position_embeddings", original,
        "max_position_embeddings", s->positions);
    json_t *rest = json_pack(
        "{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:b, s:f, s:s, s:f, s:f, s:i, s:i, s:f, "
        "s:b, s:b}",
        "index_n_heads", s->index_heads, "index_head_dim", s->index_dim, "index_topk", s->index_topk,
        "candidate_topk_blocks", s->candidate_blocks, "candidate_block_size", s->candidate_block, "n_routed_experts",
        s->experts, "n_shared_experts", 1, "num_experts_per_tok", s->topk, "moe_intermediate_size", s->inter,
        "scoring_func", "sqrtsoftplus", "topk_method", "noaux_tc", "norm_topk_prob", 1, "routed_scaling_factor", 1.5,
        "hidden_act", "silu", "swiglu_limit", 10.0, "rms_norm_eps", 1e-20, "hc_mult", 4, "hc_sinkhorn_iters", 20,
        "hc_eps", 1e-6, "tie_word_embeddings", 0, "attention_bias", 0);
    if (t && rest)
        json_object_update(t, rest);
    json_decref(rest);
    set_layers(t, s);
    set_engram(t, s);
    set_drafter(t, s);
    return t;
}

static json_t *full_config(const struct spec *s)
{
    json_t *root =
        json_pack("{s:[s], s:s, s:s, s:i, s:i, s:i, s:i, s:b, s:{s:s, s:s, s:[i,i], s:s, s:s}, s:o}", "architectures",
                  "DeepseekV41ForCausalLM", "model_type", "deepseek_v41", "dtype", "bfloat16", "bos_token_id", 0,
                  "eos_token_id", 1, "pad_token_id", 2, "image_token_id", s->vocab - 1, "tie_word_embeddings", 0,
                  "quantization_config", "quant_method", "fp8", "activation_scheme", "dynamic", "weight_block_size", 32,
                  32, "scale_fmt", "ue8m0", "expert_dtype", "fp4", "text_config", text_config(s));
    if (root && s->vision)
        json_object_set_new(root, "vision_config", json_pack("{s:s}", "model_type", "deepseek_v41_vision"));
    return root;
}

static int path_in(struct job *j, const char *name, char *path, size_t size)
{
    if ((size_t)snprintf(path, size, "%s/%s", j->out, name) >= size)
        return cfg_error_set(&j->err, ENAMETOOLONG, "%s: the path is too long", j->out);
    return 0;
}

static int write_json(struct job *j, const json_t *v, const char *name)
{
    char path[4096];
    int rc = path_in(j, name, path, sizeof path);
    if (!rc && (!v || json_dump_file(v, path, JSON_INDENT(2))))
        rc = cfg_error_set(&j->err, EIO, "%s: cannot write", path);
    return rc;
}

/* The reader of configs judges the sizes; what it derives (rows of the Engram tables) is then written out. */
static int make_config(struct job *j)
{
    json_t *root = full_config(&j->spec);
    char *text = root ? json_dumps(root, 0) : NULL;
    int rc = text ? mdl_config_parse(text, strlen(text), "these sizes", &j->config, &j->err)
                  : cfg_error_set(&j->err, ENOMEM, "out of memory");
    free(text);
    if (!rc && j->config.n_engram) {
        json_t *rows = json_array();
        for (int s = 0; s < j->config.n_engram; s++)
            json_array_append_new(rows, json_integer(j->config.engram_rows[s]));
        json_object_set_new(json_object_get(root, "text_config"), "engram_num_embeddings", rows);
    }
    if (!rc && j->config.cut < 0)
        rc = cfg_error_set(&j->err, EINVAL, "these sizes leave no decoder: %s", j->config.cut_reason);
    if (!rc)
        rc = write_json(j, root, "config.json");
    json_decref(root);
    return rc;
}

/* ---- files ---- */

static int add_item(void *arg, const struct mdl_want *w)
{
    struct job *j = arg;
    if (j->count == j->cap) {
        size_t cap = j->cap ? 2 * j->cap : 1024;
        struct mdl_want *items = realloc(j->items, cap * sizeof *items);
        if (!items)
            return cfg_error_set(&j->err, ENOMEM, "out of memory");
        j->items = items;
        j->cap = cap;
    }
    j->items[j->count++] = *w;
    j->total += mdl_want_bytes(w);
    return 0;
}

static int add_vision(struct job *j)
{
    static const char *const names[] = {"vision.patch_embed.weight",
                                        "vision.blocks.0.norm1.weight",
                                        "aligner.layers.0.weight",
                                        "image_start",
                                        "image_end",
                                        "image_newline"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct mdl_want w = {.dtype = MDL_BF16, .ndim = 2, .shape = {8, 12}, .k = 12};
        snprintf(w.name, sizeof w.name, "%s", names[i]);
        int rc = add_item(j, &w);
        if (rc)
            return rc;
    }
    return 0;
}

/* The item after the last one of the shard that begins at first. */
static size_t shard_end(const struct job *j, size_t first)
{
    uint64_t bytes = 0;
    size_t i = first;
    for (; i < j->count; i++) {
        uint64_t n = mdl_want_bytes(&j->items[i]);
        if (j->shard_bytes && i > first && bytes + n > j->shard_bytes)
            break;
        bytes += n;
    }
    return i;
}

static int write_shard(struct job *j, size_t first, size_t end, const char *name)
{
    struct mdl_st_writer *w = mdl_st_writer_new();
    char path[4096];
    int rc = w ? path_in(j, name, path, sizeof path) : cfg_error_set(&j->err, ENOMEM, "out of memory");
    for (size_t i = first; !rc && i < end; i++) {
        const struct mdl_want *item = &j->items[i];
        if (mdl_st_writer_add(w, item->name, item->dtype, item->ndim, item->shape, NULL))
            rc = cfg_error_set(&j->err, ENOMEM, "%s: cannot add %s", path, item->name);
    }
    struct shard s = {j, first};
    if (!rc)
        rc = mdl_st_writer_save_from(w, path, fill, &s, &j->err);
    mdl_st_writer_free(w);
    return rc;
}

static int write_weights(struct job *j)
{
    size_t shards = 0;
    for (size_t at = 0; at < j->count; at = shard_end(j, at))
        shards++;
    if (shards == 1)
        return write_shard(j, 0, j->count, "model.safetensors");
    json_t *map = json_object();
    size_t at = 0;
    int rc = 0;
    for (size_t s = 1; !rc && s <= shards; s++) {
        size_t end = shard_end(j, at);
        char name[64];
        snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", s, shards);
        rc = write_shard(j, at, end, name);
        for (; at < end; at++)
            json_object_set_new(map, j->items[at].name, json_string(name));
    }
    json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)j->total, "weight_map", map);
    if (!rc)
        rc = write_json(j, root, "model.safetensors.index.json");
    json_decref(root);
    return rc;
}

/* Compressed ids keep most tokens apart and fold the last quarter onto others, as a real map does. */
static int32_t *compressed_ids(const struct job *j)
{
    const struct mdl_config *c = &j->config;
    int32_t *map = malloc((size_t)c->vocab_size * sizeof *map);
    uint64_t key = key_of(j, "compressed_ids");
    for (int i = 0; map && i < c->vocab_size; i++)
        map[i] = i < c->engram_compressed_vocab
                     ? i
                     : (int32_t)(random_bits(key, (uint64_t)i) % (uint64_t)c->engram_compressed_vocab);
    return map;
}

static int add_engram_layer(struct job *j, struct mdl_st_writer *w, int slot, int64_t *values)
{
    const struct mdl_config *c = &j->config;
    int64_t n_mult = c->engram_ngram, n_primes = (int64_t)(c->engram_ngram - 1) * c->engram_heads,
            *primes = values + n_mult;
    uint64_t bound = (uint64_t)INT64_MAX / (uint64_t)c->engram_compressed_vocab / 2;
    char mult_name[48], prime_name[48];
    snprintf(mult_name, sizeof mult_name, "multipliers.%d", c->engram_layers[slot]);
    snprintf(prime_name, sizeof prime_name, "primes.%d", c->engram_layers[slot]);
    for (int i = 0; i < n_mult; i++)
        values[i] = (int64_t)(2 * (random_bits(key_of(j, mult_name), (uint64_t)i) % bound) + 1);
    mdl_config_engram_primes(c, slot, primes);
    if (mdl_st_writer_add(w, mult_name, MDL_I64, 1, &n_mult, values) ||
        mdl_st_writer_add(w, prime_name, MDL_I64, 1, &n_primes, primes))
        return cfg_error_set(&j->err, ENOMEM, "out of memory");
    return 0;
}

static int write_sidecar(struct job *j)
{
    const struct mdl_config *c = &j->config;
    char path[4096];
    int rc = path_in(j, "engram.safetensors", path, sizeof path);
    if (rc || !c->n_engram)
        return rc;
    size_t orders = (size_t)c->engram_ngram - 1, per_layer = orders + 1 + orders * (size_t)c->engram_heads;
    int64_t *values = calloc(per_layer * (size_t)c->n_engram, sizeof *values), vocab = c->vocab_size;
    int32_t *map = compressed_ids(j);
    struct mdl_st_writer *w = mdl_st_writer_new();
    if (!values || !map || !w || mdl_st_writer_add(w, "compressed_ids", MDL_I32, 1, &vocab, map))
        rc = cfg_error_set(&j->err, ENOMEM, "out of memory");
    for (int s = 0; !rc && s < c->n_engram; s++)
        rc = add_engram_layer(j, w, s, values + per_layer * (size_t)s);
    if (!rc)
        rc = mdl_st_writer_save(w, path, &j->err);
    mdl_st_writer_free(w);
    free(map);
    free(values);
    return rc;
}

/* An existing model is never overwritten: a half-replaced one would open and be wrong. */
static int prepare_directory(struct job *j)
{
    char path[4096];
    int rc = path_in(j, "config.json", path, sizeof path);
    if (!rc && mkdir(j->out, 0777) && errno != EEXIST)
        rc = cfg_error_set(&j->err, errno, "%s: %s", j->out, strerror(errno));
    if (!rc && !access(path, F_OK))
        rc = cfg_error_set(&j->err, EEXIST, "%s: holds a model already; name a new directory", j->out);
    return rc;
}

static int make(struct job *j)
{
    int rc;
    j->gauss = gauss_table();
    j->tables = calloc(N_TABLES, sizeof *j->tables);
    if (!j->gauss || !j->tables)
        return cfg_error_set(&j->err, ENOMEM, "out of memory");
    if ((rc = prepare_directory(j)) || (rc = make_config(j)) || (rc = mdl_layout_each(&j->config, add_item, j)) ||
        (j->spec.vision && (rc = add_vision(j))) || (rc = write_weights(j)) || (rc = write_sidecar(j)))
        return rc;
    return 0;
}

/* ---- command line ---- */

static void print_usage(FILE *f)
{
    fputs("usage: make_model --out DIR [--preset NAME] [--seed N] [--shard-bytes N] [size flags]\n\n"
          "Writes a random model in the published layout.\n\npresets (default mini):\n",
          f);
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++)
        fprintf(f, "  %-6s %s\n", presets[i].name, presets[i].what);
    fputs("\nsize flags, each with a number; they change the preset:\n", f);
    for (int i = 0; i < N_SIZE_FLAGS; i++)
        fprintf(f, "  --%-18s %s\n", size_flags[i].name, size_flags[i].what);
}

static const struct preset *find_preset(const char *name)
{
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++)
        if (!strcmp(presets[i].name, name))
            return &presets[i];
    return NULL;
}

static int parse_number(const char *flag, const char *text, uint64_t max, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno || *text == '-' || end == text || *end || v > max) {
        fprintf(stderr, "make_model: --%s %s: expected a whole number from 0 to %" PRIu64 "\n", flag, text, max);
        return -1;
    }
    *out = v;
    return 0;
}

/* Layers that the loops above divide by or count to; everything else is judged as a config. */
static int check_spec(const struct spec *s)
{
    if (s->layers < 1 || s->layers > MDL_MAX_LAYERS || s->draft > MDL_MAX_DRAFT || s->cut <= s->swa ||
        s->cut >= s->layers || s->share < 1 || s->reindex < 1 || s->taps > s->layers) {
        fprintf(
            stderr,
            "make_model: expected 0 <= swa-layers < cut < layers <= %d, at most %d drafter stages, share and reindex "
            "at least 1, taps at most layers\n",
            MDL_MAX_LAYERS, MDL_MAX_DRAFT);
        return -1;
    }
    return 0;
}

/* 0: go on; 1: --help was printed; -1: a message was. */
static int parse_options(int argc, char **argv, struct job *j)
{
    struct option options[N_SIZE_FLAGS + 6] = {
        {"out", required_argument, NULL, 'o'},  {"preset", required_argument, NULL, 'p'},
        {"seed", required_argument, NULL, 's'}, {"shard-bytes", required_argument, NULL, 'b'},
        {"help", no_argument, NULL, 'h'},
    };
    const struct preset *preset = &presets[0];
    uint64_t given[N_SIZE_FLAGS];
    bool is_given[N_SIZE_FLAGS] = {false};
    int opt, bad = 0;
    for (int i = 0; i < N_SIZE_FLAGS; i++)
        options[5 + i] = (struct option){size_flags[i].name, required_argument, NULL, FLAG_BASE + i};
    optind = 0; /* glibc: start afresh, a test calls this more than once */
    while (!bad && (opt = getopt_long(argc, argv, "ho:", options, NULL)) != -1) {
        if (opt >= FLAG_BASE) {
            bad = parse_number(size_flags[opt - FLAG_BASE].name, optarg, INT32_MAX, &given[opt - FLAG_BASE]);
            is_given[opt - FLAG_BASE] = true;
        } else if (opt == 'o') {
            j->out = optarg;
        } else if (opt == 's') {
            bad = parse_number("seed", optarg, UINT64_MAX, &j->seed);
        } else if (opt == 'b') {
            bad = parse_number("shard-bytes", optarg, INT64_MAX, &j->shard_bytes);
        } else if (opt == 'p') {
            if (!(preset = find_preset(optarg)))
                bad = fprintf(stderr, "make_model: --preset %s: expected mini, edge or mid\n", optarg);
        } else if (opt == 'h') {
            print_usage(stdout);
            return 1;
        } else {
            bad = 1;
        }
    }
    if (!bad && (!j->out || optind != argc))
        bad = fprintf(stderr, "make_model: expected --out DIR and nothing but flags; see --help\n");
    if (bad)
        return -1;
    j->spec = preset->spec;
    for (int i = 0; i < N_SIZE_FLAGS; i++)
        if (is_given[i])
            *(int *)((char *)&j->spec + size_flags[i].offset) = (int)given[i];
    return check_spec(&j->spec);
}

int main(int argc, char **argv)
{
    static struct job j;
    memset(&j, 0, sizeof j);
    int parsed = parse_options(argc, argv, &j);
    if (parsed)
        return parsed > 0 ? 0 : 2;
    int rc = make(&j);
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    if (rc)
        fprintf(stderr, "make_model: %s\n", j.err.msg);
    else
        printf("%s: %zu tensors, %" PRIu64 " bytes\n", j.out, j.count, j.total);
    free(j.items);
    free(j.gauss);
    free(j.tables);
    return rc ? 1 : 0;
}
