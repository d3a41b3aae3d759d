"""T5, its version 1.1 and mT5 (Raffel et al., 2020; Xue et al., 2021)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from zoo_pretrained.config_keys import BOOKKEEPING, Key, Keys, flag, real, size, word
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
from zoo_pretrained.tensor_mapping import MappedTensors, Shaped, Stacked, TensorRule, Tensors

# their feed-forwards and ours
FEEDS = {
    "relu": part("ffn.MLP", activation="relu", bias=False),
    "gated-gelu": part("ffn.GEGLU", approximate="tanh"),
    "gated-silu": part("ffn.SwiGLU"),
}
# the activations that their names stand for
ACTS = {
    "relu": "relu", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "silu": "silu", "swish": "silu",
}  # fmt: skip
READ = {
    "vocab_size": size(32128), "d_model": size(512), "d_kv": size(64), "d_ff": size(2048), "num_layers": size(6),
    "num_decoder_layers": size(None), "num_heads": size(8), "relative_attention_num_buckets": size(32),
    "relative_attention_max_distance": size(128), "dropout_rate": real(0.1), "layer_norm_epsilon": real(1e-6),
    "feed_forward_proj": word("relu"), "n_positions": size(512), "tie_word_embeddings": flag(True),
    "dense_act_fn": Key(None, str, optional=True), "is_gated_act": Key(None, bool, optional=True),
}  # fmt: skip
FIXED: dict[str, list[Any]] = {"is_encoder_decoder": [True], "is_decoder": [False], "tie_encoder_decoder": [False]}
IGNORED = BOOKKEEPING | {"classifier_dropout", "initializer_factor"}
ALIASES = {
    "hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}  # fmt: skip


# keys whose values are options, and the places of these
PLACES = {
    "vocab_size": "target_vocab_size", "n_positions": "max_length", "d_model": "dim", "num_layers": "depth",
    "num_heads": "heads", "d_kv": "attention.head_dim", "relative_attention_num_buckets": "position.num_buckets",
    "relative_attention_max_distance": "position.max_distance", "layer_norm_epsilon": "norm.eps",
    "dropout_rate": "dropout",
}  # fmt: skip


def feed(config: Config) -> str:
    """Which of our feed-forwards it is: their name, of which newer configurations hold the two halves besides."""
    name = config["feed_forward_proj"]
    gated, _, act = name.rpartition("-")
    if name == "gated-gelu":
        act = "gelu_new"
    halves = {"dense_act_fn": act, "is_gated_act": gated == "gated"}
    for key, half in halves.items():
        if config[key] is not None and config[key] != half:
            raise unsupported_value(config, key, config["model_type"], f"{half!r}, as feed_forward_proj={name!r} says,")
    projection = f"{gated}-{ACTS.get(act)}".removeprefix("-")
    if projection not in FEEDS:
        raise unsupported_value(
            config, "feed_forward_proj", config["model_type"], " or ".join(repr(name) for name in FEEDS)
        )
    return projection


def scaled(config: Config) -> bool:
    """Whether states are scaled before the output: as said, or else where the first T5's matrices are tied."""
    configured = config["scale_decoder_outputs"]
    return config["tie_word_embeddings"] if configured is None else configured


def stack(config: Config, side: str, branches: tuple[str, ...]) -> list[TensorRule]:
    """The rules of one side, whose blocks are lists of branches by number."""
    buckets, heads = config["relative_attention_num_buckets"], config["num_heads"]
    packed = Stacked([heads * config["d_kv"]] * 3)
    table = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    rules = [
        TensorRule(f"{side}.final_layer_norm.weight", f"{side}.norm.weight"),
        TensorRule(table, f"{side}.position.table", Shaped((buckets, heads), (1, buckets, heads))),
    ]
    for number, branch in enumerate(branches):
        theirs, ours = f"{side}.block.{{n}}.layer.{number}.", f"{side}.blocks.{{n}}.{branch}."
        rules.append(TensorRule(f"{theirs}layer_norm.weight", f"{ours}norm.weight"))
        if branch == "ffn":
            both = tuple(f"{theirs}DenseReluDense.wi_{one}.weight" for one in (0, 1))
            rules.append(TensorRule(f"{theirs}DenseReluDense.wo.weight", f"{ours}part.down.weight"))
            if feed(config) == "relu":
                rules.append(TensorRule(f"{theirs}DenseReluDense.wi.weight", f"{ours}part.up.weight"))
            else:
                rules.append(TensorRule(both, f"{ours}part.up.weight", Stacked([config["d_ff"]] * 2)))
            continue
        key = f"{theirs}{'SelfAttention' if branch == 'attend' else 'EncDecAttention'}."
        rules.append(TensorRule(tuple(f"{key}{one}.weight" for one in "qkv"), f"{ours}part.qkv.weight", packed))
        rules.append(TensorRule(f"{key}o.weight", f"{ours}part.out.weight"))
    return rules


