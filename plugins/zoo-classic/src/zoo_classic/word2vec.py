"""Word2Vec: vectors of tokens from their neighbours (Mikolov et al., 2013)."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from zoo.errors import UsageError
from zoo.models.initialization import initialize, preserve_rng
from zoo.tasks.schedule import Linear
from zoo.tasks.task import Loss, OptimizerFactory, ScheduleFactory, Task
from zoo_classic.rows import NOTHING, rows

Objective = Literal["skipgram", "cbow"]
Output = Literal["negative", "softmax"]
POWER = 0.75  # of the frequencies that negatives are drawn by


class Pairs(NamedTuple):
    """What predicts (P, C) with the real ones among them (P, C), and what is predicted (P,)."""

    context: Tensor
    real: Tensor
    target: Tensor


def neighbours(tokens: Tensor, window: int, document: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Tokens (B, T) to those around each, (B, T, 2 window) from far left to far right, and which of them are there.

    Neighbours lie in the same row and, where their numbers (B, T) are given, in the same document. -1 is no token.
    """
    offsets = [*range(-window, 0), *range(1, window + 1)]
    size = tokens.size(1)
    place = torch.arange(size, device=tokens.device)[:, None] + torch.tensor(offsets, device=tokens.device)
    inside, place = (place >= 0) & (place < size), place.clamp(0, size - 1)
    there = inside & (tokens[:, place] >= 0) & (tokens >= 0)[..., None]
    if document is not None:
        there &= document[:, place] == document[..., None]
    return tokens[:, place], there


class Vectors(nn.Module):
    """Two vectors per token: v, by which it predicts, and u, by which it is predicted with the score u v.

    softmax: -log softmax(u v). negative: -log sigmoid(u_o v) - sum_n log sigmoid(-u_n v) over k tokens n, drawn by
    their frequency to the power of 3/4.
    """

    frequency: Tensor

    def __init__(self, vocab_size: int, max_length: int, dim: int = 64, seed: int = 0):
        """
        Args:
            vocab_size: number of tokens.
            max_length: longest row of a batch.
            dim: width of a vector.
            seed: of the initial weights.
        """
        super().__init__()
        if dim < 1:
            raise UsageError(f"dim must be at least 1, got {dim}.")
        self.vocab_size, self.max_length, self.dim = vocab_size, max_length, dim
        with preserve_rng():
            self.embedding = nn.Embedding(vocab_size, dim)
            self.output = nn.Embedding(vocab_size, dim)
            initialize(self, seed)
        self.register_buffer("frequency", torch.full((vocab_size,), 1.0 / vocab_size))

    @property
    def vectors(self) -> Tensor:
        """v (V, dim)."""
        return self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to the scores (B, T, vocab_size) of every token as a neighbour of each."""
        return F.linear(self.embedding(tokens), self.output.weight)

    def noise(self) -> Tensor:
        """The distribution (V,) that negatives come from."""
        raised = self.frequency**POWER
        return raised / raised.sum()

    def read(self, pairs: Pairs) -> Tensor:
        """The mean vector (P, dim) of what is given."""
        share = pairs.real / pairs.real.sum(1, keepdim=True)
        return torch.einsum(
            "pc,pcd->pd", share.to(self.embedding.weight.dtype), self.embedding(pairs.context.clamp(min=0))
        )

    def softmax(self, pairs: Pairs) -> Tensor:
        """The full softmax's loss, summed over pairs, ()."""
        scores = F.linear(self.read(pairs), self.output.weight)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return F.cross_entropy(scores, pairs.target, reduction="sum")

    def negative(self, pairs: Pairs, negatives: Tensor) -> Tensor:
        """The loss against the negatives (P, k), summed over pairs."""
        v = self.read(pairs)
        right = torch.einsum("pd,pd->p", self.output(pairs.target), v)
        wrong = torch.einsum("pkd,pd->pk", self.output(negatives), v)
        return -(F.logsigmoid(right).sum() + F.logsigmoid(-wrong).sum())

    def expected(self, pairs: Pairs, negatives: int) -> Tensor:
        """The mean of ``negative`` over the negatives, summed over pairs, ()."""
        scores = F.linear(self.read(pairs), self.output.weight)
        right = F.logsigmoid(scores.gather(1, pairs.target[:, None])).sum()
        return -(right + negatives * (F.logsigmoid(-scores) @ self.noise().to(scores.dtype)).sum())


