"""Equal sizes and budgets: solve the feed-forward width for equal parameters or FLOPs, and steps for equal budgets."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from zoo.compare.plan import Arm, Comparison, ZooFit
from zoo.compare.variants import variant_text
from zoo.errors import UsageError
from zoo.registry import suggest

if TYPE_CHECKING:
    from zoo.training.config_meter import ConfigMeter

SizeKind = Literal["params", "flops"]
SIZE_KINDS = get_args(SizeKind)
BUDGETS = ("tokens", "flops", "time")
WIDEST = 1 << 20
BACKWARD = 3  # cost of a training step in forward passes: the gradient of a matrix product is two products
UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "": 1.0}
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
    if any(choice.key in ("trainer.max_steps", "trainer.max_epochs") for choice in arm.variant):
        raise UsageError("--budget sets trainer.max_steps, so it cannot be a varied option: remove it from --vary.")
    words = [f"--trainer.max_steps={count}"]
    if arm.point.config["trainer"].get("max_epochs") not in (None, -1):
        words.append("--trainer.max_epochs=-1")  # it would end the run earlier
    return arm.with_options(fits, *words, note=f"{variant_text(arm.variant)}: {count:,} steps for {what}")
