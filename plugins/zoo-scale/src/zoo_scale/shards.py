"""Shards: what each process writes of the tensors of a checkpoint, as safetensors, by torch.distributed.checkpoint."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import checkpoint
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.tensor import DTensor

from zoo.inference.weight_files import IN_SHARDS
from zoo.io import atomic_files
from zoo.io.checkpoint_manifest import SHARDS, sha256

PARTS = ("state_dict", "optimizer_states")  # of a checkpoint, whose tensors lie in shards


def take_tensors(content: dict[str, Any], copies: bool) -> dict[str, Tensor]:
    """The tensors (...) of a checkpoint by name, which stands in their place afterwards; each of its shape.

    ``copies`` are on the CPU and stay as they are while training changes the tensors.
    """
    tensors: dict[str, Tensor] = {}

    def take(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            value = value.detach()
            on_cpu = value.device.type == "cpu"
            tensors[name] = (value.clone() if on_cpu else value.cpu()) if copies else value
            return IN_SHARDS + name
        if isinstance(value, Mapping):
            return {key: take(member, f"{name}.{key}") for key, member in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(take(member, f"{name}.{number}") for number, member in enumerate(value))
        return value

    for part in PARTS:
        content[part] = take(content[part], part)
    return tensors


class ShardWriter:
    """Writes shards by collective operations of its own, which do not meet those of training."""

    def __init__(self) -> None:
        self.group: Any = dist.new_group(backend="gloo")

    def write(self, content: dict[str, Any], folder: Path, in_background: bool) -> Future[dict[str, Any]]:
        """Move the tensors of a checkpoint to a new folder in ``folder / SHARDS``; every process must call it.

        The result names that folder and the digests of its files. It raises OSError in all processes if one has failed.
        """
        tensors = take_tensors(content, in_background)
        names = [f"{content['saves']:06d}-{secrets.token_hex(4)}"]
        dist.broadcast_object_list(names, 0, group=self.group)
        result: Future[dict[str, Any]] = Future()
        arguments = (result, self._write, tensors, folder / SHARDS / names[0])
        if in_background:
            threading.Thread(target=settle, args=arguments, name="writer of shards", daemon=True).start()
        else:
            settle(*arguments)
        return result

    def _write(self, tensors: dict[str, Tensor], place: Path) -> dict[str, Any]:
        rank = dist.get_rank(self.group)
        digests: dict[str, str] = {}
        problem: BaseException | None = None
        try:
            if rank == 0:
                place.parent.mkdir(exist_ok=True)
                place.mkdir(exist_ok=True)  # torch makes it, too, in whichever process comes first
        except OSError as error:  # the others must not wait for this process: writing fails in all of them
            problem = error
        try:
            writer = HuggingFaceStorageWriter(str(place), save_distributed=True)
            checkpoint.save(tensors, storage_writer=writer, process_group=self.group)
            own = place.glob(f"shard-{rank + 1:05d}-*")
            digests = {path.name: sha256(path) for path in own}
            for folder in (place, place.parent) if rank == 0 else ():
                atomic_files.sync_to_disk(folder)  # names of files; torch has done it for what they hold
        except checkpoint.CheckpointException as error:
            problem = problem or next(iter(error.failures.values()))[0]
        except OSError as error:
            problem = error
        outcomes: list[Any] = [None] * dist.get_world_size(self.group)
        reason = None if problem is None else (getattr(problem, "errno", None), str(problem))
        dist.all_gather_object(outcomes, (reason, digests), group=self.group)
        failures = [reason for reason, _ in outcomes if reason]
        if failures:
            raise OSError(*failures[0])
        return {"folder": place.name, "files": {name: digest for _, own in outcomes for name, digest in own.items()}}


def settle(result: Future[Any], function: Callable[..., Any], *arguments: Any) -> None:
    """Have a future hold what a call gives or raises."""
    try:
        result.set_result(function(*arguments))
    except BaseException as error:
        result.set_exception(error)


def empty_share(size: torch.Size, dtype: torch.dtype, like: Tensor | None) -> Tensor:
    """An empty tensor shaped ``size``, divided among processes as ``like`` is, where that has the same size."""
    if isinstance(like, DTensor) and like.size() == size:
        return torch.empty_like(like, dtype=dtype, requires_grad=False)
    return torch.empty(size, dtype=dtype)
