"""A short convolution as a token mixer, for studies of what other mixers do behind it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.parts.attention import TokenMixer
from zoo.parts.cache import PartState

WIDTH = 4


class LastTokens(PartState):
    """The tokens (B, WIDTH - 1, dim) that the next one still sees."""

    def __init__(self) -> None:
        self.inputs: Tensor | None = None


class ShortConvolution(TokenMixer):
    """W times a weighted sum of the last four tokens, with weights for each feature."""

    def __init__(self, dim: int, heads: int, backend: None = None, dropout: float = 0.0):
        super().__init__(dim, heads, backend, dropout)
        self.kernel, self.out = nn.Parameter(torch.empty(WIDTH, dim)), nn.Linear(dim, dim, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights."""
        nn.init.uniform_(self.kernel, -(WIDTH**-0.5), WIDTH**-0.5)

    def cache(self, capacity: int, window: int | None = None) -> PartState:
        """No tokens yet."""
        return LastTokens()

    def forward(self, x, memory=None, *, pattern, position=None, cache=None):
        """x (B, T, dim) to the same shape."""
        old = cache.inputs if isinstance(cache, LastTokens) else None
        behind = F.pad(x, (0, 0, WIDTH - 1, 0)) if old is None else torch.cat([old, x], 1)
        if isinstance(cache, LastTokens):
            cache.inputs = behind[:, -WIDTH + 1 :]
        return self.out(sum(behind[:, n : n + x.size(1)] * row for n, row in enumerate(self.kernel)))
