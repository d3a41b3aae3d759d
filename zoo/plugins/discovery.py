"""Read the entry points ``zoo.*`` of installed packages, tolerating damaged packages.

``importlib.metadata.entry_points`` would fail as a whole if the metadata of a single package cannot be read.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoints
from typing import Any

GROUP = "zoo."
ZOO = "zoo-transformers"
POINTS = "entry_points.txt"


@dataclass(frozen=True, order=True)
class Package:
    """An installed distribution: metadata folder (``home``), requirements on zoo, damage in its metadata, keywords."""

    name: str
    version: str
    home: str = ""
    requires: tuple[str, ...] = ()
    damage: str = ""
    keywords: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """Name and version in messages."""
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class Entry:
    """One entry point ``name = value`` in a group ``zoo.<kind>``."""

    kind: str
    name: str
    value: str
    package: Package


@dataclass(frozen=True)
class Flaw:
    """Entry points of a package that cannot be read, and why."""

    package: Package
    reason: str


@dataclass(frozen=True)
class Discovery:
    """All entry points and flaws; ``fatal`` if ``importlib.metadata`` cannot read the entry points itself."""

    entries: tuple[Entry, ...]
    flaws: tuple[Flaw, ...]
    fatal: bool


def normalize_name(name: str) -> str:
    """A distribution's name in its normalized form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


@functools.cache
def discover() -> Discovery:
    """The entry points ``zoo.*`` on ``sys.path``; the first of two packages with one name counts, as for imports."""
    entries: list[Entry] = []
    flaws: list[Flaw] = []
    names: set[str] = set()
    fatal = False
    for dist in _distributions():
        label, version = _label(dist)
        is_leftover = label.startswith("~")  # of pip, which renames packages that it is replacing
        if is_leftover or (label and normalize_name(label) in names):
            continue
        names.add(normalize_name(label))
        text, damage = _text(dist, POINTS)
        lines = list(_lines(text))
        wrong = [number for number, _, _, value in lines if value is None]
        fatal |= bool(damage or wrong)
        if not (damage or wrong or any(group.startswith(GROUP) for _, group, _, _ in lines)):
            continue
        package = _package(dist, label or "unknown", version or "unknown", damage)
        own = normalize_name(package.name)
        if own != normalize_name(label) and own in names:
            continue
        names.add(normalize_name(package.name))
        if damage:
            flaws.append(Flaw(package, damage))
        for number, group, name, value in lines:
            if value is None:
                flaws.append(Flaw(package, f"{POINTS}, line {number}: {name!r:.80} is not 'Name = module:Class'"))
            elif group.startswith(GROUP):
                entries.append(Entry(group.removeprefix(GROUP), name, value, package))
    return Discovery(tuple(entries), tuple(flaws), fatal)


def installed_version(name: str) -> str | None:
    """The installed version of a distribution; None if it is not installed, ``unknown`` if its metadata lack it."""
    ours = (entry.package for entry in discover().entries)
    package = next((one for one in ours if normalize_name(one.name) == normalize_name(name)), None)
    if package is None:
        package = next((_package(dist, *_label(dist), "") for dist in _distributions(name=name)), None)
    return (package.version or "unknown") if package else None


def tolerate_damaged_metadata() -> None:
    """Make ``Distribution.entry_points`` empty for packages that cannot be read.

    torch and Lightning read the entry points of all packages when imported, and would fail.
    """
    if discover().fatal and Distribution.entry_points is _original_entry_points:
        Distribution.entry_points = property(_readable_entry_points)  # type: ignore[assignment, method-assign]


_original_entry_points = Distribution.entry_points


def _readable_entry_points(dist: Distribution) -> EntryPoints:
    try:
        return _original_entry_points.__get__(dist)
    except Exception:
        return EntryPoints(())


def _distributions(**filters: Any) -> Iterator[Distribution]:
    try:
        yield from importlib.metadata.distributions(**filters)
    except Exception:  # a third-party import hook that cannot list its distributions
        return


def _label(dist: Distribution) -> tuple[str, str]:
    """Name and version according to the metadata folder's name: ``my_norm-0.1.0.dist-info``."""
    name, _, version_text = os.path.basename(_metadata_folder(dist)).rpartition(".")[0].partition("-")
    if name:
        return name, version_text.partition("-")[0]
    try:  # an import hook that keeps its metadata elsewhere
        return dist.name or "", dist.version or ""
    except Exception:
        return "", ""


def _metadata_folder(dist: Distribution) -> str:
    return str(getattr(dist, "_path", ""))


def _text(dist: Distribution, name: str) -> tuple[str, str]:
    """The readable text of a metadata file, and what is wrong with it (empty if nothing is)."""
    try:
        return dist.read_text(name) or "", ""
    except UnicodeDecodeError as error:
        return bytes(error.object).decode("utf-8", "replace"), f"{name} is not UTF-8"
    except Exception as error:
        return "", f"{name} cannot be read: {type(error).__name__}: {error}"


def _lines(text: str) -> Iterator[tuple[int, str, str, str | None]]:
    """Line number, group, name and value of each entry; a value of None for an invalid line."""
    group = ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if stripped.startswith("[") and stripped.endswith("]"):
            group = stripped.strip("[]")
        elif group:
            name, equals, value = stripped.partition("=")
            yield number, group, name.strip(), value.strip() if equals else None


def _package(dist: Distribution, label: str, version: str, damage: str) -> Package:
    """A package according to its metadata, or where these lack something, to its folder's name."""
    text, problem = _text(dist, "METADATA")
    if not text:
        text, problem = _text(dist, "PKG-INFO")
    head = [line.partition(":") for line in text.partition("\n\n")[0].splitlines()]
    fields = {key.lower(): value.strip() for key, _, value in reversed(head)}
    missing = [field for field in ("Name", "Version") if not fields.get(field.lower())]
    if not text:
        problem = problem or "METADATA is missing or empty"
    elif missing:
        problem = problem or f"METADATA has no {missing[0]}"
    requirements = [value.strip() for key, _, value in head if key.lower() == "requires-dist"]
    ours = tuple(line for line in requirements if normalize_name(re.split(r"[^\w.-]", line, maxsplit=1)[0]) == ZOO)
    name, version = fields.get("name") or label, fields.get("version") or version
    keywords = tuple(filter(None, re.split(r"[,\s]+", fields.get("keywords", "").lower())))
    return Package(name, version, _metadata_folder(dist), ours, damage or problem, keywords)
