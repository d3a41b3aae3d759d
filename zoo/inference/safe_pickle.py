"""Screen a checkpoint before torch reads it: only plain values, and tensors within their storage, are accepted.

torch's ``weights_only`` calls nothing that a pickle names, but still allocates what the pickle requests, trusts its
storage lengths, and accepts structures that take exponential time to traverse. Here the pickle is read with functions
that only compare numbers.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from zoo.errors import CheckpointError, UsageError
from zoo.io import limits

PICKLE_BYTES, MOST_VALUES, DEPTH = 256 * 2**20, 20_000_000, 200
EXPANDED = 2**20  # elements that a tensor may repeat of a smaller storage
SIZES = {
    "DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8, "IntStorage": 4,
    "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1, "ComplexFloatStorage": 8,
    "ComplexDoubleStorage": 16, "UntypedStorage": 1,
}  # fmt: skip
DTYPES = {
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "uint16": 2, "uint32": 4,
    "uint64": 8, "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip
DAMAGED_MESSAGE = "not a whole checkpoint of tensors and plain values"
ADVICE = "Nothing in it was run. Use a checkpoint that a run of zoo wrote, or weights as safetensors."


@dataclass(frozen=True)
class TensorShape:
    """Stands for a tensor of the checkpoint, whose data are not read."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class _ElementType:
    """A storage class or a dtype: the bytes of an element."""

    size: int


@dataclass(frozen=True)
class _Storage:
    count: int
    bytes: int


class _RefusedError(Exception):
    """The reason to reject a pickle."""


