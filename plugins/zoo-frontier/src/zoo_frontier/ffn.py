"""Feed-forwards: squared ReLU, and a mixture of shared and routed experts."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.parts.few_row_linear import Linear
from zoo.parts.ffn import BY_HIDDEN_UNIT, FFN, Gated, MoE, SwiGLU


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


class DeepSeekMoE(MoE):
    """Shared experts for every token, routed ones balanced without a loss (DeepSeek-V3, 2024; Wang et al., 2024).

    shared(x) + scale * sum_e g_e expert_e(x) over the ``top_k`` experts of largest s_e + b_e, where s = sigmoid(W x)
    and g_e = s_e / (sum of the selected s). b only selects: no gradient of the prediction reaches it. The papers add
    0.001 * sign(mean load - load_e) to b_e after each step. Here b = speed * w, and sign(load_e - mean load) is the
    gradient of w_e, left by an ``aux_loss`` whose value is zero: AdamW and Lion, whose steps have the size of the
    learning rate, move b_e by speed * lr against its load, and accumulation, several processes and resumed runs need
    nothing else.
    """

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

        Raises UsageError where top_k or shared do not fit.
        """
        super().__init__(dim, hidden, experts, top_k, 0.0, expert)
        if shared < 1:
            raise UsageError(f"ffn DeepSeekMoE needs shared of at least 1, got {shared}. Without shared experts: MoE.")
        self.scale, self.speed, self.copies = scale, speed, experts + shared
        self.shared = nn.ModuleList(expert(dim, hidden) for _ in range(shared))
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

    def forward(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape; in training it counts ``load`` and leaves ``aux_loss``."""
        tokens = x.reshape(-1, self.dim)
        affinity = self.route(tokens)
        choice = (affinity + self.selection_bias.detach().to(affinity.dtype) * self.speed).topk(self.top_k, -1).indices
        weight = affinity.gather(-1, choice)
        weight = (self.scale * weight / weight.sum(-1, keepdim=True)).to(x.dtype)
        weight = weight + 0 * self.selection_bias.sum().to(x.dtype)  # a gradient of zeros: DDP waits for it
        out = sum(expert(tokens) for expert in self.shared).to(x.dtype)
        for number, expert in enumerate(self.experts):
            row, slot = self.served(choice, number)
            out = out.index_add(0, row, expert(tokens[row]).to(x.dtype) * weight[row, slot, None])
        if self.training:
            count = F.one_hot(choice, len(self.experts)).sum((0, 1))
            self.load += count
            excess = (count * len(self.experts) - count.sum()).sign()
            self.aux_loss = (excess * (self.selection_bias - self.selection_bias.detach())).sum()
        return out.view_as(x)

    def reference(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape, by the formula in plain steps."""
        rows = []
        for token in x.reshape(-1, self.dim):
            affinity = 1 / (1 + torch.exp(-(self.router.weight @ token)))
            best = (affinity + self.speed * self.selection_bias).argsort(descending=True)[: self.top_k]
            share = self.scale * affinity[best] / affinity[best].sum()
            routed = sum(g * self.experts[int(e)](token[None])[0] for g, e in zip(share, best, strict=True))
            rows.append(routed + sum(expert(token[None])[0] for expert in self.shared))
        return torch.stack(rows).view_as(x)
