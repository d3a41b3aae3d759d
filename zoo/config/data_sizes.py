"""Fill what only the data knows into a task's blanks, and refuse impossible models before the data is prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zoo.config.layers import where
from zoo.errors import UsageError
from zoo.tasks.task import Task


def missing_sizes(task: type[Task], options: Mapping[str, object]) -> list[str]:
    """The sizes a configuration leaves open."""
    return [name for name in task.blanks if name in options and options[name] is None]


def placeholder_sizes(task: type[Task], options: Mapping[str, Any], limit: object = None) -> dict[str, int]:
    """Small sizes with which a task can be built to see whether its parts fit."""
    small = task.small_sizes(options) | ({"max_length": limit} if isinstance(limit, int) else {})
    return {name: small[name] for name in missing_sizes(task, options)}


def fill_sizes(
    task: type[Task], options: dict[str, Any], sizes: Mapping[str, int], max_length: object = None
) -> dict[str, int]:
    """Write the data's sizes into the blanks and return what was written."""
    available = {**({"max_length": max_length} if isinstance(max_length, int) else {}), **sizes}
    filled = {name: available[name] for name in missing_sizes(task, options) if name in available}
    options.update(filled)
    return filled


def check_sizes(
    options: Mapping[str, Any], sizes: Mapping[str, int], origins: Mapping[str, str], trained: bool = False
) -> None:
    """Refuse sizes that the data contradicts; a vocabulary may have entries to spare.

    ``trained``: a checkpoint has these sizes, so it is the data that are other ones.
    """
    for name, size in sizes.items():
        written = options.get(name)
        spare = name.endswith("vocab_size") or name == "num_classes"
        if isinstance(written, int) and (written < size if spare else written != size):
            tail = where(origins.get(f"model.{name}", ""))
            if trained:
                raise UsageError(
                    f"the data are not those that the model was trained with, or have changed since: its {name} is "
                    f"{written}, and they have {size}.\nPut the former data back, or train anew: zoo fit"
                )
            raise UsageError(f"model.{name} is {written} but the data has {size}. Leave it out.{tail}")


def build_on_meta(build: Callable[[], object]) -> None:
    """Build a model on the meta device, which costs no memory: parts that cannot work together refuse here."""
    import torch

    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                build()
        except (NotImplementedError, RuntimeError):
            return  # a part that cannot be built without memory; the real construction will tell
