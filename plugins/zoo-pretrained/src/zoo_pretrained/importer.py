"""Import a published checkpoint: its configuration, its tensors, and which of them a swapped part can use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from zoo.errors import CheckpointError, UsageError
from zoo.inference import hub, part_versions, weight_files
from zoo.inference.export import FORMAT
from zoo.inference.find_run import EXPORT, WEIGHTS
from zoo.inference.rebuild_task import complete_options, rebuild_task
from zoo.inference.weight_files import LazyTensors, keep_own_tensors
from zoo.io import atomic_files
from zoo.tasks.task import Task
from zoo_pretrained import hf_files, lookup, tokenizer_files
from zoo_pretrained.family import Family
from zoo_pretrained.tensor_mapping import SAME, Origin, fit_shapes

WRAPPERS = ("_orig_mod.", "module.")  # before all names, where a compiled or distributed model was saved
RECIPE = "recipe.yaml"  # of an import: how to train it on
TensorFate = Literal["kept", "converted", "new", "left out"]


class TensorLine(NamedTuple):
    """What happened to one tensor: its name in zoo, and its keys in the published checkpoint."""

    fate: TensorFate
    name: str
    shape: tuple[int, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Checkpoint:
    """A published checkpoint in our words: a task with its options, and the net's tensors."""

    folder: Path
    family: Family
    theirs: Mapping[str, Any]
    model: dict[str, Any]
    task: Task  # on the meta device
    tensors: LazyTensors
    origins: dict[str, Origin]
    constants: list[str]


def checkpoint(folder: Path) -> Checkpoint:
    """Read a folder. Raises UsageError or CheckpointError that names the file and the key that is wrong."""
    config: Mapping[str, Any] = hf_files.config(folder)
    source = str(folder / hf_files.CONFIG)
    family = lookup.family_of(config, source, folder)
    theirs = hf_files.tensors(folder)
    for prefix in WRAPPERS:
        if theirs and all(key.startswith(prefix) for key in theirs):
            theirs = theirs.renamed({key.removeprefix(prefix): key for key in theirs})
    config = family.complete({**family.noticed(config, theirs), **family.read_beside(folder)}, source)
    model = complete_options({"class_path": family.task, "init_args": family.options(config)})
    if family.prefix and not any(key.startswith(family.prefix) for key in theirs):
        theirs = theirs.renamed({family.prefix + key: key for key in theirs})
    theirs = theirs.joined(family.supplied(config, theirs)).joined(family.tensors_beside(folder, config))
    try:
        tensors, origins, constants = family.read_tensors(config, theirs, str(folder))
    except CheckpointError as error:
        if config.get("architectures") or not family.architectures:
            raise
        raise CheckpointError(
            f"{error}\n{source} lacks architectures, so that zoo read it as {family.architecture}. "
            "Add the name of the class that saved it."
        ) from error
    with torch.device("meta"):
        task = rebuild_task({"model": model}, folder / hf_files.CONFIG)
    shapes = {name: tensor.shape for name, tensor in keep_own_tensors(task.net).items()}
    fit_shapes(tensors, shapes, origins, str(folder))
    return Checkpoint(folder, family, config, model, task, tensors, origins, constants)


def aliases(net: nn.Module) -> dict[str, str]:
    """Other names of tied tensors, and the first name of each."""
    first = {id(tensor): name for name, tensor in net.named_parameters()}
    every = net.named_parameters(remove_duplicate=False)
    return {name: first[id(tensor)] for name, tensor in every if first[id(tensor)] != name}


