"""Save a trained model in three kinds of files that any program can read: safetensors, config.json, tokenizer.json."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from zoo import atomic
from zoo.errors import UsageError
from zoo.trained import provenance, weights
from zoo.trained.place import EXPORT, WEIGHTS

if TYPE_CHECKING:
    from zoo.trained.base import Trained

FORMAT = 1


def export(trained: Trained, folder: Path, force: bool = False) -> Path:
    """Write an export of a trained model into a folder, which must be new or empty unless forced."""
    place = trained.place
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise UsageError(f"{folder} is not empty. Export into it nevertheless: --force")
    if folder.resolve() == place.folder.resolve():
        raise UsageError(f"{folder} is where the model comes from. Choose another folder.")
    try:
        with atomic.staged(folder, EXPORT) as draft:
            for name in trained.files:
                atomic.copy(place.file(name), draft / name)
            weights.write(trained.task, draft / WEIGHTS)
            about = {
                "format": FORMAT,
                "zoo": version("zoo-transformers"),
                "kind": type(trained.task).__name__,
                "parts": provenance.recorded(place) or provenance.used({"model": place.config["model"]}),
                "model": place.config["model"],
                **trained.extra(),
            }
            atomic.write_json(draft / EXPORT, about)
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {atomic.reason(error)}") from error
    return folder
