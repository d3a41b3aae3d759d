"""Read and write weights: checkpoints without executing code, and safetensors with tied tensors stored once."""

from __future__ import annotations

import json
import math
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.errors import CheckpointError, NonFiniteError, UsageError
from zoo.inference.safe_pickle import DAMAGED_MESSAGE, screen_pickle
from zoo.io import atomic_files, checkpoint_manifest, limits
from zoo.io.checkpoint_manifest import SHARDS

IN_SHARDS = "shard: "  # stands before the name of a tensor of a checkpoint, in its place, where shards hold it
Empty = Callable[..., Tensor]
TIED_KEY = "tied"  # in the metadata: {"name of a tied tensor": "name under which it is stored"}
PORTION = 2**28  # bytes of lazy tensors that are loaded into a module together
# the words of safetensors for types of numbers, in its order: a file's tensors lie by falling type, then by name
TYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e8m0fnu: "F8_E8M0", torch.int16: "I16", torch.uint16: "U16",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.int32: "I32", torch.uint32: "U32", torch.float32: "F32",
    torch.complex64: "C64", torch.float64: "F64", torch.int64: "I64", torch.uint64: "U64",
}  # fmt: skip


class LazyTensors(Mapping[str, Tensor]):
    """Tensors by name, each read anew whenever it is asked for, so that only those in use are in memory.

    ``forms`` are their shapes and dtypes, as tensors on the meta device; ``read`` gives the tensor of a name.
    """

    def __init__(self, forms: Mapping[str, Tensor], read: Callable[[str], Tensor]) -> None:
        self.forms, self.read = forms, read

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> LazyTensors:
        """Tensors in memory, or lazy ones as they are."""
        if isinstance(tensors, cls):
            return tensors
        return cls({name: tensor.to("meta") for name, tensor in tensors.items()}, tensors.__getitem__)

    def renamed(self, names: Mapping[str, str]) -> LazyTensors:
        """The tensors by new names: ``names`` says which old one each has."""
        return LazyTensors({name: self.forms[old] for name, old in names.items()}, lambda name: self[names[name]])

    def joined(self, tensors: Mapping[str, Tensor]) -> LazyTensors:
        """These and others, which replace those of the same name."""
        more = LazyTensors.of(tensors)
        return LazyTensors({**self.forms, **more.forms}, lambda name: more[name] if name in more.forms else self[name])

    def rounded(self, dtype: torch.dtype) -> LazyTensors:
        """The tensors with all that are floating point in another dtype."""
        return LazyTensors(
            {name: form.to(dtype) if form.is_floating_point() else form for name, form in self.forms.items()},
            lambda name: self[name].to(dtype) if self.forms[name].is_floating_point() else self[name],
        )

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.forms:
            raise KeyError(name)
        return self.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.forms)

    def __len__(self) -> int:
        return len(self.forms)


