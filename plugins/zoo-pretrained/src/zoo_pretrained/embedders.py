"""Encoders without a head, which embed texts: BERT, RoBERTa and MPNet, as sentence-transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from zoo.inference.weight_files import LazyTensors
from zoo_pretrained import sentence_files
from zoo_pretrained.bert import BERT, RoBERTa
from zoo_pretrained.config_keys import Key, Keys
from zoo_pretrained.family import SENTENCES, Config, Family, Options
from zoo_pretrained.mpnet import MPNet
from zoo_pretrained.tensor_mapping import MappedTensors, ReadTensors, TensorRule, Tensors

TASK = "zoo_text.tasks.embedding.TextEmbedding"
ENCODER = ("embedding.", "segment.", "stack.")  # the beginnings of zoo's names of an encoder's tensors
# options of a masked language model alone, and what an export says of them
HEAD = {
    "tie": True, "activation": "gelu", "next_sentence": 0.0, "transform": True, "transform_bias": True,
    "output_bias": True,
}  # fmt: skip
DENSE, TEMPERATURE = "dense.", "sharpen.weight"
POOLED = ("pool", "features", "dense_activation", "dense_bias", "normalize", "max_tokens")


def headless(keys: Keys) -> Keys:
    """The keys of an encoder without a head, from those of a masked language model: no output is tied to anything."""
    fixed = {key: values for key, values in keys.fixed.items() if key != "tie_word_embeddings"}
    ignored = {*keys.ignored, "tie_word_embeddings"}
    return Keys({**keys.read, SENTENCES: Key(None, dict, optional=True)}, fixed, ignored, keys.aliases)


class Embedder(Family):
    """An encoder without a head; a subclass names the family of the same encoder as a masked language model.

    What follows the encoder is said by the files of sentence-transformers; without them, vectors are means of states.
    """

    kind = "family"  # a base of its own: packages derive families from it
    masked: ClassVar[type[Family]]
    task = TASK

    @property
    def body(self) -> Family:
        """The same encoder as a masked language model."""
        return self.masked()

    def claims_folder(self, folder: Path) -> bool:
        """Whether modules.json says what follows the encoder."""
        return sentence_files.modules(folder) is not None

    def read_beside(self, folder: Path) -> dict[str, Any]:
        """What modules.json and the files it names say, and the tokenizer's longest text."""
        return {SENTENCES: sentence_files.read(folder)}

    def tensors_beside(self, folder: Path, config: Config) -> Tensors:
        """The tensors of the dense layer, if there is one. Raises UsageError where widths do not fit the encoder's."""
        sentence_files.check_width(folder, self.options(config)["dim"])
        return sentence_files.dense_tensors(folder)

    def import_beside(self, folder: Path, config: Config) -> None:
        """Write the prompts into an import."""
        sentence_files.write_prompts(folder, config[SENTENCES] or sentence_files.DEFAULTS)

    def export_beside(
        self, folder: Path, run: Path, options: Options, config: dict[str, Any], tensors: LazyTensors
    ) -> tuple[dict[str, Any], LazyTensors]:
        """Write the files of sentence-transformers; the configuration and the tensors without what stands in them."""
        dense = {name: tensor for name, tensor in tensors.items() if name.startswith(DENSE)}
        sentence_files.write(folder, options, run, dense)
        encoder = tensors.renamed({name: name for name in tensors if name not in dense})
        return {key: value for key, value in config.items() if key != SENTENCES}, encoder

    def options(self, config: Config) -> Options:
        """Options of a task of embeddings. Raises UsageError for unsupported values."""
        options = self.body.options({**config, "architectures": [self.body.architecture]})
        encoder = {name: value for name, value in options.items() if name not in HEAD}
        settings = config[SENTENCES] or sentence_files.DEFAULTS
        pooled = {name: settings[name] for name in POOLED}
        most = pooled["max_tokens"] or encoder["max_length"]
        return {**encoder, **pooled, "max_tokens": min(most, encoder["max_length"])}

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task, with what its other files say."""
        settings = {**sentence_files.DEFAULTS, **{name: options[name] for name in POOLED}}
        settings["max_tokens"] = options["max_tokens"] or options["max_length"]
        return {**self.body.config({**options, **HEAD}), SENTENCES: settings}

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules of the encoder and of the dense layer; tensors of a head are not read."""
        mapping = self.body.map_tensors({**config, "architectures": [self.body.architecture]})
        own = [rule for rule in mapping.rules if rule.names[0].startswith(ENCODER)]
        heads = [key for rule in mapping.rules if rule not in own for key in rule.keys]
        dense = [TensorRule(f"{DENSE}{end}", f"{DENSE}{end}") for end in ("weight", "bias")]
        return MappedTensors([*own, *dense], [*mapping.constants, *heads, *mapping.copies], {})

    def encoder_name(self, config: Config) -> str:
        """What stands in front of the encoder's tensors where they were saved with a head, such as "bert."."""
        return self.map_tensors(config).rules[0].keys[0].partition(".")[0] + "."

    def read_tensors(self, config: Config, tensors: Tensors, source: str) -> ReadTensors:
        """As the base, of tensors with or without the encoder's name in front."""
        name, mapping = self.encoder_name(config), self.map_tensors(config)
        if not any(key.startswith(name) for key in tensors):
            heads = {key.partition(".")[0] + "." for key in mapping.constants if not key.startswith(name)} | {DENSE}
            names = {key if key.startswith(tuple(heads)) else name + key: key for key in tensors}
            tensors = LazyTensors.of(tensors).renamed(names)
        return super().read_tensors(config, tensors, source)

    def write_tensors(self, config: Config, tensors: Tensors) -> LazyTensors:
        """Published tensors without the encoder's name in front, and without a learned temperature."""
        ours = LazyTensors.of(tensors).renamed({key: key for key in tensors if key != TEMPERATURE})
        theirs, name = super().write_tensors(config, ours), self.encoder_name(config)
        return theirs.renamed({key.removeprefix(name): key for key in theirs})


class BERTEmbedder(Embedder):
    """BERT without a head, such as all-MiniLM-L6-v2 (Reimers and Gurevych, 2019; Wang et al., 2020)."""

    masked, name, types, example = BERT, "bert-embedder", BERT.types, BERT.example
    architectures: ClassVar[tuple[str, ...]] = ("BertModel",)
    keys = headless(BERT.keys)


class RoBERTaEmbedder(Embedder):
    """RoBERTa without a head, such as all-roberta-large-v1."""

    masked, name, types, example = RoBERTa, "roberta-embedder", RoBERTa.types, RoBERTa.example
    architectures = ("RobertaModel",)
    keys = headless(RoBERTa.keys)


class MPNetEmbedder(Embedder):
    """MPNet without a head, such as all-mpnet-base-v2."""

    masked, name, types, example = MPNet, "mpnet-embedder", MPNet.types, MPNet.example
    architectures = ("MPNetModel",)
    keys = headless(MPNet.keys)
