"""BERT (Devlin et al., 2019) and RoBERTa (Liu et al., 2019), as masked language models and as classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from zoo_pretrained.config_keys import BOOKKEEPING, Keys, real, size, word
from zoo_pretrained.family import (
    Config,
    Family,
    Options,
    activation,
    inner,
    part,
    read_places,
    unsupported_value,
    write_places,
)
from zoo_pretrained.tensor_mapping import MappedTensors, Stacked, TensorRule, Tensors, Transform
from zoo_pretrained.vit import CLASSES, PLACES, classes

MASKED = "zoo_text.tasks.masked.MaskedLM"
TEXTS, TOKENS = "zoo_text.tasks.labelling.SequenceClassification", "zoo_text.tasks.labelling.TokenClassification"
PAIRS = "BertForPreTraining"
TEXT_PLACES = {**PLACES, "vocab_size": "vocab_size"}
READ = {
    "vocab_size": size(30522), "hidden_size": size(768), "num_hidden_layers": size(12),
    "num_attention_heads": size(12), "intermediate_size": size(3072), "hidden_act": word("gelu"),
    "hidden_dropout_prob": real(0.1), "attention_probs_dropout_prob": real(0.1), "max_position_embeddings": size(512),
    "layer_norm_eps": real(1e-12),
}  # fmt: skip
FIXED: dict[str, list[Any]] = {
    "is_decoder": [False], "add_cross_attention": [False], "position_embedding_type": ["absolute"],
    "pruned_heads": [{}], "is_encoder_decoder": [False],
}  # fmt: skip
# of the sentence classifiers that BERT's own configurations describe, which no head reads
POOLER = {
    "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head",
    "pooler_type",
}  # fmt: skip


def make_keys(kind: str, task: str) -> Keys:
    """The keys of a model with a head: one that names classes has no tied matrix, one that fills in no classes."""
    read = {**READ, "type_vocab_size": size(2)}
    if kind != "bert":
        vocabulary = size(50265 if kind == "roberta" else 30522)
        read |= {"vocab_size": vocabulary, "pad_token_id": size(1, 0, optional=True)}
    if task == MASKED:
        return Keys(read, {**FIXED, "tie_word_embeddings": [True]}, BOOKKEEPING | POOLER | {"classifier_dropout"})
    read |= {**CLASSES.read, "classifier_dropout": real(None)}
    return Keys(read, {**FIXED, **CLASSES.fixed}, BOOKKEEPING | POOLER | {"tie_word_embeddings"})


class Reversed(Transform):
    """Rows in the opposite order: their first of two texts' answers is that the second follows, ours the last."""

    def read(self, theirs: list[Tensor]) -> Tensor:
        """Their tensor (rows, ...) with its rows in reverse order; the same shape."""
        return theirs[0].flip(0)

    def write(self, ours: Tensor) -> list[Tensor]:
        """A tensor of zoo (rows, ...) with its rows in reverse order; the same shape."""
        return [ours.flip(0).contiguous()]


def encoder(config: Config) -> Options:
    """What the encoders have in common, DeBERTa's included."""
    if config["hidden_size"] % config["num_attention_heads"]:
        divisor = f"a divisor of hidden_size={config['hidden_size']}"
        raise unsupported_value(config, "num_attention_heads", config["model_type"], divisor)
    parts = {"norm": part("norm.LayerNorm"), "block": part("block.PostNorm"), "ffn": part("ffn.MLP")}
    return read_places(config, TEXT_PLACES, {"embedding_norm": True, **parts})


def written_encoder(options: Options) -> dict[str, Any]:
    """The encoder's keys of a published configuration, for the options of zoo's task."""
    return {
        **write_places(options, TEXT_PLACES),
        "max_position_embeddings": options["max_length"],
        "type_vocab_size": options["segments"],
        "tie_word_embeddings": True,
    }


def offset(config: Config) -> int:
    """Rows in front of the first position's: RoBERTa's positions begin behind the number of its padding."""
    if config["model_type"] == "bert":
        return 0
    if config["pad_token_id"] is None:
        raise unsupported_value(
            config, "pad_token_id", config["model_type"], "the number behind which its positions begin"
        )
    return config["pad_token_id"] + 1


