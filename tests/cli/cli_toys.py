"""Small classes with every kind of slot, so that resolving is tested without the real parts."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch.optim import SGD, Optimizer

INSTANCES: list[str] = []


class Norm:
    kind = "norm"


class RMS(Norm):
    """x over its root mean square."""

    def __init__(self, dim: int, eps: float = 1e-6):
        self.dim, self.eps = dim, eps


class Layer(Norm):
    """x less its mean, over its deviation."""

    def __init__(self, dim: int, eps: float = 1e-5, bias: bool = True):
        self.dim, self.eps, self.bias = dim, eps, bias


class Backend:
    kind = "backend"


class Fast(Backend):
    def __init__(self, tile: int = 3):
        self.tile = tile


class Attention:
    kind = "attention"


class Sliding(Attention):
    def __init__(self, dim: int, heads: int, window: int = 4, groups: int | None = None):
        if window < 1:
            raise ValueError(f"window={window} must be at least 1")
        self.window, self.groups = window, groups


class Plan:
    """A schedule, which no registry lists."""


class Flat(Plan):
    def __init__(self, total: int, warmup: int = 0):
        self.warmup = warmup


class Steep(Plan):
    def __init__(self, total: int, power: float = 2.0):
        self.power = power


@dataclass(frozen=True)
class Extra:
    lower: bool = True
    share: float = 0.5


class Stack:
    def __init__(
        self,
        extent: int,
        *,
        dim: int = 8,
        heads: int = 2,
        norm: Callable[[int], Norm] = RMS,
        backend: Callable[[], Backend] | None = None,
        attention: Callable[[int, int], Attention] = Sliding,
    ):
        self.norm, self.attention = norm(dim), attention(dim, heads)


class Task:
    kind = "task"


class Toy(Task):
    """A toy task."""

    def __init__(
        self,
        vocab_size: int | None = None,
        lr: float = 1e-3,
        optimizer: Callable[[list, float], Optimizer] = SGD,
        schedule: Callable[[int], Plan] = Flat,
        mode: Literal["sum", "mean"] = "mean",
        sizes: tuple[int, ...] = (1,),
        names: list[str] | None = None,
        flag: bool = False,
        limit: int | None = None,
        where: Path | None = None,
        share: float | str = 0.1,
        **stack,
    ):
        INSTANCES.append("Toy")
        self.stack = Stack(3, **stack)


class Similar(Task):
    """Has the network of Toy, and options that Toy lacks or takes otherwise."""

    def __init__(
        self,
        vocab_size: int | None = None,
        lr: float = 1e-2,
        optimizer: Callable[[list, float], Optimizer] = SGD,
        schedule: Callable[[int], Plan] = Steep,
        mode: int = 3,
        ahead: int = 1,
        **stack,
    ):
        self.stack = Stack(3, **stack)


class Other(Task):
    def __init__(self, smooth: float = 0.0):
        self.smooth = smooth


class Data:
    kind = "data"


class Text(Data):
    """Toy data."""

    def __init__(self, path: str, batch_size: int = 2, extra: Extra | None = None, num_workers: int = 0):
        self.path = path


class Trainer:
    def __init__(self, max_epochs: int | None = None, max_steps: int = -1, strategy: str | Plan = "auto",
                 callbacks: list[Plan] | Plan | None = None, devices: list[int] | str | int = "auto"):  # fmt: skip
        self.max_epochs = max_epochs
