"""What is wrong with an installed part, as far as it can be known without importing it."""

from __future__ import annotations

import functools

from zoo import __version__, registry
from zoo.errors import PluginError
from zoo.plugins import description
from zoo.registry import Part


def choose_part(kind: str, name: str) -> Part:
    """The part of that name. Raises PartError as the registry does, PluginError where its package cannot be used."""
    part = registry.find(kind, name)
    if part.damage:
        raise PluginError(
            f"{part} cannot be used: {part.damage} ({part.home}).\n"
            f"Try: pip install --force-reinstall {part.distribution}, or its class path"
        )
    if requirement := version_mismatch(part):
        raise PluginError(
            f"{part} is built for zoo-transformers {requirement}, installed is {__version__}. "
            f"Run: pip install -U {part.distribution}"
        )
    return part


def version_mismatch(part: Part) -> str:
    """Which versions of zoo a part's package asks for, where the installed one is none of them."""
    return "" if part.builtin or not part.requires else _excludes(part.requires)


@functools.cache
def _excludes(requires: tuple[str, ...]) -> str:
    from packaging.requirements import InvalidRequirement, Requirement  # here: few commands need it

    for line in requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue  # pip would have refused it; whoever wrote the file by hand may try
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and not requirement.specifier.contains(__version__, prereleases=True):
            return ",".join(sorted(map(str, requirement.specifier)))
    return ""


def name_problems(part: Part) -> list[str]:
    """Why a part cannot be chosen by its name, or is disabled, hidden, or one of two."""
    if part.builtin:
        return []
    if registry.is_disabled(part.distribution):
        return [f"disabled by {registry.DISABLE_VARIABLE}"]
    sentences = [part.damage] if part.damage else []
    if requirement := version_mismatch(part):
        sentences.append(f"built for zoo-transformers {requirement}, installed is {__version__}")
    way = f"; its class path is {part.path}"
    if registry.is_hidden(part):
        sentences.append(f"hidden by zoo's own {part.kind} of this name{way}")
    others = [one for one in registry.parts_called(part.kind, part.name) if one != part]
    twins = [one for one in others if not registry.is_hidden(one) and not registry.is_disabled(one.distribution)]
    if twins and not registry.is_hidden(part):
        sentences.append(f"also registered by {' and '.join(one.origin for one in twins)}{way}")
    return sentences


def problems(part: Part) -> list[str]:
    """The same, and why importing it would fail."""
    sentences = name_problems(part)
    if sentences or part.builtin:
        return sentences
    flaw = description.import_problem(part.module, part.target.partition(":")[2])
    return [flaw] if flaw else []


def part_location(part: Part) -> str:
    """The file that a part's module comes from, or where the metadata of its package lie."""
    origin = getattr(description.find_spec(part.module), "origin", None)
    return origin or part.home
