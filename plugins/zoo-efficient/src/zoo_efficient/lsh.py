"""Attention among tokens that point in similar directions, found by hashing."""

from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from zoo.errors import UsageError
from zoo.parts.attention import Attention
from zoo.parts.backend import SDPA, Backend, Naive
from zoo.parts.cache import Cache
from zoo.parts.few_row_linear import Linear
from zoo.parts.pattern import Pattern
from zoo_efficient.directions import orthonormal
from zoo_efficient.places import turned
from zoo_efficient.precision import unshortened, widened

ALONE = -1e30  # the score of a query's own key: above no key at all, below every other


class LSH(Attention):
    """Shared queries and keys in hash buckets: softmax over P_t of q_t q_s' / |q_s| + bias (Kitaev et al., 2020).

    P_t holds every s that the pattern allows and that has t's bucket in at least one round; t itself only if there is
    no other. The bucket of x is argmax [x R; -x R], R a random rotation, drawn once for each head and round; more
    columns than D are several rotations, and not the paper's normal ones, whose lengths make some buckets crowded.

    The paper cuts the sorted tokens into chunks of one length, whose borders move with every token. Here a query sees
    its whole bucket: no later token changes an earlier one, and decoding from a cache is one pass in steps. The price
    is time and memory T × (longest bucket). A memory is not hashed but seen whole.
    """

    own_backend = Naive
    dot_product = False
    exact = False
    sees_all = False
    known_failures: ClassVar[dict[str, str]] = {
        "queries_are_turned": "the bucket of a turned query depends on its place",
        "memory_is_looked_at_alike": "a memory is seen whole, and not by buckets",
    }
    turns: Tensor

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        buckets: int = 8,
        rounds: int = 2,
        bias: bool = True,
    ):
        """
        Args:
            dim: width of a token.
            heads: number of attention heads.
            backend: none; a dot product over all keys is what this saves.
            dropout: rate on attention weights.
            buckets: number of buckets, 1 or even; time falls with it as long as buckets are equally full.
            rounds: how often tokens are hashed; each finds keys that the others missed.
            bias: whether the projections have biases.
        """
        super().__init__(dim, heads, backend, dropout, bias=bias)
        if rounds < 1:
            raise UsageError(f"attention LSH needs rounds of at least 1, got {rounds}.")
        if buckets < 1 or (buckets > 1 and buckets % 2):
            valid = f"{buckets - 1} or {buckets + 1}" if buckets > 0 else "1 or 2"
            raise UsageError(f"attention LSH needs 1 or an even number of buckets, got {buckets}. Try {valid}.")
        self.buckets, self.rounds = buckets, rounds
        self.qkv = Linear(dim, 2 * heads * self.head_dim, bias=bias)  # a key is a query's direction
        self.register_buffer("turns", torch.empty(heads, rounds, self.head_dim, buckets // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the rotations that hash tokens."""
        if self.buckets > 1 and not self.turns.is_meta:
            heads, rounds, width, half = self.turns.shape
            bases = torch.stack([orthonormal(half, width).T for _ in range(heads * rounds)])
            self.turns.copy_(bases.view_as(self.turns))

    def forward(self, x, memory=None, *, pattern, position=None, cache=None):
        """x (B, T, dim) looks at itself within buckets, or at all of memory (B, S, dim); shaped like x."""
        if memory is None:
            return super().forward(x, pattern=pattern, position=position, cache=cache)
        q, k, v = self.project(x, memory, pattern, position, cache)
        heads = SDPA()(q, k, v, pattern, self.dropout if self.training else 0.0, 1.0)
        return self.out(heads.transpose(1, 2).flatten(2))

    def weights(self, x, memory=None, *, pattern, position=None, rows=None, heads=None):
        """The weights (B, H, T, S) of a forward with the same arguments."""
        if memory is None:
            return super().weights(x, pattern=pattern, position=position, rows=rows, heads=heads)
        q, k, _ = self.project(x, memory, pattern, position, None)
        rows, heads = (slice(None) if selection is None else selection for selection in (rows, heads))
        return Naive().weights(q[:, heads][:, :, rows], k[:, heads], pattern, 1.0)

    def project(self, x, memory, pattern, position, cache):
        """Queries, keys and values, each (B, H, T, D); keys are the queries' directions."""
        if memory is not None:
            return super().project(x, memory, pattern, position, cache)
        rows = slice(self.heads * self.head_dim)
        bias = None if self.qkv.bias is None else widened(self.qkv.bias[rows])
        with unshortened(x):  # a rounded query may fall into another bucket
            q = F.linear(widened(x), widened(self.qkv.weight[rows]), bias).unflatten(-1, (self.heads, -1))
        q, v = q.transpose(1, 2), self._heads(x, self.heads, self.heads)
        if position is not None and position.rotates:
            q = turned(q, pattern, position)
        k = direction(q)
        if isinstance(cache, Cache):
            k, v = cache.extend(k, v)
        return q, k, v

    def _keys(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self._heads(memory, 0, 2 * self.heads).chunk(2, 1)
        return direction(k), v

    def attend(self, q, k, v, pattern):
        """Queries (B, H, T, D), keys and values (B, H, S, D) to what the heads give, (B, H, T, D)."""
        here, there = self._hashed(q, k, pattern)
        rounds = [
            checkpoint(self._round, number, q, k, v, pattern, here, there, use_reentrant=False)
            for number in range(self.rounds)
        ]
        outs, masses = (torch.stack(each) for each in zip(*rounds, strict=True))
        return (masses.softmax(0) * outs).sum(0).to(v.dtype)

    def weigh(self, q, k, pattern):
        """Queries (B, H, T, D) and keys (B, H, S, D) to weights (B, H, T, S), zero between different buckets."""
        T, S = q.size(2), k.size(2)
        here, there = self._hashed(q, k, pattern)
        met = (here.unsqueeze(-1) == there.unsqueeze(-2)).any(2)  # (B, H, T, S)
        mask, bias = pattern.dense(self.heads, T, S, q.device)
        met = met if mask is None else met & mask
        query = torch.arange(pattern.offset, pattern.offset + T, device=q.device)
        key = torch.arange(pattern.start, pattern.start + S, device=q.device)
        score = products(q, k) if bias is None else products(q, k) + bias
        return hidden(score, query[:, None] == key, met).softmax(-1).masked_fill(~met, 0.0)

    def _hashed(self, q: Tensor, k: Tensor, pattern: Pattern) -> tuple[Tensor, Tensor]:
        """The buckets of queries, (B, H, rounds, T), and of keys, (B, H, rounds, S); padding is in none of them."""
        here, there = self._hash(direction(q)), self._hash(k)
        if pattern.valid is not None:
            there = there.masked_fill(~pattern.valid[:, None, None], self.buckets)
        return here, there

    @torch.no_grad()
    def _hash(self, x: Tensor) -> Tensor:
        if self.buckets == 1:
            return x.new_zeros((*x.shape[:2], self.rounds, x.size(2)), dtype=torch.long)
        with unshortened(x):
            turned = widened(x).unsqueeze(2) @ widened(self.turns)  # (B, H, rounds, T, buckets / 2)
        return torch.cat([turned, -turned], -1).argmax(-1)

    def _round(
        self, number: int, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What queries find in one round, (B, H, T, D), and the logarithm of its weight among rounds, (B, H, T, 1).

        A pair that meets in n rounds counts 1/n in each, so that all rounds together are one softmax over P.
        """
        row, key, real, slot = meet(here[:, :, number], there[:, :, number], self.buckets)
        at, to = pattern.offset + row.unsqueeze(-1), pattern.start + key.unsqueeze(-2)
        met = real.unsqueeze(-2) & pattern.allowed(at, to)  # (B, H, n, C, W)
        score = products(gather_entries(q, row), gather_entries(k, key))
        if pattern.bias is not None:
            score = score + pattern.bias(torch.arange(self.heads, device=q.device)[:, None, None, None], at, to)
        score = hidden(score, at == to, met)
        top = score.amax(-1, keepdim=True).detach()
        weight = (score - top).exp()
        if self.rounds > 1:
            again = [
                gather_entries(here[:, :, other], row).unsqueeze(-1)
                == gather_entries(there[:, :, other], key).unsqueeze(-2)
                for other in range(self.rounds)
                if other != number
            ]
            weight = weight / sum((same.view(torch.uint8) for same in again), start=1)
        total = weight.sum(-1, keepdim=True)
        with unshortened(q):
            out = F.dropout(weight, self.dropout, self.training) @ gather_entries(v, key).to(weight.dtype) / total
        out = out.masked_fill(top == lowest(top), 0.0)
        return gather_entries(out.flatten(2, 3), slot), gather_entries((top + total.log()).flatten(2, 3), slot)


def direction(x: Tensor) -> Tensor:
    """x / |x| of x (..., D), the same shape."""
    return F.normalize(widened(x), dim=-1).to(x.dtype)


def products(q: Tensor, k: Tensor) -> Tensor:
    """q k' of q (..., T, D) and k (..., S, D), (..., T, S) in at least float32."""
    with unshortened(q):
        return widened(q) @ widened(k).mT


def hidden(score: Tensor, own: Tensor, met: Tensor) -> Tensor:
    """Scores, changed in place, the same shape: the own key below all others, keys of other buckets below that."""
    return score.masked_fill_(own, ALONE).masked_fill_(~met, lowest(score))


def lowest(score: Tensor) -> float:
    """The score of a key that a query does not meet."""
    return torch.finfo(score.dtype).min


def gather_entries(x: Tensor, index: Tensor) -> Tensor:
    """Entries (B, H, L, ...) of numbers (B, H, ...), in the shape of the numbers."""
    inner = x.shape[3:]
    flat = index.flatten(2)
    return x.gather(2, flat.view(*flat.shape, *[1] * len(inner)).expand(*flat.shape, *inner)).view(*index.shape, *inner)


class Meeting(NamedTuple):
    """Queries and keys of equal buckets, brought together in n chunks of one bucket each."""

    row: Tensor  # (B, H, n, C): queries, where a bucket's last chunk is not full some number
    key: Tensor  # (B, H, n, W): keys, where W is the longest bucket
    real: Tensor  # (B, H, n, W): False where a shorter bucket has no key
    slot: Tensor  # (B, H, T): where each query is, in 0..n * C-1


def meet(here: Tensor, there: Tensor, buckets: int) -> Meeting:
    """Chunks for queries with buckets (B, H, T) and keys with buckets (B, H, S); C is half an average bucket."""
    T, S = here.size(2), there.size(2)
    size = -(-T // (2 * buckets))
    chunks = (T + min(buckets, T) * (size - 1)) // size  # as many as there can be
    bucket, query = here.sort(stable=True)
    first, end = bounds(bucket, torch.arange(buckets, device=here.device).expand(*here.shape[:2], -1))
    room = (end - first + size - 1) // size * size
    place = torch.arange(T, device=here.device) + (room.cumsum(-1) - room - first).gather(-1, bucket)
    row = here.new_zeros(*here.shape[:2], chunks * size).scatter(-1, place, query)
    slot = torch.empty_like(place).scatter(-1, query, place)
    stored, order = there.sort(stable=True)
    first, end = bounds(stored, here.new_zeros(*here.shape[:2], chunks).scatter(-1, place // size, bucket))
    # the meta device, where costs are counted, has no numbers: as if all buckets were equally full
    width = -(-S // buckets) if here.is_meta or not here.numel() else max(1, int((end - first).max()))
    at = first.unsqueeze(-1) + torch.arange(width, device=here.device)
    real = at < end.unsqueeze(-1)
    return Meeting(row.unflatten(-1, (chunks, size)), gather_entries(order, at.clamp(max=S - 1)), real, slot)


def bounds(stored: Tensor, buckets: Tensor) -> tuple[Tensor, Tensor]:
    """First and end place of each of ``buckets`` (..., n) in sorted ``stored`` (..., N), both (..., n)."""
    buckets = buckets.contiguous()
    return torch.searchsorted(stored, buckets), torch.searchsorted(stored, buckets, right=True)
