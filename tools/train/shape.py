"""The tiny checkpoint's config.json (outer config with text_config, as in the release)."""
import engram_sidecar
from data import SPECIAL, VOCAB

LAYERS, STAGES = 8, 3


def config(tokenizer):
    special = {s: i for s, i in SPECIAL.items()}
    cmap, compressed = engram_sidecar.compressed_ids(tokenizer, VOCAB)
    engram_layers, engram_start = [1, 3], 6000
    primes = engram_sidecar.primes(engram_layers, 3, 2, engram_start)
    text = {
        "model_type": "deepseek_v41_text", "vocab_size": VOCAB, "hidden_size": 192, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64, "qk_rope_head_dim": 16,
        "q_lora_rank": 64, "o_lora_rank": 64, "o_groups": 2, "sliding_window": 32,
        "rope_theta": 10000, "compress_rope_theta": 160000,
        "rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 32, "beta_slow": 1,
                         "original_max_position_embeddings": 256},
        "max_position_embeddings": 1024,
        "compress_ratios": [0, 2, 2, 2, 1, 1, 1, 1] + [0] * STAGES,
        "kv_source_layer_ids": [1, 3, 4], "index_source_layer_ids": [1, 3, 4, 6],
        "index_n_heads": 4, "index_head_dim": 32, "index_topk": 48,
        "candidate_source_layer_id": 4, "candidate_topk_blocks": 24, "candidate_block_size": 4,
        "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
        "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": True,
        "routed_scaling_factor": 1.5, "hidden_act": "silu", "swiglu_limit": 10.0, "rms_norm_eps": 1e-20,
        "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
        "engram_layer_ids": engram_layers, "engram_max_ngram_size": 4, "engram_n_heads": 2, "engram_head_dim": 32,
        "engram_vocab_size": engram_start, "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": compressed,
        "engram_num_embeddings": [sum(primes[l]) for l in engram_layers],
        "num_nextn_predict_layers": STAGES, "dspark_block_size": 5,
        "dspark_noise_token_id": special["<｜System｜>"], "dspark_target_layer_ids": [5, 6, 7],
        "dspark_markov_rank": 64, "dspark_n_routed_experts": 4, "dspark_num_experts_per_tok": 2,
        "tie_word_embeddings": False, "attention_bias": False,
    }
    return {
        "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
        "image_token_id": special["<｜deepseek_image｜>"], "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
                                "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
        "text_config": text,
    }
