"""A family of published models: how its configuration and its tensors are converted, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zoo.errors import UsageError
from zoo.pretrained.config_keys import Keys, shorten
from zoo.pretrained.tensor_mapping import MappedTensors, Tensors

Config = Mapping[str, Any]
Options = dict[str, Any]
# their names of activations, ours, and the name that we write
ACTIVATIONS = {
    "gelu": "gelu", "relu": "relu", "silu": "swish", "swish": "swish",
    "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh", "gelu_accurate": "gelu_tanh",
}  # fmt: skip
ACTIVATION_NAMES = {"gelu": "gelu", "relu": "relu", "swish": "silu", "gelu_tanh": "gelu_new"}


@dataclass(frozen=True)
class Family:
    """A family of checkpoints, and how each is converted to a task of zoo with its options.

    ``keys`` are all that their configuration may hold. ``options`` reads a complete one; ``config`` writes one, and
    ``options`` of what it wrote must give the same options again, or the model is none of this family. ``mapped`` gives
    the tensors' mapping for a complete configuration. ``noticed`` corrects a configuration by the tensors beside it,
    where its family's files are known to say something else; ``supplied`` adds tensors that their library makes up.
    """

    name: str
    types: tuple[str, ...]  # model_type, or timm's architecture
    architectures: tuple[str, ...]  # the heads that are read; the first is written
    task: str  # a class path
    options: Callable[[Config], Options]
    config: Callable[[Options], Options]
    map_tensors: Callable[[Config], MappedTensors]
    keys: Keys
    noticed: Callable[[Config, Tensors], Config] = lambda config, tensors: config
    supplied: Callable[[Config, Tensors], Tensors] = lambda config, tensors: tensors
    filled: Callable[[Config, str], Options] | None = None  # instead of what ``keys`` make complete
    prefix: str = ""  # of all keys, left out where the checkpoint was saved without its head

    @property
    def architecture(self) -> str:
        """The name of the class that loads what we write; empty where the configuration has no word for it."""
        return self.architectures[0] if self.architectures else ""

    def complete(self, config: Config, source: str) -> dict[str, Any]:
        """A configuration with the peer's default of each key that it lacks.

        Raises UsageError that names a key which is not read, or whose value has another type.
        """
        return self.filled(config, source) if self.filled else self.keys.complete(config, self.name, source)


def part(path: str, **options: Any) -> Options:
    """A part as a configuration names it: ``norm.RMSNorm`` lies in zoo.parts."""
    return {"class_path": f"zoo.parts.{path}", "init_args": options}


def name_of(value: object) -> str:
    """The class of a part in complete options."""
    return str(value["class_path"]).rpartition(".")[2] if isinstance(value, Mapping) else "None"


def inner(value: object) -> Mapping[str, Any]:
    """The options of a part in complete options."""
    return (value.get("init_args") or {}) if isinstance(value, Mapping) else {}


def activation(config: Config, key: str) -> str:
    """Our name of the activation that a key names. Raises UsageError for one that we do not have."""
    name = config[key]
    if name not in ACTIVATIONS:
        there = ", ".join(ACTIVATIONS)
        raise UsageError(f"config.json: {key}: activation {name!r} is not supported. There are: {there}.")
    return ACTIVATIONS[name]


def unsupported_value(config: Config, key: str, name: str, right: str) -> UsageError:
    """The error for a key whose value is valid but not supported by zoo."""
    return UsageError(f"config.json: {key}={shorten(config.get(key))} is not supported in {name}; {right} would be.")


def budget(width: int) -> int:
    """The ``hidden`` that gives a gated feed-forward exactly this width."""
    return (3 * width + 1) // 2


def width(hidden: int, multiple: int = 1) -> int:
    """The width of a gated feed-forward with this budget."""
    return -(-max(1, 2 * hidden // 3) // multiple) * multiple
