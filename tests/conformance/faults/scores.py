"""Wrong attentions with a score of their own. ``Steps`` is scaled dot products, a line a method."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from faults import planted
from zoo.parts.attention import Additive, Attention
from zoo.parts.backend import Naive, masked_softmax


class Steps(Attention):
    """Scaled dot products whose score, mask, dropout and sum can each be changed."""

    own_backend = Naive
    dot_product = False

    def score(self, q, k):
        return q @ k.repeat_interleave(self.heads // self.kv_heads, 1).mT * self.head_dim**-0.5

    def softmax(self, scores, pattern):
        return masked_softmax(scores, pattern)

    def weigh(self, q, k, pattern):
        return self.softmax(self.score(q, k), pattern)

    def drop(self, weights):
        return F.dropout(weights, self.dropout, self.training)

    def attend(self, q, k, v, pattern):
        v = v.repeat_interleave(self.heads // self.kv_heads, 1)
        return self.drop(self.weigh(q, k, pattern)).to(v.dtype) @ v


@planted(dropout="off: divide what is kept by 1 - rate")
class DropsWithoutRescaling(Steps):
    """What is kept is not divided by 1 - rate."""

    def drop(self, weights):
        return weights * (torch.rand_like(weights) >= self.dropout) if self.training else weights


@planted({"kv_heads": 2}, weights_times_values="heat maps")
class GroupsTiled(Additive):
    """Values of shared heads are tiled (0 1 0 1), keys repeated in place (0 0 1 1)."""

    def attend(self, q, k, v, pattern):
        v = v.repeat(1, self.heads // self.kv_heads, 1, 1)
        return F.dropout(self.weigh(q, k, pattern), self.dropout, self.training).to(v.dtype) @ v


@planted(weights_are_shares="not to one")
class MasksAfterSoftmax(Steps):
    """Hidden weights are zeroed after the softmax, and the others are not divided by their sum."""

    def softmax(self, scores, pattern):
        mask, bias = pattern.dense(*scores.shape[1:], scores.device)
        weights = (scores if bias is None else scores + bias.to(scores.dtype)).softmax(-1)
        return weights if mask is None else weights * mask


@planted(rows_without_keys="not finite")
class NaNWithoutKeys(Steps):
    """Hidden scores are -inf, and a query without keys gets NaN."""

    def softmax(self, scores, pattern):
        mask, bias = pattern.dense(*scores.shape[1:], scores.device)
        scores = scores if bias is None else scores + bias.to(scores.dtype)
        return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)


@planted(hidden_keys_do_not_leak="not with -1e4")
class MinusTenThousand(Steps):
    """Hidden scores get -1e4 added, which a large score outweighs."""

    def softmax(self, scores, pattern):
        mask, bias = pattern.dense(*scores.shape[1:], scores.device)
        scores = scores if bias is None else scores + bias.to(scores.dtype)
        if mask is None:
            return scores.softmax(-1)
        return (scores - 1e4 * ~mask).softmax(-1) * mask.any(-1, keepdim=True)


@planted(weights_are_shares="a weight is negative")
class NegativeWeights(Steps):
    """Weights are scores divided by their sum, without anything that makes them positive."""

    def softmax(self, scores, pattern):
        mask, _ = pattern.dense(*scores.shape[1:], scores.device)
        scores = scores if mask is None else scores.masked_fill(~mask, 0.0)
        return scores / scores.abs().sum(-1, keepdim=True).clamp(min=1e-6)


@planted(weights_are_shares="not to one", causality_by_perturbation="see the future")
class SoftmaxOverQueries(Steps):
    """The softmax runs over queries, so that a later query changes an earlier one."""

    def softmax(self, scores, pattern):
        mask, bias = pattern.dense(*scores.shape[1:], scores.device)
        scores = scores if bias is None else scores + bias.to(scores.dtype)
        low = torch.finfo(scores.dtype).min
        return scores.softmax(-2) if mask is None else scores.masked_fill(~mask, low).softmax(-2).masked_fill(~mask, 0)


@planted(inputs_are_left_alone="valid was changed in place")
class MarksOwnKeys(Steps):
    """Where a sequence has no key, the first is marked as real, in the mask that all layers share."""

    def attend(self, q, k, v, pattern):
        if pattern.valid is not None:
            pattern.valid[:, :1] = True
        return super().attend(q, k, v, pattern)


@planted(memory_claim="declared linear")
class NotLinear(Additive):
    """It declares linear memory and keeps T x S x D numbers."""

    memory = "linear"


@planted(batch_independence="rows must not mix")
class TemperatureOfBatch(Steps):
    """Scores are divided by their spread over the whole batch."""

    def score(self, q, k):
        scores = super().score(q, k)
        return scores / (1 + scores.detach().square().mean())


@planted(moves_with_the_module="a tensor stays behind")
class LooseTemperature(Steps):
    """A temperature per head is a plain tensor."""

    def __init__(self, dim: int, heads: int, backend=None, dropout: float = 0.0):
        super().__init__(dim, heads, backend, dropout)
        self.temperature = torch.linspace(0.5, 2, heads)[:, None, None]

    def score(self, q, k):
        return super().score(q, k) * self.temperature.to(q.dtype)


@planted(every_parameter_learns="is zero", gradients_are_right="detached")
class ScoresDetached(Additive):
    """The score's vector is detached."""

    def weigh(self, q, k, pattern):
        k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
        hidden = torch.tanh(q.unsqueeze(3) + k.unsqueeze(2))
        return masked_softmax(
            torch.einsum("bhtsd,hd->bhts", hidden, self.score.detach().to(hidden.dtype)), pattern
        ) + 0 * self.score.sum().to(torch.promote_types(q.dtype, torch.float32))


@planted(initialisation="draw it there")
class SinkWhenMade(Additive):
    """A bias of the score is drawn in __init__ only."""

    def __init__(self, dim: int, heads: int, backend=None, dropout: float = 0.0):
        super().__init__(dim, heads, backend, dropout)
        self.shift = nn.Parameter(0.1 * torch.randn(heads, 1, 1))

    def weigh(self, q, k, pattern):
        return super().weigh(q + self.shift, k, pattern)


@planted(dtypes="End with .to(x.dtype)")
class ReturnsFloat32(Steps):
    """Weights in float32 make the result float32."""

    def attend(self, q, k, v, pattern):
        weights = self.drop(self.weigh(q, k, pattern))
        return weights @ v.repeat_interleave(self.heads // self.kv_heads, 1).to(weights.dtype)


@planted(causality_by_perturbation="see the future")
class ForgetsCausality(Steps):
    """It is causal for more than eight tokens only."""

    def softmax(self, scores, pattern):
        return super().softmax(scores, pattern if scores.size(-1) > 9 else replace(pattern, causal=False))


@planted(no_token_is_special="another order of tokens", order_of_keys="another order of keys")
class FavoursFirstKey(Steps):
    """The first key gets a bonus, wherever it came from."""

    def score(self, q, k):
        scores = super().score(q, k)
        return torch.cat([scores[..., :1] + 1, scores[..., 1:]], -1)
