"""Attention: which function of queries, keys and values a layer computes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.parts.backend import CASES, RARE, SDPA, Backend, Naive, masked_softmax
from zoo.parts.cache import Cache, MemoryCache, PartState
from zoo.parts.few_row_linear import Linear, linear
from zoo.parts.norm import Norm
from zoo.parts.packing import Packing, declares_packs
from zoo.parts.pattern import Pattern
from zoo.parts.position import Position
from zoo.value_checks import above_zero, at_least

Selection = slice | Sequence[int]
BLOCK = 64  # rows of weights that are computed at once when only some rows are selected


class Attention(nn.Module):
    """Projections, heads, positions and cache around a score; the base of every attention.

    A subclass computes its heads in ``attend`` and their weights in ``weigh``. ``kv_heads`` key/value heads serve
    ``heads`` queries: as many is multi-head, one is multi-query (Shazeer, 2019), between is grouped (Ainslie et al.,
    2023). ``bias`` is that of queries, keys and values, and of the output too unless ``out_bias`` is set.
    """

    kind = "attention"
    own_backend: type[Backend] = SDPA  # what computes when no backend is named
    # what the function makes sense with: turned queries and keys, a memory, and the features of a pattern that its
    # backend must serve as well. "places": it takes positions from the pattern alone, which need not be contiguous
    supports: frozenset[str] = Backend.supports - {"content"} | {"rotate", "cross"}
    requires: frozenset[str] = frozenset()  # features that it adds to every pattern, or "lse", which it asks for
    dot_product = True  # whether a backend can compute it
    shows_weights = True  # it has weights to look at, in ``weigh``
    # its forward also takes ``earlier_layers``, a dictionary in which layers leave tensors for later ones, or None
    reads_earlier_layers = False
    sees_all = True  # a query may see every key that its pattern allows, in whatever order they stand
    memory: Literal["linear", "quadratic"] = "quadratic"  # in length, of what training keeps
    decoding_memory: Literal["constant", "linear"] = "linear"  # in length, of the decoding state
    shared: tuple[str, ...] = ()  # names of modules that all layers of a stack have in common
    adds_to_values = False  # a head gives more than its weights times the values
    query_matrix = True  # queries are made by a matrix; without it a token, cut into heads, is its own query

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        out_bias: bool | None = None,
    ):
        """
        Args:
            dim: width of a token.
            heads: number of heads of queries.
            backend: how it is computed.
            dropout: rate on the attention weights.
            kv_heads: number of heads of keys and values, a divisor of heads; as many as heads unless
                given.
            head_dim: width of a head; dim / heads unless given.
            bias: give queries, keys and values a bias, and the output too unless out_bias is set.
            out_bias: give the output a bias.
        """
        super().__init__()
        at_least(1, head_dim=head_dim)
        if head_dim is None and dim % heads:
            raise UsageError(f"dim={dim} is not divisible by heads={heads}. Try {nearest(dim, heads)}.")
        kv_heads = kv_heads or heads
        if kv_heads < 0:
            raise UsageError(f"attention {type(self).__name__} needs kv_heads >= 1, got {kv_heads}.")
        if heads % kv_heads:
            divisors = nearest(heads, kv_heads, "kv_heads")
            raise UsageError(f"heads={heads} is not divisible by kv_heads={kv_heads}. Try {divisors}.")
        self.heads, self.kv_heads, self.dropout = heads, kv_heads, dropout
        if backend is not None and not self.dot_product and not isinstance(backend, Naive):
            raise UsageError(
                f"attention {type(self).__name__} has no dot product, which is all that backend "
                f"{type(backend).__name__} computes. Works with: Naive, or no backend named."
            )
        self.backend = backend or self.own_backend()
        self.head_dim = head_dim or dim // heads
        self.qkv = Linear(dim, (heads * self.query_matrix + 2 * kv_heads) * self.head_dim, bias=bias)
        self.out = Linear(heads * self.head_dim, dim, bias=bias if out_bias is None else out_bias)
        self.query_norm, self.key_norm = nn.Identity(), nn.Identity()  # norms of each head, before the rotation

    def convert_state(self, start: nn.Module, state: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, str]]:
        """qkv (rows, dim) of the attention that this one replaces, for another number of heads of keys and values.

        Fewer heads are the means of neighbours (Ainslie et al., 2023); more are copies, which computes the same.
        """
        if not isinstance(start, Attention) or start.kv_heads == self.kv_heads or "qkv.weight" not in state:
            return {}
        few, many = sorted((start.kv_heads, self.kv_heads))
        sizes = [start.heads * start.query_matrix, start.kv_heads, start.kv_heads]
        rows, alike = sum(sizes) * self.head_dim, (self.heads, self.head_dim, self.query_matrix)
        if (start.heads, start.head_dim, start.query_matrix) != alike or many % few or len(state["qkv.weight"]) != rows:
            return {}
        result, group = {}, many // few
        for name in self.state_dict().keys() & state.keys() & {"qkv.weight", "qkv.bias"}:
            q, *keys_values = state[name].unflatten(0, (sum(sizes), self.head_dim)).split(sizes)
            if self.kv_heads == few:
                formula = f"mean of each {group} heads of keys and values"
                heads = [x.unflatten(0, (few, group)).mean(1) for x in keys_values]
            else:
                formula = f"each head of keys and values {group} times"
                heads = [x.repeat_interleave(group, 0) for x in keys_values]
            result[name] = torch.cat([q, *heads]).flatten(0, 1), formula
        return result

    def unsupported(self, needs: frozenset[str]) -> frozenset[str]:
        """Which of these needs neither this attention nor its backend can serve."""
        by_case = {CASES[need] for need in needs & self.backend.supports if need in CASES}
        of_backend = ((needs | self.requires) & (Backend.supports | RARE)) - self.backend.supports - by_case
        return (needs - self.supports - frozenset(CASES)) | of_backend

    @property
    def packs(self) -> bool:
        """Whether tokens may come packed: what reads x in a way of its own is shown the padded batch."""
        own, base = type(self), Attention
        methods = own.forward is base.forward and own.project is base.project
        methods = methods and own._heads is base._heads and own._keys is base._keys
        return methods and all(type(part) is nn.Linear or declares_packs(type(part)) for part in (self.qkv, self.out))

    @property
    def turned_dim(self) -> int:
        """Width of what a position scheme turns of a head's query and key: all of it."""
        return self.head_dim

    def across(self) -> "Attention":
        """The attention that looks at a memory in a stack of this one: itself, unless it makes no sense there."""
        return self

    def cache(self, capacity: int, window: int | None = None) -> PartState:
        """An empty decoding state for ``capacity`` tokens, of which a query sees the last ``window``: keys and values.

        A subclass that remembers something else gives a ``PartState`` of its own, and goes on from it in
        ``attend_after``.
        """
        return Cache(capacity, window)

    def attend_after(self, state: PartState, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern) -> Tensor:
        """What ``attend`` gives for new tokens, of which alone q, k and v are, behind those in ``state``, which takes
        them up: (B, H, T, D), (B, G, T, D), (B, G, T, D) to (B, H, T, D).
        """
        raise NotImplementedError

    def attend(self, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern) -> Tensor:
        """(B, H, T, D), (B, G, S, D), (B, G, S, D) to (B, H, T, D)."""
        raise NotImplementedError

    def weigh(self, q: Tensor, k: Tensor, pattern: Pattern) -> Tensor:
        """The attention weights behind ``attend``, (B, H, T, S)."""
        raise NotImplementedError

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        pattern: Pattern,
        position: Position | None = None,
        cache: PartState | None = None,
    ) -> Tensor:
        """x (B, T, dim) looks at itself, or at memory (B, S, dim); the result is shaped like x."""
        q, k, v = self.project(x, memory, pattern, position, cache)
        if cache is None or isinstance(cache, (Cache, MemoryCache)):
            heads = self.attend(q, k, v, pattern)
        else:
            heads = self.attend_after(cache, q, k, v, pattern)
        mixed = heads.transpose(1, 2).flatten(2)
        return self.out(mixed if pattern.queries is None else pattern.queries.pack(mixed))

    def weights(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        pattern: Pattern,
        position: Position | None = None,
        rows: Selection | None = None,
        heads: Selection | None = None,
    ) -> Tensor:
        """The attention weights (B, H, T, S) of a forward with the same arguments, on any backend.

        Of selected queries (``rows`` of x) and heads only these are computed, in blocks: beside the projections of x,
        memory grows with rows × keys.
        """
        if not self.shows_weights:
            raise NotImplementedError
        q, k, _ = self.project(x, memory, pattern, position, None)
        if rows is None and heads is None:
            return self.weigh(q, k, pattern)
        # numbers, not a slice, whose view would keep the block's other heads in memory
        selected = slice(None) if heads is None else torch.arange(q.size(1))[heads]
        # consecutive rows are the same call with a later offset
        blocks = [
            self.weigh(q[:, :, start:end], k, replace(pattern, offset=pattern.offset + start))[:, selected]
            for start, end in runs(range(q.size(2)), slice(None) if rows is None else rows)
        ]
        return torch.cat(blocks, 2)

    def project(self, x, memory, pattern, position, cache) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, D), keys and values (B, G, S, D), turned and cached; of new tokens alone where the state is
        not a ``Cache``.
        """
        if memory is not None:
            q = self.query_norm(self._heads(x, 0, self.heads))
            k, v = cache.once(lambda: self._keys(memory)) if isinstance(cache, MemoryCache) else self._keys(memory)
            return spread(q, pattern.queries), spread(k, pattern.keys), spread(v, pattern.keys)
        fused = self.qkv(x) if self.query_matrix else torch.cat([x, self.qkv(x)], -1)
        fused = spread(fused.unflatten(-1, (-1, self.head_dim)).transpose(1, 2), pattern.queries)
        turned, v = fused.split([self.heads + self.kv_heads, self.kv_heads], 1)
        if not isinstance(self.query_norm, nn.Identity):
            q, k = turned.split([self.heads, self.kv_heads], 1)
            turned = torch.cat([self.query_norm(q), self.key_norm(k)], 1)
        if position is not None and position.rotates:
            pos = pattern.positions(turned.size(2), x.device) - position.extent.special
            if type(position).rotate_keys is Position.rotate_keys:
                turned = position.rotate(turned, pos)
            else:
                q, k = turned.split([self.heads, self.kv_heads], 1)
                turned = torch.cat([position.rotate(q, pos), position.rotate_keys(k, pos)], 1)
        q, k = turned.split([self.heads, self.kv_heads], 1)
        if isinstance(cache, Cache):
            k, v = cache.extend(k, v)
        return q, k, v

    def _heads(self, x: Tensor, start: int, count: int) -> Tensor:
        """Project to ``count`` heads of the fused matrix, from number ``start`` on: (B, count, T, D).

        Number 0 is the first query, ``heads`` the first key.
        """
        if not self.query_matrix:
            if not start:
                return x.unflatten(-1, (count, -1)).transpose(1, 2)
            start -= self.heads
        rows = slice(start * self.head_dim, (start + count) * self.head_dim)
        bias = None if self.qkv.bias is None else self.qkv.bias[rows]
        return linear(x, self.qkv.weight[rows], bias).unflatten(-1, (count, -1)).transpose(1, 2)

    def _keys(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self._heads(memory, self.heads, 2 * self.kv_heads).chunk(2, 1)
        return self.key_norm(k), v


class TokenMixer(Attention):
    """What stands in an attention's place and mixes tokens in a way of its own: a state space, a convolution.

    It has no queries, keys and heads, and no weights to show; positions of the stack that act on these pass it by. A
    subclass makes what it needs behind ``super().__init__``, computes in ``forward``, and makes a decoding state in
    ``cache``, which ``forward`` gets.
    """

    own_backend = Naive
    supports = frozenset({"causal", "valid"})
    dot_product = False
    shows_weights = False
    sees_all = False
    ordered = True  # it knows the order of tokens by itself

    def __init__(self, dim: int, heads: int, backend: Backend | None = None, dropout: float = 0.0):
        """
        Args:
            dim: width of a token.
            heads: number of heads of attentions of the same stack.
            backend: none; there is no dot product to compute.
            dropout: must be zero, there are no weights to drop.
        """
        nn.Module.__init__(self)  # not Attention's: there are no projections
        if backend is not None and not isinstance(backend, Naive):
            raise UsageError(
                f"attention {type(self).__name__} has no dot product, which is all that backend "
                f"{type(backend).__name__} computes. Works with: Naive, or no backend named."
            )
        self.dim, self.heads, self.kv_heads, self.dropout = dim, heads, heads, dropout
        self.head_dim = dim // heads
        self.backend = backend or Naive()

    def unsupported(self, needs: frozenset[str]) -> frozenset[str]:
        """Which of these needs it cannot serve; a position that acts on queries, keys and scores is nothing to it."""
        return needs - self.supports - {"rotate", "bias", *CASES}

    def across(self) -> Attention:
        """Plain attention: a memory has no order in time."""
        return MultiHead(self.dim, self.heads, None, self.dropout)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        pattern: Pattern,
        position: Position | None = None,
        cache: PartState | None = None,
    ) -> Tensor:
        """x (B, T, dim) to the same shape; ``pattern.real_tokens(T)`` says what is padding, ``cache`` is None in
        training.
        """
        raise NotImplementedError


def spread(x: Tensor, packing: Packing | None) -> Tensor:
    """Heads of packed tokens, (1, H, N, D), to those of the padded batch, (B, H, T, D)."""
    return x if packing is None else packing.spread(x.transpose(1, 2)).transpose(1, 2)


class JointNorm(nn.Module):
    """A norm over the features of all heads of a token."""

    def __init__(self, norm: Callable[[int], Norm], width: int):
        super().__init__()
        self.norm = norm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Heads x (B, H, T, D) to the same shape."""
        return self.norm(x.transpose(1, 2).flatten(2)).unflatten(-1, (x.size(1), x.size(3))).transpose(1, 2)


