"""Kernels for softmax(q k' scale + bias) v: one function, at different costs."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from zoo.errors import UsageError
from zoo.parts import cpu_attention
from zoo.parts.derivatives import transformed
from zoo.parts.pattern import Pattern
from zoo.parts.recompute import recomputed

CASES = {"alibi": "bias"}  # a feature that is a case of another: a backend may serve it alone
RARE = frozenset({"score_cap", "lse", "places"})  # features that a backend serves only if it says so


class Backend:
    """q is (B, H, T, D); k and v are (B, G, S, D), H a multiple of G; the result is (B, H, T, D of v).

    A query that may see no key gets zeros. ``scale`` is 1/sqrt(D) unless given. ``supports`` names the features of a
    pattern (and "dropout" of the weights, "lse": ``with_lse``) that a backend serves; a stack that needs more refuses
    it. One that ``skips_padding`` may leave out queries at padded positions: their results are zero or right.
    """

    kind = "backend"
    memory: Literal["linear", "quadratic"] = "quadratic"  # in length, of what training keeps
    skips_padding: bool = False
    supports: frozenset[str] = frozenset({"causal", "window", "valid", "bias", "content", "sparse", "dropout"})

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, dropout: float = 0.0, scale: float | None = None
    ) -> Tensor:
        raise NotImplementedError

    def with_lse(
        self, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, dropout: float = 0.0, scale: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """The result of the call, and ln sum_s e^(score_s) of each query, (B, H, T) in at least float32: -inf where it
        sees no key. Gradients flow through both.

        Raises UsageError where ``supports`` does not name "lse".
        """
        raise UsageError(f"backend {type(self).__name__} gives no log-sum-exp (lse). Use Naive or Tiled.")

    def check_pattern(self, pattern: Pattern) -> None:
        """Raise UsageError where the pattern has a rare feature that ``supports`` does not name."""
        if missing := sorted((pattern.needs & RARE) - self.supports):
            raise UsageError(f"backend {type(self).__name__} cannot lower {', '.join(missing)}. Use Naive.")

    def check_training(self, device: torch.device) -> None:
        """Raise UsageError where it has no gradients on this device; called at the first forward in training."""

    def __repr__(self) -> str:
        return type(self).__name__


class Naive(Backend):
    """The textbook: scores, softmax, weighted sum, with a T x S matrix in memory and weights to look at."""

    supports = Backend.supports | RARE

    def weights(self, q: Tensor, k: Tensor, pattern: Pattern, scale: float | None = None) -> Tensor:
        """The attention weights, (B, H, T, S), in at least float32; each row sums to one, or to zero without keys."""
        return masked_softmax(self._scores(q, k, scale), pattern)

    def weights_with_lse(
        self, q: Tensor, k: Tensor, pattern: Pattern, scale: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """The weights (B, H, T, S), and ln sum_s e^(score_s) of each query, (B, H, T): -inf where it sees no key."""
        scores, mask = masked_scores(self._scores(q, k, scale), pattern)
        weights, lse = scores.softmax(-1), scores.logsumexp(-1)
        if mask is None:
            return weights, lse
        return weights.masked_fill(~mask, 0.0), lse.masked_fill(~mask.any(-1), float("-inf"))

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        v = v.repeat_interleave(q.size(1) // v.size(1), dim=1)
        return F.dropout(self.weights(q, k, pattern, scale), dropout).to(v.dtype) @ v

    def with_lse(self, q, k, v, pattern, dropout=0.0, scale=None):
        """The result (B, H, T, D of v), and ln sum_s e^(score_s) of each query, (B, H, T)."""
        v = v.repeat_interleave(q.size(1) // v.size(1), dim=1)
        weights, lse = self.weights_with_lse(q, k, pattern, scale)
        return F.dropout(weights, dropout).to(v.dtype) @ v, lse

    @staticmethod
    def _scores(q: Tensor, k: Tensor, scale: float | None) -> Tensor:
        k = k.repeat_interleave(q.size(1) // k.size(1), dim=1)
        return q @ k.mT * (q.size(-1) ** -0.5 if scale is None else scale)


def masked_scores(scores: Tensor, pattern: Pattern) -> tuple[Tensor, Tensor | None]:
    """(B, H, T, S) scores under a pattern, in at least float32, the lowest number where its mask, which is the second
    result, is False.
    """
    mask, bias = pattern.dense(scores.size(1), scores.size(2), scores.size(3), scores.device)
    scores = pattern.cap(scores.to(torch.promote_types(scores.dtype, torch.float32)))
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    # the lowest number, not -inf: softmax over nothing but -inf is nan, and so is its gradient
    return scores if mask is None else scores.masked_fill(~mask, torch.finfo(scores.dtype).min), mask


def masked_softmax(scores: Tensor, pattern: Pattern) -> Tensor:
    """Weights of (B, H, T, S) scores under a pattern, in at least float32; a row without keys is zeros."""
    scores, mask = masked_scores(scores, pattern)
    return scores.softmax(-1) if mask is None else scores.softmax(-1).masked_fill(~mask, 0.0)


class SDPA(Backend):
    """torch's scaled_dot_product_attention: the fastest kernel that torch finds for the call.

    For bfloat16 on a CPU matrix products instead, where they were measured to be faster.
    """

    supports = Backend.supports | {"places"}
    matrix_products = True  # where they are faster

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        self.check_pattern(pattern)
        if self.matrix_products and cpu_attention.worthwhile(q, k, pattern, dropout):
            return cpu_attention.attention(q, k, v, pattern, dropout, scale)
        if transformed():  # fused kernels have first derivatives only
            return Naive()(q, k, v, pattern, dropout, scale)
        T, S = q.size(2), k.size(2)
        options: dict[str, Any] = {"dropout_p": dropout, "scale": scale, "enable_gqa": q.size(1) != k.size(1)}
        if pattern.needs == {"causal"} and pattern.offset == pattern.start and T == S:
            # not as a mask, so that the flash kernel stays eligible; torch aligns it upper left, hence the conditions
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, **options)
        if pattern.sees_all(T, S):
            return F.scaled_dot_product_attention(q, k, v, **options)
        mask, bias = pattern.dense(q.size(1), T, S, q.device)
        if bias is not None:
            # rounding a bias of far keys costs more than all else; the fused kernel of a GPU takes it no other way
            bias = bias.to(q.dtype if q.is_cuda else torch.promote_types(q.dtype, torch.float32))
            mask = bias if mask is None else torch.where(mask, bias, float("-inf"))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)


class Flash(SDPA):
    """Only torch's flash kernel: O(N) memory; it refuses padding, windows and biases rather than fall back."""

    memory = "linear"
    matrix_products = False

    def __init__(self) -> None:
        self.supports = frozenset({"causal", "dropout"} if torch.cuda.is_available() else {"causal"})

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        T, S = q.size(2), k.size(2)
        unmet = pattern.needs - self.supports or ({"dropout"} - self.supports if dropout else set())
        if unmet or (pattern.causal and pattern.offset + T != pattern.start + S):
            raise UsageError(f"backend Flash cannot lower {', '.join(sorted(unmet)) or 'keys after the last query'}.")
        lead = S - T if pattern.causal and T > 1 else 0
        if lead:  # the kernel aligns causality at the upper left: rows in front, dropped again, move it down
            q, pattern = F.pad(q, (0, 0, lead, 0)), Pattern(causal=True)
        try:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return super().__call__(q, k, v, pattern, dropout, scale)[:, :, lead:]
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
            raise UsageError(
                f"backend Flash has no kernel for {q.dtype} on {q.device.type} with head width {q.size(-1)}. "
                "Use SDPA, Tiled or Naive."
            ) from error


