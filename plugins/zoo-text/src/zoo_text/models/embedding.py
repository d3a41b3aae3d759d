"""A text as one vector: an encoder, pooling, a dense layer, and unit length; and the contrast that trains it."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.models.initialization import initialize, preserve_rng
from zoo.value_checks import at_least
from zoo_text.models.encoder import POOLERS, Pooler, TextEncoder, pooled

Pool = Literal["first", "mean", "max", "last"]
SHARPEST = 100.0  # the most that a learned scale multiplies scores by (Radford et al., 2021)


class TextEmbedder(TextEncoder):
    """A vector per text (Reimers and Gurevych, 2019): pooled states, a dense layer if any, divided by their length.

    ``max_tokens`` and ``temperature`` change no vector: the first says where texts are cut, the second is what scores
    are divided by in training.
    """

    def __init__(
        self,
        vocab_size: int,
        max_length: int = 512,
        pool: Pool = "mean",
        features: int | None = None,
        dense_activation: Pooler | None = None,
        dense_bias: bool = True,
        normalize: bool = True,
        max_tokens: int | None = None,
        temperature: float = 0.05,
        learn_temperature: bool = False,
        **encoder: Any,
    ):
        """
        Args:
            vocab_size: number of tokens.
            max_length: longest sequence the model is made for.
            pool: the first state, the mean or the maximum of all, or the last one (of a causal model).
            features: width of a dense layer behind the pooling; none unless given.
            dense_activation: of the dense layer; none unless given.
            dense_bias: whether the dense layer has a bias.
            normalize: divide vectors by their length, so that a dot product is a cosine.
            max_tokens: tokens of a text that are read, special ones included; max_length unless given.
            temperature: what scores are divided by.
            learn_temperature: train the temperature, too.
        """
        super().__init__(vocab_size, max_length, **encoder)
        if self.stack.causal and pool == "first":
            raise UsageError("pool=first reads a token that sees nothing else in a causal model. Use last or mean.")
        at_least(1, features=features)
        if features is None and (dense_activation is not None or not dense_bias):
            raise UsageError("dense_activation and dense_bias need a dense layer. Give its width: --model.features N")
        if max_tokens is not None and not 1 <= max_tokens <= max_length:
            raise UsageError(f"max_tokens must be from 1 to max_length={max_length}, got {max_tokens}.")
        with preserve_rng():
            self.pool, self.normalize, self.max_tokens = pool, normalize, max_tokens or max_length
            self.dense = nn.Linear(self.dim, features, dense_bias) if features else None
            self.activation = POOLERS[dense_activation] if dense_activation else None
            self.width = features or self.dim
            self.sharpen = Scale(temperature, learn_temperature)
            initialize(self, self.seed)

    def embed_states(self, states: Tensor, valid: Tensor | None = None) -> Tensor:
        """States (B, T, dim) to vectors (B, width)."""
        x = pooled(states, valid, self.pool)
        if self.dense is not None:
            x = self.dense(x)
            x = x if self.activation is None else self.activation(x)
        return F.normalize(x, dim=-1) if self.normalize else x

    def shortened(self, vectors: Tensor, size: int | None) -> Tensor:
        """The first ``size`` numbers of vectors (B, width), at unit length again where they had it: (B, size).

        None leaves vectors as they are.
        """
        if size is None:
            return vectors
        return F.normalize(vectors[:, :size], dim=-1) if self.normalize else vectors[:, :size]

    def forward(self, tokens: Tensor, valid: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Tokens (B, T) to vectors (B, width); ``valid`` (B, T) is False at padding."""
        return self.embed_states(self.states(tokens, valid, segments), valid)


class Scale(nn.Module):
    """Scores divided by a temperature; learned, they are multiplied by exp(s), which is at most 100."""

    def __init__(self, temperature: float, learned: bool = True) -> None:
        super().__init__()
        if not (temperature >= 1 / SHARPEST if learned else temperature > 0) or temperature == math.inf:
            least = f"at least {1 / SHARPEST}" if learned else "above 0"
            raise UsageError(f"temperature must be {least}, got {temperature}.")
        self.temperature = temperature
        self.weight = nn.Parameter(torch.empty(())) if learned else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The inverse of the initial temperature."""
        if self.weight is not None:
            nn.init.constant_(self.weight, -math.log(self.temperature))

    def forward(self, scores: Tensor) -> Tensor:
        """Scores (B, N), divided by the temperature; of the same shape."""
        return scores / self.temperature if self.weight is None else self.weight.exp().clamp(max=SHARPEST) * scores
