"""How many validations a run will have, so that `--at last:N` is refused before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from zoo.errors import UsageError


def most_validations(trainer: Mapping[str, Any]) -> int | None:
    """The largest number of validations of a run with these options of the trainer; None where the data decide.

    A run validates after every ``val_check_interval`` batches, or shares of an epoch, and once more at its end.
    """
    interval, steps, epochs = (trainer.get(name) for name in ("val_check_interval", "max_steps", "max_epochs"))
    counts = []
    if isinstance(interval, int) and not isinstance(interval, bool) and isinstance(steps, int) and steps > 0:
        counts.append(math.ceil(steps * int(trainer.get("accumulate_grad_batches") or 1) / interval))
    if isinstance(interval, float) and 0 < interval <= 1 and isinstance(epochs, int) and epochs > 0:
        counts.append(math.floor(1 / interval) * epochs + 1)
    return min(counts, default=None)


def check_validations(at: str | None, variants: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Raise UsageError where ``at`` is the mean of more validations than runs of a variant will have.

    ``variants`` are names and options of their trainers.
    """
    count = (at or "").partition(":")[2]
    if not count:
        return
    for name, trainer in variants:
        most = most_validations(trainer)
        if most is not None and most < int(count):
            raise UsageError(
                f"--at {at}: runs of {name} will have {most} validation{'s' * (most != 1)}, one every "
                f"{trainer['val_check_interval']} batches.\n"
                "Validate more often (--trainer.val_check_interval), or take fewer."
            )
