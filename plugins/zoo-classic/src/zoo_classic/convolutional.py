"""Language models of gated convolutions (Dauphin et al., 2017)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from zoo.models.initialization import initialize, preserve_rng
from zoo.tasks.lm import LanguageTask
from zoo.tasks.schedule import Cosine
from zoo.tasks.task import OptimizerFactory, ScheduleFactory, required_sizes
from zoo.value_checks import MOST_MODULES, at_least, at_most
from zoo_classic.rows import WindowState


class ConvolutionalNet(nn.Module):
    """x <- x + (A * x) sigmoid(B * x), ``depth`` times, read out by the embedding matrix: logits of the next token.

    A * x at place t reads x_{t-width+1}..x_t, zeros in front of a row, so all places are computed at once, and the
    last block's place t has seen ``reach`` = 1 + depth (width - 1) tokens.
    """

    def __init__(
        self, vocab_size: int, max_length: int, width: int, dim: int, depth: int, dropout: float = 0.0, seed: int = 0
    ):
        super().__init__()
        at_least(1, width=width, dim=dim, depth=depth)
        at_most(MOST_MODULES, depth=depth)
        self.vocab_size, self.max_length, self.scale = vocab_size, max_length, dim**0.5
        self.width, self.reach = width, 1 + depth * (width - 1)
        with preserve_rng():
            self.embedding = nn.Embedding(vocab_size, dim)
            self.layers = nn.ModuleList(nn.Conv1d(dim, 2 * dim, width) for _ in range(depth))
            self.norm = nn.LayerNorm(dim)
            self.dropout = nn.Dropout(dropout)
            initialize(self, seed)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to logits (B, T, vocab_size)."""
        x = (self.embedding(tokens) * self.scale).mT
        for layer in self.layers:
            x = x + self.dropout(F.glu(layer(F.pad(x, (self.width - 1, 0))), 1))
        return F.linear(self.dropout(self.norm(x.mT)), self.embedding.weight)

    def begin(self, capacity: int, valid: Tensor | None = None) -> WindowState:
        """A state for writing; any ``capacity`` will do."""
        return WindowState(self, self.reach)


class ConvolutionalLM(LanguageTask):
    """Predict the next token from the last ``reach`` ones by stacked gated convolutions (Dauphin et al., 2017)."""

    net: ConvolutionalNet

    def __init__(
        self,
        vocab_size: int | None = None,
        max_length: int | None = None,
        width: int = 4,
        dim: int = 128,
        depth: int = 4,
        dropout: float = 0.0,
        lr: float = 1e-3,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = Cosine,
    ):
        """
        Args:
            vocab_size: number of tokens; what the data has unless given.
            max_length: longest sequence; what the data has unless given.
            width: how many places a convolution reads.
            dim: width of a token's vector.
            depth: number of convolutions, one on top of the other.
            dropout: rate on the output of each convolution and of the last.
        """
        sizes = required_sizes(vocab_size=vocab_size, max_length=max_length)
        net = ConvolutionalNet(**sizes, width=width, dim=dim, depth=depth, dropout=dropout, seed=torch.initial_seed())
        super().__init__(net, lr, optimizer, schedule)
