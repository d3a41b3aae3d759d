"""Published parts that are right and unlike zoo's own, from the formulas of their papers."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from zoo.errors import UsageError
from zoo.parts.attention import Attention, MultiHead, TokenMixer
from zoo.parts.backend import Naive
from zoo.parts.block import Block, PreNorm
from zoo.parts.cache import PartState
from zoo.parts.ffn import FFN, MLP, MoE, aux_losses, leave_loss
from zoo.parts.norm import RMSNorm
from zoo.parts.position import RoPE


class LayerScale(PreNorm):
    """x + gain * part(norm(x)), a gain per feature that starts small and constant (Touvron et al., 2021)."""

    packs = True

    def __init__(self, attend, cross, ffn, norm, dropout, start: float = 0.1):
        super().__init__(attend, cross, ffn, norm, dropout)
        self.start = start
        width = attend.out.out_features
        self.attend_gain, self.ffn_gain = nn.Parameter(torch.empty(width)), nn.Parameter(torch.empty(width))
        self.cross_gain = None if self.cross is None else nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self):
        for gain in (self.attend_gain, self.cross_gain, self.ffn_gain):
            if gain is not None:
                nn.init.constant_(gain, self.start)

    def join(self, x, branch, call, context):
        gain = self.attend_gain if branch is self.attend else self.ffn_gain if branch is self.ffn else self.cross_gain
        return x + branch.dropout(gain * call(context, branch.part, branch.norm(x))).to(x.dtype)


class ReZero(Block):
    """x + gain * part(x), one gain that starts at zero, and no norm (Bachlechner et al., 2021)."""

    packs = True

    def __init__(self, attend, cross, ffn, norm, dropout):
        super().__init__(attend, cross, ffn, nn.Identity, dropout)
        self.gain = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.zeros_(self.gain)

    def join(self, x, branch, call, context):
        return x + self.gain * branch.dropout(call(context, branch.part, x))


class HyperConnections(PreNorm):
    """Static hyper-connections over the branches of a block (Zhu et al., 2024).

    Of ``streams`` copies of the stream a branch reads sum_k read_k h_k; h_k becomes sum_j mix_kj h_j + write_k branch.
    Between blocks they are summed: a block passes one stream on. All matrices begin as the paper has them.
    """

    packs = True
    fixed_start = ("read", "mix", "write")

    def __init__(self, attend, cross, ffn, norm, dropout, streams: int = 4):
        super().__init__(attend, cross, ffn, norm, dropout)
        self.streams = streams
        branches = 2 if cross is None else 3
        self.read = nn.Parameter(torch.empty(branches, streams))
        self.mix = nn.Parameter(torch.empty(branches, streams, streams))
        self.write = nn.Parameter(torch.empty(branches, streams))
        self.reset_parameters()

    def reset_parameters(self):
        with torch.no_grad():
            first = F.one_hot(torch.arange(len(self.read)) % self.streams, self.streams)
            self.read.copy_(first)
            self.mix.copy_(torch.eye(self.streams).expand_as(self.mix))
            self.write.fill_(1.0)

    def forward(self, x, context):
        streams = x.expand(self.streams, *x.shape)
        for number, (branch, call) in enumerate(self.steps(context)):
            number = len(self.read) - 1 if branch is self.ffn else number
            y = torch.einsum("k,kbtd->btd", self.read[number].to(x.dtype), streams)
            out = branch.dropout(call(context, branch.part, branch.norm(y)))
            mixed = torch.einsum("jk,kbtd->jbtd", self.mix[number].to(x.dtype), streams)
            streams = mixed + self.write[number].to(x.dtype)[:, None, None, None] * out
        return streams.mean(0).to(x.dtype)


class S4D(Attention):
    """A diagonal state space as a convolution: y_t = Re sum_n c_n sum_s exp((t - s) step a_n) v_s (Gu et al., 2022).

    a_n = -1/2 + i pi n begins alike for every seed (S4D-Lin). Queries gate what is read, as H3 does.
    """

    own_backend = Naive
    dot_product = False
    supports = frozenset({"causal", "window", "valid"})
    ordered = True
    fixed_start = ("decay", "frequency", "step")

    def __init__(self, dim, heads, backend=None, dropout=0.0, states: int = 8):
        super().__init__(dim, heads, backend, dropout)
        self.states = states
        for name in ("decay", "frequency", "weight"):
            setattr(self, name, nn.Parameter(torch.empty(heads, states)))
        self.step = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self):
        with torch.no_grad():
            self.decay.fill_(math.log(0.5))
            self.frequency.copy_(math.pi * torch.arange(self.states).expand_as(self.frequency))
            self.step.copy_(torch.linspace(math.log(0.01), math.log(0.1), self.heads))
        nn.init.normal_(self.weight, std=self.states**-0.5)

    def across(self):
        return MultiHead(self.out.out_features, self.heads, None, self.dropout)

    def kernel(self, distance):
        """(H, ...) for distances."""
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        step = self.step.to(wide).exp()[:, None] * torch.ones_like(self.decay, dtype=wide)
        lead = (..., *(None for _ in range(distance.dim())))
        far = distance.to(wide)
        wave = (step * self.frequency.to(wide))[lead] * far
        return (self.weight.to(wide)[lead] * (-(step * self.decay.to(wide).exp())[lead] * far).exp() * wave.cos()).sum(
            1
        )

    def attend(self, q, k, v, pattern):
        query = torch.arange(q.size(2), device=q.device) + pattern.offset
        key = torch.arange(k.size(2), device=q.device) + pattern.start
        kernel = self.kernel((query[:, None] - key[None]).abs())[None]
        mask = pattern.mask(query, key)
        kernel = kernel if mask is None else kernel.masked_fill(~mask, 0.0)
        return torch.sigmoid(q) * (kernel.to(v.dtype) @ (torch.tanh(k) * v))


class RetentionState(PartState):
    """The faded sum of all earlier tokens' products."""

    def __init__(self):
        self.total = None  # (B, H, D, D)


