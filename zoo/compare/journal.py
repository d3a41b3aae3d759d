"""The journal of a comparison, journal.jsonl in its folder: what was asked before its runs, and every look at them.

One line of JSON per event, appended and never changed, so that a choice made after a look can be told from one before.
Each line has a digest of itself and of the line before, so that one that was changed or removed is noticed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from zoo.compare.looks import Question
from zoo.compare.number_format import join_words
from zoo.compare.run_records import parse_moment, target_of
from zoo.config.run_folder import slug
from zoo.errors import StorageError, UsageError
from zoo.io import atomic_files, limits
from zoo.io.content_digests import KEY, content_digest

if TYPE_CHECKING:
    from zoo.compare.verdict import Answer

FILE = "journal.jsonl"
MOST_NAMES = 4  # runs that a sentence names
PLAN, LOOK = "plan", "look"
# fields of a question, in the order of a line
FIELDS = ("goal", "at", "baseline", "seeds", "variants", "margin", "test")
CHOICES = {"goal": "the goal", "at": "--at", "baseline": "the baseline", "margin": "--margin", "test": "--test"}
TESTED = ("better", "worse", "as good as", "not distinguishable")


@dataclass(frozen=True, kw_only=True)
class RunsQuestion(Question):
    """What a comparison asks of which runs: the question of a look, the seeds, and the variants."""

    seeds: tuple[int, ...]
    variants: tuple[str, ...]


@dataclass(frozen=True)
class Event:
    """A line of the journal: ``what`` is PLAN or LOOK, ``ended_runs`` the number of runs that had ended by then."""

    what: str
    question: RunsQuestion
    ended_runs: int
    details: Mapping[str, Any]


def append_event(home: Path, event: Event) -> None:
    """Append an event, and wait until it is on disk. Raises StorageError where that fails."""
    line: dict[str, Any] = {
        "event": event.what, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **{name: getattr(event.question, name) for name in FIELDS},
        "ended_runs": event.ended_runs, **event.details,
    }  # fmt: skip
    path = home / FILE
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / ".journal.lock"), path.open("ab") as file:
            before = path.read_bytes() if file.tell() else b""
            digests = [digest for earlier_line in before.splitlines() if (digest := _parse_line(earlier_line).get(KEY))]
            line[KEY] = content_digest(json.loads(json.dumps(line)), str(digests[-1]) if digests else "")
            whole = not before or before.endswith(b"\n")  # a kill may have cut the last line short
            file.write(b"" if whole else b"\n")
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(f"the journal of the comparison cannot be written: {atomic_files.reason(error)}") from error


def _parse_line(line: str | bytes) -> dict[str, Any]:
    """The JSON object of a line; empty for anything else."""
    try:
        content = json.loads(line)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def read_journal(home: Path) -> tuple[list[Event], int, int]:
    """The events of a journal, the first one first; the number of its lines that are none, as after a kill, were
    changed, or follow one that is gone; and the number of all lines.
    """
    events: list[Event] = []
    if not (home / FILE).exists():
        return events, 0, 0
    try:
        lines = limits.read_text(home / FILE, limits.JSON_BYTES).splitlines()
    except (OSError, UsageError):
        lines = []
    if not lines:
        return events, 1, 1
    damaged, previous = 0, ""
    lines = [line for line in lines if line.strip()]
    for line in lines:
        content = _parse_line(line)
        fits = content.get(KEY) == content_digest(content, previous)
        previous = str(content.get(KEY) or previous)
        event = _parse_event(content)
        events += [event] if event else []
        damaged += not (event and fits)
    return events, damaged, len(lines)


def _parse_event(content: dict[str, Any]) -> Event | None:
    """The event of a line; None for a line that is no event."""
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError):
        fields = {name: content.pop(name) for name in FIELDS}
        words = {name: str(fields[name]) for name in ("goal", "at", "baseline", "test")}
        seeds, variants = tuple(map(int, fields["seeds"])), tuple(map(str, fields["variants"]))
        margin = fields["margin"]
        question = RunsQuestion(**words, margin=margin, seeds=seeds, variants=variants)  # type: ignore[arg-type]
        event = Event(str(content.pop("event")), question, int(content.pop("ended_runs")), content)
        runs, verdicts = event.details.get("runs") or {}, event.details.get("verdicts") or {}
        numbers = [number for number in (margin, *runs.values()) if number is not None]
        valid = all(type(number) in (int, float) for number in numbers)
        return event if valid and all(isinstance(word, str) for word in verdicts.values()) else None
    return None


def describe_gaps(home: Path, looked: bool) -> str:
    """What a journal lacks, as a sentence: lines that cannot be read, or all of it; empty for nothing.

    ``looked``: whether the folder records elsewhere that there were earlier looks.
    """
    unknown = "what was chosen after a look is not certain"
    _, damaged, lines = read_journal(home)
    if damaged:
        return (
            f"{home / FILE}: {damaged} of {lines} lines cannot be read or were changed, or the line before is gone, so "
            f"that {unknown}"
        )
    if looked and not (home / FILE).exists():
        return f"{home / FILE} is gone, and looks were recorded beside it, so that {unknown}"
    return ""


def run_figures(answer: Answer, home: Path) -> dict[str, float | None]:
    """The figures of a look by run, as the path of its folder from the comparison's; None for a run that failed."""
    return {
        os.path.relpath(answer.runs[row.variant][seed].path.parent, home): None if math.isnan(figure) else figure
        for row in answer.rows
        for seed, figure in row.figures.items()
    }


