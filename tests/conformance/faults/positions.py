"""Wrong position schemes that mark tokens, or turn queries and keys."""

import math

import torch

from faults import planted
from zoo.parts.position import Learned, NoPosition, Position, RoPE, Sinusoidal, angles


@planted(positions_are_given="use pos", decoding="positions as they are given")
class SinusoidalCounts(Sinusoidal):
    """It numbers the tokens that it sees from 0, so that a cached step and left padding are wrong."""

    def embed(self, x, pos):
        return super().embed(x, torch.arange(x.size(1), device=x.device))


@planted(positions_are_given="rows of a batch")
class FirstRowForAll(Sinusoidal):
    """Positions of the first row are used for all rows of a batch."""

    def embed(self, x, pos):
        return super().embed(x, pos if pos.dim() == 1 else pos[:1])


@planted(every_place_is_its_own="are one place")
class WrapsAround(Sinusoidal):
    """Positions are kept in one byte, and position 128 is position -128."""

    def embed(self, x, pos):
        return super().embed(x, pos.to(torch.int8).long() % 128)


@planted(every_place_is_its_own="are one place")
class HalfPositions(Sinusoidal):
    """Positions are kept in float16, in which 2,049 is 2,048."""

    def embed(self, x, pos):
        return super().embed(x, pos.half().float())


@planted(low_precision="compute angles in float32")
class PhasesInHalf(Sinusoidal):
    """Phases are computed in the dtype of the tokens, and bfloat16 has none beyond position 256."""

    def embed(self, x, pos):
        frequency = self.base ** -(torch.arange(0, self.dim, 2, device=x.device) / self.dim)
        phase = pos[..., None].to(x.dtype) * frequency.to(x.dtype)
        return x + torch.stack([phase.sin(), phase.cos()], -1).flatten(-2)


@planted(low_precision="gives torch.float32", dtypes="End with .to(x.dtype)")
class AddsFloat32(Sinusoidal):
    """The table is added in float32, and bfloat16 tokens become float32."""

    def embed(self, x, pos):
        return super().embed(x.to(torch.promote_types(x.dtype, torch.float32)), pos)


@planted(inputs_are_left_alone="changed in place")
class AddsInPlace(Sinusoidal):
    """The table is added to the tokens themselves."""

    def embed(self, x, pos):
        with torch.no_grad():
            return x.copy_(super().embed(x, pos))


@planted(hooks="positions were changed in place")
class ClampsPositionsInPlace(Sinusoidal):
    """Positions are clamped in place, where others still read them."""

    def embed(self, x, pos):
        return super().embed(x, pos.clamp_(0, 7) if pos.is_contiguous() else pos.clamp(0, 7))


@planted(limit="set self.limit", beyond_the_longest="`limit`")
class TableTooShort(Sinusoidal):
    """A table for the extent is made once, and no limit says that there is no position beyond it."""

    def __init__(self, dim, heads, extent, base: float = 10000.0):
        super().__init__(dim, heads, extent, base)
        self.register_buffer("table", torch.empty(math.prod(extent.sizes), dim), persistent=False)
        self.reset_parameters()

    def reset_parameters(self):
        rows = torch.arange(len(self.table), device=self.table.device)
        self.table.copy_(super().embed(torch.zeros_like(self.table), rows))

    def embed(self, x, pos):
        return x + self.table[pos.clamp(min=0)].to(x.dtype)


@planted(limit="set self.limit", beyond_the_longest="`limit`")
class LearnedWithoutLimit(Learned):
    """It has a row per position of its extent, and no limit."""

    def __init__(self, dim, heads, extent):
        super().__init__(dim, heads, extent)
        self.limit = None


@planted(every_place_is_its_own="are one place", order_matters="does not notice")
class FirstRowTwice(Learned):
    """Rows are counted from one, and positions 0 and 1 share the first."""

    def embed(self, x, pos):
        return x + self.table((pos - 1).clamp(min=0)).to(x.dtype)


@planted(grids="IndexError")
class ForgetsSpecialTokens(Learned):
    """It has no row for special tokens, which stand at positions below zero."""

    def embed(self, x, pos):
        return x + self.table(pos).to(x.dtype)


@planted(evaluation_is_deterministic="draws random numbers")
class JittersInEvaluation(Sinusoidal):
    """Positions are jittered, in evaluation as in training."""

    def embed(self, x, pos):
        return super().embed(x, pos + torch.rand(()).to(x.device).lt(0.5).long() * 3)


