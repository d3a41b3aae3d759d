"""The three places where position can enter a Transformer, one method each; a scheme overrides the one it uses."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.value_checks import above_zero, at_least


@dataclass(frozen=True)
class Extent:
    """Where the tokens of a stack can stand.

    ``sizes`` is (max_length,) for text and (rows, columns) for a grid, and a position is a flat index into it, so every
    scheme serves both. Special tokens (a ViT's class token) stand outside, at positions -special..-1, the ``registers``
    among them last.
    """

    sizes: tuple[int, ...]
    special: int = 0
    causal: bool = False
    registers: int = 0

    def axes(self, pos: Tensor) -> list[Tensor]:
        """One coordinate per axis for flat positions, each shaped like ``pos``; special tokens stand at the origin."""
        remainder, out = pos.clamp(min=0), []
        for size in reversed(self.sizes[1:]):
            out.append(remainder % size)
            remainder = remainder // size
        return [remainder, *reversed(out)]


class Position(nn.Module):
    """No position at all, and the base of every scheme.

    A stack builds one scheme, which all its layers share. A scheme overrides ``embed``, ``rotate`` or ``bias``.
    """

    kind = "position"
    limit: int | None = None  # positions from here on do not exist; None: any length runs
    orders = True  # the result depends on the order of the tokens
    relative = False  # scores depend on the distance of query and key, not on where they stand

    def __init__(self, dim: int, heads: int, extent: Extent):
        super().__init__()
        self.dim, self.heads, self.extent = dim, heads, extent

    @property
    def rotates(self) -> bool:
        """Whether queries and keys are turned."""
        return type(self).rotate is not Position.rotate

    @property
    def biases(self) -> bool:
        """Whether scores get an addition."""
        return type(self).bias is not Position.bias

    @property
    def feature(self) -> str:
        """What its bias asks of a backend: "bias", or a case of it that some kernels serve alone."""
        return "bias"

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        """Once, at the input: x is (B, T, dim), pos is (T,) or (B, T)."""
        return x

    def rotate(self, x: Tensor, pos: Tensor) -> Tensor:
        """In every self-attention, to queries and, unless ``rotate_keys`` differs, to keys: x is (B, H, T, D), pos (T,)
        or (B, 1, T).
        """
        return x

    def rotate_keys(self, x: Tensor, pos: Tensor) -> Tensor:
        """As ``rotate``, for keys alone, where a scheme turns them otherwise: x is (B, G, S, D)."""
        return self.rotate(x, pos)

    def bias(self, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """What a head adds to the score of two positions; elementwise in its arguments, which broadcast."""
        raise NotImplementedError

    def check(self, head_dim: int) -> None:
        """Raise UsageError when heads of this width cannot be served."""

    def _split(self, width: int, what: str) -> None:
        axes = len(self.extent.sizes)
        if width % (2 * axes):
            raise UsageError(
                f"position {type(self).__name__} needs {what} divisible by {2 * axes} for {axes} axes, got {width}."
            )


class NoPosition(Position):
    """No position at all: attention sees a set."""

    orders = False
    relative = True


def angles(pos: Tensor, width: int, base: float, dtype: torch.dtype, endpoint: bool = False) -> Tensor:
    """Position times a geometric series of frequencies from 1 to 1 / base, the last one excluded unless ``endpoint``:
    (..., width / 2), in at least float32.

    bfloat16 angles are wrong by more than a radian from position 4097 on.
    """
    dtype = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(0, width, 2, device=pos.device, dtype=dtype) / (width - 2 if endpoint else width)
    return pos[..., None].to(dtype) * base**-exponent


class Sinusoidal(Position):
    """Sines and cosines added to the embeddings (Vaswani et al., 2017).

    PE(p, 2i) = sin(p / base^(2i/dim)) and PE(p, 2i+1) = cos(p / base^(2i/dim)); on a grid each axis has half of dim.
    ``layout`` halves puts all sines in front of all cosines instead (Marian, fairseq): the same features, permuted.
    With ``endpoint`` the exponents are 2i/(dim - 2), so that the slowest wave has exactly the length 2 pi * base, and
    p counts from ``offset`` on (tensor2tensor, fairseq, M2M100).

    Paper: Attention Is All You Need, Vaswani et al., 2017.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        extent: Extent,
        base: float = 10000.0,
        layout: Literal["interleaved", "halves"] = "interleaved",
        endpoint: bool = False,
        offset: int = 0,
    ):
        """
        Args:
            dim: width of a token.
            heads: number of attention heads.
            extent: where tokens can stand.
            base: wavelengths are 2 pi * base^(2i/dim).
            layout: sines and cosines interleaved, or all sines in front of all cosines (halves).
            endpoint: spread the exponents so that the last one is 1; needs 4 features or more of each axis.
            offset: number of the first position, 2 in M2M100.
        """
        super().__init__(dim, heads, extent)
        above_zero(base=base)
        if endpoint and dim < 4 * len(extent.sizes):
            raise UsageError(f"position Sinusoidal with endpoint needs dim of at least {4 * len(extent.sizes)}.")
        self.base, self.endpoint, self.offset = base, endpoint, offset
        self.place = -1 if layout == "interleaved" else -2
        self._split(dim, "dim")

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        """x (B, T, dim) plus its sines and cosines at pos, (T,) or (B, T); shaped like x."""
        axes = self.extent.axes(pos)
        width = self.dim // len(axes)
        waves = [angles(axis + self.offset, width, self.base, x.dtype, self.endpoint) for axis in axes]
        table = torch.cat([torch.stack([wave.sin(), wave.cos()], self.place).flatten(-2) for wave in waves], -1)
        return x + table.to(x.dtype)


