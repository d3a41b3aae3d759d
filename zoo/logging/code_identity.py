"""Which code a run was made with: digests of zoo and of every plugin in use, their libraries, and their git commits."""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from zoo.inference import part_versions
from zoo.inference.import_policy import ROOTS
from zoo.plugins import discovery

# files of a package that nothing computes with
PASSIVE_SUFFIXES = (".md", ".rst", ".pyc", ".pyi", ".log", ".tmp", ".lock")
# what of zoo never runs between the first batch and the last checkpoint, or only writes down what happens
PASSIVE_SOURCES = (
    "cli", "compare", "conformance", "logging", "templates", "console.py", "palette.py", "plotting.py",
)  # fmt: skip
RECIPES = "recipes"  # where a wheel has them: a run records its whole configuration
# requirements that only show, lock or read options
PASSIVE_LIBRARIES = frozenset(
    ("babel", "filelock", "jinja2", "jsonargparse", "matplotlib", "packaging", "pyyaml", "rich", "tensorboard")
)
PATIENCE = 5.0  # seconds for git


def code_identity(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By top-level module, of zoo and of each package with a part in ``config``: version, source digest, git state.

    ``libraries`` are the versions of what each of them requires. torch, Lightning and other libraries that only bring
    optimizers or callbacks have no digest.
    """
    modules = {record["class_path"].partition(".")[0]: record for record in part_versions.packages_used(config)}
    result = {"zoo": source_identity("zoo", discovery.ZOO)}
    for module, record in sorted(modules.items()):
        if module not in ROOTS and module not in sys.stdlib_module_names:
            result[module] = source_identity(module, record["distribution"]) | {"version": record["version"]}
    return result


@lru_cache(64)
def source_identity(module: str, distribution: str | None = None) -> dict[str, Any]:
    """Version, libraries, ``source`` digest, and ``commit`` and ``dirty`` where git tracks it; empty for no module.

    The digest is of the module and of the other modules of its distribution, or of those beside it that it imports.
    """
    place = _source_path(module)
    if place is None:
        return {}
    own = module == "zoo"
    return {
        "version": discovery.installed_version(discovery.ZOO if own else module),
        "source": source_digest(
            place, (*PASSIVE_SOURCES, RECIPES) if own else (), () if own else helpers(place, distribution)
        ),
        "libraries": library_versions(distribution),
        **git_state(place),
    }


def source_digest(place: Path, passive: tuple[str, ...] = (), beside: Iterable[Path] = ()) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a module's file, or of all files of a package by their paths.

    The ``passive`` files and folders of a package do not count; modules ``beside`` it do.
    """
    digest = hashlib.sha256()
    for root, prefix in ((place, ""), *((path, f"{path.name}/") for path in sorted(beside))):
        for path in package_files(root):
            name = path.relative_to(root) if root.is_dir() else Path(path.name)
            if name.parts[0] not in passive:
                content = path.read_bytes()
                digest.update(f"{prefix}{name.as_posix()} {len(content)} ".encode() + content)
    return digest.hexdigest()[:16]


def package_files(place: Path) -> list[Path]:
    """The files of a package that may change what it computes, its data included; of a module its one file."""
    if not place.is_dir():
        return [place]
    below = (path for path in place.rglob("*") if path.suffix not in PASSIVE_SUFFIXES and path.is_file())
    hidden = (".", "__pycache__")
    return sorted(path for path in below if not any(part.startswith(hidden) for part in path.relative_to(place).parts))


def helpers(place: Path, distribution: str | None) -> list[Path]:
    """The other modules that a module's distribution installed beside it; else those beside it that it imports."""
    try:
        files = (metadata.distribution(distribution).files if distribution else None) or []
    except metadata.PackageNotFoundError:
        files = []
    tops = dict.fromkeys(file.parts[0] for file in files if not file.parts[0].endswith((".dist-info", ".pth")))
    installed = [path for name in tops if name not in ("..", "__pycache__") and (path := place.parent / name).exists()]
    return [path for path in installed if path != place] if place in installed else _imported_beside(place)


def _imported_beside(place: Path) -> list[Path]:
    """The modules beside a module that it imports, also through others; none in a folder of installed packages."""
    folder, result, waiting = place.parent, [place], [place]
    if any(folder.glob("*.dist-info")):
        return []
    while waiting:
        sources = [path for path in package_files(waiting.pop()) if path.suffix == ".py"]
        for name in sorted({name for path in sources for name in _imports(path)} - set(ROOTS)):
            candidates = (folder / f"{name}.py", folder / name)
            path = next((path for path in candidates if path.is_file() or any(path.glob("*.py"))), None)
            if path is not None and path not in result:
                result.append(path)
                waiting.append(path)
    return result[1:]


def _imports(path: Path) -> set[str]:
    """The top-level modules that a source file imports by name; none if it cannot be parsed."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (SyntaxError, ValueError, OSError):
        return set()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names} - {""}


def library_versions(distribution: str | None) -> dict[str, str]:
    """The installed versions of what a distribution requires, extras and PASSIVE_LIBRARIES aside."""
    try:
        lines = (metadata.requires(distribution) if distribution else None) or []
    except metadata.PackageNotFoundError:
        lines = []
    names = [re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower() for line in lines if "extra ==" not in line]
    versions = {name: discovery.installed_version(name) for name in names if name not in PASSIVE_LIBRARIES}
    return {name: version for name, version in sorted(versions.items()) if version}


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
    changes = [line for line in lines if not line.startswith("#") and not line.endswith(PASSIVE_SUFFIXES)]
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
