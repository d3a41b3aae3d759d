"""Positions: rotations for longer texts, and learned penalties on distance."""

import math
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.parts.position import Extent, Position, RoPE
from zoo.value_checks import above_zero


class YaRN(RoPE):
    """RoPE for texts ``scaling_factor`` times as long as those of training (Peng et al., 2023).

    A pair of features that turns r times within ``original_max_length`` keeps its frequency from r = beta on, has
    1 / scaling_factor of it up to r = alpha, and a mixture between, linear in the pair's number in published models and
    in r in the paper. Queries and keys are multiplied by 0.1 ln(scaling_factor) + 1, which divides the softmax's
    temperature by the square of it.
    """

    keeps_lengths = False

    def __init__(
        self,
        dim: int,
        heads: int,
        extent: Extent,
        base: float = 10000.0,
        scaling_factor: float = 4.0,
        original_max_length: int = 8192,
        alpha: float = 1.0,
        beta: float = 32.0,
        ramp: Literal["pairs", "turns"] = "pairs",
    ):
        """
        Args:
            scaling_factor: how many times longer texts become, at least 1.
            original_max_length: tokens of the sequences that the model was trained on before.
            alpha: turns up to which a frequency is divided in full.
            beta: turns from which a frequency stays as it is.
            ramp: the mixture is linear in the pair's number, as in published models, or in its turns, as in the paper.
        """
        sharper = 0.1 * math.log(max(scaling_factor, 1)) + 1
        kind: dict[str, Any] = {"kind": "yarn", "turns": [alpha, beta]} if ramp == "pairs" else {}
        scaling = {**kind, "attention_factor": sharper}
        super().__init__(dim, heads, extent, base, 1.0, scaling_factor, original_max_length, alpha, beta, scaling)


class XPos(RoPE):
    """RoPE whose scores decay with distance: q_t zeta^(t/B) times k_s zeta^(-s/B) (Sun et al., 2022).

    zeta_i = (2i/D + gamma) / (1 + gamma) for the pair of features i, so that fast pairs decay most. Made for causal
    models: scores of later keys grow. Factors of float32 last for some 60 B places, 35,000 by default.
    """

    keeps_lengths = False
    known_failures: ClassVar[dict[str, str]] = {
        "distances": "the factors of places 100,000 and on are outside of float32, as they are in the paper",
        "every_place_is_its_own": "the factors of places beyond 35,000 are zero in float32, as they are in the paper",
    }

    def __init__(
        self,
        dim: int,
        heads: int,
        extent: Extent,
        base: float = 10000.0,
        scale_base: float = 512.0,
        gamma: float = 0.4,
    ):
        """
        Args:
            scale_base: places B after which a pair's score has zeta times its size.
            gamma: above 0; the larger, the less fast pairs decay.

        Raises UsageError for a gamma or scale_base that is not above 0, and on a grid.
        """
        super().__init__(dim, heads, extent, base)
        if len(extent.sizes) > 1:
            raise UsageError(f"position XPos needs one axis, got {len(extent.sizes)}: a grid has no earlier place.")
        above_zero(scale_base=scale_base, gamma=gamma)
        self.scale_base, self.gamma = scale_base, gamma

    def decay(self, x: Tensor, pos: Tensor, sign: int) -> Tensor:
        """zeta^(sign pos / B) of each feature of x (B, H, T, D), (T, D) or (B, 1, T, D), in at least float32."""
        wide = torch.promote_types(x.dtype, torch.float32)
        pair = torch.arange(0, x.size(-1), 2, device=x.device, dtype=wide) / x.size(-1)
        zeta = ((pair + self.gamma) / (1 + self.gamma)).repeat(2)
        return zeta ** (sign * pos[..., None].to(wide) / self.scale_base)

    def rotate(self, x: Tensor, pos: Tensor) -> Tensor:
        """Queries x (B, H, T, D) turned by the angles of pos, (T,) or (B, 1, T), and shortened; shaped like x."""
        return (super().rotate(x, pos) * self.decay(x, pos, 1)).to(x.dtype)

    def rotate_keys(self, x: Tensor, pos: Tensor) -> Tensor:
        """Keys x (B, G, S, D) turned by the angles of pos, (S,) or (B, 1, S), and lengthened; shaped like x."""
        return (super().rotate(x, pos) * self.decay(x, pos, -1)).to(x.dtype)


