"""`zoo docs`: a Markdown page for every installed part, made from its source, and an index of them.

Imports no part and no torch, unless the contracts are run.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

from zoo import console, recipe_files, registry
from zoo.cli.show import option_section
from zoo.command_line import ParsedOptions
from zoo.conformance.check_command import Report, examine
from zoo.conformance.check_process import Job
from zoo.conformance.new_command import recipes_of_kind, with_article
from zoo.errors import UsageError, ZooError
from zoo.io import atomic_files
from zoo.plugins import description, diagnosis, discovery
from zoo.plugins.description import Description, Member, cache_lookups, describe, describe_members
from zoo.registry import Part

SIGN = "<!-- written by: zoo docs -->"
INDEX = "index.md"
# methods of the way a part is built, which say nothing of what it computes
BUILDING = ("reset_parameters", "reference", "extra_repr")
STATUS = {"trains": "trains", "refused": "is refused", "BROKEN": "is broken"}


def run(options: ParsedOptions) -> int:
    """`zoo docs DIR`."""
    folder = Path(options.words[0])
    parts = selected_parts(options.get("package"))
    paths = page_paths(parts)
    for path in (INDEX, *paths.values()):
        _check_target(folder / path)
    if folder.exists() and not folder.is_dir():  # before minutes of checks and the text of all pages
        raise UsageError(f"cannot write into {folder}: {os.strerror(errno.ENOTDIR)}")
    reports: dict[Part, Report | str] = {}
    if options.get("check"):
        from zoo.cli import doctor

        doctor.check_torch()
        for part in parts:
            reports[part] = contract(part, options.get("timeout"), options.get("debug"))
            print(f"{part}: {contract_summary(reports[part])}", flush=True)
    with cache_lookups():
        pages = {paths[part]: page(part, reports.get(part)) for part in parts}
    pages[INDEX] = index_page(paths, reports)
    try:
        for path, text in pages.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            atomic_files.write_text(folder / path, console.printable(text, lines=True))
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror or error}") from error
    print(f"{len(parts)} pages → {folder / INDEX}")
    return 1 if any(isinstance(report, str) or report.failed(False) for report in reports.values()) else 0


def selected_parts(packages: list[str]) -> list[Part]:
    """The parts that can be selected, of these packages or all. Raises UsageError for a package without parts."""
    every = [part for kind in registry.KINDS for part in registry.parts(kind)]
    names = {discovery.normalize_name(part.distribution) for part in every}
    normal_names = {discovery.normalize_name(name) for name in packages}
    if missing := sorted(normal_names - names):
        raise UsageError(f"no installed package {missing[0]!r} with parts.{registry.suggest(missing[0], names)}")
    return [part for part in every if not packages or discovery.normalize_name(part.distribution) in normal_names]


def page_paths(parts: list[Part]) -> dict[Part, str]:
    """The path of each part's page in the folder: ``norm/rmsnorm.md``, with the package where two have one name."""
    counts = Counter((part.kind, part.name.lower()) for part in parts)
    suffixes = {part: f"-{part.distribution}" if counts[part.kind, part.name.lower()] > 1 else "" for part in parts}
    return {part: f"{part.kind}/{part.name}{suffixes[part]}.md".lower() for part in parts}


def contract(part: Part, timeout: float, debug: bool) -> Report | str:
    """The outcomes of a part's contract with its facts, or the sentence why it cannot be checked."""
    job = Job(part.kind, part.name, [], [], debug, facts=True)
    try:
        *_, report = examine(job, timeout)
    except ZooError as error:
        return str(error)
    return report


def contract_summary(report: Report | str | None) -> str:
    """The result of a contract in a few words."""
    if report is None:
        return "not run"
    return "cannot be checked" if isinstance(report, str) else report.verdict()


