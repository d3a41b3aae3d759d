"""From what was asked to the variants that are run: solved, measured and tuned, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from zoo.compare import length_probe, matched_sizes, plan, tuning_runs, variants
from zoo.compare.plan import Arm, Comparison, Fits, Refused
from zoo.compare.tuning_runs import Execute
from zoo.errors import UsageError
from zoo.registry import suggest

FEW = 2  # variants that make a comparison


class Meter(matched_sizes.Costs):
    """What can be known of a configuration without training it."""

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise UsageError where its parts do not fit together."""


@dataclass(frozen=True)
class Prepared:
    """The variants, the baseline first; those that cannot be built; and what was chosen for whom."""

    arms: tuple[Arm, ...]
    refused: tuple[Refused, ...] = ()
    tuned: Mapping[str, str] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """What was made equal, and how nearly."""
        return [note for arm in self.arms for note in arm.notes]


def check_comparison(comparison: Comparison) -> list[tuple[str, ...]]:
    """The words of every variant for `zoo fit`. Raises UsageError for what needs no torch to be seen as wrong."""
    if comparison.match is not None and comparison.match not in matched_sizes.WHATS:
        raise UsageError(
            f"--match {comparison.match!r} is none.{suggest(comparison.match, matched_sizes.WHATS)} "
            f"There are: {', '.join(matched_sizes.WHATS)}"
        )
    if comparison.budget:
        matched_sizes.budget(comparison.budget)
    if comparison.tune:
        tuning_runs.sweep_rates(comparison.tune, comparison.vary)
    if comparison.probe:
        length_probe.factors(comparison.probe)
    base = variants.baseline(comparison.base, comparison.vary) if comparison.base else ()
    combinations = variants.arranged(comparison.vary, base, comparison.design)
    return [(comparison.recipe, *comparison.options, *(choice.word for choice in variant)) for variant in combinations]


def prepare(comparison: Comparison, fits: Fits, meter: Meter, execute: Execute) -> Prepared:
    """Build every variant, match it, give it its budget and tune it; what that takes is run by ``execute``.

    Raises UsageError where fewer than two variants are left.
    """
    arms, refused = plan.arms(comparison, fits, meter.check)
    if len(arms) < FEW:
        why = f" {refused[0].name}: {refused[0].sentence}" if refused else " The values are the recipe's own."
        raise UsageError(f"there is one variant, {arms[0].name}, and nothing to compare it with.{why}")
    if comparison.probe:
        length_probe.check(arms[0].point.config)
    seed = tuning_runs.seed_of(comparison.seeds)
    if comparison.match:
        arms = matched_sizes.match_size(arms, cast(matched_sizes.What, comparison.match), fits, meter)
    if comparison.budget:
        what, size = matched_sizes.budget(comparison.budget)
        if what == "time":
            arms = tuning_runs.steps_within_time(arms, size, seed, fits, meter, execute)
        else:
            arms = matched_sizes.within_budget(arms, comparison, fits, meter)
    tuned: dict[str, str] = {}
    if comparison.tune:
        sweep = tuning_runs.sweep_rates(comparison.tune, comparison.vary)
        arms, tuned = tuning_runs.tune_variants(arms, sweep, seed, fits, execute, comparison.goal)
    chosen = {arm.name: "; ".join(filter(None, (arm.solved, tuned.get(arm.name)))) for arm in arms}
    return Prepared(tuple(arms), tuple(refused), {name: sentence for name, sentence in chosen.items() if sentence})
