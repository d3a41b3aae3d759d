"""The contract of a schedule: a factor on the learning rate that is a function of the step alone."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools

import numpy as np
import torch

from zoo.conformance.check import Inapplicable, once, require
from zoo.conformance.subject import ScheduleSubject
from zoo.conformance.token_checks import clean_import, documentation, reloaded, unknown_options_are_refused
from zoo.errors import UsageError
from zoo.tasks.schedule import Schedule

TOTALS = (1, 2, 7, 100, 1000)  # steps of a run


def finite_factors(subject: ScheduleSubject) -> None:
    """At every step of a run of any length, and at those after it, the factor is finite and not negative."""
    for total in TOTALS:
        schedule = subject.build(total)
        for step in range(total + 3):
            factor = schedule(step)
            fine = isinstance(factor, (int, float)) and factor == factor and abs(factor) != float("inf")
            require(fine, f"at step {step} of {total} the factor is {factor!r}, not a finite number.")
            require(factor >= 0, f"at step {step} of {total} the factor is {factor}: a rate is not negative.")


def learns(subject: ScheduleSubject) -> None:
    """The first step learns, and at some step of a run the rate is the learning rate itself, which is its peak."""
    for total in TOTALS:
        schedule = subject.build(total)
        factors = [schedule(step) for step in range(total)]
        require(factors[0] > 0, f"of {total} steps the first one has the factor {factors[0]}: count from step + 1.")
        if "warmup" not in subject.options and total >= 100:
            peak = max(factors)
            message = f"of {total} steps the largest factor is {peak:.3g}: --model.lr is the peak."
            require(abs(peak - 1) <= 0.05, message)


def step_alone(subject: ScheduleSubject) -> None:
    """The factor depends on the step alone, not on the calls before: a resumed run asks for later steps only."""
    schedule = subject.build(50)
    forward = [schedule(step) for step in range(50)]
    late = subject.build(50)
    require([late(step) for step in range(30, 50)] == forward[30:], "starting at step 30 gives other factors.")
    backward = [schedule(step) for step in reversed(range(50))][::-1]
    require(backward == forward, "a step's factor depends on which steps were asked for before.")
    state = torch.get_rng_state()
    schedule(3)
    require(torch.equal(torch.get_rng_state(), state), "it draws random numbers.")


@once
def warms_up(subject: ScheduleSubject) -> None:
    """Where it has an option ``warmup``, the factor rises over so many steps and then is at its largest."""
    if "warmup" not in subject.option_names():
        return
    schedule = subject.changed(warmup=20).build(100)
    factors = [schedule(step) for step in range(100)]
    rising = all(a < b for a, b in itertools.pairwise(factors[:20]))
    require(rising, "with --warmup 20 the factor does not rise in each of the first 20 steps.")
    require(max(factors) <= factors[19] + 1e-6, "the factor is larger later than at the end of the warm-up.")
    for total in (1, 5):
        schedule = subject.changed(warmup=20).build(total)
        require(all(0 <= schedule(step) <= 1 for step in range(total)), f"a warm-up longer than {total} steps fails.")


def falls_without_jumps(subject: ScheduleSubject) -> None:
    """After its peak the factor neither rises nor jumps, unless an option or ``restarts = True`` says that it does."""
    if getattr(subject.part, "restarts", False):
        raise Inapplicable("it declares restarts = True")
    defaults = {name: parameter.default for name, parameter in inspect.signature(subject.part).parameters.items()}
    free = {"warmup": 50} if "warmup" in defaults and "warmup" not in subject.options else {}
    turns = breaks(subject.changed(**free).build(1000))
    for name, value in (defaults | subject.options).items():
        if name not in ("warmup", "total") and type(value) in (int, tuple, list):
            for alternative in (value[:-1],) if isinstance(value, (tuple, list)) else (value + 1, value + 40):
                with contextlib.suppress(UsageError, ValueError):
                    if breaks(subject.changed(**free, **{name: alternative}).build(1000)) != turns:
                        return
    step, what = next(iter(turns.items()), (0, ""))
    advice = "say by an option where or how often, or declare restarts = True"
    require(not turns, f"at step {step} of 1000 the factor {what} after its peak: {advice}.")


def breaks(schedule: Schedule) -> dict[int, str]:
    """The steps at which a schedule rises after it has fallen, or jumps by far more than before and afterwards."""
    factors = np.array([schedule(step) for step in range(1003)])
    change = np.diff(factors)
    fallen = np.maximum.accumulate(factors)[:-1] - factors[:-1] > 1e-6
    around = np.maximum(np.abs(np.append(change[1:], 0)), np.abs(np.insert(change[:-1], 0, 0)))
    jumps = (np.abs(change) > 0.01) & (np.abs(change) > 5 * around)
    steps = np.flatnonzero((fallen & (change > 1e-6)) | jumps)
    return {int(step) + 1: "rises" if change[step] > 0 else "jumps" for step in steps}


def plain_state(subject: ScheduleSubject) -> None:
    """Its attributes are plain values, as a checkpoint holds them, and a copy with these gives the same factors."""
    schedule = subject.build(50)
    fresh = subject.build(70)
    vars(fresh).update(reloaded(dict(vars(schedule)), "a checkpoint cannot hold its attributes"))
    for twin, way in ((copy.deepcopy(schedule), "a copy"), (fresh, "one with the attributes of a checkpoint")):
        same = [twin(step) for step in range(50)] == [schedule(step) for step in range(50)]
        require(same, f"{way} gives other factors.")


PROMISES = [documentation, unknown_options_are_refused, clean_import, finite_factors, learns, step_alone, warms_up,
            falls_without_jumps, plain_state]  # fmt: skip
