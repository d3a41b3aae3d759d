"""GloVe: vectors of tokens from how often they occur together (Pennington et al., 2014)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import AdamW

from zoo.errors import UsageError
from zoo.models.initialization import initialize, preserve_rng
from zoo.tasks.schedule import Linear
from zoo.tasks.task import Loss, OptimizerFactory, ScheduleFactory, Task
from zoo.value_checks import at_least
from zoo_classic.rows import NOTHING, rows


class Cells(NamedTuple):
    """Entries of the matrix X of co-occurrences: token i (N,), token j (N,), and X_ij > 0 (N,)."""

    row: Tensor
    column: Tensor
    counts: Tensor


def cooccurrences(tokens: np.ndarray, window: int, vocab_size: int, separator: int) -> Cells:
    """X_ij: Σ 1 / d over the places of a text (T,) where i and j are d ≤ window tokens apart, in either order.

    Tokens below 0 count nowhere, and neither does the separator, across which nothing counts.
    """
    document = np.cumsum(tokens == separator)
    real = (tokens >= 0) & (tokens != separator)
    keys, weights = [], []
    for distance in range(1, min(window, len(tokens) - 1) + 1):
        one, other = slice(None, -distance), slice(distance, None)
        near = real[one] & real[other] & (document[one] == document[other])
        one_side, other_side = tokens[one][near].astype(np.int64), tokens[other][near].astype(np.int64)
        keys += [one_side * vocab_size + other_side, other_side * vocab_size + one_side]
        weights += [np.full(len(one_side), 1 / distance)] * 2
    cells, place = np.unique(np.concatenate(keys) if keys else np.zeros(0, np.int64), return_inverse=True)
    counts = np.bincount(place, np.concatenate(weights) if weights else None, len(cells))
    return Cells(*(torch.from_numpy(one) for one in (cells // vocab_size, cells % vocab_size, counts)))


class GloVeVectors(nn.Module):
    """Two vectors and two biases per token, w_i + b_i and u_j + c_j, with w_i u_j + b_i + c_j near log X_ij."""

    def __init__(self, vocab_size: int, max_length: int, dim: int = 64, seed: int = 0):
        """
        Args:
            vocab_size: number of tokens.
            max_length: longest row of a batch.
            dim: width of a vector.
            seed: of the initial weights.
        """
        super().__init__()
        at_least(1, dim=dim)
        self.vocab_size, self.max_length, self.dim = vocab_size, max_length, dim
        with preserve_rng():
            self.embedding, self.context = nn.Embedding(vocab_size, dim), nn.Embedding(vocab_size, dim)
            self.bias, self.context_bias = nn.Embedding(vocab_size, 1), nn.Embedding(vocab_size, 1)
            initialize(self, seed)

    @property
    def vectors(self) -> Tensor:
        """w + u (V, dim): both are vectors of the same tokens, as X is symmetric."""
        return self.embedding.weight + self.context.weight

    def score(self, row: Tensor, column: Tensor) -> Tensor:
        """w_i u_j + b_i + c_j of tokens i (N,) and j (N,), (N,)."""
        products = (self.embedding(row) * self.context(column)).sum(-1)
        return products + self.bias(row)[..., 0] + self.context_bias(column)[..., 0]

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to the expected log X (B, T, vocab_size) of each with every token."""
        return self.embedding(tokens) @ self.context.weight.T + self.bias(tokens) + self.context_bias.weight[:, 0]

    def errors(self, cells: Cells, most: float, power: float) -> Tensor:
        """f(X_ij) (w_i u_j + b_i + c_j - log X_ij)² of each entry, (N,), with f(x) = min(1, x / most)^power."""
        count = cells.counts.to(self.embedding.weight.dtype)
        weight = (count / most).clamp(max=1) ** power
        return weight * (self.score(cells.row, cells.column) - count.log()) ** 2


