"""DeBERTa, versions 2 and 3 (He et al., 2021 and 2023), as masked language models and as classifiers."""

from __future__ import annotations

from typing import Any, ClassVar

from zoo_pretrained.bert import (
    FIXED,
    MASKED,
    READ,
    TEXTS,
    TOKENS,
    bert_head,
    encoder,
    labelled,
    layers,
    norm,
    same,
    written_encoder,
    written_labels,
)  # fmt: skip
from zoo_pretrained.config_keys import BOOKKEEPING, Key, Keys, flag, real, size, word
from zoo_pretrained.family import (
    ACTIVATION_NAMES,
    Config,
    Family,
    Options,
    activation,
    inner,
    name_of,
    part,
    unsupported_value,
)
from zoo_pretrained.tensor_mapping import MappedTensors, TensorRule, Tensors
from zoo_pretrained.vit import CLASSES

TERMS = {"c2p": frozenset({"c2p"}), "p2c": frozenset({"p2c"}), "both": frozenset({"c2p", "p2c"})}
TABLE = "stack.blocks.0.attend.part.places."  # which all layers share
NAME = "deberta-v2"


def make_keys(task: str) -> Keys:
    """The keys of a model with a head."""
    read = {
        **READ, "vocab_size": size(128100), "hidden_size": size(1536), "num_hidden_layers": size(24),
        "num_attention_heads": size(24), "intermediate_size": size(6144), "layer_norm_eps": real(1e-7),
        "type_vocab_size": size(0, 0), "relative_attention": flag(False), "max_relative_positions": Key(-1, int),
        "position_buckets": Key(-1, int), "position_biased_input": flag(True), "pos_att_type": Key(None, object),
        "share_att_key": flag(False), "norm_rel_ebd": word("none"), "legacy": flag(True),
        "attention_head_size": size(None), "embedding_size": size(None),
    }  # fmt: skip
    fixed = {**FIXED, "conv_kernel_size": [0], "z_steps": [0], **({} if task == MASKED else CLASSES.fixed)}
    ignored = BOOKKEEPING | {"conv_act", "conv_groups", "padding_idx"}
    pooler = {"pooler_dropout", "pooler_hidden_act", "pooler_hidden_size"}
    if task == TEXTS:
        read |= {"pooler_hidden_act": word("gelu"), "pooler_hidden_size": size(None), "cls_dropout": real(None)}
        return Keys({**read, **CLASSES.read}, {**fixed, "pooler_dropout": [0, 0.0]}, ignored | {"tie_word_embeddings"})
    ignored |= pooler | {"cls_dropout"}
    if task == MASKED:
        return Keys(read, {**fixed, "tie_word_embeddings": [True]}, ignored)
    return Keys({**read, **CLASSES.read}, fixed, ignored | {"tie_word_embeddings"})


