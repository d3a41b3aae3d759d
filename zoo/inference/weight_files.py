"""Read and write weights: checkpoints without unpickling code, and safetensors with shared tensors stored once."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from zoo.errors import CheckpointError, NonFiniteError, UsageError
from zoo.inference.safe_pickle import DAMAGED_MESSAGE, screen_pickle
from zoo.io import atomic_files, limits

TIED_KEY = "tied"  # in the metadata: {"left out": "where it is"}
HEADER_BYTES = 32 * 2**20  # of safetensors: names and shapes; a model of ten thousand tensors has one


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint or a safetensors file by name.

    Raises CheckpointError for a damaged one, NonFiniteError for one that holds what is not a number.
    """
    found = _safetensors(path) if path.suffix == ".safetensors" else _checkpoint(path)
    refuse_nan(found, path)
    return found


def refuse_nan(tensors: Mapping[str, Tensor], source: object) -> None:
    """Raise NonFiniteError that names the first tensor with nan in it, and how many there are."""
    wrong = [name for name, tensor in tensors.items() if has_nan(tensor)]
    if wrong:
        one = tensors[wrong[0]]
        count = int(one.isnan().sum())
        more = f", and {len(wrong) - 1} more tensors are like this" if len(wrong) > 1 else ""
        raise NonFiniteError(
            f"{source}: {wrong[0]} holds {count} of {one.numel()} weights that are not a number (nan){more}.\n"
            "Nothing that it answers would mean anything: take an earlier checkpoint, or train again."
        )


def has_nan(tensor: Tensor) -> bool:
    """Whether a tensor holds nan; a sum tells in one pass without memory, save for what is infinite."""
    if not tensor.is_floating_point() or tensor.is_meta or not tensor.numel():
        return False
    if tensor.dtype.itemsize == 1:
        tensor = tensor.float()
    total = tensor.sum(dtype=torch.float64 if tensor.dtype == torch.float64 else torch.float32)
    return not bool(torch.isfinite(total)) and bool(tensor.isnan().any())


def _checkpoint(path: Path) -> dict[str, Tensor]:
    screen_pickle(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's reader raises whatever a damaged file makes of it
        # what weights_only refuses raises UnpicklingError, with a page of advice on how to run it nevertheless
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(f"{path} is {DAMAGED_MESSAGE}: {reason[0]}") from error
    tensors = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise CheckpointError(f"{path} is no checkpoint of a zoo run: it has no 'state_dict' of tensors.")
    return tensors


def about(path: Path, key: str) -> object:
    """What else a checkpoint holds under a key, without its tensors. Raises CheckpointError for a damaged one."""
    return None if path.suffix == ".safetensors" else screen_pickle(path).get(key)


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    _header(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            tied = limits.json_text(
                (file.metadata() or {}).get(TIED_KEY, "{}"), f"{path}: {TIED_KEY!r} in its metadata"
            )
    except UsageError as error:
        raise CheckpointError(str(error)) from error
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {error}") from error
    if not isinstance(tied, dict) or not all(isinstance(stored, str) and stored in tensors for stored in tied.values()):
        raise CheckpointError(f"{path} is not a whole safetensors file: {TIED_KEY!r} must name tensors that it holds.")
    return tensors | {name: tensors[stored] for name, stored in tied.items()}


def _header(path: Path) -> None:
    """Raise CheckpointError for a header that is longer than the file, or than names and shapes ever are."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    named = struct.unpack("<Q", start)[0] if len(start) == 8 else size
    if named > min(size - 8, HEADER_BYTES):
        raise CheckpointError(
            f"{path} is not a whole safetensors file: its header is said to have {named} bytes, and the file has "
            f"{size}; at most {HEADER_BYTES} are read."
        )


def put(module: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Give a module its weights, all of them and no others.

    A part may say by ``grows`` which of its buffers are as large as training made them; it takes any size of those.
    """
    refuse_nan(tensors, path)
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
        if tensor.is_meta or tensor.layout != torch.strided or numeric(tensor) != numeric(own[name]):
            raise CheckpointError(f"{path}: {name} holds {tensor.dtype} where {own[name].dtype} is expected.")
    module.load_state_dict(tensors)


def numeric(tensor: Tensor) -> tuple[bool, bool]:
    """Whether a tensor holds fractions, and whether complex ones: other dtypes are converted into each other."""
    return tensor.is_floating_point(), tensor.is_complex()


def write(module: nn.Module, path: Path) -> None:
    """Save a module's weights as safetensors; a tensor with several names is stored under the first."""
    write_tensors(module.state_dict(), path)


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Save tensors as safetensors; one with several names is stored under the first. Raises OSError naming the file."""
    from safetensors.torch import save_file

    stored: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    first: dict[tuple[object, ...], str] = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        # an empty tensor has no address of its own
        home = first.setdefault(key, name) if tensor.numel() else name
        if home == name:
            stored[name] = tensor.detach().cpu().contiguous()
        else:
            tied[name] = home
    with atomic_files.native(path) as draft:
        save_file(stored, draft, {"format": "pt", TIED_KEY: json.dumps(tied)})
