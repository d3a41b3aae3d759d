"""Read and write the files of a published checkpoint: config.json and safetensors, in one piece or sharded."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.errors import CheckpointError, UsageError
from zoo.inference import weight_files
from zoo.inference.weight_files import LazyTensors
from zoo.io import atomic_files, limits

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
ANY_WEIGHTS = "model*.safetensors*"  # one file, or several and their index
SHARD = 5 * 10**9  # bytes of a file of weights, about; a larger checkpoint has several
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack")
ADAPTERS = ("adapter_config.json", "adapter_model.*")
SAFE = (
    "Save it as safetensors on a machine that may run its code: model.save_pretrained(DIR, safe_serialization=True), a "
    "model of timm by timm.models.save_for_hf(model, DIR, safe_serialization=True)."
)


def config(folder: Path) -> dict[str, Any]:
    """The configuration of a checkpoint. Raises UsageError if it is missing, or files of the folder are elsewhere."""
    path = folder / CONFIG
    for link in sorted(folder.glob("*")):
        if not link.exists():
            raise UsageError(
                f"{link} is a link to {os.readlink(link)}, which is not there. Copy a folder of links with what they "
                "lead to: cp -rL"
            )
    if not path.is_file():
        what = "is no folder" if not folder.is_dir() else f"has no {CONFIG}"
        name = folder.as_posix() if len(folder.parts) == 2 and not folder.is_absolute() else "ORG/NAME"
        hint = "" if folder.exists() else f"\nA repository of the hub is downloaded by: zoo import hf://{name} OUT"
        raise UsageError(f"{folder} {what}: a checkpoint is a folder with {CONFIG} and {WEIGHTS}.{hint}")
    content = _json(path)
    if isinstance(content.get("model"), Mapping) and "class_path" in content["model"]:
        raise UsageError(
            f"{folder} is an export of zoo already: use it as RUN, such as zoo generate {shlex.quote(str(folder))}."
        )
    return content


def tensors(folder: Path) -> LazyTensors:
    """All tensors of a checkpoint, each read when it is used.

    Raises CheckpointError for one that is incomplete or would run code.
    """
    index = folder / INDEX
    for adapter in sorted(path.name for kind in ADAPTERS for path in folder.glob(kind)):
        raise CheckpointError(
            f"{folder / adapter} belongs to an adapter, which zoo does not read. Merge it into the weights first "
            "(merge_and_unload() of peft), or take its files out of the folder."
        )
    if index.is_file() and (folder / WEIGHTS).is_file():
        raise CheckpointError(
            f"{folder} has both {WEIGHTS} and {INDEX} of several files, and other libraries read the first. Delete the "
            "older ones."
        )
    if index.is_file():
        return _sharded(folder, index)
    if (folder / WEIGHTS).is_file():
        return weight_files.open_tensors(folder / WEIGHTS)
    pickles = sorted(path.name for kind in PICKLES for path in folder.glob(kind))
    if pickles:
        raise CheckpointError(
            f"{folder / pickles[0]} may hold code that runs when it is loaded, so zoo does not read it. {SAFE}"
        )
    raise CheckpointError(f"{folder} has no weights: {WEIGHTS} or {INDEX} was expected.")


def _sharded(folder: Path, index: Path) -> LazyTensors:
    where = _json(index).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
        raise CheckpointError(f"{index} has no 'weight_map' that says which file holds which tensor.")
    tensors = LazyTensors.of({})
    for name in sorted(set(where.values())):
        path = folder / name
        if path.parent != folder or path.suffix != ".safetensors":
            raise CheckpointError(f"{index} names {name!r}: a safetensors file beside it was expected.")
        if not path.is_file():
            raise CheckpointError(f"{folder} is incomplete: {name} is missing, which {index.name} names.")
        shard = weight_files.open_tensors(path)
        claimed = {key for key, file in where.items() if file == name}
        for key in sorted(claimed ^ shard.keys()):
            verb = "lacks" if key in claimed else "has"
            raise CheckpointError(f"{path} {verb} {key}, {'though' if key in claimed else 'which'} {index.name} says "
                                  f"{'it is there' if key in claimed else 'is elsewhere'}.")  # fmt: skip
        tensors = tensors.joined(shard)
    return tensors


def save(folder: Path, config: Mapping[str, Any], tensors: LazyTensors) -> None:
    """Write a checkpoint as its family's own library does: one file, or an index and files of SHARD bytes or so."""
    shards: list[dict[str, str]] = [{}]
    size = total = 0
    for name, form in tensors.forms.items():
        if size and size + form.nbytes > SHARD:
            shards.append({})
            size = 0
        shards[-1][name] = name
        size, total = size + form.nbytes, total + form.nbytes
    where: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = WEIGHTS if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        weight_files.stream_tensors(tensors.renamed(names), folder / file, {})
        where |= dict.fromkeys(names, file)
    if len(shards) > 1:
        atomic_files.write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": where})
    atomic_files.write_json(folder / CONFIG, dict(config))


def optional(path: Path) -> dict[str, Any]:
    """A JSON file that need not be there."""
    return _json(path) if path.is_file() else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        content = limits.read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object.")
    return content
