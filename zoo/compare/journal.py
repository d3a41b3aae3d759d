"""The journal of a comparison, journal.jsonl in its folder: what was asked before its runs, and every look at them.

One line of JSON per event, appended and never changed, so that a choice made after a look can be told from one before.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from zoo.config.run_folder import slug
from zoo.errors import StorageError, UsageError
from zoo.io import atomic_files, limits

FILE = "journal.jsonl"
PLAN, LOOK = "plan", "look"
CHOICES = {"goal": "the goal", "at": "--at", "baseline": "the baseline", "margin": "--margin", "test": "--test"}
TESTED = ("better", "worse", "as good as", "not distinguishable")


@dataclass(frozen=True)
class Question:
    """What a comparison asks: the figure that decides and when it is taken, the baseline, and the seeds."""

    goal: str
    at: str
    baseline: str
    seeds: tuple[int, ...]
    variants: tuple[str, ...] = ()  # empty in journals that do not say
    margin: float | None = None
    test: str = "t"


@dataclass(frozen=True)
class Event:
    """A line of the journal: ``what`` is PLAN or LOOK, ``ended_runs`` the number of runs that had ended by then."""

    what: str
    question: Question
    ended_runs: int
    details: Mapping[str, Any]


def append_event(home: Path, event: Event) -> None:
    """Append an event, and wait until it is on disk. Raises StorageError where that fails."""
    line = {
        "event": event.what, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **asdict(event.question),
        "ended_runs": event.ended_runs, **event.details,
    }  # fmt: skip
    path = home / FILE
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / ".journal.lock"), path.open("ab") as file:
            whole = not file.tell() or path.read_bytes().endswith(b"\n")  # a kill may have cut the last line short
            file.write(b"" if whole else b"\n")
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(f"the journal of the comparison cannot be written: {atomic_files.reason(error)}") from error


def read_events(home: Path) -> list[Event]:
    """The events of a journal, the first one first; a line that a kill has cut short is left out."""
    events = []
    try:
        lines = limits.read_text(home / FILE, limits.JSON_BYTES).splitlines()
    except (OSError, UsageError):
        return []
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            content = json.loads(line)
            question = Question(
                str(content.pop("goal")), str(content.pop("at")), str(content.pop("baseline")),
                tuple(int(seed) for seed in content.pop("seeds")),
                tuple(str(name) for name in content.pop("variants", ())), content.pop("margin", None),
                str(content.pop("test", "t")),
            )  # fmt: skip
            events.append(Event(str(content.pop("event")), question, int(content.pop("ended_runs")), content))
    return events


def has_tested(events: Sequence[Event], variants: Collection[str]) -> bool:
    """Whether an earlier look has tested two of these variants, the baseline among them."""
    words = [event.details.get("verdicts", {}) for event in events if event.what == LOOK]
    return any(set(each.values()) & set(TESTED) and len(set(each) & set(variants)) > 1 for each in words)


def plans_before_runs(events: Sequence[Event]) -> list[Question]:
    """The questions that were asked before any run had ended, and so before any look."""
    result = []
    for event in events:
        if event.ended_runs:
            break
        result.append(event.question)
    return result


def choices_after_looking(events: Sequence[Event], question: Question) -> tuple[str, ...] | None:
    """What of a question was chosen when runs had ended already, as phrases; None without a journal."""
    if not events:
        return None
    plans = plans_before_runs(events)
    if not plans:
        return (f"the comparison itself, when {events[0].ended_runs} of its runs had ended",)
    looks = sum(event.what == LOOK and event.ended_runs > 0 for event in events)
    often = f"after {looks} look{'s' * (looks != 1)}"
    phrases = []
    for name, word in CHOICES.items():
        value, before = getattr(question, name), list(dict.fromkeys(getattr(plan, name) for plan in plans))
        if value not in before:
            phrases.append(
                f"{word} {value or 'none'} instead of {' or '.join(str(one or 'none') for one in before)} {often}"
            )
    planned_variants = {name for plan in plans for name in plan.variants}
    looked_at = {name for event in events if event.what == LOOK for name in event.question.variants}
    added_variants = [name for name in question.variants if planned_variants and name not in planned_variants]
    removed_variants = sorted(looked_at - set(question.variants))
    changes = [f"{verb} {', '.join(names)}" for verb, names in
               (("added", added_variants), ("left out", removed_variants)) if names]  # fmt: skip
    if changes:
        phrases.append(f"variants, of which {' and '.join(changes)} {often}")
    if set(question.seeds) not in [set(plan.seeds) for plan in plans]:
        planned = max((set(plan.seeds) for plan in plans), key=len)
        added, removed = sorted(set(question.seeds) - planned), sorted(planned - set(question.seeds))
        changes = [f"{verb} {list_seeds(seeds)}" for verb, seeds in (("added", added), ("left out", removed)) if seeds]
        phrases.append(f"seeds, of which {' and '.join(changes)} {often}")
    return tuple(phrases)


def list_seeds(seeds: Sequence[int]) -> str:
    """``6 to 10`` for consecutive seeds, else ``1, 2, 7``."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def report_folder(home: Path, events: Sequence[Event], question: Question) -> Path:
    """Where the report on a question goes: into the folder itself for the first one, for others into one of its own.

    Its name has what differs from the first question: ``goal=bits_per_byte,seeds=1-2-3``.
    """
    if not events:
        return home
    first = events[0].question
    seeds = slug(list_seeds(question.seeds).replace(", ", "-").replace(" to ", "-"))
    pieces = [f"{name}={slug(str(getattr(question, name) or 'none'))}" for name in CHOICES
              if getattr(question, name) != getattr(first, name)]  # fmt: skip
    if first.variants and set(question.variants) != set(first.variants):
        pieces.append(f"variants={slug('+'.join(sorted(question.variants)))[:80]}")
    pieces += [f"seeds={seeds}"] if set(question.seeds) != set(first.seeds) else []
    return home / ",".join(pieces) if pieces else home
