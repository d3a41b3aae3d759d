"""Turn a comparison into the variants to run: build them, match their sizes, set their budgets, tune them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from zoo.compare import match_and_tune, plan
from zoo.compare.match_and_tune import Execute
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
class Stage:
    """The variants of a comparison at one size, the baseline first; without --scale there is one size.

    ``request`` is the comparison at this size, and ``invalid`` says why other variants cannot be built.
    """

    request: Comparison
    arms: tuple[Arm, ...]
    label: str = ""
    invalid: Mapping[str, str] = field(default_factory=dict)
    goal: str | None = None  # the metric that decides, where it is not the first of each run
    tuning: Mapping[str, Any] = field(default_factory=dict)  # as `match_and_tune.tune_variants` describes it
    details: Any = None  # what the design of the comparison keeps of its draft

    @property
    def needs_runs(self) -> bool:
        """Whether runs decide how the compared ones are made: their rates, or their steps within a time."""
        return bool(self.request.tune) or (self.request.budget or "").startswith("time")

    @property
    def tuned(self) -> dict[str, str]:
        """By variant, sentences about what was solved or tuned for it."""
        tuned = match_and_tune.tuning_sentences(self.tuning) if self.tuning else {}
        settings = {arm.name: "; ".join(filter(None, (arm.solved, tuned.get(arm.name)))) for arm in self.arms}
        return {name: sentence for name, sentence in settings.items() if sentence}

    @property
    def notes(self) -> list[str]:
        """Sentences about what was matched, and the remaining differences."""
        return list(dict.fromkeys(note for arm in self.arms for note in arm.notes))


def check_comparison(comparison: Comparison) -> list[tuple[str, ...]]:
    """The arguments of every variant for `zoo fit`. Raises UsageError for errors that can be found without torch."""
    if comparison.match is not None and comparison.match not in match_and_tune.SIZE_KINDS:
        raise UsageError(
            f"--match {comparison.match!r} is not a size.{suggest(comparison.match, match_and_tune.SIZE_KINDS)} "
            f"There are: {', '.join(match_and_tune.SIZE_KINDS)}"
        )
    if comparison.budget:
        match_and_tune.parse_budget(comparison.budget)
    if comparison.tune:
        match_and_tune.sweep_rates(comparison.tune, comparison.vary)
    base = plan.parse_baseline(comparison.base, comparison.vary) if comparison.base else ()
    combinations = plan.design_variants(comparison.vary, base, comparison.combinations)
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


def draft_runs(comparison: Comparison, fits: ZooFit, meter: ConfigMeter) -> Stage:
    """Build every variant, match its size, and set its budget, as far as no run is needed for it.

    Raises UsageError if fewer than two variants remain.
    """
    arms, invalid = plan.build_arms(comparison, fits, meter.check)
    if len(arms) < MIN_VARIANTS:
        name, sentence = next(iter(invalid.items()), ("", ""))
        why = f" {name}: {sentence}" if invalid else " The values are the recipe's own."
        raise UsageError(f"there is one variant, {arms[0].name}, and nothing to compare it with.{why}")
    goal = decisive_metric(arms, comparison.goal, meter)
    if comparison.match:
        arms = match_and_tune.match_size(arms, cast(match_and_tune.SizeKind, comparison.match), fits, meter)
    if not comparison.budget:
        check_ends(comparison.recipe, arms)
    elif match_and_tune.parse_budget(comparison.budget)[0] != "time":
        arms = match_and_tune.within_budget(arms, comparison, fits, meter)
    match_and_tune.check_sweep(arms, comparison, fits, meter)
    return Stage(comparison, tuple(arms), invalid=invalid, goal=goal)


def check_ends(recipe: str, arms: Sequence[Arm]) -> None:
    """Raise UsageError for a variant whose training has no end."""
    from zoo.config.trainer_bounds import check_end

    for arm in arms:
        check_end(arm.point.config["trainer"], recipe)


def complete_runs(stage: Stage, fits: ZooFit, meter: ConfigMeter, execute: Execute) -> Stage:
    """The same with budgets of time and tuned options; ``execute`` does the runs that these need."""
    request, arms, tuning = stage.request, list(stage.arms), stage.tuning
    what, size = match_and_tune.parse_budget(request.budget) if request.budget else ("", 0.0)
    if what == "time":
        (seed,) = match_and_tune.tuning_seeds(request.seeds)
        arms = match_and_tune.steps_within_time(arms, size, seed, fits, meter, execute)
    if request.tune:
        sweep = match_and_tune.sweep_rates(request.tune, request.vary)
        seeds = match_and_tune.tuning_seeds(request.seeds, request.tune_seeds)
        arms, tuning = match_and_tune.tune_variants(arms, sweep, seeds, fits, execute, stage.goal, request.at)
    return replace(stage, arms=tuple(arms), tuning=tuning)


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
