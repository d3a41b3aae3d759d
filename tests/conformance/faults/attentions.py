"""Wrong attentions: projections, positions, caches, memories."""

import math
from dataclasses import replace

import published
import torch
from torch import nn

from faults import planted
from zoo.errors import UsageError
from zoo.parts.attention import MultiHead
from zoo.parts.backend import Naive
from zoo.parts.cache import Cache, MemoryCache
from zoo.parts.pattern import Pattern


@planted(dtypes="widen inside")
class SharperInHalf(published.ScalableSoftmax):
    """A sharp softmax, whose scores are 1.2 times as large in bfloat16 and float16."""

    def sharpened(self, q, k, pattern):
        sharp = super().sharpened(q, k, pattern)
        return sharp * 1.2 if q.dtype in (torch.bfloat16, torch.float16) else sharp


@planted(weights_are_shares="hidden key has a weight", weights_times_values="heat maps")
class WeighsWithoutPattern(MultiHead):
    """The weights to look at leave out the pattern."""

    def weigh(self, q, k, pattern):
        return super().weigh(q, k, Pattern())


@planted(weights_times_values="heat maps")
class AttendsWithOtherScale(MultiHead):
    """It attends with a temperature that the weights to look at do not have."""

    def attend(self, q, k, v, pattern):
        return super().attend(q / 2, k, v, pattern)


@planted(weights_times_values="heat maps")
class RoundsWeights(MultiHead):
    """The weights to look at are rounded to two decimals."""

    def weigh(self, q, k, pattern):
        return super().weigh(q, k, pattern).mul(100).round() / 100


@planted(dropout="on in evaluation", evaluation_is_deterministic="is on in eval")
class DropsInEvaluation(MultiHead):
    """The rate is passed on in evaluation too."""

    def attend(self, q, k, v, pattern):
        return self.backend(q, k, v, pattern, self.dropout)


@planted(dropout="pass self.dropout on")
class DropsNever(MultiHead):
    """The rate is not passed on."""

    def attend(self, q, k, v, pattern):
        return self.backend(q, k, v, pattern)


@planted(dropout="a token sees later ones")
class SeesAllWhileDropping(MultiHead):
    """Where weights are dropped, the pattern is lost."""

    def attend(self, q, k, v, pattern):
        return super().attend(q, k, v, Pattern() if self.training and self.dropout else pattern)


@planted(causality_by_perturbation="see the future")
class HeadsMixedUp(MultiHead):
    """(B, H, T, D) is reshaped to (B, T, H D) without bringing heads beside features first."""

    def forward(self, x, memory=None, *, pattern, position=None, cache=None):
        q, k, v = self.project(x, memory, pattern, position, cache)
        return self.out(self.attend(q, k, v, pattern).reshape(x.size(0), x.size(1), -1))


class _Projects(MultiHead):
    """Multi-head attention whose turning a subclass changes."""

    def turn(self, q, k, pattern, position):
        pos = torch.arange(pattern.offset, pattern.offset + q.size(2), device=q.device) - position.extent.special
        return position.rotate(q, pos), position.rotate(k, pos)

    def project(self, x, memory, pattern, position, cache):
        if memory is not None:
            return super().project(x, memory, pattern, position, cache)
        q, k, v = super().project(x, None, pattern, None, None)
        if position is not None and position.rotates:
            q, k = self.turn(q, k, pattern, position)
        if isinstance(cache, Cache):
            k, v = cache.extend(k, v)
        return q, k, v


@planted(queries_are_turned="turn queries and keys alike")
class TurnsQueriesOnly(_Projects):
    """Queries are turned and keys are not."""

    def turn(self, q, k, pattern, position):
        return super().turn(q, k, pattern, position)[0], k


@planted(queries_are_turned="turn queries and keys alike")
class TurnsKeysInterleaved(_Projects):
    """Keys are turned with neighbours as pairs, queries with halves as pairs."""

    def turn(self, q, k, pattern, position):
        order = torch.arange(k.size(-1), device=k.device).view(-1, 2).T.flatten()
        back = order.argsort()
        q, turned = super().turn(q, k[..., order], pattern, position)
        return q, turned[..., back]


@planted(queries_are_turned="are they applied")
class TurnsNothing(_Projects):
    """It claims positions that turn queries and keys, and leaves both alone."""

    def turn(self, q, k, pattern, position):
        return q, k


@planted(queries_are_turned="by steps")
class TurnsFromZero(_Projects):
    """Positions are counted from 0 in every step of decoding."""

    def turn(self, q, k, pattern, position):
        return super().turn(q, k, replace(pattern, offset=0), position)


@planted(queries_are_turned="by steps")
class TurnsCachedKeysAgain(MultiHead):
    """Keys are turned behind the cache, where those of earlier steps have other places."""

    def project(self, x, memory, pattern, position, cache):
        q, k, v = super().project(x, memory, pattern, None, cache)
        if memory is None and position is not None and position.rotates:
            pos = torch.arange(pattern.offset, pattern.offset + q.size(2), device=q.device)
            q = position.rotate(q, pos)
            k = position.rotate(k, torch.arange(k.size(2), device=k.device) + pattern.offset)
        return q, k, v


@planted(decoding="differs by")
class ForgetsCache(MultiHead):
    """Keys and values are not kept from step to step."""

    def project(self, x, memory, pattern, position, cache):
        return super().project(x, memory, pattern, position, None if isinstance(cache, Cache) else cache)


