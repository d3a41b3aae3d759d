"""LLaMA (Touvron et al., 2023) and its relatives: Mistral, Qwen 2 and 3, and the mixture of experts Mixtral."""

from __future__ import annotations

from typing import Any

from zoo.errors import UsageError
from zoo.families.family import Config, Family, Options, budget, inner, name_of, part, width
from zoo.families.rule import Mapped, Rule, Stacked

QWEN = ("qwen2", "qwen3")
FIXED = {"hidden_act": "silu", "pretraining_tp": 1, "mlp_bias": False, "clip_qkv": None}


def rope(config: Config) -> Options:
    """Their two ways to say how RoPE turns: rope_theta with rope_scaling, or rope_parameters."""
    told: Options = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    kind = told.get("rope_type", told.get("type", "default"))
    base: Any = told.get("rope_theta", config.get("rope_theta", 10000.0))
    if told.get("partial_rotary_factor", 1.0) != 1.0:
        return part("position.RoPE", base=float(base), fraction=told["partial_rotary_factor"])
    if kind == "llama3":
        return part(
            "position.RoPE",
            base=float(base),
            stretch=float(told["factor"]),
            trained=told["original_max_position_embeddings"],
            slow=float(told["low_freq_factor"]),
            fast=float(told["high_freq_factor"]),
        )
    if kind != "default":
        raise UsageError(f"config.json: rope_type={kind!r} is not supported. There are: default, llama3.")
    return part("position.RoPE", base=float(base))


def written_rope(position: Any) -> Options:
    told = inner(position)
    if name_of(position) != "RoPE":
        return {}
    if told["stretch"] == 1:
        return {"rope_theta": told["base"]}
    return {
        "rope_theta": told["base"],
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": told["stretch"],
            "original_max_position_embeddings": told["trained"],
            "low_freq_factor": told["slow"],
            "high_freq_factor": told["fast"],
        },
    }


def heads(config: Config) -> tuple[int, int, int]:
    """Heads, groups of keys, and width of a head."""
    count = config["num_attention_heads"]
    groups = config.get("num_key_value_heads") or count
    usual = 128 if config["model_type"] == "qwen3" else config["hidden_size"] // count
    return count, groups, config.get("head_dim") or usual


def windows(config: Config) -> Options:
    """Which layers see a window only: all of them, or those that layer_types (or Qwen's two fields) say."""
    size, kinds, depth = config.get("sliding_window"), config.get("layer_types"), config["num_hidden_layers"]
    if not size or not config.get("use_sliding_window", config["model_type"] not in QWEN):
        return {}
    if kinds is None and config["model_type"] in QWEN:
        first = config.get("max_window_layers", depth)
        kinds = ["full_attention"] * min(first, depth) + ["sliding_attention"] * max(0, depth - first)
    if kinds is None or set(kinds) == {"sliding_attention"}:
        return {"window": size}
    narrow = [number for number, kind in enumerate(kinds) if kind == "sliding_attention"]
    return {"overrides": [{"first": n, "last": n, "window": size} for n in narrow]} if narrow else {}


def options(config: Config) -> Options:
    _, groups, wide = heads(config)
    bias = config.get("attention_bias", config["model_type"] == "qwen2")
    norm = part("norm.RMSNorm", eps=config.get("rms_norm_eps", 1e-6))
    return {
        "vocab_size": config["vocab_size"],
        "max_length": config["max_position_embeddings"],
        "dim": config["hidden_size"],
        "depth": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "hidden": budget(config["intermediate_size"]),
        "tie": config.get("tie_word_embeddings", False),
        "position": rope(config),
        "attention": part(
            "attention.MultiHead",
            groups=groups,
            head_dim=wide,
            bias=bias,
            out_bias=bias and config["model_type"] != "qwen2",
            norm=norm if config["model_type"] == "qwen3" else None,
        ),
        "norm": norm,
        "ffn": feed(config),
        "attention_dropout": config.get("attention_dropout", 0.0),
        **windows(config),
    }


def feed(config: Config) -> Options:
    if "num_local_experts" not in config:
        return part("ffn.SwiGLU")
    return part(
        "ffn.MoE",
        experts=config["num_local_experts"],
        active=config["num_experts_per_tok"],
        balance=config.get("router_aux_loss_coef", 0.001),
        expert=part("ffn.SwiGLU"),
    )


def written(options: Options) -> dict[str, Any]:
    attention, ffn = inner(options["attention"]), inner(options["ffn"])
    gated = inner(ffn["expert"]) if "expert" in ffn else ffn
    count = options["heads"]
    return {
        "vocab_size": options["vocab_size"],
        "max_position_embeddings": options["max_length"],
        "hidden_size": options["dim"],
        "num_hidden_layers": options["depth"],
        "num_attention_heads": count,
        "num_key_value_heads": attention.get("groups") or count,
        "head_dim": attention.get("head_dim") or options["dim"] // count,
        "intermediate_size": width(options["hidden"] or 4 * options["dim"], gated.get("multiple", 1)),
        "hidden_act": "silu",
        "tie_word_embeddings": options["tie"],
        "rms_norm_eps": inner(options["norm"])["eps"],
        "attention_dropout": options["attention_dropout"],
        **written_rope(options["position"]),
    }


