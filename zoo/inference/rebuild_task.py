"""Rebuild a task, or its network alone, from the complete configuration that its run saved.

A task is a LightningModule with a loss, metrics and an optimiser: importing those costs more time than a token. Its
network is a torch module, whose options are those of the task without those of training. Tasks that do not declare
``training_options`` are rebuilt whole.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jsonargparse import Namespace
from torch import Tensor, nn

from zoo import registry
from zoo.errors import PluginError, UsageError, ZooError, root_cause
from zoo.inference.find_run import ModelLocation
from zoo.inference.import_policy import (
    admit_class,
    apply_policy,
    class_paths,
    is_allowed,
    restore_policy,
    search_trusted,
    stdlib_reason,
)
from zoo.inference.section_parser import SectionParser, section_parser
from zoo.plugins.description import describe_network
from zoo.plugins.safe_import import describe_import_error, import_object

if TYPE_CHECKING:
    from zoo.tasks.task import Task

TRAINING = ("lr", "optimizer", "schedule")  # options that tasks have and no network


class TaskNetwork(nn.Module):
    """What a checkpoint or an export of a task holds: its network, and the number of tokens that it was trained with.

    ``trained`` is the "module:Class" that uses it, ``allow`` are the modules that the configuration may import besides
    zoo and its plugins.
    """

    tokens_seen: Tensor

    def __init__(self, net: nn.Module, trained: str, allow: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.net: Any = net
        self.trained, self.allow = trained, allow
        self.register_buffer("tokens_seen", torch.zeros((), dtype=torch.long))

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.tokens_seen.device


def rebuild_task(config: Mapping[str, Any], source: Path, allow: tuple[str, ...] = ()) -> Task:
    """The task in ``config["model"]``, with random weights. ``source`` is its file in messages, ``allow`` are modules
    that it may import besides zoo and its plugins.

    Raises PluginError or UsageError if a class cannot be imported or built.
    """
    task: Task = _instantiate(task_parser(), import_section(config["model"], source, allow), source)
    return task


def rebuild_network(
    config: Mapping[str, Any], source: Path, allow: tuple[str, ...] = ()
) -> tuple[TaskNetwork, dict[str, Any]] | None:
    """The network of the task in ``config["model"]``, with random weights, and the section.

    The task is not imported. Options of training are not read; what they name must be classes that are allowed. None
    for a task whose network alone is not enough (`describe_network`), and for what `rebuild_task` refuses as a whole.

    Raises PluginError or UsageError as `rebuild_task` does.
    """
    model = _as_dicts(config["model"])
    task, init_args = str(model["class_path"]), model.get("init_args") or {}
    network = describe_network(*task.rsplit(".", 1)) if "." in task and is_allowed(task, allow) else None
    if network is None or not is_allowed(network.path, allow) or not isinstance(init_args, Mapping):
        return None
    others = {name: value for name, value in init_args.items() if name in (*network.training_options, *TRAINING)}
    options = {name: value for name, value in init_args.items() if name not in others}
    for path in class_paths(others):
        _import_class(path, source, allow)
    own = import_section({"class_path": network.path, "init_args": options}, source, allow)
    module, _, name = network.path.rpartition(".")
    net = _instantiate(section_parser(import_object(module, name)), own, source)
    return TaskNetwork(net, network.trained, allow), {"class_path": task, "init_args": {**others, **own["init_args"]}}


@restore_policy()
def task_of_network(module: TaskNetwork, place: ModelLocation) -> Task:
    """The task whose network with trained weights this is, in evaluation. Raises UsageError as `rebuild_task` does."""
    task = rebuild_task(place.config, place.source, module.allow)
    task.net, task.tokens_seen = module.net, module.tokens_seen
    return task.eval().requires_grad_(False).to(module.device)


def _instantiate(parser: SectionParser, model: Mapping[str, Any], source: Path) -> Any:
    """What a configuration describes as ``model``. Raises UsageError where it cannot be built."""
    try:
        # a copy: it changes dictionaries within lists. Without defaults, which classes have: they take half of the time
        parsed = parser.parse_object({"model": copy.deepcopy(dict(model))}, defaults=False)
        _refuse_functions("model", parsed.model, source)
        with torch.random.fork_rng(devices=[]):  # initial weights are random, and replaced later
            return parser.instantiate(parsed).model
    except Exception as error:
        deepest = root_cause(error)
        if isinstance(deepest, ZooError):
            raise deepest from deepest.__cause__  # not from `error`, whose own cause it is
        reason = " ".join(str(deepest).split())[:300]
        raise UsageError(f"{source} cannot be built with this version of zoo: {reason}") from error


def import_section(section: Mapping[str, Any], source: Path, allow: tuple[str, ...] = ()) -> dict[str, Any]:
    """A copy of a section, whose classes are imported; jsonargparse may import only these.

    Raises PluginError or UsageError, before anything is built, for a class that is not installed or not allowed.
    """
    options = dict(_as_dicts(section))
    apply_policy(allow)
    for path in class_paths(options):
        _import_class(path, source, allow)
    return options


def task_parser() -> SectionParser:
    """A parser for the configuration of a task."""
    from zoo.tasks.task import Task  # here: networks are rebuilt without Lightning

    return section_parser(Task)


@restore_policy()
def complete_options(model: Mapping[str, Any]) -> dict[str, Any]:
    """A task's class path and all of its options, including defaults."""
    apply_policy()
    options = {name: _with_defaults(value) for name, value in model["init_args"].items()}
    # merging defaults takes most of the time. Only optimizers, records in a list, such as overrides, and parts that
    # pass options on to their base need it
    values = options.values()
    merges = "optimizer" in options or any(isinstance(value, list) or _passes_options_on(value) for value in values)
    parsed = _as_dicts(task_parser().parse_object({"model": {**model, "init_args": options}}, defaults=merges).model)
    complete = copy.deepcopy(_default_options(parsed["class_path"]))
    for name, value in parsed["init_args"].items():
        if isinstance(complete.get(name), dict) and isinstance(value, dict) and "class_path" in value:
            value.setdefault("init_args", {})  # as jsonargparse has it for a part in the place of another
        complete[name] = value
    return {**parsed, "init_args": complete}


