"""The verdict over finished runs within its error budget: what earlier looks, a plan of looks, or a series have left.

Every look at a recorded comparison is written into looks.json and journal.jsonl of its folder. Needs no torch.

P(any false "better" or "worse" in a whole series of comparisons) <= ALPHA: a search that tries a hundred variants one
after another and keeps what is "better" at 0.05 keeps about three of a hundred that change nothing. With ``--series
FILE`` each variant may spend ALPHA / tries, and what a decided comparison had passes to the next one (the online
fallback procedure of Tian and Ramdas, 2021), which holds for tests that depend on each other, as tries against one
baseline with the same seeds do.
"""

from __future__ import annotations

import errno
import math
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from zoo.command_line import ParsedOptions
from zoo.compare import journal, run_records, verdict
from zoo.compare.comparability import Flag
from zoo.compare.design import check_target, find_design
from zoo.compare.looks import DECISIONS, Looks, Question, load_looks, parse_planned, save_looks
from zoo.compare.looks import FILE as LOOKS
from zoo.compare.run_records import DECISIVE, RunRecord, target_of
from zoo.compare.simultaneous_tests import T_TEST, PairedTestPlan, PairResult
from zoo.compare.statistics import ALPHA
from zoo.compare.verdict import Answer
from zoo.errors import StorageError, UsageError
from zoo.io import atomic_files, limits

SERIES_FORMAT, TRIES = 1, 100


def look_and_record(record: run_records.Record, options: ParsedOptions, home: Path) -> tuple[Answer, Path]:
    """The verdict over a comparison's finished runs, after a look that ``home`` records, and the folder of its report.

    Raises UsageError if there is no run.
    """
    ledgers = run_records.read_ledgers(record.folders, record.budget)
    if not ledgers:
        raise UsageError("all runs of this comparison have been removed.")
    earlier_looks = (home / LOOKS).exists()
    answer = interim_answer(ledgers, options, record, home)
    events, *_ = journal.read_journal(home)
    seeds = tuple(sorted({seed for row in answer.rows for seed in (*row.figures, *row.unfinished)}))
    question = journal.RunsQuestion(
        answer.goal, answer.baseline, answer.at, record.margin, options.get("test"), seeds=seeds,
        variants=tuple(row.variant for row in answer.rows),
    )  # fmt: skip
    figures = journal.run_figures(answer, home)
    changes = journal.changed_runs(
        events, question, figures, [os.path.relpath(folder, home) for folder in record.folders]
    )
    late = journal.choices_after_looking(events, question)
    gaps = journal.describe_gaps(home, earlier_looks)
    flags = (*answer.flags, *([Flag(gaps, about="journal")] if gaps else []))
    answer = replace(answer, late_choices=None if late is None else late + changes, flags=flags, tuning=record.tuning)
    for name in record.design:
        design = find_design(name)
        answer = replace(answer, design=design, finding=design.load().complete(answer, home, record))
    ended_runs = sum(len(row.figures) for row in answer.rows)
    details = {"verdicts": {row.variant: row.verdict.word for row in answer.rows}, "runs": figures}
    save_or_warn(home, lambda: journal.append_event(home, journal.Event(journal.LOOK, question, ended_runs, details)))
    return answer, journal.report_folder(home, events, question, bool(changes))


def interim_answer(
    ledgers: Sequence[RunRecord], options: ParsedOptions, record: run_records.Record, home: Path
) -> Answer:
    """The verdict over a comparison's finished runs, with what earlier looks have left to spend; records the look."""
    first_answer = answer_records(ledgers, options, record)
    seeds = {row.variant: tuple(row.figures) for row in first_answer.rows}
    with open_series(options, home, [*seeds][1:]) as opened, hold_lock(home / LOOKS):
        tested = opened[1].variants if opened else ()
        looks = load_looks(home, seeds, opened[1].level if opened else ALPHA, tested=tested)
        check_looks(looks, home, seeds)
        if opened:
            looks.check_budget(opened[1].level)
        answer = answer_after_looks(
            looks, first_answer, ledgers, options, record, journal.planned_targets(home, [*seeds])
        )
        assert answer.look is not None
        words = {row.variant: row.verdict.word for row in answer.rows[1:]}
        results = {row.variant: PairResult(row.pair, row.adjusted, row.equivalent) for row in answer.rows[1:]}
        tested_words = {name: word for name, word in words.items() if name in answer.look.seeds}
        new = looks.with_look(answer.look, tested_words, results)
        if new != looks:
            save_or_warn(home, lambda: save_looks(home, new))
        if opened:
            decided = [name for name, word in words.items() if word in DECISIONS[:2]]
            save_series(Path(options.get("series")), opened[0].with_entry(opened[1], decided))
    return replace(answer, looks=new.looks, look_number=new.number(answer.look))


