"""Fill in model sizes that come from the data, such as vocab_size, and reject invalid models before loading data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zoo.config.layers import where
from zoo.errors import UsageError
from zoo.tasks.task import Task


def missing_sizes(task: type[Task], options: Mapping[str, object]) -> list[str]:
    """The sizes that a configuration leaves to the data."""
    return [name for name in task.data_sizes if name in options and options[name] is None]


def placeholder_sizes(task: type[Task], options: Mapping[str, Any], limit: object = None) -> dict[str, int]:
    """Small values of the missing sizes, with which a task can be built to check its parts."""
    small = task.small_sizes(options) | ({"max_length": limit} if isinstance(limit, int) else {})
    return {name: small[name] for name in missing_sizes(task, options)}


def fill_sizes(
    task: type[Task], options: dict[str, Any], sizes: Mapping[str, int], max_length: object = None
) -> dict[str, int]:
    """Set missing sizes in ``options`` to those of the data, and return those that were set."""
    available = {**({"max_length": max_length} if isinstance(max_length, int) else {}), **sizes}
    filled = {name: available[name] for name in missing_sizes(task, options) if name in available}
    options.update(filled)
    return filled


def check_declared_sizes(
    options: Mapping[str, Any], sizes: Mapping[str, int], origins: Mapping[str, str], trained: bool = False
) -> None:
    """Raise UsageError for configured sizes that contradict the data; vocabularies and classes may be larger.

    ``trained``: a checkpoint has these sizes, so it is the data that are other ones.
    """
    for name, size in sizes.items():
        declared = options.get(name)
        spare = name.endswith("vocab_size") or name == "num_classes"
        if isinstance(declared, int) and (declared < size if spare else declared != size):
            tail = where(origins.get(f"model.{name}", ""))
            if trained:
                ways = "use the run's tokenizer (--data.tokenizer RUN), " if name == "vocab_size" else ""
                raise UsageError(
                    f"the data are not those that the model was trained with, or have changed since: its {name} is "
                    f"{declared}, and they have {size}.\nPut the former data back, {ways}or train anew: zoo fit"
                )
            raise UsageError(f"model.{name} is {declared} but the data has {size}. Leave it out.{tail}")


def build_on_meta(build: Callable[[], object]) -> None:
    """Build a model on the meta device, without memory. Raises UsageError if its parts cannot be combined."""
    import torch

    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                build()
        except (NotImplementedError, RuntimeError):
            return  # a part that cannot be built on the meta device: only the real construction shows
