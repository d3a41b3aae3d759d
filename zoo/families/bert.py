"""BERT (Devlin et al., 2019) and RoBERTa (Liu et al., 2019), as masked language models and as classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from zoo.errors import UsageError
from zoo.families.family import WRITTEN, Config, Family, Options, activation, inner, part
from zoo.families.rule import How, Mapped, Rule, Stacked, Tensors
from zoo.families.vit import classes

MASKED = "zoo.tasks.masked.MaskedLM"
TEXTS, TOKENS = "zoo.tasks.labelling.SequenceClassification", "zoo.tasks.labelling.TokenClassification"
PAIRS = "BertForPreTraining"
SINGLE = "single_label_classification"
FIXED = {
    "is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute",
    "tie_word_embeddings": True, "pruned_heads": {},
}  # fmt: skip


class Reversed(How):
    """Rows in the opposite order: their first of two texts' answers is that the second follows, ours the last."""

    def read(self, theirs: list[Tensor]) -> Tensor:
        return theirs[0].flip(0)

    def write(self, ours: Tensor) -> list[Tensor]:
        return [ours.flip(0).contiguous()]


def encoder(config: Config) -> Options:
    """What the encoders have in common, DeBERTa's included."""
    return {
        "vocab_size": config["vocab_size"],
        "dim": config["hidden_size"],
        "depth": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "hidden": config["intermediate_size"],
        "embedding_norm": True,
        "norm": part("norm.LayerNorm", eps=config.get("layer_norm_eps", 1e-12)),
        "block": part("block.PostNorm"),
        "ffn": part("ffn.Plain", activation=activation(config.get("hidden_act", "gelu"))),
        "dropout": config.get("hidden_dropout_prob", 0.1),
        "attention_dropout": config.get("attention_probs_dropout_prob", 0.1),
    }


def written_encoder(options: Options) -> dict[str, Any]:
    return {
        "vocab_size": options["vocab_size"],
        "hidden_size": options["dim"],
        "num_hidden_layers": options["depth"],
        "num_attention_heads": options["heads"],
        "intermediate_size": options["hidden"] or 4 * options["dim"],
        "hidden_act": WRITTEN[inner(options["ffn"])["activation"]],
        "hidden_dropout_prob": options["dropout"],
        "attention_probs_dropout_prob": options["attention_dropout"],
        "max_position_embeddings": options["max_length"],
        "type_vocab_size": options["segments"],
        "layer_norm_eps": inner(options["norm"])["eps"],
        "tie_word_embeddings": True,
    }


def offset(config: Config) -> int:
    """Rows in front of the first position's: RoBERTa's positions begin behind the number of its padding."""
    if config["model_type"] == "bert":
        return 0
    pad = config.get("pad_token_id", 1)
    if not isinstance(pad, int):
        raise UsageError(
            f"config.json: pad_token_id={pad!r} is not supported in roberta: its positions begin behind it."
        )
    return pad + 1


def body(config: Config) -> Options:
    kinds, first = config.get("type_vocab_size", 2), offset(config)
    if kinds < 1:
        raise UsageError(f"config.json: type_vocab_size={kinds} is not supported; 1 or more would be.")
    return {
        **encoder(config),
        "max_length": config["max_position_embeddings"] - first,
        "segments": kinds,
        "position": part("position.Learned", offset=first),
        "attention": part("attention.MultiHead"),
    }


def written(options: Options, kind: str) -> dict[str, Any]:
    first = inner(options["position"])["offset"]
    told = {**written_encoder(options), "model_type": kind, "max_position_embeddings": options["max_length"] + first}
    return told if kind == "bert" else {**told, "pad_token_id": first - 1}


def masked(config: Config) -> Options:
    """The head of a masked language model; RoBERTa's activation is always GELU."""
    bert, pairs = config["model_type"] == "bert", PAIRS in (config.get("architectures") or ())
    name = activation(config.get("hidden_act", "gelu")) if bert else "gelu"
    return {**body(config), "tie": True, "activation": name, "next_sentence": float(pairs)}


def written_masked(options: Options, kind: str) -> dict[str, Any]:
    return {**written(options, kind), **({"architectures": [PAIRS]} if options["next_sentence"] else {})}


def labelled(config: Config) -> Options:
    """The classes of a classifier and its dropout. Raises UsageError for another problem than one class of many."""
    problem = config.get("problem_type") or SINGLE
    if problem != SINGLE:
        raise UsageError(f"config.json: problem_type={problem!r} is not supported; {SINGLE!r} would be.")
    rate = config.get("classifier_dropout")
    return {
        "num_classes": classes(config),
        "head_dropout": config.get("hidden_dropout_prob", 0.1) if rate is None else rate,
    }


def written_labels(options: Options) -> dict[str, Any]:
    count = options["num_classes"]
    return {
        "id2label": {str(n): f"LABEL_{n}" for n in range(count)},
        "label2id": {f"LABEL_{n}": n for n in range(count)},
        "classifier_dropout": options["head_dropout"],
    }


def texts(config: Config) -> Options:
    return {**body(config), **labelled(config), "pool": "first", "pooler": "tanh"}


def tokens(config: Config) -> Options:
    return {**body(config), **labelled(config)}


