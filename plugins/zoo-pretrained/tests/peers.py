"""Tiny models of the libraries that publish checkpoints, with random weights, saved to disk as they save them."""

import contextlib
import re

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[import]'")
timm = pytest.importorskip("timm", reason="timm is not installed: pip install -e '.[import]'")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

WORDS = 41


def with_configs(cases):
    """Peers by name, (class, class of its configuration, options), from their classes and
    options, with the configuration's class where its name is another."""
    ends = re.compile(r"(For[A-Z]\w+|LMHeadModel|MTModel)$")
    return {
        name: (model, own[0] if own else ends.sub("Config", model), options)
        for name, (model, options, *own) in cases.items()
    }


LLAMA = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 44, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip
STRETCH = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
GPT2 = {
    "vocab_size": WORDS, "n_positions": 96, "n_embd": 32, "n_layer": 3, "n_head": 4, "bos_token_id": 1,
    "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
NEOX = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 44,
    "max_position_embeddings": 128, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
DEEPSEEK = {
    **LLAMA, "num_key_value_heads": 4, "kv_lora_rank": 10,
    "q_lora_rank": 14, "qk_nope_head_dim": 6, "qk_rope_head_dim": 8, "v_head_dim": 10, "moe_intermediate_size": 10,
    "n_routed_experts": 6, "num_experts_per_tok": 3, "n_group": 3, "topk_group": 2, "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 300.0, "factor": 8.0, "original_max_position_embeddings": 16,
    "mscale_all_dim": 0.9,
}  # fmt: skip
DELTA = {
    "head_dim": 16, "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 10,
    "shared_expert_intermediate_size": 14, "linear_key_head_dim": 6, "linear_value_head_dim": 5,
    "linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_conv_kernel_dim": 3,
}  # fmt: skip
MAMBA2 = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 3, "num_heads": 8, "head_dim": 8, "state_size": 5,
    "n_groups": 4, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
LANGUAGE = with_configs({
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2-untied": ("GPT2LMHeadModel", {**GPT2, "tie_word_embeddings": False, "n_inner": 50}),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama-tied": ("LlamaForCausalLM", {**LLAMA, "tie_word_embeddings": True, "head_dim": 12}),
    "llama-bias": ("LlamaForCausalLM", {**LLAMA, "attention_bias": True}),
    "llama-3": ("LlamaForCausalLM", {**LLAMA, "rope_parameters": STRETCH}),
    "mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": 5}),
    "qwen2": ("Qwen2ForCausalLM", LLAMA),
    "qwen2-window": ("Qwen2ForCausalLM", {
        **LLAMA, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2,
    }),
    "qwen3": ("Qwen3ForCausalLM", {**LLAMA, "head_dim": 12, "tie_word_embeddings": True}),
    "qwen3-window": ("Qwen3ForCausalLM", {
        **LLAMA, "head_dim": 8, "attention_bias": True, "use_sliding_window": True, "sliding_window": 5,
        "max_window_layers": 1,
    }),
    "mixtral": ("MixtralForCausalLM", {
        **LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None,
    }),
    "qwen3-moe": ("Qwen3MoeForCausalLM", {
        **{key: value for key, value in LLAMA.items() if key != "num_hidden_layers"}, "num_hidden_layers": 4,
        "head_dim": 12, "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 10,
        "decoder_sparse_step": 2, "mlp_only_layers": [3], "norm_topk_prob": False, "attention_bias": True,
    }),
    "qwen3-moe-window": ("Qwen3MoeForCausalLM", {
        **LLAMA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 14, "norm_topk_prob": True,
        "use_sliding_window": True, "sliding_window": 5, "tie_word_embeddings": True,
    }),
    "smollm3": ("SmolLM3ForCausalLM", {
        **LLAMA, "no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 5, "mlp_bias": True,
    }),
    "smollm3-untied": ("SmolLM3ForCausalLM", {
        **LLAMA, "tie_word_embeddings": False, "attention_bias": True, "no_rope_layers": [0, 1, 1],
        "layer_types": ["full_attention", "sliding_attention", "full_attention"], "use_sliding_window": True,
        "sliding_window": 7,
    }),
    "granite": ("GraniteForCausalLM", {
        **LLAMA, "embedding_multiplier": 3.0, "residual_multiplier": 0.22, "attention_multiplier": 0.3,
        "logits_scaling": 6.0, "attention_bias": True, "tie_word_embeddings": False,
    }),
    "granite-tied": ("GraniteForCausalLM", {
        **LLAMA, "embedding_multiplier": 0.5, "logits_scaling": 49, "mlp_bias": True, "attention_multiplier": 0.125,
        "tie_word_embeddings": True,
    }),
    "phi3": ("Phi3ForCausalLM", {**LLAMA, "sliding_window": 5, "tie_word_embeddings": True}),
    "phi3-long": ("Phi3ForCausalLM", {
        **LLAMA, "partial_rotary_factor": 0.5, "original_max_position_embeddings": 64,
        "rope_parameters": {"rope_type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 9.0]},
    }),
    "gemma2": ("Gemma2ForCausalLM", {
        **LLAMA, "head_dim": 12, "sliding_window": 5, "query_pre_attn_scalar": 20, "final_logit_softcapping": 3.0,
        "attn_logit_softcapping": 2.0,
    }),
    "gemma2-uncapped": ("Gemma2ForCausalLM", {
        **LLAMA, "head_dim": 6, "sliding_window": 7, "final_logit_softcapping": None, "attention_bias": True,
        "attn_logit_softcapping": None, "tie_word_embeddings": False, "query_pre_attn_scalar": 7,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "hidden_activation": "silu",
    }),
    "gemma3": ("Gemma3ForCausalLM", {
        **LLAMA, "head_dim": 12, "sliding_window": 5, "query_pre_attn_scalar": 10,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 900.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}},
    }, "Gemma3TextConfig"),
    "gemma3-capped": ("Gemma3ForCausalLM", {
        **LLAMA, "head_dim": 8, "sliding_window": 7, "final_logit_softcapping": 4.0, "tie_word_embeddings": False,
        "attention_bias": True,
    }, "Gemma3TextConfig"),
    "olmo2": ("Olmo2ForCausalLM", {**LLAMA, "head_dim": 20}),
    "olmo2-tied": ("Olmo2ForCausalLM", {**LLAMA, "tie_word_embeddings": True, "attention_bias": True, "head_dim": 20}),
    "olmo3": ("Olmo3ForCausalLM", {
        **LLAMA, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 900.0,
            "original_max_position_embeddings": 32},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}},
    }),
    "starcoder2": ("Starcoder2ForCausalLM", {**LLAMA, "sliding_window": 5, "tie_word_embeddings": False}),
    "starcoder2-no-bias": ("Starcoder2ForCausalLM", {
        **LLAMA, "use_bias": False, "tie_word_embeddings": True, "hidden_act": "gelu", "intermediate_size": 90,
    }),
    "gpt-neox": ("GPTNeoXForCausalLM", {
        **NEOX, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 100.0},
    }),
    "gpt-neox-in-turn": ("GPTNeoXForCausalLM", {
        **NEOX, "use_parallel_residual": False, "attention_bias": False, "tie_word_embeddings": True,
    }),
    "gpt-oss": ("GptOssForCausalLM", {
        **LLAMA, "head_dim": 12, "sliding_window": 5, "num_local_experts": 5, "num_experts_per_tok": 3,
        "swiglu_limit": 0.3, "swiglu_alpha": 1.3, "attention_bias": True,
        "rope_parameters": {"rope_type": "yarn", "factor": 8.0, "beta_fast": 4.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 16, "rope_theta": 300.0},
    }),
    "gpt-oss-even": ("GptOssForCausalLM", {
        **LLAMA, "head_dim": 8, "sliding_window": 7, "num_local_experts": 3, "num_experts_per_tok": 1,
        "attention_bias": False, "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default"},
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    }),
    "deepseek-v2": ("DeepseekV2ForCausalLM", {
        **DEEPSEEK, "q_lora_rank": None, "topk_method": "group_limited_greedy", "routed_scaling_factor": 1.7,
        "n_shared_experts": 2,
    }),
    "deepseek-v2-greedy": ("DeepseekV2ForCausalLM", {
        **DEEPSEEK, "first_k_dense_replace": 0, "tie_word_embeddings": True, "rope_parameters": {**YARN, "mscale": 0.7},
    }),
    "deepseek-v3": ("DeepseekV3ForCausalLM", {**DEEPSEEK, "rope_parameters": {**YARN, "mscale": 1.0}}),
    "deepseek-v3-ungrouped": ("DeepseekV3ForCausalLM", {
        **DEEPSEEK, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "n_shared_experts": 3,
        "tie_word_embeddings": False, "rope_parameters": YARN,
    }),
    "qwen3-next": ("Qwen3NextForCausalLM", {
        **LLAMA, **DELTA, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "mlp_only_layers": [1],
    }),
    "qwen3-next-alternating": ("Qwen3NextForCausalLM", {
        **LLAMA, **DELTA, "full_attention_interval": 2, "attention_bias": True, "tie_word_embeddings": True,
        "norm_topk_prob": False, "linear_num_key_heads": 6, "num_hidden_layers": 4,
    }),
    "mamba2": ("Mamba2ForCausalLM", MAMBA2),
    "mamba2-plain": ("Mamba2ForCausalLM", {
        **MAMBA2, "n_groups": 1, "use_conv_bias": False, "tie_word_embeddings": True, "conv_kernel": 3, "expand": 3,
        "head_dim": 12,
    }),
    "gptj": ("GPTJForCausalLM", {**GPT2, "n_embd": 40, "rotary_dim": 6, "n_inner": 50}),
})  # fmt: skip
VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 16,
    "patch_size": 4, "num_labels": 5,
}  # fmt: skip
DINOV2 = {key: value for key, value in VISION.items() if key != "intermediate_size"} | {"use_mask_token": False}
TOWER = {key: value for key, value in VISION.items() if key != "num_labels"}
IMAGES = with_configs({
    "vit": ("ViTForImageClassification", VISION),
    "vit-no-bias": ("ViTForImageClassification", {**VISION, "qkv_bias": False, "num_channels": 1}),
    "deit": ("DeiTForImageClassification", VISION),
    "dinov2": ("Dinov2ForImageClassification", {**DINOV2, "hidden_act": "relu"}),
    "dinov2-gated": ("Dinov2ForImageClassification", {
        **DINOV2, "use_swiglu_ffn": True, "qkv_bias": False, "num_channels": 1, "mlp_ratio": 2,
    }),
    "siglip": ("SiglipForImageClassification", {"vision_config": {**TOWER, "vision_use_head": False}, "num_labels": 5}),
    "clip": ("CLIPForImageClassification", {"vision_config": TOWER, "num_labels": 5}),
})  # fmt: skip


