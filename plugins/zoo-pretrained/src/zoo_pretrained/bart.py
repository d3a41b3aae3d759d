"""BART (Lewis et al., 2020), mBART, M2M100 with NLLB, and the translators of Marian (Junczys-Dowmunt et al., 2018)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from zoo.errors import UsageError
from zoo_pretrained.config_keys import BOOKKEEPING, Key, Keys, flag, real, size, word
from zoo_pretrained.family import Config, Family, Options, inner, part, read_places, unsupported_value, write_places
from zoo_pretrained.tensor_mapping import MappedTensors, Shaped, Stacked, TensorRule, Tensors, Transform

OFFSET = 2  # rows in front of BART's first position
READ = {
    "vocab_size": size(50265), "max_position_embeddings": size(1024), "d_model": size(1024),
    "encoder_layers": size(12), "encoder_ffn_dim": size(4096), "encoder_attention_heads": size(16),
    "decoder_layers": size(12), "decoder_ffn_dim": size(4096), "decoder_attention_heads": size(16),
    "activation_function": word("gelu"), "scale_embedding": flag(False), "dropout": real(0.1),
    "attention_dropout": real(0.0),
}  # fmt: skip
# keys whose values are options, and the places of these
PLACES = {
    "vocab_size": "target_vocab_size", "d_model": "dim", "encoder_layers": "depth", "encoder_attention_heads": "heads",
    "encoder_ffn_dim": "hidden", "activation_function": "ffn.activation", "dropout": "dropout",
    "attention_dropout": "attention_dropout",
}  # fmt: skip
FIXED: dict[str, list[Any]] = {
    "normalize_before": [False], "add_final_layer_norm": [False], "add_bias_logits": [False],
    "tie_word_embeddings": [True], "is_decoder": [False], "is_encoder_decoder": [True],
}  # fmt: skip
PRE_NORM: dict[str, list[Any]] = {"normalize_before": [True], "add_final_layer_norm": [True]}
IGNORED = BOOKKEEPING | {
    "activation_dropout", "classif_dropout", "classifier_dropout", "decoder_layerdrop", "encoder_layerdrop",
    "extra_pos_embeddings", "force_bos_token_to_be_generated", "init_std",
}  # fmt: skip
ALIASES = {
    "num_attention_heads": "encoder_attention_heads",
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
}


def make_keys(fixed: dict[str, list[Any]], **read: Key) -> Keys:
    """The keys of one of the two: what they have in common, and its own."""
    return Keys({**READ, **read}, {**FIXED, **fixed}, IGNORED, ALIASES)


def both(config: Config, name: str) -> Any:
    """A field that must say the same of encoder and decoder."""
    one, other = config[f"encoder_{name}"], config[f"decoder_{name}"]
    if one != other:
        raise UsageError(f"config.json: encoder_{name}={one} and decoder_{name}={other} differ: our sides are alike.")
    if name == "attention_heads" and config["d_model"] % one:
        raise unsupported_value(
            config, "encoder_attention_heads", config["model_type"], f"a divisor of {config['d_model']}"
        )
    return one


def both_sides(config: Config, block: str) -> Options:
    """The options of both stacks, Whisper's too. Raises UsageError where they are not alike."""
    for name in ("attention_heads", "ffn_dim"):
        both(config, name)
    kinds = {"attention": "attention.MultiHead", "norm": "norm.LayerNorm", "block": block, "ffn": "ffn.MLP"}
    options = {"decoder_depth": config["decoder_layers"], **{kind: part(path) for kind, path in kinds.items()}}
    return read_places(config, PLACES, options)


def written_sides(options: Options) -> dict[str, Any]:
    """The keys of a published configuration that describe both stacks."""
    config = {"is_encoder_decoder": True, "tie_word_embeddings": True, **write_places(options, PLACES)}
    alike = {f"decoder_{key}": config[f"encoder_{key}"] for key in ("attention_heads", "ffn_dim")}
    return {**config, **alike, "decoder_layers": options["decoder_depth"] or options["depth"]}


def layers(dim: int, side: str, biases: tuple[str, Transform] | None = None) -> list[TensorRule]:
    """The rules for the layers of one side, encoder or decoder, of width ``dim``; ``biases`` are the letters and the
    transform of those of queries, keys and values, where they are not one for each.
    """
    theirs, ours, rules = f"model.{side}.layers.{{n}}.", f"{side}.blocks.{{n}}.", []
    looks = [("self_attn", "attend")] + ([("encoder_attn", "cross")] if side == "decoder" else [])
    for end in ("weight", "bias"):
        for key, name in looks:
            letters, how = biases if biases and end == "bias" else ("qkv", Stacked([dim] * 3))
            keys = tuple(f"{theirs}{key}.{letter}_proj.{end}" for letter in letters)
            rules.append(TensorRule(keys, f"{ours}{name}.part.qkv.{end}", how))
            rules.append(TensorRule(f"{theirs}{key}.out_proj.{end}", f"{ours}{name}.part.out.{end}"))
            rules.append(TensorRule(f"{theirs}{key}_layer_norm.{end}", f"{ours}{name}.norm.{end}"))
        rules.append(TensorRule(f"{theirs}fc1.{end}", f"{ours}ffn.part.up.{end}"))
        rules.append(TensorRule(f"{theirs}fc2.{end}", f"{ours}ffn.part.down.{end}"))
        rules.append(TensorRule(f"{theirs}final_layer_norm.{end}", f"{ours}ffn.norm.{end}"))
    return rules


