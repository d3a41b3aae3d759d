"""Read and write weights: checkpoints without unpickling code, and safetensors with shared tensors stored once."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path

import torch
from torch import Tensor, nn

from zoo.errors import CheckpointError, UsageError

TIED = "tied"  # in the metadata: {"left out": "where it is"}


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint or a safetensors file by name. Raises CheckpointError for a damaged one."""
    return _safetensors(path) if path.suffix == ".safetensors" else _checkpoint(path)


def _checkpoint(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        # what weights_only refuses raises UnpicklingError, with a page of advice on how to run it nevertheless
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(f"{path} is not a whole checkpoint of tensors and plain values: {reason[0]}") from error
    found = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise CheckpointError(f"{path} is no checkpoint of a zoo run: it has no 'state_dict' of tensors.")
    return found


def about(path: Path, key: str) -> object:
    """What else a checkpoint holds under a key, without reading its tensors; None where it cannot be read."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception:  # `read` says what is wrong with it
        return None
    return content.get(key) if isinstance(content, dict) else None


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            tied = json.loads((file.metadata() or {}).get(TIED, "{}"))
        return found | {name: found[kept] for name, kept in tied.items()}
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {error}") from error


def put(module: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Give a module its weights, all of them and no others.

    A part may say by ``grows`` which of its buffers are as large as training made them; it takes any size of those.
    """
    own = module.state_dict()
    for word, names in (("lacks", own.keys() - tensors.keys()), ("has unknown", tensors.keys() - own.keys())):
        if names:
            shown = ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise CheckpointError(f"{path} {word} {shown}: it belongs to another model than its configuration says.")
    grown = {
        f"{at}.{name}" if at else name for at, part in module.named_modules() for name in getattr(part, "grows", ())
    }
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape and name not in grown:
            sizes = f"{tuple(tensor.shape)} where the configuration says {tuple(own[name].shape)}"
            raise CheckpointError(f"{path}: {name} is {sizes}.")
    module.load_state_dict(tensors)


def write(module: nn.Module, path: Path) -> None:
    """Save a module's weights as safetensors; a tensor with several names is stored under the first."""
    from safetensors.torch import save_file

    kept: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    first: dict[tuple[object, ...], str] = {}
    for name, tensor in module.state_dict().items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        # an empty tensor has no address of its own
        home = first.setdefault(key, name) if tensor.numel() else name
        if home == name:
            kept[name] = tensor.detach().cpu().contiguous()
        else:
            tied[name] = home
    temporary = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        save_file(kept, temporary, {"format": "pt", TIED: json.dumps(tied)})
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
