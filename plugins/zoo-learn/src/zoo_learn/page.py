"""What the code of a page reports: numbers, comparisons with printed ones, tables, charts and exercises.

A page asks ``open_page`` for the page that runs, and reports to it. Every report is an event, which the command prints,
``--json`` lists and the tests read.
"""

from __future__ import annotations

import contextlib
import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zoo.errors import UsageError
from zoo_learn.events import Event, Pair, as_lists, both, flatten
from zoo_learn.render import render
from zoo_learn.source import LANGUAGES, Lesson, Text, parse_value

_active: list[Page] = []


def normalize_answer(text: str) -> str:
    """A typed answer with the digits, commas and minus signs of ASCII, however a keyboard writes them."""
    return unicodedata.normalize("NFKC", text).replace("、", ",").replace("−", "-").strip()


@dataclass(frozen=True)
class Exercise:
    """A question with an answer that is computed, and a hint that does not give it away."""

    number: int
    question: Text
    hint: Text
    answer: Any  # a number, a list of numbers, or a word
    synonyms: tuple[str, ...] = ()
    tolerance: float = 0.0

    def accepts(self, text: str) -> bool:
        """Whether an answer is right. Raises UsageError for one that cannot be an answer."""
        if isinstance(self.answer, str):
            return normalize_answer(text).lower() in {self.answer.lower(), *(one.lower() for one in self.synonyms)}
        many = isinstance(self.answer, list)
        default: Any = [0.0] * len(self.answer) if many else 0.0
        value = parse_value(f"the answer to exercise {self.number}", normalize_answer(text), {"default": default})
        values, answers = (value, self.answer) if many else ([value], [self.answer])
        if not all(map(math.isfinite, values)):
            raise UsageError(f"the answer to exercise {self.number} must be finite, got {text!r}.")
        return all(abs(one - other) <= self.tolerance for one, other in zip(values, answers, strict=True))


