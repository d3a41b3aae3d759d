"""Find a trained model: a run folder, a checkpoint file, an export, or the newest finished run of a recipe."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from zoo import recipe_files
from zoo.errors import CheckpointError, UsageError
from zoo.inference.hub import is_remote, local_folder
from zoo.io import checkpoint_manifest, limits, plain_yaml
from zoo.io.linked_folders import files_below
from zoo.registry import suggest

FINISHED, CONFIG = "finished.json", "config.yaml"
STARTING = "starting"  # a file in a run folder until its first checkpoint is written
EXPORT, WEIGHTS = "config.json", "model.safetensors"
ORIGIN, FACTS = "origin.json", ("family", "generation")  # what the import with which a run began says of it


# files of published checkpoints that runs and exports of zoo do not have
PUBLISHED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.safetensors.index.json", "tf_model.h5")


@dataclass(frozen=True)
class ModelLocation:
    """The folder, weights file and complete configuration of a trained model."""

    folder: Path
    weights: Path
    config: Mapping[str, Any]
    source: Path  # the file that the configuration was read from

    def file(self, name: str) -> Path:
        """A file that the data module saved for inference, such as tokenizer.json. Raises UsageError if missing."""
        path = self.folder / name
        if not path.is_file():
            data = str((self.config.get("data") or {}).get("class_path", "")).rpartition(".")[2]
            raise UsageError(
                f"{path} is missing: {data or 'the data module'} writes it when a run starts. Copy the file back or "
                "train again."
            )
        return path


def checkpoint_to_use(folder: Path) -> Path | None:
    """The checkpoint below a run folder that is used: the best, or else the newest intact one; None without any.

    Where all are damaged it is one of these, so that reading it says what is wrong.
    """
    best = checkpoint_manifest.checkpoints_of(folder, [checkpoint_manifest.BEST])
    files = best or checkpoint_manifest.checkpoints_of(folder)
    if len(files) < 2:  # nothing to choose from: no file is read
        return files[0] if files else None
    return checkpoint_manifest.newest_intact(folder, {path.name for path in files}).path or files[-1]


def run_of_checkpoint(path: Path) -> Path | None:
    """The run folder of a checkpoint: the folder of the file or one of the two above; None without a config.yaml."""
    return next((above for above in path.resolve().parents[:3] if (above / CONFIG).is_file()), None)


def find_model(run: str | Path, runs: str | Path = "runs") -> ModelLocation:
    """The location of the model that a path or a recipe's name means.

    Raises UsageError if there is none, listing the trained recipes, and CheckpointError for an incomplete export.
    """
    if not str(run).strip():
        raise UsageError("RUN is empty: name a recipe, or a run's folder. Is a variable of the shell unset?")
    if is_remote(run):
        run = local_folder(run)
    path, root = Path(run).expanduser(), Path(runs).expanduser()
    if path.name == CONFIG and checkpoint_manifest.has_checkpoint(path.parent):
        path = path.parent
    if path.is_file() and path.suffix in (".yaml", ".yml") and path.name != CONFIG:
        path = newest_run(path.stem, root)  # of a recipe
    if path.is_file():
        refuse_published(path.parent)
        return _from_export(path.parent) if path.name in (WEIGHTS, EXPORT) else _from_checkpoint(path)
    if not path.is_dir():
        path = newest_run(str(run), root)
    refuse_published(path)
    if (path / WEIGHTS).is_file():
        return _from_export(path)
    if (path / EXPORT).is_file() and not (path / CONFIG).is_file():
        raise UsageError(f"{path} is an export without its weights: {WEIGHTS} is missing. Export the run again.")
    return _from_run(path) if (path / CONFIG).is_file() else _from_run(_newest_run(path))


def refuse_published(folder: Path) -> None:
    """Raise UsageError for a folder in the format of transformers or timm, which must be imported first."""
    if (folder / CONFIG).is_file() or not folder.is_dir():
        return
    try:
        config = limits.read_json(folder / EXPORT)
    except (OSError, UsageError):
        config = None
    ours = isinstance(config, dict) and isinstance(config.get("model"), dict)
    theirs = isinstance(config, dict) and bool({"model_type", "architectures", "architecture"} & config.keys())
    if ours or not (theirs or any((folder / name).is_file() for name in PUBLISHED)):
        return
    raise UsageError(
        f"{folder} is not a run or export of zoo, but a checkpoint in the format of transformers or timm.\n"
        f"Import it first: zoo import {folder} {folder.name}-zoo"
    )


def _recipe_folder(name: str, root: Path) -> Path:
    """The folder of a recipe's runs, relative to ``root``. Raises UsageError without runs."""
    recipe = recipe_files.packaged_recipe(name)
    folder_name = recipe.name if recipe else name
    if not Path(name).is_absolute() and (root / folder_name).is_dir():
        return Path(folder_name)
    option = "" if str(root) == "runs" else f" --runs {shlex.quote(str(root))}"
    if recipe:
        raise UsageError(f"recipe {folder_name!r} has no run in {root}. Train it first: zoo fit {folder_name}{option}")
    trained = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    more = f" and {len(trained) - 8} more" if len(trained) > 8 else ""
    have = f"Trained in {root}: {', '.join(trained[:8])}{more}." if trained else f"Nothing is trained in {root} yet."
    hint = suggest(name, [*trained, *(recipe.name for recipe in recipe_files.recipes())])
    raise UsageError(f"no run, checkpoint or recipe {name!r}.{hint}\n{have} Train one: zoo fit RECIPE{option}")