def look_without_record(ledgers: Sequence[RunRecord], options: ParsedOptions, record: run_records.Record) -> Answer:
    """The verdict over runs of no recorded comparison, as a comparison of their recipe would give it now.

    Nothing is recorded, but what comparisons have spent on the same runs counts.
    """
    first_answer = answer_records(ledgers, options, record)
    homes = sorted({run.path.absolute().parents[2] for seeds in first_answer.runs.values() for run in seeds.values()})
    beside = [path.parent for home in homes for path in home.glob(f"{run_records.FOLDER}/*/{LOOKS}")]
    looks = load_looks(homes[0] / run_records.FOLDER, [row.variant for row in first_answer.rows], beside=beside)
    return answer_after_looks(looks, first_answer, ledgers, options, record)


def answer_after_looks(
    looks: Looks, first_answer: Answer, ledgers: Sequence[RunRecord], options: ParsedOptions,
    record: run_records.Record, targets: Collection[tuple[str, str]] = (),
) -> Answer:  # fmt: skip
    """The verdict that a look after others gives; without one on variants of which seeds are left out, and for a target
    that is none of ``targets``, which were named before the runs.

    ``first_answer`` is that of a first look at the same runs.
    """
    seeds = {row.variant: tuple(row.figures) for row in first_answer.rows}
    question = Question(
        first_answer.goal, first_answer.baseline, first_answer.at, record.margin, options.get("test")
    )  # fmt: skip
    refusals = refuse_missing_seeds(looks.find_missing_seeds(seeds), [*seeds])
    if target_of(question.at) is not None and (question.goal, question.at) not in targets:
        refusals += [refuse_late_target(question, [*seeds][1:])]
    refused = {name for flag in refusals for name in flag.variants}
    tested = {name: numbers for name, numbers in seeds.items() if name not in refused}
    runs = {name: {seed: first_answer.runs[name][seed].digest() for seed in tested[name]} for name in tested}
    alternatives = count_alternatives(first_answer, len(targets))
    look = looks.next_look(question, tested, record.until == "decided", runs, alternatives,
                           parse_planned(record.until))  # fmt: skip
    answer = answer_records(ledgers, options, record, looks.plan(look), refusals)
    return replace(answer, look=look, looks_elsewhere=len(looks.elsewhere))


def answer_records(
    ledgers: Sequence[RunRecord], options: ParsedOptions, record: run_records.Record,
    test_plan: PairedTestPlan | None = None, refusals: Sequence[Flag] = (),
) -> Answer:  # fmt: skip
    """The verdict over finished runs, with the goal and the moment of the command line."""
    at = options.get("at") or record.at or DECISIVE
    check_target(at, *map(find_design, record.design), margin=record.margin)
    commands = [record.command] if record.command else []
    goal = record.goal or options.get("goal")
    return verdict.answer(
        ledgers, record.baseline, goal, at, record.tuned, commands, record.varied, test_plan or T_TEST, refusals
    )


def check_looks(looks: Looks, home: Path, variants: Collection[str]) -> None:
    """Raise UsageError where the record of looks at some variants is gone, and the journal shows that there were some.

    To begin again would spend the error probability of all looks twice.
    """
    if not looks.looks and journal.has_tested(journal.read_journal(home)[0], variants):
        raise UsageError(
            f"{home / LOOKS} is gone, and {journal.FILE} beside it has looks at this comparison.\n"
            "It records what they have tested. Restore it, or begin a comparison with other seeds: --runs DIR"
        )


