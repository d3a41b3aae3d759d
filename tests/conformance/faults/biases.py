"""Wrong position schemes that add a bias to scores."""

import math

import torch
from torch import nn

from faults import planted
from zoo.parts.position import T5, ALiBi, slopes


@planted(near_counts_most="it favours far tokens")
class PositiveSlope(ALiBi):
    """The penalty has lost its minus: the farther a key is, the more it weighs."""

    def bias(self, head, query, key):
        return -super().bias(head, query, key)


@planted(near_counts_most="places ahead")
class SignedDistance(ALiBi):
    """The distance has a sign, so that far keys to the right get a bonus."""

    def bias(self, head, query, key):
        return -self.slope[head] * (query - key) * ((query >= 0) & (key >= 0))


@planted(hooks="for 4 heads, 5 queries and 7 keys")
class BiasPerBatch(ALiBi):
    """The bias has a dimension for the batch, which it is not asked for."""

    def bias(self, head, query, key):
        return super().bias(head, query, key)[None]


@planted(bias_is_elementwise="bias of head")
class CountsKeys(ALiBi):
    """Keys are numbered by their column instead of their position."""

    def bias(self, head, query, key):
        column = torch.arange(key.size(-1), device=key.device) if key.dim() else torch.zeros_like(key)
        return super().bias(head, query, column.expand_as(key))


@planted(meta_construction="lost on the meta device")
class SlopesWhenMade(ALiBi):
    """The slopes are written in __init__ only, and are lost on the meta device."""

    def __init__(self, dim, heads, extent):
        super().__init__(dim, heads, extent)
        self.slope = torch.tensor(slopes(heads))

    def reset_parameters(self):
        pass


@planted(moves_with_the_module="a tensor stays behind")
class LooseSlopes(ALiBi):
    """The slopes are a plain tensor, which stays on the CPU when the model moves."""

    def __init__(self, dim, heads, extent):
        super().__init__(dim, heads, extent)
        self.loose = torch.tensor(slopes(heads))

    def bias(self, head, query, key):
        return -self.loose[head] * (query - key).abs() * ((query >= 0) & (key >= 0))


@planted(grids="its bias must be zero")
class SpecialTokenIsFar(ALiBi):
    """A special token counts as standing in the first row, at a distance from others."""

    def bias(self, head, query, key):
        return super().bias(head, query.clamp(min=0), key.clamp(min=0))


@planted(grids="use every axis")
class ALiBiFirstAxis(ALiBi):
    """On a grid the distance is that of rows."""

    def bias(self, head, query, key):
        rows = self.extent.axes(query)[0] - self.extent.axes(key)[0]
        return -self.slope[head] * rows.abs() * ((query >= 0) & (key >= 0))


@planted(order_matters="does not notice")
class PastIsNear(T5):
    """The sign of the gap is turned round, so that all of the past is at distance zero for a causal stack."""

    def bucket(self, gap):
        return super().bucket(-gap)


@planted(limit="IndexError", bias_is_elementwise="IndexError")
class BucketsOverflow(T5):
    """Distances beyond the reach get buckets that do not exist."""

    def bucket(self, gap):
        span = self.num_buckets // (1 if self.sided else 2)
        distance = (-gap).clamp(min=0) if self.sided else gap.abs()
        exact = span // 2
        far = distance.clamp(min=1).float()
        log = exact + (torch.log(far / exact) / math.log(10 / exact) * (span - exact)).long()
        return torch.where(distance < exact, distance, log) + (0 if self.sided else span * (gap > 0))


@planted(hooks="raised IndexError")
class BucketsAreFloats(T5):
    """Bucket numbers are floats, which index nothing."""

    def bucket(self, gap):
        return super().bucket(gap).float()


@planted(low_precision="compute distances in integers")
class BucketsInHalf(T5):
    """Buckets are found in the dtype of the table: in bfloat16 many distances fall into a wrong one."""

    def bucket(self, gap):
        span = self.num_buckets // (1 if self.sided else 2)
        distance = (-gap).clamp(min=0) if self.sided else gap.abs()
        exact = span // 2
        far = distance.clamp(min=1).to(self.table.dtype)
        log = exact + (torch.log(far / exact) / math.log(self.max_distance / exact) * (span - exact)).long()
        number = torch.where(distance < exact, distance, log.clamp(max=span - 1))
        return number if self.sided else number + span * (gap > 0)


@planted(state_round_trip="position.table is not saved")
class UnsavedTable(T5):
    """The table is a buffer that is not saved."""

    def __init__(self, dim, heads, extent, buckets: int = 32, reach: int = 128):
        super().__init__(dim, heads, extent, buckets, reach)
        table = torch.empty(self.table.shape)
        del self.table
        self.register_buffer("table", table, persistent=False)
        self.reset_parameters()


@planted(moves_with_the_module="a tensor stays behind")
class LooseTable(T5):
    """The table is a plain tensor: it neither moves nor learns nor is saved."""

    def __init__(self, dim, heads, extent, buckets: int = 32, reach: int = 128):
        super().__init__(dim, heads, extent, buckets, reach)
        shape = self.table.shape
        del self.table
        self.table = torch.empty(shape)
        self.reset_parameters()


@planted(every_parameter_learns="is zero")
class TableDetached(T5):
    """The bias is detached, and its table never learns."""

    def bias(self, head, query, key):
        return super().bias(head, query, key).detach() + 0 * self.table.sum()


@planted(distances="places further on")
class AbsoluteBias(ALiBi):
    """The bias depends on where the query stands, and it still declares to be relative."""

    def bias(self, head, query, key):
        return super().bias(head, query, key) - 0.01 * key


@planted(moves_with_the_module=".item()")
class LooksAtDistances(T5):
    """It looks at the largest distance to decide, so that a GPU waits in every pass."""

    def bias(self, head, query, key):
        result = super().bias(head, query, key)
        return result if int((query - key).abs().max()) < 10**6 else result.clamp(max=0)


@planted(initialisation="draw it there")
class TableWhenMade(T5):
    """The table is drawn in __init__ only."""

    def __init__(self, dim, heads, extent, buckets: int = 32, reach: int = 128):
        super().__init__(dim, heads, extent, buckets, reach)
        nn.init.normal_(self.table)

    def reset_parameters(self):
        pass


@planted(distances="positions change nothing")
class SameEverywhere(ALiBi):
    """All distances have the same penalty."""

    def bias(self, head, query, key):
        return -self.slope[head].expand(torch.broadcast_shapes(head.shape, query.shape, key.shape))
