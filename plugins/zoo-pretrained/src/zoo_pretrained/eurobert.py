"""EuroBERT (Boizard et al., 2025): LLaMA's layers, whose tokens see each other."""

from __future__ import annotations

from typing import Any, ClassVar

from zoo_pretrained.bert import MASKED, TEXTS, TOKENS, labelled, same, written_labels
from zoo_pretrained.config_keys import BOOKKEEPING, Keys, flag, real, size, word
from zoo_pretrained.family import (
    ACTIVATION_NAMES,
    Config,
    Family,
    Options,
    activation,
    budget,
    inner,
    part,
    read_places,
    unsupported_value,
    width,
    write_places,
)
from zoo_pretrained.modernbert import ENCODER_PLACES, FIXED, OBJECT, POOLS, gate, gated, rope
from zoo_pretrained.tensor_mapping import MappedTensors, Stacked, TensorRule
from zoo_pretrained.vit import CLASSES

NAME = "eurobert"
READ = {
    "vocab_size": size(128256), "hidden_size": size(768), "intermediate_size": size(3072),
    "num_hidden_layers": size(12), "num_attention_heads": size(12), "num_key_value_heads": size(None),
    "head_dim": size(None), "hidden_act": word("silu"), "max_position_embeddings": size(8192),
    "rms_norm_eps": real(1e-5), "rope_parameters": OBJECT, "rope_theta": real(10000.0), "attention_bias": flag(False),
    "attention_dropout": real(0.0), "mlp_bias": flag(False),
}  # fmt: skip
IGNORED = BOOKKEEPING | {
    "classifier_dropout", "classifier_pooling", "clf_pooling", "hidden_dropout", "is_causal",
    "tie_word_embeddings",
}  # fmt: skip


def make_keys(task: str) -> Keys:
    """The keys of a model with a head."""
    if task == MASKED:
        return Keys({**READ, "tie_word_embeddings": flag(False)}, FIXED, IGNORED)
    pooling = {"classifier_pooling": word("late")} if task == TEXTS else {}
    return Keys({**READ, **CLASSES.read, **pooling}, {**CLASSES.fixed, **FIXED}, IGNORED)


class EuroBERT(Family):
    """EuroBERT (Boizard et al., 2025) as a masked language model."""

    name = NAME
    types = (NAME,)
    architectures: ClassVar[tuple[str, ...]] = ("EuroBertForMaskedLM",)
    task = MASKED
    keys = make_keys(MASKED)
    example: ClassVar = {
        "vocab_size": 41, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
        "num_key_value_heads": 2, "max_position_embeddings": 16,
    }  # fmt: skip

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a published configuration. Raises UsageError for unsupported values."""
        dim, heads = config["hidden_size"], config["num_attention_heads"]
        for key, whole in (("num_attention_heads", dim), ("num_key_value_heads", heads)):
            if whole % (config[key] or heads):
                raise unsupported_value(config, key, NAME, f"a divisor of {whole}")
        attention = {"kv_heads": config["num_key_value_heads"] or heads, "head_dim": config["head_dim"] or dim // heads}
        if attention["head_dim"] % 2:
            raise unsupported_value(config, "head_dim", NAME, "an even number")
        options: Options = {
            "hidden": budget(config["intermediate_size"]),
            "position": rope(config["rope_parameters"], config["rope_theta"], "config.json: rope_parameters", NAME),
            "attention": part("attention.MultiHead", **attention),
            "norm": part("norm.RMSNorm"),
            "ffn": gated(activation(config, "hidden_act"), config["mlp_bias"]),
        }
        read_places(config, {**ENCODER_PLACES, "rms_norm_eps": "norm.eps"}, options)
        if self.task == MASKED:
            return {**options, "tie": config["tie_word_embeddings"], "transform": False,
                    "output_bias": config["mlp_bias"]}  # fmt: skip
        options |= {**labelled({**config, "classifier_dropout": 0.0})}
        if self.task == TOKENS:
            return options
        if config["classifier_pooling"] not in ("bos", "mean", "late"):
            raise unsupported_value(config, "classifier_pooling", NAME, "'bos', 'mean' or 'late'")
        return {**options, "pooler": "gelu", "pool": POOLS[config["classifier_pooling"]]}

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        attention, ffn, heads = inner(options["attention"]), inner(options["ffn"]), options["heads"]
        config = {
            **write_places(options, {**ENCODER_PLACES, "rms_norm_eps": "norm.eps"}),
            "num_key_value_heads": attention["kv_heads"] or heads,
            "head_dim": attention["head_dim"] or options["dim"] // heads,
            "intermediate_size": width(options["hidden"] or 4 * options["dim"], ffn["multiple_of"]),
            "rope_parameters": {"rope_type": "default", "rope_theta": inner(options["position"])["base"]},
            "hidden_act": ACTIVATION_NAMES[gate(options["ffn"])],
            "mlp_bias": ffn["bias"],
        }
        if self.task == MASKED:
            return {**config, "tie_word_embeddings": options["tie"]}
        pools = {ours: theirs for theirs, ours in POOLS.items() if theirs != "cls"}
        pooling = {"classifier_pooling": pools[options["pool"]]} if self.task == TEXTS else {}
        return {**config, **written_labels(options), **pooling}

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a configuration."""
        theirs, ours, words = "model.layers.{n}.", "stack.blocks.{n}.", "model.embed_tokens.weight"
        heads = config["num_attention_heads"]
        wide = config["head_dim"] or config["hidden_size"] // heads
        sizes = [wide * heads, *[wide * (config["num_key_value_heads"] or heads)] * 2]
        rules = [TensorRule(words, "embedding.weight")]
        rules += same(f"{theirs}input_layernorm", f"{ours}attend.norm")
        rules += same(f"{theirs}post_attention_layernorm", f"{ours}ffn.norm") + same("model.norm", "stack.norm")
        rules += same(f"{theirs}self_attn.o_proj", f"{ours}attend.part.out")
        rules += same(f"{theirs}mlp.down_proj", f"{ours}ffn.part.down")
        for end in ("weight", "bias"):
            three = tuple(f"{theirs}self_attn.{word}_proj.{end}" for word in "qkv")
            rules.append(TensorRule(three, f"{ours}attend.part.qkv.{end}", Stacked(sizes)))
            both = tuple(f"{theirs}mlp.{word}_proj.{end}" for word in ("gate", "up"))
            rules.append(TensorRule(both, f"{ours}ffn.part.up.{end}", Stacked([config["intermediate_size"]] * 2)))
        if self.task != MASKED:
            return MappedTensors(rules + same("dense", "pooler") + same("classifier", "head"))
        rules.append(TensorRule("lm_head.bias", "head.bias"))
        if config["tie_word_embeddings"]:
            return MappedTensors(rules, copies={"lm_head.weight": words})
        return MappedTensors([*rules, TensorRule("lm_head.weight", "head.own.weight")])


class EuroBERTClassifier(EuroBERT):
    """EuroBERT that classifies texts."""

    name = f"{NAME}-classifier"
    architectures = ("EuroBertForSequenceClassification",)
    task = TEXTS
    keys = make_keys(TEXTS)


class EuroBERTTagger(EuroBERT):
    """EuroBERT that classifies tokens."""

    name = f"{NAME}-tagger"
    architectures = ("EuroBertForTokenClassification",)
    task = TOKENS
    keys = make_keys(TOKENS)
