"""A pattern in the words of a varlen kernel: sequences without padding, one after the other, under one band.

A kernel takes segments of T queries and S keys. Query i sees key j of its segment where
i + S - T - left <= j <= i + S - T + right: the last query stands at the last key. All here is arithmetic of whole
numbers, on the CPU.
"""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.errors import UsageError
from zoo.parts.pattern import Pattern

OPEN = -1  # a side on which the band has no end


class Packed(NamedTuple):
    """One call of a kernel: which of (B*T) queries and (B*S) keys it takes, where its N segments end, and its band."""

    queries: Tensor | None  # None: all, in order
    keys: Tensor | None
    query_ends: Tensor  # (N + 1,) int32, from 0 on
    key_ends: Tensor
    longest_query: int
    longest_key: int
    window: tuple[int, int]  # (left, right)

    def to(self, device: torch.device) -> "Packed":
        """This call on a device; ends that were one tensor stay one."""
        ends = self.query_ends.to(device)
        return self._replace(
            queries=None if self.queries is None else self.queries.to(device),
            keys=None if self.keys is None else self.keys.to(device),
            query_ends=ends,
            key_ends=ends if self.key_ends is self.query_ends else self.key_ends.to(device),
        )


class Sight(NamedTuple):
    """What queries see, (B, T) each; a row's real keys are counted 0, 1, 2, ... and a query sees first..last-1."""

    first: Tensor
    last: Tensor
    own: Tensor  # the key at the query's own position, where ``real``
    real: Tensor
    padding: Tensor  # the query stands at padding


class Keys(NamedTuple):
    """The real keys of all rows in order: their numbers among (B*S), and how many stand before each row."""

    number: Tensor
    before: Tensor  # (B,)
    positions: int  # per row

    def place(self, row: Tensor, key: Tensor) -> Tensor:
        """Where the real keys number ``key`` (n,) of rows (n,) stand, from 0 on, (n,)."""
        return self.number[self.before[row] + key] % self.positions


_packed: WeakKeyDictionary[Pattern, dict[tuple, list[Packed]]] = WeakKeyDictionary()


def pack(pattern: Pattern, shape: tuple[int, int, int], device: torch.device, skip_padding: bool) -> list[Packed]:
    """``plan`` on a device, made once for all layers of one forward."""
    plans, key = _packed.setdefault(pattern, {}), (shape, device, skip_padding)
    if key not in plans:
        plans[key] = [call.to(device) for call in plan(pattern, shape, skip_padding)]
    return plans[key]


def plan(pattern: Pattern, shape: tuple[int, int, int], skip_padding: bool = False) -> list[Packed]:
    """The calls, two at most, that serve a pattern for ``shape`` (B, T, S). A query without keys is in none.

    Queries at real keys are one call, a segment for each row. The rest (queries at padding, queries off the keys, all
    of a call where order does not matter) is another, without a band: a segment for each run of queries that see the
    same keys. ``skip_padding`` leaves out queries at padding, where order matters.
    """
    B, T, S = shape
    if not B * T * S:
        return []
    valid = torch.ones(B, S, dtype=torch.bool) if pattern.valid is None else pattern.valid.cpu()
    keys = Keys(valid.flatten().nonzero().flatten(), valid.sum(1).cumsum(0) - valid.sum(1), S)
    sight, window, biased = see(pattern, valid, T), band(pattern), pattern.bias is not None
    remaining = sight.last > sight.first
    calls = []
    if biased or window != (OPEN, OPEN):
        banded, begin, end = in_band(sight, window)
        if biased:
            banded &= neighbours(keys, torch.arange(B), begin, end)[:, None]
        remaining &= ~banded & ~(sight.padding & skip_padding)
        rows = banded.any(1).nonzero().flatten()
        spans = keys.before[rows] + begin[rows], keys.before[rows] + end[rows]
        calls.append((banded, banded.sum(1)[rows], keys.number[ranges(*spans)], spans[1] - spans[0], window))
    calls.append((remaining, *runs(pattern, keys, sight, remaining), (OPEN, OPEN)))
    return [packed(shape, *call) for call in calls if call[0].any()]


def see(pattern: Pattern, valid: Tensor, T: int) -> Sight:
    """What T queries see of keys, of which (B, S) are ``valid``."""
    S, reach = valid.size(1), pattern.window
    at = torch.arange(T) + pattern.offset - pattern.start  # the query's own position, counted from the first key
    begin = torch.zeros_like(at) if reach is None else at - reach + 1
    end = at + 1 if pattern.causal else torch.full_like(at, S) if reach is None else at + reach
    count = F.pad(valid.cumsum(1), (1, 0))
    first, last = (count[:, edge.clamp(0, S)] for edge in (begin, end))
    among, at = (at >= 0) & (at < S), at.clamp(0, S - 1)
    return Sight(first, last, count[:, at], valid[:, at] & among, ~valid[:, at] & among)


