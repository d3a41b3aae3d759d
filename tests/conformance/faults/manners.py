"""Mistakes that a part of any kind can have, planted in the smallest."""

import torch
import torch.nn.functional as F
from torch import nn

from faults import planted
from zoo.parts.ffn import MLP
from zoo.parts.norm import LayerNorm, RMSNorm


@planted(dtypes="end with .to(x.dtype)")
class ReturnsFloat32(RMSNorm):
    """It widens bfloat16 to float32 and does not narrow the result."""

    def forward(self, x):
        return super().forward(x.to(torch.promote_types(x.dtype, torch.float32)))


@planted(dtypes="end with .to(x.dtype)")
class ReturnsFloat64(RMSNorm):
    """A constant in float64 makes the result float64."""

    def forward(self, x):
        return super().forward(x) * torch.ones(self.dim, dtype=torch.float64, device=x.device)


@planted(every_parameter_learns="DDP stops at an unused parameter", trains_language="gradient reaches")
class UnusedBias(RMSNorm):
    """It has a bias and does not add it."""

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__(dim, eps)
        self.bias = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self):
        super().reset_parameters()
        if hasattr(self, "bias"):
            nn.init.zeros_(self.bias)


@planted(trains_language="gradient reaches", trains_vision="gradient reaches")
class FrozenWeight(RMSNorm):
    """Its weight is a parameter that gets no gradient."""

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__(dim, eps)
        self.weight.requires_grad_(False)


@planted(initialisation="draw it there")
class ForgetsToReset(LayerNorm):
    """``reset_parameters`` sets the weight and forgets the bias."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__(dim, eps)
        nn.init.zeros_(self.bias)

    def reset_parameters(self):
        nn.init.ones_(self.weight)


@planted(moves_with_the_module="a tensor stays behind")
class LooseTensor(RMSNorm):
    """A constant is a plain tensor on self, and stays on the CPU when the module moves."""

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__(dim, eps)
        self.gain = torch.linspace(0.5, 1.5, dim)

    def forward(self, x):
        return super().forward(x) * self.gain.to(x.dtype)


@planted(copies="Keep no lambda on self")
class LambdaOnSelf(RMSNorm):
    """It keeps a function without a name."""

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__(dim, eps)
        self.widen = lambda x: x.to(torch.promote_types(x.dtype, torch.float32))

    def forward(self, x):
        return super().forward(self.widen(x)).to(x.dtype)


@planted(moves_with_the_module=".item()")
class HostSync(RMSNorm):
    """It looks at the numbers to decide what to do, so a GPU waits in every layer."""

    def forward(self, x):
        return super().forward(x / 2 if x.numel() and x.abs().max().item() > 1e6 else x)


@planted(compiles="breaks its graph")
class Prints(RMSNorm):
    """It prints in forward."""

    def forward(self, x):
        print(end="")
        return super().forward(x)


@planted(documentation="has no docstring")
class Undocumented(RMSNorm):
    pass


@planted(documentation="needs a type")
class OptionWithoutType(RMSNorm):
    """An option has no type."""

    def __init__(self, dim: int, eps=1e-6):
        super().__init__(dim, eps)


@planted(documentation="a recipe cannot hold")
class DefaultOfTensor(RMSNorm):
    """The default of an option cannot be written into a recipe."""

    def __init__(self, dim: int, eps: object = torch.tensor(1e-6)):
        super().__init__(dim, float(eps))


@planted(documentation="needs a default")
class NeedsAnOption(RMSNorm):
    """An option has no default."""

    def __init__(self, dim: int, groups: int):
        super().__init__(dim)


@planted(unknown_options_are_refused="nobody reads", documentation="name every option")
class TakesAnything(RMSNorm):
    """It takes any keyword and drops it, typing errors included."""

    def __init__(self, dim: int, eps: float = 1e-6, **kwargs: float):
        super().__init__(dim, eps)


@planted(evaluation_is_deterministic="noise is on in eval")
class NoisyInEvaluation(RMSNorm):
    """It adds noise in evaluation too."""

    def forward(self, x):
        return super().forward(x) + 1e-3 * torch.randn_like(x)


@planted(evaluation_is_deterministic="draws random numbers")
class DrawsInEvaluation(RMSNorm):
    """It draws a number that it needs in training only."""

    def forward(self, x):
        noise = 0.1 * torch.randn_like(x)
        return super().forward(x + noise if self.training else x)


@planted(strided_inputs="view")
class FlattensByView(RMSNorm):
    """It flattens by view, which a transposed input does not allow."""

    def forward(self, x):
        return super().forward(x.view(-1, self.dim)).view(x.shape)


@planted(shapes="came back as")
class Squeezes(RMSNorm):
    """It drops dimensions of size one."""

    def forward(self, x):
        return super().forward(x).squeeze(0)


@planted(shapes="recording of gradients changed")
class TurnsOffGradients(RMSNorm):
    """It turns off gradients for its statistics, and not on again."""

    def forward(self, x):
        out = super().forward(x)
        torch.set_grad_enabled(False)
        return out


@planted(evaluation_is_deterministic="draws random numbers")
class SeedsTorch(RMSNorm):
    """It seeds torch's generator in each call, for everyone."""

    def forward(self, x):
        torch.manual_seed(0)
        return super().forward(x)


@planted(no_state_between_calls="default dtype changed")
class SetsDefaultDtype(RMSNorm):
    """It computes constants in float64 by setting torch's default dtype."""

    def forward(self, x):
        torch.set_default_dtype(torch.float64)
        eps = torch.tensor(self.eps)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        out = wide * (wide.square().mean(-1, keepdim=True) + eps.to(wide.dtype)).rsqrt() * self.weight
        return out.to(x.dtype)


@planted(copies="deepcopy")
class KeepsActivations(MLP):
    """It keeps its last hidden units on self to look at, so that it cannot be copied after a pass."""

    def forward(self, x):
        self.hidden_units = F.gelu(self.up(x))
        return self.down(self.hidden_units)


@planted(no_state_between_calls="a call in the middle of another")
class WorksOnSelf(MLP):
    """It keeps its input on self for a later step, where another thread finds it."""

    def forward(self, x):
        self.x = x
        return self.down(F.gelu(self.up(x))) + 0.1 * self.x

    def reference(self, x):
        return super().reference(x) + 0.1 * x
