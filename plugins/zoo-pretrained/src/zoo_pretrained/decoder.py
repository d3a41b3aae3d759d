"""Causal decoders: what all of them share, as tables and small methods of which each family changes what differs."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from zoo.errors import UsageError
from zoo.models.layer_overrides import PLACES, configured_layers
from zoo_pretrained.config_keys import BOOKKEEPING, Key, Keys, flag, real, size, word
from zoo_pretrained.family import (
    Config,
    Family,
    Options,
    budget,
    get_option,
    inner,
    name_of,
    part,
    set_option,
    unsupported_value,
    width,
)
from zoo_pretrained.rope import read_rope, rope_object, write_rope
from zoo_pretrained.tensor_mapping import SAME, Columns, MappedTensors, Parted, Stacked, TensorRule, Transform

OBJECT = Key(None, dict, optional=True)
READ = {
    "vocab_size": size(32000), "hidden_size": size(4096), "intermediate_size": size(11008),
    "num_hidden_layers": size(32), "num_attention_heads": size(32), "num_key_value_heads": size(None),
    "hidden_act": word("silu"), "max_position_embeddings": size(2048),
    "rms_norm_eps": real(1e-6), "tie_word_embeddings": flag(False), "attention_dropout": real(0.0),
    "rope_parameters": OBJECT, "rope_scaling": OBJECT, "rope_theta": real(10000.0),
}  # fmt: skip
FIXED: dict[str, list[Any]] = {
    "partial_rotary_factor": [1.0, None], "is_causal": [True], "is_decoder": [False, True],
    "is_encoder_decoder": [False], "mlp_bias": [False], "clip_qkv": [None],
    "use_mrope": [False], "rope_interleaved": [False],
}  # fmt: skip
DIVIDED = ("llama", "gemma2", "gemma3_text")  # whose classes want a width that heads divide, even beside head_dim
FULL, SLIDING = "full_attention", "sliding_attention"
GATED = {
    "silu": part("ffn.SwiGLU"), "swish": part("ffn.SwiGLU"), "relu": part("ffn.ReGLU"), "linear": part("ffn.Bilinear"),
    "gelu": part("ffn.GEGLU"), "gelu_pytorch_tanh": part("ffn.GEGLU", approximate="tanh"),
    "gelu_new": part("ffn.GEGLU", approximate="tanh"),
}  # fmt: skip
GATED_NAMES = {"SwiGLU": "silu", "ReGLU": "relu", "Bilinear": "linear"}


def relative_keys(
    read: Mapping[str, Key],
    fixed: Mapping[str, list[Any]] | None = None,
    ignored: Sequence[str] = (),
    aliases: Mapping[str, str] | None = None,
    without: Sequence[str] = (),
) -> Keys:
    """The keys of a relative: LLaMA's with its own defaults, those that it has besides, and not those ``without``."""
    base = {key: spec for key, spec in READ.items() if key not in without}
    own = {key: rights for key, rights in FIXED.items() if key not in read}
    return Keys({**base, **read}, {**own, **(fixed or {})}, BOOKKEEPING | set(ignored), aliases or {})


def spread_layers(options: Mapping[str, Any]) -> list[Options]:
    """Each layer's own window, position and other parts, for options with overrides."""
    names = ("attention", "ffn", "hidden", "window", "position", "norm", "block", "heads")
    layers = [{name: options.get(name) for name in names} for _ in range(options["depth"])]
    for override in options.get("overrides") or ():
        values = {name: value for name, value in override.items() if name not in PLACES and value is not None}
        if values.get("window") == 0:
            values["window"] = None
        for number in configured_layers(override, len(layers)):
            layers[number] |= values
    return layers


