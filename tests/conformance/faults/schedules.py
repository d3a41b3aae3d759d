"""Wrong schedules: rates below zero, rates of zero, and factors that remember."""

import torch

from faults import planted
from zoo.tasks.schedule import Constant, Cosine, Linear


@planted(finite_factors="is not negative")
class FallsThroughZero(Linear):
    """The line goes on below zero behind the end."""

    def shape(self, step, done):
        return 1.0 - (step - self.warmup) / max(1, self.total - self.warmup)


@planted(finite_factors="raised ZeroDivisionError")
class DividesByLength(Linear):
    """A run of one step is divided by its length without it."""

    def shape(self, step, done):
        return max(0.0, 1.0 - step / (self.total - 1))


@planted(learns="count from step + 1")
class FirstStepIsLost(Constant):
    """The first step has no rate."""

    def __call__(self, step):
        return min(1.0, step / 10)


@planted(learns="is the peak")
class HalfTheRate(Cosine):
    """The rate never reaches the one that was set."""

    def __call__(self, step):
        return 0.5 * super().__call__(step)


@planted(step_alone="starting at step 30")
class CountsCalls(Linear):
    """It counts how often it was called."""

    def __init__(self, total: int, warmup: int = 0, floor: float = 0.0):
        super().__init__(total, warmup, floor)
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return super().__call__(min(self.calls - 1, self.total))


@planted(step_alone="draws random numbers")
class Jitters(Constant):
    """The rate is drawn and thrown away."""

    def shape(self, step, done):
        torch.rand(())
        return 1.0


@planted(warms_up="does not rise")
class IgnoresWarmUp(Cosine):
    """It has the option and does not read it."""

    def __call__(self, step):
        return self.shape(step, min(1.0, step / max(1, self.total)))


@planted(plain_state="cannot hold its attributes")
class HoldsAFunction(Linear):
    """An attribute is a function."""

    def __init__(self, total: int, warmup: int = 0, floor: float = 0.0):
        super().__init__(total, warmup, floor)
        self.curve = torch.nn.Identity()


@planted(plain_state="with the attributes of a checkpoint")
class KeepsItsLengthElsewhere(Linear):
    """What it needs is not among its attributes."""

    __slots__ = ("hidden_total",)

    def __init__(self, total: int, warmup: int = 0, floor: float = 0.0):
        super().__init__(total, warmup, floor)
        self.hidden_total = total

    def shape(self, step, done):
        return max(0.0, 1.0 - step / self.hidden_total)
