"""BART (Lewis et al., 2020) and the translators of Marian (Junczys-Dowmunt et al., 2018)."""

from __future__ import annotations

from typing import Any

from zoo.errors import UsageError
from zoo.families.family import WRITTEN, Config, Family, Options, activation, inner, part
from zoo.families.rule import Mapped, Rule, Shaped, Stacked

TASK = "zoo.tasks.translation.Translation"
OFFSET = 2  # rows in front of BART's first position
FIXED = {"normalize_before": False, "add_final_layer_norm": False, "tie_word_embeddings": True}


def both(config: Config, name: str) -> Any:
    """A field that must say the same of encoder and decoder."""
    one, other = config[f"encoder_{name}"], config[f"decoder_{name}"]
    if one != other:
        raise UsageError(f"config.json: encoder_{name}={one} and decoder_{name}={other} differ: our sides are alike.")
    return one


def options(config: Config) -> Options:
    bart = config["model_type"] == "bart"
    return {
        "source_vocab_size": config["vocab_size"],
        "target_vocab_size": config["vocab_size"],
        "max_length": config["max_position_embeddings"],
        "tie": "all",
        "scale_embedding": config.get("scale_embedding", False),
        "output_bias": True,
        "embedding_norm": bart,
        "dim": config["d_model"],
        "depth": config["encoder_layers"],
        "decoder_depth": config["decoder_layers"],
        "heads": both(config, "attention_heads"),
        "hidden": both(config, "ffn_dim"),
        "position": part("position.Learned", offset=OFFSET) if bart else part("position.Sinusoidal", layout="halves"),
        "attention": part("attention.MultiHead"),
        "norm": part("norm.LayerNorm"),
        "block": part("block.PostNorm"),
        "ffn": part("ffn.Plain", activation=activation(config.get("activation_function", "gelu"))),
        "dropout": config.get("dropout", 0.1),
        "attention_dropout": config.get("attention_dropout", 0.0),
    }


def config(options: Options) -> dict[str, Any]:
    hidden, heads = options["hidden"] or 4 * options["dim"], options["heads"]
    return {
        "is_encoder_decoder": True,
        "vocab_size": options["target_vocab_size"],
        "max_position_embeddings": options["max_length"],
        "scale_embedding": options["scale_embedding"],
        "d_model": options["dim"],
        "encoder_layers": options["depth"],
        "decoder_layers": options["decoder_depth"] or options["depth"],
        **{"encoder_attention_heads": heads, "decoder_attention_heads": heads},
        **{"encoder_ffn_dim": hidden, "decoder_ffn_dim": hidden},
        "activation_function": WRITTEN[inner(options["ffn"])["activation"]],
        "tie_word_embeddings": True,
        "dropout": options["dropout"],
        "attention_dropout": options["attention_dropout"],
    }


def bart_config(options: Options) -> dict[str, Any]:
    return {**config(options), "model_type": "bart"}


def marian_config(options: Options) -> dict[str, Any]:
    return {**config(options), "model_type": "marian", "decoder_vocab_size": options["target_vocab_size"]}


def mapped(config: Config) -> Mapped:
    bart, size = config["model_type"] == "bart", config["vocab_size"]
    rules = [
        Rule("model.shared.weight", "target_embedding.weight"),
        Rule("final_logits_bias", "bias.weight", Shaped((1, size), (size,))),
    ]
    constants = []
    for side in ("encoder", "decoder"):
        places = f"model.{side}.embed_positions.weight"
        if bart:
            rules.append(Rule(places, f"{side}.position.table.weight"))
            rules += [
                Rule(f"model.{side}.layernorm_embedding.{end}", f"{side}.entry.{end}") for end in ("weight", "bias")
            ]
        else:
            constants.append(places)
        rules += stack(config["d_model"], side)
    copies = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    return Mapped(rules, constants, dict.fromkeys(copies, "model.shared.weight"))


def stack(dim: int, side: str) -> list[Rule]:
    theirs, ours, rules = f"model.{side}.layers.{{n}}.", f"{side}.blocks.{{n}}.", []
    looks = [("self_attn", "attend")] + ([("encoder_attn", "cross")] if side == "decoder" else [])
    for end in ("weight", "bias"):
        for key, name in looks:
            three = tuple(f"{theirs}{key}.{one}_proj.{end}" for one in "qkv")
            rules.append(Rule(three, f"{ours}{name}.part.qkv.{end}", Stacked([dim] * 3)))
            rules.append(Rule(f"{theirs}{key}.out_proj.{end}", f"{ours}{name}.part.out.{end}"))
            rules.append(Rule(f"{theirs}{key}_layer_norm.{end}", f"{ours}{name}.norm.{end}"))
        rules.append(Rule(f"{theirs}fc1.{end}", f"{ours}ffn.part.up.{end}"))
        rules.append(Rule(f"{theirs}fc2.{end}", f"{ours}ffn.part.down.{end}"))
        rules.append(Rule(f"{theirs}final_layer_norm.{end}", f"{ours}ffn.norm.{end}"))
    return rules


BART = Family(
    "bart", ("bart",), ("BartForConditionalGeneration", "BartModel"), TASK, options, bart_config, mapped,
    {**FIXED, "static_position_embeddings": False, "normalize_embedding": True},
)  # fmt: skip
MARIAN = Family(
    "marian", ("marian",), ("MarianMTModel",), TASK, options, marian_config, mapped,
    {**FIXED, "static_position_embeddings": True, "share_encoder_decoder_embeddings": True},
)  # fmt: skip
