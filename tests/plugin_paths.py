"""The plugins of this repository in a process, without an installation: their sources, and metadata that names them."""

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECTS = sorted((ROOT / "plugins").glob("*/pyproject.toml"))


def write_metadata(folder: Path) -> dict[str, str]:
    """Write what an installation would write about each plugin into a folder.

    Returns the environment of a process that has all of them.
    """
    for path in PROJECTS:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir(parents=True)
        groups = [
            "\n".join([f"[{group}]", *(f"{name} = {target}" for name, target in points.items()), ""])
            for group, points in project["entry-points"].items()
        ]
        (info / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")
        facts = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (info / "METADATA").write_text(facts, encoding="utf-8")
    places = [folder, *(path.parent / "src" for path in PROJECTS), ROOT]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places)), "OMP_NUM_THREADS": "1"}
    env.pop("ZOO_DISABLE_PLUGINS", None)
    return env