class T5(Family):
    """T5 and its version 1.1 (Raffel et al., 2020)."""

    name = "t5"
    types = ("t5",)
    architectures: ClassVar[tuple[str, ...]] = ("T5ForConditionalGeneration", "T5WithLMHeadModel")
    task = "zoo.tasks.translation.Translation"
    keys = Keys({**READ, "scale_decoder_outputs": Key(None, bool, optional=True)}, FIXED, IGNORED, ALIASES)
    example: ClassVar = {
        "vocab_size": 41, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 1,
        "num_heads": 2, "relative_attention_num_buckets": 4, "relative_attention_max_distance": 8,
    }  # fmt: skip

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a published configuration. Raises UsageError for unsupported values."""
        tied, name = config["tie_word_embeddings"], feed(config)
        options = {
            "source_vocab_size": config["vocab_size"],
            "tie": "all" if tied else "inputs",
            "scale_embedding": False,
            "scale_logits": config["model_type"] == "t5" and scaled(config),
            "decoder_depth": config["num_decoder_layers"] or config["num_layers"],
            "hidden": budget(config["d_ff"]) if name.startswith("gated") else config["d_ff"],
            "position": part("position.T5"),
            "attention": part("attention.MultiHead", bias=False, out_bias=False, scale=1.0),
            "norm": part("norm.RMSNorm"),
            "ffn": FEEDS[name],
        }
        return read_places(config, PLACES, options)

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        ffn = inner(options["ffn"])
        name = {"MLP": "relu", "GEGLU": "gated-gelu", "SwiGLU": "gated-silu"}[name_of(options["ffn"])]
        hidden = options["hidden"] or 4 * options["dim"]
        return {
            **write_places(options, PLACES),
            "is_encoder_decoder": True,
            "tie_word_embeddings": options["tie"] == "all",
            "scale_decoder_outputs": options["scale_logits"],
            "d_ff": hidden if name == "relu" else width(hidden, ffn.get("multiple_of", 1)),
            "num_decoder_layers": options["decoder_depth"] or options["depth"],
            "feed_forward_proj": name,
        }

    def noticed(self, config: Config, tensors: Tensors) -> Config:
        """Whether embeddings are tied according to the tensors; new versions of transformers always claim it.

        Raises UsageError for an mT5 that is not tied and has no output matrix.
        """
        own, shared = tensors.get("lm_head.weight"), tensors.get("shared.weight")
        if config.get("model_type") == "mt5" and config.get("tie_word_embeddings") is False and own is None:
            raise unsupported_value(config, "tie_word_embeddings", "mt5", "true, as there is no tensor lm_head.weight,")
        if config.get("model_type") == "mt5" or shared is None:
            return config
        tied = own is None or (own.shape == shared.shape and torch.equal(own, shared))
        if config.get("tie_word_embeddings", True) is tied:
            return config
        return {"scale_decoder_outputs": config.get("tie_word_embeddings", True), **config, "tie_word_embeddings": tied}

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a configuration."""
        rules = [TensorRule("shared.weight", "target_embedding.weight")]
        for side, branches in (("encoder", ("attend", "ffn")), ("decoder", ("attend", "cross", "ffn"))):
            rules += stack(config, side, branches)
        tied = config["tie_word_embeddings"]
        if not tied:
            rules.append(TensorRule("lm_head.weight", "head.weight"))
        copies = {f"{side}.embed_tokens.weight": "shared.weight" for side in ("encoder", "decoder")}
        # an early T5 has a table of distances for cross-attention, which no version of the model reads
        unread = "decoder.block.{n}.layer.1.EncDecAttention.relative_attention_bias.weight"
        return MappedTensors(rules, (unread,), {**copies, "lm_head.weight": "shared.weight"} if tied else copies)


class MT5(T5):
    """mT5, a T5 of many languages (Xue et al., 2021)."""

    name = "mt5"
    types = ("mt5",)
    architectures = ("MT5ForConditionalGeneration",)
    keys = Keys(
        {
            **READ, "vocab_size": size(250112), "d_ff": size(1024), "num_layers": size(8), "num_heads": size(6),
            "feed_forward_proj": word("gated-gelu"),
        },
        {**FIXED, "scale_decoder_outputs": [False]}, IGNORED, ALIASES,
    )  # fmt: skip
