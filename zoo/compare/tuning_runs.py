"""Preparatory runs: tune an option per variant on seeds of their own, and measure the speed for a time budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from zoo.compare import matched_sizes, run_records
from zoo.compare.number_format import format_duration, join_words
from zoo.compare.plan import Arm, ZooFit
from zoo.compare.run_records import DECISIVE, RunRecord, number
from zoo.compare.variants import MOST_SEEDS, Factor, parse_factor
from zoo.errors import UsageError, ZooError
from zoo.logging import run_state

if TYPE_CHECKING:
    from zoo.training.config_meter import ConfigMeter

PROBE = ("--trainer.max_steps=100", "--trainer.log_every_n_steps=10", "--trainer.limit_val_batches=1")
Execute = Callable[[Sequence[Arm], Sequence[int]], object]  # runs variants with seeds


def tuning_seeds(seeds: Sequence[int], count: int = 1) -> list[int]:
    """Seeds that are not compared, because tuned values must not be judged by the runs that selected them.

    They are 0 and those beyond what `--seeds N` can mean, so that more seeds of the comparison change no tuned value.
    """
    candidates = (0, *range(MOST_SEEDS + 1, MOST_SEEDS + 1 + count + len(seeds)))
    return [seed for seed in candidates if seed not in seeds][:count]


def sweep_rates(text: str, varied: Sequence[Factor]) -> Factor:
    """The option and values of ``--tune model.lr=1e-3,3e-3``. Raises UsageError if invalid or a varied option."""
    try:
        factor = parse_factor(text)
    except UsageError as error:
        raise UsageError(str(error).replace("--vary", "--tune")) from error
    if factor.key in [varying.key for varying in varied]:
        raise UsageError(f"--tune {factor.key}: it is a varied option (--vary) and cannot be tuned for each variant.")
    return factor


@dataclass(frozen=True)
class TuningCost:
    """What tuning took: runs, their optimizer steps, and their seconds of training without validation."""

    runs: int
    steps: int
    seconds: float

    def __str__(self) -> str:
        time = f", {format_duration(self.seconds)} of training" if math.isfinite(self.seconds) else ""
        return f"{self.runs} runs, {self.steps:,} steps{time}"


def tuning_sentences(tuning: Mapping[str, Any]) -> dict[str, str]:
    """By variant a sentence about the value that `tune_variants` chose; it begins with the option's name."""
    seeds, name = tuning["seeds"], tuning["option"].rpartition(".")[2]
    many = f"seed{'s' * (len(seeds) > 1)} {join_words([*map(str, seeds)])}"
    sentences = {}
    for variant, tuned in tuning["variants"].items():
        failing = [f"{value} ({count} of {len(seeds)})" for value, count in tuned["failures"].items() if count]
        pieces = [
            f"{name} {tuned['value']}, best of {len(tuned['figures'])} on validation with {many}",
            *(["at the edge of the grid (a better one may lie beyond)"] if tuned["edge"] else []),
            *([f"runs failed with {join_words(failing)}"] if failing else []),
            f"found in {TuningCost(**tuned['cost'])}",
        ]
        sentences[variant] = ", ".join(pieces)
    return sentences


def total_cost(tuning: Mapping[str, Any]) -> TuningCost | None:
    """The cost of a sweep that `tune_variants` describes, over all variants; None for none."""
    costs = [variant["cost"] for variant in tuning.get("variants", {}).values()]
    names = ("runs", "steps", "seconds")
    return TuningCost(*(sum(cost[name] for cost in costs) for name in names)) if costs else None