def refuse_missing_seeds(missing_seeds: Mapping[str, Sequence[int]], variants: Sequence[str]) -> list[Flag]:
    """Flags that refuse a verdict on variants, the baseline first, of which seeds are left out that were looked at.

    Whoever leaves out seeds after a look chooses the difference.
    """
    result = []
    for name, numbers in missing_seeds.items():
        seeds = journal.list_seeds(sorted(numbers))
        sentence = (
            f"{name}: seeds were left out that a look at this comparison has had, {seeds}; a verdict needs all that "
            "were looked at, or the first ones of them"
        )
        result.append(Flag(sentence, True, "seeds left out", tuple(variants[1:]) if name == variants[0] else (name,)))
    return result


def refuse_late_target(question: Question, variants: Sequence[str]) -> Flag:
    """A flag that refuses a verdict for a target that no journal shows to be older than the runs.

    There are too many targets to pay for: whoever has seen the curves finds those where they are far apart.
    """
    target = question.at.partition(":")[2]
    sentence = (
        f"the journal does not show that the target, {question.goal}={target}, was chosen before the first run had "
        "ended; a verdict needs --to in the command that starts the runs"
    )
    return Flag(sentence, True, "late target", tuple(variants))


def count_alternatives(answer: Answer, targets: int = 0) -> dict[str, int]:
    """How many figures could decide, and how many moments of runs, ``targets`` that were named before them included."""
    runs = [run for seeds in answer.runs.values() for run in seeds.values() if run.finished]
    validations = min((len(run.validations) for run in runs), default=1)
    moments = validations + (validations > 1) + all(run.test for run in runs)  # last, last:2 and so on, best, test
    others = [mean for mean, _ in (answer.base.others or {}).values() if math.isfinite(mean)]
    return {"goal": 1 + len(others), "at": max(1, moments + targets)}


def reserve_tries(options: ParsedOptions, place: Path, variants: Sequence[str], save: bool = True) -> None:
    """Reserve the tries of a comparison in the file of --series; without ``save`` only check whether that is possible.

    Raises UsageError if there are none left, if the file is damaged, and if the comparison was looked at before.
    """
    with open_series(options, place, variants) as opened:
        if opened:
            series, entry = opened
            load_looks(place, variants).check_budget(entry.level)
            if save:
                save_series(Path(options.get("series")), series.with_entry(entry, entry.decided))


def available_budget(options: ParsedOptions, home: Path, variants: Sequence[str]) -> float:
    """What looks at some variants, the baseline first, may spend from now on; that of a new comparison if nothing."""
    with open_series(options, home, variants[1:]) as opened:
        level, tested = (opened[1].level, opened[1].variants) if opened else (ALPHA, ())
    return load_looks(home, variants, level, tested=tested).remaining or level


@contextmanager
def open_series(
    options: ParsedOptions, home: Path, variants: Sequence[str]
) -> Iterator[tuple[Series, SeriesEntry] | None]:
    """The series of --series, locked, and the entry of a comparison, named by its folder relative to the file.

    None without the option, and for no variants.
    """
    if not options.get("series"):
        yield None
        return
    path = Path(options.get("series"))
    check_series_file(path)
    with hold_lock(path):
        series = load_series(path, options.get("tries")) if variants else Series()
        yield (series, series.entry(os.path.relpath(home, path.parent), variants)) if variants else None


