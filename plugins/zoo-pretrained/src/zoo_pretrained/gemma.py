"""Gemma 2 and 3 (Gemma Team, 2024, 2025)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

from zoo_pretrained.config_keys import Key, flag, real, size, word
from zoo_pretrained.decoder import Decoder, KindsOfRoPE, relative_keys
from zoo_pretrained.family import Config, Options, budget, inner, part, unsupported_value
from zoo_pretrained.rope import LIST

KEYS = {
    "vocab_size": size(256000), "hidden_size": size(2304), "intermediate_size": size(9216),
    "num_hidden_layers": size(26), "num_attention_heads": size(8), "num_key_value_heads": size(4),
    "head_dim": size(256), "hidden_activation": word("gelu_pytorch_tanh"), "max_position_embeddings": size(8192),
    "tie_word_embeddings": flag(True), "attention_bias": flag(False), "query_pre_attn_scalar": real(256),
    "sliding_window": size(4096, optional=True), "layer_types": LIST,
    "final_logit_softcapping": Key(30.0, float, 0.0, True),
}  # fmt: skip


class Gemma2(Decoder):
    """Gemma 2: norms on both sides of each part, capped scores and logits, a window in every second layer."""

    name = "gemma2"
    types = ("gemma2",)
    architectures = ("Gemma2ForCausalLM",)
    keys = relative_keys(
        {**KEYS, "attn_logit_softcapping": Key(50.0, float, 0.0, True)},
        {"use_bidirectional_attention": [False, None]}, ("hidden_act", "cache_implementation", "sliding_window_size"),
        without=("hidden_act",),
    )  # fmt: skip
    norm = part("norm.RMSNorm", offset=1.0)
    block = part("block.Sandwich")
    constant_options: ClassVar = {"scale_embedding": True}
    full_every = 2
    places: ClassVar = {**Decoder.places, "final_logit_softcapping": "logit_cap"}
    inside: ClassVar = {
        **Decoder.inside, "attend.behind": "post_attention_layernorm", "ffn.norm": "pre_feedforward_layernorm",
        "ffn.behind": "post_feedforward_layernorm",
    }  # fmt: skip
    example: ClassVar = {
        "vocab_size": 41, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 12, "max_position_embeddings": 16, "sliding_window": 5,
        "query_pre_attn_scalar": 20,
    }  # fmt: skip

    def read_attention(self, config: Config) -> Options:
        """Attention with a scale of its own, and with a cap on scores where there is one.

        Raises UsageError for numbers that are not above 0.
        """
        for key in ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"):
            if config.get(key) == 0:
                raise unsupported_value(config, key, self.name, "a number above 0")
        attention = copy.deepcopy(self.attention)
        attention["init_args"]["scale"] = config["query_pre_attn_scalar"] ** -0.5
        if config.get("attn_logit_softcapping") is not None:
            attention["class_path"] = "zoo_frontier.attention.Softcap"
            attention["init_args"]["cap"] = config["attn_logit_softcapping"]
        return attention

    def read_feed(self, config: Config, number: int) -> tuple[Options, int]:
        """The gated feed-forward."""
        return self.gated(config, "hidden_activation"), budget(config["intermediate_size"])

    def write_feed(self, options: Options, layers: Sequence[Options]) -> dict[str, Any]:
        """The keys of feed-forward and attention."""
        attention, feed = inner(options["attention"]), layers[-1]
        hidden = feed["hidden"] or 4 * options["dim"]
        return {
            **self.write_gated(feed["ffn"], hidden, "hidden_activation"),
            "query_pre_attn_scalar": round(attention["scale"] ** -2),
            "attn_logit_softcapping": attention.get("cap"),
        }


class Gemma3(KindsOfRoPE, Gemma2):
    """Gemma 3, the language model: normalised queries and keys, and layers with a window that turn faster."""

    name = "gemma3_text"
    types = ("gemma3_text",)
    architectures = ("Gemma3ForCausalLM",)
    keys = relative_keys(
        {
            **KEYS, "vocab_size": size(262208), "max_position_embeddings": size(131072), "rope_theta": real(1e6),
            "rope_local_base_freq": real(1e4), "sliding_window_pattern": size(6),
            "final_logit_softcapping": real(None),
        },
        # transformers reads, and leaves out, a cap on scores
        {"use_bidirectional_attention": [False, None], "attn_logit_softcapping": [None]},
        ("hidden_act", "cache_implementation", "_sliding_window_pattern"), without=("hidden_act",),
    )  # fmt: skip
    qk_norm = True

    def default_kinds(self, config: Config) -> list[str]:
        """Every sixth layer sees all, or as sliding_window_pattern says."""
        self.full_every = config["sliding_window_pattern"]
        return super().default_kinds(config)