class Learned(Position):
    """One learned vector per position, added to the embeddings (GPT-2, BERT, ViT).

    ``offset`` rows in front of the first position's are never read: RoBERTa and BART keep 2, one for padding.
    """

    place_tables = ("table.weight",)

    def __init__(self, dim: int, heads: int, extent: Extent, offset: int = 0):
        """
        Args:
            dim: width of a token.
            heads: number of attention heads.
            extent: where tokens can stand.
            offset: unused rows in front of the first position's: 2 in RoBERTa and BART, 0 elsewhere.
        """
        super().__init__(dim, heads, extent)
        if offset < 0:
            raise UsageError(f"position Learned needs offset >= 0, got {offset}.")
        self.limit = math.prod(extent.sizes)
        self.first = offset + extent.special  # special tokens stand in front of position 0
        self.table = nn.Embedding(self.limit + self.first, dim)

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        """x (B, T, dim) plus the vectors of pos, (T,) or (B, T); shaped like x."""
        return x + self.table(pos + self.first).to(x.dtype)

    def convert_rows(self, start: "Learned", table: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors of ``start``'s table (rows, dim) at the places of this one, and at which places it has any.

        A grid of another size is interpolated, as timm and torchvision do; a text keeps the positions that both have.
        """
        ours, theirs = self.extent, start.extent
        rows = torch.full((len(self.table.weight),), -1)

        def take(target: int, source: int, count: int) -> None:
            rows[target : target + count] = torch.arange(source, source + count)

        take(0, 0, min(self.first - ours.special, start.first - theirs.special))  # rows that are never read
        leading = min(ours.special - ours.registers, theirs.special - theirs.registers)
        take(self.first - ours.special, start.first - theirs.special, leading)
        take(self.first - ours.registers, start.first - theirs.registers, min(ours.registers, theirs.registers))
        if ours.sizes == theirs.sizes or len(ours.sizes) == len(theirs.sizes) == 1:
            take(self.first, start.first, min(math.prod(ours.sizes), math.prod(theirs.sizes)))
        vectors, there = table[rows], rows >= 0
        if len(ours.sizes) == len(theirs.sizes) > 1 and ours.sizes != theirs.sizes:
            grid = table[start.first :].mT.float().reshape(1, -1, *theirs.sizes)
            smooth = {"mode": "bicubic", "antialias": True} if grid.dim() == 4 else {"mode": "trilinear"}
            vectors[self.first :] = F.interpolate(grid, ours.sizes, **smooth).flatten(2)[0].mT.to(table)
            there[self.first :] = True
        return vectors, there


SCALINGS = ("llama3", "linear", "dynamic", "yarn", "longrope")
SCALING: dict[str, Any] = {
    "kind": "llama3", "attention_factor": None, "turns": [1.0, 32.0], "truncate": True, "short_factors": None,
    "long_factors": None,
}  # fmt: skip


class RoPE(Position):
    """Queries and keys turned by angles that grow with position (Su et al., 2021).

    The pair of features (i, i + D/2) turns by p * base^(-2i/D); on a grid each axis turns its share of the pairs.
    With a ``fraction`` only the first D * fraction features turn, as a head of that width would (GPT-J, NeoX).

    For texts ``scaling_factor`` s times as long as the ``original_max_length`` L of training, ``scaling`` slows turns:
    linear all of them by s (Chen et al., 2023); dynamic those of a text of T > L tokens, by a base that is
    (s T / L - s + 1)^(D / (D - 2)) times as large; llama3 by s where a pair turns less than low_freq_factor times
    within L, not at all from high_freq_factor times on, and by a mixture linear in that number between; yarn the same,
    linear in the pair's number i, and what turns is multiplied by 0.1 ln(s) + 1 (Peng et al., 2023, as in published
    models); longrope each pair by a factor of its own, in texts longer than L by another one, and multiplied by
    sqrt(1 + ln(s) / ln(L)) (Ding et al., 2024). A text's T is its newest position + 1: cached keys stay as they are.

    Paper: RoFormer: Enhanced Transformer with Rotary Position Embedding, Su et al., 2021.
    """

    relative = True

    def __init__(
        self,
        dim: int,
        heads: int,
        extent: Extent,
        base: float = 10000.0,
        fraction: float = 1.0,
        scaling_factor: float = 1.0,
        original_max_length: int = 8192,
        low_freq_factor: float = 1.0,
        high_freq_factor: float = 4.0,
        scaling: dict[str, Any] | None = None,
    ):
        """
        Args:
            dim: width of a token.
            heads: number of attention heads.
            extent: where tokens can stand.
            base: wavelengths are 2 pi * base^(2i/D); a larger base suits longer texts.
            fraction: the share of each head's features that turn, in (0, 1].
            scaling_factor: how many times longer the longest wavelengths become, 1 for none (Llama 3.1 has 8).
            original_max_length: tokens of the sequences that the model was trained on before it was scaled.
            low_freq_factor: wavelengths above original_max_length / low_freq_factor are scaled in full.
            high_freq_factor: wavelengths below original_max_length / high_freq_factor are not scaled.
            scaling: which wavelengths are scaled, {"kind": "llama3"} unless given, or another of SCALINGS; beside it
                attention_factor, which multiplies queries and keys, 1 unless given, with yarn and longrope as above;
                for yarn turns, which stand for both factors above ([1, 32]), and truncate, which rounds the first and
                the last pair of the mixture to whole numbers, outwards (true); for longrope short_factors, on the
                wavelength of each pair in texts up to original_max_length, and long_factors in longer ones.

        Raises UsageError for a fraction outside of (0, 1], a factor below 1, an unknown scaling, and factors in the
        wrong order, missing, or without a meaning in this scaling.
        """
        super().__init__(dim, heads, extent)
        details: dict[str, Any] = {**SCALING, **(scaling or {})}
        kind, attention_factor = details["kind"], details["attention_factor"]
        short_factors, long_factors = details["short_factors"], details["long_factors"]
        if kind not in SCALINGS or details.keys() != SCALING.keys():
            raise UsageError(
                f"position RoPE: scaling has kind, one of {', '.join(SCALINGS)}, and perhaps "
                f"{', '.join(name for name in SCALING if name != 'kind')}; got {scaling}."
            )
        if not 0 < fraction <= 1:
            raise UsageError(f"position RoPE turns a fraction of a head in (0, 1], got {fraction}.")
        if kind == "yarn":
            low_freq_factor, high_freq_factor = details["turns"]
        if not scaling_factor >= 1 or not high_freq_factor > low_freq_factor:
            raise UsageError(
                "position RoPE needs scaling_factor >= 1 and high_freq_factor > low_freq_factor, "
                f"got {scaling_factor}, {high_freq_factor} and {low_freq_factor}."
            )
        at_least(1, original_max_length=original_max_length)
        above_zero(base=base, low_freq_factor=low_freq_factor)
        if kind == "yarn" and not base > 1:
            raise UsageError(f"position RoPE with scaling yarn needs base above 1, got {base}.")
        for name, factors in (("short_factors", short_factors), ("long_factors", long_factors)):
            if (factors is not None) != (kind == "longrope") or not all(factor > 0 for factor in factors or ()):
                raise UsageError(f"position RoPE takes {name}, numbers above 0, with scaling longrope and only there.")
        if attention_factor is None:
            grows = scaling_factor > 1 and kind in ("yarn", "longrope")
            growth = math.log(scaling_factor) if grows else 0.0
            per_length = math.log(max(original_max_length, 2))
            attention_factor = 0.1 * growth + 1 if kind == "yarn" else math.sqrt(1 + growth / per_length)
        self.base, self.fraction, self.scaling_factor = base, fraction, scaling_factor
        self.original_max_length, self.scaling, self.truncate = original_max_length, kind, details["truncate"]
        self.low_freq_factor, self.high_freq_factor = low_freq_factor, high_freq_factor
        self.attention_factor, self.short_factors, self.long_factors = attention_factor, short_factors, long_factors
        self.relative = kind not in ("dynamic", "longrope")

    def check(self, head_dim: int) -> None:
        """Raise UsageError where pairs of features, on each axis, cannot fill the width that turns."""
        width = int(head_dim * self.fraction)
        self._split(width, "a head width" if self.fraction == 1 else "head width * fraction")
        for factors in (self.short_factors, self.long_factors):
            if factors is not None and len(factors) != (pairs := width // (2 * len(self.extent.sizes))):
                raise UsageError(f"position RoPE needs a factor for each of {pairs} pairs, got {len(factors)} factors.")

    def rotate(self, x: Tensor, pos: Tensor) -> Tensor:
        """x (B, H, T, D) turned by the angles of pos, (T,) or (B, 1, T); shaped like x."""
        return self.turn(x, *self.waves(pos, x.size(-1), x.dtype))

    def waves(self, pos: Tensor, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the angles of pos, (T,) or (B, 1, T), times ``attention_factor``, for heads of a width
        and type: each (..., T, head_dim * fraction / 2), in at least float32.
        """
        axes, width = self.extent.axes(pos), int(head_dim * self.fraction)
        turn = torch.cat([self._turn(axis, width // len(axes), dtype) for axis in axes], -1)
        cos, sin = turn.cos(), turn.sin()
        return (cos, sin) if self.attention_factor == 1 else (cos * self.attention_factor, sin * self.attention_factor)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x (B, H, T, D) turned by the angles with these cosines and sines, as ``waves`` gives them; shaped like x."""
        width = int(x.size(-1) * self.fraction)
        x1, x2 = x[..., :width].to(cos.dtype).chunk(2, -1)
        turned = torch.cat([x1 * cos - x2 * sin, x1 * sin + x2 * cos], -1).to(x.dtype)
        return turned if width == x.size(-1) else torch.cat([turned, x[..., width:]], -1)

    def _turn(self, pos: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        if self.scaling_factor == 1 and self.relative:
            return angles(pos, width, self.base, dtype)
        rate = angles(pos.new_ones(()), width, self.base, dtype)
        return pos[..., None].to(rate.dtype) * self._scale(rate, pos)

    def _scale(self, rate: Tensor, pos: Tensor) -> Tensor:
        """The frequencies (D / 2,) of pairs, slowed for a text whose newest positions are these."""
        factor, length, pairs = self.scaling_factor, self.original_max_length, len(rate)
        pair = torch.arange(pairs, device=rate.device, dtype=rate.dtype)
        if self.scaling == "linear":
            return rate / factor
        if self.scaling == "dynamic":
            growth = factor * (pos.max() + 1).clamp(min=length).to(rate.dtype) / length - (factor - 1)
            return rate * growth ** (-pair / max(pairs - 1, 1))
        if self.scaling == "longrope":
            short, long = (rate.new_tensor(factors) for factors in (self.short_factors, self.long_factors))
            return rate / torch.where(pos.max() >= length, long, short)
        if self.scaling == "yarn":
            low, high = (
                pairs * math.log(length / (turns * 2 * math.pi)) / math.log(self.base)
                for turns in (self.high_freq_factor, self.low_freq_factor)
            )
            low, high = (math.floor(low), math.ceil(high)) if self.truncate else (low, high)
            low, high = max(low, 0), min(high, 2 * pairs - 1)
            share = 1 - ((pair - low) / ((high - low) or 0.001)).clamp(0, 1)
        else:
            turns = length * rate / (2 * math.pi)
            share = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return rate * (share + (1 - share) / factor)


class ALiBi(Position):
    """A penalty on the scores that grows with distance, steeper in some heads (Press et al., 2022).

    The bias is -slope(h) * |q - k| with slope(h) = 2^(-8h/H) for H a power of two; for other H the missing slopes are
    every second one of the next power of two. On a grid the distance is Manhattan's.

    Paper: Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation, Press et al., 2022.
    """

    relative = True
    slope: Tensor

    def __init__(self, dim: int, heads: int, extent: Extent):
        super().__init__(dim, heads, extent)
        self.register_buffer("slope", torch.empty(heads), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The slopes are constants; they are written here so that a stack built on the meta device gets them too."""
        if not self.slope.is_meta:
            self.slope.copy_(torch.tensor(slopes(self.heads)))

    @property
    def feature(self) -> str:
        """ "alibi" on one axis without special tokens, where some kernels serve it; else "bias"."""
        standard = type(self).bias is ALiBi.bias and len(self.extent.sizes) == 1 and not self.extent.special
        return "alibi" if standard else "bias"

    def bias(self, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """-slope(head) * |query - key|, elementwise in broadcast arguments."""
        pairs = zip(self.extent.axes(query), self.extent.axes(key), strict=True)
        distance = sum((q - k).abs() for q, k in pairs) * ((query >= 0) & (key >= 0))
        return -self.slope[head] * distance

    def reference(self, hook: str, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """What ``bias`` gives, (heads, queries, keys), by the published slopes, one head after the other."""
        published = slopes(self.heads)
        axes = zip(self.extent.axes(query), self.extent.axes(key), strict=True)
        distance = torch.stack([(a - b).abs() for a, b in axes]).sum(0)
        return torch.stack([-published[int(h)] * distance for h in head.flatten()])


def slopes(heads: int) -> list[float]:
    """The published list of ALiBi slopes for a number of heads."""
    power = 2 ** math.floor(math.log2(heads))
    base = [2.0 ** (-8.0 * (h + 1) / power) for h in range(power)]
    between = [2.0 ** (-4.0 * (h + 1) / power) for h in range(0, 2 * power, 2)]
    return base + between[: heads - power]


class T5(Position):
    """A learned addition to the scores per head and bucket of distance (Raffel et al., 2020).

    Near distances have a bucket each, farther ones share logarithmically wider buckets up to ``max_distance``. A causal
    stack spends all buckets on the past. On a grid each axis has a table of its own.

    Paper: Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, Raffel et al., 2020.
    """

    relative = True
    place_tables = ("table",)

    def __init__(self, dim: int, heads: int, extent: Extent, num_buckets: int = 32, max_distance: int = 128):
        """
        Args:
            dim: width of a token.
            heads: number of attention heads, each with numbers of its own.
            extent: where tokens can stand.
            num_buckets: rows of the table, for both directions together.
            max_distance: from this many tokens on all distances share the last bucket.

        Raises UsageError where there are too few buckets, or more than distances.
        """
        super().__init__(dim, heads, extent)
        self.num_buckets, self.max_distance = num_buckets, max_distance
        # Flat order is time only on one axis: on a grid a causal token still sees keys to its right, a row above.
        self.sided = extent.causal and len(extent.sizes) == 1
        exact = num_buckets // (2 if self.sided else 4)
        if exact < 1 or max_distance <= exact:
            least = 2 if self.sided else 4
            raise UsageError(f"position T5 needs num_buckets of at least {least} and max_distance above {exact}.")
        self.table = nn.Parameter(torch.empty(len(extent.sizes), num_buckets, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        nn.init.normal_(self.table, std=0.02)

    def bucket(self, gap: Tensor) -> Tensor:
        """Bucket numbers of key minus query, elementwise."""
        span = self.num_buckets if self.sided else self.num_buckets // 2
        distance = (-gap).clamp(min=0) if self.sided else gap.abs()
        exact = span // 2
        far = distance.clamp(min=1).to(torch.float32)
        log = exact + (torch.log(far / exact) / math.log(self.max_distance / exact) * (span - exact)).long()
        number = torch.where(distance < exact, distance, log.clamp(max=span - 1))
        return number if self.sided else number + span * (gap > 0)

    def convert_rows(self, start: "T5", table: Tensor) -> tuple[Tensor, Tensor]:
        """For each bucket the row of ``start``'s table (axes, buckets, heads) that stood for its nearest distance."""
        gaps = torch.arange(-self.max_distance, self.max_distance + 1)
        gaps = gaps[gaps.abs().argsort(descending=True)]  # the nearest is written last
        rows = torch.arange(self.num_buckets)  # buckets that no distance has are never read, and stay
        if self.num_buckets != start.num_buckets:
            rows.fill_(-1)
        theirs = start.bucket(gaps).where(gaps <= 0, -1) if start.sided else start.bucket(gaps)
        for bucket, row in zip(self.bucket(gaps).tolist(), theirs.tolist(), strict=True):
            rows[bucket] = row
        return table[:, rows], rows >= 0

    def bias(self, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """The number of a head and of the bucket of key - query, elementwise in broadcast arguments."""
        pairs = zip(self.extent.axes(query), self.extent.axes(key), strict=True)
        added = sum(self.table[axis, self.bucket(k - q), head] for axis, (q, k) in enumerate(pairs))
        return added * ((query >= 0) & (key >= 0))