WHISPER = {
    "vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 44, "decoder_ffn_dim": 44, "num_mel_bins": 10,
    "max_source_positions": 50, "max_target_positions": 40, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1,
    "decoder_start_token_id": 2, "begin_suppress_tokens": None,
}  # fmt: skip
SPEECH = with_configs({
    "whisper": ("WhisperForConditionalGeneration", WHISPER),
    "whisper-wide": ("WhisperForConditionalGeneration", {
        **WHISPER, "max_source_positions": 25, "num_mel_bins": 128, "activation_function": "relu", "decoder_layers": 1,
    }),
})  # fmt: skip


CLIP_TEXT = {
    "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 21, "projection_dim": 10, "eos_token_id": 40, "bos_token_id": 39, "pad_token_id": 40,
}  # fmt: skip
TEXT_TOWERS = {
    "clip-text": ("CLIPTextModelWithProjection", "CLIPTextConfig", CLIP_TEXT),
    "clip-text-gelu": (
        "CLIPTextModelWithProjection",
        "CLIPTextConfig",
        {**CLIP_TEXT, "hidden_act": "gelu", "eos_token_id": 2, "layer_norm_eps": 0.1},
    ),
    "clip-text-headless": ("CLIPTextModel", "CLIPTextConfig", CLIP_TEXT),
}