def band(pattern: Pattern) -> tuple[int, int]:
    """How many keys to the left and to the right of its own a query sees."""
    far = OPEN if pattern.window is None else pattern.window - 1
    return far, 0 if pattern.causal else far


def in_band(sight: Sight, window: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Which queries (B, T) one segment for each row serves, and which real keys begin..end-1 (B,) it takes.

    Counted without padding, keys are nearer than they stand: a row whose gaps reach into its window is not served.
    """
    back, ahead = window
    count = sight.real.cumsum(1)
    begin = sight.first.gather(1, (count == 0).sum(1, keepdim=True).clamp(max=count.size(1) - 1))
    end = torch.where(sight.real, sight.own + 1, 0).amax(1, keepdim=True)
    first = begin if back == OPEN else torch.maximum(begin, sight.own - back)
    last = end if ahead == OPEN else torch.minimum(end, sight.own + ahead + 1)
    fits = ~sight.real | ((sight.first == first) & (sight.last == last))
    return sight.real & fits.all(1, keepdim=True), begin[:, 0], end[:, 0]


def neighbours(keys: Keys, row: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Whether the real keys first..last-1 of a row stand side by side; all arguments and the result are (n,)."""
    some = last > first
    row, first, final = row[some], first[some], last[some] - 1
    near = torch.ones_like(some)
    near[some] = keys.place(row, final) - keys.place(row, first) == final - first
    return near


def runs(pattern: Pattern, keys: Keys, sight: Sight, remaining: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Segments for the ``remaining`` of queries (B, T): their lengths, their keys, and how many those are.

    With ALiBi each query is a segment of its own, and its nearest key is the last: a constant added to a row of scores
    changes nothing, so that only distances between keys count.
    """
    row, query = remaining.nonzero(as_tuple=True)
    first, last = sight.first[remaining], sight.last[remaining]
    what = torch.stack([row, first, last])
    new = torch.ones_like(row, dtype=torch.bool)
    if pattern.bias is None:
        new[1:] = (what[:, 1:] != what[:, :-1]).any(0)
    head = new.nonzero().flatten()
    lengths = torch.cat([head, torch.tensor([len(row)])]).diff()
    row, query, first, last = row[head], query[head], first[head], last[head]
    begin, end = keys.before[row] + first, keys.before[row] + last
    numbers = ranges(begin, end)
    if pattern.bias is not None:
        at = query + pattern.offset - pattern.start
        ahead = keys.place(row, first) >= at
        if not (neighbours(keys, row, first, last) & (ahead | (keys.place(row, last - 1) <= at))).all():
            raise UsageError(
                "backend FlashVarlen supports ALiBi's bias over keys that stand side by side, and not on both sides "
                "of a query beyond them: here padding stands between tokens. Use SDPA or Tiled."
            )
        mirror = (begin + end - 1).repeat_interleave(end - begin) - numbers
        numbers = torch.where(ahead.repeat_interleave(end - begin), mirror, numbers)
    return lengths, keys.number[numbers], end - begin


def packed(
    shape: tuple[int, int, int],
    selected: Tensor,
    query_lengths: Tensor,
    keys: Tensor,
    key_lengths: Tensor,
    window: tuple[int, int],
) -> Packed:
    """One call for the ``selected`` queries (B, T)."""
    query_ends, key_ends = (F.pad(x.cumsum(0), (1, 0)).to(torch.int32) for x in (query_lengths, key_lengths))
    if torch.equal(query_ends, key_ends):
        key_ends = query_ends  # one tensor tells torch that cuDNN's causality, aligned at the top, is the same
    queries = None if selected.all() else selected.flatten().nonzero().flatten()
    some_keys = None if torch.equal(keys, torch.arange(shape[0] * shape[2])) else keys
    longest = int(query_lengths.max()), int(key_lengths.max())
    return Packed(queries, some_keys, query_ends, key_ends, *longest, window)


def ranges(begin: Tensor, end: Tensor) -> Tensor:
    """The numbers begin..end-1 of each pair (n,), one range after the other, (sum of lengths,)."""
    length = end - begin
    shift = begin - length.cumsum(0) + length
    return torch.arange(int(length.sum())) + shift.repeat_interleave(length)
