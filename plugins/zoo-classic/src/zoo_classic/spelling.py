"""Vectors of tokens from their letters, by convolutions (Kim et al., 2016, as in ELMo)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LONGEST = 16  # bytes of a token that are read
BYTES = 257  # 0 is no byte
WIDTHS = (1, 2, 3, 4)


def spell(tokens: Sequence[bytes]) -> Tensor:
    """The first 16 bytes of each token, each plus one, and 0 behind them: (N, 16)."""
    table = torch.zeros(len(tokens), LONGEST, dtype=torch.long)
    for row, token in enumerate(tokens):
        letters = list(token[:LONGEST])
        table[row, : len(letters)] = torch.tensor(letters, dtype=torch.long) + 1
    return table


class CharacterCNN(nn.Module):
    """Letters to a vector: convolutions of several widths, the maximum of each over the token, a highway, a projection.

    A highway layer is g relu(W x) + (1 - g) x with g = sigmoid(W' x) (Srivastava et al., 2015).
    """

    def __init__(self, dim: int, letter_dim: int = 16):
        super().__init__()
        self.letters = nn.Embedding(BYTES, letter_dim)
        self.convolutions = nn.ModuleList(nn.Conv1d(letter_dim, max(1, dim * n // 4), n) for n in WIDTHS)
        width = sum(max(1, dim * n // 4) for n in WIDTHS)
        self.highway, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, dim)

    def forward(self, spelling: Tensor) -> Tensor:
        """Spellings (..., 16) to vectors (..., dim)."""
        x = self.letters(spelling.flatten(0, -2)).transpose(1, 2) * self.letters.embedding_dim**0.5
        x = F.relu(torch.cat([conv(x).amax(2) for conv in self.convolutions], 1))
        gate = self.gate(x).sigmoid()
        x = gate * F.relu(self.highway(x)) + (1 - gate) * x
        return self.out(x).view(*spelling.shape[:-1], -1)