def save_or_warn(home: Path, save: Callable[[], object]) -> None:
    """Record a look, or warn in a folder that may only be read. Raises StorageError where another folder fails.

    A verdict whose look is not recorded would let later looks spend its share of the error once more.
    """
    try:
        save()
    except (OSError, StorageError) as error:
        if os.access(home, os.W_OK):
            raise StorageError(f"this look cannot be recorded: {error}") from error
        print(f"warning: this look cannot be recorded: {error}", file=sys.stderr)


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Keep other processes from changing a file meanwhile; without a lock where its folder cannot be written."""
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError:
        yield
        return
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True)
class SeriesEntry:
    """One comparison of a series: its folder, its variants, what it may spend, and those that it decided."""

    comparison: str
    variants: tuple[str, ...]
    level: float
    decided: tuple[str, ...] = ()


@dataclass(frozen=True)
class Series:
    """The comparisons of a series of ``tries`` variants, in their order."""

    tries: int = TRIES
    entries: tuple[SeriesEntry, ...] = ()

    @property
    def used(self) -> int:
        """The number of variants that were tried."""
        return sum(len(entry.variants) for entry in self.entries)

    def entry(self, comparison: str, variants: Sequence[str]) -> SeriesEntry:
        """The entry of a comparison with what it may spend; that of before, if it has the same variants.

        Raises UsageError if the series has not so many tries left.
        """
        for entry in self.entries:
            if entry.comparison == comparison and set(entry.variants) == set(variants):
                return entry
        remaining = self.tries - self.used
        if len(variants) > remaining:
            raise UsageError(
                f"the series has {remaining} of its {self.tries} tries left, and this comparison has {len(variants)} "
                "variants.\nBegin another series, with a baseline and seeds that this one has not seen: --series FILE"
            )
        previous = self.entries[-1] if self.entries else None
        whole = previous is not None and set(previous.decided) == set(previous.variants)
        level = ALPHA * len(variants) / self.tries + (previous.level if previous is not None and whole else 0.0)
        return SeriesEntry(comparison, tuple(variants), level)

    def with_entry(self, entry: SeriesEntry, decided: Sequence[str]) -> Series:
        """With an entry added or changed to what it has decided by now."""
        new = replace(entry, decided=tuple(decided))
        same = [index for index, old in enumerate(self.entries)
                if (old.comparison, set(old.variants)) == (entry.comparison, set(entry.variants))]  # fmt: skip
        if not same:
            return replace(self, entries=(*self.entries, new))
        return replace(self, entries=(*self.entries[: same[0]], new, *self.entries[same[0] + 1 :]))


def load_series(path: Path, tries: int | None = None) -> Series:
    """The series in a file; a new one of ``tries`` (TRIES) variants if it does not exist.

    Raises UsageError for a damaged file, and for another number of tries than it was begun with.
    """
    if not path.exists():
        return Series(tries or TRIES)
    try:
        content: Any = limits.read_json(path)
        if content["format"] != SERIES_FORMAT:
            raise ValueError(f"format {content['format']!r}")
        entries = tuple(
            SeriesEntry(
                str(entry["comparison"]), _names(entry["variants"]), float(entry["level"]), _names(entry["decided"])
            )
            for entry in content["entries"]
        )
        series = Series(int(content["tries"]), entries)
        if not 0 <= series.used <= series.tries or not all(0 < entry.level <= ALPHA * (1 + 1e-9) for entry in entries):
            raise ValueError(f"{series.used} of {series.tries} tries, levels {[entry.level for entry in entries]}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UsageError(f"--series {path} is damaged, or no series of zoo: {limits.describe_damage(error)}") from error
    if tries is not None and tries != series.tries:
        raise UsageError(f"--series {path} was begun with {series.tries} tries, which --tries {tries} cannot change.")
    return series


def _names(names: Sequence[str]) -> tuple[str, ...]:
    """Names of variants. Raises ValueError for anything else."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{names!r:.40} are no names of variants")
    return tuple(names)


def check_series_file(path: Path) -> None:
    """Raise UsageError for a folder, a device, and a path that no file can have, and StorageError where none can be
    written. Before anything is locked: a lock in such a place would be waited for.
    """
    try:
        if path.is_dir() or (path.exists() and not path.is_file()):
            raise UsageError(f"--series {path} is no file. Name one that zoo writes, such as --series tries.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent, prefix=f".{path.name}"):  # its name, too, must fit
            pass
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"--series {path}: {path.parent} is no folder.") from error
    except ValueError as error:
        raise UsageError(f"--series {str(path)!r}: {error}.") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UsageError(f"--series {str(path)[:60]}…: the name is too long.") from error
        raise StorageError(f"--series {path} cannot be written: {error.strerror or error}.") from error


def save_series(path: Path, series: Series) -> None:
    """Write a series. Raises UsageError if its file cannot be written."""
    entries = [asdict(entry) for entry in series.entries]
    content = {"format": SERIES_FORMAT, "alpha": ALPHA, "tries": series.tries, "entries": entries}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_json(path, content, end="\n")
    except OSError as error:
        raise UsageError(f"cannot write --series {path}: {error.strerror or error}") from error
