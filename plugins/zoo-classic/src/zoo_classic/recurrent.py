"""Language models of recurrent cells (Mikolov et al., 2010; Sundermeyer et al., 2012)."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from zoo.errors import UsageError
from zoo.models.initialization import initialize, preserve_rng
from zoo.tasks.lm import LanguageTask
from zoo.tasks.schedule import Cosine
from zoo.tasks.task import OptimizerFactory, ScheduleFactory, required_sizes
from zoo_classic.seq2seq import LAYERS

Cell = Literal["rnn", "gru", "lstm"]
Hidden = tuple[Tensor, ...]


class RecurrentNet(nn.Module):
    """h_t = cell(h_{t-1}, w_t), read out by the embedding matrix: logits of w_{t+1}."""

    def __init__(
        self, vocab_size: int, max_length: int, cell: Cell, dim: int, depth: int, dropout: float = 0.0, seed: int = 0
    ):
        super().__init__()
        for name, number in (("dim", dim), ("depth", depth)):
            if number < 1:
                raise UsageError(f"{name} must be at least 1, got {number}.")
        if cell not in LAYERS:
            raise UsageError(f"cell must be one of {', '.join(LAYERS)}, got {cell}.")
        self.vocab_size, self.max_length, self.scale = vocab_size, max_length, dim**0.5
        with preserve_rng():
            self.embedding = nn.Embedding(vocab_size, dim)
            self.layers = LAYERS[cell](dim, dim, depth, batch_first=True, dropout=dropout if depth > 1 else 0.0)
            self.dropout = nn.Dropout(dropout)
            initialize(self, seed)

    def read(self, tokens: Tensor, hidden: Hidden | None = None) -> tuple[Tensor, Hidden]:
        """Tokens (B, T) to logits (B, T, vocab_size), and what the next token needs."""
        before = None if hidden is None else hidden if len(hidden) > 1 else hidden[0]
        states, after = self.layers(self.dropout(self.embedding(tokens) * self.scale), before)
        logits = F.linear(self.dropout(states), self.embedding.weight)
        return logits, after if isinstance(after, tuple) else (after,)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to logits (B, T, vocab_size)."""
        return self.read(tokens)[0]

    def begin(self, capacity: int, valid: Tensor | None = None) -> RecurrentState:
        """A state for writing; any ``capacity`` will do."""
        return RecurrentState(self)


class RecurrentState:
    """A recurrent model while it writes; what it remembers does not grow."""

    def __init__(self, model: RecurrentNet):
        self.model = model
        self.hidden: Hidden | None = None

    def step(self, tokens: Tensor) -> Tensor:
        """The next tokens (B, T) to the logits (B, V) of the one after them."""
        logits, self.hidden = self.model.read(tokens, self.hidden)
        return logits[:, -1]

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the batch, (rows,), in this order."""
        self.hidden = None if self.hidden is None else tuple(part[:, rows] for part in self.hidden)


class RecurrentLM(LanguageTask):
    """Predict the next token from a state that an RNN, GRU or LSTM carries on (Mikolov et al., 2010)."""

    net: RecurrentNet

    def __init__(
        self,
        vocab_size: int | None = None,
        max_length: int | None = None,
        cell: Cell = "lstm",
        dim: int = 128,
        depth: int = 1,
        dropout: float = 0.0,
        lr: float = 1e-3,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = Cosine,
    ):
        """
        Args:
            vocab_size: number of tokens; what the data has unless given.
            max_length: longest sequence; what the data has unless given.
            cell: what carries a state on: rnn is tanh(W x + U h), gru and lstm have gates.
            dim: width of a token's vector and of a state.
            depth: number of layers.
            dropout: rate on vectors, between layers and on the output.
        """
        sizes = required_sizes(vocab_size=vocab_size, max_length=max_length)
        net = RecurrentNet(**sizes, cell=cell, dim=dim, depth=depth, dropout=dropout, seed=torch.initial_seed())
        super().__init__(net, lr, optimizer, schedule)