def screen_pickle(path: Path) -> Mapping[str, Any]:
    """The content of a checkpoint with a `TensorShape` for each tensor.

    Raises CheckpointError for anything that a run cannot write.
    """
    try:
        members = limits.zip_members(path, most=path.stat().st_size)  # torch stores, it never compresses
        stored = [name for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(stored) != 1 or any(name.endswith("constants.pkl") for name in members):
            raise _RefusedError("it holds no 'data.pkl' of torch.save")
        if any(info.compress_type for info in members.values()):
            raise _RefusedError("it is compressed, which torch.save never does")
        if members[stored[0]].file_size > PICKLE_BYTES:
            raise _RefusedError(f"its data.pkl has more than {PICKLE_BYTES} bytes")
        with zipfile.ZipFile(path) as archive:
            pickled = archive.read(stored[0])
        root = stored[0].removesuffix("data.pkl")
        content = _Reader(pickled, {name.removeprefix(root): info.file_size for name, info in members.items()}).load()
        _check_structure(content)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except (UsageError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path} is {DAMAGED_MESSAGE}: {error}") from error
    except _RefusedError as error:
        raise CheckpointError(f"{path} is {DAMAGED_MESSAGE}: {error}.\n{ADVICE}") from error
    except Exception as error:  # a broken pickle can raise anything
        message = f"{type(error).__name__} {error}".strip()[:200]
        raise CheckpointError(f"{path} is {DAMAGED_MESSAGE}: {message}") from error
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise CheckpointError(f"{path} is not a checkpoint of a zoo run: it has no 'state_dict' of tensors.")
    return content


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> TensorShape:
    if not isinstance(storage, _Storage) or not all(isinstance(one, tuple) for one in (size, stride)):
        raise _RefusedError("a tensor is not made of a storage, a shape and strides")
    whole = all(type(one) is int and 0 <= one < 2**62 for one in (offset, *size, *stride))
    if not whole or len(size) != len(stride):
        raise _RefusedError(f"a tensor has the shape {_shorten(size)} and the strides {_shorten(stride)}")
    count = math.prod(size)
    last = offset + sum((one - 1) * step for one, step in zip(size, stride, strict=True))
    if count and last >= storage.count:
        raise _RefusedError(
            f"a tensor of shape {_shorten(size)} reaches beyond its storage of {storage.count} elements"
        )
    if count > max(storage.count, EXPANDED):
        raise _RefusedError(f"a tensor of shape {_shorten(size)} expands a storage of {storage.count} elements")
    return TensorShape(size)


def _tensor_of(
    storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any, *_: Any
) -> TensorShape:
    if not isinstance(storage, _Storage) or not isinstance(dtype, _ElementType):
        raise _RefusedError("a tensor is not made of a storage and a dtype")
    return _tensor(_Storage(storage.bytes // dtype.size, storage.bytes), offset, size, stride)


def _parameter(data: Any, *_: Any) -> Any:
    return data


def _shape(size: Any = ()) -> tuple[Any, ...]:
    return tuple(size)


def _ignore(*_: Any) -> str:
    return ""


ALLOWED_GLOBALS: dict[str, Any] = {
    "collections OrderedDict": OrderedDict, "builtins set": set, "builtins complex": complex, "__builtin__ set": set,
    "__builtin__ complex": complex, "_codecs encode": _ignore, "torch device": _ignore, "torch Size": _shape,
    "torch._utils _rebuild_tensor_v2": _tensor, "torch._utils _rebuild_tensor_v3": _tensor_of,
    "torch._utils _rebuild_parameter": _parameter, "torch.storage UntypedStorage": _ElementType(1),
    **{f"torch {name}": _ElementType(size) for name, size in (SIZES | DTYPES).items()},
}  # fmt: skip
ALLOWED_CALLS = (OrderedDict, set, complex, _ignore, _shape, _tensor, _tensor_of, _parameter)
# the opcodes of torch.load, which are those that torch.save writes
OPCODES = (
    "PROTO STOP MARK NONE NEWFALSE NEWTRUE BININT BININT1 BININT2 BINFLOAT BINUNICODE SHORT_BINSTRING LONG1 "
    "EMPTY_TUPLE EMPTY_LIST EMPTY_DICT EMPTY_SET TUPLE TUPLE1 TUPLE2 TUPLE3 "
    "APPEND APPENDS SETITEM SETITEMS BINPERSID BINGET "
    "LONG_BINGET BINPUT LONG_BINPUT GLOBAL REDUCE BUILD"
).split()


class _Reader(pickle._Unpickler):
    """Python's own slow unpickler, restricted to torch's opcodes and to functions that compute nothing."""

    # the fast unpickler in C allocates a list as long as the largest number in an opcode
    dispatch: ClassVar[dict[int, Callable[..., None]]] = {
        getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]] for name in OPCODES
    }

    def __init__(self, pickled: bytes, members: Mapping[str, int]) -> None:
        super().__init__(io.BytesIO(pickled), encoding="latin1")
        self.members = members

    def load(self) -> Any:
        try:
            return super().load()
        except KeyError as error:
            code = error.args[0]
            raise _RefusedError(f"its pickle has the instruction {code!r}, which torch.save never writes") from error

    def find_class(self, module: str, name: str, /) -> Any:
        cls = ALLOWED_GLOBALS.get(f"{module} {name}")
        if cls is None:
            raise _RefusedError(f"its pickle names {module}.{name}"[:200])
        return cls

    def persistent_load(self, pid: Any) -> Any:
        if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage":
            raise _RefusedError("its pickle refers to something that is no storage")
        _, kind, key, _, count = pid
        if not isinstance(kind, _ElementType) or not isinstance(key, str) or type(count) is not int or count < 0:
            raise _RefusedError("its pickle refers to a storage without a type, a key or a length")
        have = self.members.get(f"data/{key}")
        if have is None:
            raise _RefusedError(f"the storage data/{key:.40} is missing")
        if have != count * kind.size:
            raise _RefusedError(f"the storage data/{key:.40} has {have} bytes, and {count * kind.size} are named")
        return _Storage(count, have)

    def _reduce(self) -> None:
        arguments = self.stack.pop()  # type: ignore[attr-defined]
        function = self.stack[-1]  # type: ignore[attr-defined]
        if not any(function is one for one in ALLOWED_CALLS) or not isinstance(arguments, tuple):
            raise _RefusedError("its pickle calls something that makes no tensor")
        self.stack[-1] = function(*arguments)  # type: ignore[attr-defined]

    def _build(self) -> None:
        """Ignore the attributes of an OrderedDict, such as the versions in a module's state."""
        self.stack.pop()  # type: ignore[attr-defined]
        if not isinstance(self.stack[-1], OrderedDict):  # type: ignore[attr-defined]
            raise _RefusedError("its pickle sets attributes")

    dispatch[pickle.REDUCE[0]] = _reduce
    dispatch[pickle.BUILD[0]] = _build


def _check_structure(top: Any) -> None:
    """Raise _RefusedError for values that contain themselves, or expand to too many values when traversed."""
    sizes: dict[int, int] = {}
    above: set[int] = set()

    def size(value: Any, depth: int) -> int:
        if not isinstance(value, (dict, list, tuple, set)):
            return 1
        if id(value) in sizes:
            return sizes[id(value)]
        if id(value) in above:
            raise _RefusedError("a value in it holds itself")
        if depth > DEPTH:
            raise _RefusedError(f"it is nested deeper than {DEPTH} levels")
        above.add(id(value))
        below = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        sizes[id(value)] = total = 1 + sum(size(one, depth + 1) for one in below)
        above.remove(id(value))
        if total > MOST_VALUES:
            raise _RefusedError(f"it unfolds to more than {MOST_VALUES} values")
        return total

    size(top, 0)


def _shorten(size: Any) -> str:
    return f"{size!r:.80}"
