"""The recipes of this package are the published configurations, at the size of transformers' models."""

import peers
import torch
from zoo_pretrained import lookup

from zoo.config import fit_options, run_config
from zoo.inference.rebuild_task import complete_options, rebuild_task

# by the recipe: the class of transformers, and what config.json says
PUBLISHED = {
    "deepseek-v2-lite": ("DeepseekV2ForCausalLM", {
        "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "num_hidden_layers": 27,
        "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None, "moe_intermediate_size": 1408,
        "num_experts_per_tok": 6, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
        "max_position_embeddings": 163840, "rope_scaling": {
            "rope_type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707,
            "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096,
        },
    }),
    "deepseek-v3": ("DeepseekV3ForCausalLM", {
        "model_type": "deepseek_v3", "max_position_embeddings": 163840, "rope_scaling": {
            "rope_type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
        },
    }),
    "gemma2-2b": ("Gemma2ForCausalLM", {"model_type": "gemma2"}),
    "gemma3-1b": ("Gemma3ForCausalLM", {
        "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912,
        "num_attention_heads": 4, "num_key_value_heads": 1, "sliding_window": 512, "max_position_embeddings": 32768,
    }),
    "gpt-oss-20b": ("GptOssForCausalLM", {
        "model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32,
    }),
    "gptj-6b": ("GPTJForCausalLM", {"model_type": "gptj"}),
    "granite3-2b": ("GraniteForCausalLM", {
        "model_type": "granite", "vocab_size": 49159, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True,
        "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.015625,
        "logits_scaling": 8.0, "rope_theta": 1e7, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
    }),
    "mamba2-7b": ("Mamba2ForCausalLM", {"model_type": "mamba2"}),
    "olmo2-7b": ("Olmo2ForCausalLM", {
        "model_type": "olmo2", "vocab_size": 100352, "rope_theta": 5e5, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
    }),
    "olmo3-7b": ("Olmo3ForCausalLM", {
        "model_type": "olmo3", "vocab_size": 100278, "rms_norm_eps": 1e-6, "max_position_embeddings": 65536,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192,
            "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0,
        },
    }),
    "phi3-mini": ("Phi3ForCausalLM", {"model_type": "phi3", "sliding_window": 2047}),
    "pythia-1.4b": ("GPTNeoXForCausalLM", {
        "model_type": "gpt_neox", "vocab_size": 50304, "hidden_size": 2048, "num_hidden_layers": 24,
        "num_attention_heads": 16, "intermediate_size": 8192,
    }),
    "qwen3-30b-a3b": ("Qwen3MoeForCausalLM", {
        "model_type": "qwen3_moe", "num_hidden_layers": 48, "head_dim": 128, "max_position_embeddings": 40960,
        "rope_theta": 1e6, "norm_topk_prob": True,
    }),
    "qwen3-next-80b-a3b": ("Qwen3NextForCausalLM", {
        "model_type": "qwen3_next", "intermediate_size": 5120, "max_position_embeddings": 262144, "rope_theta": 1e7,
    }),
    "smollm3-3b": ("SmolLM3ForCausalLM", {
        "model_type": "smollm3", "rope_theta": 5e6, "max_position_embeddings": 65536,
    }),
    "starcoder2-3b": ("Starcoder2ForCausalLM", {
        "model_type": "starcoder2", "sliding_window": 4096, "max_position_embeddings": 16384,
        "rope_theta": 999999.4420358813,
    }),
}  # fmt: skip


LARGE = {"deepseek-v2-lite", "deepseek-v3", "qwen3-next-80b-a3b"}  # of thousands of experts, which take long to build


@peers.some_by_default({name: name for name in sorted(PUBLISHED)}, PUBLISHED.keys() - LARGE)
def test_a_recipe_has_the_options_and_the_size_of_the_published_model(case):
    cls, config = PUBLISHED[case]
    family = lookup.family_of(config, "config.json")
    options = family.options(family.complete(config, "config.json"))
    right = complete_options({"class_path": family.task, "init_args": options})
    parsed = fit_options.parse("fit", [case])
    model = complete_options(run_config.make_plan(parsed, run_config.read_draft(parsed)).config["model"])
    differing = {key for key in right["init_args"] if model["init_args"][key] != right["init_args"][key]}
    assert differing <= {"lr", "optimizer", "schedule"}
    kind = peers.transformers.CONFIG_MAPPING[config["model_type"]]
    with torch.device("meta"):
        theirs = getattr(peers.transformers, cls)(kind(**config))
        ours = rebuild_task({"model": model}, "config.json").net
    parameters = dict(theirs.named_parameters(remove_duplicate=False))
    count = sum(parameter.numel() for parameter in theirs.parameters())  # and numbers that are no parameters there
    count += sum(tensor.numel() for key, tensor in theirs.state_dict().items() if key not in parameters)
    assert sum(parameter.numel() for parameter in ours.parameters()) == count