class Tiled(Backend):
    """The flash algorithm in plain torch (Dao et al., 2022): O(N) memory, readable, on any device.

    Over tiles of keys it keeps a running maximum and sum: per query m' = max(m, max s), l' = l e^(m-m') + sum e^(s-m'),
    o' = o e^(m-m') + e^(s-m') v, and o / l at the end. The backward pass computes each tile of queries again instead
    of keeping its scores. A model exported by torch.export computes whole rows instead, with all scores in memory.
    """

    memory = "linear"
    supports = Backend.supports | {"score_cap", "lse"}

    def __init__(self, tile: int = 128):
        """
        Args:
            tile: rows of queries and of keys whose scores are in memory at a time.
        """
        if tile < 1:
            raise UsageError(f"backend Tiled needs tiles of at least 1 row, got tile={tile}.")
        self.tile = tile

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        self.check_pattern(pattern)
        if torch.compiler.is_exporting():  # a graph whose length stays open has no number of tiles to go over
            return Naive()(q, k, v, pattern, dropout, scale)
        return self._rows(False, q, k, v, pattern, dropout, scale)

    def with_lse(self, q, k, v, pattern, dropout=0.0, scale=None):
        """The result (B, H, T, D of v), and ln sum_s e^(score_s) of each query, (B, H, T)."""
        self.check_pattern(pattern)
        if torch.compiler.is_exporting():
            return Naive().with_lse(q, k, v, pattern, dropout, scale)
        rows = self._rows(True, q, k, v, pattern, dropout, scale)
        return rows[..., : v.size(-1)].to(v.dtype), rows[..., -1]

    def _rows(
        self, lse: bool, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, dropout: float, scale: float | None
    ) -> Tensor:
        """The result (B, H, T, D of v); with ``lse`` the log-sum-exp beside it, in at least float32."""
        scale = q.size(-1) ** -0.5 if scale is None else scale
        groups = k.size(1)
        # heads that share keys become rows of one matrix: (B, G, H/G, T, D) against (B, G, 1, S, D)
        q, k, v = q.unflatten(1, (groups, -1)), k.unsqueeze(2), v.unsqueeze(2)
        # split at once: the gradient of a slice is as long as the whole, and there is one per tile of the T x S plane
        keys, values = k.split(self.tile, -2), v.split(self.tile, -2)
        alone = self._alone(q, pattern)
        again: Callable[..., Tensor] = partial(recomputed, chance=dropout > 0)
        if transformed():  # torch.func does not support checkpoints
            again = _call
        elif not alone:
            again = partial(checkpoint, use_reentrant=False)
        rows = []
        for i, part in enumerate(q.split(self.tile, -2)):
            position = pattern.offset + i * self.tile
            visible = self._reach(pattern, position, position + part.size(-2) - 1, k.size(-2))
            row = partial(self._row, lse, pattern, position, visible.start, dropout, scale)
            rows.append(
                again(
                    row, part, v[..., :0, :], *keys[visible.start : visible.stop], *values[visible.start : visible.stop]
                )
            )
        return torch.cat(rows, -2).flatten(1, 2)

    @staticmethod
    def _alone(q: Tensor, pattern: Pattern) -> bool:
        """Whether gradients reach nothing but queries, keys and values: a bias may learn too."""
        place = torch.arange(1, device=q.device)
        cost = pattern.cost(q.size(1) * q.size(2), place + pattern.offset, place + pattern.start)
        return not torch.compiler.is_compiling() and (cost is None or not cost.requires_grad)

    def _row(
        self,
        lse: bool,
        pattern: Pattern,
        position: int,
        begin: int,
        dropout: float,
        scale: float,
        q: Tensor,
        like: Tensor,
        *tiles: Tensor,
    ) -> Tensor:
        """One tile of queries, from ``position`` on, against ``tiles`` of keys from number ``begin`` on, and
        their values behind them. The result is as wide as ``like``, and with ``lse`` one wider.
        """
        wide = torch.promote_types(q.dtype, torch.float32)
        query = torch.arange(position, position + q.size(-2), device=q.device)
        q = q.to(wide)  # sums over tiles would add up the rounding of each
        low = q.new_full((*q.shape[:-1], 1), torch.finfo(wide).min)
        top, total, out = low, torch.zeros_like(low), q.new_zeros((*q.shape[:-1], like.size(-1)))
        half = len(tiles) // 2
        for number in range(half):
            k, v = tiles[number].to(wide), tiles[half + number].to(wide)
            start = pattern.start + (begin + number) * self.tile
            key = torch.arange(start, start + k.size(-2), device=q.device)
            score = self._score(q, k, pattern, query, key, scale)
            peak = torch.maximum(top, score.amax(-1, keepdim=True)).detach()
            weight = (score - peak).exp()
            shrink = (top - peak).exp()
            total = total * shrink + weight.sum(-1, keepdim=True)
            share = F.dropout(weight, dropout) if dropout else weight
            out, top = out * shrink + share @ v, peak
        # the largest score of a row counts e^0 = 1, so only a row without keys has no sum: it stays zero. Not a clamp
        # at 1: a row with one key sums to exactly 1, where a clamp drops the gradient
        dead = total == 0
        total = total.masked_fill(dead, 1.0)
        if not lse:
            return (out / total).to(like.dtype)
        return torch.cat([out / total, (top + total.log()).masked_fill(dead, float("-inf"))], -1)

    def _reach(self, pattern: Pattern, start: int, last: int, keys: int) -> range:
        """The numbers of the tiles of keys that queries start..last can see at all."""
        start, last = start - pattern.start, last - pattern.start
        begin = 0 if pattern.window is None else max(0, start - pattern.window + 1)
        end = keys if pattern.window is None else min(keys, last + pattern.window)
        end = min(end, last + 1) if pattern.causal else end
        return range(begin // self.tile, -(-end // self.tile))

    @staticmethod
    def _score(q: Tensor, k: Tensor, pattern: Pattern, query: Tensor, key: Tensor, scale: float) -> Tensor:
        """Scores of one tile, (B, G, H/G, rows, keys), -inf where a query may not look."""
        groups, share = q.size(1), q.size(2)
        score = pattern.cap(q @ k.mT * scale)
        cost = pattern.cost(groups * share, query, key)
        if cost is not None:
            score = score + cost.unflatten(-3, (groups, share)).to(score.dtype)
        mask = pattern.mask(query, key)
        if mask is None:
            return score
        return score.masked_fill(~(mask if mask.dim() == 2 else mask.unsqueeze(1)), float("-inf"))


def _call(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    return function(*tensors)
