"""The base class of trained models, and the types of their results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from zoo import registry
from zoo.data.tokenizer import Tokenizer
from zoo.errors import CheckpointError, NonFiniteError, UsageError
from zoo.inference.find_run import ModelLocation
from zoo.inference.rebuild_task import TaskNetwork, task_of_network
from zoo.parts.disentangled import KeylessBias
from zoo.parts.few_row_linear import Linear, Packed
from zoo.parts.int8 import quantize

if TYPE_CHECKING:
    from zoo.tasks.task import Task

# methods that are named to the user, besides those that a command of an installed package calls by its own name
ABILITIES = ("generate", "translate", "classify", "score", "transcribe", "chat")


class GeneratedText(NamedTuple):
    """A text, its log-probability including the end token, and whether it ended before the maximum length."""

    text: str
    score: float
    ended: bool


class Gap(NamedTuple):
    """The texts before and behind what is to be filled in."""

    prefix: str
    suffix: str


class Score(NamedTuple):
    """The log-probability of a text (natural logarithm), with its numbers of tokens and UTF-8 bytes."""

    log_probability: float
    tokens: int
    bytes: int

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of text; NaN without bytes."""
        return -self.log_probability / math.log(2) / self.bytes if self.bytes else math.nan

    @property
    def perplexity(self) -> float:
        """Perplexity per token; NaN without tokens."""
        return math.exp(min(-self.log_probability / self.tokens, 700.0)) if self.tokens else math.nan


class CannotError(UsageError, AttributeError):
    """A trained model was used for something that only another task can do."""


class Trained:
    """A model with its trained weights and files; subclasses add methods such as ``generate`` and ``classify``.

    It is made from a task, or from the network of one, which needs no Lightning; ``module`` is what it was made from.
    """

    rounded: Sequence[Packed] = ()  # matrices in 8 bits, which are used while they are referenced
    files: tuple[str, ...] = ()  # files of the run folder that inference needs, such as tokenizer.json
    # "module:function" of a model, a text and an image: the `zoo.explain.inside.Inputs` that `zoo explain` follows
    explained_inputs: ClassVar[str] = ""

    def __init__(self, task: Task | TaskNetwork, place: ModelLocation) -> None:
        self.module: Task | TaskNetwork = task
        self.place = place

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.task_name}, {self.place.weights})"

    def __getattr__(self, name: str) -> Any:
        if name in ABILITIES or registry.parts_called("command", name):
            own = ", ".join(self.abilities)
            raise CannotError(f"{self.place.folder} is a {self.task_name}: it can {own}, and cannot {name}.")
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    @property
    def abilities(self) -> list[str]:
        """The methods that it has of ABILITIES, and those that commands are named after."""
        names = dict.fromkeys([*ABILITIES, *(part.name.lower() for part in registry.parts("command"))])
        return [name for name in names if hasattr(type(self), name) and not hasattr(Trained, name)]

    @property
    def task(self) -> Task:
        """The task, a LightningModule that holds ``net``: with its loss and metrics, which import Lightning."""
        if isinstance(self.module, TaskNetwork):
            self.module = task_of_network(self.module, self.place)
        return self.module

    @property
    def task_name(self) -> str:
        """The name of the task's class."""
        return str(self.place.config["model"]["class_path"]).rpartition(".")[2]

    @property
    def net(self) -> Any:
        """The model itself, a torch module."""
        return self.module.net

    @property
    def tokenizers(self) -> list[Tokenizer]:
        """Its tokenizers; none for images."""
        return [value for value in vars(self).values() if isinstance(value, Tokenizer)]

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.module.device  # not that of the first parameter: n-gram models have none

    def use_bf16(self) -> None:
        """Hold all weights in bfloat16 from now on, half the bytes, and compute in it.

        Raises UsageError for a model without weights, or with 8-bit products.
        """
        if self.rounded:
            raise UsageError("bf16: this model computes in 8 bits, which serve float32. Use one of the two.")
        if not any(weight.is_floating_point() for weight in self.net.parameters()):
            raise UsageError(f"bf16: {type(self.net).__name__} has no weights to round. Leave --dtype bf16 out.")
        self.net.to(torch.bfloat16)

    def quantise(self) -> None:
        """Use 8-bit matrix products from now on, on a CPU. Raises UsageError if that is not possible."""
        if getattr(self, "draft", None) is not None:
            raise UsageError("8-bit matrices do not go with speculation: call speculate(None) first.")
        linears = [module.weight for module in self.net.modules() if isinstance(module, (Linear, KeylessBias))]
        output = getattr(self.net, "output", None)  # language models have one
        self.rounded = quantize([*linears, *([output] if linears and isinstance(output, Tensor) else [])])

    def __getstate__(self) -> dict[str, Any]:
        """A copy has matrices of its own, which are rounded anew."""
        return {**self.__dict__, "rounded": bool(self.rounded)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a copied state."""
        self.__dict__.update(state | {"rounded": ()})
        if state["rounded"]:
            self.quantise()

    def check_entries(self, option: str, size: int, file: str) -> None:
        """Raise CheckpointError if ``file`` has more entries (tokens, classes) than the model's ``option``."""
        entries = (self.place.config["model"].get("init_args") or {}).get(option)
        if isinstance(entries, int) and size > entries:
            raise CheckpointError(
                f"{self.place.folder / file} has {size} entries, and the model's {option} is {entries}: "
                "it belongs to another run. Copy the file of this run there."
            )

    def require_finite(self, answer: Tensor) -> Tensor:
        """The model's output of any shape, unchanged. Raises NonFiniteError if it has NaN, as after an overflow."""
        if answer.isnan().any():
            raise NonFiniteError(
                f"{self.place.weights}: the output of the model is not a number (nan): it overflows, or training "
                "diverged. Use an earlier checkpoint."
            )
        return answer

    def extra(self) -> dict[str, Any]:
        """Additional entries of an export's config.json."""
        return {}

    def export(self, folder: str | Path, force: bool = False) -> Path:
        """Export weights, configuration and files to a folder that ``zoo.load`` reads; returns the folder.

        Raises UsageError if the folder is not empty, unless ``force``.
        """
        from zoo.inference.export import export

        return export(self, Path(folder).expanduser(), force)


def as_list(value: str | Iterable[str]) -> list[str]:
    """One text or many, as a list."""
    return [value] if isinstance(value, str) else list(value)