def llama_config(options: Options) -> dict[str, Any]:
    return {**written(options), "model_type": "llama", "attention_bias": inner(options["attention"])["bias"]}


def mistral_config(options: Options) -> dict[str, Any]:
    return {**written(options), "model_type": "mistral", "sliding_window": options["window"]}


def qwen2_config(options: Options) -> dict[str, Any]:
    depth, size = options["depth"], options["window"]
    narrow = set(range(depth)) if size else set()
    for one in options["overrides"] or ():
        size = one["window"]
        narrow |= set(range(one["first"], depth if one["last"] is None else one["last"] + 1, one["step"]))
    kinds = ["sliding_attention" if n in narrow else "full_attention" for n in range(depth)]
    return {
        **written(options),
        "model_type": "qwen2",
        "use_sliding_window": bool(narrow),
        "sliding_window": size,
        "layer_types": kinds,
    }


def qwen3_config(options: Options) -> dict[str, Any]:
    bias = inner(options["attention"])["bias"]
    return {**qwen2_config(options), "model_type": "qwen3", "attention_bias": bias}


def mixtral_config(options: Options) -> dict[str, Any]:
    moe = inner(options["ffn"])
    return {
        **written(options),
        "model_type": "mixtral",
        "sliding_window": options["window"],
        "num_local_experts": moe["experts"],
        "num_experts_per_tok": moe["active"],
        "router_aux_loss_coef": moe["balance"],
    }


def mapped(config: Config) -> Mapped:
    theirs, ours = "model.layers.{n}.", "stack.blocks.{n}."
    count, groups, wide = heads(config)
    packed = Stacked([count * wide, groups * wide, groups * wide])
    names = tuple(f"{theirs}self_attn.{one}_proj." for one in "qkv")
    rules = [
        Rule("model.embed_tokens.weight", "embedding.weight"),
        Rule("model.norm.weight", "stack.norm.weight"),
        Rule(f"{theirs}input_layernorm.weight", f"{ours}attend.norm.weight"),
        Rule(f"{theirs}post_attention_layernorm.weight", f"{ours}ffn.norm.weight"),
    ]
    for end in ("weight", "bias"):
        rules.append(Rule(tuple(name + end for name in names), f"{ours}attend.part.qkv.{end}", packed))
        rules.append(Rule(f"{theirs}self_attn.o_proj.{end}", f"{ours}attend.part.out.{end}"))
    for end in ("query", "key") if config["model_type"] == "qwen3" else ():
        rules.append(Rule(f"{theirs}self_attn.{end[0]}_norm.weight", f"{ours}attend.part.{end}_norm.weight"))
    rules += experts(config, theirs, ours) if "num_local_experts" in config else gated(config, theirs, ours)
    tied = config.get("tie_word_embeddings", False)
    if not tied:
        rules.append(Rule("lm_head.weight", "head.weight"))
    turns = (f"{theirs}self_attn.rotary_emb.inv_freq",)
    return Mapped(rules, turns, {"lm_head.weight": "model.embed_tokens.weight"} if tied else {})


def gated(config: Config, theirs: str, ours: str) -> list[Rule]:
    both = (f"{theirs}mlp.gate_proj.weight", f"{theirs}mlp.up_proj.weight")
    return [
        Rule(both, f"{ours}ffn.part.up.weight", Stacked([config["intermediate_size"]] * 2)),
        Rule(f"{theirs}mlp.down_proj.weight", f"{ours}ffn.part.down.weight"),
    ]


def experts(config: Config, theirs: str, ours: str) -> list[Rule]:
    expert, part = f"{theirs}block_sparse_moe.experts.{{e}}.", f"{ours}ffn.part.ffn."
    both = (f"{expert}w1.weight", f"{expert}w3.weight")
    return [
        Rule(f"{theirs}block_sparse_moe.gate.weight", f"{part}router.weight"),
        Rule(both, f"{part}experts.{{e}}.up.weight", Stacked([config["intermediate_size"]] * 2)),
        Rule(f"{expert}w2.weight", f"{part}experts.{{e}}.down.weight"),
    ]


def family(name: str, architecture: str, config: Any) -> Family:
    """A relative: the same tensors, and a configuration with fields of its own."""
    task = "zoo.tasks.lm.CausalLM"
    return Family(name, (name,), (architecture,), task, options, config, mapped, FIXED, prefix="model.")


LLAMA = family("llama", "LlamaForCausalLM", llama_config)
MISTRAL = family("mistral", "MistralForCausalLM", mistral_config)
QWEN2 = family("qwen2", "Qwen2ForCausalLM", qwen2_config)
QWEN3 = family("qwen3", "Qwen3ForCausalLM", qwen3_config)
MIXTRAL = family("mixtral", "MixtralForCausalLM", mixtral_config)
