#include "tests/harness.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/config.h"

#define REAL "tests/fixtures/real-config"

static json_t *load_real(void)
{
    json_t *root = json_load_file(REAL "/config.json", 0, NULL);
    cr_assert_not_null(root);
    return root;
}

static int parse_json(const json_t *root, struct mdl_config *c, struct cfg_error *err)
{
    char *text = json_dumps(root, 0);
    cr_assert_not_null(text);
    err->msg[0] = 0;
    int rc = mdl_config_parse(text, strlen(text), "test.json", c, err);
    free(text);
    return rc;
}

/* Sets a key (JSON text; NULL removes it) in text_config, or outside when the key starts with '/'. */
static void edit(json_t *root, const char *key, const char *json)
{
    json_t *obj = *key == '/' ? root : json_object_get(root, "text_config");
    key += *key == '/';
    if (!json) {
        json_object_del(obj, key);
        return;
    }
    json_t *v = json_loads(json, JSON_DECODE_ANY, NULL);
    cr_assert_not_null(v, "%s", json);
    json_object_set_new(obj, key, v);
}

/* The text config renamed to the scheme of the flat form, special ids beside the rest. */
static json_t *flatten(const json_t *real)
{
    static const char *const renames[][2] = {
        {"hidden_size", "dim"},
        {"num_hidden_layers", "n_layers"},
        {"num_attention_heads", "n_heads"},
        {"qk_rope_head_dim", "rope_head_dim"},
        {"sliding_window", "window_size"},
        {"kv_source_layer_ids", "kv_source_layers"},
        {"index_source_layer_ids", "index_source_layers"},
        {"candidate_source_layer_id", "candidate_source_layer"},
        {"num_experts_per_tok", "n_activated_experts"},
        {"moe_intermediate_size", "moe_inter_dim"},
        {"routed_scaling_factor", "route_scale"},
        {"rms_norm_eps", "norm_eps"},
        {"engram_pad_token_id", "engram_pad_id"},
        {"num_nextn_predict_layers", "n_mtp_layers"},
        {"dspark_num_experts_per_tok", "dspark_n_activated_experts"},
    };
    json_t *flat = json_deep_copy(json_object_get(real, "text_config"));
    for (size_t i = 0; i < sizeof renames / sizeof renames[0]; i++) {
        json_t *v = json_object_get(flat, renames[i][0]);
        cr_assert_not_null(v, "%s", renames[i][0]);
        json_object_set(flat, renames[i][1], v);
        json_object_del(flat, renames[i][0]);
    }
    json_object_del(flat, "rope_scaling");
    json_object_set_new(flat, "original_seq_len", json_integer(65536));
    json_object_set_new(flat, "rope_factor", json_integer(16));
    json_object_set_new(flat, "beta_fast", json_integer(32));
    json_object_set_new(flat, "beta_slow", json_integer(1));
    static const char *const ids[] = {"bos_token_id", "eos_token_id", "pad_token_id", "image_token_id",
                                      "vision_config"};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        json_object_set(flat, ids[i], json_object_get(real, ids[i]));
    return flat;
}

