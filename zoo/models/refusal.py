"""Sentences for combinations of parts that cannot work, said when a stack is built and not in the middle of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zoo import registry
from zoo.errors import UsageError, ZooError
from zoo.parts.attention import Attention
from zoo.parts.position import Position

if TYPE_CHECKING:
    from zoo.models.stack import Stack


def refuse_unserved(stack: Stack, padded: bool, attention_dropout: float) -> None:
    """Raise UsageError when an attention of the stack, or its backend, cannot serve what the stack will ask of it."""
    own = stack.pattern().needs | ({"rotate"} if stack.position.rotates else set())
    always = ({"valid"} if padded else set()) | ({"dropout"} if attention_dropout else set())
    for attention, cross in stack.attentions():
        if stack.position.rotates:
            stack.position.check(attention.head_dim)
        if missing := attention.missing(frozenset(always if cross else own | always)):
            raise UsageError(sentence(min(missing), stack, attention))


def sentence(feature: str, stack: Stack, attention: Attention) -> str:
    """Who asks for a feature, who cannot serve it, and who could."""
    position = type(stack.position).__name__
    asks = {
        "bias": f"position {position} adds a bias to the scores",
        "rotate": f"position {position} turns queries and keys",
        "valid": "this model pads its batches",
        "window": f"window={stack.window} hides keys",
        "dropout": "attention_dropout drops attention weights",
        "causal": "this model is causal",
    }
    kind, culprit = ("attention", attention) if feature == "rotate" else ("backend", attention.backend)
    works = ", ".join(alternatives(kind, feature)) or "none installed"
    return f"{asks[feature]}, which {kind} {type(culprit).__name__} cannot take. Works with: {works}."


def alternatives(kind: str, feature: str) -> list[str]:
    """Installed parts of a kind that serve a feature; a broken plugin is none."""
    names = []
    for part in registry.parts(kind):
        try:
            cls: Any = part.load()
            serves = {"rotate"} if kind == "attention" and cls.rotates else cls().lowers if kind == "backend" else set()
        except ZooError:
            continue
        if feature in serves:
            names.append(part.name)
    return names


def too_long(position: Position, length: int, limit: int) -> UsageError:
    """The error for a sequence beyond the positions that a scheme has."""
    return UsageError(
        f"sequence length {length} exceeds max_length={limit} of position {type(position).__name__}. "
        f"Use RoPE, ALiBi, T5 or Sinusoidal, or set max_length to at least {length}."
    )
