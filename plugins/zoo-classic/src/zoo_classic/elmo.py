"""ELMo: a language model in both directions, whose layers are vectors of words in context (Peters et al., 2018)."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from zoo.errors import UsageError
from zoo.models.initialization import initialize, preserve_rng
from zoo.tasks.lm import LanguageTask
from zoo.tasks.schedule import Cosine
from zoo.tasks.task import Loss, OptimizerFactory, ScheduleFactory
from zoo.value_checks import MOST_MODULES, at_least, at_most
from zoo_classic.rows import rows
from zoo_classic.spelling import CharacterCNN, spell

Input = Literal["tokens", "letters"]


class Mix(nn.Module):
    """gamma sum_j s_j h_j with s = softmax(w): the mean of the layers until a task learns which of them it needs."""

    def __init__(self, layers: int):
        super().__init__()
        self.weight, self.gamma = nn.Parameter(torch.empty(layers)), nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Equal shares of all layers, and a factor of one."""
        nn.init.zeros_(self.weight)
        nn.init.ones_(self.gamma)

    @property
    def shares(self) -> Tensor:
        """s, (layers,), which sums to 1."""
        return self.weight.softmax(0)

    def forward(self, layers: Tensor) -> Tensor:
        """Layers (L, ..., width) to (..., width)."""
        return self.gamma * torch.einsum("l,l...->...", self.shares, layers)


class Direction(nn.Module):
    """LSTM layers that read one way, each added to what it read (residual), from the second layer on."""

    def __init__(self, dim: int, depth: int, dropout: float):
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(dim, dim, batch_first=True) for _ in range(depth))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, hidden: list[Any] | None = None) -> tuple[list[Tensor], list[Any]]:
        """x (B, T, dim) to the states of each layer, and what the next token needs."""
        outputs, after = [], []
        for number, layer in enumerate(self.layers):
            states, carried = layer(self.dropout(x), None if hidden is None else hidden[number])
            x = states + x if number else states
            outputs.append(x)
            after.append(carried)
        return outputs, after


def turned(x: Tensor, lengths: Tensor) -> Tensor:
    """The first ``lengths`` (B,) places of x (B, T, ...) in reverse order; the others stay."""
    place = torch.arange(x.size(1), device=x.device).expand(x.shape[:2])
    back = torch.where(place < lengths[:, None], lengths[:, None] - 1 - place, place)
    return x.gather(1, back.view(*back.shape, *[1] * (x.dim() - 2)).expand_as(x))


