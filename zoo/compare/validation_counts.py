"""How many validations a run will have, so that `--at last:N` is refused before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from zoo.errors import UsageError


def most_validations(trainer: Mapping[str, Any], batches: Callable[[], int | None] = lambda: None) -> int | None:
    """The largest number of validations of a run with these options of the trainer; None where nothing tells.

    A run validates after every ``val_check_interval`` batches, or shares of an epoch, and once more at its end.
    ``batches`` counts the batches of an epoch; it is called where epochs decide.
    """
    interval, steps, epochs = (trainer.get(name) for name in ("val_check_interval", "max_steps", "max_epochs"))
    counts = []
    every = interval if isinstance(interval, int) and not isinstance(interval, bool) else 0
    if every and isinstance(steps, int) and steps > 0:
        counts.append(math.ceil(steps * int(trainer.get("accumulate_grad_batches") or 1) / every))
    if isinstance(epochs, int) and epochs > 0:
        if isinstance(interval, float) and 0 < interval <= 1:
            counts.append(math.floor(1 / interval) * epochs + 1)
        elif every and not counts and (count := batches()):
            counts.append(math.ceil(count * epochs / every) + 1)
    return min(counts, default=None)


def check_validations(
    at: str | None, variants: Iterable[tuple[str, Mapping[str, Any]]],
    batches: Callable[[Mapping[str, Any]], int | None] = lambda config: None,
) -> None:  # fmt: skip
    """Raise UsageError where ``at`` is the mean of more validations than runs of a variant will have.

    ``variants`` are names and configurations; ``batches`` counts the batches of an epoch of a configuration.
    """
    count = (at or "").partition(":")[2]
    if not count:
        return
    for name, config in variants:
        trainer = config["trainer"]
        most = most_validations(trainer, partial(batches, config))
        if most is not None and most < int(count):
            raise UsageError(
                f"--at {at}: runs of {name} will have {most} validation{'s' * (most != 1)}, one every "
                f"{trainer['val_check_interval']} batches.\n"
                "Validate more often (--trainer.val_check_interval), or take fewer."
            )