def changed_runs(
    events: Sequence[Event], question: RunsQuestion, figures: Mapping[str, float | None], required: Collection[str]
) -> tuple[str, ...]:
    """The runs of earlier looks that are gone or have another figure now, as phrases.

    ``figures`` are those of this look, see `run_figures`; ``required`` are the paths of all runs that belong to it.
    """
    removed: dict[str, None] = {}
    remade: dict[str, str] = {}
    looks = [event for event in events if event.what == LOOK and event.ended_runs > 0]
    for event in looks:
        same_figure = (event.question.goal, event.question.at) == (question.goal, question.at)
        for path, figure in (event.details.get("runs") or {}).items():
            name = " ".join(Path(path).parts[-2:])
            if path in required and path not in figures:
                removed[name] = None
            elif same_figure and path in figures and figures[path] != figure:
                remade[name] = f"{name} ({_figure_text(figure)}, now {_figure_text(figures[path])})"
    often = f"after {len(looks)} look{'s' * (len(looks) != 1)}"
    pairs = (("removed", [*removed]), ("made again with another figure", [*remade.values()]))
    return tuple(f"runs, of which {verb} {join_words(names, MOST_NAMES)} {often}" for verb, names in pairs if names)


def _figure_text(figure: float | None) -> str:
    return "failed" if figure is None else f"{figure:.6g}"


def has_tested(events: Sequence[Event], variants: Collection[str]) -> bool:
    """Whether an earlier look has tested two of these variants, the baseline among them."""
    words = [event.details.get("verdicts", {}) for event in events if event.what == LOOK]
    return any(set(verdicts.values()) & set(TESTED) and len(set(verdicts) & set(variants)) > 1 for verdicts in words)


def choices_after_looking(events: Sequence[Event], question: RunsQuestion) -> tuple[str, ...] | None:
    """What of a question was chosen when runs had ended already, as phrases; None for variants of no event."""
    events = events_about(events, question.variants)
    if not events:
        return None
    early_events = list(itertools.takewhile(lambda event: not event.ended_runs, events))  # and so before any look
    phrases = []
    if not early_events:  # what it asks now is compared with what it asked first
        phrases.append(f"the comparison itself, when {events[0].ended_runs} of its runs had ended")
        early_events = [*events[:1]]
    plans = [event.question for event in early_events]
    looks = sum(event.what == LOOK and event.ended_runs > 0 for event in events)
    often = f"after {looks} look{'s' * (looks != 1)}" if looks else "when runs had ended"
    for name, word in CHOICES.items():
        value, before = getattr(question, name), list(dict.fromkeys(getattr(plan, name) for plan in plans))
        if value not in before:
            phrases.append(
                f"{word} {value or 'none'} instead of {' or '.join(str(choice or 'none') for choice in before)} {often}"
            )
    planned_variants = {name for plan in plans for name in plan.variants}
    looked_at = {name for event in events if event.what == LOOK for name in event.question.variants}
    added_variants = [name for name in question.variants if name not in planned_variants]
    removed_variants = sorted(looked_at - set(question.variants))
    changes = [f"{verb} {', '.join(names)}" for verb, names in
               (("added", added_variants), ("left out", removed_variants)) if names]  # fmt: skip
    if changes:
        phrases.append(f"variants, of which {' and '.join(changes)} {often}")
    until_decided = [event.question.seeds for event in early_events if event.details.get("until")]
    as_planned = any(set(question.seeds) == set(plan.seeds) for plan in plans)
    # how many of them there are is no choice: the test decided, or could not within them
    if not as_planned and not any(set(question.seeds) == set(seeds[: len(question.seeds)]) for seeds in until_decided):
        planned = max((set(plan.seeds) for plan in plans), key=len)
        added, removed = sorted(set(question.seeds) - planned), sorted(planned - set(question.seeds))
        changes = [f"{verb} {list_seeds(seeds)}" for verb, seeds in (("added", added), ("left out", removed)) if seeds]
        phrases.append(f"seeds, of which {' and '.join(changes)} {often}")
    return tuple(phrases)


def events_about(events: Sequence[Event], variants: Collection[str]) -> list[Event]:
    """The events about some of these variants: comparisons of one option at several sizes share a folder."""
    return [event for event in events if set(event.question.variants) & set(variants)]


def planned_targets(home: Path, variants: Collection[str]) -> set[tuple[str, str]]:
    """Figures and targets, ("loss", "to:4.2"), that were named for some of these variants before any run had ended;
    none of a damaged journal.
    """
    events, damaged, _ = read_journal(home)
    early_events = itertools.takewhile(
        lambda event: not event.ended_runs, [] if damaged else events_about(events, variants)
    )
    questions = [event.question for event in early_events if event.what == PLAN]
    return {(question.goal, parse_moment(question.at)) for question in questions if target_of(question.at) is not None}


def list_seeds(seeds: Sequence[int]) -> str:
    """``6 to 10`` for consecutive seeds, else ``1, 2, 7``."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def report_folder(home: Path, events: Sequence[Event], question: RunsQuestion, runs_changed: bool = False) -> Path:
    """Where the report on a question goes: into the folder itself for the first one, for others into one of its own.

    Its name has what differs from the first question: ``goal=bits_per_byte,seeds=1-2-3``; also ``runs=changed`` where
    runs of earlier looks are gone or have other figures.
    """
    if not events:
        return home
    first_question = events[0].question
    seeds = slug(list_seeds(question.seeds).replace(", ", "-").replace(" to ", "-"))
    pieces = [f"{name}={slug(str(getattr(question, name) or 'none'))}" for name in CHOICES
              if getattr(question, name) != getattr(first_question, name)]  # fmt: skip
    if set(question.variants) != set(first_question.variants):
        pieces.append(f"variants={slug('+'.join(sorted(question.variants)))[:80]}")
    pieces += [f"seeds={seeds}"] if set(question.seeds) != set(first_question.seeds) else []
    pieces += ["runs=changed"] if runs_changed else []
    return home / ",".join(pieces) if pieces else home