@planted(parent=NoPosition, order_matters="does not notice")
class DoesNothing(Position):
    """It changes nothing, and does not say so by orders = False."""


@planted(every_parameter_learns="is zero")
class LearnedDetached(Learned):
    """The table is looked up without its graph."""

    def embed(self, x, pos):
        return x + (self.table(pos + self.extent.special).detach() + 0 * self.table.weight.sum()).to(x.dtype)


@planted(positions_are_given="use pos", decoding="positions as they are given")
class RoPECounts(RoPE):
    """It counts the tokens that it turns from 0."""

    def rotate(self, x, pos):
        return super().rotate(x, torch.arange(x.size(-2), device=x.device))


@planted(positions_are_given="rows of a batch")
class RoPEFirstRow(RoPE):
    """It turns all rows of a batch by the positions of the first."""

    def rotate(self, x, pos):
        return super().rotate(x, pos if pos.dim() == 1 else pos[:1])


@planted(low_precision="compute angles in float32")
class RoPEInHalf(RoPE):
    """Angles are computed in the dtype of the queries: bfloat16 is off by more than a turn from position 512 on."""

    def rotate(self, x, pos):
        frequency = self.base ** -(torch.arange(0, x.size(-1), 2, device=x.device) / x.size(-1))
        turn = pos[..., None].to(x.dtype) * frequency.to(x.dtype)
        first, second = x.chunk(2, -1)
        return torch.cat([first * turn.cos() - second * turn.sin(), first * turn.sin() + second * turn.cos()], -1)


@planted(low_precision="gives torch.float32")
class RoPEReturnsFloat32(RoPE):
    """Turned queries stay in float32, unlike the values."""

    def rotate(self, x, pos):
        return super().rotate(x.to(torch.promote_types(x.dtype, torch.float32)), pos)


@planted(turning_keeps_lengths="changes lengths")
class WrongPairs(RoPE):
    """Neighbours have an angle in common, and halves are turned against each other."""

    def rotate(self, x, pos):
        turn = angles(pos, x.size(-1), self.base, x.dtype).repeat_interleave(2, -1)
        first, second = x.to(turn.dtype).chunk(2, -1)
        return (x * turn.cos() + torch.cat([-second, first], -1) * turn.sin()).to(x.dtype)


@planted(turning_keeps_lengths="changes lengths")
class WrongSign(RoPE):
    """Both halves get a plus, which is no rotation."""

    def rotate(self, x, pos):
        turn = angles(pos, x.size(-1), self.base, x.dtype)
        first, second = x.to(turn.dtype).chunk(2, -1)
        return torch.cat([first * turn.cos() + second * turn.sin(), first * turn.sin() + second * turn.cos()], -1).to(
            x.dtype
        )


@planted(turning_keeps_lengths="turn all heads alike", padding="padding on the left")
class TurnsQueriesOnly(RoPE):
    """Of the heads that it is given it turns the first half, which are the queries."""

    def rotate(self, x, pos):
        half = max(1, x.size(1) // 2)
        return torch.cat([super().rotate(x[:, :half], pos), x[:, half:]], 1)


@planted(grids="use every axis", every_place_is_its_own="are one place")
class FirstAxisOnly(RoPE):
    """On a grid it turns by the row and ignores the column."""

    def rotate(self, x, pos):
        turn = angles(self.extent.axes(pos)[0], x.size(-1), self.base, x.dtype)
        first, second = x.to(turn.dtype).chunk(2, -1)
        return torch.cat([first * turn.cos() - second * turn.sin(), first * turn.sin() + second * turn.cos()], -1).to(
            x.dtype
        )


@planted(impossible_widths="Refuse them in check")
class ChecksNoWidth(RoPE):
    """It does not refuse widths that have no pairs."""

    def check(self, head_dim):
        pass


@planted(no_state_between_calls="does not depend on earlier calls")
class CachesFirstLength(RoPE):
    """Angles of the first call are kept, and the next call may be longer."""

    def rotate(self, x, pos):
        if not hasattr(self, "turn"):
            self.turn = angles(pos, x.size(-1), self.base, x.dtype)
        first, second = x.to(self.turn.dtype).chunk(2, -1)
        cos, sin = self.turn.cos(), self.turn.sin()
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1).to(x.dtype)
