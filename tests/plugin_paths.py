"""The plugins of this repository in a process, without an installation: their sources, and metadata that names them."""

import importlib.metadata
import os
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECTS = sorted((ROOT / "plugins").glob("*/pyproject.toml"))


def write_metadata(folder: Path, projects: Iterable[Path] = PROJECTS) -> dict[str, str]:
    """Write what an installation would write about each plugin, or those of ``projects``, into a folder.

    Returns the environment of a process that has all of them.
    """
    for path in projects:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir(parents=True)
        groups = [
            "\n".join([f"[{group}]", *(f"{name} = {target}" for name, target in points.items()), ""])
            for group, points in project.get("entry-points", {}).items()
        ]
        (info / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")
        facts = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (info / "METADATA").write_text(facts, encoding="utf-8")
    places = [folder, *(path.parent / "src" for path in PROJECTS), ROOT]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places)), "OMP_NUM_THREADS": "1"}
    env.pop("ZOO_DISABLE_PLUGINS", None)
    return env


@contextmanager
def registered(name: str, folder: Path, *others: str) -> Iterator[None]:
    """Within, a plugin's parts, recipes and commands are there, whether it is installed or not, and with them those of
    all that are installed, which zoo's own tests leave out; so are those of ``others``. ``folder`` is for the metadata.
    """
    from zoo import registry
    from zoo.cli import find_command
    from zoo.plugins import discovery

    caches = (discovery.discover, registry.installed_parts, find_command.all_commands)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(registry.DISABLE_VARIABLE, raising=False)
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            write_metadata(folder, [path for path in PROJECTS if path.parent.name in (name, *others)])
            patch.syspath_prepend(folder)
        for cache in caches:
            cache.cache_clear()
        yield
    for cache in caches:
        cache.cache_clear()
