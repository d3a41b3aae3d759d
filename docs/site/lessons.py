"""The lessons as pages, in both languages, from the same files as `zoo lesson`."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

from zoo_learn import source
from zoo_learn.events import Event, flatten
from zoo_learn.render import BETWEEN_CHINESE, MEASURED, TIMED, in_language, numbers, render, word

from docs.site.sources import toctree

TITLES = {"en": "Lessons", "zh": "课程"}
INTRODUCTIONS = {
    "en": "A short course on Transformers whose numbers were computed when this page was made. `zoo lesson NAME` runs "
    "a lesson, with other inputs if you like, and checks answers: [all options](../../plugins/zoo-learn/README.md).",
    "zh": "一门关于 Transformer 的短课，页面上的数字都是生成页面时计算出来的。"
    "`zoo lesson NAME --lang zh` 可以运行一课，修改输入，并检查练习的答案："
    "[所有选项](../../plugins/zoo-learn/README.md)。",
}
CODE = {"en": "Code", "zh": "代码"}
RESULT, STATEMENT = "result", "statement"  # neighbours of a form are shown together
FORMS = {"value": RESULT, "bars": RESULT, "heat": RESULT, "comparison": STATEMENT, "claim": STATEMENT}
COLUMNS = {"en": ("lesson", "content"), "zh": ("课", "内容")}


def write_pages(folder: Path, execute: bool = True) -> None:
    """Run every lesson once, and write a page for each language; without ``execute``, texts and code alone."""
    lessons = source.lessons()
    for language in source.LANGUAGES:
        (folder / language).mkdir(parents=True)
        rows = [
            f"| [{one.facts['title'][language]}]({name}.md) | {one.facts['summary'][language]} |"
            for name, one in lessons.items()
        ]
        heading = " | ".join(COLUMNS[language])
        lines = [f"# {TITLES[language]}", "", INTRODUCTIONS[language], "", f"| {heading} |", "|---|---|", *rows, ""]
        path = folder / language / "index.md"
        path.write_text("\n".join(lines) + toctree("", lessons), encoding="utf-8")
    for name, lesson in lessons.items():
        events = run(lesson) if execute else texts(lesson)
        for language in source.LANGUAGES:
            (folder / language / f"{name}.md").write_text(page(lesson, events, language), encoding="utf-8")


def run(lesson: source.Lesson) -> list[Event]:
    """All events of a lesson with its default inputs, its code among them."""
    from zoo_learn.page import run_lesson

    return run_lesson(lesson, source.parse_inputs(lesson, []), code=True).events


def texts(lesson: source.Lesson) -> list[Event]:
    """The texts of a lesson that does not run."""
    pairs: dict[str, str] = {}
    events = []
    for cell in lesson.cells:
        if cell.language:
            pairs[cell.language] = cell.content
            if len(pairs) == len(source.LANGUAGES):
                events.append(Event("text", {"text": pairs}))
                pairs = {}
    return events


def page(lesson: source.Lesson, events: list[Event], language: str) -> str:
    """A lesson as Markdown: neighbouring results share a block of text, statements a list, and code is folded."""
    other = next(one for one in source.LANGUAGES if one != language)
    blocks: list[str] = []
    for kind, group in itertools.groupby(events, lambda event: FORMS.get(event.kind, event.kind)):
        if kind == RESULT:
            blocks.append(fenced("text", "\n".join(render(event, language) for event in group)))
        elif kind == STATEMENT:
            blocks.append("{.statements}\n" + "\n".join(statement(event, language) for event in group))
        else:
            blocks += [MARKDOWN[kind](event, language) for event in group]
    link = f"[{lesson.facts['title'][other]}](../{other}/{lesson.name}.md)"
    first, *rest = [block for block in blocks if block]
    while not first.startswith("# "):  # code in front of the title
        rest.append(first)
        first, *rest = rest
    return "\n\n".join([first.partition("\n")[0], link, first.partition("\n")[2].strip(), *rest]) + "\n"


def fenced(language: str, text: str) -> str:
    """A block of code or output."""
    return f"```{language}\n{text.strip(chr(10))}\n```"


def statement(event: Event, language: str) -> str:
    """A comparison or a claim as an item of a list, with its reason on a line of its own."""
    fields, lines = event.fields, render(event, language).splitlines()
    if event.kind == "comparison":
        reason = [f"{word('why', language)}: {in_language(fields['why'], language)}"] if fields["why"] else []
        texts = [lines[0], *reason]
    else:
        texts = [
            f"{lines[0][0]} {word('claim', language)}: {in_language(fields['statement'], language)}",
            f"{word('correct', language)}: {in_language(fields['correct'], language)}",
            *([lines[-1]] if fields["numbers"] is not None else []),
        ]
    escaped = (re.sub(r"([\\*_<`])", r"\\\1", " ".join(join_chinese(text).split())) for text in texts)
    return "- " + "\\\n  ".join(escaped)


def join_chinese(text: str) -> str:
    """A paragraph without breaks of lines between Chinese characters, which a browser would show as spaces."""
    return BETWEEN_CHINESE.sub("", text)


def _text(event: Event, language: str) -> str:
    return "\n\n".join(join_chinese(one) for one in event.fields["text"][language].split("\n\n"))


def _code(event: Event, language: str) -> str:
    code = fenced("python", event.fields["code"])
    return f"<details><summary>{CODE[language]}</summary>\n\n{code}\n\n</details>"


def _table(event: Event, language: str) -> str:
    fields = event.fields
    marks = {**dict.fromkeys(fields["measured_columns"], MEASURED), **dict.fromkeys(fields["timed_columns"], TIMED)}

    def cell(item: Any, column: int) -> str:
        if isinstance(item, int | float | list):
            texts = numbers(flatten([item]), fields["digits"], marks.get(column, ""))
            return "  ".join(texts)
        return in_language(item, language).replace("|", "\\|")

    headings = [in_language(one, language) for one in fields["headings"]]
    lines = [[cell(item, column) for column, item in enumerate(line)] for line in fields["lines"]]
    numeric = [
        all(isinstance(line[column], int | float | list) for line in fields["lines"]) for column in range(len(headings))
    ]
    rule = ["---:" if right else "---" for right in numeric]
    return "\n".join(f"| {' | '.join(line)} |" for line in [headings, rule, *lines])


def _exercise(event: Event, language: str) -> str:
    question = " ".join(in_language(event.fields["question"], language).split())
    return f"**{word('exercise', language)} {event.fields['number']}.** {question}"


MARKDOWN = {"text": _text, "code": _code, "table": _table, "exercise": _exercise}
