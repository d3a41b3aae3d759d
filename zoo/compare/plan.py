"""What a comparison is, and which runs it takes. Needs no torch by itself."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from zoo.compare import run_state, variants
from zoo.compare.execute import Job
from zoo.compare.variant_names import concise
from zoo.compare.variants import Factor, Variant
from zoo.errors import UsageError
from zoo.io.locks import Lock

START = 8.0  # seconds until a run trains: the imports of torch and Lightning


@dataclass(frozen=True)
class Comparison:
    """What was asked: a recipe, options for every run, what varies, and how it is done fairly."""

    recipe: str
    vary: tuple[Factor, ...]
    options: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    base: str | None = None
    design: str | None = None
    budget: str | None = None
    match: str | None = None
    tune: str | None = None
    probe: str | None = None
    goal: str | None = None
    name: str = ""  # of its folder; what varies unless given

    def __post_init__(self) -> None:
        if not self.vary:
            raise UsageError("nothing varies: --vary OPTION=VALUE,VALUE such as --vary model.position=rope,alibi")

    @property
    def title(self) -> str:
        """The name of the comparison's folder."""
        return self.name or "+".join(one.key.rpartition(".")[2] for one in self.vary)


@dataclass(frozen=True)
class Point:
    """What `zoo fit` makes of some words: where its runs go, and the whole configuration."""

    root: Path
    recipe: str
    variant: str
    config: Mapping[str, Any]

    def folder(self, seed: int) -> Path:
        return self.root / self.recipe / self.variant / f"s{seed}"


class Fits(Protocol):
    """The command `zoo fit`, asked and not run."""

    def point(self, words: Sequence[str]) -> Point:
        """The configuration of a recipe and options. Raises UsageError as `zoo fit` does."""

    def changes(self, point: Point, folder: Path) -> list[str]:
        """In what the configuration differs from that of a run that exists already: `model.lr was 0.1 and is 0.2`."""


@dataclass(frozen=True)
class Arm:
    """A variant, ready to be run: its words for `zoo fit`, what they mean, and what was solved or chosen for it."""

    variant: Variant
    words: tuple[str, ...]
    point: Point
    notes: tuple[str, ...] = ()
    solved: str = ""  # "hidden 258, parameters -0.097% from the baseline's"

    @property
    def name(self) -> str:
        """The variant as its folder and the tables call it."""
        return self.point.variant

    def job(self, seed: int, shown: str = "", goal: str | None = None) -> Job:
        """The run of one seed, ``shown`` under a shorter name where one tells it apart."""
        words = (*self.words, f"--seed={seed}", f"--runs={self.point.root}")
        return Job(f"{shown or self.name} s{seed}", self.point.folder(seed), words, goal or "")

    def given(self, fits: Fits, *words: str, note: str = "") -> Arm:
        """The same with more options."""
        if not words:
            return replace(self, notes=(*self.notes, note) if note else self.notes)
        every = (*self.words, *words)
        return replace(self, words=every, point=fits.point(every), notes=(*self.notes, note) if note else self.notes)


@dataclass(frozen=True)
class Refused:
    """A variant that cannot be built, and the model's sentence about it."""

    name: str
    sentence: str


def arms(
    comparison: Comparison, fits: Fits, check: Callable[[Mapping[str, Any]], None]
) -> tuple[list[Arm], list[Refused]]:
    """Every variant once, the baseline first, and those whose parts do not fit together.

    Raises UsageError for an option that does not exist, and where the baseline itself cannot be built.
    """
    base = variants.baseline(comparison.base, comparison.vary) if comparison.base else ()
    by_name: dict[str, Arm] = {}
    refused: list[Refused] = []
    for variant in variants.arranged(comparison.vary, base, comparison.design):
        words = (comparison.recipe, *comparison.options, *(choice.word for choice in variant))
        arm = Arm(variant, words, fits.point(words))
        other = by_name.get(arm.name)
        if other is not None and other.point.config != arm.point.config:
            raise UsageError(
                f"{variants.called(variant)} and {variants.called(other.variant)} would both be called {arm.name}, and "
                "their runs lie in one folder.\nA name has the last part of a path, and no option that says only "
                "where or how a run happens."
            )
        if other is not None or arm.name in [one.name for one in refused]:
            continue
        try:
            check(arm.point.config)
        except UsageError as error:
            if not by_name:
                raise type(error)(f"the baseline, {variants.called(variant)}: {error}") from error
            refused.append(Refused(arm.name, str(error).splitlines()[0]))
            continue
        by_name[arm.name] = arm
    return list(by_name.values()), refused


