"""`zoo check`: check parts against the contract of their kind, each in its own process, and print every outcome."""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo import recipe_files, registry
from zoo.cli import doctor, table_printing
from zoo.cli.show import check_kind
from zoo.command_line import ParsedOptions
from zoo.conformance.check_process import Child, Job, UnknownCheckError
from zoo.errors import PartError, PluginError, UsageError, ZooError
from zoo.plugins import discovery, publishing
from zoo.plugins.discovery import Package
from zoo.registry import Part

BAD = ("FAIL", "unfinished")
MOST_UNFINISHED = 2  # checks of a part; those after them are not run
MOST_REASONS = 3  # for skipped checks, in the last line
FAST_DEV_RUN = ("trainer.fast_dev_run", "1", "--trainer.fast_dev_run 1")


@dataclass
class Report:
    """The outcomes of the checks of one part."""

    kind: str
    name: str
    origin: str
    names: tuple[str, ...]
    outcomes: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)  # its cost and what it combines with, where a job asks for it

    def add(self, start: float, name: str, status: str, sentence: str, seconds: float) -> Report:
        """This report with one outcome more."""
        self.outcomes.append({"name": name, "status": status, "sentence": sentence, "seconds": round(seconds, 4)})
        self.seconds = time.monotonic() - start
        return self

    @property
    def counts(self) -> Counter[str]:
        """How many checks had each outcome: ok, FAIL, unfinished, known, skipped."""
        return Counter(outcome["status"] for outcome in self.outcomes)

    def skips(self) -> str:
        """The commonest reasons for skipped checks, with their counts; empty where none was skipped."""
        reasons = Counter(
            outcome["sentence"].strip().splitlines()[0] for outcome in self.outcomes if outcome["status"] == "skipped"
        )
        common = reasons.most_common(MOST_REASONS)
        phrases = [f"{reason} ({count})" if count > 1 else reason for reason, count in common]
        remaining = reasons.total() - sum(count for _, count in common)
        return "; ".join([*phrases, *([f"{remaining} for other reasons"] if remaining else [])])

    def failed(self, strict: bool) -> bool:
        """Whether a check failed or was not finished, or was skipped where that counts as a failure."""
        return bool(self.counts["FAIL"] or self.counts["unfinished"] or (strict and self.counts["skipped"]))

    def verdict(self) -> str:
        """The report in a few words, for a page."""
        if bad := self.counts["FAIL"]:
            return f"{bad} of {_number(len(self.outcomes), 'check')} failed"
        if late := self.counts["unfinished"]:
            return f"{late} of {_number(len(self.outcomes), 'check')} not finished"
        good = _number(len(self.outcomes) - self.counts["skipped"], "check")
        return f"{good} passed" + (f", {self.counts['skipped']} skipped" if self.counts["skipped"] else "")

    def summary(self, strict: bool = False) -> str:
        """The report in one line: counts, time, and why checks were skipped."""
        words = {"ok": "ok", "FAIL": "failed", "unfinished": "not finished", "known": "known", "skipped": "skipped"}
        tallies = [f"{self.counts[status]} {word}" for status, word in words.items() if self.counts[status]]
        head = f"{_number(len(self.outcomes), 'check')} of {self.kind} {self.name} ({self.origin})"
        skips = f"; skipped: {self.skips()}" if self.counts["skipped"] else ""
        counts = " – which --strict counts as failed" if skips and strict else ""
        return f"{head}: {', '.join(tallies)} in {self.seconds:.1f} s{skips}{counts}"


def run(options: ParsedOptions) -> int:
    """`zoo check`."""
    word, kind_and_name = options.words[0], ("", options.words[0])
    parts: Sequence[Part] | None = None
    package, kind = _package(word) if len(options.words) == 1 else None, _kind(word)
    if package:
        parts = publishing.parts_of(package)
    elif is_recipe(word):
        return check_recipe(options)
    elif len(options.words) == 2:
        kind_and_name = check_kind(word), options.words[1]
        if "." not in kind_and_name[1]:
            registry.find(*kind_and_name)  # a wrong name is refused before torch is imported
    elif kind:
        parts = registry.parts(kind)
    elif "." not in word:
        raise _unknown(word)
    doctor.check_torch()
    return _one(*kind_and_name, options) if parts is None else _all(parts, options)


