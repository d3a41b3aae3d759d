"""Read the entry points ``zoo.*`` of installed packages; what an installation left behind or damaged hides none.

``importlib.metadata`` lists the metadata folders. Of several with one name its own functions take the first that the
system lists, were it empty, and all of them fail at a single folder that cannot be read.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, DistributionFinder
from typing import Any

GROUP = "zoo."
ZOO = "zoo-transformers"
POINTS = "entry_points.txt"
METADATA = ("METADATA", "PKG-INFO", "")  # the last: metadata that are one file


@dataclass(frozen=True, order=True)
class Package:
    """An installed distribution: metadata folder (``home``), requirements on zoo, damage in its metadata, keywords."""

    name: str
    version: str
    home: str = ""
    requires: tuple[str, ...] = ()
    damage: str = ""
    keywords: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()  # all of them, lines ``Requires-Dist``
    python: str = ""  # the versions of Python that it is for, ``Requires-Python``

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
    """All entry points, all flaws, and the package that counts of each normal name.

    ``hidden`` are metadata folders that count for nobody, ``unreadable`` those at which ``importlib.metadata`` fails.
    """

    entries: tuple[Entry, ...]
    flaws: tuple[Flaw, ...]
    packages: Mapping[str, Package]
    hidden: frozenset[str]
    unreadable: frozenset[str]


@dataclass(frozen=True)
class _Candidate:
    """One metadata folder: its package, the lines of its entry points, and what is wrong with these as a whole."""

    package: Package
    lines: tuple[tuple[int, str, str, str | None], ...]
    points_damage: str
    fault: str  # fault of the metadata; damaged metadata do not count
    remark: str  # what is odd in them, and harmless

    @property
    def folder(self) -> str:
        """Where packages are installed, the metadata folder's own place."""
        return os.path.dirname(self.package.home.rstrip("/"))

    @property
    def version(self) -> tuple[int, Any]:
        """The version, to be compared with others; what is no version comes before all of them."""
        try:
            from packaging.version import Version  # here: nothing else of a listing needs it

            return 1, Version(self.package.version)
        except (ImportError, ValueError):
            return 0, self.package.version