def gather_layers(layers: Sequence[Options]) -> Options:
    """The options of a stack with these layers: what most have, and overrides for the others."""
    own = max(layers, key=layers.count)
    groups: list[tuple[Options, list[int]]] = []
    for number, layer in enumerate(layers):
        differs = {name: value for name, value in layer.items() if value != own[name]}
        if "window" in differs:
            differs["window"] = differs["window"] or 0
        group = next((numbers for options, numbers in groups if options == differs), None)
        if differs and group is None:
            groups.append((differs, [number]))
        elif group is not None:
            group.append(number)
    overrides = [{"layers": ", ".join(map(str, numbers)), **options} for options, numbers in groups]
    return {**own, "overrides": overrides} if overrides else dict(own)


class Decoder(Family):
    """A causal decoder: with the parts of LLaMA where a family says nothing else."""

    task = "zoo.tasks.lm.CausalLM"
    prefix = "model."
    # keys whose value an option has as it is, which may stand in a part
    places: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size", "max_position_embeddings": "max_length", "hidden_size": "dim",
        "num_hidden_layers": "depth", "num_attention_heads": "heads", "tie_word_embeddings": "tie",
        "attention_dropout": "attention_dropout", "rms_norm_eps": "norm.eps", "attention_bias": "attention.bias",
        "num_key_value_heads": "attention.kv_heads", "head_dim": "attention.head_dim",
    }  # fmt: skip
    norm: ClassVar[Options] = part("norm.RMSNorm")
    attention: ClassVar[Options] = part("attention.MultiHead", bias=False)
    block: ClassVar[Options] = part("block.PreNorm")
    constant_options: ClassVar[Mapping[str, Any]] = {}  # of the task, whatever a configuration says
    qk_norm = False  # queries and keys are normalised by the stack's norm
    qk_options: ClassVar[Mapping[str, Any]] = {}  # of that norm, besides those of the stack's
    partial_rotary = False  # a share of each head may turn
    full_every: int | None = None  # each so-manieth layer sees all, the others a window, where layer_types is missing
    # modules of zoo, and those of a checkpoint that are the same; several are one below the other
    outside: ClassVar[Mapping[str, Any]] = {
        "embedding": "model.embed_tokens", "stack.norm": "model.norm", "head": "lm_head",
    }  # fmt: skip
    layer = "model.layers.{n}."
    inside: ClassVar[Mapping[str, Any]] = {
        "attend.norm": "input_layernorm", "ffn.norm": "post_attention_layernorm",
        "attend.part.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attend.part.out": "self_attn.o_proj", "attend.part.query_norm": "self_attn.q_norm",
        "attend.part.key_norm": "self_attn.k_norm", "ffn.part.up": ("mlp.gate_proj", "mlp.up_proj"),
        "ffn.part.down": "mlp.down_proj",
    }  # fmt: skip
    constants: ClassVar[tuple[str, ...]] = ("self_attn.rotary_emb.inv_freq",)  # of each layer

    # -- from a published configuration

    def complete(self, config: Config, source: str) -> dict[str, Any]:
        """A configuration with the peer's default of each key that it lacks, those that follow from others too.

        Raises UsageError that names a key which is not read, or whose value is not supported.
        """
        full = super().complete(config, source)
        full |= {alias: full[key] for alias, key in self.keys.aliases.items()}
        _, kv_heads, wide = self.heads(full)
        full |= {"num_key_value_heads": kv_heads, "head_dim": wide, "layer_types": self.layer_kinds(full)}
        return full

    def heads(self, config: Config) -> tuple[int, int, int]:
        """Heads, heads of keys and values, and width of a head. Raises UsageError where they do not fit."""
        count, dim = config["num_attention_heads"], config["hidden_size"]
        kv_heads = config.get("num_key_value_heads") or count
        if count % kv_heads:
            raise unsupported_value(config, "num_key_value_heads", self.name, f"a divisor of {count}")
        if dim % count and self.name in DIVIDED:
            raise unsupported_value(config, "num_attention_heads", self.name, f"a divisor of hidden_size={dim}")
        wide = config.get("head_dim") or dim // count
        if wide % 2 and config.get("head_dim"):
            raise unsupported_value(config, "head_dim", self.name, "an even number")
        if wide % 2:
            right = f"a divisor of hidden_size={dim} that leaves an even number"
            raise unsupported_value(config, "num_attention_heads", self.name, right)
        return count, kv_heads, wide

    def window(self, config: Config) -> int | None:
        """The window of those layers that have one."""
        return config.get("sliding_window")

    def default_kinds(self, config: Config) -> list[str]:
        """The kind of each layer where layer_types is missing."""
        depth = config["num_hidden_layers"]
        if self.full_every is None:
            return [SLIDING if self.window(config) else FULL] * depth
        return [SLIDING if (number + 1) % self.full_every else FULL for number in range(depth)]

    def layer_kinds(self, config: Config) -> list[str]:
        """The kind of each layer: full_attention or sliding_attention. Raises UsageError for others."""
        kinds, depth = config.get("layer_types") or self.default_kinds(config), config["num_hidden_layers"]
        if len(kinds) != depth or not all(kind in (FULL, SLIDING) for kind in kinds):
            right = f"{FULL} or {SLIDING} for each of {depth} layers"
            raise unsupported_value(config, "layer_types", self.name, right)
        if self.window(config) is None and SLIDING in kinds:
            beside = " and ".join(key for key in ("sliding_window", "use_sliding_window") if key in self.keys.read)
            raise unsupported_value(config, "layer_types", self.name, f"{beside} beside it")
        return list(kinds)

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a complete configuration. Raises UsageError for unsupported values."""
        options: Options = {name: copy.deepcopy(getattr(self, name)) for name in ("norm", "block")}
        options |= {"attention": self.read_attention(config), **self.constant_options}
        for key, place in self.places.items():
            if key in self.keys.read or key in ("num_key_value_heads", "head_dim"):
                set_option(options, place, config[key])
        if self.qk_norm:
            norm = {**copy.deepcopy(options["norm"]), "init_args": {**options["norm"]["init_args"], **self.qk_options}}
            options["attention"]["init_args"]["qk_norm"] = norm
        return {**options, **gather_layers([self.read_layer(config, n) for n in range(config["num_hidden_layers"])])}

    def read_attention(self, config: Config) -> Options:
        """The attention of all layers."""
        return copy.deepcopy(self.attention)

    def read_layer(self, config: Config, number: int) -> Options:
        """Window, position and feed-forward of a layer."""
        sliding = config["layer_types"][number] == SLIDING
        feed, hidden = self.read_feed(config, number)
        return {
            "window": self.window(config) if sliding else None, "position": self.read_position(config, number),
            "ffn": feed, "hidden": hidden,
        }  # fmt: skip

    def read_position(self, config: Config, number: int) -> Options:
        """The position scheme of a layer."""
        source, described = rope_object(config)
        if self.partial_rotary and config.get("partial_rotary_factor") is not None:
            described = {"partial_rotary_factor": config["partial_rotary_factor"], **described}
        return read_rope(config, {"rope_theta": config["rope_theta"], **described}, source, self.partial_rotary)

    def read_feed(self, config: Config, number: int) -> tuple[Options, int]:
        """The feed-forward of a layer and its ``hidden``. Raises UsageError for an unknown activation."""
        return self.gated(config), budget(config["intermediate_size"])

    def gated(self, config: Config, key: str = "hidden_act") -> Options:
        """The gated feed-forward with the activation that a key names. Raises UsageError for an unknown one."""
        if config[key] not in GATED:
            raise unsupported_value(config, key, self.name, " or ".join(repr(name) for name in GATED))
        gated = copy.deepcopy(GATED[config[key]])
        if config.get("mlp_bias"):
            gated["init_args"]["bias"] = True
        return gated

    # -- to a published configuration

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        config = {key: get_option(options, place) for key, place in self.places.items() if key in self.keys.read}
        for key, default in (
            ("num_key_value_heads", options["heads"]),
            ("head_dim", options["dim"] // options["heads"]),
        ):
            if key in config:
                config[key] = config[key] or default
        layers = spread_layers(options)
        config |= {**self.write_feed(options, layers), **self.write_positions(layers)}
        if "sliding_window" in self.keys.read:
            # their library makes the mask of a window although no layer has it
            unused = options["max_length"] if self.full_every else None
            config["sliding_window"] = next((layer["window"] for layer in layers if layer["window"]), unused)
        if "layer_types" in self.keys.read:
            config["layer_types"] = [SLIDING if layer["window"] else FULL for layer in layers]
        return config

    def write_positions(self, layers: Sequence[Options]) -> dict[str, Any]:
        """The keys of RoPE. Raises UsageError for other positions."""
        described = write_rope(layers[-1]["position"])
        base = {"rope_theta": described.pop("rope_theta")}
        if self.partial_rotary:
            base["partial_rotary_factor"] = described.pop("partial_rotary_factor", 1.0)
        return base if described["rope_type"] == "default" else {**base, "rope_scaling": described}

    def write_feed(self, options: Options, layers: Sequence[Options]) -> dict[str, Any]:
        """The keys of the feed-forward."""
        return self.write_gated(layers[-1]["ffn"], layers[-1]["hidden"] or 4 * options["dim"])

    def write_gated(self, feed: Any, hidden: int, key: str = "hidden_act", size: str = "intermediate_size") -> Options:
        """The activation and the width of a gated feed-forward. Raises KeyError for another one."""
        options, name = inner(feed), GATED_NAMES.get(name_of(feed))
        if name is None:
            name = {"none": "gelu", "tanh": "gelu_pytorch_tanh"}[options["approximate"]]
        biased = {"mlp_bias": options["bias"]} if "mlp_bias" in self.keys.read else {}
        return {key: name, size: width(hidden, options.get("multiple_of", 1)), **biased}

    # -- tensors

    def modules(self, config: Config) -> Mapping[str, Any]:
        """Modules of a layer of zoo, and those of a checkpoint that are the same."""
        return self.inside

    def transform(self, name: str, config: Config) -> Transform:
        """How tensors of a checkpoint become the module ``name`` of zoo."""
        if isinstance({**self.outside, **self.modules(config)}[name], str):
            return SAME
        count, kv_heads, wide = self.heads(config)
        if name == "attend.part.qkv":
            return Stacked([count * wide, kv_heads * wide, kv_heads * wide])
        return Stacked([config["intermediate_size"]] * 2)

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a complete configuration."""
        tied, rules = config["tie_word_embeddings"], []
        modules = {name: theirs for name, theirs in self.outside.items() if not (tied and name == "head")}
        modules |= {f"stack.blocks.{{n}}.{name}": theirs for name, theirs in self.modules(config).items()}
        for name, theirs in modules.items():
            own = name.removeprefix("stack.blocks.{n}.")
            stem = self.layer if own != name else ""
            how = self.transform(own, config)
            every = (theirs,) if isinstance(theirs, str) else theirs
            for end in ("weight", "bias"):
                rules.append(TensorRule(tuple(f"{stem}{key}.{end}" for key in every), f"{name}.{end}", how))
        copies = {f"{self.outside['head']}.weight": f"{self.outside['embedding']}.weight"} if tied else {}
        return MappedTensors(rules, [self.layer + name for name in self.constants], copies)


