"""From what was asked to the variants that are run: solved, measured and tuned, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from zoo.compare import lengths, match, plan, tune, variants
from zoo.compare.plan import Arm, Comparison, Fits, Refused
from zoo.compare.tune import Execute
from zoo.errors import UsageError
from zoo.registry import suggest

FEW = 2  # variants that make a comparison


class Meter(match.Costs):
    """What can be known of a configuration without training it."""

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise UsageError where its parts do not fit together."""


@dataclass(frozen=True)
class Prepared:
    """The variants, the baseline first; those that cannot be built; and what was chosen for whom."""

    arms: tuple[Arm, ...]
    refused: tuple[Refused, ...] = ()
    tuned: Mapping[str, str] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """What was made equal, and how nearly."""
        return [note for arm in self.arms for note in arm.notes]


def check(asked: Comparison) -> list[tuple[str, ...]]:
    """The words of every variant for `zoo fit`. Raises UsageError for what needs no torch to be seen as wrong."""
    if asked.match is not None and asked.match not in match.WHATS:
        raise UsageError(
            f"--match {asked.match!r} is none.{suggest(asked.match, match.WHATS)} There are: {', '.join(match.WHATS)}"
        )
    if asked.budget:
        match.budget(asked.budget)
    if asked.tune:
        tune.swept(asked.tune, asked.vary)
    if asked.probe:
        lengths.factors(asked.probe)
    base = variants.baseline(asked.base, asked.vary) if asked.base else ()
    found = variants.arranged(asked.vary, base, asked.design)
    return [(asked.recipe, *asked.options, *(choice.word for choice in variant)) for variant in found]


def prepare(asked: Comparison, fits: Fits, meter: Meter, execute: Execute) -> Prepared:
    """Build every variant, match it, give it its budget and tune it; what that takes is run by ``execute``.

    Raises UsageError where fewer than two variants are left.
    """
    found, refused = plan.arms(asked, fits, meter.check)
    if len(found) < FEW:
        why = f" {refused[0].name}: {refused[0].sentence}" if refused else " The values are the recipe's own."
        raise UsageError(f"there is one variant, {found[0].name}, and nothing to compare it with.{why}")
    if asked.probe:
        lengths.check(found[0].point.config)
    seed = tune.seed_of(asked.seeds)
    if asked.match:
        found = match.matched(found, cast(match.What, asked.match), fits, meter)
    if asked.budget:
        what, size = match.budget(asked.budget)
        if what == "time":
            found = tune.timed(found, size, seed, fits, meter, execute)
        else:
            found = match.budgeted(found, asked, fits, meter)
    tuned: dict[str, str] = {}
    if asked.tune:
        sweep = tune.swept(asked.tune, asked.vary)
        found, tuned = tune.tuned(found, sweep, seed, fits, execute, asked.goal)
    chosen = {arm.name: "; ".join(filter(None, (arm.solved, tuned.get(arm.name)))) for arm in found}
    return Prepared(tuple(found), tuple(refused), {name: sentence for name, sentence in chosen.items() if sentence})
