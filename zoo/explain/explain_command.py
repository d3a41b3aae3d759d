"""`zoo explain`: what a recipe, a trained model or a part computes, and what each piece costs."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from zoo import registry
from zoo.cli import doctor, table_printing, warning_filters
from zoo.command_line import ParsedOptions
from zoo.console import printable
from zoo.errors import UsageError
from zoo.io import atomic_files


def run(options: ParsedOptions) -> int:
    """Explain one model or part, or the difference of two."""
    words, other_words = split_words(options.words)
    _check_inputs(options, words)
    _refuse_unknown([words, other_words])
    doctor.check_torch()
    warning_filters.filter_warnings(options.get("debug"))
    from zoo.explain import ceilings, costs, report
    from zoo.explain.subjects import find_subject, with_options

    where = {"runs": options.get("runs"), "allow": options.allowed}
    settings = list(options.settings)
    subjects = [find_subject(words, settings, where)]
    if other_words:
        changes = with_options(other_words)
        subjects.append(find_subject(words if changes else other_words, [*settings, *(changes or [])], where))
    machine = ceilings.this_machine(options.get("measure"))
    explained = [costs.explain(subject, machine) for subject in subjects]
    inside = _look_inside(options, subjects[-1])
    if options.get("html") is not None:
        _write(options.get("html"), report.page(explained, inside))
    if options.get("json"):
        values: dict[str, Any] = report.as_values(explained[0], inside if len(explained) == 1 else None)
        if len(explained) == 2:
            second_values = report.as_values(explained[1], inside)
            values = {"first": values, "second": second_values, "difference": report.difference_values(*explained)}
        table_printing.as_json(values)
        return 0
    _print(explained, inside)
    return 0


def split_words(words: list[str] | tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The words of the first subject and those of the second. Raises UsageError for too many."""
    kinds = registry.STACK_KINDS
    kind = words[0].lower().rstrip("s")
    if kind in kinds and not Path(words[0]).exists():
        if len(words) == 1:
            raise UsageError(f"name a part too: zoo explain {kind} NAME. See: zoo list {kind}")
        further = list(words[2:])
        if len(further) > 2 or (len(further) == 2 and further[0].lower().rstrip("s") != kind):
            raise UsageError(f"two parts at most are explained together: zoo explain {kind} NAME OTHER")
        return [kind, words[1]], [kind, further[-1]] if further else []
    others = list(words[1:])
    if len(others) > 1 and not all("=" in word for word in others):
        raise UsageError(f"two models at most are explained together, got {len(words)}. See: zoo explain --help")
    return [words[0]], others


def _check_inputs(options: ParsedOptions, words: list[str]) -> None:
    if options.get("text") is not None and options.get("image") is not None:
        raise UsageError("--text and --image exclude each other: a model reads one of them.")
    option = "--text" if options.get("text") is not None else "--image" if options.get("image") is not None else ""
    if option and len(words) == 2:
        raise UsageError(f"{option}: a part by itself reads nothing. Name a recipe or a run.")


def _refuse_unknown(subjects: list[list[str]]) -> None:
    """Refuse unknown parts and recipes before torch is imported."""
    from zoo import recipe_files
    from zoo.plugins import diagnosis

    for words in subjects:
        if len(words) == 2 and words[0] in registry.STACK_KINDS:
            diagnosis.choose_part(words[0], words[1])
        elif len(words) == 1 and not Path(words[0]).exists() and "=" not in words[0]:
            recipe_files.find_recipe(words[0])


def _look_inside(options: ParsedOptions, subject: Any) -> Any:
    """Attention and predictions for the input of the command line; None without one."""
    text, image = options.get("text"), options.get("image")
    if text is None and image is None:
        return None
    from zoo.explain.inside import look_inside
    from zoo.inference.load import choose_device

    with ExitStack() as stack:
        return look_inside(subject.open(stack, str(choose_device(options.get("device")))), text, image)


def _write(name: str, text: str) -> None:
    path = Path(name)
    try:
        atomic_files.write_bytes(path, text.encode())
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}. Name a file in a folder that exists."
        ) from error
    print(f"{printable(str(path))}: open it in a browser", file=sys.stderr)


def _print(explained: list[Any], inside: Any) -> None:
    from zoo.explain import report

    for explanation in explained:
        print(printable(explanation.subject.title))
        if not explanation.subject.trained and len(explanation.subject.options) > 1:
            print(report.RANDOM)
        for note in explanation.subject.notes:
            print(f"note: {printable(note)}")
    print(report.ceilings_line(explained[0]))
    print(report.COUNTING)
    if len(explained) == 2:
        tables_to_print = report.difference_tables(*explained)
    else:
        tables_to_print = [
            report.part_table(explained[0]),
            *report.block_tables(explained[0]),
            report.option_table(explained[0]),
        ]
    for table in [*tables_to_print, *(report.inside_tables(inside) if inside else [])]:
        print(f"\n{printable(table.title)}")
        if table.rows:
            table_printing.table(table.headings, table.rows)
        else:
            print("nothing")
        for note in table.notes:
            print(printable(note))
    lines = report.memory_lines(explained[0]) if len(explained) == 1 else []
    print("\n".join(["", *lines]) if lines else "", end="\n" if lines else "")
