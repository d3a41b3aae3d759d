"""Wrong kernels: their numbers, their random numbers, their memory, and what they say of themselves."""

from dataclasses import replace

import numpy
import torch
import torch.nn.functional as F

from faults import planted
from faults.backends import Steps
from zoo.errors import UsageError
from zoo.parts.backend import Backend, Naive, Tiled
from zoo.parts.pattern import Pattern


@planted(values="away from Naive")
class SoftmaxOverQueries(Steps):
    """The softmax runs over queries."""

    def softmax(self, scores, mask):
        if mask is None:
            return scores.softmax(-2)
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-2).masked_fill(~mask, 0.0)


@planted(large_scores="subtract the maximum first")
class NoMaximum(Steps):
    """exp(score) / sum, without subtracting the maximum."""

    def softmax(self, scores, mask):
        weights = scores.exp() if mask is None else scores.exp() * mask
        total = weights.sum(-1, keepdim=True)
        return weights / total.masked_fill(total == 0, 1.0)


@planted(values="not (B, H, T, D)")
class HeadsTransposed(Steps):
    """The result is (B, T, H, D), as fused kernels of other libraries have it."""

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        return super().__call__(q, k, v, pattern, dropout, scale).transpose(1, 2)


@planted(values="away from Naive", evaluation_is_deterministic="is on in eval")
class DropsAlways(Steps):
    """Weights are dropped at a rate of its own."""

    def drop(self, weights, dropout):
        return F.dropout(weights, dropout or 0.1)


@planted(dropout="nothing is dropped")
class DropsNever(Steps):
    """Dropout is claimed and ignored."""

    def drop(self, weights, dropout):
        return weights


@planted(dropout="divide what is kept")
class DropsWithoutRescaling(Steps):
    """What is kept is not divided by 1 - rate."""

    def drop(self, weights, dropout):
        return F.dropout(weights, dropout) * (1 - dropout)


@planted(dropout="draw from torch's generator")
class DropsByNumpy(Steps):
    """What is dropped is drawn by numpy."""

    def drop(self, weights, dropout):
        mask = numpy.random.default_rng(None).random(weights.shape) >= dropout
        return weights * torch.as_tensor(mask, device=weights.device) / (1 - dropout)


@planted(dropout="drops the same weights each time")
class DropsTheSame(Steps):
    """A generator made in each call drops the same weights each time."""

    def drop(self, weights, dropout):
        mask = torch.rand(weights.shape, generator=torch.Generator().manual_seed(0)).to(weights.device) >= dropout
        return weights * mask / (1 - dropout)


@planted(dropout="drop whole keys")
class DropsFeatures(Steps):
    """Dropout falls on the result instead of the weights."""

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        return F.dropout(super().__call__(q, k, v, pattern, 0.0, scale), dropout)


@planted(dropout="in front of the softmax")
class DropsScores(Steps):
    """Scores are set to zero before the softmax, instead of weights after it."""

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        return super().__call__(F.dropout(q, dropout) * (1 - dropout), k, v, pattern, 0.0, scale)


@planted(values="away from Naive")
class RemembersMask(Steps):
    """The mask of the first call of a shape is kept, whatever the next one asks for."""

    def __init__(self):
        self.masks = {}

    def mask(self, pattern, query, key):
        return self.masks.setdefault((len(query), len(key)), super().mask(pattern, query, key))


@planted(low_precision="more than twice Naive's")
class SoftmaxInHalf(Steps):
    """The softmax runs in the dtype of the queries."""

    def softmax(self, scores, mask):
        return super().softmax(scores.to(torch.bfloat16) if self.half else scores, mask)

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        self.half = q.dtype in (torch.bfloat16, torch.float16)
        return super().__call__(q, k, v, pattern, dropout, scale)


@planted(low_precision="end with .to(v.dtype)")
class ReturnsFloat32(Steps):
    """The result is as wide as the weights."""

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        return super().__call__(q, k, v, pattern, dropout, scale).to(torch.promote_types(q.dtype, torch.float32))


