"""Hand a `lightning` command that zoo does not have to lightning-sdk, when that is installed."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

from zoo.errors import UsageError
from zoo.plugins.discovery import tolerate_damaged_metadata


def find_sdk() -> EntryPoint | None:
    """The command line of lightning-sdk, or None."""
    if find_spec("lightning_sdk") is None:
        return None
    tolerate_damaged_metadata()
    points = [point for point in entry_points(group="console_scripts") if point.value.startswith("lightning_sdk")]
    return min(points, key=lambda point: (point.name != "lightning", point.name), default=None)


def run(words: list[str]) -> int:
    """Forward a command. Raises UsageError if lightning-sdk is not installed."""
    point = find_sdk()
    if point is None:
        raise UsageError(
            f"'lightning {words[0]}' is not a command of zoo, and lightning-sdk is not installed. See: zoo --help"
        )
    sys.argv = [sys.argv[0], *words]
    result = point.load()()
    return result if isinstance(result, int) else 0
