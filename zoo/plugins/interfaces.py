"""Interface versions: what a plugin is written for, per kind, apart from the version of zoo.

A plugin declares them as entry points, which every build tool copies into the metadata of the installed package, so
that zoo reads them without importing the plugin:

    [project.entry-points."zoo.interface"]
    norm = "v1"

A package that declares nothing for a kind was written for version 1. Needs no torch.
"""

from __future__ import annotations

import functools
import importlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

log = logging.getLogger(__name__)

GROUP_KIND = "interface"  # of the entry points ``zoo.interface``
FIRST = 1


@dataclass(frozen=True)
class Change:
    """What a new version of an interface changes for a part that is written for the version before.

    ``adapt`` is a function ``module:name`` that changes such a class in place so that it works; empty where it does.
    """

    what: str  # "`rotate` takes the number of the head"
    fix: str  # "add the parameter `head`"
    since: str  # version of zoo
    adapt: str = ""


# by kind, the oldest first: the first change makes version 2. A version works until the second change after it
CHANGES: Mapping[str, tuple[Change, ...]] = {}


def current(kind: str) -> int:
    """The version of a kind's interface that this zoo has."""
    return FIRST + len(CHANGES.get(kind, ()))


def oldest(kind: str) -> int:
    """The oldest version that still works: deprecation lasts one version."""
    return max(FIRST, current(kind) - 1)


def parse_version(text: str) -> int | None:
    """The number of ``v1``; None for other texts."""
    match = re.fullmatch(r"v([1-9]\d{0,5})", text.strip())
    return int(match[1]) if match else None


def refusal(kind: str, version: int, distribution: str) -> str:
    """Why a part for this version does not work, and what to install; empty where it does."""
    ours = supported(kind)
    if version > current(kind):
        return f"is written for version {version} of the {kind} interface, {ours}. Run: pip install -U zoo-transformers"
    if version < oldest(kind):
        ended = CHANGES[kind][version].since  # the change after the one that replaced it
        return (
            f"is written for version {version} of the {kind} interface, {ours}. "
            f"Run: pip install -U {distribution}, or: pip install 'zoo-transformers<{ended}'"
        )
    return ""


def supported(kind: str) -> str:
    """The versions that work, as part of a sentence: ``this zoo supports 2 (deprecated) and 3``."""
    versions = f"{oldest(kind)} (deprecated) and {current(kind)}" if oldest(kind) < current(kind) else f"{FIRST}"
    return f"this zoo supports {versions}"


def deprecation(kind: str, version: int, distribution: str) -> str:
    """What a part for an older version that still works has to change, and until when; empty for the current one."""
    if not oldest(kind) <= version < current(kind):
        return ""
    change = CHANGES[kind][version - FIRST]
    return (
        f"is written for version {version} of the {kind} interface, which ends with version {version + 2}; "
        f"this zoo has version {current(kind)}.\n"
        f'Since zoo {change.since}: {change.what}. Its author\'s fix: {change.fix}, and {kind} = "v{version + 1}" in '
        f'[project.entry-points."zoo.{GROUP_KIND}"]. To update: pip install -U {distribution}'
    )


def adapt(cls: type, kind: str, version: int, label: str, distribution: str) -> None:
    """Make the class of a part for an older version work, and log one warning. ``label`` names it in the warning."""
    if sentence := deprecation(kind, version, distribution):
        _warn(f"{label} {sentence}")
        if path := CHANGES[kind][version - FIRST].adapt:
            _adapt(cls, path)


@functools.cache
def _warn(sentence: str) -> None:
    log.warning(sentence)


@functools.cache
def _adapt(cls: type, path: str) -> None:
    module, _, function = path.partition(":")
    getattr(importlib.import_module(module), function)(cls)
