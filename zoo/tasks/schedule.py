"""How the learning rate moves over a run: a linear warm-up, then a shape."""

import math
from typing import ClassVar, Literal

from zoo.value_checks import a_rate, at_least


class Schedule:
    """The factor on the learning rate at an optimiser step, of ``total``; the first ``warmup`` steps rise linearly.

    It is a function of the step alone, so that a run which is resumed goes on with the same learning rates.
    """

    kind: ClassVar = "schedule"

    def __init__(self, total: int, warmup: int = 0):
        """
        Args:
            total: steps of the run, given by the task.
            warmup: steps in which the rate rises linearly.
        """
        at_least(0, **{"schedule.warmup": warmup})
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


class Falling(Schedule):
    """A schedule down to ``floor``."""

    def __init__(self, total: int, warmup: int = 0, floor: float = 0.0):
        """
        Args:
            floor: the factor that a step after the last one would have.
        """
        super().__init__(total, warmup)
        at_least(0, **{"schedule.floor": floor})
        self.floor = floor


class Linear(Falling):
    """A straight line down to ``floor``."""

    def shape(self, step: int, done: float) -> float:
        """1 - (1 - floor) * done."""
        return 1.0 - (1.0 - self.floor) * done


class Cosine(Falling):
    """Half a cosine down to ``floor`` (Loshchilov and Hutter, 2017)."""

    def __init__(self, total: int, warmup: int = 0, floor: float = 0.1):
        """
        Args:
            floor: the factor that a step after the last one would have.
        """
        super().__init__(total, warmup, floor)

    def shape(self, step: int, done: float) -> float:
        """floor + (1 - floor) * (1 + cos(pi * done)) / 2."""
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * done))


class InverseSqrt(Schedule):
    """sqrt(warmup / step) (Vaswani et al., 2017, scaled so that the rate peaks at the learning rate given)."""

    def shape(self, step: int, done: float) -> float:
        """sqrt(warmup / (step + 1)): the paper counts steps from 1, as the warm-up does."""
        return math.sqrt(max(1, self.warmup) / (step + 1))


class WSD(Falling):
    """Warm-up, a stable rate, then a decay to ``floor`` over the last steps (Hu et al., 2024; Hägele et al., 2024).

    The stable part does not depend on the length of the run: a longer run shares its beginning.
    """

    def __init__(
        self,
        total: int,
        warmup: int = 0,
        decay: float = 0.2,
        floor: float = 0.0,
        curve: Literal["sqrt", "linear"] = "sqrt",
    ):
        """
        Args:
            decay: share of all steps that the decay takes, at the end.
            floor: the factor that a step after the last one would have.
            curve: 1 - sqrt(x) or 1 - x over the share x of the decay that is done.
        """
        super().__init__(total, warmup, floor)
        a_rate(**{"schedule.decay": decay})
        self.curve = curve
        self.decay_steps = min(round(decay * total), max(0, total - warmup))

    def shape(self, step: int, done: float) -> float:
        """1, then floor + (1 - floor) * (1 - sqrt(x)), or 1 - x."""
        start = self.total - self.decay_steps
        if step < start:
            return 1.0
        share = min(1.0, (step - start) / max(1, self.decay_steps))
        return self.floor + (1.0 - self.floor) * (1.0 - (math.sqrt(share) if self.curve == "sqrt" else share))
