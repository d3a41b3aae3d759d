"""Classification of texts and of their tokens."""

from abc import abstractmethod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from zoo.tasks.schedule import Linear
from zoo.tasks.task import Directions, Loss, OptimizerFactory, ScheduleFactory, Task, required_size
from zoo.value_checks import a_rate
from zoo_text.models.encoder import TextClassifier, TextEncoder, TokenClassifier
from zoo_text.models.hierarchical import HierarchicalClassifier

IGNORE = -100


class Labelling(Task):
    """What naming the class of a text and of a token share: loss, accuracy, and F1, a mean over the classes."""

    kind = "task"  # a base, as Task is: it has no network of its own
    learns_from = "texts with classes"
    example_data = ("DocTopics", "LabelledFiles")
    data_sizes: ClassVar = {"vocab_size": 64, "num_classes": 5, "max_length": 64}
    in_matrix = False  # its stack is used as Translation's encoder is
    monitored_metrics: ClassVar[Directions] = {"accuracy": "max", "f1": "max", "loss": "min"}
    net: TextEncoder

    def __init__(
        self,
        net: nn.Module,
        num_classes: int | None,
        label_smoothing: float,
        lr: float,
        optimizer: OptimizerFactory,
        schedule: ScheduleFactory,
    ):
        """
        Args:
            label_smoothing: share of the target spread over all classes.
        """
        super().__init__(net, lr, optimizer, schedule)
        num_classes = required_size(num_classes, "num_classes")
        a_rate(label_smoothing=label_smoothing)
        self.num_classes, self.label_smoothing = num_classes, label_smoothing
        metrics: dict[str, Metric | MetricCollection] = {
            "accuracy": MulticlassAccuracy(num_classes, average="micro", ignore_index=IGNORE),
            "f1": MulticlassF1Score(num_classes, average="macro", ignore_index=IGNORE),
        }  # of logits (N, num_classes) and labels (N,)
        self.metrics = MetricCollection(metrics, compute_groups=False)

    def forward(self, tokens: Tensor, valid: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Tokens (B, T) to logits: (B, num_classes), or (B, T, num_classes)."""
        return self.net(tokens, valid, segments)

    def prediction_logits(self, net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Logits (N, num_classes) of what has a label."""
        return self._labelled(net, batch)[0]

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """Cross-entropy summed over labels (), in nats, and their number ()."""
        return self._loss(*self._labelled(self, batch), self.label_smoothing)

    def evaluate(self, batch: dict[str, Tensor]) -> Loss:
        """The same without smoothing, after updating accuracy and F1."""
        logits, labels = self._labelled(self, batch)
        self.metrics.update(logits, labels)
        return self._loss(logits, labels, 0.0)

    def _labelled(self, net: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Logits (N, num_classes) and labels (N,), without what has no label."""
        labels = batch["labels"].flatten()
        logits = net(batch["tokens"], batch["valid"], batch.get("segments")).float().flatten(0, -2)
        return logits[labels != IGNORE], labels[labels != IGNORE]

    @staticmethod
    def _loss(logits: Tensor, labels: Tensor, smoothing: float) -> Loss:
        total = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
        return Loss(total, torch.tensor(len(labels), device=labels.device))

    @abstractmethod
    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> list[dict[str, Any]]:
        """A record per text."""

    def sample(self, rows: int) -> dict[str, Tensor]:
        """Random tokens (rows, T), of which ``valid`` (rows, T) are real, and labels."""
        length = min(self.net.max_length, self.sample_length)
        valid = torch.arange(length) < torch.randint(2, length + 1, (rows, 1))
        return {
            "tokens": torch.randint(self.net.vocab_size, (rows, length)), "valid": valid,
            "labels": torch.randint(self.num_classes, (rows,)),
        }  # fmt: skip

    def example(self) -> tuple[tuple[Tensor, ...], int]:
        """One text of tokens (1, T) on the meta device, and its number of predictions."""
        length = self.net.max_length
        return (torch.zeros(1, length, dtype=torch.long, device="meta"),), 1 if self.unit == "text" else length


class TextClassification(Labelling):
    """What tasks share that name the class of a text, by any ``net`` of tokens (B, T) and ``valid`` (B, T)."""

    kind = "task"  # a base of its own: plugins derive tasks from it
    unit = "text"
    trained = "zoo_text.inference.labelling:TrainedSequenceClassification"
    net: Any

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> list[dict[str, Any]]:
        """Per text its likeliest class, that one's probability, and its label."""
        logits = self(batch["tokens"], batch["valid"], batch.get("segments")).float()
        probability, classes = logits.softmax(-1).max(-1)
        rows = zip(classes.tolist(), probability.tolist(), batch["labels"].tolist(), strict=True)
        return [{"class": guess, "probability": chance, "label": label} for guess, chance, label in rows]


class SequenceClassification(TextClassification):
    """Name the class of a text; reports accuracy, F1 (mean over classes) and loss (nats per text)."""

    training_options = ("label_smoothing",)

    def __init__(
        self,
        vocab_size: int | None = None,
        num_classes: int | None = None,
        max_length: int | None = None,
        label_smoothing: float = 0.0,
        lr: float = 1e-3,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = Linear,
        **model,
    ):
        """
        Args:
            vocab_size: number of tokens; what the data has unless given.
            num_classes: number of classes; what the data has unless given.
            max_length: longest text in tokens; what the data has unless given.
        """
        net = self.build_network(num_classes=num_classes, vocab_size=vocab_size, max_length=max_length, **model)
        super().__init__(net, num_classes, label_smoothing, lr, optimizer, schedule)

    @staticmethod
    def network(**options: Any) -> nn.Module:
        """A TextClassifier."""
        return TextClassifier(**options)


class HierarchicalClassification(SequenceClassification):
    """Name the class of a long text, whose blocks are encoded one by one; reports as SequenceClassification does."""

    data_sizes: ClassVar = {"vocab_size": 64, "num_classes": 5, "max_length": 128}  # two blocks
    sample_length = 128

    @staticmethod
    def network(**options: Any) -> nn.Module:
        """A HierarchicalClassifier."""
        return HierarchicalClassifier(**options)


class TokenClassification(Labelling):
    """Name the class of each token of a text; reports accuracy, F1 (mean over classes) and loss (nats per token)."""

    trained = "zoo_text.inference.labelling:TrainedTokenClassification"
    example_data = ("PythonRoles", "TaggedFiles")
    training_options = ("label_smoothing",)

    def __init__(
        self,
        vocab_size: int | None = None,
        num_classes: int | None = None,
        max_length: int | None = None,
        label_smoothing: float = 0.0,
        lr: float = 1e-3,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = Linear,
        **model,
    ):
        """
        Args:
            vocab_size: number of tokens; what the data has unless given.
            num_classes: number of classes; what the data has unless given.
            max_length: longest text in tokens; what the data has unless given.
        """
        net = self.build_network(num_classes=num_classes, vocab_size=vocab_size, max_length=max_length, **model)
        super().__init__(net, num_classes, label_smoothing, lr, optimizer, schedule)

    @staticmethod
    def network(**options: Any) -> TokenClassifier:
        """A TokenClassifier."""
        return TokenClassifier(**options)

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> list[dict[str, Any]]:
        """Per text the likeliest class and the label of each token that has a label."""
        guess = self(batch["tokens"], batch["valid"], batch.get("segments")).argmax(-1)
        rows = zip(guess, batch["labels"], strict=True)
        return [
            {"classes": guesses[own != IGNORE].tolist(), "labels": own[own != IGNORE].tolist()} for guesses, own in rows
        ]

    def sample(self, rows: int) -> dict[str, Tensor]:
        """As the base's, with labels (rows, T), IGNORE at padding."""
        batch = super().sample(rows)
        labels = torch.randint(self.num_classes, batch["tokens"].shape)
        return {**batch, "labels": labels.masked_fill(~batch["valid"], IGNORE)}
