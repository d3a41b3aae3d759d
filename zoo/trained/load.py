"""Load a trained model."""

from __future__ import annotations

from pathlib import Path

import torch

from zoo.errors import CheckpointError, UsageError
from zoo.parts.adapter import merge
from zoo.trained import manifest, provenance, weights
from zoo.trained.base import Trained
from zoo.trained.build import build
from zoo.trained.place import Place, find
from zoo.trained.tune import tuned, wrap
from zoo.trained.use import use


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
    place = find(run, runs)
    records = provenance.recorded(place)
    provenance.require(records)
    provenance.warn(records)
    task = build(place.config, place.source, tuple(allow))
    check(place)
    tune = tuned(place.config)
    if tune is not None and tune.rank:
        wrap(task.net, tune)
    weights.put(task, weights.read(place.weights), place.weights)
    merge(task.net)
    task = task.eval().requires_grad_(False).to(chosen(device))
    return Trained(task, place) if bare else use(task, place)


def check(place: Place) -> None:
    """Raise CheckpointError where a checkpoint, or a file that it was trained with, is not what the run wrote."""
    if place.weights.suffix != ".ckpt" or not place.weights.is_file():
        return
    said = manifest.verified(place.weights)
    changed = manifest.changed_files(said, place.folder)
    if changed:
        raise CheckpointError(
            f"{place.folder / changed[0]} is not the file that {place.weights.name} was trained with."
        )


def chosen(device: str) -> torch.device:
    """A device by its name. Raises UsageError where this machine has none of it."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise UsageError(f"device {device!r} cannot be used here: {reason[:200]}") from error
    return found
