"""A norm of one's own: this class, and a line in pyproject.toml that names it."""

import torch
from torch import nn

from zoo.parts.norm import Norm


class DyT(Norm):
    """tanh(alpha x) * weight + bias: a norm without statistics (Zhu et al., 2025)."""

    def __init__(self, dim: int, alpha: float = 0.5):
        super().__init__(dim, eps=0.0)
        self.alpha, self.weight, self.bias = (nn.Parameter(torch.empty(size)) for size in (1, dim, dim))
        self.start = alpha
        self.reset_parameters()

    def reset_parameters(self):
        """alpha is ``start``, weights are one and biases zero."""
        for parameter, value in ((self.alpha, self.start), (self.weight, 1.0), (self.bias, 0.0)):
            nn.init.constant_(parameter, value)

    def forward(self, x):
        """x (..., dim) to the same shape."""
        return (torch.tanh(self.alpha * x) * self.weight + self.bias).to(x.dtype)