T5 = {
    "vocab_size": WORDS, "d_model": 32, "d_kv": 6, "d_ff": 44, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, "eos_token_id": None,
    "pad_token_id": 0, "decoder_start_token_id": 0,
}  # fmt: skip
BART = {
    "vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 44, "decoder_ffn_dim": 44, "max_position_embeddings": 80,
    "eos_token_id": None, "bos_token_id": None, "pad_token_id": 1, "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}  # fmt: skip
PAIRS = with_configs({
    "t5": ("T5ForConditionalGeneration", T5),
    "t5-1.1": ("T5ForConditionalGeneration", {
        **T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "initializer_factor": 0.3,
    }),
    "mt5": ("MT5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-gelu", "initializer_factor": 0.3}),
    "bart": ("BartForConditionalGeneration", BART),
    "bart-scaled": ("BartForConditionalGeneration", {**BART, "scale_embedding": True, "activation_function": "relu"}),
    "mbart": ("MBartForConditionalGeneration", {**BART, "scale_embedding": True}),
    "m2m100": ("M2M100ForConditionalGeneration", {
        **BART, "pad_token_id": 0, "decoder_layers": 2, "encoder_layers": 3, "max_position_embeddings": 70,
    }),
    "marian": ("MarianMTModel", {**BART, "scale_embedding": True, "activation_function": "swish"}),
})  # fmt: skip