def check_recipe(options: ParsedOptions) -> int:
    """Plan as `zoo fit` does, build model and data, and train and validate one batch in a folder that is removed.

    Raises what `zoo fit` would raise.
    """
    from zoo.cli import train, warning_filters
    from zoo.command_line import json_option, parse
    from zoo.config import fit_options, run_config

    # the words after a recipe are options of zoo fit, which say which of them take a value
    fit_command = fit_options.FitCommand()
    fit_command.name = options.command
    fit_command.options = (*fit_options.OPTIONS, json_option())
    command = parse(fit_command, options.argv)
    train.name_run(command)
    command.command = "fit"
    command.settings.append(FAST_DEV_RUN)
    draft = run_config.read_draft(command)
    doctor.check_torch()
    warning_filters.filter_warnings(command.get("debug"))
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="zoo-check-") as folder:
        command.values["runs"] = folder  # so that no earlier run interferes, and no file stays
        schema = run_config.schema()
        config_plan = run_config.make_plan(command, draft, schema)
        from zoo.cli import fit
        from zoo.training import distributed

        with contextlib.redirect_stdout(io.StringIO()) as output:
            distributed.settle_rank(config_plan.config["trainer"])
            code = fit.run_plan(config_plan, schema)
    if code:
        return code
    classes = config_plan.resolved.classes
    task, data, seconds = classes["model"].__name__, classes["data"].__name__, time.monotonic() - start
    if options.get("json"):
        table_printing.as_json({"recipe": command.word, "task": task, "data": data, "seconds": round(seconds, 2)})
    else:
        # the first line names the folder, which was removed
        print("\n".join(output.getvalue().splitlines()[1:]))
        sentence = f"{task} trained and validated on one batch of {data} in {seconds:.1f} s"
        print(f"recipe ok: {command.word}: {sentence}; its folder was removed")
    return 0


def is_recipe(word: str) -> bool:
    """Whether a word names a recipe or a file rather than a part or a kind."""
    if word.endswith(recipe_files.SUFFIXES) or "/" in word or word in (".", ".."):
        return True
    return not _kind(word) and (recipe_files.packaged_recipe(word) is not None or Path(word).exists())


def _kind(word: str) -> str:
    """The kind that a word names, in singular or plural, or nothing."""
    return next((kind for kind in registry.KINDS if word.lower() in (kind, f"{kind}s")), "")


def _unknown(word: str) -> ZooError:
    """The error for one word that is no kind, class path or recipe."""
    same = [part for kind in registry.KINDS for part in registry.parts(kind) if registry.has_name(part, word)]
    if same:
        return PartError(f"{same[0].name} is a {same[0].kind}: zoo check {same[0].kind} {same[0].name}")
    names = [*registry.KINDS, *(recipe.name for recipe in recipe_files.recipes())]
    hint = registry.suggest(word, names)
    return UsageError(f"no kind, class path, package or recipe {word!r}.{hint} Kinds: {', '.join(registry.KINDS)}")


def _one(kind: str, name: str, options: ParsedOptions) -> int:
    job = Job(kind, name, options.settings, _only(options), options.get("debug"))
    for report in examine(job, options.get("timeout")):
        if not options.get("json"):
            print(_line(report, report.outcomes[-1]), flush=True)
    strict = options.get("strict")
    part = registry.find(kind, name) if "." not in name else registry.part_of_class(name)
    notes = publishing.notes(part) if part else []
    if options.get("json"):
        table_printing.as_json({**_as_dict(report), "notes": notes})
    else:
        print("\n".join([report.summary(strict), *(f"note: {note}" for note in notes)]))
    return 1 if report.failed(strict) else 0


