"""LLaMA (Touvron et al., 2023) and its relatives: Mistral, Qwen 2 and 3, and the mixture of experts Mixtral."""

from __future__ import annotations

from typing import Any, ClassVar

from zoo.errors import UsageError
from zoo.models.layer_overrides import PLACES, configured_layers
from zoo_pretrained.config_keys import BOOKKEEPING, Key, Keys, flag, real, size, word
from zoo_pretrained.family import Config, Family, Options, budget, inner, name_of, part, unsupported_value, width
from zoo_pretrained.rope import read_rope, rope_object, write_rope
from zoo_pretrained.tensor_mapping import MappedTensors, Stacked, TensorRule

QWEN = ("qwen2", "qwen3")
OBJECT = Key(None, dict, optional=True)
LIST = Key(None, list, optional=True)
READ = {
    "vocab_size": size(32000), "hidden_size": size(4096), "intermediate_size": size(11008),
    "num_hidden_layers": size(32), "num_attention_heads": size(32), "num_key_value_heads": size(None),
    "head_dim": size(None), "hidden_act": word("silu"), "max_position_embeddings": size(2048),
    "rms_norm_eps": real(1e-6), "tie_word_embeddings": flag(False), "attention_dropout": real(0.0),
    "rope_parameters": OBJECT, "rope_scaling": OBJECT, "rope_theta": real(10000.0),
}  # fmt: skip
FIXED: dict[str, list[Any]] = {
    "partial_rotary_factor": [1.0, None], "is_causal": [True], "is_decoder": [False, True],
    "is_encoder_decoder": [False], "pretraining_tp": [1, None], "mlp_bias": [False], "clip_qkv": [None],
}  # fmt: skip
GATED = {
    "silu": part("ffn.SwiGLU"), "swish": part("ffn.SwiGLU"), "relu": part("ffn.ReGLU"), "linear": part("ffn.Bilinear"),
    "gelu": part("ffn.GEGLU"), "gelu_pytorch_tanh": part("ffn.GEGLU", approximate="tanh"),
    "gelu_new": part("ffn.GEGLU", approximate="tanh"),
}  # fmt: skip


def relative_keys(fixed: dict[str, list[Any]], **read: Key) -> Keys:
    """The keys of a relative: LLaMA's with its own defaults, and those that it has besides."""
    return Keys({**READ, **read}, {**FIXED, **fixed}, BOOKKEEPING)


def rope(config: Config) -> Options:
    """The position of a configuration with one RoPE for all layers."""
    source, described = rope_object(config)
    return read_rope(config, {"rope_theta": config["rope_theta"], **described}, source)


def written_rope(position: Any) -> Options:
    """The keys of a published configuration for a RoPE of zoo. Raises UsageError for other positions."""
    described = write_rope(position)
    base = {"rope_theta": described.pop("rope_theta")}
    return base if described["rope_type"] == "default" else {**base, "rope_scaling": described}


def heads(config: Config) -> tuple[int, int, int]:
    """Heads, heads of keys and values, and width of a head."""
    count = config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"] or count
    if count % kv_heads:
        raise unsupported_value(config, "num_key_value_heads", config["model_type"], f"a divisor of {count}")
    wide = config["head_dim"] or config["hidden_size"] // count
    if wide % 2 and config["head_dim"]:
        raise unsupported_value(config, "head_dim", config["model_type"], "an even number")
    if wide % 2:
        right = f"a divisor of hidden_size={config['hidden_size']} that leaves an even number"
        raise unsupported_value(config, "num_attention_heads", config["model_type"], right)
    return count, kv_heads, wide


def windows(config: Config) -> Options:
    """Which layers see a window only: all of them, or those that layer_types (or Qwen's two fields) say."""
    window, depth, name = config.get("sliding_window"), config["num_hidden_layers"], config["model_type"]
    if name not in QWEN:
        return {"window": window} if window else {}
    window, kinds = window if config["use_sliding_window"] else None, config["layer_types"]
    if kinds is None:
        first = config["max_window_layers"] if window else depth
        kinds = ["full_attention"] * min(first, depth) + ["sliding_attention"] * max(0, depth - first)
    if len(kinds) != depth or not all(kind in ("full_attention", "sliding_attention") for kind in kinds):
        raise unsupported_value(
            config, "layer_types", name, f"full_attention or sliding_attention for each of {depth} layers"
        )
    if window is None and "sliding_attention" in kinds:
        raise unsupported_value(config, "layer_types", name, "sliding_window and use_sliding_window beside it")
    if set(kinds) == {"sliding_attention"}:
        return {"window": window}
    narrow = [number for number, kind in enumerate(kinds) if kind == "sliding_attention"]
    return {"overrides": [{"first": n, "last": n, "window": window} for n in narrow]} if narrow else {}