def newest_run(name: str, runs: str | Path) -> Path:
    """The run that a recipe's name means to every command: the one of its runs that finished last.

    Raises UsageError if there is none.
    """
    root = Path(runs).expanduser()
    return _newest_run(root / _recipe_folder(name, root))


def _newest_run(folder: Path) -> Path:
    """The run below a folder that finished last, of those with a checkpoint. Raises UsageError if none has finished."""
    folders = [path.parent for path in files_below(folder, CONFIG.__eq__)]
    finished = [path for path in folders if (path / FINISHED).is_file()]
    finished = [path for path in finished if checkpoint_manifest.has_checkpoint(path)] or finished
    if finished:
        return max(finished, key=lambda path: (path / FINISHED).stat().st_mtime)
    started = sorted(path for path in folders if checkpoint_manifest.has_checkpoint(path))
    if started:
        raise UsageError(f"no run in {folder} is finished. Name one that was started: {started[0]}")
    raise UsageError(f"{folder} holds no run: no {CONFIG} with a checkpoint beside it.")


def _from_run(folder: Path) -> ModelLocation:
    weights = checkpoint_to_use(folder)
    if weights is None:
        raise UsageError(
            f"no checkpoint in {folder}: the run saved none. Name another run, or train with checkpoints: zoo fit "
            f"{shlex.quote(str(folder))} --trainer.enable_checkpointing true --name NAME"
        )
    return ModelLocation(folder, weights, _read_config(folder), folder / CONFIG)


def _from_checkpoint(path: Path) -> ModelLocation:
    """The location of a checkpoint file, with the configuration in its folder or one of the two above."""
    home = run_of_checkpoint(path)
    if home is None:
        if path.suffix not in (".ckpt", ".pt", ".safetensors"):
            raise UsageError(
                f"{path} is neither a run's folder, nor an export, nor a checkpoint (.ckpt, .safetensors)."
            )
        raise UsageError(f"{path} has no {CONFIG} in its folder or the two above: put the run's {CONFIG} there.")
    return ModelLocation(home, path, _read_config(home), home / CONFIG)


def _from_export(folder: Path) -> ModelLocation:
    path = folder / EXPORT
    for file in (path, folder / WEIGHTS):
        if not file.is_file():
            raise CheckpointError(f"{folder} is an incomplete export: {file.name} is missing. Export again: zoo export")
    try:
        config = limits.read_json(path)
    except (OSError, UsageError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    return ModelLocation(folder, folder / WEIGHTS, _require_task(config, path), path)


def _read_config(folder: Path) -> Mapping[str, Any]:
    path, origin = folder / CONFIG, folder / ORIGIN
    try:
        config = _require_task(plain_yaml.read(path), path)
        return {**config, **cast(dict, limits.read_json(origin))} if origin.is_file() else config
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error


def _require_task(config: object, path: Path) -> Mapping[str, Any]:
    model = config.get("model") if isinstance(config, dict) else None
    if not isinstance(config, dict) or not isinstance(model, dict) or not isinstance(model.get("class_path"), str):
        raise UsageError(f"{path} names no task: 'model' with a 'class_path' is expected, as a run writes it.")
    return config