class Retention(Attention):
    """Products that fade with distance, o_t = norm(sum_s g^(t - s) (q_t k_s / sqrt(D)) v_s) (RetNet, Sun et al., 2023).

    A text at once is a product with a matrix of powers; decoding goes on from S_t = g S_(t-1) + k_t' v_t.
    """

    own_backend = Naive
    dot_product = False
    supports = frozenset({"causal", "valid", "rotate"})
    ordered = True
    decoding_memory = "constant"

    def __init__(self, dim, heads, backend=None, dropout=0.0, bias: bool = True):
        super().__init__(dim, heads, backend, dropout, bias=bias)

    def across(self):
        return MultiHead(self.out.out_features, self.heads, None, self.dropout)

    def fade(self, distance, x):
        """g_h^distance, (H, *distance.shape), in at least x's dtype and float32."""
        wide = torch.promote_types(x.dtype, torch.float32)
        log = torch.log1p(-(2.0 ** (-5 - torch.arange(self.heads, device=x.device, dtype=wide))))
        return (log.view(-1, *(1 for _ in distance.shape)) * distance.to(wide)).exp()

    def finish(self, sums, v):
        return (sums * (sums.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(v.dtype)

    def attend(self, q, k, v, pattern):
        query = torch.arange(q.size(2), device=q.device) + pattern.offset
        key = torch.arange(k.size(2), device=q.device) + pattern.start
        fade, mask = self.fade((query[:, None] - key).abs(), q), pattern.mask(query, key)
        fade = fade if mask is None else fade * mask
        q = q.to(fade.dtype) * self.head_dim**-0.5
        return self.finish((q @ k.to(fade.dtype).mT * fade) @ v.to(fade.dtype), v)

    def cache(self, capacity, window=None):
        return RetentionState()

    def attend_after(self, state, q, k, v, pattern):
        place, real = torch.arange(q.size(2), device=q.device), pattern.real_tokens(q.size(2))
        k = k if real is None else k * real[:, None, :, None]
        within = self.fade((place[:, None] - place).clamp(min=0), q).tril()
        q, k, wide = q.to(within.dtype) * self.head_dim**-0.5, k.to(within.dtype), v.to(within.dtype)
        old = k.new_zeros(*k.shape[:2], k.size(-1), k.size(-1)) if state.total is None else state.total
        sums = (q @ k.mT * within) @ wide + self.fade(place + 1, q)[..., None] * (q @ old)
        late = self.fade(len(place) - 1 - place, q)[..., None] * k
        state.total = self.fade(torch.tensor([[len(place)]], device=q.device), q) * old + late.mT @ wide
        return self.finish(sums, v)


class ShiftState(PartState):
    """The last token that each branch has read."""

    def __init__(self):
        self.attend = self.ffn = None  # (B, 1, dim)


class TokenShift(PreNorm):
    """Each branch reads half of a token and half of the one before it (RWKV, Peng et al., 2023)."""

    packs = False
    ordered = True

    def cache(self, capacity, window=None):
        return super().cache(capacity, window)._replace(block=ShiftState())

    def join(self, x, branch, call, context):
        y = branch.norm(x)
        if branch is not self.cross:
            y = y if context.tokens is None else y * context.tokens[..., None]
            y = (y + self.before(y, "ffn" if branch is self.ffn else "attend", context.cache)) / 2
        return x + branch.dropout(call(context, branch.part, y))

    def before(self, y, name, cache):
        first = getattr(cache.block, name) if cache is not None else None
        if cache is not None:
            setattr(cache.block, name, y[:, -1:])
        return torch.cat([torch.zeros_like(y[:, :1]) if first is None else first, y[:, :-1]], 1)


class ConvolutionState(PartState):
    """The last values that the kernel still reaches."""

    def __init__(self):
        self.values = None  # (B, kernel - 1, dim)


class GatedConvolution(TokenMixer):
    """W_o (g * conv(W_v x)), a causal kernel per feature, gated (short convolutions of H3, Fu et al., 2023)."""

    memory = "linear"
    decoding_memory = "constant"

    def __init__(self, dim, heads, backend=None, dropout=0.0, kernel: int = 4):
        super().__init__(dim, heads, backend, dropout)
        self.read, self.write = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.kernel = nn.Parameter(torch.empty(kernel, dim))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.kernel, std=len(self.kernel) ** -0.5)

    def cache(self, capacity, window=None):
        return ConvolutionState()

    def forward(self, x, memory=None, *, pattern, position=None, cache=None):
        gate, values = self.read(x).chunk(2, -1)
        real, before = pattern.real_tokens(x.size(1)), len(self.kernel) - 1
        values = values if real is None else values * real[..., None]
        old = getattr(cache, "values", None)
        values = torch.cat([values.new_zeros(len(x), before, values.size(-1)) if old is None else old, values], 1)
        if cache is not None:
            cache.values = values[:, values.size(1) - before :].clone()
        mixed = sum(values[:, n : n + x.size(1)] * weight for n, weight in enumerate(self.kernel.to(values.dtype)))
        return self.write(gate * mixed)


class MixerBlock(PreNorm):
    """x + attention(norm(x)) alone, as Mamba's layers are (Gu and Dao, 2023)."""

    packs = True
    slots = frozenset({"attention"})


class YaRN(RoPE):
    """RoPE for longer texts: slow turns are stretched, and scores sharpened by (0.1 ln s + 1)^2 (Peng et al., 2023)."""

    keeps_lengths = False

    def __init__(self, dim, heads, extent, scaling_factor: float = 4.0, original_max_length: int = 64):
        super().__init__(
            dim,
            heads,
            extent,
            scaling_factor=scaling_factor,
            original_max_length=original_max_length,
            low_freq_factor=1.0,
            high_freq_factor=32.0,
        )
        if scaling_factor < 1:
            raise UsageError(f"position YaRN needs scaling_factor >= 1, got {scaling_factor}.")
        self.factor = 0.1 * math.log(scaling_factor) + 1

    def rotate(self, x, pos):
        return self.factor * super().rotate(x, pos)


class SharedExperts(FFN):
    """One expert for every token and fine ones of which a router picks (DeepSeekMoE, Dai et al., 2024).

    With experts of a quarter of the budget, the shared one of half, they hold ``experts / 4 + 1 / 2`` budgets.
    """

    real_tokens = True

    def __init__(self, dim: int, hidden: int, experts: int = 7, top_k: int = 2):
        super().__init__(dim, hidden)
        self.copies = experts / 4 + 1 / 2
        self.shared = MLP(dim, max(1, hidden // 2))
        self.routed = MoE(dim, max(1, hidden // 4), experts, top_k, expert=MLP)

    def forward(self, x):
        routed = self.routed(x)
        for loss in aux_losses(self.routed):
            leave_loss(self, loss)
        return self.shared(x) + routed


class NormalisedHeads(MultiHead):
    """What the heads give is normalised in front of the output matrix (Magneto, Wang et al., 2022)."""

    class Output(nn.Linear):
        """A norm, and a matrix behind it."""

        def __init__(self, width: int, dim: int):
            super().__init__(width, dim)
            self.norm = RMSNorm(width)

        def forward(self, x):
            return super().forward(self.norm(x))

    def __init__(self, dim, heads, backend=None, dropout=0.0, kv_heads: int | None = None):
        super().__init__(dim, heads, backend, dropout, kv_heads)
        self.out = self.Output(heads * self.head_dim, dim)


class QKNorm(MultiHead):
    """Queries and keys normalised, and a learned temperature per head instead of the root (Henry et al., 2020)."""

    def __init__(self, dim, heads, backend=None, dropout=0.0, kv_heads: int | None = None):
        super().__init__(dim, heads, backend, dropout, kv_heads, scale=1.0)
        self.temperature = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.constant_(self.temperature, 3.0)

    def sharpened(self, q, k):
        return F.normalize(q, dim=-1, eps=1e-6) * self.temperature[:, None, None].to(q.dtype), F.normalize(
            k, dim=-1, eps=1e-6
        )

    def attend(self, q, k, v, pattern):
        return super().attend(*self.sharpened(q, k), v, pattern)

    def weigh(self, q, k, pattern):
        return super().weigh(*self.sharpened(q, k), pattern)


class ScalableSoftmax(MultiHead):
    """softmax(s log(n) q k' / sqrt(D)) v for a query that sees n keys, s learned per head (Nakanishi, 2025).

    Its scores are sharper than usual ones, so that rounding changes its weights more.
    """

    def __init__(self, dim, heads, backend=None, dropout=0.0, kv_heads: int | None = None, start: float = 3.0):
        super().__init__(dim, heads, backend, dropout, kv_heads)
        self.start, self.sharpness = start, nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.constant_(self.sharpness, self.start)

    def sharpened(self, q, k, pattern):
        """Queries (B, H, T, D) times s log(n), in their dtype."""
        query = pattern.offset + torch.arange(q.size(2), device=q.device)
        mask = pattern.mask(query, pattern.start + torch.arange(k.size(2), device=q.device))
        wide = torch.promote_types(q.dtype, torch.float32)
        visible = torch.tensor([float(k.size(2))], device=q.device) if mask is None else mask.sum(-1).clamp(min=1)
        factor = self.sharpness.to(wide)[:, None] * visible.to(wide).log()
        return (q.to(wide) * factor[..., None]).to(q.dtype)

    def attend(self, q, k, v, pattern):
        return super().attend(self.sharpened(q, k, pattern), k, v, pattern)

    def weigh(self, q, k, pattern):
        return super().weigh(self.sharpened(q, k, pattern), k, pattern)


PUBLISHED = [
    LayerScale,
    ScalableSoftmax,
    ReZero,
    HyperConnections,
    S4D,
    Retention,
    GatedConvolution,
    MixerBlock,
    TokenShift,
    YaRN,
    SharedExperts,
    NormalisedHeads,
    QKNorm,
]
