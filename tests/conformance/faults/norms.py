"""Wrong norms."""

import torch
import torch.nn.functional as F
from torch import nn

from faults import planted
from zoo.parts.norm import LayerNorm, Norm, RMSNorm


@planted(token_by_token="work on the last dimension alone", any_width="Dimension out of range")
class AcrossTokens(RMSNorm):
    """It normalises over the second last dimension, tokens, instead of features."""

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide * (wide.square().mean(-2, keepdim=True) + self.eps).rsqrt() * self.weight).to(x.dtype)


@planted(token_by_token="work on the last dimension alone", any_width="normalise dim=-1")
class WholeSequence(LayerNorm):
    """Mean and variance are those of a whole sequence, as in a norm for images."""

    def forward(self, x):
        over = (-2, -1) if x.dim() > 1 else (-1,)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        unit = (wide - wide.mean(over, keepdim=True)) / (wide.var(over, correction=0, keepdim=True) + self.eps).sqrt()
        return (unit * self.weight + self.bias).to(x.dtype)


@planted(batch_independence="rows must not mix")
class BatchStatistics(LayerNorm):
    """Mean and variance of a feature are those of the batch."""

    def forward(self, x):
        flat = x.reshape(-1, self.dim)
        mean, var = flat.mean(0), flat.var(0, correction=0)
        return (x - mean) / (var + self.eps).sqrt() * self.weight + self.bias


@planted(no_state_between_calls="keep nothing between calls")
class RunningMean(LayerNorm):
    """Training moves a running mean that is subtracted."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__(dim, eps)
        self.register_buffer("mean", torch.zeros(dim))

    def reset_parameters(self):
        super().reset_parameters()
        if hasattr(self, "mean"):
            nn.init.zeros_(self.mean)

    def forward(self, x):
        if self.training and x.numel():
            with torch.no_grad():
                self.mean.lerp_(x.reshape(-1, self.dim).mean(0), 0.1)
        return super().forward(x - self.mean)


@planted(no_state_between_calls="keep nothing between calls")
class ScaledByFirstBatch(RMSNorm):
    """The first batch that it sees sets its scale, as data-dependent initialisations do."""

    size = None

    def forward(self, x):
        if self.size is None and x.numel():
            self.size = x.detach().square().mean().sqrt()
        return super().forward(x) / (1 if self.size is None else self.size)


@planted(reference="away from its own formula", extreme_sizes="eps inside the root")
class EpsOutsideTheRoot(RMSNorm):
    """eps is added to the root instead of under it."""

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide / (wide.square().mean(-1, keepdim=True).sqrt() + self.eps) * self.weight).to(x.dtype)


@planted(extreme_sizes="eps inside the root")
class NoEps(RMSNorm):
    """There is no eps: a token of zeros is divided by zero."""

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide * wide.square().mean(-1, keepdim=True).rsqrt() * self.weight).to(x.dtype)


@planted(reference="away from its own formula")
class UnbiasedVariance(LayerNorm):
    """The variance divides by D - 1, as torch's var does by default."""

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        var = wide.var(-1, keepdim=True, correction=min(1, self.dim - 1))
        unit = (wide - wide.mean(-1, keepdim=True)) / (var + self.eps).sqrt()
        return (unit * self.weight + self.bias).to(x.dtype)


@planted(invariance="ignore a shift", reference="away from its own formula")
class NoMean(LayerNorm):
    """The mean is not subtracted, and it still declares that it ignores a shift."""

    def forward(self, x):
        return F.rms_norm(x, (self.dim,), self.weight, self.eps) + self.bias


@planted(far_from_zero="subtract the mean first")
class VarianceByDifference(LayerNorm):
    """The variance is E[x²] − E[x]², which loses its digits when the mean is large."""

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = wide.mean(-1, keepdim=True)
        var = (wide.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
        return ((wide - mean) * (var + self.eps).rsqrt() * self.weight + self.bias).to(x.dtype)


@planted(extreme_sizes="overflow: square in float32")
class SquaresInHalf(RMSNorm):
    """Squares are taken in the dtype of the input, and overflow float16 from 256 on."""

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


@planted(gradients_are_right="detached", reference="gradient is")
class DetachedStatistics(RMSNorm):
    """The root mean square is computed without a graph."""

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt().detach()
        return (wide * scale * self.weight).to(x.dtype)


@planted(inputs_are_left_alone="changed in place")
class SubtractsInPlace(LayerNorm):
    """The mean is subtracted from x itself."""

    def forward(self, x):
        with torch.no_grad():
            x.sub_(x.mean(-1, keepdim=True))
        return super().forward(x)


@planted(signals_keep_their_size="scale the initial weights")
class StartsAtZero(RMSNorm):
    """Its weight starts at zero, and it is not added to one."""

    def reset_parameters(self):
        nn.init.zeros_(self.weight)


@planted(signals_keep_their_size="scale the initial weights")
class StartsHuge(RMSNorm):
    """It multiplies by the square root of dim, as norms of embeddings do."""

    def reset_parameters(self):
        nn.init.constant_(self.weight, self.dim**0.5)


@planted(far_from_zero="under autocast")
class MeansByProduct(LayerNorm):
    """Means are matrix products with ones / D, which autocast computes in bfloat16."""

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        ones = torch.full((self.dim, self.dim), 1 / self.dim, dtype=wide.dtype, device=x.device)
        centred = wide - wide @ ones
        return (centred * (centred.square() @ ones + self.eps).rsqrt() * self.weight + self.bias).to(x.dtype)


@planted(any_width="IndexError", parent=RMSNorm)
class NeedsThreeDimensions(Norm):
    """It normalises dimension 2 by its number, so that only (B, T, dim) works."""

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__(dim, eps)
        self.weight = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.ones_(self.weight)

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide * (wide.square().mean(2, keepdim=True) + self.eps).rsqrt() * self.weight).to(x.dtype)
