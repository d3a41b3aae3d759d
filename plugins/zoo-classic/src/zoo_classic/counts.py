"""How often each n-gram occurred, and the probabilities that two smoothings make of it."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo_classic.rows import WindowState

Smoothing = Literal["laplace", "kneser_ney"]
BITS = 63  # of a key


class Table:
    """n-grams of one length: sorted keys w_1 V^(n-1) + ... + w_n, and a number for each.

    The n-grams of one context h stand together, those with keys from h V to (h + 1) V.
    """

    def __init__(self, keys: Tensor, counts: Tensor, vocab_size: int):
        self.keys, self.vocab_size = keys, vocab_size
        self.counts = counts.double()
        self.sums = self._running(self.counts)

    @staticmethod
    def _running(values: Tensor) -> Tensor:
        return torch.cat([values.new_zeros(1), values.cumsum(0)])

    def spans(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """Where the n-grams of contexts (N,) begin and end."""
        edges = torch.stack([contexts, contexts + 1]) * self.vocab_size
        begin, end = torch.searchsorted(self.keys, edges)
        return begin, end

    def spread(self, values: Tensor, begin: Tensor, end: Tensor) -> Tensor:
        """What stands for each next token: (N, V), 0 where a context was not followed by it."""
        sizes = end - begin
        row = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)
        inside = torch.arange(len(row), device=row.device) - (sizes.cumsum(0) - sizes)[row]
        place = begin[row] + inside
        table = values.new_zeros(len(sizes), self.vocab_size)
        table[row, self.keys[place] % self.vocab_size] = values[place]
        return table

    def discounts(self) -> Tensor:
        """The discount of modified Kneser-Ney for each count (N,), (N,): D_1, D_2 or D_3.

        Chen and Goodman (1999), equation 26.
        """
        n1, n2, n3, n4 = (int((self.counts == times).sum()) for times in (1, 2, 3, 4))
        if not (n1 and n2 and n3 and n4):  # too few n-grams for the estimate: absolute discounting by one half
            return torch.full_like(self.counts, 0.5)
        y = n1 / (n1 + 2 * n2)
        usual = [1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
        by_count = torch.tensor([min(max(d, 0.0), c) for c, d in enumerate(usual, 1)], dtype=torch.float64)
        return by_count.to(self.counts.device)[self.counts.clamp(max=3).long() - 1]


class Counts(nn.Module):
    """log p(w | h) from counts: h are the last ``order`` - 1 tokens, or fewer at the beginning of a row.

    laplace: (c(h w) + add) / (c(h) + add V). kneser_ney, modified and interpolated (Chen and Goodman, 1999):
    (c(h w) - D(c(h w))) / c(h) + sum_v D(c(h v)) / c(h) p(w | h'), h' being h without its first token, down to the
    uniform distribution; below the highest order c counts how many different tokens were seen in front.
    """

    keys_1: Tensor

    def __init__(self, vocab_size: int, max_length: int, order: int, smoothing: Smoothing, add: float):
        super().__init__()
        longest = int(BITS / math.log2(max(vocab_size, 2)))
        if not 1 <= order <= longest:
            raise UsageError(f"order is {order}: with {vocab_size} tokens it must lie between 1 and {longest}.")
        if smoothing not in ("laplace", "kneser_ney"):
            raise UsageError(f"smoothing is {smoothing!r}: it must be laplace or kneser_ney.")
        if not add >= 0:
            raise UsageError(f"add is {add}: it must be at least 0.")
        self.vocab_size, self.max_length, self.order = vocab_size, max_length, order
        self.smoothing, self.add = smoothing, add
        self.grows = tuple(f"{what}_{n}" for n in range(1, order + 1) for what in ("keys", "counts"))
        for name in self.grows:
            self.register_buffer(name, torch.zeros(0, dtype=torch.long))
        self.waiting: list[list[Tensor]] = [[] for _ in range(order)]
        self.tables: list[Table] | None = None
        self.register_state_dict_pre_hook(lambda module, *_: module.merge())

    def count(self, rows: Tensor) -> None:
        """Count the n-grams of rows (B, T) that end after their first token; -1 is no token."""
        for n in range(1, min(self.order, rows.size(1)) + 1):
            grams = rows.unfold(1, n, 1)[:, n == 1 :].flatten(0, 1)
            self.waiting[n - 1].append(self.key(grams[(grams >= 0).all(1)]))
        self.tables = None

    def key(self, grams: Tensor) -> Tensor:
        """(..., n) to their numbers; 0 for nothing at all."""
        number = grams.new_zeros(grams.shape[:-1])
        for token in grams.unbind(-1):
            number = number * self.vocab_size + token
        return number

    def merge(self) -> None:
        """Put what was counted since the last time into the tables."""
        for n, waiting in enumerate(self.waiting, 1):
            if waiting:
                had, times = self.get_buffer(f"keys_{n}"), self.get_buffer(f"counts_{n}")
                new, more = torch.cat(waiting).unique(return_counts=True)
                keys, place = torch.cat([had, new.to(had.device)]).unique(return_inverse=True)
                counts = torch.zeros_like(keys).index_add(0, place, torch.cat([times, more.to(had.device)]))
                setattr(self, f"keys_{n}", keys)
                setattr(self, f"counts_{n}", counts)
                waiting.clear()

    def _load_from_state_dict(self, tensors, prefix, *args):
        for name in self.grows:
            if prefix + name in tensors:
                setattr(self, name, torch.empty_like(tensors[prefix + name], device=self.keys_1.device))
        for waiting in self.waiting:
            waiting.clear()
        self.tables = None
        super()._load_from_state_dict(tensors, prefix, *args)

    def ready(self) -> list[Table]:
        """A table for each order, made when it is needed."""
        if self.tables is None or self.tables[0].keys.device != self.keys_1.device:
            self.merge()
            own = [(self.get_buffer(f"keys_{n}"), self.get_buffer(f"counts_{n}")) for n in range(1, self.order + 1)]
            if self.smoothing == "kneser_ney":
                for n in range(1, self.order):  # how many different tokens stand in front of each n-gram
                    own[n - 1] = (own[n][0] % self.vocab_size**n).unique(return_counts=True)
            self.tables = [Table(*one, self.vocab_size) for one in own]
        return self.tables

    @torch.no_grad()
    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to the logarithms of the probabilities of the next one (B, T, vocab_size)."""
        shape = (*tokens.shape, self.vocab_size)
        if tokens.is_meta:
            return tokens.new_empty(shape, dtype=torch.float32)
        p = torch.full(shape, 1 / self.vocab_size, dtype=torch.float64, device=tokens.device)
        for n, table in enumerate(self.ready(), 1):
            if n - 1 > tokens.size(1):
                break
            first = max(0, n - 2)  # where n - 1 tokens have been read
            contexts = self.key(tokens.unfold(1, n - 1, 1) if n > 1 else tokens[..., None][..., :0])
            p[:, first:] = self._next(table, contexts.flatten(), p[:, first:].flatten(0, 1)).view_as(p[:, first:])
        return p.log().to(torch.get_default_dtype())

    def _next(self, table: Table, contexts: Tensor, lower: Tensor) -> Tensor:
        """p(w | h) for contexts (N,), as (N, V), from the distributions of the order below."""
        begin, end = table.spans(contexts)
        total = (table.sums[end] - table.sums[begin])[:, None]
        if self.smoothing == "laplace":
            whole = total + self.add * self.vocab_size
            return torch.where(
                whole > 0, (table.spread(table.counts, begin, end) + self.add) / whole, 1 / lower.size(1)
            )
        off = table.discounts()
        discounted = table._running(off)
        mass = (discounted[end] - discounted[begin])[:, None]
        return torch.where(total > 0, (table.spread(table.counts - off, begin, end) + mass * lower) / total, lower)

    def begin(self, capacity: int, valid: Tensor | None = None) -> WindowState:
        """A state for writing; any ``capacity`` will do."""
        return WindowState(self, max(1, self.order - 1))