BERT = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 44,
    "max_position_embeddings": 48,
}  # fmt: skip
ROBERTA = {**BERT, "max_position_embeddings": 52, "type_vocab_size": 1, "pad_token_id": 1}
PUBLISHED_ROBERTA = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
DISTILBERT = {
    "vocab_size": WORDS, "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 44, "max_position_embeddings": 39,
}  # fmt: skip
MODERNBERT = {
    **BERT, "local_attention": 9, "pad_token_id": 2, "bos_token_id": 0, "eos_token_id": 1, "cls_token_id": 0,
    "sep_token_id": 1,
}  # fmt: skip
EUROBERT = {
    **BERT, "num_key_value_heads": 2, "pad_token_id": 2, "bos_token_id": 0, "eos_token_id": 1, "mask_token_id": 3,
}  # fmt: skip
DEBERTA = {
    **BERT, "relative_attention": True, "pos_att_type": "p2c|c2p", "position_buckets": 6, "max_relative_positions": 16,
    "norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False,
}  # fmt: skip
DEBERTA_PLAIN = {
    **BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": 9,
    "type_vocab_size": 2,
}  # fmt: skip
LABELS = {"num_labels": 5}
ENCODERS = with_configs({
    "bert": ("BertForMaskedLM", BERT),
    "bert-relu": ("BertForMaskedLM", {**BERT, "hidden_act": "relu", "type_vocab_size": 3}),
    "bert-pairs": ("BertForPreTraining", BERT),
    "bert-texts": ("BertForSequenceClassification", {**BERT, **LABELS}),
    "bert-tokens": ("BertForTokenClassification", {**BERT, **LABELS}),
    "roberta": ("RobertaForMaskedLM", ROBERTA),
    "roberta-relu": ("RobertaForMaskedLM", {**ROBERTA, "hidden_act": "relu"}),
    "roberta-texts": ("RobertaForSequenceClassification", {**ROBERTA, **LABELS}),
    "roberta-tokens": ("RobertaForTokenClassification", {**ROBERTA, **LABELS}),
    "xlm-roberta": ("XLMRobertaForMaskedLM", {**ROBERTA, "pad_token_id": 3}),
    "xlm-roberta-texts": ("XLMRobertaForSequenceClassification", {**ROBERTA, **LABELS}),
    "xlm-roberta-tokens": ("XLMRobertaForTokenClassification", {**ROBERTA, **LABELS}),
    "camembert": ("CamembertForMaskedLM", {**ROBERTA, "hidden_act": "relu", "type_vocab_size": 3}),
    "camembert-texts": ("CamembertForSequenceClassification", {**ROBERTA, **LABELS}),
    "camembert-tokens": ("CamembertForTokenClassification", {**ROBERTA, **LABELS}),
    "distilbert": ("DistilBertForMaskedLM", {**DISTILBERT, "activation": "relu"}),
    "distilbert-sines": ("DistilBertForMaskedLM", {**DISTILBERT, "sinusoidal_pos_embds": True}),
    "distilbert-texts": ("DistilBertForSequenceClassification", {**DISTILBERT, **LABELS}),
    "distilbert-tokens": ("DistilBertForTokenClassification", {**DISTILBERT, **LABELS}),
    "modernbert": ("ModernBertForMaskedLM", MODERNBERT),
    "modernbert-biases": ("ModernBertForMaskedLM", {
        **MODERNBERT, "norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True,
        "decoder_bias": False, "tie_word_embeddings": False, "hidden_activation": "silu",
        "classifier_activation": "relu", "layer_types": ["sliding_attention"] * 3,
    }),
    "modernbert-texts": ("ModernBertForSequenceClassification", {**MODERNBERT, **LABELS, "classifier_pooling": "mean"}),
    "modernbert-first": ("ModernBertForSequenceClassification", {**MODERNBERT, **LABELS}),
    "modernbert-tokens": ("ModernBertForTokenClassification", {**MODERNBERT, **LABELS}),
    "eurobert": ("EuroBertForMaskedLM", EUROBERT),
    "eurobert-biases": ("EuroBertForMaskedLM", {
        **EUROBERT, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu",
        "head_dim": 12, "rope_parameters": {"rope_type": "default", "rope_theta": 250.0},
    }),
    "eurobert-texts": ("EuroBertForSequenceClassification", {**EUROBERT, **LABELS}),
    "eurobert-mean": ("EuroBertForSequenceClassification", {**EUROBERT, **LABELS, "classifier_pooling": "mean"}),
    "eurobert-tokens": ("EuroBertForTokenClassification", {**EUROBERT, **LABELS}),
    "deberta-3": ("DebertaV2ForMaskedLM", DEBERTA),
    "deberta-new-head": ("DebertaV2ForMaskedLM", {**DEBERTA, "legacy": False}),
    "deberta-own-matrices": ("DebertaV2ForMaskedLM", {
        **DEBERTA, "share_att_key": False, "norm_rel_ebd": "none", "position_biased_input": True,
    }),
    "deberta-no-buckets": ("DebertaV2ForMaskedLM", {**DEBERTA_PLAIN, "hidden_act": "gelu_new"}),
    "deberta-c2p": ("DebertaV2ForMaskedLM", {**DEBERTA, "pos_att_type": ["c2p"]}),
    "deberta-p2c": ("DebertaV2ForMaskedLM", {**DEBERTA, "pos_att_type": ["p2c"], "share_att_key": False}),
    "deberta-texts": ("DebertaV2ForSequenceClassification", {**DEBERTA, **LABELS}),
    "deberta-tokens": ("DebertaV2ForTokenClassification", {**DEBERTA_PLAIN, **LABELS}),
})  # fmt: skip


