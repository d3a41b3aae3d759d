"""Load a trained model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from zoo.errors import CheckpointError, UsageError
from zoo.finetuning.finetune import make_tunable, wrap
from zoo.inference import checkpoint_manifest, part_versions, weight_files
from zoo.inference.find_run import ModelLocation, find_model
from zoo.inference.rebuild_task import current_options, rebuild_task
from zoo.inference.trained_model import Trained
from zoo.inference.trained_tasks import use
from zoo.parts.lora import merge


def load(
    run: str | Path,
    device: str = "cpu",
    *,
    runs: str | Path = "runs",
    allow: tuple[str, ...] = (),
    bare: bool = False,
) -> Trained:
    """The trained model of a run's folder, a checkpoint file, an export, or a recipe's newest finished run.

    ``device`` is torch's name of one, or auto; ``runs`` is where recipes keep their runs; ``allow`` names modules
    besides zoo's and its plugins' that the configuration may import. No code is read from a checkpoint. What is loaded
    ``bare`` needs no tokenizer and cannot be asked anything.
    Raises PluginError where a plugin is missing; one of another version than the run's is told by a warning.
    """
    place = find_model(run, runs)
    records = part_versions.record_of(place)
    part_versions.require(records)
    part_versions.warn(records)
    model = current_options(place.config["model"], place.source, tuple(allow))
    place = replace(place, config={**place.config, "model": model})
    task = rebuild_task(place.config, place.source, tuple(allow))
    check_files(place)
    tune = make_tunable(place.config)
    if tune is not None and tune.rank:
        wrap(task.net, tune)
    weight_files.put(task, weight_files.read(place.weights), place.weights)
    merge(task.net)
    task = task.eval().requires_grad_(False).to(choose_device(device))
    return Trained(task, place) if bare else use(task, place)


def check_files(place: ModelLocation) -> None:
    """Raise CheckpointError where a checkpoint, or a file that it was trained with, is not what the run wrote."""
    if place.weights.suffix != ".ckpt" or not place.weights.is_file():
        return
    manifest = checkpoint_manifest.verify(place.weights)
    changed = checkpoint_manifest.changed_files(manifest, place.folder)
    if changed:
        raise CheckpointError(
            f"{place.folder / changed[0]} is not the file that {place.weights.name} was trained with."
        )


def choose_device(device: str) -> torch.device:
    """A device by its name. Raises UsageError where this machine has none of it."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise UsageError(f"device {device!r} cannot be used here: {reason[:200]}") from error
    return chosen
