"""How the learning rate moves over a run: a linear warm-up, then a shape."""

import math

from zoo.errors import UsageError


class Schedule:
    """The factor on the learning rate at an optimiser step, of ``total``; the first ``warmup`` steps rise linearly."""

    def __init__(self, total: int, warmup: int = 0):
        if warmup < 0:
            raise UsageError(f"schedule.warmup is a number of steps, got {warmup}.")
        self.total, self.warmup = total, warmup

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return (step + 1) / self.warmup
        return self.shape(step, min(1.0, (step - self.warmup) / max(1, self.total - self.warmup)))

    def shape(self, step: int, done: float) -> float:
        """The factor at ``step``, with a share ``done`` of the steps after warm-up done. Raises NotImplementedError."""
        raise NotImplementedError


class Constant(Schedule):
    """The full rate after warm-up."""

    def shape(self, step: int, done: float) -> float:
        """1."""
        return 1.0


class Linear(Schedule):
    """A straight line down to ``floor``."""

    def __init__(self, total: int, warmup: int = 0, floor: float = 0.0):
        super().__init__(total, warmup)
        self.floor = floor

    def shape(self, step: int, done: float) -> float:
        """1 - (1 - floor) * done."""
        return 1.0 - (1.0 - self.floor) * done


class Cosine(Schedule):
    """Half a cosine down to ``floor`` (Loshchilov and Hutter, 2017)."""

    def __init__(self, total: int, warmup: int = 0, floor: float = 0.1):
        super().__init__(total, warmup)
        self.floor = floor

    def shape(self, step: int, done: float) -> float:
        """floor + (1 - floor) * (1 + cos(pi * done)) / 2."""
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * done))


class InverseSqrt(Schedule):
    """sqrt(warmup / step) (Vaswani et al., 2017, scaled so that the rate peaks at the learning rate given)."""

    def shape(self, step: int, done: float) -> float:
        """sqrt(warmup / step)."""
        return math.sqrt(max(1, self.warmup) / max(1, step))
