"""Find and read recipes: packaged YAML files that `zoo fit NAME` trains by name.

A plugin adds recipes with an entry point ``name = package.folder`` in the group ``zoo.recipes``; zoo's own recipes
have precedence.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zoo.errors import UsageError
from zoo.io import atomic_files
from zoo.registry import BUILTIN, RECIPES, not_installed, recipe_folders, suggest

WEIGHTS = (".ckpt", ".safetensors", ".pt", ".pth", ".bin")  # files that are no recipe

SUFFIXES = (".yaml", ".yml")
COMPARE = "compare"  # the folder of comparisons, which `zoo compare NAME` runs


@dataclass(frozen=True)
class Recipe:
    """One packaged recipe: its name, its file, and the distribution that it belongs to."""

    name: str
    path: Path
    distribution: str = BUILTIN

    @property
    def builtin(self) -> bool:
        """Whether the recipe belongs to zoo itself."""
        return self.distribution == BUILTIN

    @property
    def header(self) -> list[str]:
        """The comment lines at the top of the file, without ``#``."""
        lines: list[str] = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            if not line.startswith("#"):
                break
            lines.append(line.lstrip("#").strip())
        return [line for line in lines if line]

    @property
    def summary(self) -> str:
        """The first comment line, without the recipe's own name."""
        return next(iter(self.header), "").removeprefix(f"{self.name}: ")


def builtin_folders() -> list[Path]:
    """The folders of zoo's own recipes: inside an installed wheel, or beside the package in a checkout."""
    package = Path(__file__).parent
    return [path for path in (package / "recipes", package.parent / "recipes") if path.is_dir()]


def recipes() -> list[Recipe]:
    """Every packaged recipe, sorted by name."""
    return [recipe for recipe in _files(_places()) if not recipe.name.startswith(f"{COMPARE}/")]


def comparisons() -> list[Recipe]:
    """Every packaged comparison, sorted by name."""
    return _files([(place / COMPARE, owner) for place, owner in _places() if (place / COMPARE).is_dir()])


def _places() -> list[tuple[Path, str]]:
    """Folders of recipes with their distributions; of two recipes with one name the first counts."""
    return [*((path, BUILTIN) for path in builtin_folders()), *((path, owner.name) for owner, path in recipe_folders())]


def _files(places: list[tuple[Path, str]]) -> list[Recipe]:
    by_name: dict[str, Recipe] = {}
    for folder, owner in places:
        for path in sorted(folder.rglob("*")):
            if path.suffix in SUFFIXES:
                name = path.relative_to(folder).with_suffix("").as_posix()
                by_name.setdefault(name, Recipe(name, path, owner))
    return sorted(by_name.values(), key=lambda recipe: recipe.name)


def comparison_file(name: str) -> Path | None:
    """The YAML file of a packaged comparison's name or of a path; None if there is no such comparison."""
    path = Path(name).expanduser()
    if path.is_file() and path.suffix in SUFFIXES:
        return path
    key = name.lower().removeprefix(f"{COMPARE}/")
    paths = (recipe.path for recipe in comparisons() if recipe.name.lower() == key)
    return next((path for path in paths if not packaged_recipe(name)), None)


def packaged_recipe(name: str) -> Recipe | None:
    """The packaged recipe of that name, ignoring case, or None."""
    return next((recipe for recipe in recipes() if recipe.name.lower() == name.lower()), None)


def find_recipe(name: str) -> Path:
    """The YAML file of a packaged recipe's name, a path, or a run folder (its config.yaml).

    Raises UsageError if there is none, naming the most similar recipe.
    """
    path = Path(name).expanduser()
    recipe = packaged_recipe(name)
    if recipe and not path.is_file():
        return recipe.path
    if path.is_dir() and (path / "config.yaml").is_file():
        return path / "config.yaml"
    if path.suffix in WEIGHTS or (path / "config.json").is_file():
        what = "an export" if path.is_dir() else "a file of weights"
        raise UsageError(
            f"{name!r} is {what}, which says nothing of data: name a recipe or a run's folder. A checkpoint of a run: "
            "--ckpt_path FILE. To start from weights: --tune.start PATH"
        )
    if path.is_file():
        return path
    if path.is_dir():
        raise UsageError(f"{name!r} is a folder without a config.yaml: neither a recipe nor a run.")
    if package := not_installed(RECIPES, name):
        raise UsageError(f"no recipe or file {name!r}.{package}")
    here = sorted(file.name for file in Path(".").glob("*.y*ml")) if path.suffix in (".yaml", ".yml") else []
    hint = suggest(name, here or [recipe.name for recipe in recipes()])
    raise UsageError(f"no recipe or file {name!r}.{hint} See them all: zoo recipes")


def copy_recipe(name: str, destination: str, force: bool = False) -> Path:
    """Copy a packaged recipe to a file or into a folder, and return the path of the copy.

    Raises UsageError if there is no such recipe, the file exists (unless ``force``), or it cannot be written.
    """
    source = find_recipe(name)
    target = Path(destination).expanduser()
    if target.is_dir() or destination.endswith("/"):
        target = target / source.name
    if target.exists() and not force:
        raise UsageError(f"{target} exists. Overwrite it: zoo cp {name} {destination} --force")
    if not target.parent.is_dir():
        raise UsageError(f"the folder {target.parent} does not exist. Make it first: mkdir -p {target.parent}")
    try:
        if target.exists() and target.samefile(source):
            raise UsageError(f"{target} is the packaged recipe itself. Name another place.")
        atomic_files.copy(source, target)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    return target
