"""Runs before the runs: a sweep per variant on a seed of its own, and the speed that a budget of time needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zoo.compare import matched_sizes, run_state
from zoo.compare.plan import Arm, Fits
from zoo.compare.variants import Choice, Factor, factor
from zoo.errors import UsageError, ZooError

PROBE = ("--trainer.max_steps=100", "--trainer.log_every_n_steps=10", "--trainer.limit_val_batches=1")
Execute = Callable[[Sequence[Arm], Sequence[int]], object]  # runs variants with seeds


def seed_of(seeds: Sequence[int]) -> int:
    """A seed that is not among the compared ones: what was chosen on a run must not be judged by it."""
    return next(number for number in (0, *range(max(seeds) + 1, max(seeds) + 2)) if number not in seeds)


def sweep_rates(text: str, varied: Sequence[Factor]) -> Factor:
    """What `--tune model.lr=1e-3,3e-3` says. Raises UsageError where it is what varies."""
    try:
        one = factor(text)
    except UsageError as error:
        raise UsageError(str(error).replace("--vary", "--tune")) from error
    if one.key in [other.key for other in varied]:
        raise UsageError(f"--tune {one.key}: it varies, and cannot be chosen for each variant too.")
    return one


def trials(arm: Arm, sweep: Factor, fits: Fits) -> list[tuple[Choice, Arm]]:
    """A variant with each value."""
    return [(choice, arm.given(fits, choice.word)) for choice in sweep.choices()]


def tune_variants(
    arms: Sequence[Arm], sweep: Factor, seed: int, fits: Fits, execute: Execute, goal: str | None = None
) -> tuple[list[Arm], dict[str, str]]:
    """Every variant with the value that was best on validation, and a sentence about it by the variant's new name.

    Raises ZooError where all values of a variant failed.
    """
    tried = [(arm, trials(arm, sweep, fits)) for arm in arms]
    execute([trial for _, several in tried for _, trial in several], [seed])
    chosen, sentences = [], {}
    for arm, several in tried:
        scores = {choice: score(trial, seed, goal) for choice, trial in several}
        finite = {choice: value for choice, value in scores.items() if value is not None}
        if not finite:
            raise ZooError(
                f"--tune {sweep.key}: no run of {arm.name} ended with a figure. See the logs beside the runs."
            )
        best = min(finite, key=lambda choice: finite[choice])
        winner = next(trial for choice, trial in several if choice == best)
        chosen.append(winner)
        edge = ", at the edge of the sweep" if len(finite) > 2 and best in (several[0][0], several[-1][0]) else ""
        sentences[winner.name] = (
            f"{best.key.rpartition('.')[2]} {best.value}, best of {len(finite)} on validation{edge}"
        )
    return chosen, sentences


def score(arm: Arm, seed: int, goal: str | None = None) -> float | None:
    """The best validation figure of a run, small for good; None where there is none or the run diverged."""
    record = run_state.ledger(arm.point.folder(seed))
    goals = record.get("goals") or {}
    name = goal if goal in goals else next(iter(goals), "")
    best, last = (record.get(part, {}).get(name) for part in ("best", "last"))
    if not record.get("finished") or not isinstance(best, (int, float)) or not isinstance(last, (int, float)):
        return None
    return float(best) if goals[name] == "min" else -float(best)


def steps_within_time(
    arms: Sequence[Arm], limit: float, seed: int, fits: Fits, costs: matched_sizes.Costs, execute: Execute
) -> list[Arm]:
    """Every variant with as many steps as it trains in ``limit`` seconds, validation aside, by a run that measures it.

    Raises ZooError where such a run failed.
    """
    probes = [arm.given(fits, *PROBE) for arm in arms]
    execute(probes, [seed])
    done = []
    for arm, probe in zip(arms, probes, strict=True):
        folder = probe.point.folder(seed)
        speed = run_state.ledger(folder).get("cost", {}).get("tokens_per_s")
        if not isinstance(speed, (int, float)) or not speed > 0:
            raise ZooError(f"--budget time: {arm.name} did not run. See {run_state.path_beside(folder, '.log')}")
        count = limit * speed / costs.tokens_per_step(arm.point.config)
        done.append(matched_sizes.steps(arm, fits, count, f"{limit:g} s of training"))
    return done
