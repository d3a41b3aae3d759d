"""Average precision: how well detections, from the surest to the least sure, find what there is."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from zoo_vision.boxes import corners, iou
from zoo_vision.setloss import NOTHING, Predictions, Targets

LEVELS = np.linspace(0.5, 0.95, 10)  # of IoU, from which on a box counts as found
RECALLS = np.linspace(0, 1, 101)  # at which precision is read


class AveragePrecision(Metric):
    """Mean over classes of the mean of the best precision at 101 recalls, as COCO defines it (Lin et al., 2014).

    ``ap`` is the mean over IoU of 0.50, 0.55, ..., 0.95 from which on a box counts as found, ``ap50`` and ``ap75`` are
    those of one. Classes that never occur do not count; nan where nothing occurs.
    """

    full_state_update = False
    rows: list[Tensor]
    totals: Tensor

    def __init__(self, classes: int):
        super().__init__()
        self.classes = classes
        self.add_state("rows", [], dist_reduce_fx="cat")  # of a detection: class, probability, whether right by level
        self.add_state("totals", torch.zeros(classes, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, predictions: Predictions, targets: Targets) -> None:
        """Predictions (B, Q, ...) of the last layer, and what there is."""
        chance, label = predictions.logits.double().softmax(-1)[..., :-1].max(-1)
        overlap = iou(corners(predictions.boxes.double())[:, :, None], corners(targets.boxes.double())[:, None])[0]
        arrays = [part.cpu().numpy() for part in (chance, label, overlap, targets.classes)]
        rows = [
            np.column_stack([label, chance, right(chance, label, overlap, there)])
            for chance, label, overlap, there in zip(*arrays, strict=True)
        ]
        table = np.concatenate([np.zeros((0, 2 + len(LEVELS))), *rows])
        self.rows.append(torch.from_numpy(table).to(self.device))
        there = targets.classes[targets.classes != NOTHING]
        self.totals += torch.bincount(there, minlength=self.classes).to(self.totals.device)

    def compute(self) -> dict[str, float]:
        """ap, ap50 and ap75."""
        rows = torch.cat(self.rows) if isinstance(self.rows, list) else self.rows
        table, totals = rows.cpu().numpy(), self.totals.cpu().numpy()
        every = [curve(table[table[:, 0] == label], total) for label, total in enumerate(totals) if total]
        mean = np.mean(every, 0) if every else np.full(len(LEVELS), np.nan)
        return {"ap": float(mean.mean()), "ap50": float(mean[0]), "ap75": float(mean[5])}

    def nothing(self) -> None:
        """Take part in the sum over processes with no image at all."""
        logits, boxes = torch.zeros(0, 1, self.classes + 1), torch.zeros(0, 1, 4)
        self.update(Predictions(logits, boxes), Targets(torch.zeros(0, 1, dtype=torch.long), boxes))


def right(chance: np.ndarray, label: np.ndarray, overlap: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Which detections (Q,) of an image are right at each level, (Q, levels).

    From the surest on, each takes what it overlaps most of its class and is still free: of probabilities (Q,), classes
    (Q,), IoU (Q, M) and the classes (M,) of what there is.
    """
    hits = np.zeros((len(chance), len(LEVELS)))
    free = np.ones((len(LEVELS), len(there)), bool)
    for query in np.argsort(-chance, kind="stable"):
        fits = free & (there == label[query]) & (overlap[query] >= LEVELS[:, None])
        best = np.where(fits, overlap[query], -1.0).argmax(1) if len(there) else np.zeros(len(LEVELS), int)
        for level in np.flatnonzero(fits.any(1)):
            hits[query, level], free[level, best[level]] = 1, False
    return hits


def curve(rows: np.ndarray, total: int) -> np.ndarray:
    """Average precision at each level, of one class's detections and the number of what there is."""
    rows = rows[np.argsort(-rows[:, 1], kind="stable")]
    hits = rows[:, 2:].cumsum(0)
    precision = hits / np.arange(1, len(rows) + 1)[:, None]
    best = np.maximum.accumulate(precision[::-1])[::-1]  # at this recall or a later one
    return np.array([
        np.append(best[:, level], 0)[np.searchsorted(hits[:, level] / total, RECALLS)].mean()
        for level in range(len(LEVELS))
    ])  # fmt: skip
