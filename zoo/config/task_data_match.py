"""Whether a task can learn from the data that was chosen; said in words before anything is trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.data.batches import BatchDataset
from zoo.errors import UsageError
from zoo.registry import parts

# what a data set gives and a task wants, by the sizes that it names; the first that fits counts
KINDS = (
    ({"image_size", "vocab_size"}, "images with texts"),
    ({"image_size"}, "images"),
    ({"source_vocab_size"}, "pairs of texts, a source and its target"),
    ({"vocab_size", "mask_token"}, "texts with hidden tokens"),
    ({"vocab_size", "num_classes"}, "texts with classes"),
    ({"vocab_size"}, "texts"),
)
EXAMPLES = {
    "images": ("Glyphs", "ImageFolder"),
    "pairs of texts, a source and its target": ("Phrasebook", "ParallelFiles"),
    "texts with hidden tokens": ("MaskedText",),
    "texts with classes": ("DocTopics", "LabelledFiles"),
    "texts": ("StdlibDocs", "TextFiles"),
}


def kind_of(sizes: Iterable[str]) -> str:
    """What data with these sizes hold, in words."""
    given = set(sizes)
    return next((words for names, words in KINDS if names <= given), "something else")


def check_sizes(task: type, data: object, sizes: Mapping[str, int], missing: Iterable[str]) -> None:
    """Raise UsageError where the data do not say a size that the task needs: they are of another kind."""
    left = sorted(name for name in missing if name not in sizes and name != "max_length")
    if not left:
        return
    given, wanted = kind_of(sizes), kind_of(getattr(task, "data_sizes", {}))
    if given == wanted:  # the same in words: a size that only the data could say
        raise UsageError(f"{type(data).__name__} does not say model.{left[0]}. Give it: --model.{left[0]} NUMBER")
    raise _mismatch(task, data, given, wanted)


def check_batch(task: Any, data: Any) -> None:
    """Raise UsageError where a batch lacks what the task reads of it, or holds it in another form.

    A task says what it reads by ``sample``, and data without samples to ask for are taken as they are.
    """
    splits = getattr(data, "datasets", {})
    rows = splits.get("val", splits.get("train"))  # what is measured takes more than what is learned
    if not isinstance(rows, BatchDataset) or not len(rows):
        return
    try:
        with torch.random.fork_rng(devices=[]):  # what is trained does not depend on this look
            wanted = task.sample(1)
    except NotImplementedError:
        return
    given = rows.batch(np.array([0]), 0)
    if not isinstance(wanted, Mapping) or not isinstance(given, Mapping):
        return
    missing = [name for name in wanted if name not in given]
    if not missing:
        missing = [
            name
            for name, tensor in wanted.items()
            if isinstance(tensor, Tensor) and isinstance(given[name], Tensor) and given[name].dim() != tensor.dim()
        ]
    if not missing:
        return
    said = _mismatch(type(task), data, kind_of(data.sizes()), kind_of(type(task).data_sizes))
    raise UsageError(f"{said} (its batches have {_listed(given)}; the task reads {_listed(wanted)})")


def _listed(batch: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {'×'.join('n' * one.dim())}" for name, one in batch.items() if isinstance(one, Tensor))


def _mismatch(task: type, data: object, given: str, wanted: str) -> UsageError:
    has = {part.name for part in parts("data")}
    some = [name for name in EXAMPLES.get(wanted, ()) if name in has]
    hint = f"Choose such data: --data {' or --data '.join(some)}" if some else "See: zoo list data"
    if given == wanted:
        given, wanted = f"{given} in another form", wanted
    return UsageError(f"{type(data).__name__} gives {given}, and {task.__name__} learns from {wanted}.\n{hint}")
