"""The child process of `zoo check`: import a part and run its checks, and report every event as a line of JSON.

A part may end the process or never return: the parent, `check_command`, detects that and continues with another.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zoo import registry
from zoo.config import yaml_source
from zoo.config.layers import MISSING, Node
from zoo.conformance.check_process import UnknownCheckError
from zoo.errors import PartError, PluginError, UsageError, ZooError
from zoo.plugins import diagnosis
from zoo.plugins.safe_import import (
    describe_import_error,
    describe_missing,
    import_object,
    search_working_folder,
)
from zoo.registry import suggest
from zoo.system.fresh_process import measure_call

Send = Callable[..., None]


def main() -> None:
    """Read a job from standard input and run it; what a part prints goes to standard error."""
    channel, requests = os.fdopen(os.dup(1), "w", encoding="utf-8"), os.fdopen(os.dup(0), "rb", buffering=0)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    faulthandler.enable(all_threads=False)  # an abort prints a traceback
    job = json.loads(requests.readline())
    threading.Thread(target=_leave_with_parent, args=(requests,), daemon=True).start()

    def send(event: str, **fields: Any) -> None:
        channel.write(json.dumps({"event": event, **fields}) + "\n")
        channel.flush()

    try:
        run(job, send)
    except ZooError as error:
        send("refused", code=error.code, says=str(error), unknown_check=isinstance(error, UnknownCheckError))
    except (ValueError, TypeError) as error:
        send("refused", code=UsageError.code, says=f"cannot be checked like this: {error}")
    send("end")
    os._exit(0)  # without the threads and exit handlers of the part


def _leave_with_parent(requests: Any) -> None:
    requests.read()
    if os.getpgrp() == os.getpid():  # with whatever the part has started
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def run(job: Mapping[str, Any], send: Send) -> None:
    """Import the part, send the names of the selected checks, and run them."""
    from zoo.cli.warning_filters import filter_warnings

    filter_warnings(job["debug"])
    imported = first_import(job["kind"], job["name"]) if not job["only"] or "clean_import" in job["only"] else None
    part, kind, origin = load_class(job["kind"], job["name"])
    options = parse_part_options(part, kind, job["options"])

    from zoo.conformance import checks, token_checks

    if imported is not None and kind in registry.STACK_KINDS:
        token_checks.IMPORTS[part.__module__, token_checks.ready_for(kind)] = imported
    selected = select_checks({check.name: check for check in checks(part, **options)}, job["only"], kind)
    send("part", kind=kind, name=part.__name__, origin=origin, checks=list(selected))
    for name, check in selected.items():
        send("check", name=name)
        send("outcome", **asdict(check.outcome()))
    if job.get("facts"):
        from zoo.conformance import combinations

        with contextlib.suppress(Exception):  # a part that cannot be built has no facts; its checks say why
            cost = combinations.cost_in_stack(kind, part)
            send("facts", cost=cost, combinations=combinations.partners(kind, part))


def first_import(kind: str, name: str) -> dict[str, Any] | None:
    """How the module of a part of a stack is imported, in a fork made before this process imports it; None elsewhere.

    A fork spares `zoo.conformance.token_checks.clean_import` a process that imports torch again.
    """
    if kind not in ("", *registry.STACK_KINDS):
        return None
    if "." in name:
        search_working_folder(name)
    path = name if "." in name else diagnosis.choose_part(kind, name).path

    import zoo.models.stack  # noqa: F401

    return measure_call(functools.partial(importlib.import_module, path.rpartition(".")[0]))


def load_class(kind: str, name: str) -> tuple[type, str, str]:
    """A class by its kind and name or by its class path, with its kind and where it comes from."""
    if "." not in name:
        part = diagnosis.choose_part(kind, name)
        return part.load(), kind, part.origin
    search_working_folder(name)
    cls = load_by_path(name)
    class_kind = registry.kind_of(cls)
    if not isinstance(cls, type) or class_kind not in registry.KINDS:
        raise UsageError(f"{name} is not a part: it derives from no base such as zoo.parts.norm.Norm.")
    if registry.is_base(cls):
        raise UsageError(f"{name} is the base of every {class_kind}, not one of them.")
    if kind and class_kind != kind:
        raise UsageError(f"{name} is a {class_kind}, no {kind}: zoo check {name}")
    owner = registry.part_of_class(name)
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return cls, class_kind, owner.origin if owner else _short_path(file)


def _short_path(file: str | None) -> str:
    if not file:
        return "no file"
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def load_by_path(path: str) -> Any:
    """The object at a class path. Raises UsageError where there is nothing, PluginError where importing fails."""
    module, _, name = path.rpartition(".")
    try:
        return import_object(module, name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and (missing := describe_missing(error, module)):
            raise UsageError(missing) from error
        if isinstance(error, AttributeError) and module in sys.modules:
            classes = [word for word, value in vars(sys.modules[module]).items() if isinstance(value, type)]
            raise UsageError(f"module {module} has no class {name!r}.{suggest(name, classes)}") from error
        raise PluginError(f"{path} cannot be imported: {describe_import_error(error, module)}") from error


def select_checks(candidates: dict[str, Any], only: list[str], kind: str) -> dict[str, Any]:
    """The checks that ``only`` names, or all. Raises UnknownCheckError for an unknown name."""
    for name in only:
        if name not in candidates:
            hint = suggest(name, candidates) or f" There are: {', '.join(candidates)}"
            raise UnknownCheckError(f"{kind} has no check {name!r}.{hint}")
    return {name: check for name, check in candidates.items() if not only or name in only}


def parse_part_options(part: type, kind: str, options: list[tuple[str, str | bool, str]]) -> dict[str, Any]:
    """The options of a part as Python values of their types."""
    if not options:
        return {}
    from zoo.plugins.description import CLASS_PARAMETERS

    # as `zoo show` spells them: --model.norm.eps
    prefixes = {"task": ("model.",), "data": ("data.",), "callback": ("trainer.callbacks.",)}.get(
        kind, (f"model.{kind}.", f"{kind}.")
    )
    layer = yaml_source.option_layer((_short(name, prefixes), value, text) for name, value, text in options)
    return _values(part, CLASS_PARAMETERS.get(kind, 0), layer.children, kind)


def _short(name: str, prefixes: tuple[str, ...]) -> str:
    return next((name[len(start) :] for start in prefixes if name.startswith(start)), name)


def _values(owner: type, count: int, nodes: Mapping[str, Node], word: str) -> dict[str, Any]:
    from zoo.config.coercion import coerce
    from zoo.config.signatures import parameters
    from zoo.registry import nearest_key

    params, values = parameters(owner, count), {}
    for name, node in nodes.items():
        if name not in params:
            near = nearest_key(name, params)
            hint = f" Did you mean {near!r}?" if near else f" It has: {', '.join(params) or 'none'}."
            raise PartError(f"{word} {owner.__name__!r} has no option {name!r}.{hint}")
        slot = params[name].slot
        if slot is None or slot.record or isinstance(node.value, list):
            values[name] = coerce(name, params[name].annotation, node, params[name].default is None)
        elif node.value is None or str(node.value).lower() in ("null", "none"):
            values[name] = None
        else:
            values[name] = _class(name, node, params[name])
    return values


def _class(name: str, node: Node, param: Any) -> Any:
    """A class that an option names, or the default one, with its own options bound."""
    from zoo.config.class_names import ClassFinder

    if node.value is MISSING and not isinstance(param.default, type):
        raise UsageError(f"'{name}.{next(iter(node.children))}' is set, but no {param.slot.word} is chosen.")
    cls = param.default if node.value is MISSING else ClassFinder().find(param.slot, node)
    options = _values(cls, param.slot.owner_arguments, node.children, param.slot.word)
    return functools.partial(cls, **options) if options else cls


if __name__ == "__main__":
    main()
