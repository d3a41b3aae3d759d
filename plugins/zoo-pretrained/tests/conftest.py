"""One thread, one seed, and the package in the registry, whether it is installed or not."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import importlib.metadata
import tomllib
from pathlib import Path

import pytest
import torch

from zoo import registry
from zoo.cli import find_command
from zoo.plugins import discovery

torch.set_num_threads(1)
PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


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


@pytest.fixture(scope="module", autouse=True)
def _registered(tmp_path_factory):
    """The commands and families of this package are there, also where the tests of zoo leave plugins out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(registry.DISABLE_VARIABLE, raising=False)
        try:
            importlib.metadata.version(PROJECT["name"])
        except importlib.metadata.PackageNotFoundError:
            folder = tmp_path_factory.mktemp("site")
            write_metadata(folder, PROJECT["name"], PROJECT["entry-points"])
            patch.syspath_prepend(folder)
        read_again()
        yield
    read_again()


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
