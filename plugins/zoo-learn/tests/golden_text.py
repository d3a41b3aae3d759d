"""Compares the text of a lesson with its golden file, and writes those files: python -m golden_text."""

import re
from pathlib import Path

from zoo_learn import page, render, source
from zoo_learn.events import Event

FOLDER = Path(__file__).parent / "golden"
MARKED = re.compile(rf"\s*([{render.MEASURED}{render.TIMED}])(-?[\d,]+(?:\.\d+)?(?:e[+-]?\d+)?)")
SHADED = re.compile("[░▒▓█]")


def run(name: str) -> page.Page:
    """The page of a lesson with its default inputs."""
    lesson = source.get_lesson(name)
    return page.run_lesson(lesson, source.parse_inputs(lesson, []))


def text_of(events: list[Event], language: str) -> str:
    return "\n".join(render.render(event, language) for event in events) + "\n"


def difference(golden: str, text: str) -> str:
    """The first line that differs; measured numbers may by a quarter or by 0.06, times by anything, bars with them."""
    lines, others = golden.splitlines(), text.splitlines()
    if len(lines) != len(others):
        return f"{len(lines)} lines, now {len(others)}"
    for line, other in zip(lines, others, strict=True):
        same = line == other or (not SHADED.search(line) and line.split() == other.split())  # columns grow with times
        if MARKED.search(line):
            frames = [" ".join(MARKED.sub(" #", one).replace("█", " ").split()) for one in (line, other)]
            pairs = zip(MARKED.findall(line), MARKED.findall(other), strict=False)
            same = frames[0] == frames[1] and all(near(one, another) for one, another in pairs)
        if not same and set(line) | set(other) != {" ", "─"}:  # the rule of a table is as wide as its numbers
            return f"{line!r} is now {other!r}"
    return ""


def near(one: tuple[str, str], other: tuple[str, str]) -> bool:
    first, second = (float(number.replace(",", "")) for _, number in (one, other))
    timed = one[0] == render.TIMED
    return one[0] == other[0] and (timed or abs(first - second) <= max(0.06, 0.25 * abs(first)))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in source.lessons():
        events = run(name).events
        for language in source.LANGUAGES:
            (FOLDER / f"{name}.{language}.txt").write_text(text_of(events, language), encoding="utf-8")