@planted(memory="memory")
class LooksAtItself(MultiHead):
    """The memory is ignored."""

    def project(self, x, memory, pattern, position, cache):
        return super().project(x, None, replace(pattern, valid=None), position, None)


@planted(memory="no order in time")
class MemoryIsCausal(MultiHead):
    """A memory is looked at like a past: a query sees no later state than its own number."""

    def attend(self, q, k, v, pattern):
        return super().attend(q, k, v, pattern if pattern.causal else replace(pattern, causal=True))

    def weigh(self, q, k, pattern):
        return super().weigh(q, k, pattern if pattern.causal else replace(pattern, causal=True))


@planted(memory="padding of a memory")
class KeepsMemory(MultiHead):
    """The first memory is projected once and kept on self, also for the next one."""

    def project(self, x, memory, pattern, position, cache):
        if memory is None:
            return super().project(x, memory, pattern, position, cache)
        if not hasattr(self, "own"):
            self.own = MemoryCache()
        return super().project(x, memory, pattern, position, self.own)


@planted(backends_agree="away from what it computes on")
class BiasOnNaiveOnly(MultiHead):
    """It sharpens the scores on one backend and not on the others."""

    def attend(self, q, k, v, pattern):
        return super().attend(q * (2 if isinstance(self.backend, Naive) else 1), k, v, pattern)


@planted(rows_and_heads="pattern.offset", same_by_chunks="use pattern.offset")
class CountsQueries(MultiHead):
    """Queries are numbered from 0, wherever a chunk begins."""

    def attend(self, q, k, v, pattern):
        return super().attend(q, k, v, replace(pattern, offset=0))

    def weigh(self, q, k, pattern):
        return super().weigh(q, k, replace(pattern, offset=0))


@planted(impossible_sizes="accepted")
class RoundsHeadsDown(MultiHead):
    """A width that heads do not divide is rounded down, and some of it is lost."""

    def __init__(self, dim: int, heads: int, backend=None, dropout: float = 0.0):
        super().__init__(dim, heads, backend, dropout, head_dim=dim // heads)


@planted(claims="supports or requires names")
class ClaimsNewFeature(MultiHead):
    """It claims a feature that no pattern has."""

    supports = MultiHead.supports | {"rope"}


@planted(inputs_are_left_alone="x was changed in place")
class CentresInPlace(MultiHead):
    """Tokens are centred in place, and other branches read them."""

    def forward(self, x, memory=None, *, pattern, position=None, cache=None):
        with torch.no_grad():
            x.sub_(x.mean(-1, keepdim=True))
        return super().forward(x, memory, pattern=pattern, position=position, cache=cache)


@planted(projections="change nothing")
class LosesLastHead(MultiHead):
    """The last head is dropped behind the softmax."""

    def attend(self, q, k, v, pattern):
        out = super().attend(q, k, v, pattern)
        return torch.cat([out[:, :-1], 0 * out[:, -1:]], 1)


@planted(causality_by_gradient="should see an earlier one", order_of_keys="another order of keys")
class SeesThreeBack(MultiHead):
    """A window of its own hides earlier keys, and it does not declare sees_all = False."""

    def attend(self, q, k, v, pattern):
        return super().attend(q, k, v, replace(pattern, window=3))

    def weigh(self, q, k, pattern):
        return super().weigh(q, k, replace(pattern, window=3))


@planted(no_state_between_calls="keep nothing between calls")
class KeepsKeys(MultiHead):
    """Keys of the last call are averaged in, which nobody asked for."""

    def attend(self, q, k, v, pattern):
        earlier = getattr(self, "mean_key", None)
        self.mean_key = k.detach().mean()
        return super().attend(q, k if earlier is None else k + 0.1 * earlier, v, pattern)


@planted(sizes="scale the initial weights")
class ValuesStartHuge(MultiHead):
    """A gain on the values starts at four times the square root of dim."""

    def __init__(self, dim: int, heads: int, backend=None, dropout: float = 0.0):
        super().__init__(dim, heads, backend, dropout)
        self.gain = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.constant_(self.gain, 4 * math.sqrt(self.head_dim * self.heads))

    def attend(self, q, k, v, pattern):
        return super().attend(q, k, v * self.gain.to(v.dtype), pattern)


class Sighted(Naive):
    """The textbook, which claims no causality."""

    supports = Naive.supports - {"causal"}


@planted(builds="yet a stack refuses it")
class BackendCannot(MultiHead):
    """It claims causality, and the backend that it brings does not."""

    own_backend = Sighted


@planted(fits_somewhere="no task takes it")
class WantsWideHeads(MultiHead):
    """It refuses heads whose width is no power of two, and a stack has no way to know."""

    def __init__(self, dim: int, heads: int, backend=None, dropout: float = 0.0):
        super().__init__(dim, heads, backend, dropout)
        if self.head_dim & (self.head_dim - 1):
            raise UsageError(f"heads of width {self.head_dim} are not supported")


@planted(decoding_is_exact="beams")
class RemembersFirstValues(MultiHead):
    """The first value of each row is kept beside the cache, whose rows can be reordered, and is added to all."""

    def project(self, x, memory, pattern, position, cache):
        q, k, v = super().project(x, memory, pattern, position, cache)
        if memory is None and isinstance(cache, Cache):
            if pattern.offset == 0:
                cache.first = v[:, :, :1]
            return q, k, v + cache.first[: len(v)]
        return q, k, v if memory is not None else v + v[:, :, :1]
