"""Mixers of tokens with a state of one size: a gated delta rule, and Mamba-2's selective state space."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.parts.attention import Attention, TokenMixer
from zoo.parts.backend import Backend
from zoo.parts.cache import PartState
from zoo.parts.few_row_linear import Linear
from zoo.parts.norm import RMSNorm

CHUNK = 32  # tokens that are computed by matrix products; between chunks a state goes on


class State(PartState):
    """What a mixer remembers: S (B, H, D_k, D_v), and the inputs (B, width - 1, C) that its convolution still reads."""

    def __init__(self) -> None:
        self.state: Tensor | None = None
        self.inputs: Tensor | None = None


def decays(g: Tensor) -> Tensor:
    """exp(g_s+1 + ... + g_t) for s <= t and 0 for later s, (..., C, C), of logarithms g (..., C)."""
    total = g.cumsum(-1)
    gap = total[..., :, None] - total[..., None, :]
    later = torch.ones(g.size(-1), g.size(-1), dtype=torch.bool, device=g.device).triu(1)
    return gap.masked_fill(later, -torch.inf).exp()


def linear_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None, S: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrent form, token by token, of ``linear_chunks``: the same arguments, shaped alike, and results."""
    rows = []
    for t in range(q.size(2)):
        S = S * g[:, :, t, None, None].exp()
        new = v[:, :, t]
        if beta is not None:
            new = beta[:, :, t, None] * (new - (k[:, :, t, None] @ S).squeeze(-2))
        S = S + k[:, :, t, :, None] * new[..., None, :]
        rows.append((q[:, :, t, None] @ S).squeeze(-2))
    return torch.stack(rows, 2), S


def linear_chunks(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None, S: Tensor) -> tuple[Tensor, Tensor]:
    """S_t = e^(g_t) S_t-1 + k_t' u_t and o_t = q_t S_t, in chunks: q, k (B, H, T, K), v (B, H, T, V), g (B, H, T) and
    the state S (B, H, K, V) to o (B, H, T, V) and the last state.

    u_t is v_t, or beta_t (v_t - k_t e^(g_t) S_t-1) with a beta (B, H, T): the delta rule. In a chunk with products
    G = decays(g) the u solve (1 + tril(beta k k' G, -1)) u = beta (v - k e^(sum g) S) (Yang et al., 2024). All that
    does not need S is computed for all chunks at once.
    """
    length, size = q.size(2), min(CHUNK, q.size(2))
    # tokens of zeros behind the last one change no state
    # contiguous: padding by none keeps other strides, which a graph compiled for padded lengths does not expect
    q, k, v = (F.pad(y.contiguous(), (0, 0, 0, -length % size)).unflatten(2, (-1, size)) for y in (q, k, v))
    g = F.pad(g.contiguous(), (0, -length % size)).unflatten(2, (-1, size))
    G, first = decays(g), g.cumsum(-1).exp().unsqueeze(-1)
    last, write = first[..., -1:, :].unbind(2), (k * G[..., -1, :, None]).mT
    states = []  # before each chunk
    if beta is None:
        u = v
        for decay, change in zip(last, (write @ v).unbind(2), strict=True):
            states.append(S)
            S = decay * S + change
    else:
        b = F.pad(beta.contiguous(), (0, -length % size)).unflatten(2, (-1, size)).unsqueeze(-1)
        mixed, right = (b * (k @ k.mT) * G).tril(-1), b * torch.cat([v, first * k], -1)
        solved = torch.linalg.solve_triangular(mixed, right, upper=False, unitriangular=True)
        rows = []
        pieces = (y.unbind(2) for y in (*solved.split([v.size(-1), k.size(-1)], -1), write))
        for decay, v_c, k_c, write_c in zip(last, *pieces, strict=True):
            states.append(S)
            rows.append(v_c - k_c @ S)
            S = decay * S + write_c @ rows[-1]
        u = torch.stack(rows, 2)
    out = first * (q @ torch.stack(states, 2)) + (q @ k.mT * G) @ u
    return out.flatten(2, 3)[:, :, :length], S