def body(config: Config) -> Options:
    """Options of zoo's encoder for a published configuration. Raises UsageError for unsupported values."""
    first = offset(config)
    if config["max_position_embeddings"] <= first:
        raise unsupported_value(config, "max_position_embeddings", config["model_type"], f"more than {first}")
    return {
        **encoder(config),
        "max_length": config["max_position_embeddings"] - first,
        "segments": config["type_vocab_size"],
        "position": part("position.Learned", offset=first),
        "attention": part("attention.MultiHead"),
    }


def config_of(options: Options, kind: str) -> dict[str, Any]:
    """The configuration of a BERT or RoBERTa (``kind``), without that of its head."""
    first = inner(options["position"])["offset"]
    config = {**written_encoder(options), "model_type": kind, "max_position_embeddings": options["max_length"] + first}
    return config if kind == "bert" else {**config, "pad_token_id": first - 1}


def labelled(config: Config) -> Options:
    """The classes of a classifier and its dropout."""
    rate = config["classifier_dropout"]
    return {"num_classes": classes(config), "head_dropout": config["hidden_dropout_prob"] if rate is None else rate}


def written_labels(options: Options) -> dict[str, Any]:
    """The keys of a published configuration that describe classes and the classifier's dropout."""
    count = options["num_classes"]
    return {
        "id2label": {str(n): f"LABEL_{n}" for n in range(count)},
        "label2id": {f"LABEL_{n}": n for n in range(count)},
        "classifier_dropout": options["head_dropout"],
    }


def same(theirs: str, ours: str) -> list[TensorRule]:
    """A weight and a bias."""
    return [TensorRule(f"{theirs}.{end}", f"{ours}.{end}") for end in ("weight", "bias")]


def norm(theirs: str, ours: str) -> list[TensorRule]:
    """A norm, whose gain and shift early checkpoints call gamma and beta."""
    old = [TensorRule(f"{theirs}.gamma", f"{ours}.weight"), TensorRule(f"{theirs}.beta", f"{ours}.bias")]
    return same(theirs, ours) + old


def layers(model: str, dim: int, names: Sequence[str]) -> list[TensorRule]:
    """Word embeddings, their norm and all layers; ``names`` are those of queries, keys and values."""
    theirs, ours = f"{model}.encoder.layer.{{n}}.", "stack.blocks.{n}."
    rules = [TensorRule(f"{model}.embeddings.word_embeddings.weight", "embedding.weight")]
    rules += norm(f"{model}.embeddings.LayerNorm", "stack.entry")
    for end in ("weight", "bias"):
        three = tuple(f"{theirs}attention.self.{name}.{end}" for name in names)
        rules.append(TensorRule(three, f"{ours}attend.part.qkv.{end}", Stacked([dim] * 3)))
    rules += same(f"{theirs}attention.output.dense", f"{ours}attend.part.out")
    rules += norm(f"{theirs}attention.output.LayerNorm", f"{ours}attend.norm")
    rules += same(f"{theirs}intermediate.dense", f"{ours}ffn.part.up")
    rules += same(f"{theirs}output.dense", f"{ours}ffn.part.down")
    return rules + norm(f"{theirs}output.LayerNorm", f"{ours}ffn.norm")


def bert_head(weights: str) -> tuple[list[TensorRule], dict[str, str]]:
    """The head of BERT and of older DeBERTas, and the copies of the tied matrix, which is called ``weights``."""
    first = "cls.predictions."
    rules = same(f"{first}transform.dense", "transform") + norm(f"{first}transform.LayerNorm", "transform_norm")
    copies = {f"{first}decoder.weight": weights, f"{first}decoder.bias": f"{first}bias"}
    return [*rules, TensorRule(f"{first}bias", "head.bias")], copies


