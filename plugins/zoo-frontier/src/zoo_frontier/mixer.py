"""Mixers of tokens with a state of one size: a gated delta rule, and Mamba-2's selective state space."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.parts.attention import TokenMixer
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
    kernel: Tensor
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
        return F.silu(sum(rows[1:], rows[0]))

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

    q, k and v are silu(conv(W x)), q and k of unit length, q divided by sqrt(D); a = exp(-A softplus(w_a x + c)) and
    b = sigmoid(w_b x) for each head; the heads' RMS norm times silu(W_g x) goes through W_o.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        kernel: int = 4,
        negative_eigenvalues: bool = False,
    ):
        """
        Args:
            kernel: tokens that the convolution reads, itself included.
            negative_eigenvalues: take 2 b, so that a step of the state may turn a direction around: then a layer can
                count modulo two (Grazzi et al., 2024).

        Raises UsageError where heads do not divide dim, and for a kernel below 1.
        """
        super().__init__(dim, heads, backend, dropout)
        check_sizes(self, dim, heads, kernel)
        self.convolved, self.strength = 3 * dim, 2.0 if negative_eigenvalues else 1.0
        self.read, self.write = Linear(dim, 4 * dim + 2 * heads, bias=False), Linear(dim, dim, bias=False)
        self.kernel = nn.Parameter(torch.empty(kernel, self.convolved))
        self.rate, self.shift = nn.Parameter(torch.empty(heads)), nn.Parameter(torch.empty(heads))
        self.head_norm = RMSNorm(self.head_dim, eps=1e-5)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolution, A within 1 to 16, and softplus(c) within 0.001 to 0.1."""
        reset_recurrence(self.kernel, self.rate, self.shift)

    def recur(self, x, gates, real):
        """Convolved features (B, T, 3 dim) to q, k, v (B, H, T, D), log a and b (B, H, T)."""
        q, k, v = x.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = F.normalize(q, dim=-1, eps=1e-6) * q.size(-1) ** -0.5, F.normalize(k, dim=-1, eps=1e-6)
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

    x, B and C are silu(conv(W u)), B and C one for all heads, d = softplus(w_d u + c); the RMS norm of y silu(W_z u)
    goes through W_o. Heads are expand * dim / heads wide.
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
    ):
        """
        Args:
            state_dim: width of B and C: a head's state has that many numbers for each of its features.
            expand: how many times as wide as dim all heads are.
            kernel: tokens that the convolution reads, itself included.

        Raises UsageError where heads do not divide dim, and for sizes below 1.
        """
        super().__init__(dim, heads, backend, dropout)
        check_sizes(self, dim, heads, kernel, state_dim, expand)
        self.inner, self.state_dim = expand * dim, state_dim
        self.convolved = self.inner + 2 * state_dim
        self.read = Linear(dim, self.convolved + self.inner + heads, bias=False)
        self.write = Linear(self.inner, dim, bias=False)
        self.kernel = nn.Parameter(torch.empty(kernel, self.convolved))
        self.rate, self.shift = nn.Parameter(torch.empty(heads)), nn.Parameter(torch.empty(heads))
        self.skip = nn.Parameter(torch.empty(heads))
        self.inner_norm = RMSNorm(self.inner, eps=1e-5)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolution, -A within 1 to 16, and softplus(c) within 0.001 to 0.1; D is one."""
        reset_recurrence(self.kernel, self.rate, self.shift)
        nn.init.ones_(self.skip)

    def recur(self, x, gates, real):
        """Convolved features (B, T, inner + 2 state_dim) to C, d B (B, H, T, N), x (B, H, T, P), A d (B, H, T)."""
        x, B, C = x.split([self.inner, self.state_dim, self.state_dim], -1)
        d = F.softplus(gates[..., -self.heads :].mT + self.shift[:, None].to(gates.dtype))
        d = d if real is None else d * real[:, None]
        v = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        g = -self.rate[:, None].to(d.dtype).exp() * d
        return C[:, None].expand(-1, self.heads, -1, -1), d[..., None] * B[:, None], v, g, None

    def finish(self, out, v, gates):
        """Norm of (y + D x) silu(z)."""
        y = out + self.skip[:, None].to(v.dtype) * v
        return self.inner_norm(y.flatten(2) * F.silu(gates[..., : -self.heads]))


def check_sizes(part: TokenMixer, dim: int, heads: int, *sizes: int) -> None:
    """Raise UsageError where heads do not divide dim, or a size is below 1."""
    if dim % heads:
        raise UsageError(f"attention {type(part).__name__}: dim={dim} is not divisible by heads={heads}.")
    if min(sizes) < 1:
        raise UsageError(f"attention {type(part).__name__} needs sizes of at least 1, got {min(sizes)}.")


def reset_recurrence(kernel: Tensor, rate: Tensor, shift: Tensor) -> None:
    """Draw a convolution, and logarithms of rates and shifts of steps as Mamba does."""
    bound = len(kernel) ** -0.5
    nn.init.uniform_(kernel, -bound, bound)
    with torch.no_grad():
        rate.uniform_(1, 16).log_()
        step = torch.exp(torch.empty_like(shift).uniform_(-6.9, -2.3))
        shift.copy_(step + torch.log(-torch.expm1(-step)))  # softplus of it is the step