def _all(parts: Sequence[Part], options: ParsedOptions) -> int:
    """Every part of a kind or a package, one line each; one that cannot be imported counts as failed.

    Raises UsageError for options, and where no kind has the checks of --only.
    """
    if options.settings:
        raise UsageError(f"{options.settings[0][2]}: options belong to one part. Name it: zoo check KIND NAME …")
    failures, documents, strict = 0, [], options.get("strict")
    kinds, lacking = {part.kind for part in parts}, dict[str, ZooError]()  # kinds that lack a check of --only
    for part in parts:
        same = [candidate for candidate in registry.parts(part.kind) if registry.has_name(part, candidate.name)]
        clash = registry.is_hidden(part) or len(same) > 1
        job = Job(part.kind, part.path if clash else part.name, [], _only(options), options.get("debug"))
        try:
            if part.kind in lacking:
                raise lacking[part.kind]
            *_, report = examine(job, options.get("timeout"))
            failed_lines = [_line(report, outcome) for outcome in report.outcomes if outcome["status"] in BAD]
            line = "\n".join([report.summary(strict), *failed_lines])
            document, bad = _as_dict(report), report.failed(strict)
        except ZooError as error:
            if isinstance(error, UnknownCheckError):
                lacking[part.kind] = error
                if len(lacking) == len(kinds):
                    raise
            # a part that needs options, such as a path, cannot be checked without them: no failure
            bad = strict or not isinstance(error, UsageError)
            line = f"{'FAIL: ' if bad else 'not checked: '}{part}: {str(error).splitlines()[0]}"
            document = {"kind": part.kind, "name": part.name, "origin": part.origin, "error": str(error)}
        failures += bool(bad)
        documents.append(document)
        if not options.get("json"):
            print(line, flush=True)
    if options.get("json"):
        table_printing.as_json(documents)
    return 1 if failures else 0


def _number(count: int, word: str) -> str:
    """``1 check`` or ``2 checks``."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def _package(word: str) -> Package | None:
    """The installed plugin package of that name that has parts."""
    name = discovery.normalize_name(word)
    packages = (package for package in publishing.plugin_packages() if discovery.normalize_name(package.name) == name)
    return next((package for package in packages if publishing.parts_of(package)), None)


def _only(options: ParsedOptions) -> list[str]:
    """The checks that --only names. Raises UsageError where a name is empty."""
    names = [name.strip().replace("-", "_") for text in options.get("only") for name in text.split(",")]
    if "" in names:
        raise UsageError("'--only' needs names of checks: --only CHECK,CHECK. See: zoo check --help")
    return names


def examine(job: Job, timeout: float) -> Iterator[Report]:
    """Yield a part's report after every check. Raises the error that the child reports, PluginError if it ends early.

    A check that ends the process fails; one that exceeds the time is not finished. Those after it run in another child,
    unless several were not finished.
    """
    start = time.monotonic()
    report, names = None, list(job.only)
    while report is None or names:
        running, since = "", time.monotonic()
        with Child(job.with_only(names)) as child:
            for event in child.events(timeout):
                if event["event"] == "part":
                    names = event["checks"]
                    report = report or Report(event["kind"], event["name"], event["origin"], names=tuple(names))
                elif event["event"] == "check":
                    running, since = event["name"], time.monotonic()
                elif event["event"] == "outcome" and report:
                    running = ""
                    names.remove(event["name"])
                    yield report.add(start, **{key: value for key, value in event.items() if key != "event"})
                elif event["event"] == "facts" and report:
                    report.facts = event
                elif event["event"] == "refused":
                    usage_error = UnknownCheckError if event.get("unknown_check") else UsageError
                    raise {2: usage_error, 3: PluginError}.get(event["code"], ZooError)(event["says"])
        reason = child.exceeded or child.end_reason()
        if report is None:
            raise PluginError(f"{job.kind} {job.name} cannot be imported: it {reason}{child.end_position()}".strip())
        if not names:
            return
        running = running or names[0]
        names.remove(running)
        sentence = f"{reason} during check {running}{child.end_position()}"
        yield report.add(
            start, running, "unfinished" if child.timed_out else "FAIL", sentence, time.monotonic() - since
        )
        while report.counts["unfinished"] == MOST_UNFINISHED and names:
            yield report.add(start, names.pop(0), "skipped", f"not run: {MOST_UNFINISHED} checks did not finish", 0.0)


def _line(report: Report, outcome: dict[str, Any]) -> str:
    """One check: how it went, and under a failure what to do."""
    width = max(map(len, report.names))
    rows = outcome["sentence"].strip().splitlines()
    beside = " ".join(rows) if outcome["status"] not in BAD else ""
    line = f"{outcome['status']:<7} {outcome['name']:<{width}} {outcome['seconds']:7.2f} s  {beside}".rstrip()
    return "\n".join([line, *(f"        {row}" for row in rows if not beside)])


def _as_dict(report: Report) -> dict[str, Any]:
    head = {"kind": report.kind, "name": report.name, "origin": report.origin, "seconds": round(report.seconds, 2)}
    return {**head, "counts": dict(report.counts), "checks": report.outcomes}