@contextlib.contextmanager
def wide(monkeypatch, dtype):
    """In float64 everything is float64: transformers computes norms, angles and softmax in float32 whatever the dtype.

    Within this, what it calls float32 is float64, so that both sides round alike and 1e-10 can be asked for.
    """
    if dtype == torch.float32:
        yield
        return
    float32 = torch.float32
    with monkeypatch.context() as patched:
        patched.setattr(torch, "float32", torch.float64)
        patched.setattr(torch, "float", torch.float64)
        patched.setattr(torch.Tensor, "float", torch.Tensor.double)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:  # float32 means float64 until the context has ended
            torch.set_default_dtype(float32)


# what they have, another case has, too: their options, their heads and how their tensors are named
SECOND_LOOKS = {
    "llama", "qwen2", "qwen3", "mt5", "bart-scaled", "bert", "bert-relu", "bert-tokens", "roberta-relu",
    "roberta-tokens", "deberta-c2p", "deberta-tokens", "qwen3-moe-window", "smollm3-untied", "granite-tied", "phi3",
    "gemma2-uncapped", "gemma3-capped", "olmo2-tied", "starcoder2-no-bias", "gpt-neox-in-turn", "gpt-oss-even",
    "qwen3-next-alternating", "mamba2-plain", "deepseek-v2-greedy", "deepseek-v3-ungrouped",
    "xlm-roberta-texts", "xlm-roberta-tokens", "camembert-texts",
    "camembert-tokens",
}  # fmt: skip