def read_tensors(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a checkpoint or safetensors file by name, each of the shape that it was saved with.

    Those of safetensors are lazy. Raises CheckpointError for a damaged file, NonFiniteError for NaN weights.
    """
    if path.suffix == ".safetensors":
        return open_tensors(path)
    tensors = _checkpoint(path)
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


def read_checkpoint(path: Path, place: Any = "cpu", empty: Empty = torch.empty, part: str = "") -> dict[str, Any]:
    """The content of a checkpoint, its tensors on a device, ``place``; ``part`` is the only entry that is needed.

    Tensors in shards are read into what ``empty`` gives for their shape, with the arguments ``dtype`` and ``name``
    where it is not torch's. Nothing in the files is run. Raises CheckpointError for damaged files.
    """
    screen_pickle(path)
    try:
        content = torch.load(path, map_location=place, weights_only=True)
    except Exception as error:  # torch can raise anything for a damaged file
        # its UnpicklingError has a page of advice on how to disable weights_only: use the first line
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(f"{path} is {DAMAGED_MESSAGE}: {reason[0]}") from error
    if not isinstance(content, dict):
        return {}
    shards = content.pop(SHARDS, None)
    return content if shards is None else _with_shards(content, path, shards, empty, part, place)


def _with_shards(content: Any, path: Path, shards: Any, empty: Empty, part: str, place: Any) -> dict[str, Any]:
    """The content of a checkpoint with tensors in the place of their names, read from the shards beside it."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    folder = checkpoint_manifest.shard_folder(path.parent, shards)
    if not folder.is_dir():
        raise CheckpointError(f"the tensors of {path} lie in {folder}, which is missing: copy it to there, too.")
    if not (path.parent / checkpoint_manifest.FOLDER).is_dir():  # else the manifest's digests were compared
        checkpoint_manifest.check_shards(path, shards)
    content = {part: content.get(part)} if part else content
    names = list(_shard_names(content))
    try:
        saved: Any = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
        tensors = {}
        for name in names:
            size, dtype = saved[name].size, saved[name].properties.dtype
            if sum(math.prod(chunk.sizes) for chunk in saved[name].chunks) != math.prod(size):
                raise CheckpointError(f"{folder} does not hold all of {name}.")
            tensors[name] = empty(size, dtype=dtype, **({} if empty is torch.empty else {"name": name}))
        with warnings.catch_warnings(action="ignore"):  # about reading without a group of processes, which is meant
            checkpoint.load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    except (Exception, checkpoint.CheckpointException) as error:  # the latter is no Exception
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(f"{folder}, the tensors of {path.name}, is damaged: {reason[0]}") from error
    device = None if str(place) == "cpu" else place
    return _filled(content, {name: tensor if device is None else tensor.to(device) for name, tensor in tensors.items()})


def _shard_names(value: Any) -> Iterator[str]:
    """The names of tensors that stand in nested dictionaries and lists in the place of these."""
    if isinstance(value, str) and value.startswith(IN_SHARDS):
        yield value.removeprefix(IN_SHARDS)
    elif isinstance(value, (dict, list)):
        for member in value.values() if isinstance(value, dict) else value:
            yield from _shard_names(member)


def _filled(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, str) and value.startswith(IN_SHARDS):
        return tensors[value.removeprefix(IN_SHARDS)]
    if isinstance(value, dict):
        for key in value:
            value[key] = _filled(value[key], tensors)
    if isinstance(value, list):
        value[:] = (_filled(member, tensors) for member in value)
    return value


def _checkpoint(path: Path) -> dict[str, Tensor]:
    tensors = read_checkpoint(path, part="state_dict").get("state_dict")
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise CheckpointError(f"{path} is not a checkpoint of a zoo run: it has no 'state_dict' of tensors.")
    return tensors


def read_entry(path: Path, key: str) -> object:
    """The value of a checkpoint's key without reading tensors; None for safetensors. Raises CheckpointError."""
    return None if path.suffix == ".safetensors" else screen_pickle(path).get(key)


def open_tensors(path: Path) -> LazyTensors:
    """The tensors of a safetensors file, also by the names that are tied to them; only its header is read now.

    Raises CheckpointError for a damaged file, and, when it is read, NonFiniteError for a tensor with NaN.
    """
    from safetensors import safe_open

    def read_stored(name: str) -> Tensor:
        # an open file is mapped into memory: opened for each tensor, it occupies what is in use
        with _damage_named(path), safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def read(name: str) -> Tensor:
        tensor = read_stored(tied.get(name, name))
        if has_nan(tensor):
            refuse_nan({name: read_stored(name) for name in forms}, path)
        return tensor

    _refuse_other_kind(path)
    types, forms = {word: dtype for dtype, word in TYPES.items()}, dict[str, Tensor]()
    tied: Any = {}
    with _damage_named(path), safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            part = file.get_slice(name)
            if part.get_dtype() not in types:
                raise CheckpointError(f"{path}: {name} holds {part.get_dtype()}, a type of numbers that zoo lacks.")
            forms[name] = torch.empty(part.get_shape(), dtype=types[part.get_dtype()], device="meta")
        tied = limits.parse_json((file.metadata() or {}).get(TIED_KEY, "{}"), f"{path}: {TIED_KEY!r} in its metadata")
    if not isinstance(tied, dict) or not all(isinstance(stored, str) and stored in forms for stored in tied.values()):
        raise CheckpointError(f"{path} is not a whole safetensors file: {TIED_KEY!r} must name tensors that it holds.")
    return LazyTensors({**forms, **{name: forms[stored] for name, stored in tied.items()}}, read)


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Turn the errors of safetensors into a CheckpointError that names the file."""
    from safetensors import SafetensorError

    try:
        yield
    except UsageError as error:
        raise CheckpointError(str(error)) from error
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {error}") from error


def _refuse_other_kind(path: Path) -> None:
    """Raise CheckpointError for a file that cannot be read, or begins as one of another kind."""
    try:
        with path.open("rb") as file:
            start = file.read(512)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        limits.refuse_other_kind(path, start)
    except UsageError as error:
        raise CheckpointError(str(error)) from error


def load_tensors(module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load exactly the weights of a module.

    Lazy tensors are in memory PORTION bytes at a time, if all modules load as torch does. A part lists in ``grows`` the
    buffers whose size depends on training, which may have any size. Raises CheckpointError for missing, unknown or
    mismatched tensors, NonFiniteError for NaN; the module may then have some of the weights.
    """
    own = module.state_dict()
    for word, names in (("lacks", own.keys() - tensors.keys()), ("has unknown", tensors.keys() - own.keys())):
        if names:
            examples = ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise CheckpointError(f"{path} {word} {examples}: it does not belong to the model of its configuration.")
    grown = {
        f"{at}.{name}" if at else name for at, part in module.named_modules() for name in getattr(part, "grows", ())
    }
    # a module that loads in a way of its own may look for all of its tensors
    own_ways = any(type(part)._load_from_state_dict is not nn.Module._load_from_state_dict for part in module.modules())
    portion, size = dict[str, Tensor](), 0
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape and name not in grown:
            sizes = f"{tuple(tensor.shape)} where the configuration says {tuple(own[name].shape)}"
            raise CheckpointError(f"{path}: {name} is {sizes}.")
        if tensor.is_meta or tensor.layout != torch.strided or number_class(tensor) != number_class(own[name]):
            raise CheckpointError(f"{path}: {name} holds {tensor.dtype} where {own[name].dtype} is expected.")
        refuse_nan({name: tensor}, path)
        portion[name], size = tensor, size + tensor.nbytes
        if size > PORTION and not own_ways:
            module.load_state_dict(portion, strict=False)
            portion, size = {}, 0
    module.load_state_dict(portion, strict=False)


def number_class(tensor: Tensor) -> tuple[bool, bool]:
    """Whether a tensor's dtype is floating point, and whether it is complex; other differences are converted."""
    return tensor.is_floating_point(), tensor.is_complex()


def write_weights(module: nn.Module, path: Path) -> None:
    """Save a module's weights as safetensors, tied tensors once. Raises OSError naming the file."""
    write_tensors(module.state_dict(), path)


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Save tensors as safetensors; tied tensors are stored under the first name. Raises OSError naming the file."""
    stored: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    homes: dict[tuple[object, ...], str] = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        # an empty tensor has no address of its own
        home = homes.setdefault(key, name) if tensor.numel() else name
        if home == name:
            stored[name] = tensor.detach()
        else:
            tied[name] = home
    stream_tensors(LazyTensors.of(stored), path, {TIED_KEY: json.dumps(tied)})


def stream_tensors(tensors: LazyTensors, path: Path, about: Mapping[str, str]) -> None:
    """Save tensors as safetensors one after the other, as safetensors itself does, with ``about`` in the metadata.

    No more than one of them is in memory at a time. Raises OSError naming the file.
    """
    order, end = list(TYPES), 0
    names = sorted(tensors.forms, key=lambda name: (-order.index(tensors.forms[name].dtype), name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **about}}
    for name in names:
        form = tensors.forms[name]
        start, end = end, end + form.numel() * form.itemsize
        header[name] = {"dtype": TYPES[form.dtype], "shape": list(form.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of 8
    with atomic_files.replace_file(path) as draft, draft.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            tensor = tensors[name].detach().cpu().contiguous()
            if (tensor.dtype, tensor.shape) != (tensors.forms[name].dtype, tensors.forms[name].shape):
                raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, and not what its form says")
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
