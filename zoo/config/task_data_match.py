"""Check before training that the data module provides what the task needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.data.batches import BatchDataset
from zoo.data.data import Data
from zoo.errors import UsageError
from zoo.registry import parts
from zoo.tasks.task import Task


def check_missing_sizes(task: type[Task], data: Data, sizes: Mapping[str, int], missing: Iterable[str]) -> None:
    """Raise UsageError if the data lack a size that the task needs, because they are of another kind."""
    unknown = sorted(name for name in missing if name not in sizes and name != "max_length")
    if not unknown:
        return
    if data.gives == task.learns_from:  # the right kind of data, which do not provide the size
        raise UsageError(f"{type(data).__name__} does not say model.{unknown[0]}. Give it: --model.{unknown[0]} NUMBER")
    raise _mismatch(task, data)


def check_batch(task: Task, data: Data) -> None:
    """Raise UsageError if a batch lacks a tensor that the task reads, or has it with another number of dimensions.

    ``task.sample`` has the tensors that the task reads; data without samples are not checked.
    """
    splits = getattr(data, "datasets", {})
    rows = splits.get("val", splits.get("train"))  # evaluation may read more than training
    if not isinstance(rows, BatchDataset) or not len(rows):
        return
    try:
        with torch.random.fork_rng(devices=[]):  # training must not depend on this check
            sample = task.sample(1)
    except NotImplementedError:
        return
    batch = rows.batch(np.array([0]), 0)
    if not isinstance(sample, Mapping) or not isinstance(batch, Mapping):
        return
    missing = [name for name in sample if name not in batch]
    if not missing:
        missing = [
            name
            for name, tensor in sample.items()
            if isinstance(tensor, Tensor) and isinstance(batch[name], Tensor) and batch[name].dim() != tensor.dim()
        ]
    if not missing:
        return
    mismatch = _mismatch(type(task), data)
    raise UsageError(
        f"{mismatch} (its batches have {_describe_batch(batch)}; the task reads {_describe_batch(sample)})"
    )


def _describe_batch(batch: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {'×'.join('n' * value.dim())}" for name, value in batch.items() if isinstance(value, Tensor)
    )


def _mismatch(task: type[Task], data: Data) -> UsageError:
    has = {part.name for part in parts("data")}
    some = [name for name in task.example_data if name in has]
    hint = f"Choose such data: --data {' or --data '.join(some)}" if some else "See: zoo list data"
    form = " in another form" if data.gives == task.learns_from else ""
    return UsageError(
        f"{type(data).__name__} gives {data.gives}{form}, and {task.__name__} learns from {task.learns_from}.\n{hint}"
    )
