"""Read what runs wrote about themselves: one ledger.json per run folder, runs/<recipe>/<variant>/s<seed>."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from zoo.errors import UsageError
from zoo.io import limits

LEDGER, CONFIG, FORMAT = "ledger.json", "config.yaml", 1
BETTER = {"min": min, "max": max}


@dataclass(frozen=True)
class Ledger:
    """What one run was and what became of it; ``problem`` says why nothing can be read from it, and is empty else."""

    path: Path
    recipe: str
    variant: str
    seed: int
    choices: Mapping[str, Any] = field(default_factory=dict)
    goals: Mapping[str, str] = field(default_factory=dict)
    unit: str = "token"
    data: Mapping[str, Any] = field(default_factory=dict)
    start: Mapping[str, str] = field(default_factory=dict)
    batches: Mapping[str, Any] = field(default_factory=dict)
    setting: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    validations: Sequence[Mapping[str, Any]] = ()
    steps: int = 0
    tokens: int = 0
    best: Mapping[str, Any] = field(default_factory=dict)
    last: Mapping[str, Any] = field(default_factory=dict)
    finished: bool = False
    diverged: bool = False  # the run says so itself; `lost` also sees it in the figures
    problem: str = ""

    @property
    def name(self) -> str:
        """The run as flags name it: ``position=alibi s3``."""
        return f"{self.variant} s{self.seed}"

    def lost(self, goal: str) -> bool:
        """Whether training diverged: the run says so, or its newest figure is infinite or not a number.

        The best figure from before does not save it: the budget was not spent on anything.
        """
        newest = [self.last, *self.validations[-1:]]
        return self.diverged or any(goal in each and not math.isfinite(number(each[goal])) for each in newest)

    def figure(self, goal: str, at: str = "best") -> float | None:
        """The run's figure for a goal, NaN where it diverged, None where it has none yet."""
        if self.problem:
            return None
        if self.lost(goal):
            return math.nan
        held = self.best if at == "best" else self.last
        return number(held[goal]) if self.finished and goal in held else None


def number(value: Any) -> float:
    """A figure of a ledger; null, which strict JSON writes for it, is not a number."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan


def read(*folders: str | Path) -> list[Ledger]:
    """Every ledger below some folders, by path; runs without a readable one are in the list with their ``problem``.

    Raises UsageError where a folder does not exist or holds no run at all.
    """
    records: dict[Path, Ledger] = {}
    for root in map(Path, folders):
        if not root.is_dir():
            raise UsageError(f"{root} is no folder of runs. Make some: zoo compare RECIPE --vary … --seeds 5")
        below = [
            *(path for path in root.rglob(LEDGER) if path.is_file()),
            *(path.parent / LEDGER for path in root.rglob(CONFIG) if not (path.parent / LEDGER).exists()),
        ]
        if not below:
            raise UsageError(f"{root} holds no run: no {LEDGER} below it. zoo fit writes one into each run's folder.")
        records |= {path.resolve(): parse(path) for path in sorted(below, key=_natural)}
    return list(records.values())


def check_one_task(ledgers: Sequence[Ledger]) -> None:
    """Raise UsageError for runs of tasks that are judged by other figures: no table could compare them."""
    tasks: dict[tuple[str, str], str] = {}
    for one in ledgers:
        if one.goals:
            tasks.setdefault((next(iter(one.goals)), one.unit), one.recipe)
    if len(tasks) > 1:
        shown = "; ".join(f"{recipe} by {goal} per {unit}" for (goal, unit), recipe in tasks.items())
        raise UsageError(f"these runs learn different tasks, which are judged by different figures: {shown}.\n"
                         "Compare runs of one task.")  # fmt: skip


def parse(path: Path) -> Ledger:
    """One ledger; a file that is damaged or somebody else's becomes one that says so."""
    seed = re.fullmatch(r"s(\d+)", path.parent.name)
    variant = path.parent.parent.name if seed else path.parent.name
    recipe = path.parent.parent.parent.name if seed else path.parent.parent.name

    def failed(why: str) -> Ledger:
        return Ledger(path, recipe, variant, int(seed.group(1)) if seed else 0, problem=why)

    try:
        content = limits.json_file(path)
    except FileNotFoundError:
        return failed(f"{path.parent} has no {LEDGER}: it saved none yet, or an older zoo made it")
    except (OSError, ValueError) as error:
        return failed(f"{path} is damaged: {' '.join(str(error).split())}")
    if not isinstance(content, dict) or "format" not in content or "variant" not in content:
        return failed(f"{path} is no ledger of zoo")
    if content["format"] != FORMAT:
        return failed(f"{path} has format {content['format']!r}, and this zoo reads format {FORMAT}")
    wrong = [name for name, kind in KINDS.items() if name in content and not isinstance(content[name], kind)]
    missing = [name for name in ("recipe", "seed", "goals", "tokens", "finished") if name not in content]
    goals = content.get("goals")
    if wrong or missing or not goals or not all(goal in ("min", "max") for goal in goals.values()):
        return failed(f"{path} is damaged: no valid {', '.join([*missing, *wrong]) or 'goals'}")
    if not all(isinstance(each, dict) for each in content.get("validations", ())):
        return failed(f"{path} is damaged: no valid validations")
    return Ledger(path, **{name: content[name] for name in KINDS if name in content})


KINDS: dict[str, type | tuple[type, ...]] = {
    "recipe": str, "variant": str, "seed": int, "unit": str, "steps": int, "tokens": (int, float), "finished": bool,
    "diverged": bool, "validations": list,
    **dict.fromkeys(("choices", "goals", "data", "start", "batches", "setting", "cost", "best", "last"), dict),
}  # fmt: skip
assert set(KINDS) <= {each.name for each in fields(Ledger)}


def grouped(ledgers: Iterable[Ledger]) -> dict[str, dict[int, Ledger]]:
    """Readable ledgers as variant → seed → ledger; ``recipe/variant`` where there are several recipes.

    Of two runs of one variant and seed the finished one counts, then the first; `twins` names the others.
    """
    readable = [ledger for ledger in ledgers if not ledger.problem]
    several = len({ledger.recipe for ledger in readable}) > 1
    groups: dict[str, dict[int, Ledger]] = {}
    for ledger in readable:
        seeds = groups.setdefault(f"{ledger.recipe}/{ledger.variant}" if several else ledger.variant, {})
        held = seeds.get(ledger.seed)
        if held is None or (ledger.finished and not held.finished):
            seeds[ledger.seed] = ledger
    return {name: dict(sorted(seeds.items())) for name, seeds in groups.items()}


def twins(ledgers: Iterable[Ledger]) -> list[Ledger]:
    """The runs that `grouped` leaves out because another has the same recipe, variant and seed."""
    listed = list(ledgers)
    used = {id(ledger) for seeds in grouped(listed).values() for ledger in seeds.values()}
    return [ledger for ledger in listed if not ledger.problem and id(ledger) not in used]


def _natural(path: Path) -> list[object]:
    """Sorts s2 before s10, and position=alibi before position=rope."""
    return [[int(piece) if piece.isdigit() else 0, piece] for piece in re.split(r"(\d+)", str(path))]
