"""What an installation writes about a package, for tests of packages that are not installed."""

import tomllib
from pathlib import Path
from typing import Any

from zoo import registry
from zoo.cli import find_command
from zoo.plugins import discovery


def read_project(folder: Path) -> dict[str, Any]:
    """The section ``project`` of a package's pyproject.toml."""
    content: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return content


PROJECT = read_project(Path(__file__).parents[1])
# which have the tasks and parts of some families
NEEDED_PROJECTS = [
    read_project(Path(__file__).parents[2] / name) for name in ("zoo-text", "zoo-frontier", "zoo-multimodal")
]


def write_metadata(folder: Path, name: str, points: dict[str, dict[str, str]]) -> None:
    """Write what an installation of a package would write about it into a folder."""
    info = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir()
    lines = [line for group, own in points.items() for line in (f"[{group}]", *map(" = ".join, own.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n", encoding="utf-8")


def read_again() -> None:
    """Forget which packages there are."""
    for cache in (discovery.discover, registry.installed_parts, find_command.all_commands):
        cache.cache_clear()