Test(config, real_values)
{
    struct mdl_config c;
    struct cfg_error err = {{0}};
    cr_assert_eq(mdl_config_load(REAL, &c, &err), 0, "%s", err.msg);
    cr_expect_eq(c.vocab_size, 129280);
    cr_expect_eq(c.hidden, 5120);
    cr_expect_eq(c.n_layers, 40);
    cr_expect_eq(c.n_heads, 64);
    cr_expect_eq(c.head_dim, 512);
    cr_expect_eq(c.rope_dim, 64);
    cr_expect_eq(c.q_lora, 1280);
    cr_expect_eq(c.o_lora, 1024);
    cr_expect_eq(c.o_groups, 8);
    cr_expect_eq(c.window, 128);
    cr_expect_eq(c.max_position, 1048576);
    cr_expect(c.rms_eps > 0.9e-20f && c.rms_eps < 1.1e-20f);
    cr_expect_eq(c.hc_eps, 1e-6f);
    cr_expect_eq(c.hc_sinkhorn_iters, 20);
    cr_expect_eq(c.swiglu_limit, 10.0f);
    cr_expect_eq(c.route_scale, 1.5f);
    cr_expect_eq(c.rope_theta, 10000);
    cr_expect_eq(c.compress_rope_theta, 160000);
    cr_expect_eq(c.yarn_factor, 16);
    cr_expect_eq(c.yarn_beta_fast, 32);
    cr_expect_eq(c.yarn_beta_slow, 1);
    cr_expect_eq(c.yarn_original_len, 65536);
    cr_expect_eq(c.index_heads, 32);
    cr_expect_eq(c.index_dim, 128);
    cr_expect_eq(c.index_topk, 512);
    cr_expect_eq(c.candidate_blocks, 2048);
    cr_expect_eq(c.candidate_block_size, 8);
    cr_expect_eq(c.candidate_layer, 20);
    cr_expect_eq(c.n_experts, 384);
    cr_expect_eq(c.topk_experts, 6);
    cr_expect_eq(c.moe_inter, 2304);
    cr_expect_eq(c.n_shared_experts, 1);
    cr_expect_eq(c.n_engram, 2);
    cr_expect_eq(c.engram_layers[1], 14);
    cr_expect_eq(c.engram_rows[0], 384006168);
    cr_expect_eq(c.engram_rows[1], 384016682);
    cr_expect_eq(c.engram_ngram, 4);
    cr_expect_eq(c.engram_heads, 8);
    cr_expect_eq(c.engram_dim, 256);
    cr_expect_eq(c.engram_vocab, 16000000);
    cr_expect_eq(c.engram_pad_id, 2);
    cr_expect_eq(c.engram_compressed_vocab, 99092);
    cr_expect_eq(c.n_draft, 3);
    cr_expect_eq(c.draft_block, 5);
    cr_expect_eq(c.draft_noise_id, 128799);
    cr_expect_eq(c.draft_experts, 128);
    cr_expect_eq(c.draft_topk, 3);
    cr_expect_eq(c.markov_rank, 256);
    cr_expect_eq(c.n_taps, 3);
    cr_expect_eq(c.tap_layers[0], 37);
    cr_expect_eq(c.tap_layers[2], 39);
    cr_expect_eq(c.bos_id, 0);
    cr_expect_eq(c.eos_id, 1);
    cr_expect_eq(c.pad_id, 2);
    cr_expect_eq(c.image_id, 129264);
    cr_expect(c.has_vision);
    cr_expect_eq(mdl_swa_row_bytes(&c), 528);
    cr_expect_eq(mdl_main_row_bytes(&c), 288);
    cr_expect_eq(mdl_index_row_bytes(&c), 68);
}

Test(config, real_roles)
{
    struct mdl_config c;
    struct cfg_error err = {{0}};
    cr_assert_eq(mdl_config_load(REAL, &c, &err), 0, "%s", err.msg);
    cr_expect_eq(c.cut, 20);
    cr_expect_str_eq(c.cut_reason, "");
    cr_assert_eq(c.n_kv_sources, 4);
    for (int s = 0; s < 4; s++) {
        cr_expect_eq(c.kv_sources[s], 2 + 6 * s);
        cr_expect_eq(c.kv_source_ratio[s], s == 3 ? 1 : 2);
    }
    for (int l = 0; l < 40; l++) {
        const struct mdl_layer_role *r = &c.layer[l];
        int slot = l < 2 ? -1 : l < 8 ? 0 : l < 14 ? 1 : l < 20 ? 2 : 3;
        int index = l < 2 ? -1 : l < 24 ? 2 + 6 * slot : l / 4 * 4;
        enum mdl_layer_mode mode = l < 2                   ? MDL_LAYER_SWA
                                   : l == 2 + 6 * slot     ? MDL_LAYER_FULL
                                   : l >= 24 && l % 4 == 0 ? MDL_LAYER_REINDEX
                                                           : MDL_LAYER_REUSE;
        cr_expect_eq(r->mode, mode, "layer %d", l);
        cr_expect_eq(r->ratio, l < 2 ? 0 : l < 20 ? 2 : 1, "layer %d", l);
        cr_expect_eq(r->kv_source, slot, "layer %d", l);
        cr_expect_eq(r->index_source, index, "layer %d", l);
        cr_expect_eq(r->engram, l == 1 ? 0 : l == 14 ? 1 : -1, "layer %d", l);
        cr_expect_eq(r->candidate_source, l == 20, "layer %d", l);
        cr_expect_eq(r->restricted, mode == MDL_LAYER_REINDEX, "layer %d", l);
    }
}