class BiLM(nn.Module):
    """p(next | all before) and p(previous | all behind) by two stacks of LSTMs, with one input and one softmax."""

    spelling: Tensor

    def __init__(
        self, vocab_size: int, max_length: int, input: Input = "tokens", dim: int = 128, depth: int = 2,
        dropout: float = 0.0, seed: int = 0,
    ):  # fmt: skip
        """
        Args:
            vocab_size: number of tokens.
            max_length: longest sequence the model is made for.
            input: tokens have a vector each; letters makes it of how a token is spelled, so of any word.
            dim: width of each direction.
            depth: LSTM layers of each direction.
            dropout: rate on what a layer reads.
            seed: of the initial weights.
        """
        super().__init__()
        at_least(1, dim=dim, depth=depth)
        at_most(MOST_MODULES, depth=depth)
        if input not in ("tokens", "letters"):
            raise UsageError(f"input is {input!r}: it must be tokens or letters.")
        self.vocab_size, self.max_length, self.depth, self.dim = vocab_size, max_length, depth, dim
        with preserve_rng():
            self.embedding = nn.Embedding(vocab_size, dim) if input == "tokens" else None
            self.letters = CharacterCNN(dim) if input == "letters" else None
            self.forth, self.back = Direction(dim, depth, dropout), Direction(dim, depth, dropout)
            self.dropout = nn.Dropout(dropout)
            self.head = nn.Linear(dim, vocab_size)
            initialize(self, seed)
        if input == "letters":  # until the data say how tokens are written, they are written as their numbers
            self.register_buffer("spelling", spell([str(n).encode() for n in range(vocab_size)]))

    def read(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to what is known without context, (B, T, dim)."""
        if self.letters is not None:
            return self.letters(self.spelling[tokens])
        assert self.embedding is not None
        return self.embedding(tokens) * self.dim**0.5

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to logits (B, T, vocab_size) of the next token, from those before it alone."""
        return self.head(self.dropout(self.forth(self.read(tokens))[0][-1]))

    def backward_logits(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Tokens (B, T), of which ``lengths`` (B,) are real, to logits of the token before each."""
        states = self.back(turned(self.read(tokens), lengths))[0][-1]
        return self.head(self.dropout(turned(states, lengths)))

    def layers(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Vectors x (B, T, dim) to all layers (1 + depth, B, T, 2 dim): x twice, then both directions' states."""
        forth = self.forth(x)[0]
        back = [turned(states, lengths) for states in self.back(turned(x, lengths))[0]]
        return torch.stack([torch.cat([x, x], -1), *(torch.cat(both, -1) for both in zip(forth, back, strict=True))])

    def begin(self, capacity: int, valid: Tensor | None = None) -> ForthState:
        """A state for writing, left to right; any ``capacity`` will do."""
        return ForthState(self)


class ForthState:
    """The left-to-right half of a BiLM while it writes."""

    def __init__(self, model: BiLM):
        self.model = model
        self.hidden: list[Any] | None = None

    def step(self, tokens: Tensor) -> Tensor:
        """The next tokens (B, T) to the logits (B, V) of the one after them."""
        states, self.hidden = self.model.forth(self.model.read(tokens), self.hidden)
        return self.model.head(states[-1][:, -1])

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the batch, (rows,), in this order."""
        if self.hidden is not None:
            self.hidden = [tuple(part[:, rows] for part in layer) for layer in self.hidden]


class ELMo(LanguageTask):
    """Predict each next and each previous token; the layers are vectors of words in context (Peters et al., 2018).

    The loss is the mean over both directions; bits per byte, ``score`` and ``generate`` are those of left to right. A
    trained one has ``embed``, and ``Mix`` learns for a task of one's own which layers it needs.
    """

    trained = "zoo_classic.trained:TrainedELMo"
    training_options = ()
    prediction = "the next and the previous token"
    net: BiLM

    def __init__(
        self,
        vocab_size: int | None = None,
        max_length: int | None = None,
        lr: float = 3e-3,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = Cosine,
        **model,
    ):
        """
        Args:
            vocab_size: number of tokens; what the data has unless given.
            max_length: longest sequence; what the data has unless given.
        """
        net = self.build_network(vocab_size=vocab_size, max_length=max_length, **model)
        super().__init__(net, lr, optimizer, schedule)

    @staticmethod
    def network(**options: Any) -> BiLM:
        """A BiLM."""
        return BiLM(**options)

    def setup(self, stage: str) -> None:
        """Learn from the data how its tokens are spelled."""
        tokenizer = getattr(getattr(self.trainer, "datamodule", None), "tokenizer", None)
        if stage == "fit" and self.net.letters is not None and tokenizer is not None:
            names = [tokenizer.decode([number]).encode() for number in range(tokenizer.vocab_size)]
            self.net.spelling.copy_(spell(names))

    def both(self, batch: dict[str, Tensor]) -> tuple[Loss, Loss]:
        """The losses of left to right and of right to left; a row's tokens but one are predicted by each."""
        tokens = rows(batch)
        lengths, safe = (tokens >= 0).sum(1) - 1, tokens.clamp(min=0)
        size = lengths.sum()
        forth = self.net(safe[:, :-1]).flatten(0, 1).float()
        targets = tokens[:, 1:].flatten()
        one = F.cross_entropy(forth, targets, ignore_index=-1, reduction="sum")
        back = self.net.backward_logits(safe[:, 1:], lengths).flatten(0, 1).float()
        there = torch.arange(tokens.size(1) - 1, device=tokens.device) < lengths[:, None]
        before = tokens[:, :-1].masked_fill(~there, -1).flatten()
        return Loss(one, size), Loss(F.cross_entropy(back, before, ignore_index=-1, reduction="sum"), size)

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """Cross-entropy of both directions summed over tokens (), in nats, and the number of predictions ()."""
        forth, back = self.both(batch)
        return Loss(forth.total + back.total, forth.size + back.size)

    def evaluate(self, batch: dict[str, Tensor]) -> Loss:
        """The same, after updating the metrics."""
        forth, back = self.both(batch)
        length = batch["bytes"].sum()
        if length > 0:
            self.metrics["bits_per_byte"].update(forth.total / math.log(2) / length, length)
        return Loss(forth.total + back.total, forth.size + back.size)
