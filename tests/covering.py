"""Covering arrays: few rows in which every choice of any ``strength`` factors occurs together."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]


def covering(
    factors: Mapping[str, Sequence[Any]], strength: int = 3, accepted: Callable[[Row], bool] = lambda row: True
) -> list[Row]:
    """Rows {factor: value} that hold every combination of values of ``strength`` factors that an accepted row has.

    Each row is the accepted one that adds the most new combinations, the first of equals: the rows repeat.
    """
    names = list(factors)
    groups = list(itertools.combinations(range(len(names)), min(strength, len(names))))
    rows = [row for row in itertools.product(*factors.values()) if accepted(dict(zip(names, row, strict=True)))]
    parts = {row: frozenset((group, tuple(row[place] for place in group)) for group in groups) for row in rows}
    missing = set(itertools.chain.from_iterable(parts.values()))
    array = []
    waiting = rows
    gain = {row: len(groups) for row in rows}  # an upper bound: what a row adds only shrinks
    while missing:
        best, most = waiting[0], 0
        for row in waiting:
            if gain[row] > most:
                gain[row] = len(parts[row] & missing)
                if gain[row] > most:
                    best, most = row, gain[row]
                if most == len(groups):
                    break
        missing -= parts[best]
        waiting = [row for row in waiting if gain[row] and row != best]
        array.append(dict(zip(names, best, strict=True)))
    return array


def uncovered(rows: Iterable[Row], accepted: Iterable[Row], strength: int = 3) -> set[tuple[tuple[str, Any], ...]]:
    """The combinations of ``strength`` values that an accepted row has, and none of ``rows``."""

    def combinations(every: Iterable[Row]) -> set[tuple[tuple[str, Any], ...]]:
        return {part for row in every for part in itertools.combinations(row.items(), min(strength, len(row)))}

    return combinations(accepted) - combinations(rows)