class KindsOfRoPE(Decoder):
    """A decoder whose layers with a window turn by a RoPE of their own."""

    local_base: ClassVar[str | float] = "rope_local_base_freq"  # the key of its base, or its number

    def read_position(self, config: Config, number: int) -> Options:
        """The RoPE of a layer's kind; rope_scaling is for those that see all. Raises UsageError for one object."""
        kind, nested = config["layer_types"][number], config["rope_parameters"] or {}
        if not set(nested) <= {FULL, SLIDING}:
            right = f"an object with one for each of {FULL} and {SLIDING}"
            raise unsupported_value(config, "rope_parameters", self.name, right)
        described = {**(nested.get(kind) or {}), **((config["rope_scaling"] or {}) if kind == FULL else {})}
        local = config[self.local_base] if isinstance(self.local_base, str) else self.local_base
        base = {"rope_theta": config["rope_theta"] if kind == FULL else local}
        return read_rope(config, {**base, **described}, "rope_parameters" if nested else "rope_scaling")

    def write_positions(self, layers: Sequence[Options]) -> dict[str, Any]:
        """The keys of RoPE. Raises UsageError for other positions."""
        kinds = {SLIDING if layer["window"] else FULL: write_rope(layer["position"]) for layer in layers}
        return {"rope_parameters": kinds}