def feed(config: Config) -> Options:
    """The feed-forward of a configuration. Raises UsageError for an unknown activation."""
    gated = GATED.get(config["hidden_act"])
    if gated is None:
        raise unsupported_value(config, "hidden_act", config["model_type"], " or ".join(repr(name) for name in GATED))
    if config["model_type"] != "mixtral":
        return gated
    if config["num_experts_per_tok"] > config["num_local_experts"]:
        raise unsupported_value(config, "num_experts_per_tok", "mixtral", f"{config['num_local_experts']} or less")
    return part(
        "ffn.MoE",
        experts=config["num_local_experts"],
        top_k=config["num_experts_per_tok"],
        # theirs is top_k at uniform load, for all layers together; ours is the weight, in each layer
        aux_loss_weight=config["router_aux_loss_coef"] * config["num_experts_per_tok"] / config["num_hidden_layers"],
        expert=gated,
    )


def gated(config: Config, theirs: str, ours: str) -> list[TensorRule]:
    """The rules of a gated feed-forward: gate and up projections are one matrix in zoo."""
    both = (f"{theirs}mlp.gate_proj.weight", f"{theirs}mlp.up_proj.weight")
    return [
        TensorRule(both, f"{ours}ffn.part.up.weight", Stacked([config["intermediate_size"]] * 2)),
        TensorRule(f"{theirs}mlp.down_proj.weight", f"{ours}ffn.part.down.weight"),
    ]


def experts(config: Config, theirs: str, ours: str) -> list[TensorRule]:
    """The rules of a mixture of experts: the matrices of all experts are one tensor in zoo."""
    expert, part = f"{theirs}block_sparse_moe.experts.{{e}}.", f"{ours}ffn.part.ffn."
    both = (f"{expert}w1.weight", f"{expert}w3.weight")
    return [
        TensorRule(f"{theirs}block_sparse_moe.gate.weight", f"{part}router.weight"),
        TensorRule(both, f"{part}experts.{{e}}.up.weight", Stacked([config["intermediate_size"]] * 2)),
        TensorRule(f"{expert}w2.weight", f"{part}experts.{{e}}.down.weight"),
    ]


WINDOWS = {
    "use_sliding_window": flag(False), "sliding_window": size(4096, optional=True), "max_window_layers": size(28, 0),
    "layer_types": LIST,
}  # fmt: skip
QWENS = {
    "vocab_size": size(151936), "intermediate_size": size(22016), "max_position_embeddings": size(32768),
    "num_key_value_heads": size(32, optional=True),
}  # fmt: skip


def shared_config(options: Options) -> dict[str, Any]:
    """The configuration keys that all relatives of LLaMA share, for the options of zoo's task."""
    attention, ffn = inner(options["attention"]), inner(options["ffn"])
    kind = ffn.get("expert", options["ffn"])
    gated, name = inner(kind), {"SwiGLU": "silu", "ReGLU": "relu", "Bilinear": "linear"}.get(name_of(kind))
    if name is None:
        name = {"none": "gelu", "tanh": "gelu_pytorch_tanh"}[gated["approximate"]]
    count = options["heads"]
    return {
        "vocab_size": options["vocab_size"],
        "max_position_embeddings": options["max_length"],
        "hidden_size": options["dim"],
        "num_hidden_layers": options["depth"],
        "num_attention_heads": count,
        "num_key_value_heads": attention.get("kv_heads") or count,
        "head_dim": attention.get("head_dim") or options["dim"] // count,
        "intermediate_size": width(options["hidden"] or 4 * options["dim"], gated.get("multiple_of", 1)),
        "hidden_act": name,
        "tie_word_embeddings": options["tie"],
        "rms_norm_eps": inner(options["norm"])["eps"],
        "attention_dropout": options["attention_dropout"],
        **written_rope(options["position"]),
    }