@planted(leaves_inputs_alone="changed in place")
class ScalesInPlace(Steps):
    """Queries are scaled in place."""

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        with torch.no_grad():
            q.mul_(self.scale(q, scale))
        return super().__call__(q, k, v, pattern, dropout, 1.0)


@planted(leaves_inputs_alone="view size")
class NeedsContiguous(Steps):
    """Heads are flattened by view, which transposed queries do not allow."""

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        q = q.view(-1, *q.shape[2:]).view(q.shape)
        return super().__call__(q, k, v, pattern, dropout, scale)


@planted(dropout="causal is lost")
class LosesThePatternWhileDropping(Steps):
    """Where weights are dropped, nothing is hidden."""

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        return super().__call__(q, k, v, Pattern() if dropout else pattern, dropout, scale)


@planted(dropout="valid is lost")
class LosesPaddingWhileDropping(Steps):
    """Where weights are dropped, padding is not hidden."""

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        return super().__call__(q, k, v, replace(pattern, valid=None) if dropout else pattern, dropout, scale)


@planted(claims="supports names rope")
class ClaimsNewFeature(Steps):
    """It claims a feature that no pattern has."""

    supports = Backend.supports | {"rope"}


class Modest(Steps):
    """The textbook, which refuses what it does not claim."""

    supports = frozenset({"causal", "valid", "dropout"})

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        if pattern.needs - self.supports:
            raise UsageError(f"cannot lower {', '.join(sorted(pattern.needs - self.supports))}")
        return super().__call__(q, k, v, pattern, dropout, scale)


@planted(refusal="Refuse it, or claim it")
class LosesWhatItDoesNotClaim(Modest):
    """What it does not claim is dropped from the pattern without a word."""

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        return super().__call__(q, k, v, replace(pattern, window=None, bias=None, sparse=None), dropout, scale)


@planted(refusal="raise UsageError that")
class RefusesByAssertion(Modest):
    """What it does not claim fails an assertion."""

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        assert not pattern.needs - self.supports
        return super().__call__(q, k, v, pattern, dropout, scale)


@planted(memory_claim="declared linear")
class NotLinear(Naive):
    """It declares linear memory and keeps all weights."""

    memory = "linear"


@planted(moves_with_the_module=".item()")
class LooksAtMask(Steps):
    """It asks whether any key is hidden, so that a GPU waits in every layer."""

    def softmax(self, scores, mask):
        return super().softmax(scores, None if mask is None or bool(mask.all()) else mask)


@planted(gradients="the gradient of")
class WeightsDetached(Steps):
    """Weights have no gradient: only values learn."""

    def drop(self, weights, dropout):
        return super().drop(weights.detach(), dropout)


@planted(copies="deepcopy")
class KeepsWeights(Steps):
    """It keeps the last weights to look at, with their graph."""

    def drop(self, weights, dropout):
        self.last = weights
        return super().drop(weights, dropout)


@planted(long_sequences="away from Naive")
class LosesLastTile(Tiled):
    """Keys behind the last whole tile are not seen."""

    def _reach(self, pattern, first, last, keys):
        tiles = super()._reach(pattern, first, last, keys)
        return range(tiles.start, max(tiles.start + 1, min(tiles.stop, keys // self.tile)))


@planted(long_sequences="away from Naive")
class TilesWithoutShrinking(Tiled):
    """The sum of earlier tiles is not scaled to the new maximum."""

    def _row(self, lse, pattern, first, begin, dropout, scale, q, like, *tiles):
        query = torch.arange(q.size(-2), device=q.device) + first
        total, out, half = 0, 0, len(tiles) // 2
        for number, (k, v) in enumerate(zip(tiles[:half], tiles[half:], strict=True)):
            key = torch.arange(k.size(-2), device=q.device) + pattern.start + (begin + number) * self.tile
            score = self._score(q.double(), k.double(), pattern, query, key, scale)
            weight = (score - score.amax(-1, keepdim=True).clamp(min=-1e300)).exp()
            total, out = total + weight.sum(-1, keepdim=True), out + weight @ v.double()
        return (out / total.masked_fill(total == 0, 1)).to(like.dtype)
