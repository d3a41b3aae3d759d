"""What every trained model shares, and what their answers look like."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.errors import CheckpointError, NonFiniteError, UsageError
from zoo.inference.find_run import ModelLocation
from zoo.parts.few_row_linear import Linear
from zoo.parts.int8 import quantize
from zoo.tasks.task import Task

SCORED_ROWS = ("generate", "translate", "classify", "score", "fill", "tag")


class GeneratedText(NamedTuple):
    """A text, its log-probability with its end, and whether it ended itself before the longest length."""

    text: str
    score: float
    ended: bool


class Score(NamedTuple):
    """How probable a text is to a model: natural logarithm, and over how many tokens and bytes of UTF-8."""

    log_probability: float
    tokens: int
    bytes: int

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of text; nan where no byte was scored."""
        return -self.log_probability / math.log(2) / self.bytes if self.bytes else math.nan

    @property
    def perplexity(self) -> float:
        """Per token; nan where no token was scored."""
        return math.exp(min(-self.log_probability / self.tokens, 700.0)) if self.tokens else math.nan


class CannotError(UsageError, AttributeError):
    """A trained model was asked for what another task does."""


class Trained:
    """A task with its weights and the files it needs, ready to be asked; a subclass says what can be asked."""

    files: tuple[str, ...] = ()  # what the data saved in the run's folder and the model needs

    def __init__(self, task: Task, place: ModelLocation) -> None:
        self.task, self.place = task, place

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.task).__name__}, {self.place.weights})"

    def __getattr__(self, name: str) -> Any:
        if name in SCORED_ROWS:
            own = ", ".join(one for one in SCORED_ROWS if hasattr(type(self), one))
            raise CannotError(f"{self.place.folder} is a {type(self.task).__name__}: it can {own}, and cannot {name}.")
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    @property
    def net(self) -> Any:
        """The model itself, a torch module."""
        return self.task.net

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.task.device  # not of its first parameter: a model that counts has none

    def quantise(self) -> None:
        """Compute matrix products in eight bits from now on, on a CPU. Raises UsageError where that cannot be."""
        linears = [module.weight for module in self.net.modules() if isinstance(module, Linear)]
        output = getattr(self.net, "output", None)  # of a model that writes
        self.rounded = quantize([*linears, *([output] if linears and isinstance(output, Tensor) else [])])

    def agree(self, option: str, size: int, file: str) -> None:
        """Raise CheckpointError where a file names more tokens or classes than the model was built for."""
        written = (self.place.config["model"].get("init_args") or {}).get(option)
        if isinstance(written, int) and size > written:
            raise CheckpointError(
                f"{self.place.folder / file} has {size} entries, and the model's {option} is {written}: "
                "it belongs to another run. Copy the file of this run there."
            )

    def numbers(self, answer: Tensor) -> Tensor:
        """What the model answered. Raises NonFiniteError where that is no number, such as after an overflow."""
        if answer.isnan().any():
            raise NonFiniteError(
                f"{self.place.weights}: what the model answers is not a number (nan): it overflows, or it diverged "
                "while it was trained. Take an earlier checkpoint."
            )
        return answer

    def extra(self) -> dict[str, Any]:
        """What an export must say besides the task, its options and its files."""
        return {}

    def export(self, folder: str | Path, force: bool = False) -> Path:
        """Save weights, configuration and files into a folder that ``zoo.load`` reads."""
        from zoo.inference.export import export

        return export(self, Path(folder).expanduser(), force)


def several(value: str | Iterable[str]) -> list[str]:
    """One text or many, as a list."""
    return [value] if isinstance(value, str) else list(value)