class Recurrent(TokenMixer):
    """A convolution over a few tokens, then a state that decays: the base of both mixers.

    A subclass makes ``read`` and ``write``, matrices from and to tokens, and says in ``recur`` what the state gets.
    It reads from left to right, in encoders too. A step of decoding needs one state, whatever stands before it.
    """

    memory = "linear"
    decoding_memory = "constant"
    parameter_roles: ClassVar = {"kernel": "vector"}  # a few numbers for each feature
    kernel: Tensor
    kernel_bias: Tensor | None
    read: nn.Linear
    write: nn.Linear
    convolved: int  # how many of the features that ``read`` gives run through the convolution, the first ones

    def cache(self, capacity: int, window: int | None = None) -> PartState:
        """An empty state; neither capacity nor window matters."""
        return State()

    def convolve(self, x: Tensor, state: PartState | None) -> Tensor:
        """silu of sums over the last tokens: x (B, T, C) to the same shape, behind the inputs of the state."""
        before, old = self.kernel.size(0) - 1, state.inputs if isinstance(state, State) else None
        x_all = torch.cat([x.new_zeros(x.size(0), before, x.size(-1)) if old is None else old, x], 1)
        if isinstance(state, State):
            state.inputs = x_all[:, x_all.size(1) - before :].clone()
        rows = [x_all[:, n : n + x.size(1)] * row for n, row in enumerate(self.kernel.to(x.dtype))]
        total = sum(rows[1:], rows[0])
        return F.silu(total if self.kernel_bias is None else total + self.kernel_bias.to(x.dtype))

    def recur(self, x: Tensor, gates: Tensor, real: Tensor | None) -> tuple[Tensor, ...]:
        """The arguments of ``linear_chunks`` but the state, for convolved features and the others, (B, T, ...); what
        is padding, False in ``real`` (B, T), must not change a state.
        """
        raise NotImplementedError

    def finish(self, out: Tensor, v: Tensor, gates: Tensor) -> Tensor:
        """What the heads give (B, T, H, V) for values v of that shape, gated by other features: (B, T, C)."""
        raise NotImplementedError

    def forward(self, x, memory=None, *, pattern, position=None, cache=None):
        """x (B, T, dim) to the same shape."""
        real, device = pattern.real_tokens(x.size(1)), x.device.type
        features, gates = self.read(x).split([self.convolved, self.read.out_features - self.convolved], -1)
        features = features if real is None else features * real[..., None]
        features = self.convolve(features, cache)
        wide = torch.promote_types(features.dtype, torch.float32)
        with torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext():
            q, k, v, g, beta = self.recur(features.to(wide), gates.to(wide), real)
            state = cache.state if isinstance(cache, State) else None
            S = q.new_zeros(*q.shape[:2], q.size(-1), v.size(-1)) if state is None else state
            out, S = (linear_step if x.size(1) == 1 else linear_chunks)(q, k, v, g, beta, S)
        if isinstance(cache, State):
            cache.state = S
        return self.write(self.finish(out.transpose(1, 2).to(gates.dtype), v.transpose(1, 2).to(gates.dtype), gates))


