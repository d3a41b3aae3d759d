"""`zoo.load`: load a trained model from a run, a checkpoint or an export."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from zoo.errors import CheckpointError, PluginError, UsageError
from zoo.finetuning.finetune import add_adapters, tune_of_config
from zoo.inference import part_versions, weight_files
from zoo.inference.find_run import CONFIG, ModelLocation, find_model
from zoo.inference.import_policy import restore_policy
from zoo.inference.rebuild_task import TaskNetwork, import_section, rebuild_network, rebuild_task
from zoo.inference.trained_model import Trained
from zoo.io import checkpoint_manifest
from zoo.parts.lora import merge
from zoo.plugins.safe_import import import_target

if TYPE_CHECKING:
    from zoo.tasks.task import Task

Module = TypeVar("Module", "Task", TaskNetwork)


def load(
    run: str | Path | ModelLocation,
    device: str = "cpu",
    *,
    runs: str | Path = "runs",
    allow: tuple[str, ...] = (),
    bare: bool = False,
) -> Trained:
    """The trained model of a run folder, a checkpoint file, an export, a recipe's newest finished run, or what
    `find_model` has found.

    ``device`` is a torch device or "auto"; ``runs`` is the folder of runs, searched for a recipe's name; ``allow`` are
    modules besides zoo and its plugins that the configuration may import. No code of a checkpoint is executed. A
    ``bare`` model has only ``task`` and ``net``, and needs no tokenizer.

    Raises UsageError if there is no such run, CheckpointError for damaged files, NonFiniteError for NaN weights, and
    PluginError for a missing plugin; another version of a plugin than in training causes a warning.
    """
    place = run if isinstance(run, ModelLocation) else find_model(run, runs)
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)  # or a program that computes in another type would round the weights
    try:
        with restore_policy():
            return _load(place, device, tuple(allow), bare)
    finally:
        torch.set_default_dtype(dtype)


def _load(place: ModelLocation, device: str, allow: tuple[str, ...], bare: bool) -> Trained:
    records = part_versions.records_of_model(place)
    part_versions.require_packages(records, allow)
    part_versions.warn_versions(records)
    network = None if bare else rebuild_network(place.config, place.source, allow)
    model = import_section(place.config["model"], place.source, allow) if network is None else network[1]
    place = replace(place, config={**place.config, "model": model})
    if network is not None:
        return use_module(fill(network[0], place, device), place)
    task = fill(rebuild_task(place.config, place.source, allow), place, device)
    if bare:
        return Trained(task, place)
    return use_module(task, place)


def use_module(module: Task | TaskNetwork, place: ModelLocation) -> Trained:
    """The trained model of a task or its network, of the class that the task declares as ``trained``.

    A task that declares none, and whose model has ``begin(source, …)``, is a TrainedTranslation. Raises UsageError for
    other tasks, and PluginError where the declaration is wrong.
    """
    begin = getattr(module.net, "begin", None)
    translates = begin is not None and next(iter(inspect.signature(begin).parameters), "") == "source"
    target = module.trained or ("zoo.inference.translation:TrainedTranslation" if translates else "")
    path = str(place.config["model"]["class_path"])
    if not target:
        name = path.rpartition(".")[2]
        raise UsageError(f'zoo cannot use a trained {name}: its class must say what does, as trained = "module:Class".')
    cls = import_target(target, f"trained of {path}")
    if not (isinstance(cls, type) and issubclass(cls, Trained)):
        raise PluginError(f"trained of {path}: {target} is no subclass of Trained.")
    return cls(module, place)


def fill(module: Module, place: ModelLocation, device: str) -> Module:
    """A task or its network with the weights of a model, adapters merged, in evaluation on a device."""
    check_files(place)
    tune = tune_of_config(place.config)
    if tune is not None and tune.rank:
        add_adapters(module.net, tune)
    weight_files.load_tensors(module, weight_files.read_tensors(place.weights), place.weights)
    merge(module.net)
    return module.eval().requires_grad_(False).to(choose_device(device))


def check_files(place: ModelLocation) -> None:
    """Raise CheckpointError if a checkpoint, or a file that it was trained with, has changed since."""
    if place.weights.suffix != ".ckpt" or not place.weights.is_file():
        return
    manifest = checkpoint_manifest.verify(place.weights)
    names = checkpoint_manifest.changed_files(manifest, place.folder)
    checkpoints = place.weights.parent
    if CONFIG in names and checkpoint_manifest.is_recorded(CONFIG, place.folder, checkpoints):
        names.remove(CONFIG)  # training continued with accepted changes, which leave the architecture as it is
    if names:
        raise CheckpointError(f"{place.folder / names[0]} is not the file that {place.weights.name} was trained with.")


def choose_device(device: str) -> torch.device:
    """A torch device by its name, or by "auto". Raises UsageError if it is not available."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        result = torch.device(device)
        torch.empty(0, device=result)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise UsageError(f"device {device!r} cannot be used here: {reason[:200]}") from error
    return result