class GloVe(Task):
    """Vectors of tokens whose products are the logarithms of how often they occur together (Pennington et al., 2014).

    The co-occurrences of the whole training text are counted once. A step draws ``cells`` of their entries; the batch
    only sets the pace. A validation measures the entries that its text has, by the counts of training. A trained one
    has ``vector``, ``nearest`` and ``analogy``; it is no language model.
    """

    unit = "pair"
    trained = "zoo_classic.trained:TrainedVectors"
    learns_from = "texts"
    example_data = ("StdlibDocs", "TextFiles")
    data_sizes = {"vocab_size": 64, "max_length": 64}  # noqa: RUF012
    net: GloVeVectors

    def __init__(
        self,
        vocab_size: int | None = None,
        max_length: int | None = None,
        window: int = 10,
        cells: int = 16384,
        most: float = 100.0,
        power: float = 0.75,
        lr: float = 1e-2,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = Linear,
        **model,
    ):
        """
        Args:
            vocab_size: number of tokens; what the data has unless given.
            max_length: longest sequence; what the data has unless given.
            window: how far neighbours are, to each side.
            cells: entries of X that a step learns from.
            most: the count from which on an entry has full weight.
            power: of the weight of rarer ones.
            lr: learning rate at its peak.
            optimizer: the optimiser.
            schedule: how the learning rate moves.
        """
        at_least(1, window=window, cells=cells)
        if not most > 0 or not 0 <= power <= 1:
            raise UsageError(f"most must be above 0 and power lie between 0 and 1, got {most} and {power}.")
        net = self.build_network(vocab_size=vocab_size, max_length=max_length, **model)
        super().__init__(net, lr, optimizer, schedule)
        self.window, self.cells, self.most, self.power = window, cells, most, power
        self.separator = NOTHING
        self.table: Cells | None = None  # of the training text, sorted by row and column

    @staticmethod
    def network(**options: Any) -> GloVeVectors:
        """A GloVeVectors."""
        return GloVeVectors(**options)

    def setup(self, stage: str) -> None:
        """Count the co-occurrences of the training text. Raises UsageError for data without one."""
        data: Any = getattr(self.trainer, "datamodule", None)
        if data is None or self.table is not None:
            return
        stream = getattr(data.datasets.get("train"), "tokens", None)
        if stream is None:
            raise UsageError(
                f"GloVe learns from a text, and {type(data).__name__} has none. Use TextFiles or StdlibDocs."
            )
        self.separator = NOTHING if data.tokenizer.separator is None else data.tokenizer.separator
        self.table = cooccurrences(np.asarray(stream[:], np.int64), self.window, self.net.vocab_size, self.separator)

    def batch_cells(self, tokens: Tensor) -> Cells:
        """The entries of each of the rows (B, T), with the counts of the training text where that was counted."""
        lines = [cooccurrences(row, self.window, self.net.vocab_size, self.separator) for row in tokens.cpu().numpy()]
        own = Cells(*(torch.cat(columns) for columns in zip(*lines, strict=True)))
        if self.table is not None:
            keys, own_keys = (one.row * self.net.vocab_size + one.column for one in (self.table, own))
            place = torch.searchsorted(keys, own_keys).clamp(max=max(0, len(keys) - 1))
            both = keys[place] == own_keys if len(keys) else torch.zeros(len(own_keys), dtype=torch.bool)
            own = Cells(own.row[both], own.column[both], self.table.counts[place[both]])
        return Cells(*(one.to(tokens.device) for one in own))

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """The errors of drawn entries, summed (), and their number ()."""
        if self.table is None or not self.training:
            return self._loss(self.batch_cells(rows(batch)))
        device = batch["inputs"].device
        sample = torch.randint(len(self.table.row), (self.cells,))
        return self._loss(Cells(*(one[sample].to(device) for one in self.table)))

    def _loss(self, cells: Cells) -> Loss:
        errors = self.net.errors(cells, self.most, self.power)
        return Loss(errors.sum(), torch.tensor(len(errors), device=errors.device))

    def evaluate(self, batch: dict[str, Tensor]) -> Loss:
        """The errors of the entries of a batch, summed (), and their number ()."""
        return self._loss(self.batch_cells(rows(batch)))

    def sample(self, rows: int) -> dict[str, Tensor]:
        """Random inputs and targets, each (rows, 16)."""
        tokens = torch.randint(self.net.vocab_size, (rows, 17))
        return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}

    def example(self) -> tuple[tuple[Tensor, ...], int]:
        """One row of tokens (1, T) on the meta device, and T."""
        length = self.net.max_length
        return (torch.zeros(1, length, dtype=torch.long, device="meta"),), length