def written_classifier(options: Options, kind: str) -> dict[str, Any]:
    return {**written(options, kind), **written_labels(options)}


def same(theirs: str, ours: str) -> list[Rule]:
    """A weight and a bias."""
    return [Rule(f"{theirs}.{end}", f"{ours}.{end}") for end in ("weight", "bias")]


def norm(theirs: str, ours: str) -> list[Rule]:
    """A norm, whose gain and shift early checkpoints call gamma and beta."""
    old = [Rule(f"{theirs}.gamma", f"{ours}.weight"), Rule(f"{theirs}.beta", f"{ours}.bias")]
    return same(theirs, ours) + old


def layers(model: str, dim: int, names: Sequence[str]) -> list[Rule]:
    """Word embeddings, their norm and all layers; ``names`` are those of queries, keys and values."""
    theirs, ours = f"{model}.encoder.layer.{{n}}.", "stack.blocks.{n}."
    rules = [Rule(f"{model}.embeddings.word_embeddings.weight", "embedding.weight")]
    rules += norm(f"{model}.embeddings.LayerNorm", "stack.entry")
    for end in ("weight", "bias"):
        three = tuple(f"{theirs}attention.self.{name}.{end}" for name in names)
        rules.append(Rule(three, f"{ours}attend.part.qkv.{end}", Stacked([dim] * 3)))
    rules += same(f"{theirs}attention.output.dense", f"{ours}attend.part.out")
    rules += norm(f"{theirs}attention.output.LayerNorm", f"{ours}attend.norm")
    rules += same(f"{theirs}intermediate.dense", f"{ours}ffn.part.up")
    rules += same(f"{theirs}output.dense", f"{ours}ffn.part.down")
    return rules + norm(f"{theirs}output.LayerNorm", f"{ours}ffn.norm")


def bert_head(weights: str) -> tuple[list[Rule], dict[str, str]]:
    """The head of BERT and of older DeBERTas, and the copies of the tied matrix, which is called ``weights``."""
    first = "cls.predictions."
    rules = same(f"{first}transform.dense", "transform") + norm(f"{first}transform.LayerNorm", "transform_norm")
    copies = {f"{first}decoder.weight": weights, f"{first}decoder.bias": f"{first}bias"}
    return [*rules, Rule(f"{first}bias", "head.bias")], copies


def mapped(config: Config, task: str) -> Mapped:
    kind = config["model_type"]
    first = f"{kind}.embeddings."
    rules = layers(kind, config["hidden_size"], ("query", "key", "value"))
    rules.append(Rule(f"{first}position_embeddings.weight", "stack.position.table.weight"))
    rules.append(Rule(f"{first}token_type_embeddings.weight", "segment.weight"))
    unread = [f"{first}position_ids", f"{first}token_type_ids"]
    copies: dict[str, str] = {}
    pooled = [f"{kind}.pooler.dense.{end}" for end in ("weight", "bias")]
    if task == MASKED and kind == "bert":
        more, copies = bert_head(f"{first}word_embeddings.weight")
        rules += more
        if PAIRS in (config.get("architectures") or ()):
            rules += same("bert.pooler.dense", "pooler")
            rules += [Rule(f"cls.seq_relationship.{end}", f"follows.{end}", Reversed()) for end in ("weight", "bias")]
        else:
            unread += pooled
    elif task == MASKED:
        rules += same("lm_head.dense", "transform") + same("lm_head.layer_norm", "transform_norm")
        rules.append(Rule("lm_head.bias", "head.bias"))
        copies = {"lm_head.decoder.weight": f"{first}word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias"}
        unread += pooled
    elif task == TEXTS and kind == "bert":
        rules += same("bert.pooler.dense", "pooler") + same("classifier", "head")
    elif task == TEXTS:
        rules += same("classifier.dense", "pooler") + same("classifier.out_proj", "head")
        unread += pooled
    else:
        rules += same("classifier", "head")
        unread += pooled
    return Mapped(rules, unread, copies)


def noticed(config: Config, tensors: Tensors) -> Config:
    """With the head of pairs, where its tensors are there: BERT's own checkpoints are called BertForMaskedLM."""
    return {**config, "architectures": [PAIRS]} if "cls.seq_relationship.weight" in tensors else config


def families(kind: str, name: str) -> tuple[Family, Family, Family]:
    """A model's three families, one for each head."""
    heads = (f"{name}ForMaskedLM", PAIRS) if kind == "bert" else (f"{name}ForMaskedLM",)
    write = partial(written_classifier, kind=kind)
    return (
        Family(kind, (kind,), heads, MASKED, masked, partial(written_masked, kind=kind), partial(mapped, task=MASKED),
               FIXED, noticed),
        Family(f"{kind}-classifier", (kind,), (f"{name}ForSequenceClassification",), TEXTS, texts, write,
               partial(mapped, task=TEXTS), FIXED),
        Family(f"{kind}-tagger", (kind,), (f"{name}ForTokenClassification",), TOKENS, tokens, write,
               partial(mapped, task=TOKENS), FIXED),
    )  # fmt: skip


BERT, BERT_TEXTS, BERT_TOKENS = families("bert", "Bert")
ROBERTA, ROBERTA_TEXTS, ROBERTA_TOKENS = families("roberta", "Roberta")
