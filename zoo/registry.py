"""Find parts: each is a class that an installed package names by an entry point in the group ``zoo.<kind>``.

Listing imports nothing; a part is imported when it is used. The entry point's name is the class's name.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import itertools
import os
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from zoo.errors import PartError, PluginError
from zoo.plugins.discovery import GROUP, ZOO, Entry, Flaw, Package, discover, normal
from zoo.plugins.safe_import import describe_import_error, import_object

KINDS = ("position", "backend", "attention", "norm", "ffn", "block", "task", "data")
BUILTIN = ZOO
SWITCH = "ZOO_DISABLE_PLUGINS"
NOTHING = ("none", "nope", "no")  # what people write for a kind's part that does nothing, such as NoPosition
RECIPES = "recipes"  # the group ``zoo.recipes``: ``name = package.folder`` of YAML files, which is never imported


@dataclass(frozen=True)
class Part:
    """One entry point, not yet imported."""

    kind: str
    name: str
    target: str  # "module:Class"
    distribution: str
    version: str
    home: str = ""  # the folder of the distribution's metadata
    requires: tuple[str, ...] = ()  # which versions of zoo the distribution asks for
    damage: str = ""  # why its metadata name no class

    @property
    def path(self) -> str:
        """The class path that names this part without a registry."""
        return self.target.replace(":", ".")

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    @property
    def origin(self) -> str:
        return f"{self.distribution} {self.version}"

    @property
    def builtin(self) -> bool:
        return self.distribution == BUILTIN

    @property
    def entry(self) -> str:
        """The line of the package's metadata that this part comes from."""
        return f"{self.name} = {self.target} in [{GROUP}{self.kind}]"

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} of {self.origin}"

    def load(self) -> type:
        """Import the class. Raises PluginError when its package cannot be imported or names something else."""
        module, _, name = self.target.partition(":")
        try:
            cls = import_object(module, name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plugin may well call sys.exit() while it is imported
            raise PluginError(
                f"{self} cannot be imported: {describe_import_error(error, module)}\nIts entry point is {self.entry}. "
                f"Try: pip install -U {self.distribution}"
            ) from error
        if not isinstance(cls, type) or cls.__name__ != self.name:
            class_name = getattr(cls, "__name__", type(cls).__name__)
            raise PluginError(f"{self}: its entry point {self.entry} names {class_name!r}; the two names must agree")
        return cls


@functools.cache
def listed(kind: str) -> tuple[Part, ...]:
    """Everything installed under a kind, sorted by name, with what no name can choose: hidden or disabled parts."""
    parts_of_kind = {
        (one.name, one.value, one.package.name): _part(one) for one in discover().entries if one.kind == kind
    }
    return tuple(sorted(parts_of_kind.values(), key=lambda part: (part.name.lower(), part.origin)))


def parts(kind: str) -> tuple[Part, ...]:
    """Everything that a name can choose: not disabled, and not called like a part of zoo itself."""
    return tuple(part for part in listed(kind) if not hidden(part) and not disabled(part.distribution))


_named: dict[str, tuple[tuple[Part, ...], dict[str, list[Part]]]] = {}  # by kind: what is listed, and its names


def named(kind: str, name: str) -> list[Part]:
    """Everything installed under a kind that is called so, whatever its case; at once, however many there are."""
    every = listed(kind)
    known = _named.get(kind)
    if known is None or known[0] is not every:
        index: dict[str, list[Part]] = {}
        for part in every:
            index.setdefault(part.name.lower(), []).append(part)
        known = _named[kind] = (every, index)
    return known[1].get(name.lower(), [])


def owner(path: str) -> Part | None:
    """The installed part of a class path that is named like its class, or None."""
    name = path.rpartition(".")[2]
    mine = (part for kind in KINDS for part in named(kind, name) if part.path == path and part.name == name)
    return next(mine, None)


def hidden(part: Part) -> bool:
    """Whether a part is called like a built-in one, whose name it cannot take over."""
    return not part.builtin and any(one.builtin for one in named(part.kind, part.name))


def disabled(distribution: str) -> bool:
    """Whether the environment switches a distribution off; zoo itself cannot be."""
    return distribution != BUILTIN and bool({"1", "all", normal(distribution)} & switched())


def switched() -> set[str]:
    """The words of ZOO_DISABLE_PLUGINS: ``1`` or ``all``, or names of distributions."""
    return {normal(word) for word in os.environ.get(SWITCH, "").split(",")} - {""}


def distributions() -> set[str]:
    """The normal names of the installed packages that bring parts or recipes."""
    return {normal(one.package.name) for one in discover().entries}


def flaws() -> list[Flaw]:
    """What could not be read of the entry points, or is of no kind that this version of zoo knows."""
    groups = (*KINDS, RECIPES)
    odd = {(one.package, one.kind) for one in discover().entries if one.kind not in groups and one.package.requires}
    groups_of_kinds = [GROUP + kind for kind in groups]
    strange = [
        Flaw(package, f"unknown group {GROUP + kind!r}.{suggest(GROUP + kind, groups_of_kinds)}")
        for package, kind in odd
    ]
    empty = [Flaw(one.package, _nowhere(one)) for one in _shelves() if folder(one.value) is None]
    return [*discover().flaws, *sorted([*strange, *empty], key=lambda flaw: (flaw.package.name, flaw.reason))]


def shelves() -> list[tuple[Package, Path]]:
    """The folders of recipes that installed packages declare, but not disabled ones, sorted by package."""
    folders = [(one.package, folder(one.value)) for one in _shelves() if not disabled(one.package.name)]
    return sorted((package, place) for package, place in folders if place is not None)


def _shelves() -> list[Entry]:
    return [one for one in discover().entries if one.kind == RECIPES]


def _nowhere(entry: Entry) -> str:
    return f"entry point {entry.name!r} in [{GROUP}{RECIPES}]: {entry.value!r:.80} is no folder of an installed package"


def folder(target: str) -> Path | None:
    """The folder that ``package.folder`` means, importing nothing; None where there is none."""
    top, *inside = target.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    places = (Path(place, *inside) for place in (spec and spec.submodule_search_locations) or ())
    return next((place for place in places if place.is_dir()), None)


def same(part: Part, name: str) -> bool:
    """Whether a name means a part: names ignore case."""
    return part.name.lower() == name.lower()


def find(kind: str, name: str) -> Part:
    """The part of that name, ignoring case. Raises PartError that lists what there is, or which packages clash."""
    matches = [part for part in named(kind, name) if not hidden(part) and not disabled(part.distribution)]
    exact = [part for part in matches if part.name == name] or matches
    if len(exact) == 1:
        return exact[0]
    if exact:
        owners = " and ".join(part.origin for part in exact)
        paths = ", ".join(part.path for part in exact)
        raise PartError(f"two packages register {kind} {name!r}: {owners}. Write its class path: {paths}")
    off = named(kind, name)
    if off:
        raise PartError(f"unknown {kind} {name!r}: {SWITCH} disables {off[0].origin}, which has it.")
    names = list(dict.fromkeys(part.name for part in parts(kind)))
    unread = [flaw for flaw in flaws() if re.search(rf"\b{re.escape(name)}\b", flaw.reason, re.IGNORECASE)]
    hint = f"\n{unread[0].package.origin} is damaged: {unread[0].reason}" if unread else _not_installed(kind, name)
    raise PartError(f"unknown {kind} {name!r}.{suggest(name, names)} Available: {', '.join(names)}{hint}")


def spelled(kind: str, name: str) -> str:
    """The name itself, or the part that a short form stands for: `none` of a position is NoPosition."""
    if name.lower() in NOTHING and kind in KINDS:
        return next((part.name for part in parts(kind) if part.name.lower() == f"no{kind}"), name)
    return name


def get(kind: str, name: str) -> type:
    """The class of that name."""
    return find(kind, name).load()


def _not_installed(kind: str, name: str) -> str:
    """A hint at a package in the working folder that has a part and was not installed; nothing where there is none."""
    for path in itertools.islice(Path().glob("*/pyproject.toml"), 200):
        try:
            points = tomllib.loads(path.read_text("utf-8"))["project"]["entry-points"][GROUP + kind]
            names = [str(point).lower() for point in points]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if name.lower() in names:
            return f"\n{path.parent}/ has it and is not installed: pip install -e {path.parent}"
    return ""


def suggest(word: str, words: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for the nearest known word, or nothing."""
    by_lower = {name.lower(): name for name in words}
    near = difflib.get_close_matches(word.lower(), by_lower, 1, cutoff=0.5)
    return f" Did you mean {by_lower[near[0]]!r}?" if near else ""


def _part(entry: Entry) -> Part:
    """A part of an entry point, with what is wrong in what its package wrote."""
    target = re.sub(r"\s*\[.*\]$", "", entry.value)  # extras, which pip ignores here
    module, colon, name = (piece.strip() for piece in target.partition(":"))
    written = f"entry point {entry.name!r}: {entry.value!r:.80} is not 'module:Class'"
    proper = colon and name.isidentifier() and all(piece.isidentifier() for piece in module.split("."))
    damage = "" if proper else written
    if not entry.name.isidentifier():
        damage = f"entry point {entry.name!r:.80} is no name of a class"
    package = entry.package
    return Part(
        *(entry.kind, entry.name, f"{module}:{name}" if proper else entry.value, package.name, package.version),
        *(package.home, package.requires, package.damage or damage),
    )
