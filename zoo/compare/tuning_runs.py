"""Preparatory runs: tune an option per variant on a separate seed, and measure the speed for a time budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zoo.compare import matched_sizes, run_records
from zoo.compare.plan import Arm, Fits
from zoo.compare.variants import Choice, Factor, parse_factor
from zoo.errors import UsageError, ZooError

PROBE = ("--trainer.max_steps=100", "--trainer.log_every_n_steps=10", "--trainer.limit_val_batches=1")
Execute = Callable[[Sequence[Arm], Sequence[int]], object]  # runs variants with seeds


def tuning_seed(seeds: Sequence[int]) -> int:
    """A seed that is not compared: tuned values must not be judged by the runs that selected them."""
    return next(number for number in (0, *range(max(seeds) + 1, max(seeds) + 2)) if number not in seeds)


def sweep_rates(text: str, varied: Sequence[Factor]) -> Factor:
    """The option and values of ``--tune model.lr=1e-3,3e-3``. Raises UsageError if invalid or a varied option."""
    try:
        one = parse_factor(text)
    except UsageError as error:
        raise UsageError(str(error).replace("--vary", "--tune")) from error
    if one.key in [other.key for other in varied]:
        raise UsageError(f"--tune {one.key}: it is a varied option (--vary) and cannot be tuned for each variant.")
    return one


def trials(arm: Arm, sweep: Factor, fits: Fits) -> list[tuple[Choice, Arm]]:
    """A variant with each value of the sweep."""
    return [(choice, arm.with_options(fits, choice.word)) for choice in sweep.choices()]


def tune_variants(
    arms: Sequence[Arm], sweep: Factor, seed: int, fits: Fits, execute: Execute, goal: str | None = None
) -> tuple[list[Arm], dict[str, str]]:
    """Every variant with the value that was best on validation, and by new variant name a sentence about it.

    Raises ZooError if all values of a variant failed.
    """
    sweeps = [(arm, trials(arm, sweep, fits)) for arm in arms]
    execute([trial for _, several in sweeps for _, trial in several], [seed])
    winners, sentences = [], {}
    for arm, several in sweeps:
        scores = {choice: score(trial, seed, goal) for choice, trial in several}
        finite = {choice: value for choice, value in scores.items() if value is not None}
        if not finite:
            raise ZooError(
                f"--tune {sweep.key}: no run of {arm.name} ended with a figure. See the logs beside the runs."
            )
        best = min(finite, key=lambda choice: finite[choice])
        winner = next(trial for choice, trial in several if choice == best)
        winners.append(winner)
        edge = ", at the edge of the sweep" if len(finite) > 2 and best in (several[0][0], several[-1][0]) else ""
        sentences[winner.name] = (
            f"{best.key.rpartition('.')[2]} {best.value}, best of {len(finite)} on validation{edge}"
        )
    return winners, sentences


def score(arm: Arm, seed: int, goal: str | None = None) -> float | None:
    """The best validation figure of a run, negated if higher is better; None if there is none or the run diverged."""
    record = run_records.read_record(arm.point.folder(seed))
    goals = record.get("goals") or {}
    name = goal if goal in goals else next(iter(goals), "")
    best, last = (record.get(part, {}).get(name) for part in ("best", "last"))
    if not record.get("finished") or not isinstance(best, (int, float)) or not isinstance(last, (int, float)):
        return None
    return float(best) if goals[name] == "min" else -float(best)


def steps_within_time(
    arms: Sequence[Arm], limit: float, seed: int, fits: Fits, costs: matched_sizes.Costs, execute: Execute
) -> list[Arm]:
    """Every variant with the number of steps that it trains in ``limit`` seconds without validation.

    A short run per variant measures its speed. Raises ZooError if such a run failed.
    """
    probes = [arm.with_options(fits, *PROBE) for arm in arms]
    execute(probes, [seed])
    result = []
    for arm, probe in zip(arms, probes, strict=True):
        folder = probe.point.folder(seed)
        speed = run_records.read_record(folder).get("cost", {}).get("tokens_per_s")
        if not isinstance(speed, (int, float)) or not speed > 0:
            raise ZooError(f"--budget time: {arm.name} did not run. See {run_records.path_beside(folder, '.log')}")
        count = limit * speed / costs.tokens_per_step(arm.point.config)
        result.append(matched_sizes.with_steps(arm, fits, count, f"{limit:g} s of training"))
    return result
