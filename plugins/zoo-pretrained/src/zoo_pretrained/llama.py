"""LLaMA (Touvron et al., 2023) and its relatives: Mistral, Qwen 2 and 3, and the mixture of experts Mixtral."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from zoo_pretrained.config_keys import flag, real, size
from zoo_pretrained.decoder import FULL, SLIDING, Decoder, MixtureDecoder, relative_keys
from zoo_pretrained.family import Config, Options, name_of, part, unsupported_value
from zoo_pretrained.rope import LIST, rope_object


class Llama(Decoder):
    """LLaMA (Touvron et al., 2023), versions 1 to 3."""

    name = "llama"
    types = ("llama",)
    architectures = ("LlamaForCausalLM",)
    keys = relative_keys({"attention_bias": flag(False), "mlp_bias": flag(False), "head_dim": size(None)})
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


NO_PADDING = {"pad_token_id": None}  # of a small vocabulary, which transformers' number is not in
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


class Qwen3MoE(MixtureDecoder, Qwen3):
    """Qwen 3 with a mixture of experts in some layers (Yang et al., 2025)."""

    name = "qwen3_moe"
    types = ("qwen3_moe",)
    architectures = ("Qwen3MoeForCausalLM",)
    expert_width = "moe_intermediate_size"
    example: ClassVar = {
        **Llama.example, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 10,
        "mlp_only_layers": [0],
    }  # fmt: skip
    inside: ClassVar = {
        **Qwen3.inside,
        "ffn.part.ffn.router": "mlp.gate",
        "ffn.part.ffn.experts.{e}.up": ("mlp.experts.{e}.gate_proj", "mlp.experts.{e}.up_proj"),
        "ffn.part.ffn.experts.{e}.down": "mlp.experts.{e}.down_proj",
    }  # fmt: skip
    keys = relative_keys(
        {
            "vocab_size": size(151936), "hidden_size": size(2048), "intermediate_size": size(6144),
            "num_hidden_layers": size(24), "num_key_value_heads": size(4, optional=True), "head_dim": size(None),
            "max_position_embeddings": size(32768), "attention_bias": flag(False), "use_sliding_window": flag(False),
            "sliding_window": size(4096, optional=True), "decoder_sparse_step": size(1), "mlp_only_layers": LIST,
            "moe_intermediate_size": size(768), "num_experts": size(128), "num_experts_per_tok": size(8),
            "norm_topk_prob": flag(False), "router_aux_loss_coef": real(0.001),
        },
        {}, (*ROUTER, "max_window_layers"), {"num_local_experts": "num_experts"},
    )  # fmt: skip

    def default_kinds(self, config: Config) -> list[str]:
        """The window is that of all layers."""
        return [SLIDING if self.window(config) else FULL] * config["num_hidden_layers"]

    def read_feed(self, config: Config, number: int) -> tuple[Options, int]:
        """A mixture, or the plain feed-forward of those layers that have none."""
        if number in (config["mlp_only_layers"] or ()) or (number + 1) % config["decoder_sparse_step"]:
            return Decoder.read_feed(self, config, number)
        mixture, hidden = super().read_feed(config, number)
        mixture["init_args"]["normalize"] = config["norm_topk_prob"]
        return mixture, hidden

    def write_feed(self, options: Options, layers: Sequence[Options]) -> dict[str, Any]:
        """The keys of the mixture, and which layers have none."""
        config = super().write_feed(options, layers)
        without = [number for number, layer in enumerate(layers) if "experts" not in layer["ffn"]["init_args"]]
        for layer in layers:
            if "experts" in layer["ffn"]["init_args"]:
                config["norm_topk_prob"] = layer["ffn"]["init_args"]["normalize"]
            else:
                config |= self.write_gated(layer["ffn"], layer["hidden"] or 4 * options["dim"])
        return {**config, "mlp_only_layers": without}


class SmolLM3(Qwen2):
    """SmolLM 3 (Bakouch et al., 2025): layers without positions among those with RoPE."""

    name = "smollm3"
    types = ("smollm3",)
    architectures = ("SmolLM3ForCausalLM",)
    attention = part("attention.MultiHead")
    example: ClassVar = {**Llama.example, "no_rope_layer_interval": 2}
    keys = relative_keys(
        {
            "vocab_size": size(128256), "hidden_size": size(2048), "num_hidden_layers": size(36),
            "num_attention_heads": size(16), "num_key_value_heads": size(4, optional=True), "head_dim": size(None),
            "max_position_embeddings": size(32768), "rope_theta": real(2e6), "use_sliding_window": flag(False),
            "sliding_window": size(None), "no_rope_layers": LIST, "no_rope_layer_interval": size(4),
            "layer_types": LIST, "attention_bias": flag(False), "mlp_bias": flag(False),
            "tie_word_embeddings": flag(True),
        },
        {}, ("max_window_layers",),
    )  # fmt: skip

    def turns(self, config: Config) -> list[bool]:
        """Whether each layer has RoPE. Raises UsageError where the list of layers is too short or holds other words."""
        depth, every = config["num_hidden_layers"], config["no_rope_layer_interval"]
        flags = config["no_rope_layers"] or [int((number + 1) % every != 0) for number in range(depth)]
        if len(flags) < depth or not all(one in (0, 1) for one in flags):
            right = f"1 (RoPE) or 0 (none) for each of {depth} layers"
            raise unsupported_value(config, "no_rope_layers", self.name, right)
        return [bool(one) for one in flags[:depth]]

    def default_kinds(self, config: Config) -> list[str]:
        """Layers without RoPE have the window, where it is used."""
        return [FULL if turns or not self.window(config) else SLIDING for turns in self.turns(config)]

    def read_position(self, config: Config, number: int) -> Options:
        """RoPE, or none."""
        return super().read_position(config, number) if self.turns(config)[number] else part("position.NoPosition")

    def write_positions(self, layers: Sequence[Options]) -> dict[str, Any]:
        """The keys of RoPE, and which layers have it."""
        turning = [layer for layer in layers if name_of(layer["position"]) != "NoPosition"]
        flags = [int(name_of(layer["position"]) != "NoPosition") for layer in layers]
        return {**(super().write_positions(turning) if turning else {}), "no_rope_layers": flags, **NO_PADDING}


class Granite(Llama):
    """Granite 3 (IBM, 2024): LLaMA with factors on embeddings, residuals, scores and logits."""

    name = "granite"
    types = ("granite",)
    architectures = ("GraniteForCausalLM",)
    places: ClassVar = {
        **Llama.places, "embedding_multiplier": "embedding_scale", "residual_multiplier": "block.scale",
        "attention_multiplier": "attention.scale",
    }  # fmt: skip
    keys = relative_keys({
        "attention_bias": flag(False), "mlp_bias": flag(False), "head_dim": size(None),
        "embedding_multiplier": real(1.0), "residual_multiplier": real(1.0), "attention_multiplier": real(1.0),
        "logits_scaling": real(1.0),
    })  # fmt: skip

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a complete configuration. Raises UsageError for unsupported values."""
        for key in ("logits_scaling", "attention_multiplier"):
            if not config[key]:
                raise unsupported_value(config, key, self.name, "a number above 0")
        return {**super().options(config), "logit_scale": 1 / config["logits_scaling"]}

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        scale = options["logit_scale"]
        short = round(1 / scale, 9)  # 1 / (1 / x) is not always x
        return {**super().config(options), "logits_scaling": short if short and 1 / short == scale else 1 / scale}


