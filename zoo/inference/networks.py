"""The network of each built-in task: what generates, translates and classifies, without what training needs.

A task is a LightningModule with a loss, metrics and an optimiser: importing those costs more time than a token. Its
network is a torch module, whose options are those of the task without those of training. Tasks of plugins, and tasks
that are more than a network with the same options, are rebuilt whole.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from zoo.inference.trained_model import Trained

Options = Mapping[str, Any]
TRAINING = frozenset({"lr", "optimizer", "schedule"})  # options that every task has and no network


class TaskNetwork(nn.Module):
    """What a checkpoint or an export of a task holds: its network, and the number of tokens that it was trained with.

    ``allow`` are the modules that the configuration may import besides zoo and its plugins.
    """

    tokens_seen: Tensor

    def __init__(self, net: nn.Module, allow: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.net: Any = net
        self.allow = allow
        self.register_buffer("tokens_seen", torch.zeros((), dtype=torch.long))

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.tokens_seen.device


def no_options(options: Options) -> dict[str, Any]:
    """No option of the network follows from those of training."""
    return {}


@dataclass(frozen=True)
class Network:
    """How a task makes its network, and the class that uses it.

    ``training`` are options of the task that its network lacks, besides TRAINING; ``derive`` gives the options of the
    network that follow from those of training.
    """

    path: str
    trained: str
    training: frozenset[str] = frozenset()
    derive: Callable[[Options], dict[str, Any]] = no_options

    def split_options(self, options: Options) -> tuple[dict[str, Any], dict[str, Any]]:
        """The options that a task shares with its network, and those of training."""
        training = self.training | TRAINING
        own = {name: value for name, value in options.items() if name not in training}
        others = {name: value for name, value in options.items() if name in training}
        return own, others

    def trained_class(self) -> type[Trained]:
        """The class of trained models of the task, imported."""
        module, _, name = self.trained.rpartition(".")
        cls: type[Trained] = getattr(importlib.import_module(module), name)
        return cls


def pairs_of_texts(options: Options) -> dict[str, Any]:
    """The head that tells whether a text follows another exists where its loss counts."""
    return {"pairs": (options.get("next_sentence") or 0.0) > 0}


LANGUAGE = "zoo.models.language.LanguageModel"
SMOOTHING = frozenset({"label_smoothing"})
TRANSLATION_LOSS = SMOOTHING | {"bleu_tokenize"}
TRANSLATION = "zoo.inference.translation.TrainedTranslation"
TEXT_CLASSES = "zoo.inference.labelling.TrainedSequenceClassification"
NETWORKS: Mapping[str, Network] = {
    "zoo.tasks.lm.CausalLM": Network(LANGUAGE, "zoo.inference.language.TrainedLanguageModel"),
    "zoo.tasks.infill.FIM": Network(LANGUAGE, "zoo.inference.language.TrainedInfill"),
    "zoo.tasks.translation.Translation": Network("zoo.models.seq2seq.Seq2Seq", TRANSLATION, TRANSLATION_LOSS),
    "zoo.tasks.recurrent.RNNSeq2Seq": Network("zoo.models.recurrent.RecurrentSeq2Seq", TRANSLATION, TRANSLATION_LOSS),
    "zoo.tasks.transcription.Transcription": Network(
        "zoo.models.audio.AudioSeq2Seq", "zoo.inference.transcription.TrainedTranscription", SMOOTHING
    ),
    "zoo.tasks.classification.Classification": Network(
        "zoo.models.vit.ViT", "zoo.inference.classification.TrainedClassification", SMOOTHING | {"mix"}
    ),
    "zoo.tasks.classification.ClipClassification": Network(
        "zoo.models.vit.ClipTransformer", "zoo.inference.classification.TrainedClips", SMOOTHING
    ),
    "zoo.tasks.masked.MaskedLM": Network(
        "zoo.models.encoder.MaskedLanguageModel", "zoo.inference.masked.TrainedMaskedLM",
        frozenset({"mask_token", "next_sentence"}), pairs_of_texts,
    ),
    "zoo.tasks.labelling.SequenceClassification": Network(
        "zoo.models.encoder.TextClassifier", TEXT_CLASSES, SMOOTHING
    ),
    "zoo.tasks.labelling.HierarchicalClassification": Network(
        "zoo.models.hierarchical.HierarchicalClassifier", TEXT_CLASSES, SMOOTHING
    ),
    "zoo.tasks.labelling.TokenClassification": Network(
        "zoo.models.encoder.TokenClassifier", "zoo.inference.labelling.TrainedTokenClassification", SMOOTHING
    ),
}  # fmt: skip
