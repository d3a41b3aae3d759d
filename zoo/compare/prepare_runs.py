"""Turn a comparison into the variants to run: build them, match their sizes, set their budgets, tune them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from zoo.compare import length_probe, matched_sizes, plan, tuning_runs, variants
from zoo.compare.plan import Arm, Comparison, Fits, InvalidVariant
from zoo.compare.tuning_runs import Execute
from zoo.errors import UsageError
from zoo.registry import suggest

MIN_VARIANTS = 2


class Meter(matched_sizes.Costs, Protocol):
    """Measurements of a configuration without training it."""

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise UsageError if its parts cannot be combined."""

    def goals(self, config: Mapping[str, Any]) -> tuple[str, Mapping[str, str]]:
        """What the metrics of its task judge, and the direction of each."""


@dataclass(frozen=True)
class PreparedRuns:
    """The variants, the baseline first; those that cannot be built; and by variant what was solved or tuned for it."""

    arms: tuple[Arm, ...]
    invalid: tuple[InvalidVariant, ...] = ()
    tuned: Mapping[str, str] = field(default_factory=dict)
    goal: str | None = None  # the metric that decides, where it is not the first of each run
    tuning: Mapping[str, Any] = field(default_factory=dict)  # `tuning_runs.Tuning` as data

    @property
    def notes(self) -> list[str]:
        """Sentences about what was matched, and the remaining differences."""
        return list(dict.fromkeys(note for arm in self.arms for note in arm.notes))


def check_comparison(comparison: Comparison) -> list[tuple[str, ...]]:
    """The arguments of every variant for `zoo fit`. Raises UsageError for errors that can be found without torch."""
    if comparison.match is not None and comparison.match not in matched_sizes.SIZE_KINDS:
        raise UsageError(
            f"--match {comparison.match!r} is not a size.{suggest(comparison.match, matched_sizes.SIZE_KINDS)} "
            f"There are: {', '.join(matched_sizes.SIZE_KINDS)}"
        )
    if comparison.budget:
        matched_sizes.parse_budget(comparison.budget)
    if comparison.tune:
        tuning_runs.sweep_rates(comparison.tune, comparison.vary)
    if comparison.probe:
        length_probe.parse_factors(comparison.probe)
    base = variants.parse_baseline(comparison.base, comparison.vary) if comparison.base else ()
    combinations = variants.design_variants(comparison.vary, base, comparison.design)
    return [(comparison.recipe, *comparison.options, *(choice.word for choice in variant)) for variant in combinations]


def decisive_metric(arms: Sequence[Arm], goal: str | None, meter: Meter) -> str | None:
    """``goal``, or else the first metric that all tasks have where there are several tasks.

    Raises UsageError where they have none in common, or not the one that is asked for.
    """
    tasks = {str(arm.point.config["model"]["class_path"]): arm for arm in arms}
    if len(tasks) < 2:
        return goal
    measured = {path.rpartition(".")[2]: meter.goals(arm.point.config) for path, arm in tasks.items()}
    prediction, first = next(iter(measured.values()))
    shared = [
        name
        for name, direction in first.items()
        if all(what == prediction and goals.get(name) == direction for what, goals in measured.values())
    ]
    if not shared:
        words = "; ".join(f"{task} by {', '.join(goals)} of {what}" for task, (what, goals) in measured.items())
        raise UsageError(
            f"these tasks have no metric in common, and no verdict could compare them: {words}.\n"
            "Compare tasks that judge the same prediction, such as CausalLM and FIM."
        )
    if goal is not None and goal.removeprefix("val/") not in shared:
        raise UsageError(f"--goal {goal!r} is no metric that all tasks have. Those are: {', '.join(shared)}.")
    return goal or shared[0]


def prepare(comparison: Comparison, fits: Fits, meter: Meter, execute: Execute) -> PreparedRuns:
    """Build every variant, match its size, set its budget and tune it; ``execute`` does the runs that this needs.

    Raises UsageError if fewer than two variants remain.
    """
    arms, invalid = plan.build_arms(comparison, fits, meter.check)
    if len(arms) < MIN_VARIANTS:
        why = f" {invalid[0].name}: {invalid[0].sentence}" if invalid else " The values are the recipe's own."
        raise UsageError(f"there is one variant, {arms[0].name}, and nothing to compare it with.{why}")
    comparison = replace(comparison, goal=decisive_metric(arms, comparison.goal, meter))
    if comparison.probe:
        length_probe.check_config(arms[0].point.config)
    (seed,) = tuning_runs.tuning_seeds(comparison.seeds)
    if comparison.match:
        arms = matched_sizes.match_size(arms, cast(matched_sizes.SizeKind, comparison.match), fits, meter)
    if comparison.budget:
        what, size = matched_sizes.parse_budget(comparison.budget)
        if what == "time":
            arms = tuning_runs.steps_within_time(arms, size, seed, fits, meter, execute)
        else:
            arms = matched_sizes.within_budget(arms, comparison, fits, meter)
    tuned: dict[str, str] = {}
    tuning: dict[str, Any] = {}
    if comparison.tune:
        sweep = tuning_runs.sweep_rates(comparison.tune, comparison.vary)
        seeds = tuning_runs.tuning_seeds(comparison.seeds, comparison.tune_seeds)
        arms, sweep_result = tuning_runs.tune_variants(
            arms, sweep, seeds, fits, execute, comparison.goal, comparison.at
        )
        tuned, tuning = sweep_result.sentences, sweep_result.as_data()
    settings = {arm.name: "; ".join(filter(None, (arm.solved, tuned.get(arm.name)))) for arm in arms}
    return PreparedRuns(
        tuple(arms),
        tuple(invalid),
        {name: sentence for name, sentence in settings.items() if sentence},
        comparison.goal,
        tuning,
    )
