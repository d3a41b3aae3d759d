"""Bring a published checkpoint into zoo: its configuration, its tensors, and which of them a swapped part keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from zoo import atomic
from zoo.errors import UsageError
from zoo.families import files, known, side
from zoo.families.family import Family
from zoo.families.rule import Origin, Tensors, fit, read
from zoo.tasks.task import Task
from zoo.trained import provenance, weights
from zoo.trained.build import build, complete
from zoo.trained.export import FORMAT
from zoo.trained.place import EXPORT, WEIGHTS

RECIPE = "recipe.yaml"  # of an import: how to train it on
Fate = Literal["kept", "converted", "new", "left out"]


class Line(NamedTuple):
    """What became of one tensor: ours by its name, theirs by their keys."""

    fate: Fate
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
    tensors: Tensors
    origins: dict[str, Origin]
    constants: list[str]


def checkpoint(folder: Path) -> Checkpoint:
    """Read a folder. Raises UsageError or CheckpointError that names the file and the key that is wrong."""
    config: Mapping[str, Any] = files.config(folder)
    source = str(folder / files.CONFIG)
    family = known.of(config, source)
    theirs = files.tensors(folder)
    config = family.complete(family.noticed(config, theirs), source)
    model = complete({"class_path": family.task, "init_args": family.options(config)})
    if family.prefix and not any(key.startswith(family.prefix) for key in theirs):
        theirs = {family.prefix + key: tensor for key, tensor in theirs.items()}
    theirs = family.supplied(config, theirs)
    made, origins, constants = read(theirs, family.mapped(config), str(folder))
    with torch.device("meta"):
        net: nn.Module = build({"model": model}, folder / files.CONFIG).net
    shapes = {name: tensor.shape for name, tensor in own(net).items()}
    fit(made, shapes, origins, str(folder))
    return Checkpoint(folder, family, config, model, made, origins, constants)


def own(net: nn.Module) -> Tensors:
    """The tensors of a model by name, each once however many names it has."""
    names = net.state_dict().keys()
    buffers = {name: tensor for name, tensor in net.named_buffers() if name in names}
    return {**dict(net.named_parameters()), **buffers}


def aliases(net: nn.Module) -> dict[str, str]:
    """Other names of tied tensors, and the first name of each."""
    first = {id(tensor): name for name, tensor in net.named_parameters()}
    every = net.named_parameters(remove_duplicate=False)
    return {name: first[id(tensor)] for name, tensor in every if first[id(tensor)] != name}


def swapped(found: Checkpoint, model: Mapping[str, Any]) -> tuple[Task, Tensors, list[Line]]:
    """The task of another configuration, every tensor of its net, and what became of each.

    A tensor is kept where the model has one of its name and shape; all others are newly initialised. The task is on the
    meta device where nothing is, so that a large model is not in memory twice.
    """
    source = found.folder / files.CONFIG
    with torch.device("meta"):
        task = build({"model": model}, source)
    shapes = {name: tensor.shape for name, tensor in found.tensors.items()}
    if any(shapes.get(name) != tensor.shape for name, tensor in own(task.net).items()):
        task = build({"model": model}, source)
    tensors, lines = {}, []
    for name, fresh in own(task.net).items():
        old, origin = found.tensors.get(name), found.origins.get(name)
        if old is not None and origin is not None and old.shape == fresh.shape:
            tensors[name] = old
            lines.append(Line("converted" if origin.changed else "kept", name, tuple(old.shape), origin.keys))
        else:
            tensors[name] = fresh.detach()
            lines.append(Line("new", name, tuple(fresh.shape), ()))
    gone = [name for name in found.tensors if tensors.get(name) is not found.tensors[name]]
    lines += [Line("left out", "", tuple(found.tensors[name].shape), found.origins[name].keys) for name in gone]
    return task, tensors, lines


def table(lines: list[Line], found: Checkpoint) -> str:
    """What was kept, converted, left out and newly initialised, by kinds of tensors that differ in the layer only."""
    rows = []
    for fate in ("kept", "converted", "new", "left out"):
        mine = [line for line in lines if line.fate == fate]
        groups: dict[str, list[Line]] = {}
        for line in mine:
            groups.setdefault(_anonymous(line.name or " + ".join(line.keys)), []).append(line)
        numbers = sum(torch.Size(line.shape).numel() for line in mine)
        rows.append(f"{fate}: {len(mine)} tensors, {numbers:,} numbers")
        for name, group in groups.items() if fate in ("new", "left out") else ():
            of = f" × {len(group)}" if len(group) > 1 else ""
            rows.append(f"  {name} {tuple(group[0].shape)}{of}")
    if found.constants:
        keys = sorted({_anonymous(key) for key in found.constants})
        rows.append(f"not read (constants, copies, heads of other tasks): {', '.join(keys)}")
    return "\n".join(rows)


def _anonymous(name: str) -> str:
    return ".".join("*" if piece.isdigit() else piece for piece in name.split("."))


def save(
    found: Checkpoint, folder: Path, model: Mapping[str, Any], task: Task, tensors: Tensors, recipe: str = ""
) -> None:
    """Write an imported model as an export of zoo, with the files that its task needs and the text of a recipe."""
    tied = {other: tensors[name] for other, name in aliases(task.net).items()}
    held = {f"net.{name}": tensor for name, tensor in {**tensors, **tied}.items()}
    for name, tensor in task.state_dict().items():
        held.setdefault(name, torch.zeros_like(tensor, device="cpu"))  # what a task counts, such as tokens seen: none
    try:
        with atomic.staged(folder, EXPORT) as draft:
            weights.write_tensors(held, draft / WEIGHTS)
            extra = side.bring(found.folder, draft, found.theirs, model)
            about = {
                "format": FORMAT,
                "zoo": version("zoo-transformers"),
                "kind": model["class_path"].rpartition(".")[2],
                "family": found.family.name,
                "parts": provenance.used({"model": model}),
                "model": model,
                **extra,
            }
            if recipe:
                atomic.write_text(draft / RECIPE, recipe)
            atomic.write_json(draft / EXPORT, about)
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {atomic.reason(error)}") from error