def swapped_parts(checkpoint: Checkpoint, model: Mapping[str, Any]) -> tuple[Task, LazyTensors, list[TensorLine]]:
    """The task of another configuration, every tensor of its net, and what became of each.

    A tensor is kept where the model has one of its name and shape; all others are newly initialised. The task is on the
    meta device where nothing is, so that a large model is not in memory.
    """
    source = checkpoint.folder / hf_files.CONFIG
    task = checkpoint.task
    if model != checkpoint.model:
        with torch.device("meta"):
            task = rebuild_task({"model": model}, source)
    forms = checkpoint.tensors.forms

    def fits(name: str, fresh: Tensor) -> bool:
        return name in forms and forms[name].shape == fresh.shape

    if not all(fits(name, fresh) for name, fresh in keep_own_tensors(task.net).items()):
        task = rebuild_task({"model": model}, source)
    own = {name: tensor.detach() for name, tensor in keep_own_tensors(task.net).items()}
    usable = {name: name for name, fresh in own.items() if fits(name, fresh)}
    new = {name: fresh for name, fresh in own.items() if name not in usable}
    lines = []
    for name, fresh in own.items():
        origin = checkpoint.origins[name] if name in usable else Origin((), SAME)
        fate: TensorFate = "new" if name in new else "converted" if origin.changed else "kept"
        lines.append(TensorLine(fate, name, tuple(fresh.shape), origin.keys))
    lines += [
        TensorLine("left out", "", tuple(form.shape), checkpoint.origins[name].keys)
        for name, form in forms.items()
        if name not in usable
    ]
    return task, checkpoint.tensors.renamed(usable).joined(new), lines


def table(lines: list[TensorLine], source: Checkpoint) -> str:
    """What was kept, converted, left out and newly initialised, by kinds of tensors that differ in the layer only."""
    rows = []
    for fate in ("kept", "converted", "new", "left out"):
        mine = [line for line in lines if line.fate == fate]
        groups: dict[str, list[TensorLine]] = {}
        for line in mine:
            groups.setdefault(_anonymous(line.name or " + ".join(line.keys)), []).append(line)
        numbers = sum(torch.Size(line.shape).numel() for line in mine)
        rows.append(f"{fate}: {len(mine)} tensors, {numbers:,} numbers")
        for name, group in groups.items() if fate in ("new", "left out") else ():
            of = f" × {len(group)}" if len(group) > 1 else ""
            rows.append(f"  {name} {tuple(group[0].shape)}{of}")
    if source.constants:
        keys = sorted({_anonymous(key) for key in source.constants})
        rows.append(f"not read (constants, copies, heads of other tasks): {', '.join(keys)}")
    return "\n".join(rows)


def _anonymous(name: str) -> str:
    return ".".join("*" if piece.isdigit() else piece for piece in name.split("."))


def save(
    source: Checkpoint, folder: Path, model: Mapping[str, Any], task: Task, tensors: LazyTensors, recipe: str = ""
) -> list[str]:
    """Write an imported model as an export of zoo, with the files that its task needs and the text of a recipe.

    Returns sentences that a user must know, such as that there is no tokenizer.
    """
    weights = tensors.renamed({f"net.{name}": name for name in tensors})
    tied = {f"net.{other}": f"net.{name}" for other, name in aliases(task.net).items()}
    counts = {  # what a task counts, such as tokens seen: none
        name: torch.zeros_like(tensor, device="cpu")
        for name, tensor in task.state_dict().items()
        if name not in weights and name not in tied
    }
    try:
        with atomic_files.replace_files(folder, EXPORT) as draft:
            about_tied = {weight_files.TIED_KEY: json.dumps(tied)}
            weight_files.stream_tensors(weights.joined(counts), draft / WEIGHTS, about_tied)
            source.family.import_beside(draft, source.theirs)
            extra, notes = tokenizer_files.import_tokenizers(source.folder, draft, source.theirs, model)
            if "pad_token_id" in {*source.family.keys.read, *source.family.keys.fixed}:
                tokenizer_files.check_padding(draft, source.theirs)
            about = {
                "format": FORMAT,
                "zoo": version("zoo-transformers"),
                "kind": model["class_path"].rpartition(".")[2],
                "family": source.family.name,
                "origin": hub.describe_origin(source.folder),
                "parts": part_versions.packages_used({"model": model}),
                "model": model,
                **extra,
            }
            if recipe:
                atomic_files.write_text(draft / RECIPE, recipe)
            atomic_files.write_json(draft / EXPORT, about)
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {atomic_files.reason(error)}") from error
    return notes
