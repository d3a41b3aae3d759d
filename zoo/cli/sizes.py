"""Fill what only the data knows into a model's blanks, and refuse impossible models before the data is prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zoo.cli.layers import where
from zoo.errors import UsageError

BLANKS = ("vocab_size", "source_vocab_size", "target_vocab_size", "num_classes", "image_size", "channels", "max_length")
SMALL = {"num_classes": 10, "channels": 3, "image_size": 32, "max_length": 64}
VOCABULARY = 64


def blanks(options: Mapping[str, object]) -> list[str]:
    """The sizes a model leaves open."""
    return [name for name in BLANKS if name in options and options[name] is None]


def placeholders(options: Mapping[str, Any], limit: object = None) -> dict[str, int]:
    """Small sizes with which a model can be built to see whether its parts fit."""
    patch = options.get("patch")
    small = {**SMALL, **({"image_size": 2 * patch} if isinstance(patch, int) else {})}
    if isinstance(limit, int):
        small["max_length"] = limit
    return {name: small.get(name, VOCABULARY) for name in blanks(options)}


def fill(options: dict[str, Any], sizes: Mapping[str, int], max_length: object = None) -> dict[str, int]:
    """Write the data's sizes into the blanks and return what was written."""
    known = {**({"max_length": max_length} if isinstance(max_length, int) else {}), **sizes}
    found = {name: known[name] for name in blanks(options) if name in known}
    options.update(found)
    return found


def check(options: Mapping[str, Any], sizes: Mapping[str, int], origins: Mapping[str, str]) -> None:
    """Refuse sizes that a person wrote and the data contradicts; a vocabulary may have entries to spare."""
    for name, size in sizes.items():
        written = options.get(name)
        spare = name.endswith("vocab_size") or name == "num_classes"
        if isinstance(written, int) and (written < size if spare else written != size):
            tail = where(origins.get(f"model.{name}", ""))
            raise UsageError(f"model.{name} is {written} but the data has {size}. Leave it out.{tail}")


def rehearse(build: Callable[[], object]) -> None:
    """Build a model on the meta device, which costs no memory: parts that cannot work together refuse here."""
    import torch

    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                build()
        except (NotImplementedError, RuntimeError):
            return  # a part that cannot be built without memory; the real construction will tell
