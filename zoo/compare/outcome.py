"""What a comparison has shown, in one word and one exit code, for scripts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from zoo.compare.verdict import Answer

Outcome = Literal["better", "worse", "as good as", "undecided", "not comparable"]
EXIT_CODES: dict[Outcome, int] = {
    "better": 10, "worse": 11, "as good as": 12, "undecided": 13, "not comparable": 14,
}  # fmt: skip


def outcome(answer: Answer) -> Outcome:
    """The best that is shown of any variant: better, as good as; else undecided, if any is; else worse.

    "not comparable" if no variant may be compared, or there is none.
    """
    return outcome_of([row.verdict.word for row in answer.rows[1:]])


def outcome_of(verdicts: Iterable[str]) -> Outcome:
    """The same of the words of some verdicts."""
    words = [word for word in verdicts if word != "not comparable"]
    if not words:
        return "not comparable"
    if "better" in words:
        return "better"
    if "as good as" in words:
        return "as good as"
    return "worse" if set(words) == {"worse"} else "undecided"