class Llama(Family):
    """LLaMA (Touvron et al., 2023), versions 1 to 3."""

    name = "llama"
    types = ("llama",)
    architectures = ("LlamaForCausalLM",)
    task = "zoo.tasks.lm.CausalLM"
    keys = relative_keys({}, attention_bias=flag(False))
    prefix = "model."
    example: ClassVar = {
        "vocab_size": 41, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 16,
    }  # fmt: skip

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a published configuration. Raises UsageError for unsupported values."""
        _, kv_heads, wide = heads(config)
        bias = config["model_type"] == "qwen2" or config.get("attention_bias", False)
        norm = part("norm.RMSNorm", eps=config["rms_norm_eps"])
        return {
            "vocab_size": config["vocab_size"],
            "max_length": config["max_position_embeddings"],
            "dim": config["hidden_size"],
            "depth": config["num_hidden_layers"],
            "heads": config["num_attention_heads"],
            "hidden": budget(config["intermediate_size"]),
            "tie": config["tie_word_embeddings"],
            "position": rope(config),
            "attention": part(
                "attention.MultiHead",
                kv_heads=kv_heads,
                head_dim=wide,
                bias=bias,
                out_bias=bias and config["model_type"] != "qwen2",
                qk_norm=norm if config["model_type"] == "qwen3" else None,
            ),
            "norm": norm,
            "ffn": feed(config),
            "attention_dropout": config["attention_dropout"],
            **windows(config),
        }

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        return {**shared_config(options), "attention_bias": inner(options["attention"])["bias"]}

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a configuration."""
        theirs, ours = "model.layers.{n}.", "stack.blocks.{n}."
        count, kv_heads, wide = heads(config)
        packed = Stacked([count * wide, kv_heads * wide, kv_heads * wide])
        names = tuple(f"{theirs}self_attn.{one}_proj." for one in "qkv")
        rules = [
            TensorRule("model.embed_tokens.weight", "embedding.weight"),
            TensorRule("model.norm.weight", "stack.norm.weight"),
            TensorRule(f"{theirs}input_layernorm.weight", f"{ours}attend.norm.weight"),
            TensorRule(f"{theirs}post_attention_layernorm.weight", f"{ours}ffn.norm.weight"),
        ]
        for end in ("weight", "bias"):
            rules.append(TensorRule(tuple(name + end for name in names), f"{ours}attend.part.qkv.{end}", packed))
            rules.append(TensorRule(f"{theirs}self_attn.o_proj.{end}", f"{ours}attend.part.out.{end}"))
        for end in ("query", "key") if config["model_type"] == "qwen3" else ():
            rules.append(TensorRule(f"{theirs}self_attn.{end[0]}_norm.weight", f"{ours}attend.part.{end}_norm.weight"))
        rules += (experts if config["model_type"] == "mixtral" else gated)(config, theirs, ours)
        tied = config["tie_word_embeddings"]
        if not tied:
            rules.append(TensorRule("lm_head.weight", "head.weight"))
        turns = (f"{theirs}self_attn.rotary_emb.inv_freq",)
        return MappedTensors(rules, turns, {"lm_head.weight": "model.embed_tokens.weight"} if tied else {})


class Mistral(Llama):
    """Mistral (Jiang et al., 2023)."""

    name = "mistral"
    types = ("mistral",)
    architectures = ("MistralForCausalLM",)
    keys = relative_keys(
        {"attention_bias": [False]}, intermediate_size=size(14336), num_key_value_heads=size(8, optional=True),
        max_position_embeddings=size(131072), sliding_window=size(4096, optional=True),
    )  # fmt: skip

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        return {**shared_config(options), "sliding_window": options["window"]}


class Qwen2(Llama):
    """Qwen 2 (Yang et al., 2024)."""

    name = "qwen2"
    types = ("qwen2",)
    architectures = ("Qwen2ForCausalLM",)
    keys = relative_keys({"attention_bias": [True]}, **QWENS, **WINDOWS)

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        depth, size = options["depth"], options["window"]
        narrow = set(range(depth)) if size else set()
        for one in options["overrides"] or ():
            if others := sorted(name for name, value in one.items() if value and name not in ("window", *PLACES)):
                raise UsageError(f"overrides of {', '.join(others)} have no place in the published configuration.")
            size = one["window"]
            narrow |= set(configured_layers(one, depth))
        kinds = ["sliding_attention" if n in narrow else "full_attention" for n in range(depth)]
        return {
            **shared_config(options),
            "use_sliding_window": bool(narrow),
            "sliding_window": size,
            "layer_types": kinds,
        }


class Qwen3(Qwen2):
    """Qwen 3 (Yang et al., 2025)."""

    name = "qwen3"
    types = ("qwen3",)
    architectures = ("Qwen3ForCausalLM",)
    keys = relative_keys({}, **QWENS, **WINDOWS, head_dim=size(128), attention_bias=flag(False))

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        return {**super().config(options), "attention_bias": inner(options["attention"])["bias"]}


class Mixtral(Llama):
    """Mixtral, a mixture of experts (Jiang et al., 2024)."""

    name = "mixtral"
    types = ("mixtral",)
    architectures = ("MixtralForCausalLM",)
    keys = Keys(
        {
            **READ, "intermediate_size": size(14336), "num_key_value_heads": size(8, optional=True),
            "max_position_embeddings": size(131072), "rms_norm_eps": real(1e-5), "rope_theta": real(1e6),
            "sliding_window": size(None), "num_local_experts": size(8), "num_experts_per_tok": size(2),
            "router_aux_loss_coef": real(0.001),
        },
        {**FIXED, "attention_bias": [False]},
        BOOKKEEPING | {"output_router_logits", "router_jitter_noise"},
        {"num_experts": "num_local_experts"},
    )  # fmt: skip

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        moe = inner(options["ffn"])
        return {
            **shared_config(options),
            "sliding_window": options["window"],
            "num_local_experts": moe["experts"],
            "num_experts_per_tok": moe["top_k"],
            "router_aux_loss_coef": moe["aux_loss_weight"] * options["depth"] / moe["top_k"],
        }
