"""Feed-forwards: what each token computes on its own."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import ClassVar, Literal, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.parts.few_row_linear import Linear
from zoo.value_checks import MOST_MODULES, at_least, at_most


def quick_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x), elementwise (Hendrycks and Gimpel, 2016): CLIP's."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
    "swish": F.silu,
}
Activation = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "swish"]


BY_HIDDEN_UNIT = {"up": "columns", "down": "rows"}  # how processes may divide the matrices of a feed-forward


class FFN(nn.Module):
    """x of shape (..., dim) to the same shape, token by token.

    ``hidden`` is a budget: the width of a plain two-matrix feed-forward with that many parameters. A part that needs
    padding removed sets ``real_tokens`` and gets (tokens, dim). A part with a loss of its own leaves it, weighted, by
    ``leave_loss`` in each forward in training: ``aux_loss`` is their mean until it is taken.
    """

    kind = "ffn"
    real_tokens = False
    aux_loss: Tensor | None = None
    aux_calls = 0  # whose mean it is
    copies = 1  # how many times the budget its matrices hold

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.dim, self.hidden = dim, hidden

    def reference(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape by the formula in plain steps, which ``forward`` must equal.

        NotImplementedError where a part has none.
        """
        raise NotImplementedError


class RealTokens(nn.Module):
    """A feed-forward that is shown no padding: (B, T, dim) is packed to (tokens, dim) around it."""

    def __init__(self, ffn: FFN):
        super().__init__()
        self.ffn = ffn

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """x (B, T, dim) to the same shape, zeros at padding, where ``valid`` (B, T) is False."""
        if valid is None:
            return self.ffn(x)
        return torch.zeros_like(x).index_put((valid,), self.ffn(x[valid]))


def resize_hidden(part: nn.Module, start: nn.Module, state: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, str]]:
    """up (k × hidden, dim) and down (dim, hidden) from those of a feed-forward of the same class and another width.

    A wider one computes the same: what is added has weights of zero towards the output. A narrower one has the hidden
    units with the largest product of the norms of their weights.
    """
    own = part.state_dict()
    if type(part) is not type(start) or not {"up.weight", "down.weight"} <= own.keys() & state.keys():
        return {}
    old, new = state["down.weight"].size(1), own["down.weight"].size(1)
    if old == new or len(own["down.weight"]) != len(state["down.weight"]) or len(state["up.weight"]) % old:
        return {}
    up = state["up.weight"].unflatten(0, (-1, old))
    size = state["down.weight"].norm(dim=0) * up.norm(dim=-1).prod(0)
    units = torch.arange(old) if new > old else size.topk(new).indices.sort().values
    formula = f"{old} units and new ones that give 0" if new > old else f"the {new} units with the largest weights"
    result = {}
    for name in own.keys() & state.keys() & {"up.weight", "up.bias"}:
        tensor = own[name].unflatten(0, (-1, new)).clone()
        tensor[:, : len(units)] = state[name].unflatten(0, (-1, old))[:, units].to(tensor)
        result[name] = tensor.flatten(0, 1), formula
    down = torch.zeros_like(own["down.weight"])
    down[:, : len(units)] = state["down.weight"][:, units].to(down)
    return {**result, "down.weight": (down, formula)}


class MLP(FFN):
    """Two matrices and an activation: W2 act(W1 x + b1) + b2 (Vaswani et al., 2017)."""

    tensor_parallel: ClassVar = BY_HIDDEN_UNIT

    def __init__(self, dim: int, hidden: int, activation: Activation = "gelu", bias: bool = True):
        """
        Args:
            dim: width of a token.
            hidden: width between the two matrices.
            activation: the function between the two matrices.
            bias: give both matrices a bias.
        """
        super().__init__(dim, hidden)
        self.activation = activation
        self.up = Linear(dim, hidden, bias=bias)
        self.down = Linear(hidden, dim, bias=bias)

    def convert_state(self, start: nn.Module, state: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, str]]:
        """up (k × hidden, dim) and down (dim, hidden) from another width, as ``resize_hidden`` gives them."""
        return resize_hidden(self, start, state)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape."""
        return self.down(ACTIVATIONS[self.activation](self.up(x)))

    def reference(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape, by the formula in plain steps."""
        up, down = self.up, self.down
        hidden = ACTIVATIONS[self.activation](x @ up.weight.T + (0 if up.bias is None else up.bias))
        return hidden @ down.weight.T + (0 if down.bias is None else down.bias)


