"""Turn a comparison into the variants to run: build them, match their sizes, set their budgets, tune them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from zoo.compare import attribute, equal_conditions, length_probe, plan
from zoo.compare.attribute import OptionDifference
from zoo.compare.equal_conditions import Execute
from zoo.compare.plan import Arm, Comparison, ZooFit
from zoo.compare.run_records import target_of
from zoo.errors import UsageError
from zoo.registry import suggest

if TYPE_CHECKING:
    from zoo.training.config_meter import ConfigMeter

MIN_VARIANTS = 2
TEST_SPLIT_HINTS = {
    "test_fraction": "Hold out a part of its text: --data.test_fraction 0.05",
    "test_path": "Name the files of one: --data.test_path FILE",
}


@dataclass(frozen=True)
class PreparedRuns:
    """The variants, the baseline first; why others cannot be built; and by variant what was solved or tuned for it."""

    arms: tuple[Arm, ...]
    invalid: Mapping[str, str] = field(default_factory=dict)
    tuned: Mapping[str, str] = field(default_factory=dict)
    goal: str | None = None  # the metric that decides, where it is not the first of each run
    tuning: Mapping[str, Any] = field(default_factory=dict)  # as `equal_conditions.tune_variants` describes it
    differences: tuple[OptionDifference, ...] = ()  # differences of the two recipes whose hybrids the variants are

    @property
    def notes(self) -> list[str]:
        """Sentences about what was matched, and the remaining differences."""
        return list(dict.fromkeys(note for arm in self.arms for note in arm.notes))


def check_comparison(comparison: Comparison) -> list[tuple[str, ...]]:
    """The arguments of every variant for `zoo fit`. Raises UsageError for errors that can be found without torch."""
    if comparison.attribute:
        return [(recipe, *comparison.options) for recipe in (comparison.recipe, comparison.attribute)]
    if comparison.match is not None and comparison.match not in equal_conditions.SIZE_KINDS:
        raise UsageError(
            f"--match {comparison.match!r} is not a size.{suggest(comparison.match, equal_conditions.SIZE_KINDS)} "
            f"There are: {', '.join(equal_conditions.SIZE_KINDS)}"
        )
    if comparison.budget:
        equal_conditions.parse_budget(comparison.budget)
    if comparison.tune:
        equal_conditions.sweep_rates(comparison.tune, comparison.vary)
    if comparison.probe:
        length_probe.parse_factors(comparison.probe)
    base = plan.parse_baseline(comparison.base, comparison.vary) if comparison.base else ()
    combinations = plan.design_variants(comparison.vary, base, comparison.design)
    return [(comparison.recipe, *comparison.options, *(choice.word for choice in variant)) for variant in combinations]


def decisive_metric(arms: Sequence[Arm], goal: str | None, meter: ConfigMeter) -> str | None:
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


def draft_runs(comparison: Comparison, fits: ZooFit, meter: ConfigMeter) -> PreparedRuns:
    """Build every variant, match its size, and set its budget, as far as no run is needed for it.

    Raises UsageError if fewer than two variants remain.
    """
    if comparison.attribute:
        return _draft_hybrids(comparison, fits, meter)
    arms, invalid = plan.build_arms(comparison, fits, meter.check)
    if len(arms) < MIN_VARIANTS:
        name, sentence = next(iter(invalid.items()), ("", ""))
        why = f" {name}: {sentence}" if invalid else " The values are the recipe's own."
        raise UsageError(f"there is one variant, {arms[0].name}, and nothing to compare it with.{why}")
    goal = decisive_metric(arms, comparison.goal, meter)
    if comparison.probe:
        length_probe.check_config(arms[0].point.config, meter.task_class(arms[0].point.config))
    if comparison.match:
        arms = equal_conditions.match_size(arms, cast(equal_conditions.SizeKind, comparison.match), fits, meter)
    if not comparison.budget:
        _check_ends(comparison, arms)
    elif equal_conditions.parse_budget(comparison.budget)[0] != "time":
        arms = equal_conditions.within_budget(arms, comparison, fits, meter)
    return PreparedRuns(tuple(arms), invalid, _settings(arms, {}), goal)


def _draft_hybrids(comparison: Comparison, fits: ZooFit, meter: ConfigMeter) -> PreparedRuns:
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
    comparison: Comparison, draft: PreparedRuns, fits: ZooFit, meter: ConfigMeter, execute: Execute
) -> PreparedRuns:
    """The same with budgets of time and tuned options; ``execute`` does the runs that these need."""
    arms: list[Arm] = list(draft.arms)
    tuned: dict[str, str] = {}
    tuning: dict[str, Any] = {}
    what, size = equal_conditions.parse_budget(comparison.budget) if comparison.budget else ("", 0.0)
    if what == "time":
        (seed,) = equal_conditions.tuning_seeds(comparison.seeds)
        arms = equal_conditions.steps_within_time(arms, size, seed, fits, meter, execute)
    if comparison.tune:
        sweep = equal_conditions.sweep_rates(comparison.tune, comparison.vary)
        seeds = equal_conditions.tuning_seeds(comparison.seeds, comparison.tune_seeds)
        arms, tuning = equal_conditions.tune_variants(arms, sweep, seeds, fits, execute, draft.goal, comparison.at)
        tuned = equal_conditions.tuning_sentences(tuning)
    return replace(draft, arms=tuple(arms), tuned=_settings(arms, tuned), tuning=tuning)


def _settings(arms: Sequence[Arm], tuned: Mapping[str, str]) -> dict[str, str]:
    """By variant, sentences about what was solved or tuned for it."""
    settings = {arm.name: "; ".join(filter(None, (arm.solved, tuned.get(arm.name)))) for arm in arms}
    return {name: sentence for name, sentence in settings.items() if sentence}


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
    count = "2" if target_of(at or "") is not None else count  # a target lies between two validations
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


def check_test_split(arms: Sequence[Arm], meter: ConfigMeter) -> None:
    """Raise UsageError for data whose test split is the validation split, of which the best was perhaps chosen."""
    for arm in arms:
        splits = meter.data(arm.point.config).datasets
        if splits.get("test") is None or splits.get("test") is splits.get("val"):
            data = arm.point.config["data"]
            options = data.get("init_args") or {}
            hint = next((hint for option, hint in TEST_SPLIT_HINTS.items() if option in options), "Take --at last.")
            raise UsageError(
                f"--at test: {str(data['class_path']).rpartition('.')[2]} has no test split besides its validation "
                f"split. {hint}"
            )
