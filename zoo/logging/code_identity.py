"""Which code a run was made with: digests of the sources of zoo and of every plugin in use, and their git commits."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from zoo.inference import part_versions
from zoo.inference.import_policy import ROOTS
from zoo.plugins import discovery

SUFFIXES = (".py", ".so", ".pyd", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp")
# what of zoo never runs between the first batch and the last checkpoint, or only writes down what happens
PASSIVE_SOURCES = ("cli", "compare", "conformance", "logging", "templates", "console.py", "palette.py", "plotting.py")
PATIENCE = 5.0  # seconds for git


def code_identity(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By top-level module, of zoo and of each package with a part in ``config``: version, source digest, git state.

    torch, Lightning and other libraries that only bring optimizers or callbacks are in the settings by their versions.
    """
    modules = {record["class_path"].partition(".")[0]: record for record in part_versions.packages_used(config)}
    result = {"zoo": source_identity("zoo")}
    for module, record in sorted(modules.items()):
        if module not in ROOTS and module not in sys.stdlib_module_names:
            result[module] = source_identity(module) | {"version": record["version"]}
    return result


@lru_cache(64)
def source_identity(module: str) -> dict[str, Any]:
    """Version, ``source`` digest, and ``commit`` and ``dirty`` where git tracks the sources; empty for no module."""
    place = _source_path(module)
    if place is None:
        return {}
    version = discovery.installed_version("zoo-transformers" if module == "zoo" else module)
    return {
        "version": version,
        "source": source_digest(place, PASSIVE_SOURCES if module == "zoo" else ()),
        **git_state(place),
    }


def source_digest(place: Path, passive: tuple[str, ...] = ()) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a module's file, or of all sources of a package by their paths.

    The ``passive`` files and folders of a package do not count.
    """
    files = sorted(path for path in place.rglob("*") if path.suffix in SUFFIXES) if place.is_dir() else [place]
    digest = hashlib.sha256()
    for path in files:
        name = path.relative_to(place) if place.is_dir() else Path(path.name)
        if name.parts[0] not in passive and path.is_file():
            content = path.read_bytes()
            digest.update(f"{name.as_posix()} {len(content)} ".encode() + content)
    return digest.hexdigest()[:16]


def git_state(place: Path) -> dict[str, Any]:
    """The ``commit`` of the repository that tracks a source, and whether the source is ``dirty``; empty for none."""
    folder = place if place.is_dir() else place.parent
    if not any((above / ".git").exists() for above in (folder, *folder.parents)):
        return {}
    try:
        files = _git(folder, "ls-files", "--", str(place))
        lines = _git(folder, "status", "--porcelain=v2", "--branch", "--", str(place)).splitlines() if files else []
    except (OSError, subprocess.SubprocessError):
        return {}
    commit = next((line.split()[2] for line in lines if line.startswith("# branch.oid ")), "")
    changes = [line for line in lines if not line.startswith("#") and line.endswith(SUFFIXES)]
    return {"commit": commit, "dirty": bool(changes)} if commit else {}


def _git(folder: Path, *words: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout


def _source_path(module: str) -> Path | None:
    """The folder of a package, or the file of a module; None for none, or for one without a file."""
    file = getattr(sys.modules.get(module), "__file__", None)
    folders = list(getattr(sys.modules.get(module), "__path__", []))
    if not file and not folders:
        try:
            spec = find_spec(module)
        except (ImportError, ValueError):
            return None
        file, folders = (spec.origin, list(spec.submodule_search_locations or [])) if spec else (None, [])
    if folders:
        return Path(folders[0])
    return Path(file) if file and Path(file).is_file() else None
