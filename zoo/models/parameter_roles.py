"""What each parameter of a network is for: optimizers and initialisations treat matrices, tables and vectors apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from torch import Tensor, nn

# matrix: maps hidden features to hidden features. head: maps them to logits. embedding: makes features of tokens,
# pixels or places. vector: gains, biases, and whatever else has one dimension.
Role = Literal["matrix", "embedding", "head", "vector"]
# names of modules that give logits
HEADS = ("head", "heads", "lm_head", "classifier", "follows", "own", "output", "outer", "direct", "label")
EMBEDDINGS = ("embed", "position", "segment", "table")  # what names of embeddings hold


def parameter_role(name: str, parameter: Tensor, module: nn.Module | None = None) -> Role:
    """The role of a parameter of any shape by its dotted name, and by the type of the module that it belongs to.

    A module states the roles of its own parameters otherwise: ``parameter_roles = {"weight": "head"}`` in its class.
    """
    pieces = name.split(".")
    declared = getattr(module, "parameter_roles", {})
    if pieces[-1] in declared:
        return declared[pieces[-1]]
    if parameter.dim() < 2:
        return "vector"
    if isinstance(module, nn.Embedding) or parameter.dim() > 2:
        return "embedding"
    hidden = "blocks" in pieces
    if not hidden and any(word in piece for piece in pieces for word in EMBEDDINGS):
        return "embedding"
    return "head" if not hidden and set(pieces) & set(HEADS) else "matrix"


def parameter_roles(net: nn.Module) -> dict[str, Role]:
    """The role of every parameter of ``net`` by its name; one that is embedding and head at once is an embedding."""
    modules = dict(net.named_modules())
    return {
        name: parameter_role(name, parameter, modules[name.rpartition(".")[0]])
        for name, parameter in net.named_parameters()
    }


def roles_by_name(parameters: Iterable[tuple[str, Tensor]]) -> dict[str, Role]:
    """The roles of named parameters of any shape where their modules are not at hand."""
    return {name: parameter_role(name, parameter) for name, parameter in parameters}
