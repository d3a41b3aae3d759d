"""`zoo check`: try the contract on parts, each in a process of its own, and print every check as it ends."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from zoo import recipe_files, registry
from zoo.cli import tables
from zoo.cli.check_process import Child, Job
from zoo.errors import PartError, PluginError, UsageError, ZooError

TIMEOUT = 120.0
MOST_REASONS = 3  # why checks were skipped, in the last line
USAGE = """\
usage: zoo check KIND NAME [options] | zoo check package.module.Class [options] | zoo check KIND | zoo check RECIPE
Try on a part what its kind promises; on a recipe (or a file), whether one batch trains, without keeping a run.
  --only CHECK,CHECK          these checks alone
  --timeout SECONDS           for all checks of a part (120); what takes longer fails
  --strict                    a check that is skipped counts as failed
  --OPTION VALUE              an option of the part, such as: zoo check attention multihead --kv_heads 1
  --json                      one JSON document
A class path is imported from the current folder or an installed package. A recipe takes the options of zoo fit.
Exit codes: 0 nothing failed, 1 a check failed, 2 there is no such part, 3 the part cannot be imported."""


@dataclass
class CheckOptions:
    """A command line of `zoo check`."""

    words: list[str] = field(default_factory=list)
    options: list[tuple[str, str | bool, str]] = field(default_factory=list)  # of the part: name, value, text
    only: list[str] = field(default_factory=list)
    timeout: float = TIMEOUT
    json: bool = False
    debug: bool = False
    strict: bool = False


@dataclass
class Report:
    """What is known of a part after its checks."""

    kind: str
    name: str
    origin: str
    names: tuple[str, ...]
    outcomes: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, begun: float, name: str, status: str, sentence: str, seconds: float) -> Report:
        """This report with one outcome more."""
        self.outcomes.append({"name": name, "status": status, "sentence": sentence, "seconds": round(seconds, 4)})
        self.seconds = time.monotonic() - begun
        return self

    @property
    def counts(self) -> Counter[str]:
        return Counter(outcome["status"] for outcome in self.outcomes)

    def skips(self) -> str:
        """Why checks were skipped, in a phrase; nothing where none was."""
        reasons = Counter(
            one["sentence"].strip().splitlines()[0] for one in self.outcomes if one["status"] == "skipped"
        )
        told = [f"{reason} ({count})" if count > 1 else reason for reason, count in reasons.most_common(MOST_REASONS)]
        rest = reasons.total() - sum(count for _, count in reasons.most_common(MOST_REASONS))
        return "; ".join([*told, *([f"{rest} for other reasons"] if rest else [])])

    def failed(self, strict: bool) -> bool:
        """Whether a check failed, or was skipped where that counts as a failure."""
        return bool(self.counts["FAIL"] or (strict and self.counts["skipped"]))

    def summary(self, strict: bool = False) -> str:
        """All in one line."""
        words = {"ok": "ok", "FAIL": "failed", "known": "known", "skipped": "skipped"}
        told = [f"{self.counts[status]} {word}" for status, word in words.items() if self.counts[status]]
        number = f"{len(self.outcomes)} check{'' if len(self.outcomes) == 1 else 's'}"
        head = f"{number} of {self.kind} {self.name} ({self.origin})"
        skips = f"; skipped: {self.skips()}" if self.counts["skipped"] else ""
        counts = " – which --strict counts as failed" if skips and strict else ""
        return f"{head}: {', '.join(told)} in {self.seconds:.1f} s{skips}{counts}"


def parse(argv: list[str]) -> CheckOptions:
    """Words, own options, and all others, which are the part's. Raises UsageError for an own one without its value."""
    options, rest = CheckOptions(), list(argv)
    while rest:
        token = rest.pop(0)
        if not token.startswith("-"):
            options.words.append(token)
            continue
        name, equals, value = token.partition("=")
        if name in ("--json", "--debug", "--strict") and not equals:
            setattr(options, name[2:], True)
            continue
        bare = not equals and (not rest or rest[0].startswith("--"))
        text: str | bool = value if equals else True if bare else rest.pop(0)
        if name == "--only":
            options.only += [word.strip().replace("-", "_") for word in str("" if bare else text).split(",")]
            if "" in options.only:
                raise UsageError("'--only' needs names of checks: --only CHECK,CHECK")
        elif name == "--timeout":
            options.timeout = _seconds(text)
        else:
            options.options.append((name.lstrip("-"), text, token if equals or bare else f"{name} {text}"))
    return options


def _seconds(text: str | bool) -> float:
    try:
        value = float(text) if isinstance(text, str) else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"'--timeout' must be a number of seconds above 0, got {text!r}.")
    return value