class BERT(Family):
    """BERT (Devlin et al., 2019) as a masked language model."""

    name = "bert"
    types = ("bert",)
    architectures: ClassVar[tuple[str, ...]] = ("BertForMaskedLM", PAIRS)
    task = MASKED
    keys = make_keys("bert", MASKED)
    module = "bert"  # the first word of its tensors
    example: ClassVar = {
        "vocab_size": 41, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
        "max_position_embeddings": 16,
    }  # fmt: skip

    def options(self, config: Config) -> Options:
        """The head of a masked language model; RoBERTa's activation is always GELU."""
        bert, pairs = config["model_type"] == "bert", PAIRS in (config.get("architectures") or ())
        if pairs and config["type_vocab_size"] < 2:
            raise unsupported_value(config, "type_vocab_size", PAIRS, "2 or more, one for each text of a pair,")
        name = activation(config, "hidden_act") if bert else "gelu"
        return {**body(config), "tie": True, "activation": name, "next_sentence": float(pairs)}

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        return {**config_of(options, self.types[0]), **({"architectures": [PAIRS]} if options["next_sentence"] else {})}

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a configuration."""
        kind = self.module
        first = f"{kind}.embeddings."
        rules = layers(kind, config["hidden_size"], ("query", "key", "value"))
        rules.append(TensorRule(f"{first}position_embeddings.weight", "stack.position.table.weight"))
        rules.append(TensorRule(f"{first}token_type_embeddings.weight", "segment.weight"))
        unread = [f"{first}position_ids", f"{first}token_type_ids"]
        copies: dict[str, str] = {}
        pooled = [f"{kind}.pooler.dense.{end}" for end in ("weight", "bias")]
        if self.task == MASKED and kind == "bert":
            more, copies = bert_head(f"{first}word_embeddings.weight")
            rules += more
            if PAIRS in (config.get("architectures") or ()):
                rules += same("bert.pooler.dense", "pooler")
                rules += [
                    TensorRule(f"cls.seq_relationship.{end}", f"follows.{end}", Reversed())
                    for end in ("weight", "bias")
                ]
            else:
                unread += pooled
        elif self.task == MASKED:
            rules += same("lm_head.dense", "transform") + same("lm_head.layer_norm", "transform_norm")
            rules.append(TensorRule("lm_head.bias", "head.bias"))
            copies = {
                "lm_head.decoder.weight": f"{first}word_embeddings.weight",
                "lm_head.decoder.bias": "lm_head.bias",
            }
            unread += pooled
        elif self.task == TEXTS and kind == "bert":
            rules += same("bert.pooler.dense", "pooler") + same("classifier", "head")
        elif self.task == TEXTS:
            rules += same("classifier.dense", "pooler") + same("classifier.out_proj", "head")
            unread += pooled
        else:
            rules += same("classifier", "head")
            unread += pooled
        return MappedTensors(rules, unread, copies)

    def noticed(self, config: Config, tensors: Tensors) -> Config:
        """With the head of pairs, where its tensors are there: BERT's own checkpoints are called BertForMaskedLM."""
        return {**config, "architectures": [PAIRS]} if "cls.seq_relationship.weight" in tensors else config


class BERTClassifier(BERT):
    """BERT that classifies texts."""

    name = "bert-classifier"
    architectures = ("BertForSequenceClassification",)
    task = TEXTS
    keys = make_keys("bert", TEXTS)

    def options(self, config: Config) -> Options:
        """Options of a text classifier for a published configuration. Raises UsageError for unsupported values."""
        return {**body(config), **labelled(config), "pool": "first", "pooler": "tanh"}

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        return {**config_of(options, self.types[0]), **written_labels(options)}


class BERTTagger(BERTClassifier):
    """BERT that classifies tokens."""

    name = "bert-tagger"
    architectures = ("BertForTokenClassification",)
    task = TOKENS
    keys = make_keys("bert", TOKENS)

    def options(self, config: Config) -> Options:
        """Options of a token classifier for a published configuration. Raises UsageError for unsupported values."""
        return {**body(config), **labelled(config)}


class RoBERTa(BERT):
    """RoBERTa (Liu et al., 2019) as a masked language model."""

    name = "roberta"
    types = ("roberta",)
    architectures = ("RobertaForMaskedLM",)
    module = "roberta"
    keys = make_keys("roberta", MASKED)


class RoBERTaClassifier(BERTClassifier):
    """RoBERTa that classifies texts."""

    name = "roberta-classifier"
    types = ("roberta",)
    architectures = ("RobertaForSequenceClassification",)
    module = "roberta"
    keys = make_keys("roberta", TEXTS)


class RoBERTaTagger(BERTTagger):
    """RoBERTa that classifies tokens."""

    name = "roberta-tagger"
    types = ("roberta",)
    architectures = ("RobertaForTokenClassification",)
    module = "roberta"
    keys = make_keys("roberta", TOKENS)