@functools.cache
def _default_options(class_path: str) -> dict[str, Any]:
    """The options of a task that is given none."""
    options: dict[str, Any] = _as_dicts(task_parser().parse_object({"model": {"class_path": class_path}}).model)
    return options["init_args"]


def _as_dicts(value: Any) -> Any:
    """The same value with namespaces as dictionaries, and class paths of today."""
    if isinstance(value, Namespace | Mapping):
        items = (vars(value) if isinstance(value, Namespace) else value).items()
        return {key: _as_dicts(registry.current_path(item) if key == "class_path" else item) for key, item in items}
    return [_as_dicts(item) for item in value] if isinstance(value, list) else value


def _passes_options_on(value: Any) -> bool:
    """Whether a part in a configuration takes options for its base, as ``**options``."""
    if not isinstance(value, Mapping) or not isinstance(value.get("class_path"), str):
        return False
    module, _, name = value["class_path"].rpartition(".")
    own = inspect.signature(import_object(module, name)).parameters.values()
    passes = any(parameter.kind is parameter.VAR_KEYWORD for parameter in own)
    return passes or any(map(_passes_options_on, (value.get("init_args") or {}).values()))


def _with_defaults(value: Any) -> Any:
    """A part's configuration with its own defaults; jsonargparse would use those of the part that it replaces."""
    if not isinstance(value, Mapping) or not isinstance(value.get("class_path"), str):
        return value
    module, _, name = value["class_path"].rpartition(".")
    cls = import_object(module, name)
    kind = registry.kind_of(cls)
    if kind not in registry.KINDS or kind == "optimizer":
        return value  # an optimizer's defaults come from its owner
    stack_arguments = ("backend", "dropout") if kind == "attention" else ()
    own = inspect.signature(cls).parameters.values()
    defaults = {
        parameter.name: parameter.default
        for parameter in own
        if parameter.default is not parameter.empty and parameter.name not in stack_arguments
    }
    section_defaults = {
        key: _class_section(item) for key, item in defaults.items() if isinstance(item, type) or not callable(item)
    }
    options = {key: _with_defaults(item) for key, item in (value.get("init_args") or {}).items()}
    return {"class_path": value["class_path"], "init_args": {**section_defaults, **options}}


def _class_section(value: Any) -> Any:
    """A class as a configuration names it, with its defaults; other values as they are."""
    return (
        _with_defaults({"class_path": f"{value.__module__}.{value.__qualname__}"}) if isinstance(value, type) else value
    )


def _refuse_functions(name: str, value: object, source: Path) -> None:
    """Raise UsageError for the path of a function, which jsonargparse would accept in place of a part."""
    if callable(value):
        raise UsageError(f"{source}: {name} names a function, where a part is expected.")
    if isinstance(value, (Namespace, Mapping)):
        for key, item in (vars(value) if isinstance(value, Namespace) else value).items():
            _refuse_functions(f"{name}.{key}".replace(".init_args", ""), item, source)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_functions(name, item, source)


def _import_class(path: str, source: Path, allow: tuple[str, ...]) -> None:
    """Import a class. Raises PluginError or UsageError if it is not installed or not allowed."""
    _check_allowed(path, source, allow)
    search_trusted(path, allow)
    module, _, name = path.rpartition(".")
    try:
        cls = import_object(module, name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may well call sys.exit() while it is imported
        hint = registry.install_hint(path) if isinstance(error, ImportError | AttributeError) else ""
        raise PluginError(
            f"{path} cannot be imported: {describe_import_error(error, module)}{hint} ← {source}"
        ) from error
    if not isinstance(cls, type):
        raise UsageError(f"{path} is not a class. ← {source}")
    if not is_allowed(f"{cls.__module__}.{cls.__qualname__}", allow):
        raise PluginError(f"{path} is {cls.__module__}.{cls.__qualname__}, which may not be named. ← {source}")
    admit_class(cls, path)


def _check_allowed(path: str, source: Path, allow: tuple[str, ...]) -> None:
    """Raise PluginError or UsageError for a class path that may not be imported."""
    module = path.rpartition(".")[0]
    if not is_allowed(path, allow):
        if reason := stdlib_reason(path):
            raise UsageError(f"the class path {path!r:.200} is not imported: {reason}. ← {source}")
        way = registry.install_hint(path) or (
            f"\nInstall the package of {module.partition('.')[0] or path}, or, if you trust the module, add: "
            f"--allow-import {module}"
        )
        raise PluginError(
            f"the model needs {path}, and no installed package provides it as a part of zoo.{way} ← {source}"
        )
