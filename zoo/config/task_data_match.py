"""Check before training that the data module provides what the task needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.data.batches import BatchDataset
from zoo.errors import UsageError
from zoo.registry import parts

# the kind of data by the sizes that a data module provides or a task needs; the first match counts
KINDS = (
    ({"image_size", "vocab_size"}, "images with texts"),
    ({"image_size", "frames"}, "clips"),
    ({"image_size"}, "images"),
    ({"sample_rate"}, "sounds with texts"),
    ({"source_vocab_size"}, "pairs of texts, a source and its target"),
    ({"vocab_size", "mask_token"}, "texts with hidden tokens"),
    ({"vocab_size", "num_classes"}, "texts with classes"),
    ({"vocab_size"}, "texts"),
)
EXAMPLES = {
    "images": ("Glyphs", "ImageFolder"),
    "clips": ("MovingCharacters",),
    "sounds with texts": ("SpokenLetters",),
    "pairs of texts, a source and its target": ("Phrasebook", "ParallelFiles"),
    "texts with hidden tokens": ("MaskedText",),
    "texts with classes": ("DocTopics", "LabelledFiles"),
    "texts with a middle to fill in": ("InfillText",),
    "pairs of answers, the preferred one and another": ("Preferences", "PreferenceFiles"),
    "texts": ("StdlibDocs", "TextFiles"),
}


def kind_of(sizes: Iterable[str]) -> str:
    """The kind of data with these sizes, in words."""
    present = set(sizes)
    return next((words for names, words in KINDS if names <= present), "something else")


def kind_of_task(task: type) -> str:
    """The kind of data that a task learns from, in words."""
    return getattr(task, "learns_from", "") or kind_of(getattr(task, "data_sizes", {}))


def check_missing_sizes(task: type, data: object, sizes: Mapping[str, int], missing: Iterable[str]) -> None:
    """Raise UsageError if the data lack a size that the task needs, because they are of another kind."""
    unknown = sorted(name for name in missing if name not in sizes and name != "max_length")
    if not unknown:
        return
    data_kind, task_kind = kind_of(sizes), kind_of_task(task)
    if data_kind == task_kind:  # the right kind of data, which do not provide the size
        raise UsageError(f"{type(data).__name__} does not say model.{unknown[0]}. Give it: --model.{unknown[0]} NUMBER")
    raise _mismatch(task, data, data_kind, task_kind)


def check_batch(task: Any, data: Any) -> None:
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
    mismatch = _mismatch(type(task), data, kind_of(data.sizes()), kind_of_task(type(task)))
    raise UsageError(
        f"{mismatch} (its batches have {_describe_batch(batch)}; the task reads {_describe_batch(sample)})"
    )


def _describe_batch(batch: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {'×'.join('n' * one.dim())}" for name, one in batch.items() if isinstance(one, Tensor))


def _mismatch(task: type, data: object, data_kind: str, task_kind: str) -> UsageError:
    has = {part.name for part in parts("data")}
    some = [name for name in EXAMPLES.get(task_kind, ()) if name in has]
    hint = f"Choose such data: --data {' or --data '.join(some)}" if some else "See: zoo list data"
    if data_kind == task_kind:
        data_kind, task_kind = f"{data_kind} in another form", task_kind
    return UsageError(f"{type(data).__name__} gives {data_kind}, and {task.__name__} learns from {task_kind}.\n{hint}")