class MixtureDecoder(Decoder):
    """A decoder with a mixture of experts: a matrix of each expert is one tensor of the checkpoint."""

    experts = "num_experts"  # the key of their number
    expert_width = "intermediate_size"  # the key of the width of one
    shared = ""  # the module of a layer whose matrices are those of all shared experts beside each other

    def read_feed(self, config: Config, number: int) -> tuple[Options, int]:
        """The mixture of experts of a layer and the ``hidden`` of an expert. Raises UsageError for impossible sizes."""
        experts, top_k = config[self.experts], config["num_experts_per_tok"]
        if top_k > experts:
            raise unsupported_value(config, "num_experts_per_tok", self.name, f"{experts} or less")
        # their loss is top_k at uniform load, for all layers together; ours is the weight, in each layer
        weight = config["router_aux_loss_coef"] * top_k / config["num_hidden_layers"]
        mixture = part("ffn.MoE", experts=experts, top_k=top_k, aux_loss_weight=weight, expert=self.gated(config))
        return mixture, budget(config[self.expert_width])

    def write_feed(self, options: Options, layers: Sequence[Options]) -> dict[str, Any]:
        """The keys of the mixture. Raises KeyError where there is none."""
        layer = next((layer for layer in layers if "experts" in inner(layer["ffn"])), None)
        if layer is None:
            raise UsageError("no layer is a mixture of experts.")
        mixture = inner(layer["ffn"])
        return {
            **self.write_gated(mixture["expert"], layer["hidden"] or 4 * options["dim"], size=self.expert_width),
            self.experts: mixture["experts"],
            "num_experts_per_tok": mixture["top_k"],
            "router_aux_loss_coef": mixture["aux_loss_weight"] * options["depth"] / mixture["top_k"],
        }

    def transform(self, name: str, config: Config) -> Transform:
        """As the base's; gate and value of an expert stand below each other."""
        if name == "ffn.part.ffn.experts.{e}.up":
            return Stacked([config[self.expert_width]] * 2)
        return super().transform(name, config)

    def shared_sizes(self, config: Config) -> tuple[int, int]:
        """How many shared experts there are, and the width of each."""
        raise NotImplementedError

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a complete configuration."""
        mapping = super().map_tensors(config)
        if not self.shared:
            return mapping
        stem, (count, wide) = f"{self.layer}{self.shared}.", self.shared_sizes(config)
        gates = torch.arange(count * wide).view(count, wide)
        rows = torch.cat([gates, count * wide + gates], 1)
        ups, downs = ([f"stack.blocks.{{n}}.ffn.part.ffn.shared.{i}.{end}.weight" for i in range(count)]
                      for end in ("up", "down"))  # fmt: skip
        keys = (f"{stem}gate_proj.weight", f"{stem}up_proj.weight")
        rules = [
            TensorRule(keys, tuple(ups), Parted(rows.unbind(), [count * wide] * 2)),
            TensorRule(f"{stem}down_proj.weight", tuple(downs), Columns(count)),
        ]
        return MappedTensors([*mapping.rules, *rules], mapping.constants, mapping.copies)
