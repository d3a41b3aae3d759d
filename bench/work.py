"""The least FLOPs and bytes of a step, for every entrant: the base of utilisation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """Floating-point operations of the model, and bytes of its weights that must be read."""

    flops: float = 0.0
    bytes: float = 0.0


def training(weights: float, tokens: float, pairs: float, width: float) -> float:
    """FLOPs of a step: 6 per weight and token, 12 per query, key and feature (Chowdhery et al., 2022, appendix B).

    ``weights`` are those of matrix products, ``pairs`` the queries times keys of all layers.
    """
    return 6.0 * weights * tokens + 12.0 * pairs * width
