"""Turn a comparison into the variants to run: build them, match their sizes, set their budgets, tune them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from zoo.compare import attribute, length_probe, matched_sizes, plan, tuning_runs, variants
from zoo.compare.attribute import OptionDifference
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
    differences: tuple[OptionDifference, ...] = ()  # differences of the two recipes whose hybrids the variants are

    @property
    def notes(self) -> list[str]:
        """Sentences about what was matched, and the remaining differences."""
        return list(dict.fromkeys(note for arm in self.arms for note in arm.notes))


def check_comparison(comparison: Comparison) -> list[tuple[str, ...]]:
    """The arguments of every variant for `zoo fit`. Raises UsageError for errors that can be found without torch."""
    if comparison.attribute:
        return [(recipe, *comparison.options) for recipe in (comparison.recipe, comparison.attribute)]
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
    prediction, metrics = next(iter(measured.values()))
    shared = [
        name
        for name, direction in metrics.items()
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


def needs_runs(comparison: Comparison) -> bool:
    """Whether runs decide how the compared ones are made: their rates, or their steps within a time."""
    return bool(comparison.tune) or (comparison.budget or "").startswith("time")


def draft_runs(comparison: Comparison, fits: Fits, meter: Meter) -> PreparedRuns:
    """Build every variant, match its size, and set its budget, as far as no run is needed for it.

    Raises UsageError if fewer than two variants remain.
    """
    if comparison.attribute:
        return _draft_hybrids(comparison, fits, meter)
    arms, invalid = plan.build_arms(comparison, fits, meter.check)
    if len(arms) < MIN_VARIANTS:
        why = f" {invalid[0].name}: {invalid[0].sentence}" if invalid else " The values are the recipe's own."
        raise UsageError(f"there is one variant, {arms[0].name}, and nothing to compare it with.{why}")
    goal = decisive_metric(arms, comparison.goal, meter)
    if comparison.probe:
        length_probe.check_config(arms[0].point.config)
    if comparison.match:
        arms = matched_sizes.match_size(arms, cast(matched_sizes.SizeKind, comparison.match), fits, meter)
    if not comparison.budget:
        _check_ends(comparison, arms)
    elif matched_sizes.parse_budget(comparison.budget)[0] != "time":
        arms = matched_sizes.within_budget(arms, comparison, fits, meter)
    return PreparedRuns(tuple(arms), tuple(invalid), _settings(arms, {}), goal)


def _draft_hybrids(comparison: Comparison, fits: Fits, meter: Meter) -> PreparedRuns:
    """The hybrids of two recipes, the first recipe first."""
    from zoo.training.setup import display_value

    words = [(recipe, *comparison.options) for recipe in (comparison.recipe, comparison.attribute)]
    base, second = map(fits.point, words)
    differences = attribute.find_differences(base, second, display_value)
    hybrids = attribute.build_hybrids(Arm((), words[0], base), differences, fits, meter.check)
    _check_ends(comparison, list(hybrids.values()))
    return PreparedRuns(tuple(hybrids.values()), goal=comparison.goal, differences=tuple(differences))


def _check_ends(comparison: Comparison, arms: Sequence[Arm]) -> None:
    """Raise UsageError for a variant whose training has no end."""
    from zoo.config.trainer_bounds import check_end

    for arm in arms:
        check_end(arm.point.config["trainer"], " or ".join(filter(None, (comparison.recipe, comparison.attribute))))


def complete_runs(
    comparison: Comparison, draft: PreparedRuns, fits: Fits, meter: Meter, execute: Execute
) -> PreparedRuns:
    """The same with budgets of time and tuned options; ``execute`` does the runs that these need."""
    arms: list[Arm] = list(draft.arms)
    tuned: dict[str, str] = {}
    tuning: dict[str, Any] = {}
    what, size = matched_sizes.parse_budget(comparison.budget) if comparison.budget else ("", 0.0)
    if what == "time":
        (seed,) = tuning_runs.tuning_seeds(comparison.seeds)
        arms = tuning_runs.steps_within_time(arms, size, seed, fits, meter, execute)
    if comparison.tune:
        sweep = tuning_runs.sweep_rates(comparison.tune, comparison.vary)
        seeds = tuning_runs.tuning_seeds(comparison.seeds, comparison.tune_seeds)
        arms, sweep_result = tuning_runs.tune_variants(arms, sweep, seeds, fits, execute, draft.goal, comparison.at)
        tuned, tuning = sweep_result.sentences, sweep_result.as_data()
    return replace(draft, arms=tuple(arms), tuned=_settings(arms, tuned), tuning=tuning)


def _settings(arms: Sequence[Arm], tuned: Mapping[str, str]) -> dict[str, str]:
    """By variant, sentences about what was solved or tuned for it."""
    settings = {arm.name: "; ".join(filter(None, (arm.solved, tuned.get(arm.name)))) for arm in arms}
    return {name: sentence for name, sentence in settings.items() if sentence}
