"""Find the family of published models that a configuration belongs to."""

from __future__ import annotations

from zoo.errors import UsageError
from zoo.pretrained.bart import BART, MARIAN
from zoo.pretrained.bert import BERT, BERT_TEXTS, BERT_TOKENS, ROBERTA, ROBERTA_TEXTS, ROBERTA_TOKENS
from zoo.pretrained.config_keys import shorten
from zoo.pretrained.deberta import DEBERTA, DEBERTA_TEXTS, DEBERTA_TOKENS
from zoo.pretrained.family import Config, Family
from zoo.pretrained.gpt2 import GPT2
from zoo.pretrained.llama import LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3
from zoo.pretrained.t5 import MT5, T5
from zoo.pretrained.vit import DEIT, TIMM, VIT

FAMILIES: tuple[Family, ...] = (
    *(GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, MIXTRAL, VIT, DEIT, TIMM, T5, MT5, BART, MARIAN),
    *(BERT, BERT_TEXTS, BERT_TOKENS, ROBERTA, ROBERTA_TEXTS, ROBERTA_TOKENS),
    *(DEBERTA, DEBERTA_TEXTS, DEBERTA_TOKENS),
)


def family_of(config: Config, source: str) -> Family:
    """The family of a configuration. Raises UsageError for an unknown one, or for a head that is not read."""
    kind = config.get("model_type")
    if kind is None and "architecture" in config:
        return TIMM
    mine = [family for family in FAMILIES if kind in family.types]
    if mine:
        heads = config.get("architectures") or [mine[0].architecture]
        if not isinstance(heads, list) or not all(isinstance(head, str) for head in heads):
            raise UsageError(f"{source}: architectures={shorten(heads)} is not supported; a list of names would be.")
        for family in mine:
            if set(heads) & set(family.architectures):
                return family
        there = ", ".join(family.architecture for family in mine)
        raise UsageError(f"{source}: architectures: {heads[0]} is not read; of {kind} there is {there}.")
    have = ", ".join(sorted({name for family in FAMILIES for name in family.types}))
    raise UsageError(f"{source}: model_type={kind!r} is no family that zoo reads. There are: {have}, and timm's ViT.")


def family_named(name: str) -> Family:
    """A family by its name. Raises UsageError for an unknown one."""
    for family in FAMILIES:
        if family.name == name:
            return family
    raise UsageError(f"no family {name!r}. There are: {', '.join(family.name for family in FAMILIES)}.")
