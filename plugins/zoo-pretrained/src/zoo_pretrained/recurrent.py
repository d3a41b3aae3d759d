"""Decoders with a state of one size: Qwen 3 Next (Qwen Team, 2025) and Mamba-2 (Dao and Gu, 2024)."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from zoo.errors import UsageError
from zoo_pretrained.config_keys import flag, real, size
from zoo_pretrained.decoder import FULL, Decoder, gather_layers, relative_keys, spread_layers
from zoo_pretrained.family import (
    Config,
    Family,
    Options,
    budget,
    inner,
    name_of,
    part,
    read_places,
    unsupported_value,
    width,
    write_places,
)
from zoo_pretrained.llama import ROUTER, Qwen3MoE
from zoo_pretrained.neox import Permuted
from zoo_pretrained.rope import LIST
from zoo_pretrained.tensor_mapping import MappedTensors, Parted, TensorRule, Transform

LINEAR = "linear_attention"


class Kernel(Transform):
    """The kernel of a convolution of each feature for itself: (features, 1, width), ours (width, features)."""

    def read(self, theirs: list[Tensor]) -> Tensor:
        """(features, 1, width) to (width, features)."""
        return theirs[0].squeeze(1).T.contiguous()

    def write(self, ours: Tensor) -> list[Tensor]:
        """(width, features) to (features, 1, width)."""
        return [ours.T.unsqueeze(1).contiguous()]


class Qwen3Next(Qwen3MoE):
    """Qwen 3 Next: gated delta rules in three layers of four, gated attention in the others, and a shared expert."""

    name = "qwen3_next"
    types = ("qwen3_next",)
    architectures = ("Qwen3NextForCausalLM",)
    norm = part("norm.RMSNorm", offset=1.0)
    attention: ClassVar = {"class_path": "zoo_frontier.attention.GatedAttention", "init_args": {}}
    partial_rotary = True
    shared = "mlp.shared_expert"
    delta: ClassVar[Mapping[str, str]] = {
        "linear_conv_kernel_dim": "kernel", "linear_num_key_heads": "key_heads", "linear_key_head_dim": "key_dim",
        "linear_value_head_dim": "value_dim", "rms_norm_eps": "eps",
    }  # fmt: skip
    keys = relative_keys(
        {
            **{key: spec for key, spec in Qwen3MoE.keys.read.items() if "window" not in key and key != "hidden_act"},
            "intermediate_size": size(5632), "num_hidden_layers": size(48), "num_attention_heads": size(16),
            "num_key_value_heads": size(2), "head_dim": size(256), "moe_intermediate_size": size(512),
            "shared_expert_intermediate_size": size(512), "num_experts": size(512), "num_experts_per_tok": size(10),
            "norm_topk_prob": flag(True), "partial_rotary_factor": real(0.25), "layer_types": LIST,
            "full_attention_interval": size(4), "linear_conv_kernel_dim": size(4), "linear_key_head_dim": size(128),
            "linear_value_head_dim": size(128), "linear_num_key_heads": size(16), "linear_num_value_heads": size(32),
        },
        {"hidden_act": ["silu", "swish"], "use_sliding_window": [False]}, ROUTER,
        {"num_local_experts": "num_experts"}, without=("hidden_act",),
    )  # fmt: skip
    example: ClassVar = {
        **Qwen3MoE.example, "head_dim": 8, "shared_expert_intermediate_size": 6, "linear_key_head_dim": 6,
        "linear_value_head_dim": 5, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
        "layer_types": [LINEAR, FULL],
    }  # fmt: skip
    inside: ClassVar = {
        **{name: theirs for name, theirs in Qwen3MoE.inside.items() if name != "attend.part.qkv"},
        "ffn.part.ffn.shared_gate": "mlp.shared_expert_gate", "attend.part.write": "linear_attn.out_proj",
        "attend.part.head_norm": "linear_attn.norm",
        "attend.part.read": ("linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba"),
    }  # fmt: skip

    def complete(self, config: Config, source: str) -> dict[str, Any]:
        """A configuration with the peer's default of each key that it lacks."""
        return {**super().complete(config, source), "hidden_act": "silu"}

    def layer_kinds(self, config: Config) -> list[str]:
        """The kind of each layer: full_attention or linear_attention. Raises UsageError for others."""
        depth, every = config["num_hidden_layers"], config["full_attention_interval"]
        kinds = config.get("layer_types") or [LINEAR if (n + 1) % every else FULL for n in range(depth)]
        if len(kinds) != depth or not set(kinds) <= {FULL, LINEAR}:
            raise unsupported_value(config, "layer_types", self.name, f"{FULL} or {LINEAR} for each of {depth} layers")
        return list(kinds)

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a complete configuration. Raises UsageError for unsupported values."""
        options, heads = super().options(config), config["linear_num_value_heads"]
        if heads % config["linear_num_key_heads"]:
            raise unsupported_value(config, "linear_num_key_heads", self.name, f"a divisor of {heads}")
        delta = {"class_path": "zoo_frontier.mixer.GatedDeltaNet",
                 "init_args": {ours: config[theirs] for theirs, ours in self.delta.items()}}  # fmt: skip
        layers = spread_layers(options)
        for layer, kind in zip(layers, config["layer_types"], strict=True):
            if kind == LINEAR:
                layer |= {"attention": copy.deepcopy(delta), "heads": heads, "position": part("position.NoPosition")}
        return {**{name: value for name, value in options.items() if name != "overrides"}, **gather_layers(layers)}

    def read_feed(self, config: Config, number: int) -> tuple[Options, int]:
        """A mixture beside a shared expert, or the plain feed-forward of those layers that have none."""
        feed, hidden = super().read_feed(config, number)
        if "experts" not in feed["init_args"]:
            return feed, hidden
        shared = {"gate": True, "shared_hidden": budget(config["shared_expert_intermediate_size"])}
        return {"class_path": "zoo_frontier.ffn.SharedMoE", "init_args": {**feed["init_args"], **shared}}, hidden

    def gated(self, config: Config, key: str = "hidden_act") -> Options:
        """The gated feed-forward."""
        return part("ffn.SwiGLU")

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task. Raises UsageError without a layer of attention."""
        layers = spread_layers(options)
        kinds = [LINEAR if name_of(layer["attention"]) == "GatedDeltaNet" else FULL for layer in layers]
        if FULL not in kinds:
            raise UsageError("the configuration needs a layer with attention.")
        full = layers[kinds.index(FULL)]
        config = Decoder.config(self, {**options, "attention": full["attention"], "heads": full["heads"]})
        for layer in [layers[kinds.index(LINEAR)]] if LINEAR in kinds else []:
            config |= {theirs: inner(layer["attention"])[ours] for theirs, ours in self.delta.items()}
            config["linear_num_value_heads"] = layer["heads"]
        shared = next(
            inner(layer["ffn"])["shared_hidden"] for layer in layers if "shared_hidden" in inner(layer["ffn"])
        )
        return {**config, "layer_types": kinds, "hidden_act": "silu", "shared_expert_intermediate_size": width(shared)}

    def write_positions(self, layers: Sequence[Options]) -> dict[str, Any]:
        """The keys of RoPE, of the layers that have one."""
        return super().write_positions([layer for layer in layers if name_of(layer["position"]) != "NoPosition"])

    def prefixes_beside(self, config: Config) -> tuple[str, ...]:
        """The prefix of the tensors that predict further tokens."""
        return ("mtp.",)

    def shared_sizes(self, config: Config) -> tuple[int, int]:
        """One shared expert, and its width."""
        return 1, config["shared_expert_intermediate_size"]

    def transform(self, name: str, config: Config) -> Transform:
        """Rows of each head of keys stand together: query, key, the values of its heads and their gates; b and a."""
        if name != "attend.part.read":
            return super().transform(name, config)
        count, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
        key_width, value_width = config["linear_key_head_dim"], config["linear_value_head_dim"] * heads // count
        large, small = 2 * count * (key_width + value_width), 2 * heads
        wide, narrow = torch.arange(large).view(count, -1), large + torch.arange(small).view(count, -1)
        pieces = [*wide.split([key_width, key_width, value_width, value_width], 1), *narrow.chunk(2, 1)[::-1]]
        return Permuted(torch.cat([rows.flatten() for rows in pieces]), [large, small])

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a complete configuration."""
        mapping, theirs, ours = super().map_tensors(config), self.layer, "stack.blocks.{n}.attend.part."
        count, kv_heads, wide = self.heads(config)
        rows = torch.arange(count * 2 * wide).view(count, 2, wide)
        behind = torch.arange(count * 2 * wide, count * 2 * wide + 2 * kv_heads * wide)
        both = Parted([torch.cat([rows[:, 0].flatten(), behind]), rows[:, 1].flatten()],
                      [2 * count * wide, kv_heads * wide, kv_heads * wide])  # fmt: skip
        rules = [TensorRule(tuple(f"{theirs}self_attn.{name}_proj.{end}" for name in "qkv"),
                            (f"{ours}qkv.{end}", f"{ours}gate.{end}"), both) for end in ("weight", "bias")]  # fmt: skip
        rules += [TensorRule(f"{theirs}linear_attn.conv1d.weight", f"{ours}kernel", Kernel()),
                  TensorRule(f"{theirs}linear_attn.A_log", f"{ours}rate"),
                  TensorRule(f"{theirs}linear_attn.dt_bias", f"{ours}shift")]  # fmt: skip
        return MappedTensors([*mapping.rules, *rules], mapping.constants, mapping.copies)


class Mamba2(Decoder):
    """Mamba-2 and Codestral Mamba: state spaces alone, without feed-forwards and positions."""

    name = "mamba2"
    types = ("mamba2",)
    architectures = ("Mamba2ForCausalLM",)
    prefix, layer = "backbone.", "backbone.layers.{n}."
    attention: ClassVar = {"class_path": "zoo_frontier.mixer.Mamba2", "init_args": {}}
    block: ClassVar = {"class_path": "zoo_frontier.block.MixerOnly", "init_args": {}}
    constant_options: ClassVar = {"position": part("position.NoPosition")}
    places: ClassVar = {
        "vocab_size": "vocab_size", "max_position_embeddings": "max_length", "hidden_size": "dim",
        "num_hidden_layers": "depth", "num_heads": "heads", "tie_word_embeddings": "tie",
        "layer_norm_epsilon": "norm.eps", "state_size": "attention.state_dim", "expand": "attention.expand",
        "conv_kernel": "attention.kernel", "n_groups": "attention.groups", "use_conv_bias": "attention.kernel_bias",
    }  # fmt: skip
    outside: ClassVar = {"embedding": "backbone.embeddings", "stack.norm": "backbone.norm_f", "head": "lm_head"}
    inside: ClassVar = {
        "attend.norm": "norm", "attend.part.write": "mixer.out_proj", "attend.part.inner_norm": "mixer.norm",
        "attend.part.read": ("mixer.in_proj",),
    }  # fmt: skip
    keys = relative_keys(
        {
            "num_heads": size(128), "head_dim": size(64), "vocab_size": size(32768), "hidden_size": size(4096),
            "state_size": size(128), "num_hidden_layers": size(64), "layer_norm_epsilon": real(1e-5),
            "expand": size(2), "conv_kernel": size(4), "n_groups": size(8), "use_conv_bias": flag(True),
            # no key of Mamba-2, whose texts may have any length: what zoo writes
            "max_position_embeddings": size(2048),
        },
        {
            "use_bias": [False], "hidden_act": ["silu", "swish"], "norm_before_gate": [False], "rms_norm": [True],
            "time_step_limit": [[0.0, math.inf], [0.0, {"__float__": "Infinity"}]],
        },
        ("residual_in_fp32", "rescale_prenorm_residual", "chunk_size", "time_step_rank", "time_step_min",
         "time_step_max", "time_step_floor"),
        without=("hidden_act", "intermediate_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps",
                 "attention_dropout", "rope_parameters", "rope_scaling", "rope_theta"),
    )  # fmt: skip
    example: ClassVar = {
        "vocab_size": 41, "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 8, "state_size": 5,
        "n_groups": 2,
    }  # fmt: skip

    def complete(self, config: Config, source: str) -> dict[str, Any]:
        """A configuration with the peer's default of each key that it lacks."""
        return Family.complete(self, config, source)

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a complete configuration. Raises UsageError for unsupported values."""
        heads, wide = config["num_heads"], config["expand"] * config["hidden_size"]
        if heads * config["head_dim"] != wide:
            raise unsupported_value(config, "head_dim", self.name, f"{wide / heads:g}, for hidden_size and num_heads,")
        if heads % config["n_groups"]:
            raise unsupported_value(config, "n_groups", self.name, f"a divisor of num_heads={heads}")
        options: Options = {name: copy.deepcopy(getattr(self, name)) for name in ("norm", "attention", "block")}
        read_places(config, self.places, options)
        options["attention"]["init_args"]["eps"] = config["layer_norm_epsilon"]
        return {**options, **self.constant_options}

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        config = write_places(options, self.places)
        return {**config, "head_dim": config["expand"] * config["hidden_size"] // config["num_heads"]}

    def transform(self, name: str, config: Config) -> Transform:
        """Rows of the gate stand in front of those that run through the convolution."""
        if name != "attend.part.read":
            return super().transform(name, config)
        gate = config["expand"] * config["hidden_size"]
        convolved = gate + 2 * config["n_groups"] * config["state_size"]
        rows = torch.arange(gate + convolved + config["num_heads"])
        return Permuted(torch.cat([rows[gate : gate + convolved], rows[:gate], rows[gate + convolved :]]))

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's; the first name of the embedding was another."""
        mapping, theirs, ours = super().map_tensors(config), f"{self.layer}mixer.", "stack.blocks.{n}.attend.part."
        rules = [TensorRule(f"{theirs}conv1d.weight", f"{ours}kernel", Kernel())]
        rules += [TensorRule(f"{theirs}{key}", f"{ours}{name}") for key, name in (
            ("conv1d.bias", "kernel_bias"), ("A_log", "rate"), ("dt_bias", "shift"), ("D", "skip"))]  # fmt: skip
        first = {"backbone.embedding.weight": "backbone.embeddings.weight"}
        return MappedTensors([*mapping.rules, *rules], mapping.constants, {**mapping.copies, **first})
