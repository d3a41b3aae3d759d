"""DeBERTa, versions 2 and 3 (He et al., 2021 and 2023), as masked language models and as classifiers."""

from __future__ import annotations

from functools import partial
from typing import Any

from zoo.errors import UsageError
from zoo.families.bert import (
    MASKED,
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
from zoo.families.family import WRITTEN, Config, Family, Options, activation, inner, name_of, part
from zoo.families.rule import Mapped, Rule, Tensors

TERMS = {"c2p": frozenset({"c2p"}), "p2c": frozenset({"p2c"}), "both": frozenset({"c2p", "p2c"})}
TABLE = "stack.blocks.0.attend.part.places."  # which all layers share
FIXED = {"conv_kernel_size": 0, "pooler_dropout": 0, "tie_word_embeddings": True, "z_steps": 0}


def refused(config: Config, key: str, right: str) -> UsageError:
    return UsageError(f"config.json: {key}={config.get(key)!r} is not supported in deberta-v2; {right} would be.")


def attention(config: Config) -> Options:
    """Disentangled attention with their options. Raises UsageError for those that it has not."""
    if not config.get("relative_attention", False):
        raise refused(config, "relative_attention", "true")
    dim, heads = config["hidden_size"], config["num_attention_heads"]
    if config.get("attention_head_size", dim // heads) != dim // heads:
        raise refused(config, "attention_head_size", str(dim // heads))
    told = config.get("pos_att_type") or ()
    said = frozenset(told.lower().split("|") if isinstance(told, str) else told)
    terms = next((name for name, kinds in TERMS.items() if kinds == said), None)
    if terms is None:
        raise refused(config, "pos_att_type", "'c2p', 'p2c' or both")
    normed = config.get("norm_rel_ebd", "none")
    if normed not in ("none", "layer_norm"):
        raise refused(config, "norm_rel_ebd", "'none' or 'layer_norm'")
    farthest = config.get("max_relative_positions", -1)
    farthest = config["max_position_embeddings"] if farthest < 1 else farthest
    buckets = config.get("position_buckets", -1)
    return part(
        "disentangled.Disentangled",
        span=buckets if buckets > 0 else farthest,
        reach=farthest if buckets > 0 else None,
        terms=terms,
        share=config.get("share_att_key", False),
        norm=part("norm.LayerNorm", eps=config.get("layer_norm_eps", 1e-7)) if normed == "layer_norm" else None,
    )


def body(config: Config) -> Options:
    if config.get("embedding_size", config["hidden_size"]) != config["hidden_size"]:
        raise refused(config, "embedding_size", str(config["hidden_size"]))
    return {
        **encoder({"layer_norm_eps": 1e-7, **config}),
        "max_length": config["max_position_embeddings"],
        "segments": config.get("type_vocab_size", 0),
        "position": part("position.Learned" if config.get("position_biased_input", True) else "position.NoPosition"),
        "attention": attention(config),
    }


def written(options: Options) -> dict[str, Any]:
    told = inner(options["attention"])
    return {
        **written_encoder(options),
        "model_type": "deberta-v2",
        "position_biased_input": name_of(options["position"]) == "Learned",
        "relative_attention": True,
        "pos_att_type": sorted(TERMS[told["terms"]]),
        "position_buckets": told["span"] if told["reach"] else -1,
        "max_relative_positions": told["reach"] or told["span"],
        "share_att_key": told["share"],
        "norm_rel_ebd": "layer_norm" if told["norm"] else "none",
        "legacy": True,
    }


def masked(config: Config) -> Options:
    name = activation(config.get("hidden_act", "gelu"))
    return {**body(config), "tie": True, "activation": name, "next_sentence": 0.0}


def rate(config: Config) -> Config:
    """Their name of the classifier's dropout in the words of BERT."""
    return {**config, "classifier_dropout": config.get("cls_dropout")}


def texts(config: Config) -> Options:
    if config.get("pooler_hidden_size", config["hidden_size"]) != config["hidden_size"]:
        raise refused(config, "pooler_hidden_size", str(config["hidden_size"]))
    name = config.get("pooler_hidden_act", "gelu")
    pooler = name if name == "tanh" else activation(name)
    return {**body(config), **labelled(rate(config)), "pool": "first", "pooler": pooler}


def tokens(config: Config) -> Options:
    return {**body(config), **labelled({**config, "classifier_dropout": None})}


def written_texts(options: Options) -> dict[str, Any]:
    told, pooler = written_tokens(options), options["pooler"]
    return {**told, "cls_dropout": options["head_dropout"], "pooler_hidden_act": WRITTEN.get(pooler, pooler)}


def written_tokens(options: Options) -> dict[str, Any]:
    labels = {key: value for key, value in written_labels(options).items() if key != "classifier_dropout"}
    return {**written(options), **labels}


def mapped(config: Config, task: str) -> Mapped:
    rules = layers("deberta", config["hidden_size"], ("query_proj", "key_proj", "value_proj"))
    rules.append(Rule("deberta.encoder.rel_embeddings.weight", f"{TABLE}table.weight"))
    rules += norm("deberta.encoder.LayerNorm", f"{TABLE}norm")
    for key, ours in (("key", "place_key"), ("query", "place_query")):
        theirs = f"deberta.encoder.layer.{{n}}.attention.self.pos_{key}_proj"
        rules += same(theirs, f"stack.blocks.{{n}}.attend.part.{ours}")
    first = "deberta.embeddings."
    rules.append(Rule(f"{first}token_type_embeddings.weight", "segment.weight"))
    places, unread = f"{first}position_embeddings.weight", [f"{first}position_ids"]
    if config.get("position_biased_input", True):
        rules.append(Rule(places, "stack.position.table.weight"))
    else:
        unread.append(places)  # version 3 has them for a decoder that only its pre-training had
    copies: dict[str, str] = {}
    if task == MASKED:
        unread += [f"mask_predictions.{name}.{end}" for name in ("dense", "LayerNorm", "classifier")
                   for end in ("weight", "bias")]  # fmt: skip
        if config.get("legacy", True):
            more, copies = bert_head(f"{first}word_embeddings.weight")
            rules += more
        else:
            head = "lm_predictions.lm_head."
            rules += same(f"{head}dense", "transform") + norm(f"{head}LayerNorm", "transform_norm")
            rules.append(Rule(f"{head}bias", "head.bias"))
    else:
        rules += (same("pooler.dense", "pooler") if task == TEXTS else []) + same("classifier", "head")
    return Mapped(rules, unread, copies)


def noticed(config: Config, tensors: Tensors) -> Config:
    """Which of the two heads it is, as the tensors are called: a checkpoint of version 3 does not say it."""
    new = any(key.startswith("lm_predictions.") for key in tensors)
    return {**config, "legacy": not new}


def family(name: str, architecture: str, task: str, read: Any, write: Any) -> Family:
    mapping = partial(mapped, task=task)
    return Family(name, ("deberta-v2",), (architecture,), task, read, write, mapping, FIXED, noticed)


DEBERTA = family("deberta-v2", "DebertaV2ForMaskedLM", MASKED, masked, written)
DEBERTA_TEXTS = family("deberta-v2-classifier", "DebertaV2ForSequenceClassification", TEXTS, texts, written_texts)
DEBERTA_TOKENS = family("deberta-v2-tagger", "DebertaV2ForTokenClassification", TOKENS, tokens, written_tokens)
