"""Main effects and interactions in a grid of two or more varied options, as contrasts within each seed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zoo.compare.paired_tests import PairResult, Sample, compare_samples, judge_all
from zoo.compare.statistics import Verdict
from zoo.compare.verdict import Answer

Combination = tuple[str, ...]  # a value of every varied option


@dataclass(frozen=True)
class Effect:
    """A contrast over a grid: what a value of an option changes, averaged over all values of the others; or how much
    more two values change together than the sum of what each changes alone. Tests are corrected over all effects.
    """

    name: str
    tested: PairResult
    verdict: Verdict
    interaction: bool = False


def grid_effects(answer: Answer) -> list[Effect]:
    """The main effects, and the interactions of each two options, over the seeds that all variants have.

    Empty unless every combination of the varied options' values is a variant, for a single option, and where a run
    failed: figures of the others are a selection.
    """
    cells = {tuple(row.choices[name] for name in answer.varied): row for row in answer.rows}
    values = [sorted({cell[index] for cell in cells}) for index in range(len(answer.varied))]
    whole = len(cells) == len(answer.rows) == math.prod(map(len, values))
    failed = any(row.failures for row in answer.rows)
    if len(answer.varied) < 2 or not whole or failed or answer.comparability_errors:
        return []
    seeds = answer.plan.sort_seeds(sorted(set.intersection(*(set(row.figures) for row in answer.rows))))
    figures = {cell: [row.figures[seed] for seed in seeds] for cell, row in cells.items()}
    base = tuple(answer.base.choices[name] for name in answer.varied)
    samples = dict(_contrasts(answer.varied, values, base, figures))
    tested = compare_samples(samples, answer.plan)
    judged = judge_all(tested, answer.lower_is_better, answer.plan)
    return [Effect(name, one, judged[name], " × " in name) for name, one in tested.items()]


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
    for (one, value), (other, second) in itertools.combinations(changes, 2):
        if one == other:
            continue
        both = [cell for cell in figures if cell[one] == value and cell[other] == second]
        neither = [_with(cell, {one: base[one], other: base[other]}) for cell in both]
        first = [_with(cell, {other: base[other]}) for cell in both]
        last = [_with(cell, {one: base[one]}) for cell in both]
        together = [a + b for a, b in zip(_mean(figures, both), _mean(figures, neither), strict=True)]
        alone = [a + b for a, b in zip(_mean(figures, first), _mean(figures, last), strict=True)]
        yield f"{names[one]} {value} × {names[other]} {second}", (together, alone)


def _with(cell: Combination, changes: Mapping[int, str]) -> Combination:
    return tuple(changes.get(index, value) for index, value in enumerate(cell))


def _mean(figures: Mapping[Combination, list[float]], cells: Sequence[Combination]) -> list[float]:
    """The mean over cells, by seed."""
    return [math.fsum(column) / len(cells) for column in zip(*(figures[cell] for cell in cells), strict=True)]
