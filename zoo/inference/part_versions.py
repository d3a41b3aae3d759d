"""Records of the packages and versions of a run's parts, and checks that they are installed when it is used again."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from zoo import registry
from zoo.errors import PluginError, UsageError
from zoo.inference.find_run import EXPORT, ModelLocation
from zoo.inference.import_policy import ROOTS, search_trusted
from zoo.io import atomic_files, limits
from zoo.plugins import description, discovery

log = logging.getLogger(__name__)
FILE, KEY = "parts.json", "zoo_parts"  # the file in a run folder, and the key in its checkpoints
SECTIONS = ("model", "data", "trainer")
# valid values, since messages contain them and checkpoints may come from anywhere
SHAPE = {
    "key": r"[\w.\[\]]+", "kind": r"\w+", "name": r"\w+", "class_path": r"[\w.]+",
    "distribution": r"[A-Za-z0-9._-]+", "version": r"[A-Za-z0-9.+!_-]+",
}  # fmt: skip
Record = dict[str, Any]


def packages_used(config: Mapping[str, Any]) -> list[Record]:
    """A record for each class in a configuration: key, kind, name, package, version, class path and options."""
    return [record for section in SECTIONS for record in _records(config.get(section), section)]


def _records(value: object, key: str) -> Iterator[Record]:
    if isinstance(value, Mapping):
        below = value
        if isinstance(value.get("class_path"), str):
            below = value.get("init_args") or {}
            yield _record(value["class_path"], key, below)
        for name, item in below.items():
            yield from _records(item, f"{key}.{name}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _records(item, f"{key}[{index}]")


def _record(path: str, key: str, options: Mapping[str, Any]) -> Record:
    part = registry.part_of_class(path)
    module = path.partition(".")[0]
    foreign = part is None or (part.builtin and module != "zoo")  # zoo registers optimizers of torch
    distribution, version = _package(module) if foreign or part is None else (part.distribution, part.version)
    kind = {"model": "task"}.get(key, re.sub(r"\[\d+\]$", "", key).rpartition(".")[2])
    own_options = {name: value for name, value in options.items() if not list(_records(value, name))}
    return {
        "key": key, "kind": part.kind if part else kind, "name": path.rpartition(".")[2],
        "distribution": distribution, "version": version, "class_path": path,
        "options": json.loads(json.dumps(own_options, default=str)),
    }  # fmt: skip


def _package(module: str) -> tuple[str | None, str | None]:
    """Name and version of the distribution of a module: a plugin, or a distribution of the module's name."""
    for kind in registry.KINDS:
        for part in registry.installed_parts(kind):
            if part.module.partition(".")[0] == module and not (part.builtin and module != "zoo"):
                return part.distribution, part.version
    version = discovery.installed_version(module)
    return (discovery.normalize_name(module), version) if version else (None, None)


def write_records(config: Mapping[str, Any], folder: Path) -> None:
    """Write the records of a configuration to parts.json."""
    atomic_files.write_json(folder / FILE, packages_used(config), end="\n")


def read_records(folder: Path) -> list[Record]:
    """The records in a run folder; empty if they are missing or unreadable."""
    try:
        return check_records(limits.read_json(folder / FILE))
    except (OSError, UsageError):
        return []


def check_records(content: object) -> list[Record]:
    """The valid records in the content of a file."""
    return [item for item in content if _is_record(item)] if isinstance(content, list) else []


def _is_record(item: object) -> bool:
    if not isinstance(item, dict):
        return False
    unknown = item.get("distribution") is None  # a class of no package
    names = [name for name in SHAPE if not (unknown and name in ("distribution", "version"))]
    return all(isinstance(item.get(name), str) and re.fullmatch(SHAPE[name], item[name]) for name in names)


def records_of_model(place: ModelLocation) -> list[Record]:
    """The records of a trained model's parts, from its checkpoint, its export, or its run folder."""
    from zoo.inference import weight_files  # here: the rest needs no torch

    content = place.config.get("parts") if place.source.name == EXPORT else weight_files.read_entry(place.weights, KEY)
    records = check_records(content) or read_records(place.folder)
    return [record for record in records if record["key"].partition(".")[0] == "model"]


def require_packages(records: Iterable[Record], allow: tuple[str, ...] = ()) -> None:
    """Raise PluginError for the first record whose package or module is not installed.

    A module that ``allow`` names, as --allow-import does, may also be in the working folder.
    """
    for record in records:
        what = f"{record['kind']} {record['name']!r}"
        module = record["class_path"].rpartition(".")[0]
        if record["distribution"] is None:
            search_trusted(record["class_path"], allow)
            if module not in sys.modules and description.find_spec(module) is None:
                raise PluginError(
                    f"checkpoint needs {record['class_path']} ({what}), which no package provides, and the module "
                    f"{module} cannot be imported.\nRun the command in the folder of its file, with --allow-import "
                    f"{module}; or put it where Python looks for modules, such as: PYTHONPATH=DIR"
                )
        elif _is_plugin(record):
            needed = f"checkpoint needs plugin {record['distribution']} {record['version']} ({what})"
            if discovery.installed_version(record["distribution"]) is None:
                run = f" Run: pip install {record['distribution']}=={record['version']}"
                way = registry.not_installed(record["kind"], record["class_path"]) or run
                raise PluginError(f"{needed}, which is not installed.{way}")
            if registry.is_disabled(record["distribution"]):
                raise PluginError(f"{needed}, which {registry.DISABLE_VARIABLE} disables.")


def warn_versions(records: Iterable[Record]) -> None:
    """Warn of plugins whose installed version is not that of the checkpoint, each once."""
    packages = set()
    for record in filter(_is_plugin, records):
        name, version = record["distribution"], record["version"]
        installed = discovery.installed_version(name)
        if installed not in (None, version) and name not in packages:
            packages.add(name)
            what = f"{record['kind']} {record['name']!r}"
            log.warning("checkpoint was made with %s %s (%s), installed is %s %s", name, version, what, name, installed)


def _is_plugin(record: Record) -> bool:
    return record["distribution"] is not None and record["class_path"].partition(".")[0] not in ROOTS
