"""Build a task again from the complete configuration that its run saved."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentParser, Namespace

from zoo import registry, renames
from zoo.errors import PluginError, UsageError, ZooError
from zoo.inference.import_policy import admit_roots, allowed_classes, class_paths, foreign, import_policy
from zoo.plugins.safe_import import describe_import_error, import_object
from zoo.tasks.task import Task


def rebuild_task(config: Mapping[str, Any], source: Path, allow: tuple[str, ...] = ()) -> Task:
    """The task that ``config["model"]`` describes; ``source`` is named in messages, ``allow`` lists more modules."""
    model = current_options(config["model"], source, allow)
    parser = reader()
    try:
        parsed = parser.parse_object({"model": dict(model)})
        _refuse_functions("model", parsed.model, source)
        with torch.random.fork_rng(devices=[]):  # initial weights are drawn, and overwritten
            return parser.instantiate(parsed).model
    except Exception as error:
        deepest = _deepest(error)
        if isinstance(deepest, ZooError):
            raise deepest from deepest.__cause__  # not from `error`, whose own cause it is
        reason = " ".join(str(deepest).split())[:300]
        raise UsageError(f"{source} cannot be built with this version of zoo: {reason}") from error


def current_options(section: Mapping[str, Any], source: Path, allow: tuple[str, ...] = ()) -> dict[str, Any]:
    """A copy of a section in the words of today, whose classes are imported, as `vet` does, for it."""
    section = renames.update_classes(_plain(section), str(source))
    vet(section, source, allow)
    return renames.update_options(section, str(source))


def vet(section: object, source: Path, allow: tuple[str, ...] = ()) -> None:
    """Import every class that a section of a configuration names, and let jsonargparse import these alone.

    Raises PluginError before anything is built when a class is not installed, or may not be imported.
    """
    import_policy(allow)
    for path in class_paths(section):
        _check(path, source, allow)


def reader() -> ArgumentParser:
    """What reads a task's configuration."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Task, "model", fail_untyped=False, required=True)
    return parser


def complete(model: Mapping[str, Any]) -> dict[str, Any]:
    """A task's class path and all of its options, those left out included."""
    import_policy()
    options = {name: _filled(value) for name, value in model["init_args"].items()}
    return _plain(reader().parse_object({"model": {**model, "init_args": options}}).model)


def _plain(value: Any) -> Any:
    """The same with dictionaries only."""
    if isinstance(value, Namespace | Mapping):
        return {key: _plain(item) for key, item in (vars(value) if isinstance(value, Namespace) else value).items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _filled(value: Any) -> Any:
    """A part with its own defaults: jsonargparse gives it those of the part that it replaces."""
    if not isinstance(value, Mapping) or not isinstance(value.get("class_path"), str):
        return value
    module, _, name = value["class_path"].rpartition(".")
    cls = import_object(module, name)
    kind = getattr(cls, "kind", None)
    if kind not in registry.KINDS:
        return value  # an optimiser: its owner gives it what has a default
    given_by_stack = ("backend", "dropout") if kind == "attention" else ()
    own = inspect.signature(cls).parameters.values()
    defaults = {one.name: one.default for one in own if one.default is not one.empty and one.name not in given_by_stack}
    plain = {key: item for key, item in defaults.items() if isinstance(item, bool | int | float | str | None)}
    options = {key: _filled(item) for key, item in (value.get("init_args") or {}).items()}
    return {"class_path": value["class_path"], "init_args": {**plain, **options}}


def _refuse_functions(name: str, value: object, source: Path) -> None:
    """Raise UsageError for the path of a function, which jsonargparse takes where a part is wanted."""
    if callable(value):
        raise UsageError(f"{source}: {name} names a function, where a part is expected.")
    if isinstance(value, (Namespace, Mapping)):
        for key, item in (vars(value) if isinstance(value, Namespace) else value).items():
            _refuse_functions(f"{name}.{key}".replace(".init_args", ""), item, source)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_functions(name, item, source)


def _check(path: str, source: Path, allow: tuple[str, ...]) -> None:
    """Raise before anything is built when a class is not installed, or may not be imported."""
    module, _, name = path.rpartition(".")
    if not allowed_classes(path, allow):
        if said := foreign(path):
            raise UsageError(f"the class path {path!r:.200} is not imported: {said}. ← {source}")
        raise PluginError(
            f"the model needs {path}, and no installed package provides it as a part of zoo.\n"
            f"Install the package of {module.partition('.')[0] or path}, or, if you trust the module, add: "
            f"--allow-import {module} ← {source}"
        )
    try:
        cls = import_object(module, name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may well call sys.exit() while it is imported
        raise PluginError(f"{path} cannot be imported: {describe_import_error(error, module)} ← {source}") from error
    if not isinstance(cls, type):
        raise UsageError(f"{path} is no class. ← {source}")
    if not allowed_classes(f"{cls.__module__}.{cls.__qualname__}", allow):
        raise PluginError(f"{path} is {cls.__module__}.{cls.__qualname__}, which may not be named. ← {source}")
    admit_roots(cls, path)


def _deepest(error: BaseException) -> BaseException:
    """What a part raised, below what jsonargparse wrapped around it."""
    while not isinstance(error, ZooError) and error.__cause__ is not None:
        error = error.__cause__
    return error