def distance(extent: Extent, query: Tensor, key: Tensor) -> Tensor:
    """|query - key|, summed over axes, 0 for special tokens; elementwise in broadcast arguments."""
    pairs = zip(extent.axes(query), extent.axes(key), strict=True)
    return sum((q - k).abs() for q, k in pairs) * ((query >= 0) & (key >= 0))


class KERPLE(Position):
    """-r1 log(1 + r2 |q - k|) on the scores, r1 and r2 above 0 and learned for each head (Chi et al., 2022)."""

    relative = True

    def __init__(self, dim: int, heads: int, extent: Extent):
        super().__init__(dim, heads, extent)
        self.rates = nn.Parameter(torch.empty(2, heads))  # logarithms of r1 and r2
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw log r1 and log r2 with standard deviation 0.5."""
        nn.init.normal_(self.rates, std=0.5)

    def bias(self, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """-r1(head) log(1 + r2(head) |query - key|), elementwise in broadcast arguments."""
        r1, r2 = self.rates.to(torch.promote_types(self.rates.dtype, torch.float32)).exp()
        return -r1[head] * torch.log1p(r2[head] * distance(self.extent, query, key))


class FIRE(Position):
    """A small network of the distance relative to the query's place (Li et al., 2023).

    The bias is f_h(log(c |q - k| + 1) / log(c max(q, L) + 1)), f a ReLU network of one hidden layer with an output for
    each head, c and L learned. Beyond L tokens a query's place counts, and padding in front of it too.
    """

    def __init__(self, dim: int, heads: int, extent: Extent, hidden: int = 32, threshold: float = 512.0):
        """
        Args:
            hidden: width of the network.
            threshold: L at the start of training.

        Raises UsageError on a grid, where no place is the later one.
        """
        super().__init__(dim, heads, extent)
        if len(extent.sizes) > 1:
            raise UsageError(
                f"position FIRE needs one axis, got {len(extent.sizes)}: it compares a distance to a place."
            )
        if hidden < 1 or not threshold > 0:
            raise UsageError(f"position FIRE needs hidden >= 1 and threshold > 0, got {hidden} and {threshold}.")
        self.up, self.down = nn.Linear(1, hidden), nn.Linear(hidden, heads)
        self.c, self.scale, self.threshold = nn.Parameter(torch.empty(())), nn.Parameter(torch.empty(())), threshold
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """c of 0.1, L of the threshold."""
        nn.init.constant_(self.c, 0.1)
        nn.init.ones_(self.scale)

    def bias(self, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """f_head of the relative distance of query and key, elementwise in broadcast arguments."""
        wide = torch.promote_types(self.c.dtype, torch.float32)
        c, far = self.c.to(wide).abs(), (self.threshold * self.scale).to(wide).abs()
        gap, place = distance(self.extent, query, key).to(wide), torch.maximum(query, key).to(wide)
        ratio = torch.log1p(c * gap) / torch.log1p(c * torch.maximum(place, far))
        hidden = F.relu(F.linear(ratio.unsqueeze(-1), self.up.weight.to(wide), self.up.bias.to(wide)))
        every = F.linear(hidden, self.down.weight.to(wide), self.down.bias.to(wide))  # (..., heads)
        shape = torch.broadcast_shapes(head.shape, ratio.shape)
        return every.expand(*shape, -1).gather(-1, head.expand(shape).unsqueeze(-1)).squeeze(-1)