class BART(Family):
    """BART (Lewis et al., 2020)."""

    name = "bart"
    types = ("bart",)
    architectures: ClassVar[tuple[str, ...]] = ("BartForConditionalGeneration", "BartModel")
    task = "zoo.tasks.translation.Translation"
    keys = make_keys({"static_position_embeddings": [False], "normalize_embedding": [True]})
    prefix = "model."
    block, output_bias = "block.PostNorm", True
    learned = True  # positions stand in a table, and their sums with words are normalised
    example: ClassVar = {
        "vocab_size": 41, "max_position_embeddings": 16, "d_model": 16, "encoder_layers": 2, "encoder_ffn_dim": 24,
        "encoder_attention_heads": 2, "decoder_layers": 1, "decoder_ffn_dim": 24, "decoder_attention_heads": 2,
    }  # fmt: skip

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a published configuration. Raises UsageError for unsupported values."""
        options = {
            "source_vocab_size": config["vocab_size"],
            "max_length": config["max_position_embeddings"],
            "tie": "all",
            "scale_embedding": config["scale_embedding"],
            "output_bias": self.output_bias,
            "embedding_norm": self.learned,
            "position": self.position(config),
        }
        return {**options, **both_sides(config, self.block)}

    def position(self, config: Config) -> Options:
        """How positions enter."""
        return part("position.Learned", offset=OFFSET)

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        return {
            **written_sides(options),
            "max_position_embeddings": options["max_length"],
            "scale_embedding": options["scale_embedding"],
        }

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a configuration."""
        size = config["vocab_size"]
        rules = [
            TensorRule("model.shared.weight", "target_embedding.weight"),
            TensorRule("final_logits_bias", "bias.weight", Shaped((1, size), (size,))),
        ]
        constants = ["model.encoder.version", "model.decoder.version"]
        for side in ("encoder", "decoder"):
            places = f"model.{side}.embed_positions.weight"
            if self.learned:
                rules.append(TensorRule(places, f"{side}.position.table.weight"))
                rules += [
                    TensorRule(f"model.{side}.layernorm_embedding.{end}", f"{side}.entry.{end}")
                    for end in ("weight", "bias")
                ]
            else:
                constants += [places, f"{places}s"]
            if self.block == "block.PreNorm":
                last = (f"model.{side}.layer_norm", f"{side}.norm")
                rules += [TensorRule(f"{last[0]}.{end}", f"{last[1]}.{end}") for end in ("weight", "bias")]
            rules += layers(config["d_model"], side)
        copies = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
        return MappedTensors(rules, constants, dict.fromkeys(copies, "model.shared.weight"))

    def supplied(self, config: Config, tensors: Tensors) -> Tensors:
        """The bias of the logits, which starts at zero, where a BART was saved without its head."""
        headless = "BartModel" in (config.get("architectures") or ())
        if "final_logits_bias" in tensors or not (headless or config["model_type"] == "mbart"):
            return {}
        return {"final_logits_bias": torch.zeros(1, config["vocab_size"])}


class MBART(BART):
    """mBART (Liu et al., 2020), a BART of many languages, normalised in front of each part."""

    name = "mbart"
    types = ("mbart",)
    architectures = ("MBartForConditionalGeneration",)
    keys = make_keys({"static_position_embeddings": [False], "normalize_embedding": [True], **PRE_NORM})
    prefix, block = "", "block.PreNorm"


class M2M100(BART):
    """M2M100 (Fan et al., 2021) and NLLB (NLLB Team, 2022), with waves as positions and no bias of the logits."""

    name = "m2m_100"
    types = ("m2m_100",)
    architectures = ("M2M100ForConditionalGeneration",)
    keys = make_keys(
        {"static_position_embeddings": [True], "normalize_embedding": [False], **PRE_NORM},
        vocab_size=size(128112), activation_function=word("relu"), attention_dropout=real(0.1),
        scale_embedding=flag(True), pad_token_id=size(1, 0, optional=True),
    )  # fmt: skip
    prefix, block, output_bias, learned = "", "block.PreNorm", False, False

    def position(self, config: Config) -> Options:
        """Waves, whose positions begin behind the number of padding. Raises UsageError without that number."""
        if config["pad_token_id"] is None:
            right = "the number behind which its positions begin"
            raise unsupported_value(config, "pad_token_id", self.name, right)
        if config.get("decoder_start_token_id", 2) == config["pad_token_id"]:
            right = f"another token than pad_token_id={config['pad_token_id']}, which has no position,"
            raise unsupported_value(config, "decoder_start_token_id", self.name, right)
        if config["d_model"] % 2 or config["d_model"] < 4:
            raise unsupported_value(config, "d_model", self.name, "an even number of at least 4")
        return part("position.Sinusoidal", layout="halves", endpoint=True, offset=config["pad_token_id"] + 1)

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        return {**super().config(options), "pad_token_id": inner(options["position"])["offset"] - 1}


class Marian(BART):
    """The translators of Marian (Junczys-Dowmunt et al., 2018)."""

    name = "marian"
    types = ("marian",)
    architectures = ("MarianMTModel",)
    keys = make_keys(
        {
            "static_position_embeddings": [True], "normalize_embedding": [False],
            "share_encoder_decoder_embeddings": [True],
        },
        vocab_size=size(58101), decoder_vocab_size=size(None),
    )  # fmt: skip
    prefix, learned = "", False

    def position(self, config: Config) -> Options:
        """Sines in front of cosines."""
        return part("position.Sinusoidal", layout="halves")

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a published configuration. Raises UsageError for unsupported values."""
        if config["decoder_vocab_size"] not in (None, config["vocab_size"]):
            raise unsupported_value(config, "decoder_vocab_size", "marian", f"the vocab_size, {config['vocab_size']}")
        if config["d_model"] % 2:
            raise unsupported_value(config, "d_model", "marian", "an even number")
        return super().options(config)

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        return {**super().config(options), "decoder_vocab_size": options["target_vocab_size"]}
