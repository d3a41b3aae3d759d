"""Mistakes that show only in long sequences, with other options, with a memory, or on average."""

from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from faults import planted
from faults.backends import Steps
from zoo.parts.attention import MultiHead
from zoo.parts.block import PreNorm
from zoo.parts.ffn import MLP
from zoo.parts.norm import LayerNorm, RMSNorm
from zoo.parts.position import ALiBi, RoPE, Sinusoidal

# attention


class _Attends(MultiHead):
    """Multi-head attention whose pattern a subclass changes, where it attends and where it weighs."""

    def changed(self, q, k, pattern):
        return pattern

    def attend(self, q, k, v, pattern):
        return super().attend(q, k, v, self.changed(q, k, pattern))

    def weigh(self, q, k, pattern):
        return super().weigh(q, k, self.changed(q, k, pattern))


@planted(causality_by_perturbation="of 72 tokens")
class SeesTheFutureBeyond32(_Attends):
    """Causality is lost where there are more than 32 queries."""

    def changed(self, q, k, pattern):
        return replace(pattern, causal=pattern.causal and q.size(2) <= 32)


@planted(causality_by_gradient="of 72 tokens")
class SeesTheFutureBeyond64(_Attends):
    """Causality is lost where there are more than 64 queries."""

    def changed(self, q, k, pattern):
        return replace(pattern, causal=pattern.causal and q.size(2) <= 64)


@planted(padding="padding on the left")
class ForgetsPaddingBeyond64(_Attends):
    """Padding is seen where there are more than 64 keys."""

    def changed(self, q, k, pattern):
        return pattern if k.size(2) <= 64 else replace(pattern, valid=None)


@planted(offsets="with a window of 40")
class ForgetsWindowBeyond64(_Attends):
    """The window is lost where there are more than 64 keys."""

    def changed(self, q, k, pattern):
        return pattern if k.size(2) <= 64 else replace(pattern, window=None)


@planted(decoding="one pass")
class CountsTo32(_Attends):
    """A query that comes after 32 others is taken for the 32nd."""

    def changed(self, q, k, pattern):
        return replace(pattern, offset=min(pattern.offset, 32))