Test(config, ratios_without_drafter_entries)
{
    struct mdl_config a, b;
    struct cfg_error err;
    json_t *root = load_real(), *ratios = json_object_get(json_object_get(root, "text_config"), "compress_ratios");
    cr_assert_eq(json_array_size(ratios), 43);
    cr_assert_eq(parse_json(root, &a, &err), 0, "%s", err.msg);
    for (int i = 0; i < 3; i++)
        json_array_remove(ratios, 40);
    cr_assert_eq(parse_json(root, &b, &err), 0, "%s", err.msg);
    for (int l = 0; l < 40; l++)
        cr_expect_eq(a.layer[l].ratio, b.layer[l].ratio);
    cr_expect_eq(b.cut, 20);
    json_array_remove(ratios, 39);
    cr_expect_eq(parse_json(root, &b, &err), -EINVAL);
    cr_expect_not_null(strstr(err.msg, "compress_ratios has 39 entries, expected 40"), "%s", err.msg);
    json_decref(root);
}

Test(config, flat_form_with_other_names)
{
    struct mdl_config a, b;
    struct cfg_error err;
    json_t *real = load_real(), *flat = flatten(real);
    cr_assert_eq(parse_json(real, &a, &err), 0, "%s", err.msg);
    cr_assert_eq(parse_json(flat, &b, &err), 0, "%s", err.msg);
    cr_expect_eq(a.hidden, b.hidden);
    cr_expect_eq(a.window, b.window);
    cr_expect_eq(a.rms_eps, b.rms_eps);
    cr_expect_eq(a.route_scale, b.route_scale);
    cr_expect_eq(a.yarn_original_len, b.yarn_original_len);
    cr_expect_eq(a.yarn_factor, b.yarn_factor);
    cr_expect_eq(a.topk_experts, b.topk_experts);
    cr_expect_eq(a.draft_topk, b.draft_topk);
    cr_expect_eq(a.n_draft, b.n_draft);
    cr_expect_eq(a.candidate_layer, b.candidate_layer);
    cr_expect_eq(a.cut, b.cut);
    cr_expect_eq(a.image_id, b.image_id);
    for (int l = 0; l < 40; l++)
        cr_expect_eq(a.layer[l].index_source, b.layer[l].index_source);
    /* Flat with the published names, and both names at once with one value. */
    json_object_set_new(flat, "hidden_size", json_integer(5120));
    cr_expect_eq(parse_json(flat, &b, &err), 0, "%s", err.msg);
    json_object_set_new(flat, "hidden_size", json_integer(4096));
    cr_expect_eq(parse_json(flat, &b, &err), -EINVAL);
    cr_expect_not_null(strstr(err.msg, "hidden_size is 4096 but dim"), "%s", err.msg);
    json_decref(flat);
    json_decref(real);
}

