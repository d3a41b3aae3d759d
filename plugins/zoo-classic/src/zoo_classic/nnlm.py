"""The neural probabilistic language model (Bengio et al., 2003)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from zoo.errors import UsageError
from zoo.models.initialization import initialize, preserve_rng
from zoo.tasks.lm import LanguageTask
from zoo.tasks.schedule import Cosine
from zoo.tasks.task import OptimizerFactory, ScheduleFactory
from zoo_classic.rows import WindowState


class WindowNet(nn.Module):
    """W2 tanh(W1 [c_1; ...; c_n] + b1) + b2, and W3 [c_1; ...; c_n] beside it where ``direct``: c_i = Q[w_i].

    The window is the last n tokens; in front of a row stands a learned vector.
    """

    def __init__(
        self, vocab_size: int, max_length: int, window: int = 4, dim: int = 64, hidden: int = 256,
        direct: bool = False, dropout: float = 0.0, seed: int = 0,
    ):  # fmt: skip
        """
        Args:
            vocab_size: number of tokens.
            max_length: longest sequence the model is made for.
            window: how many tokens are looked at.
            dim: width of a token's vector.
            hidden: width of the hidden layer.
            direct: connect the vectors with the output as well.
            dropout: rate on the hidden layer.
            seed: of the initial weights.
        """
        super().__init__()
        for name, number in (("window", window), ("dim", dim), ("hidden", hidden)):
            if number < 1:
                raise UsageError(f"{name} must be at least 1, got {number}.")
        self.vocab_size, self.max_length, self.window = vocab_size, max_length, window
        with preserve_rng():
            self.embedding = nn.Embedding(vocab_size, dim)
            self.start = nn.Embedding(1, dim)
            self.inner = nn.Linear(window * dim, hidden)
            self.dropout = nn.Dropout(dropout)
            self.outer = nn.Linear(hidden, vocab_size)
            self.direct = nn.Linear(window * dim, vocab_size, bias=False) if direct else None
            initialize(self, seed)
        self.scale = dim**0.5  # embeddings are drawn as output matrices: this makes them as large as features

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to logits (B, T, vocab_size)."""
        start = self.start(tokens.new_zeros(tokens.size(0), self.window - 1))
        c = torch.cat([start, self.embedding(tokens)], 1) * self.scale
        c = c.unfold(1, self.window, 1).transpose(2, 3).flatten(2)
        y = self.outer(self.dropout(torch.tanh(self.inner(c))))
        return y if self.direct is None else y + self.direct(c)

    def begin(self, capacity: int, valid: Tensor | None = None) -> WindowState:
        """A state for writing; any ``capacity`` will do."""
        return WindowState(self, self.window)


class NNLM(LanguageTask):
    """Predict the next token from the last few by a perceptron on their vectors (Bengio et al., 2003).

    The vectors may begin as those that another run learned, a Word2Vec for one, and stay so (``tune: false``) or be
    trained on.
    """

    training_options = ("vectors", "tune")
    net: WindowNet

    def __init__(
        self,
        vocab_size: int | None = None,
        max_length: int | None = None,
        vectors: str | None = None,
        tune: bool = True,
        lr: float = 1e-3,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = Cosine,
        **model,
    ):
        """
        Args:
            vocab_size: number of tokens; what the data has unless given.
            max_length: longest sequence; what the data has unless given.
            vectors: a run with the same tokenizer, whose token vectors (V, dim) are taken at the start of training.
            tune: train the vectors; false freezes them.
        """
        net = self.build_network(vocab_size=vocab_size, max_length=max_length, **model)
        super().__init__(net, lr, optimizer, schedule)
        self.vectors = vectors
        self.net.embedding.weight.requires_grad_(tune)

    @staticmethod
    def network(**options: Any) -> WindowNet:
        """A WindowNet."""
        return WindowNet(**options)

    def setup(self, stage: str) -> None:
        """Take the vectors before training; a checkpoint that is resumed has its own."""
        if stage == "fit" and self.vectors is not None:
            weight = table(self.vectors, getattr(self.trainer, "datamodule", None))
            if weight.shape != self.net.embedding.weight.shape:
                own = tuple(self.net.embedding.weight.shape)
                raise UsageError(f"model.vectors: {self.vectors} has vectors {tuple(weight.shape)}, needed are {own}.")
            with torch.no_grad():
                scaled = F.normalize(weight, dim=1) * (3**-0.5)  # as long as those that training begins with
                self.net.embedding.weight.copy_(scaled)


def table(run: str, data: object) -> Tensor:
    """The token vectors (V, dim) of a run whose tokenizer is that of the data. Raises UsageError for any other."""
    from zoo.inference.load import load

    model = load(Path(run) if Path(run).exists() else run)
    weight = getattr(model.net, "vectors", getattr(getattr(model.net, "embedding", None), "weight", None))
    if weight is None:
        raise UsageError(f"model.vectors: {run} is a {type(model.task).__name__}, which has no vectors of tokens.")
    theirs, ours = (getattr(one, "tokenizer", None) for one in (model, data))
    if theirs is None or ours is None or theirs.tokens != ours.tokens:
        raise UsageError(f"model.vectors: {run} has another tokenizer than the data: its vectors mean other tokens.")
    return weight.detach()
