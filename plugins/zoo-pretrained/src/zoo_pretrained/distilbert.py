"""DistilBERT (Sanh et al., 2019): BERT's layers under other names, without kinds of tokens and a pooler."""

from __future__ import annotations

from typing import Any, ClassVar

from zoo_pretrained.bert import FIXED, MASKED, READ, TEXTS, TOKENS, encoder, labelled, norm, same, written_encoder
from zoo_pretrained.bert import written_labels as labels
from zoo_pretrained.config_keys import BOOKKEEPING, Keys, real, size
from zoo_pretrained.family import Config, Family, Options, part, unsupported_value
from zoo_pretrained.tensor_mapping import MappedTensors, Stacked, TensorRule
from zoo_pretrained.vit import CLASSES

NAME = "distilbert"
# BERT's keys, and DistilBERT's words for them
WORDS = {
    "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim", "hidden_act": "activation", "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}  # fmt: skip
RATES = {"seq_classif_dropout", "qa_dropout"}
EPS = 1e-12  # of every norm


def make_keys(task: str) -> Keys:
    """The keys of a model with a head."""
    read = {WORDS.get(key, key): value for key, value in READ.items() if key != "layer_norm_eps"} | {
        "n_layers": size(6)
    }
    ignored, aliases = BOOKKEEPING | RATES | {"sinusoidal_pos_embds", "tie_weights_"}, dict(list(WORDS.items())[:3])
    if task == MASKED:  # its table of positions is saved, however it began
        return Keys(read, {**FIXED, "tie_word_embeddings": [True]}, ignored, aliases)
    read |= {**CLASSES.read, **({"seq_classif_dropout": real(0.2)} if task == TEXTS else {})}
    return Keys(read, {**FIXED, **CLASSES.fixed}, ignored | {"tie_word_embeddings"}, aliases)


class DistilBERT(Family):
    """DistilBERT (Sanh et al., 2019) as a masked language model."""

    name = NAME
    types = (NAME,)
    architectures: ClassVar[tuple[str, ...]] = ("DistilBertForMaskedLM",)
    task = MASKED
    keys = make_keys(MASKED)
    example: ClassVar = {"vocab_size": 41, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a published configuration. Raises UsageError for unsupported values."""
        if config["dim"] % config["n_heads"]:
            raise unsupported_value(config, "n_heads", NAME, f"a divisor of dim={config['dim']}")
        bert = {**config, **{key: config[word] for key, word in WORDS.items()}, "layer_norm_eps": EPS}
        options = encoder(bert) | {"max_length": config["max_position_embeddings"], "segments": 0}
        options |= {"position": part("position.Learned"), "attention": part("attention.MultiHead")}
        if self.task == MASKED:
            return {**options, "tie": True, "activation": options["ffn"]["init_args"]["activation"]}
        rate = config["seq_classif_dropout" if self.task == TEXTS else "dropout"]
        head = {"pool": "first", "pooler": "relu"} if self.task == TEXTS else {}
        return {**options, **labelled({**bert, "classifier_dropout": rate}), **head}

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        bert = {**written_encoder(options), **({} if self.task == MASKED else labels(options))}
        config = {WORDS.get(key, key): value for key, value in bert.items()}
        rate = {"seq_classif_dropout": config["classifier_dropout"]} if self.task == TEXTS else {}
        return {key: config[key] for key in config if key in self.keys.read or key in self.keys.ignored} | rate

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a configuration."""
        first, theirs, ours = f"{NAME}.embeddings.", f"{NAME}.transformer.layer.{{n}}.", "stack.blocks.{n}."
        rules = [TensorRule(f"{first}word_embeddings.weight", "embedding.weight")]
        rules.append(TensorRule(f"{first}position_embeddings.weight", "stack.position.table.weight"))
        for end in ("weight", "bias"):
            three = tuple(f"{theirs}attention.{word}_lin.{end}" for word in "qkv")
            rules.append(TensorRule(three, f"{ours}attend.part.qkv.{end}", Stacked([config["dim"]] * 3)))
        rules += norm(f"{first}LayerNorm", "stack.entry") + norm(f"{theirs}sa_layer_norm", f"{ours}attend.norm")
        rules += same(f"{theirs}attention.out_lin", f"{ours}attend.part.out")
        rules += norm(f"{theirs}output_layer_norm", f"{ours}ffn.norm")
        rules += same(f"{theirs}ffn.lin1", f"{ours}ffn.part.up") + same(f"{theirs}ffn.lin2", f"{ours}ffn.part.down")
        if self.task != MASKED:
            rules += same("classifier", "head") + (same("pre_classifier", "pooler") if self.task == TEXTS else [])
            return MappedTensors(rules, [f"{first}position_ids"])
        rules += same("vocab_transform", "transform") + norm("vocab_layer_norm", "transform_norm")
        rules.append(TensorRule("vocab_projector.bias", "head.bias"))
        return MappedTensors(
            rules, [f"{first}position_ids"], {"vocab_projector.weight": f"{first}word_embeddings.weight"}
        )


class DistilBERTClassifier(DistilBERT):
    """DistilBERT that classifies texts."""

    name = f"{NAME}-classifier"
    architectures = ("DistilBertForSequenceClassification",)
    task = TEXTS
    keys = make_keys(TEXTS)


class DistilBERTTagger(DistilBERT):
    """DistilBERT that classifies tokens."""

    name = f"{NAME}-tagger"
    architectures = ("DistilBertForTokenClassification",)
    task = TOKENS
    keys = make_keys(TOKENS)
