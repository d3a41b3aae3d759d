"""Screen a checkpoint before torch reads it: only plain values, and tensors within their storage, are accepted.

torch's ``weights_only`` calls nothing that a pickle names, but still allocates what the pickle requests, trusts its
storage lengths, and accepts structures that take exponential time to traverse. Here the pickle is read with functions
that only compare numbers.
"""

from __future__ import annotations

import io
import math
import pickle
import reprlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from zoo.errors import CheckpointError, UsageError
from zoo.io import limits
from zoo.system import torch_internals

PICKLE_BYTES, MOST_VALUES, DEPTH = 256 * 2**20, 20_000_000, 200
# a checkpoint of 1,000 layers with both moments of AdamW has 1.5 million instructions; each takes at most 216 bytes
MOST_INSTRUCTIONS = 3_000_000
MOST_DIMENSIONS = 64  # dimensions of a tensor, as in torch
LARGEST_KEY = 2**53  # whole numbers below it hash to themselves: no two of them to one value
PICKLE, MAGIC = "data.pkl", b"PK\x03\x04"
OTHER_RECORDS = {PICKLE, ".format_version", ".storage_alignment", ".data/serialization_id", "byteorder", "version"}
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

    The records are found and read by torch's own reader of archives: where another reader sees other bytes, as in a
    file with two tables of contents, those that torch will load are screened. Raises CheckpointError for anything that
    a run cannot write.
    """
    try:
        with path.open("rb") as file:
            if not (head := file.read(512)).startswith(MAGIC):  # else torch reads it as a pickle of its oldest format
                limits.refuse_other_kind(path, head)
                raise _RefusedError("it does not begin as an archive of torch.save")
        archive = torch_internals.archive_reader(str(path))
        records = read_sizes(archive, path.stat().st_size)
        reader = _Reader(archive.get_record(PICKLE), records)
        content = reader.load()
        for name in records.keys() - OTHER_RECORDS - reader.storages:
            raise _RefusedError(f"it holds {name!r:.80}, which torch.save did not write for it")
        _check_structure(content)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except UsageError as error:
        raise CheckpointError(str(error)) from error
    except _RefusedError as error:
        raise CheckpointError(f"{path} is {DAMAGED_MESSAGE}: {error}.\n{ADVICE}") from error
    except Exception as error:  # a broken pickle can raise anything
        message = (f"{type(error).__name__} {error}".strip().splitlines() or [""])[0][:200]
        raise CheckpointError(f"{path} is {DAMAGED_MESSAGE}: {message}") from error
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise CheckpointError(f"{path} is not a checkpoint of a zoo run: it has no 'state_dict' of tensors.")
    return content


def read_sizes(archive: Any, most: int) -> dict[str, int]:
    """The size of each record of an archive by name, together at most ``most`` bytes: torch compresses nothing."""
    names = archive.get_all_records()
    sizes = {name: archive.get_record_size(name) for name in names}
    if PICKLE not in sizes:
        raise _RefusedError(f"it holds no {PICKLE!r} of torch.save")
    if len(sizes) != len(names) or len({name.lower() for name in names}) != len(names):
        raise _RefusedError("a name stands twice in it")
    if sum(sizes.values()) > most:
        raise _RefusedError("it expands to more than its size: it is compressed, a bomb")
    if sizes[PICKLE] > PICKLE_BYTES:
        raise _RefusedError(f"its {PICKLE} has more than {PICKLE_BYTES} bytes")
    return sizes


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> TensorShape:
    if not isinstance(storage, _Storage) or not all(isinstance(numbers, tuple) for numbers in (size, stride)):
        raise _RefusedError("a tensor is not made of a storage, a shape and strides")
    if max(len(size), len(stride)) > MOST_DIMENSIONS:
        raise _RefusedError(f"a tensor has more than {MOST_DIMENSIONS} dimensions")
    whole = all(type(number) is int and 0 <= number < 2**62 for number in (offset, *size, *stride))
    if not whole or len(size) != len(stride):
        raise _RefusedError(f"a tensor has the shape {_shorten(size)} and the strides {_shorten(stride)}")
    count = math.prod(size)
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
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


def _set(items: Any = ()) -> set[Any]:
    for item in items:
        _check_key(item)
    return set(items)


def _ordered() -> OrderedDict[Any, Any]:
    return OrderedDict()


def _check_key(key: Any) -> None:
    """Raise _RefusedError for a key whose hash someone can choose: a million equal ones take hours to insert."""
    if not isinstance(key, (str, bool, type(None))) and not (type(key) is int and abs(key) < LARGEST_KEY):
        raise _RefusedError(f"a key of a dictionary or set is {_shorten(key)}")


ALLOWED_GLOBALS: dict[str, Any] = {
    "collections OrderedDict": _ordered, "builtins set": _set, "builtins complex": complex, "__builtin__ set": _set,
    "__builtin__ complex": complex, "_codecs encode": _ignore, "torch device": _ignore, "torch Size": _shape,
    "torch._utils _rebuild_tensor_v2": _tensor, "torch._utils _rebuild_tensor_v3": _tensor_of,
    "torch._utils _rebuild_parameter": _parameter, "torch.storage UntypedStorage": _ElementType(1),
    **{f"torch {name}": _ElementType(size) for name, size in (SIZES | DTYPES).items()},
}  # fmt: skip
ALLOWED_CALLS = (_ordered, _set, complex, _ignore, _shape, _tensor, _tensor_of, _parameter)
# the opcodes of torch.load, which are those that torch.save writes
OPCODES = (
    "PROTO STOP MARK NONE NEWFALSE NEWTRUE BININT BININT1 BININT2 BINFLOAT BINUNICODE SHORT_BINSTRING LONG1 "
    "EMPTY_TUPLE EMPTY_LIST EMPTY_DICT EMPTY_SET TUPLE TUPLE1 TUPLE2 TUPLE3 "
    "APPEND APPENDS SETITEM SETITEMS BINPERSID BINGET "
    "LONG_BINGET BINPUT LONG_BINPUT GLOBAL REDUCE BUILD"
).split()


class _InstructionTable(dict[int, Callable[..., None]]):
    """Instructions by opcode, of which a reader may look up MOST_INSTRUCTIONS."""

    def __init__(self, instructions: Mapping[int, Callable[..., None]]) -> None:
        super().__init__(instructions)
        self.remaining = MOST_INSTRUCTIONS

    def __getitem__(self, code: int) -> Callable[..., None]:
        self.spend(1)
        return super().__getitem__(code)

    def spend(self, count: int) -> None:
        """Count instructions, or values that one of them walks through. Raises _RefusedError for too many."""
        self.remaining -= count
        if self.remaining < 0:
            raise _RefusedError(f"its pickle has more than {MOST_INSTRUCTIONS} instructions")


class _Reader(pickle._Unpickler):
    """Python's own slow unpickler, restricted to torch's opcodes and to functions that compute nothing."""

    # the fast unpickler in C allocates a list as long as the largest number in an opcode
    dispatch: ClassVar[dict[int, Callable[..., None]]] = {
        getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]] for name in OPCODES
    }

    def __init__(self, pickled: bytes, members: Mapping[str, int]) -> None:
        super().__init__(io.BytesIO(pickled), encoding="latin1")
        self.members = members
        self.storages: set[str] = set()  # the records that the pickle names
        self.dispatch = self.table = _InstructionTable(type(self).dispatch)  # type: ignore[misc]

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
        sound = isinstance(kind, _ElementType) and isinstance(key, str) and type(count) is int and count >= 0
        if not sound or len(key) > 40:
            raise _RefusedError("its pickle refers to a storage without a type, a key or a length")
        have = self.members.get(f"data/{key}")
        if have is None:
            raise _RefusedError(f"the storage data/{key:.40} is missing")
        if have != count * kind.size:
            raise _RefusedError(f"the storage data/{key:.40} has {have} bytes, and {count * kind.size} are named")
        self.storages.add(f"data/{key}")
        return _Storage(count, have)

    def _reduce(self) -> None:
        arguments = self.stack.pop()  # type: ignore[attr-defined]
        function = self.stack[-1]  # type: ignore[attr-defined]
        if not any(function is call for call in ALLOWED_CALLS) or not isinstance(arguments, tuple):
            raise _RefusedError("its pickle calls something that makes no tensor")
        self.table.spend(sum(len(value) for value in arguments if isinstance(value, (list, tuple, set, dict))))
        self.stack[-1] = function(*arguments)  # type: ignore[attr-defined]

    def _build(self) -> None:
        """Ignore the attributes of an OrderedDict, such as the versions in a module's state."""
        self.stack.pop()  # type: ignore[attr-defined]
        if not isinstance(self.stack[-1], OrderedDict):  # type: ignore[attr-defined]
            raise _RefusedError("its pickle sets attributes")

    def _set_item(self) -> None:
        _check_key(self.stack[-2])  # type: ignore[attr-defined]
        super().load_setitem()  # type: ignore[misc]

    def _set_items(self) -> None:
        for key in self.stack[::2]:  # type: ignore[attr-defined]
            _check_key(key)
        super().load_setitems()  # type: ignore[misc]

    dispatch[pickle.SETITEM[0]] = _set_item
    dispatch[pickle.SETITEMS[0]] = _set_items
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
        sizes[id(value)] = total = 1 + sum(size(child, depth + 1) for child in below)
        above.remove(id(value))
        if total > MOST_VALUES:
            raise _RefusedError(f"it unfolds to more than {MOST_VALUES} values")
        return total

    size(top, 0)


def _shorten(size: Any) -> str:
    # not repr: tuples that hold one tuple twice, 60 levels deep, have a text without end
    return reprlib.repr(size)[:80]
