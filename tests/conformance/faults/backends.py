"""Wrong backends: which keys a query sees, with which bias and scale. ``Steps`` is the textbook, a line a method."""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F

from faults import planted
from zoo.parts.backend import SDPA, Backend, Naive


class Steps(Backend):
    """The textbook, step by step: scores, cap, bias, mask, softmax, dropout, sum; and the log-sum-exp beside it."""

    supports = Backend.supports | {"score_cap", "lse"}

    def scale(self, q, scale):
        return q.size(-1) ** -0.5 if scale is None else scale

    def share(self, k, heads):
        return k.repeat_interleave(heads // k.size(1), dim=1)

    def mask(self, pattern, query, key):
        return pattern.mask(query, key)

    def cost(self, pattern, heads, query, key):
        return pattern.cost(heads, query, key)

    def softmax(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(~mask, 0.0)

    def drop(self, weights, dropout):
        return F.dropout(weights, dropout)

    def numbers(self, pattern, T, S, device):
        query = torch.arange(pattern.offset, pattern.offset + T, device=device)
        return query, torch.arange(pattern.start, pattern.start + S, device=device)

    def score(self, scores, cost, pattern):
        scores = pattern.cap(scores)
        return scores if cost is None else scores + cost.to(scores.dtype)

    def scores(self, q, k, pattern, scale):
        heads, wide = q.size(1), torch.promote_types(q.dtype, torch.float32)
        k = self.share(k, heads)
        query, key = self.numbers(pattern, q.size(2), k.size(2), q.device)
        scores = (q @ k.mT * self.scale(q, scale)).to(wide)
        return self.score(scores, self.cost(pattern, heads, query, key), pattern), self.mask(pattern, query, key)

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        weights, v = self.softmax(*self.scores(q, k, pattern, scale)), self.share(v, q.size(1))
        return self.drop(weights, dropout).to(v.dtype) @ v

    def lse(self, scores, mask):
        if mask is None:
            return scores.logsumexp(-1)
        lse = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).logsumexp(-1)
        return lse.masked_fill(~mask.any(-1), float("-inf"))

    def with_lse(self, q, k, v, pattern, dropout=0.0, scale=None):
        return self(q, k, v, pattern, dropout, scale), self.lse(*self.scores(q, k, pattern, scale))


def widened(pattern, more):
    """The pattern with a wider window, where it has one."""
    return pattern if pattern.window is None else replace(pattern, window=pattern.window + more)


@planted(values="away from Naive")
class CausalIsStrict(Steps):
    """A query does not see its own key."""

    def mask(self, pattern, query, key):
        return super().mask(pattern, query - 1 if pattern.causal else query, key)


@planted(values="away from Naive", causality_by_perturbation="see the future", decoding="differs by")
class CausalSeesOneAhead(Steps):
    """A query sees the key after its own."""

    def mask(self, pattern, query, key):
        return super().mask(pattern, query + 1 if pattern.causal else query, key)


@planted(values="away from Naive")
class NoScale(Steps):
    """Scores are not divided by the square root of the head width."""

    def scale(self, q, scale):
        return 1.0 if scale is None else scale


@planted(values="away from Naive")
class ScaleWithoutRoot(Steps):
    """Scores are divided by the head width instead of its root."""

    def scale(self, q, scale):
        return 1 / q.size(-1) if scale is None else scale


@planted(scale_and_widths="scale=0.3")
class ScaleIgnored(Steps):
    """The scale that it is given is not used."""

    def scale(self, q, scale):
        return q.size(-1) ** -0.5


@planted(values="away from Naive")
class ZeroedAfterSoftmax(Steps):
    """Hidden keys are zeroed after the softmax, so that what is left does not sum to one."""

    def softmax(self, scores, mask):
        return scores.softmax(-1) if mask is None else scores.softmax(-1) * mask


@planted(hidden_keys_do_not_leak="hide with -inf")
class MinusTenThousand(Steps):
    """Hidden scores get -1e4 added, which a large score outweighs."""

    def softmax(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        return (scores - 1e4 * ~mask).softmax(-1) * mask.any(-1, keepdim=True)


@planted(rows_without_keys="not an average")
class MeanOfValues(Steps):
    """Hidden scores are -1e9, and a query without keys gets the mean of the values."""

    def softmax(self, scores, mask):
        return (scores if mask is None else scores.masked_fill(~mask, -1e9)).softmax(-1)


@planted(rows_without_keys="not finite")
class NaNWithoutKeys(Steps):
    """Hidden scores are -inf, and a query without keys gets NaN."""

    def softmax(self, scores, mask):
        return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)


@planted(rows_without_keys="gradients that are not finite")
class NaNGradients(Steps):
    """-inf is added to hidden scores: NaN of a query without keys is replaced in the result, not in its gradient."""

    def softmax(self, scores, mask):
        return (scores if mask is None else scores + torch.where(mask, 0.0, -torch.inf)).softmax(-1).nan_to_num()


@planted(values="away from Naive")
class WindowTooWide(Steps):
    """A window of w keys is |t - s| <= w."""

    def mask(self, pattern, query, key):
        return super().mask(widened(pattern, 1), query, key)


@planted(values="away from Naive")
class WindowTooNarrow(Steps):
    """A window of w keys is |t - s| < w - 1."""

    def mask(self, pattern, query, key):
        return super().mask(widened(pattern, -1), query, key)


@planted(values="away from Naive", padding="Mask padding")
class ValidInverted(Steps):
    """True is taken for padding, as in torch's key_padding_mask."""

    def mask(self, pattern, query, key):
        return super().mask(pattern if pattern.valid is None else replace(pattern, valid=~pattern.valid), query, key)


@planted(values="away from Naive", padding="Mask padding", memory="padding of a memory")
class ValidIgnored(Steps):
    """Padding is seen like any token, although it is claimed."""

    def mask(self, pattern, query, key):
        return super().mask(replace(pattern, valid=None), query, key)


@planted(values="away from Naive", padding="Mask padding")
class ValidOnQueries(Steps):
    """Padding is applied to the rows of queries instead of the columns of keys."""

    def mask(self, pattern, query, key):
        visible = super().mask(replace(pattern, valid=None), query, key)
        if pattern.valid is None or len(query) != len(key):
            return super().mask(pattern, query, key)
        rows = pattern.valid[:, None, :, None].expand(-1, -1, -1, len(key))
        return rows if visible is None else visible & rows


class SkipsPadding(Steps):
    """Queries at padded positions give zeros, which it declares."""

    skips_padding = True
    first = 0

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        out = super().__call__(q, k, v, pattern, dropout, scale)
        if pattern.valid is None or q.size(2) != k.size(2):
            return out
        real = pattern.valid.cumsum(1).gt(self.first) & pattern.valid
        return out * real[:, None, :, None]


@planted(values="away from Naive", gradients="away from Naive")
class SkipsFirstReal(SkipsPadding):
    """With the padding it leaves out the first real query of each row."""

    first = 1


@planted(values="away from Naive")
class SkipsUndeclared(SkipsPadding):
    """It gives zeros at padding without declaring so."""

    skips_padding = False


@planted(values="away from Naive")
class BiasIgnored(Steps):
    """The bias is not added."""

    def cost(self, pattern, heads, query, key):
        return None


@planted(gradients="the gradient of the bias")
class BiasDetached(Steps):
    """The bias has no gradient, and a learned one never learns."""

    def cost(self, pattern, heads, query, key):
        cost = super().cost(pattern, heads, query, key)
        return cost if cost is None else cost.detach()


@planted(values="with bias")
class BiasAfterSoftmax(Steps):
    """The bias is added to the weights instead of the scores."""

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        query, key = self.numbers(pattern, q.size(2), k.size(2), q.device)
        cost = pattern.cost(q.size(1), query, key)
        out = super().__call__(q, k, v, replace(pattern, bias=None), dropout, scale)
        return out if cost is None else out + cost.to(v.dtype) @ self.share(v, q.size(1))


@planted(values="away from Naive")
class BiasTransposed(Steps):
    """Query and key have changed places in the bias."""

    def cost(self, pattern, heads, query, key):
        cost = super().cost(pattern, heads, key, query)
        return cost if cost is None else cost.mT


@planted(values="with bias")
class BiasOfFirstHead(Steps):
    """All heads get the bias of the first."""

    def cost(self, pattern, heads, query, key):
        cost = super().cost(pattern, heads, query, key)
        return cost if cost is None else cost[:1]


@planted(values="away from Naive")
class SparseIgnored(Steps):
    """A rule of keys that may be seen is claimed and not applied."""

    def mask(self, pattern, query, key):
        return super().mask(replace(pattern, sparse=None), query, key)


@planted(values="one new token", decoding="differs by")
class OffsetIgnored(Steps):
    """Queries are numbered from 0, so that a new token sees the first key only."""

    def numbers(self, pattern, T, S, device):
        return torch.arange(T, device=device), super().numbers(pattern, T, S, device)[1]


@planted(values="a cache that forgot", offsets="keys start at pattern.start")
class StartIgnored(Steps):
    """Keys are numbered from 0, although a cache with a window has let go of the first."""

    def mask(self, pattern, query, key):
        valid = pattern.valid
        visible = replace(pattern, valid=None).mask(query, key - pattern.start)
        if valid is None:
            return visible
        rows = valid[:, None, None]
        return rows if visible is None else visible & rows


@planted(values="one new token", decoding="differs by")
class UpperLeft(SDPA):
    """Causality is said by is_causal, which torch aligns at the upper left."""

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        if pattern.needs != {"causal"}:
            return super().__call__(q, k, v, pattern, dropout, scale)
        options = {"dropout_p": dropout, "scale": scale, "enable_gqa": q.size(1) != k.size(1)}
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, **options)