class MultiHead(Attention):
    """Scaled dot products: Concat_h(softmax(q_h k_h' / sqrt(D) + bias) v_h) W_O (Vaswani et al., 2017).

    ``scale`` stands for 1 / sqrt(D) where it is given: 1 is T5's. A ``qk_norm`` normalises each head's queries and
    keys, as Qwen 3 does (Henry et al., 2020).

    Paper: Attention Is All You Need, Vaswani et al., 2017.
    """

    supports = Attention.supports | {"places"}
    tensor_parallel: ClassVar = {"qkv": "heads", "out": "rows"}

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        out_bias: bool | None = None,
        scale: float | None = None,
        qk_norm: Callable[[int], Norm] | None = None,
    ):
        """
        Args:
            dim: width of a token.
            heads: number of heads of queries.
            backend: how it is computed.
            dropout: rate on the attention weights.
            kv_heads: number of heads of keys and values, a divisor of heads: 1 is multi-query, as many
                as heads unless given.
            head_dim: width of a head; dim / heads unless given.
            bias: give queries, keys and values a bias, and the output too unless out_bias is set.
            out_bias: give the output a bias.
            scale: factor on the dot products; 1 / sqrt(head_dim) unless given.
            qk_norm: normalise each head's queries and keys with this norm; not at all unless given.
        """
        super().__init__(dim, heads, backend, dropout, kv_heads, head_dim, bias, out_bias)
        above_zero(scale=scale)
        self.scale = scale
        if qk_norm is not None:
            counts = (heads, self.kv_heads)
            joint = getattr(qk_norm(self.head_dim), "joint", False)
            norms = [JointNorm(qk_norm, n * self.head_dim) if joint else qk_norm(self.head_dim) for n in counts]
            self.query_norm, self.key_norm = norms  # type: ignore[assignment]

    def attend(self, q, k, v, pattern):
        """Queries (B, H, T, D), keys and values (B, kv_heads, S, D) to what the heads give, (B, H, T, D)."""
        return self.backend(q, k, v, pattern, self.dropout if self.training else 0.0, self.scale)

    def weigh(self, q, k, pattern):
        """Queries (B, H, T, D) and keys (B, kv_heads, S, D) to weights (B, H, T, S), in at least float32."""
        return Naive().weights(q, k, pattern, self.scale)