/* Every bad value is refused by name, with what was found and what was expected. */
static const struct bad_case {
    const char *key, *value, *message;
} bad_cases[] = {
    {"vocab_size", NULL, "vocab_size is missing, expected an integer"},
    {"vocab_size", "\"many\"", "vocab_size is \"many\", expected an integer"},
    {"vocab_size", "129280.5", "vocab_size is 129280.5"},
    {"vocab_size", "-1", "vocab_size is -1"},
    {"hidden_size", "5121", "hidden_size is 5121, expected a multiple of 32"},
    {"hidden_size", "1000000000", "hidden_size is 1000000000, expected an integer from 32"},
    {"num_hidden_layers", "0", "num_hidden_layers is 0"},
    {"num_hidden_layers", "257", "num_hidden_layers is 257"},
    {"num_hidden_layers", "41", "compress_ratios has 43 entries, expected 41"},
    {"num_attention_heads", "60", "num_attention_heads is 60, expected a multiple of o_groups"},
    {"num_key_value_heads", "2", "num_key_value_heads is 2, expected 1"},
    {"head_dim", "520", "head_dim is 520, expected a multiple of 32"},
    {"qk_rope_head_dim", "63", "qk_rope_head_dim is 63, expected a multiple of 2"},
    {"qk_rope_head_dim", "160", "qk_rope_head_dim is 160, expected at most index_head_dim"},
    {"qk_rope_head_dim", "1024", "qk_rope_head_dim is 1024, expected at most head_dim"},
    {"q_lora_rank", "1290", "q_lora_rank is 1290, expected a multiple of 32"},
    {"o_lora_rank", "1026", "o_groups * o_lora_rank is 8208, expected a multiple of 32"},
    {"sliding_window", "0", "sliding_window is 0"},
    {"rope_theta", "\"x\"", "rope_theta is \"x\", expected a number"},
    {"rope_scaling", "{\"type\":\"linear\",\"factor\":2}", "rope_scaling.type is \"linear\", expected \"yarn\""},
    {"rope_scaling", "{\"type\":\"yarn\",\"factor\":2}", "original_max_position_embeddings is missing"},
    {"rope_scaling", "{\"type\":\"yarn\",\"original_max_position_embeddings\":64}", "factor is missing"},
    {"rope_scaling", "{\"type\":\"yarn\",\"original_max_position_embeddings\":64,\"factor\":2,\"beta_fast\":0.5}",
     "beta_fast is 0.5, expected at least beta_slow"},
    {"rope_scaling", "3", "rope_scaling is 3, expected an object"},
    {"max_position_embeddings", "0", "max_position_embeddings is 0"},
    {"compress_ratios", "[0,0,4]", "compress_ratios[2] is 4"},
    {"compress_ratios", "7", "compress_ratios is 7, expected a list"},
    {"compress_ratios", NULL, "compress_ratios has 0 entries"},
    {"kv_source_layer_ids", "[2,8,8,20]", "kv_source_layer_ids[2] is 8 after 8"},
    {"kv_source_layer_ids", "[2,8,14,40]", "kv_source_layer_ids[3] is 40"},
    {"kv_source_layer_ids", "[8,14,20]", "compress_ratios[2] is 2, expected 0: no layer of kv_source_layer_ids"},
    {"kv_source_layer_ids", "[0,2,8,14,20]",
     "layer 0 is in kv_source_layer_ids, expected it in index_source_layer_ids"},
    {"kv_source_layer_ids", "[2,8,14]", "compress_ratios[20] is 1, expected 2, the ratio of layer 14"},
    {"index_source_layer_ids", "[2,8,20]", "layer 14 is in kv_source_layer_ids, expected it in index_source_layer_ids"},
    {"index_source_layer_ids", "[1,2,8,14,20]", "compress_ratios[1] is 0, expected 1 or 2: layer 1 is in index_source"},
    {"index_n_heads", "0", "index_n_heads is 0"},
    {"index_head_dim", "544", "index_head_dim"},
    {"index_head_dim", "100", "index_head_dim is 100, expected a multiple of 32"},
    {"index_topk", "20000", "are only sure to hold 16377 rows, expected at least index_topk, which is 20000"},
    {"candidate_source_layer_id", "21", "candidate_source_layer_id is 21, expected a layer of index_source_layer_ids"},
    {"candidate_source_layer_id", "14", "candidate_source_layer_id is 14, expected no KV source after it"},
    {"candidate_topk_blocks", "0", "candidate_topk_blocks is 0"},
    {"n_routed_experts", "5", "num_experts_per_tok is 6, expected at most n_routed_experts, which is 5"},
    {"n_shared_experts", "2", "n_shared_experts is 2"},
    {"num_experts_per_tok", "65", "num_experts_per_tok is 65"},
    {"moe_intermediate_size", "2300", "moe_intermediate_size is 2300, expected a multiple of 32"},
    {"scoring_func", "\"softmax\"", "scoring_func is \"softmax\", expected \"sqrtsoftplus\""},
    {"topk_method", "\"greedy\"", "topk_method is \"greedy\""},
    {"norm_topk_prob", "false", "norm_topk_prob is false, expected true"},
    {"hidden_act", "\"gelu\"", "hidden_act is \"gelu\", expected \"silu\""},
    {"hc_mult", "2", "hc_mult is 2, expected 4"},
    {"hc_sinkhorn_iters", "0", "hc_sinkhorn_iters is 0"},
    {"rms_norm_eps", "null", "rms_norm_eps is missing"},
    {"rms_norm_eps", "1", "rms_norm_eps is 1, expected a number from 1e-30 to 0.1"},
    {"rms_norm_eps", "0", "rms_norm_eps is 0, expected a number from 1e-30"},
    {"hc_eps", "0.0", "hc_eps is 0.0, expected a number from 1e-30"},
    {"swiglu_limit", "-3", "swiglu_limit is -3"},
    {"tie_word_embeddings", "true", "tie_word_embeddings is true, expected false"},
    {"attention_bias", "true", "attention_bias is true"},
    {"engram_layer_ids", "[14,1]", "engram_layer_ids[1] is 1 after 14"},
    {"engram_num_embeddings", "[5]", "engram_num_embeddings has 1 entries, expected 2"},
    {"engram_num_embeddings", "[0,5]", "engram_num_embeddings[0] is 0"},
    {"engram_head_dim", "40", "engram_head_dim is 40, expected a multiple of 32"},
    {"engram_pad_token_id", "129280", "engram_pad_token_id is 129280, expected at most vocab_size - 1"},
    {"engram_compressed_vocab_size", "200000", "engram_compressed_vocab_size is 200000, expected at most vocab_size"},
    {"engram_vocab_size", NULL, "engram_vocab_size is missing"},
    {"num_nextn_predict_layers", "17", "num_nextn_predict_layers is 17"},
    {"dspark_block_size", "33", "dspark_block_size is 33"},
    {"dspark_noise_token_id", "129280", "dspark_noise_token_id is 129280, expected at most vocab_size - 1"},
    {"dspark_target_layer_ids", "[]", "dspark_target_layer_ids is [], expected at least one"},
    {"dspark_target_layer_ids", "[38,38]", "dspark_target_layer_ids names layer 38 twice"},
    {"dspark_target_layer_ids", "[40]", "dspark_target_layer_ids[0] is 40"},
    {"dspark_num_experts_per_tok", "64", NULL},
    {"dspark_n_routed_experts", "2", "dspark_num_experts_per_tok is 3, expected at most dspark_n_routed_experts"},
    {"model_type", "\"llama\"", "model_type is \"llama\", expected deepseek_v41"},
    {"/model_type", "\"deepseek_v3\"", "model_type is \"deepseek_v3\", expected deepseek_v41"},
    {"/text_config", "[1]", "text_config is [1], expected an object"},
    {"/eos_token_id", "129280", "eos_token_id is 129280"},
    {"/quantization_config", "1", "quantization_config is 1, expected an object"},
    {"/quantization_config", "{\"weight_block_size\":[128,128]}",
     "quantization_config.weight_block_size is [128,128], expected [32,32]"},
    {"/quantization_config", "{\"scale_fmt\":\"float\"}",
     "quantization_config.scale_fmt is \"float\", expected \"ue8m0\""},
    {"/quantization_config", "{\"expert_dtype\":\"fp8\"}",
     "quantization_config.expert_dtype is \"fp8\", expected \"fp4\""},
    {"/quantization_config", "{\"quant_method\":\"awq\"}",
     "quantization_config.quant_method is \"awq\", expected \"fp8\""},
};

