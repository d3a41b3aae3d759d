"""The loss of a set: each thing belongs to the one prediction that it fits best, by the cheapest pairing of all."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from zoo_vision.boxes import corners, giou

NOTHING = -1  # the class of a target's place that is empty
WORST = 1e6  # a cost that is not a number, as of a run that diverged


class Targets(NamedTuple):
    """What images hold: classes (B, M), -1 where there is nothing, and boxes (B, M, 4), centre and size in shares."""

    classes: Tensor
    boxes: Tensor


class Predictions(NamedTuple):
    """Logits (..., Q, C + 1), of which the last class is no object, and boxes (..., Q, 4) like those of targets."""

    logits: Tensor
    boxes: Tensor


class Pairs(NamedTuple):
    """Which prediction belongs to which target: three vectors of as many numbers."""

    image: Tensor
    query: Tensor
    target: Tensor


class Weights(NamedTuple):
    """What a class, a distance and an overlap count, in the costs of a pair as in the loss; what no object counts."""

    label: float = 1.0
    distance: float = 5.0
    overlap: float = 2.0
    nothing: float = 0.1


@torch.no_grad()
def costs(predictions: Predictions, target: Targets, weights: Weights) -> Tensor:
    """What each pair would cost, (B, Q, M): -p(class) + L1 - gIoU, weighted; of empty places whatever."""
    chance = predictions.logits.softmax(-1)
    label = target.classes.clamp(min=0)[:, None].expand(-1, chance.size(1), -1)
    ours, theirs = predictions.boxes[:, :, None], target.boxes[:, None]
    distance = (ours - theirs).abs().sum(-1)
    overlap = giou(corners(ours), corners(theirs))
    return weights.distance * distance - weights.label * chance.gather(-1, label) - weights.overlap * overlap


def match(cost: Tensor, classes: Tensor) -> Pairs:
    """The pairing of least cost, (B, Q, M) over the places that ``classes`` (B, M) fills (Kuhn, 1955)."""
    table = np.nan_to_num(cost.double().cpu().numpy(), nan=WORST, posinf=WORST, neginf=-WORST)
    matches: list[np.ndarray] = []
    for number, (costly, filled) in enumerate(zip(table, classes.cpu().numpy() != NOTHING, strict=True)):
        places = np.flatnonzero(filled)
        queries, targets = linear_sum_assignment(costly[:, places])
        matches.append(np.stack([np.full_like(queries, number), queries, places[targets]]))
    pairs = np.concatenate(matches, 1) if matches else np.zeros((3, 0), np.int64)
    return Pairs(*torch.from_numpy(pairs).to(cost.device))


def set_loss(
    predictions: Predictions, targets: Targets, weights: Weights, pairs: Pairs | None = None
) -> dict[str, Tensor]:
    """Sums () over a batch, weighted: ``label`` cross-entropy of all predictions, ``distance`` sum of |difference|,
    ``overlap`` 1 - gIoU over the pairs, the cheapest ones unless given (Carion et al., 2020).
    """
    if pairs is None:
        pairs = match(costs(predictions, targets, weights), targets.classes)
    image, query, target = pairs
    nothing = predictions.logits.size(-1) - 1
    labels = torch.full(predictions.logits.shape[:2], nothing, device=predictions.logits.device)
    labels[image, query] = targets.classes[image, target]
    heed = torch.where(labels == nothing, weights.nothing, 1.0)
    surprise = F.cross_entropy(predictions.logits.transpose(1, 2), labels, reduction="none")
    ours, theirs = predictions.boxes[image, query], targets.boxes[image, target].to(predictions.boxes.dtype)
    return {
        "label": weights.label * (heed * surprise).sum(),
        "distance": weights.distance * (ours - theirs).abs().sum(),
        "overlap": weights.overlap * (1 - giou(corners(ours), corners(theirs))).sum(),
    }