class Phi3(Llama):
    """Phi-3 and Phi-4 (Abdin et al., 2024): joint matrices, longrope, and a share of each head that turns."""

    name = "phi3"
    types = ("phi3",)
    architectures = ("Phi3ForCausalLM",)
    partial_rotary = True
    example: ClassVar = {key: value for key, value in Llama.example.items() if key != "head_dim"}
    places: ClassVar = {**Llama.places, "resid_pdrop": "dropout"}
    inside: ClassVar = {**Llama.inside, "attend.part.qkv": "self_attn.qkv_proj", "ffn.part.up": "mlp.gate_up_proj"}
    keys = relative_keys(
        {
            "vocab_size": size(32064), "hidden_size": size(3072), "intermediate_size": size(8192),
            "max_position_embeddings": size(4096), "original_max_position_embeddings": size(4096),
            "rms_norm_eps": real(1e-5), "partial_rotary_factor": real(None), "sliding_window": size(None),
            "resid_pdrop": real(0.0),
        },
        {"attention_bias": [False], "lm_head_bias": [False]}, ("embd_pdrop", "full_attn_mod", "interpolate_factor"),
    )  # fmt: skip

    def read_position(self, config: Config, number: int) -> Options:
        """RoPE, plain or longrope; "su" and "yarn" are older names of longrope here."""
        source, described = rope_object(config)
        kind = described.get("rope_type", described.get("type", "default"))
        if kind not in ("default", "longrope", "su", "yarn"):
            raise unsupported_value(config, source, self.name, "rope_type='longrope'")
        renamed = {"rope_type": kind if kind == "default" else "longrope"}
        return super().read_position({**config, source: {**described, **renamed}}, number)

    def write_positions(self, layers: Sequence[Options]) -> dict[str, Any]:
        """The keys of RoPE; the length of training stands beside them."""
        config = super().write_positions(layers)
        length = config.get("rope_scaling", {}).get("original_max_position_embeddings")
        return {**config, **NO_PADDING, **({"original_max_position_embeddings": length} if length else {})}
