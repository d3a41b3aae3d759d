"""Random directions that are spread evenly."""

import torch
from torch import Tensor


def orthonormal(count: int, width: int) -> Tensor:
    """Unit vectors (count, width), uniform, each ``width`` in a row orthogonal to each other; drawn in float64."""
    blocks = []
    for _ in range(0, count, width):
        q, r = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64))
        blocks.append((q * r.diagonal().sign()).T)  # without the signs q would prefer directions
    return torch.cat(blocks)[:count]
