"""Find parts: each is a class that an installed package names by an entry point in the group ``zoo.<kind>``.

Listing imports nothing; a part is imported when it is used. The entry point's name is the class's name.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from zoo.errors import PartError, PluginError

GROUP = "zoo."
KINDS = ("position", "backend", "attention", "norm", "ffn", "block", "task", "data")
BUILTIN = "zoo-transformers"


@dataclass(frozen=True)
class Part:
    """One entry point, not yet imported."""

    kind: str
    name: str
    target: str  # "module:Class"
    distribution: str
    version: str
    point: EntryPoint

    @property
    def path(self) -> str:
        """The class path that names this part without a registry."""
        return self.target.replace(":", ".")

    @property
    def origin(self) -> str:
        return f"{self.distribution} {self.version}"

    def load(self) -> type:
        """Import the class. Raises PluginError when its package cannot be imported or names something else."""
        try:
            cls = self.point.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plugin may well call sys.exit() while it is imported
            reason = f"{type(error).__name__}: {error}"
            raise PluginError(f"{self.kind} {self.name!r} of {self.origin} cannot be imported: {reason}") from error
        if not isinstance(cls, type) or cls.__name__ != self.name:
            found = getattr(cls, "__name__", repr(cls))
            raise PluginError(f"{self.origin}: entry point {self.name!r} names {found!r}; the two names must agree")
        return cls


@functools.cache
def parts(kind: str) -> tuple[Part, ...]:
    """Everything installed under a kind, sorted by name."""
    return collect(kind, entry_points(group=GROUP + kind))


def collect(kind: str, points: Iterable[EntryPoint]) -> tuple[Part, ...]:
    """Parts of entry points: duplicates of one distribution count once, and nothing shadows a built-in."""
    found: dict[tuple[str, str, str], Part] = {}
    for point in points:
        dist, version = (point.dist.name, point.dist.version) if point.dist else ("unknown", "0")
        found.setdefault((point.name, point.value, dist), Part(kind, point.name, point.value, dist, version, point))
    builtin = {part.name for part in found.values() if part.distribution == BUILTIN}
    kept = [part for part in found.values() if part.distribution == BUILTIN or part.name not in builtin]
    return tuple(sorted(kept, key=lambda part: (part.name.lower(), part.origin)))


def find(kind: str, name: str) -> Part:
    """The part of that name, ignoring case. Raises PartError that lists what there is, or which packages clash."""
    matches = [part for part in parts(kind) if part.name.lower() == name.lower()]
    exact = [part for part in matches if part.name == name] or matches
    if len(exact) == 1:
        return exact[0]
    if exact:
        owners = " and ".join(part.origin for part in exact)
        paths = ", ".join(part.path for part in exact)
        raise PartError(f"two packages register {kind} {name!r}: {owners}. Write its class path: {paths}")
    names = list(dict.fromkeys(part.name for part in parts(kind)))
    raise PartError(f"unknown {kind} {name!r}.{suggest(name, names)} Available: {', '.join(names)}")


def get(kind: str, name: str) -> type:
    """The class of that name."""
    return find(kind, name).load()


def suggest(word: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for the nearest known word, or nothing."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_lower, 1, cutoff=0.5)
    return f" Did you mean {by_lower[near[0]]!r}?" if near else ""
