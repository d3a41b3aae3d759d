"""The families that zoo knows, and which of them a configuration belongs to."""

from __future__ import annotations

from zoo.errors import UsageError
from zoo.families.bart import BART, MARIAN
from zoo.families.family import Config, Family
from zoo.families.gpt2 import GPT2
from zoo.families.llama import LLAMA, MISTRAL, MIXTRAL, QWEN2
from zoo.families.t5 import MT5, T5
from zoo.families.vit import DEIT, TIMM, VIT

FAMILIES: tuple[Family, ...] = (GPT2, LLAMA, MISTRAL, QWEN2, MIXTRAL, VIT, DEIT, TIMM, T5, MT5, BART, MARIAN)


def of(config: Config, source: str) -> Family:
    """The family of a configuration. Raises UsageError for an unknown one, or for a head that is not read."""
    kind = config.get("model_type")
    if kind is None and "architecture" in config:
        return TIMM
    for family in FAMILIES:
        if kind in family.types:
            heads = config.get("architectures") or [family.architecture]
            if not set(heads) & set(family.architectures):
                raise UsageError(f"{source}: {heads[0]} is not read; of {family.name} there is {family.architecture}.")
            return family
    have = ", ".join(sorted(name for family in FAMILIES for name in family.types))
    raise UsageError(f"{source}: model_type={kind!r} is no family that zoo reads. There are: {have}, and timm's ViT.")


def named(name: str) -> Family:
    """A family by its name. Raises UsageError for an unknown one."""
    for family in FAMILIES:
        if family.name == name:
            return family
    raise UsageError(f"no family {name!r}. There are: {', '.join(family.name for family in FAMILIES)}.")