def in_both_types(cases):
    """Parametrise ``case`` and ``dtype``: the first in float32, most in float64, and in a campaign all in both."""
    parameters = []
    for dtype in (torch.float64, torch.float32):
        by_default = cases.keys() - SECOND_LOOKS if dtype == torch.float64 else {next(iter(cases))}
        for name, case in cases.items():
            marks = [] if name in by_default else [pytest.mark.campaign]
            parameters.append(pytest.param(case, dtype, id=f"{name}-{str(dtype).removeprefix('torch.')}", marks=marks))
    return pytest.mark.parametrize(("case", "dtype"), parameters)


def some_by_default(cases, names):
    """Parametrise ``case``: those with these names, and in a campaign all."""
    marks = {name: [] if name in names else [pytest.mark.campaign] for name in cases}
    parameters = [pytest.param(case, id=name, marks=marks[name]) for name, case in cases.items()]
    return pytest.mark.parametrize("case", parameters)


def build_peer(case, dtype=torch.float32):
    """A random model with every parameter away from zero and one, where they would hide."""
    name, config, options = case
    torch.manual_seed(0)
    model = without_chance(getattr(transformers, name)(getattr(transformers, config)(**options)).to(dtype).eval())
    with torch.no_grad():
        if options.get("tie_word_embeddings") is False and "T5" in name:  # it cannot be told to, but weights may be so
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
        for parameter in model.parameters():
            if parameter.requires_grad:  # Marian's waves are constants
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        for key, buffer in model.named_buffers():
            if key.endswith(("final_logits_bias", "e_score_correction_bias")):
                buffer.normal_()
    return model


def reloaded(case, folder, dtype=torch.float32):
    """What transformers reads from a folder, with a look at what it could not place."""
    model, loading_info = getattr(transformers, case[0]).from_pretrained(folder, dtype=dtype, output_loading_info=True)
    assert not {key: keys for key, keys in loading_info.items() if keys}
    return without_chance(model.eval())


def without_chance(model):
    """Its fused kernel for experts knows no float64 and no odd widths; Marian's waves are made in float32."""
    if any(word in type(model).__name__ for word in ("Mixtral", "Moe", "GptOss", "Deepseek", "Next")):
        model.set_experts_implementation("eager")
    if "Marian" in type(model).__name__:
        for side in (model.model.encoder, model.model.decoder):
            count, dim = side.embed_positions.weight.shape
            rate = 10000.0 ** -(torch.arange(0, dim, 2, dtype=model.dtype) / dim)
            turn = torch.arange(count, dtype=model.dtype)[:, None] * rate
            side.embed_positions.weight.data = torch.cat([turn.sin(), turn.cos()], -1)
    return model
