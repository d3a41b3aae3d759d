"""Make variants equal where they are not: parameters or FLOPs by the width of the feed-forward, and the budget."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, get_args

from zoo.compare.plan import Arm, Comparison, Fits
from zoo.compare.variants import called
from zoo.errors import UsageError
from zoo.registry import suggest

What = Literal["params", "flops"]
WHATS = get_args(What)
BUDGETS = ("tokens", "flops", "time")
WIDEST = 1 << 20
BACKWARD = 3  # a training step costs this many forwards: the gradient of a product is two products
UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "": 1.0}
TIMES = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "": 1.0}


class Costs(Protocol):
    """What `zoo.compare.measure_model.Meter` counts."""

    def cost(self, config: Mapping[str, Any]) -> Any: ...

    def tokens_per_step(self, config: Mapping[str, Any]) -> float: ...


def solve(count: Callable[[int], float], target: float, usual: int) -> int:
    """The width whose count is nearest to ``target``; ``usual`` where it is as near. ``count`` must not fall.

    A gated feed-forward uses two thirds of its width, so that several have one count: the smallest of them.
    """
    at = functools.cache(count)
    rise = (at(2 * usual) - at(usual)) / usual  # nearly a straight line: a model is built for every count, so few help
    guess = usual + round((target - at(usual)) / rise) if rise > 0 else usual
    above = _first(at, target, min(max(1, guess), WIDEST))
    best = above
    if above > 1 and abs(at(above - 1) - target) < abs(at(above) - target):
        best = _first(at, at(above - 1), above - 1)
    return usual if abs(at(usual) - target) <= abs(at(best) - target) else best


def _first(at: Callable[[int], float], target: float, guess: int) -> int:
    """The smallest width whose count reaches ``target``, in steps from a guess that double."""
    step, low, high = 1, guess, guess
    while high < WIDEST and at(high) < target:
        low, high, step = high, min(WIDEST, high + step), 2 * step
    while low == high > 1 or (low > 1 and at(low) >= target):
        low, high, step = max(1, low - step), low, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle) >= target else (middle, high)
    return low if at(low) >= target else high


def match_size(arms: Sequence[Arm], what: What, fits: Fits, costs: Costs) -> list[Arm]:
    """Every variant with ``model.hidden`` such that it has the baseline's parameters, or FLOPs per token.

    Raises UsageError for a model without that width, and where it varies itself.
    """
    target = amount(costs.cost(arms[0].point.config), what)
    return [arms[0], *(_match(arm, target, what, fits, costs) for arm in arms[1:])]


def _match(arm: Arm, target: float, what: What, fits: Fits, costs: Costs) -> Arm:
    options = arm.point.config["model"]["init_args"]
    if "hidden" not in options:
        name = str(arm.point.config["model"]["class_path"]).rpartition(".")[2]
        raise UsageError(f"--match solves for model.hidden, which task {name} has not.")
    if any(choice.key == "model.hidden" for choice in arm.variant):
        raise UsageError("--match solves for model.hidden: it cannot vary itself.")

    def count(width: int) -> float:
        model = {**arm.point.config["model"], "init_args": {**options, "hidden": width}}
        return amount(costs.cost({**arm.point.config, "model": model}), what)

    usual = options["hidden"] or 4 * options["dim"]
    width = solve(count, target, usual)
    residual = count(width) / target - 1
    noun = "parameters" if what == "params" else "FLOPs per token"
    solved = f"hidden {width}, {noun} {residual:+.3%} from the baseline's"
    words = [] if width == usual else [f"--model.hidden={width}"]
    return replace(arm.given(fits, *words, note=f"{called(arm.variant)}: {solved}"), solved=solved)


def amount(cost: Any, what: What) -> float:
    """What is to be equal."""
    return float(cost.parameters if what == "params" else cost.flops)


def budget(text: str) -> tuple[str, float]:
    """`tokens=2M`, `flops=1e15`, `time=10m` as what and how much; seconds for a time."""
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


def within_budget(arms: Sequence[Arm], comparison: Comparison, fits: Fits, costs: Costs) -> list[Arm]:
    """Every variant with as many steps as its budget of tokens or FLOPs buys."""
    if comparison.budget is None:
        return list(arms)
    what, size = budget(comparison.budget)
    done = []
    for arm in arms:
        per_step = costs.tokens_per_step(arm.point.config)
        if what == "flops":
            per_step *= BACKWARD * costs.cost(arm.point.config).flops
        done.append(steps(arm, fits, size / per_step, f"{what} {size:g}"))
    return done


def steps(arm: Arm, fits: Fits, wanted: float, what: str) -> Arm:
    """The variant with a number of steps. Raises UsageError for less than one, and where they vary themselves."""
    count = math.floor(wanted + 1e-9)
    if count < 1:
        raise UsageError(f"--budget: {what} does not buy {called(arm.variant)} a single step.")
    if any(choice.key in ("trainer.max_steps", "trainer.max_epochs") for choice in arm.variant):
        raise UsageError("--budget sets trainer.max_steps: it cannot vary itself.")
    words = [f"--trainer.max_steps={count}"]
    if arm.point.config["trainer"].get("max_epochs") not in (None, -1):
        words.append("--trainer.max_epochs=-1")  # it would end the run earlier
    return arm.given(fits, *words, note=f"{called(arm.variant)}: {count:,} steps for {what}")
