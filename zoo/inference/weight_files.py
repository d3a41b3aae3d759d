"""Read and write weights: checkpoints without executing code, and safetensors with tied tensors stored once."""

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

TIED_KEY = "tied"  # in the metadata: {"name of a tied tensor": "name under which it is stored"}
HEADER_BYTES = 32 * 2**20  # limit of the safetensors header; a model of ten thousand tensors has 1 MB


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint or safetensors file by name, each of the shape that it was saved with.

    Raises CheckpointError for a damaged file, NonFiniteError for NaN weights.
    """
    tensors = _safetensors(path) if path.suffix == ".safetensors" else _checkpoint(path)
    refuse_nan(tensors, path)
    return tensors


def keep_own_tensors(net: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model by name in the shape that each has, each once however many names it has."""
    names = net.state_dict().keys()
    buffers = {name: tensor for name, tensor in net.named_buffers() if name in names}
    return {**dict(net.named_parameters()), **buffers}


def refuse_nan(tensors: Mapping[str, Tensor], source: object) -> None:
    """Raise NonFiniteError that names the first tensor with NaN, and the number of such tensors."""
    wrong = [name for name, tensor in tensors.items() if has_nan(tensor)]
    if wrong:
        tensor = tensors[wrong[0]]
        count = int(tensor.isnan().sum())
        more = f", and {len(wrong) - 1} more tensors are like this" if len(wrong) > 1 else ""
        raise NonFiniteError(
            f"{source}: {wrong[0]} has {count} of {tensor.numel()} weights that are not a number (nan){more}.\n"
            "Use an earlier checkpoint, or train again."
        )


def has_nan(tensor: Tensor) -> bool:
    """Whether a tensor of any shape has NaN: one pass over its sum, and a second only if the sum is not finite."""
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
    except Exception as error:  # torch can raise anything for a damaged file
        # its UnpicklingError has a page of advice on how to disable weights_only: use the first line
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(f"{path} is {DAMAGED_MESSAGE}: {reason[0]}") from error
    tensors = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise CheckpointError(f"{path} is not a checkpoint of a zoo run: it has no 'state_dict' of tensors.")
    return tensors


def read_entry(path: Path, key: str) -> object:
    """The value of a checkpoint's key without reading tensors; None for safetensors. Raises CheckpointError."""
    return None if path.suffix == ".safetensors" else screen_pickle(path).get(key)


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    _header(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            tied = limits.parse_json(
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
    """Raise CheckpointError for a safetensors header longer than the file or than HEADER_BYTES."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    header_size = struct.unpack("<Q", start)[0] if len(start) == 8 else size
    if header_size > min(size - 8, HEADER_BYTES):
        raise CheckpointError(
            f"{path} is not a whole safetensors file: its header is said to have {header_size} bytes, and the file has "
            f"{size}; at most {HEADER_BYTES} are read."
        )


def load_tensors(module: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Load exactly the weights of a module.

    A part lists in ``grows`` the buffers whose size depends on training, which may have any size. Raises
    CheckpointError for missing, unknown or mismatched tensors, NonFiniteError for NaN.
    """
    refuse_nan(tensors, path)
    own = module.state_dict()
    for word, names in (("lacks", own.keys() - tensors.keys()), ("has unknown", tensors.keys() - own.keys())):
        if names:
            examples = ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise CheckpointError(f"{path} {word} {examples}: it does not belong to the model of its configuration.")
    grown = {
        f"{at}.{name}" if at else name for at, part in module.named_modules() for name in getattr(part, "grows", ())
    }
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape and name not in grown:
            sizes = f"{tuple(tensor.shape)} where the configuration says {tuple(own[name].shape)}"
            raise CheckpointError(f"{path}: {name} is {sizes}.")
        if tensor.is_meta or tensor.layout != torch.strided or number_class(tensor) != number_class(own[name]):
            raise CheckpointError(f"{path}: {name} holds {tensor.dtype} where {own[name].dtype} is expected.")
    module.load_state_dict(tensors)


def number_class(tensor: Tensor) -> tuple[bool, bool]:
    """Whether a tensor's dtype is floating point, and whether it is complex; other differences are converted."""
    return tensor.is_floating_point(), tensor.is_complex()


def write_weights(module: nn.Module, path: Path) -> None:
    """Save a module's weights as safetensors, tied tensors once. Raises OSError naming the file."""
    write_tensors(module.state_dict(), path)


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Save tensors as safetensors; tied tensors are stored under the first name. Raises OSError naming the file."""
    from safetensors.torch import save_file

    stored: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    homes: dict[tuple[object, ...], str] = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        # an empty tensor has no address of its own
        home = homes.setdefault(key, name) if tensor.numel() else name
        if home == name:
            stored[name] = tensor.detach().cpu().contiguous()
        else:
            tied[name] = home
    with atomic_files.replace_file(path) as draft:
        save_file(stored, draft, {"format": "pt", TIED_KEY: json.dumps(tied)})
