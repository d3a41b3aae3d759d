"""Masked language modelling."""

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import AdamW

from zoo.errors import UsageError
from zoo.tasks.schedule import Cosine
from zoo.tasks.task import Directions, Loss, OptimizerFactory, ScheduleFactory, Task, required_size
from zoo_text.models.encoder import MaskedLanguageModel
from zoo_text.models.pseudo_likelihood import pseudo_log_probabilities


class MaskedLM(Task):
    """Predict hidden tokens from those around them (BERT); reports loss (nats per hidden token) and accuracy.

    ``pseudo_perplexity`` hides each token of a few validation rows alone (Salazar et al., 2020). With ``next_sentence``
    the model also predicts whether a second text follows a first; ``follow_accuracy`` is how often it is right.
    """

    trained = "zoo_text.inference.masked:TrainedMaskedLM"
    training_options = ("mask_token",)
    learns_from = "texts with hidden tokens"
    example_data = ("MaskedText",)
    data_sizes: ClassVar = {"vocab_size": 64, "max_length": 64, "mask_token": 1}
    in_matrix = False  # its stack is used as Translation's encoder is
    monitored_metrics: ClassVar[Directions] = {"loss": "min", "accuracy": "max"}
    mean_metrics = ("accuracy", "pseudo_perplexity", "follow_accuracy")
    net: MaskedLanguageModel

    def __init__(
        self,
        vocab_size: int | None = None,
        max_length: int | None = None,
        mask_token: int | None = None,
        next_sentence: float = 0.0,
        lr: float = 1e-3,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = Cosine,
        **model,
    ):
        """
        Args:
            vocab_size: number of tokens; what the data has unless given.
            max_length: longest sequence; what the data has unless given.
            mask_token: number of the token that hides others; what the data has unless given.
            next_sentence: how many hidden tokens the loss of a pair of texts counts for; 0 leaves pairs out.
        """
        if next_sentence < 0:
            raise UsageError(f"model.next_sentence is a weight, got {next_sentence}.")
        net = self.build_network(vocab_size=vocab_size, max_length=max_length, next_sentence=next_sentence, **model)
        super().__init__(net, lr, optimizer, schedule)
        if next_sentence and net.segments < 2:
            raise UsageError("model.next_sentence needs two kinds of segments. Add --model.segments 2")
        self.next_sentence, self.mask_token = next_sentence, mask_token

    @staticmethod
    def network(**options: Any) -> MaskedLanguageModel:
        """A MaskedLanguageModel."""
        return MaskedLanguageModel(**options)

    def forward(self, tokens: Tensor, valid: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Tokens (B, T) to logits (B, T, vocab_size)."""
        return self.net(tokens, valid, segments)

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """Cross-entropy summed over hidden tokens (), in nats, and their number (); inputs and targets (B, T)."""
        states = self._states(batch)
        total, size = self._summed(self._hidden_logits(states, batch), batch)
        if self.next_sentence:
            total = total + self.next_sentence * F.cross_entropy(
                self.net.follow(states).float(), self._follows(batch), reduction="sum"
            )
        return Loss(total, size)

    def evaluate(self, batch: dict[str, Tensor]) -> Loss:
        """The same without the loss of pairs, after updating the metrics."""
        states = self._states(batch)
        logits = self._hidden_logits(states, batch)
        hidden = batch["targets"] >= 0
        if hidden.any():
            self.metrics["accuracy"].update((logits.argmax(-1) == batch["targets"][hidden]).float())
        if self.next_sentence:
            self.metrics["follow_accuracy"].update((self.net.follow(states).argmax(-1) == self._follows(batch)).float())
        if "scored" in batch and batch["scored"].any():
            self.metrics["pseudo_perplexity"].update(-self._alone(batch))  # nats, until they are reported
        return self._summed(logits, batch)

    def _states(self, batch: dict[str, Tensor]) -> Tensor:
        return self.net.states(batch["inputs"], batch["valid"], batch.get("segments"))

    def _hidden_logits(self, states: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Logits (N, V) of the hidden tokens only: the vocabulary is the widest matrix of a small model."""
        return self.net.fill(states[batch["targets"] >= 0]).float()

    @staticmethod
    def _summed(logits: Tensor, batch: dict[str, Tensor]) -> Loss:
        targets = batch["targets"][batch["targets"] >= 0]
        return Loss(F.cross_entropy(logits, targets, reduction="sum"), torch.tensor(len(targets), device=logits.device))

    @staticmethod
    def _follows(batch: dict[str, Tensor]) -> Tensor:
        if "follows" not in batch:
            raise UsageError("model.next_sentence needs rows of two texts. Add --data.next_sentence true")
        return batch["follows"]

    def _alone(self, batch: dict[str, Tensor]) -> Tensor:
        """The log-probability of each token that is to be scored, hidden alone."""
        mask = required_size(self.mask_token, "mask_token")
        rows = batch["scored"].any(1)
        whole, valid, scored = (batch[name][rows] for name in ("whole", "valid", "scored"))
        segments = batch["segments"][rows] if "segments" in batch else torch.zeros_like(whole)
        return pseudo_log_probabilities(self.net, (whole, valid, segments), scored, mask)

    def compute_metrics(self, loss: float) -> dict[str, float]:
        """Accuracies, and the pseudo-perplexity: exp of the mean negative log-probability."""
        values = super().compute_metrics(loss)
        return {**values, "pseudo_perplexity": math.exp(min(values["pseudo_perplexity"], 700.0))}

    def sample(self, rows: int) -> dict[str, Tensor]:
        """Random tokens (rows, T) of which 30 % are hidden, and targets (rows, T), -100 at the others."""
        length = min(self.net.max_length, self.sample_length)
        tokens = torch.randint(self.net.vocab_size, (rows, length))
        hidden = torch.rand(rows, length) < 0.3
        hidden[:, 0] = True
        valid = torch.arange(length) < torch.randint(2, length + 1, (rows, 1))
        return {
            "inputs": tokens.masked_fill(hidden, 0), "whole": tokens, "valid": valid,
            "targets": tokens.masked_fill(~(hidden & valid), -100),
        }  # fmt: skip

    def example(self) -> tuple[tuple[Tensor, ...], int]:
        """One text of tokens (1, T) on the meta device, and T."""
        length = self.net.max_length
        return (torch.zeros(1, length, dtype=torch.long, device="meta"),), length
