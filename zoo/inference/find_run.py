"""Find a trained model: a run's folder, a checkpoint file, an export, or the newest finished run of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo import recipe_files
from zoo.errors import CheckpointError, UsageError
from zoo.io import limits, plain_yaml
from zoo.registry import suggest

FINISHED, CONFIG = "finished.json", "config.yaml"
STARTING = "starting"  # in a run's folder until its first checkpoint is written
PREVIOUS = "previous.ckpt"
EXPORT, WEIGHTS = "config.json", "model.safetensors"


# files of a published checkpoint that no run and no export of zoo has
PUBLISHED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.safetensors.index.json", "tf_model.h5")


@dataclass(frozen=True)
class ModelLocation:
    """Where a trained model lies: the folder of its files, its weights, and its complete configuration."""

    folder: Path
    weights: Path
    config: Mapping[str, Any]
    source: Path  # the file that the configuration was read from

    def file(self, name: str) -> Path:
        """A file that the data wrote for later use. Raises UsageError where it is missing."""
        path = self.folder / name
        if not path.is_file():
            data = str((self.config.get("data") or {}).get("class_path", "")).rpartition(".")[2]
            raise UsageError(
                f"{path} is missing: data writes it when a run starts, where its samples can be asked for. If "
                f"{data or 'this data'} does, copy the file back or train again."
            )
        return path


def checkpoint(folder: Path, best: bool = False) -> Path | None:
    """The newest checkpoint below a run's folder, or the best one where a file says so by its name."""
    # a run's previous.ckpt is older than its last.ckpt, also where a clock was set back in between
    files = sorted(folder.rglob("*.ckpt"), key=lambda path: (path.name != PREVIOUS, path.stat().st_mtime))
    named = [path for path in files if path.name.startswith("best")]
    chosen = named if best and named else files
    return chosen[-1] if chosen else None


def config_of_checkpoint(path: Path) -> Path | None:
    """The folder of the run that a checkpoint belongs to: its own, or one of the two above."""
    return next((above for above in path.resolve().parents[:3] if (above / CONFIG).is_file()), None)


def find_model(run: str | Path, runs: str | Path = "runs") -> ModelLocation:
    """The place that a path or a recipe's name means. Raises UsageError that says what else there is."""
    path, root = Path(run).expanduser(), Path(runs)
    if path.is_file():
        refuse_published(path.parent)
        return _export(path.parent) if path.name in (WEIGHTS, EXPORT) else _of_file(path)
    if not path.is_dir():
        path = root / _known(str(run), root)
    refuse_published(path)
    if (path / WEIGHTS).is_file():
        return _export(path)
    if (path / EXPORT).is_file() and not (path / CONFIG).is_file():
        raise UsageError(f"{path} is an export without its weights: {WEIGHTS} is missing. Export the run again.")
    return _run(path) if (path / CONFIG).is_file() else _run(_newest(path))


def refuse_published(folder: Path) -> None:
    """Raise UsageError for a folder as transformers or timm write it, which must be imported first."""
    if (folder / CONFIG).is_file() or not folder.is_dir():
        return
    try:
        config = limits.json_file(folder / EXPORT)
    except (OSError, UsageError):
        config = None
    ours = isinstance(config, dict) and isinstance(config.get("model"), dict)
    theirs = isinstance(config, dict) and bool({"model_type", "architectures", "architecture"} & config.keys())
    if ours or not (theirs or any((folder / name).is_file() for name in PUBLISHED)):
        return
    raise UsageError(
        f"{folder} is no run and no export of zoo, but a checkpoint as transformers or timm write it.\n"
        f"Import it first: zoo import {folder} {folder.name}-zoo"
    )


def _known(name: str, root: Path) -> Path:
    """The folder of a recipe's runs, relative to the folder of all runs."""
    recipe = recipe_files.packaged_recipe(name)
    shown = recipe.name if recipe else name
    if not Path(name).is_absolute() and (root / shown).is_dir():
        return Path(shown)
    if recipe:
        raise UsageError(f"recipe {shown!r} has no run in {root}. Train it first: zoo fit {shown}")
    trained = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    have = f"Trained in {root}: {', '.join(trained[:8])}." if trained else f"Nothing is trained in {root} yet."
    hint = suggest(name, [*trained, *(one.name for one in recipe_files.recipes())])
    raise UsageError(f"no run, checkpoint or recipe {name!r}.{hint}\n{have} Train one: zoo fit RECIPE")


def _newest(folder: Path) -> Path:
    """The run below a folder that finished last."""
    folders = [path.parent for path in folder.rglob(CONFIG)]
    done = [path for path in folders if (path / FINISHED).is_file()]
    if done:
        return max(done, key=lambda path: (path / FINISHED).stat().st_mtime)
    started = sorted(path for path in folders if checkpoint(path))
    if started:
        raise UsageError(f"no run in {folder} is finished. Name one that was started: {started[0]}")
    raise UsageError(f"{folder} holds no run: no {CONFIG} with a checkpoint beside it.")


def _run(folder: Path) -> ModelLocation:
    weights = checkpoint(folder, best=True)
    if weights is None:
        raise UsageError(f"no checkpoint in {folder}: it was started and saved nothing. Train it: zoo fit {folder}")
    return ModelLocation(folder, weights, _yaml(folder / CONFIG), folder / CONFIG)


def _of_file(path: Path) -> ModelLocation:
    """A checkpoint belongs to the configuration in its folder or in one of the two above."""
    home = config_of_checkpoint(path)
    if home is None:
        if path.suffix not in (".ckpt", ".pt", ".safetensors"):
            raise UsageError(
                f"{path} is neither a run's folder, nor an export, nor a checkpoint (.ckpt, .safetensors)."
            )
        raise UsageError(f"{path} has no {CONFIG} in its folder or the two above: put the run's {CONFIG} there.")
    return ModelLocation(home, path, _yaml(home / CONFIG), home / CONFIG)


def _export(folder: Path) -> ModelLocation:
    path = folder / EXPORT
    for file in (path, folder / WEIGHTS):
        if not file.is_file():
            raise CheckpointError(f"{folder} is no complete export: {file.name} is missing. Make it anew: zoo export")
    try:
        config = limits.json_file(path)
    except (OSError, UsageError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    return ModelLocation(folder, folder / WEIGHTS, _checked(config, path), path)


def _yaml(path: Path) -> Mapping[str, Any]:
    try:
        return _checked(plain_yaml.read(path), path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error


def _checked(config: object, path: Path) -> Mapping[str, Any]:
    model = config.get("model") if isinstance(config, dict) else None
    if not isinstance(config, dict) or not isinstance(model, dict) or not isinstance(model.get("class_path"), str):
        raise UsageError(f"{path} names no task: 'model' with a 'class_path' is expected, as a run writes it.")
    return config