class Word2Vec(Task):
    """Vectors of tokens that predict their neighbours, or are predicted by them (Mikolov et al., 2013).

    Neighbours stand in the same document and the same row of a batch. A trained one has ``vector``, ``nearest`` and
    ``analogy``; it is no language model.
    """

    unit = "pair"
    trained = "zoo_classic.trained:TrainedVectors"
    learns_from = "texts"
    example_data = ("StdlibDocs", "TextFiles")
    data_sizes = {"vocab_size": 64, "max_length": 64}  # noqa: RUF012
    net: Vectors
    separator: Tensor

    def __init__(
        self,
        vocab_size: int | None = None,
        max_length: int | None = None,
        objective: Objective = "skipgram",
        output: Output = "negative",
        window: int = 5,
        negatives: int = 5,
        subsample: float = 0.0,
        lr: float = 1e-2,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = Linear,
        **model,
    ):
        """
        Args:
            vocab_size: number of tokens; what the data has unless given.
            max_length: longest sequence; what the data has unless given.
            objective: skipgram predicts each neighbour from a token, cbow a token from the mean of its neighbours.
            output: negative tells neighbours from tokens drawn at random, softmax from all others.
            window: how far neighbours are, to each side.
            negatives: tokens drawn for each pair.
            subsample: a token of frequency f is kept with probability sqrt(subsample / f) in training; 0 keeps all.
            lr: learning rate at its peak.
            optimizer: the optimiser.
            schedule: how the learning rate moves.
        """
        for name, value, allowed in (
            ("objective", objective, ("skipgram", "cbow")),
            ("output", output, ("negative", "softmax")),
        ):
            if value not in allowed:
                raise UsageError(f"{name} is {value!r}: it must be {' or '.join(allowed)}.")
        for name, number in (("window", window), ("negatives", negatives)):
            if number < 1:
                raise UsageError(f"{name} must be at least 1, got {number}.")
        if not 0 <= subsample <= 1:
            raise UsageError(f"subsample is {subsample}: it must lie between 0 and 1.")
        net = self.build_network(vocab_size=vocab_size, max_length=max_length, **model)
        super().__init__(net, lr, optimizer, schedule)
        self.objective, self.output = objective, output
        self.window, self.negatives, self.subsample = window, negatives, subsample
        self.register_buffer("separator", torch.tensor(NOTHING))

    @staticmethod
    def network(**options: Any) -> Vectors:
        """A Vectors."""
        return Vectors(**options)

    def setup(self, stage: str) -> None:
        """Count how frequent each token is, and learn which one stands between documents."""
        data: Any = getattr(self.trainer, "datamodule", None)
        if stage != "fit" or data is None:
            return
        stream = getattr(data.datasets.get("train"), "tokens", None)
        if stream is None:
            raise UsageError(
                f"Word2Vec learns from a text, and {type(data).__name__} has none. Use TextFiles or StdlibDocs."
            )
        counts = torch.bincount(torch.as_tensor(stream[:].astype("int64")), minlength=self.net.vocab_size)
        self.net.frequency.copy_(counts / counts.sum())
        end = data.tokenizer.separator
        self.separator.fill_(NOTHING if end is None else end)

    def pairs(self, tokens: Tensor) -> Pairs:
        """What predicts what in rows of tokens (B, T), left to right."""
        document = (tokens == self.separator).cumsum(1)
        tokens = tokens.masked_fill(tokens == self.separator, NOTHING)
        if self.training and self.subsample:
            keep_probability = (self.subsample / self.net.frequency.clamp(min=1e-12)).sqrt()[tokens.clamp(min=0)]
            tokens = tokens.masked_fill(torch.rand(tokens.shape, device=tokens.device) >= keep_probability, NOTHING)
        around, there = neighbours(tokens, self.window, document)
        if self.objective == "cbow":
            some = there.any(2)
            return Pairs(around[some], there[some], tokens[some])
        centres = tokens[..., None].expand_as(around)[there]
        return Pairs(centres[:, None], torch.ones_like(centres[:, None], dtype=torch.bool), around[there])

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """The loss summed over pairs (), in nats, and their number ()."""
        pairs = self.pairs(rows(batch))
        size = torch.tensor(len(pairs.target), device=pairs.target.device)
        if not len(pairs.target):
            total = self.net.embedding.weight.sum() * 0.0
        elif self.output == "softmax":
            total = self.net.softmax(pairs)
        elif self.training:
            negatives = torch.multinomial(self.net.noise(), len(pairs.target) * self.negatives, replacement=True)
            total = self.net.negative(pairs, negatives.view(-1, self.negatives))
        else:
            total = self.net.expected(pairs, self.negatives)
        return Loss(total, size)

    def evaluate(self, batch: dict[str, Tensor]) -> Loss:
        """The same; in evaluation negatives are not sampled, their expected loss counts."""
        return self.loss(batch)

    def sample(self, rows: int) -> dict[str, Tensor]:
        """Random inputs and targets, each (rows, 16)."""
        tokens = torch.randint(self.net.vocab_size, (rows, 17))
        return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}

    def example(self) -> tuple[tuple[Tensor, ...], int]:
        """One row of tokens (1, T) on the meta device, and T."""
        length = self.net.max_length
        return (torch.zeros(1, length, dtype=torch.long, device="meta"),), length