@planted(values="away from Naive")
class GroupsTiled(Steps):
    """Shared heads are tiled (0 1 0 1) instead of repeated in place (0 0 1 1)."""

    def share(self, k, heads):
        return k.repeat(1, heads // k.size(1), 1, 1)


@planted(leaves_inputs_alone="changed in place", inputs_are_left_alone="valid was changed")
class MarksFirstKey(Steps):
    """Where a row has no key, the first is marked as real, in the mask that it was given."""

    def mask(self, pattern, query, key):
        if pattern.valid is not None:
            pattern.valid[:, 0] |= True
        return super().mask(pattern, query, key)


@planted(values="one new token")
class OneTokenSeesAll(Naive):
    """One query is taken for the newest, which sees every key."""

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        return super().__call__(q, k, v, replace(pattern, causal=False, window=None) if q.size(2) == 1 else pattern,
                                dropout, scale)  # fmt: skip


@planted(decoding_is_exact="padded on the left")
class PadsPromptsOnly(Steps):
    """Padding is hidden while a prompt is read, and forgotten when single tokens follow."""

    def mask(self, pattern, query, key):
        return super().mask(replace(pattern, valid=None) if len(query) == 1 and len(key) > 1 else pattern, query, key)


@planted(values="away from Naive")
class ContentIsLost(Steps):
    """What tokens add to the scores is claimed and left out."""

    def cost(self, pattern, heads, query, key):
        return super().cost(replace(pattern, content=None), heads, query, key)


@planted(values="away from Naive")
class ContentOfTheFirstRow(Steps):
    """What the tokens of the first row of a batch add to the scores is added to every row's."""

    def cost(self, pattern, heads, query, key):
        cost = super().cost(pattern, heads, query, key)
        return cost if pattern.content is None else cost[:1]


@planted(values="away from Naive")
class CapIsLost(Steps):
    """A cap on scores is claimed and left out."""

    def score(self, scores, cost, pattern):
        return super().score(scores, cost, replace(pattern, score_cap=None))


@planted(values="away from Naive", log_sum_exp="Natural logarithm, of scores with scale, cap")
class CapBehindBias(Steps):
    """The cap falls on the scores with their bias."""

    def score(self, scores, cost, pattern):
        return pattern.cap(scores if cost is None else scores + cost.to(scores.dtype))


@planted(values="away from Naive", gradients="away from Naive's")
class CapIsCut(Steps):
    """Scores beyond the cap are cut instead of bent by tanh."""

    def score(self, scores, cost, pattern):
        if pattern.score_cap is not None:
            scores = scores.clamp(-pattern.score_cap, pattern.score_cap)
        return super().score(scores, cost, replace(pattern, score_cap=None))


@planted(log_sum_exp="Natural logarithm")
class LogOfBaseTwo(Steps):
    """The log-sum-exp is the kernel's own, of base two."""

    def lse(self, scores, mask):
        return super().lse(scores, mask) / math.log(2)


@planted(log_sum_exp="-inf where it sees no key")
class LogWithoutKeysIsFinite(Steps):
    """A query without keys has the logarithm of a sum of hidden keys."""

    def lse(self, scores, mask):
        hidden = scores if mask is None else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return hidden.logsumexp(-1)


@planted(log_sum_exp_gradients="the gradient of queries is")
class LogWithoutGradient(Steps):
    """The log-sum-exp is what the kernel keeps for its backward pass, where gradients end."""

    def lse(self, scores, mask):
        return super().lse(scores, mask).detach()


@planted(log_sum_exp_gradients="not finite")
class LogOfZero(Steps):
    """A query without keys has the logarithm of zero, whose gradient is nan."""

    def lse(self, scores, mask):
        scores = scores if mask is None else scores + torch.where(mask, 0.0, float("-inf"))
        top = scores.amax(-1, keepdim=True).clamp(min=-1e30).detach()
        return (scores - top).exp().sum(-1).log() + top[..., 0]


@planted(log_sum_exp="not (B, H, T) = ")
class LogInHalfPrecision(Steps):
    """The log-sum-exp comes back in the type of the values."""

    def with_lse(self, q, k, v, pattern, dropout=0.0, scale=None):
        out, lse = super().with_lse(q, k, v, pattern, dropout, scale)
        return out, lse.to(v.dtype)
