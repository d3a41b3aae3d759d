"""Causal language modelling."""

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from zoo.models.language import LanguageModel
from zoo.models.loss import IGNORED
from zoo.tasks.schedule import Cosine
from zoo.tasks.task import Directions, Loss, OptimizerFactory, ScheduleFactory, Task


class LanguageTask(Task):
    """The base of tasks whose net gives the probability of each next token.

    Reports loss (nats per token), perplexity, and bits per byte of the text itself, which do not depend on how the text
    was cut into tokens, so they compare across tokenizers. Where only answers are predicted, as in synthetic data, also
    the share of their tokens that is right, ``accuracy``, and, of dialogues, the share of answers that are right from
    the first token to the last, ``exact``. ``net`` has vocab_size, max_length and ``begin``.
    """

    kind = "task"  # a base of its own: plugins derive tasks from it
    trained = "zoo.inference.language:TrainedLanguageModel"
    learns_from = "texts"
    example_data: ClassVar[tuple[str, ...]] = ("StdlibDocs", "TextFiles")
    prediction = "the next token"
    data_sizes: ClassVar = {"vocab_size": 64, "max_length": 64}
    monitored_metrics: ClassVar[Directions] = {
        "loss": "min", "bits_per_byte": "min", "accuracy": "max", "accuracy_longer": "max",
        "exact": "max",
    }  # fmt: skip
    mean_metrics: ClassVar[tuple[str, ...]] = ("bits_per_byte", "accuracy", "accuracy_longer", "exact")
    net: Any

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to logits (B, T, vocab_size)."""
        return self.net(tokens)

    def prediction_logits(self, net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Logits (N, vocab_size) of the N targets of a batch."""
        return net(batch["inputs"])[batch["targets"] >= 0]

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """Cross-entropy summed over tokens (), in nats, and their number (); inputs and targets (B, T)."""
        targets = batch["targets"]
        logits = self(batch["inputs"]).flatten(0, 1).float()
        return Loss(F.cross_entropy(logits, targets.flatten(), reduction="sum"), (targets >= 0).sum())

    def evaluate(self, batch: dict[str, Tensor]) -> Loss:
        """The same, after updating bits per byte; ``bytes`` (B,) is the length of each text.

        Where there is ``longer`` (B,), texts longer than those of training, accuracy is measured, theirs as
        ``accuracy_longer``; the loss leaves them out. Where there are ``answers`` (B, T), the number of the answer that
        each target belongs to, whole answers are measured as ``exact``: those that greedy decoding gives.
        """
        if "answers" in batch:
            self._score_whole_answers(batch)
        if "longer" in batch:
            batch = batch | {"targets": self._score_answers(batch)}
        return self.update_bits_per_byte(self.loss(batch), batch)

    def update_bits_per_byte(self, loss: Loss, batch: dict[str, Tensor]) -> Loss:
        """The loss of the next tokens of a batch, unchanged, for tasks that train with another one."""
        length = batch["bytes"].sum()
        if length > 0:
            self.metrics["bits_per_byte"].update(loss.total / math.log(2) / length, length)
        return loss

    def _score_answers(self, batch: dict[str, Tensor]) -> Tensor:
        targets, longer = batch["targets"], batch["longer"]
        right = self(batch["inputs"]).argmax(-1) == targets
        for name, rows in (("accuracy", ~longer), ("accuracy_longer", longer)):
            answers = (targets[rows] >= 0).sum()
            if answers > 0:
                self.metrics[name].update(right[rows].sum() / answers, answers)
        return targets.masked_fill(longer[:, None], IGNORED)

    def _score_whole_answers(self, batch: dict[str, Tensor]) -> None:
        answers, targets = batch["answers"], batch["targets"]
        right = self(batch["inputs"]).argmax(-1) == targets
        counts = answers.new_zeros(len(answers), int(answers.max()) + 1)
        tokens = counts.scatter_add(1, answers, torch.ones_like(answers))[:, 1:]
        hits = counts.scatter_add(1, answers, right.long())[:, 1:]
        real = tokens > 0
        if real.any():
            self.metrics["exact"].update((hits == tokens)[real].float())
            self.metrics["accuracy"].update(right[answers > 0].float())

    def compute_metrics(self, loss: float) -> dict[str, float]:
        """Perplexity exp(loss), and bits per byte."""
        return {"perplexity": math.exp(min(loss, 700.0)), **super().compute_metrics(loss)}

    def sample(self, rows: int) -> dict[str, Tensor]:
        """Random inputs and targets (rows, T), with their bytes (rows,)."""
        length = min(self.net.max_length, self.sample_length)
        tokens = torch.randint(self.net.vocab_size, (rows, length + 1))
        return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "bytes": torch.full((rows,), 4 * length)}

    def example(self) -> tuple[tuple[Tensor, ...], int]:
        """One text of tokens (1, T) on the meta device, and T."""
        length = self.net.max_length
        return (torch.zeros(1, length, dtype=torch.long, device="meta"),), length


class CausalLM(LanguageTask):
    """Predict each next token; reports loss (nats per token), perplexity, and bits per byte of the text itself.

    Bits per byte do not depend on how the text was cut into tokens, so they compare across tokenizers.
    """

    training_options: ClassVar[tuple[str, ...]] = ()
    pictures = "zoo.logging.attention_maps:language_pictures"
    net: LanguageModel

    def __init__(
        self,
        vocab_size: int | None = None,
        max_length: int | None = None,
        lr: float = 1e-3,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = Cosine,
        **model,
    ):
        """
        Args:
            vocab_size: number of tokens; what the data has unless given.
            max_length: longest sequence; what the data has unless given.
        """
        super().__init__(
            self.build_network(vocab_size=vocab_size, max_length=max_length, **model), lr, optimizer, schedule
        )

    @staticmethod
    def network(**options: Any) -> LanguageModel:
        """A LanguageModel: `build_network` calls this with the options of the task."""
        return LanguageModel(**options)

    prediction_logits = LanguageTask.prediction_logits  # its loss is the base's

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """As the base's, computed some rows of logits at a time."""
        targets = batch["targets"]
        return Loss(self.net.token_loss(self.net.states(batch["inputs"]), targets), (targets >= 0).sum())
