"""Scaled dot products with fewer keys: the near ones, or the near ones and every so many."""

from dataclasses import dataclass, replace

from torch import Tensor

from zoo.errors import UsageError
from zoo.parts.attention import MultiHead
from zoo.parts.backend import Backend
from zoo.parts.pattern import Pattern


class Thinned(MultiHead):
    """Scaled dot products among some pairs of tokens; a memory has no place beside them and is seen whole."""

    sees_all = False

    def thin(self, pattern: Pattern) -> Pattern:
        """The pattern of self-attention with fewer keys."""
        raise NotImplementedError

    def forward(self, x, memory=None, *, pattern, position=None, cache=None):
        """x (B, T, dim) looks at itself with the thinner pattern, or at memory (B, S, dim); shaped like x."""
        pattern = self.thin(pattern) if memory is None else pattern
        return super().forward(x, memory, pattern=pattern, position=position, cache=cache)

    def weights(self, x, memory=None, *, pattern, position=None, rows=None, heads=None):
        """The weights (B, H, T, S) of a forward with the same arguments."""
        pattern = self.thin(pattern) if memory is None else pattern
        return super().weights(x, memory, pattern=pattern, position=position, rows=rows, heads=heads)


class SlidingWindow(Thinned):
    """A query sees keys nearer than ``width``, on both sides unless causal: |t - s| < width (Beltagy et al., 2020).

    L layers see L (width - 1) tokens back. Backend Tiled skips what is farther: its time and memory are linear in T;
    other backends compute all scores and hide them.
    """

    requires = frozenset({"window"})

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        width: int = 128,
        kv_heads: int | None = None,
        bias: bool = True,
    ):
        """
        Args:
            dim: width of a token.
            heads: number of attention heads.
            backend: how the softmax is computed.
            dropout: rate on attention weights.
            width: how many tokens a query sees on a side, itself included.
            kv_heads: number of key/value heads.
            bias: whether the projections have biases.
        """
        super().__init__(dim, heads, backend, dropout, kv_heads, bias=bias)
        if width < 1:
            raise UsageError(f"attention SlidingWindow needs width of at least 1, got {width}.")
        self.width = width

    def thin(self, pattern):
        """The pattern with the narrower of its window and ``width``."""
        return replace(pattern, window=self.width if pattern.window is None else min(self.width, pattern.window))


class Strided(Thinned):
    """A query sees the last ``stride`` keys and every stride-th: |t - s| < stride or (t - s) mod stride = 0, the two
    heads of Child et al. (2019) in one.

    With stride near sqrt(T) a query has about 2 sqrt(T) keys and two layers connect all pairs. No backend skips the
    others: the pattern is here to be compared, it saves no time.
    """

    requires = frozenset({"sparse"})

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        stride: int = 16,
        kv_heads: int | None = None,
        bias: bool = True,
    ):
        """
        Args:
            dim: width of a token.
            heads: number of attention heads.
            backend: how the softmax is computed.
            dropout: rate on attention weights.
            stride: distance of the far keys, and how many near ones there are.
            kv_heads: number of key/value heads.
            bias: whether the projections have biases.
        """
        super().__init__(dim, heads, backend, dropout, kv_heads, bias=bias)
        if stride < 1:
            raise UsageError(f"attention Strided needs stride of at least 1, got {stride}.")
        self.rule = Stride(stride)

    def thin(self, pattern):
        """The pattern with the keys that the stride allows."""
        return pattern.thinned(self.rule)


@dataclass(frozen=True)
class Stride:
    """The rule of Strided; equal rules are one, so that layers share a mask."""

    stride: int

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        gap = query - key
        return (gap.abs() < self.stride) | (gap % self.stride == 0)