Test(config, bad_values_are_named)
{
    for (size_t i = 0; i < sizeof bad_cases / sizeof bad_cases[0]; i++) {
        const struct bad_case *b = &bad_cases[i];
        struct mdl_config c;
        struct cfg_error err;
        json_t *root = load_real();
        edit(root, b->key, b->value);
        int rc = parse_json(root, &c, &err);
        json_decref(root);
        if (!b->message) {
            cr_expect_eq(rc, 0, "%s = %s: %s", b->key, b->value, err.msg);
            continue;
        }
        cr_expect_eq(rc, -EINVAL, "%s = %s", b->key, b->value);
        cr_expect_not_null(strstr(err.msg, b->message), "%s = %s: got \"%s\"", b->key, b->value, err.msg);
        cr_expect_not_null(strstr(err.msg, "test.json"), "%s", err.msg);
    }
}

Test(config, drafter_ratio_must_be_zero)
{
    struct mdl_config c;
    struct cfg_error err;
    json_t *root = load_real(), *ratios = json_object_get(json_object_get(root, "text_config"), "compress_ratios");
    json_array_set_new(ratios, 41, json_integer(1));
    cr_expect_eq(parse_json(root, &c, &err), -EINVAL);
    cr_expect_not_null(strstr(err.msg, "compress_ratios[41] is 1, expected 0"), "%s", err.msg);
    json_decref(root);
}

