"""LLaMA (Touvron et al., 2023) and its relatives: Mistral, Qwen 2 and 3, and the mixture of experts Mixtral."""

from __future__ import annotations

from typing import Any, ClassVar

from zoo_pretrained.config_keys import flag, real, size
from zoo_pretrained.decoder import FULL, SLIDING, Decoder, MixtureDecoder, relative_keys
from zoo_pretrained.family import Config, Options, part
from zoo_pretrained.rope import LIST


class Llama(Decoder):
    """LLaMA (Touvron et al., 2023), versions 1 to 3."""

    name = "llama"
    types = ("llama",)
    architectures = ("LlamaForCausalLM",)
    keys = relative_keys({"attention_bias": flag(False), "head_dim": size(None)})
    example: ClassVar = {
        "vocab_size": 41, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 16,
    }  # fmt: skip


class Mistral(Llama):
    """Mistral (Jiang et al., 2023)."""

    name = "mistral"
    types = ("mistral",)
    architectures = ("MistralForCausalLM",)
    keys = relative_keys(
        {
            "head_dim": size(None), "intermediate_size": size(14336), "num_key_value_heads": size(8, optional=True),
            "max_position_embeddings": size(131072), "sliding_window": size(4096, optional=True),
        },
        {"attention_bias": [False]},
    )  # fmt: skip


ROUTER = ("output_router_logits", "router_jitter_noise")
WINDOWS = {
    "use_sliding_window": flag(False), "sliding_window": size(4096, optional=True), "max_window_layers": size(28, 0),
    "layer_types": LIST,
}  # fmt: skip
QWENS = {
    "vocab_size": size(151936), "intermediate_size": size(22016), "max_position_embeddings": size(32768),
    "num_key_value_heads": size(32, optional=True),
}  # fmt: skip


class Qwen2(Llama):
    """Qwen 2 (Yang et al., 2024)."""

    name = "qwen2"
    types = ("qwen2",)
    architectures = ("Qwen2ForCausalLM",)
    keys = relative_keys({"head_dim": size(None), **QWENS, **WINDOWS}, {"attention_bias": [True]})
    attention = part("attention.MultiHead", bias=True, out_bias=False)

    def window(self, config: Config) -> int | None:
        """The window, where it is used."""
        return config["sliding_window"] if config["use_sliding_window"] else None

    def default_kinds(self, config: Config) -> list[str]:
        """The first max_window_layers see all."""
        depth = config["num_hidden_layers"]
        first = min(config["max_window_layers"], depth) if self.window(config) else depth
        return [FULL] * first + [SLIDING] * (depth - first)

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        config = super().config(options)
        return {**config, "use_sliding_window": config["sliding_window"] is not None}


class Qwen3(Qwen2):
    """Qwen 3 (Yang et al., 2025)."""

    name = "qwen3"
    types = ("qwen3",)
    architectures = ("Qwen3ForCausalLM",)
    keys = relative_keys({**QWENS, **WINDOWS, "head_dim": size(128), "attention_bias": flag(False)})
    attention = part("attention.MultiHead")
    qk_norm = True


class Mixtral(MixtureDecoder, Llama):
    """Mixtral, a mixture of experts (Jiang et al., 2024)."""

    name = "mixtral"
    types = ("mixtral",)
    architectures = ("MixtralForCausalLM",)
    experts = "num_local_experts"
    inside: ClassVar = {
        **{name: theirs for name, theirs in Llama.inside.items() if not name.startswith("ffn.part")},
        "ffn.part.ffn.router": "block_sparse_moe.gate",
        "ffn.part.ffn.experts.{e}.up": ("block_sparse_moe.experts.{e}.w1", "block_sparse_moe.experts.{e}.w3"),
        "ffn.part.ffn.experts.{e}.down": "block_sparse_moe.experts.{e}.w2",
    }  # fmt: skip
    keys = relative_keys(
        {
            "head_dim": size(None), "intermediate_size": size(14336), "num_key_value_heads": size(8, optional=True),
            "max_position_embeddings": size(131072), "rms_norm_eps": real(1e-5), "rope_theta": real(1e6),
            "sliding_window": size(None), "num_local_experts": size(8), "num_experts_per_tok": size(2),
            "router_aux_loss_coef": real(0.001),
        },
        {"attention_bias": [False]}, ROUTER, {"num_experts": "num_local_experts"},
    )  # fmt: skip
