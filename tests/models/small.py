"""Tiny models of every kind, and the installed parts to build them from."""

import itertools

import pytest
import torch

from tests.covering import covering
from zoo import registry
from zoo.errors import UsageError
from zoo.models import LanguageModel, Seq2Seq, ViT
from zoo.models.initialization import initialize
from zoo.models.stack import Stack

KINDS = ("position", "backend", "attention", "norm", "ffn", "block")
SIZES = {"dim": 16, "depth": 2, "heads": 2, "hidden": 24}
WORDS = 19


def names(kind):
    """The names of all installed parts of a kind."""
    return [part.name for part in registry.parts(kind)]


def combinations(*kinds):
    """Every choice of one installed part per kind, as {kind: name}."""
    return [dict(zip(kinds, row, strict=True)) for row in itertools.product(*map(names, kinds))]


def refused(model, parts):
    """Whether these built-in parts refuse each other in this model, as test_compatibility.py shows."""
    position, backend, attention = (parts[kind] for kind in ("position", "backend", "attention"))
    return (
        (attention == "Additive" and (backend != "Naive" or position == "RoPE"))
        or (backend == "Flash" and (position in ("ALiBi", "T5") or model == "Seq2Seq" or bool(parts.get("window"))))
        or (attention in ("Disentangled", "Shaw") and (backend == "Flash" or position == "RoPE"))
    )


def ours(kind):
    """The names of the built-in parts of a kind."""
    return [part.name for part in registry.parts(kind) if part.distribution == registry.BUILTIN]


def covering_rows(model, *kinds, strength=2, **choices):
    """{kind: name} of built-in parts, in which all pairs of choices occur that are not refused in this model."""
    factors = {kind: ours(kind) for kind in kinds} | choices
    return covering(factors, strength, accepted=lambda row: not refused(model, row))


def covering_cases(model, *kinds, strength=2, **choices):
    """covering_rows as cases of a test, and as cases of a campaign the rows in which all triples occur."""
    rows = covering_rows(model, *kinds, strength=strength, **choices)
    triples = [row for row in covering_rows(model, *kinds, strength=3, **choices) if row not in rows]
    campaign = [pytest.param(row, marks=pytest.mark.campaign) for row in triples]
    return [*(pytest.param(row) for row in rows), *campaign]


def part_options(parts):
    """{kind: class} for {kind: name}."""
    return {kind: registry.get(kind, name) for kind, name in parts.items()}


def language(**options):
    return LanguageModel(WORDS, 16, **SIZES | options)


def seq2seq(**options):
    return Seq2Seq(WORDS, WORDS, 16, **SIZES | options)


def vit(**options):
    return ViT(5, 12, channels=1, patch_size=4, **{"pool": "cls"} | SIZES | options)


def stack(extent, **options):
    """A stack on its own, with weights large enough that everything matters."""
    return spread(Stack(extent, **SIZES | options))


def spread(net):
    """Initialise, then move every bias, table and scale away from zero and one, where they would hide."""
    initialize(net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return net


def build_model(build, parts, **options):
    """The model in evaluation, or None where the parts refuse each other: see test_compatibility.py."""
    try:
        return spread(build(**part_options(parts), **options)).eval()
    except UsageError:
        return None


def tokens(*shape):
    return torch.randint(WORDS, shape)
