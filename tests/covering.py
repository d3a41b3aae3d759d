"""Covering arrays: few rows in which every choice of any ``strength`` factors occurs together."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

Row = dict[str, Any]


def covering(
    factors: Mapping[str, Sequence[Any]], strength: int = 3, accepted: Callable[[Row], bool] = lambda row: True
) -> list[Row]:
    """Rows {factor: value} that hold every combination of values of ``strength`` factors that an accepted row has.

    Each row is the accepted one that adds the most new combinations, the first of equals: the rows repeat.
    """
    names, choices = list(factors), [list(values) for values in factors.values()]
    admissible = [accepted(dict(zip(names, row, strict=True))) for row in itertools.product(*choices)]
    shape = np.array([len(values) for values in choices])
    rows = np.indices(shape, dtype=np.int32).reshape(len(choices), -1)[:, admissible]  # the place of a value, by factor
    combinations, first = [], 0
    for group in itertools.combinations(range(len(names)), min(strength, len(names))):
        combinations.append(first + np.ravel_multi_index(tuple(rows[list(group)]), tuple(shape[list(group)])))
        first += int(shape[list(group)].prod())
    combinations = np.array(combinations, dtype=np.intp)  # of each group in each row
    missing = np.zeros(first, dtype=bool)
    missing[combinations] = True
    array = []
    while missing.any():
        best = int(missing[combinations].sum(0).argmax())
        missing[combinations[:, best]] = False
        array.append({name: values[place] for name, values, place in zip(names, choices, rows[:, best], strict=True)})
    return array


def uncovered(rows: Iterable[Row], accepted: Iterable[Row], strength: int = 3) -> set[tuple[tuple[str, Any], ...]]:
    """The combinations of ``strength`` values that an accepted row has, and none of ``rows``."""

    def combinations(every: Iterable[Row]) -> set[tuple[tuple[str, Any], ...]]:
        return {part for row in every for part in itertools.combinations(row.items(), min(strength, len(row)))}

    return combinations(accepted) - combinations(rows)


def covering_params(*choices: Iterable[Any], strength: int = 2) -> list[Any]:
    """All rows of these choices for pytest's parametrize; a covering array's are without the mark of campaigns."""
    factors = [list(one) for one in choices]
    numbers = {str(place): range(len(one)) for place, one in enumerate(factors)}
    return _params(factors, {tuple(row.values()) for row in covering(numbers, strength)})


def choices_in_turn(*choices: Iterable[Any]) -> list[Any]:
    """All rows of these choices for pytest's parametrize; the mark of campaigns is on all but a few of them.

    The n-th row of the default run holds the n-th choice of each factor, and begins again where one ends: every choice
    occurs, beside others.
    """
    factors = [list(one) for one in choices]
    turns = range(max(map(len, factors)))
    return _params(factors, {tuple(turn % len(one) for one in factors) for turn in turns})


def _params(factors: list[list[Any]], default: set[tuple[int, ...]]) -> list[Any]:
    return [
        pytest.param(
            *(one[number] for one, number in zip(factors, row, strict=True)),
            marks=[] if row in default else [pytest.mark.campaign],
        )
        for row in itertools.product(*(range(len(one)) for one in factors))
    ]
