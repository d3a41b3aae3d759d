"""Right parts in the style of papers of 2024 to 2026; some say in an attribute what is unusual about them."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

from zoo.errors import UsageError
from zoo.parts.attention import MultiHead
from zoo.parts.block import PreNorm
from zoo.parts.cache import PartState
from zoo.parts.ffn import FFN
from zoo.parts.norm import Norm
from zoo.parts.position import RoPE
from zoo.tasks.classification import Classification
from zoo.tasks.optimizers import zeros_like_state
from zoo.tasks.schedule import Schedule
from zoo.tasks.task import Loss


class DyT(Norm):
    """tanh(scale * x) * weight + bias (Zhu et al., 2025)."""

    def __init__(self, dim: int, scale: float = 0.5):
        super().__init__(dim, eps=0.0)
        self.start, self.scale = scale, nn.Parameter(torch.empty(1))
        self.weight, self.bias = nn.Parameter(torch.empty(dim)), nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.constant_(self.scale, self.start)
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def bend(self, x):
        return torch.tanh(self.scale * x)

    def forward(self, x):
        return (self.bend(x) * self.weight + self.bias).to(x.dtype)

    def reference(self, x):
        return torch.stack([self.bend(x[..., n]) * self.weight[n] + self.bias[n] for n in range(self.dim)], -1)


class Derf(DyT):
    """erf(scale * x + shift) * weight + bias (2025)."""

    def __init__(self, dim: int, scale: float = 0.5):
        super().__init__(dim, scale)
        self.shift = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self):
        super().reset_parameters()
        if hasattr(self, "shift"):
            nn.init.zeros_(self.shift)

    def bend(self, x):
        return torch.erf(self.scale * x + self.shift)


class PlainLayerNorm(Norm):
    """Zero mean and unit variance without parameters (OLMo, Groeneveld et al., 2024)."""

    invariant = frozenset({"shift", "scale"})

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__(dim, eps)

    def forward(self, x):
        wide = torch.promote_types(x.dtype, torch.float32)
        centred = x.to(wide) - x.to(wide).mean(-1, keepdim=True)
        return (centred * (centred.square().mean(-1, keepdim=True) + self.eps).rsqrt()).to(x.dtype)


class SquaredReLU(FFN):
    """W2 relu(W1 x)^2 (Primer, So et al., 2021; Nemotron-4, 2024)."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        self.up, self.down = nn.Linear(dim, hidden, bias=False), nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down(F.relu(self.up(x)).square())

    def reference(self, x):
        return (x @ self.up.weight.mT).clamp(min=0) ** 2 @ self.down.weight.mT


