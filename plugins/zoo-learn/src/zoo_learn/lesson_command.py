"""`zoo lesson`: pages that compute what they say, with exercises that check themselves."""

from __future__ import annotations

import sys
from typing import Any

from zoo import console
from zoo.command_line import ParsedOptions
from zoo.errors import UsageError
from zoo_learn.source import Lesson, get_lesson, lessons, parse_inputs

LIST_TITLE = {"en": "Lessons: zoo lesson NAME [--lang zh]", "zh": "课程: zoo lesson NAME --lang zh"}
INPUTS_TITLE = {
    "en": "Inputs that you may change with --set NAME=VALUE:",
    "zh": "可以用 --set NAME=VALUE 改变的输入:",
}
EXERCISES_TITLE = {
    "en": "Check an answer: zoo lesson {name} --exercise N --answer …",
    "zh": "检查答案: zoo lesson {name} --lang zh --exercise N --answer …",
}
RIGHT, WRONG = {"en": "right.", "zh": "答对了。"}, {"en": "not right. {hint}", "zh": "不对。{hint}"}


def run(options: ParsedOptions) -> int:
    """`zoo lesson [NAME]`."""
    language = options.get("lang")
    exercise, answer = options.get("exercise"), options.get("answer")
    if not options.words:
        for name in ("set", "exercise", "answer", "code"):
            if options.subset(name):
                raise UsageError(
                    f"'--{name}' needs a lesson: zoo lesson NAME --{name} … Lessons: {', '.join(lessons())}."
                )
        return _list(language, options.get("json"))
    lesson = get_lesson(options.words[0])
    inputs = parse_inputs(lesson, options.get("set"))
    if answer is not None and exercise is None:
        raise UsageError("'--answer' needs '--exercise N': which exercise does it answer?")
    count = lesson.facts["exercises"]
    if exercise is not None and exercise > count:
        raise UsageError(f"lesson {lesson.name} has exercises 1 to {count}, not {exercise}.")
    from zoo.cli import doctor

    doctor.check_torch()
    if exercise is not None:
        return _check_answer(lesson, inputs, exercise, answer, language, options.get("json"))
    return _read(lesson, inputs, language, options.get("code"), options.get("json"))


def _list(language: str, as_json: bool) -> int:
    """Print every lesson with one line."""
    rows = [(name, lesson.facts["title"][language], lesson.facts["summary"][language], list(lesson.inputs))
            for name, lesson in lessons().items()]  # fmt: skip
    if as_json:
        keys = ("name", "title", "summary", "inputs")
        print(console.as_json([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
        return 0
    width = max(len(name) for name, *_ in rows)
    print(LIST_TITLE[language])
    for name, title, summary, _ in rows:
        print(f"  {name:<{width}}  {title}: {summary}")
    return 0


def _read(lesson: Lesson, inputs: dict[str, Any], language: str, code: bool, as_json: bool) -> int:
    """Run a page and print what it reports, as it reports it."""
    from zoo_learn import page, render

    if as_json:
        result = page.run_lesson(lesson, inputs, code=code)
        events = [render.as_json(event, language) for event in result.events]
        title = lesson.facts["title"][language]
        document = {"lesson": lesson.name, "title": title, "language": language, "inputs": inputs, "events": events}
        print(console.as_json(document, indent=2))
        return 0
    print(INPUTS_TITLE[language])
    for name, facts in lesson.inputs.items():
        value = inputs[name]
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        print(f"  {name}={text}  {facts[language]}")
    page.run_lesson(lesson, inputs, lambda event: print(render.render(event, language), flush=True), code=code)
    print(f"\n{EXERCISES_TITLE[language].format(name=lesson.name)}")
    return 0


def _check_answer(
    lesson: Lesson, inputs: dict[str, Any], number: int, answer: str | None, language: str, as_json: bool
) -> int:
    """Compare an answer with the computed one: exit code 0 where it is right, 1 with a hint where it is not."""
    from zoo_learn import page
    from zoo_learn.render import in_language, wrap

    exercise = page.run_lesson(lesson, inputs, slow=False).exercises[number - 1]
    question, hint = in_language(exercise.question, language), in_language(exercise.hint, language)
    right = None if answer is None else exercise.accepts(answer)
    if as_json:
        document = {"lesson": lesson.name, "exercise": number, "question": question, "answer": answer, "right": right}
        print(console.as_json(document | ({"hint": hint} if right is False else {}), indent=2))
        return int(right is False)
    if right is None:
        print("\n".join(wrap(question)))
        return 0
    if right:
        print(RIGHT[language])
        return 0
    print("\n".join(wrap(WRONG[language].format(hint=hint))), file=sys.stderr)
    return 1
