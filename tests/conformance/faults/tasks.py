"""Wrong tasks: what they sum, and what they count."""

import torch
import torch.nn.functional as F
from zoo_text.tasks.labelling import SequenceClassification, TokenClassification
from zoo_text.tasks.masked import MaskedLM

from faults import planted
from zoo.models.loss import cross_entropy
from zoo.tasks.lm import CausalLM
from zoo.tasks.task import Loss
from zoo.tasks.translation import Translation


@planted(padding_counts_for_nothing="the number of predictions")
class CountsEveryPlace(CausalLM):
    """The size is the number of places, padding included."""

    def loss(self, batch):
        return Loss(super().loss(batch).total, torch.tensor(batch["targets"].numel()))


@planted(padding_counts_for_nothing="the loss by")
class PaddingIsAToken(CausalLM):
    """Where there is nothing to predict it predicts the first token."""

    def loss(self, batch):
        targets = batch["targets"].clamp(min=0)
        return Loss(
            cross_entropy(self.net.states(batch["inputs"]), self.net.output, targets), (batch["targets"] >= 0).sum()
        )


@planted(padding_counts_for_nothing="evaluate() in evaluation")
class EvaluatesEveryPlace(CausalLM):
    """Training counts real tokens, and evaluation all places."""

    def evaluate(self, batch):
        return Loss(super().evaluate(batch).total, torch.tensor(batch["targets"].numel()))


@planted(evaluation_is_of_the_next_token="from the cross-entropy of the next tokens")
class ReportsItsObjective(CausalLM):
    """An evaluation reports what training sums, which holds the token behind the next one too."""

    def loss(self, batch):
        total, size = super().loss(batch)
        states = self.net.states(batch["inputs"])[:, :-1]
        return Loss(total + 0.3 * cross_entropy(states, self.net.output, batch["targets"][:, 1:]), size)


@planted(padding_counts_for_nothing="loss() in training")
class TrainsOnEveryPlace(CausalLM):
    """Evaluation counts real tokens, and training all places."""

    def loss(self, batch):
        total, size = super().loss(batch)
        return Loss(total, torch.tensor(batch["targets"].numel()) if self.training else size)


@planted(padding_counts_for_nothing="the number of predictions")
class CountsLongestRow(CausalLM):
    """The size is the longest row times the number of rows."""

    def loss(self, batch):
        return Loss(super().loss(batch).total, torch.tensor(batch["targets"].shape[0] * batch["inputs"].shape[1]))


@planted(padding_counts_for_nothing="the loss by")
class AveragesByWidth(CausalLM):
    """The sum is scaled by the width of the batch."""

    def loss(self, batch):
        total, size = super().loss(batch)
        return Loss(total * 16 / batch["inputs"].shape[1], size)


@planted(padding_counts_for_nothing="the number of predictions")
class CountsTargetPlaces(Translation):
    """The size of a translation batch counts padding."""

    def loss(self, batch):
        return Loss(super().loss(batch).total, torch.tensor(batch["target_valid"][:, 1:].numel()))


@planted(padding_counts_for_nothing="the loss by")
class TranslatesPadding(Translation):
    """All places of the target are predicted, and real ones counted."""

    def loss(self, batch):
        size = super().loss(batch).size
        everything = torch.ones_like(batch["target_valid"])
        return Loss(super().loss({**batch, "target_valid": everything}).total, size)


@planted(padding_counts_for_nothing="the loss by")
class SourcePaddingIsSeen(Translation):
    """The encoder is not told which source tokens are real."""

    def loss(self, batch):
        return super().loss({**batch, "source_valid": torch.ones_like(batch["source_valid"])})


@planted(padding_counts_for_nothing="the number of predictions")
class CountsBothSides(Translation):
    """The size counts the places of the source too."""

    def loss(self, batch):
        total, size = super().loss(batch)
        return Loss(total, size + batch["source"].numel())


@planted(padding_counts_for_nothing="takes a text that is shorter")
class ClaimsOneLength(CausalLM):
    """It declares that all texts have one length, and counts padding in shorter ones."""

    fixed_length = True

    def loss(self, batch):
        return Loss(super().loss(batch).total, torch.tensor(batch["targets"].numel()))


@planted(padding_counts_for_nothing="with --label_smoothing")
class SmoothsPadding(CausalLM):
    """With smoothing, padding adds to the loss."""

    def __init__(self, vocab_size: int | None = None, max_length: int | None = None, label_smoothing: float = 0.0, **m):
        super().__init__(vocab_size, max_length, **m)
        self.label_smoothing = label_smoothing

    def loss(self, batch):
        total, size = super().loss(batch)
        return Loss(total + self.label_smoothing * batch["targets"].numel(), size)


@planted(padding_counts_for_nothing="the loss by")
class ReadsPadding(SequenceClassification):
    """The encoder of a text is not told which tokens are real."""

    def forward(self, tokens, valid=None, segments=None):
        return super().forward(tokens, None, segments)


@planted(padding_counts_for_nothing="the loss by")
class WeighsByWidth(SequenceClassification):
    """Long rows count more, by their width in the batch."""

    def loss(self, batch):
        total, size = super().loss(batch)
        return Loss(total * batch["tokens"].shape[1], size)


@planted(padding_counts_for_nothing="the number of predictions")
class LabelsPadding(TokenClassification):
    """Padding has the first label."""

    def loss(self, batch):
        return super().loss({**batch, "labels": batch["labels"].clamp(min=0)})


@planted(padding_counts_for_nothing="evaluate() in evaluation")
class EvaluatesPadding(TokenClassification):
    """In evaluation padding has the first label."""

    def evaluate(self, batch):
        return super().evaluate({**batch, "labels": batch["labels"].clamp(min=0)})


@planted(padding_counts_for_nothing="the number of predictions")
class CountsWholeRows(MaskedLM):
    """The size is the number of tokens, hidden or not, real or not."""

    def loss(self, batch):
        return Loss(super().loss(batch).total, torch.tensor(batch["inputs"].numel()))


@planted(padding_counts_for_nothing="the loss by")
class FillsBesidePadding(MaskedLM):
    """Hidden tokens are told from padding too."""

    def forward(self, tokens, valid=None, segments=None):
        return super().forward(tokens, None, segments)

    def loss(self, batch):
        logits = self(batch["inputs"]).float().flatten(0, 1)
        return Loss(F.cross_entropy(logits, batch["targets"].flatten(), reduction="sum"), (batch["targets"] >= 0).sum())