@functools.cache
def normalize_name(name: str) -> str:
    """A distribution's name in its normalized form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


@functools.cache
def discover() -> Discovery:
    """What is installed on ``sys.path``; of packages with one name the first sound one counts, as for imports."""
    candidates: dict[str, list[_Candidate]] = {}
    places: set[str] = set()
    for candidate in map(_read, _distributions()):
        place = os.path.join(os.path.realpath(candidate.folder), os.path.basename(candidate.package.home.rstrip("/")))
        if candidate.package.home and place in places:
            continue  # one folder may be on the path by two names
        places.add(place)
        candidates.setdefault(normalize_name(candidate.package.name), []).append(candidate)
    entries: list[Entry] = []
    flaws: list[Flaw] = []
    packages: dict[str, Package] = {}
    hidden: set[str] = set()
    unreadable: set[str] = set()
    for name, same in candidates.items():
        sound = [copy for copy in same if not copy.fault]
        beside = [copy for copy in sound if copy.folder == sound[0].folder]
        best = max(beside, key=lambda copy: copy.version) if sound else max(same, key=lambda copy: bool(copy.lines))
        package = packages[name] = best.package
        for copy in same:
            reason = copy.fault or copy.remark
            if copy in beside and copy is not best:
                reason = f"one of two versions in one folder. Run: pip install --force-reinstall {package.name}"
            elif copy.fault and not copy.lines:
                reason = f"{copy.fault}: left behind by an installation that was interrupted. Delete this folder"
            elif copy.fault and copy is best:
                reason = ""  # its parts say so
            if reason and copy is not best and sound:
                reason += f"; {package.origin} counts"
            flaws += [Flaw(copy.package, reason)] if reason else []
            hidden |= {copy.package.home} if copy.fault or (copy in beside and copy is not best) else set()
        if best.points_damage:
            flaws.append(Flaw(package, best.points_damage))
        for number, group, point, value in best.lines:
            if value is None:
                flaws.append(Flaw(package, f"{POINTS}, line {number}: {point!r:.80} is not 'Name = module:Class'"))
            elif group.startswith(GROUP):
                entries.append(Entry(group.removeprefix(GROUP), point, value, package))
        if best.points_damage or best.remark or any(value is None for *_, value in best.lines):
            unreadable.add(package.home)
    return Discovery(tuple(entries), tuple(flaws), packages, frozenset(hidden), frozenset(unreadable))


def refresh() -> bool:
    """Look again for what was installed or removed while this process runs; whether anything has changed."""
    before = discover()
    importlib.invalidate_caches()
    discover.cache_clear()
    return discover() != before


def installed_version(name: str) -> str | None:
    """The installed version of a distribution; None if it is not installed, ``unknown`` if its metadata lack it."""
    package = discover().packages.get(normalize_name(name))
    return package.version if package else None


def tolerate_damaged_metadata() -> None:
    """Have ``importlib.metadata`` pass over folders that do not count, and read what else it would fail at.

    torch and Lightning read the entry points of all packages when imported, and would fail.
    """
    if discover().hidden or discover().unreadable:
        Distribution.discover = classmethod(_discover_sound)  # type: ignore[method-assign, assignment]


def _discover_sound(
    cls: type[Distribution], *, context: DistributionFinder.Context | None = None, **filters: Any
) -> Iterator[Distribution]:
    """``Distribution.discover`` without the folders that count for nobody."""
    state = discover()
    for dist in _distributions(context, **filters):
        home = _metadata_folder(dist)
        if home in state.unreadable:
            points = "\n".join(_valid_points(_text(dist, POINTS)[0]))
            texts = {POINTS: points, **{name: _text(dist, name)[0] for name in METADATA}}
            dist.read_text = functools.partial(_text_or_own, texts, dist.read_text)  # type: ignore[method-assign]
        if home not in state.hidden:
            yield dist


def _text_or_own(texts: Mapping[str, str], read: Callable[[str], str | None], name: str) -> str | None:
    return texts[name] if name in texts else read(name)


def _valid_points(text: str) -> Iterator[str]:
    """The lines of entry points that ``importlib.metadata`` can read, each below its group."""
    for _, group, name, value in _lines(text):
        if value is not None:
            yield f"[{group}]\n{name} = {value}"


def _distributions(context: DistributionFinder.Context | None = None, **filters: Any) -> Iterator[Distribution]:
    """Every metadata folder that the import system lists; a third-party hook that fails hides no other's."""
    for finder in sys.meta_path:
        try:
            find = getattr(finder, "find_distributions", None)
            yield from find(context or DistributionFinder.Context(**filters)) if find else ()
        except Exception:
            continue


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


def _read(dist: Distribution) -> _Candidate:
    """A metadata folder's package according to its metadata, or where these lack something, to the folder's name."""
    home = _metadata_folder(dist)
    label_match = re.fullmatch(
        r"(?P<name>.+?)(-(?P<version>\d[^-]*)(-.*)?)?\.(dist|egg)-info", os.path.basename(home.rstrip("/"))
    )
    name, version = (label_match["name"], label_match["version"] or "") if label_match else (os.path.basename(home), "")
    text, remark = next((both for both in (_text(dist, file) for file in METADATA) if any(both)), ("", ""))
    head = [line.partition(":") for line in text.partition("\n\n")[0].splitlines()]
    fields = {key.lower(): value.strip() for key, _, value in reversed(head)}
    missing = [field for field in ("Name", "Version") if not fields.get(field.lower())]
    fault = "" if not missing else f"METADATA has no {missing[0]}" if text else "METADATA is missing or empty"
    if name.startswith(("~", "-")):  # pip renames packages that it is replacing
        fault = "replaced by pip, which has not removed it"
        fields["name"] = name
    requirements = [value.strip() for key, _, value in head if key.lower() == "requires-dist"]
    ours = tuple(line for line in requirements if normalize_name(re.split(r"[^\w.-]", line, maxsplit=1)[0]) == ZOO)
    keywords = tuple(filter(None, re.split(r"[,\s]+", fields.get("keywords", "").lower())))
    points, damage = _text(dist, POINTS)
    lines = () if fields.get("name") == name and fault.startswith("replaced") else tuple(_lines(points))
    label = fields.get("name") or name or "unknown"
    number = fields.get("version") or version or "unknown"
    python = fields.get("requires-python", "")
    package = Package(label, number, home, ours, damage or fault, keywords, tuple(requirements), python)
    return _Candidate(package, lines, damage, fault, remark if not fault else "")