def attention(config: Config) -> Options:
    """Disentangled attention with their options. Raises UsageError for those that it has not."""
    if not config["relative_attention"]:
        raise unsupported_value(config, "relative_attention", NAME, "true")
    dim, heads = config["hidden_size"], config["num_attention_heads"]
    if config["attention_head_size"] not in (None, dim // heads):
        raise unsupported_value(config, "attention_head_size", NAME, str(dim // heads))
    text = config["pos_att_type"] or ()
    words = text.lower().split("|") if isinstance(text, str) else text
    strings = isinstance(words, (list, tuple)) and all(isinstance(word, str) for word in words)
    types = {word.strip() for word in words} if strings else set()
    terms = next((name for name, kinds in TERMS.items() if kinds == types), None)
    if terms is None:
        raise unsupported_value(config, "pos_att_type", NAME, "'c2p', 'p2c' or both")
    normed = config["norm_rel_ebd"]
    if normed not in ("none", "layer_norm"):
        raise unsupported_value(config, "norm_rel_ebd", NAME, "'none' or 'layer_norm'")
    farthest = config["max_relative_positions"]
    farthest = config["max_position_embeddings"] if farthest < 1 else farthest
    buckets = config["position_buckets"]
    if buckets == 1 or (buckets < 1 and farthest < 2):
        raise unsupported_value(
            config, "position_buckets" if buckets == 1 else "max_relative_positions", NAME, "2 or more"
        )
    if buckets > 1 and farthest - 1 <= buckets // 2:
        raise unsupported_value(
            config, "max_relative_positions", NAME, f"more than {buckets // 2 + 1}, half of position_buckets,"
        )
    return part(
        "disentangled.Disentangled",
        span=buckets if buckets > 0 else farthest,
        max_distance=farthest if buckets > 0 else None,
        pos_att_type=terms,
        share_att_key=config["share_att_key"],
        norm=part("norm.LayerNorm", eps=config["layer_norm_eps"]) if normed == "layer_norm" else None,
    )


def body(config: Config) -> Options:
    """Options of zoo's encoder for a published configuration. Raises UsageError for unsupported values."""
    if config["embedding_size"] not in (None, config["hidden_size"]):
        raise unsupported_value(config, "embedding_size", NAME, str(config["hidden_size"]))
    return {
        **encoder(config),
        "max_length": config["max_position_embeddings"],
        "segments": config["type_vocab_size"],
        "position": part("position.Learned" if config["position_biased_input"] else "position.NoPosition"),
        "attention": attention(config),
    }


def rate(config: Config) -> Config:
    """Their name of the classifier's dropout in the words of BERT."""
    return {**config, "classifier_dropout": config["cls_dropout"]}


def class_labels(options: Options) -> dict[str, Any]:
    """The keys of a published configuration that describe classes."""
    return {key: value for key, value in written_labels(options).items() if key != "classifier_dropout"}


class DeBERTa(Family):
    """DeBERTa, versions 2 and 3 (He et al., 2021 and 2023), as a masked language model."""

    name = NAME
    types = (NAME,)
    architectures = ("DebertaV2ForMaskedLM",)
    task = MASKED
    keys = make_keys(MASKED)
    example: ClassVar = {
        "vocab_size": 41, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
        "max_position_embeddings": 16, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "legacy": True,
        "share_att_key": True, "norm_rel_ebd": "layer_norm", "position_buckets": 4, "position_biased_input": False,
    }  # fmt: skip

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a published configuration. Raises UsageError for unsupported values."""
        return {**body(config), "tie": True, "activation": activation(config, "hidden_act"), "next_sentence": 0.0}

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        attention_options = inner(options["attention"])
        return {
            **written_encoder(options),
            "position_biased_input": name_of(options["position"]) == "Learned",
            "relative_attention": True,
            "pos_att_type": sorted(TERMS[attention_options["pos_att_type"]]),
            "position_buckets": attention_options["span"] if attention_options["max_distance"] else -1,
            "max_relative_positions": attention_options["max_distance"] or attention_options["span"],
            "share_att_key": attention_options["share_att_key"],
            "norm_rel_ebd": "layer_norm" if attention_options["norm"] else "none",
            "legacy": True,
        }

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a configuration."""
        rules = layers("deberta", config["hidden_size"], ("query_proj", "key_proj", "value_proj"))
        rules.append(TensorRule("deberta.encoder.rel_embeddings.weight", f"{TABLE}table.weight"))
        rules += norm("deberta.encoder.LayerNorm", f"{TABLE}norm")
        for key, ours in (("key", "place_key"), ("query", "place_query")):
            theirs = f"deberta.encoder.layer.{{n}}.attention.self.pos_{key}_proj"
            rules += same(theirs, f"stack.blocks.{{n}}.attend.part.{ours}")
        first = "deberta.embeddings."
        rules.append(TensorRule(f"{first}token_type_embeddings.weight", "segment.weight"))
        places, unread = f"{first}position_embeddings.weight", [f"{first}position_ids"]
        if config["position_biased_input"]:
            rules.append(TensorRule(places, "stack.position.table.weight"))
        else:
            unread.append(places)  # version 3 has them for a decoder that only its pre-training had
        copies: dict[str, str] = {}
        if self.task == MASKED:
            unread += [f"mask_predictions.{name}.{end}" for name in ("dense", "LayerNorm", "classifier")
                       for end in ("weight", "bias")]  # fmt: skip
            if config["legacy"]:
                more, copies = bert_head(f"{first}word_embeddings.weight")
                rules += more
            else:
                head = "lm_predictions.lm_head."
                rules += same(f"{head}dense", "transform") + norm(f"{head}LayerNorm", "transform_norm")
                rules.append(TensorRule(f"{head}bias", "head.bias"))
        else:
            rules += (same("pooler.dense", "pooler") if self.task == TEXTS else []) + same("classifier", "head")
        return MappedTensors(rules, unread, copies)

    def noticed(self, config: Config, tensors: Tensors) -> Config:
        """Which of the two heads it is, as the tensors are called: a checkpoint of version 3 does not say it."""
        new = any(key.startswith("lm_predictions.") for key in tensors)
        return {**config, "legacy": not new}


class DeBERTaClassifier(DeBERTa):
    """DeBERTa that classifies texts."""

    name = "deberta-v2-classifier"
    architectures = ("DebertaV2ForSequenceClassification",)
    task = TEXTS
    keys = make_keys(TEXTS)

    def options(self, config: Config) -> Options:
        """Options of a text classifier for a published configuration. Raises UsageError for unsupported values."""
        if config["pooler_hidden_size"] not in (None, config["hidden_size"]):
            raise unsupported_value(config, "pooler_hidden_size", NAME, str(config["hidden_size"]))
        pooler = "tanh" if config["pooler_hidden_act"] == "tanh" else activation(config, "pooler_hidden_act")
        return {**body(config), **labelled(rate(config)), "pool": "first", "pooler": pooler}

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        pooler = options["pooler"]
        return {
            **super().config(options),
            **class_labels(options),
            "cls_dropout": options["head_dropout"],
            "pooler_hidden_act": ACTIVATION_NAMES.get(pooler, pooler),
        }


class DeBERTaTagger(DeBERTa):
    """DeBERTa that classifies tokens."""

    name = "deberta-v2-tagger"
    architectures = ("DebertaV2ForTokenClassification",)
    task = TOKENS
    keys = make_keys(TOKENS)

    def options(self, config: Config) -> Options:
        """Options of a token classifier for a published configuration. Raises UsageError for unsupported values."""
        return {**body(config), **labelled({**config, "classifier_dropout": None})}

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        return {**super().config(options), **class_labels(options)}