Test(config, models_without_a_cut_still_load)
{
    static const struct {
        const char *key, *value, *reason;
    } cases[] = {
        {"engram_layer_ids", "[1,21]", "layer 21 has an Engram; none may lie at or after the last KV source (20)"},
        {"engram_layer_ids", "[1,20]", "layer 20 has an Engram; none may lie at or after the last KV source (20)"},
        {"engram_layer_ids", "[1,19]", ""},
        {"dspark_target_layer_ids", "[19,38,39]",
         "the drafter reads layer 19, which a replay does not run: it starts at the last KV source (20)"},
        {"dspark_target_layer_ids", "[20,38,39]", ""},
    };
    struct mdl_config c;
    struct cfg_error err;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *root = load_real();
        edit(root, cases[i].key, cases[i].value);
        cr_assert_eq(parse_json(root, &c, &err), 0, "%s", err.msg);
        cr_expect_str_eq(c.cut_reason, cases[i].reason);
        cr_expect_eq(c.cut, *cases[i].reason ? -1 : 20);
        json_decref(root);
    }
    /* Ratio 2 throughout. */
    json_t *root = load_real(), *ratios = json_object_get(json_object_get(root, "text_config"), "compress_ratios");
    for (int l = 20; l < 40; l++)
        json_array_set_new(ratios, (size_t)l, json_integer(2));
    cr_assert_eq(parse_json(root, &c, &err), 0, "%s", err.msg);
    cr_expect_eq(c.cut, -1);
    cr_expect_not_null(strstr(c.cut_reason, "compress_ratios[20] is 2"), "%s", c.cut_reason);
    /* A sliding window everywhere: no sharing at all, and the keys of sparse attention need not be there. */
    for (int l = 2; l < 40; l++)
        json_array_set_new(ratios, (size_t)l, json_integer(0));
    static const char *const gone[] = {"kv_source_layer_ids", "index_source_layer_ids", "candidate_source_layer_id",
                                       "index_n_heads",       "index_head_dim",         "index_topk"};
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++)
        edit(root, gone[i], NULL);
    cr_assert_eq(parse_json(root, &c, &err), 0, "%s", err.msg);
    cr_expect_eq(c.cut, -1);
    cr_expect_eq(c.n_kv_sources, 0);
    cr_expect_eq(c.candidate_layer, -1);
    cr_expect_not_null(strstr(c.cut_reason, "no layer owns global KV"), "%s", c.cut_reason);
    json_decref(root);
}