def index_page(paths: dict[Part, str], reports: dict[Part, Report | str]) -> str:
    """A table of all parts for each kind, with links to their pages."""
    lines = [SIGN, "# Parts", ""]
    for kind in registry.KINDS:
        rows = [
            [f"[{part.name}]({path})", _cell(describe(part).summary), part.origin, contract_summary(reports.get(part))]
            for part, path in paths.items()
            if part.kind == kind
        ]
        if rows:
            headings = ["part", "what it is", "from", "contract"]
            lines += [f"## {kind}", "", *_table(headings, rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def page(part: Part, report: Report | str | None) -> str:
    """The page of one part."""
    about = describe(part)
    module, _, name = part.target.partition(":")
    members = describe_members(module, name)
    methods = [member for member in members if member.method and member.text and member.name not in BUILDING]
    values = [member for member in members if not member.method and member.name != "kind"]
    sections = {
        "Use": _use(part, about),
        "Options": _options(part, about),
        "Shapes": [f"- `{method.name}{method.code}`: {method.text}" for method in methods],
        "What it declares": _table(["attribute", "value"], [[f"`{value.name}`", _code(value)] for value in values]),
        "Cost": _cost(report),
        "Combines with": _partners(report),
        "Contract": _contract(part, report),
    }
    head = [
        SIGN,
        f"# {part.name}",
        "",
        f"{with_article(part.kind).capitalize()} of {part.origin}, [all parts](../{INDEX}).",
    ]
    problems = [f"**Problem**: {problem}." for problem in diagnosis.problems(part)]
    text = about.text or "Its source cannot be found."
    lines = [*head, *problems, "", _prose(text), ""]
    for heading, rows in sections.items():
        if rows:
            lines += [f"## {heading}", "", *rows, ""]
    return "\n".join(lines).rstrip() + "\n"


def _use(part: Part, about: Description) -> list[str]:
    """The class path, the constructor, and a command that trains with the part."""
    return [
        f"Class path `{part.path}`, entry point `{part.entry}`.",
        "", "```python", f"{part.name}{signature(part)}", "```",
        "", "```bash", example(part), f"zoo show {part.kind} {part.name}", "```",
    ]  # fmt: skip


def signature(part: Part) -> str:
    """The constructor's parameters, those that the model passes first."""
    module, _, name = part.target.partition(":")
    options = description.describe_class(module, name).options
    parameters = [
        f"{option.name}{f': {option.type}' if option.type else ''}"
        f"{f' = {option.default}' if option.default is not None else ''}"
        for option in options
    ]
    line = f"({', '.join(parameters)})"
    return line if len(line) <= 100 else "(\n    " + ",\n    ".join(parameters) + ",\n)"


def example(part: Part) -> str:
    """A command that trains with the part: the shortest packaged recipe that names it, or else its option."""
    if part.kind in ("task", "data"):
        name = rf"\b{part.name}\b"
        naming = (file for file in recipe_files.recipes() if re.search(name, file.path.read_text("utf-8")))
        if recipe := min(naming, key=lambda file: len(file.name), default=None):
            return f"zoo fit {recipe.name}"
    return recipes_of_kind(part.kind, part.name)


def _options(part: Part, about: Description) -> list[str]:
    section = option_section(part.kind)
    rows = [
        [f"`--{section}.{option.name}`", f"`{_cell(option.type)}`" if option.type else "",
         "required" if option.default is None else f"`{_cell(option.default)}`", _cell(option.about)]
        for option in about.options
    ]  # fmt: skip
    return _table(["option", "type", "default", "what it is"], rows)


def _cost(report: Report | str | None) -> list[str]:
    cost = report.facts.get("cost") if isinstance(report, Report) else None
    if not cost:
        return []
    rows = [
        [name, *(f"{value:,.0f}" for value in cost[key])]
        for key, name in (("parameters", "parameters"), ("flops", "forward FLOPs per token"))
    ]
    note = "A language model of one layer of width 64 with 4 heads, 64 tokens in its vocabulary and its context:"
    return [note, "", *_table(["", "with it", "by default"], rows)]


def _partners(report: Report | str | None) -> list[str]:
    """One line for each kind: the parts that train with it, and each sentence that refuses others."""
    results: list[dict[str, Any]] = report.facts.get("combinations", []) if isinstance(report, Report) else []
    lines = []
    for kind in dict.fromkeys(result["kind"] for result in results):
        reasons: dict[tuple[str, str], list[str]] = {}
        for result in results:
            if result["kind"] == kind:
                reasons.setdefault((result["status"], " ".join(result["sentence"].split())), []).append(result["name"])
        for (status, sentence), names in reasons.items():
            lines.append(f"- {kind}: {STATUS[status]} with {', '.join(names)}{f': {sentence}' if sentence else ''}")
    return ["In a language model, two steps each:", "", *lines] if lines else []


def _contract(part: Part, report: Report | str | None) -> list[str]:
    command = f"`zoo check {part.kind} {part.name}`"
    if report is None:
        return [f"Not run for this page: {command}."]
    if isinstance(report, str):
        return [f"{command} cannot check it: {' '.join(report.split())}"]
    rows = [
        [outcome["name"], outcome["status"], _cell(" ".join(outcome["sentence"].split()))]
        for outcome in report.outcomes
    ]
    return [f"{command}: {report.verdict()}.", "", *_table(["check", "outcome", "why"], rows)]


def _code(member: Member) -> str:
    return f"`{_cell(member.code)}`" + (f" {_cell(member.text)}" if member.text else "")


def _table(headings: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table; nothing without rows."""
    lines = [headings, ["-"] * len(headings), *rows] if rows else []
    return [f"| {' | '.join(row)} |" for row in lines]


def _cell(text: str) -> str:
    """A text in one cell of a table, between backticks or not."""
    return " ".join(text.split()).replace("|", "\\|")


def _prose(text: str) -> str:
    """A docstring as Markdown: without its arguments, and a heading in it is none."""
    prose = re.sub(r"\n *Args:\n.*", "", f"\n{text}", flags=re.DOTALL).strip()
    return re.sub(r"^([#<])", r"\\\1", prose, flags=re.MULTILINE).replace("](", "]\\(")


def _check_target(target: Path) -> None:
    """Raise UsageError for a file that cannot be written, or that `zoo docs` has not written."""
    if target.is_dir() or (target.is_file() and not target.read_bytes().startswith(SIGN.encode())):
        raise UsageError(f"{target} exists and was not written by zoo docs. Name another folder, or remove it.")