@dataclass
class Page:
    """A page while it runs: its inputs, and the events that it has reported."""

    inputs: dict[str, Any]
    changed: frozenset[str] = frozenset()  # names of inputs that are not the defaults
    listen: Callable[[Event], None] = lambda event: None
    events: list[Event] = field(default_factory=list)
    exercises: list[Exercise] = field(default_factory=list)

    def __getitem__(self, name: str) -> Any:
        """The value of an input."""
        return self.inputs[name]

    def report(self, kind: str, rows: str | Iterable[str] = (), measured: bool = False, **fields: Any) -> None:
        """Add an event and pass it to the listener."""
        event = Event(kind, fields, tuple(rows.split() if isinstance(rows, str) else rows), measured)
        self.events.append(event)
        self.listen(event)

    def show(self, label: Pair | str, value: Any, digits: int = 4, rows: str = "", measured: bool = False) -> None:
        """A number, a vector or a matrix, with at most so many digits after the point."""
        self.report("value", rows, measured, label=both(label), value=as_lists(value), digits=digits)

    def compare(
        self,
        label: Pair | str,
        printed: Any,
        computed: Any,
        why: Pair | str = "",
        *,
        digits: int = 4,
        of: str = "",
        tolerance: float | None = None,
        rows: str = "",
    ) -> None:
        """A printed number, or several, beside the computed one: marked right where they agree after rounding.

        ``printed`` is the text of numbers as they stand in print. Without ``tolerance`` they agree to half a unit of
        their last digit. ``of`` names inputs: where one of them is changed, what is printed has no meaning and is left
        out.
        """
        texts = printed.split()
        values = [float(one) for one in flatten(as_lists(computed))]
        bound = [0.5000001 * 10.0 ** -len(text.partition(".")[2]) if tolerance is None else tolerance for text in texts]
        right = len(texts) == len(values) and all(
            abs(float(text.replace(",", "")) - value) <= most
            for text, value, most in zip(texts, values, bound, strict=True)
        )
        if self.changed & set(of.split()):
            self.show(label, computed, digits)
            return
        reason = both(why) if why else ""
        self.report(
            "comparison", rows, label=both(label), printed=texts, computed=as_lists(computed), digits=digits,
            right=right, why=reason,
        )  # fmt: skip

    def claim(
        self, statement: Pair, holds: bool, correct: Pair, rows: str = "", numbers: Any = None, digits: int = 4
    ) -> None:
        """A statement of the notes in our words, whether a computation confirms it, and what is right."""
        value = None if numbers is None else as_lists(numbers)
        self.report(
            "claim", rows, statement=both(statement), right=bool(holds), correct=both(correct), numbers=value,
            digits=digits,
        )  # fmt: skip

    def table(
        self,
        headings: Sequence[Pair | str],
        lines: Sequence[Sequence[Any]],
        rows: str = "",
        digits: int = 4,
        measured: Sequence[int] = (),
        timed: Sequence[int] = (),
        name: str = "",
    ) -> None:
        """A table; ``measured`` and ``timed`` number the columns that differ a little, or much, between machines.

        ``name`` is for programs that read it.
        """
        content = [[both(cell) if isinstance(cell, tuple) else as_lists(cell) for cell in line] for line in lines]
        self.report(
            "table", rows, bool(measured or timed), headings=[both(one) for one in headings], lines=content,
            digits=digits, measured_columns=list(measured), timed_columns=list(timed), name=name,
        )  # fmt: skip

    def bars(
        self,
        label: Pair | str,
        values: Mapping[str, float],
        digits: int = 4,
        rows: str = "",
        measured: bool = False,
        log: bool = False,
        name: str = "",
    ) -> None:
        """A bar for each value, from zero, or on a logarithmic scale from a thousandth of the smallest one.

        ``name`` is for programs that read it.
        """
        numbers = {name: float(value) for name, value in values.items()}
        self.report("bars", rows, measured, label=both(label), values=numbers, digits=digits, log=log, name=name)

    def heat(
        self,
        label: Pair | str,
        matrix: Any,
        names: Sequence[Pair | str],
        columns: Sequence[Pair | str] = (),
        measured: bool = False,
        rows: str = "",
    ) -> None:
        """A matrix as shades, dark where it is large; ``names`` of its rows, ``columns`` of its columns."""
        self.report(
            "heat", rows, measured, label=both(label), matrix=as_lists(matrix),
            names=list(map(both, names)), columns=list(map(both, columns)),
        )  # fmt: skip

    def exercise(
        self, question: Pair, answer: Any, hint: Pair, tolerance: float = 0.0, synonyms: Sequence[str] = ()
    ) -> None:
        """A question whose answer (a number, several, or a word) this page has computed."""
        value = as_lists(answer)
        exercise = Exercise(len(self.exercises) + 1, both(question), both(hint), value, tuple(synonyms), tolerance)
        self.exercises.append(exercise)
        self.report("exercise", number=exercise.number, question=exercise.question)


def open_page(facts: Mapping[str, Any]) -> Page:
    """The page that runs; for a script that runs by itself, one with the default inputs that prints in English."""
    if _active:
        return _active[-1]
    return Page(
        {name: one["default"] for name, one in facts["inputs"].items()},
        listen=lambda event: print(render(event, LANGUAGES[0])),
    )


@contextlib.contextmanager
def _activate(page: Page) -> Iterator[None]:
    _active.append(page)
    try:
        yield
    finally:
        _active.pop()


def run_lesson(
    lesson: Lesson,
    inputs: Mapping[str, Any],
    listen: Callable[[Event], None] = lambda event: None,
    slow: bool = True,
    code: bool = False,
) -> Page:
    """Run a page and return it with its events. torch's random state is what it was afterwards.

    Args:
        lesson: the page.
        inputs: the value of each of its inputs.
        listen: called with each event as it happens.
        slow: run cells that measure or train too.
        code: report the code of each cell as an event in front of what it reports.
    """
    import torch

    changed = frozenset(name for name, facts in lesson.inputs.items() if inputs[name] != facts["default"])
    page = Page(dict(inputs), changed, listen)
    namespace: dict[str, Any] = {"__name__": f"zoo_lesson_{lesson.name}"}
    texts: dict[str, str] = {}
    with _activate(page), torch.random.fork_rng(devices=[]):
        for cell in lesson.cells:
            if cell.language:
                texts[cell.language] = cell.content
                if len(texts) == len(LANGUAGES):
                    page.report("text", text=texts)
                    texts = {}
            elif slow or not cell.slow:
                if code:
                    page.report("code", code=cell.content.strip("\n"))
                program = compile("\n" * (cell.line - 1) + cell.content, str(lesson.path), "exec")
                exec(program, namespace)
    return page