Test(config, optional_parts)
{
    struct mdl_config c;
    struct cfg_error err;
    json_t *root = load_real();
    static const char *const gone[] = {"engram_layer_ids", "num_nextn_predict_layers", "rope_scaling",
                                       "topk_method",      "/quantization_config",     "/vision_config",
                                       "/image_token_id",  "candidate_source_layer_id"};
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++)
        edit(root, gone[i], NULL);
    edit(root, "compress_ratios", "[0,0,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]");
    edit(root, "/eos_token_id", "[7, 8]");
    cr_assert_eq(parse_json(root, &c, &err), 0, "%s", err.msg);
    cr_expect_eq(c.n_engram, 0);
    cr_expect_eq(c.n_draft, 0);
    cr_expect_eq(c.n_taps, 0);
    cr_expect_eq(c.yarn_original_len, 0);
    cr_expect_eq(c.image_id, -1);
    cr_expect_eq(c.eos_id, 7);
    cr_expect_eq(c.candidate_layer, -1);
    cr_expect_not(c.layer[24].restricted);
    cr_expect_not(c.has_vision);
    json_decref(root);
}

Test(config, engram_rows_follow_from_the_prime_search)
{
    struct mdl_config c;
    struct cfg_error err;
    int64_t primes[24];
    json_t *root = load_real();
    edit(root, "engram_num_embeddings", NULL);
    cr_assert_eq(parse_json(root, &c, &err), 0, "%s", err.msg);
    cr_expect_eq(c.engram_rows[0], 384006168);
    cr_expect_eq(c.engram_rows[1], 384016682);
    cr_assert_eq(mdl_config_engram_primes(&c, 0, primes), 0);
    cr_expect_eq(primes[0], 16000057);
    cr_expect_eq(primes[7], 16000183);
    cr_expect_eq(primes[23], 16000463);
    cr_assert_eq(mdl_config_engram_primes(&c, 1, primes), 0);
    cr_expect_eq(primes[0], 16000477);
    cr_expect_eq(primes[23], 16000889);
    cr_expect_eq(mdl_config_engram_primes(&c, 2, primes), -EINVAL);
    json_decref(root);
}

Test(config, golden_configs_load)
{
    static const struct {
        const char *dir;
        int cut, layers, draft;
    } cases[] = {{"tests/golden/mini8", 4, 8, 2}, {"tests/golden/edge", 3, 5, 1}, {"tests/golden/modules", 2, 4, 2}};
    for (size_t i = 0; i < 3; i++) {
        struct mdl_config c;
        struct cfg_error err = {{0}};
        cr_assert_eq(mdl_config_load(cases[i].dir, &c, &err), 0, "%s", err.msg);
        cr_expect_eq(c.cut, cases[i].cut);
        cr_expect_eq(c.n_layers, cases[i].layers);
        cr_expect_eq(c.n_draft, cases[i].draft);
        cr_expect(c.layer[c.cut].candidate_source);
    }
}

Test(config, broken_text)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "not valid JSON"},
        {"{", "not valid JSON"},
        {"[1,2]", "expected a JSON object"},
        {"{\"a\":1,\"a\":2}", "duplicate object key"},
        {"{\"a\":\"\xff\"}", "not valid JSON"},
        {"{\"vocab_size\":99999999999999999999}", "too big integer"},
        {"{}", "vocab_size is missing"},
        {"{\"text_config\":{}}", "vocab_size is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mdl_config c;
        struct cfg_error err = {{0}};
        cr_expect_eq(mdl_config_parse(cases[i].text, strlen(cases[i].text), "x", &c, &err), -EINVAL);
        cr_expect_not_null(strstr(err.msg, cases[i].message), "%s: %s", cases[i].text, err.msg);
    }
    char deep[6000];
    struct mdl_config c;
    struct cfg_error err = {{0}};
    memset(deep, '[', sizeof deep);
    cr_expect_eq(mdl_config_parse(deep, sizeof deep, "deep", &c, &err), -EINVAL);
    cr_expect_not_null(strstr(err.msg, "maximum parsing depth"), "%s", err.msg);
}

Test(config, missing_file)
{
    struct mdl_config c;
    struct cfg_error err = {{0}};
    cr_expect_eq(mdl_config_load("tests/no-such-model", &c, &err), -ENOENT);
    cr_expect_not_null(strstr(err.msg, "tests/no-such-model/config.json"), "%s", err.msg);
}
