"""Normalisation without statistics."""

import torch
from torch import Tensor, nn

from zoo.parts.norm import Norm


class DynamicTanh(Norm):
    """tanh(alpha x) * weight + bias, alpha one learned number: DyT (Zhu et al., 2025)."""

    def __init__(self, dim: int, alpha: float = 0.5):
        """
        Args:
            dim: width of a token.
            alpha: factor inside of the tanh at the start of training.
        """
        super().__init__(dim, eps=0.0)
        self.start = alpha
        self.alpha = nn.Parameter(torch.empty(1))
        self.weight, self.bias = nn.Parameter(torch.empty(dim)), nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights of one, biases of zero, the first alpha."""
        nn.init.constant_(self.alpha, self.start)
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape and dtype."""
        return (torch.tanh(self.alpha * x) * self.weight + self.bias).to(x.dtype)