class Gated(FFN):
    """W3 (gate(W1 x) * W2 x), two thirds as wide as the budget, rounded up to ``multiple_of`` (Shazeer, 2020)."""

    def __init__(self, dim: int, hidden: int, bias: bool = False, multiple_of: int = 1):
        """
        Args:
            dim: width of a token.
            hidden: budget: the width of an MLP with as many parameters.
            bias: give the matrices a bias.
            multiple_of: round the width up to a multiple of it (LLaMA has 256).
        """
        super().__init__(dim, hidden)
        at_least(1, multiple_of=multiple_of)
        width = -(-max(1, 2 * hidden // 3) // multiple_of) * multiple_of
        self.up = Linear(dim, 2 * width, bias=bias)  # gate and value side by side: one matrix product
        self.down = Linear(width, dim, bias=bias)

    def convert_state(self, start: nn.Module, state: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, str]]:
        """up (k × hidden, dim) and down (dim, hidden) from another width, as ``resize_hidden`` gives them."""
        return resize_hidden(self, start, state)

    def gate(self, x: Tensor) -> Tensor:
        """The gate's product W1 x (..., width) to the same shape. Each gated feed-forward has its own."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape."""
        gate, value = self.up(x).chunk(2, -1)
        return self.down(self.gate(gate) * value)

    def formula(self, x: Tensor) -> Tensor:
        """The gate as on paper, (..., width) to the same shape."""
        raise NotImplementedError

    def reference(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape, by the formula in plain steps."""
        both = x @ self.up.weight.T + (0 if self.up.bias is None else self.up.bias)
        width = both.size(-1) // 2
        product = self.formula(both[..., :width]) * both[..., width:]
        return product @ self.down.weight.T + (0 if self.down.bias is None else self.down.bias)


class SwiGLU(Gated):
    """Gated by swish: W3 (swish(W1 x) * W2 x), at two thirds of the width (Shazeer, 2020).

    Paper: GLU Variants Improve Transformer, Shazeer, 2020.
    """

    tensor_parallel: ClassVar = BY_HIDDEN_UNIT

    def gate(self, x: Tensor) -> Tensor:
        """The gate's product W1 x (..., width) to the same shape."""
        return F.silu(x)

    def formula(self, x: Tensor) -> Tensor:
        """x / (1 + e^-x), (..., width) to the same shape."""
        return x / (1 + torch.exp(-x))


class GEGLU(Gated):
    """Gated by GELU: W3 (gelu(W1 x) * W2 x), at two thirds of the width (Shazeer, 2020).

    ``approximate`` is torch's: tanh for x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, as in T5 1.1.

    Paper: GLU Variants Improve Transformer, Shazeer, 2020.
    """

    tensor_parallel: ClassVar = BY_HIDDEN_UNIT

    def __init__(
        self,
        dim: int,
        hidden: int,
        bias: bool = False,
        multiple_of: int = 1,
        approximate: Literal["none", "tanh"] = "none",
    ):
        """
        Args:
            dim: width of a token.
            hidden: budget: the width of an MLP with as many parameters.
            bias: give the matrices a bias.
            multiple_of: round the width up to a multiple of it.
            approximate: GELU's exact form (none), or by tanh as in T5 1.1.
        """
        super().__init__(dim, hidden, bias, multiple_of)
        self.approximate = approximate

    def gate(self, x: Tensor) -> Tensor:
        """The gate's product W1 x (..., width) to the same shape."""
        return F.gelu(x, approximate=self.approximate)

    def formula(self, x: Tensor) -> Tensor:
        """x Phi(x) or its tanh approximation, (..., width) to the same shape."""
        if self.approximate == "tanh":
            return x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2
        return x * (1 + torch.erf(x / 2**0.5)) / 2


class ReGLU(Gated):
    """Gated by ReLU: W3 (relu(W1 x) * W2 x), at two thirds of the width (Shazeer, 2020).

    Paper: GLU Variants Improve Transformer, Shazeer, 2020.
    """

    tensor_parallel: ClassVar = BY_HIDDEN_UNIT

    def gate(self, x: Tensor) -> Tensor:
        """The gate's product W1 x (..., width) to the same shape."""
        return F.relu(x)

    def formula(self, x: Tensor) -> Tensor:
        """max(x, 0), (..., width) to the same shape."""
        return torch.where(x > 0, x, 0.0)


class Bilinear(Gated):
    """Gated without an activation: W3 (W1 x * W2 x), at two thirds of the width (Shazeer, 2020).

    Paper: GLU Variants Improve Transformer, Shazeer, 2020.
    """

    tensor_parallel: ClassVar = BY_HIDDEN_UNIT

    def gate(self, x: Tensor) -> Tensor:
        """The gate's product W1 x (..., width) to the same shape."""
        return x

    def formula(self, x: Tensor) -> Tensor:
        """x itself, (..., width)."""
        return x


class MoE(FFN):
    """A mixture of experts: each token is computed by the few that a router likes best (Jiang et al., 2024).

    The result is the sum of p_e(x) expert_e(x) over the ``top_k`` likeliest, p renormalised over them (``normalize``).
    Every token reaches exactly ``top_k`` experts: there is no capacity, so none is dropped. The auxiliary loss is
    aux_loss_weight * experts * sum_e (share of choices for e) * (mean probability of e), aux_loss_weight at uniform
    load (Fedus et al., 2021). ``load`` counts the tokens each expert has served in training.

    Paper: Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer, Shazeer et al., 2017.
    """

    real_tokens = True
    load: Tensor

    def __init__(
        self,
        dim: int,
        hidden: int,
        experts: int = 8,
        top_k: int = 2,
        aux_loss_weight: float = 0.01,
        expert: Callable[[int, int], FFN] = SwiGLU,
        normalize: bool = True,
        router_bias: bool = False,
    ):
        """
        Args:
            dim: width of a token.
            hidden: budget of one expert.
            experts: number of experts.
            top_k: experts that compute each token.
            aux_loss_weight: weight of the loss that spreads tokens evenly over experts.
            expert: the feed-forward of an expert.
            normalize: divide the probabilities of a token's experts by their sum.
            router_bias: give the router a bias.
        """
        super().__init__(dim, hidden)
        if not 1 <= top_k <= experts:
            raise UsageError(f"ffn MoE sends each token to top_k={top_k} of experts={experts}: at most all of them.")
        at_most(MOST_MODULES, experts=experts)
        at_least(0, aux_loss_weight=aux_loss_weight)
        self.top_k, self.aux_loss_weight, self.copies = top_k, aux_loss_weight, experts
        self.router, self.normalize = nn.Linear(dim, experts, bias=router_bias), normalize
        self.experts = nn.ModuleList(expert(dim, hidden) for _ in range(experts))
        self.register_buffer("load", torch.empty(experts, dtype=torch.long), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """No token is counted yet; set here so that a model built on the meta device starts at zero too."""
        self.load.zero_()

    def route(self, tokens: Tensor) -> Tensor:
        """Probability of each expert, (tokens, experts), in at least float32: tiny differences decide."""
        wide = torch.promote_types(tokens.dtype, torch.float32)
        device = tokens.device.type
        with torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext():
            bias = None if self.router.bias is None else self.router.bias.to(wide)
            return F.linear(tokens.to(wide), self.router.weight.to(wide), bias).softmax(-1)

    def served(self, choice: Tensor, number: int) -> tuple[Tensor, ...]:
        """Rows and slots in which ``choice``, (tokens, top_k), names an expert.

        On the meta device, which holds no numbers, all tokens go to the first experts: as many products as anywhere.
        """
        if choice.is_meta:
            rows = torch.arange(len(choice) if number < self.top_k else 0, device=choice.device)
            return rows, torch.full_like(rows, number)
        return (choice == number).nonzero(as_tuple=True)

    def select(self, probability: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of each token's experts, (tokens, top_k) each, for probabilities (tokens, experts)."""
        weight, choice = probability.topk(self.top_k, -1)
        return weight / weight.sum(-1, keepdim=True) if self.normalize else weight, choice

    def compute_shared(self, tokens: Tensor) -> Tensor:
        """What experts give that compute every token (tokens, dim): zeros, for there are none."""
        return torch.zeros_like(tokens)

    def balance(self, probability: Tensor, count: Tensor) -> Tensor:
        """The auxiliary loss for probabilities (tokens, experts) and the number of tokens of each expert."""
        share = count / count.sum().clamp(min=1)
        mean = probability.mean(0) if len(probability) else probability.sum(0)
        return self.aux_loss_weight * len(self.experts) * (share * mean).sum()

    def forward(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape; in training it leaves a loss and counts ``load``."""
        tokens = x.reshape(-1, self.dim)
        probability = self.route(tokens)
        weight, choice = self.select(probability)
        weight, out = weight.to(x.dtype), self.compute_shared(tokens)
        for number, expert in enumerate(self.experts):
            row, slot = self.served(choice, number)
            # an expert without tokens still runs, on none: its gradients are zeros and not missing
            out = out.index_add(0, row, expert(tokens[row]).to(x.dtype) * weight[row, slot, None])
        if self.training:
            count = F.one_hot(choice, len(self.experts)).sum((0, 1))
            self.load += count
            leave_loss(self, self.balance(probability, count))
        return out.view_as(x)

    def reference(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape, by the formula in plain steps."""
        rows = []
        for token in x.reshape(-1, self.dim):
            bias = 0 if self.router.bias is None else self.router.bias
            probability = (self.router.weight @ token + bias).softmax(-1)
            best = probability.argsort(descending=True)[: self.top_k]
            share = probability[best] / (probability[best].sum() if self.normalize else 1)
            rows.append(sum(p * self.experts[int(e)](token[None])[0] for p, e in zip(share, best, strict=True)))
        return torch.stack(rows).view_as(x)


class OwnsLoss(Protocol):
    """A part that leaves a loss of its own, weighted, in ``aux_loss`` after a forward in training."""

    aux_loss: Tensor | None
    aux_calls: int  # whose mean it is


def leave_loss(part: OwnsLoss, loss: Tensor) -> None:
    """Leave a loss () of this call of a part: ``aux_loss`` is the mean over its calls since it was taken."""
    earlier = part.aux_loss
    part.aux_calls = 1 if earlier is None else part.aux_calls + 1
    part.aux_loss = loss if earlier is None else earlier + (loss - earlier) / part.aux_calls


@contextmanager
def losses_apart(net: nn.Module) -> Iterator[list[OwnsLoss]]:
    """Within, no part of a net has a loss but those that it leaves there; afterwards each has its old one."""
    owners = feeds(net)
    before = [(owner.aux_loss, getattr(owner, "aux_calls", 0)) for owner in owners]
    pop_aux_losses(owners)
    try:
        yield owners
    finally:
        for owner, (loss, calls) in zip(owners, before, strict=True):
            owner.aux_loss, owner.aux_calls = loss, calls


def feeds(net: nn.Module) -> list[OwnsLoss]:
    """The parts of a net that may have losses of their own: feed-forwards, and those with an attribute ``aux_loss``."""
    return [cast(OwnsLoss, module) for module in net.modules() if hasattr(module, "aux_loss")]


def pop_aux_losses(feeds: Iterable[OwnsLoss]) -> list[Tensor]:
    """The losses that parts left since they were taken, one number each, removed from them."""
    losses = []
    for feed in feeds:
        if feed.aux_loss is not None:
            losses.append(feed.aux_loss)
            feed.aux_loss = None
    return losses


def aux_losses(net: nn.Module) -> list[Tensor]:
    """The losses that the parts of a net left since they were taken, one number each, removed from them."""
    return pop_aux_losses(feeds(net))
