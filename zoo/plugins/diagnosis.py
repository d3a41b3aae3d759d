"""Problems of installed parts that can be found without importing them."""

from __future__ import annotations

import functools
import platform
from typing import Protocol, TypeVar

from zoo import __version__, registry
from zoo.errors import PartError, PluginError
from zoo.plugins import description, discovery
from zoo.plugins.safe_import import describe_missing, search_working_folder
from zoo.registry import Part


class Described(Protocol):
    """A part that says itself what is wrong with its description."""

    def problem(self) -> str:
        """A part of a sentence; empty where nothing is wrong."""


DescribedT = TypeVar("DescribedT", bound=Described)


def find_part(kind: str, name: str) -> Part:
    """The part of that name or class path, which may be in the working folder. Raises PartError for an unknown name."""
    if "." not in name:
        return registry.find(kind, name)
    search_working_folder(name)
    module, _, own = name.rpartition(".")
    if description.find_spec(module) is None:
        raise PartError(describe_missing(ModuleNotFoundError(name=module), module))
    if missing := description.missing_class(module, own):
        raise PartError(missing)
    return registry.part_of_class(name) or Part(kind, own, f"{module}:{own}", "module", module)


def choose_part(kind: str, name: str) -> Part:
    """The part of that name or class path. Raises PartError as `find_part`, PluginError for an unfit package."""
    part = find_part(kind, name)
    refuse_unfit(part)
    return part


def refuse_unfit(part: Part) -> None:
    """Raise PluginError for a part whose package is damaged, or built for another Python or zoo."""
    if part.damage:
        raise PluginError(
            f"{part} cannot be used: {part.damage} ({part.home}).\n"
            f"Try: pip install --force-reinstall {part.distribution}, or its class path"
        )
    if refusal := python_mismatch(part):
        raise PluginError(f"{part} {refusal}. Run: pip install -U {part.distribution}")
    if requirement := version_mismatch(part):
        raise PluginError(
            f"{part} is built for zoo-transformers {requirement}, installed is {__version__}. "
            f"Run: pip install -U {part.distribution}"
        )


def build_part(part: Part, base: type[DescribedT]) -> DescribedT:
    """An object of a part that takes no options. Raises PluginError where its package is at fault."""
    cls = part.load()
    if not issubclass(cls, base):
        raise PluginError(f"{part}: {cls.__name__} is no subclass of {base.__module__}.{base.__qualname__}")
    try:
        described = cls()
        problem = described.problem()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may call sys.exit() anywhere
        raise PluginError(f"{part} cannot be made: {type(error).__name__}: {error}") from error
    if problem:
        raise PluginError(f"{part}: {problem}")
    return described


def python_mismatch(part: Part) -> str:
    """That a part's package requires another Python than this one; empty where it does not."""
    package = discovery.discover().packages.get(discovery.normalize_name(part.distribution))
    if part.builtin or package is None or not package.python:
        return ""
    try:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet  # here: few commands need it
    except ImportError:
        return ""  # `zoo doctor` says that it is missing
    try:
        fits = SpecifierSet(package.python).contains(platform.python_version(), prereleases=True)
    except InvalidSpecifier:
        return ""  # pip would reject it
    return "" if fits else f"requires Python {package.python}, this is {platform.python_version()}"


def version_mismatch(part: Part) -> str:
    """The versions of zoo that a part's package requires if the installed one is none of them; else empty."""
    return "" if part.builtin or not part.requires else _excludes(part.requires)


@functools.cache
def _excludes(requires: tuple[str, ...]) -> str:
    try:
        from packaging.requirements import InvalidRequirement, Requirement  # here: few commands need it
    except ImportError:
        return ""  # `zoo doctor` says that it is missing
    for line in requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue  # pip would reject it; ignore it in metadata written by hand
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and not requirement.specifier.contains(__version__, prereleases=True):
            return ",".join(sorted(map(str, requirement.specifier)))
    return ""


def name_problems(part: Part) -> list[str]:
    """Why a part cannot be selected by its name: damaged, disabled, built for another version, hidden, ambiguous."""
    if part.builtin:
        return []
    if registry.is_disabled(part.distribution):
        return [f"disabled by {registry.DISABLE_VARIABLE}"]
    sentences = list(filter(None, [python_mismatch(part), part.damage]))
    if requirement := version_mismatch(part):
        sentences.append(f"built for zoo-transformers {requirement}, installed is {__version__}")
    way = f"; its class path is {part.path}"
    if registry.is_hidden(part):
        sentences.append(f"hidden by zoo's own {part.kind} of this name{way}")
    others = [twin for twin in registry.parts_called(part.kind, part.name) if twin.path != part.path]
    twins = [twin for twin in others if not registry.is_hidden(twin) and not registry.is_disabled(twin.distribution)]
    if twins and not registry.is_hidden(part):
        sentences.append(f"also registered by {' and '.join(twin.origin for twin in twins)}{way}")
    return sentences


def problems(part: Part) -> list[str]:
    """The sentences of `name_problems`, or else why importing the part would fail."""
    sentences = name_problems(part)
    if sentences or part.builtin:
        return sentences
    name = part.target.partition(":")[2].partition(".")[0].strip()
    flaw = description.import_problem(part.module) or description.missing_class(part.module, name)
    return [flaw] if flaw else []


def part_location(part: Part) -> str:
    """The source file of a part's module, or else the metadata folder of its package."""
    origin = getattr(description.find_spec(part.module), "origin", None)
    return origin or part.home
