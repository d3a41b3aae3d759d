"""What a family of published models is: its configuration and its tensors, both readable and writable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zoo.errors import UsageError
from zoo.families.rule import Mapped, Tensors

Config = Mapping[str, Any]
Options = dict[str, Any]
# their names of activations, ours, and the name that we write
ACTIVATIONS = {
    "gelu": "gelu", "relu": "relu", "silu": "swish", "swish": "swish",
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
}  # fmt: skip
WRITTEN = {"gelu": "gelu", "relu": "relu", "swish": "silu", "gelu_tanh": "gelu_new"}


@dataclass(frozen=True)
class Family:
    """A family: which checkpoints belong to it, and how each becomes a task of ours with its options.

    ``options`` reads their configuration; ``config`` writes one, and ``options`` of what it wrote must give the same
    options again, or the model is none of this family. ``fixed`` names what their configuration must say, or not
    mention, since our model has no such option. ``mapped`` gives the tensors' mapping for a configuration. ``noticed``
    corrects a configuration by the tensors beside it, where its family's files are known to say something else.
    """

    name: str
    types: tuple[str, ...]  # model_type, or timm's architecture
    architectures: tuple[str, ...]  # the heads that are read; the first is written
    task: str  # a class path
    options: Callable[[Config], Options]
    config: Callable[[Options], Options]
    mapped: Callable[[Config], Mapped]
    fixed: Mapping[str, Any]
    noticed: Callable[[Config, Tensors], Config] = lambda config, tensors: config
    prefix: str = ""  # of all keys, left out where the checkpoint was saved without its head

    @property
    def architecture(self) -> str:
        """The name of the class that loads what we write."""
        return self.architectures[0]

    def checked(self, config: Config, source: str) -> Options:
        """The options of a configuration. Raises UsageError for one that our parts cannot express."""
        for key, right in self.fixed.items():
            found = config.get(key, right)
            if found != right:
                raise UsageError(f"{source}: {key}={found!r} is not supported in {self.name}; {right!r} would be.")
        try:
            return self.options(config)
        except KeyError as error:
            raise UsageError(f"{source} lacks {error}, which a {self.name} configuration has.") from error


def part(path: str, **options: Any) -> Options:
    """A part as a configuration names it: ``norm.RMSNorm`` lies in zoo.parts."""
    return {"class_path": f"zoo.parts.{path}", "init_args": options}


def name_of(value: object) -> str:
    """The class of a part in complete options."""
    return str(value["class_path"]).rpartition(".")[2] if isinstance(value, Mapping) else "None"


def inner(value: object) -> Mapping[str, Any]:
    """The options of a part in complete options."""
    return (value.get("init_args") or {}) if isinstance(value, Mapping) else {}


def activation(name: object, source: str = "config.json") -> str:
    """Our name of an activation. Raises UsageError for one that we do not have."""
    if name not in ACTIVATIONS:
        raise UsageError(f"{source}: activation {name!r} is not supported. There are: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[str(name)]


def budget(width: int) -> int:
    """The ``hidden`` that gives a gated feed-forward exactly this width."""
    return (3 * width + 1) // 2


def width(hidden: int, multiple: int = 1) -> int:
    """The width of a gated feed-forward with this budget."""
    return -(-max(1, 2 * hidden // 3) // multiple) * multiple
