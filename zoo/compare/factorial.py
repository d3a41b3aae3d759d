"""Main effects and interactions in a grid of two or more varied options, as contrasts within each seed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zoo.compare.paired_tests import PairResult, Sample
from zoo.compare.statistics import Verdict

Combination = tuple[str, ...]  # a value of every varied option


@dataclass(frozen=True)
class Effect:
    """A contrast over a grid: what a value of an option changes, averaged over all values of the others; or how much
    more two values change together than the sum of what each changes alone.
    """

    name: str
    tested: PairResult
    verdict: Verdict

    @property
    def interaction(self) -> bool:
        """Whether it is one of two values."""
        return " × " in self.name


def grid_contrasts(
    names: Sequence[str], cells: Mapping[Combination, Mapping[int, float]], base: Combination, seeds: Sequence[int]
) -> dict[str, Sample]:
    """The main effects, and the interactions of each two options, as samples over ``seeds``.

    ``cells`` has the figures of a variant by seed. Empty unless every combination of the varied options' values is a
    variant, for a single option, and where a run failed: figures of the others are a selection.
    """
    values = [sorted({cell[index] for cell in cells}) for index in range(len(names))]
    figures = {cell: [by_seed[seed] for seed in seeds] for cell, by_seed in cells.items()}
    failed = any(math.isnan(figure) for by_seed in cells.values() for figure in by_seed.values())
    if len(names) < 2 or len(cells) < math.prod(map(len, values)) or failed or not seeds:
        return {}
    return dict(_contrasts(names, values, base, figures))


def _contrasts(
    names: Sequence[str], values: Sequence[Sequence[str]], base: Combination, figures: Mapping[Combination, list[float]]
) -> Iterator[tuple[str, Sample]]:
    """For each effect its two sides by seed, whose difference is the contrast."""
    options = range(len(names))
    changes = [(index, value) for index in options for value in values[index] if value != base[index]]
    for index, value in changes:
        cells = [cell for cell in figures if cell[index] == value]
        yield f"{names[index]} {base[index]} → {value}", (
            _mean(figures, cells), _mean(figures, [_with(cell, {index: base[index]}) for cell in cells]),
        )  # fmt: skip
    for (index, value), (second_index, second) in itertools.combinations(changes, 2):
        if index == second_index:
            continue
        both = [cell for cell in figures if cell[index] == value and cell[second_index] == second]
        neither = [_with(cell, {index: base[index], second_index: base[second_index]}) for cell in both]
        index_alone = [_with(cell, {second_index: base[second_index]}) for cell in both]
        second_alone = [_with(cell, {index: base[index]}) for cell in both]
        together = [a + b for a, b in zip(_mean(figures, both), _mean(figures, neither), strict=True)]
        alone = [a + b for a, b in zip(_mean(figures, index_alone), _mean(figures, second_alone), strict=True)]
        yield f"{names[index]} {value} × {names[second_index]} {second}", (together, alone)


def _with(cell: Combination, changes: Mapping[int, str]) -> Combination:
    return tuple(changes.get(index, value) for index, value in enumerate(cell))


def _mean(figures: Mapping[Combination, list[float]], cells: Sequence[Combination]) -> list[float]:
    """The mean over cells, by seed."""
    return [math.fsum(column) / len(cells) for column in zip(*(figures[cell] for cell in cells), strict=True)]