class TokenQueries(MultiHead):
    """Attention without W_Q: softmax(x_h k_h' / sqrt(D)) v_h, where x_h is a slice of the token that looks.

    The first layer of a lecture on attention, whose queries are given and which learns W_K and W_V alone, D_X (D_Q +
    D_V) numbers; here with heads, and in front of W_O.
    """

    query_matrix = False

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        kv_heads: int | None = None,
        bias: bool = True,
        scale: float | None = None,
    ):
        """
        Args:
            dim: width of a token.
            heads: number of heads of queries.
            backend: how it is computed.
            dropout: rate on the attention weights.
            kv_heads: number of heads of keys and values, a divisor of heads; as many as heads unless given.
            bias: give keys, values and the output a bias.
            scale: factor on the dot products; 1 / sqrt(head_dim) unless given.
        """
        super().__init__(dim, heads, backend, dropout, kv_heads, bias=bias, scale=scale)


class Gaussian(Attention):
    """Nadaraya-Watson regression with a Gaussian kernel: softmax(-|q_h - k_h|^2 / (2 sigma^2) + bias) v_h (1964).

    |q|^2 is the same for all keys and cancels, so the score is (q k' - |k|^2 / 2) / sigma^2, a dot product with one
    more feature, and any backend serves it. sigma is D^(1/4) by default: keys of equal length give scaled dot products.
    """

    supports = Attention.supports | {"places"}
    tensor_parallel: ClassVar = {"qkv": "heads", "out": "rows"}

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        kv_heads: int | None = None,
        sigma: float | None = None,
        bias: bool = True,
    ):
        """
        Args:
            dim: width of a token.
            heads: number of heads of queries.
            backend: how it is computed.
            dropout: rate on the attention weights.
            sigma: width of the kernel; head_dim^(1/4) unless given.
        """
        super().__init__(dim, heads, backend, dropout, kv_heads, bias=bias)
        if sigma is not None and not sigma > 0:
            raise UsageError(f"attention Gaussian needs a kernel width sigma above 0, got {sigma}.")
        self.sigma = self.head_dim**0.25 if sigma is None else sigma

    @staticmethod
    def _widen(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(k.dtype, torch.float32)
        length = k.to(wide).square().sum(-1, keepdim=True).to(k.dtype)
        return torch.cat([q, q.new_full((*q.shape[:-1], 1), -0.5)], -1), torch.cat([k, length], -1)

    def attend(self, q, k, v, pattern):
        """Queries (B, H, T, D), keys and values (B, kv_heads, S, D) to what the heads give, (B, H, T, D)."""
        q, k = self._widen(q, k)
        v = F.pad(v, (0, 1))  # fused kernels want values as wide as keys
        return self.backend(q, k, v, pattern, self.dropout if self.training else 0.0, self.sigma**-2)[..., :-1]

    def weigh(self, q, k, pattern):
        """Queries (B, H, T, D) and keys (B, kv_heads, S, D) to weights (B, H, T, S), in at least float32."""
        return Naive().weights(*self._widen(q, k), pattern, self.sigma**-2)


class Additive(Attention):
    """A small network as the score: softmax(u_h' tanh(q_h + k_h) + bias) v_h (Bahdanau et al., 2015).

    It keeps T x S x D numbers in memory. It has no dot product: it takes no backend but Naive, and no position that
    turns queries and keys.

    Paper: Neural Machine Translation by Jointly Learning to Align and Translate, Bahdanau et al., 2015.
    """

    own_backend = Naive
    supports = Attention.supports - {"rotate"} | {"places"}
    dot_product = False
    parameter_roles: ClassVar = {"score": "vector"}

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        kv_heads: int | None = None,
        bias: bool = True,
    ):
        super().__init__(dim, heads, backend, dropout, kv_heads, bias=bias)
        self.score = nn.Parameter(torch.empty(heads, self.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw u uniformly within 1 / sqrt(D)."""
        bound = self.head_dim**-0.5
        nn.init.uniform_(self.score, -bound, bound)

    def attend(self, q, k, v, pattern):
        """Queries (B, H, T, D), keys and values (B, kv_heads, S, D) to what the heads give, (B, H, T, D)."""
        v = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        return F.dropout(self.weigh(q, k, pattern), self.dropout, self.training).to(v.dtype) @ v

    def weigh(self, q, k, pattern):
        """Queries (B, H, T, D) and keys (B, kv_heads, S, D) to weights (B, H, T, S), in at least float32."""
        k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
        hidden = torch.tanh(q.unsqueeze(3) + k.unsqueeze(2))  # (B, H, T, S, D)
        return masked_softmax(torch.einsum("bhtsd,hd->bhts", hidden, self.score.to(hidden.dtype)), pattern)


def runs(numbers: range, selection: Selection) -> list[tuple[int, int]]:
    """Selected numbers, in their order, as runs [start, end) of at most BLOCK neighbours; at least one run."""
    picked = numbers[selection] if isinstance(selection, slice) else [numbers[i] for i in selection]
    spans: list[tuple[int, int]] = []
    for number in picked:
        start, end = spans[-1] if spans else (number, number)
        if spans and number == end and end - start < BLOCK:
            spans[-1] = start, end + 1
        else:
            spans.append((number, number + 1))
    return spans or [(0, 0)]


def nearest(total: int, target: int, name: str = "heads") -> str:
    """The divisors of ``total`` around ``target``, as options to try."""
    divisors = [n for n in range(1, total + 1) if total % n == 0]
    below = max((n for n in divisors if n < target), default=None)
    above = min((n for n in divisors if n > target), default=None)
    return " or ".join(f"{name}={n}" for n in (below, above) if n is not None)
