"""What is made equal: sizes by the feed-forward's width, budgets by steps, and rates by preparatory runs.

Those tune an option for each variant on seeds of their own, and measure the speed for a budget of time.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from zoo.compare import run_records
from zoo.compare.number_format import format_duration, join_words
from zoo.compare.plan import MOST_SEEDS, Arm, Comparison, Factor, ZooFit, list_jobs, parse_factor, variant_text
from zoo.compare.run_records import BACKWARD, DECISIVE, RunRecord, is_lower_better, number
from zoo.errors import UsageError, ZooError
from zoo.logging import run_state
from zoo.registry import suggest

if TYPE_CHECKING:
    from zoo.training.config_meter import ConfigMeter

SizeKind = Literal["params", "flops"]
SIZE_KINDS = get_args(SizeKind)
BUDGETS = ("tokens", "flops", "time")
WIDEST = 1 << 20
UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "": 1.0}
LENGTHS = ("trainer.max_steps", "trainer.max_epochs")  # which a budget sets
TIMES = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "": 1.0}


def solve_width(count: Callable[[int], float], target: float, usual: int) -> int:
    """The width whose count is nearest to ``target``; ``usual`` among equals, then the smallest.

    ``count`` must be non-decreasing. Several widths can have one count: a gated feed-forward uses two thirds of its
    width, rounded.
    """
    at = functools.cache(count)
    rise = (at(2 * usual) - at(usual)) / usual  # nearly linear; each count builds a model, so keep evaluations few
    guess = usual + round((target - at(usual)) / rise) if rise > 0 else usual
    above = _first(at, target, min(max(1, guess), WIDEST))
    best = above
    if above > 1 and abs(at(above - 1) - target) < abs(at(above) - target):
        best = _first(at, at(above - 1), above - 1)
    return usual if abs(at(usual) - target) <= abs(at(best) - target) else best


def _first(at: Callable[[int], float], target: float, guess: int) -> int:
    """The smallest width whose count reaches ``target``: doubling steps from a guess, then bisection."""
    step, low, high = 1, guess, guess
    while high < WIDEST and at(high) < target:
        low, high, step = high, min(WIDEST, high + step), 2 * step
    while low == high > 1 or (low > 1 and at(low) >= target):
        low, high, step = max(1, low - step), low, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle) >= target else (middle, high)
    return low if at(low) >= target else high


def match_size(arms: Sequence[Arm], what: SizeKind, fits: ZooFit, costs: ConfigMeter) -> list[Arm]:
    """Every variant with ``model.hidden`` solved for the parameters, or FLOPs per token, of the baseline ``arms[0]``.

    Raises UsageError if the model has no ``hidden`` or it is a varied option.
    """
    target = amount(costs.cost(arms[0].point.config), what)
    return [arms[0], *(_match(arm, target, what, fits, costs) for arm in arms[1:])]


def _match(arm: Arm, target: float, what: SizeKind, fits: ZooFit, costs: ConfigMeter) -> Arm:
    options = arm.point.config["model"]["init_args"]
    if "hidden" not in options:
        name = str(arm.point.config["model"]["class_path"]).rpartition(".")[2]
        raise UsageError(f"--match solves for model.hidden, and task {name} has no such option.")
    if any(choice.key == "model.hidden" for choice in arm.variant):
        raise UsageError("--match sets model.hidden, so it cannot be a varied option: remove it from --vary.")

    def count(width: int) -> float:
        model = {**arm.point.config["model"], "init_args": {**options, "hidden": width}}
        return amount(costs.cost({**arm.point.config, "model": model}), what)

    usual = options["hidden"] or 4 * options["dim"]
    width = solve_width(count, target, usual)
    residual = count(width) / target - 1
    noun = "parameters" if what == "params" else "FLOPs per token"
    solved = f"hidden {width}, {noun} {residual:+.3%} from the baseline's"
    words = [] if width == usual else [f"--model.hidden={width}"]
    return replace(arm.with_options(fits, *words, note=f"{variant_text(arm.variant)}: {solved}"), solved=solved)


def amount(cost: Any, what: SizeKind) -> float:
    """The quantity to match: parameters or FLOPs per token."""
    return float(cost.parameters if what == "params" else cost.flops)


def parse_budget(text: str) -> tuple[str, float]:
    """The kind and the amount of a ``--budget``: ``tokens=2M``, ``flops=1e15``, ``time=10m`` (in seconds).

    Raises UsageError for anything else.
    """
    what, equals, value = text.partition("=")
    if what not in BUDGETS or not equals:
        raise UsageError(f"--budget {text!r} is not tokens=2M, flops=1e15 or time=10m.{suggest(what, BUDGETS)}")
    units = TIMES if what == "time" else UNITS
    match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)", value.strip().lower())
    try:
        size = float(match[1]) * units[match[2]] if match else math.nan
    except (KeyError, ValueError):
        size = math.nan
    if not 0 < size < math.inf:
        examples = "10m, 90s, 2h" if what == "time" else "2M, 500k, 1e15"
        raise UsageError(f"--budget {what}: {value!r} is no amount. Such as: {examples}")
    return what, size


def within_budget(arms: Sequence[Arm], comparison: Comparison, fits: ZooFit, costs: ConfigMeter) -> list[Arm]:
    """Every variant with the number of steps that uses up the budget of tokens or FLOPs."""
    if comparison.budget is None:
        return list(arms)
    what, size = parse_budget(comparison.budget)
    result = []
    for arm in arms:
        per_step = costs.tokens_per_step(arm.point.config)
        if what == "flops":
            per_step *= BACKWARD * costs.cost(arm.point.config).flops
        result.append(with_steps(arm, fits, size / per_step, f"{what} {size:g}"))
    return result


def with_steps(arm: Arm, fits: ZooFit, target: float, what: str) -> Arm:
    """The variant with ``floor(target)`` steps; ``what`` names the budget in messages.

    Raises UsageError for less than one step, or if the number of steps is a varied option.
    """
    count = math.floor(target + 1e-9)
    if count < 1:
        raise UsageError(f"--budget: {what} is less than one step of {variant_text(arm.variant)}.")
    if any(choice.key in LENGTHS for choice in arm.variant):
        raise UsageError("--budget sets trainer.max_steps, so it cannot be a varied option: remove it from --vary.")
    words = [f"--trainer.max_steps={count}"]
    if arm.point.config["trainer"].get("max_epochs") not in (None, -1):
        words.append("--trainer.max_epochs=-1")  # it would end the run earlier
    return arm.with_options(fits, *words, note=f"{variant_text(arm.variant)}: {count:,} steps for {what}")


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


def check_sweep(arms: Sequence[Arm], comparison: Comparison, fits: ZooFit, costs: ConfigMeter) -> None:
    """Raise UsageError for a tuned option that changes a size, or a number of steps, that was made equal."""
    if not comparison.tune or not (comparison.match or comparison.budget):
        return
    sweep = sweep_rates(comparison.tune, comparison.vary)
    budget = parse_budget(comparison.budget)[0] if comparison.budget else ""
    for arm, choice in itertools.product(arms, sweep.choices()):
        usual, tuned = arm.point.config, arm.with_options(fits, choice.word).point.config
        option = ""
        if sweep.key.startswith("model."):
            if costs.cost(usual)[:2] != costs.cost(tuned)[:2]:
                option = "--match" if comparison.match else "--budget" if budget != "tokens" else ""
        elif budget and (sweep.key in LENGTHS or costs.tokens_per_step(usual) != costs.tokens_per_step(tuned)):
            option = "--budget"
        if option:
            raise UsageError(f"--tune {sweep.key} does not go with {option}: {choice} changes what that makes equal.")


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
    lack = "failed" if run_records.target_of(tuning.get("at", "")) is None else "ended short of the target"
    sentences = {}
    for variant, tuned in tuning["variants"].items():
        failing = [f"{value} ({count} of {len(seeds)})" for value, count in tuned["failures"].items() if count]
        pieces = [
            f"{name} {tuned['value']}, best of {len(tuned['figures'])} on validation with {many}",
            *(["at the edge of the grid (a better one may lie beyond)"] if tuned["edge"] else []),
            *([f"runs {lack} with {join_words(failing)}"] if failing else []),
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
    left alone. Raises ZooError if all runs of a variant failed, and for a run that has not ended.
    """
    sweeps = [(arm, [(choice, replace(arm.with_options(fits, choice.word), label=f"{arm.label or arm.name} {choice}"))
                     for choice in sweep.choices()]) for arm in arms]  # fmt: skip
    trials = [trial for _, several in sweeps for _, trial in several]
    execute(trials, seeds)
    for job in list_jobs(trials, seeds):
        record = run_records.parse_record(job.folder / run_state.LEDGER)
        if not (record.finished or record.diverged):
            raise ZooError(
                f"--tune {sweep.key}: {job.title} has not ended, and no value is chosen without it: see "
                f"{run_state.path_beside(job.folder, '.log')}\nThe same command tries it again; leave out a "
                "value that cannot be run."
            )
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
            lack = "ended with a figure" if run_records.target_of(at) is None else "reached the target"
            raise ZooError(f"--tune {sweep.key}: no run of {arm.name} {lack}. See the logs beside the runs.")
        winner = next(replace(trial, label=arm.label) for choice, trial in several if choice.value == best)
        winners.append(winner)
        runs = [run for of_value in records.values() for run in of_value]
        example = next((run for run in runs if run.goals), runs[0])
        sign = 1 if is_lower_better(example.goals.get(_goal(example, goal), "min"), at) else -1
        seconds = [second for run in runs if not math.isnan(second := number(run.cost.get("seconds")))]
        cost = TuningCost(len(runs), sum(run.steps for run in runs), sum(seconds))
        variants[winner.name] = {
            "value": best,
            "figures": {value: None if math.isnan(mean) else sign * mean for value, mean in means.items()},
            "failures": failures, "edge": is_at_edge(best, list(means)), "cost": asdict(cost),
        }  # fmt: skip
    return winners, {"option": sweep.key, "seeds": list(seeds), "at": at, "variants": variants}


def is_at_edge(value: str, values: Sequence[str]) -> bool:
    """Whether a value is the smallest or the largest of several numbers; False for values that are no numbers."""
    try:
        numbers = [float(text) for text in values]
    except ValueError:
        return False
    return len(set(numbers)) > 1 and float(value) in (min(numbers), max(numbers))


def score(run: RunRecord, goal: str | None = None, at: str = DECISIVE) -> float:
    """The validation figure of a run, negated if higher is better, or log2 of steps; NaN if it failed."""
    name = _goal(run, goal)
    figure = run.figure(name, at) if name else None
    if figure is None:
        return math.nan
    return figure if is_lower_better(run.goals[name], at) else -figure


def _goal(run: RunRecord, goal: str | None) -> str:
    name = (goal or "").removeprefix("val/")
    return name if name in run.goals else next(iter(run.goals), "")


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if not math.isnan(value)]
    return sum(finite) / len(finite) if finite else math.nan


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
        result.append(with_steps(arm, fits, count, f"{limit:g} s of training"))
    return result
