"""Attention with a learned key, and perhaps a learned value, for each distance between two tokens."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.parts.attention import MultiHead
from zoo.parts.backend import Backend, Naive
from zoo.parts.disentangled import gather_terms
from zoo.parts.pattern import Pattern


class Shaw(MultiHead):
    """softmax(q_i (k_j + a_d)' / sqrt(D)) (v_j + b_d), d = clip(j - i, -max_distance, max_distance).

    a, and with ``values`` b, are tables of 2 max_distance + 1 rows of width D, which the heads of a layer share and
    layers do not. The paper has both; it found that the keys' alone do as well, and these any backend computes. On a
    grid distance is that of flat positions. A memory, to whose tokens there is no distance, is looked at by MultiHead.

    Paper: Self-Attention with Relative Position Representations, Shaw et al., 2018.
    """

    requires = frozenset({"content"})
    supports = MultiHead.supports - {"rotate", "cross", "places"} | requires
    place_tables = ("distance_keys.weight", "distance_values.weight")

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        max_distance: int = 16,
        values: bool = False,
        kv_heads: int | None = None,
        bias: bool = True,
    ):
        """
        Args:
            dim: width of a token.
            heads: number of heads of queries.
            backend: how it is computed; with values by Naive alone.
            dropout: rate on the attention weights.
            max_distance: k; farther tokens have the key of this distance.
            values: learn a value for each distance as well.
            kv_heads: number of heads of keys and values, a divisor of heads; as many as heads unless given.
            bias: give queries, keys, values and the output a bias.

        Raises UsageError for a max_distance below 1, and for values with another backend than Naive.
        """
        super().__init__(dim, heads, backend, dropout, kv_heads, bias=bias)
        if max_distance < 1:
            raise UsageError(f"attention Shaw needs max_distance >= 1, got {max_distance}.")
        if values and not isinstance(backend, Naive | None):
            raise UsageError(
                f"attention Shaw with values=true needs the weights themselves, which backend {type(backend).__name__} "
                "does not give. Works with: Naive, or no backend named."
            )
        self.max_distance, self.adds_to_values = max_distance, values
        self.backend = Naive() if values else self.backend
        self.distance_keys = nn.Embedding(2 * max_distance + 1, self.head_dim)
        self.distance_values = nn.Embedding(2 * max_distance + 1, self.head_dim) if values else None

    def across(self):
        """MultiHead of the same sizes: to the tokens of a memory there is no distance."""
        bias = self.qkv.bias is not None
        return MultiHead(self.out.out_features, self.heads, self.backend, self.dropout, self.kv_heads, bias=bias)

    def attend(self, q, k, v, pattern):
        """Queries (B, H, T, D), keys and values (B, kv_heads, S, D) to what the heads give, (B, H, T, D)."""
        if self.distance_values is None:
            return super().attend(q, k, v, self.with_distances(q, pattern))
        weights = F.dropout(self.weigh(q, k, pattern), self.dropout, self.training).to(v.dtype)
        out = weights @ v.repeat_interleave(self.heads // self.kv_heads, 1)
        query = torch.arange(q.size(2), device=q.device) + pattern.offset
        key = torch.arange(k.size(2), device=q.device) + pattern.start
        row = self.row(query, key).expand_as(weights)
        shares = weights.new_zeros(*q.shape[:3], 2 * self.max_distance + 1).scatter_add(-1, row, weights)
        return out + shares @ self.distance_values.weight.to(v.dtype)

    def weigh(self, q, k, pattern):
        """Queries (B, H, T, D) and keys (B, kv_heads, S, D) to weights (B, H, T, S), in at least float32."""
        return super().weigh(q, k, self.with_distances(q, pattern))

    def with_distances(self, q: Tensor, pattern: Pattern) -> Pattern:
        """The pattern with q_i a_d' / sqrt(D) added to the scores of queries (B, H, T, D)."""
        terms = q @ self.distance_keys.weight.to(q.dtype).mT * self.head_dim**-0.5  # (B, H, T, 2 max_distance + 1)

        def content(query: Tensor, key: Tensor) -> Tensor:
            row = self.row(query, key).expand(*q.shape[:2], -1, -1)
            added = gather_terms(terms, query - pattern.offset).gather(-1, row)
            return added if pattern.content is None else added + pattern.content(query, key)

        return replace(pattern, content=content)

    def row(self, query: Tensor, key: Tensor) -> Tensor:
        """Which row of the tables stands for the distance of positions (T,) and (S,), as (T, S)."""
        most = self.max_distance
        return (key[None] - query[:, None]).clamp(-most, most) + most

    def convert_rows(self, start: "Shaw", table: Tensor) -> tuple[Tensor, Tensor]:
        """For each distance the row that stood for it in ``start``'s table (rows, D), and that there is one."""
        distances = torch.arange(-self.max_distance, self.max_distance + 1)
        rows = start.row(torch.zeros(1, dtype=torch.int64), distances)[0]
        return table[rows], torch.ones(len(rows), dtype=torch.bool)