def run(argv: list[str]) -> int:
    """`zoo check`."""
    options = parse(argv)
    if not options.words:
        raise UsageError("what? zoo check KIND NAME, zoo check package.module.Class, or zoo check RECIPE")
    first = options.words[0]
    if is_recipe(first):
        from zoo.cli import check_recipe

        return check_recipe.run(argv)
    from zoo.cli import doctor

    if len(options.words) > 2:
        raise UsageError(f"{options.words[2]!r} is one word too many. See: zoo check --help")
    if len(options.words) == 2:
        from zoo.cli.show import check_kind

        kind, name = check_kind(first), options.words[1]
        if "." not in name:
            registry.find(kind, name)  # a wrong name is told before torch is imported
        doctor.check_torch()
        return _one(kind, name, options)
    kind = _kind(first)
    if "." in first and not kind:
        doctor.check_torch()
        return _one("", first, options)
    if not kind:
        raise _unknown(first)
    doctor.check_torch()
    return _all(kind, options)


def is_recipe(word: str) -> bool:
    """Whether a word names a recipe or a file rather than a part or a kind."""
    from pathlib import Path

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
    return UsageError(f"no kind, class path or recipe {word!r}.{hint} Kinds: {', '.join(registry.KINDS)}")


def _one(kind: str, name: str, options: CheckOptions) -> int:
    for report in examine(Job(kind, name, options.options, options.only, options.debug), options.timeout):
        if not options.json:
            print(_line(report), flush=True)
    if options.json:
        tables.as_json(_plain(report))
    else:
        print(report.summary(options.strict))
    return 1 if report.failed(options.strict) else 0


def _all(kind: str, options: CheckOptions) -> int:
    """Every part of a kind, one line each; one that cannot be imported counts as failed."""
    if options.options:
        raise UsageError(f"{options.options[0][2]}: options belong to one part. Name it: zoo check {kind} NAME …")
    failed, documents = False, []
    for part in registry.parts(kind):
        clash = sum(registry.has_name(part, other.name) for other in registry.parts(kind)) > 1
        job = Job(kind, part.path if clash else part.name, [], options.only, options.debug)
        try:
            *_, report = examine(job, options.timeout)
            line, document, bad = report.summary(options.strict), _plain(report), report.failed(options.strict)
        except ZooError as error:
            # a part that needs options, such as a path, cannot be tried without them; that is no fault
            bad = options.strict or not isinstance(error, UsageError)
            line = f"{'FAIL: ' if bad else 'not checked: '}{part}: {str(error).splitlines()[0]}"
            document = {"kind": kind, "name": part.name, "origin": part.origin, "error": str(error)}
        failed |= bad
        documents.append(document)
        if not options.json:
            print(line, flush=True)
    if options.json:
        tables.as_json(documents)
    return 1 if failed else 0


def examine(job: Job, timeout: float) -> Iterator[Report]:
    """The report of a part, again after every check. Raises what the child refuses, PluginError where it dies early.

    A check that ends the process, or exceeds the time, fails; those after it run in another child while time is left.
    """
    begun = time.monotonic()
    report, names = None, list(job.only)
    while report is None or names:
        running, since = "", time.monotonic()
        with Child(job.but(names)) as child:
            for event in child.events(begun + timeout):
                if event["event"] == "part":
                    names = event["checks"]
                    report = report or Report(event["kind"], event["name"], event["origin"], names=tuple(names))
                elif event["event"] == "check":
                    running, since = event["name"], time.monotonic()
                elif event["event"] == "outcome" and report:
                    running = ""
                    names.remove(event["name"])
                    yield report.add(begun, **{key: value for key, value in event.items() if key != "event"})
                elif event["event"] == "refused":
                    raise {2: UsageError, 3: PluginError}.get(event["code"], ZooError)(event["says"])
        reason = f"took longer than {timeout:g} s" if child.late else child.end()
        if report is None:
            raise PluginError(f"{job.kind} {job.name} cannot be imported: it {reason}{child.place()}".strip())
        if not names:
            return
        running = running or names[0]
        names.remove(running)
        sentence = f"{reason} during check {running}{child.place()}"
        yield report.add(begun, running, "FAIL", sentence, time.monotonic() - since)
        while child.late and names:
            yield report.add(begun, names.pop(0), "skipped", f"not run: the {timeout:g} s were over", 0.0)


def _line(report: Report) -> str:
    """The last check: how it went, and under a failure what to do."""
    last, width = report.outcomes[-1], max(map(len, report.names))
    rows = last["sentence"].strip().splitlines()
    beside = " ".join(rows) if last["status"] != "FAIL" else ""
    line = f"{last['status']:<8}{last['name']:<{width}} {last['seconds']:7.2f} s  {beside}".rstrip()
    return "\n".join([line, *(f"        {row}" for row in rows if not beside)])


def _plain(report: Report) -> dict[str, Any]:
    head = {"kind": report.kind, "name": report.name, "origin": report.origin, "seconds": round(report.seconds, 2)}
    return {**head, "counts": dict(report.counts), "checks": report.outcomes}
