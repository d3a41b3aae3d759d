"""The commands that read: list, show, recipes, cp. They import no part and no torch."""

from __future__ import annotations

import fnmatch
import re
import shlex
from pathlib import Path

from zoo import recipe_files, registry
from zoo.cli import table_printing
from zoo.command_line import ParsedOptions
from zoo.config.layers import Node, where
from zoo.errors import UsageError
from zoo.plugins import diagnosis
from zoo.plugins.description import Option, cache_lookups, describe
from zoo.registry import Part
from zoo.system.garbage_collection import pause_collection

USES = {
    "command": "zoo {command} --help", "family": "zoo import CHECKPOINT OUT",
    "executor": "zoo compare RECIPE --vary OPTION=VALUE,VALUE --executor {command}",
    "design": "zoo compare --help",
}  # fmt: skip
# the type of an option that takes a part
PART = re.compile(r"Callable\[.*\b(Position|Backend|Attention|Norm|FFN|Block|Init)\]|\b(Optimizer|Schedule)Factory")


def check_kind(kind: str) -> str:
    """A kind's name in its right form. Raises UsageError that lists the kinds."""
    if kind.lower().rstrip("s") in registry.KINDS:
        return kind.lower().rstrip("s")
    if kind.lower() in registry.KINDS:
        return kind.lower()
    raise UsageError(
        f"unknown kind {kind!r}.{registry.suggest(kind, registry.KINDS)} Kinds: {', '.join(registry.KINDS)}"
    )


def list_parts(options: ParsedOptions) -> int:
    """`zoo list [KIND] [GLOB]`."""
    kinds, words = list(registry.KINDS), list(options.words)
    if words and not any(mark in words[0] for mark in "*?["):
        kinds = [check_kind(words.pop(0))]
    if len(words) > 1:
        raise UsageError(f"one pattern at a time: got {words[0]!r} and {words[1]!r}. See: zoo list --help")
    pattern = words[0].lower() if words else "*"
    parts = [
        part for kind in kinds for part in registry.installed_parts(kind) if fnmatch.fnmatch(part.name.lower(), pattern)
    ]
    if not parts:
        raise UsageError(f"no part matches {pattern!r}. See all: zoo list")
    with pause_collection(), cache_lookups():  # syntax trees live until the end
        if options.get("json"):
            table_printing.as_json([_summary(part) for part in parts])
            return 0
        part_problems = {part: problem for part in parts if (problem := "; ".join(diagnosis.problems(part)))}
        rows = [
            [part.kind, part.name, ("! " if part in part_problems else "") + _brief(part), part.origin]
            for part in parts
        ]
    table_printing.table(["kind", "name", "what it is", "from"], rows)
    for part, problem in part_problems.items():
        print(f"! {part}: {problem}")
    for flaw in registry.metadata_flaws() if len(kinds) > 1 else ():
        print(f"! {flaw.package.origin}: {flaw.reason} ({flaw.package.home})")
    return 0


def show(options: ParsedOptions) -> int:
    """`zoo show KIND NAME` or `zoo show RECIPE`."""
    if len(options.words) == 1:
        return _show_recipe(options)
    kind = check_kind(options.words[0])
    part = diagnosis.find_part(kind, options.words[1])
    about = describe(part)
    if options.get("json"):
        table_printing.as_json({**_summary(part), **about.as_dict()})
        return 0
    print(f"{part.kind} {part.name} ({part.origin}, {part.path})")
    print(about.summary or "Its source cannot be found.")
    for line in _problems(part):
        print(line)
    section = option_section(kind)
    name = f"{part.path} --allow-import {part.module}" if "." in options.words[1] else part.name
    print(f"\nUse it: {USES.get(kind, '--{section} {name}').format(section=section, name=name, command=name.lower())}")
    if about.options and kind not in registry.APPLICATION_KINDS:
        print("Options:")
        table_printing.table(
            ["option", "type", "default", "what it is"], [_row(section, option) for option in about.options]
        )
    return 0


def option_section(kind: str) -> str:
    """Where a configuration names a part of a kind: ``model.norm``."""
    return {"task": "model", "data": "data", "callback": "trainer.callbacks"}.get(kind, f"model.{kind}")


