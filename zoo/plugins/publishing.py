"""What makes a package easy to find, read from its metadata."""

from __future__ import annotations

from zoo import registry
from zoo.plugins.discovery import Package, discover, normalize_name
from zoo.registry import Part

PREFIX = "zoo-"  # prefix of a package's name
KEYWORD = "zoo-plugin"  # in its keywords


def plugin_packages() -> list[Package]:
    """The installed packages with parts or recipes, without zoo itself, sorted by name."""
    packages = {entry.package for entry in discover().entries if entry.package.name != registry.BUILTIN}
    return sorted(packages, key=lambda package: normalize_name(package.name))


def parts_of(package: Package) -> list[Part]:
    """The parts that a package registers, by kind and name."""
    parts = (part for kind in registry.KINDS for part in registry.installed_parts(kind))
    return [part for part in parts if (part.distribution, part.version) == (package.name, package.version)]


def advice(package: Package) -> list[str]:
    """What a package's author may improve; a package works without any of it."""
    lines = []
    if not normalize_name(package.name).startswith(PREFIX):
        lines.append(f"names of plugins begin with {PREFIX}, so that they are found: {PREFIX}{package.name}")
    if KEYWORD not in package.keywords:
        lines.append(f'its pyproject.toml lacks keywords = ["{KEYWORD}"] below [project], by which plugins are found')
    return lines


def notes(part: Part) -> list[str]:
    """What `zoo check` says of a plugin's part beside its checks: the advice to its package's author."""
    identity = part.distribution, part.version
    owners = [package for package in plugin_packages() if (package.name, package.version) == identity]
    return advice(owners[0]) if owners and not part.builtin else []