@planted(order_of_keys="another order of keys")
class TiresOfKeys(MultiHead):
    """Keys beyond the 64th count a tenth."""

    def weigh(self, q, k, pattern):
        weights = super().weigh(q, k, pattern)
        tired = weights * torch.where(torch.arange(k.size(2), device=k.device) < 64, 1.0, 0.1)
        return tired / tired.sum(-1, keepdim=True).clamp(min=1e-30)

    def attend(self, q, k, v, pattern):
        return self.weigh(q, k, pattern).to(v.dtype) @ v.repeat_interleave(self.heads // self.kv_heads, 1)


class _Keys(MultiHead):
    """Multi-head attention whose queries, keys and values of a memory a subclass changes."""

    def project(self, x, memory, pattern, position, cache):
        q, k, v = super().project(x, memory, pattern, position, cache)
        return (q, k, v) if memory is None else self.looked(q, k, v)

    def looked(self, q, k, v):
        return q, k, v


@planted(memory_is_looked_at_alike="scale")
class MemoryWithoutScale(_Keys):
    """Scores of a memory are not divided by the root of the head width."""

    def looked(self, q, k, v):
        return q * self.head_dim**0.5, k, v


@planted(memory_is_looked_at_alike="scale")
class MemoryScaledTwice(_Keys):
    """Scores of a memory are divided by the head width."""

    def looked(self, q, k, v):
        return q * self.head_dim**-0.5, k, v


@planted(memory_is_looked_at_alike="scale")
class MemoryHeadsShifted(_Keys):
    """Values of a memory belong to the next head."""

    def looked(self, q, k, v):
        return q, k, v.roll(1, 1)


@planted(memory="a memory of 72")
class SeesSixtyStates(_Keys):
    """Of a memory sixty states are seen."""

    def looked(self, q, k, v):
        first = torch.arange(k.size(2), device=k.device)[:, None] < 60
        k, v = (torch.where(first, y, y[:, :, :60].mean(2, keepdim=True)) for y in (k, v))
        return q, k, v


@planted(memory_is_looked_at_alike="with --qk_norm RMSNorm")
class MemoryKeysNotNormalised(MultiHead):
    """Where heads are normalised, those of a memory's keys are not."""

    def _keys(self, memory):
        return self._heads(memory, self.heads, 2 * self.kv_heads).chunk(2, 1)


@planted(weights_times_values="with --kv_heads")
class SharedKeysTiled(MultiHead):
    """Heads that share keys get them tiled (0 1 0 1) instead of repeated in place (0 0 1 1)."""

    def attend(self, q, k, v, pattern):
        k, v = (y.repeat(1, self.heads // self.kv_heads, 1, 1) for y in (k, v))
        return super().attend(q, k, v, pattern)


@planted(causality_by_perturbation="with --kv_heads 1")
class MultiQuerySeesTheFuture(_Attends):
    """With a single key head causality is lost."""

    def changed(self, q, k, pattern):
        return replace(pattern, causal=pattern.causal and k.size(1) > 1)


@planted(every_parameter_learns="with --bias False")
class WithoutBiasWithoutOutput(MultiHead):
    """Without biases the output matrix is not applied."""

    def forward(self, x, memory=None, **options):
        if self.out.bias is not None:
            return super().forward(x, memory, **options)
        q, k, v = self.project(x, memory, options["pattern"], options.get("position"), options.get("cache"))
        return self.attend(q, k, v, options["pattern"]).transpose(1, 2).flatten(2)[..., : x.size(-1)]


@planted(weights_times_values="with --head_dim")
class ScalesByDimOverHeads(MultiHead):
    """It attends with the root of dim / heads, whatever the width of a head is."""

    def attend(self, q, k, v, pattern):
        scale = (self.out.out_features // self.heads) ** -0.5 if self.scale is None else self.scale
        return self.backend(q, k, v, pattern, self.dropout if self.training else 0.0, scale)


@planted(weights_times_values="with --scale")
class IgnoresItsScale(MultiHead):
    """The scale that is an option is not passed on."""

    def attend(self, q, k, v, pattern):
        return self.backend(q, k, v, pattern, self.dropout if self.training else 0.0)


@planted(batch_independence="with --qk_norm RMSNorm")
class NormalisesOverRows(MultiHead):
    """Where heads are normalised, their mean over the batch is subtracted too."""

    def project(self, x, memory, pattern, position, cache):
        q, k, v = super().project(x, memory, pattern, position, cache)
        return (q, k, v) if isinstance(self.query_norm, nn.Identity) else (q - q.mean(0, keepdim=True), k, v)


class _Drops(MultiHead):
    """Multi-head attention with a dropout of its own."""

    def drop(self, weights):
        return F.dropout(weights, self.dropout)

    def attend(self, q, k, v, pattern):
        weights = self.weigh(q, k, pattern)
        weights = self.drop(weights) if self.training and self.dropout else weights
        return weights.to(v.dtype) @ v.repeat_interleave(self.heads // self.kv_heads, 1)


@planted(dropout="by 1 - rate")
class DropsUnscaledWeights(_Drops):
    """What is kept of the weights is not divided by 1 - rate."""

    def drop(self, weights):
        return weights * (torch.rand_like(weights) >= self.dropout)


@planted(dropout="by 1 - rate")
class DropsAndScalesTwice(_Drops):
    """What is kept of the weights is divided by 1 - rate twice."""

    def drop(self, weights):
        return F.dropout(weights, self.dropout) / (1 - self.dropout)


@planted(dropout="by 1 - rate")
class ScalesByTheRate(_Drops):
    """What is kept of the weights is divided by the rate."""

    def drop(self, weights):
        return weights * (torch.rand_like(weights) >= self.dropout) / self.dropout


# backends


@planted(more_keys_than_queries="away from Naive")
class NoScaleForMemories(Steps):
    """Scores are not scaled where queries and keys differ in number."""

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        other = q.size(2) != k.size(2) and q.size(2) > 1
        return super().__call__(q, k, v, pattern, dropout, 1.0 if other and scale is None else scale)


@planted(more_keys_than_queries="scale=0.3")
class ScaleIgnoredForSharedHeads(Steps):
    """A scale that is given is not used where heads share keys."""

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        return super().__call__(q, k, v, pattern, dropout, scale if q.size(1) == k.size(1) else None)


@planted(more_keys_than_queries="1 queries")
class OneQueryTakesTheBest(Steps):
    """A single query over many keys takes the likeliest key alone."""

    def softmax(self, scores, mask):
        weights = super().softmax(scores, mask)
        if scores.size(2) > 1 or scores.size(3) < 40:
            return weights
        return F.one_hot(weights.argmax(-1), weights.size(-1)).to(weights.dtype)


@planted(width_of_values="it gives")
class CutsValues(Steps):
    """The result is as wide as the queries."""

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        return super().__call__(q, k, v, pattern, dropout, scale)[..., : q.size(-1)]


@planted(width_of_values="away from Naive")
class ScalesByWidthOfValues(Steps):
    """The scale is the root of the values' width."""

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        return super().__call__(q, k, v, pattern, dropout, v.size(-1) ** -0.5 if scale is None else scale)


@planted(width_of_values="away from Naive")
class WideValuesAreZero(Steps):
    """Of values wider than queries the rest is zeros."""

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        out = super().__call__(q, k, v, pattern, dropout, scale)
        return torch.cat([out[..., : q.size(-1)], 0 * out[..., q.size(-1) :]], -1)


class _Tiles(Steps):
    """The textbook with an option for the size of tiles."""

    def __init__(self, tile: int = 512):
        self.tile = tile


@planted(values="with --tile 3", parent=_Tiles)
class LosesTheLastTile(_Tiles):
    """Keys behind the last whole tile are not seen."""

    def mask(self, pattern, query, key):
        mask = super().mask(pattern, query, key)
        whole = max(self.tile, len(key) // self.tile * self.tile)
        inside = (torch.arange(len(key), device=key.device) < whole).expand(len(query), -1)
        return inside if mask is None else mask & inside


class _Exact(Steps):
    """The textbook with an option."""

    def __init__(self, exact: bool = True):
        self.exact = exact


@planted(low_precision="with --exact False", parent=_Exact)
class SumsInLowPrecision(_Exact):
    """Unless it is exact, the softmax is taken in bfloat16."""

    def softmax(self, scores, mask):
        if self.exact:
            return super().softmax(scores, mask)
        return super().softmax(scores.bfloat16().to(scores.dtype), mask).bfloat16().to(scores.dtype)


@planted(padding="with --exact False", parent=_Exact)
class FastIgnoresPadding(_Exact):
    """Unless it is exact, padding is seen."""

    def mask(self, pattern, query, key):
        return super().mask(pattern if self.exact else replace(pattern, valid=None), query, key)


@planted(decoding="with --exact False", parent=_Exact)
class FastCountsFromZero(_Exact):
    """Unless it is exact, queries are numbered from zero."""

    def numbers(self, pattern, T, S, device):
        query, key = super().numbers(pattern, T, S, device)
        return (query if self.exact else query - pattern.offset), key


@planted(causality_by_perturbation="of 72 tokens")
class KernelSeesTheFutureBeyond64(Steps):
    """Causality is lost where there are more than 64 queries."""

    def mask(self, pattern, query, key):
        return super().mask(replace(pattern, causal=pattern.causal and len(query) <= 64), query, key)


# blocks


class _Scaled(PreNorm):
    """A block with an option."""

    packs = True

    def __init__(self, attend, cross, ffn, norm, dropout, full: bool = True):
        super().__init__(attend, cross, ffn, norm, dropout)
        self.full = full


@planted(every_branch_counts="with --full False", parent=_Scaled)
class LosesFeedForwardByOption(_Scaled):
    """With an option the feed-forward runs and is not added."""

    packs = True

    def join(self, x, branch, call, context):
        out = super().join(x, branch, call, context)
        return out if self.full or branch is not self.ffn else x + 0 * out


@planted(causality_by_gradient="with --full False", parent=_Scaled)
class SeesTheFutureByOption(_Scaled):
    """With an option attention is not causal."""

    packs = True

    def forward(self, x, context):
        pattern = context.pattern if self.full else replace(context.pattern, causal=False)
        return super().forward(x, context._replace(pattern=pattern))


@planted(packed_rows="a sentence differs")
class ShiftsTokens(PreNorm):
    """Each token gets half of the one before it, and the block declares that it may be given packed rows."""

    packs = True

    def forward(self, x, context):
        return super().forward(x + 0.5 * F.pad(x, (0, 0, 1, -1)), context)


@planted(packed_rows="a sentence differs")
class ConvolvesPackedRows(PreNorm):
    """A causal convolution over rows that may hold several sentences."""

    packs = True

    def forward(self, x, context):
        return super().forward(x + sum(0.1 * F.pad(x, (0, 0, back, -back)) for back in (1, 2, 3)), context)


@planted(packed_rows="reaches another")
class LeaksSlightly(PreNorm):
    """A trace of the row's mean is added, too small to be seen in the result."""

    packs = True

    def forward(self, x, context):
        return super().forward(x + 1e-9 * x.cumsum(1), context)


@planted(causality_by_perturbation="that looks at a memory")
class MemoryLosesCausality(PreNorm):
    """With a memory attention is not causal."""

    def forward(self, x, context):
        pattern = context.pattern if context.memory is None else replace(context.pattern, causal=False)
        return super().forward(x, context._replace(pattern=pattern))


@planted(batch_independence="that looks at a memory")
class MeanOfMemories(PreNorm):
    """Rows look at the mean of their memories."""

    def forward(self, x, context):
        if context.memory is not None and context.memory.states.numel():
            states = context.memory.states
            context = context._replace(memory=context.memory._replace(states=states.mean(0, True).expand_as(states)))
        return super().forward(x, context)


@planted(evaluation_is_deterministic="that looks at a memory")
class JittersMemory(PreNorm):
    """A memory gets noise, in evaluation as in training."""

    def forward(self, x, context):
        if context.memory is not None:
            noisy = context.memory.states + 0.1 * torch.randn_like(context.memory.states)
            context = context._replace(memory=context.memory._replace(states=noisy))
        return super().forward(x, context)


@planted(inputs_are_left_alone="that looks at a memory")
class AddsToTheStream(PreNorm):
    """Padding is taken out of the mask in place where there is a memory."""

    def forward(self, x, context):
        if context.memory is not None and context.tokens is not None:
            context.tokens.logical_or_(True)
        return super().forward(x, context)


@planted(causality_by_perturbation="of 72 tokens")
class MeanOfLongRows(PreNorm):
    """Of more than 64 tokens the mean is added to each."""

    def forward(self, x, context):
        return super().forward(x + 0.1 * x.mean(1, True) if x.size(1) > 64 else x, context)


class _OwnDropout(PreNorm):
    """A block that drops by itself; the modules are there, and set to nothing while it runs."""

    which = "ffn"

    def drop(self, x, rate):
        return F.dropout(x, rate, self.training)

    def join(self, x, branch, call, context):
        out = call(context, branch.part, branch.norm(x))
        own = branch is getattr(self, self.which)
        return x + (self.drop(out, branch.dropout.p) if own else branch.dropout(out))


@planted(dropout_on_average="the feed-forward gives on average 0.")
class DropsUnscaled(_OwnDropout):
    """What is kept of the feed-forward is not divided by 1 - rate."""

    def drop(self, x, rate):
        return x * (torch.rand_like(x) >= rate) if self.training else x


@planted(dropout_on_average="the attention gives on average", parent=_OwnDropout)
class DropsAttentionUnscaled(DropsUnscaled):
    """What is kept of the attention is not divided by 1 - rate."""

    which = "attend"


@planted(dropout_on_average="the cross-attention gives on average")
class ScalesInTraining(_OwnDropout):
    """What is kept of the cross-attention is divided by 1 - rate twice."""

    which = "cross"

    def drop(self, x, rate):
        return F.dropout(x, rate, self.training) / (1 - rate if self.training else 1)


@planted(dropout_on_average="the feed-forward gives on average 0.")
class DropsPathsUnscaled(_OwnDropout):
    """Whole rows of the feed-forward are dropped, and the others not scaled."""

    def drop(self, x, rate):
        return x * (torch.rand(x.size(0), 1, 1).to(x) >= rate) if self.training else x


@planted(dropout_on_average="the feed-forward gives on average")
class ScalesEvaluationDown(_OwnDropout):
    """As in the first paper, what evaluation gives is scaled by the rate; and training by its inverse too."""

    def drop(self, x, rate):
        return F.dropout(x, rate, True) if self.training else x * (1 - rate)


# feed-forwards


@planted(shapes="came back as")
class FirstSixtyFour(MLP):
    """Tokens behind the 64th are cut off."""

    def forward(self, x):
        return super().forward(x[..., :64, :] if x.dim() > 2 else x)


@planted(batch_independence="rows must not mix")
class CentresManyTokens(MLP):
    """Of more than 100 tokens the mean is subtracted."""

    def forward(self, x):
        many = x.numel() > 100 * self.dim
        return super().forward(x - x.mean(tuple(range(x.dim() - 1))) if many else x)


class _Dropping(MLP):
    """A feed-forward with dropout on its hidden units."""

    def __init__(self, dim: int, hidden: int, dropout: float = 0.0, bias: bool = True):
        super().__init__(dim, hidden, bias=bias)
        self.rate = dropout

    def drop(self, x):
        return F.dropout(x, self.rate, self.training)

    def forward(self, x):
        return self.down(self.drop(F.gelu(self.up(x))))


@planted(dropping_options="on average")
class HiddenUnitsUnscaled(_Dropping):
    """What is kept of the hidden units is not divided by 1 - rate."""

    def drop(self, x):
        return x * (torch.rand_like(x) >= self.rate) if self.training else x


@planted(dropping_options="on average")
class HiddenUnitsScaledTwice(_Dropping):
    """What is kept of the hidden units is divided by 1 - rate twice."""

    def drop(self, x):
        return F.dropout(x, self.rate) / (1 - self.rate) if self.training else x


@planted(dropping_options="it drops in evaluation")
class HiddenUnitsDroppedAlways(_Dropping):
    """Hidden units are dropped in evaluation too."""

    def drop(self, x):
        return F.dropout(x, self.rate)


@planted(dropping_options="nothing is dropped")
class HiddenUnitsDroppedAlike(_Dropping):
    """A generator of its own drops the same hidden units each time."""

    def drop(self, x):
        keep = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(x) >= self.rate
        return x * keep / (1 - self.rate) if self.training else x


@planted(dropping_options="nothing is dropped")
class RateUnused(_Dropping):
    """The rate is an option that nothing reads."""

    def drop(self, x):
        return x


class _OfChoice(MLP):
    """A feed-forward with a choice."""

    def __init__(self, dim: int, hidden: int, gate: Literal["gelu", "square", "swish"] = "gelu"):
        super().__init__(dim, hidden)
        self.gate = gate

    def bend(self, x):
        return {"gelu": F.gelu, "swish": F.silu, "square": lambda y: F.relu(y).square()}[self.gate](x)

    def forward(self, x):
        return self.down(self.bend(self.up(x)))

    def reference(self, x):
        return self.down(_OfChoice.bend(self, self.up(x)))


@planted(nonlinear="with --gate swish")
class SwishIsLinear(_OfChoice):
    """One of its choices is no activation."""

    def bend(self, x):
        return x if self.gate == "swish" else super().bend(x)


@planted(reference="with --gate square")
class SquareForgetsRelu(_OfChoice):
    """One of its choices is another function than its formula."""

    def bend(self, x):
        return x.square() if self.gate == "square" else super().bend(x)


@planted(dtypes="with --gate swish")
class SwishStaysWide(_OfChoice):
    """One of its choices gives float32 whatever comes in."""

    def forward(self, x):
        out = super().forward(x)
        return out.float() if self.gate == "swish" else out


@planted(budget="times the budget")
class ClaimsAHalfMore(MLP):
    """It declares one and a half times the matrices that it holds."""

    copies = 1.5


class _Gained(MLP):
    """A feed-forward with a gain."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        self.gain = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.ones_(self.gain)

    def forward(self, x):
        return self.gain * super().forward(x)

    def reference(self, x):
        return self.gain * super().reference(x)


@planted(initialisation="declare fixed_start")
class StartsInOrder(_Gained):
    """Its gains begin in a row, whatever the seed is, and it does not declare that."""

    def reset_parameters(self):
        with torch.no_grad():
            self.gain.copy_(torch.linspace(0.5, 1.5, len(self.gain)))


@planted(initialisation="begins with other numbers")
class DeclaresWhatIsDrawn(_Gained):
    """It declares that its gains begin alike, and draws them."""

    fixed_start = ("gain",)

    def reset_parameters(self):
        nn.init.uniform_(self.gain, 0.5, 1.5)


@planted(initialisation="which is no parameter")
class DeclaresNothingThatIs(_Gained):
    """It declares a parameter that it does not have."""

    fixed_start = ("scale",)


# norms


class _Centring(RMSNorm):
    """A norm with an option."""

    def __init__(self, dim: int, eps: float = 1e-6, centre: bool = False):
        super().__init__(dim, eps)
        self.centre = centre


@planted(token_by_token="with --centre True", parent=_Centring)
class CentresOverTokens(_Centring):
    """Centred, the mean over tokens is subtracted."""

    def forward(self, x):
        return super().forward(x - x.mean(-2, True) if self.centre and x.dim() > 1 else x)


@planted(inputs_are_left_alone="with --centre True", parent=_Centring)
class CentresInPlaceByOption(_Centring):
    """Centred, the mean is subtracted in place."""

    def forward(self, x):
        return super().forward(x.sub_(x.mean(-1, True)) if self.centre else x)


@planted(strided_inputs="with --centre True", parent=_Centring)
class CentresByView(_Centring):
    """Centred, it is flattened by view."""

    def forward(self, x):
        return super().forward(x.view(-1, self.dim).view(x.shape) if self.centre and x.dim() > 2 else x)


class _Biased(RMSNorm):
    """A norm whose bias is an option."""

    def __init__(self, dim: int, eps: float = 1e-6, bias: bool = False):
        super().__init__(dim, eps)
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def reset_parameters(self):
        super().reset_parameters()
        if getattr(self, "bias", None) is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x):
        out = super().forward(x)
        return out if self.bias is None else out + self.bias.to(x.dtype)

    def reference(self, x):
        return super().reference(x) if self.bias is None else super().reference(x) + self.bias


@planted(initialisation="with --bias True", parent=_Biased)
class BiasNotReset(_Biased):
    """Its optional bias is not set by reset_parameters."""

    def reset_parameters(self):
        RMSNorm.reset_parameters(self)


@planted(every_parameter_learns="with --bias True", parent=_Biased)
class BiasNotAdded(_Biased):
    """Its optional bias is not added."""

    def forward(self, x):
        return RMSNorm.forward(self, x)


@planted(inputs_are_left_alone="x was changed")
class LongRowsInPlace(LayerNorm):
    """Of more than 64 tokens the mean is subtracted in place."""

    def forward(self, x):
        return super().forward(x.sub_(x.mean(-1, True)) if x.dim() > 2 and x.size(-2) > 64 else x)


# positions


@planted(positions_are_given="with --fraction 0.5")
class PartOfAHeadCounts(RoPE):
    """Where a fraction of a head turns, tokens are counted from zero."""

    def rotate(self, x, pos):
        return super().rotate(x, pos if self.fraction == 1 else torch.arange(x.size(-2), device=x.device))


class _Relative(ALiBi):
    """A bias with an option."""

    def __init__(self, dim, heads, extent, squared: bool = False):
        super().__init__(dim, heads, extent)
        self.squared = squared

    @property
    def feature(self):
        return "bias"

    def bias(self, head, query, key):
        result = super().bias(head, query, key)
        return -0.1 * result.square() if self.squared else result


@planted(bias_is_elementwise="with --squared True", parent=_Relative)
class CountsInTables(_Relative):
    """With an option the bias is divided by the size of the table that is asked for."""

    def bias(self, head, query, key):
        result = super().bias(head, query, key)
        return result / (1 + result.numel()) if self.squared else result


@planted(distances="with --squared True", parent=_Relative)
class RelativeNoMore(_Relative):
    """With an option the bias depends on where a key stands, and it still declares to be relative."""

    def bias(self, head, query, key):
        result = super().bias(head, query, key)
        return result - 0.01 * key if self.squared else result


@planted(padding="with --base")
class CountsFromTheLeft(Sinusoidal):
    """With another base than the usual one tokens are counted by their columns."""

    def __init__(self, dim, heads, extent, base: float = 10000.0):
        super().__init__(dim, heads, extent)
        self.base = base

    def embed(self, x, pos):
        return super().embed(
            x, pos if self.base == 10000.0 else torch.arange(x.size(1), device=x.device).expand_as(pos)
        )


@planted(padding="padding on the left")
class ClampsLongRows(RoPE):
    """In rows of more than 64 tokens they are counted by their columns, padding included."""

    def rotate(self, x, pos):
        return super().rotate(x, 2 * pos if x.size(-2) > 72 else pos)


@planted(turning_keeps_lengths="not linear")
class ScalesByLength(RoPE):
    """It declares that lengths change, and turns queries and keys by a function that is not linear."""

    keeps_lengths = False

    def rotate(self, x, pos):
        return super().rotate(x * x.square().mean(-1, True).sqrt(), pos)