def recipes(options: ParsedOptions) -> int:
    """`zoo recipes [GLOB]`."""
    pattern = options.words[0].lower() if options.words else "*"
    matching = [recipe for recipe in recipe_files.recipes() if fnmatch.fnmatch(recipe.name.lower(), pattern)]
    if options.get("json"):
        keys = ("name", "header", "path", "distribution")
        table_printing.as_json(
            [{key: getattr(item, key) for key in keys} | {"path": str(item.path)} for item in matching]
        )
        return 0
    if not matching:
        print("no recipes" if pattern == "*" else f"no recipe matches {pattern!r}")
        return 0
    table_printing.table(
        ["recipe", "what it does"], [[recipe.name, recipe.summary + _package_note(recipe)] for recipe in matching]
    )
    return 0


def _package_note(recipe: recipe_files.Recipe) -> str:
    return "" if recipe.builtin else f" ({recipe.distribution})"


def copy(options: ParsedOptions) -> int:
    """`zoo cp RECIPE DEST`."""
    target = recipe_files.copy_recipe(options.words[0], options.words[1], options.get("force"))
    print(f"{target}\nTrain it: zoo fit {shlex.quote(str(target))}")
    return 0


def _summary(part: Part) -> dict[str, str | None]:
    return {
        "kind": part.kind, "name": part.name, "path": part.path,
        "distribution": part.distribution, "version": part.version, "summary": describe(part).summary,
        "entry_point": part.entry, "location": diagnosis.part_location(part),
        "problem": "; ".join(diagnosis.problems(part)) or None,
    }  # fmt: skip


def _brief(part: Part) -> str:
    text = describe(part).summary
    return text if len(text) <= 90 else text[:89] + "…"


def _problems(part: Part) -> list[str]:
    """What is wrong with a part, and with others of its name."""
    lines = [f"Problem: {problem}. See: zoo doctor" for problem in diagnosis.problems(part)]
    others = [twin for twin in registry.parts_called(part.kind, part.name) if twin != part]
    return [*lines, *(f"{twin.origin} has one too: {'; '.join(diagnosis.problems(twin))}" for twin in others)]


def _row(section: str, option: Option) -> list[str]:
    part = PART.search(option.type)
    kind = f"one of: zoo list {(part[1] or part[2]).lower()}" if part else option.type
    default = "required" if option.default is None else option.default
    return [f"--{section}.{option.name}", kind, default, option.about]


def _show_recipe(options: ParsedOptions) -> int:
    """A recipe's text, then every value with its line and the part that a name stands for."""
    name = options.words[0]
    if name.lower() in registry.KINDS:
        return list_parts(options)
    from zoo.config import yaml_source

    kinds = [kind for kind in registry.KINDS if registry.parts_called(kind, name)]
    if kinds and recipe_files.packaged_recipe(name) is None and not Path(name).exists():
        raise UsageError(f"{name!r} is a part, not a recipe. Name its kind too: zoo show {kinds[0]} {name}")
    path = recipe_files.find_recipe(name)
    leaves = list(yaml_source.read_yaml(path).leaves())
    if options.get("json"):
        values = [{"key": key, "value": node.plain_value(), "origin": node.origin} for key, node in leaves]
        table_printing.as_json({"recipe": name, "path": str(path), "text": path.read_text("utf-8"), "values": values})
        return 0
    print(path.read_text("utf-8").rstrip())
    print()
    for key, node in leaves:
        origin = where(node.origin.replace(str(path), Path(path).name))
        print(f"{key} = {node.plain_value()}{_owner(key, node)}{origin}")
    return 0


def _owner(key: str, node: Node) -> str:
    """Which package a part's name comes from."""
    kind = {"model": "task", "data": "data"}.get(key, key.rpartition(".")[2] if key.startswith("model.") else "")
    if kind not in registry.KINDS or not isinstance(node.value, str) or "." in node.value:
        return ""
    try:
        return f" ({registry.find(kind, node.value).origin})"
    except UsageError:
        return " (not installed)"