class GatedDeltaNet(Recurrent):
    """S_t = a_t S_t-1 (1 - b_t k_t k_t') + b_t v_t k_t', o_t = S_t q_t (Yang, Kautz and Hatamizadeh, 2024).

    q, k and v are silu(conv(W x)), q and k divided by sqrt(|q|^2 + 1e-6), q by sqrt(D) too; a = exp(-A softplus(w_a x +
    c)) and b = sigmoid(w_b x) for each head; the heads' RMS norm times silu(W_g x) goes through W_o. With fewer
    ``key_heads``, neighbouring heads share a query and a key (Qwen 3 Next).
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        kernel: int = 4,
        key_heads: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        eps: float = 1e-5,
        negative_eigenvalues: bool = False,
    ):
        """
        Args:
            kernel: tokens that the convolution reads, itself included.
            key_heads: number of heads of queries and keys, a divisor of heads; as many as heads unless given.
            key_dim: width of a query and a key; dim / heads unless given.
            value_dim: width of a value; dim / heads unless given.
            eps: that of the heads' norm.
            negative_eigenvalues: take 2 b, so that a step of the state may turn a direction around: then a layer can
                count modulo two (Grazzi et al., 2024).

        Raises UsageError where heads do not divide dim, or key_heads heads, and for sizes below 1.
        """
        super().__init__(dim, heads, backend, dropout)
        if key_dim is None or value_dim is None:
            check_sizes(self, dim, heads)
        self.key_heads = heads if key_heads is None else key_heads
        key_dim, value_dim = key_dim or self.head_dim, value_dim or self.head_dim
        check_sizes(self, heads, self.key_heads, kernel, key_dim, value_dim)
        keys, values = self.key_heads * key_dim, heads * value_dim
        self.sizes, self.convolved = [keys, keys, values], 2 * keys + values
        self.read = Linear(dim, self.convolved + values + 2 * heads, bias=False)
        self.write = Linear(values, dim, bias=False)
        self.strength = 2.0 if negative_eigenvalues else 1.0
        self.kernel = nn.Parameter(torch.empty(kernel, self.convolved))
        self.kernel_bias = None
        self.rate, self.shift = nn.Parameter(torch.empty(heads)), nn.Parameter(torch.empty(heads))
        self.head_norm = RMSNorm(value_dim, eps=eps)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolution, A within 1 to 16, and softplus(c) within 0.001 to 0.1."""
        reset_recurrence(self.kernel, self.rate, self.shift)

    def convert_state(self, start: nn.Module, state: Mapping[str, Tensor]) -> dict[str, tuple[Any, ...]]:
        """The matrices of a softmax attention with heads of this size: its queries, keys and values, read at the token
        itself alone, and its output. Gates, decays and the norm of heads are new; biases are left out.
        """
        heads, width = self.heads, self.head_norm.dim
        if not isinstance(start, Attention) or (start.heads, start.head_dim) != (heads, width):
            return {}
        if self.sizes != [heads * width] * 3 or state.keys().isdisjoint({"qkv.weight"}):
            return {}
        counts = [heads, start.kv_heads, start.kv_heads]
        if len(state["qkv.weight"]) != sum(counts) * width or state["out.weight"].shape != self.write.weight.shape:
            return {}
        rows = state["qkv.weight"].unflatten(0, (-1, width)).split(counts)
        rows = [x.repeat_interleave(heads // count, 0).flatten(0, 1) for x, count in zip(rows, counts, strict=True)]
        gates = self.read.weight[self.convolved :].to(rows[0])
        kernel = torch.zeros_like(self.kernel).index_fill_(0, torch.tensor(len(self.kernel) - 1), 1.0)
        return {
            "read.weight": (torch.cat([*rows, gates]), "rows of queries, keys and values; new gates", "qkv.weight"),
            "write.weight": (state["out.weight"], "the output matrix", "out.weight"),
            "kernel": (kernel, "1 for the token itself, 0 for those before it"),
        }

    def recur(self, x, gates, real):
        """Convolved features (B, T, C) to q, k (B, H, T, K), v (B, H, T, V), log a and b (B, H, T)."""
        parts = zip(x.split(self.sizes, -1), (self.key_heads, self.key_heads, self.heads), strict=True)
        q, k, v = (y.unflatten(-1, (count, -1)).transpose(1, 2) for y, count in parts)
        q, k = (y * (y.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for y in (q, k))
        q, k = (y.repeat_interleave(self.heads // self.key_heads, 1) for y in (q * q.size(-1) ** -0.5, k))
        a, b = gates[..., -2 * self.heads :].mT.chunk(2, 1)
        g = -self.rate[:, None].to(a.dtype).exp() * F.softplus(a + self.shift[:, None].to(a.dtype))
        beta = self.strength * b.sigmoid()
        if real is not None:
            g, beta = g * real[:, None], beta * real[:, None]
        return q, k, v, g, beta

    def finish(self, out, v, gates):
        """Normalised heads times silu of the gate."""
        return self.head_norm(out).flatten(2) * F.silu(gates[..., : -2 * self.heads])


class Mamba2(Recurrent):
    """S_t = e^(A d_t) S_t-1 + d_t x_t B_t', y_t = S_t C_t + D x_t for each head: SSD (Dao and Gu, 2024).

    x, B and C are silu(conv(W u)), B and C one for all heads of a group, d = softplus(w_d u + c); the RMS norm of
    y silu(W_z u), over each group's features, goes through W_o. Heads are expand * dim / heads wide.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        state_dim: int = 64,
        expand: int = 2,
        kernel: int = 4,
        groups: int = 1,
        kernel_bias: bool = False,
        eps: float = 1e-5,
    ):
        """
        Args:
            state_dim: width of B and C: a head's state has that many numbers for each of its features.
            expand: how many times as wide as dim all heads are.
            kernel: tokens that the convolution reads, itself included.
            groups: sets of neighbouring heads, each with a B and a C of its own and a norm for itself.
            kernel_bias: give the convolution a bias.
            eps: that of the norm.

        Raises UsageError where heads do not divide expand * dim, or groups heads, and for sizes below 1.
        """
        super().__init__(dim, heads, backend, dropout)
        check_sizes(self, expand * dim, heads, kernel, state_dim, expand)
        check_sizes(self, heads, groups)
        self.inner, self.state_dim, self.groups = expand * dim, state_dim, groups
        self.convolved = self.inner + 2 * groups * state_dim
        self.read = Linear(dim, self.convolved + self.inner + heads, bias=False)
        self.write = Linear(self.inner, dim, bias=False)
        self.kernel = nn.Parameter(torch.empty(kernel, self.convolved))
        self.rate, self.shift = nn.Parameter(torch.empty(heads)), nn.Parameter(torch.empty(heads))
        self.kernel_bias = nn.Parameter(torch.empty(self.convolved)) if kernel_bias else None
        self.skip = nn.Parameter(torch.empty(heads))
        self.inner_norm = RMSNorm(self.inner, eps=eps)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolution, -A within 1 to 16, and softplus(c) within 0.001 to 0.1; D is one."""
        reset_recurrence(self.kernel, self.rate, self.shift)
        nn.init.ones_(self.skip)
        if self.kernel_bias is not None:
            nn.init.zeros_(self.kernel_bias)

    def recur(self, x, gates, real):
        """Convolved features (B, T, convolved) to C, d B (B, H, T, N), x (B, H, T, P), A d (B, H, T)."""
        x, *both = x.split([self.inner, *[self.groups * self.state_dim] * 2], -1)
        B, C = (y.unflatten(-1, (self.groups, -1)).transpose(1, 2) for y in both)
        if self.groups == 1:
            B, C = (y.expand(-1, self.heads, -1, -1) for y in (B, C))
        else:
            B, C = (y.repeat_interleave(self.heads // self.groups, 1) for y in (B, C))
        d = F.softplus(gates[..., -self.heads :].mT + self.shift[:, None].to(gates.dtype))
        d = d if real is None else d * real[:, None]
        v = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        g = -self.rate[:, None].to(d.dtype).exp() * d
        return C, d[..., None] * B, v, g, None

    def finish(self, out, v, gates):
        """Norm of (y + D x) silu(z)."""
        y = out + self.skip[:, None].to(v.dtype) * v
        y = y.flatten(2) * F.silu(gates[..., : -self.heads])
        if self.groups == 1:
            return self.inner_norm(y)
        wide = y.to(torch.promote_types(y.dtype, torch.float32)).unflatten(-1, (self.groups, -1))
        normed = F.rms_norm(wide, wide.shape[-1:], None, self.inner_norm.eps).flatten(-2)
        return (normed * self.inner_norm.weight.to(normed.dtype)).to(y.dtype)


def check_sizes(part: TokenMixer, dim: int, heads: int, *sizes: int) -> None:
    """Raise UsageError where heads do not divide dim, or a size is below 1."""
    if min(heads, *sizes, 1) < 1:
        raise UsageError(f"attention {type(part).__name__} needs sizes of at least 1, got {min(heads, *sizes, 1)}.")
    if dim % heads:
        raise UsageError(f"attention {type(part).__name__}: dim={dim} is not divisible by heads={heads}.")


def reset_recurrence(kernel: Tensor, rate: Tensor, shift: Tensor) -> None:
    """Draw a convolution, and logarithms of rates and shifts of steps as Mamba does."""
    bound = len(kernel) ** -0.5
    nn.init.uniform_(kernel, -bound, bound)
    with torch.no_grad():
        rate.uniform_(1, 16).log_()
        step = torch.exp(torch.empty_like(shift).uniform_(-6.9, -2.3))
        shift.copy_(step + torch.log(-torch.expm1(-step)))  # softplus of it is the step