class ExclusiveAttention(MultiHead):
    """What attention gives a token, without the part along the token's own value (2026)."""

    supports = MultiHead.supports - {"cross"}
    adds_to_values = ordered = True

    def across(self):
        return MultiHead(self.out.out_features, self.heads, None, self.dropout)

    def attend(self, q, k, v, pattern):
        heads = super().attend(q, k, v, pattern)
        place = pattern.offset - pattern.start
        own = v[:, :, place : place + q.size(2)].repeat_interleave(self.heads // self.kv_heads, 1)
        wide = torch.promote_types(v.dtype, torch.float32)
        own, result = own.to(wide), heads.to(wide)
        along = (result * own).sum(-1, keepdim=True) / (own.square().sum(-1, keepdim=True) + 1e-6)
        return (result - along * own).to(heads.dtype)


class DifferentialHeads(MultiHead):
    """softmax(q1 k1) v - weight * softmax(q2 k2) v of halves of a head (Ye et al., 2024); the weight grows by layer."""

    shows_weights = False

    def __init__(self, dim, heads, backend=None, dropout=0.0, layer: int = 0):
        super().__init__(dim, heads, backend, dropout)
        self.layer, self.weight = layer, nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.constant_(self.weight, 0.8 - 0.6 * math.exp(-0.3 * self.layer))

    def attend(self, q, k, v, pattern):
        one, two = (
            self.backend(a, b, v, pattern, self.dropout if self.training else 0.0)
            for a, b in ((q[..., n::2], k[..., n::2]) for n in (0, 1))  # halves that turn by themselves
        )
        return one - (self.weight[:, None, None] * two).to(one.dtype)


class PartialRoPE(RoPE):
    """RoPE of the first half of a head; the other half has no position (Barbero et al., 2025)."""

    def rotate(self, x, pos):
        half = x.size(-1) // 4 * 2
        return torch.cat([super().rotate(x[..., :half].contiguous(), pos), x[..., half:]], -1)

    def check(self, head_dim):
        if head_dim % (4 * len(self.extent.sizes)):
            raise UsageError(f"position PartialRoPE cannot turn half of a head of width {head_dim}.")


class CanonState(PartState):
    """The last tokens that each branch has read, (B, kernel - 1, dim)."""

    def __init__(self):
        self.attend = self.ffn = None


class Canon(PreNorm):
    """Each branch reads tokens plus a short causal convolution of them, one kernel per feature (Allen-Zhu, 2025)."""

    packs = False
    ordered = True

    def __init__(self, attend, cross, ffn, norm, dropout, kernel: int = 4):
        super().__init__(attend, cross, ffn, norm, dropout)
        width = attend.out.out_features
        self.attend_kernel = nn.Parameter(torch.empty(kernel, width))
        self.ffn_kernel = nn.Parameter(torch.empty(kernel, width))
        self.reset_parameters()

    def reset_parameters(self):
        for kernel in (self.attend_kernel, self.ffn_kernel):
            nn.init.normal_(kernel, std=0.5 * len(kernel) ** -0.5)

    def cache(self, capacity, window=None):
        return super().cache(capacity, window)._replace(block=CanonState())

    def join(self, x, branch, call, context):
        y = branch.norm(x)
        if branch is not self.cross:
            y = y if context.tokens is None else y * context.tokens[..., None]
            y = y + self.mixed(y, "ffn" if branch is self.ffn else "attend", context.cache)
        return x + branch.dropout(call(context, branch.part, y))

    def mixed(self, y, name, cache):
        kernel = getattr(self, f"{name}_kernel").to(y.dtype)
        before = None if cache is None else getattr(cache.block, name)
        long = torch.cat([y.new_zeros(len(y), len(kernel) - 1, y.size(-1)) if before is None else before, y], 1)
        if cache is not None:
            setattr(cache.block, name, long[:, long.size(1) - len(kernel) + 1 :].clone())
        return sum(long[:, n : n + y.size(1)] * weight for n, weight in enumerate(kernel))


class Steps(Optimizer):
    """The base of the optimizers here: a step of each parameter that has a gradient."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for w in (w for w in group["params"] if w.grad is not None):
                state = self.state[w]
                state["step"] = state.get("step", 0) + 1
                self.change(w, w.grad, state, group)
        return loss


class CautiousAdamW(Steps):
    """AdamW whose step leaves out what has the sign of the gradient against it, and decay likewise (Liang et al., 2024;
    Chen et al., 2025).
    """

    def __init__(
        self, params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8,
        weight_decay: float = 0.1,
    ):  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def change(self, w, g, state, group):
        first, second = group["betas"]
        mean, square = zeros_like_state(state, "mean", w), zeros_like_state(state, "square", w)
        mean.lerp_(g, 1 - first)
        square.lerp_(g.square(), 1 - second)
        step = mean / (1 - first ** state["step"])
        step = step / ((square / (1 - second ** state["step"])).sqrt() + group["eps"])
        mask = (step * g > 0).to(g.dtype)
        agrees = (step * w > 0).to(g.dtype)
        step = step * mask / mask.mean().clamp(min=1e-3) + group["weight_decay"] * agrees * w
        w.sub_(group["lr"] * step)


class NormalisedMuon(Steps):
    """Orthogonal momentum, each row of which is divided by its running size (NorMuon, 2025); vectors go by signs."""

    def __init__(self, params, lr: float = 1e-3, momentum: float = 0.95, beta: float = 0.95, weight_decay: float = 0.1):
        if not (0 <= momentum < 1 and 0 <= beta < 1):
            raise UsageError(f"optimizer.momentum and beta are from 0 to below 1, got {momentum} and {beta}.")
        super().__init__(params, {"lr": lr, "momentum": momentum, "beta": beta, "weight_decay": weight_decay})

    def change(self, w, g, state, group):
        momentum = zeros_like_state(state, "momentum", w).lerp_(g, 1 - group["momentum"])
        look = momentum.lerp(g, 1 - group["momentum"])
        w.mul_(1 - group["lr"] * group["weight_decay"])
        if w.dim() < 2:
            w.sub_(group["lr"] * look.sign())
            return
        x = look.float() / (look.float().norm() + 1e-7)
        for _ in range(5):
            a = x @ x.mT if x.size(0) <= x.size(1) else x.mT @ x
            b = -4.775 * a + 2.0315 * a @ a
            x = 3.4445 * x + (b @ x if x.size(0) <= x.size(1) else x @ b)
        if "size" not in state:
            state["size"] = torch.zeros_like(x[:, :1])
        size = state["size"].lerp_(x.square().mean(1, keepdim=True), 1 - group["beta"])
        x = x / ((size / (1 - group["beta"] ** state["step"])).sqrt() + 1e-8)
        w.sub_((0.2 * group["lr"] * x).to(w.dtype))


class AdamL2(torch.optim.Adam):
    """Adam whose decay is part of the gradient, on by default."""

    decoupled_decay = False

    def __init__(self, params, lr: float = 1e-3, weight_decay: float = 0.01):
        super().__init__(params, lr, weight_decay=weight_decay)


class Stages(Schedule):
    """A constant rate that falls to a third after each of some shares of the steps (DeepSeek LLM, Bi et al., 2024)."""

    def __init__(self, total: int, warmup: int = 0, stages: tuple[float, ...] = (0.8, 0.9)):
        super().__init__(total, warmup)
        self.stages = tuple(stages)

    def shape(self, step, done):
        return (0.1**0.5) ** sum(step >= share * self.total for share in self.stages)


class WarmRestarts(Schedule):
    """Cosines one after the other (Loshchilov and Hutter, 2017)."""

    restarts = True

    def shape(self, step, done):
        return 0.5 * (1 + math.cos(math.pi * (3 * done % 1)))


class PowerDecay(Schedule):
    """A stable rate with a decay by 1 - x^2 at its end, as some runs of 2025 have it."""

    def shape(self, step, done):
        return 1.0 if done < 0.7 else max(0.0, 1.0 - ((done - 0.7) / 0.3) ** 2)


class Focal(Classification):
    """(1 - p)^2 times the cross-entropy, trained and reported (Lin et al., 2017)."""

    def focal(self, batch):
        logits = self(batch["images"]).float()
        loss = F.cross_entropy(logits, batch["labels"], reduction="none")
        return Loss(((1 - (-loss).exp()) ** 2 * loss).sum(), torch.tensor(len(loss))), logits

    def loss(self, batch):
        return self.focal(batch)[0]

    def evaluate(self, batch):
        loss, logits = self.focal(batch)
        self.metrics.update(logits, batch["labels"])
        return loss


RECENT = [
    DyT,
    Derf,
    PlainLayerNorm,
    SquaredReLU,
    ExclusiveAttention,
    DifferentialHeads,
    PartialRoPE,
    Canon,
    CautiousAdamW,
    NormalisedMuon,
    AdamL2,
    Stages,
    WarmRestarts,
    PowerDecay,
    Focal,
]
