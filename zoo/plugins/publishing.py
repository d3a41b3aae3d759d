"""What makes a package easy to find and keeps it working with later versions, read from its metadata."""

from __future__ import annotations

from zoo import registry
from zoo.plugins import interfaces
from zoo.plugins.discovery import Package, discover, normalize_name
from zoo.registry import Part

PREFIX = "zoo-"  # of a package's name
KEYWORD = "zoo-plugin"  # in its keywords
UPPER_BOUNDS = ("<", "<=", "==", "===", "~=")


def plugin_packages() -> list[Package]:
    """The installed packages with parts or recipes, without zoo itself, sorted by name."""
    packages = {one.package for one in discover().entries if one.package.name != registry.BUILTIN}
    return sorted(packages, key=lambda package: normalize_name(package.name))


def parts_of(package: Package) -> list[Part]:
    """The parts that a package registers, by kind and name."""
    parts = (part for kind in registry.KINDS for part in registry.installed_parts(kind))
    return [part for part in parts if (part.distribution, part.version) == (package.name, package.version)]


def updates(package: Package) -> list[str]:
    """Which interface versions of a package are older or newer than this zoo's, and what to install."""
    versions = dict.fromkeys((part.kind, part.interface) for part in parts_of(package))
    sentences = (
        interfaces.refusal(kind, version, package.name) or interfaces.deprecation(kind, version, package.name)
        for kind, version in versions
    )
    return [f"{package.origin} {sentence}" for sentence in sentences if sentence]


def advice(package: Package) -> list[str]:
    """What a package's author may improve; a package works without any of it."""
    lines = []
    if not normalize_name(package.name).startswith(PREFIX):
        lines.append(f"names of plugins begin with {PREFIX}, so that they are found: {PREFIX}{package.name}")
    if KEYWORD not in package.keywords:
        lines.append(f'its pyproject.toml lacks keywords = ["{KEYWORD}"] below [project], by which plugins are found')
    kinds = dict.fromkeys(part.kind for part in parts_of(package))
    declared = {one.name for one in discover().entries if one.package == package and one.kind == interfaces.GROUP_KIND}
    if missing := [f'{kind} = "v{interfaces.current(kind)}"' for kind in kinds if kind not in declared]:
        lines.append(
            f"it does not declare the interface versions that it is written for (version {interfaces.FIRST} is "
            f'assumed): [project.entry-points."zoo.{interfaces.GROUP_KIND}"] {", ".join(missing)}'
        )
    if bound := upper_bound(package):
        lines.append(f"its requirement zoo-transformers{bound} refuses later versions; interface versions replace it")
    return lines


def upper_bound(package: Package) -> str:
    """The bounds of a package's requirement on zoo that exclude later versions: ``<0.2``; empty without one."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement  # here: few commands need it
    except ImportError:
        return ""
    bounds: list[str] = []
    for line in package.requires:
        try:
            specifiers = Requirement(line).specifier
        except InvalidRequirement:
            continue
        bounds += [str(one) for one in specifiers if one.operator in UPPER_BOUNDS]
    return ",".join(sorted(bounds))


def notes(part: Part) -> list[str]:
    """What `zoo check` says of a plugin's part beside its checks: its package's updates, then the advice."""
    package = next(
        (one for one in plugin_packages() if (one.name, one.version) == (part.distribution, part.version)), None
    )
    if part.builtin or package is None:
        return []
    return [*updates(package), *advice(package)]
