"""Which numbers an option may be."""

from __future__ import annotations

from zoo.errors import UsageError

LARGEST = 2**31 - 1  # largest size: beyond it tensors overflow torch's counters, long after memory has run out
MOST_MODULES = 10_000  # blocks of a stack, experts of a mixture: building more takes hours before memory runs out
MOST_SAMPLES = 10_000_000  # limit for data that draws all samples before the first step and holds them in memory


def at_least(least: float, **options: float | None) -> None:
    """Raise UsageError for the first option below ``least``, or larger than any tensor can be; None counts as unset."""
    for name, value in options.items():
        if value is None:
            continue
        if not value >= least:
            raise UsageError(f"{name} must be at least {least:g}, got {value}.")
        if isinstance(value, int):
            at_most(LARGEST, **{name: value})


def above_zero(**options: float | None) -> None:
    """Raise UsageError for the first option that is not above zero; None counts as unset."""
    for name, value in options.items():
        if value is not None and not value > 0:
            raise UsageError(f"{name} must be above 0, got {value}.")


def at_most(most: int, **options: int | None) -> None:
    """Raise UsageError for the first option above ``most``; None counts as unset."""
    for name, value in options.items():
        if value is not None and value > most:
            raise UsageError(f"{name} must be at most {most}, got {value}.")


def a_rate(**options: float) -> None:
    """Raise UsageError for the first option outside of the closed interval [0, 1]."""
    for name, value in options.items():
        if not 0 <= value <= 1:
            raise UsageError(f"{name} must be from 0 to 1, got {value:g}.")
