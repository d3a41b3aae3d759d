"""The contract of an executor of comparisons, tried with runs that write files."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from zoo.compare.executor import Executor, Request, parse_resources
from zoo.conformance.check import Inapplicable, require
from zoo.conformance.contracts.command import description_is_light
from zoo.conformance.subject import Independent
from zoo.conformance.token_checks import documentation
from zoo.errors import UsageError

JOBS, LIMIT, LONG = 2, 120.0, 300.0  # runs at once; seconds for all of them; and of a run that is to be stopped


@dataclass(frozen=True)
class SampleRun:
    """Stands for a run: writes down when it began and how it ended, and returns its number."""

    folder: Path
    number: int
    seconds: float = 0.5
    command: tuple[str, ...] = ("sample",)  # no `zoo fit`

    @property
    def job(self) -> Any:
        """Its title and its folder, as those of a run."""
        return SimpleNamespace(title=f"sample {self.number}", folder=self.folder / f"s{self.number}", words=())

    def __call__(self, signal_of_stop: Callable[[], int] = int, *_: object) -> int:
        """Wait, or stop when told to. Raises ValueError for a number below zero."""
        self._note("began")
        end = time.monotonic() + self.seconds
        while time.monotonic() < end and not signal_of_stop():
            time.sleep(0.02)
        if self.number < 0:
            raise ValueError("a run of a negative number fails")
        self._note("ended")
        return self.number

    def _note(self, what: str) -> None:
        with (self.folder / f"{self.number}.txt").open("a") as file:
            file.write(f"{what} {time.time()}\n")


@contextlib.contextmanager
def started(subject: Independent) -> Iterator[tuple[Any, Path]]:
    """The executor, started for ``JOBS`` runs at once, and a folder. Raises Inapplicable where it cannot run here."""
    executor: Executor = subject.build()
    request = Request(JOBS, trainer={"accelerator": "cpu"})
    with tempfile.TemporaryDirectory() as folder:
        try:
            executor.check(request)
            executor.start(request)
        except UsageError as error:
            raise Inapplicable(f"it does not run here: {error}") from error
        try:
            yield executor, Path(folder)
        finally:
            executor.stop()


def notes_of(folder: Path) -> dict[int, list[str]]:
    """What each run wrote down: "began" and "ended" with the time."""
    return {int(path.stem): path.read_text().splitlines() for path in folder.glob("*.txt")}


def results_of(futures: list[Future[Any]]) -> list[Any]:
    """What runs returned, or the exceptions that they raised."""
    _, late = wait(futures, LIMIT)
    require(not late, f"{len(late)} of {len(futures)} runs have not ended after {LIMIT:.0f} seconds.")
    return [future.exception() or future.result() for future in futures]


def every_run_is_done(subject: Independent) -> None:
    """Each run is called once, as many at once as requested, and its future has what it returned or raised."""
    numbers = [1, 2, 3, -4, 5]
    with started(subject) as (executor, folder):
        results = results_of([executor.submit(SampleRun(folder, number)) for number in numbers])
        notes = notes_of(folder)
    for number, result in zip(numbers, results, strict=True):
        wrong = f"the future of run {number} has {result!r:.200}, the run has noted {notes.get(number)}."
        require(isinstance(result, Exception) if number < 0 else result == number, wrong)
        require(len(notes[number]) == 1 + (number > 0), wrong)
    times = [[float(note.split()[1]) for note in lines] for lines in notes.values() if len(lines) == 2]
    most = max(sum(begin <= other < end for begin, end in times) for other, _ in times)
    require(most <= JOBS, f"{most} runs were done at once, of at most {JOBS}.")


def stop_reaches_the_runs(subject: Independent) -> None:
    """A stop lets the runs end by themselves, returns after them, drops those that wait, and may be called again."""
    with started(subject) as (executor, folder):
        for number in range(JOBS + 1):
            executor.submit(SampleRun(folder, number, LONG))
        deadline = time.monotonic() + LIMIT
        while not notes_of(folder):
            require(time.monotonic() < deadline, f"no run has begun after {LIMIT:.0f} seconds.")
            time.sleep(0.05)
        executor.stop()
        notes = notes_of(folder)
        unsaved = [number for number, lines in notes.items() if not lines[-1].startswith("ended")]
        require(not unsaved, f"run {unsaved} was not told to stop, or was ended before it had saved its state.")
        require(len(notes) <= JOBS, f"{len(notes)} runs began, {JOBS} at once: one of them after the stop.")


def it_starts_again(subject: Independent) -> None:
    """After a stop it can be started again, and does runs as before."""
    for number in (1, 2):
        with started(subject) as (executor, folder):
            require(
                results_of([executor.submit(SampleRun(folder, number))]) == [number], f"start {number} runs nothing."
            )


def resources_are_documented(subject: Independent) -> None:
    """The docstring names every resource, an example is read, and an unknown resource is refused with its name."""
    executor = subject.build()
    for resource in executor.resources:
        documented = resource.name in (subject.part.__doc__ or "")
        require(documented, f"the docstring does not name the resource {resource.name}: zoo show does.")
        parse_resources(executor, f"{resource.name}={resource.example}")
    try:
        parse_resources(executor, "no-such-resource=1")
    except UsageError as error:
        require("no-such-resource" in str(error), f"the error does not name the unknown resource: {error}")
    else:
        require(False, "an unknown resource is ignored.")


PROMISES = [
    documentation, resources_are_documented, description_is_light, every_run_is_done, stop_reaches_the_runs,
    it_starts_again,
]  # fmt: skip
