"""Feed-forwards: squared ReLU, bounded gates, and mixtures of shared and routed experts."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.parts.few_row_linear import Linear
from zoo.parts.ffn import BY_HIDDEN_UNIT, FFN, Gated, MoE, SwiGLU
from zoo.value_checks import at_least

SMALL = 1e-4  # far above what optimizers add to a denominator, and far below the gradients of a prediction


class SquaredReLU(FFN):
    """W2 max(W1 x, 0)^2: Primer's feed-forward (So et al., 2021)."""

    tensor_parallel: ClassVar = BY_HIDDEN_UNIT

    def __init__(self, dim: int, hidden: int, bias: bool = False):
        """
        Args:
            dim: width of a token.
            hidden: width between the two matrices.
            bias: give both matrices a bias.
        """
        super().__init__(dim, hidden)
        self.up, self.down = Linear(dim, hidden, bias=bias), Linear(hidden, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape."""
        return self.down(F.relu(self.up(x)).square())


class ClampedSwiGLU(Gated):
    """W3 ((v + 1) * g sigmoid(alpha g)), g = min(W1 x, limit) and v = W2 x within (-limit, limit) (gpt-oss, 2025)."""

    tensor_parallel: ClassVar = BY_HIDDEN_UNIT

    def __init__(
        self,
        dim: int,
        hidden: int,
        bias: bool = True,
        multiple_of: int = 1,
        alpha: float = 1.702,
        limit: float = 7.0,
    ):
        """
        Args:
            dim: width of a token.
            hidden: budget: the width of an MLP with as many parameters.
            bias: give the matrices a bias.
            multiple_of: round the width up to a multiple of it.
            alpha: steepness of the gate's sigmoid.
            limit: bound on the gate from above, and on the value from both sides.

        Raises UsageError for a limit that is not above 0.
        """
        super().__init__(dim, hidden, bias, multiple_of)
        if not limit > 0:
            raise UsageError(f"ffn ClampedSwiGLU needs a limit above 0, got {limit}.")
        self.alpha, self.limit = alpha, limit

    def forward(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape."""
        gate, value = self.up(x).chunk(2, -1)
        gate, value = gate.clamp(max=self.limit), value.clamp(-self.limit, self.limit)
        return self.down((value + 1) * gate * torch.sigmoid(self.alpha * gate))

    def reference(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape, by the formula in plain steps."""
        both = x @ self.up.weight.T + (0 if self.up.bias is None else self.up.bias)
        width = both.size(-1) // 2
        gate = torch.where(both[..., :width] > self.limit, self.limit, both[..., :width])
        value = torch.minimum(torch.maximum(both[..., width:], -torch.tensor(self.limit)), torch.tensor(self.limit))
        product = (value + 1) * gate / (1 + torch.exp(-self.alpha * gate))
        return product @ self.down.weight.T + (0 if self.down.bias is None else self.down.bias)


class SharedMoE(MoE):
    """A mixture of experts beside experts that compute every token (Qwen 2 MoE and 3 Next, DeepSeek-V2, 2024).

    s(x) sum_i shared_i(x) + scale * sum_e p_e(x) expert_e(x) over the ``top_k`` likeliest experts, with s(x) = 1, or
    sigmoid(w x) where ``gate`` is set. With ``groups``, a token's experts are in the ``group_top_k`` groups whose
    likeliest expert is likeliest.
    """

    group_best = 1  # a group counts as much as so many of its best experts

    def __init__(
        self,
        dim: int,
        hidden: int,
        shared: int = 1,
        shared_hidden: int | None = None,
        gate: bool = False,
        scale: float = 1.0,
        groups: int = 1,
        group_top_k: int = 1,
        expert: Callable[[int, int], FFN] = SwiGLU,
        **options,
    ):
        """
        Args:
            dim: width of a token.
            hidden: budget of one routed expert.
            shared: experts that compute every token.
            shared_hidden: budget of one of them; hidden unless given.
            gate: multiply what they give by sigmoid(w x).
            scale: factor on what the routed experts give.
            groups: sets of neighbouring experts, of one size.
            group_top_k: sets that a token's experts may be in.
            expert: the feed-forward of an expert.

        Raises UsageError where shared, groups or top_k do not fit.
        """
        super().__init__(dim, hidden, expert=expert, **options)
        name, experts = type(self).__name__, len(self.experts)
        if shared < 1:
            raise UsageError(f"ffn {name} needs shared of at least 1, got {shared}. Without shared experts: MoE.")
        if not 1 <= group_top_k <= groups or experts % groups:
            raise UsageError(f"ffn {name} picks group_top_k={group_top_k} of groups={groups} of experts={experts}.")
        if self.top_k > experts // groups * group_top_k:
            raise UsageError(f"ffn {name} has fewer than top_k={self.top_k} experts in group_top_k={group_top_k}.")
        self.scale, self.copies, self.groups, self.group_top_k = scale, experts + shared, groups, group_top_k
        at_least(1, shared_hidden=shared_hidden)
        self.shared = nn.ModuleList(expert(dim, shared_hidden or hidden) for _ in range(shared))
        self.shared_gate = nn.Linear(dim, 1, bias=False) if gate else None

    def within_groups(self, score: Tensor) -> Tensor:
        """Scores (tokens, experts), -inf outside of the best ``group_top_k`` groups."""
        if self.groups == self.group_top_k:
            return score
        grouped = score.unflatten(-1, (self.groups, -1))
        total = grouped.topk(min(self.group_best, grouped.size(-1)), -1).values.sum(-1)
        outside = torch.ones_like(total).scatter(-1, total.topk(self.group_top_k, -1).indices, 0.0).bool()
        return grouped.masked_fill(outside[..., None], -torch.inf).flatten(-2)

    def select(self, probability: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of each token's experts, (tokens, top_k) each, for probabilities (tokens, experts)."""
        weight, choice = super().select(self.within_groups(probability))
        return self.scale * weight, choice

    def compute_shared(self, tokens: Tensor) -> Tensor:
        """What the shared experts give, (tokens, dim)."""
        out = sum(expert(tokens) for expert in self.shared).to(tokens.dtype)
        return out if self.shared_gate is None else out * self.shared_gate(tokens).sigmoid()

    def reference(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape, by the formula in plain steps."""
        rows, size = [], len(self.experts) // self.groups
        for token in x.reshape(-1, self.dim):
            score, choice = self.reference_scores(token)
            totals = torch.stack([group.sort().values[-self.group_best :].sum() for group in score.split(size)])
            allowed = set(totals.argsort(descending=True)[: self.group_top_k].tolist())
            ranking = score.argsort(descending=True).tolist()
            best = torch.tensor([e for e in ranking if e // size in allowed][: self.top_k])
            share = self.scale * choice[best] / (choice[best].sum() if self.normalize else 1)
            routed = sum(g * self.experts[int(e)](token[None])[0] for g, e in zip(share, best, strict=True))
            gate = 1 if self.shared_gate is None else 1 / (1 + torch.exp(-(self.shared_gate.weight[0] @ token)))
            rows.append(routed + gate * sum(expert(token[None])[0] for expert in self.shared))
        return torch.stack(rows).view_as(x)

    def reference_scores(self, token: Tensor) -> tuple[Tensor, Tensor]:
        """What experts are selected by and weighted by, (experts,) each, for a token (dim,)."""
        bias = 0 if self.router.bias is None else self.router.bias
        probability = (self.router.weight @ token + bias).softmax(-1)
        return probability, probability


class DeepSeekMoE(SharedMoE):
    """Shared experts for every token, routed ones balanced without a loss (DeepSeek-V3, 2024; Wang et al., 2024).

    shared(x) + scale * sum_e g_e expert_e(x) over the ``top_k`` experts of largest s_e + b_e, where s = sigmoid(W x)
    and g_e = s_e / (sum of the selected s). b only selects: no gradient of the prediction reaches it. The papers add
    0.001 * sign(mean load - load_e) to b_e after each step. Here b = speed * w, and 1e-4 * sign(load_e - mean load) is
    the gradient of w_e, left by an ``aux_loss`` whose value is zero: AdamW and Lion, whose steps have the size of the
    learning rate, move b_e by speed * lr against its load, and accumulation, several processes, clipping by the norm,
    in which so small a gradient has no weight, and resumed runs need nothing else.
    """

    group_best = 2

    def __init__(
        self,
        dim: int,
        hidden: int,
        experts: int = 8,
        top_k: int = 2,
        shared: int = 1,
        scale: float = 1.0,
        speed: float = 0.3,
        expert: Callable[[int, int], FFN] = SwiGLU,
        groups: int = 1,
        group_top_k: int = 1,
    ):
        """
        Args:
            dim: width of a token.
            hidden: budget of one expert.
            experts: number of routed experts.
            top_k: routed experts that compute each token.
            shared: experts that compute every token.
            scale: factor on what the routed experts give (DeepSeek-V3 has 2.5).
            speed: how far b moves in a step, relative to the learning rate.
            expert: the feed-forward of an expert.
            groups: sets of neighbouring experts, of one size.
            group_top_k: sets that a token's experts may be in: those whose two largest s + b have the largest sum.

        Raises UsageError where top_k, shared or groups do not fit.
        """
        super().__init__(
            dim, hidden, shared, scale=scale, groups=groups, group_top_k=group_top_k,
            experts=experts, top_k=top_k, aux_loss_weight=0.0, expert=expert,
        )  # fmt: skip
        at_least(0, speed=speed)
        self.speed = speed
        self.selection_bias = nn.Parameter(torch.empty(experts))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """No token is counted yet, and no expert preferred."""
        super().reset_parameters()
        if hasattr(self, "selection_bias"):
            nn.init.zeros_(self.selection_bias)

    def route(self, tokens: Tensor) -> Tensor:
        """Affinity of each expert, (tokens, experts), each in (0, 1), in at least float32."""
        wide, device = torch.promote_types(tokens.dtype, torch.float32), tokens.device.type
        with torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext():
            return F.linear(tokens.to(wide), self.router.weight.to(wide)).sigmoid()

    def select(self, probability: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of each token's experts, (tokens, top_k) each, for affinities (tokens, experts)."""
        score = probability + self.selection_bias.detach().to(probability.dtype) * self.speed
        choice = self.within_groups(score).topk(self.top_k, -1).indices
        weight = probability.gather(-1, choice)
        weight = self.scale * weight / weight.sum(-1, keepdim=True)
        return weight + 0 * self.selection_bias.sum().to(weight.dtype), choice  # a gradient of zeros: DDP waits for it

    def balance(self, probability: Tensor, count: Tensor) -> Tensor:
        """Zero, (), with SMALL times the sign of each expert's excess load as gradient of its bias."""
        excess = (count * len(self.experts) - count.sum()).sign()
        return (SMALL * excess * (self.selection_bias - self.selection_bias.detach())).sum()

    def reference_scores(self, token: Tensor) -> tuple[Tensor, Tensor]:
        """What experts are selected by and weighted by, (experts,) each, for a token (dim,)."""
        affinity = 1 / (1 + torch.exp(-(self.router.weight @ token)))
        return affinity + self.speed * self.selection_bias, affinity
