"""Disentangled attention: scores of what tokens are, and of how far apart they stand."""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.parts.attention import Attention, MultiHead
from zoo.parts.backend import Backend, Naive
from zoo.parts.few_row_linear import linear
from zoo.parts.norm import Norm
from zoo.parts.pattern import Pattern

Terms = Literal["both", "c2p", "p2c"]


class Disentangled(Attention):
    """DeBERTa's attention: softmax((q_i k_j' + q_i K_d' + k_j Q_d') / sqrt(3 D)) v_j (He et al., 2021).

    K_d and Q_d are a key and a query of the distance d = i - j, made from a table that all layers share, with rows for
    the distances -span to span - 1; farther ones have the last row. With a ``max_distance`` the rows beyond span / 2
    are logarithmic, up to that distance (versions 2 and 3). The paper reads Q at j - i; its published code and weights,
    and this, read K and Q at i - j. On a grid distance is that of flat positions. A memory, to whose tokens there is no
    distance, is looked at by MultiHead.

    Paper: DeBERTa: Decoding-enhanced BERT with Disentangled Attention, He et al., 2021.
    """

    requires = frozenset({"content"})
    supports = Attention.supports - {"rotate", "cross"} | requires
    shared = ("places",)
    place_tables = ("places.table.weight",)

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        span: int = 32,
        max_distance: int | None = 128,
        pos_att_type: Terms = "both",
        share_att_key: bool = True,
        key_bias: bool = True,
        norm: Callable[[int], Norm] | None = None,
    ):
        """
        Args:
            dim: width of a token.
            heads: number of heads.
            backend: how it is computed.
            dropout: rate on the weights.
            span: rows of the table for each direction.
            max_distance: the distance that the last row stands for; without one every row stands for one distance.
            pos_att_type: c2p, what a token is and where the other stands; p2c, the reverse; or both.
            share_att_key: make keys and queries of distances with the matrices of the tokens' own, as version 3 does.
            key_bias: give keys a bias, which version 1 has not.
            norm: of the table.
        """
        super().__init__(dim, heads, backend, dropout)
        if span < 2 or (max_distance is not None and max_distance - 1 <= span // 2):
            raise UsageError(
                "attention Disentangled needs span >= 2 and max_distance above span / 2 + 1, "
                f"got {span} and {max_distance}."
            )
        self.span, self.max_distance = span, max_distance
        self.pos_att_type, self.share_att_key = pos_att_type, share_att_key
        self.scale = ((3 if pos_att_type == "both" else 2) * self.head_dim) ** -0.5
        if not key_bias:
            self.qkv = KeylessBias(dim, heads * self.head_dim)  # type: ignore[assignment]
        self.places = Places(2 * span, dim, norm)
        own = not share_att_key
        self.place_key = nn.Linear(dim, heads * self.head_dim, bias=key_bias) if own and pos_att_type != "p2c" else None
        self.place_query = nn.Linear(dim, heads * self.head_dim) if own and pos_att_type != "c2p" else None

    def across(self):
        """MultiHead of the same sizes: to the tokens of a memory there is no distance."""
        return MultiHead(self.out.out_features, self.heads, self.backend, self.dropout)

    def attend(self, q, k, v, pattern):
        """Queries (B, H, T, D), keys and values (B, kv_heads, S, D) to what the heads give, (B, H, T, D)."""
        return self.backend(
            q, k, v, self.with_content(q, k, pattern), self.dropout if self.training else 0.0, self.scale
        )

    def weigh(self, q, k, pattern):
        """Queries (B, H, T, D) and keys (B, kv_heads, S, D) to weights (B, H, T, S), in at least float32."""
        return Naive().weights(q, k, self.with_content(q, k, pattern), self.scale)

    def with_content(self, q: Tensor, k: Tensor, pattern: Pattern) -> Pattern:
        """The pattern with what distances add to the scores of queries (B, H, T, D) and keys (B, H, S, D)."""
        keys, queries = self.distances()
        # each token against each row of the table, (B, H, T or S, 2 span)
        c2p = None if keys is None else q @ keys.to(q.dtype).mT
        p2c = None if queries is None else k @ queries.to(k.dtype).mT

        def content(query: Tensor, key: Tensor) -> Tensor:
            row = self.row(query[:, None] - key[None]).expand(*q.shape[:2], -1, -1)
            added = q.new_zeros(())
            if c2p is not None:
                added = added + gather_terms(c2p, query - pattern.offset).gather(-1, row)
            if p2c is not None:
                added = added + gather_terms(p2c, key - pattern.start).gather(-1, row.mT).mT
            added = added * self.scale
            return added if pattern.content is None else added + pattern.content(query, key)

        return replace(pattern, content=content)

    def distances(self) -> tuple[Tensor | None, Tensor | None]:
        """Keys and queries of the rows of the table, each (H, 2 span, D), or None where no term reads them."""
        table, keys, queries = self.places(), None, None
        if self.pos_att_type != "p2c":
            keys = (
                self._heads(table[None], self.heads, self.heads)[0]
                if self.share_att_key
                else self._own(self.place_key, table)
            )
        if self.pos_att_type != "c2p":
            queries = (
                self._heads(table[None], 0, self.heads)[0] if self.share_att_key else self._own(self.place_query, table)
            )
        return keys, queries

    def _own(self, project: nn.Module | None, table: Tensor) -> Tensor:
        return cast(nn.Module, project)(table).unflatten(-1, (self.heads, -1)).transpose(0, 1)

    def row(self, gap: Tensor) -> Tensor:
        """Which row of the table stands for a distance, query minus key; elementwise."""
        if self.max_distance is not None:
            near = self.span // 2
            far = gap.abs().clamp(min=near).to(torch.float32)
            last = far.new_tensor((self.max_distance - 1) / near)  # a number would be rounded otherwise
            steps = torch.log(far / near) / torch.log(last) * (near - 1)
            gap = torch.where(gap.abs() <= near, gap, gap.sign() * (steps.ceil().long() + near))
        return (gap + self.span).clamp(0, 2 * self.span - 1)

    def convert_rows(self, start: "Disentangled", table: Tensor) -> tuple[Tensor, Tensor]:
        """For each row the one of ``start``'s table (rows, dim) that stood for its nearest distance, if any did."""
        most = max(self.span, self.max_distance or 0)
        gaps = torch.arange(-most, most + 1)
        gaps = gaps[gaps.abs().argsort(descending=True)]  # the nearest is written last
        rows = torch.full((2 * self.span,), -1)
        for row, start_row in zip(self.row(gaps).tolist(), start.row(gaps).tolist(), strict=True):
            rows[row] = start_row
        return table[rows], rows >= 0


class Places(nn.Module):
    """The table of distances, normalised where it has a norm."""

    def __init__(self, rows: int, dim: int, norm: Callable[[int], Norm] | None):
        super().__init__()
        self.table = nn.Embedding(rows, dim)
        self.norm = norm(dim) if norm is not None else nn.Identity()

    def forward(self) -> Tensor:
        """(rows, dim)."""
        return self.norm(self.table.weight)


class KeylessBias(nn.Module):
    """Queries, keys and values, of which keys have no bias: (..., dim) to (..., 3 width)."""

    packs = True
    parameter_roles: ClassVar = {"ends": "vector"}  # two biases

    def __init__(self, dim: int, width: int):
        super().__init__()
        self.weight, self.ends = nn.Parameter(torch.empty(3 * width, dim)), nn.Parameter(torch.empty(2, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        nn.init.normal_(self.weight, std=(3 * self.weight.size(1)) ** -0.5)
        nn.init.zeros_(self.ends)

    @property
    def bias(self) -> Tensor:
        """Of all three, (3 width,)."""
        query, value = self.ends
        return torch.cat([query, torch.zeros_like(query), value])

    def forward(self, x: Tensor) -> Tensor:
        """x (..., dim) to queries, keys and values side by side, (..., 3 width)."""
        return linear(x, self.weight, self.bias)


def gather_terms(rows: Tensor, numbers: Tensor) -> Tensor:
    """Rows (B, H, T, R) of these numbers, without a copy where they are all of them."""
    return rows if numbers.size(0) == rows.size(2) else rows.index_select(2, numbers)
