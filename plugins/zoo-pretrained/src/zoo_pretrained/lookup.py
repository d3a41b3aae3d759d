"""Find the family of published models that a configuration belongs to, among those that packages register."""

from __future__ import annotations

from pathlib import Path

from zoo import registry
from zoo.errors import PluginError, UsageError
from zoo_pretrained.config_keys import shorten
from zoo_pretrained.family import Config, Family


def families() -> list[Family]:
    """Every installed family: those that are derived from another one behind it, else by their names.

    A family whose package cannot be imported is left out: `zoo list family` says why.
    """
    members = []
    for part in registry.parts("family"):
        try:
            cls = part.load()
        except PluginError:
            continue
        if issubclass(cls, Family):
            members.append(cls())
    return sorted(members, key=lambda family: len(type(family).__mro__))


def family_of(config: Config, source: str, folder: Path | None = None) -> Family:
    """The family of a configuration, and of the other files of its folder.

    Raises UsageError for an unknown one, or for a head that is not read.
    """
    kind = config.get("model_type")
    mine = [family for family in families() if family.claims(config)]
    if mine:
        if not mine[0].architectures:
            return mine[0]
        heads = config.get("architectures") or [mine[0].architecture]
        if not isinstance(heads, list) or not all(isinstance(head, str) for head in heads):
            raise UsageError(f"{source}: architectures={shorten(heads)} is not supported; a list of names would be.")
        readers = [family for family in mine if folder is not None and family.claims_folder(folder)]
        readers = readers or [family for family in mine if set(heads) & set(family.architectures)]
        if len(readers) > 1:
            names = " and ".join(family.name for family in readers)
            raise UsageError(
                f"{source}: both {names} read {heads[0]}. Disable the package of one: ZOO_DISABLE_PLUGINS."
            )
        if readers:
            return readers[0]
        there = ", ".join(family.architecture for family in mine)
        raise UsageError(f"{source}: architectures: {heads[0]} is not read; of {kind} there is {there}.")
    have = ", ".join(sorted({name for family in families() for name in family.types}))
    raise UsageError(f"{source}: model_type={kind!r} is no family that zoo reads. There are: {have}, and timm's ViT.")