def tune_variants(
    arms: Sequence[Arm], sweep: Factor, seeds: Sequence[int], fits: ZooFit, execute: Execute,
    goal: str | None = None, at: str = DECISIVE,
) -> tuple[list[Arm], dict[str, Any]]:  # fmt: skip
    """Every variant, the baseline too, with the value whose mean figure over ``seeds`` was best, and the sweep
    as data: its option and seeds, and by new variant name the best value, the mean figure of each (None where all seeds
    failed), how many seeds failed with it, whether it is at the edge of the grid, and its cost.

    A value with which fewer seeds failed goes before any other. ``at`` is when the figure is taken; the test split is
    left alone. Raises ZooError if all runs of a variant failed.
    """
    sweeps = [(arm, [(choice, arm.with_options(fits, choice.word)) for choice in sweep.choices()]) for arm in arms]
    execute([trial for _, several in sweeps for _, trial in several], seeds)
    winners, variants = [], {}
    for arm, several in sweeps:
        records = {
            choice.value: [run_records.parse_record(trial.point.folder(seed) / run_state.LEDGER) for seed in seeds]
            for choice, trial in several
        }
        scores = {
            value: [score(run, goal, "last" if at == "test" else at) for run in runs] for value, runs in records.items()
        }
        failures = {value: sum(map(math.isnan, by_seed)) for value, by_seed in scores.items()}
        means = {value: _mean(by_seed) for value, by_seed in scores.items()}
        best = min(means, key=lambda value: (failures[value], math.isnan(means[value]), means[value]))
        if math.isnan(means[best]):
            raise ZooError(
                f"--tune {sweep.key}: no run of {arm.name} ended with a figure. See the logs beside the runs."
            )
        winner = next(trial for choice, trial in several if choice.value == best)
        winners.append(winner)
        runs = [run for of_value in records.values() for run in of_value]
        example = next((run for run in runs if run.goals), runs[0])
        sign = -1 if example.goals.get(_goal(example, goal)) == "max" else 1
        cost = TuningCost(len(runs), sum(run.steps for run in runs), _sum(number(r.cost.get("seconds")) for r in runs))
        variants[winner.name] = {
            "value": best,
            "figures": {value: None if math.isnan(mean) else sign * mean for value, mean in means.items()},
            "failures": failures, "edge": is_at_edge(best, list(means)), "cost": asdict(cost),
        }  # fmt: skip
    return winners, {"option": sweep.key, "seeds": list(seeds), "variants": variants}


def is_at_edge(value: str, values: Sequence[str]) -> bool:
    """Whether a value is the smallest or the largest of several numbers; False for values that are no numbers."""
    try:
        numbers = [float(text) for text in values]
    except ValueError:
        return False
    return len(set(numbers)) > 1 and float(value) in (min(numbers), max(numbers))


def score(run: RunRecord, goal: str | None = None, at: str = DECISIVE) -> float:
    """The validation figure of a run, negated if higher is better; NaN if it failed or has none."""
    name = _goal(run, goal)
    figure = run.figure(name, at) if name else None
    if figure is None:
        return math.nan
    return -figure if run.goals[name] == "max" else figure


def _goal(run: RunRecord, goal: str | None) -> str:
    name = (goal or "").removeprefix("val/")
    return name if name in run.goals else next(iter(run.goals), "")


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if not math.isnan(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _sum(values: Iterable[float]) -> float:
    return sum(value for value in values if not math.isnan(value))


def steps_within_time(
    arms: Sequence[Arm], limit: float, seed: int, fits: ZooFit, costs: ConfigMeter, execute: Execute
) -> list[Arm]:
    """Every variant with the number of steps that it trains in ``limit`` seconds without validation.

    A short run per variant measures its speed. Raises ZooError if such a run failed.
    """
    probes = [arm.with_options(fits, *PROBE) for arm in arms]
    execute(probes, [seed])
    result = []
    for arm, probe in zip(arms, probes, strict=True):
        folder = probe.point.folder(seed)
        speed = run_state.read_record(folder).get("cost", {}).get("tokens_per_s")
        if not isinstance(speed, (int, float)) or not speed > 0:
            raise ZooError(f"--budget time: {arm.name} did not run. See {run_state.path_beside(folder, '.log')}")
        count = limit * speed / costs.tokens_per_step(arm.point.config)
        result.append(matched_sizes.with_steps(arm, fits, count, f"{limit:g} s of training"))
    return result