def jobs(arms: Sequence[Arm], seeds: Sequence[int], goal: str | None = None) -> list[Job]:
    """Every run, seed by seed: what is there at any time covers all variants alike."""
    shown = concise(arm.name for arm in arms)
    return [arm.job(seed, shown[arm.name], goal) for seed in seeds for arm in arms]


def verify(arms: Sequence[Arm], seeds: Sequence[int], fits: Fits) -> None:
    """Raise UsageError for a run that exists and was made with another configuration, or without a ledger."""
    for arm in arms:
        for seed in seeds:
            folder = arm.point.folder(seed)
            if run_state.unrecorded(folder):
                raise UsageError(
                    f"{folder} was finished by an older zoo, which kept no {run_state.LEDGER}: "
                    "nothing can be read there.\n"
                    "Move it away, or put the runs elsewhere: --runs DIR"
                )
            changed = fits.changes(arm.point, folder)
            if changed:
                more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
                raise UsageError(
                    f"{folder} was made with another configuration: {changed[0]}{more}.\n"
                    "Move it away, or put the runs elsewhere: --runs DIR"
                )


def take_shard(jobs: Sequence[Job], shard: str | None) -> list[Job]:
    """The runs of one of several shares, `2/4`. Raises UsageError for what is no share."""
    if shard is None:
        return list(jobs)
    number, slash, count = shard.partition("/")
    if not slash or not number.isdecimal() or not count.isdecimal() or not 1 <= int(number) <= int(count):
        raise UsageError(f"--shard {shard!r} is not I/N, such as 1/4 to 4/4.")
    return [job for index, job in enumerate(jobs) if index % int(count) == int(number) - 1]


@dataclass(frozen=True)
class Step:
    """A run and its state, as a plan shows it."""

    job: Job
    state: str


def steps(jobs: Sequence[Job]) -> list[Step]:
    """finished, running (somebody holds its lock), continue, or missing."""
    result = []
    for job in jobs:
        at = run_state.read_state(job.folder)
        if at != "finished" and Lock(run_state.path_beside(job.folder, ".lock")).holder() is not None:
            result.append(Step(job, "running"))
        else:
            result.append(Step(job, "missing" if at == "started" else at))
    return result


def seconds(steps: Sequence[Step], length: Mapping[str, int | None], root: Path) -> float | None:
    """How long the unfinished runs take, one after another; None where no run below ``root`` is finished to tell.

    ``length`` is the number of steps of each variant, None where an epoch's end decides.
    """
    paces: dict[str, list[float]] = {}
    whole: list[float] = []
    for path in root.glob(f"*/*/{run_state.LEDGER}"):
        record = run_state.ledger(path.parent)
        took, count = record.get("cost", {}).get("seconds"), record.get("steps")
        if record.get("finished") and isinstance(took, (int, float)) and isinstance(count, int) and count:
            paces.setdefault(path.parent.parent.name, []).append(took / count)
            whole.append(took)
    left = [step.job.folder.parent.name for step in steps if step.state != "finished"]
    if not left or not paces:
        return None if left else 0.0
    usual = statistics.median(pace for steps in paces.values() for pace in steps)
    total = 0.0
    for name in left:
        count, pace = length.get(name), statistics.median(paces[name]) if name in paces else usual
        total += START + (pace * count if count else statistics.median(whole))
    return total
