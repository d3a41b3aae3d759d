"""Export a trained model to formats that other programs can read: safetensors, config.json, tokenizer.json."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.data.tokenizer_file import NAMES
from zoo.errors import UsageError
from zoo.inference import part_versions, weight_files
from zoo.inference.find_run import EXPORT, FACTS, WEIGHTS
from zoo.io import atomic_files

if TYPE_CHECKING:
    from zoo.inference.trained_model import Trained

FORMAT = 1


def export(trained: Trained, folder: Path, force: bool = False) -> Path:
    """Export a trained model to a folder, which must be new or empty unless ``force``; returns the folder.

    Raises UsageError if the folder is not empty, is the model's own, or cannot be written.
    """
    place = trained.place
    check_folder(trained, folder, force)
    try:
        with atomic_files.replace_files(folder, EXPORT) as draft:
            # settings of published tokenizers
            beside = {NAMES, *(name.replace("tokenizer.json", NAMES) for name in trained.files)}
            for name in [*trained.files, *sorted(beside - {*trained.files})]:
                if name in trained.files or (place.folder / name).is_file():
                    atomic_files.copy(place.file(name), draft / name)
            weight_files.write_weights(trained.module, draft / WEIGHTS)
            about = {
                "format": FORMAT,
                "zoo": version("zoo-transformers"),
                "kind": trained.task_name,
                "parts": part_versions.records_of_model(place)
                or part_versions.packages_used({"model": place.config["model"]}),
                "model": place.config["model"],
                **trained.extra(),
                **{name: place.config[name] for name in FACTS if name in place.config},
            }
            atomic_files.write_json(draft / EXPORT, about)
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {atomic_files.reason(error)}") from error
    return folder


def check_folder(trained: Trained, folder: Path, force: bool) -> None:
    """Raise UsageError for a folder to export into that is the model's own, has the name of a file of weights, or,
    unless ``force``, is not empty.
    """
    if folder.suffix in (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".onnx") and not folder.exists():
        raise UsageError(f"{folder} would be a folder: an export has several files. Name one without {folder.suffix}.")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise UsageError(f"{folder} is not empty. Export into it nevertheless: --force")
    if folder.resolve() == trained.place.folder.resolve():
        raise UsageError(f"{folder} is where the model comes from. Choose another folder.")
