"""A family of published models: how its configuration and its tensors are converted, in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from zoo.errors import UsageError
from zoo.inference.weight_files import LazyTensors
from zoo_pretrained.config_keys import Keys, shorten
from zoo_pretrained.tensor_mapping import MappedTensors, ReadTensors, Tensors, read_published, write_published

Config = Mapping[str, Any]
Options = dict[str, Any]
SENTENCES = "sentence_transformers"  # the key of a configuration for what the files of that library say
# their names of activations, ours, and the name that we write
ACTIVATIONS = {
    "gelu": "gelu", "relu": "relu", "silu": "swish", "swish": "swish",
    "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu", "gelu_python_tanh": "gelu_tanh", "gelu_accurate": "gelu_tanh",
}  # fmt: skip
ACTIVATION_NAMES = {"gelu": "gelu", "relu": "relu", "swish": "silu", "gelu_tanh": "gelu_new",
                    "quick_gelu": "quick_gelu"}  # fmt: skip


class Family:
    """A family of checkpoints, and how each is converted to a task of zoo with its options, and back.

    A package registers it by an entry point in the group ``zoo.family``. `zoo import` asks each family whether it
    ``claims`` a configuration; `zoo export` tries those of a ``format`` and writes the family whose ``config``, read
    by ``options`` again, gives all options of the model.
    """

    kind = "family"
    name: str  # in messages, and in the files of an import
    types: ClassVar[tuple[str, ...]]  # the values of model_type
    architectures: ClassVar[tuple[str, ...]]  # the heads that are read; the first is written
    task: str  # a class path
    keys: ClassVar[Keys]  # all that the configuration may hold
    example: ClassVar[Mapping[str, Any]]  # the configuration of a tiny model, by which `zoo check` tries it
    prefix = ""  # of all keys, left out where the checkpoint was saved without its head
    format = "hf"  # of its checkpoints
    # by the word of `zoo export --format`, "module:function" that writes a trained model into a folder
    exporters: ClassVar[Mapping[str, str]] = {
        "hf": "zoo_pretrained.hf_export:export_pretrained",
        "transformers": "zoo_pretrained.transformers_export:export_transformers",
    }

    @property
    def architecture(self) -> str:
        """The name of the class that loads what we write; empty where the configuration has no word for it."""
        return self.architectures[0] if self.architectures else ""

    def claims(self, config: Config) -> bool:
        """Whether a published configuration belongs to this family, or to another head of its models."""
        return config.get("model_type") in self.types

    def claims_folder(self, folder: Path) -> bool:
        """Whether other files of a checkpoint name this kind of model, whichever head its configuration names."""
        return False

    def read_beside(self, folder: Path) -> dict[str, Any]:
        """Keys of a configuration that other files of a checkpoint stand for."""
        return {}

    def tensors_beside(self, folder: Path, config: Config) -> Tensors:
        """Tensors in other files of a checkpoint, for a complete configuration."""
        return {}

    def import_beside(self, folder: Path, config: Config) -> None:
        """Write into an import what no option of the task says."""

    def export_beside(
        self, folder: Path, run: Path, options: Options, config: dict[str, Any], tensors: LazyTensors
    ) -> tuple[dict[str, Any], LazyTensors]:
        """Write the other files of a checkpoint, from a run; the configuration and the tensors that remain."""
        return config, tensors

    def complete(self, config: Config, source: str) -> dict[str, Any]:
        """A configuration with the peer's default of each key that it lacks.

        Raises UsageError that names a key which is not read, or whose value has another type.
        """
        return self.keys.complete(config, self.name, source)

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a complete configuration. Raises UsageError for unsupported values."""
        raise NotImplementedError

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for complete options of zoo's task, without model_type.

        Raises KeyError, TypeError or UsageError where it has no word for one of the parts.
        """
        raise NotImplementedError

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a complete configuration."""
        raise NotImplementedError

    def noticed(self, config: Config, tensors: Tensors) -> Config:
        """The configuration corrected by the tensors beside it, where files of the family are known to differ."""
        return config

    def supplied(self, config: Config, tensors: Tensors) -> Tensors:
        """Further tensors: those that their library makes up where a file lacks them."""
        return {}

    def write_config(self, options: Options) -> dict[str, Any]:
        """The published configuration with its model_type, as a file holds it."""
        return {**({"model_type": self.types[0]} if self.types else {}), **self.config(options)}

    def read_tensors(self, config: Config, tensors: Tensors, source: str) -> ReadTensors:
        """Tensors of zoo for published ones. Raises CheckpointError that names a key which no rule speaks of."""
        beside = self.prefixes_beside(config)
        read = LazyTensors.of(tensors).renamed({key: key for key in tensors if not key.startswith(beside)})
        result = read_published(read, self.map_tensors(config), source)
        return result._replace(constants=[*result.constants, *sorted(tensors.keys() - read.keys())])

    def prefixes_beside(self, config: Config) -> tuple[str, ...]:
        """Prefixes of tensors that are not read: those of other models in the checkpoint."""
        return ()

    def write_tensors(self, config: Config, tensors: Tensors) -> LazyTensors:
        """Published tensors for those of zoo. Raises CheckpointError for a tensor without a rule."""
        return write_published(tensors, self.map_tensors(config))


def part(path: str, **options: Any) -> Options:
    """A part as a configuration names it: ``norm.RMSNorm`` lies in zoo.parts."""
    return {"class_path": f"zoo.parts.{path}", "init_args": options}


def name_of(value: object) -> str:
    """The class of a part in complete options."""
    return str(value["class_path"]).rpartition(".")[2] if isinstance(value, Mapping) else "None"


def inner(value: object) -> Mapping[str, Any]:
    """The options of a part in complete options."""
    return (value.get("init_args") or {}) if isinstance(value, Mapping) else {}


def get_option(options: Mapping[str, Any], place: str) -> Any:
    """The option at a place such as ``norm.eps``, in complete options. Raises KeyError where there is none."""
    name, _, within = place.partition(".")
    return get_option(inner(options[name]), within) if within else options[name]


def set_option(options: Options, place: str, value: Any) -> None:
    """Set the option at a place such as ``norm.eps``."""
    name, _, within = place.partition(".")
    if within:
        set_option(options[name]["init_args"], within, value)
    else:
        options[name] = value


def read_places(config: Config, places: Mapping[str, str], options: Options) -> Options:
    """The options with the value of each key at its place, where an activation has our name."""
    for key, place in places.items():
        set_option(options, place, activation(config, key) if place == "ffn.activation" else config[key])
    return options


def write_places(options: Options, places: Mapping[str, str]) -> dict[str, Any]:
    """The keys with the value at each place of complete options, the inverse of `read_places`. Raises KeyError."""
    values = {**options, "hidden": options.get("hidden") or 4 * options["dim"]}
    config = {key: get_option(values, place) for key, place in places.items()}
    acts = {key: ACTIVATION_NAMES[config[key]] for key, place in places.items() if place == "ffn.activation"}
    return {**config, **acts}


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
